package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/replan"
	"headgate/wire"
)

// The shell of package replan: a pool whose one engine is switched between serving
// profiles. It tells the planner what there is with every sample of the engine, and does
// what comes of it.
//
// While the engine is closed for a switch the core takes it for loading, so that what
// comes waits and is not refused, and loans are called in. What the core would refuse
// under the table of the present profile, or of the one to come, is not given to it: it
// waits in the room, and comes in when there is a profile that holds it. What a profile
// holds is asked of a core that has that profile's table and nothing else to do, so that
// there is one answer to it.

// Replan is how the engine of a pool is switched between profiles.
type Replan struct {
	replan.Config
	// Sessions is how many sessions may have promises at a time, SessionTimeout how long
	// one lives after its last request.
	Sessions       int
	SessionTimeout time.Duration
	// Hooks take the engine to each profile, Timeouts are how long that may take until the
	// engine is ready. Without Limits there is one for each.
	Hooks    []Hook
	Timeouts []time.Duration
}

// Hook takes the engine to a profile. It returns when that is under way or done; the
// engine has until its Timeout to be ready.
// ErrIntact is wrapped by the error of one that has done nothing at all to the engine.
type Hook func(ctx context.Context) error

// ErrIntact tells that a hook could not even begin: the engine is as it was.
var ErrIntact = errors.New("the engine was not touched")

// planning is a pool's replanning.
type planning struct {
	cfg      *Replan
	contract *replan.Contract
	planner  *replan.Planner // nil until the engine has said what it is
	fx       []replan.Effect

	cores []*fitter // by profile
	turn  uint64    // counts the tables that they were made for
	room  []*record // waiting for a profile that holds them, in the order of arrival

	closed bool      // to the core the engine is loading
	empty  time.Time // since when nothing was sent that is not over; zero: something is
	hook   bool      // one runs
	awaits time.Time // until when the engine has to be in the profile it goes to; zero: it does not go
	amiss  error     // why it is not there yet, or not what it should be
}

// planned is what a request has of it.
type planned struct {
	fits    replan.Set // that hold it ...
	fitsAs  [2]int64   // ... at so many tokens, by which turn of the cores; see fitsLocked
	came    int64      // tokens of one sequence that it has come to, prompt and output
	most    int64      // and that it may come to, where its client has declared a limit
	session uint64     // whose promise it counts for; 0: none
	counted bool       // the promise lives as long as it runs
	granted int64      // context that its session has
	outside bool       // it waits in the room
	back    bool       // it is taken out of the core to wait there
}

// comesLocked notes what a request has come to, as the core takes it.
func (a *attempt) comesLocked() {
	r := a.record
	if a.pool.plan == nil || a.piece() {
		return
	}
	prompt := max(int64(r.prompt), r.plan.came)
	if a.prompt > 0 {
		prompt = int64(a.pool.sequenceLocked(a.call.Request, a.prompt+r.lost))
	}
	r.plan.came = max(r.plan.came, prompt+int64(a.out/max(r.call.Request.N, 1)))
}

// replan has the planner look at what there is, after a sample.
func (p *Pool) replan(o *engine.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planLocked(o)
}

// fitter asks a core whether a request could ever run.
type fitter struct {
	core *admission.Core
	gen  uint32
	fx   []admission.Effect
}

func newPlanning(c *Replan) *planning {
	if c == nil {
		return nil
	}
	guarantee := c.Profiles[0].MaxContext
	for i := range c.Profiles {
		guarantee = min(guarantee, contextOf(&c.Profiles[i]))
	}
	return &planning{cfg: c, contract: replan.NewContract(guarantee, c.Sessions, c.SessionTimeout)}
}

// contextOf is how long one sequence may become in a profile, in tokens.
func contextOf(p *replan.Profile) int64 { return min(p.MaxContext, p.KVTokens) }

// holds tells whether a request could ever run.
func (f *fitter) holds(now admission.Time, class admission.Class, tokens int64, n int32) bool {
	f.gen++
	id := admission.MakeID(f.gen, 0)
	prompt := int32(min(max(tokens-1, 1), 1<<30))
	f.fx = f.core.Step(now, &admission.Event{Kind: admission.Offer, ID: id, Class: class, Prompt: prompt, Out: admission.Undeclared, N: n}, f.fx[:0])
	fits := true
	for i := range f.fx {
		switch e := &f.fx[i]; e.Op {
		case admission.Reject:
			return e.Cause != admission.CauseContext && e.Cause != admission.CauseTooLarge && e.Cause != admission.CauseTooMany
		case admission.Admit, admission.Warm:
			f.core.Step(now, &admission.Event{Kind: admission.Ended, Hold: e.Hold, Cause: admission.CauseClientGone, Flags: admission.FlagReleased}, nil)
			return fits
		}
	}
	f.core.Step(now, &admission.Event{Kind: admission.Cancel, ID: id}, nil)
	return fits
}

// coresLocked makes the cores that tell what each profile holds under settings. The error
// says which has no table.
func (p *Pool) coresLocked(live *settings) (cores []*fitter, err error) {
	pl := p.plan
	if pl == nil || !p.engines[0].known {
		return nil, nil
	}
	for i := range pl.cfg.Profiles {
		specs := p.specsLocked(live, func(int) bool { return true })
		q := &pl.cfg.Profiles[i]
		specs[0].Slots, specs[0].KV, specs[0].MaxContext = int64(q.Slots), q.KVTokens, q.MaxContext
		t, err := tableOf(live, specs)
		if err != nil {
			return nil, fmt.Errorf("profile %s: %w", q.Name, err)
		}
		t.Rev = 1
		cores = append(cores, &fitter{core: admission.New(t, 1)})
	}
	return cores, nil
}

// refitLocked puts them in use.
func (p *Pool) refitLocked(cores []*fitter) {
	if cores != nil {
		p.plan.cores = cores
		p.plan.turn++
	}
}

// fitsLocked is the set of profiles that hold a request of so many tokens a sequence.
func (p *Pool) fitsLocked(r *record, tokens int64) replan.Set {
	pl := p.plan
	if as := [2]int64{tokens, int64(pl.turn)}; r.plan.fitsAs != as {
		r.plan.fits, r.plan.fitsAs = 0, as
		n := int32(min(max(r.call.Request.N, 1), 1<<20))
		for q, c := range pl.cores {
			if c.holds(p.now(), r.class, tokens, n) {
				r.plan.fits = r.plan.fits.With(q)
			}
		}
	}
	return r.plan.fits
}

// needLocked is how many tokens of one sequence a request needs of the profile that it
// meets next: what there is of it, what it asked for, and, once it has begun, the limit
// that its client has declared, or its answer would be cut short. Of an answer without
// one only what is there has to fit.
func (p *Pool) needLocked(r *record) int64 {
	need := max(int64(r.prompt), r.plan.came) + 1
	if !r.ran && r.kept != nil {
		need += int64(r.kept.Before()) // of an earlier call
	}
	if r.ran && !p.plan.cfg.Limits {
		need = max(need, r.plan.most)
	}
	return max(need, p.wantsLocked(r.call))
}

// beginsLocked notes what a request that is admitted for the first time may come to.
func (p *Pool) beginsLocked(r *record, limit int64) {
	if p.plan == nil || p.plan.planner == nil || !r.call.Request.Declared {
		return
	}
	most := int64(r.call.Request.MaxTokens)
	if limit > 0 {
		most = min(most, limit)
	}
	r.plan.most = min(int64(r.prompt)+most, p.presentLocked())
}

// widest is the longest context that a profile gives, in tokens; 0 without profiles.
func (p *Pool) widest() int {
	most := int64(0)
	if p.plan != nil {
		for i := range p.plan.cfg.Profiles {
			most = max(most, contextOf(&p.plan.cfg.Profiles[i]))
		}
	}
	return int(most)
}

// wantsLocked is the context that a request asks for, as far as some profile gives it.
func (p *Pool) wantsLocked(call *Call) int64 {
	return min(call.Context, int64(p.widest()))
}

// presentLocked is the context that the present profile gives, and, while the engine goes
// to another, that one too.
func (p *Pool) presentLocked() int64 {
	pl := p.plan
	at := contextOf(&pl.cfg.Profiles[pl.planner.Profile()])
	if s := pl.planner.State(); s == replan.Draining || s == replan.Switching {
		at = min(at, contextOf(&pl.cfg.Profiles[pl.planner.Target()]))
	}
	return at
}

// gatesLocked tells whether a request has to wait for a profile that holds it. What none
// holds is refused by the core, with its reason.
func (p *Pool) gatesLocked(r *record) bool {
	if p.plan == nil || p.plan.planner == nil || p.core.shadow != nil {
		return false
	}
	if r.call.Kept != nil && r.kept == nil && !r.ran {
		p.resumableLocked(r)
	}
	fits := p.fitsLocked(r, p.needLocked(r))
	return fits != 0 && !p.plan.planner.Holds(fits)
}

// hostLocked has a request wait in the room, if its class's queue has a place for it.
func (p *Pool) hostLocked(r *record) (why admission.Cause, want, allowed int) {
	spec := &p.table.Classes[r.class]
	waiting, tenants := r.waitingAmong(p.records, p.plan.room)
	switch {
	case waiting >= spec.Depth:
		return admission.CauseQueueFull, waiting, spec.Depth
	case spec.TenantDepth > 0 && tenants >= spec.TenantDepth:
		return admission.CauseTenantFull, tenants, spec.TenantDepth
	}
	r.plan.outside, r.waited = true, true
	r.stage = stageWaiting
	p.plan.room = append(p.plan.room, r)
	return admission.CauseNone, 0, 0
}

// waitingAmong counts who else waits among some in the request's class, and of its tenant.
func (r *record) waitingAmong(among ...[]*record) (class, tenant int) {
	for _, all := range among {
		for _, o := range all {
			if o != nil && o != r && o.class == r.class && o.stage == stageWaiting {
				class++
				if o.call.Tenant == r.call.Tenant {
					tenant++
				}
			}
		}
	}
	return class, tenant
}

// departLocked takes a request out of the room, for good or into the core.
func (p *Pool) departLocked(r *record) {
	r.plan.outside = false
	p.plan.room = slices.DeleteFunc(p.plan.room, func(o *record) bool { return o == r })
}

// dismissLocked ends the wait of a request in the room.
func (p *Pool) dismissLocked(r *record, e admission.Effect) {
	p.departLocked(r)
	r.stage, r.end = stageOver, e
	if e.Op == admission.Reject {
		p.logLocked(r, &journal.Event{Kind: journal.Rejected, Mono: int64(p.now()), Cause: e.Cause.String(), QueueNS: int64(p.now() - r.arrived)})
	}
	r.signal()
}

// callInLocked looks who of the room may come in, or has waited for too long.
func (p *Pool) callInLocked() {
	for _, r := range slices.Clone(p.plan.room) {
		spec := &p.table.Classes[r.class]
		switch {
		case p.drain || p.switches[SwitchDrain].On:
			p.dismissLocked(r, admission.Effect{Op: admission.Reject, Cause: admission.CauseDraining})
		case spec.MaxWait > 0 && time.Since(r.call.Arrived) >= spec.MaxWait:
			p.dismissLocked(r, admission.Effect{Op: admission.Reject, Cause: admission.CauseQueueWait})
		case p.unservedLocked(r) != nil:
			p.dismissLocked(r, admission.Effect{Op: admission.Reject, Cause: admission.CauseUnavailable})
		case p.gatesLocked(r) || len(p.free) == 0:
		default:
			// Nobody is refused for a queue that was full before he came in.
			if class, tenant := r.waitingAmong(p.records); class >= spec.Depth || spec.TenantDepth > 0 && tenant >= spec.TenantDepth {
				continue
			}
			p.departLocked(r)
			p.enterLocked(r)
		}
	}
}

// pledgeLocked notes in the contract that a request begins, and what its session has.
func (p *Pool) pledgeLocked(r *record) {
	pl := p.plan
	if pl == nil || pl.planner == nil {
		return
	}
	present := p.presentLocked()
	if r.call.Session == "" {
		r.plan.granted = max(pl.contract.Guarantee(), min(r.call.Context, present))
		return
	}
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(r.call.Tenant)
	_ = h.WriteByte(0) // no name of a tenant has one
	_, _ = h.WriteString(r.call.Session)
	r.plan.session = h.Sum64() | 1
	before := pl.contract.Of(p.now(), r.plan.session)
	r.plan.granted, r.plan.counted = pl.contract.Begin(p.now(), r.plan.session, max(r.call.Context, 0), present)
	if r.plan.granted > before {
		p.promisedLocked(r, r.plan.granted)
	}
}

func (p *Pool) promisedLocked(r *record, tokens int64) {
	p.logLocked(r, &journal.Event{Kind: journal.Promised, Mono: int64(p.now()), ContextTokens: tokens})
}

// honourLocked notes that a request that had begun is over.
func (p *Pool) honourLocked(r *record) {
	pl := p.plan
	if pl == nil || r.plan.session == 0 {
		return
	}
	before := pl.contract.Of(p.now(), r.plan.session)
	came := r.plan.came
	if r.call.Context < 0 {
		came = 0 // its client has said that it is the last
	}
	pl.contract.End(p.now(), r.plan.session, r.plan.counted, came, contextOf(&pl.cfg.Profiles[pl.planner.Profile()]))
	if r.call.Context < 0 {
		pl.contract.Release(r.plan.session)
	}
	if now := pl.contract.Of(p.now(), r.plan.session); now > before {
		p.promisedLocked(r, now)
	}
	r.plan.session = 0
}

// profileLocked names the profile in force, "" where there is none.
func (p *Pool) profileLocked() string {
	if p.plan == nil || p.plan.planner == nil {
		return ""
	}
	return p.plan.cfg.Profiles[p.plan.planner.Profile()].Name
}

// shownLocked is the state of an engine as the core is told it.
func (p *Pool) shownLocked(s admission.State) admission.State {
	if p.plan != nil && p.plan.closed {
		return admission.Loading
	}
	return s
}

// callsIn tells that loans are called in for a switch.
func (pl *planning) callsIn() bool {
	return pl != nil && pl.closed && pl.planner.State() == replan.Draining
}

// switching tells that the engine is away for a switch, and will be back.
func (pl *planning) switching() bool {
	return pl != nil && pl.planner != nil && (pl.planner.State() == replan.Switching || pl.planner.State() == replan.Returning)
}

// busy tells whether the engine may be anything just now, and arriving whether it has
// to be asked whether it is there.
func (pl *planning) busy() bool     { return pl != nil && pl.hook }
func (pl *planning) arriving() bool { return pl != nil && !pl.hook && !pl.awaits.IsZero() }

// fitProfile tells why an engine can't be in a profile, by what it says of itself.
func fitProfile(q *replan.Profile, caps *engine.Capabilities) error {
	most := caps.MaxContext
	for _, m := range caps.Models {
		if m.MaxContext > 0 {
			most = max(most, m.MaxContext)
		}
	}
	pool := caps.KVTokens
	if caps.Kind == engine.LlamaCpp && caps.Slots > 1 {
		pool = 0 // it does not say whether it divides its KV among the slots
	}
	for _, n := range []struct {
		what       string
		says, want int64
	}{{"slots", int64(caps.Slots), int64(q.Slots)}, {"KV tokens", int64(pool), q.KVTokens}, {"tokens of context", int64(most), contextOf(q)}} {
		if n.says > 0 && n.says < n.want {
			return fmt.Errorf("it has %d %s, and profile %s has %d", n.says, n.what, q.Name, n.want)
		}
	}
	return nil
}

// recognise finds the profile that an engine is in: home, unless it says that it is not,
// or is another exactly.
func (pl *planning) recognise(caps *engine.Capabilities) (int, error) {
	exact := func(q *replan.Profile) bool {
		return (caps.Slots == 0 || caps.Slots == q.Slots) && (caps.MaxContext == 0 || int64(caps.MaxContext) == q.MaxContext)
	}
	home := &pl.cfg.Profiles[pl.cfg.Home]
	wrong := fitProfile(home, caps)
	if wrong == nil && (exact(home) || pl.cfg.Limits) {
		return pl.cfg.Home, nil
	}
	for i := range pl.cfg.Profiles {
		if q := &pl.cfg.Profiles[i]; !pl.cfg.Limits && fitProfile(q, caps) == nil && exact(q) {
			return i, nil
		}
	}
	return pl.cfg.Home, wrong
}

// profiledLocked makes what an engine says of itself that of its profile. The error is
// that it can't be in it.
func (p *Pool) profiledLocked(caps *engine.Capabilities) error {
	pl := p.plan
	if pl == nil {
		return nil
	}
	at := 0
	var err error
	switch {
	case pl.planner == nil:
		if at, err = pl.recognise(caps); err == nil {
			pl.planner = replan.New(pl.cfg.Config, at, p.now())
			p.cfg.Log.Info("engine recognised", "pool", p.cfg.Name, "profile", pl.cfg.Profiles[at].Name)
		}
	case pl.arriving() && pl.planner.State() == replan.Switching:
		at = pl.planner.Target()
		err = fitProfile(&pl.cfg.Profiles[at], caps)
	default:
		at = pl.planner.Profile()
		err = fitProfile(&pl.cfg.Profiles[at], caps)
	}
	if err != nil && (pl.amiss == nil || pl.amiss.Error() != err.Error()) {
		p.cfg.Log.Warn("the engine is not in its profile", "pool", p.cfg.Name, "engine", p.live().Engines[0].Name, "err", err)
	}
	if pl.amiss = err; err != nil {
		return err
	}
	pl.overlay(at, caps)
	return nil
}

// overlay gives capabilities the figures of a profile.
func (pl *planning) overlay(at int, caps *engine.Capabilities) {
	q := &pl.cfg.Profiles[at]
	caps.Slots, caps.KVTokens, caps.MaxContext = q.Slots, int(q.KVTokens), int(q.MaxContext)
	for i := range caps.Models {
		caps.Models[i].MaxContext = int(q.MaxContext)
	}
}

// arrivedLocked tells the planner that the engine is where it was to go.
func (p *Pool) arrivedLocked() {
	if p.plan.arriving() {
		p.plan.awaits = time.Time{}
		p.planStepLocked(&replan.Event{Kind: replan.Switched, OK: true})
	}
}

// planLocked tells the planner what there is, after a sample of the engine.
func (p *Pool) planLocked(o *engine.Observation) {
	pl := p.plan
	if pl == nil || pl.planner == nil || p.core == nil || len(pl.cores) == 0 {
		return
	}
	if p.core.shadow != nil && !pl.cfg.DryRun && pl.planner.State() == replan.Settled {
		p.callInLocked() // who has waited since before it only observed
		return           // nothing is decided here
	}
	if p.drain && pl.planner.Wish() != pl.planner.Profile() {
		// A process that ends begins no switch, and gives one up that has not left yet.
		p.planStepLocked(&replan.Event{Kind: replan.Override, Profile: pl.planner.Profile(), Until: replan.Never})
	}
	if pl.arriving() && time.Now().After(pl.awaits) {
		pl.awaits = time.Time{}
		p.cfg.Log.Error("the engine is not in its profile in time", "pool", p.cfg.Name, "err", pl.amiss)
		p.planStepLocked(&replan.Event{Kind: replan.Switched})
	}
	p.takeOutLocked()
	p.planStepLocked(&replan.Event{Kind: replan.Sample, Load: p.loadLocked()})
	p.takeOutLocked()
	if p.drainedLocked(o) {
		p.planStepLocked(&replan.Event{Kind: replan.Drained, Load: p.loadLocked()})
	}
	p.callInLocked()
}

// takeOutLocked has what waits in the core, has not begun and does not fit the profile to
// come wait in the room.
func (p *Pool) takeOutLocked() {
	pl := p.plan
	if pl.planner.State() != replan.Draining {
		return
	}
	for _, r := range p.records {
		if r == nil || r.stage != stageWaiting || r.ran || r.mind != p.core || pl.planner.Holds(p.fitsLocked(r, p.needLocked(r))) {
			continue
		}
		r.plan.back = true
		p.stepLocked(r.mind, &admission.Event{Kind: admission.Cancel, ID: r.id})
		r.plan.back = false
	}
}

// outLocked puts a request that the core has let go into the room.
func (p *Pool) outLocked(r *record) {
	r.mind.live--
	r.mind, r.id = nil, 0
	p.honourLocked(r)
	r.plan.outside, r.stage = true, stageWaiting
	i, _ := slices.BinarySearchFunc(p.plan.room, r, func(a, b *record) int { return cmp.Compare(a.arrived, b.arrived) })
	p.plan.room = slices.Insert(p.plan.room, i, r)
}

// loadLocked is what there is, for the planner.
func (p *Pool) loadLocked() *replan.Load {
	pl := p.plan
	l := &replan.Load{Inside: 1<<len(pl.cores) - 1}
	count := func(r *record) replan.Set {
		fits := p.fitsLocked(r, p.needLocked(r))
		i := slices.IndexFunc(l.Demands, func(d replan.Demand) bool { return d.Fits == fits })
		if i < 0 {
			i = len(l.Demands)
			l.Demands = append(l.Demands, replan.Demand{Fits: fits, Since: replan.Never})
		}
		d, n := &l.Demands[i], max(r.call.Request.N, 1)
		if r.stage == stageAdmitted {
			d.Running += n
		} else {
			d.Waiting += n
			d.Since = min(d.Since, r.arrived)
		}
		return fits
	}
	for _, r := range p.records {
		if r != nil {
			l.Inside &= count(r)
		}
	}
	for _, r := range pl.room {
		count(r)
	}
	slices.SortFunc(l.Demands, func(a, b replan.Demand) int { return cmp.Compare(a.Fits, b.Fits) })
	needs := pl.contract.Needs(p.now())
	for i := range pl.cfg.Profiles {
		if needs <= contextOf(&pl.cfg.Profiles[i]) {
			l.Promised = l.Promised.With(i)
		}
	}
	return l
}

// drainedLocked tells whether nothing runs on the engine any more: nothing that was sent
// from here is not over, and a sample that was asked for since shows nothing else. An
// engine that shows nothing is believed once nothing waits for its confirmation.
func (p *Pool) drainedLocked(o *engine.Observation) bool {
	pl := p.plan
	if pl.planner.State() != replan.Draining {
		pl.empty = time.Time{}
		return false
	}
	if pl.cfg.Limits {
		return true
	}
	running := slices.ContainsFunc(p.records, func(r *record) bool { return r != nil && r.stage == stageAdmitted })
	switch {
	case !pl.closed || running:
		pl.empty = time.Time{}
		return false
	case pl.empty.IsZero():
		pl.empty = time.Now()
		return false
	case o.Running < 0:
		return p.core.Snapshot().Ghosts == 0
	}
	return o.Asked.After(pl.empty) && o.Running+max(o.Waiting, 0) == 0
}

// planStepLocked steps the planner and does what it wants done.
func (p *Pool) planStepLocked(ev *replan.Event) {
	pl := p.plan
	fx := pl.planner.Step(p.now(), ev, pl.fx[:0])
	pl.fx = nil // a hook that ends at once steps it again
	for i := range fx {
		p.planDoLocked(&fx[i])
	}
	pl.fx = fx
	p.closeLocked()
}

// closeLocked tells the core when the engine begins or ceases to take work.
func (p *Pool) closeLocked() {
	pl := p.plan
	if pl.planner.Closed() == pl.closed || p.core == nil {
		return
	}
	pl.closed = !pl.closed
	t := *p.table
	p.applyLocked(&t)
	p.allLocked(&admission.Event{Kind: admission.Observe, Gauge: admission.Gauge{
		State: p.shownLocked(p.engines[0].state), Asked: p.now(), Running: -1, KV: -1, Progress: -1, Preemptions: -1,
	}})
}

func (p *Pool) planDoLocked(e *replan.Effect) {
	pl := p.plan
	name := func(q int) string { return pl.cfg.Profiles[q].Name }
	line := &journal.Event{Kind: journal.Planned, Mono: int64(p.now()), Pool: p.cfg.Name, Engine: p.live().Engines[0].Name, Plan: &journal.Plan{
		Does: e.Op.String(), From: name(e.From), To: name(e.To), Why: e.Why.String(), Gain: e.Gain, Cost: e.Cost,
		WaitedNS: int64(e.Waited), TookNS: int64(e.Took),
	}}
	p.cfg.Log.Info("plan", "pool", p.cfg.Name, "does", e.Op.String(), "from", name(e.From), "to", name(e.To), "why", e.Why.String(),
		"gain_slot_s", e.Gain, "cost_slot_s", e.Cost, "waited", e.Waited, "took", e.Took)
	p.journal(line)
	switch {
	case e.Op == replan.Reopen && e.Why == replan.WhyDone:
		p.cfg.Metrics.switched(p.cfg.Name, name(e.To), "done", e.Took)
	case e.Op == replan.Reopen:
		p.cfg.Metrics.switched(p.cfg.Name, name(e.To), "given_up", 0)
	case e.Op == replan.Return:
		p.cfg.Metrics.switched(p.cfg.Name, name(e.From), "failed", 0)
	case e.Op == replan.Would:
		p.cfg.Metrics.switched(p.cfg.Name, name(e.To), "would", 0)
	case e.Op == replan.Switch && pl.cfg.Limits:
		p.relimitLocked(e.To)
		p.planStepLocked(&replan.Event{Kind: replan.Switched, OK: true})
		return
	}
	if e.Op == replan.Switch || e.Op == replan.Return {
		pl.hook, pl.amiss = true, nil
		pl.awaits = time.Now().Add(pl.cfg.Timeouts[e.To])
		p.tasks.Add(1)
		go p.runHook(e.To, pl.awaits)
	}
}

// runHook takes the engine to a profile. A process that ends waits for it: an engine that
// is left half way serves nobody.
func (p *Pool) runHook(to int, until time.Time) {
	defer p.tasks.Done()
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	err := p.plan.cfg.Hooks[to](ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := p.plan
	pl.hook = false
	if err == nil {
		pl.amiss = errors.New("it was not heard of since")
		return // the next samples tell whether it is there
	}
	pl.awaits = time.Time{}
	intact := errors.Is(err, ErrIntact)
	if pl.amiss = fmt.Errorf("the switch to profile %s: %w", pl.cfg.Profiles[to].Name, err); intact {
		pl.amiss = nil
	}
	p.cfg.Log.Error("the switch failed", "pool", p.cfg.Name, "profile", pl.cfg.Profiles[to].Name, "err", err)
	p.planStepLocked(&replan.Event{Kind: replan.Switched, Intact: intact})
}

// relimitLocked puts the limits of a profile into force. What runs and may come to more
// than they allow could not go on once it was interrupted, so it is not any more.
func (p *Pool) relimitLocked(to int) {
	s := &p.engines[0]
	at, next := &p.plan.cfg.Profiles[p.plan.planner.Profile()], &p.plan.cfg.Profiles[to]
	narrower := next.MaxContext < at.MaxContext || next.KVTokens < at.KVTokens
	for _, r := range p.records {
		if narrower && r != nil && r.stage == stageAdmitted && r.mind == p.core {
			p.stepLocked(r.mind, &admission.Event{Kind: admission.Progress, Hold: r.admit.Hold, Flags: admission.FlagWhole})
		}
	}
	caps := s.caps
	caps.Models = slices.Clone(caps.Models)
	p.plan.overlay(to, &caps)
	s.caps = caps
	p.takeLocked(0)
}

// PlanView is what a pool's planner is at.
type PlanView struct {
	Pool   string `json:"pool"`
	Engine string `json:"engine"`
	replan.View
	// Guarantee is the context that every profile gives, Promised the largest that a live
	// session was promised, in tokens.
	Guarantee int64 `json:"guarantee_tokens"`
	Promised  int64 `json:"promised_tokens"`
	Sessions  int   `json:"promised_sessions"`
	// Unpromised is how many promises were not made because there were too many.
	Unpromised uint64 `json:"promises_refused,omitempty"`
	// Held is how many requests wait for another profile.
	Held int `json:"held"`
	// Amiss is why the engine is not in its profile.
	Amiss string `json:"amiss,omitempty"`
}

// Plan returns what the pool's planner is at; nil: the pool has none, or its engine has
// not said what it is yet.
func (p *Pool) Plan() *PlanView {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planViewLocked()
}

func (p *Pool) planViewLocked() *PlanView {
	pl := p.plan
	if pl == nil || pl.planner == nil {
		return nil
	}
	if p.core != nil && pl.planner.State() == replan.Settled {
		p.planStepLocked(&replan.Event{Kind: replan.Tick})
	}
	v := &PlanView{Pool: p.cfg.Name, Engine: p.live().Engines[0].Name, View: pl.planner.View(), Guarantee: pl.contract.Guarantee(), Held: len(pl.room)}
	v.Promised = pl.contract.Needs(p.now())
	v.Sessions, v.Unpromised = pl.contract.Live(p.now())
	if pl.amiss != nil && (pl.planner.State() != replan.Settled || p.engines[0].state != admission.Ready) {
		v.Amiss = pl.amiss.Error()
	}
	return v
}

// Errors of Wish.
var (
	ErrNoPlan    = errors.New("the pool does not re-plan, or its engine has not said what it is yet")
	ErrNoProfile = errors.New("no such profile")
)

// Wish has the engine go to a profile and stay there for so long, 0 until there is another
// wish; "" leaves it to the planner again. who says whose wish it is, for the record.
func (p *Pool) Wish(profile string, d time.Duration, who SwitchState) (*PlanView, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := p.plan
	if pl == nil || pl.planner == nil {
		return nil, ErrNoPlan
	}
	e := replan.Event{Kind: replan.Override, Profile: replan.Auto, Until: replan.Never}
	to := "auto"
	if profile != "" {
		to = profile
		if e.Profile = slices.IndexFunc(pl.cfg.Profiles, func(q replan.Profile) bool { return q.Name == profile }); e.Profile < 0 {
			return nil, ErrNoProfile
		}
		if d > 0 {
			e.Until = p.now() + admission.Time(d)
		}
	}
	p.cfg.Log.Warn("an operator's wish", "pool", p.cfg.Name, "profile", to, "for", d, "actor", who.Actor, "remote", who.Remote, "reason", who.Reason)
	p.journal(&journal.Event{Kind: journal.Switched, Mono: int64(p.now()), Pool: p.cfg.Name, Switch: &journal.Switch{
		Name: "profile", From: p.profileLocked(), To: to, Actor: who.Actor, Remote: who.Remote, Reason: who.Reason,
	}})
	p.planStepLocked(&e)
	return p.planViewLocked(), nil
}

// offerOutside is the refusal of a request that can't wait for a profile.
func (p *Pool) offerOutside(r *record, why admission.Cause, want, allowed int) *wire.Error {
	err := wire.QueueFull(r.call.Class, want, allowed, 0)
	if why == admission.CauseTenantFull {
		err = wire.TenantQueueFull(r.call.Class, want, allowed, 0)
	}
	return p.turnAwayLocked(r, why, err)
}
