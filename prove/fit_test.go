package prove

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/prove/provetest"
)

// TestSolve: planted figures are found, whichever of them are 0, and none is below 0
// whatever is measured.
func TestSolve(t *testing.T) {
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
		chance := provetest.Noise(rapid.Uint64Range(1, math.MaxUint64).Draw(t, "seed"))
		var f fitting
		for range 60 {
			x := make([]float64, n)
			y := 0.0
			for k := range x {
				x[k] = 0.5 + 10*chance.Next()
				y += x[k] * planted[k]
			}
			if noisy {
				y = 0.1 + 10*chance.Next()
			}
			f.add(y, x...)
		}
		have, r2 := f.solve()
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

// TestSteps: values and integrals are those of adding up all spans one by one.
func TestSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type part struct {
			from, to time.Duration
			value    float64
		}
		var parts []part
		var s steps
		for range rapid.IntRange(0, 12).Draw(t, "spans") {
			p := part{time.Duration(rapid.IntRange(0, 20).Draw(t, "from")) * time.Second, time.Duration(rapid.IntRange(0, 20).Draw(t, "to")) * time.Second, float64(rapid.IntRange(1, 5).Draw(t, "value"))}
			parts = append(parts, p)
			s.add(p.from, p.to, p.value)
		}
		s.sum()
		from := time.Duration(rapid.IntRange(0, 40).Draw(t, "a")) * time.Second / 2
		to := from + time.Duration(rapid.IntRange(1, 40).Draw(t, "b"))*time.Second/2
		value, integral := 0.0, 0.0
		for _, p := range parts {
			if p.from <= from && from < p.to {
				value += p.value
			}
			integral += p.value * max(0, (min(p.to, to)-max(p.from, from)).Seconds())
		}
		if have := s.at(from); math.Abs(have-value) > 1e-9 {
			t.Fatalf("%v at %v, want %v", have, from, value)
		}
		if have := s.between(from, to); math.Abs(have-integral) > 1e-9 {
			t.Fatalf("%v between %v and %v, want %v", have, from, to, integral)
		}
		spans := make([]span, 0, len(parts))
		for _, p := range parts {
			if p.to > p.from {
				spans = append(spans, span{p.from, p.to, p.value > 2})
			}
		}
		n := rapid.IntRange(1, 7).Draw(t, "blocks")
		for k, have := range blocks(spans, n, 20*time.Second) {
			want, _ := overlap(spans, BlockEdge(k, n, 20*time.Second), BlockEdge(k+1, n, 20*time.Second))
			if math.Abs(have-want) > 1e-6 {
				t.Fatalf("block %d of %d: %v, want %v", k, n, have, want)
			}
		}
	})
}
