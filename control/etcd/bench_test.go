package etcd_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"headgate/control"
	"headgate/control/etcd/etcdtest"
)

// BenchmarkWriteToWatch is from a leader's Write until the replica's watch has the
// grant: one of the four steps of a recall, and of them all the same kind. It tells
// the median and the 99th percentile, of one at a time.
func BenchmarkWriteToWatch(b *testing.B) {
	for _, members := range []int{1, 3} {
		for _, fsync := range []bool{false, true} {
			b.Run(fmt.Sprintf("members=%d/fsync=%v", members, fsync), func(b *testing.B) {
				c := etcdtest.Start(b, etcdtest.Options{Members: members, Fsync: fsync, Direct: true})
				name := fleet()
				leader, replica := open(b, c.Endpoints(), name), open(b, c.Endpoints(), name)
				l, err := leader.Campaign(b.Context(), "x", 20*time.Second)
				if err != nil {
					b.Fatal(err)
				}
				g := control.Grant{Pool: "p", ID: control.ID{Replica: "a", Boot: "1"}, Epoch: l.Epoch()}
				for i := range 8 { // as many engines and classes as a pool may well have
					g.Accounts = append(g.Accounts, control.Account{Engine: fmt.Sprintf("engine-%d", i), Amount: control.Amount{100, 100000}})
					g.Classes = append(g.Classes, control.ClassGrant{Class: fmt.Sprintf("class-%d", i), Floor: control.Amount{10, 10000}})
				}
				grants := replica.Grants(b.Context(), g.ID)
				step := func() time.Duration {
					g.Rev++
					began := time.Now()
					if err := l.Write(b.Context(), &g); err != nil {
						b.Fatal(err)
					}
					for got := range grants {
						if got.Rev == g.Rev {
							break
						}
					}
					return time.Since(began)
				}
				for range 20 {
					step() // connections
				}
				var took []time.Duration
				for b.Loop() {
					took = append(took, step())
				}
				slices.Sort(took)
				at := func(p float64) float64 {
					return float64(took[min(len(took)-1, int(p*float64(len(took))))]) / float64(time.Millisecond)
				}
				b.ReportMetric(at(0.5), "ms-p50")
				b.ReportMetric(at(0.99), "ms-p99")
			})
		}
	}
}
