package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/e2e/client"
	"headgate/e2e/engine/gguf"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
)

// The product as its users have it: the official SDK, the headgate binary, and
// an engine.

// backend is an engine to put a gateway in front of.
type backend struct {
	kind, url, model string
	// exact: an answer has the same text whatever runs beside it. On real engines
	// rounding depends on what shares a step, and a long answer shows it.
	exact bool
}

// four is an engine of four slots whose requests last long enough to be met
// while they run, and which says when it began to run each.
var four = realengine.Options{Model: gguf.Options{Layers: 4, Width: 256}, Slots: 4, Ctx: 4096, PerRequestMetrics: true}

// TestGateway runs the basic set against the real engine, the simulated one, and
// llama-server where a binary is named; the rest where it shows most.
func TestGateway(t *testing.T) {
	basic := func(t *testing.T, b backend) {
		b.run(t, "answers as the engine does", testAnswers)
		b.run(t, "frees what an abort leaves", testAbort)
		b.run(t, "drains", testDrain)
	}
	t.Run("llama.cpp", func(t *testing.T) {
		e := realengine.Start(t, four)
		b := backend{kind: "vllm", url: e.URL, model: e.Model}
		basic(t, b)
		b.run(t, "refuses in the SDK's terms", testRefusals)
		b.run(t, "gives hints that are followed", testHints)
		b.run(t, "lends and recalls", testLending)
		b.run(t, "reclaims by deadline", func(t *testing.T, b backend) { testReclaim(t, b, byDeadline) })
		b.run(t, "reclaims at once", func(t *testing.T, b backend) { testReclaim(t, b, atOnce) })
	})
	t.Run("simulated", func(t *testing.T) {
		e := headgate.StartEngine(t, "--speed", "0.05", "--num-gpu-blocks", "2048", "--enable-per-request-metrics")
		b := backend{kind: "vllm", url: e.URL, model: e.Model, exact: true}
		basic(t, b)
		b.run(t, "reclaims by deadline", func(t *testing.T, b backend) { testReclaim(t, b, byDeadline) })
		b.run(t, "reclaims at once", func(t *testing.T, b backend) { testReclaim(t, b, atOnce) })
	})
	if os.Getenv(realengine.LlamaServerEnv) == "" {
		return
	}
	t.Run("llama-server", func(t *testing.T) {
		e := realengine.StartLlamaServer(t, four)
		basic(t, backend{kind: "llamacpp", url: e.URL, model: e.Model})
	})
}

// run runs a test against an engine that does nothing else.
func (b backend) run(t *testing.T, name string, test func(*testing.T, backend)) {
	t.Run(name, func(t *testing.T) {
		untilLoad(t, b.url, 0, 0)
		test(t, b)
	})
}

// keys are two callers: one of each class.
type keys struct {
	app, jobs string // interactive, batch
	yaml      string
}

func newKeys(t *testing.T) keys {
	app, appHash := headgate.NewKey(t)
	jobs, jobsHash := headgate.NewKey(t)
	return keys{app, jobs, fmt.Sprintf(`keys:
  - {name: app, tenant: product, hash: "%s", classes: [interactive], header: true}
  - {name: jobs, tenant: research, hash: "%s", classes: [batch, interactive], header: true, service_tier: true}
`, appHash, jobsHash)}
}

// serveBackend starts a gateway with 3 + 1 slots: three are interactive's, one
// of which is never lent, and one is batch's. interactive and batch are further
// settings of the classes.
func serveBackend(t *testing.T, b backend, k keys, interactive, batch string) *headgate.Gateway {
	t.Helper()
	return headgate.Start(t, fmt.Sprintf(`%spools:
  - name: main
    engines:
      - {name: engine, kind: %s, url: "%s", slots: 4, observe_every: 50ms}
    classes:
      - {name: interactive, floor: {slots: 3}, unlent: {slots: 1}%s}
      - {name: batch, floor: {slots: 1}%s}
`, k.yaml, b.kind, b.url, interactive, batch)).AwaitReady()
}

// idle is the state in which nothing is held and nothing waits.
func idle(s *admission.Snapshot) bool {
	for i := range s.Classes {
		if s.Classes[i].Queue > 0 {
			return false
		}
	}
	return len(s.Holds) == 0 && s.Used.Slots == 0 && s.Used.KV == 0
}

func testAnswers(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	messages := []object{{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"}}
	chat := func(more object) client.Call {
		body := object{"model": b.model, "messages": messages, "max_tokens": 12, "temperature": 0}
		for field, v := range more {
			body[field] = v
		}
		return client.Call{Route: client.Chat, Body: body}
	}
	text := func(more object) client.Call {
		body := object{"model": b.model, "prompt": "the river", "max_tokens": 8, "temperature": 0}
		for field, v := range more {
			body[field] = v
		}
		return client.Call{Route: client.Completions, Body: body}
	}
	usage := object{"include_usage": true}
	calls := []client.Call{
		chat(nil), chat(object{"stream": true}), chat(object{"stream": true, "stream_options": usage}),
		text(nil), text(object{"stream": true}),
		{Route: client.Models},
	}
	through := func(url, key string) []client.Result {
		to := make([]client.Call, len(calls))
		for i, c := range calls {
			c.BaseURL, c.APIKey = url+"/v1", key
			to[i] = c
		}
		results := make([]client.Result, len(calls))
		if b.exact {
			s := client.Start(t, sdk, to...)
			for i := range to {
				results[i] = s.Result(i)
			}
			return results
		}
		for i, c := range to {
			results[i] = client.Run(t, sdk, c)
		}
		return results
	}
	// What a user of the SDK sees, but for what differs between two calls.
	type seen struct {
		Text, FinishReason string
		Chunks             int
		Usage              *client.Usage
		Models             []string
		Error              *client.Error
	}
	view := func(r client.Result) seen {
		return seen{r.Text, r.FinishReason, r.Chunks, r.Usage, r.Models, r.Error}
	}
	// Each prompt once before: an engine whose answers are not exact then computes
	// the same both times, if it gets one after the other.
	mustGenerate(t, b.url+chatPath, chat(nil).Body)
	mustGenerate(t, b.url+completionsPath, text(nil).Body)
	direct, gateway := through(b.url, ""), through(g.URL, k.app)
	for i, c := range calls {
		want, got := view(direct[i]), gateway[i]
		if want.Error != nil {
			t.Fatalf("%s %v: the engine itself says %+v", c.Route, c.Body, want.Error)
		}
		if diff := cmp.Diff(want, view(got)); diff != "" {
			t.Errorf("%s %v (-engine +gateway):\n%s", c.Route, c.Body, diff)
		}
		if got.Headers["headgate-request-id"] == "" {
			t.Errorf("%s: headers %v have no request id", c.Route, got.Headers)
		}
		if c.Route == client.Models {
			continue
		}
		if want.Text == "" || want.FinishReason != "length" {
			t.Errorf("%s: the engine's answer %+v shows nothing", c.Route, want)
		}
		if h := got.Headers; h["headgate-class"] != "interactive" || h["headgate-loan"] == "" || h["headgate-queue-ms"] == "" {
			t.Errorf("%s: headers %v do not tell class, loan and wait", c.Route, h)
		}
	}
	g.AwaitPool("nothing is held", idle)
}

var number = regexp.MustCompile(`\d+`)

func testRefusals(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	stranger, _ := headgate.NewKey(t)
	call := func(key string, headers map[string]string, model, prompt string) client.Call {
		return client.Call{BaseURL: g.URL + "/v1", APIKey: key, Route: client.Chat, Headers: headers,
			Body: object{"model": model, "messages": user(prompt), "max_tokens": 4, "temperature": -1}}
	}
	cases := []struct {
		name        string
		call        client.Call
		class, code string
	}{
		{"unknown key", call(stranger, nil, b.model, "hello"), "AuthenticationError", "unauthorized"},
		{"class not allowed", call(k.app, map[string]string{"Headgate-Class": "batch"}, b.model, "hello"), "PermissionDeniedError", "class_not_permitted"},
		{"unknown model", call(k.app, nil, "other", "hello"), "NotFoundError", "model_not_found"},
		{"too long", call(k.app, nil, b.model, strings.Repeat("word ", 8000)), "BadRequestError", "context_length_exceeded"},
		{"refused by the engine", call(k.app, nil, b.model, "hello"), "BadRequestError", "engine_refused"},
	}
	var calls []client.Call
	for _, c := range cases {
		calls = append(calls, c.call)
	}
	s := client.Start(t, sdk, calls...)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := s.Result(i)
			if r.Error == nil || r.Error.Class != c.class || r.Error.Code != c.code {
				t.Fatalf("%+v, want %s with code %s", r.Error, c.class, c.code)
			}
			if len(r.Attempts) != 1 || r.Headers["headgate-decision"] == "" {
				t.Errorf("%d attempts, headers %v, want one and a decision", len(r.Attempts), r.Headers)
			}
			if c.name == "too long" && len(number.FindAllString(r.Error.Message, -1)) < 2 {
				t.Errorf("message %q, want what was asked for and what is allowed", r.Error.Message)
			}
		})
	}
	g.AwaitPool("nothing is held", idle)
}
