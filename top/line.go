package top

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// style is how a piece of text looks. Colours are the terminal's own sixteen, which whoever
// has chosen them can read.
type style uint8

const (
	plain style = iota
	strong
	faint
	bad
	good
	lent  // capacity that is borrowed
	mark  // what is kept
	class // and the five behind it: use by classes, in turn
)

// classes is how many colours classes have.
const classes = 5

var codes = [...]string{plain: "", strong: "1", faint: "2", bad: "1;31", good: "32", lent: "33", mark: "36", class: "32", class + 1: "34", class + 2: "35", class + 3: "96", class + 4: "94"}

// ofClass is a class's colour, by its rank.
func ofClass(i int) style { return class + style(i%classes) }

// line is one line, of runes that each take one place.
type line struct {
	b     strings.Builder
	n     int // places taken
	most  int
	color bool
}

// put adds text, cut off at the line's end.
func (l *line) put(s style, text string) {
	if l.n >= l.most || text == "" {
		return
	}
	text = clean(text)
	if n := utf8.RuneCountInString(text); l.n+n > l.most {
		text = cut(text, l.most-l.n)
	}
	l.n += utf8.RuneCountInString(text)
	if code := codes[s]; l.color && code != "" {
		fmt.Fprintf(&l.b, "\x1b[%sm%s\x1b[0m", code, text)
		return
	}
	l.b.WriteString(text)
}

func (l *line) putf(s style, format string, args ...any) { l.put(s, fmt.Sprintf(format, args...)) }

// to fills with blanks up to a place.
func (l *line) to(n int) { l.put(plain, strings.Repeat(" ", max(n-l.n, 0))) }

func (l *line) String() string {
	if !l.color {
		return strings.TrimRight(l.b.String(), " ")
	}
	return l.b.String()
}

// cut shortens text to so many places, and shows that it did.
func cut(text string, n int) string {
	r := []rune(text)
	if len(r) <= n {
		return text
	}
	if n < 1 {
		return ""
	}
	return string(r[:n-1]) + "~"
}

// clean has one place for each rune: a terminal would take what is not printable for a
// command, or give two places to it.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < utf8.RuneSelf && unicode.IsPrint(r), strings.ContainsRune(ours, r):
			return r
		case r == '\n' || r == '\t':
			return ' '
		}
		return '?'
	}, text)
}
