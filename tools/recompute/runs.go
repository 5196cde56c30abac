package main

import (
	"maps"
	"math"
	"slices"
)

// request is what is needed of a line.
type request struct {
	Class       string
	Arrival     float64  `json:"arrival_ms"`
	First       *float64 `json:"first_token_ms"`
	Done        *float64 `json:"done_ms"`
	Outcome     string
	Prompt      int `json:"prompt_tokens"`
	Output      int `json:"output_tokens"`
	Reclaims    int
	Preemptions int
	Recomputed  int `json:"recomputed_tokens"`
	Window      string
	BeforeEnd   bool `json:"before_end"`
	Tenant      string
	Warmup      bool
	Measured    float64 `json:"measured_ms"`
}

// run is a run's figures.
type run struct {
	*runClaim
	values   map[string]float64
	counts   map[string]int
	offered  int
	met      int
	ttft     []float64 // s
	minutes  map[int][2]int
	tenants  map[string][2]int // offered, met
	minute   int               // the worst, -1 for none
	tenant   string            // the worst, "" for none
	tenantOf [2]int
}

func measure(o *objective, claim *runClaim, lines []request, p99Requests int) *run {
	r := &run{runClaim: claim, counts: map[string]int{}, minutes: map[int][2]int{}, tenants: map[string][2]int{}}
	for _, k := range []string{"offered", "completed", "refused", "failed", "aborted", "timed_out", "skipped", "warmup", "batch_completed", "batch_tokens_in_time",
		"prompt_tokens", "output_tokens", "reclaims", "preemptions", "wasted_tokens"} {
		r.counts[k] = 0
	}
	end, span := 0.0, 0.0
	for _, l := range lines {
		if l.Done != nil {
			end = math.Max(end, *l.Done)
		}
		span = math.Max(span, l.Measured)
	}
	var e2e []float64
	debt := 0.0
	for _, l := range lines {
		if l.Outcome == "skipped" {
			r.counts["skipped"]++
			continue
		}
		if l.Warmup {
			r.counts["warmup"]++
			continue
		}
		completed := l.Outcome == "completed"
		r.counts["offered"]++
		r.counts["reclaims"] += l.Reclaims
		r.counts["preemptions"] += l.Preemptions
		r.counts["wasted_tokens"] += l.Recomputed
		switch l.Outcome {
		case "completed":
			r.counts["completed"]++
			r.counts["prompt_tokens"] += l.Prompt
			r.counts["output_tokens"] += l.Output
		case "rejected":
			r.counts["refused"]++
		case "aborted", "timed_out":
			r.counts[l.Outcome]++
		default:
			r.counts["failed"]++
		}
		if l.Class != o.Class {
			if completed {
				r.counts["batch_completed"]++
				if l.BeforeEnd {
					r.counts["batch_tokens_in_time"] += l.Prompt + l.Output
				}
			}
			continue
		}
		if o.Window != "all" && o.Window != l.Window {
			continue
		}
		first, whole := math.Inf(1), math.Inf(1)
		if completed && l.First != nil && l.Done != nil {
			first, whole = *l.First-l.Arrival, *l.Done-l.Arrival
		}
		met := 0
		if first <= o.TTFT && whole <= o.E2E {
			met = 1
		}
		r.offered++
		r.met += met
		r.ttft, e2e = append(r.ttft, first/1000), append(e2e, whole/1000)
		late := first
		if math.IsInf(first, 1) {
			late = end - l.Arrival
		}
		debt += math.Max(0, math.Min(late, end-l.Arrival)-o.TTFT)
		k := int(l.Arrival / 60000)
		r.minutes[k] = [2]int{r.minutes[k][0] + 1, r.minutes[k][1] + met}
		r.tenants[l.Tenant] = [2]int{r.tenants[l.Tenant][0] + 1, r.tenants[l.Tenant][1] + met}
	}
	nan := math.NaN()
	share := nan
	if r.offered > 0 {
		share = float64(r.met) / float64(r.offered)
	}
	r.minute = -1
	worstMinute := nan
	for _, k := range slices.Sorted(maps.Keys(r.minutes)) {
		m := r.minutes[k]
		if s := float64(m[1]) / float64(m[0]); math.IsNaN(worstMinute) || s < worstMinute {
			worstMinute, r.minute = s, k
		}
	}
	var worstTenant float64
	r.tenant, r.tenantOf, worstTenant = lowestTenant(r.tenants)
	p99 := nan
	if r.offered >= p99Requests {
		p99 = rank(r.ttft, 99)
	}
	r.values = map[string]float64{
		"on_time_share": share, "ttft_p50": rank(r.ttft, 50), "ttft_p95": rank(r.ttft, 95), "ttft_p99": p99, "e2e_p95": rank(e2e, 95),
		"batch_tokens_per_s": float64(r.counts["batch_tokens_in_time"]) / (span / 1000), "batch_completed": float64(r.counts["batch_completed"]),
		"makespan": end / 1000, "slo_debt_s": debt / 1000, "worst_minute": worstMinute, "worst_tenant": worstTenant,
		"wasted_tokens": float64(r.counts["wasted_tokens"]),
	}
	for _, m := range claim.Censored {
		r.values[m] = nan
	}
	return r
}

// lowestTenant is the first by name of those with the lowest share. Requests without
// tenants have a share of the nameless one, and no name to show.
func lowestTenant(tenants map[string][2]int) (string, [2]int, float64) {
	worst, name := math.NaN(), ""
	for _, n := range slices.Sorted(maps.Keys(tenants)) {
		if s := float64(tenants[n][1]) / float64(tenants[n][0]); math.IsNaN(worst) || s < worst {
			worst, name = s, n
		}
	}
	return name, tenants[name], worst
}

// rank is the smallest value that p of a hundred do not exceed.
func rank(values []float64, p int) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	at := 1
	for 100*at < p*n {
		at++
	}
	return sorted[at-1]
}

// middle is the median.
func middle(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
