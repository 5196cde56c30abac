package relay

import (
	"time"

	"headgate/engine"
	"headgate/wire"
)

// tally is what an attempt has come to, as the engine says.
type tally struct {
	prompt  int // tokens; 0 until it has counted them
	cached  int // of which its cache had
	out     int // tokens
	told    int // of which the core knows
	longest int // tokens that one sequence can have; 0: not known
	first   time.Time
	timing  *engine.Timing
}

// add takes in what an event of a request's answer says. final: its usage is of all there was.
// It is false for usage that the request's sequences can't have, which is taken out of the event.
func (t *tally) add(d *engine.Delta, final bool, req *wire.Request) (credible bool) {
	if d.Timing != nil {
		t.timing = d.Timing
	}
	t.out += d.Tokens
	if d.HasUsage && !t.credible(&d.Usage, max(req.N, req.Prompts, 1)) {
		d.HasUsage = false
		return false
	}
	if d.HasUsage {
		t.prompt, t.cached = max(t.prompt, d.Usage.Prompt), max(t.cached, d.Usage.Cached)
		// Usage on the way (continuous usage stats) is of one choice, and some
		// engines leave it at zero; the last is of all.
		t.out = max(t.out, d.Usage.Completion)
		if final && d.Usage.Completion > 0 {
			t.out = d.Usage.Completion
		}
	}
	return true
}

// credible tells whether an engine can have processed as many tokens as it says:
// no more than its sequences can hold.
func (t *tally) credible(u *wire.Usage, sequences int) bool {
	most := t.longest * sequences
	return u.Prompt >= 0 && u.Completion >= 0 && u.Cached >= 0 && (most == 0 || u.Prompt <= most && u.Completion <= most)
}
