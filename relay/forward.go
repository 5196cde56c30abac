package relay

import (
	"headgate/admission"
	"headgate/control"
	"headgate/journal"
)

// Short tells whether a call would have to wait for capacity here, or be refused for
// want of it, or have loans ended for it, and what it needs of each engine. It is false
// where other replicas could not help: they have the same engines. Nothing is changed
// by it. need is priced as an offer would be.
func (p *Pool) Short(call *Call) (need control.Need, short bool) {
	req := call.Request
	p.mu.Lock()
	defer p.mu.Unlock()
	class, ok := p.live().index[call.Class]
	if !ok || p.fleet == nil || p.drain || p.switches[SwitchDrain].On || p.core == nil || p.core.shadow != nil {
		return need, false
	}
	r := &record{call: call, class: class, prompt: p.sequenceLocked(req, p.price.Estimate(req.Model, req.Content))}
	if p.unservedLocked(r) != nil {
		return need, false
	}
	r.model, r.from = p.resumesLocked(class, call)
	ev := r.shape()
	ev.Barred = p.barredLocked(r)
	var amounts [admission.MaxEngines]admission.Amount
	chance, each := p.core.decider.(*admission.Core).Chance(p.now(), &ev, amounts[:0])
	if chance != admission.ChanceShort {
		return need, false
	}
	need.Class = call.Class
	for e, amount := range each {
		if amount != (admission.Amount{}) {
			need.Engines = append(need.Engines, control.EngineNeed{Engine: p.live().Engines[e].Name, Amount: amount})
		}
	}
	return need, true
}

// shape is what an offer of a request says of its size and manner.
func (r *record) shape() admission.Event {
	req := r.call.Request
	ev := admission.Event{
		Kind: admission.Offer, Class: r.class, Prompt: r.prompt, Out: admission.Undeclared, N: int32(min(max(req.N, 1), 1<<20)),
		First: r.call.TTFT, Token: r.call.TPOT,
	}
	if req.Declared {
		ev.Out = int32(min(req.MaxTokens, 1<<30))
	}
	if r.kept != nil {
		// To the engine it is a part of the prompt.
		before := int32(r.kept.Before())
		ev.Prompt += before
		if req.Declared {
			ev.Out = max(ev.Out-before, 1)
		}
	}
	// What a client of a stream has seen can't be taken back: the answer must be one
	// that can be continued. Of any other nothing is seen before its end.
	if req.Stream && r.from == fromNothing {
		ev.Flags |= admission.FlagWhole
	}
	if req.Content.Media > 0 || !req.API.Generates() {
		ev.Flags |= admission.FlagUnsplit
	}
	return ev
}

// Forwarded notes that a call, which this pool knows nothing else of, was sent on to
// another replica.
func (p *Pool) Forwarded(call *Call, to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Journal == nil {
		return
	}
	e := &journal.Event{Kind: journal.Forwarded, Mono: int64(p.now()), Peer: to, Declared: call.Request.Declared}
	p.describe(&record{call: call}, e)
	p.cfg.Journal.Append(e)
}
