package advise

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"headgate/admission"
	"headgate/occupancy"
	"headgate/probe"
	"headgate/prove"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

// Plan is what is to be advised on.
type Plan struct {
	Recording *prove.Recording
	Present   Settings
	// ModelGiven: the engine has step times. Else they are fitted to the recording.
	ModelGiven bool
	// Policy of the pool, on the present engine; nil: there is none.
	Policy  *sim.Policy
	Profile *probe.Profile // nil: the engine was not probed
	Propose []Proposal     // named by the operator
	// Foreign is why a profile that was given is of another engine, and is not used; empty
	// where none was.
	Foreign string
	// BatchClass has no objective; what it gets done is counted. Empty: batch.
	BatchClass string
	OnTime     admission.Objective // takes the place of the recorded limits
	Block      time.Duration       // 0: a 48th of the recording
	Margin     float64             // share of requests on time
	Audit      []Finding
	// Command is the one that was given, and Probe the one that asks the engine, for what
	// would falsify the advice.
	Command, Probe string
}

// Margins and bounds.
const (
	// BatchMargin is the share of batch's tokens that is no difference.
	BatchMargin = 0.02
	// mostOf busy time is had by so few in flight that fewer slots are looked at.
	mostOf = 0.9
	// full is the share of busy time with every slot taken from which on more are looked
	// at.
	full = 0.01
	// tight is the share of the KV, and of a session's part, from which on there is need
	// for more.
	tight     = 0.9
	leastGood = 0.99 // share on time below which a floor is looked at

	blockCount = 48
	mostBlocks = 10_000
)

// adviser has what all proposals share.
type adviser struct {
	*Plan
	traffic *prove.Traffic
	rep     *Report
	present *outcome
	longest int // tokens of the longest recorded request
	long    int // requests that nearly needed all that a session may have, or were refused as too long
	peak    int // tokens of all requests in flight at one moment, at most
	blocks  int
	length  time.Duration
}

// outcome is what became of each request of the traffic.
type outcome struct {
	onTime []bool
	done   []time.Duration // by the recording's end, else -1
	lost   int             // were too long for the engine
	run    *sim.Run
}

// Run replays, and says what came of it.
func Run(p *Plan) (*Report, error) {
	a := &adviser{Plan: p, rep: &Report{Margin: p.Margin, BatchMargin: BatchMargin, Level: prove.Level, Probed: p.Profile != nil, Proposals: []Advice{}, Audit: p.Audit}, length: p.Recording.Length}
	if err := a.prepare(); err != nil {
		return nil, err
	}
	if err := a.now(); err != nil {
		return nil, err
	}
	a.rep.Regimes = a.regimes()
	if why := a.foreign(); why != "" {
		own := *p
		own.Foreign, own.Profile = why, nil
		a.Plan, a.rep.Probed = &own, false
	}
	for _, q := range append(slices.Clone(p.Propose), a.candidates()...) {
		if slices.ContainsFunc(a.rep.Proposals, func(o Advice) bool { return o.Proposal == q.String() }) {
			continue // the operator has named what a rule would
		}
		one, err := a.judge(&q)
		if err != nil {
			return nil, err
		}
		a.rep.Proposals = append(a.rep.Proposals, *one)
	}
	a.words()
	return a.rep, nil
}

func (a *adviser) prepare() error {
	r := a.Recording
	a.BatchClass = cmp.Or(a.BatchClass, trace.Batch)
	if a.Block == 0 {
		a.Block = r.Length / blockCount
	}
	if a.Block <= 0 || r.Length/a.Block > mostBlocks {
		return fmt.Errorf("--block is %v: allowed is a time above 0 of which the journal's %v are at most %d", a.Block, r.Length.Round(time.Second), mostBlocks)
	}
	a.blocks = max(int(r.Length/a.Block), 1)
	// A slot's part that was found to be the longest sequence is no limit of the model's.
	if part := a.Present.KVTokens / max(a.Present.Slots, 1); a.Present.Layout == probe.PerSlot && float64(a.Present.MaxContext)*near <= float64(part) && float64(a.Present.MaxContext) >= near*float64(part) {
		a.Present.MaxContext = 0
	}
	var classes []admission.ClassSpec
	if a.Policy != nil {
		classes = a.Policy.Table.Classes
	}
	var err error
	if a.traffic, err = prove.NewTraffic(r, classes, a.BatchClass, a.OnTime, a.Present.longest()); err != nil {
		return err
	}
	session := a.Present.longest()
	for i := range r.Requests {
		n := r.Requests[i].PromptTokens + r.Requests[i].Output
		a.longest = max(a.longest, n)
		if float64(n) >= tight*float64(session) {
			a.long++
		}
	}
	for _, cause := range []string{admission.CauseContext.String(), admission.CauseTooLarge.String()} {
		a.long += r.Refused[cause]
	}
	a.peak = peak(r.Requests)
	a.rep.Recording = a.traffic.Summary()
	a.rep.Occupancy, err = levels(r)
	return err
}

// now replays the present.
func (a *adviser) now() error {
	var fit *prove.Fit
	var side *prove.Side
	e := &a.Present.Engine
	once := func() (*prove.Side, error) {
		arm, err := a.arm("present", a.Present, a.Policy)
		if err != nil {
			return nil, err
		}
		return a.traffic.Replay(arm, nil)
	}
	var err error
	if a.ModelGiven {
		side, err = once()
	} else {
		// Calibrate counts what found a slot free, and leaves the step times in the engine.
		e.MaxNumSeqs = a.Present.Slots
		side, fit, err = a.traffic.Calibrate(e, once)
	}
	if err != nil {
		return err
	}
	a.rep.Fit = fit
	a.rep.Check = a.traffic.Check(side, fit != nil)
	a.rep.Distrust = prove.Distrust(&a.rep.Check, &a.rep.Recording)
	a.present = a.outcome(side, nil)
	return nil
}

// arm is one way to serve.
func (a *adviser) arm(name string, s Settings, policy *sim.Policy) (*sim.Arm, error) {
	e, err := s.engine()
	if err != nil {
		return nil, err
	}
	arm := &sim.Arm{Name: name, Engine: e}
	arm.Engine.Policy = simengine.FCFS
	if s.Enforced {
		p := fitted(policy, e)
		p.Table.Engines[0].Ordered = s.Priority
		if arm.Table = p.Table; s.Priority {
			arm.Engine.Policy, arm.Priority = simengine.Priority, p.Priority
		}
	}
	return arm, nil
}

// outcome of a side, of the requests at these places of the traffic, nil for all.
func (a *adviser) outcome(s *prove.Side, at []int) *outcome {
	n := len(a.traffic.Requests)
	o := &outcome{onTime: make([]bool, n), done: make([]time.Duration, n), lost: n, run: s.Run}
	for i := range o.done {
		o.done[i] = -1
	}
	for k := range s.OnTime {
		i := k
		if at != nil {
			i = at[k]
		}
		o.lost--
		o.onTime[i] = s.OnTime[k]
		if r := &s.Run.Records[k]; r.Outcome == sim.Completed && r.Done < a.length {
			o.done[i] = r.Done
		}
	}
	return o
}

// proposed replays the traffic under a proposal. What its engine does not take is lost.
func (a *adviser) proposed(p *Proposal, next Settings) (*outcome, *admission.Table, error) {
	arm, err := a.arm(p.String(), next, a.Policy)
	if err != nil {
		return nil, nil, err
	}
	if arm.Table != nil {
		if err := p.amend(&sim.Policy{Table: arm.Table}); err != nil {
			return nil, nil, err
		}
	}
	most := arm.Engine.MaxModelLen
	fits, at := a.traffic.Only(func(q *prove.Request) bool {
		// What is cut at the present length is so at a longer one too.
		return q.PromptTokens+q.Output <= most || q.PromptTokens < most && most >= a.Present.longest()
	})
	side, err := fits.Replay(arm, nil)
	if err != nil {
		return nil, nil, err
	}
	return a.outcome(side, at), arm.Table, nil
}

// candidates are those of the rules.
func (a *adviser) candidates() []Proposal {
	var all []Proposal
	add := func(why, text string) {
		if p, err := ParseProposal(text); err == nil {
			p.Why = why
			all = append(all, p)
		}
	}
	now := &a.Present
	levels := a.rep.Occupancy.Levels
	if i := slices.IndexFunc(levels, func(l occupancy.Level) bool { return l.Cumulative >= mostOf }); i >= 0 && 2*levels[i].InFlight <= now.Slots {
		add(fmt.Sprintf("%s of the busy time has %d or fewer in flight, of %d slots", prove.Percent(levels[i].Cumulative), levels[i].InFlight, now.Slots), fmt.Sprintf("slots=%d", levels[i].InFlight))
	}
	busy := 0.0
	for _, l := range levels {
		if l.InFlight >= now.Slots {
			busy += l.BusyShare
		}
	}
	if busy > full {
		add(fmt.Sprintf("%s of the busy time has every slot taken", prove.Percent(busy)), fmt.Sprintf("slots=%d", 2*now.Slots))
	}
	if a.present.run.Preemptions > 0 || float64(a.peak) >= tight*float64(now.KVTokens) {
		dtype := "fp8"
		if now.Engine.Scheduler == simengine.LlamaServer {
			dtype = "q8_0"
		}
		add(fmt.Sprintf("at the fullest moment requests of %d tokens were in flight, of %d that the KV holds, and the replay has %d preemptions", a.peak, now.KVTokens, a.present.run.Preemptions), "kv_dtype="+dtype)
	}
	if a.Policy == nil {
		return all
	}
	t := a.Policy.Table
	if !now.Enforced {
		add("the pool observes, and this is its policy", "mode=enforce")
		return all
	}
	instant := int64(0)
	for k := range t.Classes {
		if c := &t.Classes[k]; c.Window == 0 {
			instant += c.Floor[admission.Slots]
		}
	}
	for k := range t.Classes {
		c := &t.Classes[k]
		if c.Mode == admission.Attrition && k > 0 && t.Classes[0].Floor[admission.Slots] > 0 {
			add("class "+c.Name+" gives back what it borrows only as it ends", "reclaim."+c.Name+"=reclaim")
		}
		if c.Unlent[admission.Slots] > 0 {
			add(fmt.Sprintf("%d slots of class %s are never lent", c.Unlent[admission.Slots], c.Name), "unlent."+c.Name+"=0")
		}
		if more := c.Floor[admission.Slots] + int64(now.Slots) - instant; c.Window == 0 && more > c.Floor[admission.Slots] && a.share(c.Name) < leastGood {
			add(fmt.Sprintf("%s of class %s are on time, and floors leave %d slots to nobody", prove.Percent(a.share(c.Name)), c.Name, int64(now.Slots)-instant), fmt.Sprintf("floor.%s=%d", c.Name, more))
		}
	}
	return all
}

// share of a class's requests that are on time at present, 1 where none is asked.
func (a *adviser) share(class string) float64 {
	n, good := 0, 0
	for i, q := range a.traffic.Requests {
		if a.traffic.Scored[i] && q.Class == class {
			n++
			if a.present.onTime[i] {
				good++
			}
		}
	}
	if n == 0 {
		return 1
	}
	return float64(good) / float64(n)
}

// regimes of the traffic, as the report has them.
func (a *adviser) regimes() []RegimeSpan {
	var all []RegimeSpan
	for _, g := range Regimes(a.Recording.Requests, a.length) {
		s := RegimeSpan{Start: a.Recording.Start.Add(g.From), Seconds: (g.To - g.From).Seconds(), Changed: g.Changed, from: g.From, to: g.To}
		for i := range a.Recording.Requests {
			if at := a.Recording.Requests[i].Arrival; at >= g.From && at < g.To {
				s.Requests++
			}
		}
		all = append(all, s)
	}
	return all
}

// leastOf is the share of requests from which on a model's profile speaks for a traffic.
const leastOf = 0.1

// foreign tells why the profile is of another model than nearly all that came since the
// traffic's last change, which the advice is for; empty: it is not, as far as models are
// recorded.
func (a *adviser) foreign() string {
	if a.Profile == nil || a.Profile.Model == "" {
		return ""
	}
	since := a.rep.Regimes[len(a.rep.Regimes)-1]
	n, own := 0, 0
	for i := range a.Recording.Requests {
		if q := &a.Recording.Requests[i]; q.Arrival >= since.from && q.Arrival < since.to && q.Model != "" {
			n++
			if q.Model == a.Profile.Model {
				own++
			}
		}
	}
	if n == 0 || float64(own) >= leastOf*float64(n) {
		return ""
	}
	return fmt.Sprintf("the profile is of model %s, which has %s of the requests since %s", a.Profile.Model, prove.Percent(float64(own)/float64(n)), prove.ClockTime(since.Start))
}

// judge tells of a proposal what the replay and the probe say.
func (a *adviser) judge(p *Proposal) (*Advice, error) {
	next := p.apply(a.Present)
	one := &Advice{Proposal: p.String(), Why: p.Why, LongestPresent: a.Present.longest(), LongestProposed: next.longest(), Mechanisms: []Mechanism{}, Results: []Result{}, Falsify: []string{}, room: next.Slots < a.Present.Slots}
	refuse := func(why string) (*Advice, error) {
		one.Status, one.Reason = Impossible, why
		return one, nil
	}
	ofPolicy := slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Class != "" })
	switch {
	case (ofPolicy || p.find("mode") != nil) && a.Policy == nil:
		return refuse("there is no policy that it could change: give --config or --policy")
	case ofPolicy && !next.Enforced:
		return refuse("the pool observes, so that a policy changes nothing: propose mode=enforce with it")
	case next == a.Present && !ofPolicy:
		return refuse("it is what the settings are")
	}
	o, table, err := a.proposed(p, next)
	if err != nil {
		return refuse(err.Error())
	}
	one.Lost = o.lost
	if table == nil {
		table = &admission.Table{}
	}
	one.Mechanisms = append(one.Mechanisms, a.mechanisms(p, next, table)...)
	for _, g := range a.rep.Regimes {
		one.Results = append(one.Results, a.compare(o, g))
	}
	a.settle(one)
	a.falsify(one, p, next)
	return one, nil
}

// compare pairs the blocks of one regime.
func (a *adviser) compare(o *outcome, g RegimeSpan) Result {
	r := Result{Start: g.Start, Seconds: g.Seconds}
	in := func(k int) bool {
		middle := (prove.BlockEdge(k, a.blocks, a.length) + prove.BlockEdge(k+1, a.blocks, a.length)) / 2
		return middle >= g.from && middle < g.to
	}
	onTime, tokens := make([]float64, a.blocks), make([]float64, a.blocks)
	n := &r.OnTime
	var b Batch
	// A batch request counts in the block that it came in, under both: what is done a little
	// later is done as well.
	done := func(k int, q *prove.Request, of *outcome, i int, count *int, sum *float64, sign float64) {
		if of.done[i] >= 0 {
			*count++
			*sum += float64(q.PromptTokens + q.Output)
			tokens[k] += sign * float64(q.PromptTokens+q.Output)
		}
	}
	for i, q := range a.traffic.Requests {
		k := prove.BlockOf(q.Arrival, a.blocks, a.length)
		switch {
		case !in(k):
		case q.Class == a.BatchClass:
			b.Offered++
			done(k, q, a.present, i, &b.DonePresent, &b.TokensPresent, -1)
			done(k, q, o, i, &b.DoneProposed, &b.TokensProposed, 1)
		case a.traffic.Scored[i]:
			n.Offered++
			if a.present.onTime[i] {
				n.Present++
				onTime[k]--
			}
			if o.onTime[i] {
				n.Proposed++
				onTime[k]++
			}
		}
	}
	var times, batch []float64
	for k := range a.blocks {
		if in(k) {
			times = append(times, onTime[k]/float64(max(n.Offered, 1)))
			batch = append(batch, tokens[k]/max(b.TokensPresent, 1))
		}
	}
	r.Blocks = len(times)
	n.Change = float64(n.Proposed-n.Present) / float64(max(n.Offered, 1))
	n.Interval = prove.SumInterval(times, "requests on time")
	r.Verdict = verdict(n.Interval, a.Margin)
	if b.DonePresent+b.DoneProposed > 0 {
		b.Change = (b.TokensProposed - b.TokensPresent) / max(b.TokensPresent, 1)
		b.Interval = prove.SumInterval(batch, "batch's tokens")
		r.Batch = &b
		r.Verdict = both(r.Verdict, verdict(b.Interval, BatchMargin))
	}
	if len(a.rep.Distrust) > 0 || n.Offered == 0 || r.Verdict == noWorse {
		r.Verdict = CantTell
	}
	return r
}

// verdict on one figure, of which more is better.
func verdict(i prove.Interval, margin float64) Verdict {
	switch {
	case i.Low == nil:
		return CantTell
	case *i.High < -margin:
		return Worse
	case *i.Low > margin:
		return Better
	case *i.Low >= -margin && *i.High <= margin:
		return Same
	case *i.Low >= -margin:
		return noWorse
	}
	return CantTell
}

// both figures together.
func both(a, b Verdict) Verdict {
	is := func(v Verdict) bool { return a == v || b == v }
	switch {
	case is(Worse):
		return Worse
	case is(CantTell):
		return CantTell
	case is(Better):
		return Better
	case is(noWorse):
		return noWorse
	}
	return Same
}

// peak of the tokens in flight, each request's counted whole.
func peak(requests []prove.Request) int {
	type edge struct {
		at time.Duration
		by int
	}
	var edges []edge
	for i := range requests {
		q := &requests[i]
		edges = append(edges, edge{q.Dispatched, q.PromptTokens + q.Output}, edge{q.Done, -q.PromptTokens - q.Output})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	n, most := 0, 0
	for _, e := range edges {
		n += e.by
		most = max(most, n)
	}
	return most
}

// levels is the occupancy of what is replayed.
func levels(r *prove.Recording) (*Occupancy, error) {
	zero := r.Start.UnixNano()
	a, err := occupancy.NewAnalysis(occupancy.Options{From: zero, To: zero + int64(r.Length), Slack: time.Hour, MaxSpan: 366 * 24 * time.Hour}, true)
	if err != nil {
		return nil, err
	}
	for _, i := range byDone(r.Requests) {
		q := &r.Requests[i]
		a.Add(&occupancy.Line{Kind: occupancy.Whole, Start: zero + int64(q.Dispatched), At: zero + int64(q.Done), ID: []byte(q.ID)})
	}
	rep := a.Report()
	return &Occupancy{Levels: rep.Levels, Utilisation: rep.Utilisation, Peak: rep.Peak}, nil
}

func byDone(requests []prove.Request) []int {
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(requests[a].Done, requests[b].Done) })
	return order
}
