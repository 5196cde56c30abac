package sim

import (
	"fmt"
	"slices"
	"time"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// runner is one run in progress.
type runner struct {
	arm      *Arm
	engine   *simengine.Engine
	gates    []*gate // none: direct
	fleet    *fleet  // what the gates share the engine by; nil where there is one that owns it
	classes  map[string]admission.Class
	now      time.Duration
	run      Run
	flights  []flight // by the request's index
	queued   int      // requests that wait in a core
	attempts []attempt
	timers   []timer           // of clients, in the order in which they are due
	waits    map[int]int       // recall by the index of the request it was opened for
	sessions map[string]uint32 // numbers, by name
	fx       []admission.Effect
	events   []simengine.Event

	books     *books // of the tenants' limits; nil: there are none
	backlog   *Backlog
	recorded  int      // requests of the trace; those of the backlog are behind them
	occupants []int32  // of the backlog's slots in the core, by slot
	turns     []uint32 // generations of these slots
	due       []refill // by time
	offered   int      // requests of the backlog so far

	prefilling []int32 // attempts with prompt left to compute, in the order in which the engine took them
	prefilled  int64   // tokens by the engine's own count
}

// gate is one gateway: a core, and what it has sent to the engine.
type gate struct {
	core    *admission.Core
	holds   map[admission.Hold]int32 // attempts by the holds they run under
	recalls map[uint64]int
	member  *member // of a fleet; nil where the core owns the engine
}

func newGate(t *admission.Table, capacity int) *gate {
	return &gate{core: admission.New(t, capacity), holds: map[admission.Hold]int32{}, recalls: map[uint64]int{}}
}

// flight is where one request is.
type flight struct {
	id      admission.ID
	gate    int32
	kept    int32 // tokens of output from earlier attempts
	attempt int32 // at the engine, counted from 1; 0 is none
	refused int32 // times, by the engine
	queued  bool
	gone    bool // its client is
}

// attempt is one request at the engine.
type attempt struct {
	request int32
	piece   bool // it only warms the beginning of the prompt
	engine  simengine.ID
	hold    admission.Hold
	prompt  int32
	left    int32 // tokens to prefill before it generates
	out     int32
	told    int32
	from    time.Duration
	loan    bool
	ended   bool // by force
}

// progressEvery is how many tokens pass between two reports of a hold's progress
// to the core, as in the gateway.
const progressEvery = 16

// Simulate runs a trace through an arm.
func Simulate(t *trace.Trace, arm *Arm) (*Run, error) { return SimulateWith(t, arm, nil) }

// SimulateWith does so with a backlog beside the trace, nil for none. The backlog's
// requests are the records behind the trace's.
func SimulateWith(t *trace.Trace, arm *Arm, b *Backlog) (*Run, error) {
	r, err := simulation(t, arm, b)
	if err != nil {
		return nil, err
	}
	if err := r.all(t.Entries); err != nil {
		return nil, err
	}
	return &r.run, nil
}

// simulation is a run that has not begun.
func simulation(t *trace.Trace, arm *Arm, b *Backlog) (*runner, error) {
	requests := t.Entries
	e, err := simengine.New(arm.Engine)
	if err != nil {
		return nil, fmt.Errorf("arm %s: %w", arm.Name, err)
	}
	r := &runner{
		arm: arm, engine: e, classes: map[string]admission.Class{}, flights: make([]flight, len(requests)),
		waits: map[int]int{}, sessions: map[string]uint32{}, recorded: len(requests),
	}
	if t := arm.Tenants; t != nil {
		if len(t.Of) != len(requests) || b != nil {
			return nil, fmt.Errorf("arm %s: %d tenants for %d requests: allowed is one for each, and no backlog beside them", arm.Name, len(t.Of), len(requests))
		}
		r.books = newBooks(t, len(requests))
	}
	if arm.Table != nil {
		for k := range arm.Table.Classes {
			r.classes[arm.Table.Classes[k].Name] = admission.Class(k)
		}
	}
	if err := r.stock(b); err != nil {
		return nil, fmt.Errorf("arm %s: %w", arm.Name, err)
	}
	if arm.Table != nil {
		if arm.Fleet != nil {
			if err := r.found(requests); err != nil {
				return nil, fmt.Errorf("arm %s: %w", arm.Name, err)
			}
		} else {
			r.gates = []*gate{newGate(arm.Table, len(requests)+len(r.occupants)+1)}
		}
	}
	r.run.Records = make([]Record, len(requests))
	for i, q := range requests {
		if i > 0 && q.Arrival < requests[i-1].Arrival {
			return nil, fmt.Errorf("request %s arrives at %v, before %s at %v: requests must be in the order of arrival", q.ID, q.Arrival, requests[i-1].ID, requests[i-1].Arrival)
		}
		if _, known := r.classes[q.Class]; r.gates != nil && !known {
			return nil, arm.lacks(&q)
		}
		r.run.Records[i] = Record{Entry: q, Admitted: -1, Scheduled: -1, First: -1, Done: -1}
		r.flights[i].id = admission.MakeID(1, uint32(i))
	}
	return r, nil
}

// stopEvery is after how many moments of a run Stop is asked: some tens of microseconds.
const stopEvery = 64

// all runs everything to its end.
func (r *runner) all(requests []trace.Entry) error {
	for next, steps := 0, 0; ; steps++ {
		at, ok := r.next(requests, next)
		if !ok {
			break
		}
		if steps%stopEvery == 0 && r.arm.Stop != nil {
			if err := r.arm.Stop(); err != nil {
				return fmt.Errorf("arm %s, stopped at %v of its time: %w", r.arm.Name, r.now, err)
			}
		}
		r.now = at
		// What the engine has done by now comes before what is asked of it, as a
		// gateway would have heard of it.
		if err := r.advance(); err != nil {
			return err
		}
		if r.fleet != nil {
			if err := r.mail(); err != nil {
				return err
			}
		}
		for _, g := range r.gates {
			if due, ok := g.core.Next(); ok && time.Duration(due) <= at {
				if err := r.step(g, &admission.Event{Kind: admission.Tick}); err != nil {
					return err
				}
			}
		}
		if err := r.clients(); err != nil {
			return err
		}
		for ; next < len(requests) && requests[next].Arrival <= at; next++ {
			if err := r.arrive(next); err != nil {
				return err
			}
		}
		if err := r.refill(); err != nil {
			return err
		}
		if r.fleet != nil {
			if err := r.report(next == len(requests)); err != nil {
				return err
			}
		}
	}
	for i := range r.run.Records {
		r.run.Preemptions += int64(r.run.Records[i].Preemptions)
		r.run.Recomputed += int64(r.run.Records[i].Recomputed())
	}
	return nil
}

// next is when something happens next: an arrival, a step of the engine, what a
// client does, or, while there is anybody to serve, a timer of a core or of the
// fleet.
func (r *runner) next(requests []trace.Entry, next int) (at time.Duration, ok bool) {
	if next < len(requests) {
		at, ok = requests[next].Arrival, true
	}
	if t, busy := r.engine.Next(); busy && (!ok || time.Duration(t) < at) {
		at, ok = time.Duration(t), true
	}
	if len(r.timers) > 0 && (!ok || r.timers[0].at < at) {
		at, ok = r.timers[0].at, true
	}
	if len(r.due) > 0 && (!ok || r.due[0].at < at) {
		at, ok = max(r.due[0].at, r.now), true
	}
	serves := ok || r.queued > 0
	sooner := func(t time.Duration) {
		if serves && (!ok || t < at) {
			at, ok = max(t, r.now), true
		}
	}
	for _, g := range r.gates {
		if t, due := g.core.Next(); due {
			sooner(time.Duration(t))
		}
	}
	if r.fleet != nil {
		sooner(r.fleet.next(r.gates))
	}
	return at, ok
}

// arrive brings in one request.
func (r *runner) arrive(i int) error {
	q := &r.run.Records[i]
	if wait, ok := r.arm.Clients.Patience[q.Class]; ok {
		r.later(timer{at: r.now + wait, request: i, leaves: true})
	}
	if r.gates == nil {
		return r.submit(i)
	}
	if why := r.reserve(i); why != "" {
		q.Outcome, q.Cause = Rejected, why
		r.gone(i, refusedPause)
		return nil
	}
	return r.step(r.gate(i), &admission.Event{
		Kind: admission.Offer, ID: r.flights[i].id, Tenant: r.tenant(i), Class: r.classes[q.Class],
		Prompt: int32(q.PromptTokens), Out: declared(q), N: 1, Session: r.session(i),
	})
}

// gate is the one that a request came to.
func (r *runner) gate(i int) *gate { return r.gates[r.flights[i].gate] }

// session is the number of a request's session, 0 if it has none.
func (r *runner) session(i int) uint32 {
	name := r.run.Records[i].Session
	if name == "" {
		return 0
	}
	n, ok := r.sessions[name]
	if !ok {
		n = uint32(len(r.sessions) + 1)
		r.sessions[name] = n
	}
	return n
}

// seed names a request's text. Those of one session begin alike.
func (r *runner) seed(i int) uint64 {
	if n := r.session(i); n != 0 {
		return uint64(n) << 32
	}
	return uint64(i) + 1
}

// declared is the output limit that a gateway would see.
func declared(r *Record) int32 {
	if r.MaxTokens == 0 {
		return admission.Undeclared
	}
	return int32(r.MaxTokens)
}

// dispatch sends a request to the engine under a hold, or of its prompt only the
// first piece tokens, for one token, if that is not 0.
func (r *runner) dispatch(g *gate, i int, hold admission.Hold, piece int64) error {
	q := &r.run.Records[i]
	kept := int(r.flights[i].kept)
	// What was kept is part of the prompt now.
	submit := simengine.Request{
		Synthetic: q.PromptTokens + kept, Seed: r.seed(i), MaxTokens: q.Output - kept, IgnoreEOS: true, Priority: r.arm.Priority[q.Class], Tag: uint64(len(r.attempts)),
	}
	if piece > 0 {
		submit.Synthetic, submit.MaxTokens = int(piece), 1
	}
	if g != nil && r.full() {
		return fmt.Errorf("arm %s: request %s is one too many for an engine of at most %d: allowed is a bound that admission stays below", r.arm.Name, q.ID, r.arm.MaxQueued)
	}
	id, err := r.engine.Submit(simengine.Time(r.now), submit)
	if err != nil {
		return fmt.Errorf("arm %s: request %s: %w", r.arm.Name, q.ID, err)
	}
	if g != nil {
		g.holds[hold] = int32(len(r.attempts))
	}
	r.flights[i].attempt = int32(len(r.attempts) + 1)
	r.attempts = append(r.attempts, attempt{request: int32(i), piece: piece > 0, engine: id, hold: hold, prompt: int32(submit.Synthetic), from: r.now})
	return nil
}

// step gives a core an event and does what it wants done.
func (r *runner) step(g *gate, ev *admission.Event) error {
	r.fx = g.core.Step(admission.Time(r.now), ev, r.fx[:0])
	if g.member != nil {
		g.member.dirty = true
	}
	for k := 0; k < len(r.fx); k++ {
		if err := r.do(g, &r.fx[k]); err != nil {
			return err
		}
	}
	return nil
}

// do carries out one effect.
func (r *runner) do(g *gate, e *admission.Effect) error {
	i := r.index(e.ID)
	switch e.Op {
	case admission.Queued:
		r.await(i, true)
	case admission.Admit:
		r.await(i, false)
		q := &r.run.Records[i]
		if q.Loan = e.Loan; q.Admitted < 0 {
			q.Admitted = r.now
		}
		if err := r.dispatch(g, i, e.Hold, 0); err != nil {
			return err
		}
		r.attempts[len(r.attempts)-1].loan = e.Loan
	case admission.Warm:
		r.await(i, false)
		return r.dispatch(g, i, e.Hold, e.Tokens)
	case admission.Reject:
		r.await(i, false)
		r.run.Records[i].Outcome, r.run.Records[i].Cause = Rejected, e.Cause.String()
		r.settle(i)
		r.gone(i, refusedPause)
	case admission.Done:
		r.await(i, false)
		if q := &r.run.Records[i]; e.Cause != admission.CauseFinished {
			q.Outcome, q.Cause = Failed, e.Cause.String()
		}
		r.settle(i)
		r.gone(i, 0)
	case admission.Reclaim:
		q := &r.run.Records[i]
		q.Reclaims++
		// What is ended for a request that found a recall open counts for that.
		c, own := r.waits[r.index(e.For)]
		if !own {
			c = len(r.run.Recalls) - 1
		}
		if c >= 0 {
			r.run.Recalls[c].Reclaims++
		}
		r.attempts[g.holds[e.Hold]].ended = true
		if err := r.engine.Abort(simengine.Time(r.now), r.attempts[g.holds[e.Hold]].engine); err != nil {
			return fmt.Errorf("arm %s: end %s: %w", r.arm.Name, q.ID, err)
		}
	case admission.Stage:
		r.stage(g, e)
	case admission.Demand:
		g.member.want(r.now, time.Duration(e.Retry))
	}
	return nil
}

// await notes whether a request waits in the core.
func (r *runner) await(i int, now bool) {
	f := &r.flights[i]
	switch {
	case now && !f.queued:
		r.queued++
	case !now && f.queued:
		r.queued--
	}
	f.queued = now
}

func (r *runner) stage(g *gate, e *admission.Effect) {
	switch e.Cause {
	case admission.CauseRecallOpened:
		g.recalls[e.Seq] = len(r.run.Recalls)
		r.waits[r.index(e.For)] = len(r.run.Recalls)
		r.run.Recalls = append(r.run.Recalls, Recall{Class: r.arm.Table.Classes[e.Class].Name, Opened: r.now, Granted: -1, Settled: -1, Scheduled: -1})
	case admission.CauseRecallGranted:
		c := &r.run.Recalls[g.recalls[e.Seq]]
		c.Granted = r.now - c.Opened
	case admission.CauseRecallSettled:
		c := &r.run.Recalls[g.recalls[e.Seq]]
		c.Settled = r.now - c.Opened
	}
}

// advance takes in what the engine has done up to now.
func (r *runner) advance() error {
	r.events = r.engine.Advance(simengine.Time(r.now), r.events[:0])
	for k := range r.events {
		if err := r.take(&r.events[k]); err != nil {
			return err
		}
	}
	r.tally()
	return nil
}

// take takes in one event of the engine.
func (r *runner) take(ev *simengine.Event) error {
	a := &r.attempts[ev.Tag]
	i := int(a.request)
	q, f := &r.run.Records[i], &r.flights[i]
	at := time.Duration(ev.At)
	seen := at + time.Duration(r.arm.Engine.Model.Overhead*float64(time.Millisecond)) // by the client
	switch ev.Kind {
	case simengine.Scheduled:
		a.left = a.prompt + ev.Output - ev.Cached
		r.prefilling = append(r.prefilling, int32(ev.Tag))
		if !a.piece && q.Scheduled < 0 {
			q.Scheduled = at
			if c, ok := r.waits[i]; ok {
				r.run.Recalls[c].Scheduled = at - r.run.Recalls[c].Opened
			}
		}
		if r.gates != nil {
			return r.step(r.gate(i), &admission.Event{Kind: admission.Scheduled, Hold: a.hold, Cached: ev.Cached, Flags: admission.FlagCounted})
		}
	case simengine.Preempted:
		q.Preemptions++
		r.stopped(int32(ev.Tag))
	case simengine.Generated:
		a.out = ev.Output
		if !a.piece && !f.gone && q.First < 0 {
			q.First = seen
		}
		if r.gates != nil && (a.told == 0 || a.out >= a.told+progressEvery) {
			a.told = a.out
			r.uses(i, f.kept+a.out)
			return r.step(r.gate(i), &admission.Event{Kind: admission.Progress, Hold: a.hold, Out: a.out})
		}
	case simengine.Finished:
		if !a.piece && !f.gone {
			q.Done, q.Outcome, q.Tokens = seen, Completed, int(f.kept+ev.Output)
			r.run.Makespan = max(r.run.Makespan, q.Done)
		}
		return r.over(int32(ev.Tag), admission.CauseFinished)
	case simengine.Aborted:
		if !a.piece {
			f.kept += a.out
		}
		return r.over(int32(ev.Tag), admission.CauseReclaimed)
	case simengine.Failed:
		if q.Tokens = int(f.kept + ev.Output); r.gates == nil {
			q.Outcome, q.Cause = Failed, admission.CauseFailed.String()
		}
		return r.over(int32(ev.Tag), admission.CauseFailed)
	}
	return nil
}

// over reports the end of an attempt, confirmed by the engine's own word.
func (r *runner) over(tag int32, why admission.Cause) error {
	r.stopped(tag)
	a := &r.attempts[tag]
	f := &r.flights[a.request]
	f.attempt = 0
	if f.gone && why != admission.CauseFinished {
		why = admission.CauseClientGone
	}
	if r.gates == nil {
		r.gone(int(a.request), 0)
		return nil
	}
	g := r.gate(int(a.request))
	delete(g.holds, a.hold)
	r.run.Holds = append(r.run.Holds, Hold{Request: int(a.request), From: a.from, To: r.now, Loan: a.loan, Reclaimed: a.ended})
	flags := uint8(admission.FlagReleased)
	if why != admission.CauseFailed {
		flags |= admission.FlagKept
	}
	return r.step(g, &admission.Event{Kind: admission.Ended, Hold: a.hold, Out: a.out, Flags: flags, Cause: why})
}

// stopped notes that the engine computes nothing for an attempt any more.
func (r *runner) stopped(tag int32) {
	if at := slices.Index(r.prefilling, tag); at >= 0 {
		r.prefilling = slices.Delete(r.prefilling, at, at+1)
	}
}

// tally gives what the engine has prefilled in the step that it has just begun to
// the requests that it was for. The engine counts it in one sum, and hands it out
// in the order of admission, to each as much as is left of its prompt or as one
// may have of a step.
func (r *runner) tally() {
	total := r.engine.Stats().PrefillTokens
	step := int32(total - r.prefilled)
	r.prefilled = total
	kept := r.prefilling[:0]
	for _, tag := range r.prefilling {
		a := &r.attempts[tag]
		n := min(a.left, step)
		if most := r.arm.Engine.LongPrefillThreshold; most > 0 {
			n = min(n, int32(most))
		}
		a.left -= n
		step -= n
		r.run.Records[a.request].Prefilled += int(n)
		if a.left > 0 {
			kept = append(kept, tag)
		}
	}
	r.prefilling = kept
}
