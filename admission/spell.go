package admission

// spell is a time in which an engine has something to prefill.
//
// Where all come several at a time nobody ever has a prefill to himself. But from when the
// first of a spell's prefills began to the last first token the engine computed them all, so
// their tokens tell what that took. Where prompts overlap without an end the first few do.
//
// An engine may compute two small prompts in the time of one, and what was still waited for is
// in it too, so this is believed only while nothing better is known (see timing).
type spell struct {
	seq     uint32
	began   Time  // with its first prefill
	last    Time  // its last first token
	holds   int   // that are part of it
	started int   // that have their first token
	prompts int64 // tokens of those, and what of them was computed
	tokens  int64
	untold  int  // holds of which the engine is to say how much it computed
	over    bool // nobody is left without a first token
	spoilt  bool // how long it took is not how long they took
}

const (
	leastTogether = 2 // one that is alone is learned from with less doubt
	leastStarted  = 4 // of a spell that is not over: at most about a fifth of the work is not counted
	mostSpell     = Time(1) << 38
	mostTokens    = 1 << 24 // the product of both is still a number
)

// joins makes a hold that was admitted part of its engine's spell.
func (c *Core) joins(h *hold) {
	en := &c.engines[h.engine]
	if len(en.starting) == 0 {
		if en.spell.untold > 0 {
			en.judged = en.spell
		}
		en.spell = spell{seq: en.spell.seq + 1, began: Never, spoilt: !h.alone}
	}
	en.spell.holds++
	h.spell = en.spell.seq
}

// spoil notes of a hold without a token that the engine computed other things meanwhile.
func (c *Core) spoil(i int32) {
	h := &c.holds[i]
	h.alone, c.engines[h.engine].spell.spoilt = false, true
}

// counts takes a hold that has its first token, or never will, into its engine's spell.
func (s *spell) counts(h *hold, en *engine, now Time) {
	tells := en.tells(h)
	switch {
	case h.first == 0, h.piece > 0, h.again && !tells:
		s.spoilt = true
	case s.started > 0 && (h.scheduled-s.last)*8 > now-s.began:
		s.spoilt = true // the engine had nothing to compute in between
	}
	s.began, s.last = min(s.began, max(h.admitted, h.scheduled)), now
	s.started++
	s.prompts, s.tokens = s.prompts+int64(h.prompt), s.tokens+int64(h.prompt-h.cached)
	s.over = len(en.starting) == 0
	if tells {
		h.spell = 0
	} else {
		s.untold++
	}
	s.teach(&en.timing)
}

// judge takes in what an engine says in a hold's end of how much of its prompt it found;
// said: it does. It tells whether something was learned.
func (en *engine) judge(h *hold, cached int32, said bool) bool {
	s := &en.spell
	if h.spell != s.seq {
		s = &en.judged
	}
	if h.spell == 0 || h.spell != s.seq {
		return false
	}
	h.spell = 0
	s.untold--
	s.spoilt = s.spoilt || !said
	s.tokens -= int64(cached - h.cached)
	return s.teach(&en.timing)
}

// teach tells whether there is something to learn, and has it learned.
func (s *spell) teach(t *timing) bool {
	enough := s.over && s.holds >= leastTogether || s.started >= leastStarted
	took := s.last - s.began
	if s.spoilt || s.untold > 0 || !enough || s.tokens*leastComputed < s.prompts || s.tokens <= 0 || s.tokens > mostTokens || took > mostSpell {
		return false
	}
	t.spells.add(took, int32(s.tokens))
	return true
}
