package stats

import (
	"math"
	"slices"
)

// Interval is a range that holds the true value with a probability.
type Interval struct {
	Low, High float64
	// Level is the confidence that the interval has, where it is known exactly: not
	// less than what was asked, or else there is none of that level and this is the
	// widest that the data give. A bootstrap has what was asked.
	Level float64
	Asked float64
}

// Met tells whether the interval has the level that was asked.
func (i Interval) Met() bool { return i.Level >= i.Asked }

// Side is an end of a range.
type Side int

const (
	Lower Side = iota
	Upper
)

// Estimate returns the Hodges-Lehmann estimate of the effects' centre: the median
// of the averages of all pairs of effects, each with itself too (Walsh averages).
// An average of +Inf and -Inf is above and below every number, so it moves the median
// neither way. Where the middle is between -Inf and +Inf themselves, the effects lean to
// no side and it is 0.
func (e *Effects) Estimate() float64 { return hodgesLehmann(e.values) }

// Interval returns the shortest range between two Walsh averages, equally far from
// the ends, that holds the centre with at least the level. There is none if even the
// range of the effects has less, as for 95 % and five pairs: then this is that range,
// with its level of 1 - 2^(1-n).
func (e *Effects) Interval(level float64) (Interval, error) {
	if err := checkLevel(level); err != nil {
		return Interval{}, err
	}
	k, tail := rankFor(len(e.values), (1-level)/2)
	return Interval{Low: e.fromEnd(Lower, k), High: e.fromEnd(Upper, k), Level: 1 - 2*tail, Asked: level}, nil
}

// Bound is the end of a range that is open on the other side.
type Bound struct {
	Value        float64
	Level, Asked float64 // as an interval's
}

// Met tells whether the bound has the level that was asked.
func (b Bound) Met() bool { return b.Level >= b.Asked }

// Bound returns what the centre is not below, or not above, with at least the level.
// If there is none, it is the least or the greatest effect with its level of 1 - 2^-n.
func (e *Effects) Bound(side Side, level float64) (Bound, error) {
	if err := checkLevel(level); err != nil {
		return Bound{}, err
	}
	k, tail := rankFor(len(e.values), 1-level)
	return Bound{Value: e.fromEnd(side, k), Level: 1 - tail, Asked: level}, nil
}

// fromEnd returns the k-th Walsh average from an end. Whatever could be farther out
// is: an effect that is not known, and an average of +Inf and -Inf.
func (e *Effects) fromEnd(side Side, k int) float64 {
	worst := math.Inf(-1)
	if side == Upper {
		worst = math.Inf(1)
	}
	w := walsh(e.with(worst))
	for i, v := range w {
		if math.IsNaN(v) {
			w[i] = worst
		}
	}
	slices.Sort(w)
	if side == Upper {
		return w[len(w)-k]
	}
	return w[k-1]
}

// walsh returns the averages of all pairs i <= j; NaN is one of +Inf and -Inf.
func walsh(d []float64) []float64 {
	w := make([]float64, 0, len(d)*(len(d)+1)/2)
	for i, a := range d {
		w = append(w, a) // exactly, which a/2 + a/2 is not for the smallest
		for _, b := range d[i+1:] {
			w = append(w, a/2+b/2) // a sum could overflow
		}
	}
	return w
}

func hodgesLehmann(d []float64) float64 {
	w := slices.DeleteFunc(walsh(d), math.IsNaN)
	slices.Sort(w)
	a, b := w[(len(w)-1)/2], w[len(w)/2]
	if a == b {
		return a // infinities too
	}
	if math.IsInf(a, -1) && math.IsInf(b, 1) {
		return 0
	}
	return a/2 + b/2
}

// rankFor returns the largest k for which the k-th Walsh average from an end is
// beyond the centre with a probability of at most tail, which is below a half or
// that, and that probability: P(W <= k - 1) for the signed-rank statistic W of n
// pairs. If there is none, it returns 1 and the probability of that.
func rankFor(n int, tail float64) (k int, p float64) {
	q := signedRank(n)
	k, p = 1, q[0]
	for p+q[k] <= tail*(1+1e-12) { // what is exactly the tail is not lost to rounding
		p += q[k]
		k++
	}
	return k, p
}

// signedRank returns the probabilities of the values 0, 1, ... of the signed-rank
// statistic of n pairs, to just beyond its median: the sum of those of the ranks 1
// to n that have a plus, when each has one with probability 1/2.
//
// Alternatives: the normal approximation is good from n = 30 on, but not needed: the
// exact distribution of 300 pairs takes milliseconds.
func signedRank(n int) []float64 {
	p := make([]float64, n*(n+1)/4+2)
	p[0] = 1
	top := 0 // the largest sum so far, where it is not beyond the median
	for rank := 1; rank <= n; rank++ {
		top = min(top+rank, len(p)-1)
		for w := top; w >= rank; w-- {
			p[w] = p[w]/2 + p[w-rank]/2
		}
		for w := min(rank-1, top); w >= 0; w-- {
			p[w] /= 2
		}
	}
	return p
}
