package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestVersion: a file says for which form it was written, and one for a newer build is
// refused for that alone, whatever else this build does not know of it.
func TestVersion(t *testing.T) {
	for version, want := range map[string]string{
		"":             "",
		"version: 1\n": "",
		"version:\n":   "",
		"version: 2\nbrand_new: {a: 1}\nlisten: [x]\n": "hg.yaml:1:10: version: value 2: allowed 1, which is the newest that this build reads: this file is for a newer headgate\n",
		"version: 0\n":   "hg.yaml:1:10: version: value 0: allowed 1\n",
		"version: one\n": "hg.yaml:1:10: version: value one: allowed an integer\n",
	} {
		c, problems := Parse("hg.yaml", []byte(version+minimal))
		if got := printed(problems); got != want || (c == nil) != (want != "") {
			t.Errorf("%q: %s, want %s", version, got, want)
		}
	}
	if Version != 1 {
		t.Error("files that say nothing are of version 1, and the default of it has to stay that")
	}
}

// oldRoot is a file with settings that are to go, in entries of lists too.
type oldRoot struct {
	Patience string    `yaml:"patience,omitempty" deprecated:"limits.wait"`
	Limits   oldLimits `yaml:"limits"`
	Pools    []oldPool `yaml:"pools"`
}

type oldLimits struct {
	Wait string `yaml:"wait,omitempty"`
}

type oldPool struct {
	Shape   string     `yaml:"shape,omitempty"`
	Classes []oldClass `yaml:"classes"`
}

type oldClass struct {
	Inline oldInline `yaml:",inline"`
	Size   string    `yaml:"size,omitempty"`
}

type oldInline struct {
	Form string `yaml:"form,omitempty" deprecated:"pools[].shape"`
	Big  string `yaml:"big,omitempty" deprecated:"pools[].classes[].size"`
}

func (*oldRoot) validate(*list) {}

// TestDeprecation: a setting that is to go warns and says what takes its place, still
// counts, and is refused beside it.
func TestDeprecation(t *testing.T) {
	for in, want := range map[string]string{
		"patience: a\n":                    "hg.yaml:1:1: warning: patience: deprecated: limits.wait takes its place\n",
		"limits: {wait: a}\n":              "",
		"limits: {wait: a}\npatience: a\n": "hg.yaml:2:1: patience: deprecated, and limits.wait, which takes its place, is given too: allowed is limits.wait alone\n",
		"pools: [{shape: s}, {classes: [{form: f}, {size: s}, {big: b}]}]\n": "hg.yaml:1:33: warning: pools[1].classes[0].form: deprecated: pools[1].shape takes its place\nhg.yaml:1:55: warning: pools[1].classes[2].big: deprecated: pools[1].classes[2].size takes its place\n",
		"pools: [{classes: [{big: b, size: s}]}]\n":                          "hg.yaml:1:21: pools[0].classes[0].big: deprecated, and pools[0].classes[0].size, which takes its place, is given too: allowed is pools[0].classes[0].size alone\n",
	} {
		root := &oldRoot{}
		_, problems := fill("hg.yaml", []byte(in), root)
		if d := cmp.Diff(want, printed(problems)); d != "" {
			t.Errorf("%q (-want +got):\n%s", in, d)
		}
		if in == "patience: a\n" && root.Patience != "a" {
			t.Error("a deprecated setting does not count any more")
		}
	}
	field := reflect.TypeFor[oldRoot]().Field(0)
	if got := described("Patience is how long to wait.", field, "limits.wait"); !strings.HasPrefix(got, "Deprecated, use limits.wait. How long") {
		t.Errorf("the table says %q", got)
	}
}

// TestDeprecated: what takes the place of a setting is one.
func TestDeprecated(t *testing.T) {
	settings := settingsTable(t)
	var walk func(v reflect.Type)
	walk = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || !strings.HasPrefix(v.PkgPath(), "headgate/") {
			return
		}
		for i := range v.NumField() {
			f := v.Field(i)
			if use := f.Tag.Get("deprecated"); use != "" && !strings.Contains(settings, "\n| `"+use+"` |") {
				t.Errorf("%s.%s is deprecated for %s, which is no setting", v, f.Name, use)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[Config]())
}
