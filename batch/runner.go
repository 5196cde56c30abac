package batch

import (
	"context"
	"encoding/json"
	"time"
)

// Runner carries one request to its end, through the admission that live ones go through.
type Runner interface {
	// Run returns the answer, an engine's refusal among them, or the error of a ctx that
	// ended first: then what was kept is in the last checkpoint.
	Run(ctx context.Context, j *Job) (*Answer, error)
}

// Job is one request of a batch.
type Job struct {
	ID       string // unique, of this attempt
	Tenant   string
	Key      string // name of the principal
	Class    string
	Endpoint string
	Body     []byte
	// Kept is what an earlier attempt came to, as it gave it to Checkpoint: the request
	// goes on from there where it can. nil: it begins.
	Kept json.RawMessage
	// Checkpoint is called with what has been generated so far, at most every some tokens.
	// It must not block for long.
	Checkpoint func(kept json.RawMessage, output int64)
}

// Answer is what became of a request.
type Answer struct {
	Status int // of HTTP
	Body   []byte
	// Retry: the failure may pass; after RetryAfter where something is known of when.
	Retry      bool
	RetryAfter time.Duration
	// Tokens as they were counted, and generated more than once.
	Prompt, Output, Wasted int64
}
