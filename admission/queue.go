package admission

// queue is a class's waiting line: for each tenant that waits one in the order
// of first arrival (see line), and which of these is served next (see fair.go).
type queue struct {
	head  int32 // the slot of the request that is served next; none if nobody waits
	n     int
	lines []int32 // the tenants that wait: a heap, the least counter first
	last  int32   // the line that a request left last; none at first
	// The requests by the time since when they wait, for the limit on it. Who is
	// queued now has waited least, so the list is in order without a search.
	longest, latest int32
	pass            pass
}

func newQueue() queue {
	return queue{head: none, last: none, longest: none, latest: none}
}

func (c *Core) enqueue(slot int32) {
	q := &c.requests[slot]
	cl := &c.classes[q.class]
	q.state = stateQueued
	cl.idleSince = Never
	c.accrue(cl)
	c.lift(cl, q.line)
	c.join(cl, slot)
	q.longer, q.later = cl.queue.latest, none
	if q.longer != none {
		c.requests[q.longer].later = slot
	} else {
		cl.queue.longest = slot
	}
	cl.queue.latest = slot
	cl.queue.n++
	c.waiting |= bit(q.class)
	c.share.stirred = true
	if cl.spec.MaxWait > 0 {
		c.wake(q.waits.plus(cl.spec.MaxWait))
	}
	c.redue(cl)
	c.dueIn(cl)
	c.emit(Effect{Op: Queued, Class: q.class, Tenant: q.tenant, ID: c.requestID(slot)})
}

func (c *Core) unqueue(slot int32) {
	q := &c.requests[slot]
	cl := &c.classes[q.class]
	if q.longer != none {
		c.requests[q.longer].later = q.later
	} else {
		cl.queue.longest = q.later
	}
	if q.later != none {
		c.requests[q.later].longer = q.longer
	} else {
		cl.queue.latest = q.longer
	}
	q.longer, q.later = none, none
	c.accrue(cl)
	c.unpair(q.class, c.requestID(slot))
	cl.queue.n--
	c.share.stirred = true
	c.part(cl, slot)
	if cl.queue.n == 0 {
		c.waiting &^= bit(q.class)
		c.blockIn &^= bit(q.class)
		c.blockOut &^= bit(q.class)
		cl.pace.last = 0
		c.wake(c.looks(cl))
	}
}

// expireQueue refuses what has waited as long as its class allows.
func (c *Core) expireQueue(k Class) {
	cl := &c.classes[k]
	for i := c.expires(cl); i != none && c.waitsUntil(i) <= c.now; i = c.expires(cl) {
		c.reject(i, CauseQueueWait, 0, 0)
	}
}

// expires returns the request of a class that will next have waited as long as the
// class allows. What the core itself has interrupted is not among them: it would be
// lost by that.
func (c *Core) expires(cl *class) int32 {
	i := cl.queue.longest
	if cl.spec.MaxWait == 0 {
		return none
	}
	for i != none && c.requests[i].interrupted {
		i = c.requests[i].later
	}
	return i
}

// waitsUntil is when a waiting request is refused.
func (c *Core) waitsUntil(slot int32) Time {
	q := &c.requests[slot]
	return q.waits.plus(c.classes[q.class].spec.MaxWait)
}
