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
	// Overstated is how many times its output each request declares.
	Overstated int
}

// Profiles returns all profiles, in the order in which they are shown.
func Profiles() []Profile { return slices.Clone(profiles) }

// profiles are named by what was published, and numbered: a profile that
// changes takes a new name, since evidence stands under the old one.
var profiles = []Profile{
	{"metal-long-context-v1", "long batch prompts fill the KV pool; interactive pauses and returns", RandomArrival, longContext(), 1},
	{"metal-balanced-v1", "the same phases with short batch prompts, five times as many", RandomArrival, balanced(), 1},
	{"metal-steady-v1", "half an hour in which neither class pauses", RandomArrival, steady(), 1},
	{"metal-declared-v1", "metal-long-context-v1, each request declaring four times its output", RandomArrival, declared(), 4},
	{"fixed-burst-v3", "three batch requests at fixed times, and a first return that does not fit beside them", FixedBurst, longContext(), 1},
	{"burst-recovery-v3-short", "two returns at once while borrowers have 64 tokens to make", BurstRecovery, recovery(), 1},
	{"burst-recovery-v3-long", "the same with borrowers of 192 tokens", BurstRecovery, recovery(), 1},
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
		t.interactiveUntilPause()
		t.interactiveReturn()
		t.batch()
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		e.PromptTokens = PromptTokens(e.InputChars)
		e.Output = e.MaxTokens / p.Overstated
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
