package e2e

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/e2e/client"
	"headgate/e2e/realengine"
)

// The official SDK against the engine, without a gateway: what of a later test's
// outcome is the SDK's and the engine's own doing.

const sdk = "client" // the folder in which npm has installed it

func TestSDKAgainstTheEngine(t *testing.T) {
	e := realengine.Start(t, tiny)
	call := func(route client.Route, body map[string]any) client.Call {
		return client.Call{BaseURL: e.URL + "/v1", Route: route, Body: body}
	}
	messages := user("hello world")
	s := client.Start(t, sdk,
		call(client.Chat, object{"model": e.Model, "messages": messages, "max_completion_tokens": 12, "temperature": 0}),
		call(client.Chat, object{"model": e.Model, "messages": messages, "max_completion_tokens": 12, "temperature": 0, "stream": true,
			"stream_options": object{"include_usage": true}}),
		call(client.Completions, object{"model": e.Model, "prompt": "the river", "max_tokens": 5, "stream": true}),
		call(client.Models, nil),
		call(client.Chat, object{"model": "other", "messages": messages}),
		call(client.Chat, object{"model": e.Model, "messages": messages, "max_tokens": 5000}),
	)
	whole, streamed := s.Result(0), s.Result(1)
	if whole.Error != nil || whole.FinishReason != "length" || len(strings.Fields(whole.Text)) != 12 {
		t.Errorf("chat: %+v", whole)
	}
	if streamed.Text != whole.Text || streamed.Chunks != 12 || streamed.FirstMS <= 0 || streamed.Usage == nil || streamed.Usage.Completion != 12 {
		t.Errorf("streamed chat: %+v, want %q in 12 chunks with usage", streamed, whole.Text)
	}
	if r := s.Result(2); r.Error != nil || r.Chunks != 5 {
		t.Errorf("completion: %+v, want 5 chunks", r)
	}
	if r := s.Result(3); !slices.Equal(r.Models, []string{e.Model}) {
		t.Errorf("models: %+v, want %s", r, e.Model)
	}
	if r := s.Result(4); r.Error == nil || r.Error.Class != "NotFoundError" {
		t.Errorf("unknown model: %+v, want NotFoundError", r.Error)
	}
	if r := s.Result(5); r.Error == nil || r.Error.Class != "BadRequestError" || r.Error.Param != "input_tokens" {
		t.Errorf("too long: %+v, want BadRequestError about input_tokens", r.Error)
	}
}

func TestSDKAbortReachesTheEngine(t *testing.T) {
	e := realengine.Start(t, slow)
	r := client.Run(t, sdk, client.Call{BaseURL: e.URL + "/v1", Route: client.Chat, AbortAfter: 3,
		Body: object{"model": e.Model, "messages": user("hello"), "max_tokens": 4000, "stream": true}})
	if !r.Aborted || r.Chunks != 3 {
		t.Fatalf("%+v, want an abort after 3 chunks", r)
	}
	m := untilLoad(t, e.URL, 0, 0)
	if made := m["vllm:generation_tokens_total"]; made >= 4000 {
		t.Errorf("%v tokens were generated", made)
	}
}

func TestSDKFollowsHints(t *testing.T) {
	const hintMS = 700 // not what the SDK would wait by itself: 375 to 500 ms
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked.Add(1) == 1 {
			w.Header().Set("Retry-After-Ms", "700")
			w.WriteHeader(http.StatusTooManyRequests)
			w.Write([]byte(`{"error":{"message":"busy","type":"rate_limit_error","code":"queue_full","param":null}}`))
			return
		}
		w.Write([]byte(`{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}`))
	}))
	defer server.Close()
	call := client.Call{BaseURL: server.URL + "/v1", Route: client.Chat, MaxRetries: 1,
		Body: object{"model": "m", "messages": user("hello")}}
	r := client.Run(t, sdk, call)
	if r.Error != nil || r.Text != "hi" || len(r.Attempts) != 2 || r.Attempts[0].Status != 429 {
		t.Fatalf("%+v (error %+v), want a second attempt that succeeds", r, r.Error)
	}
	if waited := r.Attempts[1].AtMS - r.Attempts[0].AtMS; waited < hintMS {
		t.Errorf("it came back after %v ms, told %d", waited, hintMS)
	}
	asked.Store(0)
	call.MaxRetries = 0
	if r := client.Run(t, sdk, call); r.Error == nil || r.Error.Class != "RateLimitError" || r.Error.Code != "queue_full" {
		t.Errorf("without retries: %+v, want a RateLimitError", r.Error)
	}
}

// TestSDKTools: a model that calls tools through the gateway, as the user of OpenAI's
// SDK sees it, and the tools and their results as the engine gets them.
func TestSDKTools(t *testing.T) {
	s := newScript(t, twoCalls...)
	g := s.serve(t, "")
	tools := []object{{"type": "function", "function": object{"name": "weather", "description": "tells it", "strict": true,
		"parameters": object{"type": "object", "properties": object{"city": object{"type": "string"}}, "required": []string{"city"}, "additionalProperties": false}}},
		{"type": "function", "function": object{"name": "time", "parameters": object{"type": "object"}}}}
	const calls = `[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}},{"id":"call_2","type":"function","function":{"name":"time","arguments":"{}"}}]`
	messages := user("weather?")
	ask := func(route client.Route) client.Call {
		body := object{"model": "m", "max_tokens": 100, "messages": messages, "tools": tools, "tool_choice": "required"}
		if route == client.ChatHelper {
			body["stream_options"] = object{"include_usage": true}
		}
		return client.Call{BaseURL: g.URL + "/v1", Route: route, Body: body}
	}
	routes := []client.Route{client.Chat, client.ChatHelper}
	for i, r := range client.InOrder(t, sdk, ask(routes[0]), ask(routes[1])) {
		route := routes[i]
		m := gjson.ParseBytes(r.Message)
		if r.Error != nil || r.FinishReason != "tool_calls" || m.Get("content").Str != "I look." || r.Usage == nil || r.Usage.Completion != 9 {
			t.Errorf("%s: error %+v, finish reason %q, usage %+v, %s", route, r.Error, r.FinishReason, r.Usage, r.Message)
		}
		var got []string
		for _, c := range m.Get("tool_calls").Array() {
			got = append(got, c.Get("id").Str+" "+c.Get("function.name").Str+" "+c.Get("function.arguments").Str)
		}
		if d := cmp.Diff([]string{`call_1 weather {"city":"Paris"}`, "call_2 time {}"}, got); d != "" {
			t.Errorf("%s: calls (-want +got)\n%s", route, d)
		}
		if sent := gjson.Parse(<-s.asked); sent.Get("tool_choice").Str != "required" || sent.Get("tools.0.function.strict").Raw != "true" || sent.Get("tools.#").Int() != 2 {
			t.Errorf("%s: the engine got %s", route, sent.Raw)
		}
	}
	// The results are the client's bytes.
	call := gjson.Parse(calls)
	messages = append(messages, object{"role": "assistant", "content": nil, "tool_calls": call.Value()}, object{"role": "tool", "tool_call_id": "call_1", "content": "rain"},
		object{"role": "tool", "tool_call_id": "call_2", "content": "noon"})
	s.then = []string{chatChunk(`{"role":"assistant","content":"It rains."}`, `"stop"`), chatUsage}
	r := client.Run(t, sdk, client.Call{BaseURL: g.URL + "/v1", Route: client.Chat, Body: object{"model": "m", "messages": messages, "tools": tools}})
	sent := gjson.Get(*s.last.Load(), "messages")
	if r.Error != nil || r.Text != "It rains." || sent.Get("3.content").Str != "noon" || !cmp.Equal(sent.Get("1.tool_calls").Value(), call.Value()) {
		t.Errorf("error %+v, text %q, the engine got %s", r.Error, r.Text, sent.Raw)
	}
	g.AwaitPool("nothing is held", idle)
}
