package admission

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// drawShares makes a table one of several that share its engines, sometimes.
func drawShares(t *rapid.T, tab *Table, now Time) {
	if rapid.IntRange(0, 2).Draw(t, "shared") < 2 {
		return
	}
	part := func(whole Amount) (withheld, survival Amount) {
		for r := range NumResources {
			withheld[r] = rapid.Int64Range(0, whole[r]).Draw(t, "withheld")
			if rapid.Bool().Draw(t, "survives") {
				survival[r] = rapid.Int64Range(0, whole[r]).Draw(t, "survival")
			}
		}
		return withheld, survival
	}
	for e := range tab.Engines {
		if s := &tab.Engines[e]; rapid.IntRange(0, 3).Draw(t, "is shared") > 0 {
			s.Shared = true
			s.Withheld, s.Survival = part(Of(s.Slots, s.KV))
		}
	}
	for k := range tab.Classes {
		if s := &tab.Classes[k]; rapid.IntRange(0, 3).Draw(t, "is shared") == 3 {
			s.Shared = true
			s.Withheld, s.Survival = part(s.Ceiling)
		}
	}
	tab.Recall = rapid.Bool().Draw(t, "recall")
	if rapid.Bool().Draw(t, "lease") {
		tab.Until = max(1, now+Time(rapid.IntRange(-1, 10).Draw(t, "until"))*1e9)
	}
}

// lease is when the shares end, by what the core was told.
type lease struct {
	until Time
	over  bool
}

func (l *lease) take(tab *Table, now Time) {
	l.until, l.over = tab.Until, tab.Until != 0 && tab.Until <= now
}

// pass lets time come to now, and takes in an event.
func (l *lease) pass(ev *Event, now Time) {
	l.over = l.over || l.until != 0 && l.until <= now
	switch {
	case ev.Kind == Apply:
		l.take(ev.Table, now)
	case ev.Kind == Renew && l.until != 0 && !l.over:
		l.until = max(ev.Until, 1)
		l.over = l.until <= now
	}
}

// withheld is what this core may not use of an engine.
func (w *world) withheld(e Engine) Amount {
	s := &w.table.Engines[e]
	if s.Shared && w.lease.over {
		return Of(s.Slots, s.KV).sub(s.Survival)
	}
	return s.Withheld
}

// ceiling is what a class may use.
func (w *world) ceiling(k Class) Amount {
	s := &w.table.Classes[k]
	if s.Shared && w.lease.over {
		return s.Survival
	}
	return s.Ceiling.sub(s.Withheld)
}

// checkShares compares the shares with the table, and returns what is withheld of the
// engines that are in the envelope.
func (w *world) checkShares(s *Snapshot) (sum Amount) {
	if s.Until != w.lease.until || s.Expired != w.lease.over {
		w.t.Fatalf("the lease is until %v, over %v, should be %+v", s.Until, s.Expired, w.lease)
	}
	ready := func(e int) bool { return s.Engines[e].State == "ready" && !w.table.Engines[e].Closed }
	apart := false
	for e := range s.Engines {
		apart = apart || ready(e) && s.Engines[e].Aside == 0
	}
	for e, v := range s.Engines {
		if shared := w.table.Engines[e].Shared; shared != (v.Share != nil) || shared && of(v.Share.Withheld) != w.withheld(Engine(e)) {
			w.t.Fatalf("of engine %d is withheld %v, should be %v", e, v.Share, w.withheld(Engine(e)))
		}
		if ready(e) && !(apart && v.Aside != 0) {
			sum = sum.add(w.withheld(Engine(e)))
		}
	}
	for k, v := range s.Classes {
		if spec := &w.table.Classes[k]; spec.Shared != (v.Share != nil) || spec.Shared && spec.Ceiling.sub(of(v.Share.Withheld)) != w.ceiling(Class(k)) {
			w.t.Fatalf("of class %d's ceiling is withheld %v, should be left %v", k, v.Share, w.ceiling(Class(k)))
		}
	}
	if s.Withheld != nil && of(*s.Withheld) != sum {
		w.t.Fatalf("withheld is %v, should be %v", s.Withheld, sum)
	}
	return sum
}

// excess is what is used beyond the shares where a hold is, and not on its way out.
func (w *world) excess(all *load, h *entry) (over [2]Amount) {
	if !w.table.Recall || w.lease.over {
		return over
	}
	engine := Of(w.table.Engines[h.engine].Slots, w.table.Engines[h.engine].KV)
	share, ceiling := engine.sub(w.withheld(h.engine)), w.ceiling(h.class)
	for r := range NumResources {
		if w.core.engines[h.engine].counts && share[r] < engine[r] {
			over[0][r] = max(0, all.engine[h.engine][r]-all.engineGoing[h.engine][r]-share[r])
		}
		if ceiling[r] < w.table.Classes[h.class].Ceiling[r] {
			over[1][r] = max(0, all.class[h.class][r]-all.classGoing[h.class][r]-ceiling[r])
		}
	}
	return over
}

// checkGivenBack looks at what was ended for nobody because it was beyond the shares:
// none without which the rest would do as much, and all that may be, where nothing
// bounds how many. all has what was held before, floors what is owed.
func (w *world) checkGivenBack(s *Snapshot, fx []Effect, all *load, floors []Amount) {
	if w.table.Bypass || w.table.Pause && w.table.CallIn {
		return
	}
	after := newLoad(len(w.table.Classes), len(w.table.Engines))
	for _, v := range s.Holds {
		h := w.holds[v.Hold]
		after.add(h, h.amount)
		if v.State != "live" {
			after.leave(h, h.amount)
		}
	}
	for i := range fx {
		if e := &fx[i]; e.Op == Reclaim && e.For == 0 {
			h := w.holds[e.Hold]
			without := w.excess(after, h)
			after.leave(h, Amount{}.sub(h.amount))
			if w.excess(after, h) == without {
				w.t.Fatalf("%+v is ended for what is beyond the shares, and is not needed for that:\n%+v\n%v", h, fx, s)
			}
			after.leave(h, h.amount)
		}
	}
	if w.table.ReclaimRate > 0 || floors == nil {
		return
	}
	for _, v := range s.Holds {
		h := w.holds[v.Hold]
		spec := &w.table.Classes[h.class]
		may := v.State == "live" && v.Loan && !v.Pinned && w.untrue[h.engine] < maxUntrue
		switch spec.Mode {
		case Attrition:
			may = false
		case Deadline:
			may = may && h.given+Time(spec.LoanLife) <= w.now
		case ReclaimNow:
			may = may && !(w.whole[h.slot] && h.begun)
		}
		if may && w.excess(after, h) != [2]Amount{} && !after.class[h.class].sub(after.classGoing[h.class]).within(floors[h.class]) {
			w.t.Fatalf("%+v is a loan that is wanted back, and stays:\n%+v\n%v", h, fx, s)
		}
	}
}

// heard is what was last told of a class.
type heard struct {
	short   bool
	waiting int
	head    ID
}

// checkTold compares what the core says of its demand with the books, and that it was
// said to be looked at when there was news.
func (w *world) checkTold(before, after *Snapshot, ev *Event, fx []Effect) {
	told := 0
	for i := range fx {
		if fx[i].Op == Demand {
			told++
		}
	}
	shared := false
	for e := range w.table.Engines {
		shared = shared || w.table.Engines[e].Shared
	}
	for k := range w.table.Classes {
		shared = shared || w.table.Classes[k].Shared
	}
	if told > 1 || told > 0 && !shared {
		w.t.Fatalf("shared %v, and %d times told of demand in a step: %+v", shared, told, fx)
	}
	w.core.Demands(&w.demands)
	used := newLoad(len(w.table.Classes), len(w.table.Engines))
	for k, v := range w.demands.Classes {
		for e := range v.Used {
			used.engine[e], used.class[k] = used.engine[e].add(v.Used[e]), used.class[k].add(v.Used[e])
		}
		if s := &after.Classes[k]; v.Waiting != s.Queue || v.Hold != of(s.Hold) || used.class[k] != of(s.Used) || v.Short && (s.Head == nil || !shared) {
			w.t.Fatalf("class %d: demand is %+v in\n%v", k, v, after)
		}
	}
	for e, v := range w.demands.Engines {
		if s := &after.Engines[e]; v.Used != of(s.Used) || v.Used != used.engine[e] {
			w.t.Fatalf("engine %d: demand is %+v, by classes %v in\n%v", e, v, used, after)
		}
	}
	for len(w.heard) < len(after.Classes) {
		w.heard = append(w.heard, heard{})
	}
	for k, v := range w.demands.Classes {
		now := heard{short: v.Short, waiting: v.Waiting}
		if h := after.Classes[k].Head; h != nil {
			now.head = h.ID
		}
		last := &w.heard[k]
		if told > 0 || !shared {
			*last = now
		} else if now.short != last.short || now.short && (now.waiting > last.waiting || now.head != last.head) {
			w.t.Fatalf("class %d is %+v, was told to be %+v, and nothing was said:\n%+v\n%v", k, now, *last, fx, after)
		}
	}
	if told > 0 || ev.Kind == Apply || len(before.Engines) != len(after.Engines) || before.Expired != after.Expired || ev.Kind == Observe {
		return
	}
	for e, v := range before.Engines {
		engine := Of(w.table.Engines[e].Slots, w.table.Engines[e].KV)
		for r := range NumResources {
			fell := of(after.Engines[e].Used)[r] < of(v.Used)[r]
			if withheld := w.withheld(Engine(e))[r]; fell && w.core.engines[e].counts && withheld > 0 && of(v.Used)[r]+withheld > engine[r] {
				w.t.Fatalf("of engine %d less is used beyond the share, and nothing was said:\n%+v\n%v", e, fx, before)
			}
		}
	}
}

// A core from which nothing is withheld does what one does that shares nothing: the
// same effects at the same times.
func TestWholeShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alone := drawTable(t, &Table{})
		alone.Drain, alone.Bypass = false, false
		for e := range alone.Engines {
			alone.Engines[e].Boundary = 0
		}
		whole := *alone
		whole.Engines, whole.Classes = slices.Clone(alone.Engines), slices.Clone(alone.Classes)
		for e := range whole.Engines {
			whole.Engines[e].Shared = true
		}
		for k := range whole.Classes {
			whole.Classes[k].Shared = true
		}
		whole.Recall = rapid.Bool().Draw(t, "recall")
		if rapid.Bool().Draw(t, "lease") {
			whole.Until = 1e15
		}
		a, b := New(alone, worldSlots), New(&whole, worldSlots)
		now, gen := Time(0), uint32(0)
		var busy [worldSlots]bool
		var holds []Hold
		step := func(ev *Event) {
			fx := a.Step(now, ev, nil)
			if diff := cmp.Diff(fx, b.Step(now, ev, nil)); diff != "" {
				t.Fatalf("with nothing withheld, %+v gives %s\n%v\n%v", *ev, diff, a.Snapshot(), b.Snapshot())
			}
			for _, e := range fx {
				switch e.Op {
				case Admit, Warm:
					holds = append(holds, e.Hold)
				case Reject, Done:
					busy[e.ID.Slot()] = false
				}
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			until := now + Time(rapid.IntRange(0, 800).Draw(t, "ms"))*1e6
			for at, ok := a.Next(); ok && at <= until; at, ok = a.Next() {
				now = max(now, at)
				step(&Event{Kind: Tick})
			}
			now = until
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0, 1:
				slot := slices.Index(busy[:], false)
				if slot < 0 {
					continue
				}
				busy[slot] = true
				gen++
				step(&Event{
					Kind: Offer, ID: MakeID(gen, uint32(slot)), Class: Class(rapid.IntRange(0, len(alone.Classes)-1).Draw(t, "class")),
					Tenant: Tenant(rapid.IntRange(0, 2).Draw(t, "tenant")), Prompt: rapid.Int32Range(1, 300).Draw(t, "prompt"), Out: rapid.Int32Range(-1, 200).Draw(t, "out"),
				})
			case 2:
				if len(holds) > 0 {
					step(&Event{Kind: Progress, Hold: rapid.SampledFrom(holds).Draw(t, "hold"), Out: rapid.Int32Range(1, 300).Draw(t, "tokens")})
				}
			case 3, 4:
				if n := len(holds); n > 0 {
					i := rapid.IntRange(0, n-1).Draw(t, "which")
					id := holds[i]
					holds = slices.Delete(holds, i, i+1)
					step(&Event{Kind: Ended, Hold: id, Out: 20, Cause: rapid.SampledFrom([]Cause{CauseFinished, CauseReclaimed}).Draw(t, "cause"), Flags: FlagReleased | FlagKept})
				}
			}
			// On a table without a lease a renewal is nothing.
			step(&Event{Kind: Renew, Until: now + 1e15})
		}
	})
}

// Whoever waits is short of the share, and that was told, or gives way to one who is,
// or is served; what fits beside the floors of the others is served. When the whole is
// there, everybody is.
func TestShareLiveness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := &Table{Rev: 1, Recall: rapid.Bool().Draw(t, "recall")}
		for range rapid.IntRange(1, 2).Draw(t, "engines") {
			tab.Engines = append(tab.Engines, EngineSpec{
				Name: "e", Slots: rapid.Int64Range(1, 6).Draw(t, "slots"), KV: rapid.Int64Range(20, 60).Draw(t, "kv") * 16, Block: 16,
				Together: rapid.Bool().Draw(t, "together"), Shared: true,
			})
		}
		left := tab.Envelope()
		for range rapid.IntRange(1, 4).Draw(t, "classes") {
			c := ClassSpec{Name: "c", Ceiling: tab.Envelope(), Depth: 100, DefaultOut: 40, IdleAfter: 2 * time.Second, Mode: ReclaimNow}
			c.Mode = rapid.SampledFrom([]Mode{Attrition, ReclaimNow}).Draw(t, "mode")
			c.Reopen = rapid.SampledFrom([]Reopening{ReopenIdle, ReopenSettled}).Draw(t, "reopen")
			for r := range NumResources {
				c.Floor[r] = rapid.Int64Range(0, left[r]).Draw(t, "floor")
				c.Unlent[r] = rapid.Int64Range(0, c.Floor[r]).Draw(t, "unlent")
				if rapid.IntRange(0, 3).Draw(t, "limited") == 3 {
					c.Ceiling[r] = rapid.Int64Range(c.Floor[r], c.Ceiling[r]).Draw(t, "ceiling")
				}
			}
			left = left.sub(c.Floor)
			c.Shared = rapid.Bool().Draw(t, "is shared")
			tab.Classes = append(tab.Classes, c)
		}
		reshare := func() {
			for e := range tab.Engines {
				s := &tab.Engines[e]
				for r := range NumResources {
					s.Withheld[r] = rapid.Int64Range(0, Of(s.Slots, s.KV)[r]).Draw(t, "withheld")
				}
			}
			for k := range tab.Classes {
				s := &tab.Classes[k]
				for r := range NumResources {
					if s.Shared {
						s.Withheld[r] = rapid.Int64Range(0, s.Ceiling[r]).Draw(t, "withheld")
					}
				}
			}
		}
		reshare()
		b := &shared{t: t, scripted: newScripted(nil, tab), told: make([]bool, len(tab.Classes))}
		slot := uint32(0)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			b.to(b.now + Time(rapid.IntRange(0, 3000).Draw(t, "ms"))*ms)
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				reshare()
				tab.Rev++
				b.step(&Event{Kind: Apply, Table: tab})
			case 1:
				b.endOne()
			default:
				b.step(&Event{
					Kind: Offer, ID: MakeID(1, slot), Class: Class(rapid.IntRange(0, len(tab.Classes)-1).Draw(t, "class")), Tenant: Tenant(rapid.IntRange(0, 2).Draw(t, "tenant")),
					Prompt: rapid.Int32Range(1, 400).Draw(t, "prompt"), Out: rapid.Int32Range(1, 300).Draw(t, "out"), N: rapid.Int32Range(1, 3).Draw(t, "n"),
				})
				slot++
			}
		}
		b.quiet()
		b.c.Demands(&b.d)
		for k, v := range b.d.Classes {
			if v.Short != b.told[k] {
				t.Fatalf("class %d is short %v, and was told to be %v:\n%s", k, v.Short, b.told[k], b.dump())
			}
			if v.Waiting == 0 || v.Short {
				continue
			}
			if b.c.blockIn == 0 && b.c.blockOut&(bit(Class(k))-1) == 0 {
				t.Fatalf("class %d waits for nothing that was told:\n%s", k, b.dump())
			}
		}
		for k, v := range b.d.Classes {
			if v.Waiting == 0 {
				continue
			}
			others := Amount{}
			for j := range tab.Classes {
				if j != k {
					others = others.add(tab.Classes[j].Floor)
				}
			}
			cl := &b.c.classes[k]
			for e := range tab.Engines {
				s := &tab.Engines[e]
				amount, _, _ := b.c.price(cl, &b.c.engines[e], &b.c.requests[cl.queue.head])
				beside := amount.add(s.Withheld).within(Of(s.Slots, s.KV)) && amount.add(others).within(b.c.envelope.sub(b.c.foreign))
				why, _, _ := b.c.engines[e].misfit(cl, &b.c.requests[cl.queue.head])
				barred := b.c.blockIn != 0 || b.c.blockOut&(bit(Class(k))-1) != 0
				if why == CauseNone && beside && amount.within(tab.Classes[k].Ceiling.sub(tab.Classes[k].Withheld)) && !barred {
					t.Fatalf("the head of class %d, %v, fits engine %d beside all floors, and waits:\n%s", k, amount, e, b.dump())
				}
			}
		}
		for e := range tab.Engines {
			tab.Engines[e].Withheld = Amount{}
		}
		for k := range tab.Classes {
			tab.Classes[k].Withheld = Amount{}
		}
		b.step(&Event{Kind: Apply, Table: tab})
		b.quiet()
		for k := range b.c.classes {
			if b.c.classes[k].queue.n > 0 {
				t.Fatalf("the whole is there, and class %d waits:\n%s", k, b.dump())
			}
		}
	})
}

// shared drives a core that is one of several, and keeps what it was told of.
type shared struct {
	*scripted
	t    *rapid.T
	live []Hold
	told []bool // who is short
	d    Demands
}

func (b *shared) step(ev *Event) {
	for _, e := range b.scripted.step(ev) {
		switch e.Op {
		case Admit, Warm:
			b.live = append(b.live, e.Hold)
		case Demand:
			b.c.Demands(&b.d)
			for k, v := range b.d.Classes {
				b.told[k] = v.Short
			}
		}
	}
}

func (b *shared) to(at Time) {
	for n := 0; ; n++ {
		next, ok := b.c.Next()
		if !ok || next > at {
			break
		}
		if n > 20000 {
			b.t.Fatalf("busy loop at %v", b.now)
		}
		b.now = max(b.now, next)
		b.step(&Event{Kind: Tick})
	}
	b.now = at
}

func (b *shared) endOne() bool {
	if len(b.live) == 0 {
		return false
	}
	id := b.live[0]
	b.live = b.live[1:]
	cause := CauseFinished
	if b.c.holds[uint32(id)].state == holdEnding {
		cause = CauseReclaimed
	}
	b.step(&Event{Kind: Ended, Hold: id, Cause: cause, Flags: FlagReleased, Out: 1})
	return true
}

// quiet lets everything end, and time pass.
func (b *shared) quiet() {
	for range 20 {
		for b.endOne() {
			b.to(b.now + 100*ms)
		}
		b.to(b.now + 1000*sec)
	}
}

// An Amount is written with its resources' names, and read back.
func TestAmountJSON(t *testing.T) {
	text, err := json.Marshal(struct{ A Amount }{Of(3, 4800)})
	if want := `{"A":{"slots":3,"kv_tokens":4800}}`; err != nil || string(text) != want {
		t.Fatalf("%s, %v; want %s", text, err, want)
	}
	var back struct{ A Amount }
	if err := json.Unmarshal(text, &back); err != nil || back.A != Of(3, 4800) {
		t.Fatalf("%v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"A":[3,4800]}`), &back); err == nil {
		t.Fatal("a list is no amount")
	}
}

// Asking for the demand costs nothing once there is memory for it.
func TestDemandsAllocatesOnce(t *testing.T) {
	tab := benchTable()
	tab.Engines[0].Shared, tab.Engines[0].Withheld = true, Of(60, 60*4096)
	c := New(tab, 64)
	for i := range uint32(20) {
		c.Step(0, &Event{Kind: Offer, ID: MakeID(1, i), Class: Class(i % 2), Prompt: 500, Out: 100}, nil)
	}
	var d Demands
	c.Demands(&d)
	if n := testing.AllocsPerRun(100, func() { c.Demands(&d) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
