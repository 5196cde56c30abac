package main

import (
	"bytes"
	"math"
	"testing"
)

// TestTable holds this program's own statistics against published values: the ranks
// and levels of exact Walsh intervals, the least p of a sign-flip test, and the effects
// that n pairs find with 80 % power.
func TestTable(t *testing.T) {
	for _, c := range []struct {
		n, rank   int
		level     float64
		p, detect float64
	}{{5, 1, 0.9375, 0.0625, 1.68}, {6, 1, 0.969, 0.03125, 1.44}, {10, 9, 0.951, 0.001953, 1.00}, {20, 53, 0.952, 1.9e-6, 0.66}, {30, 138, 0.950, 1.86e-9, 0.53}} {
		k, beyond := place(c.n, 0.025)
		if k != c.rank || math.Abs(1-2*beyond-c.level) > 6e-4 {
			t.Errorf("%d pairs: rank %d with %.4f, want %d with %.4f", c.n, k, 1-2*beyond, c.rank, c.level)
		}
		same := make([]float64, c.n)
		for i := range same {
			same[i] = 1 + float64(i)/100
		}
		if p := flip(same, 1); math.Abs(p/c.p-1) > 0.01 {
			t.Errorf("%d pairs of one sign: p %g, want %g", c.n, p, c.p)
		}
		if d := detectable(c.n, 1, 0.95, 2); math.Abs(d-c.detect) > 0.006 {
			t.Errorf("%d pairs find %.4f, want %.2f", c.n, d, c.detect)
		}
	}
}

func TestInfinite(t *testing.T) {
	inf := math.Inf(1)
	if e := effectOf("log_ratio", inf, inf); !math.IsNaN(e) {
		t.Errorf("two that never came: %v", e)
	}
	d := []float64{inf, inf, -inf, 1, math.NaN()}
	if low, high := lowEnd(d, 3), highEnd(d, 3); !math.IsInf(low, -1) || !math.IsInf(high, 1) {
		t.Errorf("ends %v and %v", low, high)
	}
	if h := hodgesLehmann([]float64{inf, inf, inf, 2}); !math.IsInf(h, 1) {
		t.Errorf("estimate %v", h)
	}
	if p := flip([]float64{inf, inf, inf, inf, inf, -1}, 1); p <= 0.03125 || p > 0.0626 {
		t.Errorf("p %v", p)
	}
}

// TestCompare: what differs, what is missing and what nobody computed are all told.
func TestCompare(t *testing.T) {
	have := map[string]any{"a": 1.0, "b": nil, "c": "inf", "d": "seed1", "plan.stop_at": 20.0, "arms[0].beside_requests.recalls": 3.0, "words": "x"}
	want := map[string]any{"a": 1.0 + 1e-13, "b": math.NaN(), "c": math.Inf(1), "d": "seed1"}
	var out bytes.Buffer
	if !compare(have, want, &out) {
		t.Errorf("they are the same: %s", out.String())
	}
	for name, change := range map[string]func(){
		"another figure": func() { have["a"] = 1.1 }, "a name": func() { have["a"], have["d"] = 1.0, "seed2" },
		"one that is gone": func() { have["d"] = "seed1"; delete(have, "c") }, "one that is new": func() { have["c"], have["new"] = "inf", 5.0 },
	} {
		change()
		if compare(have, want, &out) {
			t.Errorf("%s was not noticed", name)
		}
		for k := range have {
			delete(have, k)
		}
		have["a"], have["b"], have["c"], have["d"] = 1.0, nil, "inf", "seed1"
	}
}
