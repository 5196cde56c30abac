package stats

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Pair is one number of each of two runs that replayed the same trace. +Inf is a
// value that never came.
type Pair struct{ Baseline, Treatment float64 }

// Effects is one effect a pair, treatment against baseline, in the order of the
// pairs. There is at least one, and none is NaN.
type Effects struct {
	ratio   bool
	values  []float64
	unknown []bool // both values of the pair are +Inf; its value is 0
}

// Ratios are the effects ln(treatment / baseline). Values are 0 or more, or +Inf.
// See the package's comment for pairs with 0 or +Inf.
func Ratios(pairs []Pair) (*Effects, error) {
	return newEffects(true, pairs, func(v float64) bool { return v >= 0 }, "0 or more, or +Inf", func(p Pair) float64 {
		if p.Baseline == p.Treatment {
			return 0 // two zeros too
		}
		return math.Log(p.Treatment) - math.Log(p.Baseline) // a quotient could overflow
	})
}

// Differences are the effects treatment - baseline, in the values' own unit. Values
// are finite or +Inf.
func Differences(pairs []Pair) (*Effects, error) {
	return newEffects(false, pairs, func(v float64) bool { return v > math.Inf(-1) }, "a finite number or +Inf", func(p Pair) float64 {
		return p.Treatment - p.Baseline
	})
}

func newEffects(ratio bool, pairs []Pair, allowed func(float64) bool, words string, effect func(Pair) float64) (*Effects, error) {
	if len(pairs) == 0 {
		return nil, errors.New("no pairs, needed is at least 1")
	}
	e := &Effects{ratio: ratio, values: make([]float64, len(pairs)), unknown: make([]bool, len(pairs))}
	for i, p := range pairs {
		if !allowed(p.Baseline) {
			return nil, fmt.Errorf("pair %d: baseline is %v, allowed is %s", i, p.Baseline, words)
		}
		if !allowed(p.Treatment) {
			return nil, fmt.Errorf("pair %d: treatment is %v, allowed is %s", i, p.Treatment, words)
		}
		if math.IsInf(p.Baseline, 1) && math.IsInf(p.Treatment, 1) {
			e.unknown[i] = true
			continue
		}
		e.values[i] = effect(p)
	}
	return e, nil
}

// Len returns the number of pairs.
func (e *Effects) Len() int { return len(e.values) }

// Ratio tells whether effects are logarithms of ratios.
func (e *Effects) Ratio() bool { return e.ratio }

// Values returns a copy of the effects. One that is not known is 0.
func (e *Effects) Values() []float64 { return slices.Clone(e.values) }

// Unknown returns the positions of pairs of which neither value came.
func (e *Effects) Unknown() []int { return e.where(func(i int) bool { return e.unknown[i] }) }

// infinite returns the positions of effects that are not finite or not known.
func (e *Effects) infinite() []int {
	return e.where(func(i int) bool { return e.unknown[i] || math.IsInf(e.values[i], 0) })
}

func (e *Effects) where(is func(i int) bool) []int {
	var at []int
	for i := range e.values {
		if is(i) {
			at = append(at, i)
		}
	}
	return at
}

// with returns the effects with what is not known at a value.
func (e *Effects) with(unknown float64) []float64 {
	d := e.Values()
	for i, u := range e.unknown {
		if u {
			d[i] = unknown
		}
	}
	return d
}

// minus returns the effects less a shift.
func (e *Effects) minus(shift float64) *Effects {
	m := &Effects{ratio: e.ratio, values: e.Values(), unknown: e.unknown}
	for i := range m.values {
		if !m.unknown[i] {
			m.values[i] -= shift
		}
	}
	return m
}

// SD returns the standard deviation of the effects, with n - 1 in the
// denominator. It is +Inf if some effect is not finite, and NaN for one pair.
func (e *Effects) SD() float64 {
	if len(e.infinite()) > 0 {
		return math.Inf(1)
	}
	return sd(e.values)
}

func mean(d []float64) float64 {
	sum := 0.0
	for _, v := range d {
		sum += v
	}
	return sum / float64(len(d))
}

func sd(d []float64) float64 {
	m, sum := mean(d), 0.0
	for _, v := range d {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum / float64(len(d)-1))
}

// Text writes a value on the effects' scale for a person: a ratio in percent, a
// difference as it is.
func (e *Effects) Text(v float64) string {
	switch {
	case math.IsInf(v, 0):
		return fmt.Sprintf("%+v", v)
	case e.ratio:
		return fmt.Sprintf("%+.3g %%", 100*math.Expm1(v))
	}
	return fmt.Sprintf("%+.3g", v)
}
