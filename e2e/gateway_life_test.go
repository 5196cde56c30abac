package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"headgate/admission"
	"headgate/e2e/client"
	"headgate/e2e/headgate"
	"headgate/journal"
)

func testAbort(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	r := client.Run(t, sdk, client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Chat, AbortAfter: 3,
		Body: object{"model": b.model, "messages": user("hello"), "max_tokens": 3000, "stream": true}})
	if !r.Aborted || r.Chunks != 3 {
		t.Fatalf("%+v, want an abort after 3 chunks", r)
	}
	g.AwaitPool("nothing is held", idle)
	if m := untilLoad(t, b.url, 0, 0); m["vllm:generation_tokens_total"] >= 3000 {
		t.Errorf("the engine made %v tokens for an answer that nobody wanted", m["vllm:generation_tokens_total"])
	}
	gone := g.AwaitEvent("an attempt whose client left", func(e *journal.Event) bool { return e.Kind == journal.Ended && e.Cause == "client_gone" })
	g.AwaitEvent("the release of its hold, confirmed", func(e *journal.Event) bool {
		return e.Kind == journal.Released && e.Hold == gone.Hold && e.Cause != ""
	})
	g.AwaitEvent("the end of the request", func(e *journal.Event) bool {
		return e.Kind == journal.Finished && e.Request == gone.Request && e.Cause == "client_gone"
	})
}

func testDrain(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, "", "")
	const tokens = 600
	s := client.Start(t, sdk, client.Call{BaseURL: g.URL + "/v1", APIKey: k.app, Route: client.Chat, TimeoutMS: 100_000,
		Body: object{"model": b.model, "messages": user("hello"), "max_tokens": tokens, "temperature": 0, "stream": true,
			"stream_options": object{"include_usage": true}}})
	<-s.First(0)
	g.Terminate()
	g.AwaitOutput(`"draining"`)
	if status, text := g.Readyz(); status != http.StatusServiceUnavailable || !strings.Contains(text, "draining") {
		t.Errorf("/readyz says %d %q while it drains", status, text)
	}
	res, err := postAs(t.Context(), g.URL+chatPath, k.app, object{"model": b.model, "messages": user("hello"), "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After-Ms") != "" {
		t.Errorf("a request while it drains: %s, headers %v, want 503 and no hint", res.Status, res.Header)
	}
	r := s.Result(0)
	if r.Error != nil || r.FinishReason != "length" || r.Usage == nil || r.Usage.Completion != tokens {
		t.Errorf("the running stream: error %+v, finish reason %q, usage %+v, want its whole answer", r.Error, r.FinishReason, r.Usage)
	}
	g.Wait()
	if events := g.Events(); events[len(events)-1].Kind != journal.Stopped {
		t.Errorf("the journal ends with %+v", events[len(events)-1])
	}
}

// testHints fills a queue, and lets the SDK come back when it was told to.
func testHints(t *testing.T, b backend) {
	k := newKeys(t)
	const depth = 6
	g := serveBackend(t, b, k, "", ", ceiling: {slots: 1}, queue: {depth: 6, per_tenant: 0, wait: 0}")
	body := func(tokens int) object {
		return object{"model": b.model, "messages": user("hello"), "max_tokens": tokens, "stream": true}
	}
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan error)
	asked := 0
	ask := func(ctx context.Context, tokens int) {
		asked++
		go func() { answers <- streamAs(ctx, g.URL+chatPath, k.jobs, body(tokens)) }()
	}
	settle := func() {
		for ; asked > 0; asked-- {
			if err := <-answers; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	}
	defer settle()
	defer cancel()
	waiting := func(n int) func(*admission.Snapshot) bool {
		return func(s *admission.Snapshot) bool {
			return class(s, "batch").Used.Slots == 1 && class(s, "batch").Queue == n
		}
	}

	// A backlog is worked off, from which the gateway learns its pace.
	for range depth + 1 {
		ask(ctx, 10)
	}
	settle()
	// A request holds the only slot, and was itself served from a queue that the
	// next ones fill.
	held, drop := context.WithCancel(ctx)
	ask(held, 3900)
	g.AwaitPool("the slot is taken", waiting(0))
	holder, leave := context.WithCancel(ctx)
	defer leave()
	ask(holder, 3900)
	g.AwaitPool("one waits", waiting(1))
	for n := 2; n <= depth; n++ {
		ask(ctx, 10)
		g.AwaitPool("the queue grows", waiting(n))
	}
	drop()
	g.AwaitPool("one is served", waiting(depth-1))
	ask(ctx, 10)
	g.AwaitPool("the queue is full", waiting(depth))

	// Hints grow while nothing moves, until they differ from what the SDK would
	// wait by itself, half a second at most; before the holder's answer ends, which on
	// a fast machine it does after some seconds.
	const ownBackoffMS = 500
	hint := 0.0
	for tick := time.NewTicker(20 * time.Millisecond); hint < 1.3*ownBackoffMS; <-tick.C {
		res, err := postAs(t.Context(), g.URL+chatPath, k.jobs, body(1))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("%s, want 429", res.Status)
		}
		if hint, err = strconv.ParseFloat(res.Header.Get("Retry-After-Ms"), 64); err != nil {
			t.Fatalf("headers %v have no hint", res.Header)
		}
	}
	call := client.Call{BaseURL: g.URL + "/v1", APIKey: k.jobs, Route: client.Completions, MaxRetries: 8, TimeoutMS: 100_000,
		Body: object{"model": b.model, "prompt": "hello", "max_tokens": 5, "stream": true}}
	once := client.Call{BaseURL: g.URL + "/v1", APIKey: k.jobs, Route: client.Chat, Body: body(5)}
	s := client.Start(t, sdk, call, once)
	if r := s.Result(1); r.Error == nil || r.Error.Class != "RateLimitError" || r.Error.Code != "queue_full" {
		t.Errorf("without retries: %+v, want a RateLimitError that says queue_full", r.Error)
	}
	g.AwaitEvent("the other refused too", func(e *journal.Event) bool { return e.Kind == journal.Rejected && e.API == "completions" })
	leave()
	r := s.Result(0)
	if n := len(r.Attempts); r.Error != nil || r.Chunks != 5 || n < 2 || r.Attempts[0].Status != http.StatusTooManyRequests || r.Attempts[n-1].Status != http.StatusOK {
		t.Fatalf("error %+v, %d chunks, attempts %+v, want a refusal and then the answer", r.Error, r.Chunks, r.Attempts)
	}
	// A hint has up to a quarter of jitter on it.
	if waited := r.Attempts[1].AtMS - r.Attempts[0].AtMS; waited < hint/1.25 {
		t.Errorf("the SDK came back after %v ms, told at least %v", waited, hint/1.25)
	}
}

// TestGatewayWaitsForItsEngine starts the gateway first.
func TestGatewayWaitsForItsEngine(t *testing.T) {
	// A port that was just free: nothing listens there until the engine does.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	g := headgate.Start(t, `anonymous: {classes: [only]}
pools:
  - name: main
    engines: [{name: late, kind: vllm, url: "http://`+at+`", slots: 4, observe_every: 50ms}]
    classes: [{name: only, floor: {slots: 4}}]
`)
	g.AwaitNotReady("engine late: ")
	call := client.Call{BaseURL: g.URL + "/v1", Route: client.Chat, Body: object{"model": "headgate-simulated-m1", "messages": user("hello"), "max_tokens": 3}}
	if r := client.Run(t, sdk, call); r.Error == nil || r.Error.Class != "InternalServerError" || r.Error.Code != "engine_unavailable" {
		t.Errorf("a request without an engine: %+v, want engine_unavailable", r.Error)
	}
	e := headgate.StartEngine(t, "--listen", at, "--speed", "0.2")
	g.AwaitReady()
	call.Body["model"] = e.Model
	if r := client.Run(t, sdk, call); r.Error != nil || r.FinishReason != "length" {
		t.Errorf("a request once the engine is there: %+v, error %+v", r, r.Error)
	}
	// It goes, and that shows; it may come back.
	e.Terminate()
	e.Wait()
	g.AwaitEvent("that the engine is down", func(e *journal.Event) bool { return e.Kind == journal.EngineState && e.State == "down" })
	g.AwaitNotReady("engine late: ")
	headgate.StartEngine(t, "--listen", at, "--speed", "0.2")
	g.AwaitReady()
	if r := client.Run(t, sdk, call); r.Error != nil {
		t.Errorf("a request once the engine is back: %+v", r.Error)
	}
}
