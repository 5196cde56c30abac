package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"headgate/sim"
	"headgate/simengine"
	"headgate/stats"
	"headgate/trace"
)

// Job is one run that a runner is asked for.
type Job struct {
	Plan   *Plan
	Arm    *Arm
	Source *Source
	Trace  *trace.Trace // whole
	// Lines are the trace's requests before anything has come of them; the runner
	// fills them in. Those with an Outcome already are not to be sent.
	Lines []sim.RequestLine
}

// Observed is what a runner saw.
type Observed struct {
	Facts    Facts
	Recalls  []Recall
	Holds    []Hold   // where the arm has admission
	Gauges   []Point  // samples of the engine: AtMS and its own words, in order
	Evidence Evidence // but Trace and what is of earlier runs
}

// Hold is one time at the engine that admission gave a request. Times are in
// milliseconds.
type Hold struct {
	Request   int // index of its line
	From, To  float64
	Loan      bool
	Reclaimed bool // ended by force
}

// Runner runs one arm on one trace.
type Runner interface {
	Run(ctx context.Context, j *Job) (*Observed, error)
	// Takes is how long that is likely to take.
	Takes(t *trace.Trace) time.Duration
}

// Progress is how far a comparison is.
type Progress struct {
	Result *Result // the run that has just ended; nil before the first
	Done   int     // runs
	Of     int     // runs that the plan asks for at most
	Left   time.Duration
	// EValue is the most evidence that the e-process had, 0 where the plan has none.
	EValue float64
}

// Executor runs what is missing of a plan.
type Executor struct {
	Plan      *Plan
	Workloads *Workloads
	Dir       *Dir
	Runner    Runner
	Tell      func(Progress)
}

// Execute runs what is missing, in the plan's order, until its stop rule holds.
// Each run is kept before the next begins; when ctx ends, the run in progress is
// given up and the error is ctx's.
func (x *Executor) Execute(ctx context.Context) error {
	results, err := x.Dir.Results()
	if err != nil {
		return err
	}
	blocks, err := x.blocks()
	if err != nil {
		return err
	}
	m, err := x.Dir.Manifest()
	if err != nil {
		return err
	}
	slots := x.Plan.Schedule(blocks)
	done := func(s Slot) bool {
		return slices.ContainsFunc(results, func(r Result) bool { return r.Block == s.Block && r.Arm == s.Arm })
	}
	x.tell(nil, slots, results, 0)
	over, e, err := x.over(results)
	if err != nil {
		return err
	}
	var drawn *trace.Trace
	of := -1
	for _, s := range slots {
		if s.Order == 0 && s.Block > 0 && over {
			x.tell(nil, nil, results, e)
			return nil
		}
		if done(s) {
			continue
		}
		if of != s.Block {
			if drawn, err = x.Workloads.Trace(s.Block); err != nil {
				return err
			}
			of = s.Block
		}
		if err := x.unchanged(m); err != nil {
			return err
		}
		r, lines, err := x.run(ctx, s, drawn, results)
		if err == nil { // a run that read another policy than was registered is not kept
			err = x.unchanged(m)
		}
		if err != nil {
			return fmt.Errorf("%s, arm %s: %w", x.Workloads.Sources[s.Block].Name, s.Arm, err)
		}
		if err := x.Dir.Append(r, lines); err != nil {
			return err
		}
		results = append(results, *r)
		if over, e, err = x.over(results); err != nil {
			return err
		}
		x.tell(r, slots, results, e)
	}
	return nil
}

// unchanged tells whether the files that runs read are still those that the evidence
// says.
func (x *Executor) unchanged(m *Manifest) error {
	for _, path := range x.Plan.runFiles() {
		b, err := os.ReadFile(x.Plan.Path(path))
		if err != nil {
			return fmt.Errorf("plan: %w", err)
		}
		if was, ok := m.Files[path]; ok && was != hash(b) {
			return fmt.Errorf("plan: %s has hash %s, at the first run it was %s: it was changed since; allowed is a new directory", path, hash(b), was)
		}
	}
	return nil
}

// blocks is how many sources are run at most.
func (x *Executor) blocks() (int, error) {
	n, want := len(x.Workloads.Sources), x.Plan.Stop.Pairs
	if x.Plan.Stop.AtMost > 0 {
		want = x.Plan.Stop.AtMost
	}
	if want > n {
		return 0, fmt.Errorf("plan: stop asks for %d pairs: allowed are as many as the workload has traces, %d", want, n)
	}
	if want > 0 {
		n = want
	}
	return n, nil
}

// over tells whether the stop rule holds already, and the e-process.
func (x *Executor) over(results []Result) (bool, float64, error) {
	if stop := &x.Plan.Stop; stop.EProcess == 0 {
		if stop.AtMost == 0 {
			return false, 0, nil
		}
		n := 0
		for _, pair := range Pairs(results, x.Plan.Compare.Baseline, x.Plan.Compare.Treatment) {
			if pair.Excluded() == "" {
				n++
			}
		}
		return n >= stop.Pairs, 0, nil
	}
	d, err := Differences(x.Plan, x.Dir, results, x.Plan.Compare.Gain.Metric)
	if err != nil {
		return false, 0, err
	}
	var p stats.EProcess
	for _, effect := range d {
		p.Add(effect)
	}
	most := 1 / p.P() // evidence that was reached counts, whatever came then
	return most >= x.Plan.Stop.EProcess, most, nil
}

// Differences are a metric's, one for each pair that counts, positive where the
// treatment is better. One that is not known, since both are infinite or there was
// nothing to measure, is NaN.
func Differences(p *Plan, d *Dir, results []Result, metric string) ([]float64, error) {
	m, ok := MetricNamed(metric)
	if !ok {
		return nil, fmt.Errorf("metric %q is not known", metric)
	}
	var all []float64
	for _, pair := range Pairs(results, p.Compare.Baseline, p.Compare.Treatment) {
		if pair.Excluded() != "" || pair.Censored(metric) {
			continue
		}
		var v [2]float64
		for i, r := range []*Result{pair.Baseline, pair.Treatment} {
			lines, err := d.Requests(r)
			if err != nil {
				return nil, err
			}
			v[i] = Measure(&p.OnTime, lines)[metric]
		}
		diff := v[1] - v[0]
		if !m.Higher {
			diff = -diff
		}
		all = append(all, diff)
	}
	return all, nil
}

func (x *Executor) run(ctx context.Context, s Slot, t *trace.Trace, results []Result) (*Result, []sim.RequestLine, error) {
	p, source := x.Plan, &x.Workloads.Sources[s.Block]
	j := &Job{Plan: p, Arm: p.Arm(s.Arm), Source: source, Trace: t, Lines: p.lines(t, source, s.Arm)}
	r := &Result{Plan: p.SHA256(), Block: s.Block, Order: s.Order, Arm: s.Arm, Source: *source, Trace: t.Hash(), Runner: p.Runner, Started: time.Now().UTC()}
	began := time.Now()
	o, err := x.Runner.Run(ctx, j)
	if err != nil {
		return nil, nil, err
	}
	r.WallS = math.Round(time.Since(began).Seconds()*1000) / 1000
	e := &o.Evidence
	e.Trace = r.Trace
	if i := slices.IndexFunc(results, func(o Result) bool { return o.Block == s.Block }); i >= 0 {
		e.First = results[i].Trace
		if kv := results[i].Engine.StartKV; kv >= 0 {
			e.FirstKV = &kv
		}
	}
	if kv := o.Facts.StartKV; kv >= 0 {
		e.StartKV = &kv
	}
	if p.Workload.ForcedOutput || p.Runner == Sim {
		e.Output = make([]int, len(t.Entries))
		for i := range t.Entries {
			e.Output[i] = t.Entries[i].Output
		}
	}
	r.Gates = p.Judge(j.Lines, e)
	r.Engine, r.Recalls = o.Facts, append([]Recall{}, o.Recalls...)
	r.Timeline = timeline(j.Lines, o.Holds, o.Gauges)
	return r, j.Lines, nil
}

// tell reports how far it is; nil slots are a comparison that its stop rule ended.
func (x *Executor) tell(r *Result, slots []Slot, results []Result, e float64) {
	if x.Tell == nil {
		return
	}
	p := Progress{Result: r, Done: len(results), Of: len(results), EValue: e}
	if slots != nil {
		p.Of = len(slots)
	}
	if left := p.Of - p.Done; left > 0 {
		// What runs took so far tells it best.
		each := time.Duration(0)
		if len(results) > 0 {
			for i := range results {
				each += time.Duration(results[i].WallS * float64(time.Second))
			}
			each /= time.Duration(len(results))
		} else if t, err := x.Workloads.Trace(0); err == nil {
			each = x.Runner.Takes(t)
		}
		p.Left = each * time.Duration(left)
	}
	x.Tell(p)
}

// ModelFile is the simulated engine's step-time model: a built-in one's name, or a
// file's path.
func (p *Plan) ModelFile() string {
	s := p.Engine.Simulated
	if slices.Contains(simengine.Models(), s.Model) {
		return s.Model
	}
	return p.Path(s.Model)
}

// Config is the simulated engine as an arm's runs have it.
func (s *Simulated) Config(p *Plan, a *Arm) (simengine.Config, error) {
	e := simengine.DefaultConfig()
	if s.Model != "" {
		m, err := simengine.LoadModel(p.ModelFile())
		if err != nil {
			return e, fmt.Errorf("engine.simulated.model: %w", err)
		}
		e.Model = m
	}
	e.Speed, e.PrefixCaching = s.Speed*a.Speed, s.PrefixCaching
	for _, f := range []struct {
		to *int
		v  int
	}{{&e.MaxNumSeqs, s.Slots}, {&e.NumBlocks, s.KVBlocks}, {&e.BlockSize, s.BlockSize}, {&e.MaxModelLen, s.MaxModelLen}, {&e.MaxBatchedTokens, s.BatchedTokens}} {
		if f.v > 0 {
			*f.to = f.v
		}
	}
	if a.Direct != nil && len(a.Direct.Priority) == 0 {
		e.Policy = simengine.FCFS
	}
	var err error
	e.Validate(func(path string, value any, allowed string) {
		if err == nil {
			err = fmt.Errorf("engine.simulated: %s is %v: allowed: %s", path, value, allowed)
		}
	})
	return e, err
}

// Skip marks the requests whose prompts leave no room for output, which no arm is
// offered.
func (j *Job) Skip(maxModelLen int) {
	for i := range j.Lines {
		if j.Lines[i].Prompt >= maxModelLen {
			j.Lines[i].Outcome = sim.Skipped
		}
	}
}
