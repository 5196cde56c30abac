package occupancy

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Report is what was found. Its durations are in seconds.
type Report struct {
	Levels      []Level `json:"levels"`      // from one in flight to the peak
	Utilisation float64 `json:"utilisation"` // share of the window with any in flight
	BusyS       float64 `json:"busy_s"`
	WindowS     float64 `json:"window_s"`
	Peak        int     `json:"peak"`

	Paired         int `json:"paired"`          // spans of which both ends were found
	UnpairedStarts int `json:"unpaired_starts"` // in flight for no time here
	UnpairedDones  int `json:"unpaired_dones"`
	Excluded       int `json:"excluded"` // spans of traffic that is not measured

	// ExcludedShare is their share of the time in flight, each span's counted for itself.
	ExcludedS     float64 `json:"excluded_s"`
	ExcludedShare float64 `json:"excluded_share"`

	Capped       int `json:"capped"`        // ended with their process, in Levels but not in Paired
	Duplicates   int `json:"duplicates"`    // starts and dones that were logged twice
	TooLong      int `json:"too_long"`      // longer than the longest span
	GivenUp      int `json:"given_up"`      // of the unpaired starts, given up before the log's end
	Instant      int `json:"instant"`       // of the spans, those of no length
	Outside      int `json:"outside"`       // of the window
	NeverStarted int `json:"never_started"` // arrived and were never in flight
	Restarts     int `json:"restarts"`
	OutOfOrder   int `json:"out_of_order"` // lines too far behind a later one, left out
	Beyond       int `json:"beyond"`       // spans that began before what memory could hold, left out

	Lines      int    `json:"lines"`
	UsedLines  int    `json:"used_lines"` // of which a time or an event was read
	BadLines   int    `json:"bad_lines"`  // that should have had one and could not be read
	FirstBad   string `json:"first_bad,omitempty"`
	LostLines  int    `json:"lost_lines"` // missing, by the log's own word
	Resolution string `json:"resolution"` // the finest unit of any time: 1s, 1ms, 1us or 1ns

	From     string  `json:"from"`
	To       string  `json:"to"`
	InFlight float64 `json:"mean_in_flight"` // over the window

	PeakCause *Peak      `json:"peak_cause,omitempty"`
	Service   *Durations `json:"service,omitempty"` // in flight
	Queue     *Durations `json:"queue,omitempty"`   // waiting before it, where the log has both

	Models     []Group `json:"models,omitempty"`
	Classes    []Group `json:"classes,omitempty"`
	Principals []Group `json:"principals,omitempty"`
	Hours      []Hour  `json:"hours,omitempty"` // that had any in flight, of UTC

	Notes []string `json:"notes,omitempty"`

	zone *time.Location
}

// Level is the time with so many in flight.
type Level struct {
	InFlight   int     `json:"in_flight"`
	BusyShare  float64 `json:"busy_share"` // of the time with any
	Cumulative float64 `json:"cumulative"` // with so many or fewer
	Seconds    float64 `json:"seconds"`
}

// Durations sums durations up. Quantiles are upper bounds within 1/32.
type Durations struct {
	Count int     `json:"count"`
	MeanS float64 `json:"mean_s"`
	P50S  float64 `json:"p50_s"`
	P95S  float64 `json:"p95_s"`
	MaxS  float64 `json:"max_s"`
}

// Group is the spans of one model, class or principal; its levels are of its own
// spans only.
type Group struct {
	Name        string     `json:"name"`
	Spans       int        `json:"spans"`
	BusyS       float64    `json:"busy_s"`
	Utilisation float64    `json:"utilisation"`
	Share       float64    `json:"share"` // of the time in flight, each span's counted for itself
	Peak        int        `json:"peak"`
	Levels      []Level    `json:"levels"`
	Service     *Durations `json:"service,omitempty"`
	Queue       *Durations `json:"queue,omitempty"`
}

// Hour is one hour.
type Hour struct {
	Start       string  `json:"start"`
	BusyS       float64 `json:"busy_s"`
	Utilisation float64 `json:"utilisation"`    // of the hour
	InFlight    float64 `json:"mean_in_flight"` // over the hour
	Peak        int     `json:"peak"`

	at time.Time
}

// Peak is when the most were in flight, the first time that they were.
type Peak struct {
	At         string  `json:"at"`
	InFlight   int     `json:"in_flight"`
	Seconds    float64 `json:"seconds"` // how long it lasted
	Models     []Share `json:"models,omitempty"`
	Classes    []Share `json:"classes,omitempty"`
	Principals []Share `json:"principals,omitempty"`
	// Requests are the ones that had been in flight for longest, 20 at most.
	Requests []PeakRequest `json:"requests"`

	at int64
}

// Share is how many of those in flight were of one name.
type Share struct {
	Name     string `json:"name"`
	InFlight int    `json:"in_flight"`
}

// PeakRequest is one of them.
type PeakRequest struct {
	ID        string  `json:"id,omitempty"`
	Model     string  `json:"model,omitempty"`
	Class     string  `json:"class,omitempty"`
	Principal string  `json:"principal,omitempty"`
	Start     string  `json:"start"`
	Seconds   float64 `json:"seconds"`

	start int64
}

// Analysis takes lines in and reports.
type Analysis struct {
	opts    Options
	sweep   *sweep
	pairs   *pairing
	rep     Report
	first   int64
	last    int64
	any     bool
	subunit int64 // what no time so far was finer than
}

// NewAnalysis starts one. whole tells whether lines may have both ends.
func NewAnalysis(o Options, whole bool) (*Analysis, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	a := &Analysis{opts: o, subunit: 1e9}
	a.sweep = newSweep(o.From, o.To)
	a.pairs = newPairing(&a.opts, a.sweep, whole)
	a.rep.zone = o.Zone
	return a, nil
}

// Add takes a line, in the order of the log.
func (a *Analysis) Add(l *Line) {
	if !a.any || l.At < a.first {
		a.first = l.At
	}
	if !a.any || l.At > a.last {
		a.last = l.At
	}
	a.any = true
	for a.subunit > 1 && l.At%a.subunit != 0 {
		a.subunit /= 1000
	}
	a.rep.LostLines += int(l.Lost)
	d := &a.sweep.dims
	e := event{at: l.At, start: l.Start, queue: l.Queue, kind: l.Kind, fresh: l.Fresh, proc: a.pairs.proc(l.Source, l.Process)}
	if l.Kind != Other && l.Kind != Restart {
		e.id = string(l.ID)
		e.model, e.class, e.principal = d[0].number(l.Model), d[1].number(l.Class), d[2].number(l.Principal)
		x := &a.opts.Exclude
		e.excluded = l.Excluded || tagged(l.Tag, x.Tags) || len(x.Principals) > 0 && oneOf(l.Principal, x.Principals)
	}
	a.pairs.add(e)
}

// Report ends the analysis.
func (a *Analysis) Report() *Report {
	a.pairs.close()
	s, c, r := a.sweep, &a.pairs.c, &a.rep
	from, to := a.opts.From, a.opts.To
	if a.any {
		if from == 0 {
			from = min(a.first, s.first)
		}
		if to == 0 {
			to = max(a.last, from)
		}
	}
	r.WindowS = seconds(to - from)
	r.From, r.To = stamp(from, a.opts.Zone), stamp(to, a.opts.Zone)
	r.Levels, r.BusyS = distribution(&s.all.levels)
	r.Utilisation = ratio(r.BusyS, r.WindowS)
	sum := inFlight(r.Levels)
	r.InFlight = ratio(sum, r.WindowS)
	r.Paired, r.UnpairedStarts, r.UnpairedDones, r.Excluded = c.paired, c.unpairedStarts, c.unpairedDones, c.excluded
	r.ExcludedS, r.ExcludedShare = c.excludedSum, ratio(c.excludedSum, c.excludedSum+sum)
	r.Capped, r.Duplicates, r.TooLong, r.GivenUp, r.Instant, r.Outside = c.capped, c.duplicates, c.tooLong, c.givenUp, c.instant, c.outside
	r.NeverStarted, r.Restarts, r.OutOfOrder, r.Beyond = c.neverStarted, c.restarts, c.late, c.beyond
	r.Resolution = map[int64]string{1e9: "1s", 1e6: "1ms", 1e3: "1us", 1: "1ns"}[a.subunit]
	r.Service, r.Queue = s.all.service.durations(), s.all.queue.durations()
	if p := s.peak; p.InFlight > 0 {
		r.Peak = p.InFlight
		p.At = stamp(p.at, a.opts.Zone)
		for i := range p.Requests {
			p.Requests[i].Start = stamp(p.Requests[i].start, a.opts.Zone)
		}
		r.PeakCause = &p
	}
	for d, into := range []*[]Group{&r.Models, &r.Classes, &r.Principals} {
		*into = groups(s.dims[d], r.WindowS, sum)
	}
	for _, h := range s.hours {
		at := time.Unix(h.start*3600, 0).UTC()
		r.Hours = append(r.Hours, Hour{
			Start: at.Format(time.RFC3339), BusyS: seconds(h.busy), Utilisation: seconds(h.busy) / 3600, InFlight: h.inFlight / 3600, Peak: h.peak, at: at,
		})
	}
	a.note()
	return r
}

// note says what a reader should know before he believes the numbers.
func (a *Analysis) note() {
	r := &a.rep
	say := func(when bool, format string, args ...any) {
		if when {
			r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
		}
	}
	spans := r.Paired + r.Capped
	say(spans == 0, "no span was found")
	say(r.Resolution == "1s" && spans > 0, "times are whole seconds, so that every end is off by up to one: %d of %d spans have no length", r.Instant, spans)
	ends := r.UnpairedStarts + r.UnpairedDones
	say(ends > 0 && ends*100 >= spans, "%d starts and %d dones have no other end: the true numbers in flight are higher by what they were", r.UnpairedStarts, r.UnpairedDones)
	say(r.LostLines > 0, "the log says that %d lines are missing from it", r.LostLines)
	say(r.OutOfOrder > 0, "%d lines stood more than %v behind a later one and were left out: a larger slack takes them, if the log's clock was not set back", r.OutOfOrder, a.opts.Slack)
	say(r.Beyond > 0, "%d spans began before what memory holds and were left out", r.Beyond)
	say(r.TooLong > 0, "%d spans were longer than %v and were left out", r.TooLong, a.opts.MaxSpan)
	say(r.BadLines > 0, "%d lines could not be read, the first: %s", r.BadLines, r.FirstBad)
}

func stamp(ns int64, zone *time.Location) string {
	return time.Unix(0, ns).In(zone).Format(time.RFC3339Nano)
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func distribution(l *levels) (out []Level, busy float64) {
	out = []Level{}
	total := int64(0)
	for _, ns := range l.ns {
		total += ns
	}
	sum := int64(0)
	for n, ns := range l.ns {
		if n == 0 {
			continue
		}
		sum += ns
		out = append(out, Level{InFlight: n, BusyShare: ratio(float64(ns), float64(total)), Cumulative: ratio(float64(sum), float64(total)), Seconds: seconds(ns)})
	}
	return out, seconds(total)
}

func inFlight(l []Level) (sum float64) {
	for _, l := range l {
		sum += float64(l.InFlight) * l.Seconds
	}
	return sum
}

func (s *stat) durations() *Durations {
	if s.n == 0 {
		return nil
	}
	return &Durations{Count: s.n, MeanS: s.sum / float64(s.n), P50S: seconds(s.quantile(0.5)), P95S: seconds(s.quantile(0.95)), MaxS: seconds(s.max)}
}

// groups are a dimension's, the busiest first. One without any name is none.
func groups(d *dimension, window, all float64) (out []Group) {
	for _, g := range d.groups {
		if g.spans == 0 || len(d.groups) == 1 {
			continue
		}
		of, busy := distribution(&g.levels)
		out = append(out, Group{
			Name: cmp.Or(g.name, "-"), Spans: g.spans, BusyS: busy, Utilisation: ratio(busy, window), Share: ratio(inFlight(of), all),
			Peak: len(of), Levels: of, Service: g.service.durations(), Queue: g.queue.durations(),
		})
	}
	slices.SortStableFunc(out, func(a, b Group) int { return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Name, b.Name)) })
	return out
}
