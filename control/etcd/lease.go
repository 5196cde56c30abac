package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"headgate/control"
	"headgate/control/store"
)

// lease is one of etcd's leases, and when it was asked for.
type lease struct {
	id   clientv3.LeaseID
	ttl  time.Duration
	sent time.Time
}

// allowed checks a lease's time.
func allowed(ttl time.Duration) error {
	if ttl < MinLease || ttl%time.Second != 0 {
		return fmt.Errorf("etcd: a lease of %v: allowed are whole seconds, %v or more", ttl, MinLease)
	}
	return nil
}

// grant makes a lease. One whose answer is lost runs out, with nothing bound to it.
func (s *Store) grant(ctx context.Context, ttl time.Duration) (l lease, err error) {
	err = s.do(ctx, "make a lease", func(ctx context.Context, c *clientv3.Client) error {
		sent := time.Now()
		resp, err := c.Grant(ctx, int64(ttl/time.Second))
		if err == nil {
			l = lease{resp.ID, time.Duration(resp.TTL) * time.Second, sent}
		}
		return err
	})
	return l, err
}

// revoke ends a lease, with the keys that are bound to it.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) error {
	return s.do(ctx, "give a lease back", func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// abandon ends a lease if etcd can be reached; else it runs out.
func (s *Store) abandon(id clientv3.LeaseID) {
	s.goes(func() { _ = s.revoke(s.ctx, id) })
}

// keep renews a lease and sees that its key is there.
func (s *Store) keep(ctx context.Context, l lease, key string) *store.Keeper {
	ctx, cancel := s.within(ctx)
	r := &renewer{store: s, id: l.id, key: key}
	k := store.Keep(ctx, l.sent, l.ttl, r.renew)
	end := func() {
		<-k.Lost()
		cancel()
		r.drop()
	}
	if !s.goes(end) {
		go end()
	}
	return k
}

// renewer renews a lease over a stream that it keeps: to open one is a login, where
// there is a password.
type renewer struct {
	store  *Store
	id     clientv3.LeaseID
	key    string
	stream pb.Lease_LeaseKeepAliveClient
	at     int // the member that it goes to
	cancel context.CancelFunc
}

func (r *renewer) drop() {
	if r.cancel != nil {
		r.cancel()
	}
	r.stream, r.cancel = nil, nil
}

// renew tries at up to three members: the pause before the next call is long.
func (r *renewer) renew(ctx context.Context) (ttl time.Duration, err error) {
	deadline, _ := ctx.Deadline()
	err = r.store.tries(ctx, time.Until(deadline)/3, "renew a lease", func(ctx context.Context, m member) error {
		renewed, err := r.ask(ctx, m)
		if err != nil {
			return rpctypes.Error(err)
		}
		there, err := m.Get(clientv3.WithRequireLeader(ctx), r.key)
		if err != nil {
			return err
		}
		ttl, err = confirm(r.id, renewed, there)
		return err
	})
	return ttl, err
}

// ask makes one request. The stream ends when it fails, and when another member is
// to be used.
func (r *renewer) ask(ctx context.Context, m member) (resp *pb.LeaseKeepAliveResponse, err error) {
	if r.stream != nil && r.at != m.at {
		r.drop()
	}
	var sctx context.Context
	if r.stream == nil {
		sctx, r.cancel = context.WithCancel(clientv3.WithRequireLeader(r.store.ctx))
	}
	// What waits below ends with the stream.
	stop := context.AfterFunc(ctx, r.cancel)
	defer func() {
		if !stop() {
			err = cmp.Or(ctx.Err(), err) // not that the stream was canceled
		}
		if err != nil {
			r.drop()
		}
	}()
	if r.stream == nil {
		r.at = m.at
		if r.stream, err = clientv3.RetryLeaseClient(m.Client).LeaseKeepAlive(sctx); err != nil {
			return nil, err
		}
	}
	if err = r.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(r.id)}); err != nil {
		return nil, err
	}
	return r.stream.Recv()
}

// errTerm is a renewal that may have been made by a leader of etcd's that was none.
var errTerm = errors.New("etcd has elected another leader meanwhile")

// confirm decides what a renewal is worth, by a linearizable read of the lease's key
// that was made after it.
func confirm(id clientv3.LeaseID, renewed *pb.LeaseKeepAliveResponse, there *clientv3.GetResponse) (time.Duration, error) {
	switch {
	case renewed.TTL <= 0:
		return 0, store.ErrEnded
	case len(there.Kvs) == 0 || there.Kvs[0].Lease != int64(id):
		return 0, fmt.Errorf("%w: its key was taken away", store.ErrEnded)
	case renewed.Header.RaftTerm != there.Header.RaftTerm:
		return 0, errTerm
	}
	return time.Duration(renewed.TTL) * time.Second, nil
}

// session is a life's lease.
type session struct {
	*store.Keeper
	store *Store
	id    clientv3.LeaseID
}

func (s *session) Lease() int64 { return int64(s.id) }

func (s *session) Leave(ctx context.Context) error {
	s.Stop()
	return s.store.revoke(ctx, s.id)
}

// Join implements store.Store. The lease is of whole seconds, MinLease or more.
func (s *Store) Join(ctx context.Context, m control.Member, ttl time.Duration) (store.Session, error) {
	if err := allowed(ttl); err != nil {
		return nil, err
	}
	l, err := s.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	m.Lease = int64(l.id)
	if err := s.register(ctx, m); err != nil {
		s.abandon(l.id)
		return nil, err
	}
	return &session{Keeper: s.keep(ctx, l, s.keys.member(m.Replica)), store: s, id: l.id}, nil
}

// Announce implements store.Store.
func (s *Store) Announce(ctx context.Context, m control.Member) error {
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("etcd: announce: %w", err)
	}
	key := s.keys.member(m.Replica)
	return s.do(ctx, "announce", func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).
			If(clientv3.Compare(clientv3.LeaseValue(key), "=", m.Lease)).
			Then(clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(m.Lease)))).
			Commit()
		if err == nil && !resp.Succeeded {
			err = store.ErrFenced
		}
		return err
	})
}

// register writes the member's key, bound to its lease, unless another life has it.
func (s *Store) register(ctx context.Context, m control.Member) error {
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("etcd: join: %w", err)
	}
	key := s.keys.member(m.Replica)
	return s.do(ctx, "join", func(ctx context.Context, c *clientv3.Client) error {
		// rev is what the key is expected at: nowhere, or where this life wrote it before.
		for rev, earlier := int64(0), int64(0); ; {
			resp, err := c.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).
				Then(clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(m.Lease)))).
				Else(clientv3.OpGet(key)).
				Commit()
			if err != nil {
				return err
			}
			if resp.Succeeded {
				if earlier != 0 {
					s.abandon(clientv3.LeaseID(earlier))
				}
				return nil
			}
			there := resp.Responses[0].GetResponseRange().Kvs
			if len(there) == 0 {
				rev, earlier = 0, 0
				continue
			}
			if there[0].Lease == m.Lease {
				return nil // by a try whose answer was lost
			}
			var holder control.Member
			if err := json.Unmarshal(there[0].Value, &holder); err != nil {
				return fmt.Errorf("%w: by what is in the way at %s: %w", store.ErrTaken, key, err)
			}
			if holder.ID != m.ID {
				return store.Taken(holder)
			}
			rev, earlier = there[0].ModRevision, there[0].Lease
		}
	})
}
