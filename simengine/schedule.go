package simengine

// schedule puts the next step together; doc.go has the rules. It returns what
// the step has to do, nothing if there is nothing to run, and whether that may be
// different now, because requests were preempted or have failed.
func (e *Engine) schedule(t Time, out []Event) (_ []Event, w work, again bool) {
	if e.cfg.Scheduler == LlamaServer {
		out, again = e.scheduleSlots(t, out)
	} else {
		var budget int
		out, budget, again = e.scheduleRunning(t, out)
		if !again {
			out = e.scheduleWaiting(t, out, budget)
		}
	}
	for _, slot := range e.running {
		if q := &e.requests[slot]; q.chunk > 0 {
			e.compute(q, slot, &w)
		}
	}
	return out, w, again
}

func (e *Engine) scheduleRunning(t Time, out []Event) (_ []Event, budget int, preempted bool) {
	budget = e.cfg.MaxBatchedTokens
	for i := 0; i < len(e.running) && budget > 0; i++ {
		slot := e.running[i]
		q := &e.requests[slot]
		n := e.chunkOf(q, q.computed, budget)
		if n <= 0 {
			continue // its last token is on its way
		}
		for !e.pool.grow(q, q.computed+n) {
			at := e.victim()
			victim := e.running[at]
			budget += e.requests[victim].chunk // if it had a place in this step
			out = e.preempt(t, victim, out)
			preempted = true
			e.running = append(e.running[:at], e.running[at+1:]...)
			if victim == slot {
				return out, budget, preempted
			}
			if at < i {
				i--
			}
		}
		q.chunk = n
		budget -= n
	}
	return out, budget, preempted
}

func (e *Engine) scheduleWaiting(t Time, out []Event, budget int) []Event {
	for budget > 0 && len(e.running) < e.cfg.MaxNumSeqs && e.waiting.len() > 0 {
		slot := e.waiting.head()
		q := &e.requests[slot]
		hit, unheld := e.pool.lookup(q)
		cached := len(hit) * q.blockSize
		n := e.chunkOf(q, cached, budget)
		if !e.cfg.ChunkedPrefill && n < q.total-cached {
			break
		}
		tokens := cached + n
		if e.cfg.WholePromptGate {
			tokens = q.total
		}
		need := ceilDiv(tokens, q.blockSize) - len(hit) + unheld
		if len(e.running) > 0 {
			need += e.watermark
		}
		if need > e.pool.free {
			break
		}
		e.waiting.remove(slot)
		e.pool.takeUp(q, hit)
		e.pool.grow(q, cached+n)
		q.computed = cached
		q.chunk = n
		q.running = true
		e.running = append(e.running, slot)
		budget -= n
		if !q.started {
			q.started = true
			if e.cfg.PrefixCaching {
				e.stats.PrefixQueries += int64(q.total)
				e.stats.PrefixHits += int64(cached)
			}
		}
		out = append(out, Event{At: t, ID: q.id, Tag: q.tag, Kind: Scheduled, Output: int32(q.known - q.prompt), Cached: int32(cached)})
	}
	return out
}

// chunkOf is how many tokens of q the next step may compute after computed. The
// token that ends a request by its length is never computed.
func (e *Engine) chunkOf(q *request, computed, budget int) int {
	n := min(q.total, q.limit-1) - computed
	if most := e.cfg.LongPrefillThreshold; most > 0 {
		n = min(n, most)
	}
	return min(n, budget)
}

// victim chooses who gives way, as a place in running.
func (e *Engine) victim() int {
	last := len(e.running) - 1
	if e.cfg.Policy == FCFS {
		return last
	}
	worst := 0
	for i := range e.running {
		a, b := &e.requests[e.running[i]], &e.requests[e.running[worst]]
		if a.priority > b.priority || a.priority == b.priority && a.order > b.order {
			worst = i
		}
	}
	return worst
}

// preempt sends a running request back to the queue; the caller takes it out
// of running.
func (e *Engine) preempt(t Time, slot int32, out []Event) []Event {
	q := &e.requests[slot]
	e.pool.release(q)
	q.computed, q.chunk = 0, 0
	q.running = false
	if e.cfg.Policy == FCFS {
		e.fronts--
		q.order = e.fronts
	}
	e.waiting.push(item{q.priority, q.order, slot})
	e.stats.Preemptions++
	return append(out, Event{At: t, ID: q.id, Tag: q.tag, Kind: Preempted, Output: int32(q.known - q.prompt)})
}

// compute accounts for q's part of the step that begins.
func (e *Engine) compute(q *request, slot int32, w *work) {
	if q.chunk == 1 && q.computed >= q.prompt && q.computed == q.total-1 {
		w.decodes++
		w.context += q.computed
	} else {
		w.prefill += q.chunk
	}
	q.computed += q.chunk
	q.chunk = 0
	e.pool.fill(q, min(q.computed, q.known))
	if q.computed == q.total {
		q.total++
		e.current = append(e.current, output{slot, q.id})
	}
}
