package store

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrEnded is what a renewal returns when the lease is over for certain.
var ErrEnded = errors.New("the lease is over")

// Keeper renews a lease, for as long as it can be. Every store's leases are
// renewed by it, so that all fail in the same way.
type Keeper struct {
	renew  func(ctx context.Context) (time.Duration, error)
	cancel context.CancelFunc
	lost   chan struct{}
	done   chan struct{} // the loop has ended

	mu      sync.Mutex
	renewed chan Renewal
}

// Keep starts to renew a lease that was there, for ttl, when the request was sent
// that made it, and goes on until ctx is over, Stop, or the lease's end. renew asks
// once and returns the lease's new time; it is called at a third of that, and when
// it fails again every tenth, until the lease may be over.
func Keep(ctx context.Context, sent time.Time, ttl time.Duration, renew func(ctx context.Context) (time.Duration, error)) *Keeper {
	ctx, cancel := context.WithCancel(ctx)
	k := &Keeper{renew: renew, cancel: cancel, lost: make(chan struct{}), done: make(chan struct{}), renewed: make(chan Renewal, 1)}
	first := Renewal{Sent: sent, TTL: ttl}
	k.tell(first)
	go k.run(ctx, first)
	return k
}

// Renewed delivers the renewals, the last of them to a reader that is slow. It is
// closed with Lost.
func (k *Keeper) Renewed() <-chan Renewal { return k.renewed }

// Lost is closed when the lease may be over, or is renewed no more.
func (k *Keeper) Lost() <-chan struct{} { return k.lost }

// Stop ends the renewals and waits until none is under way.
func (k *Keeper) Stop() {
	k.cancel()
	<-k.done
}

func (k *Keeper) run(ctx context.Context, last Renewal) {
	defer close(k.done)
	defer k.cancel()
	defer k.end()
	next := last.Sent.Add(last.TTL / 3)
	for {
		over := last.Sent.Add(last.TTL)
		if next.After(over) {
			next = over
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		sent := time.Now()
		if !sent.Before(over) {
			return
		}
		// A try that gets no answer costs a sixth of the lease's time, so that there is
		// time for others, which other members of the store may answer.
		tctx, cancel := context.WithDeadline(ctx, earlier(over, sent.Add(last.TTL/6)))
		ttl, err := k.renew(tctx)
		cancel()
		switch {
		case err == nil:
			last = Renewal{Sent: sent, TTL: ttl}
			k.tell(last)
			next = sent.Add(ttl / 3)
		case errors.Is(err, ErrEnded):
			return
		default:
			next = time.Now().Add(last.TTL / 10)
		}
	}
}

// tell replaces a renewal that was not read: the last says all.
func (k *Keeper) tell(r Renewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.renewed:
	default:
	}
	k.renewed <- r
}

func (k *Keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.renewed)
	close(k.lost)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
