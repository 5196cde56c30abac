package journal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// flushEvery is how long an event may stay in memory.
const flushEvery = 100 * time.Millisecond

// Options of a Writer.
type Options struct {
	// Buffer is how many events may wait, at least MinBuffer.
	Buffer int
	// Start is the moment at which Event.Mono was 0, as returned by time.Now.
	Start time.Time
	// Version of the process, for its started event.
	Version string
}

// Writer appends events to a journal. Its methods may be called from any
// goroutine.
type Writer struct {
	opts Options
	out  io.Writer
	wake chan struct{} // the buffer is half full
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	buf    []Event // what waits; its capacity is the bound
	seq    uint64
	lost   gap // to the full buffer, since the last flush
	closed bool
	stats  Stats

	// The writing goroutine's own.
	spare   []Event
	untold  gap  // what is missing in the file, which does not say so yet
	midLine bool // the file took a part of a line last
	lines   bytes.Buffer
	enc     *encoder

	closeOnce sync.Once
	closeErr  error
}

// gap is a number of lost events without any other between them.
type gap struct {
	count uint64
	last  uint64 // the Seq of the last one
}

// Stats counts what a Writer has done.
type Stats struct {
	Written uint64 // events that the file took
	Dropped uint64 // events that were lost: the buffer was full, or the file did not take them
	Err     error  // the last failure to write, nil once writing works again
}

// Open opens the file at path for appending, and makes it with mode 0600 if
// there is none.
func Open(path string, o Options) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	cut, err := endsMidLine(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	return newWriter(f, o, cut), nil
}

// endsMidLine tells whether f was cut within a line, by a crash or a full disk.
func endsMidLine(f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false, err
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], info.Size()-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}

// NewWriter writes to out, which is synced and closed with the Writer if it
// has such methods.
func NewWriter(out io.Writer, o Options) *Writer { return newWriter(out, o, false) }

func newWriter(out io.Writer, o Options, midLine bool) *Writer {
	o.Buffer = max(o.Buffer, MinBuffer)
	w := &Writer{
		opts: o, out: out, midLine: midLine,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		buf: make([]Event, 0, o.Buffer), spare: make([]Event, 0, o.Buffer),
	}
	w.enc = newEncoder()
	w.Append(&Event{Kind: Started, Mono: w.now(), Version: o.Version})
	go w.run()
	return w
}

func (w *Writer) now() int64 { return int64(time.Since(w.opts.Start)) }

// Append copies e into the buffer, with its Seq, and never waits for the file.
// The caller sets Mono and Kind, not Seq or TS. After Close, and while the
// buffer is full, the event is dropped and counted.
func (w *Writer) Append(e *Event) {
	w.mu.Lock()
	w.seq++
	if w.closed || len(w.buf) == cap(w.buf) {
		w.lost = gap{w.lost.count + 1, w.seq}
		w.stats.Dropped++
		w.mu.Unlock()
		return
	}
	n := len(w.buf)
	w.buf = w.buf[:n+1]
	w.buf[n] = *e
	w.buf[n].Seq = w.seq
	half := n+1 == cap(w.buf)/2
	w.mu.Unlock()
	if half {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Stats returns the counts so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Close writes what waits and a stopped event, syncs, and closes the file. The
// error is the first of these that failed.
func (w *Writer) Close() error {
	w.closeOnce.Do(func() {
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		close(w.stop)
		<-w.done
		w.closeErr = w.Stats().Err
		if f, ok := w.out.(interface{ Sync() error }); ok && w.closeErr == nil {
			w.closeErr = f.Sync()
		}
		if f, ok := w.out.(io.Closer); ok {
			if err := f.Close(); w.closeErr == nil {
				w.closeErr = err
			}
		}
	})
	return w.closeErr
}

func (w *Writer) run() {
	defer close(w.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.wake:
		case <-w.stop:
			w.flush(false)
			w.flush(true)
			return
		}
		w.flush(false)
	}
}

// flush writes everything that waits; last also the stopped event.
func (w *Writer) flush(last bool) {
	w.mu.Lock()
	batch, lost := w.buf, w.lost
	w.buf, w.spare, w.lost = w.spare[:0], batch, gap{}
	stopped := Event{Kind: Stopped}
	if last {
		w.seq++
		stopped.Seq = w.seq
	}
	w.mu.Unlock()

	w.lines.Reset()
	if w.untold.count > 0 {
		w.encode(&Event{Kind: Dropped, Seq: w.untold.last, Count: w.untold.count, Mono: w.now()})
	}
	expected := len(batch)
	for i := range batch {
		w.encode(&batch[i])
	}
	if last {
		stopped.Mono = w.now()
		w.encode(&stopped)
	}

	lines, err := w.write()
	if w.untold.count > 0 && lines > 0 {
		w.untold = gap{}
		expected++
	}
	unwritten := uint64(max(expected-lines, 0))
	if unwritten > 0 && len(batch) > 0 {
		w.untold = gap{w.untold.count + unwritten, batch[len(batch)-1].Seq}
	}
	// What a full buffer lost came after this batch and before the next.
	if lost.count > 0 {
		w.untold = gap{w.untold.count + lost.count, lost.last}
	}
	clear(batch) // lets go of the strings

	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Written += uint64(lines)
	w.stats.Dropped += unwritten
	w.stats.Err = err
}

func (w *Writer) encode(e *Event) {
	e.TS = w.opts.Start.Add(time.Duration(e.Mono)).UTC()
	if err := w.enc.append(&w.lines, e); err != nil {
		panic("journal: an event can't be encoded: " + err.Error()) // it has no type that could fail
	}
}

// write hands w.lines to the file and returns how many lines it took.
func (w *Writer) write() (int, error) {
	if w.lines.Len() == 0 {
		return 0, w.stats.Err
	}
	if w.midLine {
		// The rest of a cut line is lost; what follows begins a line of its own.
		if _, err := w.out.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		w.midLine = false
	}
	b := w.lines.Bytes()
	n, err := w.out.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if n > 0 {
		w.midLine = b[n-1] != '\n'
	}
	return bytes.Count(b[:n], []byte{'\n'}), err
}
