package stats

import "math"

// Regression is one of a few figures that are not below 0, such as the prices of what
// a time is made of. It has the least sum of squared relative errors, so that short and
// long ones count alike.
type Regression struct {
	rows [][]float64 // each divided by what was measured, which is then 1
	y    []float64   // what was measured
}

// Len is how many were measured.
func (f *Regression) Len() int { return len(f.rows) }

// Add adds what was measured, above 0, and how much of each figure is in it.
func (f *Regression) Add(y float64, x ...float64) {
	row := make([]float64, len(x))
	for k := range x {
		row[k] = x[k] / y
	}
	f.rows, f.y = append(f.rows, row), append(f.y, y)
}

// Solve returns the figures, and which share of the relative spread they explain: 1 is
// all of it, and 0 or less no more than the best single time for all. With so few of
// them each set that is left out can be tried, which needs no iteration to end.
func (f *Regression) Solve() (best []float64, r2 float64) {
	n := len(f.rows[0])
	left := math.Inf(1)
	for set := 1; set < 1<<n; set++ {
		x, ok := f.least(set)
		if !ok {
			continue
		}
		if e := f.errors(x); e < left*(1-1e-9) {
			best, left = x, e
		}
	}
	if best == nil {
		best = make([]float64, n)
	}
	// Against the best single time for all, by the same measure.
	inverse, squares := 0.0, 0.0
	for _, y := range f.y {
		inverse += 1 / y
		squares += 1 / (y * y)
	}
	all := 0.0
	for _, y := range f.y {
		d := 1 - inverse/squares/y
		all += d * d
	}
	if all == 0 {
		return best, 1
	}
	return best, 1 - left/all
}

// Worst returns the largest relative error of a measurement by these figures.
func (f *Regression) Worst(x []float64) float64 {
	worst := 0.0
	for _, row := range f.rows {
		d := 1.0
		for k := range row {
			d -= row[k] * x[k]
		}
		worst = max(worst, math.Abs(d))
	}
	return worst
}

func (f *Regression) errors(x []float64) float64 {
	sum := 0.0
	for _, row := range f.rows {
		d := 1.0
		for k := range row {
			d -= row[k] * x[k]
		}
		sum += d * d
	}
	return sum
}

// least solves the normal equations of the figures that are in a set; not ok where they
// have no solution or one that is below 0.
func (f *Regression) least(set int) (x []float64, ok bool) {
	var at []int
	for k := range f.rows[0] {
		if set&(1<<k) != 0 {
			at = append(at, k)
		}
	}
	n := len(at)
	a := make([][]float64, n)
	for i := range a {
		a[i] = make([]float64, n+1)
		for _, row := range f.rows {
			for j := range n {
				a[i][j] += row[at[i]] * row[at[j]]
			}
			a[i][n] += row[at[i]]
		}
	}
	// Each figure by its own size, so that the pivots can be compared.
	size := make([]float64, n)
	for i := range a {
		if size[i] = math.Sqrt(a[i][i]); size[i] == 0 {
			return nil, false
		}
	}
	for i := range a {
		for j := range n {
			a[i][j] /= size[i] * size[j]
		}
		a[i][n] /= size[i]
	}
	for c := range n {
		p := c
		for i := c + 1; i < n; i++ {
			if math.Abs(a[i][c]) > math.Abs(a[p][c]) {
				p = i
			}
		}
		if math.Abs(a[p][c]) < 1e-9 {
			return nil, false
		}
		a[c], a[p] = a[p], a[c]
		for i := range a {
			if i != c {
				by := a[i][c] / a[c][c]
				for j := c; j <= n; j++ {
					a[i][j] -= by * a[c][j]
				}
			}
		}
	}
	x = make([]float64, len(f.rows[0]))
	for i, k := range at {
		if x[k] = a[i][n] / a[i][i] / size[i]; x[k] < 0 {
			return nil, false
		}
	}
	return x, true
}
