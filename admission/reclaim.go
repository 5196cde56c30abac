package admission

import (
	"cmp"
	"slices"
)

// reclaim ends loans for the heads of the classes in set, which wait within
// their floors, as the borrowing classes' modes allow. It reports whether a head
// may be admitted beside what was ended: an engine that acts between steps takes
// both together.
func (c *Core) reclaim(set uint64) (again bool) {
	for k := range eachClass(set) {
		again = c.reclaimFor(k, c.classes[k].queue.head) || again
	}
	return again
}

// reclaimFor ends just enough for one request, on the first engine where that
// makes room for it together with what is on its way out already. Nothing is
// ended in vain, and nothing if what is on its way out, or about to end by
// itself, is enough.
func (c *Core) reclaimFor(k Class, slot int32) (together bool) {
	for e := range c.engines {
		if c.roomComes(Engine(e), k, slot) {
			return false
		}
	}
	if c.asksAny(&c.classes[k], &c.requests[slot]) {
		return false
	}
	if !c.mayReclaim() {
		return false
	}
	for e := range c.engines {
		if c.reclaimOn(Engine(e), k, slot) {
			return c.engines[e].spec.Together
		}
	}
	return false
}

// demand prices the first request of a class on an engine; ok is false if it is
// not one that could run there within the class's floor, and its part of a ceiling.
func (c *Core) demand(cl *class, en *engine, q *request) (after, amount Amount, ok bool) {
	if why, _, _ := en.misfit(cl, q); why != CauseNone || !en.counts {
		return after, amount, false
	}
	amount, _, _ = c.price(cl, en, q)
	after = cl.used.add(amount)
	return after, amount, after.within(cl.floor) && after.within(cl.ceiling)
}

// roomComes tells whether a head will find room on an engine without anything
// being ended.
func (c *Core) roomComes(e Engine, k Class, slot int32) bool {
	cl, en, q := &c.classes[k], &c.engines[e], &c.requests[slot]
	after, amount, ok := c.demand(cl, en, q)
	if !ok {
		return false
	}
	until, ok := c.outlasts(e, cl, q, after, amount)
	if ok && until > c.now {
		c.wake(until)
	}
	return ok
}

// outlook is what a request within its class's floor meets on one engine, once
// what is on its way out is gone.
type outlook struct {
	en   *engine
	here Amount // used on the engine
	kept Amount // sum over the other classes of max(used, unlent)
	used Amount // of the other classes
	room Amount // the envelope without foreign load
}

func (c *Core) look(cl *class, en *engine) outlook {
	o := outlook{
		en: en, here: en.used.sub(en.going), kept: c.kept.sub(cl.used.max(cl.spec.Unlent)), used: c.used.sub(cl.used),
		room: c.room(),
	}
	for i := range c.engines {
		if other := &c.engines[i]; !other.counts {
			o.room = o.room.sub(other.going)
		}
	}
	for j := range c.classes {
		if other := &c.classes[j]; other != cl && other.going != (Amount{}) {
			o.leaves(other, other.used, other.going)
		}
	}
	return o
}

// leaves takes amount off what another class has left.
func (o *outlook) leaves(other *class, left, amount Amount) Amount {
	now := left.sub(amount)
	o.kept = o.kept.sub(left.max(other.spec.Unlent)).add(now.max(other.spec.Unlent))
	o.used = o.used.sub(amount)
	return now
}

// fits tells whether there will be room for class cl to take amount, which
// brings it to after, within its floor.
func (o *outlook) fits(cl *class, after, amount Amount) bool {
	if !o.here.add(amount).add(o.en.foreign).within(o.en.limit(cl, after, o.here)) {
		return false
	}
	return cl.spares(after, o.kept, o.used, o.room, Slots) && cl.spares(after, o.kept, o.used, o.room, KV)
}

// outlasts tells whether a request within its class's floor will find room on an
// engine while it can still wait, from what is on its way out or about to end by
// itself, and when. What is about to end need not be ended.
func (c *Core) outlasts(e Engine, cl *class, q *request, after, amount Amount) (until Time, ok bool) {
	o := c.look(cl, &c.engines[e])
	until = c.now
	if o.fits(cl, after, amount) {
		return until, true
	}
	patience, ahead := c.patience(cl, q, o.en), c.ahead(o.en, 0)
	for i := range c.holds {
		h := &c.holds[i]
		if h.state != holdLive || h.engine != e {
			continue
		}
		if at := c.ends(h, ahead); at <= patience {
			o.here = o.here.sub(h.amount)
			until = max(until, at)
			if o.fits(cl, after, amount) {
				return until, true
			}
		}
	}
	return until, false
}

// soon tells whether a request within its class's floor that finds no room will
// have some soon without anybody giving anything back: such a wait recalls
// nothing.
func (c *Core) soon(cl *class, q *request) bool {
	if cl.spec.Reopen != ReopenSettled {
		return false
	}
	for e := range c.engines {
		after, amount, ok := c.demand(cl, &c.engines[e], q)
		if !ok {
			continue
		}
		if until, ok := c.outlasts(Engine(e), cl, q, after, amount); ok && until > c.now {
			c.spared |= bit(q.class)
			c.wake(until)
			return true
		}
	}
	return false
}

// victim is a loan that may be ended.
type victim struct {
	hold  int32
	waste int64
	ended bool
}

// reclaimOn ends just enough on one engine, and reports whether it did.
//
// Victims are taken in the order of least waste, the tokens that will have to be
// computed again and a fixed cost, until the request fits; then those are given
// back, in reverse, without which it fits too. A class gives back what it borrowed
// and no more: once what is left to it is within its floor, the rest of its loans stay.
//
// Alternatives: the newest loan first, as engines do it, is fair among borrowers
// but wastes a whole prefill to free what a nearly finished answer would have
// freed anyway; the smallest set is a knapsack, whose best answer is worth less
// here than one that anybody can follow by hand.
func (c *Core) reclaimOn(e Engine, k Class, slot int32) bool {
	cl, en, q := &c.classes[k], &c.engines[e], &c.requests[slot]
	after, amount, ok := c.demand(cl, en, q)
	if !ok {
		return false
	}
	if c.stalls(k, en, q) {
		c.held = true
		return false // it could not start there anyhow
	}
	o := c.look(cl, en)
	c.candidates(e, k)
	left := make([]Amount, 0, MaxClasses)
	for j := range c.classes {
		left = append(left, c.classes[j].used.sub(c.classes[j].going))
	}
	take := func(v *victim, give bool) {
		h := &c.holds[v.hold]
		amount := h.amount
		if give {
			amount = Amount{}.sub(amount)
		}
		o.here = o.here.sub(amount)
		left[h.class] = o.leaves(&c.classes[h.class], left[h.class], amount)
		v.ended = !give
	}
	for i := range c.victims {
		v := &c.victims[i]
		if o.fits(cl, after, amount) {
			break
		}
		if k := c.holds[v.hold].class; !left[k].within(c.classes[k].floor) {
			take(v, false)
		}
	}
	if !o.fits(cl, after, amount) {
		return false
	}
	for i := len(c.victims) - 1; i >= 0; i-- {
		if v := &c.victims[i]; v.ended {
			if take(v, true); !o.fits(cl, after, amount) {
				take(v, false)
			}
		}
	}
	n := 0
	for i := range c.victims {
		if c.victims[i].ended {
			n++
		}
	}
	if !c.countReclaims(n) {
		return false
	}
	if !en.spec.Together {
		c.pair(k, e, slot, amount)
	}
	for i := range c.victims {
		if v := &c.victims[i]; v.ended {
			c.end(v.hold, k, c.requestID(slot))
		}
	}
	return true
}

// reclaimSpan is what the rate of reclaims counts over.
const reclaimSpan = Time(1e9)

// mayReclaim tells whether one more reclaim is within what a second allows, and if
// not asks for a tick when it will be.
func (c *Core) mayReclaim() bool {
	if c.reclaimRate == 0 || c.reclaimsUntil <= c.now {
		return true
	}
	at := c.reclaimsUntil + reclaimSpan/Time(c.reclaimRate) - reclaimSpan
	if at > c.now {
		c.wake(at)
	}
	return at <= c.now
}

// countReclaims counts n more reclaims if they are within what a second allows.
// More than a second's worth at once go when there were none for a second.
func (c *Core) countReclaims(n int) bool {
	if c.reclaimRate == 0 {
		return true
	}
	busy := max(c.reclaimsUntil, c.now)
	next := busy + reclaimSpan*Time(n)/Time(c.reclaimRate)
	if next > c.now+reclaimSpan && busy > c.now {
		c.wake(min(next-reclaimSpan, busy))
		return false
	}
	c.reclaimsUntil = next
	return true
}

// pairing is capacity that is being freed for one request on an engine that does
// not take it together with the aborts. What has come free of it is kept from
// everybody else until the request is admitted or gone.
type pairing struct {
	req    ID // 0 is none
	engine Engine
	amount Amount // that the request needs
	going  Amount // that has not come free yet
}

func (c *Core) pair(k Class, e Engine, slot int32, amount Amount) {
	c.pairs |= bit(k)
	c.classes[k].pairing = pairing{req: c.requestID(slot), engine: e, amount: amount}
}

// unpair forgets what was freed for a request of class k that is admitted or gone.
func (c *Core) unpair(k Class, id ID) {
	if p := &c.classes[k].pairing; p.req == id {
		*p = pairing{}
		c.pairs &^= bit(k)
	}
}

// promisedTo is what has come free on an engine for others than request q.
func (c *Core) promisedTo(e Engine, q *request) (sum Amount) {
	for k := range eachClass(c.pairs) {
		if p := &c.classes[k].pairing; p.engine == e && &c.requests[p.req.Slot()] != q {
			sum = sum.add(p.amount.sub(p.going).max(Amount{}))
		}
	}
	return sum
}

// patience is until when a request can wait for a loan to end by itself: half of
// what it can still bear, so that there is time left to end it by force, and in
// any case its class's grace.
func (c *Core) patience(cl *class, q *request, en *engine) Time {
	grace := q.arrived.plus(cl.spec.Grace)
	if q.objective(cl).First > 0 {
		grace = max(grace, c.now+c.bears(cl, q, en)/4*3)
	}
	return grace
}

// callLoansIn ends what is lent while lending is paused and nobody is to keep
// a loan. What is left for later, by the rate of reclaims or the life of a loan, asks
// for a tick.
func (c *Core) callLoansIn() {
	if !c.callIn || c.bypass || !c.reclaimable() {
		return
	}
	for e := range c.engines {
		c.candidates(Engine(e), nobody)
		for i := range c.victims {
			h := &c.holds[c.victims[i].hold]
			cl := &c.classes[h.class]
			switch {
			case cl.used.sub(cl.going).within(cl.floor):
			case !c.countReclaims(1):
				return
			default:
				c.end(c.victims[i].hold, nobody, 0)
			}
		}
	}
}

// nobody is the class for which a loan is ended that no request wants.
const nobody = Class(MaxClasses)

// end has a loan ended for a request of class k, or for nobody.
func (c *Core) end(i int32, k Class, id ID) {
	h := &c.holds[i]
	v, q := &c.classes[h.class], &c.requests[h.req.Slot()]
	c.leave(h, holdEnding)
	c.undo(h)
	h.reclaimed = true
	v.counts.Reclaims++
	q.reclaims = min(q.reclaims+1, 1<<16-1)
	if k != nobody {
		c.endFor(h, k, id)
	}
	c.emit(Effect{Op: Reclaim, Class: h.class, Engine: h.engine, Tenant: q.tenant, ID: h.req, Hold: c.holdID(i), For: id})
}

// endFor puts the end of a loan down to the request that it makes room for.
func (c *Core) endFor(h *hold, k Class, id ID) {
	if r := &c.classes[k].recall; r.open && r.request == id && !r.settled {
		h.recall = r.seq
		r.called++
	}
	if p := &c.classes[k].pairing; p.req == id {
		h.pairs = k + 1
		p.going = p.going.add(h.amount)
	}
	c.classes[k].counts.WasteTokens += int64(h.prompt-h.cached) + int64(h.out)
}

// trust learns from how a reclaim ended whether an engine ends what it is asked
// to. One that does not, several times in a row, is left to attrition until it
// restarts or the table changes: ending loans there costs their work and frees
// nothing.
func (c *Core) trust(e Engine, confirmed bool) {
	en := &c.engines[e]
	if confirmed {
		en.untrue = 0
		return
	}
	if en.untrue++; en.untrue == maxUntrue {
		c.emit(Effect{Op: Stage, Cause: CauseDemoted, Engine: e})
	}
}

// maxUntrue is how many reclaims in a row may stay unconfirmed.
const maxUntrue = 3

// candidates collects the loans on an engine that may be ended now for class k, in
// the order in which they are to go.
func (c *Core) candidates(e Engine, k Class) {
	c.victims = c.victims[:0]
	for j := range c.classes {
		if Class(j) != k {
			c.collect(e, &c.classes[j])
		}
	}
	c.rank()
}

// collect adds the loans of a class on an engine that may be ended now.
func (c *Core) collect(e Engine, cl *class) {
	if cl.spec.Mode == Attrition || c.engines[e].untrue >= maxUntrue {
		return
	}
	for i := cl.loanHead; i != none; i = c.holds[i].next {
		h := &c.holds[i]
		if h.engine != e || h.state != holdLive || h.pinned {
			continue
		}
		if cl.spec.Mode == Deadline {
			if h.loanEnds(cl) <= c.now {
				// The oldest first, before anything that is ended at once.
				c.victims = append(c.victims, victim{hold: i, waste: int64(len(c.victims)) - 1<<32})
			}
			continue
		}
		if h.whole && h.first != 0 {
			continue
		}
		waste := int64(h.prompt) + int64(h.out)
		c.victims = append(c.victims, victim{hold: i, waste: waste})
	}
}

// rank brings what was collected into the order in which it is to go.
func (c *Core) rank() {
	slices.SortStableFunc(c.victims, func(a, b victim) int { return cmp.Compare(a.waste, b.waste) })
}

// loanEnds is when the agreed life of a loan is over.
func (h *hold) loanEnds(cl *class) Time { return h.admitted.plus(cl.spec.LoanLife) }

// reclaimable reports whether there is a loan that could be ended now, and asks
// for a tick when the agreed life of the next one will be over.
func (c *Core) reclaimable() (can bool) {
	for k := range c.classes {
		cl := &c.classes[k]
		switch cl.spec.Mode {
		case Deadline:
			for i := cl.loanHead; i != none; i = c.holds[i].next {
				h := &c.holds[i]
				if at := h.loanEnds(cl); at > c.now {
					c.wake(at)
					break
				}
				can = can || h.state == holdLive
			}
		case ReclaimNow:
			can = can || cl.loanHead != none
		}
	}
	return can
}
