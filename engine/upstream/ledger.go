package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	"headgate/engine"
)

// Ledger counts what the adapter itself has at the engine. An attempt leaves it
// when its connection is closed, whatever the engine still does with it.
type Ledger struct {
	since time.Time

	mu    sync.Mutex
	count Count
	begun uint64              // attempts that have had a token
	heard map[*Place]struct{} // those that are here, and are not known to have ended
}

func newLedger() Ledger { return Ledger{since: time.Now(), heard: map[*Place]struct{}{}} }

// Count is the ledger at one moment.
type Count struct {
	// Live attempts may be in the engine's batch: those that were answered, and
	// those that are not streamed, which are answered at their very end.
	Live int
	// Pending streamed attempts have had no headers yet.
	Pending int
}

// Count returns the present count.
func (l *Ledger) Count() Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *Ledger) add(live, pending int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Live += live
	l.count.Pending += pending
	if l.count.Live < 0 || l.count.Pending < 0 {
		panic("upstream: an attempt left the ledger twice")
	}
}

// lately is by how much an attempt may have been heard of before the last that was, to
// be of the same time.
const lately = 100 * time.Millisecond

// attending tells what the adapter surely has at the engine: attempts that have had a
// token, and that were heard of lately by somebody who has read all there is and waits
// for more. What waits to be read may hold an end, so that what is there at once when it is
// asked for, as behind a slow client, does not count as heard of.
func (l *Ledger) attending() engine.Attendance {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last time.Duration
	for p := range l.heard {
		last = max(last, time.Duration(p.last.Load()))
	}
	as, here := last, uint64(0)
	for p := range l.heard {
		if at := time.Duration(p.last.Load()); p.reads.Load() && at >= last-lately {
			as = min(as, at)
			here++
		}
	}
	a := engine.Attendance{Begun: l.begun, Ended: l.begun - here, As: l.since.Add(as), Since: l.since, Idle: l.count == (Count{})}
	if here == 0 {
		a.As = time.Now()
	}
	return a
}

// Place is one attempt's in the ledger. Its owner says when it waits for an event, and
// when one has come.
type Place struct {
	ledger        *Ledger
	live, pending int

	reads atomic.Bool
	since atomic.Int64 // when the owner began to wait, in ns since the ledger was made
	last  atomic.Int64 // when an event with data came that was waited for, likewise
	begun bool         // the ledger's mu
}

// waited is for how long an event is waited for at least that was not there before. One
// that was may have come long ago, and behind it the last one.
const waited = 200 * time.Microsecond

// Enter takes an attempt in. It is to leave once.
func (l *Ledger) Enter(streamed bool) *Place {
	p := &Place{ledger: l, live: 1}
	if streamed {
		p.live, p.pending = 0, 1
	}
	l.add(p.live, p.pending)
	return p
}

func (p *Place) answered() {
	p.ledger.add(p.pending, -p.pending)
	p.live, p.pending = p.live+p.pending, 0
}

// Reading and Read bracket the wait for an event.
func (p *Place) Reading() {
	p.since.Store(int64(time.Since(p.ledger.since)))
	p.reads.Store(true)
}
func (p *Place) Read() { p.reads.Store(false) }

// Heard tells that the engine has given an event of the attempt: with a token, or not,
// or the last one.
func (p *Place) Heard(token, last bool) {
	if now := time.Since(p.ledger.since); now-time.Duration(p.since.Load()) >= waited {
		p.last.Store(int64(now))
	}
	if !last && (!token || p.begun) {
		return
	}
	l := p.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case last:
		delete(l.heard, p)
	case !p.begun:
		p.begun = true
		l.begun++
		l.heard[p] = struct{}{}
	}
}

// Leave takes the attempt out of the ledger.
func (p *Place) Leave() {
	l := p.ledger
	l.mu.Lock()
	delete(l.heard, p)
	l.mu.Unlock()
	l.add(-p.live, -p.pending)
	p.live, p.pending = 0, 0
}
