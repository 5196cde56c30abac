package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/goccy/go-yaml"
	"github.com/rogpeppe/go-internal/txtar"
)

// TestSchemaTakesSamples: every good file in this repository fits the schema.
func TestSchemaTakesSamples(t *testing.T) {
	good := 0
	for name, text := range samples(t) {
		if c, _ := Parse(name, []byte(text)); c == nil {
			continue // a bad one, or no configuration
		}
		good++
		if err := fits(text); err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	if good < 12 {
		t.Errorf("only %d good samples were found", good)
	}
}

// TestSchemaRefuses: what is wrong with a single value or key is refused by the
// schema as by Parse.
func TestSchemaRefuses(t *testing.T) {
	if err := fits(minimal); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{
		"unknown key":               minimal + "lisen: 127.0.0.1:1\n",
		"unknown key below":         minimal + "limits: {drain: 1m}\n",
		"unknown key of an engine":  strings.Replace(minimal, "slots: 4", "slot: 4", 1),
		"unknown key of an amount":  strings.Replace(minimal, "floor: {slots: 1}", "floor: {slot: 1}", 1),
		"wrong name":                strings.Replace(minimal, "kind: openai", "kind: opneai", 1),
		"wrong level":               minimal + "log: {level: loud}\n",
		"wrong reclaim":             strings.Replace(minimal, "name: chat,", "name: chat, reclaim: force,", 1),
		"text for a number":         strings.Replace(minimal, "slots: 4", "slots: four", 1),
		"number for a text":         strings.Replace(minimal, "name: main", "name: 7", 1),
		"list for a mapping":        minimal + "admin: []\n",
		"mapping for a list":        strings.Replace(minimal, "[chat]", "{chat: true}", 1),
		"text for a list":           strings.Replace(minimal, "[chat]", "chat", 1),
		"text for a bool":           strings.Replace(minimal, "[chat]", `[chat], header: "yes"`, 1),
		"duration without its unit": minimal + "limits: {keepalive: 10}\n",
		"duration below zero":       minimal + "limits: {keepalive: -10s}\n",
		"no duration":               minimal + "limits: {keepalive: long}\n",
		"no size":                   minimal + "limits: {body_bytes: 16MB}\n",
		"size too large":            minimal + "limits: {body_bytes: 9999999999}\n",
		"more than all":             strings.Replace(minimal, "slots: 1}", "slots: 101%}", 1),
		"floor below zero":          strings.Replace(minimal, "slots: 1}", "slots: -1}", 1),
		"no share":                  strings.Replace(minimal, "name: main", "name: main\n    stall_share: half", 1),
		"share above one":           strings.Replace(minimal, "name: main", "name: main\n    stall_share: 1.5", 1),
		"number too large":          minimal + "journal: {buffer: 9999999}\n",
		"number too small":          minimal + "journal: {buffer: 1}\n",
		"no name":                   strings.Replace(minimal, "name: main", "name: my pool", 1),
		"nothing for a name":        strings.Replace(minimal, "name: main", "name:", 1),
		"no address":                minimal + "listen: localhost\n",
		"no URL":                    strings.Replace(minimal, "http://127.0.0.1:8000", "127.0.0.1:8000", 1),
		"no variable":               strings.Replace(minimal, "slots: 4", "api_key_env: sk-1234, slots: 4", 1),
		"no hash":                   minimal + "keys: [{name: a, tenant: a, hash: secret, classes: [chat]}]\n",
		"required key":              strings.Replace(minimal, "kind: openai, ", "", 1),
		"no pools":                  "anonymous: {classes: [chat]}\n",
		"empty pools":               "anonymous: {classes: [chat]}\npools: []\n",
		"nobody may call":           strings.Replace(minimal, "anonymous: {classes: [chat]}\n", "", 1),
		"what openai does not say":  strings.Replace(minimal, ", kv_tokens: 4000", "", 1),
		"deadline without one":      strings.Replace(minimal, "name: chat,", "name: chat, reclaim: deadline,", 1),
		"window without one":        strings.Replace(minimal, "name: chat,", "name: chat, guarantee: window,", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if c, _ := Parse("hg.yaml", []byte(in)); c != nil {
				t.Error("Parse takes it")
			}
			if err := fits(in); err == nil {
				t.Errorf("the schema takes it:\n%s", in)
			}
		})
	}
}

// odd values are tried at every place of a file.
var odd = []any{
	nil, true, "", "x", "a b", "3", "512", "0", "30s", "1m30s", "1.5h", ".5s", "-5s", "5", "40%", "12.5 %", "101%", "0.5", "1.0", "16MiB", "16 KiB",
	"7B", "info", "text", "window", "idle", "deadline", "vllm", "llamacpp", "127.0.0.1:80", ":0", "[::1]:65535", "http://h:1", "HOME", "1X",
	uint64(0), uint64(1), uint64(20), uint64(64), uint64(65), uint64(100_001), uint64(1 << 20), uint64(1<<30 + 1), uint64(math.MaxInt64), int64(-1), int64(-1_000_001), 0.5, 1.5,
	[]any{}, []any{"chat"}, []any{"x"}, []any{uint64(1)}, map[string]any{}, map[string]any{"x": uint64(1)}, map[string]any{"slots": "25%"},
}

// TestSchemaAgrees puts odd values at every place. What Parse takes the schema takes;
// where the schema takes what Parse does not, the rule is about more than one value,
// or about how long a duration may be. Those are the golden, to be looked at.
func TestSchemaAgrees(t *testing.T) {
	base, err := yaml.YAMLToJSON(fmt.Appendf(nil, everything, 0))
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	wider := map[string][]string{}
	schema := readSchema()
	at(schema, "", func(path string) {
		for i, x := range odd {
			if (i+len(path))%2 == 1 {
				continue // each path with half of them, each of them with half of the paths
			}
			var doc any
			if err := json.Unmarshal(base, &doc); err != nil {
				t.Fatal(err)
			}
			put(doc, strings.Split(path, "."), x)
			text, err := json.Marshal(doc) // which is YAML too
			if err != nil {
				t.Fatal(err)
			}
			tried++
			c, problems := Parse("odd.yaml", text)
			refused := check(schema, doc, "")
			switch {
			case c != nil && refused != nil:
				t.Errorf("%s: %#v is good, but the schema says %v", path, x, refused)
			case c == nil && refused == nil:
				shown, err := json.Marshal(x)
				if err != nil {
					t.Fatal(err)
				}
				wider[path] = append(wider[path], string(shown))
			case c == nil && len(problems) == 0:
				t.Errorf("%s: %#v is refused without a reason", path, x)
			}
		}
	})
	if tried < 1500 {
		t.Errorf("only %d were tried", tried)
	}
	datadriven.RunTest(t, "testdata/schema/wider", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		for _, path := range slices.Sorted(maps.Keys(wider)) {
			fmt.Fprintf(&b, "%s: %s\n", path, strings.Join(wider[path], " "))
		}
		return b.String()
	})
}

// at calls f with the path of every key; a list's first entry is 0.
func at(s map[string]any, path string, f func(path string)) {
	if items, ok := s["items"].(map[string]any); ok {
		at(items, path+".0", f)
	}
	properties, _ := s["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		p := strings.TrimPrefix(path+"."+key, ".")
		f(p)
		at(properties[key].(map[string]any), p, f)
	}
}

// put sets a value, with the mappings on the way to it.
func put(doc any, path []string, x any) {
	m, ok := doc.(map[string]any)
	switch {
	case !ok:
		put(doc.([]any)[0], path[1:], x)
	case len(path) == 1:
		m[path[0]] = x
	default:
		if m[path[0]] == nil {
			m[path[0]] = map[string]any{}
		}
		put(m[path[0]], path[1:], x)
	}
}

// samples are the files in tests, the example files, and the documents.
func samples(t *testing.T) map[string]string {
	all := map[string]string{"everything": fmt.Sprintf(everything, 0)}
	each := func(pattern string, f func(name, text string)) {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f(file, string(b))
		}
	}
	each("testdata/*.txt", func(name, text string) {
		for i, part := range strings.Split(text, "\nparse\n")[1:] {
			in, _, _ := strings.Cut(part, "\n----\n")
			all[fmt.Sprintf("%s %d", name, i)] = in
		}
	})
	each("../cmd/headgate/*.yaml", func(name, text string) { all[name] = text })
	each("../cmd/headgate/testdata/*/*.txtar", func(name, text string) {
		for _, f := range txtar.Parse([]byte(text)).Files {
			all[name+" "+f.Name] = string(f.Data)
		}
	})
	for _, pattern := range []string{"../README.md", "../docs/*.md"} {
		each(pattern, func(name, text string) {
			for i, part := range strings.Split(text, "```yaml\n")[1:] {
				in, _, _ := strings.Cut(part, "```")
				all[fmt.Sprintf("%s %d", name, i)] = strings.ReplaceAll(in, "sha256:...", "sha256:"+strings.Repeat("0", 64))
			}
		})
	}
	return all
}

// fits checks a file against the schema.
func fits(text string) error {
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	return check(readSchema(), v, "")
}

// readSchema reads the schema as any editor would.
var readSchema = sync.OnceValue(func() (s map[string]any) {
	if err := json.Unmarshal(Schema, &s); err != nil {
		panic(err)
	}
	return s
})

// compiled are the patterns that were met.
var compiled = map[string]*regexp.Regexp{}

func matches(pattern, text string) bool {
	if compiled[pattern] == nil {
		compiled[pattern] = regexp.MustCompile(pattern)
	}
	return compiled[pattern].MatchString(text)
}

// check is as much of JSON Schema's validation as the schema uses. A keyword that it
// does not know is an error, so that none is taken as checked.
func check(s map[string]any, v any, path string) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...))
	}
	number, isNumber := asNumber(v)
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		want := s[keyword]
		switch keyword {
		case "$schema", "title", "description", "default", "then":
		case "type":
			types, several := want.([]any)
			if !several {
				types = []any{want}
			}
			if !slices.ContainsFunc(types, func(w any) bool { return w == typeOf(v) || w == "number" && typeOf(v) == "integer" }) {
				return wrong("%v is no %v", v, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), v) {
				return wrong("%v is none of %v", v, want)
			}
		case "const":
			if n, ok := asNumber(want); v != want && !(ok && isNumber && n == number) {
				return wrong("%v is not %v", v, want)
			}
		case "pattern":
			if text, ok := v.(string); ok && !matches(want.(string), text) {
				return wrong("%q does not match %s", text, want)
			}
		case "minimum":
			if isNumber && number < want.(float64) {
				return wrong("%v is below %v", v, want)
			}
		case "maximum":
			if isNumber && number > want.(float64) {
				return wrong("%v is above %v", v, want)
			}
		case "minItems", "maxItems":
			if list, ok := v.([]any); ok && (keyword == "minItems") == (float64(len(list)) < want.(float64)) && float64(len(list)) != want.(float64) {
				return wrong("%d entries, %s %v", len(list), keyword, want)
			}
		case "items":
			list, _ := v.([]any)
			for i, x := range list {
				if err := check(want.(map[string]any), x, fmt.Sprintf("%s[%d]", path, i)); err != nil {
					return err
				}
			}
		case "properties":
			m, _ := v.(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(m)) {
				if p, ok := want.(map[string]any)[key].(map[string]any); ok {
					if err := check(p, m[key], path+"."+key); err != nil {
						return err
					}
				}
			}
		case "additionalProperties":
			m, _ := v.(map[string]any)
			for key := range m {
				if _, known := s["properties"].(map[string]any)[key]; !known && want == false {
					return wrong("unknown key %s", key)
				}
			}
		case "required":
			m, ok := v.(map[string]any)
			for _, key := range want.([]any) {
				if _, has := m[key.(string)]; ok && !has {
					return wrong("%s is missing", key)
				}
			}
		case "anyOf":
			var all error
			if !slices.ContainsFunc(want.([]any), func(w any) bool {
				err := check(w.(map[string]any), v, path)
				all = errors.Join(all, err)
				return err == nil
			}) {
				return all
			}
		case "allOf":
			for _, w := range want.([]any) {
				if err := check(w.(map[string]any), v, path); err != nil {
					return err
				}
			}
		case "if":
			if check(want.(map[string]any), v, path) == nil {
				if err := check(s["then"].(map[string]any), v, path); err != nil {
					return err
				}
			}
		default:
			return wrong("the schema has a keyword %s that is not checked here", keyword)
		}
	}
	return nil
}

func asNumber(v any) (float64, bool) {
	switch r := reflect.ValueOf(v); {
	case v == nil:
		return 0, false
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	case r.CanFloat():
		return r.Float(), true
	}
	return 0, false
}

func typeOf(v any) string {
	switch x := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return map[bool]string{true: "string", false: "bytes"}[utf8.ValidString(x)]
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	if n, ok := asNumber(v); ok && n == math.Trunc(n) {
		return "integer"
	}
	return "number"
}
