package relay

import (
	"headgate/admission"
	"headgate/journal"
	"headgate/quota"
	"headgate/quota/keeper"
	"headgate/wire"
)

// A tenant's limits are asked once a call, before it is offered to the core, live ones and
// items of batches alike, and settled once, when the call leaves the pool. What an answer has come to
// is the attempts' to say, and the last one's word counts: the prompt once, and the output
// that the answer has. What an attempt has produced that another begins anew is nobody's.
//
// A call that the engine or the gateway has failed costs nothing of a balance unless its
// client has seen a part of the answer. One whose client has left costs what was made. An
// item of a batch, which goes on with what it had, costs all of it when it ends with an answer.

// Limited is what a tenant's limits have said of a call.
type Limited struct {
	quota.Told
	Dry uint8 // 1 << quota.Kind for each limit in dry run that would have refused it
}

// LimitSink is a Sink whose client is told its limits, before anything else.
type LimitSink interface {
	Limits(Limited)
}

// meter is what a call has reserved of its tenant's limits, and what it has come to.
// Methods of a nil one do nothing: the tenant has no limits.
type meter struct {
	hold   *keeper.Hold
	prompt int64 // tokens, estimated
	begun  bool
	kept   int64 // tokens of the output that an earlier call has made
	use    quota.Use
}

// reserveLocked reserves what a call may cost: the whole prompt, and as much output as
// admission reserves before it knows better.
func (p *Pool) reserveLocked(r *record, prompt int) *wire.Error {
	req := r.call.Request
	ask := quota.Ask{Prompt: int64(prompt), Dry: p.core.shadow != nil}
	if req.API.Generates() {
		c := &p.table.Classes[r.class]
		out := c.DefaultOut
		if req.Declared {
			out = int32(min(req.MaxTokens, 1<<30))
		}
		if c.MaxOut > 0 {
			out = min(out, c.MaxOut)
		}
		ask.Output = int64(out) * int64(max(req.N, 1)) * int64(max(req.Prompts, 1))
	}
	hold, answer := p.cfg.Limits.Reserve(r.call.Tenant, ask)
	if hold == nil && !answer.Refused {
		return nil
	}
	r.call.limited = &Limited{answer.Told, answer.Dry}
	for k := quota.Requests; k <= quota.Balance; k++ {
		if answer.Dry&(1<<k) != 0 {
			p.logLocked(r, &journal.Event{Kind: journal.Limited, Mono: int64(p.now()), Cause: "limit_" + k.String(), Shadow: true})
		}
	}
	if answer.Refused {
		cause := "limit_" + answer.By.String()
		p.logLocked(r, &journal.Event{Kind: journal.Rejected, Mono: int64(p.now()), Cause: cause})
		p.cfg.Metrics.refused(p.cfg.Name, r.call.Class, cause)
		return overLimit(&answer)
	}
	r.meter = &meter{hold: hold, prompt: ask.Prompt}
	return nil
}

// overLimit tells a client which limit of its tenant's it is at.
func overLimit(a *quota.Answer) *wire.Error {
	switch {
	case a.By == quota.Balance:
		return wire.BalanceExhausted(a.Want, a.Left)
	case a.Never:
		return wire.ExceedsLimit(a.Want, a.Rate.Burst)
	}
	whose := "the tenant's"
	if a.Together {
		whose = "the other tenants'"
	}
	return wire.RateLimited(whose, a.By.String(), a.Rate.N, a.Rate.Window, a.Want, a.Left, a.Retry)
}

// progress charges what an attempt has come to so far.
func (m *meter) progress(a *attempt) {
	if m == nil || a.piece() {
		return
	}
	m.begin(a)
	m.hold.Progress(m.prompted(a), int64(a.before+a.out)-m.kept)
}

// begin notes at the first attempt what an earlier call has left to it.
func (m *meter) begin(a *attempt) {
	if !m.begun && a.call.Kept != nil {
		m.kept = int64(a.before)
	}
	m.begun = true
}

// prompted is the call's prompt in tokens. That of an attempt that goes on has the answer
// so far in it.
func (m *meter) prompted(a *attempt) int64 {
	if a.prompt > 0 {
		return int64(max(a.prompt-a.before, 0))
	}
	return m.prompt
}

// ended takes what an attempt has come to, as the last word until there is another.
func (m *meter) ended(a *attempt) {
	if m == nil || a.piece() {
		return
	}
	finished, left := a.cause == admission.CauseFinished, a.cause == admission.CauseClientGone
	// A prompt of which the client did not wait for the end was being computed.
	computing := left && !a.dispatched.IsZero() && a.flags&admission.FlagUntouched == 0
	if !finished && !computing && a.out == 0 && a.prompt == 0 && a.before == 0 {
		return // the engine did nothing for it
	}
	m.begin(a)
	seen := left || a.flags&admission.FlagDelivered != 0
	m.use = quota.Use{
		Began: true, Prompt: m.prompted(a), Output: int64(a.before + a.out), Kept: m.kept,
		Free: !finished && (!seen || a.call.Checkpoint != nil),
	}
}

func (m *meter) settle() {
	if m != nil {
		m.hold.Settle(m.use)
	}
}

// tellLimits shows a call's client its limits, if it is one that can be shown them.
func (c *Call) tellLimits(sink Sink) {
	if s, ok := sink.(LimitSink); ok && c.limited != nil {
		s.Limits(*c.limited)
	}
}
