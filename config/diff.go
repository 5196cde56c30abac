package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"headgate/identity"
)

// Change is one value that is not the same in two configurations.
type Change struct {
	// Path of the value. Pools, engines, classes and keys are called by their names,
	// such as pools[main].classes[batch].queue.depth: what stands before one of them
	// in a file does not change what it is.
	Path     string
	At       string // its place in the new file, as problems have it
	Old, New string // as files say them, but for secrets, which are redacted; "" is absent
	Restart  bool   // a running process can't take it over
}

func redacted(value string) string {
	if value == "" {
		return ""
	}
	return identity.Redacted
}

// restarts tells for each setting, or all below it, whether a change of it needs a
// restart; the longest that fits counts. This is the only place where that is decided.
//
// What needs one is what is opened or made once: sockets, the HTTP servers, files, the
// form of the log. All else is made anew beside the old and swapped, so that no request
// is judged by half of it. What is in no list needs a restart, so that nothing is taken
// as done that was not.
var restarts = map[string]bool{
	"version":           false,
	"listen":            true,
	"tls":               true, // which files; what is in them is taken over when it changes
	"admin.listen":      true,
	"admin.tls":         true,
	"admin.keys":        false,
	"admin.open":        false,
	"admin.otlp_traces": true, // the route and what pools remember

	"limits.body_bytes":           false, // is read by each request
	"limits.header_bytes":         true,  // net/http reads it at any time from the server
	"limits.header_timeout":       true,  // so does it this
	"limits.body_timeout":         false,
	"limits.idle_timeout":         false,
	"limits.client_stall_timeout": false,
	"limits.keepalive":            false,
	"limits.max_connections":      true, // is the size of what the listener counts with
	"limits.drain_timeout":        false,
	"limits.tenants":              false, // what was used stays used
	"limits.other_tenants":        false,
	"limits.others_together":      false,
	"limits.max_tenants":          true, // is the room that is made for them
	"limits.balance_file":         true, // is read at the start

	"log.level":      false,
	"log.format":     true, // a log of two forms can't be read by a program
	"journal.file":   true, // what is recalled in one file would end in another
	"journal.buffer": true, // is made with the writer
	"otlp":           true, // one exporter has the queues and the connection
	"estimates.file": true, // is read at the start
	"console":        false,
	"batch":          true, // the database is opened once, and a worker has its claims in it
	"audit":          true, // a chain of records goes on in one place
	"control":        true, // a life in the fleet has its name and lease for as long as it lasts

	"keys":           false,
	"keys_file":      false,
	"issuers":        false,
	"certificates":   false,
	"rules":          false,
	"anonymous":      false,
	"service_tiers":  false,
	"pools[].replan": true,  // the promises that were made are of its profiles
	"pools":          false, // what the leader has to know of them it is told
}

// needsRestart looks a setting up, such as pools[].engines[].url.
func needsRestart(setting string) bool {
	for s := setting; s != ""; s = s[:max(strings.LastIndexAny(s, ".["), 0)] {
		if restart, ok := restarts[s]; ok {
			return restart
		}
	}
	return true
}

// Changes returns what is different in effect, defaults filled in, in the order of the
// settings and, within a list, of the new file. Of an entry that is new there is what
// is not the default; of one that is gone only that the list no longer has it.
func Changes(old, new *Config) []Change {
	var changes []Change
	walk(old.filled(), new.filled(), func(at spot, old, new string) {
		if at.secret {
			old, new = redacted(old), redacted(new)
		}
		changes = append(changes, Change{Path: at.names, At: at.path, Old: old, New: new, Restart: needsRestart(at.setting)})
	})
	return changes
}

func walk(old, new *Config, found func(at spot, old, new string)) {
	d := differ{found}
	d.structure(spot{}, pair{reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem(), bothThere})
	d.entries(spot{names: "keys_file", path: "keys_file", setting: "keys"}, pair{reflect.ValueOf(old.file), reflect.ValueOf(new.file), bothThere})
}

// differ walks two configurations together.
type differ struct {
	found func(at spot, old, new string)
}

// spot is where the walk is.
type spot struct {
	names   string // with the names of entries
	path    string // with their places in the new file, as problems have it
	setting string // with neither
	secret  bool   // its values are not to be shown
}

func (s spot) key(name string) spot {
	next := func(s string) string { return strings.TrimPrefix(s+"."+name, ".") }
	return spot{next(s.names), next(s.path), next(s.setting), false}
}

func (s spot) entry(name string, i int) spot {
	return spot{s.names + "[" + name + "]", fmt.Sprintf("%s[%d]", s.path, i), s.setting + "[]", false}
}

// pair is the two values of a spot. One that is absent stands here with its defaults.
type pair struct {
	old, new reflect.Value
	absent   absence
}

type absence int

const (
	bothThere absence = iota
	oldAbsent
	newAbsent
)

func (p pair) field(i int) pair { return pair{p.old.Field(i), p.new.Field(i), p.absent} }

func (d *differ) structure(at spot, p pair) {
	for i := range p.old.NumField() {
		f := p.old.Type().Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported():
		case options == "inline":
			d.structure(at, p.field(i))
		default:
			next := at.key(key)
			next.secret = hidden(f)
			d.value(next, p.field(i), options != "")
		}
	}
}

// value compares two of the same type; an optional one that is zero is absent.
func (d *differ) value(at spot, p pair, optional bool) {
	t := p.old.Type()
	switch {
	case t == reflect.TypeFor[Quantity]():
	case t.Kind() == reflect.Struct:
		d.structure(at, p)
		return
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		switch o, n := p.old.IsNil(), p.new.IsNil(); {
		case o && n:
		case o:
			d.structure(at, pair{defaults(t.Elem()), p.new.Elem(), oldAbsent})
		case n:
			d.structure(at, pair{p.old.Elem(), defaults(t.Elem()), newAbsent})
		default:
			d.structure(at, pair{p.old.Elem(), p.new.Elem(), p.absent})
		}
		return
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		d.entries(at, p)
		return
	}
	o, n := inFile(p.old, optional), inFile(p.new, optional)
	if o == n {
		return
	}
	// Where an entry is absent, its default is not what changes.
	nothing := t == reflect.TypeFor[Quantity]()
	switch {
	case p.absent == oldAbsent:
		if nothing && n == "0" {
			return
		}
		o = ""
	case p.absent == newAbsent:
		if nothing && o == "0" {
			return
		}
		n = ""
	}
	d.found(at, o, n)
}

// entries compares two lists whose entries have names.
func (d *differ) entries(at spot, p pair) {
	was, is := entryNames(p.old), entryNames(p.new)
	o, n := slices.Clone(was), slices.Clone(is)
	if slices.Contains([]string{"keys", "admin.keys", "issuers"}, at.setting) { // the order of all others is a rank or decides a tie
		slices.Sort(o)
		slices.Sort(n)
	}
	if !slices.Equal(o, n) {
		d.found(at, strings.Join(o, ", "), strings.Join(n, ", "))
	}
	for i, name := range is {
		e := pair{new: p.new.Index(i), absent: p.absent}
		if k := slices.Index(was, name); k >= 0 {
			e.old = p.old.Index(k)
		} else {
			e.old, e.absent = defaults(p.new.Type().Elem()), oldAbsent
			e.old.FieldByName("Name").SetString(name) // which the list has told
		}
		d.structure(at.entry(name, i), e)
	}
}

func entryNames(list reflect.Value) []string {
	names := make([]string, list.Len())
	for i := range names {
		names[i] = list.Index(i).FieldByName("Name").String()
	}
	return names
}

func defaults(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	setDefaults(v)
	return v
}

// inFile is a value as a file says it, on one line.
func inFile(v reflect.Value, optional bool) string {
	if optional && v.IsZero() {
		return ""
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return formatDuration(x)
	case []string:
		return strings.Join(x, ", ")
	default:
		return fmt.Sprint(x)
	}
}
