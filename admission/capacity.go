package admission

import "headgate/kv"

// holdNow is hold_k of the package comment. A class that is quiet, and lends as
// its idle time is worth, is not expected back with what it used before.
func (c *Core) holdNow(cl *class) Amount {
	if !c.lends(cl) {
		return cl.floor
	}
	cl.peak.advance(c.now)
	if cl.spec.Reopen == ReopenSettled && c.quiet(cl) {
		return cl.holdFor(Amount{})
	}
	return cl.holdFor(cl.peak.max())
}

// lends tells whether the others may have what a class does not use of its floor.
func (c *Core) lends(cl *class) bool { return cl.open && !c.pause && cl.spec.Window == 0 }

// holdFor is hold_k while lending is open, for a given recent peak of use.
func (cl *class) holdFor(peak Amount) Amount {
	return cl.floor.min(cl.unlent.max(peak.add(cl.spec.Headroom).add(Of(0, cl.warm))).sub(cl.theirs).max(Amount{}))
}

// idleHold is what a class keeps even when it is idle.
func (s *ClassSpec) idleHold() Amount {
	if s.Window > 0 {
		return Amount{}
	}
	return s.Floor.min(s.Unlent.max(s.Headroom))
}

// use moves what a class holds on an engine by delta, and with it every sum that
// depends on it. It is the only way either moves.
func (c *Core) use(k Class, en *engine, delta Amount) {
	c.accrue(&c.classes[k])
	if c.share.on {
		c.moves(&c.classes[k], en, delta)
	}
	en.used = en.used.add(delta)
	en.ledger.set(c.now, en.used)
	if !en.counts {
		c.envelope = c.envelope.add(delta)
	}
	cl := &c.classes[k]
	used := cl.used.add(delta)
	c.used = c.used.add(delta)
	c.kept = c.kept.sub(cl.used.max(cl.spec.Unlent)).add(used.max(cl.spec.Unlent))
	c.promised = c.promised.sub(cl.used.max(cl.hold))
	cl.used = used
	cl.peak.set(c.now, used.add(cl.theirs))
	if c.lends(cl) {
		cl.hold = cl.holdFor(cl.peak.max())
		c.wake(cl.peak.falls())
	}
	c.promised = c.promised.add(cl.used.max(cl.hold))
	if cl.spec.Window > 0 {
		c.redue(cl)
		c.dueIn(cl)
	}
}

// refresh brings a class's hold up to the present.
func (c *Core) refresh(k Class) {
	cl := &c.classes[k]
	hold := c.holdNow(cl)
	c.promised = c.promised.sub(cl.used.max(cl.hold)).add(cl.used.max(hold))
	cl.hold = hold
}

// price returns what a request would hold on an engine that is no misfit for it,
// the output tokens of each sequence that this pays for, and the most it can
// produce.
//
// A declared limit is paid in full, unless real lengths run to less than half
// of it: a pool priced by wishes stands idle. Without one, the learned quantile
// is paid, or the class's default until there is one. Nobody is priced beyond
// the most he could ever get, or he would wait for ever. An engine on which
// running out is fatal is paid for everything the request could produce, and the
// limit that it is sent is what its sequences' shares leave.
func (c *Core) price(cl *class, en *engine, q *request) (amount Amount, expect, limit int32) {
	share := min(en.spec.KV, cl.most[KV]) / int64(q.n)
	share -= share % en.spec.Block
	room := min(en.contextLimit(), en.spec.KV)
	if en.spec.Fatal {
		room = min(room, share)
	}
	prompt := int64(q.prompt) + int64(q.kept)
	limit = int32(min(room-prompt, 1<<30))
	if q.declared {
		limit = min(limit, q.out-q.kept)
	}
	if cl.spec.MaxOut > 0 {
		limit = min(limit, cl.spec.MaxOut-q.kept)
	}
	limit = max(limit, 1) // a declared limit of 0 still costs a token
	learned := cl.lengths.usual
	if q.kept > 0 {
		learned, _ = cl.lengths.expect(q.kept)
		learned = max(learned-q.kept, 0)
	}
	if learned == 0 && q.declared {
		// Too few answers to know their lengths, but perhaps enough to know how
		// this class, or else the whole pool, overstates them.
		n, ok := cl.shares.of(q.out)
		if !ok {
			n, _ = c.shares.of(q.out)
		}
		learned = max(n-q.kept, 0)
	}
	switch {
	case en.spec.Fatal:
		expect = limit
	case q.declared && learned > 0 && int64(learned)*2 <= int64(limit):
		expect = learned
	case q.declared:
		expect = limit
	case learned > 0:
		expect = min(learned, limit)
	default:
		expect = min(cl.spec.DefaultOut, limit)
	}
	expect = int32(min(int64(expect), share-prompt))
	return Of(int64(q.n), kv.RoundUp(prompt+int64(expect), en.spec.Block)*int64(q.n)), expect, limit
}

// contextLimit is the longest sequence the engine takes.
func (en *engine) contextLimit() int64 {
	if en.spec.MaxContext > 0 {
		return en.spec.MaxContext
	}
	return en.spec.KV
}

// feasible tells whether a request could ever be admitted on an empty pool, and
// if not what it wants and what is allowed.
func (c *Core) feasible(cl *class, q *request) (why Cause, want, allowed int64) {
	why = CauseUnavailable
	for e := range c.engines {
		en := &c.engines[e]
		if en.spec.Closed || q.unfit()&(1<<e) != 0 {
			continue
		}
		switch w, n, most := en.misfit(cl, q); {
		case w == CauseNone:
			return CauseNone, 0, 0
		case w != CauseContext, why == CauseUnavailable, why == CauseContext && most > allowed:
			// A request that some engine's context takes is refused for what
			// that engine lacks, not for another's context.
			why, want, allowed = w, n, most
		}
	}
	return why, want, allowed
}

// misfit tells why an engine could never run a request, if there were nothing
// else in the pool but what is never lent to its class; CauseNone if it could.
func (en *engine) misfit(cl *class, q *request) (why Cause, want, allowed int64) {
	most := cl.most.min(Of(en.spec.Slots, en.spec.KV))
	least := int64(q.prompt) + int64(q.kept) + 1
	switch tokens := kv.RoundUp(least, en.spec.Block) * int64(q.n); {
	case q.unfit()&(1<<en.id) != 0:
		return CauseUnavailable, 0, 0
	case least > en.contextLimit():
		return CauseContext, least, en.contextLimit()
	case int64(q.n) > most[Slots]:
		return CauseTooMany, int64(q.n), most[Slots]
	case tokens > most[KV]:
		return CauseTooLarge, tokens, most[KV]
	}
	return CauseNone, 0, 0
}

// fitting is the answer to "could this request start now, and where".
type fitting struct {
	ok     bool
	engine Engine
	amount Amount
	expect int32
	limit  int32
	piece  int32 // tokens of the prompt's beginning that are warmed; 0: the request starts
	loan   bool
	own    int32   // tokens of it that were computed there for it alone
	free   float64 // the share of the engine that it would leave free, and what affinity is worth
	within bool    // the class would stay within its floor
	// Why not, on the engine that came closest.
	refusal  refusal
	resource Resource
	// stalls: the guard refuses it on some engine, where it may not later.
	stalls bool
}

// refusal names the condition that does not hold.
type refusal uint8

const (
	refusedNone    refusal = iota
	refusedEngine          // no engine that could run it takes work
	refusedShare           // it needs more of every engine than this core has of it
	refusedCeiling         // condition 1, the class's ceiling
	refusedWhole           // it could not be reclaimed, and would take too long
	refusedStall           // it would hold up a protected class
	refusedPaired          // what has come free was freed for another
	refusedFull            // condition 1, the engine
	refusedHeld            // condition 2, capacity that others keep
)

// affinity is the share of an engine by which one that has a request's whole prompt
// in its cache may be busier than another that would have to compute it, and still
// gets the request. It is worth in proportion to what is cached.
//
// Alternatives: going where the cache is whatever the load makes one engine run a
// popular prefix for all; a least cached length and a difference in requests, as
// other routers have it, mean another thing on every size of engine.
const affinity = 0.5

// better tells which of two engines a request should have: one that takes it,
// one where it stays within its class's floor (engines price a request by their
// own blocks and manners), one that has computed a beginning for it, and then one
// that is left with the larger free share, see affinity, or that refuses it for the
// later condition.
func (f *fitting) better(than *fitting) bool {
	switch {
	case f.ok != than.ok:
		return f.ok
	case f.within != than.within:
		return f.within
	case f.ok && f.own != than.own:
		return f.own > than.own
	case f.ok:
		return f.free > than.free
	}
	return f.refusal >= than.refusal
}

// fit evaluates the conditions on every engine that could run the request and
// picks the best.
func (c *Core) fit(cl *class, q *request) fitting {
	best, stalls := fitting{refusal: refusedEngine}, false
	for e := range c.engines {
		f, ok := c.fitOn(cl, &c.engines[e], q)
		if !ok {
			continue
		}
		if len(c.engines) == 1 {
			return f
		}
		stalls = stalls || f.stalls
		if f.better(&best) {
			best = f
		}
	}
	best.stalls = stalls
	return best
}

// fitOn evaluates them on one engine; ok is false if it could not run the
// request.
func (c *Core) fitOn(cl *class, en *engine, q *request) (f fitting, ok bool) {
	if !en.counts || c.probing(en) || q.avoids&(1<<en.id) != 0 {
		return f, false
	}
	if why, _, _ := en.misfit(cl, q); why != CauseNone {
		return f, false
	}
	f.engine = en.id
	f.amount, f.expect, f.limit = c.price(cl, en, q)
	after := cl.used.add(f.amount)
	f.within = after.within(cl.floor)
	f.loan = !f.within
	f.refusal, f.resource = c.check(cl, en, f.amount)
	switch {
	case f.refusal != refusedNone:
		if r, beyond := en.beyondShare(f.amount); beyond && f.refusal >= refusedFull {
			f.refusal, f.resource = refusedShare, r
		}
	case c.pairs != 0 && !c.leavesPairs(en, q, f.amount):
		f.refusal, f.resource = refusedPaired, Slots
	case f.loan && c.unending(cl, en, q, &f) && !cl.alone(f.amount):
		f.refusal = refusedWhole
	case c.stalls(q.class, en, q) || c.crowds(q.class, en, q):
		f.refusal, f.stalls = refusedStall, true
	default:
		f.ok = true
		if len(c.engines) > 1 {
			f.appeal(en, q)
		}
	}
	return f, true
}

// appeal says what speaks for the engine of a fitting.
func (f *fitting) appeal(en *engine, q *request) {
	f.free = 1
	for r := range NumResources {
		total := Of(en.spec.Slots, en.spec.KV)[r]
		f.free = min(f.free, float64(total-en.used[r]-f.amount[r]-en.foreign[r])/float64(total))
	}
	all := q.prompt + q.kept
	if cached := all - q.work(en); q.interrupted {
		f.own = cached
	} else if cached > 0 {
		f.free += affinity * float64(cached) / float64(all)
	}
}

// leavesPairs tells whether a request leaves free what was freed for others.
func (c *Core) leavesPairs(en *engine, q *request, amount Amount) bool {
	kept := c.promisedTo(en.id, q)
	return kept == (Amount{}) || en.used.add(amount).add(en.foreign).add(kept).within(Of(en.spec.Slots, en.spec.KV))
}

// unending tells whether a request could not go on after a reclaim, and is not
// predicted to end within its class's grace.
func (c *Core) unending(cl *class, en *engine, q *request, f *fitting) bool {
	if !q.whole || cl.spec.Mode != ReclaimNow {
		return false
	}
	each := en.timing.tokenTime(c.running(en) + int64(q.n))
	return each == 0 || en.timing.prefillTime(q.work(en))+Time(f.expect)*each > Time(cl.spec.Grace)
}

// alone tells whether a class may run a request that could not be reclaimed as a
// loan all the same: if it has no floor on which it could ever run, it has to, and
// then as the class's one pinned request.
func (cl *class) alone(amount Amount) bool {
	own := cl.entire
	if cl.spec.Window > 0 && own[Slots] > 0 {
		own[KV] = cl.spec.Ceiling[KV] // see dueFloor
	}
	return !amount.within(own) && !cl.pinned
}

// check evaluates the two conditions for class cl taking amount on engine en.
func (c *Core) check(cl *class, en *engine, amount Amount) (refusal, Resource) {
	after := cl.used.add(amount)
	if en.spec.Together && en.going != (Amount{}) && after.within(cl.floor) && after.within(cl.hold) && after.within(cl.ceiling) {
		if o := c.look(cl, en); o.fits(cl, after, amount) {
			return refusedNone, 0
		}
	}
	limit := en.limit(cl, after, en.used)
	// What the other classes are promised, what is never lent of it, what they use.
	promised := c.promised.sub(cl.used.max(cl.hold))
	kept := c.kept.sub(cl.used.max(cl.spec.Unlent))
	others := c.used.sub(cl.used)
	room := c.room()
	holdAfter := cl.hold
	if c.lends(cl) {
		holdAfter = cl.holdFor(cl.peak.max().max(after.add(cl.theirs)))
	}
	for r := range NumResources {
		if after[r] > cl.ceiling[r] {
			return refusedCeiling, r
		}
	}
	for r := range NumResources {
		if en.used[r]+amount[r]+en.foreign[r] > limit[r] {
			return refusedFull, r
		}
	}
	for r := range NumResources {
		if after[r] <= cl.hold[r] {
			if !cl.spares(after, kept, others, room, r) {
				return refusedHeld, r
			}
		} else if promised[r]+max(after[r], holdAfter[r]) > room[r] {
			return refusedHeld, r
		}
	}
	return refusedNone, 0
}

// room is the envelope of condition 2, without what others use. Of a shared engine that
// is what they do use and not what they may: what is kept for a class may be idle at
// any core.
func (c *Core) room() Amount { return c.envelope.sub(c.foreign).add(c.relief) }

// spares tells whether an admission that takes the class to after leaves what is
// never lent of the others free. It does if the class takes its own unlent part,
// which is in nobody else's, if the others use all that is never lent of theirs,
// so that there is nothing to leave, or if there is room beside it. kept is the
// sum over the other classes of max(used, unlent), used that of what they use,
// and room the envelope without foreign load.
func (cl *class) spares(after, kept, used, room Amount, r Resource) bool {
	return after[r] <= cl.spec.Unlent[r] || kept[r] == used[r] || kept[r]+after[r] <= room[r]
}

// limit is E of condition 1 for an engine that has used on it: with the boundary
// where this admission may use it, within its floor or on an engine that orders
// by priority, and without the slack kept against preemption. An empty engine has
// no slack: what fits it alone must be able to run.
func (en *engine) limit(cl *class, after, used Amount) Amount {
	limit := Of(en.spec.Slots, en.spec.KV)
	if en.spec.Ordered || after.within(cl.floor) {
		limit[Slots] += en.spec.Boundary
	}
	if used != (Amount{}) {
		limit[KV] -= en.slack
	}
	return limit
}

// admit gives the request in slot a hold.
func (c *Core) admit(slot int32, f *fitting) {
	q := &c.requests[slot]
	cl := &c.classes[q.class]
	i := c.freeHold
	if i == none {
		i = int32(len(c.holds))
		c.holds = append(c.holds, hold{})
	} else {
		c.freeHold = c.holds[i].next
	}
	h := &c.holds[i]
	*h = hold{
		gen: h.gen + 1, state: holdLive, class: q.class, engine: f.engine, req: c.requestID(slot),
		amount: f.amount, reserved: f.amount[KV], prompt: q.prompt + q.kept, cached: q.prompt + q.kept - q.work(&c.engines[f.engine]), whole: q.whole, expect: f.expect, limit: f.limit, n: q.n,
		again:    q.begun || q.reclaims > 0 || q.kept > 0,
		together: c.engines[f.engine].spec.Together && c.engines[f.engine].going != (Amount{}), admitted: c.now, prev: none, next: none,
	}
	q.state, q.hold = stateRunning, i
	if f.piece > 0 {
		h.prompt, h.piece = f.piece, f.piece
	} else if h.token = Time(q.token); h.token > 0 {
		cl.paced++
	}
	c.chill(q.session)
	pin := cl.spec.PinAfter > 0 && int(q.reclaims) >= cl.spec.PinAfter
	pin = pin || f.loan && c.unending(cl, &c.engines[f.engine], q, f)
	if pin && !cl.pinned && f.piece == 0 {
		h.pinned, cl.pinned = true, true
	}
	c.starts(i)
	en := &c.engines[f.engine]
	c.stall(q.class, en, h)
	c.use(q.class, en, f.amount)
	cl.counts.Admitted++
	cl.counts.ReservedTokens += f.amount[KV]
	if f.loan {
		cl.counts.Loans++
		c.lend(i)
	}
	e := Effect{
		Op: Admit, Class: q.class, Engine: f.engine, Loan: f.loan, Tenant: q.tenant,
		Tokens: f.amount[KV], ID: h.req, Hold: c.holdID(i),
	}
	if en.spec.Fatal || cl.spec.MaxOut > 0 {
		e.Limit = int64(f.limit)
	}
	if f.piece > 0 {
		e.Op, e.Tokens, e.Limit = Warm, int64(f.piece), 0
	}
	c.emit(e)
	c.serveRecall(q.class, h.req)
	c.charge(q, h.prompt, 0)
}

// free gives a hold's capacity back. It is the only way a hold ends.
func (c *Core) free(i int32) {
	h := &c.holds[i]
	if h.state == holdFree {
		panic("admission: a hold was freed twice")
	}
	cl, en := &c.classes[h.class], &c.engines[h.engine]
	if h.state == holdGhost {
		c.ghosts--
	}
	if h.state != holdLive {
		cl.going, en.going = cl.going.sub(h.amount), en.going.sub(h.amount)
	}
	if !h.amount.within(en.used) || !h.amount.within(cl.used) {
		panic("admission: a hold frees more than is in use")
	}
	consumed := int64(h.prompt)*int64(h.n) + int64(h.out)
	cl.counts.ConsumedTokens += consumed
	cl.counts.RefundedTokens += max(0, h.reserved-consumed)
	cl.counts.OverrunTokens += max(0, consumed-h.reserved)
	if h.loan {
		c.unlend(i)
	}
	if h.pinned {
		cl.pinned = false
	}
	if h.token > 0 {
		cl.paced--
	}
	if h.pairs > 0 {
		p := &c.classes[h.pairs-1].pairing
		p.going = p.going.sub(h.amount).max(Amount{})
	}
	k, amount := h.class, h.amount
	h.state, h.amount = holdFree, Amount{}
	h.next, c.freeHold = c.freeHold, i
	c.use(k, en, Amount{}.sub(amount))
	c.absorb(k)
	c.rest(k)
}

// rest notes that a class came to have nothing running or waiting, from which
// its idle time counts.
func (c *Core) rest(k Class) {
	cl := &c.classes[k]
	c.redue(cl)
	if cl.queue.n > 0 || cl.used != (Amount{}) || cl.idleSince != Never || c.atOthers(k).there() {
		return
	}
	c.forgive(k)
	cl.idleSince = c.now
	c.wake(c.looks(cl))
}

// scheduled notes that the engine has begun with a hold.
func (c *Core) scheduled(ev *Event) {
	if i := c.find(ev.Hold); i != none && c.holds[i].state != holdGhost {
		h := &c.holds[i]
		if h.scheduled == 0 {
			h.scheduled = max(c.now, 1)
		}
		if ev.Flags&FlagCounted != 0 {
			h.cached, h.counted = min(ev.Cached, h.prompt), true
		} else if !h.counted {
			h.cached = min(max(h.cached, ev.Cached), h.prompt)
		}
	}
}

// progress lets a hold follow the stream.
func (c *Core) progress(ev *Event) {
	i := c.find(ev.Hold)
	if i == none || c.holds[i].state == holdGhost {
		return
	}
	h := &c.holds[i]
	en := &c.engines[h.engine]
	cl := &c.classes[h.class]
	if ev.Out > h.out {
		h.out, h.moved = ev.Out, c.now
	}
	if ev.Flags&FlagWhole != 0 {
		h.whole, c.requests[h.req.Slot()].whole = true, true
	}
	first := h.first == 0 && h.out > 0
	if first {
		h.first, h.firstOut = max(c.now, 1), h.out
		en.faults = 0
		c.learnStart(h)
		c.started(i)
	}
	if ev.Prompt > 0 {
		h.prompt = ev.Prompt
	}
	// An answer that outgrows what was paid for is paid on as the lengths of
	// its class say, and at least a block ahead of what it has.
	if each := (int64(h.out) + int64(h.n) - 1) / int64(h.n); each >= int64(h.expect) {
		expect := each + en.spec.Block
		if learned, ok := cl.lengths.expect(int32(each)); ok {
			expect = max(expect, int64(learned))
		}
		h.expect = int32(min(expect, max(int64(h.limit), each)))
	}
	turned := c.charge(&c.requests[h.req.Slot()], h.prompt, h.out)
	kvNow := kv.RoundUp(int64(h.prompt)+int64(h.expect), en.spec.Block) * int64(h.n)
	if kvNow == h.amount[KV] {
		if turned || first && c.waiting != 0 {
			c.pump() // another is next, or the guard may let something start
		}
		return
	}
	delta := Of(0, kvNow-h.amount[KV])
	h.amount = h.amount.add(delta)
	if h.state == holdEnding {
		cl.going, en.going = cl.going.add(delta), en.going.add(delta)
	}
	c.use(h.class, en, delta)
	c.absorb(h.class)
	c.callLoansIn()
	// Growth, too, may let something start: a head that it takes beyond its floor
	// keeps nobody from borrowing any more.
	if c.waiting != 0 {
		c.pump()
	}
}
