package batch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// write is what is written down of an item that is over: one of retry and outcome.
type write struct {
	*running
	answer  *Answer // nil: none came
	retry   *Retry
	outcome *Outcome
}

// became is what became of it, in a word of a metric.
func (w *write) became() string {
	switch {
	case w.outcome != nil && w.outcome.Failed:
		return "failed"
	case w.outcome != nil:
		return "completed"
	case w.retry.Failed:
		return "failed"
	case w.answer != nil:
		return "refused"
	}
	return "stopped"
}

func (w *write) wasted() int64 {
	if w.outcome != nil {
		return w.outcome.Wasted
	}
	return w.retry.Wasted
}

// saver writes down what items come to. What comes while one write is under way goes into
// the next, so that many items share the disk's time; and what the storage did not
// take is tried again until it does.
type saver struct {
	store Store
	log   *slog.Logger
	over  func(w write, fenced bool)
	kick  chan struct{}

	mu          sync.Mutex
	checkpoints map[*running]Checkpoint
	writes      []write
}

// A save that failed is tried again after a while that grows between these.
const (
	saveAgain     = 100 * time.Millisecond
	saveAgainMost = 5 * time.Second
)

func newSaver(s Store, log *slog.Logger, over func(write, bool)) *saver {
	return &saver{store: s, log: log, over: over, kick: make(chan struct{}, 1), checkpoints: map[*running]Checkpoint{}}
}

// checkpoint replaces one that is not written yet.
func (s *saver) checkpoint(r *running, c Checkpoint) {
	s.mu.Lock()
	s.checkpoints[r] = c
	s.mu.Unlock()
	signal(s.kick)
}

func (s *saver) write(w write) {
	s.mu.Lock()
	s.writes = append(s.writes, w)
	s.mu.Unlock()
	signal(s.kick)
}

// run writes until ctx ends.
func (s *saver) run(ctx context.Context) {
	wait := saveAgain
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		}
		for !s.flush(ctx) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, saveAgainMost)
		}
		wait = saveAgain
	}
}

// flush writes all that there is; false where the storage took nothing.
func (s *saver) flush(ctx context.Context) bool {
	s.mu.Lock()
	writes, checkpoints := s.writes, s.checkpoints
	s.writes, s.checkpoints = nil, map[*running]Checkpoint{}
	s.mu.Unlock()

	for _, w := range writes {
		if w.outcome != nil {
			delete(checkpoints, w.running)
		}
	}
	var cs []Checkpoint
	var rs []Retry
	var os []Outcome
	var order []*running // whose errors come in which order
	for r, c := range checkpoints {
		cs, order = append(cs, c), append(order, r)
	}
	var ended []write
	for _, w := range writes {
		if w.retry != nil {
			rs, ended = append(rs, *w.retry), append(ended, w)
		}
	}
	for _, w := range writes {
		if w.outcome != nil {
			os, ended = append(os, *w.outcome), append(ended, w)
		}
	}
	if len(cs)+len(ended) == 0 {
		return true
	}
	errs, err := s.store.Save(ctx, cs, rs, os, time.Now())
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("batch: what items came to could not be written; it is tried again", "items", len(ended), "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.writes = append(writes, s.writes...)
		for r, c := range checkpoints {
			if _, newer := s.checkpoints[r]; !newer {
				s.checkpoints[r] = c
			}
		}
		return false
	}
	for i, r := range order {
		if errors.Is(errs[i], ErrFenced) {
			r.end(errLost)
		}
	}
	for i, w := range ended {
		s.over(w, errors.Is(errs[len(order)+i], ErrFenced))
	}
	return true
}
