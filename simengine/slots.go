package simengine

import "slices"

// LlamaServerConfig is llama-server with a number of slots (-np) that share a
// context of n_ctx tokens of KV (-c): unified (-kvu, its default without -np)
// all of it is everybody's, and otherwise each slot has its equal part. Set Model
// to the step times of the machine.
func LlamaServerConfig(slots, context int, unified bool) Config {
	cfg := DefaultConfig()
	cfg.Scheduler = LlamaServer
	cfg.Policy = FCFS
	cfg.NumBlocks, cfg.BlockSize = context+1, 1
	cfg.MaxNumSeqs = slots
	cfg.MaxModelLen = context
	if !unified {
		cfg.MaxModelLen = context / max(1, slots)
	}
	cfg.MaxBatchedTokens = max(2048, slots)
	cfg.WholePromptGate, cfg.OutputLag = false, false
	return cfg
}

// validateSlots reports what llama-server does not have.
func (c *Config) validateSlots(bad func(path string, value any, allowed string)) {
	only := func(path string, value any, ok bool, allowed string) {
		if !ok {
			bad(path, value, allowed+" with the scheduler llama-server")
		}
	}
	only("block_size", c.BlockSize, c.BlockSize == 1, "1, a cell of one token,")
	only("max_num_batched_tokens", c.MaxBatchedTokens, c.MaxBatchedTokens >= c.MaxNumSeqs, "at least max_num_seqs, a token of each slot,")
	only("long_prefill_token_threshold", c.LongPrefillThreshold, c.LongPrefillThreshold == 0, "0")
	only("chunked_prefill", c.ChunkedPrefill, c.ChunkedPrefill, "true")
	only("whole_prompt_gate", c.WholePromptGate, !c.WholePromptGate, "false")
	only("watermark", c.Watermark, c.Watermark == 0, "0")
	only("policy", c.Policy, c.Policy == FCFS, "fcfs")
	only("prefix_caching", c.PrefixCaching, !c.PrefixCaching, "false")
	only("output_lag", c.OutputLag, !c.OutputLag, "false")
}

// freePlaces are llama-server's slots in the order in which they are taken. Of
// those never used it takes the last first.
func freePlaces(n int) []int32 {
	places := make([]int32, n)
	for i := range places {
		places[i] = int32(n - 1 - i)
	}
	return places
}

// scheduleSlots puts llama-server's next step together; doc.go has the rules. It
// reports whether the KV ran out, and with it all that was running.
func (e *Engine) scheduleSlots(t Time, out []Event) (_ []Event, failed bool) {
	for len(e.places) > 0 && e.waiting.len() > 0 {
		slot := e.waiting.head()
		e.waiting.remove(slot)
		q := &e.requests[slot]
		q.place, q.running, q.started = e.places[0], true, true
		e.places = slices.Delete(e.places, 0, 1)
		at := len(e.running)
		for at > 0 && e.requests[e.running[at-1]].place > q.place {
			at--
		}
		e.running = slices.Insert(e.running, at, slot)
		out = append(out, Event{At: t, ID: q.id, Tag: q.tag, Kind: Scheduled})
	}
	budget := e.cfg.MaxBatchedTokens
	for _, generating := range []bool{true, false} {
		for _, slot := range e.running {
			q := &e.requests[slot]
			if budget == 0 || generating != (q.computed >= q.prompt) {
				continue
			}
			n := e.chunkOf(q, q.computed, budget)
			if !e.pool.grow(q, q.computed+n) {
				return e.fail(t, out), true
			}
			q.chunk = n
			budget -= n
		}
	}
	return out, false
}

// fail ends everything that runs.
func (e *Engine) fail(t Time, out []Event) []Event {
	for _, slot := range e.running {
		q := &e.requests[slot]
		e.stats.Failures++
		out = append(out, Event{At: t, ID: q.id, Tag: q.tag, Kind: Failed, Output: int32(q.known - q.prompt)})
		e.drop(slot)
	}
	e.compact()
	return out
}
