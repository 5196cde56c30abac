package stats

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// near allows for rounding of sums in another order.
func near(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b))
}

// effect draws small whole numbers too, so that there are ties and zeros.
func effect(infinite bool) *rapid.Generator[float64] {
	return rapid.Custom(func(t *rapid.T) float64 {
		switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
		case kind < 4:
			return float64(rapid.IntRange(-3, 3).Draw(t, "whole"))
		case kind < 9 || !infinite:
			return rapid.Float64Range(-100, 100).Draw(t, "v")
		}
		return math.Inf(1 - 2*rapid.IntRange(0, 1).Draw(t, "negative"))
	})
}

func drawEffects(t *rapid.T, least, most int, infinite bool) *Effects {
	e := &Effects{values: rapid.SliceOfN(effect(infinite), least, most).Draw(t, "effects")}
	e.unknown = make([]bool, len(e.values))
	if infinite {
		for i := range e.unknown {
			if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 {
				e.values[i], e.unknown[i] = 0, true
			}
		}
	}
	return e
}

func interval(t *rapid.T, e *Effects, level float64) Interval {
	i, err := e.Interval(level)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func mapped(e *Effects, f func(float64) float64) *Effects {
	m := &Effects{values: e.Values(), unknown: e.unknown}
	for i, v := range m.values {
		m.values[i] = f(v)
	}
	return m
}

func TestIntervalHoldsEstimate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEffects(t, 1, 40, true)
		level := rapid.Float64Range(0.5, 0.999).Draw(t, "level")
		i, at := interval(t, e, level), e.Estimate()
		if !(i.Low <= at && at <= i.High) {
			t.Fatalf("estimate %v is not in %v to %v", at, i.Low, i.High)
		}
		if i.Met() != (i.Level >= level) || i.Level <= 0 && e.Len() > 1 || i.Level > 1 {
			t.Fatalf("level %v of %v asked, met: %v", i.Level, level, i.Met())
		}
		low, err := e.Bound(Lower, level)
		if err != nil {
			t.Fatal(err)
		}
		high, err := e.Bound(Upper, level)
		if err != nil {
			t.Fatal(err)
		}
		if low.Met() && low.Value < i.Low || high.Met() && high.Value > i.High {
			t.Fatalf("one-sided bounds %v and %v are outside the interval %v to %v", low.Value, high.Value, i.Low, i.High)
		}
	})
}

func TestShiftAndScale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEffects(t, 1, 25, false)
		shift, scale := rapid.Float64Range(-50, 50).Draw(t, "shift"), rapid.Float64Range(0.1, 10).Draw(t, "scale")
		m := mapped(e, func(v float64) float64 { return shift + scale*v })
		if a, b := m.Estimate(), shift+scale*e.Estimate(); !near(a, b) {
			t.Fatalf("estimate %v, want %v", a, b)
		}
		i, j := interval(t, e, 0.95), interval(t, m, 0.95)
		if !near(j.Low, shift+scale*i.Low) || !near(j.High, shift+scale*i.High) || i.Level != j.Level {
			t.Fatalf("interval %+v, of shifted and scaled %+v", i, j)
		}
		// The test is of 0, so it has scale only; a power of two changes no rounding.
		if a, b := e.Flip(1), mapped(e, func(v float64) float64 { return 4 * v }).Flip(1); a != b {
			t.Fatalf("sign-flip %+v, scaled %+v", a, b)
		}
	})
}

func TestSignAndOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEffects(t, 1, 30, true)
		m := mapped(e, func(v float64) float64 { return -v })
		if a, b := e.Estimate(), m.Estimate(); !near(a, -b) {
			t.Fatalf("estimate %v, of the opposite %v", a, b)
		}
		i, j := interval(t, e, 0.9), interval(t, m, 0.9)
		if !near(i.Low, -j.High) || !near(i.High, -j.Low) {
			t.Fatalf("interval %+v, of the opposite %+v", i, j)
		}
		f, g := e.Flip(1), m.Flip(1)
		if !near(f.P, g.P) || !near(f.Greater, g.Less) || !near(f.Less, g.Greater) {
			t.Fatalf("sign-flip %+v, of the opposite %+v", f, g)
		}

		order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := range e.Len() {
				if !yield(i) {
					return
				}
			}
		})).Draw(t, "order")
		p := &Effects{}
		for _, i := range order {
			p.values, p.unknown = append(p.values, e.values[i]), append(p.unknown, e.unknown[i])
		}
		if !near(p.Estimate(), e.Estimate()) || interval(t, p, 0.9) != i || !near(p.Flip(1).P, f.P) {
			t.Fatalf("another order has %v, %+v, %+v", p.Estimate(), interval(t, p, 0.9), p.Flip(1))
		}
	})
}

// TestFlipBrute counts every sign pattern one by one. Whole numbers have exact sums.
func TestFlipBrute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.SliceOfN(rapid.IntRange(-20, 20), 1, 10).Draw(t, "effects")
		infinite := rapid.SliceOfN(rapid.IntRange(0, 5), len(whole), len(whole)).Draw(t, "infinite")
		e := &Effects{}
		for i, v := range whole {
			f := float64(v)
			if infinite[i] == 0 && v != 0 {
				f = math.Copysign(math.Inf(1), f)
			}
			e.values, e.unknown = append(e.values, f), append(e.unknown, false)
		}
		// A sum is compared by its infinite effects first, then by its finite ones.
		sum := func(pattern int) (inf, fin int) {
			for i, v := range e.values {
				sign := 1 - 2*(pattern>>i&1)
				switch {
				case math.IsInf(v, 1):
					inf += sign
				case math.IsInf(v, -1):
					inf -= sign
				default:
					fin += sign * whole[i]
				}
			}
			return inf, fin
		}
		compare := func(a, b, c, d int) int {
			if a != c {
				return a - c
			}
			return b - d
		}
		inf, fin := sum(0)
		farInf, farFin := inf, fin
		if compare(inf, fin, 0, 0) < 0 {
			farInf, farFin = -inf, -fin
		}
		var greater, less, far int
		for pattern := range 1 << len(whole) {
			a, b := sum(pattern)
			if compare(a, b, inf, fin) >= 0 {
				greater++
			}
			if compare(a, b, inf, fin) <= 0 {
				less++
			}
			if compare(a, b, farInf, farFin) >= 0 || compare(-a, -b, farInf, farFin) >= 0 {
				far++
			}
		}
		all := float64(int(1) << len(whole))
		want := Flip{P: float64(far) / all, Greater: float64(greater) / all, Less: float64(less) / all}
		if got := e.Flip(0); got != want {
			t.Fatalf("%v: %+v, one by one %+v", e.values, got, want)
		}
	})
}

// TestSignedRankBrute counts every set of ranks.
func TestSignedRankBrute(t *testing.T) {
	for n := 1; n <= 10; n++ {
		count := make([]int, n*(n+1)/2+1)
		for set := range 1 << n {
			w := 0
			for i := range n {
				w += (i + 1) * (set >> i & 1)
			}
			count[w]++
		}
		for w, p := range signedRank(n) {
			if w < len(count) && p != float64(count[w])/float64(int(1)<<n) {
				t.Errorf("n = %d: P(W = %d) is %v, counted %d of %d", n, w, p, count[w], 1<<n)
			}
		}
		for _, tail := range []float64{0.5, 0.25, 0.05, 0.025, 0.005} {
			k, p := rankFor(n, tail)
			cum, want := 0, 0
			for want < len(count) && float64(cum+count[want]) <= tail*float64(int(1)<<n) {
				cum += count[want]
				want++
			}
			if want == 0 {
				want, cum = 1, count[0]
			}
			if k != want || p != float64(cum)/float64(int(1)<<n) {
				t.Errorf("n = %d, tail %v: rank %d with %v, counted %d with %d", n, tail, k, p, want, cum)
			}
		}
	}
}

// TestDrawnFlips: what is drawn agrees with what is counted, to the chance of 10^5
// draws: six standard errors of at most 0.0016 each.
func TestDrawnFlips(t *testing.T) {
	for seed, d := range [][]float64{{1, 2, 3, -4, 5, 6, -7, 8}, {0, 0, 1, 1, 1}, {-3, -1, -2, -9, 4}, {0}} {
		sum, size := 0.0, 0.0
		for _, v := range d {
			sum += v
			size += math.Abs(v)
		}
		want, got := differences(t, d).Flip(0), flipDrawn(d, sum, 1e-12*size, uint64(seed))
		if got.Drawn != flipDraws || math.Abs(got.P-want.P) > 0.01 || math.Abs(got.Greater-want.Greater) > 0.01 || math.Abs(got.Less-want.Less) > 0.01 {
			t.Errorf("%v: drawn %+v, counted %+v", d, got, want)
		}
	}
	// The observed pattern counts as drawn, so p is never 0.
	d := make([]float64, flipAll+1)
	for i := range d {
		d[i] = 1
	}
	if f := differences(t, d).Flip(1); f.Drawn != flipDraws || f.P != 1.0/(flipDraws+1) {
		t.Errorf("41 equal effects: %+v", f)
	}
}

func TestHolm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Float64Range(0, 1), 0, 8).Draw(t, "p")
		// By its meaning: step down from the smallest while it is below alpha / what is left.
		adjusted := Holm(p)
		alpha := rapid.Float64Range(0.001, 0.5).Draw(t, "alpha")
		sorted := slices.Sorted(slices.Values(p))
		rejected := 0
		for i, v := range sorted {
			if v*float64(len(p)-i) > alpha {
				break
			}
			rejected++
		}
		got := 0
		for i, v := range adjusted {
			if v < p[i] {
				t.Fatalf("%v is adjusted to %v", p[i], v)
			}
			if v <= alpha {
				got++
			}
		}
		if got != rejected {
			t.Fatalf("%d of %v are below %v, stepping down %d are", got, adjusted, alpha, rejected)
		}
	})
}

// TestTrendBrute counts every order of values, without and with ties; the latter are by
// a normal curve, so only roughly.
func TestTrendBrute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ties := rapid.Bool().Draw(t, "ties")
		n := rapid.IntRange(3, 6).Draw(t, "n")
		values := make([]int, n)
		for i := range values {
			values[i] = i
			if ties && i > n/2 {
				values[i] = n / 2
			}
		}
		x := make([]float64, n)
		for i, v := range rapid.Permutation(values).Draw(t, "order") {
			x[i] = float64(v)
		}
		size := func(x []float64) int {
			s := 0
			for i := range x {
				for j := range i {
					s += cmp.Compare(x[i], x[j])
				}
			}
			return max(s, -s)
		}
		far, all := 0, 0
		var walk func(k int)
		y := slices.Clone(x)
		walk = func(k int) {
			if k == n {
				all++
				if size(y) >= size(x) {
					far++
				}
				return
			}
			for i := k; i < n; i++ {
				y[k], y[i] = y[i], y[k]
				walk(k + 1)
				y[k], y[i] = y[i], y[k]
			}
		}
		walk(0)
		within := 1e-9
		if slices.Max(values) < n-1 { // ties
			within = 0.2
		}
		if got, want := trend(x), float64(far)/float64(all); math.Abs(got-want) > within {
			t.Fatalf("%v: %v, of every order %v", x, got, want)
		}
	})
}

// TestWorstWindowBrute tries windows that begin anywhere.
func TestWorstWindowBrute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var events []Event
		for range rapid.IntRange(1, 20).Draw(t, "n") {
			amount := float64(rapid.IntRange(0, 3).Draw(t, "amount"))
			if amount == 3 {
				amount = math.Inf(1)
			}
			events = append(events, Event{At: float64(rapid.IntRange(0, 30).Draw(t, "at")), Amount: amount})
		}
		width := float64(rapid.IntRange(1, 10).Draw(t, "width"))
		got, ok, err := WorstWindow(events, width)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		for begin := -10.5; begin < 31; begin += 0.5 {
			w := Window{At: begin}
			for _, e := range events {
				if e.At >= begin && e.At < begin+width {
					w.Events++
					if math.IsInf(e.Amount, 1) {
						w.Never++
					} else {
						w.Sum += e.Amount
					}
				}
			}
			if w.Never > got.Never || w.Never == got.Never && w.Sum > got.Sum {
				t.Fatalf("%+v is worse than %+v", w, got)
			}
			if w.At == got.At && w != got {
				t.Fatalf("%+v, counted %+v", got, w)
			}
		}
	})
}

func TestECDF(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(effect(false), 1, 50).Draw(t, "values")
		for range rapid.IntRange(0, 3).Draw(t, "never") {
			v = append(v, math.Inf(1))
		}
		s, err := NewSample(v)
		if err != nil {
			t.Fatal(err)
		}
		q := rapid.Float64Range(0.001, 1).Draw(t, "q")
		at := s.Quantile(q)
		if !slices.Contains(v, at) || s.Within(at) < q-1e-6 {
			t.Fatalf("quantile %v is %v, which a share %v does not exceed", q, at, s.Within(at))
		}
		for _, step := range s.Steps() {
			if step.Share != s.Within(step.Value) || s.Within(math.Nextafter(step.Value, math.Inf(-1))) >= step.Share {
				t.Fatalf("no step of the ECDF: %+v", step)
			}
			if step.Value < at && step.Share >= q+1e-6 {
				t.Fatalf("quantile %v is %v, and %v is enough", q, at, step.Value)
			}
		}
		i, err := s.Interval(q, 0.95)
		if err != nil {
			t.Fatal(err)
		}
		if !(i.Low <= at && at <= i.High) {
			t.Fatalf("quantile %v is %v, not in %+v", q, at, i)
		}
	})
}
