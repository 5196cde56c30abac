package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/wire"
)

// read takes an engine's answer event by event to its end.
func (a *attempt) read(ctx context.Context, s engine.Stream, stream bool) {
	if stream && !a.call.Request.Stream && a.whole == nil {
		a.whole = wire.NewAssembler(a.call.Request.API, a.live.MaxAnswer)
	}
	defer func() { _ = a.flush() }() // whoever is gone is missed by whatever comes next
	for {
		d, err := s.Next()
		switch {
		case err == io.EOF:
			a.confirm = nil
			a.ended()
			return
		case err != nil:
			a.interrupted(ctx, err)
			return
		case d.Err != nil:
			a.touch()
			a.answered(d.Err.Status, d.Err)
			a.settled(s)
			return
		}
		more, passed := d.More, a.events
		over, err := a.take(&d, stream)
		if a.events == passed {
			a.touch() // which else whatever was passed on has done
		}
		if err == nil && !more {
			// What came last may be nothing for the client.
			if err = a.flush(); err != nil {
				err = errors.Join(errClient, err)
			}
		}
		if err != nil {
			a.interrupted(ctx, err)
			return
		}
		if over {
			return
		}
	}
}

// settled looks whether the engine has ended the attempt itself with its error.
func (a *attempt) settled(s engine.Stream) {
	if _, err := s.Next(); err == io.EOF {
		a.confirm = nil
	}
}

// take makes of an event what the client is to see. over tells that the attempt has
// ended with it; the error is for one that is to be interrupted.
func (a *attempt) take(d *engine.Delta, stream bool) (over bool, err error) {
	if len(d.Data) > 0 && len(d.Raw) == len(d.Data) {
		a.count(d, false)
		return a.document(d)
	}
	var piece wire.Piece
	open := false // more of the answer is to come, and may come in another attempt
	if a.stitch != nil && len(d.Data) > 0 && !d.Done {
		if piece, err = a.stitch.Add(d.Data); err != nil {
			a.unreadable(err)
			return true, nil
		}
		if !a.keep(&piece) {
			return true, errReclaimed
		}
		d.Data, open = piece.Data, !a.bound && !piece.Last
		if a.call.Request.Stream {
			d.Raw = framed(piece.Data)
		}
	}
	a.count(d, stream)
	switch {
	case len(d.Raw) == 0 || piece.Blank:
		// Nothing that means anything to anybody.
	case a.whole != nil:
		if err := a.gather(d.Data, open && !piece.Sure); err != nil {
			a.unreadable(err)
			return true, nil
		}
		if a.stitch != nil && a.call.Checkpoint != nil && !d.Done {
			a.checkpoint(&piece, open)
		}
	case d.UsageOnly && !a.call.Request.IncludeUsage:
		// The gateway asked for it, the client did not.
	case open && !piece.Text:
		a.waits = append(a.waits, d.Raw)
	default:
		if err := a.pass(d); err != nil {
			return true, errors.Join(errClient, err)
		}
	}
	if piece.Stop {
		a.stopped()
	}
	return piece.Stop, nil
}

// document is an answer in one piece: of a request of which no stream is asked for, or
// of an engine that has not heeded that.
func (a *attempt) document(d *engine.Delta) (over bool, err error) {
	if a.call.Request.Stream || a.stitch != nil && (a.before > 0 || a.stitch.Stops()) {
		a.failed(wire.UpstreamError("the engine answered with a document instead of a stream"))
		return true, nil
	}
	data := d.Data
	if a.stitch != nil && !a.stitch.FromText() {
		// It has ids that only the gateway has asked for.
		piece, err := a.stitch.Add(data)
		if err != nil {
			a.unreadable(err)
			return true, nil
		}
		data = piece.Data
	}
	a.whole = nil
	if err := a.answer(data); err != nil {
		return true, errors.Join(errClient, err)
	}
	return false, nil
}

// gather adds an event to an answer that is given to its client as a whole; what is
// loose with the next that is not.
func (a *attempt) gather(data []byte, loose bool) error {
	switch {
	case len(data) == 0:
		return nil
	case loose:
		a.waits = append(a.waits, bytes.Clone(data))
		return nil
	}
	for _, data := range append(a.waits, data) {
		if err := a.whole.Add(data); err != nil {
			return err
		}
	}
	a.waits = a.waits[:0]
	return nil
}

// pass passes an event on to the client of a stream. What shows nothing of the
// answer leaves it open to run again unseen: a comment, and the event without a
// token with which most engines open a stream. That one is held back until the
// next comes, the first token as a rule, so that there is no second opening after
// a reclaim.
func (a *attempt) pass(d *engine.Delta) error {
	if len(d.Data) == 0 {
		return a.event(d.Raw, false, d.More)
	}
	switch {
	case a.stitch != nil:
		a.shown = true
	case !a.shown:
		if len(a.waits) == 0 && a.out == 0 && d.Finished == 0 && !d.Done {
			a.waits = append(a.waits, bytes.Clone(d.Raw))
			return nil
		}
		if !a.show() {
			return errReclaimed
		}
	}
	for _, raw := range a.waits {
		if err := a.event(raw, true, true); err != nil {
			return err
		}
	}
	a.waits = a.waits[:0]
	a.done = d.Done
	return a.event(d.Raw, true, d.More)
}

// terminator ends every stream to a client; some engines leave it out.
var terminator = []byte("data: [DONE]\n\n")

// framed is the event of a stream to a client.
func framed(data []byte) []byte {
	return slices.Concat([]byte("data: "), data, []byte("\n\n"))
}

// stopped is the end of an answer that a stop string has ended, of which the engine
// does not know: it is told to end the attempt, and what it holds is free once it
// has.
func (a *attempt) stopped() {
	a.cancel(nil)
	if n := a.stitch.PromptTokens(); n > 0 {
		a.prompt = max(a.prompt, n+a.before)
	}
	prompt := int(a.record.prompt)
	if a.prompt > 0 {
		prompt = max(a.prompt-a.before, 0)
	}
	switch usage := a.stitch.Usage(prompt); {
	case a.whole != nil:
		_ = a.whole.Add(usage) // JSON returns the error
	case a.call.Request.IncludeUsage:
		if a.event(framed(usage), true, true) != nil {
			a.left()
			return
		}
	}
	a.ended()
}

// ended is the clean end of an answer.
func (a *attempt) ended() {
	a.cause = admission.CauseFinished
	if a.whole == nil {
		if a.call.Request.Stream && !a.done && a.event(terminator, true, false) != nil {
			a.left()
		}
		return
	}
	body, err := a.whole.JSON()
	if err != nil {
		a.unreadable(err)
		return
	}
	if a.answer(body) != nil {
		a.left() // the engine has done its work; only the client has not got it
	}
}

// progressEvery is the least number of tokens between two reports to the core,
// on engines of smaller blocks.
const progressEvery = 16

// count keeps the books of what an answer has come to, and the core's.
func (a *attempt) count(d *engine.Delta, stream bool) {
	p, r := a.pool, a.record
	if !a.add(d, !stream || d.UsageOnly, a.call.Request) {
		p.cfg.Log.Warn("the engine's usage is impossible and not believed", "pool", p.cfg.Name, "engine", a.engineName(), "request", a.call.ID,
			"prompt_tokens", d.Usage.Prompt, "completion_tokens", d.Usage.Completion)
	}
	if a.out > 0 && stream && a.first.IsZero() {
		a.first = time.Now()
		p.log(r, &journal.Event{Kind: journal.FirstToken, Engine: a.engineName(), Hold: uint64(a.admit.Hold), OutputTokens: int64(a.out)})
		if a.before == 0 {
			r.first = a.first
			p.cfg.Metrics.first(p.cfg.Name, a.call.Class, a.first.Sub(a.call.Arrived))
		}
	}
	out := a.out
	if a.stitch != nil && !a.bound && a.stitch.Able() {
		out = a.stitch.Kept() // the core counts on it
	}
	out = max(out-r.lost, min(out, 1))
	if out > 0 && a.told == 0 || out >= a.told+progressEvery {
		a.told = out
		p.step(r.mind, &admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: int32(out)})
		r.meter.progress(a)
	}
}
