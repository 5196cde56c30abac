package stats

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample(t testing.TB, v ...float64) *Sample {
	t.Helper()
	s, err := NewSample(v)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGatekeep(t *testing.T) {
	pass := &Decision{Name: "ttft", Verdict: Pass, Reason: "no harm"}
	open := &Decision{Name: "violations", Verdict: Inconclusive, Reason: "could not tell"}
	fail := &Decision{Name: "violations", Verdict: Fail, Reason: "harm"}
	gain := &Decision{Name: "tokens", Verdict: Pass, Reason: "gain"}
	for _, c := range []struct {
		in     []*Decision
		want   Verdict
		reason string
		last   Verdict
	}{
		{[]*Decision{pass, gain}, Pass, "no harm; gain", Pass},
		{[]*Decision{pass, open, gain}, Inconclusive, "could not tell", Inconclusive},
		{[]*Decision{fail, gain}, Fail, "harm", Inconclusive},
		{[]*Decision{open, fail}, Inconclusive, "could not tell", Inconclusive}, // what is behind the gate is not looked at
	} {
		o, err := Gatekeep(c.in...)
		if err != nil {
			t.Fatal(err)
		}
		if o.Verdict != c.want || o.Reason != c.reason || o.Decisions[len(c.in)-1].Verdict != c.last {
			t.Errorf("%v %q, last %+v; want %v %q, last %v", o.Verdict, o.Reason, o.Decisions[len(c.in)-1], c.want, c.reason, c.last)
		}
		if c.want != Pass && !strings.Contains(o.Decisions[len(c.in)-1].Reason, "not tested, since violations came first") {
			t.Errorf("last reason is %q", o.Decisions[len(c.in)-1].Reason)
		}
	}
	if gain.Verdict != Pass || gain.Reason != "gain" {
		t.Errorf("a decision that was given is changed: %+v", gain)
	}
	if _, err := Gatekeep(); err == nil {
		t.Error("no decisions are taken")
	}
}

func TestRefused(t *testing.T) {
	e := differences(t, make([]float64, 40))
	nineteen := differences(t, make([]float64, 19))
	never := differences(t, append(make([]float64, 30), math.Inf(1)))
	good := Resampling{Level: 0.95, Samples: 1000}
	for name, boot := range map[string]func(*Effects, Resampling) error{
		"percentile":  func(e *Effects, r Resampling) error { _, err := Percentile(e, Mean, r); return err },
		"bca":         func(e *Effects, r Resampling) error { _, err := BCa(e, Mean, r); return err },
		"studentised": func(e *Effects, r Resampling) error { _, err := Studentised(e, r); return err },
	} {
		if err := boot(e, good); err != nil {
			t.Errorf("%s: equal effects: %v", name, err)
		}
		var few *TooFewError
		if err := boot(nineteen, good); !errors.As(err, &few) || few.Have != 19 || few.Need != 20 {
			t.Errorf("%s: 19 pairs: %v", name, err)
		}
		var not *NotFiniteError
		if err := boot(never, good); !errors.As(err, &not) || !cmp.Equal(not.Pairs, []int{30}) {
			t.Errorf("%s: +Inf: %v", name, err)
		}
		for _, r := range []Resampling{{Level: 0.95, Samples: 999}, {Level: 1, Samples: 1000}, {Level: math.NaN(), Samples: 1000}} {
			if err := boot(e, r); err == nil {
				t.Errorf("%s: %+v is taken", name, r)
			}
		}
	}
	ratios, err := Ratios([]Pair{{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Rule{
		{Level: 0.95}, {Better: "less", Level: 0.95}, {Better: IsLower, Level: 95}, {Better: IsLower, Level: 0.95, Margin: -1},
		{Better: IsLower, Level: 0.95, Margin: 5}, {Better: IsLower, Level: 0.95, Margin: math.NaN()},
	} {
		if _, err := NoHarm(ratios, r, 1); err == nil {
			t.Errorf("no harm by %+v", r)
		}
		if _, err := Gain(ratios, r, 1); err == nil {
			t.Errorf("gain by %+v", r)
		}
	}
	for name, err := range map[string]error{
		"no pairs":        second(Ratios(nil)),
		"no values":       second(NewSample(nil)),
		"a NaN":           second(NewSample([]float64{math.NaN()})),
		"-Inf":            second(NewSample([]float64{math.Inf(-1)})),
		"interval of 0":   second(e.Interval(0)),
		"bound of 1":      second(e.Bound(Upper, 1)),
		"quantile of 0":   second(sample(t, 1).Interval(0, 0.95)),
		"shift at 2":      second(Shift([]SamplePair{{sample(t, 1), sample(t, 1)}}, []float64{2}, Ratios, 0.95)),
		"shift of none":   second(Shift(nil, []float64{0.5}, Ratios, 0.95)),
		"a width of 0":    third(WorstWindow(nil, 0)),
		"amount of -1":    third(WorstWindow([]Event{{0, -1}}, 1)),
		"an endless time": third(WorstWindow([]Event{{math.Inf(1), 1}}, 1)),
	} {
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }

func TestTails(t *testing.T) {
	s := sample(t, math.Inf(1), 7, 5, 1, math.Inf(1), 6)
	if d := s.Overdue(5); d != (Debt{Sum: 3, Never: 2}) {
		t.Errorf("debt is %+v", d)
	}
	if s.Quantile(0.5) != 6 || !math.IsInf(s.Quantile(0.95), 1) || s.Never() != 2 || s.Len() != 6 {
		t.Errorf("p50 %v, p95 %v, %d never of %d", s.Quantile(0.5), s.Quantile(0.95), s.Never(), s.Len())
	}
	if d := cmp.Diff([]Step{{1, 1. / 6}, {5, 2. / 6}, {6, 3. / 6}, {7, 4. / 6}}, s.Steps()); d != "" {
		t.Errorf("ECDF (-want +got):\n%s", d)
	}
	if r, ok := Per10k(3, 2000); r != 15 || !ok {
		t.Errorf("3 of 2,000 are %v per 10k, %v", r, ok)
	}
	if r, ok := Per10k(0, 0); ok {
		t.Errorf("0 of 0 are %v per 10k", r)
	}
	if _, ok, err := WorstWindow(nil, 60); ok || err != nil {
		t.Errorf("no events have a worst window: %v, %v", ok, err)
	}
	// The worst minute is not one of the clock's: 50 to 110 s.
	w, ok, err := WorstWindow([]Event{{10, 1}, {50, 1}, {55, 0}, {70, 1}, {100, 1}, {110, 1}, {300, 2}}, 60)
	if !ok || err != nil || w != (Window{At: 50, Sum: 3, Events: 4}) {
		t.Errorf("worst minute is %+v, %v, %v", w, ok, err)
	}
}

func TestShift(t *testing.T) {
	// The treatment is 10 % slower above the median only, in each of 12 pairs.
	src := rand.New(rand.NewPCG(7, 7))
	var pairs []SamplePair
	for range 12 {
		a, b := make([]float64, 600), make([]float64, 600)
		for i := range a {
			a[i] = 1 + src.Float64()
			if b[i] = a[i]; a[i] > 1.6 {
				b[i] *= 1.1
			}
		}
		pairs = append(pairs, SamplePair{sample(t, a...), sample(t, b...)})
	}
	points, err := Shift(pairs, []float64{0.25, 0.9, 0.99, 0.999}, Ratios, 0.95)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		shift float64
		ok    bool
	}{{0, true}, {math.Log(1.1), true}, {math.Log(1.1), true}, {math.Log(1.1), false}} {
		p := points[i]
		if !near(p.Estimate, want.shift) || p.OK != want.ok || !near(p.Interval.Low, want.shift) || p.Effects.Len() != 12 {
			t.Errorf("quantile %v: %v, %+v, shown %v; want %v, %v", p.Quantile, p.Estimate, p.Interval, p.OK, want.shift, want.ok)
		}
	}
}

// TestTwoLevel: the range holds a planted effect, and blocks count: with a queue that
// comes and goes within a run, it is wider than if the run were one piece.
func TestTwoLevel(t *testing.T) {
	src := rand.New(rand.NewPCG(8, 8))
	var blocks, whole []Blocks
	for range 24 {
		var p Blocks
		var a, b []float64
		for range 10 {
			busy, noise := math.Exp(src.NormFloat64()), math.Exp(0.1*src.NormFloat64())
			var x, y []float64
			for range 20 {
				v := busy * (1 + 0.1*src.Float64())
				x, y = append(x, v), append(y, v*1.1*noise)
			}
			p.Baseline, p.Treatment = append(p.Baseline, x), append(p.Treatment, y)
			a, b = append(a, x...), append(b, y...)
		}
		blocks, whole = append(blocks, p), append(whole, Blocks{[][]float64{a}, [][]float64{b}})
	}
	r := Resampling{Level: 0.95, Samples: 1000, Seed: 1}
	i, err := TwoLevel(blocks, 0.95, r)
	if err != nil {
		t.Fatal(err)
	}
	j, err := TwoLevel(whole, 0.95, r)
	if err != nil {
		t.Fatal(err)
	}
	if effect := math.Log(1.1); !(i.Low < effect && effect < i.High) || i.High-i.Low <= j.High-j.Low {
		t.Errorf("blocks %+v, whole runs %+v", i, j)
	}
	if again, err := TwoLevel(blocks, 0.95, r); err != nil || again != i {
		t.Errorf("the same seed gives %+v and %+v, %v", i, again, err)
	}

	// Runs of which neither arm's quantile came leave the range open on both sides.
	for k := range 16 {
		for m := range whole[k].Baseline[0] {
			whole[k].Baseline[0][m], whole[k].Treatment[0][m] = math.Inf(1), math.Inf(1)
		}
	}
	if i, err = TwoLevel(whole, 0.95, r); err != nil || !math.IsInf(i.Low, -1) || !math.IsInf(i.High, 1) {
		t.Errorf("runs that never came: %+v, %v", i, err)
	}
	var few *TooFewError
	if _, err := TwoLevel(blocks[:19], 0.95, r); !errors.As(err, &few) {
		t.Errorf("19 pairs: %v", err)
	}
	blocks[3].Treatment = blocks[3].Treatment[:9]
	if _, err := TwoLevel(blocks, 0.95, r); err == nil || !strings.Contains(err.Error(), "pair 3: baseline has 10 blocks and treatment 9") {
		t.Errorf("other blocks: %v", err)
	}
}

func TestEProcess(t *testing.T) {
	var p EProcess
	for i, want := range []float64{1, 1.5, 2.5, 4.375, 7.875, 14.4375, 26.8125} { // 2^t times the mixture's share of one sign only
		stop := p.Add(1)
		if !near(p.E(), want) || stop != (want >= StopAt) {
			t.Errorf("%d of one sign: evidence %v, stopped %v; want %v", i+1, p.E(), stop, want)
		}
	}
	for range 20 {
		p.Add(-1)
	}
	if p.E() >= StopAt || !p.Stopped() || !near(p.P(), 1/26.8125) {
		t.Errorf("what was reached is lost: %v, %v, %v", p.E(), p.Stopped(), p.P())
	}
	before := p
	if p.Add(0); p.E() != before.E() {
		t.Error("a tie changes the evidence")
	}
	p.Add(math.NaN())
	p.Add(math.Inf(1))
	if plus, minus, ties := p.Counts(); plus != 8 || minus != 20 || ties != 2 {
		t.Errorf("counts are %d, %d, %d", plus, minus, ties)
	}
	// If the arms are the same it stops at most once in twenty, looked at 500 times.
	src, stops := rand.New(rand.NewPCG(9, 9)), 0
	for range 2000 {
		var p EProcess
		for range 500 {
			p.Add(src.NormFloat64())
		}
		if p.Stopped() {
			stops++
		}
	}
	if stops > 100 {
		t.Errorf("%d of 2000 comparisons of equal arms stopped", stops)
	}
}

func TestPower(t *testing.T) {
	if !math.IsInf(MDE(1, 1, 0.95, 2), 1) || Power(1, 5, 0.95, 2) != 0 || !math.IsInf(MDE(10, math.Inf(1), 0.95, 2), 1) {
		t.Error("one pair, or no spread that is known, finds something")
	}
	if p := Power(20, 0, 0.95, 2); math.Abs(p-0.05) > 1e-9 {
		t.Errorf("no effect is found in %v", p)
	}
	if p := Power(20, 0, 0.95, 1); math.Abs(p-0.05) > 1e-9 {
		t.Errorf("no effect is found in %v on one side", p)
	}
	if a, b := MDE(30, 1, 0.95, 1), MDE(30, 1, 0.95, 2); a >= b {
		t.Errorf("one side sees %v, two see %v", a, b)
	}
}

// TestHarmInFewPairsIsNotNoHarm: in 27 pairs nothing changes, in three nearly
// everything is lost. The middle says no harm; the mean does not, and it is not said.
func TestHarmInFewPairsIsNotNoHarm(t *testing.T) {
	for _, c := range []struct {
		lost float64
		want Verdict
	}{{1, Pass}, {30, Inconclusive}, {math.Inf(1), Inconclusive}} {
		for _, better := range []Better{IsLower, IsHigher} {
			pairs := make([]Pair, 30)
			for i := range pairs {
				pairs[i] = Pair{Baseline: 1, Treatment: 1}
				if i%10 == 0 {
					pairs[i].Treatment = c.lost
				}
				if better == IsHigher {
					pairs[i] = Pair{Baseline: pairs[i].Treatment, Treatment: pairs[i].Baseline}
				}
			}
			e, err := Ratios(pairs)
			if err != nil {
				t.Fatal(err)
			}
			d, err := NoHarm(e, Rule{Name: "m", Better: better, Margin: 0.05, Level: 0.95}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if d.Verdict != c.want || c.want == Inconclusive && !strings.Contains(d.Reason, "some pairs are so much worse") {
				t.Errorf("%s is better, %v times in three pairs: %s: %s", better, c.lost, d.Verdict, d.Reason)
			}
		}
	}
}
