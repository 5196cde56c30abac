package batch

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"headgate/journal"
)

const (
	// ingesting and concluding are how many batches are read in, one of a tenant at most, and
	// ended, at the same time.
	ingesting  = 2
	concluding = 4
	// lapseMost is how many items lapse in one change.
	lapseMost = 1000
	// sweepEvery is how often what is past its time is removed; a content without a row is
	// removed once it is strayAge old: its row may be about to be written.
	sweepEvery = time.Minute
	strayAge   = 24 * time.Hour
	sweepMost  = 100
)

// tends reads in batches that are new and ends those that are done, expired or
// cancelled, until ctx ends. What of it takes long has a goroutine.
func (w *Worker) tends(ctx context.Context) {
	var mu sync.Mutex
	busy := map[string]*Batch{}        // what is being done, as it was
	turns, turn := map[string]int{}, 0 // when something was last begun for a tenant
	var jobs sync.WaitGroup
	defer jobs.Wait()
	jobs.Go(func() { w.sweeps(ctx) })

	tick := time.NewTicker(w.cfg.Poll)
	defer tick.Stop()
	for {
		all, err := w.cfg.Store.Unfinished(ctx)
		if err == nil {
			w.counters.unfinished(all)
		} else if ctx.Err() == nil {
			w.cfg.Log.Error("batch: what is unfinished could not be read", "error", err)
		}
		// Who waited longest goes first: a tenant's thousand batches are no queue for others.
		maps.DeleteFunc(turns, func(tenant string, _ int) bool {
			return !slices.ContainsFunc(all, func(b *Batch) bool { return b.Tenant == tenant })
		})
		slices.SortStableFunc(all, func(x, y *Batch) int { return cmp.Compare(turns[x.Tenant], turns[y.Tenant]) })
		for _, b := range all {
			do := w.due(b)
			if do == nil {
				continue
			}
			mu.Lock()
			reading, own := 0, false
			for _, o := range busy {
				if o.Status == Validating {
					reading++
					own = own || o.Tenant == b.Tenant
				}
			}
			full := len(busy)-reading >= concluding
			if b.Status == Validating {
				// What takes long must not keep others from their end, nor other tenants from
				// their beginning.
				full = reading >= ingesting || own
			}
			if _, is := busy[b.ID]; is || full {
				mu.Unlock()
				continue
			}
			busy[b.ID] = b
			mu.Unlock()
			turn++
			turns[b.Tenant] = turn
			jobs.Go(func() {
				again, err := w.alone(ctx, b, do)
				if err != nil && ctx.Err() == nil && !errors.Is(err, ErrFenced) && !errors.Is(err, ErrState) {
					w.cfg.Log.Error("batch: it could not be gone on with; it is tried again", "batch", b.ID, "status", b.Status, "error", err)
				}
				mu.Lock()
				delete(busy, b.ID)
				mu.Unlock()
				// What the storage failed is tried again at the next look, not at once: a file that
				// can't be read would be read without end.
				if again && (err == nil || errors.Is(err, ErrState)) {
					w.Wake()
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.tend:
		}
	}
}

// due is what there is to do for a batch as a whole, nil for nothing. It changed something
// where it returns true.
func (w *Worker) due(b *Batch) func(context.Context, *Batch) (bool, error) {
	switch b.Status {
	case Validating:
		return w.ingest
	case Cancelling:
		w.end(errCancelled, func(r *running) bool { return r.Batch == b.ID })
		return w.conclude
	case Finalizing:
		return w.conclude
	case InProgress:
		if b.Counts.Done() == b.Counts.Total || !time.Now().Before(b.Expires) {
			return w.conclude
		}
	}
	return nil
}

// alone does something for a batch that one worker should do at a time, as long as it
// holds the batch's name. The fences of the store make it safe without; it would only be done twice.
func (w *Worker) alone(ctx context.Context, b *Batch, do func(context.Context, *Batch) (bool, error)) (bool, error) {
	hold := func(ctx context.Context, lease time.Duration) error {
		now := time.Now()
		return w.cfg.Store.Hold(ctx, "batch "+b.ID, w.cfg.Name, now, now.Add(lease))
	}
	if err := hold(ctx, w.cfg.Lease); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var keep sync.WaitGroup
	keep.Go(func() {
		tick := time.NewTicker(w.cfg.Lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := hold(ctx, w.cfg.Lease); errors.Is(err, ErrFenced) {
					cancel(errLost)
				}
			}
		}
	})
	changed, err := do(ctx, b)
	cancel(nil)
	keep.Wait()
	// Given up, so that the next one need not wait; if that fails it is over by itself.
	_ = hold(w.base, 0)
	return changed, err
}

// ingest reads in a batch's input file.
func (w *Worker) ingest(ctx context.Context, b *Batch) (bool, error) {
	in, err := w.cfg.Files.Open(ctx, b.Input)
	if errors.Is(err, fs.ErrNotExist) {
		if err := w.cfg.Store.Fail(ctx, b.ID, []LineError{{Code: codeGone, Message: fmt.Sprintf("The content of file %s is gone.", b.Input)}}, time.Now()); err != nil {
			return true, err
		}
		w.tell(ctx, b)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer in.Close()
	if err := Ingest(ctx, w.cfg.Store, in, b, w.cfg.Limits, time.Now); err != nil {
		return true, err
	}
	w.tell(ctx, b)
	return true, nil
}

// tell writes down for operators that a batch has started, or ended.
func (w *Worker) tell(ctx context.Context, b *Batch) {
	if w.cfg.Events == nil {
		return
	}
	b, err := w.cfg.Store.Batch(ctx, b.Tenant, b.ID)
	if err != nil {
		return // it is done all the same
	}
	kind := journal.BatchStarted
	if b.Status.Ended() {
		kind = journal.BatchEnded
	}
	w.cfg.Events.batch(kind, b)
}

// conclude brings a batch to its end: what is not done lapses, the lines are written into
// files, and the last change names them. Each step can be repeated by anyone, and comes to the same.
func (w *Worker) conclude(ctx context.Context, b *Batch) (bool, error) {
	s := w.cfg.Store
	if b.FinalizingAt.IsZero() {
		if b.Counts.Done() < b.Counts.Total || b.Status == Cancelling {
			lapse := w.expired
			if b.Status == Cancelling {
				lapse = w.cancelled
			}
			for last := int64(-1); ; {
				left, err := s.Lapse(ctx, b.ID, lapseMost, time.Now(), lapse)
				if err != nil {
					return false, err
				}
				if left == 0 {
					break
				}
				if left == last {
					return false, nil // they are under leases, and end soon
				}
				last = left
			}
		}
		if err := s.Finalize(ctx, b.ID, time.Now()); err != nil {
			return false, err
		}
		var err error
		if b, err = s.Batch(ctx, b.Tenant, b.ID); err != nil {
			return false, err
		}
		w.cfg.Events.batch(journal.BatchFinalizing, b)
	}
	output, err := w.writeLines(ctx, b, "output", false)
	if err != nil {
		return false, err
	}
	problems, err := w.writeLines(ctx, b, "error", true)
	if err != nil {
		return false, err
	}
	if err := s.Finish(ctx, b.ID, output, problems, time.Now()); err != nil {
		return true, err
	}
	w.tell(ctx, b)
	return true, nil
}

func (w *Worker) expired(it Item) Outcome {
	return Outcome{Failed: true, Result: answerLine(it, nil, &itemError{codeExpired, "This request could not be executed before the completion window expired."})}
}

func (w *Worker) cancelled(it Item) Outcome {
	return Outcome{Failed: true, Result: answerLine(it, nil, &itemError{codeCancelled, "This request was not executed: the batch was cancelled."})}
}

// outputID is what a batch's output or error file is called: the same whoever writes it, and however often.
func outputID(batch, kind string) string {
	sum := sha256.Sum256([]byte(kind + " of " + batch))
	return "file-" + hex.EncodeToString(sum[:12])
}

// writeLines writes a batch's lines into a file, in the order in which they came; nil where there
// are none.
func (w *Worker) writeLines(ctx context.Context, b *Batch, kind string, failed bool) (_ *File, err error) {
	f := &File{ID: outputID(b.ID, kind), Tenant: b.Tenant, Purpose: PurposeOutput, Name: b.ID + "_" + kind + ".jsonl", Created: b.FinalizingAt}
	if keep := cmp.Or(b.KeepOutput, w.cfg.KeepOutput); keep > 0 {
		f.Expires = f.Created.Add(keep)
	}
	want := b.Counts.Completed
	if failed {
		want = b.Counts.Failed
	}
	var up Upload
	var buf *bufio.Writer
	var lines int64
	defer func() {
		if up != nil {
			err = errors.Join(err, up.Close())
		}
		if err != nil {
			err = fmt.Errorf("file %s could not be written: %w", f.Name, err)
		}
	}()
	err = w.cfg.Store.Results(ctx, b.ID, failed, 0, func(_ int64, line []byte) error {
		if up == nil {
			var err error
			if up, err = w.cfg.Files.Create(ctx, f.ID); err != nil {
				return err
			}
			buf = bufio.NewWriterSize(up, 1<<18)
		}
		lines++
		f.Bytes += int64(len(line)) + 1
		// A bufio.Writer keeps its first error for Flush.
		_, _ = buf.Write(line)
		return buf.WriteByte('\n')
	})
	if err == nil && lines != want {
		// Another one was faster, and the rows of a batch that has ended are dropped. Its file is
		// whole; this one must not take its place.
		err = fmt.Errorf("%d lines were read of %d: %w", lines, want, ErrState)
	}
	if err != nil || up == nil {
		return nil, err
	}
	if err := buf.Flush(); err != nil {
		return nil, err
	}
	return f, up.Commit()
}

// sweeps removes what is past its time, until ctx ends.
func (w *Worker) sweeps(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		for _, sweep := range []func(context.Context) error{w.sweepFiles, w.forget, w.vacuum} {
			if err := sweep(ctx); err != nil && ctx.Err() == nil {
				w.cfg.Log.Error("batch: what is past its time could not be removed", "error", err)
			}
		}
		if n%60 == 0 {
			if err := w.sweepStrays(ctx); err != nil && ctx.Err() == nil {
				w.cfg.Log.Error("batch: contents of no file could not be removed", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweepFiles removes files that are past their time: the row first, for a content without one is
// found later, and a row without a content would be a file that can't be read.
func (w *Worker) sweepFiles(ctx context.Context) error {
	for {
		files, err := w.cfg.Store.ExpiredFiles(ctx, time.Now(), sweepMost)
		if err != nil {
			return err
		}
		for _, f := range files {
			err := w.cfg.Store.DeleteFile(ctx, f.Tenant, f.ID)
			if errors.Is(err, ErrState) {
				continue // a batch was just made of it
			}
			if err == nil || errors.Is(err, ErrNotFound) {
				err = w.cfg.Files.Remove(ctx, f.ID)
			}
			if err != nil {
				return err
			}
		}
		if len(files) < sweepMost {
			return nil
		}
	}
}

func (w *Worker) forget(ctx context.Context) error {
	for w.cfg.KeepBatch > 0 {
		n, err := w.cfg.Store.Forget(ctx, time.Now().Add(-w.cfg.KeepBatch), sweepMost)
		if err != nil || n < sweepMost {
			return err
		}
	}
	return nil
}

func (w *Worker) vacuum(ctx context.Context) error {
	for {
		more, err := w.cfg.Store.Vacuum(ctx)
		if err != nil || !more {
			return err
		}
	}
}

func (w *Worker) sweepStrays(ctx context.Context) error {
	var old []string
	remove := func() error {
		strays, err := w.cfg.Store.Strays(ctx, old)
		old = old[:0]
		for _, id := range strays {
			err = errors.Join(err, w.cfg.Files.Remove(ctx, id))
		}
		return err
	}
	err := w.cfg.Files.Each(ctx, func(id string, written time.Time) error {
		if time.Since(written) < strayAge {
			return nil
		}
		if old = append(old, id); len(old) < sweepMost {
			return nil
		}
		return remove()
	})
	return errors.Join(err, remove())
}
