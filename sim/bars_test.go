package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/simengine"
	"headgate/trace"
)

// What the default policy is held to. Virtual time is exact, so these are plain
// tests; the seeds are those on which it was tuned, docs/lending.md has others.

func compare(t *testing.T, profile string, seeds []uint32, speed float64, arms ...string) map[string]*ArmReport {
	t.Helper()
	e := simengine.DefaultConfig()
	e.Speed = speed
	return compareOn(t, e, profile, seeds, arms...)
}

func compareOn(t *testing.T, e simengine.Config, profile string, seeds []uint32, arms ...string) map[string]*ArmReport {
	t.Helper()
	rep, err := Execute(&Plan{Traces: Drawn([]string{profile}, seeds), Arms: arms, Engine: e}, nil)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]*ArmReport{}
	for i := range rep.Arms {
		by[rep.Arms[i].Name] = &rep.Arms[i]
	}
	return by
}

func meanMakespan(a *ArmReport) float64 {
	sum := 0.0
	for i := range a.PerSeed {
		sum += a.PerSeed[i].MakespanS
	}
	return sum / float64(len(a.PerSeed))
}

// The published trace: interactive requests return while batch goes on.
func TestReturnTrace(t *testing.T) {
	for _, c := range []struct {
		speed, onTime float64
		beats         bool
	}{{1, 0.99, false}, {1.5, 0.90, true}, {2, 0.85, true}, {2.5, 0.85, true}} {
		by := compare(t, "metal-long-context-v1", seeds(30), c.speed, ArmNames()...)
		ours := by["headgate"]
		offered := ours.Interactive.ReturnOffered
		on := ours.Interactive.ReturnOnTime
		best := 0
		for name, a := range by {
			if name != "headgate" {
				best = max(best, a.Interactive.ReturnOnTime)
			}
		}
		t.Logf("speed %g: on time %d of %d, best other %d; batch %d of %d; makespan %.0f s, mean %.1f s, of priority %.0f s, mean %.1f s", c.speed,
			on, offered, best, ours.Batch.Completed, ours.Batch.Offered, ours.MakespanS, meanMakespan(ours), by["priority"].MakespanS, meanMakespan(by["priority"]))
		if float64(on) < c.onTime*float64(offered) {
			t.Errorf("speed %g: on time %d of %d, want %.0f %%", c.speed, on, offered, 100*c.onTime)
		}
		if ours.Batch.Completed != ours.Batch.Offered {
			t.Errorf("speed %g: %d of %d batch requests completed", c.speed, ours.Batch.Completed, ours.Batch.Offered)
		}
		if !c.beats {
			continue
		}
		if float64(on) < 1.05*float64(best) {
			t.Errorf("speed %g: on time %d, want 1.05 times the best other arm's %d", c.speed, on, best)
		}
		if limit := by["priority"].MakespanS * 1.15; ours.MakespanS > limit {
			t.Errorf("speed %g: makespan %.1f s, want at most %.1f s", c.speed, ours.MakespanS, limit)
		}
		if limit := meanMakespan(by["priority"]) * 1.15; meanMakespan(ours) > limit {
			t.Errorf("speed %g: mean makespan %.1f s, want at most %.1f s", c.speed, meanMakespan(ours), limit)
		}
	}
}

// Where the engine caches prefixes, a prefill that is too long is split, and a
// returning request waits for a piece of it at most.
func TestReturnTraceSplit(t *testing.T) {
	for _, c := range []struct{ speed, onTime float64 }{{1, 0.99}, {1.5, 0.97}, {2, 0.92}, {2.5, 0.85}} {
		e := simengine.DefaultConfig()
		e.Speed, e.PrefixCaching = c.speed, true
		a := compareOn(t, e, "metal-long-context-v1", seeds(30), "headgate")["headgate"]
		t.Logf("speed %g: on time %d of %d, makespan %.0f s, %d tokens recomputed", c.speed, a.Interactive.ReturnOnTime, a.Interactive.ReturnOffered, a.MakespanS, a.Recomputed)
		if float64(a.Interactive.ReturnOnTime) < c.onTime*float64(a.Interactive.ReturnOffered) || a.Batch.Completed != a.Batch.Offered {
			t.Errorf("speed %g: on time %d of %d, batch %d of %d", c.speed, a.Interactive.ReturnOnTime, a.Interactive.ReturnOffered, a.Batch.Completed, a.Batch.Offered)
		}
	}
}

// Neither class ever pauses: batch must not be starved, and interactive must not
// pay for that.
func TestSteadyTrace(t *testing.T) {
	for _, c := range []struct {
		caching bool
		least   float64 // of the partition's batch tokens
	}{{false, 0.94}, {true, 0.85}} {
		for _, speed := range []float64{1, 1.5, 2} {
			e := simengine.DefaultConfig()
			e.Speed, e.PrefixCaching = speed, c.caching
			by := compareOn(t, e, "metal-steady-v1", seeds(6), "static-queued", "headgate")
			ours, static := by["headgate"], by["static-queued"]
			share := float64(ours.Batch.TokensInWindow) / float64(static.Batch.TokensInWindow)
			t.Logf("speed %g, caching %t: batch tokens %.3f of static-queued; on time %d and %d of %d", speed, c.caching, share, ours.Interactive.OnTime, static.Interactive.OnTime, ours.Interactive.Offered)
			if share < c.least {
				t.Errorf("speed %g, caching %t: %d batch tokens in the window, static-queued has %d", speed, c.caching, ours.Batch.TokensInWindow, static.Batch.TokensInWindow)
			}
			if ours.Interactive.OnTime < static.Interactive.OnTime {
				t.Errorf("speed %g, caching %t: %d on time, static-queued has %d", speed, c.caching, ours.Interactive.OnTime, static.Interactive.OnTime)
			}
		}
	}
}

// Clients that declare four times what they get are served like those that
// declare the truth.
func TestDeclaredTrace(t *testing.T) {
	for _, speed := range []float64{1, 1.5, 2, 2.5} {
		on := func(profile string) float64 {
			a := compare(t, profile, seeds(30), speed, "headgate")["headgate"]
			return 100 * float64(a.Interactive.ReturnOnTime) / float64(a.Interactive.ReturnOffered)
		}
		declared, truth := on("metal-declared-v1"), on("metal-long-context-v1")
		t.Logf("speed %g: %.1f %% on time, with true declarations %.1f %%", speed, declared, truth)
		if declared < truth-2 || declared > truth+2 {
			t.Errorf("speed %g: %.1f %% on time, with true declarations %.1f %%: want them within 2 points", speed, declared, truth)
		}
	}
}

// The four arms of the published experiment come out in its order.
func TestPublishedOrder(t *testing.T) {
	for _, speed := range []float64{1.5, 2} {
		by := compare(t, "metal-long-context-v1", seeds(30), speed, "fcfs", "priority", "static", "lending")
		order := func(of func(a *ArmReport) int, want ...string) {
			if !slices.IsSortedFunc(want, func(a, b string) int { return cmp.Compare(of(by[a]), of(by[b])) }) {
				t.Errorf("speed %g: want %v in this order", speed, want)
			}
		}
		// Over both published runs: fcfs 6, lending 74, priority 92, static 100 on
		// time; static 42, lending 57, the others all of batch.
		order(func(a *ArmReport) int { return a.Interactive.ReturnOnTime }, "fcfs", "priority", "static")
		order(func(a *ArmReport) int { return a.Interactive.ReturnOnTime }, "fcfs", "lending", "static")
		order(func(a *ArmReport) int { return a.Batch.Completed }, "static", "lending", "priority")
		order(func(a *ArmReport) int { return a.Batch.Completed }, "static", "lending", "fcfs")
	}
}

// Protection that nobody needs costs nothing: with interactive idle, and with one
// interactive request always in flight, batch gets what an unprotected engine
// would leave it.
func TestNeverOverGates(t *testing.T) {
	const window = 400 * time.Second
	batchTokens := func(arm string, speed float64, entries []trace.Entry) (tokens int) {
		e := simengine.DefaultConfig()
		e.Speed = speed
		a, err := NewArm(arm, e)
		if err != nil {
			t.Fatal(err)
		}
		run, err := Simulate(&trace.Trace{Entries: entries}, a)
		if err != nil {
			t.Fatal(err)
		}
		for i := range run.Records {
			if r := &run.Records[i]; r.Class == trace.Batch && r.Outcome == Completed && r.Done <= window {
				tokens += r.PromptTokens + r.Tokens
			}
		}
		return tokens
	}
	for _, speed := range []float64{1, 1.5, 2, 2.5} {
		for _, size := range []struct{ prompt, output int }{{1607, 64}, {207, 32}} {
			var batch []trace.Entry
			for i := range 1000 {
				batch = append(batch, trace.Entry{ID: fmt.Sprint("b", i), Class: trace.Batch, PromptTokens: size.prompt, MaxTokens: size.output, Output: size.output})
			}
			busy := slices.Clone(batch)
			// Answers of 400 tokens, each from about the end of the one before it.
			for at := time.Duration(0); at < window; at += time.Duration(400 * 0.11 * speed * float64(time.Second)) {
				busy = append(busy, trace.Entry{ID: fmt.Sprint("i", at), Class: trace.Interactive, Arrival: at, PromptTokens: 118, MaxTokens: 400, Output: 400})
			}
			for _, c := range []struct {
				what    string
				entries []trace.Entry
				least   float64
			}{{"interactive idle", batch, 0.97}, {"one always in flight", busy, 0.90}} {
				free, ours := batchTokens("priority", speed, c.entries), batchTokens("headgate", speed, c.entries)
				t.Logf("speed %g, batch of %d + %d, %s: %.3f of the unprotected engine", speed, size.prompt, size.output, c.what, float64(ours)/float64(free))
				if float64(ours) < c.least*float64(free) {
					t.Errorf("speed %g, batch of %d + %d, %s: %d batch tokens, unprotected %d, want %.2f of it", speed, size.prompt, size.output, c.what, ours, free, c.least)
				}
			}
		}
	}
}

// A backlog that never runs out, beside the published return traces one after the
// other: interactive is on time as without it, where the engine's own priorities are not.
// Where prefixes are cached batch has what interactive leaves: what the engine alone makes
// of it in as much time as no interactive request is under way when those are alone. Where
// they are not, a recall costs prefills; docs/lending.md has what that takes.
func TestBesideBacklog(t *testing.T) {
	const each = 95 * time.Second // a trace, and its last request's answer
	tr, err := trace.Generate("metal-long-context-v1", 1)
	if err != nil {
		t.Fatal(err)
	}
	b := &Backlog{Depth: 16}
	var returning []bool
	tr.Entries = nil
	for _, seed := range seeds(30) {
		one, err := trace.Generate("metal-long-context-v1", seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range one.Entries {
			if e.Class == trace.Batch {
				b.Shapes = append(b.Shapes, e)
				continue
			}
			returning = append(returning, strings.HasPrefix(e.ID, "interactive-resume"))
			e.Arrival += b.Until
			e.ID += fmt.Sprint("-", seed)
			tr.Entries = append(tr.Entries, e)
		}
		b.Until += each
	}
	for _, c := range []struct {
		caching bool
		least   float64 // of what interactive leaves
	}{{false, 0.55}, {true, 0.95}} {
		onTime, tokens := map[string]int{}, map[string]int{}
		left := b.Until // of the time, by interactive when it is alone
		for _, name := range []string{"alone", "batch alone", "priority", "static-queued", Headgate} {
			e := simengine.DefaultConfig()
			e.PrefixCaching = c.caching
			with, requests := b, *tr
			arm, err := NewArm(name, e)
			switch name {
			case "alone":
				arm, err = NewArm(Headgate, e)
				with = nil
			case "batch alone":
				arm, err = NewArm("priority", e)
				requests.Entries = requests.Entries[:1]
			}
			if err != nil {
				t.Fatal(err)
			}
			run, err := SimulateWith(&requests, arm, with)
			if err != nil {
				t.Fatal(err)
			}
			var until time.Duration
			for i := range run.Records {
				r := &run.Records[i]
				if name == "alone" {
					left -= max(0, r.Done-max(r.Arrival, until))
					until = max(until, r.Done)
				}
				switch {
				case r.Class == trace.Batch && r.Outcome == Completed && r.Done <= b.Until:
					tokens[name] += r.Output
				case r.Class == trace.Interactive && returning[i] && r.OnTime():
					onTime[name]++
				}
			}
		}
		leaves := float64(tokens["batch alone"]) * left.Seconds() / b.Until.Seconds()
		t.Logf("caching %t: on time %v, tokens of batch %v; interactive alone leaves %v of %v, so %.0f tokens: headgate has %.3f of them",
			c.caching, onTime, tokens, left.Round(time.Second), b.Until, leaves, float64(tokens[Headgate])/leaves)
		if 100*onTime[Headgate] < 99*onTime["alone"] {
			t.Errorf("caching %t: %d on time, alone %d", c.caching, onTime[Headgate], onTime["alone"])
		}
		if float64(tokens[Headgate]) < c.least*leaves {
			t.Errorf("caching %t: that is less than %g", c.caching, c.least)
		}
	}
}

// Several at a time, at a steady beat, which is the hardest case for a policy that lends what
// is idle: the first of a burst comes into an idle class, and nobody is ever alone with his
// prefill. Still more are on time than by the engine's own priorities, and four fifths of those
// that a partition has; docs/lending.md has some of the figures.
func TestBurstsBesideBacklog(t *testing.T) {
	const length = 15 * time.Minute
	for _, c := range []struct {
		at    int
		every float64 // seconds
	}{{4, 10}, {4, 12}, {3, 15}, {2, 15}} {
		for _, caching := range []bool{false, true} {
			e := simengine.DefaultConfig()
			e.PrefixCaching = caching
			onTime, tokens, offered := map[string]int{}, map[string]int{}, 0
			for _, name := range []string{"priority", "static-queued", Headgate} {
				offered = 0
				for seed := range uint64(5) {
					r := rand.New(rand.NewPCG(seed+1, 7))
					tr := &trace.Trace{Profile: "bursts"}
					for at := 5.0; at < length.Seconds(); at += c.every * (0.9 + 0.2*r.Float64()) {
						for range c.at {
							tr.Entries = append(tr.Entries, trace.Entry{ID: fmt.Sprint("i", len(tr.Entries)), Class: trace.Interactive,
								Arrival: time.Duration(at*1e6) * time.Microsecond, PromptTokens: 474, MaxTokens: 25, Output: 25})
						}
					}
					offered += len(tr.Entries)
					arm, err := NewArm(name, e)
					if err != nil {
						t.Fatal(err)
					}
					b := &Backlog{Depth: 16, Until: length, Shapes: []trace.Entry{{ID: "b", Class: trace.Batch, PromptTokens: 1607, MaxTokens: 64, Output: 64}}}
					run, err := SimulateWith(tr, arm, b)
					if err != nil {
						t.Fatal(err)
					}
					for i := range run.Records {
						if q := &run.Records[i]; q.Class == trace.Interactive && q.OnTime() {
							onTime[name]++
						} else if q.Class == trace.Batch && q.Outcome == Completed && q.Done <= length {
							tokens[name] += q.Output
						}
					}
				}
			}
			t.Logf("%d every %g s, caching %t: of %d on time %v, tokens of batch %v", c.at, c.every, caching, offered, onTime, tokens)
			if onTime[Headgate] < onTime["priority"] || onTime[Headgate] < 4*onTime["static-queued"]/5 {
				t.Errorf("%d every %g s, caching %t: too few on time", c.at, c.every, caching)
			}
		}
	}
}
