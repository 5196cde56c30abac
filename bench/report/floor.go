package report

import (
	"fmt"

	"headgate/bench"
	"headgate/stats"
)

// measureFloor finds the rig's noise, where there is an A/A run.
func (a *Analysis) measureFloor(q *Question) error {
	e, runs := q.Baseline, a.runs
	of := "two arms of this plan that are the same but for their names"
	x, y, ok := twins(e.Plan)
	if q.AA != nil && q.AA != q.Baseline {
		e, of = q.AA, "an A/A run of its own"
		if x, y, ok = twins(e.Plan); !ok {
			return noTwins(e)
		}
		if e.Plan.SHA256() != a.plan.SHA256() {
			of += fmt.Sprintf(", by the plan %q (%.12s)", e.Plan.Name, e.Plan.SHA256())
		}
		runs = nil
		for i := range e.Results {
			r := &e.Results[i]
			if r.Arm != x && r.Arm != y {
				continue
			}
			d, err := digestRun(e, 0, &a.plan.OnTime, r)
			if err != nil {
				return err
			}
			runs = append(runs, d)
		}
	} else if !ok && q.AA != nil {
		return noTwins(e)
	} else if !ok || q.Baseline != q.Treatment {
		return nil
	}
	f := &Floor{Of: of, Baseline: x, Other: y, Pairs: []Pair{}}
	if q.AA != nil && q.AA != q.Baseline {
		for _, d := range runs {
			f.Runs = append(f.Runs, d.Run)
		}
	}
	pairs, _ := pairUp(runs, x, y, false)
	for i := range pairs {
		f.Pairs = append(f.Pairs, a.pair(&pairs[i], runs))
	}
	for _, on := range a.scales() {
		n, err := noise(on.metric, on.scale, pairs)
		if err != nil {
			return err
		}
		f.Noise = append(f.Noise, n)
	}
	a.Report.Floor = f
	return nil
}

func noTwins(e *Evidence) error {
	return fmt.Errorf("plan %q has no two arms that are the same but for their names: allowed for an A/A run is one that has", e.Plan.Name)
}

type onScale struct {
	metric *bench.Metric
	scale  string
}

// scales are all that effects are made of: each metric on its own scale, and on that
// of the criterion that it has.
func (a *Analysis) scales() []onScale {
	var all []onScale
	c := &a.plan.Compare
	for _, m := range bench.Metrics() {
		own := scaleOf(&m)
		all = append(all, onScale{&m, own})
		for _, k := range append(append([]bench.Criterion{}, c.NoHarm...), c.Gain) {
			if s := criterionScale(&k); k.Metric == m.Name && s != own {
				all = append(all, onScale{&m, s})
				break
			}
		}
	}
	return all
}

// noise is a metric's noise floor.
func noise(m *bench.Metric, scale string, pairs []pairOf) (MetricBase, error) {
	n := MetricBase{Metric: m.Name, Unit: m.Unit, Scale: scale, SD: missing, P95: missing, Flip: missing, Position: missing, Trend: missing, Drift: missing}
	e, of, err := effects(m, scale, pairs)
	if err != nil {
		return n, err
	}
	n.Values = e.Values
	if of == nil {
		n.Unknown = "no pair has a value of it"
		return n, nil
	}
	var rehearsals []stats.Rehearsal
	for i := range pairs {
		p := &pairs[i]
		b, why := p.baseline.value(m.Name)
		t, whyT := p.treatment.value(m.Name)
		if p.excluded == "" && why == "" && whyT == "" {
			rehearsals = append(rehearsals, stats.Rehearsal{Pair: stats.Pair{Baseline: b, Treatment: t}, TreatmentFirst: p.treatmentFirst})
		}
	}
	f, err := stats.NoiseFloor(rehearsals, effectsOn(scale), flipSeed)
	if err != nil { // too few, or infinite: the floor is not known
		n.Unknown = err.Error()
		return n, nil
	}
	n.SD, n.P95, n.Flip, n.Position, n.Trend, n.Drift = Number(f.SD), Number(f.P95), Number(f.Flip), Number(f.Position), Number(f.Trend), Number(f.Drift)
	n.Rejected = f.Rejected
	return n, nil
}

// of finds a metric's noise on a scale.
func (f *Floor) of(metric, scale string) *MetricBase {
	if f == nil {
		return nil
	}
	for i := range f.Noise {
		if n := &f.Noise[i]; n.Metric == metric && n.Scale == scale {
			return n
		}
	}
	return nil
}

// RejectedRig names the criteria's metrics for which an A/A run rejects the rig.
func (r *Report) RejectedRig() []string {
	var all []string
	for i := range r.Decisions {
		e := &r.Decisions[i]
		if n := r.Floor.of(e.Metric, e.Scale); n != nil && len(n.Rejected) > 0 {
			all = append(all, e.Metric)
		}
	}
	return all
}
