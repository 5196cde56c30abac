package admission

import (
	"cmp"
	"slices"
)

// recall is one class's claim on what it lent.
//
// Alternatives: one recall for the whole pool would be simpler, but then a
// class whose lending was never closed would answer for another's; a recall for
// each request would be finer than what anybody can act on, since the loans
// that end for one are the same that end for the next.
type recall struct {
	open    bool
	served  bool
	seq     uint64 // its number
	opened  Time
	request ID     // the request that opened it
	upTo    uint64 // it covers loans up to this loanSeq
	cohort  int    // of those, how many are still out
	called  int    // loans that were ended for the request and are not out yet
	settled bool   // what was taken back by force is out, or all that was lent
	need    Amount // what was wanted of the floor when it opened
}

// recallFor is called when the head of class k's queue, which would stay within
// its floor, does not fit. It closes k's lending and opens a recall over the
// loans that are out; it reports whether that changed what may be admitted.
func (c *Core) recallFor(k Class, slot int32, want Amount) bool {
	cl := &c.classes[k]
	cl.pressed = c.now
	if cl.spec.Reopen == ReopenSettled {
		cl.peak.note(c.now, cl.used.add(want).add(cl.theirs))
	}
	changed := cl.open && cl.spec.Window == 0
	if changed {
		c.shut(k)
	}
	r := &cl.recall
	if c.loans == 0 || r.open && r.upTo == c.loanSeq {
		return changed
	}
	if r.open {
		// Lending had reopened while earlier loans were still out, and more was
		// lent since: the recall covers those too.
		r.upTo, r.cohort = c.loanSeq, c.loans
		return changed
	}
	cl.counts.Recalls++
	c.recalls |= bit(k)
	*r = recall{
		open: true, seq: c.seq + 1, opened: c.now, request: c.requestID(slot), upTo: c.loanSeq, cohort: c.loans,
		need: cl.floor.sub(cl.used),
	}
	for _, stage := range [...]Cause{CauseRecallOpened, CauseRecallGranted} {
		c.emit(Effect{Op: Stage, Cause: stage, Class: k, For: r.request, Seq: r.seq})
	}
	return changed
}

// shut closes a class's lending.
func (c *Core) shut(k Class) {
	cl := &c.classes[k]
	c.thrashed(cl)
	cl.open = false
	c.refresh(k)
	c.wake(c.looks(cl))
	c.emit(Effect{Op: Stage, Cause: CauseLendingClosed, Class: k})
}

// serveRecall notes the admission of the request that opened a recall.
func (c *Core) serveRecall(k Class, id ID) {
	r := &c.classes[k].recall
	if r.open && !r.served && r.request == id {
		r.served = true
		c.emit(Effect{Op: Stage, Cause: CauseRecallServed, Class: k, For: id, Seq: r.seq})
	}
}

// lend puts a hold into its class's loans, which are in the order of their age.
func (c *Core) lend(i int32) {
	h := &c.holds[i]
	cl := &c.classes[h.class]
	c.loans++
	c.loanSeq++
	h.loan, h.loanSeq = true, c.loanSeq
	h.prev, h.next = cl.loanTail, none
	for h.prev != none && c.holds[h.prev].admitted > h.admitted {
		h.prev, h.next = c.holds[h.prev].prev, h.prev
	}
	if h.prev != none {
		c.holds[h.prev].next = i
	} else {
		cl.loanHead = i
	}
	if h.next != none {
		c.holds[h.next].prev = i
	} else {
		cl.loanTail = i
	}
}

// unlend takes a hold out of its class's loans, and settles the recalls that
// waited for it alone.
func (c *Core) unlend(i int32) {
	h := &c.holds[i]
	cl := &c.classes[h.class]
	c.loans--
	h.loan = false
	if h.prev != none {
		c.holds[h.prev].next = h.next
	} else {
		cl.loanHead = h.next
	}
	if h.next != none {
		c.holds[h.next].prev = h.prev
	} else {
		cl.loanTail = h.prev
	}
	h.prev, h.next = none, none
	c.calledBack(h)
	for k := range eachClass(c.settles) {
		if cl := &c.classes[k]; cl.lentUpTo >= h.loanSeq && !cl.open {
			c.wake(c.now)
		}
	}
	for k := range eachClass(c.recalls) {
		r := &c.classes[k].recall
		if h.loanSeq > r.upTo {
			continue
		}
		if r.cohort--; r.cohort == 0 {
			r.open = false
			c.recalls &^= bit(k)
			if cl := &c.classes[k]; cl.spec.Reopen == ReopenSettled && !cl.open {
				c.wake(c.now)
			}
			c.settle(k)
			c.emit(Effect{Op: Stage, Cause: CauseRecallClosed, Class: k, For: r.request, Seq: r.seq})
		}
	}
}

// settle notes that a recall has what it called back.
func (c *Core) settle(k Class) {
	if r := &c.classes[k].recall; !r.settled {
		r.settled = true
		c.emit(Effect{Op: Stage, Cause: CauseRecallSettled, Class: k, For: r.request, Seq: r.seq})
	}
}

// calledBack notes that a loan is out. With the last of those that were ended for
// the request that opened a recall it is settled, whatever else is still lent.
func (c *Core) calledBack(h *hold) {
	if h.recall == 0 {
		return
	}
	for k := range eachClass(c.recalls) {
		if r := &c.classes[k].recall; r.seq == h.recall {
			if r.called--; r.called == 0 {
				c.settle(k)
			}
		}
	}
	h.recall = 0
}

// absorb ends the loans of a class that is back within its floor: what it holds
// is its own again.
func (c *Core) absorb(k Class) {
	cl := &c.classes[k]
	if cl.loanHead == none || !cl.used.within(cl.floor) {
		return
	}
	for cl.loanHead != none {
		c.unlend(cl.loanHead)
	}
}

// expose makes loans of the newest holds of a class whose floor was lowered
// under what it uses, until the rest is within it: it uses what others are owed
// now, and gives it back like any borrower.
func (c *Core) expose(k Class) {
	cl := &c.classes[k]
	own := cl.used
	for i := cl.loanHead; i != none; i = c.holds[i].next {
		own = own.sub(c.holds[i].amount)
	}
	if own.within(cl.floor) {
		return
	}
	var holds []int32
	for i := range c.holds {
		if h := &c.holds[i]; h.state != holdFree && h.class == k && !h.loan {
			holds = append(holds, int32(i))
		}
	}
	slices.SortStableFunc(holds, func(a, b int32) int { return cmp.Compare(c.holds[a].admitted, c.holds[b].admitted) })
	for n := len(holds) - 1; n >= 0 && !own.within(cl.floor); n-- {
		own = own.sub(c.holds[holds[n]].amount)
		c.lend(holds[n])
	}
}

// leave puts a hold on its way out.
func (c *Core) leave(h *hold, s holdState) {
	if h.state == holdLive {
		cl, en := &c.classes[h.class], &c.engines[h.engine]
		cl.going, en.going = cl.going.add(h.amount), en.going.add(h.amount)
	}
	h.state = s
}

const (
	defaultPerToken = Time(50e6)
	// minResidual leaves an engine that shows no evidence of a release the time
	// after which its adapter believes it.
	minResidual = Time(5e9)
)

// haunt turns a hold whose attempt is over into a ghost: it keeps its capacity
// until the engine confirms the release, restarts, or has had twice the time
// that the attempt could still have run.
func (c *Core) haunt(h *hold) {
	c.ghosts++
	c.leave(h, holdGhost)
	h.expires = c.now + c.residual(h)
	c.wake(h.expires)
}

// residual is twice the time that a hold's attempt could still run.
func (c *Core) residual(h *hold) Time {
	left := Time(max(h.limit-h.out/h.n, 0))
	return max(2*left*c.tokenTime(&c.engines[h.engine]), minResidual)
}

// lasts is for how long a hold keeps its capacity at most.
func (c *Core) lasts(h *hold) Time {
	if h.state == holdGhost {
		return max(h.expires-c.now, 0)
	}
	return c.residual(h)
}

func (c *Core) expireGhosts() {
	if c.ghosts == 0 {
		return
	}
	for i := range c.holds {
		if h := &c.holds[i]; h.state == holdGhost && h.expires <= c.now {
			c.exorcise(int32(i))
		}
	}
}

// exorcise frees a ghost without a confirmation, and says so.
func (c *Core) exorcise(i int32) {
	h := &c.holds[i]
	c.classes[h.class].counts.Ghosts++
	if h.reclaimed {
		c.trust(h.engine, false)
	}
	c.emit(Effect{Op: Stage, Cause: CauseGhost, Class: h.class, Engine: h.engine, Tokens: h.amount[KV], Hold: c.holdID(i)})
	c.free(i)
}
