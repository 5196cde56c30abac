package prove

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"headgate/simengine"
	"headgate/stats"
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
	var firsts, decodes stats.Regression
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
		firsts.Add(first, 1, prompt, beside, flow.decoding.mean(q.Dispatched, q.First))
		prompts = append(prompts, q.PromptTokens)
		if n := float64(q.Output - 1); n >= 4 && q.Done > q.First {
			decodes.Add((q.Done - q.First).Seconds(), n, n*max(flow.decoding.mean(q.First, q.Done)-1, 0), flow.prefill.between(q.First, q.Done), n*flow.context.mean(q.First, q.Done))
		}
	}
	if firsts.Len() < minFit || decodes.Len() < minFit {
		return nil, fmt.Errorf("step times can't be fitted: of half of the journal's requests %d have a first token and found a free slot, and %d of them have 5 tokens or more: needed are %d of each; give --engine, or --slots as the engine has them", firsts.Len(), decodes.Len(), minFit)
	}
	f := &Fit{Firsts: firsts.Len(), Decodes: decodes.Len(), Scale: 1}
	slices.Sort(prompts)
	f.Spread = float64(prompts[len(prompts)*9/10]) / float64(max(prompts[len(prompts)/10], 1))
	var one, step []float64
	one, f.FirstsR2 = firsts.Solve()
	step, f.DecodeR2 = decodes.Solve()
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
