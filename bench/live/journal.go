package live

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"headgate/bench"
	"headgate/journal"
)

// fromJournal adds what a gateway wrote down: when each request was admitted and
// the engine ran it, its holds, and the recalls.
func fromJournal(file string, start time.Time, r *run, o *bench.Observed) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = f.Close() }()
	of := map[string]int{}
	for i, id := range r.ids {
		if id != "" {
			of[id] = i
		}
	}
	b := newBook(start, r.job, of, o)
	for in := journal.NewReader(f); ; {
		var e journal.Event
		switch err := in.Next(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("journal: %w", err)
		}
		if e.Kind == journal.Dropped {
			return fmt.Errorf("journal: %d events are missing: the machine is too slow for this load", e.Count)
		}
		b.note(&e)
	}
}

// book is a journal as a run's results have it.
type book struct {
	start   time.Time // on the wall clock, which a journal is written by
	job     *bench.Job
	of      map[string]int
	holds   map[uint64]*attempt // of those that have not ended
	began   map[int]int64       // requests of which an attempt had a token, and their output then kept
	ran     map[int]uint64      // the hold that the engine ran first, by request
	recalls map[uint64]int      // in o.Recalls
	o       *bench.Observed
	zero    int64 // start on the gateway's own clock, once known
	known   bool
}

func newBook(start time.Time, j *bench.Job, of map[string]int, o *bench.Observed) *book {
	return &book{start: start.Round(0), job: j, of: of, holds: map[uint64]*attempt{}, began: map[int]int64{}, ran: map[int]uint64{}, recalls: map[uint64]int{}, o: o}
}

// attempt is a hold that has not ended.
type attempt struct {
	hold   int // in o.Holds
	token  bool
	cached int64
}

func (b *book) note(e *journal.Event) {
	if !b.known { // one offset for all events: the wall clock may step
		b.zero, b.known = e.Mono-e.TS.Sub(b.start).Nanoseconds(), true
	}
	at := b.at(e.Mono)
	if e.Recall != 0 {
		b.recall(e, at)
	}
	i, ok := b.of[e.Request]
	if !ok {
		return
	}
	l := &b.job.Lines[i]
	switch e.Kind {
	case journal.Admitted, journal.Warming:
		if e.Kind == journal.Admitted && l.AdmittedMS == nil {
			l.AdmittedMS = &at
		}
		b.holds[e.Hold] = &attempt{hold: len(b.o.Holds)}
		b.o.Holds = append(b.o.Holds, bench.Hold{Request: i, From: at, To: at, Loan: e.Loan})
	case journal.Scheduled:
		// The exact moment may come after an interval, of the same hold.
		if by, again := b.ran[i]; e.PieceTokens == 0 && (!again || by == e.Hold) {
			b.ran[i] = e.Hold
			v := b.at(max(e.ScheduledNS, e.ScheduledUpperNS)) // the moment by which it surely had
			l.ScheduledMS = &v
		}
	}
	h := b.holds[e.Hold]
	if h == nil {
		return
	}
	h.cached = max(h.cached, e.CachedTokens)
	h.token = h.token || e.Kind == journal.FirstToken && e.PieceTokens == 0
	if e.Kind != journal.Ended {
		return
	}
	delete(b.holds, e.Hold)
	b.o.Holds[h.hold].To = at
	if e.Cause == "reclaimed" {
		b.o.Holds[h.hold].Reclaimed = true
		l.Reclaims++
	}
	if h.token {
		// Of what a further attempt prefills, only what the engine still had is saved.
		if kept, again := b.began[i]; again {
			l.Recomputed += int(max(0, e.PromptTokens+kept-h.cached))
		}
		b.began[i] = e.OutputTokens
	}
}

func (b *book) recall(e *journal.Event, at float64) {
	if e.Kind == journal.RecallOpened {
		b.recalls[e.Recall] = len(b.o.Recalls)
		b.o.Recalls = append(b.o.Recalls, bench.Recall{Class: e.Class, OpenedMS: at})
		return
	}
	n, ok := b.recalls[e.Recall]
	if !ok {
		return
	}
	r := &b.o.Recalls[n]
	after := at - r.OpenedMS
	switch e.Kind {
	case journal.RecallGranted:
		r.GrantedMS = &after
	case journal.RecallSettled:
		r.SettledMS = &after
	case journal.Scheduled:
		from := b.at(e.ScheduledNS) - r.OpenedMS
		r.ScheduledMS, r.ScheduledFrom = &from, nil
		if e.ScheduledUpperNS != 0 {
			upper := b.at(e.ScheduledUpperNS) - r.OpenedMS
			r.ScheduledMS, r.ScheduledFrom = &upper, &from
		}
	case journal.Ended:
		if e.Cause == "reclaimed" {
			r.Reclaims++
		}
	}
}

// at is a moment of the gateway's clock, in milliseconds of the trace's.
func (b *book) at(mono int64) float64 { return millis(time.Duration(mono - b.zero)) }
