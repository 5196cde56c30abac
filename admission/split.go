package admission

// Where an engine caches prefixes, a prefill that is too long for the stall guard
// is split from outside: the beginning of the prompt is sent as a request of its
// own, for one token, whose cost is thrown away and whose KV stays in the cache;
// then a little more; and in the end the request itself, of which only the rest
// is left to compute. Each piece is a start like any other: it fits the two
// conditions and what the protected classes can bear, and holds what it uses.
// Between two pieces the request waits in its place, so that whoever is protected
// goes first.
//
// What it costs is a step and a token for each piece, and the pieces that the
// cache has lost by the time they are needed. A piece that fails does not fail the
// request, which then starts whole.
//
// Alternatives: the engine's own chunked prefill has no gap between the chunks
// that a returning request could use to go first, and one size for everybody.

// pieces is into how many parts a piece is made smaller, at most, until the guard
// lets it start.
const pieces = 4

// minPiece is the smallest piece, in blocks, that is worth a step.
const minPiece = 4

// splittable tells whether an engine can compute a request's prompt in pieces.
func (q *request) splittable(en *engine) bool { return en.spec.Splits && q.n == 1 && !q.unsplit }

// splits tells whether an engine could compute a beginning of a request's prompt
// within a time.
func (q *request) splits(en *engine, within Time) bool {
	if !q.splittable(en) {
		return false
	}
	work := q.work(en)
	for n := work / 2; n >= int32(minPiece*en.spec.Block) && n > work>>pieces; n /= 2 {
		if en.timing.prefillTime(n) <= within {
			return true
		}
	}
	return false
}

// split starts the next piece of the prompt of a request that the guard refuses,
// and reports whether it did.
func (c *Core) split(k Class, slot int32, borrow bool) bool {
	cl, q := &c.classes[k], &c.requests[slot]
	for e := range c.engines {
		en := &c.engines[e]
		if !q.splittable(en) {
			continue
		}
		f, ok := c.piece(cl, en, q)
		if !ok || f.loan && !(borrow && c.mayBorrow(k)) {
			continue
		}
		c.unqueue(slot)
		c.admit(slot, &f)
		return true
	}
	return false
}

// piece finds the largest piece of a prompt that an engine may start now.
func (c *Core) piece(cl *class, en *engine, q *request) (fitting, bool) {
	work := q.work(en)
	done := q.prompt + q.kept - work
	for n := work / 2; n >= int32(minPiece*en.spec.Block) && n > work>>pieces; n /= 2 {
		p := *q
		p.prompt, p.kept, p.out, p.declared = done+n-n%int32(en.spec.Block), 0, 1, true
		p.cached, p.home = done, en.id
		if f, ok := c.fitOn(cl, en, &p); ok && f.ok {
			f.piece = p.prompt
			return f, true
		}
	}
	return fitting{}, false
}
