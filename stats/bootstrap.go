package stats

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// BootstrapPairs is the number of pairs below which no bootstrap is made: with five,
// an interval that says 95 % holds the mean in 81 % of cases, or 70 % of skewed ones.
const BootstrapPairs = 20

// Statistic is one number of resampled effects. It neither keeps nor changes them.
type Statistic func(effects []float64) float64

// Mean is the statistic that [Studentised] uses.
func Mean(effects []float64) float64 { return mean(effects) }

// HodgesLehmann is the statistic of [Effects.Estimate].
func HodgesLehmann(effects []float64) float64 { return hodgesLehmann(effects) }

// Resampling is how a bootstrap is drawn.
type Resampling struct {
	Level   float64
	Samples int // at least 1,000
	Seed    uint64
}

func (r Resampling) check(what string, n int) error {
	if n < BootstrapPairs {
		return &TooFewError{What: what, Have: n, Need: BootstrapPairs}
	}
	if err := checkLevel(r.Level); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if r.Samples < 1000 {
		return fmt.Errorf("%s: samples is %d, allowed is 1000 or more", what, r.Samples)
	}
	return nil
}

func (r Resampling) checkEffects(what string, e *Effects) error {
	if err := r.check(what, e.Len()); err != nil {
		return err
	}
	if at := e.infinite(); len(at) > 0 {
		return &NotFiniteError{What: what, Pairs: at}
	}
	return nil
}

// Percentile returns the range of the middle of the resampled statistics. It is known
// best and is too short; [BCa] and [Studentised] are better. It returns a
// [TooFewError] or a [NotFiniteError], as they do.
func Percentile(e *Effects, of Statistic, r Resampling) (Interval, error) {
	if err := r.checkEffects("percentile bootstrap", e); err != nil {
		return Interval{}, err
	}
	return percentile(e.values, of, r), nil
}

func percentile(d []float64, of Statistic, r Resampling) Interval {
	t := resample(d, of, r)
	return r.interval(t, (1-r.Level)/2, (1+r.Level)/2)
}

// BCa returns the bias-corrected and accelerated range (Efron and Tibshirani 1993,
// 14.3): the percentiles are moved by the statistic's bias and by how its spread changes
// with its value, which leaving out one pair at a time shows.
func BCa(e *Effects, of Statistic, r Resampling) (Interval, error) {
	if err := r.checkEffects("BCa bootstrap", e); err != nil {
		return Interval{}, err
	}
	return bca(e.values, of, r), nil
}

func bca(d []float64, of Statistic, r Resampling) Interval {
	t, observed := resample(d, of, r), of(d)
	below := 0.0
	for _, v := range t {
		switch {
		case v < observed:
			below++
		case v == observed:
			below += 0.5
		}
	}
	n := float64(len(t))
	// All below or all above leaves the correction at what one in twice as many would be.
	bias := distuv.UnitNormal.Quantile(min(max(below, 0.5), n-0.5) / n)

	left := make([]float64, len(d))
	rest := make([]float64, 0, len(d))
	for i := range d {
		rest = append(append(rest[:0], d[:i]...), d[i+1:]...)
		left[i] = of(rest)
	}
	m, cubes, squares := mean(left), 0.0, 0.0
	for _, v := range left {
		squares += (m - v) * (m - v)
		cubes += (m - v) * (m - v) * (m - v)
	}
	acceleration := 0.0
	if squares > 0 {
		acceleration = cubes / (6 * math.Pow(squares, 1.5))
	}
	moved := func(p float64) float64 {
		z := bias + distuv.UnitNormal.Quantile(p)
		return distuv.UnitNormal.CDF(bias + z/(1-acceleration*z))
	}
	return r.interval(t, moved((1-r.Level)/2), moved((1+r.Level)/2))
}

// Studentised returns the bootstrap-t range of the mean (Efron and Tibshirani 1993,
// 12.5): quantiles of (resampled mean - mean) / resampled standard error take the place
// of Student's.
func Studentised(e *Effects, r Resampling) (Interval, error) {
	if err := r.checkEffects("studentised bootstrap", e); err != nil {
		return Interval{}, err
	}
	return studentised(e.values, r), nil
}

func studentised(d []float64, r Resampling) Interval {
	m, root := mean(d), math.Sqrt(float64(len(d)))
	t := resample(d, func(x []float64) float64 {
		diff, s := mean(x)-m, sd(x)
		if diff == 0 {
			return 0 // equal values have no spread either
		}
		return diff * root / s // +Inf or -Inf if one value was drawn each time
	}, r)
	slices.Sort(t)
	se := sd(d) / root
	if se == 0 {
		return Interval{Low: m, High: m, Level: r.Level, Asked: r.Level}
	}
	return Interval{
		Low:   m - se*rankOf(t, (1+r.Level)/2),
		High:  m - se*rankOf(t, (1-r.Level)/2),
		Level: r.Level, Asked: r.Level,
	}
}

// resample returns the statistic of effects drawn with replacement: effects of pairs,
// so that what two runs share stays together.
func resample(d []float64, of Statistic, r Resampling) []float64 {
	src := stream(r.Seed)
	x, t := make([]float64, len(d)), make([]float64, r.Samples)
	for i := range t {
		for j := range x {
			x[j] = d[src.below(len(d))]
		}
		t[i] = of(x)
	}
	return t
}

func (r Resampling) interval(t []float64, low, high float64) Interval {
	slices.Sort(t)
	return Interval{Low: rankOf(t, low), High: rankOf(t, high), Level: r.Level, Asked: r.Level}
}

// Blocks are one pair's requests, those of each arm by blocks of time. Block i of both
// arms is the same time of the trace. +Inf is a request that never came.
type Blocks struct{ Baseline, Treatment [][]float64 }

// TwoLevel returns the range of the Hodges-Lehmann estimate of the log ratios of a
// quantile within runs. Pairs are drawn with replacement, and within each drawn pair
// its blocks of time, the same in both arms: requests that waited for each other stay
// together. Blocks should be longer than queues are, and a run have at least ten. A
// drawn quantile that neither arm reaches is -Inf for the low end and +Inf for the
// high one.
func TwoLevel(pairs []Blocks, quantile float64, r Resampling) (Interval, error) {
	const what = "two-level bootstrap"
	if err := r.check(what, len(pairs)); err != nil {
		return Interval{}, err
	}
	if err := checkQuantile(quantile); err != nil {
		return Interval{}, fmt.Errorf("%s: %w", what, err)
	}
	type run struct{ baseline, treatment *blockRun }
	runs := make([]run, len(pairs))
	for i, p := range pairs {
		if len(p.Baseline) != len(p.Treatment) {
			return Interval{}, fmt.Errorf("%s: pair %d: baseline has %d blocks and treatment %d, allowed are as many", what, i, len(p.Baseline), len(p.Treatment))
		}
		b, err := newBlockRun(p.Baseline)
		if err != nil {
			return Interval{}, fmt.Errorf("%s: pair %d: baseline: %w", what, i, err)
		}
		t, err := newBlockRun(p.Treatment)
		if err != nil {
			return Interval{}, fmt.Errorf("%s: pair %d: treatment: %w", what, i, err)
		}
		runs[i] = run{b, t}
	}
	src := stream(r.Seed)
	low, high := make([]float64, r.Samples), make([]float64, r.Samples)
	drawn := make([]Pair, len(runs))
	for i := range r.Samples {
		for j := range drawn {
			p := runs[src.below(len(runs))]
			times := make([]int, len(p.baseline.of))
			for {
				clear(times)
				for range times {
					times[src.below(len(times))]++
				}
				// Blocks that are all empty have no quantile and are drawn again.
				if p.baseline.drawn(times) > 0 && p.treatment.drawn(times) > 0 {
					break
				}
			}
			drawn[j] = Pair{p.baseline.quantile(times, quantile), p.treatment.quantile(times, quantile)}
		}
		e, err := Ratios(drawn)
		if err != nil {
			return Interval{}, fmt.Errorf("%s: %w", what, err)
		}
		low[i] = hodgesLehmann(e.with(math.Inf(-1)))
		high[i] = hodgesLehmann(e.with(math.Inf(1)))
	}
	slices.Sort(low)
	slices.Sort(high)
	return Interval{Low: rankOf(low, (1-r.Level)/2), High: rankOf(high, (1+r.Level)/2), Level: r.Level, Asked: r.Level}, nil
}

// blockRun is a run's requests in order, each with its block, so that a quantile of
// drawn blocks needs no sort.
type blockRun struct {
	sorted []blockValue
	of     []int // requests of each block
}

type blockValue struct {
	value float64
	block int
}

func newBlockRun(blocks [][]float64) (*blockRun, error) {
	r := &blockRun{of: make([]int, len(blocks))}
	for i, values := range blocks {
		r.of[i] = len(values)
		for _, v := range values {
			if !(v >= 0) {
				return nil, fmt.Errorf("block %d: value is %v, allowed is 0 or more, or +Inf", i, v)
			}
			r.sorted = append(r.sorted, blockValue{v, i})
		}
	}
	if len(r.sorted) == 0 {
		return nil, errors.New("no requests, needed is at least 1")
	}
	slices.SortFunc(r.sorted, func(a, b blockValue) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	return r, nil
}

// drawn returns the requests in blocks that are drawn so many times.
func (r *blockRun) drawn(times []int) int {
	n := 0
	for i, of := range r.of {
		n += of * times[i]
	}
	return n
}

func (r *blockRun) quantile(times []int, q float64) float64 {
	left := rank(q, r.drawn(times))
	for _, v := range r.sorted {
		if left -= times[v.block]; left <= 0 {
			return v.value
		}
	}
	return r.sorted[len(r.sorted)-1].value
}
