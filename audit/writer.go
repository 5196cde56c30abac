package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Line is a record as it is stored.
type Line struct {
	Seq  uint64
	JSON []byte // without a line end
}

// Head is where a chain is.
type Head struct {
	Seq  uint64
	Hash string // of the last line; "" of none
}

// Hash is what the line after this one has in Prev.
func (l Line) Hash() string {
	sum := sha256.Sum256(l.JSON)
	return hex.EncodeToString(sum[:])
}

// Sink stores lines. One goroutine calls it.
type Sink interface {
	// Open returns where the stored chain is, which the next line follows. It is asked
	// until it answers.
	Open(context.Context) (Head, error)
	// Write stores lines and returns how many of them, from the first on, are stored; of
	// those it says nothing of it will be given the rest again. Lines may come that it has
	// stored and could not say so.
	Write(context.Context, []Line) (int, error)
	Close() error
}

// minBuffer is the least that Options.Buffer is taken for.
const minBuffer = 16

// Options of a Writer.
type Options struct {
	Buffer          int // records that may wait
	Source, Version string
	Required        bool
	Log             *slog.Logger
	Metrics         prometheus.Registerer
}

const (
	flushEvery = 100 * time.Millisecond // how long a record may stay in memory
	writeMost  = 512                    // lines a write
	writeTime  = 10 * time.Second
	firstPause = 100 * time.Millisecond // between two tries, doubled
	mostPause  = 5 * time.Second
	closeTime  = 5 * time.Second // that a sink gets at the end
)

// Writer writes records to a sink. Its methods may be called from any goroutine.
type Writer struct {
	opts Options
	sink Sink
	wake chan struct{} // the buffer is half full
	stop chan struct{}
	done chan struct{}

	hard context.Context // ends what the sink is at
	kill context.CancelFunc

	mu     sync.Mutex
	buf    []Record // what waits; its capacity is the bound
	seq    uint64   // counts from the process's start; base is added
	lost   gap      // behind buf
	closed bool
	err    error // the sink's last, nil while it is well
	since  time.Time

	// The writing goroutine's own.
	spare   []Record
	head    Head
	base    uint64
	pending []Line // encoded, in order, not stored

	written, dropped prometheus.Counter
	failing          prometheus.Gauge
	closeOnce        sync.Once
	closeErr         error
}

// gap is a number of lost records without any other between them.
type gap struct{ count, last uint64 }

// NewWriter begins to write to a sink, which is closed with it.
func NewWriter(sink Sink, o Options) *Writer {
	o.Buffer = max(o.Buffer, minBuffer)
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_audit_records_total",
		Help: "Audit records: written, which the sink has stored, and lost, for which there was no room while it failed or was slow. Each loss is a gap record when the sink is back.",
	}, []string{"outcome"})
	w := &Writer{
		opts: o, sink: sink, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		buf: make([]Record, 0, o.Buffer), spare: make([]Record, 0, o.Buffer),
		written: records.WithLabelValues("written"), dropped: records.WithLabelValues("lost"),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "headgate_audit_failing", Help: "1 while the audit sink does not take records, which wait as long as there is room.",
		}),
	}
	w.hard, w.kill = context.WithCancel(context.Background())
	o.Metrics.MustRegister(records, w.failing, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "headgate_audit_waiting", Help: "Audit records that wait for the sink, of audit.buffer that may.",
	}, func() float64 { w.mu.Lock(); defer w.mu.Unlock(); return float64(len(w.buf)) }))
	w.Append(&Record{Kind: Started, Source: o.Source, Version: o.Version})
	go w.run()
	return w
}

// Append copies r, gives it its number and its time, and never waits for the sink. After
// Close, and while there is no room, the record is lost and counted. Of a nil Writer
// nothing is written down.
func (w *Writer) Append(r *Record) {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.seq++
	if w.closed || len(w.buf) == cap(w.buf) {
		w.lost = gap{w.lost.count + 1, w.seq}
		w.mu.Unlock()
		w.dropped.Inc()
		return
	}
	n := len(w.buf)
	w.buf = w.buf[:n+1]
	w.buf[n] = *r
	w.buf[n].Seq, w.buf[n].TS = w.seq, time.Now().UTC()
	half := n+1 == cap(w.buf)/2
	w.mu.Unlock()
	if half {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Problem says what is wrong with the sink, "" if nothing is.
func (w *Writer) Problem() string {
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		return ""
	}
	return fmt.Sprintf("audit records wait since %s, and %d are lost: %v", w.since.UTC().Format(time.RFC3339), w.lost.count, w.err)
}

// Ready is an error while records are lost that have to be written down.
func (w *Writer) Ready() error {
	if w == nil || !w.opts.Required {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost.count > 0 {
		return fmt.Errorf("audit records are lost, %d so far, since the sink fails or is slow", w.lost.count)
	}
	return nil
}

// Close writes what waits and a stopped record, and closes the sink. It gives a sink that
// fails some seconds; the error says what is lost then.
func (w *Writer) Close() error {
	if w == nil {
		return nil
	}
	w.closeOnce.Do(func() {
		w.mu.Lock()
		if !w.closed && len(w.buf) < cap(w.buf) {
			w.seq++
			w.buf = append(w.buf, Record{Kind: Stopped, Seq: w.seq, TS: time.Now().UTC()})
		}
		w.closed = true
		w.mu.Unlock()
		defer time.AfterFunc(closeTime, w.kill).Stop()
		close(w.stop)
		<-w.done
		w.kill()
		w.mu.Lock()
		defer w.mu.Unlock()
		left := uint64(len(w.pending)+len(w.buf)) + w.lost.count
		if left > 0 {
			w.closeErr = fmt.Errorf("audit: the last %d records are lost: the sink says %v", left, w.err)
		}
		if err := w.sink.Close(); w.closeErr == nil && err != nil {
			w.closeErr = fmt.Errorf("audit: %w", err)
		}
	})
	return w.closeErr
}

func (w *Writer) run() {
	defer close(w.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	if !w.persist(func() error {
		head, err := w.sink.Open(w.hard)
		w.head, w.base = head, head.Seq
		return err
	}) {
		return
	}
	for ending := false; ; {
		for w.take() {
			if !w.store() {
				return
			}
		}
		if ending {
			w.opts.Log.Info("audit ends", "seq", w.head.Seq, "head", w.head.Hash)
			return
		}
		select {
		case <-tick.C:
		case <-w.wake:
		case <-w.stop:
			ending = true
		}
	}
}

// take encodes what waits, with the gap behind it; false: nothing does.
func (w *Writer) take() bool {
	w.mu.Lock()
	batch, lost := w.buf, w.lost
	w.buf, w.spare, w.lost = w.spare[:0], batch, gap{}
	w.mu.Unlock()
	for i := range batch {
		w.encode(&batch[i])
	}
	if lost.count > 0 {
		w.encode(&Record{Kind: Gap, Seq: lost.last, TS: time.Now().UTC(), Count: lost.count})
		w.opts.Log.Error("audit records were lost", "records", lost.count)
	}
	clear(batch) // lets go of the strings
	return len(w.pending) > 0
}

func (w *Writer) encode(r *Record) {
	r.Seq += w.base
	r.Prev = w.head.Hash
	b, err := json.Marshal(r)
	if err != nil {
		panic("audit: a record can't be encoded: " + err.Error()) // it has no type that could fail
	}
	l := Line{r.Seq, b}
	w.head = Head{r.Seq, l.Hash()}
	w.pending = append(w.pending, l)
}

// store hands everything that is encoded to the sink; false: it has to end.
func (w *Writer) store() bool {
	return w.persist(func() error {
		for len(w.pending) > 0 {
			ctx, cancel := context.WithTimeout(w.hard, writeTime)
			n, err := w.sink.Write(ctx, w.pending[:min(len(w.pending), writeMost)])
			cancel()
			w.written.Add(float64(n))
			w.pending = w.pending[n:]
			if err != nil {
				return err
			}
		}
		w.pending = nil
		return nil
	})
}

// persist has something done until it is; false: the time of the end is over. What goes
// wrong is said when it begins and when it is over.
func (w *Writer) persist(do func() error) bool {
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := do()
		w.state(err)
		if err == nil {
			return true
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-w.hard.Done():
			wait.Stop()
			return false
		}
	}
}

func (w *Writer) state(err error) {
	w.mu.Lock()
	was, since := w.err, w.since
	if w.err = err; was == nil {
		w.since = time.Now()
	}
	w.mu.Unlock()
	switch {
	case err != nil && was == nil:
		w.failing.Set(1)
		w.opts.Log.Error("the audit sink fails; records wait as long as there is room", "err", err)
	case err == nil && was != nil:
		w.failing.Set(0)
		w.opts.Log.Info("the audit sink takes records again", "after", time.Since(since).Round(time.Millisecond))
	}
}
