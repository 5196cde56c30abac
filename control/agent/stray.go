package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"headgate/control"
	"headgate/control/store"
)

// stray is a grant of a pool that this leader's configuration does not have. A life that
// has its lease may use it still, by an older file; a later leader that has the pool again
// has to find it. So it is kept for as long as an allocator would keep it.
type stray struct {
	*control.Grant
	gone time.Time // when its lease was seen to be over; zero: it is not
	free bool      // what survives of it is not its name's any more
}

// strayed takes in a grant at the beginning of the term.
func (t *term) strayed(g *control.Grant) {
	t.strays = append(t.strays, &stray{Grant: g, gone: time.Now()})
}

// strayJoined and strayGone tell of a replica with strays.
func (t *term) strayJoined(m *control.Member) {
	for _, s := range t.strays {
		if s.ID == m.ID {
			s.gone = time.Time{}
		} else if s.Replica == m.Replica {
			s.free = true
		}
	}
}

func (t *term) strayGone(m *control.Member) {
	for _, s := range t.strays {
		if s.ID == m.ID {
			s.gone = time.Now()
		}
	}
}

func (t *term) strayForgotten(replica string) {
	for _, s := range t.strays {
		s.free = s.free || s.Replica == replica
	}
}

// sweep removes strays that nobody can use any more, and what earlier leaders told people
// of their pools. What fails is tried again.
func (t *term) sweep() {
	if t.sweeping.Load() {
		return
	}
	least := t.leader.cfg.Judge
	least.SetDefaults()
	i := slices.IndexFunc(t.strays, func(s *stray) bool {
		return !s.gone.IsZero() && time.Since(s.gone) >= max(s.Residual, least.Residual) && (s.free || !s.Survives())
	})
	if i < 0 {
		return
	}
	s := t.strays[i]
	t.strays = slices.Delete(t.strays, i, i+1)
	last := !slices.ContainsFunc(t.strays, func(o *stray) bool { return o.Pool == s.Pool })
	t.sweeping.Store(true)
	t.tasks.Go(func() {
		defer t.sweeping.Store(false)
		for {
			err := t.unstray(s, last)
			switch {
			case err == nil:
				t.leader.cfg.Log.Info("a grant of a pool that is not configured any more was removed", "pool", s.Pool, "replica", s.Replica)
				return
			case errors.Is(err, store.ErrFenced):
				t.once.Do(func() { close(t.fenced) })
				return
			}
			select {
			case <-t.ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	})
}

func (t *term) unstray(s *stray, last bool) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.leader.cfg.Timeout)
	defer cancel()
	err := t.Remove(ctx, s.Pool, s.ID)
	t.leader.cfg.Metrics.Store("remove", err)
	if err == nil && last {
		err = t.Publish(ctx, s.Pool, nil)
		t.leader.cfg.Metrics.Store("publish", err)
	}
	return err
}
