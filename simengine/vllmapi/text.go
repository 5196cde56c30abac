package vllmapi

import (
	"strings"
	"unicode/utf8"

	"headgate/simengine"
)

// textStream turns tokens into text as they come: it keeps back the bytes of a
// character that isn't complete and text that may be the beginning of a stop
// string.
type textStream struct {
	stops    []string
	longest  int // bytes of the longest stop string
	keepStop bool

	bytes []byte // of an incomplete character
	text  []byte // not given out
}

func newTextStream(stops []string, keepStop bool) textStream {
	t := textStream{stops: stops, keepStop: keepStop}
	for _, s := range stops {
		t.longest = max(t.longest, len(s))
	}
	return t
}

// push adds a token and returns the text that is certain now. Where check is
// set and a stop string appears, the text ends with (or before) it and stop
// names it.
func (t *textStream) push(token simengine.Token, check bool) (delta, stop string) {
	old := len(t.text)
	t.bytes = simengine.Decode(t.bytes, token)
	for len(t.bytes) > 0 && utf8.FullRune(t.bytes) {
		r, size := utf8.DecodeRune(t.bytes)
		t.text = utf8.AppendRune(t.text, r)
		t.bytes = t.bytes[:copy(t.bytes, t.bytes[size:])]
	}
	if check {
		if at, s := t.find(old); s != "" {
			if t.keepStop {
				at += len(s)
			}
			return string(t.text[:at]), s
		}
	}
	keep := 0
	if t.longest > 0 {
		keep = min(t.longest-1, len(t.text))
	}
	cut := len(t.text) - keep
	for cut > 0 && cut < len(t.text) && !utf8.RuneStart(t.text[cut]) {
		cut--
	}
	delta = string(t.text[:cut])
	t.text = t.text[:copy(t.text, t.text[cut:])]
	return delta, ""
}

// find returns the stop string that is complete first of those that end in the
// text from old on, as vLLM's check_stop_strings does; the first in the list of
// those that end together.
func (t *textStream) find(old int) (at int, stop string) {
	if old == len(t.text) {
		return 0, ""
	}
	text, end := string(t.text), len(t.text)+1
	for _, s := range t.stops {
		from := max(0, old+1-len(s))
		i := strings.Index(text[from:], s)
		if i >= 0 && from+i+len(s) < end {
			at, stop, end = from+i, s, from+i+len(s)
		}
	}
	return at, stop
}

// finish returns what was kept back; an incomplete character becomes U+FFFD.
func (t *textStream) finish() string {
	if len(t.bytes) > 0 {
		t.text = utf8.AppendRune(t.text, utf8.RuneError)
		t.bytes = nil
	}
	return string(t.text)
}
