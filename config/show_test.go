package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// TestShow runs the story of testdata/show: yaml and json print the input as it is in
// effect, with where each value comes from.
func TestShow(t *testing.T) {
	datadriven.RunTest(t, "testdata/show/origins", func(t *testing.T, d *datadriven.TestData) string {
		c, problems := Parse("hg.yaml", []byte(d.Input+"\n"))
		if c == nil {
			return printed(problems)
		}
		print := map[string]func(*Config) ([]byte, error){"yaml": ShowYAML, "json": ShowJSON}[d.Cmd]
		if print == nil {
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		b, err := print(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	})
}

// FuzzShow: whatever a good file says, what is shown means what is effective, with
// comments and as JSON, and has an origin for each value.
func FuzzShow(f *testing.F) {
	f.Add(minimal)
	f.Add(fmt.Sprintf(everything, 0))
	for _, models := range []string{`["a\nb", "c # d", "e: f", "x\n", " y ", "'", "\"", "\u00e9", "012", "true", "-", "null", "1e3"]`, `["a\n\n# line 3\nb"]`} {
		f.Add(strings.Replace(minimal, "name: main", "name: main\n    models: "+models, 1))
	}
	f.Fuzz(func(t *testing.T, in string) {
		c, _ := Parse("f.yaml", []byte(in))
		if c == nil {
			return
		}
		want, err := Effective(c)
		if err != nil {
			t.Fatal(err)
		}
		text, err := ShowYAML(c)
		if err != nil {
			t.Fatal(err)
		}
		again, problems := Parse("shown.yaml", text)
		if again == nil {
			t.Fatalf("%v\n%s", problems, text)
		}
		got, err := Effective(again)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("the comments change the meaning (-effective +shown):\n%s", d)
		}
		b, err := ShowJSON(c)
		if err != nil {
			t.Fatal(err)
		}
		var object struct{ Effective, Provenance any }
		if err := json.Unmarshal(b, &object); err != nil {
			t.Fatal(err)
		}
		effective, err := json.Marshal(object.Effective)
		if err != nil {
			t.Fatal(err)
		}
		// JSON is YAML too.
		if back, problems := Parse("shown.json", effective); back == nil {
			t.Errorf("%v\n%s", problems, effective)
		} else if got, err := Effective(back); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: JSON changes the meaning (-effective +shown):\n%s", err, cmp.Diff(string(want), string(got)))
		}
		if a, b := shape(object.Effective), shape(object.Provenance); a != b {
			t.Errorf("values and origins are not parallel:\n%s\n%s", a, b)
		}
	})
}

// shape prints a JSON value without its scalars.
func shape(v any) string {
	switch x := v.(type) {
	case map[string]any:
		m := map[string]string{}
		for k, e := range x {
			m[k] = shape(e)
		}
		return fmt.Sprint(m)
	case []any:
		s := make([]string, len(x))
		for i, e := range x {
			s[i] = shape(e)
		}
		return fmt.Sprint(s)
	}
	return "."
}

// TestShowSafe: whatever has no business in the console is nowhere in what it gets, by the
// types that have it, and what a change says of it is that there is one.
func TestShowSafe(t *testing.T) {
	file := fmt.Sprintf(everything, 7)
	hook := strings.NewReplacer("command: [c]", "command: [switch, --token, hook-secret]", `key_env: K}`, `body: '{"token":"hook-secret"}', key_env: K}`).Replace(replanned)
	for _, in := range []string{file, hook} {
		c, problems := Parse("hg.yaml", []byte(in))
		if c == nil {
			t.Fatal(problems)
		}
		b, err := ShowSafe(c, map[string]string{"listen": "command line"})
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"sha256:", strings.Repeat("0", 60), "hook-secret"} {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s shows: %s", secret, b)
			}
		}
		var object struct {
			Effective  map[string]any
			Provenance map[string]any
		}
		if err := json.Unmarshal(b, &object); err != nil {
			t.Fatal(err)
		}
		if a, b := shape(object.Effective), shape(object.Provenance); a != b {
			t.Errorf("values and origins are not parallel:\n%s\n%s", a, b)
		}
		if got := object.Provenance["listen"]; got != "command line" {
			t.Errorf("listen comes from %v", got)
		}
	}
	old, _ := Parse("hg.yaml", []byte(file))
	other, _ := Parse("hg.yaml", fmt.Appendf(nil, everything, 8))
	changes := Changes(old, other)
	if len(changes) != 1 || changes[0].Path != "keys[k].hash" || changes[0].At != "keys[0].hash" || changes[0].New != "[redacted]" || changes[0].Old != "[redacted]" {
		t.Errorf("%+v", changes)
	}
}

// TestPolicyText: what is printed of a policy is that policy.
func TestPolicyText(t *testing.T) {
	c, problems := Parse("hg.yaml", fmt.Appendf(nil, everything, 0))
	if c == nil {
		t.Fatal(problems)
	}
	text, err := PolicyText(&c.Pools[0].Policy)
	if err != nil {
		t.Fatal(err)
	}
	p, problems := ParsePolicy("policy", text)
	if p == nil {
		t.Fatalf("%v\n%s", problems, text)
	}
	again, err := PolicyText(&p.Policy)
	if err != nil || !bytes.Equal(text, again) || !bytes.Contains(text, []byte("name: batch")) {
		t.Errorf("%v\n%s", err, cmp.Diff(string(text), string(again)))
	}
}
