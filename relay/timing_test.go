package relay

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/telemetry/spans"
)

// returning is a recall up to the moment at which the returning request is at the
// engine, on a pool that takes spans.
func returning(t *testing.T, kind engine.Kind, change func(*Config)) (g *rig, wants *client, call *enginetest.Call, dispatched time.Duration) {
	g = newRig(t, options{
		engines: []enginetest.Options{{Kind: kind, Slots: 1}}, classes: reclaimer(1), pool: func(c *Config) {
			c.Spans = true
			if change != nil {
				change(c)
			}
		},
	})
	_, first := answering(g, "batch", false)
	pass(time.Second)
	wants = g.serve("interactive", sent(true, ""))
	<-first.Gone()
	pass(2 * time.Second)
	call = g.engines[0].Accept(t)
	settle()
	g.pool.mu.Lock()
	dispatched = time.Duration(g.pool.ledger.Last(1)[0].Dispatched)
	g.pool.mu.Unlock()
	return g, wants, call, dispatched
}

// answered lets the first token of a call come in a second from now, and its end
// half a second later.
func answered(call *enginetest.Call) {
	pass(time.Second)
	call.Emit(1)
	pass(500 * time.Millisecond)
	call.Finish("stop")
	settle()
}

// spanned is what vLLM's span of a chat says.
func spanned(call *enginetest.Call, queue, prefill time.Duration) spans.Span {
	return spans.Span{Request: "chatcmpl-" + call.ID, Queue: queue, Prefill: prefill}
}

func (g *rig) wantSpan(s spans.Span, want spans.Outcome) {
	g.t.Helper()
	if got := g.pool.Span(s); got != want {
		g.t.Errorf("a span of %s: %s, want %s", s.Request, got, want)
	}
}

// wantScheduled says what is known of the last recall's scheduling, from its
// dispatch on, and how often it was counted, with which sum.
func (g *rig) wantScheduled(from, to time.Duration, counted int, sum time.Duration) {
	g.t.Helper()
	r := g.pool.Recalls(1)[0]
	have := [2]time.Duration{time.Duration(r.Scheduled - r.Dispatched), 0}
	if r.ScheduledUpper != 0 {
		have[1] = time.Duration(r.ScheduledUpper - r.Dispatched)
	}
	if want := [2]time.Duration{from, to}; have != want || r.Scheduled == 0 {
		g.t.Errorf("scheduled %v after its dispatch, want %v", have, want)
	}
	n, s := g.scheduledMetric()
	if want := time.Duration(counted) * (sum + time.Duration(r.Dispatched-r.Opened)); n != counted || (s-want).Abs() > time.Microsecond {
		g.t.Errorf("counted %d times with %v, want %d times with %v", n, s, counted, want)
	}
}

func (g *rig) scheduledMetric() (n int, sum time.Duration) {
	families, err := g.metrics.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == "headgate_recall_seconds" && l.GetName() == "event" && l.GetValue() == "scheduled" {
					n += int(m.GetHistogram().GetSampleCount())
					sum += time.Duration(m.GetHistogram().GetSampleSum() * float64(time.Second))
				}
			}
		}
	}
	return n, sum
}

// scheduledLines are the Scheduled events of a request: from when to when.
func scheduledLines(events []journal.Event, request string) (lines [][2]time.Duration) {
	for _, e := range events {
		if e.Kind == journal.Scheduled && e.Request == request {
			lines = append(lines, [2]time.Duration{time.Duration(e.ScheduledNS), time.Duration(e.ScheduledUpperNS)})
		}
	}
	return lines
}

// TestLateSpan: what was an interval when the request ended becomes exact, is
// counted once, and has a second line.
func TestLateSpan(t *testing.T) {
	for _, written := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal=%t", written), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, wants, call, dispatched := returning(t, engine.VLLM, func(c *Config) {
					if !written {
						c.Journal = nil
					}
				})
				answered(call)
				g.wantCode(wants, "")
				first := time.Duration(g.pool.Recalls(1)[0].FirstToken) - dispatched
				g.wantScheduled(0, first, 0, 0)
				pass(5 * time.Second)
				s := spanned(call, 300*time.Millisecond, 600*time.Millisecond)
				g.wantSpan(s, spans.Taken)
				g.wantScheduled(300*time.Millisecond, 0, 1, 300*time.Millisecond)
				s.Queue = 0
				g.wantSpan(s, spans.Unneeded)
				pass(2 * spanWait)
				g.wantScheduled(300*time.Millisecond, 0, 1, 300*time.Millisecond)
				if !written {
					return
				}
				want := [][2]time.Duration{{dispatched, dispatched + first}, {dispatched + 300*time.Millisecond, 0}}
				if lines := scheduledLines(g.events(), wants.id); !slices.Equal(lines, want) {
					t.Errorf("lines %v, want %v", lines, want)
				}
			})
		})
	}
}

// TestNoSpan: without a span the interval counts, after a while, and one that comes
// later still than that does not count again.
func TestNoSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, call, dispatched := returning(t, engine.VLLM, nil)
		answered(call)
		first := time.Duration(g.pool.Recalls(1)[0].FirstToken) - dispatched
		pass(spanWait - time.Second)
		g.wantScheduled(0, first, 0, 0)
		pass(time.Second)
		g.wantScheduled(0, first, 1, first)
		g.wantSpan(spanned(call, 300*time.Millisecond, -1), spans.Taken)
		r := g.pool.Recalls(1)[0]
		if r.ScheduledUpper != 0 || time.Duration(r.Scheduled) != dispatched+300*time.Millisecond {
			t.Errorf("scheduled from %d to %d", r.Scheduled, r.ScheduledUpper)
		}
		if n, _ := g.scheduledMetric(); n != 1 {
			t.Errorf("counted %d times, want 1", n)
		}
	})
}

// TestEarlySpan: a span that comes while the answer is still on its way to the
// client is used when that ends, and there is no interval.
func TestEarlySpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, wants, call, dispatched := returning(t, engine.VLLM, nil)
		pass(time.Second)
		call.Emit(1)
		settle()
		g.wantSpan(spanned(call, 300*time.Millisecond, 600*time.Millisecond), spans.Taken)
		g.wantSpan(spanned(call, 0, 0), spans.Unneeded)
		call.Finish("stop")
		settle()
		g.wantScheduled(300*time.Millisecond, 0, 1, 300*time.Millisecond)
		g.wantSpan(spanned(call, 0, 0), spans.Unneeded)
		if lines := scheduledLines(g.events(), wants.id); !slices.Equal(lines, [][2]time.Duration{{dispatched + 300*time.Millisecond, 0}}) {
			t.Errorf("lines %v", lines)
		}
	})
}

// TestImpossibleSpan: whoever reaches the listener can send one, and what
// contradicts the first token as it was seen here is not believed.
func TestImpossibleSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, call, dispatched := returning(t, engine.VLLM, nil)
		g.wantSpan(spanned(call, time.Hour, -1), spans.Impossible) // it was not sent so long ago
		answered(call)
		first := time.Duration(g.pool.Recalls(1)[0].FirstToken) - dispatched
		pass(5 * time.Second)
		g.wantSpan(spanned(call, first+1, -1), spans.Impossible)
		g.wantSpan(spanned(call, first-time.Second, time.Second+1), spans.Impossible)
		g.wantScheduled(0, first, 0, 0)
		g.wantSpan(spanned(call, first-time.Second, time.Second), spans.Taken)
		g.wantScheduled(first-time.Second, 0, 1, first-time.Second)
	})
	// Taken while the request ran, and shown wrong by what came of it.
	synctest.Test(t, func(t *testing.T) {
		g, _, call, dispatched := returning(t, engine.VLLM, nil)
		call.Emit(1)
		pass(2 * time.Second)
		g.wantSpan(spanned(call, time.Second+time.Since(g.pool.Start().Add(dispatched+2*time.Second)), -1), spans.Taken)
		call.Finish("stop")
		settle()
		if r := g.pool.Recalls(1)[0]; r.ScheduledUpper == 0 {
			t.Errorf("scheduled at %d, after the first token at %d", r.Scheduled, r.FirstToken)
		}
	})
}

// TestSpanOfAnother: ids that were never sent, requests of several sequences, and
// what the answer has told already.
func TestSpanOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 2}}, pool: func(c *Config) { c.Spans = true }})
		for _, id := range []string{"", "-", "chatcmpl-", "chatcmpl-req_9-1", "cmpl---0"} {
			g.wantSpan(spans.Span{Request: id}, spans.Unknown)
		}
		g.serve("interactive", sent(false, `,"n":2`))
		call := g.engines[0].Accept(t)
		call.Finish("stop")
		settle()
		g.wantSpan(spanned(call, 0, -1), spans.Unneeded)

		g.serve("interactive", sent(true, ""))
		call = g.engines[0].Accept(t)
		call.Emit(1)
		call.Send(`data: {"object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1},"metrics":{"queue_time_ms":0,"time_to_first_token_ms":0}}` + "\n\n")
		call.End()
		settle()
		g.wantSpan(spanned(call, 0, -1), spans.Unneeded)
	})
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		g.serve("interactive", sent(true, ""))
		call := g.engines[0].Accept(t)
		g.wantSpan(spanned(call, 0, -1), spans.Unknown)
		call.Emit(1)
		call.Finish("stop")
		settle()
		if n := len(g.pool.timings.attempts); n > 0 {
			t.Errorf("%d attempts remembered for spans that nobody sends", n)
		}
	})
}

// TestSpanIDs: what vLLM makes of the id that it was sent.
func TestSpanIDs(t *testing.T) {
	want := &timed{}
	s := timings{attempts: map[string]*timed{"req_a-1f": want, "req_b-1": {}}}
	for id, found := range map[string]bool{
		"req_a-1f": true, "chatcmpl-req_a-1f": true, "chatcmpl-req_a-1f-0a1b2c3d": true,
		"cmpl-req_a-1f-0": true, "cmpl-req_a-1f-0-0a1b2c3d": true,
		"cmpl-req_a-1f-0-1-0a1b2c3d": false, "chatcmpl-req_a-2": false, "chatcmpl-req_a": false, "0_chatcmpl-req_a-1f": false,
	} {
		if got := s.find(id); (got == want) != found || got != nil && got != want {
			t.Errorf("%s: found %t, want %t", id, got == want, found)
		}
	}
}

// TestAttemptsRememberedAreBounded: those that are over give way to later ones,
// the oldest first, and those that run do not.
func TestAttemptsRememberedAreBounded(t *testing.T) {
	p := &Pool{timings: timings{attempts: map[string]*timed{}}}
	add := func(n int) *timed {
		v := &timed{line: journal.Event{Request: "r", Hold: uint64(n)}}
		p.timings.attempts[attemptID("r", uint64(n))] = v
		return v
	}
	add(0) // runs
	for n := 1; n <= 3*maxOver; n++ {
		p.overLocked(add(n))
		if have, most := len(p.timings.attempts), min(n, maxOver)+1; have != most {
			t.Fatalf("%d attempts after %d, want %d", have, n, most)
		}
	}
	for n, want := range map[int]bool{0: true, 2 * maxOver: false, 2*maxOver + 1: true, 3 * maxOver: true} {
		if have := p.timings.find(attemptID("r", uint64(n))) != nil; have != want {
			t.Errorf("attempt %d is there: %t, want %t", n, have, want)
		}
	}
}

// TestRecallOnAnEngineThatTells: the record is exact at once, by vLLM's
// per-request metrics and by the moment of llama-server's headers.
func TestRecallOnAnEngineThatTells(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.LlamaCpp} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _, call, dispatched := returning(t, kind, nil)
				pass(400 * time.Millisecond)
				began := time.Since(g.pool.Start()) - dispatched
				call.Start()
				call.Headers()
				pass(time.Second)
				call.Emit(1)
				if kind == engine.VLLM {
					call.Send(fmt.Sprintf(`data: {"object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1},"metrics":{"queue_time_ms":%f,"time_to_first_token_ms":1000}}`+"\n\n",
						float64(began)/1e6))
					call.End()
				} else {
					call.Finish("stop")
				}
				settle()
				r := g.pool.Recalls(1)[0]
				if d := time.Duration(r.Scheduled-r.Dispatched) - began; r.ScheduledUpper != 0 || d.Abs() > time.Microsecond {
					t.Errorf("scheduled from %d to %d, want %v after %d", r.Scheduled, r.ScheduledUpper, began, r.Dispatched)
				}
				if n, _ := g.scheduledMetric(); n != 1 {
					t.Errorf("counted %d times, want 1", n)
				}
				g.wantSpan(spanned(call, 0, -1), spans.Unneeded)
			})
		})
	}
}
