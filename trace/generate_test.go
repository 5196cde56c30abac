package trace

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// published are the canonical hashes that mofluxhq/moflux-bench published.
var published = map[string][]string{
	"metal-long-context-v1": {
		"cb91da7764cc60dd4c043bd34a23902bbba893bf50565217159c9b5013654a41",
		"d788a3a2f2cd3ec9ba12c9af88e42c2208b010d46de70ca17b7f7b8d952a2822",
		"38f55c798403c0de54d66ae4f1e686f85cf94bb6a282dfbdd0d2b3f29910f3d1",
	},
	"metal-balanced-v1": {
		"d7225a156f1183857bf362b4a9585fdad29c0318aea7b7a7e75d972f7462ed6c",
		"2c88ff6edb804c0f6f042d665df0f27451bb1ad83c3b51d9bc50d0dd16c21ecc",
		"90c514a1c3731abb4234e3af57b5c36d6a958b40763a2160779606fb698f49de",
	},
}

func TestPublishedHashes(t *testing.T) {
	for profile, hashes := range published {
		for i, want := range hashes {
			if have := generate(t, profile, uint32(i+1)).Hash(); have != want {
				t.Errorf("%s seed %d: hash %s, published is %s", profile, i+1, have, want)
			}
		}
	}
}

// TestPublishedTotals checks the sums over seeds 1 to 5 that the published
// experiment reports, so that the two seeds without a hash here are right too.
func TestPublishedTotals(t *testing.T) {
	var interactive, batch, returning, borrow int
	for seed := range uint32(5) {
		tr := generate(t, "metal-long-context-v1", seed+1)
		for _, e := range tr.Entries {
			switch {
			case e.Class == Batch && tr.Workload.Borrow().Contains(e.Arrival):
				borrow++
			case e.Class == Interactive && tr.Workload.Return().Contains(e.Arrival):
				returning++
			}
		}
		interactive += tr.Planned().Interactive
		batch += tr.Planned().Batch
	}
	have := []int{interactive, returning, batch, borrow}
	if want := []int{99, 67, 60, 38}; !slices.Equal(have, want) {
		t.Errorf("interactive, returning, batch, batch in the borrow window: %v, published are %v", have, want)
	}
}

func TestPromptTokens(t *testing.T) {
	for chars, want := range map[int]int{400: 118, 800: 207, 2000: 474, 7100: 1607} {
		if have := PromptTokens(chars); have != want {
			t.Errorf("%d characters are %d tokens, measured were %d", chars, have, want)
		}
	}
}

func TestWindows(t *testing.T) {
	for _, c := range []struct {
		profile         string
		borrow, returns Window
		duration        time.Duration
	}{
		{"metal-long-context-v1", Window{ms(25_000), ms(60_000)}, Window{ms(60_000), ms(85_000)}, ms(105_000)},
		{"burst-recovery-v3-long", Window{ms(25_000), ms(60_000)}, Window{ms(60_000), ms(150_000)}, ms(155_000)},
		{"metal-steady-v1", Window{}, Window{0, ms(1_800_000)}, ms(1_800_000)},
	} {
		w := generate(t, c.profile, 1).Workload
		if w.Borrow() != c.borrow || w.Return() != c.returns || w.Duration() != c.duration {
			t.Errorf("%s: borrow %v, return %v, duration %v: want %v, %v, %v", c.profile, w.Borrow(), w.Return(), w.Duration(), c.borrow, c.returns, c.duration)
		}
	}
	if w := (Window{ms(1), ms(2)}); !w.Contains(ms(1)) || w.Contains(ms(2)) || w.Contains(0) {
		t.Error("a window is not from its start to before its end")
	}
}

// TestDeclared checks that the overstated profile is its base but for what is
// declared, so that comparing the two compares nothing else.
func TestDeclared(t *testing.T) {
	for seed := range uint32(10) {
		base, over := generate(t, "metal-long-context-v1", seed), generate(t, "metal-declared-v1", seed)
		if base.Hash() == over.Hash() {
			t.Errorf("seed %d: the hash does not see what is declared", seed)
		}
		for i := range over.Entries {
			if e := &over.Entries[i]; e.MaxTokens == 4*e.Output {
				e.MaxTokens = e.Output
			}
		}
		if d := gocmp.Diff(base.Entries, over.Entries); d != "" {
			t.Errorf("seed %d: more differs than the declarations:\n%s", seed, d)
		}
	}
}

func TestUnknownProfile(t *testing.T) {
	_, err := Generate("nope", 1)
	if err == nil {
		t.Fatal("an unknown profile was drawn")
	}
	for _, part := range append(Names(), `"nope"`) {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %s: %v", part, err)
		}
	}
}

// TestFixedBurstWithoutReturn is the rare seed whose trace has no return to
// move.
func TestFixedBurstWithoutReturn(t *testing.T) {
	tr := &Trace{Protocol: FixedBurst, Workload: longContext()}
	tr.Workload.ResumeRps = 0
	tr.fixedBurst()
	i := slices.IndexFunc(tr.Entries, func(e Entry) bool { return e.ID == "interactive-resume-1" })
	if i < 0 || tr.Entries[i].Arrival != ms(60_000) || tr.Entries[i].InputChars != 2000 {
		t.Errorf("no large request at the return: %+v", tr.Entries)
	}
}

func TestDrawnTraces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(profiles).Draw(t, "profile")
		seed := rapid.Uint32().Draw(t, "seed")
		tr := generate(t, p.Name, seed)
		ids := map[string]bool{}
		for i := range tr.Entries {
			e := &tr.Entries[i]
			if ids[e.ID] {
				t.Fatalf("id %s twice", e.ID)
			}
			ids[e.ID] = true
			if i > 0 && order(tr.Entries[i-1], *e) >= 0 {
				t.Fatalf("%s before %s", tr.Entries[i-1].ID, e.ID)
			}
			if e.Arrival < 0 || e.Arrival >= tr.Workload.Duration() || e.Arrival%time.Microsecond != 0 {
				t.Fatalf("%s arrives at %v of %v", e.ID, e.Arrival, tr.Workload.Duration())
			}
			if p.sizes != nil {
				if e.Output < 1 || e.PromptTokens < 1 || e.MaxTokens != 0 || e.InputChars != 0 {
					t.Fatalf("sizes of %+v", e)
				}
			} else if e.Output < 1 || e.Output*p.Overstated != e.MaxTokens || e.PromptTokens != PromptTokens(e.InputChars) {
				t.Fatalf("sizes of %+v", e)
			}
			if d := e.Draw; d.RetryJitter < 0.5 || d.RetryJitter >= 1.5 || d.ProviderSeed >= 1<<32+2 {
				t.Fatalf("chance of %+v", e)
			}
		}
		again := generate(t, p.Name, seed)
		if d := gocmp.Diff(tr, again); d != "" {
			t.Fatalf("the same seed gives another trace:\n%s", d)
		}
		if other := generate(t, p.Name, seed+1); other.Hash() == tr.Hash() {
			t.Fatal("another seed has the same hash")
		}
	})
}

func order(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.Class, b.Class), cmp.Compare(a.ID, b.ID))
}

// TestHashSeesEverything changes each thing that a run sees.
func TestHashSeesEverything(t *testing.T) {
	for name, change := range map[string]func(*Trace){
		"workload":     func(t *Trace) { t.Workload.BackoffBaseMs++ },
		"id":           func(t *Trace) { t.Entries[3].ID += "x" },
		"class":        func(t *Trace) { t.Entries[3].Class = Batch },
		"arrival":      func(t *Trace) { t.Entries[3].Arrival += time.Microsecond },
		"input":        func(t *Trace) { t.Entries[3].InputChars++ },
		"prompt":       func(t *Trace) { t.Entries[3].PromptTokens++ },
		"declared":     func(t *Trace) { t.Entries[3].MaxTokens++ },
		"output":       func(t *Trace) { t.Entries[3].Output++ },
		"session":      func(t *Trace) { t.Entries[3].Session = "s" },
		"prefix":       func(t *Trace) { t.Entries[3].Prefix = []uint64{} },
		"prefix ids":   func(t *Trace) { t.Entries[3].Prefix = []uint64{1, 2} },
		"jitter":       func(t *Trace) { t.Entries[3].Draw.RetryJitter = 1 },
		"slot":         func(t *Trace) { t.Entries[3].Draw.TargetSlot++ },
		"seed":         func(t *Trace) { t.Entries[3].Draw.ProviderSeed++ },
		"fewer":        func(t *Trace) { t.Entries = t.Entries[:5] },
		"another late": func(t *Trace) { t.Entries[len(t.Entries)-1].Arrival++; t.Entries[0].Arrival = 0 },
	} {
		tr := generate(t, "metal-long-context-v1", 1)
		change(tr)
		if tr.Hash() == published["metal-long-context-v1"][0] {
			t.Errorf("%s: the hash did not change", name)
		}
	}
}

// TestRate compares the number of arrivals over many seeds with what the rates
// promise: a Poisson count's standard deviation is the root of its mean.
func TestRate(t *testing.T) {
	const seeds = 300
	for _, profile := range []string{"metal-long-context-v1", "metal-balanced-v1", "metal-steady-v1"} {
		var have Planned
		for seed := range uint32(seeds) {
			p := generate(t, profile, seed).Planned()
			have.Interactive += p.Interactive
			have.Batch += p.Batch
		}
		w := generate(t, profile, 1).Workload
		promised := func(what string, n int, expected float64) {
			if off := math.Abs(float64(n)-expected) / math.Sqrt(expected); off > 4 {
				t.Errorf("%s: %d %s arrivals, %.0f are expected: %.1f deviations off", profile, n, what, expected, off)
			}
		}
		promised(Interactive, have.Interactive, seeds*(w.InteractiveRps*float64(w.InteractiveDurationMs)+w.ResumeRps*float64(w.ResumeDurationMs))/1000)
		promised(Batch, have.Batch, seeds*w.BatchRps*float64(w.BatchDurationMs)/1000)
	}
}

// TestDocumented keeps the page of docs in step with what is drawn.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/traces.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range append(Names(), published["metal-long-context-v1"][0], mooncakeFields[1], strings.Join(azureHeader, ","), burstGPTHeader[3]) {
		if !strings.Contains(string(page), "`"+part+"`") {
			t.Errorf("docs/traces.md does not have %s", part)
		}
	}
}

type failer interface {
	Helper()
	Fatal(...any)
}

func generate(t failer, profile string, seed uint32) *Trace {
	t.Helper()
	tr, err := Generate(profile, seed)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func BenchmarkGenerate(b *testing.B) {
	for _, profile := range []string{"metal-long-context-v1", "metal-steady-v1"} {
		b.Run(profile, func(b *testing.B) {
			entries := 0
			for i := 0; b.Loop(); i++ {
				entries += len(generate(b, profile, uint32(i)).Entries)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(entries), "ns/entry")
		})
	}
}

func BenchmarkHash(b *testing.B) {
	tr := generate(b, "metal-steady-v1", 1)
	for b.Loop() {
		_ = tr.Hash()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(tr.Entries)), "ns/entry")
}

func ExampleGenerate() {
	t, err := Generate("metal-long-context-v1", 1)
	if err != nil {
		panic(err)
	}
	e := t.Entries[0]
	fmt.Println(t.Hash()[:16], len(t.Entries), e.ID, e.Arrival, e.PromptTokens, e.Output)
	// Output: cb91da7764cc60dd 30 interactive-1 9.665553s 118 16
}
