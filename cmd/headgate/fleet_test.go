package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/config"
	"headgate/control"
	"headgate/control/agent"
	"headgate/control/store"
	"headgate/gateway"
)

// fleetOf is a file of a replica with these floors of interactive, by pool.
func fleetOf(control string, floors map[string]string) string {
	var b strings.Builder
	b.WriteString("listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nanonymous: {classes: [interactive]}\n" + control + "\npools:\n")
	for _, pool := range []string{"main", "other"} {
		if floors[pool] != "" {
			b.WriteString("  - name: " + pool + "\n    models: [" + pool + "]\n    engines: [{name: " + pool + "-gpu, kind: vllm, url: \"http://ENGINE\", slots: 64, observe_every: 50ms}]\n" +
				"    classes: [{name: interactive, floor: {slots: " + floors[pool] + "}}]\n")
		}
	}
	return b.String()
}

const inMemory = "control: {store: memory, replica: one}"

// await polls until ok. It measures no speed.
func (r *reloadRig) await(what string, ok func(s *store.State) bool) {
	r.t.Helper()
	over := time.After(patience)
	for {
		s, err := r.s.fleet.store.State(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		if ok(s) {
			return
		}
		select {
		case <-over:
			r.t.Fatalf("never: %s; %+v\n%s", what, s, r.wrote())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// floor tells whether the last grant of a pool protects so many slots.
func floor(pool string, slots int64) func(s *store.State) bool {
	return func(s *store.State) bool {
		for _, g := range s.Grants {
			if g.Pool == pool {
				return g.Classes[0].Floor[0] == slots
			}
		}
		return false
	}
}

// TestReloadInFleet: floors reach the leader, and pools that come the agent, under the
// lease that there is. What is of the life in the fleet waits for a restart, and what
// does not fit it is refused.
func TestReloadInFleet(t *testing.T) {
	r := newReloadRig(t, fleetOf(inMemory, map[string]string{"main": "25%"}))
	r.await("a quarter of what was found", floor("main", 16))
	epoch, lease := r.s.fleet.leader.Epoch(), int64(0)
	r.await("a lease", func(s *store.State) bool { lease = s.Members[0].Lease; return lease != 0 })

	r.reloaded(fleetOf(inMemory, map[string]string{"main": "50%"}))
	r.await("a half", floor("main", 32))
	if now := r.s.fleet.leader.Epoch(); now != epoch {
		t.Errorf("epoch %d after %d", now, epoch)
	}

	r.reloaded(fleetOf(inMemory, map[string]string{"main": "50%", "other": "8"}))
	r.await("the other pool's grant", floor("other", 8))
	for r.s.gateway.Ready() != nil {
		if !pause(t.Context(), 5*time.Millisecond) {
			t.Fatal("not ready")
		}
	}

	// Another control is kept for the next start, and the file is judged by the one that
	// is in force.
	r.reloaded(fleetOf("control: {store: memory, replica: one, ttl: 9s}", map[string]string{"main": "48", "other": "8"}))
	r.await("three quarters", floor("main", 48))
	if r.s.config.Load().Control.TTL != 6*time.Second || !strings.Contains(r.wrote(), `"this change needs a restart","setting":"control.ttl","in_force":"6s","configured":"9s"`) {
		t.Errorf("ttl %v\n%s", r.s.config.Load().Control.TTL, r.wrote())
	}
	bounded := strings.Replace(fleetOf("", map[string]string{"main": "48", "other": "8"}), "name: main\n", "name: main\n    boundary: 1\n", 1)
	r.reloaded(bounded)
	if !strings.Contains(r.wrote(), "with the control that is in force: ") || !strings.Contains(r.wrote(), "pools[0].boundary: value 1: allowed 0 in a fleet (control)") {
		t.Errorf("a file without control, with a boundary, was taken\n%s", r.wrote())
	}

	r.reloaded(fleetOf(inMemory, map[string]string{"main": "48"}))
	r.reloaded(fleetOf(inMemory, map[string]string{"main": "48", "other": "8"}))
	if !strings.Contains(r.wrote(), "pool other was removed since the process started: in a fleet it comes back with a restart") {
		t.Errorf("it came back\n%s", r.wrote())
	}
	r.await("the same lease", func(s *store.State) bool { return len(s.Members) == 1 && s.Members[0].Lease == lease })
}

// TestEnginesThatDoNotFit: what a leader would refuse the replica says where it is looked
// for.
func TestEnginesThatDoNotFit(t *testing.T) {
	cfg, problems := config.Parse("hg.yaml", []byte(`anonymous: {classes: [only]}
control: {store: etcd, endpoints: ["http://127.0.0.1:1"], replicas: 8}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://127.0.0.1:1"}]
    control: {survival: {slots: 1, kv_tokens: 600}}
    classes: [{name: only, floor: {slots: 4, kv_tokens: 4000}}]
`))
	if cfg == nil {
		t.Fatal(problems)
	}
	rc := poolConfig(cfg, 0, &shared{})
	for slots, want := range map[int64]string{
		12: "", 11: "the engines found do not fit the configuration: hg.yaml:7:14: pools[0].classes: value 4: allowed floors of slots that sum to at most 3: the envelope of 11 without the survival floors of 8 replicas",
	} {
		_, err := rc.Resolve([]admission.EngineSpec{{Name: "gpu0", Slots: slots, KV: 60_000, Block: 1}})
		if err != nil {
			if got := err.Error(); got != want {
				t.Errorf("%d slots: %s", slots, got)
			}
		} else if want != "" {
			t.Errorf("%d slots are taken", slots)
		}
		if _, err := sized(cfg, "main", map[string]control.Amount{"gpu0": {slots, 60_000}}); (err == nil) != (want == "") {
			t.Errorf("%d slots: the leader says %v", slots, err)
		}
	}
}

// TestJudge: a report counts for longer than the time between two.
func TestJudge(t *testing.T) {
	j := judge(&config.Control{Starve: 3 * time.Second, Heartbeat: 10 * time.Second})
	if j.Starve != 3*time.Second || j.Stale != 30*time.Second {
		t.Errorf("%+v", j)
	}
}

// TestPrintGrants has a golden of a fleet with all that there is to say.
func TestPrintGrants(t *testing.T) {
	both := func(r string, live bool, accounts []control.ShareStatus, classes ...control.ClassStatus) control.ReplicaStatus {
		return control.ReplicaStatus{ID: control.ID{Replica: r, Boot: "1"}, Live: live, Revision: 41, Acknowledged: 40, Accounts: accounts, Classes: classes, Residual: map[bool]time.Duration{false: 12 * time.Second}[live]}
	}
	a := admission.Of
	p := agent.Published{Status: control.Status{
		Pool: "main", Epoch: 17, Revision: 42, Fingerprint: "0a1b2c3d",
		Accounts: []control.AccountStatus{{Engine: "gpu0", Total: a(16, 160_000), Free: a(1, 10_000), Foreign: a(0, 2000)}, {Class: "batch", Total: a(8, 80_000)}},
		Replicas: []control.ReplicaStatus{
			both("hg-0", true, []control.ShareStatus{{Granted: a(7, 70_000), Bound: a(9, 90_000), Used: a(5, 40_000), Survival: a(1, 4000)}, {Granted: a(4, 40_000), Bound: a(4, 40_000)}},
				control.ClassStatus{Class: "interactive", Guarantee: a(4, 40_000), Floor: a(4, 40_000), Kept: a(1, 10_000), Why: "as the cores hold it", Lent: a(3, 30_000)},
				control.ClassStatus{Class: "batch", Used: a(5, 40_000), Borrowed: a(5, 40_000), Waiting: 3, Why: "as the cores hold it"}),
			both("hg-1", true, []control.ShareStatus{{Granted: a(7, 70_000), Bound: a(7, 70_000)}, {}},
				control.ClassStatus{Class: "interactive", Guarantee: a(4, 40_000), Floor: a(4, 40_000), Kept: a(4, 40_000), Why: "no recent report", Used: a(2, 9000), Waiting: 1, Short: true},
				control.ClassStatus{Class: "batch"}),
			both("hg-2", false, []control.ShareStatus{{Bound: a(2, 20_000), Survival: a(1, 4000)}, {}}),
		},
	}, Handoffs: []agent.Event{{
		Handoff: control.Handoff{Seq: 7, Pool: "main", To: "hg-1", Class: "interactive", From: []string{"hg-0"}, Want: a(1, 10_000), Stage: control.Applied, Since: 1234567},
		Epoch:   17, Time: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.Local),
	}}}
	p.Replicas[0].Fingerprint, p.Replicas[1].Fingerprint = p.Fingerprint, "4e5f6071"
	status, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	grant := &control.Grant{Epoch: 17, Rev: 41}
	v := gateway.GrantsView{Fleet: "prod", Replica: "hg-0", Leader: "hg-1", Epoch: 17, Pools: map[string]json.RawMessage{"main": status}, Held: []gateway.HeldView{
		{Pool: "main", Grant: grant, InForce: true, AgeS: 62.5, LeaseLeftS: 4.2}, {Pool: "next", NotReady: "pool next: no grant of the fleet's capacity is in force: no leader has written any yet"},
	}}
	var out bytes.Buffer
	if err := printGrants(&out, &v); err != nil {
		t.Fatal(err)
	}
	v.StoreError, v.Pools, v.Held[0].InForce = "the fleet's store can't be read: out of reach", nil, false
	out.WriteString("\n# Without the store.\n")
	if err := printGrants(&out, &v); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "grants.txt")
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestFollowEvents: what was asked for of the past, and then each stage once, the oldest
// first, until there is nobody to ask.
func TestFollowEvents(t *testing.T) {
	stages := []control.Stage{control.Prepared, control.Applied, control.Drained, control.Committed}
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		if asked > 2 {
			http.Error(w, "over", http.StatusServiceUnavailable)
			return
		}
		var all []agent.Event
		for i := asked + 1; i >= 0; i-- {
			all = append(all, agent.Event{Handoff: control.Handoff{Seq: 1, Pool: "main", To: "a", From: []string{"b"}, Stage: stages[i]}, Epoch: 3})
		}
		if err := json.NewEncoder(w).Encode(all); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	var out bytes.Buffer
	err := followEvents(t.Context(), &out, &adminClient{url: s.URL}, "json", 2)
	if err == nil || !strings.Contains(err.Error(), "no events: status 503: over") {
		t.Error(err)
	}
	var got []control.Stage
	for line := range strings.Lines(out.String()) {
		var e agent.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Stage)
	}
	if d := cmp.Diff(stages[1:], got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
