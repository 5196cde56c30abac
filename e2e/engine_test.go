package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/e2e/engine/gguf"
	"headgate/e2e/realengine"
)

// The engine's own promises, without a gateway in front: what the tests through
// the gateway build on.

// eachEngine runs test against every real engine there is: the project's own, and
// llama-server where a binary is named. Nobody has to have one, so that is no test
// that is skipped elsewhere.
func eachEngine(t *testing.T, o realengine.Options, test func(*testing.T, *realengine.Engine)) {
	t.Run("headgate", func(t *testing.T) { test(t, realengine.Start(t, o)) })
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) { test(t, realengine.StartLlamaServer(t, o)) })
}

// tiny is an engine that answers thousands of tokens a second.
var tiny = realengine.Options{Model: gguf.Tiny, Slots: 2, Ctx: 1024}

// slow is an engine whose requests last long enough to be met while they run.
var slow = realengine.Options{Model: gguf.Options{Layers: 4, Width: 256, Exact: true}, Slots: 2, Ctx: 4096}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

func user(text string) []object {
	return []object{{"role": "user", "content": text}}
}

func TestEngineStreamsWordByWord(t *testing.T) {
	eachEngine(t, tiny, func(t *testing.T, e *realengine.Engine) {
		body := object{"model": e.Model, "messages": user("hello world"), "max_tokens": 20, "temperature": 0, "stream": true,
			"stream_options": object{"include_usage": true}}
		streamed := mustGenerate(t, e.URL+chatPath, body)
		if streamed.chunks != 20 || len(strings.Fields(streamed.text)) != 20 {
			t.Errorf("%d chunks with %q, want 20 of one word each", streamed.chunks, streamed.text)
		}
		if streamed.finish != "length" || !streamed.finished {
			t.Errorf("finish reason %q, terminator %v, want length and true", streamed.finish, streamed.finished)
		}
		if u := streamed.usage; u == nil || u.Completion != 20 || u.Prompt < 3 || u.Total != u.Prompt+20 {
			t.Errorf("usage %+v, want 20 of completion and the sum", u)
		}
		delete(body, "stream")
		delete(body, "stream_options")
		whole := mustGenerate(t, e.URL+chatPath, body)
		if whole.text != streamed.text || whole.finish != streamed.finish {
			t.Errorf("not streamed it says\n%q (%s), streamed\n%q (%s)", whole.text, whole.finish, streamed.text, streamed.finish)
		}
	})
}

func TestEngineSendsUsageOnlyWhenAsked(t *testing.T) {
	e := realengine.Start(t, tiny)
	r := mustGenerate(t, e.URL+chatPath, object{"messages": user("hello"), "max_tokens": 2, "stream": true})
	if r.usage != nil {
		t.Errorf("usage %+v came unasked", r.usage)
	}
}

func TestEngineGivesTokenIDs(t *testing.T) {
	e := realengine.Start(t, tiny)
	for _, path := range []string{chatPath, completionsPath} {
		for _, streamed := range []bool{false, true} {
			body := object{"messages": user("hello world"), "prompt": "the river", "max_tokens": 12, "temperature": 0,
				"stream": streamed, "return_token_ids": true}
			r := mustGenerate(t, e.URL+path, body)
			if len(r.ids) != 12 || len(r.prompt) < 3 {
				t.Errorf("%s, stream %v: %d ids and %d of the prompt, want 12 and some", path, streamed, len(r.ids), len(r.prompt))
			}
			var back struct{ Prompt string }
			ask(t, e.URL+"/detokenize", object{"tokens": slices.Concat(r.prompt, r.ids)}, &back)
			if !strings.HasSuffix(back.Prompt, r.text) {
				t.Errorf("%s, stream %v: ids say %q, text %q", path, streamed, back.Prompt, r.text)
			}
		}
	}
}

func TestEngineTokenizes(t *testing.T) {
	e := realengine.Start(t, tiny)
	type tokens struct {
		Count       int
		MaxModelLen int `json:"max_model_len"`
		Tokens      []int
	}
	for _, text := range []string{"the quiet river", "a café, 12 units", "日本 and more", "line\nline"} {
		var got tokens
		ask(t, e.URL+"/tokenize", object{"prompt": text}, &got)
		if got.Count != len(got.Tokens) || got.MaxModelLen != tiny.Ctx {
			t.Errorf("%q: %+v, want a true count and a length of %d", text, got, tiny.Ctx)
		}
		var back struct{ Prompt string }
		ask(t, e.URL+"/detokenize", object{"tokens": got.Tokens}, &back)
		if strings.TrimSpace(back.Prompt) != text {
			t.Errorf("%q comes back as %q", text, back.Prompt)
		}
	}
	// What /tokenize counts for messages is what generation charges.
	var counted tokens
	ask(t, e.URL+"/tokenize", object{"messages": user("hello world")}, &counted)
	var a answer
	ask(t, e.URL+chatPath, object{"messages": user("hello world"), "max_tokens": 1}, &a)
	if a.Usage.Prompt != counted.Count {
		t.Errorf("counted %d prompt tokens, charged %d", counted.Count, a.Usage.Prompt)
	}
}

// TestEngineContinues cuts greedy answers at several places and lets the rest be
// generated anew: from ids, from text, and as a chat's unfinished last message.
// All have to be the answer that was never cut, on a slot that remembers the
// prefix and on one that does not.
func TestEngineContinues(t *testing.T) {
	const length = 96
	e := realengine.Start(t, tiny)
	question := "tell me about the river and the old bridge"
	greedy := object{"messages": user(question), "max_tokens": length, "temperature": 0, "return_token_ids": true}
	full := mustGenerate(t, e.URL+chatPath, greedy)
	if again := mustGenerate(t, e.URL+chatPath, greedy); again.text != full.text {
		t.Fatalf("greedy answers differ:\n%s\n%s", full.text, again.text)
	}
	words := strings.SplitAfter(full.text, " ")
	words = words[1:] // the text begins with a space
	var prompt struct{ Prompt string }
	ask(t, e.URL+"/detokenize", object{"tokens": full.prompt}, &prompt)

	for _, k := range []int{1, 2, 7, 16, 33, 64, 95} {
		said := " " + strings.TrimSuffix(strings.Join(words[:k], ""), " ")
		want := strings.TrimPrefix(full.text, said)
		for name, request := range map[string]struct {
			path string
			body object
		}{
			"ids":  {completionsPath, object{"prompt": slices.Concat(full.prompt, full.ids[:k])}},
			"text": {completionsPath, object{"prompt": strings.TrimSpace(prompt.Prompt) + said}},
			"message": {chatPath, object{"messages": append(user(question), object{"role": "assistant", "content": said}),
				"continue_final_message": true, "add_generation_prompt": false}},
		} {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				body := request.body
				body["max_tokens"], body["temperature"], body["return_token_ids"] = length-k, 0, true
				got := mustGenerate(t, e.URL+request.path, body)
				if got.text != want || !slices.Equal(got.ids, full.ids[k:]) {
					t.Errorf("continued as\n%q, want\n%q", got.text, want)
				}
				if !slices.Equal(got.prompt, slices.Concat(full.prompt, full.ids[:k])) {
					t.Errorf("continued from ids %v, want the prompt's and %d of the answer", got.prompt, k)
				}
			})
		}
	}
}

// TestEngineHistoryMatters makes the test above mean something: an answer that is
// continued from a prefix with one word missing becomes another answer.
func TestEngineHistoryMatters(t *testing.T) {
	e := realengine.Start(t, tiny)
	full := mustGenerate(t, e.URL+completionsPath, object{"prompt": "the old river bridge", "max_tokens": 64, "temperature": 0, "return_token_ids": true})
	const k = 32
	prefix := slices.Concat(full.prompt, full.ids[:k])
	for _, missing := range []int{1, len(prefix) / 2, len(prefix) - 2} {
		wrong := slices.Delete(slices.Clone(prefix), missing, missing+1)
		got := mustGenerate(t, e.URL+completionsPath, object{"prompt": wrong, "max_tokens": 64 - k, "temperature": 0, "return_token_ids": true})
		if slices.Equal(got.ids, full.ids[k:]) {
			t.Errorf("without token %d of %d the answer goes on just the same", missing, len(prefix))
		}
	}
}

// TestEngineKeepsAnswersApart has requests of all lengths meet in the batch, come
// and go, and compares each answer with what the same request says alone.
func TestEngineKeepsAnswersApart(t *testing.T) {
	e := realengine.Start(t, realengine.Options{Model: gguf.Options{Layers: 2, Width: 128, Heads: 2, Exact: true}, Ctx: 1024})
	body := func(i int) object {
		prompt := fmt.Sprintf("number %d and then%s", i, strings.Repeat(" the old stone bridge", i*5%13))
		return object{"prompt": prompt, "max_tokens": 12 + i*7%19, "temperature": 0}
	}
	const n, rounds = 24, 8
	alone := make([]string, n)
	for i := range n {
		alone[i] = mustGenerate(t, e.URL+completionsPath, body(i)).text
	}
	var together errgroup.Group
	for w := range e.Slots {
		together.Go(func() error {
			for j := range n * rounds / e.Slots {
				i := (w*7 + j*(2*w+1)) % n
				r, err := generate(t.Context(), e.URL+completionsPath, body(i))
				if err != nil {
					return err
				}
				if r.text != alone[i] {
					t.Errorf("request %d says in company\n%q, alone\n%q", i, r.text, alone[i])
				}
			}
			return nil
		})
	}
	if err := together.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestEngineReusesPrefixes(t *testing.T) {
	e := realengine.Start(t, tiny)
	prompt := strings.Repeat("the quiet river ", 60)
	say := func(prompt string) *usage {
		t.Helper()
		return mustGenerate(t, e.URL+completionsPath, object{"prompt": prompt, "max_tokens": 4, "temperature": 0}).usage
	}
	if first := say(prompt + "one"); first.Details.Cached > 0 {
		t.Errorf("a new engine had %d tokens cached", first.Details.Cached)
	}
	// Another prompt goes to the other slot and leaves the first one's history.
	if other := say(strings.Repeat("gold and silver ", 60)); other.Details.Cached > 1 {
		t.Errorf("an unrelated prompt had %d tokens cached", other.Details.Cached)
	}
	second := say(prompt + "two")
	if want := second.Prompt - 2; second.Details.Cached < want {
		t.Errorf("%d of %d prompt tokens were cached, want at least %d", second.Details.Cached, second.Prompt, want)
	}
	ctx := t.Context()
	m, err := scrape(ctx, e.URL)
	if err != nil {
		t.Fatal(err)
	}
	if hits := m["vllm:prefix_cache_hits_total"]; hits < float64(second.Details.Cached) || hits > m["vllm:prefix_cache_queries_total"] {
		t.Errorf("%v hits of %v queries, want at least %d", hits, m["vllm:prefix_cache_queries_total"], second.Details.Cached)
	}
}

func TestEngineQueuesBeyondItsSlots(t *testing.T) {
	eachEngine(t, slow, func(t *testing.T, e *realengine.Engine) {
		var streams []*stream
		for i := range e.Slots {
			s, err := openStream(t.Context(), e.URL+completionsPath, object{"model": e.Model, "prompt": fmt.Sprint("river ", i), "max_tokens": 4000, "stream": true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			s.await(t, 1)
			streams = append(streams, s)
		}
		late := make(chan error, 1)
		go func() {
			r, err := generate(t.Context(), e.URL+completionsPath, object{"model": e.Model, "prompt": "late", "max_tokens": 3})
			if err == nil && r.finish != "length" {
				err = fmt.Errorf("finish reason %q, want length", r.finish)
			}
			late <- err
		}()
		untilLoad(t, e.URL, float64(e.Slots), 1)
		streams[0].close()
		if err := <-late; err != nil {
			t.Errorf("the request that waited: %v", err)
		}
	})
}

// TestEngineNoticesDepartures drops requests in every phase, streamed or not, and
// waits until the engine holds nothing of them.
func TestEngineNoticesDepartures(t *testing.T) {
	e := realengine.Start(t, slow)
	long := strings.Repeat("the quiet river and the old stone bridge ", 450)
	untilLoad(t, e.URL, 0, 0)
	for _, streamed := range []bool{true, false} {
		start := func(body object) (cancel context.CancelFunc, gone chan struct{}) {
			ctx, cancel := context.WithCancel(t.Context())
			gone = make(chan struct{})
			body["stream"] = streamed
			go func() {
				defer close(gone)
				if r, err := generate(ctx, e.URL+completionsPath, body); err == nil {
					t.Errorf("a dropped request ended with %q", r.finish)
				}
			}()
			return cancel, gone
		}
		name := map[bool]string{true: "stream", false: "whole"}[streamed]

		t.Run(name+"/generating", func(t *testing.T) {
			before := untilLoad(t, e.URL, 0, 0)["vllm:generation_tokens_total"]
			cancel, gone := start(object{"prompt": "one", "max_tokens": 4000})
			scrapeUntil(t, e.URL, "tokens come", func(m metrics) bool { return m["vllm:generation_tokens_total"] > before+3 })
			cancel()
			<-gone
			after := untilLoad(t, e.URL, 0, 0)
			if made := after["vllm:generation_tokens_total"] - before; made >= 4000 {
				t.Errorf("it was generated to its end, %v tokens", made)
			}
			if after["vllm:kv_cache_usage_perc"] != 0 {
				t.Errorf("KV use is %v with nothing running", after["vllm:kv_cache_usage_perc"])
			}
		})
		t.Run(name+"/in the prompt", func(t *testing.T) {
			before := untilLoad(t, e.URL, 0, 0)
			cancel, gone := start(object{"prompt": name + long, "max_tokens": 100})
			untilLoad(t, e.URL, 1, 0)
			cancel()
			<-gone
			after := untilLoad(t, e.URL, 0, 0)
			if made := after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]; made > 0 {
				t.Errorf("%v tokens were generated: the prompt was evaluated to its end", made)
			}
		})
		t.Run(name+"/waiting", func(t *testing.T) {
			untilLoad(t, e.URL, 0, 0)
			var cancels []context.CancelFunc
			var ends []chan struct{}
			for i := range 4 {
				cancel, gone := start(object{"prompt": fmt.Sprint("number ", i), "max_tokens": 4000})
				cancels, ends = append(cancels, cancel), append(ends, gone)
				untilLoad(t, e.URL, float64(min(i+1, 2)), float64(max(0, i-1)))
			}
			cancels[2]()
			<-ends[2]
			untilLoad(t, e.URL, 2, 1)
			cancels[3]()
			<-ends[3]
			untilLoad(t, e.URL, 2, 0)
			cancels[0]()
			cancels[1]()
			<-ends[0]
			<-ends[1]
			untilLoad(t, e.URL, 0, 0)
		})
	}
}

func TestEngineOrdersItsQueueByPriority(t *testing.T) {
	for _, c := range []struct {
		priority bool
		want     []string
	}{
		{true, []string{"urgent", "plain", "late"}},
		{false, []string{"late", "plain", "urgent"}},
	} {
		t.Run(fmt.Sprintf("priority=%v", c.priority), func(t *testing.T) {
			o := slow
			o.Slots, o.Priority = 1, c.priority
			e := realengine.Start(t, o)
			open := func(name string, priority int) *stream {
				s, err := openStream(t.Context(), e.URL+completionsPath, object{"prompt": name, "max_tokens": 4000, "priority": priority, "stream": true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.close)
				return s
			}
			blocker := open("first", 0)
			blocker.await(t, 1)
			waiting := map[string]*stream{}
			begun := make(chan string, 3)
			for i, r := range []struct {
				name     string
				priority int
			}{{"late", 5}, {"plain", 0}, {"urgent", -5}} {
				s := open(r.name, r.priority)
				waiting[r.name] = s
				go func() {
					if s.next() == nil {
						begun <- r.name
					}
				}()
				untilLoad(t, e.URL, 1, float64(i+1))
			}
			blocker.close()
			// One slot: the next can begin only after this one was dropped.
			var order []string
			for range waiting {
				select {
				case name := <-begun:
					order = append(order, name)
					waiting[name].close()
				case <-time.After(patience):
					t.Fatalf("after %v nothing began", order)
				}
			}
			if !slices.Equal(order, c.want) {
				t.Errorf("served in order %v, want %v", order, c.want)
			}
		})
	}
}

func TestEngineReportsQueueTime(t *testing.T) {
	o := slow
	o.Slots, o.PerRequestMetrics = 1, true
	e := realengine.Start(t, o)
	blocker, err := openStream(t.Context(), e.URL+completionsPath, object{"prompt": "first", "max_tokens": 4000, "stream": true})
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.close()
	blocker.await(t, 1)
	late, err := openStream(t.Context(), e.URL+completionsPath, object{"prompt": "late", "max_tokens": 1, "stream": true,
		"stream_options": object{"include_usage": true}})
	if err != nil {
		t.Fatal(err)
	}
	defer late.close()
	untilLoad(t, e.URL, 1, 1)
	blocker.close()
	for err == nil {
		err = late.next()
	}
	if err != io.EOF || late.metrics == nil || late.metrics.QueueMS <= 0 {
		t.Errorf("it waited, ended with %v and reports %+v", err, late.metrics)
	}
}

func TestEngineStops(t *testing.T) {
	e := realengine.Start(t, tiny)
	body := func(more object) object {
		b := object{"prompt": "the old river bridge", "max_tokens": 40, "temperature": 0, "return_token_ids": true}
		for k, v := range more {
			b[k] = v
		}
		return b
	}
	full := mustGenerate(t, e.URL+completionsPath, body(nil))
	words := strings.Fields(full.text)
	// A stop string that begins in one token and ends in the next.
	stop := words[4][1:] + " " + words[5][:1]
	before, _, found := strings.Cut(full.text, stop)
	if !found {
		t.Fatalf("%q is not in %q", stop, full.text)
	}
	for _, streamed := range []bool{false, true} {
		r := mustGenerate(t, e.URL+completionsPath, body(object{"stop": []string{"never said", stop}, "stream": streamed}))
		if r.text != before || r.finish != "stop" {
			t.Errorf("stream %v: %q (%s), want %q (stop)", streamed, r.text, r.finish, before)
		}
		if n := len(r.ids); n == 0 || n >= 40 || !slices.Equal(r.ids, full.ids[:n]) {
			t.Errorf("stream %v: ids %v are no beginning of %v", streamed, r.ids, full.ids)
		}
	}
}

func TestEngineEndsByItself(t *testing.T) {
	o := tiny
	o.Model.Mean = 8
	e := realengine.Start(t, o)
	ended := 0
	for seed := range 10 {
		body := object{"prompt": "the river", "max_tokens": 200, "temperature": 1, "seed": seed, "return_token_ids": true}
		r := mustGenerate(t, e.URL+completionsPath, body)
		if r.finish == "stop" {
			ended++
		}
		if r.usage.Completion != len(r.ids) {
			t.Errorf("seed %d: %d tokens charged, %d ids", seed, r.usage.Completion, len(r.ids))
		}
		if again := mustGenerate(t, e.URL+completionsPath, body); again.text != r.text {
			t.Errorf("seed %d says %q, then %q", seed, r.text, again.text)
		}
		body["min_tokens"] = 60
		if r := mustGenerate(t, e.URL+completionsPath, body); r.usage.Completion < 60 {
			t.Errorf("seed %d: %d tokens, want at least min_tokens 60", seed, r.usage.Completion)
		}
		body["ignore_eos"] = true
		if r := mustGenerate(t, e.URL+completionsPath, body); r.finish != "length" || r.usage.Completion != 200 {
			t.Errorf("seed %d: %d tokens (%s) with ignore_eos, want 200 (length)", seed, r.usage.Completion, r.finish)
		}
	}
	if ended == 0 {
		t.Error("no answer of mean length 8 ended within 200 tokens")
	}
}

func TestEngineRefuses(t *testing.T) {
	e := realengine.Start(t, tiny)
	messages := user("hello")
	for _, c := range []struct {
		name, path string
		body       any
		status     int
		kind       string
		param      string
		message    string
	}{
		{"no JSON object", chatPath, "text", 400, "BadRequestError", "", "not a JSON object"},
		{"no messages", chatPath, object{}, 400, "BadRequestError", "messages", "messages is missing"},
		{"no prompt", completionsPath, object{}, 400, "BadRequestError", "prompt", "prompt is not usable"},
		{"unknown id", completionsPath, object{"prompt": []int{1, 99999}}, 400, "BadRequestError", "prompt", "99999"},
		{"unknown model", chatPath, object{"messages": messages, "model": "other"}, 404, "NotFoundError", "model", `"other" does not exist`},
		{"long prompt", completionsPath, object{"prompt": strings.Repeat("river ", 1100)}, 400, "BadRequestError", "input_tokens", "maximum context length is 1024"},
		{"long output", chatPath, object{"messages": messages, "max_tokens": 1020}, 400, "BadRequestError", "input_tokens", "1020 output tokens"},
		{"no output", chatPath, object{"messages": messages, "max_completion_tokens": 0}, 400, "BadRequestError", "max_completion_tokens", "from 1"},
		{"temperature", chatPath, object{"messages": messages, "temperature": "hot"}, 400, "BadRequestError", "temperature", `temperature is "hot"`},
		{"two answers", chatPath, object{"messages": messages, "n": 2}, 400, "BadRequestError", "n", "n is not supported"},
		{"both ways", chatPath, object{"messages": messages, "continue_final_message": true, "add_generation_prompt": true}, 400, "BadRequestError", "continue_final_message", "add_generation_prompt false"},
		{"no route", "/v1/embeddings", object{}, 404, "NotFoundError", "", "Not Found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a answer
			status := ask(t, e.URL+c.path, c.body, &a)
			if a.Error == nil {
				t.Fatalf("status %d and no error", status)
			}
			if status != c.status || a.Error.Code != c.status || a.Error.Type != c.kind || a.Error.Param != c.param || !strings.Contains(a.Error.Message, c.message) {
				t.Errorf("status %d, %+v, want %d %s, param %q, message with %q", status, *a.Error, c.status, c.kind, c.param, c.message)
			}
		})
	}
	untilLoad(t, e.URL, 0, 0) // nothing is held by what was refused
}

func TestEngineLeavesOnSIGTERM(t *testing.T) {
	e := realengine.Start(t, slow)
	s, err := openStream(t.Context(), e.URL+completionsPath, object{"prompt": "one", "max_tokens": 4000, "stream": true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.await(t, 1)
	gone, err := e.Terminate()
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = s.next()
	}
	if s.finished {
		t.Error("the cut stream has a terminator")
	}
	<-gone
	if res, err := http.Get(e.URL + "/health"); err == nil {
		res.Body.Close()
		t.Error("it still answers")
	}
}
