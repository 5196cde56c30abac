package occupancy

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
)

// Format says how a log is read. Fields of a JSON log are gjson paths; of a text
// log they are groups of its patterns, which have the same names.
type Format struct {
	Name string
	// About, Needs and Source are for people: what writes such lines, what has to be
	// set for it, and where the form of the lines is from.
	About, Needs, Source string

	JSON     bool
	Patterns []string // of text; the first that matches a line counts

	// Time, End, ID, Event, Duration, Queue, Model, Class, Principal, Tag, Process and
	// Count are the paths of a JSON log. With End or Duration a line has both ends;
	// without End, Time is its end unless TimeIsStart.
	Time, End, ID, Event, Duration, Queue string
	Model, Class, Principal, Tag, Process string
	Count                                 string // of lines that are missing, where Event is one of Lost

	// What the values of Event mean.
	Starts, Dones, Waits, Gones, Restarts, Lost []string

	TimeFormat   string // default Auto
	TimeIsStart  bool
	DurationUnit time.Duration // of a Duration or Queue without a unit; default a second
	Separate     bool          // every file is a process of its own
	// Wrapper, if any, is the log that the lines are in: see Wrappers. Its time counts
	// for text; JSON has its own, if it has Time.
	Wrapper string
}

// Groups that a text log's patterns may have. A group named start, done, wait,
// gone or restart says by being there what the line is; event and the values that
// go with it say the same. A duration makes it a line with both ends.
var Groups = []string{"time", "end", "id", "event", "duration", "queue", "model", "class", "principal", "tag", "process", "start", "done", "wait", "gone", "restart"}

// field is a place in compiled's tables; the first ones are in Groups' order.
type field int

const (
	fTime field = iota
	fEnd
	fID
	fEvent
	fDuration
	fQueue
	fModel
	fClass
	fPrincipal
	fTag
	fProcess
	fStart
	fDone
	fWait
	fGone
	fRestart
	fCount
	fields
)

// compiled is a Format that can be used.
type compiled struct {
	*Format
	paths    []path
	fields   []field // of paths
	patterns []pattern
	events   map[string]Kind
	unit     int64
}

type pattern struct {
	re      *regexp.Regexp
	literal []byte // must be in the line
	groups  [fields]int
	whole   bool
}

// compile checks a format. Every problem is in the error.
func (f *Format) compile() (*compiled, error) {
	c := &compiled{Format: f, events: map[string]Kind{}, unit: int64(cmp.Or(f.DurationUnit, time.Second))}
	var wrong []error
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for kind, values := range map[Kind][]string{Start: f.Starts, Done: f.Dones, Wait: f.Waits, Gone: f.Gones, Restart: f.Restarts} {
		for _, v := range values {
			if other, twice := c.events[v]; twice && other != kind {
				bad("event %q has two meanings", v)
			}
			c.events[v] = kind
		}
	}
	if f.JSON {
		for i, s := range []string{f.Time, f.End, f.ID, f.Event, f.Duration, f.Queue, f.Model, f.Class, f.Principal, f.Tag, f.Process} {
			if s != "" {
				c.paths = append(c.paths, splitPath(s))
				c.fields = append(c.fields, field(i))
			}
		}
		if f.Count != "" {
			c.paths = append(c.paths, splitPath(f.Count))
			c.fields = append(c.fields, fCount)
		}
		whole := f.End != "" || f.Duration != ""
		if f.Time == "" && f.Wrapper == "" {
			bad("no time: allowed is the field that has it")
		}
		if !whole && (f.ID == "" || f.Event == "" || len(f.Starts) == 0 || len(f.Dones) == 0) {
			bad("lines with one end need an id, an event and its values for start and done; lines with both need an end or a duration")
		}
		if whole && len(f.Starts) > 0 {
			bad("a line with an end or a duration has both ends: a value for start is not allowed with it")
		}
	} else if len(f.Patterns) == 0 {
		bad("no pattern: a text log needs one or more")
	}
	for _, s := range f.Patterns {
		p, err := newPattern(s)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		c.patterns = append(c.patterns, p)
	}
	if f.Wrapper != "" && Wrappers[f.Wrapper] == nil {
		bad("wrapper is %q: allowed are %s", f.Wrapper, strings.Join(WrapperNames(), ", "))
	}
	return c, errors.Join(wrong...)
}

func newPattern(s string) (p pattern, err error) {
	if p.re, err = regexp.Compile(s); err != nil {
		return p, fmt.Errorf("pattern %q: %w", s, err)
	}
	for i := range p.groups {
		p.groups[i] = -1
	}
	for i, name := range p.re.SubexpNames() {
		if name == "" {
			continue
		}
		g := slices.Index(Groups, name)
		if g < 0 {
			return p, fmt.Errorf("pattern %q: group %q: allowed are %s", s, name, strings.Join(Groups, ", "))
		}
		p.groups[g] = i
	}
	has := func(f field) bool { return p.groups[f] >= 0 }
	p.whole = has(fEnd) || has(fDuration)
	if !p.whole && !has(fRestart) && !(has(fID) && (has(fStart) || has(fDone) || has(fWait) || has(fGone) || has(fEvent))) {
		return p, fmt.Errorf("pattern %q: it needs a group duration or end; or id with start, done or event; or restart", s)
	}
	tree, err := syntax.Parse(s, syntax.Perl)
	if err == nil {
		p.literal = []byte(literalOf(tree))
	}
	return p, nil
}

// literalOf returns the longest text that every match has in it, so that most
// lines are put aside without running the pattern.
func literalOf(t *syntax.Regexp) string {
	longest := ""
	switch t.Op {
	case syntax.OpLiteral:
		if t.Flags&syntax.FoldCase == 0 {
			longest = string(t.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		longest = literalOf(t.Sub[0])
	case syntax.OpConcat:
		for _, sub := range t.Sub {
			if s := literalOf(sub); len(s) > len(longest) {
				longest = s
			}
		}
	}
	return longest
}
