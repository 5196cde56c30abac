package stats

import (
	"fmt"
	"math"
	"slices"
)

// Debt is by how much requests were late in all.
type Debt struct {
	Sum   float64 // of those that came, in the values' unit
	Never int     // requests that did not come: each is late by more than any number
}

// Overdue returns the sum of max(0, value - limit): the debt to an objective. It is
// said with what never came, which no sum can hold.
func (s *Sample) Overdue(limit float64) Debt {
	d := Debt{Never: s.Never()}
	for _, v := range s.sorted[:len(s.sorted)-d.Never] {
		d.Sum += max(0, v-limit)
	}
	return d
}

// Per10k returns violations per 10,000 offered requests. ok is false if none was
// offered.
func Per10k(violations, offered int) (rate float64, ok bool) {
	if offered <= 0 {
		return 0, false
	}
	return 10_000 * float64(violations) / float64(offered), true
}

// Event is something that counts at a time: a missed request with 1, a request with its
// lateness.
type Event struct {
	At     float64 // any unit, such as seconds since the trace's start
	Amount float64 // 0 or more, or +Inf
}

// Window is a time of a series: from At to before At + the width.
type Window struct {
	At     float64
	Sum    float64 // of the amounts that are finite
	Never  int     // amounts that are +Inf
	Events int
}

// WorstWindow returns the window of a width, of all that begin at an event, in which
// amounts are greatest: by those that are +Inf, then by their sum, then the earliest. No
// window that begins elsewhere holds more. Give every request, those with 0 too, so that
// Events says of how many. ok is false if there are no events.
func WorstWindow(events []Event, width float64) (worst Window, ok bool, err error) {
	if !(width > 0) {
		return Window{}, false, fmt.Errorf("width is %v, allowed is a positive number", width)
	}
	for i, e := range events {
		if math.IsNaN(e.At) || math.IsInf(e.At, 0) {
			return Window{}, false, fmt.Errorf("event %d: time is %v, allowed is a finite number", i, e.At)
		}
		if !(e.Amount >= 0) {
			return Window{}, false, fmt.Errorf("event %d: amount is %v, allowed is 0 or more, or +Inf", i, e.Amount)
		}
	}
	sorted := slices.Clone(events)
	slices.SortFunc(sorted, func(a, b Event) int { // by amount too, so that no order of the input changes a sum's last bit
		switch {
		case a.At < b.At || a.At == b.At && a.Amount < b.Amount:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	// Sums up to each event: a running sum would have to subtract what leaves.
	sums, nevers := make([]float64, len(sorted)+1), make([]int, len(sorted)+1)
	for i, e := range sorted {
		sums[i+1], nevers[i+1] = sums[i], nevers[i]
		if math.IsInf(e.Amount, 1) {
			nevers[i+1]++
		} else {
			sums[i+1] += e.Amount
		}
	}
	end := 0
	for i, e := range sorted {
		for end < len(sorted) && sorted[end].At < e.At+width {
			end++
		}
		w := Window{At: e.At, Sum: sums[end] - sums[i], Never: nevers[end] - nevers[i], Events: end - i}
		if i == 0 || w.Never > worst.Never || w.Never == worst.Never && w.Sum > worst.Sum {
			worst = w
		}
	}
	return worst, len(sorted) > 0, nil
}
