package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"headgate/admission"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/store"
)

// one is a replica with its agent, and a leader, over one store.
type one struct {
	mem    *store.Memory
	agent  *agent.Agent
	leader *agent.Leader
	reg    *prometheus.Registry
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func startOne(t *testing.T, pools []control.Pool, sized func(string, map[string]control.Amount) (*control.Pool, error), of ...agent.Pool) *one {
	ctx, stop := context.WithCancel(context.Background())
	o := &one{mem: store.NewMemory(), reg: prometheus.NewRegistry()}
	metrics := agent.NewMetrics(o.reg)
	o.agent = agent.New(agent.Config{
		Store: o.mem, Member: control.Member{ID: control.ID{Replica: "a", Boot: "1"}}, Pools: of, TTL: ttl, Every: time.Second,
		Settle: 50 * time.Millisecond, Timeout: time.Second, Log: quiet(), Metrics: metrics,
	})
	o.leader = agent.NewLeader(agent.LeaderConfig{
		Store: o.mem, Who: "leader", TTL: ttl, Timeout: time.Second, Log: quiet(), Pools: pools, Sized: sized, Metrics: metrics,
	})
	var tasks sync.WaitGroup
	tasks.Go(func() { o.agent.Run(ctx) })
	tasks.Go(func() { o.leader.Run(ctx) })
	t.Cleanup(func() {
		stop()
		tasks.Wait()
	})
	return o
}

func (o *one) state(t *testing.T) *store.State {
	t.Helper()
	s, err := o.mem.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ruledPool(floor int64) control.Pool {
	return control.Pool{
		Name: "main", Replicas: 4, Engines: []control.Engine{{Name: "e", Total: admission.Of(slots, kv)}},
		Classes: []control.Class{{Name: "interactive", Floor: admission.Of(floor, 1000*floor)}, {Name: "batch"}},
	}
}

// floor is what the last grant of the only replica protects in the pool.
func (o *one) floor(t *testing.T) control.Amount {
	t.Helper()
	for _, g := range o.state(t).Grants {
		if g.Pool == "main" {
			return g.Classes[0].Floor
		}
	}
	t.Fatal("no grant")
	return control.Amount{}
}

// TestChangeInATerm: floors change while everything that is leased goes on, in the same
// term; a pool that comes begins another, in which the lease goes on too.
func TestChangeInATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool("a", time.Now())
		o := startOne(t, []control.Pool{ruledPool(3)}, nil, p)
		time.Sleep(5 * time.Second)
		epoch, lease := o.leader.Epoch(), o.state(t).Members[0].Lease
		if f := o.floor(t); epoch == 0 || f != admission.Of(3, 3000) {
			t.Fatalf("epoch %d, floor %v", epoch, f)
		}
		o.leader.Change([]control.Pool{ruledPool(2)})
		time.Sleep(5 * time.Second)
		if f, now := o.floor(t), o.leader.Epoch(); f != admission.Of(2, 2000) || now != epoch {
			t.Errorf("floor %v in epoch %d, which was %d", f, now, epoch)
		}
		other := ruledPool(1)
		other.Name = "other"
		o.leader.Change([]control.Pool{ruledPool(1), other})
		time.Sleep(5 * time.Second)
		if f, now := o.floor(t), o.leader.Epoch(); f != admission.Of(1, 1000) || now <= epoch {
			t.Errorf("floor %v in epoch %d, which was %d", f, now, epoch)
		}
		if now := o.state(t).Members[0].Lease; now != lease {
			t.Errorf("the lease was %x and is %x", lease, now)
		}
	})
}

// TestSizesAreFound: what an engine holds, and with it a floor that is a share of it, is
// what replicas say, also when the engine comes back as another, and after the replica did.
func TestSizesAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool("a", time.Now())
		refuse := false
		sized := func(_ string, found map[string]control.Amount) (*control.Pool, error) {
			if refuse {
				return nil, errors.New("it does not fit")
			}
			s := ruledPool(0)
			s.Engines[0].Total = found["e"]
			s.Classes[0].Floor = admission.Of(found["e"][0]/2, found["e"][1]/2)
			return &s, nil
		}
		unknown := ruledPool(0)
		unknown.Engines[0].Total = control.Amount{}
		o := startOne(t, []control.Pool{unknown}, sized, p)
		time.Sleep(5 * time.Second)
		if f := o.floor(t); f != admission.Of(slots/2, kv/2) {
			t.Errorf("floor %v of %d slots", f, slots)
		}
		resize := func(n int64) {
			p.mu.Lock()
			p.base.Engines[0].Slots, p.base.Engines[0].KV = n, 1000*n
			for k := range p.base.Classes {
				p.base.Classes[k].Floor, p.base.Classes[k].Ceiling = control.Amount{}, admission.Of(n, 1000*n)
			}
			p.mu.Unlock()
			time.Sleep(5 * time.Second)
		}
		resize(2)
		if f := o.floor(t); f != admission.Of(1, 1000) {
			t.Errorf("floor %v of 2 slots", f)
		}
		refuse = true
		resize(8)
		if f := o.floor(t); f != admission.Of(1, 1000) {
			t.Errorf("floor %v though the configuration was refused", f)
		}
		refuse = false
		// What is changed is made by what was found.
		o.leader.Change([]control.Pool{unknown})
		time.Sleep(5 * time.Second)
		if f := o.floor(t); f != admission.Of(4, 4000) {
			t.Errorf("floor %v of 8 slots", f)
		}
		o.mem.Cut()
		resize(8)
		o.mem.Heal()
		resize(2)
		if f := o.floor(t); f != admission.Of(1, 1000) {
			t.Errorf("floor %v of 2 slots, after the lease was lost", f)
		}
	})
}

// TestAddAndRemove: a pool that comes while there is a lease has it at once, and the grant
// that was written before it came; one that is removed says nothing more.
func TestAddAndRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := startOne(t, []control.Pool{ruledPool(3)}, nil)
		time.Sleep(5 * time.Second)
		if s := o.state(t); len(s.Members) != 1 || len(s.Reports) != 0 {
			t.Fatalf("%+v", s)
		}
		p := newPool("a", time.Now())
		o.agent.Add(p)
		time.Sleep(time.Second)
		p.offer(0)
		time.Sleep(time.Second)
		if n := p.running(0); n != 1 {
			t.Errorf("%d run", n)
		}
		o.agent.Remove("main")
		seq := o.state(t).Reports[0].Seq
		p.offer(0)
		time.Sleep(5 * time.Second)
		if n, now := p.running(0), o.state(t).Reports[0].Seq; n != 1 || now != seq {
			t.Errorf("%d run, report %d after %d", n, now, seq)
		}
	})
}

// TestPublished: what people are told has the stages of handoffs with their time, and
// nobody who does not lead forgets a replica.
func TestPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := start(t, ctx, "a", "b")
		defer stop()
		time.Sleep(5 * time.Second)
		for range 6 {
			f.pools[1].offer(1)
		}
		time.Sleep(time.Second)
		f.pools[0].offer(0)
		time.Sleep(3 * time.Second)
		s, err := f.mem.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var p agent.Published
		if err := json.Unmarshal(s.Status["main"], &p); err != nil || p.Pool != "main" || len(p.Replicas) != 2 {
			t.Fatalf("%v: %s", err, s.Status["main"])
		}
		told := ""
		for _, h := range p.Handoffs {
			if h.To == "a" && h.Class == "interactive" {
				told += fmt.Sprintf("%s after %s; ", h.Stage, h.Since)
			}
			if h.Epoch != p.Epoch || time.Since(h.Time) > 10*time.Second || h.Time.IsZero() {
				t.Errorf("%+v in epoch %d", h, p.Epoch)
			}
		}
		if want := "committed after 10ms; drained after 10ms; applied after 0s; prepared after 0s; "; told != want {
			t.Errorf("%s, not %s", told, want)
		}
	})
}

// brittle is a store that does nothing.
type brittle struct {
	*store.Memory
	err error
}

func (b *brittle) Join(context.Context, control.Member, time.Duration) (store.Session, error) {
	return nil, b.err
}

// TestStoreHealth: what the store does not do is counted by operation, and what a fence
// stopped is no fault of the store.
func TestStoreHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := agent.NewMetrics(reg)
		a := agent.New(agent.Config{Store: &brittle{store.NewMemory(), errors.New("out of reach")}, TTL: ttl, Timeout: time.Second, Log: quiet(), Metrics: m})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		time.Sleep(50 * time.Millisecond)
		stop()
		<-done
		m.Store("write", fmt.Errorf("no: %w", store.ErrFenced))
		m.Store("write", context.Canceled)
		for name, want := range map[string]float64{
			"headgate_fleet_store_errors_total": 1, "headgate_fleet_fenced_writes_total": 1, "headgate_fleet_leases_lost_total": 1,
			"headgate_fleet_store_answered_timestamp_seconds": float64(time.Now().Unix()),
		} {
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for _, f := range families {
				if f.GetName() == name {
					for _, v := range f.GetMetric() {
						sum += v.GetCounter().GetValue() + v.GetGauge().GetValue()
					}
				}
			}
			if sum < want || sum > want+1 {
				t.Errorf("%s is %v, not %v", name, sum, want)
			}
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", err, problems)
		}
		l := agent.NewLeader(agent.LeaderConfig{Store: store.NewMemory(), Log: quiet()})
		if l.Forget("a") {
			t.Error("one that does not lead forgets")
		}
	})
}
