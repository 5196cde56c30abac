package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile is a workload that Generate draws under a name.
type Profile struct {
	Name string
	// About says in a sentence what the profile is for.
	About    string
	Protocol Protocol
	// Workload has no seed yet.
	Workload Workload
	// Overstated is how many times its output each request declares; 0 declares
	// nothing.
	Overstated int

	sizes map[string]sizes // by class, in the place of the workload's
	// modulated arrivals of interactive requests, in the place of Poisson ones.
	modulated bool
}

// Profiles returns all profiles, in the order in which they are shown.
func Profiles() []Profile { return slices.Clone(profiles) }

// profiles are named by what was published, and numbered: a profile that
// changes takes a new name, since evidence stands under the old one.
var profiles = []Profile{
	{Name: "metal-long-context-v1", About: "long batch prompts fill the KV pool; interactive pauses and returns", Protocol: RandomArrival, Workload: longContext(), Overstated: 1},
	{Name: "metal-balanced-v1", About: "the same phases with short batch prompts, five times as many", Protocol: RandomArrival, Workload: balanced(), Overstated: 1},
	{Name: "metal-steady-v1", About: "half an hour in which neither class pauses", Protocol: RandomArrival, Workload: steady(), Overstated: 1},
	{Name: "metal-declared-v1", About: "metal-long-context-v1, each request declaring four times its output", Protocol: RandomArrival, Workload: declared(), Overstated: 4},
	{Name: "fixed-burst-v3", About: "three batch requests at fixed times, and a first return that does not fit beside them", Protocol: FixedBurst, Workload: longContext(), Overstated: 1},
	{Name: "burst-recovery-v3-short", About: "two returns at once while borrowers have 64 tokens to make", Protocol: BurstRecovery, Workload: recovery(), Overstated: 1},
	{Name: "burst-recovery-v3-long", About: "the same with borrowers of 192 tokens", Protocol: BurstRecovery, Workload: recovery(), Overstated: 1},
	{Name: "busy-15-v1", About: "a quarter of an hour of interactive at 15 % of what the published engine can do, and more batch than it can", Protocol: RandomArrival, Workload: busy(0.233), Overstated: 1},
	{Name: "busy-30-v1", About: "the same at 30 %", Protocol: RandomArrival, Workload: busy(0.466), Overstated: 1},
	{Name: "busy-60-v1", About: "the same at 60 %", Protocol: RandomArrival, Workload: busy(0.933), Overstated: 1},
	{Name: "busy-90-v1", About: "the same at 90 %", Protocol: RandomArrival, Workload: busy(1.399), Overstated: 1},
	{
		Name: "azure-like-v1", About: "SYNTHETIC: ten minutes of arrivals and lengths like Azure's conversation log, with summaries as batch", Protocol: RandomArrival,
		Workload: azureLike(5.5), sizes: map[string]sizes{Interactive: azureConversation, Batch: arxivSummaries}, modulated: true,
	},
	{
		Name: "summaries-like-v1", About: "SYNTHETIC: its batch alone, an hour of it, to be laid under a recorded log", Protocol: RandomArrival,
		Workload: summaries(), sizes: map[string]sizes{Batch: arxivSummaries},
	},
}

func longContext() Workload {
	return Workload{
		DurationMs:     105_000,
		InteractiveRps: 0.25, InteractiveInputChars: 400, InteractiveMaxTokens: 16,
		BatchStartMs: 25_000, BatchDurationMs: 60_000, BatchRps: 0.15, BatchInputChars: 7_100, BatchMaxTokens: 64,
		MaxAttempts: 1, BackoffBaseMs: 500,
		InteractiveDurationMs: 25_000,
		ResumeStartMs:         60_000, ResumeDurationMs: 25_000, ResumeRps: 0.5,
	}
}

func balanced() Workload {
	w := longContext()
	w.BatchRps, w.BatchInputChars, w.BatchMaxTokens = 0.75, 800, 32
	return w
}

func steady() Workload {
	w := longContext()
	w.DurationMs, w.InteractiveDurationMs, w.BatchStartMs, w.BatchDurationMs = 1_800_000, 1_800_000, 0, 1_800_000
	w.InteractiveRps = 0.5
	w.ResumeStartMs, w.ResumeDurationMs, w.ResumeRps = 0, 0, 0
	return w
}

func declared() Workload {
	w := longContext()
	w.InteractiveMaxTokens *= 4
	w.BatchMaxTokens *= 4
	return w
}

// busy is interactive without a pause, at so many requests a second, over batch of
// which there is always some to do: the published engine alone, at speed 1, can do
// 1.555 of the interactive requests a second, or 0.188 of the batch ones.
func busy(rps float64) Workload {
	w := steady()
	w.DurationMs, w.InteractiveDurationMs, w.BatchDurationMs = 900_000, 900_000, 900_000
	w.InteractiveRps, w.BatchRps = rps, 0.25
	return w
}

func azureLike(rps float64) Workload {
	return Workload{
		DurationMs: 600_000, InteractiveRps: rps, InteractiveDurationMs: 600_000, BatchRps: 3, BatchDurationMs: 600_000,
		MaxAttempts: 1, BackoffBaseMs: 500,
	}
}

func summaries() Workload {
	w := azureLike(0)
	w.DurationMs, w.InteractiveDurationMs, w.BatchDurationMs = 3_600_000, 0, 3_600_000
	return w
}

// Names lists the profiles.
func Names() []string {
	names := make([]string, len(profiles))
	for i := range profiles {
		names[i] = profiles[i].Name
	}
	return names
}

// Generate draws the trace of a profile for a seed. The same two give the same
// trace, on any machine. An unknown profile is an error that lists them all.
func Generate(profile string, seed uint32) (*Trace, error) {
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == profile })
	if i < 0 {
		return nil, fmt.Errorf("profile %q is not known: allowed are %s", profile, strings.Join(Names(), ", "))
	}
	p := &profiles[i]
	t := &Trace{Profile: p.Name, Protocol: p.Protocol, Seed: seed, Workload: p.Workload}
	t.Workload.Seed = seed
	switch p.Protocol {
	case FixedBurst:
		t.fixedBurst()
	case BurstRecovery:
		t.burstRecovery()
	default:
		if p.modulated {
			t.add(Interactive, Interactive, modulated(seed, Interactive, p.Workload.InteractiveRps, p.Workload.InteractiveStartMs, p.Workload.InteractiveDurationMs))
		} else {
			t.interactiveUntilPause()
		}
		t.interactiveReturn()
		t.batch()
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		if z, ok := p.sizes[e.Class]; ok {
			e.resize(seed, z)
		} else {
			e.PromptTokens = PromptTokens(e.InputChars)
			e.Output = e.MaxTokens / p.Overstated
		}
		e.Draw = p.Protocol.draw(seed, e.ID)
	}
	slices.SortFunc(t.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.Class, b.Class), cmp.Compare(a.ID, b.ID))
	})
	return t, nil
}

// resumeLabel names the stream of interactive arrivals after the pause. A
// stream's label is also the head of its entries' ids.
const resumeLabel = "interactive-resume"

func (t *Trace) interactiveUntilPause() {
	w := &t.Workload
	t.add(Interactive, Interactive, arrivals(t.Seed, Interactive, w.InteractiveRps, w.InteractiveStartMs, w.InteractiveDurationMs))
}

func (t *Trace) interactiveReturn() {
	w := &t.Workload
	t.add(resumeLabel, Interactive, arrivals(t.Seed, resumeLabel, w.ResumeRps, w.ResumeStartMs, w.ResumeDurationMs))
}

func (t *Trace) batch() {
	w := &t.Workload
	t.add(Batch, Batch, arrivals(t.Seed, Batch, w.BatchRps, w.BatchStartMs, w.BatchDurationMs))
}

// add appends a request of its class's size for every arrival, numbered from 1.
func (t *Trace) add(label, class string, at []time.Duration) {
	chars, tokens := t.Workload.size(class)
	for i, a := range at {
		t.Entries = append(t.Entries, Entry{
			ID: label + "-" + strconv.Itoa(i+1), Class: class, Arrival: a, InputChars: chars, MaxTokens: tokens,
		})
	}
}
