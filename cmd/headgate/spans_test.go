package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"headgate/console/now"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

// TestSpansMakeARecallExact: a request of the whole gateway in front of the
// simulated engine opens a recall. When its engine began it is an interval until
// the engine exports its spans, which it does here when it stops.
func TestSpansMakeARecallExact(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	defer web.Close()
	cfg := parsed(t, fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0, otlp_traces: true}
log: {level: error}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://%s", slots: 1, observe_every: 20ms}]
    classes:
      - {name: interactive, floor: {slots: 1}, unlent: {slots: 0}, idle_after: 50ms}
      - {name: batch, reclaim: reclaim, queue: {wait: 1h}}
`, web.Listener.Addr()))
	log := &strings.Builder{}
	s, err := newServer(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	admin, clients := "http://"+s.admin.Addr().String(), "http://"+s.clients.Addr().String()

	engine := simengine.DefaultConfig()
	engine.MaxNumSeqs, engine.Speed = 1, 0.05
	sim, err := vllmapi.New(vllmapi.Config{Engine: engine, TracesEndpoint: admin + "/v1/traces", TracesDelay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	web.Config.Handler = sim.Handler()
	web.Start()
	running, stopEngine := context.WithCancel(context.Background())
	engineOver := make(chan struct{})
	go func() { sim.Run(running); close(engineOver) }()
	serving, stopServer := context.WithCancel(context.Background())
	serverOver := make(chan error, 1)
	go func() { serverOver <- s.run(serving, func() {}) }()
	defer func() {
		stopEngine()
		<-engineOver
		stopServer()
		if err := <-serverOver; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log)
		}
	}()

	ask := func(ctx context.Context, class string, tokens int) (int, error) {
		body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":"hello"}]}`, sim.ModelName(), tokens)
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, clients+"/v1/chat/completions", strings.NewReader(body))
		r.Header.Set("Headgate-Class", class)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	until := func(what string, so func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not so within %v: %s", patience, what)
			}
		}
	}
	recall := func() now.Recall {
		t.Helper()
		var all []now.Recall
		if err := json.Unmarshal([]byte(page(t, admin+"/api/recalls")), &all); err != nil || len(all) > 1 {
			t.Fatalf("%v: %d recalls", err, len(all))
		}
		if len(all) == 0 {
			return now.Recall{}
		}
		return all[0]
	}

	until("the gateway is ready", func() bool {
		resp, err := http.Get(admin + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	leaves, leave := context.WithCancel(context.Background())
	batch := make(chan struct{})
	go func() { _, _ = ask(leaves, "batch", 4000); close(batch) }()
	defer func() { leave(); <-batch }()
	until("batch borrows", func() bool {
		return strings.Contains(page(t, admin+"/metrics"), `headgate_class_loans{class="batch",pool="main"} 1`)
	})
	if status, err := ask(context.Background(), "interactive", 4); status != http.StatusOK || err != nil {
		t.Fatalf("interactive: %d, %v", status, err)
	}
	var before now.Recall
	until("the request is over", func() bool { before = recall(); return before.Scheduled != nil })
	if before.ScheduledUpper == nil || *before.Scheduled > *before.Dispatched {
		t.Fatalf("before the engine has told: %+v, want an interval from the dispatch on", before)
	}
	leave()
	<-batch
	stopEngine()
	<-engineOver
	after := recall()
	if after.ScheduledUpper != nil || *after.Scheduled < *before.Scheduled || *after.Scheduled > *before.ScheduledUpper {
		t.Errorf("scheduled at %v to %v s, want a moment from %v to %v", *after.Scheduled, after.ScheduledUpper, *before.Scheduled, *before.ScheduledUpper)
	}
	metrics := page(t, admin+"/metrics")
	for _, line := range []string{
		`headgate_spans_total{outcome="taken"} 1`, `headgate_spans_total{outcome="unknown"} 0`, `headgate_spans_total{outcome="impossible"} 0`,
		`headgate_recall_seconds_count{class="interactive",event="scheduled",pool="main"} 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
	resp, err := http.Post(clients+"/v1/traces", "application/x-protobuf", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("/v1/traces for clients: %d, want 404", resp.StatusCode)
	}
}

func page(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d, %v", url, resp.StatusCode, err)
	}
	return string(b)
}
