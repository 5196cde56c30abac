package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"headgate/control"
	"headgate/control/store"
)

// Store is a fleet's store in etcd.
type Store struct {
	keys      keys
	endpoints []string
	config    clientv3.Config
	bound     time.Duration // of a request
	log       *slog.Logger

	ctx    context.Context // until Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex // no work begins after Close
	dials []*dial    // by endpoint, the last that did not fail
	at    int        // the endpoint that is used

	reports written // by this process
}

var _ store.Store = (*Store)(nil)

// dial is the making of a client of one member.
type dial struct {
	done   chan struct{}
	client *clientv3.Client
	err    error
}

// errClosed is what is told after Close.
var errClosed = errors.New("the store is closed")

// New returns a store. It does not wait for etcd: a replica that starts while etcd
// is away has to serve what it may without. It fails for values that Validate
// refuses, and for files and variables that can't be read.
func New(c Config) (*Store, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	password, err := c.password()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	secure, err := c.tls()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{
		keys: newKeys(c.Prefix, c.Fleet), endpoints: c.Endpoints,
		dials: make([]*dial, len(c.Endpoints)), at: rand.IntN(len(c.Endpoints)), // so that a fleet spreads
		config: clientv3.Config{
			TLS: secure, Context: ctx,
			Username: c.Username, Password: password.Reveal(),
			DialTimeout: c.ConnectTimeout,
			// gRPC allows no shorter time. Requests and watches have bounds of their own; this
			// is for the connection, that no more of them are sent that way.
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: c.ConnectTimeout,
			// Else a store that was away for a minute is tried again after two.
			DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: c.ConnectTimeout,
			})},
			// It would say a line for each try that failed.
			Logger: zap.NewNop(),
		},
		bound: c.RequestTimeout, log: c.Log,
		ctx: ctx, cancel: cancel,
	}, nil
}

// Close ends all that the store does, and waits for it. Leases run out.
func (s *Store) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.work.Wait()
	var all []error
	for _, d := range s.dials {
		if d != nil && d.client != nil {
			if err := d.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
				all = append(all, fmt.Errorf("etcd: close: %w", err))
			}
		}
	}
	return errors.Join(all...)
}

// member is the member of etcd that requests go to, until it fails.
type member struct {
	*clientv3.Client
	at int
}

// connect returns the member to use. With a password that needs etcd, for the login,
// so its client is made when it is first used, and made again where that failed.
func (s *Store) connect(ctx context.Context) (m member, err error) {
	s.mu.Lock()
	m.at = s.at
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return m, errClosed
	}
	d := s.dials[m.at]
	if d == nil {
		d = &dial{done: make(chan struct{})}
		s.dials[m.at] = d
		config := s.config
		config.Endpoints = s.endpoints[m.at : m.at+1]
		s.work.Go(func() {
			defer close(d.done)
			if d.client, d.err = clientv3.New(config); d.err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.dials[m.at] = nil
			}
		})
	}
	s.mu.Unlock()
	select {
	case <-d.done:
		m.Client = d.client
		return m, d.err
	case <-ctx.Done():
		return m, ctx.Err()
	}
}

// failed takes note of what became of a request. If it was the member, the next is
// made at another.
func (s *Store) failed(m member, err error) {
	if !passing(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == m.at {
		s.at = (s.at + 1) % len(s.endpoints)
	}
}

// within returns a context that ends with ctx and with the store.
func (s *Store) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// goes runs f, which Close waits for. It tells whether it does: not after Close.
func (s *Store) goes(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.work.Go(f)
	return true
}

// do makes a request, which may be made several times, within its bound. A member
// that does not answer in a third of that is left for another.
func (s *Store) do(ctx context.Context, what string, request func(ctx context.Context, c *clientv3.Client) error) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.bound)
	defer stop()
	return s.tries(ctx, s.bound/3, what, func(ctx context.Context, m member) error { return request(ctx, m.Client) })
}

// tries makes a request at one member after the other, each within a bound, until
// ctx is over or the error is not one that another try may do without. The error names
// the members that were asked.
func (s *Store) tries(ctx context.Context, each time.Duration, what string, request func(ctx context.Context, m member) error) error {
	var asked []string
	for {
		at, err := s.once(ctx, each, request)
		if err == nil {
			return nil
		}
		if !slices.Contains(asked, s.endpoints[at]) {
			asked = append(asked, s.endpoints[at])
		}
		if ctx.Err() == nil && passing(err) {
			select {
			case <-time.After(each / 20):
				continue
			case <-ctx.Done():
			}
		}
		if s.ctx.Err() != nil {
			err = errClosed
		}
		if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrTaken) || errors.Is(err, errClosed) {
			return fmt.Errorf("etcd: %s: %w", what, err)
		}
		return fmt.Errorf("etcd: %s, asked at %s: %w", what, strings.Join(asked, ", "), err)
	}
}

// once makes it once, and returns the index of the member that it was made at.
func (s *Store) once(ctx context.Context, each time.Duration, request func(ctx context.Context, m member) error) (at int, err error) {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	m, err := s.connect(ctx)
	if err == nil {
		err = request(ctx, m)
	}
	s.failed(m, err)
	return m.at, err
}

// passing tells whether another member may do what this one did not: there was no
// answer or no connection, or it has no leader, or is only just starting.
func passing(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errSilent) || errors.Is(err, errConnection) {
		return true
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

// get reads a range. The read is linearizable: it sees all that was written before.
func (s *Store) get(ctx context.Context, what string, r keyRange) (resp *clientv3.GetResponse, err error) {
	err = s.do(ctx, "read "+what, func(ctx context.Context, c *clientv3.Client) error {
		resp, err = c.Get(ctx, r.from, clientv3.WithRange(r.to))
		return err
	})
	return resp, err
}

// written is what a writer knows of the keys that it alone writes.
type written struct {
	mu sync.Mutex
	at map[string]version
}

// version of a value: the revision that it was written at, and its place in the order
// of all values of its key.
type version struct {
	rev   int64
	order order
}

// order is of a grant and of news their epoch and number, of a report its number.
type order [2]uint64

func (o order) after(p order) bool { return slices.Compare(o[:], p[:]) > 0 }

func orderOfGrant(g *control.Grant) order { return order{g.Epoch, g.Rev} }

func orderOfNews(n *control.News) order { return order{n.Epoch, n.Seq} }

func orderOfReport(r *control.Report) order { return order{r.Seq} }

func (w *written) get(key string) version {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at[key]
}

// set notes a key's version, the zero one if it is not there.
func (w *written) set(key string, v version) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at == nil {
		w.at = map[string]version{}
	}
	if v.rev == 0 {
		delete(w.at, key)
	} else {
		w.at[key] = v
	}
}

// fence is the condition of a write, and how to see that it was this that failed.
type fence struct {
	key   string
	cmp   clientv3.Cmp
	holds func(kvs []*keyValue) bool
}

// replace writes a value unless the fence has fallen, which is ErrFenced, or what
// is there does not come before it: a later one, or the same, by an earlier try.
func replace[T any](s *Store, ctx context.Context, what string, f fence, known *written, key string, v *T, orderOf func(*T) order) error {
	value, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("etcd: %s: %w", what, err)
	}
	return s.do(ctx, what, func(ctx context.Context, c *clientv3.Client) error {
		for {
			was := known.get(key)
			if was.rev != 0 && !orderOf(v).after(was.order) {
				return nil
			}
			resp, err := c.Txn(ctx).
				If(f.cmp, clientv3.Compare(clientv3.ModRevision(key), "=", was.rev)).
				Then(clientv3.OpPut(key, string(value))).
				Else(clientv3.OpGet(f.key), clientv3.OpGet(key)).
				Commit()
			if err != nil {
				return err
			}
			if resp.Succeeded {
				known.set(key, version{resp.Header.Revision, orderOf(v)})
				return nil
			}
			if !f.holds(resp.Responses[0].GetResponseRange().Kvs) {
				return store.ErrFenced
			}
			known.set(key, version{})
			for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
				known.set(key, versionOf(kv, orderOf))
			}
		}
	})
}

// versionOf is that of a value that was read. One that makes no sense comes before
// all others.
func versionOf[T any](kv *keyValue, orderOf func(*T) order) version {
	v := new(T)
	if json.Unmarshal(kv.Value, v) != nil {
		return version{rev: kv.ModRevision}
	}
	return version{kv.ModRevision, orderOf(v)}
}

// Report implements store.Store.
func (s *Store) Report(ctx context.Context, r *control.Report) error {
	member := s.keys.member(r.Replica)
	f := fence{
		key: member, cmp: clientv3.Compare(clientv3.LeaseValue(member), "=", r.Lease),
		holds: func(kvs []*keyValue) bool { return len(kvs) > 0 && kvs[0].Lease == r.Lease },
	}
	return replace(s, ctx, fmt.Sprintf("report %d of pool %s", r.Seq, r.Pool), f, &s.reports, s.keys.report(r.ID, r.Pool), r, orderOfReport)
}

// State implements store.Store.
func (s *Store) State(ctx context.Context) (*store.State, error) {
	resp, err := s.get(ctx, "the state", s.keys.all())
	if err != nil {
		return nil, err
	}
	state := &store.State{Status: map[string][]byte{}}
	first := int64(0)
	for _, kv := range resp.Kvs {
		err := error(nil)
		switch kind, names := s.keys.parse(string(kv.Key)); kind {
		case membersOf:
			state.Members, err = appendJSON(state.Members, kv)
		case grantsOf:
			state.Grants, err = appendJSON(state.Grants, kv)
		case reportsOf:
			state.Reports, err = appendJSON(state.Reports, kv)
		case statusOf:
			state.Status[names[0]] = kv.Value
		case toldOf:
			state.News, err = appendJSON(state.News, kv)
		case leaderOf:
			if first == 0 || kv.CreateRevision < first {
				var c candidate
				first, err = kv.CreateRevision, json.Unmarshal(kv.Value, &c)
				state.Leader, state.Epoch = c.Leader, uint64(kv.CreateRevision)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("etcd: read the state: key %s: %w", kv.Key, err)
		}
	}
	store.SortMembers(state.Members)
	return state, nil
}

func appendJSON[T any](to []T, kv *keyValue) ([]T, error) {
	var v T
	err := json.Unmarshal(kv.Value, &v)
	return append(to, v), err
}
