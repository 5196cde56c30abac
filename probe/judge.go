package probe

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/engine"
)

// What was seen is judged here, apart from how it was made to happen: each function has
// an experiment's observations and returns what they show. Whatever would have looked
// the same under two mechanisms is unknown.

// known makes a finding; evidence is a sentence each.
func known(s Subject, c Confidence, value any, evidence ...string) Finding {
	if n, ok := value.(int); ok {
		value = float64(n)
	}
	return Finding{Subject: s, Value: value, Unit: kinds[s].unit, Confidence: c, Evidence: evidence}
}

func unknown(s Subject, evidence ...string) Finding {
	return Finding{Subject: s, Confidence: Unknown, Evidence: evidence}
}

// ran is how many tokens each of several streams must give while others wait, so that
// they run beside each other and not after each other.
const ran = 24

// taken is how many turns each of them must have had.
const taken = 6

// slower is how many times as long as the slowest of those that run took to its first
// token the others must have had none.
const slower = 3

// concurrency is an attempt to have some streams at once.
type concurrency struct {
	streams []seen
	from    time.Duration // since when no other one has begun
	to      time.Duration // when it was looked at, before any was ended
	room    int           // tokens that the engine's KV surely has for them
}

// count tells how many ran beside each other and how many had no token; steady is that
// there were no others.
func (c *concurrency) count() (n, waiting int, steady bool) {
	steady = true
	for i := range c.streams {
		switch s := &c.streams[i]; {
		case s.started(c.from):
			n++
			steady = steady && s.after(c.from, c.to) >= ran && s.alive(c.to)
		case len(s.tokens) == 0:
			waiting++
		default:
			steady = false
		}
	}
	return n, waiting, steady && (n < 2 || turns(c.begun(), c.from, c.to) >= taken)
}

// begun are the streams that had a token.
func (c *concurrency) begun() []*seen {
	var all []*seen
	for i := range c.streams {
		if len(c.streams[i].tokens) > 0 {
			all = append(all, &c.streams[i])
		}
	}
	return all
}

// judgeSlots tells how many run at once. Streams that run beside each other all give
// tokens in the same span; one that waits gives none in it. Where they might want more
// KV than there is, those that wait need not wait for a slot.
func judgeSlots(rounds []concurrency, said int) Finding {
	most := 0
	var why []string
	for _, c := range rounds {
		tokens, sent := 0, c.from
		for i := range c.streams {
			s := &c.streams[i]
			tokens += s.prompt + s.limit
			sent = min(sent, s.sent)
			if s.outcome == refused || s.outcome == failed {
				return unknown(Slots, fmt.Sprintf("one of %d streams was not answered: %s", len(c.streams), s.message))
			}
		}
		n, waiting, steady := c.count()
		switch {
		case waiting == 0 && n == len(c.streams) && steady:
			most = max(most, n)
			why = append(why, fmt.Sprintf("of %d streams all gave tokens beside each other", n))
			continue
		case n == 0 || waiting == 0 || !steady:
			return unknown(Slots, append(why, fmt.Sprintf("of %d streams some ended or began while they were counted", len(c.streams)))...)
		case c.to-c.from < slower*(c.from-sent):
			return unknown(Slots, append(why, fmt.Sprintf("of %d streams %d ran, and the others might only have been slower to begin", len(c.streams), n))...)
		case tokens > c.room:
			return unknown(Slots, append(why, fmt.Sprintf("of %d streams %d ran and %d waited, but they might want %d tokens of KV, and %d are surely there", len(c.streams), n, waiting, tokens, c.room))...)
		}
		why = append(why, fmt.Sprintf("of %d streams %d gave %d tokens and more beside each other while %d had none", len(c.streams), n, ran, waiting))
		if n < most {
			return unknown(Slots, append(why, "fewer ran than before")...)
		}
		if said > 0 && said != n {
			why = append(why, fmt.Sprintf("the engine says %d, which is not what was seen", said))
		}
		return known(Slots, Shown, n, why...)
	}
	if most == 0 {
		return unknown(Slots, append(why, "no streams were seen")...)
	}
	return unknown(Slots, append(why, fmt.Sprintf("it runs %d at once or more; more were not tried", most))...)
}

// queue is a full engine with requests that wait for a slot.
type queue struct {
	running []seen // hold all slots
	waiting []seen // in order of arrival
	// from: all of them had been sent, and freed: the first slot was freed, then the
	// waiting ones went through it one by one until to.
	from, freed, to time.Duration
}

// early is how many tokens running ones must give while others could have preempted
// them.
const early = 24

// judgeWaiting tells what a waiting request of better priority does. One of the waiting
// ones of a round has the better one, whichever sign the engine takes for that.
func judgeWaiting(q queue) Finding {
	if f, ok := notQueued(Waiting, q); !ok {
		return f
	}
	least := early
	for i := range q.running {
		least = min(least, q.running[i].after(q.from, q.freed))
	}
	for i := range q.waiting {
		w := &q.waiting[i]
		if !w.started(q.freed) {
			continue
		}
		// One that ran stands still for it, if it gave way.
		for k := range q.running {
			r := &q.running[k]
			others := 0
			for j := range q.running {
				if j != k {
					others = max(others, q.running[j].after(w.first(), q.freed))
				}
			}
			if r.alive(q.freed) && r.after(w.first(), w.last()) == 0 && (others > 0 || len(q.running) == 1) {
				return known(Waiting, Shown, Preempts,
					fmt.Sprintf("with all %d slots taken by requests of priority 0, one of priority %d began, and a running one stood still for it", len(q.running), w.priority))
			}
		}
		return unknown(Waiting, fmt.Sprintf("one of priority %d began beside all %d that ran, so that not all slots were taken", w.priority, len(q.running)))
	}
	if least < early {
		return unknown(Waiting, fmt.Sprintf("the running ones gave only %d tokens while others waited", least))
	}
	return known(Waiting, Shown, Waits, fmt.Sprintf("with all %d slots taken by requests of priority 0, those of priority %s had no token while each running one gave %d and more",
		len(q.running), priorities(q.waiting), early))
}

// last is when the last token came.
func (s *seen) last() time.Duration {
	if len(s.tokens) == 0 {
		return 0
	}
	return s.tokens[len(s.tokens)-1]
}

func priorities(all []seen) string {
	var s []string
	for i := range all {
		s = append(s, fmt.Sprint(all[i].priority))
	}
	return strings.Join(s, ", ")
}

// notQueued tells whether a round is one of the kind that it should be.
func notQueued(s Subject, q queue) (Finding, bool) {
	if len(q.running) == 0 || len(q.waiting) == 0 {
		return unknown(s, "no full engine was seen"), false
	}
	for _, w := range q.waiting {
		if w.outcome == refused || w.outcome == failed {
			return unknown(s, fmt.Sprintf("a request with priority %d was not answered: %s", w.priority, w.message)), false
		}
	}
	for i := range q.running {
		if r := &q.running[i]; !r.started(q.from) || r.ended > 0 && r.ended < q.freed && r.aborting == 0 {
			return unknown(s, "the slots were not all taken for long enough"), false
		}
	}
	return Finding{}, true
}

// order is in which order the waiting ones of a round began, as indices of their
// arrival; nil where that can't be told.
func (q *queue) order() []int {
	var at []int
	for i := range q.waiting {
		w := &q.waiting[i]
		if len(w.tokens) == 0 || w.first() < q.freed {
			return nil
		}
		at = append(at, i)
	}
	// Those that still ran held their slots until the last had begun, so that they went
	// through one.
	left := 0
	for i := range q.running {
		if q.running[i].alive(q.to) {
			left++
		}
	}
	if left != len(q.running)-1 {
		return nil
	}
	slices.SortStableFunc(at, func(a, b int) int { return int(q.waiting[a].first() - q.waiting[b].first()) })
	step := time.Duration(0)
	for i := range q.running {
		step = max(step, q.running[i].pace(0, q.freed))
	}
	for i := 1; i < len(at); i++ {
		// Each gives some tokens before the next: two that begin together have no order.
		if q.waiting[at[i]].first()-q.waiting[at[i-1]].first() < step {
			return nil
		}
	}
	return at
}

// orders is how many rounds must agree: one of four has each order by chance once in
// 24 times.
const orders = 3

// judgePriority tells by what the waiting ones are taken. Each round has them arrive in
// another order, of which none is the order of priorities, either way.
func judgePriority(rounds []queue) Finding {
	votes := map[string]int{}
	var why []string
	for i := range rounds {
		q := &rounds[i]
		if f, ok := notQueued(PrioritySign, *q); !ok {
			return f
		}
		order := q.order()
		if order == nil {
			why = append(why, fmt.Sprintf("arrived with priorities %s: it could not be told in which order they began", priorities(q.waiting)))
			continue
		}
		began := make([]seen, 0, len(order))
		for _, k := range order {
			began = append(began, q.waiting[k])
		}
		up := func(a, b seen) int { return a.priority - b.priority }
		word := ""
		switch {
		case slices.IsSorted(order):
			word = Ignored
		case slices.IsSortedFunc(began, up):
			word = LowerFirst
		case slices.IsSortedFunc(began, func(a, b seen) int { return -up(a, b) }):
			word = HigherFirst
		}
		votes[word]++
		why = append(why, fmt.Sprintf("arrived with priorities %s, began in the order %s", priorities(q.waiting), priorities(began)))
	}
	for _, word := range []string{LowerFirst, HigherFirst, Ignored} {
		if votes[word] >= orders && len(votes) == 1 { // of those that could be told
			return known(PrioritySign, Shown, word, why...)
		}
	}
	return unknown(PrioritySign, append(why, fmt.Sprintf("no order of %d arrivals was the same each time", orders))...)
}

// judgeAbort tells how long a slot takes to its next request. The one that waited had
// shown that it did.
func judgeAbort(rounds []queue) Finding {
	var times []float64
	var all []string
	for i := range rounds {
		q := &rounds[i]
		first := time.Duration(0)
		waited := true
		for k := range q.waiting {
			w := &q.waiting[k]
			if len(w.tokens) > 0 && (first == 0 || w.first() < first) {
				first = w.first()
			}
			waited = waited && !w.started(q.freed)
		}
		if first > q.freed && waited && q.freed > q.from {
			times = append(times, (first - q.freed).Seconds())
			all = append(all, fmt.Sprintf("%.0f ms", (first-q.freed).Seconds()*1e3))
		}
	}
	if len(times) < orders {
		return unknown(AbortSeconds, fmt.Sprintf("%d times a request that waited began after an abort, and it takes %d", len(times), orders))
	}
	return known(AbortSeconds, Shown, median(times), fmt.Sprintf("from the abort of a running request to the first token of one that waited: %s", strings.Join(all, ", ")))
}

// judgeTold tells how the adapter learned of releases; requests are those that were
// aborted while they ran.
func judgeTold(requests []seen) Finding {
	by := map[engine.ConfirmedBy]int{}
	n := 0
	for i := range requests {
		if r := &requests[i]; r.aborting > 0 && len(r.tokens) > 0 && r.outcome == aborted {
			by[r.confirmed]++
			n++
		}
	}
	switch {
	case n < orders:
		return unknown(AbortTold, fmt.Sprintf("%d running requests were aborted, and it takes %d", n, orders))
	case by[engine.Unconfirmed] > 0:
		return unknown(AbortTold, fmt.Sprintf("of %d aborts %d were not confirmed", n, by[engine.Unconfirmed]))
	}
	// The grace is what is left where there is no evidence: it counts for all if it was
	// needed once.
	for _, word := range []engine.ConfirmedBy{engine.ByGrace, engine.BySlot, engine.ByProgress} {
		if by[word] > 0 {
			return known(AbortTold, Shown, string(word), fmt.Sprintf("of %d aborts of running requests %d were confirmed by %q", n, by[word], word))
		}
	}
	return unknown(AbortTold, "every request that was aborted had ended by itself")
}

// reuse is prompts that were sent twice, with another one of the same length between.
type reuse struct {
	short                []seen // prompts of next to nothing
	first, second, other []seen
}

const repeats = 3

// judgePrefix tells whether a prompt that was computed is found again. A first token
// says so only where the prompt is most of its time.
func judgePrefix(u reuse, said bool) Finding {
	if len(u.first) < repeats || len(u.second) < repeats || len(u.other) < repeats || len(u.short) < repeats {
		return unknown(PrefixCache, "too few prompts were answered")
	}
	for _, all := range [][]seen{u.short, u.first, u.second, u.other} {
		for i := range all {
			if len(all[i].tokens) == 0 {
				return unknown(PrefixCache, "a prompt was not answered: "+all[i].message)
			}
		}
	}
	cold := slices.Concat(ttfts(u.first), ttfts(u.other))
	warm, short := ttfts(u.second), ttfts(u.short)
	hits, misses, told := 0, 0, 0
	for i := range u.second {
		if c := u.second[i].cached; c >= 0 {
			told++
			if c >= u.second[i].prompt/2 {
				hits++
			}
		}
	}
	for _, all := range [][]seen{u.first, u.other} {
		for i := range all {
			if all[i].cached > all[i].prompt/10 {
				misses++
			}
		}
	}
	n := u.first[0].prompt
	times := fmt.Sprintf("first tokens of prompts of %d tokens took %s, of the same prompts again %s, and of ones of %d tokens %s",
		n, ms(median(cold)), ms(median(warm)), u.short[0].prompt, ms(median(short)))
	counts := "the engine does not tell cached tokens"
	if told > 0 {
		counts = fmt.Sprintf("the engine told cached tokens of %d of %d repeated prompts, and of %d of %d others", hits, len(u.second), misses, len(cold))
	}
	tells := slices.Min(cold) >= 2*median(short) // a prompt's computation shows
	faster := tells && float64(slices.Max(warm)) < 0.6*float64(slices.Min(cold))
	same := tells && float64(slices.Min(warm)) > 0.8*float64(median(cold))
	by := []string{times, counts}
	add := func(s string) []string { return append(by, s) }
	switch {
	case misses > 0:
		return unknown(PrefixCache, add("prompts that nobody had sent were found")...)
	case hits == len(u.second) && !same:
		return known(PrefixCache, Shown, Kept, by...)
	case faster && hits == 0 && told > 0:
		return unknown(PrefixCache, add("it was fast and told no cached tokens")...)
	case faster:
		return known(PrefixCache, Shown, Kept, by...)
	case same && hits == 0:
		if said {
			by = add("the engine says that it keeps prefixes, which was not seen")
		}
		return known(PrefixCache, Shown, None, by...)
	case !tells:
		return unknown(PrefixCache, add("the prompt is too little of a first token's time to tell")...)
	}
	return unknown(PrefixCache, add("the times do not tell")...)
}

func ttfts(all []seen) []time.Duration {
	t := make([]time.Duration, len(all))
	for i := range all {
		t[i] = all[i].ttft()
	}
	return t
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3g ms", d.Seconds()*1e3) }

// limits is what was tried at the end of the context.
type limits struct {
	said  int
	above *seen // a prompt of more than what was said
	tries []seen
	exact bool // prompts had the very number of tokens
	why   string
}

// judgeContext tells the longest sequence, prompt and output.
func judgeContext(l limits) Finding {
	var why []string
	if l.above != nil {
		switch a := l.above; {
		case a.outcome == refused && (a.context || a.status == 400):
			why = append(why, fmt.Sprintf("a prompt of %d tokens was refused: %s", a.prompt, a.message))
		case a.outcome == refused:
			why = append(why, fmt.Sprintf("a prompt of %d tokens was refused with status %d, which need not be for its length", a.prompt, a.status))
			l.exact = false
		case len(a.tokens) > 0 && a.usagePrompt >= 0 && a.usagePrompt < a.prompt:
			return unknown(MaxContext, fmt.Sprintf("a prompt of %d tokens was taken and silently cut to %d", a.prompt, a.usagePrompt))
		case len(a.tokens) > 0:
			return unknown(MaxContext, fmt.Sprintf("it says %d tokens and took a prompt of %d: the limit is higher than what it says", l.said, a.prompt))
		default:
			why = append(why, fmt.Sprintf("a prompt of %d tokens was not answered: %s", a.prompt, a.message))
			l.exact = false
		}
	}
	taken, least := 0, 0
	for i := range l.tries {
		t := &l.tries[i]
		switch {
		case len(t.tokens) > 0 && t.usagePrompt >= 0 && t.usagePrompt != t.prompt && l.exact:
			return unknown(MaxContext, append(why, fmt.Sprintf("a prompt of %d tokens was taken and counted as %d", t.prompt, t.usagePrompt))...)
		case len(t.tokens) > 0:
			taken = max(taken, t.prompt+1)
			why = append(why, fmt.Sprintf("a prompt of %d tokens was taken, and a token generated", t.prompt))
		case t.outcome == refused:
			if least == 0 || t.prompt < least {
				least = t.prompt
			}
			why = append(why, fmt.Sprintf("a prompt of %d tokens was refused: %s", t.prompt, t.message))
		default:
			why = append(why, fmt.Sprintf("a prompt of %d tokens was not answered: %s", t.prompt, t.message))
		}
	}
	if l.why != "" {
		why = append(why, l.why)
	}
	refusedAt := least
	if l.above != nil && l.above.outcome == refused && l.exact && (least == 0 || l.above.prompt < least) {
		refusedAt = l.above.prompt
	}
	switch {
	case taken > 0 && refusedAt > 0 && refusedAt <= taken+1 && l.exact:
		if taken != l.said && l.said > 0 {
			why = append(why, fmt.Sprintf("the engine says %d, which is not what it does", l.said))
		}
		return known(MaxContext, Shown, taken, why...)
	case l.said > 0 && least == 0:
		return known(MaxContext, Said, l.said, append(why, fmt.Sprintf("the engine says %d", l.said))...)
	}
	return unknown(MaxContext, append(why, "the limit itself was not found")...)
}

// layout is what was done to tell how the KV is laid out.
type layout struct {
	slots   int // that run at once; 0: not known
	pool    int // tokens of the whole pool as the engine says; 0: it does not
	block   int
	context int // longest sequence that the engine takes
	model   int // longest sequence of the model itself; 0: not known
	// A slot's context is the whole pool unless the pool is divided or the model takes
	// less: what llama-server says of its slots.
	slotIsPool bool

	long *seen  // a sequence of more than a slot's part
	pair []seen // two that together are longer than a sequence may be
	both time.Duration
	solo *seen // the second of them once more, by itself
	why  string
}

// judgeLayout tells whether any sequence may use all of the KV, or each slot has its
// part.
func judgeLayout(l layout) Finding {
	add := func(s ...string) []string {
		if l.why != "" {
			s = append(s, l.why)
		}
		return s
	}
	if l.slots < 2 {
		return unknown(KVLayout, add("the KV of one slot, or of a number that is not known, is neither")...)
	}
	part := 0
	if l.pool > 0 {
		part = l.pool / l.slots
	}
	// One sequence beyond its part: no divided pool has that.
	if s := l.long; s != nil && part > 0 {
		total := s.prompt + len(s.tokens)
		if s.prompt > part+l.block && len(s.tokens) >= 2 && s.outcome != failed && (s.usagePrompt < 0 || s.usagePrompt >= s.prompt) {
			return known(KVLayout, Shown, Shared, add(fmt.Sprintf("a sequence of %d tokens ran, where the %d slots' parts of %d tokens would be %d each", total, l.slots, l.pool, part))...)
		}
	}
	together := 0
	for i := range l.pair {
		together += l.pair[i].prompt
	}
	if len(l.pair) < 2 {
		switch {
		case part > 0 && l.context <= part+l.block && l.context < part-l.block:
			return unknown(KVLayout, add(fmt.Sprintf("no sequence may be longer than %d tokens, which is less than a slot's part of %d: both would look the same", l.context, part))...)
		case part > 0 && l.context <= part+l.block && (l.model == 0 || l.model <= l.context):
			return unknown(KVLayout, add(fmt.Sprintf("no sequence may be longer than %d tokens, which is a slot's part and the model's own limit: both would look the same", l.context))...)
		}
		return unknown(KVLayout, add("nothing was seen that tells")...)
	}
	a, b := &l.pair[0], &l.pair[1]
	switch {
	case together <= l.context+l.block:
		return unknown(KVLayout, add(fmt.Sprintf("two sequences of %d tokens are no more than one may have", together))...)
	case len(a.tokens) > 0 && len(b.tokens) > 0 && turns([]*seen{a, b}, b.first(), l.both) >= taken:
		// They hold more than one sequence may have.
		said := fmt.Sprintf("two sequences of %d tokens ran beside each other, and one may have %d at most", together, l.context)
		ownLimit := l.model > 0 && l.context < l.model
		switch {
		case !ownLimit:
			return unknown(KVLayout, add(said, "which may be the model's own limit: a pool that is larger and shared would look the same")...)
		case l.slotIsPool:
			return known(KVLayout, Shown, PerSlot, add(said, fmt.Sprintf("the model itself takes %d, so that a shared pool of this engine would have had %d tokens in all", l.model, l.context))...)
		case part > 0 && l.context <= part+l.block && l.context >= part-l.block:
			return known(KVLayout, Shown, PerSlot, add(said, fmt.Sprintf("that is a slot's part of the %d tokens of all %d, and the model itself takes %d", l.pool, l.slots, l.model))...)
		}
		return unknown(KVLayout, add(said, "why is not known")...)
	case a.context && a.outcome == failed || b.context && (b.outcome == failed || b.outcome == refused):
		if s := l.solo; s != nil && len(s.tokens) > 0 && a.started(b.sent) {
			return known(KVLayout, Shown, Shared, add(fmt.Sprintf("of two sequences of %d tokens on two slots each ran by itself, and together the KV ran out: %s", together, firstOf(b.message, a.message)))...)
		}
		return unknown(KVLayout, add("the KV ran out for one that did not run by itself either")...)
	}
	return unknown(KVLayout, add(fmt.Sprintf("of two sequences of %d tokens not both ran, and not for want of KV: %s", together, firstOf(a.message, b.message, "no reason was given")))...)
}

func firstOf(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}

// judgePreempting tells which sign the engine takes for the better priority, of a round
// in which one of two began while all slots were taken.
func judgePreempting(q queue) Finding {
	var began, waited []seen
	for _, w := range q.waiting {
		if w.started(q.freed) {
			began = append(began, w)
		} else {
			waited = append(waited, w)
		}
	}
	if len(began) != 1 || len(waited) != 1 || began[0].priority == waited[0].priority {
		return unknown(PrioritySign, "not one of two began before a slot was free")
	}
	word := LowerFirst
	if began[0].priority > waited[0].priority {
		word = HigherFirst
	}
	return known(PrioritySign, Shown, word, fmt.Sprintf("with all slots taken by requests of priority 0, one of priority %d took one's place, and one of priority %d waited", began[0].priority, waited[0].priority))
}
