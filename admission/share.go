package admission

import (
	"cmp"
	"slices"
)

// A share. In a fleet several cores use the same engines, each its part of them, as
// its table says: the rest is withheld. It counts like work of others, in both
// conditions. What could ever be admitted is still judged by the whole engine, since
// a share changes with demand and a request does not: one that is too large for the
// share waits, and is told of. The classes' floors are this core's parts of them; they
// are protected against its own loans, and may together be more than it has.
//
// A table's shares are a lease. When it ends the core by itself falls to what
// survives, and ends nothing for it: nothing more is admitted until what runs is
// below that. A lease that is over is over, whatever is heard of it later; another
// table brings another.
//
// A head that needs more than the share has of any engine waits for nothing that is
// here. So it bars nobody from borrowing, smaller ones of its class pass it as they
// pass one that waits for KV, and its class lends what it does not use. Once a core is
// told of the others it is otherwise for one within its floor: what is idle here may be
// on its way to it, so that it bars all from borrowing, here and elsewhere.
//
// Alternatives: to hand the core smaller engines would refuse for good what the pool
// could run; to count what other cores really use, instead of what they may, in what
// an engine has left would need their word at every admission. What is kept for classes
// is counted so, see elsewhere.go.

// share is what a core knows of the part it has.
type share struct {
	on      bool   // an engine or a ceiling is shared
	until   Time   // the end of the lease; 0 is none
	expired bool   // the lease is over
	recall  bool   // what is used beyond it is wanted
	stirred bool   // something has changed since the last look at who is short
	fell    bool   // what is used beyond it has become less
	pending uint64 // classes of which a request had no first token when last told of
	starts  int    // how many were starting then
	short   uint64 // classes that were told to be short
	beyond  uint64 // classes whose head needs more than there is of any engine, and more than their floors
	within  uint64 // classes whose head needs more than there is of any engine, within their floors
}

// told is what was last said of a class that is short.
type told struct {
	n    int // how many wait
	head ID
}

// over tells whether the lease has ended and the core does not know it yet.
func (s *share) over(now Time) bool { return s.until != 0 && !s.expired && s.until <= now }

// ends is when the lease ends, Never if it does not.
func (s *share) ends() Time {
	if s.until == 0 || s.expired {
		return Never
	}
	return s.until
}

// take takes over what a table says of shares.
func (c *Core) take(t *Table) {
	s := &c.share
	s.until, s.expired, s.recall, s.on = t.Until, t.Until != 0 && t.Until <= c.now, t.Recall, false
	for e := range t.Engines {
		s.on = s.on || t.Engines[e].Shared
	}
	for k := range t.Classes {
		s.on = s.on || t.Classes[k].Shared
	}
}

// adopt takes over an engine's row of a table.
func (en *engine) adopt(spec EngineSpec) {
	if en.spec.Shared && !spec.Shared {
		// It is the gauges again that tell what others run.
		en.foreign, en.gauge.seen = Amount{}, false
	}
	if spec.Shared {
		spec.Boundary = 0
	}
	en.spec, en.untrue = spec, 0
}

// renew moves the end of the lease.
func (c *Core) renew(until Time) {
	s := &c.share
	if s.until == 0 || s.expired {
		return
	}
	s.until = max(until, 1)
	if s.over(c.now) {
		c.expire()
		c.pump()
	}
	c.wake(s.ends())
}

// expire falls to what survives the lease.
func (c *Core) expire() {
	c.share.expired = true
	for k := range c.classes {
		// What was freed for a request may be more than there is now.
		c.unpair(Class(k), c.classes[k].pairing.req)
	}
	c.reckon()
}

// withheld is what others may use of a shared engine.
func (c *Core) withheld(en *engine) Amount {
	if c.share.expired {
		return Of(en.spec.Slots, en.spec.KV).sub(en.spec.Survival)
	}
	return en.spec.Withheld
}

// withheldSum is what others may use of all engines that count.
func (c *Core) withheldSum() (sum Amount) {
	for e := range c.engines {
		if en := &c.engines[e]; en.spec.Shared {
			sum = sum.add(en.foreign)
		}
	}
	return sum
}

// ceiling is what a class may use at most, of what its ceiling leaves it here.
func (c *Core) ceiling(cl *class) Amount {
	switch {
	case !cl.spec.Shared:
		return cl.spec.Ceiling
	case c.share.expired:
		return cl.spec.Survival
	}
	return cl.spec.Ceiling.sub(cl.spec.Withheld)
}

// beyondShare tells whether this core has not as much of an engine, and of what.
func (en *engine) beyondShare(amount Amount) (Resource, bool) {
	if en.spec.Shared {
		for r := range NumResources {
			if amount[r]+en.foreign[r] > Of(en.spec.Slots, en.spec.KV)[r] {
				return r, true
			}
		}
	}
	return 0, false
}

// excess is what of used is beyond the share of an engine.
func (en *engine) excess(used Amount) (over Amount) {
	for r := range NumResources {
		if en.spec.Shared && en.foreign[r] > 0 {
			over[r] = max(0, used[r]+en.foreign[r]-Of(en.spec.Slots, en.spec.KV)[r])
		}
	}
	return over
}

// excess is what of used is beyond the class's part of its ceiling.
func (cl *class) excess(used Amount) (over Amount) {
	for r := range NumResources {
		if cl.ceiling[r] < cl.spec.Ceiling[r] {
			over[r] = max(0, used[r]-cl.ceiling[r])
		}
	}
	return over
}

// moves notes that what is used moves, and whether it becomes less beyond a share.
func (c *Core) moves(cl *class, en *engine, delta Amount) {
	c.share.stirred = true
	over := en.excess(en.used).max(cl.excess(cl.used))
	for r := range NumResources {
		c.share.fell = c.share.fell || delta[r] < 0 && over[r] > 0
	}
}

// giveBack ends loans for what is used beyond the shares, where that is wanted: until
// it is made up for beside what is on its way out already, or as far as there are
// loans that may be ended, those with the least waste first; and none without which the
// others do as much. What has to be left for later asks for a tick.
func (c *Core) giveBack() {
	if !c.share.recall || c.share.expired || c.bypass {
		return
	}
	var here [MaxEngines]Amount
	var left [MaxClasses]Amount
	over := false
	for e := range c.engines {
		en := &c.engines[e]
		here[e] = en.used.sub(en.going)
		over = over || en.excess(here[e]) != (Amount{})
	}
	for k := range c.classes {
		cl := &c.classes[k]
		left[k] = cl.used.sub(cl.going)
		over = over || cl.excess(left[k]) != (Amount{})
	}
	if !over || !c.reclaimable() {
		return
	}
	// excess is what is beyond the shares where a hold is, without it and with it.
	excess := func(h *hold, without, with Amount) (a, b [2]Amount) {
		cl, en := &c.classes[h.class], &c.engines[h.engine]
		u, v := left[h.class], here[h.engine]
		return [2]Amount{cl.excess(u.sub(without)), en.excess(v.sub(without))}, [2]Amount{cl.excess(u.add(with)), en.excess(v.add(with))}
	}
	c.victims = c.victims[:0]
	for e := range c.engines {
		for k := range c.classes {
			if c.engines[e].excess(here[e]) != (Amount{}) || c.classes[k].excess(left[k]) != (Amount{}) {
				c.collect(Engine(e), &c.classes[k])
			}
		}
	}
	c.rank()
	for i := range c.victims {
		v := &c.victims[i]
		h := &c.holds[v.hold]
		if without, with := excess(h, h.amount, Amount{}); without != with && !left[h.class].within(c.classes[h.class].floor) {
			v.ended = true
			left[h.class], here[h.engine] = left[h.class].sub(h.amount), here[h.engine].sub(h.amount)
		}
	}
	for i := len(c.victims) - 1; i >= 0; i-- {
		v := &c.victims[i]
		h := &c.holds[v.hold]
		if without, with := excess(h, Amount{}, h.amount); v.ended && without == with {
			v.ended = false
			left[h.class], here[h.engine] = left[h.class].add(h.amount), here[h.engine].add(h.amount)
		}
	}
	for i := range c.victims {
		if !c.victims[i].ended {
			continue
		}
		if !c.countReclaims(1) {
			return
		}
		c.end(c.victims[i].hold, nobody, 0)
	}
}

// stirFor is how long what only the other cores have to know may wait, so that not every
// prompt is a message.
const stirFor = Time(50e6)

// tell asks for a look at the demand when there is news of it: a class has come to be
// short of its share, or no longer is; more of one that is short wait, or another is
// first; or what is used beyond a share has become less.
func (c *Core) tell() {
	s := &c.share
	news := s.fell
	s.fell = false
	if s.stirred {
		s.stirred = false
		for k := range eachClass(c.waiting | s.short) {
			cl := &c.classes[k]
			now := told{n: cl.queue.n}
			short := uint64(0)
			if cl.queue.head != none {
				now.head = c.requestID(cl.queue.head)
				if c.isShort(cl) {
					short = bit(k)
				}
			}
			news = news || short != s.short&bit(k) || short != 0 && (now.n > cl.told.n || now.head != cl.told.head)
			s.short = s.short&^bit(k) | short
			cl.told = now
		}
	}
	switch stirs := c.knows() && c.stirs(); {
	case news:
		c.emit(Effect{Op: Demand})
	case stirs:
		c.emit(Effect{Op: Demand, Retry: stirFor})
	}
}

// isShort tells whether a class's head waits for a larger share and for nothing else
// that could take long: there is no room on any engine that works, none will come of
// what is on its way out, and there would be if nothing were withheld. What the guard
// says goes by the time; it has its say when there is room.
func (c *Core) isShort(cl *class) bool {
	q := &c.requests[cl.queue.head]
	for e := range c.engines {
		en := &c.engines[e]
		if f, ok := c.fitOn(cl, en, q); ok && f.roomy() {
			return false
		}
		if after, amount, ok := c.demand(cl, en, q); ok {
			if o := c.look(cl, en); o.fits(cl, after, amount) {
				return false
			}
		}
	}
	foreign, relief, ceiling := c.foreign, c.relief, cl.ceiling
	c.relief = Amount{}
	for e := range c.engines {
		if en := &c.engines[e]; en.spec.Shared {
			c.foreign, en.foreign = c.foreign.sub(en.foreign), Amount{}
		}
	}
	cl.ceiling = cl.spec.Ceiling
	short := false
	for e := range c.engines {
		f, ok := c.fitOn(cl, &c.engines[e], q)
		short = short || ok && (f.ok || f.refusal == refusedStall)
	}
	c.foreign, c.relief, cl.ceiling = foreign, relief, ceiling
	for e := range c.engines {
		if en := &c.engines[e]; en.spec.Shared && en.counts {
			en.foreign = c.withheld(en)
		}
	}
	return short
}

// roomy tells that an engine has room for a request, whatever else is in its way there.
func (f *fitting) roomy() bool {
	switch f.refusal {
	case refusedNone, refusedWhole, refusedStall, refusedPaired:
		return true
	}
	return false
}

// Demands is what a core has and wants, for who hands out the shares.
type Demands struct {
	// Samples are, by engine, when the last sample of it was asked for and came back, for
	// Steady; the caller's.
	Samples []struct{ Asked, Came Time }
	Engines []EngineDemand // by the table's index
	Classes []ClassDemand
	// Residual is for how long at most what runs now goes on.
	Residual Time
}

// EngineDemand is what a core has on one engine.
type EngineDemand struct {
	// Used is what its holds have, those that are ending and ghosts too.
	Used Amount
	// Steady counts the sequences that were surely in the engine throughout the sample:
	// they had tokens before it was asked for, and more after it came back.
	Steady int64
	// Down: it takes no work now.
	Down bool
	// Ends are what is predicted to end by itself next, the soonest first.
	Ends  []End
	Speed Speed // as learned from its own work
}

// End is a hold's predicted end.
type End struct {
	In     Time
	Amount Amount
}

// maxEnds and endsWithin bound what is told of ends.
const (
	maxEnds    = 4
	endsWithin = Time(10e9)
)

// ClassDemand is what a class has and wants.
type ClassDemand struct {
	Used []Amount // by engine
	Hold Amount   // what it keeps for itself of its floor, used or not
	// Waiting requests. Head is what the first of them needs, on the engine that comes
	// closest to having it; zero while no engine takes it.
	Waiting int
	Head    Amount
	// Short: the head waits for a larger share, and would have room if nothing were
	// withheld. It is not if it waits for the stall guard, for an engine that works, for
	// what others of this core keep, or for what is on its way out.
	Short bool
	// Guarded: the head has room here, and waits for the stall guard.
	Guarded bool
	// Waited is for how long the oldest has waited.
	Waited Time
	// Age of the head. Late: it can't be in time any more, and has no turn.
	Age  Time
	Late bool
	// Patience is for how long the head can wait for what ends by itself, before
	// anything is ended for it.
	Patience Time
	// Since New: requests admitted, each attempt counted, and refused.
	Admitted, Rejected uint64
	Away               AwayDemand
}

// AwayDemand is what the other cores have to know of a class, see Elsewhere. Ages are
// negative where there is nothing.
type AwayDemand struct {
	Offered  uint64
	Prompt   int32
	Within   bool // Short, and within the floor
	Wants    bool // its head waits for capacity
	InTime   bool // so, and it can be in time
	Recalled bool
	Pending  Time          // age
	Pressed  Time          // age
	Starting Time          // age, see ClassElsewhere
	Starts   []StartDemand // by engine
}

// StartDemand is Starts, with the age of the first.
type StartDemand struct {
	N      int
	Tokens int64
	Age    Time
}

// Demands fills d, whose memory it reuses. It changes nothing.
func (c *Core) Demands(d *Demands) {
	d.Engines, d.Classes, d.Residual = resize(d.Engines, len(c.engines)), resize(d.Classes, len(c.classes)), 0
	for e := range c.engines {
		v := &d.Engines[e]
		*v = EngineDemand{Used: c.engines[e].used, Down: !c.engines[e].counts, Ends: c.nextEnds(v.Ends[:0], Engine(e)), Speed: c.engines[e].timing.speed(v.Speed)}
	}
	for k := range c.classes {
		cl, v := &c.classes[k], &d.Classes[k]
		used, starts := resize(v.Used, len(c.engines)), resize(v.Away.Starts, len(c.engines))
		clear(used)
		clear(starts)
		*v = ClassDemand{Used: used, Hold: cl.hold, Waiting: cl.queue.n, Admitted: cl.counts.Admitted}
		v.Away = AwayDemand{Offered: cl.counts.Offered, Prompt: cl.usualPrompt, Pending: -1, Pressed: -1, Starting: -1, Starts: starts}
		v.Away.Recalled = cl.recall.open || c.lentThen(cl)
		if cl.pressed != 0 {
			v.Away.Pressed = c.now - cl.pressed
		}
		for _, n := range cl.counts.Rejected {
			v.Rejected += n
		}
		if i := cl.queue.head; i != none {
			f := c.fit(cl, &c.requests[i])
			v.Head = f.amount
			v.Short, v.Guarded = c.share.on && c.isShort(cl), f.refusal == refusedStall
			v.Away.Within = v.Short && f.within
			q := &c.requests[i]
			v.Age, v.Late = c.now-q.arrived, q.late && !c.late(cl, i)
			v.Patience = max(c.patience(cl, q, &c.engines[f.engine])-c.now, 0)
			v.Away.Pending = v.Age
			v.Away.Wants = f.refusal >= refusedShare && f.refusal != refusedStall
			v.Away.InTime = v.Away.Wants && !v.Late
			v.Waited = c.now - c.requests[cl.queue.longest].waits
		}
	}
	for e := range c.engines {
		for _, i := range c.engines[e].starting {
			h := &c.holds[i]
			v := &d.Classes[h.class].Away
			s := &v.Starts[e]
			s.N++
			s.Tokens += int64(h.prompt - h.cached)
			s.Age = max(s.Age, c.now-max(h.admitted, h.scheduled))
			if h.req != 0 {
				q := &c.requests[h.req.Slot()]
				v.Pending = max(v.Pending, c.now-q.arrived)
				if !q.late {
					v.Starting = max(v.Starting, c.now-q.arrived)
				}
			}
		}
	}
	for i := range c.holds {
		if h := &c.holds[i]; h.state != holdFree {
			used := &d.Classes[h.class].Used[h.engine]
			*used = used.add(h.amount)
			d.Residual = max(d.Residual, c.lasts(h))
			if e := int(h.engine); e < len(d.Samples) && h.first != 0 && h.first <= d.Samples[e].Asked && h.moved > d.Samples[e].Came {
				d.Engines[e].Steady += int64(h.n)
			}
		}
	}
}

// nextEnds appends what is predicted to end next on an engine.
func (c *Core) nextEnds(ends []End, e Engine) []End {
	ahead := c.ahead(&c.engines[e], 0)
	for i := range c.holds {
		h := &c.holds[i]
		if h.state != holdLive || h.engine != e {
			continue
		}
		if at := c.ends(h, ahead); at <= c.now+endsWithin {
			ends = append(ends, End{at - c.now, h.amount})
		}
	}
	slices.SortFunc(ends, func(a, b End) int { return cmp.Compare(a.In, b.In) })
	return ends[:min(len(ends), maxEnds)]
}

// resize gives s n elements, with the memory of those it had.
func resize[T any](s []T, n int) []T {
	s = s[:cap(s)]
	for len(s) < n {
		var zero T
		s = append(s, zero)
	}
	return s[:n]
}
