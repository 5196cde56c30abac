package wire

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"headgate/pagetest"
)

func TestErrorWrite(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      *Error
		status   int
		ms, secs string
		body     string
	}{
		{"field", InvalidField("max_tokens", "-1", "an integer from 0 to 10"), 400, "", "",
			`{"error":{"message":"max_tokens is -1; allowed: an integer from 0 to 10","type":"invalid_request_error","param":"max_tokens","code":"invalid_field"}}`},
		{"hint below a second", QueueFull("batch", 9, 9, 1500*time.Microsecond), 429, "2", "",
			`{"error":{"message":"the queue of class batch is full: 9 requests wait, the limit is 9","type":"rate_limit_error","param":null,"code":"queue_full"}}`},
		{"hint of a second", QueueTimeout("batch", time.Minute, time.Second), 503, "1000", "1",
			`{"error":{"message":"no capacity became free for class batch within 1m0s","type":"server_error","param":null,"code":"queue_timeout"}}`},
		{"hint rounded up", TenantQueueFull("batch", 2, 2, 1001*time.Millisecond), 429, "1001", "2",
			`{"error":{"message":"2 of your requests wait in class batch, the limit is 2","type":"rate_limit_error","param":null,"code":"tenant_queue_full"}}`},
		{"no hint", Draining(), 503, "", "", `{"error":{"message":"the gateway is shutting down","type":"server_error","param":null,"code":"draining"}}`},
		{"engine's own body", &Error{Status: 400, Upstream: []byte(`{"x":1}`)}, 400, "", "", `{"x":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			w.Header().Set("Retry-After", "99") // of whatever went before
			c.err.Write(w)
			h := w.Result().Header
			if w.Code != c.status || h.Get("retry-after-ms") != c.ms || h.Get("Retry-After") != c.secs || h.Get("Content-Type") != "application/json" {
				t.Errorf("got %d %v", w.Code, h)
			}
			if w.Body.String() != c.body {
				t.Errorf("got  %s\nwant %s", w.Body, c.body)
			}
			if event := string(c.err.AppendEvent([]byte("x"))); event != "xdata: "+c.body+"\n\n" {
				t.Errorf("event %q", event)
			}
		})
	}
	w := httptest.NewRecorder()
	if Unauthorized().Write(w); w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("a 401 without a challenge: %v", w.Header())
	}
}

// Each constructor has its row, and a message that names what it was given.
func TestRefusals(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range []struct {
		err   *Error
		names []string
	}{
		{InvalidField("n", "0", "1 to 128"), []string{"n", "0", "1 to 128"}},
		{MissingField("model", "a name"), []string{"model", "a name"}},
		{NewError(CodeInvalidJSON, "byte %d", 5), []string{"5"}},
		{BodyTooLarge(1000), []string{"1000 bytes"}},
		{BodyTooSlow(3 * time.Second), []string{"3s"}},
		{Unauthorized(), []string{"API key"}},
		{ClassNotPermitted("x", []string{"a", "b"}), []string{`"x"`, "a, b"}},
		{NewError(CodeAccessDenied, "rule %s", "r"), []string{"r"}},
		{NewError(CodeIdentityUnavailable, "issuer %s", "i"), []string{"i"}},
		{ModelNotFound("x", []string{"a", "b"}), []string{`"x"`, "a, b"}},
		{RouteNotFound("/x"), []string{`"/x"`}},
		{MethodNotAllowed("PUT", "/x", "GET", "POST"), []string{"PUT", "/x", "GET, POST"}},
		{FileNotFound("file-x", "id"), []string{"file-x"}},
		{BatchNotFound("batch_x"), []string{"batch_x"}},
		{WrongState("it is %s", "completed"), []string{"completed"}},
		{BadRange("bytes=9-", 5), []string{`"bytes=9-"`, "5 bytes"}},
		{TenantStorageFull("bytes", 7000), []string{"7000 bytes"}},
		{TenantBatchesFull(7), []string{"7 of your batches"}},
		{StorageFull(), nil},
		{StorageUnavailable(), nil},
		{ContextLengthExceeded(9000, 8192), []string{"9000", "8192"}},
		{ExceedsCapacity("KV tokens", 900, 800), []string{"900 KV tokens", "800"}},
		{QueueFull("c", 3, 2, 0), []string{"class c", "3", "2"}},
		{WaitTooLong("c", 3*time.Second, 2*time.Second, 0), []string{"class c", "3s", "2s"}},
		{TenantQueueFull("c", 3, 2, 0), []string{"class c", "3", "2"}},
		{RateLimited("the tenant's", "tokens", 1000, time.Minute, 300, 200, 0), []string{"the tenant's limit of tokens is 1000 in 1m0s", "300", "200"}},
		{ExceedsLimit(900, 800), []string{"900", "800"}},
		{BalanceExhausted(900, 800), []string{"900", "800"}},
		{QueueTimeout("c", 2*time.Second, 0), []string{"class c", "2s"}},
		{LoanEnded(), []string{"borrowed capacity"}},
		{Draining(), nil},
		{EngineUnavailable(0), nil},
		{EngineLoading(0), nil},
		{UpstreamError("status %d", 500), []string{"500"}},
		{UpstreamTimeout(5 * time.Second), []string{"5s"}},
		{UpstreamTorn(), nil},
		{ClientClosed(), nil},
		{Internal(), nil},
		{FromUpstream(400, nil, nil), nil},
		{FromUpstream(429, nil, nil), nil},
	} {
		seen[c.err.Code] = true
		if c.err.Retry != 0 {
			t.Errorf("%s: a hint was made up", c.err.Code)
		}
		for _, name := range c.names {
			if !strings.Contains(c.err.Message, name) {
				t.Errorf("%s: %q does not name %q", c.err.Code, c.err.Message, name)
			}
		}
	}
	for _, row := range Table() {
		if !seen[row.Code] {
			t.Errorf("nothing makes a %s", row.Code)
		}
		if row.Status == http.StatusRequestTimeout {
			t.Errorf("%s: clients repeat a 408 at once", row.Code)
		}
	}
	long := ModelNotFound(strings.Repeat("é", 100), nil)
	if !strings.Contains(long.Message, strings.Repeat("é", 30)+"...") || strings.Contains(long.Message, strings.Repeat("é", 31)) {
		t.Errorf("not clipped: %s", long.Message)
	}
}

var update = flag.Bool("update", false, "rewrite the table in docs/errors.md")

func TestErrorTableIsDocumented(t *testing.T) {
	pagetest.Part{File: "../docs/errors.md", Begin: "<!-- table: written by go test ./wire -update -->\n"}.Keep(t, ErrorTable(), *update)
}

func TestFromUpstream(t *testing.T) {
	for _, c := range []struct {
		name                 string
		status               int
		body                 string
		want                 int
		code, param, message string
	}{
		{"vLLM", 400, `{"error":{"message":"bad","type":"BadRequestError","param":"top_p","code":400}}`, 400, CodeEngineRefused, "top_p", "bad"},
		{"vLLM, too long", 400, `{"error":{"message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","param":null,"code":400}}`, 400, CodeContextLength, "", "This model's maximum context length is 4096 tokens."},
		{"vLLM, too long by param", 400, `{"error":{"message":"x","type":"BadRequestError","param":"input_tokens","code":400}}`, 400, CodeContextLength, "input_tokens", "x"},
		{"vLLM, older and flat", 404, `{"object":"error","message":"The model x does not exist.","type":"NotFoundError","param":null,"code":404}`, 404, CodeEngineRefused, "", "The model x does not exist."},
		{"vLLM, full", 503, `{"error":{"message":"too many","type":"Service Unavailable","param":null,"code":503}}`, 503, CodeEngineUnavailable, "", "the engine is unavailable: too many"},
		{"SGLang", 400, `{"object":"error","message":"m","type":"BadRequest","param":"n","code":"400"}`, 400, CodeEngineRefused, "n", "m"},
		{"llama-server, too long", 400, `{"error":{"code":400,"message":"request exceeds","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}`, 400, CodeContextLength, "", "request exceeds"},
		{"llama-server, loading", 503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, 503, CodeEngineLoading, "", "the engine is loading its model: Loading model"},
		{"TGI", 422, `{"error":"Input validation error","error_type":"validation"}`, 422, CodeEngineRefused, "", "Input validation error"},
		{"TGI, overloaded", 429, `{"error":"Model is overloaded","error_type":"overloaded"}`, 429, CodeEngineBusy, "", "the engine is overloaded: Model is overloaded"},
		{"TGI, generation", 424, `{"error":"CUDA","error_type":"generation"}`, 502, CodeUpstreamError, "", "the engine failed with status 424: CUDA"},
		{"Ollama", 404, `{"error":"model 'x' not found"}`, 404, CodeEngineRefused, "", "model 'x' not found"},
		{"OpenAI", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"p","code":"unsupported_value"}}`, 400, "unsupported_value", "p", "m"},
		{"FastAPI", 422, `{"detail":[{"loc":["body"],"msg":"Field required","type":"missing"}]}`, 422, CodeEngineRefused, "", "Field required"},
		{"FastAPI, text", 404, `{"detail":"Not Found"}`, 404, CodeEngineRefused, "", "Not Found"},
		{"a page", 500, `<html>nginx</html>`, 502, CodeUpstreamError, "", "the engine failed with status 500"},
		{"a page for a caller's fault", 413, `<html>nginx</html>`, 413, CodeEngineRefused, "", "the engine refused the request"},
		{"credentials", 401, `{"error":{"message":"Incorrect API key sk-123"}}`, 502, CodeUpstreamError, "", "the engine did not accept the gateway's credentials (status 401)"},
		{"timeouts", 408, ``, 504, CodeUpstreamTimeout, "", "the engine timed out"},
		{"not implemented", 501, `{"error":{"message":"no beams"}}`, 400, CodeEngineRefused, "", "no beams"},
		{"redirect", 302, ``, 502, CodeUpstreamError, "", "the engine failed with status 302"},
		{"cut", 400, `{"error":{"message":"ba`, 400, CodeEngineRefused, "", "the engine refused the request"},
		{"odd kinds", 400, `{"error":[{"message":5}],"message":6,"code":{}}`, 400, CodeEngineRefused, "", "the engine refused the request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := FromUpstream(c.status, []byte(c.body), http.Header{})
			if got.Status != c.want || got.Code != c.code || got.Param != c.param || got.Message != c.message {
				t.Errorf("got %d %s %q %q", got.Status, got.Code, got.Param, got.Message)
			}
			if !validJSON(got.JSON()) {
				t.Errorf("not JSON: %s", got.JSON())
			}
		})
	}
	long := FromUpstream(400, []byte(`{"error":"`+strings.Repeat("x", 5000)+`"}`), nil)
	if len(long.Message) > maxSaid {
		t.Errorf("message of %d bytes", len(long.Message))
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		ms, secs string
		want     time.Duration
	}{
		{"", "", 0},
		{"", "3", 3 * time.Second},
		{"", "0.5", 500 * time.Millisecond},
		{"250", "3", 250 * time.Millisecond},
		{"soon", "3", 3 * time.Second},
		{"", "Tue, 01 Sep 2026 12:00:30 GMT", 30 * time.Second},
		{"", "Tue, 01 Sep 2026 11:00:00 GMT", 0},
		{"", "-1", 0}, {"", "NaN", 0}, {"", "1e300", 0}, {"", "later", 0},
	} {
		h := http.Header{}
		if c.ms != "" {
			h.Set("retry-after-ms", c.ms)
		}
		h.Set("Retry-After", c.secs)
		if got := RetryAfter(h, now); got != c.want {
			t.Errorf("%q, %q: %v, want %v", c.ms, c.secs, got, c.want)
		}
	}
	h := http.Header{"Date": {"Tue, 01 Sep 2026 12:00:00 GMT"}, "Retry-After": {"Tue, 01 Sep 2026 12:01:00 GMT"}}
	if got := FromUpstream(503, nil, h); got.Retry != time.Minute {
		t.Errorf("a date: %v", got.Retry)
	}
}
