package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// metrics are the names in the order of the report, with whether more is better.
var metrics = []struct {
	name   string
	higher bool
}{
	{"on_time_share", true}, {"ttft_p50", false}, {"ttft_p95", false}, {"ttft_p99", false}, {"e2e_p95", false}, {"batch_tokens_per_s", true},
	{"batch_completed", true}, {"makespan", false}, {"slo_debt_s", false}, {"worst_minute", true}, {"worst_tenant", true}, {"wasted_tokens", false},
}

// computation makes every figure, by its path in the report.
type computation struct {
	*claimed
	figures map[string]any
	runs    []*run
	noise   map[string]noise // by metric and scale
}

type noise struct {
	sd       float64
	rejected bool
	known    bool
}

func (x *computation) say(path string, v any) {
	if n, ok := v.(int); ok {
		v = float64(n)
	}
	x.figures[path] = v
}

func (x *computation) all(files map[string]string) error {
	var err error
	if x.runs, err = x.measure("runs", files, x.Runs); err != nil {
		return err
	}
	if err := x.check(x.Pairs, x.runs); err != nil {
		return err
	}
	x.noise = map[string]noise{}
	if f := x.Floor; f != nil {
		runs := x.runs
		if len(f.Runs) > 0 {
			if runs, err = x.measure("noise_floor.runs", files, f.Runs); err != nil {
				return err
			}
		}
		if err := x.check(f.Pairs, runs); err != nil {
			return err
		}
		for i := range f.Noise {
			x.floor(fmt.Sprintf("noise_floor.noise[%d]", i), &f.Noise[i], f.Pairs, runs)
		}
	}
	x.decisions()
	x.secondary()
	for i := range x.Described {
		x.effect(fmt.Sprintf("described[%d]", i), &x.Described[i])
	}
	x.shift()
	for i := range x.Arms {
		x.arm(i)
	}
	return nil
}

// check holds the pairs against what the report itself says of the runs: a run that a
// gate speaks against, and nothing else, takes its pair out.
func (x *computation) check(pairs []pairClaim, runs []*run) error {
	for _, p := range pairs {
		if min(p.Baseline, p.Treatment) < 0 || max(p.Baseline, p.Treatment) >= len(runs) {
			return fmt.Errorf("pair %s: runs %d and %d, allowed are 0 to %d", p.Source, p.Baseline, p.Treatment, len(runs)-1)
		}
		invalid := len(runs[p.Baseline].Invalid)+len(runs[p.Treatment].Invalid) > 0
		if invalid && p.Excluded == "" || !invalid && p.Excluded != "" && !strings.Contains(p.Excluded, "different traces") {
			return fmt.Errorf("pair %s: excluded is %q, and its runs' gates say otherwise", p.Source, p.Excluded)
		}
	}
	return nil
}

func (x *computation) measure(path string, files map[string]string, claims []runClaim) ([]*run, error) {
	var all []*run
	for i := range claims {
		lines, err := readLines(files, &claims[i])
		if err != nil {
			return nil, err
		}
		r := measure(&x.Plan.OnTime, &claims[i], lines, x.Analysis.P99Requests)
		all = append(all, r)
		at := fmt.Sprintf("%s[%d]", path, i)
		for k, n := range r.counts {
			x.say(at+".counts."+k, n)
		}
		x.tally(at+".on_time", r.offered, r.met)
		x.violations(at, r.offered, r.met)
		for m, v := range r.values {
			x.say(at+".metrics."+m, v)
		}
		if r.minute >= 0 {
			x.worstMinute(at, r)
		}
		if r.tenant != "" {
			x.worstTenant(at, r.tenant, r.tenantOf)
		}
	}
	return all, nil
}

func (x *computation) tally(path string, offered, met int) {
	x.say(path+".offered", offered)
	x.say(path+".met", met)
}

func (x *computation) violations(path string, offered, met int) {
	v := math.NaN()
	if offered > 0 {
		v = 10000 * float64(offered-met) / float64(offered)
	}
	x.say(path+".violations_per_10k", v)
}

func (x *computation) worstMinute(path string, r *run) {
	m := r.minutes[r.minute]
	x.say(path+".worst_minute.source", r.Source)
	x.say(path+".worst_minute.minute", r.minute)
	x.tally(path+".worst_minute", m[0], m[1])
}

func (x *computation) worstTenant(path, name string, of [2]int) {
	x.say(path+".worst_tenant.tenant", name)
	x.tally(path+".worst_tenant", of[0], of[1])
}

// values are a metric's in the pairs that count and have it.
func values(path string, say func(string, any), c *effectClaim, pairs []pairClaim, runs []*run) (b, t, d []float64, second []bool) {
	for _, p := range pairs {
		v, w := runs[p.Baseline].values[c.Metric], runs[p.Treatment].values[c.Metric]
		if p.Excluded != "" || math.IsNaN(v) || math.IsNaN(w) {
			continue
		}
		at := fmt.Sprintf("%s.values[%d]", path, len(d))
		e := effectOf(c.Scale, v, w)
		say(at+".source", p.Source)
		say(at+".baseline", v)
		say(at+".treatment", w)
		say(at+".effect", e)
		b, t, d, second = append(b, v), append(t, w), append(d, e), append(second, p.TreatmentFirst)
	}
	return b, t, d, second
}

// effect makes what every effect has.
func (x *computation) effect(path string, c *effectClaim) []float64 {
	_, _, d, _ := values(path, x.say, c, x.Pairs, x.runs)
	low, high, has, estimate, mde := math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()
	if len(d) > 0 {
		if anyKnown(d) {
			estimate = hodgesLehmann(d)
		}
		low, high, has = interval(d, x.Analysis.Level)
		sides := 2
		if c.Role == "no_harm" {
			sides = 1
		}
		mde = detectable(len(d), deviation(d), x.Analysis.Level, sides)
	}
	x.say(path+".estimate", estimate)
	x.say(path+".interval.low", low)
	x.say(path+".interval.high", high)
	x.say(path+".interval.level", has)
	x.say(path+".mde", mde)
	return d
}

func anyKnown(d []float64) bool {
	return slices.ContainsFunc(d, func(v float64) bool { return !math.IsNaN(v) })
}

const (
	claimPairs  = 10
	noHarmPairs = 30
)

// decisions makes the criteria and the verdict.
func (x *computation) decisions() {
	verdict := "pass"
	for i := range x.Decisions {
		path, c := fmt.Sprintf("decisions[%d]", i), &x.Decisions[i]
		d := x.effect(path, c)
		own := "inconclusive"
		if len(d) > 0 {
			own = x.decide(path, c, d)
		}
		if verdict != "pass" {
			own = "inconclusive" // not tested
		} else {
			verdict = own
		}
		x.say(path+".verdict", own)
	}
	x.say("verdict", verdict)
}

func (x *computation) decide(path string, c *effectClaim, d []float64) string {
	level, n := x.Analysis.Level, len(d)
	good := 1.0 // sign of an effect that is better
	if c.Better == "lower" {
		good = -1
	}
	estimate := hodgesLehmann(d)
	own := "inconclusive"
	sides := 2
	switch {
	case x.Plan.StopAt > 0:
		b := betOn(d, c.Margin, x.Plan.StopAt)
		x.bets(path, b)
		x.say(path+".p", 1/b.greatest)
		if b.reached > 0 {
			own = "fail"
			if b.above == (good > 0) {
				own = "pass"
			}
		}
		if c.Role == "no_harm" {
			sides = 1
		}
	case c.Role == "no_harm":
		sides = 1
		k, beyond := place(n, 1-level)
		low, high := lowEnd(d, k), highEnd(d, k)
		harm, least := low, high // ends on the side of the harm, and on the other
		if good < 0 {
			harm, least = high, low
		}
		x.say(path+".bound.value", harm)
		x.say(path+".bound.level", 1-beyond)
		met := 1-beyond >= level
		switch {
		case n < claimPairs || !met:
		case good*least < good*c.Margin && x.below(d, c.Margin, good) <= 1-level:
			own = "fail"
		case good*harm > good*c.Margin && n >= noHarmPairs && x.below(d, c.Margin, -good) <= 1-level:
			own = "pass"
		}
	default:
		shifted := make([]float64, n)
		for i := range d {
			shifted[i] = d[i] - c.Margin
		}
		p := flip(shifted, x.Analysis.FlipSeed)
		x.say(path+".p", p)
		low, high, has := interval(d, level)
		near, far := low, high
		if good < 0 {
			near, far = high, low
		}
		if n >= claimPairs && has >= level && p <= 1-level {
			switch {
			case good*near > good*c.Margin:
				own = "pass"
			case good*far < good*c.Margin:
				own = "fail"
			}
		}
	}
	if x.withheld(path, c, n, sides, math.Abs(estimate-c.Margin)) {
		return "inconclusive"
	}
	return own
}

// below is the one-sided p-value of the effects' mean being below the margin, where a
// sign turns the axis.
func (x *computation) below(d []float64, margin, sign float64) float64 {
	shifted := make([]float64, len(d))
	for i := range d {
		shifted[i] = sign * (d[i] - margin)
	}
	return flipBelow(shifted, x.Analysis.FlipSeed)
}

// withheld tells whether a claim is not made: the plan is not finished, the rig was
// rejected, or its noise is larger than the effect.
func (x *computation) withheld(path string, c *effectClaim, n, sides int, far float64) bool {
	unfinished := x.Plan.StopAt == 0 && len(x.Pairs) < x.Plan.PairsPlanned
	f, ok := x.noise[c.Metric+" "+c.Scale]
	if !ok || !f.known {
		return unfinished
	}
	if f.rejected {
		return true
	}
	floor := detectable(n, f.sd, x.Analysis.Level, sides)
	x.say(path+".floor_mde", floor)
	return unfinished || far < floor
}

func (x *computation) bets(path string, b bets) {
	x.say(path+".e_process.e", b.now)
	x.say(path+".e_process.greatest", b.greatest)
	x.say(path+".e_process.plus", b.plus)
	x.say(path+".e_process.minus", b.minus)
	x.say(path+".e_process.ties", b.ties)
	x.say(path+".e_process.reached", b.reached)
	x.say(path+".e_process.above", b.above)
}

// secondary makes the metrics that are tested together.
func (x *computation) secondary() {
	all := make([][]float64, len(x.Secondary))
	var tested []int
	var p []float64
	for i := range x.Secondary {
		path := fmt.Sprintf("secondary[%d]", i)
		d := x.effect(path, &x.Secondary[i])
		if all[i] = d; len(d) == 0 {
			continue
		}
		v := flip(d, x.Analysis.FlipSeed)
		if at := x.Plan.StopAt; at > 0 {
			b := betOn(d, 0, at)
			x.bets(path, b)
			v = 1 / b.greatest
		}
		x.say(path+".p", v)
		tested, p = append(tested, i), append(p, v)
	}
	adjusted := holm(p)
	for k, i := range tested {
		path, c, d := fmt.Sprintf("secondary[%d]", i), &x.Secondary[i], all[i]
		x.say(path+".p_holm", adjusted[k])
		low, high, has := interval(d, x.Analysis.Level)
		estimate := hodgesLehmann(d)
		clear := (low > 0 || high < 0) && has >= x.Analysis.Level && len(d) >= claimPairs
		if x.Plan.StopAt > 0 {
			clear = estimate != 0
		}
		word := "could not tell"
		withheld := x.withheld(path, c, len(d), 2, math.Abs(estimate))
		if clear && adjusted[k] <= 1-x.Analysis.Level && !withheld {
			word = "worse"
			if (estimate > 0) == (c.Better == "higher") {
				word = "better"
			}
		}
		x.say(path+".verdict", word)
	}
}

// floor makes a metric's noise.
func (x *computation) floor(path string, c *effectClaim, pairs []pairClaim, runs []*run) {
	b, t, d, first := values(path, x.say, c, pairs, runs)
	nan := math.NaN()
	sd, p95, same, position, rise, drift := nan, nan, nan, nan, nan, nan
	n := noise{}
	if len(d) >= claimPairs && !slices.ContainsFunc(d, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) {
		var size, both, late []float64
		firsts := 0
		for i := range d {
			size, both = append(size, math.Abs(d[i])), append(both, b[i]/2+t[i]/2)
			if first[i] {
				firsts++
				late = append(late, -d[i])
			} else {
				late = append(late, d[i])
			}
		}
		sd, p95 = deviation(d), rank(size, 95)
		seed := x.Analysis.FlipSeed
		same, position, rise, drift = flip(d, seed), flip(late, seed), trend(both), trend(d)
		n = noise{sd: sd, known: true, rejected: same < 0.05 || firsts == 0 || firsts == len(d)}
		for _, p := range holm([]float64{position, rise, drift}) {
			n.rejected = n.rejected || p < 0.05
		}
	}
	x.noise[c.Metric+" "+c.Scale] = n
	x.say(path+".sd", sd)
	x.say(path+".p95", p95)
	x.say(path+".p_flip", same)
	x.say(path+".p_position", position)
	x.say(path+".p_trend", rise)
	x.say(path+".p_drift", drift)
}

// shift makes the effects on quantiles of TTFT.
func (x *computation) shift() {
	for i := range x.Shift {
		q, path := x.Shift[i].Quantile, fmt.Sprintf("shift[%d]", i)
		shown := true
		var d []float64
		for _, p := range x.Pairs {
			b, t := x.runs[p.Baseline].ttft, x.runs[p.Treatment].ttft
			if p.Excluded != "" || len(b) == 0 || len(t) == 0 {
				continue
			}
			for _, s := range [][]float64{b, t} {
				shown = shown && (q < 0.99 || float64(len(s))*(1-q) >= 5-1e-6)
			}
			d = append(d, effectOf("log_ratio", at(b, q), at(t, q)))
		}
		estimate, low, high, has := math.NaN(), math.NaN(), math.NaN(), math.NaN()
		if shown && anyKnown(d) {
			estimate = hodgesLehmann(d)
		}
		if shown {
			low, high, has = interval(d, x.Analysis.Level)
		}
		x.say(path+".shown", shown)
		x.say(path+".estimate", estimate)
		x.say(path+".interval.low", low)
		x.say(path+".interval.high", high)
		x.say(path+".interval.level", has)
	}
}

// at is the smallest value that a share q does not exceed.
func at(values []float64, q float64) float64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[max(int(math.Ceil(q*float64(len(sorted))-1e-9)), 1)-1]
}

// arm sums up the runs of an arm: of the two compared, those whose pair counts.
func (x *computation) arm(i int) {
	path := fmt.Sprintf("arms[%d]", i)
	var runs []*run
	if i < 2 {
		for _, p := range x.Pairs {
			if p.Excluded == "" {
				runs = append(runs, x.runs[[]int{p.Baseline, p.Treatment}[i]])
			}
		}
	} else {
		for _, r := range x.runs {
			if r.Arm == x.Arms[i].Name && len(r.Invalid) == 0 {
				runs = append(runs, r)
			}
		}
	}
	x.say(path+".runs", len(runs))
	total := measure(&x.Plan.OnTime, &runClaim{}, nil, 0).counts
	tenants := map[string][2]int{}
	offered, met := 0, 0
	var worst *run
	for _, r := range runs {
		for k, n := range r.counts {
			total[k] += n
		}
		for k, n := range r.tenants {
			tenants[k] = [2]int{tenants[k][0] + n[0], tenants[k][1] + n[1]}
		}
		offered, met = offered+r.offered, met+r.met
		if r.minute >= 0 && (worst == nil || r.values["worst_minute"] < worst.values["worst_minute"]) {
			worst = r
		}
	}
	for k, n := range total {
		x.say(path+".total."+k, n)
	}
	x.tally(path+".on_time", offered, met)
	x.violations(path, offered, met)
	if worst != nil {
		x.worstMinute(path, worst)
	}
	if name, of, _ := lowestTenant(tenants); name != "" {
		x.worstTenant(path, name, of)
	}
	for k, m := range metrics {
		at := fmt.Sprintf("%s.metrics[%d]", path, k)
		var have []float64
		w, source := math.NaN(), ""
		for _, r := range runs {
			v := r.values[m.name]
			if math.IsNaN(v) {
				continue
			}
			have = append(have, v)
			if len(have) == 1 || m.higher && v < w || !m.higher && v > w {
				w, source = v, r.Source
			}
		}
		x.say(at+".metric", m.name)
		x.say(at+".runs", len(have))
		x.say(at+".median", middle(have))
		x.say(at+".worst", w)
		x.say(at+".worst_source", source)
	}
}
