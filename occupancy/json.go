package occupancy

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"
)

// members calls each with every member of the object b, key and value as they
// stand, and tells whether b is one. It finds where values end and leaves their
// insides to whoever wants them: most of a line is nobody's.
func members(b []byte, each func(key, value []byte)) bool {
	i := space(b, 0)
	if i >= len(b) || b[i] != '{' {
		return false
	}
	if i = space(b, i+1); i < len(b) && b[i] == '}' {
		return space(b, i+1) == len(b)
	}
	for {
		start := i
		if i = stringEnd(b, i); i < 0 {
			return false
		}
		key := b[start+1 : i-1]
		if i = space(b, i); i >= len(b) || b[i] != ':' {
			return false
		}
		start = space(b, i+1)
		if i = valueEnd(b, start); i < 0 {
			return false
		}
		each(key, b[start:i])
		if i = space(b, i); i >= len(b) {
			return false
		}
		if b[i] == '}' {
			return space(b, i+1) == len(b)
		}
		if b[i] != ',' {
			return false
		}
		i = space(b, i+1)
	}
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// stringEnd returns where the string that starts at i ends, or -1.
func stringEnd(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		escapes := 0
		for j := i + n - 1; j >= i && b[j] == '\\'; j-- {
			escapes++
		}
		if i += n; escapes%2 == 0 {
			return i + 1
		}
	}
}

// valueEnd returns where the value that starts at i ends, or -1.
func valueEnd(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				if i = stringEnd(b, i); i < 0 {
					return -1
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if i++; depth == 0 {
				return i
			}
		}
		return -1
	}
	start := i
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && b[i] > ' ' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// text is a value as text: a string without its quotes, a number or bool as it
// stands; of null and what is broken it is nil.
func text(raw []byte) []byte {
	switch {
	case len(raw) == 0 || raw[0] == 'n':
		return nil
	case raw[0] != '"':
		return raw
	case len(raw) < 2:
		return nil
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return nil
	}
	return []byte(s)
}

// path is a place in an object: its first name, and the rest as a gjson path.
type path struct {
	first []byte
	rest  string
}

// splitPath cuts a gjson path after its first name, in which a backslash takes
// a dot's meaning away.
func splitPath(s string) path {
	var p path
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			p.first = append(p.first, s[i])
		case s[i] == '.':
			p.rest = s[i+1:]
			return p
		default:
			p.first = append(p.first, s[i])
		}
	}
	return p
}

// of returns what the path's rest finds in the value of its first name.
func (p *path) of(value []byte) []byte {
	if p.rest == "" {
		return value
	}
	r := gjson.GetBytes(value, p.rest)
	if !r.Exists() {
		return nil
	}
	return []byte(r.Raw)
}

// tagged tells whether a tag, or one of an array of them, is in tags.
func tagged(tag []byte, tags []string) bool {
	if len(tag) == 0 || len(tags) == 0 {
		return false
	}
	if tag[0] != '[' {
		return oneOf(tag, tags)
	}
	found := false
	gjson.ParseBytes(tag).ForEach(func(_, v gjson.Result) bool {
		found = oneOf([]byte(v.String()), tags)
		return !found
	})
	return found
}

func oneOf(b []byte, list []string) bool {
	for _, s := range list {
		if string(b) == s {
			return true
		}
	}
	return false
}
