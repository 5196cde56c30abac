package llamacpp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

func start(t *testing.T, opts enginetest.Options) (*enginetest.Engine, *Adapter) {
	t.Helper()
	opts.Kind = engine.LlamaCpp
	e := enginetest.New(t, opts)
	a, err := New(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return e, a
}

var attempt = engine.Attempt{API: wire.Chat, Body: enginetest.Body(true), ID: "a", Stream: true, Interruptible: true}

// open has a slot run an attempt that has sent n tokens.
func open(t *testing.T, e *enginetest.Engine, a *Adapter, n int) (engine.Stream, *enginetest.Call) {
	t.Helper()
	calls := make(chan *enginetest.Call)
	go func() {
		call := e.Accept(t)
		call.Start()
		call.Headers()
		if n > 0 {
			call.Emit(n)
		}
		calls <- call
	}()
	s, err := a.Dispatch(t.Context(), &attempt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		s.Abort(over)
	})
	for range n {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	return s, <-calls
}

// deferOne leaves an attempt waiting inside the engine.
func deferOne(t *testing.T, e *enginetest.Engine, a *Adapter) (call *enginetest.Call, leave context.CancelFunc, left <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := a.Dispatch(ctx, &attempt)
		got <- err
	}()
	return e.Accept(t), cancel, got
}

func TestObserve(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*enginetest.Engine)
		want   engine.Observation
		err    string
	}{
		{"all there is", func(*enginetest.Engine) {},
			engine.Observation{State: engine.Ready, Running: 1, Waiting: 1, KVUsed: 10, KVTotal: 4096, Progress: 0, Preemptions: -1}, ""},
		{"started without --metrics", func(e *enginetest.Engine) { e.Answer("/metrics", 501, "") },
			engine.Observation{State: engine.Ready, Running: 1, Waiting: 0, KVUsed: 10, KVTotal: 4096, Progress: -1, Preemptions: -1}, ""},
		{"started with --no-slots", func(e *enginetest.Engine) { e.Answer("/slots", 501, "") },
			engine.Observation{State: engine.Ready, Running: 1, Waiting: 1, KVUsed: -1, KVTotal: -1, Progress: 0, Preemptions: -1}, ""},
		{"neither", func(e *enginetest.Engine) { e.Answer("/slots", 403, ""); e.Answer("/metrics", 404, "") },
			engine.Observation{State: engine.Ready, Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}, ""},
		{"loading", func(e *enginetest.Engine) { e.Answer("/health", 503, `{"error":{"code":503}}`) },
			engine.Observation{State: engine.Loading, Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}, ""},
		{"broken health", func(e *enginetest.Engine) { e.Answer("/health", 500, "") },
			engine.Observation{State: engine.Unknown, Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}, "/health: status 500"},
		{"broken slots", func(e *enginetest.Engine) { e.Answer("/slots", 200, "{}") },
			engine.Observation{State: engine.Ready, Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}, "slots: want an array"},
		{"slots that fail", func(e *enginetest.Engine) { e.Answer("/slots", 500, "") },
			engine.Observation{State: engine.Ready, Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}, "/slots: status 500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, a := start(t, enginetest.Options{})
			open(t, e, a, 1)
			_, leave, left := deferOne(t, e, a)
			defer func() { leave(); <-left }()
			c.change(e)
			o := a.Observe(t.Context())
			if (o.Err == nil) != (c.err == "") || c.err != "" && !strings.Contains(o.Err.Error(), c.err) {
				t.Error(o.Err)
			}
			ignored := []string{"Asked", "At", "Err"}
			if c.want.Progress >= 0 {
				ignored = append(ignored, "Progress")
			}
			if d := cmp.Diff(c.want, o, cmpopts.IgnoreFields(engine.Observation{}, ignored...)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCapabilities(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	want := engine.Capabilities{
		Kind: engine.LlamaCpp, Version: "b10573-test", Models: []engine.Model{{ID: "test-model", MaxContext: 4096}},
		Slots: 4, KVTokens: 4096, BlockSize: 1, MaxContext: 4096, PrefixCache: true, TokenIDs: true, ChatTokenIDs: true, TellsStart: true, Fatal: true,
		TextCompletions: true, FinalMessage: engine.FinalTurn,
	}
	got, err := a.Capabilities(t.Context())
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	// Without /slots the same is in /props.
	e.Answer("/slots", 501, "")
	got, err = a.Capabilities(t.Context())
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	// With neither there is only the model list.
	e.Answer("/props", 404, "")
	got, err = a.Capabilities(t.Context())
	want.Slots, want.KVTokens, want.Fatal, want.ChatTokenIDs, want.Version = 0, 0, false, false, ""
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	e.Answer("/slots", 500, "")
	if _, err := a.Capabilities(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestSlots(t *testing.T) {
	for _, c := range []struct {
		text string
		want slots
		pool pool
		ok   bool
	}{
		{`[]`, slots{}, pool{}, true},
		{`[{"id":0,"n_ctx":2048,"is_processing":true,"n_prompt_tokens":2048},{"id":1,"n_ctx":2048,"is_processing":false,"n_prompt_tokens":500}]`,
			slots{total: 2, processing: 1, context: 2048, kvUsed: 2048}, pool{2048, true}, true},
		{`[{"n_ctx":2048,"is_processing":true},{"n_ctx":1024}]`, slots{total: 2, processing: 1, context: 1024, kvUsed: -1}, pool{1024, true}, true},
		{`[{"n_ctx":2048,"is_processing":false}]`, slots{total: 1, context: 2048}, pool{2048, false}, true},
		{`[{"n_ctx":-5,"is_processing":"yes","n_prompt_tokens":1e99},7,null]`, slots{total: 3}, pool{}, true},
		{`{"error":{}}`, slots{}, pool{}, false},
		{`[{]`, slots{}, pool{}, false},
		{``, slots{}, pool{}, false},
	} {
		got, err := parseSlots([]byte(c.text))
		if got != c.want || (err == nil) != c.ok || got.pool() != c.pool {
			t.Errorf("%s: %+v %+v, %v", c.text, got, got.pool(), err)
		}
	}
}

func TestMetrics(t *testing.T) {
	for _, c := range []struct {
		text string
		want metrics
	}{
		{"", noMetrics},
		{"llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\nllamacpp:prompt_tokens_total 10\nllamacpp:prompt_tokens_cached_total 99\nllamacpp:tokens_predicted_total 5\n", metrics{3, 2, 15}},
		{"llamacpp:requests_processing NaN\nllamacpp:tokens_predicted_total 5\n", metrics{-1, -1, 5}},
	} {
		got, err := parseMetrics([]byte(c.text))
		if err != nil || got != c.want {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
}

func FuzzSlots(f *testing.F) {
	f.Add([]byte(`[{"id":0,"n_ctx":2048,"is_processing":true,"n_prompt_tokens":2048}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseSlots(body)
		if err != nil {
			return
		}
		p := s.pool()
		if s.processing < 0 || s.processing > s.total || s.context < 0 || s.kvUsed < -1 || p.tokens < 0 || p.unified && s.total < 2 {
			t.Errorf("%+v %+v", s, p)
		}
	})
}

func FuzzMetrics(f *testing.F) {
	f.Add([]byte("llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := parseMetrics(body)
		if err == nil && (m.processing < -1 || m.deferred < -1 || m.progress < -1) {
			t.Errorf("%+v", m)
		}
	})
}

func TestTiming(t *testing.T) {
	for _, c := range []struct {
		data string
		want *engine.Timing
	}{
		{`{}`, nil}, {`{"timings":{"prompt_ms":"x"}}`, nil},
		{`{"timings":{"prompt_ms":12.5,"predicted_ms":100}}`, &engine.Timing{Queue: -1, Prefill: 12500 * time.Microsecond}},
	} {
		if d := cmp.Diff(c.want, timing([]byte(c.data))); d != "" {
			t.Error(c.data, d)
		}
	}
}

func TestAbortSeesTheSlot(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	s, call := open(t, e, a, 1)
	open(t, e, a, 1)
	metrics := e.Scrapes("/metrics")
	if c := s.Abort(t.Context()); c.By != engine.BySlot {
		t.Errorf("%+v", c)
	}
	<-call.Gone()
	if e.Running() != 1 {
		t.Errorf("%d running", e.Running())
	}
	// Its averages are since the last scrape of anybody.
	if e.Scrapes("/metrics") != metrics {
		t.Error("the metrics were scraped without need")
	}
}

// A slot that is in its prompt goes on until that is through.
func TestAbortDuringPrompt(t *testing.T) {
	e, a := start(t, enginetest.Options{Ghosts: true})
	s, call := open(t, e, a, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c := s.Abort(ctx); c.By != engine.Unconfirmed {
		t.Errorf("%+v", c)
	}
	<-call.Gone()
	call.Free()
	if c := s.Abort(t.Context()); c.By != engine.BySlot {
		t.Errorf("%+v", c)
	}
}

// A deferred request whose client left stays deferred.
func TestCancelWhileDeferred(t *testing.T) {
	for _, exported := range []bool{true, false} {
		e, a := start(t, enginetest.Options{Slots: 1, Ghosts: true})
		if !exported {
			e.Answer("/metrics", 501, "")
		}
		s, running := open(t, e, a, 1)
		call, leave, left := deferOne(t, e, a)
		a.Observe(t.Context())
		leave()
		var u *engine.Unanswered
		if err := <-left; !errors.As(err, &u) {
			t.Fatal(err)
		}
		<-call.Gone()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if c := u.Confirm(ctx); c.By != engine.Unconfirmed {
			t.Errorf("metrics %t: %+v while it is deferred", exported, c)
		}
		cancel()
		call.Free()
		running.Finish("stop")
		for {
			if _, err := s.Next(); err != nil {
				break
			}
		}
		if c := u.Confirm(t.Context()); c.By != engine.BySlot {
			t.Errorf("metrics %t: %+v", exported, c)
		}
	}
}
