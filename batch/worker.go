package batch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Config is how a Worker works. All of Store, Files, Runner and Name must be set.
type Config struct {
	Store   Store
	Files   Files
	Runner  Runner
	Log     *slog.Logger // nil: none
	Metrics *Metrics     // nil: none
	// Named tells of a tenant that the configuration names, which metrics have by its name; all others
	// are one, since who calls may choose among them. nil: none is.
	Named  func(tenant string) bool
	Events *Events // nil: none

	// Name is unique to this life of the process: nothing is held under a name that was used before.
	Name string
	// Pace is how much is under way.
	Pace Pace
	// Lease is how long other workers wait for this one's items once it is dead, Poll how often
	// it looks for what others changed.
	Lease, Poll time.Duration
	// A checkpoint of an item is written after so many tokens or so long, whichever is first.
	CheckpointTokens int64
	CheckpointEvery  time.Duration
	// Attempts is how often an item may fail in a way that may pass. The next attempt comes after
	// Backoff, doubled each time up to MaxBackoff, and never before the engine's own hint.
	Attempts            int
	Backoff, MaxBackoff time.Duration
	// Limits are of an input file.
	Limits Limits
	// KeepOutput is how long output and error files are kept, KeepBatch how long a batch that
	// has ended. 0: for ever.
	KeepOutput, KeepBatch time.Duration
}

// Default is a Config that works, but for what has no default.
func Default() Config {
	return Config{
		Pace:             Pace{Concurrency: 256, Ahead: 16, Quantum: 8, Reopen: 2 * time.Second},
		Lease:            15 * time.Second,
		Poll:             time.Second,
		CheckpointTokens: 64,
		CheckpointEvery:  2 * time.Second,
		Attempts:         5,
		Backoff:          time.Second,
		MaxBackoff:       5 * time.Minute,
		Limits:           Limits{Line: 4 << 20, Items: 1_000_000},
		KeepOutput:       30 * 24 * time.Hour,
		KeepBatch:        90 * 24 * time.Hour,
	}
}

// Worker does everything that happens to batches by itself: it reads input files, runs
// items, writes down what became of them, ends batches, and takes over what dead workers
// left.
//
// One goroutine claims what the Scheduler picks; each item has one of its own, which runs
// it; one writes down what they come to, all that came while the last write was under way
// at once; and one tends to batches as a whole. An item is under way until what became of
// it is written, so a storage that is away stops the claiming, and loses nothing.
type Worker struct {
	cfg Config
	// base is what items run under; it outlives the context of Run, so that they are ended one
	// by one, with a reason.
	base context.Context
	stop context.CancelFunc

	wake, tend, room chan struct{} // flags: list anew, tend anew, something started or ended
	save             *saver
	inputs           *inputs
	counters         counters

	mu      sync.Mutex
	sched   *Scheduler
	items   map[flightKey]*running
	name    string         // under which is claimed
	life    int            // names that were given up
	leases  map[string]int // items by name
	batches map[string]int // items by batch
}

// running is an item under way.
type running struct {
	Claim
	worker string
	end    context.CancelCauseFunc

	mu     sync.Mutex
	begun  bool      // it was admitted
	output int64     // so far
	kept   int64     // at the last checkpoint
	at     time.Time // of it
	wasted int64     // tokens that are neither in an answer nor, without one, in output
}

// Why an item's context ends.
var (
	errStopping  = errors.New("the worker stops")
	errCancelled = errors.New("the batch is cancelled")
	errExpired   = errors.New("the batch's window is over")
	errLost      = errors.New("the lease is lost")
)

// NewWorker returns a worker, which Run starts.
func NewWorker(cfg Config) *Worker {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	flag := func() chan struct{} { return make(chan struct{}, 1) }
	w := &Worker{cfg: cfg, wake: flag(), tend: flag(), room: flag(), inputs: newInputs(cfg.Files), sched: NewScheduler(cfg.Pace),
		items: map[flightKey]*running{}, name: cfg.Name, leases: map[string]int{}, batches: map[string]int{}}
	w.counters.metrics, w.counters.named = cfg.Metrics, cfg.Named
	w.base, w.stop = context.WithCancel(context.Background())
	w.save = newSaver(cfg.Store, cfg.Log, w.over)
	return w
}

// signal raises a flag.
func signal(flag chan struct{}) {
	select {
	case flag <- struct{}{}:
	default:
	}
}

// Wake says that there may be something new: a batch was created or cancelled.
func (w *Worker) Wake() {
	signal(w.tend)
	signal(w.wake)
}

// Run works until ctx ends, and returns when everything is written down and given back, or
// after a lease's time, when it is others' by itself. It is called once.
func (w *Worker) Run(ctx context.Context) {
	defer w.stop()
	var work, keep sync.WaitGroup
	keep.Go(func() { w.save.run(w.base) })
	keep.Go(w.renew)
	work.Go(func() { w.claims(ctx) })
	work.Go(func() { w.tends(ctx) })
	work.Wait()

	w.end(errStopping, func(*running) bool { return true })
	late := time.NewTimer(w.cfg.Lease)
	defer late.Stop()
	for over := false; !over && w.underWay() > 0; {
		select {
		case <-w.room:
		case <-late.C:
			over = true
			w.cfg.Log.Error("batch: what runs could not be given back at the end; it is taken over once the lease is over", "items", w.underWay())
		}
	}
	w.stop()
	keep.Wait()
}

func (w *Worker) underWay() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.items)
}

// end ends the items that which says.
func (w *Worker) end(why error, which func(*running) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.items {
		if which(r) {
			r.end(why)
		}
	}
}

// claims has what the scheduler picks run, until ctx ends.
func (w *Worker) claims(ctx context.Context) {
	var listed time.Time
	list := true
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		if list || now.Sub(listed) >= w.cfg.Poll {
			listed, list = now, false
			if all, err := w.cfg.Store.Waiting(ctx, now); err == nil {
				w.mu.Lock()
				w.sched.Waiting(all)
				w.mu.Unlock()
				w.counters.waiting(all)
			} else if ctx.Err() == nil {
				w.cfg.Log.Error("batch: what waits could not be read", "error", err)
			}
		}
		w.mu.Lock()
		p, ok, at := w.sched.Next(now)
		w.mu.Unlock()
		if ok && w.claim(p) {
			continue
		}
		next := listed.Add(w.cfg.Poll)
		due := !at.IsZero() && at.Before(next) // an item's time, or a gate's, has come
		if due && !ok {
			next = at
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
		case <-timer.C:
			list = due
		case <-w.wake:
			list = true
		case <-w.room:
		}
	}
}

// claim claims a pick and has its items run. A claim is never abandoned half-way: nobody
// would run what it came to.
func (w *Worker) claim(p Pick) bool {
	w.mu.Lock()
	name := w.name
	w.mu.Unlock()
	now := time.Now()
	claims, err := w.cfg.Store.Claim(w.base, p.Batch, name, p.N, p.After, now, now.Add(w.cfg.Lease))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		// What was claimed is not known. It is held by the name, whose lease ends once its last
		// item has.
		w.life++
		w.name = fmt.Sprintf("%s.%d", w.cfg.Name, w.life)
		if !errors.Is(err, ErrNotFound) {
			w.cfg.Log.Error("batch: items could not be claimed", "batch", p.Batch, "error", err)
			return false
		}
	}
	now = time.Now()
	w.sched.Claimed(now, p, claims)
	for _, c := range claims {
		ctx, end := context.WithCancelCause(w.base)
		r := &running{Claim: c, worker: name, end: end, at: now}
		w.items[flightKey{c.Batch, c.Line}] = r
		w.leases[name]++
		w.batches[c.Batch]++
		go w.run(ctx, r)
	}
	return true
}

// run carries an item to its end, which the saver writes down.
func (w *Worker) run(ctx context.Context, r *running) {
	ctx, cancel := context.WithDeadlineCause(ctx, r.Deadline, errExpired)
	defer cancel()
	var a *Answer
	in, err := w.inputs.open(ctx, r.Input)
	if err == nil {
		defer w.inputs.close(r.Input)
		var body []byte
		if body, err = readBody(in, r.Item); err == nil {
			a, err = w.carry(ctx, &Job{
				ID: requestID(r.Batch, r.Line), Tenant: r.Tenant, Key: r.Key, Class: r.Class, Endpoint: r.Endpoint, Body: body, Kept: r.Kept,
				Started:    func() { w.started(r) },
				Checkpoint: func(output int64, kept func() json.RawMessage) { w.checkpoint(ctx, r, output, kept) },
				Wasted:     r.waste,
			})
		}
	}
	if away(err) && ctx.Err() == nil {
		// It is no fault of the item's, and others of the file would fare the same.
		w.cfg.Log.Error("batch: an input file can't be read; its items wait", "batch", r.Batch, "file", r.Input, "error", err)
		a, err = &Answer{Status: http.StatusServiceUnavailable, Retry: true, Refused: RefusedBatch}, nil
	}
	w.save.write(w.ended(ctx, r, a, err))
}

// carry has the runner carry a request. A panic is a failure of the item, not of the process:
// that would claim it again once it is back, and panic again. What it says may be a part of a
// prompt, so only the runtime's own words are logged.
func (w *Worker) carry(ctx context.Context, j *Job) (a *Answer, err error) {
	defer func() {
		if v := recover(); v != nil {
			why := fmt.Sprintf("%T", v)
			if e, ok := v.(runtime.Error); ok {
				why = e.Error()
			}
			w.cfg.Log.Error("panic", "request", j.ID, "panic", why, "stack", string(debug.Stack()))
			a, err = nil, errPanic
		}
	}()
	return w.cfg.Runner.Run(ctx, j)
}

var errPanic = errors.New("an internal error")

func (w *Worker) started(r *running) {
	r.mu.Lock()
	first := !r.begun
	r.begun = true
	r.mu.Unlock()
	if first {
		w.cfg.Events.started(r)
	}
	w.mu.Lock()
	w.sched.Started(time.Now(), r.Batch, r.Line)
	w.mu.Unlock()
	signal(w.room)
}

func (w *Worker) checkpoint(ctx context.Context, r *running, output int64, kept func() json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output = output
	now := time.Now()
	if output-r.kept < w.cfg.CheckpointTokens && now.Sub(r.at) < w.cfg.CheckpointEvery && ctx.Err() == nil {
		return
	}
	r.kept, r.at = output, now
	w.save.checkpoint(r, Checkpoint{Batch: r.Batch, Line: r.Line, Fence: r.Fence, Kept: kept(), Output: output})
}

func (r *running) waste(tokens int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wasted += tokens
}

// ended decides what is written down of an item that came to an answer or an error.
func (w *Worker) ended(ctx context.Context, r *running, a *Answer, err error) write {
	out := write{running: r, answer: a}
	r.mu.Lock()
	output, kept, wasted := r.output, r.kept, r.wasted
	r.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil:
		// It was stopped: others go on with it, or it lapses with its batch, and what is kept with it.
		out.retry = &Retry{Why: context.Cause(ctx).Error()}
		if why := context.Cause(ctx); errors.Is(why, errCancelled) || errors.Is(why, errExpired) {
			kept = 0
		}
	case err == nil && a.Retry && a.Refused != NotRefused:
		out.retry = &Retry{NotBefore: time.Now().Add(max(a.RetryAfter, w.backoff(r, 0))), Why: fmt.Sprintf("refused with status %d", a.Status)}
	case err == nil && !a.Retry:
		out.outcome = &Outcome{Failed: a.Status >= 400, Result: answerLine(r.Item, a, nil), Prompt: a.Prompt, Output: a.Output}
		kept = output
	default:
		why := ""
		if err != nil {
			why = err.Error()
		} else {
			why = fmt.Sprintf("status %d", a.Status)
		}
		if failures := r.Attempts + 1; failures >= w.cfg.Attempts {
			out.outcome = &Outcome{Failed: true, Result: answerLine(r.Item, a, &itemError{codeAttempts,
				fmt.Sprintf("The request failed %d times and is given up. The last failure: %s.", failures, why)})}
			kept = 0
		} else {
			wait := w.backoff(r, r.Attempts)
			if a != nil {
				wait = max(wait, a.RetryAfter)
			}
			out.retry = &Retry{Failed: true, NotBefore: time.Now().Add(wait), Why: why}
		}
		if a != nil && out.outcome != nil {
			out.outcome.Prompt, out.outcome.Output = a.Prompt, a.Output
		}
	}
	wasted += output - kept // what was told and not written goes with the rest
	if out.retry != nil {
		out.retry.Batch, out.retry.Line, out.retry.Fence, out.retry.Wasted = r.Batch, r.Line, r.Fence, wasted
	} else {
		out.outcome.Batch, out.outcome.Line, out.outcome.Fence, out.outcome.Wasted = r.Batch, r.Line, r.Fence, wasted
	}
	return out
}

// backoff is how long an item waits that has failed so often before: spread over a factor
// of two by the item itself, so that what failed together does not come again together.
func (w *Worker) backoff(r *running, failures int) time.Duration {
	d := w.cfg.Backoff
	for range failures {
		if d = 2 * d; d >= w.cfg.MaxBackoff {
			d = w.cfg.MaxBackoff
			break
		}
	}
	return d/2 + time.Duration(float64(d/2)*spread(r.Batch, r.Line))
}

// over forgets an item that is written down. Fenced: what it came to was somebody else's to
// write.
func (w *Worker) over(out write, fenced bool) {
	r := out.running
	r.mu.Lock()
	output := r.output
	r.mu.Unlock()
	now := time.Now()
	w.mu.Lock()
	switch {
	case out.answer != nil && out.answer.Refused != NotRefused && out.retry != nil:
		w.sched.Refused(now, r.Batch, r.Line, out.answer.Refused, out.answer.RetryAfter)
	case out.answer != nil:
		// An answer means that it was let in, be it to be refused by the engine.
		w.sched.Started(now, r.Batch, r.Line)
		w.sched.Ended(r.Batch, r.Line, cmp.Or(out.answer.Prompt, r.Tokens), out.answer.Output)
	default:
		w.sched.Ended(r.Batch, r.Line, r.Tokens, output)
	}
	delete(w.items, flightKey{r.Batch, r.Line})
	if w.leases[r.worker]--; w.leases[r.worker] == 0 {
		delete(w.leases, r.worker)
	}
	w.batches[r.Batch]--
	last := w.batches[r.Batch] == 0
	if last {
		delete(w.batches, r.Batch)
	}
	w.mu.Unlock()
	r.end(nil)
	w.counters.ended(out, fenced)
	w.cfg.Events.over(out, fenced)
	if fenced {
		w.cfg.Log.Warn("batch: an item had been taken over", "batch", r.Batch, "line", r.Line)
	}
	signal(w.room)
	if last {
		signal(w.tend) // it may be the batch's last
	}
}

// renew keeps the leases of names that hold something.
func (w *Worker) renew() {
	tick := time.NewTicker(w.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-w.base.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		names := slices.Sorted(maps.Keys(w.leases))
		w.mu.Unlock()
		for _, name := range names {
			now := time.Now()
			err := w.cfg.Store.Renew(w.base, name, now, now.Add(w.cfg.Lease))
			switch {
			case errors.Is(err, ErrFenced):
				w.cfg.Log.Warn("batch: the lease was over before it was renewed; what runs is given up", "worker", name)
				w.end(errLost, func(r *running) bool { return r.worker == name })
			case err != nil && w.base.Err() == nil:
				w.cfg.Log.Error("batch: the lease could not be renewed", "error", err)
			}
		}
	}
}
