package trace

import (
	"fmt"
	"time"
)

// Classes of the published experiment.
const (
	Interactive = "interactive"
	Batch       = "batch"
)

// Bounds of what a trace may hold. They keep a wrong file from taking all
// memory; no recorded log comes near them.
const (
	MaxEntries  = 10_000_000
	MaxTokens   = 1 << 24               // of one request, prompt or output
	MaxDuration = 3650 * 24 * time.Hour // of a trace
	maxPrefix   = 1 << 16               // block ids of one request
)

// Trace is an immutable workload. Whoever receives one reads it only: runs in
// parallel share it.
type Trace struct {
	// Profile is the name under which Generate draws this trace, or the one
	// that a file's reader gave it.
	Profile string
	// Protocol says by which rule entries were placed, and so how their draws
	// and their canonical form follow from their ids.
	Protocol Protocol
	Seed     uint32
	Workload Workload
	// Entries are ordered by arrival; equal arrivals by class and id where they
	// were drawn, by their order in the file where they were recorded.
	Entries []Entry
	// Skipped counts recorded requests that were left out because the service
	// had failed them: without an output there is nothing to replay.
	Skipped int
}

// Entry is one request.
type Entry struct {
	ID    string // unique in its trace
	Class string
	// Arrival is counted from the trace's start, in whole microseconds.
	Arrival time.Duration
	// InputChars is the prompt's length in characters, 0 where a log counts
	// tokens only.
	InputChars   int
	PromptTokens int
	// MaxTokens is the output limit that the client declares, 0 for none.
	MaxTokens int
	// Output is how many tokens the answer really has. Admission must not read
	// it.
	Output int
	// Session groups requests that share a growing prefix; empty where unknown.
	Session string
	// Prefix names the prompt's leading blocks of tokens: equal ids are equal
	// content. Nil where unknown.
	Prefix []uint64
	Draw   Draw
}

// Draw is the chance of an entry's one attempt, drawn before any run.
type Draw struct {
	RetryJitter  float64 // factor on the backoff, from 0.5 to below 1.5
	TargetSlot   uint32  // picks a replica, modulo how many there are
	ProviderSeed uint64  // the engine's sampling seed
}

// PromptTokens is the prompt's length in tokens for a number of characters, by
// the published experiment's prompt and tokenizer: a template of 29 tokens, and
// two for every nine characters, rounded up. It gives all four counts that were
// published: 400 to 118, 800 to 207, 2,000 to 474, 7,100 to 1,607.
func PromptTokens(chars int) int { return 29 + (2*chars+8)/9 }

// Planned counts a trace's entries by class.
type Planned struct {
	Interactive int `json:"interactive"`
	Batch       int `json:"batch"`
	Total       int `json:"total"` // of all classes
}

// Planned counts the entries.
func (t *Trace) Planned() Planned {
	p := Planned{Total: len(t.Entries)}
	for i := range t.Entries {
		switch t.Entries[i].Class {
		case Interactive:
			p.Interactive++
		case Batch:
			p.Batch++
		}
	}
	return p
}

// validName tells whether a name can be an id, a class, a profile or a session:
// such names need no escaping in any format that is written.
func validName(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == ':', c == '/':
		default:
			return false
		}
	}
	return true
}

const allowedName = "a name of 1 to 128 letters, digits and any of -_.:/"

func checkName(what, s string) error {
	if !validName(s) {
		return fmt.Errorf("%s %q: allowed is %s", what, s, allowedName)
	}
	return nil
}
