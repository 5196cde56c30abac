package relay

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// byText has an engine's answers continued from their text.
func byText(final engine.FinalMessage) func(*engine.Config) {
	return func(c *engine.Config) {
		yes, no := true, false
		c.Capabilities.TokenIDs, c.Capabilities.TextCompletions, c.Capabilities.FinalMessage = &no, &yes, final
	}
}

// TestResumeFromText: without token ids, too, a request that is interrupted anywhere
// and any number of times has the answer of one that was not, where the engine cuts
// the same text into the same tokens, as the simulated one does.
func TestResumeFromText(t *testing.T) {
	inside := 0
	rapid.Check(t, func(rt *rapid.T) {
		api := rapid.SampledFrom([]wire.API{wire.Chat, wire.Completions}).Draw(rt, "api")
		stream := rapid.Bool().Draw(rt, "stream")
		most := rapid.IntRange(1, 120).Draw(rt, "max_tokens")
		more := fmt.Sprintf(`,"min_tokens":%d,"temperature":0`, rapid.IntRange(0, most).Draw(rt, "min_tokens"))
		prompt := rapid.StringOfN(rapid.RuneFrom([]rune("ab é水😀")), 1, 12, -1).Draw(rt, "prompt")
		var after []time.Duration
		for range rapid.IntRange(1, 5).Draw(rt, "cuts") {
			after = append(after, time.Duration(rapid.IntRange(0, 400).Draw(rt, "after"))*simStep/10)
		}
		body := ask(api, stream, prompt, most, more)
		synctest.Test(t, func(t *testing.T) {
			s := newSimulatedOf(t, 1, reclaimer(1), nil, byText(engine.FinalFlags))
			want, _ := s.answer(api, body)
			got, cuts := s.answer(api, body, after...)
			a, _ := nameless(want.text())
			b, names := nameless(got.text())
			if a != b || names != 2 {
				rt.Errorf("after %d cuts, with %d names:\n%s\nwant\n%s", cuts, names, b, a)
			}
			s.wantEmpty()
			for _, e := range s.events() {
				if e.Cause == "reclaimed" && e.OutputTokens > 0 {
					inside++
				}
			}
		})
	})
	t.Logf("%d interruptions with text to keep", inside)
	if inside == 0 {
		t.Error("nothing was ever kept")
	}
}

// said is the text of an answer and why it ended.
func said(stream bool, answer string) (text string) {
	if !stream {
		answer = "data: " + answer
	}
	for _, line := range strings.Split(answer, "\n") {
		c := gjson.Get(strings.TrimPrefix(line, "data: "), "choices.0")
		for _, at := range []string{"delta.content", "message.content", "text", "finish_reason"} {
			text += c.Get(at).String()
		}
	}
	return text
}

// TestTextGoesOn is what each kind of engine is asked to go on with, and what its
// client has of it: what it had seen and the rest, behind one opening.
func TestTextGoesOn(t *testing.T) {
	for final, flags := range map[engine.FinalMessage]string{engine.FinalTrailing: "", engine.FinalFlags: `,"continue_final_message":true,"add_generation_prompt":false`} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", final, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.OpenAI, Slots: 1}}, classes: reclaimer(1), configure: byText(final)})
					e := g.engines[0]
					batch := g.serve("batch", sent(stream, `,"max_tokens":50`))
					first := e.Accept(t)
					if gjson.GetBytes(first.Body, "return_token_ids").Exists() {
						t.Errorf("ids are asked for: %s", first.Body)
					}
					first.Start()
					first.Send(opened + saidWith("a", "", "") + saidWith(" \n", "", ""))
					settle()
					wants := g.serve("interactive", sent(true, ""))
					pass(time.Second)
					if stream {
						select {
						case <-first.Gone():
							t.Fatal("cut behind a line end, which a template trims")
						default:
						}
						first.Send(saidWith("b", "", ""))
					}
					<-first.Gone()
					pass(5 * time.Second)
					finish(g, wants)
					pass(5 * time.Second)
					again := e.Accept(t)
					text, left := `a \nb`, 47
					if !stream {
						text, left = "a", 49
					}
					if want := fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":"hello"},{"role":"assistant","content":"%s"}],"stream":true,"max_tokens":%d%s,"stream_options":{"include_usage":true}}`,
						text, left, flags); again.API != wire.Chat || string(again.Body) != want {
						t.Errorf("%s %s\nwant %s", again.API, again.Body, want)
					}
					again.Start()
					again.Send(opened + saidWith("c", "", `,"role":"assistant"`))
					again.Finish("stop")
					settle()
					g.wantCode(batch, "")
					if n := strings.Count(batch.text(), `"role"`); n != 1 {
						t.Errorf("%d openings: %s", n, batch.text())
					}
					want := map[bool]string{true: "a \nbcstop", false: "acstop"}[stream]
					if got := said(stream, batch.text()); got != want {
						t.Errorf("the client got %q, want %q", got, want)
					}
					pass(5 * time.Second)
					g.wantEmpty()
				})
			})
		}
	}
}

// TestTextIsRefused: an engine that does not take a continuation is not asked for one
// again. The client of a stream is told, once; who has seen nothing has his answer
// from its beginning, with the limit that he gave.
func TestTextIsRefused(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.OpenAI, Slots: 1}}, classes: reclaimer(1), configure: byText(engine.FinalTrailing)})
				e := g.engines[0]
				batch := g.serve("batch", sent(stream, `,"max_tokens":50`))
				first := e.Accept(t)
				first.Start()
				first.Send(opened + saidWith("a", "", ""))
				settle()
				wants := g.serve("interactive", sent(true, ""))
				<-first.Gone()
				pass(5 * time.Second)
				finish(g, wants)
				pass(5 * time.Second)
				e.Accept(t).Document(http.StatusBadRequest, `{"error":{"message":"the last message must be the user's"}}`)
				settle()
				if stream {
					g.wantCode(batch, wire.CodeUpstreamError)
					if got := said(true, batch.text()); got != "a" || strings.Contains(batch.text(), "[DONE]") {
						t.Errorf("the client got %s", batch.text())
					}
				} else {
					again := e.Accept(t)
					if n := len(gjson.GetBytes(again.Body, "messages").Array()); n != 1 || gjson.GetBytes(again.Body, "max_tokens").Int() != 50 {
						t.Errorf("it starts over as %s", again.Body)
					}
					again.Emit(3)
					// It can give way once more, and starts over again.
					wants := g.serve("interactive", sent(true, ""))
					<-again.Gone()
					pass(5 * time.Second)
					finish(g, wants)
					pass(5 * time.Second)
					again = e.Accept(t)
					if n := len(gjson.GetBytes(again.Body, "messages").Array()); n != 1 || gjson.GetBytes(again.Body, "max_tokens").Int() != 50 {
						t.Errorf("it starts over as %s", again.Body)
					}
					again.Emit(4)
					again.Finish("stop")
					settle()
					g.wantCode(batch, "")
					if got := said(false, batch.text()); got != "w1 w2 w3 w4 stop" {
						t.Errorf("the client got %q", got)
					}
				}
				pass(5 * time.Second)
				next := g.serve("batch", sent(true, `,"max_tokens":50`))
				call := e.Accept(t)
				call.Emit(1)
				settle()
				if model, f := func() (string, from) {
					g.pool.mu.Lock()
					defer g.pool.mu.Unlock()
					return g.pool.resumesLocked(1, g.call("batch", sent(true, "")))
				}(); f != fromNothing {
					t.Errorf("%s is still continued from %s", model, f)
				}
				call.Finish("stop")
				settle()
				g.wantCode(next, "")
				pass(5 * time.Second)
				g.wantEmpty()
			})
		})
	}
}

// TestStopAcrossACutOfText: of a stop string of which one attempt has the beginning and
// the next the end only the gateway knows, and so it is who tells the usage: as it counts
// the text, and the prompt as the engine has said, or else as it was priced.
func TestStopAcrossACutOfText(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, told := range []bool{true, false} {
			t.Run(fmt.Sprintf("stream=%t/told=%t", stream, told), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.OpenAI, Slots: 1}}, classes: reclaimer(1), configure: byText(engine.FinalTrailing)})
					e := g.engines[0]
					body := `,"max_tokens":50,"stop":["bc"]`
					if stream {
						body += `,"stream_options":{"include_usage":true}`
					}
					batch := g.serve("batch", sent(stream, body))
					first := e.Accept(t)
					first.Start()
					first.Send(opened + saidWith("a", "", "") + saidWith("b", "", ""))
					settle()
					wants := g.serve("interactive", sent(true, ""))
					<-first.Gone()
					pass(5 * time.Second)
					finish(g, wants)
					pass(5 * time.Second)
					again := e.Accept(t)
					again.Start()
					prompt := g.pool.Estimate(g.call("batch", sent(stream, body)).Request)
					if told {
						again.Send(`data: {"id":"chatcmpl-2","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":11,"completion_tokens":0,"total_tokens":11}}` + "\n\n")
						prompt = 9 // without what was kept
					} else {
						again.Send(opened)
					}
					again.Send(saidWith("cd", "", ""))
					settle()
					g.wantCode(batch, "")
					got := toldBy(batch.text())
					if got.text != "a" || got.finish != "stop" || gjson.Get(got.usage, "prompt_tokens").Int() != int64(prompt) ||
						gjson.Get(got.usage, "completion_tokens").Int() != 3 || gjson.Get(got.usage, "total_tokens").Int() != int64(prompt+3) {
						t.Errorf("a prompt of %d, the client got %+v of\n%s", prompt, got, batch.text())
					}
					pass(5 * time.Second)
					g.wantEmpty()
				})
			})
		}
	}
}
