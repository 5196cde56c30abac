package relay

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/telemetry/tracing"
	"headgate/wire"
)

// instant is an engine that answers at once: what is measured is the relay.
type instant struct{ events []engine.Delta }

func (e *instant) Dispatch(context.Context, *engine.Attempt) (engine.Stream, error) {
	return &instantStream{engine: e}, nil
}

func (*instant) Observe(context.Context) engine.Observation {
	o := engine.Unreported(time.Now())
	o.State = engine.Ready
	return o
}

func (*instant) Capabilities(context.Context) (engine.Capabilities, error) {
	return engine.Capabilities{
		Kind: engine.VLLM, Models: []engine.Model{{ID: "test-model"}}, Slots: 64, KVTokens: 1 << 20, BlockSize: 16, MaxContext: 1 << 15,
	}, nil
}

func (*instant) Close() {}

type instantStream struct {
	engine.Stream
	engine *instant
	next   int
}

func (s *instantStream) Next() (engine.Delta, error) {
	if s.next == len(s.engine.events) {
		return engine.Delta{}, io.EOF
	}
	s.next++
	return s.engine.events[s.next-1], nil
}

func (s *instantStream) Abort(context.Context) engine.Confirmation {
	return engine.Confirmation{By: engine.ByCompletion, At: time.Now()}
}

// nowhere is a client that takes everything.
type nowhere struct{}

func (nowhere) Admitted(Decision)   {}
func (nowhere) Event([]byte) error  { return nil }
func (nowhere) KeepAlive() error    { return nil }
func (nowhere) Answer([]byte) error { return nil }
func (nowhere) Started() bool       { return true }

func instantPool(b testing.TB, e engine.Adapter, change ...func(*Config)) *Pool {
	b.Helper()
	start := time.Now()
	log := journal.NewWriter(io.Discard, journal.Options{Buffer: 1 << 14, Start: start})
	cfg := Config{
		Name: "main", Capacity: 1 << 12, IdleTimeout: time.Minute, Keepalive: 15 * time.Second, MaxAnswer: 1 << 20, Start: start,
		Classes: []string{"interactive", "batch"}, Journal: log, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
		Engines: []Engine{{Name: "e0", Adapter: e, ObserveEvery: time.Hour, Priority: []int{0, 10}}},
		Resolve: func(specs []admission.EngineSpec) (*admission.Table, error) {
			interactive, batch := loose("interactive"), loose("batch")
			interactive.Floor = admission.Of(32, 1<<19)
			for _, c := range []*admission.ClassSpec{&interactive, &batch} {
				c.Ceiling = admission.Of(64, 1<<20)
			}
			return &admission.Table{Engines: specs, Classes: []admission.ClassSpec{interactive, batch}}, nil
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	p := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		p.Run(ctx)
		close(done)
	}()
	b.Cleanup(func() {
		cancel()
		<-done
		p.Drain(context.Background())
		if err := log.Close(); err != nil {
			b.Error(err)
		}
	})
	for p.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return p
}

func answer(tokens int) *instant {
	e := &instant{}
	add := func(data string) {
		d := engine.Delta{Raw: []byte("data: " + data + "\n\n"), Data: []byte(data)}
		chunk, err := wire.ParseChunk(wire.Chat, d.Data)
		if err != nil {
			panic(err)
		}
		d.Chunk = chunk
		e.events = append(e.events, d)
	}
	for range tokens {
		add(`{"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}`)
	}
	add(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	add(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":16}}`)
	add(`[DONE]`)
	return e
}

func instantCall(b testing.TB, stream bool) *Call {
	b.Helper()
	req, err := wire.Parse(wire.Chat, []byte(sent(stream, `,"max_tokens":64`)))
	if err != nil {
		b.Fatal(err)
	}
	return &Call{ID: "req_1", Request: req, Class: "interactive", Tenant: "acme", Principal: "ann", Arrived: time.Now()}
}

// BenchmarkServe is one call from end to end, without a network: sixteen tokens,
// the journal and the metrics included.
func BenchmarkServe(b *testing.B) {
	for name, stream := range map[string]bool{"stream": true, "whole": false} {
		b.Run(name, func(b *testing.B) {
			p, call := instantPool(b, answer(16)), instantCall(b, stream)
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Serve(context.Background(), call, nowhere{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkServeTraced is the same call with a span of its own and one of its
// attempt, up to the export.
func BenchmarkServeTraced(b *testing.B) {
	p, call := instantPool(b, answer(16)), instantCall(b, true)
	tracer := &tracing.Tracer{Share: 1, Export: func(*tracing.Span) {}}
	b.ReportAllocs()
	for b.Loop() {
		traced := *call
		traced.Span = tracer.Start(nil, "POST /v1/chat/completions", call.Arrived)
		if err := p.Serve(context.Background(), &traced, nowhere{}); err != nil {
			b.Fatal(err)
		}
		traced.Span.Over(time.Now())
	}
}

// BenchmarkServeParallel is the same from every processor at once: what the
// pool's mutex costs.
func BenchmarkServeParallel(b *testing.B) {
	p, call := instantPool(b, answer(16)), instantCall(b, true)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := p.Serve(context.Background(), call, nowhere{}); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkDecide is an offer, its admission's delivery and the end of its hold,
// with the lock and the clock; without journal and I/O.
func BenchmarkDecide(b *testing.B) {
	p, call := instantPool(b, answer(1)), instantCall(b, true)
	p.cfg.Journal = nil
	b.ReportAllocs()
	for b.Loop() {
		r, err := p.offer(call)
		if err != nil {
			b.Fatal(err)
		}
		if r.stage != stageAdmitted {
			b.Fatal("not admitted")
		}
		p.step(p.core, &admission.Event{Kind: admission.Ended, Hold: r.admit.Hold, Out: 16, Flags: admission.FlagReleased, Cause: admission.CauseFinished})
		p.leave(r)
	}
}
