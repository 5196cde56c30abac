package agent_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/control/store"
)

// TestStrays: grants of a pool that nobody has configured any more are removed once
// nobody can use them: not while the life has its lease, nor before what it left is over,
// nor what survives of a name that may come back.
func TestStrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := start(t, ctx, "a")
		defer stop()
		time.Sleep(5 * time.Second)
		stop()
		time.Sleep(5 * time.Second)

		link := f.mem.Dial()
		old, err := link.Campaign(t.Context(), "earlier", ttl)
		if err != nil {
			t.Fatal(err)
		}
		id := func(name string) control.ID { return control.ID{Replica: name, Boot: "1"} }
		write := func(name string, survives int64) {
			g := &control.Grant{Pool: "old", ID: id(name), Epoch: old.Epoch(), Rev: 1, Residual: 20 * time.Second}
			g.Accounts = []control.Account{{Engine: "e", Amount: admission.Of(2, 2000), Survival: admission.Of(survives, 1000*survives)}}
			if err := old.Write(t.Context(), g); err != nil {
				t.Fatal(err)
			}
		}
		write("dead", 0)
		write("survivor", 1)
		write("live", 0)
		if err := old.Publish(t.Context(), "old", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := old.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		living, leave := context.WithCancel(t.Context())
		if _, err := link.Join(living, control.Member{ID: id("live")}, ttl); err != nil {
			t.Fatal(err)
		}
		next, end := context.WithCancel(t.Context())
		defer end()
		l := leader(t, next, f)
		has := func(want ...string) *store.State {
			t.Helper()
			s, err := link.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range s.Grants {
				if g.Pool == "old" {
					got = append(got, g.Replica)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("the store has grants for %v, want %v", got, want)
			}
			return s
		}
		time.Sleep(19 * time.Second)
		has("dead", "live", "survivor")
		time.Sleep(4 * time.Second)
		has("live", "survivor")
		leave()
		time.Sleep(19 * time.Second)
		has("live", "survivor")
		time.Sleep(8 * time.Second)
		if s := has("survivor"); s.Status["old"] == nil {
			t.Error("what was told of the pool is gone before its last grant")
		}
		if !l.Forget("survivor") {
			t.Error("it does not lead")
		}
		time.Sleep(3 * time.Second)
		if s := has(); s.Status["old"] != nil {
			t.Errorf("of the pool is still told %s", s.Status["old"])
		}
	})
}

// TestLeaversAreTold: the lease that a replica gives back is no lease that has run out.
func TestLeaversAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, t.Context())
		ctx, stop := context.WithCancel(t.Context())
		f.replica(t, ctx, "a")
		time.Sleep(5 * time.Second)
		stop()
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		var stages []control.Stage
		for _, h := range f.noted {
			if h.To == "a" {
				stages = append(stages, h.Stage)
			}
		}
		if want := []control.Stage{control.Joined, control.Left}; !slices.Equal(stages, want) {
			t.Errorf("noted %v, want %v", stages, want)
		}
	})
}
