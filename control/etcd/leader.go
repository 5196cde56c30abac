package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"headgate/control"
	"headgate/control/store"
)

// candidate is the value of a key below leader/.
type candidate struct {
	Leader string `json:"leader"`
}

// term is a candidate's, and then a leader's.
type term struct {
	*store.Keeper
	store  *Store
	id     clientv3.LeaseID
	key    string
	rev    int64 // that the key was made at
	fence  fence
	grants written // by this leader, or by those before it
	news   written
}

// Campaign implements store.Store. The lease is of whole seconds, MinLease or more.
func (s *Store) Campaign(ctx context.Context, who string, ttl time.Duration) (store.Leadership, error) {
	if err := allowed(ttl); err != nil {
		return nil, err
	}
	for pause := newPause(s.bound); ; pause.wait(ctx) {
		t, err := s.stand(ctx, who, ttl)
		switch {
		case err == nil:
			return t, nil
		case s.ctx.Err() != nil:
			return nil, fmt.Errorf("etcd: campaign: %w", errClosed)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("etcd: campaign: %w", ctx.Err())
		}
		s.log.Warn("the campaign goes on", "error", err)
	}
}

// stand writes a candidate's key and waits until it is the oldest. An error tells
// that it is not and won't be.
func (s *Store) stand(ctx context.Context, who string, ttl time.Duration) (*term, error) {
	value, err := json.Marshal(candidate{who})
	if err != nil {
		return nil, err
	}
	l, err := s.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	t := &term{store: s, id: l.id, key: s.keys.key(leaderOf, fmt.Sprintf("%x", int64(l.id)))}
	err = s.do(ctx, "stand for leader", func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(t.key), "=", 0)).
			Then(clientv3.OpPut(t.key, string(value), clientv3.WithLease(l.id))).
			Else(clientv3.OpGet(t.key)).
			Commit()
		if err != nil {
			return err
		}
		t.rev = resp.Header.Revision
		if !resp.Succeeded { // by a try whose answer was lost
			t.rev = resp.Responses[0].GetResponseRange().Kvs[0].CreateRevision
		}
		return nil
	})
	if err != nil {
		s.abandon(l.id)
		return nil, err
	}
	t.fence = fence{
		key: t.key, cmp: clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.rev),
		holds: func(kvs []*keyValue) bool { return len(kvs) > 0 && kvs[0].CreateRevision == t.rev },
	}
	t.Keeper = s.keep(ctx, l, t.key)
	if err := t.turn(ctx); err != nil {
		t.Stop()
		s.abandon(l.id)
		return nil, err
	}
	return t, nil
}

// turn waits until no candidate is older. It ends with the candidate's own lease.
func (t *term) turn(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-t.Lost():
			cancel()
		case <-stop:
		}
	}()
	for pause := newPause(t.store.bound); ; {
		older, rev, err := t.older(ctx)
		switch {
		case err == nil && older == "":
			return nil
		case errors.Is(err, store.ErrFenced):
			return err
		case err == nil:
			if err = t.store.follow(ctx, keyRange{from: older}, rev+1, func(events []*clientv3.Event) bool {
				for _, e := range events {
					if e.Type == clientv3.EventTypeDelete {
						return false
					}
				}
				return true
			}); err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the candidate's lease: %w", store.ErrEnded)
		}
		t.store.log.Warn("the wait to lead begins anew", "error", err)
		pause.wait(ctx)
	}
}

// older returns the key of the candidate before this one, "" if it is the first, as
// of a revision. It is ErrFenced if this one's key is gone.
func (t *term) older(ctx context.Context) (key string, rev int64, err error) {
	all := t.store.keys.under(leaderOf)
	err = t.store.do(ctx, "wait to lead", func(ctx context.Context, c *clientv3.Client) error {
		last := append(clientv3.WithLastCreate(), clientv3.WithRange(all.to), clientv3.WithMaxCreateRev(t.rev-1))
		resp, err := c.Txn(ctx).If(t.fence.cmp).Then(clientv3.OpGet(all.from, last...)).Commit()
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return store.ErrFenced
		}
		key, rev = "", resp.Header.Revision
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			key = string(kv.Key)
		}
		return nil
	})
	return key, rev, err
}

func (t *term) Epoch() uint64 { return uint64(t.rev) }

// ended takes note of a term that is over.
func (t *term) ended(err error) error {
	if errors.Is(err, store.ErrFenced) {
		t.Stop()
	}
	return err
}

// Write implements store.Leadership.
func (t *term) Write(ctx context.Context, g *control.Grant) error {
	return t.ended(replace(t.store, ctx, fmt.Sprintf("write grant %d of pool %s", g.Rev, g.Pool), t.fence, &t.grants,
		t.store.keys.grant(g.ID, g.Pool), g, orderOfGrant))
}

// Remove implements store.Leadership.
func (t *term) Remove(ctx context.Context, pool string, id control.ID) error {
	grant, report := t.store.keys.grant(id, pool), t.store.keys.report(id, pool)
	err := t.fenced(ctx, fmt.Sprintf("remove %s/%s from pool %s", id.Replica, id.Boot, pool), clientv3.OpDelete(grant), clientv3.OpDelete(report))
	if err == nil {
		t.grants.set(grant, version{})
	}
	return err
}

// Tell implements store.Leadership.
func (t *term) Tell(ctx context.Context, n *control.News) error {
	return t.ended(replace(t.store, ctx, fmt.Sprintf("tell news %d of pool %s", n.Seq, n.Pool), t.fence, &t.news,
		t.store.keys.key(toldOf, n.Pool), n, orderOfNews))
}

// Publish implements store.Leadership.
func (t *term) Publish(ctx context.Context, pool string, status []byte) error {
	at := t.store.keys.key(statusOf, pool)
	op := clientv3.OpPut(at, string(status))
	if status == nil {
		op = clientv3.OpDelete(at)
	}
	return t.fenced(ctx, "publish the status of pool "+pool, op)
}

// fenced does what may be done twice, if the term is not over.
func (t *term) fenced(ctx context.Context, what string, ops ...clientv3.Op) error {
	return t.ended(t.store.do(ctx, what, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).If(t.fence.cmp).Then(ops...).Commit()
		if err == nil && !resp.Succeeded {
			return store.ErrFenced
		}
		return err
	}))
}

// Resign implements store.Leadership.
func (t *term) Resign(ctx context.Context) error {
	t.Stop()
	return t.store.revoke(ctx, t.id)
}

// Follow implements store.Leadership.
func (t *term) Follow(ctx context.Context) <-chan store.Change {
	s, out, feed := t.store, make(chan store.Change), store.NewChangeFeed()
	ctx, cancel := s.within(ctx)
	read := make(chan struct{})
	known := map[string]int64{} // revisions of the reports that were put in
	change := func(kv *keyValue, deleted bool) {
		kind, names := s.keys.parse(string(kv.Key))
		switch {
		case deleted && kind == membersOf:
			feed.Gone(names[0])
		case deleted:
			delete(known, string(kv.Key))
		case kind == membersOf:
			if m, ok := decode[control.Member](s, kv); ok {
				feed.Joined(*m)
			}
		case kind == reportsOf && known[string(kv.Key)] != kv.ModRevision:
			if r, ok := decode[control.Report](s, kv); ok {
				known[string(kv.Key)] = kv.ModRevision
				feed.Reported(r)
			}
		}
	}
	watch := func() {
		var once bool
		s.watch(ctx, s.keys.followed(), func(kvs []*keyValue) {
			var members []control.Member
			for _, kv := range kvs {
				if kind, _ := s.keys.parse(string(kv.Key)); kind != membersOf {
					continue
				}
				if m, ok := decode[control.Member](s, kv); ok {
					members = append(members, *m)
				}
			}
			feed.Members(members)
			for _, kv := range kvs {
				change(kv, false)
			}
			if !once {
				once = true
				close(read)
			}
		}, func(events []*clientv3.Event) {
			for _, e := range events {
				change(e.Kv, e.Type == clientv3.EventTypeDelete)
			}
		})
	}
	serve := func() {
		defer cancel()
		if grants, err := t.load(ctx); err == nil {
			select {
			case <-read:
				feed.Serve(ctx, grants, out)
				return
			case <-ctx.Done():
			}
		}
		close(out)
	}
	if !s.goes(watch) || !s.goes(serve) {
		cancel()
		close(out)
	}
	return out
}

// load reads the grants, until it can or ctx is over. Nobody else writes any now.
func (t *term) load(ctx context.Context) (grants []*control.Grant, err error) {
	for pause := newPause(t.store.bound); ; pause.wait(ctx) {
		resp, err := t.store.get(ctx, "the grants", t.store.keys.under(grantsOf))
		if err == nil {
			for _, kv := range resp.Kvs {
				t.grants.set(string(kv.Key), versionOf(kv, orderOfGrant))
				if g, ok := decode[control.Grant](t.store, kv); ok {
					grants = append(grants, g)
				}
			}
			return grants, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t.store.log.Warn("the grants can't be read yet", "error", err)
	}
}
