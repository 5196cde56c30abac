// Package relay carries one request through a pool: it offers it to admission,
// waits, dispatches it to the engine that admission names, passes on what the
// engine streams, and reports how the attempt ended. It is the shell around
// admission.Core: it owns the clock, the lock, the goroutines and the I/O, and
// it decides nothing. Whether an attempt is repeated, who waits and who gives
// way are effects of the core, so that a simulator that runs the core proves
// what the gateway does.
//
// # Order
//
// One mutex a pool guards its core and the records of its requests. The clock is
// read and effects are delivered under it: an effect sets fields of a request's
// record and wakes its goroutine, which does the I/O. Delivering after unlock
// would let a Reclaim overtake its Admit. A request that finds both together
// dispatches nothing.
//
// # The end of an attempt
//
// Only an answer that the engine ended itself frees its capacity at once. After
// anything else (the client left, the engine fell silent, a loan was ended) the
// attempt is aborted, and its hold stays a ghost until the engine confirms the
// release. The client does not wait for that.
//
// What a client has seen decides whether an attempt may be repeated: a part of
// the answer, not a keep-alive comment. A client of which the answer is collected
// has seen nothing until the end. That of a stream has from the first token on,
// and with it the core is told, in one step, that the request can't be reclaimed
// any more.
//
// What the engine failed before that may be done by another (outcome.go), and what is
// given to which (models.go, affinity.go) is told to the core with the offer.
//
// # An answer in several attempts
//
// That is so where an answer can't be continued. Where it can (wire.Request.Resumable,
// and every engine of the pool returns token ids), an attempt that the core ends is
// followed by one that goes on from its ids, and wire.Stitch makes one answer of
// them. Where not all return ids but all go on with a text (wire.Request.ContinuesText),
// the next attempt has what was said at the end of its prompt or as a last message. What is kept is exactly what the client has or will get, so events without
// text are held back until the next text, and the core's ask for an end waits
// while that is not so: behind a finish reason, and in a stream behind an event of
// several tokens. An engine that does not do what was believed of it is not
// interrupted either; then the recall waits for it, and nothing is lost.
//
// Alternatives: to end such an attempt with an error is quicker for the recall and
// breaks a promise to its client.
//
// # What an operator sees
//
// An engine that answers late is busy until it has been late for a while; one
// that comes back, or whose counters start over, is asked again what it is. If no
// table can be made with it, it is kept out as loading, and Ready says why.
package relay

import (
	"errors"
	"log/slog"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/engine"
	"headgate/journal"
	"headgate/quota/keeper"
	"headgate/telemetry/tracing"
	"headgate/wire"
)

// Call is one request of one verified caller.
type Call struct {
	ID        string // Headgate-Request-Id
	Request   *wire.Request
	Class     string
	Tenant    string
	Principal string
	Arrived   time.Time
	From      string        // the replica that has sent it on; "" is the client
	Span      *tracing.Span // of the request; nil: it is not traced
	// Session is the client's name for what its requests share a growing prefix in;
	// "" is none.
	Session string
	// Context is what one sequence of the session may come to, in tokens, prompt and output,
	// as the client says; 0: it does not, below 0: the session ends with this request.
	Context int64
	// TTFT and TPOT are limits of the request's own, which the caller has checked that
	// it may have; 0 is its class's.
	TTFT, TPOT time.Duration
	// Kept is what Checkpoint was last given of the answer by an earlier call, in a life of
	// the process that may be over: the answer goes on from there where the engines still
	// do so, and otherwise begins. Checkpoint, if it is not nil, is given what has come of the answer,
	// so many tokens in all, about every 32 and once more when an attempt ends without
	// its end. It must not block. Both are of answers that are not streamed.
	Kept       []byte
	Checkpoint func(kept []byte, tokens int)
	// Account is told what the call comes to; nil: nobody wants to know. It is the
	// caller's again once the call is over.
	Account *journal.Account
	// Wasted, if it is not nil, is told at the end how many tokens were generated for the answer
	// that it does not have, or, where there is none, that the last checkpoint has not. It
	// must not block.
	Wasted func(tokens int)

	limited *Limited // what its tenant's limits have said; nil: there are none
}

// Decision is what admission said about a call that may run.
type Decision struct {
	Queued bool          // it had to wait
	Wait   time.Duration // from its arrival to its admission
	Loan   bool          // it runs on capacity that its class borrows
	// Observed: nothing was decided, since the pool only observes.
	Observed bool
	Grant    Provenance
	// Profile is the one that the engine is in, "" where it has none, and Context what the
	// request's session has as long as it lives, in tokens.
	Profile string
	Context int64
	// Objective is what it was offered with: its class's, with its own limits.
	Objective admission.Objective
}

// Sink receives an answer. Its methods are called by one goroutine at a time.
// An error means that the client is gone or does not read.
type Sink interface {
	// Admitted comes before anything else, and again when the call runs again.
	Admitted(Decision)
	// Event passes on one event of a stream, to be flushed at once.
	Event(raw []byte) error
	// KeepAlive shows the client of a stream that its answer is still coming.
	KeepAlive() error
	// Answer passes on a whole answer.
	Answer(body []byte) error
	// Started tells whether anything has been sent to the client, a keep-alive
	// too: then it can't be told a status any more.
	Started() bool
}

// Holder is a Sink that can pass on several events at once. With Hold(true) what is given
// next need not be flushed; Flush, or an event after Hold(false), flushes all of it. Only
// the end of an answer is held, and what was held back until its first token: a client that
// reads slowly has its time for each write, which therefore is to be for little.
type Holder interface {
	Sink
	Hold(on bool)
	Flush() error
}

// Config of a pool.
type Config struct {
	Name string
	// Models are the names that it answers to, or with a * at the end beginnings of
	// them; empty: those its engines report.
	Models []string
	// Aliases are further names, of models that its engines have.
	Aliases []Alias
	Engines []Engine
	Classes []string
	// Resolve makes the table for the engines as they are known now, an unknown
	// one closed. An error says why there can't be one yet.
	Resolve func([]admission.EngineSpec) (*admission.Table, error)
	// Observe passes every request on at once, and only notes what the table would have
	// done.
	Observe bool
	// Limits are the tenants', the same for all pools; nil: nobody has any.
	Limits *keeper.Keeper
	// Replan switches the pool's one engine between profiles; nil: it stays as it is.
	Replan *Replan
	// Capacity bounds the requests in the pool at a time, waiting and running.
	Capacity int
	// IdleTimeout is how long an engine may be silent.
	IdleTimeout time.Duration
	// Keepalive is after how much silence a stream gets a comment; 0 is never.
	Keepalive time.Duration
	// MaxAnswer bounds an answer that is assembled, in bytes.
	MaxAnswer int
	// Fingerprint is of the pool's configuration, as the leader of a fleet has it.
	Fingerprint string
	// Replica is this one's name and life in a fleet whose replicas share the engines;
	// zero: the pool has them to itself. ClockDrift is the part of a lease's time by
	// which clocks may differ.
	Replica    control.ID
	ClockDrift float64
	// Spans: engines export spans, so that attempts are remembered for them.
	Spans bool
	// Unasked is told of a call that is over and came without an Account, which it has by
	// then: one that no server wrote down. nil: nobody is told.
	Unasked func(*Call, *wire.Error)
	// Start is the moment that the journal and admission count from.
	Start   time.Time
	Journal *journal.Writer // nil: none
	Log     *slog.Logger
	Metrics *Metrics
}

// Alias is a client's name for a model.
type Alias struct{ Name, Model string }

// Engine is one engine of a pool.
type Engine struct {
	Name    string
	Adapter engine.Adapter
	// Key tells two engines of one name apart: where it is and how it is spoken to.
	Key string
	// Open makes the Adapter of an engine that Prepare finds to be new.
	Open func() (engine.Adapter, error)
	// Found completes what the engine says of itself by what is known from elsewhere;
	// nil: nothing is.
	Found func(engine.Capabilities) engine.Capabilities
	// ObserveEvery is how often its load is read.
	ObserveEvery time.Duration
	// Priority by class is sent to an engine that orders by it.
	Priority []int
	Boundary int64
}

const (
	// confirmTimeout is how long the relay asks for the confirmation of a
	// release. The core keeps the hold for as long as it thinks right.
	confirmTimeout = 2 * time.Minute
	// downAfter is how long an engine may fail to answer in time before it is
	// taken for down.
	downAfter = 15 * time.Second
	// leastGaugeAge is longer than the longest step of an engine, during which its
	// counters stand still; and no gauge is older than two samples.
	leastGaugeAge = 5 * time.Second
)

// Causes of a cancelled attempt.
var (
	errIdle      = errors.New("the engine was silent for too long")
	errReclaimed = errors.New("the loan was ended")
	errShutdown  = errors.New("the gateway is shutting down")
	errOverdue   = errors.New("what is reserved for the attempt ends, and its lease is over")
)
