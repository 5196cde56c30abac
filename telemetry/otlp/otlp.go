// Package otlp exports what the process says about itself to a collector: the
// spans of package tracing, the registry that /metrics shows, and the log, as
// OTLP over HTTP in protobuf.
//
// Nothing waits for a collector. Spans and log records go into a queue each, and
// what finds it full is dropped and counted; one goroutine a signal sends batches,
// tries again where the collector asks for it or does not answer, and gives up
// after a while, so that memory has a bound however long it is away. When the
// process ends, what is left is sent once.
//
// What goes wrong is logged when it begins and when it is over, to a logger that
// does not lead back here.
//
// Alternatives: OpenTelemetry's SDK with its exporters. Any of them links gRPC for
// one POST, the bridges from the registry and from log/slog bring a second set of
// instruments and processors, and drops are counted for none of the three
// together. What is sent is made by OTLP's generated messages either way.
package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"headgate/telemetry/tracing"
)

// Config of an exporter.
type Config struct {
	// Endpoint is the collector's base URL, to which /v1/traces and so on are added.
	Endpoint string
	// Headers go with every export.
	Headers               http.Header
	Traces, Metrics, Logs bool
	// MetricsEvery is how often Gather is exported.
	MetricsEvery time.Duration
	Gather       prometheus.Gatherer
	// Queue bounds the spans, and the log records, that wait.
	Queue   int
	Version string
	// Start is when the counters began.
	Start time.Time
	// Register takes the exporter's own metrics.
	Register prometheus.Registerer
	// Log is told what goes wrong. It must not lead back here.
	Log *slog.Logger
}

const (
	batchMost  = 512             // items of an export
	batchDelay = 5 * time.Second // until one that is not full is sent
	timeout    = 10 * time.Second
	// flushTime is how long the last exports may take when the process ends.
	flushTime = 5 * time.Second
	// tries of one export, with pauses that double from firstPause: half a minute in
	// which a collector may start anew.
	tries      = 6
	firstPause = time.Second
	mostPause  = 30 * time.Second // that a collector may ask for
)

// Exporter sends to one collector. Create it with New; Run sends.
type Exporter struct {
	cfg      Config
	resource *resourcepb.Resource
	client   *http.Client
	spans    chan *tracing.Span
	records  chan *logspb.LogRecord
	traces   signal
	metrics  signal
	logs     signal

	delay, pause time.Duration // batchDelay and firstPause
	most         int           // batchMost
}

// signal is one of the three, with what became of its items.
type signal struct {
	name, path                      string
	sent, dropped, failed, rejected prometheus.Counter
	down                            bool // the last export failed, which has been logged
}

// New makes an exporter. What it is given before Run waits.
func New(cfg Config) *Exporter {
	x := &Exporter{
		cfg: cfg, spans: make(chan *tracing.Span, cfg.Queue), records: make(chan *logspb.LogRecord, cfg.Queue),
		delay: batchDelay, pause: firstPause, most: batchMost,
		client: &http.Client{
			Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * time.Minute, DialContext: (&net.Dialer{Timeout: timeout}).DialContext},
			// The headers may hold a key, which is for nobody else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	host, _ := os.Hostname() // "" where there is none
	x.resource = &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
		text("service.name", "headgate"), text("service.version", cfg.Version),
		text("service.instance.id", host+"-"+strconv.Itoa(os.Getpid())+"-"+strconv.FormatInt(cfg.Start.UnixNano(), 36)),
		text("host.name", host),
	}}
	items := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_otlp_items_total",
		Help: "Spans, log records and data points for the collector of otlp.endpoint: sent, dropped (the queue was full), failed (the collector did not take them in time), rejected (it took the export and not these).",
	}, []string{"signal", "outcome"})
	cfg.Register.MustRegister(items)
	for _, s := range []struct {
		signal     *signal
		on         bool
		name, path string
	}{{&x.traces, cfg.Traces, "traces", "/v1/traces"}, {&x.metrics, cfg.Metrics, "metrics", "/v1/metrics"}, {&x.logs, cfg.Logs, "logs", "/v1/logs"}} {
		if s.on {
			of := func(outcome string) prometheus.Counter { return items.WithLabelValues(s.name, outcome) }
			*s.signal = signal{name: s.name, path: s.path, sent: of("sent"), dropped: of("dropped"), failed: of("failed"), rejected: of("rejected")}
		}
	}
	return x
}

// Span takes a span that is over. It never waits.
func (x *Exporter) Span(s *tracing.Span) { offer(x.spans, s, &x.traces) }

func offer[T any](queue chan<- T, item T, s *signal) {
	select {
	case queue <- item:
	default:
		s.dropped.Inc()
	}
}

// Run exports until ctx ends, and then what is left.
func (x *Exporter) Run(ctx context.Context) {
	// An export that is on its way when the process ends may still arrive.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(flushTime, cancel) })()
	var running sync.WaitGroup
	if x.cfg.Traces {
		running.Go(func() { batches(ctx, hard, x, &x.traces, x.spans, x.traceData) })
	}
	if x.cfg.Logs {
		running.Go(func() { batches(ctx, hard, x, &x.logs, x.records, x.logData) })
	}
	if x.cfg.Metrics {
		running.Go(func() { x.pushMetrics(ctx, hard) })
	}
	running.Wait()
	x.client.CloseIdleConnections()
}

// batches sends what a queue gets.
func batches[T any](ctx, hard context.Context, x *Exporter, s *signal, queue <-chan T, data func([]T) proto.Message) {
	tick := time.NewTicker(x.delay)
	defer tick.Stop()
	batch := make([]T, 0, x.most)
	send := func() {
		if len(batch) > 0 {
			x.export(ctx, hard, s, len(batch), data(batch))
			clear(batch) // so that what was sent is let go of
			batch = batch[:0]
		}
	}
	for ctx.Err() == nil {
		select {
		case item := <-queue:
			if batch = append(batch, item); len(batch) == x.most {
				send()
			}
		case <-tick.C:
			send()
		case <-ctx.Done():
		}
	}
	for {
		select {
		case item := <-queue:
			if batch = append(batch, item); len(batch) == x.most {
				send()
			}
		default:
			send()
			return
		}
	}
}

// export sends one message of so many items until it is taken or given up: soon
// once ctx has ended, and at once when hard does.
func (x *Exporter) export(ctx, hard context.Context, s *signal, items int, m proto.Message) {
	body, err := pack(m)
	if err == nil {
		err = x.deliver(ctx, hard, s, items, body)
	}
	switch {
	case err != nil:
		s.failed.Add(float64(items))
		if !s.down {
			x.cfg.Log.Warn("the collector does not take what is exported; it is lost and counted", "signal", s.name, "err", err)
		}
	case s.down:
		x.cfg.Log.Info("the collector takes what is exported again", "signal", s.name)
	}
	s.down = err != nil
}

func (x *Exporter) deliver(ctx, hard context.Context, s *signal, items int, body []byte) error {
	for try, pause := 1, x.pause; ; try, pause = try+1, 2*pause {
		last := try == tries || ctx.Err() != nil
		rejected, after, err := x.post(hard, s, body)
		if err == nil {
			// What a collector says is not more than it was sent.
			left := min(max(rejected, 0), int64(items))
			s.sent.Add(float64(int64(items) - left))
			s.rejected.Add(float64(left))
			return nil
		}
		if again := (*temporary)(nil); last || !errors.As(err, &again) {
			return err
		}
		wait := time.NewTimer(min(max(pause, after), mostPause))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// temporary marks an error after which the same export may be tried again.
type temporary struct{ error }

func (t *temporary) Unwrap() error { return t.error }

// post sends an export once. It returns how many items the collector refused of
// one that it took, and for how long it wants to be left alone.
func (x *Exporter) post(ctx context.Context, s *signal, body []byte) (rejected int64, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.cfg.Endpoint+s.path, bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	for name, values := range x.cfg.Headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("User-Agent", "headgate")
	resp, err := x.client.Do(req)
	if err != nil {
		return 0, 0, &temporary{err}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	switch {
	case resp.StatusCode/100 == 2:
		return partial(answer), 0, nil // whatever is wrong with the answer, it was taken
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusBadGateway,
		resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 where it is absent or a date
		return 0, min(time.Duration(max(seconds, 0))*time.Second, mostPause), &temporary{fmt.Errorf("%s answers %s", s.path, resp.Status)}
	case err != nil:
		return 0, 0, err
	}
	return 0, 0, fmt.Errorf("%s answers %s", s.path, resp.Status)
}

// Try sends each signal's export once with nothing in it, and returns what went wrong, by
// signal. Nothing is counted, and nothing is stored by a collector.
func (x *Exporter) Try(ctx context.Context) map[string]error {
	defer x.client.CloseIdleConnections()
	failed := map[string]error{}
	for _, s := range []*signal{&x.traces, &x.metrics, &x.logs} {
		if s.name == "" {
			continue // it is not exported
		}
		body, err := pack(&resourcepb.Resource{}) // of no fields, as an export without items is
		if err == nil {
			_, _, err = x.post(ctx, s, body)
		}
		if err != nil {
			failed[s.name] = err
		}
	}
	return failed
}

// Refusal tells whether an error of Try is a collector's answer, and not that there is none.
func Refusal(err error) bool {
	return !errors.As(err, new(*url.Error))
}

// ParseHeaders reads name=value, several with commas between them, values
// percent-encoded, as OpenTelemetry's own variables have it. An error does not
// repeat what may be a key.
func ParseHeaders(s string) (http.Header, error) {
	h := http.Header{}
	for i, pair := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil || strings.ContainsAny(name, " \t:\r\n\x00") || strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("its header %d is none: allowed is name=value, several with commas between them, values percent-encoded", i+1)
		}
		h.Add(name, value)
	}
	return h, nil
}

// partial reads how many items an Export...ServiceResponse says were rejected,
// the first field of its first, in each of the three.
func partial(answer []byte) int64 {
	inner := field(answer, protowire.BytesType)
	message, n := protowire.ConsumeBytes(inner)
	if n < 0 {
		return 0
	}
	rejected, n := protowire.ConsumeVarint(field(message, protowire.VarintType))
	if n < 0 {
		return 0
	}
	return int64(rejected)
}

// field returns what follows the tag of field 1.
func field(b []byte, want protowire.Type) []byte {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		if num == 1 && kind == want {
			return b
		}
		if n = protowire.ConsumeFieldValue(num, kind, b); n < 0 {
			return nil
		}
		b = b[n:]
	}
	return nil
}

func pack(m proto.Message) ([]byte, error) {
	p := packers.Get().(*packer)
	defer packers.Put(p)
	raw, err := proto.MarshalOptions{}.MarshalAppend(p.raw[:0], m)
	if err != nil {
		return nil, err
	}
	p.raw = raw
	var b bytes.Buffer
	p.zip.Reset(&b)
	_, _ = p.zip.Write(raw) // a buffer takes everything
	_ = p.zip.Close()
	return b.Bytes(), nil
}

// packer is what packing an export takes, a megabyte and more.
type packer struct {
	zip *gzip.Writer
	raw []byte
}

var packers = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return &packer{zip: z}
}}

// scope is what all of it comes from.
func (x *Exporter) scope() *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: "headgate", Version: x.cfg.Version}
}

// Attributes are UTF-8, or the message can't be made at all.
func text(key, v string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: strings.ToValidUTF8(v, "\uFFFD")}}}
}

func number(key string, v int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}}
}

func float(key string, v float64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}}
}

func truth(key string, v bool) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v}}}
}

func nanos(t time.Time) uint64 { return uint64(t.UnixNano()) }
