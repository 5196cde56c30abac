package admission

// queue is a class's waiting line, in the order of first arrival: a request
// that runs again takes the place it had.
type queue struct {
	head, tail int32
	n          int
}

func (c *Core) enqueue(slot int32) {
	q := &c.requests[slot]
	cl := &c.classes[q.class]
	q.state = stateQueued
	cl.idleSince = Never
	c.accrue(cl)
	// New requests belong at the end. One that runs again is older than most of
	// what waits, and is walked in from the front.
	after := cl.queue.tail
	if after != none && c.requests[after].place > q.place {
		after = none
		for i := cl.queue.head; i != none && c.requests[i].place < q.place; i = c.requests[i].next {
			after = i
		}
	}
	q.prev, q.next = after, cl.queue.head
	if after != none {
		q.next = c.requests[after].next
		c.requests[after].next = slot
	} else {
		cl.queue.head = slot
	}
	if q.next != none {
		c.requests[q.next].prev = slot
	} else {
		cl.queue.tail = slot
	}
	cl.queue.n++
	c.tenant(q.tenant).queued[q.class]++
	c.waiting |= bit(q.class)
	if cl.spec.MaxWait > 0 {
		c.wake(q.waits.plus(cl.spec.MaxWait))
	}
	c.dueIn(cl)
	c.emit(Effect{Op: Queued, Class: q.class, Tenant: q.tenant, ID: c.requestID(slot)})
}

func (c *Core) unqueue(slot int32) {
	q := &c.requests[slot]
	cl := &c.classes[q.class]
	if q.prev != none {
		c.requests[q.prev].next = q.next
	} else {
		cl.queue.head = q.next
	}
	if q.next != none {
		c.requests[q.next].prev = q.prev
	} else {
		cl.queue.tail = q.prev
	}
	q.prev, q.next = none, none
	c.accrue(cl)
	cl.queue.n--
	c.tenants[q.tenant].queued[q.class]--
	if cl.queue.n == 0 {
		c.waiting &^= bit(q.class)
		c.blockIn &^= bit(q.class)
		c.blockOut &^= bit(q.class)
		cl.pace.last = 0
	}
}

// expireQueue refuses what has waited as long as its class allows. The queue is
// in the order of first arrival, so only requests that run again, which have
// waited less than their place says, may stand before one whose time is over.
func (c *Core) expireQueue(k Class) {
	cl := &c.classes[k]
	if cl.spec.MaxWait == 0 {
		return
	}
	for i := cl.queue.head; i != none; {
		q := &c.requests[i]
		next := q.next
		if q.waits.plus(cl.spec.MaxWait) <= c.now {
			c.reject(i, CauseQueueWait, 0, 0)
		} else if q.waits == q.arrived {
			return
		}
		i = next
	}
}
