package report

import (
	"fmt"
	"slices"
	"strings"

	"headgate/bench"
	"headgate/stats"
)

// pairOf is a pair of runs by their digests.
type pairOf struct {
	source              string
	baseline, treatment *digest
	treatmentFirst      bool
	excluded            string
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
