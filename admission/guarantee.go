package admission

// A floor is owed at every moment, or per window. A class with a window gives
// way entirely while others need what it could have, and is made good for it:
// the core keeps the debt, what the floor would have served the class while it
// had work and it has not been served, in slot-time.
//
//	debt' = min(F, used + waiting) - used,   from -F x window/2 to F x window
//
// plus what a reclaim makes it do again. A debt of three quarters of a window's
// service is called: the class is due. Its floor is then kept for it, out of those
// of classes to which theirs is owed at every moment, until the debt is down to
// half; and it starts whenever nobody protected waits for a first token, or, from
// seven eighths on, at once. Slots alone are counted, since a floor of KV serves
// nobody without one.
//
// So a class that always has work gets its floor's worth over the long run, and
// never falls behind it by more than a window's, the time that others' work takes
// to make room, and one start. What it is served beyond its floor is credit for
// half a window: enough for a pause that follows a time of plenty.
//
// Alternatives: a floor at every moment costs every returning request what the
// owed work does to it, at the worst moment as often as at the best; a share of
// tokens instead of slot-time would make a class pay for the engine being slow;
// paying the debt down to nothing serves it in one long stretch, through which
// the protected class has its smaller part of the engine; no credit calls the debt
// in the middle of a burst that came after minutes of lending.
type guarantee struct {
	debt Time // slot-ns
	at   Time // of the debt
	due  bool
}

// called, paid and overdue are debts at which a class comes to be due, no longer
// is, and can't be put off any more; credit is the smallest.
func (cl *class) called() Time  { return cl.service() / 4 * 3 }
func (cl *class) paid() Time    { return cl.service() / 2 }
func (cl *class) overdue() bool { return cl.owed.due && cl.owed.debt >= cl.service()/8*7 }
func (cl *class) credit() Time  { return -cl.service() / 2 }

// owing is how fast a class's debt grows, in slots.
func (c *Core) owing(cl *class) Time {
	o := c.atOthers(cl.id)
	used := cl.used[Slots] + o.Used[Slots]
	return Time(min(cl.entire[Slots], used+int64(cl.queue.n+o.Waiting)) - used)
}

// accrue brings a class's debt up to the present. It is called before anything
// changes that the debt depends on.
func (c *Core) accrue(cl *class) {
	g := &cl.owed
	if cl.spec.Window == 0 || g.at == c.now {
		g.at = c.now
		return
	}
	g.debt, g.at = c.debtAt(cl, c.now), c.now
}

// debtAt is a class's debt at now, if nothing has changed since it was last
// brought up to date.
func (c *Core) debtAt(cl *class, now Time) Time {
	return min(max(cl.owed.debt+(now-cl.owed.at)*c.owing(cl), cl.credit()), cl.service())
}

// service is a window's service, in slot-ns.
func (cl *class) service() Time { return Time(cl.spec.Window) * Time(cl.entire[Slots]) }

// call makes a class due when its debt is called, or ends that, and asks for a
// tick at the next such moment.
func (c *Core) call(k Class) {
	cl := &c.classes[k]
	if cl.spec.Window == 0 {
		return
	}
	c.accrue(cl)
	g := &cl.owed
	due := cl.service() > 0 && (g.debt >= cl.called() || g.due && g.debt > cl.paid())
	if due != g.due {
		g.due = due
		c.setFloors()
		// What it runs beyond what it is owed now is on loan from the others, and
		// what it is owed is not.
		c.expose(k)
		c.absorb(k)
	}
	c.dueIn(cl)
}

// undo takes back from a class's service what a reclaim makes it do again.
func (c *Core) undo(h *hold) {
	cl := &c.classes[h.class]
	if cl.spec.Window == 0 {
		return
	}
	c.accrue(cl)
	again := min(c.now-h.admitted, c.engines[h.engine].timing.prefillTime(h.prompt+h.out))
	cl.owed.debt = min(cl.owed.debt+again, cl.service())
	c.dueIn(cl)
}

// forgive ends the debt to a class that has nothing left to do: what nobody waits
// for any more is not owed.
func (c *Core) forgive(k Class) {
	cl := &c.classes[k]
	c.accrue(cl)
	if cl.owed.debt = min(cl.owed.debt, 0); cl.owed.due {
		c.call(k)
	}
}

// dueIn asks for a tick when a class's debt is next called or paid.
func (c *Core) dueIn(cl *class) {
	rate, debt := c.owing(cl), c.debtAt(cl, c.now)
	switch g := &cl.owed; {
	case cl.service() == 0:
	case !g.due && rate > 0:
		c.wake(c.now + (cl.called()-debt+rate-1)/rate)
	case g.due && rate > 0 && debt < cl.service()/8*7:
		c.wake(c.now + (cl.service()/8*7-debt+rate-1)/rate)
	case g.due && rate < 0:
		c.wake(c.now + (debt-cl.paid()-rate-1)/-rate)
	}
}

// setFloors derives what is owed to each class now. A window's service comes out
// of the others' floors while it is due, of those of the last class first, and
// never out of what is never lent. It is no more than the class has work for.
func (c *Core) setFloors() {
	over := Amount{}.sub(c.whole)
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.entire, cl.unlent = cl.spec.Floor, cl.spec.Unlent; c.knows() {
			cl.entire, cl.unlent = cl.entire.max(cl.spec.Whole), cl.unlent.max(cl.spec.WholeUnlent)
		}
		if cl.floor = cl.entire; cl.spec.Window > 0 {
			cl.floor = c.dueFloor(cl, cl.used.add(c.atOthers(Class(k)).Used), cl.queue.n+c.atOthers(Class(k)).Waiting, cl.entire)
		}
		over = over.add(cl.floor)
	}
	for k := len(c.classes) - 1; k >= 0; k-- {
		cl := &c.classes[k]
		if cl.spec.Window > 0 {
			continue
		}
		for r := range NumResources {
			cut := max(0, min(over[r], cl.floor[r]-cl.unlent[r]))
			cl.floor[r] -= cut
			over[r] -= cut
		}
	}
	for k := range c.away.Classes {
		if !c.knows() {
			break
		}
		// What of it is the others' is not kept here.
		cl, o := &c.classes[k], c.atOthers(Class(k))
		if cl.floor = cl.floor.sub(o.Protected).max(Amount{}); cl.spec.Window > 0 {
			cl.floor = c.ownDue(cl)
		}
	}
	for k := range c.classes {
		c.refresh(Class(k))
	}
}

// ownDue is the part of a windowed floor that this core serves: what others do not.
func (c *Core) ownDue(cl *class) Amount {
	return c.dueFloor(cl, cl.used, cl.queue.n, cl.entire.sub(c.atOthers(cl.id).Protected).max(Amount{}))
}

// dueFloor is the floor of a windowed class: nothing unless it is due, no more
// slots than it has work for, and at least the KV that its first request needs,
// since a slot without it would serve nobody.
func (c *Core) dueFloor(cl *class, used Amount, waiting int, f Amount) Amount {
	if i := cl.queue.head; i != none {
		waiting = max(waiting, int(c.requests[i].n)) // one of several sequences wants them all
	}
	f[Slots] = min(f[Slots], used[Slots]+int64(waiting))
	if !cl.owed.due || f[Slots] == 0 {
		return Amount{}
	}
	if i := cl.queue.head; i != none && cl.used[Slots] < f[Slots] {
		q := &c.requests[i]
		for e := range c.engines {
			en := &c.engines[e]
			if why, _, _ := en.misfit(cl, q); why == CauseNone && !en.spec.Closed {
				amount, _, _ := c.price(cl, en, q)
				f[KV] = min(max(f[KV], cl.used[KV]+amount[KV]), cl.most[KV])
			}
		}
	}
	return f
}

// redue keeps a due class's floor to what it has work for.
func (c *Core) redue(cl *class) {
	if cl.owed.due && cl.floor != c.ownDue(cl) {
		c.setFloors()
	}
}
