package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

// made is a runner whose treatment is always better; it fails when told to.
type made struct {
	ran     []string
	failAt  int // of all runs that it is asked for, from 1; 0 never
	invalid string
}

func (m *made) Takes(*trace.Trace) time.Duration { return time.Second }

func (m *made) Run(_ context.Context, j *Job) (*Observed, error) {
	m.ran = append(m.ran, j.Source.Name+"/"+j.Arm.Name)
	if len(m.ran) == m.failAt {
		return nil, errors.New("the engine did not start")
	}
	for i := range j.Lines {
		l := &j.Lines[i]
		l.Outcome, l.Output, l.SentMS = sim.Completed, j.Trace.Entries[i].Output, l.ArrivalMS
		l.FirstTokenMS, l.DoneMS = at(*l.ArrivalMS+6000), at(*l.ArrivalMS+7000)
		if j.Arm.Name == "headgate" {
			l.FirstTokenMS = at(*l.ArrivalMS + 1000)
		}
		if j.Source.Name+"/"+j.Arm.Name == m.invalid && i == 0 {
			l.Output++ // a forced length is not met
		}
	}
	return &Observed{}, nil
}

func executor(t *testing.T, dir, change string, r Runner) *Executor {
	t.Helper()
	text := samplePlan
	if change != "" {
		text = strings.Replace(text, "seeds: 1-4", "seeds: 1-12", 1) + change
	}
	p, err := Parse("plan.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Create(dir, p, Manifest{Runner: p.Runner, Version: "v"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return &Executor{Plan: p, Workloads: w, Dir: d, Runner: r}
}

// TestExecuteGoesOn: a comparison that was cut off runs what is missing, in the
// order of one that was not, and runs nothing twice.
func TestExecuteGoesOn(t *testing.T) {
	whole := &made{}
	if err := executor(t, t.TempDir(), "", whole).Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(whole.ran) != 8 {
		t.Fatalf("ran %v, want 4 sources through 2 arms", whole.ran)
	}
	dir := t.TempDir()
	cut := &made{failAt: 4}
	first := executor(t, dir, "", cut)
	if err := first.Execute(t.Context()); err == nil || !strings.Contains(err.Error(), "the engine did not start") {
		t.Fatalf("a run that failed: %v", err)
	}
	if err := first.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	// A process that dies between a run's two files leaves the first.
	if err := os.WriteFile(filepath.Join(dir, "runs", "004-x-y.requests.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rest := &made{}
	x := executor(t, dir, "", rest)
	if err := x.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := slices.Concat(cut.ran[:3], rest.ran); !slices.Equal(got, whole.ran) {
		t.Errorf("ran %v and then %v, want %v", cut.ran[:3], rest.ran, whole.ran)
	}
	if err := x.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	again := &made{}
	if err := executor(t, dir, "", again).Execute(t.Context()); err != nil || len(again.ran) != 0 {
		t.Errorf("ran %v of a comparison that was over, %v", again.ran, err)
	}
	results, err := x.Dir.Results()
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if got := r.Source.Name + "/" + r.Arm; got != whole.ran[i] || len(r.Invalid()) > 0 {
			t.Errorf("result %d is of %s, want %s; invalid for %v", i, got, whole.ran[i], r.Invalid())
		}
	}
}

// TestExecuteKeepsInvalidRuns: an invalid run is kept and not repeated, and its
// pair does not count.
func TestExecuteKeepsInvalidRuns(t *testing.T) {
	x := executor(t, t.TempDir(), "", &made{invalid: "seed2/priority"})
	if err := x.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	results, err := x.Dir.Results()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Differences(x.Plan, x.Dir, results, "on_time_share")
	if err != nil || len(results) != 8 || !slices.Equal(d, []float64{1, 1, 1}) {
		t.Errorf("%d results, differences %v, %v, want 8 and three of 1", len(results), d, err)
	}
	if pairs := Pairs(results, "priority", "headgate"); !strings.HasPrefix(pairs[1].Excluded(), "priority: forced_output: ") {
		t.Errorf("pair 1 is excluded for %q", pairs[1].Excluded())
	}
}

// TestExecuteStops: after so many pairs, or when the e-process says so: of signs
// that are all alike, 7 pairs have more evidence than 20 asks for.
func TestExecuteStops(t *testing.T) {
	for _, c := range []struct {
		stop  string
		pairs int
	}{{"stop: {pairs: 3}\n", 3}, {"stop: {e_process: 20, at_most: 12}\n", 7}, {"stop: {e_process: 20, at_most: 5}\n", 5}} {
		m := &made{}
		x := executor(t, t.TempDir(), c.stop, m)
		var last Progress
		x.Tell = func(p Progress) { last = p }
		if err := x.Execute(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(m.ran) != 2*c.pairs || last.Done != last.Of || last.Left != 0 {
			t.Errorf("%s: %d runs, want %d; last said %+v", c.stop, len(m.ran), 2*c.pairs, last)
		}
	}
	m := &made{invalid: "seed2/priority"}
	x := executor(t, t.TempDir(), "stop: {pairs: 3, at_most: 12}\n", m)
	if err := x.Execute(t.Context()); err != nil || len(m.ran) != 8 {
		t.Errorf("three of four pairs count: %d runs, want 8: %v", len(m.ran), err)
	}
	x = executor(t, t.TempDir(), "stop: {pairs: 13}\n", &made{})
	if err := x.Execute(t.Context()); err == nil || !strings.Contains(err.Error(), "13 pairs") {
		t.Errorf("more pairs than traces: %v", err)
	}
}

// TestVirtualIsTheSimulator: a plan's arms are the simulator's, request by request.
func TestVirtualIsTheSimulator(t *testing.T) {
	text := strings.Replace(samplePlan, "  - {name: headgate, policy: default}\n", "  - {name: headgate, policy: default}\n  - {name: fcfs, direct: {}}\n  - {name: static, published: static}\n  - {name: lending-queued, published: lending-queued}\n", 1)
	p, err := Parse("plan.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Create(t.TempDir(), p, Manifest{Runner: Sim})
	if err != nil {
		t.Fatal(err)
	}
	x := &Executor{Plan: p, Workloads: w, Dir: d, Runner: &Virtual{}}
	if err := x.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := simengine.DefaultConfig()
	e.Speed = 1.5
	have := map[string]sim.Record{}
	if _, err := sim.Execute(&sim.Plan{Traces: sim.Drawn([]string{p.Workload.Profile}, []uint32{1, 2, 3, 4}), Arms: []string{"priority", "headgate", "fcfs", "static", "lending-queued"}, Engine: e},
		func(arm string, s *sim.Source, _ *trace.Trace, r *sim.Record) error {
			have[fmt.Sprint(arm, s.Seed, r.ID)] = *r
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	results, err := d.Results()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range results {
		r := &results[i]
		lines, err := d.Requests(r)
		if err != nil {
			t.Fatal(err)
		}
		lent, reclaimed := 0, 0
		for _, p := range r.Timeline {
			lent, reclaimed = max(lent, p.Lent), p.Reclaimed
		}
		of := 0
		for _, l := range lines {
			n++
			of += l.Reclaims
			want := have[fmt.Sprint(r.Arm, r.Source.Seed, l.ID)]
			if l.Outcome != want.Outcome || or0(l.DoneMS) != or0(came(want.Done)) || l.Recomputed != want.Recomputed() {
				t.Errorf("%s, seed %d: %s is %s, done at %v, recomputed %d; the simulator has %s, %v, %d", r.Arm, r.Source.Seed, l.ID, l.Outcome, or0(l.DoneMS), l.Recomputed, want.Outcome, want.Done, want.Recomputed())
			}
		}
		if reclaimed != of || (lent > 0) != (r.Arm == "headgate" || r.Arm == "lending-queued") {
			t.Errorf("%s, seed %d: the timeline has %d lent at most and %d reclaims, of %d", r.Arm, r.Source.Seed, lent, reclaimed, of)
		}
		if bad := r.Invalid(); len(bad) > 0 {
			t.Errorf("%s, seed %d: invalid for %+v", r.Arm, r.Source.Seed, bad)
		}
	}
	if n != len(have) {
		t.Errorf("%d lines, the simulator has %d", n, len(have))
	}
}

// TestTimeline draws one of two requests by hand.
func TestTimeline(t *testing.T) {
	lines := []sim.RequestLine{
		{Class: "batch", ArrivalMS: at(0), DoneMS: at(1600), FirstTokenMS: at(300), Outcome: sim.Completed},
		{Class: "interactive", ArrivalMS: at(600), FirstTokenMS: at(1100), DoneMS: at(1200), Outcome: sim.Completed},
		{Class: "interactive", ArrivalMS: at(700), Outcome: sim.Rejected},
	}
	holds := []Hold{{Request: 0, From: 100, To: 900, Loan: true, Reclaimed: true}, {Request: 1, From: 900, To: 1200}, {Request: 0, From: 1250, To: 1600}}
	show := func(points []Point) (s string) {
		for _, p := range points {
			s += fmt.Sprintf("%g running %v waiting %v lent %d reclaimed %d engine %g\n", p.AtMS, p.Running, p.Waiting, p.Lent, p.Reclaimed, or0(p.EngineRunning))
		}
		return s
	}
	want := `0 running map[] waiting map[batch:1] lent 0 reclaimed 0 engine 0
250 running map[batch:1] waiting map[batch:0] lent 1 reclaimed 0 engine 3
500 running map[batch:1] waiting map[batch:0] lent 1 reclaimed 0 engine 3
750 running map[batch:1] waiting map[batch:0 interactive:1] lent 1 reclaimed 0 engine 3
1000 running map[interactive:1] waiting map[batch:1 interactive:0] lent 0 reclaimed 1 engine 2
1250 running map[batch:1] waiting map[batch:0] lent 0 reclaimed 1 engine 2
1500 running map[batch:1] waiting map[batch:0] lent 0 reclaimed 1 engine 2
1750 running map[] waiting map[] lent 0 reclaimed 1 engine 2
`
	if got := show(timeline(lines, holds, []Point{{AtMS: 20, EngineRunning: at(3)}, {AtMS: 990, EngineRunning: at(2)}})); got != want {
		t.Errorf("timeline\n%swant\n%s", got, want)
	}
	want = `0 running map[] waiting map[batch:1] lent 0 reclaimed 0 engine 0
250 running map[] waiting map[batch:1] lent 0 reclaimed 0 engine 0
500 running map[batch:1] waiting map[batch:0] lent 0 reclaimed 0 engine 0
750 running map[batch:1] waiting map[batch:0 interactive:1] lent 0 reclaimed 0 engine 0
1000 running map[batch:1] waiting map[batch:0 interactive:1] lent 0 reclaimed 0 engine 0
1250 running map[batch:1] waiting map[batch:0] lent 0 reclaimed 0 engine 0
1500 running map[batch:1] waiting map[batch:0] lent 0 reclaimed 0 engine 0
1750 running map[] waiting map[] lent 0 reclaimed 0 engine 0
`
	if got := show(timeline(lines, nil, nil)); got != want {
		t.Errorf("timeline without admission\n%swant\n%s", got, want)
	}
}

// edits is a runner in whose second run somebody edits a file.
type edits struct {
	made
	file string
}

func (e *edits) Run(ctx context.Context, j *Job) (*Observed, error) {
	if len(e.ran) == 1 {
		if err := os.WriteFile(e.file, []byte("classes: [other]\n"), 0o600); err != nil {
			return nil, err
		}
	}
	return e.made.Run(ctx, j)
}

// TestExecuteStopsAtAChangedPolicy: a policy that is edited while a plan runs is
// another one; the run that may have read it is not kept, and none follows.
func TestExecuteStopsAtAChangedPolicy(t *testing.T) {
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("classes: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Parse(filepath.Join(dir, "plan.yaml"), []byte(strings.Replace(samplePlan, "policy: default", "policy: policy.yaml", 1)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	files, err := p.Files()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Create(filepath.Join(dir, "evidence"), p, Manifest{Runner: p.Runner, Files: files})
	if err != nil {
		t.Fatal(err)
	}
	r := &edits{file: policy}
	if err := (&Executor{Plan: p, Workloads: w, Dir: d, Runner: r}).Execute(t.Context()); err == nil || !strings.Contains(err.Error(), "policy.yaml has hash") {
		t.Errorf("error %v", err)
	}
	if results, err := d.Results(); err != nil || len(results) != 1 || len(r.ran) != 2 {
		t.Errorf("%d runs were kept of %d, %v, want 1 of 2", len(results), len(r.ran), err)
	}
}
