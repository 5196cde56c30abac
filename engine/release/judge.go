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
	j.tickets = append(j.tickets, t)
}

// giveUp lets go of an attempt that may still be at the engine.
func (j *judge) giveUp(t *Ticket) {
	j.drop(t)
	if t.based {
		t.ghost = true
		j.foreign.add(1)
	}
}

func (j *judge) drop(t *Ticket) {
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
	excess := max(0, s.Held-s.Live)
	if s.Held >= 0 {
		if len(j.tickets) == 0 {
			j.foreign.shift(excess)
		} else {
			j.foreign.lower(excess)
		}
	}

	var answered, unanswered []*Ticket
	for _, t := range j.tickets {
		switch {
		case t.Closed.After(s.Asked): // was there when the sample was asked for
		case t.Answered:
			answered = append(answered, t)
		default:
			unanswered = append(unanswered, t)
		}
	}
	for _, t := range slices.Concat(answered, unanswered) {
		t.follow(s)
	}
	if s.Held >= 0 {
		j.settle(s, answered, excess-j.foreign.load())
		if s.Queued >= 0 {
			over := s.Held + s.Queued - s.Live - s.Pending - j.foreign.load()
			j.settleUnanswered(s, unanswered, over)
		}
	}
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

// follow keeps a ticket's account of the counters.
func (t *Ticket) follow(s Sample) {
	if t.based && s.Progress != t.last && s.Progress >= 0 {
		t.moves++
		t.still = s.At
	}
	t.based, t.last = true, s.Progress
}

// settle confirms answered attempts of which at most excess are still held.
func (j *judge) settle(s Sample, tickets []*Ticket, excess int) {
	if excess <= 0 {
		for _, t := range tickets {
			if s.Fresh || t.moves >= 1 || s.Held == 0 && t.Seen {
				j.confirm(t, j.by, s.At)
			}
		}
		return
	}
	gone := len(tickets) - excess
	slices.SortStableFunc(tickets, func(a, b *Ticket) int {
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
			j.confirm(t, j.by, s.At)
		}
	}
}

// settleUnanswered confirms attempts that may have been anywhere between the
// socket and a slot: all of them, or none.
func (j *judge) settleUnanswered(s Sample, tickets []*Ticket, excess int) {
	for _, t := range tickets {
		if excess > 0 {
			t.clear = 0
			continue
		}
		if t.clear++; t.clear >= 2 && (s.Fresh || t.moves >= 1) {
			j.confirm(t, j.by, s.At)
		}
	}
}

func (j *judge) confirm(t *Ticket, by engine.ConfirmedBy, at time.Time) {
	j.drop(t)
	t.result = engine.Confirmation{By: by, At: at}
	close(t.done)
}
