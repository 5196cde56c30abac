package wire

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParse(t *testing.T) {
	hi := `"messages":[{"role":"user","content":"hi"}]`
	content := Content{Bytes: [NumKinds]int{Prose: 6}, Messages: 1}
	prompt := Content{Bytes: [NumKinds]int{Prose: 2}}
	for _, c := range []struct {
		name string
		api  API
		in   string
		want Request
	}{
		{"least", Chat, `{"model":"m",` + hi + `}`, Request{Model: "m", N: 1, Content: content}},
		{"white space", Chat, " { \"model\" : \"m\" ,\r\n\t" + hi + " } \n", Request{Model: "m", N: 1, Content: content}},
		{"all", Chat, `{"model":"a\/b","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"n":3,"service_tier":"flex","priority":-5,` + hi + `}`,
			Request{Model: "a/b", Stream: true, IncludeUsage: true, MaxTokens: 9, Declared: true, N: 3, ServiceTier: "flex", Content: content}},
		{"null is absent", Chat, `{"model":"m","stream":null,"stream_options":null,"max_tokens":null,"n":null,"service_tier":null,"tools":null,"tool_choice":null,"response_format":null,"grammar":null,` + hi + `}`,
			Request{Model: "m", N: 1, Content: content}},
		{"smaller limit", Chat, `{"model":"m","max_tokens":90,"max_completion_tokens":30,` + hi + `}`, Request{Model: "m", MaxTokens: 30, Declared: true, N: 1, Content: content}},
		{"llama-server's own limit", Chat, `{"model":"m","max_tokens":90,"n_predict":20,` + hi + `}`, Request{Model: "m", MaxTokens: 20, Declared: true, N: 1, Content: content}},
		{"no output", Completions, `{"model":"m","prompt":"hi","max_tokens":0,"echo":true}`, Request{Model: "m", Declared: true, N: 1, Content: prompt}},
		{"whole floats", Chat, `{"model":"m","max_tokens":1e2,"n":2.0,` + hi + `}`, Request{Model: "m", MaxTokens: 100, Declared: true, N: 2, Content: content}},
		{"escaped key", Chat, `{"mod\u0065l":"m","\u0073tream":true,` + hi + `}`, Request{Model: "m", Stream: true, N: 1, Content: content}},
		{"other case", Chat, `{"model":"m","Model":"x","Stream":true,` + hi + `}`, Request{Model: "m", N: 1, Content: content}},
		{"best_of", Completions, `{"model":"m","prompt":["h","i"],"n":2,"best_of":5}`, Request{Model: "m", N: 10, Prompts: 2, Content: prompt}},
		{"n_cmpl", Completions, `{"model":"m","prompt":"hi","n":2,"n_cmpl":4}`, Request{Model: "m", N: 4, Content: prompt}},
		{"beams", Completions, `{"model":"m","prompt":"hi","n":4,"use_beam_search":true}`, Request{Model: "m", N: 4, Constrained: true, Content: prompt}},
		{"token ids", Completions, `{"model":"m","prompt":[1, 20,300]}`, Request{Model: "m", N: 1, Content: Content{TokenIDs: 3}}},
		{"several of token ids", Completions, `{"model":"m","prompt":[[1,2],[3]]}`, Request{Model: "m", N: 2, Prompts: 2, Content: Content{TokenIDs: 3}}},
		{"ids in place of messages", Chat, `{"model":"m","input_ids":[1,2],` + hi + `}`, Request{Model: "m", N: 1, Content: Content{Bytes: content.Bytes, Messages: 1, TokenIDs: 2}}},
		{"embeddings in place of a prompt", Completions, `{"model":"m","prompt_embeds":["AAAA","BBBB"]}`, Request{Model: "m", N: 2, Prompts: 2, Content: Content{Media: 2}}},
		{"other API's fields", Completions, `{"model":"m","prompt":"hi","messages":5}`, Request{Model: "m", N: 1, Content: prompt}},
		{"input", Embeddings, `{"model":"m","input":"hi","dimensions":8,"max_tokens":9,"n":3}`, Request{Model: "m", Declared: true, N: 1, Content: prompt}},
		{"inputs", Embeddings, `{"model":"m","input":["h","i"],"prompt":5}`, Request{Model: "m", Declared: true, N: 1, Prompts: 2, Content: prompt}},
		{"ids", Embeddings, `{"model":"m","input":[1,2]}`, Request{Model: "m", Declared: true, N: 1, Content: Content{TokenIDs: 2}}},
		{"several of ids", Embeddings, `{"model":"m","input":[[1,2],[3]]}`, Request{Model: "m", Declared: true, N: 1, Prompts: 2, Content: Content{TokenIDs: 3}}},
		{"messages to embed", Embeddings, `{"model":"m",` + hi + `}`, Request{Model: "m", Declared: true, N: 1, Content: content}},
		{"suffix", Completions, `{"model":"m","prompt":"h","suffix":"i"}`, Request{Model: "m", N: 1, Content: prompt}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse(c.api, []byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			c.want.API, c.want.Body = c.api, []byte(c.in)
			c.want.Prompts = max(c.want.Prompts, 1)
			if d := cmp.Diff(c.want, *got, cmpopts.IgnoreUnexported(Request{})); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	chat := func(fields string) string {
		return `{"model":"m","messages":[{"role":"user","content":"secret"}],` + fields + `}`
	}
	for _, c := range []struct {
		name                 string
		api                  API
		in                   string
		code, param, message string
	}{
		{"no input", Embeddings, `{"model":"m","input":null}`, CodeMissingField, "input", "input is missing; required: a string, an array of strings, an array of token ids, or an array of such arrays"},
		{"mixed input", Embeddings, `{"model":"m","input":["a",1]}`, CodeInvalidField, "input[1]", "input[1] is a number; allowed: a string, an array of strings, an array of token ids, or an array of such arrays"},
		{"two inputs", Embeddings, `{"model":"m","input":"a","input":"b"}`, CodeInvalidField, "input", "input is given twice; allowed: once"},
		{"a stream of embeddings", Embeddings, `{"model":"m","input":"a","stream":true}`, CodeInvalidField, "stream", "stream is true; allowed: false or left out, as embeddings come as one document"},
		{"empty", Chat, ``, CodeInvalidJSON, "", "the body is not valid JSON: unexpected end, want a value at byte 0"},
		{"cut", Chat, `{"model":"m`, CodeInvalidJSON, "", "the body is not valid JSON: unexpected end in the string that begins at byte 9 at byte 11"},
		{"trailing", Chat, `{} {}`, CodeInvalidJSON, "", "the body is not valid JSON: unexpected '{', want the end at byte 3"},
		{"trailing comma", Chat, `{"model":"m",}`, CodeInvalidJSON, "", "the body is not valid JSON: unexpected '}', want a key at byte 13"},
		{"trailing comma in an array", Chat, `{"stop":["m",]}`, CodeInvalidJSON, "", "the body is not valid JSON: unexpected ']', want a value at byte 13"},
		{"Python's words", Chat, `{"temperature":NaN}`, CodeInvalidJSON, "", "the body is not valid JSON: unexpected 'N', want a value at byte 15"},
		{"escape", Chat, `{"model":"\x"}`, CodeInvalidJSON, "", "the body is not valid JSON: invalid escape at byte 10"},
		{"control character", Chat, "{\"model\":\"a\nb\"}", CodeInvalidJSON, "", "the body is not valid JSON: unescaped control character 0x0a in a string at byte 11"},
		{"not UTF-8", Chat, "{\"model\":\"a\xffb\"}", CodeInvalidJSON, "", "the body is not valid JSON: not UTF-8 at byte 11"},
		{"deep", Chat, `{"x":` + strings.Repeat("[", 1<<20), CodeInvalidJSON, "", "the body is not valid JSON: nesting deeper than 128 levels at byte 132"},
		{"array", Chat, `[]`, CodeInvalidJSON, "", "the body is an array; allowed: one JSON object"},
		{"bad JSON goes first", Chat, `{"n":0,"model":}`, CodeInvalidJSON, "", "the body is not valid JSON: unexpected '}', want a value at byte 15"},

		{"no model", Chat, `{"messages":[{}]}`, CodeMissingField, "model", "model is missing; required: the name of a served model"},
		{"null model", Chat, `{"model":null,"messages":[{}]}`, CodeMissingField, "model", "model is missing; required: the name of a served model"},
		{"empty model", Chat, `{"model":"","messages":[{}]}`, CodeInvalidField, "model", `model is ""; allowed: the name of a served model`},
		{"model of another kind", Chat, `{"model":7,"messages":[{}]}`, CodeInvalidField, "model", "model is 7; allowed: a string"},
		{"model twice", Chat, `{"model":"a","model":"b","messages":[{}]}`, CodeInvalidField, "model", "model is given twice; allowed: once"},
		{"model twice, escaped", Chat, `{"model":"a","mod\u0065l":"b","messages":[{}]}`, CodeInvalidField, "model", "model is given twice; allowed: once"},
		{"model twice, once null", Chat, `{"model":null,"model":"b","messages":[{}]}`, CodeInvalidField, "model", "model is given twice; allowed: once"},
		{"long model", Chat, `{"messages":[{}],"model":` + strings.Repeat("1", 100) + `}`, CodeInvalidField, "model", "model is " + strings.Repeat("1", 61) + "...; allowed: a string"},

		{"no messages", Chat, `{"model":"m"}`, CodeMissingField, "messages", "messages is missing; required: a non-empty array of messages"},
		{"null messages", Chat, `{"model":"m","messages":null}`, CodeMissingField, "messages", "messages is missing; required: a non-empty array of messages"},
		{"empty messages", Chat, `{"model":"m","messages":[ ]}`, CodeInvalidField, "messages", "messages is an empty array; allowed: a non-empty array of messages"},
		{"messages of another kind", Chat, `{"model":"m","messages":"secret"}`, CodeInvalidField, "messages", "messages is a string; allowed: a non-empty array of messages"},
		{"message of another kind", Chat, `{"model":"m","messages":[{},"secret"]}`, CodeInvalidField, "messages[1]", "messages[1] is a string; allowed: an object with role and content"},
		{"messages twice", Chat, chat(`"messages":[{}]`), CodeInvalidField, "messages", "messages is given twice; allowed: once"},

		{"no prompt", Completions, `{"model":"m"}`, CodeMissingField, "prompt", "prompt is missing; required: a string, an array of strings, or token ids"},
		{"empty prompt", Completions, `{"model":"m","prompt":[]}`, CodeInvalidField, "prompt", "prompt is an empty array; allowed: " + promptAllowed},
		{"prompt of another kind", Completions, `{"model":"m","prompt":{}}`, CodeInvalidField, "prompt", "prompt is an object; allowed: " + promptAllowed},
		{"mixed prompt", Completions, `{"model":"m","prompt":["a",1]}`, CodeInvalidField, "prompt[1]", "prompt[1] is a number; allowed: " + promptAllowed},
		{"no ids", Completions, `{"model":"m","prompt":[[1],[]]}`, CodeInvalidField, "prompt[1]", "prompt[1] is an empty array; allowed: a non-empty array of token ids"},
		{"negative id", Completions, `{"model":"m","prompt":[[1,-1]]}`, CodeInvalidField, "prompt[0][1]", "prompt[0][1] is a number; allowed: a token id, an integer from 0 to 2147483647"},
		{"huge id", Completions, `{"model":"m","prompt":[2147483648]}`, CodeInvalidField, "prompt[0]", "prompt[0] is a number; allowed: a token id, an integer from 0 to 2147483647"},

		{"stream", Chat, chat(`"stream":"true"`), CodeInvalidField, "stream", `stream is "true"; allowed: true or false`},
		{"stream twice", Chat, chat(`"stream":true,"str\u0065am":false`), CodeInvalidField, "stream", "stream is given twice; allowed: once"},
		{"stream_options", Chat, chat(`"stream_options":[1]`), CodeInvalidField, "stream_options", "stream_options is an array; allowed: an object"},
		{"stream_options twice", Chat, chat(`"stream_options":{},"stream_options":{}`), CodeInvalidField, "stream_options", "stream_options is given twice; allowed: once"},
		{"include_usage", Chat, chat(`"stream_options":{"include_usage":1}`), CodeInvalidField, "stream_options.include_usage", "stream_options.include_usage is 1; allowed: true or false"},
		{"include_usage twice", Chat, chat(`"stream_options":{"include_usage":true,"include_usage":true}`), CodeInvalidField, "stream_options.include_usage", "stream_options.include_usage is given twice; allowed: once"},
		{"max_tokens", Chat, chat(`"max_tokens":-1`), CodeInvalidField, "max_tokens", "max_tokens is -1; allowed: an integer from 0 to 2147483647"},
		{"max_tokens, text", Chat, chat(`"max_tokens":"10"`), CodeInvalidField, "max_tokens", `max_tokens is "10"; allowed: an integer from 0 to 2147483647`},
		{"max_completion_tokens", Chat, chat(`"max_completion_tokens":1.5`), CodeInvalidField, "max_completion_tokens", "max_completion_tokens is 1.5; allowed: an integer from 0 to 2147483647"},
		{"n_predict", Chat, chat(`"n_predict":1e400`), CodeInvalidField, "n_predict", "n_predict is 1e400; allowed: an integer from 0 to 2147483647"},
		{"max_tokens twice", Chat, chat(`"max_tokens":1,"max_tokens":100000`), CodeInvalidField, "max_tokens", "max_tokens is given twice; allowed: once"},
		{"n", Chat, chat(`"n":0`), CodeInvalidField, "n", "n is 0; allowed: an integer from 1 to 128"},
		{"n, large", Chat, chat(`"n":129`), CodeInvalidField, "n", "n is 129; allowed: an integer from 1 to 128"},
		{"n twice", Chat, chat(`"n":1,"n":128`), CodeInvalidField, "n", "n is given twice; allowed: once"},
		{"best_of", Chat, chat(`"best_of":{}`), CodeInvalidField, "best_of", "best_of is an object; allowed: an integer from 1 to 128"},
		{"use_beam_search", Chat, chat(`"use_beam_search":"yes"`), CodeInvalidField, "use_beam_search", `use_beam_search is "yes"; allowed: true or false`},
		{"priority twice", Chat, chat(`"priority":1,"priorit\u0079":-9`), CodeInvalidField, "priority", "priority is given twice; allowed: once"},
		{"service_tier", Chat, chat(`"service_tier":1`), CodeInvalidField, "service_tier", "service_tier is 1; allowed: a string"},
		{"service_tier twice", Chat, chat(`"service_tier":"flex","service_tier":"priority"`), CodeInvalidField, "service_tier", "service_tier is given twice; allowed: once"},
		{"the first of several", Chat, chat(`"n":0,"max_tokens":-1`), CodeInvalidField, "n", "n is 0; allowed: an integer from 1 to 128"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Parse(c.api, []byte(c.in))
			if err == nil {
				t.Fatalf("accepted: %+v", r)
			}
			if err.Status != 400 || err.Code != c.code || err.Param != c.param || err.Message != c.message {
				t.Errorf("got  %d %s %s %q\nwant 400 %s %s %q", err.Status, err.Code, err.Param, err.Message, c.code, c.param, c.message)
			}
			if strings.Contains(err.Message, "secret") {
				t.Error("a message repeats the prompt")
			}
		})
	}
}

func TestConstrained(t *testing.T) {
	for in, want := range map[string]bool{
		`"response_format":{"type":"text"}`:                                    false,
		`"response_format":{"type":"json_object"}`:                             true,
		`"response_format":{"json_schema":{"schema":{}},"type":"json_schema"}`: true,
		`"response_format":{"schema":{"type":"object"},"type":"text"}`:         false,
		`"tool_choice":"auto"`:                                                 false,
		`"tool_choice":"none"`:                                                 false,
		`"tool_choice":"required"`:                                             true,
		`"tool_choice":{"type":"function","function":{"name":"f"}}`:            true,
		`"function_call":"auto"`:                                               false,
		`"function_call":{"name":"f"}`:                                         true,
		`"guided_json":{}`:                                                     true,
		`"guided_regex":"a+"`:                                                  true,
		`"guided_choice":["a"]`:                                                true,
		`"guided_grammar":"root ::= x"`:                                        true,
		`"structured_outputs":{"json":{}}`:                                     true,
		`"json_schema":{}`:                                                     true,
		`"grammar":"root ::= x"`:                                               true,
		`"grammar":""`:                                                         false,
		`"regex":"a"`:                                                          true,
		`"ebnf":"a"`:                                                           true,
		`"temperature":0`:                                                      false,
	} {
		r, err := Parse(Completions, []byte(`{"model":"m","prompt":"",`+in+`}`))
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if r.Constrained != want {
			t.Errorf("%s: constrained %v, want %v", in, r.Constrained, want)
		}
	}
}

func TestContent(t *testing.T) {
	base64 := strings.Repeat("iVBORw0KGgo", 1000)
	for _, c := range []struct {
		name, messages string
		rest           string
		want           Content
	}{
		{"plain", `[{"role":"user","content":"hello"}]`, "", Content{Bytes: [3]int{9, 0, 0}, Messages: 1}},
		{"name", `[{"role":"user","name":"bob","content":"hello"}]`, "", Content{Bytes: [3]int{12, 0, 0}, Messages: 1}},
		{"no content", `[{"role":"assistant","content":null}]`, "", Content{Bytes: [3]int{9, 0, 0}, Messages: 1}},
		{"parts", `[{"role":"user","content":[{"type":"text","text":"hello"},{"text":"you","type":"text"},"bare"]}]`, "", Content{Bytes: [3]int{16, 0, 0}, Messages: 1}},
		{"media are flat", `[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64 + `"}},` +
			`{"input_audio":{"data":"` + base64 + `","format":"wav"},"type":"input_audio"},` +
			`{"type":"video_url","video_url":{"url":"x"}},{"type":"file","file":{"file_data":"` + base64 + `"}},{"type":"text","text":"hi"}]}]`, "",
			Content{Bytes: [3]int{2, 0, 0}, Media: 4, Messages: 1}},
		{"media beside content", `[{"content":"hi","images":["` + base64 + `"],"audio":null}]`, "", Content{Bytes: [3]int{2, 0, 0}, Media: 1, Messages: 1}},
		{"reasoning and refusal", `[{"reasoning_content":"hmm","refusal":"no","content":""}]`, "", Content{Bytes: [3]int{5, 0, 0}, Messages: 1}},
		// As JSON without white space, a comma after each item.
		{"tool calls", `[{"tool_calls":[ {"name": "f", "arguments": "{}"} ]}]`, "", Content{Bytes: [3]int{33, 0, 0}, Messages: 1}},
		{"tools", `[{}]`, `,"tools":[ {"type":"f", "x": [1, true, null]} ]`, Content{Bytes: [3]int{34, 1, 0}, Messages: 1}},
		{"functions", `[{}]`, `,"functions":[]`, Content{Bytes: [3]int{2, 0, 0}, Messages: 1}},
		{"schema", `[{}]`, `,"response_format":{"type":"text","json_schema":{"a":"b"}}`, Content{Bytes: [3]int{14, 0, 0}, Messages: 1}},
		{"several", `[{"content":"a"},{"content":"b"},{}]`, "", Content{Bytes: [3]int{2, 0, 0}, Messages: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Parse(Chat, []byte(`{"model":"m","messages":`+c.messages+c.rest+`}`))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, r.Content); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// FuzzParse: nothing that an engine would read otherwise gets through. The
// oracle is encoding/json, which is as strict about syntax but takes the last of
// duplicate keys.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":5}`,
		`{"model":"m","prompt":[[1,2],[3]],"n":2}`,
		`{"mod\u0065l":"m","prompt":"\ud83d\ude00","priority":1,"n_predict":-0}`,
		`{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:x"}},"a"]}],"tools":[{"a":[1e5,null]}]}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		api := Completions
		if chat {
			api = Chat
		}
		r, err := Parse(api, body)
		if err != nil {
			if r != nil || err.Status != 400 || err.Code == "" || !validJSON(err.JSON()) {
				t.Fatalf("%+v, %+v", r, err)
			}
			return
		}
		v := decode(t, body)
		if v["model"] != r.Model || r.Model == "" {
			t.Fatalf("model %q, engines see %v", r.Model, v["model"])
		}
		if stream, _ := v["stream"].(bool); stream != r.Stream {
			t.Fatalf("stream %v, engines see %v", r.Stream, v["stream"])
		}
		for _, name := range []string{"max_tokens", "max_completion_tokens", "n_predict"} {
			if n, ok := v[name].(float64); ok && (!r.Declared || float64(r.MaxTokens) > n) {
				t.Fatalf("declared %v %d, engines see %s %v", r.Declared, r.MaxTokens, name, n)
			}
		}
		for _, name := range []string{"n", "best_of", "n_cmpl"} {
			if n, ok := v[name].(float64); ok && float64(r.N) < n {
				t.Fatalf("n %d, engines see %s %v", r.N, name, n)
			}
		}
		c := r.Content
		if total := c.Bytes[Prose] + c.Bytes[Dense] + c.Bytes[Wide]; total > 2*len(body) || Estimate(c) < 0 || Bound(c) < Estimate(c) {
			t.Fatalf("%+v of %d bytes: estimate %d, bound %d", c, len(body), Estimate(c), Bound(c))
		}
	})
}

func BenchmarkParse(b *testing.B) {
	prose := strings.Repeat("The quick brown fox jumps over the lazy dog, twice.\\n", 200)
	image := strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", 40000)
	for _, c := range []struct{ name, in string }{
		{"small", `{"model":"qwen3-8b","messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"Say hello."}],"stream":true,"max_tokens":100}`},
		{"10 KB of text", `{"model":"qwen3-8b","messages":[{"role":"user","content":"` + prose + `"}],"stream":true}`},
		{"1 MB image", `{"model":"qwen3-8b","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}],"stream":true}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			in := []byte(c.in)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(Chat, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
