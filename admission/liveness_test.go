package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Ways in which somebody once waited for ever, or something was lost, each as the
// few events that it took.

const (
	ms  = Time(1e6)
	sec = Time(1e9)
)

// scripted drives a core.
type scripted struct {
	t    *testing.T
	c    *Core
	now  Time
	hold map[uint32]Hold
	log  []string
	rec  int
	rej  map[Cause]int
	adm  map[uint32]bool
	done map[uint32]Cause
}

func newScripted(t *testing.T, tab *Table) *scripted {
	return &scripted{t: t, c: New(tab, 4096), hold: map[uint32]Hold{}, adm: map[uint32]bool{}, rej: map[Cause]int{}, done: map[uint32]Cause{}}
}

func (b *scripted) step(ev *Event) []Effect {
	fx := b.c.Step(b.now, ev, nil)
	for _, e := range fx {
		s := e.ID.Slot()
		switch e.Op {
		case Admit, Warm:
			b.hold[s] = e.Hold
			if e.Op == Admit {
				b.adm[s] = true
			}
		case Reclaim:
			b.rec++
		case Reject:
			b.rej[e.Cause]++
		case Done:
			b.done[s] = e.Cause
		}
		b.log = append(b.log, fmt.Sprintf("%v op%d %v id%d c%d e%d tok%d", time.Duration(b.now), e.Op, e.Cause, s, e.Class, e.Engine, e.Tokens))
	}
	return fx
}

// to lets timers fire until at; a busy loop fails.
func (b *scripted) to(at Time) {
	n := 0
	for {
		next, ok := b.c.Next()
		if !ok || next > at {
			break
		}
		b.now = max(b.now, next)
		b.step(&Event{Kind: Tick})
		if n++; n > 200000 {
			b.t.Fatalf("busy loop at %v", time.Duration(b.now))
		}
	}
	b.now = at
}
func (b *scripted) offer(k Class, slot uint32, prompt, out int32) []Effect {
	return b.step(&Event{Kind: Offer, ID: MakeID(1, slot), Class: k, Prompt: prompt, Out: out})
}
func (b *scripted) offerT(k Class, slot uint32, tn Tenant, prompt, out int32) []Effect {
	return b.step(&Event{Kind: Offer, ID: MakeID(1, slot), Class: k, Tenant: tn, Prompt: prompt, Out: out})
}
func (b *scripted) end(slot uint32, cause Cause, flags uint8, out int32) []Effect {
	return b.step(&Event{Kind: Ended, Hold: b.hold[slot], Cause: cause, Flags: flags, Out: out})
}
func (b *scripted) prog(slot uint32, out int32) []Effect {
	return b.step(&Event{Kind: Progress, Hold: b.hold[slot], Out: out})
}
func (b *scripted) next() string {
	if at, ok := b.c.Next(); ok {
		return time.Duration(at).String()
	}
	return "never"
}
func (b *scripted) dump() string {
	return b.c.Snapshot().String() + "next " + b.next() + "\n" + strings.Join(b.log, "\n")
}

func eng(name string, slots int64) EngineSpec {
	return EngineSpec{Name: name, Slots: slots, KV: slots * 1600, Block: 16}
}
func cls(name string, floor, ceil int64) ClassSpec {
	return ClassSpec{Name: name, Floor: Of(floor, floor*1600), Ceiling: Of(ceil, ceil*1600), IdleAfter: 2 * time.Second, Depth: 1000, DefaultOut: 64}
}

// teach teaches engine 0 (and what else the request lands on) prefill and token times with class k.
func (b *scripted) teach(k Class, slot uint32, prompt int32, prefill, each Time) {
	b.offer(k, slot, prompt, 20)
	b.to(b.now + prefill)
	b.prog(slot, 1)
	b.to(b.now + 19*each)
	b.end(slot, CauseFinished, FlagReleased, 20)
}

// the rate of reclaims: the tick that it asks for inside a tick is lost.
func TestRateAsksForItsTick(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, ReclaimRate: 1, Classes: []ClassSpec{cls("i", 4, 4), cls("b", 0, 4)}}
	tab.Engines[0].Together = true
	tab.Classes[1].Mode = ReclaimNow
	b := newScripted(t, tab)
	for i := range uint32(4) {
		b.offer(1, i, 100, 1000)
	}
	b.to(10 * sec)
	for i := range uint32(4) {
		b.offer(0, 10+i, 100, 100)
	}
	b.to(60 * sec)
	for i := range uint32(4) {
		if !b.adm[10+i] {
			t.Fatalf("interactive %d not admitted 50 s after, rate 1/s:\n%s", i, b.dump())
		}
	}
}

// Window set by Apply while lending is closed: Next returns now for ever.
func TestWindowByApply(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 1, 1), cls("b", 0, 1)}}
	b := newScripted(t, tab)
	b.offer(1, 0, 100, 100)
	b.offer(0, 1, 100, 100) // closes lending
	b.step(&Event{Kind: Cancel, ID: MakeID(1, 1)})
	t2 := *tab
	t2.Classes = append([]ClassSpec{}, tab.Classes...)
	t2.Classes[0].Window = time.Minute
	b.step(&Event{Kind: Apply, Table: &t2})
	b.to(10 * sec)
}

// a relegated request keeps the capacity that was freed for it: slot idle, class starves.
func TestLateHeadGivesUpItsPair(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 1, 1), cls("b", 0, 1)}}
	tab.Classes[0].Objective.First = time.Second
	tab.Classes[1].Mode = ReclaimNow
	b := newScripted(t, tab)
	b.to(10 * sec)
	b.offer(1, 0, 100, 1000) // loan
	b.to(20 * sec)
	b.offer(0, 1, 100, 100) // reclaims, paired
	if b.rec != 1 {
		t.Fatal(b.dump())
	}
	b.end(0, CauseReclaimed, FlagKept, 10) // ended, released late
	b.to(b.now + 1500*ms)
	b.offer(0, 2, 100, 100)
	b.step(&Event{Kind: Released, Hold: b.hold[0]})
	// steady arrivals, one each 500 ms
	for i := uint32(3); i < 100; i++ {
		b.to(b.now + 500*ms)
		b.offer(0, i, 100, 100)
	}
	if !b.adm[1] && !b.adm[2] && !b.adm[3] {
		t.Fatalf("nobody started in 50 s on an idle engine:\n%s", b.c.Snapshot())
	}
}

// Apply lowers the floor of a class for whose head something was freed.
func TestPairEndsWithItsFloor(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 0, 1), cls("w", 1, 1), cls("b", 0, 1)}}
	tab.Classes[2].Mode = ReclaimNow
	b := newScripted(t, tab)
	b.offer(2, 0, 100, 1000) // loan
	b.to(20 * sec)
	b.offer(1, 1, 100, 100) // w reclaims, paired
	if b.rec != 1 {
		t.Fatal(b.dump())
	}
	t2 := *tab
	t2.Classes = append([]ClassSpec{}, tab.Classes...)
	t2.Classes[0].Floor, t2.Classes[1].Floor = tab.Classes[1].Floor, Amount{}
	b.step(&Event{Kind: Apply, Table: &t2})
	b.offer(0, 2, 100, 100)
	b.end(0, CauseReclaimed, FlagReleased, 10)
	b.to(b.now + 3600*sec)
	if !b.adm[1] && !b.adm[2] {
		t.Fatalf("an idle slot for an hour, everybody waits:\n%s", b.dump())
	}
}

// FlagWhole, floor 0, cold: head never starts on an idle engine and blocks its class.
func TestWholeWithoutFloor(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 4, 4), cls("b", 0, 4)}}
	tab.Classes[1].Mode, tab.Classes[1].Grace = ReclaimNow, 10*time.Second
	b := newScripted(t, tab)
	b.to(100 * sec)
	b.step(&Event{Kind: Offer, ID: MakeID(1, 0), Class: 1, Prompt: 100, Out: 10, Flags: FlagWhole})
	for i := range uint32(10) {
		b.offerT(1, 1+i, Tenant(1+i), 100, 10)
	}
	b.to(4000 * sec)
	if !b.adm[0] || !b.adm[1] {
		t.Fatalf("idle engine, nobody of class b started in an hour:\n%s", b.dump())
	}
}

// Deadline ignores FlagWhole and PinAfter.
func TestDeadlineHonoursPins(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 1, 1), cls("b", 0, 1)}}
	tab.Classes[1].Mode, tab.Classes[1].LoanLife, tab.Classes[1].PinAfter = Deadline, 5*time.Second, 1
	b := newScripted(t, tab)
	b.to(10 * sec)
	b.offer(1, 0, 100, 1000)
	for i := range uint32(10) {
		b.to(b.now + 20*sec)
		n := b.rec
		b.offer(0, 1+i, 100, 100)
		if b.rec == n {
			return
		}
		b.end(0, CauseReclaimed, FlagReleased, 20)
		b.to(b.now + 1*sec)
		b.end(1+i, CauseFinished, FlagReleased, 20)
	}
	t.Fatalf("reclaimed %d times, pin_after is 1", b.rec)
}

// Depth 0 and ReclaimNow: what it lacks within its floor is never taken back.
func TestDepthZeroReclaims(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 1, 1), cls("b", 0, 1)}}
	tab.Engines[0].Together = true
	tab.Classes[0].Depth = 0
	tab.Classes[1].Mode = ReclaimNow
	b := newScripted(t, tab)
	b.to(10 * sec)
	b.offer(1, 0, 100, 1000)
	for i := range uint32(100) {
		b.to(b.now + sec)
		b.offer(0, 1+i, 100, 100)
	}
	if b.rec == 0 {
		t.Fatalf("100 refused within the floor, nothing reclaimed: %v", b.rej)
	}
}

// a piece that ends while draining ends its request as finished.
func TestPieceWhileDraining(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, StallShare: 0, Classes: []ClassSpec{cls("i", 4, 4), cls("b", 0, 4)}}
	tab.Engines[0].Caches, tab.Engines[0].Splits = true, true
	tab.Classes[0].Objective.First = time.Second
	tab.Classes[1].Mode = ReclaimNow
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 1000*ms, 10*ms)
	b.offer(0, 1, 10, 1000)
	b.prog(1, 1)
	b.to(b.now + 100*ms)
	b.offer(1, 0, 1500, 10)
	if b.adm[0] || b.hold[0] == 0 {
		t.Fatal("no piece: " + b.dump())
	}
	t2 := *tab
	t2.Drain = true
	b.step(&Event{Kind: Apply, Table: &t2})
	b.end(0, CauseFinished, FlagReleased, 1)
	if b.done[0] == CauseFinished {
		t.Fatalf("done: finished, and it never ran:\n%s", strings.Join(b.log, "\n"))
	}
}

// a windowed guarantee against an objective on the time per token.
func TestWindowAgainstTokenObjective(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 1, 4)}}
	tab.Classes[0].Objective.Token = 30 * time.Millisecond
	tab.Classes[1].Window = 60 * time.Second
	b := newScripted(t, tab)
	// learn: two sequences need 40 ms a token
	b.offer(1, 100, 100, 20)
	b.offer(1, 101, 100, 20)
	b.to(b.now + 100*ms)
	b.prog(100, 1)
	b.prog(101, 1)
	b.to(b.now + 800*ms)
	b.end(100, CauseFinished, FlagReleased, 20)
	b.end(101, CauseFinished, FlagReleased, 20)
	id := uint32(200)
	b.offer(0, id, 100, 100)
	b.offer(1, 0, 100, 10)
	for range 1000 { // steady: always one
		b.to(b.now + 3*sec)
		b.prog(id, 5)
		b.offer(0, id+1, 100, 100)
		b.end(id, CauseFinished, FlagReleased, 5) // 5 tokens: no pace is learned
		id++
	}
	if !b.adm[0] {
		t.Fatalf("3000 s, window of 60 s, never started:\n%s", b.c.Snapshot())
	}
}

// all engines loading for a moment makes everybody late for good.
func TestNobodyIsLateWhileNothingRuns(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 1, 1)}}
	tab.Classes[0].Objective.First = 10 * time.Second
	b := newScripted(t, tab)
	b.step(&Event{Kind: Observe, Gauge: Gauge{State: Loading, Running: -1, KV: -1, Progress: -1}})
	b.offer(0, 1, 100, 100)
	b.offer(0, 2, 100, 100)
	b.to(10 * ms)
	b.step(&Event{Kind: Observe, Gauge: Gauge{State: Ready, Running: -1, KV: -1, Progress: -1}})
	b.to(20 * ms)
	b.offer(0, 3, 100, 100)
	b.to(30 * ms)
	b.end(1, CauseFinished, FlagReleased, 1)
	if !b.adm[2] {
		t.Fatalf("2 waited 30 ms of 10 s, is late, and 3 passed it:\n%s", b.dump())
	}
}

// Apply postpones the moment at which a window is due, each time.
func TestApplyDoesNotPostponeDue(t *testing.T) {
	run := func(applies bool) Time {
		tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 1, 1), cls("b", 1, 1)}}
		tab.Classes[1].Window = 60 * time.Second
		tab.Classes[0].IdleAfter = 0
		b := newScripted(t, tab)
		b.offer(0, 1, 100, 1400)
		b.offer(1, 0, 100, 10)
		for s := Time(1); s < 1000; s++ {
			b.to(s * sec)
			if applies {
				b.step(&Event{Kind: Apply, Table: tab})
			}
			if b.c.Snapshot().Classes[1].Due {
				return s
			}
		}
		return -1
	}
	if a, z := run(false), run(true); a != z {
		t.Fatalf("due after %d s, with an Apply each second after %d s (-1: never in 1000 s)", a, z)
	}
}

// settled reopening of a class in use: no timer once its queue has emptied.
func TestClassInUseLendsAgain(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	tab.Classes[0].Reopen = ReopenSettled
	b := newScripted(t, tab)
	for i := range uint32(4) {
		b.offer(1, i, 100, 500)
	}
	b.to(1 * sec)
	b.offer(0, 10, 100, 500)
	b.offer(0, 11, 100, 500)
	for i := range uint32(4) {
		b.to(b.now + 2*sec)
		if i == 3 {
			break
		}
		b.end(i, CauseFinished, FlagReleased, 10)
	}
	b.end(3, CauseFinished, FlagReleased, 10)
	b.to(b.now + sec)
	b.end(11, CauseFinished, FlagReleased, 10)
	b.to(b.now + sec)
	for i := range uint32(8) {
		b.offer(1, 20+i, 100, 100)
	}
	for range 600 {
		b.to(b.now + sec)
		b.offer(0, 30, 100, 10)
		b.end(30, CauseFinished, FlagReleased, 10)
	}
	if s := b.c.Snapshot(); !s.Classes[0].Lending {
		t.Fatalf("600 s light, closed:\n%snext %s", s, b.next())
	}
}

// overdue has no timer.
func TestOverdueHasATick(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 2, 2), cls("b", 1, 4)}}
	tab.Classes[0].Objective.First = time.Second
	tab.Classes[1].Window = 60 * time.Second
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 2000*ms, 10*ms)
	b.offer(0, 1, 100, 1000)
	b.offer(0, 2, 100, 1000)
	b.prog(1, 1)
	b.prog(2, 1)
	b.offer(0, 3, 100, 1000) // waits for the ceiling
	b.offer(1, 0, 1000, 10)
	b.to(b.now + 3600*sec)
	if !b.adm[0] {
		t.Fatalf("an hour, window of a minute, 2 slots idle:\n%s", b.dump())
	}
}

// the guard has no timer: it refuses for the chance that somebody comes, which falls with time.
func TestGuardLooksAgain(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	tab.Classes[0].Objective.First = time.Second
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 2000*ms, 10*ms)
	b.to(100 * sec)
	b.offer(0, 1, 100, 1400) // a long stream
	b.to(b.now + 100*ms)
	b.prog(1, 1)
	b.offer(1, 0, 1000, 10)
	start := b.adm[0]
	b.to(b.now + 600*sec)
	waited := b.adm[0]
	b.step(&Event{Kind: Tick})
	b.c.pump()
	b.c.fx = nil
	if !start && !waited && b.c.classes[1].queue.n == 0 {
		t.Fatalf("waits 600 s and starts when somebody happens to look:\n%s", b.dump())
	}
}

// the same beside an engine that is full, which is the one that came closest.
func TestGuardLooksAgainBesideAFullEngine(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4), eng("f", 1)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 5)}}
	tab.Classes[0].Objective.First = time.Second
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 2000*ms, 10*ms)
	b.to(100 * sec)
	fill := &Event{Kind: Offer, ID: MakeID(1, 2), Class: 1, Prompt: 10, Out: 1400, Barred: 1}
	b.step(fill)
	b.prog(2, 1)
	b.step(&Event{Kind: Offer, ID: MakeID(1, 1), Class: 0, Prompt: 100, Out: 1400, Barred: 2}) // a long stream
	b.to(b.now + 100*ms)
	b.prog(1, 1)
	b.offer(1, 0, 1000, 10)
	if b.adm[0] || b.c.waiting == 0 {
		t.Fatal("the guard did not refuse it: " + b.dump())
	}
	b.to(b.now + 600*sec)
	if !b.adm[0] {
		t.Fatalf("waits 600 s beside an idle engine:\n%s", b.dump())
	}
}

// head that only a silent engine could run blocks the class on the others.
func TestHeadForADownEngineIsPassed(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("big", 4), eng("small", 4)}, Classes: []ClassSpec{cls("i", 4, 8)}}
	tab.Engines[1].MaxContext = 500
	b := newScripted(t, tab)
	b.step(&Event{Kind: Observe, Engine: 0, Gauge: Gauge{State: Down, Running: -1, KV: -1, Progress: -1}})
	b.offerT(0, 1, 1, 1000, 100)
	b.offerT(0, 2, 2, 100, 100)
	b.offerT(0, 3, 3, 100, 100)
	b.to(3600 * sec)
	if !b.adm[2] {
		t.Fatalf("4 idle slots for an hour:\n%s", b.dump())
	}
}

// a hold started while due is no loan when the debt is paid: never given back.
// a Cached beyond the prompt turns the guard off.
func TestCachedBeyondThePrompt(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, StallShare: 0.1, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	tab.Classes[0].Objective.First = time.Second
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 2000*ms, 10*ms)
	b.offer(0, 1, 100, 1400)
	b.prog(1, 1)
	b.step(&Event{Kind: Offer, ID: MakeID(1, 0), Class: 1, Prompt: 10, Cached: 1 << 30, Out: 10})
	if b.c.stallSum < 0 {
		t.Fatalf("stalls of late: %d", b.c.stallSum)
	}
}

// a second Scheduled just before the first token teaches a prefill of nothing.
func TestScheduledTwice(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	b := newScripted(t, tab)
	b.offer(1, 0, 1000, 10)
	b.step(&Event{Kind: Scheduled, Hold: b.hold[0]})
	b.to(2 * sec)
	b.step(&Event{Kind: Scheduled, Hold: b.hold[0]})
	b.prog(0, 1)
	if got := b.c.engines[0].timing.prefillTime(1000); got < sec {
		t.Fatalf("a prefill of 2 s is learned as %d ns", got)
	}
}

// placement ignores where a prefix is cached.
func TestPlacedWhereCached(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("a", 4), eng("b", 4)}, Classes: []ClassSpec{cls("i", 8, 8)}}
	b := newScripted(t, tab)
	b.offer(0, 1, 100, 10) // somewhere
	var first Engine
	for _, h := range b.c.holds {
		first = h.engine
	}
	fx := b.step(&Event{Kind: Offer, ID: MakeID(1, 2), Class: 0, Prompt: 1000, Cached: 990, Engine: first, Out: 10})
	for _, e := range fx {
		if e.Op == Admit && e.Engine != first {
			t.Fatalf("990 of 1000 tokens are cached on engine %d, admitted to %d", first, e.Engine)
		}
	}
}

// recalls opened by the guard's refusal.
func TestGuardOpensNoRecall(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 2, 4), cls("b", 1, 4), cls("x", 0, 4)}}
	tab.Classes[0].Objective.First = time.Second
	tab.Classes[1].Window = 10 * time.Second
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 2000*ms, 10*ms)
	b.to(100 * sec)
	b.offer(2, 5, 100, 1000) // a loan of x
	b.prog(5, 1)
	b.to(b.now + 100*ms)
	b.offer(0, 1, 100, 1000)
	b.prog(1, 1)
	b.to(b.now + 100*ms)
	b.offer(1, 0, 1000, 10)
	for range 100 {
		b.to(b.now + 100*ms)
		if b.c.classes[1].owed.debt > b.c.classes[1].service()/10*7 {
			break
		}
	}
	b.offer(0, 2, 100, 1000) // waits for its first token
	b.to(b.now + 600*ms)
	if n := b.c.classes[1].counts.Recalls; n != 0 {
		t.Fatalf("%d recalls; the engine has room, the guard refuses:\n%s", n, b.dump())
	}
}

// client gone before dispatch is run again.
func TestGoneIsNotRepeated(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 2, 4)}}
	b := newScripted(t, tab)
	b.offer(0, 1, 100, 100)
	b.end(1, CauseClientGone, FlagUntouched|FlagReleased, 0)
	if _, ok := b.done[1]; !ok {
		t.Fatalf("its client is gone, and it runs again:\n%s", strings.Join(b.log, "\n"))
	}
}

// a hold that started while its class was due is kept after the debt is paid.
func TestPaidWindowGivesBack(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 4, 4), cls("b", 1, 4)}}
	tab.Engines[0].Together = true
	tab.Classes[1].Window = 60 * time.Second
	tab.Classes[1].Mode = ReclaimNow
	b := newScripted(t, tab)
	for i := range uint32(4) {
		b.offer(0, i, 100, 1400)
	}
	b.offer(1, 10, 100, 1400)
	b.offer(1, 11, 100, 1400)
	b.to(60 * sec)
	for i := range uint32(4) {
		b.end(i, CauseFinished, FlagReleased, 10)
	}
	b.to(160 * sec)
	for i := range uint32(4) {
		b.offer(0, 20+i, 100, 100)
	}
	b.to(3600 * sec)
	if !b.adm[23] && !b.c.Snapshot().Classes[1].Due {
		t.Fatalf("i is below its floor for an hour, b is paid and keeps a slot, nothing reclaimed:\n%s", b.dump())
	}
}

// two engines and a prompt that is split: pieces on one, then on the other.
// a large prompt that the guard refuses blocks every small one behind it, of other tenants too.
func TestGuardedHeadIsPassed(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 3, 4), cls("b", 0, 4)}}
	tab.Classes[0].Objective.First = time.Second
	b := newScripted(t, tab)
	b.teach(1, 100, 1000, 2000*ms, 10*ms)
	b.to(100 * sec)
	id := uint32(200)
	b.offer(0, id, 100, 100)
	b.prog(id, 1)
	b.offerT(1, 0, 1, 1400, 10) // 2.8 s
	b.offerT(1, 1, 2, 20, 10)   // 40 ms
	for range 3000 {
		b.to(b.now + 300*ms)
		b.offer(0, id+1, 100, 100)
		b.prog(id+1, 1)
		b.end(id, CauseFinished, FlagReleased, 5)
		id++
	}
	if !b.adm[1] {
		f := b.c.fit(&b.c.classes[1], &b.c.requests[1])
		t.Fatalf("15 minutes; the small one of another tenant would fit: %v\n%s", f.ok, b.c.Snapshot())
	}
}

// thrash: reclaims for a due class that the guard then refuses; who was reclaimed borrows it again.
// one bad sample of the time per token closes the guard.
// a windowed class that is due and has nothing to do keeps its floor for ever.
func TestIdleIsNotDue(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 4, 4), cls("b", 2, 4)}}
	tab.Classes[1].Window = 60 * time.Second
	b := newScripted(t, tab)
	for i := range uint32(4) {
		b.offer(0, i, 100, 1400)
	}
	b.offer(1, 10, 100, 100)
	b.offer(1, 11, 100, 100)
	b.to(50 * sec)
	b.step(&Event{Kind: Cancel, ID: MakeID(1, 10)})
	b.step(&Event{Kind: Cancel, ID: MakeID(1, 11)})
	for i := range uint32(4) {
		b.end(i, CauseFinished, FlagReleased, 10)
	}
	b.to(100 * sec)
	for i := range uint32(4) {
		b.offer(0, 20+i, 100, 100)
	}
	b.to(100000 * sec)
	if !b.adm[23] {
		t.Fatalf("b is idle for a day and keeps 2 of 4 slots:\n%s", b.dump())
	}
}

// two classes wait for each other on an idle engine: the earlier for what the later keeps, the later behind the earlier.
func TestNoMutualWait(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("a", 0, 1), cls("i", 1, 1), cls("b", 0, 1)}}
	tab.Classes[1].Floor = Of(1, 800)
	b := newScripted(t, tab)
	b.offer(2, 0, 100, 100)
	b.offer(1, 1, 100, 100)  // recalls; lending closed
	b.offer(1, 2, 1000, 100) // more KV than the floor
	b.offer(0, 3, 100, 100)
	b.end(0, CauseFinished, FlagReleased, 1)
	b.end(1, CauseFinished, FlagReleased, 1)
	b.to(100000 * sec)
	if !b.adm[2] && !b.adm[3] {
		t.Fatalf("a day on an idle engine:\n%s", b.dump())
	}
}

// a due window with a floor that has too little KV for its request, and an earlier class.
func TestNoMutualWaitWithAWindow(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 1)}, Classes: []ClassSpec{cls("i", 0, 1), cls("b", 1, 1)}}
	tab.Classes[1].Floor = Of(1, 800)
	tab.Classes[1].Window = 10 * time.Second
	b := newScripted(t, tab)
	b.offer(0, 1, 100, 100)
	b.offer(1, 2, 1000, 100)
	b.offer(0, 3, 100, 100)
	b.to(20 * sec)
	b.end(1, CauseFinished, FlagReleased, 1)
	b.to(100000 * sec)
	if !b.adm[2] && !b.adm[3] {
		t.Fatalf("a day on an idle engine:\n%s", b.dump())
	}
}

// the slot that is kept for a due class stays empty: the protected one waits for it, and the guard refuses the due
// one because the protected one waits; until it is overdue, for which there is no timer.
func TestDueAndGuardDoNotWaitForEachOther(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("e", 4)}, Classes: []ClassSpec{cls("i", 4, 4), cls("b", 1, 4)}}
	tab.Classes[0].Objective.First = time.Second
	tab.Classes[1].Window = 60 * time.Second
	b := newScripted(t, tab)
	for i := range uint32(4) {
		b.offer(0, i, 100, 1400)
		b.prog(i, 1)
	}
	b.offer(1, 10, 100, 100)
	b.to(46 * sec)
	b.offer(0, 5, 100, 100) // waits for its first token
	b.end(0, CauseFinished, FlagReleased, 10)
	b.to(b.now + 3600*sec)
	if !b.adm[5] && !b.adm[10] {
		t.Fatalf("an idle slot for an hour:\n%s", b.dump())
	}
}
