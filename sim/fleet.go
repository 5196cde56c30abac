package sim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strings"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/trace"
)

// Fleet puts several gateways in front of the engine. Each has its own core and
// admits by its own grant; one allocator hands the grants out. What they tell each
// other takes Delay and always arrives: what is lost, late or twice is another
// matter, of safety, and this is about what a fleet does to the requests.
type Fleet struct {
	Replicas int
	Spread   Spread
	// Delay is from one part's writing something to the other's having it: the write
	// into the store and the watch.
	Delay time.Duration
	// Control is how the allocator judges demand.
	Control control.Config
}

// DefaultDelay is a write of 3 ms and a watch of 2 ms.
const DefaultDelay = 5 * time.Millisecond

// Spread says which replica a request comes to.
type Spread string

const (
	// RoundRobin: one after the other.
	RoundRobin Spread = "round-robin"
	// BySession: all of a session to one; a request without one by its id.
	BySession Spread = "session"
	// ByClass: each class to a replica of its own, so that all that one lends the
	// other borrows at another replica. It is the hardest: nothing is recalled within
	// one core.
	ByClass Spread = "class"
)

// Spreads are all there are.
func Spreads() []Spread { return []Spread{RoundRobin, BySession, ByClass} }

// Validate reports every value that is out of range, by the name of its flag.
func (f *Fleet) Validate(bad func(path string, value any, allowed string)) {
	if f.Replicas < 1 || f.Replicas > maxFleet {
		bad("replicas", f.Replicas, fmt.Sprintf("1 to %d", maxFleet))
	}
	if f.Delay < 0 || f.Delay > time.Minute {
		bad("control-delay", f.Delay, "0s to 1m")
	}
	if !slices.Contains(Spreads(), f.Spread) {
		var names []string
		for _, s := range Spreads() {
			names = append(names, string(s))
		}
		bad("spread", f.Spread, strings.Join(names, ", "))
	}
}

const maxFleet = 64

// fleet is the control plane of a run: the allocator, and what is on its way.
type fleet struct {
	Fleet
	alloc *control.Allocator
	fx    []control.Effect
	post  []letter // in the order in which it arrives
	idle  time.Duration
}

// letter is a report to the allocator, or a grant or news to a replica.
type letter struct {
	at     time.Duration
	report *control.Report
	grant  *control.Grant
	news   *control.News
	to     int
}

// member is what a gateway is in a fleet.
type member struct {
	id     control.ID
	holder *control.Holder
	table  *admission.Table // in force
	took   time.Duration    // when its grant was
	seq    uint64
	news   uint64        // that it was told last
	push   bool          // the core wants its demand known now
	soon   time.Duration // or by then, 0: it does not
	dirty  bool          // something may have changed since looked
	looked time.Duration
	last   *control.Report // sent
	sent   time.Duration
}

// How often a replica reports: what its core does not call urgent at most every
// reportEvery, and with nothing new every reportIdle.
const (
	reportEvery = 250 * time.Millisecond
	reportIdle  = 5 * time.Second
)

// stuck is how long requests may wait at an idle engine before a run is given up.
const stuck = 10 * time.Minute

// lease outlasts every run.
const lease = time.Duration(1 << 60)

// found starts the fleet. It has shared the engine before the trace begins.
func (r *runner) found(requests []trace.Entry) error {
	f := &fleet{Fleet: *r.arm.Fleet}
	var all []error
	f.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("%s is %v: allowed is %s", path, value, allowed))
	})
	if len(all) > 0 {
		return errors.Join(all...)
	}
	pool := control.PoolOf(r.arm.Name, r.arm.Table, f.Replicas)
	pool.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("between %d replicas %s is %v: allowed is %s", f.Replicas, path, value, allowed))
	})
	if len(all) > 0 {
		return errors.Join(all...)
	}
	f.alloc = control.NewAllocator(pool, 1, f.Control)
	r.fleet = f
	for n := range f.Replicas {
		id := control.ID{Replica: fmt.Sprintf("gateway-%d", n+1), Boot: "1"}
		m := &member{id: id, holder: control.NewHolder(pool.Name, id, 0)}
		m.holder.Leased(int64(n+1), 0, lease)
		m.table = control.Share(r.arm.Table, nil, 0, false)
		g := newGate(m.table, len(requests)+1)
		g.member = m
		r.gates = append(r.gates, g)
		f.step(0, &control.Event{Kind: control.Join, Member: control.Member{ID: id, Lease: int64(n + 1)}})
	}
	for _, g := range r.gates {
		f.step(0, &control.Event{Kind: control.Reported, Report: g.demands(r.arm.Table, 0)})
	}
	for len(f.post) > 0 {
		l := f.post[0]
		f.post = f.post[1:]
		g := r.gates[l.to]
		if l.grant == nil {
			continue
		}
		if err := r.adopt(g, l.grant); err != nil {
			return err
		}
		f.step(0, &control.Event{Kind: control.Reported, Report: g.demands(r.arm.Table, 0)})
	}
	for i := range requests {
		r.flights[i].gate = f.replica(i, &requests[i], r.arm.Table)
	}
	return nil
}

// replica is where a request comes to.
func (f *fleet) replica(i int, q *trace.Entry, t *admission.Table) int32 {
	n := 0
	switch f.Spread {
	case RoundRobin:
		n = i
	case ByClass:
		n = slices.IndexFunc(t.Classes, func(c admission.ClassSpec) bool { return c.Name == q.Class })
	case BySession:
		h := fnv.New32a()
		if h.Write([]byte(q.Session)); q.Session == "" {
			h.Write([]byte(q.ID))
		}
		n = int(h.Sum32() >> 1)
	}
	return int32(max(n, 0) % f.Replicas)
}

// step gives the allocator an event, and sends what it writes.
func (f *fleet) step(now time.Duration, ev *control.Event) {
	f.fx = f.alloc.Step(control.Time(now), ev, f.fx[:0])
	for i := range f.fx {
		switch e := &f.fx[i]; e.Op {
		case control.Write:
			f.post = append(f.post, letter{at: now + f.Delay, grant: e.Grant, to: int(e.Grant.Lease) - 1})
		case control.Tell:
			for to := range f.Replicas {
				f.post = append(f.post, letter{at: now + f.Delay, news: e.News, to: to})
			}
		}
	}
}

// next is when something happens: a letter arrives, a report or a look of the
// allocator is due.
func (f *fleet) next(gates []*gate) time.Duration {
	due, _ := f.alloc.Next()
	at := time.Duration(due)
	if len(f.post) > 0 {
		at = min(at, f.post[0].at)
	}
	for _, g := range gates {
		at = min(at, g.member.due())
	}
	return at
}

// want has the demand told within a time.
func (m *member) want(now, within time.Duration) {
	if m.push = m.push || within == 0; m.soon == 0 {
		m.soon = now + within
	}
}

// due is when a member reports next, or looks whether there is something to.
func (m *member) due() time.Duration {
	at := m.sent + reportIdle
	if m.soon > 0 {
		at = min(at, m.soon)
	}
	if m.dirty {
		at = min(at, m.looked+reportEvery)
	}
	return at
}

// mail delivers what has arrived by now.
func (r *runner) mail() error {
	f := r.fleet
	for len(f.post) > 0 && f.post[0].at <= r.now {
		l := f.post[0]
		f.post = f.post[1:]
		if l.report != nil {
			f.step(r.now, &control.Event{Kind: control.Reported, Report: l.report})
			continue
		}
		if l.news != nil {
			if err := r.tell(r.gates[l.to], l.news); err != nil {
				return err
			}
			continue
		}
		if err := r.adopt(r.gates[l.to], l.grant); err != nil {
			return err
		}
	}
	if due, _ := f.alloc.Next(); time.Duration(due) <= r.now {
		f.step(r.now, &control.Event{Kind: control.Tick})
	}
	return nil
}

// adopt has a gateway take up a grant, and acknowledge it.
func (r *runner) adopt(g *gate, grant *control.Grant) error {
	m := g.member
	now := control.Time(r.now)
	if err := m.holder.Take(now, grant); err != nil {
		return fmt.Errorf("arm %s: %w", r.arm.Name, err)
	}
	m.table = control.Share(r.arm.Table, grant, control.Time(lease), true)
	m.took, m.push = r.now, true
	return r.step(g, &admission.Event{Kind: admission.Apply, Table: m.table})
}

// tell tells a gateway of the others.
func (r *runner) tell(g *gate, s *control.News) error {
	g.member.news = s.Seq
	return r.step(g, &admission.Event{Kind: admission.Told, Elsewhere: s.Elsewhere(r.arm.Table, g.member.id, admission.Time(r.now))})
}

// report sends what members have to say. over tells that no request comes any more.
func (r *runner) report(over bool) error {
	f := r.fleet
	for _, g := range r.gates {
		m := g.member
		if !m.push && m.due() > r.now {
			continue
		}
		news := g.demands(r.arm.Table, r.now)
		m.looked, m.dirty, m.push = r.now, false, m.push || m.soon > 0 && r.now >= m.soon
		if !m.push && r.now < m.sent+reportIdle && same(news, m.last) {
			m.seq--
			continue
		}
		m.push, m.soon, m.sent, m.last = false, 0, r.now, news
		f.post = append(f.post, letter{at: r.now + f.Delay, report: news})
	}
	if _, busy := r.engine.Next(); busy || r.queued == 0 || !over {
		f.idle = r.now
	}
	if r.now-f.idle > stuck {
		return fmt.Errorf("arm %s: %d requests have waited at an idle engine since %v", r.arm.Name, r.queued, f.idle)
	}
	return nil
}

// demands is a gateway's report.
func (g *gate) demands(base *admission.Table, now time.Duration) *control.Report {
	m := g.member
	m.seq++
	var d admission.Demands
	g.core.Demands(&d)
	rep := &control.Report{Seq: m.seq, News: m.news}
	rep.Fill(base, &d)
	m.holder.Report(rep)
	rep.GrantAge = now - m.took
	return rep
}

// same tells whether two reports say the same but for the time.
func same(a, b *control.Report) bool {
	still := func(r control.Report) control.Report {
		r.Seq, r.News, r.GrantAge, r.Residual = 0, 0, 0, 0
		r.Engines, r.Classes = slices.Clone(r.Engines), slices.Clone(r.Classes)
		for e := range r.Engines {
			r.Engines[e].Ends, r.Engines[e].Speed = nil, admission.Speed{}
		}
		for k := range r.Classes {
			r.Classes[k] = r.Classes[k].Still()
		}
		return r
	}
	return reflect.DeepEqual(still(*a), still(*b))
}
