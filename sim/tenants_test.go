package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"headgate/quota"
	"headgate/simengine"
	"headgate/trace"
)

// regulars are tenants that ask for little each, evenly over an hour, and together for
// about a fifth of what the engine can do.
const (
	regulars   = 10
	tenantsFor = time.Hour
	every      = time.Minute     // of one tenant, on the average
	onTime     = 2 * time.Second // to the first token
)

// asked is a trace of tenants.
type asked struct {
	entries []trace.Entry
	of      []uint32
}

// regular draws what the regulars ask for.
func (a *asked) regular(rng *rand.Rand) {
	for tenant := range uint32(regulars) {
		a.poisson(rng, every, func() uint32 { return tenant })
	}
}

// poisson draws requests so far apart on the average, each of whom who says.
func (a *asked) poisson(rng *rand.Rand, apart time.Duration, who func() uint32) {
	for at := time.Duration(rng.ExpFloat64() * float64(apart)); at < tenantsFor; at += time.Duration(rng.ExpFloat64() * float64(apart)) {
		a.entries = append(a.entries, trace.Entry{Class: trace.Interactive, Arrival: at, PromptTokens: 80 + rng.IntN(80), MaxTokens: 64, Output: 16 + rng.IntN(48)})
		a.of = append(a.of, who())
	}
}

// sort brings it into the order of arrival.
func (a *asked) sort() {
	order := make([]int, len(a.entries))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return int(a.entries[x].Arrival - a.entries[y].Arrival) })
	entries, of := make([]trace.Entry, len(order)), make([]uint32, len(order))
	for to, from := range order {
		entries[to], of[to] = a.entries[from], a.of[from]
		entries[to].ID = fmt.Sprint("r", to)
	}
	a.entries, a.of = entries, of
}

// served runs a trace and returns which share of the regulars' requests had a first token
// in time, and what of the others' was let in.
func (a *asked) served(t *testing.T, limits quota.Table) (onTimeShare float64, others int) {
	t.Helper()
	e := simengine.DefaultConfig()
	arm, err := NewArm("headgate", e)
	if err != nil {
		t.Fatal(err)
	}
	arm.Tenants = &Tenants{Of: a.of, Limits: limits, Expected: 64}
	run, err := Simulate(&trace.Trace{Entries: a.entries}, arm)
	if err != nil {
		t.Fatal(err)
	}
	on, all := 0, 0
	for i := range run.Records {
		r := &run.Records[i]
		switch {
		case a.of[i] >= regulars:
			if r.Outcome == Completed {
				others++
			}
			continue
		case r.First >= 0 && r.First-r.Arrival <= onTime:
			on++
		}
		all++
	}
	return float64(on) / float64(all), others
}

// A tenant that asks for a hundred times what another does, a thousand tenants that do so
// together, and one tenant after the other that comes and goes, take less than two points
// of everybody else's on-time share, by the queues' fairness and the tenants' limits.
func TestGreedyTenants(t *testing.T) {
	// Each may use three times of what a regular does, and so may all together that have no
	// limits of their own.
	rate := func(tokens int64) quota.Rate { return quota.Rate{N: tokens, Burst: tokens, Window: time.Minute} }
	var limits quota.Table
	for tenant := range regulars + 1 {
		limits.Tenants = append(limits.Tenants, quota.Named{Tenant: fmt.Sprint(tenant), Rules: quota.Rules{Tokens: rate(450), Input: 1, Output: 1}})
	}
	limits.Others = quota.Rules{Tokens: rate(450), Input: 1, Output: 1}
	limits.Together = quota.Rules{Tokens: rate(450), Input: 1, Output: 1}
	for _, seed := range []uint64{1, 2, 3} {
		draw := func(greedy func(a *asked, rng *rand.Rand)) *asked {
			rng, a := rand.New(rand.NewPCG(seed, 1)), &asked{}
			a.regular(rng)
			if greedy != nil {
				greedy(a, rng)
			}
			a.sort()
			return a
		}
		alone, _ := draw(nil).served(t, limits)
		fresh := uint32(regulars + 1)
		for _, c := range []struct {
			name   string
			greedy func() uint32
		}{
			{"one tenant with a limit of its own", func() uint32 { return regulars }},
			{"a thousand tenants", func() uint32 { fresh = (fresh+1)%1000 + regulars + 1; return fresh }},
			{"a new tenant each time", func() uint32 { fresh++; return fresh }},
		} {
			a := draw(func(a *asked, rng *rand.Rand) { a.poisson(rng, every/100, c.greedy) })
			share, others := a.served(t, limits)
			free, all := a.served(t, quota.Table{})
			t.Logf("seed %d, %s: on time %.2f %% of the regulars' requests, alone %.2f %%, without limits %.2f %%; of the greedy %d were served, without limits %d", seed, c.name, 100*share, 100*alone, 100*free, others, all)
			if share < alone-0.02 {
				t.Errorf("seed %d, %s: %.2f %% of the regulars' requests were on time, alone %.2f %%: want them within 2 points", seed, c.name, 100*share, 100*alone)
			}
			if others == 0 {
				t.Errorf("seed %d, %s: the greedy got nothing", seed, c.name)
			}
		}
	}
}
