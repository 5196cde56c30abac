package admission

// Elsewhere is what other cores do on the engines that this one shares with them,
// summed over them, and as of when it was said. A share says what may be used. It
// does not say that a class is busy at another core, that a prompt of another core
// holds the engine up, or that nobody uses what is withheld. With that all cores
// judge by the same things as one that had all requests:
//
//   - a class is idle while nobody has anything of it, and what is known of its gaps,
//     its prompts and its demand that did not fit, is of all cores;
//   - the stall guard sees what waits elsewhere for a first token, and what is being
//     prefilled for others;
//   - a floor is what the others do not use of it, and a window's debt is of what all
//     of them use;
//   - nobody borrows while demand within a floor waits elsewhere;
//   - nothing is ended for a request while the engine has room for it that this core
//     need only ask for.
//
// It comes late, and may be of a moment that is past. Nothing is unsafe then: what is
// admitted goes by the share. Once the share's lease is over it counts no more: nobody
// says then what others do.
type Elsewhere struct {
	Engines []EngineElsewhere // by the table's index; those that are missing are zero
	Classes []ClassElsewhere
}

// EngineElsewhere is an engine of which others have shares.
type EngineElsewhere struct {
	Used    Amount // by the others
	Foreign Amount // by work that no core has sent
	Idle    Amount // what nobody uses, of all shares
	// Ends are what is predicted to end by itself next, of all cores.
	Ends  []Ending
	Speed Speed // as others have learned it
}

// Speed is how fast an engine works.
type Speed struct {
	Prefills []Prefill // the fastest of each size, by the bits of its tokens
	Tokens   [8]Time   // per token of output, by the bits of how many ran; 0 is unknown
}

// Prefill is a prompt and how long the engine computed it.
type Prefill struct {
	Tokens int32
	Took   Time
}

// Ending is when something is predicted to end, and what it frees.
type Ending struct {
	At     Time
	Amount Amount
}

// ClassElsewhere is a class at the other cores.
type ClassElsewhere struct {
	Used Amount
	// Protected is what of the floor is theirs.
	Protected Amount
	Waiting   int
	// Within: one of them waits for capacity within the floor.
	Within bool
	// Wants: one of them waits for capacity.
	Wants bool
	// InTime: one of them waits for capacity and can be in time.
	InTime bool
	// Recalled: some of what they had lent when its lending closed is out.
	Recalled bool
	// Offered counts requests since ever. A smaller number than before says nothing.
	Offered uint64
	// Prompt is the largest usual one, in tokens.
	Prompt int32
	// Pending is since when the oldest has been there that has no first token; 0:
	// there is none. Pressed is when demand last did not fit; 0: never.
	Pending, Pressed Time
	// Starting is since when the oldest has been there that an engine has, that has no
	// first token, and can be in time; 0: there is none.
	Starting Time
	Starts   []Starts // by engine
}

// Starts are requests that an engine has and that have no token yet.
type Starts struct {
	N      int
	Tokens int64 // of their prompts, that have to be computed
	Since  Time  // of the first
}

// askFor is how long a request waits to be given what nobody uses, before loans are
// ended for it: what was said to be idle may be gone.
const askFor = Time(100e6)

// knows tells whether the core has been told of others. One that has not is one whose
// driver does not tell, or that has just begun.
func (c *Core) knows() bool { return len(c.away.Classes) > 0 && !c.share.expired }

// stirs tells whether the others' cores have something new to know: somebody of a
// protected class has come to wait for a first token or no longer does, or something has
// started or has its first token.
func (c *Core) stirs() bool {
	s := &c.share
	pending, starts := c.waiting&c.guarded, 0
	for e := range c.engines {
		for _, i := range c.engines[e].starting {
			starts++
			pending |= bit(c.holds[i].class) & c.guarded
		}
	}
	news := pending != s.pending || starts != s.starts
	s.pending, s.starts = pending, starts
	return news
}

// atOthers is what is known of a class at other cores.
func (c *Core) atOthers(k Class) *ClassElsewhere {
	if c.knows() && int(k) < len(c.away.Classes) {
		return &c.away.Classes[k]
	}
	return &nothing
}

var nothing ClassElsewhere // read only

// at returns the starts on an engine.
func (o *ClassElsewhere) at(e Engine) (s Starts) {
	if int(e) < len(o.Starts) {
		s = o.Starts[e]
	}
	return s
}

// there tells whether others have anything of the class.
func (o *ClassElsewhere) there() bool { return o.Waiting > 0 || o.Used != (Amount{}) }

// running is how many sequences are on an engine, of all cores.
func (c *Core) running(en *engine) int64 {
	n := en.used[Slots]
	if c.knows() && int(en.id) < len(c.away.Engines) {
		n += c.away.Engines[en.id].Used[Slots]
	}
	return n
}

// prefills predicts for how long an engine computes starts of others.
func (t *timing) prefills(s Starts) Time {
	if s.N == 0 {
		return 0
	}
	return Time(s.N) * t.prefillTime(int32(s.Tokens/int64(s.N)))
}

// told takes over what is said of elsewhere.
func (c *Core) told(now *Elsewhere) {
	for k := range c.classes {
		c.accrue(&c.classes[k])
	}
	before := c.away
	c.away = Elsewhere{Engines: append([]EngineElsewhere(nil), now.Engines...), Classes: make([]ClassElsewhere, len(c.classes))}
	copy(c.away.Classes, now.Classes)
	for e := range c.away.Engines {
		if e < len(c.engines) {
			t := &c.engines[e].timing
			t.told.Tokens = c.away.Engines[e].Speed.Tokens
			t.told.Prefills = append(t.told.Prefills[:0], c.away.Engines[e].Speed.Prefills...)
		}
	}
	c.learned++
	for k := range c.away.Classes {
		o := &c.away.Classes[k]
		o.Starts = append([]Starts(nil), o.Starts...)
		was := &nothing
		if k < len(before.Classes) {
			was = &before.Classes[k]
		}
		c.learnElsewhere(Class(k), was, o)
	}
	c.relieve()
	c.setFloors()
	for k := range c.classes {
		c.expose(Class(k))
		c.absorb(Class(k))
		c.call(Class(k))
	}
	c.pump()
}

// relieve derives what of the withheld is not in use.
func (c *Core) relieve() {
	c.relief = Amount{}
	for e := range c.away.Engines {
		if en := &c.engines[e]; en.spec.Shared && en.counts && !c.share.expired {
			o := &c.away.Engines[e]
			c.relief = c.relief.add(en.foreign.sub(o.Used.add(o.Foreign)).max(Amount{}))
		}
	}
}

// learnElsewhere takes over what is new of one class.
func (c *Core) learnElsewhere(k Class, was, o *ClassElsewhere) {
	cl := &c.classes[k]
	if cl.theirs = c.atOthers(k).Used; cl.theirs != was.Used {
		cl.peak.set(c.now, cl.used.add(cl.theirs))
	}
	came := was.Offered != 0 && o.Offered > was.Offered
	switch {
	case (o.there() || came) && cl.idleSince != Never:
		c.rested(cl)
	case !o.there() && was.there():
		c.rest(k)
	}
	if came {
		n := Time(min(o.Offered-was.Offered, foremost))
		for range n {
			cl.comes.add((c.now - cl.came) / n)
		}
		cl.came = c.now
		c.learnPrompt(cl, o.Prompt)
		if !o.there() {
			c.rest(k)
		}
	}
	for e := range c.engines {
		en := &c.engines[e]
		s := o.at(Engine(e))
		if more := s.Tokens - was.at(Engine(e)).Tokens; more > 0 {
			c.stallFor(k, en, int32(more))
		}
		if s.N > 0 {
			for _, i := range en.starting {
				c.spoil(i)
			}
		}
	}
	if o.Pressed > cl.pressed {
		cl.pressed = o.Pressed
		if cl.open && o.Pressed > cl.opened && cl.spec.Window == 0 {
			c.shut(k)
			cl.lentUpTo = c.loanSeq
		}
	}
	if was.Recalled && !o.Recalled && !cl.open {
		c.wake(c.now)
	}
}

// calls tells whether a recall of the class goes on: what was lent when its lending
// closed is out, here or elsewhere.
func (c *Core) calls(cl *class) bool {
	return cl.recall.open || c.lentThen(cl) || c.atOthers(cl.id).Recalled
}

// lentThen tells whether a loan is out of those that were when the class was told that
// its lending closes elsewhere.
func (c *Core) lentThen(cl *class) bool {
	if cl.lentUpTo == 0 || cl.open {
		return false
	}
	for k := range c.classes {
		for i := c.classes[k].loanHead; i != none; i = c.holds[i].next {
			if c.holds[i].loanSeq <= cl.lentUpTo {
				return true
			}
		}
	}
	return false
}

// asks tells whether a request is to ask for what nobody uses of an engine, or will not
// while it can wait, rather than have loans ended for it.
func (c *Core) asks(en *engine, q *request, amount Amount) bool {
	if !en.spec.Shared || c.share.expired || int(en.id) >= len(c.away.Engines) {
		return false
	}
	o := &c.away.Engines[en.id]
	idle, until, patience := o.Idle, q.waits+askFor, c.patience(&c.classes[q.class], q, en)
	own := Of(en.spec.Slots, en.spec.KV).sub(en.used).sub(en.foreign).max(Amount{})
	if amount.within(own) {
		return false // it is for another reason that it waits
	}
	for i := 0; !amount.within(idle); i++ {
		if i == len(o.Ends) || o.Ends[i].At > patience {
			return false
		}
		idle, until = idle.add(o.Ends[i].Amount), max(until, o.Ends[i].At+askFor)
	}
	if until > c.now {
		c.wake(until)
	}
	return until > c.now
}

// asksAny is asks of any engine that could run the request.
func (c *Core) asksAny(cl *class, q *request) bool {
	if !c.share.on {
		return false
	}
	for e := range c.engines {
		if _, amount, ok := c.demand(cl, &c.engines[e], q); ok && c.asks(&c.engines[e], q, amount) {
			return true
		}
	}
	return false
}

// barred tells whether demand within a floor waits for a larger share, or at another
// core, or that of an earlier class than k waits there beyond it.
func (c *Core) barred(k Class) bool {
	if c.share.within != 0 {
		return true
	}
	for j := range c.classes {
		if o := c.atOthers(Class(j)); o.Within || o.Wants && Class(j) < k {
			return true
		}
	}
	return false
}
