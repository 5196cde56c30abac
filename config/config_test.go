package config

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"headgate/identity"
)

// TestGolden runs the stories of testdata. Commands:
//
//	parse [more]        checks the input, after the file of the last parse if more; prints problems, or ok
//	effective           prints the last parse's effective configuration
//	resolve slots= kv=  prints the last parse's first pool in numbers
//	policy              checks the input as a policy in a file of its own; resolve then prints that
//	unset NAME...       prints what is missing where only these variables are set
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if filepath.Ext(path) != ".txt" {
			return
		}
		var text string
		var c *Config
		var resolve func(Envelope) ([]Capacity, []Problem)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "parse":
				in := d.Input + "\n"
				if d.HasArg("more") {
					in = text + in
				} else {
					text = in
				}
				var problems []Problem
				c, problems = Parse("hg.yaml", []byte(in))
				if (c == nil) != (Errors(problems) > 0) {
					t.Fatalf("config %v with problems %v", c, problems)
				}
				out := printed(problems)
				if c != nil {
					resolve = func(e Envelope) ([]Capacity, []Problem) { return c.Resolve(0, e) }
					out += "ok\n"
				}
				return out
			case "policy":
				p, problems := ParsePolicy("policy.yaml", []byte(d.Input+"\n"))
				out := printed(problems)
				if p != nil {
					resolve = p.Resolve
					out += "ok\n"
				}
				return out
			case "unset":
				return printed(c.Unset(func(name string) string {
					if d.HasArg(name) {
						return "secret"
					}
					return ""
				}))
			case "effective":
				b, err := Effective(c)
				if err != nil {
					t.Fatal(err)
				}
				again, problems := Parse("effective.yaml", b)
				if Errors(problems) > 0 {
					t.Fatalf("the effective configuration is refused: %v\n%s", problems, b)
				}
				b2, err := Effective(again)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(b), string(b2)); diff != "" {
					t.Errorf("printing twice differs:\n%s", diff)
				}
				return string(b)
			case "resolve":
				var e Envelope
				d.ScanArgs(t, "slots", &e.Slots)
				d.ScanArgs(t, "kv", &e.KVTokens)
				caps, problems := resolve(e)
				out := printed(problems)
				for _, k := range caps {
					out += fmt.Sprintf("%s: floor %v; unlent %v; ceiling %v; headroom %v\n", k.Class, k.Floor, k.Unlent, k.Ceiling, k.Headroom)
				}
				return out
			}
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

func printed(problems []Problem) string {
	var b strings.Builder
	for _, p := range problems {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// minimal is the smallest file without warnings.
const minimal = `anonymous: {classes: [chat]}
pools:
  - name: main
    engines: [{name: gpu0, kind: openai, url: "http://127.0.0.1:8000", slots: 4, kv_tokens: 4000}]
    classes: [{name: chat, floor: {slots: 1}}]
`

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hg.yaml")
	if _, _, err := Load(path); err == nil || !strings.Contains(err.Error(), "read configuration") {
		t.Errorf("no file: got %v", err)
	}
	if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	c, problems, err := Load(path)
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v, %v", problems, err)
	}
	if c.Pools[0].Engines[0].ObserveEvery != 250*time.Millisecond || c.Listen != "127.0.0.1:8080" {
		t.Errorf("defaults are not filled in: %+v", c)
	}
}

// TestBounds: a file that is made to keep the parser busy is refused at once.
func TestBounds(t *testing.T) {
	wide := "pools: [{engines: [" + strings.Repeat("*e, ", 3000) + "]}]\n"
	for name, tt := range map[string]struct{ in, want string }{
		"long":        {strings.Repeat("# comment\n", 60000), "longer than the allowed"},
		"many tokens": {strings.Repeat("a:\n", 50000), "words and signs"},
		"deep flow":   {"a: " + strings.Repeat("[", 10000), "nested deeper"},
		"deep maps":   {strings.Repeat("{a: ", 4000), "nested deeper"},
		"deep dashes": {strings.Repeat("- ", 9000), "nested deeper"},
		"alias bomb":  {bomb(), "repeats parts by aliases"},
		"alias to nothing": {
			wide, "alias *e: allowed is the name of an anchor before it",
		},
		"alias to itself": {"pools: &a [{models: *a}]\n", "alias *a: allowed is"},
	} {
		t.Run(name, func(t *testing.T) {
			c, problems := Parse("hg.yaml", []byte(tt.in))
			if c != nil || !strings.Contains(printed(problems), tt.want) {
				t.Errorf("want %q, got %.300s", tt.want, printed(problems))
			}
		})
	}
}

// TestManyKeys: as many keys as are allowed fit in the bounds of a file.
func TestManyKeys(t *testing.T) {
	var b strings.Builder
	b.WriteString("keys:\n")
	for i := range identity.MaxKeys {
		fmt.Fprintf(&b, "  - {name: user-%d, tenant: team-%d, hash: \"sha256:%064x\", classes: [chat, other], default: chat, header: true, service_tier: true}\n", i, i, i)
	}
	b.WriteString(strings.Replace(minimal, "anonymous: {classes: [chat]}\n", "", 1))
	in := strings.Replace(b.String(), "floor: {slots: 1}}]", "floor: {slots: 1}}, {name: other, floor: {slots: 1}}]", 1)
	if c, problems := Parse("hg.yaml", []byte(in)); len(problems) > 0 || len(c.Identity.Keys) != identity.MaxKeys {
		t.Fatalf("%.500s", printed(problems))
	}
}

// bomb repeats a pool of many classes, given once, many times.
func bomb() string {
	return "pools:\n  - &p {name: a, classes: [" + strings.Repeat("{name: c}, ", 300) + "]}\n" + strings.Repeat("  - *p\n", 3000)
}

func TestAliasesRepeatValues(t *testing.T) {
	in := strings.Replace(minimal, "floor: {slots: 1}}]", "floor: &f {slots: 1}}, {name: other, floor: *f}]", 1)
	c, problems := Parse("hg.yaml", []byte(in))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if k := c.Pools[0].Classes; k[0].Floor != k[1].Floor || k[1].Floor.Slots != Number(1) {
		t.Errorf("floors %v and %v", k[0].Floor, k[1].Floor)
	}
}

// TestResolvedSharesFit: whatever is accepted offline as percentages is
// accepted, with the order of 4.2's terms, for every envelope.
func TestResolvedSharesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString("anonymous: {classes: [c0]}\npools:\n  - name: p\n    engines: [{name: e, kind: vllm, url: http://h}]\n    classes:\n")
		left := [2]int{100, 100}
		n := rapid.IntRange(1, 8).Draw(t, "classes")
		for i := range n {
			fmt.Fprintf(&b, "      - {name: c%d", i)
			var floors [2]int
			for r, key := range []string{"slots", "kv_tokens"} {
				floors[r] = rapid.IntRange(0, left[r]).Draw(t, key)
				left[r] -= floors[r]
			}
			fmt.Fprintf(&b, ", floor: {slots: %d%%, kv_tokens: %d%%}", floors[0], floors[1])
			fmt.Fprintf(&b, ", unlent: {slots: %d%%, kv_tokens: %d%%}}\n",
				rapid.IntRange(0, floors[0]).Draw(t, "unlent slots"), rapid.IntRange(0, floors[1]).Draw(t, "unlent kv"))
		}
		c, problems := Parse("hg.yaml", []byte(b.String()))
		if c == nil {
			t.Fatalf("%v\n%s", problems, b.String())
		}
		e := Envelope{rapid.Int64Range(1, 4096).Draw(t, "slots"), rapid.Int64Range(1, 1<<40).Draw(t, "kv")}
		caps, problems := c.Resolve(0, e)
		if caps == nil {
			t.Fatalf("%v: %v\n%s", e, problems, b.String())
		}
		var sum Envelope
		for _, k := range caps {
			sum.Slots += k.Floor.Slots
			sum.KVTokens += k.Floor.KVTokens
			for _, r := range resources {
				if u, f, c := r.of(k.Unlent), r.of(k.Floor), r.of(k.Ceiling); u < 0 || u > f || f > c || c > r.of(e) {
					t.Fatalf("%s: unlent %d, floor %d, ceiling %d, envelope %d", r.name, u, f, c, r.of(e))
				}
			}
		}
		if sum.Slots > e.Slots || sum.KVTokens > e.KVTokens {
			t.Fatalf("floors of %v in an envelope of %v", sum, e)
		}
	})
}

func TestScalars(t *testing.T) {
	for in, want := range map[string]any{
		"0": Bytes(0), "512": Bytes(512), "64KiB": 64 * kib, "16 MiB": 16 * mib, "3GiB": 3 * gib, "7B": Bytes(7),
		"016MiB": nil, "1.5MiB": nil, "16MB": nil, "-1": nil, "": nil, "MiB": nil, "9223372036854775807KiB": nil,
	} {
		var b Bytes
		if err := b.UnmarshalText([]byte(in)); (err == nil) != (want != nil) || err == nil && b != want {
			t.Errorf("bytes %q: want %v, got %v, %v", in, want, b, err)
		}
	}
	for in, want := range map[string]any{
		"0": Number(0), "3": Number(3), "40%": Percent(40), "12.5 %": Percent(12.5), "100%": Percent(100), "0%": Percent(0),
		"101%": nil, "020": nil, "0x10": nil, "1_000": nil, "-1": nil, "-1%": nil, "NaN%": nil, "1e99": nil, "": nil, "%": nil, "many": nil,
	} {
		var q Quantity
		if err := q.UnmarshalText([]byte(in)); (err == nil) != (want != nil) || err == nil && q != want {
			t.Errorf("quantity %q: want %v, got %v, %v", in, want, q, err)
		}
	}
	for in, want := range map[string]any{
		"50%": Share(50), "0.5": Share(50), "0.07": Share(7), "1": Share(100), "1%": Share(1), "0": Share(0), "12.5%": Share(12.5),
		"101%": nil, "1.1": nil, "-1%": nil, "NaN": nil, "half": nil, "": nil,
	} {
		var s Share
		if err := s.UnmarshalText([]byte(in)); (err == nil) != (want != nil) || err == nil && s != want {
			t.Errorf("share %q: want %v, got %v, %v", in, want, s, err)
		}
	}
	if f := Share(7).Fraction(); f != 0.07 {
		t.Errorf("a share of 7%% is %v", f)
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", 30 * time.Second: "30s", time.Minute: "1m", 90 * time.Second: "1m30s",
		2 * time.Hour: "2h", 20 * time.Minute: "20m", 10 * time.Hour: "10h", time.Hour + 20*time.Second: "1h0m20s",
	} {
		got := formatDuration(d)
		if back, err := parseDuration(got); got != want || err != nil || back != d {
			t.Errorf("duration %v: want %s, got %s, which is %v, %v", d, want, got, back, err)
		}
	}
	for _, p := range []float64{7, 14, 28, 29, 55, 56, 57, 58} {
		if got := Percent(p).Of(100); got != int64(math.Round(p)) {
			t.Errorf("%v%% of 100: got %d", p, got)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"slots", "slot", 1}, {"solts", "slots", 1}, {"kv_token", "kv_tokens", 1}, {"flor", "floor", 1}, {"abc", "xyz", 3}} {
		if got, back := distance(tt.a, tt.b), distance(tt.b, tt.a); got != tt.want || back != tt.want {
			t.Errorf("%q, %q: want %d, got %d and %d", tt.a, tt.b, tt.want, got, back)
		}
	}
}

// FuzzParse: no input panics, hangs or is accepted without surviving a print.
func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(strings.Replace(minimal, "{slots: 1}}]", "&a {slots: 1}}, {name: b, floor: *a}]", 1)))
	f.Add([]byte("a: &x [*x]\n---\n? b\n: !!str {<<: *x}"))
	seeds, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, s := range seeds {
		b, err := os.ReadFile(s)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(b), "\nparse\n") {
			in, _, _ := strings.Cut(part, "\n----\n")
			f.Add([]byte(in))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, problems := Parse("f", in)
		for _, p := range problems {
			if p.Line < 1 || p.Column < 1 || p.Text == "" {
				t.Fatalf("a problem without its place or text: %+v", p)
			}
		}
		if c == nil {
			return
		}
		out, err := Effective(c)
		if err != nil {
			t.Fatal(err)
		}
		again, problems := Parse("effective", out)
		if again == nil {
			t.Fatalf("%v\n%s", problems, out)
		}
		// A percentage of what is known is the same capacity as a number.
		same := cmp.Options{cmpopts.IgnoreUnexported(Config{}), cmpopts.EquateEmpty(), cmp.AllowUnexported(Quantity{})}
		out2, err := Effective(again)
		if err != nil {
			t.Fatal(err)
		}
		final, _ := Parse("effective", out2)
		if d := cmp.Diff(again, final, same); d != "" {
			t.Fatalf("printing changes the meaning:\n%s", d)
		}
	})
}
