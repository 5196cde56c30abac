package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tb is what testing.T and rapid.T have in common.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func validJSON(b []byte) bool { return json.Valid(b) }

func decode(t tb, b []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}

func TestProject(t *testing.T) {
	for _, c := range []struct {
		name string
		in   string
		p    Projection
		want string // "" for the body itself
	}{
		{"nothing", `{"model":"m","prompt":""}`, Projection{}, ""},
		{"nothing to change", `{"model":"m","prompt":"","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"priority":-1}`,
			Projection{Model: "m", Stream: true, MaxTokens: 5, Priority: -1, HasPriority: true}, ""},
		{"model", `{ "model" : "m" , "prompt":"" }`, Projection{Model: "org/\"x\"\n"}, `{ "model" : "org/\"x\"\u000a" , "prompt":"" }`},
		{"model with an escaped key", `{"mod\u0065l":"m","prompt":""}`, Projection{Model: "x"}, `{"mod\u0065l":"x","prompt":""}`},
		{"stream", `{"model":"m","prompt":""}`, Projection{Stream: true}, `{"model":"m","prompt":"","stream":true,"stream_options":{"include_usage":true}}`},
		{"stream in place", `{"stream":false,"stream_options":null,"model":"m","prompt":""}`, Projection{Stream: true},
			`{"stream":true,"stream_options":{"include_usage":true},"model":"m","prompt":""}`},
		{"other stream options", `{"stream":true,"stream_options":{ "continuous_usage_stats":true},"model":"m","prompt":""}`, Projection{Stream: true},
			`{"stream":true,"stream_options":{"include_usage":true, "continuous_usage_stats":true},"model":"m","prompt":""}`},
		{"empty stream options", `{"stream":true,"stream_options":{ },"model":"m","prompt":""}`, Projection{Stream: true},
			`{"stream":true,"stream_options":{"include_usage":true },"model":"m","prompt":""}`},
		{"usage refused by the client", `{"stream":true,"stream_options":{"include_usage":false,"x":1},"model":"m","prompt":""}`, Projection{Stream: true},
			`{"stream":true,"stream_options":{"include_usage":true,"x":1},"model":"m","prompt":""}`},
		{"limit added", `{"model":"m","prompt":""}`, Projection{MaxTokens: 7}, `{"model":"m","prompt":"","max_tokens":7}`},
		{"limit lowered", `{"max_tokens":9,"model":"m","prompt":""}`, Projection{MaxTokens: 7}, `{"max_tokens":7,"model":"m","prompt":""}`},
		{"limit never raised", `{"max_tokens":5,"model":"m","prompt":""}`, Projection{MaxTokens: 7}, ""},
		{"limit where the client put it", `{"max_completion_tokens":9,"model":"m","prompt":""}`, Projection{MaxTokens: 7}, `{"max_completion_tokens":7,"model":"m","prompt":""}`},
		{"each limit", `{"max_completion_tokens":9,"max_tokens":8,"n_predict":3,"model":"m","prompt":""}`, Projection{MaxTokens: 7}, `{"max_completion_tokens":7,"max_tokens":7,"n_predict":3,"model":"m","prompt":""}`},
		{"limit of null", `{"max_tokens":null,"model":"m","prompt":""}`, Projection{MaxTokens: 7}, `{"max_tokens":7,"model":"m","prompt":""}`},
		{"limit that one engine obeys", `{"n_predict":3,"model":"m","prompt":""}`, Projection{MaxTokens: 7}, `{"n_predict":3,"model":"m","prompt":"","max_tokens":3}`},
		{"priority set", `{"model":"m","prompt":""}`, Projection{Priority: 10, HasPriority: true}, `{"model":"m","prompt":"","priority":10}`},
		{"priority replaced", `{"priority":"-99","model":"m","prompt":""}`, Projection{Priority: 0, HasPriority: true}, `{"priority":0,"model":"m","prompt":""}`},
		{"client's priority, first", `{ "priority" : -99 , "model":"m","prompt":""}`, Projection{}, `{  "model":"m","prompt":""}`},
		{"client's priority, between", `{"model":"m" , "priority":[1] ,"prompt":""}`, Projection{}, `{"model":"m"  ,"prompt":""}`},
		{"client's priority, last", `{"model":"m","prompt":"","prior\u0069ty":-99}`, Projection{MaxTokens: 1}, `{"model":"m","prompt":"","max_tokens":1}`},
		{"service tier stays", `{"model":"m","prompt":"","service_tier":"flex"}`, Projection{}, ""},
		{"duplicates of others stay", `{"x":1,"x":2,"model":"m","prompt":"\u0041\/"}`, Projection{Model: "n"}, `{"x":1,"x":2,"model":"n","prompt":"\u0041\/"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, refusal := Parse(Completions, []byte(c.in))
			if refusal != nil {
				t.Fatal(refusal)
			}
			got, err := r.Project(nil, c.p)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if &got[0] != &r.Body[0] {
					t.Errorf("not the body itself but %s", got)
				}
				return
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if string(r.Body) != c.in {
				t.Errorf("the client's body was changed to %s", r.Body)
			}
		})
	}
}

func TestProjectReusesDst(t *testing.T) {
	r, _ := Parse(Completions, []byte(`{"model":"m","prompt":""}`))
	dst := make([]byte, 100, 1000)
	got, err := r.Project(dst, Projection{MaxTokens: 7})
	if err != nil || &got[0] != &dst[0] || string(got) != `{"model":"m","prompt":"","max_tokens":7}` {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := (&Request{Body: []byte(`{}`)}).Project(nil, Projection{}); err == nil {
		t.Error("a request that Parse did not make was projected")
	}
}

var ownedNames = []string{"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n_predict", "priority"}

// checkProjection tells what is wrong with a projection. Each piece of the body
// between owned fields must be there unchanged and in order, and each owned
// field must have the value it should.
func checkProjection(t tb, r *Request, p Projection, out []byte) {
	t.Helper()
	before, after := decode(t, r.Body), decode(t, out)
	if p.Model != "" && after["model"] != string([]rune(p.Model)) || p.Model == "" && after["model"] != r.Model {
		t.Fatalf("model is %v", after["model"])
	}
	if options, _ := after["stream_options"].(map[string]any); p.Stream && (after["stream"] != true || options["include_usage"] != true) {
		t.Fatalf("stream is %v, stream_options %v", after["stream"], options)
	} else if was, _ := before["stream_options"].(map[string]any); len(was) > 0 {
		delete(was, "include_usage")
		delete(options, "include_usage")
		if d := cmp.Diff(was, options); d != "" {
			t.Fatalf("other stream options (-before +after)\n%s", d)
		}
	}
	if p.MaxTokens > 0 {
		obeyed := false
		for _, name := range []string{"max_tokens", "max_completion_tokens", "n_predict"} {
			n, ok := after[name].(float64)
			was, had := before[name].(float64)
			if ok && (n > float64(p.MaxTokens) || had && n > was) {
				t.Fatalf("%s is %v, was %v", name, n, was)
			}
			obeyed = obeyed || ok && name != "n_predict"
		}
		if !obeyed {
			t.Fatal("no limit that every engine obeys")
		}
	}
	if priority, there := after["priority"]; there != p.HasPriority || there && priority != float64(p.Priority) {
		t.Fatalf("priority is %v", priority)
	}
	if a, b := others(t, r.Body), others(t, out); a != b {
		t.Fatalf("other members\nbefore %s\nafter  %s", a, b)
	}
}

// others is the bytes of the members that are not owned, in order.
func others(t tb, body []byte) string {
	t.Helper()
	var out strings.Builder
	s := scanner{b: body}
	s.peek()
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			break
		}
		owned := false
		for _, name := range ownedNames {
			owned = owned || string(key) == name
		}
		at := s.keyAt
		s.skip()
		if !owned {
			fmt.Fprintf(&out, "%s;", body[at:s.i])
		}
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return out.String()
}

func TestProjectProperty(t *testing.T) {
	ws := rapid.SampledFrom([]string{"", " ", "\n\t"})
	values := map[string]*rapid.Generator[string]{
		"model":                 rapid.SampledFrom([]string{`"m"`, `"\u006d"`}),
		"stream":                rapid.SampledFrom([]string{"true", "false", "null"}),
		"stream_options":        rapid.SampledFrom([]string{"null", "{}", "{ }", `{"include_usage":false}`, `{"x":[1], "include_usage":true}`, `{"x":{"include_usage":0}}`}),
		"max_tokens":            rapid.SampledFrom([]string{"0", "5", "50", "null", "7.0"}),
		"max_completion_tokens": rapid.SampledFrom([]string{"1", "60", "null"}),
		"n_predict":             rapid.SampledFrom([]string{"3", "70", "null"}),
		"priority":              rapid.SampledFrom([]string{"-1", `"x"`, "null", `{"a":","}`}),
		"unknown":               rapid.SampledFrom([]string{"1", `"\ud800}"`, `[{"model":"x"}]`}),
		"prompt":                rapid.SampledFrom([]string{`"a"`, `[1]`}),
	}
	names := append([]string{"unknown", "unknown", "prompt"}, ownedNames...)
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		b.WriteString("{")
		for i, name := range rapid.Permutation(names).Draw(t, "order") {
			if name != "model" && name != "prompt" && rapid.Bool().Draw(t, "leave out "+name) {
				continue
			}
			if b.Len() > 1 && i > 0 {
				b.WriteString(",")
			}
			key := name
			if rapid.Bool().Draw(t, "escape "+name) {
				key = fmt.Sprintf(`\u%04x%s`, name[0], name[1:])
			}
			fmt.Fprintf(&b, `%s"%s"%s:%s%s%s`, ws.Draw(t, "ws"), key, ws.Draw(t, "ws"), ws.Draw(t, "ws"), values[name].Draw(t, name), ws.Draw(t, "ws"))
		}
		b.WriteString("}")
		r, refusal := Parse(Completions, b.Bytes())
		if refusal != nil {
			t.Fatalf("%v: %s", refusal, b.Bytes())
		}
		p := Projection{
			Model:       rapid.SampledFrom([]string{"", "m", "other"}).Draw(t, "model"),
			Stream:      rapid.Bool().Draw(t, "stream"),
			MaxTokens:   rapid.SampledFrom([]int{0, 1, 20, 1000}).Draw(t, "max tokens"),
			Priority:    rapid.IntRange(-3, 3).Draw(t, "priority"),
			HasPriority: rapid.Bool().Draw(t, "has priority"),
		}
		out, err := r.Project(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		checkProjection(t, r, p, out)
		again, refusal := Parse(Completions, out)
		if refusal != nil {
			t.Fatalf("what was projected is refused: %v: %s", refusal, out)
		}
		if same, _ := again.Project(nil, p); &same[0] != &out[0] {
			t.Fatalf("projecting twice changes %s to %s", out, same)
		}
	})
}

func FuzzProject(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":"hi","priority":1}`,
		`{"priority":1,"stream":false,"stream_options":{"x":1},"max_tokens":null,"model":"m","prompt":[1]}`,
		`{"mod\u0065l":"m","stream_options":null,"n_predict":5,"prompt":"","\u0070riority":null , "x":"}"}`,
	} {
		f.Add([]byte(s), "x", true, 5, 1, false)
		f.Add([]byte(s), "", false, 0, -1, true)
	}
	f.Fuzz(func(t *testing.T, body []byte, model string, stream bool, limit, priority int, has bool) {
		r, refusal := Parse(Completions, body)
		if refusal != nil {
			return
		}
		p := Projection{Model: model, Stream: stream, MaxTokens: limit % 1000, Priority: priority % 1000, HasPriority: has}
		out, err := r.Project(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		checkProjection(t, r, p, out)
	})
}

func BenchmarkProject(b *testing.B) {
	r, err := Parse(Chat, []byte(`{"model":"qwen3-8b","messages":[{"role":"user","content":"`+strings.Repeat("hello ", 1000)+`"}],"stream":true,"max_tokens":100}`))
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 2*len(r.Body))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Project(dst, Projection{Stream: true, MaxTokens: 50, Priority: 1, HasPriority: true}); err != nil {
			b.Fatal(err)
		}
	}
}

// What has no output is given no limit of one, and never streamed, continued or
// sent in pieces.
func TestProjectEmbeddings(t *testing.T) {
	r, err := Parse(Embeddings, []byte(`{"model":"m","input":"a","encoding_format":"base64","priority":3}`))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := r.Project(nil, Projection{Model: "x", Stream: true, MaxTokens: 5, HasPriority: true})
	if want := `{"model":"x","input":"a","encoding_format":"base64","priority":0}`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if r.Resumable() || r.Splittable() {
		t.Errorf("resumable %v, splittable %v", r.Resumable(), r.Splittable())
	}
}
