// Package release finds out when an engine has let go of what an attempt held.
//
// Closing the connection is all that a client of the usual engines can do to
// end a request; none of them answers. But they tell about their load, so the
// release can be seen in it. That is harder than it sounds: the load is a sum
// over all requests; a request that ends by itself makes the same dent as one
// that was aborted; other clients add to it; and vLLM's gauges are written at
// the end of a step, so that they can stand still at any value while the engine
// idles. The rules below take what evidence is there and say nothing where
// there is none.
//
// # Evidence
//
// A sample counts for a release only if it was asked for after the connection
// was closed. What it shows is compared with what the adapter itself has at the
// engine at that moment and with foreign load: the part of earlier samples that
// was not the adapter's. What goes beyond both is the excess, the number of
// closed attempts that are still there.
//
//   - Engines that compute the sample when asked (llama-server's slots): no
//     excess means released (engine.BySlot). An attempt that the engine had not
//     answered may not have been in the sample's reach yet, so it takes two.
//   - Engines whose gauges are written by steps (vLLM): progress counters must
//     have moved between two samples that were both asked for after the close.
//     Then a step has ended since and the gauges are of that step or a later
//     one; no excess means released (engine.ByProgress).
//   - An engine that is empty after the abort makes no more steps, so its
//     counters do not move. If the attempt had delivered an event, the gauge
//     counted it once, and a zero now was written later: released. Before the
//     first event a zero may be older than the attempt and proves nothing.
//   - Counters that stand still for the whole grace, which is longer than any
//     step, mean an engine that does nothing, whatever its gauges say (they have
//     been seen to stick at the old value after a mass abort): engine.ByGrace.
//
// Several attempts closed at once are told apart by number only. With an excess
// of e among n closed attempts, n - e have been released; which ones can't be
// seen, so those go first whose release is the most likely: attempts that had
// delivered events before attempts in their prompt, the longest closed first.
// Slots are counted exactly that way; KV may be off by the difference between
// two attempts until the last one is released. On an engine with gauges of steps
// this takes two moves of the counters, since one step may have been under way
// when the abort arrived and another may have been scheduled behind it.
//
// # An engine that others send to
//
// In a fleet the load is that of several adapters, and foreign load comes and goes with
// every request of another. To take what was there before for foreign is wrong then: if
// one of the others' attempts leaves as ours is closed, the sum is what it was before,
// and ours would be taken for theirs. So nothing is, but what the others are known to
// have had at the engine during the very sample (engine.Presence). Each of them counts
// attempts that have begun (a token of them has come: the engine surely had them) and
// of those the ones that may be over: the last event is there, the abort is about
// to be sent, or nothing was heard of them as late as of the rest. What had begun before the sample was
// asked for, less what may have been over after it came, was held throughout:
//
//	others >= sum of max(0, begun before - ended after)
//
// It is too little by all that began or ended in between, never too much: the gauges
// of a step include what has had a token of that step or an earlier one, and an event that came so much
// later than the sample as events are on their way (transit) was made after it. It is
// known late, so that samples are kept for as long as a ticket of theirs is open, and
// judged again by whatever is said. Who waits in vain says that he doubts, and the others
// speak up.
//
// A release is confirmed by the first sample during which no other attempt began or
// ended, once the others have been heard on it: it waits for a lull, whose length
// is that from an attempt's dispatch to its first token and from its last event to
// the others' next word, and not for the others' requests to end. Where nothing is heard of
// them it waits until they have nothing there.
//
// # What goes wrong
//
// Foreign load that arrives between the last sample before an abort and the
// first one after it looks like an attempt that is still there, and its
// confirmation waits until that load leaves: a ghost too many, which costs
// capacity, never a release too early. A request of ours that ends in the very
// step of the sample may hide an attempt for one step. An attempt whose waiter
// gave up counts as foreign until the load falls.
//
// Alternatives considered: a sample before every abort (a round trip in the way
// of each reclaim, and stale by one step anyway); vLLM's abort counter (it stays
// at zero); matching llama-server's task ids to attempts (no answer of its
// OpenAI routes names its task); in a fleet, attempts that have begun but given no token
// (headers come before an engine takes a request up), a time of day on all samples (the
// replicas' clocks need not agree), and counters of finished requests (vLLM's has none of
// aborts, and others' count too).
package release

import (
	"context"
	"sync"
	"time"

	"headgate/engine"
)

// Sample is one look at an engine.
type Sample struct {
	Asked, At time.Time
	// Fresh tells that the counts were taken when asked, not by the last step.
	Fresh bool
	// Held is the number of sequences the engine holds; -1: it does not say.
	Held int
	// Live is how many of them were the adapter's when it asked.
	Live int
	// Queued is the number of requests that wait at the engine with their
	// headers held back, and that Held does not include; -1: it does not say.
	Queued int
	// Pending is how many of those were the adapter's when it asked.
	Pending int
	// Progress moves with every step that did work; -1: there is no counter.
	Progress int64
}

// Ticket is one closed attempt on its way to be released. The fields are set
// before it is first waited for.
type Ticket struct {
	Closed   time.Time // the connection was closed before this
	Answered bool      // the engine had sent headers
	Seen     bool      // the engine had sent an event with data

	done    chan struct{} // closed with result
	result  engine.Confirmation
	waiters int

	open  bool // waited for, and not confirmed
	based bool // progress holds a sample's value
	last  int64
	moves int       // of the counters, since the first sample that counts
	still time.Time // since when they stand
	clear int       // samples in a row without excess
	ghost bool      // given up, and counted as foreign since
}

// Config says how to look.
type Config struct {
	// Sample takes one; queued tells that Queued is wanted, if it costs extra.
	Sample func(ctx context.Context, queued bool) (Sample, error)
	// Min and Max bound the pause between two samples. It is a quarter of the
	// youngest waiter's age in between, so that a release is seen late by a
	// quarter of the time that it took, and a slow one costs few samples.
	Min, Max time.Duration
	// Grace is how long counters must stand still.
	Grace time.Duration
	// By is the evidence to report.
	By engine.ConfirmedBy
}

// Watcher takes samples for as long as somebody waits: one series, however
// many attempts were closed at once.
type Watcher struct {
	cfg Config

	mu      sync.Mutex
	judge   judge
	wanted  func() // the engine is shared: says that others are to be heard
	polling bool
	stop    context.CancelFunc // ends the series under way
}

// New returns a Watcher. It runs nothing until somebody waits.
func New(cfg Config) *Watcher {
	return &Watcher{cfg: cfg, judge: judge{grace: cfg.Grace, by: cfg.By}}
}

// Note takes in a sample that was taken for another purpose. The more there
// are, the better foreign load is known.
func (w *Watcher) Note(s Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeLocked(s)
}

// Share tells that others send to the engine, before anything else. wanted is called
// when a confirmation waits for what they have there.
func (w *Watcher) Share(wanted func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted, w.judge.shared = wanted, true
}

// Others takes in what the others have said last, all of them.
func (w *Watcher) Others(all []engine.Presence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.told(all)
	w.restLocked()
}

// Doubts tells whether a confirmation waits for what others have at the engine.
func (w *Watcher) Doubts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge.doubts()
}

// takeLocked judges a sample and ends the series with its last waiter.
func (w *Watcher) takeLocked(s Sample) {
	w.judge.sample(s)
	w.restLocked()
	if w.judge.doubts() {
		w.wanted()
	}
}

// restLocked ends the series if nobody waits any more.
func (w *Watcher) restLocked() {
	if w.polling && len(w.judge.tickets) == 0 {
		w.endLocked()
	}
}

// Wait returns when the attempt's release is confirmed, or ctx ends: then the
// zero Confirmation but for its time.
func (w *Watcher) Wait(ctx context.Context, t *Ticket) engine.Confirmation {
	w.mu.Lock()
	if t.done == nil {
		t.done = make(chan struct{})
		t.still = t.Closed
	}
	select {
	case <-t.done:
		w.mu.Unlock()
		return t.result
	default:
	}
	if t.waiters++; t.waiters == 1 {
		w.judge.add(t)
	}
	if !w.polling {
		w.polling = true
		series, stop := context.WithCancel(context.Background())
		w.stop = stop
		go w.poll(series)
	}
	w.mu.Unlock()

	select {
	case <-t.done:
		return t.result
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-t.done:
		return t.result
	default:
	}
	if t.waiters--; t.waiters == 0 {
		w.judge.giveUp(t)
		if len(w.judge.tickets) == 0 {
			w.endLocked()
		}
	}
	return engine.Confirmation{At: time.Now()}
}

// endLocked ends the series; the next waiter starts another.
func (w *Watcher) endLocked() {
	w.polling = false
	w.stop()
}

func (w *Watcher) poll(ctx context.Context) {
	// The first sample is taken at once: if the step in progress ends before it,
	// it takes the end of another to see that one has.
	timer := time.NewTimer(time.Microsecond)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		queued := w.judge.unanswered()
		w.mu.Unlock()
		s, err := w.cfg.Sample(ctx, queued)
		w.mu.Lock()
		if ctx.Err() != nil {
			w.mu.Unlock()
			return
		}
		if err == nil {
			w.takeLocked(s)
		}
		pause := min(max(w.judge.age(time.Now())/4, w.cfg.Min), w.cfg.Max)
		w.mu.Unlock()
		timer.Reset(pause)
	}
}

// Grace waits until d has passed since the attempt was closed, for engines
// that show nothing.
func Grace(ctx context.Context, t *Ticket, d time.Duration) engine.Confirmation {
	timer := time.NewTimer(time.Until(t.Closed.Add(d)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return engine.Confirmation{By: engine.ByGrace, At: time.Now()}
	case <-ctx.Done():
		return engine.Confirmation{At: time.Now()}
	}
}
