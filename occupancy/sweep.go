package occupancy

import (
	"cmp"
	"math"
	"slices"
)

// spanInfo is a span while the sweep has it.
type spanInfo struct {
	id                      string
	start, end              int64
	model, class, principal uint16
	excluded, capped        bool
	prev, next              int32 // among those in flight, by start
}

// edge is one end of a span: up is 1 where it begins.
type edge struct {
	at   int64
	span int32
	up   int32
}

// byTime puts ends before starts, since a span does not have its end in it.
func byTime(a, b edge) int {
	if c := cmp.Compare(a.at, b.at); c != 0 {
		return c
	}
	return cmp.Compare(a.up, b.up)
}

// levels is a distribution of time by how many spans are in flight.
type levels struct {
	ns   []int64 // [n]: with n in flight; [0] is not kept
	n    int
	last int64
}

// step counts what has passed and goes to the next number in flight.
func (l *levels) step(at int64, up int32) {
	if l.n > 0 {
		l.ns[l.n] += at - l.last
	}
	l.last = at
	if up == 0 {
		l.n--
		return
	}
	if l.n++; l.n >= len(l.ns) {
		l.ns = append(l.ns, make([]int64, l.n+1-len(l.ns))...)
	}
}

// group is the spans of one model, class or principal.
type group struct {
	name string
	levels
	spans          int
	service, queue stat
}

// hour is one hour of UTC.
type hour struct {
	start    int64 // hours since 1970
	busy     int64
	inFlight float64 // seconds, of all spans
	peak     int
}

// dimension is the groups by one property; groups[0] are those without it.
type dimension struct {
	groups []*group
	byName map[string]uint16
}

func newDimension() *dimension {
	return &dimension{groups: []*group{{}}, byName: map[string]uint16{}}
}

// number returns a name's group.
func (d *dimension) number(name []byte) uint16 {
	if len(name) == 0 {
		return 0
	}
	n, ok := d.byName[string(name)]
	if ok {
		return n
	}
	s := string(name)
	if len(d.groups) > maxNames {
		if n, ok := d.byName["other"]; ok {
			return n
		}
		s = "other"
	}
	n = uint16(len(d.groups))
	d.groups = append(d.groups, &group{name: s})
	d.byName[s] = n
	return n
}

// sweep goes once over the edges in order of time.
type sweep struct {
	from, to int64 // what is counted; 0: all

	edges []edge
	limit int // at which they are put in order
	batch int // the least limit
	slab  []spanInfo
	free  []int32
	floor int64 // nothing that begins before it is counted any more

	all    group
	dims   [3]*dimension // model, class, principal
	hours  []hour
	flight list
	peak   Peak
	rising bool // the number in flight is the highest so far
	first  int64
	last   int64
}

func newSweep(from, to int64) *sweep {
	return &sweep{
		from: from, to: to, limit: 1 << 14, batch: 1 << 14, floor: math.MinInt64, first: math.MaxInt64, last: math.MinInt64,
		dims: [3]*dimension{newDimension(), newDimension(), newDimension()}, flight: list{none, none},
	}
}

func (s *sweep) of(i *spanInfo) [3]*group {
	return [3]*group{s.dims[0].groups[i.model], s.dims[1].groups[i.class], s.dims[2].groups[i.principal]}
}

// add takes a span. A queue below 0 is not known.
func (s *sweep) add(i spanInfo, queue int64) {
	s.first = min(s.first, i.start)
	of := s.of(&i)
	for _, g := range [...]*group{&s.all, of[0], of[1], of[2]} {
		g.spans++
		g.service.add(i.end - i.start)
		if queue >= 0 {
			g.queue.add(queue)
		}
	}
	start, end := s.clip(i.start, i.end)
	if start >= end {
		return
	}
	var n int32
	if k := len(s.free); k > 0 {
		n, s.free = s.free[k-1], s.free[:k-1]
		s.slab[n] = i
	} else {
		n = int32(len(s.slab))
		s.slab = append(s.slab, i)
	}
	s.edges = append(s.edges, edge{start, n, 1}, edge{end, n, 0})
}

// clip cuts a span to the window.
func (s *sweep) clip(start, end int64) (int64, int64) {
	if s.from != 0 {
		start = max(start, s.from)
	}
	if s.to != 0 {
		end = min(end, s.to)
	}
	return start, end
}

// until goes over the edges before t, once it is worth putting them in order.
func (s *sweep) until(t int64) {
	if len(s.edges) < s.limit {
		return
	}
	s.run(t)
	s.limit = max(s.batch, 2*len(s.edges))
}

func (s *sweep) run(t int64) {
	slices.SortFunc(s.edges, byTime)
	n := 0
	for n < len(s.edges) && s.edges[n].at < t {
		s.step(&s.edges[n])
		n++
	}
	s.edges = s.edges[:copy(s.edges, s.edges[n:])]
}

func (s *sweep) finish() {
	s.run(math.MaxInt64)
}

// full tells whether what is kept has reached its limit; middle is a time before
// which half of it is.
func (s *sweep) full() bool { return len(s.edges) >= maxEdges }

func (s *sweep) middle() int64 {
	slices.SortFunc(s.edges, byTime)
	s.limit = 0
	return s.edges[len(s.edges)/2].at
}

func (s *sweep) step(e *edge) {
	if e.up == 0 && s.rising {
		s.snapshot(e.at)
	}
	if s.all.n > 0 {
		s.pass(s.all.last, e.at, s.all.n)
	}
	s.all.step(e.at, e.up)
	i := &s.slab[e.span]
	for _, g := range s.of(i) {
		g.step(e.at, e.up)
	}
	if e.up == 1 {
		s.enter(e.span)
		if s.all.n > s.peak.InFlight {
			s.peak = Peak{InFlight: s.all.n, at: e.at}
			s.rising = true
		}
		return
	}
	s.leave(e.span)
	s.last = e.at
	s.slab[e.span] = spanInfo{}
	s.free = append(s.free, e.span)
}

// pass counts time with n in flight in its hours.
func (s *sweep) pass(from, to int64, n int) {
	const size = int64(3600e9)
	for from < to {
		h := from / size
		if from%size < 0 {
			h--
		}
		end := min(to, (h+1)*size)
		if k := len(s.hours); k == 0 || s.hours[k-1].start != h {
			if k == maxHours {
				return
			}
			s.hours = append(s.hours, hour{start: h})
		}
		last := &s.hours[len(s.hours)-1]
		last.busy += end - from
		last.inFlight += float64(n) * seconds(end-from)
		last.peak = max(last.peak, n)
		from = end
	}
}

// maxCause bounds the requests that are named at a peak.
const maxCause = 20

// snapshot says what is in flight at the peak, before the first of it ends.
func (s *sweep) snapshot(now int64) {
	s.rising = false
	p := &s.peak
	p.Seconds = seconds(now - s.all.last)
	p.Requests = nil
	for i := s.flight.first; i != none && len(p.Requests) < maxCause; i = s.slab[i].next {
		f := &s.slab[i]
		p.Requests = append(p.Requests, PeakRequest{
			ID: f.id, Model: s.dims[0].groups[f.model].name, Class: s.dims[1].groups[f.class].name, Principal: s.dims[2].groups[f.principal].name,
			start: f.start, Seconds: seconds(f.end - f.start),
		})
	}
	for d, to := range []*[]Share{&p.Models, &p.Classes, &p.Principals} {
		for _, g := range s.dims[d].groups {
			if g.n > 0 && g.name != "" {
				*to = append(*to, Share{Name: g.name, InFlight: g.n})
			}
		}
		slices.SortStableFunc(*to, func(a, b Share) int { return cmp.Compare(b.InFlight, a.InFlight) })
	}
}

func (s *sweep) enter(i int32) {
	f := &s.slab[i]
	f.prev, f.next = s.flight.last, none
	if s.flight.last == none {
		s.flight.first = i
	} else {
		s.slab[s.flight.last].next = i
	}
	s.flight.last = i
}

func (s *sweep) leave(i int32) {
	f := &s.slab[i]
	if f.prev == none {
		s.flight.first = f.next
	} else {
		s.slab[f.prev].next = f.next
	}
	if f.next == none {
		s.flight.last = f.prev
	} else {
		s.slab[f.next].prev = f.prev
	}
}
