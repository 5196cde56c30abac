package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

// collector is an OTLP receiver that keeps what it gets, once it is let.
type collector struct {
	*httptest.Server
	let chan struct{} // closed: it answers

	mu      sync.Mutex
	spans   []*tracepb.Span
	metrics map[string]bool
	logs    []string
}

func newCollector(t *testing.T) *collector {
	c := &collector{let: make(chan struct{}), metrics: map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-c.let
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		switch r.URL.Path {
		case "/v1/traces":
			var d tracepb.TracesData
			err = proto.Unmarshal(body, &d)
			for _, s := range d.ResourceSpans {
				c.spans = append(c.spans, s.ScopeSpans[0].Spans...)
			}
		case "/v1/metrics":
			var d metricspb.MetricsData
			err = proto.Unmarshal(body, &d)
			for _, m := range d.ResourceMetrics[0].ScopeMetrics[0].Metrics {
				c.metrics[m.Name] = true
			}
		case "/v1/logs":
			var d logspb.LogsData
			err = proto.Unmarshal(body, &d)
			for _, l := range d.ResourceLogs[0].ScopeLogs[0].LogRecords {
				c.logs = append(c.logs, l.Body.GetStringValue())
			}
		}
		if err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// traced is a gateway in front of one simulated engine of one slot, that exports.
type traced struct {
	admin, clients, model string
	stop                  func()

	mu       sync.Mutex
	received []http.Header // of the engine's requests for work
}

func startTraced(t *testing.T, more string) *traced {
	g := &traced{}
	engine := simengine.DefaultConfig()
	engine.MaxNumSeqs, engine.Speed = 1, 0.2
	sim, err := vllmapi.New(vllmapi.Config{Engine: engine})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			g.mu.Lock()
			g.received = append(g.received, r.Header.Clone())
			g.mu.Unlock()
		}
		sim.Handler().ServeHTTP(w, r)
	}))
	cfg := parsed(t, fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "%s", slots: 1, observe_every: 20ms}]
    classes:
      - {name: interactive, floor: {slots: 1}, unlent: {slots: 0}, idle_after: 50ms}
      - {name: batch, reclaim: reclaim, queue: {wait: 1h}}
`, web.URL)+more)
	log := &strings.Builder{}
	s, err := newServer(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	g.admin, g.clients, g.model = "http://"+s.admin.Addr().String(), "http://"+s.clients.Addr().String(), sim.ModelName()
	running, stopEngine := context.WithCancel(context.Background())
	engineOver := make(chan struct{})
	go func() { sim.Run(running); close(engineOver) }()
	serving, stopServer := context.WithCancel(context.Background())
	serverOver := make(chan error, 1)
	go func() { serverOver <- s.run(serving, func() {}) }()
	g.stop = sync.OnceFunc(func() {
		stopServer()
		if err := <-serverOver; err != nil {
			t.Error(err)
		}
		stopEngine()
		<-engineOver
		web.Close()
		if t.Failed() {
			t.Log(log)
		}
	})
	t.Cleanup(g.stop)
	g.until(t, "the gateway is ready", func() bool {
		resp, err := http.Get(g.admin + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return g
}

func (g *traced) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so within %v: %s", patience, what)
		}
	}
}

func (g *traced) ask(class, words string, tokens int, headers ...string) (int, error) {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, g.model, tokens, words)
	r, _ := http.NewRequest(http.MethodPost, g.clients+"/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Headgate-Class", class)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func attributes(s *tracepb.Span) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes {
		switch {
		case a.Value.GetStringValue() != "":
			m[a.Key] = a.Value.GetStringValue()
		default:
			m[a.Key] = fmt.Sprint(a.Value.GetIntValue(), a.Value.GetBoolValue())
		}
	}
	return m
}

// TestTraceAcrossAReclaim: a batch request of a client that traces borrows the only
// slot and is reclaimed; it goes on where it was, in a second attempt. All of it is
// one trace, the client's, and the engine is told of it by each attempt's own span.
func TestTraceAcrossAReclaim(t *testing.T) {
	const trace, parent, secret = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "xyzzy"
	c := newCollector(t)
	close(c.let)
	g := startTraced(t, fmt.Sprintf("otlp: {endpoint: %q}\n", c.URL))
	batch := make(chan string, 1)
	go func() {
		status, err := g.ask("batch", secret, 120, "Traceparent", "00-"+trace+"-"+parent+"-00", "Tracestate", "vendor=1")
		batch <- fmt.Sprint(status, err)
	}()
	g.until(t, "batch borrows", func() bool {
		return strings.Contains(page(t, g.admin+"/metrics"), `headgate_class_loans{class="batch",pool="main"} 1`)
	})
	g.until(t, "batch has tokens", func() bool {
		return strings.Contains(page(t, g.admin+"/metrics"), `headgate_time_to_first_token_seconds_count{class="batch",pool="main"} 1`)
	})
	if status, err := g.ask("interactive", secret, 4); status != http.StatusOK || err != nil {
		t.Fatalf("interactive: %d, %v", status, err)
	}
	if got := <-batch; got != "200 <nil>" {
		t.Fatalf("batch: %s", got)
	}
	g.stop()

	var roots, waits, attempts []*tracepb.Span
	for _, s := range c.spans {
		if strings.Contains(s.String(), secret) {
			t.Errorf("a prompt is in a span: %v", s)
		}
		if hex.EncodeToString(s.TraceId) != trace {
			continue
		}
		switch {
		case s.Kind == tracepb.Span_SPAN_KIND_SERVER:
			roots = append(roots, s)
		case s.Name == "headgate.queue":
			waits = append(waits, s)
		case s.Kind == tracepb.Span_SPAN_KIND_CLIENT:
			attempts = append(attempts, s)
		}
	}
	if len(roots) != 1 || len(waits) == 0 || len(attempts) != 2 {
		t.Fatalf("%d roots, %d waits, %d attempts of the trace: %v", len(roots), len(waits), len(attempts), c.spans)
	}
	root := roots[0]
	if hex.EncodeToString(root.ParentSpanId) != parent || root.Name != "POST /v1/chat/completions" || attributes(root)["http.response.status_code"] != "200 false" {
		t.Errorf("root: %v", root)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, s := range slices.Concat(waits, attempts) {
		if !bytes.Equal(s.ParentSpanId, root.SpanId) || s.StartTimeUnixNano < root.StartTimeUnixNano || s.EndTimeUnixNano > root.EndTimeUnixNano {
			t.Errorf("span %d is not within the request's: %v", i, s)
		}
	}
	for _, s := range attempts {
		want := fmt.Sprintf("00-%s-%x-01", trace, s.SpanId)
		if !slices.ContainsFunc(g.received, func(h http.Header) bool { return h.Get("Traceparent") == want }) {
			t.Errorf("the engine was not sent %s", want)
		}
	}
	for _, h := range g.received {
		if h.Get("Tracestate") != "" {
			t.Errorf("the engine was sent the client's tracestate: %v", h)
		}
	}
	first, second := attributes(attempts[0]), attributes(attempts[1])
	for key, want := range map[string]string{
		"headgate.cause": "reclaimed", "headgate.loan": "0 true", "headgate.attempt": "1 false", "headgate.engine": "gpu0", "gen_ai.operation.name": "chat",
		"gen_ai.request.model": g.model, "gen_ai.provider.name": "vllm",
	} {
		if first[key] != want {
			t.Errorf("first attempt: %s is %q, want %q", key, first[key], want)
		}
	}
	if !strings.HasPrefix(first["headgate.reclaimed_for"], "req_") || first["headgate.recall"] == "0 false" || first["headgate.kept_tokens"] == "0 false" || first["headgate.kept_tokens"] != second["headgate.continued_tokens"] {
		t.Errorf("reclaimed for %s with %s kept; the second goes on from %s", first["headgate.reclaimed_for"], first["headgate.kept_tokens"], second["headgate.continued_tokens"])
	}
	if second["headgate.cause"] != "finished" || second["headgate.attempt"] != "2 false" || len(attempts[1].Events) == 0 || attempts[0].Status != nil {
		t.Errorf("second attempt: %v", attempts[1])
	}
	for _, name := range []string{"headgate_requests_total", "headgate_queue_wait_seconds", "go_goroutines", "headgate_otlp_items_total"} {
		if !c.metrics[name] {
			t.Errorf("%s was not exported", name)
		}
	}
	for _, line := range []string{"serving", "stopped"} {
		if !slices.Contains(c.logs, line) {
			t.Errorf("the line %q was not exported", line)
		}
	}
}

// TestCollectorHangs: requests are served and the process ends while the collector
// answers nothing.
func TestCollectorHangs(t *testing.T) {
	c := newCollector(t)
	defer close(c.let)
	g := startTraced(t, fmt.Sprintf("otlp: {endpoint: %q, queue: 16, metrics: false}\n", c.URL))
	for range 20 {
		if status, err := g.ask("interactive", "hello", 1); status != http.StatusOK || err != nil {
			t.Fatalf("%d, %v", status, err)
		}
	}
	g.stop()
}

// TestEstimatesOutliveTheProcess: what a first process has learned about the
// engine's tokens is what the second prices its first prompt by.
func TestEstimatesOutliveTheProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "estimates.json")
	more := fmt.Sprintf("estimates: {file: %q}\n", file)
	first := startTraced(t, more)
	reserved := func(g *traced) string {
		before := reservedTokens(t, g.admin)
		if status, err := g.ask("interactive", prompt, 1); status != http.StatusOK || err != nil {
			t.Fatalf("%d, %v", status, err)
		}
		return fmt.Sprint(reservedTokens(t, g.admin) - before)
	}
	fresh := reserved(first)
	for range 8 {
		reserved(first)
	}
	learned := reserved(first)
	first.stop()
	if learned == fresh {
		t.Fatalf("nothing was learned: a prompt is %s tokens", fresh)
	}
	var state estimatesState
	b, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(b, &state) != nil || len(state.Pools) != 1 || len(state.Pools[0].Models) != 1 {
		t.Fatalf("%v: %s", err, b)
	}
	second := startTraced(t, more)
	if got := reserved(second); got != learned {
		t.Errorf("the second process prices its first prompt at %s tokens, the first did at %s in the end", got, learned)
	}
	second.stop()

	for name, content := range map[string]string{
		"torn": string(b[:len(b)/2]), "older": strings.Replace(string(b), `"version":1`, `"version":0`, 1),
		"impossible": strings.Replace(string(b), `"reported":`, `"reported":-`, 1),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		g := startTraced(t, more)
		if got := reserved(g); got != fresh {
			t.Errorf("%s: a prompt is %s tokens, want %s as if there were no file", name, got, fresh)
		}
		g.stop()
	}
	if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// prompt is of words that the simulated engine counts otherwise than wire estimates.
var prompt = strings.Repeat("hippopotomonstrosesquippedaliophobia ", 40)

func reservedTokens(t *testing.T, admin string) (n float64) {
	t.Helper()
	for line := range strings.Lines(page(t, admin+"/metrics")) {
		if v, ok := strings.CutPrefix(line, `headgate_kv_tokens_total{account="reserved",class="interactive",pool="main"} `); ok {
			if _, err := fmt.Sscan(v, &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}
