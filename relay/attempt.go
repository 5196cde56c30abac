package relay

import (
	"context"
	"time"

	"headgate/admission"
	"headgate/telemetry/tracing"
	"headgate/wire"
)

// attempt is one dispatch of a call, and how it went. A file tells each part of it:
// what the engine is sent (dispatch.go), what is read of it (read.go), what is kept of
// that for another attempt (thread.go), what the client gets (outlet.go), what it has
// all come to (tally.go), how its end is judged (outcome.go), and what the core is told
// of that (report.go). One that only computes a part of a prompt is told in warm.go.
type attempt struct {
	pool   *Pool
	live   *settings // that it began under
	record *record
	mind   *mind // that admitted it; its record may wait outside of any by the time that it is released
	call   *Call

	admit      admission.Effect
	dispatched time.Time // zero until it was
	began      time.Time // when the engine said that it began; zero where it does not
	reclaim    string    // the request that it was ended for
	recalled   uint64    // and the recall
	length     int       // tokens of a piece as it was sent
	warmed     int       // of which the cache had none before
	cancel     context.CancelCauseFunc
	span       *tracing.Span // nil: the request is not traced

	outlet
	thread
	tally
	outcome
	checkpoints
}

// attempt begins one for an admitted request.
func (p *Pool) attempt(r *record, sink Sink) *attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &attempt{pool: p, live: p.live(), record: r, mind: r.mind, call: r.call, admit: r.admit, outlet: outlet{sink: sink, start: p.cfg.Start}}
	if r.kept != nil {
		a.before = r.kept.Before()
	}
	if !a.piece() {
		a.stitch, a.whole = r.kept, r.collected
		a.shown = r.kept != nil && r.call.Request.Stream
		a.delivered = a.shown
	}
	return a
}

// piece tells whether the attempt only computes a part of the prompt.
func (a *attempt) piece() bool { return a.admit.Op == admission.Warm }

func (a *attempt) engineName() string { return a.live.Engines[a.admit.Engine].Name }

// run carries the attempt to its end. It fills in what report needs.
func (a *attempt) run(ctx context.Context) {
	ctx, a.cancel = context.WithCancelCause(ctx)
	defer a.cancel(nil)
	t := a.terms()
	switch {
	case ctx.Err() != nil:
		a.interrupted(ctx, nil)
	case !t.known:
		// It was taken out in the very moment; another may have the request.
		a.unreached(wire.EngineUnavailable(0))
	case a.piece():
		a.runPiece(ctx, &t)
	default:
		a.runWhole(ctx, &t)
	}
}
