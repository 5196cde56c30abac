package quota

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// charged is what one tenant was charged for at a moment, by the test's own account.
type charged struct {
	at          Time
	units, over int64 // over: beyond what was reserved
}

// TestNeverMore: whatever is reserved, used and settled in whatever order, in no stretch
// of time more is charged than what comes in it and the burst, but for what ran over its
// reservation; what is left is never more than that; a hint is exact; and when all has
// settled nothing is held, and each balance is what was put in less what was billed.
func TestNeverMore(t *testing.T) {
	type request struct {
		id             ID
		tenant         string
		reserved       int64
		used           [2]int64
		prompt, output int64
	}
	rapid.Check(t, func(t *rapid.T) {
		rate := Rate{N: rapid.Int64Range(1, 1000).Draw(t, "n"), Window: time.Duration(rapid.Int64Range(1, 120).Draw(t, "window")) * time.Second}
		rate.Burst = rapid.Int64Range(1, 2*rate.N).Draw(t, "burst")
		requests := Rate{N: rapid.Int64Range(1, 20).Draw(t, "requests"), Window: 30 * time.Second, Burst: rapid.Int64Range(1, 20).Draw(t, "at once")}
		rules := Rules{Tokens: rate, Requests: requests, Input: 1, Output: rapid.Int64Range(0, 3).Draw(t, "weight"), Prepaid: true}
		tenants := []string{"a", "b"}
		l := New(&Table{Tenants: []Named{{"a", rules}, {"b", rules}}}, 1)
		const paid = int64(1 << 30)
		left := map[string]int64{}
		for _, tenant := range tenants {
			l.Refill(0, tenant, paid)
			left[tenant] = paid
		}
		logs := map[string]*[2][]charged{"a": {}, "b": {}}
		var now Time
		var open []*request
		charge := func(r *request, prompt, output int64) {
			for k, n := range []int64{1, rules.weigh(prompt, output)} {
				held := []int64{1, r.reserved}[k]
				if more := n - r.used[k]; more > 0 {
					over := max(n-max(held, r.used[k]), 0)
					logs[r.tenant][k] = append(logs[r.tenant][k], charged{now, more, over})
					r.used[k] = n
				}
			}
			r.prompt, r.output = prompt, output
		}
		settle := func(i int) {
			r := open[i]
			open = slices.Delete(open, i, i+1)
			use := Use{Began: rapid.Bool().Draw(t, "began") || r.used[0] > 0, Free: rapid.Bool().Draw(t, "free")}
			use.Prompt, use.Output = max(r.prompt, rapid.Int64Range(0, 500).Draw(t, "prompt")), max(r.output, rapid.Int64Range(0, 500).Draw(t, "output"))
			if !l.Settle(now, r.id, use) || l.Settle(now, r.id, use) {
				t.Fatal("a reservation settles once")
			}
			if use.Began {
				charge(r, use.Prompt, use.Output)
				if !use.Free {
					left[r.tenant] -= rules.weigh(use.Prompt, use.Output)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += Time(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "later"))
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what <= 1 || len(open) == 0:
				tenant := rapid.SampledFrom(tenants).Draw(t, "tenant")
				ask := Ask{Prompt: rapid.Int64Range(0, 300).Draw(t, "ask"), Output: rapid.Int64Range(0, 300).Draw(t, "expected")}
				answer := l.Reserve(now, tenant, ask)
				if answer.Refused {
					if answer.Retry > 0 && answer.By != Balance {
						now += Time(answer.Retry) - 1
						if early := l.Reserve(now, tenant, ask); !early.Refused {
							t.Fatalf("%v was let in a ns before the hint of %v", ask, answer.Retry)
						}
						now++
						answer = l.Reserve(now, tenant, ask)
						if answer.Refused {
							t.Fatalf("%v was refused at the hint: %+v", ask, answer)
						}
					}
				}
				if !answer.Refused {
					whole := rules.weigh(ask.Prompt, ask.Output)
					open = append(open, &request{id: answer.ID, tenant: tenant, reserved: max(ask.Prompt, min(whole, rate.Burst))})
				}
			case what == 2:
				r := rapid.SampledFrom(open).Draw(t, "request")
				prompt, output := r.prompt+rapid.Int64Range(0, 300).Draw(t, "prompt"), r.output+rapid.Int64Range(0, 100).Draw(t, "output")
				l.Progress(now, r.id, prompt, output)
				charge(r, prompt, output)
			default:
				settle(rapid.IntRange(0, len(open)-1).Draw(t, "which"))
			}
		}
		for len(open) > 0 {
			settle(0)
		}
		for _, tenant := range tenants {
			a := l.Look(now, tenant)
			if a.Open != 0 || a.Requests.Held != 0 || a.Tokens.Held != 0 || a.Balance.Held != 0 {
				t.Fatalf("all has settled, and %+v is held", a)
			}
			if a.Balance.Left != left[tenant] {
				t.Fatalf("the balance of %s is %d, want %d", tenant, a.Balance.Left, left[tenant])
			}
			for k, r := range []Rate{requests, rate} {
				log := logs[tenant][k]
				over := int64(0)
				for to := range log {
					over += log[to].over
					sum := int64(0)
					for from := to; from >= 0; from-- {
						sum += log[from].units
						stretch := float64(log[to].at - log[from].at)
						if most := float64(r.Burst) + stretch*float64(r.N)/float64(r.Window) + float64(over); float64(sum) > math.Floor(most+1e-6) {
							t.Fatalf("%s: %d %v were charged in %v, at most %.3f may be, of which %d ran over", tenant, sum, Kind(k), time.Duration(stretch), most, over)
						}
					}
				}
			}
		}
	})
}

// TestOrderOfSettles: what settles at a moment leaves the same in whatever order.
func TestOrderOfSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := Table{
			Tenants:  []Named{{"a", Rules{Tokens: Rate{N: 700, Burst: 900, Window: time.Minute}, Requests: Rate{N: 7, Burst: 9, Window: time.Minute}, Input: 1, Output: 2, Prepaid: true}}},
			Others:   Rules{Tokens: Rate{N: 100, Burst: 300, Window: time.Minute}, Input: 1, Output: 1},
			Together: Rules{Tokens: Rate{N: 130, Burst: 500, Window: time.Minute}, Input: 2, Output: 1},
		}
		type settled struct {
			tenant string
			ask    Ask
			later  Time
			use    Use
		}
		var all []settled
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			all = append(all, settled{
				rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), Ask{rapid.Int64Range(0, 90).Draw(t, "prompt"), rapid.Int64Range(0, 90).Draw(t, "output"), rapid.Bool().Draw(t, "dry")},
				Time(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "later")),
				Use{Began: rapid.Bool().Draw(t, "began"), Prompt: rapid.Int64Range(0, 200).Draw(t, "used"), Output: rapid.Int64Range(0, 200).Draw(t, "made"), Free: rapid.Bool().Draw(t, "free")},
			})
		}
		run := func(order []int) string {
			l := New(&table, 10)
			l.Refill(0, "a", 500)
			ids, now := make([]ID, len(all)), Time(0)
			for i, s := range all {
				now += s.later
				ids[i] = l.Reserve(now, s.tenant, s.ask).ID
			}
			now += Time(time.Second)
			for _, i := range order {
				l.Settle(now, ids[i], all[i].use)
			}
			return l.String()
		}
		order := make([]int, len(all))
		for i := range order {
			order[i] = i
		}
		want := run(order)
		if got := run(rapid.Permutation(order).Draw(t, "order")); got != want {
			t.Fatalf("in another order:\n%s\nwant:\n%s", got, want)
		}
	})
}

// TestSharedNeverMore: ledgers that share the limits, with parts that move between them,
// charge no more together than one would, also where a tenant comes to the other ledger
// right after its part has moved.
func TestSharedNeverMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := Rate{N: rapid.Int64Range(100, 10_000).Draw(t, "n"), Window: time.Duration(rapid.Int64Range(1, 3600).Draw(t, "window")) * time.Second}
		rate.Burst = rapid.Int64Range(100, 2*rate.N).Draw(t, "burst")
		ledgers := make([]*Ledger, rapid.IntRange(2, 3).Draw(t, "ledgers"))
		base := int64(million / len(ledgers))
		for i := range ledgers {
			ledgers[i] = New(&Table{Others: Rules{Tokens: rate, Input: 1}}, 10)
			ledgers[i].Share(0, base, nil)
		}
		held := make([]int64, len(ledgers))
		for i := range held {
			held[i] = base
		}
		var now Time
		var log []charged
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "passes") {
				now += Time(rapid.Int64Range(0, int64(rate.Window)/4).Draw(t, "later"))
			}
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				next := make([]int64, len(ledgers))
				left := int64(million)
				for i := range next {
					next[i] = rapid.Int64Range(1, max(left-int64(len(ledgers)), 1)).Draw(t, "part")
					left -= next[i]
				}
				for _, raise := range []bool{false, true} {
					for i, l := range ledgers {
						if ppm := next[i]; raise || ppm < held[i] {
							held[i] = ppm
							l.Share(now, base, []Part{{"a", ppm}})
						}
					}
				}
				continue
			}
			l := rapid.SampledFrom(ledgers).Draw(t, "ledger")
			n := l.Look(now, "a").Tokens.Left // all that there is, or some of it
			if n == 0 || rapid.Bool().Draw(t, "less") {
				n = rapid.Int64Range(1, max(n, 10)).Draw(t, "prompt")
			}
			answer := l.Reserve(now, "a", Ask{Prompt: n})
			if !answer.Refused {
				l.Settle(now, answer.ID, Use{Began: true, Prompt: n})
				log = append(log, charged{now, n, 0})
			}
		}
		for to := range log {
			sum := int64(0)
			for from := to; from >= 0; from-- {
				sum += log[from].units
				stretch := float64(log[to].at - log[from].at)
				if most := float64(rate.Burst) + stretch*float64(rate.N)/float64(rate.Window) + float64(len(ledgers)); float64(sum) > most {
					t.Fatalf("%d were charged in %v, at most %.3f may be", sum, time.Duration(stretch), most)
				}
			}
		}
	})
}

// TestManyTenants: a million tenants that come and go leave no more accounts than there is
// room for, whoever is still in his window among them keeps his account, and those for
// which there is none get no more than one does.
func TestManyTenants(t *testing.T) {
	const most = 1000
	l := New(&Table{Others: Rules{Requests: Rate{N: 1, Burst: 1, Window: 100 * time.Millisecond}}}, most)
	var now Time
	crowded := 0
	for i := range 1_000_000 {
		now += Time(125 * time.Microsecond) // 800 at a time have something in their account
		answer := l.Reserve(now, fmt.Sprint("t", i), Ask{})
		if answer.Refused {
			crowded++
		}
		l.Settle(now, answer.ID, Use{Began: true})
		if again := l.Reserve(now, fmt.Sprint("t", i), Ask{}); !again.Refused {
			t.Fatalf("tenant %d was let in twice within a window", i)
		}
	}
	if n, _ := l.Size(); n > most || len(l.accounts) > most+2 || len(l.index) > most+2 || len(l.holds) > 2 {
		t.Errorf("%d accounts, %d places, %d names, %d holds: there is room for %d", n, len(l.accounts), len(l.index), len(l.holds), most)
	}
	if crowded > 0 {
		t.Errorf("%d tenants found no room, though 800 of 1000 accounts say something", crowded)
	}
}

// BenchmarkReserve is a request's part of the hot path, with 100,000 tenants.
func BenchmarkReserve(b *testing.B) {
	rate := Rate{N: 1 << 30, Burst: 1 << 30, Window: time.Minute}
	l := New(&Table{Others: Rules{Requests: rate, Tokens: rate, Input: 1, Output: 1}}, 1<<17)
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprint("tenant-", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now := Time(i) * 1000
		a := l.Reserve(now, names[i%len(names)], Ask{Prompt: 100, Output: 100})
		l.Progress(now, a.ID, 100, 16)
		l.Settle(now, a.ID, Use{Began: true, Prompt: 100, Output: 60})
	}
}

// A tenant that was never seen has what it would find: all of the ledger's part.
func TestLookUnseen(t *testing.T) {
	l := New(&Table{Others: Rules{Requests: Rate{N: 12, Window: time.Hour, Burst: 12}}}, 10)
	for _, c := range []struct{ ppm, left int64 }{{million, 12}, {million / 2, 6}} {
		l.Share(0, c.ppm, nil)
		if got := l.Look(0, "stranger").Requests.Left; got != c.left {
			t.Errorf("with %d parts of a million %d requests are left, want %d", c.ppm, got, c.left)
		}
	}
}
