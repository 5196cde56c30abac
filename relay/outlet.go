package relay

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// outlet is the way to an attempt's client. Whatever goes there goes through it, so
// that nothing is written beside the keep-alive, and silence is known.
type outlet struct {
	sink  Sink
	start time.Time // that last counts from

	last      atomic.Int64 // when something came or went
	events    int          // that went
	writing   sync.Mutex   // the sink's
	delivered bool         // something of the answer has gone there; guarded by writing
	shown     bool         // the client of a stream has been let see something of the answer
	done      bool         // the engine's terminator has been passed on
	held      bool         // something is with the sink and not flushed, since more has come already; guarded by writing
}

func (o *outlet) touch() { o.last.Store(int64(time.Since(o.start))) }

func (o *outlet) admitted(d Decision) {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.sink.Admitted(d)
}

// event sends something to the client of a stream; part tells whether it is a
// part of the answer, and more that the next event has come already.
func (o *outlet) event(raw []byte, part, more bool) error {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.delivered = o.delivered || part
	if more || o.held {
		if h, ok := o.sink.(Holder); ok {
			o.held = more
			h.Hold(more)
		}
	}
	err := o.sink.Event(raw)
	o.events++
	o.touch() // a client that reads slowly is no silence of the engine's
	return err
}

// flush sends what is held, before something is waited for.
func (o *outlet) flush() error {
	o.writing.Lock()
	defer o.writing.Unlock()
	if !o.held {
		return nil
	}
	o.held = false
	return o.sink.(Holder).Flush()
}

func (o *outlet) answer(body []byte) error {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.delivered = true
	return o.sink.Answer(body)
}

// alive is after how much silence the attempt's client is shown that its answer is
// still coming; 0 is never.
func (a *attempt) alive() time.Duration {
	// A client that has seen nothing can still be told a status after a piece.
	if !a.call.Request.Stream || a.piece() && !a.sink.Started() {
		return 0
	}
	return a.live.Keepalive
}

// watch ends an attempt that has been idle, since its engine is silent, and keeps the
// client's stream alive meanwhile, if alive is not 0.
func (o *outlet) watch(cancel context.CancelCauseFunc, idle, alive time.Duration) (stop func()) {
	o.touch()
	every := idle
	if alive > 0 {
		every = min(every, alive)
	}
	var timer *time.Timer
	over := false // guarded by writing, so that nothing is written once stop has returned
	timer = time.AfterFunc(math.MaxInt64, func() {
		if !o.writing.TryLock() {
			// Something is on its way to the client this moment, however slowly.
			timer.Reset(every)
			return
		}
		defer o.writing.Unlock()
		silent := time.Since(o.start) - time.Duration(o.last.Load())
		switch {
		case over:
			return
		case silent >= idle:
			cancel(errIdle)
			return
		}
		next := idle - silent
		if alive > 0 {
			wait := alive - silent
			if wait <= 0 {
				if o.sink.KeepAlive() != nil {
					cancel(errClient)
					return
				}
				wait = alive
			}
			next = min(next, wait)
		}
		timer.Reset(next)
	})
	timer.Reset(every)
	return func() {
		o.writing.Lock()
		over = true
		o.writing.Unlock()
		timer.Stop()
	}
}
