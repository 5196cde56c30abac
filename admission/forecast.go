package admission

import (
	"cmp"
	"slices"
)

// forecast predicts for how long a request that can't start now will wait, and
// whether anything is known. Behind others it is the pace at which the class has
// been getting to start; while that is not known, and for the first, it is no less
// than until enough of what runs will have ended to make room.
//
// Both are estimates, and neither is invented: while the class has hardly been
// seen to wait, and the engine hardly to finish anything, there is none.
//
// Alternatives: queued work over measured throughput (QLM) needs the queue's
// lengths, which are not known; a simulation of the queue ahead would be exact
// about the policy and wrong about everything else, at a cost that grows with the
// queue at the very moment of overload.
func (c *Core) forecast(cl *class, q *request) (wait Time, known bool) {
	if cl.queue.n > 0 {
		if wait = cl.pace.forecast(c.now, cl.queue.n); wait > 0 {
			return wait, true
		}
	}
	soonest, ok := Never, false
	for e := range c.engines {
		en := &c.engines[e]
		if why, _, _ := en.misfit(cl, q); why != CauseNone || !en.counts {
			continue
		}
		amount, _, _ := c.price(cl, en, q)
		if c.loans > 0 && cl.used.add(amount).within(cl.floor) {
			return 0, false // room is made for it
		}
		if at := c.roomAt(cl, en, amount); at < soonest {
			soonest, ok = at, true
		}
	}
	return soonest - c.now, ok
}

// roomAt predicts when an engine will have room for a request, if nobody else
// starts there meanwhile and all ends as predicted; Never if that is not known.
func (c *Core) roomAt(cl *class, en *engine, amount Amount) Time {
	room := en.limit(cl, cl.used.add(amount), en.used).sub(en.foreign).sub(amount)
	used := en.used.sub(en.going)
	if used.within(room) {
		return c.now
	}
	c.ending = c.ending[:0]
	ahead := c.ahead(en, 0)
	for i := range c.holds {
		if h := &c.holds[i]; h.state == holdLive && h.engine == en.id {
			c.ending = append(c.ending, ending{c.ends(h, ahead), h.amount})
		}
	}
	slices.SortFunc(c.ending, func(a, b ending) int { return cmp.Compare(a.at, b.at) })
	for _, e := range c.ending {
		if used = used.sub(e.amount); used.within(room) {
			return e.at
		}
	}
	return Never
}

// ending is a hold's predicted end.
type ending struct {
	at     Time
	amount Amount
}
