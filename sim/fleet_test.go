package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/simengine"
	"headgate/trace"
)

func inFleet(t interface{ Fatal(...any) }, requests []trace.Entry, name string, f *Fleet) *Run {
	arm, err := NewArm(name, simengine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	arm.Fleet = f
	run, err := Simulate(&trace.Trace{Entries: requests}, arm)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Whatever the fleet and however late its words are, every request ends once with the
// output that it was to have, and the same input gives the same run.
func TestFleetLosesNoRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := draw(t)
		for i := range requests {
			requests[i].Session = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "session")
		}
		name := rapid.SampledFrom([]string{"static-queued", "lending-queued", "headgate"}).Draw(t, "arm")
		f := &Fleet{
			Replicas: rapid.IntRange(1, 6).Draw(t, "replicas"), Spread: rapid.SampledFrom(Spreads()).Draw(t, "spread"),
			Delay: time.Duration(rapid.SampledFrom([]int{0, 1, 5, 300, 2000}).Draw(t, "delay")) * time.Millisecond,
		}
		run := inFleet(t, requests, name, f)
		if diff := cmp.Diff(run, inFleet(t, requests, name, f)); diff != "" {
			t.Fatalf("two runs of the same trace differ: %s", diff)
		}
		for i := range run.Records {
			r := &run.Records[i]
			order := []time.Duration{r.Arrival, r.Admitted, r.Scheduled, r.First, r.Done}
			if r.Outcome != Completed || !slices.IsSorted(order) || r.Tokens != r.Output {
				t.Fatalf("%s: %s, %v, %d tokens of %d", r.ID, r.Outcome, order, r.Tokens, r.Output)
			}
		}
	})
}

// Requests come to the replicas as it is said.
func TestSpread(t *testing.T) {
	var requests []trace.Entry
	for i := range 8 {
		q := trace.Entry{ID: fmt.Sprint("r", i), Class: trace.Interactive, Arrival: time.Duration(i), PromptTokens: 100, Output: 1, Session: fmt.Sprint("s", i%2)}
		if i%4 == 3 {
			q.Class = trace.Batch
		}
		requests = append(requests, q)
	}
	for _, c := range []struct {
		spread Spread
		want   string
	}{{RoundRobin, "01201201"}, {ByClass, "00010001"}, {BySession, "21212121"}} {
		arm, err := NewArm("headgate", simengine.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		arm.Fleet = &Fleet{Replicas: 3, Spread: c.spread}
		r, err := simulation(&trace.Trace{Entries: requests}, arm, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range r.flights {
			got += fmt.Sprint(r.flights[i].gate)
		}
		if got != c.want {
			t.Errorf("%s: to %s, want %s", c.spread, got, c.want)
		}
	}
}

// A fleet that can't be is refused with what is wrong.
func TestFleetRefuses(t *testing.T) {
	for _, c := range []struct {
		fleet Fleet
		want  string
	}{
		{Fleet{Replicas: 65, Spread: RoundRobin}, "replicas is 65"},
		{Fleet{Replicas: 2, Spread: "random"}, "round-robin, session, class"},
		{Fleet{Replicas: 2, Spread: ByClass, Delay: -1}, "control-delay is -1ns"},
	} {
		arm, _ := NewArm("headgate", simengine.DefaultConfig())
		arm.Fleet = &c.fleet
		if _, err := Simulate(&trace.Trace{}, arm); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// mixed is a trace of chats that come in waves, and of batch work of many sizes, with so
// many of each a second.
func mixed(seed uint64, length time.Duration, chats, batches float64) *trace.Trace {
	r := rand.New(rand.NewPCG(seed, 0))
	t := &trace.Trace{Profile: "mixed", Seed: uint32(seed)}
	t.Workload.DurationMs = int(length / time.Millisecond)
	t.Workload.ResumeDurationMs = t.Workload.DurationMs
	size := func(least, most float64) int { return int(least * math.Pow(most/least, r.Float64())) }
	for at := time.Duration(0); ; {
		rate := chats * (1 + 0.8*math.Sin(2*math.Pi*at.Seconds()/120))
		at += time.Duration(r.ExpFloat64() / rate * 1e9)
		if at > length {
			break
		}
		out := size(30, 400)
		t.Entries = append(t.Entries, trace.Entry{ID: fmt.Sprint("i", len(t.Entries)), Class: trace.Interactive, Arrival: at, PromptTokens: size(100, 3000), MaxTokens: out * (1 + r.IntN(3)), Output: out, Session: fmt.Sprint("s", r.IntN(50))})
	}
	for at := time.Duration(0); ; {
		at += time.Duration(r.ExpFloat64() / batches * 1e9)
		if at > length {
			break
		}
		out := size(50, 800)
		t.Entries = append(t.Entries, trace.Entry{ID: fmt.Sprint("b", len(t.Entries)), Class: trace.Batch, Arrival: at, PromptTokens: size(300, 7000), MaxTokens: out, Output: out})
	}
	slices.SortFunc(t.Entries, func(a, b trace.Entry) int { return int(a.Arrival - b.Arrival) })
	return t
}

// The same holds for an engine of 32 slots at about 70 % of what it can do: there shares
// are wide enough for most requests. All that is done in time is counted, too.
func TestWideFleetEquivalence(t *testing.T) {
	m, err := simengine.LoadModel("llama2-70b-h100-80gb-tp8")
	if err != nil {
		t.Fatal(err)
	}
	e := simengine.DefaultConfig()
	e.Model, e.MaxNumSeqs, e.NumBlocks, e.MaxModelLen, e.MaxBatchedTokens = m, 32, 4097, 8192, 8192
	var traces []Source
	for seed := range uint64(3) {
		traces = append(traces, FromFile("mixed", mixed(seed+1, 10*time.Minute, 1.5, 1)))
	}
	plan := func(f *Fleet) *ArmReport {
		rep, err := Execute(&Plan{Traces: traces, Arms: []string{Headgate}, Engine: e, Fleet: f}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &rep.Arms[0]
	}
	one := plan(nil)
	for _, s := range Spreads() {
		a := plan(&Fleet{Replicas: 4, Spread: s, Delay: DefaultDelay})
		t.Logf("4 gateways by %s: on time %d and %d alone, batch %d and %d, tokens in time %d and %d, makespan %.1f and %.1f s, reclaims %d and %d", s,
			a.Interactive.OnTime, one.Interactive.OnTime, a.Batch.Completed, one.Batch.Completed, a.Batch.TokensInWindow, one.Batch.TokensInWindow,
			meanMakespan(a), meanMakespan(one), a.Reclaims, one.Reclaims)
		if float64(a.Interactive.OnTime) < 0.97*float64(one.Interactive.OnTime) || a.Batch.Completed != one.Batch.Completed {
			t.Errorf("4 gateways by %s: on time %d, batch %d; alone %d and %d", s, a.Interactive.OnTime, a.Batch.Completed, one.Interactive.OnTime, one.Batch.Completed)
		}
		if float64(a.Batch.TokensInWindow) < 0.97*float64(one.Batch.TokensInWindow) {
			t.Errorf("4 gateways by %s: %d batch tokens in time, alone %d", s, a.Batch.TokensInWindow, one.Batch.TokensInWindow)
		}
	}
}

// The same traces through one gateway that owns the engine, through one under control,
// and through four: what is on time and what is done differ by 3 % at most, and a fleet
// does not end more loans for it than twice as many.
func TestFleetEquivalence(t *testing.T) {
	const within = 0.03
	fleets := []*Fleet{{Replicas: 1, Spread: RoundRobin, Delay: DefaultDelay}}
	for _, s := range Spreads() {
		fleets = append(fleets, &Fleet{Replicas: 4, Spread: s, Delay: DefaultDelay})
	}
	for _, c := range []struct {
		profile string
		seeds   int
		speeds  []float64
	}{{"metal-long-context-v1", 30, []float64{1, 1.5, 2, 2.5}}, {"metal-steady-v1", 2, []float64{1}}} {
		for _, speed := range c.speeds {
			e := simengine.DefaultConfig()
			e.Speed = speed
			plan := func(f *Fleet) *ArmReport {
				rep, err := Execute(&Plan{Traces: Drawn([]string{c.profile}, seeds(c.seeds)), Arms: []string{Headgate}, Engine: e, Fleet: f}, nil)
				if err != nil {
					t.Fatal(err)
				}
				return &rep.Arms[0]
			}
			one := plan(nil)
			for _, f := range fleets {
				a := plan(f)
				what := fmt.Sprintf("%s at speed %g, %d gateways by %s", c.profile, speed, f.Replicas, f.Spread)
				t.Logf("%s: on time %d and %d alone, of those that return %d and %d; batch %d and %d, tokens in time %d and %d; makespan %.1f and %.1f s; reclaims %d and %d", what,
					a.Interactive.OnTime, one.Interactive.OnTime, a.Interactive.ReturnOnTime, one.Interactive.ReturnOnTime, a.Batch.Completed, one.Batch.Completed,
					a.Batch.TokensInWindow, one.Batch.TokensInWindow, meanMakespan(a), meanMakespan(one), a.Reclaims, one.Reclaims)
				for _, v := range []struct {
					what      string
					got, want float64
				}{
					{"on time", float64(a.Interactive.OnTime), float64(one.Interactive.OnTime)},
					{"batch completed", float64(a.Batch.Completed), float64(one.Batch.Completed)},
				} {
					if v.got < v.want*(1-within) {
						t.Errorf("%s: %s %.0f, alone %.0f: want at most %.0f %% less", what, v.what, v.got, v.want, 100*within)
					}
				}
				if m := meanMakespan(a) / meanMakespan(one); math.Abs(m-1) > 2*within {
					t.Errorf("%s: mean makespan %.3f of that alone", what, m)
				}
				if a.Reclaims > 2*one.Reclaims+10 {
					t.Errorf("%s: %d reclaims, alone %d", what, a.Reclaims, one.Reclaims)
				}
			}
		}
	}
}
