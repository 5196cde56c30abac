package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Version is the version of a file's form that this build reads. It counts up when a
// setting goes or means something else; settings that are new and change nothing where
// they are absent need no new one. The rule for what goes is in docs/configuration.md.
const Version = 1

// version refuses what was written for another build: what it says may mean something
// else here.
func (c *Config) version(l *list) {
	if c.Version > Version {
		l.bad("version", c.Version, fmt.Sprintf("%d, which is the newest that this build reads: this file is for a newer headgate", Version))
	} else if c.Version < Version {
		l.bad("version", c.Version, fmt.Sprint(Version))
	}
}

// newer leaves, of the problems of a file of a newer version, what says so: that its
// keys are unknown here is no news and no help.
func (c *Config) newer(problems []Problem) []Problem {
	if c.Version <= Version {
		return problems
	}
	var only []Problem
	for _, p := range problems {
		if p.Path == "version" {
			only = append(only, p)
		}
	}
	return only
}

// deprecation is a setting of the file that is to go. A field says that of its key by a
// tag with the setting that takes its place, as docs/configuration.md calls it:
//
//	ShutdownTimeout time.Duration `yaml:"shutdown_timeout,omitempty" deprecated:"limits.drain_timeout"`
//
// Until it goes it means what it always did; whoever deprecates it sees to that.
type deprecation struct {
	path string
	at   position
	use  string // the path that takes its place
}

// deprecated returns what takes the place of a field's key, "" if it stays.
func deprecated(v reflect.Value, key string) string {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported():
		case options == "inline":
			if use := deprecated(v.Field(i), key); use != "" {
				return use
			}
		case name == key:
			return f.Tag.Get("deprecated")
		}
	}
	return ""
}

// beside returns the path of a setting, such as pools[].mode, in the same entries of
// lists as path, such as pools[2].classes[0].old.
func beside(setting, path string) string {
	var b strings.Builder
	for {
		before, after, list := strings.Cut(setting, "[]")
		b.WriteString(before)
		if !list {
			return b.String()
		}
		index := "[0]"
		if rest, ok := strings.CutPrefix(path, b.String()+"["); ok {
			number, _, _ := strings.Cut(rest, "]")
			index = "[" + number + "]"
		}
		b.WriteString(index)
		setting = after
	}
}

// deprecations warns of what is to go. Two that say the same are an error: nobody can tell
// which is meant.
func (d *decoder) deprecations() {
	for _, old := range d.old {
		if d.src.says(old.use) {
			d.at(old.at, old.path, fmt.Sprintf("deprecated, and %s, which takes its place, is given too: allowed is %s alone", old.use, old.use))
		} else {
			d.problems = append(d.problems, Problem{
				File: d.src.file, Line: old.at.line, Column: old.at.column, Path: old.path, Warning: true,
				Text: "deprecated: " + old.use + " takes its place",
			})
		}
	}
}
