package admission

import (
	"fmt"
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
	holds map[Hold]*entry
	// used over time by class, for the peak of the recent past.
	history [][]sample
	settled map[uint64]bool
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
	loan   bool
	ended  bool
	asked  bool // to end
}

type sample struct {
	at   Time
	used Amount
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, holds: map[Hold]*entry{}, settled: map[uint64]bool{}}
	w.table = drawTable(t)
	w.core, w.twin = New(w.table, worldSlots), New(w.table, worldSlots)
	w.history = make([][]sample, len(w.table.Classes))
	return w
}

func drawTable(t *rapid.T) *Table {
	tab := &Table{}
	for e := range rapid.IntRange(1, 3).Draw(t, "engines") {
		tab.Engines = append(tab.Engines, EngineSpec{
			Name: fmt.Sprint("e", e), Slots: rapid.Int64Range(1, 5).Draw(t, "slots"), KV: rapid.Int64Range(10, 60).Draw(t, "kv") * 16,
			Block: 16, MaxContext: 640, Boundary: rapid.SampledFrom([]int64{0, 0, 2}).Draw(t, "boundary"),
			Ordered: rapid.Bool().Draw(t, "ordered"), Fatal: rapid.Bool().Draw(t, "fatal"),
		})
	}
	left := tab.Envelope()
	for k := range rapid.IntRange(1, 4).Draw(t, "classes") {
		c := ClassSpec{
			Name: fmt.Sprint("c", k), IdleAfter: time.Duration(rapid.IntRange(0, 3).Draw(t, "idle")) * time.Second,
			Depth: rapid.IntRange(0, 8).Draw(t, "depth"), TenantDepth: rapid.IntRange(0, 3).Draw(t, "tenant depth"),
			MaxWait: time.Duration(rapid.IntRange(0, 20).Draw(t, "wait")) * time.Second, DefaultOut: 40,
		}
		for r := range NumResources {
			c.Floor[r] = rapid.Int64Range(0, left[r]).Draw(t, "floor")
			left[r] -= c.Floor[r]
			c.Unlent[r] = rapid.Int64Range(0, c.Floor[r]).Draw(t, "unlent")
			c.Ceiling[r] = rapid.Int64Range(c.Floor[r], tab.Envelope()[r]).Draw(t, "ceiling")
			c.Headroom[r] = rapid.Int64Range(0, 1).Draw(t, "headroom")
		}
		if rapid.Bool().Draw(t, "deadline") {
			c.Mode, c.LoanLife = Deadline, time.Duration(rapid.IntRange(1, 5).Draw(t, "life"))*time.Second
		}
		tab.Classes = append(tab.Classes, c)
	}
	return tab
}

// step advances time, and lets what is due happen before it applies one event, so
// that each check sees the state that the admissions of one cause left.
func (w *world) step(ev *Event) {
	w.now += Time(rapid.IntRange(0, 800).Draw(w.t, "ms")) * 1e6
	w.apply(&Event{Kind: Tick})
	w.apply(ev)
}

// apply gives one event to both cores and checks everything.
func (w *world) apply(ev *Event) {
	before := w.core.Snapshot()
	fx := w.core.Step(w.now, ev, nil)
	if diff := cmp.Diff(fx, w.twin.Step(w.now, ev, nil)); diff != "" {
		w.t.Fatalf("the same input gave another output: %s", diff)
	}
	for i := range fx {
		w.take(&fx[i])
	}
	if ev.Kind == Released || ev.Kind == Ended && ev.Flags&FlagReleased != 0 {
		delete(w.holds, ev.Hold)
	}
	after := w.core.Snapshot()
	w.check(before, after, fx)
}

// take keeps the books.
func (w *world) take(e *Effect) {
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
		if w.holds[e.Hold] != nil {
			w.t.Fatalf("hold %x was given twice", e.Hold)
		}
		w.holds[e.Hold] = &entry{slot: slot, class: e.Class, engine: e.Engine, loan: e.Loan}
	case Reject:
		want(w.at[slot] == waiting)
		w.at[slot] = nowhere
	case Done:
		want(w.at[slot] != nowhere)
		w.at[slot] = nowhere
	case Reclaim:
		h := w.holds[e.Hold]
		if h == nil || h.ended || h.asked || !h.loan {
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

func of(v AmountView) Amount { return Of(v.Slots, v.KV) }

// check compares the core with the books and with the rules.
func (w *world) check(before, after *Snapshot, fx []Effect) {
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
	var boundary bool
	for i := range fx {
		e := &fx[i]
		if e.Op != Admit {
			continue
		}
		spec := &w.table.Engines[e.Engine]
		limit := Of(spec.Slots, spec.KV)
		if spec.Boundary > 0 && (spec.Ordered || !e.Loan) {
			limit[Slots] += spec.Boundary
			boundary = true
		}
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
			if classUsed[e.Class][r] > of(after.Classes[e.Class].Hold)[r] && promised[r]+foreign[r] > envelope[r] && !boundary {
				t.Fatalf("condition 2: class %d borrowed %v, promised %d + foreign %d > %d", e.Class, r, promised[r], foreign[r], envelope[r])
			}
			if kept[r]+foreign[r] > envelope[r] && !boundary {
				t.Fatalf("unlent %v lent: used or unlent %d + foreign %d > %d", r, kept[r], foreign[r], envelope[r])
			}
		}
	}
	// Nothing that could start waits.
	for k := range w.core.classes {
		cl := &w.core.classes[k]
		if cl.queue.head == none {
			continue
		}
		if f := w.core.fit(cl, &w.core.requests[cl.queue.head]); f.ok && (!f.loan || w.core.mayBorrow(Class(k))) {
			t.Fatalf("class %d: the head could start and waits\n%v", k, after)
		}
	}
	for k, v := range after.Classes {
		if v.Queue > w.table.Classes[k].Depth && v.Queue > before.Classes[k].Queue && len(fx) > 0 && fx[len(fx)-1].Op == Queued && w.gen[fx[len(fx)-1].ID.Slot()] == 0 {
			t.Fatalf("class %d: %d wait, %d may", k, v.Queue, w.table.Classes[k].Depth)
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
	ev := &Event{
		Kind: Offer, ID: MakeID(w.gen[slot], slot), Class: Class(rapid.IntRange(0, len(w.table.Classes)-1).Draw(w.t, "class")),
		Tenant: Tenant(rapid.IntRange(0, 3).Draw(w.t, "tenant")), Prompt: int32(rapid.IntRange(1, 400).Draw(w.t, "prompt")),
		Out: int32(rapid.SampledFrom([]int{Undeclared, 1, 30, 200, 5000}).Draw(w.t, "out")), N: int32(rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(w.t, "n")),
	}
	w.step(ev)
}

func (w *world) end(id Hold, h *entry, ev *Event) {
	ev.Kind, ev.Hold = Ended, id
	h.ended = true
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
				w.step(&Event{Kind: Progress, Hold: id, Out: int32(rapid.IntRange(0, 300).Draw(t, "out")), Prompt: int32(rapid.SampledFrom([]int{0, 0, 50}).Draw(t, "prompt"))})
			}
		},
		"end": func(t *rapid.T) {
			if id, h := w.hold(false); h != nil {
				w.end(id, h, &Event{
					Out: int32(rapid.IntRange(0, 300).Draw(t, "out")), Flags: uint8(rapid.IntRange(0, 7).Draw(t, "flags")),
					Cause: rapid.SampledFrom([]Cause{CauseFinished, CauseFailed, CauseClientGone, CauseTimeout, CauseReclaimed}).Draw(t, "cause"),
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

// finish ends everything and expects nothing to be left: no count, no hold, no
// waiting request.
func (w *world) finish() {
	for range 10 * worldSlots {
		if id, h := w.hold(true); h != nil {
			w.step(&Event{Kind: Released, Hold: id})
		} else if id, h := w.hold(false); h != nil {
			w.end(id, h, &Event{Cause: CauseFinished, Flags: FlagReleased})
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
