package agent

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/control"
	"headgate/control/store"
)

// TestShares: a replica alone has all, as soon as it has a lease; each that comes takes its
// part at once; who is gone leaves its part when its lease is over; and one that is cut off
// keeps what it had.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		m := store.NewMemory()
		defer func() { _ = m.Close() }()
		var mu sync.Mutex
		said := map[string][]int{}
		want := func(when, replica string, want ...int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := slices.Compact(slices.Clone(said[replica])); !slices.Equal(got, want) {
				t.Errorf("%s: %s took one of %v parts, want %v", when, replica, got, want)
			}
		}
		replica := func(name string) (client *store.Memory, stop func()) {
			client = m.Dial()
			ctx, cancel := context.WithCancel(t.Context())
			id := control.ID{Replica: name, Boot: "1"}
			done := make(chan struct{})
			go func() {
				defer close(done)
				Shares(ctx, client, id, 4, func(n int) {
					mu.Lock()
					defer mu.Unlock()
					said[name] = append(said[name], n)
				})
			}()
			synctest.Wait()
			if _, err := client.Join(ctx, control.Member{ID: id}, ttl); err != nil {
				t.Fatal(err)
			}
			return client, func() { cancel(); <-done; _ = client.Close() }
		}
		a, stopA := replica("a")
		defer stopA()
		want("alone", "a", 4, 1)
		_, stopB := replica("b")
		want("with another", "a", 4, 1, 2)
		want("the other", "b", 4, 2)
		stopB()
		want("the other was killed", "a", 4, 1, 2)
		time.Sleep(ttl)
		want("its lease is over", "a", 4, 1, 2, 1)
		_, stopC := replica("c")
		defer stopC()
		a.Cut()
		time.Sleep(2 * ttl)
		want("cut off", "a", 4, 1, 2, 1, 2)
		want("the one that is left", "c", 4, 2, 1)
	})
}
