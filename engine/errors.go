package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrAborted is what Next returns once Abort was called: what an aborted
// attempt says afterwards, its end included, must reach nobody.
var ErrAborted = errors.New("the attempt was aborted")

// StatusError is an engine's refusal.
type StatusError struct {
	Status int
	Header http.Header // with Retry-After and retry-after-ms where the engine gave them
	Body   []byte      // at most 64 KiB
}

func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("engine answered %d %s", e.Status, http.StatusText(e.Status)))
}

// Unanswered is the error of a Dispatch that ended after the request had gone
// out and before the engine answered: its context was cancelled, the header
// timeout passed, or the connection broke. The connection is closed, but the
// engine may have the request in its queue or in a slot (llama-server holds
// the headers for as long as a request waits), so whoever holds capacity for
// it needs a confirmation.
type Unanswered struct {
	Err     error
	Confirm func(context.Context) Confirmation // like Stream.Abort
}

func (e *Unanswered) Error() string { return e.Err.Error() }

func (e *Unanswered) Unwrap() error { return e.Err }
