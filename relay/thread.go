package relay

import (
	"headgate/admission"
	"headgate/wire"
)

// thread is what goes through the attempts at one answer.
type thread struct {
	stitch *wire.Stitch    // of an attempt that can be continued or continues one; nil: neither
	before int             // tokens that earlier attempts have given the answer
	whole  *wire.Assembler // of an answer that its client gets as a whole; nil: it does not
	waits  [][]byte        // events that are held back until the next text
	proven bool            // the answer has been seen to have what a continuation takes
	missed bool            // or not to
	bound  bool            // the attempt goes on to its end whatever the core asks for
	ahead  bool            // the client is being given more than what is kept: it is not ended now
}

// mostAhead is how many tokens a stream may come to be ahead of what is kept. An
// engine of which the events have several tokens as a rule can't be interrupted.
const mostAhead = 64

// lags tells that the engine gives nothing that could be kept. Of text it is the
// model that does: spaces and line ends.
func (t *thread) lags() bool { return !t.stitch.FromText() && t.stitch.Loose() > mostAhead }

// keep decides about an event of an answer that can be continued, before anything
// is made of it. It is false if the core has asked for the attempt's end and the
// event must not come to the client any more.
func (a *attempt) keep(piece *wire.Piece) bool {
	if a.bound || !piece.Last && !piece.Text && !a.lags() {
		return true
	}
	r := a.record
	if r.whole && !a.shown && !a.show() {
		return false
	}
	// A collected answer simply lacks what isn't sure yet.
	ahead := !piece.Sure && a.call.Request.Stream
	if piece.Last || !a.proven || ahead != a.ahead || a.lags() {
		if !a.prove(piece, ahead) {
			return false
		}
	}
	if (piece.Sure || piece.Last) && a.stitch.Able() {
		a.stitch.Keep()
	}
	return true
}

// prove notes what the engine has been seen to do, and sees to it that an attempt
// that can't be continued from here on is not ended. It is false if it was already.
func (a *attempt) prove(piece *wire.Piece, ahead bool) bool {
	p, r, able := a.pool, a.record, a.stitch.Able()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case a.stitch.Bare() || able && a.lags():
		if !a.missed {
			a.missed = true
			p.missedLocked(a.admit.Engine, a.call.Request.API, r.from)
		}
	case piece.Text && able:
		a.proven = true
		delete(p.engines[a.admit.Engine].missed, resumption{a.call.Request.API, r.from})
	}
	r.resumable = r.resumable && able
	// It starts over if it can, as if no ids had been asked for.
	lost := !able && a.before == 0 && (r.whole || !a.call.Request.Stream)
	switch {
	case !lost && (piece.Last || ahead) && !a.ahead && r.reclaimed:
		return false
	case !lost && (piece.Last || a.call.Request.Stream && a.lags()):
		// The core waits for the little that is left or, where the engine can't
		// do what was believed of it, for the whole.
		a.bound, r.cancel = true, nil
	case !lost && ahead:
		a.ahead, r.cancel = true, nil
	case a.ahead:
		a.ahead, r.cancel = false, a.cancel
		if r.reclaimed {
			a.cancel(errReclaimed)
		}
	}
	return true
}

// show tells whether the client may see something of the answer. It may not if
// the attempt's end was asked for already; from here on the core knows that the
// request could not run again, and does not reclaim it. Both are one decision:
// else a reclaim between the two would lose the request.
func (a *attempt) show() bool {
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.record.reclaimed {
		return false
	}
	// A stream that was believed to be one that can be continued, and is none.
	lost := a.stitch == nil && !a.record.whole && a.call.Request.Stream && a.record.mind.shadow == nil
	if a.told == 0 || lost {
		e := admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: int32(max(a.told, 1))}
		if lost {
			a.record.whole, e.Flags = true, admission.FlagWhole
		}
		a.told = int(e.Out)
		p.stepLocked(a.record.mind, &e)
	}
	a.shown = true
	if a.record.reclaimed {
		return false
	}
	if !a.record.whole {
		a.record.cancel = nil // the core believes that it could be continued
	}
	return true
}
