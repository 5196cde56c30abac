package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"headgate/identity"
)

// TestChanges runs the story of testdata/diff. Commands:
//
//	file [of=N]         remembers the input as the next file, or the N-th again with parts replaced: old => new
//	diff from=A to=B    prints what changes from the A-th file to the B-th
//	table               prints for each setting whether a change of it is live or needs a restart
func TestChanges(t *testing.T) {
	var texts []string
	var files []*Config
	datadriven.RunTest(t, "testdata/diff/changes", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "file":
			text := d.Input + "\n"
			if d.HasArg("of") {
				var n int
				d.ScanArgs(t, "of", &n)
				text = texts[n-1]
				for line := range strings.Lines(d.Input) {
					old, new, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " => ")
					if !ok || !strings.Contains(text, old) {
						d.Fatalf(t, "nothing to replace by %q", line)
					}
					text = strings.Replace(text, old, strings.ReplaceAll(new, `\n`, "\n"), 1)
				}
			}
			c, problems := Parse("hg.yaml", []byte(text))
			if c == nil {
				return printed(problems)
			}
			texts, files = append(texts, text), append(files, c)
			return fmt.Sprintf("file %d\n", len(files))
		case "diff":
			var a, b int
			d.ScanArgs(t, "from", &a)
			d.ScanArgs(t, "to", &b)
			changes := Changes(files[a-1], files[b-1])
			var out strings.Builder
			for _, c := range changes {
				fmt.Fprintf(&out, "%s: %q -> %q%s\n", c.Path, c.Old, c.New, map[bool]string{true: " restart"}[c.Restart])
			}
			if len(changes) == 0 {
				out.WriteString("same\n")
			}
			return out.String()
		case "table":
			var out strings.Builder
			for _, s := range settings(t) {
				fmt.Fprintf(&out, "%-7s %s\n", map[bool]string{true: "restart", false: "live"}[needsRestart(s)], s)
			}
			return out.String()
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

// settings are all that a file can say, lists of entries among them.
func settings(t *testing.T) []string {
	var all []string
	var of func(t reflect.Type, at spot)
	of = func(typ reflect.Type, at spot) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			inner, here := f.Type, at.key(key)
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			switch {
			case !f.IsExported():
			case options == "inline":
				of(inner, at)
			case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
				all = append(all, here.setting)
				if name, ok := inner.Elem().FieldByName("Name"); !ok || name.Tag.Get("yaml") != "name" {
					t.Errorf("the entries of %s have no name to be compared by", here.setting)
				}
				of(inner.Elem(), here.entry("", 0))
			case inner.Kind() == reflect.Struct && inner != reflect.TypeFor[Quantity]():
				of(inner, here)
			default:
				all = append(all, here.setting)
			}
		}
	}
	of(reflect.TypeFor[Config](), spot{})
	return all
}

// TestEverySettingIsDecided: nobody forgets to think whether a setting can change while
// the process runs.
func TestEverySettingIsDecided(t *testing.T) {
	used := map[string]bool{}
	for _, s := range settings(t) {
		decided := false
		for r := range restarts {
			if within(s, r) {
				decided, used[r] = true, true
			}
		}
		if !decided {
			t.Errorf("%s is in no line of restarts", s)
		}
	}
	for r := range restarts {
		if !used[r] {
			t.Errorf("%s is no setting", r)
		}
	}
	if !needsRestart("something.new") {
		t.Error("a setting that nobody thought of is taken to be live")
	}
}

// TestEverySettingIsCompared: a value that is set by itself is found by itself, both
// ways.
func TestEverySettingIsCompared(t *testing.T) {
	base := func() *Config {
		c, problems := Parse("hg.yaml", fmt.Appendf(nil, everything, 0))
		if c == nil {
			t.Fatal(problems)
		}
		r, problems := Parse("hg.yaml", []byte(replanned))
		if r == nil {
			t.Fatal(problems)
		}
		c.Pools[0].Replan = r.Pools[0].Replan
		return c
	}
	compared := map[string]bool{}
	var of func(v reflect.Value, at spot, c *Config)
	of = func(v reflect.Value, at spot, c *Config) {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			inner, here := v.Field(i), at.key(key)
			if inner.Kind() == reflect.Pointer && inner.CanSet() {
				if inner.IsNil() {
					inner.Set(reflect.New(inner.Type().Elem()))
				} else {
					inner = inner.Elem()
				}
			}
			switch {
			case !f.IsExported():
			case options == "inline":
				of(inner, at, c)
			case inner.Kind() == reflect.Slice && inner.Type().Elem().Kind() == reflect.Struct:
				of(inner.Index(0), here.entry(inner.Index(0).FieldByName("Name").String(), 0), c)
			case inner.Kind() == reflect.Struct && inner.Type() != reflect.TypeFor[Quantity]():
				of(inner, here, c)
			case key == "name": // which is compared by the list
			default:
				change(inner)
				for _, changes := range [][]Change{Changes(base(), c), Changes(c, base())} {
					found := slices.ContainsFunc(changes, func(g Change) bool { return g.Path == here.names && (g.Old != g.New || g.New == identity.Redacted) })
					if !found {
						t.Errorf("%s is changed, and there is %+v", here.names, changes)
					}
				}
				compared[here.setting] = true
			}
		}
	}
	c := base()
	of(reflect.ValueOf(c).Elem(), spot{}, c)
	for _, s := range settings(t) {
		if !compared[s] && !strings.HasSuffix(s, ".name") && !slices.Contains([]string{"admin.keys", "issuers", "keys", "limits.tenants", "rules", "rules[].claims", "pools", "pools[].engines", "pools[].classes", "pools[].aliases", "pools[].replan.profiles"}, s) {
			t.Errorf("%s was not compared", s)
		}
	}
}

// change gives a value that it did not have.
func change(v reflect.Value) {
	switch x := v.Interface().(type) {
	case Quantity:
		v.Set(reflect.ValueOf(Number(x.n + 1)))
		return
	case []string:
		v.Set(reflect.ValueOf(append([]string{"changed"}, x...)))
		return
	}
	switch {
	case v.CanInt():
		v.SetInt(v.Int() + 1<<20)
	case v.CanFloat():
		v.SetFloat(v.Float() + 1)
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "changed")
	}
}

// TestChangesOfPools: whatever classes two files have, nothing changes between a file and
// itself; what is different is found in both directions at the same paths, but for entries
// that only one has; and the order is the same each time.
func TestChangesOfPools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) *Config {
			var b strings.Builder
			b.WriteString("anonymous: {classes: [a]}\npools:\n  - name: p\n    engines: [{name: e, kind: vllm, url: http://h}]\n    classes:\n      - {name: a}\n")
			names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"b", "c", "d"}), 0, 3, rapid.ID).Draw(t, label)
			for _, n := range names {
				fmt.Fprintf(&b, "      - {name: %s, priority: %d, queue: {depth: %d}}\n", n, rapid.IntRange(-1, 1).Draw(t, "priority"), rapid.IntRange(255, 257).Draw(t, "depth"))
			}
			c, problems := Parse(label, []byte(b.String()))
			if c == nil {
				t.Fatal(problems)
			}
			return c
		}
		a, b := draw("a"), draw("b")
		if d := Changes(a, a); len(d) > 0 {
			t.Fatalf("a file and itself: %+v", d)
		}
		there, back := Changes(a, b), Changes(b, a)
		if !slices.Equal(there, Changes(a, b)) {
			t.Fatal("the order is not the same each time")
		}
		if (len(there) == 0) != (len(back) == 0) {
			t.Fatalf("there %+v, back %+v", there, back)
		}
		for _, c := range there {
			if c.Old == c.New && c.New != identity.Redacted {
				t.Fatalf("no change: %+v", c)
			}
			reverse := Change{Path: c.Path, Old: c.New, New: c.Old, Restart: c.Restart}
			if c.Old != "" && !slices.ContainsFunc(back, func(b Change) bool { b.At = ""; return b == reverse }) {
				t.Fatalf("%+v is not in %+v", reverse, back)
			}
		}
	})
}
