package main

import (
	"math"
	"slices"
	"sort"
)

var inf = math.Inf(1)

// effectOf is one pair's effect; NaN if neither value came.
func effectOf(scale string, b, t float64) float64 {
	switch {
	case math.IsInf(b, 1) && math.IsInf(t, 1):
		return math.NaN()
	case scale == "difference":
		return t - b
	case b == t:
		return 0
	}
	return math.Log(t) - math.Log(b)
}

// averages are the Walsh averages, with something in the place of what is not known.
func averages(d []float64, unknown float64) []float64 {
	e := slices.Clone(d)
	for i := range e {
		if math.IsNaN(e[i]) {
			e[i] = unknown
		}
	}
	var w []float64
	for i := range e {
		for j := 0; j <= i; j++ {
			if i == j {
				w = append(w, e[i])
			} else {
				w = append(w, e[i]/2+e[j]/2)
			}
		}
	}
	return w
}

// hodgesLehmann is the median of the averages; one of +Inf and -Inf weighs on neither
// side.
func hodgesLehmann(d []float64) float64 {
	var w []float64
	for _, v := range averages(d, 0) {
		if !math.IsNaN(v) {
			w = append(w, v)
		}
	}
	slices.Sort(w)
	a, b := w[(len(w)-1)/2], w[len(w)/2]
	if a == b {
		return a
	}
	if math.IsInf(a, -1) && math.IsInf(b, 1) {
		return 0
	}
	return a/2 + b/2
}

// signedRankTails[k] is P(W <= k) of the signed-rank statistic.
func signedRankTails(n int) []float64 {
	ways := make([]float64, n*(n+1)/2+1) // subsets of 1..n with a sum, as shares
	ways[0] = 1
	for r := 1; r <= n; r++ {
		next := make([]float64, len(ways))
		for s, p := range ways {
			next[s] += p / 2
			if s+r < len(ways) {
				next[s+r] += p / 2
			}
		}
		ways = next
	}
	for s := 1; s < len(ways); s++ {
		ways[s] += ways[s-1]
	}
	return ways
}

// place is the rank from the end, and what is beyond it.
func place(n int, tail float64) (int, float64) {
	t := signedRankTails(n)
	k := 1
	for k < len(t) && t[k] <= tail*(1+1e-12) {
		k++
	}
	return k, t[k-1]
}

func lowEnd(d []float64, k int) float64 {
	w := averages(d, -inf)
	for i := range w {
		if math.IsNaN(w[i]) {
			w[i] = -inf
		}
	}
	slices.Sort(w)
	return w[k-1]
}

func highEnd(d []float64, k int) float64 {
	m := make([]float64, len(d))
	for i := range d {
		m[i] = -d[i]
	}
	return -lowEnd(m, k)
}

func interval(d []float64, level float64) (low, high, has float64) {
	k, beyond := place(len(d), (1-level)/2)
	return lowEnd(d, k), highEnd(d, k), 1 - 2*beyond
}

// flippable puts numbers in the place of what is infinite or not known, and returns their
// sum, and by how much rounding may move it.
func flippable(d []float64) (e []float64, sum, eps float64) {
	e = slices.Clone(d)
	big := 0.0
	for i, v := range e {
		if math.IsNaN(v) {
			e[i] = 0
		} else if !math.IsInf(v, 0) {
			big += math.Abs(v)
		}
	}
	if big = 2 * big; big == 0 {
		big = 1
	}
	size := 0.0
	for i, v := range e {
		if math.IsInf(v, 0) {
			e[i] = math.Copysign(big, v)
		}
		sum += e[i]
		size += math.Abs(e[i])
	}
	return e, sum, 1e-12 * size
}

// flip is the two-sided sign-flip test's p-value.
func flip(d []float64, seed uint64) float64 {
	e, sum, eps := flippable(d)
	far := math.Abs(sum) - eps
	if len(e) > 40 {
		return flipDrawn(e, seed, func(s float64) bool { return math.Abs(s) >= far })
	}
	if far <= 0 {
		return 1
	}
	return math.Min(1, 1-flipUpTo(e, func(s float64) bool { return s >= far })+flipUpTo(e, func(s float64) bool { return s > -far }))
}

// flipBelow is the one-sided p-value of a mean below 0.
func flipBelow(d []float64, seed uint64) float64 {
	e, sum, eps := flippable(d)
	if len(e) > 40 {
		return flipDrawn(e, seed, func(s float64) bool { return s <= sum+eps })
	}
	return flipUpTo(e, func(s float64) bool { return s > sum+eps })
}

// flipUpTo is the share of all sign patterns whose sums are not yet beyond something.
func flipUpTo(e []float64, beyond func(sum float64) bool) float64 {
	a, b := signSums(e[:len(e)/2]), signSums(e[len(e)/2:])
	sort.Float64s(b)
	count := 0.0
	for _, v := range a {
		count += float64(sort.Search(len(b), func(i int) bool { return beyond(v + b[i]) }))
	}
	return count / float64(len(a)) / float64(len(b))
}

func signSums(d []float64) []float64 {
	sums := []float64{0}
	for _, v := range d {
		var next []float64
		for _, s := range sums {
			next = append(next, s+v, s-v)
		}
		sums = next
	}
	return sums
}

// flipDrawn draws 100,000 patterns by splitmix64; bits of a number are signs, from the
// lowest, 64 effects to a number.
func flipDrawn(d []float64, seed uint64, hit func(sum float64) bool) float64 {
	state := seed
	next := func() uint64 {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	const draws = 100_000
	hits := 1
	for range draws {
		s := 0.0
		var word uint64
		for i, v := range d {
			if i%64 == 0 {
				word = next()
			}
			if word>>(i%64)&1 == 1 {
				v = -v
			}
			s += v
		}
		if hit(s) {
			hits++
		}
	}
	return float64(hits) / (draws + 1)
}

func holm(p []float64) []float64 {
	out := make([]float64, len(p))
	used := make([]bool, len(p))
	worst := 0.0
	for left := len(p); left > 0; left-- {
		least := -1
		for i := range p {
			if !used[i] && (least < 0 || p[i] < p[least]) {
				least = i
			}
		}
		used[least] = true
		worst = math.Max(worst, math.Min(1, p[least]*float64(left)))
		out[least] = worst
	}
	return out
}

func deviation(d []float64) float64 {
	m := 0.0
	for _, v := range d {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return inf
		}
		m += v / float64(len(d))
	}
	s := 0.0
	for _, v := range d {
		s += (v - m) * (v - m)
	}
	return math.Sqrt(s / float64(len(d)-1))
}

// detectable is the effect that n pairs find in four of five comparisons.
func detectable(n int, sd, level float64, sides int) float64 {
	if n < 2 || math.IsInf(sd, 1) || math.IsNaN(sd) {
		return inf
	}
	of := [3]float64{float64(n), level, float64(sides)}
	if _, done := inSDs[of]; !done {
		inSDs[of] = detectableInSDs(n, level, sides)
	}
	return sd * inSDs[of]
}

// inSDs keeps what was found: every effect of as many pairs asks for the same.
var inSDs = map[[3]float64]float64{}

func detectableInSDs(n int, level float64, sides int) float64 {
	nu := float64(n - 1)
	critical := bisect(0, 1e4, func(t float64) bool { return upper(nu, t, 0) <= (1-level)/float64(sides) })
	power := func(effect float64) float64 {
		mu := effect * math.Sqrt(float64(n))
		p := upper(nu, critical, mu)
		if sides == 2 {
			p += upper(nu, critical, -mu)
		}
		return p
	}
	return bisect(0, 1e4, func(effect float64) bool { return power(effect) >= 0.8 })
}

// bisect finds where a condition begins to hold.
func bisect(low, high float64, holds func(float64) bool) float64 {
	for range 70 {
		if m := (low + high) / 2; holds(m) {
			high = m
		} else {
			low = m
		}
	}
	return high
}

// upper is P(T > t) of a t-statistic with nu degrees of freedom and noncentrality mu:
// the mean, over s = sqrt(chi-squared / nu), of P(Z > t s - mu), by Simpson's rule.
func upper(nu, t, mu float64) float64 {
	lg, _ := math.Lgamma(nu / 2)
	density := func(s float64) float64 {
		if s <= 0 {
			if nu == 1 {
				return 2 * math.Exp(0.5*math.Log(0.5)-lg)
			}
			return 0
		}
		return 2 * math.Exp(nu/2*math.Log(nu/2)-lg+(nu-1)*math.Log(s)-nu*s*s/2)
	}
	const steps = 2000
	end := 1 + 12/math.Sqrt(nu)
	h := end / steps
	sum := 0.0
	for i := 0; i <= steps; i++ {
		s := float64(i) * h
		w := 2.0
		switch {
		case i == 0 || i == steps:
			w = 1
		case i%2 == 1:
			w = 4
		}
		sum += w * density(s) * 0.5 * math.Erfc((t*s-mu)/math.Sqrt2)
	}
	return sum * h / 3
}

// trend is Mann's test, two-sided.
func trend(x []float64) float64 {
	n, s := len(x), 0
	same := map[float64]int{}
	for i := range x {
		same[x[i]]++
		for j := range i {
			if x[i] > x[j] {
				s++
			} else if x[i] < x[j] {
				s--
			}
		}
	}
	if s < 0 {
		s = -s
	}
	if s == 0 {
		return 1
	}
	if len(same) < n {
		v := float64(n * (n - 1) * (2*n + 5))
		for _, k := range same {
			v -= float64(k * (k - 1) * (2*k + 5))
		}
		return math.Erfc(float64(s-1) / math.Sqrt(v/18) / math.Sqrt2)
	}
	inversions := []float64{1}
	for m := 2; m <= n; m++ {
		next := make([]float64, len(inversions)+m-1)
		for k := range next {
			for j := max(0, k-m+1); j <= min(k, len(inversions)-1); j++ {
				next[k] += inversions[j] / float64(m)
			}
		}
		inversions = next
	}
	p := 0.0
	for k := 0; 2*k <= n*(n-1)/2-s; k++ {
		p += inversions[k]
	}
	return math.Min(1, 2*p)
}

// bets is the e-process of the effects' signs, by its closed form: after k of t with a
// plus it is 2^t B(k + 1/2, t - k + 1/2) / B(1/2, 1/2).
type bets struct {
	plus, minus, ties int
	now, greatest     float64
	reached           int
	above             bool
}

func betOn(d []float64, shift, threshold float64) bets {
	b := bets{now: 1, greatest: 1}
	log := func(x float64) float64 { v, _ := math.Lgamma(x); return v }
	for i, v := range d {
		switch {
		case v-shift > 0:
			b.plus++
		case v-shift < 0:
			b.minus++
		default:
			b.ties++
		}
		k, t := float64(b.plus), float64(b.plus+b.minus)
		b.now = math.Exp(t*math.Ln2 + log(k+0.5) + log(t-k+0.5) - log(t+1) - math.Log(math.Pi))
		b.greatest = math.Max(b.greatest, b.now)
		if b.reached == 0 && b.now >= threshold {
			b.reached, b.above = i+1, b.plus > b.minus
		}
	}
	return b
}
