package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

// loanLife is the agreed life of a loan in the tests.
const loanLife = 10 * time.Second

// lender is one slot that belongs to interactive and that batch may borrow.
func lender() []admission.ClassSpec {
	interactive, batch := loose("interactive"), loose("batch")
	interactive.Floor = admission.Of(1, 4096)
	batch.Mode, batch.LoanLife = admission.Deadline, loanLife
	return []admission.ClassSpec{interactive, batch}
}

// ending is one way in which a call can end. run brings it about, from a pool
// whose only slot is free, and returns the client of the call.
type ending struct {
	name string
	run  func(g *rig, stream bool) *client
	code string
	// story of the call, and of the call where it is streamed if that differs.
	story, streamed string
	// again: the call runs once more and its client gets a whole answer.
	again func(stream bool) bool
}

func begun(g *rig, class string, stream bool, change ...func(*client)) (*client, *enginetest.Call) {
	c := g.serve(class, sent(stream, ""), change...)
	return c, g.engines[0].Accept(g.t)
}

func answering(g *rig, class string, stream bool, change ...func(*client)) (*client, *enginetest.Call) {
	c, call := begun(g, class, stream, change...)
	call.Headers()
	call.Emit(2)
	settle()
	return c, call
}

const ran = "arrived admitted dispatched first_token scheduled "

var endings = []ending{
	{name: "finish", code: "", story: ran + "ended(finished) finished(finished)",
		run: func(g *rig, stream bool) *client {
			c, call := answering(g, "batch", stream)
			call.Finish("stop")
			return c
		}},
	{name: "engine error before the stream", code: wire.CodeUpstreamError, story: "arrived admitted dispatched ended(failed) finished(failed)",
		run: func(g *rig, stream bool) *client {
			c, call := begun(g, "batch", stream)
			call.Document(500, `{"error":{"message":"boom","type":"server_error"}}`)
			return c
		}},
	{name: "engine error in the stream", code: wire.CodeUpstreamError, story: ran + "ended(failed) finished(failed)",
		run: func(g *rig, stream bool) *client {
			c, call := answering(g, "batch", stream)
			call.Fail(500, "boom")
			return c
		}},
	{name: "torn stream", code: wire.CodeUpstreamTorn, story: ran + "ended(failed) finished(failed) released(?)",
		run: func(g *rig, stream bool) *client {
			c, call := answering(g, "batch", stream)
			call.Cut()
			return c
		}},
	{name: "stream without an end", code: wire.CodeUpstreamTorn, story: ran + "ended(failed) finished(failed) released(?)",
		run: func(g *rig, stream bool) *client {
			c, call := answering(g, "batch", stream)
			call.End()
			return c
		}},
	{name: "idle before the first event", code: wire.CodeUpstreamTimeout, story: "arrived admitted dispatched ended(timeout) finished(timeout) released(?)",
		run: func(g *rig, stream bool) *client {
			c, _ := begun(g, "batch", stream)
			pass(idleTimeout)
			return c
		}},
	{name: "idle after it", code: wire.CodeUpstreamTimeout, story: ran + "ended(timeout) finished(timeout) released(?)",
		run: func(g *rig, stream bool) *client {
			c, call := answering(g, "batch", stream)
			pass(idleTimeout / 2)
			call.Emit(1)
			pass(idleTimeout - time.Second)
			g.wantCode(c, "running")
			pass(time.Second)
			return c
		}},
	{name: "client gone while queued", code: wire.CodeClientClosed, story: "arrived queued finished(client_gone)",
		run: func(g *rig, stream bool) *client {
			_, other := answering(g, "batch", stream)
			c := g.serve("batch", sent(stream, ""))
			c.cancel()
			settle()
			other.Finish("stop")
			return c
		}},
	{name: "client gone before the engine answers", code: wire.CodeClientClosed, story: "arrived admitted dispatched ended(client_gone) finished(client_gone) released(?)",
		run: func(g *rig, stream bool) *client {
			c, _ := begun(g, "batch", stream)
			c.cancel()
			return c
		}},
	{name: "client gone before the first event", code: wire.CodeClientClosed, story: "arrived admitted dispatched ended(client_gone) finished(client_gone) released(?)",
		run: func(g *rig, stream bool) *client {
			c, call := begun(g, "batch", stream)
			call.Headers()
			settle()
			c.cancel()
			return c
		}},
	{name: "client gone after it", code: wire.CodeClientClosed, story: ran + "ended(client_gone) finished(client_gone) released(?)",
		run: func(g *rig, stream bool) *client {
			c, _ := answering(g, "batch", stream)
			c.cancel()
			return c
		}},
	{name: "client does not take the answer", code: wire.CodeClientClosed,
		story: ran + "ended(client_gone) finished(client_gone)", streamed: ran + "ended(client_gone) finished(client_gone) released(?)",
		run: func(g *rig, stream bool) *client {
			c, call := answering(g, "batch", stream, func(c *client) {
				c.onEvent = func(n int) error {
					if n == 3 || !stream {
						return errors.New("broken pipe")
					}
					return nil
				}
			})
			call.Emit(1)
			if !stream {
				call.Finish("stop")
			}
			return c
		}},
	{name: "loan ended before the dispatch", code: "", again: func(bool) bool { return true },
		story: "arrived admitted ended(reclaimed) queued admitted dispatched first_token scheduled ended(finished) finished(finished)",
		run: func(g *rig, stream bool) *client {
			// The request is admitted and its goroutine does not get to run
			// before the loan is over.
			hold := make(chan struct{})
			c := g.start("batch", sent(stream, ""), func(ctx context.Context, call *Call, s Sink) *wire.Error {
				r, err := g.pool.offer(call)
				if err != nil {
					return err
				}
				<-hold
				return g.pool.carry(ctx, r, s)
			})
			wants := g.serve("interactive", sent(true, ""))
			pass(loanLife)
			close(hold)
			finish(g, wants)
			return c
		}},
	{name: "loan ended before the engine answers", code: "", again: func(bool) bool { return true },
		story: "arrived admitted dispatched ended(reclaimed) queued released(?) admitted dispatched first_token scheduled ended(finished) finished(finished)",
		run: func(g *rig, stream bool) *client {
			c, _ := begun(g, "batch", stream)
			recalled(g)
			return c
		}},
	{name: "loan ended before the first event", code: "", again: func(bool) bool { return true },
		story: "arrived admitted dispatched ended(reclaimed) queued released(?) admitted dispatched first_token scheduled ended(finished) finished(finished)",
		run: func(g *rig, stream bool) *client {
			c, call := begun(g, "batch", stream)
			call.Headers()
			recalled(g)
			return c
		}},
	{name: "loan ended after it", code: wire.CodeLoanEnded, again: func(stream bool) bool { return !stream },
		story:    ran + "ended(reclaimed) queued released(?) admitted dispatched first_token scheduled ended(finished) finished(finished)",
		streamed: ran + "ended(reclaimed) finished(reclaimed) released(?)",
		run: func(g *rig, stream bool) *client {
			c, _ := answering(g, "batch", stream)
			recalled(g)
			return c
		}},
}

// recalled lets interactive demand end the loan that is out, and be served.
func recalled(g *rig) {
	wants := g.serve("interactive", sent(true, ""))
	pass(loanLife)
	finish(g, wants)
}

// finish lets a call that waits for confirmations reach the engine, and ends it.
func finish(g *rig, c *client) {
	g.t.Helper()
	pass(5 * time.Second)
	call := g.engines[0].Accept(g.t)
	call.Emit(1)
	call.Finish("stop")
	settle()
	g.wantCode(c, "")
}

// confirmedBy puts the evidence out of a story, which is the adapter's matter.
func confirmedBy(s string) string {
	for _, by := range []engine.ConfirmedBy{engine.ByProgress, engine.BySlot, engine.ByGrace} {
		s = strings.ReplaceAll(s, "released("+string(by)+")", "released(?)")
	}
	return s
}

// TestEveryEndReleasesOnce is case 2 of the faults that were reported of such
// systems: however a call ends, its hold is freed exactly once, its client is
// told what is true, and the next call gets the slot.
func TestEveryEndReleasesOnce(t *testing.T) {
	for _, kind := range engine.Kinds {
		for _, e := range endings {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/stream=%t", kind, e.name, stream), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { e.test(t, kind, stream) })
				})
			}
		}
	}
}

func (e *ending) test(t *testing.T, kind engine.Kind, stream bool) {
	g := newRig(t, options{
		engines: []enginetest.Options{{Kind: kind, Slots: 1}}, classes: lender(),
		configure: neverContinued, // what goes on after a cut is another test's
	})
	c := e.run(g, stream)
	pass(5 * time.Second)
	code := e.code
	if e.again != nil && e.again(stream) {
		pass(lender()[0].IdleAfter) // until interactive lends again
		finish(g, c)
		code = ""
	}
	g.wantCode(c, code)
	g.wantEmpty()
	// The slot can be used at once.
	next, call := answering(g, "interactive", stream)
	call.Finish("stop")
	settle()
	g.wantCode(next, "")
	g.wantEmpty()

	events := g.events()
	want := e.story
	if stream && e.streamed != "" {
		want = e.streamed
	}
	if got := confirmedBy(story(events, c.id)); got != want {
		t.Errorf("story\n got %s\nwant %s", got, want)
	}
	wantOneReleaseEach(t, events)
	if c.late {
		t.Error("the sink was used after Serve had returned")
	}
}

// wantOneReleaseEach checks that every hold began once and ended once.
func wantOneReleaseEach(t *testing.T, events []journal.Event) {
	t.Helper()
	type account struct{ admitted, ended, released int }
	holds := map[uint64]account{}
	for _, e := range events {
		a := holds[e.Hold]
		switch e.Kind {
		case journal.Admitted, journal.Warming:
			a.admitted++
		case journal.Ended:
			a.ended++
		case journal.Released:
			a.released++
		default:
			continue
		}
		holds[e.Hold] = a
	}
	for hold, a := range holds {
		if a.admitted != 1 || a.ended != 1 || a.released > 1 {
			t.Errorf("hold %x: %+v", hold, a)
		}
	}
}

// TestShutdownEndsWhatRuns is the matrix's last row: nobody waits for a
// confirmation any more, so the hold stays a ghost; but every call returns.
func TestShutdownEndsWhatRuns(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{classes: lender()})
				runs, call := answering(g, "batch", stream)
				waits := g.serve("batch", sent(stream, ""))
				ended := make(chan int)
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
					defer cancel()
					ended <- g.pool.Drain(ctx)
				}()
				settle()
				// Case 20: what waits is told at once, and to go elsewhere.
				g.wantCode(waits, wire.CodeDraining)
				if waits.err.Retry != 0 {
					t.Errorf("hint %v for a process that will not be back", waits.err.Retry)
				}
				g.wantCode(g.serve("batch", sent(stream, "")), wire.CodeDraining)
				g.wantCode(runs, "running")
				pass(3 * time.Second)
				g.wantCode(runs, wire.CodeDraining)
				if n := <-ended; n != 1 {
					t.Errorf("Drain ended %d calls, want 1", n)
				}
				<-call.Gone()
				g.wantNoRecords()
				events := g.events()
				if got, want := story(events, runs.id), ran+"ended(draining) finished(draining)"; got != want {
					t.Errorf("story\n got %s\nwant %s", got, want)
				}
				if got, want := story(events, waits.id), "arrived queued rejected(draining)"; got != want {
					t.Errorf("story\n got %s\nwant %s", got, want)
				}
				wantOneReleaseEach(t, events)
			})
		})
	}
}

func TestDrainLetsRunningCallsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{})
		c, call := answering(g, "interactive", true)
		ended := make(chan int)
		go func() { ended <- g.pool.Drain(context.Background()) }()
		pass(time.Hour / 100)
		call.Emit(1)
		call.Finish("stop")
		if n := <-ended; n != 0 {
			t.Errorf("Drain ended %d calls, want 0", n)
		}
		settle()
		g.wantCode(c, "")
		g.wantEmpty()
	})
}

// TestPanickingSinkHoldsNothing: net/http swallows a handler's panic, so what it
// held has to be given back on the way out.
func TestPanickingSinkHoldsNothing(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, options{classes: lender()})
				panicked := false
				serve := func(ctx context.Context, call *Call, s Sink) *wire.Error {
					defer func() { panicked = recover() != nil }()
					return g.pool.Serve(ctx, call, s)
				}
				g.start("batch", sent(stream, ""), serve, func(c *client) { c.onEvent = func(int) error { panic("sink") } })
				call := g.engines[0].Accept(t)
				call.Emit(1)
				if !stream {
					call.Finish("stop")
				}
				pass(5 * time.Second)
				if !panicked {
					t.Fatal("the panic was swallowed")
				}
				g.wantEmpty()
			})
		})
	}
}
