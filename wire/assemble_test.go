package wire

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/wire/sse"
)

// TestAssemble compares streams with what the same engine answers without one:
// testdata/assemble/NAME.sse and NAME.json. Members that are null there may be
// missing here.
func TestAssemble(t *testing.T) {
	streams, err := filepath.Glob("testdata/assemble/*.sse")
	if err != nil || len(streams) == 0 {
		t.Fatal("no streams", err)
	}
	for _, name := range streams {
		t.Run(filepath.Base(name), func(t *testing.T) {
			api := Chat
			if strings.Contains(name, "completion") {
				api = Completions
			}
			stream, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			a := NewAssembler(api, 1<<20)
			for r := sse.NewReader(stream, 1<<20); ; {
				e, err := r.Next()
				if err != nil {
					break
				}
				if err := a.Add(e.Data); err != nil {
					t.Fatal(err)
				}
			}
			got, err := a.JSON()
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(strings.TrimSuffix(name, ".sse") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(dropNull(decode(t, want)), dropNull(decode(t, got))); d != "" {
				t.Errorf("(-engine +assembled)\n%s\n%s", d, got)
			}
		})
	}
}

// dropNull removes what is null or an empty array.
func dropNull(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if list, ok := e.([]any); e == nil || ok && len(list) == 0 {
				delete(v, k)
			} else {
				v[k] = dropNull(e)
			}
		}
	case []any:
		for i := range v {
			v[i] = dropNull(v[i])
		}
	}
	return v
}

func assemble(api API, most int, chunks ...string) (string, error) {
	a := NewAssembler(api, most)
	for _, c := range chunks {
		if err := a.Add([]byte(c)); err != nil {
			return "", err
		}
	}
	b, err := a.JSON()
	return string(b), err
}

func TestAssembleDetails(t *testing.T) {
	for _, c := range []struct {
		name   string
		api    API
		chunks []string
		want   string
	}{
		{"members of the first chunk stay, others are the last's", Chat, []string{
			`{"id":"a","model":"m","x":1,"y":{"z":1},"choices":[{"index":0,"delta":{"role":"assistant","content":""},"stop_reason":null}]}`,
			`{"id":"b","model":"n","x":2,"y":null,"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop","stop_reason":7}]}`},
			`{"id":"a","model":"m","x":2,"y":{"z":1},"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop","stop_reason":7}]}`},
		{"a surrogate pair over two chunks", Chat, []string{
			`{"choices":[{"index":0,"delta":{"content":"\ud83d"}}]}`, `{"choices":[{"index":0,"delta":{"content":"\ude00\""},"finish_reason":"stop"}]}`},
			`{"choices":[{"index":0,"message":{"content":"\ud83d\ude00\"","role":"assistant"},"finish_reason":"stop"}]}`},
		{"tool calls without index", Chat, []string{
			`{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"}"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"id":"b","function":{"name":"g","arguments":"1"}}]},"finish_reason":"tool_calls"}]}`},
			`{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"g","arguments":"1"}}],"role":"assistant","content":null},"finish_reason":"tool_calls"}]}`},
		{"calls and choices out of order", Chat, []string{
			`{"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":"stop"}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"y"},{"index":0,"id":"x"}]},"finish_reason":"stop"}]}`},
			`{"choices":[{"index":0,"message":{"tool_calls":[{"id":"x"},{"id":"y"}],"role":"assistant","content":null},"finish_reason":"stop"},{"index":1,"message":{"content":"b","role":"assistant"},"finish_reason":"stop"}]}`},
		{"function call", Chat, []string{
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"function_call":{"name":"f","arguments":""}}}]}`,
			`{"choices":[{"index":0,"delta":{"function_call":{"arguments":"{}"}},"finish_reason":"function_call"}]}`},
			`{"choices":[{"index":0,"message":{"role":"assistant","function_call":{"name":"f","arguments":"{}"},"content":null},"finish_reason":"function_call"}]}`},
		{"no delta at all", Chat, []string{`{"choices":[{"index":0,"finish_reason":"length"}]}`},
			`{"choices":[{"index":0,"finish_reason":"length","message":{"role":"assistant","content":null}}]}`},
		{"no text at all", Completions, []string{`{"choices":[{"index":0,"finish_reason":"length"}]}`},
			`{"choices":[{"index":0,"finish_reason":"length","text":""}]}`},
		{"usage on every chunk", Completions, []string{
			`{"choices":[{"index":0,"text":"a"}],"usage":{"completion_tokens":1}}`, `{"choices":[{"index":0,"text":"b","finish_reason":"stop"}],"usage":{"completion_tokens":2}}`, "[DONE]"},
			`{"choices":[{"index":0,"text":"ab","finish_reason":"stop"}],"usage":{"completion_tokens":2}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := assemble(c.api, 1<<20, c.chunks...)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestAssembleErrors(t *testing.T) {
	chunk := `{"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 100) + `"}}]}`
	for _, c := range []struct {
		name   string
		chunks []string
		want   string
		is     error
	}{
		{"nothing", nil, "the answer has no finish reason", ErrUnfinished},
		{"cut", []string{chunk}, "the answer has no finish reason", ErrUnfinished},
		{"one choice cut", []string{`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"delta":{}}]}`}, "the answer has no finish reason", ErrUnfinished},
		{"too large", []string{chunk, chunk, chunk, chunk, chunk, chunk, chunk, chunk, chunk, chunk}, "the assembled answer is too large: more than 1000 bytes", ErrAnswerTooLarge},
		{"index", []string{`{"choices":[{"index":5000,"delta":{}}]}`}, "a chunk has index 5000; allowed: an integer from 0 to 4096", nil},
		{"not JSON", []string{`{"choices":[`}, "a chunk is not JSON: unexpected end, want a value at byte 12", nil},
		{"engine's error", []string{chunk, `{"error":{"message":"boom"}}`}, "the engine failed with status 500: boom", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := assemble(Chat, 1000, c.chunks...)
			if err == nil || err.Error() != c.want || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	var e *Error
	if _, err := assemble(Chat, 1000, `{"error":{"message":"boom"}}`); !errors.As(err, &e) || e.Status != 502 {
		t.Errorf("an engine's error is not an *Error: %v", err)
	}
}

// However texts are cut and choices interleaved, each choice has its own text.
func TestAssembleProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.String(), 1, 4).Draw(t, "texts")
		rest := make([][]rune, len(texts))
		for i := range texts {
			texts[i] = strings.ToValidUTF8(texts[i], "")
			rest[i] = []rune(texts[i])
		}
		a := NewAssembler(Chat, 1<<20)
		for open := len(texts); open > 0; {
			i := rapid.IntRange(0, len(texts)-1).Draw(t, "choice")
			if rest[i] == nil {
				continue
			}
			n := rapid.IntRange(0, len(rest[i])).Draw(t, "cut")
			delta := map[string]any{"content": string(rest[i][:n])}
			choice := map[string]any{"index": i, "delta": delta}
			if rest[i] = rest[i][n:]; len(rest[i]) == 0 {
				choice["finish_reason"] = "stop"
				rest[i] = nil
				open--
			}
			chunk, _ := json.Marshal(map[string]any{"choices": []any{choice}})
			if err := a.Add(chunk); err != nil {
				t.Fatal(err)
			}
		}
		b, err := a.JSON()
		if err != nil {
			t.Fatal(err)
		}
		choices := decode(t, b)["choices"].([]any)
		for i, text := range texts {
			if got := choices[i].(map[string]any)["message"].(map[string]any)["content"]; got != text {
				t.Errorf("choice %d is %q, want %q", i, got, text)
			}
		}
	})
}

// FuzzAssembler: whatever comes, an answer is valid JSON and within its limit.
func FuzzAssembler(f *testing.F) {
	streams, _ := filepath.Glob("testdata/assemble/*.sse")
	for _, name := range streams {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, strings.Contains(name, "completion"))
	}
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\",\"delta\":{\"content\":\"b\"},\"finish_reason\":\"x\"},3]}\n\n"), true)
	f.Fuzz(func(t *testing.T, stream []byte, completions bool) {
		api := Chat
		if completions {
			api = Completions
		}
		a := NewAssembler(api, 1<<16)
		r := sse.NewReader(strings.NewReader(string(stream)), 1<<16)
		for {
			e, err := r.Next()
			if err != nil {
				break
			}
			if e.Comment {
				continue
			}
			if a.Add(e.Data) != nil {
				return
			}
		}
		b, err := a.JSON()
		if err != nil {
			return
		}
		if !validJSON(b) {
			t.Fatalf("not JSON: %s", b)
		}
		if len(b) > 1<<16+1000 {
			t.Fatalf("%d bytes", len(b))
		}
	})
}

func BenchmarkAssembler(b *testing.B) {
	chunk := []byte(benchChunks[0].in)
	a := NewAssembler(Chat, 1<<40)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Add(chunk); err != nil {
			b.Fatal(err)
		}
	}
}
