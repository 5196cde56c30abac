// Package sse frames server-sent events: it cuts a byte stream into events
// without changing or copying them, and writes new ones.
//
// A proxy wants two things of a stream that pull apart: to pass the bytes on
// exactly as they came and as soon as they came, and to know what they say.
// Reader serves both with one buffer. An Event is a window on the bytes read
// (Raw) together with the part of them that is payload (Data); an event is
// handed out the moment its blank line is in the buffer, and a read is only
// made when no whole event is left there.
//
// The grammar is that of the HTML standard, "Server-sent events", 9.2.5 and
// 9.2.6, with one liberty: Next tells about blocks that a browser would not
// dispatch (comments, ids, stray blank lines), because a proxy must pass them
// on too.
package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge is wrapped by the error of an event larger than the limit given
// to NewReader.
var ErrTooLarge = errors.New("server-sent event too large")

// Event is one block of a stream. Its slices are valid until the next call of
// Next.
type Event struct {
	// Raw is the block exactly as it came, with its closing blank line.
	Raw []byte
	// Name is the value of the last event field; "" means "message".
	Name string
	// Data is the values of the data fields, joined by \n.
	Data []byte
	// Comment tells that the block has no data field: a comment or keep-alive,
	// an id, a bare blank line. Nothing is dispatched for such a block.
	Comment bool
}

const (
	firstBuffer = 4 << 10
	keptBuffer  = 64 << 10 // a larger one is given back once it is empty
	keptNames   = 16
	emptyReads  = 100
)

// Reader reads events. It is not safe for concurrent use.
//
// A line may end with LF, CR or CRLF, and a CR that is the last byte read so
// far may yet be the first half of a CRLF. Waiting for the next byte would
// hold back an event that is complete, so the CR ends the line at once; where
// the LF follows in a later read it becomes the first byte of the next event's
// Raw. Names, data and the concatenation of all Raw are therefore the same for
// every way in which the bytes may be cut into reads; the place of such an LF
// is not.
type Reader struct {
	src io.Reader
	max int
	err error // of src; told once the buffer holds no whole event

	buf   []byte
	start int // of the block being read, in buf
	line  int // of the line being read
	pos   int // scanned up to here
	end   int // of what was read

	begun    bool // the place of a byte order mark has been passed
	halfLine bool // the last line ended with a CR, its LF may follow
	orphan   int  // 1 when Raw begins with the LF of the event before

	// The block so far. A single data line is a window on buf, relative to
	// start; from the second on they are joined in joined.
	name           string
	dataLines      int
	dataAt, dataTo int
	joined         []byte
	names          map[string]string
}

// NewReader returns a Reader of events of at most maxEvent bytes each,
// everything included but an LF after the final CR.
func NewReader(r io.Reader, maxEvent int) *Reader {
	return &Reader{src: r, max: maxEvent}
}

// Next returns the next event.
//
// At the end of the stream the error is io.EOF if it fell between two events,
// and io.ErrUnexpectedEOF if it fell inside one. By the standard such an
// unfinished block is not an event; it is returned beside io.ErrUnexpectedEOF
// all the same, because servers exist that leave out the blank line after their
// terminator, and the caller can tell whether Data is one. Any other error is
// the source's own, or wraps ErrTooLarge. Errors are final.
func (r *Reader) Next() (Event, error) {
	r.start, r.line = r.pos, r.pos
	r.name, r.dataLines, r.joined, r.orphan = "", 0, r.joined[:0], 0
	for {
		for (r.begun || r.begin()) && r.pos < r.end {
			if r.halfLine {
				r.halfLine = false
				if r.buf[r.pos] == '\n' {
					r.skipLF()
					continue
				}
			}
			at := lineEnd(r.buf[r.pos:r.end])
			if at < 0 {
				r.pos = r.end
				break
			}
			stop := r.pos + at
			if stop+1-r.start-r.orphan > r.max {
				return r.tooLarge()
			}
			cr, line := r.buf[stop] == '\r', r.line
			r.pos, r.line = stop+1, stop+1
			if line < stop {
				r.halfLine = cr
				r.field(line, stop)
				continue
			}
			if cr {
				if r.pos == r.end {
					r.halfLine = true
				} else if r.buf[r.pos] == '\n' {
					r.pos++
				}
			}
			return r.event(), nil
		}
		if r.pos-r.start-r.orphan > r.max {
			return r.tooLarge()
		}
		if r.err != nil {
			return r.tail()
		}
		r.fill()
	}
}

// More tells that Next has an event without another read, since its blank line is there.
// Where it says no there may be one all the same.
func (r *Reader) More() bool {
	rest := r.buf[r.pos:r.end]
	return bytes.Contains(rest, []byte("\n\n")) || bytes.Contains(rest, []byte("\r\n\r\n"))
}

// skipLF passes the second half of a CRLF whose first half came in an earlier
// read, or ended the line before.
func (r *Reader) skipLF() {
	if r.pos == r.start {
		r.orphan = 1
	}
	r.pos++
	r.line = r.pos
}

// event is the block from start to pos.
func (r *Reader) event() Event {
	raw := r.buf[r.start:r.pos]
	e := Event{Raw: raw, Name: r.name, Comment: r.dataLines == 0}
	switch {
	case r.dataLines == 1:
		e.Data = raw[r.dataAt:r.dataTo]
	case r.dataLines > 1:
		e.Data = r.joined
	}
	return e
}

func (r *Reader) tooLarge() (Event, error) {
	r.err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, r.max)
	r.start, r.pos, r.end = 0, 0, 0
	return Event{}, r.err
}

// tail ends the stream with what the source said.
func (r *Reader) tail() (Event, error) {
	if r.err != io.EOF || r.pos == r.start+r.orphan {
		r.start, r.pos, r.end = 0, 0, 0
		return Event{}, r.err
	}
	if r.line < r.pos {
		r.field(r.line, r.pos)
	}
	r.err = io.ErrUnexpectedEOF
	return r.event(), r.err
}

// field takes in the line buf[from:to], which is not blank. One without a colon
// is a field with an empty value; fields other than data and event mean nothing
// here.
func (r *Reader) field(from, to int) {
	name, value, found := bytes.Cut(r.buf[from:to], []byte{':'})
	if found && len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "event":
		r.name = r.intern(value)
	case "data":
		at := to - len(value) - r.start
		switch r.dataLines++; r.dataLines {
		case 1:
			r.dataAt, r.dataTo = at, at+len(value)
		case 2:
			r.joined = append(r.joined, r.buf[r.start+r.dataAt:r.start+r.dataTo]...)
			fallthrough
		default:
			r.joined = append(append(r.joined, '\n'), value...)
		}
	}
}

// intern returns the name as a string, the same one each time: streams repeat
// a handful of names, and an event is not to cost an allocation.
func (r *Reader) intern(name []byte) string {
	if s, ok := r.names[string(name)]; ok {
		return s
	}
	s := string(name)
	if r.names == nil {
		r.names = make(map[string]string)
	}
	if len(r.names) < keptNames {
		r.names[s] = s
	}
	return s
}

// fill makes room and reads once. What is before start has been handed out.
func (r *Reader) fill() {
	switch {
	case r.start == r.end:
		r.pos, r.end = 0, 0
		r.start, r.line = 0, 0
		if r.buf == nil || cap(r.buf) > keptBuffer {
			r.buf = make([]byte, firstBuffer)
		}
	case r.end == len(r.buf) && r.start > 0:
		r.moveTo(r.buf)
	case r.end == len(r.buf):
		r.moveTo(make([]byte, 2*len(r.buf)))
	}
	for range emptyReads {
		var n int
		n, r.err = r.src.Read(r.buf[r.end:])
		r.end += n
		if n > 0 || r.err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

func (r *Reader) moveTo(buf []byte) {
	copy(buf, r.buf[r.start:r.end])
	r.line -= r.start
	r.pos -= r.start
	r.end -= r.start
	r.start = 0
	r.buf = buf
}

// begin drops a byte order mark at the very start, and reports whether enough
// was read to tell. The mark belongs to the stream and to no event: passed on
// after a comment of the proxy's own, it would spoil the field that follows.
func (r *Reader) begin() bool {
	const bom = "\xef\xbb\xbf"
	if r.end < len(bom) && string(r.buf[:r.end]) == bom[:r.end] && r.err == nil {
		return false
	}
	if bytes.HasPrefix(r.buf[:r.end], []byte(bom)) {
		r.start, r.line, r.pos = len(bom), len(bom), len(bom)
	}
	r.begun = true
	return true
}

// lineEnd returns the index of the first LF or CR, or -1. Two searches for one
// byte each are several times as fast as one for either.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}
