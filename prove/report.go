package prove

import (
	"fmt"
	"math"
	"time"

	"headgate/stats"
)

// Report is what came of a plan: all that the page says, in numbers.
type Report struct {
	// Answer is the first lines: how much can be lent, what it costs, and whether to
	// believe it.
	Answer  []string      `json:"answer"`
	Verdict stats.Verdict `json:"verdict"`
	// Distrust is why the numbers are not to be trusted; empty if they are.
	Distrust []string `json:"distrust"`

	Recording   Summary     `json:"recording"`
	Capacity    Capacity    `json:"capacity"`
	OnTime      OnTime      `json:"on_time"`
	Margin      float64     `json:"margin"` // share
	Level       float64     `json:"level"`
	Replays     []Replay    `json:"replays"`
	Check       Check       `json:"check"`
	Fit         *Fit        `json:"fit,omitempty"`
	WorstSpan   *Span       `json:"worst_span,omitempty"`
	LeastLent   *Span       `json:"least_lent_span,omitempty"`
	Blocks      []Block     `json:"blocks"`
	Assumptions Assumptions `json:"assumptions"`
	Falsify     []string    `json:"what_would_falsify_it"`
}

// Summary is what was recorded.
type Summary struct {
	Pool       string         `json:"pool"`
	Engine     string         `json:"engine"`
	Start      time.Time      `json:"start"`
	LengthS    float64        `json:"length_s"`
	Observed   bool           `json:"observed"` // else the pool enforced
	Requests   int            `json:"requests"` // that were replayed
	ByClass    map[string]int `json:"by_class"`
	Prompt     int            `json:"prompt_tokens"`
	Cached     int            `json:"cached_tokens"`
	Output     int            `json:"output_tokens"`
	Left       int            `json:"client_left"`
	Failed     int            `json:"failed"`
	Refused    map[string]int `json:"refused,omitempty"`
	Before     int            `json:"began_before,omitempty"`
	Unfinished int            `json:"unfinished,omitempty"`
	Uncounted  int            `json:"without_tokens,omitempty"`
	TooLong    int            `json:"too_long,omitempty"`
	Restarts   int            `json:"restarts,omitempty"`
	DownS      float64        `json:"down_s,omitempty"`
	EngineOut  int            `json:"engine_not_ready,omitempty"`
	Switches   int            `json:"switches,omitempty"`
}

// Interval is a range at the report's level; both ends are null where there is none, and
// Why says why.
type Interval struct {
	Low  *float64 `json:"low"`
	High *float64 `json:"high"`
	Why  string   `json:"why,omitempty"`
}

// Capacity is what could be lent, in hours of the engine's GPUs: slot time that batch has,
// over the engine's slots.
type Capacity struct {
	Hours     float64  `json:"hours"`      // of the recorded time
	UsedHours float64  `json:"used_hours"` // by what was recorded, as served at present
	LentHours float64  `json:"lent_hours"`
	LoanHours float64  `json:"loan_hours"` // of these beyond batch's own floor
	Interval  Interval `json:"lent_interval"`
}

// OnTime is what lending costs, in shares of the requests that have an objective.
type OnTime struct {
	Offered  int      `json:"offered"`
	Recorded float64  `json:"recorded"`
	Present  float64  `json:"present"`
	Proposed float64  `json:"proposed"` // with batch
	Change   float64  `json:"change"`
	Interval Interval `json:"change_interval"`
	// Differing is in how many blocks the two had not as many on time.
	Differing int `json:"blocks_differing"`
}

// Replay is one way to serve the recorded requests. Times are in seconds, null for what
// never came.
type Replay struct {
	Name        string   `json:"name"`
	About       string   `json:"about"`
	Offered     int      `json:"offered"`
	OnTime      int      `json:"on_time"`
	Refused     int      `json:"refused"`
	TTFTP95     *float64 `json:"ttft_p95_s"`
	E2EP95      *float64 `json:"e2e_p95_s"`
	UsedHours   float64  `json:"used_hours"` // by the recorded requests
	LentHours   float64  `json:"lent_hours"` // to the batch client
	LoanHours   float64  `json:"loan_hours"`
	BatchDone   int      `json:"batch_completed"`
	BatchPrompt int      `json:"batch_prompt_tokens"` // of completed ones, as the rest
	BatchOutput int      `json:"batch_output_tokens"`
	Recomputed  int      `json:"batch_recomputed_tokens"`
	Reclaims    int      `json:"batch_reclaims"`
}

// Check is the replay of the present against what the journal saw.
type Check struct {
	HeldOut        bool      `json:"held_out"` // of the half that the model was not fitted to
	Scored         int       `json:"scored"`   // requests with an objective
	OnTimeRecorded int       `json:"on_time_recorded"`
	OnTimeReplayed int       `json:"on_time_replayed"`
	Agree          int       `json:"agree"` // on time in both, or in neither
	TTFT           TimeError `json:"ttft"`
	E2E            TimeError `json:"e2e"`
	// Others have none, such as batch. Theirs is shown and decides nothing: a client that
	// sends its next request when the last one has ended waits as long as it likes.
	Others   int       `json:"others"`
	OtherE2E TimeError `json:"other_e2e"`
}

// TimeError is how far replayed times are from recorded ones: errors of single requests,
// as shares of the recorded time, and quantiles of all.
type TimeError struct {
	MedianError   float64  `json:"median_error"`
	MedianErrorMS float64  `json:"median_error_ms"`
	P90Error      *float64 `json:"p90_error"`
	P50RecordedS  float64  `json:"p50_recorded_s"`
	P50ReplayedS  *float64 `json:"p50_replayed_s"`
	P95RecordedS  float64  `json:"p95_recorded_s"`
	P95ReplayedS  *float64 `json:"p95_replayed_s"`
}

// Span is a part of the recording.
type Span struct {
	Start          time.Time `json:"start"`
	Seconds        float64   `json:"seconds"`
	Offered        int       `json:"offered"`
	OnTimePresent  int       `json:"on_time_present"`
	OnTimeProposed int       `json:"on_time_proposed"`
	LentHours      float64   `json:"lent_hours"`
	UsedHours      float64   `json:"used_hours"`
}

// Block is one pair of the statistics.
type Block Span

// Assumptions is what the figures stand on.
type Assumptions struct {
	Present   string   `json:"present"`
	Proposed  string   `json:"proposed"`
	BatchFrom int      `json:"batch_from"` // recorded requests whose sizes batch has
	Probed    []string `json:"probed"`
	Assumed   []string `json:"assumed"`
}

// Summary sums the recording up.
func (t *Traffic) Summary() Summary {
	r, tooLong := t.recording, t.Skipped
	s := Summary{
		Pool: r.Pool, Start: r.Start, LengthS: r.Length.Seconds(), Observed: r.Observed, Requests: len(r.Requests) - tooLong, ByClass: map[string]int{},
		Refused: r.Refused, Before: r.Before, Unfinished: r.Unfinished, Uncounted: r.Uncounted, TooLong: tooLong,
		Restarts: r.Restarts, DownS: r.Down.Seconds(), EngineOut: r.EngineOut, Switches: r.Switches,
	}
	if len(r.Refused) == 0 {
		s.Refused = nil
	}
	for i := range r.Requests {
		q := &r.Requests[i]
		s.Engine = q.Engine
		s.ByClass[q.Class]++
		s.Prompt += q.PromptTokens
		s.Cached += q.Cached
		s.Output += q.Output
		s.Left += one(q.Left)
		s.Failed += one(q.Failed)
	}
	return s
}

func (rep *Report) find(name string) *Replay {
	for i := range rep.Replays {
		if rep.Replays[i].Name == name {
			return &rep.Replays[i]
		}
	}
	return nil
}

func (rep *Report) capacity(lent *Side, hours func(float64) float64, length time.Duration) {
	c := &rep.Capacity
	all, loans := overlap(lent.lent, 0, length)
	c.LentHours, c.LoanHours = hours(all), hours(loans)
	c.UsedHours = rep.find(Present).UsedHours
	values := make([]float64, len(rep.Blocks))
	for i := range rep.Blocks {
		values[i] = rep.Blocks[i].LentHours
	}
	c.Interval = SumInterval(values, "lent hours")
}

func (rep *Report) onTime(offered int) {
	share := func(name string) float64 { return float64(rep.find(name).OnTime) / float64(offered) }
	o := &rep.OnTime
	*o = OnTime{Offered: offered, Recorded: share("recorded"), Present: share(Present), Proposed: share(ProposedBatch)}
	o.Change = o.Proposed - o.Present
	values := make([]float64, len(rep.Blocks))
	for i := range rep.Blocks {
		b := &rep.Blocks[i]
		values[i] = float64(b.OnTimeProposed-b.OnTimePresent) / float64(offered)
		o.Differing += one(values[i] != 0)
	}
	o.Interval = SumInterval(values, "requests on time")
	rep.Verdict = stats.Inconclusive
	switch i := o.Interval; {
	case i.Low == nil || len(rep.Distrust) > 0:
	case *i.Low >= -rep.Margin:
		rep.Verdict = stats.Pass
	case *i.High < -rep.Margin:
		rep.Verdict = stats.Fail
	}
}

// hours finds the spans that stand out: hours of the clock, or blocks where the recording is
// too short for those.
func (rep *Report) hours(v *prover, present, lent *Side, hours func(float64) float64) {
	r := v.Recording
	width := time.Hour
	first := r.Start.Truncate(time.Hour).Sub(r.Start)
	if r.Length < 2*time.Hour {
		width, first = r.Length/time.Duration(len(rep.Blocks)), 0
	}
	n := int((r.Length - first + width - 1) / width)
	spans := make([]Span, n)
	for k := range spans {
		from := max(first+time.Duration(k)*width, 0)
		to := min(first+time.Duration(k+1)*width, r.Length)
		all, _ := overlap(lent.lent, from, to)
		own, _ := overlap(present.own, from, to)
		spans[k] = Span{Start: r.Start.Add(from), Seconds: (to - from).Seconds(), LentHours: hours(all), UsedHours: hours(own)}
	}
	for i, q := range v.Requests {
		if v.Scored[i] {
			s := &spans[min(int((q.Arrival-first)/width), n-1)]
			s.Offered++
			s.OnTimePresent += one(present.OnTime[i])
			s.OnTimeProposed += one(lent.OnTime[i])
		}
	}
	for k := range spans {
		s := &spans[k]
		if w := rep.WorstSpan; s.Offered > 0 && (w == nil || s.OnTimeProposed-s.OnTimePresent < w.OnTimeProposed-w.OnTimePresent) {
			rep.WorstSpan = s
		}
		// What is left of an hour at either end lends little because it is short.
		if w := rep.LeastLent; s.Seconds > width.Seconds()/2 && (w == nil || s.LentHours/s.Seconds < w.LentHours/w.Seconds) {
			rep.LeastLent = s
		}
	}
	if w := rep.WorstSpan; w != nil && w.OnTimeProposed >= w.OnTimePresent {
		rep.WorstSpan = nil
	}
}

// Limits of the check, beyond which the page says that it is not to be trusted.
const (
	mostOnTimeOff = 0.01 // share of requests
	mostMedianOff = 0.25 // of a single request's time, in the middle
	leastOffMS    = 50   // what is below is no reason, however short the times are
	mostTailOff   = 1.5  // factor between the 95th percentiles
	mostCached    = 0.2  // of the prompts' tokens
	mostMissing   = 0.02 // of the requests
)

// Distrust is why a replay is not to be believed, empty if it is.
func Distrust(c *Check, s *Summary) []string {
	all := []string{}
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if c.Scored > 0 {
		if off := math.Abs(float64(c.OnTimeReplayed-c.OnTimeRecorded)) / float64(c.Scored); off > mostOnTimeOff {
			say("the replay of the present has %s on time, the journal %s: allowed is a difference of %s points", Percent(float64(c.OnTimeReplayed)/float64(c.Scored)), Percent(float64(c.OnTimeRecorded)/float64(c.Scored)), Points(mostOnTimeOff))
		}
	}
	for _, t := range []struct {
		name string
		TimeError
	}{{"time to the first token", c.TTFT}, {"time to the whole answer", c.E2E}} {
		if t.MedianError > mostMedianOff && t.MedianErrorMS > leastOffMS {
			say("the replayed %s is off by %s in the middle: allowed is %s", t.name, Percent(t.MedianError), Percent(mostMedianOff))
		}
		if a := t.P95RecordedS; a > 0 && (t.P95ReplayedS == nil || math.Abs(*t.P95ReplayedS-a)*1e3 > leastOffMS && (*t.P95ReplayedS > a*mostTailOff || *t.P95ReplayedS < a/mostTailOff)) {
			say("the 95th percentile of the %s is %s in the journal and %s in the replay: allowed is a factor of %.1f", t.name, Seconds(&a), Seconds(t.P95ReplayedS), mostTailOff)
		}
	}
	if s.Prompt > 0 && float64(s.Cached)/float64(s.Prompt) > mostCached {
		say("%s of the prompts' tokens were found in the engine's cache, which the replay computes: allowed is %s", Percent(float64(s.Cached)/float64(s.Prompt)), Percent(mostCached))
	}
	missing := s.Before + s.Unfinished + s.Uncounted + s.TooLong
	for _, n := range s.Refused {
		missing += n
	}
	if all := s.Requests + missing; float64(missing)/float64(all) > mostMissing {
		say("%d of %d requests could not be replayed (refused, under way at an end of the journal, without tokens, or too long): allowed is %s", missing, all, Percent(mostMissing))
	}
	return all
}
