package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestResumable is the list of what is carried over a cut and what is not.
func TestResumable(t *testing.T) {
	for _, c := range []struct {
		field string // added to a chat of one message, and to a completion with a limit
		chat  bool
		compl bool
	}{
		{"", true, true},
		{`,"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.1,"repetition_penalty":1.1,"logit_bias":{"5":1},"cache_salt":"x"`, true, true},
		{`,"stop_token_ids":[7],"ignore_eos":true,"min_tokens":3,"user":"u","metadata":{"a":"b"},"service_tier":"flex","priority":1`, true, true},
		{`,"chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":true,"parallel_tool_calls":true`, true, true},
		{`,"stream":true,"stream_options":{"include_usage":true}`, true, true},
		{`,"n":1,"best_of":1,"use_beam_search":false,"response_format":{"type":"text"},"tool_choice":"none"`, true, true},
		{`,"logprobs":false,"top_logprobs":0,"echo":false,"tools":[],"stop":[],"suffix":"","presence_penalty":0.0,"frequency_penalty":0`, true, true},
		{`,"seed":null,"stop":null,"whatever":null,"return_token_ids":null`, true, true},
		{`,"n":2`, false, false},
		{`,"best_of":2`, false, false},
		{`,"use_beam_search":true`, false, false},
		{`,"response_format":{"type":"json_object"}`, false, false},
		{`,"guided_regex":"a+"`, false, false},
		{`,"structured_outputs":{"choice":["a"]}`, false, false},
		{`,"tools":[{"type":"function","function":{"name":"f"}}]`, false, false},
		{`,"tool_choice":"required"`, false, false},
		{`,"tool_choice":{"type":"function","function":{"name":"f"}}`, false, false},
		{`,"logprobs":true`, false, false},
		{`,"logprobs":1`, false, false},
		{`,"logprobs":0`, false, false}, // that of the token itself
		{`,"top_logprobs":2`, false, false},
		{`,"prompt_logprobs":1`, false, false},
		{`,"echo":true`, false, false},
		{`,"stop":"x"`, true, true},
		{`,"stop":["x","yz"],"include_stop_str_in_output":true,"min_tokens":2`, true, true},
		{`,"stop":["` + strings.Repeat(`a","`, 15) + `a"]`, true, true},
		{`,"stop":["` + strings.Repeat(`a","`, 16) + `a"]`, false, false},
		{`,"stop":"` + strings.Repeat("a", 1<<10) + `"`, true, true},
		{`,"stop":"` + strings.Repeat("a", 1<<10+1) + `"`, false, false},
		{`,"stop":""`, false, false},
		{`,"stop":["x",""]`, false, false},
		{`,"stop":7`, false, false},
		{`,"stop":["x",7]`, false, false},
		{`,"stop":{"a":1}`, false, false},
		{`,"stop":"\ud83d"`, false, false},
		{`,"stop":"x","include_stop_str_in_output":1`, false, false},
		{`,"stop":"x","min_tokens":"3"`, false, false},
		{`,"suffix":"x"`, false, false},
		{`,"seed":1`, false, false},
		{`,"presence_penalty":0.5`, false, false},
		{`,"frequency_penalty":-1`, false, false},
		{`,"include_reasoning":false`, false, false},
		{`,"thinking_token_budget":9`, false, false},
		{`,"bad_words":["x"]`, false, false},
		{`,"return_token_ids":true`, false, false},
		{`,"stream":true,"stream_options":{"continuous_usage_stats":true}`, false, false},
		{`,"n_predict":4`, false, false},
		{`,"max_completion_tokens":4`, false, false},
		{`,"something_new":1`, false, false},
		{`,"\u0073eed":1`, false, false},
	} {
		for api, body := range map[API]string{
			Chat:        `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`,
			Completions: `{"model":"m","max_tokens":9,"prompt":"hi"`,
		} {
			want := c.chat
			if api == Completions {
				want = c.compl
			}
			r, err := Parse(api, []byte(body+c.field+"}"))
			if err != nil {
				t.Errorf("%s: %v", c.field, err)
			} else if r.Resumable() != want {
				t.Errorf("%s with %s: resumable %t, want %t", api, c.field, !want, want)
			}
		}
	}
	for body, want := range map[string]bool{
		`{"model":"m","messages":[{"role":"user","content":"hi"}]}`:                                                                                 true,
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":5}`:                                                       true,
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":0}`:                                                                  false,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}],"max_tokens":5}`: false,
	} {
		if r, err := Parse(Chat, []byte(body)); err != nil || r.Resumable() != want {
			t.Errorf("%s: %v, want resumable %t", body, err, want)
		}
	}
	for body, want := range map[string]bool{
		`{"model":"m","prompt":"hi"}`:                           false,
		`{"model":"m","prompt":"hi","max_tokens":null}`:         false,
		`{"model":"m","prompt":[1,2],"max_tokens":5}`:           true,
		`{"model":"m","prompt":["a","b"],"max_tokens":5}`:       false,
		`{"model":"m","prompt":"hi","max_completion_tokens":5}`: false,
		`{"model":"m","prompt_embeds":"AAAA","max_tokens":5}`:   false,
	} {
		if r, err := Parse(Completions, []byte(body)); err != nil || r.Resumable() != want {
			t.Errorf("%s: %v, want resumable %t", body, err, want)
		}
	}
}

// stitched is what becomes of the events of two attempts.
func stitched(t testing.TB, r *Request, first, second string) (a, b Piece, ea, eb error) {
	s := NewStitch(r, 9, 0)
	a, ea = s.Add([]byte(first))
	a.Data = append([]byte(nil), a.Data...)
	s.Keep()
	if s.Cut() && ea == nil {
		if body := s.Continue(Projection{}, 0); !json.Valid(body) {
			t.Errorf("after %s: the continuation is no JSON: %s", first, body)
		}
	}
	b, eb = s.Add([]byte(second))
	return a, b, ea, eb
}

func FuzzStitch(f *testing.F) {
	for _, s := range []string{
		`{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1, 2]}`,
		`{"choices":[{"index":0,"text":"a","token_ids":[3],"prompt_token_ids":[1],"finish_reason":null}]}`,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`,
		`{"choices":[1,{"delta":[],"token_ids":{}}],"usage":null}`, `{"choices":[{"finish_reason":"length","delta":null}]}`,
		`[]`, `{`, `{"choices":[{"text":"`, `{"prompt_token_ids":[[],{}]}`,
	} {
		f.Add(s, s)
	}
	var requests []*Request
	for _, stop := range []string{"", `,"stop":["a","b\u00e9\""]`, `,"stop":"ab","include_stop_str_in_output":true`} {
		r, err := Parse(Chat, []byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`+stop+`}`))
		if err != nil {
			f.Fatal(err)
		}
		requests = append(requests, r)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		for _, r := range requests {
			a, b, ea, eb := stitched(t, r, first, second)
			for _, p := range []struct {
				data []byte
				err  error
			}{{a.Data, ea}, {b.Data, eb}} {
				if p.err == nil && !json.Valid(p.data) {
					t.Errorf("of %s and %s came %s", first, second, p.data)
				}
			}
			if ok := check([]byte(first)) == nil && first[0] == '{'; ok && ea != nil {
				t.Errorf("%s: %v", first, ea)
			}
		}
	})
}

// TestUsageOfAContinuation: the prompt is counted once and the output whole, and
// what the engine has cached of the first output is not sold as the prompt's.
func TestUsageOfAContinuation(t *testing.T) {
	r, refused := Parse(Chat, []byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`))
	if refused != nil {
		t.Fatal(refused)
	}
	_, p, _, err := stitched(t, r,
		`{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[3,4]}],"prompt_token_ids":[1,2]}`,
		`{"id":"x","choices":[],"usage":{"prompt_tokens":4,"total_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4},"more":1}}`)
	want := `{"choices":[],"usage":{"prompt_tokens":2,"total_tokens":9,"completion_tokens":7,"prompt_tokens_details":null,"more":1}}`
	if err != nil || string(p.Data) != want {
		t.Errorf("%v, %s\nwant %s", err, p.Data, want)
	}
}
