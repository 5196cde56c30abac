package occupancy

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Parser reads the lines of one file.
type Parser struct {
	c       *compiled
	clock   *clock
	wrapper *wrapper
	file    []byte // Source where the lines have none and files are separate
	exclude *regexp.Regexp
	epoch   int64
	values  [fields][]byte
	plain   [2][]byte // a line, and one that was in it, without escape sequences
	run     relative
}

// relative turns the times since a process began into times. A time that goes far
// back is a new process, which is put at the end of the one before it: how long
// nothing ran in between is not known.
type relative struct {
	base, last int64
	any        bool
}

// backwards is how far the time since a process began may go back within it.
const backwards = int64(10 * time.Second)

func (r *relative) at(t int64) (abs int64, again bool) {
	if r.any && t < r.last-backwards {
		r.base += r.last
		r.last, again = 0, true
	}
	r.any = true
	r.last = max(r.last, t)
	return r.base + t, again
}

var errNoTime = errors.New("no time that can be read")

// Parse reads a line. It returns false for one that says nothing, and an error for
// one that looks as if it did and cannot be read.
func (p *Parser) Parse(line []byte, out *Line) (bool, error) {
	*out = Line{}
	line = strip(bytes.TrimRight(line, "\r\n"), &p.plain[0])
	if len(line) == 0 {
		return false, nil
	}
	if p.exclude != nil {
		out.Excluded = p.exclude.Match(line)
	}
	at, timed := int64(0), false
	if p.wrapper != nil {
		var u unwrapped
		if err := p.wrapper.unwrap(line, &u); err != nil {
			return false, err
		}
		if len(u.message) == 0 {
			return false, nil
		}
		line = strip(u.message, &p.plain[1])
		at, timed = u.at+p.wrapper.epoch(p.epoch), true
		out.Source, out.Process, out.Fresh = u.source, u.process, u.fresh
	}
	clear(p.values[:])
	whole := false
	var err error
	if p.c.JSON {
		whole, err = p.json(line)
		if err != nil && p.wrapper != nil {
			return false, nil // what a process says before its log is set up
		}
	} else {
		var found bool
		if found, whole = p.text(line); !found {
			out.At = at // of a wrapper: the log goes on
			return timed && bounded(at), nil
		}
	}
	if err != nil {
		return false, err
	}
	if v := p.values[fProcess]; v != nil {
		out.Process = v
	}
	if out.Source == nil {
		out.Source = p.file
	}
	return p.finish(out, at, timed, whole)
}

// finish makes a Line of the fields that were found.
func (p *Parser) finish(out *Line, at int64, timed, whole bool) (bool, error) {
	v := &p.values
	switch {
	case v[fStart] != nil:
		out.Kind = Start
	case v[fDone] != nil:
		out.Kind = Done
	case v[fWait] != nil:
		out.Kind = Wait
	case v[fGone] != nil:
		out.Kind = Gone
	case v[fRestart] != nil:
		out.Kind = Restart
	case v[fEvent] != nil:
		out.Kind = p.c.events[string(v[fEvent])]
	}
	if whole && (out.Kind == Done || out.Kind == Other && (v[fEvent] == nil || len(p.c.Dones) == 0)) {
		out.Kind = Whole
	}
	if v[fTime] != nil && (!timed || p.c.JSON) {
		t, ok := p.clock.parse(v[fTime])
		if !ok {
			return false, fmt.Errorf("time is %.60q, which is not %s", v[fTime], p.clock.format)
		}
		if at, timed = t, true; p.clock.relative() {
			at, out.Fresh = p.run.at(t)
			at += p.epoch
		}
	}
	if !timed {
		if out.Kind == Other || out.Kind == Whole && v[fEnd] == nil && v[fDuration] == nil {
			return false, nil
		}
		return false, errNoTime
	}
	if !bounded(at) {
		return false, errNoTime
	}
	out.At = at
	out.ID, out.Model, out.Class, out.Principal, out.Tag = v[fID], v[fModel], v[fClass], v[fPrincipal], v[fTag]
	if v[fQueue] != nil {
		q, ok := duration(v[fQueue], p.c.unit)
		if !ok {
			return false, fmt.Errorf("queue is %.60q: allowed is a duration", v[fQueue])
		}
		out.Queue = q
	}
	switch {
	case out.Kind == Whole:
		return p.ends(out)
	case out.Kind == Other && v[fCount] != nil && oneOf(v[fEvent], p.c.Lost):
		out.Lost, _ = digits(v[fCount])
	case out.Kind != Other && out.Kind != Restart && len(out.ID) == 0:
		return false, errors.New("no id")
	}
	return true, nil
}

// ends finds both ends of a Whole line.
func (p *Parser) ends(out *Line) (bool, error) {
	v := &p.values
	out.Start = out.At
	switch {
	case v[fEnd] != nil:
		end, ok := p.clock.parse(v[fEnd])
		if !ok {
			return false, fmt.Errorf("end is %.60q, which is not %s", v[fEnd], p.clock.format)
		}
		out.At = end
	case v[fDuration] != nil:
		d, ok := duration(v[fDuration], p.c.unit)
		if !ok {
			return false, fmt.Errorf("duration is %.60q: allowed is a duration", v[fDuration])
		}
		if p.c.TimeIsStart {
			out.At += d
		} else {
			out.Start -= d
		}
	default: // not a line about a request
		out.Kind = Other
		return true, nil
	}
	if !bounded(out.At) || !bounded(out.Start) || out.At < out.Start {
		return false, errors.New("the end is before the start, or one of them is no time of this age")
	}
	return true, nil
}

// bounded keeps times within the years 1897 to 2116, so that no difference of two
// overflows.
func bounded(ns int64) bool { return ns > -1<<61 && ns < 1<<62 }

func (p *Parser) json(line []byte) (whole bool, err error) {
	c := p.c
	ok := members(line, func(key, value []byte) {
		for i := range c.paths {
			if !bytes.Equal(key, c.paths[i].first) {
				continue
			}
			v := c.paths[i].of(value)
			if c.fields[i] != fTag {
				v = text(v)
			} else if len(v) > 0 && v[0] != '[' {
				v = text(v)
			}
			p.values[c.fields[i]] = v
		}
	})
	if !ok {
		return false, errors.New("not a JSON object")
	}
	return c.End != "" || c.Duration != "", nil
}

func (p *Parser) text(line []byte) (found, whole bool) {
	for i := range p.c.patterns {
		q := &p.c.patterns[i]
		if !bytes.Contains(line, q.literal) {
			continue
		}
		m := q.re.FindSubmatchIndex(line)
		if m == nil {
			continue
		}
		for f, g := range q.groups {
			if g >= 0 && m[2*g] >= 0 {
				p.values[f] = line[m[2*g]:m[2*g+1]]
			}
		}
		return true, q.whole
	}
	return false, false
}

// strip removes terminal escape sequences: colours, and what else begins with ESC.
// What it returns is b or in buf.
func strip(b []byte, buf *[]byte) []byte {
	i := bytes.IndexByte(b, 0x1b)
	if i < 0 {
		return b
	}
	out := append((*buf)[:0], b[:i]...)
	for i < len(b) {
		if b[i] != 0x1b {
			out = append(out, b[i])
			i++
			continue
		}
		if i++; i == len(b) {
			break
		}
		switch b[i] {
		case '[': // to a letter or one of @[\]^_`{|}~
			for i++; i < len(b) && (b[i] < 0x40 || b[i] > 0x7e); i++ {
			}
			i++
		case ']': // a title or link, to BEL or ESC \
			for i++; i < len(b) && b[i] != 0x07 && b[i] != 0x1b; i++ {
			}
			if i < len(b) && b[i] == 0x07 {
				i++
			}
		default:
			i++
		}
	}
	*buf = out
	return out
}
