package probe

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"headgate/engine"
	"headgate/simengine"
	"headgate/stats"
)

// stall is a long prompt that was computed beside a running stream.
type stall struct{ stream, long seen }

// piece is about how many tokens of the prompt were computed in a step, by the longest
// times for which the stream beside it stood still: as much of the prompt as they are of
// all such times. 0: it did not stand still.
func (s *stall) piece() (about float64, times int, longest, usual time.Duration) {
	usual = s.stream.pace(0, s.long.sent)
	var still []time.Duration
	sum := time.Duration(0)
	for _, g := range s.stream.gaps(s.long.sent-usual, s.long.first()+2*usual) {
		if usual > 0 && g > 3*usual {
			still = append(still, g-usual)
			sum += g - usual
		}
	}
	if len(still) == 0 {
		return 0, 0, 0, usual
	}
	slices.Sort(still)
	// Of many the longest may be one that the reader was late for.
	longest = still[len(still)-1]
	if len(still) > 2 {
		longest = still[len(still)-2]
	}
	return float64(s.long.prompt) * float64(longest) / float64(sum), len(still), longest, usual
}

// aside is by which factor the piece that stalls tell may be wrong. Levels of the KV of
// which every second was missed are wrong by two.
const aside = 1.5

// judgeChunk tells how many prompt tokens are computed in a step at most. What an engine
// tells of its progress through a prompt is exact. So are the levels of its KV while one
// was computed alone, to a block, if none was missed; that is seen by the stalls of a
// stream beside other prompts, which by themselves only say between which numbers it is,
// for the last piece may be of any size.
func judgeChunk(alone seen, levels []int, block int, stalls []stall) Finding {
	var pieces []int
	for i := 1; i < len(alone.evaluated); i++ {
		if n := alone.evaluated[i] - alone.evaluated[i-1]; n > 0 {
			pieces = append(pieces, n)
		}
	}
	if len(pieces) >= 3 {
		for _, n := range pieces[:len(pieces)-1] {
			if n != pieces[0] {
				return unknown(ChunkTokens, fmt.Sprintf("the engine told pieces of %s tokens of one prompt", numbers(pieces)))
			}
		}
		return known(ChunkTokens, Shown, pieces[0], fmt.Sprintf("the engine told its progress through a prompt of %d tokens: pieces of %s", alone.prompt, numbers(pieces)))
	}
	c := pieceOf(levels, block)
	var why []string
	agree := len(stalls) > 0
	for i := range stalls {
		s := &stalls[i]
		about, times, longest, usual := s.piece()
		switch {
		case len(s.long.tokens) == 0 || s.long.cached > 0:
			why = append(why, fmt.Sprintf("a prompt of %d tokens was not computed: %s", s.long.prompt, s.long.message))
			agree = false
		case times == 0:
			why = append(why, fmt.Sprintf("a prompt of %d tokens did not hold up a stream beside it", s.long.prompt))
			agree = false
		default:
			why = append(why, fmt.Sprintf("a prompt of %d tokens held up a stream beside it %d times, for up to %s each, where its tokens are %s apart: by that a step takes about %.0f of them", s.long.prompt, times, ms(longest), ms(usual), about))
			agree = agree && float64(c) < about*aside && float64(c) > about/aside
		}
	}
	switch {
	case len(why) == 0:
		return unknown(ChunkTokens, "no long prompt was computed beside a stream")
	case c == 0:
		return unknown(ChunkTokens, append(why, fmt.Sprintf("that is no more than a guess, and the engine's KV in use did not tell: %s", numbers(levels)))...)
	}
	why = append(why, fmt.Sprintf("while a prompt of %d tokens was computed by itself, the engine's KV in use was %s tokens, in blocks of %d", alone.prompt, numbers(levels), max(1, block)))
	if !agree {
		return unknown(ChunkTokens, append(why, "these do not agree")...)
	}
	return known(ChunkTokens, Shown, c, why...)
}

func numbers(all []int) string {
	if len(all) == 0 {
		return "none"
	}
	var s []string
	for _, n := range all {
		s = append(s, fmt.Sprint(n))
	}
	return strings.Join(s, ", ")
}

// pieceOf is the size of a piece by the levels of KV that one after the other left, 0 if
// that can't be told. Each level but the last is so many whole pieces, rounded up to
// blocks, so that the more there are the better is known what a piece is. An engine says
// them as shares of its pool, which may be a block more than it has.
func pieceOf(levels []int, block int) int {
	block = max(1, block)
	if len(levels) < 2 {
		return 0
	}
	low, high := 0, math.MaxInt
	for i, l := range levels[:len(levels)-1] {
		low = max(low, (l-2*block)/(i+1)) // more than that
		high = min(high, l/(i+1))
	}
	if last := len(levels) - 1; low >= high || levels[last] > (last+1)*high+block {
		return 0
	}
	return high
}

// timed is what a step-time model is fitted to.
type timed struct {
	prompts []seen    // alone, with one token of output
	decodes []decoded // steps that only generate
	chunk   int       // prompt tokens of a step; 0: not known
	trip    time.Duration
}

// decoded is how long steps took that generated for some sequences.
type decoded struct {
	sequences int
	context   float64 // tokens that they held together, in the middle of it
	step      time.Duration
	steps     int
	apart     float64 // share by which the times of it differ
}

// Bounds of a fit that is worth something.
const (
	leastR2    = 0.95
	worstError = 0.15
	// alike is by which share times of the same may differ: the middle from the shortest.
	alike = 0.2
)

// judgeSteps fits step times. A first token takes the trip to the engine and back, a
// step for each piece of the prompt, and each of its tokens; a step that generates takes
// a constant, and more for each further sequence and for each token of context. How
// much of a first token's constant is the trip is known only from the engine's answers
// to other questions.
func judgeSteps(t timed) (Finding, *simengine.Model) {
	var firsts, steps stats.Regression
	var unlike []string
	lengths := map[int][]time.Duration{}
	for i := range t.prompts {
		if p := &t.prompts[i]; len(p.tokens) > 0 && p.cached <= 0 {
			n := p.prompt
			if p.usagePrompt > 0 {
				n = p.usagePrompt // of a text, only the engine knows
			}
			lengths[n] = append(lengths[n], p.ttft())
		}
	}
	for _, n := range slices.Sorted(maps.Keys(lengths)) {
		pieces := 1
		if t.chunk > 0 {
			pieces = (n + t.chunk - 1) / t.chunk
		}
		// The shortest of several: what else the machine and the way there do adds to it.
		shortest := slices.Min(lengths[n])
		firsts.Add(shortest.Seconds()*1e3, float64(pieces), float64(n))
		if middle := median(lengths[n]); float64(middle) > (1+alike)*float64(shortest) {
			unlike = append(unlike, fmt.Sprintf("prompts of %d tokens took %s and, in the middle, %s", n, ms(shortest), ms(middle)))
		}
	}
	widths, contexts := map[int]bool{}, map[float64]bool{}
	for _, d := range t.decodes {
		if d.steps < ran || d.step <= 0 {
			continue
		}
		if d.apart > alike {
			unlike = append(unlike, fmt.Sprintf("steps of %d sequences took %s one time and %.0f %% more another", d.sequences, ms(d.step), d.apart*100))
		}
		steps.Add(d.step.Seconds()*1e3, 1, float64(d.sequences-1), d.context)
		widths[d.sequences] = true
		contexts[math.Round(d.context/float64(d.sequences)/32)] = true
	}
	switch {
	case len(lengths) < 3:
		return unknown(Steps, fmt.Sprintf("prompts of %d lengths were computed, and it takes 3", len(lengths))), nil
	case len(widths) < 2 || len(contexts) < 2:
		return unknown(Steps, fmt.Sprintf("steps were seen with %d numbers of sequences and %d lengths of context, and it takes 2 of each", len(widths), len(contexts))), nil
	}
	first, r2 := firsts.Solve()
	step, _ := steps.Solve()
	worst, decodeWorst := firsts.Worst(first), steps.Worst(step)
	why := []string{
		fmt.Sprintf("first tokens of %d prompts of %d lengths alone: %.4g ms and %.4g ms a token; that explains %.1f %% of their spread, and the worst is off by %.0f %%", len(t.prompts), len(lengths), first[0], first[1], r2*100, worst*100),
		fmt.Sprintf("steps of %d streams and sets of streams: %.4g ms, %.4g ms more for each further one and %.4g ms for each token of context; the worst is off by %.0f %%", steps.Len(), step[0], step[1], step[2], decodeWorst*100),
	}
	switch {
	case 2*len(unlike) > len(lengths):
		return unknown(Steps, append(why, "the same took different times, so that something else was going on: "+strings.Join(unlike, "; "))...), nil
	case r2 < leastR2 || worst > worstError || first[1] <= 0:
		return unknown(Steps, append(why, "first tokens do not follow the prompts' length well enough")...), nil
	case decodeWorst > worstError || step[0] <= 0:
		return unknown(Steps, append(why, "steps do not follow what they have to do well enough")...), nil
	}
	trip := min(t.trip.Seconds()*1e3, first[0])
	var m simengine.Model
	m.Name, m.Source = "probe", "fitted to what a probe saw of a live engine"
	m.Overhead = trip
	// The rest of a first token's constant is that of a step without decodes, which a
	// step with them takes at least.
	m.Step.Base = min(max(first[0]-trip, 1e-3), step[0])
	m.Step.FirstDecode = step[0] - m.Step.Base
	m.Step.PrefillToken, m.Step.MoreDecode, m.Step.ContextToken = first[1], step[1], step[2]
	why = append(why, fmt.Sprintf("of a first token's constant %.4g ms are taken for the way to the engine and back, as other answers of it take", trip))
	return known(Steps, Shown, Fitted, why...), &m
}

// gate is a prompt that came when only its beginning fitted the KV.
type gate struct {
	hold        []seen // what filled it, running all the while
	control     *seen  // a prompt that fitted, while they ran
	pool, free  int    // tokens, as the engine said before
	block       int
	chunk       int // tokens of a step; 0: not known
	slots       int
	prompt      *seen
	from, to    time.Duration // when it was sent, and when it was looked at while the others still ran
	samples     []engine.Observation
	preemptions int64 // before
	why         string
}

// looks is how many different samples must show the same.
const looks = 5

// judgeWhole tells whether a request begins once its first piece fits or once all its
// prompt does. For that the prompt must be one of which a piece fitted and not the
// whole, with a slot free; and another must have begun that fitted.
func judgeWhole(g gate) Finding {
	add := func(s ...string) []string {
		if g.why != "" {
			s = append(s, g.why)
		}
		return s
	}
	if g.prompt == nil {
		return unknown(WholePrompt, add("no prompt was tried that fitted in part")...)
	}
	p := g.prompt
	switch {
	case g.chunk == 0:
		return unknown(WholePrompt, add("how much of a prompt a first piece is is not known")...)
	case g.free < g.chunk+g.block || p.prompt <= g.free+g.block:
		return unknown(WholePrompt, add(fmt.Sprintf("%d tokens were free for a prompt of %d in pieces of %d, which tells nothing", g.free, p.prompt, g.chunk))...)
	case g.control == nil || len(g.control.tokens) == 0:
		return unknown(WholePrompt, add("a prompt that fitted did not begin either")...)
	case len(g.hold)+1 > g.slots:
		return unknown(WholePrompt, add("no slot was free")...)
	}
	for i := range g.hold {
		if h := &g.hold[i]; !h.alive(g.to) || h.after(g.from, g.to) < early {
			return unknown(WholePrompt, add("what filled the KV did not run long enough")...)
		}
	}
	if p.started(g.to) {
		return unknown(WholePrompt, add("all of it ran, so that the KV is more than the engine says")...)
	}
	waited, began := 0, 0
	last := int64(-1)
	for _, o := range g.samples {
		if o.Running < 0 || o.Waiting < 0 || o.KVUsed < 0 || o.Progress == last {
			continue
		}
		last = o.Progress
		switch used := g.pool - g.free; {
		case o.Running > len(g.hold) || o.KVUsed > used+g.chunk/2 || o.Preemptions > g.preemptions:
			began++
		case o.Running == len(g.hold) && o.Waiting == 1:
			waited++
		}
	}
	said := fmt.Sprintf("a prompt of %d tokens came when %d of %d were free and a slot was, and is computed in pieces of up to %d", p.prompt, g.free, g.pool, g.chunk)
	switch {
	case began > 0 && waited <= began*20:
		return known(WholePrompt, Shown, Chunk, add(said, fmt.Sprintf("%d samples show it running or its KV taken", began))...)
	case began == 0 && waited >= looks:
		return known(WholePrompt, Shown, Whole, add(said, fmt.Sprintf("it waited in all of %d samples, while one of %d tokens had begun at once", waited, g.control.prompt))...)
	}
	return unknown(WholePrompt, add(said, fmt.Sprintf("%d samples show it waiting and %d running", waited, began))...)
}

// judgeKV tells what the whole pool holds. What the engine says is shown by having
// filled it: so much was held at once, and a little more had to wait.
func judgeKV(said, slots, context, model int, slotIsPool bool, l Finding, g *gate) Finding {
	if slotIsPool {
		switch {
		case l.Value == Shared && model <= context:
			return unknown(KVTokens, fmt.Sprintf("each slot is told %d tokens, which is all that the model takes: they share them, and may share more", context))
		case l.Value == Shared:
			return known(KVTokens, Said, context, fmt.Sprintf("each slot is told %d tokens, and they share them (see %s)", context, KVLayout))
		case l.Value == PerSlot:
			return known(KVTokens, Said, context*slots, fmt.Sprintf("each of %d slots is told %d tokens, and has them for itself (see %s)", slots, context, KVLayout))
		}
		return unknown(KVTokens, fmt.Sprintf("slots are told %d tokens, and whether they share them is not known", context))
	}
	if said == 0 {
		return unknown(KVTokens, "the engine does not say")
	}
	why := []string{fmt.Sprintf("the engine says %d", said)}
	if g != nil && g.control != nil && len(g.control.tokens) > 0 && g.prompt != nil && !g.prompt.started(g.to) && g.to > 0 && g.pool == said {
		held := g.control.prompt
		for i := range g.hold {
			held += g.hold[i].prompt
		}
		if held >= said*9/10 && said-g.free+g.prompt.prompt > said {
			return known(KVTokens, Shown, said, append(why, fmt.Sprintf("%d tokens were held at once, and a prompt with which it would have been %d had to wait", held, said-g.free+g.prompt.prompt))...)
		}
	}
	return known(KVTokens, Said, said, why...)
}

// judgeDecoded reads how long a step took while all of several streams generated: a
// stream's tokens come one a step. Of several times the same the middle one counts.
func judgeDecoded(times [][]seen) decoded {
	var all []decoded
	for _, streams := range times {
		d := decoded{sequences: len(streams)}
		from, to := time.Duration(0), time.Duration(math.MaxInt64)
		for i := range streams {
			if s := &streams[i]; len(s.tokens) >= 3 {
				from, to = max(from, s.tokens[1]), min(to, s.last())
			} else {
				to = 0
			}
		}
		for i := range streams {
			s := &streams[i]
			if n := len(s.gaps(from, to)); n > d.steps {
				d.steps, d.step = n, s.pace(from, to)
			}
			d.context += float64(s.prompt + s.after(0, from) + s.after(from, to)/2)
		}
		all = append(all, d)
	}
	slices.SortStableFunc(all, func(a, b decoded) int { return int(a.step - b.step) })
	middle := all[len(all)/2]
	if middle.step > 0 {
		middle.apart = float64(all[len(all)-1].step-all[0].step) / float64(middle.step)
	}
	return middle
}
