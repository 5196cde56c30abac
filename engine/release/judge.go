package release

import (
	"cmp"
	"slices"
	"time"

	"headgate/engine"
)

// judge weighs samples. It reads no clock: time is in the samples.
type judge struct {
	grace   time.Duration
	by      engine.ConfirmedBy
	tickets []*Ticket
	foreign foreign
	asked   time.Time // of the last sample taken in
	looks   []look    // the last of those that tickets were open at

	// shared: others send to the engine who say what they have there.
	shared bool
	others []other
}

// look is a sample, and what was open when it was asked for.
type look struct {
	Sample
	foreign int // known from before
	open    []standing
}

// standing is a ticket at a look, and how often counters had moved by then.
type standing struct {
	*Ticket
	moves int
}

// foreign is load that is not the adapter's: the smaller of the last two
// samples' excess, so that a release in the middle of one is not counted.
type foreign struct{ prev, last int }

func (f foreign) load() int { return min(f.prev, f.last) }

func (f *foreign) shift(excess int) { f.prev, f.last = f.last, excess }

// lower corrects downwards, which a sample allows at any time: excess can't be
// smaller than what is foreign.
func (f *foreign) lower(excess int) { f.prev, f.last = min(f.prev, excess), min(f.last, excess) }

func (f *foreign) add(n int) { f.prev, f.last = max(0, f.prev+n), max(0, f.last+n) }

// add takes up an attempt. One that was given up before was foreign since.
func (j *judge) add(t *Ticket) {
	if t.ghost {
		t.ghost = false
		j.foreign.add(-1)
	}
	t.open = true
	j.tickets = append(j.tickets, t)
}

// giveUp lets go of an attempt that may still be at the engine.
func (j *judge) giveUp(t *Ticket) {
	j.drop(t)
	if t.based && !j.shared {
		t.ghost = true
		j.foreign.add(1)
	}
}

func (j *judge) drop(t *Ticket) {
	t.open = false
	j.tickets = slices.DeleteFunc(j.tickets, func(o *Ticket) bool { return o == t })
}

func (j *judge) unanswered() bool {
	return slices.ContainsFunc(j.tickets, func(t *Ticket) bool { return !t.Answered })
}

// age is that of the youngest ticket.
func (j *judge) age(now time.Time) time.Duration {
	var youngest time.Time
	for _, t := range j.tickets {
		if t.Closed.After(youngest) {
			youngest = t.Closed
		}
	}
	return now.Sub(youngest)
}

// sample confirms what it can. Samples that overtook each other would look like
// moving counters, so one asked for earlier than the last is passed over.
func (j *judge) sample(s Sample) {
	if s.Asked.Before(j.asked) {
		return
	}
	j.asked = s.Asked
	if s.Held >= 0 && !j.shared {
		if excess := max(0, s.Held-s.Live); len(j.tickets) == 0 {
			j.foreign.shift(excess)
		} else {
			j.foreign.lower(excess)
		}
	}
	l := look{Sample: s}
	for _, t := range j.tickets {
		if !t.Closed.After(s.Asked) { // else it was there when the sample was asked for
			t.follow(s)
			l.open = append(l.open, standing{t, t.moves})
		}
	}
	if !j.shared {
		l.foreign = j.foreign.load()
	}
	j.keep(l)
	j.weigh()
	for _, t := range slices.Clone(j.tickets) {
		since := t.still
		if s.Held < 0 {
			since = t.Closed // no sample will ever show it
		} else if s.Fresh {
			continue
		}
		if t.based && s.Asked.Sub(since) >= j.grace {
			j.confirm(t, engine.ByGrace, s.At)
		}
	}
}

// keep remembers a look for as long as a ticket of it is open. Later ones say no more
// of an engine that is nobody else's than it and the one before do.
func (j *judge) keep(l look) {
	if l.Held < 0 || len(l.open) == 0 {
		return
	}
	most := 2
	if j.shared {
		most = maxLooks
	}
	j.looks = append(j.looks, l)
	j.looks = slices.Delete(j.looks, 0, max(0, len(j.looks)-most))
}

// weigh confirms what can be confirmed by any of the looks, by what is known now.
func (j *judge) weigh() {
	for _, t := range j.tickets {
		t.clear = 0
	}
	for i := range j.looks {
		l := &j.looks[i]
		var answered, unanswered []standing
		for _, t := range l.open {
			switch {
			case !t.Ticket.open: // confirmed, or given up
			case t.Answered:
				answered = append(answered, t)
			default:
				unanswered = append(unanswered, t)
			}
		}
		foreign := l.foreign + j.held(&l.Sample)
		j.settle(&l.Sample, answered, max(0, l.Held-l.Live)-foreign)
		if l.Queued >= 0 {
			j.settleUnanswered(&l.Sample, unanswered, l.Held+l.Queued-l.Live-l.Pending-foreign)
		}
	}
	j.looks = slices.DeleteFunc(j.looks, func(l look) bool {
		return !slices.ContainsFunc(l.open, func(t standing) bool { return t.Ticket.open })
	})
}

// doubts tells whether what others have at the engine may be all that is in the way of
// a confirmation.
func (j *judge) doubts() bool {
	if !j.shared || len(j.looks) == 0 {
		return false
	}
	l := &j.looks[len(j.looks)-1]
	return l.Held > l.Live && slices.ContainsFunc(l.open, func(t standing) bool { return l.Fresh || t.moves >= 1 })
}

// follow keeps a ticket's account of the counters.
func (t *Ticket) follow(s Sample) {
	if t.based && s.Progress != t.last && s.Progress >= 0 {
		t.moves++
		t.still = s.At
	}
	t.based, t.last = true, s.Progress
}

// settle confirms answered attempts of which at most excess are still held.
func (j *judge) settle(s *Sample, tickets []standing, excess int) {
	if excess <= 0 {
		for _, t := range tickets {
			if s.Fresh || t.moves >= 1 || s.Held == 0 && t.Seen {
				j.confirm(t.Ticket, j.by, s.At)
			}
		}
		return
	}
	gone := len(tickets) - excess
	slices.SortStableFunc(tickets, func(a, b standing) int {
		if a.Seen != b.Seen {
			if a.Seen {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Closed.UnixNano(), b.Closed.UnixNano())
	})
	for _, t := range tickets {
		if gone > 0 && (s.Fresh || t.moves >= 2) {
			gone--
			j.confirm(t.Ticket, j.by, s.At)
		}
	}
}

// settleUnanswered confirms attempts that may have been anywhere between the
// socket and a slot: all of them, or none.
func (j *judge) settleUnanswered(s *Sample, tickets []standing, excess int) {
	for _, t := range tickets {
		if excess > 0 {
			t.clear = 0
			continue
		}
		if t.clear++; t.clear >= 2 && (s.Fresh || t.moves >= 1) {
			j.confirm(t.Ticket, j.by, s.At)
		}
	}
}

func (j *judge) confirm(t *Ticket, by engine.ConfirmedBy, at time.Time) {
	j.drop(t)
	t.result = engine.Confirmation{By: by, At: at}
	close(t.done)
}
