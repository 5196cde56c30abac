package admission

import (
	"slices"
	"testing"
	"time"
)

// checkOwn holds the stall guard against what limits of requests' own may do to it:
// they only ever make it stricter, and only for a request that is served within its
// class's floor, whose limit is tighter than the class's and can be kept, on the
// engine where that is so.
func (w *world) checkOwn(after *Snapshot) {
	c := w.core
	bare := *c
	bare.requests = slices.Clone(c.requests)
	for i := range bare.requests {
		bare.requests[i].first = 0
	}
	for k := range c.classes {
		p := &c.classes[k]
		paced := 0
		for i := range c.holds {
			if h := &c.holds[i]; h.state != holdFree && int(h.class) == k && h.token > 0 {
				paced++
			}
		}
		if paced != p.paced {
			w.t.Fatalf("class %s: %d holds have a limit of their own per token, %d are counted", p.spec.Name, paced, p.paced)
		}
		for e := range c.engines {
			en := &c.engines[e]
			ahead, bear, waits := c.stalled(p, Class(k), en)
			ahead0, bear0, waits0 := bare.stalled(p, Class(k), en)
			if ahead != ahead0 || waits != waits0 || bear > bear0 {
				w.t.Fatalf("class %s on %s: with limits of their own it can be held up for %v (%v, %v), without for %v (%v, %v):\n%v",
					p.spec.Name, en.spec.Name, time.Duration(bear), time.Duration(ahead), waits, time.Duration(bear0), time.Duration(ahead0), waits0, after)
			}
			if bear < bear0 && !w.mayTighten(p, Class(k), en) {
				w.t.Fatalf("class %s on %s: no request of it may ask for more than the class, and %v has become %v:\n%v",
					p.spec.Name, en.spec.Name, time.Duration(bear0), time.Duration(bear), after)
			}
			if p.spec.Objective.Token == 0 && !c.paces(p, en, 1) {
				w.t.Fatalf("class %s has no limit per token, and guards one:\n%v", p.spec.Name, after)
			}
		}
	}
}

// mayTighten tells whether there is such a request.
func (w *world) mayTighten(p *class, k Class, en *engine) bool {
	c := w.core
	ok := func(q *request, start Time) bool {
		return q.first > 0 && q.first < p.spec.Objective.First && start <= Time(q.first)
	}
	if i := p.queue.head; i != none {
		q := &c.requests[i]
		amount, _, _ := c.price(p, en, q)
		if ok(q, c.now-q.arrived) && p.used.add(amount).within(p.floor) {
			return true
		}
	}
	for _, i := range en.starting {
		h := &c.holds[i]
		if h.class == k && h.req != 0 && !h.loan {
			if q := &c.requests[h.req.Slot()]; ok(q, c.now-q.arrived) {
				return true
			}
		}
	}
	return false
}

func TestObjectiveWith(t *testing.T) {
	const ms = time.Millisecond
	class := Objective{First: 2000 * ms, Token: 50 * ms, Whole: 10_000 * ms}
	for _, c := range []struct {
		of           Objective
		first, token time.Duration
		want         Objective
	}{
		{class, 0, 0, class},
		{class, 300 * ms, 0, Objective{300 * ms, 50 * ms, 10_000 * ms}},
		{class, 0, 200 * ms, Objective{2000 * ms, 200 * ms, 10_000 * ms}},
		{class, 20_000 * ms, 0, Objective{10_000 * ms, 50 * ms, 10_000 * ms}},
		{class, -1, -1, class},
		{Objective{}, 300 * ms, 20 * ms, Objective{First: 300 * ms, Token: 20 * ms}},
	} {
		if got := c.of.With(c.first, c.token); got != c.want {
			t.Errorf("%+v with %v and %v is %+v, want %+v", c.of, c.first, c.token, got, c.want)
		}
	}
}

// A tenant whose limits can't be kept is late with every request. Its starts are not
// the turns of others' late ones, who would wait for ever behind their own tenant's.
func TestOwnLimitsTakeNobodysTurn(t *testing.T) {
	interactive := cls("interactive", 1, 1)
	interactive.Objective.First = time.Second
	b := newScripted(t, &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{interactive}})
	slot := uint32(0)
	ask := func(tenant Tenant, first time.Duration) uint32 {
		slot++
		b.step(&Event{Kind: Offer, ID: MakeID(1, slot), Tenant: tenant, Prompt: 10, Out: 10, N: 1, First: first})
		return slot
	}
	running := ask(1, 0)
	old := ask(1, 0)
	b.to(1500 * ms) // old is late
	for b.now < 20*sec && !b.adm[old] {
		b.to(b.now + 100*ms)
		for n := 0; n < 2; n++ {
			ask(1, 0) // one of the two can still be in time
			ask(2, time.Millisecond)
		}
		before := slot
		b.end(running, CauseFinished, FlagReleased, 10)
		running = 0
		for i := uint32(1); i <= before; i++ {
			if _, over := b.done[i]; b.adm[i] && !over {
				running = i
			}
		}
		if running == 0 {
			t.Fatalf("nobody runs:\n%s", b.c.Snapshot())
		}
	}
	if !b.adm[old] {
		t.Errorf("a late request of another tenant has waited for %v, six times its limit and more:\n%s", time.Duration(b.now), b.c.Snapshot())
	}
}
