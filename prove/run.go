package prove

import (
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/admission"
	"headgate/sim"
	"headgate/simengine"
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

	maxBlocks  = 10_000
	fromShapes = 20 // recorded requests of the batch class, from which on their sizes are used
)

// prover has what all replays share.
type prover struct {
	*Plan
	*Traffic
	batch  *sim.Backlog
	report *Report
}

// Run replays the recording and says what came of it.
func Run(p *Plan) (*Report, error) {
	v := &prover{Plan: p, report: &Report{}}
	if err := v.prepare(); err != nil {
		return nil, err
	}
	present, err := v.calibrated()
	if err != nil {
		return nil, err
	}
	sides := []*Side{present}
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
	t, err := NewTraffic(r, classes, v.Batch.Class, v.OnTime, e.MaxModelLen)
	if err != nil {
		return err
	}
	v.Traffic = t
	var shapes []trace.Entry
	for _, q := range t.Requests {
		if q.Class == v.Batch.Class && !q.Left && !q.Failed {
			shapes = append(shapes, q.Entry)
		}
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
	if !known(v.Batch.Class) || slices.ContainsFunc(v.Requests, func(q *Request) bool { return !known(q.Class) }) {
		return nil
	}
	return &sim.Policy{Table: a.Table, Priority: a.Priority}
}

func (v *prover) replay(name, about string, p *sim.Policy, batch bool) (*Side, error) {
	b := v.batch
	if !batch {
		b = nil
	}
	s, err := v.Replay(v.arm(name, p), b)
	if err == nil {
		s.about = about
	}
	return s, err
}

// calibrated replays the present, with a model that was fitted if none was given, and
// holds the replay against the record.
func (v *prover) calibrated() (*Side, error) {
	present := func() (*Side, error) { return v.replay(Present, v.PresentWords, v.Present, false) }
	if v.ModelGiven {
		s, err := present()
		if err == nil {
			v.report.Check = v.Check(s, false)
		}
		return s, err
	}
	s, f, err := v.Calibrate(&v.Engine, present)
	if err == nil {
		v.report.Fit, v.report.Check = f, v.Check(s, true)
	}
	return s, err
}

// compare makes the report of the replays.
func (v *prover) compare(sides []*Side) {
	r, rep := v.Recording, v.report
	slots := float64(v.Engine.MaxNumSeqs)
	hours := func(slotSeconds float64) float64 { return slotSeconds / slots / 3600 * v.GPUs }
	rep.Recording = v.Summary()
	rep.Capacity.Hours = r.Length.Hours() * v.GPUs
	rep.Margin, rep.Level = v.Margin, Level
	for _, s := range sides {
		rep.Replays = append(rep.Replays, v.row(s, hours))
	}
	recorded := Replay{Name: "recorded", About: "what the journal saw", Offered: count(v.Scored)}
	var first, whole []float64
	for i, q := range v.Requests {
		if !v.Scored[i] {
			continue
		}
		if v.RecordedOnTime(i) {
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
		rep.Blocks[k] = Block{Start: r.Start.Add(BlockEdge(k, n, r.Length)), Seconds: (BlockEdge(k+1, n, r.Length) - BlockEdge(k, n, r.Length)).Seconds(), LentHours: hours(gained[k]), UsedHours: hours(used[k])}
	}
	for i, q := range v.Requests {
		if !v.Scored[i] {
			continue
		}
		b := &rep.Blocks[BlockOf(q.Arrival, n, r.Length)]
		b.Offered++
		b.OnTimePresent += one(present.OnTime[i])
		b.OnTimeProposed += one(lent.OnTime[i])
	}
	rep.Distrust = Distrust(&rep.Check, &rep.Recording)
	rep.capacity(lent, hours, r.Length)
	rep.onTime(count(v.Scored))
	rep.hours(v, present, lent, hours)
	rep.words(v)
}

// row sums a replay up.
func (v *prover) row(s *Side, hours func(float64) float64) Replay {
	row := Replay{Name: s.name, About: s.about, Offered: count(v.Scored), Refused: s.Refused}
	var first, whole []float64
	for i := range s.Run.Records {
		q := &s.Run.Records[i]
		if i >= len(v.Requests) {
			row.Recomputed += q.Recomputed()
			row.Reclaims += q.Reclaims
			if q.Outcome == sim.Completed && q.Done <= s.until {
				row.BatchDone++
				row.BatchPrompt += q.PromptTokens
				row.BatchOutput += q.Tokens
			}
			continue
		}
		if !v.Scored[i] {
			continue
		}
		row.OnTime += one(s.OnTime[i])
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
