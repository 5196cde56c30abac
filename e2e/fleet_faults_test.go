package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/control/etcd/etcdtest"
	"headgate/e2e/headgate"
	"headgate/gateway"
)

const (
	fleetSlots = 6
	fleetTTL   = 2 * time.Second
)

// faulty is a fleet under load whose parts are stopped, killed and cut off.
type faulty struct {
	t      *testing.T
	etcd   *etcdtest.Cluster
	engine *headgate.Engine
	gates  []*gate
	most   float64 // that the engine has held
	over   atomic.Int64
	tasks  sync.WaitGroup
}

// gate is one replica, in whichever life.
type gate struct {
	name string
	link *etcdtest.Link

	mu   sync.Mutex
	g    *headgate.Gateway
	life int

	done    atomic.Int64 // interactive requests that were answered whole
	batches atomic.Int64
	lost    atomic.Int64 // of those that were admitted
}

func (f *faulty) start(g *gate) {
	endpoints, _ := json.Marshal(g.link.Endpoints())
	s := headgate.Start(f.t, fmt.Sprintf(`anonymous: {classes: [interactive, batch], default: interactive, header: true}
control: {store: etcd, endpoints: %s, replica: %s, replicas: 3, ttl: %s, heartbeat: 1s, timeout: 1s}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "%s", slots: %d, observe_every: 50ms}]
    classes:
      - {name: interactive, floor: {slots: 4}, queue: {wait: 60s}}
      - {name: batch, reclaim: reclaim, queue: {wait: 60s}}
`, endpoints, g.name, fleetTTL, f.engine.URL, fleetSlots))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.g = s
	g.life++
}

func (g *gate) now() (s *headgate.Gateway, life int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.g, g.life
}

func (f *faulty) kill(g *gate) {
	g.mu.Lock()
	g.life++
	s := g.g
	g.mu.Unlock()
	s.Kill()
}

// load asks one replica for one answer after the other. What a killed one had is lost, and
// nothing else.
func (f *faulty) load(ctx context.Context, g *gate, class string, tokens int, done *atomic.Int64) {
	f.tasks.Go(func() {
		for ctx.Err() == nil {
			s, life := g.now()
			finished, admitted, err := f.ask(ctx, s.URL, class, tokens)
			switch _, now := g.now(); {
			case ctx.Err() != nil:
			case finished:
				done.Add(1)
			case now != life:
			case admitted:
				g.lost.Add(1)
				f.t.Errorf("replica %s, which lives, lost an answer of class %s: %v", g.name, class, err)
			}
			if err != nil {
				select { // refused, or nobody is there: the next try a little later
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
	})
}

func (f *faulty) ask(ctx context.Context, url, class string, tokens int) (finished, admitted bool, err error) {
	data, _ := json.Marshal(object{"model": f.engine.Model, "messages": user("hello"), "max_tokens": tokens, "stream": true, "ignore_eos": true})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath, bytes.NewReader(data))
	if err != nil {
		return false, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Headgate-Class", class)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		return false, false, fmt.Errorf("%d: %s", res.StatusCode, b)
	}
	b, err := io.ReadAll(res.Body)
	if err == nil && !ends(b) {
		err = fmt.Errorf("the answer ends with %q", b[max(0, len(b)-200):])
	}
	return err == nil, true, err
}

func ends(b []byte) bool {
	const end = "data: [DONE]\n\n"
	return len(b) >= len(end) && string(b[len(b)-len(end):]) == end
}

// overlap is how many tokens the engine makes, at most, while a request that was sent
// together with the abort that makes room for it still waits for that: some steps. What
// was admitted beyond the slots waits for as long as an answer takes.
const overlap = 10 * fleetSlots

// watch looks at what the engine holds, for as long as the test runs.
func (f *faulty) watch(ctx context.Context) {
	f.tasks.Go(func() {
		var since, told float64 // tokens that it had made when it came to hold too much
		for ctx.Err() == nil {
			m, err := scrape(ctx, f.engine.URL)
			if err == nil {
				n, made := m.running()+m.waiting(), m["vllm:generation_tokens_total"]
				f.most = max(f.most, n)
				if n <= fleetSlots {
					since = made
				}
				if made > since+overlap && since != told {
					told = since
					f.over.Add(1)
					f.t.Errorf("%s: the engine runs %v and has %v waiting, of %d slots, for %v tokens", time.Now().Format("15:04:05.000"), m.running(), m.waiting(), fleetSlots, made-since)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// recovers is how long that takes at most: a lease, what is reserved for what a dead
// replica has left, and some for a busy machine.
const recovers = fleetTTL + time.Minute + patience

// serves waits until each of the replicas has answered interactive requests again.
func (f *faulty) serves(what string, gates ...*gate) {
	f.t.Helper()
	began := time.Now()
	for _, g := range gates {
		before := g.done.Load()
		for deadline := began.Add(recovers); g.done.Load() < before+3; {
			if time.Now().After(deadline) {
				f.t.Fatalf("%s: replica %s does not serve any more", what, g.name)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	f.t.Logf("%s: all serve after %v", what, time.Since(began).Round(10*time.Millisecond))
}

// grants asks a replica that lives.
func (f *faulty) grants(not *gate) *gateway.GrantsView {
	for _, g := range f.gates {
		if g == not {
			continue
		}
		s, _ := g.now()
		res, err := http.Get(s.Admin + "/api/grants")
		if err != nil {
			continue
		}
		var v gateway.GrantsView
		err = json.NewDecoder(res.Body).Decode(&v)
		res.Body.Close()
		if err == nil && v.StoreError == "" {
			return &v
		}
	}
	return &gateway.GrantsView{}
}

// leader returns the replica that leads, without one that is known not to.
func (f *faulty) leader(not *gate) *gate {
	f.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		v := f.grants(not)
		for _, g := range f.gates {
			if g != not && g.name == v.Leader {
				return g
			}
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("nobody leads: %+v", v)
		}
	}
}

// expired waits until a replica has no lease.
func (f *faulty) expired(g *gate) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		v := f.grants(g)
		there := v.Leader == ""
		for _, m := range v.Members {
			there = there || m.Replica == g.name
		}
		if !there {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("the lease of %s does not end", g.name)
		}
	}
}

func (f *faulty) others(g *gate) (gates []*gate) {
	for _, o := range f.gates {
		if o != g {
			gates = append(gates, o)
		}
	}
	return gates
}

// TestFleetFaults has three replicas, three members of etcd and one engine, and stops,
// kills and cuts off one after the other while requests of both classes run through
// all: the engine holds no more than it has slots, but for the moment in which a request
// waits for the abort that it was sent with; nothing that was admitted is lost but
// what a killed replica had, and every replica that lives serves again.
func TestFleetFaults(t *testing.T) {
	f := &faulty{t: t, etcd: etcdtest.Start(t, etcdtest.Options{Members: 3})}
	f.engine = headgate.StartEngine(t, "--max-num-seqs", fmt.Sprint(fleetSlots), "--num-gpu-blocks", "4000", "--speed", "0.1")
	for _, name := range []string{"a", "b", "c"} {
		g := &gate{name: name, link: f.etcd.Link(t)}
		f.gates = append(f.gates, g)
		f.start(g)
	}
	for _, g := range f.gates {
		s, _ := g.now()
		s.AwaitReady()
	}
	ctx, stop := context.WithCancel(t.Context())
	defer f.tasks.Wait()
	defer stop()
	f.watch(ctx)
	for _, g := range f.gates {
		f.load(ctx, g, "interactive", 20, &g.done)
		for range 4 {
			f.load(ctx, g, "batch", 200, &g.batches)
		}
	}
	f.serves("without a fault", f.gates...)

	g := f.leader(nil)
	s, _ := g.now()
	s.Suspend()
	f.expired(g)
	f.serves("the leader is stopped", f.others(g)...)
	s.Resume()
	f.serves("and goes on", f.gates...)

	g = f.leader(nil)
	f.kill(g)
	f.serves("the leader is killed", f.others(g)...)
	f.start(g)
	f.serves("and started anew", f.gates...)

	leader := f.leader(nil)
	g = f.others(leader)[0]
	f.kill(g)
	f.serves("a replica is killed", f.others(g)...)
	f.start(g)
	f.serves("and started anew", f.gates...)

	g = f.others(f.leader(nil))[0]
	g.link.Cut()
	f.expired(g)
	f.serves("a replica is cut off from etcd", f.others(g)...)
	g.link.Heal()
	f.serves("and can reach it again", f.gates...)

	g = f.leader(nil)
	g.link.Stall()
	f.expired(g)
	f.serves("the leader's way to etcd is stalled", f.others(g)...)
	g.link.Heal()
	f.serves("and goes on", f.gates...)

	m := f.etcd.Member(f.etcd.Leader(t))
	m.Kill()
	f.serves("etcd's leader is killed", f.gates...)
	m.Restart(t)

	m = f.etcd.Member(f.etcd.Leader(t))
	m.Suspend()
	f.serves("etcd's leader is stopped", f.gates...)
	m.Resume()

	i := f.etcd.Leader(t)
	f.etcd.Isolate(i)
	f.serves("etcd's leader is cut off from the others", f.gates...)
	f.etcd.Rejoin(i)
	f.serves("and can reach them again", f.gates...)

	stop()
	f.tasks.Wait()
	var done, batches int64
	for _, g := range f.gates {
		done, batches = done+g.done.Load(), batches+g.batches.Load()
	}
	t.Logf("%d interactive and %d batch answers; the engine held at most %v of %d", done, batches, f.most, fleetSlots)
	// What is kept of interactive's floor is idle at times.
	if batches == 0 || f.most < fleetSlots-2 {
		t.Error("the load did not come near the envelope, or no batch work finished")
	}
}
