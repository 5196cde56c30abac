package sim

import (
	"fmt"
	"time"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// runner is one run in progress.
type runner struct {
	arm     *Arm
	engine  *simengine.Engine
	core    *admission.Core // nil: direct
	classes map[string]admission.Class
	now     time.Duration
	run     Run
	flights []flight // by the request's index
	recalls map[uint64]int
	waits   map[int]int // recall by the index of the request it was opened for
	fx      []admission.Effect
	events  []simengine.Event
	unique  int64 // prompt tokens of the answers that have ended
}

// flight is where one request is.
type flight struct {
	engine simengine.ID
	hold   admission.Hold
	out    int32 // of this attempt
	kept   int32 // of earlier ones
	told   int32
}

// progressEvery is how many tokens pass between two reports of a hold's progress
// to the core, as in the gateway.
const progressEvery = 16

// Simulate runs a trace through an arm.
func Simulate(t *trace.Trace, arm *Arm) (*Run, error) {
	requests := t.Entries
	e, err := simengine.New(arm.Engine)
	if err != nil {
		return nil, fmt.Errorf("arm %s: %w", arm.Name, err)
	}
	r := &runner{
		arm: arm, engine: e, classes: map[string]admission.Class{}, flights: make([]flight, len(requests)),
		recalls: map[uint64]int{}, waits: map[int]int{},
	}
	if arm.Table != nil {
		r.core = admission.New(arm.Table, len(requests)+1)
		for k := range arm.Table.Classes {
			r.classes[arm.Table.Classes[k].Name] = admission.Class(k)
		}
	}
	r.run.Records = make([]Record, len(requests))
	for i, q := range requests {
		if i > 0 && q.Arrival < requests[i-1].Arrival {
			return nil, fmt.Errorf("request %s arrives at %v, before %s at %v: requests must be in the order of arrival", q.ID, q.Arrival, requests[i-1].ID, requests[i-1].Arrival)
		}
		if _, known := r.classes[q.Class]; r.core != nil && !known {
			return nil, fmt.Errorf("request %s is of class %q, which arm %s does not have", q.ID, q.Class, arm.Name)
		}
		r.run.Records[i] = Record{Entry: q, Admitted: -1, Scheduled: -1, First: -1, Done: -1}
	}
	for next := 0; ; {
		at, ok := r.next(requests, next)
		if !ok {
			break
		}
		r.now = at
		// What the engine has done by now comes before what is asked of it, as a
		// gateway would have heard of it.
		if err := r.advance(); err != nil {
			return nil, err
		}
		if r.core != nil {
			if due, ok := r.core.Next(); ok && time.Duration(due) <= at {
				if err := r.step(&admission.Event{Kind: admission.Tick}); err != nil {
					return nil, err
				}
			}
		}
		for ; next < len(requests) && requests[next].Arrival <= at; next++ {
			if err := r.arrive(next); err != nil {
				return nil, err
			}
		}
	}
	r.run.Preemptions = e.Stats().Preemptions
	r.run.Recomputed = e.Stats().PrefillTokens + e.Stats().PrefixHits - r.unique
	return &r.run, nil
}

// next is when something happens next: an arrival, a step of the engine, or,
// while there is anybody to serve, a timer of the core.
func (r *runner) next(requests []trace.Entry, next int) (at time.Duration, ok bool) {
	if next < len(requests) {
		at, ok = requests[next].Arrival, true
	}
	if t, busy := r.engine.Next(); busy && (!ok || time.Duration(t) < at) {
		at, ok = time.Duration(t), true
	}
	if r.core != nil {
		if t, due := r.core.Next(); due && (ok && time.Duration(t) < at || !ok && r.waiting()) {
			at, ok = max(time.Duration(t), r.now), true
		}
	}
	return at, ok
}

// waiting tells whether a request still waits in the core.
func (r *runner) waiting() bool {
	s := r.core.Snapshot()
	for i := range s.Classes {
		if s.Classes[i].Queue > 0 {
			return true
		}
	}
	return false
}

// arrive brings in one request.
func (r *runner) arrive(i int) error {
	q := &r.run.Records[i]
	if r.core == nil {
		q.Admitted = r.now
		return r.dispatch(i)
	}
	return r.step(&admission.Event{
		Kind: admission.Offer, ID: admission.MakeID(1, uint32(i)), Class: r.classes[q.Class],
		Prompt: int32(q.PromptTokens), Out: declared(q), N: 1,
	})
}

// declared is the output limit that a gateway would see.
func declared(r *Record) int32 {
	if r.MaxTokens == 0 {
		return admission.Undeclared
	}
	return int32(r.MaxTokens)
}

// dispatch sends a request to the engine.
func (r *runner) dispatch(i int) error {
	q := &r.run.Records[i]
	f := &r.flights[i]
	// What was kept is part of the prompt now.
	id, err := r.engine.Submit(simengine.Time(r.now), simengine.Request{
		Synthetic: q.PromptTokens + int(f.kept), Seed: uint64(i) + 1, MaxTokens: q.Output - int(f.kept), IgnoreEOS: true, Priority: r.arm.Priority[q.Class], Tag: uint64(i),
	})
	if err != nil {
		return fmt.Errorf("arm %s: request %s: %w", r.arm.Name, q.ID, err)
	}
	f.engine, f.out, f.told = id, 0, 0
	return nil
}

// step gives the core an event and does what it wants done.
func (r *runner) step(ev *admission.Event) error {
	r.fx = r.core.Step(admission.Time(r.now), ev, r.fx[:0])
	for k := 0; k < len(r.fx); k++ {
		e := r.fx[k]
		i := int(e.ID.Slot())
		switch e.Op {
		case admission.Admit:
			q := &r.run.Records[i]
			if q.Loan = e.Loan; q.Admitted < 0 {
				q.Admitted = r.now
			}
			r.flights[i].hold = e.Hold
			if err := r.dispatch(i); err != nil {
				return err
			}
		case admission.Reject:
			r.run.Records[i].Outcome, r.run.Records[i].Cause = Rejected, e.Cause.String()
		case admission.Reclaim:
			r.run.Records[i].Reclaims++
			if err := r.engine.Abort(simengine.Time(r.now), r.flights[i].engine); err != nil {
				return fmt.Errorf("arm %s: end %s: %w", r.arm.Name, r.run.Records[i].ID, err)
			}
		case admission.Stage:
			r.stage(&e)
		}
	}
	return nil
}

func (r *runner) stage(e *admission.Effect) {
	switch e.Cause {
	case admission.CauseRecallOpened:
		r.recalls[e.Seq] = len(r.run.Recalls)
		r.waits[int(e.For.Slot())] = len(r.run.Recalls)
		r.run.Recalls = append(r.run.Recalls, Recall{Class: r.arm.Table.Classes[e.Class].Name, Opened: r.now, Granted: -1, Settled: -1, Scheduled: -1})
	case admission.CauseRecallGranted:
		c := &r.run.Recalls[r.recalls[e.Seq]]
		c.Granted = r.now - c.Opened
	case admission.CauseRecallSettled:
		c := &r.run.Recalls[r.recalls[e.Seq]]
		c.Settled = r.now - c.Opened
	}
}

// advance takes in what the engine has done up to now.
func (r *runner) advance() error {
	overhead := time.Duration(r.arm.Engine.Model.Overhead * float64(time.Millisecond))
	r.events = r.engine.Advance(simengine.Time(r.now), r.events[:0])
	for k := range r.events {
		ev := &r.events[k]
		i := int(ev.Tag)
		q, f := &r.run.Records[i], &r.flights[i]
		at := time.Duration(ev.At)
		switch ev.Kind {
		case simengine.Scheduled:
			if q.Scheduled < 0 {
				q.Scheduled = at
				if c, ok := r.waits[i]; ok {
					r.run.Recalls[c].Scheduled = at - r.run.Recalls[c].Opened
				}
			}
			if r.core != nil {
				if err := r.step(&admission.Event{Kind: admission.Scheduled, Hold: f.hold, Cached: ev.Cached}); err != nil {
					return err
				}
			}
		case simengine.Generated:
			f.out = ev.Output
			if q.First < 0 {
				q.First = at + overhead
			}
			if r.core != nil && (f.told == 0 || f.out >= f.told+progressEvery) {
				f.told = f.out
				if err := r.step(&admission.Event{Kind: admission.Progress, Hold: f.hold, Out: f.out}); err != nil {
					return err
				}
			}
		case simengine.Finished:
			q.Done, q.Outcome, q.Tokens = at+overhead, Completed, int(f.kept+ev.Output)
			r.run.Makespan = max(r.run.Makespan, q.Done)
			r.unique += int64(q.PromptTokens)
			if err := r.over(f, admission.CauseFinished); err != nil {
				return err
			}
		case simengine.Aborted:
			f.kept += f.out
			if err := r.over(f, admission.CauseReclaimed); err != nil {
				return err
			}
		}
	}
	return nil
}

// over reports the end of an attempt, confirmed by the engine's own word.
func (r *runner) over(f *flight, why admission.Cause) error {
	if r.core == nil {
		return nil
	}
	return r.step(&admission.Event{Kind: admission.Ended, Hold: f.hold, Out: f.out, Flags: admission.FlagReleased | admission.FlagKept, Cause: why})
}
