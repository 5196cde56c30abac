package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// table is what n pairs buy: the figures that the methods here were chosen by. They
// are a published table's, computed without this package.
var table = []struct {
	n             int
	minP          float64
	mde           float64
	bootNormal    float64 // coverage of the 95 % percentile bootstrap of the mean
	bootLog       float64
	tNormal, tLog float64 // coverage of Student's interval
	rank, of      int     // the exact 95 % interval's end, of so many Walsh averages
	level         float64 // that it has
	atLevel       bool
}{
	{n: 5, minP: 0.0625, mde: 1.68, bootNormal: 81, bootLog: 70, tNormal: 95, tLog: 80, rank: 1, of: 15, level: 93.75},
	{n: 6, minP: 0.031, mde: 1.44, bootNormal: 85, bootLog: 74, tNormal: 96, tLog: 83, rank: 1, of: 21, level: 96.9, atLevel: true},
	{n: 10, minP: 0.002, mde: 1.00, bootNormal: 91, bootLog: 81, tNormal: 96, tLog: 84, rank: 9, of: 55, level: 95.1, atLevel: true},
	{n: 20, minP: 2e-6, mde: 0.66, bootNormal: 93, bootLog: 85, tNormal: 95, tLog: 86, rank: 53, of: 210, level: 95.2, atLevel: true},
	{n: 30, minP: 2e-9, mde: 0.53, bootNormal: 94, bootLog: 88, tNormal: 96, tLog: 89, rank: 138, of: 465, level: 95.0, atLevel: true},
}

func differences(t testing.TB, d []float64) *Effects {
	t.Helper()
	pairs := make([]Pair, len(d))
	for i, v := range d {
		pairs[i] = Pair{Treatment: v}
		if v == math.Inf(-1) {
			pairs[i] = Pair{Baseline: math.Inf(1)}
		}
	}
	e, err := Differences(pairs)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestTableExact(t *testing.T) {
	for _, row := range table {
		t.Run(fmt.Sprint(row.n), func(t *testing.T) {
			d := make([]float64, row.n)
			for i := range d {
				d[i] = float64(i + 1)
			}
			e := differences(t, d)
			f := e.Flip(0)
			if f.P != math.Ldexp(1, 1-row.n) || f.Drawn != 0 {
				t.Errorf("smallest p is %v, %d drawn; every pattern was to be counted", f.P, f.Drawn)
			}
			if math.Abs(f.P/row.minP-1) > 0.08 { // the table has one to three digits
				t.Errorf("smallest p is %v, the table has %v", f.P, row.minP)
			}
			// 6 pairs are 1.4345 here; TestMDEPower finds that in 80 % of runs.
			if got := MDE(row.n, 1, 0.95, 2); math.Abs(got-row.mde) > 0.006 {
				t.Errorf("MDE is %.4f SD, the table has %.2f", got, row.mde)
			}
			w := walsh(d)
			if k, _ := rankFor(row.n, 0.025); k != row.rank || len(w) != row.of {
				t.Errorf("interval's end is %d of %d, the table has %d of %d", k, len(w), row.rank, row.of)
			}
			i, err := e.Interval(0.95)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(100*i.Level-row.level) > 0.05 || i.Met() != row.atLevel {
				t.Errorf("interval has %.3f %%, met: %v; the table has %v, %v", 100*i.Level, i.Met(), row.level, row.atLevel)
			}
			if row.n == 5 && (i.Low != 1 || i.High != 5) {
				t.Errorf("five pairs give %v to %v, not their range", i.Low, i.High)
			}
		})
	}
	// What an SD of 6 % lets n = 5 and n = 30 see.
	if five, thirty := MDE(5, 6, 0.95, 2), MDE(30, 6, 0.95, 2); math.Abs(five-10) > 0.1 || math.Abs(thirty-3.2) > 0.05 {
		t.Errorf("of an SD of 6 %%, 5 pairs see %.2f %% and 30 pairs %.2f %%; the table has 10 and 3.2", five, thirty)
	}
}

// TestTableCoverage simulates the coverage columns. With 2,000 runs the standard error
// is 0.5 (at 95 %) to 1.0 points (at 70 %), the table's own is not known and it is
// rounded: 2.5 points hold all of that.
func TestTableCoverage(t *testing.T) {
	const runs = 2000
	for _, row := range table {
		critical := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(row.n - 1)}.Quantile(0.975)
		for _, c := range []struct {
			name       string
			draw       func(*rand.Rand) float64
			centre     float64
			boot, tint float64
		}{
			{"normal", func(r *rand.Rand) float64 { return r.NormFloat64() }, 0, row.bootNormal, row.tNormal},
			{"lognormal", func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64()) }, math.Exp(0.5), row.bootLog, row.tLog},
		} {
			src := rand.New(rand.NewPCG(1, uint64(row.n)))
			d, boot, tint := make([]float64, row.n), 0, 0
			for seed := range uint64(runs) {
				for i := range d {
					d[i] = c.draw(src)
				}
				if i := percentile(d, Mean, Resampling{Level: 0.95, Samples: 500, Seed: seed}); i.Low <= c.centre && c.centre <= i.High {
					boot++
				}
				if half := critical * sd(d) / math.Sqrt(float64(row.n)); math.Abs(mean(d)-c.centre) <= half {
					tint++
				}
			}
			for _, got := range []struct {
				what     string
				share, w float64
			}{{"percentile bootstrap", 100 * float64(boot) / runs, c.boot}, {"t interval", 100 * float64(tint) / runs, c.tint}} {
				t.Logf("n = %d, %s, %s: %.1f, table %v", row.n, c.name, got.what, got.share, got.w)
				if math.Abs(got.share-got.w) > 2.5 {
					t.Errorf("n = %d, %s: %s covers %.1f %%, the table has %v", row.n, c.name, got.what, got.share, got.w)
				}
			}
		}
	}
}

// TestWalshCoverage: the exact interval has the level that it says, for any symmetric
// distribution; here one with a variance that is infinite.
func TestWalshCoverage(t *testing.T) {
	const runs = 4000 // standard error 0.35 points
	for _, n := range []int{5, 6, 10, 20} {
		src := rand.New(rand.NewPCG(2, uint64(n)))
		in, d, level := 0, make([]float64, n), 0.0
		for range runs {
			for i := range d {
				d[i] = math.Tan(math.Pi * (src.Float64() - 0.5))
			}
			i, err := differences(t, d).Interval(0.95)
			if err != nil {
				t.Fatal(err)
			}
			level = i.Level
			if i.Low <= 0 && 0 <= i.High {
				in++
			}
		}
		if got := float64(in) / runs; math.Abs(got-level) > 0.012 {
			t.Errorf("n = %d: covers %.4f, says %.4f", n, got, level)
		}
	}
}

// TestBetterBootstraps: of skewed effects, BCa and studentised ranges hold the mean more
// often than percentiles do.
func TestBetterBootstraps(t *testing.T) {
	const n, runs = 20, 1000 // standard error about 1 point
	src := rand.New(rand.NewPCG(3, n))
	d := make([]float64, n)
	var plain, accelerated, student int
	for seed := range uint64(runs) {
		for i := range d {
			d[i] = math.Exp(src.NormFloat64())
		}
		r := Resampling{Level: 0.95, Samples: 1000, Seed: seed}
		in := func(i Interval) int {
			if i.Low <= math.Exp(0.5) && math.Exp(0.5) <= i.High {
				return 1
			}
			return 0
		}
		plain += in(percentile(d, Mean, r))
		accelerated += in(bca(d, Mean, r))
		student += in(studentised(d, r))
	}
	t.Logf("of %d: percentile %d, BCa %d, studentised %d", runs, plain, accelerated, student)
	if accelerated <= plain || student <= accelerated || student < 910 {
		t.Errorf("of %d: percentile %d, BCa %d, studentised %d", runs, plain, accelerated, student)
	}
}

// TestMDEPower: an effect of the minimum detectable size is found in 80 % of runs, by
// the sign-flip test too, though the formula is Student's.
func TestMDEPower(t *testing.T) {
	const runs = 4000 // standard error 0.6 points
	for _, c := range []struct {
		n     int
		sides int
	}{{6, 2}, {10, 2}, {20, 2}, {10, 1}} {
		effect := MDE(c.n, 1, 0.95, c.sides)
		src := rand.New(rand.NewPCG(4, uint64(c.n)))
		critical := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(c.n - 1)}.Quantile(1 - 0.05/float64(c.sides))
		student, flip, d := 0, 0, make([]float64, c.n)
		for range runs {
			for i := range d {
				d[i] = effect + src.NormFloat64()
			}
			if x := mean(d) / sd(d) * math.Sqrt(float64(c.n)); x > critical || c.sides == 2 && x < -critical {
				student++
			}
			f := differences(t, d).Flip(0)
			if c.sides == 2 && f.P <= 0.05 || c.sides == 1 && f.Greater <= 0.05 {
				flip++
			}
		}
		t.Logf("n = %d, %d sides: t-test %.3f, sign-flip %.3f", c.n, c.sides, float64(student)/runs, float64(flip)/runs)
		if p := float64(student) / runs; math.Abs(p-mdePower) > 0.02 {
			t.Errorf("n = %d, %d sides: t-test finds %.3f", c.n, c.sides, p)
		}
		if p := float64(flip) / runs; c.n >= 10 && math.Abs(p-mdePower) > 0.03 {
			t.Errorf("n = %d, %d sides: sign-flip test finds %.3f", c.n, c.sides, p)
		}
	}
}

// TestTableEProcess has the mean number of pairs until the evidence is 20, for normal
// effects of so many standard deviations.
func TestTableEProcess(t *testing.T) {
	const runs = 20_000 // standard error below 0.4 of 62 pairs
	for _, c := range []struct{ effect, mean float64 }{{1, 17}, {0.8, 25}, {0.5, 62}} {
		src := rand.New(rand.NewPCG(5, uint64(10*c.effect)))
		pairs := 0
		for range runs {
			var p EProcess
			for stop := false; !stop; pairs++ {
				stop = p.Add(c.effect + src.NormFloat64())
			}
		}
		if got := float64(pairs) / runs; math.Abs(got-c.mean) > 1.5 {
			t.Errorf("effects of %v SD stop after %.2f pairs, the table has %v", c.effect, got, c.mean)
		} else {
			t.Logf("effects of %v SD stop after %.2f pairs", c.effect, got)
		}
	}
}

func TestTableQuantiles(t *testing.T) {
	for _, c := range []struct {
		n         int
		low, high float64 // of the sample's own values i/n
		within    float64
	}{
		{100, 0.97, math.Inf(1), 0.0001},
		{1000, 0.984, 0.996, 0.0015},
		{20_000, 0.9886, 0.9914, 0.0001},
	} {
		v := make([]float64, c.n)
		for i := range v {
			v[i] = float64(i+1) / float64(c.n)
		}
		s, err := NewSample(v)
		if err != nil {
			t.Fatal(err)
		}
		i, err := s.Interval(0.99, 0.95)
		if err != nil {
			t.Fatal(err)
		}
		off := math.IsInf(c.high, 1)
		if math.Abs(i.Low-c.low) > c.within || math.IsInf(i.High, 1) != off || !off && math.Abs(i.High-c.high) > c.within {
			t.Errorf("p99 of %d is from %v to %v, the table has %v to %v", c.n, i.Low, i.High, c.low, c.high)
		}
		if i.Level < 0.93 || i.Level > 1 {
			t.Errorf("p99 of %d: level is %v", c.n, i.Level)
		}
	}
	for _, c := range []struct {
		q  float64
		n  int
		ok bool
	}{{0.99, 499, false}, {0.99, 500, true}, {0.999, 4999, false}, {0.999, 5000, true}, {0.95, 1, true}} {
		s, err := NewSample(make([]float64, c.n))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Shown(c.q); ok != c.ok {
			t.Errorf("quantile %v of %d is shown: %v", c.q, c.n, ok)
		}
	}
}
