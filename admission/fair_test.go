package admission

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// market drives a core of one class and one engine with the requests of several
// tenants, and counts what is done for each from the events and effects alone:
// an account of its own, not the core's counters.
type market struct {
	t       *rapid.T
	core    *Core
	slack   bool // heads may be passed: see the comment on weightIn
	now     Time
	reqs    []asked
	count   int
	done    []int64 // weighted tokens done for each tenant
	waiting []int
	still   []bool  // it has waited since before the step
	over    []int64 // by how much its counter in the core exceeds done
	pairs   map[[2]int]*span
	flight  int64 // tokens of what runs, with what it will still produce
	most    int64 // the largest flight
	longest int64 // input
	worth   int64 // the largest work of one request
}

// asked is one request: its whole length is settled when it is offered.
type asked struct {
	at       place
	gen      uint32
	order    int // of first arrival
	tenant   int
	prompt   int32
	out      int32 // it will have produced in all
	produced int32 // by its present attempt
	kept     int32 // of earlier attempts
	counted  int32 // of its output, in done
	paid     bool  // its prompt is in done
	hold     Hold
}

// span is how far the work done for two tenants has been apart, one less the
// other, since both wait.
type span struct{ low, high int64 }

func newMarket(t *rapid.T, slots, kv int64, tenants int) *market {
	const capacity = 100
	all := Of(slots, kv)
	m := &market{
		t: t, reqs: make([]asked, capacity), done: make([]int64, tenants), waiting: make([]int, tenants), still: make([]bool, tenants), over: make([]int64, tenants), pairs: map[[2]int]*span{},
		core: New(&Table{
			Engines: []EngineSpec{{Name: "e", Slots: slots, KV: kv, Block: 16}},
			Classes: []ClassSpec{{Name: "only", Floor: Of(slots, kv*rapid.Int64Range(0, 1).Draw(t, "floor")), Ceiling: all, Depth: capacity, DefaultOut: 64}},
		}, capacity),
	}
	return m
}

func (m *market) step(ev *Event) []Effect {
	m.now += 1e6
	least := int64(math.MaxInt64)
	for i := range m.still {
		if m.still[i] = m.waiting[i] > 0; m.still[i] {
			least = min(least, m.counter(i))
		}
	}
	fx := m.core.Step(m.now, ev, nil)
	for i := range fx {
		m.take(&fx[i])
	}
	m.counters(least)
	return fx
}

func (m *market) counter(i int) int64 { return m.core.lines[m.core.line(0, Tenant(i))].counter }

// counters looks at the core's counters: they follow the work that is done, but
// that a tenant who comes to wait is lifted to the least of those who do.
func (m *market) counters(least int64) {
	for i := range m.done {
		over := m.counter(i) - m.done[i]
		if over < m.over[i] || m.still[i] && over > m.over[i] {
			m.t.Fatalf("tenant %d: the counter exceeds the work by %d, it was %d", i, over, m.over[i])
		}
		if m.over[i] = over; m.waiting[i] > 0 && !m.still[i] && m.counter(i) < least && least < math.MaxInt64 {
			m.t.Fatalf("tenant %d came back at %d, the least is %d", i, m.counter(i), least)
		}
	}
}

func (m *market) take(e *Effect) {
	r := &m.reqs[e.ID.Slot()]
	switch e.Op {
	case Queued:
		r.at = waiting
		m.waiting[r.tenant]++
	case Admit:
		if !r.paid {
			r.paid = true
			m.done[r.tenant] += int64(r.prompt)
		}
		m.longest = max(m.longest, int64(r.prompt))
		m.worth = max(m.worth, int64(r.prompt)+2*int64(max(r.out, 1)))
		m.flight += int64(r.prompt + r.out)
		m.most = max(m.most, m.flight)
		if r.at == waiting {
			m.compare() // it waited until now
			m.waiting[r.tenant]--
		}
		r.at, r.hold, r.produced = running, e.Hold, 0
	case Done, Reject:
		if r.at == waiting {
			m.waiting[r.tenant]--
		}
		r.at = nowhere
	}
	m.still[r.tenant] = m.still[r.tenant] && m.waiting[r.tenant] > 0
	m.compare()
}

// compare holds every two tenants who wait against the bound, over every
// interval that ends now.
func (m *market) compare() {
	u := max(m.longest, 2*m.most)
	if m.slack {
		u += 2 * m.worth
	}
	for i := range m.done {
		for j := range i {
			pair := [2]int{i, j}
			if m.waiting[i] == 0 || m.waiting[j] == 0 {
				delete(m.pairs, pair)
				continue
			}
			apart := m.done[i] - m.done[j]
			s := m.pairs[pair]
			if s == nil {
				s = &span{apart, apart}
				m.pairs[pair] = s
			}
			if s.low, s.high = min(s.low, apart), max(s.high, apart); s.high-s.low > 2*u {
				m.t.Fatalf("tenants %d and %d have both waited while the work for them came to be %d apart, of at most %d:\n%v", i, j, s.high-s.low, 2*u, m.core.Snapshot())
			}
		}
	}
}

// pick draws a request in a state, or -1.
func (m *market) pick(at place) int {
	var in []int
	for i := range m.reqs {
		if m.reqs[i].at == at {
			in = append(in, i)
		}
	}
	if in == nil {
		return -1
	}
	return rapid.SampledFrom(in).Draw(m.t, "request")
}

// offer sends a request; the first tenant sends six in ten of all.
func (m *market) offer(prompt, out int32) []Effect {
	for i := range m.reqs {
		r := &m.reqs[i]
		if r.at != nowhere {
			continue
		}
		tenant := 0
		if n := rapid.IntRange(0, 9).Draw(m.t, "tenant"); n >= 6 && len(m.done) > 1 {
			tenant = 1 + n%(len(m.done)-1)
		}
		m.count++
		*r = asked{gen: r.gen + 1, order: m.count, tenant: tenant, prompt: prompt, out: out}
		return m.step(&Event{Kind: Offer, ID: MakeID(r.gen, uint32(i)), Tenant: Tenant(tenant), Prompt: r.prompt, Out: r.out, N: 1})
	}
	return nil
}

// produce lets a running request go on to out tokens of its attempt.
func (m *market) produce(r *asked, out int32) {
	r.produced = out
	if all := r.kept + out; all > r.counted {
		m.done[r.tenant] += 2 * int64(all-r.counted)
		r.counted = all
	}
}

func (m *market) progress() {
	if i := m.pick(running); i >= 0 {
		r := &m.reqs[i]
		m.produce(r, rapid.Int32Range(r.produced, r.out-r.kept).Draw(m.t, "out"))
		m.step(&Event{Kind: Progress, Hold: r.hold, Out: r.produced})
	}
}

// end ends a request's attempt: most are finished, some are to run again, from
// the beginning or from what is kept.
func (m *market) end() []Effect {
	i := m.pick(running)
	if i < 0 {
		return nil
	}
	r := &m.reqs[i]
	ev := &Event{Kind: Ended, Hold: r.hold, Cause: CauseFinished, Flags: FlagReleased}
	m.flight -= int64(r.prompt + r.out)
	switch how := rapid.IntRange(0, 9).Draw(m.t, "how"); {
	case how == 0:
		ev.Cause = CauseReclaimed
	case how == 1:
		ev.Cause, ev.Flags = CauseReclaimed, FlagReleased|FlagDelivered|FlagKept
	case how == 2:
		ev.Cause, ev.Flags = CauseClientGone, FlagReleased|FlagDelivered
	default:
		m.produce(r, r.out-r.kept)
	}
	ev.Out = r.produced
	if ev.Flags&FlagKept != 0 {
		r.kept += r.produced
	}
	return m.step(ev)
}

func (m *market) cancel() {
	if i := m.pick(waiting); i >= 0 {
		m.step(&Event{Kind: Cancel, ID: MakeID(m.reqs[i].gen, uint32(i))})
	}
}

func (m *market) run(check func(before, after *Snapshot, fx []Effect)) {
	size := func() (prompt, out int32) {
		return rapid.Int32Range(1, 400).Draw(m.t, "prompt"), rapid.Int32Range(0, 200).Draw(m.t, "out")
	}
	for range 40 {
		m.offer(size())
	}
	for range 300 {
		before := m.core.Snapshot()
		var fx []Effect
		switch n := rapid.IntRange(0, 20).Draw(m.t, "what"); {
		case n == 0:
			m.cancel()
		case n < 8:
			fx = m.offer(size())
		case n < 14:
			m.progress()
		default:
			fx = m.end()
		}
		if check != nil {
			check(before, m.core.Snapshot(), fx)
		}
	}
}

// The bound of virtual token counters: over every interval in which two tenants
// both wait, the work done for them differs by at most 2 * U, with a whale that
// sends six requests in ten, whatever is cancelled or runs again.
func TestTenantsShareAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		newMarket(t, rapid.Int64Range(1, 6).Draw(t, "slots"), 1<<20, rapid.IntRange(2, 5).Draw(t, "tenants")).run(nil)
	})
}

// The same where KV is short and heads are passed.
func TestTenantsShareAlikePassing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMarket(t, 64, rapid.Int64Range(40, 120).Draw(t, "kv")*16, rapid.IntRange(2, 5).Draw(t, "tenants"))
		m.slack = true
		m.run(nil)
	})
}

// One tenant, so that the head is the oldest request until it is admitted. While
// it is, the rest reserve no more than it wants, and once there is a slot for it,
// there is one until it takes it.
func TestPassedHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMarket(t, rapid.Int64Range(2, 8).Draw(t, "slots"), rapid.Int64Range(40, 120).Draw(t, "kv")*16, 1)
		var tokens int64
		m.run(func(before, after *Snapshot, fx []Effect) {
			was, is := before.Classes[0].Head, after.Classes[0].Head
			if was == nil || is == nil || was.ID != is.ID {
				tokens = 0
				return
			}
			for i := range fx {
				// One that runs again may have come before the head.
				if fx[i].Op == Admit && m.reqs[fx[i].ID.Slot()].order > m.reqs[is.ID.Slot()].order {
					tokens += fx[i].Tokens
				}
			}
			if tokens > max(was.Wants.KV, is.Wants.KV) {
				t.Fatalf("%d tokens have passed a head that wants %d:\n%v", tokens, is.Wants.KV, after)
			}
			if free := after.Envelope.Slots - after.Used.Slots; before.Envelope.Slots > before.Used.Slots && free == 0 {
				t.Fatalf("the head's slot was taken:\n%v\nbecame\n%v", before, after)
			}
		})
	})
}

// Taking the first lines out of the heap one by one, and all the others, gives
// the order by counter and first arrival.
func TestFront(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(benchTable(), 200)
		for i := range uint32(rapid.IntRange(64, 199).Draw(t, "requests")) {
			ev := Event{Kind: Offer, ID: MakeID(1, i), Tenant: Tenant(rapid.IntRange(0, 40).Draw(t, "tenant")), Prompt: 100, Out: 10}
			for _, e := range c.Step(0, &ev, nil) {
				if e.Op == Admit {
					c.Step(0, &Event{Kind: Progress, Hold: e.Hold, Out: int32(rapid.IntRange(0, 10).Draw(t, "out"))}, nil)
				}
			}
		}
		cl := &c.classes[0]
		first, n := c.front(cl)
		if n != min(foremost, len(cl.queue.lines)) {
			t.Fatalf("%d lines of %d", n, len(cl.queue.lines))
		}
		taken := map[int32]bool{}
		for _, next := range first[:n] {
			for _, other := range cl.queue.lines {
				if !taken[other] && c.before(other, next) {
					t.Fatalf("line %d is given before line %d: %v", next, other, c.lines)
				}
			}
			taken[next] = true
		}
	})
}

// A million requests of a hundred thousand tenants wait: each step ends one
// request, admits the next and takes in another.
func BenchmarkTenants(b *testing.B) {
	const requests, tenants = 1_000_000, 100_000
	t := benchTable()
	t.Classes[0].Depth = requests
	c := New(t, requests)
	var fx []Effect
	running := make([]Hold, 0, 64)
	for i := range uint32(requests) {
		fx = c.Step(0, &Event{Kind: Offer, ID: MakeID(1, i), Tenant: Tenant(i % tenants), Prompt: 500, Out: 100}, fx[:0])
		if fx[0].Op == Admit {
			running = append(running, fx[0].Hold)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		fx = c.Step(Time(i)*1000, &Event{Kind: Ended, Hold: running[i%64], Flags: FlagReleased, Cause: CauseFinished, Out: 100}, fx[:0])
		var done ID
		for _, e := range fx {
			switch e.Op {
			case Done:
				done = e.ID
			case Admit:
				running[i%64] = e.Hold
			}
		}
		fx = c.Step(Time(i)*1000, &Event{Kind: Offer, ID: MakeID(uint32(i+2), done.Slot()), Tenant: Tenant(i % tenants), Prompt: 500, Out: 100}, fx[:0])
	}
}
