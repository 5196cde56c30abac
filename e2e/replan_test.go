package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/e2e/engine/gguf"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/journal"
	"headgate/relay"
)

// switchScript is the hook of the tests: it ends the engine that it started last, and
// starts another in its place, which ends with the test's process.
const switchScript = `#!/bin/sh
# usage: switch DIR PARENT COMMAND...
dir=$1 parent=$2
shift 2
alive() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }
if [ -f "$dir/pid" ]; then
  old=$(cat "$dir/pid")
  kill "$old"
  n=0
  while alive "$old" && [ $n -lt 400 ]; do sleep 0.02; n=$((n+1)); done
fi
[ $# -gt 0 ] || exit 0
"$@" >>"$dir/log" 2>&1 </dev/null &
new=$!
echo $new >"$dir/pid"
{ while alive "$parent" && alive $new; do sleep 1; done; kill $new; } >/dev/null 2>&1 </dev/null &
`

// profiles is an engine that a hook restarts to be deep or broad.
type profiles struct {
	kind, url, model string
	yaml             string // of replan.profiles
	dir              string
	exact            bool // it says the same in each
}

// launches are how an engine listens on a port, deep and broad.
type launches struct{ deep, broad []string }

const (
	deepContext, broadContext = 4096, 1024
	broadSlots                = 4
)

func newProfiles(t *testing.T, kind, model string, of func(port string) launches) *profiles {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	p := &profiles{kind: kind, model: model, url: "http://127.0.0.1:" + port, dir: t.TempDir()}
	script := filepath.Join(p.dir, "switch")
	if err := os.WriteFile(script, []byte(switchScript), 0o700); err != nil {
		t.Fatal(err)
	}
	c := of(port)
	hook := func(command []string) []string {
		return append([]string{script, p.dir, strconv.Itoa(os.Getpid())}, command...)
	}
	listed := func(command []string) string { b, _ := json.Marshal(hook(command)); return string(b) }
	p.yaml = fmt.Sprintf(`        - {name: deep, slots: 1, kv_tokens: %d, max_context: %d, cost: 1s, switch: {command: %s, timeout: 1m}}
        - {name: broad, slots: %d, kv_tokens: %d, max_context: %d, cost: 1s, switch: {command: %s, timeout: 1m}}
`, deepContext, deepContext, listed(c.deep), broadSlots, broadSlots*broadContext, broadContext, listed(c.broad))
	run := func(command []string) {
		h := hook(command)
		if out, err := exec.Command(h[0], h[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", h, err, out)
		}
	}
	run(c.broad)
	t.Cleanup(func() {
		run(nil)
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			t.Logf("the engine's log ends with\n%s", log[max(0, len(log)-4000):])
		}
	})
	return p
}

// TestTenSwitches: an engine under load is restarted ten times to be deep or broad. Every
// request is answered whole, sessions go on, and what one was promised it has.
func TestTenSwitches(t *testing.T) {
	t.Parallel()
	t.Run("headgate", func(t *testing.T) {
		binary := headgate.Binary(t)
		p := newProfiles(t, "vllm", "simulated", func(port string) launches {
			engine := func(slots, context int) []string {
				return []string{
					binary, "engine", "--listen", "127.0.0.1:" + port, "--served-model-name", "simulated", "--speed", "0.05", "--enable-prefix-caching",
					"--max-num-seqs", strconv.Itoa(slots), "--max-model-len", strconv.Itoa(context), "--num-gpu-blocks", strconv.Itoa(1 + slots*context/16),
				}
			}
			return launches{deep: engine(1, deepContext), broad: engine(broadSlots, broadContext)}
		})
		p.exact = true
		tenSwitches(t, p)
	})
	binary := os.Getenv(realengine.LlamaServerEnv)
	if binary == "" {
		return // nobody has to have one
	}
	t.Run("llama-server", func(t *testing.T) {
		model := filepath.Join(t.TempDir(), "model.gguf")
		if err := gguf.WriteFile(model, gguf.Options{Layers: 4, Width: 256, Exact: true}); err != nil {
			t.Fatal(err)
		}
		tenSwitches(t, newProfiles(t, "llamacpp", "random-llama", func(port string) launches {
			server := func(slots, context int) []string {
				return []string{
					binary, "--host", "127.0.0.1", "--port", port, "--model", model, "--alias", "random-llama", "--threads", "1", "--metrics",
					"--parallel", strconv.Itoa(slots), "--ctx-size", strconv.Itoa(slots * context),
				}
			}
			return launches{deep: server(1, deepContext), broad: server(broadSlots, broadContext)}
		}))
	})
}

// load is clients that ask without end, and what became of it.
type load struct {
	t       *testing.T
	g       *headgate.Gateway
	p       *profiles
	k       keys
	wait    sync.WaitGroup
	over    atomic.Bool
	answers atomic.Int32
	want    sync.Map // answers by prompt and length
}

// ask makes one request and checks its answer.
func (l *load) ask(who, key, prompt string, tokens int, headers ...string) http.Header {
	body := object{"model": l.p.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": true, "stream_options": object{"include_usage": true}}
	header, r, err := streamWith(l.t.Context(), l.g.URL+completionsPath, key, body, headers...)
	l.answers.Add(1)
	switch {
	case err != nil:
		l.t.Errorf("%s: %v", who, err)
		return header
	case !r.finished || r.finish != "length" || r.usage == nil || r.usage.Completion != tokens:
		l.t.Errorf("%s: finish reason %q, usage %+v, want %d tokens", who, r.finish, r.usage, tokens)
	}
	if l.p.exact {
		if want, _ := l.want.LoadOrStore(fmt.Sprint(tokens, prompt), r.text); want != r.text {
			l.t.Errorf("%s: the answer is\n%q, and was\n%q", who, r.text, want)
		}
	}
	return header
}

// keep has a client ask until the load is over.
func (l *load) keep(who, key, prompt string, tokens int, headers ...string) {
	l.wait.Go(func() {
		for !l.over.Load() && !l.t.Failed() {
			l.ask(who, key, prompt, tokens, headers...)
		}
	})
}

// streamWith streams with headers, and returns the answer's header and what came.
func streamWith(ctx context.Context, url, key string, body object, headers ...string) (http.Header, *result, error) {
	b, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(b)))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return res.Header, nil, fmt.Errorf("%s: %s", res.Status, text)
	}
	s := newStream(res.Body)
	for {
		switch err := s.next(); err {
		case nil:
		case io.EOF:
			return res.Header, &s.result, nil
		default:
			return res.Header, &s.result, err
		}
	}
}

// plan is what the gateway's planner is at.
func (l *load) plan() *relay.PlanView {
	l.t.Helper()
	res, err := http.Get(l.g.Admin + "/api/plan")
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	var views []relay.PlanView
	if err := json.NewDecoder(res.Body).Decode(&views); err != nil || len(views) != 1 {
		l.t.Fatalf("/api/plan: %v: %+v", err, views)
	}
	return &views[0]
}

// await waits until the engine serves in a profile.
func (l *load) await(profile string) {
	l.t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		v := l.plan()
		if v.Profile == profile && v.State == "settled" {
			return
		}
		if time.Now().After(until) {
			l.t.Fatalf("the engine is not %s in time: %s%s", profile, v.View, v.Amiss)
		}
	}
}

// set runs headgate plan --set.
func (l *load) set(profile string) {
	l.t.Helper()
	out, err := exec.Command(headgate.Binary(l.t), "plan", "--admin", l.g.Admin, "--set", profile, "--reason", "test").CombinedOutput()
	if err != nil {
		l.t.Fatalf("headgate plan: %v: %s", err, out)
	}
}

func tenSwitches(t *testing.T, p *profiles) {
	k := newKeys(t)
	g := headgate.Start(t, fmt.Sprintf(`%spools:
  - name: main
    engines:
      - {name: engine, kind: %s, url: "%s", observe_every: 50ms}
    replan:
      home: broad
      dwell: 1h
      contention_after: 24h
      drain_timeout: 30s
      session_timeout: 1h
      max_per_hour: 100
      profiles:
%s    classes:
      - {name: interactive, floor: {slots: 1}, queue: {depth: 100, per_tenant: 100, wait: 2m}}
      - {name: batch, reclaim: reclaim, pin_after: 0, grace: 1h, queue: {depth: 100, per_tenant: 100, wait: 0s}}
`, k.yaml, p.kind, p.url, p.yaml)).AwaitReady()
	l := &load{t: t, g: g, p: p, k: k}
	l.await("broad")
	l.keep("a chat", k.app, "the river and the bridge", 24, "Headgate-Session", "chat")
	l.keep("another", k.app, "a mountain", 12)
	for i := range 3 {
		l.keep(fmt.Sprint("batch ", i), k.jobs, []string{"the river", "some words", "a bridge"}[i], 200)
	}
	long := strings.Repeat("word ", 1500)
	for i := range 5 {
		session := []string{"Headgate-Session", fmt.Sprint("deep ", i)}
		// A long request waits for its profile, and what it asked for is a promise then.
		var first sync.WaitGroup
		first.Go(func() {
			h := l.ask("the long one", k.app, long, 16, append(session, "Headgate-Context", "3000")...)
			if h.Get("Headgate-Profile") != "deep" || h.Get("Headgate-Context") != "3000" {
				t.Errorf("the long one was answered in %q with %q tokens", h.Get("Headgate-Profile"), h.Get("Headgate-Context"))
			}
		})
		l.set("deep")
		l.await("deep")
		first.Wait()
		// Whoever wants it broad has to wait for the session's end.
		l.set("broad")
		for range 2 {
			if h := l.ask("the session", k.app, long, 16, session...); h.Get("Headgate-Profile") != "deep" || h.Get("Headgate-Context") != "3000" {
				t.Errorf("the session was answered in %q with %q tokens", h.Get("Headgate-Profile"), h.Get("Headgate-Context"))
			}
		}
		if v := l.plan(); v.Profile != "deep" || v.Promised != 3000 || !strings.Contains(v.Why, "promised") {
			t.Errorf("with a promise of 3000 tokens the plan is %s, %d promised", v.View, v.Promised)
		}
		l.ask("the session's last", k.app, "goodbye", 4, append(session, "Headgate-Context", "0")...)
		l.await("broad")
	}
	l.over.Store(true)
	l.wait.Wait()
	g.AwaitPool("nothing is held", idle)
	g.Terminate()
	g.Wait()

	switches, reclaims, arrived, finished := 0, 0, 0, 0
	var took, drains time.Duration // of all switches, and of their drains
	var drained int64
	for _, e := range g.Events() {
		switch {
		case e.Kind == journal.Planned && e.Plan.Does == "drain":
			drained = e.Mono
		case e.Kind == journal.Planned && e.Plan.Does == "switch":
			switches++
			drains += time.Duration(e.Mono - drained)
		case e.Kind == journal.Planned && e.Plan.Does == "reopen":
			took += time.Duration(e.Plan.TookNS)
		case e.Kind == journal.Planned && e.Plan.Does == "return":
			t.Errorf("a switch failed: %+v", e.Plan)
		case e.Kind == journal.Ended && e.Cause == "reclaimed":
			reclaims++
		case e.Kind == journal.Ended && e.Cause != "finished":
			t.Errorf("an attempt ended by %s", e.Cause)
		case e.Kind == journal.Rejected:
			t.Errorf("a request was refused for %s", e.Cause)
		case e.Kind == journal.Arrived:
			arrived++
		case e.Kind == journal.Finished:
			finished++
		}
	}
	if switches != 10 {
		t.Errorf("%d switches, want 10", switches)
	}
	if arrived != finished || finished != int(l.answers.Load()) {
		t.Errorf("%d requests arrived, %d finished, and clients had %d answers", arrived, finished, l.answers.Load())
	}
	t.Logf("%d requests and %d loans that gave way over %d switches of %v, of which %v were drains", finished, reclaims, switches,
		(took / 10).Round(time.Millisecond), (drains / 10).Round(time.Millisecond))
	if reclaims == 0 {
		t.Error("no loan gave way to a switch, so nothing of that was tested")
	}
}
