package report

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
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

// pairOf is a pair of runs by their digests.
type pairOf struct {
	source              string
	baseline, treatment *digest
	treatmentFirst      bool
	excluded            string
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

// pairs finds the two runs of each source, and names the sources that have one only. In
// one directory a source is the plan's block; two directories have the same trace.
func (a *Analysis) pairs(q *Question) (pairs []pairOf, alone []string) {
	return pairUp(a.runs, q.BaselineArm, q.TreatmentArm, q.Baseline != q.Treatment)
}

func pairUp(runs []*digest, baseline, treatment string, apart bool) (pairs []pairOf, alone []string) {
	is := func(d *digest, arm string, evidence int) bool {
		return d.Arm == arm && (!apart || d.Evidence == evidence)
	}
	paired := map[*digest]bool{}
	for _, b := range runs {
		if !is(b, baseline, 0) {
			continue
		}
		i := slices.IndexFunc(runs, func(t *digest) bool {
			if !is(t, treatment, 1) || paired[t] {
				return false
			}
			if apart {
				return t.Trace == b.Trace
			}
			return t.result.Block == b.result.Block
		})
		if i < 0 {
			continue
		}
		t := runs[i]
		paired[b], paired[t] = true, true
		p := pairOf{source: b.Source, baseline: b, treatment: t, treatmentFirst: t.result.Order < b.result.Order}
		if apart {
			p.treatmentFirst = t.Started.Before(b.Started)
		}
		var why []string
		for _, d := range []*digest{b, t} {
			for _, words := range d.Invalid {
				why = append(why, fmt.Sprintf("%s, run %d: %s", d.Arm, d.Run.Run, words))
			}
		}
		if b.Trace != t.Trace && len(why) == 0 {
			why = append(why, "the two runs had different traces")
		}
		p.excluded = strings.Join(why, "; ")
		pairs = append(pairs, p)
	}
	slices.SortStableFunc(pairs, func(a, b pairOf) int { return a.baseline.result.Block - b.baseline.result.Block })
	for _, d := range runs {
		if (is(d, baseline, 0) || is(d, treatment, 1)) && !paired[d] {
			alone = append(alone, fmt.Sprintf("%s (%s only)", d.Source, d.Arm))
		}
	}
	return pairs, alone
}

func (a *Analysis) pair(p *pairOf, runs []*digest) Pair {
	return Pair{
		Source: p.source, Baseline: slices.Index(runs, p.baseline), Treatment: slices.Index(runs, p.treatment),
		TreatmentFirst: p.treatmentFirst, Excluded: p.excluded,
	}
}

// effects of a metric in the pairs that count.
func effects(m *bench.Metric, scale string, pairs []pairOf) (Effect, *stats.Effects, error) {
	e := Effect{
		Metric: m.Name, Unit: m.Unit, Better: "lower", Scale: scale, Values: []PairValue{},
		Estimate: missing, Interval: Interval{missing, missing, missing, level}, MDE: missing,
	}
	if m.Higher {
		e.Better = "higher"
	}
	var all []stats.Pair
	for i := range pairs {
		p := &pairs[i]
		if p.excluded != "" {
			continue
		}
		b, why := p.baseline.value(m.Name)
		t, whyT := p.treatment.value(m.Name)
		if why == "" {
			why = whyT
		}
		if why != "" {
			e.LeftOut = append(e.LeftOut, LeftOut{p.source, why})
			continue
		}
		all = append(all, stats.Pair{Baseline: b, Treatment: t})
		e.Values = append(e.Values, PairValue{Source: p.source, Baseline: Number(b), Treatment: Number(t)})
	}
	if len(all) == 0 {
		return e, nil, nil
	}
	of, err := effectsOn(scale)(all)
	if err != nil {
		return e, nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	for i, v := range of.Values() {
		e.Values[i].Effect = Number(v)
	}
	unknown := of.Unknown()
	for _, i := range unknown {
		e.Values[i].Effect = missing
	}
	i, err := of.Interval(level)
	if err != nil {
		return e, nil, err
	}
	e.Interval, e.MDE = interval(i), Number(of.MDE(level, 2))
	if len(unknown) < of.Len() { // of nothing that is known there is no estimate
		e.Estimate = Number(of.Estimate())
	}
	return e, of, nil
}

func interval(i stats.Interval) Interval {
	return Interval{Low: Number(i.Low), High: Number(i.High), Level: Number(i.Level), Asked: i.Asked}
}

func effectsOn(scale string) func([]stats.Pair) (*stats.Effects, error) {
	if scale == LogRatio {
		return stats.Ratios
	}
	return stats.Differences
}

// scaleOf is the scale of a metric where no margin says one: what may be 0, and shares,
// have no ratio to speak of.
func scaleOf(m *bench.Metric) string {
	if m.Unit == "share" || m.Unit == "requests" || m.Unit == "tokens" || m.Name == "slo_debt_s" {
		return Difference
	}
	return LogRatio
}

func criterionScale(c *bench.Criterion) string {
	if c.Margin.Relative {
		return LogRatio
	}
	return Difference
}

// judge makes every effect, and the verdict.
func (a *Analysis) judge(pairs []pairOf) error {
	rep, p := &a.Report, a.plan
	if s := &p.Stop; s.EProcess == 0 && s.AtMost > 0 && rep.counted() >= s.Pairs {
		rep.Plan.PairsPlanned = s.Pairs
	}
	unfinished := ""
	if n := rep.Plan.PairsPlanned; rep.Plan.StopAt == 0 && len(pairs) < n {
		unfinished = fmt.Sprintf("%d of %d pairs have run, and a fixed number of pairs is not judged before all have", len(pairs), n)
	}
	var chain []*stats.Decision
	for i := range p.Compare.NoHarm {
		d, err := a.decide(RoleNoHarm, &p.Compare.NoHarm[i], pairs, unfinished)
		if err != nil {
			return err
		}
		chain = append(chain, d)
	}
	d, err := a.decide(RoleGain, &p.Compare.Gain, pairs, unfinished)
	if err != nil {
		return err
	}
	outcome, err := stats.Gatekeep(append(chain, d)...)
	if err != nil {
		return err
	}
	rep.Verdict = string(outcome.Verdict)
	decided := map[string]bool{}
	for i, d := range outcome.Decisions {
		e := &rep.Decisions[i]
		e.Verdict, e.Reason = string(d.Verdict), d.Reason
		rep.Reasons = append(rep.Reasons, d.Reason)
		decided[e.Metric+e.Scale] = true
	}
	if err := a.secondary(pairs, unfinished); err != nil {
		return err
	}
	for _, m := range bench.Metrics() {
		if decided[m.Name+scaleOf(&m)] || slices.Contains(p.Secondary, m.Name) {
			continue
		}
		e, _, err := effects(&m, scaleOf(&m), pairs)
		if err != nil {
			return err
		}
		e.Role = RoleDescribed
		rep.Described = append(rep.Described, e)
	}
	return nil
}

// decide judges one criterion, and adds its effect to the report.
func (a *Analysis) decide(role string, c *bench.Criterion, pairs []pairOf, unfinished string) (*stats.Decision, error) {
	m, _ := bench.MetricNamed(c.Metric) // the plan is valid
	e, of, err := effects(&m, criterionScale(c), pairs)
	if err != nil {
		return nil, err
	}
	e.Role = role
	rule := stats.Rule{Name: m.Name, Better: stats.IsLower, Margin: c.Margin.Value, Level: level}
	if m.Higher {
		rule.Better = stats.IsHigher
	}
	var d *stats.Decision
	switch {
	case of == nil:
		why := "no pair counts"
		if len(e.LeftOut) > 0 {
			why = fmt.Sprintf("no pair has a value of it: in %s, %s", e.LeftOut[0].Source, e.LeftOut[0].Why)
		}
		d = &stats.Decision{Name: m.Name, Verdict: stats.Inconclusive, Reason: m.Name + ": could not tell: " + why}
		a.Report.Decisions = append(a.Report.Decisions, e)
		return d, nil
	case a.Report.Plan.StopAt > 0:
		d, err = sequential(role, &e, of, rule, a.Report.Plan.StopAt)
	case role == RoleNoHarm:
		if d, err = stats.NoHarm(of, rule, flipSeed); err == nil {
			e.Bound = &Bound{Value: Number(d.Bound.Value), Level: Number(d.Bound.Level), Asked: d.Bound.Asked}
		}
	default:
		if d, err = stats.Gain(of, rule, flipSeed); err == nil {
			e.P = number(d.Flip.P)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("plan: compare.%s: %w", role, err)
	}
	e.Margin, e.MDE = number(d.Margin), Number(d.MDE)
	sides := 2
	if role == RoleNoHarm {
		sides = 1
	}
	withhold := func(why string) {
		if d.Verdict != stats.Inconclusive {
			d.Reason = strings.Replace(d.Reason, ": ", ": could not tell: "+why+"; without that it would have been: ", 1)
			d.Verdict = stats.Inconclusive
		}
	}
	a.below(&e, of, sides, d.Margin, withhold)
	if unfinished != "" {
		withhold(unfinished)
	}
	a.Report.Decisions = append(a.Report.Decisions, e)
	return d, nil
}

// below holds an effect against the rig's noise.
func (a *Analysis) below(e *Effect, of *stats.Effects, sides int, margin float64, withhold func(why string)) {
	n := a.Report.Floor.of(e.Metric, e.Scale)
	if n == nil {
		return
	}
	if len(n.Rejected) > 0 {
		withhold("an A/A run has rejected this rig (" + strings.Join(n.Rejected, "; ") + ")")
		return
	}
	if n.Unknown != "" {
		return
	}
	floor := stats.MDE(of.Len(), float64(n.SD), level, sides)
	e.FloorMDE = number(floor)
	if far := math.Abs(float64(e.Estimate) - margin); far < floor {
		from := "0"
		if margin != 0 {
			from = "the margin"
		}
		withhold(fmt.Sprintf("the effect is %s from %s, less than the %s that the rig's own noise needs to be told from it",
			unsigned(of, far), from, unsigned(of, floor)))
	}
}

// unsigned writes a distance on the effects' scale.
func unsigned(of *stats.Effects, v float64) string { return strings.TrimPrefix(of.Text(v), "+") }

// secondary tests the plan's secondary metrics together.
func (a *Analysis) secondary(pairs []pairOf, unfinished string) error {
	var list []Effect
	var on []*stats.Effects
	var tested []int
	var p []float64
	for _, name := range a.plan.Secondary {
		m, _ := bench.MetricNamed(name)
		e, of, err := effects(&m, scaleOf(&m), pairs)
		if err != nil {
			return err
		}
		e.Role = RoleSecondary
		if of != nil {
			v := of.Flip(flipSeed).P
			if at := a.Report.Plan.StopAt; at > 0 {
				e.EProcess, v = evidence(of, 0, at)
			}
			e.P = number(v)
			tested, p = append(tested, len(list)), append(p, v)
		}
		list, on = append(list, e), append(on, of)
	}
	adjusted := stats.Holm(p)
	for k, i := range tested {
		list[i].PHolm = number(adjusted[k])
	}
	for i := range list {
		a.word(&list[i], on[i], unfinished)
	}
	a.Report.Secondary = append(a.Report.Secondary, list...)
	return nil
}

const couldNotTell = "could not tell"

// word says what a secondary effect came to.
func (a *Analysis) word(e *Effect, of *stats.Effects, unfinished string) {
	e.Verdict = couldNotTell
	if of == nil {
		e.Reason = e.Metric + ": could not tell: no pair has a value of it"
		return
	}
	i, x := e.Interval, float64(e.Estimate)
	words := fmt.Sprintf("%s, with %.4g %% confidence %s to %s, p %.2g, adjusted %.2g",
		of.Text(x), 100*float64(i.Level), of.Text(float64(i.Low)), of.Text(float64(i.High)), float64(*e.P), float64(*e.PHolm))
	clear := i.Low > 0 || i.High < 0
	enough := float64(i.Level) >= level && of.Len() >= stats.ClaimPairs
	if e.EProcess != nil {
		// The interval does not hold where one may stop; the e-process' p-value does.
		clear, enough = x != 0, true
	}
	if clear && enough && float64(*e.PHolm) <= 1-level {
		e.Verdict = "worse"
		if (x > 0) == (e.Better == "higher") {
			e.Verdict = "better"
		}
	}
	var why []string
	withhold := func(w string) {
		if e.Verdict != couldNotTell {
			e.Verdict, why = couldNotTell, append(why, w)
		}
	}
	a.below(e, of, 2, 0, withhold)
	if unfinished != "" {
		withhold(unfinished)
	}
	e.Reason = strings.Join(append([]string{e.Metric + ": " + e.Verdict + ": " + words}, why...), "; ")
	if e.Verdict == couldNotTell {
		e.Reason += "; " + mdeWords(of, float64(e.MDE))
	}
}

func mdeWords(of *stats.Effects, mde float64) string {
	if math.IsInf(mde, 1) || math.IsNaN(mde) {
		return "the minimum detectable effect is not known, since the effects' spread is not"
	}
	return fmt.Sprintf("the minimum detectable effect of %d pairs is %s (80 %% power)", of.Len(), unsigned(of, mde))
}

// evidence runs the e-process of the effects less a shift.
func evidence(of *stats.Effects, shift, threshold float64) (*EProcess, float64) {
	var p stats.EProcess // its own Stopped is of another value
	out := &EProcess{}
	unknown := of.Unknown()
	top := 0.0
	for i, v := range of.Values() {
		if slices.Contains(unknown, i) {
			v = math.NaN()
		}
		p.Add(v - shift)
		if top = max(top, p.E()); out.Reached == 0 && p.E() >= threshold {
			out.Reached = i + 1
			plus, minus, _ := p.Counts()
			out.Above = plus > minus
		}
	}
	out.E, out.Greatest = Number(p.E()), Number(top)
	out.Plus, out.Minus, out.Ties = p.Counts()
	return out, p.P()
}

// sequential judges a criterion by an e-process, which may be looked at at any time. Its
// error holds with any number of pairs, so no number of pairs is asked for.
func sequential(role string, e *Effect, of *stats.Effects, r stats.Rule, threshold float64) (*stats.Decision, error) {
	// The same checks and the same margin as of a fixed number.
	var d *stats.Decision
	var err error
	if role == RoleNoHarm {
		d, err = stats.NoHarm(of, r, flipSeed)
	} else {
		d, err = stats.Gain(of, r, flipSeed)
	}
	if err != nil {
		return nil, err
	}
	var p float64
	e.EProcess, p = evidence(of, d.Margin, threshold)
	e.P = number(p)
	good, bad := e.EProcess.Plus, e.EProcess.Minus
	if r.Better == stats.IsLower {
		good, bad = bad, good
	}
	better := e.EProcess.Above == (r.Better == stats.IsHigher)
	d.Verdict = stats.Inconclusive
	claim, contrary := "gain", "no such gain"
	if role == RoleNoHarm {
		claim, contrary = "no harm", "harm"
	}
	words := fmt.Sprintf("%d of %d pairs on the better side of the margin %s, estimate %s", good, good+bad, of.Text(d.Margin), of.Text(d.Estimate))
	switch reached := e.EProcess.Reached; {
	case reached == 0:
		d.Reason = fmt.Sprintf("%s: could not tell: %s; the e-process has come to %.3g, a claim needs %g; at a fixed number, %s",
			r.Name, words, float64(e.EProcess.Greatest), threshold, mdeWords(of, d.MDE))
	case better:
		d.Verdict = stats.Pass
		d.Reason = fmt.Sprintf("%s: %s: %s; the e-process was at %g after %d pairs", r.Name, claim, words, threshold, reached)
	default:
		d.Verdict = stats.Fail
		d.Reason = fmt.Sprintf("%s: %s: %s; the e-process was at %g after %d pairs", r.Name, contrary, words, threshold, reached)
	}
	return d, nil
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
