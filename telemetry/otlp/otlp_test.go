package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"headgate/identity"
	"headgate/telemetry/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector takes exports. answer tells what it says to one; nil is 200.
type collector struct {
	*httptest.Server
	answer func(n int, w http.ResponseWriter)

	mu   sync.Mutex
	got  []export
	came chan struct{}
}

type export struct {
	path   string
	header http.Header
	body   []byte
}

func newCollector(t *testing.T, answer func(n int, w http.ResponseWriter)) *collector {
	c := &collector{answer: answer, came: make(chan struct{}, 100)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		c.got = append(c.got, export{r.URL.Path, r.Header.Clone(), body})
		n := len(c.got)
		c.mu.Unlock()
		if c.answer != nil {
			c.answer(n, w)
		}
		c.came <- struct{}{}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) of(path string) (all []export) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.got {
		if e.path == path {
			all = append(all, e)
		}
	}
	return all
}

// rig is an exporter that sends only when it ends, unless that is changed.
type rig struct {
	*Exporter
	reg *prometheus.Registry
	log bytes.Buffer
}

func newRig(endpoint string, change func(*Config)) *rig {
	r := &rig{reg: prometheus.NewRegistry()}
	cfg := Config{
		Endpoint: endpoint, Traces: true, Queue: 16, Version: "v1", MetricsEvery: time.Hour, Start: time.Unix(1000, 0),
		Gather: prometheus.NewRegistry(), Register: r.reg, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	r.Exporter = New(cfg)
	r.delay, r.pause = time.Hour, time.Millisecond
	return r
}

// finish runs the exporter to its end at once.
func (r *rig) finish() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.Run(ctx)
}

func (r *rig) count(signal, outcome string) float64 {
	for _, f := range must(r.reg.Gather()) {
		for _, m := range f.Metric {
			if m.Label[0].GetValue() == outcome && m.Label[1].GetValue() == signal {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (r *rig) spans(n int) {
	tr := &tracing.Tracer{Share: 1, Export: r.Span}
	for range n {
		tr.Start(nil, "POST /", time.Unix(2000, 0)).Over(time.Unix(2001, 0))
	}
}

// TestSpan: everything that a span says arrives.
func TestSpan(t *testing.T) {
	c := newCollector(t, nil)
	r := newRig(c.URL, func(c *Config) { c.Headers = http.Header{"Api-Key": {"k"}} })
	tr := &tracing.Tracer{Share: 1, Export: r.Span}
	root := tr.Start([]string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}, "POST /v1/chat/completions", time.Unix(2000, 0))
	child := root.Child(tracing.Client, "chat m", time.Unix(2001, 5))
	child.Text("text", "v\xff")
	child.Text("empty", "")
	child.Number("number", -3)
	child.Truth("yes", true)
	child.Truth("no", false)
	child.Event("first", time.Unix(2002, 0))
	child.Fail()
	child.Over(time.Unix(2003, 0))
	root.Over(time.Unix(2004, 0))
	r.finish()

	got := c.of("/v1/traces")
	if len(got) != 1 || got[0].header.Get("Api-Key") != "k" || got[0].header.Get("Content-Type") != "application/x-protobuf" {
		t.Fatalf("%d exports: %v", len(got), got)
	}
	var data tracepb.TracesData
	if err := proto.Unmarshal(got[0].body, &data); err != nil {
		t.Fatal(err)
	}
	resource := data.ResourceSpans[0].Resource.Attributes
	if resource[0].Key != "service.name" || resource[0].Value.GetStringValue() != "headgate" {
		t.Errorf("resource: %v", resource)
	}
	s := data.ResourceSpans[0].ScopeSpans[0].Spans
	if s[1].Name != "POST /v1/chat/completions" || fmt.Sprintf("%x", s[1].TraceId) != "0af7651916cd43dd8448eb211c80319c" ||
		fmt.Sprintf("%x", s[1].ParentSpanId) != "b7ad6b7169203331" || s[1].Flags != 0x301 || s[1].Kind != tracepb.Span_SPAN_KIND_SERVER || s[1].Status != nil {
		t.Errorf("root: %v", s[1])
	}
	if !bytes.Equal(s[0].ParentSpanId, s[1].SpanId) || !bytes.Equal(s[0].TraceId, s[1].TraceId) {
		t.Errorf("the child is of another: %v", s[0])
	}
	s[0].TraceId, s[0].SpanId, s[0].ParentSpanId = nil, nil, nil
	want := `{"name":"chat m", "kind":"SPAN_KIND_CLIENT", "startTimeUnixNano":"2001000000005", "endTimeUnixNano":"2003000000000",` +
		`"attributes":[{"key":"text","value":{"stringValue":"v` + "\uFFFD" + `"}},{"key":"number","value":{"intValue":"-3"}},{"key":"yes","value":{"boolValue":true}},` +
		`{"key":"no","value":{"boolValue":false}}],"events":[{"timeUnixNano":"2002000000000","name":"first"}],"status":{"code":"STATUS_CODE_ERROR"},"flags":257}`
	equalJSON(t, want, protojson.Format(s[0]))
	if r.count("traces", "sent") != 2 {
		t.Errorf("%v sent", r.count("traces", "sent"))
	}
}

func equalJSON(t *testing.T, want, got string) {
	t.Helper()
	var w, g any
	if err := errors.Join(json.Unmarshal([]byte(want), &w), json.Unmarshal([]byte(got), &g)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, g); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestFull: while nothing is sent, what does not fit is dropped at once.
func TestFull(t *testing.T) {
	r := newRig("http://127.0.0.1:1", nil)
	r.spans(20)
	if n := r.count("traces", "dropped"); n != 4 {
		t.Errorf("%v dropped of 20 where 16 fit", n)
	}
	r.finish() // nobody listens there
	if n := r.count("traces", "failed"); n != 16 {
		t.Errorf("%v failed, want 16", n)
	}
	if !strings.Contains(r.log.String(), "it is lost and counted") {
		t.Errorf("log: %s", r.log.String())
	}
}

// TestAnswers: what a collector says decides whether the same export comes again.
func TestAnswers(t *testing.T) {
	status := func(codes ...int) func(int, http.ResponseWriter) {
		return func(n int, w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(codes[min(n, len(codes))-1])
		}
	}
	partly := func(_ int, w http.ResponseWriter) {
		inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)
		inner = protowire.AppendString(protowire.AppendTag(inner, 2, protowire.BytesType), "why")
		_, _ = w.Write(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), inner))
	}
	for _, c := range []struct {
		name                            string
		answer                          func(int, http.ResponseWriter)
		posts                           int
		sent, dropped, failed, rejected float64
	}{
		{"200", nil, 1, 3, 0, 0, 0},
		{"202", status(202), 1, 3, 0, 0, 0},
		{"partly", partly, 1, 1, 0, 0, 2},
		{"nonsense", func(_ int, w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }, 1, 3, 0, 0, 0},
		{"400", status(400), 1, 0, 0, 3, 0},
		{"307", status(307), 1, 0, 0, 3, 0},
		{"503 and 429, then 200", status(503, 429, 200), 3, 3, 0, 0, 0},
		{"502 for good", status(502), tries, 0, 0, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			col := newCollector(t, c.answer)
			r := newRig(col.URL, nil)
			r.most = 3
			r.spans(3)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { r.Run(ctx); close(done) }()
			for range c.posts {
				<-col.came
			}
			cancel()
			<-done
			if n := len(col.of("/v1/traces")); n != c.posts {
				t.Errorf("%d posts, want %d", n, c.posts)
			}
			for outcome, want := range map[string]float64{"sent": c.sent, "dropped": c.dropped, "failed": c.failed, "rejected": c.rejected} {
				if got := r.count("traces", outcome); got != want {
					t.Errorf("%s: %v, want %v", outcome, got, want)
				}
			}
		})
	}
}

// TestTry: each signal that is exported is asked for once, with nothing in it.
func TestTry(t *testing.T) {
	col := newCollector(t, nil)
	r := newRig(col.URL, func(c *Config) { c.Metrics = false })
	if failed := r.Try(t.Context()); len(failed) > 0 || len(col.of("/v1/traces")) != 1 || len(col.of("/v1/metrics")) != 0 {
		t.Errorf("%v", failed)
	}
	col = newCollector(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) })
	r = newRig(col.URL, nil)
	if failed := r.Try(t.Context()); failed["traces"] == nil || !Refusal(failed["traces"]) {
		t.Errorf("%v", failed)
	}
	col.Close()
	if failed := r.Try(t.Context()); failed["traces"] == nil || Refusal(failed["traces"]) {
		t.Errorf("%v", failed)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total", Help: "C."}, []string{"l"})
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "g"})
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h_seconds", Buckets: []float64{1, 2}})
	sum := prometheus.NewSummary(prometheus.SummaryOpts{Name: "s"})
	reg.MustRegister(counter, gauge, h, sum)
	counter.WithLabelValues("a").Add(2)
	gauge.Set(-1.5)
	for _, v := range []float64{0.5, 1.5, 1.5, 9} {
		h.Observe(v)
	}
	sum.Observe(3)
	c := newCollector(t, nil)
	r := newRig(c.URL, func(c *Config) { c.Traces, c.Metrics, c.Gather = false, true, reg })
	r.finish()
	var data metricspb.MetricsData
	if err := proto.Unmarshal(c.of("/v1/metrics")[0].body, &data); err != nil {
		t.Fatal(err)
	}
	m := data.ResourceMetrics[0].ScopeMetrics[0].Metrics
	var names []string
	for _, x := range m {
		names = append(names, x.Name)
	}
	if d := cmp.Diff([]string{"c_total", "g", "h_seconds", "s"}, names); d != "" {
		t.Fatal(d)
	}
	if p := m[0].GetSum().DataPoints[0]; p.GetAsDouble() != 2 || p.Attributes[0].Value.GetStringValue() != "a" || p.StartTimeUnixNano == 0 ||
		!m[0].GetSum().IsMonotonic || m[0].GetSum().AggregationTemporality != cumulative || m[0].Description != "C." {
		t.Errorf("counter: %v", m[0])
	}
	if p := m[1].GetGauge().DataPoints[0]; p.GetAsDouble() != -1.5 {
		t.Errorf("gauge: %v", m[1])
	}
	p := m[2].GetHistogram().DataPoints[0]
	if d := cmp.Diff([]uint64{1, 2, 1}, p.BucketCounts); d != "" || p.Count != 4 || p.GetSum() != 12.5 || !cmp.Equal(p.ExplicitBounds, []float64{1, 2}) {
		t.Errorf("histogram: %v", m[2])
	}
	if p := m[3].GetSummary().DataPoints[0]; p.Count != 1 || p.Sum != 3 {
		t.Errorf("summary: %v", m[3])
	}
	if n := r.count("metrics", "sent"); n != 4 {
		t.Errorf("%v points sent, want 4", n)
	}
}

// TestLogs: a line goes to both, with its attributes, and a secret stays one.
func TestLogs(t *testing.T) {
	c := newCollector(t, nil)
	r := newRig(c.URL, func(c *Config) { c.Traces, c.Logs = false, true })
	var local bytes.Buffer
	log := slog.New(r.Handler(slog.NewJSONHandler(&local, nil)))
	log.Debug("hidden")
	log.With("pool", "main").WithGroup("g").Warn("it broke", "err", errors.New("why"), "n", 3, "f", 0.5, "yes", true, "took", time.Second,
		"key", identity.NewSecret("hunter2"), "in", struct{ Key identity.Secret }{identity.NewSecret("hunter2")}, slog.Group("h", "x", 1))
	r.finish()
	if s := local.String(); !strings.Contains(s, `"pool":"main","g":{"err":"why"`) || strings.Contains(s, "hidden") {
		t.Errorf("the local log: %s", s)
	}
	var data logspb.LogsData
	if err := proto.Unmarshal(c.of("/v1/logs")[0].body, &data); err != nil {
		t.Fatal(err)
	}
	records := data.ResourceLogs[0].ScopeLogs[0].LogRecords
	if len(records) != 1 || records[0].TimeUnixNano == 0 {
		t.Fatalf("%v", records)
	}
	records[0].TimeUnixNano, records[0].ObservedTimeUnixNano = 0, 0
	equalJSON(t, `{"severityNumber":"SEVERITY_NUMBER_WARN","severityText":"WARN","body":{"stringValue":"it broke"},"attributes":[
		{"key":"pool","value":{"stringValue":"main"}},{"key":"g.err","value":{"stringValue":"why"}},{"key":"g.n","value":{"intValue":"3"}},
		{"key":"g.f","value":{"doubleValue":0.5}},{"key":"g.yes","value":{"boolValue":true}},{"key":"g.took","value":{"stringValue":"1s"}},
		{"key":"g.key","value":{"stringValue":"[redacted]"}},{"key":"g.in","value":{"stringValue":"{\"Key\":\"[redacted]\"}"}},
		{"key":"g.h.x","value":{"intValue":"1"}}]}`, protojson.Format(records[0]))
}

// TestRecovers: it is logged once that a collector is gone, and that it is back.
func TestRecovers(t *testing.T) {
	c := newCollector(t, func(n int, w http.ResponseWriter) {
		if n < 3 {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	r := newRig(c.URL, nil)
	for range 3 {
		r.spans(1)
		r.finish()
	}
	log := r.log.String()
	if strings.Count(log, "does not take") != 1 || strings.Count(log, "takes what is exported again") != 1 {
		t.Errorf("log: %s", log)
	}
	if problems, err := testutil.GatherAndLint(r.reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestParseHeaders(t *testing.T) {
	h, err := ParseHeaders("api-key=k=1, Authorization=Bearer%20x")
	if want := (http.Header{"Api-Key": {"k=1"}, "Authorization": {"Bearer x"}}); err != nil || !cmp.Equal(h, want) {
		t.Errorf("%v, %v", h, err)
	}
	for _, bad := range []string{"", "hunter2", "a=1,", "=hunter2", "a b=hunter2", "a=hunter2%0d%0ab", "a=hunter2%"} {
		if _, err := ParseHeaders(bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzPartial(f *testing.F) {
	f.Add([]byte{10, 2, 8, 3})
	f.Fuzz(func(t *testing.T, b []byte) { partial(b) })
}

// BenchmarkSpan is what a sampled request pays where it runs: a request's span and
// an attempt's, with their attributes.
func BenchmarkSpan(b *testing.B) {
	tr := &tracing.Tracer{Share: 1, Export: func(*tracing.Span) {}}
	headers := []string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	b.ReportAllocs()
	for range b.N {
		s := tr.Start(headers, "POST /v1/chat/completions", time.Time{})
		c := s.Child(tracing.Client, "chat", time.Time{})
		for range 10 {
			c.Text("gen_ai.request.model", "m")
		}
		c.Traceparent()
		c.Over(time.Time{})
		s.Over(time.Time{})
	}
}

// BenchmarkExport is what the background pays for a span.
func BenchmarkExport(b *testing.B) {
	r := newRig("", nil)
	tr := &tracing.Tracer{Share: 1, Export: r.Span}
	var batch []*tracing.Span
	for range batchMost {
		s := tr.Start(nil, "POST /v1/chat/completions", time.Now())
		for range 10 {
			s.Text("gen_ai.request.model", "m")
		}
		batch = append(batch, s)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := pack(r.traceData(batch)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batchMost, "ns/span")
}
