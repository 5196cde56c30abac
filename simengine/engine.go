package simengine

import (
	"errors"
	"fmt"
)

// Request is what is submitted: Synthetic tokens of a text that only has a
// name, then Prompt. Most use one of the two.
type Request struct {
	Prompt []Token // read during Submit, not kept
	// Synthetic counts tokens that stand before Prompt and have no ids; equal
	// Seeds mean equal beginnings. They cost no time to submit, however many.
	Synthetic int
	Seed      uint64
	// MaxTokens limits the output, in tokens; it is cut to what MaxModelLen
	// leaves. At least 1.
	MaxTokens int
	// MinTokens must be visible before the request may end by itself.
	MinTokens int
	IgnoreEOS bool // never end by itself
	Priority  int  // lower is earlier, under the policy Priority
	// Salt keeps requests with different salts from sharing cached blocks.
	Salt uint64
	// Tag is the driver's own and comes back in every event.
	Tag uint64
}

// ErrPast reports a Submit or Abort at a time before something that Advance has
// not yet been told to do, or before its last call.
var ErrPast = errors.New("engine: time runs backwards")

// TooLongError reports a prompt that leaves no room for output.
type TooLongError struct {
	Prompt      int // tokens
	MaxModelLen int // tokens
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("engine: prompt: %d tokens: allowed: fewer than the model's %d, so that at least 1 can be generated", e.Prompt, e.MaxModelLen)
}

// request is one slot of the table of all requests in the engine.
type request struct {
	id  ID
	tag uint64

	blockSize int
	prompt    int // tokens
	limit     int // tokens of prompt and output after which it ends
	earliest  int // tokens of output before which it can't end by itself
	mayEnd    bool
	priority  int64
	order     int64 // arrival, or before all arrivals for a preempted one under FCFS

	// total counts the tokens that exist, those of running steps included;
	// known of them are visible; computed of them have their KV.
	total, known, computed int
	chunk                  int // tokens of the step being put together

	chain  chain // after known tokens
	salt   uint64
	hashes []uint64 // of each full block of the known tokens; only with prefix caching

	held   int     // blocks
	table  []int32 // which; only with prefix caching
	filled int     // of table, how many can be found by others

	started bool // was admitted before
	running bool
	place   int32 // which of llama-server's slots it runs in
}

// output is a token that a step generates.
type output struct {
	slot int32
	id   ID // against reuse of the slot
}

// Engine is one engine. It is not safe for concurrent use.
type Engine struct {
	cfg Config

	now  Time
	wake Time // when something happens next
	busy bool // wake is set

	requests []request
	unused   []int32 // slots of requests
	serial   uint64
	arrivals int64
	fronts   int64

	waiting queue
	running []int32 // in order of admission, with llama-server of its slots
	places  []int32 // llama-server's slots that are free, the longest free first
	pool    pool

	stepping  bool
	doing     work     // in the step that runs
	current   []output // of the step that runs
	late      []output // of the step before it
	lastEnd   Time     // of the last step
	aborting  []ID     // for the next boundary
	watermark int      // blocks

	stats Stats
}

// New returns an idle engine at time 0.
func New(cfg Config) (*Engine, error) {
	if err := cfg.err(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:       cfg,
		pool:      newPool(cfg.NumBlocks-1, cfg.PrefixCaching),
		watermark: int(cfg.Watermark * float64(cfg.NumBlocks)),
	}
	if cfg.Scheduler == LlamaServer {
		e.places = freePlaces(cfg.MaxNumSeqs)
	}
	return e, nil
}

// Config returns what New was given.
func (e *Engine) Config() Config { return e.cfg }

// slotBits of an ID are the slot, the rest a serial number.
const slotBits = 24

// maxRequests is how many requests an engine holds at once.
const maxRequests = 1 << slotBits

// Submit hands over a request at time now. It is seen at the next boundary
// between steps; in an idle engine that is now.
//
// A request that can't ever run is refused with an error that names the field;
// *TooLongError is one of them.
func (e *Engine) Submit(now Time, r Request) (ID, error) {
	if err := e.check(now); err != nil {
		return 0, err
	}
	prompt := r.Synthetic + len(r.Prompt)
	switch {
	case r.Synthetic < 0 || r.Synthetic > maxLen:
		return 0, fmt.Errorf("engine: synthetic: %d tokens: allowed: 0 to %d", r.Synthetic, maxLen)
	case prompt == 0:
		return 0, errors.New("engine: prompt: 0 tokens: allowed: at least 1")
	case prompt >= e.cfg.MaxModelLen:
		return 0, &TooLongError{Prompt: prompt, MaxModelLen: e.cfg.MaxModelLen}
	case r.MaxTokens < 1:
		return 0, fmt.Errorf("engine: max_tokens: %d: allowed: at least 1", r.MaxTokens)
	case r.MinTokens < 0 || r.MinTokens > r.MaxTokens:
		return 0, fmt.Errorf("engine: min_tokens: %d: allowed: 0 to max_tokens %d", r.MinTokens, r.MaxTokens)
	}
	for i, t := range r.Prompt {
		if t < 0 || t >= VocabSize {
			return 0, fmt.Errorf("engine: prompt[%d]: token id %d: allowed: 0 to %d", i, t, VocabSize-1)
		}
	}
	slot, ok := e.slot()
	if !ok {
		return 0, fmt.Errorf("engine: %d requests in the engine: allowed: %d", len(e.requests), maxRequests)
	}
	q := &e.requests[slot]
	e.serial++
	e.arrivals++
	*q = request{
		id:        ID(e.serial<<slotBits | uint64(slot)),
		tag:       r.Tag,
		blockSize: e.cfg.BlockSize,
		prompt:    prompt,
		limit:     prompt + min(r.MaxTokens, e.cfg.MaxModelLen-prompt),
		earliest:  r.MinTokens,
		mayEnd:    !r.IgnoreEOS,
		order:     e.arrivals,
		total:     prompt,
		known:     prompt,
		salt:      r.Salt,
		hashes:    q.hashes[:0],
		table:     q.table[:0],
	}
	if e.cfg.Policy == Priority {
		q.priority = int64(r.Priority)
	}
	e.read(q, r)
	e.waiting.push(item{q.priority, q.order, slot})
	e.wakeNow(now)
	return q.id, nil
}

// read walks the chain over the prompt.
func (e *Engine) read(q *request, r Request) {
	if e.cfg.PrefixCaching {
		for n := e.cfg.BlockSize; n <= r.Synthetic; n += e.cfg.BlockSize {
			c := startOf(r.Seed, n)
			q.hashes = append(q.hashes, c.blockHash(q.salt))
		}
	}
	q.chain = startOf(r.Seed, r.Synthetic)
	for i, t := range r.Prompt {
		q.chain.push(t)
		if n := r.Synthetic + i + 1; e.cfg.PrefixCaching && n%e.cfg.BlockSize == 0 {
			q.hashes = append(q.hashes, q.chain.blockHash(q.salt))
		}
	}
}

// blockHash names the content of a block together with all that is before it.
func (c *chain) blockHash(salt uint64) uint64 { return mix(c.h ^ mix(salt^0x73616c74)) }

func (e *Engine) slot() (int32, bool) {
	if n := len(e.unused); n > 0 {
		slot := e.unused[n-1]
		e.unused = e.unused[:n-1]
		return slot, true
	}
	if len(e.requests) == maxRequests {
		return 0, false
	}
	e.requests = append(e.requests, request{})
	e.waiting.grow()
	return int32(len(e.requests) - 1), true
}

// find returns the slot of a request that is still in the engine.
func (e *Engine) find(id ID) (int32, bool) {
	slot := uint64(id) & (maxRequests - 1)
	if slot >= uint64(len(e.requests)) || e.requests[slot].id != id || id == 0 {
		return 0, false
	}
	return int32(slot), true
}

// Abort ends a request at the next boundary between steps. It may finish there
// by itself first; a request that is no longer in the engine is left alone.
func (e *Engine) Abort(now Time, id ID) error {
	if err := e.check(now); err != nil {
		return err
	}
	if _, ok := e.find(id); ok {
		e.aborting = append(e.aborting, id)
		e.wakeNow(now)
	}
	return nil
}

func (e *Engine) check(now Time) error {
	if now < e.now || e.busy && e.wake < now {
		return fmt.Errorf("%w: %d ns after %d", ErrPast, now, max(e.now, e.wake))
	}
	e.now = now
	return nil
}

// wakeNow lets an idle engine begin; a stepping one looks when the step ends.
func (e *Engine) wakeNow(now Time) {
	if !e.busy {
		e.wake, e.busy = now, true
	}
}

// Next returns when something will happen, if nothing is submitted before.
func (e *Engine) Next() (Time, bool) { return e.wake, e.busy }

// Step is the work of one step.
type Step struct {
	Ends    Time
	Prefill int // tokens
	Decodes int // sequences that generate
}

// Step returns the step that runs as of the last Advance, Submit or Abort; ok
// tells whether one does.
func (e *Engine) Step() (s Step, ok bool) {
	if !e.stepping {
		return Step{}, false
	}
	return Step{Ends: e.wake, Prefill: e.doing.prefill, Decodes: e.doing.decodes}, true
}

// Advance lets everything happen that is due up to now, now included, and
// appends what could be seen of it to out, in order.
func (e *Engine) Advance(now Time, out []Event) []Event {
	for e.busy && e.wake <= now {
		out = e.boundary(out)
	}
	e.now = max(e.now, now)
	return out
}

// boundary ends the step that runs, if one does, and begins the next.
func (e *Engine) boundary(out []Event) []Event {
	t := e.wake
	if e.stepping {
		e.stepping = false
		e.lastEnd = t
		out = e.deliver(t, out)
		e.late, e.current = e.current, e.late
		if !e.cfg.OutputLag {
			out = e.deliver(t, out)
		}
	}
	out = e.applyAborts(t, out)
	for {
		var w work
		var again bool
		out, w, again = e.schedule(t, out)
		if w != (work{}) {
			length := e.cfg.Model.stepTime(w, t-e.lastEnd, e.cfg.Speed)
			e.stepping, e.doing = true, w
			e.wake = t + length
			e.stats.Steps++
			e.stats.Busy += length
			e.stats.PrefillTokens += int64(w.prefill)
			return out
		}
		if len(e.late) == 0 && !again {
			e.busy = false
			return out
		}
		// Nothing to run: what the last step generated need not wait for a
		// next one, and what that frees may let others in.
		out = e.deliver(t, out)
	}
}

// deliver makes the late outputs visible.
func (e *Engine) deliver(t Time, out []Event) []Event {
	gone := false
	for _, o := range e.late {
		q := &e.requests[o.slot]
		if q.id != o.id {
			continue // ended while the step ran
		}
		token, reason := EndOfText, ByStop
		if visible := q.known - q.prompt; !(q.mayEnd && visible >= q.earliest && q.chain.ends(e.cfg.MeanOutput)) {
			token, reason = q.chain.next(e.cfg.SplitCharacters), 0
		}
		q.chain.push(token)
		q.known++
		if q.known == q.limit && reason == 0 {
			reason = ByLength
		}
		if e.cfg.PrefixCaching && q.known%q.blockSize == 0 {
			q.hashes = append(q.hashes, q.chain.blockHash(q.salt))
		}
		if e.pool.caching && q.running {
			e.pool.fill(q, min(q.computed, q.known))
		}
		visible := q.known - q.prompt
		if visible == 1 {
			e.stats.PromptTokens += int64(q.prompt)
		}
		e.stats.GeneratedTokens++
		out = append(out, Event{At: t, ID: q.id, Tag: q.tag, Kind: Generated, Token: token, Output: int32(visible)})
		if reason != 0 {
			if reason == ByLength {
				e.stats.FinishedLength++
			} else {
				e.stats.FinishedStop++
			}
			out = append(out, Event{At: t, ID: q.id, Tag: q.tag, Kind: Finished, Reason: reason, Output: int32(visible)})
			gone = e.drop(o.slot) || gone
		}
	}
	e.late = e.late[:0]
	if gone {
		e.compact()
	}
	return out
}

func (e *Engine) applyAborts(t Time, out []Event) []Event {
	gone := false
	for _, id := range e.aborting {
		slot, ok := e.find(id)
		if !ok {
			continue
		}
		q := &e.requests[slot]
		e.stats.Aborts++
		out = append(out, Event{At: t, ID: id, Tag: q.tag, Kind: Aborted, Output: int32(q.known - q.prompt)})
		gone = e.drop(slot) || gone
	}
	e.aborting = e.aborting[:0]
	if gone {
		e.compact()
	}
	return out
}

// drop frees everything that a request has. It reports whether it ran, after
// which running has to be compacted.
func (e *Engine) drop(slot int32) bool {
	q := &e.requests[slot]
	if e.waiting.contains(slot) {
		e.waiting.remove(slot)
	}
	e.pool.release(q)
	ran := q.running
	if ran && e.cfg.Scheduler == LlamaServer {
		e.places = append(e.places, q.place)
	}
	q.running = false
	q.id = 0
	if !ran {
		e.unused = append(e.unused, slot)
	}
	return ran
}

// compact takes dropped requests out of the batch and frees their slots.
func (e *Engine) compact() {
	kept := e.running[:0]
	for _, slot := range e.running {
		if e.requests[slot].running {
			kept = append(kept, slot)
		} else {
			e.unused = append(e.unused, slot)
		}
	}
	e.running = kept
}

// Stats returns the engine's gauges and counters.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running = len(e.running)
	s.Waiting = e.waiting.len()
	s.TotalBlocks = e.pool.total
	s.UsedBlocks = e.pool.total - e.pool.free
	return s
}
