package stats

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkPaired(b *testing.B) {
	for _, n := range []int{30, 300} {
		src := rand.New(rand.NewPCG(6, 6))
		d := make([]float64, n)
		for i := range d {
			d[i] = src.NormFloat64()
		}
		e := differences(b, d)
		for _, c := range []struct {
			name string
			run  func() error
		}{
			{"estimate", func() error { e.Estimate(); return nil }},
			{"interval", func() error { _, err := e.Interval(0.95); return err }},
			{"flip", func() error { e.Flip(1); return nil }},
			{"mde", func() error { e.MDE(0.95, 2); return nil }},
			{"bca", func() error { _, err := BCa(e, Mean, Resampling{Level: 0.95, Samples: 2000}); return err }},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := c.run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
