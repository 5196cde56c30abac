package relay

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

// reclaimer is a pool that belongs to interactive, of which batch may borrow all
// and gives it back at once.
func reclaimer(slots int64) []admission.ClassSpec {
	interactive, batch := loose("interactive"), loose("batch")
	interactive.Floor = admission.Of(slots, 4096)
	interactive.IdleAfter = time.Second
	// A stream borrows if it is predicted to end within this.
	batch.Mode, batch.Grace = admission.ReclaimNow, time.Hour
	return []admission.ClassSpec{interactive, batch}
}

// paced lets a request show the pool how fast its engine is: without that no
// stream borrows.
func paced(g *rig) {
	g.t.Helper()
	pass(time.Second) // the core's time 0 is no time
	c, call := answering(g, "interactive", true)
	for range 4 {
		pass(100 * time.Millisecond)
		call.Emit(2)
	}
	call.Finish("stop")
	settle()
	g.wantCode(c, "")
	pass(2 * time.Second) // until interactive lends again
}

// TestReclaimLosesNothing: a batch request of which the answer is collected gives
// way to an interactive one in the middle of it, runs again from its beginning,
// and its client gets one whole answer.
func TestReclaimLosesNothing(t *testing.T) {
	yes := true
	for _, tt := range []struct {
		name     string
		kind     engine.Kind
		priority *bool
		together bool
	}{
		{"vllm by priority", engine.VLLM, &yes, true},
		{"vllm", engine.VLLM, nil, true}, // nothing of batch waits inside it, so its order is nothing to wait for
		{"llama-server", engine.LlamaCpp, nil, false},
		{"another", engine.OpenAI, &yes, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{
					engines: []enginetest.Options{{Kind: tt.kind, Slots: 1, Ghosts: true}}, classes: reclaimer(1),
					configure: func(c *engine.Config) { neverContinued(c); c.Capabilities.Priority = tt.priority },
				})
				e := g.engines[0]
				batch, first := answering(g, "batch", false)
				wants := g.serve("interactive", sent(true, ""))
				<-first.Gone()
				settle()
				g.wantCode(batch, "running")
				// An engine that acts on aborts between steps gets both at once, another
				// the second when the first is surely gone.
				if together := len(wants.decisions) == 1; together != tt.together {
					t.Errorf("interactive was let in together with the abort: %t, want %t", together, tt.together)
				}
				first.Free()
				finish(g, wants)
				pass(2 * time.Second)
				again := e.Accept(t)
				again.Headers()
				again.Emit(3)
				again.Finish("stop")
				settle()
				g.wantCode(batch, "")
				if text := gjson.Get(batch.text(), "choices.0.message.content").String(); batch.answers != 1 || text != "w1 w2 w3 " {
					t.Errorf("%d answers: %s", batch.answers, batch.text())
				}
				g.wantEmpty()
				events := g.events()
				if got, want := confirmedBy(story(events, batch.id)), ran+"ended(reclaimed) queued released(?) "+
					"admitted dispatched first_token scheduled ended(finished) finished(finished)"; got != want {
					t.Errorf("story\n got %s\nwant %s", got, want)
				}
				wantOneReleaseEach(t, events)
			})
		})
	}
}

const (
	opening = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	ping    = ": ping\n\n"
)

// TestStreamIsNotReclaimedOnceSeen: of a stream nothing is taken back that its
// client has seen, and up to then nothing is seen twice.
func TestStreamIsNotReclaimedOnceSeen(t *testing.T) {
	for _, tt := range []struct {
		name  string
		begin func(*enginetest.Call)
		seen  bool
		more  string // in the request
	}{
		{"nothing", func(*enginetest.Call) {}, false, ""},
		{"headers", func(c *enginetest.Call) { c.Headers() }, false, ""},
		{"a comment", func(c *enginetest.Call) { c.Send(ping) }, false, ""},
		{"the opening", func(c *enginetest.Call) { c.Send(opening) }, false, ""},
		{"a token", func(c *enginetest.Call) { c.Send(opening); c.Emit(1) }, true, ""},
		{"a token of a constrained answer", func(c *enginetest.Call) { c.Send(opening); c.Emit(1) }, true, `,"response_format":{"type":"json_object"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{classes: reclaimer(1)})
				paced(g)
				e := g.engines[0]
				batch := g.serve("batch", sent(true, tt.more))
				first := e.Accept(t)
				tt.begin(first)
				settle()
				wants := g.serve("interactive", sent(true, ""))
				pass(5 * time.Second)
				if tt.seen {
					select {
					case <-first.Gone():
						t.Error("the stream was ended")
					default:
					}
					// Of a constrained answer the core knows it. Of another it learns it when
					// this one comes without ids: the request for which it wanted it ended is
					// at the engine by then, and waits there.
					if known := tt.more != ""; known && len(wants.decisions) > 0 {
						t.Error("interactive was let in while the stream ran")
					}
					first.Emit(1)
					first.Finish("stop")
					settle()
				}
				finish(g, wants)
				want := "w1 w2 "
				if !tt.seen {
					g.wantCode(batch, "running")
					pass(2 * time.Second)
					again := e.Accept(t)
					again.Send(opening)
					again.Emit(2)
					again.Finish("stop")
					settle()
				}
				g.wantCode(batch, "")
				text := batch.text()
				if n := strings.Count(text, `"role"`); n != 1 || spoken(text) != want || strings.Count(text, "[DONE]") != 1 {
					t.Errorf("the client got %d openings and %q:\n%s", n, spoken(text), text)
				}
				g.wantEmpty()
				reclaims := strings.Count(story(g.events(), batch.id), "ended(reclaimed)")
				if reclaimed := reclaims == 1; reclaimed == tt.seen || reclaims > 1 {
					t.Errorf("%d reclaims", reclaims)
				}
			})
		})
	}
}

// spoken is the text of a stream.
func spoken(stream string) string {
	var b strings.Builder
	for line := range strings.Lines(stream) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			b.WriteString(gjson.Get(data, "choices.0.delta.content").String())
		}
	}
	return b.String()
}

// TestOpeningIsHeldBackOnce: whatever an engine begins with, its client is one
// event behind at most, and gets all of it.
func TestOpeningIsHeldBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := begun(g, "interactive", true)
		call.Send(opening)
		settle()
		if c.text() != "" {
			t.Errorf("the opening was passed on: %s", c.text())
		}
		call.Send(ping)
		settle()
		if c.text() != ping {
			t.Errorf("the client has %q, want the comment", c.text())
		}
		call.Send(opening) // nobody knows what comes of it, so it is not held back too
		settle()
		if want := ping + opening + opening; c.text() != want {
			t.Errorf("the client has %q, want %q", c.text(), want)
		}
		call.Send(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n")
		call.End()
		settle()
		g.wantCode(c, "")
	})
}

// TestReclaimsUnderLoad is for the race detector: requests of both classes and
// kinds come while loans are ended at every moment of theirs; each gets its whole
// answer, once.
func TestReclaimsUnderLoad(t *testing.T) {
	const slots, callers = 4, 150
	synctest.Test(t, func(t *testing.T) {
		no := false
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: slots}}, classes: reclaimer(slots),
			configure: func(c *engine.Config) { c.Capabilities.TokenIDs = &no },
		})
		paced(g)
		e := g.engines[0]
		var work sync.WaitGroup
		work.Go(func() {
			for i := 0; ; i++ {
				// It gives up half a minute after the last of them.
				call := e.Accept(quiet{t})
				if call == nil {
					return
				}
				work.Go(func() {
					call.Send(opening)
					if i%2 == 0 {
						time.Sleep(100 * time.Millisecond) // a stream can be ended until its first token
					}
					for range 3 {
						time.Sleep(20 * time.Millisecond)
						call.Emit(1)
					}
					call.Finish("stop")
				})
			}
		})
		var clients []*client
		for i := range callers {
			class := "batch"
			if i%5 == 0 {
				class = "interactive"
				time.Sleep(time.Duration(i%7) * 10 * time.Millisecond)
				if i%15 == 0 {
					time.Sleep(2 * time.Second) // interactive lends again
				}
			}
			clients = append(clients, g.begin(class, sent(i%2 == 0, ""), g.pool.Serve))
		}
		for i, c := range clients {
			<-c.done
			text := gjson.Get(c.text(), "choices.0.message.content").String()
			if i%2 == 0 {
				text = spoken(c.text())
			}
			if c.code() != "" || text != "w1 w2 w3 " || strings.Count(c.text(), `"role"`) != 1 {
				t.Errorf("%s: code %q, %s", c.id, c.code(), c.text())
			}
			if c.late {
				t.Errorf("%s: the sink was used after Serve had returned", c.id)
			}
		}
		pass(10 * time.Second)
		g.wantEmpty()
		work.Wait()
		events := g.events()
		wantOneReleaseEach(t, events)
		reclaimed := map[bool]int{}
		for _, ev := range events {
			if ev.Kind == journal.Ended && ev.Cause == admission.CauseReclaimed.String() {
				reclaimed[ev.Stream]++
			}
		}
		if reclaimed[true] == 0 || reclaimed[false] == 0 {
			t.Errorf("reclaimed, by whether it was a stream: %v", reclaimed)
		}
	})
}

// TestSlotTellsTheStart: llama-server answers with headers once it has a slot, so
// a wait for one is not taken for a slow prefill. The guard, which believes what it
// has seen, would let nothing of batch start beside interactive any more.
func TestSlotTellsTheStart(t *testing.T) {
	for _, kind := range []engine.Kind{engine.LlamaCpp, engine.VLLM} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				classes := []admission.ClassSpec{loose("interactive"), loose("batch")}
				classes[0].Objective.First = 5 * time.Second
				g := newRig(t, options{engines: []enginetest.Options{{Kind: kind, Slots: 2}}, classes: classes})
				e, tells := g.engines[0], kind == engine.LlamaCpp
				pass(time.Second)
				body := sent(true, `,"max_tokens":50`)
				long := strings.Replace(body, "hello", strings.Repeat("many words ", 50), 1) // what is learned is by size
				slow := g.serve("batch", long)
				call := e.Accept(t)
				pass(30 * time.Second)
				call.Headers()
				pass(time.Second)
				call.Emit(1)
				call.Finish("stop")
				settle()
				g.wantCode(slow, "")

				g.serve("interactive", body)
				chat := e.Accept(t)
				chat.Emit(1)
				settle()
				beside := g.serve("batch", long)
				if started := len(beside.decisions) == 1; started != tells {
					t.Errorf("batch starts beside interactive: %t, want %t\n%s", started, tells, g.pool.Snapshot())
				}
				chat.Finish("stop")
				beside.cancel()
				pass(10 * time.Second)

				at := func(s int) int64 { return int64(time.Duration(s) * time.Second) }
				from, to := at(1), at(32)
				if tells {
					from, to = at(31), 0
				}
				for _, e := range g.events() {
					if e.Kind == journal.Scheduled && e.Request == slow.id && (e.ScheduledNS != from || e.ScheduledUpperNS != to) {
						t.Errorf("scheduled %d to %d, want %d to %d", e.ScheduledNS, e.ScheduledUpperNS, from, to)
					}
				}
			})
		})
	}
}

func logTo(w *strings.Builder) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// TestForecastIsTold: who would wait too long is refused with both numbers.
func TestForecastIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		r := &record{call: g.call("interactive", sent(true, ""))}
		err := g.pool.refusal(r, &admission.Effect{Op: admission.Reject, Cause: admission.CauseForecast, Tokens: 12_000, Limit: 5_000, Retry: 7e9})
		if err.Code != wire.CodeQueueFull || !strings.Contains(err.Message, "12s") || !strings.Contains(err.Message, "5s") || err.Retry != 7*time.Second {
			t.Errorf("%+v", err)
		}
	})
}

// TestGhostsDemoteAnEngine: an engine that never ends what it is asked to is
// written about once, and its loans are left to end by themselves.
func TestGhostsDemoteAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1, Ghosts: true}}, classes: reclaimer(1),
			pool: func(c *Config) { c.Log = logTo(&log) },
		})
		e := g.engines[0]
		for i := range 4 {
			batch := g.serve("batch", sent(false, `,"max_tokens":2`))
			call := e.Accept(t)
			call.Emit(1)
			settle()
			wants := g.serve("interactive", sent(true, `,"max_tokens":2`))
			pass(time.Second)
			if i == 3 {
				// It runs to its end, while interactive waits.
				if g.pool.Snapshot().Holds[0].State != "live" {
					t.Errorf("holds %+v", g.pool.Snapshot().Holds)
				}
				call.Finish("stop")
				finish(g, wants)
				settle()
				g.wantCode(batch, "")
				break
			}
			batch.cancel()
			pass(10 * time.Second) // the ghost's time is over
			call.Free()
			finish(g, wants)
			pass(2 * time.Second)
			g.wantEmpty()
		}
		if n := strings.Count(log.String(), "nothing is reclaimed from it any more"); n != 1 {
			t.Errorf("written about %d times:\n%s", n, log.String())
		}
		for _, ev := range g.events() {
			if ev.Kind == "" {
				t.Error(fmt.Sprint("an event without a kind: ", ev))
			}
		}
	})
}
