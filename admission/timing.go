package admission

import "math/bits"

// timing is what a core has learned of how fast an engine works. Everything
// that looks ahead asks it: the stall guard how long a prompt holds up the
// others, a recall whether a loan is about to end, a forecast when a place will
// be free.
//
// A prefill's time is learned from starts that had it to themselves: no other
// hold on the engine was between its admission and its first token meanwhile.
// What such a start still waited for, the rest of a step, is noise that only
// adds, so the smallest of the last few counts. Prompts of one size, to a power
// of two, are kept apart, since a small one pays for the step and a large one
// for its tokens.
//
// While no start has been alone, several that were computed together tell (see spell).
//
// Alternatives: a straight line through all samples lets the many small prompts
// decide what the few large ones cost; an average believes the noise, and a
// guard that believes it closes the gate, after which nothing corrects it.
type timing struct {
	prefill [32]recent // by the bits of the prompt's length
	spells  recent     // of several prefills each
	perTok  [8]Time    // ns per token of output, by the bits of how many ran; 0 is unknown
	told    Speed      // what other cores have learned of the engine
}

// recent keeps the last few prefills of one size.
type recent struct {
	took   [8]Time // 0 is none
	tokens [8]int32
	at     uint8
}

func (r *recent) add(took Time, tokens int32) {
	r.took[r.at], r.tokens[r.at] = max(took, 1), tokens
	r.at = (r.at + 1) % uint8(len(r.took))
}

func (r *recent) forget(took Time, tokens int32) {
	for i := range r.took {
		if r.took[i] == max(took, 1) && r.tokens[i] == tokens {
			r.took[i], r.tokens[i] = 0, 0
		}
	}
}

// least returns the prefill that was the fastest for its tokens, and whether
// there is one.
func (r *recent) least() (took, tokens Time, ok bool) {
	for i, v := range r.took {
		if n := Time(r.tokens[i]); v != 0 && (!ok || v*tokens < took*n) {
			took, tokens, ok = v, n, true
		}
	}
	return took, tokens, ok
}

// prefillTime predicts for how long the engine computes a prompt of n tokens; 0
// while it knows of none. Of a size never seen it knows what a smaller one
// took, of which two steps were not for its tokens, or else a larger one.
func (t *timing) prefillTime(n int32) Time {
	n = max(n, 0)
	size := bits.Len32(uint32(max(n, 1)))
	if took, tokens, ok := t.least(size); ok {
		return took * Time(n) / tokens
	}
	for s := size - 1; s > 0; s-- {
		if took, tokens, ok := t.least(s); ok {
			steps := min(2*t.tokenTime(1), took/2)
			return (took-steps)*Time(n)/tokens + steps
		}
	}
	for s := size + 1; s < len(t.prefill); s++ {
		if took, tokens, ok := t.least(s); ok {
			return took * Time(n) / tokens
		}
	}
	if took, tokens, ok := t.spells.least(); ok && Time(n) <= mostBeyond*tokens {
		return took * Time(n) / tokens
	}
	return 0
}

// mostBeyond is how many times as large as all of a spell's prompts one may be for which that
// tells something: little ones pay for steps and not for tokens, and a guard that went by them
// would never see a large one.
const mostBeyond = 8

// least is the fastest prefill of a size, by its own starts and those of other cores.
func (t *timing) least(size int) (took, tokens Time, ok bool) {
	took, tokens, ok = t.prefill[size].least()
	for i := range t.told.Prefills {
		if p := &t.told.Prefills[i]; bits.Len32(uint32(p.Tokens)) == size && (!ok || p.Took*tokens < took*Time(p.Tokens)) {
			took, tokens, ok = p.Took, Time(p.Tokens), true
		}
	}
	return took, tokens, ok
}

// speed appends to s's memory what has been learned.
func (t *timing) speed(s Speed) Speed {
	s.Prefills = s.Prefills[:0]
	for size := range t.prefill {
		if took, tokens, ok := t.prefill[size].least(); ok {
			s.Prefills = append(s.Prefills, Prefill{int32(tokens), took})
		}
	}
	s.Tokens = t.perTok
	return s
}

// paced is the learned time per token with so many sequences, by the bits of their
// number.
func (t *timing) paced(size int) Time {
	if v := t.perTok[size]; v != 0 {
		return v
	}
	return t.told.Tokens[size]
}

// tokenTime predicts the time per output token with n sequences running; 0
// while too little is known. More sequences are never faster than fewer.
func (t *timing) tokenTime(n int64) Time {
	size := min(bits.Len64(uint64(max(n, 1))), len(t.perTok)-1)
	for s := size; s > 0; s-- {
		if v := t.paced(s); v != 0 {
			return v
		}
	}
	for s := size + 1; s < len(t.perTok); s++ {
		if v := t.paced(s); v != 0 {
			return v
		}
	}
	return 0
}

// work is how many tokens an engine has to prefill for a request.
func (q *request) work(en *engine) int32 {
	if q.home == en.id {
		return q.prompt + q.kept - q.cached
	}
	return q.prompt + q.kept
}

// tokenTime is the time per output token at present, and while that is unknown
// one that is on the slow side.
func (c *Core) tokenTime(en *engine) Time {
	if t := en.timing.tokenTime(c.running(en)); t != 0 {
		return t
	}
	return defaultPerToken
}

// starts notes that a hold was admitted, and that it has no token yet.
func (c *Core) starts(i int32) {
	h := &c.holds[i]
	en := &c.engines[h.engine]
	h.alone = len(en.starting) == 0
	for k := range c.away.Classes {
		h.alone = h.alone && c.atOthers(Class(k)).at(en.id).N == 0
	}
	c.joins(h)
	for _, j := range en.starting {
		c.holds[j].alone = false
	}
	en.starting = append(en.starting, i)
	h.starting = true
}

// started notes that a hold has its first token, or is over without one.
func (c *Core) started(i int32) {
	h := &c.holds[i]
	if !h.starting {
		return
	}
	h.starting = false
	en := &c.engines[h.engine]
	kept := en.starting[:0]
	for _, j := range en.starting {
		if j != i {
			kept = append(kept, j)
		}
	}
	en.starting = kept
	en.spell.counts(h, en, c.now)
}

// learnStart learns from a hold's first token.
func (c *Core) learnStart(h *hold) {
	en := &c.engines[h.engine]
	cl := &c.classes[h.class]
	c.learned++
	en.lastFirst = c.now
	cl.firsts[cl.firstAt] = c.now - h.admitted
	cl.firstAt = (cl.firstAt + 1) % uint8(len(cl.firsts))
	if en.tells(h) {
		en.learnPrefill(h, h.cached)
	}
}

// leastComputed of a prompt is the part that has to be computed of it, one in so many tokens,
// for that to tell something of whole ones.
const leastComputed = 8

// tells tells whether it is known by a hold's first token how much of its prompt was
// computed. What was found in a cache may be known only when the answer is over, if ever. One
// that goes on surely found much, and would tell that a prefill takes nothing.
func (en *engine) tells(h *hold) bool { return h.counted || !h.again && !(en.spec.Caches && en.says) }

// learnCounted learns from the end of a hold of which the engine may say then how much of
// its prompt it found.
func (c *Core) learnCounted(h *hold, ev *Event) {
	en := &c.engines[h.engine]
	if !en.spec.Caches || h.counted {
		return
	}
	if ev.Cached > 0 && !en.says {
		en.says, en.timing.spells, en.spell.spoilt = true, recent{}, true
		if h.taught > 0 { // before it was known
			en.timing.prefill[bits.Len32(uint32(h.taught))].forget(h.prefilled(), h.taught)
		}
	}
	if !en.says || h.first == 0 {
		return
	}
	cached := min(ev.Cached, h.prompt)
	if h.piece > 0 {
		// Of a piece the gateway has its own count, in tokens as it estimates them; what it
		// found of a beginning that others had is not in that.
		if cached = h.cached; cached == 0 && ev.Cached > 0 {
			return
		}
	}
	said := ev.Cached > 0 || ev.Cause == CauseFinished && !h.again
	if en.judge(h, cached, said) {
		c.learned++
	}
	// What is not said may have been anything: it is believed if a prefill is slower then.
	if said || !h.again && h.prefilled() > en.timing.prefillTime(h.prompt-cached) {
		en.learnPrefill(h, cached)
		c.learned++
	}
}

// prefilled is what a hold took to its first token.
func (h *hold) prefilled() Time { return h.first - max(h.admitted, h.scheduled) }

// learnPrefill learns what a prefill takes from a hold that began by itself. What little was
// computed of a prompt says nothing of whole ones.
func (en *engine) learnPrefill(h *hold, cached int32) {
	if work := h.prompt - cached; h.alone && work > 0 && int64(work)*leastComputed >= int64(h.prompt) {
		en.timing.prefill[bits.Len32(uint32(work))].add(h.prefilled(), work)
		h.taught = work
	}
}

const (
	maxPerToken   = Time(2e9)
	minPaceTokens = 8
)

// learnPace learns the engine's time per output token from a finished hold, of
// which it was seen how fast it went: an answer that was reported in one piece
// tells nothing.
func (c *Core) learnPace(en *engine, h *hold) {
	n := (h.out - h.firstOut) / h.n
	if h.first == 0 || n < minPaceTokens {
		return
	}
	each := min((c.now-h.first)/Time(n), maxPerToken)
	v := &en.timing.perTok[min(bits.Len64(uint64(c.running(en))), len(en.timing.perTok)-1)]
	if *v == 0 {
		*v = each
	} else {
		*v += (each - *v) / 8
	}
}

// ahead is for how long what is being prefilled still holds up all else on an
// engine, of the classes from the given one on. The engine computes one after the
// other, each at the earliest when the one before it was done.
func (c *Core) ahead(en *engine, from Class) Time {
	done := en.lastFirst
	for _, i := range en.starting {
		if h := &c.holds[i]; h.class >= from {
			done = max(done, h.admitted, h.scheduled) + en.timing.prefillTime(h.prompt-h.cached)
		}
	}
	for k := int(from); k < len(c.away.Classes); k++ {
		if s := c.atOthers(Class(k)).at(en.id); s.N > 0 {
			done = max(done, s.Since) + en.timing.prefills(s)
		}
	}
	return max(0, done-c.now)
}

// ends predicts when a hold will be over, Never while nothing is known. It needs
// what ahead says of its engine.
func (c *Core) ends(h *hold, ahead Time) Time {
	en := &c.engines[h.engine]
	each := en.timing.tokenTime(c.running(en))
	if each == 0 {
		return Never
	}
	return c.now + ahead + Time(max(h.expect-h.out/h.n, 1))*each
}
