package prove

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"headgate/simengine"
	"headgate/stats"
)

// Percent is a share in percent.
func Percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

// Points is a share as percentage points.
func Points(share float64) string { return fmt.Sprintf("%.2f", 100*share) }

// SignedPoints is a change of a share, with its sign.
func SignedPoints(share float64) string {
	if math.Abs(share) < 5e-5 {
		return "0.00"
	}
	return fmt.Sprintf("%+.2f", 100*share)
}

// Seconds is a time, which may never have come.
func Seconds(v *float64) string {
	switch {
	case v == nil:
		return "never"
	case *v < 1:
		return fmt.Sprintf("%.0f ms", 1e3**v)
	}
	return fmt.Sprintf("%.2f s", *v)
}

func gpuHours(h float64) string { return fmt.Sprintf("%.3g", h) }

// ClockTime is a time of day.
func ClockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Length is a duration without the units that are 0.
func Length(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Minute && d%time.Minute == 0 && d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return d.Round(time.Second).String()
}

// In is an interval in words.
func (i Interval) In(write func(float64) string) string {
	if i.Low == nil {
		return i.Why
	}
	return fmt.Sprintf("%.0f %% interval %s to %s", 100*Level, write(*i.Low), write(*i.High))
}

// words writes the page's sentences.
func (rep *Report) words(v *prover) {
	c, o := &rep.Capacity, &rep.OnTime
	if len(rep.Distrust) > 0 {
		rep.Answer = append(rep.Answer, "The numbers on this page are not to be trusted: "+strings.Join(rep.Distrust, "; ")+".")
	}
	rep.Answer = append(rep.Answer,
		fmt.Sprintf("%s GPU-hours of %s could be lent to batch (%s). The recorded requests themselves use %s.", gpuHours(c.LentHours), gpuHours(c.Hours), c.Interval.In(gpuHours), gpuHours(c.UsedHours)),
		fmt.Sprintf("%s of %d requests are on time with it, %s without: a change of %s points (%s).", Percent(o.Proposed), o.Offered, Percent(o.Present), SignedPoints(o.Change), o.Interval.In(SignedPoints)),
		rep.verdictWords(),
	)
	rep.Assumptions.Present, rep.Assumptions.Proposed = v.PresentWords, v.ProposedWords
	rep.assumed(v)
	rep.falsify(v)
}

func (rep *Report) verdictWords() string {
	margin := Points(rep.Margin) + " points"
	n := len(rep.Blocks)
	switch {
	case len(rep.Distrust) > 0:
		return "Whether it does harm could not be told."
	case rep.Verdict == stats.Fail:
		return "It does harm: more than the margin of " + margin + " are lost."
	case rep.Verdict == stats.Inconclusive:
		return "Whether it does harm beyond the margin of " + margin + " could not be told."
	case rep.OnTime.Differing == 0:
		// An interval of nothing but zeros says nothing; the rule of three does.
		return fmt.Sprintf("No harm: not one of %d blocks has fewer or more on time. That is also seen in one run of twenty if %s of such blocks differ.", n, Percent(3/float64(n)))
	}
	return "No harm beyond the margin of " + margin + "."
}

// assumed lists what was measured of the engine and what was not.
func (rep *Report) assumed(v *prover) {
	a, e := &rep.Assumptions, &v.Engine
	say := func(format string, args ...any) { a.Assumed = append(a.Assumed, fmt.Sprintf(format, args...)) }
	a.Probed = []string{"Nothing was probed: no request was sent to the engine."}
	if f := rep.Fit; f != nil {
		say("Step times are fitted to half of the journal, not measured: %.3g ms a token of a prompt and %.3g ms a step with one sequence, %.3g ms more for each further one and %.3g us for each token of context; R2 %.3f of %d first tokens and %.3f of %d answers; then all of them times %.3f, so that the median answer takes as long as it did.",
			f.Model.Step.PrefillToken, f.Model.Step.Base+f.Model.Step.FirstDecode, f.Model.Step.MoreDecode, 1e3*f.Model.Step.ContextToken, f.FirstsR2, f.Firsts, f.DecodeR2, f.Decodes, f.Scale)
		if f.Spread < 2 {
			say("The prompts are nearly all of one length (the 90th percentile is %.2f times the 10th), so the price of a prompt of another length, such as batch's, is a guess.", f.Spread)
		}
	} else {
		say("Step times are those of the model %s (%s), times %.3g. They were not measured on this engine by this program.", e.Model.Name, e.Model.Source, e.Speed)
	}
	kind := "vLLM's scheduler"
	if e.Scheduler == simengine.LlamaServer {
		kind = "llama-server's slots"
	}
	order := "in the order of arrival"
	if v.Priority {
		order = "by priority under the proposed policy"
	}
	say("The engine has %s, %d sequences at once, %d KV tokens shared by all of them, at most %d tokens a step, and runs what waits %s.", kind, e.MaxNumSeqs, (e.NumBlocks-1)*e.BlockSize, e.MaxBatchedTokens, order)
	if a.BatchFrom > 0 {
		say("Batch's requests have the sizes of the %d recorded ones of class %s, over and over; %d are under way at any moment.", a.BatchFrom, v.Batch.Class, v.Batch.Depth)
	} else {
		say("Batch's requests have %d tokens of prompt and %d of output, which nothing in the journal says; %d are under way at any moment.", v.Batch.Prompt, v.Batch.Output, v.Batch.Depth)
	}
	say("A GPU-hour lent is an hour of all the engine's slots: batch in one slot of %d for an hour is %.3g. What a slot yields depends on how many run, so see the tokens too.", e.MaxNumSeqs, v.GPUs/float64(e.MaxNumSeqs))
	for _, class := range slices.Sorted(maps.Keys(v.others)) {
		say("%d requests of class %s are judged by other limits than the proposed policy has for the class, and admission guards the policy's: set its objective to what is owed.", v.others[class], class)
	}
	say("A request that is ended and goes on later is computed again whole, and the engine confirms the end of a request at once.")
	say("The recorded requests come when they came, whatever happens to them: nobody leaves sooner, or asks again, because an answer was late.")
	s := &rep.Recording
	if s.Cached > 0 {
		say("Prompts are computed whole: the engine found %s of their tokens in its cache.", Percent(float64(s.Cached)/float64(max(s.Prompt, 1))))
	}
	if s.Left > 0 {
		say("%d requests whose clients left are load until then, and count neither as on time nor as late.", s.Left)
	}
	if s.Failed > 0 {
		say("%d answers failed; in the replay they don't, and in the journal they count as late.", s.Failed)
	}
	for _, cause := range slices.Sorted(maps.Keys(s.Refused)) {
		say("%d requests that were refused (%s) are left out, since how long their answers would have been is not known.", s.Refused[cause], cause)
	}
	if n := s.Before + s.Unfinished + s.Uncounted + s.TooLong; n > 0 {
		say("%d requests are left out: %d were under way when the journal begins and %d when it ends, %d have no tokens, %d are longer than the engine takes.", n, s.Before, s.Unfinished, s.Uncounted, s.TooLong)
	}
	if s.Restarts > 0 {
		say("The gateway was started again %d times and was away for %s, in which nothing came.", s.Restarts, Length(s.DownS))
	}
	if s.EngineOut > 0 {
		say("The engine was not ready %d times; in the replay it always is.", s.EngineOut)
	}
	if s.Switches > 0 {
		say("Operators used switches %d times, which the replay does not.", s.Switches)
	}
}

// falsify says what would show the page to be wrong.
func (rep *Report) falsify(v *prover) {
	say := func(format string, args ...any) { rep.Falsify = append(rep.Falsify, fmt.Sprintf(format, args...)) }
	if i := rep.Capacity.Interval; i.Low != nil {
		say("Another day's journal gives less than %s GPU-hours by the same command, or more than %s.", gpuHours(*i.Low), gpuHours(*i.High))
	}
	if i := rep.OnTime.Interval; i.Low != nil {
		say("With the policy in force and batch waiting, the share on time in headgate_objectives_total falls by more than %s points.", Points(math.Max(-*i.Low, 0)))
	} else {
		say("With the policy in force and batch waiting, the share on time in headgate_objectives_total falls at all.")
	}
	say("The engine divides its KV among its slots, or holds fewer than %d tokens.", (v.Engine.NumBlocks-1)*v.Engine.BlockSize)
	say("The engine goes on with what it was told to end: headgate_ghosts grows.")
	say("Batch's real prompts are longer than those above: a step with a long prompt holds up all others.")
}

// Section is a part of a page.
type Section struct {
	Title string
	Lead  string
	Head  []string // of the table, if there are rows
	Rows  [][]string
	List  []string

	figure string // SVG, of HTML only
}

func (rep *Report) sections() []Section {
	s := &rep.Recording
	mode := "enforced"
	if s.Observed {
		mode = "observed"
	}
	var classes []string
	for _, c := range slices.Sorted(maps.Keys(s.ByClass)) {
		classes = append(classes, fmt.Sprintf("%d %s", s.ByClass[c], c))
	}
	all := []Section{{
		Title: "What was replayed",
		Lead: fmt.Sprintf("Pool %s, engine %s, which %s: %d requests (%s) in %s from %s; %d tokens of prompts, %d of output.",
			s.Pool, s.Engine, mode, s.Requests, strings.Join(classes, ", "), Length(s.LengthS), ClockTime(s.Start), s.Prompt, s.Output),
		List: []string{"Present: " + rep.Assumptions.Present + ".", "Proposed: " + rep.Assumptions.Proposed + "."},
	}}
	replays := Section{
		Title: "The replays",
		Lead:  "The same requests, served in each way. Times are of the requests that have an objective; lent is what the batch client had, in GPU-hours.",
		Head:  []string{"replay", "on time", "first token p95", "answer p95", "refused", "lent", "of it loans", "batch done", "batch tokens, prompt + output", "computed again", "reclaims"},
	}
	for i := range rep.Replays {
		r := &rep.Replays[i]
		row := []string{r.Name, fmt.Sprintf("%d of %d", r.OnTime, r.Offered), Seconds(r.TTFTP95), Seconds(r.E2EP95), fmt.Sprint(r.Refused)}
		if strings.HasSuffix(r.Name, "batch") {
			row = append(row, gpuHours(r.LentHours), gpuHours(r.LoanHours), fmt.Sprint(r.BatchDone), fmt.Sprintf("%d + %d", r.BatchPrompt, r.BatchOutput), fmt.Sprint(r.Recomputed), fmt.Sprint(r.Reclaims))
		} else {
			row = append(row, "", "", "", "", "", "")
		}
		replays.Rows = append(replays.Rows, row)
		replays.List = append(replays.List, r.Name+": "+r.About+".")
	}
	c := &rep.Check
	half := ""
	if c.HeldOut {
		half = ", of the half that the step times were not fitted to"
	}
	check := Section{
		Title: "Is the replay like the day?",
		Lead: fmt.Sprintf("The replay of the present against the journal, request by request: %d with an objective%s. On time: %d in the journal, %d in the replay; for %d the two agree.",
			c.Scored, half, c.OnTimeRecorded, c.OnTimeReplayed, c.Agree),
		Head: []string{"", "error of one request, median", "p90", "p50, journal", "replay", "p95, journal", "replay"},
	}
	for _, t := range []struct {
		name string
		TimeError
	}{{"first token", c.TTFT}, {"whole answer", c.E2E}, {fmt.Sprintf("whole answer of the %d others", c.Others), c.OtherE2E}} {
		if t.P95RecordedS == 0 {
			continue // there are no such requests
		}
		p90 := "never"
		if t.P90Error != nil {
			p90 = Percent(*t.P90Error)
		}
		check.Rows = append(check.Rows, []string{t.name, Percent(t.MedianError), p90, Seconds(&t.P50RecordedS), Seconds(t.P50ReplayedS), Seconds(&t.P95RecordedS), Seconds(t.P95ReplayedS)})
	}
	check.List = rep.Distrust
	worst := Section{Title: "Where it is worst"}
	span := func(what string, s *Span) {
		worst.List = append(worst.List, fmt.Sprintf("%s: the %s from %s. On time %d of %d, at present %d; %s GPU-hours lent, %s used by the recorded requests.",
			what, Length(s.Seconds), ClockTime(s.Start), s.OnTimeProposed, s.Offered, s.OnTimePresent, gpuHours(s.LentHours), gpuHours(s.UsedHours)))
	}
	if rep.WorstSpan != nil {
		span("Most requests lost", rep.WorstSpan)
	} else {
		worst.List = append(worst.List, "In no hour are fewer requests on time than at present.")
	}
	if rep.LeastLent != nil {
		span("Least lent", rep.LeastLent)
	}
	day := Section{Title: "The day", Lead: "By block: what the recorded requests use at present, and what batch gets beside them. A mark is a block in which fewer requests are on time.", figure: rep.svg()}
	if len(rep.Blocks) > 1 {
		all = append(all, day)
	}
	return append(all, replays, check, worst,
		Section{Title: "What was probed", List: rep.Assumptions.Probed},
		Section{Title: "What was assumed", List: rep.Assumptions.Assumed},
		Section{Title: "What would show it to be wrong", List: rep.Falsify},
		Section{Title: "How sure it is", Lead: fmt.Sprintf("Intervals are of %d blocks of %s: how far other days of such blocks would be off (BCa bootstrap of the mean block). They do not hold the model's error, for which see the comparison with the journal, nor a day of another kind.", len(rep.Blocks), Length(rep.Blocks[0].Seconds))},
	)
}
