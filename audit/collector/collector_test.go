package collector

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"headgate/audit"
	"headgate/telemetry/otlp"
)

// A collector that is away, refuses a part or takes all: what it took is in order and
// whole, and nothing of it was taken for stored that was not.
func TestSink(t *testing.T) {
	var bodies, kinds []string
	answers := []func(http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(503) },
		func(w http.ResponseWriter) { _, _ = w.Write([]byte{0x0a, 0x02, 0x08, 0x01}) }, // one was rejected
		func(http.ResponseWriter) {},
	}
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil || r.URL.Path != "/v1/logs" {
			t.Errorf("%s: %v", r.URL.Path, err)
			return
		}
		b, _ := io.ReadAll(z)
		var data logspb.LogsData
		if err := proto.Unmarshal(b, &data); err != nil {
			t.Error(err)
		}
		bodies, kinds = nil, nil
		for _, l := range data.ResourceLogs[0].ScopeLogs[0].LogRecords {
			bodies = append(bodies, l.Body.GetStringValue())
			for _, a := range l.Attributes {
				if a.Key == "headgate.audit.kind" {
					kinds = append(kinds, a.Value.GetStringValue())
				}
			}
		}
		answers[n](w)
		n++
	}))
	defer server.Close()
	s := New(otlp.New(otlp.Config{Endpoint: server.URL, Queue: 16, Version: "v", Start: time.Now(), Register: prometheus.NewRegistry(), Log: slog.Default()}))
	if head, err := s.Open(t.Context()); head != (audit.Head{}) || err != nil {
		t.Errorf("%+v, %v", head, err)
	}
	lines := []audit.Line{{Seq: 1, JSON: []byte(`{"seq":1,"ts":"2026-01-01T00:00:00Z","kind":"started"}`)}, {Seq: 2, JSON: []byte(`{"seq":2,"ts":"2026-01-01T00:00:00Z","kind":"request","principal":"alice"}`)}}
	for i := range answers {
		stored, err := s.Write(t.Context(), lines)
		if ok := i == 2; (err == nil) != ok || (stored == 2) != ok || !ok && stored != 0 {
			t.Errorf("answer %d: %d stored, %v", i, stored, err)
		}
		if len(bodies) != 2 || bodies[1] != string(lines[1].JSON) || kinds[0] != "started" {
			t.Errorf("it got %q, %q", bodies, kinds)
		}
	}
	if _, err := s.Write(t.Context(), []audit.Line{{Seq: 1, JSON: []byte("x")}}); err == nil {
		t.Error("what is no record was sent")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
