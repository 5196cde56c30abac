package batch

import (
	"cmp"
	"slices"
	"time"
)

// Pace bounds what a Scheduler has under way.
type Pace struct {
	Concurrency int // items under way, of all classes
	Ahead       int // of a class, those that admission has not let start yet
	// Quantum is how many items of one batch come after each other, so that equal prompt
	// beginnings meet in the engine's cache. It is what fairness is owed late.
	Quantum int
	// Reopen is how long nothing of a class starts, though something waits, until its gate is
	// taken to have been closed.
	Reopen time.Duration
}

// Pick is what to claim next: up to N items of a batch, from a prefix on.
type Pick struct {
	Batch string
	N     int
	After uint64
}

// Scheduler says what to claim next. It is pure: told of what there is and what happens,
// it reads no clock and does nothing itself.
//
// # Tenants, batches, prefixes
//
// Within a class the tenant goes first that was served least, in tokens: what a claim is
// expected to cost is charged at once, and set right when it ends (virtual token
// counters, Sheng et al. 2024; an output token counts as two of the prompt). A tenant that
// comes back is lifted to the least of those that are there: what it left unused is not saved
// up. Within a tenant its batches are served the same way, each by its weight. A batch on
// schedule weighs 1: the part of its items that is left is no larger than the part of its
// window that is left. One behind weighs the quotient of the two, which grows without bound
// as the window ends. So a batch in need takes from its own tenant's batches, up to all that the tenant
// gets, and never from another tenant.
//
// A batch that is picked is stayed with for some items, which the store gives out in the
// order of their prefixes, once around. No prefix waits for more than that round.
//
// # Pacing
//
// What waits in admission's queue when its gate opens starts at once, and everything
// behind it could follow in a burst. So only a window of items is ahead: it is 1 at first and after the gate was
// closed, and grows by one with each item that starts. The gate is taken to have been
// closed by a refusal, until the hint that came with it, or when nothing started for a
// while.
//
// # Alternatives
//
// Earliest deadline first lets one tenant with short windows starve all others. Weights for deadlines
// among tenants would pay who asks for short windows. A claim of single items in turn
// is fairer by some items and gives every other prompt a cold cache.
type Scheduler struct {
	pace    Pace
	lanes   []*lane
	flights map[flightKey]*flight
}

// lane is one class.
type lane struct {
	class   string
	tenants []*tenant
	flights int // under way
	queued  int // of them, not started
	window  int
	// closed is until when nothing is claimed. stalled is since when something waits and
	// nothing started; zero while nothing waits.
	closed, stalled time.Time

	run     *entry // the batch that is stayed with
	runLeft int    // items of it
}

type tenant struct {
	name    string
	served  float64
	active  bool
	flights int
	batches []*entry
	closed  time.Time // until when nothing of it is claimed
}

// entry is one batch.
type entry struct {
	Waiting
	listed  bool
	served  float64 // by weight
	active  bool
	flights int
	after   uint64
	output  float64 // tokens that an item is expected to come to
	closed  time.Time
}

// open tells that something of it can be claimed, as far as it is the batch's.
func (e *entry) open(now time.Time) bool { return e.Ready > 0 && !e.closed.After(now) }

type flightKey struct {
	batch string
	line  int64
}

type flight struct {
	lane    *lane
	tenant  *tenant
	batch   *entry
	charge  float64
	weight  float64
	started bool
}

const (
	// outputWeight is what a token of the output costs in tokens of the prompt, as in the
	// paper.
	outputWeight = 2
	// firstOutput is what an item is expected to come to before one has ended, in tokens.
	firstOutput = 128
	// refused is how long a gate stays closed after a refusal without a hint.
	refused = time.Second
)

// NewScheduler returns a scheduler that has nothing to do.
func NewScheduler(p Pace) *Scheduler {
	return &Scheduler{pace: p, flights: map[flightKey]*flight{}}
}

// Waiting replaces what the scheduler knows of batches that can be run.
func (s *Scheduler) Waiting(all []Waiting) {
	for _, l := range s.lanes {
		for _, t := range l.tenants {
			for _, e := range t.batches {
				e.listed, e.Ready = false, 0
			}
		}
	}
	for _, w := range all {
		t := s.lane(w.Class).tenant(w.Tenant)
		i := slices.IndexFunc(t.batches, func(e *entry) bool { return e.Batch == w.Batch })
		if i < 0 {
			i = len(t.batches)
			t.batches = append(t.batches, &entry{output: firstOutput})
		}
		t.batches[i].Waiting, t.batches[i].listed = w, true
	}
	for _, l := range s.lanes {
		l.settle()
	}
}

func (s *Scheduler) lane(class string) *lane {
	for _, l := range s.lanes {
		if l.class == class {
			return l
		}
	}
	l := &lane{class: class, window: 1}
	s.lanes = append(s.lanes, l)
	return l
}

func (l *lane) tenant(name string) *tenant {
	for _, t := range l.tenants {
		if t.name == name {
			return t
		}
	}
	t := &tenant{name: name}
	l.tenants = append(l.tenants, t)
	return t
}

// settle lifts who became active, and forgets who is gone and would be lifted on return.
func (l *lane) settle() {
	for _, t := range l.tenants {
		t.batches = slices.DeleteFunc(t.batches, func(e *entry) bool { return !e.listed && e.flights == 0 })
		lift(t.batches, func(e *entry) (*float64, *bool, bool) { return &e.served, &e.active, e.Ready > 0 || e.flights > 0 })
	}
	least, any := lift(l.tenants, func(t *tenant) (*float64, *bool, bool) {
		return &t.served, &t.active, t.flights > 0 || slices.ContainsFunc(t.batches, func(e *entry) bool { return e.Ready > 0 })
	})
	l.tenants = slices.DeleteFunc(l.tenants, func(t *tenant) bool {
		return len(t.batches) == 0 && t.flights == 0 && (!any || t.served <= least)
	})
	if l.run != nil && !l.run.listed {
		l.run = nil
	}
}

// lift raises what those were served that become active to the least of those that were; any
// tells whether there is one that is active.
func lift[T any](all []T, of func(T) (served *float64, active *bool, now bool)) (least float64, any bool) {
	for _, v := range all {
		if served, active, now := of(v); *active && now && (!any || *served < least) {
			least, any = *served, true
		}
	}
	found := any
	for _, v := range all {
		served, active, now := of(v)
		if now && !*active && found {
			*served = max(*served, least)
		}
		any = any || now
		*active = now
	}
	return least, any
}

// weight is how much of its tenant's share a batch is to have, at least 1.
func (e *entry) weight(now time.Time) float64 {
	const most = 1e6 // at the window's very end
	window, left := e.Deadline.Sub(e.Created), e.Deadline.Sub(now)
	if e.Total <= 0 || window <= 0 {
		return 1
	}
	items := float64(e.Total-e.Done) / float64(e.Total)
	return min(max(1, items/max(left.Seconds()/window.Seconds(), 1/most)), most)
}

// Next says what to claim now, if anything. Else at is when time alone changes that; it is
// zero where only events do.
func (s *Scheduler) Next(now time.Time) (p Pick, ok bool, at time.Time) {
	sooner := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	var best *lane
	for _, l := range s.lanes {
		ready := false
		for _, t := range l.tenants {
			waits := t.closed.After(now)
			if waits {
				sooner(t.closed)
			}
			for _, e := range t.batches {
				ready = ready || e.open(now) && !waits
				sooner(e.Next)
				if e.Ready > 0 {
					sooner(e.closed)
				}
			}
		}
		if !ready {
			continue
		}
		if l.closed.After(now) {
			sooner(l.closed)
			continue
		}
		if l.queued < l.window && (best == nil || l.flights < best.flights) {
			best = l
		}
	}
	room := s.pace.Concurrency - len(s.flights)
	if best == nil || room <= 0 {
		return p, false, at
	}
	e := best.choose(now, s.pace.Quantum)
	return Pick{Batch: e.Batch, N: int(min(int64(room), int64(best.window-best.queued), int64(best.runLeft), e.Ready)), After: e.after}, true, now
}

// choose returns the batch that is next. There is one that is ready.
func (l *lane) choose(now time.Time, quantum int) *entry {
	if l.run != nil && l.runLeft > 0 && l.run.open(now) && !l.tenant(l.run.Tenant).closed.After(now) {
		return l.run
	}
	var first *tenant
	for _, t := range l.tenants {
		if t.closed.After(now) {
			continue
		}
		if slices.ContainsFunc(t.batches, func(e *entry) bool { return e.open(now) }) && (first == nil || t.served < first.served) {
			first = t
		}
	}
	l.run, l.runLeft = nil, quantum
	for _, e := range first.batches {
		if e.open(now) && (l.run == nil || e.served < l.run.served) {
			l.run = e
		}
	}
	return l.run
}

// Claimed says what came of a pick. Fewer items than it named mean that others were faster,
// and that there are no more.
func (s *Scheduler) Claimed(now time.Time, p Pick, claims []Claim) {
	l, t, e := s.find(p.Batch)
	if e == nil {
		return
	}
	if e.Ready -= int64(len(claims)); len(claims) < p.N {
		e.Ready = 0
	}
	if l.run == e {
		l.runLeft -= len(claims)
	}
	weight := e.weight(now)
	for _, c := range claims {
		charge := float64(c.Tokens) + outputWeight*e.output
		s.flights[flightKey{c.Batch, c.Line}] = &flight{lane: l, tenant: t, batch: e, charge: charge, weight: weight}
		if l.queued == 0 {
			l.stalled = now
		}
		l.queued++
		l.flights++
		t.flights++
		e.flights++
		t.served += charge
		e.served += charge / weight
		e.after = c.Prefix
	}
}

func (s *Scheduler) find(id string) (*lane, *tenant, *entry) {
	for _, l := range s.lanes {
		for _, t := range l.tenants {
			for _, e := range t.batches {
				if e.Batch == id {
					return l, t, e
				}
			}
		}
	}
	return nil, nil, nil
}

// Started says that admission let an item start, for the first time or again.
func (s *Scheduler) Started(now time.Time, batch string, line int64) {
	f := s.flights[flightKey{batch, line}]
	if f == nil {
		return
	}
	l := f.lane
	if !l.stalled.IsZero() && now.Sub(l.stalled) >= s.pace.Reopen {
		l.window = 1
	} else {
		l.window = min(l.window+1, s.pace.Ahead)
	}
	if !f.started {
		f.started = true
		l.queued--
	}
	if l.stalled = now; l.queued == 0 {
		l.stalled = time.Time{}
	}
}

// Ended says what an item came to, in tokens: of the prompt, and generated. One that never
// started costs nothing.
func (s *Scheduler) Ended(batch string, line, prompt, output int64) {
	k := flightKey{batch, line}
	f := s.flights[k]
	if f == nil {
		return
	}
	delete(s.flights, k)
	l := f.lane
	l.flights--
	f.tenant.flights--
	f.batch.flights--
	if !f.started {
		if l.queued--; l.queued == 0 {
			l.stalled = time.Time{}
		}
	}
	cost := float64(prompt + outputWeight*output)
	f.tenant.served += cost - f.charge
	f.batch.served += (cost - f.charge) / f.weight
	if output > 0 {
		f.batch.output += (float64(output) - f.batch.output) / 8
	}
}

// Refused says that nothing of an item ran. Nothing of those whom it is of is claimed until the
// hint, 0 where there was none: all of its class, whose gate then opens slowly, or its tenant or its
// batch alone, and the gate stays open for others.
func (s *Scheduler) Refused(now time.Time, batch string, line int64, of Refusal, hint time.Duration) {
	f := s.flights[flightKey{batch, line}]
	if f == nil {
		return
	}
	s.Ended(batch, line, 0, 0)
	closed := &f.lane.closed
	switch of {
	case RefusedTenant:
		closed = &f.tenant.closed
	case RefusedBatch:
		closed = &f.batch.closed
	default:
		f.lane.window = 1
	}
	if until := now.Add(cmp.Or(hint, refused)); until.After(*closed) {
		*closed = until
	}
}
