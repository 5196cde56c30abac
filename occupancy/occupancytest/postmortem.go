// Package occupancytest makes logs of which the occupancy is known.
package occupancytest

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"
)

// The measurement of a published post-mortem: seven days, 1,397 spans, and the
// share of busy time with one to five requests in flight.
const (
	Spans       = 1397
	Window      = 7 * 24 * time.Hour
	Busy        = 29635200 * time.Millisecond // 4.9 % of the window
	Utilisation = 0.049
)

// Shares of Busy with one, two, ... requests in flight.
var Shares = []float64{0.896, 0.040, 0.030, 0.025, 0.009}

// Begin is the start of the window.
var Begin = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// Span is one request. Its times are since Begin.
type Span struct {
	ID         string
	Start, End time.Duration
	Model      string
	Class      string
	Principal  string
	// Tokens, of which one of a prompt takes a PromptToken and one of output an
	// OutputToken, whatever runs beside it.
	Prompt, Output int
}

// What the engine takes for a token.
const (
	PromptToken = 100 * time.Microsecond
	OutputToken = 25 * time.Millisecond
)

// KV and Slots are what the engine holds, in tokens and sequences. Every request would fit
// into an eighth of the KV, the longest just so: the log does not tell whether the slots
// divide it.
const (
	KV    = 150_816
	Slots = 8
)

// First is when the first token comes.
func (s *Span) First() time.Duration { return s.Start + time.Duration(s.Prompt)*PromptToken }

// fill gives a span the tokens that take its time. A chat's prompt grows by a turn each
// time, until the session begins anew.
func (s *Span) fill(turn int) {
	s.Prompt = 2000
	if s.Class == "interactive" {
		s.Prompt = 1500 + 1000*(turn%16)
	}
	s.Output = 1 + int((s.End-s.First())/OutputToken)
}

// clusters is how many groups of so many spans there are, from one on: 1,397 in
// all.
var clusters = [5]int{937, 70, 50, 30, 10}

// PostMortem returns spans of exactly these properties, by start. The construction is fixed:
// clusters of one to five spans lie evenly over the window. The spans of a cluster
// begin one second apart and end together; how long all of them are in flight is
// what their level lacks, divided evenly.
func PostMortem() []Span {
	const step = time.Second
	total, left := 0, [5]time.Duration{}
	for i, n := range clusters {
		total += n
		left[i] = time.Duration(Shares[i]*1000+0.5) * Busy / 1000
		// Larger clusters are at this level for a step while they grow.
		for _, larger := range clusters[i+1:] {
			left[i] -= time.Duration(larger) * step
		}
	}
	var sizes []int
	for taken := [5]int{}; len(sizes) < total; {
		// The size that lags most behind its share of the clusters so far.
		next := 0
		for i := range clusters {
			if clusters[i]*(len(sizes)+1)-taken[i]*total > clusters[next]*(len(sizes)+1)-taken[next]*total {
				next = i
			}
		}
		taken[next]++
		sizes = append(sizes, next+1)
	}
	var spans []Span
	n := clusters
	for c, size := range sizes {
		full := left[size-1] / time.Duration(n[size-1])
		left[size-1] -= full
		n[size-1]--
		at := Window / time.Duration(total) * time.Duration(c)
		end := at + time.Duration(size-1)*step + full
		for i := range size {
			s := Span{ID: fmt.Sprintf("req-%d", len(spans)+1), Start: at + time.Duration(i)*step, End: end, Model: "m", Class: "interactive", Principal: "chat"}
			if i > 0 {
				s.Class, s.Principal = "batch", "nightly"
			}
			s.fill(c)
			spans = append(spans, s)
		}
	}
	return spans
}

// Event is one end of a span.
type Event struct {
	At    time.Duration
	Start bool
	First bool // token
	*Span
}

// Events are the ends of spans in order of time, at one time ends first.
func Events(spans []Span) []Event {
	var events []Event
	for i := range spans {
		s := &spans[i]
		events = append(events, Event{At: s.Start, Start: true, Span: s}, Event{At: s.End, Span: s})
	}
	slices.SortStableFunc(events, func(a, b Event) int { return int(a.At - b.At) })
	return events
}

// WriteJSONL writes spans as a foreign log, with a line at both ends of the window.
func WriteJSONL(w io.Writer, spans []Span) error {
	b := bufio.NewWriter(w)
	line := func(at time.Duration, rest string) {
		fmt.Fprintf(b, `{"ts":%q,%s}`+"\n", Begin.Add(at).Format(time.RFC3339Nano), rest)
	}
	line(0, `"event":"up"`)
	for _, e := range Events(spans) {
		name := "done"
		if e.Start {
			name = "start"
		}
		line(e.At, fmt.Sprintf(`"event":%q,"req_id":%q,"model":%q,"class":%q,"principal":%q`, name, e.ID, e.Model, e.Class, e.Principal))
	}
	line(Window, `"event":"heartbeat"`)
	return b.Flush()
}

// WriteJournal writes spans as Headgate's journal. A request waits for 20 ms before
// its start.
func WriteJournal(w io.Writer, spans []Span) error {
	b := bufio.NewWriter(w)
	seq := 0
	line := func(at time.Duration, kind, rest string) {
		seq++
		fmt.Fprintf(b, `{"seq":%d,"ts":%q,"mono_ns":%d,"kind":%q%s}`+"\n", seq, Begin.Add(at).Format(time.RFC3339Nano), at.Nanoseconds(), kind, rest)
	}
	line(0, "started", `,"version":"test"`)
	events := Events(spans)
	for i := range spans {
		events = append(events, Event{At: spans[i].First(), First: true, Span: &spans[i]})
	}
	slices.SortStableFunc(events, func(a, b Event) int { return int(a.At - b.At) })
	for _, e := range events {
		of := fmt.Sprintf(`,"pool":"p","engine":"e","class":%q,"tenant":"t","principal":%q,"model":%q,"request":%q,"prompt_tokens":%d`, e.Class, e.Principal, e.Model, e.ID, e.Prompt)
		tokens := fmt.Sprintf(`,"output_tokens":%d`, e.Output)
		if e.First {
			line(e.At, "first_token", of+`,"hold":1,"output_tokens":1`)
		} else if e.Start {
			// Arrivals of a cluster are in order with its other events.
			line(max(0, e.At-20*time.Millisecond), "arrived", of)
			line(e.At, "admitted", of+`,"hold":1`)
			line(e.At, "dispatched", of+`,"hold":1`)
		} else {
			line(e.At, "ended", of+tokens+`,"hold":1,"cause":"finished"`)
			line(e.At, "finished", of+tokens+`,"cause":"finished","status":200`)
		}
	}
	line(Window, "stopped", "")
	return b.Flush()
}
