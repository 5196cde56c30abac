package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/telemetry/tracing"
	"headgate/wire"
)

// attempt is one dispatch of a call, and how it went.
type attempt struct {
	pool   *Pool
	live   *settings // that it began under
	record *record
	call   *Call
	sink   Sink

	admit      admission.Effect
	dispatched time.Time    // zero until it was
	began      time.Time    // when the engine said that it began; zero where it does not
	first      time.Time    // of the first token of a stream
	last       atomic.Int64 // when something came or went, since the pool's start
	prompt     int          // tokens, as the engine counted; 0 until it has
	cached     int
	out        int    // tokens
	told       int    // of which the core knows
	reclaim    string // the request that it was ended for
	recalled   uint64 // and the recall
	longest    int    // tokens that one sequence can have at the engine; 0: not known
	length     int    // tokens of a piece as it was sent
	warmed     int    // of which the cache had none before
	timing     *engine.Timing
	span       *tracing.Span // nil: the request is not traced

	writing   sync.Mutex // the sink's, against the keep-alive
	done      bool       // the engine's terminator has been passed on
	shown     bool       // the client of a stream has been let see something of the answer
	delivered bool       // something of the answer has gone to the sink; guarded by writing

	stitch *wire.Stitch // of an attempt that can be continued or continues one; nil: neither
	before int          // tokens that earlier attempts have given the answer
	whole  *wire.Assembler
	waits  [][]byte // events that are held back until the next text
	proven bool     // the answer has been seen to have what a continuation takes
	missed bool     // or not to
	bound  bool     // it goes on to its end whatever the core asks for
	ahead  bool     // the client is being given more than what is kept: it is not ended now
	cancel context.CancelCauseFunc

	cause admission.Cause
	flags uint8
	err   *wire.Error
	fault fault          // of the engine rather than of the request
	retry admission.Time // for how long the engine wants to be left alone
	// confirm waits for the release of what the attempt may still hold at the
	// engine; nil: it holds nothing there.
	confirm func(context.Context) engine.Confirmation
}

// attempt begins one for an admitted request.
func (p *Pool) attempt(r *record, sink Sink) *attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &attempt{pool: p, live: p.live(), record: r, call: r.call, sink: sink, admit: r.admit}
	if a.piece() {
		if r.kept != nil {
			a.before = r.kept.Before()
		}
		return a
	}
	a.stitch, a.whole = r.kept, r.collected
	if a.stitch != nil {
		a.before = a.stitch.Before()
		a.shown = r.call.Request.Stream
		a.delivered = a.shown
	}
	return a
}

// run dispatches the request and passes on the answer. It fills in what report
// needs.
func (a *attempt) run(ctx context.Context) {
	if a.piece() {
		a.runPiece(ctx)
		return
	}
	p, r := a.pool, a.record
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.mu.Lock()
	r.cancel, a.cancel = cancel, cancel
	if r.reclaimed {
		cancel(errReclaimed)
	}
	caps := &p.engines[a.admit.Engine].caps
	ordered := caps.Priority && r.mind.shadow == nil // or it would not be as without a gateway
	model, has := p.upstreamLocked(int(a.admit.Engine), a.call.Request.Model)
	window := contextOf(caps, model)
	if r.resumable && a.stitch == nil {
		// An engine may have shown otherwise since the request was offered.
		r.model, r.from = p.resumesLocked(r.class, a.call.Request)
	}
	if a.stitch != nil && (len(caps.Models) == 0 || lists(caps, r.model)) {
		model, has = r.model, true // by whatever name it is asked for by now
	}
	same := r.from.of(caps, a.call.Request.API) && model == r.model
	final := caps.FinalMessage
	tells := caps.TellsStart
	a.longest = longest(caps)
	p.mu.Unlock()
	if ctx.Err() != nil {
		a.interrupted(ctx, nil)
		return
	}
	if a.stitch != nil && !same {
		// An engine has come back as another since the answer was begun.
		a.unfit(wire.UpstreamError("the answer was begun by another model than the engine has"))
		return
	}
	if !has {
		// It has come back without the model.
		a.unfit(wire.EngineUnavailable(0))
		return
	}
	a.sinkAdmitted()

	eng := &a.live.Engines[a.admit.Engine]
	req := a.call.Request
	// Upstream always streams, so that what an answer has come to is known while
	// it runs; except where several sequences make up one whole answer, and where
	// nothing is generated.
	stream := req.Stream || req.N <= 1 && req.API.Generates()
	proj := wire.Projection{Stream: stream, MaxTokens: int(a.admit.Limit), FinalMessage: final == engine.FinalFlags}
	if a.admit.Limit > 0 {
		proj.MaxTokens += r.lost
	}
	if model != req.Model {
		proj.Model = model
	}
	if ordered {
		proj.HasPriority, proj.Priority = true, eng.Priority[r.class]
	}
	dispatch := func() (engine.Stream, error) {
		api, body, err := a.body(proj, same, window)
		if err != nil {
			p.cfg.Log.Error("projection failed", "request", a.call.ID, "err", err)
			return nil, errProjection
		}
		return eng.Adapter.Dispatch(ctx, &engine.Attempt{
			API: api, Body: body, ID: attemptID(a.call.ID, uint64(a.admit.Hold)), Stream: stream, N: req.N,
			Interruptible: a.admit.Loan || a.stitch != nil, TokenIDs: a.stitch != nil && !a.stitch.FromText(),
			Traceparent: a.span.Traceparent(),
		})
	}
	a.dispatched = time.Now()
	a.expect()
	p.log(r, &journal.Event{Kind: journal.Dispatched, Engine: eng.Name, Hold: uint64(a.admit.Hold), Loan: a.admit.Loan})
	stop := a.watch(ctx, cancel)
	defer stop()
	s, err := dispatch()
	if a.rejected(err) && !req.Stream {
		// Nobody has seen anything, and the engine has done nothing.
		proj.MaxTokens = a.startOver(proj.MaxTokens)
		s, err = dispatch()
	}
	if err != nil {
		a.undispatched(ctx, err)
		return
	}
	a.confirm = s.Abort
	if tells && stream {
		a.began = time.Now()
		p.step(r.mind, &admission.Event{Kind: admission.Scheduled, Hold: a.admit.Hold})
	}
	a.relay(ctx, s, stream)
}

var errProjection = errors.New("the request can't be projected")

// body is what the engine is sent: the client's request, or the continuation of
// its answer. Only what the core may reclaim is asked for token ids.
func (a *attempt) body(proj wire.Projection, able bool, window int) (wire.API, []byte, error) {
	r, req := a.record, a.call.Request
	if a.stitch != nil {
		return a.stitch.API(), a.stitch.Continue(proj, window), nil
	}
	if r.resumable && able {
		most := proj.MaxTokens
		if req.Declared && (most == 0 || req.MaxTokens < most) {
			most = req.MaxTokens
		}
		if r.from == fromText {
			a.stitch = wire.NewTextStitch(req, most)
		} else {
			a.stitch, proj.TokenIDs = wire.NewStitch(req, most, window), true
		}
	}
	body, err := req.Project(nil, proj)
	return req.API, body, err
}

// rejected tells that an engine does not take a continuation, which is then not asked
// of it again.
func (a *attempt) rejected(err error) bool {
	var status *engine.StatusError
	if a.before == 0 || a.piece() || !errors.As(err, &status) || status.Status != http.StatusBadRequest && status.Status != http.StatusUnprocessableEntity {
		return false
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.pool.rejectedLocked(a.admit.Engine, a.call.Request.API, a.record.from)
	return true
}

// startOver forgets what earlier attempts have given, and that the request could be
// continued. The core still takes it for kept: the hold is as large as the whole
// answer then, but of its limit that part is missing. It returns the limit of all.
func (a *attempt) startOver(limit int) int {
	p, r := a.pool, a.record
	p.mu.Lock()
	defer p.mu.Unlock()
	if limit > 0 {
		limit += a.before
	}
	r.lost += a.before
	r.resumable = false
	a.stitch, a.whole, a.before = nil, nil, 0
	return limit
}

func (a *attempt) sinkAdmitted() {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.sink.Admitted(Decision{
		Queued: a.record.waited, Wait: time.Since(a.call.Arrived), Loan: a.admit.Loan, Grant: a.record.grant, Observed: a.record.mind.shadow != nil,
		Objective: a.record.objective,
	})
}

// undispatched sorts out why a dispatch gave no stream.
func (a *attempt) undispatched(ctx context.Context, err error) {
	var status *engine.StatusError
	var unanswered *engine.Unanswered
	switch {
	case errors.Is(err, errProjection):
		a.failed(wire.Internal())
	case errors.As(err, &status) && a.rejected(err):
		// Its client has asked for nothing wrong.
		a.failed(wire.UpstreamError("the engine refused to go on with an answer that had given way (status %d)", status.Status))
	case errors.As(err, &status):
		// The engine's own hint is the best there is.
		a.answered(status.Status, wire.FromUpstream(status.Status, status.Body, status.Header))
	case errors.As(err, &unanswered):
		a.confirm = unanswered.Confirm
		a.interrupted(ctx, err)
	case ctx.Err() != nil:
		a.interrupted(ctx, err)
	case exhausted(err):
		// Our own want of descriptors or ports says nothing about the engine.
		a.flags = admission.FlagUntouched
		a.failed(wire.Internal())
		a.pool.cfg.Log.Error("no connection to the engine: this process or machine has run out", "request", a.call.ID, "err", err)
	case !gone(err):
		a.failed(wire.UpstreamError("the engine can't be asked"))
		a.pool.cfg.Log.Error("a request was not sent", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
	default:
		a.flags = admission.FlagUntouched
		a.cause = admission.CauseUnreachable
		a.err = wire.EngineUnavailable(0)
		a.pool.cfg.Log.Warn("engine unreachable", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
	}
}

// gone tells that nobody was reached, and not that the adapter has made nothing of the
// request.
func gone(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// exhausted tells that a connection failed for want of something local.
func exhausted(err error) bool {
	for _, local := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, local) {
			return true
		}
	}
	return false
}

// interrupted is the end of an attempt that the gateway gave up, or whose
// connection broke.
func (a *attempt) interrupted(ctx context.Context, err error) {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errReclaimed):
		a.cause = admission.CauseReclaimed
		a.err = wire.LoanEnded()
	case errors.Is(cause, errIdle):
		a.cause, a.fault = admission.CauseTimeout, faultBroken
		a.err = wire.UpstreamTimeout(a.live.IdleTimeout)
	case errors.Is(cause, errShutdown):
		a.cause = admission.CauseDraining
		a.err = wire.Draining()
	case cause != nil || errors.Is(err, errClient):
		a.cause = admission.CauseClientGone
		a.err = wire.ClientClosed()
	case late(err):
		a.cause, a.fault = admission.CauseTimeout, faultBroken
		a.err = wire.UpstreamTimeout(time.Since(a.dispatched).Round(time.Millisecond))
	case errors.Is(err, io.ErrUnexpectedEOF):
		a.fault = faultBroken
		a.failed(wire.UpstreamTorn())
	default:
		a.fault = faultBroken
		a.failed(wire.UpstreamError("the connection to the engine failed, or it sent what is no answer"))
		a.pool.cfg.Log.Warn("engine failed", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
	}
}

// late tells that the engine held back its answer for longer than the adapter
// was told to wait.
func late(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func (a *attempt) failed(err *wire.Error) {
	a.cause, a.err = admission.CauseFailed, err
}

// errClient marks a failure to write to the client.
var errClient = errors.New("the client is gone")

// relay passes on the events of a stream.
func (a *attempt) relay(ctx context.Context, s engine.Stream, stream bool) {
	req := a.call.Request
	if stream && !req.Stream && a.whole == nil {
		a.whole = wire.NewAssembler(req.API, a.live.MaxAnswer)
	}
	for {
		d, err := s.Next()
		a.touch()
		switch {
		case err == io.EOF:
			a.confirm = nil
			a.ended()
			return
		case err != nil:
			a.interrupted(ctx, err)
			return
		case d.Err != nil:
			a.answered(d.Err.Status, d.Err)
			if _, err := s.Next(); err == io.EOF {
				a.confirm = nil // the engine has ended it itself
			}
			return
		}
		// No framing: the engine has answered with a document.
		document := len(d.Data) > 0 && len(d.Raw) == len(d.Data)
		var piece wire.Piece
		open := false // more of the answer is to come, and may come in another attempt
		if a.stitch != nil && len(d.Data) > 0 && !d.Done && !document {
			if piece, err = a.stitch.Add(d.Data); err != nil {
				a.failed(wire.UpstreamError("the engine's answer can't be read: %v", err))
				return
			}
			if !a.keep(&piece) {
				a.interrupted(ctx, errReclaimed)
				return
			}
			d.Data, open = piece.Data, !a.bound && !piece.Last
			if req.Stream {
				d.Raw = framed(piece.Data)
			}
		}
		a.count(&d, stream && !document)
		switch {
		case document && a.stitch != nil && (a.before > 0 || a.stitch.Stops()):
			a.failed(wire.UpstreamError("the engine answered with a document instead of a stream"))
			return
		case document && !req.Stream:
			a.whole = nil
			err = a.answer(d.Data)
		case document:
			// The client of a stream can't read one.
			a.failed(wire.UpstreamError("the engine answered with a document instead of a stream"))
			return
		case len(d.Raw) == 0 || piece.Blank:
			// Nothing that means anything to anybody.
		case a.whole != nil:
			if len(d.Data) == 0 {
				continue
			}
			if open && !piece.Sure {
				a.waits = append(a.waits, bytes.Clone(d.Data))
				continue
			}
			err := a.collect(append(a.waits, d.Data)...)
			a.waits = a.waits[:0]
			if err != nil {
				a.failed(wire.UpstreamError("the engine's answer can't be read: %v", err))
				return
			}
		case d.UsageOnly && !req.IncludeUsage:
			// The gateway asked for it, the client did not.
		case open && !piece.Text:
			a.waits = append(a.waits, d.Raw)
		default:
			err = a.pass(&d)
		}
		if err != nil {
			a.interrupted(ctx, errors.Join(errClient, err))
			return
		}
		if piece.Stop {
			a.stopped()
			return
		}
	}
}

// mostAhead is how many tokens a stream may come to be ahead of what is kept. An
// engine of which the events have several tokens as a rule can't be interrupted.
const mostAhead = 64

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

// lags tells that the engine gives nothing that could be kept. Of text it is the
// model that does: spaces and line ends.
func (a *attempt) lags() bool { return !a.stitch.FromText() && a.stitch.Loose() > mostAhead }

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

// collect adds events to an answer that is given to its client as a whole.
func (a *attempt) collect(events ...[]byte) error {
	for _, data := range events {
		if err := a.whole.Add(data); err != nil {
			return err
		}
	}
	return nil
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
	switch usage := a.stitch.Usage(); {
	case usage == nil:
	case a.whole != nil:
		_ = a.whole.Add(usage) // JSON returns the error
	case a.call.Request.IncludeUsage:
		if a.event(framed(usage), true) != nil {
			a.cause, a.err = admission.CauseClientGone, wire.ClientClosed()
			return
		}
	}
	a.ended()
}

// ended is the clean end of an answer.
func (a *attempt) ended() {
	a.cause = admission.CauseFinished
	if a.whole == nil {
		if a.call.Request.Stream && !a.done && a.event(terminator, true) != nil {
			a.cause, a.err = admission.CauseClientGone, wire.ClientClosed()
		}
		return
	}
	body, err := a.whole.JSON()
	if err != nil {
		a.failed(wire.UpstreamError("the engine's answer can't be read: %v", err))
		return
	}
	if a.answer(body) != nil {
		// The engine has done its work; only the client has not got it.
		a.cause, a.err = admission.CauseClientGone, wire.ClientClosed()
	}
}

// pass passes an event on to the client of a stream. What shows nothing of the
// answer leaves it open to run again unseen: a comment, and the event without a
// token with which most engines open a stream. That one is held back until the
// next comes, the first token as a rule, so that there is no second opening after
// a reclaim.
func (a *attempt) pass(d *engine.Delta) error {
	if len(d.Data) == 0 {
		return a.event(d.Raw, false)
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
		if err := a.event(raw, true); err != nil {
			return err
		}
	}
	a.waits = a.waits[:0]
	a.done = d.Done
	return a.event(d.Raw, true)
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

// event sends something to the client of a stream; part tells whether it is a
// part of the answer.
func (a *attempt) event(raw []byte, part bool) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.delivered = a.delivered || part
	err := a.sink.Event(raw)
	a.touch() // a client that reads slowly is no silence of the engine's
	return err
}

func (a *attempt) answer(body []byte) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.delivered = true
	return a.sink.Answer(body)
}

func (a *attempt) touch() { a.last.Store(int64(time.Since(a.pool.cfg.Start))) }

// progressEvery is the least number of tokens between two reports to the core,
// on engines of smaller blocks.
const progressEvery = 16

// count keeps the books of what an answer has come to.
func (a *attempt) count(d *engine.Delta, stream bool) {
	if d.Timing != nil {
		a.timing = d.Timing
	}
	a.out += d.Tokens
	if d.HasUsage && !a.credible(&d.Usage) {
		d.HasUsage = false
		a.pool.cfg.Log.Warn("the engine's usage is impossible and not believed", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID,
			"prompt_tokens", d.Usage.Prompt, "completion_tokens", d.Usage.Completion)
	}
	if d.HasUsage {
		a.prompt, a.cached = max(a.prompt, d.Usage.Prompt), max(a.cached, d.Usage.Cached)
		// Usage on the way (continuous usage stats) is of one choice, and some
		// engines leave it at zero; the last is of all.
		a.out = max(a.out, d.Usage.Completion)
		if (d.UsageOnly || !stream) && d.Usage.Completion > 0 {
			a.out = d.Usage.Completion
		}
	}
	if a.out > 0 && stream && a.first.IsZero() {
		a.first = time.Now()
		a.pool.log(a.record, &journal.Event{Kind: journal.FirstToken, Engine: a.engineName(), Hold: uint64(a.admit.Hold), OutputTokens: int64(a.out)})
		if a.before == 0 {
			a.record.first = a.first
			a.pool.cfg.Metrics.first(a.pool.cfg.Name, a.call.Class, a.first.Sub(a.call.Arrived))
		}
	}
	out := a.out
	if a.stitch != nil && !a.bound && a.stitch.Able() {
		out = a.stitch.Kept() // the core counts on it
	}
	out = max(out-a.record.lost, min(out, 1))
	if out > 0 && a.told == 0 || out >= a.told+progressEvery {
		a.told = out
		a.pool.step(a.record.mind, &admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: int32(out)})
	}
}

// credible tells whether an engine can have processed as many tokens as it says:
// no more than its sequences can hold.
func (a *attempt) credible(u *wire.Usage) bool {
	most := a.longest * max(a.call.Request.N, a.call.Request.Prompts, 1)
	return u.Prompt >= 0 && u.Completion >= 0 && u.Cached >= 0 && (most == 0 || u.Prompt <= most && u.Completion <= most)
}

func (a *attempt) engineName() string { return a.live.Engines[a.admit.Engine].Name }

// watch ends an attempt whose engine is silent for too long, and keeps the
// client's stream alive meanwhile.
func (a *attempt) watch(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	p := a.pool
	a.touch()
	every := a.live.IdleTimeout
	// A client that has seen nothing can still be told a status after a piece.
	alive := a.live.Keepalive > 0 && a.call.Request.Stream && (!a.piece() || a.sink.Started())
	if alive {
		every = min(every, a.live.Keepalive)
	}
	var timer *time.Timer
	over := false // guarded by a.writing, so that nothing is written once stop has returned
	timer = time.AfterFunc(math.MaxInt64, func() {
		if !a.writing.TryLock() {
			// Something is on its way to the client this moment, however slowly.
			timer.Reset(every)
			return
		}
		defer a.writing.Unlock()
		silent := time.Since(p.cfg.Start) - time.Duration(a.last.Load())
		switch {
		case over:
			return
		case silent >= a.live.IdleTimeout:
			cancel(errIdle)
			return
		}
		next := a.live.IdleTimeout - silent
		if alive {
			wait := a.live.Keepalive - silent
			if wait <= 0 {
				if a.sink.KeepAlive() != nil {
					cancel(errClient)
					return
				}
				wait = a.live.Keepalive
			}
			next = min(next, wait)
		}
		timer.Reset(next)
	})
	timer.Reset(every)
	return func() {
		a.writing.Lock()
		over = true
		a.writing.Unlock()
		timer.Stop()
	}
}

// report tells the core how the attempt ended, and whether the core wants the
// request to run again.
func (a *attempt) report() (again bool) {
	a.writing.Lock()
	if a.delivered {
		a.flags |= admission.FlagDelivered
	}
	a.writing.Unlock()
	if a.confirm == nil {
		a.flags |= admission.FlagReleased
	}
	again = a.tell()
	a.traced(time.Now())
	if a.confirm != nil {
		a.pool.tasks.Add(1)
		go a.release()
	}
	return again
}

func (a *attempt) tell() (again bool) {
	p, r := a.pool, a.record
	p.mu.Lock()
	defer p.mu.Unlock()
	r.cancel = nil
	if a.piece() {
		return a.tellPieceLocked()
	}
	a.misreadLocked()
	a.store()
	a.elsewhere()
	if a.cause == admission.CauseReclaimed {
		a.reclaim, a.recalled = r.reclaim, r.recalled
	}
	now := int64(p.now())
	t := a.spannedLocked(now)
	e := a.scheduled(now)
	if e != nil {
		p.logLocked(r, e)
	}
	if t != nil {
		t.exact = e != nil && e.ScheduledUpperNS == 0
		p.overLocked(t)
	}
	p.logLocked(r, &journal.Event{
		Kind: journal.Ended, Mono: now, Engine: a.engineName(), Hold: uint64(a.admit.Hold), Loan: a.admit.Loan, Cause: a.cause.String(), For: r.reclaim, Recall: a.recalled,
		PromptTokens: int64(a.prompt), CachedTokens: int64(a.cached), OutputTokens: int64(a.out),
	})
	out := int32(max(a.out-r.lost, 0))
	if a.cause == admission.CauseUnreachable {
		p.stateLocked(int(a.admit.Engine), admission.Down, nil)
	}
	if a.prompt == 0 && a.stitch != nil && a.stitch.PromptTokens() > 0 {
		a.prompt = a.stitch.PromptTokens() + a.before // of one that was cut there is no usage
	}
	if a.prompt > 0 {
		p.price.Observe(a.call.Request.Model, a.call.Request.Content, a.prompt-a.before)
		p.stepLocked(a.record.mind, &admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: out, Prompt: p.sequenceLocked(a.call.Request, a.prompt+r.lost)})
	}
	p.rememberLocked(a)
	p.stepLocked(a.record.mind, &admission.Event{Kind: admission.Ended, Hold: a.admit.Hold, Out: out, Flags: a.flags, Cause: a.cause, Retry: a.retry})
	again = r.stage != stageOver
	if again && r.kept == nil {
		r.lost += a.before // it begins anew, and the core still takes that for kept
	}
	return again
}

// store puts by what the next attempt goes on from. An answer of which nothing is
// there, or which can't be continued, begins anew, if that is unseen.
func (a *attempt) store() {
	r := a.record
	r.kept, r.collected = nil, nil
	broken := (a.fault == faultBroken || a.fault == faultRefused && a.out == 0) && !a.ahead && !a.bound
	if a.stitch == nil || a.cause != admission.CauseReclaimed && a.cause != admission.CauseUnreachable && !broken {
		return
	}
	kept := a.stitch.Kept()
	if a.stitch.Cut() {
		a.out = kept
		a.flags |= admission.FlagKept
		r.kept, r.collected = a.stitch, a.whole
	}
}

// scheduled says when the engine began to run the attempt: exactly if it told,
// else at some moment between the dispatch and the first token, less what its
// prefill surely took. Of an attempt that gave nothing it isn't known that it ever
// ran: nil.
func (a *attempt) scheduled(now int64) *journal.Event {
	at := int64(a.dispatched.Sub(a.pool.cfg.Start))
	e := &journal.Event{Kind: journal.Scheduled, Mono: now, Engine: a.engineName(), Hold: uint64(a.admit.Hold), ScheduledNS: at}
	switch {
	case a.timing != nil && a.timing.Queue >= 0:
		e.ScheduledNS += int64(a.timing.Queue)
	case !a.began.IsZero() && a.out > 0:
		e.ScheduledNS = int64(a.began.Sub(a.pool.cfg.Start))
	case !a.first.IsZero():
		e.ScheduledUpperNS = max(at+1, int64(a.first.Sub(a.pool.cfg.Start)-a.prefilled()))
	case a.out > 0:
		e.ScheduledUpperNS = now // it came as a whole
	default:
		return nil
	}
	return e
}

// release waits for the engine's word that an aborted attempt is gone.
func (a *attempt) release() {
	p := a.pool
	defer p.tasks.Done()
	ctx, cancel := context.WithTimeout(p.killCtx, confirmTimeout)
	defer cancel()
	c := a.confirm(ctx)
	if c.By == engine.Unconfirmed {
		if p.killCtx.Err() == nil {
			p.cfg.Log.Warn("the engine did not confirm a release", "pool", p.cfg.Name, "engine", a.engineName(), "request", a.call.ID)
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepLocked(a.record.mind, &admission.Event{Kind: admission.Released, Hold: a.admit.Hold})
	p.logLocked(a.record, &journal.Event{
		Kind: journal.Released, Mono: int64(p.now()), Engine: a.engineName(), Hold: uint64(a.admit.Hold), Cause: string(c.By),
		For: a.reclaim, Recall: a.recalled,
	})
}

// finished writes down the end of a call.
func (p *Pool) finished(a *attempt) {
	status := http.StatusOK
	if a.err != nil && (a.cause == admission.CauseClientGone || !a.sink.Started()) {
		status = a.err.Status
	}
	e := &journal.Event{
		Kind: journal.Finished, Cause: a.cause.String(), Status: status, Engine: a.engineName(), Hold: uint64(a.admit.Hold),
		PromptTokens: int64(max(a.prompt-a.before, 0)), CachedTokens: int64(a.cached), OutputTokens: int64(a.before + a.out),
		Missed: a.judge(time.Now()),
	}
	p.log(a.record, e)
	p.cfg.Metrics.finished(p.cfg.Name, a.call.Class, a.cause.String(), time.Since(a.call.Arrived))
}
