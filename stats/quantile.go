package stats

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat/distuv"
)

// Sample is one number of each request of a run, in order. +Inf is a request that was
// refused, aborted or timed out.
type Sample struct{ sorted []float64 }

// NewSample takes the values of all requests that were offered. There is at least one;
// each is a finite number or +Inf.
func NewSample(values []float64) (*Sample, error) {
	if len(values) == 0 {
		return nil, errors.New("no values, needed is at least 1")
	}
	for i, v := range values {
		if !(v > math.Inf(-1)) {
			return nil, fmt.Errorf("value %d is %v, allowed is a finite number or +Inf", i, v)
		}
	}
	s := &Sample{slices.Clone(values)}
	slices.Sort(s.sorted)
	return s, nil
}

func checkQuantile(q float64) error {
	if !(q > 0 && q <= 1) {
		return fmt.Errorf("quantile is %v, allowed is above 0 to 1", q)
	}
	return nil
}

// rank returns which of n values in order, from 1, is the q-quantile: the smallest
// that a share q does not exceed. It is one that occurred; between the last that came
// and +Inf there would be nothing to interpolate.
func rank(q float64, n int) int {
	return min(max(int(math.Ceil(q*float64(n)-1e-9)), 1), n) // 0.07 * 100 is above 7
}

func rankOf(sorted []float64, q float64) float64 { return sorted[rank(q, len(sorted))-1] }

// Len returns the number of values, +Inf included.
func (s *Sample) Len() int { return len(s.sorted) }

// Never returns how many values are +Inf.
func (s *Sample) Never() int { return len(s.sorted) - sort.SearchFloat64s(s.sorted, math.Inf(1)) }

// Quantile returns the smallest value that a share q, above 0 to 1, of the values does not
// exceed. It panics with any other q.
func (s *Sample) Quantile(q float64) float64 {
	if err := checkQuantile(q); err != nil {
		panic("stats: " + err.Error())
	}
	return rankOf(s.sorted, q)
}

// Shown returns the quantile and whether it may be shown: from p99 on at least five
// values have to be beyond it, 500 in all for p99 and 5,000 for p99.9, else it is the
// run's luck.
func (s *Sample) Shown(q float64) (value float64, ok bool) {
	return s.Quantile(q), q < 0.99 || float64(len(s.sorted))*(1-q) >= 5-1e-6
}

// Interval returns the range of a quantile if requests were independent of each other
// (iid): the values of rank N q -+ z sqrt(N q (1 - q)), rounded outwards, with the level
// that the binomial distribution gives these. Requests of one run are not independent, so
// take it as the least that is uncertain. A rank off the sample is -Inf or +Inf.
func (s *Sample) Interval(q, level float64) (Interval, error) {
	if err := checkQuantile(q); err != nil {
		return Interval{}, err
	}
	if err := checkLevel(level); err != nil {
		return Interval{}, err
	}
	n := float64(len(s.sorted))
	half := distuv.UnitNormal.Quantile((1+level)/2) * math.Sqrt(n*q*(1-q))
	low, high := int(math.Floor(n*q-half)), int(math.Ceil(n*q+half))
	i := Interval{Low: math.Inf(-1), High: math.Inf(1), Asked: level}
	// The true quantile is from the value of rank low to that of rank high if at least
	// low and fewer than high values are below it.
	below := 0.0
	if low >= 1 {
		i.Low = s.sorted[low-1]
		below = binomialBelow(low, len(s.sorted), q)
	}
	beyond := 0.0
	if high <= len(s.sorted) {
		i.High = s.sorted[high-1]
		beyond = 1 - binomialBelow(high, len(s.sorted), q)
	}
	i.Level = 1 - below - beyond
	return i, nil
}

// binomialBelow returns P(X < k) for X of n trials with chance q; k is 1 to n.
func binomialBelow(k, n int, q float64) float64 {
	return mathext.RegIncBeta(float64(n-k+1), float64(k), 1-q)
}

// Within returns the share of all values that are at most x: the empirical
// distribution function (ECDF).
func (s *Sample) Within(x float64) float64 {
	return float64(sort.Search(len(s.sorted), func(i int) bool { return s.sorted[i] > x })) / float64(len(s.sorted))
}

// Step is a point at which the ECDF rises.
type Step struct{ Value, Share float64 }

// Steps returns the ECDF: for each finite value that occurred the share of all that are
// at most that. The last is below 1 by what never came.
func (s *Sample) Steps() []Step {
	var steps []Step
	n := len(s.sorted)
	for i, v := range s.sorted {
		if math.IsInf(v, 1) {
			break
		}
		if i+1 == n || s.sorted[i+1] != v {
			steps = append(steps, Step{v, float64(i+1) / float64(n)})
		}
	}
	return steps
}

// SamplePair is the requests of two runs that replayed the same trace.
type SamplePair struct{ Baseline, Treatment *Sample }

// ShiftPoint is the effect on one quantile.
type ShiftPoint struct {
	Quantile float64
	Estimate float64
	Interval Interval
	Effects  *Effects // of each pair, to show as dots
	// OK is false if some run has too few requests for this quantile to be shown.
	OK bool
}

// Shift returns the paired quantile shift function: for each quantile, the effects of
// all pairs on it. effects is [Ratios] or [Differences].
func Shift(pairs []SamplePair, quantiles []float64, effects func([]Pair) (*Effects, error), level float64) ([]ShiftPoint, error) {
	points := make([]ShiftPoint, 0, len(quantiles))
	for _, q := range quantiles {
		if err := checkQuantile(q); err != nil {
			return nil, err
		}
		p := ShiftPoint{Quantile: q, OK: true}
		at := make([]Pair, len(pairs))
		for i, s := range pairs {
			b, okB := s.Baseline.Shown(q)
			t, okT := s.Treatment.Shown(q)
			at[i] = Pair{b, t}
			p.OK = p.OK && okB && okT
		}
		e, err := effects(at)
		if err != nil {
			return nil, fmt.Errorf("quantile %v: %w", q, err)
		}
		p.Effects, p.Estimate = e, e.Estimate()
		if p.Interval, err = e.Interval(level); err != nil {
			return nil, err
		}
		points = append(points, p)
	}
	return points, nil
}
