package release

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"headgate/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One series of samples serves all who wait, and ends with the last of them.
func TestOneSeriesForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held, samples, inside atomic.Int32
		held.Store(20)
		w := New(Config{Min: 10 * time.Millisecond, Max: 250 * time.Millisecond, Grace: time.Hour, By: engine.BySlot,
			Sample: func(context.Context, bool) (Sample, error) {
				if inside.Add(1) != 1 {
					t.Error("two samples at a time")
				}
				defer inside.Add(-1)
				samples.Add(1)
				s := Sample{Asked: time.Now(), Fresh: true, Held: int(held.Load())}
				time.Sleep(3 * time.Millisecond)
				s.At = time.Now()
				return s, nil
			}})
		start := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				c := w.Wait(t.Context(), &Ticket{Closed: time.Now(), Answered: true, Seen: true})
				if c.By != engine.BySlot {
					t.Errorf("%+v", c)
				}
			})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		held.Store(0)
		all.Wait()
		// Released after 1 s: seen within a quarter of that, at a cost that does
		// not depend on how many wait.
		if took := time.Since(start); took > 1300*time.Millisecond {
			t.Errorf("took %s", took)
		}
		if n := samples.Load(); n < 5 || n > 30 {
			t.Errorf("%d samples", n)
		}
		synctest.Wait()
		before := samples.Load()
		time.Sleep(time.Minute)
		if samples.Load() != before {
			t.Error("samples are taken while nobody waits")
		}
	})
}

func TestGivingUpAndComingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int32
		held.Store(1)
		var fail atomic.Bool
		w := New(Config{Min: time.Millisecond, Max: time.Second, Grace: time.Hour, By: engine.BySlot,
			Sample: func(ctx context.Context, queued bool) (Sample, error) {
				if queued {
					t.Error("nobody asked for the queue")
				}
				if fail.Load() {
					return Sample{}, errors.New("no answer")
				}
				return Sample{Asked: time.Now(), At: time.Now(), Fresh: true, Held: int(held.Load())}, nil
			}})
		ticket := &Ticket{Closed: time.Now(), Answered: true}
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if c := w.Wait(short, ticket); c.By != engine.Unconfirmed || c.At != time.Now() {
			t.Errorf("%+v", c)
		}
		fail.Store(true)
		got := make(chan engine.Confirmation)
		go func() { got <- w.Wait(t.Context(), ticket) }()
		time.Sleep(10 * time.Second)
		fail.Store(false)
		time.Sleep(10 * time.Second)
		held.Store(0)
		// A sample taken for another purpose serves too.
		w.Note(Sample{Asked: time.Now(), At: time.Now(), Fresh: true})
		if c := <-got; c.By != engine.BySlot || c.At != time.Now() {
			t.Errorf("%+v", c)
		}
		if c := w.Wait(short, ticket); c.By != engine.BySlot {
			t.Errorf("once confirmed, always: %+v", c)
		}
	})
}

func TestSeriesEndsWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Config{Min: time.Millisecond, Max: time.Second, Grace: time.Hour, By: engine.BySlot,
			Sample: func(ctx context.Context, _ bool) (Sample, error) {
				<-ctx.Done() // an engine that does not answer
				return Sample{}, ctx.Err()
			}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c := w.Wait(ctx, &Ticket{Closed: time.Now()}); c.By != engine.Unconfirmed {
			t.Errorf("%+v", c)
		}
		synctest.Wait() // a goroutine left over would be found blocked at the bubble's end
	})
}

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticket := &Ticket{Closed: time.Now()}
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		if c := Grace(t.Context(), ticket, 2*time.Second); c.By != engine.ByGrace || time.Since(start) != 1500*time.Millisecond {
			t.Errorf("%+v after %s", c, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c := Grace(ctx, &Ticket{Closed: time.Now()}, 2*time.Second); c.By != engine.Unconfirmed {
			t.Errorf("%+v", c)
		}
	})
}
