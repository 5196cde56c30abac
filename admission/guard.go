package admission

import (
	"fmt"
	"time"
)

// The stall guard. A step of an engine can't be interrupted: a long prefill that
// starts just before a protected request comes holds it up for the whole step.
// So while a protected class is active, a start of a lower class must fit into
// what the protected class can still bear on that engine:
//
//	stall = what is left of the lower classes' prefills under way + its own
//	bear  = objective - age - own prefill   of the protected request that has
//	        waited longest for its first token, in the queue or on the engine
//	      = objective - prefill of the class's usual prompt   if there is none
//
// with the class's objective, or a request's own where that is tighter (own.go),
//
// and all such stalls together must stay within a share of the time. A class is
// active while it has anything waiting or running, and for as long afterwards
// as it is not worth lending its idle capacity (see reopen.go).
//
// A class whose window's service is due starts at the next moment at which no
// protected request waits for its first token: there is none to hold up, and how
// many come during the stall does not depend on which such moment it is.
//
// Alternatives: a cap on prefill tokens in flight does not know that the same
// prompt takes a second on one card and seven on another; cutting prompts into
// pieces inside the engine (its own chunked prefill) bounds the step, but each
// piece still takes its turn, so the waiting request pays for all of them; never
// starting lower work beside protected work starves it under steady traffic.

// protected tells whether a class has an objective that starts can break.
func (cl *class) protected() bool { return cl.spec.Objective.First > 0 || cl.spec.Objective.Token > 0 }

// active tells whether a class's requests are there or to be expected.
func (c *Core) active(cl *class) bool {
	return cl.queue.n > 0 || cl.used != (Amount{}) || c.atOthers(cl.id).there() || !c.quiet(cl)
}

// stalls tells whether a start of q, of class k, on engine en would hold up a
// protected class for longer than it can bear.
func (c *Core) stalls(k Class, en *engine, q *request) bool {
	cl := &c.classes[k]
	owed := cl.used[Slots]+int64(q.n) <= cl.floor[Slots]
	if owed && cl.spec.Window == 0 {
		return false
	}
	own := en.timing.prefillTime(q.work(en))
	for j := range eachClass(c.guarded & (bit(k) - 1)) {
		p := &c.classes[j]
		ahead, bear, waits := c.stalled(p, j, en)
		switch {
		case !c.active(p):
			// Nobody is there to be held up, but who returns must not find more
			// than one start before him that he can't bear, and not even one that
			// can be split.
			if ahead+own > bear && (ahead > 0 || q.splits(en, bear)) {
				return true
			}
		case owed:
			if !cl.overdue() && (waits || !c.paces(p, en, int64(q.n))) {
				return true
			}
		case !c.paces(p, en, int64(q.n)):
			return true
		case ahead+own > bear && (waits || p.comes.within(c.now-p.came, ahead+own-bear) > mayComeLate):
			return true
		case !c.mayStall(own):
			return true
		}
	}
	return false
}

// whyStalls explains the first refusal that stalls makes.
func (c *Core) whyStalls(k Class, en *engine, q *request) string {
	own := en.timing.prefillTime(q.work(en))
	for j := range eachClass(c.guarded & (bit(k) - 1)) {
		p := &c.classes[j]
		ahead, bear, waits := c.stalled(p, j, en)
		state := "quiet"
		if c.active(p) {
			state = "active"
		}
		if waits {
			state = "waiting for a first token"
		}
		return fmt.Sprintf("class %s, %s, which can be held up for %v: starts under way %v + own %v", p.spec.Name, state,
			time.Duration(bear).Round(time.Millisecond), time.Duration(ahead).Round(time.Millisecond), time.Duration(own).Round(time.Millisecond))
	}
	return "requests of its own class that can still be in time"
}

// paces tells whether a class's requests on an engine keep their time per token
// beside n sequences more.
func (c *Core) paces(p *class, en *engine, n int64) bool {
	limit := Time(p.spec.Objective.Token)
	if limit == 0 || p.used[Slots]+c.atOthers(p.id).Used[Slots] == 0 {
		return true
	}
	return en.timing.tokenTime(c.running(en)+n) <= limit && c.ownPace(p, en, n)
}

// stalled returns for how long starts of lower classes than p will still hold up
// engine en, for how long p can bear to be held up there, and whether a request of
// p waits for its first token.
func (c *Core) stalled(p *class, j Class, en *engine) (ahead, bear Time, waits bool) {
	if p.spec.Objective.First == 0 {
		return 0, Never, false
	}
	bear, own := Time(p.spec.Objective.First), Time(0)
	if i := p.queue.head; i != none {
		q := &c.requests[i]
		within := false
		if q.first > 0 {
			_, _, within = c.demand(p, en, q)
		}
		waits, bear = true, min(bear, c.bearsFor(p, q, c.now-q.arrived+en.timing.prefillTime(q.work(en)), within))
		own = en.timing.prefillTime(p.usualPrompt) * Time(p.queue.n)
	}
	for _, i := range en.starting {
		h := &c.holds[i]
		if h.class == j && h.req != 0 {
			q, work := &c.requests[h.req.Slot()], en.timing.prefillTime(h.prompt-h.cached)
			waits, bear = true, min(bear, c.bearsFor(p, q, max(h.admitted-q.arrived+work, c.now-q.arrived), !h.loan))
			own += work
		}
	}
	if o := c.atOthers(j); o.Pending != 0 {
		waits, bear = true, min(bear, Time(p.spec.Objective.First)-(c.now-o.Pending))
		own += en.timing.prefillTime(p.usualPrompt)*Time(o.Waiting) + en.timing.prefills(o.at(en.id))
	}
	if !waits {
		own = en.timing.prefillTime(p.usualPrompt)
	}
	return c.ahead(en, j+1), bear - own, waits
}

// bears is for how long a request of class p can still be held up.
func (c *Core) bears(p *class, q *request, en *engine) Time {
	return Time(q.objective(p).First) - (c.now - q.arrived) - en.timing.prefillTime(q.work(en))
}

// mayComeLate is how probable it may be that a request comes early enough in a
// stall to be late for it.
const mayComeLate = 0.05

// stallSpan is over how long the share of stalls counts.
const stallSpan = Time(60e9)

// mayStall tells whether the stalls of late leave room for one more.
func (c *Core) mayStall(stall Time) bool {
	if c.stallShare == 0 {
		return true
	}
	late := c.stallsOfLate()
	return late == 0 || late+stall <= Time(c.stallShare*float64(stallSpan))
}

// stall notes that a start holds an engine up while a protected class is active.
func (c *Core) stall(k Class, en *engine, h *hold) {
	c.stallFor(k, en, h.prompt-h.cached)
}

// stallFor is stall for a start that has n tokens computed.
func (c *Core) stallFor(k Class, en *engine, n int32) {
	if c.stallShare == 0 {
		return
	}
	for j := range eachClass(c.guarded & (bit(k) - 1)) {
		if p := &c.classes[j]; c.active(p) {
			c.stallSum, c.stallAt = c.stallsOfLate()+en.timing.prefillTime(n), c.now
			return
		}
	}
}

// stallsOfLate is the sum of the stalls, of which the allowed share has drained.
func (c *Core) stallsOfLate() Time {
	return max(0, c.stallSum-Time(c.stallShare*float64(c.now-c.stallAt)))
}
