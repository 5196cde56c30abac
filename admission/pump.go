package admission

import "math/bits"

// pump admits whatever can be admitted now: first demand within a floor, then
// demand that has to borrow, each in the table's order.
//
// One admission can make way for another: once a class uses all that is never
// lent of its own, the boundary is there for those who had to leave it free. So
// whoever was refused before something was admitted is asked again.
func (c *Core) pump() {
	c.held, c.spared, c.share.stirred = false, 0, true
	if c.bypass {
		c.pass()
		return
	}
	for again := true; again; {
		again = false
		c.blockIn, c.blockOut, c.share.beyond, c.share.within = 0, 0, 0, 0
		for k := range eachClass(c.waiting) {
			blocked := c.blockIn
			again = c.serve(k, false) && blocked != 0 || again
		}
		again = again || c.blockIn != 0 && c.reclaimable() && c.reclaim(c.blockIn&^c.spared)
	}
	for again := true; again; {
		for k := range eachClass(c.waiting &^ c.blockIn) {
			c.serve(k, true)
		}
		again = c.unkeep()
	}
	if c.held {
		// What the guard refuses depends on the time, in more ways than are worth
		// computing.
		c.wake(c.now + guardEvery)
	}
	if c.waiting != 0 {
		for k := range eachClass(c.guarded | c.settles) {
			c.wake(c.looks(&c.classes[k]))
		}
	}
}

// unkeep opens the lending of a class that keeps its floor and uses nothing of it,
// and whose own head, beyond it, waits for what others wait for: or they would wait
// for each other. So does one whose head needs more than this core has, and waits for a
// larger share. It reports whether there was one.
func (c *Core) unkeep() (opened bool) {
	if c.pause {
		return false
	}
	for k := range eachClass(c.blockOut | c.share.beyond) {
		if cl := &c.classes[k]; !cl.open && cl.used == (Amount{}) {
			cl.open, cl.opened, opened = true, c.now, true
			c.refresh(k)
			c.wake(cl.peak.falls())
			c.emit(Effect{Op: Stage, Cause: CauseLendingOpened, Class: k})
		}
	}
	if opened {
		c.blockOut = 0
	}
	return opened
}

// guardEvery is how often those whom the guard refuses are looked at again.
const guardEvery = Time(250e6)

// mayBorrow is the barrier: nobody borrows while demand within a floor waits or
// lending is paused, and a class does not borrow past an earlier one that waits for
// the same idle capacity.
func (c *Core) mayBorrow(k Class) bool {
	return c.blockIn == 0 && c.blockOut&(bit(k)-1) == 0 && !c.pause && !c.barred(k)
}

// seek looks for a place for the first request of class k. Demand within the
// class's floor that finds none closes its lending, which may be enough, and
// recalls what it lent.
func (c *Core) seek(k Class, slot int32) fitting {
	cl := &c.classes[k]
	f := c.fit(cl, &c.requests[slot])
	if (f.refusal == refusedFull || f.refusal == refusedHeld || f.refusal == refusedShare && c.knows()) && f.within && !c.soon(cl, &c.requests[slot]) && !c.asksAny(cl, &c.requests[slot]) && c.recallFor(k, slot, f.amount) {
		f = c.fit(cl, &c.requests[slot])
	}
	return f
}

// serve admits from the head of one queue for as long as it can, and reports
// whether it did.
func (c *Core) serve(k Class, borrow bool) (admitted bool) {
	cl := &c.classes[k]
	for ; cl.queue.head != none; admitted = true {
		c.relegate(cl)
		slot := cl.queue.head
		if q := &c.requests[slot]; q.late && c.atOthers(k).InTime && !c.late(cl, slot) {
			return admitted // what is here is for those who can be in time
		}
		f := c.seek(k, slot)
		if !f.ok {
			c.held = c.held || f.stalls
			if f.within && cl.recall.open {
				c.stay(cl, &f)
			}
			if f.refusal == refusedShare || f.refusal == refusedCeiling && !f.amount.within(cl.ceiling) {
				if f.within && c.knows() {
					c.share.within |= bit(k)
				} else {
					c.share.beyond |= bit(k)
				}
			}
			if next, g := c.passer(k, &f, borrow); next != none {
				c.stay(cl, &f)
				if !c.apartFrom(cl, &g) {
					cl.queue.pass.tokens += g.amount[KV]
				}
				slot, f = next, g
			}
		}
		switch {
		case f.ok && f.loan && !(borrow && c.mayBorrow(k)):
			if borrow {
				c.blockOut |= bit(k)
			}
			return admitted
		case f.ok:
			c.turn(&c.requests[slot])
			c.unqueue(slot)
			cl.pace.served(c.now, cl.queue.n)
			c.admit(slot, &f)
		case f.refusal == refusedStall && c.split(k, slot, borrow):
		case f.refusal < refusedPaired:
			// Nothing that another class gives back would help.
			return admitted
		case f.within:
			c.blockIn |= bit(k)
			return admitted
		default:
			if borrow {
				c.blockOut |= bit(k)
			}
			return admitted
		}
	}
	return admitted
}

// pace learns how often a backlogged class gets to start a request, from which
// a refused one is told when to come back.
type pace struct {
	last    Time // when it last served from a queue that stayed non-empty
	every   Time // exponentially weighted interval
	samples int
}

const (
	// minPace is how many intervals must have been seen before a hint is given:
	// absent beats invented.
	minPace = 4
	maxHint = Time(600e9)
)

// served notes that a queue with left requests remaining has just been served.
func (p *pace) served(now Time, left int) {
	if p.last != 0 {
		gap := now - p.last
		if p.samples == 0 {
			p.every = gap
		} else {
			p.every += (gap - p.every) / 8
		}
		p.samples++
	}
	p.last = 0
	if left > 0 {
		p.last = now
	}
}

// forecast is in how long a place behind waiting requests should be free; 0 is
// not known.
func (p *pace) forecast(now Time, waiting int) Time {
	if p.samples < minPace {
		return 0
	}
	every := p.every
	if p.last != 0 {
		every = max(every, now-p.last)
	}
	return max(min(min(every, maxHint)*Time(waiting+1), maxHint), 1)
}

// hint is the forecast for one who is refused, up to a quarter more so that those
// who are told the same do not return together; 0 is no hint.
func (p *pace) hint(now Time, waiting int, id ID) Time {
	t := p.forecast(now, waiting)
	// Fibonacci hashing spreads neighbouring ids over the whole range.
	spread := Time(bits.RotateLeft64(uint64(id)*0x9E3779B97F4A7C15, 32) % 1024)
	return t + t/4*spread/1024
}
