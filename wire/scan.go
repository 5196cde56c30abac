package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds the nesting of any JSON that is read, so that a body of a
// million brackets costs no stack. Schemas in use nest a few dozen deep.
const maxDepth = 128

// syntaxError tells where a text stops being JSON.
type syntaxError struct {
	at   int
	what string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.what, e.at) }

// scanner walks JSON text in place, strictly by RFC 8259, and allocates
// nothing. Its caller drives it through the values it cares for and has it skip
// the others, so one pass both validates a text and finds what is wanted in it.
//
// Alternatives: encoding/json builds trees or needs a struct that knows every
// field; gjson finds one path at a time, assumes the text to be valid, hides
// duplicate keys, and unescapes (allocates) what is only to be counted.
//
// The first error sticks: every method then reports "nothing more", so that
// loops end by themselves and the error is looked at once, at the end.
type scanner struct {
	b     []byte
	i     int
	depth int
	fresh bool // nothing has come yet in the innermost array or object
	err   *syntaxError
	keyAt int      // where the last key begins, at its quote
	keyTo int      // and where it ends, after its quote
	key   [48]byte // an unescaped key; longer ones are no field that we know
}

// check tells whether b is one JSON value and nothing else.
func check(b []byte) error {
	s := scanner{b: b}
	s.skip()
	s.finish()
	if s.err != nil {
		return s.err
	}
	return nil
}

func (s *scanner) fail(at int, what string) {
	if s.err == nil {
		s.err = &syntaxError{at, what}
	}
	s.i = len(s.b)
}

// unexpected fails on the byte at i.
func (s *scanner) unexpected(want string) {
	if s.err != nil {
		return
	}
	if s.i >= len(s.b) {
		s.fail(len(s.b), "unexpected end, want "+want)
		return
	}
	r, n := utf8.DecodeRune(s.b[s.i:])
	if r == utf8.RuneError && n <= 1 {
		s.fail(s.i, fmt.Sprintf("unexpected byte 0x%02x, want %s", s.b[s.i], want))
		return
	}
	s.fail(s.i, fmt.Sprintf("unexpected %q, want %s", r, want))
}

// peek passes white space and returns the byte that follows, 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// finish fails if anything but white space is left.
func (s *scanner) finish() {
	if s.peek(); s.err == nil && s.i < len(s.b) {
		s.unexpected("the end")
	}
}

// open enters an array or object, whose bracket is the next byte.
func (s *scanner) open() {
	if s.depth++; s.depth > maxDepth {
		s.fail(s.i, fmt.Sprintf("nesting deeper than %d levels", maxDepth))
		return
	}
	s.i++
	s.fresh = true
}

// next moves to the next item before the closing bracket, which it passes when
// there is none.
func (s *scanner) next(closing byte) bool {
	c := s.peek()
	if s.err != nil {
		return false
	}
	if c == closing {
		s.i++
		s.depth--
		s.fresh = false
		return false
	}
	if !s.fresh {
		if c != ',' {
			s.unexpected("',' or '" + string(rune(closing)) + "'")
			return false
		}
		s.i++
	}
	s.fresh = false
	return true
}

// elem moves to the next element of the array, false after the last.
func (s *scanner) elem() bool { return s.next(']') }

// member moves to the value of the object's next member and returns its key,
// unescaped; the key is valid until the next call. It is false after the last.
func (s *scanner) member() (key []byte, ok bool) {
	if !s.next('}') {
		return nil, false
	}
	if s.peek() != '"' {
		s.unexpected("a key")
		return nil, false
	}
	s.keyAt = s.i
	escaped := s.skipString()
	if s.err != nil {
		return nil, false
	}
	s.keyTo = s.i
	key = s.b[s.keyAt+1 : s.keyTo-1]
	if escaped {
		key = s.unescapeKey(key)
	}
	if s.peek() != ':' {
		s.unexpected("':'")
		return nil, false
	}
	s.i++
	s.peek()
	return key, s.err == nil
}

// unescapeKey returns the key as a reader of the JSON sees it, or "" if it is
// longer than any key that matters.
func (s *scanner) unescapeKey(raw []byte) []byte {
	key := s.key[:0]
	for len(raw) > 0 {
		r, n := unescape(raw)
		if len(key)+utf8.UTFMax > cap(key) {
			return nil
		}
		if r >= 0 {
			key = utf8.AppendRune(key, r)
		} else {
			key = append(key, raw[0])
		}
		raw = raw[n:]
	}
	return key
}

// unescape reads the escape at the start of valid string content and returns
// its rune and its length; the rune is -1, the length 1, where there is none.
func unescape(b []byte) (r rune, n int) {
	if b[0] != '\\' {
		return -1, 1
	}
	switch c := b[1]; c {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = hex4(b[2:])
		if r>>10 == 0xd800>>10 && len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
			if low := hex4(b[8:]); low>>10 == 0xdc00>>10 {
				return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, 12
			}
		}
		return r, 6
	default:
		return rune(c), 2
	}
}

// hex4 is the value of four hex digits, -1 if they are not.
func hex4(b []byte) (r rune) {
	if len(b) < 4 {
		return -1
	}
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// value skips the next value and returns its text.
func (s *scanner) value() []byte {
	s.peek()
	from := s.i
	s.skip()
	if s.err != nil {
		return nil
	}
	return s.b[from:s.i]
}

// skip passes one value.
func (s *scanner) skip() {
	switch c := s.peek(); c {
	case '"':
		s.skipString()
	case '{':
		for s.open(); ; s.skip() {
			if _, ok := s.member(); !ok {
				return
			}
		}
	case '[':
		for s.open(); s.elem(); {
			s.skip()
		}
	case 't':
		s.word("true")
	case 'f':
		s.word("false")
	case 'n':
		s.word("null")
	default:
		s.number()
	}
}

func (s *scanner) word(w string) {
	if !bytes.HasPrefix(s.b[s.i:], []byte(w)) {
		s.unexpected("a value")
		return
	}
	s.i += len(w)
}

func (s *scanner) number() {
	at := func() byte {
		if s.i < len(s.b) {
			return s.b[s.i]
		}
		return 0
	}
	digits := func() {
		if c := at(); c < '0' || c > '9' {
			s.unexpected("a digit")
			return
		}
		for c := at(); '0' <= c && c <= '9'; c = at() {
			s.i++
		}
	}
	switch c := at(); {
	case c == '-':
		s.i++
	case c < '0' || c > '9':
		s.unexpected("a value")
		return
	}
	if at() == '0' {
		s.i++
	} else {
		digits()
	}
	if at() == '.' {
		s.i++
		digits()
	}
	if at()|0x20 == 'e' {
		s.i++
		if c := at(); c == '+' || c == '-' {
			s.i++
		}
		digits()
	}
}

// skipString passes the string that starts at i and tells whether it has
// escapes. Base64 media make up most of a large body, so eight bytes at a time.
func (s *scanner) skipString() (escaped bool) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	from := s.i
	i := from + 1
	for {
		for i+8 <= len(s.b) {
			w := binary.LittleEndian.Uint64(s.b[i:])
			quote := w ^ '"'*ones
			slash := w ^ '\\'*ones
			// A byte's high bit is set where the byte is ", \ or below 0x20;
			// a borrow can set one too many, but only above a true one.
			hit := ((quote - ones) &^ quote) | ((slash - ones) &^ slash) | ((w - 0x20*ones) &^ w)
			if hit &= highs; hit != 0 {
				i += bits.TrailingZeros64(hit) / 8
				break
			}
			i += 8
		}
		for i < len(s.b) && s.b[i] != '"' && s.b[i] != '\\' && s.b[i] >= 0x20 {
			i++
		}
		if i >= len(s.b) {
			s.fail(len(s.b), fmt.Sprintf("unexpected end in the string that begins at byte %d", from))
			return escaped
		}
		switch c := s.b[i]; c {
		case '"':
			s.i = i + 1
			return escaped
		case '\\':
			escaped = true
			n := escapeLen(s.b[i:])
			if n == 0 {
				s.fail(i, "invalid escape")
				return escaped
			}
			i += n
		default:
			s.fail(i, fmt.Sprintf("unescaped control character 0x%02x in a string", c))
			return escaped
		}
	}
}

// escapeLen is the length of the escape that b begins with, 0 if it is invalid.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if hex4(b[2:]) >= 0 {
			return 6
		}
	}
	return 0
}
