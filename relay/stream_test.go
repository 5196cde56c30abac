package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

const usage = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}` + "\n\n"

// TestBytesPassUnchanged is case 26: what the client of a stream gets is what
// the engine sent, to the byte, with a character that is split over two events
// and framing of every kind; and case 27: the usage that only the gateway asked
// for stays here.
func TestBytesPassUnchanged(t *testing.T) {
	events := ": a comment\n\n" +
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n" +
		// Half a surrogate pair each: only the bytes as they are make a character.
		`data: {"choices":[{"index":0,"delta":{"content":"\ud83d"}}]}` + "\n\n" +
		"event: message\r\nid: 7\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\ude00 \u00e9\u20ac\"}}]}\r\n\r\n" +
		`data:   {"new_field" : [1, 2.50],"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprintf("usage asked=%t", asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{})
				more, want := "", events+"data: [DONE]\n\n"
				if asked {
					more, want = `,"stream_options":{"include_usage":true}`, events+usage+"data: [DONE]\n\n"
				}
				c := g.serve("interactive", sent(true, more))
				call := g.engines[0].Accept(t)
				if !gjson.GetBytes(call.Body, "stream_options.include_usage").Bool() {
					t.Errorf("the engine is not asked for usage: %s", call.Body)
				}
				// A byte at a time: an event is never cut or merged by how it comes.
				for _, b := range []byte(events + usage) {
					call.Send(string([]byte{b}))
				}
				call.Send("data: [DONE]\n\n")
				call.End()
				settle()
				g.wantCode(c, "")
				if diff := cmp.Diff(want, c.text()); diff != "" {
					t.Errorf("the client's bytes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestEventsPassOneByOne is case 22: an event is handed on when it comes.
func TestEventsPassOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := answering(g, "interactive", true)
		for n := 3; n < 8; n++ {
			call.Emit(1)
			settle()
			if got := strings.Count(c.text(), "data: "); got != n {
				t.Fatalf("%d events have reached the client, want %d", got, n)
			}
		}
		call.Finish("stop")
	})
}

// TestWholeAnswer: a client that wants no stream gets one answer that means what
// the engine's own would have, while the engine streams.
func TestWholeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := answering(g, "interactive", false)
		if !gjson.GetBytes(call.Body, "stream").Bool() {
			t.Errorf("the engine is not asked to stream: %s", call.Body)
		}
		call.Send(": still there\n\n")
		call.Finish("length")
		settle()
		g.wantCode(c, "")
		if c.answers != 1 || c.events+c.alive > 0 {
			t.Errorf("%d answers, %d events, %d keep-alives", c.answers, c.events, c.alive)
		}
		var got, want any
		if err := json.Unmarshal([]byte(c.text()), &got); err != nil {
			t.Fatal(err)
		}
		prompt := len(call.Body) / 8
		_ = json.Unmarshal(fmt.Appendf(nil, `{"id":"chatcmpl-%s","object":"chat.completion","model":"test-model",
			"choices":[{"index":0,"message":{"role":"assistant","content":"w1 w2 "},"finish_reason":"length"}],
			"usage":{"prompt_tokens":%d,"completion_tokens":2,"total_tokens":%d}}`, call.ID, prompt, prompt+2), &want)
		if role := gjson.Get(c.text(), "choices.0.message.role"); !role.Exists() {
			// The fake's chunks name no role.
			delete(want.(map[string]any)["choices"].([]any)[0].(map[string]any)["message"].(map[string]any), "role")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	})
}

// TestSeveralSequencesPassWhole: an answer of several sequences that is not to
// be streamed comes from the engine as it is.
func TestSeveralSequencesPassWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4}}})
		c := g.serve("interactive", sent(false, `,"n":2`))
		if s := g.pool.Snapshot(); s.Used.Slots != 2 {
			t.Errorf("holds %d slots, want 2", s.Used.Slots)
		}
		call := g.engines[0].Accept(t)
		if gjson.GetBytes(call.Body, "stream").Bool() {
			t.Errorf("the engine is asked to stream: %s", call.Body)
		}
		const answer = `{"choices":[ {"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":9}}`
		call.Document(200, answer)
		settle()
		g.wantCode(c, "")
		if c.text() != answer {
			t.Errorf("answer %s\nwant %s", c.text(), answer)
		}
		g.wantEmpty()
		events := g.events()
		if got, want := story(events, c.id), "arrived admitted dispatched scheduled ended(finished) finished(finished)"; got != want {
			t.Errorf("story\n got %s\nwant %s", got, want)
		}
		last := events[len(events)-2]
		if last.OutputTokens != 9 || last.PromptTokens != 5 {
			t.Errorf("counted %d and %d tokens, want 5 and 9: %+v", last.PromptTokens, last.OutputTokens, last)
		}
	})
}

// TestDocumentInsteadOfStream: some servers answer a request for a stream with
// one document.
func TestDocumentInsteadOfStream(t *testing.T) {
	const answer = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{})
				c := g.serve("interactive", sent(stream, ""))
				g.engines[0].Accept(t).Document(200, answer)
				settle()
				if stream {
					// It is no stream, and nothing has been sent that says it is.
					g.wantCode(c, wire.CodeUpstreamError)
					if c.text() != "" {
						t.Errorf("the client of a stream got %q", c.text())
					}
				} else {
					g.wantCode(c, "")
					if c.text() != answer {
						t.Errorf("answer %s\nwant %s", c.text(), answer)
					}
				}
				g.wantEmpty()
			})
		})
	}
}

// TestTerminator: a stream to a client ends with a terminator whatever the engine
// leaves out, and never with one if the answer has no finish reason (case 24).
func TestTerminator(t *testing.T) {
	const (
		token  = `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
		finish = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
		done   = "data: [DONE]\n\n"
	)
	for _, tt := range []struct{ name, sent, got, code string }{
		{"both", token + finish + done, token + finish + done, ""},
		{"no terminator", token + finish, token + finish + done, ""},
		{"no finish reason", token + done, token, wire.CodeUpstreamTorn},
		{"neither comment nor data", ": ping\n\nhello world\n\n" + token + finish + done, ": ping\n\n" + token + finish + done, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{})
				c := g.serve("interactive", sent(true, ""))
				call := g.engines[0].Accept(t)
				call.Send(tt.sent)
				call.End()
				settle()
				g.wantCode(c, tt.code)
				if c.text() != tt.got {
					t.Errorf("the client got %q, want %q", c.text(), tt.got)
				}
			})
		})
	}
}

// TestImpossibleUsage: an engine that claims more tokens than it can hold does
// not fill the pool with them.
func TestImpossibleUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := begun(g, "interactive", true)
		call.Send(`data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":2000000000}}` + "\n\n")
		settle()
		if s := g.pool.Snapshot(); s.Used.KV > s.Envelope.KV {
			t.Errorf("used %v of %v", s.Used, s.Envelope)
		}
		call.Send(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + "data: [DONE]\n\n")
		call.End()
		settle()
		g.wantCode(c, "")
		g.wantEmpty()
	})
}

// TestLongAnswerIsNotCut is case 21: no total timeout, however long it takes.
func TestLongAnswerIsNotCut(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{pool: func(c *Config) { c.Engines[0].ObserveEvery = time.Minute }})
				c, call := answering(g, "interactive", stream)
				for range 6 * 60 {
					pass(idleTimeout - time.Second)
					call.Emit(1)
				}
				call.Finish("stop")
				settle()
				g.wantCode(c, "")
				if !strings.Contains(c.text(), "w362 ") {
					t.Error("the answer is not whole")
				}
			})
		})
	}
}

// TestSlowClientIsNoSilentEngine: the time that a client takes to read is not
// counted against the engine.
func TestSlowClientIsNoSilentEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := begun(g, "interactive", true, func(c *client) {
			c.onEvent = func(n int) error {
				if n == 1 {
					time.Sleep(idleTimeout + time.Second)
				}
				return nil
			}
		})
		call.Emit(1)
		// Its silence begins when the client has the event.
		pass(2*idleTimeout + time.Second/2)
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
	})
}

// TestKeepAlive is case 28: a stream gets comments while its engine is silent,
// from the dispatch on, and none while it is not; an answer that is not streamed
// never does.
func TestKeepAlive(t *testing.T) {
	alive := func(c *Config) { c.Keepalive = 15 * time.Second }
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{pool: alive})
				want := func(n int) {
					t.Helper()
					c := g.last
					c.mu.Lock()
					defer c.mu.Unlock()
					if !stream {
						n = 0
					}
					if c.alive != n {
						t.Errorf("%d keep-alives, want %d", c.alive, n)
					}
				}
				c, call := begun(g, "interactive", stream)
				pass(14 * time.Second)
				want(0)
				pass(time.Second)
				want(1)
				pass(15 * time.Second)
				want(2)
				pass(14 * time.Second)
				call.Emit(1)
				for range 5 {
					pass(14 * time.Second)
					want(2)
					call.Emit(1)
				}
				pass(16 * time.Second)
				want(3)
				call.Finish("stop")
				pass(time.Minute)
				want(3)
				g.wantCode(c, "")
				if c.late {
					t.Error("the sink was used after Serve had returned")
				}
			})
		})
	}
}

// TestKeepAliveIsNoAnswer: a loan that is ended after nothing but comments runs
// again, and its client goes on getting them while it waits.
func TestKeepAliveIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{classes: lender(), pool: func(c *Config) { c.Keepalive = time.Second }})
		c, _ := begun(g, "batch", true)
		recalled(g)
		g.wantCode(c, "running")
		c.mu.Lock()
		before := c.alive
		c.mu.Unlock()
		if before == 0 {
			t.Fatal("no keep-alive while the engine was silent")
		}
		pass(30 * time.Second)
		c.mu.Lock()
		waiting := c.alive - before
		c.mu.Unlock()
		if waiting < 29 {
			t.Errorf("%d keep-alives in 30 s of waiting, want 30", waiting)
		}
		pass(lender()[0].IdleAfter)
		finish(g, c)
		if n := len(c.decisions); n != 2 {
			t.Errorf("the sink was told of %d admissions, want 2", n)
		}
	})
}

// TestCountsTokens: the core and the journal follow what the engine says.
func TestCountsTokens(t *testing.T) {
	event := func(more string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]%s}`+"\n\n", more)
	}
	for _, tt := range []struct {
		name string
		body string
		end  string
		want int64
	}{
		{"events", event("") + event(""), "", 2},
		{"continuous usage counts several tokens an event", event(`,"usage":{"prompt_tokens":5,"completion_tokens":4}`) + event(`,"usage":{"prompt_tokens":5,"completion_tokens":9}`), "", 9},
		{"usage that stays at zero", event(`,"usage":{"prompt_tokens":0,"completion_tokens":0}`) + event(`,"usage":{"prompt_tokens":0,"completion_tokens":0}`), "", 2},
		{"the last usage is right", event("") + event(""), `data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}` + "\n\n", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{})
				c, call := begun(g, "interactive", true)
				call.Send(tt.body)
				call.Send(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + tt.end + "data: [DONE]\n\n")
				call.End()
				settle()
				g.wantCode(c, "")
				for _, e := range g.events() {
					if (e.Kind == journal.Ended || e.Kind == journal.Finished) && e.OutputTokens != tt.want {
						t.Errorf("%s: %d output tokens, want %d", e.Kind, e.OutputTokens, tt.want)
					}
				}
			})
		})
	}
}

// TestScheduled: exact where the engine tells how long it let the request wait,
// an interval where it does not.
func TestScheduled(t *testing.T) {
	for _, exact := range []bool{true, false} {
		t.Run(fmt.Sprintf("exact=%t", exact), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{})
				pass(time.Second)
				c, call := begun(g, "interactive", true)
				pass(time.Second)
				call.Emit(1)
				settle()
				metrics := ""
				if exact {
					metrics = `,"metrics":{"queue_time_ms":250.0,"time_to_first_token_ms":750.0}`
				}
				call.Send(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
					`data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}` + metrics + "}\n\ndata: [DONE]\n\n")
				call.End()
				settle()
				g.wantCode(c, "")
				from, to := int64(time.Second), int64(2*time.Second)
				if exact {
					from, to = int64(1250*time.Millisecond), 0
				}
				seen := false
				for _, e := range g.events() {
					if e.Kind == journal.Scheduled {
						seen = true
						if e.ScheduledNS != from || e.ScheduledUpperNS != to {
							t.Errorf("scheduled %d to %d, want %d to %d", e.ScheduledNS, e.ScheduledUpperNS, from, to)
						}
					}
				}
				if !seen {
					t.Error("no scheduled event")
				}
			})
		})
	}
}

// TestHintOfTheEngine is case 17: the engine's own hint reaches the client.
func TestHintOfTheEngine(t *testing.T) {
	for status, code := range map[int]string{429: wire.CodeEngineBusy, 503: wire.CodeEngineUnavailable} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{})
				c, call := begun(g, "interactive", true)
				call.Document(status, `{"error":{"message":"full"}}`, "Retry-After", "7")
				settle()
				g.wantCode(c, code)
				if c.err.Retry != 7*time.Second {
					t.Errorf("hint %v, want 7s", c.err.Retry)
				}
				g.wantEmpty()
			})
		})
	}
}

// TestHeaderTimeout: an engine that holds its headers back for longer than the
// adapter may wait is late, not broken.
func TestHeaderTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{configure: func(c *engine.Config) { c.HeaderTimeout = 5 * time.Second }})
		c, _ := begun(g, "interactive", true)
		pass(10 * time.Second)
		g.wantCode(c, wire.CodeUpstreamTimeout)
		g.wantEmpty()
	})
}

// TestUpstreamRequest: what the gateway owns in a body is written as the engine
// at hand wants it.
func TestUpstreamRequest(t *testing.T) {
	yes := true
	for _, tt := range []struct {
		name      string
		kind      engine.Kind
		class     string
		more      string
		configure func(*engine.Config)
		pool      func(*Config)
		want      map[string]string // by path; "" is absent
	}{
		{name: "as it came", kind: engine.VLLM, class: "batch", more: `,"top_p":0.5,"max_tokens":9`,
			want: map[string]string{"model": "test-model", "priority": "", "top_p": "0.5", "max_tokens": "9"}},
		{name: "a client's own priority goes", kind: engine.VLLM, class: "batch", more: `,"priority":-9`, want: map[string]string{"priority": ""}},
		{name: "the class's priority where it is read", kind: engine.VLLM, class: "batch", more: `,"priority":-9`,
			configure: func(c *engine.Config) { c.Capabilities.Priority = &yes }, want: map[string]string{"priority": "10"}},
		{name: "an alias", kind: engine.VLLM, class: "batch", pool: func(c *Config) { c.Models = []string{"test-model-alias"} },
			want: map[string]string{"model": "test-model"}},
		// Case 13: running out would end every request, so the limit is sent.
		{name: "a fatal engine is told the limit", kind: engine.LlamaCpp, class: "batch", want: map[string]string{"max_tokens": "="}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{
					engines: []enginetest.Options{{Kind: tt.kind, Slots: 4}}, classes: []admission.ClassSpec{loose("interactive"), loose("batch")},
					configure: tt.configure, pool: tt.pool,
				})
				body := sent(true, tt.more)
				if tt.pool != nil {
					body = strings.Replace(body, "test-model", "test-model-alias", 1)
				}
				c := g.serve(tt.class, body)
				call := g.engines[0].Accept(t)
				for path, want := range tt.want {
					if want == "=" {
						h := g.pool.Snapshot().Holds[0]
						want = fmt.Sprint(4096 - int(h.Prompt))
						if h.Amount.KV != 4096 {
							t.Errorf("%d tokens are held, want the whole context", h.Amount.KV)
						}
					}
					if got := gjson.GetBytes(call.Body, path).Raw; strings.Trim(got, `"`) != want {
						t.Errorf("%s is %q, want %q: %s", path, got, want, call.Body)
					}
				}
				call.Emit(1)
				call.Finish("stop")
				settle()
				g.wantCode(c, "")
			})
		})
	}
}

// TestFatalEngineIsNeverOverCommitted is case 13: what runs could all reach its
// limit at once, and the limit that was paid for is the one that is sent.
func TestFatalEngineIsNeverOverCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.LlamaCpp, Slots: 4}}})
		e := g.engines[0]
		var calls []*enginetest.Call
		for range 4 {
			g.serve("interactive", sent(true, `,"max_tokens":1500`))
		}
		for e.Running()+e.Waiting() > len(calls) {
			calls = append(calls, e.Accept(t))
		}
		if len(calls) != 2 {
			t.Errorf("%d requests of 1500 tokens and a prompt are in a pool of 4096, want 2", len(calls))
		}
		for range 4 {
			call := calls[0]
			calls = calls[1:]
			sum := int64(0)
			for _, h := range g.pool.Snapshot().Holds {
				sum += int64(h.Prompt) + 1500
			}
			if sum > 4096 {
				t.Errorf("what runs may need %d tokens of 4096", sum)
			}
			if got := gjson.GetBytes(call.Body, "max_tokens").Int(); got != 1500 {
				t.Errorf("max_tokens is %d, want 1500", got)
			}
			call.Emit(1)
			call.Finish("stop")
			settle()
			if e.Waiting() > len(calls) {
				calls = append(calls, e.Accept(t))
			}
		}
		g.wantEmpty()
	})
}

// spy is an adapter that shows what is asked of it.
type spy struct {
	engine.Adapter
	attempts []engine.Attempt
}

func (s *spy) Dispatch(ctx context.Context, a *engine.Attempt) (engine.Stream, error) {
	s.attempts = append(s.attempts, *a)
	return s.Adapter.Dispatch(ctx, a)
}

// TestLoansCanBeInterrupted: a loan gets a connection whose end the engine is
// certain to see, and every attempt a name of its own.
func TestLoansCanBeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &spy{}
		g := newRig(t, options{classes: lender(), pool: func(c *Config) {
			s.Adapter = c.Engines[0].Adapter
			c.Engines[0].Adapter = s
		}})
		c, _ := begun(g, "batch", false)
		recalled(g)
		pass(lender()[0].IdleAfter)
		finish(g, c)
		if len(s.attempts) != 3 {
			t.Fatalf("%d attempts, want 3", len(s.attempts))
		}
		for i, loan := range []bool{true, false, true} {
			if a := s.attempts[i]; a.Interruptible != loan {
				t.Errorf("attempt %s: interruptible is %t, want %t", a.ID, a.Interruptible, loan)
			}
		}
		if first, again := s.attempts[0].ID, s.attempts[2].ID; first == again || !strings.HasPrefix(again, c.id) {
			t.Errorf("the attempts of %s are named %s and %s", c.id, first, again)
		}
	})
}

// counting is a sink without any lock: only one goroutine at a time may use it,
// and none once Serve has returned.
type counting struct{ uses int }

func (c *counting) Admitted(Decision)   { c.uses++ }
func (c *counting) Event([]byte) error  { c.uses++; return nil }
func (c *counting) KeepAlive() error    { c.uses++; return nil }
func (c *counting) Answer([]byte) error { c.uses++; return nil }
func (c *counting) Started() bool       { c.uses++; return true }

// slowly is an engine with a pause before each event.
type slowly struct{ instant }

func (e *slowly) Dispatch(ctx context.Context, a *engine.Attempt) (engine.Stream, error) {
	s, err := e.instant.Dispatch(ctx, a)
	return pausing{s}, err
}

type pausing struct{ engine.Stream }

func (s pausing) Next() (engine.Delta, error) {
	time.Sleep(20 * time.Microsecond)
	return s.Stream.Next()
}

// TestKeepAliveNeverOverlaps is for the race detector: keep-alives come from a
// timer, as often as they can, while events come and calls end.
func TestKeepAliveNeverOverlaps(t *testing.T) {
	p := instantPool(t, &slowly{*answer(3)}, func(c *Config) { c.Keepalive = 10 * time.Microsecond })
	call := instantCall(t, true)
	for range 300 {
		var sink counting
		if err := p.Serve(context.Background(), call, &sink); err != nil {
			t.Fatal(err)
		}
		sink.uses++ // the caller's own use of what it gets back
	}
}

// TestEveryStreamIsTerminated: an engine that closes after the finish reason has
// said everything; its client still waits for the terminator.
func TestEveryStreamIsTerminated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := begun(g, "interactive", true)
		const last = `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}` + "\n\n"
		call.Send(last)
		call.End()
		settle()
		g.wantCode(c, "")
		if want := last + "data: [DONE]\n\n"; c.text() != want {
			t.Errorf("the client got %q, want %q", c.text(), want)
		}
	})
}

// TestImpossibleUsageIsNotBelieved: a hold follows the engine's own counts, so
// one that can't be true would take the pool away from everybody.
func TestImpossibleUsageIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := begun(g, "interactive", true)
		call.Send(`data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":1000000,"completion_tokens":1}}` + "\n\n")
		call.Send(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
			`data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2000000}}` + "\n\ndata: [DONE]\n\n")
		call.End()
		settle()
		g.wantCode(c, "")
		for _, e := range g.events() {
			if e.Request == c.id && (e.PromptTokens > 100 || e.OutputTokens > 1) {
				t.Errorf("%s counts %d and %d tokens", e.Kind, e.PromptTokens, e.OutputTokens)
			}
		}
	})
}
