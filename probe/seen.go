package probe

import (
	"slices"
	"time"

	"headgate/engine"
)

// seen is one request as it was seen from outside. Times are since the probe began; 0
// is what did not happen.
type seen struct {
	prompt, limit int // tokens that were sent, and output that was asked for
	priority      int

	sent, answered, ended time.Duration
	tokens                []time.Duration // one for each event with output
	evaluated             []int           // prompt tokens computed so far, where the engine tells
	outcome               outcome
	finish                string // reason of a finished one
	status                int    // of a refused one
	message               string // what the engine said to a refused or failed one
	limitSaid             int    // context limit named in that; 0: none
	context               bool   // refused or failed for want of context
	usagePrompt, usage    int    // prompt and output by the engine's own count; -1: not told
	cached                int    // prompt tokens from its cache; -1: not told

	aborting  time.Duration // since when it was being ended
	confirmed engine.ConfirmedBy
}

// outcome is how a request ended.
type outcome uint8

const (
	running  outcome = iota
	finished         // by itself
	refused          // with a status instead of an answer
	failed           // the engine broke it off
	aborted          // by the probe
)

// first is when the first token came, 0 if none did.
func (s *seen) first() time.Duration {
	if len(s.tokens) == 0 {
		return 0
	}
	return s.tokens[0]
}

// ttft is how long the first token took.
func (s *seen) ttft() time.Duration { return s.first() - s.sent }

// started tells whether it had a token by some time.
func (s *seen) started(by time.Duration) bool {
	return len(s.tokens) > 0 && s.tokens[0] <= by
}

// after counts the tokens that came after a time, and up to another.
func (s *seen) after(from, to time.Duration) int {
	n := 0
	for _, t := range s.tokens {
		if t > from && t <= to {
			n++
		}
	}
	return n
}

// alive tells whether it had not ended by some time, of itself or otherwise.
func (s *seen) alive(at time.Duration) bool {
	return (s.ended == 0 || s.ended > at) && (s.aborting == 0 || s.aborting > at)
}

// gaps are the times between tokens that came within a span.
func (s *seen) gaps(from, to time.Duration) []time.Duration {
	var all []time.Duration
	for i := 1; i < len(s.tokens); i++ {
		if s.tokens[i-1] >= from && s.tokens[i] <= to {
			all = append(all, s.tokens[i]-s.tokens[i-1])
		}
	}
	return all
}

// pace is how far apart its tokens are that came within a span. It is the mean: a reader
// that is held up finds several at once.
func (s *seen) pace(from, to time.Duration) time.Duration {
	gaps := s.gaps(from, to)
	sum := time.Duration(0)
	for _, g := range gaps {
		sum += g
	}
	return sum / time.Duration(max(1, len(gaps)))
}

// turns is how often each of several streams had a token after one of another's, in a
// span; the least of them. Streams that run beside each other take turns; of one that
// had ended before the next began, and was read late, a bunch comes at once.
func turns(streams []*seen, from, to time.Duration) int {
	type token struct {
		at time.Duration
		of int
	}
	var all []token
	for i, s := range streams {
		for _, t := range s.tokens {
			if t > from && t <= to {
				all = append(all, token{t, i})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b token) int { return int(a.at - b.at) })
	had := make([]int, len(streams))
	for i, t := range all {
		if i == 0 || all[i-1].of != t.of {
			had[t.of]++
		}
	}
	return slices.Min(had)
}

// median is the middle one, 0 of none.
func median[T time.Duration | float64](all []T) T {
	if len(all) == 0 {
		return 0
	}
	s := slices.Clone(all)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
