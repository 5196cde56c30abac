package occupancy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Wrappers are logs whose lines have the lines of another one in them.
var Wrappers = map[string]func(*time.Location, int) *wrapper{
	"journald-json":  journaldJSON,
	"journald-short": journaldShort,
	"docker-json":    dockerJSON,
	"llama-jsonl":    llamaJSONL,
}

// WrapperNames returns them in order.
func WrapperNames() []string { return slices.Sorted(maps.Keys(Wrappers)) }

// wrapper takes lines apart.
type wrapper struct {
	unwrap   func(line []byte, u *unwrapped) error
	relative bool // its times are since the process began
}

// epoch is what to add to its times.
func (w *wrapper) epoch(start int64) int64 {
	if w.relative {
		return start
	}
	return 0
}

type unwrapped struct {
	message         []byte
	at              int64
	source, process []byte
	fresh           bool // its clock began anew
}

var errWrapper = errors.New("not a line of the wrapper")

// jsonWrapper is one whose lines are objects with the line in one member.
func jsonWrapper(message, at string, c *clock, source []string, process string) *wrapper {
	first := []byte(message)
	run := relative{}
	var from []byte
	return &wrapper{relative: c.relative(), unwrap: func(line []byte, u *unwrapped) error {
		var stamp []byte
		var srcs [2][]byte
		ok := members(line, func(key, value []byte) {
			switch {
			case bytes.Equal(key, first):
				u.message = bytes.TrimRight(messageOf(value), "\n")
			case string(key) == at:
				stamp = text(value)
			case process != "" && string(key) == process:
				u.process = text(value)
			default:
				for i := range source {
					if string(key) == source[i] {
						srcs[i] = text(value)
					}
				}
			}
		})
		if !ok {
			return errWrapper
		}
		if len(u.message) == 0 {
			return nil
		}
		t, ok := c.parse(stamp)
		if !ok {
			return fmt.Errorf("%s is %.60q, which is not %s", at, stamp, c.format)
		}
		if u.at = t; c.relative() {
			u.at, u.fresh = run.at(t)
		}
		if len(source) > 0 {
			from = append(append(append(from[:0], srcs[0]...), ' '), srcs[1]...)
			u.source = from
		}
		return nil
	}}
}

// messageOf is a message as text. journald writes one that is not UTF-8, or has
// escape sequences in it, as an array of bytes.
func messageOf(value []byte) []byte {
	if len(value) == 0 || value[0] != '[' {
		return text(value)
	}
	var b []uint16
	if json.Unmarshal(value, &b) != nil {
		return nil
	}
	out := make([]byte, len(b))
	for i, c := range b {
		out[i] = byte(c)
	}
	return out
}

func journaldJSON(*time.Location, int) *wrapper {
	c := &clock{format: UnixUs, unit: 1e3}
	return jsonWrapper("MESSAGE", "__REALTIME_TIMESTAMP", c, []string{"_HOSTNAME", "_SYSTEMD_UNIT"}, "_PID")
}

func dockerJSON(loc *time.Location, _ int) *wrapper {
	return jsonWrapper("log", "time", &clock{format: RFC3339, loc: loc}, nil, "")
}

func llamaJSONL(*time.Location, int) *wrapper {
	return jsonWrapper("msg", "time", &clock{format: ElapsedUs, unit: 1e3}, nil, "")
}

// journaldShort reads journalctl's -o short, short-precise, short-iso and
// short-iso-precise: the time, the host, and a name with a process id.
func journaldShort(loc *time.Location, year int) *wrapper {
	stamp := &clock{format: time.Stamp, loc: loc, year: year}
	var from []byte
	return &wrapper{unwrap: func(line []byte, u *unwrapped) error {
		if bytes.HasPrefix(line, []byte("-- ")) {
			return nil // a boot, or where the log begins
		}
		var rest []byte
		ok := false
		if len(line) > 16 && line[3] == ' ' && line[6] == ' ' && line[9] == ':' {
			end := bytes.IndexByte(line[15:], ' ') + 15
			if end < 15 {
				return errWrapper
			}
			u.at, ok = stamp.parse(line[:end])
			rest = line[end:]
		} else if end := bytes.IndexByte(line, ' '); end > 0 {
			u.at, ok = iso(line[:end], loc)
			rest = line[end:]
		}
		host, rest, named := bytes.Cut(bytes.TrimPrefix(rest, []byte(" ")), []byte(" "))
		name, message, told := bytes.Cut(rest, []byte(": "))
		if !ok || !named || !told {
			return errWrapper
		}
		if i := bytes.IndexByte(name, '['); i > 0 && name[len(name)-1] == ']' {
			name, u.process = name[:i], name[i+1:len(name)-1]
		}
		from = append(append(append(from[:0], host...), ' '), name...)
		u.source, u.message = from, message
		return nil
	}}
}
