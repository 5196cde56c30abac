package e2e

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/e2e/client"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/journal"
)

// The AI SDK through the gateway, by both of OpenAI's APIs that it speaks.

func TestAI(t *testing.T) {
	t.Run("llama.cpp", func(t *testing.T) {
		e := realengine.Start(t, four)
		b := backend{kind: "vllm", url: e.URL, model: e.Model}
		b.run(t, "answers as a chat does", testAI)
		b.run(t, "refuses in the SDK's terms", testAIRefusals)
		b.run(t, "frees what an abort leaves", testAIAbort)
	})
	t.Run("simulated", func(t *testing.T) {
		e := headgate.StartEngine(t, "--speed", "0.05", "--num-gpu-blocks", "2048", "--enable-per-request-metrics")
		b := backend{kind: "vllm", url: e.URL, model: e.Model, exact: true}
		b.run(t, "answers as a chat does", testAI)
		b.run(t, "embeds", testAIEmbeds)
	})
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) {
		e := realengine.StartLlamaServer(t, four)
		b := backend{kind: "llamacpp", url: e.URL, model: e.Model}
		b.run(t, "answers as a chat does", testAI)
		b.run(t, "frees what an abort leaves", testAIAbort)
	})
}

// The ways in which the SDK asks for an answer.
var asked = []struct {
	route client.Route
	api   string
}{{client.GenerateText, "chat"}, {client.StreamText, "chat"}, {client.GenerateText, "responses"}, {client.StreamText, "responses"}}

// asks are the calls of body in each of these ways.
func asks(g *headgate.Gateway, key string, body object) []client.Call {
	var calls []client.Call
	for _, a := range asked {
		o := object{"api": a.api}
		maps.Copy(o, body)
		calls = append(calls, client.Call{BaseURL: g.URL + "/v1", APIKey: key, Route: a.route, Body: o})
	}
	return calls
}

func testAI(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	chat := client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Chat, Body: object{"model": b.model, "max_tokens": 12, "temperature": 0,
		"messages": []object{{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"}}}}
	// An engine whose answers are not exact computes the same every time after the first.
	results := client.InOrder(t, sdk, append([]client.Call{chat, chat}, asks(g, k.app,
		object{"model": b.model, "system": "be brief", "prompt": "hello world", "maxOutputTokens": 12, "temperature": 0})...)...)
	want := results[1]
	if want.Error != nil || want.Text == "" || want.FinishReason != "length" {
		t.Fatalf("the chat %+v shows nothing", want)
	}
	for i, a := range asked {
		r := results[2+i]
		if r.Error != nil || r.Text != want.Text || r.FinishReason != "length" || r.ID == "" {
			t.Errorf("%s by %s: %+v (error %+v), the chat %+v", a.route, a.api, r, r.Error, want)
			continue
		}
		if d := cmp.Diff(want.Usage, r.Usage); d != "" {
			t.Errorf("%s by %s: usage (-chat +SDK):\n%s", a.route, a.api, d)
		}
		if h := r.Headers; h["headgate-class"] != "interactive" || h["headgate-decision"] != "admitted" || h["x-request-id"] == "" {
			t.Errorf("%s by %s: headers %v", a.route, a.api, h)
		}
		if a.route == client.StreamText && r.Chunks < 2 {
			t.Errorf("%s by %s: %d chunks", a.route, a.api, r.Chunks)
		}
	}
	g.AwaitPool("nothing is held", idle)
}

func testAIRefusals(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	stranger, _ := headgate.NewKey(t)
	schema := object{"type": "object", "properties": object{"city": object{"type": "string"}}, "required": []string{"city"}, "additionalProperties": false}
	tools := object{"weather": object{"description": "tells it", "inputSchema": schema, "result": "rain"}}
	cases := []struct {
		name        string
		key         string
		more        object
		header      string // Headgate-Class
		status      int
		code, param string // param "" is any
	}{
		{"unknown key", stranger, nil, "", http.StatusUnauthorized, "unauthorized", ""},
		{"class not allowed", k.app, nil, "batch", http.StatusForbidden, "class_not_permitted", ""},
		{"unknown model", k.app, object{"model": "other"}, "", http.StatusNotFound, "model_not_found", "model"},
		{"too long", k.app, object{"system": strings.Repeat("word ", 8000)}, "", http.StatusBadRequest, "context_length_exceeded", ""},
		{"a schema that the engine can't keep to", k.app, object{"schema": schema}, "", http.StatusBadRequest, "engine_refused", "response_format"},
		{"tools that the engine can't call", k.app, object{"tools": tools}, "", http.StatusBadRequest, "engine_refused", "tools"},
	}
	var calls []client.Call
	for _, c := range cases {
		body := object{"model": b.model, "prompt": "hello", "maxOutputTokens": 16}
		maps.Copy(body, c.more)
		for _, call := range asks(g, c.key, body) {
			if c.header != "" {
				call.Headers = map[string]string{"Headgate-Class": c.header}
			}
			call.MaxRetries = 2 // of which a refusal that stays one makes no use
			calls = append(calls, call)
		}
	}
	s := client.Start(t, sdk, calls...)
	for i := range calls {
		c, a, r := cases[i/len(asked)], asked[i%len(asked)], s.Result(i)
		if a.api == "responses" && c.param == "response_format" {
			c.param = "text.format"
		}
		if r.Error == nil || r.Error.Class != "AI_APICallError" || r.Error.Status != c.status || r.Error.Code != c.code || c.param != "" && r.Error.Param != c.param || len(r.Attempts) != 1 {
			t.Errorf("%s, %s by %s: %+v in %d attempts, want %d with code %s about %q in one", c.name, a.route, a.api, r.Error, len(r.Attempts), c.status, c.code, c.param)
		}
	}
	g.AwaitPool("nothing is held", idle)
}

func testAIAbort(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	calls := asks(g, k.app, object{"model": b.model, "prompt": "hello", "maxOutputTokens": 1500})
	calls = slices.DeleteFunc(calls, func(c client.Call) bool { return c.Route != client.StreamText })
	for i := range calls {
		calls[i].AbortAfter = 3
	}
	s := client.Start(t, sdk, calls...)
	for i := range calls {
		if r := s.Result(i); !r.Aborted || r.Chunks != 3 {
			t.Errorf("%s: %+v (error %+v), want an abort after 3 deltas", calls[i].Body["api"], r, r.Error)
		}
	}
	g.AwaitPool("nothing is held", idle)
	untilLoad(t, b.url, 0, 0)
	gone := map[string]bool{}
	g.AwaitEvent("the end of both", func(e *journal.Event) bool {
		if e.Kind == journal.Finished && e.Cause == "client_gone" {
			gone[e.Request] = true
		}
		return len(gone) == len(calls)
	})
}

// testAIEmbeds: the SDK's vectors are those that OpenAI's gets.
func testAIEmbeds(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	values := []string{"the sea", "the river"}
	s := client.Start(t, sdk, client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.EmbedMany, Body: object{"model": b.model, "values": values}},
		client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Embeddings, Body: object{"model": b.model, "input": values, "encoding_format": "float"}})
	r, want := s.Result(0), s.Result(1)
	if r.Error != nil || want.Error != nil || len(r.Embeddings) != len(values) || r.Usage.Prompt != want.Usage.Prompt {
		t.Fatalf("%+v (error %+v), OpenAI's SDK has %+v", r, r.Error, want)
	}
	for i := range values {
		if !slices.EqualFunc(r.Embeddings[i], want.Embeddings[i], func(x, y float64) bool { return math.Abs(x-y) < 1e-6 }) {
			t.Errorf("%q: %v, OpenAI's SDK has %v", values[i], r.Embeddings[i], want.Embeddings[i])
		}
	}
	g.AwaitPool("nothing is held", idle)
}

// chatChunk is an event of a chat.
func chatChunk(delta, finish string) string {
	return fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`, delta, finish)
}

const chatUsage = `{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"total_tokens":49}}`

// twoCalls are the events of a chat whose model calls two tools.
var twoCalls = []string{
	chatChunk(`{"role":"assistant","content":"I look."}`, "null"),
	chatChunk(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]}`, "null"),
	chatChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":\"Par"}}]}`, "null"),
	chatChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"is\"}"}}]}`, "null"),
	chatChunk(`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"time","arguments":"{}"}}]}`, "null"),
	chatChunk(`{}`, `"tool_calls"`),
	chatUsage,
}

// TestAITools: the SDK runs the tools that a model calls and sends on what they say.
func TestAITools(t *testing.T) {
	s := newScript(t, twoCalls...)
	s.then = []string{chatChunk(`{"role":"assistant","content":"It rains."}`, "null"), chatChunk(`{}`, `"stop"`), chatUsage}
	g := s.serve(t, "")
	tools := object{
		"weather": object{"description": "tells it", "inputSchema": object{"type": "object", "properties": object{"city": object{"type": "string"}}}, "result": "rain"},
		"time":    object{"description": "tells it", "inputSchema": object{"type": "object", "properties": object{}}, "result": "noon"},
	}
	body := object{"model": "m", "maxOutputTokens": 100, "prompt": "weather?", "tools": tools}
	calls := asks(g, "", body)
	for i := range calls {
		// What the Responses API would otherwise refer to is stored nowhere.
		calls[i].Body["providerOptions"] = object{"openai": object{"store": false}}
	}
	// The last is as the SDK is by itself.
	results := client.InOrder(t, sdk, append(calls, asks(g, "", body)[2])...)
	for i, a := range asked {
		r := results[i]
		const calls = `[{"name":"weather","input":{"city":"Paris"}},{"name":"time","input":{}}]`
		if m := gjson.ParseBytes(r.Message); r.Error != nil || r.Text != "It rains." || r.FinishReason != "stop" || m.Get("steps").Int() != 2 || m.Get("calls").Raw != calls {
			t.Fatalf("%s by %s: error %+v, text %q, %s", a.route, a.api, r.Error, r.Text, r.Message)
		}
		if first := gjson.Parse(<-s.asked); first.Get("tools.#.function.name").Raw != `["weather","time"]` && first.Get("tools.#.function.name").Raw != `["time","weather"]` {
			t.Errorf("%s by %s: the engine got %s", a.route, a.api, first.Raw)
		}
		then := gjson.Parse(<-s.asked)
		var got []string
		for _, m := range then.Get("messages").Array() {
			got = append(got, m.Get("role").Str+" "+m.Get("tool_calls.#.function.name").Raw+m.Get("tool_call_id").Str+" "+m.Get("tool_calls.0.function.arguments").Str+m.Get("content").Str)
		}
		want := []string{"user  weather?", `assistant ["weather","time"] {"city":"Paris"}I look.`, "tool call_1 rain", "tool call_2 noon"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s by %s: the engine got (-want +got)\n%s\n%s", a.route, a.api, d, then.Raw)
		}
	}
	if r := results[len(asked)]; r.Error == nil || r.Error.Status != http.StatusBadRequest || r.Error.Code != "invalid_field" || !strings.Contains(r.Error.Message, "item_reference") {
		t.Errorf("with stored items: %+v", r.Error)
	}
	g.AwaitPool("nothing is held", idle)
}

// TestAIObject: a schema reaches an engine that keeps to it, and the program gets
// the object.
func TestAIObject(t *testing.T) {
	s := newScript(t, chatChunk(`{"role":"assistant","content":"{\"city\":"}`, "null"), chatChunk(`{"content":"\"Paris\"}"}`, "null"), chatChunk(`{}`, `"stop"`), chatUsage)
	g := s.serve(t, "")
	const schema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`
	results := client.InOrder(t, sdk, asks(g, "", object{"model": "m", "prompt": "where?", "schema": gjson.Parse(schema).Value()})...)
	for i, a := range asked {
		r := results[i]
		if r.Error != nil || gjson.GetBytes(r.Message, "output").Raw != `{"city":"Paris"}` {
			t.Errorf("%s by %s: error %+v, %s", a.route, a.api, r.Error, r.Message)
		}
		got := <-s.asked
		format := gjson.Get(got, "response_format")
		if format.Get("type").Str != "json_schema" || !cmp.Equal(format.Get("json_schema.schema").Value(), gjson.Parse(schema).Value()) {
			t.Errorf("%s by %s: the engine got %s", a.route, a.api, got)
		}
	}
}

// TestAIFollowsHints: what a refusal says about coming back is what the SDK does.
func TestAIFollowsHints(t *testing.T) {
	const hintMS = 2300 // not what the SDK would wait by itself: two seconds
	var calls atomic.Int32
	engine := newScript(t)
	engine.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != chatPath {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		if int(calls.Add(1)) <= len(asked)+1 {
			w.Header().Set("Retry-After-Ms", fmt.Sprint(hintMS))
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":{"message":"busy"}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", chatChunk(`{"content":"hi"}`, `"stop"`))
	})
	g := engine.serve(t, "")
	all := asks(g, "", object{"model": "m", "maxOutputTokens": 5, "prompt": "hello"})
	for i := range all {
		all[i].MaxRetries = 1
	}
	unretried := all[0]
	unretried.MaxRetries = 0
	s := client.Start(t, sdk, append(all, unretried)...)
	for i, a := range asked {
		r := s.Result(i)
		if r.Error != nil || r.Text != "hi" || len(r.Attempts) != 2 || r.Attempts[0].Status != http.StatusTooManyRequests {
			t.Errorf("%s by %s: %+v (error %+v), want a second attempt that succeeds", a.route, a.api, r, r.Error)
		} else if waited := r.Attempts[1].AtMS - r.Attempts[0].AtMS; waited < hintMS {
			t.Errorf("%s by %s: it came back after %v ms, told %d", a.route, a.api, waited, hintMS)
		}
	}
	if r := s.Result(len(asked)); r.Error == nil || r.Error.Status != http.StatusTooManyRequests || r.Error.Type != "rate_limit_error" || r.Error.Code != "engine_busy" {
		t.Errorf("without retries: %+v", r.Error)
	}
}
