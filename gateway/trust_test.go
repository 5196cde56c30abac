package gateway

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/wire"
)

// Case 35: what the engine has beside generation can't be reached.
func TestRoutesAreAnAllowlist(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		seen := func() (n int) {
			for _, path := range []string{"/tokenize", "/abort_request", "/abort_requests", chat, completions, "/v1/embeddings", "/slots", "/props"} {
				n += r.engine.Scrapes(path)
			}
			return n
		}
		for _, path := range []string{
			"/", "/v1", "/v1/", "/metrics", "/health", "/healthz", "/readyz", "/debug/admission", "/debug/pprof/", "/debug/pprof/cmdline",
			"/tokenize", "/detokenize", "/abort_request", "/abort_requests", "/server_info", "/reset_prefix_cache", "/sleep", "/slots", "/props",
			"/v1/rerank", "/v1/responses2", "/v1/load_lora_adapter", "/v1/chat/completions/..", "/v1/chat/completions/../..",
			"/v1/chat/completions/../../abort_request", "/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions", "/v1/chat//completions",
			"/V1/chat/completions", "/v1/chat/completions%00", "/v1/chat%2fcompletions", "/v1/chat%2Fcompletions", "/v1/%63hat/completions",
			"/v1/chat/completions%2f..%2f..%2fmetrics", "/v1/chat/completions;x", "/%2e%2e/metrics", "/v1/models/", "/v1/./models", "/v1/models%2f",
		} {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"} {
				res, _ := r.raw(head(method+" "+path+" HTTP/1.1", "Authorization: Bearer "+aliceKey, "Content-Type: application/json", "Content-Length: 0"))
				body, _ := io.ReadAll(res.Body)
				if res.StatusCode != 404 {
					t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
				} else if method != "HEAD" {
					documented(t, 404, string(body))
				}
			}
		}
		if n := seen(); n != 0 {
			t.Errorf("%d requests reached the engine", n)
		}
	})
}

// A model's name may have slashes, plain or encoded as the SDKs do.
func TestModels(t *testing.T) {
	bubble(t, setup{models: []string{"org/model:7b", "alias"}}, func(t *testing.T, r *rig) {
		a := r.send("GET", "/v1/models", "")
		want := `{"object":"list","data":[` +
			`{"id":"org/model:7b","object":"model","created":0,"owned_by":"headgate","max_model_len":4096},` +
			`{"id":"alias","object":"model","created":0,"owned_by":"headgate","max_model_len":4096}]}`
		if a.status != 200 || a.body != want {
			t.Errorf("%d %s", a.status, a.body)
		}
		for _, path := range []string{"org/model:7b", "org%2Fmodel%3A7b"} {
			if a := r.send("GET", "/v1/models/"+path, ""); a.status != 200 || gjson.Get(a.body, "id").Str != "org/model:7b" {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		// The alias is the engine's own name when it gets there.
		done := r.start("POST", chat, `{"model":"alias","messages":[{"role":"user","content":"x"}]}`)
		call := r.engine.Accept(t)
		if got := gjson.GetBytes(call.Body, "model").Str; got != "test-model" {
			t.Errorf("sent as %q", got)
		}
		call.Emit(1)
		call.Finish("stop")
		<-done
	})
}

// Cases 30 and 31: nothing of a request but its body reaches an engine, and of
// the body not what the gateway owns.
func TestWhatAnEngineSees(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		body := chatBody(`,"priority":-1000,"stream":true,"temperature":0.50`)
		request := fmt.Sprintf("POST http://evil.test:1234%s?target=http://evil.test&api-version=1 HTTP/1.1\r\n", chat) + strings.Join([]string{
			"Host: evil.test", "Authorization: Bearer " + aliceKey, "x-api-key: " + aliceKey, "Content-Type: application/json; charset=utf-8",
			"Accept: application/xml", "Accept-Encoding: gzip, br", "Connection: X-Nominated, keep-alive", "X-Nominated: 1", "Cookie: a=b",
			"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil.test", "X-Forwarded-Proto: https", "Forwarded: for=1.2.3.4", "X-Real-Ip: 1.2.3.4",
			"X-Vllm-Priority: -1000", "Priority: u=0", "X-Conversation-Id: steal", "X-Request-Id: mine", "X-Override-Url: http://evil.test",
			"x-override-model: other", "X-Upstream: evil.test", "X-Http-Method-Override: GET", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			"OpenAI-Organization: org", "Idempotency-Key: k", "Headgate-Class: interactive", "Headgate-Request-Id: mine", "User-Agent: evil",
			fmt.Sprintf("Content-Length: %d", len(body)),
		}, "\r\n") + "\r\n\r\n" + body
		var sent http.Header
		var upstream []byte
		go func() {
			call := r.engine.Accept(t)
			sent, upstream = call.Header, call.Body
			call.Emit(1)
			call.Finish("stop")
		}()
		res, _ := r.raw(request)
		if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
			t.Fatal(res.StatusCode, err)
		}
		synctest.Wait()
		names := slices.Sorted(maps.Keys(sent))
		if want := []string{"Accept", "Authorization", "Content-Length", "Content-Type", "User-Agent", "X-Request-Id"}; !slices.Equal(names, want) {
			t.Errorf("the engine got %v", names)
		}
		if sent.Get("Authorization") != "Bearer "+engineKey || sent.Get("User-Agent") != "headgate" || sent.Get("Accept") != "text/event-stream" ||
			sent.Get("Content-Type") != "application/json" || !strings.HasPrefix(sent.Get("X-Request-Id"), res.Header.Get(headerID)) {
			t.Errorf("%v", sent)
		}
		if gjson.GetBytes(upstream, "priority").Exists() || !strings.Contains(string(upstream), `"temperature":0.50`) {
			t.Errorf("the engine got %s", upstream)
		}
	})
}

// A class is the key's default, an allowed header's, or a service tier's.
func TestClass(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		bob := []string{"Authorization", "Bearer " + bobKey}
		for _, c := range []struct {
			name    string
			extra   string
			headers []string
			want    string
		}{
			{"default", "", nil, "interactive"},
			{"header", "", []string{"Headgate-Class", "batch"}, "batch"},
			{"flex", `,"service_tier":"flex"`, nil, "batch"},
			{"priority", `,"service_tier":"priority"`, nil, "interactive"},
			{"auto", `,"service_tier":"auto"`, nil, "interactive"},
			{"header before tier", `,"service_tier":"flex"`, []string{"Headgate-Class", "interactive"}, "interactive"},
			{"another key's default", "", bob, "batch"},
			{"a tier that the key may not use", `,"service_tier":"priority"`, bob, "batch"},
		} {
			done := r.start("POST", chat, chatBody(c.extra), c.headers...)
			call := r.engine.Accept(t)
			call.Emit(1)
			call.Finish("stop")
			a := <-done
			h := a.header
			if a.status != 200 || h.Get(headerClass) != c.want || h.Get(headerDecision) != "admitted" || h.Get(headerQueue) != "0" {
				t.Errorf("%s: %d %v %s", c.name, a.status, h, a.body)
			}
		}
		// Two headers are no choice that anybody made.
		req := r.request("POST", chat, chatBody(""))
		req.Header["Headgate-Class"] = []string{"interactive", "batch"}
		if a := r.whole(r.do(req)); a.status != 403 {
			t.Errorf("two classes: %d %s", a.status, a.body)
		}
		r.quiet()
	})
}

// Borrowed capacity and a wait show in the headers of the answer.
func TestDecisionHeaders(t *testing.T) {
	bubble(t, setup{slots: 4, depth: 4}, func(t *testing.T, r *rig) {
		r.loanable()
		loan, call := r.stream("Headgate-Class", "batch")
		if h := loan.Header; h.Get(headerLoan) != "true" || h.Get(headerDecision) != "admitted" {
			t.Errorf("%v", h)
		}
		call.Finish("stop")
	})
	bubble(t, setup{slots: 1, depth: 4}, func(t *testing.T, r *rig) {
		_, call := r.stream()
		done := r.start("POST", chat, chatBody(""))
		synctest.Wait()
		sleep(1234)
		call.Finish("stop")
		call = r.engine.Accept(t)
		call.Emit(1)
		call.Finish("stop")
		if h := (<-done).header; h.Get(headerDecision) != "queued" || h.Get(headerQueue) != "1234" || h.Get(headerLoan) != "false" || h.Get(headerClass) != "interactive" {
			t.Errorf("%v", h)
		}
	})
}

// Case 34: whatever callers send, the number of series has a bound.
func TestLabelsAreBounded(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		random := rand.New(rand.NewPCG(1, 2))
		word := func() string { return fmt.Sprintf("w%x", random.Uint64()) }
		round := func() {
			for i := range 4 {
				switch i {
				case 0:
					r.send("POST", chat, `{"model":"`+word()+`","messages":[{"role":"user","content":"x"}],"user":"`+word()+`"}`)
				case 1:
					r.send("POST", "/"+word(), "{}")
				case 2:
					r.send("GET", "/v1/models/"+word(), "")
				case 3:
					r.send(strings.ToUpper(word()), chat, "", "Headgate-Class", word(), "User-Agent", word(), "X-Tenant", word())
				}
			}
		}
		round()
		before := r.series()
		for range 250 {
			round()
		}
		after := r.series()
		if len(before) == 0 || !slices.Equal(before, after) {
			t.Errorf("%d series before, %d after 1000 requests", len(before), len(after))
		}
	})
}

// gather reads all metrics, once what is under way has been counted: a request is counted
// after its client has had the last of the answer.
func (r *rig) gather() []*dto.MetricFamily {
	r.t.Helper()
	synctest.Wait()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	return families
}

// series lists the names and labels of all metrics.
func (r *rig) series() []string {
	r.t.Helper()
	var all []string
	for _, f := range r.gather() {
		for _, m := range f.Metric {
			all = append(all, fmt.Sprint(f.GetName(), m.Label))
		}
	}
	return all
}

// panics is an engine's adapter with a fault in it.
type panics struct {
	engine.Adapter
	on    *bool
	value any
}

func (p panics) Dispatch(ctx context.Context, a *engine.Attempt) (engine.Stream, error) {
	if *p.on {
		if p.value == nil {
			_ = a.ID[len(a.ID)]
		}
		panic(p.value)
	}
	return p.Adapter.Dispatch(ctx, a)
}

// Case 32: neither the callers' keys nor the engine's show up anywhere, whatever
// goes wrong.
func TestSecretsStayOut(t *testing.T) {
	const wrongKey = "hg_zyxwvutsrqponmlkjihgfedcbaZ"
	on := false
	wrap := func(a engine.Adapter) engine.Adapter { return panics{a, &on, "prompt with " + aliceKey} }
	bubble(t, setup{wrap: wrap}, func(t *testing.T, r *rig) {
		var seen strings.Builder
		note := func(a answer) { fmt.Fprintln(&seen, a.status, a.header, a.body) }
		note(r.send("POST", chat, chatBody(""), "Authorization", "Bearer "+wrongKey))
		note(r.send("POST", chat, chatBody(""), "Authorization", "Basic "+wrongKey))
		note(r.send("POST", chat, chatBody(""), "Authorization", wrongKey))
		note(r.send("POST", chat, chatBody(""), "x-api-key", wrongKey))
		note(r.send("POST", "/v1/unknown", chatBody("")))
		note(r.send("POST", chat, `{`))
		note(r.send("GET", "/v1/models", ""))
		for _, status := range []int{401, 500} { // an engine that quotes the key it got
			r.engine.Answer(chat, status, `{"error":{"message":"bad key `+engineKey+`"}}`)
			note(r.send("POST", chat, chatBody("")))
		}
		r.engine.Answer(chat, 0, "")
		on = true
		note(r.send("POST", chat, chatBody("")))
		on = false
		admin := r.gateway.Admin(r.metrics)
		for _, path := range []string{"/metrics", "/readyz", "/debug/admission", "/debug/admission?format=json", "/debug/engines", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1"} {
			w := httptest.NewRecorder()
			admin.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if w.Code != 200 {
				t.Errorf("%s: %d", path, w.Code)
			}
			seen.WriteString(w.Body.String())
		}
		for _, config := range []any{r.gateway.cfg.Auth, r.gateway.cfg.Auth.Principals()} {
			fmt.Fprintf(&seen, "%v %+v %#v", config, config, config)
		}
		seen.WriteString(r.log.String())
		for _, key := range []string{aliceKey, bobKey, wrongKey, engineKey} {
			if at := strings.Index(seen.String(), key[3:]); at >= 0 {
				t.Errorf("a key shows: %s", seen.String()[max(0, at-200):at])
			}
		}
	})
}

// A fault of ours ends one request, with a 500 and a line in the log, and the
// gateway goes on.
func TestPanic(t *testing.T) {
	on := true
	wrap := func(a engine.Adapter) engine.Adapter { return panics{a, &on, nil} }
	bubble(t, setup{wrap: wrap}, func(t *testing.T, r *rig) {
		for range 3 {
			a := r.send("POST", chat, chatBody(""))
			if e := documented(t, a.status, a.body); a.status != 500 || *e.Error.Code != wire.CodeInternal || e.Error.Message != "internal error" {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		log := r.log.String()
		if !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, "index out of range") || !strings.Contains(log, "trust_test.go") {
			t.Errorf("the log does not say what happened:\n%s", log)
		}
		on = false
		res, call := r.stream()
		call.Finish("stop")
		r.whole(res)
		r.quiet()
	})
}

// Data and operators' routes are apart, and the latter only show.
func TestAdminIsReadOnly(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		admin := r.gateway.Admin(r.metrics)
		get := func(method, path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			req := httptest.NewRequest(method, path, strings.NewReader(chatBody("")))
			req.Header.Set("Authorization", "Bearer "+aliceKey)
			admin.ServeHTTP(w, req)
			return w
		}
		paths := []string{"/healthz", "/readyz", "/metrics", "/debug/admission", "/debug/engines", "/debug/pprof/", "/debug/pprof/symbol", "/debug/pprof/heap"}
		for _, path := range paths {
			if w := get("GET", path); w.Code != 200 {
				t.Errorf("GET %s: %d %s", path, w.Code, w.Body)
			}
			for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
				if w := get(method, path); w.Code != 405 {
					t.Errorf("%s %s: %d", method, path, w.Code)
				}
			}
		}
		for _, path := range []string{chat, completions, "/v1/models", "/debug/pprof/cmdline", "/", "/debug", "/debug/vars"} {
			for _, method := range []string{"GET", "POST"} {
				if w := get(method, path); w.Code != 404 && (method == "GET" || w.Code != 405) {
					t.Errorf("%s %s: %d", method, path, w.Code)
				}
			}
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		if _, err := parser.TextToMetricFamilies(get("GET", "/metrics").Body); err != nil {
			t.Error(err)
		}
		if n := r.engine.Running() + r.engine.Waiting(); n != 0 {
			t.Errorf("%d requests reached the engine", n)
		}
	})
}
