package admission

// A floor is owed at every moment, or per window. A class with a window gives
// way entirely while others need what it could have, and is made good for it:
// the core keeps the debt, what the floor would have served the class and it has
// not been served, in slot-time. A debt of half a window's service is called: the
// class is due, and its floor is then kept for it like any other's, until the
// debt has been paid down to a quarter. Slots alone are counted, since a floor
// of KV serves nobody without one.
//
//	debt' = min(F, used + waiting) - used,   within 0 and F x window
//
// So a class that always has work is never further behind than half a window,
// one start and the time that others' work takes to make room, and over the long
// run gets its floor's worth. What it was served beyond its floor is no credit:
// it was idle capacity, and nobody lent it against later.
//
// Alternatives: a floor at every moment costs every returning request what the
// owed work does to it, at the worst moment as often as at the best; a share of
// tokens instead of slot-time would make a class pay for the engine being slow;
// paying the debt down to nothing serves it in one long stretch, through which
// the protected class has its smaller part of the engine.
type guarantee struct {
	debt Time // slot-ns
	at   Time // of the debt
	due  bool
}

// calledAt and paidAt are the debts, as parts of a window's service, at which a
// class comes to be due and no longer is.
const (
	calledAt = 2
	paidAt   = 4
	creditTo = 2
)

// owing is how fast a class's debt grows, in slots.
func (cl *class) owing() Time {
	return Time(min(cl.spec.Floor[Slots], cl.used[Slots]+int64(cl.queue.n)) - cl.used[Slots])
}

// overdue tells that a due class has found no harmless moment for so long that
// it can't be put off any more.
func (cl *class) overdue() bool {
	full := Time(cl.spec.Window) * Time(cl.spec.Floor[Slots])
	return cl.owed.due && cl.owed.debt >= full/8*7
}

// accrue brings a class's debt up to the present. It is called before anything
// changes that the debt depends on.
func (c *Core) accrue(cl *class) {
	g := &cl.owed
	if cl.spec.Window == 0 || g.at == c.now {
		g.at = c.now
		return
	}
	full := Time(cl.spec.Window) * Time(cl.spec.Floor[Slots])
	g.debt = min(max(g.debt+(c.now-g.at)*cl.owing(), -full/creditTo), full)
	g.at = c.now
}

// call makes a class due when its debt is called, or ends that, and asks for a
// tick at the next such moment. It reports whether anything changed.
func (c *Core) call(k Class) bool {
	cl := &c.classes[k]
	if cl.spec.Window == 0 {
		return false
	}
	c.accrue(cl)
	g := &cl.owed
	full := Time(cl.spec.Window) * Time(cl.spec.Floor[Slots])
	due := g.debt >= full/4*3 && full > 0 || g.due && g.debt > full/2
	if changed := due != g.due; changed {
		g.due = due
		c.setFloors()
		c.dueIn(cl)
		return true
	}
	c.dueIn(cl)
	return false
}

// undo takes back from a class's service what a reclaim makes it do again.
func (c *Core) undo(h *hold) {
	cl := &c.classes[h.class]
	if cl.spec.Window == 0 {
		return
	}
	c.accrue(cl)
	full := Time(cl.spec.Window) * Time(cl.spec.Floor[Slots])
	again := min(c.now-h.admitted, c.engines[h.engine].timing.prefillTime(h.prompt+h.out))
	cl.owed.debt = min(cl.owed.debt+again, full)
}

// dueIn asks for a tick when a class's debt is next called or paid.
func (c *Core) dueIn(cl *class) {
	full := Time(cl.spec.Window) * Time(cl.spec.Floor[Slots])
	rate := cl.owing()
	switch g := &cl.owed; {
	case full == 0:
	case !g.due && rate > 0:
		c.wake(c.now + (full/4*3-g.debt+rate-1)/rate)
	case g.due && rate < 0:
		c.wake(c.now + (g.debt-full/2-rate-1)/-rate)
	}
}

// setFloors derives what is owed to each class now. A window's service comes out
// of the others' floors while it is due, of those of the last class first, and
// never out of what is never lent.
func (c *Core) setFloors() {
	over := Amount{}.sub(c.whole)
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.floor = cl.spec.Floor; cl.spec.Window > 0 && !cl.owed.due {
			cl.floor = Amount{}
		}
		over = over.add(cl.floor)
	}
	for k := len(c.classes) - 1; k >= 0; k-- {
		cl := &c.classes[k]
		if cl.spec.Window > 0 {
			continue
		}
		for r := range NumResources {
			cut := max(0, min(over[r], cl.floor[r]-cl.spec.Unlent[r]))
			cl.floor[r] -= cut
			over[r] -= cut
		}
	}
	for k := range c.classes {
		c.refresh(Class(k))
	}
}
