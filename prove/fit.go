package prove

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"headgate/simengine"
)

// Fit is how well step times follow from the journal.
type Fit struct {
	Model simengine.Model `json:"model"`
	// Firsts are the requests whose first token was used, Decodes those whose further
	// ones were. R2 is the share of the relative spread that the regression explains.
	Firsts   int     `json:"first_tokens"`
	FirstsR2 float64 `json:"first_tokens_r2"`
	Decodes  int     `json:"decodes"`
	DecodeR2 float64 `json:"decodes_r2"`
	// Spread is the 90th percentile of the prompts used over the 10th.
	Spread float64 `json:"prompt_spread"`
	// Scale is the factor on all step times with which the replayed half takes as long
	// as the recorded one.
	Scale float64 `json:"scale"`
}

// minFit is how many requests each of the two regressions needs.
const minFit = 30

// fold is which half of the recording a time is in. Halves are twenty turns each, so
// that both have the day's quiet and its busy hours.
func (r *Recording) fold(at time.Duration) int {
	return int(40*at/max(r.Length, 1)) % 2
}

// FitModel fits an engine's step times to the first half of a recording. A decode step
// takes so much, more for each further sequence and each token of context, and is held up
// by the prompts that are computed meanwhile; a first token takes the prompt's own
// tokens, those computed beside it and a constant. Both are linear regressions of
// relative errors with no figure below 0. Requests that found every slot taken waited in
// the engine, and are left out.
//
// Alternatives: a search for the figures whose replay comes nearest is what these
// regressions avoid: it takes hundreds of replays of a day, and hides in its best fit
// what it can't explain.
func FitModel(r *Recording, slots int) (*Fit, error) {
	flow := newFlow(r)
	var firsts, decodes fitting
	var prompts []int
	for i := range r.Requests {
		q := &r.Requests[i]
		if r.fold(q.Arrival) != 0 || q.First < 0 || q.Attempts != 1 || q.Left || q.Failed || q.First <= q.Dispatched {
			continue
		}
		if flow.inFlight.at(q.Dispatched) > float64(slots) {
			continue
		}
		first, prompt := (q.First - q.Dispatched).Seconds(), q.computed()
		beside := max(flow.prefill.between(q.Dispatched, q.First)-prompt, 0)
		firsts.add(first, 1, prompt, beside, flow.decoding.mean(q.Dispatched, q.First))
		prompts = append(prompts, q.PromptTokens)
		if n := float64(q.Output - 1); n >= 4 && q.Done > q.First {
			decodes.add((q.Done - q.First).Seconds(), n, n*max(flow.decoding.mean(q.First, q.Done)-1, 0), flow.prefill.between(q.First, q.Done), n*flow.context.mean(q.First, q.Done))
		}
	}
	if firsts.len() < minFit || decodes.len() < minFit {
		return nil, fmt.Errorf("step times can't be fitted: of half of the journal's requests %d have a first token and found a free slot, and %d of them have 5 tokens or more: needed are %d of each; give --engine, or --slots as the engine has them", firsts.len(), decodes.len(), minFit)
	}
	f := &Fit{Firsts: firsts.len(), Decodes: decodes.len(), Scale: 1}
	slices.Sort(prompts)
	f.Spread = float64(prompts[len(prompts)*9/10]) / float64(max(prompts[len(prompts)/10], 1))
	var one, step []float64
	one, f.FirstsR2 = firsts.solve()
	step, f.DecodeR2 = decodes.solve()
	m := &f.Model
	m.Name, m.Source = "journal", "fitted to the journal's own first tokens and durations"
	// The constant of a first token has a step's own cost and, on engines that learn a
	// step's tokens while the next one runs, a decode step's. How it is divided can't
	// be seen from outside; only steps without any decode would show it.
	const least = 1e-4
	decode := max(step[0], least)
	base := min(max(one[0]-decode, least), decode)
	ms := func(seconds float64) float64 { return seconds * 1e3 }
	m.Step.Base, m.Step.FirstDecode = ms(base), ms(decode-base)
	m.Step.PrefillToken, m.Step.MoreDecode, m.Step.ContextToken = ms(one[1]), ms(step[1]), ms(step[3])
	m.Overhead = ms(max(one[0]-decode-base, 0))
	if one[1] == 0 {
		return nil, errors.New("step times can't be fitted: first tokens do not depend on the prompts' length, so that the price of a prompt is not known: give --engine")
	}
	return f, nil
}

// flow is how much was going on over time.
type flow struct {
	inFlight, decoding, context, prefill *steps
}

func newFlow(r *Recording) *flow {
	f := &flow{&steps{}, &steps{}, &steps{}, &steps{}}
	for i := range r.Requests {
		q := &r.Requests[i]
		first := q.First
		if first < 0 {
			first = q.Done
		}
		f.inFlight.add(q.Dispatched, q.Done, 1)
		f.decoding.add(first, q.Done, 1)
		f.context.add(first, q.Done, float64(q.PromptTokens)+float64(q.Output)/2)
		if first > q.Dispatched {
			f.prefill.add(q.Dispatched, first, q.computed()/(first-q.Dispatched).Seconds())
		}
	}
	for _, s := range []*steps{f.inFlight, f.decoding, f.context, f.prefill} {
		s.sum()
	}
	return f
}

// steps is a function of time that is constant between its edges, and its integral.
type steps struct {
	edges    []stepEdge
	integral []float64 // up to each edge, in units times seconds
	value    []float64 // from each edge on
}

type stepEdge struct {
	at time.Duration
	by float64
}

func (s *steps) add(from, to time.Duration, value float64) {
	if to > from {
		s.edges = append(s.edges, stepEdge{from, value}, stepEdge{to, -value})
	}
}

func (s *steps) sum() {
	slices.SortStableFunc(s.edges, func(a, b stepEdge) int { return int(max(min(a.at-b.at, 1), -1)) })
	s.integral, s.value = make([]float64, len(s.edges)), make([]float64, len(s.edges))
	v, total := 0.0, 0.0
	for i, e := range s.edges {
		if i > 0 {
			total += v * (e.at - s.edges[i-1].at).Seconds()
		}
		v += e.by
		s.integral[i], s.value[i] = total, v
	}
}

// last is the index of the last edge at or before a time, -1 if there is none.
func (s *steps) last(at time.Duration) int {
	return sort.Search(len(s.edges), func(i int) bool { return s.edges[i].at > at }) - 1
}

func (s *steps) at(t time.Duration) float64 {
	if i := s.last(t); i >= 0 {
		return s.value[i]
	}
	return 0
}

func (s *steps) upTo(t time.Duration) float64 {
	i := s.last(t)
	if i < 0 {
		return 0
	}
	return s.integral[i] + s.value[i]*(t-s.edges[i].at).Seconds()
}

func (s *steps) between(from, to time.Duration) float64 { return s.upTo(to) - s.upTo(from) }

func (s *steps) mean(from, to time.Duration) float64 {
	return s.between(from, to) / (to - from).Seconds()
}

// fitting is a regression of a few figures that are not below 0.
type fitting struct {
	rows [][]float64 // each divided by what was measured, which is then 1
	y    []float64   // what was measured
}

func (f *fitting) len() int { return len(f.rows) }

func (f *fitting) add(y float64, x ...float64) {
	row := make([]float64, len(x))
	for k := range x {
		row[k] = x[k] / y
	}
	f.rows, f.y = append(f.rows, row), append(f.y, y)
}

// solve returns the figures with the least sum of squared relative errors. With so few of
// them each set that is left out can be tried, which needs no iteration to end.
func (f *fitting) solve() (best []float64, r2 float64) {
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

func (f *fitting) errors(x []float64) float64 {
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
func (f *fitting) least(set int) (x []float64, ok bool) {
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
