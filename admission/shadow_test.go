package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestShadowGoldens walks shadowdata (TestGoldens walks all of testdata): scripts
// of the same commands that drive a Shadow and print what its driver gets. `state`
// prints the shadow ledger, `real` the real one, `report [json]` the report.
func TestShadowGoldens(t *testing.T) {
	datadriven.Walk(t, "shadowdata", func(t *testing.T, path string) {
		s := &shadowScript{holds: map[ID]Hold{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type shadowScript struct {
	shadow *Shadow
	now    Time
	holds  map[ID]Hold
}

func (s *shadowScript) run(t *testing.T, d *datadriven.TestData) string {
	if d.HasArg("at") {
		var at string
		d.ScanArgs(t, "at", &at)
		v, err := time.ParseDuration(at)
		if err != nil {
			t.Fatal(err)
		}
		s.now = Time(v)
	}
	num := func(key string, def int64) int64 {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &def)
		}
		return def
	}
	word := func(key, def string) string {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &def)
		}
		return def
	}
	id := MakeID(0, uint32(num("id", 0)))
	switch d.Cmd {
	case "table":
		tab := parseTable(t, d)
		if s.shadow == nil {
			s.shadow = NewShadow(tab, 64)
			return "ok"
		}
		tab.Rev = s.shadow.core.rev + 1
		return s.step(&Event{Kind: Apply, Table: tab})
	case "offer":
		ev := &Event{Kind: Offer, ID: id, Prompt: int32(num("prompt", 100)), Out: int32(num("out", Undeclared)), N: int32(num("n", 1))}
		for k := range s.shadow.core.classes {
			if s.shadow.core.classes[k].spec.Name == d.CmdArgs[0].Key {
				ev.Class = Class(k)
			}
		}
		return s.step(ev)
	case "progress":
		return s.step(&Event{Kind: Progress, Hold: s.holds[id], Out: int32(num("out", 0)), Prompt: int32(num("prompt", 0))})
	case "end":
		ev := &Event{Kind: Ended, Hold: s.holds[id], Out: int32(num("out", 0)), Cause: CauseFinished}
		if d.HasArg("released") {
			ev.Flags = FlagReleased
		}
		for i, n := range causeNames {
			if n == word("cause", "finished") {
				ev.Cause = Cause(i)
			}
		}
		return s.step(ev)
	case "release":
		return s.step(&Event{Kind: Released, Hold: s.holds[id]})
	case "observe":
		ev := &Event{Kind: Observe, Gauge: Gauge{
			Running: int32(num("running", -1)), KV: num("kv", -1), Progress: num("progress", -1), Preemptions: num("preemptions", -1), Asked: s.now,
			State: map[string]State{"ready": Ready, "loading": Loading, "down": Down}[word("state", "ready")],
		}}
		for e := range s.shadow.core.engines {
			if s.shadow.core.engines[e].spec.Name == d.CmdArgs[0].Key {
				ev.Engine = Engine(e)
			}
		}
		return s.step(ev)
	case "tick":
		return s.step(&Event{Kind: Tick})
	case "state":
		return s.shadow.Snapshot().String()
	case "real":
		var b strings.Builder
		for k := range s.shadow.classes {
			fmt.Fprintf(&b, "class %s: %v\n", s.shadow.core.classes[k].spec.Name, s.shadow.classes[k].used)
		}
		for e := range s.shadow.engines {
			fmt.Fprintf(&b, "engine %s: %v\n", s.shadow.core.engines[e].spec.Name, s.shadow.engines[e].used)
		}
		return b.String()
	case "report":
		if d.HasArg("json") {
			text, err := json.MarshalIndent(s.shadow.Report(), "", " ")
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		return s.shadow.Report().String()
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func (s *shadowScript) step(ev *Event) string {
	var b strings.Builder
	names := script{core: s.shadow.core}
	for _, e := range s.shadow.Step(s.now, ev, nil) {
		if e.Op == Admit {
			s.holds[e.ID] = e.Hold
		}
		b.WriteString(names.describe(&e) + "\n")
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

// shadowWorld drives a shadow as world drives a core, and keeps account of the
// real requests from the effects alone.
type shadowWorld struct {
	t       *rapid.T
	table   *Table
	tables  int
	honest  bool // gauges show what was passed on and nothing else
	shadow  *Shadow
	twin    *Shadow // fed the same events
	now     Time
	gen     [worldSlots]uint32
	taken   [worldSlots]bool
	states  []State
	real    []*realRun // not over, or not confirmed
	offered []uint64   // by class
	fx      []Effect
}

type realRun struct {
	hold   Hold
	slot   uint32
	class  Class
	engine Engine
	n      int64
	ended  bool
}

func newShadowWorld(t *rapid.T) *shadowWorld {
	w := &shadowWorld{t: t, table: drawTable(t, &Table{}), honest: rapid.Bool().Draw(t, "honest")}
	w.shadow, w.twin = NewShadow(w.table, worldSlots), NewShadow(w.table, worldSlots)
	w.states, w.offered = make([]State, len(w.table.Engines)), make([]uint64, len(w.table.Classes))
	return w
}

// step advances time as a driver with a timer does, whose timer is sometimes
// late.
func (w *shadowWorld) step(ev *Event) {
	until := w.now + Time(rapid.IntRange(0, 800).Draw(w.t, "ms"))*1e6
	late := rapid.IntRange(0, 3).Draw(w.t, "late") == 3
	for at, ok := w.shadow.Next(); ok && at <= until && !late; at, ok = w.shadow.Next() {
		w.now = max(w.now, at)
		w.apply(&Event{Kind: Tick})
	}
	w.now = until
	w.apply(ev)
}

func (w *shadowWorld) apply(ev *Event) {
	if ev.Kind == Offer {
		w.offered[ev.Class]++
	}
	w.fx = w.shadow.Step(w.now, ev, nil)
	if diff := cmp.Diff(w.fx, w.twin.Step(w.now, ev, nil)); diff != "" {
		w.t.Fatalf("the same input gave another output: %s", diff)
	}
	for i := range w.fx {
		switch e := &w.fx[i]; {
		case e.Op == Stage || e.Op == Drained:
		case ev.Kind == Offer && e.ID == ev.ID && (e.Op == Admit || e.Op == Reject):
		case ev.Kind == Ended && e.Hold == ev.Hold && e.Op == Done:
		default:
			w.t.Fatalf("%+v gave %+v", *ev, *e)
		}
	}
	w.check()
}

func (w *shadowWorld) answer(op Op) *Effect {
	for i := range w.fx {
		if w.fx[i].Op == op {
			return &w.fx[i]
		}
	}
	return nil
}

// up tells whether an engine is open and not down.
func (w *shadowWorld) up(e Engine) bool { return !w.table.Engines[e].Closed && w.states[e] != Down }

func (w *shadowWorld) offer() {
	var free []uint32
	for slot, taken := range w.taken {
		if !taken {
			free = append(free, uint32(slot))
		}
	}
	if free == nil {
		return
	}
	slot := rapid.SampledFrom(free).Draw(w.t, "slot")
	w.gen[slot]++
	ev := &Event{
		Kind: Offer, ID: MakeID(w.gen[slot], slot), Class: Class(rapid.IntRange(0, len(w.table.Classes)-1).Draw(w.t, "class")),
		Tenant: Tenant(rapid.IntRange(0, 3).Draw(w.t, "tenant")), Prompt: tokens(w.t, "prompt", 400),
		Out: tokens(w.t, "out", 200), N: rapid.SampledFrom([]int32{1, 1, 1, 2, 1 << 30}).Draw(w.t, "n"),
	}
	w.step(ev)
	up, ready := false, false
	for e := range w.states {
		up = up || w.up(Engine(e))
		ready = ready || w.up(Engine(e)) && w.states[e] == Ready
	}
	a, r := w.answer(Admit), w.answer(Reject)
	switch {
	case (a == nil) == (r == nil):
		w.t.Fatalf("an offer gave %+v", w.fx)
	case r != nil:
		if up && !w.table.Drain {
			w.t.Fatalf("refused (%v), though an engine is up", r.Cause)
		}
	case w.table.Drain || !w.up(a.Engine) || ready && w.states[a.Engine] != Ready || a.Limit != 0 || a.Loan:
		w.t.Fatalf("passed on by %+v with %v", *a, w.states)
	default:
		w.taken[slot] = true
		w.real = append(w.real, &realRun{hold: a.Hold, slot: slot, class: ev.Class, engine: a.Engine, n: int64(min(ev.N, maxSequences))})
	}
}

func (w *shadowWorld) pick(ended bool) (found *realRun) {
	var of []*realRun
	for _, r := range w.real {
		if r.ended == ended {
			of = append(of, r)
		}
	}
	if of != nil {
		found = rapid.SampledFrom(of).Draw(w.t, "run")
	}
	return found
}

func (w *shadowWorld) end(r *realRun, ev *Event) {
	ev.Kind, ev.Hold = Ended, r.hold
	if ev.Cause == CauseUnreachable && w.states[r.engine] == Ready {
		w.states[r.engine] = Down
	}
	r.ended = true
	w.step(ev)
	w.taken[r.slot] = false
	if w.answer(Done) == nil {
		w.t.Fatalf("an end gave %+v", w.fx)
	}
	if ev.Flags&FlagReleased != 0 {
		w.forget(r)
	}
}

func (w *shadowWorld) forget(r *realRun) {
	for i := range w.real {
		if w.real[i] == r {
			w.real = append(w.real[:i], w.real[i+1:]...)
			return
		}
	}
}

func (w *shadowWorld) release(r *realRun) {
	w.step(&Event{Kind: Released, Hold: r.hold})
	w.forget(r)
}

func (w *shadowWorld) observe(t *rapid.T) {
	e := Engine(rapid.IntRange(0, len(w.table.Engines)-1).Draw(t, "engine"))
	ev := &Event{Kind: Observe, Engine: e, Gauge: Gauge{
		State: rapid.SampledFrom([]State{Ready, Ready, Ready, Loading, Down}).Draw(t, "state"), Asked: w.now,
		Running: int32(rapid.IntRange(-1, 6).Draw(t, "running")), KV: rapid.Int64Range(-1, 900).Draw(t, "kv"),
		Progress: rapid.Int64Range(-1, 3).Draw(t, "progress"), Preemptions: rapid.Int64Range(-1, 2).Draw(t, "preemptions"),
	}}
	if w.honest {
		var n int64
		for _, r := range w.real {
			if r.engine == e && !r.ended {
				n += r.n
			}
		}
		ev.Gauge.Running, ev.Gauge.KV = int32(n), w.shadow.engines[e].used[KV]
	}
	w.states[e] = ev.Gauge.State
	w.step(ev)
}

// check compares both ledgers with the books, with each other and with the rules.
func (w *shadowWorld) check() {
	t, s := w.t, w.shadow
	snap := s.Snapshot()
	var live, all [MaxClasses]int64
	for _, r := range w.real {
		all[r.class] += r.n
		if !r.ended {
			live[r.class] += r.n
		}
	}
	// Every shadow hold is that of one real request, and of its size.
	shadows := map[Hold]*run{}
	for i := range s.runs {
		if h := &s.runs[i]; h.state != holdFree && h.hold != 0 {
			shadows[h.hold] = h
		}
	}
	if len(shadows) != len(snap.Holds) {
		t.Fatalf("%d real requests have shadows, of which there are\n%v", len(shadows), snap)
	}
	for _, v := range snap.Holds {
		h := shadows[v.Hold]
		if h == nil || s.core.classes[h.class].spec.Name != v.Class || of(v.Amount) != h.amount || v.State == "ending" || v.ID != 0 && v.ID != h.id {
			t.Fatalf("a shadow of %+v:\n%+v", h, v)
		}
	}
	for id, h := range shadows {
		if in := &s.core.holds[s.core.find(id)]; in.alone && in.admitted != h.passed {
			t.Fatalf("the core would learn how long a prompt takes from %+v, admitted as %+v", h, in)
		}
	}
	queued := 0
	for slot := range s.requests {
		switch r := &s.requests[slot]; {
		case (r.run != none) != w.taken[slot] && w.answer(Admit) == nil && w.answer(Done) == nil:
			t.Fatalf("slot %d is taken %v", slot, w.taken[slot])
		case r.state != s.core.requests[slot].state || r.state != stateFree && r.run == none:
			t.Fatalf("slot %d is %+v, in the core %+v", slot, r, s.core.requests[slot])
		case r.state == stateQueued:
			queued++
		}
	}
	for k, v := range snap.Classes {
		used := s.classes[k].used
		if w.answer(Admit) == nil && (used[Slots] < live[k] || used[Slots] > all[k]) || !of(v.Used).within(used) {
			t.Fatalf("class %d: %v is passed on, in the books %d to %d, in the shadow %v", k, used, live[k], all[k], v.Used)
		}
		if queued -= v.Queue; w.tables == 0 && !w.table.Bypass && v.Used.Slots > v.Ceiling.Slots {
			t.Fatalf("class %d: %v of %v", k, v.Used, v.Ceiling)
		}
	}
	if queued != 0 {
		t.Fatalf("%d more wait than in\n%v", queued, snap)
	}
	for e, v := range snap.Engines {
		spec := &w.table.Engines[e]
		used := v.Used.Slots
		for _, h := range snap.Holds {
			if spec.Together && h.Engine == v.Name && h.State != "live" {
				used -= h.Amount.Slots // others start beside what is on its way out
			}
		}
		if w.tables == 0 && !w.table.Bypass && used > spec.Slots+spec.Boundary {
			t.Fatalf("engine %d: %v of %+v", e, v.Used, spec)
		}
		if w.honest && v.Foreign != (AmountView{}) {
			t.Fatalf("engine %d: foreign %v, and nobody has sent it but the shadow", e, v.Foreign)
		}
	}
	for k, v := range s.Report().Classes {
		sum := v.AtOnce + v.Delayed.Count + uint64(v.Waiting)
		for _, n := range v.Refused {
			sum += n
		}
		if v.Offered != w.offered[k] || sum != v.Offered || v.Delayed.Cut > v.Delayed.Count || v.Delayed.P50 > v.Delayed.P95 || v.Delayed.P95 > v.Delayed.Max {
			t.Fatalf("class %d: %d offered, %d found in %+v", k, w.offered[k], sum, v)
		}
		if ran, would := s.short(Class(k)); !would.within(ran) {
			t.Fatalf("class %d: short of %v, enforced of %v", k, ran, would)
		}
	}
}

// Everything is passed on at once, the shadow ledger holds what a core may hold
// and only for requests that are there, nothing that the shadow sent itself is
// foreign to it, and the same input gives the same report.
func TestShadowInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newShadowWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"offer":  func(*rapid.T) { w.offer() },
			"offer2": func(*rapid.T) { w.offer() },
			"progress": func(t *rapid.T) {
				if r := w.pick(false); r != nil {
					w.step(&Event{Kind: Progress, Hold: r.hold, Out: tokens(t, "out", 300), Prompt: rapid.SampledFrom([]int32{0, 0, 50, 500}).Draw(t, "prompt")})
				}
			},
			"end": func(t *rapid.T) {
				if r := w.pick(false); r != nil {
					w.end(r, &Event{
						Out: tokens(t, "out", 300), Flags: uint8(rapid.IntRange(0, 7).Draw(t, "flags")),
						Cause: rapid.SampledFrom([]Cause{CauseFinished, CauseFailed, CauseClientGone, CauseTimeout, CauseUnreachable}).Draw(t, "cause"),
					})
				}
			},
			"release": func(*rapid.T) {
				if r := w.pick(true); r != nil {
					w.release(r)
				}
			},
			"cancel": func(t *rapid.T) {
				slot := uint32(rapid.IntRange(0, worldSlots-1).Draw(t, "slot"))
				w.step(&Event{Kind: Cancel, ID: MakeID(w.gen[slot], slot)})
			},
			"stale":   func(*rapid.T) { w.step(&Event{Kind: Progress, Hold: 1 << 60}) },
			"observe": w.observe,
			"tick":    func(*rapid.T) { w.step(&Event{Kind: Tick}) },
			"table": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
					return
				}
				tab := drawTable(t, w.table)
				w.step(&Event{Kind: Tick})
				w.tables++
				w.table = tab
				for len(w.states) < len(tab.Engines) {
					w.states = append(w.states, Ready)
				}
				for len(w.offered) < len(tab.Classes) {
					w.offered = append(w.offered, 0)
				}
				w.apply(&Event{Kind: Apply, Table: tab})
			},
		})
		for len(w.real) > 0 {
			if r := w.pick(false); r != nil {
				w.end(r, &Event{Cause: CauseFinished, Flags: FlagReleased})
			} else {
				w.release(w.pick(true))
			}
		}
		snap := w.shadow.Snapshot()
		if snap.Used != (AmountView{}) || snap.Loans != 0 || len(snap.Holds) != 0 || w.shadow.open != 0 || w.shadow.used != (Amount{}) {
			t.Fatalf("all real requests have ended, and there is left:\n%v", snap)
		}
		for e := range w.shadow.engines {
			if en := &w.shadow.engines[e]; en.used != (Amount{}) || en.live != 0 {
				t.Fatalf("all real requests have ended, and engine %d has %v of %d", e, en.used, en.live)
			}
		}
		if diff := cmp.Diff(w.shadow.Report(), w.twin.Report()); diff != "" {
			t.Fatalf("the same input gave another report: %s", diff)
		}
		if w.table.Drain && !w.shadow.drained {
			t.Fatal("all real requests have ended, and a drain is not over")
		}
	})
}

// shadowCycle is a crowd that the shadow would keep waiting, in which one request
// at a time ends and another comes.
func shadowCycle() func() {
	s := NewShadow(benchTable(), 256)
	var fx []Effect
	var holds [128]Hold
	for i := range holds {
		fx = s.Step(0, &Event{Kind: Offer, ID: MakeID(0, uint32(i)), Class: Class(i % 2), Prompt: 500, Out: 100}, fx[:0])
		holds[i] = fx[len(fx)-1].Hold
	}
	offer := Event{Kind: Offer, Prompt: 500, Out: 100}
	progress := Event{Kind: Progress}
	end := Event{Kind: Ended, Flags: FlagReleased, Cause: CauseFinished, Out: 100}
	i, now := 0, Time(0)
	return func() {
		slot := i % len(holds)
		i++
		now += 1e6
		progress.Hold, progress.Out = holds[slot], 50
		fx = s.Step(now, &progress, fx[:0])
		end.Hold = holds[slot]
		fx = s.Step(now, &end, fx[:0])
		offer.ID, offer.Class = MakeID(uint32(i), uint32(slot)), Class(slot%2)
		fx = s.Step(now, &offer, fx[:0])
		holds[slot] = fx[len(fx)-1].Hold
	}
}

// Once every buffer has its size, observing costs no allocation.
func TestShadowAllocates(t *testing.T) {
	cycle := shadowCycle()
	for range 1000 {
		cycle()
	}
	if n := testing.AllocsPerRun(1000, cycle); n != 0 {
		t.Fatalf("%v allocations for a request", n)
	}
}

// One request's offer, progress and end, in a crowd.
func BenchmarkShadow(b *testing.B) {
	cycle := shadowCycle()
	b.ReportAllocs()
	for range b.N {
		cycle()
	}
}

// What a drain ends is no refusal that enforcing would have made, and a request goes to
// no engine that lacks its model.
func TestShadowDrainAndModels(t *testing.T) {
	tab := &Table{Engines: []EngineSpec{eng("a", 1), eng("b", 1)}, Classes: []ClassSpec{cls("i", 0, 2)}}
	s := NewShadow(tab, 8)
	for i := range uint32(3) {
		fx := s.Step(0, &Event{Kind: Offer, ID: MakeID(1, i), Prompt: 100, Out: 10, Barred: 1}, nil)
		if len(fx) != 1 || fx[0].Op != Admit || fx[0].Engine != 1 {
			t.Fatalf("request %d: %+v", i, fx)
		}
	}
	drain := *tab
	drain.Drain = true
	s.Step(1, &Event{Kind: Apply, Table: &drain}, nil)
	if text := s.Report().String(); !strings.Contains(text, "gone with a drain: 2\n") || strings.Contains(text, "refused") {
		t.Errorf("after a drain:\n%s", text)
	}
}
