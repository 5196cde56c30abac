package advise

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/occupancy"
	"headgate/probe"
	"headgate/prove"
)

// Report is all that the page says, and more figures.
type Report struct {
	// Verdict is the page's first line.
	Verdict string `json:"verdict"`
	// Probed tells whether there is a profile of the engine; without, all is unproven.
	Probed bool `json:"probed"`
	// Distrust is why the replay is not to be believed; empty if it is.
	Distrust []string `json:"distrust"`

	Recording prove.Summary `json:"recording"`
	Occupancy *Occupancy    `json:"occupancy"`
	Regimes   []RegimeSpan  `json:"regimes"`
	Proposals []Advice      `json:"proposals"`
	Audit     []Finding     `json:"audit"`
	Check     prove.Check   `json:"check"`
	Fit       *prove.Fit    `json:"fit,omitempty"`
	Assumed   []string      `json:"assumed"`

	Margin      float64 `json:"margin"`       // share of requests on time
	BatchMargin float64 `json:"batch_margin"` // share of batch's tokens
	Level       float64 `json:"level"`
}

// Occupancy is how many were in flight.
type Occupancy struct {
	Levels      []occupancy.Level `json:"levels"`
	Utilisation float64           `json:"utilisation"`
	Peak        int               `json:"peak"`
}

// RegimeSpan is a part of the recording with one mix.
type RegimeSpan struct {
	Start    time.Time `json:"start"`
	Seconds  float64   `json:"seconds"`
	Requests int       `json:"requests"`
	Changed  string    `json:"changed,omitempty"` // what its beginning changed

	from, to time.Duration
}

// Status is what is advised of a proposal.
type Status string

const (
	Advised    Status = "advised"
	Unproven   Status = "unproven"    // the replay speaks for it, and its mechanism is not known
	NotAdvised Status = "not advised" // it is no better
	Undecided  Status = "can't tell"
	Withdrawn  Status = "withdrawn"  // its mechanism is not the engine's
	Impossible Status = "impossible" // the settings do not go together
)

// Verdict of a replay.
type Verdict string

const (
	Better   Verdict = "better"
	Same     Verdict = "no different"
	Worse    Verdict = "worse"
	CantTell Verdict = "can't tell"

	noWorse Verdict = "no worse" // of one figure: whether it is better can't be told
)

// Advice is what there is to say of one proposal.
type Advice struct {
	Proposal   string      `json:"proposal"`
	Why        string      `json:"why"` // it is looked at
	Status     Status      `json:"status"`
	Reason     string      `json:"reason"`
	Mechanisms []Mechanism `json:"mechanisms"`
	Results    []Result    `json:"results"` // one for each regime
	// Lost are recorded requests that are too long for the proposed engine.
	Lost            int      `json:"too_long"`
	LongestPresent  int      `json:"longest_present"` // tokens of one session
	LongestProposed int      `json:"longest_proposed"`
	Falsify         []string `json:"what_would_falsify_it"`

	room bool // it is for longer sessions
}

// Result is the replay of one regime under a proposal against the present.
type Result struct {
	Start   time.Time `json:"start"`
	Seconds float64   `json:"seconds"`
	Blocks  int       `json:"blocks"`
	Verdict Verdict   `json:"verdict"`
	OnTime  OnTime    `json:"on_time"`
	Batch   *Batch    `json:"batch,omitempty"` // where there is any
}

// OnTime counts requests, and their change in shares.
type OnTime struct {
	Offered  int            `json:"offered"`
	Present  int            `json:"present"`
	Proposed int            `json:"proposed"`
	Change   float64        `json:"change"`
	Interval prove.Interval `json:"change_interval"`
}

// Batch counts requests that were done, and their tokens, prompt and output; the change is a share of
// the present tokens.
type Batch struct {
	Offered        int            `json:"offered"`
	DonePresent    int            `json:"done_present"`
	DoneProposed   int            `json:"done_proposed"`
	TokensPresent  float64        `json:"tokens_present"`
	TokensProposed float64        `json:"tokens_proposed"`
	Change         float64        `json:"change"`
	Interval       prove.Interval `json:"change_interval"`
}

// settle decides a proposal's status.
func (a *adviser) settle(one *Advice) {
	last := &one.Results[len(one.Results)-1]
	unknown := ""
	for _, m := range one.Mechanisms {
		switch m.State {
		case Contradicted:
			one.Status = Withdrawn
			one.Reason = fmt.Sprintf("it needs that %s, and %s is %s", m.Needs, m.Subject, m.Found)
			if last.Verdict == Better {
				one.Reason += "; that the replay is better comes from fewer requests beside each other, for which a class's ceiling is enough"
			}
			return
		case Unknown:
			unknown = fmt.Sprintf("it is not known whether %s", m.Needs)
		}
	}
	gain := last.Verdict == Better
	one.Reason = map[Verdict]string{Better: "the replay is better", Same: "the replay is no different", Worse: "the replay is worse", CantTell: "whether the replay is better can't be told"}[last.Verdict]
	if one.room && last.Verdict == Same && a.long > 0 {
		gain = true
		one.Reason = fmt.Sprintf("a session may have %d tokens in the place of %d, which %d requests were near to or refused for, and all else is no different", one.LongestProposed, one.LongestPresent, a.long)
		if a.Present.MaxContext == 0 {
			one.Reason += "; what the model takes at most is not known"
		}
	}
	if len(one.Results) > 1 {
		one.Reason += ", in the traffic since the last change"
	}
	switch {
	case last.Verdict == CantTell:
		one.Status = Undecided
	case !gain:
		one.Status = NotAdvised
	case unknown != "":
		one.Status = Unproven
		one.Reason += "; " + unknown
	default:
		one.Status = Advised
	}
}

// order in which statuses are told: what has to be taken back comes first.
var order = []Status{Withdrawn, Advised, Unproven, Undecided, NotAdvised, Impossible}

// words writes the first line, and puts the proposals in order.
func (a *adviser) words() {
	rep := a.rep
	slices.SortStableFunc(rep.Proposals, func(x, y Advice) int {
		return slices.Index(order, x.Status) - slices.Index(order, y.Status)
	})
	var first []string
	say := func(format string, args ...any) { first = append(first, fmt.Sprintf(format, args...)) }
	switch known, unknown := rep.relied(); {
	case a.Foreign != "":
		say("Unproven: %s, so that no mechanism is known.", a.Foreign)
	case !rep.Probed:
		say("Unproven: the engine was not probed, so that no mechanism is known.")
	case unknown > 0 && known == 0:
		say("Unproven: the probe could tell nothing that is relied on.")
	case unknown > 0:
		say("Unproven, in part: the probe could not tell all that is relied on.")
	}
	if len(rep.Distrust) > 0 {
		say("The replay is not to be trusted, and nothing is advised.")
	}
	if n := len(rep.Regimes); n > 1 {
		times := "once,"
		if n > 2 {
			times = fmt.Sprintf("%d times, last", n-1)
		}
		say("The traffic is not one: it changed %s at %s, in its %s; advice is for what came since.", times, prove.ClockTime(rep.Regimes[n-1].Start), rep.Regimes[n-1].Changed)
	}
	named := func(s Status) string {
		var all []string
		for i := range rep.Proposals {
			if rep.Proposals[i].Status == s {
				all = append(all, rep.Proposals[i].Proposal)
			}
		}
		return strings.Join(all, "; ")
	}
	for _, o := range rep.Proposals {
		switch o.Status {
		case Withdrawn:
			say("Withdrawn: %s: %s.", o.Proposal, o.Reason)
		case Advised:
			say("Advised: %s: %s.", o.Proposal, o.Reason)
		}
	}
	if s := named(Unproven); s != "" {
		say("Better in the replay, of unproven mechanism: %s.", s)
	}
	if s := named(Undecided); s != "" && len(rep.Distrust) == 0 {
		say("Could not be told: %s.", s)
	}
	if named(Advised)+named(Unproven) == "" {
		say("Keep the present settings.")
	}
	if n := countErrors(rep.Audit); n > 0 {
		say("%s.", upper(contradictionsFound(n)))
	}
	rep.Verdict = strings.Join(first, " ")
	a.assumed()
}

// relied counts the mechanisms that are known and those that are not, of all proposals that
// go together: that the present is to be kept rests on them as well.
func (rep *Report) relied() (known, unknown int) {
	for i := range rep.Proposals {
		for _, m := range rep.Proposals[i].Mechanisms {
			switch {
			case m.State != Unknown:
				known++
			case rep.Proposals[i].Status != Withdrawn:
				unknown++
			}
		}
	}
	return known, unknown
}

// assumed lists what the replay takes for granted.
func (a *adviser) assumed() {
	rep, s := a.rep, &a.Present
	say := func(format string, args ...any) { rep.Assumed = append(rep.Assumed, fmt.Sprintf(format, args...)) }
	e := s.Engine
	if f := rep.Fit; f != nil {
		say("Step times are fitted to half of the journal (R2 %.2f of %d first tokens, %.2f of %d answers) and are the same under every proposal.", f.FirstsR2, f.Firsts, f.DecodeR2, f.Decodes)
	} else {
		say("Step times are those of %s (%s), times %.3g, under every proposal.", e.Model.Name, e.Model.Source, e.Speed)
	}
	if p := a.Profile; p != nil {
		say("The engine is as it was when it was probed, %s: %s %s, model %s. What was changed since, nobody has looked at.", prove.ClockTime(p.At), p.Kind, p.Version, p.Model)
	}
	way := "as they come"
	if s.Enforced {
		way = "by the policy"
	}
	layout := s.Layout
	if a.Profile.Word(probe.KVLayout) == "" {
		layout = "taken to be " + layout + ", which nothing shows"
	}
	say("Present: %s, %d slots, %d KV tokens (%s), sessions of up to %d tokens; requests go to it %s.", e.Scheduler, s.Slots, s.KVTokens, layout, s.longest(), way)
	say("Requests come when they came and are as long as they were; nobody leaves sooner, asks again or writes longer prompts because of a setting. Caches are not replayed.")
	say("Batch that is not in the journal is not looked at: `headgate prove` tells what more of it could have.")
	if n := rep.Recording.Before + rep.Recording.Unfinished + rep.Recording.Uncounted + rep.Recording.TooLong + a.Recording.RefusedAll(); n > 0 {
		say("%d requests are left out: refused, under way at an end of the journal, without tokens, or longer than the engine takes.", n)
	}
}

// falsify says what would show a proposal to be wrong, beside another word on its mechanisms.
func (a *adviser) falsify(one *Advice, p *Proposal, next Settings) {
	say := func(format string, args ...any) { one.Falsify = append(one.Falsify, fmt.Sprintf(format, args...)) }
	if one.Status == Withdrawn {
		return // what would bring it back is with its mechanism
	}
	last := &one.Results[len(one.Results)-1]
	if o := &last.OnTime; o.Interval.Low != nil && o.Offered > 0 {
		at := float64(o.Present) / float64(o.Offered)
		most := ""
		if high := at + *o.Interval.High + a.Margin; high < 1 {
			most = ", or more than " + prove.Percent(high)
		}
		say("Served with %s, a day like this has less than %s of its requests on time%s: `%s` on its journal tells what was recorded.", one.Proposal, prove.Percent(max(at+*o.Interval.Low-a.Margin, 0)), most, a.Command)
	}
	if b := last.Batch; b != nil {
		say("Fewer than %d of %d batch requests are done within it.", b.DoneProposed, b.Offered)
	}
	if c := p.find("kv_dtype"); c != nil {
		say("Started with %s, `%s --only %s` finds less than %d tokens; or its answers are worse, which nothing here looks at.", c.Text, a.Probe, probe.KVTokens, int(near*float64(next.KVTokens)))
	}
}

// sections of the page.
func (rep *Report) sections() []prove.Section {
	contradictions := prove.Section{Title: "Contradictions", Lead: auditLead(rep.Audit), List: auditLines(rep.Audit)}
	if rep.Occupancy == nil {
		return []prove.Section{contradictions} // of an audit alone
	}
	var all []prove.Section
	proposals := prove.Section{Title: "Proposals", Head: []string{"proposal", "status", "replayed", "on time, present and proposed", "change in points", "batch done", "change of its tokens", "longest session"}}
	for i := range rep.Proposals {
		o := &rep.Proposals[i]
		if len(o.Results) == 0 {
			proposals.Rows = append(proposals.Rows, []string{o.Proposal, string(o.Status), "", "", "", "", "", ""})
		}
		for k := range o.Results {
			r := &o.Results[k]
			name := o.Proposal
			if len(o.Results) > 1 {
				name += ", from " + prove.ClockTime(r.Start)
			}
			row := []string{name, string(o.Status), string(r.Verdict),
				fmt.Sprintf("%d and %d of %d", r.OnTime.Present, r.OnTime.Proposed, r.OnTime.Offered),
				prove.SignedPoints(r.OnTime.Change) + " (" + brief(r.OnTime.Interval, prove.SignedPoints) + ")", "", ""}
			if b := r.Batch; b != nil {
				row[5] = fmt.Sprintf("%d and %d of %d", b.DonePresent, b.DoneProposed, b.Offered)
				row[6] = signedPercent(b.Change) + " (" + brief(b.Interval, signedPercent) + ")"
			}
			proposals.Rows = append(proposals.Rows, append(row, fmt.Sprintf("%d and %d", o.LongestPresent, o.LongestProposed)))
		}
	}
	if len(rep.Proposals) == 0 {
		proposals.Lead = "No rule makes one of this traffic and these settings; --propose names one."
	} else if o := rep.Proposals[0]; len(o.Results) > 0 {
		proposals.Lead = fmt.Sprintf("The recorded requests under both settings, paired by %d blocks; intervals at %.0f %%. Within %s points on time and %s of batch's tokens is no difference. An interval of nothing but zeros is also seen in one run of twenty if %s of such blocks differ.", blocksOf(o.Results), 100*rep.Level, prove.Points(rep.Margin), prove.Percent(rep.BatchMargin), prove.Percent(3/float64(blocksOf(o.Results))))
	}
	all = append(all, proposals)
	for i := range rep.Proposals {
		o := &rep.Proposals[i]
		s := prove.Section{Title: o.Proposal + ": " + string(o.Status), Lead: fmt.Sprintf("Looked at since %s. %s.", o.Why, upper(o.Reason))}
		for _, m := range o.Mechanisms {
			s.List = append(s.List, fmt.Sprintf("Relies on: %s. %s. Wrong if `%s` finds otherwise.", m.Needs, m.words(), m.Ask))
		}
		if o.Lost > 0 {
			s.List = append(s.List, fmt.Sprintf("%d recorded requests are too long for it, and count as late.", o.Lost))
		}
		for _, f := range o.Falsify {
			s.List = append(s.List, "Wrong if: "+f)
		}
		all = append(all, s)
	}
	all = append(all, contradictions)
	r := &rep.Recording
	traffic := prove.Section{Title: "Traffic", Lead: fmt.Sprintf("Pool %s, engine %s: %d requests in %s from %s. %s busy; of that, %s.", r.Pool, r.Engine, r.Requests, prove.Length(r.LengthS), prove.ClockTime(r.Start), prove.Percent(rep.Occupancy.Utilisation), rep.Occupancy.words())}
	if len(rep.Regimes) == 1 {
		traffic.List = append(traffic.List, "No change of models, classes, principals or sizes was found in it.")
	}
	for i, g := range rep.Regimes {
		if i > 0 {
			traffic.List = append(traffic.List, fmt.Sprintf("At %s it changed: %s. %d requests since.", prove.ClockTime(g.Start), g.Changed, g.Requests))
		}
	}
	c := &rep.Check
	check := prove.Section{Title: "Is the replay like the day?", List: rep.Distrust, Lead: fmt.Sprintf("On time %d of %d in the journal, %d in the replay of the present; a first token is off by %s and an answer by %s in the middle.",
		c.OnTimeRecorded, c.Scored, c.OnTimeReplayed, prove.Percent(c.TTFT.MedianError), prove.Percent(c.E2E.MedianError))}
	return append(all, traffic, check, prove.Section{Title: "Assumed", List: rep.Assumed})
}

// Markdown is the page. Its first line is the verdict.
func (rep *Report) Markdown() []byte { return prove.Markdown(rep.Verdict, nil, rep.sections()) }

func (o *Occupancy) words() string {
	var all []string
	for i, l := range o.Levels {
		if i == 6 {
			all = append(all, fmt.Sprintf("more up to %d", o.Peak))
			break
		}
		all = append(all, fmt.Sprintf("%s at %d in flight", prove.Percent(l.BusyShare), l.InFlight))
	}
	return strings.Join(all, ", ")
}

func (m *Mechanism) words() string {
	if m.State == Unknown {
		return fmt.Sprintf("Not known of %s: %s", m.Subject, strings.Join(m.Evidence, "; "))
	}
	return fmt.Sprintf("It %s: %s is %s: %s", map[State]string{Holds: "holds", Contradicted: "does not hold"}[m.State], m.Subject, m.Found, strings.Join(m.Evidence, "; "))
}

func blocksOf(all []Result) (n int) {
	for _, r := range all {
		n += r.Blocks
	}
	return n
}

func brief(i prove.Interval, write func(float64) string) string {
	if i.Low == nil {
		return i.Why
	}
	return write(*i.Low) + " to " + write(*i.High)
}

func signedPercent(share float64) string { return fmt.Sprintf("%+.1f %%", 100*share) }

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
