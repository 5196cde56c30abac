package relay

import (
	"context"
	"slices"
	"time"

	"headgate/admission"
	"headgate/journal"
	"headgate/wire"
)

// Serve carries one call through the pool. It returns when the client has its
// whole answer (nil), or with the error that it is to be told: by the caller,
// in the place of an answer if the sink has not started, at its end otherwise.
func (p *Pool) Serve(ctx context.Context, call *Call, sink Sink) (failure *wire.Error) {
	if call.Account == nil && p.cfg.Unasked != nil {
		call.Account = &journal.Account{}
		defer func() { p.cfg.Unasked(call, failure) }()
	}
	r, refused := p.offer(call)
	call.tellLimits(sink)
	if refused != nil {
		return refused
	}
	return p.carry(ctx, r, sink)
}

// carry takes an offered request to its end.
func (p *Pool) carry(ctx context.Context, r *record, sink Sink) *wire.Error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.killCtx, func() { cancel(errShutdown) })()
	var a *attempt
	over := false
	defer func() {
		if !over {
			p.abandon(r, a, sink)
		}
		if r.call.Wasted != nil {
			r.call.Wasted(r.spent.wasted())
		}
		p.leave(r)
	}()
	for {
		wait := p.traceWait(r)
		refused := p.await(ctx, r, sink)
		p.waitOver(r, wait)
		if refused != nil {
			over = true
			return refused
		}
		a = p.attempt(r, sink)
		a.trace()
		a.run(ctx)
		if !a.report() {
			over = true
			p.finished(a)
			return a.err
		}
	}
}

// abandon cleans up behind a sink that panicked: the goroutine is on its way
// out, and what its request holds must not stay taken.
func (p *Pool) abandon(r *record, a *attempt, sink Sink) {
	p.cancel(r)
	p.mu.Lock()
	stage, hold := r.stage, r.admit.Hold
	p.mu.Unlock()
	if stage != stageAdmitted {
		return
	}
	if a == nil || a.admit.Hold != hold {
		a = p.attempt(r, sink) // admitted while it was told that it waits
	}
	a.failed(wire.Internal())
	a.report()
	p.finished(a)
}

// keptWaits is for how long after the start what an earlier life has kept of an answer waits for
// engines that have not been heard of: whether all go on with it is known of those that have,
// and it would begin anew.
const keptWaits = admission.Time(time.Minute)

// offer asks for admission.
func (p *Pool) offer(call *Call) (*record, *wire.Error) {
	req := call.Request
	before := time.Now()
	trail := p.trail(call)
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.live()
	class, ok := live.index[call.Class]
	switch {
	case ok:
	case slices.Contains(live.Classes, call.Class):
		// The class was there when the caller was asked who it is.
		p.cfg.Metrics.refused(p.cfg.Name, call.Class, admission.CauseDraining.String())
		return nil, wire.Draining()
	default:
		return nil, wire.ClassNotPermitted(call.Class, p.Classes())
	}
	r := &record{
		trail: trail,
		class: class, call: call, wake: make(chan struct{}, 1), arrived: admission.Time(call.Arrived.Sub(p.cfg.Start)),
		objective: p.objectiveLocked(class, call),
	}
	prompt := p.price.Estimate(req.Model, req.Content)
	r.prompt = p.sequenceLocked(req, prompt)
	line := journal.Event{Kind: journal.Arrived, Mono: int64(r.arrived), Declared: req.Declared, Peer: call.From}
	if p.matchLocked(req.Model) > 0 {
		line.Model = req.Model
	}
	if req.Declared {
		line.MaxTokens = int64(req.MaxTokens)
	}
	r.limits(&line)
	p.logLocked(r, &line)
	unserved := p.unservedLocked(r)
	switch {
	case p.drain || p.switches[SwitchDrain].On:
		return nil, p.turnAwayLocked(r, admission.CauseDraining, wire.Draining())
	case p.core == nil && p.loadingLocked():
		return nil, p.turnAwayLocked(r, admission.CauseUnavailable, wire.EngineLoading(0))
	case p.core == nil:
		return nil, p.turnAwayLocked(r, admission.CauseUnavailable, wire.EngineUnavailable(0))
	case unserved != nil:
		return nil, p.turnAwayLocked(r, admission.CauseUnavailable, unserved)
	case call.Kept != nil && p.now() < keptWaits && p.unheardLocked():
		return nil, p.turnAwayLocked(r, admission.CauseUnavailable, wire.EngineLoading(0))
	case len(p.free) == 0:
		return nil, p.turnAwayLocked(r, admission.CauseQueueFull, wire.QueueFull(call.Class, p.cfg.Capacity, p.cfg.Capacity, 0))
	}
	if refused := p.reserveLocked(r, prompt); refused != nil {
		return nil, refused
	}
	p.active++
	if p.gatesLocked(r) {
		if why, want, allowed := p.hostLocked(r); why != admission.CauseNone {
			p.active--
			r.meter.settle()
			return nil, p.offerOutside(r, why, want, allowed)
		}
		p.logLocked(r, &journal.Event{Kind: journal.Queued, Mono: int64(p.now()), Cause: "profile"})
		return r, nil
	}
	p.enterLocked(r)
	p.cfg.Metrics.decided(p.cfg.Name, time.Since(before))
	return r, nil
}

// resumableLocked tells from what a request is continued, and what there is of its answer.
func (p *Pool) resumableLocked(r *record) {
	r.model, r.from = p.resumesLocked(r.class, r.call)
	r.resumable = r.from != fromNothing
	p.restoreLocked(r)
}

// enterLocked gives a request to the core.
func (p *Pool) enterLocked(r *record) {
	tenant := p.tenantLocked(r.call.Tenant)
	p.pledgeLocked(r)
	slot := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.gens[slot]++
	r.id = admission.MakeID(p.gens[slot], slot)
	p.records[slot] = r
	p.resumableLocked(r)
	ev := r.shape()
	r.whole = ev.Flags&admission.FlagWhole != 0
	if p.core.shadow != nil {
		// The shadow knows what could be; but nothing is ended, so nothing is asked for
		// that it would take to go on.
		r.model, r.from, r.resumable, r.kept, r.collected = "", fromNothing, false, nil, nil
	}
	r.mind = p.core
	r.mind.live++
	r.barred = p.barredLocked(r)
	ev.ID, ev.Tenant, ev.Session, ev.Barred = r.id, tenant, p.numberLocked(r), r.barred
	ev.Engine, ev.Cached = p.homeLocked(r)
	if r.call.Kept != nil {
		ev.Flags |= admission.FlagBegun
	}
	p.stepLocked(r.mind, &ev)
}

// sequenceLocked is what one of a request's sequences is priced with of its prompt
// tokens. Sequences share nothing that is sure, so each of a completion has a
// prompt. The inputs of embeddings have one sequence's slot between them, and at
// most what the longest sequence takes: an engine works them off as it finds room,
// and lets go of each at once.
func (p *Pool) sequenceLocked(req *wire.Request, tokens int) int32 {
	switch {
	case req.API.Generates():
		tokens /= req.Prompts
	case req.Prompts > 1:
		for i := range p.engines {
			model, _ := p.upstreamLocked(i, req.Model)
			if most, _ := longest(&p.engines[i].caps, model); most > 1 {
				tokens = min(tokens, most-1)
			}
		}
	}
	return int32(min(max(tokens, 1), 1<<30))
}

// turnAwayLocked refuses a request that the core never hears of.
func (p *Pool) turnAwayLocked(r *record, why admission.Cause, err *wire.Error) *wire.Error {
	p.logLocked(r, &journal.Event{Kind: journal.Rejected, Mono: int64(p.now()), Cause: why.String()})
	p.cfg.Metrics.refused(p.cfg.Name, r.call.Class, why.String())
	return err
}

// loadingLocked tells that an engine is there and will take work once it has
// loaded its model.
func (p *Pool) loadingLocked() bool {
	return slices.ContainsFunc(p.engines, func(s engineState) bool { return s.state == admission.Loading })
}

func (p *Pool) leave(r *record) {
	r.meter.settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.honourLocked(r)
	if r.mind != nil {
		if r.mind.live--; r.mind.live == 0 && r.mind != p.core {
			p.forgetLocked()
		}
	}
	if p.drain && p.active == 0 {
		closeOnce(p.idle)
	}
}

// await returns nil once the request is admitted, and the error to tell when it
// is refused or its client has left.
func (p *Pool) await(ctx context.Context, r *record, sink Sink) *wire.Error {
	left := ctx.Done()
	// A request that runs again may have a client that has seen a part of a
	// stream; one that has seen nothing can still be told a status.
	var silent <-chan time.Time
	if p.live().Keepalive > 0 && r.call.Request.Stream && sink.Started() {
		tick := time.NewTicker(p.live().Keepalive)
		defer tick.Stop()
		silent = tick.C
	}
	for {
		p.mu.Lock()
		now, end := r.stage, r.end
		p.mu.Unlock()
		switch {
		case now == stageAdmitted:
			return nil
		case now == stageOver && end.Op == admission.Reject:
			p.cfg.Metrics.refused(p.cfg.Name, r.call.Class, end.Cause.String())
			return p.refusal(r, &end)
		case now == stageOver:
			p.log(r, &journal.Event{Kind: journal.Finished, Cause: end.Cause.String(), Status: wire.StatusClientClosed})
			p.cfg.Metrics.finished(p.cfg.Name, r.call.Class, end.Cause.String(), time.Since(r.call.Arrived))
			return wire.ClientClosed()
		}
		gone := false
		select {
		case <-r.wake:
		case <-silent:
			gone = sink.KeepAlive() != nil
		case <-left:
			left, gone = nil, true
		}
		if gone {
			p.cancel(r)
		}
	}
}

// cancel takes a request that waits out, because its client is gone.
func (p *Pool) cancel(r *record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.plan.outside {
		p.dismissLocked(r, admission.Effect{Op: admission.Done, Cause: admission.CauseClientGone})
	} else if r.mind != nil {
		p.stepLocked(r.mind, &admission.Event{Kind: admission.Cancel, ID: r.id})
	}
}

func (p *Pool) log(r *record, e *journal.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.Mono = int64(p.now())
	p.logLocked(r, e)
}

// refusal tells a client why the core refused its request.
func (p *Pool) refusal(r *record, e *admission.Effect) *wire.Error {
	class, retry := r.call.Class, time.Duration(e.Retry)
	want, allowed := int(e.Tokens), int(e.Limit)
	switch e.Cause {
	case admission.CauseContext:
		return wire.ContextLengthExceeded(want, max(allowed, p.widest()))
	case admission.CauseTooLarge:
		return wire.ExceedsCapacity("KV tokens", want, allowed)
	case admission.CauseTooMany:
		return wire.ExceedsCapacity("slots (sequences at once)", want, allowed)
	case admission.CauseQueueFull:
		return wire.QueueFull(class, want, allowed, retry)
	case admission.CauseTenantFull:
		return wire.TenantQueueFull(class, want, allowed, retry)
	case admission.CauseQueueWait:
		return wire.QueueTimeout(class, time.Since(r.call.Arrived).Round(time.Millisecond), retry)
	case admission.CauseForecast:
		return wire.WaitTooLong(class, time.Duration(want)*time.Millisecond, time.Duration(allowed)*time.Millisecond, retry)
	case admission.CauseUnavailable:
		p.mu.Lock()
		defer p.mu.Unlock()
		if err := p.unservedLocked(r); err != nil {
			return err
		}
		return wire.EngineUnavailable(retry)
	case admission.CauseDraining:
		return wire.Draining()
	}
	return wire.Internal()
}
