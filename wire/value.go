package wire

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"
)

// text returns the string that a valid JSON string stands for; a value of
// another kind is returned as it is written. Lone surrogates become U+FFFD.
func text(v []byte) string {
	if len(v) < 2 || v[0] != '"' {
		return string(v)
	}
	if in := v[1 : len(v)-1]; bytes.IndexByte(in, '\\') < 0 {
		return string(in)
	}
	return string(appendText(make([]byte, 0, len(v)), v))
}

// appendText appends what a valid JSON string stands for.
func appendText(dst, v []byte) []byte {
	for v = v[1 : len(v)-1]; len(v) > 0; {
		r, n := unescape(v)
		if r >= 0 {
			dst = utf8.AppendRune(dst, r)
		} else {
			dst = append(dst, v[0])
		}
		v = v[n:]
	}
	return dst
}

// kindOf names the kind of a valid value, for messages.
func kindOf(v []byte) string {
	s := scanner{b: v}
	switch s.peek() {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// integer is the value of a valid JSON number that is a whole one. Some
// clients write 10.0 for 10, and engines take it.
func integer(v []byte) (n int, ok bool) {
	if len(v) == 0 || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int(f), true
}
