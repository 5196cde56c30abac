package relay

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/engine/enginetest"
	"headgate/journal"
	"headgate/wire"
)

// TestFaults is what an engine of two can do to a request, and what its client is told
// of it: nothing, as long as it has seen nothing; the class of the failure otherwise.
// Either way nothing stays taken, and the engine gets work again by itself.
func TestFaults(t *testing.T) {
	const busy = `{"error":{"message":"busy","code":429}}`
	faults := []struct {
		name string
		do   func(*enginetest.Call)
		// code is what a client is told that has seen something, or has no engine left.
		code string
		// stays: another engine could do no better.
		stays bool
		// seen: something of the answer came before.
		seen bool
	}{
		{name: "refuses with 503", do: func(c *enginetest.Call) { c.Document(503, `{}`) }, code: wire.CodeEngineUnavailable},
		{name: "is loading", do: func(c *enginetest.Call) { c.Document(503, `{"error":{"message":"Loading model"}}`) }, code: wire.CodeEngineLoading},
		{name: "is busy", do: func(c *enginetest.Call) { c.Document(429, busy, "Retry-After", "2") }, code: wire.CodeEngineBusy},
		{name: "fails with 500", do: func(c *enginetest.Call) { c.Document(500, `{}`) }, code: wire.CodeUpstreamError},
		{name: "is a proxy whose engine is gone", do: func(c *enginetest.Call) { c.Document(502, `bad gateway`) }, code: wire.CodeUpstreamError},
		{name: "dies before it answers", do: func(c *enginetest.Call) { c.Cut() }, code: wire.CodeUpstreamTorn},
		{name: "dies before a token", do: func(c *enginetest.Call) { c.Headers(); c.Cut() }, code: wire.CodeUpstreamTorn},
		{name: "ends before a token", do: func(c *enginetest.Call) { c.Headers(); c.End() }, code: wire.CodeUpstreamTorn},
		{name: "answers 200 with an error", do: func(c *enginetest.Call) { c.Fail(500, "boom") }, code: wire.CodeUpstreamError},
		{name: "hangs", do: func(*enginetest.Call) { time.Sleep(idleTimeout + time.Second) }, code: wire.CodeUpstreamTimeout},
		{name: "hangs before a token", do: func(c *enginetest.Call) { c.Headers(); time.Sleep(idleTimeout + time.Second) }, code: wire.CodeUpstreamTimeout},

		{name: "refuses the request", do: func(c *enginetest.Call) { c.Document(400, `{"error":{"message":"bad","code":"bad_field"}}`) }, code: "bad_field", stays: true},
		{name: "answers 200 with the request's error", do: func(c *enginetest.Call) { c.Fail(400, "bad") }, code: wire.CodeEngineRefused, stays: true},
		{name: "is a proxy that timed out", do: func(c *enginetest.Call) { c.Document(504, `{}`) }, code: wire.CodeUpstreamTimeout, stays: true},

		{name: "dies in the middle", do: func(c *enginetest.Call) { c.Cut() }, code: wire.CodeUpstreamTorn, seen: true},
		{name: "fails in the middle", do: func(c *enginetest.Call) { c.Fail(500, "boom") }, code: wire.CodeUpstreamError, seen: true},
		{name: "hangs in the middle", do: func(*enginetest.Call) { time.Sleep(idleTimeout + time.Second) }, code: wire.CodeUpstreamTimeout, seen: true},
	}
	for _, f := range faults {
		for _, engines := range []int{1, 2} {
			for _, stream := range []bool{true, false} {
				name := f.name + map[bool]string{true: ", streamed", false: ", collected"}[stream] + map[int]string{1: ", alone", 2: ", of two"}[engines]
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						g := newRig(t, options{engines: two(2)[:engines]})
						c := g.serve("interactive", sent(stream, ""))
						call := g.engines[0].Accept(t)
						if f.seen {
							call.Headers()
							call.Emit(2)
							settle()
						}
						f.do(call)
						settle()
						// A whole answer is unseen to its end. What an engine has said
						// of a failure after a token is final all the same.
						again := engines == 2 && !f.stays && (!f.seen || !stream && !strings.HasPrefix(f.name, "fails"))
						if !again {
							g.wantCode(c, f.code)
						} else {
							other := g.engines[1].Accept(t)
							other.Emit(1)
							other.Finish("stop")
							settle()
							g.wantCode(c, "")
							if text := c.text(); strings.Count(text, "w1 ") != 1 || strings.Contains(text, "w2 ") || strings.Contains(text, "error") {
								t.Errorf("the client got\n%s", text)
							}
						}
						for _, e := range g.engines {
							e.Answer("/health", 0, "")
						}
						pass(20 * time.Second) // what was aborted is confirmed
						g.wantEmpty()
						// Nothing has to be started again.
						for range engines {
							c, call := begunSomewhere(g)
							call.Emit(1)
							call.Finish("stop")
							settle()
							g.wantCode(c, "")
						}
						g.wantEmpty()
						wantOneReleaseEach(t, g.events())
					})
				})
			}
		}
	}
}

// begunSomewhere serves a request and returns it with the engine's side of it.
func begunSomewhere(g *rig) (*client, *enginetest.Call) {
	g.t.Helper()
	c := g.serve("interactive", sent(true, ""))
	for _, e := range g.engines {
		if e.Waiting()+e.Running() > 0 {
			return c, e.Accept(g.t)
		}
	}
	g.t.Fatalf("no request reached an engine: %s", c.code())
	return nil, nil
}

// TestBusyEngineIsLeftAlone: an engine that asks to be left alone for a time is, and
// is then given work again.
func TestBusyEngineIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: two(4)})
		c := g.serve("interactive", sent(true, ""))
		g.engines[0].Accept(t).Document(429, `{}`, "Retry-After", "7")
		settle()
		answer := func(c *client) {
			t.Helper()
			call := g.engines[1].Accept(t)
			call.Emit(1)
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
		}
		answer(c)
		for range 3 {
			pass(2 * time.Second)
			answer(g.serve("interactive", sent(true, "")))
		}
		if g.state(0) != "ready" {
			t.Errorf("state %s: a busy engine is ready", g.state(0))
		}
		pass(2 * time.Second)
		c = g.serve("interactive", sent(true, ""))
		call := g.engines[0].Accept(t)
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		g.wantEmpty()
	})
}

// TestFailingEngineIsSetAside: one that answers its health check and fails whatever it
// is given fails three requests, and no client.
func TestFailingEngineIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{engines: two(4)})
		failed := 0
		g.engines[0].Answer(wire.Chat.Path(), 500, `{}`)
		for range 20 {
			c := g.serve("interactive", sent(true, ""))
			call := g.engines[1].Accept(t)
			call.Emit(1)
			call.Finish("stop")
			settle()
			g.wantCode(c, "")
		}
		failed = g.engines[0].Scrapes(wire.Chat.Path())
		if failed != 3 {
			t.Errorf("the engine was given %d requests, want 3", failed)
		}
		g.engines[0].Answer(wire.Chat.Path(), 0, "")
		pass(2 * time.Second)
		c := g.serve("interactive", sent(true, ""))
		call := g.engines[0].Accept(t)
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
		g.wantEmpty()
		moved := 0
		for _, e := range g.events() {
			if e.Kind == journal.Ended && e.Cause == "failed" {
				moved++
			}
		}
		if moved != 3 {
			t.Errorf("the journal has %d failed attempts, want 3", moved)
		}
	})
}
