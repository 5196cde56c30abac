package sim

import (
	"fmt"
	"testing"
	"time"

	"headgate/simengine"
	"headgate/trace"
)

// BenchmarkSimulate runs the published profile through an arm, one seed after
// the other, and reports simulated requests a second.
func BenchmarkSimulate(b *testing.B) {
	for _, name := range ArmNames() {
		b.Run(name, func(b *testing.B) {
			var traces []*trace.Trace
			for seed := range uint32(30) {
				t, err := trace.Generate("metal-long-context-v1", seed+1)
				if err != nil {
					b.Fatal(err)
				}
				traces = append(traces, t)
			}
			requests := 0
			for b.Loop() {
				for _, t := range traces {
					requests += simulated(b, name, t)
				}
			}
			b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

// BenchmarkQueued offers n requests within n ms, far more than the engine can
// do, so that nearly all of them wait at once: in the engine under priority, in
// the core under headgate.
func BenchmarkQueued(b *testing.B) {
	for _, name := range []string{"priority", "headgate"} {
		for _, n := range []int{10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				t := &trace.Trace{}
				for i := range n {
					q := trace.Entry{ID: fmt.Sprint(i), Class: trace.Batch, Arrival: time.Duration(i) * time.Millisecond, PromptTokens: 200, MaxTokens: 16, Output: 16}
					if i%8 == 0 {
						q.Class, q.PromptTokens = trace.Interactive, 118
					}
					t.Entries = append(t.Entries, q)
				}
				for b.Loop() {
					simulated(b, name, t)
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}

func simulated(b *testing.B, name string, t *trace.Trace) int {
	arm, err := NewArm(name, simengine.DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	run, err := Simulate(t, arm)
	if err != nil {
		b.Fatal(err)
	}
	return len(run.Records)
}
