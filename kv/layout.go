package kv

import (
	"fmt"
	"math"
)

// layout makes each stage's pools as the engine lays its memory out.
func (c *computer) layout(r *Report) error {
	for i := range c.stages {
		s := &c.stages[i]
		var pools []pool
		var err error
		switch c.e.Name {
		case LlamaServer:
			pools, err = c.llamaServer(s, r)
		case SGLang:
			pools, err = c.sglang(s, r)
		case VLLM:
			pools = c.vllm(s, r)
		default:
			pools = c.plain(s, r)
		}
		if err != nil {
			return err
		}
		c.pools = append(c.pools, pools)
	}
	return nil
}

// size64 is a budget as a pool's size; none is no limit.
func size64(budget int64) int64 {
	if budget == 0 {
		return math.MaxInt64
	}
	return budget
}

// grown is the tokens of sessions in layers that keep all of them.
func (c *computer) grown(n, context, prefix int64) int64 {
	if !c.e.PrefixCaching && c.e.Sharing != NotSaid {
		prefix = 0
	}
	shared := prefix / c.block * c.block
	return add(shared, mul(n, RoundUp(context, c.block)-shared))
}

// slid is their tokens in layers that slide: a window each, which may begin inside
// a block, and the tokens of the one step that computes a prompt.
func (c *computer) slid(n, context, window int64) int64 {
	if context <= window {
		return mul(n, RoundUp(context, c.block))
	}
	each := RoundUp(window, c.block)
	if c.block > 1 {
		each = min(each+c.block, RoundUp(context, c.block))
	}
	return add(mul(n, each), min(RoundUp(c.e.Chunk, c.block), RoundUp(context, c.block)-each))
}

// bytes is one pool of bytes from which every kind of layer takes.
func (c *computer) bytes(s *stage) func(n, context, prefix int64) int64 {
	return func(n, context, prefix int64) int64 {
		sum := add(mul(s.grow, c.grown(n, context, prefix)), mul(n, s.state))
		for _, g := range s.groups {
			if g.Kind != Sliding {
				continue
			}
			tokens := c.slid(n, context, g.Window)
			if c.e.SlidingFull {
				tokens = c.grown(n, context, prefix)
			}
			sum = add(sum, mul(g.PerToken, tokens))
		}
		return sum
	}
}

// least lowers a report's pool to a stage's: the stage that holds least limits.
func (r *Report) least(tokens, blocks int64) {
	if r.Pool == nil || tokens < r.Pool.Tokens {
		r.Pool = &Pool{tokens, blocks}
	}
}

// plain takes what the layers need from the budget, and knows no more.
func (c *computer) plain(s *stage, r *Report) []pool {
	growing := s.grow
	if c.e.SlidingFull {
		growing = add(growing, s.sliding())
	}
	budget := size64(c.q.Budget)
	if c.q.Budget > 0 && growing > 0 && s.state == 0 && (s.sliding() == 0 || c.e.SlidingFull) {
		blocks := c.q.Budget / mul(growing, c.block)
		r.least(blocks*c.block, blocks)
		if c.e.Name == VLLM {
			// One block is never given out.
			budget = mul(max(0, blocks-1), mul(growing, c.block))
		}
	}
	return []pool{{"kv", budget, 1, c.bytes(s)}}
}

// vllm pages a model with several kinds of layers: layers of one kind form groups
// of equal numbers, and a block of any group takes the same bytes, so memory can
// go from one to another. What does not fill a group or a block is lost.
func (c *computer) vllm(s *stage, r *Report) []pool {
	if s.grow == 0 && s.state == 0 && len(s.groups) <= 1 || s.state == 0 && (s.sliding() == 0 || c.e.SlidingFull) {
		return c.plain(s, r)
	}
	var growing, page int64 // the largest bytes of a token, then of a block, in one layer
	var state int64
	least, most := math.MaxInt, 0
	for _, g := range s.groups {
		least, most = min(least, g.Layers), max(most, g.Layers)
		if g.Kind == State {
			state = max(state, g.PerSequence/int64(g.Layers))
		}
		growing = max(growing, g.PerToken/int64(g.Layers))
	}
	if growing == 0 {
		return c.plain(s, r)
	}
	block := c.block
	if need := (state + growing - 1) / growing; need > block {
		block = RoundUp(need, 16)
		c.found("block size", fmt.Sprint(block), fmt.Sprintf("vLLM raises it until a block holds a layer's state, %d bytes", state))
	}
	page = mul(block, growing)
	size := int64(least)
	if float64(most) < 1.25*float64(least) {
		size = int64(most)
	}
	type group struct {
		Group
		n, block int64
	}
	var groups []group
	for _, g := range s.groups {
		o := group{g, (int64(g.Layers) + size - 1) / size, block}
		if g.Kind != State {
			each := g.PerToken / int64(g.Layers)
			if growing%each != 0 {
				c.found("paging", "not computed", fmt.Sprintf("layers of %d and %d bytes a token do not page together: figures are an upper bound", each, growing))
				return c.plain(s, r)
			}
			o.block = block * (growing / each)
		}
		groups = append(groups, o)
	}
	states := int64(1)
	if c.e.PrefixCaching && s.state > 0 {
		states = 2
		c.found("states per sequence", "2", "vLLM with prefix caching keeps the state at the last whole block beside the running one; --no-enable-prefix-caching keeps 1")
	}
	blocks := func(n, context, prefix, chunkEach int64) (sum int64) {
		for i := range groups {
			g := &groups[i]
			all := RoundUp(context, g.block) / g.block
			switch {
			case g.Kind == State:
				sum = add(sum, mul(n, mul(g.n, states)))
			case g.Kind == Sliding && !c.e.SlidingFull:
				// A window may begin inside a block.
				each := min(all, (g.Window+chunkEach-1+g.block-1)/g.block+1)
				sum = add(sum, mul(g.n, mul(n, each)))
				if chunkEach == 0 {
					sum = add(sum, mul(g.n, min(RoundUp(c.e.Chunk, g.block)/g.block, all-each)))
				}
			default:
				shared := int64(0)
				if c.e.PrefixCaching {
					shared = prefix / g.block
				}
				sum = add(sum, mul(g.n, add(shared, mul(n, all-shared))))
			}
		}
		return sum
	}
	unit := mul(page, size)
	c.found("paging", fmt.Sprintf("%d groups of up to %d layers, blocks of %d bytes", len(groups), size, unit), "vLLM's rule for several kinds of layers")
	one := pool{"kv", math.MaxInt64, unit, func(n, context, prefix int64) int64 { return blocks(n, context, prefix, 0) }}
	c.block, r.Block = block, block
	if c.q.Budget > 0 {
		n := c.q.Budget / unit
		one.size = max(0, n-1) // one block is never given out
		if c.maxContext > 0 {
			// What vLLM logs as its size: how often the longest sequence fits, in tokens.
			per := blocks(1, c.maxContext, 0, c.e.Chunk)
			tokens := int64(float64(n) / float64(per) * float64(c.maxContext))
			r.least(tokens, n)
			c.found("pool", fmt.Sprintf("%d tokens", tokens), fmt.Sprintf("what vLLM logs: %d blocks / %d blocks of the longest sequence x %d tokens; no budget of tokens for shorter ones", n, per, c.maxContext))
		}
	}
	return []pool{one}
}

// sglang divides its memory beforehand: states, then tokens of full layers and of
// sliding ones in a fixed ratio.
func (c *computer) sglang(s *stage, r *Report) ([]pool, error) {
	budget := c.q.Budget
	if budget == 0 || s.state == 0 && (s.sliding() == 0 || c.e.SlidingFull || s.grow == 0) {
		pools := c.plain(s, r)
		if c.e.Pool > 0 && r.Pool != nil && r.Pool.Tokens > c.e.Pool {
			r.least(c.e.Pool, c.e.Pool/c.block)
			pools[0].size = mul(c.e.Pool, s.grow)
		}
		return pools, nil
	}
	var pools []pool
	if s.state > 0 {
		states := c.e.States
		how := "--max-mamba-cache-size"
		if states == 0 {
			ratio := c.e.StateShare
			states = max(0, int64(float64(budget)*ratio/(1+ratio))-s.state) / s.state
			how = fmt.Sprintf("--mamba-full-memory-ratio %v of state to KV", ratio)
		}
		each := int64(1)
		if c.e.PrefixCaching {
			each = 3
			how += "; with the radix cache SGLang runs a third as many sequences"
		}
		c.found("states", fmt.Sprint(states), how)
		pools = append(pools, pool{"state", states, s.state, func(n, _, _ int64) int64 { return mul(n, each) }})
		if budget -= mul(states+1, s.state); budget <= 0 {
			return nil, fmt.Errorf("--max-mamba-cache-size is %d: the states, %s each, leave nothing of the budget for KV", states, FormatBytes(s.state))
		}
	}
	if s.grow == 0 {
		return pools, nil
	}
	slide, ratio := s.sliding(), c.e.SlidingShare
	if c.e.SlidingFull {
		ratio = 1
	}
	tokens := int64(float64(budget)/(float64(s.grow)+ratio*float64(slide))) / c.block * c.block
	if c.e.Pool > 0 {
		tokens = min(tokens, c.e.Pool)
	}
	r.least(tokens, tokens/c.block)
	pools = append(pools, pool{"kv", tokens, s.grow, c.grown})
	if slide > 0 {
		window := int64(0)
		for _, g := range s.groups {
			window = max(window, g.Window)
		}
		held := int64(float64(tokens)*ratio) / c.block * c.block
		c.found("sliding pool", fmt.Sprintf("%d tokens", held), fmt.Sprintf("--swa-full-tokens-ratio %v of the %d tokens of full layers; where SGLang's log shows no pool for sliding layers, add --disable-hybrid-swa-memory", ratio, tokens))
		need := func(n, context, _ int64) int64 { return c.slid(n, context, window) }
		if c.e.SlidingFull {
			need = c.grown
		}
		pools = append(pools, pool{"kv", held, slide, need})
	}
	return pools, nil
}

// llamaPad is what llama.cpp rounds the cells of a cache up to.
const llamaPad = 256

// llamaServer takes its memory at its start: cells for --ctx-size in one cache or
// in one for each slot.
func (c *computer) llamaServer(s *stage, r *Report) ([]pool, error) {
	slots := c.e.Slots
	streams := int64(1)
	if c.e.Sharing == PerSlot {
		streams = slots
	}
	c.sessions = slots
	allocated := func(ctx int64) int64 {
		cells := RoundUp(ctx/streams, llamaPad)
		sum := add(mul(mul(streams, cells), s.grow), mul(slots, s.state))
		for _, g := range s.groups {
			if g.Kind != Sliding {
				continue
			}
			own := cells
			if !c.e.SlidingFull {
				own = RoundUp(min(cells, add(mul(g.Window, slots/streams), c.e.Chunk)), llamaPad)
			}
			sum = add(sum, mul(mul(streams, own), g.PerToken))
		}
		return sum
	}
	ctx := c.e.Pool
	switch {
	case ctx > 0:
	case c.q.Budget > 0:
		most := int64(maxTokens)
		if c.m.MaxContext > 0 {
			most = mul(c.m.MaxContext, slots)
		}
		step := llamaPad * streams
		ctx = largest(most/step, func(n int64) bool { return allocated(n*step) <= c.q.Budget }) * step
		if ctx == 0 {
			return nil, fmt.Errorf("budget is %s: llama-server's smallest cache, %d cells for each of %d slots, takes %s", FormatBytes(c.q.Budget), llamaPad, slots, FormatBytes(allocated(step)))
		}
		c.found("--ctx-size", fmt.Sprint(ctx), "the largest that the budget holds, at most the model's context for each slot: no --ctx-size was given")
	case c.m.MaxContext > 0:
		ctx = c.m.MaxContext
		c.found("--ctx-size", fmt.Sprint(ctx), "the model's context: no --ctx-size and no budget was given")
	default:
		return nil, fmt.Errorf("--ctx-size is missing, and the model does not say its context: give --ctx-size or a budget")
	}
	own := RoundUp(ctx/streams, llamaPad)
	r.least(own*streams, 0)
	r.SlotTokens = own
	r.Allocated = allocated(ctx)
	if c.q.Budget > 0 && r.Allocated > c.q.Budget {
		c.found("budget", "too small", fmt.Sprintf("--ctx-size %d takes %s at the start; the budget is %s", ctx, FormatBytes(r.Allocated), FormatBytes(c.q.Budget)))
	}
	if streams > 1 {
		c.slot = own
	}
	if c.m.MaxContext > 0 && own > c.m.MaxContext {
		c.slot = c.m.MaxContext // the server caps a slot at what the model was trained for
		r.SlotTokens = c.slot
	}
	cells := pool{"kv", own * streams, s.grow, func(n, context, _ int64) int64 { return mul(n, context) }}
	rest := pool{"kv", math.MaxInt64, 1, func(n, context, _ int64) int64 {
		sum := mul(n, s.state)
		for _, g := range s.groups {
			if g.Kind == Sliding {
				tokens := mul(n, min(context, g.Window))
				if c.e.SlidingFull {
					tokens = mul(n, context)
				}
				sum = add(sum, mul(tokens, g.PerToken))
			}
		}
		return sum
	}}
	return []pool{cells, rest}, nil
}
