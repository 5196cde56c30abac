package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"headgate/bench"
	"headgate/stats"
)

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
