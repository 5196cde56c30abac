package llamacpp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/engine/upstream"
	"headgate/wire"
)

// begin dispatches an attempt with token ids, which a slot runs at once.
func begin(t *testing.T, e *enginetest.Engine, a *Adapter, at *engine.Attempt) (engine.Stream, *enginetest.Call) {
	t.Helper()
	calls := make(chan *enginetest.Call, 1)
	go func() {
		call := e.Accept(t)
		call.Start()
		call.Headers()
		calls <- call
	}()
	s, err := a.Dispatch(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		s.Abort(over)
	})
	return s, <-calls
}

func withIDs(api wire.API, body string) *engine.Attempt {
	return &engine.Attempt{API: api, Body: []byte(body), ID: "a", Stream: true, Interruptible: true, TokenIDs: true}
}

const (
	chatBody = `{"model":"m","messages":[{"role":"user","content":"é"}],"max_tokens":9,"temperature":0.5,"logit_bias":{"7":-1},"seed":null,` +
		`"tools":[],"stop":null,"user":"u","stream":true,"stream_options":{"include_usage":true},"return_token_ids":true}`
	continued = `{"model":"m","prompt":[1,5,6],"max_tokens":4,"top_k":1,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true}`
)

// What reaches the route is the prompt as ids and the sampling as it was asked for.
func TestCompletionIsAskedForIDs(t *testing.T) {
	for _, c := range []struct {
		name string
		at   *engine.Attempt
		want string
	}{
		{"chat", withIDs(wire.Chat, chatBody),
			`{"prompt":[1,35,120,118,104,117,61,35,198,172,13],"stream":true,"return_tokens":true,"cache_prompt":true,"max_tokens":9,"temperature":0.5,"logit_bias":{"7":-1}}`},
		{"completion", withIDs(wire.Completions, `{"model":"m","prompt":"ab","stream":true}`),
			`{"prompt":[1,35,100,101],"stream":true,"return_tokens":true,"cache_prompt":true}`},
		{"continuation", withIDs(wire.Completions, continued),
			`{"prompt":[1,5,6],"stream":true,"return_tokens":true,"cache_prompt":true,"max_tokens":4,"top_k":1}`},
		{"stop strings", withIDs(wire.Completions, `{"model":"m","prompt":[1,5],"stop":null,"min_tokens":3,"include_stop_str_in_output":true,"stream":true}`),
			`{"prompt":[1,5],"stream":true,"return_tokens":true,"cache_prompt":true}`},
		{"a lone prompt", withIDs(wire.Completions, `{"model":"m","prompt":["ab"],"stream":true}`),
			`{"prompt":[1,35,100,101],"stream":true,"return_tokens":true,"cache_prompt":true}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, a := start(t, enginetest.Options{})
			_, call := begin(t, e, a, c.at)
			if d := cmp.Diff(c.want, string(call.Body)); d != "" {
				t.Error(d)
			}
			if call.ID != "a" || call.Header.Get("X-Conversation-Id") != "" {
				t.Errorf("headers %v", call.Header)
			}
		})
	}
}

// told reads a stream to its end and cuts what differs between two runs from its
// events.
func told(t *testing.T, s engine.Stream) (events []string, tokens int, timing *engine.Timing) {
	t.Helper()
	for {
		d, err := s.Next()
		if err == io.EOF {
			return events, tokens, timing
		}
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Raw) != "data: "+string(d.Data)+"\n\n" {
			t.Errorf("raw %q of data %q", d.Raw, d.Data)
		}
		tokens += d.Tokens
		if d.Timing != nil {
			timing = d.Timing
		}
		text := string(d.Data)
		if created := gjson.GetBytes(d.Data, "created"); created.Exists() {
			text = strings.Replace(text, `"created":`+created.Raw, `"created":0`, 1)
		}
		events = append(events, text)
	}
}

func TestCompletionIsToldAsVLLMWould(t *testing.T) {
	const chat = `{"id":"chatcmpl-a","object":"chat.completion.chunk","created":0,"model":"m",`
	const text = `{"id":"cmpl-a","object":"text_completion","created":0,"model":"m",`
	const timings = `,"timings":{"cache_n":2,"prompt_n":1,"prompt_ms":12.5}}`
	for _, c := range []struct {
		name string
		at   *engine.Attempt
		run  func(*enginetest.Call)
		want []string
		n    int
	}{
		{"chat", withIDs(wire.Chat, chatBody), func(c *enginetest.Call) { c.Emit(2); c.Finish("stop") }, []string{
			chat + `"prompt_token_ids":[1,35,120,118,104,117,61,35,198,172,13],"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
			chat + `"choices":[{"index":0,"text":"w1 ","token_ids":[1001],"finish_reason":null}]}`,
			chat + `"choices":[{"index":0,"text":"w2 ","token_ids":[1002],"finish_reason":null}]}`,
			chat + `"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
			chat + `"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":2}}` + timings,
			"[DONE]"}, 2},
		{"continuation", withIDs(wire.Completions, continued), func(c *enginetest.Call) { c.Emit(1); c.Finish("length") }, []string{
			text + `"prompt_token_ids":[1,5,6],"choices":[{"index":0,"text":"w1 ","token_ids":[1001],"finish_reason":null}]}`,
			text + `"choices":[{"index":0,"text":"","finish_reason":"length"}]}`,
			text + `"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}` + timings,
			"[DONE]"}, 1},
		// The route tells the last token of a character only.
		{"characters", withIDs(wire.Completions, continued), func(c *enginetest.Call) { c.Character("日"); c.Character("é"); c.Emit(1); c.Finish("stop") }, []string{
			text + `"prompt_token_ids":[1,5,6],"choices":[{"index":0,"text":"","token_ids":[233,154],"finish_reason":null}]}`,
			text + `"choices":[{"index":0,"text":"日","token_ids":[168],"finish_reason":null}]}`,
			text + `"choices":[{"index":0,"text":"","token_ids":[198],"finish_reason":null}]}`,
			text + `"choices":[{"index":0,"text":"é","token_ids":[172],"finish_reason":null}]}`,
			text + `"choices":[{"index":0,"text":"w6 ","token_ids":[1006],"finish_reason":null}]}`,
			text + `"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`,
			text + `"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":6,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":2}}` + timings,
			"[DONE]"}, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, a := start(t, enginetest.Options{})
			s, call := begin(t, e, a, c.at)
			c.run(call)
			events, n, timing := told(t, s)
			if d := cmp.Diff(c.want, events); d != "" {
				t.Error(d)
			}
			if n != c.n || timing == nil || timing.Prefill != 12500*time.Microsecond {
				t.Errorf("%d tokens, timing %+v", n, timing)
			}
			if c := s.Abort(t.Context()); c.By != engine.ByCompletion {
				t.Errorf("abort after the end: %+v", c)
			}
			if a.Ledger().Count() != (upstream.Count{}) {
				t.Errorf("ledger %+v", a.Ledger().Count())
			}
		})
	}
}

// An answer is the same in one piece and interrupted anywhere, in the middle of a
// character too.
func TestCompletionIsContinued(t *testing.T) {
	all := func(c *enginetest.Call, from int) {
		for i := from; i < 6; i++ {
			c.Character([]string{"a", "é", "日", "b", "𝄞", "."}[i])
		}
		c.Finish("stop")
	}
	req, refused := wire.Parse(wire.Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":40,"stream":true}`))
	if refused != nil {
		t.Fatal(refused)
	}
	for cut := 1; cut < 6; cut++ {
		e, a := start(t, enginetest.Options{})
		stitch := wire.NewStitch(req, 40, 4096)
		body, err := req.Project(nil, wire.Projection{Stream: true, TokenIDs: true})
		if err != nil {
			t.Fatal(err)
		}
		text, usage := "", int64(0)
		read := func(s engine.Stream, pieces int) {
			for pieces != 0 {
				d, err := s.Next()
				if err != nil || d.Done {
					return
				}
				p, err := stitch.Add(d.Data)
				if err != nil || !stitch.Able() {
					t.Fatal(err, stitch.Able())
				}
				if p.Text {
					if !p.Sure {
						t.Errorf("%s can't be cut behind", p.Data)
					}
					stitch.Keep()
					pieces--
				}
				text += gjson.GetBytes(p.Data, "choices.0.delta.content").String()
				usage = max(usage, gjson.GetBytes(p.Data, "usage.completion_tokens").Int())
			}
		}
		s, call := begin(t, e, a, withIDs(wire.Chat, string(body)))
		go all(call, 0)
		read(s, cut)
		s.Abort(t.Context())
		if !stitch.Cut() {
			t.Fatal("it can't be continued")
		}
		s, call = begin(t, e, a, withIDs(wire.Completions, string(stitch.Continue(wire.Projection{}, 0))))
		go all(call, cut)
		read(s, -1)
		if text != "aé日b𝄞." || usage != 12 {
			t.Errorf("cut at %d: %q, %d tokens", cut, text, usage)
		}
	}
}

func TestEndsOfCompletions(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*enginetest.Call)
		want string
	}{
		{"clean end without the last event", func(c *enginetest.Call) { c.Emit(1); c.End() }, "unexpected EOF"},
		{"cut", func(c *enginetest.Call) { c.Emit(1); c.Cut() }, "unexpected EOF"},
		{"cut in an event", func(c *enginetest.Call) { c.Send(`data: {"con`); c.Cut() }, "unexpected EOF"},
		{"no event of the route", func(c *enginetest.Call) { c.Send("data: {\"choices\":[]}\n\n") }, "lacks content"},
		{"no JSON", func(c *enginetest.Call) { c.Send("data: {\n\n") }, "no object"},
		{"no ids", func(c *enginetest.Call) {
			c.Send("data: {\"content\":\"x\",\"tokens\":[-1],\"tokens_predicted\":1}\n\n")
		}, "no token id"},
		{"the engine's own error", func(c *enginetest.Call) { c.Emit(1); c.Fail(500, "Context size has been exceeded.") }, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, a := start(t, enginetest.Options{})
			s, call := begin(t, e, a, withIDs(wire.Chat, chatBody))
			go c.end(call)
			var last engine.Delta
			var err error
			for err == nil {
				var d engine.Delta
				if d, err = s.Next(); err == nil {
					last = d
				}
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
			if (last.Err != nil) != (c.want == "EOF") {
				t.Errorf("last event %+v", last.Chunk)
			}
			if a.Ledger().Count().Live != 0 {
				t.Errorf("ledger %+v", a.Ledger().Count())
			}
		})
	}
}

func TestCompletionIsAborted(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	s, call := begin(t, e, a, withIDs(wire.Chat, chatBody))
	begin(t, e, a, withIDs(wire.Chat, chatBody))
	call.Emit(1)
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	if c := s.Abort(t.Context()); c.By != engine.BySlot {
		t.Errorf("%+v", c)
	}
	<-call.Gone()
	if _, err := s.Next(); err != engine.ErrAborted {
		t.Error(err)
	}
	if e.Running() != 1 {
		t.Errorf("%d running", e.Running())
	}
}

func TestCompletionIsRefused(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	e.Answer("/completion", 400, `{"error":{"code":400,"message":"no such role"}}`)
	_, err := a.Dispatch(t.Context(), withIDs(wire.Chat, chatBody))
	var refused *engine.StatusError
	if !errors.As(err, &refused) || refused.Status != 400 || !strings.Contains(string(refused.Body), "no such role") {
		t.Error(err)
	}
}

// Whoever leaves before a slot is free has to wait for its release.
func TestCompletionThatWaitsIsLeft(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := a.Dispatch(ctx, withIDs(wire.Chat, chatBody))
		got <- err
	}()
	call := e.Accept(t)
	if a.Ledger().Count().Pending != 1 {
		t.Error("it is not on the ledger")
	}
	cancel()
	var u *engine.Unanswered
	if err := <-got; !errors.As(err, &u) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	<-call.Gone()
	if c := u.Confirm(t.Context()); c.By != engine.BySlot {
		t.Errorf("%+v", c)
	}
}

func TestTokens(t *testing.T) {
	_, a := start(t, enginetest.Options{})
	for _, c := range []struct {
		api  wire.API
		body string
		want []int32
	}{
		{wire.Completions, `{"prompt":"ab"}`, []int32{1, 35, 100, 101}},
		{wire.Completions, `{"prompt":[4,5]}`, []int32{4, 5}},
		{wire.Completions, `{"prompt":["ab"]}`, []int32{1, 35, 100, 101}},
		{wire.Completions, `{"prompt":[[4,5]]}`, []int32{4, 5}},
		{wire.Completions, `{"prompt":[[4,5],[6]]}`, nil},
		{wire.Chat, `{"messages":[{"role":"u","content":"a"}]}`, []int32{1, 35, 120, 61, 35, 100, 13}},
		{wire.Completions, `{"prompt":["a","b"]}`, nil},
		{wire.Completions, `{"prompt":[1.5]}`, nil},
		{wire.Completions, `{}`, nil},
		{0, `{"prompt":"a"}`, nil},
	} {
		got, err := a.Tokens(t.Context(), c.api, []byte(c.body))
		if d := cmp.Diff(c.want, got); d != "" || (err == nil) != (c.want != nil) {
			t.Error(c.body, d, err)
		}
	}
}

// What a server or its model can't do is known before the first request.
func TestTokenIDsAreACapability(t *testing.T) {
	props := func(template string) string { return fmt.Sprintf(`{"chat_template":%q,"total_slots":4}`, template) }
	for _, c := range []struct {
		name, path string
		status     int
		body       string
		want, chat bool
	}{
		{"all there is", "/none", 200, "", true, true},
		{"plain template", "/props", 200, props("{{ messages }}"), true, true},
		{"reasoning", "/props", 200, props("{{ '<Think>' }}"), true, false},
		{"channels", "/props", 200, props("<|channel|>final"), true, false},
		{"no template", "/props", 200, `{}`, true, false},
		{"no props", "/props", 404, ``, true, false},
		{"no route for templates", "/apply-template", 404, `{}`, false, false},
		{"templates that are not told", "/apply-template", 200, `{}`, false, false},
		{"no tokenizer", "/tokenize", 501, ``, false, false},
		{"tokens without pieces", "/tokenize", 200, `{"tokens":[1,2]}`, false, false},
	} {
		e, a := start(t, enginetest.Options{})
		e.Answer(c.path, c.status, c.body)
		if got, err := a.Capabilities(t.Context()); err != nil || got.TokenIDs != c.want || got.ChatTokenIDs != c.chat {
			t.Errorf("%s: %t, of chats %t, %v", c.name, got.TokenIDs, got.ChatTokenIDs, err)
		}
	}
}

// TestPrefillIsACapability: what the template makes of an answer that was begun is
// looked at, since it depends on the version.
func TestPrefillIsACapability(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   engine.FinalMessage
	}{
		{200, `{"prompt":"user: a\nassistant: begun"}`, engine.FinalTrailing},
		{200, `{"prompt":"<think>\n\n</think>\n\nbegun"}`, engine.FinalTrailing},
		{200, `{"prompt":"user: a\nassistant: begun</s>\nassistant: "}`, engine.FinalTurn},
		{200, `{}`, engine.FinalTurn},
		{400, `{"error":{"code":400,"message":"no"}}`, engine.FinalTurn},
	} {
		e, a := start(t, enginetest.Options{})
		e.Answer("/apply-template", c.status, c.body)
		if got, err := a.Capabilities(t.Context()); err != nil || got.FinalMessage != c.want {
			t.Errorf("%s: %q, %v, want %q", c.body, got.FinalMessage, err, c.want)
		}
	}
}

func FuzzCompletionEvent(f *testing.F) {
	f.Add([]byte(`{"index":0,"content":" cave","tokens":[548],"stop":false,"tokens_predicted":1,"tokens_evaluated":3}`))
	f.Add([]byte(`{"content":"","tokens":[],"stop":true,"stop_type":"eos","tokens_predicted":3,"tokens_evaluated":3,"timings":{"cache_n":1}}`))
	f.Add([]byte(`{"content":"é","tokens":[172],"tokens_predicted":4}`))
	f.Add([]byte(`{"error":{"code":500,"message":"x"}}`))
	f.Add([]byte(`{"error"0`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // what it would ask the engine is not asked
		s := &answer{adapter: unreachable, place: unreachable.Ledger().Enter(true), ctx: ctx, chat: true, head: `{"id":"x"`, prompt: []int32{1}}
		err := s.take(data)
		for _, event := range s.queue {
			c, bad := wire.ParseChunk(wire.Completions, []byte(event))
			if bad != nil || err == nil && c.Tokens < 0 {
				t.Errorf("%q makes %q: %v", data, event, bad)
			}
		}
	})
}

var unreachable = func() *Adapter {
	a, err := New(engine.Config{Kind: engine.LlamaCpp, URL: "http://127.0.0.1:1", MaxAnswer: 1 << 20})
	if err != nil {
		panic(err)
	}
	return a
}()

func FuzzTokens(f *testing.F) {
	f.Add([]byte(`{"tokens":[{"id":2214,"piece":" "},{"id":198,"piece":[195]},{"id":172,"piece":[169]}]}`), "é")
	f.Fuzz(func(t *testing.T, body []byte, text string) {
		tokens, err := parseTokens(body)
		if err != nil {
			return
		}
		ids := ending(tokens, text)
		if len(ids) > len(tokens) {
			t.Fatalf("%d ids of %d", len(ids), len(tokens))
		}
		whole := ""
		for i, token := range tokens[len(tokens)-len(ids):] {
			whole += token.piece
			if token.id != ids[i] {
				t.Errorf("%d is not %d", ids[i], token.id)
			}
		}
		if len(ids) > 0 && whole != text {
			t.Errorf("%q is not %q", whole, text)
		}
	})
}
