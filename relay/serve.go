package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
	"headgate/wire"
)

// Serve carries one call through the pool. It returns when the client has its
// whole answer (nil), or with the error that it is to be told: by the caller,
// in the place of an answer if the sink has not started, at its end otherwise.
func (p *Pool) Serve(ctx context.Context, call *Call, sink Sink) *wire.Error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.killCtx, func() { cancel(errShutdown) })()

	r, refused := p.offer(call)
	if refused != nil {
		return refused
	}
	defer p.leave()
	for {
		if over := p.await(ctx, r); over != nil {
			return over
		}
		a := attempt{pool: p, record: r, sink: sink, call: call}
		if !a.carry(ctx) {
			p.finished(&a)
			return a.err
		}
	}
}

// offer asks for admission.
func (p *Pool) offer(call *Call) (*record, *wire.Error) {
	req := call.Request
	class, ok := p.classes[call.Class]
	if !ok {
		return nil, wire.ClassNotPermitted(call.Class, p.cfg.Classes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.drain:
		return nil, wire.Draining()
	case p.core == nil:
		return nil, wire.EngineUnavailable(0)
	case len(p.free) == 0:
		return nil, wire.QueueFull(call.Class, p.cfg.Capacity, p.cfg.Capacity, 0)
	}
	tenant, ok := p.tenants[call.Tenant]
	if !ok {
		tenant = admission.Tenant(len(p.tenants))
		p.tenants[call.Tenant] = tenant
	}
	slot := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.gens[slot]++
	n := max(req.N, 1)
	r := &record{
		id: admission.MakeID(p.gens[slot], slot), class: class, call: call, wake: make(chan struct{}, 1),
		// Sequences share nothing that is sure, so each is priced with a prompt.
		prompt:  int32(min(max(p.price.Estimate(req.Model, req.Content)/req.Prompts, 1), 1<<30)),
		arrived: admission.Time(call.Arrived.Sub(p.cfg.Start)),
	}
	p.records[slot] = r
	out := int32(admission.Undeclared)
	if req.Declared {
		out = int32(min(req.MaxTokens, 1<<30))
	}
	p.active++
	line := journal.Event{Kind: journal.Arrived, Mono: int64(r.arrived), Declared: req.Declared}
	if p.servesLocked(req.Model) {
		line.Model = req.Model
	}
	if req.Declared {
		line.MaxTokens = int64(req.MaxTokens)
	}
	p.logLocked(r, &line)
	before := time.Now()
	p.stepLocked(&admission.Event{
		Kind: admission.Offer, ID: r.id, Class: class, Tenant: tenant, Prompt: r.prompt, Out: out, N: int32(min(n, 1<<20)),
	})
	p.cfg.Metrics.decided(p.cfg.Name, time.Since(before))
	return r, nil
}

func (p *Pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	if p.drain && p.active == 0 {
		closeOnce(p.idle)
	}
}

// await returns nil once the request is admitted, and the error to tell when it
// is refused or its client has left.
func (p *Pool) await(ctx context.Context, r *record) *wire.Error {
	left := ctx.Done()
	for {
		p.mu.Lock()
		now, end := r.stage, r.end
		p.mu.Unlock()
		switch now {
		case stageAdmitted:
			return nil
		case stageOver:
			if end.Op == admission.Reject {
				err := p.refusal(r, &end)
				p.cfg.Metrics.refused(p.cfg.Name, r.call.Class, end.Cause.String())
				return err
			}
			p.log(r, &journal.Event{Kind: journal.Finished, Cause: admission.CauseClientGone.String(), Status: wire.StatusClientClosed})
			p.cfg.Metrics.finished(p.cfg.Name, r.call.Class, admission.CauseClientGone.String(), time.Since(r.call.Arrived))
			if errors.Is(context.Cause(ctx), errShutdown) {
				return wire.Draining()
			}
			return wire.ClientClosed()
		}
		select {
		case <-r.wake:
		case <-left:
			left = nil
			p.step(&admission.Event{Kind: admission.Cancel, ID: r.id})
		}
	}
}

func (p *Pool) log(r *record, e *journal.Event) {
	if p.cfg.Journal == nil {
		return
	}
	e.Mono = int64(p.now())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logLocked(r, e)
}

// refusal tells a client why the core refused its request.
func (p *Pool) refusal(r *record, e *admission.Effect) *wire.Error {
	class, retry := r.call.Class, time.Duration(e.Retry)
	want, allowed := int(e.Tokens), int(e.Limit)
	switch e.Cause {
	case admission.CauseContext:
		return wire.ContextLengthExceeded(want, allowed)
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
	case admission.CauseUnavailable:
		return wire.EngineUnavailable(retry)
	case admission.CauseDraining:
		return wire.Draining()
	}
	return wire.Internal()
}

// attempt is one dispatch of a call, and how it went.
type attempt struct {
	pool   *Pool
	record *record
	call   *Call
	sink   Sink

	admit      admission.Effect
	dispatched time.Time
	first      time.Time // of the first token
	last       atomic.Int64
	writing    sync.Mutex // the sink's, against the keep-alive
	prompt     int        // tokens, as the engine counted; 0 until it has
	cached     int
	out        int // tokens
	told       int // of which the core knows
	timing     *engine.Timing
	finish     bool

	cause   admission.Cause
	flags   uint8
	err     *wire.Error
	confirm func(context.Context) engine.Confirmation // nil: nothing to confirm
}

// carry runs the attempt and reports its end, and whether the request is to run
// again. A panic is for the caller of Serve; the hold does not outlive it.
func (a *attempt) carry(ctx context.Context) (again bool) {
	ran := false
	defer func() {
		if ran {
			return
		}
		if a.confirm == nil {
			a.flags |= admission.FlagReleased
		}
		a.failed(wire.Internal())
		a.report()
		a.pool.finished(a)
	}()
	a.run(ctx)
	ran = true
	return a.report()
}

// run dispatches the request and passes on the answer. It fills in what report
// needs.
func (a *attempt) run(ctx context.Context) {
	p, r := a.pool, a.record
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.mu.Lock()
	a.admit = r.admit
	r.cancel = cancel
	if r.reclaimed {
		cancel(errReclaimed)
	}
	caps := &p.engines[a.admit.Engine].caps
	ordered, model := caps.Priority, upstreamModel(caps, a.call.Request.Model)
	p.mu.Unlock()
	if ctx.Err() != nil {
		a.flags = admission.FlagReleased
		a.interrupted(ctx, nil)
		return
	}
	a.sinkAdmitted()

	eng := &p.cfg.Engines[a.admit.Engine]
	req := a.call.Request
	// Upstream always streams, so that what an answer has come to is known while
	// it runs; except where several sequences make up one whole answer.
	stream := req.Stream || req.N <= 1
	proj := wire.Projection{Stream: stream, MaxTokens: int(a.admit.Limit)}
	if model != req.Model {
		proj.Model = model
	}
	if ordered {
		proj.HasPriority, proj.Priority = true, eng.Priority[r.class]
	}
	body, err := req.Project(nil, proj)
	if err != nil {
		a.flags = admission.FlagReleased
		a.failed(wire.Internal())
		p.cfg.Log.Error("projection failed", "request", a.call.ID, "err", err)
		return
	}
	a.dispatched = time.Now()
	p.log(r, &journal.Event{Kind: journal.Dispatched, Engine: eng.Name, Hold: uint64(a.admit.Hold), Loan: a.admit.Loan})
	stop := a.watch(ctx, cancel)
	defer stop()
	s, err := eng.Adapter.Dispatch(ctx, &engine.Attempt{
		API: req.API, Body: body, ID: fmt.Sprintf("%s-%x", a.call.ID, uint64(a.admit.Hold)), Stream: stream, N: req.N,
		Interruptible: a.admit.Loan,
	})
	if err != nil {
		a.undispatched(ctx, err)
		return
	}
	a.confirm = s.Abort
	a.relay(ctx, s, stream)
}

func (a *attempt) sinkAdmitted() {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.sink.Admitted(Decision{Queued: a.record.waited, Wait: time.Since(a.call.Arrived), Loan: a.admit.Loan})
}

// undispatched sorts out why a dispatch gave no stream.
func (a *attempt) undispatched(ctx context.Context, err error) {
	var status *engine.StatusError
	var unanswered *engine.Unanswered
	switch {
	case errors.As(err, &status):
		a.flags = admission.FlagReleased
		a.failed(wire.FromUpstream(status.Status, status.Body, status.Header))
	case errors.As(err, &unanswered):
		a.confirm = unanswered.Confirm
		a.interrupted(ctx, err)
	case ctx.Err() != nil:
		a.flags = admission.FlagReleased
		a.interrupted(ctx, err)
	default:
		a.flags = admission.FlagReleased | admission.FlagUntouched
		a.cause = admission.CauseUnreachable
		a.err = wire.EngineUnavailable(0)
		a.pool.cfg.Log.Warn("engine unreachable", "pool", a.pool.cfg.Name, "engine", a.pool.cfg.Engines[a.admit.Engine].Name, "request", a.call.ID, "err", err)
	}
}

// interrupted is the end of an attempt that the gateway gave up, or whose
// connection broke.
func (a *attempt) interrupted(ctx context.Context, err error) {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errReclaimed):
		a.cause = admission.CauseReclaimed
		a.err = wire.LoanEnded()
	case errors.Is(cause, errIdle):
		a.cause = admission.CauseTimeout
		a.err = wire.UpstreamTimeout(a.pool.cfg.IdleTimeout)
	case errors.Is(cause, errShutdown):
		a.cause = admission.CauseTimeout
		a.err = wire.Draining()
	case cause != nil || errors.Is(err, errClient):
		a.cause = admission.CauseClientGone
		a.err = wire.ClientClosed()
	case errors.Is(err, io.ErrUnexpectedEOF):
		a.failed(wire.UpstreamTorn())
	default:
		a.failed(wire.UpstreamError("the connection to the engine failed"))
		a.pool.cfg.Log.Warn("engine failed", "pool", a.pool.cfg.Name, "engine", a.pool.cfg.Engines[a.admit.Engine].Name, "request", a.call.ID, "err", err)
	}
}

func (a *attempt) failed(err *wire.Error) {
	a.cause, a.err = admission.CauseFailed, err
}

// errClient marks a failure to write to the client.
var errClient = errors.New("the client is gone")

// relay passes on the events of a stream.
func (a *attempt) relay(ctx context.Context, s engine.Stream, stream bool) {
	req := a.call.Request
	var whole *wire.Assembler
	if stream && !req.Stream {
		whole = wire.NewAssembler(req.API, a.pool.cfg.MaxAnswer)
	}
	for {
		d, err := s.Next()
		a.last.Store(int64(time.Since(a.pool.cfg.Start)))
		switch {
		case err == io.EOF:
			a.ended(whole)
			return
		case err != nil:
			a.interrupted(ctx, err)
			return
		case d.Err != nil:
			a.failed(d.Err)
			return
		}
		a.count(&d)
		switch {
		case !stream:
			err = a.answer(d.Data)
		case whole != nil:
			if len(d.Data) == 0 {
				continue
			}
			if err := whole.Add(d.Data); err != nil {
				a.failed(wire.UpstreamError("the engine's answer can't be read: %v", err))
				return
			}
		case d.UsageOnly && !req.IncludeUsage:
			// The gateway asked for it, the client did not.
		default:
			err = a.event(d.Raw)
		}
		if err != nil {
			a.interrupted(ctx, errors.Join(errClient, err))
			return
		}
	}
}

// ended is the clean end of an answer.
func (a *attempt) ended(whole *wire.Assembler) {
	a.confirm = nil
	a.flags |= admission.FlagReleased
	a.cause = admission.CauseFinished
	if whole == nil {
		return
	}
	body, err := whole.JSON()
	if err != nil {
		a.failed(wire.UpstreamError("the engine's answer can't be read: %v", err))
		return
	}
	if a.answer(body) != nil {
		// The engine has done its work; only the client has not got it.
		a.cause, a.err = admission.CauseClientGone, wire.ClientClosed()
	}
}

func (a *attempt) event(raw []byte) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.sink.Event(raw)
}

func (a *attempt) answer(body []byte) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.sink.Answer(body)
}

// progressEvery is the least number of tokens between two reports to the core,
// on engines of smaller blocks.
const progressEvery = 16

// count keeps the books of what an answer has come to.
func (a *attempt) count(d *engine.Delta) {
	if d.Timing != nil {
		a.timing = d.Timing
	}
	a.out += d.Tokens
	if d.HasUsage {
		a.prompt, a.cached = d.Usage.Prompt, d.Usage.Cached
		a.out = max(d.Usage.Completion, 0)
	}
	if a.out > 0 && a.first.IsZero() {
		a.first = time.Now()
		a.pool.log(a.record, &journal.Event{Kind: journal.FirstToken, Engine: a.engineName(), Hold: uint64(a.admit.Hold), OutputTokens: int64(a.out)})
		a.pool.cfg.Metrics.first(a.pool.cfg.Name, a.call.Class, a.first.Sub(a.call.Arrived))
	}
	if a.out > 0 && a.told == 0 || a.out >= a.told+progressEvery {
		a.told = a.out
		a.pool.step(&admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: int32(a.out)})
	}
}

func (a *attempt) engineName() string { return a.pool.cfg.Engines[a.admit.Engine].Name }

// watch ends an attempt whose engine is silent for too long, and keeps the
// client's stream alive meanwhile.
func (a *attempt) watch(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	p := a.pool
	a.last.Store(int64(a.dispatched.Sub(p.cfg.Start)))
	every := p.cfg.IdleTimeout
	alive := p.cfg.Keepalive > 0 && a.call.Request.Stream
	if alive {
		every = min(every, p.cfg.Keepalive)
	}
	var timer *time.Timer
	over := false // guarded by a.writing, so that nothing is written once stop has returned
	timer = time.AfterFunc(every, func() {
		a.writing.Lock()
		defer a.writing.Unlock()
		silent := time.Since(p.cfg.Start) - time.Duration(a.last.Load())
		switch {
		case over:
			return
		case silent >= p.cfg.IdleTimeout:
			cancel(errIdle)
			return
		}
		next := p.cfg.IdleTimeout - silent
		if alive {
			wait := p.cfg.Keepalive - silent
			if wait <= 0 {
				if a.sink.KeepAlive() != nil {
					cancel(errClient)
					return
				}
				wait = p.cfg.Keepalive
			}
			next = min(next, wait)
		}
		timer.Reset(next)
	})
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
	p, r := a.pool, a.record
	a.writing.Lock()
	if a.sink.Started() {
		a.flags |= admission.FlagDelivered
	}
	a.writing.Unlock()
	p.mu.Lock()
	r.cancel = nil
	if a.prompt > 0 {
		p.price.Observe(a.call.Request.Model, a.call.Request.Content, a.prompt)
		p.stepLocked(&admission.Event{Kind: admission.Progress, Hold: a.admit.Hold, Out: int32(a.out), Prompt: int32(a.prompt / a.call.Request.Prompts)})
	}
	p.stepLocked(&admission.Event{Kind: admission.Ended, Hold: a.admit.Hold, Out: int32(a.out), Flags: a.flags, Cause: a.cause})
	again = r.stage != stageOver
	now := int64(p.now())
	if !a.dispatched.IsZero() {
		p.logLocked(r, a.scheduled(now))
	}
	p.logLocked(r, &journal.Event{
		Kind: journal.Ended, Mono: now, Engine: a.engineName(), Hold: uint64(a.admit.Hold), Loan: a.admit.Loan, Cause: a.cause.String(),
		PromptTokens: int64(a.prompt), CachedTokens: int64(a.cached), OutputTokens: int64(a.out),
	})
	p.mu.Unlock()
	if a.flags&admission.FlagReleased == 0 {
		p.tasks.Add(1)
		go a.release()
	}
	return again
}

// scheduled says when the engine began to run the attempt: exactly if it told,
// else at some moment between the dispatch and the first token.
func (a *attempt) scheduled(now int64) *journal.Event {
	p := a.pool
	e := &journal.Event{Kind: journal.Scheduled, Mono: now, Engine: a.engineName(), Hold: uint64(a.admit.Hold)}
	e.ScheduledNS = int64(a.dispatched.Sub(p.cfg.Start))
	switch {
	case a.timing != nil && a.timing.Queue >= 0:
		e.ScheduledNS += int64(a.timing.Queue)
	case !a.first.IsZero():
		e.ScheduledUpperNS = int64(a.first.Sub(p.cfg.Start))
	default:
		// Nothing came: it may never have been.
		e.ScheduledUpperNS = now
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
	p.stepLocked(&admission.Event{Kind: admission.Released, Hold: a.admit.Hold})
	p.logLocked(a.record, &journal.Event{
		Kind: journal.Released, Mono: int64(p.now()), Engine: a.engineName(), Hold: uint64(a.admit.Hold), Cause: string(c.By),
	})
}

// finished writes down the end of a call.
func (p *Pool) finished(a *attempt) {
	status := 200
	if a.err != nil {
		status = a.err.Status
	}
	e := &journal.Event{
		Kind: journal.Finished, Cause: a.cause.String(), Status: status, Engine: a.engineName(), Hold: uint64(a.admit.Hold),
		PromptTokens: int64(a.prompt), CachedTokens: int64(a.cached), OutputTokens: int64(a.out),
	}
	p.log(a.record, e)
	p.cfg.Metrics.finished(p.cfg.Name, a.call.Class, a.cause.String(), time.Since(a.call.Arrived))
}
