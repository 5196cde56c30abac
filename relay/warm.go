package relay

import (
	"context"
	"encoding/json"
	"io"

	"headgate/admission"
	"headgate/engine"
	"headgate/wire"
)

// A piece is an attempt that computes the beginning of a prompt for the engine's
// cache (admission's split.go says why). It is sent as a completion of the prompt's
// first ids, for one token that nobody gets, and it is ended, confirmed and reclaimed
// like any other. Its request's client sees nothing of it.
//
// The ids are asked for once a request. The core cuts by its estimate of the
// prompt, and a piece takes the same share of the real one, in whole blocks: what
// the core learns of the engine's speed is in estimated tokens too, so that both
// mean the same.
//
// A piece that can't be made or that the engine fails does not fail its request:
// the core is told that this prompt can't be split, and starts it whole; but not of an
// engine that is busy or was never reached, which says nothing of the prompt. An engine
// that says other ids than it then makes of the prompts is not asked any more: its
// pieces would be computed for nothing.
//
// Alternatives: to cut the text needs no ids, but a template closes what it is given,
// and a tokenizer may join two letters across the cut; the cache goes by ids.

// warmth is what is known of a request's prompt for its pieces.
type warmth struct {
	ids    []int32
	model  string // that they are of
	engine admission.Engine
	epoch  uint32 // of the engine, since which ...
	tokens int    // ... its cache has so many of them
}

// maxMisread is how many prompts in a row an engine may make other ids of than it
// said.
const maxMisread = 3

// warmsLocked tells whether an engine's prompts can be cut into pieces.
func (p *Pool) warmsLocked(live *settings, i int) bool {
	s := &p.engines[i]
	_, tells := live.Engines[i].Adapter.(engine.Tokenizer)
	return tells && s.caps.PrefixCache && s.caps.TokenIDs
}

// runPiece has a piece of the prompt computed.
func (a *attempt) runPiece(ctx context.Context, t *terms) {
	r := a.record
	if !t.has || !t.splits || !a.call.Request.Splittable() {
		a.unsplit(wire.UpstreamError("the prompt can't be computed in parts"))
		return
	}
	defer a.watch(a.cancel, a.live.IdleTimeout, a.alive())()
	proj := a.projection(t)
	ids, most, err := a.promptIDs(ctx, proj)
	switch {
	case err != nil && ctx.Err() != nil:
		a.interrupted(ctx, err)
		return
	case err != nil:
		a.pool.cfg.Log.Warn("the engine does not tell a prompt's token ids; it is not split", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
		a.unsplit(wire.UpstreamError("the engine does not tell the prompt's token ids"))
		return
	}
	n := int(a.admit.Tokens * int64(len(ids)) / int64(max(most, 1)))
	n = min(n, len(ids)-1)
	n -= n % t.block
	had := 0
	if r.warm.engine == a.admit.Engine && r.warm.epoch == t.epoch {
		had = r.warm.tokens
	}
	if a.length = n; n <= had {
		a.cause = admission.CauseFinished // the estimate was of more than there is
		return
	}
	a.leaves(n)
	stream, err := a.send(ctx, &engine.Attempt{API: wire.Completions, Body: a.call.Request.Piece(proj, ids[:n]), Stream: true, N: 1, Interruptible: true})
	if err != nil {
		a.undispatched(ctx, err)
	} else {
		a.confirm = stream.Abort
		a.drop(ctx, stream)
	}
	switch {
	case a.cause == admission.CauseFailed && !a.busy && a.flags&admission.FlagUntouched == 0:
		a.flags |= admission.FlagUnsplit
	case a.cause == admission.CauseFinished:
		r.warm.engine, r.warm.epoch, r.warm.tokens, a.warmed = a.admit.Engine, t.epoch, n, n-had
	}
}

// unsplit ends a piece that can't be made.
func (a *attempt) unsplit(why *wire.Error) {
	a.flags = admission.FlagUnsplit
	a.failed(why)
}

// promptIDs returns the ids of what the engine is to have in its cache in the end,
// the prompt and what is kept of the answer, and for how many tokens the core
// takes it.
func (a *attempt) promptIDs(ctx context.Context, proj wire.Projection) (ids []int32, most int, err error) {
	r := a.record
	tells := a.live.Engines[a.admit.Engine].Adapter.(engine.Tokenizer)
	if r.kept != nil && r.kept.FromText() {
		ids, err = tells.Tokens(ctx, r.kept.API(), r.kept.Continue(wire.Projection{Model: proj.Model, FinalMessage: proj.FinalMessage}, 0))
		return ids, int(r.prompt) + r.kept.Before(), err
	}
	if r.kept != nil {
		// An answer that goes on has them all.
		var going struct{ Prompt []int32 }
		if err := json.Unmarshal(r.kept.Continue(wire.Projection{}, 0), &going); err != nil {
			return nil, 0, err
		}
		return going.Prompt, int(r.prompt) + r.kept.Before(), nil
	}
	if w := &r.warm; w.ids == nil || w.model != proj.Model {
		body, err := a.call.Request.Project(nil, wire.Projection{Model: proj.Model})
		if err != nil {
			return nil, 0, err
		}
		if w.ids, err = tells.Tokens(ctx, a.call.Request.API, body); err != nil {
			return nil, 0, err
		}
		w.model, w.tokens = proj.Model, 0
	}
	return r.warm.ids, int(r.prompt), nil
}

// drop reads a piece's stream to its end and keeps nothing of it.
func (a *attempt) drop(ctx context.Context, s engine.Stream) {
	for {
		d, err := s.Next()
		a.touch()
		switch {
		case err == io.EOF:
			a.confirm, a.cause = nil, admission.CauseFinished
			return
		case err != nil:
			a.interrupted(ctx, err)
			return
		case d.Err != nil:
			a.failed(d.Err)
			a.settled(s)
			return
		}
		if d.HasUsage && a.credible(&d.Usage, 1) {
			a.cached = max(a.cached, d.Usage.Cached)
		}
		if d.Tokens > 0 && a.told == 0 {
			a.out, a.told = 1, 1
			a.pool.step(a.record.mind, &admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: 1})
		}
	}
}

// misreadLocked compares what the engine says a prompt has come to with the ids that
// it has told.
func (a *attempt) misreadLocked() {
	w, s := &a.record.warm, &a.pool.engines[a.admit.Engine]
	switch {
	case w.ids == nil || a.before > 0 || a.prompt == 0:
	case a.prompt == len(w.ids):
		s.misread = 0
	default:
		if s.misread++; s.misread == maxMisread {
			a.pool.cfg.Log.Warn("the engine makes other token ids of prompts than it tells; they are not split any more",
				"pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "told_tokens", len(w.ids), "prompt_tokens", a.prompt)
		}
	}
}
