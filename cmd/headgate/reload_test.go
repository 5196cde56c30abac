package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/config"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

// reloadRig is a gateway in front of the simulated engine whose configuration file
// the test writes.
type reloadRig struct {
	t      *testing.T
	s      *server
	file   string
	engine string
	base   string
	log    bytes.Buffer
	logged sync.Mutex
}

func (r *reloadRig) Write(b []byte) (int, error) {
	r.logged.Lock()
	defer r.logged.Unlock()
	return r.log.Write(b)
}

func (r *reloadRig) wrote() string {
	r.logged.Lock()
	defer r.logged.Unlock()
	return r.log.String()
}

func newReloadRig(t *testing.T, content string) *reloadRig {
	r := &reloadRig{t: t, file: filepath.Join(t.TempDir(), "hg.yaml")}
	fast := simengine.DefaultConfig()
	fast.Speed = 0.02
	fast.MaxNumSeqs, fast.PrefixCaching = 64, true
	_, at, closeEngine, err := startBenchEngine(t.Context(), vllmapi.Config{Engine: fast, Version: "test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeEngine)
	r.engine = at.String()
	r.write(content)
	load := func() (*config.Config, []config.Problem, error) { return config.Load(r.file) }
	cfg, problems, err := load()
	if cfg == nil {
		t.Fatal(problems, err)
	}
	if r.s, err = newServer(cfg, r); err != nil {
		t.Fatal(err)
	}
	r.s.load = load
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.s.run(ctx, func() {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.base = "http://" + r.s.clients.Addr().String()
	for r.s.gateway.Ready() != nil {
		if !pause(t.Context(), 5*time.Millisecond) {
			t.Fatal("not ready")
		}
	}
	return r
}

func (r *reloadRig) write(content string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(strings.ReplaceAll(content, "ENGINE", r.engine)), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// reloaded has the server read a file.
func (r *reloadRig) reloaded(content string) {
	r.t.Helper()
	r.write(content)
	r.s.reread()
}

// two are two configurations in which no name of a class is the same, so that a
// request which is judged by a half of each can't be served.
func two(name string, depth int) string {
	return fmt.Sprintf(`listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
anonymous: {classes: [%[1]s, %[1]s-batch], default: %[1]s, header: true}
pools:
  - name: main
    engines: [{name: sim, kind: vllm, url: "http://ENGINE", slots: 64, observe_every: 50ms}]
    classes:
      - {name: %[1]s, floor: {slots: 1}, queue: {depth: %[2]d}}
      - {name: %[1]s-batch, floor: {slots: 1}, queue: {depth: %[2]d}}
`, name, depth)
}

const reloadBody = `{"model":%q,"max_tokens":%d,"stream":true,"prompt":"one two three"}`

// TestReloadStorm: a thousand changes while streams run, a third of them of files with
// a problem: no stream is dropped or refused, and every answer is of a class of one
// configuration.
func TestReloadStorm(t *testing.T) {
	r := newReloadRig(t, two("odd", 1000))
	// One stream that runs through all of it.
	long := make(chan string, 1)
	go func() {
		res, err := http.Post(r.base+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(reloadBody, demoModel, 1500)))
		if err != nil {
			long <- err.Error()
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		long <- fmt.Sprint(res.StatusCode, strings.Count(string(body), "\"text\""), strings.HasSuffix(string(body), "data: [DONE]\n\n"), err)
	}()
	var over atomic.Bool
	var served atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for !over.Load() {
				res, err := http.Post(r.base+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(reloadBody, demoModel, 4)))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				class := res.Header.Get("Headgate-Class")
				if err != nil || res.StatusCode != http.StatusOK || class != "odd" && class != "even" || !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
					t.Errorf("status %d, class %q, %v: %s", res.StatusCode, class, err, body)
					return
				}
				served.Add(1)
			}
		})
	}
	// Every configuration differs from the one before it.
	for i := range 1000 {
		name := "odd"
		if i%2 == 0 {
			name = "even"
		}
		content := two(name, 500+i%7)
		if i%3 == 2 {
			content = strings.Replace(content, "floor: {slots: 1}", []string{"floor: {slots: 90}", "flor: {slots: 1}", "floor: {slots: -1}"}[i%9/3], 1)
		}
		before := r.s.config.Load()
		r.reloaded(content)
		if bad := i%3 == 2; bad == (r.s.config.Load() != before) {
			t.Fatalf("reload %d, bad %t: %s", i, bad, r.wrote())
		}
	}
	over.Store(true)
	clients.Wait()
	if served.Load() == 0 {
		t.Error("nothing was served meanwhile")
	}
	if got := <-long; got != "200 1500 true <nil>" {
		t.Errorf("the long stream: %s", got)
	}
}

// TestReloadIsTold: what changed, what needs a restart and what is wrong are in the
// log, and the metrics tell whether the file is what is in force.
func TestReloadIsTold(t *testing.T) {
	r := newReloadRig(t, two("a", 100))
	r.reloaded(strings.Replace(two("a", 200), "listen: 127.0.0.1:0", "listen: 127.0.0.1:1", 1))
	r.reloaded(strings.Replace(two("a", 200), "depth: 200", "depth: many", 1))
	for _, want := range []string{
		`"msg":"configuration changed","setting":"pools[main].classes[a].queue.depth","was":"100","is":"200"`,
		`"msg":"this change needs a restart","setting":"listen","in_force":"127.0.0.1:0","configured":"127.0.0.1:1"`,
		`"msg":"the configuration file is refused; what was in force goes on"`, `queue.depth: value many`,
	} {
		if !strings.Contains(r.wrote(), want) {
			t.Errorf("the log lacks %s:\n%s", want, r.wrote())
		}
	}
	res, err := http.Get("http://" + r.s.admin.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	metrics, _ := io.ReadAll(res.Body)
	for _, want := range []string{`headgate_config_reloads_total{outcome="refused"} 1`, `headgate_config_reloads_total{outcome="taken"} 1`, "headgate_config_refused 1"} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestReloadOfPools: a pool that is new serves, one that is gone finishes what it runs,
// and the metrics are of those that there are.
func TestReloadOfPools(t *testing.T) {
	r := newReloadRig(t, two("a", 100))
	more := two("a", 100) + strings.Replace(two("b", 100)[strings.Index(two("b", 100), "  - name: main"):], "name: main\n", "name: other\n    models: [other-model]\n", 1)
	more = strings.Replace(more, "other-model]\n    engines: [{name: sim", "other-model]\n    engines: [{name: sim2", 1)
	more = strings.Replace(more, "name: main\n", "name: main\n    models: ["+demoModel+"]\n", 1)
	more = strings.Replace(more, "classes: [a, a-batch], default: a", "classes: [a, a-batch, b], default: b", 1)
	ask := func(model string) int {
		res, err := http.Post(r.base+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(reloadBody, model, 4)))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if got := ask("other-model"); got != http.StatusNotFound {
		t.Errorf("a model that nobody serves: %d", got)
	}
	r.reloaded(more)
	for r.s.gateway.Ready() != nil {
		if !pause(t.Context(), 5*time.Millisecond) {
			t.Fatal("not ready")
		}
	}
	if got := ask("other-model"); got != http.StatusOK {
		t.Errorf("a model of the new pool: %d\n%s", got, r.wrote())
	}
	r.reloaded(two("a", 100))
	if got := ask("other-model"); got != http.StatusNotFound {
		t.Errorf("a model of the pool that is gone: %d", got)
	}
	if n := len(r.s.present()); n != 1 {
		t.Errorf("%d pools", n)
	}
}
