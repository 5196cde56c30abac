package journal

import (
	"cmp"
	"slices"
	"time"
)

// Recall is what became of one recall. Times are on the clock of Event.Mono; 0
// is what has not come, and of what never comes it stays 0.
type Recall struct {
	Seq     uint64 // its number in its pool
	Pool    string
	Class   string // whose demand wants lent capacity back
	Request string // the returning request that opened it

	Opened     int64
	Granted    int64 // admission may admit it
	Served     int64 // the returning request was admitted
	Dispatched int64 // and sent to the engine
	Settled    int64 // what was ended for that request was out; where nothing was, all that was lent
	Closed     int64 // all was out that was lent when it opened
	FirstToken int64 // of the returning request

	// The engine began to run the returning request at Scheduled. Where the engine
	// does not tell, it was between Scheduled and ScheduledUpper; where it does,
	// the latter is 0.
	Scheduled, ScheduledUpper int64
	Hold                      uint64 // of which Scheduled is known

	Reclaims []Reclaim // in the order in which they were sent
	LeftOut  int       // further ones
}

// Reclaim is one loan that was ended by force.
type Reclaim struct {
	Class     string // that had borrowed
	Request   string
	Hold      uint64
	Sent      int64 // the attempt's connection to the engine was given up
	Confirmed int64 // the engine's word that its capacity is free
}

// Bounds of what Recalls keeps.
const (
	MaxRecalls  = 1000
	maxReclaims = 64 // of one recall
)

// Recalls makes the records of the last MaxRecalls recalls out of one pool's
// events. It reads no clock and has no lock; its owner serialises. The zero
// value is ready.
//
// Alternatives: records kept by the code that runs requests would be a second
// account of what the journal says, and could differ from it; these can be made
// again from the file.
type Recalls struct {
	ring    []Recall
	changed []uint64 // by place in the ring: the version that its record last changed in
	version uint64
	next    int // where the next one goes, once the ring is full
}

// Note takes an event into account. If it brought a recall to its next step, that
// is returned, with how long it came after the opening; of an interval, its upper
// end. A step is the Kind of event that is known for it; it is "" if there is none.
// Scheduled comes twice if an interval becomes exact.
func (l *Recalls) Note(e *Event) (step Kind, after time.Duration) {
	if e.Recall == 0 {
		return "", 0
	}
	if e.Kind == RecallOpened {
		l.open(Recall{Seq: e.Recall, Pool: e.Pool, Class: e.Class, Request: e.For, Opened: e.Mono})
		return "", 0
	}
	i := l.find(e.Recall)
	if i < 0 {
		return "", 0
	}
	r := &l.ring[i]
	l.touch(i)
	step, at := e.Kind, e.Mono
	var to *int64
	switch e.Kind {
	case RecallGranted:
		to = &r.Granted
	case RecallSettled:
		to = &r.Settled
	case RecallClosed:
		to = &r.Closed
	case Ended, Released:
		r.reclaim(e)
		return "", 0
	}
	if e.Request == r.Request {
		switch e.Kind {
		case Admitted:
			// Of a recall that has closed before there is no event of its own.
			step, to = RecallServed, &r.Served
		case Dispatched:
			to = &r.Dispatched
		case FirstToken:
			to = &r.FirstToken
		case Scheduled:
			to, at = &r.Scheduled, e.ScheduledNS
		}
	}
	exact := e.Kind == Scheduled && e.ScheduledUpperNS == 0 && r.ScheduledUpper != 0 && e.Hold == r.Hold
	if to == nil || *to != 0 && !exact {
		return "", 0
	}
	*to = at
	if e.Kind == Scheduled {
		r.ScheduledUpper, r.Hold = e.ScheduledUpperNS, e.Hold
		at = max(at, r.ScheduledUpper)
	}
	return step, time.Duration(at - r.Opened)
}

// reclaim notes the two events of a loan that was ended for the recall. The
// returning request's own end is another matter, and so is a loan that ended by
// itself.
func (r *Recall) reclaim(e *Event) {
	switch {
	case e.For == "" || e.Request == r.Request:
	case e.Kind == Released:
		for i := range r.Reclaims {
			if c := &r.Reclaims[i]; c.Hold == e.Hold && c.Confirmed == 0 {
				c.Confirmed = e.Mono
			}
		}
	case e.Cause != "reclaimed" || r.Closed != 0:
	case len(r.Reclaims) == maxReclaims:
		r.LeftOut++
	default:
		r.Reclaims = append(r.Reclaims, Reclaim{Class: e.Class, Request: e.Request, Hold: e.Hold, Sent: e.Mono})
	}
}

func (l *Recalls) open(r Recall) {
	if len(l.ring) < MaxRecalls {
		l.ring, l.changed = append(l.ring, r), append(l.changed, 0)
		l.touch(len(l.ring) - 1)
		return
	}
	l.ring[l.next] = r
	l.touch(l.next)
	l.next = (l.next + 1) % MaxRecalls
}

// touch notes that the record at a place may have changed.
func (l *Recalls) touch(at int) {
	l.version++
	l.changed[at] = l.version
}

// back is the place of the nth newest record, from 0.
func (l *Recalls) back(n int) int { return (l.next + len(l.ring) - 1 - n) % len(l.ring) }

// find looks from the newest on: what still happens belongs to a late one, and a
// number that an earlier run of the process had is its own. It returns a place, -1 if there
// is none.
func (l *Recalls) find(seq uint64) int {
	for n := range l.ring {
		if at := l.back(n); l.ring[at].Seq == seq {
			return at
		}
	}
	return -1
}

// Since returns copies of the records that may have changed since a version of the list,
// and its version now. 0 is before all. What changed first comes first.
func (l *Recalls) Since(version uint64) ([]Recall, uint64) {
	if version == l.version {
		return nil, version
	}
	var places []int
	for at, v := range l.changed {
		if v > version {
			places = append(places, at)
		}
	}
	slices.SortFunc(places, func(a, b int) int { return cmp.Compare(l.changed[a], l.changed[b]) })
	out := make([]Recall, len(places))
	for i, at := range places {
		out[i] = l.ring[at].clone()
	}
	return out, l.version
}

// Last returns copies of the newest n records, or of as many as there are,
// newest first.
func (l *Recalls) Last(n int) []Recall {
	out := make([]Recall, min(max(n, 0), len(l.ring)))
	for i := range out {
		out[i] = l.ring[l.back(i)].clone()
	}
	return out
}

func (r *Recall) clone() Recall {
	c := *r
	c.Reclaims = slices.Clone(r.Reclaims)
	return c
}
