package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"headgate/control"
)

// Memory is a store in this process, for a fleet of one and for tests. Its time is
// package time's, which testing/synctest controls. NewMemory makes one; each Dial
// is another client of the same store, with a link of its own that can be cut.
type Memory struct {
	*memory
	link   *link
	ctx    context.Context // until Close
	cancel context.CancelFunc
}

// link is a client's way to the store.
type link struct{ cut bool }

// errCut is what a client is told that can't reach the store.
var errCut = errors.New("the store can't be reached")

// errClosed is what a client is told after Close.
var errClosed = errors.New("the store is closed")

// memory is what the clients share. A method with the suffix Locked wants mu held.
type memory struct {
	mu      sync.Mutex
	leases  map[int64]*lease
	last    int64 // lease or epoch that was given out
	members map[string]control.Member
	grants  map[key]*control.Grant
	reports map[key]*control.Report
	status  map[string][]byte
	news    map[string]*control.News // by pool
	terms   []*term                  // candidates, in the order that they came; the first leads
	feeds   map[*feed]bool
}

// lease ends by its timer, unless it is renewed.
type lease struct {
	ttl   time.Duration
	timer *time.Timer
	over  []func() // what ends with it, called with mu held
}

// key of a grant or report.
type key struct {
	pool string
	id   control.ID
}

// feed is one watch.
type feed struct {
	link   *link
	list   func() // puts in all that is there
	member func(replica string, m *control.Member)
	grant  func(g *control.Grant)
	report func(r *control.Report)
	status func(s PoolStatus)    // nil: it does not follow them
	news   func(n *control.News) // nil: it does not follow them
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	m := &memory{
		leases: map[int64]*lease{}, members: map[string]control.Member{},
		grants: map[key]*control.Grant{}, reports: map[key]*control.Report{},
		status: map[string][]byte{}, news: map[string]*control.News{}, feeds: map[*feed]bool{},
	}
	return m.dial()
}

// Dial returns another client of the same store. Each is closed for itself.
func (m *Memory) Dial() *Memory { return m.dial() }

func (m *memory) dial() *Memory {
	ctx, cancel := context.WithCancel(context.Background())
	return &Memory{memory: m, link: new(link), ctx: ctx, cancel: cancel}
}

// Close ends what the client does: its renewals and watches. Its leases run out.
func (m *Memory) Close() error {
	m.cancel()
	return nil
}

// Cut makes the store unreachable for this client: its calls fail, its leases run
// out, its watches stand still.
func (m *Memory) Cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.link.cut = true
}

// Heal undoes Cut.
func (m *Memory) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.link.cut = false
	for f := range m.feeds {
		if f.link == m.link {
			f.list()
		}
	}
}

// reachLocked returns why the client can't reach the store.
func (m *Memory) reachLocked(ctx context.Context) error {
	switch {
	case m.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case m.link.cut:
		return errCut
	}
	return nil
}

// within returns a context that ends with ctx and with the client.
func (m *Memory) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(m.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// grantLocked makes a lease.
func (m *memory) grantLocked(ttl time.Duration) int64 {
	m.last++
	id := m.last
	l := &lease{ttl: ttl}
	l.timer = time.AfterFunc(ttl, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.revokeLocked(id)
	})
	m.leases[id] = l
	return id
}

// revokeLocked ends a lease and what is bound to it.
func (m *memory) revokeLocked(id int64) {
	l := m.leases[id]
	if l == nil {
		return
	}
	l.timer.Stop()
	delete(m.leases, id)
	for _, over := range l.over {
		over()
	}
}

// keep renews a lease by this client's link, until ctx or the client is over.
func (m *Memory) keep(ctx context.Context, id int64, ttl time.Duration) *Keeper {
	ctx, cancel := m.within(ctx)
	k := Keep(ctx, time.Now(), ttl, func(ctx context.Context) (time.Duration, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.reachLocked(ctx); err != nil {
			return 0, err
		}
		l := m.leases[id]
		if l == nil || !l.timer.Stop() { // its time is over, and it waits for mu
			return 0, ErrEnded
		}
		l.timer.Reset(l.ttl)
		return l.ttl, nil
	})
	go func() {
		<-k.Lost()
		cancel()
	}()
	return k
}

// giveBack ends a lease by this client's link.
func (m *Memory) giveBack(ctx context.Context, k *Keeper, id int64) error {
	k.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reachLocked(ctx); err != nil {
		return err
	}
	m.revokeLocked(id)
	return nil
}

type session struct {
	*Keeper
	store *Memory
	lease int64
}

func (s *session) Lease() int64 { return s.lease }

func (s *session) Leave(ctx context.Context) error {
	return s.store.giveBack(ctx, s.Keeper, s.lease)
}

// Join implements Store.
func (m *Memory) Join(ctx context.Context, who control.Member, ttl time.Duration) (Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reachLocked(ctx); err != nil {
		return nil, err
	}
	if holder, ok := m.members[who.Replica]; ok {
		if holder.ID != who.ID {
			return nil, Taken(holder)
		}
		// What is bound to the earlier lease is the new one's now.
		m.leases[holder.Lease].over = nil
		defer m.revokeLocked(holder.Lease)
	}
	who.Lease = m.grantLocked(ttl)
	m.leases[who.Lease].over = []func(){func() {
		delete(m.members, who.Replica)
		m.tellLocked(func(f *feed) { f.member(who.Replica, nil) })
	}}
	m.members[who.Replica] = who
	m.tellLocked(func(f *feed) { f.member(who.Replica, &who) })
	return &session{Keeper: m.keep(ctx, who.Lease, ttl), store: m, lease: who.Lease}, nil
}

// Announce implements Store.
func (m *Memory) Announce(ctx context.Context, who control.Member) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reachLocked(ctx); err != nil {
		return err
	}
	if holder, ok := m.members[who.Replica]; !ok || holder.ID != who.ID || holder.Lease != who.Lease {
		return ErrFenced
	}
	m.members[who.Replica] = who
	m.tellLocked(func(f *feed) { f.member(who.Replica, &who) })
	return nil
}

// Taken is ErrTaken with who holds the name.
func Taken(holder control.Member) error {
	return fmt.Errorf("replica %q: %w by boot %s, under lease %x", holder.Replica, ErrTaken, holder.Boot, holder.Lease)
}

// Report implements Store.
func (m *Memory) Report(ctx context.Context, r *control.Report) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reachLocked(ctx); err != nil {
		return err
	}
	if holder, ok := m.members[r.Replica]; !ok || holder.ID != r.ID || holder.Lease != r.Lease {
		return ErrFenced
	}
	at := key{r.Pool, r.ID}
	if was := m.reports[at]; was != nil && was.Seq >= r.Seq {
		return nil
	}
	m.reports[at] = clone(r)
	m.tellLocked(func(f *feed) { f.report(clone(r)) })
	return nil
}

// tellLocked tells the watches of a change whose link is there.
func (m *memory) tellLocked(tell func(f *feed)) {
	for f := range m.feeds {
		if !f.link.cut {
			tell(f)
		}
	}
}

// watchLocked puts what is there into a feed, and what changes until ctx is over.
func (m *Memory) watchLocked(ctx context.Context, f *feed) {
	f.link = m.link
	m.feeds[f] = true
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.feeds, f)
	})
	if !m.link.cut {
		f.list()
	}
}

// Grants implements Store.
func (m *Memory) Grants(ctx context.Context, id control.ID) <-chan *control.Grant {
	ctx, cancel := m.within(ctx)
	out, to := make(chan *control.Grant), NewGrantFeed()
	put := func(g *control.Grant) {
		if g.ID == id {
			to.Put(clone(g))
		}
	}
	m.mu.Lock()
	m.watchLocked(ctx, &feed{
		list: func() {
			for _, g := range m.grants {
				put(g)
			}
		},
		grant:  put,
		member: func(string, *control.Member) {}, report: func(*control.Report) {},
	})
	m.mu.Unlock()
	go func() {
		defer cancel()
		to.Serve(ctx, out)
	}()
	return out
}

// Members implements Store.
func (m *Memory) Members(ctx context.Context) <-chan []control.Member {
	ctx, cancel := m.within(ctx)
	out, to := make(chan []control.Member), NewMemberFeed()
	list := func() { to.Set(slices.Collect(maps.Values(m.members))) }
	m.mu.Lock()
	m.watchLocked(ctx, &feed{
		list:   list,
		member: func(string, *control.Member) { list() },
		grant:  func(*control.Grant) {}, report: func(*control.Report) {},
	})
	m.mu.Unlock()
	go func() {
		defer cancel()
		to.Serve(ctx, out)
	}()
	return out
}

// Statuses implements Store.
func (m *Memory) Statuses(ctx context.Context) <-chan PoolStatus {
	ctx, cancel := m.within(ctx)
	out, to := make(chan PoolStatus), NewStatusFeed()
	m.mu.Lock()
	m.watchLocked(ctx, &feed{
		list: func() {
			for pool, status := range m.status {
				to.Put(PoolStatus{pool, slices.Clone(status)})
			}
		},
		status: to.Put,
		member: func(string, *control.Member) {}, grant: func(*control.Grant) {}, report: func(*control.Report) {},
	})
	m.mu.Unlock()
	go func() {
		defer cancel()
		to.Serve(ctx, out)
	}()
	return out
}

// News implements Store.
func (m *Memory) News(ctx context.Context) <-chan *control.News {
	ctx, cancel := m.within(ctx)
	out, to := make(chan *control.News), NewNewsFeed()
	put := func(n *control.News) { to.Put(clone(n)) }
	m.mu.Lock()
	m.watchLocked(ctx, &feed{
		list: func() {
			for _, n := range m.news {
				put(n)
			}
		},
		news:   put,
		member: func(string, *control.Member) {}, grant: func(*control.Grant) {}, report: func(*control.Report) {},
	})
	m.mu.Unlock()
	go func() {
		defer cancel()
		to.Serve(ctx, out)
	}()
	return out
}

// term is a candidate's, and a leader's when it is the first.
type term struct {
	*Keeper
	store *Memory
	who   string
	epoch uint64
	lease int64
	first chan struct{} // closed when it leads
}

// Campaign implements Store.
func (m *Memory) Campaign(ctx context.Context, who string, ttl time.Duration) (Leadership, error) {
	for {
		t, err := m.stand(ctx, who, ttl)
		if err != nil {
			return nil, err
		}
		select {
		case <-t.first:
			return t, nil
		case <-t.Lost(): // before its turn; it stands again, unless ctx is over
		}
		_ = m.giveBack(context.WithoutCancel(ctx), t.Keeper, t.lease) // else it runs out
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.ctx.Err() != nil {
			return nil, errClosed
		}
	}
}

// stand puts a candidate at the end of the queue, once the store can be reached.
func (m *Memory) stand(ctx context.Context, who string, ttl time.Duration) (*term, error) {
	for {
		m.mu.Lock()
		err := m.reachLocked(ctx)
		if err == nil {
			break
		}
		m.mu.Unlock()
		if !errors.Is(err, errCut) {
			return nil, err
		}
		select {
		case <-time.After(ttl / 10):
		case <-ctx.Done():
		case <-m.ctx.Done():
		}
	}
	defer m.mu.Unlock()
	t := &term{store: m, who: who, first: make(chan struct{})}
	t.lease = m.grantLocked(ttl)
	t.epoch = uint64(t.lease)
	m.leases[t.lease].over = []func(){func() {
		i := slices.Index(m.terms, t)
		m.terms = slices.Delete(m.terms, i, i+1)
		if i == 0 && len(m.terms) > 0 {
			close(m.terms[0].first)
		}
	}}
	t.Keeper = m.keep(ctx, t.lease, ttl)
	if m.terms = append(m.terms, t); len(m.terms) == 1 {
		close(t.first)
	}
	return t, nil
}

func (t *term) Epoch() uint64 { return t.epoch }

// leadLocked returns why the term's leader can't write.
func (t *term) leadLocked(ctx context.Context) error {
	if err := t.store.reachLocked(ctx); err != nil {
		return err
	}
	if len(t.store.terms) == 0 || t.store.terms[0] != t {
		return ErrFenced
	}
	return nil
}

// Follow implements Leadership.
func (t *term) Follow(ctx context.Context) <-chan Change {
	m := t.store
	ctx, cancel := m.within(ctx)
	out, to := make(chan Change), NewChangeFeed()
	// Nothing is told before the store was reached: an empty fleet would be believed.
	read, grants := make(chan struct{}), []*control.Grant(nil)
	once := sync.OnceFunc(func() {
		for _, at := range sortedKeys(m.grants) {
			grants = append(grants, clone(m.grants[at]))
		}
		close(read)
	})
	m.mu.Lock()
	m.watchLocked(ctx, &feed{
		list: func() {
			defer once()
			members := slices.Collect(maps.Values(m.members))
			SortMembers(members)
			to.Members(members)
			for _, at := range sortedKeys(m.reports) {
				to.Reported(clone(m.reports[at]))
			}
		},
		member: func(replica string, who *control.Member) {
			if who == nil {
				to.Gone(replica)
			} else {
				to.Joined(*who)
			}
		},
		report: to.Reported,
		grant:  func(*control.Grant) {},
	})
	m.mu.Unlock()
	go func() {
		defer cancel()
		select {
		case <-read:
			to.Serve(ctx, grants, out)
		case <-ctx.Done():
			close(out)
		}
	}()
	return out
}

// Write implements Leadership.
func (t *term) Write(ctx context.Context, g *control.Grant) error {
	m := t.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := t.leadLocked(ctx); err != nil {
		return err
	}
	at := key{g.Pool, g.ID}
	if was := m.grants[at]; was != nil && !Newer(g, was) {
		return nil
	}
	m.grants[at] = clone(g)
	m.tellLocked(func(f *feed) { f.grant(g) })
	return nil
}

// Remove implements Leadership.
func (t *term) Remove(ctx context.Context, pool string, id control.ID) error {
	m := t.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := t.leadLocked(ctx); err != nil {
		return err
	}
	delete(m.grants, key{pool, id})
	delete(m.reports, key{pool, id})
	return nil
}

// Tell implements Leadership.
func (t *term) Tell(ctx context.Context, n *control.News) error {
	m := t.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := t.leadLocked(ctx); err != nil {
		return err
	}
	if was := m.news[n.Pool]; was != nil && !NewerNews(n, was) {
		return nil
	}
	m.news[n.Pool] = clone(n)
	m.tellLocked(func(f *feed) {
		if f.news != nil {
			f.news(n)
		}
	})
	return nil
}

// Publish implements Leadership.
func (t *term) Publish(ctx context.Context, pool string, status []byte) error {
	m := t.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := t.leadLocked(ctx); err != nil {
		return err
	}
	if status == nil {
		delete(m.status, pool)
		return nil
	}
	m.status[pool] = slices.Clone(status)
	m.tellLocked(func(f *feed) {
		if f.status != nil {
			f.status(PoolStatus{pool, slices.Clone(status)})
		}
	})
	return nil
}

// Resign implements Leadership.
func (t *term) Resign(ctx context.Context) error {
	return t.store.giveBack(ctx, t.Keeper, t.lease)
}

// State implements Store.
func (m *Memory) State(ctx context.Context) (*State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reachLocked(ctx); err != nil {
		return nil, err
	}
	s := &State{Members: slices.Collect(maps.Values(m.members)), Status: map[string][]byte{}}
	SortMembers(s.Members)
	if len(m.terms) > 0 {
		s.Leader, s.Epoch = m.terms[0].who, m.terms[0].epoch
	}
	for _, at := range sortedKeys(m.grants) {
		s.Grants = append(s.Grants, *clone(m.grants[at]))
	}
	for _, at := range sortedKeys(m.reports) {
		s.Reports = append(s.Reports, *clone(m.reports[at]))
	}
	for pool, status := range m.status {
		s.Status[pool] = slices.Clone(status)
	}
	for _, pool := range slices.Sorted(maps.Keys(m.news)) {
		s.News = append(s.News, *clone(m.news[pool]))
	}
	return s, nil
}

// sortedKeys are in the order that State lists what they name: by replica, boot
// and pool.
func sortedKeys[V any](of map[key]V) []key {
	return slices.SortedFunc(maps.Keys(of), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.id.Replica, b.id.Replica), cmp.Compare(a.id.Boot, b.id.Boot), cmp.Compare(a.pool, b.pool))
	})
}

// clone copies a value as a store elsewhere would, so that nobody shares memory
// through this one.
func clone[T any](v *T) *T {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("control/store: %T can't be written: %v", v, err))
	}
	to := new(T)
	if err := json.Unmarshal(b, to); err != nil {
		panic(fmt.Sprintf("control/store: %T can't be read: %v", v, err))
	}
	return to
}
