package probe

import (
	"errors"
	"strings"
	"testing"
	"time"

	"headgate/engine"
	"headgate/simengine"
)

const msec = time.Millisecond

// at is tokens from a time on, so far apart.
func at(from, apart time.Duration, n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = from + time.Duration(i)*apart
	}
	return all
}

// stream is a running request of few tokens.
func stream(tokens []time.Duration) seen {
	return seen{prompt: 16, limit: 100, tokens: tokens, usagePrompt: -1, cached: -1}
}

func answered(prompt int, took time.Duration, cached int) seen {
	return seen{prompt: prompt, limit: 1, tokens: []time.Duration{took}, cached: cached, usagePrompt: prompt, outcome: finished, ended: took}
}

// want is a finding's value and confidence, and a part of its evidence.
type want struct {
	value      any
	confidence Confidence
	evidence   string
}

func check(t *testing.T, f Finding, w want) {
	t.Helper()
	if f.Value != w.value || f.Confidence != w.confidence || !strings.Contains(strings.Join(f.Evidence, "\n"), w.evidence) {
		t.Errorf("%s: %v, %s, want %v, %s because of %q:\n%s", f.Subject, f.Value, f.Confidence, w.value, w.confidence, w.evidence, strings.Join(f.Evidence, "\n"))
	}
	p := Profile{Format: Format, Kind: engine.VLLM, Findings: []Finding{f}}
	if f.Subject == Steps && f.Value != nil {
		m := simengine.DefaultModel()
		p.StepTimes = &m
	}
	p.Validate(func(path string, value any, allowed string) { t.Errorf("%s: %v: allowed: %s", path, value, allowed) })
}

func TestJudgeSlots(t *testing.T) {
	together := func(n, run int) []seen {
		all := make([]seen, n)
		for i := range all {
			all[i] = stream(nil)
			if i < run {
				all[i] = stream(at(time.Duration(i)*msec, 10*msec, 60))
			}
		}
		return all
	}
	round := func(streams []seen) concurrency {
		return concurrency{streams: streams, from: 10 * msec, to: 400 * msec, room: 1 << 20}
	}
	after := together(6, 3)
	for i := range 3 { // as if one after the other
		after[i].tokens = at(time.Duration(i)*100*msec, 10*msec, 10)
		after[i].ended = time.Duration(i)*100*msec + 95*msec
	}
	broken := together(6, 4)
	broken[5].outcome, broken[5].message = failed, "out of memory"
	bunched := together(6, 2) // the first had ended before the second began
	bunched[0].tokens = append(at(0, msec, 5), at(100*msec, 0, 40)...)
	soon := round(together(6, 4))
	soon.from, soon.to = 150*msec, 400*msec
	tight := round(together(6, 4))
	tight.room = 100
	for name, c := range map[string]struct {
		rounds []concurrency
		said   int
		want   want
	}{
		"some wait":              {[]concurrency{round(together(4, 4)), round(together(8, 5))}, 0, want{5.0, Shown, "5 gave 24 tokens and more beside each other while 3 had none"}},
		"not what is said":       {[]concurrency{round(together(6, 4))}, 8, want{4.0, Shown, "the engine says 8"}},
		"all run":                {[]concurrency{round(together(4, 4)), round(together(8, 8))}, 0, want{nil, Unknown, "8 at once or more"}},
		"one after the other":    {[]concurrency{round(after)}, 0, want{nil, Unknown, "ended or began"}},
		"some may be slow":       {[]concurrency{soon}, 0, want{nil, Unknown, "slower to begin"}},
		"read late":              {[]concurrency{round(bunched)}, 0, want{nil, Unknown, "ended or began"}},
		"the KV may be full":     {[]concurrency{tight}, 0, want{nil, Unknown, "might want"}},
		"one was broken off":     {[]concurrency{round(broken)}, 0, want{nil, Unknown, "out of memory"}},
		"nothing was sent":       {nil, 4, want{nil, Unknown, "no streams"}},
		"fewer than in a before": {[]concurrency{round(together(4, 4)), round(together(8, 3))}, 0, want{nil, Unknown, "fewer ran than before"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgeSlots(c.rounds, c.said), c.want) })
	}
}

// full is an engine of two slots at which some wait, of which the first slot is freed
// at 1 s.
func full(priorities []int, order []int) queue {
	q := queue{from: 100 * msec, freed: time.Second, to: 2 * time.Second}
	q.running = []seen{stream(at(0, 10*msec, 100)), stream(at(0, 10*msec, 200))}
	q.running[0].aborting = q.freed
	for _, p := range priorities {
		q.waiting = append(q.waiting, seen{prompt: 16, limit: 4, priority: p, sent: 50 * msec})
	}
	for k, i := range order {
		q.waiting[i].tokens = at(q.freed+time.Duration(k+1)*60*msec, 10*msec, 4)
	}
	return q
}

func TestJudgeWaiting(t *testing.T) {
	waits := full([]int{-100, 100}, []int{0, 1})
	preempts := full([]int{-100, 100}, nil)
	preempts.running[1].tokens = at(0, 10*msec, 20) // stands still from 190 ms on
	preempts.waiting[0].tokens = at(210*msec, 10*msec, 4)
	beside := full([]int{-100, 100}, nil)
	beside.waiting[0].tokens = at(210*msec, 10*msec, 4)
	short := full([]int{-100, 100}, []int{0, 1})
	short.from = 900 * msec
	refusing := full([]int{-100, 100}, nil)
	refusing.waiting[0].outcome, refusing.waiting[0].message = refused, "priority is not supported"
	gone := full([]int{-100, 100}, []int{0, 1})
	gone.running[1].ended = 500 * msec
	for name, c := range map[string]struct {
		q    queue
		want want
	}{
		"it waits":                       {waits, want{Waits, Shown, "had no token"}},
		"it takes a place":               {preempts, want{Preempts, Shown, "priority -100 began, and a running one stood still"}},
		"it runs beside all":             {beside, want{nil, Unknown, "not all slots were taken"}},
		"not for long enough":            {short, want{nil, Unknown, "only 9 tokens"}},
		"priorities are refused":         {refusing, want{nil, Unknown, "priority is not supported"}},
		"a slot had become free":         {gone, want{nil, Unknown, "not all taken"}},
		"nothing was seen of the engine": {queue{}, want{nil, Unknown, "no full engine"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgeWaiting(c.q), c.want) })
	}
	check(t, judgePreempting(preempts), want{LowerFirst, Shown, "one of priority -100 took one's place"})
	preempts.waiting[0].priority, preempts.waiting[1].priority = 100, -100
	check(t, judgePreempting(preempts), want{HigherFirst, Shown, "one of priority 100 took one's place"})
	check(t, judgePreempting(waits), want{nil, Unknown, "not one of two"})
}

func TestJudgePriority(t *testing.T) {
	round := func(arrived []int, by func(a, b int) bool) queue {
		order := []int{0, 1, 2, 3}
		for i := range order { // insertion sort, which keeps the order of equals
			for k := i; k > 0 && by(arrived[order[k]], arrived[order[k-1]]); k-- {
				order[k], order[k-1] = order[k-1], order[k]
			}
		}
		return full(arrived, order)
	}
	all := func(by func(a, b int) bool) []queue {
		var rounds []queue
		for _, a := range arrivals {
			rounds = append(rounds, round(a, by))
		}
		return rounds
	}
	lower := func(a, b int) bool { return a < b }
	arrival := func(a, b int) bool { return false }
	mixed := all(lower)
	mixed[1] = round(arrivals[1], arrival)
	together := all(lower)
	for i := range together[0].waiting {
		together[0].waiting[i].tokens = at(1100*msec, 10*msec, 4)
	}
	twoSlots := all(lower)
	twoSlots[2].running[1].ended = 1100 * msec
	for name, c := range map[string]struct {
		rounds []queue
		want   want
	}{
		"lower":                {all(lower), want{LowerFirst, Shown, "began in the order 10, 20, 30, 40"}},
		"higher":               {all(func(a, b int) bool { return a > b }), want{HigherFirst, Shown, "began in the order 40, 30, 20, 10"}},
		"arrival":              {all(arrival), want{Ignored, Shown, "began in the order 30, 10, 40, 20"}},
		"once another way":     {mixed, want{nil, Unknown, "same each time"}},
		"too few can be told":  {together, want{nil, Unknown, "could not be told"}},
		"one more can be told": {append(together, round(arrivals[0], lower)), want{LowerFirst, Shown, "could not be told"}},
		"two slots were free":  {twoSlots, want{nil, Unknown, "could not be told"}},
		"two orders are few":   {all(lower)[:2], want{nil, Unknown, "same each time"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgePriority(c.rounds), c.want) })
	}
	// None of the arrivals is an order of priorities: that would be told from no other.
	for _, a := range arrivals {
		if q := round(a, arrival); judgePriority([]queue{q, q, q}).Value != Ignored {
			t.Errorf("%v can't be told from an order of priorities", a)
		}
	}
}

func TestJudgeAbort(t *testing.T) {
	good := full([]int{1, 2}, []int{0, 1})
	early := full([]int{1, 2}, []int{0, 1})
	early.waiting[1].tokens = at(200*msec, 10*msec, 4)
	check(t, judgeAbort([]queue{good, good, good}), want{0.06, Shown, "60 ms, 60 ms, 60 ms"})
	check(t, judgeAbort([]queue{good, early, good}), want{nil, Unknown, "2 times"})
	ended := func(by engine.ConfirmedBy) seen {
		return seen{tokens: at(0, msec, 3), aborting: 5 * msec, ended: 6 * msec, outcome: aborted, confirmed: by}
	}
	check(t, judgeTold([]seen{ended(engine.BySlot), ended(engine.BySlot), ended(engine.BySlot)}), want{"slot", Shown, "3 aborts"})
	check(t, judgeTold([]seen{ended(engine.ByProgress), ended(engine.ByGrace), ended(engine.ByProgress)}), want{"grace", Shown, "3 aborts of running requests 1"})
	check(t, judgeTold([]seen{ended(engine.ByProgress), ended(engine.Unconfirmed), ended(engine.ByProgress)}), want{nil, Unknown, "1 were not confirmed"})
	check(t, judgeTold([]seen{ended(engine.ByProgress)}), want{nil, Unknown, "it takes 3"})
}

func TestJudgePrefix(t *testing.T) {
	three := func(n int, took time.Duration, cached int) []seen {
		return []seen{answered(n, took, cached), answered(n, took+msec, cached), answered(n, took+2*msec, cached)}
	}
	short := three(16, 5*msec, -1)
	for name, c := range map[string]struct {
		u    reuse
		said bool
		want want
	}{
		"faster, untold":            {reuse{short, three(512, 60*msec, -1), three(512, 8*msec, -1), three(512, 60*msec, -1)}, false, want{Kept, Shown, "does not tell"}},
		"faster and told":           {reuse{short, three(512, 60*msec, 0), three(512, 8*msec, 496), three(512, 60*msec, 0)}, true, want{Kept, Shown, "3 of 3"}},
		"as slow":                   {reuse{short, three(512, 60*msec, -1), three(512, 60*msec, -1), three(512, 60*msec, -1)}, false, want{None, Shown, "took"}},
		"as slow, said":             {reuse{short, three(512, 60*msec, -1), three(512, 60*msec, -1), three(512, 60*msec, -1)}, true, want{None, Shown, "which was not seen"}},
		"told, too short to see":    {reuse{short, three(32, 6*msec, 0), three(32, 6*msec, 16), three(32, 6*msec, 0)}, true, want{Kept, Shown, "3 of 3"}},
		"too short to see":          {reuse{short, three(32, 6*msec, -1), three(32, 6*msec, -1), three(32, 6*msec, -1)}, true, want{nil, Unknown, "too little"}},
		"told, and as slow":         {reuse{short, three(512, 60*msec, 0), three(512, 60*msec, 496), three(512, 60*msec, 0)}, true, want{nil, Unknown, "do not tell"}},
		"faster, told of none":      {reuse{short, three(512, 60*msec, 0), three(512, 8*msec, 0), three(512, 60*msec, 0)}, false, want{nil, Unknown, "told no cached"}},
		"others are found too":      {reuse{short, three(512, 8*msec, 400), three(512, 8*msec, 496), three(512, 8*msec, 400)}, false, want{nil, Unknown, "nobody had sent"}},
		"half as fast":              {reuse{short, three(512, 60*msec, -1), three(512, 42*msec, -1), three(512, 60*msec, -1)}, false, want{nil, Unknown, "do not tell"}},
		"a prompt had no answer":    {reuse{short, three(512, 60*msec, -1), append(three(512, 60*msec, -1), seen{message: "gone"}), three(512, 60*msec, -1)}, false, want{nil, Unknown, "gone"}},
		"it was not finished early": {reuse{short: short}, false, want{nil, Unknown, "too few"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgePrefix(c.u, c.said), c.want) })
	}
}

func TestJudgeContext(t *testing.T) {
	no := func(n int) *seen {
		return &seen{prompt: n, outcome: refused, status: 400, context: true, message: "too long"}
	}
	yes := func(n int) seen { return answered(n, 100*msec, -1) }
	cut := yes(4097)
	cut.usagePrompt = 2000
	counted := yes(4095)
	counted.usagePrompt = 4000
	taken := yes(4097)
	busy := &seen{prompt: 4097, outcome: refused, status: 503, message: "busy"}
	broken := &seen{prompt: 4097, outcome: failed, message: "connection reset"}
	for name, c := range map[string]struct {
		l    limits
		want want
	}{
		"as said":                {limits{said: 4096, above: no(4097), tries: []seen{yes(4095), *no(4096)}, exact: true}, want{4096.0, Shown, "too long"}},
		"less than said":         {limits{said: 4096, above: no(4097), tries: []seen{yes(1275), *no(1276)}, exact: true}, want{1276.0, Shown, "says 4096, which is not what it does"}},
		"silently cut":           {limits{said: 4096, above: &cut, exact: true}, want{nil, Unknown, "silently cut to 2000"}},
		"more than said":         {limits{said: 4096, above: &taken, exact: true}, want{nil, Unknown, "higher than what it says"}},
		"counted otherwise":      {limits{said: 4096, above: no(4097), tries: []seen{counted}, exact: true}, want{nil, Unknown, "counted as 4000"}},
		"too dear":               {limits{said: 4096, exact: true, why: "too dear"}, want{4096.0, Said, "too dear"}},
		"refused, no more tried": {limits{said: 4096, above: no(4097), exact: true}, want{4096.0, Said, "the engine says 4096"}},
		"the limit is not found": {limits{said: 4096, above: no(4097), tries: []seen{*no(4095), yes(2000)}, exact: true}, want{nil, Unknown, "was not found"}},
		"refused for load":       {limits{said: 4096, above: busy, tries: []seen{yes(4095)}, exact: true}, want{4096.0, Said, "need not be for its length"}},
		"broken off":             {limits{said: 4096, above: broken, tries: []seen{yes(4095)}, exact: true}, want{4096.0, Said, "connection reset"}},
		"of words, not tokens":   {limits{said: 4096, above: no(4097), tries: []seen{yes(4095)}}, want{4096.0, Said, "the engine says"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgeContext(c.l), c.want) })
	}
}

func TestJudgeLayout(t *testing.T) {
	long := func(n, tokens int) *seen {
		return &seen{prompt: n, tokens: at(0, msec, tokens), usagePrompt: n, outcome: finished}
	}
	// Two that ran beside each other, the second from 100 ms on.
	pair := func(n int) []seen {
		return []seen{{prompt: n, tokens: at(0, 10*msec, 50)}, {prompt: n, sent: 50 * msec, tokens: at(101*msec, 10*msec, 10)}}
	}
	// The first had ended before the second began, and its last tokens were read late.
	late := pair(765)
	late[0].tokens = append(at(0, 10*msec, 5), at(150*msec, 0, 30)...)
	out := pair(4915)
	out[0].tokens = at(0, 10*msec, 10)
	for i := range out {
		out[i].outcome, out[i].context, out[i].message = failed, true, "Context size has been exceeded."
	}
	out[1].tokens = nil
	behind := pair(4915)
	behind[1].tokens = nil
	cut := long(1416, 8)
	cut.usagePrompt = 1276
	for name, c := range map[string]struct {
		l    layout
		want want
	}{
		"one longer than a part":             {layout{slots: 4, pool: 5104, block: 16, context: 4096, model: 4096, long: long(1416, 8)}, want{Shared, Shown, "a sequence of 1424 tokens ran"}},
		"one longer, silently cut":           {layout{slots: 4, pool: 5104, block: 16, context: 4096, model: 4096, long: cut}, want{nil, Unknown, "nothing was seen"}},
		"one longer was refused":             {layout{slots: 4, pool: 5104, block: 16, context: 4096, model: 4096, long: long(1416, 0)}, want{nil, Unknown, "nothing was seen"}},
		"none may be longer":                 {layout{slots: 4, pool: 5104, block: 16, context: 1000, model: 1000}, want{nil, Unknown, "less than a slot's part of 1276"}},
		"the model's limit is a part":        {layout{slots: 4, pool: 5104, block: 16, context: 1276, model: 1276}, want{nil, Unknown, "the model's own limit: both would look the same"}},
		"a part, and two hold more":          {layout{slots: 4, pool: 5104, block: 16, context: 1276, model: 4096, pair: pair(765), both: 200 * msec}, want{PerSlot, Shown, "the model itself takes 4096"}},
		"one after the other":                {layout{slots: 4, pool: 5104, block: 16, context: 1276, model: 4096, pair: late, both: 200 * msec}, want{nil, Unknown, "not both ran"}},
		"two, of the model's own limit":      {layout{slots: 4, pool: 5104, block: 16, context: 1276, model: 1276, pair: pair(765), both: 200 * msec}, want{nil, Unknown, "may be the model's own limit"}},
		"two, of a limit with no reason":     {layout{slots: 4, pool: 9000, block: 16, context: 1276, model: 4096, pair: pair(765), both: 200 * msec}, want{nil, Unknown, "why is not known"}},
		"slots hold more than one is told":   {layout{slots: 4, block: 1, context: 2048, model: 8192, slotIsPool: true, pair: pair(1228), both: 200 * msec}, want{PerSlot, Shown, "a shared pool of this engine would have had 2048"}},
		"so they do, but it's all there is":  {layout{slots: 4, block: 1, context: 8192, model: 8192, slotIsPool: true, pair: pair(4915), both: 200 * msec}, want{nil, Unknown, "may be the model's own limit"}},
		"so they do, of a model not known":   {layout{slots: 4, block: 1, context: 2048, slotIsPool: true, pair: pair(1228), both: 200 * msec}, want{nil, Unknown, "may be the model's own limit"}},
		"the KV runs out":                    {layout{slots: 4, block: 1, context: 8192, model: 8192, slotIsPool: true, pair: out, solo: long(4915, 4)}, want{Shared, Shown, "Context size has been exceeded"}},
		"it runs out for one alone":          {layout{slots: 4, block: 1, context: 8192, model: 8192, slotIsPool: true, pair: out, solo: long(4915, 0)}, want{nil, Unknown, "did not run by itself either"}},
		"the second only waits":              {layout{slots: 4, block: 1, context: 8192, model: 8192, slotIsPool: true, pair: behind, both: time.Second}, want{nil, Unknown, "not for want of KV"}},
		"two are not more than one may have": {layout{slots: 4, block: 1, context: 8192, model: 32768, slotIsPool: true, pair: pair(4000), both: 200 * msec}, want{nil, Unknown, "no more than one may have"}},
		"slots are not known":                {layout{pool: 5104, block: 16, context: 4096, model: 4096, long: long(4000, 8)}, want{nil, Unknown, "not known"}},
		"one slot":                           {layout{slots: 1, pool: 5104, block: 16, context: 4096, long: long(4000, 8)}, want{nil, Unknown, "neither"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgeLayout(c.l), c.want) })
	}
}

func TestJudgeKV(t *testing.T) {
	check(t, judgeKV(0, 4, 8192, 32768, true, Finding{Value: Shared}, nil), want{8192.0, Said, "they share them"})
	check(t, judgeKV(0, 4, 2048, 8192, true, Finding{Value: PerSlot}, nil), want{8192.0, Said, "each of 4 slots"})
	check(t, judgeKV(0, 4, 8192, 8192, true, Finding{Value: Shared}, nil), want{nil, Unknown, "may share more"})
	check(t, judgeKV(0, 4, 2048, 8192, true, Finding{}, nil), want{nil, Unknown, "not known"})
	check(t, judgeKV(0, 4, 2048, 8192, false, Finding{}, nil), want{nil, Unknown, "does not say"})
	check(t, judgeKV(5120, 4, 4096, 4096, false, Finding{}, nil), want{5120.0, Said, "says 5120"})
	filled := gate{pool: 5120, free: 2416, hold: []seen{{prompt: 2700}}, control: &seen{prompt: 2000, tokens: at(0, msec, 2)}, prompt: &seen{prompt: 2736}, to: time.Second}
	check(t, judgeKV(5120, 4, 4096, 4096, false, Finding{}, &filled), want{5120.0, Shown, "had to wait"})
	filled.prompt.tokens = at(msec, msec, 2) // it fitted
	check(t, judgeKV(5120, 4, 4096, 4096, false, Finding{}, &filled), want{5120.0, Said, "says 5120"})
}

func TestJudgeChunk(t *testing.T) {
	progress := func(to ...int) seen { return seen{prompt: to[len(to)-1], evaluated: to} }
	// A stream that stands still for steps of a prompt, from 500 ms on.
	held := func(n int, steps ...time.Duration) stall {
		tokens := at(0, 10*msec, 50)
		now := 490 * msec
		for _, s := range steps {
			now += s + 10*msec
			tokens = append(tokens, now)
		}
		first := now
		tokens = append(tokens, at(now+10*msec, 10*msec, 10)...)
		return stall{stream(tokens), seen{prompt: n, sent: 495 * msec, tokens: at(first, 10*msec, 4), cached: -1}}
	}
	two := held(4080, 180*msec, 178*msec)
	for name, c := range map[string]struct {
		alone  seen
		levels []int
		stalls []stall
		want   want
	}{
		"told":                    {progress(0, 256, 512, 768, 800), nil, nil, want{256.0, Shown, "pieces of 256, 256, 256, 32"}},
		"told, unevenly":          {progress(0, 256, 400, 768, 800), nil, nil, want{nil, Unknown, "pieces of 256, 144, 368, 32"}},
		"seen twice":              {seen{prompt: 4080}, []int{2048, 4080}, []stall{two, held(2856, 180*msec, 71*msec)}, want{2048.0, Shown, "in use was 2048, 4080"}},
		"to a block":              {seen{prompt: 4080}, []int{704, 1408, 2112, 2800, 3504, 4080}, []stall{held(4080, 61*msec, 61*msec, 61*msec, 61*msec, 61*msec, 50*msec)}, want{700.0, Shown, "blocks of 16"}},
		"of a pool with one more": {seen{prompt: 4080}, []int{640, 1280, 1920, 2576, 3216, 3856, 4096}, []stall{held(4080, 56*msec, 56*msec, 56*msec, 56*msec, 56*msec, 56*msec, 21*msec)}, want{640.0, Shown, "2576"}},
		"every second was missed": {seen{prompt: 4080}, []int{2048, 4080}, []stall{held(4080, 90*msec, 90*msec, 90*msec, 89*msec)}, want{nil, Unknown, "do not agree"}},
		"one was missed":          {seen{prompt: 4080}, []int{704, 2112, 2800, 4080}, []stall{held(4080, 61*msec, 61*msec, 61*msec, 61*msec, 61*msec, 50*msec)}, want{nil, Unknown, "did not tell"}},
		"no levels":               {seen{prompt: 4080}, nil, []stall{two}, want{nil, Unknown, "no more than a guess"}},
		"one piece":               {seen{prompt: 4080}, []int{4080}, []stall{held(4080, 358*msec)}, want{nil, Unknown, "did not tell"}},
		"nothing stood still":     {seen{prompt: 4080}, []int{2048, 4080}, []stall{held(4080, msec, msec)}, want{nil, Unknown, "did not hold up"}},
		"levels alone":            {seen{prompt: 4080}, []int{2048, 4080}, nil, want{nil, Unknown, "no long prompt"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgeChunk(c.alone, c.levels, 16, c.stalls), c.want) })
	}
}

// TestJudgeSteps: of times that a model makes, its figures are found again, and of
// times that none makes there are none.
func TestJudgeSteps(t *testing.T) {
	model := simengine.DefaultModel()
	first := func(n int, late time.Duration) seen {
		took := model.Step.Base + model.Step.PrefillToken*float64(n) + 2
		return answered(n, time.Duration(took*1e6)+late, -1)
	}
	step := func(n int, context float64) decoded {
		took := model.Step.Base + model.Step.FirstDecode + model.Step.MoreDecode*float64(n-1) + model.Step.ContextToken*context
		return decoded{sequences: n, context: context, step: time.Duration(took * 1e6), steps: 30}
	}
	good := timed{trip: 2 * msec, decodes: []decoded{step(1, 16), step(1, 2000), step(1, 4000), step(2, 40), step(4, 80)}}
	late := timed{trip: 2 * msec, decodes: good.decodes}
	for _, n := range []int{256, 512, 1024, 2048} {
		good.prompts = append(good.prompts, first(n, 0), first(n, 0), first(n, time.Second)) // now and then one is late
		late.prompts = append(late.prompts, first(n, 0), first(n, time.Second), first(n, time.Second))
	}
	f, m := judgeSteps(good)
	check(t, f, want{Fitted, Shown, "4 lengths"})
	if m == nil {
		t.Fatal("no model")
	}
	near := func(name string, have, want float64) {
		if d := have - want; d > 0.01*want || d < -0.01*want {
			t.Errorf("%s: %.4g, planted %.4g", name, have, want)
		}
	}
	near("base", m.Step.Base, model.Step.Base)
	near("first decode", m.Step.FirstDecode, model.Step.FirstDecode)
	near("more decode", m.Step.MoreDecode, model.Step.MoreDecode)
	near("prefill token", m.Step.PrefillToken, model.Step.PrefillToken)
	near("context token", m.Step.ContextToken, model.Step.ContextToken)

	flat, wild, narrow, cached, unsteady := good, good, good, good, good
	flat.prompts = []seen{answered(256, 100*msec, -1), answered(512, 100*msec, -1), answered(1024, 100*msec, -1)}
	wild.prompts = []seen{answered(256, 300*msec, -1), answered(512, 100*msec, -1), answered(1024, 400*msec, -1), answered(2048, 150*msec, -1)}
	narrow.decodes = good.decodes[:3]
	cached.prompts = []seen{answered(256, 10*msec, 200), answered(512, 10*msec, 500), answered(1024, 10*msec, 1000)}
	unsteady.decodes = []decoded{step(1, 16), step(4, 2000), {sequences: 2, context: 40, step: msec, steps: 30}}
	for name, c := range map[string]struct {
		t   timed
		why string
	}{
		"first tokens do not depend on length": {flat, "do not follow"}, "nor on anything": {wild, "do not follow"},
		"most are late":           {late, "the same took different times"},
		"one number of sequences": {narrow, "takes 2 of each"}, "nothing was computed": {cached, "0 lengths"}, "steps are of no kind": {unsteady, "steps do not follow"},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := judgeSteps(c.t)
			check(t, f, want{nil, Unknown, c.why})
			if m != nil {
				t.Error("there is a model")
			}
		})
	}
}

func TestJudgeWhole(t *testing.T) {
	base := func() gate {
		g := gate{pool: 5120, free: 2416, block: 16, chunk: 2048, slots: 4, from: 100 * msec, to: time.Second,
			hold: []seen{stream(at(0, 10*msec, 100))}, control: &seen{prompt: 1800, tokens: at(0, msec, 2)}, prompt: &seen{prompt: 2736}}
		g.hold[0].prompt = 2700
		return g
	}
	show := func(running, waiting, used int, preempted int64) []engine.Observation {
		var all []engine.Observation
		for i := range 10 {
			all = append(all, engine.Observation{Running: running, Waiting: waiting, KVUsed: used, Progress: int64(i), Preemptions: preempted})
		}
		return all
	}
	with := func(change func(g *gate), samples []engine.Observation) gate {
		g := base()
		g.samples = samples
		change(&g)
		return g
	}
	same := func(*gate) {}
	stale := show(1, 1, 2704, 0)
	for i := range stale {
		stale[i].Progress = 7
	}
	for name, c := range map[string]struct {
		g    gate
		want want
	}{
		"it waits":                  {with(same, show(1, 1, 2704, 0)), want{Whole, Shown, "waited in all of 10 samples"}},
		"it begins":                 {with(same, show(2, 0, 4752, 0)), want{Chunk, Shown, "10 samples show it running"}},
		"it begins and is put back": {with(same, show(1, 1, 2704, 3)), want{Chunk, Shown, "show it running or its KV taken"}},
		"gauges stand still":        {with(same, stale), want{nil, Unknown, "1 samples"}},
		"not to be seen":            {with(same, nil), want{nil, Unknown, "0 samples"}},
		"all of it fits":            {with(func(g *gate) { g.prompt.prompt = 2400 }, show(1, 1, 2704, 0)), want{nil, Unknown, "tells nothing"}},
		"no piece of it fits":       {with(func(g *gate) { g.free = 1000 }, show(1, 1, 2704, 0)), want{nil, Unknown, "tells nothing"}},
		"pieces are not known":      {with(func(g *gate) { g.chunk = 0 }, show(1, 1, 2704, 0)), want{nil, Unknown, "is not known"}},
		"what fits waits as well":   {with(func(g *gate) { g.control.tokens = nil }, show(1, 1, 2704, 0)), want{nil, Unknown, "did not begin either"}},
		"no slot is free":           {with(func(g *gate) { g.slots = 1 }, show(1, 1, 2704, 0)), want{nil, Unknown, "no slot was free"}},
		"what fills it ends":        {with(func(g *gate) { g.hold[0].ended = 300 * msec }, show(1, 1, 2704, 0)), want{nil, Unknown, "long enough"}},
		"it runs to its end":        {with(func(g *gate) { g.prompt.tokens = at(500*msec, msec, 2) }, show(2, 0, 4752, 0)), want{nil, Unknown, "more than the engine says"}},
		"it was not tried":          {gate{why: errors.New("too dear").Error()}, want{nil, Unknown, "too dear"}},
	} {
		t.Run(name, func(t *testing.T) { check(t, judgeWhole(c.g), c.want) })
	}
}
