// Package live tells consoles what pools are at. However many are open, one goroutine makes
// one document four times a second for all of them, and none while nobody looks. What the
// last minutes were is kept all the time, as a look every few seconds at counters that are
// there anyway: somebody who opens a console wants to see what has happened.
//
// Requests are not slowed down: nothing is written for a console when one is decided about.
// It is all read from the cores and the metrics, under the same lock for as long as /metrics
// takes it, or for less (admission.Brief).
//
// Alternatives: the journal's events would say more, and would be a stream of thousands a
// second to show a picture that changes four times; differences between documents would be
// shorter, and a reader that misses one would have to ask again. The document of a pool is
// about a kilobyte.
package live

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"headgate/console/now"
	"headgate/relay"
)

const (
	// every is how often consoles are told.
	every = 250 * time.Millisecond
	// mostWatchers bounds the streams that are open: more than people look, fewer than the
	// admin listener has connections.
	mostWatchers = 64
	// writeTime is how long a console may leave what was written unread.
	writeTime = 10 * time.Second
	// lookAgain is how often it is seen to that who looks may.
	lookAgain = 5 * time.Second
	// mostChanges bounds the changes of recalls that are remembered for who reads slowly.
	mostChanges = 512
	// newest is how many recalls Now has.
	newest = 10
)

// Config is what is looked at.
type Config struct {
	Pools func() []*relay.Pool
	// Metrics are those of all pools; nil: nothing is known of traffic.
	Metrics *relay.Metrics
	// Tenants are those that the configuration names.
	Tenants func() []string
	// Ready and Problems are what /readyz says.
	Ready    func() error
	Problems func() []string
}

// Feed makes the documents.
type Feed struct {
	cfg  Config
	wake chan struct{}

	mu       sync.Mutex
	over     bool
	watchers map[*watcher]bool
	state    []byte // the last event "now"; nil: it is too old
	traffic  []byte // the last event "traffic"
	beats    uint64 // counts those
	changes  []now.Recall
	dropped  uint64 // changes that are not remembered any more
	series   series

	seen map[string]uint64 // by pool, the version of its recalls; Run's alone
}

// watcher is one open stream.
type watcher struct {
	wake   chan struct{}
	recall uint64 // the changes that it has been told of
	beat   uint64
}

// New makes a feed; Run runs it.
func New(cfg Config) *Feed {
	return &Feed{cfg: cfg, wake: make(chan struct{}, 1), watchers: map[*watcher]bool{}, seen: map[string]uint64{}}
}

// Run looks until ctx ends, and then ends all streams.
func (f *Feed) Run(ctx context.Context) {
	slow := time.NewTicker(sampleEvery)
	defer slow.Stop()
	fast := time.NewTicker(every)
	defer fast.Stop()
	fast.Stop()
	looking := false
	f.sample()
	for {
		select {
		case <-ctx.Done():
			f.mu.Lock()
			f.over = true
			f.mu.Unlock()
			f.tell()
			return
		case <-slow.C:
			f.sample()
			continue
		case <-f.wake:
			// Somebody has come, and does not wait for the next tick.
		case <-fast.C:
		}
		f.mu.Lock()
		wanted := len(f.watchers) > 0
		f.mu.Unlock()
		switch {
		case wanted && !looking:
			fast.Reset(every)
			f.catchUp()
		case !wanted && looking:
			fast.Stop()
		}
		looking = wanted
		if wanted {
			f.look()
		}
	}
}

// catchUp takes note of how the recalls are, of which nobody has to be told: who comes asks
// for them.
func (f *Feed) catchUp() {
	for _, p := range f.cfg.Pools() {
		_, f.seen[p.Name()] = p.RecallsSince(f.seen[p.Name()])
	}
}

// look makes the next document and tells everybody.
func (f *Feed) look() {
	n := f.build()
	state := event("now", n)
	var changed []now.Recall
	for _, p := range f.cfg.Pools() {
		recalls, version := p.RecallsSince(f.seen[p.Name()])
		f.seen[p.Name()] = version
		for i := range recalls {
			changed = append(changed, Recall(&recalls[i], p.Start()))
		}
	}
	f.mu.Lock()
	f.state = state
	f.changes = append(f.changes, changed...)
	if n := len(f.changes) - mostChanges; n > 0 {
		f.changes = slices.Delete(f.changes, 0, n)
		f.dropped += uint64(n)
	}
	f.mu.Unlock()
	f.tell()
}

// tell wakes everybody who watches.
func (f *Feed) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		select {
		case w.wake <- struct{}{}:
		default: // he has not come to the last one yet, and gets both
		}
	}
}

// Now is what pools are at.
func (f *Feed) Now() *now.Now {
	n := f.build()
	n.Recalls = f.Recalls(newest)
	return n
}

// Recalls returns the newest recalls of all pools, newest first.
func (f *Feed) Recalls(most int) []now.Recall {
	all := []now.Recall{}
	for _, p := range f.cfg.Pools() {
		for _, r := range p.Recalls(most) {
			all = append(all, Recall(&r, p.Start()))
		}
	}
	slices.SortStableFunc(all, func(a, b now.Recall) int { return b.Opened.Compare(a.Opened) })
	return all[:min(most, len(all))]
}

// event is one event of a stream.
func event(kind string, v any) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: ", kind)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // of numbers, strings and flags; it ends the line
	b.WriteByte('\n')
	return b.Bytes()
}

// join adds a stream, or says why there is none.
func (f *Feed) join() (*watcher, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return nil, "the process stops"
	case len(f.watchers) >= mostWatchers:
		return nil, fmt.Sprintf("%d consoles are open already: close one", mostWatchers)
	}
	if len(f.watchers) == 0 {
		f.state = nil // it is of whoever looked last
	}
	w := &watcher{wake: make(chan struct{}, 1), recall: f.dropped + uint64(len(f.changes)), beat: f.beats}
	f.watchers[w] = true
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return w, ""
}

func (f *Feed) leave(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, w)
}

// news is what a stream has not had yet; over: there is no more.
func (f *Feed) news(w *watcher) (events [][]byte, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != nil {
		events = append(events, f.state)
	}
	if have := f.dropped + uint64(len(f.changes)); w.recall < have {
		from := max(w.recall, f.dropped) - f.dropped
		events = append(events, event("recalls", latest(f.changes[from:])))
		w.recall = have
	}
	if w.beat < f.beats {
		events = append(events, f.traffic)
		w.beat = f.beats
	}
	return events, f.over
}

// latest keeps of the changes of each recall the last one.
func latest(changes []now.Recall) []now.Recall {
	type id struct {
		pool string
		seq  uint64
	}
	at := map[id]int{}
	for i := range changes {
		at[id{changes[i].Pool, changes[i].Seq}] = i
	}
	var out []now.Recall
	for _, i := range slices.Sorted(maps.Values(at)) {
		out = append(out, changes[i])
	}
	return out
}

// ServeHTTP streams events until the reader leaves, or may not look any more. Those are
// "now", the state of all pools; "recalls", those that are new or have come a step further;
// and "traffic", what the last seconds have added.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request, may func() bool) {
	me, why := f.join()
	if me == nil {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	defer f.leave(me)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	out := http.NewResponseController(w)
	for asked := time.Now(); ; {
		select {
		case <-r.Context().Done():
			return
		case <-me.wake:
		}
		events, over := f.news(me)
		if time.Since(asked) >= lookAgain {
			over, asked = over || !may(), time.Now()
		}
		if over {
			return
		}
		// A server that can't set deadlines (a test's recorder) writes without one.
		_ = out.SetWriteDeadline(time.Now().Add(writeTime))
		for _, e := range events {
			if _, err := w.Write(e); err != nil {
				return
			}
		}
		if out.Flush() != nil {
			return
		}
	}
}

// History writes what requests met over the last minutes.
func (f *Feed) History() *now.Traffic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.series.all()
}
