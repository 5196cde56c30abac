package admission

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
	need    Amount // what was wanted of the floor when it opened
}

// recallFor is called when the head of class k's queue, which would stay within
// its floor, does not fit. It closes k's lending and opens a recall over the
// loans that are out; it reports whether that changed what may be admitted.
func (c *Core) recallFor(k Class, slot int32) bool {
	cl := &c.classes[k]
	changed := cl.open
	if cl.open {
		cl.open = false
		c.refresh(k)
		c.emit(Effect{Op: Stage, Cause: CauseLendingClosed, Class: k})
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
		need: cl.spec.Floor.sub(cl.used),
	}
	for _, stage := range [...]Cause{CauseRecallOpened, CauseRecallGranted} {
		c.emit(Effect{Op: Stage, Cause: stage, Class: k, For: r.request, Seq: r.seq})
	}
	return changed
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
	for k := range eachClass(c.recalls) {
		r := &c.classes[k].recall
		if h.loanSeq > r.upTo {
			continue
		}
		if r.cohort--; r.cohort == 0 {
			r.open = false
			c.recalls &^= bit(k)
			c.emit(Effect{Op: Stage, Cause: CauseRecallSettled, Class: k, For: r.request, Seq: r.seq})
		}
	}
}

// absorb ends the loans of a class that is back within its floor: what it holds
// is its own again.
func (c *Core) absorb(k Class) {
	cl := &c.classes[k]
	if cl.loanHead == none || !cl.used.within(cl.spec.Floor) {
		return
	}
	for cl.loanHead != none {
		c.unlend(cl.loanHead)
	}
}

// reopen lends a class's floor again once it has been idle long enough, the
// published rule: it looks at the class alone, so that it can reopen while
// earlier loans are still out.
func (c *Core) reopen(k Class) {
	cl := &c.classes[k]
	if cl.open || cl.idleSince == Never || c.now < cl.idleSince.plus(cl.spec.IdleAfter) {
		return
	}
	cl.open = true
	c.refresh(k)
	c.emit(Effect{Op: Stage, Cause: CauseLendingOpened, Class: k})
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
	for !own.within(cl.spec.Floor) {
		newest := none
		for i := range c.holds {
			h := &c.holds[i]
			if h.state == holdFree || h.class != k || h.loan {
				continue
			}
			if newest == none || h.admitted >= c.holds[newest].admitted {
				newest = int32(i)
			}
		}
		own = own.sub(c.holds[newest].amount)
		c.lend(newest)
	}
}

// endLoans ends loans whose agreed life is over, oldest first, if together with
// what is on its way out already they make room for the request. Nothing is
// ended in vain, and nothing if what is on its way out is enough.
func (c *Core) endLoans(k Class, slot int32) {
	for _, more := range [...]bool{false, true} {
		for e := range c.engines {
			if c.endOn(Engine(e), k, slot, more) {
				return
			}
		}
	}
}

// endOn does so on one engine, and reports whether there will be room; without
// more it ends nothing. A class gives back what it borrowed and no more: once
// what is left to it is within its floor, the rest of its loans stay.
func (c *Core) endOn(e Engine, k Class, slot int32, more bool) bool {
	cl, en, q := &c.classes[k], &c.engines[e], &c.requests[slot]
	if why, _, _ := en.misfit(cl, q); why != CauseNone || !en.counts {
		return false
	}
	amount, _, _ := c.price(cl, en, q)
	after := cl.used.add(amount)
	if !after.within(cl.spec.Floor) {
		return false
	}
	// What will be left once that which is on its way out is gone: on the engine,
	// and of the other classes.
	here := en.used.sub(en.going)
	room := c.envelope.sub(c.foreign)
	for i := range c.engines {
		if other := &c.engines[i]; !other.counts {
			room = room.sub(other.going)
		}
	}
	kept := c.kept.sub(cl.used.max(cl.spec.Unlent))
	used := c.used.sub(cl.used)
	leaves := func(o *class, left, amount Amount) Amount {
		now := left.sub(amount)
		kept = kept.sub(left.max(o.spec.Unlent)).add(now.max(o.spec.Unlent))
		used = used.sub(amount)
		return now
	}
	fits := func() bool {
		if !here.add(amount).add(en.foreign).within(en.limit(cl, after, here)) {
			return false
		}
		return cl.spares(after, kept, used, room, Slots) && cl.spares(after, kept, used, room, KV)
	}
	for j := range c.classes {
		if o := &c.classes[j]; o != cl {
			leaves(o, o.used, o.going)
		}
	}
	c.victims = c.victims[:0]
	for j := range c.classes {
		o := &c.classes[j]
		if !more || o.spec.Mode != Deadline {
			continue
		}
		left := o.used.sub(o.going)
		for i := o.loanHead; i != none && c.holds[i].due(o) <= c.now && !left.within(o.spec.Floor) && !fits(); i = c.holds[i].next {
			if h := &c.holds[i]; h.engine == e && h.state == holdLive {
				here, left = here.sub(h.amount), leaves(o, left, h.amount)
				c.victims = append(c.victims, i)
			}
		}
	}
	if !fits() {
		return false
	}
	for _, i := range c.victims {
		h := &c.holds[i]
		c.leave(h, holdEnding)
		c.classes[h.class].counts.Reclaims++
		c.emit(Effect{
			Op: Reclaim, Class: h.class, Engine: e, Tenant: c.requests[h.req.Slot()].tenant, ID: h.req, Hold: c.holdID(i), For: c.requestID(slot),
		})
	}
	return true
}

// leave puts a hold on its way out.
func (c *Core) leave(h *hold, s holdState) {
	if h.state == holdLive {
		cl, en := &c.classes[h.class], &c.engines[h.engine]
		cl.going, en.going = cl.going.add(h.amount), en.going.add(h.amount)
	}
	h.state = s
}

// due is when the agreed life of a loan is over.
func (h *hold) due(cl *class) Time { return h.admitted.plus(cl.spec.LoanLife) }

// loansDue reports whether the agreed life of a loan is over that nobody ends
// yet, and asks for a tick when that of the next one will be.
func (c *Core) loansDue() (due bool) {
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.spec.Mode != Deadline {
			continue
		}
		for i := cl.loanHead; i != none; i = c.holds[i].next {
			h := &c.holds[i]
			if at := h.due(cl); at > c.now {
				c.wake(at)
				break
			}
			due = due || h.state == holdLive
		}
	}
	return due
}

const (
	defaultPerToken = Time(50e6)
	maxPerToken     = Time(2e9)
	minPaceTokens   = 8
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
	left := Time(max(h.limit-h.out/h.n, 0))
	h.expires = c.now + max(2*left*c.engines[h.engine].perTok, minResidual)
	c.wake(h.expires)
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
	c.emit(Effect{Op: Stage, Cause: CauseGhost, Class: h.class, Engine: h.engine, Tokens: h.amount[KV], Hold: c.holdID(i)})
	c.free(i)
}

// learnPace learns the engine's time per output token from a finished hold, of
// which it was seen how fast it went: an answer that was reported in one piece
// tells nothing.
func (en *engine) learnPace(h *hold, now Time) {
	n := (h.out - h.firstOut) / h.n
	if h.first == 0 || n < minPaceTokens {
		return
	}
	each := min((now-h.first)/Time(n), maxPerToken)
	en.perTok += (each - en.perTok) / 8
}
