// Package live runs one arm of a plan in real time: a fresh engine, the arm in
// front of it, and a generator that sends the trace's requests at the trace's
// moments, whether or not earlier ones have been answered.
//
// Everything is timed from the moment at which a request should have been sent,
// on the monotonic clock of this process. The engine and the arm are processes of
// their own, so that the generator's processor time and its collector's pauses are
// its own; both end with this process, however it ends.
//
// What is seen beside the requests is Evidence for the plan's gates and decides
// nothing here. What an arm that is a gateway of ours did with its holds and
// recalls is read from its journal when it has stopped.
package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"headgate/bench"
	"headgate/trace"
)

// Runner runs arms in real time.
type Runner struct {
	// Headgate is this program: what serves the simulated engine, and the arms with a
	// policy.
	Headgate string
	// Policy is the default policy, in the form of a policy's file.
	Policy string
}

// Takes implements bench.Runner.
func (r *Runner) Takes(t *trace.Trace) time.Duration { return t.Workload.Duration() + 3*time.Second }

// Run implements bench.Runner.
func (r *Runner) Run(ctx context.Context, j *bench.Job) (o *bench.Observed, err error) {
	dir, err := os.MkdirTemp("", "headgate-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	e, err := r.startEngine(ctx, j)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	a, err := r.startArm(ctx, j, e, dir)
	if err != nil {
		return nil, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, a.stop())
		}
	}()
	run := newRun(j, e, a)
	if err := run.prime(ctx); err != nil {
		return nil, fmt.Errorf("before the run: %w", err)
	}
	before := e.settled(ctx)
	// A generator is small, and stopped by its collector all the same; one that
	// collects a sixteenth as often is stopped so much less.
	defer debug.SetGCPercent(debug.SetGCPercent(1600))
	host := beginHost()
	probe := e.watch(ctx)
	start := time.Now()
	if err := run.all(ctx, start); err != nil {
		probe.stop()
		return nil, err
	}
	real := host.end()
	gauges := probe.stop()
	after := e.sample(ctx)
	stopped = true
	if err := a.stop(); err != nil {
		return nil, err
	}

	o = &bench.Observed{Facts: e.facts(before, after), Gauges: points(gauges, start)}
	o.Evidence.Real = real
	if before.running != nil {
		n := *before.running + *before.waiting
		n = max(n, run.foreign(gauges, start))
		real.Running = &n
	}
	all := append(append([]sample{before}, gauges...), after)
	real.CanRestart, real.Restarted = e.restarted(all)
	if a.journal != "" {
		if err := fromJournal(a.journal, start, run, o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// foreign is how many requests the engine had for a second or longer that are not
// ours. Ours are all that have been sent and have no end, with a second more at both
// ends: a gateway's attempts begin and end within that, and an engine is a little late
// with what it tells. Gauges of an engine that makes no tokens may be stuck at what
// they were, so they are not looked at.
func (r *run) foreign(samples []sample, start time.Time) float64 {
	const slack = time.Second
	within := int(slack/bench.TimelineEvery) + 1
	var over []float64
	most := 0.0
	for k := 1; k < len(samples); k++ {
		s, before := &samples[k], &samples[k-1]
		if s.generated == nil || before.generated == nil || *s.generated <= *before.generated {
			over = nil
			continue
		}
		ours := 0
		for i := range r.job.Lines {
			l := &r.job.Lines[i]
			if l.SentMS != nil && millis(s.at.Sub(start)) >= *l.SentMS-millis(slack) && s.at.Before(r.ended[i].Add(slack)) {
				ours++
			}
		}
		if over = append(over, *s.running+*s.waiting-float64(ours)); len(over) >= within {
			most = max(most, slices.Min(over[len(over)-within:]))
		}
	}
	return most
}

// points are samples as a timeline has them.
func points(samples []sample, start time.Time) []bench.Point {
	var all []bench.Point
	for _, s := range samples {
		all = append(all, bench.Point{AtMS: millis(s.at.Sub(start)), EngineRunning: s.running, EngineWaiting: s.waiting, KVUse: s.kv})
	}
	slices.SortFunc(all, func(a, b bench.Point) int { return int(a.AtMS - b.AtMS) })
	return all
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
