package prove

import (
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/admission"
	"headgate/sim"
	"headgate/simengine"
	"headgate/stats"
	"headgate/trace"
)

// Plan is what is to be proved.
type Plan struct {
	Recording *Recording
	// Engine is what served the pool. Without ModelGiven its step times are fitted.
	Engine     simengine.Config
	ModelGiven bool
	Priority   bool // it orders what waits by the priority of its class
	GPUs       float64

	// Present is the policy that was in force, nil where requests went straight to the
	// engine; Proposed is the one to be tried. The words say where they are from.
	Present                     *sim.Policy
	Proposed                    *sim.Policy
	PresentWords, ProposedWords string

	// Batch is the work that is lent to.
	Batch Batch
	// OnTime takes the place of the recorded limits, if it has any.
	OnTime admission.Objective
	Block  time.Duration
	Margin float64 // share of requests on time that may be lost
}

// Batch is a client that always has work.
type Batch struct {
	Class          string // empty: batch, or else the proposed policy's last
	Prompt, Output int    // tokens of its requests, where the recording has none of the class
	Depth          int    // requests under way; 0: twice the slots
}

const (
	// MinRequests is how many requests a recording needs at least, and how many of them
	// with an objective.
	MinRequests = 100

	level      = 0.95
	maxBlocks  = 10_000
	samples    = 10_000
	fromShapes = 20 // recorded requests of the batch class, from which on their sizes are used
)

// side is one replay.
type side struct {
	name    string
	about   string
	run     *sim.Run
	until   time.Duration
	lent    []span // the batch client's
	own     []span // the recorded requests'
	onTime  []bool // by request
	refused int
}

type span struct {
	from, to time.Duration
	loan     bool
}

// prover has what all replays share.
type prover struct {
	*Plan
	trace   *trace.Trace
	kept    []*Request // of the recording, as in the trace
	scored  []bool
	limits  []admission.Objective
	batch   *sim.Backlog
	report  *Report
	skipped int
	others  map[string]int // scored requests with other limits than their class's in the proposed policy
}

// Run replays the recording and says what came of it.
func Run(p *Plan) (*Report, error) {
	v := &prover{Plan: p, report: &Report{Distrust: []string{}}, others: map[string]int{}}
	if err := v.prepare(); err != nil {
		return nil, err
	}
	present, err := v.calibrated()
	if err != nil {
		return nil, err
	}
	sides := []*side{present}
	for _, s := range []struct {
		name, about string
		policy      *sim.Policy
		batch       bool
	}{
		{Proposed, "the proposed policy, without more work", p.Proposed, false},
		{ProposedBatch, "the proposed policy, and batch that always has work", p.Proposed, true},
		{PresentBatch, "the present way of serving, and the same batch", p.Present, true},
	} {
		one, err := v.replay(s.name, s.about, s.policy, s.batch)
		if err != nil {
			return nil, err
		}
		sides = append(sides, one)
	}
	if split := v.partition(); split != nil {
		one, err := v.replay(Partition, "a quarter of the slots is batch's and the rest interactive's, never lent, and the same batch", split, true)
		if err != nil {
			return nil, err
		}
		sides = append(sides, one)
	}
	v.compare(sides)
	return v.report, nil
}

// The replays.
const (
	Present       = "present"
	Proposed      = "proposed"
	ProposedBatch = "proposed + batch"
	PresentBatch  = "present + batch"
	Partition     = "partition + batch"
)

// prepare makes the trace, and what "on time" means for each request.
func (v *prover) prepare() error {
	e, r := &v.Engine, v.Recording
	if v.Block <= 0 || r.Length/v.Block > maxBlocks {
		return fmt.Errorf("--block is %v: allowed is a time above 0 of which the journal's %v are at most %d", v.Block, r.Length.Round(time.Second), maxBlocks)
	}
	classes := v.Proposed.Table.Classes
	if v.Batch.Class == "" {
		v.Batch.Class = classes[len(classes)-1].Name
		if slices.ContainsFunc(classes, func(c admission.ClassSpec) bool { return c.Name == trace.Batch }) {
			v.Batch.Class = trace.Batch
		}
	}
	if v.Batch.Depth == 0 {
		v.Batch.Depth = 2 * e.MaxNumSeqs
	}
	t := &trace.Trace{Profile: "journal", Protocol: trace.Imported, Workload: trace.Workload{DurationMs: int(r.Length/time.Millisecond) + 1, MaxAttempts: 1}}
	var shapes []trace.Entry
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.PromptTokens >= e.MaxModelLen || q.Arrival >= r.Length {
			v.skipped++
			continue
		}
		k := slices.IndexFunc(classes, func(c admission.ClassSpec) bool { return c.Name == q.Class })
		if k < 0 {
			return fmt.Errorf("request %s is of class %q, which the proposed policy does not have", q.ID, q.Class)
		}
		limits := q.Limits
		if limits == (admission.Objective{}) {
			limits = classes[k].Objective
		}
		if v.OnTime != (admission.Objective{}) {
			limits = v.OnTime
		}
		isBatch := q.Class == v.Batch.Class
		if isBatch && !q.Left && !q.Failed {
			shapes = append(shapes, q.Entry)
		}
		t.Entries, v.kept = append(t.Entries, q.Entry), append(v.kept, q)
		v.limits = append(v.limits, limits)
		scored := !isBatch && !q.Left && limits != (admission.Objective{})
		if v.scored = append(v.scored, scored); scored && limits != classes[k].Objective {
			v.others[q.Class]++
		}
	}
	v.trace = t
	if n := len(v.kept); n < MinRequests {
		return fmt.Errorf("the journal has %d requests of pool %s that ended and that the engine takes: needed are at least %d, better a whole day", n, r.Pool, MinRequests)
	}
	if n := v.count(v.scored); n < MinRequests {
		return fmt.Errorf("the journal has %d requests of which it is known what on time is, and which are not of class %s: needed are at least %d; give --ttft or --e2e, or an objective in the policy, or a longer journal", n, v.Batch.Class, MinRequests)
	}
	if len(shapes) >= fromShapes {
		v.report.Assumptions.BatchFrom = len(shapes)
	} else {
		shapes = []trace.Entry{{ID: "batch", Class: v.Batch.Class, PromptTokens: v.Batch.Prompt, MaxTokens: v.Batch.Output, Output: v.Batch.Output}}
	}
	for i := range shapes {
		shapes[i].ID = "backlog"
		if n := shapes[i].PromptTokens + shapes[i].Output; n > e.MaxModelLen {
			return fmt.Errorf("batch requests of %d tokens, prompt and output: the engine's longest sequence is %d; give smaller --batch-prompt and --batch-output", n, e.MaxModelLen)
		}
	}
	v.batch = &sim.Backlog{Shapes: shapes, Depth: v.Batch.Depth, Until: r.Length}
	return nil
}

func (v *prover) count(of []bool) (n int) {
	for _, is := range of {
		if is {
			n++
		}
	}
	return n
}

// arm is one way to serve; a nil policy is the engine alone.
func (v *prover) arm(name string, p *sim.Policy) *sim.Arm {
	a := &sim.Arm{Name: name, Engine: v.Engine}
	a.Engine.Policy = simengine.FCFS
	if p != nil {
		a.Table = p.Table
		if v.Priority {
			a.Engine.Policy, a.Priority = simengine.Priority, p.Priority
		}
	}
	return a
}

// partition is the published fixed one, where the classes are its classes.
func (v *prover) partition() *sim.Policy {
	a, err := sim.NewArm("static-queued", v.Engine)
	if err != nil || v.Engine.MaxNumSeqs < 2 {
		return nil
	}
	known := func(class string) bool {
		return slices.ContainsFunc(a.Table.Classes, func(c admission.ClassSpec) bool { return c.Name == class })
	}
	if !known(v.Batch.Class) || slices.ContainsFunc(v.kept, func(q *Request) bool { return !known(q.Class) }) {
		return nil
	}
	return &sim.Policy{Table: a.Table, Priority: a.Priority}
}

func (v *prover) replay(name, about string, p *sim.Policy, batch bool) (*side, error) {
	b := v.batch
	if !batch {
		b = nil
	}
	run, err := sim.SimulateWith(v.trace, v.arm(name, p), b)
	if err != nil {
		return nil, fmt.Errorf("replay of the journal: %w", err)
	}
	s := &side{name: name, about: about, run: run, until: v.Recording.Length, onTime: make([]bool, len(v.kept))}
	for i := range v.kept {
		r := &run.Records[i]
		s.onTime[i] = r.Outcome == sim.Completed && within(v.limits[i], r.First-r.Arrival, r.Done-r.Arrival, r.Tokens)
		if r.Outcome == sim.Rejected {
			s.refused++
		}
	}
	add := func(i int, sp span) {
		if sp.to = min(sp.to, s.until); sp.to <= sp.from || sp.from < 0 {
			return
		}
		if i >= len(v.kept) {
			s.lent = append(s.lent, sp)
		} else {
			s.own = append(s.own, sp)
		}
	}
	if p != nil {
		for _, h := range run.Holds {
			add(h.Request, span{h.From, h.To, h.Loan})
		}
		return s, nil
	}
	for i := range run.Records {
		r := &run.Records[i]
		add(i, span{r.Scheduled, r.Done, false})
	}
	return s, nil
}

// within tells whether times meet an objective, as the gateway judges it.
func within(o admission.Objective, first, whole time.Duration, tokens int) bool {
	if o.First > 0 && first > o.First || o.Whole > 0 && whole > o.Whole {
		return false
	}
	return o.Token == 0 || tokens < 2 || (whole-first)/time.Duration(tokens-1) <= o.Token
}

// recordedOnTime tells it of what the journal saw.
func (v *prover) recordedOnTime(i int) bool {
	q := v.kept[i]
	first := q.First
	if first < 0 {
		first = q.Done // it came as a whole
	}
	tokens := q.Output
	if q.First < 0 {
		tokens = 1
	}
	return !q.Failed && within(v.limits[i], first-q.Arrival, q.Done-q.Arrival, tokens)
}

// Bounds of the factor on fitted step times, and how finely it is looked for. What needs
// more is no bias of the regressions, and where the engine was overrun a small change of
// speed is a large one of every wait.
const (
	mostScale  = 1.25
	scaleSteps = 6
	scaledTo   = 0.01 // off in the middle, that is good enough
)

// calibrated replays the present, with a model that was fitted if none was given, and
// holds the replay against the record.
func (v *prover) calibrated() (*side, error) {
	if v.ModelGiven {
		present, err := v.replay(Present, v.PresentWords, v.Present, false)
		if err == nil {
			v.check(present, -1)
		}
		return present, err
	}
	f, err := FitModel(v.Recording, v.Engine.MaxNumSeqs)
	if err != nil {
		return nil, err
	}
	v.Engine.Model, v.report.Fit = f.Model, f
	at := func(speed float64) (*side, float64, error) {
		v.Engine.Speed = speed
		s, err := v.replay(Present, v.PresentWords, v.Present, false)
		if err != nil {
			return nil, 0, err
		}
		return s, math.Log(v.ratio(s, 0)), nil
	}
	present, off, err := at(1)
	if err != nil {
		return nil, err
	}
	// Regressions of single requests leave a bias that their sum has not: steps are
	// shared, and begin when others end. One factor takes it out.
	low, high := 1.0, mostScale
	if off < 0 {
		low, high = 1/mostScale, 1
	}
	for n := 0; n < scaleSteps && math.Abs(off) > scaledTo; n++ {
		speed := math.Sqrt(low * high)
		s, left, err := at(speed)
		if err != nil {
			return nil, err
		}
		if math.Abs(left) < math.Abs(off) {
			present, off, f.Scale = s, left, speed
		}
		if left > 0 { // still too fast
			low = speed
		} else {
			high = speed
		}
	}
	v.Engine.Speed = f.Scale
	v.check(present, 1)
	return present, nil
}

// ratio is the median of recorded over replayed durations of one half.
func (v *prover) ratio(s *side, fold int) float64 {
	var all []float64
	for i, q := range v.kept {
		r := &s.run.Records[i]
		if v.Recording.fold(q.Arrival) == fold && !q.Left && !q.Failed && r.Done > r.Arrival {
			all = append(all, float64(q.Done-q.Arrival)/float64(r.Done-r.Arrival))
		}
	}
	return median(all)
}

func median(x []float64) float64 { return quantile(x, 0.5) }

// quantile returns the one that occurred, 0 of nothing. It sorts x.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[min(max(int(math.Ceil(q*float64(len(x))-1e-9)), 1), len(x))-1]
}

// check compares the replayed present with what the journal saw.
func (v *prover) check(s *side, fold int) {
	c := &v.report.Check
	c.HeldOut = fold >= 0
	var first, whole, others timing
	for i, q := range v.kept {
		if fold >= 0 && v.Recording.fold(q.Arrival) != fold || q.Left || q.Failed {
			continue
		}
		r := &s.run.Records[i]
		if !v.scored[i] {
			c.Others++
			others.add(q.Done-q.Arrival, r.Done-r.Arrival, r.Done >= 0)
			continue
		}
		c.Scored++
		if q.First >= 0 {
			first.add(q.First-q.Arrival, r.First-r.Arrival, r.First >= 0)
		}
		whole.add(q.Done-q.Arrival, r.Done-r.Arrival, r.Done >= 0)
		c.OnTimeRecorded += one(v.recordedOnTime(i))
		c.OnTimeReplayed += one(s.onTime[i])
		c.Agree += one(v.recordedOnTime(i) == s.onTime[i])
	}
	c.TTFT, c.E2E, c.OtherE2E = first.error(), whole.error(), others.error()
}

// timing is a pair of times of each request.
type timing struct{ recorded, replayed, off, offMS []float64 }

func (t *timing) add(recorded, replayed time.Duration, came bool) {
	a, b := recorded.Seconds(), replayed.Seconds()
	if !came {
		b = math.Inf(1)
	}
	t.recorded, t.replayed = append(t.recorded, a), append(t.replayed, b)
	t.off, t.offMS = append(t.off, math.Abs(b-a)/max(a, 1e-6)), append(t.offMS, 1e3*math.Abs(b-a))
}

func (t *timing) error() TimeError {
	return TimeError{
		MedianError: quantile(t.off, 0.5), MedianErrorMS: quantile(t.offMS, 0.5), P90Error: number(quantile(t.off, 0.9)),
		P50RecordedS: quantile(t.recorded, 0.5), P50ReplayedS: number(quantile(t.replayed, 0.5)),
		P95RecordedS: quantile(t.recorded, 0.95), P95ReplayedS: number(quantile(t.replayed, 0.95)),
	}
}

// number is a value as JSON has it: null for what never came.
func number(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// seconds of spans between two times, and of loans alone.
func overlap(spans []span, from, to time.Duration) (all, loans float64) {
	for _, s := range spans {
		if d := (min(s.to, to) - max(s.from, from)).Seconds(); d > 0 {
			all += d
			if s.loan {
				loans += d
			}
		}
	}
	return all, loans
}

// blocks adds up spans by blocks of equal length.
func blocks(spans []span, n int, length time.Duration) []float64 {
	sum := make([]float64, n)
	for _, s := range spans {
		for k := blockOf(s.from, n, length); k < n; k++ {
			from, to := edge(k, n, length), edge(k+1, n, length)
			if from >= s.to {
				break
			}
			sum[k] += max(0, (min(s.to, to) - max(s.from, from)).Seconds())
		}
	}
	return sum
}

// edge is where block k of n begins.
func edge(k, n int, length time.Duration) time.Duration {
	return time.Duration(math.Round(float64(length) * float64(k) / float64(n)))
}

// blockOf is the block of n that a time is in.
func blockOf(at time.Duration, n int, length time.Duration) int {
	return min(int(float64(at)*float64(n)/float64(length)), n-1)
}

// compare makes the report of the replays.
func (v *prover) compare(sides []*side) {
	r, rep := v.Recording, v.report
	slots := float64(v.Engine.MaxNumSeqs)
	hours := func(slotSeconds float64) float64 { return slotSeconds / slots / 3600 * v.GPUs }
	rep.Recording = summary(r, v.skipped)
	rep.Capacity.Hours = r.Length.Hours() * v.GPUs
	rep.Margin, rep.Level = v.Margin, level
	for _, s := range sides {
		rep.Replays = append(rep.Replays, v.row(s, hours))
	}
	recorded := Replay{Name: "recorded", About: "what the journal saw", Offered: v.count(v.scored)}
	var first, whole []float64
	for i, q := range v.kept {
		if !v.scored[i] {
			continue
		}
		if v.recordedOnTime(i) {
			recorded.OnTime++
		}
		if q.First >= 0 {
			first = append(first, (q.First - q.Arrival).Seconds())
		}
		whole = append(whole, (q.Done - q.Arrival).Seconds())
	}
	recorded.TTFTP95, recorded.E2EP95 = number(quantile(first, 0.95)), number(quantile(whole, 0.95))
	rep.Replays = append([]Replay{recorded}, rep.Replays...)

	present, lent := sides[0], sides[2]
	n := max(int(r.Length/v.Block), 1)
	gained, used := blocks(lent.lent, n, r.Length), blocks(present.own, n, r.Length)
	rep.Blocks = make([]Block, n)
	for k := range rep.Blocks {
		rep.Blocks[k] = Block{Start: r.Start.Add(edge(k, n, r.Length)), Seconds: (edge(k+1, n, r.Length) - edge(k, n, r.Length)).Seconds(), LentHours: hours(gained[k]), UsedHours: hours(used[k])}
	}
	for i, q := range v.kept {
		if !v.scored[i] {
			continue
		}
		b := &rep.Blocks[blockOf(q.Arrival, n, r.Length)]
		b.Offered++
		b.OnTimePresent += one(present.onTime[i])
		b.OnTimeProposed += one(lent.onTime[i])
	}
	rep.distrust()
	rep.capacity(lent, hours, r.Length)
	rep.onTime(v.count(v.scored))
	rep.hours(v, present, lent, hours)
	rep.words(v)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// row sums a replay up.
func (v *prover) row(s *side, hours func(float64) float64) Replay {
	row := Replay{Name: s.name, About: s.about, Offered: v.count(v.scored), Refused: s.refused}
	var first, whole []float64
	for i := range s.run.Records {
		q := &s.run.Records[i]
		if i >= len(v.kept) {
			row.Recomputed += q.Recomputed()
			row.Reclaims += q.Reclaims
			if q.Outcome == sim.Completed && q.Done <= s.until {
				row.BatchDone++
				row.BatchPrompt += q.PromptTokens
				row.BatchOutput += q.Tokens
			}
			continue
		}
		if !v.scored[i] {
			continue
		}
		row.OnTime += one(s.onTime[i])
		f, w := math.Inf(1), math.Inf(1)
		if q.First >= 0 {
			f = (q.First - q.Arrival).Seconds()
		}
		if q.Done >= 0 {
			w = (q.Done - q.Arrival).Seconds()
		}
		first, whole = append(first, f), append(whole, w)
	}
	row.TTFTP95, row.E2EP95 = number(quantile(first, 0.95)), number(quantile(whole, 0.95))
	all, loans := overlap(s.lent, 0, s.until)
	own, _ := overlap(s.own, 0, s.until)
	row.LentHours, row.LoanHours, row.UsedHours = hours(all), hours(loans), hours(own)
	return row
}

// interval is that of a sum over blocks: of the mean block, times how many there are.
func interval(values []float64, of string) Interval {
	n := len(values)
	if n < stats.BootstrapPairs {
		return Interval{Why: fmt.Sprintf("could not tell: %d blocks, needed are %d; give a longer journal or a shorter --block", n, stats.BootstrapPairs)}
	}
	pairs := make([]stats.Pair, n)
	for i, x := range values {
		pairs[i] = stats.Pair{Treatment: x}
	}
	e, err := stats.Differences(pairs)
	if err != nil {
		return Interval{Why: fmt.Sprintf("could not tell: %s: %v", of, err)}
	}
	i, err := stats.BCa(e, stats.Mean, stats.Resampling{Level: level, Samples: samples, Seed: 1})
	if err != nil {
		return Interval{Why: fmt.Sprintf("could not tell: %s: %v", of, err)}
	}
	low, high := i.Low*float64(n), i.High*float64(n)
	return Interval{Low: &low, High: &high}
}
