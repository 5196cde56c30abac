package relay

import "time"

// prefills remembers how long an engine took from a dispatch to the first token,
// to tell what a prompt takes at the least. All noise (a wait in the engine's
// queue, the rest of a step, others' prompts) only adds to that, so the smallest
// of the recent ones that are comparable counts.
//
// The core has a better prediction of its own (admission's timing); this one may
// only be too small, so that an engine is never said to have begun with a request
// before it did.
type prefills struct {
	recent [64]prefill
	next   int
}

type prefill struct {
	tokens int // 0: none
	took   time.Duration
}

func (p *prefills) add(tokens int, took time.Duration) {
	p.recent[p.next] = prefill{tokens, took}
	p.next = (p.next + 1) % len(p.recent)
}

// least is what a prompt takes at the least, by those of half its size to all of
// it; 0 if there was none.
func (p *prefills) least(tokens int) time.Duration {
	var least time.Duration
	for _, s := range p.recent {
		if s.tokens > 0 && s.tokens <= tokens && 2*s.tokens >= tokens && (least == 0 || s.took < least) {
			least = s.took
		}
	}
	return least
}

// prefilled returns the estimate of what the attempt's prefill took at the least,
// and learns from it. Where the engine may have found some of a prompt in its
// cache and does not say how much, nothing is known.
func (a *attempt) prefilled() time.Duration {
	s := &a.pool.engines[a.admit.Engine]
	tokens := a.prompt - a.cached
	if tokens <= 0 || s.caps.PrefixCache && a.cached == 0 {
		return 0
	}
	least := s.prefills.least(tokens)
	s.prefills.add(tokens, a.first.Sub(a.dispatched))
	return least
}
