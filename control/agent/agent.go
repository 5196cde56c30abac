// Package agent is the shells around the control plane's state machines: an Agent
// ties a replica's pools to the store, a Leader runs the allocators while it leads.
// Neither decides anything.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"headgate/control"
	"headgate/control/store"
)

// Pool is a replica's side of a pool, as relay.Pool is one.
type Pool interface {
	Name() string
	Leased(lease int64, sent time.Time, ttl time.Duration)
	Unleased()
	Grant(*control.Grant) error
	// Told is what the leader says of all replicas, which came at a moment.
	Told(news *control.News, came time.Time)
	Report() *control.Report
	Wants() <-chan struct{}
}

// Config of an Agent.
type Config struct {
	Store  store.Store
	Member control.Member // without its lease
	Pools  []Pool
	TTL    time.Duration // of the lease
	// Every is how often a report is written though nothing has changed, Settle how
	// long changes that nobody waits for are collected.
	Every, Settle time.Duration
	// Timeout bounds one write.
	Timeout time.Duration
	Log     *slog.Logger
	Metrics *Metrics // nil: none
}

// Agent is one replica's.
type Agent struct {
	cfg Config

	mu    sync.Mutex
	pools map[string]*member
	// held is the last grant of each pool, heard the last news; of those too that are not
	// here yet.
	held  map[string]*control.Grant
	heard map[string]heard
	life  *life // nil: without a lease
}

// heard are news, and when they came.
type heard struct {
	news *control.News
	came time.Time
}

// life is what a lease's tasks share.
type life struct {
	ctx   context.Context
	lease int64
	last  store.Renewal // zero before the first
	tasks sync.WaitGroup
}

// member is a pool of the agent.
type member struct {
	Pool
	acks chan struct{} // a grant has been taken
	gone chan struct{} // closed when the pool is removed
	last *control.Report
	sent time.Time
	seq  uint64
	took bool // the grant that is held was taken; the agent's mu
	// echo: a sample taken since the last grant is wanted.
	mu   sync.Mutex
	echo bool
}

// New makes an agent. Run ties it to the store.
func New(cfg Config) *Agent {
	a := &Agent{cfg: cfg, pools: map[string]*member{}, held: map[string]*control.Grant{}, heard: map[string]heard{}}
	for _, p := range cfg.Pools {
		a.Add(p)
	}
	return a
}

// Add a pool, under the lease that there is. A name may be added once.
func (a *Agent) Add(p Pool) {
	m := &member{Pool: p, acks: make(chan struct{}, 1), gone: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pools[p.Name()] = m
	if h := a.heard[p.Name()]; h.news != nil {
		m.Told(h.news, h.came)
	}
	if l := a.life; l != nil && l.last != (store.Renewal{}) {
		a.beginLocked(l, m)
		if g := a.held[p.Name()]; g != nil {
			a.takeLocked(m, g)
		}
	}
}

// Remove a pool, of which nothing runs any more.
func (a *Agent) Remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.pools[name]; m != nil {
		close(m.gone)
		m.Unleased()
		delete(a.pools, name)
	}
}

// Run joins the fleet, and joins it again when the lease is lost, until ctx is over.
// Then the lease is given back; what still runs is the pools' business.
func (a *Agent) Run(ctx context.Context) {
	for wait := time.Duration(0); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := time.Now()
		err := a.live(ctx)
		if ctx.Err() != nil {
			return
		}
		a.cfg.Metrics.lost()
		a.cfg.Log.Warn("the fleet's store has no lease for this replica", "replica", a.cfg.Member.Replica, "err", err)
		if wait = min(2*wait+retry, a.cfg.TTL/2); time.Since(began) > a.cfg.TTL {
			wait = retry
		}
	}
}

// retry is the first pause between tries.
const retry = 100 * time.Millisecond

// errLost is that the lease is over.
var errLost = errors.New("the lease was lost")

// live is one lease's life.
func (a *Agent) live(ctx context.Context) error {
	s, err := a.cfg.Store.Join(ctx, a.cfg.Member, a.cfg.TTL)
	a.cfg.Metrics.Store("join", err)
	if err != nil {
		return err
	}
	a.cfg.Log.Info("joined the fleet", "replica", a.cfg.Member.Replica, "lease", s.Lease())
	inner, stop := context.WithCancel(ctx)
	l := &life{ctx: inner, lease: s.Lease()}
	a.mu.Lock()
	a.life = l
	a.mu.Unlock()
	defer func() {
		stop()
		a.mu.Lock()
		a.life = nil
		a.mu.Unlock()
		if ctx.Err() != nil {
			a.leaving(context.WithoutCancel(ctx), l)
		}
		a.mu.Lock()
		for _, m := range a.pools {
			m.Unleased()
		}
		a.mu.Unlock()
		l.tasks.Wait()
		out, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Timeout)
		defer cancel()
		err := s.Leave(out)
		if ctx.Err() == nil {
			return // it was lost
		}
		if a.cfg.Metrics.Store("leave", err); err != nil {
			a.cfg.Log.Warn("the lease was not given back, and ends by itself", "err", err)
		}
	}()
	grants := a.cfg.Store.Grants(inner, a.cfg.Member.ID)
	l.tasks.Go(func() {
		for g := range grants {
			a.take(g)
		}
	})
	news := a.cfg.Store.News(inner)
	l.tasks.Go(func() {
		for n := range news {
			a.hear(n)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r, ok := <-s.Renewed():
			if !ok {
				return errLost
			}
			a.renew(l, r)
		}
	}
}

// leaving says of all pools that the lease is about to be given back.
func (a *Agent) leaving(ctx context.Context, l *life) {
	l.tasks.Wait() // nobody else writes
	a.mu.Lock()
	pools := slices.Collect(maps.Values(a.pools))
	a.mu.Unlock()
	for _, m := range pools {
		if r := m.Report(); r != nil && r.Lease == l.lease {
			r.Leaving = true
			if !a.write(ctx, m, r) {
				return // it is not for this that somebody waits
			}
		}
	}
}

// renew tells all pools that the lease is there.
func (a *Agent) renew(l *life, r store.Renewal) {
	a.cfg.Metrics.renewed(r.Sent.Add(r.TTL))
	a.mu.Lock()
	defer a.mu.Unlock()
	first := l.last == (store.Renewal{})
	l.last = r
	for _, m := range a.pools {
		if first {
			a.beginLocked(l, m)
		} else {
			m.Leased(l.lease, r.Sent, r.TTL)
		}
		if g := a.held[m.Name()]; g != nil && !m.took {
			// It came before the lease was known, or while it seemed to be over.
			a.takeLocked(m, g)
		}
	}
}

// beginLocked begins a pool's part in a lease.
func (a *Agent) beginLocked(l *life, m *member) {
	m.Leased(l.lease, l.last.Sent, l.last.TTL)
	l.tasks.Go(func() { a.tell(l, m) })
}

// take hands a grant to its pool.
func (a *Agent) take(g *control.Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[g.Pool] = g
	if m := a.pools[g.Pool]; m != nil {
		m.took = false
		a.takeLocked(m, g)
	}
}

func (a *Agent) takeLocked(m *member, g *control.Grant) {
	if err := m.Grant(g); err != nil {
		a.cfg.Metrics.refused(g.Pool)
		a.cfg.Log.Debug("a grant does not count", "pool", g.Pool, "err", err)
		return
	}
	m.took = true
	a.cfg.Metrics.took(g)
	m.mu.Lock()
	m.echo = g.Echo
	m.mu.Unlock()
	select {
	case m.acks <- struct{}{}:
	default:
	}
}

// hear hands news to their pool.
func (a *Agent) hear(n *control.News) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := heard{n, time.Now()}
	a.heard[n.Pool] = h
	if m := a.pools[n.Pool]; m != nil {
		a.cfg.Metrics.heard(n)
		m.Told(h.news, h.came)
	}
}

// tell writes a pool's reports: at once when the pool says that somebody waits for it
// or a grant was taken, soon when something has changed, and now and then in any case.
func (a *Agent) tell(l *life, m *member) {
	look := time.NewTicker(a.cfg.Settle)
	defer look.Stop()
	force := true
	for {
		r := m.Report()
		switch {
		case r == nil || r.Lease != l.lease:
		case force || time.Since(m.sent) >= a.cfg.Every || m.changed(r):
			if a.write(l.ctx, m, r) {
				m.last, m.sent, force = r, time.Now(), false
			}
		}
		select {
		case <-l.ctx.Done():
			return
		case <-m.gone:
			return
		case <-m.acks:
			force = true
		case <-m.Wants():
			force = true
		case <-look.C:
		}
	}
}

// changed tells whether a report says something new: more than that time has passed.
func (m *member) changed(r *control.Report) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		return true
	}
	if m.echo {
		fresh := true
		for i := range r.Engines {
			fresh = fresh && (r.Engines[i].GaugeSeq == 0 || r.Engines[i].GaugeAge < r.GrantAge)
		}
		if fresh {
			m.echo = false
			return true
		}
	}
	if len(r.Engines) != len(m.last.Engines) || len(r.Classes) != len(m.last.Classes) || r.Rev != m.last.Rev || r.Epoch != m.last.Epoch || r.Residual != m.last.Residual || r.Fingerprint != m.last.Fingerprint {
		return true
	}
	for i := range r.Engines {
		x, y := &r.Engines[i], &m.last.Engines[i]
		if x.Engine != y.Engine || x.Total != y.Total || x.Used != y.Used || x.Down != y.Down {
			return true
		}
	}
	for k := range r.Classes {
		if !reflect.DeepEqual(r.Classes[k].Still(), m.last.Classes[k].Still()) {
			return true
		}
	}
	return false
}

// write writes one report and tells whether it is there.
func (a *Agent) write(ctx context.Context, m *member, r *control.Report) bool {
	m.seq++
	r.Seq = m.seq
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	err := a.cfg.Store.Report(ctx, r)
	a.cfg.Metrics.Store("report", err)
	if err != nil && !errors.Is(err, context.Canceled) {
		a.cfg.Log.Debug("a report was not written", "pool", r.Pool, "err", err)
	}
	return err == nil
}
