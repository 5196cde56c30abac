package admission

// The kill switch. With Table.Bypass the core decides nothing any more: whoever
// could ever run on an engine of the pool is admitted at once, and what waits when it
// is turned on too. No queue, no floor, no ceiling, no guard, no reclaim. What is left
// is what would make no sense to send (see misfit), a drain, and that there has to be
// an engine: while none is ready that could run it, a request waits as ever.
//
// The books are kept all the same, beyond what there is: a hold is a loan as soon as
// its class uses more than its floor. So when the switch is off again the core
// knows what runs, admits nobody until that fits, and takes back what it may.
//
// Alternatives: to send requests past the core is no less work and loses the books,
// and the first minutes after it would be decided blindly; an envelope without end
// would still queue, by the guard, the barrier and the ceilings.

// pass admits all that waits and has an engine.
func (c *Core) pass() {
	c.blockIn, c.blockOut = 0, 0
	for k := range eachClass(c.waiting) {
		cl := &c.classes[k]
		for i := cl.queue.longest; i != none; {
			next := c.requests[i].later
			if f := c.anywhere(cl, &c.requests[i]); f.ok {
				c.unqueue(i)
				c.admit(i, &f)
			}
			i = next
		}
	}
}

// anywhere picks an engine without asking whether there is room: one that takes work
// before one that is set aside, and then the one that better prefers.
func (c *Core) anywhere(cl *class, q *request) (best fitting) {
	works := false
	for e := range c.engines {
		en := &c.engines[e]
		if !en.ready() || q.avoids&(1<<en.id) != 0 {
			continue
		}
		if why, _, _ := en.misfit(cl, q); why != CauseNone {
			continue
		}
		f := fitting{ok: true, engine: en.id}
		f.amount, f.expect, f.limit = c.price(cl, en, q)
		f.within = cl.used.add(f.amount).within(cl.floor)
		f.loan = !f.within
		f.appeal(en, q)
		if !best.ok || en.counts && !works || en.counts == works && f.better(&best) {
			best, works = f, en.counts
		}
	}
	return best
}
