package prove

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

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
