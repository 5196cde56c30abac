package occupancy

import (
	"cmp"
	"math"
	"slices"
)

// event is a Line that is kept until its turn.
type event struct {
	at, start, queue        int64
	seq                     uint64
	id                      string
	proc                    int32
	model, class, principal uint16
	kind                    Kind
	excluded, fresh         bool
}

func inOrder(a, b event) int {
	if c := cmp.Compare(a.at, b.at); c != 0 {
		return c
	}
	return cmp.Compare(a.seq, b.seq)
}

// process is one run of what writes a log.
type process struct {
	source   string
	ids      map[string]int32 // to idents
	last     int64            // its last line
	any      bool
	replaced bool // another run of the same source has begun since
}

// ident is one id in one process, for as long as something is open under it or its
// last done may come again. Ids are used again, so several requests may be open under
// one, of which each has its time.
type ident struct {
	id   string
	proc int32
	head int32 // the newest open request
	last recent
	done bool // last is one
}

// open is a request whose end has not come.
type open struct {
	ident                   int32
	arrived, start, queue   int64
	seq                     uint64 // of its start
	model, class, principal uint16
	waits, arrives          bool  // no start has come; an arrival has
	excluded                bool  // by its first line
	older                   int32 // of the same id
	prev, next              int32 // in order of start, or of arrival while it waits
}

// list is the ends of a linked list of open requests.
type list struct{ first, last int32 }

const none = -1

// recent is the last done of an id, for which another one may come.
type recent struct {
	at    int64
	seq   uint64
	model uint16
}

// expiry is when a done was, after which some time it is forgotten.
type expiry struct {
	ident int32
	at    int64
}

// pairing makes spans of events.
type pairing struct {
	opts  *Options
	sweep *sweep
	whole bool // the format has lines with both ends

	buf    []event // not in order yet
	limit  int     // at which buf is put in order
	batch  int     // the least limit
	seq    uint64
	newest int64 // time of any event so far
	done   int64 // everything before it was handled
	any    bool

	procs   []process
	byName  map[[2]string]int32
	sources map[string][]int32

	slab    []open
	free    []int32
	idents  []ident
	unused  []int32 // of idents
	started list
	waiting list
	nopen   int

	expire []expiry // from gone on, oldest first
	gone   int

	c counts
}

// counts is what became of lines and spans.
type counts struct {
	paired, unpairedStarts, unpairedDones             int
	capped, duplicates, tooLong, late, beyond         int
	neverStarted, givenUp, instant, outside, excluded int
	excludedSum                                       float64 // seconds in flight
	restarts                                          int
}

// twiceAtOnce is how soon a second done of an id, with an older start of it still
// open, is taken for the first one logged twice and not for that start's end.
const twiceAtOnce = 1e9

func newPairing(o *Options, s *sweep, whole bool) *pairing {
	return &pairing{
		opts: o, sweep: s, whole: whole, limit: 8192, batch: 8192,
		byName: map[[2]string]int32{}, sources: map[string][]int32{},
		started: list{none, none}, waiting: list{none, none}, done: math.MinInt64,
	}
}

// proc numbers the process of a line.
func (p *pairing) proc(source, name []byte) int32 {
	n, ok := p.byName[[2]string{string(source), string(name)}]
	if ok {
		return n
	}
	if len(p.procs) >= 1<<16 {
		return 0
	}
	n = int32(len(p.procs))
	s := string(source)
	p.procs = append(p.procs, process{source: s, ids: map[string]int32{}})
	p.byName[[2]string{s, string(name)}] = n
	p.sources[s] = append(p.sources[s], n)
	return n
}

// add takes an event, in the order of the files.
func (p *pairing) add(e event) {
	if p.any && e.at < p.done {
		p.c.late++
		return
	}
	p.seq++
	e.seq = p.seq
	if !p.any || e.at > p.newest {
		p.newest, p.any = e.at, true
	}
	if p.buf = append(p.buf, e); len(p.buf) >= p.limit {
		p.settle()
		p.limit = max(p.batch, 2*len(p.buf))
	}
}

// settle handles the events that are older than the slack, in order.
func (p *pairing) settle() {
	if !slices.IsSortedFunc(p.buf, inOrder) {
		slices.SortFunc(p.buf, inOrder)
	}
	until := p.newest - int64(p.opts.Slack)
	if n := len(p.buf); n >= maxBuffered && p.buf[n/2].at > until {
		until = p.buf[n/2].at
	}
	n := 0
	for n < len(p.buf) && p.buf[n].at < until {
		p.handle(&p.buf[n])
		n++
	}
	if n > 0 {
		p.buf = p.buf[:copy(p.buf, p.buf[n:])]
	}
	p.done = max(p.done, until)
	p.age(p.done)
	p.sweep.until(p.mark())
}

// close handles everything that is left.
func (p *pairing) close() {
	slices.SortFunc(p.buf, inOrder)
	for i := range p.buf {
		p.handle(&p.buf[i])
	}
	p.buf = nil
	for p.started.first != none {
		p.abandon(p.started.first)
	}
	for p.waiting.first != none {
		p.c.neverStarted++
		p.drop(p.waiting.first)
	}
	p.sweep.finish()
}

// mark is the time before which no span can begin any more.
func (p *pairing) mark() int64 {
	m := p.done
	if p.whole {
		m -= int64(p.opts.MaxSpan)
	}
	if f := p.started.first; f != none {
		m = min(m, p.slab[f].start)
	}
	return m
}

// age gives up what is older than the longest span, and more if there is too much.
func (p *pairing) age(now int64) {
	oldest := now - int64(p.opts.MaxSpan)
	for f := p.started.first; f != none && (p.slab[f].start < oldest || p.nopen > maxOpen); f = p.started.first {
		p.c.givenUp++
		p.abandon(f)
	}
	for f := p.waiting.first; f != none && (p.slab[f].arrived < oldest || p.nopen > maxOpen); f = p.waiting.first {
		p.c.neverStarted++
		p.drop(f)
	}
	for p.gone < len(p.expire) && (p.expire[p.gone].at < now-int64(p.opts.Dedupe) || len(p.expire)-p.gone > maxOpen) {
		x := p.expire[p.gone]
		if d := &p.idents[x.ident]; d.done && d.last.at == x.at {
			d.done = false
			p.forget(x.ident)
		}
		p.gone++
	}
	if 2*p.gone > len(p.expire) {
		p.expire, p.gone = p.expire[:copy(p.expire, p.expire[p.gone:])], 0
	}
	if p.sweep.full() {
		// The oldest open spans hold back what the sweep has to keep.
		floor := p.sweep.middle()
		for f := p.started.first; f != none && p.slab[f].start < floor; f = p.started.first {
			p.c.givenUp++
			p.abandon(f)
		}
		p.sweep.floor = max(p.sweep.floor, floor)
		p.sweep.until(floor)
	}
}

func (p *pairing) handle(e *event) {
	proc := &p.procs[e.proc]
	if !proc.any {
		p.replace(e.proc)
	} else if e.fresh || e.kind == Restart {
		p.restart(e.proc)
	}
	proc.last, proc.any, proc.replaced = e.at, true, false
	switch e.kind {
	case Wait:
		p.arrive(e, p.ident(e))
	case Start:
		p.start(e, p.ident(e))
	case Done:
		p.finish(e, p.ident(e))
	case Gone:
		if n, ok := proc.ids[e.id]; ok {
			if i := p.find(e, n, true); i != none {
				p.c.neverStarted++
				p.drop(i)
			}
		}
	case Whole:
		if e.at-e.start > int64(p.opts.MaxSpan) {
			p.c.tooLong++
			return
		}
		p.span(spanOf(e), e.start+min(e.queue, e.at-e.start), e.at, e.queue, e.queue > 0)
	}
}

// replace notes that a source has a new process, so that its others may be dead.
// They are taken for that unless they write another line: a source may have several
// processes at once.
func (p *pairing) replace(n int32) {
	for _, other := range p.sources[p.procs[n].source] {
		p.procs[other].replaced = other != n
	}
}

// restart ends what is open in a process, at its last line.
func (p *pairing) restart(n int32) {
	p.c.restarts++
	p.procs[n].replaced = true
	for f := p.started.first; f != none; {
		next := p.slab[f].next
		if p.idents[p.slab[f].ident].proc == n {
			p.abandon(f)
		}
		f = next
	}
	for f := p.waiting.first; f != none; {
		next := p.slab[f].next
		if p.idents[p.slab[f].ident].proc == n {
			p.c.neverStarted++
			p.drop(f)
		}
		f = next
	}
}

// abandon ends an open span that will have no done.
func (p *pairing) abandon(i int32) {
	o := &p.slab[i]
	if proc := &p.procs[p.idents[o.ident].proc]; proc.replaced && proc.last-o.start <= int64(p.opts.MaxSpan) {
		s := p.info(o)
		s.capped = true
		p.span(s, min(o.start+o.queue, proc.last), max(o.start, proc.last), o.start-o.arrived+o.queue, o.arrives || o.queue > 0)
	} else {
		p.c.unpairedStarts++
	}
	p.drop(i)
}

// arrive notes when a request began to wait. A second notice, as of one that
// arrived and then was queued, is the same wait.
func (p *pairing) arrive(e *event, n int32) {
	if p.find(e, n, true) != none {
		return
	}
	i := p.alloc(e, n)
	o := &p.slab[i]
	o.arrived, o.waits, o.arrives = e.at, true, true
	p.link(&p.waiting, i)
}

func (p *pairing) start(e *event, n int32) {
	if i := p.find(e, n, false); i != none {
		o := &p.slab[i]
		if o.waits {
			p.unlink(&p.waiting, i)
			o.waits = false
			o.start, o.queue, o.seq = e.at, e.queue, e.seq
			o.merge(e)
			p.link(&p.started, i)
			return
		}
		if o.start == e.at {
			p.c.duplicates++
			return
		}
	}
	i := p.alloc(e, n)
	o := &p.slab[i]
	o.arrived, o.start, o.queue = e.at, e.at, e.queue
	p.link(&p.started, i)
}

// finish pairs a done with the latest start of its key: if an earlier one is still
// open, its own done is missing.
func (p *pairing) finish(e *event, n int32) {
	last := p.idents[n].last
	again := p.idents[n].done && (last.model == e.model || last.model == 0 || e.model == 0)
	i := p.find(e, n, false)
	if i != none && p.slab[i].waits {
		i = none
	}
	switch {
	case again && i == none && e.at-last.at <= int64(p.opts.Dedupe),
		again && i != none && p.slab[i].seq < last.seq && e.at-last.at <= min(twiceAtOnce, int64(p.opts.Dedupe)):
		p.c.duplicates++
		return
	case i == none:
		p.c.unpairedDones++
	}
	p.idents[n].last, p.idents[n].done = recent{e.at, e.seq, e.model}, true
	p.expire = append(p.expire, expiry{n, e.at})
	if i != none {
		o := &p.slab[i]
		o.merge(e)
		o.queue = max(o.queue, e.queue)
		if e.at-o.start > int64(p.opts.MaxSpan) {
			p.c.tooLong++
		} else {
			p.span(p.info(o), min(o.start+o.queue, e.at), e.at, o.start-o.arrived+o.queue, o.arrives || o.queue > 0)
		}
		p.drop(i)
	}
}

// span hands a span on.
func (p *pairing) span(s spanInfo, start, end, queue int64, queued bool) {
	if from, to := p.opts.From, p.opts.To; from != 0 && end <= from || to != 0 && start >= to {
		p.c.outside++
		return
	}
	if s.excluded {
		p.c.excluded++
		start, end = p.sweep.clip(start, end)
		p.c.excludedSum += seconds(end - start)
		return
	}
	if start < p.sweep.floor {
		p.c.beyond++
		return
	}
	if s.capped {
		p.c.capped++
	} else {
		p.c.paired++
	}
	if start == end {
		p.c.instant++
	}
	s.start, s.end = start, end
	if !queued {
		queue = -1
	}
	p.sweep.add(s, queue)
}

// ident returns that of an event.
func (p *pairing) ident(e *event) int32 {
	ids := p.procs[e.proc].ids
	n, ok := ids[e.id]
	if ok {
		return n
	}
	if k := len(p.unused); k > 0 {
		n, p.unused = p.unused[k-1], p.unused[:k-1]
	} else {
		n = int32(len(p.idents))
		p.idents = append(p.idents, ident{})
	}
	p.idents[n] = ident{id: e.id, proc: e.proc, head: none}
	ids[e.id] = n
	return n
}

// forget drops an ident that nothing needs any more.
func (p *pairing) forget(n int32) {
	if d := &p.idents[n]; d.head == none && !d.done {
		delete(p.procs[d.proc].ids, d.id)
		*d = ident{head: none}
		p.unused = append(p.unused, n)
	}
}

// find returns the newest open request of an id that may be the event's, of those
// that wait or of all. A line that does not name its model may belong to any.
func (p *pairing) find(e *event, n int32, waits bool) int32 {
	for i := p.idents[n].head; i != none; i = p.slab[i].older {
		if o := &p.slab[i]; (o.model == e.model || o.model == 0 || e.model == 0) && (!waits || o.waits) {
			return i
		}
	}
	return none
}

func (p *pairing) alloc(e *event, n int32) int32 {
	oldest, same := int32(none), 0
	for j := p.idents[n].head; j != none; j = p.slab[j].older {
		oldest, same = j, same+1
	}
	if same >= maxSame {
		p.c.givenUp++
		p.abandon(oldest)
	}
	var i int32
	if k := len(p.free); k > 0 {
		i, p.free = p.free[k-1], p.free[:k-1]
	} else {
		i = int32(len(p.slab))
		p.slab = append(p.slab, open{})
	}
	p.slab[i] = open{ident: n, seq: e.seq, model: e.model, class: e.class, principal: e.principal, excluded: e.excluded, older: p.idents[n].head}
	p.idents[n].head = i
	p.nopen++
	return i
}

// drop forgets an open request.
func (p *pairing) drop(i int32) {
	o := &p.slab[i]
	if o.waits {
		p.unlink(&p.waiting, i)
	} else {
		p.unlink(&p.started, i)
	}
	n := o.ident
	if at := &p.idents[n].head; *at == i {
		*at = o.older
	} else {
		newer := *at
		for p.slab[newer].older != i {
			newer = p.slab[newer].older
		}
		p.slab[newer].older = o.older
	}
	p.forget(n)
	*o = open{}
	p.free = append(p.free, i)
	p.nopen--
}

func (p *pairing) link(l *list, i int32) {
	o := &p.slab[i]
	o.prev, o.next = l.last, none
	if l.last == none {
		l.first = i
	} else {
		p.slab[l.last].next = i
	}
	l.last = i
}

func (p *pairing) unlink(l *list, i int32) {
	o := &p.slab[i]
	if o.prev == none {
		l.first = o.next
	} else {
		p.slab[o.prev].next = o.next
	}
	if o.next == none {
		l.last = o.prev
	} else {
		p.slab[o.next].prev = o.prev
	}
}

// merge takes what another line of the same request tells.
func (o *open) merge(e *event) {
	o.model, o.class, o.principal = cmp.Or(o.model, e.model), cmp.Or(o.class, e.class), cmp.Or(o.principal, e.principal)
	o.excluded = o.excluded || e.excluded
}

func (p *pairing) info(o *open) spanInfo {
	return spanInfo{id: p.idents[o.ident].id, model: o.model, class: o.class, principal: o.principal, excluded: o.excluded}
}

func spanOf(e *event) spanInfo {
	return spanInfo{id: e.id, model: e.model, class: e.class, principal: e.principal, excluded: e.excluded}
}
