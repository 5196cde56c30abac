package simengine

import (
	"fmt"
	"testing"

	"headgate/trace"
)

// BenchmarkPublished replays the published long-context traces, straight to the
// engine; ns/op is one request, of 16 or 64 tokens.
func BenchmarkPublished(b *testing.B) {
	var traces []*trace.Trace
	for seed := range uint32(30) {
		t, err := trace.Generate("metal-long-context-v1", seed+1)
		if err != nil {
			b.Fatal(err)
		}
		traces = append(traces, t)
	}
	for _, policy := range []Policy{FCFS, Priority} {
		b.Run(string(policy), func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Policy = policy
			d := newDriver(b, cfg)
			b.ReportAllocs()
			b.ResetTimer()
			for i, done := 0, 0; done < b.N; i++ {
				entries := traces[i%len(traces)].Entries
				start := d.e.now
				for k := range entries {
					at := start + Time(entries[k].Arrival)
					for next, ok := d.e.Next(); ok && next < at; next, ok = d.e.Next() {
						d.events = d.e.Advance(next, d.events[:0])
					}
					r := Request{Synthetic: entries[k].PromptTokens, Seed: uint64(k), MaxTokens: entries[k].Output, IgnoreEOS: true}
					if entries[k].Class == trace.Batch {
						r.Priority = 10
					}
					d.submit(at, r)
				}
				d.spend()
				done += len(entries)
			}
			b.ReportMetric(float64(d.e.serial)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(d.e.Stats().GeneratedTokens), "ns/token")
		})
	}
}

// BenchmarkRequests runs the published long-context request, 1,607 tokens in
// and 64 out, four at a time; ns/op is one request. With waiting, so many more
// are queued all the time.
func BenchmarkRequests(b *testing.B) {
	for _, caching := range []bool{false, true} {
		for _, waiting := range []int{0, 100, 10_000, 1_000_000} {
			b.Run(fmt.Sprintf("prefixcaching=%v/waiting=%d", caching, waiting), func(b *testing.B) {
				cfg := DefaultConfig()
				cfg.NumBlocks = 1 + 4*110
				cfg.PrefixCaching = caching
				d := newDriver(b, cfg)
				submit := func(now Time) {
					d.submit(now, Request{Synthetic: 1607, Seed: d.e.serial, MaxTokens: 64, Priority: int(d.e.serial % 7)})
				}
				for range 4 + waiting {
					submit(0)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for done := 0; done < b.N; {
					now, _ := d.e.Next()
					d.events = d.e.Advance(now, d.events[:0])
					for i := range d.events {
						if d.events[i].Kind == Finished {
							done++
							submit(now)
						}
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}

// BenchmarkAtOnce hands over all requests at once; ns/op is one of them, which
// should not grow with their number: many run in one batch, many have the same
// beginning, many take blocks from each other, many are aborted.
func BenchmarkAtOnce(b *testing.B) {
	const prompt, output = 160, 64
	for _, c := range []struct {
		what   string
		change func(cfg *Config, n int)
		abort  bool
	}{
		{"run", func(*Config, int) {}, false},
		{"alike", func(cfg *Config, _ int) { cfg.PrefixCaching = true }, false},
		{"preempt", func(cfg *Config, n int) { cfg.NumBlocks = 1 + 11*n }, false},
		{"abort", func(cfg *Config, _ int) { cfg.MaxNumSeqs = 4 }, true},
	} {
		for _, n := range []int{64, 1024, 16384} {
			b.Run(fmt.Sprintf("%s/%d", c.what, n), func(b *testing.B) {
				cfg := DefaultConfig()
				cfg.MaxModelLen = 1024
				cfg.NumBlocks = 1 + 14*n
				cfg.MaxNumSeqs = n
				cfg.MaxBatchedTokens = prompt * n
				c.change(&cfg, n)
				d := newDriver(b, cfg)
				ids := make([]ID, n)
				b.ReportAllocs()
				b.ResetTimer()
				for done := 0; done < b.N; done += n {
					for i := range ids {
						ids[i] = d.submit(d.e.now, Request{Synthetic: prompt, Seed: uint64(done), MaxTokens: output})
					}
					for i := range ids {
						if !c.abort {
							break
						}
						if err := d.e.Abort(d.e.now, ids[i*31%n]); err != nil { // 31: not in the order in which they wait
							b.Fatal(err)
						}
					}
					d.spend()
				}
				b.ReportMetric(float64(d.e.serial)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}

func (d *driver) submit(now Time, r Request) ID {
	id, err := d.e.Submit(now, r)
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

// spend runs until the engine is idle and keeps no events.
func (d *driver) spend() {
	for now, ok := d.e.Next(); ok; now, ok = d.e.Next() {
		d.events = d.e.Advance(now, d.events[:0])
	}
}
