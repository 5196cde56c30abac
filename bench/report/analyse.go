package report

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"

	"headgate/bench"
	"headgate/stats"
)

// Question is which runs are compared.
type Question struct {
	// Baseline and Treatment are where the two arms' runs are, the same for one directory.
	// The baseline's plan has the criteria and says what on time means.
	Baseline, Treatment       *Evidence
	BaselineArm, TreatmentArm string
	// AA is where the rig's noise was measured. Nil: two arms of the baseline's plan that
	// are the same but for their names, where it has such.
	AA *Evidence
}

// Registered asks what the directory's plan asks.
func Registered(e *Evidence) Question {
	return Question{Baseline: e, Treatment: e, BaselineArm: e.Plan.Compare.Baseline, TreatmentArm: e.Plan.Compare.Treatment}
}

// Analysis is a report and what its pictures are drawn of.
type Analysis struct {
	Report Report

	plan *bench.Plan
	runs []*digest   // of Report.Runs
	dots [][]float64 // each pair's effect on the quantiles of Report.Shift
}

// Analyse makes a report.
func Analyse(q Question) (*Analysis, error) {
	p := q.Baseline.Plan
	if err := q.check(); err != nil {
		return nil, err
	}
	a := &Analysis{plan: p}
	if err := a.read(&q); err != nil {
		return nil, err
	}
	names := [2]string{q.BaselineArm, q.TreatmentArm}
	if q.Baseline != q.Treatment && q.BaselineArm == q.TreatmentArm {
		names = [2]string{q.BaselineArm + " (first directory)", q.TreatmentArm + " (second directory)"}
	}
	rep := &a.Report
	*rep = Report{
		Schema: Schema,
		Plan: Plan{
			Name: p.Name, Hypothesis: p.Hypothesis, SHA256: p.SHA256(), Runner: q.Baseline.Manifest.Runner, Baseline: names[0], Treatment: names[1],
			Registered: q.Baseline == q.Treatment && q.BaselineArm == p.Compare.Baseline && q.TreatmentArm == p.Compare.Treatment,
			OnTime:     OnTime{Class: p.OnTime.Class, Window: p.OnTime.Window, TTFTMS: millis(p.OnTime.TTFT), E2EMS: millis(p.OnTime.E2E)},
			StopAt:     p.Stop.EProcess, PairsPlanned: planned(q.Baseline),
		},
		Evidence: []Source{q.Baseline.source()},
		Analysis: Settings{Level: level, FlipSeed: flipSeed, P99Requests: p99Requests},
		Reasons:  []string{}, Notes: []string{}, Decisions: []Effect{}, Secondary: []Effect{}, Described: []Effect{}, Shift: []Quantile{},
	}
	if q.Baseline != q.Treatment {
		rep.Evidence = append(rep.Evidence, q.Treatment.source())
	}
	pairs, alone := a.pairs(&q)
	for i := range pairs {
		rep.Pairs = append(rep.Pairs, a.pair(&pairs[i], a.runs))
	}
	for _, d := range a.runs {
		rep.Runs = append(rep.Runs, d.Run)
	}
	if err := a.measureFloor(&q); err != nil {
		return nil, err
	}
	if err := a.judge(pairs); err != nil {
		return nil, err
	}
	if err := a.shift(pairs); err != nil {
		return nil, err
	}
	a.arms(&q, names, pairs)
	a.note(&q, pairs, alone)
	return a, nil
}

// check reports a question that cannot be asked.
func (q *Question) check() error {
	for _, s := range []struct {
		what string
		e    *Evidence
		arm  string
	}{{"baseline", q.Baseline, q.BaselineArm}, {"treatment", q.Treatment, q.TreatmentArm}} {
		if s.e.Plan.Arm(s.arm) == nil {
			var names []string
			for i := range s.e.Plan.Arms {
				names = append(names, s.e.Plan.Arms[i].Name)
			}
			return fmt.Errorf("%s is %q: allowed is an arm of its plan: %s", s.what, s.arm, strings.Join(names, ", "))
		}
	}
	if q.Baseline == q.Treatment && q.BaselineArm == q.TreatmentArm {
		return fmt.Errorf("treatment is %q: allowed is another arm than the baseline", q.TreatmentArm)
	}
	return nil
}

// planned is the number of pairs that a plan asks for, 0 where neither it nor the
// manifest says.
func planned(e *Evidence) int {
	p := e.Plan
	n := p.Stop.Pairs
	if p.Stop.AtMost > 0 {
		n = p.Stop.AtMost
	}
	if n == 0 && p.Workload.Profile != "" {
		seeds, _ := bench.Seeds(p.Workload.Seeds) // the plan is valid
		n = len(seeds)
	}
	if n == 0 {
		n = e.Manifest.Sources
	}
	return n
}

// read digests the runs: all arms of one directory, or the two arms of two.
func (a *Analysis) read(q *Question) error {
	take := func(e *Evidence, index int, arm string) error {
		for i := range e.Results {
			r := &e.Results[i]
			if arm != "" && r.Arm != arm {
				continue
			}
			d, err := digestRun(e, index, &a.plan.OnTime, r)
			if err != nil {
				return err
			}
			a.runs = append(a.runs, d)
		}
		return nil
	}
	if q.Baseline == q.Treatment {
		return take(q.Baseline, 0, "")
	}
	return errors.Join(take(q.Baseline, 0, q.BaselineArm), take(q.Treatment, 1, q.TreatmentArm))
}

func number(v float64) *Number {
	n := Number(v)
	return &n
}

// shiftQuantiles are those of the shift function.
var shiftQuantiles = []float64{0.5, 0.75, 0.9, 0.95, 0.99, 0.999}

// shift makes the quantile shift function of TTFT.
func (a *Analysis) shift(pairs []pairOf) error {
	var samples []stats.SamplePair
	for i := range pairs {
		if p := &pairs[i]; p.excluded == "" && p.baseline.ttft != nil && p.treatment.ttft != nil {
			samples = append(samples, stats.SamplePair{Baseline: p.baseline.ttft, Treatment: p.treatment.ttft})
		}
	}
	if len(samples) == 0 {
		return nil
	}
	points, err := stats.Shift(samples, shiftQuantiles, stats.Ratios, level)
	if err != nil {
		return err
	}
	for _, p := range points {
		q := Quantile{Quantile: p.Quantile, Shown: p.OK, Estimate: missing, Interval: Interval{missing, missing, missing, level}}
		dots, unknown := p.Effects.Values(), p.Effects.Unknown()
		for _, i := range unknown {
			dots[i] = math.NaN()
		}
		if p.OK {
			q.Interval = interval(p.Interval)
		}
		if p.OK && len(unknown) < len(dots) {
			q.Estimate = Number(p.Estimate)
		}
		a.Report.Shift, a.dots = append(a.Report.Shift, q), append(a.dots, dots)
	}
	return nil
}

// arms sums up each arm's runs.
func (a *Analysis) arms(q *Question, names [2]string, pairs []pairOf) {
	var counted [2][]*digest
	for i := range pairs {
		if p := &pairs[i]; p.excluded == "" {
			counted[0], counted[1] = append(counted[0], p.baseline), append(counted[1], p.treatment)
		}
	}
	for i := range counted {
		a.Report.Arms = append(a.Report.Arms, arm(names[i], counted[i]))
	}
	if q.Baseline != q.Treatment {
		return
	}
	for i := range a.plan.Arms {
		name := a.plan.Arms[i].Name
		if name == q.BaselineArm || name == q.TreatmentArm {
			continue
		}
		var valid []*digest
		for _, d := range a.runs {
			if d.Arm == name && len(d.Invalid) == 0 {
				valid = append(valid, d)
			}
		}
		a.Report.Arms = append(a.Report.Arms, arm(name, valid))
	}
}

// twins are two arms of a plan that are the same but for their names, those that it
// compares before others.
func twins(p *bench.Plan) (a, b string, ok bool) {
	same := func(a, b *bench.Arm) bool {
		x, y := *a, *b
		x.Name, y.Name = "", ""
		return reflect.DeepEqual(x, y)
	}
	if x, y := p.Arm(p.Compare.Baseline), p.Arm(p.Compare.Treatment); same(x, y) {
		return x.Name, y.Name, true
	}
	for i := range p.Arms {
		for k := i + 1; k < len(p.Arms); k++ {
			if same(&p.Arms[i], &p.Arms[k]) {
				return p.Arms[i].Name, p.Arms[k].Name, true
			}
		}
	}
	return "", "", false
}

// gaps are the numbers of runs, below the last one's, that have no result.
func gaps(results []bench.Result) []string {
	var gone []string
	next := 1
	for i := range results { // in the order of running
		for ; next < results[i].Run; next++ {
			gone = append(gone, fmt.Sprint(next))
		}
		next = results[i].Run + 1
	}
	return gone
}

// otherLimits are a plan's limits of gates that are not the defaults: wide enough, they
// waive a gate.
func otherLimits(p *bench.Plan) []string {
	var words []string
	have, usual := reflect.ValueOf(p.Gates), reflect.ValueOf(bench.DefaultLimits())
	for i := range have.NumField() {
		if v, d := have.Field(i).Interface(), usual.Field(i).Interface(); v != d {
			words = append(words, fmt.Sprintf("%s %v (%v)", have.Type().Field(i).Tag.Get("yaml"), v, d))
		}
	}
	return words
}

// note says what a reader has to know beside the verdict.
func (a *Analysis) note(q *Question, pairs []pairOf, alone []string) {
	rep := &a.Report
	say := func(format string, args ...any) { rep.Notes = append(rep.Notes, fmt.Sprintf(format, args...)) }
	if !rep.Plan.Registered {
		say("Not registered: the plan compares %s with %s.", a.plan.Compare.Baseline, a.plan.Compare.Treatment)
	}
	for _, e := range []*Evidence{q.Baseline, q.Treatment} {
		for _, d := range e.Manifest.Deviations {
			say("Deviation from the plan: %s.", d)
		}
		if q.Baseline == q.Treatment {
			break
		}
	}
	if q.Baseline != q.Treatment {
		b, t := q.Baseline.source(), q.Treatment.source()
		for _, d := range []struct{ what, b, t string }{
			{"plans", b.PlanSHA256, t.PlanSHA256}, {"runners", b.Runner, t.Runner}, {"versions", b.Version, t.Version}, {"hosts", fmt.Sprint(b.Host), fmt.Sprint(t.Host)},
			{"files", fmt.Sprint(b.Files), fmt.Sprint(t.Files)},
		} {
			if d.b != d.t {
				say("The two directories have different %s: %s and %s.", d.what, d.b, d.t)
			}
		}
		say("Two directories: their runs were not made in rotated order, so what changed in between falls on one arm.")
	}
	if rep.Plan.Runner == bench.Sim {
		say("Runs are in virtual time: the engine is a model, and nothing of a machine's noise is in them.")
	}
	out := 0
	for i := range pairs {
		if pairs[i].excluded != "" {
			out++
		}
	}
	if out > 0 {
		say("%d of %d pairs are out of everything, since a gate makes one of their runs invalid.", out, len(pairs))
	}
	if len(alone) > 0 {
		say("Sources of which one run only is there: %s.", strings.Join(alone, ", "))
	}
	unknown, waived := map[string]bool{}, map[string]bool{}
	for _, d := range a.runs {
		for i := range d.result.Gates {
			switch g := &d.result.Gates[i]; {
			case g.Unknown:
				unknown[g.Name] = true
			case g.Waived:
				waived[g.Name] = true
			}
		}
	}
	for _, l := range []struct {
		words string
		names map[string]bool
	}{{"Gates without evidence in some run: %s.", unknown}, {"Gates that the plan waives: %s.", waived}} {
		var names []string
		for _, name := range bench.GateNames() {
			if l.names[name] {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			say(l.words, strings.Join(names, ", "))
		}
	}
	for _, e := range []*Evidence{q.Baseline, q.Treatment} {
		if gone := gaps(e.Results); len(gone) > 0 {
			say("Runs that are not there, cut off between their two files or taken away: %s.", strings.Join(gone, ", "))
		}
		if q.Baseline == q.Treatment {
			break
		}
	}
	if b, t := &rep.Arms[0], &rep.Arms[1]; b.Total.Completed != t.Total.Completed {
		say("The arms have answers to different numbers of requests, %s %d and %s %d: makespan is of answers that came, and slo_debt_s counts what never came up to the last of them, so an arm that refuses ends sooner and owes less.",
			b.Name, b.Total.Completed, t.Name, t.Total.Completed)
	}
	if words := otherLimits(a.plan); len(words) > 0 {
		say("The plan has limits of gates that are not the defaults: %s.", strings.Join(words, ", "))
	}
	for i := range rep.Decisions {
		e := &rep.Decisions[i]
		if n := rep.Floor.of(e.Metric, e.Scale); n != nil && n.Unknown != "" {
			say("%s was not held against the rig's noise, which the A/A run does not tell: %s.", e.Metric, n.Unknown)
		}
	}
	if rep.Floor == nil {
		say("No A/A run is known, so no effect was held against the rig's noise.")
	} else if q.AA != nil {
		aa, b := q.AA.Manifest, q.Baseline.Manifest
		if aa.Runner != b.Runner {
			say("The A/A run is by runner %s.", aa.Runner)
		}
		if aa.Host != b.Host {
			say("The A/A run is of another machine: %v, the comparison of %v.", aa.Host, b.Host)
		}
	}
	if n := rep.Plan.PairsPlanned; rep.Plan.StopAt == 0 && n == 0 {
		say("The plan does not say how many pairs it asks for, so it cannot be told whether all have run.")
	}
}
