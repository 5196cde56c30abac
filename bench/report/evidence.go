package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"headgate/bench"
	"headgate/sim"
	"headgate/stats"
)

// Evidence is what a directory has.
type Evidence struct {
	Plan     *bench.Plan
	Manifest *bench.Manifest
	Results  []bench.Result // in the order of running
	// Requests reads one run's lines, which are not kept.
	Requests func(*bench.Result) ([]sim.RequestLine, error)
}

// Read opens a directory and reads all but the requests.
func Read(path string) (*Evidence, error) {
	d, err := bench.Open(path)
	if err != nil {
		return nil, err
	}
	e := &Evidence{Requests: d.Requests}
	if e.Plan, err = d.Plan(); err != nil {
		return nil, err
	}
	if e.Manifest, err = d.Manifest(); err != nil {
		return nil, err
	}
	if e.Manifest.PlanSHA256 != e.Plan.SHA256() {
		return nil, fmt.Errorf("evidence: %s: the plan has hash %s, the manifest says %s: it was changed", path, e.Plan.SHA256(), e.Manifest.PlanSHA256)
	}
	if e.Results, err = d.Results(); err != nil {
		return nil, err
	}
	for i := range e.Results {
		if r := &e.Results[i]; r.Plan != e.Plan.SHA256() {
			return nil, fmt.Errorf("evidence: %s: run %d is of the plan %s, not %s: it was changed", path, r.Run, r.Plan, e.Plan.SHA256())
		}
	}
	return e, nil
}

// source describes where runs are from.
func (e *Evidence) source() Source {
	m := e.Manifest
	return Source{PlanSHA256: e.Plan.SHA256(), Runner: m.Runner, Version: m.Version, Created: m.Created, Host: m.Host, Files: m.Files}
}

// digest is what is kept of a run's requests.
type digest struct {
	Run
	result  *bench.Result
	times   []float64     // to first token in s, of what on_time is asked of; +Inf where it was not completed
	ttft    *stats.Sample // the same; nil if there is none
	tenants map[string]Tally
}

// value is a metric, NaN where it has none; why says the reason.
func (d *digest) value(metric string) (v float64, why string) {
	v = float64(d.Metrics[metric])
	switch {
	case slices.Contains(d.Censored, metric):
		return v, fmt.Sprintf("run %d: a gate leaves it without a value", d.Run.Run)
	case slices.Contains(d.Hidden, metric):
		return v, fmt.Sprintf("run %d has %d requests, needed are %d", d.Run.Run, d.OnTime.Offered, p99Requests)
	case math.IsNaN(v):
		return v, fmt.Sprintf("run %d has nothing to measure it by", d.Run.Run)
	}
	return v, ""
}

// digestRun reads a run's requests.
func digestRun(e *Evidence, index int, o *bench.OnTime, r *bench.Result) (*digest, error) {
	lines, err := e.Requests(r)
	if err != nil {
		return nil, err
	}
	d := &digest{result: r, tenants: map[string]Tally{}}
	d.Run = Run{
		Evidence: index, Run: r.Run, Arm: r.Arm, Source: r.Source.Name, Seed: r.Source.Seed, Trace: r.Trace, Started: r.Started,
		Requests: r.Requests, RequestsSHA256: r.RequestsSHA256, Invalid: []string{}, Metrics: map[string]Number{},
	}
	for _, g := range r.Gates {
		switch words := g.Name + ": " + g.Words; {
		case g.Unknown:
			d.Unknown = append(d.Unknown, words)
		case g.OK:
		case g.Waived:
			d.Waived = append(d.Waived, gateWords(&g))
		case len(g.Censors) > 0:
			d.Censored = append(d.Censored, g.Censors...)
		default:
			d.Invalid = append(d.Invalid, gateWords(&g))
		}
	}
	slices.Sort(d.Censored)
	d.Censored = slices.Compact(d.Censored)
	d.count(o, lines)
	if d.OnTime.Offered < p99Requests {
		d.Hidden = []string{"ttft_p99"}
	}
	for name, v := range bench.Measure(o, lines) {
		if slices.Contains(d.Hidden, name) || slices.Contains(d.Censored, name) {
			v = math.NaN()
		}
		d.Metrics[name] = Number(v)
	}
	return d, nil
}

func gateWords(g *bench.Gate) string {
	if g.Value == nil {
		return g.Name + ": " + g.Words
	}
	return fmt.Sprintf("%s: %s (%.4g, allowed is %.4g %s)", g.Name, g.Words, *g.Value, g.Limit, g.Unit)
}

// count counts the requests of a run, and finds its worst minute and tenant.
func (d *digest) count(o *bench.OnTime, lines []sim.RequestLine) {
	c := &d.Counts
	minutes := map[int]Tally{}
	for i := range lines {
		l := &lines[i]
		switch {
		case l.Outcome == sim.Skipped:
			c.Skipped++
			continue
		case l.Warmup:
			c.Warmup++
			continue
		}
		c.take(l, o.Class)
		if !o.Of(l) {
			continue
		}
		met := o.Met(l)
		d.OnTime = d.OnTime.and(met)
		minute := int(*l.ArrivalMS / 60_000)
		minutes[minute] = minutes[minute].and(met)
		d.tenants[l.Tenant] = d.tenants[l.Tenant].and(met)
		first := math.Inf(1)
		if l.Outcome == sim.Completed && l.FirstTokenMS != nil && l.DoneMS != nil {
			first = (*l.FirstTokenMS - *l.ArrivalMS) / 1000
		}
		d.times = append(d.times, first)
	}
	d.ViolationsPer10k = d.OnTime.per10k()
	if len(d.times) > 0 {
		d.ttft, _ = stats.NewSample(d.times) // none is NaN
	}
	if minute, t, ok := lowest(minutes); ok {
		d.WorstMinute = &WorstMinute{Source: d.Source, Minute: minute, Tally: t}
	}
	d.WorstTenant = worstTenant(d.tenants)
}

// take counts one request that was offered.
func (c *Counts) take(l *sim.RequestLine, protected string) {
	c.Offered++
	c.Reclaims += l.Reclaims
	c.Preemptions += l.Preemptions
	c.WastedTokens += l.Recomputed
	switch l.Outcome {
	case sim.Completed:
		c.Completed++
		c.PromptTokens += l.Prompt
		c.OutputTokens += l.Output
		if l.Class != protected {
			c.BatchDone++
			if l.InTime {
				c.BatchTokens += l.Prompt + l.Output
			}
		}
	case sim.Rejected:
		c.Refused++
	case bench.Aborted:
		c.Aborted++
	case bench.TimedOut:
		c.TimedOut++
	default:
		c.Failed++
	}
}

func (c *Counts) add(o *Counts) {
	for _, f := range []struct {
		to *int
		n  int
	}{
		{&c.Offered, o.Offered}, {&c.Completed, o.Completed}, {&c.Refused, o.Refused}, {&c.Failed, o.Failed}, {&c.Aborted, o.Aborted},
		{&c.TimedOut, o.TimedOut}, {&c.Skipped, o.Skipped}, {&c.Warmup, o.Warmup}, {&c.BatchDone, o.BatchDone}, {&c.BatchTokens, o.BatchTokens},
		{&c.PromptTokens, o.PromptTokens}, {&c.OutputTokens, o.OutputTokens}, {&c.Reclaims, o.Reclaims}, {&c.Preemptions, o.Preemptions},
		{&c.WastedTokens, o.WastedTokens},
	} {
		*f.to += f.n
	}
}

func (t Tally) and(met bool) Tally {
	t.Offered++
	if met {
		t.Met++
	}
	return t
}

func (t Tally) share() float64 { return float64(t.Met) / float64(t.Offered) }

func (t Tally) per10k() Number {
	rate, ok := stats.Per10k(t.Offered-t.Met, t.Offered)
	if !ok {
		return missing
	}
	return Number(rate)
}

// lowest is the first key, in order, whose share is lowest.
func lowest[K int | string](by map[K]Tally) (key K, worst Tally, ok bool) {
	for _, k := range slices.Sorted(maps.Keys(by)) {
		if t := by[k]; !ok || t.share() < worst.share() {
			key, worst, ok = k, t, true
		}
	}
	return key, worst, ok
}

// worstTenant is nil where requests have no tenants.
func worstTenant(by map[string]Tally) *Tenant {
	name, t, _ := lowest(by)
	if name == "" {
		return nil
	}
	return &Tenant{Tenant: name, Tally: t}
}

// arm sums up an arm's runs.
func arm(name string, runs []*digest) Arm {
	a := Arm{Name: name, Runs: len(runs), ViolationsPer10k: missing}
	tenants := map[string]Tally{}
	for _, d := range runs {
		a.Total.add(&d.Counts)
		a.OnTime.Offered += d.OnTime.Offered
		a.OnTime.Met += d.OnTime.Met
		if w := d.WorstMinute; w != nil && (a.WorstMinute == nil || w.share() < a.WorstMinute.share()) {
			a.WorstMinute = w
		}
		for t, n := range d.tenants {
			have := tenants[t]
			tenants[t] = Tally{Offered: have.Offered + n.Offered, Met: have.Met + n.Met}
		}
	}
	a.ViolationsPer10k = a.OnTime.per10k()
	a.WorstTenant = worstTenant(tenants)
	for _, m := range bench.Metrics() {
		a.Metrics = append(a.Metrics, armMetric(&m, runs))
	}
	a.Beside = beside(runs)
	return a
}

func armMetric(m *bench.Metric, runs []*digest) ArmMetric {
	a := ArmMetric{Metric: m.Name, Unit: m.Unit, Median: missing, Worst: missing}
	var values []float64
	for _, d := range runs {
		v, why := d.value(m.Name)
		if why != "" {
			continue
		}
		values = append(values, v)
		if w := float64(a.Worst); len(values) == 1 || m.Higher && v < w || !m.Higher && v > w {
			a.Worst, a.WorstSource = Number(v), d.Source
		}
	}
	a.Runs, a.Median = len(values), Number(median(values))
	return a
}

// median is the middle value, or the mean of the middle two; NaN of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return s[n/2-1]/2 + s[n/2]/2
	}
	return s[len(s)/2]
}

// beside sums up what is not in the requests.
func beside(runs []*digest) BesideRequests {
	var b BesideRequests
	var granted, scheduled, settled []float64
	lent := 0.0
	preempted, told := int64(0), true
	for _, d := range runs {
		for _, c := range d.result.Recalls {
			b.Recalls++
			granted, scheduled, settled = append(granted, orInf(c.GrantedMS)), append(scheduled, orInf(c.ScheduledMS)), append(settled, orInf(c.SettledMS))
		}
		for _, p := range d.result.Timeline {
			lent += float64(p.Lent) * bench.TimelineEvery.Seconds()
		}
		if n := d.result.Engine.Preemptions; n < 0 {
			told = false
		} else {
			preempted += n
		}
	}
	b.Granted, b.Scheduled, b.Settled, b.LentSlotS = waits(granted), waits(scheduled), waits(settled), Number(lent)
	if told && len(runs) > 0 {
		b.EnginePreemptions = &preempted
	}
	return b
}

func waits(ms []float64) Waits {
	w := Waits{MedianMS: Number(median(ms)), WorstMS: missing}
	for _, v := range ms {
		if math.IsInf(v, 1) {
			w.Never++
		}
	}
	if len(ms) > 0 {
		w.WorstMS = Number(slices.Max(ms))
	}
	return w
}

func orInf(v *float64) float64 {
	if v == nil {
		return math.Inf(1)
	}
	return *v
}

func millis(d bench.Duration) float64 { return float64(d) / float64(time.Millisecond) }
