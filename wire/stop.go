package wire

import (
	"bytes"
	"slices"
)

// stops ends an answer at its first stop string, as vLLM would (its
// check_stop_strings): text is looked at with every token; the string counts that
// is complete first, of several that end together the first in the list; none does
// that ends within the first min_tokens tokens, or in what the engine itself
// stopped at.
//
// The engine isn't told of them. It holds text back for them, behind the ids that it
// returns, and what it has seen of one is forgotten with the attempt. Here the end
// of the text that may be the beginning of one outlives a cut: its ids are kept,
// and it belongs to them.
//
// Of an event of several tokens it isn't known with which of them a string was
// complete. All count, and min_tokens is past if it is past with the last.
//
// Alternatives: to hold back as much as the longest string is long, as vLLM does,
// needs no look at the text, but makes every answer late.
type stops struct {
	all     [][]byte
	longest int       // bytes
	first   [256]bool // a string begins with the byte
	include bool      // the answer has the string that ends it
	least   int       // min_tokens
	tokens  int       // up to now; where the engine returns no ids, events with text

	begun []byte // the end of the text that may be the beginning of a string, and ...
	kept  []byte // ... what it was when all that had come was kept

	text    []byte
	written []byte
	changes []change
	out     []byte
}

// change replaces part of an event.
type change struct {
	from, to int
	text     []byte
}

func newStops(r *Request) *stops {
	if len(r.stops) == 0 {
		return nil
	}
	s := &stops{include: r.includeStop, least: r.minTokens}
	for _, stop := range r.stops {
		s.all = append(s.all, []byte(stop))
		s.longest = max(s.longest, len(stop))
		s.first[stop[0]] = true
	}
	return s
}

func (s *stops) keep() { s.kept = append(s.kept[:0], s.begun...) }

// cut forgets what came after the last keep; n tokens are left.
func (s *stops) cut(n int) {
	s.begun = append(s.begun[:0], s.kept...)
	s.tokens = n
}

// next takes in text that comes next, appended to what is begun, and returns the
// part of it that the client may see now, until the next call. Where check is set
// and a stop string ends in it, hit is the string and the part ends with or before
// it. With last nothing is held back.
func (s *stops) next(text []byte, check, last bool) (part, hit []byte) {
	old, told := len(s.begun), 0
	if s.include {
		told = old
	}
	if check && len(text) > old {
		at, end := 0, len(text)+1
		for _, stop := range s.all {
			from := max(0, old+1-len(stop))
			i := bytes.Index(text[from:], stop)
			if i >= 0 && from+i+len(stop) < end {
				at, hit, end = from+i, stop, from+i+len(stop)
			}
		}
		if hit != nil {
			if s.include {
				at = end
			}
			return text[told:at], hit
		}
	}
	cut := len(text)
	if !last {
		cut = s.beginning(text)
	}
	s.begun = append(s.begun[:0], text[cut:]...)
	if s.include {
		cut = len(text)
	}
	return text[told:cut], nil
}

// beginning is where the longest end of the text begins with which a stop string
// begins, but is not complete.
func (s *stops) beginning(text []byte) int {
	for i := max(0, len(text)-s.longest+1); i < len(text); i++ {
		if !s.first[text[i]] {
			continue
		}
		for _, stop := range s.all {
			if len(text)-i < len(stop) && bytes.HasPrefix(stop, text[i:]) {
				return i
			}
		}
	}
	return len(text)
}

// add takes in an event in the client's shape, and returns what the client is to
// see of it. It brings so many ids, and text or the end of the answer or neither.
func (s *stops) add(api API, data []byte, ids int, text, ended bool) (out []byte, hit bool) {
	if text && ids == 0 {
		ids = 1
	}
	s.tokens += ids
	if !text && !ended {
		return data, false
	}
	s.changes, s.written = s.changes[:0], s.written[:0]
	sc := scanner{b: data}
	sc.peek()
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		if string(key) != "choices" || sc.peek() != '[' {
			sc.skip()
			continue
		}
		for sc.open(); sc.elem(); {
			if sc.peek() != '{' {
				sc.skip()
			} else if s.choice(&sc, api, ids) {
				hit = true
			}
		}
	}
	if len(s.changes) == 0 {
		return data, false
	}
	slices.SortStableFunc(s.changes, func(a, b change) int { return a.from - b.from })
	out, at := s.out[:0], 0
	for _, c := range s.changes {
		out = append(append(out, data[at:c.from]...), c.text...)
		at = c.to
	}
	s.out = append(out, data[at:]...)
	return s.out, hit
}

// choice notes the changes of one, which has a reason to finish where it has no text.
func (s *stops) choice(sc *scanner, api API, ids int) bool {
	content, finish, reason, delta := span{}, span{}, span{}, span{}
	of := func() span {
		sc.peek()
		from := sc.i
		sc.skip()
		return span{sc.keyAt, from, sc.i}
	}
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		switch {
		case string(key) == "text" && api == Completions:
			content = of()
		case string(key) == "delta" && api == Chat:
			delta = of()
		case string(key) == "finish_reason":
			finish = of()
		case string(key) == "stop_reason":
			reason = of()
		default:
			sc.skip()
		}
	}
	closing := sc.i - 1
	value := func(sp span) []byte { return sc.b[sp.from:sp.to] }
	if v := value(delta); len(v) > 0 && v[0] == '{' {
		in := scanner{b: sc.b[:delta.to], i: delta.from}
		for in.open(); ; {
			key, ok := in.member()
			if !ok {
				break
			}
			is := string(key) == "content"
			in.peek()
			from := in.i
			if in.skip(); is {
				content = span{in.keyAt, from, in.i}
			}
		}
	}

	v := value(content)
	spoken := len(v) > 0 && v[0] == '"'
	ended := filled(value(finish))
	if len(s.begun) == 0 && (!spoken || s.unsuspicious(v)) {
		return false
	}
	s.text = append(s.text[:0], s.begun...)
	if spoken {
		s.text = appendText(s.text, v)
	}
	// A single token that the engine stops at is no text.
	check := s.tokens > s.least && (ids > 1 || string(value(finish)) != `"stop"`)
	part, hit := s.next(s.text, check, ended)
	switch {
	case content.to > 0:
		s.change(content.from, content.to, "", part, "")
	case len(part) == 0:
	case api == Completions:
		s.change(closing, closing, `,"text":`, part, "")
	case delta.to == 0:
		s.change(closing, closing, `,"delta":{"content":`, part, "}")
	case !filled(value(delta)):
		s.change(delta.from, delta.to, `{"content":`, part, "}")
	default:
		s.change(delta.from+1, delta.from+1, `"content":`, part, ",")
	}
	if hit == nil {
		return false
	}
	why := func(sp span, name string, text []byte) {
		switch {
		case sp.to > 0:
			s.change(sp.from, sp.to, "", text, "")
		case name == "stop_reason" && finish.to > 0:
			s.change(finish.to, finish.to, `,"stop_reason":`, text, "")
		default:
			s.change(closing, closing, `,"`+name+`":`, text, "")
		}
	}
	why(finish, "finish_reason", []byte("stop"))
	why(reason, "stop_reason", hit)
	return true
}

// unsuspicious tells of a string, as it is written, that no stop string begins in it.
func (s *stops) unsuspicious(v []byte) bool {
	for _, c := range v[1 : len(v)-1] {
		if c == '\\' || s.first[c] {
			return false
		}
	}
	return true
}

// change notes one of which a part is text.
func (s *stops) change(from, to int, before string, text []byte, after string) {
	at := len(s.written)
	s.written = append(appendString(append(s.written, before...), string(text)), after...)
	s.changes = append(s.changes, change{from, to, s.written[at:]})
}
