package admission

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// life is a core between clients and engines that do what they are asked to, some
// later than others: time passes from one event to the next, and the core is looked
// after as a gateway does it, at its events and when Next says so. Whoever waits has
// to be served by that alone.
type life struct {
	t       *rapid.T
	core    *Core
	now     Time
	plans   []plan
	reqs    []wish
	runs    map[Hold]*attempt
	confirm []int   // by engine: with the end, later, or never
	prefill Time    // of a token
	each    Time    // of a token of output
	again   []int64 // classes that always have so many waiting
	served  []Time  // slot-ns by class
	tenants int
}

// wish is a request.
type wish struct {
	class   Class
	prompt  int32
	out     int32 // it will produce in all
	kept    int32
	endless bool
	flags   uint8
	over    bool
	gen     uint32
	asked   Time
	started Time // last
}

// attempt is a hold.
type attempt struct {
	slot   uint32
	class  Class
	engine Engine
	begun  Time // its first token
	out    int32
	over   bool
}

// plan is something that will happen.
type plan struct {
	at   Time
	hold Hold // it is forgotten once this is over; 0 is none
	do   func()
}

func (l *life) plan(at Time, hold Hold, do func()) {
	i, _ := slices.BinarySearchFunc(l.plans, at, func(p plan, at Time) int {
		if p.at <= at {
			return -1
		}
		return 1
	})
	l.plans = slices.Insert(l.plans, i, plan{at, hold, do})
}

func newLife(t *rapid.T, tab *Table) *life {
	l := &life{
		t: t, core: New(tab, 400), runs: map[Hold]*attempt{}, served: make([]Time, len(tab.Classes)), again: make([]int64, len(tab.Classes)),
		tenants: 3, prefill: Time(rapid.IntRange(1, 5).Draw(t, "prefill")) * 1e6, each: Time(rapid.IntRange(5, 30).Draw(t, "each")) * 1e6,
	}
	for range tab.Engines {
		l.confirm = append(l.confirm, rapid.IntRange(0, 3).Draw(t, "confirms"))
	}
	return l
}

// ask offers a request at a time to come.
func (l *life) ask(at Time, r wish) {
	l.plan(at, 0, func() {
		slot := slices.IndexFunc(l.reqs, func(r wish) bool { return r.over })
		if slot < 0 {
			slot = len(l.reqs)
			l.reqs = append(l.reqs, wish{})
		}
		r.gen = l.reqs[slot].gen + 1
		r.asked = l.now
		l.reqs[slot] = r
		l.step(&Event{Kind: Offer, ID: MakeID(r.gen, uint32(slot)), Class: r.class, Tenant: Tenant(slot % l.tenants), Prompt: r.prompt, Out: r.out, N: 1, Flags: r.flags, Session: uint32(slot % 4)})
	})
}

// run lets time pass until a moment.
func (l *life) run(until Time) {
	for steps := 0; ; steps++ {
		at, ok := l.core.Next()
		planned := len(l.plans) > 0 && l.plans[0].at <= until
		switch {
		case ok && at <= until && (!planned || at <= l.plans[0].at):
			l.pass(max(l.now, at))
			l.step(&Event{Kind: Tick})
		case planned:
			p := l.plans[0]
			l.plans = l.plans[1:]
			if r := l.runs[p.hold]; p.hold == 0 || r != nil && !r.over {
				l.pass(max(l.now, p.at))
				p.do()
			}
		default:
			l.pass(until)
			return
		}
		if steps > 1e6 {
			l.t.Fatalf("no end of timers at %v:\n%v", time.Duration(l.now), l.core.Snapshot())
		}
	}
}

// pass moves the time on, through which everybody is served as he is now.
func (l *life) pass(to Time) {
	for k := range l.served {
		l.served[k] += (to - l.now) * Time(l.core.classes[k].used[Slots])
	}
	l.now = to
}

func (l *life) step(ev *Event) {
	for _, e := range l.core.Step(l.now, ev, nil) {
		slot := e.ID.Slot()
		switch e.Op {
		case Admit:
			r := &l.reqs[slot]
			r.started = l.now
			l.runs[e.Hold] = &attempt{slot: slot, class: e.Class, engine: e.Engine}
			l.plan(l.now+l.prefill*Time(r.prompt+r.kept), e.Hold, func() { l.begin(e.Hold) })
		case Warm:
			l.runs[e.Hold] = &attempt{slot: slot, class: e.Class, engine: e.Engine}
			l.plan(l.now+l.prefill*Time(e.Tokens), e.Hold, func() {
				l.step(&Event{Kind: Progress, Hold: e.Hold, Out: 1})
				l.end(e.Hold, &Event{Cause: CauseFinished, Out: 1, Flags: FlagReleased})
			})
		case Reclaim:
			l.plan(l.now+20e6, e.Hold, func() {
				a := l.runs[e.Hold]
				if a.begun > 0 {
					a.out = min(1+int32((l.now-a.begun)/l.each), l.reqs[a.slot].out-l.reqs[a.slot].kept)
				}
				flags := uint8(FlagKept | FlagDelivered)
				switch l.confirm[a.engine] {
				case 0, 1:
					flags |= FlagReleased
				case 2:
					l.plan(l.now+100e6, 0, func() { l.step(&Event{Kind: Released, Hold: e.Hold}) })
				}
				l.reqs[a.slot].kept += a.out
				l.end(e.Hold, &Event{Cause: CauseReclaimed, Out: a.out, Flags: flags})
			})
		case Done, Reject:
			r := &l.reqs[slot]
			r.over = true
			if n := l.again[r.class]; n > 0 {
				l.ask(l.now, wish{class: r.class, prompt: r.prompt, out: r.out})
			}
		}
	}
}

// begin is a request's first token, from which its end is known.
func (l *life) begin(hold Hold) {
	a := l.runs[hold]
	r := &l.reqs[a.slot]
	a.begun = l.now
	l.step(&Event{Kind: Progress, Hold: hold, Out: 1})
	if r.endless {
		return
	}
	left := max(r.out-r.kept, 1)
	l.plan(l.now+l.each*Time(left-1), hold, func() {
		l.end(hold, &Event{Cause: CauseFinished, Out: left, Flags: FlagReleased | FlagDelivered})
	})
}

func (l *life) end(hold Hold, ev *Event) {
	l.runs[hold].over = true
	ev.Kind, ev.Hold = Ended, hold
	l.step(ev)
}

// settle lets time pass for long, and expects that nothing is left but what never
// ends: who waited was served, no hold is out, and every class lends.
func (l *life) settle(what string) {
	l.run(l.now + 3600e9)
	s := l.core.Snapshot()
	endless := 0
	for i, r := range l.reqs {
		if r.endless {
			endless++
		} else if !r.over {
			l.t.Fatalf("%s: request %d, %+v, waits for an hour:\n%v", what, i, r, s)
		}
	}
	if len(s.Holds) != endless {
		l.t.Fatalf("%s: holds are left:\n%v", what, s)
	}
	for k, v := range s.Classes {
		spec := &l.core.classes[k].spec
		kept := spec.Floor.min(spec.Unlent.max(of(v.Used).add(spec.Headroom)))
		if spec.Window > 0 {
			kept = Amount{}
		}
		if !v.Lending || !of(v.Hold).within(kept) || v.Due || v.Recall != nil {
			l.t.Fatalf("%s: class %d lends all but %v, not %v:\n%v", what, k, v.Hold, kept, s)
		}
	}
}

// drawLively draws a table in which everybody could be served, whole; also beside a
// request of the first class that never ends.
func drawLively(t *rapid.T, endless bool) *Table {
	tab := drawTable(t, &Table{})
	tab.Pause = false // or not everybody would be
	for e := range tab.Engines {
		s := &tab.Engines[e]
		s.Closed, s.Fatal, s.Splits = false, false, false
		if e == 0 && endless {
			s.Slots++
		}
		s.KV = s.Slots * 640
	}
	all := tab.Envelope()
	left := all[Slots] - 1 // one is in nobody's floor
	for k := range tab.Classes {
		c := &tab.Classes[k]
		c.Closed, c.Depth, c.TenantDepth, c.MaxWait, c.MaxOut, c.Ceiling = false, 400, 0, 0, 0, all
		slots := c.Floor[Slots]
		if k == 0 && endless {
			// A class that is never idle lends again only as its light use shows.
			c.Reopen, c.Window, c.Objective.Token = ReopenSettled, 0, 0
			slots = max(slots, 1)
		}
		if c.Window == 0 {
			slots = min(slots, left)
			left -= slots
		}
		c.Floor = Of(slots, slots*640)
		unlent := min(c.Unlent[Slots], slots)
		if c.Window > 0 {
			unlent = 0
		}
		c.Unlent, c.Headroom = Of(unlent, unlent*640), Of(min(c.Headroom[Slots], 1), 0)
	}
	return tab
}

// Whatever is asked for, whoever gives way, however late an engine confirms what it
// was asked to end, if at all: everybody is served, and in the end all lend again;
// also if somebody is there all the time.
func TestEverybodyIsServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		endless := rapid.Bool().Draw(t, "somebody is always there")
		tab := drawLively(t, endless)
		l := newLife(t, tab)
		at := Time(0)
		if endless {
			l.ask(at, wish{class: 0, prompt: 100, out: 100, endless: true})
			at += 1e9
		}
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			at += Time(rapid.SampledFrom([]int{0, 10, 100, 1000, 5000}).Draw(t, "after")) * 1e6
			r := wish{class: Class(rapid.IntRange(0, len(tab.Classes)-1).Draw(t, "class")), prompt: rapid.Int32Range(1, 400).Draw(t, "prompt"), out: rapid.Int32Range(1, 200).Draw(t, "out")}
			if rapid.IntRange(0, 5).Draw(t, "whole") == 5 && (r.class > 0 || !endless) {
				r.flags = FlagWhole
			}
			l.ask(at, r)
		}
		l.run(at)
		l.settle(fmt.Sprintf("prefill %v, each %v, confirms %v", time.Duration(l.prefill), time.Duration(l.each), l.confirm))
	})
}

// A windowed class that always has work, beside an earlier one that wants all there
// is and more, all the time: at no moment is it behind its floor's worth by more than
// a window's, the time that the others' work takes to make room, and its own start.
func TestWindowIsHonoured(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.Int64Range(2, 6).Draw(t, "slots")
		floor := rapid.Int64Range(1, slots-1).Draw(t, "floor")
		window := time.Duration(rapid.IntRange(10, 60).Draw(t, "window")) * time.Second
		all := Of(slots, slots*640)
		tab := &Table{
			Engines: []EngineSpec{{Name: "e", Slots: slots, KV: slots * 640, Block: 16, Together: rapid.Bool().Draw(t, "together"), Caches: rapid.Bool().Draw(t, "caches"), Splits: rapid.Bool().Draw(t, "splits")}},
			Classes: []ClassSpec{
				{Name: "steady", Floor: all, Ceiling: all, Depth: 400, DefaultOut: 64, Mode: ReclaimNow, Reopen: ReopenSettled, IdleAfter: 2 * time.Second},
				{Name: "owed", Floor: Of(floor, floor*640), Ceiling: all, Depth: 400, DefaultOut: 64, Mode: ReclaimNow, Window: window, PinAfter: rapid.IntRange(0, 2).Draw(t, "pin")},
			},
			StallShare: rapid.SampledFrom([]float64{0, 0.02, 0.3}).Draw(t, "stalls"), ReclaimRate: rapid.IntRange(0, 2).Draw(t, "rate"),
		}
		if rapid.Bool().Draw(t, "protected") {
			tab.Classes[0].Objective = Objective{First: time.Duration(rapid.IntRange(1, 3).Draw(t, "first")) * time.Second, Whole: time.Duration(rapid.IntRange(0, 20).Draw(t, "whole")) * time.Second}
		}
		l := newLife(t, tab)
		steady := wish{class: 0, prompt: rapid.Int32Range(20, 300).Draw(t, "prompt"), out: rapid.Int32Range(50, 200).Draw(t, "out")}
		owed := wish{class: 1, prompt: rapid.Int32Range(20, 300).Draw(t, "its prompt"), out: rapid.Int32Range(50, 200).Draw(t, "its out")}
		for k, r := range []wish{steady, owed} {
			// Also once all that run end in one moment, behind which they are asked for again.
			l.again[k] = 2*slots + rapid.Int64Range(1, 4).Draw(t, "more than fits")
			for range l.again[k] {
				l.ask(0, r)
			}
		}
		takes := func(r wish) Time { return l.prefill*Time(r.prompt) + l.each*Time(r.out) }
		bound := Time(floor) * (Time(window) + takes(steady) + takes(owed) + 2e9)
		for step := Time(1); step <= 60; step++ {
			l.run(step * Time(window) / 10)
			if behind := Time(floor)*l.now - l.served[1]; behind > bound {
				t.Fatalf("after %v %v of service are missing, of at most %v:\n%v", time.Duration(l.now), time.Duration(behind), time.Duration(bound), l.core.Snapshot())
			}
		}
	})
}

// More than the engine can do in time, all the time: most are late, and nobody waits
// for longer than it takes until a late one is old enough for a turn, and all of his
// tenant who were there before him have had theirs, one start in four.
func TestLateHaveTheirTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.Int64Range(1, 4).Draw(t, "slots")
		all := Of(slots, slots*640)
		tab := &Table{
			Engines: []EngineSpec{{Name: "e", Slots: slots, KV: slots * 640, Block: 16}},
			Classes: []ClassSpec{{
				Name: "only", Floor: all, Ceiling: all, Depth: 400, DefaultOut: 64,
				Objective: Objective{First: time.Duration(rapid.IntRange(1, 3).Draw(t, "first")) * time.Second, Whole: time.Duration(rapid.IntRange(0, 20).Draw(t, "whole")) * time.Second},
			}},
		}
		l := newLife(t, tab)
		l.tenants = 1
		l.again[0] = slots + rapid.Int64Range(1, 20).Draw(t, "more than fits")
		r := wish{prompt: rapid.Int32Range(20, 300).Draw(t, "prompt"), out: rapid.Int32Range(50, 200).Draw(t, "out")}
		for range l.again[0] {
			l.ask(0, r)
		}
		limit := Time(tab.Classes[0].Objective.Whole)
		if limit == 0 {
			limit = overAge * Time(tab.Classes[0].Objective.First)
		}
		takes := l.prefill*Time(r.prompt) + l.each*Time(r.out)
		bound := limit + takes*(2+lateTurn*Time(l.again[0]))
		for step := Time(1); step <= 30; step++ {
			l.run(step * 10e9)
			for i, r := range l.reqs {
				if !r.over && r.started == 0 && l.now-r.asked > bound {
					t.Fatalf("request %d has waited for %v, of at most %v:\n%v", i, time.Duration(l.now-r.asked), time.Duration(bound), l.core.Snapshot())
				}
			}
		}
	})
}
