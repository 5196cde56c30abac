package replan

import (
	"fmt"
	"math"
	"time"
)

const (
	// maxBackoff is how often ContentionAfter and the rest after a failure are doubled.
	maxBackoff = 3
	// calmDwells is after how many dwells without a switch a doubling is taken back.
	calmDwells = 8
	// firstRetry and lastRetry bound how long it takes until a return that has failed is
	// tried again.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	// remembered is the weight of the past in the mean of what switches have taken.
	remembered = 0.7
)

// Planner decides in which profile an engine should be. It is not safe for concurrent
// use.
type Planner struct {
	cfg   Config
	now   Time
	state State
	since Time // of the state
	at    int  // the present profile; while it is not settled, the one that it left
	to    int  // the one that it goes to
	from  int  // the one before the present
	why   Why  // of the last decision

	load      Load
	idle      Time      // since when there has been no demand; Never while there is
	wanted    []Time    // since when each profile would serve what waits here; Never
	expected  []float64 // busy slots of each profile, averaged over the recent past
	advantage time.Duration
	gained    bool          // the present profile was taken for demand
	spent     time.Duration // on the switch to it
	drain     time.Duration // how long the last drain took ...
	drains    time.Duration // ... and what they take as a rule

	rest    Time   // no switch is begun before it ...
	failed  Time   // ... nor an operator's before this
	begun   []Time // switches of the last hour
	backoff uint
	calm    Time // since when nothing was switched, or a doubling was last taken back
	retries uint

	wish      int // an operator's; Auto
	wishUntil Time

	cost []time.Duration // measured, by from*n+to; 0: not yet
	fx   []Effect
}

// New returns a planner of an engine that is in profile at. It panics on a
// configuration that does not validate: a driver validates first.
func New(cfg Config, at int, now Time) *Planner {
	cfg.Validate(func(path string, value any, allowed string) {
		panic(fmt.Sprintf("replan: %s is %v, must be %s", path, value, allowed))
	})
	n := len(cfg.Profiles)
	p := &Planner{
		cfg: cfg, now: now, since: now, at: at, to: at, from: at, idle: now, calm: now, wish: Auto,
		wanted: make([]Time, n), expected: make([]float64, n), cost: make([]time.Duration, n*n),
	}
	p.load.Promised, p.load.Inside = p.all(), p.all()
	for q := range p.wanted {
		p.wanted[q] = Never
	}
	return p
}

// all is the set of all profiles.
func (p *Planner) all() Set { return 1<<len(p.cfg.Profiles) - 1 }

// Profile is the profile that the engine is in, or was last in.
func (p *Planner) Profile() int { return p.at }

// Target is the profile that it goes to; the present one while it is settled.
func (p *Planner) Target() int { return p.to }

// State is what the planner is at.
func (p *Planner) State() State { return p.state }

// Wish is the profile that an operator wants, Auto if none does.
func (p *Planner) Wish() int { return p.wish }

// Holds tells whether a request that these profiles hold may be given to admission now.
// One that may not waits until it may: under the table of the present profile, or of
// that to which the engine goes, it would be refused.
func (p *Planner) Holds(fits Set) bool {
	switch p.state {
	case Draining, Switching:
		return fits.Has(p.at) && fits.Has(p.to)
	}
	return fits.Has(p.at)
}

// Closed tells whether the engine must be sent nothing new. A drain begins with that
// what was given to admission, and does not fit the new profile, is served.
func (p *Planner) Closed() bool {
	switch p.state {
	case Settled:
		return false
	case Draining:
		return !p.cfg.Limits && p.load.Inside.Has(p.to)
	}
	return true
}

// Step advances the planner to now and applies one event. It appends what it wants done
// to fx and returns it. A Drained or Switched that nobody waits for is ignored.
func (p *Planner) Step(now Time, ev *Event, fx []Effect) []Effect {
	p.fx = fx
	p.pass(max(now, p.now))
	if ev.Load != nil {
		p.take(ev.Load)
	}
	switch ev.Kind {
	case Override:
		if p.wish = ev.Profile; p.wish != Auto {
			p.wishUntil = ev.Until
		}
	case Drained:
		if p.state == Draining {
			p.drained()
		}
	case Switched:
		p.switched(ev.OK, ev.Intact)
	}
	if p.wish != Auto && p.now >= p.wishUntil {
		p.wish = Auto
	}
	switch p.state {
	case Settled:
		p.decide()
	case Draining:
		p.reconsider()
	case Broken:
		if p.now >= p.rest {
			p.enter(Returning)
			p.emit(Effect{Op: Return, Why: WhyFailed, From: p.to, To: p.at})
		}
	}
	fx, p.fx = p.fx, nil
	return fx
}

func (p *Planner) emit(e Effect) { p.fx = append(p.fx, e) }

func (p *Planner) enter(s State) { p.state, p.since = s, p.now }

// pass lets time go by with the load as it last was.
func (p *Planner) pass(now Time) {
	dt := float64(now - p.now)
	if dt > 0 {
		keep := math.Exp(-dt / float64(p.cfg.Dwell))
		for q := range p.expected {
			p.expected[q] = keep*p.expected[q] + (1-keep)*float64(p.could(q))
		}
		if p.state == Settled && p.better(p.at, p.from) {
			p.advantage += time.Duration(now - p.now)
		}
	}
	p.now = now
	if calm := calmDwells * Time(p.cfg.Dwell); p.backoff > 0 && p.state == Settled && now-p.calm >= calm {
		p.backoff--
		p.calm += calm
	}
	for len(p.begun) > 0 && now-p.begun[0] >= Time(time.Hour) {
		p.begun = p.begun[1:]
	}
}

// take replaces the load, and notes since when what has been so.
func (p *Planner) take(l *Load) {
	p.load.Promised, p.load.Inside = l.Promised, l.Inside
	p.load.Demands = append(p.load.Demands[:0], l.Demands...)
	there := false
	for _, d := range l.Demands {
		there = there || d.Running+d.Waiting > 0
	}
	switch {
	case there:
		p.idle = Never
	case p.idle == Never:
		p.idle = p.now
	}
	p.watch()
}

// watch notes since when each profile would serve what waits in the present one.
func (p *Planner) watch() {
	for q := range p.wanted {
		switch is := q != p.at && p.wants(q); {
		case !is:
			p.wanted[q] = Never
		case p.wanted[q] == Never:
			p.wanted[q] = p.now
		}
	}
}

// could is how many slots would be busy in profile q.
func (p *Planner) could(q int) int {
	n := 0
	for _, d := range p.load.Demands {
		if d.Fits.Has(q) {
			n += d.Running + d.Waiting
		}
	}
	return min(n, p.cfg.Profiles[q].Slots)
}

// wants tells whether something waits that profile q would run and the present one
// does not.
func (p *Planner) wants(q int) bool {
	if _, stranded := p.stranded(q); stranded {
		return true
	}
	waits := false
	for _, d := range p.load.Demands {
		waits = waits || d.Waiting > 0
	}
	return waits && p.could(q) > p.could(p.at)
}

// stranded is since when something has waited that profile q holds and the present one
// does not.
func (p *Planner) stranded(q int) (since Time, is bool) {
	since = Never
	for _, d := range p.load.Demands {
		if d.Waiting > 0 && d.Fits.Has(q) && !d.Fits.Has(p.at) {
			since, is = min(since, d.Since), true
		}
	}
	return since, is
}

// better tells whether profile q is of use now that profile r would not be.
func (p *Planner) better(q, r int) bool {
	for _, d := range p.load.Demands {
		if d.Running+d.Waiting > 0 && d.Fits.Has(q) && !d.Fits.Has(r) {
			return true
		}
	}
	return p.could(q) > p.could(r)
}

// urgency is what demand that is stranded adds to what profile q is worth, in slots.
func (p *Planner) urgency(q int) float64 {
	since, is := p.stranded(q)
	if !is {
		return 0
	}
	return float64(p.now-since) / float64(p.cfg.ContentionAfter)
}

// takes is how long a switch from the present profile to q is believed to take, with
// what it takes until nothing runs.
func (p *Planner) takes(q int) time.Duration {
	if p.cfg.Limits {
		return 0
	}
	d := p.cost[p.at*len(p.cfg.Profiles)+q]
	if d == 0 {
		d = p.cfg.Profiles[q].Cost
	}
	return d + p.drains
}

// worth is what a switch to q is expected to gain over the dwell, and to cost, in
// slot-seconds.
func (p *Planner) worth(q int) (gain, cost float64) {
	gain = (p.expected[q] - p.expected[p.at] + p.urgency(q)) * p.cfg.Dwell.Seconds()
	lost := max(p.expected[p.at], float64(p.could(p.at)))
	return gain, p.takes(q).Seconds() * lost
}

// patience is how long demand must wait for a switch.
func (p *Planner) patience() Time { return Time(p.cfg.ContentionAfter) << p.backoff }

// verdict is what comes of a look at the profiles.
type verdict struct {
	to    int // the best other profile, -1 if none is wanted
	why   Why
	gain  float64
	cost  float64
	since Time
	stays string // why it is not gone to; "": it is
	at    Time   // when that may be otherwise by the passing of time; Never
}

// Next returns when time alone may change something, and whether there is such a moment.
func (p *Planner) Next() (Time, bool) {
	at := Never
	switch p.state {
	case Settled:
		at = p.judge().at
	case Draining:
		at = p.since + Time(p.cfg.DrainTimeout)
	case Broken:
		at = p.rest
	}
	if p.wish != Auto {
		at = min(at, p.wishUntil)
	}
	return at, at != Never
}

// judge looks for the profile to go to.
func (p *Planner) judge() verdict {
	v := verdict{to: -1, at: Never, stays: "nothing waits that another profile would run"}
	switch {
	case p.wish != Auto:
		v.at = p.wishUntil
		if p.wish == p.at {
			v.stays = "an operator wants it to stay"
			return v
		}
		v = verdict{to: p.wish, why: WhyOperator, since: p.now, at: Never}
		if p.now < p.failed {
			v.stays, v.at = "the last attempt failed", p.failed
		}
	case p.idle != Never:
		if p.at == p.cfg.Home {
			v.stays = "nothing is there, and it is at home"
			return v
		}
		v = verdict{to: p.cfg.Home, why: WhyIdle, since: p.idle, at: Never}
		if due := p.idle + Time(p.cfg.IdleAfter); p.now < due {
			v.stays, v.at = "nothing has been there for too short a time", due
		}
		p.bounded(&v)
	default:
		best := math.Inf(-1)
		for q := range p.wanted {
			if p.wanted[q] == Never {
				continue
			}
			if gain, cost := p.worth(q); gain-cost > best && p.load.Promised.Has(q) {
				best = gain - cost
				v = verdict{to: q, why: WhySlots, gain: gain, cost: cost, since: p.wanted[q], at: Never}
				if _, is := p.stranded(q); is {
					v.why = WhyStranded
				}
			}
		}
		if v.to < 0 {
			if p.promisedAway() {
				v.stays = "a session was promised more than the others give"
			}
			return v
		}
		// Urgency and the average move by themselves, so it is looked at again.
		if v.gain <= v.cost {
			v.stays, v.at = "it would cost more than it gains", p.now+Time(max(p.cfg.ContentionAfter/4, time.Second))
		}
		if due := v.since + p.patience(); p.now < due {
			v.stays, v.at = "demand has waited for too short a time", due
		}
		p.bounded(&v)
	}
	if v.to >= 0 && !p.load.Promised.Has(v.to) {
		v.stays, v.at = "a session was promised more than that gives", Never
		if p.wish != Auto {
			v.at = p.wishUntil
		}
	}
	return v
}

// promisedAway tells whether only a promise keeps a wanted profile from being taken.
func (p *Planner) promisedAway() bool {
	for q := range p.wanted {
		if p.wanted[q] != Never && !p.load.Promised.Has(q) {
			return true
		}
	}
	return false
}

// bounded holds a switch back that would come too soon after others.
func (p *Planner) bounded(v *verdict) {
	if p.now < p.rest {
		v.stays, v.at = "the last switch is too short a time ago", max(p.rest, minAt(v.at))
	}
	if len(p.begun) >= p.cfg.PerHour {
		v.stays, v.at = "as many switches as an hour may have", max(p.begun[0]+Time(time.Hour), minAt(v.at))
	}
}

// minAt is a moment to look again as a lower bound; where none is known, any.
func minAt(t Time) Time {
	if t == Never {
		return 0
	}
	return t
}

// decide begins a switch if one is due.
func (p *Planner) decide() {
	v := p.judge()
	if v.to < 0 || v.stays != "" {
		return
	}
	e := Effect{Op: Drain, Why: v.why, From: p.at, To: v.to, Gain: v.gain, Cost: v.cost, Waited: time.Duration(p.now - v.since)}
	p.begun = append(p.begun, p.now)
	p.why, p.calm = v.why, p.now
	if p.cfg.DryRun {
		e.Op = Would
		p.rest = p.now + Time(p.cfg.Dwell)
		p.failed = p.rest
		p.emit(e)
		return
	}
	p.to = v.to
	p.enter(Draining)
	p.emit(e)
}

// reconsider gives a drain up whose reason is gone or that takes too long.
func (p *Planner) reconsider() {
	why := WhyNone
	switch {
	case !p.load.Promised.Has(p.to):
		why = WhyPromise
	case p.wish != Auto && p.wish != p.to:
		why = WhyOperator
	case p.why == WhyOperator && p.wish != p.to,
		p.why == WhyIdle && p.idle == Never:
		why = WhyGone
	case (p.why == WhySlots || p.why == WhyStranded) && !p.better(p.to, p.at) && p.wish != p.to:
		why = WhyGone
		p.setBack() // or a client that comes and goes would have the engine drained again and again
	case p.now >= p.since+Time(p.cfg.DrainTimeout):
		why = WhyTimeout
		p.setBack()
	}
	if why != WhyNone {
		p.stay(why)
	}
}

// stay reopens the engine in the profile that it has not left.
func (p *Planner) stay(why Why) {
	p.emit(Effect{Op: Reopen, Why: why, From: p.at, To: p.at})
	p.to, p.why = p.at, why
	p.enter(Settled)
	p.watch()
}

// setBack makes the next attempts rarer.
func (p *Planner) setBack() {
	p.backoff = min(p.backoff+1, maxBackoff)
	p.calm = p.now
	p.rest = p.now + Time(p.cfg.Dwell)<<p.backoff
	p.failed = p.now + p.patience()
}

// drained takes the engine to the new profile, unless something came meanwhile that it
// would not hold.
func (p *Planner) drained() {
	switch {
	case !p.load.Promised.Has(p.to):
		return // see reconsider
	case !p.load.Inside.Has(p.to):
		p.setBack()
		p.stay(WhyUnfit)
		return
	}
	p.drain = time.Duration(p.now - p.since)
	p.drains = mean(p.drains, p.drain)
	p.enter(Switching)
	p.emit(Effect{Op: Switch, Why: p.why, From: p.at, To: p.to})
}

// mean is a mean in which the last ones weigh most; 0 is none.
func mean(old, d time.Duration) time.Duration {
	if old == 0 {
		return d
	}
	return time.Duration(remembered*float64(old) + (1-remembered)*float64(d))
}

// switched takes in how a switch or a return has ended. An engine that no switch has
// touched is where it was.
func (p *Planner) switched(ok, intact bool) {
	switch {
	case p.state == Switching && ok:
		p.arrive()
	case p.state == Switching && intact:
		p.setBack()
		p.stay(WhyFailed)
	case p.state == Switching:
		p.retries = 0
		p.enter(Returning)
		p.emit(Effect{Op: Return, Why: WhyFailed, From: p.to, To: p.at})
	case p.state == Returning && ok:
		p.setBack()
		p.stay(WhyBack)
	case p.state == Returning:
		p.rest = p.now + Time(min(firstRetry<<p.retries, lastRetry))
		p.retries = min(p.retries+1, 16)
		p.enter(Broken)
	}
}

// arrive opens the engine in the new profile, and judges whether the stay in the old
// one was worth its switch.
func (p *Planner) arrive() {
	took := time.Duration(p.now - p.since)
	c := &p.cost[p.at*len(p.cfg.Profiles)+p.to]
	*c = mean(*c, took)
	switch {
	case p.gained && p.advantage < p.spent:
		p.backoff = min(p.backoff+1, maxBackoff)
	case p.gained && p.backoff > 0:
		p.backoff--
	}
	p.spent = p.drain + took
	p.from, p.at = p.at, p.to
	p.gained, p.advantage = p.why == WhySlots || p.why == WhyStranded, 0
	p.rest, p.failed, p.calm = p.now+Time(p.cfg.Dwell), p.now, p.now
	p.enter(Settled)
	for q := range p.wanted {
		p.wanted[q] = Never // it was by comparison with the old one
	}
	p.watch()
	p.emit(Effect{Op: Reopen, Why: WhyDone, From: p.from, To: p.at, Took: p.spent})
}
