package admission

// Chance is what a request would meet if it were offered now.
type Chance uint8

const (
	// ChanceNone: it would be refused for good, or would wait for what another share of
	// the same engines would not give it either: the stall guard, or an engine; or it may
	// start past others that wait, and nobody knows before.
	ChanceNone Chance = iota
	// ChanceNow: it would be admitted at once, and nothing ended for it.
	ChanceNow
	// ChanceShort: it would wait for capacity, or be refused because it can't, or loans would
	// be ended for it.
	ChanceShort
)

// Chance tells what an Offer would meet, and appends to needs what the request would
// hold on each engine, by the table's index; zero where it can't run. The event's ID
// and Tenant do not matter. It changes nothing.
//
// Alternatives: to offer it and to take it back if it waits would open recalls, teach
// the core a request that never was, and tell the leader of demand that goes away.
func (c *Core) Chance(now Time, ev *Event, needs []Amount) (Chance, []Amount) {
	was := c.now
	c.now = max(c.now, now)
	defer func() { c.now = was }()
	cl, q := &c.classes[ev.Class], c.asked(ev)
	if why, _, _ := c.feasible(cl, &q); why != CauseNone || c.drain || c.bypass || cl.spec.Closed || c.allDown(ev.Barred) {
		return ChanceNone, needs
	}
	for e := range c.engines {
		var need Amount
		if f, ok := c.fitOn(cl, &c.engines[e], &q); ok {
			need = f.amount
		}
		needs = append(needs, need)
	}
	f := c.fit(cl, &q)
	if (f.refusal == refusedFull || f.refusal == refusedHeld) && f.within && c.lends(cl) {
		// Its class may have all of its floor as soon as it asks for it.
		open, hold, promised := cl.open, cl.hold, c.promised
		cl.open = false
		c.refresh(ev.Class)
		f = c.fit(cl, &q)
		cl.open, cl.hold, c.promised = open, hold, promised
	}
	switch {
	case f.refusal == refusedEngine, f.refusal == refusedWhole, f.refusal == refusedStall:
		return ChanceNone, needs
	case f.ok && cl.queue.head == none && (!f.loan || c.mayBorrow(ev.Class)):
		return ChanceNow, needs
	case f.ok && cl.queue.head != none:
		// It has room, and may pass those that wait.
		return ChanceNone, needs
	}
	return ChanceShort, needs
}

// asked is an offered request that has no place yet.
func (c *Core) asked(ev *Event) request {
	return request{
		class: ev.Class, tenant: ev.Tenant, prompt: max(ev.Prompt, 0), out: ev.Out, declared: ev.Out >= 0,
		whole: ev.Flags&FlagWhole != 0, unsplit: ev.Flags&FlagUnsplit != 0, begun: ev.Flags&FlagBegun != 0, cached: min(max(ev.Cached, 0), max(ev.Prompt, 0)), home: ev.Engine,
		barred: ev.Barred, session: ev.Session, n: max(ev.N, 1), hold: none, arrived: c.now, waits: c.now,
		first: min(max(ev.First, 0), maxDuration), token: min(max(ev.Token, 0), maxDuration),
		line: none, prev: none, next: none, longer: none, later: none,
	}
}
