package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"headgate/kv"
	"pgregory.net/rapid"
)

// world drives a core with random but lawful events and keeps its own account
// of everything from the effects alone: an independent reading of design 4.2,
// not the core's sums.
type world struct {
	t     *rapid.T
	table *Table
	core  *Core
	twin  *Core // fed the same events, and never looked at
	now   Time
	gen   [worldSlots]uint32
	at    [worldSlots]place
	class [worldSlots]Class
	order [worldSlots]int // of first arrival
	count int
	holds map[Hold]*entry
	// used over time by class, for the peak of the recent past.
	history  [][]sample
	settled  map[uint64]bool
	closed   map[uint64]bool
	opened   map[ID]uint64 // the recall that a request opened
	tenant   [worldSlots]Tenant
	passed   map[ID]int64 // KV tokens of requests of its tenant that passed a head
	whole    [worldSlots]bool
	session  [worldSlots]uint32
	reclaims [worldSlots]int // of the request
	debt     []Time          // of each class's window
	since    Time            // of these
	warm     map[uint32]warmth
	untrue   []int // reclaims in a row that each engine did not confirm
	bursts   []burst
	lease    lease
	heard    []heard // of each class, when it was last said to be looked at
	demands  Demands
	wanted   [MaxClasses]bool // requests of the class have had a limit of their own
}

// limited tells whether a request of a class may have a limit on its first token.
func (w *world) limited(k Class) bool {
	return w.wanted[k] || w.core.classes[k].spec.Objective.First > 0
}

// warmth is what a session has left.
type warmth struct {
	class  Class
	tokens int64
	until  Time
}

// burst is how many loans were ended at once.
type burst struct {
	at Time
	n  int
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
	n      int32
	amount Amount
	given  Time
	out    int32
	begun  bool // it has a token
	piece  bool // it only warms a part of a prompt
	ended  bool
	asked  bool   // to end
	recall uint64 // for whose first request that was
}

type sample struct {
	at   Time
	used Amount
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, holds: map[Hold]*entry{}, settled: map[uint64]bool{}, closed: map[uint64]bool{}, opened: map[ID]uint64{}, passed: map[ID]int64{}, warm: map[uint32]warmth{}}
	w.table = drawTable(t, &Table{})
	drawShares(t, w.table, 0)
	w.lease.take(w.table, 0)
	w.core, w.twin = New(w.table, worldSlots), New(w.table, worldSlots)
	w.history = make([][]sample, len(w.table.Classes))
	w.debt, w.untrue = make([]Time, len(w.table.Classes)), make([]int, len(w.table.Engines))
	return w
}

// drawTable draws a table that may follow another.
func drawTable(t *rapid.T, old *Table) *Table {
	tab := &Table{
		Rev: old.Rev + 1, Drain: old.Rev > 0 && rapid.IntRange(0, 9).Draw(t, "drain") == 9,
		Pause: rapid.IntRange(0, 4).Draw(t, "pause") == 4, CallIn: rapid.Bool().Draw(t, "call in"), Bypass: rapid.IntRange(0, 5).Draw(t, "bypass") == 5,
		StallShare: rapid.SampledFrom([]float64{0, 0, 0.02}).Draw(t, "stalls"), ReclaimRate: rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "reclaims"),
	}
	for e := range rapid.IntRange(max(1, len(old.Engines)), 3).Draw(t, "engines") {
		tab.Engines = append(tab.Engines, EngineSpec{
			Name: fmt.Sprint("e", e), Slots: rapid.Int64Range(1, 5).Draw(t, "slots"), KV: rapid.Int64Range(10, 60).Draw(t, "kv") * 16,
			Block: 16, MaxContext: 640, Boundary: rapid.SampledFrom([]int64{0, 0, 2}).Draw(t, "boundary"),
			Ordered: rapid.Bool().Draw(t, "ordered"), Fatal: rapid.Bool().Draw(t, "fatal"),
			Together: rapid.Bool().Draw(t, "together"), Caches: rapid.Bool().Draw(t, "caches"), Splits: rapid.Bool().Draw(t, "splits"),
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
		if rapid.IntRange(0, 3).Draw(t, "windowed") == 3 {
			// What it is owed is not kept at every moment, so it is not in the sum.
			left, c.Unlent = left.add(c.Floor), Amount{}
			c.Window = time.Duration(rapid.IntRange(1, 10).Draw(t, "window")) * time.Second
		}
		c.Mode = rapid.SampledFrom([]Mode{Attrition, Deadline, ReclaimNow, ReclaimNow}).Draw(t, "mode")
		if c.Mode == Deadline {
			c.LoanLife = time.Duration(rapid.IntRange(1, 5).Draw(t, "life")) * time.Second
		}
		c.Grace = time.Duration(rapid.SampledFrom([]int{0, 0, 500, 5000}).Draw(t, "grace")) * time.Millisecond
		c.PinAfter = rapid.IntRange(0, 2).Draw(t, "pin after")
		c.Reopen = rapid.SampledFrom([]Reopening{ReopenIdle, ReopenSettled}).Draw(t, "reopen")
		c.KeepWarm = time.Duration(rapid.IntRange(0, 2).Draw(t, "warm")) * 2 * time.Second
		if rapid.IntRange(0, 2).Draw(t, "protected") == 2 {
			c.Objective = Objective{
				First: time.Duration(rapid.IntRange(0, 3).Draw(t, "first")) * time.Second,
				Token: time.Duration(rapid.SampledFrom([]int{0, 0, 30}).Draw(t, "token")) * time.Millisecond,
				Whole: time.Duration(rapid.SampledFrom([]int{0, 0, 10}).Draw(t, "the whole")) * time.Second,
			}
		}
		tab.Classes = append(tab.Classes, c)
	}
	return tab
}

// step advances time as a driver with a timer does, and lets what is due happen
// before it applies one event, so that each check sees the state that the
// admissions of one cause left.
func (w *world) step(ev *Event) {
	n := 0
	until := w.now + Time(rapid.IntRange(0, 800).Draw(w.t, "ms"))*1e6
	for at, ok := w.core.Next(); ok && at <= until; at, ok = w.core.Next() {
		w.now = max(w.now, at)
		w.apply(&Event{Kind: Tick})
		if n++; n > 3000 {
			w.t.Fatalf("time stands still at %v:\n%v", w.now, w.core.Snapshot())
		}
	}
	w.now = until
	w.apply(ev)
}

// apply gives one event to both cores and checks everything. The twin is never
// asked for a snapshot, a brief or a chance, which change nothing.
func (w *world) apply(ev *Event) {
	before := w.core.Snapshot()
	w.core.Brief()
	w.accrue(before)
	w.note(ev, before)
	chance := ChanceNone
	if ev.Kind == Offer {
		chance, _ = w.core.Chance(w.now, ev, nil)
	}
	w.lease.pass(ev, w.now)
	fx := w.core.Step(w.now, ev, nil)
	w.comesTrue(chance, ev, fx)
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
	w.checkTold(before, after, ev, fx)
	w.checkTimers(after)
}

// checkTimers looks just before the next timer, or far ahead if there is none:
// time alone must have changed nothing by then.
func (w *world) checkTimers(now *Snapshot) {
	c := *w.core
	c.classes, c.engines, c.holds = slices.Clone(c.classes), slices.Clone(c.engines), slices.Clone(c.holds)
	c.requests, c.victims, c.ending = slices.Clone(c.requests), nil, nil
	c.lines, c.tenants, c.sessions = slices.Clone(c.lines), slices.Clone(c.tenants), slices.Clone(c.sessions)
	for k := range c.classes {
		c.classes[k].queue.lines = slices.Clone(c.classes[k].queue.lines)
	}
	for e := range c.engines {
		c.engines[e].starting = slices.Clone(c.engines[e].starting)
	}
	for k := range c.classes {
		// What a class keeps follows with the next tick when it becomes quiet, or no
		// longer is; and that a head is late is noticed when somebody looks.
		cl := &c.classes[k]
		if cl.spec.Reopen == ReopenSettled && cl.hold != c.holdNow(cl) || w.limited(Class(k)) && cl.queue.n > 1 {
			return
		}
		// A table may pay a debt, or call it; so it is said when the debt next moves.
		if cl.owed.due && w.debt[k] <= cl.paid() {
			return
		}
	}
	if w.patient() {
		return
	}
	at, ok := c.Next()
	if c.held && c.waiting != 0 {
		// What the guard refuses is looked at now and then.
		if !ok || at > w.now+guardEvery {
			w.t.Fatalf("the guard has refused somebody, and nobody looks again before %v:\n%v", at, now)
		}
		return
	}
	if at--; !ok {
		at = w.now + 1e15
	} else if at < w.now {
		return // it is due
	}
	c.next = 0
	fx := slices.DeleteFunc(c.Step(at, &Event{Kind: Tick}, nil), func(e Effect) bool {
		return e.Cause == CauseLendingOpened && w.table.Classes[e.Class].Reopen == ReopenSettled
	})
	if diff := cmp.Diff(w.timeless(now), w.timeless(c.Snapshot())); len(fx) > 0 || diff != "" {
		w.t.Fatalf("no timer for what happens from %v to %v: %+v\n%s\nat first\n%v", w.now, at, fx, diff, now)
	}
}

// patient tells whether somebody waits for what is predicted to end by itself: when
// it should have is looked at again, and his patience, which may end before, then.
func (w *world) patient() bool {
	c := w.core
	for k := range c.classes {
		cl := &c.classes[k]
		if cl.queue.head == none || cl.spec.Grace == 0 && !w.limited(Class(k)) {
			continue
		}
		q := &c.requests[cl.queue.head]
		if f := c.fit(cl, q); f.refusal == refusedFull && f.within {
			for e := range c.engines {
				if after, amount, ok := c.demand(cl, &c.engines[e], q); ok {
					if until, ok := c.outlasts(Engine(e), cl, q, after, amount); ok && until > c.now {
						return true
					}
				}
			}
		}
	}
	return false
}

// timeless returns what of a state does not move with the time alone. That lending
// is worth it, or a request late, may be noticed only when somebody could start by it.
func (w *world) timeless(s *Snapshot) *Snapshot {
	t := *s
	t.At, t.Classes = 0, slices.Clone(s.Classes)
	for k := range t.Classes {
		v, spec := &t.Classes[k], &w.table.Classes[k]
		v.Owed, v.Quiet, v.Counts = 0, false, Counts{}
		if spec.Reopen == ReopenSettled {
			v.Hold, v.Lending, t.Promised = AmountView{}, false, AmountView{}
		}
		if w.limited(Class(k)) {
			v.Late, v.Head, v.Tenants = 0, nil, nil
		}
		if v.Head != nil {
			head := *v.Head
			head.Waiting = ""
			v.Head = &head
		}
	}
	return &t
}

// note keeps the books of what an event tells.
func (w *world) note(ev *Event, before *Snapshot) {
	if ev.Kind == Observe {
		if last := &w.core.engines[ev.Engine].gauge; ev.Gauge.State == Ready && ev.Gauge.Progress >= 0 && ev.Gauge.Progress < last.progress {
			w.untrue[ev.Engine] = 0 // it has restarted, after the last of its ghosts
		}
	}
	h := w.holds[ev.Hold]
	if h == nil {
		return
	}
	confirmed := ev.Kind == Released
	switch {
	case ev.Kind == Progress:
		h.begun, h.out = h.begun || ev.Out > 0, max(h.out, ev.Out)
	case ev.Kind == Ended && !h.ended:
		h.ended = true
		confirmed = ev.Flags&FlagReleased != 0
		if session := w.session[h.slot]; ev.Cause == CauseFinished && !h.piece && session != 0 && w.table.Classes[h.class].KeepWarm > 0 {
			for _, v := range before.Holds {
				if v.Hold == ev.Hold {
					tokens := kv.RoundUp(int64(v.Prompt)+int64(max(v.Out, ev.Out)/h.n), w.table.Engines[h.engine].Block)
					w.warm[session] = warmth{h.class, tokens, w.now + Time(w.table.Classes[h.class].KeepWarm)}
				}
			}
		}
	}
	if confirmed && h.asked {
		w.untrue[h.engine] = 0
	}
}

// take keeps the books of an effect.
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
	case Admit, Warm:
		want(w.at[slot] == waiting)
		w.at[slot] = running
		if e.Loan && w.table.Pause && !w.table.Bypass {
			w.t.Fatalf("lending is paused, and %d borrows", e.ID)
		}
		for other, p := range w.at {
			if p == waiting && !w.table.Bypass && w.class[other] == e.Class && w.tenant[other] == w.tenant[slot] && w.order[other] < w.order[slot] && !w.core.requests[other].late {
				w.overtake(e, before)
				break
			}
		}
		if w.holds[e.Hold] != nil {
			w.t.Fatalf("hold %x was given twice", e.Hold)
		}
		w.holds[e.Hold] = &entry{slot: slot, class: e.Class, engine: e.Engine, n: w.core.requests[slot].n, given: w.now, piece: e.Op == Warm}
		delete(w.warm, w.session[slot])
	case Reject:
		want(w.at[slot] == waiting)
		w.at[slot] = nowhere
		if full := e.Cause == CauseQueueFull || e.Cause == CauseTenantFull || e.Cause == CauseForecast; full && w.table.Bypass && w.works(slot) {
			w.t.Fatalf("nothing is decided, and %d is refused: %v", e.ID, e.Cause)
		}
	case Done:
		want(w.at[slot] != nowhere)
		w.at[slot] = nowhere
	case Reclaim:
		h := w.holds[e.Hold]
		if h == nil || h.ended || h.asked {
			w.t.Fatalf("reclaim of %+v", h)
		}
		h.asked = true
		if seq := w.opened[e.For]; seq != 0 && !w.settled[seq] {
			h.recall = seq
		}
		w.reclaims[slot]++
		w.undo(h, before)
	case Stage:
		switch e.Cause {
		case CauseGhost:
			h := w.holds[e.Hold]
			if h == nil || !h.ended {
				w.t.Fatalf("ghost of a hold that is %+v", h)
			}
			if h.asked {
				w.untrue[h.engine]++
			}
			delete(w.holds, e.Hold)
		case CauseRecallOpened:
			w.opened[e.For] = e.Seq
		case CauseRecallSettled:
			if w.settled[e.Seq] {
				w.t.Fatalf("recall %d settled twice", e.Seq)
			}
			w.settled[e.Seq] = true
			for id, h := range w.holds {
				if i := w.core.find(id); h.recall == e.Seq && i != none && w.core.holds[i].loan {
					w.t.Fatalf("recall %d settled while %+v, ended for it, holds its capacity", e.Seq, h)
				}
			}
		case CauseRecallClosed:
			if !w.settled[e.Seq] || w.closed[e.Seq] {
				w.t.Fatalf("recall %d closed: settled %t, closed before %t", e.Seq, w.settled[e.Seq], w.closed[e.Seq])
			}
			w.closed[e.Seq] = true
		case CauseDemoted:
			// It is told just before the ghost that is one too many.
			if w.untrue[e.Engine]+1 != maxUntrue {
				w.t.Fatalf("engine %d is demoted after %d reclaims that it did not confirm", e.Engine, w.untrue[e.Engine]+1)
			}
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
	if w.core.requests[head.ID.Slot()].keptFrom()&(1<<e.Engine) != 0 {
		return // nor is it in anybody's way on an engine that is not given it
	}
	if head.Wants == (AmountView{}) {
		return // the head waits for an engine that takes no work
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

// works tells whether an engine could have a request now, whatever room there is.
func (w *world) works(slot uint32) bool {
	q := &w.core.requests[slot]
	for e := range w.core.engines {
		en := &w.core.engines[e]
		if why, _, _ := en.misfit(&w.core.classes[q.class], q); why == CauseNone && en.ready() && q.avoids&(1<<e) == 0 {
			return true
		}
	}
	return false
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
	return w.pick(func(h *entry) bool { return h.ended == ended })
}

// asked picks a hold that is to be ended.
func (w *world) asked() (Hold, *entry) {
	return w.pick(func(h *entry) bool { return h.asked && !h.ended })
}

func (w *world) pick(of func(*entry) bool) (Hold, *entry) {
	var ids []Hold
	for id, h := range w.holds {
		if of(h) {
			ids = append(ids, id)
		}
	}
	if ids == nil {
		return 0, nil
	}
	slices.Sort(ids)
	id := rapid.SampledFrom(ids).Draw(w.t, "hold")
	return id, w.holds[id]
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
	w.order[slot], w.reclaims[slot] = w.count, 0
	w.whole[slot] = rapid.IntRange(0, 3).Draw(w.t, "whole") == 3
	w.session[slot] = uint32(max(0, rapid.IntRange(-4, 3).Draw(w.t, "session")))
	ev := &Event{
		Kind: Offer, ID: MakeID(w.gen[slot], slot), Class: w.class[slot], Tenant: w.tenant[slot], Prompt: tokens(w.t, "prompt", 400),
		Out: tokens(w.t, "out", 200), N: rapid.SampledFrom([]int32{1, 1, 1, 2, math.MaxInt32}).Draw(w.t, "n"), Session: w.session[slot],
	}
	if ev.Prompt < 1 {
		w.session[slot], ev.Session = 0, 0 // a session has a prefix
	}
	if rapid.IntRange(0, 2).Draw(w.t, "asks") == 2 {
		ev.First = time.Duration(rapid.SampledFrom([]int64{0, 1, 100, 500, 2000, 60_000, -1, 1 << 43}).Draw(w.t, "its first")) * time.Millisecond
		ev.Token = time.Duration(rapid.SampledFrom([]int64{0, 1, 10, 25, 1000, -1}).Draw(w.t, "its token")) * time.Millisecond
	}
	w.wanted[ev.Class] = w.wanted[ev.Class] || ev.First > 0
	if w.whole[slot] {
		ev.Flags = FlagWhole
	}
	if rapid.IntRange(0, 3).Draw(w.t, "unsplit") == 3 {
		ev.Flags |= FlagUnsplit
	}
	if rapid.IntRange(0, 3).Draw(w.t, "cached") == 3 {
		ev.Cached, ev.Engine = tokens(w.t, "tokens", 300), Engine(rapid.IntRange(0, len(w.table.Engines)-1).Draw(w.t, "home"))
	}
	if rapid.IntRange(0, 7).Draw(w.t, "barred") == 7 {
		ev.Barred = uint64(rapid.IntRange(0, 1<<len(w.table.Engines)-1).Draw(w.t, "which"))
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
	if max(w.holds[id].out, ev.Out) > 300 {
		ev.Flags &^= FlagKept // what is kept was seen
	}
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
		// As a well-behaved engine does it, from which timing can be learned.
		"run": func(t *rapid.T) {
			if id, h := w.hold(false); h != nil {
				w.step(&Event{Kind: Progress, Hold: id, Out: 1})
				if w.holds[id] == h && rapid.Bool().Draw(t, "to the end") {
					w.end(id, &Event{Out: int32(rapid.IntRange(1, 60).Draw(t, "out")), Flags: uint8(rapid.IntRange(0, 1).Draw(t, "released")), Cause: CauseFinished})
				}
			}
		},
		"obey": func(t *rapid.T) {
			if id, h := w.asked(); h != nil {
				w.end(id, &Event{Out: int32(rapid.IntRange(0, 60).Draw(t, "out")), Flags: rapid.SampledFrom([]uint8{0, FlagReleased, FlagKept, FlagKept | FlagReleased | FlagDelivered}).Draw(t, "flags"), Cause: CauseReclaimed})
			}
		},
		"scheduled": func(t *rapid.T) {
			if id, h := w.hold(false); h != nil {
				w.step(&Event{Kind: Scheduled, Hold: id, Cached: tokens(t, "cached", 300)})
			}
		},
		"end": func(t *rapid.T) {
			if id, h := w.hold(false); h != nil {
				w.end(id, &Event{
					Out: tokens(t, "out", 300), Flags: uint8(rapid.IntRange(0, 127).Draw(t, "flags")), Retry: rapid.SampledFrom([]Time{0, 0, -1, 1, Time(time.Second), Never}).Draw(t, "retry"),
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
		"renew": func(t *rapid.T) {
			if w.table.Until != 0 {
				w.step(&Event{Kind: Renew, Until: w.now + Time(rapid.IntRange(-2, 6).Draw(t, "until"))*1e9})
			}
		},
		"table": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
				return
			}
			tab := drawTable(t, w.table)
			w.step(&Event{Kind: Tick})
			w.now++
			w.apply(&Event{Kind: Tick}) // what is due just then is under the old table
			w.now++                     // so that the last step and this one are not of one moment
			drawShares(t, tab, w.now)
			for k := range tab.Classes {
				if k == len(w.history) {
					w.history = append(w.history, nil)
				} else if thrash := w.core.classes[k].thrash; tab.Classes[k].peakWindow(thrash) != w.table.Classes[k].peakWindow(thrash) {
					// A new window starts with what the old one knew.
					w.core.classes[k].peak.advance(w.now)
					w.twin.classes[k].peak.advance(w.now)
					w.history[k] = []sample{{w.now, w.core.classes[k].peak.max()}}
				}
			}
			for len(w.debt) < len(tab.Classes) {
				w.debt = append(w.debt, 0)
			}
			w.table, w.untrue, w.bursts = tab, make([]int, len(tab.Engines)), nil
			w.apply(&Event{Kind: Apply, Table: tab})
			for k, v := range w.core.Snapshot().Classes {
				w.debt[k] = v.Owed
			}
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
// waiting request, no lending that is closed. Sometimes no end is confirmed, and
// time alone has to do.
func (w *world) finish() {
	lost := rapid.Bool().Draw(w.t, "confirmations are lost")
	for range 20 * worldSlots {
		if slot, ok := w.slot(waiting); ok {
			w.step(&Event{Kind: Cancel, ID: MakeID(w.gen[slot], slot)})
		} else if id, h := w.hold(true); h != nil && !lost {
			w.step(&Event{Kind: Released, Hold: id})
		} else if id, h := w.hold(false); h != nil {
			ev := &Event{Cause: CauseFinished, Flags: FlagReleased}
			if lost {
				ev.Flags = 0
			}
			w.end(id, ev)
		} else {
			break
		}
	}
	// Time passes, with a timer that is ever later.
	for end := w.now; ; {
		at, ok := w.core.Next()
		if !ok || w.now > end+1e15 {
			break
		}
		w.now = max(w.now+(w.now-end)/100, at)
		w.core.Step(w.now, &Event{Kind: Tick}, nil)
	}
	s := w.core.Snapshot()
	if s.Used != (AmountView{}) || s.Loans != 0 || s.Ghosts != 0 || len(s.Holds) != 0 {
		w.t.Fatalf("everything has ended, and there is left:\n%v", s)
	}
	for k, v := range s.Classes {
		if v.Queue != 0 || v.Recall != nil {
			w.t.Fatalf("everything has ended, and class %d has:\n%v", k, s)
		}
		spec, kept := &w.table.Classes[k], Amount{}
		if spec.Window == 0 {
			kept = spec.Floor.min(spec.Unlent.max(spec.Headroom))
		}
		if w.table.Pause {
			if v.Lending || of(v.Hold) != spec.Floor && spec.Window == 0 {
				w.t.Fatalf("lending is paused, and class %d keeps %v of %v:\n%v", k, v.Hold, spec.Floor, s)
			}
		} else if !v.Lending || !of(v.Hold).within(kept) || v.Warm != 0 {
			w.t.Fatalf("everything has ended long ago, and class %d lends all but %v, not %v:\n%v", k, v.Hold, kept, s)
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
