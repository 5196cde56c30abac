package admission

import (
	"fmt"
	"time"
)

// Brief is the state for somebody who looks often: a Snapshot without its holds, so that
// what it costs grows with the loans and with who is late and not with all that runs, and
// with what a look wants to have in words.
//
// Alternatives: to keep it up to date with every step would be cheaper for who looks and
// dearer for every request, and mostly nobody looks.
type Brief struct {
	*Snapshot
	// Closed is, by class, why it does not lend; "" if it does.
	Closed []string
	// Heads are, by class, in how long the first that waits starts, by the forecast; Never:
	// nobody waits, or there is none.
	Heads []Time
}

// Brief returns the state. It changes nothing and shares nothing with the core.
func (c *Core) Brief() *Brief {
	b := &Brief{Snapshot: c.summary()}
	for k := range c.classes {
		b.Closed = append(b.Closed, c.whyClosed(&c.classes[k]))
		b.Heads = append(b.Heads, c.headStarts(&c.classes[k]))
	}
	return b
}

// whyClosed says why a class does not lend.
func (c *Core) whyClosed(cl *class) string {
	ms := func(t Time) time.Duration { return time.Duration(t).Round(10 * time.Millisecond) }
	if c.pause {
		return "an operator has paused lending"
	}
	if cl.open {
		return ""
	}
	switch c.stays(cl) {
	case staysUnsettled:
		return "what was lent before the last recall is not all back"
	case staysWanted:
		return "its own requests wait"
	case staysUsed:
		return "it is in use"
	case staysPressed:
		return fmt.Sprintf("it is in use, and its demand has not fitted for %v yet", ms(c.idleAfter(cl)))
	case staysFresh:
		return fmt.Sprintf("it has been idle for %v of %v", ms(c.now-cl.idleSince), ms(c.idleAfter(cl)))
	case staysShort:
		return "a recall would cost more than the idle time that is expected is worth"
	}
	return "it is about to lend"
}

// mostStarting is how many holds without a token an engine may have for a forecast to be made
// of its holds' ends. Each of them costs a look as much as a decision, and of so many nobody
// knows how long they take.
const mostStarting = 64

// headStarts is in how long a class's first waiting request starts, by the pace of its
// queue, or until an engine without room for it will have some; Never if neither is known.
func (c *Core) headStarts(cl *class) Time {
	if cl.queue.head == none {
		return Never
	}
	if wait := cl.pace.forecast(c.now, 0); wait > 0 {
		return wait
	}
	q := &c.requests[cl.queue.head]
	soonest := Never
	for e := range c.engines {
		en := &c.engines[e]
		if why, _, _ := en.misfit(cl, q); why != CauseNone || !en.counts || len(en.starting) > mostStarting {
			continue
		}
		amount, _, _ := c.price(cl, en, q)
		// Where there is room already it waits for something that no end of a hold brings.
		if at := c.roomAt(cl, en, amount); at > c.now && at != Never {
			soonest = min(soonest, at-c.now)
		}
	}
	return soonest
}

// Work is what a class has done for a tenant, in weighted tokens as fairness counts them.
type Work struct {
	Done    int64
	Counter int64 // of those that wait, the one with the least is served next
	Waiting int
}

// Work returns what class k has done for tenant t; false if that never asked for it.
func (c *Core) Work(k Class, t Tenant) (w Work, ok bool) {
	if int(t) >= len(c.tenants) || int(k) >= len(c.classes) {
		return w, false
	}
	for i := c.tenants[t]; i != none; i = c.lines[i].sibling {
		if l := &c.lines[i]; l.class == k {
			return Work{l.counter - l.lifted, l.counter, l.n}, true
		}
	}
	return w, false
}
