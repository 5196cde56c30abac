package simengine

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// String prints the whole state, a request a line under its tag: the batch in
// the order of admission, the queue in the order in which it would be admitted.
func (e *Engine) String() string {
	var b strings.Builder
	s := e.Stats()
	fmt.Fprintf(&b, "%v: ", time.Duration(e.now))
	switch {
	case e.stepping:
		fmt.Fprintf(&b, "step until %v", time.Duration(e.wake))
	case e.busy:
		fmt.Fprintf(&b, "begins at %v", time.Duration(e.wake))
	default:
		b.WriteString("idle")
	}
	fmt.Fprintf(&b, "; blocks %d of %d held", s.UsedBlocks, s.TotalBlocks)
	if e.pool.caching {
		fmt.Fprintf(&b, ", %d contents cached", len(e.pool.cached))
	}
	if e.cfg.Scheduler == VLLM {
		fmt.Fprintf(&b, "; preemptions %d", s.Preemptions)
	}
	fmt.Fprintf(&b, "; finished %d, aborted %d", s.FinishedLength+s.FinishedStop, s.Aborts)
	if e.cfg.Scheduler == LlamaServer {
		fmt.Fprintf(&b, ", failed %d", s.Failures)
	}
	b.WriteByte('\n')
	for _, slot := range e.running {
		q := &e.requests[slot]
		fmt.Fprintf(&b, "  running r%d", q.tag)
		if e.cfg.Scheduler == LlamaServer {
			fmt.Fprintf(&b, " in slot %d", q.place)
		}
		fmt.Fprintf(&b, ": %s, computed %d, %d blocks\n", q, q.computed, q.held)
	}
	line := slices.Clone(e.waiting.items)
	slices.SortFunc(line, func(a, b item) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for _, it := range line {
		q := &e.requests[it.slot]
		fmt.Fprintf(&b, "  waiting r%d: %s", q.tag, q)
		if q.started {
			b.WriteString(", was preempted")
		}
		b.WriteByte('\n')
	}
	for _, id := range e.aborting {
		if slot, ok := e.find(id); ok {
			fmt.Fprintf(&b, "  abort of r%d at the next boundary\n", e.requests[slot].tag)
		}
	}
	return b.String()
}

func (q *request) String() string {
	text := fmt.Sprintf("prompt %d, output %d of %d", q.prompt, q.known-q.prompt, q.limit-q.prompt)
	if late := q.total - q.known; late > 0 {
		text += fmt.Sprintf(" (+%d under way)", late)
	}
	if q.priority != 0 {
		text += fmt.Sprintf(", priority %d", q.priority)
	}
	return text
}
