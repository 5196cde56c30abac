package batch

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Status of a batch, in OpenAI's words.
type Status string

const (
	Validating Status = "validating"  // its file is being read
	Failed     Status = "failed"      // its file can't be run; Errors says why. Nothing ran
	InProgress Status = "in_progress" // items are run
	Finalizing Status = "finalizing"  // all items are done, its files are being written
	Completed  Status = "completed"   // whatever became of the items
	Expired    Status = "expired"     // its window ended first; what was not done says so
	Cancelling Status = "cancelling"  // nothing more is claimed; what runs is being ended
	Cancelled  Status = "cancelled"
)

// Ended tells whether nothing will change any more.
func (s Status) Ended() bool {
	switch s {
	case Failed, Completed, Expired, Cancelled:
		return true
	}
	return false
}

// File is what a file is called and how long it is kept. What is in it is Files'.
type File struct {
	ID      string
	Tenant  string
	Purpose string // batch, batch_output, or another of OpenAI's
	Name    string
	Bytes   int64
	Created time.Time
	Expires time.Time // zero: never
}

// Batch is one batch.
type Batch struct {
	ID       string
	Tenant   string
	Key      string // name of the principal that made it
	Class    string // admission's class of its items
	Endpoint string // /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings
	Window   time.Duration
	Metadata map[string]string
	// KeepOutput is how long its output and error files are kept; 0: as long as any.
	KeepOutput time.Duration

	Input  string // the file it was made of
	Output string // "" until there is one: no item succeeded, or they are not written yet
	Error  string

	Status Status
	Counts Counts
	// Errors are why it failed, by line of its file; MaxErrors of them at most.
	Errors []LineError

	// When it came to be so; zero: it did not. Expires is the end of its window.
	Created, Started, Expires, FinalizingAt, CompletedAt, FailedAt, ExpiredAt, CancellingAt, CancelledAt time.Time
}

// End is the status that a batch ends with once its files are written.
func (b *Batch) End() Status {
	switch {
	case !b.CancellingAt.IsZero():
		return Cancelled
	case !b.ExpiredAt.IsZero():
		return Expired
	}
	return Completed
}

// Ended is when a batch ended, zero where it did not.
func (b *Batch) Ended() time.Time {
	switch b.Status {
	case Failed:
		return b.FailedAt
	case Completed:
		return b.CompletedAt
	case Expired:
		return b.ExpiredAt
	case Cancelled:
		return b.CancelledAt
	}
	return time.Time{}
}

// Counts are of a batch's items. They are kept beside it, so that to ask for them costs
// the same for a million items as for one.
type Counts struct {
	Total, Completed, Failed int64
	// Tokens of the answers, and what was generated and is in none.
	Prompt, Output, Wasted int64
}

// Done are the items that have their line.
func (c Counts) Done() int64 { return c.Completed + c.Failed }

// MaxErrors are how many of an input file's errors are kept.
const MaxErrors = 100

// LineError is what is wrong with an input file, in OpenAI's form.
type LineError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Param   string `json:"param,omitempty"`
	Line    int64  `json:"line,omitempty"` // from 1 on; 0: of the whole file
}

// Item is one line of an input file.
type Item struct {
	Batch    string
	Line     int64 // from 1 on; its name within the batch
	CustomID string
	// Offset and Length are the place of the line in the input file, in bytes.
	Offset, Length int64
	// Prefix orders items so that those whose prompts begin alike are beside each other, and
	// can run one after the other while the engine has that beginning cached.
	Prefix uint64
	Tokens int64 // of the prompt, estimated
}

// Claim is an item that a worker may run until its lease is over. Fence is higher than
// that of every earlier claim of the item: what is written under a lower one is refused.
type Claim struct {
	Item
	Tenant, Key, Class, Endpoint, Input string
	Deadline                            time.Time // end of the batch's window
	Fence                               int64
	Attempts                            int // that failed before this one
	// Kept is what was checkpointed of its answer; nil: nothing.
	Kept json.RawMessage
}

// Checkpoint is how far an answer has come. It replaces the one before it.
type Checkpoint struct {
	Batch  string
	Line   int64
	Fence  int64
	Kept   json.RawMessage
	Output int64 // tokens in it
}

// Outcome is what became of an item, for good.
type Outcome struct {
	Batch  string
	Line   int64
	Fence  int64
	Failed bool
	// Result is the item's line in the output or the error file, without newline.
	Result                 json.RawMessage
	Prompt, Output, Wasted int64 // tokens
}

// Retry puts an item back: it failed and is to be tried again, or was given back unrun.
// What was kept of it stays.
type Retry struct {
	Batch     string
	Line      int64
	Fence     int64
	NotBefore time.Time
	// Failed: this counts as an attempt. Why is the last failure, in words.
	Failed bool
	Why    string
	Wasted int64 // tokens of the attempt that are not kept
}

// Holdings are what a tenant has. As a bound, 0 is none.
type Holdings struct {
	Files, Bytes int64
	Batches      int64 // that have not ended
}

// FullError is why a tenant can't have more.
type FullError struct {
	What string // files, bytes or batches
	Most int64
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the tenant has as many %s as it may, %d", e.What, e.Most)
}

// Check tells whether there may be more; a *FullError says what not. What is not asked for is not held
// against it.
func (h Holdings) Check(more, most Holdings) error {
	for _, c := range []struct {
		what             string
		have, more, most int64
	}{
		{"files", h.Files, more.Files, most.Files}, {"bytes", h.Bytes, more.Bytes, most.Bytes}, {"batches", h.Batches, more.Batches, most.Batches},
	} {
		if c.most > 0 && c.more > 0 && c.more > c.most-c.have {
			return &FullError{c.what, c.most}
		}
	}
	return nil
}

// Errors of a Store. Others are of the storage itself: what was asked may be done or not,
// and asking again is safe.
var (
	// ErrNotFound: there is none of that name, or it is another tenant's.
	ErrNotFound = errors.New("not found")
	// ErrState: the batch or file is in no state in which that can be done.
	ErrState = errors.New("not in this state")
	// ErrFenced: the claim is not the worker's any more. What it did is not written.
	ErrFenced = errors.New("the claim is over")
	// ErrFull: there is no room left.
	ErrFull = errors.New("the disk of the batch store is full")
)
