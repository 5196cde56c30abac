package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"headgate/admission"
	"headgate/simengine"
)

// CauseEngineFull is the cause of a refusal by the engine itself.
const CauseEngineFull = "engine_full"

// Clients are what the clients of a run do. The zero value sends each request once
// and waits for ever.
type Clients struct {
	// Patience of a class's clients: who has no whole answer so long after the
	// arrival goes away. A class that is absent waits for ever.
	Patience map[string]time.Duration
	// Attempts is how often a request that the engine refuses is sent at most; 0 and 1
	// are once. What a gateway refuses is not sent again.
	Attempts int
	// Backoff is waited before the second attempt, twice that before the third, and so
	// on up to MaxBackoff, each times the entry's jitter.
	Backoff time.Duration
}

// MaxBackoff bounds the wait between two attempts before its jitter: that of
// OpenAI's client libraries.
const MaxBackoff = 8 * time.Second

// Wait is how long a client waits after so many refusals, from 1 on.
func (c *Clients) Wait(refused int, jitter float64) time.Duration {
	wait := c.Backoff
	for range refused - 1 {
		wait = min(2*wait, MaxBackoff)
	}
	return time.Duration(float64(min(wait, MaxBackoff)) * jitter)
}

// timer is what a client does later.
type timer struct {
	at      time.Duration
	request int
	leaves  bool // else it sends its request again
}

// later notes what a client does later.
func (r *runner) later(t timer) {
	i, _ := slices.BinarySearchFunc(r.timers, t, func(a, b timer) int { return cmp.Or(cmp.Compare(a.at, b.at), -1) })
	r.timers = slices.Insert(r.timers, i, t)
}

// clients does what clients do by now.
func (r *runner) clients() error {
	for len(r.timers) > 0 && r.timers[0].at <= r.now {
		t := r.timers[0]
		r.timers = r.timers[1:]
		if r.run.Records[t.request].Outcome != "" {
			continue
		}
		do := r.submit
		if t.leaves {
			do = r.leave
		}
		if err := do(t.request); err != nil {
			return err
		}
	}
	return nil
}

// full tells whether the engine refuses one more request.
func (r *runner) full() bool {
	s := r.engine.Stats()
	return r.arm.MaxQueued > 0 && s.Running+s.Waiting >= r.arm.MaxQueued
}

// submit sends a request straight to the engine. One that it refuses is sent
// again later, if its client does that.
func (r *runner) submit(i int) error {
	q, f := &r.run.Records[i], &r.flights[i]
	if !r.full() {
		if q.Admitted < 0 {
			q.Admitted = r.now
		}
		return r.dispatch(nil, i, 0, 0)
	}
	if f.refused++; int(f.refused) >= r.arm.Clients.Attempts {
		q.Outcome, q.Cause = Rejected, CauseEngineFull
		return nil
	}
	r.later(timer{at: r.now + r.arm.Clients.Wait(int(f.refused), q.Draw.RetryJitter), request: i})
	return nil
}

// leave lets a client go away, and what was begun for it be ended.
func (r *runner) leave(i int) error {
	q, f := &r.run.Records[i], &r.flights[i]
	q.Outcome, q.Cause, f.gone = Failed, admission.CauseClientGone.String(), true
	if f.queued {
		return r.step(r.gate(i), &admission.Event{Kind: admission.Cancel, ID: f.id})
	}
	if f.attempt == 0 { // it waits to be sent again
		return nil
	}
	if err := r.engine.Abort(simengine.Time(r.now), r.attempts[f.attempt-1].engine); err != nil {
		return fmt.Errorf("arm %s: %s leaves: %w", r.arm.Name, q.ID, err)
	}
	return nil
}
