package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/control"
	"headgate/control/store"
	"headgate/quota"
)

// books are a replica's tenants that ask for what a test says.
type books struct {
	mu    sync.Mutex
	parts []string // of acme's limits and of all others', each change of them
	asks  int64    // acme, all the time
}

func (b *books) Share(base int64, parts []quota.Part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := control.Shares{Base: base, Parts: parts}
	if now := fmt.Sprintf("%d/%d", s.Of("acme")/10_000, base/10_000); len(b.parts) == 0 || b.parts[len(b.parts)-1] != now {
		b.parts = append(b.parts, now)
	}
}

func (b *books) Demand(int) []quota.Demand {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asks == 0 {
		return nil
	}
	return []quota.Demand{{Tenant: "acme", PPM: b.asks}}
}

func (b *books) ask(ppm int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks = ppm
}

// counting counts what is written.
type counting struct {
	*store.Memory
	mu     sync.Mutex
	writes int
}

func (c *counting) Announce(ctx context.Context, m control.Member) error {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Memory.Announce(ctx, m)
}

// forget drops the parts that it has had.
func (b *books) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parts = nil
}

// TestShares: a replica alone has all once it has a lease; each that comes takes its part
// at once; a tenant that asks much at one has most of its limits there within seconds, and
// that takes a write or two; who is gone leaves its part when its lease is over; and one
// that is cut off keeps what it had.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		m := store.NewMemory()
		defer func() { _ = m.Close() }()
		replica := func(name string) (b *books, c *counting, stop func()) {
			b, c = &books{}, &counting{Memory: m.Dial()}
			ctx, cancel := context.WithCancel(t.Context())
			id := control.ID{Replica: name, Boot: "1"}
			done := make(chan struct{})
			go func() {
				defer close(done)
				Shares(ctx, c, id, 4, b, slog.New(slog.DiscardHandler))
			}()
			synctest.Wait()
			if _, err := c.Join(ctx, control.Member{ID: id}, ttl); err != nil {
				t.Fatal(err)
			}
			return b, c, func() { cancel(); <-done; _ = c.Close() }
		}
		// want has some time pass, and tells what the parts have been since the last.
		want := func(when string, b *books, want ...string) {
			t.Helper()
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			if !slices.Equal(b.parts, want) {
				t.Errorf("%s: parts of acme's and others' limits: %s; want %s", when, strings.Join(b.parts, ", "), strings.Join(want, ", "))
			}
			b.parts = b.parts[max(len(b.parts)-1, 0):]
		}
		a, ca, stopA := replica("a")
		defer stopA()
		time.Sleep(2 * raiseAfter)
		want("alone", a, "25/25", "100/100")
		b, cb, stopB := replica("b")
		want("with another, at once", a, "100/100", "50/50")
		time.Sleep(2 * raiseAfter)
		want("the other", b, "25/25", "50/50")
		a.ask(800_000)
		time.Sleep(time.Minute)
		want("acme asks much here", a, "50/50", "90/50")
		want("and nothing there", b, "50/50", "10/50")
		a.ask(200_000)
		b.ask(200_000)
		time.Sleep(time.Minute)
		want("and then the same at both, but for what is not worth a write", b, "10/50", "21/50", "34/50", "40/50")
		if ca.writes > 8 || cb.writes > 8 {
			t.Errorf("%d and %d writes in two minutes with two changes of what is asked for", ca.writes, cb.writes)
		}
		stopB()
		time.Sleep(ttl + 2*raiseAfter)
		b.forget()
		_, _, stopC := replica("c")
		defer stopC()
		ca.Cut()
		a.forget()
		time.Sleep(4 * ttl)
		want("cut off", a, "90/50")
	})
}
