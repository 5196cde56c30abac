package e2e

import (
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/e2e/client"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/journal"
)

// OpenAI's SDK with the Responses API through the gateway, to engines that are asked
// for chats.

func TestResponses(t *testing.T) {
	t.Run("llama.cpp", func(t *testing.T) {
		e := realengine.Start(t, four)
		b := backend{kind: "vllm", url: e.URL, model: e.Model}
		b.run(t, "answers as a chat does", testResponses)
		b.run(t, "refuses in the SDK's terms", testResponseRefusals)
		b.run(t, "frees what an abort leaves", testResponseAbort)
	})
	t.Run("simulated", func(t *testing.T) {
		e := headgate.StartEngine(t, "--speed", "0.05", "--num-gpu-blocks", "2048", "--enable-per-request-metrics")
		b := backend{kind: "vllm", url: e.URL, model: e.Model, exact: true}
		b.run(t, "answers as a chat does", testResponses)
		b.run(t, "frees what an abort leaves", testResponseAbort)
		b.run(t, "goes on after a reclaim", testResponseReclaim)
	})
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) {
		e := realengine.StartLlamaServer(t, four)
		b := backend{kind: "llamacpp", url: e.URL, model: e.Model}
		b.run(t, "answers as a chat does", testResponses)
		b.run(t, "frees what an abort leaves", testResponseAbort)
	})
}

func respond(g *headgate.Gateway, key string, body object) client.Call {
	return client.Call{BaseURL: g.URL + "/v1", APIKey: key, Route: client.Responses, Body: body}
}

func testResponses(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	ask := func(more object) client.Result {
		body := object{"model": b.model, "instructions": "be brief", "input": "hello world", "max_output_tokens": 12, "temperature": 0}
		maps.Copy(body, more)
		return client.Run(t, sdk, respond(g, k.app, body))
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
		if r.Error != nil || r.Text != want.Text || r.FinishReason != "max_output_tokens" || !strings.HasPrefix(r.ID, "resp_") {
			t.Errorf("response %+v (error %+v), chat %+v", r, r.Error, want)
			continue
		}
		if d := cmp.Diff(want.Usage, r.Usage); d != "" {
			t.Errorf("usage (-chat +response):\n%s", d)
		}
		if h := r.Headers; h["headgate-class"] != "interactive" || h["x-request-id"] == "" || h["x-request-id"] != h["headgate-request-id"] {
			t.Errorf("headers %v", h)
		}
		m := gjson.ParseBytes(r.Message)
		if m.Get("model").Str != b.model || m.Get("object").Str != "response" || m.Get("store").Raw != "false" || m.Get("output.#").Int() != 1 || m.Get("output.0.role").Str != "assistant" {
			t.Errorf("%s", r.Message)
		}
	}
	if streamed.Chunks < 2 {
		t.Errorf("%d chunks", streamed.Chunks)
	}
	// A turn goes on with the items that the answer had.
	var output []any
	for _, item := range gjson.GetBytes(whole.Message, "output").Array() {
		output = append(output, item.Value())
	}
	input := append([]any{object{"role": "user", "content": "hello world"}}, output...)
	next := ask(object{"input": append(input, object{"role": "user", "content": []object{{"type": "input_text", "text": "go"}, {"type": "input_text", "text": "on"}}})})
	if next.Error != nil || next.Text == "" || next.Usage.Prompt <= want.Usage.Prompt {
		t.Errorf("%+v (error %+v)", next, next.Error)
	}
	g.AwaitPool("nothing is held", idle)
}

func testResponseRefusals(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	stranger, _ := headgate.NewKey(t)
	body := func(more object) object {
		o := object{"model": b.model, "input": "hello", "max_output_tokens": 16}
		maps.Copy(o, more)
		return o
	}
	retrieve := client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Retrieve, Body: object{"id": "resp_1"}}
	forbidden := respond(g, k.app, body(nil))
	forbidden.Headers = map[string]string{"Headgate-Class": "batch"}
	cases := []struct {
		name               string
		call               client.Call
		class, code, param string
	}{
		{"unknown key", respond(g, stranger, body(nil)), "AuthenticationError", "unauthorized", ""},
		{"class not allowed", forbidden, "PermissionDeniedError", "class_not_permitted", ""},
		{"unknown model", respond(g, k.app, body(object{"model": "other"})), "NotFoundError", "model_not_found", "model"},
		{"too long", respond(g, k.app, body(object{"instructions": strings.Repeat("word ", 8000)})), "BadRequestError", "context_length_exceeded", ""},
		{"an earlier response", respond(g, k.app, body(object{"previous_response_id": "resp_1"})), "BadRequestError", "invalid_field", "previous_response_id"},
		{"in the background", respond(g, k.app, body(object{"background": true})), "BadRequestError", "invalid_field", "background"},
		{"server tool", respond(g, k.app, body(object{"tools": []object{{"type": "web_search"}}})), "BadRequestError", "invalid_field", "tools[0].type"},
		{"stored response", retrieve, "NotFoundError", "route_not_found", ""},
		{"refused by the engine", respond(g, k.app, body(object{"temperature": -1})), "BadRequestError", "engine_refused", "temperature"},
		{"refused in a stream", respond(g, k.app, body(object{"temperature": -1, "stream": true})), "BadRequestError", "engine_refused", "temperature"},
	}
	var calls []client.Call
	for _, c := range cases {
		calls = append(calls, c.call)
	}
	s := client.Start(t, sdk, calls...)
	for i, c := range cases {
		r := s.Result(i)
		if r.Error == nil || r.Error.Class != c.class || r.Error.Code != c.code || c.param != "" && r.Error.Param != c.param {
			t.Errorf("%s: %+v, want %s with code %s about %q", c.name, r.Error, c.class, c.code, c.param)
			continue
		}
		if len(r.Attempts) != 1 || r.Error.RequestID == "" || r.Error.RequestID != r.Headers["headgate-request-id"] {
			t.Errorf("%s: %d attempts, request id %q, headers %v", c.name, len(r.Attempts), r.Error.RequestID, r.Headers)
		}
	}
	g.AwaitPool("nothing is held", idle)
}

func testResponseAbort(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	call := respond(g, k.app, object{"model": b.model, "input": "hello", "max_output_tokens": 3000, "stream": true})
	call.AbortAfter = 3
	if r := client.Run(t, sdk, call); !r.Aborted || r.Chunks != 3 {
		t.Fatalf("%+v (error %+v), want an abort after 3 deltas", r, r.Error)
	}
	g.AwaitPool("nothing is held", idle)
	untilLoad(t, b.url, 0, 0)
	g.AwaitEvent("the end of the request", func(e *journal.Event) bool { return e.Kind == journal.Finished && e.Cause == "client_gone" })
}

// testResponseReclaim: a borrowed stream that is ended for others goes on, and the
// SDK reads one response.
func testResponseReclaim(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, ", idle_after: 100ms", atOnce)
	const tokens = 600
	body := object{"model": b.model, "input": "the river", "max_output_tokens": tokens, "temperature": 0, "stream": true}
	// A stream borrows once the engine was seen to return what continuing it takes.
	if r := client.Run(t, sdk, respond(g, k.jobs, object{"model": b.model, "input": "hello", "max_output_tokens": 5})); r.Error != nil {
		t.Fatal(r.Error)
	}
	var calls []client.Call
	for range 3 {
		calls = append(calls, respond(g, k.jobs, body))
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
		if r.Error != nil || r.Text != want.text || r.FinishReason != "max_output_tokens" || r.Usage == nil || r.Usage.Completion != tokens || r.Usage.Prompt != want.usage.Prompt {
			t.Errorf("batch %d: error %+v, usage %+v, finish reason %q, text\n%q\nwant the engine's\n%q", i, r.Error, r.Usage, r.FinishReason, r.Text, want.text)
		}
	}
}

// Tools and reasoning as the SDK's helper reads them, of an engine that uses them.
func TestResponsesWithTools(t *testing.T) {
	s := newScript(t,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"a tool"},"finish_reason":null}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"I look."},"finish_reason":null}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"look","arguments":"{\"where\""}}]},"finish_reason":null}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":\"up\"}"}}]},"finish_reason":null}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29}}`)
	g := s.serve(t, "")
	for _, stream := range []bool{false, true} {
		r := client.Run(t, sdk, respond(g, "", object{"model": "m", "input": "where?", "stream": stream,
			"tools": []object{{"type": "function", "name": "look", "parameters": object{"type": "object"}, "strict": false}}}))
		if r.Error != nil {
			t.Errorf("%+v", r.Error)
			continue
		}
		m := gjson.ParseBytes(r.Message)
		if r.Text != "I look." || r.FinishReason != "completed" || m.Get("output.#").Int() != 3 || m.Get("output.0.content.0.text").Str != "a tool" ||
			m.Get("output.2.type").Str != "function_call" || m.Get("output.2.call_id").Str != "call_1" || m.Get("output.2.arguments").Str != `{"where":"up"}` {
			t.Errorf("%s", r.Message)
		}
		if tool := gjson.Get(*s.last.Load(), "tools.0.function"); tool.Get("name").Str != "look" {
			t.Errorf("the engine got %s", *s.last.Load())
		}
	}
}

func TestEmbeddings(t *testing.T) {
	t.Run("simulated", func(t *testing.T) {
		e := headgate.StartEngine(t, "--speed", "0.05")
		testEmbeddings(t, backend{kind: "vllm", url: e.URL, model: e.Model, exact: true})
	})
	t.Run("an engine without them", func(t *testing.T) {
		e := realengine.Start(t, tiny)
		k := newKeys(t)
		g := serveBackend(t, backend{kind: "vllm", url: e.URL, model: e.Model}, k, "", "")
		r := client.Run(t, sdk, client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Embeddings, Body: object{"model": e.Model, "input": "x"}})
		if r.Error == nil || r.Error.Class != "NotFoundError" || r.Error.Code != "engine_refused" {
			t.Errorf("%+v", r.Error)
		}
		g.AwaitPool("nothing is held", idle)
	})
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) {
		o := four
		o.Embeddings = true
		e := realengine.StartLlamaServer(t, o)
		testEmbeddings(t, backend{kind: "llamacpp", url: e.URL, model: e.Model})
	})
}

// testEmbeddings: the SDK asks for base64 unless it is told a format, and decodes
// it; both are the same vectors, and a vector does not depend on what it came with.
func testEmbeddings(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	ask := func(more object) client.Call {
		body := object{"model": b.model, "input": "the river"}
		maps.Copy(body, more)
		return client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Embeddings, Body: body}
	}
	s := client.Start(t, sdk, ask(nil), ask(object{"encoding_format": "float"}), ask(object{"input": []string{"the sea", "the river"}, "encoding_format": "float"}),
		ask(object{"input": []int{5, 6, 7}}), ask(object{"input": [][]int{{5, 6}, {7}}}), ask(object{"input": strings.Repeat("word ", 20000)}), ask(object{"model": "other"}))
	like := func(a, b []float64) bool {
		return len(a) > 0 && slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) < 1e-3 })
	}
	packed, float, two := s.Result(0), s.Result(1), s.Result(2)
	for i, r := range []client.Result{packed, float, two, s.Result(3), s.Result(4)} {
		if want := []int{1, 1, 2, 1, 2}[i]; r.Error != nil || len(r.Embeddings) != want || r.Usage == nil || r.Usage.Prompt == 0 {
			t.Fatalf("%d: %d vectors, usage %+v, error %+v", i, len(r.Embeddings), r.Usage, r.Error)
		}
	}
	if !like(packed.Embeddings[0], float.Embeddings[0]) || !like(float.Embeddings[0], two.Embeddings[1]) || like(two.Embeddings[0], two.Embeddings[1]) {
		t.Errorf("as base64 %v, as numbers %v, of two %v", packed.Embeddings, float.Embeddings, two.Embeddings)
	}
	if r := s.Result(5); r.Error == nil || r.Error.Class != "BadRequestError" || r.Error.Code != "context_length_exceeded" {
		t.Errorf("too long: %+v", r.Error)
	}
	if r := s.Result(6); r.Error == nil || r.Error.Class != "NotFoundError" || r.Error.Code != "model_not_found" {
		t.Errorf("unknown model: %+v", r.Error)
	}
	g.AwaitPool("nothing is held", idle)
}
