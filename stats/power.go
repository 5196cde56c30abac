package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// mdePower is the chance that an effect of the minimum detectable size is found.
const mdePower = 0.8

// Power returns the chance that a t-test of n pairs at a level finds an effect of so
// many standard deviations of the pairs' effects: the noncentral t-distribution with
// n - 1 degrees of freedom and noncentrality effect * sqrt(n). From ten pairs on the
// sign-flip test of the mean finds as much to within a percent or two if effects are
// normal; below it finds less, and with five pairs nothing at 95 %. With one pair there is
// no test, so it is 0.
func Power(n int, effect, level float64, sides int) float64 {
	if n < 2 {
		return 0
	}
	nu := float64(n - 1)
	critical := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: nu}.Quantile(1 - (1-level)/float64(sides))
	mu := math.Abs(effect) * math.Sqrt(float64(n))
	power := 1 - distuv.NoncentralT{Nu: nu, Mu: mu}.CDF(critical)
	if sides == 2 {
		// Found on the wrong side: what is as low for mu is as high for -mu.
		power += 1 - distuv.NoncentralT{Nu: nu, Mu: -mu}.CDF(critical)
	}
	return power
}

// MDE returns the minimum detectable effect: the smallest true effect, in the unit of
// sd, that n pairs find at a level with 80 % power. It is printed beside everything
// that was not found. sides is 2, or 1 for a bound against a margin. It is +Inf for
// one pair and for an sd that is not finite.
func MDE(n int, sd, level float64, sides int) float64 {
	if n < 2 || math.IsInf(sd, 1) || math.IsNaN(sd) {
		return math.Inf(1)
	}
	low, high := 0.0, 1.0
	for Power(n, high, level, sides) < mdePower {
		low, high = high, 2*high
	}
	for range 50 {
		if mid := (low + high) / 2; Power(n, mid, level, sides) < mdePower {
			low = mid
		} else {
			high = mid
		}
	}
	return high * sd
}

// MDE returns the minimum detectable effect of as many pairs with the same spread,
// on the effects' scale.
func (e *Effects) MDE(level float64, sides int) float64 {
	return MDE(e.Len(), e.SD(), level, sides)
}
