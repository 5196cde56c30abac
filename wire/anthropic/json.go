package anthropic

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// value is the text of one JSON value. All that is read here has been found
// valid by package wire before, so reading is only finding where things end.
type value []byte

func (v value) is(kind byte) bool { return len(v) > 0 && v[0] == kind }

func (v value) null() bool { return len(v) == 0 || string(v) == "null" }

func (v value) number() bool { return len(v) > 0 && (v[0] == '-' || '0' <= v[0] && v[0] <= '9') }

// inner is a string's content as it is escaped.
func (v value) inner() []byte { return v[1 : len(v)-1] }

func (v value) empty() bool { return string(v) == `""` }

// words are what a string mostly stands for where it is looked at: roles, and
// types of blocks.
var words = []string{"text", "user", "assistant", "tool_use", "tool_result", "thinking", "image", "base64", "system"}

// text is what a string stands for. It allocates nothing for a word.
func (v value) text() string {
	for _, w := range words {
		if string(v.inner()) == w {
			return w
		}
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v.inner())
	}
	var s string
	_ = json.Unmarshal(v, &s) // valid by what was said above
	return s
}

// kind names a value's kind, for messages.
func (v value) kind() string {
	switch {
	case v.null():
		return "null"
	case v.is('{'):
		return "an object"
	case v.is('['):
		return "an array"
	case v.is('"'):
		return "a string"
	case v.number():
		return "a number"
	}
	return "a boolean"
}

// shown is how a value appears in a message: scalars as they are written, of
// the others only the kind.
func (v value) shown() string {
	if v.is('{') || v.is('[') {
		return v.kind()
	}
	return string(v)
}

// items walks an object or array.
type items struct {
	b []byte
	i int
}

// each returns the items of an array or the members of an object.
func (v value) each() items { return items{b: v, i: 1} }

// next is the next element of an array, or a key or value of an object; ok is
// false after the last.
func (it *items) next() (v value, ok bool) {
	for it.i < len(it.b) {
		switch it.b[it.i] {
		case ' ', '\n', '\r', '\t', ',', ':':
			it.i++
			continue
		case ']', '}':
			it.i = len(it.b)
			return nil, false
		}
		from := it.i
		it.i = end(it.b, from)
		return it.b[from:it.i], true
	}
	return nil, false
}

// member is the next member of an object. The key is unescaped.
func (it *items) member() (key []byte, v value, ok bool) {
	k, ok := it.next()
	if !ok {
		return nil, nil, false
	}
	v, ok = it.next()
	if bytes.IndexByte(k, '\\') >= 0 {
		return []byte(k.text()), v, ok
	}
	return k.inner(), v, ok
}

// end is where the value that begins at i ends.
func end(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = endString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ' ', '\n', '\r', '\t', ',', ':':
			i++
			continue
		default:
			for i < len(b) && !ends(b[i]) {
				i++
			}
		}
		if depth <= 0 {
			return i
		}
	}
	return len(b)
}

// ends tells whether a byte can't be a part of a number or a word.
func ends(c byte) bool {
	switch c {
	case ',', ':', '}', ']', '{', '[', '"', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}

func endString(b []byte, i int) int {
	for i++; i < len(b); {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			break
		}
		i += n + 1
		escapes := 0
		for b[i-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
	return len(b)
}

// appendText appends text as a JSON string.
func appendText[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range string(text) { // what is not UTF-8 comes as U+FFFD
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

func appendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

// comma separates what follows from an item before it.
func comma(b []byte) []byte {
	if c := b[len(b)-1]; c != '{' && c != '[' {
		b = append(b, ',')
	}
	return b
}
