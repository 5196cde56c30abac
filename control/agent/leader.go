package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"headgate/control"
	"headgate/control/store"
)

// LeaderConfig of a Leader.
type LeaderConfig struct {
	Store store.Store
	// Who is shown as the leader.
	Who string
	// Pools and how their demand is judged. Pools are read when a term begins; Change
	// replaces them in one.
	Pools   []control.Pool
	Judge   control.Config
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
}

// NewLeader makes a leader. Run has it campaign.
func NewLeader(cfg LeaderConfig) *Leader {
	return &Leader{cfg: cfg, change: make(chan []control.Pool, 1), forget: make(chan string, 16)}
}

// Change replaces the pools, in this term and those to come.
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
		if err != nil {
			if ctx.Err() == nil {
				l.cfg.Log.Warn("can't campaign", "err", err)
			}
			continue
		}
		wait = 0
		l.cfg.Metrics.leads(term.Epoch())
		l.cfg.Log.Info("leads the fleet", "epoch", term.Epoch())
		err = l.lead(ctx, term)
		l.cfg.Metrics.leads(0)
		l.cfg.Log.Info("leads no more", "epoch", term.Epoch(), "why", err)
		out, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeout)
		if err := term.Resign(out); err != nil {
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
}

// ruled is a pool in a term.
type ruled struct {
	*control.Allocator
	mu sync.Mutex
	// What is to be written for each life, and whether somebody is at it.
	pending map[control.ID]*write
	status  []byte // that was published, without its number
	number  uint64
	looked  time.Time
	told    time.Time
}

type write struct {
	grant  *control.Grant // nil: remove
	dirty  bool
	active bool
}

var errFenced = errors.New("another leads, or the term is over")

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
		t.pools[p.Name] = &ruled{Allocator: control.NewAllocator(p, ls.Epoch(), l.cfg.Judge), pending: map[control.ID]*write{}}
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
			return errors.New("the configuration has changed")
		case name := <-l.forget:
			t.all(&control.Event{Kind: control.Forget, Member: control.Member{ID: control.ID{Replica: name}}})
		case <-timer.C:
			t.all(&control.Event{Kind: control.Tick})
		}
		timer.Reset(t.next())
		t.publish()
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
				return nil
			}
		}
	}
}

func (t *term) change(c *store.Change) {
	switch {
	case c.Joined != nil:
		t.all(&control.Event{Kind: control.Join, Member: *c.Joined})
	case c.Gone != nil:
		t.all(&control.Event{Kind: control.Gone, Member: *c.Gone})
	case c.Report != nil:
		if p := t.pools[c.Report.Pool]; p != nil {
			t.step(p, &control.Event{Kind: control.Reported, Report: c.Report})
		}
	}
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
		case control.Note:
			h := e.Handoff
			t.leader.cfg.Metrics.handoff(&h)
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
				t.leader.cfg.Metrics.fence()
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

func (t *term) write(p *ruled, id control.ID, g *control.Grant) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.leader.cfg.Timeout)
	defer cancel()
	if g == nil {
		return t.Remove(ctx, p.Pool(), id)
	}
	return t.Write(ctx, g)
}

// publishEvery bounds how often people are told.
const publishEvery = time.Second

// publish writes what people and other replicas may want to know, if that has changed
// or was written long ago.
func (t *term) publish() {
	for name, p := range t.pools {
		now := time.Now()
		if now.Sub(p.looked) < publishEvery {
			continue
		}
		p.looked = now
		s := p.Status()
		b, err := json.Marshal(s)
		again := t.leader.cfg.Repeat > 0 && now.Sub(p.told) >= t.leader.cfg.Repeat
		if err != nil || !again && string(b) == string(p.status) {
			continue
		}
		p.status, p.told = b, now
		p.number++
		s.Published = p.number
		if b, err = json.Marshal(s); err != nil {
			continue
		}
		t.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(t.ctx, t.leader.cfg.Timeout)
			defer cancel()
			if err := t.Publish(ctx, name, b); err != nil && t.ctx.Err() == nil {
				t.leader.cfg.Log.Debug("a status was not written", "pool", name, "err", err)
			}
		})
	}
}

// Forget lets go of what survives of a replica that will not come back, if this
// process leads.
func (l *Leader) Forget(replica string) {
	select {
	case l.forget <- replica:
	default:
	}
}
