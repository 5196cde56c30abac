package agent_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/store"
)

// pool is a replica's side of a pool: a core, and requests that go on until they are
// ended.
type pool struct {
	id     control.ID
	wants  chan struct{}
	holder *control.Holder
	heard  control.Heard
	news   *control.News        // that came last and counted
	away   *admission.Elsewhere // that the core was told by them
	start  time.Time

	mu    sync.Mutex
	base  *admission.Table
	core  *admission.Core
	next  uint32
	runs  map[admission.Hold]admission.Effect
	timer *time.Timer
	// aborts counts reclaims that were asked for.
	aborts  int
	aborted []admission.Hold
	slow    time.Duration // from a reclaim to its end
}

const (
	slots = 4
	kv    = 4000
)

func table() *admission.Table {
	class := func(name string, floor admission.Amount, mode admission.Mode) admission.ClassSpec {
		return admission.ClassSpec{
			Name: name, Floor: floor, Ceiling: admission.Of(slots, kv), IdleAfter: time.Second, Mode: mode, Depth: 100, DefaultOut: 100,
		}
	}
	return &admission.Table{
		Rev:     1,
		Classes: []admission.ClassSpec{class("interactive", admission.Of(3, 3000), admission.Attrition), class("batch", admission.Amount{}, admission.ReclaimNow)},
		Engines: []admission.EngineSpec{{Name: "e", Slots: slots, KV: kv, Block: 1, Fatal: true}},
	}
}

func newPool(replica string, start time.Time) *pool {
	id := control.ID{Replica: replica, Boot: "1"}
	p := &pool{
		id: id, wants: make(chan struct{}, 1), holder: control.NewHolder("main", id, 0.02), start: start, base: table(),
		runs: map[admission.Hold]admission.Effect{}, slow: 10 * time.Millisecond,
	}
	p.core = admission.New(control.Share(p.base, nil, 0, false), 1<<12)
	p.timer = time.AfterFunc(time.Hour, func() { p.step(&admission.Event{Kind: admission.Tick}) })
	return p
}

func (p *pool) now() admission.Time { return admission.Time(time.Since(p.start)) + 1 }

func (p *pool) step(ev *admission.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepLocked(ev)
}

func (p *pool) stepLocked(ev *admission.Event) {
	for _, e := range p.core.Step(p.now(), ev, nil) {
		switch e.Op {
		case admission.Admit:
			p.runs[e.Hold] = e
		case admission.Reclaim:
			p.aborts++
			hold := e.Hold
			p.aborted = append(p.aborted, hold)
			time.AfterFunc(p.slow, func() { p.end(hold, admission.CauseReclaimed) })
		case admission.Demand:
			select {
			case p.wants <- struct{}{}:
			default:
			}
		}
	}
	if at, ok := p.core.Next(); ok {
		p.timer.Reset(max(time.Duration(at-p.now()), time.Microsecond))
	}
}

func (p *pool) end(h admission.Hold, why admission.Cause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.runs[h]; ok {
		delete(p.runs, h)
		p.stepLocked(&admission.Event{Kind: admission.Ended, Hold: h, Cause: why, Flags: admission.FlagReleased})
	}
}

func (p *pool) offer(class admission.Class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	p.stepLocked(&admission.Event{Kind: admission.Offer, ID: admission.MakeID(1, p.next), Class: class, Prompt: 900, Out: 100})
}

// running counts what a class runs.
func (p *pool) running(class admission.Class) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.runs {
		if e.Class == class {
			n++
		}
	}
	return n
}

func (p *pool) Name() string           { return "main" }
func (p *pool) Wants() <-chan struct{} { return p.wants }

func (p *pool) share() {
	g, until, ok := p.holder.Grant(p.now())
	p.stepLocked(&admission.Event{Kind: admission.Apply, Table: control.Share(p.base, g, until, ok)})
}

func (p *pool) Leased(lease int64, sent time.Time, ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holder.Leased(lease, admission.Time(sent.Sub(p.start))+1, ttl)
	p.share()
}

func (p *pool) Unleased() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holder.Lost(p.now())
	p.share()
}

func (p *pool) Grant(g *control.Grant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.holder.Take(p.now(), g); err != nil {
		return err
	}
	p.share()
	return nil
}

func (p *pool) Told(n *control.News, came time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g, _, _ := p.holder.Grant(p.now()); p.heard.Take(n, g) {
		p.news, p.away = n, n.Elsewhere(p.base, p.id, admission.Time(came.Sub(p.start))+1)
		p.stepLocked(&admission.Event{Kind: admission.Told, Elsewhere: p.away})
	}
}

func (p *pool) elsewhere() *admission.Elsewhere {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.away
}

func (p *pool) Report() *control.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepLocked(&admission.Event{Kind: admission.Tick})
	var d admission.Demands
	p.core.Demands(&d)
	r := &control.Report{Pool: "main", ID: p.id}
	r.Lease, _ = p.holder.Lease()
	r.Fill(p.base, &d)
	if g, _, ok := p.holder.Grant(p.now()); ok {
		r.Epoch, r.Rev, r.News = g.Epoch, g.Rev, p.heard.Seq
	}
	r.Residual = 10 * time.Second
	return r
}

// fleet is replicas over one store.
type fleet struct {
	mem   *store.Memory
	pools []*pool
	links []*store.Memory
	noted []control.Handoff
	mu    sync.Mutex
	begin time.Time
}

const ttl = 3 * time.Second

func start(t *testing.T, ctx context.Context, names ...string) *fleet {
	f := &fleet{mem: store.NewMemory()}
	f.begin = time.Now()
	for _, name := range names {
		f.replica(t, ctx, name)
	}
	leader(t, ctx, f)
	return f
}

// replica adds one, until ctx is over.
func (f *fleet) replica(t *testing.T, ctx context.Context, name string) {
	p, link := newPool(name, f.begin), f.mem.Dial()
	f.pools, f.links = append(f.pools, p), append(f.links, link)
	a := agent.New(agent.Config{
		Store: link, Member: control.Member{ID: p.id}, Pools: []agent.Pool{p}, TTL: ttl, Every: time.Second, Settle: 50 * time.Millisecond, Timeout: time.Second,
		Log: slog.New(slog.DiscardHandler),
	})
	var task sync.WaitGroup
	task.Go(func() { a.Run(ctx) })
	t.Cleanup(task.Wait)
}

// leader leads the fleet until ctx is over.
func leader(t *testing.T, ctx context.Context, f *fleet) *agent.Leader {
	l := agent.NewLeader(agent.LeaderConfig{
		Store: f.mem.Dial(), Who: "leader", TTL: ttl, Timeout: time.Second, Log: slog.New(slog.DiscardHandler), Judge: control.Config{Residual: 5 * time.Second},
		Pools: []control.Pool{{
			Name: "main", Replicas: 4, Engines: []control.Engine{{Name: "e", Total: admission.Of(slots, kv)}},
			Classes: []control.Class{{Name: "interactive", Floor: admission.Of(3, 3000)}, {Name: "batch"}},
		}},
		Noted: func(h control.Handoff) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.noted = append(f.noted, h)
		},
	})
	var task sync.WaitGroup
	task.Go(func() { l.Run(ctx) })
	t.Cleanup(task.Wait)
	return l
}

func (f *fleet) check(t *testing.T, batch, interactive []int) {
	t.Helper()
	var b, i []int
	for _, p := range f.pools {
		b, i = append(b, p.running(1)), append(i, p.running(0))
	}
	if !slices.Equal(b, batch) || !slices.Equal(i, interactive) {
		t.Errorf("batch runs %v, interactive %v; want %v and %v", b, i, batch, interactive)
	}
}

// TestRecallCrossesTheFleet: what one replica lent its batch work of another's guarantee is
// taken back when the other wants it, and nothing more.
func TestRecallCrossesTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := start(t, ctx, "a", "b")
		defer stop()
		time.Sleep(5 * time.Second)
		b, a := f.pools[1], f.pools[0]
		for range 6 {
			b.offer(1)
		}
		time.Sleep(time.Second)
		f.check(t, []int{0, 4}, []int{0, 0})
		a.offer(0)
		// Two messages to the abort, b's engine, two messages back.
		time.Sleep(b.slow + time.Millisecond)
		f.check(t, []int{0, 3}, []int{1, 0})
		if b.aborts != 1 {
			t.Errorf("%d loans were ended for one request", b.aborts)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		var stages []control.Stage
		for _, h := range f.noted {
			if h.To == "a" && h.Class == "interactive" {
				stages = append(stages, h.Stage)
			}
		}
		if want := []control.Stage{control.Prepared, control.Applied, control.Drained, control.Committed}; !slices.Equal(stages, want) {
			t.Errorf("the handoff went through %v, not %v", stages, want)
		}
	})
}

// TestCutReplica: a replica that can't reach the store admits nothing once its lease is
// over, and the others get what it had only when that is sure.
func TestCutReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := start(t, ctx, "a", "b")
		defer stop()
		time.Sleep(5 * time.Second)
		a, b := f.pools[0], f.pools[1]
		for range 4 {
			b.offer(1)
		}
		time.Sleep(time.Second)
		f.links[1].Cut()
		for range 4 {
			a.offer(0)
		}
		time.Sleep(ttl / 2)
		b.offer(1)
		f.check(t, []int{0, 4}, []int{0, 0})
		time.Sleep(ttl)
		// b's lease is over. What it runs goes on and stays reserved; nothing more starts.
		b.endAll()
		b.offer(1)
		time.Sleep(time.Second)
		f.check(t, []int{0, 0}, []int{0, 0})
		time.Sleep(12 * time.Second)
		f.check(t, []int{0, 0}, []int{4, 0})
		f.links[1].Heal()
		// b knows that a had not room enough for its class, which keeps its floor until it is
		// idle; and then that it is.
		a.endSome(2)
		time.Sleep(10 * time.Second)
		f.check(t, []int{0, 1}, []int{2, 0})
		a.endSome(2)
		time.Sleep(2 * time.Second)
		f.check(t, []int{0, 2}, []int{0, 0})
	})
}

// TestReplicasAreToldOfEachOther: what one runs reaches the core of another, whose reports
// say so; one that was cut off goes by nothing of it, and then hears what there is.
func TestReplicasAreToldOfEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := start(t, ctx, "a", "b")
		defer stop()
		time.Sleep(5 * time.Second)
		a, b := f.pools[0], f.pools[1]
		a.offer(0)
		time.Sleep(100 * time.Millisecond)
		if n := b.elsewhere(); n == nil || n.Classes[0].Used != (admission.Of(1, 1000)) {
			t.Fatalf("b was told %+v, want that one request of interactive runs at a", n)
		}
		if r := b.Report(); r.News == 0 || r.News != b.heard.Seq {
			t.Errorf("b's report says that its core was told %d, want %d", r.News, b.heard.Seq)
		}
		f.links[1].Cut()
		time.Sleep(ttl)
		if r := b.Report(); r.News != 0 {
			t.Errorf("b's report says that its core knows of the others by %d, though nobody tells it", r.News)
		}
		f.links[1].Heal()
		a.endAll()
		time.Sleep(2 * ttl)
		if n := b.elsewhere(); n.Classes[0].Used != (admission.Amount{}) {
			t.Errorf("b was told %+v, want that nothing runs at a", n)
		}
	})
}

// endSome finishes so many requests.
func (p *pool) endSome(n int) {
	p.mu.Lock()
	var holds []admission.Hold
	for h := range p.runs {
		if len(holds) < n {
			holds = append(holds, h)
		}
	}
	p.mu.Unlock()
	for _, h := range holds {
		p.end(h, admission.CauseFinished)
	}
}
