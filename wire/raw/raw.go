// Package raw reads JSON without a tree, and moves parts of it from one document
// into another as they are written: escapes and digits are never decoded and
// encoded again. It is what the packages share that translate one API into
// another.
//
// All that is read here has been found valid by package wire before, so reading
// is only finding where things end.
package raw

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Value is the text of one JSON value.
type Value []byte

func (v Value) Is(kind byte) bool { return len(v) > 0 && v[0] == kind }

func (v Value) Null() bool { return len(v) == 0 || string(v) == "null" }

func (v Value) IsNumber() bool { return len(v) > 0 && (v[0] == '-' || '0' <= v[0] && v[0] <= '9') }

// Inner is a string's content as it is escaped.
func (v Value) Inner() []byte { return v[1 : len(v)-1] }

func (v Value) Empty() bool { return string(v) == `""` }

// words are what a string mostly stands for where it is looked at: roles, and
// types of blocks.
var words = []string{"text", "user", "assistant", "tool_use", "tool_result", "thinking", "image", "base64", "system"}

// Text is what a string stands for. It allocates nothing for a word.
func (v Value) Text() string {
	for _, w := range words {
		if string(v.Inner()) == w {
			return w
		}
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v.Inner())
	}
	var s string
	_ = json.Unmarshal(v, &s) // valid by what was said above
	return s
}

// Kind names a value's kind, for messages.
func (v Value) Kind() string {
	switch {
	case v.Null():
		return "null"
	case v.Is('{'):
		return "an object"
	case v.Is('['):
		return "an array"
	case v.Is('"'):
		return "a string"
	case v.IsNumber():
		return "a number"
	}
	return "a boolean"
}

// Shown is how a value appears in a message: scalars as they are written, of
// the others only the kind.
func (v Value) Shown() string {
	if v.Is('{') || v.Is('[') {
		return v.Kind()
	}
	return string(v)
}

// Items walks an object or array.
type Items struct {
	b []byte
	i int
}

// Each returns the items of an array or the members of an object.
func (v Value) Each() Items { return Items{b: v, i: 1} }

// Next is the next element of an array, or a key or value of an object; ok is
// false after the last.
func (it *Items) Next() (v Value, ok bool) {
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

// Member is the next member of an object. The key is unescaped.
func (it *Items) Member() (key []byte, v Value, ok bool) {
	k, ok := it.Next()
	if !ok {
		return nil, nil, false
	}
	v, ok = it.Next()
	if bytes.IndexByte(k, '\\') >= 0 {
		return []byte(k.Text()), v, ok
	}
	return k.Inner(), v, ok
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

// AppendText appends text as a JSON string.
func AppendText[T string | []byte](dst []byte, text T) []byte {
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

func AppendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

// Comma separates what follows from an item before it.
func Comma(b []byte) []byte {
	if c := b[len(b)-1]; c != '{' && c != '[' {
		b = append(b, ',')
	}
	return b
}

// Index is the place of a name in a list, -1 if it isn't there.
func Index(names []string, key []byte) int {
	for i, n := range names {
		if n == string(key) {
			return i
		}
	}
	return -1
}

// Find finds members of an object by name; of several of one name the last
// counts.
func Find(v Value, names []string, found []Value) {
	for it := v.Each(); ; {
		key, v, ok := it.Member()
		if !ok {
			return
		}
		if i := Index(names, key); i >= 0 {
			found[i] = v
		}
	}
}

// Number is a whole number of up to four digits.
func (v Value) Number() (n int, ok bool) {
	if len(v) == 0 || len(v) > 4 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// EventData is the payload of a server-sent event as it was framed, nil if it has
// none. JSON has no raw line ends, so those of the event's lines may be any.
func EventData(raw []byte) []byte {
	var data []byte
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\n')
		if n < 0 {
			n = len(raw)
		}
		if cr := bytes.IndexByte(raw[:n], '\r'); cr >= 0 {
			n = cr // a line may end with that alone
		}
		line, ok := bytes.CutPrefix(raw[:n], []byte("data:"))
		raw = raw[min(n+1, len(raw)):]
		switch {
		case !ok:
		case data == nil:
			data = line
		default:
			data = append(append(bytes.Clone(data), '\n'), line...)
		}
	}
	return data
}
