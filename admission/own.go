package admission

import (
	"fmt"
	"strings"
	"time"
)

// A request may bring limits of its own on the time to its first token and on that
// per output token, which its driver has checked that it may (Event.First, Token).
// They go before its class's wherever it is about this request alone: whether it can
// still be in time (late.go), and for how long it leaves loans to end by themselves
// before some are ended for it (reclaim.go). Its place in the queue, its floor and
// its rank are its class's.
//
// The stall guard holds others up, so there a limit of a request's own counts
//
//   - only where it is tighter than the class's: who asks for less must not take
//     from those who come next what the class promises them;
//   - only where the class has that limit: without one it has no guard, and a client
//     does not get it one;
//   - only within the class's floor: what is borrowed is borrowed with the class's
//     limits, so nobody holds others up longer than they agreed to for capacity
//     that is theirs;
//   - only while it can still be kept: what nobody can do, nobody is held up for.
//
// Of those who wait only the first can make it tighter, since the others don't
// start before it.
//
// Alternatives: earliest deadline first by these limits would let a client choose
// its place in the queue; a class for each limit is what operators have without
// this, and can't know what each request needs; the tightest of all who wait would
// be held up for by starts that come long before it.

// With is the objective with a request's own limits; 0 is none. The first token comes
// no later than the last.
func (o Objective) With(first, token time.Duration) Objective {
	if first > 0 {
		o.First = first
		if o.Whole > 0 {
			o.First = min(first, o.Whole)
		}
	}
	if token > 0 {
		o.Token = token
	}
	return o
}

// objective is what "on time" means for a request of class cl.
func (q *request) objective(cl *class) Objective { return cl.spec.Objective.With(q.first, q.token) }

// bearsFor is for how long a request of class p that waits for its first token could
// be held up if its prefill took no time. start is how long after its arrival the
// token would come if it is not; within: it is served within its class's floor.
func (c *Core) bearsFor(p *class, q *request, start Time, within bool) Time {
	limit := Time(p.spec.Objective.First)
	if own := Time(q.objective(p).First); own < limit && within && start <= own {
		limit = own
	}
	return limit - (c.now - q.arrived)
}

// ownPace tells whether those requests of class p on an engine that have a tighter
// limit per token than it, and keep that now, keep it beside n sequences more.
func (c *Core) ownPace(p *class, en *engine, n int64) bool {
	if p.paced == 0 {
		return true
	}
	now, then := en.timing.tokenTime(en.used[Slots]), en.timing.tokenTime(en.used[Slots]+n)
	for i := range c.holds {
		h := &c.holds[i]
		if h.token > 0 && h.state == holdLive && h.req != 0 && !h.loan && h.engine == en.id && &c.classes[h.class] == p && now <= h.token && then > h.token {
			return false
		}
	}
	return true
}

// asks says what a request asks for itself.
func (q *request) asks() string {
	var limits []string
	if q.first > 0 {
		limits = append(limits, fmt.Sprintf("ttft %v", q.first))
	}
	if q.token > 0 {
		limits = append(limits, fmt.Sprintf("tpot %v", q.token))
	}
	return strings.Join(limits, ", ")
}
