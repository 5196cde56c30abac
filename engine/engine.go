// Package engine is the one interface through which Headgate speaks to an
// inference server, and the facts it needs to know about one.
//
// An adapter does I/O and holds no policy: it dispatches one attempt, ends one
// with confirmation, and reports what the engine says of itself. Who runs,
// who waits and who gives way is decided in package admission, for which an
// engine is its Capabilities and a series of Observations.
package engine

import (
	"context"
	"net/http"
	"time"

	"headgate/wire"
)

// Kind names an adapter: "vllm", "sglang", "llamacpp" or "openai".
type Kind string

const (
	VLLM     Kind = "vllm"
	SGLang   Kind = "sglang"
	LlamaCpp Kind = "llamacpp"
	OpenAI   Kind = "openai"
)

// Adapter talks to one engine. It is safe for concurrent use.
type Adapter interface {
	// Dispatch sends one attempt and returns once the engine has answered with
	// a status and headers. A non-2xx answer is a *StatusError. Cancelling ctx
	// ends the attempt at the engine, also while Next waits. An attempt that
	// ended after it had gone out and before it was answered is an *Unanswered,
	// whose release needs confirming like that of an aborted stream.
	Dispatch(ctx context.Context, a *Attempt) (Stream, error)
	// Observe takes one sample of the engine's load. State Down or Loading is a
	// sample, not an error.
	Observe(ctx context.Context) Observation
	// Capabilities asks the engine what it is. Unknown fields are zero.
	Capabilities(ctx context.Context) (Capabilities, error)
	// Close drops idle connections.
	Close()
}

// Attempt is one dispatch of one request.
type Attempt struct {
	API  wire.API
	Body []byte // already projected
	// ID names the attempt upstream; unique per attempt.
	ID string
	// Traceparent makes what the engine traces a part of the request's trace, in W3C
	// Trace Context's form; empty: it is sent none.
	Traceparent string
	// Stream tells whether Body asks for server-sent events. A body that does
	// not is answered by a Stream of exactly one Delta holding the whole answer.
	Stream bool
	// N is the number of sequences the answer consists of (wire.Request.N);
	// 0 stands for 1. It decides when an answer without terminator is whole.
	N int
	// TokenIDs tells that Body asks for return_token_ids. The answer's events are
	// then like vLLM's: prompt_token_ids in the first, and token_ids beside each
	// text, in the choices of a completion where the engine has no such chat.
	TokenIDs bool
	// Interruptible attempts get a connection of their own, so that closing it
	// is certain to reach the engine (a pooled one may outlive the cancel).
	Interruptible bool
}

// Stream is one running attempt. Next must not be called concurrently with
// itself; Abort may be called at any time, from any goroutine, more than once.
type Stream interface {
	// Header returns the engine's response headers.
	Header() http.Header
	// Next returns the next event. io.EOF follows the terminator, an event with
	// Err, and a clean end of the stream after the last finish reason; any other
	// end, and a terminator without any finish reason, is io.ErrUnexpectedEOF. After Abort it returns ErrAborted.
	Next() (Delta, error)
	// Abort ends the attempt at the engine and waits until the engine has
	// confirmed that its slot and KV are free, or ctx ends. Calling it after
	// Next returned io.EOF only releases resources; every stream must be read
	// to its end or aborted. A later call goes on waiting where an earlier one
	// gave up.
	Abort(ctx context.Context) Confirmation
}

// Delta is one event of a stream. Raw and Data are valid until the next call
// of Next.
type Delta struct {
	Raw  []byte // the event exactly as it came, with its closing blank line; empty for what is no event
	Data []byte // its data payload; empty for comments
	wire.Chunk
	// Timing is what the engine said about this request, if it did.
	Timing *Timing
	// More tells that the answer is at its end, and that the next event has come already:
	// Next does not wait for it.
	More bool
}

// Timing is an engine's own account of when it scheduled a request. A negative
// duration was not said.
type Timing struct {
	Queue   time.Duration // waiting inside the engine
	Prefill time.Duration // scheduled to first token
}

// Confirmation tells how the release of an aborted attempt was confirmed.
type Confirmation struct {
	By ConfirmedBy
	At time.Time
}

// ConfirmedBy is the evidence for a release.
type ConfirmedBy string

const (
	Unconfirmed  ConfirmedBy = ""         // ctx ended first: the hold is a ghost
	ByCompletion ConfirmedBy = "ended"    // the attempt had ended by itself
	ByProgress   ConfirmedBy = "progress" // a later sample whose counters moved and whose load no longer includes it
	BySlot       ConfirmedBy = "slot"     // the engine reported the slot idle
	ByGrace      ConfirmedBy = "grace"    // no evidence to be had: closed, and a grace time waited
)

// Tokenizer is an Adapter whose engine tells the token ids of a prompt without
// running it.
type Tokenizer interface {
	// Tokens returns the ids of the prompt of a request's body, as the engine would
	// make them.
	Tokens(ctx context.Context, api wire.API, body []byte) ([]int32, error)
}

// State is what an engine can do now. Busy is not a state: a full engine is
// Ready.
type State uint8

const (
	Unknown State = iota
	Ready
	Loading // answers, but not yet with work
	Down    // does not answer
)

func (s State) String() string { return [...]string{"unknown", "ready", "loading", "down"}[s] }

// Observation is one sample of an engine's load. Fields the engine does not
// report are -1.
//
// A sample says Down only when nobody listens at the address, the connection
// breaks before an answer, or the engine itself says that it is dead. One that
// timed out is Unknown: a full engine answers late, and to take it for a dead
// one is to lose it when it is needed most. How many such samples in a row are
// too many is for the reader to decide.
type Observation struct {
	// Asked and At bracket the sample: it shows the engine at some moment
	// between them.
	Asked, At time.Time
	State     State
	Running   int // sequences in the batch
	Waiting   int // sequences queued inside the engine
	KVUsed    int // tokens, rounded up to blocks
	KVTotal   int // tokens
	// Progress moves whenever the engine has done work (prompt plus generated
	// tokens); gauges sampled while it stands still prove nothing.
	Progress    int64
	Preemptions int64
	Err         error // why State is Down, or which part of the sample failed
}

// Unreported is an observation of which nothing is known yet.
func Unreported(asked time.Time) Observation {
	return Observation{
		Asked: asked, At: asked,
		Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1,
	}
}

// Capabilities is what an engine says of itself. Zero means it did not say.
type Capabilities struct {
	Kind       Kind    `json:"kind"`
	Version    string  `json:"version"`
	Models     []Model `json:"models"`
	Slots      int     `json:"slots"`       // sequences it runs at once
	KVTokens   int     `json:"kv_tokens"`   // tokens its KV pool holds
	BlockSize  int     `json:"block_size"`  // tokens per block
	MaxContext int     `json:"max_context"` // tokens of one sequence, prompt and output
	// Priority: the engine orders waiting work by the request's "priority",
	// lower first.
	Priority bool `json:"priority"`
	// PrefixCache: finished and aborted sequences stay reusable.
	PrefixCache bool `json:"prefix_cache"`
	// TokenIDs: attempts can ask for token ids (Attempt.TokenIDs), and a completion's
	// prompt can be a list of them.
	TokenIDs bool `json:"token_ids"`
	// ChatTokenIDs: so can attempts at a chat, and not at completions alone.
	ChatTokenIDs bool `json:"chat_token_ids"`
	// MinTokens: it knows min_tokens and include_stop_str_in_output, so that what the
	// gateway makes of them is what it would.
	MinTokens bool `json:"min_tokens"`
	// TextCompletions: a completion goes on from whatever text its prompt ends with.
	TextCompletions bool `json:"text_completions"`
	// FinalMessage is how a chat goes on from a last message of the assistant's.
	FinalMessage FinalMessage `json:"final_message"`
	// StepAborts: it acts on aborts between two steps, before it takes up new work,
	// so that a request sent together with an abort finds the room.
	StepAborts bool `json:"step_aborts"`
	// TellsStart: it answers a stream with headers when it begins to run it, not when
	// it accepts it.
	TellsStart bool `json:"tells_start"`
	// Fatal: running out of KV ends every running request (llama-server with a
	// unified pool), so the pool must never be over-committed.
	Fatal bool `json:"kv_exhaustion_fatal"`
}

// FinalMessage is what an engine makes of a chat that ends with a message of the
// assistant's.
type FinalMessage string

const (
	FinalTurn     FinalMessage = "none"     // one turn of many; the answer is the next
	FinalTrailing FinalMessage = "trailing" // the answer's beginning
	FinalFlags    FinalMessage = "flags"    // that where continue_final_message says so
)

// FinalMessages are all of them.
var FinalMessages = []FinalMessage{FinalTurn, FinalTrailing, FinalFlags}

// Continues tells whether an attempt at a request of the API can be continued from
// its token ids.
func (c *Capabilities) Continues(api wire.API) bool {
	return c.TokenIDs && (api == wire.Completions || api == wire.Chat && c.ChatTokenIDs)
}

// ContinuesText tells whether it can be from its text.
func (c *Capabilities) ContinuesText(api wire.API) bool {
	switch api {
	case wire.Completions:
		return c.TextCompletions
	case wire.Chat:
		return c.FinalMessage == FinalTrailing || c.FinalMessage == FinalFlags
	}
	return false
}

// Model is one entry of the engine's model list.
type Model struct {
	ID         string `json:"id"`
	MaxContext int    `json:"max_context,omitempty"` // 0: not said
	// Parent is the model that an adapter (LoRA) goes on top of; "" for a model of its
	// own.
	Parent string `json:"parent,omitempty"`
	// Unloaded: the engine would load it for a request, and perhaps unload another.
	Unloaded bool `json:"unloaded,omitempty"`
}
