package simengine

import "fmt"

// Time is the driver's clock in ns since an origin of its choice, at which the
// engine is taken to have just finished its warm-up.
type Time int64

// ID names a submitted request. IDs are never reused.
type ID uint64

// Kind says what an Event tells.
type Kind uint8

const (
	// Scheduled: the request entered the batch; its first step begins now. With
	// llama-server it took a slot; others' prompts may still go first.
	Scheduled Kind = 1 + iota
	// Generated: one token became visible.
	Generated
	// Preempted: the request lost its blocks and waits again. On a real engine
	// no client sees this; its stream just pauses.
	Preempted
	// Finished: slot and blocks are free; the last token's Generated came just
	// before.
	Finished
	// Aborted: slot and blocks are free, because of Abort.
	Aborted
	// Failed: slot and blocks are free, because llama-server's KV ran out and took
	// everything with it that was running ("Context size has been exceeded.").
	Failed
)

func (k Kind) String() string {
	switch k {
	case Scheduled:
		return "scheduled"
	case Generated:
		return "generated"
	case Preempted:
		return "preempted"
	case Finished:
		return "finished"
	case Aborted:
		return "aborted"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Reason says why a request finished.
type Reason uint8

const (
	ByLength Reason = 1 + iota // it reached its limit
	ByStop                     // it ended by itself; its last token is EndOfText
)

func (r Reason) String() string {
	switch r {
	case ByLength:
		return "length"
	case ByStop:
		return "stop"
	}
	return ""
}

// Event is something that can be seen of one request.
type Event struct {
	At     Time
	ID     ID
	Tag    uint64 // Request.Tag
	Kind   Kind
	Reason Reason // of Finished
	Token  Token  // of Generated
	// Output counts the tokens that are visible by now, this one included.
	Output int32
	// Cached counts, of Scheduled, the tokens that were found in the prefix
	// cache and are not computed again.
	Cached int32
}

// Stats is what the engine has done and holds. Counters count from New.
type Stats struct {
	Running int
	Waiting int // submitted and not running, preempted ones included
	// UsedBlocks are held by requests; cached blocks that none holds are free.
	UsedBlocks, TotalBlocks int

	Steps       int64
	Busy        Time  // the sum of all steps that began
	Preemptions int64 // victims
	// PromptTokens and GeneratedTokens count what is visible: a prompt counts
	// with its request's first token.
	PromptTokens, GeneratedTokens int64
	// PrefillTokens were computed other than by generating: prompts as far as
	// they were not cached, and all that was computed again after a preemption.
	PrefillTokens int64
	// PrefixQueries and PrefixHits count the tokens that were looked for and
	// found in the prefix cache at a request's first admission.
	PrefixQueries, PrefixHits            int64
	FinishedLength, FinishedStop, Aborts int64
	Failures                             int64 // requests that Failed
}
