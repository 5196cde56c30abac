package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/e2e/client"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/journal"
)

// Anthropic's SDK through the gateway, to engines that know only chats.

func TestAnthropic(t *testing.T) {
	t.Run("llama.cpp", func(t *testing.T) {
		e := realengine.Start(t, four)
		b := backend{kind: "vllm", url: e.URL, model: e.Model}
		b.run(t, "answers as a chat does", testMessages)
		b.run(t, "refuses in the SDK's terms", testMessageRefusals)
		b.run(t, "frees what an abort leaves", testMessageAbort)
	})
	t.Run("simulated", func(t *testing.T) {
		e := headgate.StartEngine(t, "--speed", "0.05", "--num-gpu-blocks", "2048", "--enable-per-request-metrics")
		b := backend{kind: "vllm", url: e.URL, model: e.Model, exact: true}
		b.run(t, "answers as a chat does", testMessages)
		b.run(t, "frees what an abort leaves", testMessageAbort)
		b.run(t, "goes on after a reclaim", testMessageReclaim)
	})
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) {
		e := realengine.StartLlamaServer(t, four)
		b := backend{kind: "llamacpp", url: e.URL, model: e.Model}
		b.run(t, "answers as a chat does", testMessages)
		b.run(t, "frees what an abort leaves", testMessageAbort)
	})
}

func message(g *headgate.Gateway, key string, body object) client.Call {
	return client.Call{BaseURL: g.URL + "/v1", APIKey: key, Route: client.Messages, Body: body}
}

func testMessages(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	ask := func(more object) client.Result {
		body := object{"model": b.model, "system": "be brief", "messages": user("hello world"), "max_tokens": 12, "temperature": 0}
		for field, v := range more {
			body[field] = v
		}
		return client.Run(t, sdk, message(g, k.app, body))
	}
	chat := func() client.Result {
		return client.Run(t, sdk, client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Chat, Body: object{"model": b.model, "max_tokens": 12, "temperature": 0,
			"messages": []object{{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"}}}})
	}
	chat() // an engine whose answers are not exact then computes the same every time
	want, whole, streamed := chat(), ask(nil), ask(object{"stream": true})
	if want.Error != nil || want.Text == "" || want.FinishReason != "length" {
		t.Fatalf("the chat %+v shows nothing", want)
	}
	for _, r := range []client.Result{whole, streamed} {
		if r.Error != nil || r.Text != want.Text || r.FinishReason != "max_tokens" || !strings.HasPrefix(r.ID, "msg_") {
			t.Errorf("message %+v (error %+v), chat %+v", r, r.Error, want)
			continue
		}
		if d := cmp.Diff(want.Usage, r.Usage); d != "" {
			t.Errorf("usage (-chat +message):\n%s", d)
		}
		if h := r.Headers; h["headgate-class"] != "interactive" || h["request-id"] == "" || h["request-id"] != h["headgate-request-id"] {
			t.Errorf("headers %v", h)
		}
		if m := gjson.ParseBytes(r.Message); m.Get("model").Str != b.model || m.Get("type").Str != "message" || m.Get("role").Str != "assistant" || m.Get("content.#").Int() != 1 {
			t.Errorf("%s", r.Message)
		}
	}
	if streamed.Chunks < 2 {
		t.Errorf("%d chunks", streamed.Chunks)
	}
	// Blocks are what engines take too.
	parts := ask(object{"messages": []object{
		{"role": "user", "content": []object{{"type": "text", "text": "what is"}, {"type": "text", "text": "the time"}}},
		{"role": "assistant", "content": []object{{"type": "text", "text": "I look."}}},
		{"role": "user", "content": "go on"}}})
	if parts.Error != nil || parts.Text == "" {
		t.Errorf("%+v", parts.Error)
	}
	count := client.Run(t, sdk, client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.CountTokens, Body: object{"model": b.model, "system": "be brief", "messages": user("hello world")}})
	if count.Error != nil || count.Usage == nil || count.Usage.Prompt < want.Usage.Prompt/4 || count.Usage.Prompt > 4*want.Usage.Prompt {
		t.Errorf("count %+v (error %+v), the engine counts %d", count.Usage, count.Error, want.Usage.Prompt)
	}
	g.AwaitPool("nothing is held", idle)
}

func testMessageRefusals(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	stranger, _ := headgate.NewKey(t)
	body := func(more object) object {
		o := object{"model": b.model, "messages": user("hello"), "max_tokens": 4}
		for field, v := range more {
			o[field] = v
		}
		return o
	}
	cases := []struct {
		name              string
		call              client.Call
		class, kind, code string
	}{
		{"unknown key", message(g, stranger, body(nil)), "AuthenticationError", "authentication_error", "unauthorized"},
		{"unknown model", message(g, k.app, body(object{"model": "other"})), "NotFoundError", "not_found_error", "model_not_found"},
		{"too long", message(g, k.app, body(object{"system": strings.Repeat("word ", 8000)})), "BadRequestError", "invalid_request_error", "context_length_exceeded"},
		{"server tool", message(g, k.app, body(object{"tools": []object{{"type": "web_search_20250305", "name": "web_search"}}})), "BadRequestError", "invalid_request_error", "invalid_field"},
		{"refused by the engine", message(g, k.app, body(object{"temperature": -1})), "BadRequestError", "invalid_request_error", "engine_refused"},
		{"refused in a stream", message(g, k.app, body(object{"temperature": -1, "stream": true})), "BadRequestError", "invalid_request_error", "engine_refused"},
	}
	forbidden := message(g, k.app, body(nil))
	forbidden.Headers = map[string]string{"Headgate-Class": "batch"}
	cases = append(cases, struct {
		name              string
		call              client.Call
		class, kind, code string
	}{"class not allowed", forbidden, "PermissionDeniedError", "permission_error", "class_not_permitted"})
	var calls []client.Call
	for _, c := range cases {
		calls = append(calls, c.call)
	}
	s := client.Start(t, sdk, calls...)
	for i, c := range cases {
		r := s.Result(i)
		if r.Error == nil || r.Error.Class != c.class || r.Error.Type != c.kind || r.Error.Code != c.code {
			t.Errorf("%s: %+v, want %s of type %s with code %s", c.name, r.Error, c.class, c.kind, c.code)
			continue
		}
		if len(r.Attempts) != 1 || r.Error.RequestID == "" || r.Error.RequestID != r.Headers["headgate-request-id"] {
			t.Errorf("%s: %d attempts, request id %q, headers %v", c.name, len(r.Attempts), r.Error.RequestID, r.Headers)
		}
	}
	g.AwaitPool("nothing is held", idle)
}

func testMessageAbort(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	call := message(g, k.app, object{"model": b.model, "messages": user("hello"), "max_tokens": 3000, "stream": true})
	call.AbortAfter = 3
	if r := client.Run(t, sdk, call); !r.Aborted || r.Chunks != 3 {
		t.Fatalf("%+v (error %+v), want an abort after 3 deltas", r, r.Error)
	}
	g.AwaitPool("nothing is held", idle)
	untilLoad(t, b.url, 0, 0)
	g.AwaitEvent("the end of the request", func(e *journal.Event) bool { return e.Kind == journal.Finished && e.Cause == "client_gone" })
}

// testMessageReclaim: a borrowed stream that is ended for others goes on, and
// Anthropic's SDK reads one message.
func testMessageReclaim(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, ", idle_after: 100ms", atOnce)
	const tokens = 600
	body := object{"model": b.model, "messages": user("the river"), "max_tokens": tokens, "temperature": 0, "stream": true}
	// A stream borrows once the engine was seen to return what continuing it takes.
	if r := client.Run(t, sdk, message(g, k.jobs, object{"model": b.model, "messages": user("hello"), "max_tokens": 5})); r.Error != nil {
		t.Fatal(r.Error)
	}
	var calls []client.Call
	for range 3 {
		calls = append(calls, message(g, k.jobs, body))
	}
	batch := client.Start(t, sdk, calls...)
	g.AwaitPool("batch has three slots", func(s *admission.Snapshot) bool { return class(s, "batch").Used.Slots == 3 })
	for i := range calls {
		<-batch.First(i)
	}
	// Two interactive requests: one takes the unlent slot, the other wants a loan's.
	for range 2 {
		s, err := openStreamAs(t.Context(), g.URL+chatPath, k.app, object{"model": b.model, "messages": user("hello"), "max_tokens": tokens, "stream": true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
	}
	g.AwaitEvent("a loan is ended", func(e *journal.Event) bool { return e.Kind == journal.Ended && e.Cause == "reclaimed" && e.Loan })
	want := mustGenerate(t, b.url+chatPath, object{"model": b.model, "messages": user("the river"), "max_tokens": tokens, "temperature": 0})
	for i := range calls {
		r := batch.Result(i)
		if r.Error != nil || r.Text != want.text || r.FinishReason != "max_tokens" || r.Usage == nil || r.Usage.Completion != tokens || r.Usage.Prompt != want.usage.Prompt {
			t.Errorf("batch %d: error %+v, usage %+v, stop reason %q, text\n%q\nwant the engine's\n%q", i, r.Error, r.Usage, r.FinishReason, r.Text, want.text)
		}
	}
}

// script is an engine that answers every chat with the same events and keeps the
// last request.
type script struct {
	*httptest.Server
	events []string
	then   []string      // if not nil, the events once a tool has been run
	asked  chan string   // gets each chat's body
	wait   chan struct{} // if not nil, what is waited for before the first event
	last   atomic.Pointer[string]
}

func newScript(t *testing.T, events ...string) *script {
	s := &script{events: events, asked: make(chan string, 16)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != chatPath {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		body, _ := io.ReadAll(r.Body)
		text := string(body)
		s.last.Store(&text)
		s.asked <- text
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		if s.wait != nil {
			select {
			case <-s.wait:
			case <-r.Context().Done():
			}
		}
		events := s.events
		if s.then != nil && gjson.Get(text, `messages.#(role=="tool")`).Exists() {
			events = s.then
		}
		for _, e := range events {
			fmt.Fprintf(w, "data: %s\n\n", e)
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *script) serve(t *testing.T, settings string) *headgate.Gateway {
	return headgate.Start(t, fmt.Sprintf(`%sanonymous: {classes: [only]}
pools:
  - name: main
    engines: [{name: script, kind: openai, url: "%s", slots: 4, kv_tokens: 8192, observe_every: 50ms}]
    classes: [{name: only, floor: {slots: 4}}]
`, settings, s.URL)).AwaitReady()
}

// TestAnthropicTools: a model that calls tools, as the SDK's user sees it, and
// the results as the engine gets them.
func TestAnthropicTools(t *testing.T) {
	chunk := func(delta, finish string) string {
		return fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`, delta, finish)
	}
	s := newScript(t,
		chunk(`{"role":"assistant","content":"I look."}`, "null"),
		chunk(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]}`, "null"),
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\": \"Par"}}]}`, "null"),
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"is\", \"x\": 1.50}"}}]}`, "null"),
		chunk(`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"time","arguments":"{}"}}]}`, "null"),
		chunk(`{}`, `"tool_calls"`),
		`{"id":"c","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"total_tokens":49,"prompt_tokens_details":{"cached_tokens":32}}}`)
	g := s.serve(t, "")
	tools := []object{{"name": "weather", "description": "tells it", "input_schema": object{"type": "object", "properties": object{"city": object{"type": "string"}}}},
		{"name": "time", "input_schema": object{"type": "object"}}}
	const content = `[{"type":"text","text":"I look."},{"type":"tool_use","id":"call_1","name":"weather","input":{"city":"Paris","x":1.5}},{"type":"tool_use","id":"call_2","name":"time","input":{}}]`
	for _, stream := range []bool{false, true} {
		r := client.Run(t, sdk, message(g, "", object{"model": "m", "max_tokens": 100, "messages": user("weather?"), "tools": tools, "tool_choice": object{"type": "any"}, "stream": stream}))
		m := gjson.ParseBytes(r.Message)
		if r.Error != nil || r.FinishReason != "tool_use" || m.Get("content").Raw != content {
			t.Errorf("stream %v: error %+v, %s", stream, r.Error, r.Message)
		}
		if u := m.Get("usage"); u.Get("input_tokens").Int() != 8 || u.Get("cache_read_input_tokens").Int() != 32 || u.Get("output_tokens").Int() != 9 {
			t.Errorf("stream %v: %s", stream, u.Raw)
		}
		if sent := gjson.Parse(*s.last.Load()); sent.Get("tool_choice").Str != "required" || sent.Get("tools.0.function.name").Str != "weather" {
			t.Errorf("%s", sent.Raw)
		}
	}
	r := client.Run(t, sdk, message(g, "", object{"model": "m", "max_tokens": 100, "tools": tools, "messages": []object{
		{"role": "user", "content": "weather?"},
		{"role": "assistant", "content": []object{{"type": "tool_use", "id": "call_1", "name": "weather", "input": object{"city": "Paris"}}}},
		{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}}},
	}}))
	want := `[{"role":"user","content":"weather?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}}]},{"role":"tool","tool_call_id":"call_1","content":"rain"}]`
	if got := gjson.Get(*s.last.Load(), "messages").Raw; r.Error != nil || got != want {
		t.Errorf("error %+v, the engine got\n%s\nwant\n%s", r.Error, got, want)
	}
}

// TestAnthropicPing: the SDK takes pings before its message has started.
func TestAnthropicPing(t *testing.T) {
	s := newScript(t, `{"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"late"},"finish_reason":"stop"}]}`)
	s.wait = make(chan struct{})
	g := s.serve(t, "limits: {keepalive: 1s}\n")
	body := object{"model": "m", "max_tokens": 5, "messages": user("hello"), "stream": true}
	pinged := client.Start(t, sdk, message(g, "", body))
	<-s.asked
	// The SDK shows no pings; another client that came after it has had two.
	res, err := postAs(t.Context(), g.URL+"/v1/messages", "", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	const pings = "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"
	first := make([]byte, len(pings))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != pings {
		t.Errorf("%v: %q", err, first)
	}
	close(s.wait)
	if r := pinged.Result(0); r.Error != nil || r.Text != "late" || r.FinishReason != "end_turn" {
		t.Errorf("%+v (error %+v)", r, r.Error)
	}
}

// TestAnthropicFollowsHints: what a refusal says about coming back is what the
// SDK does.
func TestAnthropicFollowsHints(t *testing.T) {
	const hintMS = 1300 // not what the SDK would wait by itself: half a second at most
	var asked atomic.Int32
	engine := newScript(t)
	engine.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != chatPath {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		if asked.Add(1)%2 == 1 {
			w.Header().Set("Retry-After-Ms", fmt.Sprint(hintMS))
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":{"message":"busy"}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	})
	g := engine.serve(t, "")
	call := message(g, "", object{"model": "m", "max_tokens": 5, "messages": user("hello")})
	call.MaxRetries = 1
	r := client.Run(t, sdk, call)
	if r.Error != nil || r.Text != "hi" || len(r.Attempts) != 2 || r.Attempts[0].Status != http.StatusTooManyRequests {
		t.Fatalf("%+v (error %+v), want a second attempt that succeeds", r, r.Error)
	}
	if waited := r.Attempts[1].AtMS - r.Attempts[0].AtMS; waited < hintMS {
		t.Errorf("it came back after %v ms, told %d", waited, hintMS)
	}
	call.MaxRetries = 0
	if r := client.Run(t, sdk, call); r.Error == nil || r.Error.Class != "RateLimitError" || r.Error.Type != "rate_limit_error" || r.Error.Code != "engine_busy" {
		t.Errorf("without retries: %+v, want a RateLimitError", r.Error)
	}
}
