package trace

import (
	"fmt"
	"slices"
	"time"
)

// Mix lays traces over each other, each counted from its own start: two
// recorded logs, one of a class, make the traffic of two classes. Where arrivals
// are equal, the earlier trace's come first. The profile is the traces' names,
// joined by a colon and cut to a name's length.
//
// It is an error if two entries have the same id: which of them a record is of
// could not be told.
func Mix(first *Trace, others ...*Trace) (*Trace, error) {
	m := &Trace{Profile: first.Profile, Protocol: Imported, Seed: first.Seed, Workload: Workload{Seed: first.Seed, MaxAttempts: 1}}
	for _, t := range others {
		m.Profile += ":" + t.Profile
	}
	m.Profile = m.Profile[:min(len(m.Profile), 128)]
	ids := map[string]bool{}
	for _, t := range append([]*Trace{first}, others...) {
		for i := range t.Entries {
			id := t.Entries[i].ID
			if ids[id] {
				return nil, fmt.Errorf("trace %s: id %s is in another trace of the mix too: allowed are ids that no two have", t.Profile, id)
			}
			ids[id] = true
		}
		m.Entries = append(m.Entries, t.Entries...)
		m.Skipped += t.Skipped
		m.Workload.DurationMs = max(m.Workload.DurationMs, t.Workload.DurationMs)
	}
	slices.SortStableFunc(m.Entries, byArrival)
	return m, nil
}

// Cut returns a recorded log's beginning: at most so many requests, and those
// that arrive before a duration is over; 0 of either is no limit. The new end
// is just behind the last arrival. A trace of another protocol is returned
// whole: part of one is not what was published under its name.
func (t *Trace) Cut(requests int, duration time.Duration) *Trace {
	n := len(t.Entries)
	if duration > 0 {
		n, _ = slices.BinarySearchFunc(t.Entries, duration, func(e Entry, d time.Duration) int { return byArrival(e, Entry{Arrival: d}) })
	}
	if requests > 0 {
		n = min(n, requests)
	}
	if t.Protocol != Imported || n == len(t.Entries) {
		return t
	}
	cut := *t
	cut.Entries = t.Entries[:n:n]
	cut.Workload.DurationMs = endOf(cut.Entries)
	return &cut
}
