package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"headgate/control"
	"headgate/control/store"
)

// errSilent is a watch without a sign of life, errConnection one without a connection.
var (
	errSilent     = errors.New("no sign of life")
	errConnection = errors.New("the connection is lost")
)

// watch reads a range and then what changes, until ctx is over. When the watch is
// lost it begins anew, and load is called again.
func (s *Store) watch(ctx context.Context, r keyRange, load func([]*keyValue), changed func([]*clientv3.Event)) {
	for pause := newPause(s.bound); ctx.Err() == nil; pause.wait(ctx) {
		began := time.Now()
		resp, err := s.get(ctx, r.from, r)
		if err == nil {
			load(resp.Kvs)
			err = s.follow(ctx, r, resp.Header.Revision+1, func(events []*clientv3.Event) bool {
				changed(events)
				return true
			})
		}
		if time.Since(began) > s.bound {
			pause.reset()
		}
		if ctx.Err() == nil {
			s.log.Warn("a watch is lost, and begun anew", "of", r.from, "error", err)
		}
	}
}

// follow delivers the changes of a range from a revision on, until changed returns
// false; then the error is nil.
func (s *Store) follow(ctx context.Context, r keyRange, rev int64, changed func([]*clientv3.Event) bool) error {
	cctx, stop := context.WithTimeout(ctx, s.bound)
	m, err := s.connect(cctx)
	stop()
	if err == nil {
		err = s.followAt(ctx, m, r, rev, changed)
	}
	if ctx.Err() == nil {
		s.failed(m, err)
	}
	return err
}

// followAt follows at one member. The watch has a stream of its own: one that is
// shared is not ended, when it is silent, before all who share it have given up.
func (s *Store) followAt(ctx context.Context, m member, r keyRange, rev int64, changed func([]*clientv3.Event) bool) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	w := clientv3.NewWatcher(m.Client)
	defer w.Close()
	// Watch waits for the member's answer, and knows no other bound.
	created := time.AfterFunc(s.bound, func() { cancel(errSilent) })
	watch := w.Watch(ctx, r.from, clientv3.WithRange(r.to), clientv3.WithRev(rev))
	created.Stop()
	// A watch whose connection is lost would wait for this member to come back.
	conn := m.ActiveConnection()
	s.goes(func() {
		if conn.WaitForStateChange(ctx, connectivity.Ready) {
			cancel(errConnection)
		}
	})

	check := time.NewTicker(s.bound)
	defer check.Stop()
	for heard := true; ; {
		select {
		case resp, ok := <-watch:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !ok {
				return errSilent
			}
			if err := resp.Err(); err != nil {
				return err
			}
			heard = true
			if !changed(resp.Events) {
				return nil
			}
		case <-check.C:
			if !heard {
				return errSilent
			}
			heard = false
			pctx, stop := context.WithTimeout(ctx, s.bound/2)
			err := w.RequestProgress(pctx)
			stop()
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("%w: %w", errSilent, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Grants implements store.Store.
func (s *Store) Grants(ctx context.Context, id control.ID) <-chan *control.Grant {
	return latest(s, ctx, store.NewGrantFeed(), s.keys.under(grantsOf, id.Replica, id.Boot), decode[control.Grant])
}

// News implements store.Store.
func (s *Store) News(ctx context.Context) <-chan *control.News {
	return latest(s, ctx, store.NewNewsFeed(), s.keys.under(toldOf), decode[control.News])
}

// Members implements store.Store.
func (s *Store) Members(ctx context.Context) <-chan []control.Member {
	out, feed := make(chan []control.Member), store.NewMemberFeed()
	there := map[string]control.Member{} // by key
	put := func(kv *keyValue) {
		if m, ok := decode[control.Member](s, kv); ok {
			there[string(kv.Key)] = *m
		}
	}
	set := func() {
		var list []control.Member
		for _, m := range there {
			list = append(list, m)
		}
		feed.Set(list)
	}
	return serve(s, ctx, out, feed.Serve, s.keys.under(membersOf), func(kvs []*keyValue) {
		clear(there)
		for _, kv := range kvs {
			put(kv)
		}
		set()
	}, func(events []*clientv3.Event) {
		for _, e := range events {
			if e.Type == clientv3.EventTypePut {
				put(e.Kv)
			} else {
				delete(there, string(e.Kv.Key))
			}
		}
		set()
	})
}

// Statuses implements store.Store.
func (s *Store) Statuses(ctx context.Context) <-chan store.PoolStatus {
	return latest(s, ctx, store.NewStatusFeed(), s.keys.under(statusOf), func(s *Store, kv *keyValue) (store.PoolStatus, bool) {
		_, names := s.keys.parse(string(kv.Key))
		if len(names) == 0 {
			return store.PoolStatus{}, false
		}
		return store.PoolStatus{Pool: names[0], Status: kv.Value}, true
	})
}

// latest runs a watch of what is there of pools, and of what is written.
func latest[T any](s *Store, ctx context.Context, feed *store.PoolFeed[T], r keyRange, read func(*Store, *keyValue) (T, bool)) <-chan T {
	put := func(kv *keyValue) {
		if v, ok := read(s, kv); ok {
			feed.Put(v)
		}
	}
	return serve(s, ctx, make(chan T), feed.Serve, r, func(kvs []*keyValue) {
		for _, kv := range kvs {
			put(kv)
		}
	}, func(events []*clientv3.Event) {
		for _, e := range events {
			if e.Type == clientv3.EventTypePut {
				put(e.Kv)
			}
		}
	})
}

// serve runs a watch and the feed that it fills.
func serve[T any](s *Store, ctx context.Context, out chan T, feed func(context.Context, chan<- T), r keyRange, load func([]*keyValue), changed func([]*clientv3.Event)) <-chan T {
	ctx, cancel := s.within(ctx)
	watch := func() { s.watch(ctx, r, load, changed) }
	send := func() {
		defer cancel()
		feed(ctx, out)
	}
	if !s.goes(watch) || !s.goes(send) {
		cancel()
		close(out)
	}
	return out
}

// decode reads a value. What can't be read is somebody else's, and passed over.
func decode[T any](s *Store, kv *keyValue) (*T, bool) {
	v := new(T)
	if err := json.Unmarshal(kv.Value, v); err != nil {
		s.log.Warn("a value can't be read", "key", string(kv.Key), "error", err)
		return nil, false
	}
	return v, true
}

// pause is between tries: longer each time, up to a bound, and never the same for
// many who have failed together.
type pause struct{ first, next, most time.Duration }

func newPause(most time.Duration) *pause {
	return &pause{first: most / 64, next: most / 64, most: most}
}

func (p *pause) reset() { p.next = p.first }

func (p *pause) wait(ctx context.Context) {
	timer := time.NewTimer(p.next/2 + rand.N(p.next/2+1))
	defer timer.Stop()
	p.next = min(2*p.next, p.most)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
