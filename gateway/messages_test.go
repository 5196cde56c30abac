package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
	"headgate/wire/anthropic"
)

func messageBody(extra string) string {
	return `{"model":"test-model","max_tokens":16,"messages":[{"role":"user","content":"hello"}]` + extra + `}`
}

// names are those of a stream's events, in their order.
func names(body string) []string {
	var all []string
	for line := range strings.SplitSeq(body, "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			all = append(all, name)
		}
	}
	return all
}

// told fails unless a body is an error in Anthropic's shape with a status and a
// code of the documented table, and returns it.
func told(t *testing.T, a answer, status int, kind, code string) gjson.Result {
	t.Helper()
	var e struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
			Code    string `json:"code"`
			Param   string `json:"param"`
		} `json:"error"`
		RequestID string `json:"request_id"`
	}
	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Type != "error" || e.Error.Message == "" {
		t.Fatalf("status %d: no error body: %v: %q", a.status, err, a.body)
	}
	if a.status != status || e.Error.Type != kind || e.Error.Code != code {
		t.Errorf("%d %s, want %d %s %s", a.status, a.body, status, kind, code)
	}
	if !slices.ContainsFunc(wire.Table(), func(r wire.Row) bool { return r.Code == code && r.Status == status }) {
		t.Errorf("%d %s is not in the documented table", status, code)
	}
	if id := a.header.Get(headerID); id == "" || e.RequestID != id || a.header.Get(headerAnthropicID) != id {
		t.Errorf("request ids: body %q, headers %v", e.RequestID, a.header)
	}
	return gjson.Parse(a.body)
}

// Every kind of engine serves messages, streamed and whole, and what it is sent
// is a chat.
func TestMessages(t *testing.T) {
	for _, kind := range engine.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, setup{engine: enginetest.Options{Kind: kind}}, func(t *testing.T, r *rig) {
				done := r.start("POST", anthropic.MessagesPath, messageBody(`,"stream":true,"system":"be brief"`), "Authorization", "", "X-Api-Key", aliceKey)
				call := r.engine.Accept(t)
				if got := gjson.GetBytes(call.Body, "messages").Raw; call.API != wire.Chat || got != `[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}]` {
					t.Errorf("the engine got %s", call.Body)
				}
				call.Emit(3)
				call.Finish("stop")
				a := <-done
				want := "message_start ping content_block_start content_block_delta content_block_delta content_block_delta content_block_stop message_delta message_stop"
				if got := strings.Join(names(a.body), " "); a.status != 200 || got != want {
					t.Errorf("%d %s\n%s", a.status, got, a.body)
				}
				if !strings.Contains(a.body, `"model":"test-model"`) || !strings.Contains(a.body, `"stop_reason":"end_turn"`) || !strings.Contains(a.body, `"output_tokens":3}`) ||
					!strings.Contains(a.body, `"id":"msg_`+strings.TrimPrefix(a.header.Get(headerID), "req_")+`"`) {
					t.Errorf("%s", a.body)
				}
				if h := a.header; h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get(headerClass) != "interactive" || h.Get(headerAnthropicID) != h.Get(headerID) {
					t.Errorf("%v", h)
				}

				done = r.start("POST", anthropic.MessagesPath, messageBody(""))
				call = r.engine.Accept(t)
				call.Emit(2)
				call.Finish("length")
				a = <-done
				m := gjson.Parse(a.body)
				if a.status != 200 || m.Get("type").Str != "message" || m.Get("content.0.text").Str != "w1 w2 " || m.Get("stop_reason").Str != "max_tokens" ||
					m.Get("usage.output_tokens").Int() != 2 || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.quiet()
			})
		})
	}
}

// Case 28: a wait shows as ping events, from the first byte on, and what is
// expected of the prompt is told before the engine tells it.
func TestMessagesPing(t *testing.T) {
	bubble(t, setup{keepalive: 10 * time.Second}, func(t *testing.T, r *rig) {
		done := r.start("POST", anthropic.MessagesPath, messageBody(`,"stream":true`))
		call := r.engine.Accept(t)
		time.Sleep(25 * time.Second)
		call.Emit(1)
		time.Sleep(15 * time.Second)
		call.Finish("stop")
		a := <-done
		want := "ping ping message_start ping content_block_start content_block_delta ping content_block_stop message_delta message_stop"
		if got := strings.Join(names(a.body), " "); got != want {
			t.Errorf("%s\n%s", got, a.body)
		}
		if strings.Contains(a.body, "\n:") || strings.HasPrefix(a.body, ":") {
			t.Errorf("a comment: %s", a.body)
		}
	})
}

func TestMessagesRefusals(t *testing.T) {
	bubble(t, setup{depth: 1, slots: 1, wait: time.Hour}, func(t *testing.T, r *rig) {
		send := func(method, path, body string, headers ...string) answer {
			return r.send(method, path, body, headers...)
		}
		told(t, send("POST", anthropic.MessagesPath, "{"), 400, "invalid_request_error", wire.CodeInvalidJSON)
		if e := told(t, send("POST", anthropic.MessagesPath, messageBody(`,"container":"c"`)), 400, "invalid_request_error", wire.CodeInvalidField); e.Get("error.param").Str != "container" {
			t.Errorf("%s", e.Raw)
		}
		told(t, send("POST", anthropic.MessagesPath, messageBody(""), "Authorization", ""), 401, "authentication_error", wire.CodeUnauthorized)
		told(t, send("POST", anthropic.MessagesPath, messageBody(""), headerClass, "gold"), 403, "permission_error", wire.CodeClassNotPermitted)
		told(t, send("POST", anthropic.MessagesPath, strings.Replace(messageBody(""), "test-model", "other", 1)), 404, "not_found_error", wire.CodeModelNotFound)
		told(t, send("POST", anthropic.MessagesPath+"/batches", messageBody("")), 404, "not_found_error", wire.CodeRouteNotFound)
		if a := send("GET", anthropic.MessagesPath, ""); a.header.Get("Allow") != "POST" {
			t.Errorf("%v", a.header)
		} else {
			told(t, a, 405, "invalid_request_error", wire.CodeMethodNotAllowed)
		}
		told(t, send("POST", anthropic.MessagesPath, messageBody(`,"system":"`+strings.Repeat("x", 1<<20)+`"`)), 413, "request_too_large", wire.CodeBodyTooLarge)
		// Another path is not a message's.
		documented(t, 404, send("POST", "/v1/messagesx", "").body)

		// A full queue refuses with the hint that a chat gets.
		first := r.start("POST", anthropic.MessagesPath, messageBody(""))
		call := r.engine.Accept(t)
		second := r.start("POST", anthropic.MessagesPath, messageBody(""))
		time.Sleep(time.Millisecond)
		a := send("POST", anthropic.MessagesPath, messageBody(`,"stream":true`))
		told(t, a, 429, "rate_limit_error", wire.CodeQueueFull)
		chat := send("POST", chat, chatBody(""))
		if chat.status != 429 || (a.header.Get("Retry-After-Ms") == "") != (chat.header.Get("Retry-After-Ms") == "") || a.header.Get(headerDecision) != "rejected" {
			t.Errorf("messages %v, chat %v", a.header, chat.header)
		}
		call.Document(400, `{"error":{"message":"stop is bad","type":"BadRequestError","param":"stop","code":400}}`)
		if e := told(t, <-first, 400, "invalid_request_error", wire.CodeEngineRefused); e.Get("error.param").Str != "stop_sequences" {
			t.Errorf("%s", e.Raw)
		}
		call = r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		<-second
		r.quiet()
	})
}

// An error in a stream that has begun is its last event, and what can't be told
// as a message is an error, not silence.
func TestMessagesErrorInStream(t *testing.T) {
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
				done := r.start("POST", anthropic.MessagesPath, messageBody(`,"stream":true`))
				call := r.engine.Accept(t)
				call.Emit(1)
				c.fail(call)
				a := <-done
				_, last, ok := strings.Cut(a.body, "event: error\ndata: ")
				if !ok || a.status != 200 || strings.Contains(a.body, "message_stop") || gjson.Get(last, "error.type").Str != "api_error" ||
					gjson.Get(last, "error.code").Str != wire.CodeUpstreamError || !strings.Contains(last, c.want) {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.quiet()
			})
		})
	}
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		done := r.start("POST", anthropic.MessagesPath, messageBody(""))
		call := r.engine.Accept(t)
		call.Send(strings.Replace(strings.Replace(tool, `{"arguments":"{"}`, `{"name":"f","arguments":"x"}`, 1), `"finish_reason":null`, `"finish_reason":"tool_calls"`, 1))
		call.End()
		if e := told(t, <-done, 502, "api_error", wire.CodeUpstreamError); !strings.Contains(e.Get("error.message").Str, "no JSON object") {
			t.Errorf("%s", e.Raw)
		}
		r.quiet()
	})
}

func TestMessagesClientLeaves(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		got := make(chan *http.Response, 1)
		req := r.request("POST", anthropic.MessagesPath, messageBody(`,"stream":true`))
		go func() { got <- r.do(req) }()
		call := r.engine.Accept(t)
		call.Emit(1)
		res := <-got
		if e := readEvent(t, res.Body); !strings.HasPrefix(e, "event: message_start\n") {
			t.Errorf("%q", e)
		}
		_ = res.Body.Close()
		<-call.Gone()
		r.quiet()
	})
}

func TestCountTokens(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		count := func(text string) int64 {
			a := r.send("POST", anthropic.CountTokensPath, fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":%q}]}`, text))
			n := gjson.Get(a.body, "input_tokens")
			if a.status != 200 || n.Type != gjson.Number || a.header.Get(headerAnthropicID) == "" {
				t.Fatalf("%d %s", a.status, a.body)
			}
			return n.Int()
		}
		short, long := count("hello"), count(strings.Repeat("hello ", 100))
		if short < 1 || long < short+100 || long > short+200 {
			t.Errorf("%d and %d tokens", short, long)
		}
		told(t, r.send("POST", anthropic.CountTokensPath, `{"model":"other","messages":[{"role":"user","content":"x"}]}`), 404, "not_found_error", wire.CodeModelNotFound)
		told(t, r.send("POST", anthropic.CountTokensPath, `{"model":"test-model"}`), 400, "invalid_request_error", wire.CodeMissingField)

		// What an engine has counted is learned.
		for range 8 {
			done := r.start("POST", anthropic.MessagesPath, messageBody(`,"stream":true`))
			call := r.engine.Accept(t)
			call.Emit(1)
			call.Finish("stop")
			<-done
		}
		n := count("x")
		done := r.start("POST", anthropic.MessagesPath, strings.Replace(messageBody(`,"stream":true`), "hello", "x", 1))
		call := r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		if a := <-done; !strings.Contains(a.body, fmt.Sprintf(`"usage":{"input_tokens":%d,`, n)) {
			t.Errorf("%d tokens are counted, and told are %s", n, a.body)
		}
	})
}

// A message and a chat are one kind of call to admission.
func TestMessagesAreAdmittedAsChats(t *testing.T) {
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
		if m, c := held(anthropic.MessagesPath, messageBody("")), held(chat, chatBody(`,"max_tokens":16`)); m != c {
			t.Errorf("a message holds %s, a chat %s", m, c)
		}
	})
}
