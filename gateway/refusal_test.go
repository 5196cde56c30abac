package gateway

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/engine/enginetest"
	"headgate/wire"
)

// Every refusal before admission: status, code, param, and a message that names
// the value and what is allowed.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code, param              string
		says                     []string
	}{
		{"no key", "POST", chat, chatBody(""), []string{"Authorization", ""}, 401, wire.CodeUnauthorized, "", []string{"no api key", "Authorization: Bearer hg_"}},
		{"unknown key", "POST", chat, chatBody(""), []string{"Authorization", "Bearer hg_zyxwvutsrqponmlkjihgfedcbaZ"}, 401, wire.CodeUnauthorized, "", []string{"not known"}},
		{"no key for the models", "GET", "/v1/models", "", []string{"Authorization", ""}, 401, wire.CodeUnauthorized, "", []string{"no api key"}},
		{"not JSON", "POST", chat, `{"model":`, nil, 400, wire.CodeInvalidJSON, "", []string{"byte 9"}},
		{"no body", "POST", chat, "", nil, 400, wire.CodeInvalidJSON, "", nil},
		{"no model", "POST", chat, `{"messages":[{"role":"user","content":"x"}]}`, nil, 400, wire.CodeMissingField, "model", []string{"model"}},
		{"a bad limit", "POST", chat, chatBody(`,"max_tokens":-1`), nil, 400, wire.CodeInvalidField, "max_tokens", []string{"-1", "allowed"}},
		{"a field twice", "POST", chat, chatBody(`,"model":"other"`), nil, 400, wire.CodeInvalidField, "model", nil},
		{"unknown model", "POST", chat, `{"model":"gpt-9","messages":[{"role":"user","content":"x"}]}`, nil, 404, wire.CodeModelNotFound, "model", []string{"gpt-9", "test-model"}},
		{"unknown model's page", "GET", "/v1/models/gpt-9", "", nil, 404, wire.CodeModelNotFound, "model", []string{"gpt-9", "test-model"}},
		{"class not allowed", "POST", chat, chatBody(""), []string{"Headgate-Class", "gold"}, 403, wire.CodeClassNotPermitted, "Headgate-Class", []string{"gold", "interactive, batch"}},
		{"class may not be chosen", "POST", chat, chatBody(""), []string{"Authorization", "Bearer " + bobKey, "Headgate-Class", "interactive"}, 403, wire.CodeClassNotPermitted, "Headgate-Class", []string{"interactive", "get batch"}},
		{"class without a share", "POST", chat, chatBody(""), []string{"Headgate-Class", "elsewhere"}, 403, wire.CodeClassNotPermitted, "Headgate-Class", []string{"elsewhere", "test-model", "interactive, batch"}},
		{"body over the limit", "POST", chat, strings.Repeat(" ", 4097), nil, 413, wire.CodeBodyTooLarge, "", []string{"4096"}},
		{"wrong method", "GET", chat, "", nil, 405, wire.CodeMethodNotAllowed, "", []string{"GET", "POST"}},
		{"wrong method of a list", "DELETE", "/v1/models", "", nil, 405, wire.CodeMethodNotAllowed, "", []string{"DELETE", "GET, HEAD"}},
		{"options", "OPTIONS", completions, "", nil, 405, wire.CodeMethodNotAllowed, "", []string{"OPTIONS", "POST"}},
		{"no route", "POST", "/v1/rerank", "{}", nil, 404, wire.CodeRouteNotFound, "", []string{"/v1/rerank"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, setup{limits: Limits{BodyBytes: 4096}}, func(t *testing.T, r *rig) {
				a := r.send(c.method, c.path, c.body, c.headers...)
				if a.status != c.status {
					t.Fatalf("got %d %s", a.status, a.body)
				}
				e := documented(t, a.status, a.body)
				param := ""
				if e.Error.Param != nil {
					param = *e.Error.Param
				}
				if *e.Error.Code != c.code || param != c.param {
					t.Errorf("code %q param %q", *e.Error.Code, param)
				}
				for _, s := range c.says {
					if !strings.Contains(e.Error.Message, s) {
						t.Errorf("%q does not name %q", e.Error.Message, s)
					}
				}
				h := a.header
				if h.Get("Content-Type") != "application/json" || h.Get(headerDecision) != "rejected" || !strings.HasPrefix(h.Get(headerID), "req_") || h.Get("X-Request-Id") != h.Get(headerID) {
					t.Errorf("headers %v", h)
				}
				if (c.status == 401) != (h.Get("WWW-Authenticate") != "") || (c.status == 405) != (h.Get("Allow") != "") {
					t.Errorf("challenge %q, allow %q", h.Get("WWW-Authenticate"), h.Get("Allow"))
				}
				if h.Get("Retry-After") != "" || h.Get("Retry-After-Ms") != "" {
					t.Errorf("a hint that trying again helps: %v", h)
				}
				if n := r.engine.Running() + r.engine.Waiting(); n != 0 {
					t.Errorf("%d requests reached the engine", n)
				}
				r.quiet()
			})
		})
	}
}

// What can never fit is refused at once, with both numbers.
func TestNeverFits(t *testing.T) {
	bubble(t, setup{engine: enginetest.Options{MaxContext: 1024, KVTokens: 16384}}, func(t *testing.T, r *rig) {
		a := r.send("POST", completions, `{"model":"test-model","prompt":"`+strings.Repeat("word ", 4000)+`"}`)
		e := documented(t, a.status, a.body)
		if *e.Error.Code != wire.CodeContextLength || !strings.Contains(e.Error.Message, "1024") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a.header.Get(headerClass) != "interactive" || a.header.Get(headerQueue) != "0" || a.header.Get(headerLoan) != "false" {
			t.Errorf("headers %v", a.header)
		}
		a = r.send("POST", completions, `{"model":"test-model","prompt":"x","n":9}`)
		if e := documented(t, a.status, a.body); *e.Error.Code != wire.CodeExceedsCapacity || !strings.Contains(e.Error.Message, "9 slots") || !strings.Contains(e.Error.Message, "4 in all") {
			t.Errorf("%d %s", a.status, a.body)
		}
		r.quiet()
	})
}

// Cases 14, 15, 18: one door for every route and shape, refusals by the queue
// with hints that are honest.
func TestQueueRefusals(t *testing.T) {
	bubble(t, setup{slots: 1, depth: 2, wait: 3 * time.Second}, func(t *testing.T, r *rig) {
		// A queue that is served at a steady pace gives the hint its evidence.
		var queue []<-chan answer
		call := func() *enginetest.Call {
			for len(queue) < 3 {
				queue = append(queue, r.start("POST", chat, chatBody(`,"max_tokens":8,"stream":true`)))
				synctest.Wait()
			}
			return r.engine.Accept(t)
		}
		for range 8 {
			c := call()
			c.Emit(2)
			time.Sleep(700 * time.Millisecond)
			c.Finish("stop")
			if a := <-queue[0]; a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			queue = queue[1:]
		}
		running := call()
		synctest.Wait()

		hints := map[string]bool{}
		for i := range 24 {
			path, body := chat, chatBody("")
			switch i % 4 {
			case 1:
				body = chatBody(`,"stream":true`)
			case 2:
				path, body = completions, `{"model":"test-model","prompt":"x"}`
			case 3:
				path, body = completions, `{"model":"test-model","prompt":"x","stream":true}`
			}
			a := r.send("POST", path, body)
			e := documented(t, a.status, a.body)
			if a.status != 429 || *e.Error.Code != wire.CodeQueueFull || !strings.Contains(e.Error.Message, "limit is 2") {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			hints[hint(t, a)] = true
			if a.header.Get(headerClass) != "interactive" || a.header.Get(headerDecision) != "rejected" || a.header.Get(headerQueue) != "0" || a.header.Get(headerLoan) != "false" {
				t.Errorf("headers %v", a.header)
			}
		}
		if len(hints) < 8 {
			t.Errorf("24 callers are told to return at only %d times: %v", len(hints), hints)
		}
		a := <-queue[2]
		if e := documented(t, a.status, a.body); a.status != 503 || *e.Error.Code != wire.CodeQueueTimeout || !strings.Contains(e.Error.Message, "3s") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if hint(t, a); a.header.Get(headerQueue) != "3000" || a.header.Get(headerClass) != "interactive" {
			t.Errorf("headers %v", a.header)
		}
		running.Emit(1)
		running.Finish("stop")
		if a := <-queue[0]; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		r.quiet()
	})
}

// hint checks that there is one and that its two forms agree.
func hint(t *testing.T, a answer) string {
	t.Helper()
	ms, err := strconv.Atoi(a.header.Get("retry-after-ms"))
	if err != nil || ms <= 0 {
		t.Fatalf("no hint: %v", a.header)
	}
	want := ""
	if ms >= 1000 {
		want = strconv.Itoa((ms + 999) / 1000)
	}
	if got := a.header.Get("Retry-After"); got != want {
		t.Errorf("%d ms beside Retry-After %q", ms, got)
	}
	return a.header.Get("retry-after-ms")
}

// Case 19: all callers without a key share one bound.
func TestAnonymousIsOneTenant(t *testing.T) {
	bubble(t, setup{anonymous: true, slots: 1, depth: 8, tenant: 2}, func(t *testing.T, r *rig) {
		var calls []<-chan answer
		for i := range 3 { // one runs, two wait
			calls = append(calls, r.start("POST", chat, chatBody(""), "Authorization", "", "X-Forwarded-For", fmt.Sprint("10.0.0.", i)))
			synctest.Wait()
		}
		a := r.send("POST", chat, chatBody(`,"user":"somebody else"`), "Authorization", "", "X-Forwarded-For", "10.9.9.9")
		if e := documented(t, a.status, a.body); a.status != 429 || *e.Error.Code != wire.CodeTenantQueueFull || !strings.Contains(e.Error.Message, "limit is 2") {
			t.Errorf("%d %s", a.status, a.body)
		}
		for range calls {
			call := r.engine.Accept(t)
			call.Emit(1)
			call.Finish("stop")
		}
		for _, c := range calls {
			if a := <-c; a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		r.quiet()
	})
}

// An engine that is not there is a 503, never a hang or a 404 of its model.
func TestNoEngine(t *testing.T) {
	for _, models := range [][]string{nil, {"test-model"}} {
		bubble(t, setup{noEngine: true, models: models}, func(t *testing.T, r *rig) {
			a := r.send("POST", chat, chatBody(""))
			if e := documented(t, a.status, a.body); a.status != 503 || *e.Error.Code != wire.CodeEngineUnavailable {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
}

// raw writes bytes on a connection of its own and reads one answer.
func (r *rig) raw(request string) (*http.Response, *bufio.Reader) {
	r.t.Helper()
	c, err := r.dial(r.t.Context(), "tcp", "gateway.test:80")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, request); err != nil {
		r.t.Fatal(err)
	}
	in := bufio.NewReader(c)
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		r.t.Fatalf("%q: %v", request, err)
	}
	return res, in
}

func head(lines ...string) string {
	return strings.Join(append(lines, "Host: gateway.test"), "\r\n") + "\r\n\r\n"
}

// Callers are refused before their body is read: one that never comes does not
// delay the answer, and does not keep the connection.
func TestRefusedBeforeTheBody(t *testing.T) {
	key := "Authorization: Bearer " + aliceKey
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"no key, small body":      {head("POST "+chat+" HTTP/1.1", "Content-Length: 100"), 401},
		"no key, huge body":       {head("POST "+chat+" HTTP/1.1", "Content-Length: 999999999999"), 401},
		"no key, chunked":         {head("POST "+chat+" HTTP/1.1", "Transfer-Encoding: chunked") + "5\r\nhel", 401},
		"no key, expects 100":     {head("POST "+chat+" HTTP/1.1", "Content-Length: 100", "Expect: 100-continue"), 401},
		"no route":                {head("POST /abort_requests HTTP/1.1", "Content-Length: 100"), 404},
		"no method":               {head("PUT "+chat+" HTTP/1.1", "Content-Length: 100"), 405},
		"over the limit":          {head("POST "+chat+" HTTP/1.1", key, "Content-Length: 2000000"), 413},
		"over the limit, expects": {head("POST "+chat+" HTTP/1.1", key, "Content-Length: 2000000", "Expect: 100-continue"), 413},
		"a list with a body":      {head("GET /v1/models HTTP/1.1", key, "Content-Length: 100"), 200},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, setup{}, func(t *testing.T, r *rig) {
				start := time.Now()
				res, in := r.raw(c.request)
				if res.StatusCode != c.status || time.Since(start) != 0 || !res.Close {
					t.Errorf("%d after %v, close %v", res.StatusCode, time.Since(start), res.Close)
				}
				body, err := io.ReadAll(res.Body)
				if err != nil {
					t.Error(err)
				}
				if c.status != 200 {
					documented(t, c.status, string(body))
				}
				if _, err := in.ReadByte(); err != io.EOF || time.Since(start) > time.Second {
					t.Errorf("the connection is kept for %v: %v", time.Since(start), err)
				}
			})
		})
	}
}

// A body that is not declared ends where the limit is; one that comes slowly,
// when its time is over; one that is no chunked encoding, at once.
func TestBodyLimits(t *testing.T) {
	key := "Authorization: Bearer " + aliceKey
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
		after   time.Duration
	}{
		"too large, chunked": {head("POST "+chat+" HTTP/1.1", key, "Transfer-Encoding: chunked") + "2000\r\n" + strings.Repeat("x", 0x2000) + "\r\n", 413, wire.CodeBodyTooLarge, 0},
		"never ends":         {head("POST "+chat+" HTTP/1.1", key, "Content-Length: 100") + "{", 400, wire.CodeBodyTooSlow, 7 * time.Second},
		"never begins":       {head("POST "+chat+" HTTP/1.1", key, "Transfer-Encoding: chunked"), 400, wire.CodeBodyTooSlow, 7 * time.Second},
		"bad chunk":          {head("POST "+chat+" HTTP/1.1", key, "Transfer-Encoding: chunked") + "zz\r\nhello\r\n", 400, wire.CodeInvalidJSON, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, setup{limits: Limits{BodyBytes: 4096, BodyTimeout: 7 * time.Second}}, func(t *testing.T, r *rig) {
				start := time.Now()
				res, in := r.raw(c.request)
				body, _ := io.ReadAll(res.Body)
				if e := documented(t, c.status, string(body)); res.StatusCode != c.status || *e.Error.Code != c.code || time.Since(start) != c.after {
					t.Errorf("%d %s after %v", res.StatusCode, body, time.Since(start))
				}
				if _, err := in.ReadByte(); err != io.EOF || time.Since(start) > c.after+time.Second {
					t.Errorf("the connection is kept for %v: %v", time.Since(start), err)
				}
				r.quiet()
			})
		})
	}
	t.Run("header never ends", func(t *testing.T) {
		bubble(t, setup{limits: Limits{HeaderTimeout: 3 * time.Second}}, func(t *testing.T, r *rig) {
			c, err := r.dial(t.Context(), "tcp", "gateway.test:80")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, _ = io.WriteString(c, "POST "+chat+" HTTP/1.1\r\nX-Slow: ")
			if _, err := io.ReadAll(c); err != nil || time.Since(start) != 3*time.Second {
				t.Errorf("closed after %v: %v", time.Since(start), err)
			}
		})
	})
	t.Run("header too large", func(t *testing.T) {
		bubble(t, setup{limits: Limits{HeaderBytes: 8 << 10}}, func(t *testing.T, r *rig) {
			res, _ := r.raw(head("POST "+chat+" HTTP/1.1", key, "X-Large: "+strings.Repeat("x", 32<<10)))
			if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Error(res.StatusCode)
			}
		})
	})
	t.Run("expects 100 and gets it", func(t *testing.T) {
		bubble(t, setup{}, func(t *testing.T, r *rig) {
			res, in := r.raw(head("POST "+chat+" HTTP/1.1", key, "Content-Length: 2", "Expect: 100-continue"))
			if res.StatusCode != http.StatusContinue {
				t.Fatal(res.StatusCode, in)
			}
		})
	})
}

// A program that talks with an earlier version of HTTP, or asks for the head
// only, gets what it asked for.
func TestOldAndHead(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		res, in := r.raw("GET /v1/models HTTP/1.0\r\nAuthorization: Bearer " + aliceKey + "\r\n\r\n")
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != 200 || !strings.Contains(string(body), `"test-model"`) {
			t.Errorf("%d %s", res.StatusCode, body)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Error("an HTTP/1.0 connection is kept")
		}
		a := r.send("HEAD", "/v1/models", "")
		if a.status != 200 || a.body != "" || a.header.Get("Content-Length") == "0" {
			t.Errorf("%d %v", a.status, a.header)
		}
		// A stream to HTTP/1.0 has no chunks and ends with the connection.
		go func() {
			call := r.engine.Accept(t)
			call.Emit(1)
			call.Finish("stop")
		}()
		request := chatBody(`,"stream":true`)
		res, _ = r.raw(fmt.Sprintf("POST %s HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chat, aliceKey, len(request), request))
		body, _ = io.ReadAll(res.Body)
		if len(res.TransferEncoding) != 0 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
			t.Errorf("%v %q", res.TransferEncoding, body)
		}
		// A star is no route.
		res, _ = r.raw(head("OPTIONS * HTTP/1.1"))
		if res.StatusCode != 404 {
			t.Error(res.StatusCode)
		}
		res, _ = r.raw(head("CONNECT engine.test:80 HTTP/1.1"))
		if res.StatusCode != 404 {
			t.Error(res.StatusCode)
		}
		r.quiet()
	})
}

// An error made by hand could have a code that is not documented; one made by
// package wire can't.
func TestErrorsComeFromTheTable(t *testing.T) {
	for _, dir := range []string{".", "../identity"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				lit, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if sel, ok := lit.Type.(*ast.SelectorExpr); ok && fmt.Sprint(sel.X, ".", sel.Sel) == "wire.Error" {
					t.Errorf("%s makes a wire.Error by hand; wire.NewError takes a code of the table", name)
				}
				return true
			})
		}
	}
}
