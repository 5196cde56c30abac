package stats

import (
	"math"
	"slices"
)

const (
	// flipAll is the number of pairs up to which every sign pattern is counted.
	flipAll = 40
	// flipDraws is the number of patterns that are drawn above that.
	flipDraws = 100_000
)

// Flip is the sign-flip test of the mean: if the arms were the same, each effect
// could as well have had the other sign. A p-value is the share of sign patterns
// whose mean is at least as far out as the one observed.
type Flip struct {
	P       float64 // two-sided: as far from 0
	Greater float64 // one-sided: as great
	Less    float64 // one-sided: as small
	// Drawn is how many patterns were drawn, 0 where all were counted.
	Drawn int
}

// Flip tests the mean. All patterns are counted up to 40 pairs: the sums of each half
// of the pairs, sorted, 2^20 at most, are walked from both ends. Above, 10^5 are drawn
// from the seed, and the observed one counts as one more, so that no p-value is 0.
// Sums that differ by rounding only count as equal.
//
// Alternatives: to walk all 2^n patterns one by one ends at about n = 20, and drawn
// patterns cannot show a p-value below 10^-5, which 30 pairs do reach.
func (e *Effects) Flip(seed uint64) Flip {
	d := replaceInf(e.values)
	sum, size := 0.0, 0.0
	for _, v := range d {
		sum += v
		size += math.Abs(v)
	}
	eps := 1e-12 * size
	if len(d) <= flipAll {
		return flipCounted(d, sum, eps)
	}
	return flipDrawn(d, sum, eps, seed)
}

// replaceInf puts finite numbers in the place of infinite ones that are so large that
// sums are ordered by the infinite effects first: their signs differ by two of them
// or by none.
func replaceInf(d []float64) []float64 {
	big := 0.0
	for _, v := range d {
		if !math.IsInf(v, 0) {
			big += math.Abs(v)
		}
	}
	if big *= 2; big == 0 {
		big = 1
	}
	out := slices.Clone(d)
	for i, v := range out {
		if math.IsInf(v, 0) {
			out[i] = math.Copysign(big, v)
		}
	}
	return out
}

func flipCounted(d []float64, sum, eps float64) Flip {
	a, b := flipSums(d[:len(d)/2]), flipSums(d[len(d)/2:])
	all := float64(len(a)) * float64(len(b))
	// Every pattern has its opposite, so what is as small as sum is as many as
	// what is as great as -sum.
	greater := float64(atLeast(a, b, sum-eps)) / all
	less := float64(atLeast(a, b, -sum-eps)) / all
	p := 1.0
	if far := math.Abs(sum) - eps; far > 0 {
		p = min(1, 2*float64(atLeast(a, b, far))/all)
	}
	return Flip{P: p, Greater: greater, Less: less}
}

// flipSums returns the sums of all sign patterns in order. Each value merges the
// sums with it and those without.
func flipSums(d []float64) []float64 {
	sums := []float64{0}
	for _, v := range d {
		v = math.Abs(v)
		next := make([]float64, 0, 2*len(sums))
		i, j := 0, 0 // of sums less v, and of sums plus v
		for i < len(sums) {
			if low, high := sums[i]-v, sums[j]+v; low <= high {
				next = append(next, low)
				i++
			} else {
				next = append(next, high)
				j++
			}
		}
		for ; j < len(sums); j++ {
			next = append(next, sums[j]+v)
		}
		sums = next
	}
	return sums
}

// atLeast counts the pairs of a value of each, both in order, with a sum of at least s.
func atLeast(a, b []float64, s float64) int {
	count, j := 0, len(b)
	for _, v := range a {
		for j > 0 && v+b[j-1] >= s {
			j--
		}
		count += len(b) - j
	}
	return count
}

func flipDrawn(d []float64, sum, eps float64, seed uint64) Flip {
	src := stream(seed)
	greater, less, far := 0, 0, 0
	for range flipDraws {
		s, bits := 0.0, uint64(0)
		for i, v := range d {
			if i%64 == 0 {
				bits = src.next()
			}
			s += math.Float64frombits(math.Float64bits(v) ^ bits<<63) // a branch would be mispredicted half the time
			bits >>= 1
		}
		if s >= sum-eps {
			greater++
		}
		if s <= sum+eps {
			less++
		}
		if math.Abs(s) >= math.Abs(sum)-eps {
			far++
		}
	}
	p := func(count int) float64 { return float64(count+1) / (flipDraws + 1) }
	return Flip{P: p(far), Greater: p(greater), Less: p(less), Drawn: flipDraws}
}

// Holm returns p-values adjusted for being looked at together (Holm 1979), in their
// order: each is what it would have to be below alone. It is for secondary metrics;
// what is tested in a fixed order needs no adjustment, see [Gatekeep].
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return 0
	})
	out, worst := make([]float64, len(p)), 0.0
	for rank, i := range order {
		worst = max(worst, min(1, p[i]*float64(len(p)-rank)))
		out[i] = worst
	}
	return out
}
