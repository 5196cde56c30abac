package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/engine"
	"headgate/engine/enginetest"
)

// fleetRig is a pool that has, for an hour, a part of e0's four slots: interactive has a
// floor of two.
func fleetRig(t *testing.T, before func(*enginetest.Engine)) *rig {
	interactive, batch := loose("interactive"), loose("batch")
	interactive.Floor = admission.Of(2, 4096)
	g := newRig(t, options{
		engines: []enginetest.Options{{Kind: engine.VLLM, Slots: 4}}, classes: []admission.ClassSpec{interactive, batch}, before: before,
		pool: func(c *Config) { c.Replica, c.ClockDrift = brkID, 0.02 },
	})
	pass(time.Second)
	g.pool.Leased(7, time.Now(), time.Hour)
	grant := brkGrant(1, 3)
	grant.Classes = []control.ClassGrant{{Class: "interactive", Floor: admission.Of(1, 2048)}}
	if err := g.pool.Grant(grant); err != nil {
		t.Fatal(err)
	}
	return g
}

// newsOf is what a leader says of another replica's interactive.
func newsOf(epoch, seq uint64, change func(*control.ClassNews)) *control.News {
	row := control.ClassNews{ID: control.ID{Replica: "other", Boot: "b"}, Class: "interactive", Away: control.Away{Offered: 1, Pending: -1, Pressed: -1, Starting: -1}}
	change(&row)
	return &control.News{Pool: "main", Epoch: epoch, Seq: seq, Engines: []control.EngineNews{{Engine: "e0"}}, Classes: []control.ClassNews{row}}
}

func within(c *control.ClassNews) { c.Within, c.Wants, c.Waiting = true, true, 1 }
func idle(*control.ClassNews)     {}

func (c *client) admitted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.decisions) > 0
}

// TestToldOfOthers: nobody borrows while a request waits within a floor at another
// replica; what comes late, or of an earlier leader, changes nothing.
func TestToldOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fleetRig(t, nil)
		p := g.pool
		if r := p.Report(); r.News != 0 {
			t.Errorf("reports that its core was told %d, before anything was", r.News)
		}
		p.Told(newsOf(2, 5, within), time.Now())
		c := g.serve("batch", sent(true, ""))
		for _, late := range []*control.News{newsOf(2, 4, idle), newsOf(2, 5, idle), newsOf(1, 6, idle)} {
			p.Told(late, time.Now())
		}
		if r := p.Report(); r.News != 5 || c.admitted() {
			t.Errorf("reports that its core was told %d, want 5; batch borrows while another waits within the floor: %v", r.News, c.admitted())
		}
		p.Told(newsOf(3, 1, idle), time.Now())
		settle()
		if r := p.Report(); r.News != 1 || !c.admitted() {
			t.Errorf("reports that its core was told %d, want 1; batch runs: %v", r.News, c.admitted())
		}
		c.cancel()
		settle()
	})
}

// TestToldOfAnEarlierLeader: whose successor has granted something is not listened to.
func TestToldOfAnEarlierLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fleetRig(t, nil)
		next := brkGrant(1, 3)
		next.Epoch = 2
		if err := g.pool.Grant(next); err != nil {
			t.Fatal(err)
		}
		g.pool.Told(newsOf(1, 9, within), time.Now())
		if r := g.pool.Report(); r.News != 0 {
			t.Errorf("reports that its core was told %d", r.News)
		}
	})
}

// TestToldNoMore: when the lease is over nobody says what the others do, and the report
// does not say that the core knows.
func TestToldNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fleetRig(t, nil)
		g.pool.Told(newsOf(1, 1, within), time.Now())
		if r := g.pool.Report(); r.News != 1 {
			t.Fatalf("reports that its core was told %d, want 1", r.News)
		}
		g.pool.Unleased()
		if r := g.pool.Report(); r.News != 0 {
			t.Errorf("without a lease it reports that its core was told %d", r.News)
		}
	})
}

// TestToldBeforeTheEngine: news may come before any engine has answered. The core is then
// told as of when they came: that demand did not fit within the core's time closes the
// class's lending, as demand here does.
func TestToldBeforeTheEngine(t *testing.T) {
	for ago, closes := range map[time.Duration]bool{500 * time.Millisecond: true, 4 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			g := fleetRig(t, func(e *enginetest.Engine) { e.Answer("/health", 503, "") })
			p := g.pool
			p.Told(newsOf(1, 1, func(c *control.ClassNews) { c.Pressed = ago }), time.Now()) // a second after its start
			if p.Report() != nil {
				t.Fatal("there is a core already")
			}
			pass(5 * time.Second)
			g.engines[0].Answer("/health", 0, "")
			pass(2 * observeEvery)
			if r := p.Report(); r == nil || r.News != 1 {
				t.Fatalf("reports %+v, want that its core was told 1", r)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if c := p.core.Snapshot().Classes[0]; c.Lending == closes {
				t.Errorf("demand did not fit elsewhere %v before that was told, and interactive lends: %v", ago, c.Lending)
			}
		})
	}
}

// TestWantsWithin: what may wait is asked for once, then.
func TestWantsWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(&Config{Name: "main", Replica: brkID})
		count := func() (n int) {
			for {
				synctest.Wait()
				select {
				case <-f.wants:
					n++
				default:
					return n
				}
			}
		}
		f.want(50 * time.Millisecond)
		pass(20 * time.Millisecond)
		f.want(50 * time.Millisecond)
		if n := count(); n != 0 {
			t.Errorf("%d reports are wanted at once", n)
		}
		f.want(0)
		if n := count(); n != 1 {
			t.Errorf("%d reports are wanted, want 1 at once", n)
		}
		pass(30 * time.Millisecond)
		if n := count(); n != 1 {
			t.Errorf("%d reports are wanted after 50 ms, want 1", n)
		}
		pass(time.Second)
		if n := count(); n != 0 {
			t.Errorf("%d reports are wanted afterwards", n)
		}
	})
}
