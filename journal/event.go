// Package journal is the record of what happened: one flat event for every
// step of a request, a loan and a recall, one JSON object a line. Everything
// that is reported later (occupancy, protection, what lending cost) is computed
// from it, so it says causes and amounts, not only that something happened.
//
// The hot path only copies an event into memory. One goroutine encodes and
// writes; when it can't keep up, or the disk does not take the lines, events
// are dropped and counted, and a "dropped" event says so in the file: a gap is
// visible, and a full disk never delays a request.
//
// No text of a prompt or an answer is ever in it. Names are configured ones.
package journal

import (
	"fmt"
	"time"
)

// Kind says what happened.
type Kind string

// The life of a request. Arrived to Rejected or Finished is what its client
// sees; Admitted or Warming to Released is one hold, of which a request may have
// several.
const (
	Arrived    Kind = "arrived"     // a well-formed request of a known principal
	Queued     Kind = "queued"      // it waits
	Admitted   Kind = "admitted"    // it holds capacity
	Warming    Kind = "warming"     // it holds capacity for a piece of its prompt: see PieceTokens
	Dispatched Kind = "dispatched"  // it was sent to the engine
	Scheduled  Kind = "scheduled"   // the engine began to run it
	FirstToken Kind = "first_token" // the engine's first output
	Progress   Kind = "progress"    // its hold was brought up to what it has produced
	Ended      Kind = "ended"       // its attempt at the engine is over
	Released   Kind = "released"    // the engine has confirmed that its capacity is free
	Finished   Kind = "finished"    // its client has the whole answer, or has left, or got an error: see Cause
	Rejected   Kind = "rejected"    // it was refused: see Cause
	Ghost      Kind = "ghost"       // a release was never confirmed and its time is over
)

// Recalls, lending, engines and the journal itself.
const (
	RecallOpened  Kind = "recall_opened"  // protected demand wants lent capacity
	RecallGranted Kind = "recall_granted" // admission may admit it again
	RecallServed  Kind = "recall_served"  // the request it was opened for was admitted
	RecallSettled Kind = "recall_settled" // what was ended for that request is out; where nothing was, all that was lent
	RecallClosed  Kind = "recall_closed"  // all is out that was lent when it was opened
	LendingClosed Kind = "lending_closed" // a class no longer lends
	LendingOpened Kind = "lending_opened" // it lends again
	EngineState   Kind = "engine_state"   // an engine became ready, loading or down
	Switched      Kind = "switched"       // an operator has used a switch: see Switch
	Planned       Kind = "planned"        // the engine is taken to another profile, or is not: see Plan
	Promised      Kind = "promised"       // a session has a longer context from now on: see ContextTokens
	Started       Kind = "started"        // the process began to write
	Stopped       Kind = "stopped"        // it stopped in an orderly way
	Forwarded     Kind = "forwarded"      // a request was sent on to another replica, Peer, whose journal has its life
	Dropped       Kind = "dropped"        // Count events are missing here
)

// Batches and their items: see Batch. Each is written by the process that did it. Between its
// start and its end an item is a request like any other, of the same name.
const (
	BatchCreated    Kind = "batch_created"    // a client has made it
	BatchStarted    Kind = "batch_started"    // its file was read, and its items can run
	BatchCancelling Kind = "batch_cancelling" // a client ends it
	BatchFinalizing Kind = "batch_finalizing" // all items have their lines, which become files
	BatchEnded      Kind = "batch_ended"      // State says how, Cause why its file can't be run
	ItemStarted     Kind = "item_started"     // it was admitted
	ItemEnded       Kind = "item_ended"       // it has its line: Cause is completed or failed
	ItemPutBack     Kind = "item_put_back"    // it runs again later, see Cause: failed, refused, stopped; or fenced, another process has it
)

var kinds = map[Kind]bool{
	Arrived: true, Queued: true, Admitted: true, Warming: true, Dispatched: true, Scheduled: true, FirstToken: true,
	Progress: true, Ended: true, Released: true, Finished: true, Rejected: true, Ghost: true,
	RecallOpened: true, RecallGranted: true, RecallServed: true, RecallSettled: true, RecallClosed: true,
	LendingClosed: true, LendingOpened: true, EngineState: true, Switched: true, Planned: true, Promised: true,
	Forwarded: true, Started: true, Stopped: true, Dropped: true,
	BatchCreated: true, BatchStarted: true, BatchCancelling: true, BatchFinalizing: true, BatchEnded: true,
	ItemStarted: true, ItemEnded: true, ItemPutBack: true,
}

// UnmarshalText refuses a kind that this version does not know: whoever
// computes from a journal must not pass over what it does not understand.
func (k *Kind) UnmarshalText(b []byte) error {
	if !kinds[Kind(b)] {
		return fmt.Errorf("event kind %.40q is not known to this version", b)
	}
	*k = Kind(b)
	return nil
}

// Event is one line. A field that does not belong to a kind is zero and
// absent.
type Event struct {
	// Seq counts the events of one run of the process, the dropped ones too. A
	// dropped event stands for the Count events that end with its Seq.
	Seq uint64 `json:"seq"`
	// TS is Mono as a time of day. Writer sets it.
	TS time.Time `json:"ts"`
	// Mono is in nanoseconds since the process started; all durations are
	// differences of it. It is the clock that drives admission.
	Mono int64 `json:"mono_ns"`
	Kind Kind  `json:"kind"`

	Pool      string `json:"pool,omitempty"`
	Engine    string `json:"engine,omitempty"`
	Class     string `json:"class,omitempty"`
	Tenant    string `json:"tenant,omitempty"`
	Principal string `json:"principal,omitempty"`
	Model     string `json:"model,omitempty"` // a configured name
	API       string `json:"api,omitempty"`   // chat, completions

	Request string `json:"request,omitempty"` // Headgate-Request-Id
	Hold    uint64 `json:"hold,omitempty"`
	Loan    bool   `json:"loan,omitempty"` // admitted by borrowing
	// Recall is a recall's number in its pool: the one that the request opened, or,
	// of a loan that was ended by force and its release, the one that it was for.
	Recall uint64 `json:"recall,omitempty"`
	For    string `json:"for,omitempty"` // the request that a recall or reclaim is for
	Cause  string `json:"cause,omitempty"`
	Status int    `json:"status,omitempty"` // the HTTP status that the client got

	Stream   bool `json:"stream,omitempty"`
	Declared bool `json:"declared,omitempty"` // the client gave an output limit

	PromptTokens   int64 `json:"prompt_tokens,omitempty"`   // estimated, until the engine has said
	CachedTokens   int64 `json:"cached_tokens,omitempty"`   // of the prompt, found in the engine's cache
	MaxTokens      int64 `json:"max_tokens,omitempty"`      // the declared limit when it arrives, the clamped one from its admission on
	PieceTokens    int64 `json:"piece_tokens,omitempty"`    // of the prompt, estimated, that the hold is only to have in the cache; once sent, as sent
	OutputTokens   int64 `json:"output_tokens,omitempty"`   // so far
	ReservedTokens int64 `json:"reserved_tokens,omitempty"` // KV held after this event
	QueueNS        int64 `json:"queue_ns,omitempty"`        // from arrival to admission or refusal

	// The engine began to run the request at ScheduledNS of the same clock as
	// Mono. Where the engine does not tell, it was between ScheduledNS and
	// ScheduledUpperNS; where it does, the latter is absent. An engine that tells
	// when the attempt is over is why a second line for the same hold may come, which
	// replaces the interval.
	ScheduledNS      int64 `json:"scheduled_ns,omitempty"`
	ScheduledUpperNS int64 `json:"scheduled_upper_ns,omitempty"`

	State   string `json:"state,omitempty"` // ready, loading, down; of a batch that has ended, its status
	Running int    `json:"running,omitempty"`
	Waiting int    `json:"waiting,omitempty"`
	KVUsed  int64  `json:"kv_used,omitempty"` // tokens

	// What "on time" means for the request, when it arrives: its class's objective, or,
	// with OwnLimits, with limits that the request gave itself. Missed, of a finished
	// event, are those that were not kept: ttft, tpot, e2e, with commas between them.
	TTFTLimitNS int64  `json:"ttft_limit_ns,omitempty"`
	TPOTLimitNS int64  `json:"tpot_limit_ns,omitempty"` // per output token
	E2ELimitNS  int64  `json:"e2e_limit_ns,omitempty"`
	OwnLimits   bool   `json:"own_limits,omitempty"`
	Missed      string `json:"missed,omitempty"`

	// ContextTokens is what one sequence of the request's session may come to for as long as
	// the session lives.
	ContextTokens int64 `json:"context_tokens,omitempty"`

	Revision uint64 `json:"revision,omitempty"` // of the class table that allowed it
	// Grant, in a fleet, is the epoch and revision of the grant that allowed it, or
	// "survival" where none was in force.
	Grant string `json:"grant,omitempty"`
	// Peer is another replica of the fleet: of a forwarded event the one that it was sent
	// to, of an arrived one the one that sent it here.
	Peer    string `json:"peer,omitempty"`
	Count   uint64 `json:"count,omitempty"`   // of lost events
	Version string `json:"version,omitempty"` // of the process that writes

	// Shadow: the pool only observes. An admission was none, and a recall or lending
	// is what it would have been.
	Shadow bool `json:"shadow,omitempty"`

	Switch *Switch `json:"switch,omitempty"` // of a switched event; not changed any more once it is appended
	Plan   *Plan   `json:"plan,omitempty"`   // of a planned event; the same
	Batch  *Batch  `json:"batch,omitempty"`  // of batch_ and item_ events; the same
}

// Batch is what an event of a batch, or of one of its items, is about.
type Batch struct {
	ID      string `json:"id"`
	Line    int64  `json:"line,omitempty"`    // of an item, in the batch's file
	Attempt int    `json:"attempt,omitempty"` // of an item, from 1 on
	// Items are how many the batch has, and Failed those of them whose line is in the error
	// file, with those that did not run to their end before its own.
	Items  int64 `json:"items,omitempty"`
	Failed int64 `json:"failed,omitempty"`
	// WastedTokens were generated and are in no answer.
	WastedTokens int64 `json:"wasted_tokens,omitempty"`
}

// Plan is one step of an engine from a serving profile to another.
type Plan struct {
	// Does is drain, switch, return (the switch has failed), reopen (it serves again, in To),
	// or would switch, of a dry run.
	Does string `json:"does"`
	From string `json:"from"`
	To   string `json:"to"`
	Why  string `json:"why"`
	// Gain and Cost are what was expected of the switch, in slot-seconds, and WaitedNS for how
	// long the demand had waited for it. TookNS is what drain and switch have taken.
	Gain     float64 `json:"gain_slot_s,omitempty"`
	Cost     float64 `json:"cost_slot_s,omitempty"`
	WaitedNS int64   `json:"waited_ns,omitempty"`
	TookNS   int64   `json:"took_ns,omitempty"`
}

// Switch is one use of an operator's switch.
type Switch struct {
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`
	// Actor is who it was by what he or a proxy said, which nobody has checked, and
	// Remote the address that he came from.
	Actor  string `json:"actor,omitempty"`
	Remote string `json:"remote,omitempty"`
	Reason string `json:"reason,omitempty"`
}
