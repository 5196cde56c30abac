package wire

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseChunk(t *testing.T) {
	usage := `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":8}}`
	for _, c := range []struct {
		name string
		api  API
		in   string
		want Chunk
	}{
		{"terminator", Chat, " [DONE]", Chunk{Done: true}},
		{"role only", Chat, `{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, Chunk{}},
		{"content", Chat, `{"choices":[{"index":0,"delta":{"content":"a\"b"},"finish_reason":null}],"usage":null}`, Chunk{Tokens: 1, Content: true}},
		{"reasoning", Chat, `{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}`, Chunk{Tokens: 1, Content: true}},
		{"reasoning, newer name", Chat, `{"choices":[{"delta":{"reasoning":"hm"}}]}`, Chunk{Tokens: 1, Content: true}},
		{"refusal", Chat, `{"choices":[{"delta":{"refusal":"no"}}]}`, Chunk{Tokens: 1, Content: true}},
		{"tool call", Chat, `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`, Chunk{Tokens: 1, Content: true}},
		{"no tool call", Chat, `{"choices":[{"delta":{"tool_calls":[]}}]}`, Chunk{}},
		{"token ids count", Chat, `{"choices":[{"token_ids":[1,2,3],"delta":{"content":"abc"}}]}`, Chunk{Tokens: 3, Content: true}},
		{"token ids without text", Chat, `{"choices":[{"delta":{"content":""},"token_ids":[ 7 ]}]}`, Chunk{Tokens: 1}},
		{"token ids null", Completions, `{"choices":[{"text":"a","token_ids":null}]}`, Chunk{Tokens: 1, Content: true}},
		{"completion", Completions, `{"choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null}]}`, Chunk{Tokens: 1, Content: true}},
		{"finish", Completions, `{"choices":[{"index":0,"text":"","finish_reason":"length"}]}`, Chunk{Finish: "length", Finished: 1}},
		{"unknown finish", Chat, `{"choices":[{"delta":{},"finish_reason":"eos\u005ftoken"}]}`, Chunk{Finish: "eos_token", Finished: 1}},
		{"two choices", Chat, `{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"},{"index":1,"delta":{"content":"y"},"finish_reason":"length"}]}`,
			Chunk{Tokens: 2, Content: true, Finish: "length", Finished: 2}},
		{"usage only", Chat, `{"choices":[],"usage":` + usage + `}`, Chunk{Usage: Usage{12, 3, 8}, HasUsage: true, UsageOnly: true}},
		{"usage first", Chat, `{"usage":` + usage + `,"choices":[]}`, Chunk{Usage: Usage{12, 3, 8}, HasUsage: true, UsageOnly: true}},
		{"usage on every chunk", Chat, `{"choices":[{"delta":{"content":"x"}}],"usage":` + usage + `}`, Chunk{Tokens: 1, Content: true, Usage: Usage{12, 3, 8}, HasUsage: true}},
		{"empty choices without usage", Chat, `{"choices":[],"usage":null}`, Chunk{}},
		{"odd usage", Chat, `{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":99999999999999999999,"prompt_tokens_details":null}}`,
			Chunk{Usage: Usage{0, 1<<31 - 1, 0}, HasUsage: true, UsageOnly: true}},
		{"whole answer", Chat, `{"object":"chat.completion","choices":[{"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":` + usage + `}`,
			Chunk{Tokens: 1, Content: true, Finish: "stop", Finished: 1, Usage: Usage{12, 3, 8}, HasUsage: true}},
		{"escaped key", Chat, `{"\u0063hoices":[{"delt\u0061":{"content":"x"}}]}`, Chunk{Tokens: 1, Content: true}},
		{"error null", Chat, `{"error":null,"choices":[{"delta":{"content":"x"}}]}`, Chunk{Tokens: 1, Content: true}},
		{"fields of odd kinds", Chat, `{"choices":[1,{"delta":2,"token_ids":3,"finish_reason":""}],"usage":4,"object":5}`, Chunk{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseChunk(c.api, []byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestParseChunkErrors(t *testing.T) {
	for _, c := range []struct {
		name, in string
		status   int
		code     string
		message  string
	}{
		{"vLLM", `{"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}`, 502, CodeUpstreamError, "the engine failed with status 500: boom"},
		{"vLLM, caller's fault", `{"error":{"message":"bad grammar","type":"BadRequestError","param":"guided_json","code":400}}`, 400, CodeEngineRefused, "bad grammar"},
		{"SGLang", `{"object":"error","message":"The request queue is full.","type":"Service Unavailable","param":null,"code":503}`, 503, CodeEngineUnavailable, "the engine is unavailable: The request queue is full."},
		{"llama-server", `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`, 502, CodeUpstreamError, "the engine failed with status 500: Context size has been exceeded."},
		{"by type", `{"error":{"message":"busy","type":"overloaded_error"}}`, 429, CodeEngineBusy, "the engine is overloaded: busy"},
		{"text", `{"error":"it broke","error_type":"generation"}`, 502, CodeUpstreamError, "the engine failed with status 500: it broke"},
		{"beside choices", `{"choices":[],"error":{"message":"x"}}`, 502, CodeUpstreamError, "the engine failed with status 500: x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseChunk(Chat, []byte(c.in))
			if err != nil || got.Err == nil {
				t.Fatalf("got %+v, %v", got, err)
			}
			if got.Err.Status != c.status || got.Err.Code != c.code || got.Err.Message != c.message {
				t.Errorf("got %d %s %q", got.Err.Status, got.Err.Code, got.Err.Message)
			}
		})
	}
	for in, want := range map[string]string{
		``:                        "a chunk is not JSON: unexpected end, want a value at byte 0",
		`"hi"`:                    "a chunk is a string; it must be an object",
		`{"choices":[`:            "a chunk is not JSON: unexpected end, want a value at byte 12",
		`{"choices":[]} x`:        "a chunk is not JSON: unexpected 'x', want the end at byte 15",
		strings.Repeat("[", 9999): "a chunk is not JSON: nesting deeper than 128 levels at byte 128",
	} {
		if _, err := ParseChunk(Chat, []byte(in)); err == nil || err.Error() != want {
			t.Errorf("%.40s: got %v, want %s", in, err, want)
		}
	}
}

var benchChunks = []struct {
	name string
	api  API
	in   string
}{
	{"content", Chat, `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"qwen3-8b","choices":[{"index":0,"delta":{"content":" tok\"en"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`},
	{"finish and usage", Chat, `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"qwen3-8b","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":8}}}`},
	{"done", Chat, `[DONE]`},
}

func TestParseChunkDoesNotAllocate(t *testing.T) {
	for _, c := range benchChunks {
		in := []byte(c.in)
		if n := testing.AllocsPerRun(100, func() { ParseChunk(c.api, in) }); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

// FuzzChunk: no data makes the counts negative, and only JSON is understood.
func FuzzChunk(f *testing.F) {
	for _, c := range benchChunks {
		f.Add([]byte(c.in), true)
	}
	f.Add([]byte(`{"error":{"message":"x","code":"400"}}`), false)
	f.Add([]byte(`{"object":"error","message":"x","code":503}`), false)
	f.Fuzz(func(t *testing.T, data []byte, chat bool) {
		api := Completions
		if chat {
			api = Chat
		}
		c, err := ParseChunk(api, data)
		if c.Done {
			return
		}
		if (err == nil) && !validJSON(data) {
			t.Fatalf("%q taken for JSON", data)
		}
		if c.Tokens < 0 || c.Usage.Prompt < 0 || c.Usage.Completion < 0 || c.Usage.Cached < 0 || (c.Finish != "") != (c.Finished > 0) {
			t.Fatalf("%+v", c)
		}
		if c.Err != nil && (c.Err.Status < 400 || !validJSON(c.Err.JSON())) {
			t.Fatalf("%+v", c.Err)
		}
	})
}

func BenchmarkParseChunk(b *testing.B) {
	for _, c := range benchChunks {
		b.Run(c.name, func(b *testing.B) {
			in := []byte(c.in)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseChunk(c.api, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
