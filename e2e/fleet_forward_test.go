package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"headgate/admission"
	"headgate/control/etcd/etcdtest"
	"headgate/e2e/headgate"
	"headgate/gateway"
	"headgate/journal"
)

// forwarding is a fleet of three replicas, of which each keeps two slots of one engine
// for good, and which serve requests for each other. Those of a are taken.
type forwarding struct {
	t      *testing.T
	etcd   *etcdtest.Cluster
	engine *headgate.Engine
	keys   keys
	at     map[string]string // by replica: where it listens for clients
	gates  map[string]*headgate.Gateway
	fill   []*http.Response // what takes a's slots
}

// long is how many tokens an answer has that does not end during a test.
const long = 4000

func startForwarding(t *testing.T) *forwarding {
	t.Setenv("HEADGATE_FLEET_SECRET", "of this test, and 32 bytes or more long")
	f := &forwarding{
		t: t, etcd: etcdtest.Start(t, etcdtest.Options{Members: 3}), keys: newKeys(t), at: map[string]string{}, gates: map[string]*headgate.Gateway{},
		engine: headgate.StartEngine(t, "--max-num-seqs", "6", "--num-gpu-blocks", "4000", "--speed", "0.1"),
	}
	for _, name := range []string{"a", "b", "c"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f.at[name] = l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		f.start(name)
	}
	f.settled()
	f.fill = make([]*http.Response, 2)
	for i := range f.fill {
		f.takes(i)
	}
	f.published() // of the first status that comes nobody knows how old it is
	return f
}

// takes takes one of a's slots.
func (f *forwarding) takes(slot int) {
	f.t.Helper()
	res := f.send(f.t.Context(), f.gates["a"], f.keys.app, chatPath, f.chat(long, true))
	f.t.Cleanup(func() { res.Body.Close() })
	f.fill[slot] = res
	if by := res.Header.Get("Headgate-Replica"); by != "a" {
		f.t.Fatalf("what there is room for at a is served by %q", by)
	}
}

func (f *forwarding) start(name string) {
	f.t.Helper()
	endpoints, _ := json.Marshal(f.etcd.Endpoints())
	f.gates[name] = headgate.StartAt(f.t, f.at[name], fmt.Sprintf(`%slog: {level: info}
control:
  store: etcd
  endpoints: %s
  replica: %s
  replicas: 3
  ttl: 2s
  heartbeat: 1s
  forward: {address: "http://%s", secret_env: HEADGATE_FLEET_SECRET}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "%s", slots: 6, kv_tokens: 60000, observe_every: 50ms}]
    control: {survival: {slots: 2, kv_tokens: 20000}}
    classes:
      - {name: interactive, queue: {wait: 60s}}
      - {name: batch}
`, f.keys.yaml, endpoints, name, f.at[name], f.engine.URL)).AwaitReady()
}

// settled waits until each replica has its two slots, as the leader says.
func (f *forwarding) settled() {
	f.t.Helper()
	headgate.AwaitGrants(f.t, f.gates["a"].Admin, "each has two slots", func(v *gateway.GrantsView) bool {
		return granted(v, "a") == 2 && granted(v, "b") == 2 && granted(v, "c") == 2
	})
}

func (f *forwarding) chat(tokens int, stream bool) object {
	return object{"model": f.engine.Model, "messages": user("hello"), "max_tokens": tokens, "stream": stream, "ignore_eos": true}
}

func (f *forwarding) message(tokens int, stream bool) object {
	return object{"model": f.engine.Model, "messages": user("hello"), "max_tokens": tokens, "stream": stream}
}

// send makes a request and returns its answer's headers, with the body to come.
func (f *forwarding) send(ctx context.Context, g *headgate.Gateway, key, path string, body object, header ...string) *http.Response {
	f.t.Helper()
	res, err := request(ctx, g.URL+path, key, body, header...)
	if err != nil {
		f.t.Fatalf("%v; what was admitted: %s", err, g.Shown("/debug/admission"))
	}
	return res
}

func request(ctx context.Context, url, key string, body object, header ...string) (*http.Response, error) {
	data, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return http.DefaultClient.Do(req)
}

// away makes a stream at a that is served by another replica, and returns it with that one's name.
func (f *forwarding) away(ctx context.Context) (res *http.Response, by string) {
	f.t.Helper()
	f.published() // what a replica was sent counts as used there until something newer is
	res = f.send(ctx, f.gates["a"], f.keys.app, chatPath, f.chat(40, true))
	if by = res.Header.Get("Headgate-Replica"); res.StatusCode != http.StatusOK || by == "a" {
		f.t.Fatalf("%d, served by %s", res.StatusCode, by)
	}
	return res, by
}

// published waits until the leader has published twice: the second is of after the first.
func (f *forwarding) published() {
	f.t.Helper()
	var first uint64
	headgate.AwaitGrants(f.t, f.gates["a"].Admin, "the leader publishes", func(v *gateway.GrantsView) bool {
		n := fleetPool(v).Published
		if first == 0 {
			first = n
		}
		return n >= first+2
	})
}

// outcomes are what a replica counts of requests that it has sent on, or got.
func (f *forwarding) outcomes(g *headgate.Gateway) map[string]string {
	f.t.Helper()
	res, err := http.Get(g.Admin + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	all := map[string]string{}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "} "); ok && strings.HasPrefix(name, "headgate_forward") {
			for _, label := range strings.Split(name, `"`) {
				all[label] = value
			}
		}
	}
	return all
}

// held waits until a replica holds so many slots, and nothing that is over.
func held(g *headgate.Gateway, slots int64) {
	g.AwaitPool(fmt.Sprintf("%d slots are held, no ghost, and nobody waits", slots), func(s *admission.Snapshot) bool {
		return s.Used.Slots == slots && len(s.Holds) == int(slots) && class(s, "interactive").Queue == 0
	})
}

// TestForwarding: what a replica has no room for is served by one that has, as if it had come there, in
// both dialects, streamed and collected; who asks for what is that one's own judgement; nothing
// goes a second hop; where nobody has room it stays; and whoever leaves is gone from the engine.
func TestForwarding(t *testing.T) {
	f := startForwarding(t)
	a := f.gates["a"]

	// All at once, so that they take the four slots that are left.
	const messagesPath = "/v1/messages"
	type got struct {
		*http.Response
		body, ends string
	}
	answers := make(chan got)
	for _, c := range []struct {
		path string
		body object
		ends string
	}{
		{chatPath, f.chat(8, true), "data: [DONE]\n\n"},
		{chatPath, f.chat(8, false), "}}"},
		{messagesPath, f.message(8, true), "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		{messagesPath, f.message(8, false), "}}"},
	} {
		go func() {
			res, err := request(t.Context(), a.URL+c.path, f.keys.jobs, c.body, "Headgate-Class", "interactive")
			if err != nil {
				t.Error(err)
				answers <- got{}
				return
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil {
				t.Error(err)
			}
			answers <- got{res, strings.TrimRight(string(b), " "), c.ends}
		}()
	}
	for range 4 {
		r := <-answers
		if r.Response == nil {
			continue
		}
		by, id := r.Header.Get("Headgate-Replica"), r.Header.Get("Headgate-Request-Id")
		g := f.gates[by]
		if r.StatusCode != http.StatusOK || g == nil || by == "a" || !strings.HasSuffix(strings.TrimRight(r.body, "\n"), strings.TrimRight(r.ends, "\n")) || r.Header.Get("Headgate-Decision") != "admitted" || r.Header.Get("Headgate-Forwarded") != "" {
			t.Errorf("%d %v %s", r.StatusCode, r.Header, r.body)
			continue
		}
		g.AwaitEvent("the request's arrival from a", func(e *journal.Event) bool {
			return e.Kind == journal.Arrived && e.Request == id && e.Peer == "a" && e.Tenant == "research" && e.Principal == "jobs" && e.Class == "interactive"
		})
		g.AwaitEvent("its admission by the grant that it says", func(e *journal.Event) bool {
			return e.Kind == journal.Admitted && e.Request == id && e.Grant == r.Header.Get("Headgate-Grant") && e.Grant != ""
		})
		a.AwaitEvent("that it was sent on", func(e *journal.Event) bool {
			return e.Kind == journal.Forwarded && e.Request == id && e.Peer == by
		})
		for _, e := range a.Events() {
			if e.Request == id && e.Kind != journal.Forwarded {
				t.Errorf("a's journal has %s of a request that %s has served", e.Kind, by)
			}
		}
	}
	if o := f.outcomes(a); o["answered"] != "4" {
		t.Errorf("a counts %v", o)
	}
	held(a, 2)

	// What only says that it was sent on is nobody's but its caller's.
	b := f.gates["b"]
	line := fmt.Sprintf("a;req_forged;%d;AAAA", time.Now().UnixMilli())
	for _, c := range []struct {
		key, class string
		status     int
	}{{"", "interactive", http.StatusUnauthorized}, {f.keys.app, "batch", http.StatusForbidden}, {f.keys.app, "interactive", http.StatusOK}} {
		res := f.send(t.Context(), b, c.key, chatPath, f.chat(2, false), "Headgate-Forwarded", line, "Headgate-Class", c.class)
		_ = res.Body.Close()
		if res.StatusCode != c.status || res.Header.Get("Headgate-Request-Id") == "req_forged" {
			t.Errorf("%v: %d as %s", c, res.StatusCode, res.Header.Get("Headgate-Request-Id"))
		}
	}
	if o := f.outcomes(b); o["invalid"] != "3" {
		t.Errorf("b counts %v", o)
	}
	f.waits("what was sent on before", "Headgate-Forwarded", line)
	f.takes(0)

	// A client that leaves.
	ctx, leave := context.WithCancel(t.Context())
	res, by := f.away(ctx)
	untilLoad(t, f.engine.URL, 3, 0)
	leave()
	_ = res.Body.Close()
	untilLoad(t, f.engine.URL, 2, 0)
	held(f.gates[by], 0)
	held(a, 2)
	if o := f.outcomes(a); o["left"] != "1" || o["failed"] != "" {
		t.Errorf("a counts %v", o)
	}

	// Nobody has room: it waits where it came, for what ends there.
	for n := 2.; n < 6; n++ {
		at := f.gates[map[bool]string{true: "b", false: "c"}[n < 4]]
		defer f.send(t.Context(), at, f.keys.app, chatPath, f.chat(long, true)).Body.Close()
	}
	headgate.AwaitGrants(t, a.Admin, "it is known that all slots are in use", func(v *gateway.GrantsView) bool {
		var used int64
		for _, r := range fleetPool(v).Replicas {
			used += r.Accounts[0].Used[admission.Slots]
		}
		return used == 6
	})
	f.waits("what nobody has room for")
}

// waits makes a request at a that stays there, until what takes one of its slots ends.
func (f *forwarding) waits(what string, header ...string) {
	f.t.Helper()
	a := f.gates["a"]
	ctx, leave := context.WithTimeout(f.t.Context(), patience)
	defer leave()
	got := make(chan *http.Response, 1)
	go func() {
		res, err := request(ctx, a.URL+chatPath, f.keys.app, f.chat(2, false), header...)
		if err != nil {
			f.t.Error(err)
		}
		got <- res
	}()
	a.AwaitPool("one waits at a", func(s *admission.Snapshot) bool { return class(s, "interactive").Queue == 1 })
	_ = f.fill[0].Body.Close()
	if res := <-got; res != nil {
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || res.Header.Get("Headgate-Replica") != "a" || res.Header.Get("Headgate-Decision") != "queued" {
			f.t.Errorf("%s gets %d, %s, by %s", what, res.StatusCode, res.Header.Get("Headgate-Decision"), res.Header.Get("Headgate-Replica"))
		}
	}
}

// next makes a request at a, where one of its slots comes free: it has to be served, and leaves
// nothing behind there.
func (f *forwarding) next(what string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	_ = f.fill[0].Body.Close()
	res := f.send(ctx, f.gates["a"], f.keys.app, chatPath, f.chat(2, false))
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		f.t.Errorf("after %s: %d %s %v", what, res.StatusCode, b, err)
	}
	held(f.gates["a"], 1)
}

// TestForwardingStopped: a replica that is stopped keeps what it has taken, whose client waits
// or leaves, and takes nothing more: that is served where it came.
func TestForwardingStopped(t *testing.T) {
	f := startForwarding(t)
	a := f.gates["a"]
	ctx, leave := context.WithCancel(t.Context())
	res, by := f.away(ctx)
	stopped := f.gates[by]
	stopped.Suspend()
	defer stopped.Resume() // or it could not end
	leave()
	_ = res.Body.Close()
	held(a, 2)
	// Neither it nor the other is sent any more: they take connections, and ask for nothing.
	other := f.gates[map[bool]string{true: "b", false: "c"}[by == "c"]]
	other.Suspend()
	defer other.Resume()
	ctx, leave = context.WithTimeout(t.Context(), patience)
	defer leave()
	_ = f.fill[0].Body.Close()
	res = f.send(ctx, a, f.keys.app, chatPath, f.chat(2, false))
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK || res.Header.Get("Headgate-Replica") != "a" {
		t.Errorf("beside a replica that is stopped: %v %v %s", err, res, body)
	}
	if o := f.outcomes(a); o["failed"] != "" || o["left"] != "1" || o["unreachable"] == "" {
		t.Errorf("a counts %v", o)
	}
	for _, g := range []*headgate.Gateway{stopped, other} {
		g.Resume()
		held(g, 0)
		g.AwaitReady()
	}
	f.next("a stop")
}

// TestForwardingKilled: a replica that dies with what it was sent takes that with it and nothing
// else, as docs/forwarding.md says; the one to which the request came is as it was before, and
// serves the next.
func TestForwardingKilled(t *testing.T) {
	f := startForwarding(t)
	a := f.gates["a"]

	// In the middle of a stream.
	res, by := f.away(t.Context())
	f.gates[by].Kill()
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	_, last, ok := strings.Cut(string(body), `data: {"error":`)
	if err != nil || !ok || !strings.Contains(last, `"upstream_torn"`) || !strings.Contains(last, "replica "+by) || !strings.HasSuffix(last, "}\n\n") || strings.Contains(last, "data:") {
		t.Errorf("the stream of a replica that was killed ends with %v %q", err, body[max(0, len(body)-600):])
	}
	held(a, 2)
	f.next("a death in a stream")
	if n := f.outcomes(a)["failed"]; n != "1" {
		t.Errorf("%s requests failed elsewhere", n)
	}
}

// TestForwardingKilledEarly: so does one that dies before the first byte.
func TestForwardingKilledEarly(t *testing.T) {
	f := startForwarding(t)
	a := f.gates["a"]
	sent := func() (all []journal.Event) {
		for _, e := range a.Events() {
			if e.Kind == journal.Forwarded {
				all = append(all, e)
			}
		}
		return all
	}
	type answer struct {
		*http.Response
		body []byte
		err  error
	}
	got := make(chan answer, 1)
	by := ""
	for deadline := time.Now().Add(patience); by == ""; {
		headgate.AwaitGrants(t, a.Admin, "a has its two slots and no more", func(v *gateway.GrantsView) bool { return granted(v, "a") == 2 })
		before := len(sent())
		go func() {
			var r answer
			if r.Response, r.err = request(t.Context(), a.URL+"/v1/messages", f.keys.app, f.message(40, false)); r.err == nil {
				defer r.Body.Close()
				r.body, r.err = io.ReadAll(r.Body)
			}
			got <- r
		}()
		a.AwaitPool("it is sent on, or stays", func(s *admission.Snapshot) bool {
			return len(sent()) > before || class(s, "interactive").Queue > 0 || s.Used.Slots > 2
		})
		if all := sent(); len(all) > before {
			by = all[before].Peer
			break
		}
		<-got
		if time.Now().After(deadline) {
			t.Fatal("no request is sent on")
		}
	}
	untilLoad(t, f.engine.URL, 3, 0)
	f.gates[by].Kill()
	r := <-got
	if r.err != nil || r.StatusCode != http.StatusBadGateway || !strings.Contains(string(r.body), `"type":"api_error"`) || !strings.Contains(string(r.body), "it may have run") ||
		r.Header.Get("Headgate-Replica") != by || r.Header.Get("Headgate-Decision") != "forwarded" {
		t.Errorf("%v %v %s", r.err, r.Response, r.body)
	}
	if n := f.outcomes(a)["failed"]; n != "1" {
		t.Errorf("%s requests failed elsewhere", n)
	}
	untilLoad(t, f.engine.URL, 2, 0) // it ran once, and nobody else runs it
	held(a, 2)
	f.next("a death before the first byte")
}
