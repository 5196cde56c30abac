package relay

import (
	"fmt"
	"strings"
	"time"

	"headgate/engine"
	"headgate/journal"
	"headgate/telemetry/spans"
)

// timings remembers attempts by the ids that their engines were given, for what
// an engine tells of one in a span: seconds after its end as a rule, since spans
// are exported in batches. Guarded by the pool's mutex.
//
// Of a span only durations are used, and they count from our own dispatch: the
// engine's clock is another machine's. What lies between the dispatch and the
// engine's queue (the way there, making tokens of the prompt) is not known, so
// that the moment is early by that; the same goes for a time in the queue that
// comes with the answer.
type timings struct {
	attempts map[string]*timed // those that run, and the last maxOver that are over
	over     []string          // a ring
	next     int
}

// timed is one attempt. It must not keep its request's body in memory.
type timed struct {
	line       journal.Event // Scheduled, of which only when is open
	dispatched int64         // on the journal's clock, as latest
	latest     int64         // it had begun by then; 0 while it runs
	several    bool          // sequences, each with a beginning of its own
	early      *engine.Timing
	exact      bool
	owed       *time.Timer // until the interval counts in the metric
}

const (
	// maxOver bounds the attempts that are over and remembered, some 3 MB; a batch
	// of spans is of the last five seconds.
	maxOver = 4096
	// spanWait is for how long a recall's interval is not counted, because a span
	// may make it exact: a batch, and the time an exporter has to bring it.
	spanWait = 30 * time.Second
)

// attemptID is the id under which an engine is sent an attempt.
func attemptID(request string, hold uint64) string { return fmt.Sprintf("%s-%x", request, hold) }

// expect remembers an attempt that is being dispatched.
func (a *attempt) expect() {
	p, r := a.pool, a.record
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cfg.Spans || p.cfg.Journal == nil && r.recall == 0 {
		return // nobody would read it
	}
	t := &timed{
		dispatched: int64(a.dispatched.Sub(p.cfg.Start)), several: a.call.Request.N > 1 || a.call.Request.Prompts > 1,
		line: journal.Event{Kind: journal.Scheduled, Engine: a.engineName(), Hold: uint64(a.admit.Hold)},
	}
	p.describe(r, &t.line)
	if p.timings.attempts == nil {
		p.timings.attempts = map[string]*timed{}
	}
	p.timings.attempts[attemptID(a.call.ID, uint64(a.admit.Hold))] = t
}

// spannedLocked takes what a span has told while the attempt ran, if the answer
// did not tell it.
func (a *attempt) spannedLocked(now int64) *timed {
	t := a.pool.timings.attempts[attemptID(a.call.ID, uint64(a.admit.Hold))]
	if t == nil {
		return nil
	}
	t.latest = now
	if !a.first.IsZero() {
		t.latest = int64(a.first.Sub(a.pool.cfg.Start))
	}
	if t.early != nil && a.timing == nil && t.possible(t.early, t.latest) {
		a.timing = t.early
	}
	return t
}

// overLocked lets go of the oldest attempt for one that is over.
func (p *Pool) overLocked(t *timed) {
	s, id := &p.timings, attemptID(t.line.Request, t.line.Hold)
	if len(s.over) < maxOver {
		s.over = append(s.over, id)
		return
	}
	delete(s.attempts, s.over[s.next])
	s.over[s.next] = id
	s.next = (s.next + 1) % maxOver
}

// possible tells whether an attempt can have waited and been prefilled for as long
// as is said, when its first token was there at a time.
func (t *timed) possible(said *engine.Timing, by int64) bool {
	return t.dispatched+int64(said.Queue)+int64(max(said.Prefill, 0)) <= by
}

// Span takes what an engine tells of an attempt in a span, whether it still runs
// or is over.
func (p *Pool) Span(s spans.Span) spans.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.timings.find(s.Request)
	said := &engine.Timing{Queue: s.Queue, Prefill: s.Prefill}
	switch now := int64(p.now()); {
	case t == nil:
		return spans.Unknown
	case t.several || t.exact || t.early != nil:
		return spans.Unneeded
	case !t.possible(said, now) || t.latest != 0 && !t.possible(said, t.latest):
		return spans.Impossible
	case t.latest == 0:
		t.early = said
	default:
		t.exact = true
		t.line.Mono, t.line.ScheduledNS = now, t.dispatched+int64(said.Queue)
		line := t.line
		p.journal(&line)
	}
	return spans.Taken
}

// find looks an attempt up by the engine's id of it. vLLM puts the API's name
// before the id that it was sent, and behind it the number of the prompt, for
// completions, and in some versions eight random digits.
func (s *timings) find(id string) *timed {
	id, chat := strings.CutPrefix(id, "chatcmpl-")
	if !chat {
		id = strings.TrimPrefix(id, "cmpl-")
	}
	for range 3 {
		if t := s.attempts[id]; t != nil {
			return t
		}
		cut := strings.LastIndexByte(id, '-')
		if cut < 0 {
			return nil
		}
		id = id[:cut]
	}
	return nil
}

// laterLocked tells whether a recall's step is not to be counted now: an interval
// that a span may still make exact waits, and what has been counted is not again.
func (p *Pool) laterLocked(e *journal.Event, after time.Duration) bool {
	if e.Kind != journal.Scheduled {
		return false
	}
	t := p.timings.attempts[attemptID(e.Request, e.Hold)]
	switch {
	case t == nil || t.several:
		return false
	case e.ScheduledUpperNS == 0:
		return t.owed != nil && !t.owed.Stop()
	}
	class := e.Class
	t.owed = time.AfterFunc(spanWait, func() { p.cfg.Metrics.recall(p.cfg.Name, class, string(journal.Scheduled), after) })
	return true
}
