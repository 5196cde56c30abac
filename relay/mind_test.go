package relay

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/journal"
)

// TestObserve: every request goes to the engine at once, whatever the table says, and
// the report tells what enforcing would have done. A pool changes its mode while
// requests run and wait, and each ends where it began.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tight := loose("a")
		tight.Depth = 1
		classes := []admission.ClassSpec{tight}
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}}, classes: classes,
			pool: func(c *Config) { c.Observe = true },
		})
		var calls []*enginetest.Call
		var clients []*client
		serve := func() {
			clients = append(clients, g.serve("a", sent(true, "")))
			calls = append(calls, g.engines[0].Accept(t))
		}
		for range 3 {
			serve()
		}
		if d := clients[2].decisions; len(d) != 1 || !d[0].Observed || d[0].Queued || d[0].Loan {
			t.Errorf("decisions %+v", d)
		}
		if strings.Contains(string(calls[2].Body), "return_token_ids") {
			t.Errorf("an engine that is only observed got %s", calls[2].Body)
		}
		pass(2 * time.Second)
		calls[0].Finish("stop")
		settle()
		c := g.pool.Observed().Classes[0]
		if c.Offered != 3 || c.PassedOn != 3 || c.AtOnce != 1 || c.Delayed.Count != 1 || c.Delayed.Max != 2*time.Second || c.Refused["queue_full"] != 1 {
			t.Errorf("the report: %+v", c)
		}

		// Now it enforces: what runs goes on, and is foreign load to the core.
		enforce, observe := g.next(classes, "e0"), g.next(classes, "e0")
		observe.Observe = true
		g.change(enforce)
		pass(2 * time.Second)
		if s := g.pool.Snapshot(); g.pool.Observed() != nil || s.Foreign.Slots != 2 || s.Used.Slots != 0 {
			t.Errorf("enforcing beside what was passed on:\n%v", s)
		}
		waits := g.serve("a", sent(true, ""))
		g.wantCode(waits, "running")
		if n := g.pool.Snapshot().Classes[0].Queue; n != 1 {
			t.Errorf("%d wait", n)
		}

		// And observes again: what waits is let go, and the report is a new one.
		g.change(observe)
		clients, calls = append(clients, waits), append(calls, g.engines[0].Accept(t))
		serve()
		if c := g.pool.Observed().Classes[0]; c.Offered != 1 {
			t.Errorf("the second report: %+v", c)
		}
		for _, call := range calls[1:] {
			call.Finish("stop")
		}
		settle()
		for _, c := range clients {
			g.wantCode(c, "")
		}
		g.change(enforce)
		pass(20 * time.Second)
		g.wantEmpty()
		if n := len(g.pool.minds); n != 1 {
			t.Errorf("%d minds are left", n)
		}
		shadowed := 0
		for _, e := range g.events() {
			if e.Kind == journal.Admitted && e.Shadow {
				shadowed++
			}
		}
		if shadowed != 4 {
			t.Errorf("%d admissions are marked, want 4", shadowed)
		}
	})
}
