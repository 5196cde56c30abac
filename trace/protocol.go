package trace

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Protocol is the rule by which a trace's entries were placed.
type Protocol string

// Protocols.
const (
	// RandomArrival draws every arrival.
	RandomArrival Protocol = "random-arrival"
	// FixedBurst puts three batch requests and the first returning one at fixed
	// times; the rest is drawn.
	FixedBurst Protocol = "fixed-burst-v3"
	// BurstRecovery draws the first phase and fixes all else, so that two
	// variants differ in nothing but how long the borrowers run.
	BurstRecovery Protocol = "burst-recovery-v3"
	// Imported is a recorded log.
	Imported Protocol = "imported"
)

var protocols = []string{string(RandomArrival), string(FixedBurst), string(BurstRecovery), string(Imported)}

// draw returns an entry's chance. It follows from the seed and the id, so that
// the published files, which do not carry it, can be read.
func (p Protocol) draw(seed uint32, id string) Draw {
	fixed := Draw{RetryJitter: 1, ProviderSeed: uint64(seed)}
	label, n := splitID(id)
	switch {
	case p == FixedBurst && label == "batch-prime":
		return fixed
	case p == FixedBurst && label == "batch-pressure":
		fixed.ProviderSeed += uint64(n - 1)
		return fixed
	case p == BurstRecovery && slices.Contains([]string{
		"batch-prime", "batch-setup", "interactive-burst", "interactive-steady", "batch-steady"}, label):
		return fixed
	}
	return newStream(seed, id).draw()
}

// statesTokens tells whether the canonical form gives an entry's output limit
// even where it is its class's: the published one does so for the borrowers,
// whose limit is what its two variants are about.
func (p Protocol) statesTokens(id string) bool {
	label, _ := splitID(id)
	return p == BurstRecovery && label == "batch-setup"
}

// splitID parts an id into its label and its number, 0 if it has none.
func splitID(id string) (label string, n int) {
	i := strings.LastIndexByte(id, '-')
	if i < 0 {
		return id, 0
	}
	n, err := strconv.Atoi(id[i+1:])
	if err != nil || n < 1 {
		return id, 0
	}
	return id[:i], n
}

// fixedBurst makes the trace of the availability experiment: a batch request at
// the start of batch keeps demand known, three fill the KV pool twelve seconds
// before the return, and the first returning request is too large to fit beside
// them.
func (t *Trace) fixedBurst() {
	w := &t.Workload
	back := ms(w.ResumeStartMs)
	t.interactiveUntilPause()
	t.batch()
	t.Entries = slices.DeleteFunc(t.Entries, func(e Entry) bool { return e.Class == Batch && e.Arrival < back })
	t.interactiveReturn()
	first := slices.IndexFunc(t.Entries, func(e Entry) bool { return e.ID == resumeLabel+"-1" })
	if first < 0 { // about one seed in 270,000 has no arrival to move
		first = len(t.Entries)
		t.add(resumeLabel, Interactive, []time.Duration{back})
	}
	t.Entries[first].Arrival, t.Entries[first].InputChars = back, 2_000
	t.add("batch-prime", Batch, []time.Duration{ms(w.BatchStartMs)})
	t.add("batch-pressure", Batch, []time.Duration{back - 12_000*time.Millisecond, back - 11_900*time.Millisecond, back - 11_800*time.Millisecond})
}

func recovery() Workload {
	w := longContext()
	w.DurationMs = 155_000
	w.ResumeDurationMs, w.ResumeRps = 90_000, 1
	w.BatchDurationMs, w.BatchRps = 125_000, 0.5
	return w
}

// burstRecovery makes the trace of the reopening experiment: a short batch
// request, three long ones of which two borrow, two returns at the same
// instant, and then both classes on a beat, staggered by the seed.
func (t *Trace) burstRecovery() {
	w := &t.Workload
	back := ms(w.ResumeStartMs)
	t.interactiveUntilPause()
	t.add("batch-prime", Batch, []time.Duration{41 * time.Second})
	prime := &t.Entries[len(t.Entries)-1]
	prime.InputChars, prime.MaxTokens = 400, 1
	t.add("batch-setup", Batch, []time.Duration{42 * time.Second, 44 * time.Second, 46 * time.Second})
	if strings.HasSuffix(t.Profile, "-long") {
		for i := len(t.Entries) - 2; i < len(t.Entries); i++ {
			t.Entries[i].MaxTokens = 192
		}
	}
	t.add("interactive-burst", Interactive, []time.Duration{back, back})
	t.add("interactive-steady", Interactive, t.beat(time.Second, 0))
	t.add("batch-steady", Batch, t.beat(2*time.Second, 73))
}

// beat returns arrivals that follow the return at an interval, each off the
// beat by up to 100 ms.
func (t *Trace) beat(every time.Duration, phase int) []time.Duration {
	w := &t.Workload
	var at []time.Duration
	for i := 1; time.Duration(i)*every < ms(w.ResumeDurationMs); i++ {
		off := (uint64(t.Seed)*31 + uint64(i*17+phase)) % 201
		at = append(at, ms(w.ResumeStartMs)+time.Duration(i)*every+ms(int(off)-100))
	}
	return at
}
