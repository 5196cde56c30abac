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
	q := &c.requests[slot]
	if r.open {
		// Lending had reopened while earlier loans were still out, and more was
		// lent since: the new recall covers those too.
		*r = recall{open: true, seq: r.seq, opened: r.opened, request: r.request, served: r.served, need: r.need, upTo: c.loanSeq, cohort: c.loans}
		return changed
	}
	cl.counts.Recalls++
	c.recalls |= bit(k)
	*r = recall{
		open: true, seq: c.seq + 1, opened: c.now, request: MakeID(q.gen, uint32(slot)), upTo: c.loanSeq, cohort: c.loans,
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

// lend puts a hold into its class's loans.
func (c *Core) lend(i int32) {
	h := &c.holds[i]
	cl := &c.classes[h.class]
	c.loans++
	c.loanSeq++
	h.loan, h.loanSeq = true, c.loanSeq
	h.prev, h.next = cl.loanTail, none
	if cl.loanTail != none {
		c.holds[cl.loanTail].next = i
	} else {
		cl.loanHead = i
	}
	cl.loanTail = i
	cl.counts.Loans++
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
	if cl.open || cl.idleSince == Never || c.now < cl.idleSince+Time(cl.spec.IdleAfter) {
		return
	}
	cl.open = true
	c.refresh(k)
	c.emit(Effect{Op: Stage, Cause: CauseLendingOpened, Class: k})
}

// endLoans ends loans whose agreed life is over, oldest first, if together with
// what is on its way out already they make room for the request. Nothing is
// ended in vain.
func (c *Core) endLoans(k Class, slot int32) {
	cl := &c.classes[k]
	q := &c.requests[slot]
	for e := range c.engines {
		en := &c.engines[e]
		if !en.counts {
			continue
		}
		amount, _, _ := c.price(cl, en, q)
		after := cl.used.add(amount)
		if !after.within(cl.spec.Floor) {
			continue
		}
		// What is short on the engine, and of what must stay free for the
		// unlent parts of others.
		short := en.used.add(amount).add(en.foreign).sub(c.engineLimit(cl, en, after))
		kept := c.kept.sub(cl.used.max(cl.spec.Unlent)).add(after.max(cl.spec.Unlent)).add(c.foreign).sub(c.envelope)
		short = short.max(kept).max(Amount{})
		if c.end(Engine(e), short, false, 0) {
			c.end(Engine(e), short, true, MakeID(q.gen, uint32(slot)))
			return
		}
	}
}

// end walks the loans on one engine that are ending or may be ended until they
// cover short, and reports whether they do. With really it ends them. A class
// gives back what it borrowed and no more: once what is left to it is within its
// floor, the rest of its loans stay.
func (c *Core) end(e Engine, short Amount, really bool, request ID) bool {
	var going [MaxClasses]Amount
	for i := range c.holds {
		if h := &c.holds[i]; h.state == holdEnding || h.state == holdGhost {
			going[h.class] = going[h.class].add(h.amount)
			if h.engine == e {
				short = short.sub(h.amount)
			}
		}
	}
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.spec.Mode != Deadline {
			continue
		}
		left := cl.used.sub(going[k])
		for i := cl.loanHead; i != none && !left.within(cl.spec.Floor); i = c.holds[i].next {
			if short.within(Amount{}) {
				return true
			}
			h := &c.holds[i]
			if h.engine != e || h.state != holdLive || c.now < h.admitted+Time(cl.spec.LoanLife) {
				continue
			}
			short, left = short.sub(h.amount), left.sub(h.amount)
			if really {
				h.state = holdEnding
				cl.counts.Reclaims++
				c.emit(Effect{Op: Reclaim, Class: h.class, Engine: e, Tenant: c.requests[h.req.Slot()].tenant, ID: h.req, Hold: c.holdID(i), For: request})
			}
		}
	}
	return short.within(Amount{})
}

// wakeForLoans asks for a tick when the next loan's agreed life is over.
func (c *Core) wakeForLoans() {
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.spec.Mode != Deadline {
			continue
		}
		for i := cl.loanHead; i != none; i = c.holds[i].next {
			h := &c.holds[i]
			if at := h.admitted + Time(cl.spec.LoanLife); h.state == holdLive && at > c.now {
				c.wake(at)
				break
			}
		}
	}
}

const (
	defaultPerToken = Time(50e6)
	minResidual     = Time(1e9)
)

// haunt turns a hold whose attempt is over into a ghost: it keeps its capacity
// until the engine confirms the release, restarts, or has had twice the time
// that the attempt could still have run.
func (c *Core) haunt(h *hold) {
	c.ghosts++
	h.state = holdGhost
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

// learnPace learns the engine's time per output token from a finished hold.
func (en *engine) learnPace(h *hold, now Time) {
	if h.first == 0 || h.out/h.n < 2 {
		return
	}
	each := (now - h.first) / Time(h.out/h.n-1)
	en.perTok += (each - en.perTok) / 8
}
