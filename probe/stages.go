package probe

import (
	"context"
	"fmt"
	"slices"
	"time"

	"headgate/engine"
	"headgate/simengine"
)

// small is a prompt of next to nothing, in tokens.
const small = 16

// patience bounds the wait for one thing to happen; the probe's own time bounds them
// all together.
const patience = 2 * time.Minute

// longest is the longest sequence that is surely taken, or a guess.
func (p *prober) longest() int {
	if p.context > 0 {
		return p.context
	}
	if p.said.Context > 0 {
		return p.said.Context
	}
	return 2048
}

// --- context

func costContext(p *prober) (int, int) {
	if p.said.Context == 0 {
		return 0, 0
	}
	return 2, 2*p.said.Context + 4
}

func runContext(ctx context.Context, p *prober) error {
	said := p.said.Context
	if said == 0 {
		p.find(unknown(MaxContext, "the engine does not say"))
		return nil
	}
	l := limits{said: said, exact: p.ids != nil}
	if err := p.afford(said + 2); err != nil {
		l.why = err.Error()
		p.find(judgeContext(l))
		return nil
	}
	above, err := p.alone(ctx, p.of(said+1, 1))
	if err != nil {
		return err
	}
	l.above = &above
	// What is refused costs nothing; what is taken, all of it. The engine's own word is
	// tried first, then the halves of what is left.
	low, high, next := 0, said+1, said-1
	if n := above.limitSaid; n > 0 && n < said {
		next = n - 1
	}
	for tries := 0; tries < 8 && l.exact && next > low && next < high; tries++ {
		if err := p.afford(next + 1); err != nil {
			l.why = err.Error()
			break
		}
		t, err := p.alone(ctx, p.of(next, 1))
		if err != nil {
			return err
		}
		l.tries = append(l.tries, t)
		switch {
		case len(t.tokens) > 0 && high <= next+2 && high > next+1:
			// The one between the two decides.
			low, next = next, next+1
		case len(t.tokens) > 0:
			low = next
			next = (low + high) / 2
			if tries == 0 || l.tries[max(0, len(l.tries)-2)].limitSaid == low+1 {
				next = low + 1 // it was named: one more must be too long
			}
		case t.limitSaid > 0 && t.limitSaid-1 > low && t.limitSaid-1 < next:
			high, next = next, t.limitSaid-1
		default:
			high = next
			next = (low + high) / 2
		}
	}
	f := judgeContext(l)
	if n, ok := f.Value.(float64); ok {
		p.context = int(n)
	}
	p.find(f)
	return nil
}

// --- prefix

func prefixLength(p *prober) int { return max(2*small, min(2048, p.longest()/4)) }

func costPrefix(p *prober) (int, int) {
	n := prefixLength(p)
	return 4 * repeats, 3*repeats*(n+1) + repeats*(small+1) + n
}

func runPrefix(ctx context.Context, p *prober) error {
	var u reuse
	for range repeats {
		s, err := p.alone(ctx, p.of(small, 1))
		if err != nil {
			return err
		}
		u.short = append(u.short, s)
	}
	// The shortest prompt whose computation shows is enough.
	most := prefixLength(p)
	n := min(256, most)
	for ; n < most; n = min(2*n, most) {
		s, err := p.alone(ctx, p.of(n, 1))
		if err != nil {
			return err
		}
		if s.ttft() > 4*median(ttfts(u.short)) {
			break
		}
	}
	for range repeats {
		a, b := p.of(n, 1), p.of(n, 1)
		for _, step := range []struct {
			ask ask
			to  *[]seen
		}{{b, &u.other}, {a, &u.first}, {a, &u.second}} {
			s, err := p.alone(ctx, step.ask)
			if err != nil {
				return err
			}
			*step.to = append(*step.to, s)
		}
	}
	p.find(judgePrefix(u, p.said.PrefixCache && p.kind != engine.LlamaCpp))
	return nil
}

// --- slots

// room is how many tokens the KV surely holds.
func (p *prober) room() int {
	if p.said.KVTokens > 0 {
		return p.said.KVTokens * 9 / 10
	}
	return p.longest() * 9 / 10
}

// streams is how long each of n streams may be, in output.
func (p *prober) streams(n int) int {
	return max(2*ran, min(512, p.room()/n-small, p.longest()-small-1))
}

func (p *prober) widths() []int {
	if n := p.said.Slots; n > 0 {
		return []int{min(n+2, p.o.MaxStreams)}
	}
	var all []int
	for n := min(4, p.o.MaxStreams); ; n = min(2*n, p.o.MaxStreams) {
		all = append(all, n)
		if n == p.o.MaxStreams {
			return all
		}
	}
}

func costSlots(p *prober) (requests, tokens int) {
	for _, n := range p.widths() { // once each, if nothing disturbs it
		requests += n
		tokens += n * (small + p.streams(n))
	}
	return requests, tokens
}

func runSlots(ctx context.Context, p *prober) error {
	var rounds []concurrency
	for _, n := range p.widths() {
		var c concurrency
		for range tries { // of which one may be disturbed
			limit := p.streams(n)
			if err := p.afford(n * (small + limit)); err != nil {
				f := judgeSlots(rounds, p.said.Slots)
				f.Evidence = append(f.Evidence, err.Error())
				p.find(f)
				return nil
			}
			var err error
			if c, err = p.together(ctx, n, limit); err != nil {
				return err
			}
			if all, _, steady := c.count(); all == n && steady || judgeSlots([]concurrency{c}, 0).Confidence != Unknown {
				break
			}
		}
		rounds = append(rounds, c)
		if all, _, _ := c.count(); all < n {
			break
		}
	}
	f := judgeSlots(rounds, p.said.Slots)
	if n, ok := f.Value.(float64); ok {
		p.slots = int(n)
	}
	p.find(f)
	return nil
}

// together has n streams at once.
func (p *prober) together(ctx context.Context, n, limit int) (c concurrency, err error) {
	c.room = p.room()
	all := make([]*request, n)
	for i := range all {
		if all[i], err = p.send(ctx, p.of(small, limit)); err != nil {
			return c, err
		}
	}
	// Each that has begun gives some tokens after the last that has, and the others have
	// had time to begin; or one has ended.
	if _, err := p.await(ctx, patience, func() bool {
		c.from, c.to = 0, p.now()
		begun := 0
		for _, r := range all {
			if len(r.tokens) > 0 {
				begun++
				c.from = max(c.from, r.first())
			}
		}
		for _, r := range all {
			if r.ended > 0 {
				return true
			}
		}
		for _, r := range all {
			if begun == 0 || len(r.tokens) > 0 && r.after(c.from, c.to) < ran {
				return false
			}
		}
		if begun < n && c.to-c.from < slower*(c.from-all[0].sent) {
			return false
		}
		var run []*seen
		for _, r := range all {
			if len(r.tokens) > 0 {
				run = append(run, &r.seen)
			}
		}
		return len(run) < 2 || turns(run, c.from, c.to) >= taken
	}); err != nil {
		return c, err
	}
	c.streams = p.look(all...)
	for i := range c.streams { // what came since is not of it
		s := &c.streams[i]
		for len(s.tokens) > 0 && s.last() > c.to {
			s.tokens = s.tokens[:len(s.tokens)-1]
		}
	}
	if err := p.clear(ctx, all...); err != nil {
		return c, err
	}
	p.aborted = append(p.aborted, p.look(all...)...)
	return c, nil
}

// --- queue

// arrivals are in which order priorities come, of which none is an order of theirs.
var arrivals = [][]int{{30, 10, 40, 20}, {20, 40, 10, 30}, {30, 40, 10, 20}}

func (p *prober) runners() (n, limit int) {
	n = max(1, p.slots)
	return n, max(2*early, min(1024, p.room()/n-small, p.longest()-small-1))
}

func costQueue(p *prober) (requests, tokens int) {
	n, limit := p.runners()
	rounds := 1 + len(arrivals)
	return rounds*n + 2 + 4*len(arrivals), rounds*n*(small+limit) + (2+4*len(arrivals))*(small+4)
}

func runQueue(ctx context.Context, p *prober) error {
	subjects := []Subject{Waiting, PrioritySign, AbortSeconds, AbortTold}
	if p.slots == 0 {
		for _, s := range subjects {
			p.find(unknown(s, "how many run at once is not known, and so not when the engine is full"))
		}
		return nil
	}
	zero, ordered := 0, true
	n, limit := p.runners()
	round := func(priorities []int, window int) (queue, error) {
		q := queue{}
		var held, waiting []*request
		defer func() { p.abort(slices.Concat(held, waiting)...) }()
		for range n {
			a := p.of(small, limit)
			a.priority = &zero
			r, err := p.send(ctx, a)
			if err != nil {
				return q, err
			}
			held = append(held, r)
		}
		over := func(all []*request) bool {
			return slices.ContainsFunc(all, func(r *request) bool { return r.ended > 0 })
		}
		if _, err := p.await(ctx, patience, func() bool {
			return over(held) || !slices.ContainsFunc(held, func(r *request) bool { return len(r.tokens) < 2 })
		}); err != nil {
			return q, err
		}
		for i := range priorities {
			a := p.of(small, 4)
			if ordered {
				a.priority = &priorities[i]
			}
			r, err := p.send(ctx, a)
			if err != nil {
				return q, err
			}
			waiting = append(waiting, r)
			// So much later that the engine has the one before it.
			sent := p.now()
			if _, err := p.await(ctx, patience, func() bool {
				return over(held) || over(waiting) || p.now()-sent > 20*time.Millisecond && !slices.ContainsFunc(held, func(r *request) bool { return r.after(sent, p.now()) < 2 })
			}); err != nil {
				return q, err
			}
		}
		q.from = p.now()
		if _, err := p.await(ctx, patience, func() bool {
			return over(held) || over(waiting) || !slices.ContainsFunc(held, func(r *request) bool { return r.after(q.from, p.now()) < window }) ||
				slices.ContainsFunc(waiting, func(r *request) bool { return len(r.tokens) > 2 })
		}); err != nil {
			return q, err
		}
		q.freed = p.now()
		p.abort(held[0])
		if _, err := p.await(ctx, patience, func() bool {
			return over(held[1:]) || !slices.ContainsFunc(waiting, func(r *request) bool { return r.ended == 0 })
		}); err != nil {
			return q, err
		}
		q.to = p.now()
		all := slices.Concat(held, waiting)
		q.running, q.waiting = p.look(held...), p.look(waiting...)
		if err := p.clear(ctx, all...); err != nil {
			return q, err
		}
		p.aborted = append(p.aborted, p.look(all...)...)
		return q, nil
	}
	first, err := round([]int{-100, 100}, early)
	if err != nil {
		return err
	}
	wait := judgeWaiting(first)
	p.find(wait)
	p.queues = []queue{first}
	if wait.Value == Preempts {
		// Which of the two gave the other's way tells the sign; there is no queue in
		// which orders could be seen.
		p.find(judgePreempting(first))
	} else {
		// An engine that refuses priorities still shows what an abort takes.
		ordered = !slices.ContainsFunc(first.waiting, func(s seen) bool { return s.outcome == refused })
		for told, tries := 0, 0; told < orders && tries < 2*orders; tries++ {
			q, err := round(slices.Clone(arrivals[tries%len(arrivals)]), 2)
			if err != nil {
				return err
			}
			if q.order() != nil {
				told++
			}
			p.queues = append(p.queues, q)
		}
		if ordered {
			p.find(judgePriority(p.queues[1:]))
		} else {
			p.find(unknown(PrioritySign, wait.Evidence...))
		}
	}
	p.find(judgeAbort(p.queues))
	p.find(judgeTold(p.aborted))
	return nil
}

// --- layout

func (p *prober) part() int {
	if p.said.KVTokens > 0 && p.slots > 1 {
		return p.said.KVTokens / p.slots
	}
	return 0
}

func costLayout(p *prober) (int, int) {
	l := p.longest()
	switch part := p.part(); {
	case p.slots == 1:
		return 0, 0
	case part > 0 && l > part+part/8:
		return 1, part + part/8 + small
	}
	return 3, 3 * l
}

func runLayout(ctx context.Context, p *prober) error {
	l := layout{slots: p.slots, pool: p.said.KVTokens, block: max(1, p.said.Block), context: p.context, model: p.said.ModelContext, slotIsPool: p.said.SlotIsPool}
	if l.slotIsPool {
		l.pool = 0 // it can't be said
	}
	err := p.layOut(ctx, &l)
	if err != nil {
		l.why = err.Error()
	}
	f := judgeLayout(l)
	p.find(f)
	p.find(judgeKV(p.said.KVTokens, p.slots, p.context, p.said.ModelContext, p.said.SlotIsPool, f, nil))
	return context.Cause(ctx)
}

func (p *prober) layOut(ctx context.Context, l *layout) error {
	if l.slots < 2 || l.context == 0 {
		return nil
	}
	part := 0
	if l.pool > 0 {
		part = l.pool / l.slots
	}
	if long := part + part/16 + 2*l.block + small; part > 0 && long+8 <= l.context {
		s, err := p.alone(ctx, p.of(long, 8))
		if err != nil {
			return err
		}
		l.long = &s
		return nil
	}
	switch {
	case part > 0 && (l.context < part-l.block || l.model <= l.context):
		return nil // nothing would tell
	case part == 0 && !l.slotIsPool:
		return nil
	case l.slotIsPool && p.busy:
		return fmt.Errorf("it is not tried beside others' requests: on an engine of this kind it may end them")
	}
	for range tries {
		if err := p.pair(ctx, l); err != nil {
			return err
		}
		if a := &l.pair[0]; a.outcome != finished && a.ended == 0 || judgeLayout(*l).Confidence != Unknown {
			break // else the first had ended too soon
		}
	}
	return nil
}

// pair has two sequences at once that are longer together than one may be.
func (p *prober) pair(ctx context.Context, l *layout) error {
	size := l.context * 6 / 10
	limit := l.context - size - 1
	if err := p.afford(3*size + 2*limit + 8); err != nil {
		return err
	}
	a, err := p.send(ctx, p.of(size, limit))
	if err != nil {
		return err
	}
	if _, err := p.await(ctx, patience, func() bool { return len(a.tokens) >= 2 || a.ended > 0 }); err != nil {
		return err
	}
	b, err := p.send(ctx, p.of(size, limit))
	if err != nil {
		return err
	}
	if _, err := p.await(ctx, patience, func() bool {
		l.both = p.now()
		return a.ended > 0 || b.outcome == failed || b.outcome == refused || len(b.tokens) > 0 && turns([]*seen{&a.seen, &b.seen}, b.first(), l.both) >= taken
	}); err != nil {
		return err
	}
	// What is broken off is broken off for both; one of them may hear of it first.
	if _, err := p.await(ctx, time.Second, func() bool {
		return a.ended > 0 && b.ended > 0 || a.outcome <= finished && b.outcome <= finished
	}); err != nil {
		return err
	}
	l.pair = p.look(a, b)
	if err := p.clear(ctx, a, b); err != nil {
		return err
	}
	if l.pair[0].context || l.pair[1].context {
		solo, err := p.alone(ctx, p.of(size, 8))
		if err != nil {
			return err
		}
		l.solo = &solo
	}
	return nil
}

// --- steps

// timedModel is a fit that is good.
type timedModel struct{ model *simengine.Model }

// lengths of the prompts whose first tokens are timed, and of the long ones that are
// computed beside a stream.
func (p *prober) lengths() (alone []int, long []int) {
	most := min(2048, p.longest()-2)
	// Of one piece, so that what a piece costs and what a token does can be told apart.
	piece := most
	if p.chunk > 0 && p.chunk < most {
		piece = p.chunk
	}
	alone = []int{max(small, piece/8), piece / 4, piece / 2, piece * 3 / 4, piece}
	if piece < most {
		alone = append(alone, most)
	}
	beside := min(8192, p.longest()-small)
	if p.said.KVTokens > 0 {
		beside = min(beside, p.said.KVTokens*8/10)
	} else if p.said.SlotIsPool {
		beside = min(beside, p.longest()*7/10)
	}
	return alone, []int{beside, beside * 7 / 10}
}

func (p *prober) decoders() []int {
	all := []int{2}
	for n := 4; n <= min(p.slots, 8); n *= 2 {
		all = append(all, n)
	}
	return all
}

const firstTokens = 5 // times that a prompt of one length is timed

const generated = 40 // tokens of a timed stream

// tries is how often the levels of the KV are looked at, of which one may be missed.
const tries = 3

const filling = 256 // tokens that what fills the KV goes on for

func costSteps(p *prober) (requests, tokens int) {
	alone, long := p.lengths()
	for _, n := range alone {
		requests += firstTokens
		tokens += firstTokens * (n + 1)
	}
	for _, n := range long {
		requests += 2
		tokens += n + 4 + small + p.beside()
	}
	for _, n := range p.decoders() {
		requests += repeats * n
		tokens += repeats * n * (small + generated)
	}
	most := alone[len(alone)-1]
	return requests + 3*repeats + tries, tokens + repeats*(most+most/2+small+3*generated) + tries*(long[0]+1)
}

// beside is how long a stream may be beside a long prompt, in output.
func (p *prober) beside() int { return max(generated, min(256, p.longest()-small-1)) }

func runSteps(ctx context.Context, p *prober) error {
	if err := runChunk(ctx, p); err != nil {
		p.leave(stage{subjects: []Subject{ChunkTokens}}, err)
		if context.Cause(ctx) != nil {
			return err
		}
	}
	t := timed{chunk: p.chunk}
	for range 5 {
		asked := time.Now()
		if o := p.adapter.Observe(ctx); o.State == engine.Ready {
			// Observing is one or two questions; half of it is no less than one.
			if d := o.At.Sub(asked) / 2; t.trip == 0 || d < t.trip {
				t.trip = d
			}
		}
	}
	alone, _ := p.lengths()
	for range firstTokens {
		for _, n := range alone {
			s, err := p.alone(ctx, p.of(n, 1))
			if err != nil {
				return err
			}
			t.prompts = append(t.prompts, s)
		}
	}
	most := alone[len(alone)-1]
	for _, n := range []int{small, most / 2, min(most, p.longest()-generated-1)} {
		d, err := p.decode(ctx, 1, n)
		if err != nil {
			return err
		}
		t.decodes = append(t.decodes, d)
	}
	if p.slots >= 2 {
		for _, n := range p.decoders() {
			d, err := p.decode(ctx, n, small)
			if err != nil {
				return err
			}
			t.decodes = append(t.decodes, d)
		}
	}
	f, m := judgeSteps(t)
	if m != nil {
		p.steps = &timedModel{m}
	}
	p.find(f)
	return nil
}

// decode times the steps of n streams of a size.
func (p *prober) decode(ctx context.Context, n, size int) (decoded, error) {
	var times [][]seen
	for range repeats {
		all := make([]*request, n)
		for i := range all {
			r, err := p.send(ctx, p.of(size, generated))
			if err != nil {
				return decoded{}, err
			}
			all[i] = r
		}
		if _, err := p.await(ctx, patience, func() bool {
			return !slices.ContainsFunc(all, func(r *request) bool { return !r.over })
		}); err != nil {
			return decoded{}, err
		}
		times = append(times, p.look(all...))
	}
	return judgeDecoded(times), nil
}

func runChunk(ctx context.Context, p *prober) error {
	_, long := p.lengths()
	var f Finding
	var stalls []stall
	for try := range tries {
		// By itself, so that what the engine says is of this prompt alone.
		samples := p.observe()
		alone, err := p.alone(ctx, p.of(long[0], 1))
		shown := samples()
		if err != nil {
			return err
		}
		pieces := levels(shown, p.start.Add(alone.sent), p.start.Add(alone.first()))
		f = judgeChunk(alone, pieces, p.said.Block, nil)
		for _, n := range long {
			if f.Confidence != Unknown || p.slots < 2 || try > 0 {
				break
			}
			s, err := p.stallBy(ctx, n)
			if err != nil {
				return err
			}
			stalls = append(stalls, s)
		}
		f = judgeChunk(alone, pieces, p.said.Block, stalls)
		if f.Confidence != Unknown || len(stalls) == 0 {
			break
		}
		if about, _, _, _ := stalls[0].piece(); about*aside > float64(long[0]) {
			break // it may be all one piece: there are no levels to be seen
		}
	}
	if n, ok := f.Value.(float64); ok {
		p.chunk = int(n)
	}
	p.find(f)
	return nil
}

// stallBy has a prompt computed beside a stream.
func (p *prober) stallBy(ctx context.Context, n int) (stall, error) {
	stream, err := p.send(ctx, p.of(small, p.beside()))
	if err != nil {
		return stall{}, err
	}
	defer p.abort(stream)
	ready, err := p.await(ctx, patience, func() bool { return len(stream.tokens) >= ran || stream.ended > 0 })
	if err != nil || !ready {
		return stall{}, err
	}
	long, err := p.send(ctx, p.of(n, 4))
	if err != nil {
		return stall{}, err
	}
	if _, err := p.await(ctx, patience, func() bool { return long.over }); err != nil {
		return stall{}, err
	}
	all := p.look(stream, long)
	return stall{all[0], all[1]}, p.clear(ctx, stream, long)
}

// levels are the different amounts of KV in use that samples show of a span in which one
// prompt was computed by itself.
func levels(samples []engine.Observation, from, to time.Time) []int {
	last := 0
	var all []int
	for _, o := range samples {
		if o.Asked.Before(from) || o.At.After(to) || o.KVUsed <= last || o.Running != 1 {
			continue
		}
		last = o.KVUsed
		all = append(all, last)
	}
	return all
}

// --- gate

func (p *prober) gateSizes() (hold []int, free, prompt int, why string) {
	pool, longest := p.said.KVTokens, p.longest()
	if p.said.SlotIsPool || pool == 0 {
		return nil, 0, 0, "the engine shows no KV that could be nearly full"
	}
	if p.chunk == 0 {
		return nil, 0, 0, "how much of a prompt is computed in a step is not known"
	}
	block := max(1, p.said.Block)
	free = p.chunk + p.chunk/8 + 8*block
	prompt = free + max(4*block, free/8)
	if prompt > longest-4 {
		return nil, 0, 0, fmt.Sprintf("the longest sequence, %d tokens, is too little more than a step's %d", longest, p.chunk)
	}
	// What fills it needs room to go on.
	left := pool - free
	most := longest - filling
	for left > 0 {
		n := min(left, most)
		hold = append(hold, n)
		left -= n
	}
	if len(hold)+1 > p.slots {
		return nil, 0, 0, fmt.Sprintf("to fill %d tokens of KV takes %d sequences, and %d run at once", pool, len(hold), p.slots)
	}
	return hold, free, prompt, ""
}

func costGate(p *prober) (int, int) {
	if p.said.SlotIsPool || p.said.KVTokens == 0 {
		return 0, 0
	}
	return 3 + p.said.KVTokens/max(1, p.longest()), p.said.KVTokens + min(p.longest(), p.said.KVTokens)
}

func runGate(ctx context.Context, p *prober) error {
	g := gate{pool: p.said.KVTokens, block: max(1, p.said.Block), chunk: p.chunk, slots: p.slots}
	hold, free, prompt, why := p.gateSizes()
	g.why = why
	if p.found[KVLayout].Value == PerSlot {
		g.why, hold = "each slot has its own KV", nil
	}
	if len(hold) > 0 {
		if err := p.passGate(ctx, &g, hold, free, prompt); err != nil {
			if context.Cause(ctx) != nil {
				return err
			}
			g.why = err.Error()
		}
	}
	p.find(judgeWhole(g))
	p.find(judgeKV(p.said.KVTokens, p.slots, p.context, p.said.ModelContext, p.said.SlotIsPool, p.found[KVLayout], &g))
	return nil
}

func (p *prober) passGate(ctx context.Context, g *gate, hold []int, free, prompt int) error {
	total := prompt + free/2
	for _, n := range hold {
		total += n + 2*generated + 64
	}
	if err := p.afford(total); err != nil {
		return err
	}
	var held []*request
	defer func() { p.abort(held...) }()
	for _, n := range hold {
		r, err := p.send(ctx, p.of(n-small, filling))
		if err != nil {
			return err
		}
		held = append(held, r)
		// One after the other, so that none is in another's way.
		if _, err := p.await(ctx, patience, func() bool { return len(r.tokens) >= 2 || r.ended > 0 }); err != nil {
			return err
		}
	}
	// It says what it holds only as of a step.
	samples := p.observe()
	marks := len(held[0].tokens)
	if _, err := p.await(ctx, patience, func() bool { return len(held[0].tokens) >= marks+4 || held[0].ended > 0 }); err != nil {
		samples()
		return err
	}
	seenLoad := samples()
	if len(seenLoad) == 0 {
		seenLoad = []engine.Observation{p.adapter.Observe(ctx)}
	}
	load := seenLoad[len(seenLoad)-1]
	if load.KVUsed < 0 || load.Running != len(held) {
		return fmt.Errorf("the engine does not show the %d sequences that fill its KV", len(held))
	}
	control, err := p.alone(ctx, p.of(max(small, g.pool-load.KVUsed-free/4), 2))
	if err != nil {
		return err
	}
	g.control = &control
	load = p.adapter.Observe(ctx)
	g.free, g.preemptions = g.pool-load.KVUsed, load.Preemptions
	samples = p.observe()
	last, err := p.send(ctx, p.of(max(prompt, g.free+2*g.block), 2))
	if err != nil {
		samples()
		return err
	}
	defer p.abort(last)
	g.from = p.look(last)[0].sent
	many := len(p.samples) + 4*looks
	if _, err := p.await(ctx, patience, func() bool {
		return len(last.tokens) > 0 || len(p.samples) >= many && !slices.ContainsFunc(held, func(r *request) bool { return r.ended == 0 && r.after(g.from, p.now()) < early+4 })
	}); err != nil {
		samples()
		return err
	}
	g.to = p.now()
	after := p.start.Add(g.from)
	var shown []engine.Observation
	for _, o := range samples() {
		if o.Asked.After(after.Add(50 * time.Millisecond)) {
			shown = append(shown, o)
		}
	}
	g.samples = shown
	g.hold = p.look(held...)
	s := p.look(last)[0]
	g.prompt = &s
	return p.clear(ctx, append(held, last)...)
}
