package spans

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

// rig is a receiver that notes what it hands on.
type rig struct {
	*Receiver
	got []Span
	say func(Span) Outcome
}

func newRig() *rig {
	g := &rig{}
	g.Receiver = New(func(s Span) Outcome {
		g.got = append(g.got, s)
		if g.say != nil {
			return g.say(s)
		}
		return Taken
	}, prometheus.NewRegistry())
	return g
}

func (g *rig) post(body []byte, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/v1/traces", bytes.NewReader(body))
	r.Header.Set("Content-Type", typeProtobuf)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

func (g *rig) count(o Outcome) float64 { return testutil.ToFloat64(g.spans.WithLabelValues(string(o))) }

func text(key, v string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
}

func number(key string, v float64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}}
}

func whole(key string, v int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}}
}

func export(spans ...*tracepb.Span) *tracepb.TracesData {
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: spans}}}}}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

// TestExporter: what OpenTelemetry's own exporter has sent (testdata says which)
// for two requests with vLLM's attributes and something else.
func TestExporter(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil || len(files) == 0 {
		t.Fatal("no recorded export", err)
	}
	want := []Span{
		{Request: "chatcmpl-one-1f", Queue: 250 * time.Millisecond, Prefill: 125 * time.Millisecond},
		{Request: "cmpl-two-20-0", Queue: 1250 * time.Millisecond, Prefill: 125 * time.Millisecond},
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var data tracepb.TracesData
		if err := proto.Unmarshal(body, &data); err != nil {
			t.Fatal(err)
		}
		document, err := protojson.Marshal(&data)
		if err != nil {
			t.Fatal(err)
		}
		for name, request := range map[string]struct {
			body    []byte
			headers []string
		}{
			"protobuf":      {body, nil},
			"protobuf gzip": {packed(t, body), []string{"Content-Encoding", "gzip"}},
			"json":          {document, []string{"Content-Type", "application/json; charset=utf-8"}},
			"json gzip":     {packed(t, document), []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}},
		} {
			g := newRig()
			w := g.post(request.body, request.headers...)
			if w.Code != http.StatusOK {
				t.Fatalf("%s %s: %d %q", file, name, w.Code, w.Body)
			}
			if empty := map[bool]string{true: "{}", false: ""}[strings.HasPrefix(name, "json")]; w.Body.String() != empty {
				t.Errorf("%s: answered %q, want %q", name, w.Body, empty)
			}
			if d := cmp.Diff(want, g.got); d != "" {
				t.Errorf("%s %s (-want +got):\n%s", file, name, d)
			}
			if g.count(Taken) != 2 || g.count(Foreign) != 1 {
				t.Errorf("%s: %v taken, %v foreign", name, g.count(Taken), g.count(Foreign))
			}
		}
	}
}

// TestAttributes: units and what is no request's span, the same in both
// encodings.
func TestAttributes(t *testing.T) {
	id := text(attrRequest, "chatcmpl-a-1")
	tests := []struct {
		name  string
		attrs []*commonpb.KeyValue
		want  []Span
	}{
		{"seconds as a float", []*commonpb.KeyValue{id, number(attrQueue, .0000015), number(attrPrefill, 2)}, []Span{{"chatcmpl-a-1", 1500, 2 * time.Second}}},
		{"seconds as an integer", []*commonpb.KeyValue{whole(attrQueue, 3), id}, []Span{{"chatcmpl-a-1", 3 * time.Second, -1}}},
		{"no wait at all", []*commonpb.KeyValue{id, number(attrQueue, 0)}, []Span{{"chatcmpl-a-1", 0, -1}}},
		{"the last counts", []*commonpb.KeyValue{id, number(attrQueue, 1), number(attrQueue, 2)}, []Span{{"chatcmpl-a-1", 2 * time.Second, -1}}},
		{"negative", []*commonpb.KeyValue{id, number(attrQueue, -1)}, nil},
		{"beyond a day", []*commonpb.KeyValue{id, number(attrQueue, 86401)}, nil},
		{"no queue", []*commonpb.KeyValue{id, number(attrPrefill, 1)}, nil},
		{"a queue that is text", []*commonpb.KeyValue{id, text(attrQueue, "1")}, nil},
		{"no id", []*commonpb.KeyValue{number(attrQueue, 1)}, nil},
		{"an id of bytes without end", []*commonpb.KeyValue{text(attrRequest, strings.Repeat("a", maxRequest+1)), number(attrQueue, 1)}, nil},
		{"no attributes", nil, nil},
	}
	for _, test := range tests {
		m := export(&tracepb.Span{Name: "llm_request", Attributes: test.attrs})
		document, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for kind, body := range map[string][]byte{typeProtobuf: marshal(t, m), typeJSON: document} {
			g := newRig()
			if w := g.post(body, "Content-Type", kind); w.Code != http.StatusOK {
				t.Errorf("%s as %s: %d %s", test.name, kind, w.Code, w.Body)
			}
			if d := cmp.Diff(test.want, g.got); d != "" {
				t.Errorf("%s as %s (-want +got):\n%s", test.name, kind, d)
			}
			if g.count(Foreign) != float64(1-len(test.want)) {
				t.Errorf("%s as %s: %v foreign", test.name, kind, g.count(Foreign))
			}
		}
	}
	// A JSON encoder can't write it and a protobuf one does.
	g := newRig()
	g.post(marshal(t, export(&tracepb.Span{Attributes: []*commonpb.KeyValue{id, number(attrQueue, math.NaN())}})))
	if len(g.got) != 0 {
		t.Errorf("not a number: %v", g.got)
	}
}

// TestOutcomes counts what the taker says.
func TestOutcomes(t *testing.T) {
	g := newRig()
	g.say = func(s Span) Outcome { return Outcome(s.Request) }
	var all []*tracepb.Span
	said := []Outcome{Taken, Unneeded, Unknown, Impossible}
	for i, o := range said {
		for range i + 1 {
			all = append(all, &tracepb.Span{Attributes: []*commonpb.KeyValue{text(attrRequest, string(o)), number(attrQueue, 1)}})
		}
	}
	if w := g.post(marshal(t, export(all...))); w.Code != http.StatusOK || w.Body.Len() != 0 {
		t.Errorf("%d %q: an id that is not known is no fault of the exporter", w.Code, w.Body)
	}
	for i, o := range said {
		if n := g.count(o); n != float64(i+1) {
			t.Errorf("%s: %v, want %d", o, n, i+1)
		}
	}
}

// TestTooManySpans: the first are taken, and the exporter is told of the rest.
func TestTooManySpans(t *testing.T) {
	var all []*tracepb.Span
	for i := range MaxSpans + 5 {
		all = append(all, &tracepb.Span{Attributes: []*commonpb.KeyValue{text(attrRequest, fmt.Sprint(i)), number(attrQueue, 1)}})
	}
	m := export(all...)
	document, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	const why = "only the first 8192 spans of an export are read"
	for kind, want := range map[string]string{
		typeProtobuf: "\x0a\x33\x08\x05\x12\x2f" + why,
		typeJSON:     `{"partialSuccess":{"errorMessage":"` + why + `","rejectedSpans":"5"}}`,
	} {
		body := document
		if kind == typeProtobuf {
			body = marshal(t, m)
		}
		g := newRig()
		w := g.post(body, "Content-Type", kind)
		if w.Code != http.StatusOK || w.Body.String() != want || w.Header().Get("Content-Type") != kind {
			t.Errorf("%s: %d %q, want %q", kind, w.Code, w.Body, want)
		}
		if len(g.got) != MaxSpans || g.count(LeftOut) != 5 {
			t.Errorf("%s: %d taken, %v left out", kind, len(g.got), g.count(LeftOut))
		}
	}
}

// TestRefused prints the answers to what is no export.
func TestRefused(t *testing.T) {
	bomb := packed(t, make([]byte, MaxBody+1))
	if len(bomb) > 100_000 {
		t.Fatalf("%d bytes: no bomb", len(bomb))
	}
	var b strings.Builder
	for _, test := range []struct {
		name    string
		body    []byte
		headers []string
	}{
		{"no type", nil, []string{"Content-Type", ""}},
		{"another type", nil, []string{"Content-Type", "text/plain"}},
		{"another encoding", nil, []string{"Content-Encoding", "deflate"}},
		{"no gzip", []byte("{}"), []string{"Content-Encoding", "gzip"}},
		{"half of a gzip", packed(t, []byte("0123456789"))[:15], []string{"Content-Encoding", "gzip"}},
		{"too large", make([]byte, MaxBody+1), nil},
		{"too large when unpacked", bomb, []string{"Content-Encoding", "gzip"}},
		{"no protobuf", []byte("\x0a\xff"), nil},
		{"JSON that is protobuf", []byte("{}"), nil},
		{"no JSON", []byte(`{"resourceSpans":[}`), []string{"Content-Type", typeJSON}},
		{"JSON of another kind", []byte(`{"resourceSpans":{}}`), []string{"Content-Type", typeJSON}},
		{"a number for an attribute", []byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[1]}]}]}]}`), []string{"Content-Type", typeJSON}},
		{"nested without end", bytes.Repeat([]byte("["), 20000), []string{"Content-Type", typeJSON}},
	} {
		g := newRig()
		w := g.post(test.body, test.headers...)
		fmt.Fprintf(&b, "%s: %d %s %q\n", test.name, w.Code, w.Header().Get("Content-Type"), w.Body)
		if len(g.got) != 0 {
			t.Errorf("%s: %v was handed on", test.name, g.got)
		}
	}
	const golden = "testdata/refused.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestHalfAnExport: of an export that can't be read to its end nothing is taken,
// for the exporter sends it again.
func TestHalfAnExport(t *testing.T) {
	one := marshal(t, export(&tracepb.Span{Attributes: []*commonpb.KeyValue{text(attrRequest, "a"), number(attrQueue, 1)}}))
	g := newRig()
	if w := g.post(append(one, 0x0a, 0x7f)); w.Code != http.StatusBadRequest || len(g.got) != 0 {
		t.Errorf("%d, taken %v", w.Code, g.got)
	}
}

// TestManyAtOnce: what is beyond the bound may be sent again.
func TestManyAtOnce(t *testing.T) {
	g := newRig()
	for range maxExports {
		g.places <- struct{}{}
	}
	w := g.post(nil)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	<-g.places
	if w := g.post(nil); w.Code != http.StatusOK {
		t.Errorf("with a place: %d", w.Code)
	}
}

// TestEmptySpansTakeNoMemory: two bytes of the body may not become a Go value.
func TestEmptySpansTakeNoMemory(t *testing.T) {
	scope := bytes.Repeat([]byte{fieldSpans<<3 | 2, 0}, MaxBody/2-16)
	body := protowire.AppendBytes([]byte{fieldScopeSpans<<3 | 2}, scope)
	body = protowire.AppendBytes([]byte{fieldResourceSpans<<3 | 2}, body)
	var b batch
	b.most = MaxSpans
	if n := testing.AllocsPerRun(1, func() {
		if err := b.protobuf(body); err != nil {
			t.Fatal(err)
		}
	}); n > 20 {
		t.Errorf("%v allocations for %d empty spans", n, len(scope)/2)
	}
}

func FuzzProtobuf(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.pb")
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add(marshal(f, export(&tracepb.Span{Attributes: []*commonpb.KeyValue{text(attrRequest, "a"), whole(attrQueue, 1)}})))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := batch{most: 100}
		err := b.protobuf(body)
		check(t, &b)
		// Whoever unmarshals the whole of it finds the same spans in it.
		var data tracepb.TracesData
		if proto.Unmarshal(body, &data) != nil || err != nil {
			return
		}
		n := 0
		for _, r := range data.ResourceSpans {
			for _, s := range r.ScopeSpans {
				n += len(s.Spans)
			}
		}
		if got := len(b.spans) + b.foreign + b.left; got != n {
			t.Errorf("%d spans, want %d", got, n)
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c","attributes":[
		{"key":"gen_ai.request.id","value":{"stringValue":"a"}},{"key":"gen_ai.latency.time_in_queue","value":{"doubleValue":0.5}},
		{"key":"gen_ai.latency.time_in_model_prefill","value":{"intValue":"3"}}]}]}]}]}`))
	f.Add([]byte(`{"resourceSpans":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := batch{most: 100}
		if err := b.json(body); err != nil && len(err.Error()) > 100 {
			t.Errorf("the error quotes the body: %v", err)
		}
		check(t, &b)
	})
}

func FuzzReceiver(f *testing.F) {
	f.Add([]byte("\x0a\x00"), typeProtobuf, "")
	f.Add([]byte("{}"), typeJSON, "gzip")
	f.Fuzz(func(t *testing.T, body []byte, kind, encoding string) {
		g := newRig()
		w := g.post(body, "Content-Type", kind, "Content-Encoding", encoding)
		if w.Code >= 500 || w.Code >= 300 && len(g.got) > 0 {
			t.Errorf("%d with %d spans", w.Code, len(g.got))
		}
	})
}

func check(t *testing.T, b *batch) {
	if len(b.spans)+b.foreign > b.most {
		t.Errorf("%d and %d of at most %d", len(b.spans), b.foreign, b.most)
	}
	for _, s := range b.spans {
		if s.Request == "" || len(s.Request) > maxRequest || s.Queue < 0 || s.Queue > 24*time.Hour || s.Prefill < -1 || s.Prefill > 24*time.Hour {
			t.Errorf("%+v", s)
		}
	}
}
