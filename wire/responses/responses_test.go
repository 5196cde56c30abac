package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"headgate/wire"
	"headgate/wire/sse"
)

// TestGoldens runs the scripts in testdata.
//
//	request    a response request: the chat request that is made of it
//	stream     a chat's events, one a line: the events that the client reads, with fail the failure that ends them
//	response   a chat's whole answer: the response
func TestGoldens(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			answer := Answer{ID: "1", Created: 1700000000, Echo: []byte(`"model":"m"`)}
			switch d.Cmd {
			case "request":
				r, err := Translate([]byte(d.Input))
				if err != nil {
					return fmt.Sprintf("%d %s %s: %s\n", err.Status, err.Code, err.Param, err.Message)
				}
				if !json.Valid([]byte("{" + string(r.Echo) + "}")) {
					t.Errorf("echo: %s", r.Echo)
				}
				out := strings.ReplaceAll(string(r.Chat.Body), `{"role"`, "\n {\"role\"")
				out = strings.ReplaceAll(out, `],"`, "],\n\"")
				return fmt.Sprintf("%s\nresumable %v, messages %d, media %d\necho %s\n", out, r.Chat.Resumable(), r.Chat.Content.Messages, r.Chat.Content.Media, r.Echo)
			case "stream":
				var b []byte
				s := NewStream(answer)
				for line := range strings.SplitSeq(d.Input, "\n") {
					event := "data: " + line + "\n\n"
					if line[0] == ':' {
						event = line + "\n\n"
					}
					var err error
					if b, err = s.AppendEvent(b, []byte(event)); err != nil {
						b = fmt.Appendf(b, "error: %v\n", err)
					}
				}
				if d.HasArg("fail") {
					b = s.AppendError(b, wire.UpstreamTorn())
				}
				// A golden has no blank lines, and the names are in the data too.
				var out strings.Builder
				for line := range strings.SplitSeq(string(b), "\n") {
					if line != "" && !strings.HasPrefix(line, "event: ") {
						fmt.Fprintln(&out, line)
					}
				}
				return out.String()
			case "response":
				r, err := Response([]byte(d.Input), answer)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return string(r) + "\n"
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

type fataler interface {
	Fatalf(string, ...any)
	Helper()
}

// checkStream reads events as a client does, puts their pieces together, fails on
// what no client takes and on what is told twice in two ways, and returns the
// response of the last event and how many events there were.
func checkStream(t fataler, stream []byte) (last gjson.Result, events int) {
	t.Helper()
	var items []string // as they were done
	var text strings.Builder
	open, part, ended := false, false, false
	for r := sse.NewReader(bytes.NewReader(stream), 1<<22); ; {
		e, err := r.Next()
		if err != nil {
			return last, events
		}
		if len(e.Data) == 0 {
			continue
		}
		v := gjson.ParseBytes(e.Data)
		if !json.Valid(e.Data) || v.Get("type").Str != e.Name || v.Get("sequence_number").Int() != int64(events) {
			t.Fatalf("event %d %s: %s", events, e.Name, e.Data)
		}
		here := v.Get("output_index").Int() == int64(len(items)) && events > 1 && !ended
		good := false
		switch kind := strings.TrimPrefix(e.Name, "response."); kind {
		case "created":
			good = events == 0
		case "in_progress":
			good = events == 1
		case "output_item.added":
			good = here && !open
			open = true
			text.Reset()
		case "content_part.added":
			good = here && open && !part
			part = true
		case "output_text.delta", "reasoning_text.delta":
			good = here && open && part
			text.WriteString(inner(v.Get("delta")))
		case "function_call_arguments.delta":
			good = here && open && !part
			text.WriteString(inner(v.Get("delta")))
		case "output_text.done", "reasoning_text.done":
			good = here && part && inner(v.Get("text")) == text.String()
		case "function_call_arguments.done":
			good = here && open && inner(v.Get("arguments")) == text.String()
		case "content_part.done":
			good = here && part && inner(v.Get("part.text")) == text.String()
			part = false
		case "output_item.done":
			good = here && open && !part
			open = false
			items = append(items, v.Get("item").Raw)
		case "completed", "incomplete", "failed":
			last = v.Get("response")
			good = events > 1 && !ended && last.Get("status").Str == kind && (kind == "failed" || !open) &&
				last.Get("output").Raw == "["+strings.Join(items, ",")+"]"
			ended = true
		case "error":
			good = events == 0
			ended = true
		}
		if !good {
			t.Fatalf("event %s out of order, or untrue:\n%s", e.Name, stream)
		}
		events++
	}
}

// inner is a string's content as it is escaped.
func inner(v gjson.Result) string {
	if len(v.Raw) < 2 {
		return v.Raw
	}
	return v.Raw[1 : len(v.Raw)-1]
}

// TestStreamAndResponseAgree: whatever the model writes, in whatever pieces, a
// client that reads it whole and one that reads the stream get the same.
func TestStreamAndResponseAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		answer := Answer{ID: "1", Created: 1, Echo: []byte(`"model":"m"`)}
		s, whole := NewStream(answer), wire.NewAssembler(wire.Chat, 1<<20)
		var stream []byte
		give := func(chunk any) {
			data, err := json.Marshal(chunk)
			if err != nil {
				t.Fatalf("%v", err)
			}
			if stream, err = s.AppendEvent(stream, sse.AppendEvent(nil, "", data)); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
			if err := whole.Add(data); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
		}
		type m = map[string]any
		delta := func(d m) {
			give(m{"id": "x", "object": "chat.completion.chunk", "choices": []m{{"index": 0, "delta": d, "finish_reason": nil}}})
		}
		pieces := rapid.SliceOfN(rapid.String(), 0, 4)
		delta(m{"role": "assistant", "content": ""})
		for _, p := range pieces.Draw(t, "reasoning") {
			delta(m{"reasoning_content": p})
		}
		for _, p := range pieces.Draw(t, "text") {
			delta(m{"content": p})
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "calls") {
			call := m{"index": i, "type": "function", "function": m{"name": "f", "arguments": rapid.String().Draw(t, "arguments")}}
			if rapid.Bool().Draw(t, "named") {
				call["id"] = fmt.Sprint("call", i)
			}
			delta(m{"tool_calls": []m{call}})
			delta(m{"tool_calls": []m{{"index": i, "function": m{"arguments": rapid.String().Draw(t, "more")}}}})
		}
		give(m{"choices": []m{{"index": 0, "delta": m{}, "finish_reason": rapid.SampledFrom([]string{"stop", "length", "tool_calls", "content_filter"}).Draw(t, "finish")}}})
		give(m{"choices": []m{}, "usage": m{"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": m{"cached_tokens": 16}}})
		stream, _ = s.AppendEvent(stream, []byte("data: [DONE]\n\n"))
		last, _ := checkStream(t, stream)
		body, err := whole.JSON()
		if err != nil {
			t.Fatalf("%v", err)
		}
		want, err := Response(body, answer)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if !json.Valid(want) || last.Raw != string(want) {
			t.Fatalf("stream:\n%s\nresponse:\n%s", last.Raw, want)
		}
	})
}

// FuzzRequest: whatever comes is refused in words or becomes a chat request that
// says the same to admission.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{}`, `[]`, `{"model":"m","input":"x"}`, `{"model":"m","model":"n"}`, `{"m\u006fdel":"m","input":[{"role":"user","content":[{}]}]}`,
		`{"model":"m","instructions":"i","stream":true,"input":[{"role":"system","content":""},{"role":"user","content":[{"type":"input_image","image_url":"\""}]}],"tools":[]}`,
		`{"model":"m","max_output_tokens":7,"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"u"},{"type":"input_text","text":"\u0061"}]},{"role":"user","content":[]}],"tools":[{"type":"function","name":"f","parameters":{}}],"tool_choice":"required","text":{"format":{"type":"json_schema","name":"n","schema":{}}},"reasoning":{"effort":"low"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		r, err := Translate(body)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			if err.Status != 400 || err.Message == "" {
				t.Fatalf("%+v", err)
			}
			return
		}
		if !json.Valid(r.Chat.Body) || !json.Valid([]byte("{"+string(r.Echo)+"}")) || bytes.ContainsAny(r.Echo, "\r\n") {
			t.Fatalf("not JSON: %s, %s", r.Chat.Body, r.Echo)
		}
		again, err := wire.Parse(wire.Chat, r.Chat.Body)
		if err != nil || again.N != 1 || again.Stream != again.IncludeUsage {
			t.Fatalf("%v: %s", err, r.Chat.Body)
		}
		var in struct {
			Model  string `json:"model"`
			Stream bool   `json:"stream"`
			Most   int    `json:"max_output_tokens"`
		}
		if json.Unmarshal(body, &in) == nil && !bytes.Contains(body, []byte(`\`)) && strings.ToLower(string(body)) == string(body) {
			if in.Model != r.Chat.Model || in.Stream != r.Chat.Stream || in.Most != r.Chat.MaxTokens {
				t.Fatalf("%+v became %s", in, r.Chat.Body)
			}
		}
	})
}

// FuzzStream: whatever an engine sends, the client reads well-formed events in
// an order that it takes.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n",
		": x\n\ndata: {\"choices\":[{\"delta\":{\"reasoning\":\"a\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}},{\"index\":3,\"function\":{\"name\":\"g\",\"arguments\":{}}}]}}],\"usage\":{\"completion_tokens_details\":{\"reasoning_tokens\":1}}}\n\n",
		"data: {\"error\":\"x\"}\n\ndata: 1\n\n", "data: {\ndata: }\n\n", "0\rdata:0\n\n",
		"data: {\"choices\":[{\"delta\":{\"content\":\"\\\\\\\"\",\"tool_calls\":[{\"index\":1}]}}]}\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := NewStream(Answer{ID: "1", Echo: []byte(`"model":"m"`)})
		var out []byte
		failed := false
		for r := sse.NewReader(bytes.NewReader(in), 1<<16); ; {
			e, err := r.Next()
			if err != nil {
				break
			}
			if out, err = s.AppendEvent(out, e.Raw); err != nil {
				failed = true
				break
			}
			if bytes.Equal(bytes.TrimSpace(e.Data), []byte("[DONE]")) && !e.Comment {
				break
			}
		}
		if failed {
			out = s.AppendError(out, wire.UpstreamError("x"))
		}
		checkStream(t, out)
		if r, err := Response(in, Answer{Echo: []byte(`"model":"m"`)}); err == nil && !json.Valid(r) {
			t.Fatalf("not JSON: %s", r)
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"some/model-of-ours","choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null}]}`)
	event := sse.AppendEvent(nil, "", data)
	s := NewStream(Answer{ID: "1", Echo: []byte(`"model":"m"`)})
	dst, err := s.AppendEvent(nil, event)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.text = s.text[:0] // an answer ends
		if dst, err = s.AppendEvent(dst[:0], event); err != nil {
			b.Fatal(err)
		}
	}
}
