package config

import (
	"fmt"
	"math"
)

// Envelope is an amount of both resources in absolute numbers; 0 is not known
// yet where it is what a pool's engines hold.
type Envelope struct {
	Slots    int64 // sequences
	KVTokens int64 // tokens
}

func (e Envelope) String() string { return fmt.Sprintf("%d slots, %d KV tokens", e.Slots, e.KVTokens) }

// Capacity is one class's part of a pool in absolute numbers.
type Capacity struct {
	Class                            string
	Floor, Unlent, Ceiling, Headroom Envelope
}

// Envelope returns what the file says the pool's engines hold together; a
// resource that is left to any of them to say is 0.
func (p *Pool) Envelope() Envelope {
	var e Envelope
	slots, kv := true, true
	for _, g := range p.Engines {
		e.Slots += g.Slots
		e.KVTokens += g.KVTokens
		slots = slots && g.Slots > 0
		kv = kv && g.KVTokens > 0
	}
	if !slots {
		e.Slots = 0
	}
	if !kv {
		e.KVTokens = 0
	}
	return e
}

// Resolve turns the amounts of the pool's classes into numbers, in the order of
// the classes, once the engines have said what they hold. Problems are those
// that the numbers show, each with its place in the file; with any that is not
// a warning there are no capacities.
func (c *Config) Resolve(pool int, e Envelope) ([]Capacity, []Problem) {
	return c.Pools[pool].resolve(c.src, fmt.Sprintf("pools[%d].", pool), e)
}

// Resolve does the same with a policy that stands in a file of its own.
func (p *PolicyFile) Resolve(e Envelope) ([]Capacity, []Problem) { return p.resolve(p.src, "", e) }

func (p *Policy) resolve(src *source, at string, e Envelope) ([]Capacity, []Problem) {
	l := &list{src: src}
	p.check(at, e, l)
	sortProblems(l.problems)
	if Errors(l.problems) > 0 {
		return nil, l.problems
	}
	caps := make([]Capacity, len(p.Classes))
	for i := range p.Classes {
		caps[i] = p.Classes[i].resolve(e)
	}
	return caps, l.problems
}

// resolve returns the class's numbers out of e. What was given as a share of an
// unknown resource is 0.
func (c *Class) resolve(e Envelope) Capacity {
	r := Capacity{Class: c.Name, Ceiling: e}
	r.Floor.Slots = c.Floor.Slots.Of(e.Slots)
	if c.Floor.KVTokens.Given() {
		r.Floor.KVTokens = c.Floor.KVTokens.Of(e.KVTokens)
	} else {
		// Of the slots as they came out, so that floors that fit by slots fit.
		r.Floor.KVTokens = share(r.Floor.Slots, e.Slots, e.KVTokens)
	}
	r.Unlent.Slots = c.Unlent.Slots.Of(e.Slots)
	if c.Unlent.KVTokens.Given() {
		r.Unlent.KVTokens = c.Unlent.KVTokens.Of(e.KVTokens)
	} else {
		r.Unlent.KVTokens = share(r.Unlent.Slots, r.Floor.Slots, r.Floor.KVTokens)
	}
	if c.Ceiling.Slots.Given() {
		r.Ceiling.Slots = c.Ceiling.Slots.Of(e.Slots)
	}
	if c.Ceiling.KVTokens.Given() {
		r.Ceiling.KVTokens = c.Ceiling.KVTokens.Of(e.KVTokens)
	}
	r.Headroom = Envelope{c.Headroom.Slots.Of(e.Slots), c.Headroom.KVTokens.Of(e.KVTokens)}
	return r
}

// share returns part/whole of amount, rounded down. The bounds of Validate keep
// the product within 64 bits.
func share(part, whole, amount int64) int64 {
	if whole == 0 {
		return 0
	}
	return amount * part / whole
}

// resource selects one of the two, so that a rule is written once.
type resource struct {
	name  string // its key
	of    func(Envelope) int64
	given func(Amount) Quantity
}

var resources = [...]resource{
	{"slots", func(e Envelope) int64 { return e.Slots }, func(a Amount) Quantity { return a.Slots }},
	{"kv_tokens", func(e Envelope) int64 { return e.KVTokens }, func(a Amount) Quantity { return a.KVTokens }},
}

// check applies unlent <= floor <= ceiling <= envelope to every class and the
// envelope to the sum of the floors, as far as e is known: of an unknown
// resource, percentages are compared with percentages and numbers with numbers.
// What is owed at every moment and what is owed over a window are two sums, since
// the second comes out of the first while it is due.
func (p *Policy) check(at string, e Envelope, l *list) {
	for _, r := range resources {
		for i := range p.Classes {
			p.Classes[i].check(fmt.Sprintf("%sclasses[%d]", at, i), r, e, l)
		}
		for _, guarantee := range []string{GuaranteeInstant, GuaranteeWindow} {
			p.sum(at+"classes", guarantee, r, e, l)
		}
	}
}

// sum checks the sum of the floors with one guarantee.
func (p *Policy) sum(at, guarantee string, r resource, e Envelope, l *list) {
	var sum int64
	percents := 0.0
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Guarantee == guarantee {
			sum += r.of(c.resolve(e).Floor)
			percents += r.given(c.Floor).share
		}
	}
	together := "together"
	if guarantee == GuaranteeWindow {
		together = "with guarantee: window together"
	}
	switch all := r.of(e); {
	case all > 0 && sum > all:
		l.bad(at, fmt.Sprintf("floors of %d %s %s", sum, r.name, together), fmt.Sprintf("at most the envelope of %d", all))
	case all == 0 && percents > 100+1e-9:
		l.bad(at, fmt.Sprintf("floors of %g%% of the %s %s", percents, r.name, together), "at most 100%")
	}
}

func (c *Class) check(at string, r resource, e Envelope, l *list) {
	floor, unlent, ceiling, headroom := r.given(c.Floor), r.given(c.Unlent), r.given(c.Ceiling), r.given(c.Headroom)
	known := r.of(e) > 0
	if !known {
		// Stand-ins under which like quantities compare as themselves.
		stand := int64(math.MaxInt64)
		percents, numbers := false, false
		for _, q := range []Quantity{floor, unlent, ceiling} {
			percents = percents || q.percent
			numbers = numbers || q.given && !q.percent && q.n > 0
		}
		if percents && numbers || c.derives(r) {
			return
		}
		if percents {
			stand = 1e9
		}
		e = Envelope{stand, stand}
	}
	got := c.resolve(e)
	limit := func(key string, q Quantity, value, most int64, what string, of Quantity) {
		if q.given && value > most {
			l.bad(at+"."+key+"."+r.name, inWords(q, value, known), "at most "+what+inWords(of, most, known))
		}
	}
	whole := "the envelope of "
	limit("ceiling", ceiling, r.of(got.Ceiling), r.of(e), whole, Number(r.of(e)))
	if ceiling.given {
		if r.of(got.Ceiling) == 0 {
			l.bad(at+".ceiling."+r.name, inWords(ceiling, 0, known), "at least 1, or the class could never run")
		}
		limit("floor", floor, r.of(got.Floor), r.of(got.Ceiling), "the class's ceiling of ", ceiling)
	} else {
		limit("floor", floor, r.of(got.Floor), r.of(e), whole, Number(r.of(e)))
	}
	limit("unlent", unlent, r.of(got.Unlent), r.of(got.Floor), "the class's floor of ", floor)
	limit("headroom", headroom, r.of(got.Headroom), r.of(e), whole, Number(r.of(e)))
	if !floor.given && ceiling.given && r.of(got.Floor) > r.of(got.Ceiling) {
		l.bad(at+".ceiling."+r.name, inWords(ceiling, r.of(got.Ceiling), known),
			fmt.Sprintf("at least the class's floor of %d, its share by slots", r.of(got.Floor)))
	}
	if known && r.name == "kv_tokens" && !floor.given && got.Floor.Slots > 0 {
		c.holdsOne(at, got.Floor.KVTokens, l)
	}
	if known && floor.percent && floor.share > 0 && r.of(got.Floor) == 0 {
		l.warn(at+".floor."+r.name, fmt.Sprintf("%s of %d %s is less than one: the class has no floor", floor, r.of(e), r.name))
	}
}

// holdsOne warns of a KV floor that came with the slots and is too small for one
// request that declares no limit: each would have to borrow.
func (c *Class) holdsOne(at string, kv int64, l *list) {
	output := c.reserved()
	if kv <= int64(output) {
		l.warn(at+".floor", fmt.Sprintf("the KV that comes with the floor's slots is %d tokens, which does not hold one request of %d tokens of output and its prompt: give kv_tokens",
			kv, output))
	}
}

// derives tells whether the class's amounts of r follow from its slots.
func (c *Class) derives(r resource) bool {
	return r.name == "kv_tokens" && (c.Floor.Slots.given && !c.Floor.KVTokens.given || c.Unlent.Slots.given && !c.Unlent.KVTokens.given)
}

// inWords shows a percentage with the number that it comes to.
func inWords(q Quantity, n int64, known bool) string {
	switch {
	case q.percent && known:
		return fmt.Sprintf("%s (%d)", q, n)
	case q.percent:
		return q.String()
	}
	return fmt.Sprint(n)
}
