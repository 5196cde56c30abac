package gateway

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"headgate/engine/enginetest"
	"headgate/wire"
	"headgate/wire/anthropic"
)

// What may go wrong with a stream may go wrong with one that was interrupted and
// goes on, too: here a batch answer is ended for an interactive one after its first
// word, and what its client gets of the rest is held to the same.

// resuming is a gateway of one slot, all of which is lent and called back.
var resuming = setup{slots: 1, reclaim: true, wait: time.Hour}

// resumed is an answer that goes on.
type resumed struct {
	res   *http.Response // of a stream, of which nothing is read yet
	done  <-chan answer  // of a whole answer
	again *enginetest.Call
}

const answerOpens = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[11,12]}` + "\n\n"

// says is an event of the first attempt, of one token.
func says(text string, id int) string {
	return fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"test-model","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null,"token_ids":[%d]}]}`+"\n\n", text, id)
}

// goesOn is an event of the continuation; ids are its tokens, comma-separated.
func goesOn(text, ids, finish string) string {
	if finish == "" {
		finish = "null"
	}
	return fmt.Sprintf(`data: {"id":"cmpl-2","object":"text_completion","created":9,"model":"test-model","choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":%s,"token_ids":[%s]}]}`+"\n\n", text, finish, ids)
}

// usageOf is a continuation's own, of a prompt of so many tokens.
func usageOf(prompt, completion int) string {
	return fmt.Sprintf(`data: {"id":"cmpl-2","choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`+"\n\n", prompt, prompt+completion, completion)
}

const finished = "data: [DONE]\n\n"

// resume interrupts an answer after the events of its first attempt, and lets it
// wait for so long.
func (r *rig) resume(path, body, events string, waits time.Duration) resumed {
	r.t.Helper()
	r.loanable()
	var s resumed
	stream := strings.Contains(body, `"stream":true`)
	got := make(chan *http.Response, 1)
	if stream {
		req := r.request("POST", path, body, headerClass, "batch")
		go func() {
			res, err := r.client.Do(req)
			if err != nil {
				r.t.Error(err)
			}
			got <- res
		}()
	} else {
		s.done = r.start("POST", path, body, headerClass, "batch")
	}
	first := r.engine.Accept(r.t)
	first.Start()
	first.Send(answerOpens + events)
	if stream {
		s.res = <-got
		r.t.Cleanup(func() { _ = s.res.Body.Close() })
	}
	synctest.Wait()
	wants := r.start("POST", chat, chatBody(""))
	<-first.Gone()
	call := r.engine.Accept(r.t)
	time.Sleep(waits)
	call.Emit(1)
	call.Finish("stop")
	if a := <-wants; a.status != 200 {
		r.t.Errorf("the other answer: %d %s", a.status, a.body)
	}
	s.again = r.engine.Accept(r.t)
	if ids := gjson.GetBytes(s.again.Body, "prompt").Raw; ids != "[11,12,1]" || s.again.API != wire.Completions {
		r.t.Errorf("it goes on from %s of %s", ids, s.again.Body)
	}
	s.again.Start()
	return s
}

// bothShapes are the streams that a client can ask for, as requests.
var bothShapes = []struct{ name, path, body string }{
	{"chat", chat, chatBody(`,"max_tokens":50,"stream":true`)},
	{"messages", anthropic.MessagesPath, messageBody(`,"stream":true`)},
}

// overShapes runs a test of an answer that goes on, in each client API's shape.
func overShapes(t *testing.T, s setup, test func(t *testing.T, r *rig, path, body string)) {
	for _, shape := range bothShapes {
		t.Run(shape.name, func(t *testing.T) {
			bubble(t, s, func(t *testing.T, r *rig) { test(t, r, shape.path, shape.body) })
		})
	}
}

// Case 22 of an answer that goes on.
func TestEachEventIsFlushedAfterAResume(t *testing.T) {
	overShapes(t, resuming, func(t *testing.T, r *rig, path, body string) {
		s := r.resume(path, body, says("a", 1), time.Second)
		for e := ""; !strings.Contains(e, `"a"`); e = readEvent(t, s.res.Body) {
		}
		for i := range 30 {
			start := time.Now()
			s.again.Send(goesOn(fmt.Sprintf("w%d ", i), fmt.Sprint(2+i), ""))
			if e := readEvent(t, s.res.Body); !strings.Contains(e, fmt.Sprintf("w%d ", i)) || time.Since(start) != 0 {
				t.Fatalf("event %d after %v: %q", i, time.Since(start), e)
			}
		}
		s.again.Send(goesOn("", "40", `"stop"`) + finished)
		s.again.End()
		r.whole(s.res)
		h := s.res.Header
		if h.Get("X-Accel-Buffering") != "no" || h.Get("Content-Encoding") != "" || h.Get("Content-Length") != "" {
			t.Errorf("%v", h)
		}
		r.quiet()
	})
}

// failed fails unless a stream ends with an error of its API's shape, and nothing
// that says that it is complete.
func failed(t *testing.T, a answer, code, message string) {
	t.Helper()
	last := a.body[strings.LastIndex(a.body, "data: ")+len("data: "):]
	if a.status != 200 || !strings.Contains(last, message) || gjson.Get(last, "error.code").Str != code {
		t.Errorf("%d %s", a.status, a.body)
	}
	if strings.Contains(a.body, "[DONE]") || strings.Contains(a.body, "message_stop") || strings.Contains(a.body, `"finish_reason":"`) {
		t.Errorf("it says that it is complete: %s", a.body)
	}
	if strings.Contains(a.body, "event: ") {
		if !strings.Contains(a.body, "event: error\n") || gjson.Get(last, "type").Str != "error" {
			t.Errorf("%s", a.body)
		}
		return
	}
	documented(t, 502, last)
}

// Case 23 of an answer that goes on: its client has had a status and a word of it,
// whatever the continuation begins with.
func TestErrorAfterAResume(t *testing.T) {
	for name, fail := range map[string]func(*enginetest.Call){
		"first":   func(c *enginetest.Call) { c.Fail(500, "CUDA error") },
		"later":   func(c *enginetest.Call) { c.Send(goesOn("b", "2", "")); c.Fail(500, "CUDA error") },
		"refused": func(c *enginetest.Call) { c.Document(500, `{"error":{"message":"CUDA error","type":"server_error"}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			overShapes(t, resuming, func(t *testing.T, r *rig, path, body string) {
				s := r.resume(path, body, says("a", 1), time.Second)
				fail(s.again)
				failed(t, r.whole(s.res), wire.CodeUpstreamError, "CUDA error")
				r.quiet()
			})
			bubble(t, resuming, func(t *testing.T, r *rig) {
				s := r.resume(chat, chatBody(`,"max_tokens":50`), says("a", 1), time.Second)
				fail(s.again)
				a := <-s.done
				if e := documented(t, a.status, a.body); a.status != 502 || *e.Error.Code != wire.CodeUpstreamError {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.quiet()
			})
		})
	}
}

// Case 24 of an answer that goes on.
func TestTornAfterAResume(t *testing.T) {
	for name, end := range map[string]func(*enginetest.Call){"end": (*enginetest.Call).End, "cut": (*enginetest.Call).Cut} {
		t.Run(name, func(t *testing.T) {
			overShapes(t, resuming, func(t *testing.T, r *rig, path, body string) {
				s := r.resume(path, body, says("a", 1), time.Second)
				s.again.Send(goesOn("b", "2", ""))
				end(s.again)
				a := r.whole(s.res)
				failed(t, a, wire.CodeUpstreamTorn, "")
				if !strings.Contains(a.body, `"b"`) {
					t.Errorf("what came is lost: %s", a.body)
				}
				r.quiet()
			})
			bubble(t, resuming, func(t *testing.T, r *rig) {
				s := r.resume(chat, chatBody(`,"max_tokens":50`), says("a", 1), time.Second)
				s.again.Send(goesOn("b", "2", ""))
				end(s.again)
				a := <-s.done
				if e := documented(t, a.status, a.body); a.status != 502 || *e.Error.Code != wire.CodeUpstreamTorn {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.quiet()
			})
		})
	}
}

var texts = regexp.MustCompile(`"(?:content|text)":"((?:[^"\\]|\\.)*)"`)

// spoken is the text of a stream of either shape.
func spoken(body string) string {
	var b strings.Builder
	for _, m := range texts.FindAllString(body, -1) {
		b.WriteString(gjson.Get("{"+m+"}", "content").Str + gjson.Get("{"+m+"}", "text").Str)
	}
	return b.String()
}

// Case 26 of an answer that goes on: it was interrupted within a character, of
// which the first token has no text, and the rest comes byte by byte.
func TestCharactersAfterAResume(t *testing.T) {
	overShapes(t, resuming, func(t *testing.T, r *rig, path, body string) {
		s := r.resume(path, body, says("a", 1)+says("", 2), time.Second)
		rest := goesOn("ü🦫", "2,3,4", "") + goesOn(`\u00e9你`, "5,6", `"stop"`) + finished
		for i := range len(rest) {
			s.again.Send(rest[i : i+1])
		}
		s.again.End()
		a := r.whole(s.res)
		if got := spoken(a.body); got != "aü🦫é你" || !utf8.ValidString(a.body) || strings.ContainsRune(a.body, utf8.RuneError) {
			t.Errorf("%q of %s", got, a.body)
		}
		r.quiet()
	})
}

// Cases 27 and 29 of an answer that goes on: the engine's usage counts what was
// kept as prompt; its client has asked for none, or sees its own prompt and the
// whole answer.
func TestUsageAfterAResume(t *testing.T) {
	for _, c := range []struct {
		name, path, body, prompt, output string // paths of the last object with usage
	}{
		{"chat, not asked", chat, chatBody(`,"max_tokens":50,"stream":true`), "", ""},
		{"chat", chat, chatBody(`,"max_tokens":50,"stream":true,"stream_options":{"include_usage":true}`), "usage.prompt_tokens", "usage.completion_tokens"},
		{"chat, whole", chat, chatBody(`,"max_tokens":50`), "usage.prompt_tokens", "usage.completion_tokens"},
		{"messages", anthropic.MessagesPath, messageBody(`,"stream":true`), "usage.input_tokens", "usage.output_tokens"},
		{"messages, whole", anthropic.MessagesPath, messageBody(""), "usage.input_tokens", "usage.output_tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, resuming, func(t *testing.T, r *rig) {
				s := r.resume(c.path, c.body, says("a", 1), time.Second)
				if !gjson.GetBytes(s.again.Body, "stream_options.include_usage").Bool() {
					t.Errorf("the engine is not asked for usage: %s", s.again.Body)
				}
				s.again.Send(goesOn("b", "2", "") + goesOn("c", "3", `"stop"`) + usageOf(3, 2) + finished)
				s.again.End()
				var a answer
				if s.done != nil {
					a = <-s.done
				} else {
					a = r.whole(s.res)
				}
				if c.prompt == "" {
					if strings.Contains(a.body, `"usage":{`) || strings.Contains(a.body, `"choices":[]`) || !strings.HasSuffix(a.body, finished) {
						t.Errorf("%s", a.body)
					}
					r.quiet()
					return
				}
				last := ""
				for line := range strings.Lines(a.body) {
					if line = strings.TrimPrefix(line, "data: "); gjson.Get(line, c.output).Exists() {
						last = line
					}
				}
				if p, n := gjson.Get(last, c.prompt).Int(), gjson.Get(last, c.output).Int(); p != 2 || n != 3 {
					t.Errorf("a prompt of %d tokens and an answer of %d, want 2 and 3: %s", p, n, a.body)
				}
				r.quiet()
			})
		})
	}
}

// Case 28 of an answer that is interrupted: its client is told that it is alive
// while it waits for room, and while its continuation is silent.
func TestKeepAliveWhileReclaimed(t *testing.T) {
	quietly := resuming
	quietly.keepalive = 10 * time.Second
	overShapes(t, quietly, func(t *testing.T, r *rig, path, body string) {
		s := r.resume(path, body, says("a", 1), 25*time.Second)
		synctest.Wait()
		time.Sleep(35 * time.Second)
		s.again.Send(goesOn("b", "2", `"stop"`) + finished)
		s.again.End()
		a := r.whole(s.res)
		_, between, _ := strings.Cut(a.body, `"a"`)
		between, _, _ = strings.Cut(between, `"b"`)
		alive := ": keep-alive\n\n"
		if path != chat {
			alive = "event: ping\n"
			if strings.Contains(a.body, ": keep-alive") {
				t.Errorf("a comment: %s", a.body)
			}
		}
		if n := strings.Count(between, alive); n != 5 {
			t.Errorf("%d signs of life in 25 s and 35 s, want 2 and 3: %s", n, a.body)
		}
		r.quiet()
	})
}
