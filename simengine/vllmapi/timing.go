package vllmapi

// timing is what a request's usage tells of its time, in ms: waiting, from its
// first step to its first token, from there to its last, and between tokens.
type timing struct {
	queue, first, generation, gap float64
	rate                          float64 // tokens/s from the first step on
}

// timing reads the only choice's times. One that ended by a stop string is
// aborted, and like on vLLM has none.
func (an *answer) timing() (t timing, ok bool) {
	an.job.mu.Lock()
	defer an.job.mu.Unlock()
	c := an.job.children[0]
	if !c.finished {
		return t, false
	}
	t.queue = float64(c.scheduled-c.arrived) / 1e6
	t.first = float64(c.first-c.scheduled) / 1e6
	t.generation = float64(c.last-c.first) / 1e6
	if c.output > 1 {
		t.gap = t.generation / float64(c.output-1)
	}
	if whole := t.first + t.generation; whole > 0 {
		t.rate = float64(c.output) / whole * 1e3
	}
	return t, true
}

// cachedOf is how many prompt tokens the engine found in its prefix cache.
func (an *answer) cachedOf(c *child) int {
	an.job.mu.Lock()
	defer an.job.mu.Unlock()
	return c.cached
}
