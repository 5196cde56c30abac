package batch

import (
	"context"
	"time"
)

// Page asks for a part of a list, newest first.
type Page struct {
	After   string // name of the last one of the page before; "": the first page. ErrNotFound if there is none
	Limit   int    // at least 1
	Oldest  bool   // oldest first
	Purpose string // of files, "": any
}

// Waiting is what a batch has to be run, for the Scheduler.
type Waiting struct {
	Batch, Tenant, Class string
	Created, Deadline    time.Time
	Ready                int64 // items that can be claimed now
	Running              int64 // claimed under a lease that is not over
	Total, Done          int64
	// Next is when an item that waits for its next attempt can be claimed; zero: none does.
	Next time.Time
}

// Store is what is durable of files and batches. It is safe for concurrent use, by
// several processes where the storage is. Times come from the caller. A change that
// returned nil is on the disk.
type Store interface {
	// CreateFile writes a new file's row.
	CreateFile(ctx context.Context, f *File) error
	File(ctx context.Context, tenant, id string) (*File, error)
	// Files lists a tenant's files; more tells whether there are others behind the page.
	Files(ctx context.Context, tenant string, p Page) (files []*File, more bool, err error)
	// DeleteFile removes the row. ErrState while a batch that has not ended reads it.
	DeleteFile(ctx context.Context, tenant, id string) error
	// ExpiredFiles are files of any tenant that are past their time and read by no batch
	// that has not ended, limit of them at most.
	ExpiredFiles(ctx context.Context, now time.Time, limit int) ([]*File, error)

	// CreateBatch writes a new batch, Validating. ErrNotFound: its input file is none of the tenant's.
	CreateBatch(ctx context.Context, b *Batch) error
	Batch(ctx context.Context, tenant, id string) (*Batch, error)
	Batches(ctx context.Context, tenant string, p Page) (batches []*Batch, more bool, err error)
	// Unfinished lists batches of all tenants that have not ended, oldest first: what a
	// process that starts has to go on with.
	Unfinished(ctx context.Context) ([]*Batch, error)

	// AddItems writes items of a batch that is Validating. Those it has already are left as
	// they are, so that ingestion can be repeated. duplicate names items whose CustomID
	// another line of the batch has; they are not written.
	AddItems(ctx context.Context, batch string, items []Item) (duplicate []Item, err error)
	// Start makes a batch that is Validating InProgress, with so many items.
	Start(ctx context.Context, batch string, now time.Time) error
	// Fail makes a batch that is Validating Failed, and drops its items.
	Fail(ctx context.Context, batch string, why []LineError, now time.Time) error
	// Cancel makes a batch that is Validating or InProgress Cancelling, and returns it as
	// it then is. ErrState: it has ended or is about to.
	Cancel(ctx context.Context, tenant, id string, now time.Time) (*Batch, error)

	// Waiting lists what can be claimed of batches that are InProgress.
	Waiting(ctx context.Context, now time.Time) ([]Waiting, error)
	// Claim gives a worker up to n items of a batch until its lease ends, those of equal
	// Prefix beside each other, after (the prefix claimed last) first and then around. An
	// item whose lease is over is claimed anew.
	Claim(ctx context.Context, batch, worker string, n int, after uint64, now, until time.Time) ([]Claim, error)
	// Renew moves the end of all leases of a worker.
	Renew(ctx context.Context, worker string, now, until time.Time) error
	// Save writes what running items have come to. Each is fenced by itself: the result
	// has an error for each, nil or ErrFenced, in order: of checkpoints, retries, outcomes.
	Save(ctx context.Context, c []Checkpoint, r []Retry, o []Outcome, now time.Time) ([]error, error)
	// Lapse makes items of a batch that is past its deadline, or Cancelling, done with the
	// result that write gives them, limit at most; left is how many remain. Of a batch that
	// is Cancelling those under a live lease are left to their worker.
	Lapse(ctx context.Context, batch string, limit int, now time.Time, write func(Item) Outcome) (left int64, err error)

	// Finalize makes a batch of which all items are done, or lapsed, Finalizing. ErrState: some are not.
	Finalize(ctx context.Context, batch string, now time.Time) error
	// Results calls each with the lines of a batch that are done, failed ones or others, in
	// the order in which they became so, from a place on (0: the first); each result's place is
	// given with it.
	Results(ctx context.Context, batch string, failed bool, from int64, each func(place int64, line []byte) error) error
	// Finish ends a batch that is Finalizing: the rows of its files are created ("" for a
	// file without lines), the batch has their names and its last status, and items and results are
	// dropped, in one transaction or in steps that Finish, called again, goes on with.
	Finish(ctx context.Context, batch string, output, errors *File, status Status, now time.Time) error

	// Vacuum gives room that was dropped back to the disk, a bounded piece a call.
	Vacuum(ctx context.Context) error
	Close() error
}
