package batch

import (
	"context"
	"log/slog"
	"time"
)

// Config is how a Worker works. All of Store, Files, Runner and Name must be set.
type Config struct {
	Store  Store
	Files  Files
	Runner Runner
	Log    *slog.Logger // nil: none

	// Name is unique to this life of the process: nothing is held under a name that was used before.
	Name string
	// Concurrency is how many items are under way at once, Ahead how many of them may wait in
	// admission's queue: enough that capacity never waits for an item, few enough that a gate
	// that opens again is not flooded.
	Concurrency, Ahead int
	// Lease is how long other workers wait for this one's items once it is dead, Poll how often
	// it looks for what others changed.
	Lease, Poll time.Duration
	// A checkpoint of an item is written after so many tokens or so long, whichever is first.
	CheckpointTokens int64
	CheckpointEvery  time.Duration
	// Attempts is how often an item may fail in a way that may pass. The next attempt comes after Backoff,
	// doubled each time up to MaxBackoff, and never before the engine's own hint.
	Attempts            int
	Backoff, MaxBackoff time.Duration
	// MaxLine is the longest line of an input file, MaxItems the most lines. In bytes.
	MaxLine  int
	MaxItems int64
	// KeepOutput is how long output and error files are kept, KeepBatch how long a batch that has ended.
	// 0: for ever.
	KeepOutput, KeepBatch time.Duration
}

// Worker does everything that happens to batches by itself: it reads input files, runs
// items, writes down what became of them, ends batches, and takes over what dead workers
// left.
type Worker struct {
	cfg  Config
	wake chan struct{}
}

// NewWorker returns a worker, which Run starts.
func NewWorker(cfg Config) *Worker {
	return &Worker{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Run works until ctx ends, and returns when everything is written down and given back.
func (w *Worker) Run(ctx context.Context) {
	<-ctx.Done()
}

// Wake says that there may be something new: a batch was created or cancelled.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
