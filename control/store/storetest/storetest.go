// Package storetest tells the same stories to every store: what the control
// plane's shells count on.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/control"
	"headgate/control/store"
)

// Fleet is one fleet's store, as clients see it.
type Fleet struct {
	// Dial returns a client, which the test's end closes.
	Dial func(t *testing.T) Client
	// TTL is the shortest lease there is.
	TTL time.Duration
	// Forget drops what the store remembers for watches that begin anew, nil if it
	// remembers nothing.
	Forget func(t *testing.T)
}

// Client is a store whose link can be cut.
type Client struct {
	store.Store
	Cut, Heal func()
}

// Run tells the stories, each to a fleet of its own. wrap runs one of them.
func Run(t *testing.T, wrap func(t *testing.T, story func(t *testing.T, f Fleet))) {
	for _, s := range []struct {
		name string
		tell func(t *testing.T, f Fleet)
	}{
		{"a name is one life's", nameIsOneLifes},
		{"a lease is renewed", leaseIsRenewed},
		{"a lease runs out", leaseRunsOut},
		{"a cut replica loses its lease", cutReplica},
		{"reports are fenced by the lease", reportsAreFenced},
		{"grants reach one life", grantsReachOneLife},
		{"one leads", oneLeads},
		{"a candidate that gives up is in nobody's way", candidateGivesUp},
		{"a cut leader is fenced", cutLeader},
		{"a leader is told all", leaderIsToldAll},
		{"a watch that was lost is made up for", lostWatch},
		{"a slow reader gets the last", slowReader},
		{"the state is told", stateIsTold},
		{"what is published is told", publishedIsTold},
		{"the replicas are told of each other", toldOfEachOther},
		{"what a member says reaches all, and is no other life", announced},
		{"the end", end},
	} {
		t.Run(s.name, func(t *testing.T) { wrap(t, s.tell) })
	}
}

// patience bounds every wait. It is no measure of speed: only a broken store needs
// as long.
const patience = 60 * time.Second

// next returns what comes next.
func next[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatalf("%s: the channel is closed", what)
		}
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing comes", what)
	}
	panic("unreachable")
}

// until returns the first that is as wanted, and all that came before.
func until[T any](t *testing.T, c <-chan T, what string, is func(T) bool) (v T, before []T) {
	t.Helper()
	for {
		v = next(t, c, fmt.Sprintf("%s, after %v", what, before))
		if is(v) {
			return v, before
		}
		before = append(before, v)
	}
}

// over waits until a channel is closed.
func over[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	for {
		select {
		case _, ok := <-c:
			if !ok {
				return
			}
		case <-time.After(patience):
			t.Fatalf("%s does not end", what)
		}
	}
}

// do repeats what may fail because of a cut or a store that is busy, as the shells do.
func do(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f(t.Context())
		if err == nil {
			return
		}
		if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrTaken) || time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond) // between two tries
	}
}

func join(t *testing.T, ctx context.Context, c Client, id control.ID, ttl time.Duration) (store.Session, control.Member) {
	t.Helper()
	m := control.Member{ID: id, Address: "http://" + id.Replica}
	s, err := c.Join(ctx, m, ttl)
	if err != nil {
		t.Fatalf("join %v: %v", id, err)
	}
	m.Lease = s.Lease()
	return s, m
}

func campaign(t *testing.T, ctx context.Context, c Client, who string, ttl time.Duration) store.Leadership {
	t.Helper()
	l, err := c.Campaign(ctx, who, ttl)
	if err != nil {
		t.Fatalf("%s's campaign: %v", who, err)
	}
	return l
}

func grant(l store.Leadership, m control.Member, rev uint64) *control.Grant {
	return &control.Grant{
		Pool: "p", ID: m.ID, Lease: m.Lease, Epoch: l.Epoch(), Rev: rev,
		Accounts: []control.Account{{Engine: "e", Amount: control.Amount{int64(rev)}, Bound: control.Amount{int64(rev)}}},
		Classes:  []control.ClassGrant{},
	}
}

func report(m control.Member, seq uint64) *control.Report {
	return &control.Report{Pool: "p", ID: m.ID, Lease: m.Lease, Seq: seq, Engines: []control.EngineReport{}, Classes: []control.ClassReport{}}
}

var (
	a1 = control.ID{Replica: "a", Boot: "1"}
	a2 = control.ID{Replica: "a", Boot: "2"}
	b1 = control.ID{Replica: "b", Boot: "1"}
)

// say is a change in words.
func say(c store.Change) string {
	switch {
	case c.Joined != nil:
		return fmt.Sprintf("join %s/%s", c.Joined.Replica, c.Joined.Boot)
	case c.Gone != nil:
		return fmt.Sprintf("gone %s/%s", c.Gone.Replica, c.Gone.Boot)
	case c.Grant != nil:
		return fmt.Sprintf("grant %s/%s %d", c.Grant.Replica, c.Grant.Boot, c.Grant.Rev)
	case c.Report != nil:
		return fmt.Sprintf("report %s/%s %d", c.Report.Replica, c.Report.Boot, c.Report.Seq)
	case c.Synced:
		return "synced"
	}
	return "nothing"
}

func told(t *testing.T, c <-chan store.Change, want ...string) {
	t.Helper()
	for i, w := range want {
		if got := say(next(t, c, w)); got != w {
			t.Fatalf("told %q, want %q, the rest is %q", got, w, want[i+1:])
		}
	}
}

func names(list []control.Member) string {
	var n []string
	for _, m := range list {
		n = append(n, m.Replica+"/"+m.Boot)
	}
	return strings.Join(n, " ")
}

func nameIsOneLifes(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	s, _ := join(t, t.Context(), c, a1, f.TTL)
	_, err := d.Join(t.Context(), control.Member{ID: a2}, f.TTL)
	if !errors.Is(err, store.ErrTaken) || !strings.Contains(err.Error(), `boot 1`) || !strings.Contains(err.Error(), fmt.Sprintf("%x", s.Lease())) {
		t.Fatalf("the other life's join: %v, want ErrTaken, with the boot and the lease that hold the name", err)
	}

	again, m := join(t, t.Context(), c, a1, f.TTL)
	if again.Lease() == s.Lease() {
		t.Errorf("the same life's second lease is its first, %x", s.Lease())
	}
	over(t, s.Renewed(), "the lease that the same life replaced")
	if err := s.Leave(t.Context()); err != nil {
		t.Errorf("leave a lease that is over: %v", err)
	}
	if list := next(t, d.Members(t.Context()), "members"); !cmp.Equal(list, []control.Member{m}) {
		t.Errorf("members %+v, want %+v", list, m)
	}

	if err := again.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	over(t, again.Renewed(), "a lease that was given back")
	join(t, t.Context(), d, a2, f.TTL)
}

func leaseIsRenewed(t *testing.T, f Fleet) {
	c := f.Dial(t)
	before := time.Now()
	s, m := join(t, t.Context(), c, a1, f.TTL)
	lists := c.Members(t.Context())
	if list := next(t, lists, "members"); !cmp.Equal(list, []control.Member{m}) {
		t.Fatalf("members %+v, want %+v", list, m)
	}
	// Beyond the end of the lease as it was made.
	var last store.Renewal
	for !last.Sent.After(before.Add(2 * f.TTL)) {
		r := next(t, s.Renewed(), "renewal")
		if r.Sent.Before(before) || r.Sent.After(time.Now()) || !r.Sent.After(last.Sent) || r.TTL < f.TTL {
			t.Fatalf("renewal %+v after %+v, of a lease of %v from %v", r, last, f.TTL, before)
		}
		last = r
	}
	if err := c.Report(t.Context(), report(m, 1)); err != nil {
		t.Errorf("a report under a lease that was renewed: %v", err)
	}
	select {
	case list := <-lists:
		t.Errorf("the members changed to %s", names(list))
	default:
	}
}

func leaseRunsOut(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	ctx, crash := context.WithCancel(t.Context())
	s, m := join(t, ctx, c, a1, f.TTL)
	lists := d.Members(t.Context())
	until(t, lists, "a", func(l []control.Member) bool { return names(l) == "a/1" })
	crash()
	over(t, s.Renewed(), "a lease that is not renewed")
	until(t, lists, "nobody", func(l []control.Member) bool { return len(l) == 0 })
	if err := c.Report(t.Context(), report(m, 1)); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a report after the lease's end: %v, want ErrFenced", err)
	}
	join(t, t.Context(), d, a2, f.TTL)
}

func cutReplica(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	s, m := join(t, t.Context(), c, a1, f.TTL)
	lists := d.Members(t.Context())
	until(t, lists, "a", func(l []control.Member) bool { return names(l) == "a/1" })
	c.Cut()
	if err := c.Report(t.Context(), report(m, 1)); err == nil || errors.Is(err, store.ErrFenced) {
		t.Errorf("a report over a cut link: %v, want an error that does not say fenced", err)
	}
	var last store.Renewal
	for r := range s.Renewed() {
		last = r
	}
	if now := time.Now(); now.Before(last.Sent.Add(last.TTL)) {
		t.Errorf("the lease was given up %v before its end", last.Sent.Add(last.TTL).Sub(now))
	}
	until(t, lists, "nobody", func(l []control.Member) bool { return len(l) == 0 })
	c.Heal()
	do(t, "join again", func(ctx context.Context) error {
		_, err := c.Join(ctx, control.Member{ID: a1}, f.TTL)
		return err
	})
	until(t, lists, "a", func(l []control.Member) bool { return names(l) == "a/1" })
}

func reportsAreFenced(t *testing.T, f Fleet) {
	c := f.Dial(t)
	s, m := join(t, t.Context(), c, a1, f.TTL)
	for _, seq := range []uint64{1, 3, 2} {
		if err := c.Report(t.Context(), report(m, seq)); err != nil {
			t.Fatalf("report %d: %v", seq, err)
		}
	}
	other := report(m, 9)
	other.Lease++
	if err := c.Report(t.Context(), other); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a report under another lease: %v, want ErrFenced", err)
	}
	if err := s.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	if err := c.Report(t.Context(), report(m, 4)); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a report after the lease's end: %v, want ErrFenced", err)
	}
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []control.Report{*report(m, 3)}; !cmp.Equal(state.Reports, want) {
		t.Errorf("what is left: %s", cmp.Diff(want, state.Reports))
	}
}

func grantsReachOneLife(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	_, a := join(t, t.Context(), c, a1, f.TTL)
	_, b := join(t, t.Context(), c, b1, f.TTL)
	l := campaign(t, t.Context(), d, "x", f.TTL)
	write := func(m control.Member, pool string, rev uint64) *control.Grant {
		t.Helper()
		g := grant(l, m, rev)
		g.Pool = pool
		do(t, "write", func(ctx context.Context) error { return l.Write(ctx, g) })
		return g
	}
	write(b, "p", 1)
	first := write(a, "p", 2)
	ctx, cancel := context.WithCancel(t.Context())
	grants := c.Grants(ctx, a1)
	if got := next(t, grants, "the grant that was there"); !cmp.Equal(got, first) {
		t.Fatalf("the grant that was there: %s", cmp.Diff(first, got))
	}
	write(b, "p", 3)
	write(a, "p", 1) // came late
	second, other := write(a, "p", 4), write(a, "q", 5)
	for _, want := range []*control.Grant{second, other} {
		if got := next(t, grants, "a grant"); !cmp.Equal(got, want) {
			t.Fatalf("a grant: %s", cmp.Diff(want, got))
		}
	}

	c.Cut()
	write(a, "p", 6)
	write(a, "p", 7)
	if f.Forget != nil {
		f.Forget(t)
	}
	c.Heal()
	until(t, grants, "the last grant", func(g *control.Grant) bool { return g.Rev == 7 })
	cancel()
	over(t, grants, "a watch of grants whose context is over")
}

func oneLeads(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	_, a := join(t, t.Context(), c, a1, f.TTL)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	won := make(chan store.Leadership)
	go func() {
		if l, err := d.Campaign(t.Context(), "y", f.TTL); err == nil {
			won <- l
		}
		close(won)
	}()
	do(t, "write", func(ctx context.Context) error { return x.Write(ctx, grant(x, a, 1)) })
	select {
	case <-won:
		t.Fatal("two lead")
	case <-x.Lost():
		t.Fatal("the leader has lost")
	default:
	}
	if err := x.Resign(t.Context()); err != nil {
		t.Fatalf("resign: %v", err)
	}
	over(t, x.Lost(), "the term of who resigned")
	y := next(t, won, "the second's term")
	if y.Epoch() <= x.Epoch() {
		t.Errorf("epoch %d comes after %d", y.Epoch(), x.Epoch())
	}
	fenced(t, x, a)
	do(t, "write", func(ctx context.Context) error { return y.Write(ctx, grant(y, a, 2)) })
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.Leader != "y" || state.Epoch != y.Epoch() || len(state.Grants) != 1 || state.Grants[0].Epoch != y.Epoch() {
		t.Errorf("state %+v, want y to lead and to have written the grant", state)
	}
}

func news(l store.Leadership, pool string, seq uint64) *control.News {
	return &control.News{
		Pool: pool, Epoch: l.Epoch(), Seq: seq, Engines: []control.EngineNews{{Engine: "e", Idle: control.Amount{2, 200}}},
		Classes: []control.ClassNews{{ID: a1, Class: "k", Used: []control.Amount{{1, 100}}, Waiting: int(seq)}},
	}
}

func fenced(t *testing.T, l store.Leadership, m control.Member) {
	t.Helper()
	for what, err := range map[string]error{
		"write":   l.Write(t.Context(), grant(l, m, 1000)),
		"remove":  l.Remove(t.Context(), "p", m.ID),
		"publish": l.Publish(t.Context(), "p", []byte("{}")),
		"tell":    l.Tell(t.Context(), news(l, "p", 1000)),
	} {
		if !errors.Is(err, store.ErrFenced) {
			t.Errorf("%s after the term: %v, want ErrFenced", what, err)
		}
	}
}

func candidateGivesUp(t *testing.T, f Fleet) {
	c, d, e := f.Dial(t), f.Dial(t), f.Dial(t)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		// Nobody would live to see this lease run out.
		_, err := d.Campaign(ctx, "y", 1000*f.TTL)
		gaveUp <- err
	}()
	for range 20 { // time to stand
		if _, err := d.State(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := next(t, gaveUp, "the campaign whose context is over"); !errors.Is(err, context.Canceled) {
		t.Errorf("the campaign whose context is over: %v", err)
	}
	if err := x.Resign(t.Context()); err != nil {
		t.Fatalf("resign: %v", err)
	}
	campaign(t, t.Context(), e, "z", f.TTL)
}

func cutLeader(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	_, a := join(t, t.Context(), d, a1, f.TTL)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	c.Cut()
	if err := x.Write(t.Context(), grant(x, a, 1)); err == nil || errors.Is(err, store.ErrFenced) {
		t.Errorf("a write over a cut link: %v, want an error that does not say fenced", err)
	}
	y := campaign(t, t.Context(), d, "y", f.TTL)
	over(t, x.Lost(), "the cut leader's term")
	do(t, "write", func(ctx context.Context) error { return y.Write(ctx, grant(y, a, 2)) })
	c.Heal()
	deadline := time.Now().Add(patience)
	for !errors.Is(x.Write(t.Context(), grant(x, a, 3)), store.ErrFenced) {
		if time.Now().After(deadline) {
			t.Fatal("the leader that was cut is not told that it is fenced")
		}
		time.Sleep(10 * time.Millisecond) // between two tries
	}
	fenced(t, x, a)
	state, err := d.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []control.Grant{*grant(y, a, 2)}; !cmp.Equal(state.Grants, want) {
		t.Errorf("the grants: %s", cmp.Diff(want, state.Grants))
	}
}

func leaderIsToldAll(t *testing.T, f Fleet) {
	c := f.Dial(t)
	sa, a := join(t, t.Context(), c, a1, f.TTL)
	_, b := join(t, t.Context(), c, b1, f.TTL)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	for rev, m := range map[uint64]control.Member{1: a, 2: b} {
		do(t, "write", func(ctx context.Context) error { return x.Write(ctx, grant(x, m, rev)) })
		do(t, "report", func(ctx context.Context) error { return c.Report(ctx, report(m, 1)) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes := x.Follow(ctx)
	told(t, changes, "grant a/1 1", "grant b/1 2", "join a/1", "report a/1 1", "join b/1", "report b/1 1", "synced")
	do(t, "report", func(ctx context.Context) error { return c.Report(ctx, report(a, 2)) })
	told(t, changes, "report a/1 2")
	if err := sa.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	told(t, changes, "gone a/1")
	_, a = join(t, t.Context(), c, a2, f.TTL)
	told(t, changes, "join a/2")
	_, again := join(t, t.Context(), c, a2, f.TTL)
	if c := next(t, changes, "gone"); c.Gone == nil || *c.Gone != a {
		t.Errorf("told %+v, want that %+v is gone", c, a)
	}
	if c := next(t, changes, "join"); c.Joined == nil || *c.Joined != again {
		t.Errorf("told %+v, want that %+v has joined", c, again)
	}
	// The leader removes what a life has left, and hears nothing of it.
	do(t, "remove", func(ctx context.Context) error { return x.Remove(ctx, "p", a1) })
	do(t, "report", func(ctx context.Context) error { return c.Report(ctx, report(again, 1)) })
	told(t, changes, "report a/2 1")
	cancel()
	over(t, changes, "a watch of changes whose context is over")

	told(t, x.Follow(t.Context()), "grant b/1 2", "join a/2", "report a/2 1", "join b/1", "report b/1 1", "synced")
}

func lostWatch(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	sa, a := join(t, t.Context(), d, a1, f.TTL)
	_, b := join(t, t.Context(), d, b1, f.TTL)
	x := campaign(t, t.Context(), c, "x", 10*f.TTL)
	changes, lists := x.Follow(t.Context()), c.Members(t.Context())
	told(t, changes, "join a/1", "join b/1", "synced")
	until(t, lists, "a and b", func(l []control.Member) bool { return names(l) == "a/1 b/1" })

	c.Cut()
	do(t, "report", func(ctx context.Context) error { return d.Report(ctx, report(a, 1)) })
	if err := sa.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	sa2, _ := join(t, t.Context(), d, a2, f.TTL)
	if err := sa2.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	for seq := range uint64(3) {
		do(t, "report", func(ctx context.Context) error { return d.Report(ctx, report(b, seq+1)) })
	}
	if f.Forget != nil {
		f.Forget(t)
	}
	c.Heal()
	_, before := until(t, changes, "b's last report", func(c store.Change) bool { return say(c) == "report b/1 3" })
	gone := false
	for _, c := range before {
		gone = gone || say(c) == "gone a/1"
		if c.Gone != nil && c.Gone.Replica == "b" {
			t.Errorf("told that b is gone, which never was")
		}
	}
	if !gone {
		t.Errorf("not told that a is gone, only %v", before)
	}
	until(t, lists, "b", func(l []control.Member) bool { return names(l) == "b/1" })
	do(t, "report", func(ctx context.Context) error { return d.Report(ctx, report(b, 4)) })
	until(t, changes, "b's next report", func(c store.Change) bool { return say(c) == "report b/1 4" })
}

func slowReader(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	sa, a := join(t, t.Context(), d, a1, f.TTL)
	_, b := join(t, t.Context(), d, b1, f.TTL)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	changes := x.Follow(t.Context())
	told(t, changes, "join a/1", "join b/1", "synced")
	const many = 100
	for seq := range uint64(many) {
		do(t, "report", func(ctx context.Context) error { return d.Report(ctx, report(b, seq+1)) })
	}
	do(t, "report", func(ctx context.Context) error { return d.Report(ctx, report(a, 1)) })
	if err := sa.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	seq, gone := uint64(0), false
	for seq < many || !gone {
		switch c := next(t, changes, "what is new"); {
		case c.Report != nil && c.Report.ID == b1:
			if c.Report.Seq <= seq {
				t.Fatalf("report %d comes after %d", c.Report.Seq, seq)
			}
			seq = c.Report.Seq
		case c.Gone != nil:
			if *c.Gone != a {
				t.Fatalf("%+v is gone, want %+v", c.Gone, a)
			}
			gone = true
		}
	}
}

func stateIsTold(t *testing.T, f Fleet) {
	c := f.Dial(t)
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (&store.State{Members: state.Members, Status: state.Status}); !cmp.Equal(state, want) || len(state.Members)+len(state.Status) > 0 {
		t.Errorf("the state of an empty store is %+v", state)
	}
	_, b := join(t, t.Context(), c, b1, f.TTL)
	_, a := join(t, t.Context(), c, a1, f.TTL)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	do(t, "write", func(ctx context.Context) error { return x.Write(ctx, grant(x, b, 1)) })
	do(t, "report", func(ctx context.Context) error { return c.Report(ctx, report(a, 1)) })
	do(t, "publish", func(ctx context.Context) error { return x.Publish(ctx, "p", []byte(`{"lent":1}`)) })
	for _, pool := range []string{"q", "p"} {
		do(t, "tell", func(ctx context.Context) error { return x.Tell(ctx, news(x, pool, 1)) })
	}
	if state, err = c.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := &store.State{
		Leader: "x", Epoch: x.Epoch(), Members: []control.Member{a, b},
		Grants: []control.Grant{*grant(x, b, 1)}, Reports: []control.Report{*report(a, 1)},
		Status: map[string][]byte{"p": []byte(`{"lent":1}`)},
		News:   []control.News{*news(x, "p", 1), *news(x, "q", 1)},
	}
	if !cmp.Equal(state, want) {
		t.Errorf("the state: %s", cmp.Diff(want, state))
	}
}

// publishedIsTold: who follows the pools hears of what was there and of what comes,
// the same again too; over a cut he hears at least of the last.
func publishedIsTold(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	publish := func(pool, status string) {
		do(t, "publish", func(ctx context.Context) error { return x.Publish(ctx, pool, []byte(status)) })
	}
	publish("p", "1")
	ctx, stop := context.WithCancel(t.Context())
	told := d.Statuses(ctx)
	want := func(pool, status string) {
		t.Helper()
		if s := next(t, told, "what is published"); s.Pool != pool || string(s.Status) != status {
			t.Fatalf("told of pool %s: %s, want of pool %s: %s", s.Pool, s.Status, pool, status)
		}
	}
	want("p", "1")
	publish("p", "1")
	want("p", "1")
	publish("q", "2")
	want("q", "2")
	d.Cut()
	publish("p", "3")
	publish("p", "4")
	d.Heal()
	until(t, told, "what was published meanwhile", func(s store.PoolStatus) bool { return s.Pool == "p" && string(s.Status) == "4" })
	stop()
	over(t, told, "statuses whose context is over")
}

// toldOfEachOther: who follows hears the last of each pool, and over a cut at least of
// that; nothing that is late comes after it, and a later leader's come after all of an
// earlier one's.
func toldOfEachOther(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	tell := func(l store.Leadership, pool string, seq uint64) *control.News {
		t.Helper()
		n := news(l, pool, seq)
		do(t, "tell", func(ctx context.Context) error { return l.Tell(ctx, n) })
		return n
	}
	first := tell(x, "p", 1)
	ctx, stop := context.WithCancel(t.Context())
	told := d.News(ctx)
	want := func(what string, n *control.News) {
		t.Helper()
		if got := next(t, told, what); !cmp.Equal(got, n) {
			t.Fatalf("%s: %s", what, cmp.Diff(n, got))
		}
	}
	want("what was there", first)
	second := tell(x, "p", 3)
	tell(x, "p", 2) // came late
	want("what is new", second)
	want("what is new of another pool", tell(x, "q", 1))

	d.Cut()
	tell(x, "p", 4)
	tell(x, "p", 5)
	if f.Forget != nil {
		f.Forget(t)
	}
	d.Heal()
	until(t, told, "the last of what was told meanwhile", func(n *control.News) bool { return n.Seq == 5 })

	if err := x.Resign(t.Context()); err != nil {
		t.Fatalf("resign: %v", err)
	}
	y := campaign(t, t.Context(), c, "y", f.TTL)
	if err := x.Tell(t.Context(), news(x, "p", 6)); !errors.Is(err, store.ErrFenced) {
		t.Errorf("news after the term: %v, want ErrFenced", err)
	}
	last := tell(y, "p", 1)
	want("a later leader's", last)
	stop()
	over(t, told, "news whose context is over")
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []control.News{*last, *news(x, "q", 1)}; !cmp.Equal(state.News, want) {
		t.Errorf("what is there: %s", cmp.Diff(want, state.News))
	}
}

func announced(t *testing.T, f Fleet) {
	c, d := f.Dial(t), f.Dial(t)
	s, m := join(t, t.Context(), c, a1, f.TTL)
	x := campaign(t, t.Context(), d, "x", f.TTL)
	changes := x.Follow(t.Context())
	told(t, changes, "join a/1", "synced")
	lists := d.Members(t.Context())
	for _, uses := range []string{"one", "two", ""} {
		m.Uses = uses
		do(t, "announce", func(ctx context.Context) error { return c.Announce(ctx, m) })
		until(t, lists, uses, func(l []control.Member) bool { return len(l) == 1 && l[0] == m })
	}
	other := m
	other.Lease++
	if err := c.Announce(t.Context(), other); !errors.Is(err, store.ErrFenced) {
		t.Errorf("under another lease: %v, want ErrFenced", err)
	}
	// The lease is the same, and ends with all that was said.
	do(t, "report", func(ctx context.Context) error { return c.Report(ctx, report(m, 1)) })
	told(t, changes, "report a/1 1")
	if err := s.Leave(t.Context()); err != nil {
		t.Fatalf("leave: %v", err)
	}
	told(t, changes, "gone a/1")
	until(t, lists, "nobody", func(l []control.Member) bool { return len(l) == 0 })
	if err := c.Announce(t.Context(), m); !errors.Is(err, store.ErrFenced) {
		t.Errorf("after the lease's end: %v, want ErrFenced", err)
	}
}

func end(t *testing.T, f Fleet) {
	c := f.Dial(t)
	s, _ := join(t, t.Context(), c, a1, f.TTL)
	x := campaign(t, t.Context(), c, "x", f.TTL)
	grants, lists, changes := c.Grants(t.Context(), a1), c.Members(t.Context()), x.Follow(t.Context())
	statuses, told := c.Statuses(t.Context()), c.News(t.Context())
	waits := make(chan error)
	go func() {
		_, err := c.Campaign(t.Context(), "y", f.TTL)
		waits <- err
	}()
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	over(t, s.Renewed(), "a session of a store that is closed")
	over(t, x.Lost(), "a term of a store that is closed")
	over(t, grants, "grants of a store that is closed")
	over(t, lists, "members of a store that is closed")
	over(t, statuses, "statuses of a store that is closed")
	over(t, told, "news of a store that is closed")
	over(t, changes, "changes of a store that is closed")
	if err := next(t, waits, "the campaign of a store that is closed"); err == nil {
		t.Error("a candidate of a store that is closed leads")
	}
	if _, err := c.State(t.Context()); err == nil {
		t.Error("a store that is closed tells its state")
	}
}
