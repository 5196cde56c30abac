package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"headgate/control"
	"headgate/control/store"
)

// LeaderConfig of a Leader.
type LeaderConfig struct {
	Store store.Store
	// Who is shown as the leader.
	Who string
	// Pools and how their demand is judged.
	Pools []control.Pool
	Judge control.Config
	// Sized, where there is one, makes a pool anew once replicas have told what its engines
	// hold, by engine. An error leaves the pool as it is.
	Sized   func(pool string, found map[string]control.Amount) (*control.Pool, error)
	TTL     time.Duration // of the term's lease
	Timeout time.Duration // of one write
	// Repeat is after how long a status that has not changed is published again, so that
	// who goes by it knows that it still is so; 0: it is not.
	Repeat time.Duration
	// Noted is called with each stage of a handoff; nil: it is not.
	Noted   func(control.Handoff)
	Log     *slog.Logger
	Metrics *Metrics
}

// Leader campaigns, and hands out grants for as long as it leads.
type Leader struct {
	cfg    LeaderConfig
	change chan []control.Pool
	forget chan string
	epoch  atomic.Uint64 // in which it leads, 0: it does not
}

// NewLeader makes a leader. Run has it campaign.
func NewLeader(cfg LeaderConfig) *Leader {
	return &Leader{cfg: cfg, change: make(chan []control.Pool, 1), forget: make(chan string, 16)}
}

// Epoch is the term in which this process leads, 0 while it does not.
func (l *Leader) Epoch() uint64 { return l.epoch.Load() }

// Change replaces the pools, in this term and those to come. A term goes on unless a
// pool has come or gone, whose grants a leader reads at the beginning of a term.
func (l *Leader) Change(pools []control.Pool) {
	select {
	case <-l.change:
	default:
	}
	l.change <- pools
}

// Run campaigns until ctx is over. Then the term is given back, so that another leads
// at once.
func (l *Leader) Run(ctx context.Context) {
	for wait := time.Duration(0); ctx.Err() == nil; wait = min(2*wait+retry, l.cfg.TTL) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		term, err := l.cfg.Store.Campaign(ctx, l.cfg.Who, l.cfg.TTL)
		l.cfg.Metrics.Store("campaign", err)
		if err != nil {
			if ctx.Err() == nil {
				l.cfg.Log.Warn("can't campaign", "err", err)
			}
			continue
		}
		wait = 0
		l.epoch.Store(term.Epoch())
		l.cfg.Metrics.leads(term.Epoch())
		l.cfg.Log.Info("leads the fleet", "epoch", term.Epoch())
		err = l.lead(ctx, term)
		l.epoch.Store(0)
		l.cfg.Metrics.leads(0)
		l.cfg.Log.Info("leads no more", "epoch", term.Epoch(), "why", err)
		out, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeout)
		err = term.Resign(out)
		if l.cfg.Metrics.Store("resign", err); err != nil {
			l.cfg.Log.Debug("the term was not given back, and ends by itself", "err", err)
		}
		cancel()
	}
}

// term is one in work.
type term struct {
	store.Leadership
	leader *Leader
	ctx    context.Context
	pools  map[string]*ruled
	fx     []control.Effect
	start  time.Time
	fenced chan struct{}
	once   sync.Once
	tasks  sync.WaitGroup
	// Grants of pools that are not configured, and whether one is being removed.
	strays   []*stray
	sweeping atomic.Bool
}

// ruled is a pool in a term.
type ruled struct {
	*control.Allocator
	mu sync.Mutex
	// What is to be written for each life, and whether somebody is at it.
	pending map[control.ID]*write
	// What the replicas are to be told, nil: nothing new; and whether somebody is at it.
	news    *control.News
	telling bool
	// What was published, without its number and time, when that was looked at and when it
	// was written; whether that is still under way or has failed.
	status []byte
	number uint64
	looked time.Time
	told   time.Time
	busy   atomic.Bool
	failed atomic.Bool
	events []Event // the newest last
	found  map[string]map[control.ID]control.Amount
}

// Event is one stage of a handoff, or something else that has happened to a replica.
type Event struct {
	control.Handoff
	Epoch uint64    `json:"epoch"`
	Time  time.Time `json:"time"` // by the leader's clock
}

// Published is what a leader tells people about a pool.
type Published struct {
	control.Status
	Handoffs []Event `json:"handoffs"` // the last stages, the newest first
}

// recentEvents is how many stages of a pool's handoffs are published.
const recentEvents = 64

type write struct {
	grant  *control.Grant // nil: remove
	dirty  bool
	active bool
}

// Why a term is over.
var (
	errFenced  = errors.New("another leads, or the term is over")
	errChanged = errors.New("pools have come or gone")
)

// lead does the work of one term and returns why it is over.
func (l *Leader) lead(ctx context.Context, ls store.Leadership) error {
	ctx, stop := context.WithCancel(ctx)
	t := &term{Leadership: ls, leader: l, ctx: ctx, pools: map[string]*ruled{}, start: time.Now(), fenced: make(chan struct{})}
	defer t.tasks.Wait()
	defer stop()
	select {
	case pools := <-l.change:
		l.cfg.Pools = pools
	default:
	}
	for i := range l.cfg.Pools {
		p := &l.cfg.Pools[i]
		t.pools[p.Name] = &ruled{
			Allocator: control.NewAllocator(p, ls.Epoch(), l.cfg.Judge), pending: map[control.ID]*write{},
			found: map[string]map[control.ID]control.Amount{},
		}
	}
	changes := ls.Follow(ctx)
	if err := t.begin(ctx, changes); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ls.Lost():
			return errFenced
		case <-t.fenced:
			return errFenced
		case c, ok := <-changes:
			if !ok {
				return errFenced
			}
			t.change(&c)
		case pools := <-l.change:
			l.cfg.Pools = pools
			if !t.reconfigure(pools) {
				return errChanged
			}
		case name := <-l.forget:
			t.strayForgotten(name)
			t.all(&control.Event{Kind: control.Forget, Member: control.Member{ID: control.ID{Replica: name}}})
		case <-timer.C:
			t.all(&control.Event{Kind: control.Tick})
		}
		timer.Reset(t.next())
		t.publish()
		t.sweep()
	}
}

// begin takes over what is in the store: first the grants that count, then who has a
// lease, then what they say.
func (t *term) begin(ctx context.Context, changes <-chan store.Change) error {
	var joined []*control.Member
	var reports []*control.Report
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Lost():
			return errFenced
		case c, ok := <-changes:
			switch {
			case !ok:
				return errFenced
			case c.Grant != nil:
				if p := t.pools[c.Grant.Pool]; p != nil {
					t.step(p, &control.Event{Kind: control.Load, Grant: c.Grant})
				} else {
					t.strayed(c.Grant)
				}
			case c.Joined != nil:
				joined = append(joined, c.Joined)
			case c.Report != nil:
				reports = append(reports, c.Report)
			case c.Synced:
				for _, r := range reports {
					t.change(&store.Change{Report: r})
				}
				for _, m := range joined {
					t.change(&store.Change{Joined: m})
				}
				for _, r := range reports {
					if p := t.pools[r.Pool]; p != nil && !slices.ContainsFunc(joined, func(m *control.Member) bool { return m.ID == r.ID }) && p.lose(r.ID) {
						t.resize(p)
					}
				}
				return nil
			}
		}
	}
}

func (t *term) change(c *store.Change) {
	switch {
	case c.Joined != nil:
		t.strayJoined(c.Joined)
		t.all(&control.Event{Kind: control.Join, Member: *c.Joined})
	case c.Gone != nil:
		t.strayGone(c.Gone)
		t.all(&control.Event{Kind: control.Gone, Member: *c.Gone})
		for _, p := range t.pools {
			if p.lose(c.Gone.ID) {
				t.resize(p)
			}
		}
	case c.Report != nil:
		if p := t.pools[c.Report.Pool]; p != nil {
			if p.find(c.Report) {
				t.resize(p)
			}
			t.step(p, &control.Event{Kind: control.Reported, Report: c.Report})
		}
	}
}

// reconfigure brings pools up to what they now are, and tells whether they are the same
// ones.
func (t *term) reconfigure(pools []control.Pool) bool {
	if len(pools) != len(t.pools) {
		return false
	}
	for i := range pools {
		if t.pools[pools[i].Name] == nil {
			return false
		}
	}
	for i := range pools {
		p := t.pools[pools[i].Name]
		if t.leader.cfg.Sized == nil || len(p.found) == 0 {
			t.step(p, &control.Event{Kind: control.Configure, Pool: &pools[i]})
		} else {
			t.resize(p)
		}
	}
	return true
}

// find notes what a replica says that engines hold, and tells whether that is new.
func (p *ruled) find(r *control.Report) bool {
	before := p.totals()
	for i := range r.Engines {
		e := &r.Engines[i]
		if e.Total == (control.Amount{}) {
			continue
		}
		if p.found[e.Engine] == nil {
			p.found[e.Engine] = map[control.ID]control.Amount{}
		}
		p.found[e.Engine][r.ID] = e.Total
		delete(p.found[e.Engine], nobody)
	}
	return !maps.Equal(before, p.totals())
}

// nobody has said last what an engine holds of which nobody who is there says it.
var nobody control.ID

// lose forgets what a replica has said, but for what nobody else says, and tells
// whether that changes something.
func (p *ruled) lose(id control.ID) bool {
	before := p.totals()
	for _, by := range p.found {
		t, said := by[id]
		if delete(by, id); said && len(by) == 0 {
			by[nobody] = t
		}
	}
	return !maps.Equal(before, p.totals())
}

// totals is what each engine holds. Where replicas differ, one of them has not seen yet
// that the engine has become another: the least counts.
func (p *ruled) totals() map[string]control.Amount {
	all := map[string]control.Amount{}
	for engine, by := range p.found {
		for _, t := range by {
			if had, ok := all[engine]; ok {
				t = control.Amount{min(t[0], had[0]), min(t[1], had[1])}
			}
			all[engine] = t
		}
	}
	return all
}

// resize makes a pool of what its engines have turned out to hold.
func (t *term) resize(p *ruled) {
	if t.leader.cfg.Sized == nil {
		return
	}
	pool, err := t.leader.cfg.Sized(p.Pool(), p.totals())
	if err != nil {
		t.leader.cfg.Log.Error("the pool stays as it was for the fleet", "pool", p.Pool(), "err", err)
		return
	}
	t.step(p, &control.Event{Kind: control.Configure, Pool: pool})
}

func (t *term) all(ev *control.Event) {
	for _, p := range t.pools {
		t.step(p, ev)
	}
}

func (t *term) now() control.Time { return control.Time(time.Since(t.start)) + 1 }

func (t *term) next() time.Duration {
	next := time.Second
	for _, p := range t.pools {
		if at, ok := p.Next(); ok {
			next = min(next, time.Duration(at-t.now()))
		}
	}
	return max(next, time.Millisecond)
}

// step gives an event to a pool's allocator and sees to what it wants done.
func (t *term) step(p *ruled, ev *control.Event) {
	t.fx = p.Step(t.now(), ev, t.fx[:0])
	for i := range t.fx {
		switch e := &t.fx[i]; e.Op {
		case control.Write:
			t.put(p, e.Grant.ID, e.Grant)
		case control.Remove:
			t.put(p, e.ID, nil)
		case control.Tell:
			t.tell(p, e.News)
		case control.Note:
			h := e.Handoff
			switch {
			case h.Stage.OfHandoff():
				t.leader.cfg.Metrics.handoff(&h)
			case h.Stage == control.Differs:
				t.leader.cfg.Log.Warn("a replica has another configuration of the pool", "pool", h.Pool, "replica", h.To, "why", h.Why)
			default:
				t.leader.cfg.Log.Info("of a replica", "stage", string(h.Stage), "pool", h.Pool, "replica", h.To)
			}
			if len(p.events) == recentEvents {
				p.events = append(p.events[:0], p.events[1:]...)
			}
			p.events = append(p.events, Event{h, t.Epoch(), time.Now().UTC()})
			if t.leader.cfg.Noted != nil {
				t.leader.cfg.Noted(h)
			}
		}
	}
}

// put has what is to be in the store for a life written, by one goroutine for each, that
// repeats it until it is there. What is newer replaces what is waiting.
func (t *term) put(p *ruled, id control.ID, g *control.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.pending[id]
	if w == nil {
		w = &write{}
		p.pending[id] = w
	}
	w.grant, w.dirty = g, true
	if !w.active {
		w.active = true
		t.tasks.Go(func() { t.writer(p, id, w) })
	}
}

func (t *term) writer(p *ruled, id control.ID, w *write) {
	for {
		p.mu.Lock()
		if !w.dirty {
			w.active = false
			if w.grant == nil {
				delete(p.pending, id)
			}
			p.mu.Unlock()
			return
		}
		g := w.grant
		w.dirty = false
		p.mu.Unlock()
		for wait := retry; ; wait = min(2*wait, time.Second) {
			err := t.write(p, id, g)
			if err == nil {
				break
			}
			if errors.Is(err, store.ErrFenced) {
				t.once.Do(func() { close(t.fenced) })
				return
			}
			t.leader.cfg.Log.Warn("a grant was not written", "replica", id.Replica, "err", err)
			select {
			case <-t.ctx.Done():
				return
			case <-time.After(wait):
			}
			p.mu.Lock()
			if w.dirty {
				g, w.dirty = w.grant, false
			}
			p.mu.Unlock()
		}
	}
}

// tell has the replicas told, one write after the other: while one is under way what is
// newer replaces what waits.
func (t *term) tell(p *ruled, n *control.News) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.news = n
	if !p.telling {
		p.telling = true
		t.tasks.Go(func() { t.teller(p) })
	}
}

// teller repeats what is to be told until it is in the store: replicas go by what they
// were told last.
func (t *term) teller(p *ruled) {
	for wait := retry; ; {
		p.mu.Lock()
		n := p.news
		p.telling = n != nil
		p.mu.Unlock()
		if n == nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.ctx, t.leader.cfg.Timeout)
		err := t.Tell(ctx, n)
		cancel()
		t.leader.cfg.Metrics.Store("tell", err)
		switch {
		case err == nil:
			p.mu.Lock()
			if p.news == n {
				p.news = nil
			}
			p.mu.Unlock()
			wait = retry
			continue
		case errors.Is(err, store.ErrFenced):
			t.once.Do(func() { close(t.fenced) })
			return
		}
		t.leader.cfg.Log.Debug("the replicas were not told of each other", "pool", n.Pool, "err", err)
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, time.Second)
	}
}

func (t *term) write(p *ruled, id control.ID, g *control.Grant) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.leader.cfg.Timeout)
	defer cancel()
	if g == nil {
		err := t.Remove(ctx, p.Pool(), id)
		t.leader.cfg.Metrics.Store("remove", err)
		return err
	}
	err := t.Write(ctx, g)
	t.leader.cfg.Metrics.Store("write", err)
	return err
}

// publishEvery bounds how often people are told.
const publishEvery = time.Second

// publish writes what people and other replicas may want to know, if that has changed
// or was written long ago.
func (t *term) publish() {
	for name, p := range t.pools {
		now := time.Now()
		if now.Sub(p.looked) < publishEvery || p.busy.Load() {
			continue
		}
		p.looked = now
		v := Published{Status: *p.Status(), Handoffs: []Event{}}
		for _, e := range slices.Backward(p.events) {
			v.Handoffs = append(v.Handoffs, e)
		}
		b, err := json.Marshal(v)
		again := p.failed.Load() || t.leader.cfg.Repeat > 0 && now.Sub(p.told) >= t.leader.cfg.Repeat
		if err != nil || !again && string(b) == string(p.status) {
			continue
		}
		p.status, p.told = b, now
		p.number++
		v.Status.Published = p.number
		if b, err = json.Marshal(v); err != nil {
			continue
		}
		p.busy.Store(true)
		t.tasks.Go(func() {
			defer p.busy.Store(false)
			ctx, cancel := context.WithTimeout(t.ctx, t.leader.cfg.Timeout)
			defer cancel()
			err := t.Publish(ctx, name, b)
			t.leader.cfg.Metrics.Store("publish", err)
			if p.failed.Store(err != nil); err != nil && t.ctx.Err() == nil {
				t.leader.cfg.Log.Debug("a status was not written", "pool", name, "err", err)
			}
		})
	}
}

// Forget lets go of what survives of a replica that will not come back. It tells
// whether this process leads, and so could.
func (l *Leader) Forget(replica string) bool {
	if l.Epoch() == 0 {
		return false
	}
	select {
	case l.forget <- replica:
		return true
	default:
		return false
	}
}
