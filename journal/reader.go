package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxLine bounds what a reader holds of one event, in bytes.
const maxLine = 64 << 10

// Reader streams the events of a journal back.
//
// It is strict: a line that isn't an event of a known kind is an error. Only
// where a crash or a full disk cut a line is it skipped and counted: at the
// end of the file, and before a started or dropped event.
type Reader struct {
	in   *bufio.Reader
	line int
	torn int
	err  error // to be returned from now on
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(r, maxLine)} }

// Torn returns how many cut lines were skipped so far.
func (r *Reader) Torn() int { return r.torn }

// Next reads the next event into e. The error is io.EOF at the end, else what
// is wrong in which line; it stays.
func (r *Reader) Next(e *Event) error {
	if r.err == nil {
		r.err = r.advance(e)
	}
	return r.err
}

// advance skips cut lines if what follows them explains the cut.
func (r *Reader) advance(e *Event) error {
	var first error
	for cut := 0; ; cut++ {
		whole, err := r.read(e)
		var syntax *json.SyntaxError
		switch {
		case err == nil && (cut == 0 || e.Kind == Started || e.Kind == Dropped):
			r.torn += cut
			return nil
		case err == nil || err == io.EOF && cut > 0:
			return first
		case !errors.As(err, &syntax):
			return cmp.Or(first, err)
		case !whole:
			r.torn += cut + 1
			return io.EOF
		}
		first = cmp.Or(first, err)
	}
}

// read reads one line; whole tells whether it had its end.
func (r *Reader) read(e *Event) (whole bool, err error) {
	r.line++
	b, err := r.in.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return false, fmt.Errorf("journal line %d: longer than the allowed %d bytes", r.line, maxLine)
	case err == io.EOF && len(b) == 0:
		return false, io.EOF
	case err != nil && err != io.EOF:
		return false, fmt.Errorf("journal line %d: %w", r.line, err)
	}
	whole = err == nil
	*e = Event{}
	if err := json.Unmarshal(bytes.TrimSuffix(b, []byte{'\n'}), e); err != nil {
		return whole, fmt.Errorf("journal line %d: %w", r.line, err)
	}
	if e.Kind == "" {
		return whole, fmt.Errorf("journal line %d: no kind: allowed is an event of this journal", r.line)
	}
	return whole, nil
}
