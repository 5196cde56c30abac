package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
)

var brkID = control.ID{Replica: "a", Boot: "b"}

func brkGrant(rev uint64, slots int64) *control.Grant {
	return &control.Grant{Pool: "main", ID: brkID, Lease: 7, Epoch: 1, Rev: rev, Accounts: []control.Account{{Engine: "e0", Amount: admission.Of(slots, 1<<20)}}}
}

func brkRig(t *testing.T, slots int) *rig {
	return newRig(t, options{engines: []enginetest.Options{{Kind: engine.VLLM, Slots: slots}}, pool: func(c *Config) { c.Replica, c.ClockDrift = brkID, 0.02 }})
}

// A renewal after a lapse: the holder says that the grant is in force, the core admits nothing.
func TestFleetLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := brkRig(t, 4)
		pass(time.Second)
		p := g.pool
		p.Leased(7, time.Now(), 6*time.Second)
		if err := p.Grant(brkGrant(1, 4)); err != nil {
			t.Fatal(err)
		}
		pass(5900 * time.Millisecond)                                     // 0.98*6 = 5.88
		p.Leased(7, time.Now().Add(-200*time.Millisecond), 6*time.Second) // the answer to a renewal
		h, _ := p.Held()
		c := g.serve("interactive", sent(true, ""))
		for range 20 {
			pass(time.Second)
			p.Leased(7, time.Now(), 6*time.Second)
		}
		r := p.Report()
		c.mu.Lock()
		n := len(c.decisions)
		c.mu.Unlock()
		if n == 0 {
			t.Errorf("in force %v, reported rev %d, why %v: 20 s later not admitted; waiting %d short %v", h.InForce, r.Rev, p.grantedLocked(), r.Classes[0].Waiting, r.Classes[0].Short)
		}
		c.cancel()
		settle()
	})
}

// A grant that comes in the lapse is lost for good.
func TestFleetGrantInLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := brkRig(t, 4)
		pass(time.Second)
		p := g.pool
		p.Leased(7, time.Now(), 6*time.Second)
		_ = p.Grant(brkGrant(1, 4))
		pass(5900 * time.Millisecond)
		t.Log(p.Grant(brkGrant(2, 1)))
		p.Leased(7, time.Now().Add(-200*time.Millisecond), 6*time.Second)
		h, _ := p.Held()
		t.Logf("goes by grant %d in force %v; reports %d", h.Grant.Rev, h.InForce, p.Report().Rev)
	})
}

// slots change by a reload while requests run.
func TestFleetReloadSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := brkRig(t, 4)
		pass(time.Second)
		p := g.pool
		p.Leased(7, time.Now(), time.Hour)
		_ = p.Grant(brkGrant(1, 4))
		settle()
		var cs []*client
		for range 4 {
			cs = append(cs, g.serve("interactive", sent(true, "")))
		}
		next := p.cfg
		ec := g.engines[0].Config()
		ec.Capabilities.Slots = 5
		next.Engines = []Engine{{Name: "e0", Key: "slots 5", ObserveEvery: observeEvery, Priority: []int{0}, Open: func() (engine.Adapter, error) { return adapters.New(ec.Kind, ec) }}}
		ch, err := p.Prepare(next)
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.Commit(); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		for range 4 {
			cs = append(cs, g.serve("interactive", sent(true, "")))
		}
		pass(time.Second)
		n := 0
		for _, c := range cs {
			c.mu.Lock()
			n += len(c.decisions)
			c.mu.Unlock()
		}
		r := p.Report()
		for _, e := range r.Engines {
			t.Logf("reports engine %s total %v used %v", e.Engine, e.Total, e.Used)
		}
		if n > 4 {
			t.Errorf("%d admitted and running under a grant of 4", n)
		}
		for _, c := range cs {
			c.cancel()
		}
		settle()
	})
}
