package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"headgate/admission"
	"headgate/control/agent"
	"headgate/control/etcd/etcdtest"
	"headgate/e2e/headgate"
	"headgate/gateway"
	"headgate/journal"
)

// fleetFile is a replica's, of a fleet whose engine has four slots: two are interactive's,
// and one survives for each of two replicas.
func fleetFile(name, engine string, etcd []string, more string) string {
	endpoints, _ := json.Marshal(etcd)
	return fmt.Sprintf(`log: {level: info}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
control: {store: etcd, endpoints: %s, replica: %s, replicas: 2, ttl: 2s, heartbeat: 1s%s}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "%s", slots: 4, observe_every: 50ms}]
    control: {survival: {slots: 1, kv_tokens: 600}}
    classes:
      - {name: interactive, floor: {slots: 2}}
      - {name: batch, reclaim: reclaim}
`, endpoints, name, more, engine)
}

// fleetPool is what the leader says of the only pool.
func fleetPool(v *gateway.GrantsView) (p agent.Published) {
	_ = json.Unmarshal(v.Pools["main"], &p) // one that is not there is empty
	return p
}

// granted tells how many slots a replica has, -1 if it is not live.
func granted(v *gateway.GrantsView, replica string) int64 {
	for _, r := range fleetPool(v).Replicas {
		if r.Replica == replica && r.Live {
			return r.Accounts[0].Granted[admission.Slots]
		}
	}
	return -1
}

func cli(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	b, err := exec.CommandContext(t.Context(), headgate.Binary(t), args...).CombinedOutput()
	return string(b), err
}

// TestFleet has two replicas share an engine by grants in etcd: capacity that one has
// lent comes back, one that is killed is replaced as leader and its part falls to the
// other, what survives of it stays until an operator has it forgotten, and one that
// drains keeps its lease to the end.
func TestFleet(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Options{})
	e := headgate.StartEngine(t, "--max-num-seqs", "4", "--num-gpu-blocks", "2000", "--speed", "0.2")
	file := func(name string) string { return fleetFile(name, e.URL, etcd.Endpoints(), "") }
	a := headgate.Start(t, file("a"))
	a.AwaitReady()
	b := headgate.Start(t, file("b"))
	b.AwaitReady()
	watch := headgate.StartController(t, fleetFile("watch", e.URL, etcd.Endpoints(), ""))
	headgate.AwaitGrants(t, watch.Admin, "both have a part, and a leads", func(v *gateway.GrantsView) bool {
		return v.Leader == "a" && granted(v, "a") > 0 && granted(v, "b") > 0 && v.Replica == ""
	})

	// Batch work at a takes what nobody uses, but for what survives of b.
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	for range 5 {
		go func() {
			defer func() { done <- struct{}{} }()
			for ctx.Err() == nil {
				_ = batch(ctx, a.URL, e.Model)
			}
		}()
	}
	settle := func() {
		stop()
		for range 5 {
			<-done
		}
	}
	used := func(n int64) func(*admission.Snapshot) bool {
		return func(s *admission.Snapshot) bool { return class(s, "batch").Used.Slots == n }
	}
	a.AwaitPool("three slots run batch", used(3))
	// Two interactive requests at b: the second has to have one of them back.
	interactive := func(ctx context.Context, tokens int) *stream {
		s, err := openStream(ctx, b.URL+chatPath, object{"model": e.Model, "messages": user("hello"), "max_tokens": tokens, "stream": true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	asking, leave := context.WithCancel(t.Context())
	defer leave()
	defer interactive(asking, 2000).close()
	// Before a's adapter knows of it, it can't be told from a batch request that does not end.
	a.AwaitSamples(4)
	defer interactive(asking, 2000).close()
	a.AwaitPool("two are left of batch", used(2))
	b.AwaitPool("two run at b", func(s *admission.Snapshot) bool { return class(s, "interactive").Used.Slots == 2 })
	headgate.AwaitGrants(t, b.Admin, "the handoff to b is committed", func(v *gateway.GrantsView) bool {
		for _, h := range fleetPool(v).Handoffs {
			if h.To == "b" && h.Class == "interactive" && h.Stage == "committed" {
				return true
			}
		}
		return false
	})
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"grants", "--admin", b.Admin}, `(?m)^fleet default, led by a, epoch \d+$`},
		{[]string{"grants", "--admin", b.Admin}, `(?m)^b, pool main: grant \d+\.\d+ for .*in force`},
		{[]string{"grants", "--admin", watch.Admin}, `(?m)^borrowed by a \d+/\d+ for batch`},
		{[]string{"events", "--admin", a.Admin}, `(?m)^\S+ +main +\d+\.\d+ +committed +\S+ +b +interactive +a +1/\d+$`},
		{[]string{"events", "--admin", watch.Admin, "--output", "json"}, `"stage": "prepared"`},
	} {
		if out, err := cli(t, c.args...); err != nil || !regexp.MustCompile(c.says).MatchString(out) {
			t.Errorf("%v: %v\n%s\nwant %s", c.args, err, out, c.says)
		}
	}

	// The leader dies. b, or the controller, leads on.
	a.Kill()
	settle()
	leave() // an idle engine shows at once that nothing of a is left
	v := headgate.AwaitGrants(t, b.Admin, "a is gone, and b has all but what survives of a", func(v *gateway.GrantsView) bool {
		return v.Leader != "a" && granted(v, "a") == -1 && granted(v, "b") == 3
	})
	leads, follows := b.Admin, watch.Admin
	if v.Leader != "b" {
		leads, follows = follows, leads
	}
	if out, err := cli(t, "control", "forget", "a", "--admin", follows); err == nil || !strings.Contains(out, v.Leader+" leads the fleet") {
		t.Errorf("forget at %s: %v %s", follows, err, out)
	}
	if out, err := cli(t, "control", "forget", "b", "--admin", leads); err == nil || !strings.Contains(out, "replica b has a lease") {
		t.Errorf("forget b: %v %s", err, out)
	}
	if out, err := cli(t, "control", "forget", "a", "--admin", leads, "--reason", "its node is gone"); err != nil || out != "replica a is forgotten\n" {
		t.Errorf("forget a: %v %s", err, out)
	}
	headgate.AwaitGrants(t, b.Admin, "b has the whole engine", func(v *gateway.GrantsView) bool { return granted(v, "b") == 4 })

	// b drains: what it runs is under its lease until it is over.
	streams := []*stream{interactive(t.Context(), 400), interactive(t.Context(), 400)}
	b.Terminate()
	b.AwaitOutput(`"draining"`)
	member := func(there bool) func(*gateway.GrantsView) bool {
		return func(v *gateway.GrantsView) bool { return (len(v.Members) == 1) == there }
	}
	headgate.AwaitGrants(t, watch.Admin, "the controller leads, and b has its lease", func(v *gateway.GrantsView) bool {
		return v.Leader == "controller watch" && member(true)(v) && granted(v, "b") >= 2
	})
	for _, s := range streams {
		defer s.close()
		var err error
		for err == nil {
			err = s.next()
		}
		if !s.finished {
			t.Errorf("a stream was cut by the drain: %v", err)
		}
	}
	b.Wait()
	headgate.AwaitGrants(t, watch.Admin, "nobody is left", member(false))

	admissions := 0
	for _, g := range []*headgate.Gateway{a, b} {
		for _, ev := range g.Events() {
			if ev.Kind == journal.Admitted {
				admissions++
				if !regexp.MustCompile(`^\d+\.\d+$`).MatchString(ev.Grant) {
					t.Errorf("admitted by grant %q: %+v", ev.Grant, ev)
				}
			}
		}
	}
	if admissions < 5 {
		t.Errorf("%d admissions in the journals", admissions)
	}
}

// batch makes one long request of class batch.
func batch(ctx context.Context, url, model string) error {
	data, err := json.Marshal(object{"model": model, "messages": user("hello"), "max_tokens": 2000, "stream": true})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Headgate-Class", "batch")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	s := &stream{body: res.Body, lines: bufio.NewScanner(res.Body)}
	defer s.close()
	for err == nil {
		err = s.next()
	}
	return err
}

// TestFleetWithoutStore: what is granted outlives the store for a lease, then a replica
// falls to what survives, says so in each answer, and comes back with the store.
func TestFleetWithoutStore(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Options{})
	e := headgate.StartEngine(t, "--max-num-seqs", "4", "--speed", "0.2")
	g := headgate.Start(t, fleetFile("a", e.URL, etcd.Endpoints(), ""))
	g.AwaitReady()
	grant := func() string {
		res, err := post(t.Context(), g.URL+chatPath, object{"model": e.Model, "messages": user("hello"), "max_tokens": 2})
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.Header.Get("Headgate-Grant")
	}
	if v := grant(); !regexp.MustCompile(`^\d+\.\d+$`).MatchString(v) {
		t.Errorf("Headgate-Grant: %q", v)
	}
	etcd.Member(0).Suspend()
	headgate.AwaitGrants(t, g.Admin, "no grant is in force, and the store can't be read", func(v *gateway.GrantsView) bool {
		return !v.Held[0].InForce && v.StoreError != ""
	})
	if v := grant(); v != "survival" {
		t.Errorf("Headgate-Grant: %q", v)
	}
	g.AwaitEvent("an admission by what survives", func(e *journal.Event) bool { return e.Kind == journal.Admitted && e.Grant == "survival" })
	g.AwaitReady() // for the one slot
	etcd.Member(0).Resume()
	headgate.AwaitGrants(t, g.Admin, "a grant is in force again", func(v *gateway.GrantsView) bool { return v.Held[0].InForce })
	if v := grant(); !regexp.MustCompile(`^\d+\.\d+$`).MatchString(v) {
		t.Errorf("Headgate-Grant: %q", v)
	}
}
