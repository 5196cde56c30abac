package vllmapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector is a transport that takes exports.
type collector struct {
	status int

	mu      sync.Mutex
	exports [][]*tracepb.Span
}

func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	var data tracepb.TracesData
	switch {
	case err != nil:
		return nil, err
	case r.URL.String() != tracesAt || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf":
		return nil, errors.New("no export: " + r.Method + " " + r.URL.String())
	}
	if err := proto.Unmarshal(body, &data); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exports = append(c.exports, data.ResourceSpans[0].ScopeSpans[0].Spans)
	return &http.Response{StatusCode: c.status, Status: http.StatusText(c.status), Body: http.NoBody}, nil
}

func (c *collector) all() [][]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exports
}

const tracesAt = "http://headgate.test/v1/traces"

// attributes of a span, in text and in numbers.
func attributes(s *tracepb.Span) (texts map[string]string, numbers map[string]float64) {
	texts, numbers = map[string]string{}, map[string]float64{}
	for _, a := range s.Attributes {
		texts[a.Key] = a.Value.GetStringValue()
		numbers[a.Key] = a.Value.GetDoubleValue() + float64(a.Value.GetIntValue())
	}
	return texts, numbers
}

// exporting is a server with a collector, until stop.
func exporting(t *testing.T, cfg Config, status int) (s *Server, c *collector, stop func()) {
	cfg.TracesEndpoint = tracesAt
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c = &collector{status: status}
	s.spans.client.Transport = c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	return s, c, func() { cancel(); <-done }
}

// TestSpans: a span says of a request what its own metrics say, in seconds, five
// seconds later at the latest, under the id that the client knows.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := host()
		cfg.PerRequestMetrics = true
		cfg.Engine.MaxNumSeqs = 1
		s, c, stop := exporting(t, cfg, http.StatusOK)
		first := s.call(t.Context(), "/v1/chat/completions", request(5, 16, 0), "X-Request-Id", "one-1f")
		synctest.Wait()
		second := s.call(t.Context(), "/v1/completions", `{"prompt":"the river","max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}`, "X-Request-Id", "two-20")
		<-first.done
		<-second.done
		ended := time.Now()
		time.Sleep(traceDelay)
		synctest.Wait()
		var spans []*tracepb.Span
		for _, e := range c.all() {
			spans = append(spans, e...)
		}
		if len(spans) != 2 {
			t.Fatalf("%d spans, want 2", len(spans))
		}
		for i, test := range []struct {
			id     string
			call   *call
			queued bool
		}{{"chatcmpl-one-1f", first, false}, {"cmpl-two-20-0", second, true}} {
			all := events(t, test.call.body.String())
			last := all[len(all)-1]
			texts, numbers := attributes(spans[i])
			if texts["gen_ai.request.id"] != test.id || spans[i].Name != "llm_request" || len(spans[i].TraceId) != 16 || len(spans[i].SpanId) != 8 {
				t.Errorf("span %d: %v", i, spans[i])
			}
			if queued := numbers["gen_ai.latency.time_in_queue"] > 0; queued != test.queued {
				t.Errorf("span %d: queued %t, want %t", i, queued, test.queued)
			}
			m := last.Metrics
			for attribute, want := range map[string]float64{
				"gen_ai.latency.time_in_queue":           m["queue_time_ms"] / 1e3,
				"gen_ai.latency.time_in_model_prefill":   m["time_to_first_token_ms"] / 1e3,
				"gen_ai.latency.time_in_model_decode":    m["generation_time_ms"] / 1e3,
				"gen_ai.latency.time_in_model_inference": (m["time_to_first_token_ms"] + m["generation_time_ms"]) / 1e3,
				"gen_ai.latency.time_to_first_token":     (m["queue_time_ms"] + m["time_to_first_token_ms"]) / 1e3,
				"gen_ai.latency.e2e":                     (m["queue_time_ms"] + m["time_to_first_token_ms"] + m["generation_time_ms"]) / 1e3,
				"gen_ai.usage.prompt_tokens":             float64(last.Usage.Prompt),
				"gen_ai.usage.completion_tokens":         float64(last.Usage.Completion),
			} {
				if got := numbers[attribute]; math.Abs(got-want) > 2e-6 {
					t.Errorf("span %d: %s is %v, want %v", i, attribute, got, want)
				}
			}
			if at := time.Unix(0, int64(spans[i].EndTimeUnixNano)); at.After(ended) || at.Sub(time.Unix(0, int64(spans[i].StartTimeUnixNano))) <= 0 {
				t.Errorf("span %d: ended %v", i, at)
			}
		}
		stop()
		if n := len(c.all()); n > 2 {
			t.Errorf("%d exports: an empty one was sent", n)
		}
	})
}

// TestSpansAtTheEnd: what is gathered when the server stops is sent, and an
// aborted request has no span.
func TestSpansAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, stop := exporting(t, host(), http.StatusOK)
		ctx, leave := context.WithCancel(t.Context())
		gone := s.call(ctx, "/v1/chat/completions", request(5, 600, 0))
		synctest.Wait()
		leave()
		<-gone.done
		<-s.call(t.Context(), "/v1/chat/completions", request(5, 2, 0), "X-Request-Id", "last").done
		stop()
		var ids []string
		for _, e := range c.all() {
			for _, span := range e {
				texts, _ := attributes(span)
				ids = append(ids, texts["gen_ai.request.id"])
			}
		}
		if got := strings.Join(ids, " "); got != "chatcmpl-last" {
			t.Errorf("spans of %q, want chatcmpl-last's", got)
		}
	})
}

// TestSpansNobodyTakes: a receiver that refuses is told of in the log and delays
// nothing; what doesn't fit meanwhile is lost.
func TestSpansNobodyTakes(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		s, c, stop := exporting(t, host(), http.StatusNotFound)
		<-s.call(t.Context(), "/v1/chat/completions", request(5, 2, 0)).done
		stop()
		if len(c.all()) != 1 || !strings.Contains(log.String(), "spans=1") || !strings.Contains(log.String(), "answers Not Found") {
			t.Errorf("%d exports, log %s", len(c.all()), log.String())
		}
		for range 2 * traceQueue { // nobody reads any more
			s.spans.finished(&child{})
		}
		if n := len(s.spans.queue); n != traceQueue {
			t.Errorf("%d wait, want %d", n, traceQueue)
		}
	})
}

func TestTracesConfig(t *testing.T) {
	for _, bad := range []string{"headgate:9090/v1/traces", "grpc://headgate:4317", "http://", "://"} {
		cfg := host()
		cfg.TracesEndpoint = bad
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "otlp_traces_endpoint: "+bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	cfg := host()
	cfg.TracesDelay = -1
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "otlp_traces_delay") {
		t.Errorf("%v", err)
	}
}
