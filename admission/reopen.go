package admission

import (
	"slices"
	"time"
)

// When a class whose lending was closed lends again. By itself an idle time tells
// little: interactive traffic is all gaps. What it is worth is what it can be
// expected to last, and that is weighed against a recall.
//
// Alternatives: a fixed idle time (the published rule, ReopenIdle) is too short for
// one class and too long for another, and reopens into the next burst; a rate of
// recalls to aim at punishes a class for traffic that nothing was lent against; a
// forecast of arrivals by the time of day needs weeks of them.

// gaps learns how long a class's idle times are, in buckets of milliseconds as
// in lengths.
type gaps struct {
	counts [lengthBuckets]uint32
	total  uint32
}

const maxGaps = 256

func (g *gaps) add(d Time) {
	g.counts[lengthBucket(int32(min(d/Time(time.Millisecond), 1<<24)))]++
	if g.total++; g.total >= maxGaps {
		g.total = 0
		for i := range g.counts {
			g.counts[i] /= 2
			g.total += g.counts[i]
		}
	}
}

// unknownGap is how many times longer than it has been an unknown gap is taken to
// last.
const unknownGap = 20

// remaining is how much longer a class that has been idle for d stays so, in the
// mean over the gaps that were longer, and one more, the unknown one. Gaps between
// requests that belong together are alike, so one that is longer than all of them
// is of another kind, and taken to last several times as long as it has.
func (g *gaps) remaining(d Time) Time {
	now := int64(d / Time(time.Millisecond))
	sum, n := unknownGap*now, int64(1)
	for b := lengthBucket(int32(min(now, 1<<24))); b < lengthBuckets; b++ {
		v := int64(g.counts[b])
		sum += v * max(0, int64(lengthTop(b))-now)
		n += v
	}
	return Time(sum / n * int64(time.Millisecond))
}

// within is how probable it is that a gap which has lasted for d ends in the next
// x: of those that were longer, as many as did, and one more, the unknown one.
func (g *gaps) within(d, x Time) float64 {
	from := lengthBucket(int32(min(d/Time(time.Millisecond), 1<<24)))
	to := lengthBucket(int32(min((d+x)/Time(time.Millisecond), 1<<24)))
	longer, ended := uint32(0), uint32(0)
	for b := from; b < lengthBuckets; b++ {
		longer += g.counts[b]
		if b <= to {
			ended += g.counts[b]
		}
	}
	return (float64(ended) + float64(x)/float64(d+x)) / float64(longer+1)
}

// quiet tells whether a class that is idle has been so for long enough that its
// capacity is worth lending: what is to be expected of its idle time is worth
// more than a recall would cost.
func (c *Core) quiet(cl *class) bool { return cl.idleSince != Never && c.idles(cl) == staysNot }

// idles is what of its idle time keeps an idle class from lending.
func (c *Core) idles(cl *class) stays {
	idle := c.now - cl.idleSince
	if idle < c.idleAfter(cl) {
		return staysFresh
	}
	cost := c.recallCost(cl)
	if cl.lossless {
		cost *= losslessWorth
	}
	if cl.spec.Reopen == ReopenSettled && cl.gaps.remaining(idle) < cost {
		return staysShort
	}
	return staysNot
}

// light tells whether a class that always has something running has for long had
// no more than it found room for.
func (c *Core) light(cl *class) bool { return c.now >= cl.fits()+c.idleAfter(cl) }

// fits is from when on a class in use has found room. Where the wait is short, the idle time
// before it came into use tells nothing: its first request may be the first of many.
func (cl *class) fits() Time {
	if cl.lossless {
		return max(cl.pressed, cl.began)
	}
	return cl.pressed
}

// peakWindow is how far back a peak counts. While a class is in use, a settled
// reopening looks back further than it waits, or it would have forgotten by then
// what it was recalled for.
func (s *ClassSpec) peakWindow(thrash uint8) Time {
	w := min(Time(s.IdleAfter), Time(maxDuration)>>8)
	if s.Reopen == ReopenSettled {
		w = peakBack * w << thrash
	}
	return w
}

const peakBack = 8

// idleAfter is how long a class has to be idle, or to fit, at present.
func (c *Core) idleAfter(cl *class) Time {
	w := min(Time(cl.spec.IdleAfter)<<cl.thrash, Time(maxDuration))
	if cl.lossless && cl.spec.Reopen == ReopenSettled && c.recallCost(cl) > 0 {
		w /= losslessWait
	}
	return w
}

// The wait saves recalls. Where those lose next to nothing it is a small part of what it is
// elsewhere, and what the idle time can be expected to last decides nearly alone. That has to
// be worth several recalls: each holds up who returns, and a prefill that it ends was for
// nothing. With less than four batch loses under traffic that never pauses, with more in the
// pauses of traffic that does.
const (
	losslessWait  = 16
	losslessWorth = 4
)

// lossless tells whether who is recalled for a class finds its prompt and its answer
// again in the engine's cache: of several engines, if it comes back to the same one.
func (c *Core) lossless(p *class) bool {
	for e := range c.engines {
		if spec := &c.engines[e].spec; !spec.Closed && !spec.Caches {
			return false
		}
	}
	for k := range c.classes {
		if cl := &c.classes[k]; cl != p && !cl.spec.Closed && cl.spec.Mode != ReclaimNow {
			return false
		}
	}
	return true
}

// lateCost is how many times a borrower's prefill a recall costs a class that
// can't bear one. Together with unknownGap it says that such a class lends only
// when it has been idle for longer than it is known to be.
const lateCost = 7

// recallCost is what a recall costs class p: the longest prefill that a borrower
// usually needs has to be computed again; and where p can't bear to wait for one,
// whoever returns meanwhile is late, and so are some who come behind.
func (c *Core) recallCost(p *class) Time {
	if p.costOf == c.learned+1 {
		return p.cost
	}
	longest, cost := int32(0), Time(0)
	for k := range c.classes {
		if cl := &c.classes[k]; cl != p && cl.spec.Mode != Attrition {
			longest = max(longest, cl.usualPrompt)
		}
	}
	for e := range c.engines {
		en := &c.engines[e]
		again := en.timing.prefillTime(longest)
		if limit := Time(p.spec.Objective.First); limit > 0 && again+en.timing.prefillTime(p.usualPrompt) > limit {
			again *= lateCost
		}
		cost = max(cost, again)
	}
	p.cost, p.costOf = cost, c.learned+1
	return cost
}

// stays is why a class whose lending is closed stays so.
type stays uint8

const (
	staysNot       stays = iota
	staysUnsettled       // not all is back that was lent before
	staysWanted          // its own requests wait
	staysUsed            // it is in use, which is enough under ReopenIdle
	staysPressed         // it is in use, and its demand has not fitted for long enough
	staysFresh           // it has not been idle for long enough
	staysShort           // what is expected of its idle time is not worth a recall
)

// stays tells why a class does not lend again.
//
// A class that is idle lends when that is worth it. One that keeps some requests
// running all the time never is, and lends what its recent peak leaves once its
// demand has fitted for as long as an idle class would have to wait.
func (c *Core) stays(cl *class) stays {
	switch {
	case cl.spec.Reopen == ReopenSettled && c.calls(cl):
		return staysUnsettled
	case cl.idleSince != Never:
		return c.idles(cl)
	case cl.queue.n > 0:
		return staysWanted
	case cl.spec.Reopen == ReopenIdle:
		return staysUsed
	case !c.light(cl):
		return staysPressed
	}
	return staysNot
}

// reopen lends a class's floor again, where nothing keeps it from that.
func (c *Core) reopen(k Class) {
	cl := &c.classes[k]
	if cl.open || cl.spec.Window > 0 || c.stays(cl) != staysNot {
		return
	}
	cl.open, cl.opened = true, c.now
	c.refresh(k)
	c.emit(Effect{Op: Stage, Cause: CauseLendingOpened, Class: k})
}

// looks is when it is next worth looking whether an idle class is quiet, or a
// closed one lends again; Never if time alone changes nothing.
func (c *Core) looks(cl *class) Time {
	switch {
	case cl.spec.Window > 0 && !cl.protected():
		return Never
	case cl.open && (c.waiting == 0 || !cl.protected() && cl.spec.Reopen == ReopenIdle):
		return Never
	case cl.idleSince != Never:
		if at := cl.idleSince + c.idleAfter(cl); at > c.now {
			return at
		}
		if c.quiet(cl) {
			if cl.open || c.calls(cl) && cl.spec.Reopen == ReopenSettled {
				return Never // a settled recall looks by itself
			}
			return c.now
		}
		return c.now + max(Time(cl.spec.IdleAfter)/4, Time(time.Millisecond))
	case !cl.open && cl.spec.Reopen == ReopenSettled:
		if at := cl.fits() + c.idleAfter(cl); at > c.now || cl.queue.n == 0 && !c.calls(cl) {
			return max(at, c.now)
		}
	}
	return Never
}

// maxThrash bounds how often idleAfter is doubled.
const maxThrash = 3

// thrashed notes that a class is recalled. If it has not lent for long, it waits
// longer next time.
func (c *Core) thrashed(cl *class) {
	if cl.spec.Reopen != ReopenSettled || cl.opened == 0 || c.now-cl.opened >= 8*c.idleAfter(cl) || cl.thrash == maxThrash {
		return
	}
	cl.thrash++
	cl.peak.init(cl.spec.peakWindow(cl.thrash), c.now)
}

// calmAfter is how much idle time, in IdleAfters, takes one doubling back. Idle
// time and not the absence of recalls: a class that lends nothing is not recalled.
const calmAfter = 64

// rested learns from an idle time that has just ended.
func (c *Core) rested(cl *class) {
	gap := c.now - cl.idleSince
	cl.idleSince = Never
	cl.began = c.now
	cl.gaps.add(gap)
	for cl.idled += gap; cl.thrash > 0 && cl.idled >= calmAfter*Time(cl.spec.IdleAfter); cl.idled -= calmAfter * Time(cl.spec.IdleAfter) {
		cl.thrash--
		cl.peak.init(cl.spec.peakWindow(cl.thrash), c.now)
	}
}

// learnPrompt keeps the largest of a class's last prompts.
func (c *Core) learnPrompt(cl *class, n int32) {
	cl.prompts[cl.promptAt] = n
	cl.promptAt = (cl.promptAt + 1) % uint8(len(cl.prompts))
	if m := slices.Max(cl.prompts[:]); m != cl.usualPrompt {
		cl.usualPrompt = m
		c.learned++
	}
}
