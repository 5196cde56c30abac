package relay

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/control"
	"headgate/engine"
	"headgate/engine/enginetest"
)

// TestOverdue: what outlives what is reserved for it after a lease is ended, but for what
// survives. Who has seen nothing of an answer waits on and gets it all; who has is told.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4}},
			pool:    func(c *Config) { c.Replica, c.ClockDrift, c.IdleTimeout = brkID, 0.02, time.Hour },
		})
		pass(time.Second)
		p, e := g.pool, g.engines[0]
		grant := brkGrant(1, 4)
		grant.Residual = time.Minute
		grant.Accounts[0].Survival = admission.Of(1, 1<<12)
		for n := range 4 {
			p.Leased(7, time.Now(), 6*time.Second)
			if n == 0 {
				if err := p.Grant(grant); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Second)
		}
		lapses := p.cfg.Start.Add(time.Duration(func() admission.Time { _, until := p.fleet.holder.Lease(); return until }()))
		first := g.serve("interactive", sent(true, ""))
		stays := e.Accept(t)
		stays.Headers()
		stays.Emit(1)
		pass(time.Millisecond)
		seen := g.serve("interactive", sent(true, ""))
		goes := e.Accept(t)
		goes.Headers()
		goes.Emit(2)
		pass(time.Millisecond)
		unseen := g.serve("interactive", sent(false, ""))
		again := e.Accept(t)
		again.Headers()
		again.Emit(2)
		settle()

		// 0.98/1.02 of a minute, less what it takes to end anything.
		due := lapses.Add(time.Minute*98/102 - control.EndTime)
		pass(time.Until(due) - 10*time.Millisecond)
		for _, c := range []*client{first, seen, unseen} {
			g.wantCode(c, "running")
		}
		if n := e.Running(); n != 3 {
			t.Errorf("%d run before it is due, want 3", n)
		}
		pass(20 * time.Millisecond)
		<-goes.Gone()
		<-again.Gone()
		settle()
		g.wantCode(first, "running")
		g.wantCode(seen, "engine_unavailable")
		g.wantCode(unseen, "running")
		if seen.err != nil && !strings.Contains(seen.err.Message, "has lost its part of the engines") {
			t.Errorf("told %q", seen.err.Message)
		}

		// Under a new lease it starts again.
		pass(5 * time.Second)
		p.Leased(8, time.Now(), time.Hour)
		next := brkGrant(2, 4)
		next.Lease = 8
		if err := p.Grant(next); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		last := e.Accept(t)
		last.Headers()
		last.Emit(3)
		last.Finish("stop")
		stays.Finish("stop")
		settle()
		g.wantCode(unseen, "")
		g.wantCode(first, "")
		if text := gjson.Get(unseen.text(), "choices.0.message.content").String(); text != "w1 w2 w3 " {
			t.Errorf("got %q", text)
		}
		g.wantEmpty()
		events := g.events()
		if got, want := story(events, seen.id), "ended(reclaimed) "; !strings.Contains(got, want) {
			t.Errorf("story %s", got)
		}
	})
}

// TestNothingIsOverdueUnderALease: renewals go on, and nothing is ended.
func TestNothingIsOverdueUnderALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 1}},
			pool:    func(c *Config) { c.Replica, c.ClockDrift, c.IdleTimeout = brkID, 0.02, time.Hour },
		})
		pass(time.Second)
		p := g.pool
		p.Leased(7, time.Now(), 6*time.Second)
		grant := brkGrant(1, 1)
		grant.Residual = 10 * time.Second
		if err := p.Grant(grant); err != nil {
			t.Fatal(err)
		}
		c := g.serve("interactive", sent(true, ""))
		call := g.engines[0].Accept(t)
		call.Headers()
		for range 60 {
			pass(2 * time.Second)
			p.Leased(7, time.Now(), 6*time.Second)
		}
		g.wantCode(c, "running")
		if r := p.Report(); r.Residual < 10*time.Second {
			t.Errorf("it asks for %s for what it runs", r.Residual)
		}
		call.Emit(1)
		call.Finish("stop")
		settle()
		g.wantCode(c, "")
	})
}

// TestRemarksOfAGrant: a grant of nothing is one, and so is one of a leader with another
// configuration; what is to be known of it is said.
func TestRemarksOfAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{
			engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4}},
			pool:    func(c *Config) { c.Replica, c.ClockDrift, c.Fingerprint = brkID, 0.02, "aaaa" },
		})
		pass(time.Second)
		p := g.pool
		p.Leased(7, time.Now(), time.Hour)
		take := func(rev uint64, slots int64, fingerprint string) string {
			t.Helper()
			v := brkGrant(rev, slots)
			v.Fingerprint = fingerprint
			if err := p.Grant(v); err != nil {
				t.Fatal(err)
			}
			if err := p.Ready(); err != nil {
				t.Error(err)
			}
			return strings.Join(p.Problems(), "; ")
		}
		if got := take(1, 4, "aaaa"); got != "" {
			t.Errorf("says %q", got)
		}
		if got := take(2, 0, "aaaa"); got != "pool main: the grant gives 0 slots: what comes waits until other replicas give some" {
			t.Errorf("says %q", got)
		}
		if got := take(3, 4, "bbbb"); got != "pool main: the fleet's leader has another configuration of it: its fingerprint is bbbb, this replica's aaaa" {
			t.Errorf("says %q", got)
		}
		if r := p.Report(); r.Fingerprint != "aaaa" {
			t.Errorf("reports %q", r.Fingerprint)
		}
	})
}
