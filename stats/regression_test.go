package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestRegression: planted figures are found, whichever of them are 0, and none is below 0
// whatever is measured.
func TestRegression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "figures")
		planted := make([]float64, n)
		some := false
		for k := range planted {
			if rapid.Bool().Draw(t, "there") {
				planted[k], some = rapid.Float64Range(0.01, 10).Draw(t, "figure"), true
			}
		}
		if !some {
			planted[0] = 1
		}
		noisy := rapid.Bool().Draw(t, "noisy")
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var f Regression
		for range 60 {
			x := make([]float64, n)
			y := 0.0
			for k := range x {
				x[k] = 0.5 + 10*chance.Float64()
				y += x[k] * planted[k]
			}
			if noisy {
				y = 0.1 + 10*chance.Float64()
			}
			f.Add(y, x...)
		}
		have, r2 := f.Solve()
		if worst := f.Worst(have); !noisy && worst > 1e-6 {
			t.Fatalf("the worst is off by %v", worst)
		}
		for k := range have {
			if have[k] < 0 || !noisy && math.Abs(have[k]-planted[k]) > 1e-6*(1+planted[k]) {
				t.Fatalf("planted %v, found %v", planted, have)
			}
		}
		if r2 > 1 || !noisy && r2 < 1-1e-6 {
			t.Fatalf("r2 %v", r2)
		}
		if !noisy {
			return
		}
		// No small step from it that stays at 0 or above fits better.
		best := f.errors(have)
		for k := range have {
			for _, by := range []float64{1e-3, -1e-3} {
				if near := append([]float64{}, have...); near[k]+by >= 0 {
					near[k] += by
					if f.errors(near) < best*(1-1e-9) {
						t.Fatalf("%v fits better than %v", near, have)
					}
				}
			}
		}
	})
}
