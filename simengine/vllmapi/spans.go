package vllmapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"headgate/simengine"
)

// What OpenTelemetry's batch processor and HTTP exporter do unless they are told
// otherwise.
const (
	traceDelay   = 5 * time.Second
	traceBatch   = 512
	traceQueue   = 2048
	traceTimeout = 10 * time.Second
)

// exporter sends a span for every request that has finished, in batches, as vLLM
// does with --otlp-traces-endpoint (v1/engine/output_processor.py: do_tracing).
// An engine never waits for it: what does not fit is lost.
//
// Alternatives: OpenTelemetry's own SDK and exporter link gRPC for one POST. What
// they send is in the receiver's tests.
type exporter struct {
	endpoint string
	delay    time.Duration
	start    time.Time // time 0 of the model
	queue    chan *tracepb.Span
	client   *http.Client
}

func newExporter(cfg *Config, start time.Time) *exporter {
	x := &exporter{
		endpoint: cfg.TracesEndpoint, delay: cfg.TracesDelay, start: start,
		queue: make(chan *tracepb.Span, traceQueue), client: &http.Client{Timeout: traceTimeout},
	}
	if x.delay == 0 {
		x.delay = traceDelay
	}
	return x
}

// run exports until ctx ends, and then what is left.
func (x *exporter) run(ctx context.Context) {
	defer x.client.CloseIdleConnections()
	tick := time.NewTicker(x.delay)
	defer tick.Stop()
	var batch []*tracepb.Span
	for open := true; open; {
		full := false
		select {
		case s := <-x.queue:
			batch = append(batch, s)
			full = len(batch) == traceBatch
		case <-tick.C:
			full = len(batch) > 0
		case <-ctx.Done():
			open = false
		}
		if full {
			x.export(batch)
			batch = nil
		}
	}
	for len(x.queue) > 0 {
		batch = append(batch, <-x.queue)
	}
	if len(batch) > 0 {
		x.export(batch)
	}
}

// export sends a batch. One that does not arrive is lost.
func (x *exporter) export(batch []*tracepb.Span) {
	err := func() error {
		body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
			Resource:   &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("vllm.instrumenting_module_name", "vllm.llm_engine")}},
			ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: "vllm.llm_engine"}, Spans: batch}},
		}}})
		if err != nil {
			return err
		}
		resp, err := x.client.Post(x.endpoint, "application/x-protobuf", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) // so that the connection is used again
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", x.endpoint, resp.Status)
		}
		return nil
	}()
	if err != nil {
		slog.Warn("spans were not exported", "spans", len(batch), "err", err)
	}
}

// finished makes the span of a sequence. Latencies are in seconds.
func (x *exporter) finished(c *child) {
	seconds := func(from, to simengine.Time) float64 { return float64(to-from) / 1e9 }
	var id [24]byte
	rand.Read(id[:])
	s := &tracepb.Span{
		TraceId: id[:16], SpanId: id[16:], Name: "llm_request", Kind: tracepb.Span_SPAN_KIND_SERVER,
		StartTimeUnixNano: uint64(x.start.Add(time.Duration(c.arrived)).UnixNano()), EndTimeUnixNano: uint64(x.start.Add(time.Duration(c.last)).UnixNano()),
		Attributes: []*commonpb.KeyValue{
			number("gen_ai.latency.time_to_first_token", seconds(c.arrived, c.first)),
			number("gen_ai.latency.e2e", seconds(c.arrived, c.last)),
			number("gen_ai.latency.time_in_queue", seconds(c.arrived, c.scheduled)),
			whole("gen_ai.usage.prompt_tokens", c.prompt),
			whole("gen_ai.usage.completion_tokens", c.output),
			number("gen_ai.latency.time_in_model_prefill", seconds(c.scheduled, c.first)),
			number("gen_ai.latency.time_in_model_decode", seconds(c.first, c.last)),
			number("gen_ai.latency.time_in_model_inference", seconds(c.scheduled, c.last)),
			text("gen_ai.request.id", c.external),
			whole("gen_ai.request.max_tokens", c.request.MaxTokens),
		},
	}
	select {
	case x.queue <- s:
	default:
	}
}

func text(key, v string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
}

func number(key string, v float64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}}
}

func whole(key string, v int) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: int64(v)}}}
}
