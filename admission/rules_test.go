package admission

import "slices"

func of(v AmountView) Amount { return Of(v.Slots, v.KV) }

// accrue lets the debts of windowed classes grow, or be paid, for as long as the
// state was as it is before a step: an integral of its own.
func (w *world) accrue(before *Snapshot) {
	for k, v := range before.Classes {
		spec := &w.table.Classes[k]
		floor := spec.Floor[Slots]
		rate := Time(min(floor, v.Used.Slots+int64(v.Queue)) - v.Used.Slots)
		if spec.Window > 0 {
			w.debt[k] = w.bound(Class(k), w.debt[k]+rate*(w.now-w.since))
		}
	}
	w.since = w.now
}

// bound keeps a debt between half a window's credit and a window's service.
func (w *world) bound(k Class, debt Time) Time {
	spec := &w.table.Classes[k]
	service := Time(spec.Window) * Time(spec.Floor[Slots])
	return min(max(debt, -service/2), service)
}

// undo adds to a debt what a reclaim makes an engine do again: no more than it has
// done, and no more than it takes.
func (w *world) undo(h *entry, before *Snapshot) {
	if w.table.Classes[h.class].Window == 0 {
		return
	}
	for i := range w.core.holds {
		c := &w.core.holds[i]
		if c.state == holdEnding && w.holds[w.core.holdID(int32(i))] == h {
			w.debt[h.class] = w.bound(h.class, w.debt[h.class]+min(w.now-h.given, w.core.engines[h.engine].timing.prefillTime(c.prompt+c.out)))
		}
	}
}

// floors is what is owed to each class now: a window's service while it is due, out
// of the floors of the others, of the last one first and of nobody's unlent part.
func (w *world) floors(s *Snapshot) []Amount {
	floors := make([]Amount, len(w.table.Classes))
	var over Amount
	for _, spec := range w.table.Engines {
		if !spec.Closed {
			over = over.sub(Of(spec.Slots, spec.KV))
		}
	}
	for k, spec := range w.table.Classes {
		if spec.Window == 0 {
			floors[k] = spec.Floor
		} else if v := &s.Classes[k]; v.Due {
			// No more slots than it has work for, and the KV that its first request
			// needs with them.
			if slots := min(spec.Floor[Slots], v.Used.Slots+int64(v.Queue)); slots > 0 {
				floors[k] = Of(slots, w.core.classes[k].floor[KV])
			}
		}
		over = over.add(floors[k])
	}
	for k, spec := range slices.Backward(w.table.Classes) {
		for r := range NumResources {
			if spec.Window == 0 && over[r] > 0 {
				cut := min(over[r], floors[k][r]-spec.Unlent[r])
				floors[k][r], over[r] = floors[k][r]-cut, over[r]-cut
			}
		}
	}
	return floors
}

// load is who holds how much at one moment of a step.
type load struct {
	class, classGoing, engine, engineGoing []Amount
}

func (l *load) add(h *entry, amount Amount) {
	l.class[h.class], l.engine[h.engine] = l.class[h.class].add(amount), l.engine[h.engine].add(amount)
}

// leave puts amount on its way out.
func (l *load) leave(h *entry, amount Amount) {
	l.classGoing[h.class], l.engineGoing[h.engine] = l.classGoing[h.class].add(amount), l.engineGoing[h.engine].add(amount)
}

func newLoad(classes, engines int) *load {
	return &load{make([]Amount, classes), make([]Amount, classes), make([]Amount, engines), make([]Amount, engines)}
}

// check compares the core with the books and with the rules.
func (w *world) check(before, after *Snapshot, ev *Event, fx []Effect) {
	t := w.t
	// The holds the core has are those the effects gave and nobody ended.
	all := newLoad(len(w.table.Classes), len(w.table.Engines))
	pinned := make([]int, len(w.table.Classes))
	for _, v := range after.Holds {
		h := w.holds[v.Hold]
		if h == nil {
			t.Fatalf("a hold that was never given or was freed: %+v", v)
		}
		h.amount = of(v.Amount)
		all.add(h, h.amount)
		if v.State != "live" {
			all.leave(h, h.amount)
		}
		if v.Pinned {
			pinned[h.class]++
		}
	}
	if len(after.Holds) != len(w.holds) {
		t.Fatalf("%d holds in the core, %d by the effects", len(after.Holds), len(w.holds))
	}
	w.checkOwn(after)
	floors := w.floors(after)
	var promised, foreign Amount
	due := false
	warm := make([]int64, len(w.table.Classes))
	for _, s := range w.warm {
		if s.until > w.now {
			warm[s.class] += s.tokens
		}
	}
	for k, v := range after.Classes {
		if of(v.Used) != all.class[k] {
			t.Fatalf("class %d: used %v, holds sum to %v", k, v.Used, all.class[k])
		}
		if v.Warm != warm[k] {
			t.Fatalf("class %d: %d tokens of sessions are warm, should be %d", k, v.Warm, warm[k])
		}
		if pinned[k] > 1 {
			t.Fatalf("class %d has %d pinned requests:\n%v", k, pinned[k], after)
		}
		w.checkHold(Class(k), all.class[k], floors[k], &v)
		w.checkDebt(Class(k), &v, ev)
		due = due || v.Due || k < len(before.Classes) && before.Classes[k].Due
		promised = promised.add(all.class[k].max(of(v.Hold)))
	}
	if promised != of(after.Promised) {
		t.Fatalf("promised %v, is %v", after.Promised, promised)
	}
	for e, v := range after.Engines {
		if of(v.Used) != all.engine[e] {
			t.Fatalf("engine %d: used %v, holds sum to %v", e, v.Used, all.engine[e])
		}
		if v.Demoted != (w.untrue[e] >= maxUntrue) {
			t.Fatalf("engine %d: demoted %v after %d reclaims that it did not confirm", e, v.Demoted, w.untrue[e])
		}
		foreign = foreign.add(of(v.Foreign))
	}
	foreign = foreign.add(w.checkShares(after))
	if due {
		floors = nil // they move within the step
	}
	w.checkStep(after, fx, all, floors, promised, foreign)
	w.checkWaits(after, fx)
	for i := range fx {
		if e := &fx[i]; e.Op == Queued && ev.Kind == Offer && e.ID == ev.ID {
			if n, most := before.Classes[e.Class].Queue, w.table.Classes[e.Class].Depth; n >= most {
				t.Fatalf("class %d: one more queued, though %d wait and %d may", e.Class, n, most)
			}
		}
	}
}

// checkStep takes a step's admissions and reclaims one after the other, each
// against what was held at its moment.
func (w *world) checkStep(after *Snapshot, fx []Effect, all *load, floors []Amount, promised, foreign Amount) {
	t := w.t
	envelope := of(after.Envelope)
	last := -1
	for i := range fx {
		switch e := &fx[i]; e.Op {
		case Admit, Warm:
			h := w.holds[e.Hold]
			all.add(h, Amount{}.sub(h.amount))
			last = i
		case Reclaim:
			h := w.holds[e.Hold]
			all.leave(h, Amount{}.sub(h.amount))
		}
	}
	w.checkGivenBack(after, fx, all, floors)
	for i := 0; i < len(fx); i++ {
		e := &fx[i]
		if e.Op == Reclaim && e.For == 0 {
			w.checkCallIn(after, fx, i, all, floors)
			continue
		}
		if e.Op == Reclaim {
			n := 1
			for i+n < len(fx) && fx[i+n].Op == Reclaim && fx[i+n].For == e.For && fx[i+n].Engine == e.Engine {
				n++
			}
			w.checkReclaims(after, fx, i, n, all, floors, foreign)
			i += n - 1
			continue
		}
		if e.Op != Admit && e.Op != Warm {
			continue
		}
		h, spec := w.holds[e.Hold], &w.table.Engines[e.Engine]
		used := all.class[e.Class].add(h.amount)
		if w.table.Bypass {
			if within := floors != nil && used.within(floors[e.Class]); floors != nil && e.Loan == within {
				t.Fatalf("loan %v: class %d comes to use %v of %v", e.Loan, e.Class, used, floors)
			}
			all.add(h, h.amount)
			continue
		}
		if !used.within(w.ceiling(e.Class)) {
			t.Fatalf("condition 1: class %d uses %v, ceiling %v", e.Class, used, w.ceiling(e.Class))
		}
		if within := floors != nil && used.within(floors[e.Class]); floors != nil && e.Loan == within {
			t.Fatalf("loan %v: class %d comes to use %v of %v", e.Loan, e.Class, used, floors)
		}
		// What is on its way out makes room on an engine that takes both together, for
		// those within their floors.
		if !w.room(after, all, e.Class, e.Engine, h.amount, !e.Loan, foreign, nil, false) &&
			!(spec.Together && !e.Loan && w.room(after, all, e.Class, e.Engine, h.amount, true, foreign, nil, true)) {
			t.Fatalf("conditions: %v to class %d on engine %d, beside %+v:\n%+v\n%v", h.amount, e.Class, e.Engine, all, fx, after)
		}
		all.add(h, h.amount)
		for r := range NumResources {
			// A later admission of the step may raise what is promised.
			if i == last && floors != nil && all.class[e.Class][r] > of(after.Classes[e.Class].Hold)[r] && promised[r]+foreign[r] > envelope[r] {
				t.Fatalf("condition 2: class %d borrowed %v, promised %d + foreign %d > %d, by %+v:\n%v", e.Class, r, promised[r], foreign[r], envelope[r], fx, after)
			}
		}
	}
}

// room tells whether amount would fit on an engine beside all that is held, without
// what is freed, and leave what is never lent of the others free; once what is on
// its way out is gone, or now.
func (w *world) room(s *Snapshot, all *load, k Class, e Engine, amount Amount, within bool, foreign Amount, freed []*entry, later bool) bool {
	spec := &w.table.Engines[e]
	here, room := all.engine[e], of(s.Envelope).sub(foreign)
	if later {
		here = here.sub(all.engineGoing[e])
		for i, v := range s.Engines {
			if w.table.Engines[i].Closed || v.State != "ready" {
				room = room.sub(all.engineGoing[i])
			}
		}
	}
	for _, h := range freed {
		here = here.sub(h.amount)
	}
	limit := Of(spec.Slots, spec.KV)
	if (within || spec.Ordered) && !spec.Shared {
		limit[Slots] += spec.Boundary
	}
	if here != (Amount{}) {
		limit[KV] -= s.Engines[e].Slack
	}
	if !here.add(amount).add(of(s.Engines[e].Foreign)).add(w.withheld(e)).within(limit) {
		return false
	}
	own := all.class[k].add(amount)
	var kept, used Amount
	for j := range all.class {
		if Class(j) == k {
			continue
		}
		left := all.class[j]
		if later {
			left = left.sub(all.classGoing[j])
		}
		for _, h := range freed {
			if h.class == Class(j) {
				left = left.sub(h.amount)
			}
		}
		kept, used = kept.add(left.max(w.table.Classes[j].Unlent)), used.add(left)
	}
	for r := range NumResources {
		if own[r] > w.table.Classes[k].Unlent[r] && kept[r] != used[r] && kept[r]+own[r] > room[r] {
			return false
		}
	}
	return true
}

// checkReclaims looks at the n loans that a step begins to end for one request at
// fx[i]: it fits without them, and would not without a part of them; they may be
// ended, and so many at this time. An engine that takes both together is sent the
// request in the same step.
func (w *world) checkReclaims(after *Snapshot, fx []Effect, i, n int, all *load, floors []Amount, foreign Amount) {
	first := &fx[i]
	slot := first.For.Slot()
	k, en := w.class[slot], &w.core.engines[first.Engine]
	amount, _, _ := w.core.price(&w.core.classes[k], en, &w.core.requests[slot])
	sent := false
	for j := range fx[i:] {
		if e := &fx[i+j]; e.Op == Admit && e.ID == first.For && e.Engine == first.Engine {
			amount, sent = w.holds[e.Hold].amount, true
		}
	}
	var freed []*entry
	for j := range n {
		freed = append(freed, w.holds[fx[i+j].Hold])
	}
	if floors != nil && !all.class[k].add(amount).within(floors[k]) {
		w.t.Fatalf("loans are ended for %d, which would not be within its floor:\n%v", first.For, after)
	}
	for set := range 1 << min(n, 8) {
		var part []*entry
		for j := range n {
			if set>>j&1 != 0 {
				part = append(part, freed[j])
			}
		}
		if fits := w.room(after, all, k, first.Engine, amount, true, foreign, part, true); fits != (len(part) == n) {
			w.t.Fatalf("%d are ended for %d on engine %d, and with %d of them ended it fits: %v\n%+v\n%v", n, first.For, first.Engine, len(part), fits, fx, after)
		}
	}
	if w.core.engines[first.Engine].spec.Together && !sent {
		w.t.Fatalf("loans are ended for %d, which does not start with it:\n%+v\n%v", first.For, fx, after)
	}
	if w.untrue[first.Engine] >= maxUntrue {
		w.t.Fatalf("engine %d did not confirm the last %d reclaims, and is asked again", first.Engine, w.untrue[first.Engine])
	}
	for _, h := range freed {
		spec := &w.table.Classes[h.class]
		left := all.class[h.class].sub(all.classGoing[h.class])
		for _, other := range freed {
			if other != h && other.class == h.class {
				left = left.sub(other.amount)
			}
		}
		var pinned, loan bool
		for _, v := range after.Holds {
			if w.holds[v.Hold] == h {
				pinned, loan = v.Pinned, v.Loan
			}
		}
		switch {
		case floors != nil && left.within(floors[h.class]):
			w.t.Fatalf("a loan is ended, though its class is left with %v of %v that it is owed:\n%+v\n%v", left, floors, fx, after)
		case !loan, pinned, h.class == k, spec.Mode == Attrition, h.engine != first.Engine:
			w.t.Fatalf("of class %d, %v: loan %v, pinned %v is ended for class %d", h.class, spec.Mode, loan, pinned, k)
		case spec.Mode == Deadline && h.given+Time(spec.LoanLife) > w.now:
			w.t.Fatalf("a loan of class %d is ended before its life is over", h.class)
		case spec.Mode == ReclaimNow && w.whole[h.slot] && h.begun:
			w.t.Fatalf("a request that has begun and can't go on is ended")
		}
		all.leave(h, h.amount)
	}
	w.countReclaims(n)
}

// checkCallIn looks at a loan at fx[i] that is ended for nobody.
func (w *world) checkCallIn(after *Snapshot, fx []Effect, i int, all *load, floors []Amount) {
	h := w.holds[fx[i].Hold]
	spec := &w.table.Classes[h.class]
	left := all.class[h.class].sub(all.classGoing[h.class])
	var pinned bool
	for _, v := range after.Holds {
		if w.holds[v.Hold] == h {
			pinned = v.Pinned
		}
	}
	switch {
	case (!w.table.Pause || !w.table.CallIn) && w.excess(all, h) == [2]Amount{}, w.table.Bypass:
		w.t.Fatalf("a loan is ended for nobody:\n%+v\n%v", fx, after)
	case floors != nil && left.within(floors[h.class]):
		w.t.Fatalf("a loan is called in, though its class has %v of %v that it is owed:\n%+v\n%v", left, floors, fx, after)
	case pinned, spec.Mode == Attrition, w.untrue[h.engine] >= maxUntrue:
		w.t.Fatalf("of class %d, %v: pinned %v is called in", h.class, spec.Mode, pinned)
	case spec.Mode == Deadline && h.given+Time(spec.LoanLife) > w.now:
		w.t.Fatalf("a loan of class %d is called in before its life is over", h.class)
	case spec.Mode == ReclaimNow && w.whole[h.slot] && h.begun:
		w.t.Fatalf("a request that has begun and can't go on is called in")
	}
	all.leave(h, h.amount)
	w.countReclaims(1)
}

// countReclaims checks that n more reclaims are within their rate.
func (w *world) countReclaims(n int) {
	w.bursts = append(w.bursts, burst{w.now, n})
	rate, sum := Time(w.table.ReclaimRate), Time(0)
	for j := len(w.bursts) - 1; j >= 0 && rate > 0; j-- {
		b := w.bursts[j]
		if sum += Time(b.n); sum*1e9 > rate*(w.now-b.at)+max(rate, Time(n), Time(b.n))*1e9 {
			w.t.Fatalf("%d loans are ended in %v, of %d a second", sum, w.now-b.at, rate)
		}
	}
}

// checkWaits: nothing that could start waits. Who has to borrow gives way to all
// demand within a floor, and to earlier classes that wait for the same idle capacity.
func (w *world) checkWaits(after *Snapshot, fx []Effect) {
	lent := false
	for i := range fx {
		lent = lent || (fx[i].Op == Admit || fx[i].Op == Warm) && fx[i].Loan
	}
	c := w.core
	var inFloor, earlier bool
	for k := range c.classes {
		if cl := &c.classes[k]; cl.queue.head != none {
			f := c.fit(cl, &c.requests[cl.queue.head])
			inFloor = inFloor || !f.ok && f.within && f.refusal != refusedShare && f.refusal != refusedCeiling
		}
	}
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.queue.head == none {
			continue
		}
		if why, _, _ := c.feasible(cl, &c.requests[cl.queue.head]); why != CauseNone && why != CauseUnavailable {
			w.t.Fatalf("class %d: the head can never start (%v) and waits\n%v", k, why, after)
		}
		// What the guard allows depends on the time.
		f := c.fit(cl, &c.requests[cl.queue.head])
		if w.table.Bypass && w.works(uint32(cl.queue.head)) {
			w.t.Fatalf("nothing is decided, and the head of class %d waits\n%v", k, after)
		}
		if f.ok && (!f.loan || !inFloor && !earlier && !w.table.Pause) && c.guarded == 0 {
			w.t.Fatalf("class %d: the head could start and waits\n%v", k, after)
		}
		capacity := f.refusal == refusedFull || f.refusal == refusedHeld
		// Demand within a floor closes lending, recalls every loan that is out, and
		// nobody borrows while it waits. What comes free by itself is not recalled.
		if v := &after.Classes[k]; capacity && f.within {
			if cl.spec.Reopen == ReopenIdle && (v.Lending && cl.spec.Window == 0 || after.Loans > 0 && (v.Recall == nil || v.Recall.Loans != after.Loans)) {
				w.t.Fatalf("class %d waits within its floor and has not recalled %d loans:\n%v", k, after.Loans, after)
			}
			if lent {
				w.t.Fatalf("class %d waits within its floor, and somebody has borrowed:\n%+v\n%v", k, fx, after)
			}
		}
		earlier = earlier || capacity && !f.within
	}
}

// checkDebt compares what a windowed class is owed, and whether it is due, with the
// integral. It is called and paid by ticks, so what is to happen now need not have.
func (w *world) checkDebt(k Class, v *ClassSnapshot, ev *Event) {
	spec := &w.table.Classes[k]
	if spec.Window == 0 {
		if v.Owed != 0 || v.Due {
			w.t.Fatalf("class %d has no window, and is owed %v, due %v", k, v.Owed, v.Due)
		}
		return
	}
	if ev.Kind == Apply {
		return
	}
	service := Time(spec.Window) * Time(spec.Floor[Slots])
	if v.Used == (AmountView{}) && v.Queue == 0 {
		// What nobody waits for any more is not owed.
		w.debt[k] = min(w.debt[k], 0)
	}
	if v.Owed != w.debt[k] {
		w.t.Fatalf("class %d is owed %v, should be %v, at %d after %+v\n%+v %+v\n%v", k, v.Owed, w.debt[k], w.now, *ev, *spec, w.core.classes[k].owed, w.core.Snapshot())
	}
	if at, ok := w.core.Next(); ok && at <= w.now {
		return
	}
	rate := min(spec.Floor[Slots], v.Used.Slots+int64(v.Queue)) - v.Used.Slots
	if service > 0 && (!v.Due && rate > 0 && w.debt[k] >= service/4*3 || v.Due && rate < 0 && w.debt[k] <= service/2) {
		w.t.Fatalf("class %d is owed %v of %v, and due %v", k, v.Owed, service, v.Due)
	}
}

// checkHold compares hold_k with its definition over an exact history. The
// core's window may reach back a fifteenth further than asked. A class that lends as
// its idle time is worth looks back further, and not at all once it is quiet.
func (w *world) checkHold(k Class, used, floor Amount, v *ClassSnapshot) {
	spec, hold := &w.table.Classes[k], of(v.Hold)
	w.history[k] = append(w.history[k], sample{w.now, used})
	if !v.Lending || spec.Window > 0 {
		if hold != floor {
			w.t.Fatalf("class %d: lending %v, window %v, and hold is %v of %v", k, v.Lending, spec.Window, hold, floor)
		}
		return
	}
	least := func(peak Amount) Amount {
		return floor.min(spec.Unlent.max(peak.add(spec.Headroom).add(Of(0, v.Warm))))
	}
	peak := func(window Time) Amount {
		p := used
		for i := len(w.history[k]) - 1; i >= 0; i-- {
			// A value counts until the next one replaced it.
			if i+1 < len(w.history[k]) && w.history[k][i+1].at < w.now-window {
				break
			}
			p = p.max(w.history[k][i].used)
		}
		return least(p)
	}
	window := Time(spec.IdleAfter)
	low, high := peak(window), peak(window+2*((window+14)/15))
	switch {
	case spec.Reopen == ReopenSettled && used == (Amount{}) && v.Queue == 0:
		low, high = least(Amount{}), floor
	case spec.Reopen == ReopenSettled:
		low, high = least(used), floor
	case window == 0:
		low, high = least(used), least(used)
	}
	if !low.within(hold) || !hold.within(high) {
		w.t.Fatalf("class %d: hold %v, should be %v to %v:\n%v", k, hold, low, high, w.core.Snapshot())
	}
}
