package simengine

// pool is the KV memory: blocks that are free or held by requests. With prefix
// caching a block that was filled keeps its content's hash after it is free, so
// that a later request with the same beginning takes it up again; the free
// blocks are then a list in order of eviction. Without prefix caching blocks
// are alike and only counted.
type pool struct {
	total   int // usable blocks
	free    int
	caching bool

	blocks []block // by number; number 0 is the free list's sentinel
	// cached finds the block that was first filled with a content; further
	// blocks with the same content are chained behind it.
	cached map[uint64]int32
	cut    []int32 // scratch of lookup
}

type block struct {
	hash       uint64
	refs       int32
	prev, next int32 // in the free list, while refs is 0
	// same is the next block with the same content, 0 behind the last; before is
	// the one in front, of the first the last: thousands of requests that start at
	// once with one prompt fill as many blocks with one content.
	same, before int32
	filled       bool // it has a hash and can be found
}

func newPool(total int, caching bool) pool {
	p := pool{total: total, free: total, caching: caching}
	if !caching {
		return p
	}
	p.blocks = make([]block, total+1)
	p.cached = make(map[uint64]int32)
	for i := range p.blocks {
		p.blocks[i].prev = int32((i + total) % (total + 1))
		p.blocks[i].next = int32((i + 1) % (total + 1))
	}
	return p
}

// lookup finds the longest cached prefix of r in whole blocks, always leaving
// at least one token to compute. It returns the blocks (valid until the next
// call) and how many of them are free now, which taking them up will use.
func (p *pool) lookup(r *request) (hit []int32, unheld int) {
	if !p.caching {
		return nil, 0
	}
	p.cut = p.cut[:0]
	for _, h := range r.hashes[:min(len(r.hashes), (r.total-1)/r.blockSize)] {
		b, ok := p.cached[h]
		if !ok {
			break
		}
		if p.blocks[b].refs == 0 {
			unheld++
		}
		p.cut = append(p.cut, b)
	}
	return p.cut, unheld
}

// takeUp gives cached blocks to r, which holds none.
func (p *pool) takeUp(r *request, hit []int32) {
	for _, b := range hit {
		if p.blocks[b].refs == 0 {
			p.unlink(b)
			p.free--
		}
		p.blocks[b].refs++
		r.table = append(r.table, b)
	}
	r.held = len(hit)
	r.filled = len(hit)
}

// grow gives r the blocks for its first tokens tokens, or none and false.
func (p *pool) grow(r *request, tokens int) bool {
	need := ceilDiv(tokens, r.blockSize) - r.held
	if need > p.free {
		return false
	}
	if need <= 0 {
		return true
	}
	p.free -= need
	r.held += need
	if p.caching {
		for range need {
			b := p.blocks[0].next
			p.unlink(b)
			p.forget(b)
			p.blocks[b].refs = 1
			r.table = append(r.table, b)
		}
	}
	return true
}

// fill makes the blocks findable that the first tokens tokens of r fill, as far
// as their content is known.
func (p *pool) fill(r *request, tokens int) {
	if !p.caching {
		return
	}
	for full := min(tokens/r.blockSize, len(r.hashes), len(r.table)); r.filled < full; r.filled++ {
		b := r.table[r.filled]
		blk := &p.blocks[b]
		blk.hash, blk.filled, blk.same = r.hashes[r.filled], true, 0
		first, ok := p.cached[blk.hash]
		if !ok {
			p.cached[blk.hash] = b
			blk.before = b
			continue
		}
		last := p.blocks[first].before
		p.blocks[last].same = b
		blk.before = last
		p.blocks[first].before = b
	}
}

// release takes all blocks from r, its last block first. Filled ones become the
// last to be evicted, of which a sequence's tail goes before its beginning;
// blocks with nothing to find in them are used first.
func (p *pool) release(r *request) {
	if !p.caching {
		p.free += r.held
		r.held = 0
		return
	}
	for i := len(r.table) - 1; i >= 0; i-- {
		b := r.table[i]
		blk := &p.blocks[b]
		blk.refs--
		if blk.refs > 0 {
			continue
		}
		p.free++
		if blk.filled {
			p.link(b, p.blocks[0].prev)
		} else {
			p.link(b, 0)
		}
	}
	r.table = r.table[:0]
	r.held, r.filled = 0, 0
}

// forget makes a block's content unfindable.
func (p *pool) forget(b int32) {
	blk := &p.blocks[b]
	if !blk.filled {
		return
	}
	blk.filled = false
	first := p.cached[blk.hash]
	switch {
	case first != b:
		p.blocks[blk.before].same = blk.same
	case blk.same == 0:
		delete(p.cached, blk.hash)
		return
	default:
		first = blk.same
		p.cached[blk.hash] = first
	}
	if blk.same != 0 {
		p.blocks[blk.same].before = blk.before
	} else {
		p.blocks[first].before = blk.before
	}
}

func (p *pool) unlink(b int32) {
	blk := &p.blocks[b]
	p.blocks[blk.prev].next = blk.next
	p.blocks[blk.next].prev = blk.prev
}

// link puts a block into the free list behind after.
func (p *pool) link(b, after int32) {
	next := p.blocks[after].next
	p.blocks[b].prev, p.blocks[b].next = after, next
	p.blocks[after].next = b
	p.blocks[next].prev = b
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
