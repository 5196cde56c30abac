package etcd_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/control"
	"headgate/control/etcd"
	"headgate/control/etcd/etcdtest"
	"headgate/control/store"
)

// TestMemberFails lets the member of three fail that leads them, and that all
// watches and leases of a replica and of a leader are at. Neither loses its lease,
// and all that is written comes through, during the failure and afterwards.
func TestMemberFails(t *testing.T) {
	for _, f := range []struct {
		name          string
		lost          string // why the watches there are begun anew
		fail, recover func(t *testing.T, c *etcdtest.Cluster, member int, links []*etcdtest.Link)
	}{
		{
			"killed", "the connection is lost",
			func(_ *testing.T, c *etcdtest.Cluster, i int, _ []*etcdtest.Link) { c.Member(i).Kill() },
			func(t *testing.T, c *etcdtest.Cluster, i int, _ []*etcdtest.Link) { c.Member(i).Restart(t) },
		},
		{
			"stopped", "no sign of life",
			func(_ *testing.T, c *etcdtest.Cluster, i int, _ []*etcdtest.Link) { c.Member(i).Suspend() },
			func(_ *testing.T, c *etcdtest.Cluster, i int, _ []*etcdtest.Link) { c.Member(i).Resume() },
		},
		{
			"cut off from the others", "no leader",
			func(_ *testing.T, c *etcdtest.Cluster, i int, _ []*etcdtest.Link) { c.Isolate(i) },
			func(_ *testing.T, c *etcdtest.Cluster, i int, _ []*etcdtest.Link) { c.Rejoin(i) },
		},
		{
			"cut off from the clients", "the connection is lost",
			func(_ *testing.T, _ *etcdtest.Cluster, i int, links []*etcdtest.Link) {
				each(links, i, (*etcdtest.Way).Cut)
			},
			func(_ *testing.T, _ *etcdtest.Cluster, i int, links []*etcdtest.Link) {
				each(links, i, (*etcdtest.Way).Heal)
			},
		},
		{
			"held up on the way to the clients", "no sign of life",
			func(_ *testing.T, _ *etcdtest.Cluster, i int, links []*etcdtest.Link) {
				each(links, i, (*etcdtest.Way).Stall)
			},
			func(_ *testing.T, _ *etcdtest.Cluster, i int, links []*etcdtest.Link) {
				each(links, i, (*etcdtest.Way).Heal)
			},
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			const ttl = 15 * time.Second
			c := etcdtest.Start(t, etcdtest.Options{Members: 3})
			victim, name := c.Leader(t), fleet()
			links := []*etcdtest.Link{c.Link(t), c.Link(t)}
			others := func(f func(*etcdtest.Way)) {
				for i := range 3 {
					if i != victim {
						each(links, i, f)
					}
				}
			}
			others((*etcdtest.Way).Cut)
			said := new(lines)
			logs := func(c *etcd.Config) { c.Log = slog.New(slog.NewTextHandler(said, nil)) }
			replica, leader := open(t, links[0].Endpoints(), name, logs), open(t, links[1].Endpoints(), name)
			m := control.Member{ID: control.ID{Replica: "a", Boot: "1"}}
			session, err := replica.Join(t.Context(), m, ttl)
			if err != nil {
				t.Fatal(err)
			}
			m.Lease = session.Lease()
			l, err := leader.Campaign(t.Context(), "x", ttl)
			if err != nil {
				t.Fatal(err)
			}
			w := &writer{t: t, store: replica, leader: l, member: m, grants: replica.Grants(t.Context(), m.ID), changes: l.Follow(t.Context())}
			for c := range w.changes {
				if c.Synced {
					break
				}
			}
			w.roundTrip("with all members")
			<-session.Renewed()
			if _, ok := <-session.Renewed(); !ok { // by now over a stream to the member
				t.Fatal("the replica has lost its lease")
			}
			others((*etcdtest.Way).Heal)

			f.fail(t, c, victim, links)
			w.roundTrip("with two members")
			drain(session.Renewed())
			if _, ok := <-session.Renewed(); !ok {
				t.Error("the replica has lost its lease")
			}
			if !strings.Contains(said.String(), f.lost) {
				t.Errorf("the watches were not lost for %q:\n%s", f.lost, said)
			}
			f.recover(t, c, victim, links)
			w.roundTrip("with three members again")
			select {
			case <-l.Lost():
				t.Error("the leader has lost its term")
			default:
			}
			drain(session.Renewed())
			if _, ok := <-session.Renewed(); !ok {
				t.Error("the replica has lost its lease")
			}
		})
	}
}

// lines is what a log was told.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func each(links []*etcdtest.Link, i int, f func(*etcdtest.Way)) {
	for _, l := range links {
		f(l.To(i))
	}
}

// drain takes what is in a channel, so that what comes next is new.
func drain(c <-chan store.Renewal) {
	select {
	case <-c:
	default:
	}
}

// writer writes grants and reports, and waits until they are read.
type writer struct {
	t       *testing.T
	store   store.Store
	leader  store.Leadership
	member  control.Member
	grants  <-chan *control.Grant
	changes <-chan store.Change
	n       uint64
}

func (w *writer) roundTrip(when string) {
	w.t.Helper()
	w.n++
	w.until("write "+when, func() error {
		return w.leader.Write(w.t.Context(), &control.Grant{Pool: "p", ID: w.member.ID, Lease: w.member.Lease, Epoch: w.leader.Epoch(), Rev: w.n})
	})
	for g := range w.grants {
		if g.Rev == w.n {
			break
		}
	}
	w.until("report "+when, func() error {
		return w.store.Report(w.t.Context(), &control.Report{Pool: "p", ID: w.member.ID, Lease: w.member.Lease, Seq: w.n})
	})
	for c := range w.changes {
		if c.Gone != nil {
			w.t.Fatalf("%s the replica is told to be gone", when)
		}
		if c.Report != nil && c.Report.Seq == w.n {
			break
		}
	}
}

// until repeats what fails, as the shells do.
func (w *writer) until(what string, do func() error) {
	w.t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		w.t.Logf("%s: %v", what, err)
		if errors.Is(err, store.ErrFenced) || w.t.Context().Err() != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
	}
}

// TestCandidateWaitsAtAMemberThatStops: the leader goes while the member is stopped
// that the candidate waits at.
func TestCandidateWaitsAtAMemberThatStops(t *testing.T) {
	const ttl = 20 * time.Second
	c := etcdtest.Start(t, etcdtest.Options{Members: 3})
	name, link := fleet(), c.Link(t)
	x, err := open(t, c.Endpoints(), name).Campaign(t.Context(), "x", ttl)
	if err != nil {
		t.Fatal(err)
	}
	link.To(1).Cut()
	link.To(2).Cut()
	said := new(lines)
	second := open(t, link.Endpoints(), name, func(c *etcd.Config) { c.Log = slog.New(slog.NewTextHandler(said, nil)) })
	won := make(chan error, 1)
	go func() {
		_, err := second.Campaign(t.Context(), "y", ttl)
		won <- err
	}()
	for c.Member(0).Watches(t) == 0 {
	}
	link.To(1).Heal()
	link.To(2).Heal()
	c.Member(0).Suspend()
	for x.Resign(t.Context()) != nil {
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "no sign of life") {
		t.Errorf("the watch was not lost for want of a sign of life:\n%s", said)
	}
}

// TestCloseWhileEtcdIsAway: nothing that waits for etcd outlives the store.
func TestCloseWhileEtcdIsAway(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	l := c.Link(t)
	for _, f := range []struct {
		name string
		fail func()
	}{{"cut", l.Cut}, {"stalled", l.Stall}} {
		t.Run(f.name, func(t *testing.T) {
			l.Heal()
			s := open(t, l.Endpoints(), fleet())
			session, err := s.Join(t.Context(), control.Member{ID: control.ID{Replica: "a", Boot: "1"}}, 20*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			lists := s.Members(t.Context())
			<-lists
			f.fail()
			waits := make(chan error, 2)
			go func() {
				_, err := s.Campaign(t.Context(), "x", 20*time.Second)
				waits <- err
			}()
			go func() { waits <- session.Leave(context.WithoutCancel(t.Context())) }()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			for range 2 {
				if err := <-waits; err == nil {
					t.Error("what needs etcd was done")
				}
			}
			for range lists {
			}
			for range session.Renewed() {
			}
		})
	}
}

// TestLeaseOutlivesACut: one that is over before the lease is costs nothing, at the
// same member too.
func TestLeaseOutlivesACut(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	l := c.Link(t)
	s := open(t, l.Endpoints(), fleet())
	m := control.Member{ID: control.ID{Replica: "a", Boot: "1"}}
	session, err := s.Join(t.Context(), m, 9*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	<-session.Renewed()
	<-session.Renewed()
	l.Cut()
	r := control.Report{Pool: "p", ID: m.ID, Lease: session.Lease(), Seq: 1}
	if err := s.Report(t.Context(), &r); err == nil || errors.Is(err, store.ErrFenced) {
		t.Errorf("a report over a cut link: %v", err)
	}
	l.Heal()
	for range 2 {
		if _, ok := <-session.Renewed(); !ok {
			t.Fatal("the lease is lost")
		}
	}
}
