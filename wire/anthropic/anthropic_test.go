package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"headgate/wire"
	"headgate/wire/sse"
)

// TestGoldens runs the scripts in testdata.
//
//	request   a message request: the chat request that is made of it
//	count     likewise, of count_tokens
//	stream    a chat's events, one a line: the events that the client reads
//	message   a chat's whole answer: the message
//	error     code, message and param: what the client is told
//
// stream and message take thinking.
func TestGoldens(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			answer := Answer{ID: "msg_1", Model: "claude \"x\"", InputTokens: 9, Thinking: d.HasArg("thinking")}
			switch d.Cmd {
			case "request", "count":
				translate := Translate
				if d.Cmd == "count" {
					translate = TranslateCount
				}
				r, err := translate([]byte(d.Input))
				if err != nil {
					return fmt.Sprintf("%d %s %s: %s\n", err.Status, err.Code, err.Param, err.Message)
				}
				out := strings.ReplaceAll(string(r.Chat.Body), `{"role"`, "\n {\"role\"")
				out = strings.ReplaceAll(out, `],"`, "],\n\"")
				return fmt.Sprintf("%s\nthinking %v, resumable %v, messages %d, media %d\n", out, r.Thinking, r.Chat.Resumable(), r.Chat.Content.Messages, r.Chat.Content.Media)
			case "stream":
				var b []byte
				s := NewStream(answer)
				for line := range strings.SplitSeq(d.Input, "\n") {
					var err error
					before := len(b)
					if b, err = s.AppendEvent(b, []byte(line+"\n\n")); err != nil {
						b = fmt.Appendf(b, "error: %v\n", err)
					}
					if len(b) == before {
						b = append(b, "(nothing)\n"...)
					}
				}
				// A golden has no blank lines, and the names are in the data too.
				var out strings.Builder
				for line := range strings.SplitSeq(string(b), "\n") {
					if line != "" && !strings.HasPrefix(line, "event: ") {
						fmt.Fprintln(&out, line)
					}
				}
				return out.String()
			case "message":
				m, err := Message([]byte(d.Input), answer)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return string(m) + "\n"
			case "error":
				var code, param string
				var retry int
				d.ScanArgs(t, "code", &code)
				d.MaybeScanArgs(t, "param", &param)
				d.MaybeScanArgs(t, "retry-ms", &retry)
				err := wire.NewError(code, "%s", strings.TrimSpace(d.Input)).WithRetry(time.Duration(retry) * time.Millisecond)
				err.Param = param
				w := httptest.NewRecorder()
				WriteError(w, err, "req_1")
				return fmt.Sprintf("%d retry-after-ms=%q retry-after=%q\n%s\n%s", w.Code, w.Header().Get("Retry-After-Ms"), w.Header().Get("Retry-After"),
					w.Body, strings.TrimSuffix(string(AppendError(nil, err, "req_1")), "\n"))
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

// checkStream reads events as a client does and fails on what no client takes.
func checkStream(t interface {
	Fatalf(string, ...any)
	Helper()
}, stream []byte) (events int, ended bool) {
	t.Helper()
	open, next, started := -1, 0, false
	for r := sse.NewReader(bytes.NewReader(stream), 1<<20); ; {
		e, err := r.Next()
		if err != nil {
			return events, ended
		}
		var v struct {
			Type  string
			Index int
			Usage map[string]any
		}
		if err := json.Unmarshal(e.Data, &v); err != nil || v.Type != e.Name {
			t.Fatalf("event %s: %v: %s", e.Name, err, e.Data)
		}
		events++
		good := true
		switch e.Name {
		case "ping":
		case "message_start":
			good = !started
			started = true
		case "content_block_start":
			good = started && !ended && open < 0 && v.Index == next
			open = v.Index
		case "content_block_delta":
			good = open == v.Index && !ended
		case "content_block_stop":
			good = open == v.Index && !ended
			open, next = -1, next+1
		case "message_delta":
			good = started && open < 0 && v.Usage != nil
		case "message_stop":
			good = open < 0 && !ended
			ended = true
		default:
			good = false
		}
		if !good {
			t.Fatalf("event %s out of order:\n%s", e.Name, stream)
		}
	}
}

// TestStreamAndMessageAgree: whatever the model writes, in whatever pieces, a
// client that reads it whole and one that reads the stream get the same.
func TestStreamAndMessageAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		answer := Answer{ID: "msg_1", Model: "m", Thinking: rapid.Bool().Draw(t, "thinking")}
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
		calls := rapid.IntRange(0, 3).Draw(t, "calls")
		for i := range calls {
			arguments, _ := json.Marshal(m{"x": rapid.String().Draw(t, "argument")})
			cut := rapid.IntRange(0, len(arguments)).Draw(t, "cut")
			for cut > 0 && cut < len(arguments) && arguments[cut]&0xc0 == 0x80 {
				cut--
			}
			delta(m{"tool_calls": []m{{"index": i, "id": fmt.Sprint("call", i), "type": "function", "function": m{"name": "f", "arguments": string(arguments[:cut])}}}})
			delta(m{"tool_calls": []m{{"index": i, "function": m{"arguments": string(arguments[cut:])}}}})
		}
		give(m{"choices": []m{{"index": 0, "delta": m{}, "finish_reason": rapid.SampledFrom([]string{"stop", "length", "tool_calls"}).Draw(t, "finish")}}})
		give(m{"choices": []m{}, "usage": m{"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": m{"cached_tokens": 16}}})
		stream, _ = s.AppendEvent(stream, []byte("data: [DONE]\n\n"))
		if _, ended := checkStream(t, stream); !ended {
			t.Fatalf("no end:\n%s", stream)
		}
		body, err := whole.JSON()
		if err != nil {
			t.Fatalf("%v", err)
		}
		message, err := Message(body, answer)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		var want, got struct {
			Content    []map[string]any `json:"content"`
			StopReason string           `json:"stop_reason"`
			Usage      map[string]any   `json:"usage"`
		}
		if err := json.Unmarshal(message, &want); err != nil {
			t.Fatalf("%v: %s", err, message)
		}
		got.Content = []map[string]any{}
		for r := sse.NewReader(bytes.NewReader(stream), 1<<20); ; {
			e, err := r.Next()
			if err != nil {
				break
			}
			var v struct {
				Block map[string]any `json:"content_block"`
				Delta struct {
					Text, Thinking string
					Partial        string `json:"partial_json"`
					StopReason     string `json:"stop_reason"`
				}
				Usage map[string]any
			}
			if err := json.Unmarshal(e.Data, &v); err != nil {
				t.Fatalf("%v: %s", err, e.Data)
			}
			last := len(got.Content) - 1
			switch e.Name {
			case "content_block_start":
				got.Content = append(got.Content, v.Block)
				if v.Block["type"] == "tool_use" {
					v.Block["input"] = ""
				}
			case "content_block_delta":
				b := got.Content[last]
				switch b["type"] {
				case "text":
					b["text"] = b["text"].(string) + v.Delta.Text
				case "thinking":
					b["thinking"] = b["thinking"].(string) + v.Delta.Thinking
				default:
					b["input"] = b["input"].(string) + v.Delta.Partial
				}
			case "content_block_stop":
				if b := got.Content[last]; b["type"] == "tool_use" {
					var input any
					if err := json.Unmarshal([]byte(b["input"].(string)), &input); err != nil {
						t.Fatalf("%v: %v", err, b)
					}
					b["input"] = input
				}
			case "message_delta":
				got.StopReason, got.Usage = v.Delta.StopReason, v.Usage
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("stream:\n%v\nmessage:\n%v", got, want)
		}
	})
}

// Requests that a client could send, for the fuzzer and the benchmarks.
const (
	plainRequest = `{"model":"m","max_tokens":64,"stream":true,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`
	toolRequest  = `{"model":"m","max_tokens":64,"thinking":{"type":"adaptive"},"stop_sequences":["END"],"metadata":{"user_id":"u"},"service_tier":"auto",
"system":[{"type":"text","text":"you are","cache_control":{"type":"ephemeral"}},{"type":"text","text":"here"}],
"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"x":{"type":"number","minimum":0.1}}}}],
"tool_choice":{"type":"any","disable_parallel_tool_use":true},"output_config":{"effort":"low","format":{"type":"json_schema","schema":{}}},
"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"ok"},{"type":"tool_use","id":"t1","name":"f","input":{"x":1.50}}]},
{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"no"}]}]}]}`
)

// FuzzRequest: whatever comes is refused in words or becomes a chat request that
// says the same to admission.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{plainRequest, toolRequest, `{}`, `[]`, `{"model":"m","model":"n"}`, `{"messages":[{"role":"user","content":[{}]}]}`,
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"\u0061","content":[{"type":"image","source":{"type":"url","url":"\""}}]}]}]}`,
		`{"m\u006fdel":"m","max_tokens":2147483647,"messages":[{"role":"system","content":""},{"role":"user","content":[]}],"tools":[]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		for _, translate := range []func([]byte) (*Request, *wire.Error){Translate, TranslateCount} {
			r, err := translate(body)
			if !bytes.Equal(body, before) {
				t.Fatal("the body was changed")
			}
			if err != nil {
				if err.Status != 400 || err.Message == "" || !json.Valid(errorJSON(err, "req")) {
					t.Fatalf("%+v", err)
				}
				continue
			}
			if !json.Valid(r.Chat.Body) {
				t.Fatalf("not JSON: %s", r.Chat.Body)
			}
			again, err := wire.Parse(wire.Chat, r.Chat.Body)
			if err != nil || again.N != 1 || again.Stream != again.IncludeUsage {
				t.Fatalf("%v: %s", err, r.Chat.Body)
			}
			var in struct {
				Model     string `json:"model"`
				Stream    bool   `json:"stream"`
				MaxTokens int    `json:"max_tokens"`
			}
			if json.Unmarshal(body, &in) == nil && !bytes.Contains(body, []byte(`\`)) && strings.ToLower(string(body)) == string(body) {
				if in.Model != r.Chat.Model || in.Stream != r.Chat.Stream || in.MaxTokens != r.Chat.MaxTokens {
					t.Fatalf("%+v became %s", in, r.Chat.Body)
				}
			}
		}
	})
}

// FuzzStream: whatever an engine sends, the client reads well-formed events in
// an order that it takes.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"stop_reason\":\"END\"}]}\n\ndata: [DONE]\n\n",
		": x\n\ndata: {\"choices\":[{\"delta\":{\"reasoning\":\"a\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}},{\"index\":3,\"function\":{\"name\":\"g\",\"arguments\":{}}}]}}],\"usage\":{}}\n\n",
		"data: {\"error\":\"x\"}\n\ndata: 1\n\n", "data: {\ndata: }\n\n",
		"data: {\"choices\":[{\"delta\":{\"content\":\"\\\\\\\"\",\"tool_calls\":[{\"index\":1}]}}]}\n\n",
	} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, thinking bool) {
		s := NewStream(Answer{ID: "msg_1", Model: "m", Thinking: thinking})
		var out []byte
		for r := sse.NewReader(bytes.NewReader(in), 1<<16); ; {
			e, err := r.Next()
			if err != nil {
				break
			}
			if out, err = s.AppendEvent(out, e.Raw); err != nil {
				break
			}
			if bytes.Equal(bytes.TrimSpace(e.Data), []byte("[DONE]")) && !e.Comment {
				break
			}
		}
		checkStream(t, out)
		if m, err := Message(in, Answer{Thinking: thinking}); err == nil && !json.Valid(m) {
			t.Fatalf("not JSON: %s", m)
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	tools := strings.Repeat(`{"name":"f","description":"does things with files and more","input_schema":{"type":"object","properties":{"x":{"type":"string"}}}},`, 20)
	agent := `{"model":"m","max_tokens":1024,"stream":true,"system":"` + strings.Repeat("be brief and to the point. ", 400) + `","tools":[` + strings.TrimSuffix(tools, ",") + `],"messages":[` +
		strings.Repeat(`{"role":"user","content":"`+strings.Repeat("what next? ", 60)+`"},{"role":"assistant","content":[{"type":"text","text":"`+strings.Repeat("this. ", 60)+`"}]},`, 20) + `{"role":"user","content":"go on"}]}`
	for _, c := range []struct{ name, body string }{{"short", plainRequest}, {"tools", toolRequest}, {"agent", agent}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Translate([]byte(c.body)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"-as-chat", func(b *testing.B) { // what any request costs, of it
			r, err := Translate([]byte(c.body))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(r.Chat.Body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.Parse(wire.Chat, r.Chat.Body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEvent(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"some/model-of-ours","choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null}]}`)
	event := sse.AppendEvent(nil, "", data)
	b.Run("translated", func(b *testing.B) {
		s := NewStream(Answer{ID: "msg_1", Model: "m"})
		dst, err := s.AppendEvent(nil, event)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if dst, err = s.AppendEvent(dst[:0], event); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("as-chat", func(b *testing.B) { // what any event costs, of it
		b.ReportAllocs()
		for b.Loop() {
			if _, err := wire.ParseChunk(wire.Chat, data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
