package prove

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"headgate/admission"
	"headgate/journal"
	"headgate/trace"
	"headgate/wire"
)

// Request is one recorded request. Times are since the recording's start; one that is
// not known is -1.
type Request struct {
	trace.Entry
	Tenant     string
	Principal  string
	Model      string        // as configured
	Engine     string        // that served it last
	Dispatched time.Duration // to the engine, first
	First      time.Duration // token
	Done       time.Duration
	Limits     admission.Objective // what "on time" meant for it
	Cached     int                 // tokens of the prompt that the engine had
	Attempts   int
	Stream     bool
	// Left tells that the client left before the end: it is load, but was neither on time
	// nor late. Failed is an answer that ended otherwise than it should have.
	Left, Failed bool
}

// computed is how many tokens of the prompt were not found in the engine's cache.
func (q *Request) computed() float64 {
	return float64(q.PromptTokens - min(q.Cached, q.PromptTokens-1))
}

// Recording is what a journal says of one pool, in a span of time.
type Recording struct {
	Pool     string
	Files    []string
	Start    time.Time
	Length   time.Duration
	Requests []Request // by arrival
	Engines  []string  // that served them, sorted
	// Observed tells that the pool passed everything on as it came; else it enforced.
	Observed bool

	// What is not replayed, in requests.
	Refused    map[string]int // by cause
	Before     int            // were under way when it begins
	Unfinished int            // were under way when it ends
	Uncounted  int            // ended without a count of tokens

	Restarts  int           // of the gateway, in order
	Down      time.Duration // between a stop and the next start
	EngineOut int           // times that an engine became anything but ready
	Switches  int           // uses of an operator's switches
}

// Source says what of a journal to read.
type Source struct {
	Files    []string // in any order; gzip is seen by itself
	Pool     string   // empty: the only one that has requests
	Engine   string   // empty: the only one that served any
	From, To time.Time
}

// ErrTokens reports a journal that does not say how long answers were.
var ErrTokens = errors.New("the journal has no token counts")

// IsJournal tells by its beginning whether a file is a journal, compressed or not.
func IsJournal(file string) bool {
	f, err := open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	var e journal.Event
	return journal.NewReader(f).Next(&e) == nil && e.Seq > 0
}

type opened struct {
	io.Reader
	file *os.File
}

func (o *opened) Close() error { return o.file.Close() }

func open(file string) (*opened, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	b := bufio.NewReaderSize(f, 1<<16)
	if head, _ := b.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return &opened{z, f}, nil
	}
	return &opened{b, f}, nil
}

// inOrder returns the files by the time of their first event, so that rotated ones may
// be named as a shell lists them.
func inOrder(files []string) ([]string, error) {
	type begun struct {
		name string
		at   time.Time
		seq  uint64
	}
	var all []begun
	for _, name := range files {
		f, err := open(name)
		if err != nil {
			return nil, err
		}
		var e journal.Event
		err = journal.NewReader(f).Next(&e)
		_ = f.Close() // only read
		switch {
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s: no event: allowed is a journal with one or more", name)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, begun{name, e.TS, e.Seq})
	}
	slices.SortStableFunc(all, func(a, b begun) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.seq, b.seq)) })
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].name
	}
	return names, nil
}

// Record reads a journal. It is strict: a line that is missing anywhere in the span that
// is asked for is an error, since requests that nobody sees would look like idle
// capacity.
func Record(s Source) (*Recording, error) {
	if len(s.Files) == 0 {
		return nil, errors.New("no journal: give one or more files")
	}
	files, err := inOrder(s.Files)
	if err != nil {
		return nil, err
	}
	b := &book{source: s, pools: map[string]*pool{}}
	for i, name := range files {
		if err := b.file(name, i+1 == len(files)); err != nil {
			return nil, err
		}
	}
	return b.recording(files)
}

// mostBack is how far the time of day may have been set back between two processes. Beyond it
// a file is there twice, or two processes ran at once.
const mostBack = time.Minute

// book is a journal while it is read.
type book struct {
	source Source
	pools  map[string]*pool

	begun    bool
	first    time.Time // event of the span
	end      time.Time // its last one
	process  time.Time // when the process began whose events are read
	seq      uint64
	at       time.Time // the last event, in the span or not
	wall     time.Time // what it has as its time of day
	kind     journal.Kind
	restarts int
	down     time.Duration
	switches int
	where    string // the file
	peer     bool   // other replicas serve a part

	early, late bool // there are events before and after the span
}

// pool is what is read of one.
type pool struct {
	open    map[string]*life
	done    []*life
	before  map[string]bool
	refused map[string]int
	shadow  int // admissions that were none
	admits  int
	out     int
}

// life is one request while it is read; times are of the day.
type life struct {
	r          Request
	arrived    time.Time
	dispatched time.Time
	first      time.Time
	done       time.Time
	over       bool
	generates  bool
}

func (b *book) file(name string, last bool) error {
	f, err := open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	r := journal.NewReader(f)
	b.where = name
	for torn := 0; ; {
		var e journal.Event
		err := r.Next(&e)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", name, err)
		}
		if r.Torn() > torn && !(err != nil && last) { // the end of a journal that is still written
			at := e.TS
			if err != nil {
				at = b.at
			}
			if wrong := b.gap(b.at, at, "a line is torn"); wrong != nil {
				return wrong
			}
		}
		if torn = r.Torn(); err != nil {
			return nil
		}
		if err := b.event(&e); err != nil {
			return err
		}
	}
}

// gap reports what is missing between two times, unless that is outside of what is asked
// for.
func (b *book) gap(from, to time.Time, what string) error {
	if !b.source.From.IsZero() && !to.After(b.source.From) || !b.source.To.IsZero() && !from.Before(b.source.To) || !b.begun {
		return nil
	}
	return fmt.Errorf("%s: %s between %s and %s: allowed is a journal without gaps, since requests that are missing would look like idle capacity; give the file that is missing, or --from and --to for a span without the gap",
		b.where, what, clock(from), clock(to))
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (b *book) event(e *journal.Event) error {
	var wrong error
	switch {
	case e.Kind == journal.Started && b.begun && b.wall.Sub(e.TS) > mostBack:
		wrong = fmt.Errorf("%s: a process began at %s, before the last event of another at %s: allowed is one process's journal after another's, each file once", b.where, clock(e.TS), clock(b.wall))
	case e.Kind == journal.Started:
		if b.begun && b.kind != journal.Stopped {
			wrong = b.gap(b.at, e.TS, "the process ended without writing so, and what it had not written yet is missing,")
		}
		if b.begun && b.inside(e.TS) {
			b.restarts++
			b.down += e.TS.Sub(b.at)
		}
		b.process = e.TS.Add(-time.Duration(e.Mono))
	case !b.begun:
		b.process = e.TS.Add(-time.Duration(e.Mono))
	case e.Kind == journal.Dropped:
		wrong = b.gap(b.at, e.TS, fmt.Sprintf("%d events were dropped", e.Count))
	case e.Seq <= b.seq:
		wrong = fmt.Errorf("%s: event %d at %s comes after event %d at %s: allowed is one process's journal, each file once", b.where, e.Seq, clock(e.TS), b.seq, clock(b.at))
	case e.Seq != b.seq+1:
		wrong = b.gap(b.at, e.TS, fmt.Sprintf("events %d to %d are missing", b.seq+1, e.Seq-1))
	}
	if wrong != nil {
		return wrong
	}
	b.seq, b.kind, b.wall = e.Seq, e.Kind, e.TS
	at := b.process.Add(time.Duration(e.Mono)) // the time of day may step, this does not
	if !b.begun || at.After(b.at) {
		b.at = at
	}
	b.begun = true
	if b.inside(at) {
		if b.first.IsZero() {
			b.first = at
		}
		b.end = at
	} else if at.Before(b.source.From) {
		b.early = true
	} else {
		b.late = true
	}
	if e.Kind == journal.Switched && b.inside(at) {
		b.switches++
	}
	if e.Kind == journal.Forwarded || e.Kind == journal.Arrived && e.Peer != "" {
		b.peer = b.peer || b.inside(at)
	}
	if e.Pool == "" {
		return nil
	}
	p := b.pools[e.Pool]
	if p == nil {
		p = &pool{open: map[string]*life{}, before: map[string]bool{}, refused: map[string]int{}}
		b.pools[e.Pool] = p
	}
	p.event(e, at, b.inside(at))
	return nil
}

func (b *book) inside(at time.Time) bool {
	return !at.Before(b.source.From) && (b.source.To.IsZero() || at.Before(b.source.To))
}

// event takes in what is a pool's.
func (p *pool) event(e *journal.Event, at time.Time, inside bool) {
	if e.Kind == journal.EngineState && e.State != admission.Ready.String() && inside {
		p.out++
	}
	if e.Request == "" {
		return
	}
	l := p.open[e.Request]
	if e.Kind == journal.Arrived && l == nil {
		if !inside {
			return
		}
		l = &life{arrived: at, generates: e.API != wire.Embeddings.String()}
		l.r.ID, l.r.Class, l.r.Tenant, l.r.Principal, l.r.Model, l.r.Stream = e.Request, e.Class, e.Tenant, e.Principal, e.Model, e.Stream
		l.r.PromptTokens = int(e.PromptTokens)
		if e.Declared {
			l.r.MaxTokens = int(e.MaxTokens)
		}
		l.r.Limits = admission.Objective{First: time.Duration(e.TTFTLimitNS), Token: time.Duration(e.TPOTLimitNS), Whole: time.Duration(e.E2ELimitNS)}
		p.open[e.Request] = l
		return
	}
	if l == nil {
		if inside && e.Kind == journal.Finished {
			p.before[e.Request] = true
		}
		return
	}
	switch e.Kind {
	case journal.Admitted:
		p.admits++
		if e.Shadow {
			p.shadow++
		}
	case journal.Dispatched:
		l.r.Engine = e.Engine
		if e.PieceTokens == 0 {
			l.r.Attempts++
		}
		if l.dispatched.IsZero() {
			l.dispatched = at
		}
	case journal.FirstToken:
		if l.first.IsZero() && e.PieceTokens == 0 {
			l.first = at
		}
	case journal.Finished:
		l.over, l.done = true, at
		l.r.Left = e.Cause == admission.CauseClientGone.String()
		l.r.Failed = !l.r.Left && e.Cause != admission.CauseFinished.String()
		if e.PromptTokens > 0 {
			l.r.PromptTokens = int(e.PromptTokens)
		}
		l.r.Cached, l.r.Output = int(e.CachedTokens), int(e.OutputTokens)
		p.done = append(p.done, l)
		delete(p.open, e.Request)
	case journal.Rejected:
		p.refused[e.Cause]++
		delete(p.open, e.Request)
	}
}

// recording makes one of a pool.
func (b *book) recording(files []string) (*Recording, error) {
	if b.peer {
		return nil, errors.New("the journal is of a fleet whose replicas forward requests to each other: allowed is the journal of a gateway that serves all of a pool's requests")
	}
	name, p, err := b.pool()
	if err != nil {
		return nil, err
	}
	// A span begins and ends where it was asked to, if the journal goes on there.
	if b.early {
		b.first = b.source.From
	}
	if b.late {
		b.end = b.source.To
	}
	if p.shadow > 0 && p.shadow < p.admits {
		return nil, fmt.Errorf("pool %s observed for a part of the time and enforced for another: allowed is one of the two; --from and --to choose a span", name)
	}
	r := &Recording{
		Pool: name, Files: files, Start: b.first, Length: b.end.Sub(b.first), Observed: p.shadow > 0,
		Refused: p.refused, Before: len(p.before), Unfinished: len(p.open), Restarts: b.restarts, Down: b.down, EngineOut: p.out, Switches: b.switches,
	}
	engines := map[string]bool{}
	for _, l := range p.done {
		if l.r.Engine != "" {
			engines[l.r.Engine] = true
		}
	}
	r.Engines = slices.Sorted(maps.Keys(engines))
	only := b.source.Engine
	switch {
	case only != "" && !engines[only]:
		return nil, fmt.Errorf("--engine-name is %q: the engines of pool %s that served requests are %s", only, name, strings.Join(r.Engines, ", "))
	case only == "" && len(r.Engines) > 1:
		return nil, fmt.Errorf("pool %s has %d engines, %s: allowed is one at a time; --engine-name chooses which", name, len(r.Engines), strings.Join(r.Engines, ", "))
	}
	if err := r.take(p, only); err != nil {
		return nil, err
	}
	return r, nil
}

// pool is the one that is asked for.
func (b *book) pool() (string, *pool, error) {
	if b.source.Pool != "" {
		if p := b.pools[b.source.Pool]; p != nil {
			return b.source.Pool, p, nil
		}
		return "", nil, fmt.Errorf("--pool is %q: the journal's are %s", b.source.Pool, strings.Join(slices.Sorted(maps.Keys(b.pools)), ", "))
	}
	var used []string
	for _, name := range slices.Sorted(maps.Keys(b.pools)) {
		if p := b.pools[name]; len(p.done) > 0 {
			used = append(used, name)
		}
	}
	switch len(used) {
	case 0:
		return "", nil, errors.New("no request ended in the journal's time: allowed is a journal of a gateway that served some")
	case 1:
		return used[0], b.pools[used[0]], nil
	}
	return "", nil, fmt.Errorf("the journal has several pools, %s: --pool chooses which", strings.Join(used, ", "))
}

// take keeps what can be replayed.
func (r *Recording) take(p *pool, engine string) error {
	ended := 0
	since := func(t time.Time) time.Duration {
		if t.IsZero() {
			return -1
		}
		return t.Sub(r.Start)
	}
	for _, l := range p.done {
		if engine != "" && l.r.Engine != engine || l.dispatched.IsZero() {
			continue // its client left before anything ran, or it went elsewhere
		}
		ended++
		q := l.r
		if !l.generates {
			q.Output = 1 // what an engine does with a prompt, it does in one step
		}
		if q.Output < 1 || q.PromptTokens < 1 || q.Output > trace.MaxTokens || q.PromptTokens > trace.MaxTokens {
			if !q.Left && !q.Failed {
				r.Uncounted++
			}
			continue
		}
		q.Arrival = max(since(l.arrived), 0).Round(time.Microsecond)
		q.Dispatched, q.First, q.Done = since(l.dispatched), since(l.first), since(l.done)
		r.Requests = append(r.Requests, q)
	}
	slices.SortFunc(r.Requests, func(a, b Request) int { return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.ID, b.ID)) })
	if r.Uncounted*20 > ended {
		return fmt.Errorf("%w: %d of %d answers of pool %s have no output_tokens or no prompt_tokens: allowed is one in 20", ErrTokens, r.Uncounted, ended, r.Pool)
	}
	return nil
}

// Entries yields the requests as a log's, for trace.Collect.
func (r *Recording) Entries() iter.Seq2[trace.Entry, error] {
	return func(yield func(trace.Entry, error) bool) {
		for i := range r.Requests {
			if !yield(r.Requests[i].Entry, nil) {
				return
			}
		}
	}
}

// Trace is the recorded arrivals as a workload.
func (r *Recording) Trace() (*trace.Trace, error) {
	t, err := trace.Collect("journal", 0, r.Entries())
	if err != nil {
		return nil, err
	}
	t.Workload.DurationMs = max(t.Workload.DurationMs, int(r.Length/time.Millisecond))
	t.Skipped = r.Uncounted + r.Unfinished
	for _, n := range r.Refused {
		t.Skipped += n
	}
	return t, nil
}

// RefusedAll counts the refused ones.
func (r *Recording) RefusedAll() (n int) {
	for _, k := range r.Refused {
		n += k
	}
	return n
}
