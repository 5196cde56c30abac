package simengine

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// crowded draws an engine in which requests get in each other's way.
func crowded(t *rapid.T) Config {
	if rapid.Bool().Draw(t, "llama-server") {
		slots := rapid.IntRange(1, 6).Draw(t, "slots")
		cfg := LlamaServerConfig(slots, rapid.IntRange(10*slots, 80).Draw(t, "context"), rapid.Bool().Draw(t, "unified"))
		cfg.MaxBatchedTokens = rapid.IntRange(slots, 120).Draw(t, "budget")
		cfg.MeanOutput = rapid.SampledFrom([]int{0, 12}).Draw(t, "mean output")
		return cfg
	}
	cfg := DefaultConfig()
	cfg.BlockSize = rapid.IntRange(1, 8).Draw(t, "block size")
	cfg.MaxModelLen = rapid.IntRange(10, 80).Draw(t, "model len")
	least := ceilDiv(cfg.MaxModelLen, cfg.BlockSize)
	cfg.NumBlocks = 1 + least + rapid.IntRange(0, 2*least).Draw(t, "more blocks")
	cfg.MaxNumSeqs = rapid.IntRange(1, 6).Draw(t, "seqs")
	cfg.MaxBatchedTokens = rapid.IntRange(1, 120).Draw(t, "budget")
	cfg.Policy = rapid.SampledFrom([]Policy{FCFS, Priority}).Draw(t, "policy")
	cfg.PrefixCaching = rapid.Bool().Draw(t, "caching")
	cfg.WholePromptGate = rapid.Bool().Draw(t, "gate")
	cfg.OutputLag = rapid.Bool().Draw(t, "lag")
	cfg.Watermark = rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "watermark")
	cfg.LongPrefillThreshold = rapid.SampledFrom([]int{0, 0, 7}).Draw(t, "threshold")
	cfg.MeanOutput = rapid.SampledFrom([]int{0, 12}).Draw(t, "mean output")
	cfg.SplitCharacters = rapid.SampledFrom([]int{0, 3}).Draw(t, "split")
	if rapid.Bool().Draw(t, "whole prefills") {
		cfg.ChunkedPrefill, cfg.LongPrefillThreshold = false, 0
		cfg.MaxBatchedTokens = max(cfg.MaxBatchedTokens, cfg.MaxModelLen)
	}
	return cfg
}

// op is a step of a script: a request, an abort or nothing, after some time.
type op struct {
	after Time
	req   *Request
	abort int // of the request with this number, none when negative
}

func script(t *rapid.T, cfg Config) []op {
	var ops []op
	submitted := 0
	for range rapid.IntRange(1, 40).Draw(t, "ops") {
		o := op{after: Time(rapid.IntRange(0, 300).Draw(t, "after")) * 1e6, abort: -1}
		if submitted > 0 && rapid.IntRange(0, 5).Draw(t, "what") == 0 {
			o.abort = rapid.IntRange(0, submitted-1).Draw(t, "abort")
		} else {
			n := rapid.IntRange(1, cfg.MaxModelLen-1).Draw(t, "prompt")
			ids := rapid.IntRange(0, n).Draw(t, "of them ids")
			r := &Request{Tag: uint64(submitted), Synthetic: n - ids, MaxTokens: rapid.IntRange(1, 40).Draw(t, "output"),
				Seed: uint64(rapid.IntRange(0, 2).Draw(t, "text")), Priority: rapid.IntRange(0, 2).Draw(t, "priority"), IgnoreEOS: rapid.Bool().Draw(t, "ignore eos")}
			for i := range ids {
				r.Prompt = append(r.Prompt, Token(i%7)) // much in common
			}
			o.req = r
			submitted++
		}
		ops = append(ops, o)
	}
	return ops
}

// play runs a script with a check after every boundary, and until idle.
func play(t *rapid.T, cfg Config, ops []op, check func(*Engine)) []Event {
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	var ids []ID
	until := func(now Time) {
		for {
			at, busy := e.Next()
			if !busy || at > now {
				break
			}
			events = e.Advance(at, events)
			check(e)
		}
		events = e.Advance(now, events)
	}
	now := Time(0)
	for _, o := range ops {
		now += o.after
		until(now)
		if o.req != nil {
			id, err := e.Submit(now, *o.req)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if o.abort >= 0 {
			if err := e.Abort(now, ids[o.abort]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for steps := 0; ; steps++ {
		at, busy := e.Next()
		if !busy {
			break
		}
		if steps > 1_000_000 {
			t.Fatalf("does not come to rest:\n%v", e)
		}
		until(at)
	}
	if s := e.Stats(); s.Running+s.Waiting+s.UsedBlocks != 0 {
		t.Fatalf("idle, but:\n%v", e)
	}
	return events
}

// conserved checks that every block is free or held, and by whom.
func conserved(t *rapid.T, e *Engine) {
	if len(e.running) > e.cfg.MaxNumSeqs {
		t.Fatalf("%d run of at most %d", len(e.running), e.cfg.MaxNumSeqs)
	}
	held := 0
	refs := map[int32]int32{}
	for i := range e.requests {
		q := &e.requests[i]
		if q.id == 0 {
			continue
		}
		if q.running == e.waiting.contains(int32(i)) {
			t.Fatalf("r%d runs and waits, or neither:\n%v", q.tag, e)
		}
		if !q.running && q.held != 0 {
			t.Fatalf("r%d waits and holds %d blocks", q.tag, q.held)
		}
		if q.held*q.blockSize < q.computed {
			t.Fatalf("r%d has computed %d tokens in %d blocks", q.tag, q.computed, q.held)
		}
		if e.cfg.Scheduler == LlamaServer && q.held != q.computed {
			t.Fatalf("r%d has computed %d tokens and holds %d cells", q.tag, q.computed, q.held)
		}
		held += q.held
		for _, b := range q.table {
			refs[b]++
		}
	}
	if e.cfg.Scheduler == LlamaServer {
		places := slices.Clone(e.places)
		for i, slot := range e.running {
			places = append(places, e.requests[slot].place)
			if i > 0 && e.requests[e.running[i-1]].place >= e.requests[slot].place {
				t.Fatalf("not in the order of slots:\n%v", e)
			}
		}
		slices.Sort(places)
		if len(places) != e.cfg.MaxNumSeqs || len(slices.Compact(places)) != e.cfg.MaxNumSeqs {
			t.Fatalf("slots %v are free or taken, of %d:\n%v", places, e.cfg.MaxNumSeqs, e)
		}
		if len(e.places) > 0 && e.waiting.len() > 0 && e.stepping {
			t.Fatalf("a slot is free and a request deferred:\n%v", e)
		}
	}
	p := &e.pool
	if !p.caching {
		if held+p.free != p.total {
			t.Fatalf("%d blocks held and %d free of %d:\n%v", held, p.free, p.total, e)
		}
		return
	}
	free := 0
	for b := p.blocks[0].next; b != 0; b = p.blocks[b].next {
		free++
		if p.blocks[b].refs != 0 {
			t.Fatalf("block %d is free and has %d holders", b, p.blocks[b].refs)
		}
	}
	if free != p.free || free+len(refs) != p.total {
		t.Fatalf("%d blocks in the free list, %d counted, %d held of %d", free, p.free, len(refs), p.total)
	}
	findable := 0
	for b := 1; b < len(p.blocks); b++ {
		if p.blocks[b].refs != refs[int32(b)] {
			t.Fatalf("block %d: %d holders counted, %d found", b, p.blocks[b].refs, refs[int32(b)])
		}
		if p.blocks[b].filled {
			findable++
		}
	}
	for _, first := range p.cached {
		last := p.blocks[first].before
		for b := first; b != 0; b = p.blocks[b].same {
			if want := p.blocks[b].before; b != first && want != last {
				t.Fatalf("block %d comes after %d and names %d", b, last, want)
			}
			last = b
			findable--
		}
		if p.blocks[first].before != last {
			t.Fatalf("block %d is the last of its content, the first names %d", last, p.blocks[first].before)
		}
	}
	if findable != 0 {
		t.Fatalf("%d more blocks have content than can be found", findable)
	}
}

// undisturbed is the answer of a request as the chain alone gives it.
func undisturbed(cfg Config, r Request) (ids []Token, reason Reason) {
	c := startOf(r.Seed, r.Synthetic)
	for _, id := range r.Prompt {
		c.push(id)
	}
	most := min(r.MaxTokens, cfg.MaxModelLen-r.Synthetic-len(r.Prompt))
	for len(ids) < most {
		if !r.IgnoreEOS && c.ends(cfg.MeanOutput) {
			return append(ids, EndOfText), ByStop
		}
		id := c.next(cfg.SplitCharacters)
		c.push(id)
		ids = append(ids, id)
	}
	return ids, ByLength
}

// slotOrder checks what llama-server's events tell: requests start in the order of
// their arrival, and one that fails takes with it all that runs. Then they want more
// cells than there are, which can't be where each slot has its own context.
func slotOrder(t *rapid.T, cfg Config, ops []op, events []Event) {
	prompt := map[uint64]int{}
	for _, o := range ops {
		if o.req != nil {
			prompt[o.req.Tag] = o.req.Synthetic + len(o.req.Prompt)
		}
	}
	running := map[uint64]bool{}
	wanted := 0 // at most, by those that fail
	last := -1
	for _, ev := range append(events[:len(events):len(events)], Event{}) {
		if wanted > 0 && ev.Kind != Failed {
			if len(running) > 0 || wanted < cfg.NumBlocks {
				t.Fatalf("%+v: after a failure over %d cells of %d %v still run", ev, wanted, cfg.NumBlocks-1, running)
			}
			wanted = 0
		}
		switch ev.Kind {
		case Scheduled:
			if int(ev.Tag) < last {
				t.Fatalf("r%d starts after r%d", ev.Tag, last)
			}
			last = int(ev.Tag)
			running[ev.Tag] = true
		case Preempted:
			t.Fatalf("%+v", ev)
		case Failed:
			if cfg.MaxModelLen*cfg.MaxNumSeqs < cfg.NumBlocks {
				t.Fatalf("%+v, with a context of %d for each of %d slots of %d cells", ev, cfg.MaxModelLen, cfg.MaxNumSeqs, cfg.NumBlocks-1)
			}
			if !running[ev.Tag] {
				t.Fatalf("%+v did not run", ev)
			}
			wanted += prompt[ev.Tag] + int(ev.Output)
			delete(running, ev.Tag)
		case Finished, Aborted:
			delete(running, ev.Tag)
		}
	}
	if len(running) > 0 {
		t.Fatalf("still running: %v", running)
	}
}

// TestProperties: in whatever way requests get in each other's way, blocks and
// slots are conserved, each request ends exactly once, in order and in time, its
// tokens are those of an undisturbed run, and the same script gives the same
// events.
func TestProperties(t *testing.T) {
	preemptions, cached, failures := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := crowded(t)
		ops := script(t, cfg)
		events := play(t, cfg, ops, func(e *Engine) { conserved(t, e) })
		if again := play(t, cfg, ops, func(*Engine) {}); !slices.Equal(events, again) {
			t.Fatal("the same script gave other events")
		}
		if cfg.Scheduler == LlamaServer {
			slotOrder(t, cfg, ops, events)
		}
		tokens := map[uint64][]Token{}
		ended := map[uint64]Event{}
		last := Time(0)
		for _, ev := range events {
			if ev.At < last {
				t.Fatalf("event at %d after %d", ev.At, last)
			}
			last = ev.At
			if end, ok := ended[ev.Tag]; ok {
				t.Fatalf("%+v after %+v", ev, end)
			}
			cached += int(ev.Cached)
			switch ev.Kind {
			case Generated:
				tokens[ev.Tag] = append(tokens[ev.Tag], ev.Token)
			case Preempted:
				preemptions++
			case Failed:
				failures++
				if cfg.Scheduler != LlamaServer {
					t.Fatalf("%+v", ev)
				}
				ended[ev.Tag] = ev
			case Finished, Aborted:
				ended[ev.Tag] = ev
			}
			if int(ev.Output) != len(tokens[ev.Tag]) {
				t.Fatalf("%+v: %d tokens were seen", ev, len(tokens[ev.Tag]))
			}
		}
		for _, o := range ops {
			if o.req == nil {
				continue
			}
			end, ok := ended[o.req.Tag]
			if !ok {
				t.Fatalf("r%d never ended", o.req.Tag)
			}
			want, reason := undisturbed(cfg, *o.req)
			got := tokens[o.req.Tag]
			if end.Kind != Finished && len(got) <= len(want) {
				want, reason = want[:len(got)], 0
			}
			if !slices.Equal(got, want) || end.Reason != reason {
				t.Fatalf("r%d: %v, %v: undisturbed %v, %v", o.req.Tag, got, end.Reason, want, reason)
			}
		}
	})
	if preemptions == 0 || cached == 0 || failures == 0 {
		t.Errorf("%d preemptions, %d tokens cached, %d failures: the scripts are too tame", preemptions, cached, failures)
	}
}

// TestResume: a request whose prompt is another's prompt with its first k
// tokens goes on as the other did, on any engine.
func TestResume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		split := rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "split")
		prompt := Encode(nil, rapid.StringN(1, 60, -1).Draw(t, "prompt"))
		answer := func(prompt []Token, most int) (ids []Token) {
			cfg := DefaultConfig()
			cfg.SplitCharacters = split
			cfg.PrefixCaching = rapid.Bool().Draw(t, "caching")
			e, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Submit(0, Request{Prompt: prompt, MaxTokens: most}); err != nil {
				t.Fatal(err)
			}
			for _, ev := range e.Advance(1e12, nil) {
				if ev.Kind == Generated {
					ids = append(ids, ev.Token)
				}
			}
			return ids
		}
		const most = 40
		whole := answer(prompt, most)
		k := rapid.IntRange(1, most-1).Draw(t, "cut")
		if rest := answer(append(slices.Clone(prompt), whole[:k]...), most-k); !slices.Equal(rest, whole[k:]) {
			t.Fatalf("after %d tokens: %v: want %v", k, rest, whole[k:])
		}
	})
}

// TestQueue compares the waiting line with a sorted list.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var naive []item
		for i := range rapid.IntRange(1, 200).Draw(t, "ops") {
			if len(naive) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				at := rapid.IntRange(0, len(naive)-1).Draw(t, "which")
				q.remove(naive[at].slot)
				if q.contains(naive[at].slot) {
					t.Fatal("removed and there")
				}
				naive = slices.Delete(naive, at, at+1)
			} else {
				q.grow()
				it := item{int64(rapid.IntRange(-2, 2).Draw(t, "rank")), int64(i), int32(len(q.pos) - 1)}
				q.push(it)
				naive = append(naive, it)
			}
			if q.len() != len(naive) {
				t.Fatalf("%d items: want %d", q.len(), len(naive))
			}
			if len(naive) > 0 {
				first := slices.MinFunc(naive, func(a, b item) int {
					if a.before(b) {
						return -1
					}
					return 1
				})
				if q.head() != first.slot {
					t.Fatalf("head %d: want %d of %s", q.head(), first.slot, fmt.Sprint(naive))
				}
			}
		}
	})
}
