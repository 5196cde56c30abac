package adapters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/identity"
	"headgate/wire"
)

// each runs a test of what all adapters have in common.
func each(t *testing.T, test func(t *testing.T, e *enginetest.Engine, a engine.Adapter)) {
	for _, kind := range engine.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			e := enginetest.New(t, enginetest.Options{Kind: kind})
			cfg := e.Config()
			cfg.AbortGrace = 50 * time.Millisecond
			test(t, e, adapter(t, cfg))
		})
	}
}

func adapter(t *testing.T, cfg engine.Config) engine.Adapter {
	t.Helper()
	cfg.Validate(func(path string, value any, allowed string) {
		t.Errorf("%s %v: allowed is %s", path, value, allowed)
	})
	a, err := adapters.New(cfg.Kind, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// streamed is an attempt as the relay makes them.
func streamed(id string) *engine.Attempt {
	return &engine.Attempt{API: wire.Chat, Body: enginetest.Body(true), ID: id, Stream: true, Interruptible: true}
}

// open dispatches an attempt that the engine answers with n tokens.
func open(t *testing.T, e *enginetest.Engine, a engine.Adapter, at *engine.Attempt, n int) (engine.Stream, *enginetest.Call) {
	t.Helper()
	type result struct {
		s   engine.Stream
		err error
	}
	got := make(chan result, 1)
	go func() {
		s, err := a.Dispatch(t.Context(), at)
		got <- result{s, err}
	}()
	call := e.Accept(t)
	call.Headers()
	call.Emit(n)
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		r.s.Abort(ended)
	})
	for range n {
		if _, err := r.s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	return r.s, call
}

// all reads a stream to its end.
func all(s engine.Stream) (deltas []engine.Delta, raw []byte, err error) {
	for {
		d, err := s.Next()
		if err != nil {
			return deltas, raw, err
		}
		raw = append(raw, d.Raw...)
		d.Raw, d.Data = bytes.Clone(d.Raw), bytes.Clone(d.Data)
		deltas = append(deltas, d)
	}
}

func TestStreamIsPassedUnchanged(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		s, call := open(t, e, a, streamed("a1"), 0)
		// Line ends, comments, spacing and unknown fields of all kinds; several
		// events in one write, and one event in two.
		const text = ": ping\r\n\r\n" +
			"id: 7\ndata:{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n" +
			"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\u00fc\"},\"token_ids\":[5,6,7]}],\"x\":1}\n\n"
		call.Send(text)
		call.Send("data: {\"choices\":[{\"index\":0,\"de")
		call.Send("lta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n")
		end := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n"
		call.Send(end)
		call.End()
		deltas, raw, err := all(s)
		if err != io.EOF {
			t.Fatalf("end: %v", err)
		}
		want := text + "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n" + end
		if string(raw) != want {
			t.Errorf("bytes:\n%q\nwant\n%q", raw, want)
		}
		tokens, finish, usage := 0, "", wire.Usage{}
		for _, d := range deltas {
			tokens += d.Tokens
			if d.Finish != "" {
				finish = d.Finish
			}
			if d.UsageOnly {
				usage = d.Usage
			}
		}
		if tokens != 4 || finish != "stop" || usage.Prompt != 9 || !deltas[len(deltas)-1].Done {
			t.Errorf("tokens %d finish %q usage %+v last %+v", tokens, finish, usage, deltas[len(deltas)-1].Chunk)
		}
		if c := s.Abort(t.Context()); c.By != engine.ByCompletion {
			t.Errorf("abort after the end: %+v", c)
		}
		if _, err := s.Next(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestEndsOfStreams(t *testing.T) {
	finish := "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
	for _, c := range []struct {
		name string
		n    int
		end  func(*enginetest.Call)
		want error
	}{
		{"clean end without finish reason", 1, func(c *enginetest.Call) { c.End() }, io.ErrUnexpectedEOF},
		{"broken connection", 1, func(c *enginetest.Call) { c.Cut() }, io.ErrUnexpectedEOF},
		{"broken inside an event", 1, func(c *enginetest.Call) { c.Send("data: {\"choi"); c.Cut() }, io.ErrUnexpectedEOF},
		{"clean end inside an event", 1, func(c *enginetest.Call) { c.Send("data: {\"choi"); c.End() }, io.ErrUnexpectedEOF},
		{"finish reason without terminator", 1, func(c *enginetest.Call) { c.Send(finish); c.End() }, io.EOF},
		{"one finish reason of two", 2, func(c *enginetest.Call) { c.Send(finish); c.End() }, io.ErrUnexpectedEOF},
		{"both finish reasons", 2, func(c *enginetest.Call) { c.Send(finish + finish); c.End() }, io.EOF},
		{"terminator", 2, func(c *enginetest.Call) { c.Send(finish + "data: [DONE]\n\n"); c.End() }, io.EOF},
		{"terminator without blank line", 1, func(c *enginetest.Call) { c.Send(finish + "data: [DONE]"); c.End() }, io.EOF},
		{"terminator, connection kept", 1, func(c *enginetest.Call) { c.Send(finish + "data: [DONE]\n\n") }, io.EOF},
		{"terminator without finish reason", 1, func(c *enginetest.Call) { c.Send("data: [DONE]\n\n"); c.End() }, io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
				for _, interruptible := range []bool{true, false} {
					at := streamed("a")
					at.N, at.Interruptible = c.n, interruptible
					s, call := open(t, e, a, at, 1)
					c.end(call)
					if _, _, err := all(s); err != c.want {
						t.Errorf("interruptible %t: %v, want %v", interruptible, err, c.want)
					}
				}
			})
		})
	}
}

func TestErrorInsideStream(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		s, call := open(t, e, a, streamed("a"), 2)
		call.Fail(503, "the request queue is full")
		deltas, raw, err := all(s)
		if err != io.EOF || len(deltas) != 1 || deltas[0].Err == nil {
			t.Fatalf("%d deltas, %v", len(deltas), err)
		}
		if deltas[0].Err.Status != 503 || !strings.Contains(deltas[0].Err.Message, "queue is full") {
			t.Errorf("error %+v", deltas[0].Err)
		}
		if bytes.Contains(raw, []byte("[DONE]")) {
			t.Errorf("a failed attempt's terminator came through: %q", raw)
		}
		if c := s.Abort(t.Context()); c.By != engine.ByCompletion {
			t.Errorf("abort after the engine's own end: %+v", c)
		}
	})
}

func TestNamedErrorEvent(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		s, call := open(t, e, a, streamed("a"), 1)
		call.Send("event: error\ndata: {\"message\":\"out of memory\"}\n\n")
		d, err := s.Next()
		if err != nil || d.Err == nil || !strings.Contains(d.Err.Message, "out of memory") {
			t.Fatalf("%+v, %v", d.Chunk, err)
		}
	})
}

func TestDocumentInsteadOfStream(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		for _, c := range []struct {
			body  string
			check func(engine.Delta) bool
		}{
			{`{"object":"error","message":"bad rid","type":"BadRequestError","code":400}`,
				func(d engine.Delta) bool { return d.Err != nil && d.Err.Status == 400 }},
			{`{"error":{"message":"overloaded","code":503}}`,
				func(d engine.Delta) bool { return d.Err != nil && d.Err.Status == 503 }},
			{`{"choices":[{"index":0,"message":{"content":"all of it"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":12}}`,
				func(d engine.Delta) bool { return d.Err == nil && d.Finish == "stop" && d.Tokens == 12 && d.Content }},
		} {
			s, err := dispatch(t, e, a, streamed("a"), func(call *enginetest.Call) { call.Document(200, c.body) })
			if err != nil {
				t.Fatal(err)
			}
			deltas, raw, err := all(s)
			if err != io.EOF || len(deltas) != 1 || !c.check(deltas[0]) || string(raw) != c.body {
				t.Errorf("%s: %+v, %v", c.body, deltas, err)
			}
		}
	})
}

// dispatch lets the engine answer in its own way.
func dispatch(t *testing.T, e *enginetest.Engine, a engine.Adapter, at *engine.Attempt, answer func(*enginetest.Call)) (engine.Stream, error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer(e.Accept(t))
	}()
	s, err := a.Dispatch(t.Context(), at)
	<-done
	return s, err
}

func TestAnswerThatIsNotStreamed(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		at := &engine.Attempt{API: wire.Completions, Body: enginetest.Body(false), ID: "a"}
		s, err := dispatch(t, e, a, at, func(c *enginetest.Call) { c.Emit(5); c.Finish("stop") })
		if err != nil {
			t.Fatal(err)
		}
		deltas, _, err := all(s)
		if err != io.EOF || len(deltas) != 1 || deltas[0].Tokens != 5 || deltas[0].Finish != "stop" {
			t.Fatalf("%+v, %v", deltas, err)
		}
		if !bytes.Equal(deltas[0].Raw, deltas[0].Data) || !bytes.Contains(deltas[0].Raw, []byte(`"w1 w2 w3 w4 w5 "`)) {
			t.Errorf("raw %q", deltas[0].Raw)
		}
		if s.Abort(t.Context()).By != engine.ByCompletion {
			t.Error("an answer read to its end needs no confirmation")
		}
	})
}

func TestLimits(t *testing.T) {
	for _, kind := range engine.Kinds {
		e := enginetest.New(t, enginetest.Options{Kind: kind})
		cfg := e.Config()
		cfg.MaxEvent, cfg.MaxAnswer = 2048, 4096
		a := adapter(t, cfg)

		s, call := open(t, e, a, streamed("a"), 1)
		call.Send("data: " + strings.Repeat("x", 3000))
		if _, err := s.Next(); err == nil || !strings.Contains(err.Error(), "2048") {
			t.Errorf("%s: event: %v", kind, err)
		}
		at := &engine.Attempt{API: wire.Chat, Body: enginetest.Body(false)}
		s, err := dispatch(t, e, a, at, func(c *enginetest.Call) { c.Document(200, `{"a":"`+strings.Repeat("x", 5000)+`"}`) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(); err == nil || !strings.Contains(err.Error(), "max_answer_bytes 4096") {
			t.Errorf("%s: answer: %v", kind, err)
		}
		e.Answer("/v1/models", 200, strings.Repeat(" ", 9<<20))
		if _, err := a.Capabilities(t.Context()); err == nil || !strings.Contains(err.Error(), "8388608") {
			t.Errorf("%s: document: %v", kind, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		big := strings.Repeat("y", 100<<10)
		_, err := dispatch(t, e, a, streamed("a"), func(c *enginetest.Call) {
			c.Document(503, big, "Retry-After", "7", "Retry-After-Ms", "6500")
		})
		var refused *engine.StatusError
		if !errors.As(err, &refused) {
			t.Fatalf("%v", err)
		}
		if refused.Status != 503 || refused.Header.Get("Retry-After") != "7" || refused.Header.Get("Retry-After-Ms") != "6500" || len(refused.Body) != 64<<10 {
			t.Errorf("%d, %v, %d bytes", refused.Status, refused.Header, len(refused.Body))
		}
		if !strings.Contains(err.Error(), "503 Service Unavailable") {
			t.Errorf("error %q", err)
		}
		// A redirect is an answer, not an order.
		_, err = dispatch(t, e, a, streamed("b"), func(c *enginetest.Call) {
			c.Document(307, "", "Location", "http://elsewhere.test/v1/chat/completions")
		})
		if !errors.As(err, &refused) || refused.Status != 307 {
			t.Errorf("redirect: %v", err)
		}
	})
}

func TestWhatIsSent(t *testing.T) {
	for _, c := range []struct{ header, want string }{{"Authorization", "Bearer sk-secret-1"}, {"Api-Key", "sk-secret-1"}} {
		e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI})
		cfg := e.Config()
		cfg.APIKey, cfg.APIKeyHeader = identity.NewSecret("sk-secret-1"), c.header
		cfg.Headers = map[string]string{"X-Team": "search"}
		a := adapter(t, cfg)
		_, err := dispatch(t, e, a, streamed("attempt-9"), func(call *enginetest.Call) {
			want := http.Header{
				"Accept": {"text/event-stream"}, "Content-Type": {"application/json"}, "User-Agent": {"headgate"},
				"X-Request-Id": {"attempt-9"}, "X-Team": {"search"}, c.header: {c.want},
				"Connection": {"close"}, "Content-Length": {fmt.Sprint(len(call.Body))},
			}
			if fmt.Sprint(call.Header) != fmt.Sprint(want) {
				t.Errorf("headers %v, want %v", call.Header, want)
			}
			if !bytes.Equal(call.Body, enginetest.Body(true)) {
				t.Errorf("body %s", call.Body)
			}
			call.Document(400, "{}")
		})
		if err == nil {
			t.Error("no error")
		}
	}
}

func TestConnections(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		serve := func(interruptible bool) {
			at := streamed("a")
			at.Interruptible = interruptible
			s, call := open(t, e, a, at, 1)
			call.Finish("stop")
			if _, _, err := all(s); err != io.EOF {
				t.Fatal(err)
			}
		}
		serve(false)
		serve(false)
		serve(false)
		if n := e.Dialed(); n != 1 {
			t.Errorf("%d connections for three attempts in a row, want 1", n)
		}
		serve(true)
		serve(true)
		if n := e.Dialed(); n != 3 {
			t.Errorf("%d connections, want two more for two interruptible attempts", n)
		}
	})
}

func TestCancelEndsAttempt(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var s engine.Stream
		var err error
		done := make(chan *enginetest.Call)
		go func() {
			call := e.Accept(t)
			call.Emit(1)
			done <- call
		}()
		if s, err = a.Dispatch(ctx, streamed("a")); err != nil {
			t.Fatal(err)
		}
		call := <-done
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		reason := errors.New("nothing came for a minute")
		next := make(chan error)
		go func() {
			_, err := s.Next()
			next <- err
		}()
		cancel(reason)
		if err := <-next; err != reason {
			t.Errorf("next: %v", err)
		}
		<-call.Gone()
		if c := s.Abort(t.Context()); c.By == engine.Unconfirmed || c.By == engine.ByCompletion {
			t.Errorf("confirmation %+v", c)
		}
	})
}

func TestAbortUnblocksNext(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		s, call := open(t, e, a, streamed("a"), 1)
		next := make(chan error)
		go func() {
			_, err := s.Next()
			next <- err
		}()
		c := s.Abort(t.Context())
		if err := <-next; err != engine.ErrAborted {
			t.Errorf("next: %v", err)
		}
		<-call.Gone()
		if c.By == engine.Unconfirmed || e.Running() != 0 {
			t.Errorf("%+v with %d running", c, e.Running())
		}
		if again := s.Abort(t.Context()); again.By != c.By {
			t.Errorf("again %+v, first %+v", again, c)
		}
	})
}

// What an engine still sent must not be taken for the end of a completion.
func TestAbortedEndIsNotRelayed(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		s, call := open(t, e, a, streamed("a"), 1)
		call.Finish("abort")
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		s.Abort(gone)
		if d, err := s.Next(); err != engine.ErrAborted {
			t.Errorf("%q, %v", d.Raw, err)
		}
	})
}

func TestUnanswered(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error)
		go func() {
			_, err := a.Dispatch(ctx, streamed("a"))
			got <- err
		}()
		call := e.Accept(t)
		reason := errors.New("client left")
		cancel(reason)
		err := <-got
		var u *engine.Unanswered
		if !errors.As(err, &u) || !errors.Is(err, reason) {
			t.Fatalf("%v", err)
		}
		<-call.Gone()
		if c := u.Confirm(t.Context()); c.By == engine.Unconfirmed || c.By == engine.ByCompletion {
			t.Errorf("%+v", c)
		}
	})
}

func TestNothingSentIsNotUnanswered(t *testing.T) {
	each(t, func(t *testing.T, e *enginetest.Engine, a engine.Adapter) {
		e.Close()
		_, err := a.Dispatch(t.Context(), streamed("a"))
		var u *engine.Unanswered
		if err == nil || errors.As(err, &u) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v", err)
		}
		if o := a.Observe(t.Context()); o.State != engine.Down || o.Err == nil || o.Running != -1 {
			t.Errorf("%+v", o)
		}
		if _, err := a.Capabilities(t.Context()); err == nil {
			t.Error("capabilities of a dead engine")
		}
	})
}

func TestUnknownKind(t *testing.T) {
	if _, err := adapters.New("tgi", engine.Config{URL: "http://h"}); err == nil || !strings.Contains(err.Error(), `"tgi"`) {
		t.Error(err)
	}
	if !slices.Equal(engine.Kinds, []engine.Kind{engine.VLLM, engine.SGLang, engine.LlamaCpp, engine.OpenAI}) {
		t.Error("every kind has its adapter here")
	}
}
