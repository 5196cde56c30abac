package relay

import (
	"context"
	"errors"
	"net/http"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/wire"
)

// terms are what an attempt finds at its engine when it begins. The engine may have
// become another since the request was offered.
type terms struct {
	known   bool   // it has said what it is, and is the one that the request was admitted to
	model   string // by which it knows the one that is asked for
	has     bool   // and whether it does
	ordered bool   // it is sent a priority
	window  int    // tokens of one sequence; 0: not known
	resumes bool   // it goes on from what the request is continued from
	flags   bool   // a last message to go on with is marked as one
	tells   bool   // it says when it begins
	splits  bool   // a prompt can be computed there in pieces
	block   int    // tokens
	epoch   uint32 // of the engine
	profile string // that it is in
}

// terms also lets the core end the attempt from now on.
func (a *attempt) terms() terms {
	p, r := a.pool, a.record
	p.mu.Lock()
	defer p.mu.Unlock()
	r.cancel, r.stop = a.cancel, a.cancel
	switch {
	case r.overdue:
		a.cancel(errOverdue)
	case r.reclaimed:
		a.cancel(errReclaimed)
	}
	e, req := int(a.admit.Engine), a.call.Request
	caps := &p.engines[e].caps
	t := terms{
		known:   p.engines[e].known,
		ordered: caps.Priority && r.mind.shadow == nil, // or it would not be as without a gateway
		flags:   caps.FinalMessage == engine.FinalFlags,
		tells:   caps.TellsStart,
		splits:  p.warmsLocked(a.live, e) && p.engines[e].misread < maxMisread,
		block:   max(caps.BlockSize, 1),
		epoch:   p.engines[e].epoch,
		profile: p.profileLocked(),
	}
	t.model, t.has = p.upstreamLocked(e, req.Model)
	t.window, _ = longest(caps, t.model)
	a.longest = t.window
	if a.piece() {
		return t
	}
	if r.resumable && a.stitch == nil {
		// An engine may have shown otherwise since the request was offered.
		r.model, r.from = p.resumesLocked(r.class, req)
	}
	if a.stitch != nil && (len(caps.Models) == 0 || lists(caps, r.model)) {
		t.model, t.has = r.model, true // by whatever name it is asked for by now
	}
	t.resumes = r.from.of(caps, req.API) && t.model == r.model
	return t
}

// runWhole has the request done, or the rest of it.
func (a *attempt) runWhole(ctx context.Context, t *terms) {
	switch {
	case a.stitch != nil && !t.resumes:
		// An engine has come back as another since the answer was begun.
		a.unfit(wire.UpstreamError("the answer was begun by another model than the engine has"))
		return
	case !t.has:
		// It has come back without the model.
		a.unfit(wire.EngineUnavailable(0))
		return
	}
	p, r, req := a.pool, a.record, a.call.Request
	a.admitted(Decision{
		Queued: r.waited, Wait: time.Since(a.call.Arrived), Loan: a.admit.Loan, Grant: r.grant, Observed: r.mind.shadow != nil,
		Objective: r.objective, Profile: t.profile, Context: r.plan.granted,
	})
	// Upstream always streams, so that what an answer has come to is known while
	// it runs; except where several sequences make up one whole answer, and where
	// nothing is generated.
	stream := req.Stream || req.N <= 1 && req.API.Generates()
	proj := a.projection(t)
	proj.Stream, proj.MaxTokens = stream, int(a.admit.Limit)
	if a.admit.Limit > 0 {
		proj.MaxTokens += r.lost
	}
	a.leaves(0)
	a.expect()
	defer a.watch(a.cancel, a.live.IdleTimeout, a.alive())()
	s, err := a.dispatch(ctx, t, proj)
	if a.rejected(err) && !req.Stream {
		// Nobody has seen anything, and the engine has done nothing.
		proj.MaxTokens = a.startOver(proj.MaxTokens)
		s, err = a.dispatch(ctx, t, proj)
	}
	if err != nil {
		a.undispatched(ctx, err)
		return
	}
	a.confirm = s.Abort
	if t.tells && stream {
		a.began = time.Now()
		p.step(r.mind, &admission.Event{Kind: admission.Scheduled, Hold: a.admit.Hold})
	}
	a.read(ctx, s, stream)
}

// projection is what of the client's body is the gateway's to say.
func (a *attempt) projection(t *terms) wire.Projection {
	proj := wire.Projection{Model: t.model, FinalMessage: t.flags}
	if t.ordered {
		proj.HasPriority, proj.Priority = true, a.live.Engines[a.admit.Engine].Priority[a.record.class]
	}
	return proj
}

// leaves notes that the attempt, or a piece of so many tokens, is sent now.
func (a *attempt) leaves(piece int) {
	a.dispatched = time.Now()
	a.pool.log(a.record, &journal.Event{Kind: journal.Dispatched, Engine: a.engineName(), Hold: uint64(a.admit.Hold), Loan: a.admit.Loan, PieceTokens: int64(piece)})
}

var errProjection = errors.New("the request can't be projected")

// dispatch sends the client's request, or the continuation of its answer.
func (a *attempt) dispatch(ctx context.Context, t *terms, proj wire.Projection) (engine.Stream, error) {
	api, body, err := a.body(t, proj)
	if err != nil {
		a.pool.cfg.Log.Error("projection failed", "request", a.call.ID, "err", err)
		return nil, errProjection
	}
	return a.send(ctx, &engine.Attempt{
		API: api, Body: body, Stream: proj.Stream, N: a.call.Request.N,
		Interruptible: a.admit.Loan || a.stitch != nil, TokenIDs: a.stitch != nil && !a.stitch.FromText(),
	})
}

// send gives the engine an attempt under the name that it has here.
func (a *attempt) send(ctx context.Context, at *engine.Attempt) (engine.Stream, error) {
	at.ID, at.Traceparent = attemptID(a.call.ID, uint64(a.admit.Hold)), a.span.Traceparent()
	return a.live.Engines[a.admit.Engine].Adapter.Dispatch(ctx, at)
}

// body is what the engine is sent. Only what the core may reclaim is asked for token
// ids.
func (a *attempt) body(t *terms, proj wire.Projection) (wire.API, []byte, error) {
	r, req := a.record, a.call.Request
	if a.stitch != nil {
		return a.stitch.API(), a.stitch.Continue(proj, t.window), nil
	}
	if r.resumable && t.resumes {
		most := proj.MaxTokens
		if req.Declared && (most == 0 || req.MaxTokens < most) {
			most = req.MaxTokens
		}
		if r.from == fromText {
			a.stitch = wire.NewTextStitch(req, most)
		} else {
			a.stitch, proj.TokenIDs = wire.NewStitch(req, most, t.window), true
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
	a.thread = thread{}
	return limit
}
