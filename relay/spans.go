package relay

import (
	"time"

	"headgate/admission"
	"headgate/telemetry/tracing"
	"headgate/wire"
)

// What a pool adds to the trace of a request: a span of each of its waits, and one
// of each of its attempts, which is what the engine's own span is below. Keys that
// OpenTelemetry's conventions for generative AI have are theirs.

// operations are the conventions' names; a request has no others by now.
var operations = map[wire.API]string{wire.Chat: "chat", wire.Completions: "text_completion", wire.Embeddings: "embeddings"}

// traceWait begins the span of a wait.
func (p *Pool) traceWait(r *record) *tracing.Span {
	if r.call.Span == nil {
		return nil
	}
	from := r.call.Arrived
	if r.attempts > 0 {
		from = time.Now()
	} else {
		r.call.Span.Text("headgate.pool", p.cfg.Name)
		r.call.Span.Text("headgate.class", r.call.Class)
		r.call.Span.Text("gen_ai.operation.name", operations[r.call.Request.API])
	}
	return r.call.Span.Child(tracing.Internal, "headgate.queue", from)
}

// waitOver ends it. A request that was admitted at once has not waited.
func (p *Pool) waitOver(r *record, s *tracing.Span) {
	if s == nil {
		return
	}
	p.mu.Lock()
	waited, stage, end := r.waited, r.stage, r.end
	p.mu.Unlock()
	if !waited {
		return
	}
	if stage == stageOver {
		s.Text("headgate.cause", end.Cause.String())
	}
	s.Over(time.Now())
}

// trace begins the span of an attempt.
func (a *attempt) trace() {
	call := a.call
	if call.Span == nil {
		return
	}
	r, p := a.record, a.pool
	r.attempts++
	p.mu.Lock()
	kind := string(p.engines[a.admit.Engine].caps.Kind)
	known := p.matchLocked(call.Request.Model) > 0
	p.mu.Unlock()
	operation := operations[call.Request.API]
	name := operation
	if a.piece() {
		name = "headgate.warm"
	} else if known {
		name += " " + call.Request.Model
	}
	s := call.Span.Child(tracing.Client, name, time.Now())
	s.Text("gen_ai.operation.name", operation)
	s.Text("gen_ai.provider.name", kind)
	if known {
		s.Text("gen_ai.request.model", call.Request.Model)
	}
	s.Text("headgate.engine", a.engineName())
	s.Number("headgate.attempt", int64(r.attempts))
	s.Truth("headgate.loan", a.admit.Loan)
	if a.before > 0 {
		s.Number("headgate.continued_tokens", int64(a.before))
	}
	a.span = s
}

// traced ends it, once what has become of the attempt is known; kept is what the next
// one goes on from.
func (a *attempt) traced(now time.Time) {
	s := a.span
	if s == nil {
		return
	}
	a.span = nil
	switch {
	case a.timing != nil && a.timing.Queue >= 0:
		s.Event("headgate.scheduled", a.dispatched.Add(a.timing.Queue))
	case !a.began.IsZero() && a.out > 0:
		s.Event("headgate.scheduled", a.began)
	}
	if !a.first.IsZero() {
		s.Event("headgate.first_token", a.first)
	}
	if a.prompt > 0 {
		s.Number("gen_ai.usage.input_tokens", int64(a.prompt))
	}
	if a.cached > 0 {
		s.Number("gen_ai.usage.cache_read.input_tokens", int64(a.cached))
	}
	s.Number("gen_ai.usage.output_tokens", int64(a.out))
	s.Text("headgate.cause", a.cause.String())
	switch a.cause {
	case admission.CauseReclaimed:
		s.Text("headgate.reclaimed_for", a.reclaim)
		s.Number("headgate.recall", int64(a.recalled))
		kept := int64(0)
		if a.record.kept != nil {
			kept = int64(a.record.kept.Before())
		}
		s.Number("headgate.kept_tokens", kept)
	case admission.CauseFailed, admission.CauseUnreachable, admission.CauseTimeout:
		s.Text("error.type", a.cause.String())
		s.Fail()
	}
	s.Over(now)
}
