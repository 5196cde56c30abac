package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"headgate/admission"
	"headgate/control"
)

// In a fleet the pool has of its engines what its grant says, for as long as its lease
// lasts. The pool is then told of leases and grants, and asked for reports, by
// control/agent; without one it owns its engines and this is nil.
type fleet struct {
	holder *control.Holder
	wants  chan struct{}
	// differs: the leader was seen to have another configuration of the pool.
	differs bool
	later   atomic.Bool    // a report will be wanted
	ok      bool           // the grant was in force when the table was last made
	until   admission.Time // when that is over, as the core was told
	// beside is, by the table's engines, what still ran there by rows of an earlier
	// configuration then.
	beside []admission.Amount
	taken  admission.Time // when the grant was taken
	due    *time.Timer    // when what a lost lease leaves has to be over
	// news are what the others do, as told last, nil before that; came is when, and rows
	// which engines the core was told of then.
	news  *control.News
	heard control.Heard
	came  admission.Time
	rows  []string
	// Samples of each engine, counted.
	samples []uint64
	demands admission.Demands
	others  others
}

func newFleet(cfg *Config) *fleet {
	if cfg.Replica == (control.ID{}) {
		return nil
	}
	f := &fleet{holder: control.NewHolder(cfg.Name, cfg.Replica, cfg.ClockDrift), wants: make(chan struct{}, 1)}
	f.others = others{drift: cfg.ClockDrift, peers: map[control.ID]*peer{}, pace: pace{every: leastPace, want: func() { f.want(0) }}}
	for i := range cfg.Engines {
		f.share(cfg.Engines[i].Adapter)
	}
	return f
}

// overdue has what was begun under a lease that is over given up, once what is reserved for it
// is about to be another's. What survives goes on.
func (p *Pool) overdue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, now := p.fleet, p.now()
	at, there := f.holder.Due()
	if _, _, ok := f.holder.Grant(now); !there || ok || now < at {
		p.dueLocked()
		return
	}
	if p.core == nil || p.core.shadow != nil || p.table.Bypass || p.switches[SwitchBypass].On {
		return // what passes by the core is in no grant
	}
	r := control.Report{}
	p.core.decider.(*admission.Core).Demands(&f.demands)
	r.Fill(p.table, &f.demands)
	r.Fold()
	// Of the last class first, and what came last.
	var of []*record
	for _, v := range p.records {
		if v != nil && v.mind == p.core && v.stage == stageAdmitted {
			of = append(of, v)
		}
	}
	slices.SortFunc(of, func(x, y *record) int {
		return cmp.Or(cmp.Compare(y.class, x.class), cmp.Compare(y.arrived, x.arrived))
	})
	running := make([]control.Attempt, len(of))
	for i, v := range of {
		running[i] = control.Attempt{
			Engine: p.live().Engines[v.admit.Engine].Name, Class: p.live().Classes[v.class], Amount: admission.Of(1, v.admit.Tokens),
		}
	}
	ends := f.holder.Overdue(&r, running)
	for _, i := range ends {
		if of[i].overdue = true; of[i].stop != nil {
			of[i].stop(errOverdue)
		}
	}
	if len(ends) > 0 {
		p.cfg.Log.Warn("requests are ended that were begun under a lease that is over: what is reserved for them will be others'", "pool", p.cfg.Name,
			"requests", len(ends))
	}
}

// dueLocked has that done in time.
func (p *Pool) dueLocked() {
	if at, ok := p.fleet.holder.Due(); ok {
		p.fleet.due.Reset(max(time.Duration(at-p.now()), 1))
	}
}

// Provenance is by what a request was admitted, in a fleet.
type Provenance struct {
	Epoch, Revision uint64
	// Survival: there was no grant in force.
	Survival bool
}

// String is how it is shown to clients: "" of a pool that is not shared.
func (v Provenance) String() string {
	switch {
	case v.Survival:
		return "survival"
	case v.Revision == 0:
		return ""
	}
	return strconv.FormatUint(v.Epoch, 10) + "." + strconv.FormatUint(v.Revision, 10)
}

// provenanceLocked is by what the core admits now.
func (p *Pool) provenanceLocked() (v Provenance) {
	if p.fleet == nil || p.table.Bypass || p.switches[SwitchBypass].On {
		return v // bypassed, no grant has allowed it
	}
	g, _, ok := p.fleet.holder.Grant(p.now())
	if v.Survival = !ok; ok {
		v.Epoch, v.Revision = g.Epoch, g.Rev
	}
	return v
}

// shareOf is what of a table the grant leaves.
func (p *Pool) shareOf(t *admission.Table) *admission.Table {
	f := p.fleet
	g, until, ok := f.holder.Grant(p.now())
	f.ok, f.until = ok, until
	shared := control.Share(t, g, until, ok)
	f.beside = p.besideLocked(t)
	for i, left := range f.beside {
		// It is out of the engine's part.
		e := &shared.Engines[i]
		for r, v := range left {
			e.Withheld[r] = min(e.Withheld[r]+v, admission.Of(e.Slots, e.KV)[r])
		}
	}
	return shared
}

// besideLocked is, by the table's engines that are open, what runs on each by rows of an
// earlier configuration, which are closed and have its name; nil: nothing.
func (p *Pool) besideLocked(t *admission.Table) (beside []admission.Amount) {
	if p.core == nil || p.core.shadow != nil || !slices.ContainsFunc(t.Engines, func(e admission.EngineSpec) bool { return e.Closed }) {
		return nil
	}
	var d admission.Demands
	p.core.decider.(*admission.Core).Demands(&d)
	for i := range min(len(d.Engines), len(t.Engines)) {
		used, was := d.Engines[i].Used, &t.Engines[i]
		if !was.Closed || used == (admission.Amount{}) {
			continue
		}
		open := slices.IndexFunc(t.Engines, func(e admission.EngineSpec) bool { return !e.Closed && e.Name == was.Name })
		if open < 0 {
			continue
		}
		if beside == nil {
			beside = make([]admission.Amount, len(t.Engines))
		}
		for r, v := range used {
			beside[open][r] += v
		}
	}
	return beside
}

// Leased tells a pool of a fleet that its replica's lease was there, for ttl, when sent
// was read.
func (p *Pool) Leased(lease int64, sent time.Time, ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fleet
	f.holder.Leased(lease, admission.Time(sent.Sub(p.cfg.Start)), ttl)
	switch _, until, ok := f.holder.Grant(p.now()); {
	case ok != f.ok, ok && p.now() >= f.until:
		// Also where it ran out for want of news and is in force again: the core has given
		// it up.
		p.shareLocked()
	case ok:
		f.until = until
		p.allLocked(&admission.Event{Kind: admission.Renew, Until: until})
	}
	p.dueLocked()
}

// Unleased tells it that the lease is over before its time.
func (p *Pool) Unleased() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fleet.holder.Lost(p.now())
	p.shareLocked()
	p.dueLocked()
}

// Grant hands it a grant. The error says why it does not count.
func (p *Pool) Grant(g *control.Grant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fleet.holder.Take(p.now(), g); err != nil {
		return err
	}
	p.fleet.taken = p.now()
	p.shareLocked()
	p.dueLocked()
	p.compareLocked(g)
	return nil
}

// Told hands it what the leader says of all replicas, which came at a moment.
func (p *Pool) Told(n *control.News, came time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fleet
	if g, _, _ := f.holder.Grant(p.now()); !f.heard.Take(n, g) {
		return
	}
	f.news, f.came = n, admission.Time(came.Sub(p.cfg.Start))
	p.hearLocked()
	p.tellLocked()
}

// tellLocked tells the core of the others, if there is one and something is known.
func (p *Pool) tellLocked() {
	f := p.fleet
	if f.news == nil || p.core == nil || p.core.shadow != nil {
		return
	}
	f.rows = rowsOf(p.table)
	p.stepLocked(p.core, &admission.Event{Kind: admission.Told, Elsewhere: f.news.Elsewhere(p.table, p.cfg.Replica, f.came)})
}

// rowsOf are a table's open engines, each in its place.
func rowsOf(t *admission.Table) []string {
	rows := make([]string, len(t.Engines))
	for i := range t.Engines {
		if !t.Engines[i].Closed {
			rows[i] = t.Engines[i].Name
		}
	}
	return rows
}

// shareLocked brings the core's table up to the grant.
func (p *Pool) shareLocked() {
	if p.core != nil {
		t := *p.table
		p.applyLocked(&t)
	}
}

// Wants delivers that whoever hands out grants should have a report now.
func (p *Pool) Wants() <-chan struct{} { return p.fleet.wants }

// want asks for a report within a time, so that what comes until then is in one.
func (f *fleet) want(within time.Duration) {
	if within > 0 {
		if f.later.CompareAndSwap(false, true) {
			time.AfterFunc(within, func() {
				f.later.Store(false)
				f.want(0)
			})
		}
		return
	}
	select {
	case f.wants <- struct{}{}:
	default:
	}
}

// Report is what the pool says of itself now, with the grant that is in force, and
// which sample of each engine that goes by. Its number and lease are the caller's. nil:
// no engine is known yet.
func (p *Pool) Report() *control.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fleet
	if p.core == nil || p.core.shadow != nil {
		return nil
	}
	now := p.now()
	if f.beside != nil && !slices.Equal(p.besideLocked(p.table), f.beside) {
		p.shareLocked()
	}
	if f.news != nil && !slices.Equal(rowsOf(p.table), f.rows) {
		p.tellLocked() // of the engines that it has now
	}
	// What is due by the time is done before anything is said.
	p.stepLocked(p.core, &admission.Event{Kind: admission.Tick})
	core := p.core.decider.(*admission.Core)
	f.demands.Samples = f.demands.Samples[:0]
	for i := range p.engines {
		o := &p.engines[i].last
		f.demands.Samples = append(f.demands.Samples, struct{ Asked, Came admission.Time }{
			admission.Time(o.Asked.Sub(p.cfg.Start)), admission.Time(o.At.Sub(p.cfg.Start)),
		})
	}
	core.Demands(&f.demands)
	r := &control.Report{Pool: p.cfg.Name, ID: p.cfg.Replica, Fingerprint: p.live().Fingerprint}
	r.Lease, _ = f.holder.Lease()
	r.Fill(p.table, &f.demands)
	r.At, r.Heard = now, f.heard
	for i := range r.Engines {
		r.Engines[i].Presence = p.presenceLocked(i)
	}
	if g, _, ok := f.holder.Grant(now); ok {
		r.Epoch, r.Rev, r.GrantAge, r.News = g.Epoch, g.Rev, time.Duration(now-f.taken), f.heard.Seq
	}
	for i := range r.Engines {
		if i >= len(f.samples) || f.samples[i] == 0 || p.engines[i].state != admission.Ready {
			continue
		}
		o := &p.engines[i].last
		e := &r.Engines[i]
		e.Gauge = admission.Of(int64(o.Running+max(o.Waiting, 0)), int64(o.KVUsed))
		if o.Running < 0 {
			e.Gauge[admission.Slots] = -1
		}
		if e.Others = e.Gauge; e.Others[admission.Slots] > 0 {
			e.Others[admission.Slots] = max(0, e.Others[admission.Slots]-f.demands.Engines[i].Steady)
		}
		e.GaugeSeq, e.GaugeAge = f.samples[i], time.Since(o.Asked)
	}
	r.Residual = f.holder.Residual(r.Residual)
	r.Fold()
	return r
}

// sampled counts a sample of an engine.
func (f *fleet) sampled(i int) {
	for len(f.samples) <= i {
		f.samples = append(f.samples, 0)
	}
	f.samples[i]++
}

// errNoGrant is why a pool of a fleet admits nothing.
var errNoGrant = errors.New("no grant of the fleet's capacity is in force")

// grantedLocked tells why nothing is granted, nil if something is.
func (p *Pool) grantedLocked() error {
	if p.fleet == nil || p.core != nil && p.core.shadow != nil {
		return nil
	}
	g, _, ok := p.fleet.holder.Grant(p.now())
	if ok || g.Survives() {
		return nil
	}
	lease, until := p.fleet.holder.Lease()
	switch {
	case lease == 0:
		return fmt.Errorf("%w: the store has given no lease", errNoGrant)
	case p.now() >= until:
		return fmt.Errorf("%w: the lease could not be renewed for %s", errNoGrant, time.Duration(p.now()-until).Round(time.Millisecond))
	case g == nil:
		return fmt.Errorf("%w: no leader has written any yet", errNoGrant)
	}
	return fmt.Errorf("%w: no leader has written any since the lease was renewed", errNoGrant)
}

// remarksLocked says what is to be known of the grant in force: nothing of another pool.
func (p *Pool) remarksLocked() (all []string) {
	if p.fleet == nil {
		return nil
	}
	g, _, ok := p.fleet.holder.Grant(p.now())
	if own := p.live().Fingerprint; ok && p.differsFrom(g) {
		all = append(all, fmt.Sprintf("pool %s: the fleet's leader has another configuration of it: its fingerprint is %s, this replica's %s", p.cfg.Name, g.Fingerprint, own))
	}
	if ok && !slices.ContainsFunc(g.Accounts, func(a control.Account) bool { return a.Engine != "" && a.Amount[admission.Slots] > 0 }) {
		all = append(all, fmt.Sprintf("pool %s: the grant gives 0 slots: what comes waits until other replicas give some", p.cfg.Name))
	}
	return all
}

func (p *Pool) differsFrom(g *control.Grant) bool {
	own := p.live().Fingerprint
	return own != "" && g.Fingerprint != "" && own != g.Fingerprint
}

// compareLocked logs that the configuration is another than the leader's, and that it is
// not any more.
func (p *Pool) compareLocked(g *control.Grant) {
	f, differs := p.fleet, p.differsFrom(g)
	switch {
	case differs && !f.differs:
		p.cfg.Log.Warn("the fleet's leader has another configuration of the pool", "pool", p.cfg.Name, "fingerprint", p.live().Fingerprint, "leader", g.Fingerprint)
	case !differs && f.differs:
		p.cfg.Log.Info("the fleet's leader has the same configuration of the pool", "pool", p.cfg.Name, "fingerprint", g.Fingerprint)
	}
	f.differs = differs
}

// Held is what a pool of a fleet has at a moment.
type Held struct {
	Lease int64 // 0: none
	// Until is when what is granted ends, if nothing is heard until then.
	Until time.Time
	// Grant is the last that counted, nil before the first, and Taken when; InForce tells
	// whether it is what the pool goes by, or only what survives of it.
	Grant   *control.Grant
	Taken   time.Time
	InForce bool
}

// Held returns it; ok is false of a pool that has its engines to itself.
func (p *Pool) Held() (h Held, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fleet
	if f == nil {
		return h, false
	}
	at := func(t admission.Time) time.Time { return p.cfg.Start.Add(time.Duration(t)) }
	var until admission.Time
	if h.Lease, until = f.holder.Lease(); h.Lease != 0 {
		h.Until = at(until)
	}
	if h.Grant, _, h.InForce = f.holder.Grant(p.now()); h.Grant != nil {
		h.Taken = at(f.taken)
	}
	return h, true
}
