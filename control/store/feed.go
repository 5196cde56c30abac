package store

import (
	"context"
	"slices"
	"sync"

	"headgate/control"
)

// What a watch brings goes through one of the three feeds below before it reaches
// its reader. They hold what the reader has still to be told, never its history:
// the watch is never held up, memory is bounded by the number of keys, and after a
// watch was lost it is enough to put in everything that is there now.

// signal wakes a feed's server.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// serve sends what pop returns until ctx is over, and then closes out. Where pop
// has nothing it waits for the signal.
func serve[T any](ctx context.Context, s signal, out chan<- T, pop func() []T) {
	defer close(out)
	for {
		batch := pop()
		if len(batch) == 0 {
			select {
			case <-s:
				continue
			case <-ctx.Done():
				return
			}
		}
		for _, v := range batch {
			select {
			case out <- v:
			case <-ctx.Done():
				return
			}
		}
	}
}

// PoolFeed is what a reader has still to be told of the pools: the last of each.
type PoolFeed[T any] struct {
	of      func(T) string // the pool
	newer   func(v, than T) bool
	mu      sync.Mutex
	pending []T
	last    map[string]T // that was put in, by pool
	signal  signal
}

func newPoolFeed[T any](of func(T) string, newer func(v, than T) bool) *PoolFeed[T] {
	return &PoolFeed[T]{of: of, newer: newer, last: map[string]T{}, signal: newSignal()}
}

// NewGrantFeed returns a feed of one life's grants, with nothing in it.
func NewGrantFeed() *PoolFeed[*control.Grant] {
	return newPoolFeed(func(g *control.Grant) string { return g.Pool }, Newer)
}

// NewNewsFeed returns a feed of what the replicas are told of each other, with nothing in
// it.
func NewNewsFeed() *PoolFeed[*control.News] {
	return newPoolFeed(func(n *control.News) string { return n.Pool }, NewerNews)
}

// NewStatusFeed returns a feed of what leaders publish, with nothing in it. The same
// again is told again.
func NewStatusFeed() *PoolFeed[PoolStatus] {
	return newPoolFeed(func(s PoolStatus) string { return s.Pool }, func(PoolStatus, PoolStatus) bool { return true })
}

// Put in a value: it replaces what was not sent yet of the same pool. One that is not
// newer than what was put before changes nothing.
func (f *PoolFeed[T]) Put(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pool := f.of(v)
	if was, ok := f.last[pool]; ok && !f.newer(v, was) {
		return
	}
	f.last[pool] = v
	if i := slices.IndexFunc(f.pending, func(p T) bool { return f.of(p) == pool }); i >= 0 {
		f.pending[i] = v
	} else {
		f.pending = append(f.pending, v)
	}
	f.signal.set()
}

// Serve sends the values to out until ctx is over, and closes it.
func (f *PoolFeed[T]) Serve(ctx context.Context, out chan<- T) {
	serve(ctx, f.signal, out, func() []T {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.pending) == 0 {
			return nil
		}
		v := f.pending[0]
		f.pending = f.pending[1:]
		return []T{v}
	})
}

// Newer tells whether a grant replaces another: by the leader's term, and within
// one by its number.
func Newer(g, than *control.Grant) bool {
	return g.Epoch > than.Epoch || g.Epoch == than.Epoch && g.Rev > than.Rev
}

// NewerNews tells whether news replace others: by the leader's term, and within one by
// their number.
func NewerNews(n, than *control.News) bool {
	return n.Epoch > than.Epoch || n.Epoch == than.Epoch && n.Seq > than.Seq
}

// MemberFeed is the list of members that a reader has still to be told.
type MemberFeed struct {
	mu     sync.Mutex
	list   []control.Member
	fresh  bool // list is not the last that was sent
	sent   []control.Member
	ever   bool
	signal signal
}

// NewMemberFeed returns a feed with nothing in it.
func NewMemberFeed() *MemberFeed { return &MemberFeed{signal: newSignal()} }

// Set the list, in any order.
func (f *MemberFeed) Set(list []control.Member) {
	list = slices.Clone(list)
	SortMembers(list)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list, f.fresh = list, !f.ever || !slices.Equal(list, f.sent)
	f.signal.set()
}

// Serve sends the lists to out until ctx is over, and closes it.
func (f *MemberFeed) Serve(ctx context.Context, out chan<- []control.Member) {
	defer close(out)
	for {
		f.mu.Lock()
		list, to := f.list, out
		if !f.fresh {
			to = nil
		}
		f.mu.Unlock()
		select {
		case to <- slices.Clone(list):
			f.mu.Lock()
			f.sent, f.ever = list, true
			f.fresh = !slices.Equal(f.list, list)
			f.mu.Unlock()
		case <-f.signal:
		case <-ctx.Done():
			return
		}
	}
}

// SortMembers orders a list as all lists of members are: by the replica's name.
func SortMembers(list []control.Member) {
	slices.SortFunc(list, func(a, b control.Member) int {
		if a.Replica < b.Replica {
			return -1
		} else if a.Replica > b.Replica {
			return 1
		}
		return 0
	})
}

// ChangeFeed is what a leader has still to be told, replica by replica: that a
// life is gone, that one is there, and then the last report of each pool, so that
// a report never comes before the lease that it was written under.
type ChangeFeed struct {
	mu     sync.Mutex
	there  map[string]control.Member
	told   map[string]control.Member // of those, and of those that are gone, what was sent
	wait   map[string][]*control.Report
	queue  []string // replicas of which something is to be told
	signal signal
}

// NewChangeFeed returns a feed with nothing in it.
func NewChangeFeed() *ChangeFeed {
	return &ChangeFeed{
		there: map[string]control.Member{}, told: map[string]control.Member{},
		wait: map[string][]*control.Report{}, signal: newSignal(),
	}
}

// Joined puts in that a life has a lease: it replaces what the replica had before.
func (f *ChangeFeed) Joined(m control.Member) {
	m.Uses = "" // else each word of it would be another life
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.there[m.Replica] != m {
		f.there[m.Replica] = m
		f.enqueueLocked(m.Replica)
	}
}

// Gone puts in that a replica has no lease.
func (f *ChangeFeed) Gone(replica string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.there[replica]; ok {
		delete(f.there, replica)
		f.enqueueLocked(replica)
	}
}

// Members puts in all that have a lease: who is not among them is gone.
func (f *ChangeFeed) Members(all []control.Member) {
	listed := map[string]bool{}
	for _, m := range all {
		listed[m.Replica] = true
		f.Joined(m)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for replica := range f.there {
		if !listed[replica] {
			delete(f.there, replica)
			f.enqueueLocked(replica)
		}
	}
}

// Reported puts in a report: it replaces one of the same life and pool that was not
// sent yet.
func (f *ChangeFeed) Reported(r *control.Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait := f.wait[r.Replica]
	if i := slices.IndexFunc(wait, func(w *control.Report) bool { return w.Pool == r.Pool && w.ID == r.ID }); i >= 0 {
		wait[i] = r
	} else {
		f.wait[r.Replica] = append(wait, r)
	}
	f.enqueueLocked(r.Replica)
}

func (f *ChangeFeed) enqueueLocked(replica string) {
	if !slices.Contains(f.queue, replica) {
		f.queue = append(f.queue, replica)
	}
	f.signal.set()
}

// Serve sends to out what was put in before the call, beginning with the grants,
// then Synced, and then the changes until ctx is over, when it closes out.
func (f *ChangeFeed) Serve(ctx context.Context, grants []*control.Grant, out chan<- Change) {
	f.mu.Lock()
	first := len(f.queue)
	f.mu.Unlock()
	serve(ctx, f.signal, out, func() (batch []Change) {
		for _, g := range grants {
			batch = append(batch, Change{Grant: g})
		}
		grants = nil
		for more := true; more && len(batch) == 0; first-- {
			if first == 0 {
				batch = append(batch, Change{Synced: true})
			}
			var next []Change
			next, more = f.pop()
			batch = append(batch, next...)
		}
		return batch
	})
}

// pop returns all that is to be told of the first replica in the queue; that may be
// nothing, where what was to be told is no longer so. ok tells whether there was one.
func (f *ChangeFeed) pop() (batch []Change, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return nil, false
	}
	replica := f.queue[0]
	f.queue = f.queue[1:]
	there, is := f.there[replica]
	told, was := f.told[replica]
	if was && (!is || told != there) {
		// What it said under its lease comes before the end of that.
		f.wait[replica] = slices.DeleteFunc(f.wait[replica], func(r *control.Report) bool {
			before := r.ID == told.ID && r.Lease == told.Lease
			if before {
				batch = append(batch, Change{Report: r})
			}
			return before
		})
		batch = append(batch, Change{Gone: &told})
		delete(f.told, replica)
	}
	if is && (!was || told != there) {
		batch = append(batch, Change{Joined: &there})
		f.told[replica] = there
	}
	for _, r := range f.wait[replica] {
		batch = append(batch, Change{Report: r})
	}
	delete(f.wait, replica)
	return batch, true
}
