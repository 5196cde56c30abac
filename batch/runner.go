package batch

import (
	"context"
	"encoding/json"
	"time"
)

// Runner carries one request to its end, through the admission that live ones go through.
type Runner interface {
	// Run returns the answer, an engine's refusal among them, or the error of a ctx that
	// ended first: then what was kept is in the last checkpoint. Another error is taken as
	// a failure that may pass.
	Run(ctx context.Context, j *Job) (*Answer, error)
}

// Job is one request of a batch.
type Job struct {
	ID       string // the item's, the same in each attempt
	Tenant   string
	Key      string // name of the principal
	Class    string
	Endpoint string
	Body     []byte
	// Kept is what an earlier attempt came to, as it gave it to Checkpoint: the request
	// goes on from there where it can, and begins anew where it can't. nil: it begins.
	Kept json.RawMessage
	// Started is called when the request leaves admission's queue, each time that it does. The
	// worker has few items in the queue at a time; one that starts makes room for the next.
	Started func()
	// Checkpoint is called with how many tokens have been generated so far, Kept's among them,
	// for every token if need be. It does not block. Where it is time to write a checkpoint
	// it calls kept, before it returns; what kept returned is not changed afterwards. What a
	// call says after ctx has ended is always written: a runner that is stopped calls it once
	// more, before it returns.
	Checkpoint func(output int64, kept func() json.RawMessage)
	// Wasted is called, before Run returns, with how many tokens were generated that are neither
	// in the answer nor, without one, in what the last call of Checkpoint had to keep.
	Wasted func(tokens int64)
}

// Refusal tells that nothing of a request ran, by no fault of its own, so that it counts as
// no attempt; and whose others would fare the same, and are held back.
type Refusal uint8

// Whom a refusal is of.
const (
	NotRefused    Refusal = iota
	RefusedClass          // a full queue, no engine, a gateway that drains
	RefusedTenant         // what its tenant has used
	RefusedBatch          // its key is not known here, or its file can't be read
)

// Answer is what became of a request.
type Answer struct {
	Status int    // of HTTP; below 400 it succeeded
	Body   []byte // JSON
	// RequestID is what the engine, or the gateway, calls the request; "" for Job.ID.
	RequestID string
	Loan      bool // the last time it was admitted, it was on a loan
	// Retry: the failure may pass, after RetryAfter where something is known of when.
	Retry          bool
	Refused        Refusal
	RetryAfter     time.Duration
	Prompt, Output int64 // tokens as they were counted
}
