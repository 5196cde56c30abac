package audit

import (
	"context"
	"testing"
	"time"
)

// nowhere takes everything.
type nowhere struct{}

func (nowhere) Open(context.Context) (Head, error)                 { return Head{}, nil }
func (nowhere) Write(_ context.Context, lines []Line) (int, error) { return len(lines), nil }
func (nowhere) Close() error                                       { return nil }

// A request's record: what its goroutine pays, and in all, with its line and its hash.
func BenchmarkRecord(b *testing.B) {
	o, _, _ := options(1 << 16)
	w := NewWriter(nowhere{}, o)
	r := Record{
		Kind: Request, Principal: "alice", Tenant: "team-a", Credential: CredentialKey, Remote: "10.0.0.9:51234", ID: "req_2n5cqe6h7y3kzt4b7r2m5vxa",
		Method: "POST", Route: "chat", Model: "qwen", Class: "interactive", Decision: "admitted", Pool: "main", Engine: "gpu0", Revision: 3,
		Outcome: OutcomeAnswered, Status: 200, Cause: "finished", PromptTokens: 812, OutputTokens: 240, DurationMS: 9120,
	}
	b.ReportAllocs()
	var own time.Duration
	for b.Loop() {
		start := time.Now()
		w.Append(&r)
		own += time.Since(start)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(own.Nanoseconds())/float64(b.N), "ns-of-the-request/op")
}
