package agent_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/etcd"
	"headgate/control/etcd/etcdtest"
	"headgate/control/store"
)

func dial(b testing.TB, c *etcdtest.Cluster) store.Store {
	var cfg etcd.Config
	cfg.SetDefaults()
	cfg.Endpoints = c.Endpoints()
	s, err := etcd.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func lead(ctx context.Context, s store.Store, replicas int, envelope admission.Amount, tasks *sync.WaitGroup) {
	l := agent.NewLeader(agent.LeaderConfig{
		Store: s, Who: "leader", TTL: 6 * time.Second, Timeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Pools: []control.Pool{{
			Name: "main", Replicas: replicas, Engines: []control.Engine{{Name: "e", Total: envelope}},
			Classes: []control.Class{{Name: "interactive", Floor: admission.Of(3, 3000)}, {Name: "batch"}},
		}},
	})
	tasks.Go(func() { l.Run(ctx) })
}

func join(ctx context.Context, s store.Store, p *pool, tasks *sync.WaitGroup) {
	a := agent.New(agent.Config{
		Store: s, Member: control.Member{ID: p.id}, Pools: []agent.Pool{p}, TTL: 6 * time.Second, Every: 5 * time.Second, Settle: 250 * time.Millisecond,
		Timeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	tasks.Go(func() { a.Run(ctx) })
}

// until waits for what another goroutine brings about.
func until(b testing.TB, ok func() bool) {
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			b.Fatal("it does not happen")
		}
	}
}

// BenchmarkRecall is a recall that crosses a fleet of two by etcd, three members on
// loopback: what the control plane takes of it, without the engine.
func BenchmarkRecall(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			c := etcdtest.Start(b, etcdtest.Options{Members: members})
			ctx, stop := context.WithCancel(b.Context())
			var tasks sync.WaitGroup
			b.Cleanup(func() { stop(); tasks.Wait() })
			x, y := newPool("a", time.Now()), newPool("b", time.Now())
			x.slow, y.slow = time.Hour, time.Hour // what the engine takes is not counted
			lead(ctx, dial(b, c), 2, admission.Of(slots, kv), &tasks)
			join(ctx, dial(b, c), x, &tasks)
			join(ctx, dial(b, c), y, &tasks)
			for range 8 {
				y.offer(1)
			}
			var abort, admit, all []float64
			for b.Loop() {
				until(b, func() bool { return y.running(1) == slots })
				aborts := y.abortsNow()
				began := time.Now()
				x.offer(0)
				until(b, func() bool { return y.abortsNow() > aborts })
				sent := time.Since(began)
				confirmed := time.Now()
				y.endAborted()
				until(b, func() bool { return x.running(0) == 1 })
				back := time.Since(confirmed)
				abort, admit, all = append(abort, ms(sent)), append(admit, ms(back)), append(all, ms(sent+back))
				x.endAll()
			}
			b.ReportMetric(0, "ns/op")
			for _, m := range []struct {
				name string
				v    []float64
			}{{"abort", abort}, {"admit", admit}, {"both", all}} {
				slices.Sort(m.v)
				b.ReportMetric(m.v[len(m.v)/2], "ms-p50-"+m.name)
				b.ReportMetric(m.v[len(m.v)*99/100], "ms-p99-"+m.name)
			}
		})
	}
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

func (p *pool) abortsNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.aborts
}

// endAborted confirms what was reclaimed.
func (p *pool) endAborted() {
	p.mu.Lock()
	holds := p.aborted
	p.aborted = nil
	p.mu.Unlock()
	for _, h := range holds {
		p.end(h, admission.CauseReclaimed)
	}
}

func (p *pool) endAll() { p.endSome(1 << 30) }

// BenchmarkIdleFleet counts what an idle fleet of 100 replicas writes to etcd.
func BenchmarkIdleFleet(b *testing.B) {
	c := etcdtest.Start(b, etcdtest.Options{Members: 3})
	ctx, stop := context.WithCancel(b.Context())
	var tasks sync.WaitGroup
	b.Cleanup(func() { stop(); tasks.Wait() })
	const replicas = 100
	lead(ctx, dial(b, c), replicas, admission.Of(slots*replicas, kv*replicas), &tasks)
	var pools []*pool
	for i := range replicas {
		p := newPool(fmt.Sprintf("r%d", i), time.Now())
		pools = append(pools, p)
		join(ctx, dial(b, c), p, &tasks)
	}
	until(b, func() bool {
		for _, p := range pools {
			if p.granted() == 0 {
				return false
			}
		}
		return true
	})
	client := c.Client(b, "", "")
	rev := func() int64 {
		r, err := client.Get(ctx, "/")
		if err != nil {
			b.Fatal(err)
		}
		return r.Header.Revision
	}
	time.Sleep(15 * time.Second) // until what the joins moved is at rest
	for b.Loop() {
		before, began := rev(), time.Now()
		time.Sleep(30 * time.Second)
		b.ReportMetric(float64(rev()-before)/time.Since(began).Seconds(), "writes/s")
	}
}

func (p *pool) granted() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g, _, ok := p.holder.Grant(p.now()); ok {
		return g.Accounts[0].Amount[admission.Slots]
	}
	return 0
}
