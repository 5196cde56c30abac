package batch

import (
	"context"
	"time"
)

// Page asks for a part of a list, newest first: in the order in which things were
// created.
type Page struct {
	After   string // name of the last one of the page before; "": the first page. ErrNotFound if there is none
	Limit   int    // at least 1
	Oldest  bool   // oldest first
	Purpose string // of files, "": any
	Open    bool   // of batches of all tenants, only those that have not ended
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
// several processes where the storage is. Times come from the caller, and are kept to
// the microsecond. A change that returned nil is on the disk.
type Store interface {
	// Holdings are what a tenant has at the moment.
	Holdings(ctx context.Context, tenant string) (Holdings, error)

	// CreateFile writes a new file's row. A *FullError: the tenant would have more than most. Of
	// several at a time no two both get the last room.
	CreateFile(ctx context.Context, f *File, most Holdings) error
	File(ctx context.Context, tenant, id string) (*File, error)
	// Files lists a tenant's files; more tells whether there are others behind the page.
	Files(ctx context.Context, tenant string, p Page) (files []*File, more bool, err error)
	// DeleteFile removes the row. ErrState while a batch that has not ended reads it.
	DeleteFile(ctx context.Context, tenant, id string) error
	// ExpiredFiles are files of any tenant that are past their time and read by no batch
	// that has not ended, limit of them at most.
	ExpiredFiles(ctx context.Context, now time.Time, limit int) ([]*File, error)
	// Strays are those of the names that no file of any tenant has: of contents that were
	// left when a process died between the content and its row.
	Strays(ctx context.Context, ids []string) ([]string, error)

	// CreateBatch writes a new batch, Validating. ErrNotFound: its input file is none of the tenant's.
	// most is as in CreateFile.
	CreateBatch(ctx context.Context, b *Batch, most Holdings) error
	Batch(ctx context.Context, tenant, id string) (*Batch, error)
	Batches(ctx context.Context, tenant string, p Page) (batches []*Batch, more bool, err error)
	// AllBatches lists batches of all tenants, for operators. They come without Metadata.
	AllBatches(ctx context.Context, p Page) (batches []*Batch, more bool, err error)
	// Unfinished lists batches of all tenants that have not ended, oldest first: what a
	// process that starts has to go on with. They come without Metadata.
	Unfinished(ctx context.Context) ([]*Batch, error)

	// AddItems writes items of a batch that is Validating, and counts them in its Total.
	// Those it has already are left as they are, so that ingestion can be repeated.
	// duplicate names items whose CustomID another line of the batch has; they are not
	// written. ErrState: it is not Validating.
	AddItems(ctx context.Context, batch string, items []Item) (duplicate []Item, err error)
	// Start makes a batch that is Validating InProgress, with the items that it has.
	Start(ctx context.Context, batch string, now time.Time) error
	// Fail makes a batch that is Validating Failed, without items.
	Fail(ctx context.Context, batch string, why []LineError, now time.Time) error
	// Cancel makes a batch that is Validating or InProgress Cancelling, and returns it as
	// it then is. One that was Validating has no items any more: nothing was promised of
	// them. One that is Cancelling stays as it is. ErrState: it has ended, or is about to.
	Cancel(ctx context.Context, tenant, id string, now time.Time) (*Batch, error)

	// Waiting lists batches that are InProgress and before their deadline, oldest first, with
	// what can be claimed.
	Waiting(ctx context.Context, now time.Time) ([]Waiting, error)
	// Claim gives a worker up to n items of a batch until its lease ends, ordered by Prefix
	// and Line, those of the prefix after (the one claimed last) first and then around. An
	// item whose lease is over is claimed anew. until is of all that the worker holds. Nothing
	// is claimed of a batch that is not InProgress or is past its deadline; a claim of nothing
	// changes nothing.
	Claim(ctx context.Context, batch, worker string, n int, after uint64, now, until time.Time) ([]Claim, error)
	// Renew moves the end of all that a worker holds. ErrFenced: that was over already,
	// or it never held anything.
	Renew(ctx context.Context, worker string, now, until time.Time) error
	// Save writes what running items have come to. Each is fenced by itself: the result
	// has an error for each, nil or ErrFenced, in order: of checkpoints, retries, outcomes.
	// The fence alone decides: a lease that is over, and of which nobody claimed the item
	// since, is no hindrance.
	Save(ctx context.Context, c []Checkpoint, r []Retry, o []Outcome, now time.Time) ([]error, error)
	// Lapse makes items of a batch that is past its deadline, or Cancelling, done with the
	// result that write gives them, in the order of their lines, limit at most; left is how
	// many remain. Of a batch that is Cancelling those under a lease that is not over are left to
	// their worker. The first call for one that is past its deadline sets ExpiredAt.
	// ErrState: it is neither.
	Lapse(ctx context.Context, batch string, limit int, now time.Time, write func(Item) Outcome) (left int64, err error)

	// Finalize sets FinalizingAt of a batch of which all items are done; one that is
	// InProgress is Finalizing then, one that is Cancelling stays so. ErrState: some are
	// not, or it is in neither state. Called again it changes nothing.
	Finalize(ctx context.Context, batch string, now time.Time) error
	// Results calls each with the lines of a batch that are done, failed ones or others, in
	// the order in which they became so, from behind a place on (0: the first); each
	// result's place is given with it. There are none of a batch that has ended: they are in
	// its files, and no more of one that ends meanwhile. each must not call the Store.
	Results(ctx context.Context, batch string, failed bool, after int64, each func(place int64, line []byte) error) error
	// Finish ends a batch that has FinalizingAt: the rows of its files are created (nil for a
	// file without lines), the batch has their names, and its last status is what Batch.End
	// says. It happens whole or not at all, and its rows of items and results are dropped by
	// Vacuum. ErrState: it isn't being finalized.
	Finish(ctx context.Context, batch string, output, errors *File, now time.Time) error

	// Hold gives one worker at a time a name, until a time: what one process should do of
	// several (to read an input file, to write an output). A holder calls it again to keep
	// it, with until at now to give it up. ErrFenced: another one has it.
	Hold(ctx context.Context, name, worker string, now, until time.Time) error

	// Forget drops batches that ended before a time, limit at most, and tells how many.
	// Their files have an expiry of their own.
	Forget(ctx context.Context, before time.Time, limit int) (int, error)
	// Vacuum drops rows that belong to nothing any more and gives their room back to the
	// disk, a bounded piece a call; more tells whether to call again.
	Vacuum(ctx context.Context) (more bool, err error)
	Close() error
}
