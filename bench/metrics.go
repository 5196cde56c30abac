package bench

import (
	"math"
	"slices"

	"headgate/sim"
)

// Metric is one figure of a run. All are made from the run's request lines and
// the plan's on_time, and from nothing else.
//
// Interactive below are the requests of on_time's class that arrive in its
// window, batch the requests of all other classes; requests of the warm-up and
// those that no arm was offered count in neither.
type Metric struct {
	Name   string
	Unit   string // s, share, tokens/s, requests or tokens
	Higher bool   // is better
	About  string
	of     func(*measured) float64
}

// P99Requests are the requests of a run below which its ttft_p99 is its luck, and decides
// nothing.
const P99Requests = 500

var metrics = []Metric{
	{"on_time_share", "share", true, "interactive requests that were on time", func(m *measured) float64 { return share(m.met, len(m.interactive)) }},
	{"ttft_p50", "s", false, "from arrival to first token, interactive; what was not completed is infinite", func(m *measured) float64 { return quantile(m.ttft, 50) }},
	{"ttft_p95", "s", false, "the same, of which 95 of 100 do not exceed it", func(m *measured) float64 { return quantile(m.ttft, 95) }},
	{"ttft_p99", "s", false, "the same, 99 of 100", func(m *measured) float64 { return quantile(m.ttft, 99) }},
	{"e2e_p95", "s", false, "from arrival to the last token, interactive; what was not completed is infinite", func(m *measured) float64 { return quantile(m.e2e, 95) }},
	{"batch_tokens_per_s", "tokens/s", true, "prompt and output tokens of batch answers that were complete at the trace's end, over its measured part", func(m *measured) float64 {
		return m.batchTokens / (m.span / 1000)
	}},
	{"batch_completed", "requests", true, "batch requests that were completed, whenever", func(m *measured) float64 { return float64(m.batchDone) }},
	{"makespan", "s", false, "from the trace's start to the last answer of any class", func(m *measured) float64 { return m.end / 1000 }},
	{"slo_debt_s", "s", false, "sum over interactive requests of the time by which the first token was later than on_time's ttft; one that never came is late until the makespan's end", func(m *measured) float64 { return m.debt / 1000 }},
	{"worst_minute", "share", true, "on-time share of the minute of arrival, counted from the trace's start, in which it was lowest", func(m *measured) float64 { return lowest(m.minutes) }},
	{"worst_tenant", "share", true, "on-time share of the tenant for whom it was lowest", func(m *measured) float64 { return lowest(m.tenants) }},
	{"wasted_tokens", "tokens", false, "tokens of all classes that were prefilled again after a reclaim or, where it is known, a preemption", func(m *measured) float64 { return float64(m.wasted) }},
}

// Metrics returns all metrics, in the order in which they are shown.
func Metrics() []Metric { return slices.Clone(metrics) }

// MetricNames lists them.
func MetricNames() []string {
	names := make([]string, len(metrics))
	for i := range metrics {
		names[i] = metrics[i].Name
	}
	return names
}

// MetricNamed returns one.
func MetricNamed(name string) (Metric, bool) {
	i := slices.IndexFunc(metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return metrics[i], true
}

// Measure makes every metric of one run. One is infinite where so many requests
// had no end that it has no value, and NaN where there was nothing to measure.
func Measure(o *OnTime, lines []sim.RequestLine) map[string]float64 {
	m := measured{minutes: map[int]*tally{}, tenants: map[string]*tally{}}
	for i := range lines {
		l := &lines[i]
		if l.DoneMS != nil {
			m.end = max(m.end, *l.DoneMS)
		}
		m.span = max(m.span, l.MeasuredMS)
	}
	for i := range lines {
		m.take(o, &lines[i])
	}
	all := map[string]float64{}
	for i := range metrics {
		all[metrics[i].Name] = metrics[i].of(&m)
	}
	return all
}

// measured is a run, counted. Times are in milliseconds.
type measured struct {
	interactive []*sim.RequestLine
	met         int
	ttft, e2e   []float64
	minutes     map[int]*tally
	tenants     map[string]*tally
	debt        float64
	batchDone   int
	batchTokens float64
	wasted      int
	span, end   float64
}

// tally counts requests, and those of them that were on time.
type tally struct{ of, met int }

func (m *measured) take(o *OnTime, l *sim.RequestLine) {
	if l.Warmup || l.Outcome == sim.Skipped {
		return
	}
	m.wasted += l.Recomputed
	if l.Class != o.Class {
		if l.Outcome == sim.Completed {
			m.batchDone++
			if l.InTime {
				m.batchTokens += float64(l.Prompt + l.Output)
			}
		}
		return
	}
	if !o.Of(l) {
		return
	}
	met := o.Met(l)
	m.interactive = append(m.interactive, l)
	if met {
		m.met++
	}
	first, done := math.Inf(1), math.Inf(1)
	if l.Outcome == sim.Completed && l.FirstTokenMS != nil && l.DoneMS != nil {
		first, done = *l.FirstTokenMS-*l.ArrivalMS, *l.DoneMS-*l.ArrivalMS
	}
	m.ttft, m.e2e = append(m.ttft, first/1000), append(m.e2e, done/1000)
	m.debt += max(0, min(first, m.end-*l.ArrivalMS)-ms(o.TTFT))
	count(m.minutes, int(*l.ArrivalMS/60_000), met)
	count(m.tenants, l.Tenant, met)
}

func count[K comparable](by map[K]*tally, key K, met bool) {
	t := by[key]
	if t == nil {
		t = &tally{}
		by[key] = t
	}
	t.of++
	if met {
		t.met++
	}
}

func share(n, of int) float64 {
	if of == 0 {
		return math.NaN()
	}
	return float64(n) / float64(of)
}

func lowest[K comparable](by map[K]*tally) float64 {
	low := math.NaN()
	for _, t := range by {
		if s := share(t.met, t.of); math.IsNaN(low) || s < low {
			low = s
		}
	}
	return low
}

// quantile is the smallest value that at least p of a hundred do not exceed, so
// one that occurred.
func quantile(values []float64, p int) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(p*len(sorted)+99)/100-1]
}
