package simengine

import (
	"fmt"
	"testing"
)

// BenchmarkRequests runs the published long-context request, 1,607 tokens in
// and 64 out, four at a time; ns/op is one request. With waiting, so many more
// are queued all the time.
func BenchmarkRequests(b *testing.B) {
	for _, caching := range []bool{false, true} {
		for _, waiting := range []int{0, 100, 10_000, 100_000} {
			b.Run(fmt.Sprintf("prefixcaching=%v/waiting=%d", caching, waiting), func(b *testing.B) {
				cfg := DefaultConfig()
				cfg.NumBlocks = 1 + 4*110
				cfg.PrefixCaching = caching
				e, err := New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				var events []Event
				submitted := 0
				submit := func(now Time) {
					r := Request{Synthetic: 1607, Seed: uint64(submitted), MaxTokens: 64, Priority: submitted % 7}
					submitted++
					if _, err := e.Submit(now, r); err != nil {
						b.Fatal(err)
					}
				}
				for range 4 + waiting {
					submit(0)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for done := 0; done < b.N; {
					now, _ := e.Next()
					events = e.Advance(now, events[:0])
					for i := range events {
						if events[i].Kind == Finished {
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
