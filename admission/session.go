package admission

import "headgate/kv"

// session is the KV that a session has left in the engines' caches. For as long
// as its class keeps it warm it counts as used when the class lends, or the next
// turn would find its prefix evicted and pay for a full prefill.
//
// Alternatives: pinning blocks in the engine is nothing that a gateway can do;
// counting it against the class's floor, too, would make a class with many
// sessions refuse its own requests for the sake of what may never come back.
type session struct {
	class      Class
	tokens     int64 // 0: nothing is kept
	until      Time
	prev, next int32 // in the class's list
}

// keepWarm notes what a finished request leaves for its session's next turn.
func (c *Core) keepWarm(h *hold) {
	q := &c.requests[h.req.Slot()]
	cl := &c.classes[h.class]
	if q.session == 0 || cl.spec.KeepWarm == 0 {
		return
	}
	for int(q.session) >= len(c.sessions) {
		c.sessions = append(c.sessions, session{prev: none, next: none})
	}
	c.chill(q.session)
	i := int32(q.session)
	c.sessions[i] = session{
		class: h.class, tokens: kv.RoundUp(int64(h.prompt)+int64(h.out/h.n), c.engines[h.engine].spec.Block),
		until: c.now.plus(cl.spec.KeepWarm), prev: cl.warmest, next: none,
	}
	if cl.warmest != none {
		c.sessions[cl.warmest].next = i
	} else {
		cl.coolest = i
	}
	cl.warmest = i
	cl.warm += c.sessions[i].tokens
	c.refresh(h.class)
	c.wake(c.sessions[i].until)
}

// chill forgets what is kept for a session: its next turn holds it itself.
func (c *Core) chill(id uint32) {
	if int(id) >= len(c.sessions) || c.sessions[id].tokens == 0 {
		return
	}
	s := &c.sessions[id]
	cl := &c.classes[s.class]
	if s.prev != none {
		c.sessions[s.prev].next = s.next
	} else {
		cl.coolest = s.next
	}
	if s.next != none {
		c.sessions[s.next].prev = s.prev
	} else {
		cl.warmest = s.prev
	}
	cl.warm -= s.tokens
	s.tokens = 0
	c.refresh(s.class)
}

// cool forgets the sessions of a class whose time is over.
func (c *Core) cool(k Class) {
	for i := c.classes[k].coolest; i != none && c.sessions[i].until <= c.now; i = c.classes[k].coolest {
		c.chill(uint32(i))
	}
}

// cools is when the next session's time is over.
func (c *Core) cools(cl *class) Time {
	if cl.coolest == none {
		return Never
	}
	return c.sessions[cl.coolest].until
}
