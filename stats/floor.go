package stats

import (
	"fmt"
	"math"
	"slices"
)

// Rehearsal is one pair of an A/A run: the same arm twice on the same trace, under two
// names.
type Rehearsal struct {
	Pair
	// TreatmentFirst tells which of the two ran first.
	TreatmentFirst bool
}

// Floor is a rig's noise: what it sees where there is nothing to be seen.
type Floor struct {
	Pairs int
	SD    float64 // of the effects
	P95   float64 // the 95th percentile of |effect|
	// Flip tests the effects. The others are order effects: Position tests second run
	// minus first, Trend whether the metric rises or falls over the pairs, Drift whether the
	// effects do (p-values, two-sided).
	Flip, Position, Trend, Drift float64
	// Rejected says, in words, why no comparison on this rig is to be believed. It is
	// empty if the rig is sound.
	Rejected []string
}

// NoiseFloor judges a rig by an A/A run, its pairs in the order in which they ran.
// effects is [Ratios] or [Differences]. The rig is rejected if the sign-flip test finds a
// difference at 5 %, or if one of the three order effects is found at 5 % after Holm's
// adjustment for being three: a sound rig is rejected in at most 10 % of runs, not in a fifth.
// It returns a [TooFewError] below [ClaimPairs] pairs and a [NotFiniteError] where a
// noise floor would be infinite.
func NoiseFloor(pairs []Rehearsal, effects func([]Pair) (*Effects, error), seed uint64) (*Floor, error) {
	const what = "noise floor"
	if len(pairs) < ClaimPairs {
		return nil, &TooFewError{What: what, Have: len(pairs), Need: ClaimPairs}
	}
	plain := make([]Pair, len(pairs))
	both := make([]float64, len(pairs)) // the metric's level in each pair
	for i, p := range pairs {
		plain[i] = p.Pair
		both[i] = p.Baseline/2 + p.Treatment/2
	}
	e, err := effects(plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if at := e.infinite(); len(at) > 0 {
		return nil, &NotFiniteError{What: what, Pairs: at}
	}
	size := make([]float64, len(pairs))
	late := &Effects{ratio: e.ratio, values: e.Values(), unknown: e.unknown} // second run minus first
	for i, v := range e.values {
		size[i] = math.Abs(v)
		if pairs[i].TreatmentFirst {
			late.values[i] = -v
		}
	}
	sizes, err := NewSample(size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f := &Floor{
		Pairs: len(pairs), SD: e.SD(), P95: sizes.Quantile(0.95),
		Flip: e.Flip(seed).P, Position: late.Flip(seed).P, Trend: trend(both), Drift: trend(e.values),
	}
	firsts := 0
	for _, p := range pairs {
		if p.TreatmentFirst {
			firsts++
		}
	}
	if firsts == 0 || firsts == len(pairs) {
		f.Rejected = append(f.Rejected, "the same arm ran first in every pair, so that an effect of the order cannot be told from one of the arms")
	}
	const limit = 0.05
	if f.Flip < limit {
		f.Rejected = append(f.Rejected, fmt.Sprintf("the same arm differs from itself: %s, p %.2g", e.Text(e.Estimate()), f.Flip))
	}
	order := Holm([]float64{f.Position, f.Trend, f.Drift})
	for i, words := range []string{
		fmt.Sprintf("the run that is second in its pair differs from the first: %s, p %.2g", e.Text(late.Estimate()), f.Position),
		fmt.Sprintf("the metric has a trend over the run, p %.2g", f.Trend),
		fmt.Sprintf("the difference of the arms has a trend over the run, p %.2g", f.Drift),
	} {
		if order[i] < limit {
			f.Rejected = append(f.Rejected, words)
		}
	}
	return f, nil
}

// trend returns the two-sided p-value of Mann's test for a monotonic trend (Mann 1945,
// Kendall 1975): how many pairs of values rise less how many fall, against every order of
// the values. The distribution is exact without ties, and else normal with the
// variance that ties leave.
func trend(x []float64) float64 {
	n := len(x)
	s, tied := 0, false
	for i := range x {
		for _, later := range x[i+1:] {
			switch {
			case later > x[i]:
				s++
			case later < x[i]:
				s--
			default:
				tied = true
			}
		}
	}
	far := s
	if far < 0 {
		far = -far
	}
	if far == 0 {
		return 1
	}
	if tied {
		weight := func(m int) int { return m * (m - 1) * (2*m + 5) }
		variance := weight(n)
		sorted := slices.Sorted(slices.Values(x))
		for i := 0; i < n; {
			first := i
			for i < n && sorted[i] == sorted[first] {
				i++
			}
			variance -= weight(i - first)
		}
		z := float64(far-1) / math.Sqrt(float64(variance)/18)
		return math.Erfc(z / math.Sqrt2)
	}
	// p[k] is the probability of k inversions: the i-th value, put in anywhere, adds 0
	// to i - 1 of them. s is all pairs less twice the inversions.
	p := []float64{1}
	for i := 2; i <= n; i++ {
		next := make([]float64, len(p)+i-1)
		for k, q := range p {
			for add := range i {
				next[k+add] += q / float64(i)
			}
		}
		p = next
	}
	tail := 0.0
	for k := 0; k <= (n*(n-1)/2-far)/2; k++ {
		tail += p[k]
	}
	return min(1, 2*tail)
}
