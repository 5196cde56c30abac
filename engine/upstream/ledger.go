package upstream

import "sync"

// Ledger counts what the adapter itself has at the engine. An attempt leaves it
// when its connection is closed, whatever the engine still does with it.
type Ledger struct {
	mu    sync.Mutex
	count Count
}

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

// entry is one attempt's place in the ledger.
type entry struct {
	ledger        *Ledger
	live, pending int
}

func (l *Ledger) enter(streamed bool) entry {
	e := entry{ledger: l, live: 1}
	if streamed {
		e.live, e.pending = 0, 1
	}
	l.add(e.live, e.pending)
	return e
}

func (e *entry) answered() {
	e.ledger.add(e.pending, -e.pending)
	e.live, e.pending = e.live+e.pending, 0
}

func (e *entry) leave() {
	e.ledger.add(-e.live, -e.pending)
	e.live, e.pending = 0, 0
}
