package vllmapi

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"headgate/simengine"
)

func fast() Config {
	c := Many(16)
	c.Engine.SplitCharacters = 4
	c.DevMode = true
	return c
}

const hello = `"messages":[{"role":"user","content":"How much water may I draw?"}]`

func TestChatStream(t *testing.T) {
	cfg := fast()
	cfg.PerRequestMetrics = true
	s, h := serve(t, cfg)
	_, whole := post(t, h.URL+"/v1/chat/completions", `{`+hello+`,"max_tokens":24,"return_token_ids":true}`)
	want := parse(t, whole)
	status, stream := post(t, h.URL+"/v1/chat/completions", `{`+hello+`,"max_tokens":24,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true}`)
	if status != 200 {
		t.Fatalf("status %d: %s", status, stream)
	}
	all := events(t, stream)
	if d := all[0].Choices[0].Delta; d.Role != "assistant" || d.Content != "" || len(all[0].PromptID) == 0 {
		t.Errorf("first event: %+v: want the role and the prompt's ids", all[0])
	}
	got := gather(all)
	w := want.Choices[0]
	if got.text != w.Message.Content || !slices.Equal(got.ids, w.TokenIDs) || got.finish != "length" || got.n != 24 {
		t.Errorf("stream %+v differs from the answer in one piece %+v", got, w)
	}
	if !slices.Equal(all[0].PromptID, want.PromptID) {
		t.Errorf("prompt ids differ: %v, %v", all[0].PromptID, want.PromptID)
	}
	if again := simengine.Encode(nil, got.text); !strings.Contains(got.text, "\ufffd") && !slices.Equal(again, got.ids) {
		t.Errorf("text %q encodes to %v, generated were %v", got.text, again, got.ids)
	}
	last := all[len(all)-1]
	if len(last.Choices) != 0 || last.Usage == nil || last.Usage.Completion != 24 || last.Usage.Prompt != len(want.PromptID) || last.Usage.Total != 24+len(want.PromptID) {
		t.Errorf("usage: %+v", last)
	}
	if *last.Usage != *want.Usage {
		t.Errorf("usage of stream and answer differ: %+v, %+v", last.Usage, want.Usage)
	}
	for _, name := range []string{"queue_time_ms", "time_to_first_token_ms", "generation_time_ms", "mean_itl_ms", "tokens_per_second"} {
		if _, ok := last.Metrics[name]; !ok {
			t.Errorf("usage has no metrics.%s: %v", name, last.Metrics)
		}
	}
	if last.Model != s.ModelName() || last.Model != "headgate-simulated-instant" {
		t.Errorf("model %q", last.Model)
	}
}

// TestWithoutUsage: a client that didn't ask for usage gets no usage event.
func TestWithoutUsage(t *testing.T) {
	_, h := serve(t, fast())
	_, stream := post(t, h.URL+"/v1/completions", `{"prompt":"a","max_tokens":3,"stream":true}`)
	all := events(t, stream)
	if len(all) != 3 || all[2].Usage != nil || len(all[2].Choices[0].TokenIDs) != 0 {
		t.Errorf("got %d events, last %+v: want 3 without usage and ids", len(all), all[len(all)-1])
	}
	_, stream = post(t, h.URL+"/v1/chat/completions", `{`+hello+`,"max_tokens":3,"stream":true,"stream_options":{"continuous_usage_stats":true}}`)
	for i, a := range events(t, stream) {
		if a.Usage == nil || a.Usage.Completion != i {
			t.Errorf("event %d: usage %+v: want %d completion tokens", i, a.Usage, i)
		}
	}
}

// TestPromptForms: a prompt as text, as ids and in lists is the same prompt.
func TestPromptForms(t *testing.T) {
	_, h := serve(t, fast())
	ids := simengine.Encode(nil, "the upper field")
	list := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
	_, one := post(t, h.URL+"/v1/completions", `{"prompt":"the upper field","max_tokens":8}`)
	want := parse(t, one).Choices[0].Text
	for _, prompt := range []string{list, `["the upper field"]`, `[` + list + `]`} {
		_, body := post(t, h.URL+"/v1/completions", `{"max_tokens":8,"prompt":`+prompt+`}`)
		if got := parse(t, body).Choices; len(got) != 1 || got[0].Text != want {
			t.Errorf("prompt %s: %s: want %q", prompt, body, want)
		}
	}
	_, body := post(t, h.URL+"/v1/completions", `{"prompt":["the upper field","x"],"n":2,"max_tokens":8}`)
	a := parse(t, body)
	if len(a.Choices) != 4 || a.Choices[1].Text != want || a.Choices[2].Text == want || a.Usage.Completion != 32 || a.Usage.Prompt != len(ids)+1 {
		t.Errorf("two prompts of two choices: %s", body)
	}
	_, body = post(t, h.URL+"/v1/completions", `{"prompt":"a"}`)
	if got := parse(t, body).Usage.Completion; got != 16 {
		t.Errorf("default max_tokens: %d: want 16", got)
	}
}

// TestResume continues an answer from its middle, by ids and by text, in every
// way the API has.
func TestResume(t *testing.T) {
	cfg := Many(16)
	cfg.Engine.PrefixCaching = true
	cfg.PromptTokensDetails = true
	_, h := serve(t, cfg)
	_, body := post(t, h.URL+"/v1/chat/completions", `{`+hello+`,"max_tokens":40,"return_token_ids":true}`)
	full := parse(t, body)
	whole, text := full.Choices[0].TokenIDs, full.Choices[0].Message.Content
	for k := range whole {
		if k == 0 {
			continue
		}
		head := simengine.DecodeAll(whole[:k])
		rest := text[len(head):]
		prompt := strings.ReplaceAll(fmt.Sprint(append(slices.Clone(full.PromptID), whole[:k]...)), " ", ",")
		_, body := post(t, h.URL+"/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":%d}`, prompt, 40-k))
		if got := parse(t, body); got.Choices[0].Text != rest {
			t.Fatalf("resumed by ids after %d: %q: want %q", k, got.Choices[0].Text, rest)
		} else if want := (len(full.PromptID) + k - 1) / 16 * 16; got.Usage.Details.Cached != want {
			t.Errorf("resumed after %d: %d tokens cached: want %d", k, got.Usage.Details.Cached, want)
		}
		_, body = post(t, h.URL+"/inference/v1/generate", fmt.Sprintf(`{"token_ids":%s,"sampling_params":{"max_tokens":%d}}`, prompt, 40-k))
		if got := parse(t, body); !slices.Equal(got.Choices[0].TokenIDs, whole[k:]) {
			t.Fatalf("resumed by generate after %d: %v: want %v", k, got.Choices[0].TokenIDs, whole[k:])
		}
		_, body = post(t, h.URL+"/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":"How much water may I draw?"},{"role":"assistant","content":%q}],"max_tokens":%d,"continue_final_message":true,"add_generation_prompt":false}`, head, 40-k))
		if got := parse(t, body); got.Choices[0].Message.Content != rest {
			t.Fatalf("resumed by text after %d: %q: want %q", k, got.Choices[0].Message.Content, rest)
		}
	}
}

// TestCacheSalt: requests with different salts don't share what is cached.
func TestCacheSalt(t *testing.T) {
	cfg := Many(4)
	cfg.Engine.PrefixCaching = true
	cfg.PromptTokensDetails = true
	_, h := serve(t, cfg)
	for _, c := range []struct {
		salt   string
		cached int
	}{{"", 0}, {"a", 0}, {"a", 32}, {"b", 0}, {"", 32}} {
		_, body := post(t, h.URL+"/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1,"cache_salt":%q}`, strings.Repeat(" mill", 40), c.salt))
		if got := parse(t, body).Usage.Details.Cached; got != c.cached {
			t.Errorf("salt %q: %d tokens cached: want %d", c.salt, got, c.cached)
		}
	}
}

// TestSplitCharacter: a character made of several tokens is text only when it
// is whole, and every event has its token.
func TestSplitCharacter(t *testing.T) {
	cfg := fast()
	cfg.Engine.SplitCharacters = 1
	_, h := serve(t, cfg)
	_, stream := post(t, h.URL+"/v1/completions", `{"prompt":"x","max_tokens":50,"stream":true,"return_token_ids":true}`)
	all := events(t, stream)
	empty := 0
	for i, a := range all {
		c := a.Choices[0]
		if c.Text == "" {
			empty++
		}
		if len(c.TokenIDs) != 1 || strings.Contains(c.Text, "\ufffd") && i < len(all)-1 {
			t.Errorf("event %d: %+v", i, c)
		}
	}
	if empty == 0 {
		t.Error("no character was split")
	}
	got := gather(all)
	raw := simengine.DecodeAll(got.ids)
	if want := strings.ToValidUTF8(raw, "\ufffd"); got.text != want {
		t.Errorf("text %q: want %q", got.text, want)
	}
}

// TestStopString ends an answer at a text that goes across tokens, and the
// engine's work for it.
func TestStopString(t *testing.T) {
	cfg := Many(4)
	_, h := serve(t, cfg)
	_, body := post(t, h.URL+"/v1/completions", `{"prompt":"x","max_tokens":30}`)
	text := parse(t, body).Choices[0].Text
	cut := len(text) / 2
	stop := text[cut : cut+7]
	at := strings.Index(text, stop)
	for _, stream := range []bool{false, true} {
		for _, keep := range []bool{false, true} {
			req := fmt.Sprintf(`{"prompt":"x","max_tokens":30,"stop":[%q,"never"],"stream":%v,"include_stop_str_in_output":%v}`, stop, stream, keep)
			_, body := post(t, h.URL+"/v1/completions", req)
			var got gathered
			if stream {
				got = gather(events(t, body))
			} else {
				a := parse(t, body)
				got = gathered{text: a.Choices[0].Text, finish: a.Choices[0].Finish}
				if a.Choices[0].Stop != stop {
					t.Errorf("stop_reason %q: want %q", a.Choices[0].Stop, stop)
				}
			}
			want := text[:at]
			if keep {
				want += stop
			}
			if got.text != want || got.finish != "stop" {
				t.Errorf("%s: %q, %s: want %q, stop", req, got.text, got.finish, want)
			}
		}
	}
}

// TestStopStringAsVLLM: the string counts that is complete first, the first in the
// list of those that end together, and none that ends within min_tokens or before.
func TestStopStringAsVLLM(t *testing.T) {
	for _, c := range []struct {
		text  string // a token is a byte
		stops []string
		least int
		want  string
		by    string
	}{
		{"xaby", []string{"ab", "b"}, 0, "xab|ab", "ab"},
		{"xaby", []string{"b", "ab"}, 0, "xab|b", "b"},
		{"xabcy", []string{"abc", "ab"}, 0, "xab|ab", "ab"},
		{"abab", []string{"ab"}, 1, "ab|ab", "ab"},
		{"ababab", []string{"ab"}, 2, "abab|ab", "ab"},
		{"abcxyz", []string{"ab", "wxyz"}, 2, "abcxyz", ""},
	} {
		s := newTextStream(c.stops, false)
		taken, by := "", ""
		for i := 0; i < len(c.text) && by == ""; i++ {
			_, by = s.push(simengine.Token(c.text[i]), i+1 > c.least)
			taken += c.text[i : i+1]
		}
		if by != "" {
			taken += "|" + by
		}
		if by != c.by || taken != c.want {
			t.Errorf("%q with %q after %d: %s, want %s", c.text, c.stops, c.least, taken, c.want)
		}
	}
}

func TestRender(t *testing.T) {
	_, h := serve(t, fast())
	_, body := post(t, h.URL+"/v1/chat/completions/render", `{`+hello+`}`)
	r := parse(t, `{"choices":[`+body+`]}`)
	_, answer := post(t, h.URL+"/v1/chat/completions", `{`+hello+`,"max_tokens":1,"return_token_ids":true}`)
	ids := parse(t, answer).PromptID
	if !slices.Equal(r.Choices[0].TokenIDs, ids) {
		t.Errorf("rendered %s: want %v", body, ids)
	}
	_, tokens := post(t, h.URL+"/tokenize", `{`+hello+`}`)
	if !strings.Contains(tokens, fmt.Sprintf(`"count":%d,`, len(ids))) {
		t.Errorf("tokenize: %s: want %d", tokens, len(ids))
	}
	_, text := post(t, h.URL+"/detokenize", `{"tokens":`+strings.ReplaceAll(fmt.Sprint(ids), " ", ",")+`}`)
	if !strings.Contains(text, "How much water may I draw?") {
		t.Errorf("detokenize: %s", text)
	}
	// The published host spent 29 tokens around a prompt.
	_, around := post(t, h.URL+"/tokenize", `{"messages":[{"role":"user","content":""}]}`)
	if !strings.Contains(around, `"count":29,`) {
		t.Errorf("around an empty message: %s: want 29", around)
	}
}

func TestRefusals(t *testing.T) {
	_, h := serve(t, fast())
	for _, c := range []struct {
		path, body string
		status     int
		kind       string
		param      string
		says       string
	}{
		{"/v1/completions", `{"prompt":"a","model":"gpt"}`, 404, "NotFoundError", "model", "`gpt` does not exist"},
		{"/v1/completions", `{"prompt":"a","max_tokens":4096}`, 400, "BadRequestError", "input_tokens", "maximum context length is 4096 tokens. This request has 1 input tokens and asks for 4096"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"` + strings.Repeat("a ", 4100) + `"}]}`, 400, "BadRequestError", "input_tokens", "maximum context length is 4096"},
		{"/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "BadRequestError", "max_tokens", "max_tokens: 0: allowed is at least 1"},
		{"/v1/completions", `{"prompt":"a","max_tokens":"9"}`, 400, "BadRequestError", "max_tokens", "max_tokens: string"},
		{"/v1/completions", `{"prompt":"a","max_tokens":4,"min_tokens":5}`, 400, "BadRequestError", "min_tokens", "min_tokens: 5: allowed are 0 to max_tokens 4"},
		{"/v1/completions", `{"prompt":[]}`, 400, "BadRequestError", "prompt", "none of them empty"},
		{"/v1/completions", `{"prompt":""}`, 400, "BadRequestError", "prompt", "empty"},
		{"/v1/completions", `{}`, 400, "BadRequestError", "prompt", "prompt"},
		{"/v1/completions", `{"prompt":[-1]}`, 400, "BadRequestError", "prompt", "prompt[0]: token id -1"},
		{"/v1/completions", `{"prompt":"a","n":0}`, 400, "BadRequestError", "n", "n: 0: allowed are 1 to 128"},
		{"/v1/completions", `{"prompt":"a","stop":7}`, 400, "BadRequestError", "stop", "stop"},
		{"/v1/completions", `{"prompt":"a","stop":[""]}`, 400, "BadRequestError", "stop", "stop[0]: empty"},
		{"/v1/completions", `{"prompt":"a","echo":true}`, 400, "BadRequestError", "echo", "not simulated"},
		{"/v1/completions", `{"prompt":"a","logprobs":3}`, 400, "BadRequestError", "logprobs", "none"},
		{"/v1/completions", `{"prompt":"a","stream_options":{}}`, 400, "BadRequestError", "stream_options", "stream: true"},
		{"/v1/completions", `{"prompt":`, 400, "BadRequestError", "", "not JSON"},
		{"/v1/chat/completions", `{"messages":[]}`, 400, "BadRequestError", "messages", "at least one"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "BadRequestError", "messages", "text only"},
		{"/v1/chat/completions", `{` + hello + `,"continue_final_message":true,"add_generation_prompt":true}`, 400, "BadRequestError", "continue_final_message", "both true"},
		{"/v1/chat/completions", `{` + hello + `,"continue_final_message":true}`, 400, "BadRequestError", "continue_final_message", "assistant"},
		{"/inference/v1/generate", `{"token_ids":[1]}`, 400, "BadRequestError", "sampling_params", "missing"},
		{"/detokenize", `{"tokens":[2147483647]}`, 400, "BadRequestError", "tokens", "2147483647"},
	} {
		status, body := post(t, h.URL+c.path, c.body)
		a := parse(t, body)
		if a.Error == nil || status != c.status || a.Error.Code != c.status || a.Error.Type != c.kind || a.Error.Param != c.param || !strings.Contains(a.Error.Message, c.says) {
			t.Errorf("%s %.60s: %d %s: want %d %s %s %q", c.path, c.body, status, body, c.status, c.kind, c.param, c.says)
		}
	}
	req, err := http.NewRequest("POST", h.URL+"/v1/completions", strings.NewReader(`{"prompt":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Vllm-Priority", "high")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body := readAll(t, resp.Body); resp.StatusCode != 400 || !strings.Contains(body, `X-Vllm-Priority: \"high\"`) {
		t.Errorf("priority header: %d %s", resp.StatusCode, body)
	}
}

// TestSaysWhatItIs: nobody takes it for a real engine.
func TestSaysWhatItIs(t *testing.T) {
	cfg := Config{Engine: simengine.DefaultConfig(), Version: "1.2.3"}
	_, h := serve(t, cfg)
	if got := get(t, h.URL+"/version"); got != `{"version":"headgate-simengine 1.2.3"}` {
		t.Error(got)
	}
	if got := get(t, h.URL+"/v1/models"); !strings.Contains(got, `"id":"headgate-simulated-m1"`) || !strings.Contains(got, `"max_model_len":4096`) {
		t.Error(got)
	}
	if status, _ := post(t, h.URL+"/abort_requests", `{}`); status != 404 {
		t.Errorf("/abort_requests without dev mode: %d: want 404", status)
	}
}

// TestMetricNames is a golden of every series and label, without values.
func TestMetricNames(t *testing.T) {
	cfg := fast()
	cfg.Engine.PrefixCaching = true
	_, h := serve(t, cfg)
	post(t, h.URL+"/v1/completions", `{"prompt":"a","max_tokens":3}`)
	bucket := regexp.MustCompile(`(?m)^.*_bucket.*\n`)
	value := regexp.MustCompile(`(?m) \S+$`)
	got := value.ReplaceAllString(bucket.ReplaceAllString(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(get(t, h.URL+"/metrics"), ""), ""), "")
	lines := strings.Split(strings.TrimSpace(got), "\n")
	sort.Strings(lines)
	got = strings.Join(lines, "\n") + "\n"
	const path = "testdata/metrics.txt"
	if os.Getenv("REWRITE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("metrics differ from %s (REWRITE=1 rewrites it): %v\n%s", path, err, got)
	}
}

// TestMany runs two thousand streams at once through real sockets.
func TestMany(t *testing.T) {
	const streams = 2000
	s, h := serve(t, Many(streams))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			resp, err := client.Post(h.URL+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"prompt":"%d","max_tokens":20,"stream":true,"return_token_ids":true}`, i)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			body := readAll(t, resp.Body)
			if g := gather(events(t, body)); g.n != 20 || g.finish != "length" {
				t.Errorf("stream %d: %+v", i, g)
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stats.FinishedLength != streams || s.stats.Running != 0 || s.stats.UsedBlocks != 0 || s.live != 0 {
		t.Errorf("at the end: %+v, live %d", s.stats, s.live)
	}
}
