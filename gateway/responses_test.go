package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
	"headgate/wire/responses"
)

func responseBody(extra string) string {
	return `{"model":"test-model","max_output_tokens":16,"input":"hello"` + extra + `}`
}

// Every kind of engine serves responses, streamed and whole, and what it is sent
// is a chat.
func TestResponses(t *testing.T) {
	for _, kind := range engine.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, setup{engine: enginetest.Options{Kind: kind}}, func(t *testing.T, r *rig) {
				done := r.start("POST", responses.Path, responseBody(`,"stream":true,"instructions":"be brief"`))
				call := r.engine.Accept(t)
				if got := gjson.GetBytes(call.Body, "messages").Raw; call.API != wire.Chat || got != `[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}]` {
					t.Errorf("the engine got %s", call.Body)
				}
				call.Emit(2)
				call.Finish("stop")
				a := <-done
				want := "created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done completed"
				if got := strings.ReplaceAll(strings.Join(names(a.body), " "), "response.", ""); a.status != 200 || got != want {
					t.Errorf("%d %s\n%s", a.status, got, a.body)
				}
				_, last, _ := strings.Cut(a.body, "event: response.completed\ndata: ")
				m := gjson.Get(last, "response")
				if m.Get("id").Str != "resp_"+strings.TrimPrefix(a.header.Get(headerID), "req_") || m.Get("model").Str != "test-model" || m.Get("instructions").Str != "be brief" ||
					m.Get("usage.output_tokens").Int() != 2 || m.Get("output.0.content.0.text").Str != "w1 w2 " || m.Get("store").Raw != "false" || m.Get("created_at").Int() == 0 {
					t.Errorf("%s", last)
				}

				done = r.start("POST", responses.Path, responseBody(""))
				call = r.engine.Accept(t)
				call.Emit(2)
				call.Finish("length")
				a = <-done
				m = gjson.Parse(a.body)
				if a.status != 200 || m.Get("object").Str != "response" || m.Get("output.0.content.0.text").Str != "w1 w2 " || m.Get("status").Str != "incomplete" ||
					m.Get("incomplete_details.reason").Str != "max_output_tokens" || m.Get("usage.output_tokens").Int() != 2 || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.quiet()
			})
		})
	}
}

// A wait shows as comments, from the first byte on.
func TestResponsesKeepAlive(t *testing.T) {
	bubble(t, setup{keepalive: 10 * time.Second}, func(t *testing.T, r *rig) {
		done := r.start("POST", responses.Path, responseBody(`,"stream":true`))
		call := r.engine.Accept(t)
		time.Sleep(15 * time.Second)
		call.Emit(1)
		time.Sleep(15 * time.Second)
		call.Finish("stop")
		a := <-done
		if !strings.HasPrefix(a.body, ": keep-alive\n\nevent: response.created\n") || strings.Count(a.body, ": keep-alive\n\n") != 2 {
			t.Errorf("%s", a.body)
		}
	})
}

func TestResponsesRefusals(t *testing.T) {
	bubble(t, setup{depth: 1, slots: 1, wait: time.Hour}, func(t *testing.T, r *rig) {
		refused := func(a answer, status int, code, param string) {
			t.Helper()
			e := documented(t, a.status, a.body)
			if a.status != status || *e.Error.Code != code || param != "" && (e.Error.Param == nil || *e.Error.Param != param) {
				t.Errorf("%d %s, want %d %s about %q", a.status, a.body, status, code, param)
			}
		}
		send := func(extra string, headers ...string) answer {
			return r.send("POST", responses.Path, responseBody(extra), headers...)
		}
		refused(send(`,"previous_response_id":"resp_1"`), 400, wire.CodeInvalidField, "previous_response_id")
		refused(send(`,"store":true`), 400, wire.CodeInvalidField, "store")
		refused(send(`,"background":true`), 400, wire.CodeInvalidField, "background")
		refused(send(`,"tools":[{"type":"web_search"}]`), 400, wire.CodeInvalidField, "tools[0].type")
		refused(send("", "Authorization", ""), 401, wire.CodeUnauthorized, "")
		refused(send("", headerClass, "gold"), 403, wire.CodeClassNotPermitted, "")
		refused(r.send("POST", responses.Path, `{"model":"other","input":"x"}`), 404, wire.CodeModelNotFound, "model")
		for _, c := range [][2]string{{"GET", "/resp_1"}, {"DELETE", "/resp_1"}, {"POST", "/resp_1/cancel"}, {"GET", "/resp_1/input_items"}, {"POST", "/compact"}, {"POST", "/input_tokens"}} {
			a := r.send(c[0], responses.Path+c[1], "")
			refused(a, 404, wire.CodeRouteNotFound, "")
			if !strings.Contains(a.body, "no response is stored here") {
				t.Errorf("%s", a.body)
			}
		}
		refused(r.send("GET", responses.Path+"/resp_1", "", "Authorization", ""), 401, wire.CodeUnauthorized, "")

		first := r.start("POST", responses.Path, responseBody(""))
		call := r.engine.Accept(t)
		second := r.start("POST", responses.Path, responseBody(""))
		time.Sleep(time.Millisecond)
		a := send(`,"stream":true`)
		refused(a, 429, wire.CodeQueueFull, "")
		if a.header.Get(headerDecision) != "rejected" {
			t.Errorf("%v", a.header)
		}
		call.Document(400, `{"error":{"message":"too many","type":"BadRequestError","param":"max_tokens","code":400}}`)
		refused(<-first, 400, wire.CodeEngineRefused, "max_output_tokens")
		call = r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		<-second
		r.quiet()
	})
}

// A stream that fails says so in its last event, also where what the engine sends
// makes no response.
func TestResponsesErrorInStream(t *testing.T) {
	const tool = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},"finish_reason":null}]}` + "\n\n"
	for _, c := range []struct {
		name, want string
		fail       func(*enginetest.Call)
	}{
		{"the engine's", "CUDA error", func(c *enginetest.Call) { c.Fail(500, "CUDA error") }},
		{"ours", "without a name", func(c *enginetest.Call) { c.Send(tool) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, setup{}, func(t *testing.T, r *rig) {
				done := r.start("POST", responses.Path, responseBody(`,"stream":true`))
				call := r.engine.Accept(t)
				call.Emit(1)
				c.fail(call)
				a := <-done
				_, last, ok := strings.Cut(a.body, "event: response.failed\ndata: ")
				e := gjson.Get(last, "response.error")
				if !ok || a.status != 200 || strings.Contains(a.body, "completed\",\"seq") || e.Get("code").Str != wire.CodeUpstreamError || !strings.Contains(e.Get("message").Str, c.want) {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.quiet()
			})
		})
	}
}

func TestResponsesClientLeaves(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		got := make(chan *http.Response, 1)
		req := r.request("POST", responses.Path, responseBody(`,"stream":true`))
		go func() { got <- r.do(req) }()
		call := r.engine.Accept(t)
		call.Emit(1)
		res := <-got
		if e := readEvent(t, res.Body); !strings.HasPrefix(e, "event: response.created\n") {
			t.Errorf("%q", e)
		}
		_ = res.Body.Close()
		<-call.Gone()
		r.quiet()
	})
}

// A response and a chat are one kind of call to admission.
func TestResponsesAreAdmittedAsChats(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		held := func(path, body string) string {
			done := r.start("POST", path, body)
			call := r.engine.Accept(t)
			call.Start()
			s := r.pool.Snapshot()
			call.Emit(1)
			call.Finish("stop")
			if a := <-done; a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.quiet()
			return fmt.Sprint(s.Used)
		}
		if m, c := held(responses.Path, responseBody("")), held(chat, chatBody(`,"max_tokens":16`)); m != c {
			t.Errorf("a response holds %s, a chat %s", m, c)
		}
		picture := `[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,` + strings.Repeat("A", 4000) + `"}]}]`
		want := held(chat, strings.Replace(chatBody(`,"max_tokens":16`), `"hello"`, `[{"type":"image_url","image_url":{"url":"x"}}]`, 1))
		if m := held(responses.Path, strings.Replace(responseBody(""), `"hello"`, picture, 1)); m != want {
			t.Errorf("a picture in a response holds %s, in a chat %s", m, want)
		}
	})
}

const embeddings = "/v1/embeddings"

// Embeddings are passed on as they are, told as the engine tells them, and hold a
// slot and their prompt.
func TestEmbeddings(t *testing.T) {
	const vectors = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AACAPw=="}],"model":"test-model","usage":{"prompt_tokens":3,"total_tokens":3}}`
	for _, kind := range engine.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, setup{engine: enginetest.Options{Kind: kind}}, func(t *testing.T, r *rig) {
				r.engine.Answer(embeddings, 200, vectors)
				for _, input := range []string{`"hello"`, `["a","b"]`, `[1,2,3]`, `[[1],[2]]`} {
					a := r.send("POST", embeddings, `{"model":"test-model","input":`+input+`,"encoding_format":"base64"}`)
					if a.status != 200 || a.body != vectors || a.header.Get("Content-Type") != "application/json" || a.header.Get(headerClass) != "interactive" {
						t.Errorf("%s: %d %s %v", input, a.status, a.body, a.header)
					}
				}
				r.engine.Answer(embeddings, 501, `{"error":{"message":"This server does not support embeddings","type":"not_supported_error","code":501}}`)
				a := r.send("POST", embeddings, `{"model":"test-model","input":"x"}`)
				if e := documented(t, a.status, a.body); a.status != 400 || *e.Error.Code != wire.CodeEngineRefused || !strings.Contains(e.Error.Message, "does not support embeddings") {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.engine.Answer(embeddings, 404, `{"detail":"Not Found"}`)
				a = r.send("POST", embeddings, `{"model":"test-model","input":"x"}`)
				if a.status != 404 {
					t.Errorf("%d %s", a.status, a.body)
				}
				for _, body := range []string{`{"model":"test-model"}`, `{"model":"test-model","input":"x","stream":true}`, `{"model":"test-model","input":[]}`} {
					a := r.send("POST", embeddings, body)
					if documented(t, a.status, a.body); a.status != 400 {
						t.Errorf("%s: %d %s", body, a.status, a.body)
					}
				}
				if n := r.engine.Scrapes(embeddings); n != 6 {
					t.Errorf("%d requests reached the engine", n)
				}
				r.quiet()
			})
		})
	}
}

// What can never fit is refused before an engine sees it; many inputs that fit one
// by one do not count as one that does not.
func TestEmbeddingsThatCanNotFit(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		r.engine.Answer(embeddings, 200, `{"object":"list","data":[],"usage":{"prompt_tokens":3,"total_tokens":3}}`)
		most := 0
		for _, e := range r.pool.Engines() {
			most = e.Capabilities.MaxContext
		}
		long, _ := json.Marshal(strings.Repeat("word ", most))
		a := r.send("POST", embeddings, `{"model":"test-model","input":`+string(long)+`}`)
		if documented(t, a.status, a.body); a.status != 400 && a.status != 413 {
			t.Errorf("%d %s", a.status, a.body)
		}
		part, _ := json.Marshal(strings.Repeat("word ", most/8))
		a = r.send("POST", embeddings, `{"model":"test-model","input":[`+strings.Repeat(string(part)+",", 19)+string(part)+`]}`)
		if a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		r.quiet()
	})
}
