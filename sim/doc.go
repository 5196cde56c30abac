// Package sim runs a trace through the real admission core and the engine model
// in virtual time: the same code that the gateway runs, thousands of times
// faster. It is where a policy is compared with others before anybody lives
// with it.
//
// A run is one goroutine and one clock that jumps from event to event: an
// arrival, the engine's next step, the core's next timer. Nothing in it reads a
// clock or a random source, so the same input gives the same output, byte for
// byte.
//
// Admission sees of a request what a gateway would: its class, its prompt and
// its declared limit. How long its answer really is only the engine model
// knows.
package sim

import (
	"time"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// Arm is one way to serve a trace.
type Arm struct {
	Name   string
	Engine simengine.Config
	// Table puts admission in front of the engine; nil sends requests straight
	// to it.
	Table *admission.Table
	// Fleet puts several gateways with the Table in front of the engine; nil: one,
	// which owns it.
	Fleet *Fleet
	// Priority of a class at the engine, lower first; absent is 0.
	Priority map[string]int
	// Tenants are whose the trace's requests are, and what those may use; nil: all are of one
	// tenant. Not with a backlog.
	Tenants *Tenants
	// Clients are what its clients do.
	Clients Clients
	// MaxQueued is how many requests the engine takes, running and waiting; further
	// ones it refuses. 0 is no bound.
	MaxQueued int
	// Stop is asked every now and then, and an error ends the run with it; nil: nobody stops
	// it. What comes of a run that is not stopped is the same with it and without.
	Stop func() error
}

// Outcome says how a request ended.
type Outcome string

const (
	Completed Outcome = "completed"
	Rejected  Outcome = "rejected"
	Failed    Outcome = "failed" // by the engine
)

// Record is what became of one request. A time that never came is -1.
type Record struct {
	trace.Entry
	Admitted  time.Duration
	Scheduled time.Duration // by the engine, first
	First     time.Duration // first token, at the client
	Done      time.Duration // at the client
	Outcome   Outcome
	Cause     string // of a refusal
	Tokens    int    // of output
	Reclaims  int
	Loan      bool
	// Preemptions by the engine.
	Preemptions int
	// Prefilled tokens are what the engine computed for it other than by
	// generating. With llama-server, tokens of prompts that were computed in the
	// same step may be counted for each other.
	Prefilled int
}

// Recomputed tokens were prefilled again because of a preemption or a reclaim.
func (r *Record) Recomputed() int { return max(0, r.Prefilled-r.PromptTokens) }

// Recall is one recall as the core saw it. Times are since its opening; -1 is
// one that never came.
type Recall struct {
	Class     string
	Opened    time.Duration // since the start of the trace
	Granted   time.Duration
	Settled   time.Duration
	Scheduled time.Duration // the engine ran the request that it was opened for
	Reclaims  int
}

// Hold is one time at the engine that admission gave a request, for its answer or
// for a piece of its prompt.
type Hold struct {
	Request   int // its index
	From, To  time.Duration
	Loan      bool
	Reclaimed bool // it was ended by force
}

// Run is what came of one arm on one trace.
type Run struct {
	Records     []Record
	Recalls     []Recall
	Holds       []Hold        // in the order of their ends; none without admission
	Makespan    time.Duration // until the last answer
	Preemptions int64         // by the engine
	Recomputed  int64         // tokens, of all records
}
