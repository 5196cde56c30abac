package prove

import (
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/admission"
	"headgate/sim"
	"headgate/simengine"
	"headgate/stats"
	"headgate/trace"
)

// Traffic is a recording as it is replayed: what all replays of it share.
type Traffic struct {
	Trace    *trace.Trace
	Requests []*Request            // of the recording, as in the trace
	Limits   []admission.Objective // what "on time" is, by request
	// Scored are those of which it is asked: they have limits, are not of the batch class,
	// and their clients stayed.
	Scored  []bool
	Skipped int // were longer than the engine takes

	recording *Recording
	others    map[string]int // scored ones with other limits than their class's
}

// NewTraffic makes it, of requests that an engine takes whose longest sequence has so
// many tokens. A request without limits of its own has its class's, where the classes are
// given; onTime, if it has any, takes the place of all.
func NewTraffic(r *Recording, classes []admission.ClassSpec, batch string, onTime admission.Objective, longest int) (*Traffic, error) {
	t := &Traffic{
		Trace:     &trace.Trace{Profile: "journal", Protocol: trace.Imported, Workload: trace.Workload{DurationMs: int(r.Length/time.Millisecond) + 1, MaxAttempts: 1}},
		recording: r, others: map[string]int{},
	}
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.PromptTokens >= longest || q.Arrival >= r.Length {
			t.Skipped++
			continue
		}
		var of admission.Objective
		if classes != nil {
			k := slices.IndexFunc(classes, func(c admission.ClassSpec) bool { return c.Name == q.Class })
			if k < 0 {
				return nil, fmt.Errorf("request %s is of class %q, which the proposed policy does not have", q.ID, q.Class)
			}
			of = classes[k].Objective
		}
		limits := q.Limits
		if limits == (admission.Objective{}) {
			limits = of
		}
		if onTime != (admission.Objective{}) {
			limits = onTime
		}
		t.Trace.Entries, t.Requests = append(t.Trace.Entries, q.Entry), append(t.Requests, q)
		t.Limits = append(t.Limits, limits)
		scored := q.Class != batch && !q.Left && limits != (admission.Objective{})
		if t.Scored = append(t.Scored, scored); scored && limits != of {
			t.others[q.Class]++
		}
	}
	if n := len(t.Requests); n < MinRequests {
		return nil, fmt.Errorf("the journal has %d requests of pool %s that ended and that the engine takes: needed are at least %d, better a whole day", n, r.Pool, MinRequests)
	}
	if n := count(t.Scored); n < MinRequests {
		return nil, fmt.Errorf("the journal has %d requests of which it is known what on time is, and which are not of class %s: needed are at least %d; give --ttft or --e2e, or an objective in the policy, or a longer journal", n, batch, MinRequests)
	}
	return t, nil
}

// Only is the part of the traffic that is kept, and where each of its requests is in the
// whole.
func (t *Traffic) Only(keep func(q *Request) bool) (*Traffic, []int) {
	part, of := *t, *t.Trace
	part.Trace, of.Entries = &of, nil
	part.Requests, part.Limits, part.Scored = nil, nil, nil
	var at []int
	for i, q := range t.Requests {
		if keep(q) {
			of.Entries, at = append(of.Entries, q.Entry), append(at, i)
			part.Requests, part.Limits, part.Scored = append(part.Requests, q), append(part.Limits, t.Limits[i]), append(part.Scored, t.Scored[i])
		}
	}
	return &part, at
}

func count(of []bool) (n int) {
	for _, is := range of {
		n += one(is)
	}
	return n
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Side is one replay.
type Side struct {
	Run     *sim.Run
	OnTime  []bool // by request
	Refused int

	name, about string
	until       time.Duration
	lent        []span // the batch client's
	own         []span // the recorded requests'
}

type span struct {
	from, to time.Duration
	loan     bool
}

// Replay runs the traffic through an arm, with a backlog beside it or nil.
func (t *Traffic) Replay(arm *sim.Arm, b *sim.Backlog) (*Side, error) {
	run, err := sim.SimulateWith(t.Trace, arm, b)
	if err != nil {
		return nil, fmt.Errorf("replay of the journal: %w", err)
	}
	s := &Side{name: arm.Name, Run: run, until: t.recording.Length, OnTime: make([]bool, len(t.Requests))}
	for i := range t.Requests {
		r := &run.Records[i]
		s.OnTime[i] = r.Outcome == sim.Completed && within(t.Limits[i], r.First-r.Arrival, r.Done-r.Arrival, r.Tokens)
		s.Refused += one(r.Outcome == sim.Rejected)
	}
	add := func(i int, sp span) {
		if sp.to = min(sp.to, s.until); sp.to <= sp.from || sp.from < 0 {
			return
		}
		if i >= len(t.Requests) {
			s.lent = append(s.lent, sp)
		} else {
			s.own = append(s.own, sp)
		}
	}
	if arm.Table != nil {
		for _, h := range run.Holds {
			add(h.Request, span{h.From, h.To, h.Loan})
		}
		return s, nil
	}
	for i := range run.Records {
		r := &run.Records[i]
		add(i, span{r.Scheduled, r.Done, false})
	}
	return s, nil
}

// within tells whether times meet an objective, as the gateway judges it.
func within(o admission.Objective, first, whole time.Duration, tokens int) bool {
	if o.First > 0 && first > o.First || o.Whole > 0 && whole > o.Whole {
		return false
	}
	return o.Token == 0 || tokens < 2 || (whole-first)/time.Duration(tokens-1) <= o.Token
}

// RecordedOnTime tells whether the journal saw a request on time.
func (t *Traffic) RecordedOnTime(i int) bool {
	q := t.Requests[i]
	first := q.First
	if first < 0 {
		first = q.Done // it came as a whole
	}
	tokens := q.Output
	if q.First < 0 {
		tokens = 1
	}
	return !q.Failed && within(t.Limits[i], first-q.Arrival, q.Done-q.Arrival, tokens)
}

// Bounds of the factor on fitted step times, and how finely it is looked for. What needs
// more is no bias of the regressions, and where the engine was overrun a small change of
// speed is a large one of every wait.
const (
	mostScale  = 1.25
	scaleSteps = 6
	scaledTo   = 0.01 // off in the middle, that is good enough
)

// Calibrate replays the present with step times that are fitted to one half of the
// recording, and leaves them in the engine.
func (t *Traffic) Calibrate(e *simengine.Config, present func() (*Side, error)) (*Side, *Fit, error) {
	f, err := FitModel(t.recording, e.MaxNumSeqs)
	if err != nil {
		return nil, nil, err
	}
	e.Model = f.Model
	at := func(speed float64) (*Side, float64, error) {
		e.Speed = speed
		s, err := present()
		if err != nil {
			return nil, 0, err
		}
		return s, math.Log(t.ratio(s, 0)), nil
	}
	best, off, err := at(1)
	if err != nil {
		return nil, nil, err
	}
	// Regressions of single requests leave a bias that their sum has not: steps are
	// shared, and begin when others end. One factor takes it out.
	low, high := 1.0, mostScale
	if off < 0 {
		low, high = 1/mostScale, 1
	}
	for n := 0; n < scaleSteps && math.Abs(off) > scaledTo; n++ {
		speed := math.Sqrt(low * high)
		s, left, err := at(speed)
		if err != nil {
			return nil, nil, err
		}
		if math.Abs(left) < math.Abs(off) {
			best, off, f.Scale = s, left, speed
		}
		if left > 0 { // still too fast
			low = speed
		} else {
			high = speed
		}
	}
	e.Speed = f.Scale
	return best, f, nil
}

// ratio is the median of recorded over replayed durations of one half.
func (t *Traffic) ratio(s *Side, fold int) float64 {
	var all []float64
	for i, q := range t.Requests {
		r := &s.Run.Records[i]
		if t.recording.fold(q.Arrival) == fold && !q.Left && !q.Failed && r.Done > r.Arrival {
			all = append(all, float64(q.Done-q.Arrival)/float64(r.Done-r.Arrival))
		}
	}
	return median(all)
}

func median(x []float64) float64 { return quantile(x, 0.5) }

// quantile returns the one that occurred, 0 of nothing. It sorts x.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[min(max(int(math.Ceil(q*float64(len(x))-1e-9)), 1), len(x))-1]
}

// Check compares the replayed present with what the journal saw, of the half alone that
// the step times were not fitted to where they were fitted.
func (t *Traffic) Check(s *Side, fitted bool) Check {
	c := Check{HeldOut: fitted}
	var first, whole, others timing
	for i, q := range t.Requests {
		if fitted && t.recording.fold(q.Arrival) != 1 || q.Left || q.Failed {
			continue
		}
		r := &s.Run.Records[i]
		if !t.Scored[i] {
			c.Others++
			others.add(q.Done-q.Arrival, r.Done-r.Arrival, r.Done >= 0)
			continue
		}
		c.Scored++
		if q.First >= 0 {
			first.add(q.First-q.Arrival, r.First-r.Arrival, r.First >= 0)
		}
		whole.add(q.Done-q.Arrival, r.Done-r.Arrival, r.Done >= 0)
		c.OnTimeRecorded += one(t.RecordedOnTime(i))
		c.OnTimeReplayed += one(s.OnTime[i])
		c.Agree += one(t.RecordedOnTime(i) == s.OnTime[i])
	}
	c.TTFT, c.E2E, c.OtherE2E = first.error(), whole.error(), others.error()
	return c
}

// timing is a pair of times of each request.
type timing struct{ recorded, replayed, off, offMS []float64 }

func (t *timing) add(recorded, replayed time.Duration, came bool) {
	a, b := recorded.Seconds(), replayed.Seconds()
	if !came {
		b = math.Inf(1)
	}
	t.recorded, t.replayed = append(t.recorded, a), append(t.replayed, b)
	t.off, t.offMS = append(t.off, math.Abs(b-a)/max(a, 1e-6)), append(t.offMS, 1e3*math.Abs(b-a))
}

func (t *timing) error() TimeError {
	return TimeError{
		MedianError: quantile(t.off, 0.5), MedianErrorMS: quantile(t.offMS, 0.5), P90Error: number(quantile(t.off, 0.9)),
		P50RecordedS: quantile(t.recorded, 0.5), P50ReplayedS: number(quantile(t.replayed, 0.5)),
		P95RecordedS: quantile(t.recorded, 0.95), P95ReplayedS: number(quantile(t.replayed, 0.95)),
	}
}

// number is a value as JSON has it: null for what never came.
func number(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// seconds of spans between two times, and of loans alone.
func overlap(spans []span, from, to time.Duration) (all, loans float64) {
	for _, s := range spans {
		if d := (min(s.to, to) - max(s.from, from)).Seconds(); d > 0 {
			all += d
			if s.loan {
				loans += d
			}
		}
	}
	return all, loans
}

// blocks adds up spans by blocks of equal length.
func blocks(spans []span, n int, length time.Duration) []float64 {
	sum := make([]float64, n)
	for _, s := range spans {
		for k := BlockOf(s.from, n, length); k < n; k++ {
			from, to := BlockEdge(k, n, length), BlockEdge(k+1, n, length)
			if from >= s.to {
				break
			}
			sum[k] += max(0, (min(s.to, to) - max(s.from, from)).Seconds())
		}
	}
	return sum
}

// BlockEdge is where block k of the n that a time is cut into begins.
func BlockEdge(k, n int, length time.Duration) time.Duration {
	return time.Duration(math.Round(float64(length) * float64(k) / float64(n)))
}

// BlockOf is the block of n that a time is in.
func BlockOf(at time.Duration, n int, length time.Duration) int {
	return min(int(float64(at)*float64(n)/float64(length)), n-1)
}

// Level is that of every interval, and samples what its bootstrap draws.
const (
	Level   = 0.95
	samples = 10_000
)

// SumInterval is that of a sum over blocks: of the mean block, times how many there are.
func SumInterval(values []float64, of string) Interval {
	n := len(values)
	if n < stats.BootstrapPairs {
		return Interval{Why: fmt.Sprintf("could not tell: %d blocks, needed are %d; give a longer journal or a shorter --block", n, stats.BootstrapPairs)}
	}
	pairs := make([]stats.Pair, n)
	for i, x := range values {
		pairs[i] = stats.Pair{Treatment: x}
	}
	e, err := stats.Differences(pairs)
	if err != nil {
		return Interval{Why: fmt.Sprintf("could not tell: %s: %v", of, err)}
	}
	i, err := stats.BCa(e, stats.Mean, stats.Resampling{Level: Level, Samples: samples, Seed: 1})
	if err != nil {
		return Interval{Why: fmt.Sprintf("could not tell: %s: %v", of, err)}
	}
	low, high := i.Low*float64(n), i.High*float64(n)
	return Interval{Low: &low, High: &high}
}
