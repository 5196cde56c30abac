package control

import (
	"fmt"
	"testing"
	"time"

	"headgate/admission"
)

// BenchmarkAllocate is one decision for 100 replicas of 8 classes in each of 10 pools: a
// report comes in for each pool, and each pool's allocator takes it in and decides. Half
// of the replicas use something, some wait, so that there is something to decide.
func BenchmarkAllocate(b *testing.B) {
	const pools, replicas, classes = 10, 100, 8
	var all []*Allocator
	reports := make([][]*Report, pools)
	for p := range pools {
		pool := &Pool{Name: fmt.Sprint("pool", p), Replicas: replicas, Engines: []Engine{{Name: "engine", Total: Amount{1024, 4 << 20}}}}
		for k := range classes {
			pool.Classes = append(pool.Classes, Class{Name: fmt.Sprint("class", k), Floor: Amount{100, 400_000}})
		}
		a := NewAllocator(pool, 1, Config{})
		for i := range replicas {
			id := ID{Replica: fmt.Sprint("r", i), Boot: "1"}
			a.Step(0, &Event{Kind: Join, Member: Member{ID: id, Lease: int64(i + 1)}}, nil)
			r := &Report{Pool: pool.Name, ID: id, Lease: int64(i + 1), News: 1, Residual: 10 * time.Second}
			r.Engines = []EngineReport{{Engine: "engine", Gauge: Amount{-1, -1}, Others: Amount{-1, -1}, Speed: admission.Speed{Prefills: []admission.Prefill{{Tokens: 1600, Took: 1e9}}}}}
			for k := range classes {
				c := ClassReport{Class: fmt.Sprint("class", k), Used: []Amount{{}}, Away: Away{Offered: uint64(i), Pending: -1, Pressed: -1, Starting: -1}}
				if (i+k)%2 == 0 {
					c.Used[0] = Amount{1, 3000}
				}
				r.Engines[0].Used = plus(r.Engines[0].Used, c.Used[0])
				r.Classes = append(r.Classes, c)
			}
			reports[p] = append(reports[p], r)
		}
		all = append(all, a)
	}
	var fx []Effect
	now, n := Time(0), 0
	step := func() {
		now += 1e6
		i := n % replicas
		n++
		for p, a := range all {
			r := reports[p][i]
			r.Seq++
			c := &r.Classes[n%classes]
			if c.Waiting = 0; n%3 == 0 {
				c.Waiting, c.Short, c.Head, c.Away.Pending = 1, true, Amount{1, 3000}, 0
			}
			fx = a.Step(now, &Event{Kind: Reported, Report: r}, fx[:0])
			for j := range fx {
				if g := fx[j].Grant; g != nil && fx[j].Op == Write {
					reports[p][g.Lease-1].Epoch, reports[p][g.Lease-1].Rev = g.Epoch, g.Rev
				}
			}
		}
	}
	for range 3 * replicas {
		step()
	}
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}
