package admission

import (
	"fmt"
	"math/bits"
	"strconv"
	"time"
)

// Core is one pool's admission state. It is not safe for concurrent use: the
// driver serialises the calls of Step.
type Core struct {
	now  Time
	next Time // no timer of any kind is due before it
	rev  uint64
	seq  uint64

	classes  []class
	engines  []engine
	drain    bool
	drained  bool
	pause    bool
	callIn   bool
	bypass   bool
	working  int // engines that count
	avoiding int // requests that leave engines alone, and wait; rather too many

	share    share
	away     Elsewhere // what others do on the shared engines
	whole    Amount    // of all open engines, ready or not
	envelope Amount    // of the engines that count, and what still runs on the others
	foreign  Amount    // summed over engines, with what is withheld
	relief   Amount    // what of that is not in use
	used     Amount    // summed over classes
	promised Amount    // sum over classes of max(used, hold)
	kept     Amount    // sum over classes of max(used, unlent)

	requests []request
	holds    []hold
	freeHold int32
	place    uint64 // of the next request in the order of first arrival
	ghosts   int    // holds that are over and not confirmed
	loans    int    // holds that are loans
	loanSeq  uint64
	lines    []line
	tenants  []int32 // by Tenant: the first of its lines

	waiting  uint64 // classes with a queue
	recalls  uint64 // classes with an open recall
	blockIn  uint64 // classes whose head waits within its floor
	blockOut uint64 // classes whose head waits, beyond its floor, for capacity

	guarded       uint64 // classes with an objective that starts of later ones can break
	settles       uint64 // classes that lend again as ReopenSettled says
	pairs         uint64 // classes for whose head something is being freed
	reclaimRate   int    // of a second
	reclaimsUntil Time   // when those of late will all have been allowed
	shares        shares // of all classes
	stallShare    float64
	stallSum      Time // of the stalls of late, see mayStall
	stallAt       Time // of that sum

	sessions []session
	held     bool     // the guard has refused somebody in this pump
	spared   uint64   // classes whose heads will have room soon by themselves
	learned  uint64   // counts what recallCost goes by
	ending   []ending // scratch of forecast
	victims  []victim // of the reclaim in work: scratch
	fx       []Effect
}

// class is one class's state.
type class struct {
	id   Class
	spec ClassSpec
	// floor is what is owed now: all of the configured one, or nothing while a
	// window's service is not due.
	floor Amount
	// entire is the configured floor, of all cores together once this one is told of the
	// others.
	entire Amount
	// unlent is the part of it that is never lent.
	unlent Amount
	used   Amount
	// ceiling is what of the configured one is not withheld now.
	ceiling Amount
	hold    Amount // what it keeps out of the others' reach
	most    Amount // what it could ever use: its ceiling, without what is never lent to it
	// going: of used, what is on its way out, with holds that are ending or over.
	going Amount
	// open: lending of this class is open.
	open             bool
	pinned           bool   // one of its holds is pinned
	pressed          Time   // when its demand last did not fit
	began            Time   // when it came into use
	opened           Time   // when its lending last opened
	thrash           uint8  // doublings of IdleAfter
	lossless         bool   // what is recalled for it finds its work again
	idled            Time   // idle time that has not taken a doubling back yet
	gaps             gaps   // how long it is idle
	comes            gaps   // how long from one request to the next
	came             Time   // its last request
	theirs           Amount // what other cores use
	lentUpTo         uint64 // the loans up to which it was told of a recall elsewhere
	owed             guarantee
	prompts          [8]int32
	promptAt         uint8
	firsts           [5]Time // its last times from admission to first token
	firstAt          uint8
	cost             Time   // see recallCost
	costOf           uint64 // 1 + learned as of it
	usualPrompt      int32
	idleSince        Time // when it last came to have nothing running or waiting; Never while it has
	peak             peak
	queue            queue
	loanHead         int32 // its loans by age
	loanTail         int32
	lengths          lengths
	shares           shares
	pace             pace
	recall           recall
	pairing          pairing
	told             told
	paced            int   // holds with a limit of their own per output token
	warm             int64 // KV tokens of sessions that are kept warm
	coolest, warmest int32 // these sessions, by the time until which they are
	counts           Counts
}

// engine is one engine's state.
type engine struct {
	id        Engine
	spec      EngineSpec
	state     State
	counts    bool // in the envelope: open and ready, and not set aside
	aside     Time // until when others get its work; 0: it is not set aside
	faults    int  // attempts in a row that it failed before a token
	used      Amount
	going     Amount // of used, with holds that are ending or over
	foreign   Amount // what others run, by its gauges; of a shared engine what they may use
	slack     int64  // KV tokens kept free because the engine preempted
	calm      Time   // since when it has not preempted, or slack was last lowered
	timing    timing
	lastFirst Time    // when a hold's first token last came
	says      bool    // it says in the end how much of a prompt it found in its cache
	starting  []int32 // holds without a token yet
	spell     spell   // in which they are computed
	judged    spell   // an earlier one, of which the engine is to say what it computed
	untrue    int     // reclaims in a row that it did not confirm
	ledger    peak
	gauge     gauge
}

// request is one waiting or running request.
type request struct {
	gen      uint32
	state    requestState
	class    Class
	tries    uint8
	declared bool
	tenant   Tenant
	whole    bool // see FlagWhole
	unsplit  bool // see FlagUnsplit
	// interrupted: the core has ended an attempt of it, or has had a piece of its
	// prompt computed. It is not refused any more.
	interrupted bool
	late        bool // it waits and can't be in time any more
	reclaims    uint16
	prompt      int32
	cached      int32  // tokens of the prompt that need no prefill
	home        Engine // where they are cached
	begun       bool   // in an earlier call
	barred      uint64 // engines that can't run it
	failed      uint64 // engines that have failed it
	avoids      uint64 // engines that it leaves alone ...
	avoidsUntil Time   // ... until then
	avoided     uint8  // how often it has
	session     uint32
	kept        int32 // tokens of output from earlier attempts
	out         int32
	n           int32
	hold        int32
	place       uint64
	arrived     Time
	waits       Time          // since when it has waited
	first       time.Duration // its own limits, see own.go; 0 is its class's
	token       time.Duration
	line        int32
	prev        int32 // in its tenant's line
	next        int32
	longer      int32 // in the order of waits
	later       int32
	charged     int64 // weighted tokens
}

type requestState uint8

const (
	stateFree requestState = iota
	stateQueued
	stateRunning
)

// hold is one dispatch.
type hold struct {
	gen       uint32
	state     holdState
	class     Class
	engine    Engine
	loan      bool
	req       ID // 0 once the request has left it
	amount    Amount
	reserved  int64 // KV tokens at admission
	pinned    bool
	whole     bool
	reclaimed bool   // its end was asked for
	recall    uint64 // the recall for whose first request that was; 0 is none
	pairs     Class  // 1 + the class for whose head it is ended
	piece     int32  // tokens of a prompt that it only warms; 0 is the whole request
	starting  bool   // it has no token yet
	alone     bool   // no other hold of the engine was starting meanwhile
	again     bool   // its request was begun before: much of its prompt may be cached
	counted   bool   // cached is what the engine found
	spell     uint32 // of its engine, that waits to hear what was computed of it
	taught    int32  // tokens of the prefill that was learned from it; 0: none was
	together  bool   // it was sent while others of the engine were on their way out
	prompt    int32
	cached    int32
	out       int32
	expect    int32 // output tokens paid for in amount, of each sequence
	limit     int32 // output tokens it can't exceed
	n         int32
	loanSeq   uint64
	admitted  Time
	scheduled Time // when the engine said that it began; 0 where it does not
	first     Time // of the first tokens
	firstOut  int32
	moved     Time // of its last tokens
	token     Time // its request's own limit per output token; 0 is none
	expires   Time // of a ghost
	prev      int32
	next      int32 // in the class's list of loans, or the free list
}

type holdState uint8

const (
	holdFree holdState = iota
	holdLive
	holdEnding // a Reclaim was sent
	holdGhost  // over, and not yet confirmed
)

const none = int32(-1)

const (
	// maxTries bounds how often an attempt that an engine never touched is repeated.
	maxTries = 3
	// maxAvoids bounds how often a request leaves an engine alone for a time, some two
	// minutes in all where the engine does not say for how long.
	maxAvoids = 8
)

// New returns a core for at most capacity requests at a time, waiting and
// running. It panics on a table that does not validate: a driver validates
// first.
func New(t *Table, capacity int) *Core {
	c := &Core{next: Never, freeHold: none, requests: make([]request, capacity), holds: make([]hold, 0, capacity)}
	c.apply(t)
	return c
}

// Step advances the core to now and applies one event. It appends what it wants
// done to fx, which belongs to the caller, and returns it.
//
// An event about a request or hold that is gone is ignored: the driver may
// report late. An event that breaks the contract (a slot that is taken, an
// index outside the table) panics.
func (c *Core) Step(now Time, ev *Event, fx []Effect) []Effect {
	c.fx = fx
	c.now = max(c.now, now)
	if c.now >= c.next {
		c.tick()
	}
	switch ev.Kind {
	case Offer:
		c.offer(ev)
	case Cancel:
		c.cancel(ev)
	case Bar:
		// Whoever is now let in waits for what comes next, a table or a sample.
		if i := c.request(ev.ID); i != none {
			c.requests[i].barred = ev.Barred
		}
	case Scheduled:
		c.scheduled(ev)
	case Progress:
		c.progress(ev)
	case Ended:
		c.ended(ev)
	case Released:
		c.released(ev.Hold)
	case Observe:
		c.observe(ev.Engine, &ev.Gauge)
	case Apply:
		c.apply(ev.Table)
	case Renew:
		c.renew(ev.Until)
	case Told:
		c.told(ev.Elsewhere)
	case Tick:
	default:
		panic(fmt.Sprintf("admission: event of unknown kind %d", ev.Kind))
	}
	if c.share.on {
		c.giveBack()
		c.tell()
	}
	if c.drain && !c.drained && c.used == (Amount{}) && c.waiting == 0 {
		c.drained = true
		c.emit(Effect{Op: Drained})
	}
	fx, c.fx = c.fx, nil
	return fx
}

// Next returns when time alone may change something, and whether there is such
// a moment. Stepping earlier or later than that is harmless.
func (c *Core) Next() (Time, bool) { return c.next, c.next != Never }

func (c *Core) emit(e Effect) {
	c.seq++
	e.Rev = c.rev
	if e.Seq == 0 {
		e.Seq = c.seq
	}
	c.fx = append(c.fx, e)
}

// wake asks for a tick at t.
func (c *Core) wake(t Time) { c.next = min(c.next, t) }

// tick does what is due by the passing of time.
func (c *Core) tick() {
	if c.share.over(c.now) {
		c.expire() // before anything can be admitted
	}
	for k := range c.classes {
		c.expireQueue(Class(k))
		c.call(Class(k))
		c.cool(Class(k))
		c.refresh(Class(k))
		c.reopen(Class(k))
	}
	for e := range c.engines {
		en := &c.engines[e]
		c.calmDown(en)
		if en.gauged() && c.now >= en.stale() {
			c.setForeign(en, Amount{})
		}
		c.retake(en)
	}
	c.expireGhosts()
	// First what is known, then what the pump asks for.
	c.retime()
	c.callLoansIn()
	c.pump()
}

// retime sets next from every timer.
func (c *Core) retime() {
	c.next = Never
	for k := range c.classes {
		cl := &c.classes[k]
		if i := c.expires(cl); i != none {
			c.wake(c.waitsUntil(i))
		}
		if c.lends(cl) {
			c.wake(cl.peak.falls())
		}
		c.wake(c.looks(cl))
		c.wake(c.cools(cl))
		c.dueIn(cl)
	}
	if c.blockIn != 0 {
		c.reclaimable()
	}
	c.wake(c.share.ends())
	for e := range c.engines {
		en := &c.engines[e]
		if en.slack > 0 {
			c.wake(en.calm + slackCalm)
		}
		if en.gauged() {
			c.wake(en.stale())
		}
		if en.aside != 0 {
			c.wake(en.aside)
		}
	}
	c.avoidNoMore()
	if c.ghosts > 0 {
		for i := range c.holds {
			if h := &c.holds[i]; h.state == holdGhost {
				c.wake(h.expires)
			}
		}
	}
}

// apply takes over a new table.
func (c *Core) apply(t *Table) {
	t.Validate(func(path string, value any, allowed string) {
		panic(fmt.Sprintf("admission: table: %s is %v, must be %s", path, value, allowed))
	})
	if len(t.Classes) < len(c.classes) || len(t.Engines) < len(c.engines) {
		panic("admission: a table never loses a class or an engine, it closes it")
	}
	c.guarded, c.settles = 0, 0
	c.rev, c.drain, c.stallShare, c.reclaimRate = t.Rev, t.Drain, t.StallShare, t.ReclaimRate
	c.pause, c.callIn, c.bypass = t.Pause, t.Pause && t.CallIn, t.Bypass
	c.drained = c.drained && t.Drain
	c.take(t)
	for e, spec := range t.Engines {
		if e == len(c.engines) {
			c.engines = append(c.engines, engine{id: Engine(e)})
		}
		if spec.GaugeAge == 0 {
			spec.GaugeAge = defaultGaugeAge
		}
		if en := &c.engines[e]; en.spec.GaugeAge != spec.GaugeAge {
			en.ledger.init(Time(min(spec.GaugeAge, maxDuration))+sampleTime, c.now)
		}
		if c.engines[e].spec.Closed && !spec.Closed {
			c.emptied(Engine(e)) // it has been away
		}
		c.engines[e].adopt(spec)
	}
	for k, spec := range t.Classes {
		if k == len(c.classes) {
			c.classes = append(c.classes, class{
				id: Class(k), open: true, idleSince: c.now, loanHead: none, loanTail: none, coolest: none, warmest: none, queue: newQueue(),
			})
			c.classes[k].peak.init(spec.peakWindow(0), c.now)
		}
		cl := &c.classes[k]
		if w := spec.peakWindow(cl.thrash); w != cl.spec.peakWindow(cl.thrash) {
			cl.peak.init(w, c.now)
		}
		cl.spec = spec
		c.learned++
		cl.open = cl.open || spec.Window > 0
		c.unpair(Class(k), cl.pairing.req)
		if cl.protected() {
			c.guarded |= bit(Class(k))
		}
		if spec.Reopen == ReopenSettled {
			c.settles |= bit(Class(k))
		}
	}
	for k := range c.classes {
		c.classes[k].lossless = c.lossless(&c.classes[k])
	}
	c.reckon()
	c.forgiven()
	for k := range c.classes {
		c.absorb(Class(k))
		c.expose(Class(k))
		c.review(Class(k))
	}
	c.retime()
	c.callLoansIn()
	c.pump()
}

// review refuses what waits and, under a new table, has nothing to wait for. What no
// open engine can run waits for one that can: where an engine is replaced, the new one
// says later what it is. That none will come is the driver's to know.
func (c *Core) review(k Class) {
	cl := &c.classes[k]
	for i := cl.queue.longest; i != none; {
		next := c.requests[i].later
		if (c.drain || cl.spec.Closed) && !c.requests[i].interrupted {
			c.reject(i, CauseDraining, 0, 0)
		} else if why, want, allowed := c.feasible(cl, &c.requests[i]); why != CauseNone && why != CauseUnavailable {
			c.reject(i, why, want, allowed)
		}
		i = next
	}
}

// reckon derives every sum from scratch.
func (c *Core) reckon() {
	var least Amount // what is kept even when all is idle
	c.whole, c.envelope, c.foreign, c.used, c.promised, c.kept = Amount{}, Amount{}, Amount{}, Amount{}, Amount{}, Amount{}
	apart := c.apart()
	c.working = 0
	for e := range c.engines {
		en := &c.engines[e]
		// What still runs on an engine that takes no more is in the sums of what
		// is used, so it has to be in what there is.
		if en.counts = en.ready() && !(apart && en.aside != 0); en.counts {
			c.working++
			c.envelope = c.envelope.add(Of(en.spec.Slots, en.spec.KV))
		} else {
			c.envelope = c.envelope.add(en.used)
			en.foreign = Amount{}
		}
		if en.spec.Shared && en.counts {
			en.foreign = c.withheld(en)
		}
		if !en.spec.Closed {
			c.whole = c.whole.add(Of(en.spec.Slots, en.spec.KV))
		}
		c.foreign = c.foreign.add(en.foreign)
	}
	c.relieve()
	for k := range c.classes {
		c.classes[k].theirs = c.atOthers(Class(k)).Used
	}
	c.setFloors()
	c.promised = Amount{}
	for k := range c.classes {
		cl := &c.classes[k]
		cl.ceiling = c.ceiling(cl)
		cl.hold = c.holdNow(cl)
		c.used = c.used.add(cl.used)
		c.promised = c.promised.add(cl.used.max(cl.hold))
		c.kept = c.kept.add(cl.used.max(cl.spec.Unlent))
		least = least.add(cl.spec.idleHold())
	}
	for k := range c.classes {
		cl := &c.classes[k]
		cl.most = cl.spec.Ceiling.min(c.whole.sub(least).add(cl.spec.idleHold()))
		if c.bypass {
			cl.most = c.whole
		}
	}
}

// offer takes in a new request.
func (c *Core) offer(ev *Event) {
	slot := ev.ID.Slot()
	if int(slot) >= len(c.requests) || c.requests[slot].state != stateFree {
		panic(fmt.Sprintf("admission: offer of slot %d, which is taken or beyond the capacity of %d", slot, len(c.requests)))
	}
	if int(ev.Class) >= len(c.classes) {
		panic(fmt.Sprintf("admission: offer of class %d of %d", ev.Class, len(c.classes)))
	}
	cl := &c.classes[ev.Class]
	q := &c.requests[slot]
	c.place++
	*q = c.asked(ev)
	q.gen, q.place, q.line = uint32(ev.ID>>32), c.place, c.line(ev.Class, ev.Tenant)
	cl.counts.Offered++
	refuse := func(why Cause, want, allowed int64) {
		c.unpair(ev.Class, ev.ID)
		cl.counts.Rejected[why]++
		retry := Time(0)
		if why == CauseQueueFull || why == CauseForecast {
			retry = cl.pace.hint(c.now, cl.queue.n, ev.ID)
		} else if why == CauseTenantFull {
			retry = cl.pace.hint(c.now, c.lines[q.line].n, ev.ID)
		}
		c.emit(Effect{Op: Reject, Cause: why, Class: ev.Class, Tenant: ev.Tenant, ID: ev.ID, Tokens: want, Limit: allowed, Retry: retry})
		c.rest(ev.Class)
	}
	switch why, want, allowed := c.feasible(cl, q); {
	case c.drain || cl.spec.Closed:
		refuse(CauseDraining, 0, 0)
		return
	case why != CauseNone:
		refuse(why, want, allowed)
		return
	case c.allDown(ev.Barred):
		refuse(CauseUnavailable, 0, 0)
		return
	}
	if cl.idleSince != Never {
		c.rested(cl)
	}
	if cl.counts.Offered > 1 {
		cl.comes.add(c.now - cl.came)
	}
	cl.came = c.now
	c.learnPrompt(cl, q.prompt)
	if c.bypass {
		if f := c.anywhere(cl, q); f.ok {
			c.lift(cl, q.line)
			c.admit(int32(slot), &f)
			return
		}
	}
	if cl.queue.head == none {
		f := c.fit(cl, q)
		if !f.ok && cl.spec.Depth == 0 {
			// It can't wait, but what it lacks within its floor is recalled, for it
			// or for the next.
			f = c.seek(ev.Class, int32(slot))
			if !f.ok && f.within && c.reclaimable() && c.reclaimFor(ev.Class, int32(slot)) {
				f = c.fit(cl, q)
			}
		}
		if f.ok && (!f.loan || c.mayBorrow(ev.Class)) {
			c.lift(cl, q.line)
			cl.queue.last = q.line
			c.admit(int32(slot), &f)
			if c.blockIn|c.blockOut != 0 {
				c.pump()
			}
			return
		}
	}
	switch limit := cl.spec.TenantDepth; {
	case cl.queue.n >= cl.spec.Depth:
		refuse(CauseQueueFull, int64(cl.queue.n), int64(cl.spec.Depth))
		return
	case limit > 0 && c.lines[q.line].n >= limit:
		refuse(CauseTenantFull, int64(c.lines[q.line].n), int64(limit))
		return
	}
	if limit := Time(cl.spec.MaxWait); limit > 0 && !c.share.expired {
		if wait, ok := c.forecast(cl, q); ok && wait > limit {
			refuse(CauseForecast, int64(wait/1e6), int64(limit/1e6))
			return
		}
	}
	c.enqueue(int32(slot))
	if cl.queue.head == int32(slot) || cl.queue.pass.open {
		c.pump()
	}
}

// cancel takes a waiting request out.
func (c *Core) cancel(ev *Event) {
	slot := c.request(ev.ID)
	if slot == none || c.requests[slot].state != stateQueued {
		return
	}
	k := c.requests[slot].class
	stirs := c.classes[k].queue.head == slot || c.classes[k].queue.pass.open
	if ev.Cause != CauseNone {
		c.reject(slot, ev.Cause, 0, 0)
	} else {
		c.classes[k].counts.Done[CauseClientGone]++
		c.unqueue(slot)
		c.finish(slot, 0, CauseClientGone)
	}
	if stirs {
		c.pump()
	}
}

// finish forgets a request.
func (c *Core) finish(slot int32, h Hold, why Cause) {
	q := &c.requests[slot]
	c.emit(Effect{Op: Done, Cause: why, Class: q.class, Tenant: q.tenant, ID: c.requestID(slot), Hold: h})
	q.state = stateFree
	c.rest(q.class)
}

// reject forgets a waiting request with a refusal.
func (c *Core) reject(slot int32, why Cause, want, allowed int64) {
	q := &c.requests[slot]
	cl := &c.classes[q.class]
	c.unqueue(slot)
	cl.counts.Rejected[why]++
	id := c.requestID(slot)
	e := Effect{Op: Reject, Cause: why, Class: q.class, Tenant: q.tenant, ID: id, Tokens: want, Limit: allowed}
	if why == CauseQueueWait {
		e.Retry = cl.pace.hint(c.now, cl.queue.n, id)
	}
	c.emit(e)
	q.state = stateFree
	c.rest(q.class)
}

// ended takes in the end of an attempt and decides what becomes of its request.
func (c *Core) ended(ev *Event) {
	i := c.find(ev.Hold)
	if i == none {
		return
	}
	h := &c.holds[i]
	if h.state == holdGhost {
		return
	}
	h.out = max(h.out, ev.Out)
	c.started(i)
	en := &c.engines[h.engine]
	warmed := h.piece > 0 && ev.Cause == CauseFinished
	if ev.Cause == CauseFinished {
		en.faults = 0 // not every answer has a first token
	}
	c.learnCounted(h, ev)
	if ev.Cause == CauseFinished && !warmed {
		c.learnLength(h)
		c.learnPace(en, h)
		c.learned++
		c.keepWarm(h)
	}
	if ev.Cause == CauseUnreachable && en.state == Ready {
		c.setState(h.engine, Down)
	}
	early := h.early(ev)
	if ev.Flags&(FlagElsewhere|FlagUntouched) == FlagElsewhere && h.first == 0 && !early {
		c.fault(en, ev.Retry)
	}
	slot := int32(h.req.Slot())
	h.req = 0
	q := &c.requests[slot]
	c.charge(q, h.prompt, h.out)
	q.hold = none
	again := ev.Flags&(FlagDelivered|FlagKept) != FlagDelivered
	failedPiece := h.piece > 0 && ev.Cause == CauseFailed
	unsplit := failedPiece && (ev.Flags&FlagUnsplit != 0 || q.avoided >= maxAvoids)
	q.unsplit = q.unsplit || unsplit
	onward := ev.Cause == CauseReclaimed || warmed || failedPiece
	kept := ev.Flags&FlagKept != 0
	// What is kept of an answer is not given up for a wait or a table.
	q.interrupted = q.interrupted || onward || kept
	switch {
	case h.piece == 0 && kept:
		// What goes on is measured by what the engine said, not by the estimate.
		q.prompt = max(h.prompt-q.kept, 1)
		q.kept += h.out / h.n
	case warmed:
		q.cached, q.home = h.piece, h.engine
	case failedPiece && !unsplit:
		c.avoid(q, en, ev.Retry)
	}
	// What the core itself has interrupted or split goes on, whatever comes; what
	// failed is tried again where the engine did nothing for it.
	if again && !onward {
		again = (!c.drain || kept) && ev.Cause != CauseClientGone && (ev.Cause != CauseTimeout || ev.Flags&FlagElsewhere != 0)
	}
	if again && !onward {
		again = c.retries(ev, q, en, early)
	}
	if again {
		// The table may have changed while it ran.
		why, _, _ := c.feasible(&c.classes[q.class], q)
		again = why == CauseNone || why == CauseUnavailable // see review
	}
	if again {
		q.waits = c.now
		c.classes[q.class].counts.Requeued++
		c.enqueue(slot)
	} else {
		c.classes[q.class].counts.Done[ev.Cause]++
		q.state = stateFree
		c.emit(Effect{Op: Done, Cause: ev.Cause, Class: q.class, Engine: h.engine, Tenant: q.tenant, ID: c.requestID(slot), Hold: ev.Hold})
	}
	if ev.Flags&FlagReleased != 0 {
		if h.reclaimed {
			c.trust(h.engine, true)
		}
		c.free(i)
	} else {
		c.haunt(h)
	}
	if c.waiting != 0 {
		c.pump()
	}
}

// early tells whether an engine refused a hold for want of room that was about to come
// free: it was sent together with the aborts that make it. That is no fault of the
// engine's, and nothing that the client should hear of.
func (h *hold) early(ev *Event) bool {
	return h.together && h.first == 0 && ev.Flags&(FlagElsewhere|FlagUntouched|FlagBusy) == FlagElsewhere|FlagBusy
}

// earlyPause is after what time such a request is tried again: a step of an engine, and
// some.
const earlyPause = Time(50e6)

// retries tells whether a request that an engine has failed is tried again, elsewhere
// or later.
func (c *Core) retries(ev *Event, q *request, failed *engine, early bool) bool {
	says := ev.Flags & (FlagElsewhere | FlagUntouched)
	moves := says&FlagElsewhere != 0 && c.elsewhere(&c.classes[q.class], failed, q)
	later := says == FlagElsewhere && ev.Flags&FlagBusy != 0 || says == FlagUntouched
	if later && !moves && (ev.Flags&FlagKept != 0 || early) {
		if q.avoided >= maxAvoids {
			return false
		}
		retry := ev.Retry
		if early {
			retry = max(retry, earlyPause)
		}
		c.avoid(q, failed, retry)
		return true
	}
	again := (moves || says == FlagUntouched) && q.tries < maxTries
	q.tries++
	if ev.Flags&(FlagElsewhere|FlagReleased) == FlagElsewhere {
		// A connection broke, perhaps because the request is the death of
		// engines: it gets one more.
		q.tries = maxTries
	}
	return again
}

func (c *Core) released(id Hold) {
	i := c.find(id)
	if i == none {
		return
	}
	if c.holds[i].state != holdGhost {
		panic(fmt.Sprintf("admission: hold %x released before its attempt ended", uint64(id)))
	}
	if c.holds[i].reclaimed {
		c.trust(c.holds[i].engine, true)
	}
	c.free(i)
	if c.waiting != 0 {
		c.pump()
	}
}

// find returns the index of a hold, none if it is gone.
func (c *Core) find(id Hold) int32 {
	i := uint32(id)
	if int(i) >= len(c.holds) || c.holds[i].gen != uint32(id>>32) || c.holds[i].state == holdFree {
		return none
	}
	return int32(i)
}

// request returns the slot of a request, none if it is gone.
func (c *Core) request(id ID) int32 {
	slot := id.Slot()
	if int(slot) >= len(c.requests) || c.requests[slot].state == stateFree || c.requests[slot].gen != uint32(id>>32) {
		return none
	}
	return int32(slot)
}

func (c *Core) requestID(slot int32) ID { return MakeID(c.requests[slot].gen, uint32(slot)) }

func (c *Core) holdID(i int32) Hold { return Hold(uint64(c.holds[i].gen)<<32 | uint64(uint32(i))) }

// eachClass yields the classes of a set.
func eachClass(set uint64) func(func(Class) bool) {
	return func(yield func(Class) bool) {
		for ; set != 0; set &= set - 1 {
			if !yield(Class(bits.TrailingZeros64(set))) {
				return
			}
		}
	}
}

func bit(k Class) uint64 { return 1 << k }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
