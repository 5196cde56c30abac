package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// world drives a core with random but lawful events and keeps its own account
// of everything from the effects alone: an independent reading of design 4.2,
// not the core's sums.
type world struct {
	t     *rapid.T
	table *Table
	core  *Core
	twin  *Core // fed the same events
	now   Time
	gen   [worldSlots]uint32
	at    [worldSlots]place
	class [worldSlots]Class
	order [worldSlots]int // of first arrival
	count int
	holds map[Hold]*entry
	// used over time by class, for the peak of the recent past.
	history [][]sample
	settled map[uint64]bool
	tenant  [worldSlots]Tenant
	passed  map[ID]int64 // KV tokens of requests of its tenant that passed a head
}

const worldSlots = 24

type place uint8

const (
	nowhere place = iota
	waiting
	running
)

type entry struct {
	slot   uint32
	class  Class
	engine Engine
	ended  bool
	asked  bool // to end
}

type sample struct {
	at   Time
	used Amount
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, holds: map[Hold]*entry{}, settled: map[uint64]bool{}, passed: map[ID]int64{}}
	w.table = drawTable(t, &Table{})
	w.core, w.twin = New(w.table, worldSlots), New(w.table, worldSlots)
	w.history = make([][]sample, len(w.table.Classes))
	return w
}

// drawTable draws a table that may follow another.
func drawTable(t *rapid.T, old *Table) *Table {
	tab := &Table{Rev: old.Rev + 1, Drain: old.Rev > 0 && rapid.IntRange(0, 9).Draw(t, "drain") == 9}
	for e := range rapid.IntRange(max(1, len(old.Engines)), 3).Draw(t, "engines") {
		tab.Engines = append(tab.Engines, EngineSpec{
			Name: fmt.Sprint("e", e), Slots: rapid.Int64Range(1, 5).Draw(t, "slots"), KV: rapid.Int64Range(10, 60).Draw(t, "kv") * 16,
			Block: 16, MaxContext: 640, Boundary: rapid.SampledFrom([]int64{0, 0, 2}).Draw(t, "boundary"),
			Ordered: rapid.Bool().Draw(t, "ordered"), Fatal: rapid.Bool().Draw(t, "fatal"),
			GaugeAge: time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Second, Closed: rapid.IntRange(0, 5).Draw(t, "closed") == 5,
		})
	}
	left := tab.Envelope()
	for k := range rapid.IntRange(max(1, len(old.Classes)), 4).Draw(t, "classes") {
		c := ClassSpec{
			Name: fmt.Sprint("c", k), IdleAfter: time.Duration(rapid.IntRange(0, 3).Draw(t, "idle")) * time.Second,
			Depth: rapid.IntRange(0, 8).Draw(t, "depth"), TenantDepth: rapid.IntRange(0, 3).Draw(t, "tenant depth"),
			MaxWait: time.Duration(rapid.IntRange(0, 20).Draw(t, "wait")) * time.Second, DefaultOut: 40,
			MaxOut: int32(rapid.SampledFrom([]int{0, 0, 100}).Draw(t, "max out")), Closed: rapid.IntRange(0, 9).Draw(t, "closed") == 9,
		}
		for r := range NumResources {
			c.Floor[r] = rapid.Int64Range(0, left[r]).Draw(t, "floor")
			left[r] -= c.Floor[r]
			c.Unlent[r] = rapid.Int64Range(0, c.Floor[r]).Draw(t, "unlent")
			c.Ceiling[r] = rapid.Int64Range(c.Floor[r], tab.Envelope()[r]).Draw(t, "ceiling")
			c.Headroom[r] = rapid.Int64Range(0, (tab.Envelope()[r]+3)/4).Draw(t, "headroom")
		}
		if rapid.Bool().Draw(t, "deadline") {
			c.Mode, c.LoanLife = Deadline, time.Duration(rapid.IntRange(1, 5).Draw(t, "life"))*time.Second
		}
		tab.Classes = append(tab.Classes, c)
	}
	return tab
}

// step advances time as a driver with a timer does, and lets what is due happen
// before it applies one event, so that each check sees the state that the
// admissions of one cause left.
func (w *world) step(ev *Event) {
	until := w.now + Time(rapid.IntRange(0, 800).Draw(w.t, "ms"))*1e6
	for at, ok := w.core.Next(); ok && at <= until; at, ok = w.core.Next() {
		w.now = max(w.now, at)
		w.apply(&Event{Kind: Tick})
	}
	w.now = until
	w.apply(ev)
}

// apply gives one event to both cores and checks everything.
func (w *world) apply(ev *Event) {
	if h := w.holds[ev.Hold]; h != nil && ev.Kind == Ended {
		h.ended = true
	}
	before := w.core.Snapshot()
	fx := w.core.Step(w.now, ev, nil)
	if diff := cmp.Diff(fx, w.twin.Step(w.now, ev, nil)); diff != "" {
		w.t.Fatalf("the same input gave another output: %s", diff)
	}
	for i := range fx {
		w.take(&fx[i], before)
	}
	if ev.Kind == Released || ev.Kind == Ended && ev.Flags&FlagReleased != 0 {
		delete(w.holds, ev.Hold)
	}
	after := w.core.Snapshot()
	w.check(before, after, ev, fx)
	w.checkTimers(after)
}

// checkTimers looks just before the next timer, or far ahead if there is none:
// time alone must have changed nothing by then.
func (w *world) checkTimers(now *Snapshot) {
	c := *w.core
	c.classes, c.engines, c.holds = slices.Clone(c.classes), slices.Clone(c.engines), slices.Clone(c.holds)
	c.requests, c.victims = slices.Clone(c.requests), nil
	c.lines, c.tenants = slices.Clone(c.lines), slices.Clone(c.tenants)
	for k := range c.classes {
		c.classes[k].queue.lines = slices.Clone(c.classes[k].queue.lines)
	}
	at, ok := c.Next()
	if at--; !ok {
		at = w.now + 1e15
	} else if at < w.now {
		return // it is due
	}
	c.next = 0
	fx := c.Step(at, &Event{Kind: Tick}, nil)
	if later := c.Snapshot().String(); len(fx) > 0 || later != now.String() {
		w.t.Fatalf("no timer for what happens from %v to %v: %+v\n%v\nbecomes\n%v", w.now, at, fx, now, later)
	}
}

// take keeps the books.
func (w *world) take(e *Effect, before *Snapshot) {
	slot := e.ID.Slot()
	want := func(ok bool) {
		if !ok {
			w.t.Fatalf("effect %+v of a request that is %d", *e, w.at[slot])
		}
	}
	switch e.Op {
	case Queued:
		want(w.at[slot] == running || w.at[slot] == waiting)
		w.at[slot] = waiting
	case Admit:
		want(w.at[slot] == waiting)
		w.at[slot] = running
		for other, p := range w.at {
			if p == waiting && w.class[other] == e.Class && w.tenant[other] == w.tenant[slot] && w.order[other] < w.order[slot] {
				w.overtake(e, before)
				break
			}
		}
		if w.holds[e.Hold] != nil {
			w.t.Fatalf("hold %x was given twice", e.Hold)
		}
		w.holds[e.Hold] = &entry{slot: slot, class: e.Class, engine: e.Engine}
	case Reject:
		want(w.at[slot] == waiting)
		w.at[slot] = nowhere
	case Done:
		want(w.at[slot] != nowhere)
		w.at[slot] = nowhere
	case Reclaim:
		h := w.holds[e.Hold]
		if h == nil || h.ended || h.asked {
			w.t.Fatalf("reclaim of %+v", h)
		}
		h.asked = true
	case Stage:
		switch e.Cause {
		case CauseGhost:
			if h := w.holds[e.Hold]; h == nil || !h.ended {
				w.t.Fatalf("ghost of a hold that is %+v", h)
			}
			delete(w.holds, e.Hold)
		case CauseRecallSettled:
			if w.settled[e.Seq] {
				w.t.Fatalf("recall %d settled twice", e.Seq)
			}
			w.settled[e.Seq] = true
		}
	}
}

// overtake checks an admission that is not in the order of its tenant: all it
// may have passed is the head, up to the KV that the head could want, and what
// waits behind the head.
func (w *world) overtake(e *Effect, before *Snapshot) {
	head := before.Classes[e.Class].Head
	if head == nil || w.tenant[head.ID.Slot()] != e.Tenant || w.order[head.ID.Slot()] > w.order[e.ID.Slot()] {
		head = w.core.Snapshot().Classes[e.Class].Head
	}
	if head == nil || w.tenant[head.ID.Slot()] != e.Tenant || w.order[head.ID.Slot()] > w.order[e.ID.Slot()] {
		w.t.Fatalf("request %d overtook one of its tenant that was not the head:\n%v", e.ID, before)
	}
	var most int64
	for i := range w.core.engines {
		amount, _, _ := w.core.price(&w.core.classes[e.Class], &w.core.engines[i], &w.core.requests[head.ID.Slot()])
		most = max(most, amount[KV])
	}
	if w.passed[head.ID] += e.Tokens; w.passed[head.ID] > most {
		w.t.Fatalf("%d kv tokens have passed %d, which wants %d:\n%v", w.passed[head.ID], head.ID, most, before)
	}
}

func of(v AmountView) Amount { return Of(v.Slots, v.KV) }

// check compares the core with the books and with the rules.
func (w *world) check(before, after *Snapshot, ev *Event, fx []Effect) {
	t := w.t
	// The holds the core has are those the effects gave and nobody ended.
	classUsed := make([]Amount, len(w.table.Classes))
	engineUsed := make([]Amount, len(w.table.Engines))
	for _, v := range after.Holds {
		h := w.holds[v.Hold]
		if h == nil {
			t.Fatalf("a hold that was never given or was freed: %+v", v)
		}
		classUsed[h.class] = classUsed[h.class].add(of(v.Amount))
		engineUsed[h.engine] = engineUsed[h.engine].add(of(v.Amount))
	}
	if len(after.Holds) != len(w.holds) {
		t.Fatalf("%d holds in the core, %d by the effects", len(after.Holds), len(w.holds))
	}
	var promised, kept, foreign Amount
	for k, v := range after.Classes {
		if of(v.Used) != classUsed[k] {
			t.Fatalf("class %d: used %v, holds sum to %v", k, v.Used, classUsed[k])
		}
		w.checkHold(Class(k), classUsed[k], of(v.Hold), v.Lending)
		promised = promised.add(classUsed[k].max(of(v.Hold)))
		kept = kept.add(classUsed[k].max(w.table.Classes[k].Unlent))
	}
	if promised != of(after.Promised) {
		t.Fatalf("promised %v, is %v", after.Promised, promised)
	}
	for e, v := range after.Engines {
		if of(v.Used) != engineUsed[e] {
			t.Fatalf("engine %d: used %v, holds sum to %v", e, v.Used, engineUsed[e])
		}
		foreign = foreign.add(of(v.Foreign))
	}
	// The conditions, on the state that the last admissions of this step left:
	// within floors first, loans after them, nothing in between that frees.
	var lent bool
	var last *Effect
	for i := range fx {
		e := &fx[i]
		if e.Op != Admit {
			continue
		}
		spec := &w.table.Engines[e.Engine]
		limit := Of(spec.Slots, spec.KV)
		if spec.Boundary > 0 && (spec.Ordered || !e.Loan) {
			limit[Slots] += spec.Boundary
		}
		lent, last = lent || e.Loan, e
		if load := engineUsed[e.Engine].add(of(after.Engines[e.Engine].Foreign)); !load.within(limit) {
			t.Fatalf("condition 1: engine %d has %v of %v after an admission", e.Engine, load, limit)
		}
		if used := classUsed[e.Class]; !used.within(w.table.Classes[e.Class].Ceiling) {
			t.Fatalf("condition 1: class %d uses %v, ceiling %v", e.Class, used, w.table.Classes[e.Class].Ceiling)
		}
		if e.Loan == classUsed[e.Class].within(w.table.Classes[e.Class].Floor) && e.Loan {
			t.Fatalf("a loan to class %d, which uses %v of its floor %v", e.Class, classUsed[e.Class], w.table.Classes[e.Class].Floor)
		}
	}
	envelope := of(after.Envelope)
	for i := range fx {
		e := &fx[i]
		if e.Op != Admit {
			continue
		}
		for r := range NumResources {
			// A later admission of the step, within its own hold, may raise what is
			// promised.
			if e == last && classUsed[e.Class][r] > of(after.Classes[e.Class].Hold)[r] && promised[r]+foreign[r] > envelope[r] {
				t.Fatalf("condition 2: class %d borrowed %v, promised %d + foreign %d > %d, by %+v:\n%v\nbecame\n%v", e.Class, r, promised[r], foreign[r], envelope[r], fx, before, after)
			}
			// Who takes no more than his own unlent part takes nobody's.
			others := kept[r] - max(classUsed[e.Class][r], w.table.Classes[e.Class].Unlent[r]) - (of(after.Used)[r] - classUsed[e.Class][r])
			if others > 0 && classUsed[e.Class][r] > w.table.Classes[e.Class].Unlent[r] && kept[r]+foreign[r] > envelope[r] {
				t.Fatalf("unlent %v lent: used or unlent %d + foreign %d > %d", r, kept[r], foreign[r], envelope[r])
			}
		}
	}
	w.checkReclaims(after, fx)
	// Nothing that could start waits. Who has to borrow gives way to all demand
	// within a floor, and to earlier classes that wait for the same idle capacity.
	var inFloor, earlier bool
	for k := range w.core.classes {
		if cl := &w.core.classes[k]; cl.queue.head != none {
			f := w.core.fit(cl, &w.core.requests[cl.queue.head])
			inFloor = inFloor || !f.ok && f.within
		}
	}
	for k := range w.core.classes {
		cl := &w.core.classes[k]
		if cl.queue.head == none {
			continue
		}
		if why, _, _ := w.core.feasible(cl, &w.core.requests[cl.queue.head]); why != CauseNone {
			t.Fatalf("class %d: the head can never start (%v) and waits\n%v", k, why, after)
		}
		f := w.core.fit(cl, &w.core.requests[cl.queue.head])
		if f.ok && (!f.loan || !inFloor && !earlier) {
			t.Fatalf("class %d: the head could start and waits\n%v", k, after)
		}
		// Demand within a floor closes lending, recalls every loan that is out, and
		// nobody borrows while it waits.
		if v := &after.Classes[k]; !f.ok && f.within {
			if v.Lending || after.Loans > 0 && (v.Recall == nil || v.Recall.Loans != after.Loans) {
				t.Fatalf("class %d waits within its floor and has not recalled %d loans:\n%v", k, after.Loans, after)
			}
			if lent {
				t.Fatalf("class %d waits within its floor, and somebody has borrowed:\n%v", k, after)
			}
		}
		earlier = earlier || !f.ok && !f.within && (f.refusal == refusedFull || f.refusal == refusedHeld)
	}
	for i := range fx {
		if e := &fx[i]; e.Op == Queued && ev.Kind == Offer && e.ID == ev.ID {
			if n, most := before.Classes[e.Class].Queue, w.table.Classes[e.Class].Depth; n >= most {
				t.Fatalf("class %d: one more queued, though %d wait and %d may", e.Class, n, most)
			}
		}
	}
}

// checkReclaims looks at the loans that a step has begun to end: they were
// needed, are enough, and were borrowed.
func (w *world) checkReclaims(after *Snapshot, fx []Effect) {
	for i := range fx {
		e := &fx[i]
		if e.Op != Reclaim || i+1 < len(fx) && fx[i+1].Op == Reclaim && fx[i+1].For == e.For {
			continue
		}
		// e is the last that ends for its request.
		slot := e.For.Slot()
		k := w.class[slot]
		if w.at[slot] != waiting || w.core.classes[k].queue.head != int32(slot) {
			continue // it was served in the same step
		}
		en := &w.core.engines[e.Engine]
		amount, _, _ := w.core.price(&w.core.classes[k], en, &w.core.requests[slot])
		fits := func(but Hold) bool {
			load := of(after.Engines[e.Engine].Foreign).add(amount)
			used := make([]Amount, len(w.table.Classes))
			for _, v := range after.Holds {
				if v.State != "live" && v.Hold != but {
					continue
				}
				h := w.holds[v.Hold]
				used[h.class] = used[h.class].add(of(v.Amount))
				if h.engine == e.Engine {
					load = load.add(of(v.Amount))
				}
			}
			own := of(after.Classes[k].Used).add(amount)
			var kept, others, room Amount
			for j := range used {
				if Class(j) != k {
					kept, others = kept.add(used[j].max(w.table.Classes[j].Unlent)), others.add(used[j])
				}
			}
			for j, v := range after.Engines {
				if !w.table.Engines[j].Closed && v.State == "ready" {
					room = room.add(of(v.Total)).sub(of(v.Foreign))
				} else {
					for _, h := range after.Holds {
						if w.holds[h.Hold].engine == Engine(j) && h.State == "live" {
							room = room.add(of(h.Amount))
						}
					}
				}
			}
			limit := Of(en.spec.Slots+en.spec.Boundary, en.spec.KV)
			if load != amount.add(of(after.Engines[e.Engine].Foreign)) {
				limit[KV] -= after.Engines[e.Engine].Slack
			}
			for r := range NumResources {
				if load[r] > limit[r] || own[r] > w.table.Classes[k].Unlent[r] && others[r] != kept[r] && kept[r]+own[r] > room[r] {
					return false
				}
			}
			return true
		}
		if !fits(0) {
			w.t.Fatalf("%d was ended in vain for %d:\n%v", e.ID, e.For, after)
		}
		if fits(e.Hold) {
			w.t.Fatalf("%d was ended needlessly for %d:\n%v", e.ID, e.For, after)
		}
		left := of(after.Classes[e.Class].Used)
		for _, v := range after.Holds {
			if w.holds[v.Hold].class == e.Class && v.State != "live" && v.Hold != e.Hold {
				left = left.sub(of(v.Amount))
			}
		}
		if left.within(w.table.Classes[e.Class].Floor) {
			w.t.Fatalf("%d was ended, though its class is left with %v:\n%v", e.ID, left, after)
		}
	}
}

// checkHold compares hold_k with its definition over an exact history. The
// core's window may reach back a fifteenth further than asked.
func (w *world) checkHold(k Class, used, hold Amount, open bool) {
	spec := &w.table.Classes[k]
	w.history[k] = append(w.history[k], sample{w.now, used})
	if !open {
		if hold != spec.Floor {
			w.t.Fatalf("class %d: lending is closed and hold is %v of %v", k, hold, spec.Floor)
		}
		return
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
		return spec.Floor.min(spec.Unlent.max(p.add(spec.Headroom)))
	}
	if window := Time(spec.IdleAfter); window == 0 {
		if want := peak(0); hold != spec.Floor.min(spec.Unlent.max(used.add(spec.Headroom))) {
			w.t.Fatalf("class %d: hold %v, want %v", k, hold, want)
		}
	} else if low, high := peak(window), peak(window+2*((window+14)/15)); !low.within(hold) || !hold.within(high) {
		w.t.Fatalf("class %d: hold %v, should be %v to %v", k, hold, low, high)
	}
}

func (w *world) slot(in place) (uint32, bool) {
	var slots []uint32
	for i, p := range w.at {
		if p == in {
			slots = append(slots, uint32(i))
		}
	}
	if slots == nil {
		return 0, false
	}
	return rapid.SampledFrom(slots).Draw(w.t, "slot"), true
}

func (w *world) hold(ended bool) (Hold, *entry) {
	var ids []Hold
	for id, h := range w.holds {
		if h.ended == ended {
			ids = append(ids, id)
		}
	}
	if ids == nil {
		return 0, nil
	}
	least := ids[0]
	pick := rapid.IntRange(0, len(ids)-1).Draw(w.t, "hold")
	for range pick + 1 {
		least = ^Hold(0)
		at := 0
		for i, id := range ids {
			if id < least {
				least, at = id, i
			}
		}
		ids[at] = ^Hold(0)
	}
	return least, w.holds[least]
}

func (w *world) offer() {
	slot, ok := w.slot(nowhere)
	if !ok {
		return
	}
	w.gen[slot]++
	w.at[slot] = waiting
	w.class[slot] = Class(rapid.IntRange(0, len(w.table.Classes)-1).Draw(w.t, "class"))
	w.tenant[slot] = Tenant(rapid.IntRange(0, 3).Draw(w.t, "tenant"))
	w.count++
	w.order[slot] = w.count
	ev := &Event{
		Kind: Offer, ID: MakeID(w.gen[slot], slot), Class: w.class[slot], Tenant: w.tenant[slot], Prompt: tokens(w.t, "prompt", 400),
		Out: tokens(w.t, "out", 200), N: rapid.SampledFrom([]int32{1, 1, 1, 2, math.MaxInt32}).Draw(w.t, "n"),
	}
	w.step(ev)
}

// tokens draws a number of tokens, sometimes one that nobody should send.
func tokens(t *rapid.T, label string, most int32) int32 {
	if rapid.IntRange(0, 19).Draw(t, label+" is odd") == 19 {
		return rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 5000, math.MaxInt32}).Draw(t, label)
	}
	return rapid.Int32Range(-1, most).Draw(t, label)
}

func (w *world) end(id Hold, ev *Event) {
	ev.Kind, ev.Hold = Ended, id
	w.step(ev)
}

func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"offer":  func(*rapid.T) { w.offer() },
		"offer2": func(*rapid.T) { w.offer() },
		"cancel": func(*rapid.T) {
			if slot, ok := w.slot(waiting); ok {
				w.step(&Event{Kind: Cancel, ID: MakeID(w.gen[slot], slot)})
				if w.at[slot] == waiting {
					w.t.Fatalf("cancelled and still waiting")
				}
			}
		},
		"progress": func(t *rapid.T) {
			if id, h := w.hold(false); h != nil {
				w.step(&Event{Kind: Progress, Hold: id, Out: tokens(t, "out", 300), Prompt: rapid.SampledFrom([]int32{0, 0, 50, 500}).Draw(t, "prompt")})
			}
		},
		"end": func(t *rapid.T) {
			if id, h := w.hold(false); h != nil {
				w.end(id, &Event{
					Out: tokens(t, "out", 300), Flags: uint8(rapid.IntRange(0, 7).Draw(t, "flags")),
					Cause: rapid.SampledFrom([]Cause{CauseFinished, CauseFailed, CauseClientGone, CauseTimeout, CauseReclaimed, CauseUnreachable}).Draw(t, "cause"),
				})
			}
		},
		"release": func(*rapid.T) {
			if id, h := w.hold(true); h != nil {
				w.step(&Event{Kind: Released, Hold: id})
			}
		},
		"stale": func(t *rapid.T) {
			slot := uint32(rapid.IntRange(0, worldSlots-1).Draw(t, "slot"))
			w.step(&Event{Kind: Cancel, ID: MakeID(w.gen[slot]+1, slot)})
			w.step(&Event{Kind: Ended, Hold: Hold(uint64(1<<20)<<32 | uint64(slot))})
		},
		"observe": func(t *rapid.T) {
			w.step(&Event{Kind: Observe, Engine: Engine(rapid.IntRange(0, len(w.table.Engines)-1).Draw(t, "engine")), Gauge: Gauge{
				State: rapid.SampledFrom([]State{Ready, Ready, Ready, Loading, Down}).Draw(t, "state"), Asked: w.now,
				Running: int32(rapid.IntRange(-1, 6).Draw(t, "running")), KV: rapid.Int64Range(-1, 900).Draw(t, "kv"),
				Progress: rapid.Int64Range(-1, 3).Draw(t, "progress"), Preemptions: rapid.Int64Range(-1, 2).Draw(t, "preemptions"),
			}})
		},
		"tick": func(*rapid.T) { w.step(&Event{Kind: Tick}) },
		"table": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
				return
			}
			tab := drawTable(t, w.table)
			w.step(&Event{Kind: Tick})
			w.now++ // so that the last step and this one are not of one moment
			for k := range tab.Classes {
				if k == len(w.history) {
					w.history = append(w.history, nil)
				} else if tab.Classes[k].IdleAfter != w.table.Classes[k].IdleAfter {
					// A new window starts with what the old one knew.
					w.core.classes[k].peak.advance(w.now)
					w.twin.classes[k].peak.advance(w.now)
					w.history[k] = []sample{{w.now, w.core.classes[k].peak.max()}}
				}
			}
			w.table = tab
			w.apply(&Event{Kind: Apply, Table: tab})
		},
	}
}

// Both conditions of design 4.2 hold at every step, unlent parts are never
// lent, every hold ends once, nothing that could start waits, and the same
// input gives the same output.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(w.actions())
		w.finish()
	})
}

// The same, over what a fuzzer finds. The seeds are long enough for a table and
// some hundred events.
func FuzzCore(f *testing.F) {
	for seed := range byte(8) {
		bytes := make([]byte, 1<<16)
		rand.NewChaCha8([32]byte{seed}).Read(bytes)
		f.Add(bytes)
	}
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(w.actions())
		w.finish()
	}))
}

// finish ends everything and expects nothing to be left: no count, no hold, no
// waiting request.
func (w *world) finish() {
	for range 10 * worldSlots {
		if id, h := w.hold(true); h != nil {
			w.step(&Event{Kind: Released, Hold: id})
		} else if id, h := w.hold(false); h != nil {
			w.end(id, &Event{Cause: CauseFinished, Flags: FlagReleased})
		} else if slot, ok := w.slot(waiting); ok {
			w.step(&Event{Kind: Cancel, ID: MakeID(w.gen[slot], slot)})
		} else {
			break
		}
	}
	s := w.core.Snapshot()
	if s.Used != (AmountView{}) || s.Loans != 0 || s.Ghosts != 0 || len(s.Holds) != 0 {
		w.t.Fatalf("everything has ended, and there is left:\n%v", s)
	}
	for k, v := range s.Classes {
		if v.Queue != 0 || v.Recall != nil {
			w.t.Fatalf("everything has ended, and class %d has:\n%v", k, s)
		}
		n := &v.Counts
		var out uint64
		for why := range NumCauses {
			out += n.Rejected[why] + n.Done[why]
		}
		if n.Offered != out {
			w.t.Fatalf("class %d: %d offered, %d answered", k, n.Offered, out)
		}
	}
}

// Case 1 of the reported faults: clients vanish while queued on a full engine.
// Every count returns to zero and the next request starts at once.
func TestQueuedClientsVanish(t *testing.T) {
	c := New(benchTable(), 2000)
	admitted := func(fx []Effect) (h Hold) {
		for _, e := range fx {
			if e.Op == Admit {
				h = e.Hold
			}
		}
		return h
	}
	var running []Hold
	for i := range uint32(1000) {
		if h := admitted(c.Step(0, &Event{Kind: Offer, ID: MakeID(1, i), Prompt: 100, Out: 10}, nil)); h != 0 {
			running = append(running, h)
		}
	}
	for i := range uint32(1000) {
		c.Step(0, &Event{Kind: Cancel, ID: MakeID(1, i)}, nil)
	}
	if s := c.Snapshot(); s.Classes[0].Queue != 0 || int(s.Used.Slots) != len(running) || len(running) != 64 {
		t.Fatalf("after the cancels:\n%v", s)
	}
	c.Step(1, &Event{Kind: Ended, Hold: running[0], Flags: FlagReleased, Cause: CauseFinished}, nil)
	if admitted(c.Step(1, &Event{Kind: Offer, ID: MakeID(2, 1500), Prompt: 100, Out: 10}, nil)) == 0 {
		t.Fatal("the next request did not start at once")
	}
}
