package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration, or, as a warning,
// one that is allowed but unlikely to be meant.
type Problem struct {
	File    string
	Line    int    // from 1
	Column  int    // from 1
	Path    string // such as pools[0].classes[1].floor.slots; "" for the file as a whole
	Text    string // the value and what is allowed
	Warning bool
}

// String is "file:line:col: path: value X: allowed Y".
func (p Problem) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Errors returns how many of the problems are not warnings.
func Errors(problems []Problem) int {
	n := 0
	for _, p := range problems {
		if !p.Warning {
			n++
		}
	}
	return n
}

func sortProblems(p []Problem) {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// source knows where each path of a file stands.
type source struct {
	file string
	at   map[string]position
}

type position struct{ line, column int }

// locate returns the place of a path, or of the nearest part of it that is in
// the file: what is missing is missing there.
func (s *source) locate(path string) position {
	for path != "" {
		if p, ok := s.at[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	if p, ok := s.at[""]; ok {
		return p
	}
	return position{1, 1}
}

// says tells whether path is in the file.
func (s *source) says(path string) bool { _, ok := s.at[path]; return ok }

// list collects problems at the places of their paths.
type list struct {
	src      *source
	problems []Problem
}

func (l *list) add(path, text string, warning bool) {
	at := l.src.locate(path)
	l.problems = append(l.problems, Problem{File: l.src.file, Line: at.line, Column: at.column, Path: path, Text: text, Warning: warning})
}

// bad has the form that every package's Validate reports to.
func (l *list) bad(path string, value any, allowed string) {
	l.add(path, fmt.Sprintf("value %s: allowed %s", show(value), allowed), false)
}

func (l *list) warn(path, text string) { l.add(path, text, true) }

// below is bad for a part of the configuration.
func (l *list) below(prefix string) func(path string, value any, allowed string) {
	return func(path string, value any, allowed string) { l.bad(prefix+"."+path, value, allowed) }
}

// maxShown bounds how much of a wrong value is repeated, in bytes.
const maxShown = 60

func show(value any) string {
	s := fmt.Sprint(value)
	if s == "" {
		return "nothing"
	}
	if len(s) > maxShown {
		s = s[:maxShown] + "..."
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}
