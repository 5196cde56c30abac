package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/store"
	"headgate/identity"
	"headgate/relay"
)

const fleetTTL = 4 * time.Second

// fleetRig is a replica of a fleet over a store in memory, with a leader beside it.
type fleetRig struct {
	*rig
	link   *store.Memory // the replica's
	mem    *store.Memory
	leader *agent.Leader
	reg    *prometheus.Registry
}

// inFleet runs a test with a replica whose pool has a survival floor, or none.
func inFleet(t *testing.T, survival admission.Amount, test func(t *testing.T, r *fleetRig)) {
	mem := store.NewMemory()
	f := &fleetRig{mem: mem, link: mem.Dial(), reg: prometheus.NewRegistry()}
	view := &Fleet{
		Name: "test", Replica: "a", Timeout: time.Second, State: f.link.State,
		Forget: func(replica string) bool { return f.leader.Forget(replica) },
	}
	bubble(t, setup{slots: 4, fleet: view}, func(t *testing.T, r *rig) {
		f.rig = r
		ctx, stop := context.WithCancel(context.Background())
		var tasks sync.WaitGroup
		defer tasks.Wait()
		defer stop()
		log, metrics := slog.New(slog.NewTextHandler(io.Discard, nil)), agent.NewMetrics(f.reg)
		a := agent.New(agent.Config{
			Store: f.link, Member: control.Member{ID: control.ID{Replica: "a", Boot: "1"}}, Pools: []agent.Pool{r.pool}, TTL: fleetTTL,
			Every: time.Second, Settle: 50 * time.Millisecond, Timeout: time.Second, Log: log, Metrics: metrics,
		})
		f.leader = agent.NewLeader(agent.LeaderConfig{
			Store: mem.Dial(), Who: "b", TTL: fleetTTL, Timeout: time.Second, Log: log, Metrics: metrics,
			Pools: []control.Pool{{
				Name: "main", Replicas: 2, Engines: []control.Engine{{Name: "gpu0", Total: admission.Of(4, 16384)}}, Survival: survival,
				Classes: []control.Class{{Name: "interactive", Floor: admission.Of(2, 8192)}, {Name: "batch"}},
			}},
		})
		tasks.Go(func() { a.Run(ctx) })
		synctest.Wait()
		test(t, f)
	})
}

// lead has the leader campaign until the test's end, or until what it returns is called.
func (f *fleetRig) lead(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.leader.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	sleep(3000)
	synctest.Wait()
	return stop
}

func (f *fleetRig) ready(t *testing.T, status int, says string) {
	t.Helper()
	if w := f.admin("/readyz"); w.Code != status || !strings.Contains(w.Body.String(), says) {
		t.Errorf("/readyz: %d %s, want %d %s", w.Code, w.Body, status, says)
	}
}

func (f *fleetRig) view(t *testing.T) (v GrantsView) {
	t.Helper()
	if w := f.admin("/api/grants"); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &v) != nil || len(v.Held) != 1 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return v
}

// Without a grant nothing is admitted and /readyz says what is missing; with one each
// answer names it, and it is in force without the store until the lease ends.
func TestGrants(t *testing.T) {
	inFleet(t, admission.Amount{}, func(t *testing.T, f *fleetRig) {
		f.ready(t, 503, "not ready: pool main: no grant of the fleet's capacity is in force: no leader has written any yet")
		if v := f.view(t); v.Held[0].Grant != nil || v.Held[0].InForce || v.Leader != "" || v.Held[0].LeaseLeftS <= 0 || !strings.Contains(v.Held[0].NotReady, "no leader") {
			t.Errorf("before a leader: %+v", v)
		}
		stop := f.lead(t)
		f.ready(t, 200, "ready")
		res, call := f.stream()
		defer call.Finish("stop")
		v := f.view(t)
		h := v.Held[0]
		if g := res.Header.Get(headerGrant); h.Grant == nil || g != (relay.Provenance{Epoch: h.Grant.Epoch, Revision: h.Grant.Rev}).String() {
			t.Errorf("header %s: %s, held %+v", headerGrant, g, h.Grant)
		}
		if v.Fleet != "test" || v.Replica != "a" || v.Leader != "b" || v.Epoch == 0 || len(v.Members) != 1 || v.Members[0].Replica != "a" || !h.InForce || h.NotReady != "" {
			t.Errorf("%+v", v)
		}
		var p agent.Published
		if err := json.Unmarshal(v.Pools["main"], &p); err != nil || p.Replicas[0].Accounts[0].Granted != admission.Of(4, 16384) {
			t.Errorf("%v: %s", err, v.Pools["main"])
		}

		// Nobody leads, and then the store is out of reach: what is leased goes on.
		stop()
		f.link.Cut()
		sleep(2500)
		f.ready(t, 200, "ready")
		if v := f.view(t); !v.Held[0].InForce || !strings.Contains(v.StoreError, "the fleet's store can't be read") || len(v.Pools) != 0 {
			t.Errorf("out of reach: %+v", v)
		}
		sleep(3000)
		f.ready(t, 503, "no grant of the fleet's capacity is in force")
		if v := f.view(t); v.Held[0].InForce || v.Held[0].Grant == nil {
			t.Errorf("after the lease: %+v", v)
		}
		f.link.Heal()
		sleep(3000)
		f.ready(t, 503, "no leader has written any since the lease was renewed")
	})
}

// What survives goes on without the store, and says so.
func TestSurvival(t *testing.T) {
	inFleet(t, admission.Of(1, 4096), func(t *testing.T, f *fleetRig) {
		f.lead(t)
		f.link.Cut()
		sleep(8000)
		f.ready(t, 200, "ready")
		res, call := f.stream()
		defer call.Finish("stop")
		if g := res.Header.Get(headerGrant); g != "survival" {
			t.Errorf("%s: %s", headerGrant, g)
		}
	})
}

// Stages of handoffs, and what is asked wrong.
func TestEvents(t *testing.T) {
	f := &Fleet{Timeout: time.Second, State: func(context.Context) (*store.State, error) {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		published := func(pool string, seq uint64, second int) []byte {
			p := agent.Published{Status: control.Status{Pool: pool, Epoch: 3}, Handoffs: []agent.Event{{
				Handoff: control.Handoff{Seq: seq, Pool: pool, To: "a", From: []string{"b"}, Class: "interactive", Want: admission.Of(1, 1000), Stage: control.Committed, Since: 12 * time.Millisecond},
				Epoch:   3, Time: at.Add(time.Duration(second) * time.Second),
			}, {
				Handoff: control.Handoff{Seq: seq, Pool: pool, To: "a", From: []string{"b"}, Class: "interactive", Want: admission.Of(1, 1000), Stage: control.Prepared},
				Epoch:   3, Time: at.Add(time.Duration(second) * time.Second),
			}}}
			b, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		return &store.State{Status: map[string][]byte{"main": published("main", 7, 1), "other": published("other", 2, 0)}}, nil
	}, Pools: nil}
	h := f.Admin(prometheus.NewRegistry(), func() *identity.Operators { return nil })
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w
	}
	golden(t, "events.json", get("/api/events?n=3").Body.String())
	for _, n := range []string{"0", "1001", "many"} {
		if w := get("/api/events?n=" + n); w.Code != 400 || !strings.Contains(w.Body.String(), "must be a whole number from 1 to 1000") {
			t.Errorf("n=%s: %d %s", n, w.Code, w.Body)
		}
	}
	if w := get("/readyz"); w.Code != 200 {
		t.Errorf("/readyz: %d %s", w.Code, w.Body)
	}
	f.State = func(context.Context) (*store.State, error) { return nil, errors.New("out of reach") }
	for _, path := range []string{"/readyz", "/api/events"} {
		if w := get(path); w.Code != 503 || !strings.Contains(w.Body.String(), "the fleet's store can't be read: out of reach") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// Only what is gone and known is forgotten, only by the leader, and not by a page of
// another origin.
func TestForget(t *testing.T) {
	inFleet(t, admission.Of(1, 4096), func(t *testing.T, f *fleetRig) {
		forget := func(status int, body, says string, headers ...string) {
			t.Helper()
			if w := f.turn("/api/fleet/forget", body, headers...); w.Code != status || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s: %d %s, want %d %s", body, w.Code, w.Body, status, says)
			}
		}
		forget(404, `{"replica":"z"}`, "nothing is kept for a replica z")
		forget(400, `{"replica":"a/b"}`, `"replica" is "a/b", must be a replica's name`)
		forget(400, `{"replica":"z","now":true}`, "unknown field")
		forget(400, `{"replica":"z","reason":"`+strings.Repeat("x", 501)+`"}`, "at most 500")
		forget(403, `{"replica":"z"}`, "another origin", "Origin", "https://evil.test")
		forget(415, `{"replica":"z"}`, "application/json", "Content-Type", "text/plain")

		// A replica z comes, has a grant, and goes for good.
		leading := f.lead(t)
		s, err := f.mem.Join(t.Context(), control.Member{ID: control.ID{Replica: "z", Boot: "9"}}, fleetTTL)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.mem.Report(t.Context(), &control.Report{Pool: "main", ID: control.ID{Replica: "z", Boot: "9"}, Lease: s.Lease(), Seq: 1}); err != nil {
			t.Fatal(err)
		}
		sleep(2000)
		forget(409, `{"replica":"z"}`, "replica z has a lease")
		if err := s.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		sleep(20_000)
		kept := func() (n int64) {
			var p agent.Published
			if err := json.Unmarshal(f.view(t).Pools["main"], &p); err != nil {
				t.Fatal(err)
			}
			for _, r := range p.Replicas {
				if r.Replica == "z" {
					n += r.Accounts[0].Survival[0]
				}
			}
			return n
		}
		if n := kept(); n != 1 {
			t.Errorf("%d slots are kept for z", n)
		}
		forget(200, `{"replica":"z","reason":"node lost"}`, `"forgotten": "z"`, "Headgate-Actor", "ann")
		sleep(3000)
		if n := kept(); n != 0 {
			t.Errorf("%d slots are kept for z, which was forgotten", n)
		}
		if !strings.Contains(f.log.String(), `"an operator has a replica forgotten","replica":"z","actor":"ann"`) {
			t.Errorf("the log:\n%s", f.log)
		}
		leading()
		forget(404, `{"replica":"z"}`, "nothing is kept")
	})
	inFleet(t, admission.Of(1, 4096), func(t *testing.T, f *fleetRig) {
		// Another leads, and then nobody.
		other, err := f.mem.Campaign(t.Context(), "c", fleetTTL)
		if err != nil {
			t.Fatal(err)
		}
		g := &control.Grant{Pool: "main", ID: control.ID{Replica: "z", Boot: "9"}, Epoch: other.Epoch(), Rev: 100}
		if err := other.Write(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		w := f.turn("/api/fleet/forget", `{"replica":"z"}`)
		if w.Code != 409 || !strings.Contains(w.Body.String(), "c leads the fleet, and only the leader can forget") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if err := other.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		w = f.turn("/api/fleet/forget", `{"replica":"z"}`)
		if w.Code != 409 || !strings.Contains(w.Body.String(), "nobody leads the fleet") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
