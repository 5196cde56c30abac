package admission

import "slices"

// A request that can't meet its objective any more lets those of its
// tenant pass that still can: once a burst has outrun the engine, first come first
// served makes everybody late, each by waiting for one who was late already. It
// is not lost: it is served as soon as nobody waits who could still be in time,
// and once it is older than the objective's whole, one of its tenant's starts in
// lateTurn is for those who are late, the oldest first.
//
// Alternatives: refusing it (many gateways' timeout) loses work that its client
// still waits for; earliest deadline first is the same up to the moment of
// overload, and then works on the hopeless in their order.
const lateTurn = 4

// overAge is how old a late request of a class without a limit on the whole may
// get before it has a turn, in limits on the first token.
const overAge = 6

// relegate puts the heads of a class behind that can't be in time any more.
func (c *Core) relegate(cl *class) {
	for {
		slot := cl.queue.head
		if slot == none || c.requests[slot].late || !c.hopeless(cl, &c.requests[slot]) {
			return
		}
		q := &c.requests[slot]
		c.unpair(q.class, c.requestID(slot))
		cl.queue.pass = pass{}
		c.part(cl, slot)
		q.late = true
		c.join(cl, slot)
	}
}

// hopeless tells whether a waiting request would be late even if it started now.
func (c *Core) hopeless(cl *class, q *request) bool {
	limits := q.objective(cl)
	if limits.First == 0 {
		return false
	}
	age, any := c.now-q.arrived, false
	for e := range c.engines {
		en := &c.engines[e]
		if !en.counts {
			continue
		}
		any = true
		start := max(cl.usualStart(), en.timing.prefillTime(q.work(en)))
		whole := Time(0)
		if limit := Time(limits.Whole); limit > 0 {
			// What is paid for it is what few exceed; most are shorter.
			_, expect, _ := c.price(cl, en, q)
			if m := cl.lengths.middle; m > 0 {
				expect = min(expect, m)
			}
			whole = age + start + Time(expect)*en.timing.tokenTime(c.running(en)) - limit
		}
		if age+start <= Time(limits.First) && whole <= 0 {
			return false
		}
	}
	return any // while nothing runs there is nothing to know
}

// usualStart is the median of the class's last times from admission to first
// token: beside others, a prompt takes longer than by itself.
func (cl *class) usualStart() Time {
	s := cl.firsts
	slices.Sort(s[:])
	return s[len(s)/2]
}

// late tells whether the late request in slot has its turn.
func (c *Core) late(cl *class, slot int32) bool {
	q := &c.requests[slot]
	limits := q.objective(cl)
	limit := Time(limits.Whole)
	if limit == 0 {
		limit = overAge * Time(limits.First)
	}
	return c.lines[q.line].turns >= lateTurn-1 && c.now-q.arrived >= limit
}

// turn counts the starts that late ones of a tenant have waited for.
func (c *Core) turn(q *request) {
	l := &c.lines[q.line]
	if l.turns++; q.late {
		l.turns = 0
	}
}

// crowds tells whether the start of a late request would make those late that
// start beside it on the engine.
func (c *Core) crowds(k Class, en *engine, q *request) bool {
	if !q.late {
		return false
	}
	step, least := en.timing.prefillTime(q.work(en)), Never
	for _, i := range en.starting {
		h := &c.holds[i]
		step += en.timing.prefillTime(h.prompt - h.cached)
		if h.class != k || h.req == 0 {
			continue
		}
		if r := &c.requests[h.req.Slot()]; !r.late {
			least = min(least, Time(r.objective(&c.classes[k]).First)-(c.now-r.arrived))
		}
	}
	for j := range c.classes {
		step += en.timing.prefills(c.atOthers(Class(j)).at(en.id))
	}
	if o := c.atOthers(k); o.Starting != 0 {
		least = min(least, Time(c.classes[k].spec.Objective.First)-(c.now-o.Starting))
	}
	return step > least
}
