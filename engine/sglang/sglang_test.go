package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

func start(t *testing.T, opts enginetest.Options) (*enginetest.Engine, *Adapter) {
	t.Helper()
	opts.Kind = engine.SGLang
	e := enginetest.New(t, opts)
	return e, adapter(t, e.Config())
}

func adapter(t *testing.T, cfg engine.Config) *Adapter {
	t.Helper()
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func streamed(id string) *engine.Attempt {
	return &engine.Attempt{API: wire.Chat, Body: enginetest.Body(true), ID: id, Stream: true, Interruptible: true}
}

// open has the engine run an attempt that has sent n tokens.
func open(ctx context.Context, t *testing.T, e *enginetest.Engine, a *Adapter, id string, n int) (engine.Stream, *enginetest.Call) {
	t.Helper()
	calls := make(chan *enginetest.Call, 1)
	go func() {
		call := e.Accept(t)
		call.Emit(n)
		calls <- call
	}()
	s, err := a.Dispatch(ctx, streamed(id))
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	return s, <-calls
}

// within waits for a confirmation as long as d.
func within(t *testing.T, d time.Duration, confirm func(context.Context) engine.Confirmation) engine.ConfirmedBy {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return confirm(ctx).By
}

func ridOf(t *testing.T, body []byte) string {
	t.Helper()
	var b struct{ Rid string }
	if err := json.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	return b.Rid
}

// An engine that forgets what was disconnected can be told of an abort before
// only: had it been closed first, the attempt would run on.
func TestAbortComesBeforeTheClose(t *testing.T) {
	reason := errors.New("given up")
	for name, end := range map[string]func(t *testing.T, cancel context.CancelCauseFunc, s engine.Stream) engine.ConfirmedBy{
		"abort": func(t *testing.T, _ context.CancelCauseFunc, s engine.Stream) engine.ConfirmedBy {
			return within(t, time.Minute, s.Abort)
		},
		"cancelled while Next waits": func(t *testing.T, cancel context.CancelCauseFunc, s engine.Stream) engine.ConfirmedBy {
			next := make(chan error)
			go func() {
				_, err := s.Next()
				next <- err
			}()
			synctest.Wait()
			cancel(reason)
			if err := <-next; err != reason {
				t.Errorf("next: %v", err)
			}
			return within(t, time.Minute, s.Abort)
		},
		"cancelled while nobody waits": func(t *testing.T, cancel context.CancelCauseFunc, s engine.Stream) engine.ConfirmedBy {
			cancel(reason)
			synctest.Wait()
			if _, err := s.Next(); err != reason {
				t.Errorf("next: %v", err)
			}
			return within(t, time.Minute, s.Abort)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, a := start(t, enginetest.Options{Forgets: true})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s, call := open(ctx, t, e, a, "a", 2)
				other, _ := open(t.Context(), t, e, a, "b", 1)
				began := time.Now()
				if by := end(t, cancel, s); by != engine.ByProgress || call.Held() {
					t.Errorf("by %q, held %t", by, call.Held())
				}
				<-call.Gone()
				if took := time.Since(began); took > time.Second {
					t.Errorf("after %s: not the disconnect's doing", took)
				}
				if got := e.Aborts(); len(got) != 1 || got[0] != ridOf(t, call.Body) {
					t.Errorf("aborts %q of %q", got, ridOf(t, call.Body))
				}
				if e.Running() != 1 {
					t.Errorf("%d running, want the other", e.Running())
				}
				within(t, time.Minute, other.Abort)
			})
		})
	}
}

func TestUnansweredIsAbortedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Forgets: true})
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error)
		go func() {
			_, err := a.Dispatch(ctx, streamed("a"))
			got <- err
		}()
		call := e.Accept(t)
		reason := errors.New("client left")
		cancel(reason)
		var u *engine.Unanswered
		if err := <-got; !errors.As(err, &u) || !errors.Is(err, reason) {
			t.Fatal(err)
		}
		// Nothing but an empty engine tells about what was in no count, after the grace.
		if by := within(t, time.Minute, u.Confirm); by != engine.ByProgress && by != engine.ByGrace {
			t.Errorf("by %q", by)
		}
		<-call.Gone()
		if call.Held() || len(e.Aborts()) != 1 {
			t.Errorf("held %t, aborts %q", call.Held(), e.Aborts())
		}
	})
}

// An attempt whose context ends with its answer is aborted like any other.
func TestCancelledWithItsAnswer(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			e, a := start(t, enginetest.Options{Forgets: true})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				call := e.Accept(t)
				go cancel()
				call.Emit(1)
			}()
			var confirm func(context.Context) engine.Confirmation
			s, err := a.Dispatch(ctx, streamed("a"))
			var u *engine.Unanswered
			switch {
			case err == nil:
				confirm = s.Abort
			case errors.As(err, &u):
				confirm = u.Confirm
			default:
				t.Fatal(err)
			}
			if by := within(t, time.Minute, confirm); by == engine.Unconfirmed || e.Running() != 0 || len(e.Aborts()) != 1 {
				t.Errorf("by %q, %d running, aborts %q", by, e.Running(), e.Aborts())
			}
		})
	}
}

// An engine that does not answer the abort holds up nobody, and the connection no
// longer than scrape_timeout.
func TestAbortThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(t, enginetest.Options{Kind: engine.SGLang})
		cfg := e.Config()
		var dialed atomic.Int32
		dial := cfg.DialContext
		cfg.ScrapeTimeout = 2 * time.Second
		cfg.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dialed.Add(1) == 2 {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return dial(ctx, network, addr)
		}
		a := adapter(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		s, call := open(ctx, t, e, a, "a", 1)
		began := time.Now()
		cancel()
		if _, err := s.Next(); err != context.Canceled || time.Since(began) != 0 {
			t.Errorf("next: %v after %s", err, time.Since(began))
		}
		if by := within(t, time.Second, s.Abort); by != engine.Unconfirmed || time.Since(began) != time.Second {
			t.Errorf("by %q after %s, while the connection is open", by, time.Since(began))
		}
		<-call.Gone()
		if time.Since(began) != cfg.ScrapeTimeout {
			t.Errorf("closed after %s", time.Since(began))
		}
		if by := within(t, time.Minute, s.Abort); by != engine.ByProgress {
			t.Errorf("by %q once the disconnect was noticed", by)
		}
		if o := a.Observe(t.Context()); o.Err == nil || !strings.Contains(o.Err.Error(), "/abort_request") {
			t.Errorf("observation: %v", o.Err)
		}
	})
}

// The abort is answered 200 and does nothing: the attempt is a ghost until the
// load shows it gone, also when another one starts in its place.
func TestAnswerToAbortProvesNothing(t *testing.T) {
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e, a := start(t, enginetest.Options{Ghosts: true})
			s, call := open(t.Context(), t, e, a, "a", 2)
			if !alone {
				open(t.Context(), t, e, a, "b", 1)
			}
			if by := within(t, time.Minute, s.Abort); by != engine.Unconfirmed || !call.Held() {
				t.Errorf("alone %t: by %q of a ghost", alone, by)
			}
			if len(e.Aborts()) != 1 {
				t.Errorf("aborts %q", e.Aborts())
			}
			call.Free()
			if by := within(t, time.Minute, s.Abort); by != engine.ByProgress {
				t.Errorf("alone %t: by %q after the end", alone, by)
			}
		})
	}
}

// The known fault: the abort isn't taken, and the engine forgets the disconnected.
func TestForgottenIsAGhost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Forgets: true})
		e.Answer("/abort_request", 401, `{"error":"Unauthorized"}`)
		s, call := open(t.Context(), t, e, a, "a", 2)
		if by := within(t, time.Minute, s.Abort); by != engine.Unconfirmed {
			t.Errorf("by %q of a ghost", by)
		}
		o := a.Observe(t.Context())
		if o.State != engine.Ready || o.Running != 1 || o.Err == nil || !strings.Contains(o.Err.Error(), "status 401") {
			t.Errorf("%+v", o)
		}
		call.Free()
		e.Answer("/abort_request", 0, "")
		if by := within(t, time.Minute, s.Abort); by != engine.ByProgress {
			t.Errorf("by %q after the end", by)
		}
		s, _ = open(t.Context(), t, e, a, "b", 1)
		within(t, time.Minute, s.Abort)
		if o := a.Observe(t.Context()); o.Err != nil {
			t.Errorf("after an abort that was taken: %v", o.Err)
		}
	})
}

func loads(running, waiting, pieces, used int) string {
	return fmt.Sprintf(`{"timestamp":"x","loads":[{"dp_rank":0,"num_running_reqs":%d,"num_waiting_reqs":%d,"num_waiting_uncached_tokens":%d,`+
		`"num_used_tokens":%d,"max_total_num_tokens":1000}]}`, running, waiting, pieces, used)
}

// A snapshot of a prefill has a new attempt in no count, and the answer to it
// comes before the next snapshot: it must not make room for a ghost.
func TestNewAttemptDoesNotHideAGhost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Ghosts: true})
		e.Answer("/v1/loads", 200, loads(1, 0, 0, 10))
		s, _ := open(t.Context(), t, e, a, "a", 1)
		if by := within(t, time.Second, s.Abort); by != engine.Unconfirmed {
			t.Errorf("unchanged: by %q", by)
		}
		open(t.Context(), t, e, a, "b", 1)
		e.Answer("/v1/loads", 200, loads(1, 0, 0, 20)) // of the new one's prefill
		if by := within(t, time.Second, s.Abort); by != engine.Unconfirmed {
			t.Errorf("in the prefill of another: by %q", by)
		}
		e.Answer("/v1/loads", 200, loads(2, 0, 0, 30))
		if by := within(t, time.Second, s.Abort); by != engine.Unconfirmed {
			t.Errorf("both: by %q", by)
		}
		e.Answer("/v1/loads", 200, loads(1, 0, 0, 35))
		if by := within(t, time.Second, s.Abort); by != engine.ByProgress {
			t.Errorf("one is gone: by %q", by)
		}
	})
}

// Tokens in use are somebody's who is in no count, and a snapshot that stands
// says nothing, for however long.
func TestNoEvidence(t *testing.T) {
	for name, doc := range map[string]string{
		"a prefill": loads(0, 0, 0, 50), "a prompt in pieces": loads(0, 0, 9, 50), "stands still": loads(1, 0, 0, 50),
	} {
		synctest.Test(t, func(t *testing.T) {
			e, a := start(t, enginetest.Options{Ghosts: true})
			e.Answer("/v1/loads", 200, doc)
			s, _ := open(t.Context(), t, e, a, "a", 1)
			if by := within(t, time.Minute, s.Abort); by != engine.Unconfirmed {
				t.Errorf("%s: by %q", name, by)
			}
			e.Answer("/v1/loads", 200, loads(0, 0, 0, 0))
			if by := within(t, time.Second, s.Abort); by != engine.ByProgress {
				t.Errorf("%s: by %q of an empty engine", name, by)
			}
		})
	}
}

// What is in its prefill is in neither count: it takes two snapshots to tell, and
// none while a prompt is computed in pieces.
func TestInItsPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Ghosts: true})
		e.Answer("/v1/loads", 200, loads(1, 0, 0, 10))
		open(t.Context(), t, e, a, "a", 1)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		go func() {
			_, err := a.Dispatch(ctx, streamed("b"))
			got <- err
		}()
		e.Accept(t)
		cancel()
		var u *engine.Unanswered
		if err := <-got; !errors.As(err, &u) {
			t.Fatal(err)
		}
		for i, c := range []struct {
			doc  string
			want engine.ConfirmedBy
		}{
			{loads(1, 0, 0, 10), ""},
			{loads(1, 0, 9, 20), ""}, // in pieces
			{loads(1, 0, 5, 30), ""},
			{loads(1, 0, 1, 40), ""},
			{loads(1, 0, 0, 50), ""}, // the last of them
			{loads(2, 0, 0, 60), ""}, // the batch has it
			{loads(1, 0, 0, 70), ""},
			{loads(1, 0, 0, 80), engine.ByProgress},
		} {
			e.Answer("/v1/loads", 200, c.doc)
			if by := within(t, 2*time.Second, u.Confirm); by != c.want {
				t.Errorf("%d: by %q, want %q", i, by, c.want)
			}
		}
	})
}

// A prefill is somebody's, also when its tokens grow.
func TestTokensInUseAreSomebodys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Ghosts: true})
		s, _ := open(t.Context(), t, e, a, "a", 1)
		for i := range 4 {
			e.Answer("/v1/loads", 200, loads(0, 0, 0, 10+i))
			if by := within(t, time.Second, s.Abort); by != engine.Unconfirmed {
				t.Errorf("%d: by %q", i, by)
			}
		}
	})
}

// Another client's request is no attempt that is still there.
func TestForeignLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Ghosts: true})
		s, _ := open(t.Context(), t, e, a, "a", 1)
		for i := range 3 {
			e.Answer("/v1/loads", 200, loads(2, 0, 0, 10+i))
			a.Observe(t.Context())
			time.Sleep(time.Second)
		}
		if by := within(t, time.Second, s.Abort); by != engine.Unconfirmed {
			t.Errorf("by %q", by)
		}
		e.Answer("/v1/loads", 200, loads(1, 0, 0, 40))
		if by := within(t, time.Second, s.Abort); by != engine.ByProgress {
			t.Errorf("by %q with another's request left", by)
		}
	})
}

// An own attempt that ended after a snapshot was written is not foreign.
func TestEndedSinceIsNotForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{Ghosts: true})
		ended, call := open(t.Context(), t, e, a, "a", 1)
		ghost, _ := open(t.Context(), t, e, a, "b", 1)
		for i := range 4 {
			e.Answer("/v1/loads", 200, loads(2, 0, 0, 10+i/2))
			a.Observe(t.Context())
			if i == 2 {
				call.Finish("stop")
				for _, err := ended.Next(); err == nil; {
					_, err = ended.Next()
				}
				e.Answer("/v1/loads", 200, loads(2, 0, 0, 12))
				a.Observe(t.Context())
			}
			time.Sleep(time.Second)
		}
		e.Answer("/v1/loads", 200, loads(1, 0, 0, 20))
		go func() {
			time.Sleep(time.Second)
			e.Answer("/v1/loads", 200, loads(1, 0, 0, 21))
		}()
		if by := within(t, 5*time.Second, ghost.Abort); by != engine.Unconfirmed {
			t.Errorf("by %q of a ghost", by)
		}
	})
}

func TestNothingExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, a := start(t, enginetest.Options{})
		e.Answer("/v1/loads", 404, "")
		e.Answer("/metrics", 404, "")
		s, _ := open(t.Context(), t, e, a, "a", 1)
		began := time.Now()
		if by := within(t, time.Minute, s.Abort); by != engine.ByGrace || time.Since(began) < 2*time.Second {
			t.Errorf("by %q after %s", by, time.Since(began))
		}
		if o := a.Observe(t.Context()); o.State != engine.Ready || o.Running != -1 || o.Err == nil {
			t.Errorf("%+v", o)
		}
	})
}

func TestObserve(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	const metrics = "sglang:num_running_reqs{tp_rank=\"0\"} 3.0\nsglang:num_queue_reqs{tp_rank=\"0\"} 2.0\n" +
		"sglang:num_queue_reqs{priority=\"1\",tp_rank=\"0\"} 2.0\nsglang:num_used_tokens{tp_rank=\"0\"} 70.0\nsglang:max_total_num_tokens{tp_rank=\"0\"} 900.0\n"
	none := engine.Observation{Running: -1, Waiting: -1, KVUsed: -1, KVTotal: -1, Progress: -1, Preemptions: -1}
	with := func(change func(*engine.Observation)) engine.Observation {
		o := none
		change(&o)
		return o
	}
	for _, c := range []struct {
		name    string
		answers map[string]string // status, space, body
		want    engine.Observation
		err     string
	}{
		{"loads", map[string]string{"/v1/loads": "200 " + loads(3, 1, 7, 60)}, with(func(o *engine.Observation) {
			o.State, o.Running, o.Waiting, o.KVUsed, o.KVTotal = engine.Ready, 3, 1, 60, 1000
		}), ""},
		{"ranks", map[string]string{"/v1/loads": `200 {"loads":[{"num_running_reqs":1,"num_waiting_reqs":2,"num_used_tokens":3,"max_total_num_tokens":4},` +
			`{"num_running_reqs":10,"num_waiting_reqs":20,"num_used_tokens":30,"max_total_num_tokens":40}]}`}, with(func(o *engine.Observation) {
			o.State, o.Running, o.Waiting, o.KVUsed, o.KVTotal = engine.Ready, 11, 22, 33, 44
		}), ""},
		{"a part", map[string]string{"/v1/loads": `200 {"loads":[{"num_running_reqs":1}]}`}, with(func(o *engine.Observation) {
			o.State, o.Running = engine.Ready, 1
		}), "lacks waiting, used tokens, total tokens"},
		{"metrics", map[string]string{"/v1/loads": "404 ", "/metrics": "200 " + metrics}, with(func(o *engine.Observation) {
			o.State, o.Running, o.Waiting, o.KVUsed, o.KVTotal = engine.Ready, 3, 2, 70, 900
		}), ""},
		{"loading", map[string]string{"/v1/loads": "503 "}, with(func(o *engine.Observation) { o.State = engine.Loading }), "status 503"},
		{"refused", map[string]string{"/v1/loads": "401 "}, none, "status 401"},
		{"no loads", map[string]string{"/v1/loads": `200 {"loads":[]}`}, none, "array loads"},
	} {
		for path, answer := range c.answers {
			status, body, _ := strings.Cut(answer, " ")
			var n int
			_, _ = fmt.Sscan(status, &n)
			e.Answer(path, n, body)
		}
		o := a.Observe(t.Context())
		if d := cmp.Diff(c.want, o, cmpopts.IgnoreFields(engine.Observation{}, "Asked", "At", "Progress", "Err")); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if fmt.Sprint(o.Err) != "<nil>" != (c.err != "") || c.err != "" && !strings.Contains(o.Err.Error(), c.err) {
			t.Errorf("%s: %v", c.name, o.Err)
		}
	}
	if e.Scrapes("/health") != 0 {
		t.Error("/health makes an idle engine generate")
	}
}

func TestCapabilities(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	want := engine.Capabilities{
		Kind: engine.SGLang, Version: "0.5.18", Models: []engine.Model{{ID: "test-model", MaxContext: 4096}}, Slots: 4, KVTokens: 16384,
		BlockSize: 16, MaxContext: 4096, PrefixCache: true, TokenIDs: true, MinTokens: true, StepAborts: true, TextCompletions: true, FinalMessage: engine.FinalFlags,
	}
	c, err := a.Capabilities(t.Context())
	if d := cmp.Diff(want, c); d != "" || err != nil {
		t.Error(err, d)
	}
	// The former name, two ranks, priorities.
	e.Answer("/server_info", 404, "")
	e.Answer("/get_server_info", 200, `{"version":"0.5.2","dp_size":2,"page_size":1,"context_length":2048,"max_total_num_tokens":500,"max_running_requests":7,`+
		`"enable_priority_scheduling":true,"disable_radix_cache":true,"internal_states":[{},{}]}`)
	e.Answer("/v1/models", 200, `{"data":[{"id":"m"}]}`)
	want = engine.Capabilities{
		Kind: engine.SGLang, Version: "0.5.2", Models: []engine.Model{{ID: "m"}}, Slots: 7, KVTokens: 1000, BlockSize: 1, MaxContext: 2048,
		Priority: true, TokenIDs: true, MinTokens: true, StepAborts: true, TextCompletions: true, FinalMessage: engine.FinalFlags,
	}
	c, err = a.Capabilities(t.Context())
	if d := cmp.Diff(want, c); d != "" || err != nil {
		t.Error(err, d)
	}
	e.Answer("/get_server_info", 200, "[]")
	if _, err := a.Capabilities(t.Context()); err == nil || !strings.Contains(err.Error(), "want an object") {
		t.Error(err)
	}
}

func TestBody(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	const ids = `,"return_token_ids":true}`
	for _, c := range []struct {
		name, body, want string
		lowFirst, ids    bool
		api              wire.API
	}{
		{"id", `{"model":"m"}`, `{"model":"m","rid":"RID"}`, false, false, wire.Chat},
		{"white space", "{\"model\":\"m\" }\n", "{\"model\":\"m\" ,\"rid\":\"RID\"}\n", false, false, wire.Chat},
		{"a client's own id", `{"rid":"x","model":"m"}`, `{"rid":"x","model":"m","rid":"RID"}`, false, false, wire.Chat},
		{"higher first", `{"model":"m","priority":7,"x":1}`, `{"model":"m","priority":-7,"x":1,"rid":"RID"}`, false, false, wire.Chat},
		{"higher first, below 0", `{"priority":-7,"model":"m"}`, `{"priority":7,"model":"m","rid":"RID"}`, false, false, wire.Chat},
		{"higher first, escaped", `{"prior\u0069ty":7,"model":"m"}`, `{"prior\u0069ty":-7,"model":"m","rid":"RID"}`, false, false, wire.Chat},
		{"lower first", `{"priority":7,"model":"m"}`, `{"priority":7,"model":"m","rid":"RID"}`, true, false, wire.Chat},
		{"ids of a chat", `{"user":",\"return_token_ids\":true"` + ids, `{"user":",\"return_token_ids\":true","rid":"RID"}`, false, true, wire.Chat},
		{"ids of a completion", `{"prompt":"x"` + ids, `{"prompt":"x","return_token_ids":true,"rid":"RID"}`, false, true, wire.Completions},
	} {
		info := fmt.Sprintf(`{"schedule_low_priority_values_first":%t}`, c.lowFirst)
		e.Answer("/server_info", 200, info)
		if _, err := a.Capabilities(t.Context()); err != nil {
			t.Fatal(err)
		}
		at := &engine.Attempt{API: c.api, Body: []byte(c.body), Stream: true, TokenIDs: c.ids}
		if got := string(a.body(at, "RID")); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		if string(at.Body) != c.body {
			t.Errorf("%s: the attempt's own body was written to: %s", c.name, at.Body)
		}
	}
}

func TestIDs(t *testing.T) {
	_, a := start(t, enginetest.Options{})
	_, b := start(t, enginetest.Options{})
	seen := map[string]bool{}
	for _, x := range []*Adapter{a, b} {
		for _, id := range []string{"r", "r-1", "r-10", "r-100"} {
			rid := x.rid(&engine.Attempt{ID: id})
			if len(rid) != 32 || strings.Trim(rid, "0123456789abcdef") != "" || seen[rid] {
				t.Errorf("%q of %q", rid, id)
			}
			if rid != x.rid(&engine.Attempt{ID: id}) {
				t.Errorf("%q has two ids", id)
			}
			seen[rid] = true
		}
	}
}

// A stream as SGLang's completions are, with ids: its prompt's in the first choice.
func TestTokenIDs(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	go func() {
		call := e.Accept(t)
		call.Send(`data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[5],"prompt_token_ids":[1,2,3]}],"usage":null}` + "\n\n" +
			`data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":" b","finish_reason":null,"token_ids":[6],"prompt_token_ids":null}],"usage":null}` + "\n\n")
		call.Fail(503, "The request queue is full.")
	}()
	req, err := wire.Parse(wire.Completions, []byte(`{"model":"test-model","prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	s, err2 := a.Dispatch(t.Context(), &engine.Attempt{API: wire.Completions, Body: req.Body, Stream: true, TokenIDs: true})
	if err2 != nil {
		t.Fatal(err2)
	}
	stitch := wire.NewStitch(req, 10, 100)
	for range 2 {
		d, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if p, err := stitch.Add(d.Data); err != nil || !p.Sure {
			t.Errorf("%+v, %v", p, err)
		}
		stitch.Keep()
	}
	if !stitch.Cut() || !strings.Contains(string(stitch.Continue(wire.Projection{}, 0)), `"prompt":[1,2,3,5,6]`) {
		t.Errorf("%s", stitch.Continue(wire.Projection{}, 0))
	}
	d, err2 := s.Next()
	if err2 != nil || d.Err == nil || d.Err.Status != 503 || !strings.Contains(d.Err.Message, "queue is full") {
		t.Errorf("%+v, %v", d.Err, err2)
	}
	if _, err := s.Next(); err != io.EOF {
		t.Error(err)
	}
	if len(e.Aborts()) != 0 {
		t.Error("the engine had ended it itself")
	}
}

func TestTiming(t *testing.T) {
	for _, c := range []struct {
		data string
		want *engine.Timing
	}{
		{`{"meta_info":{"queue_time":0.25,"forward_entry_time":10.5,"prefill_finished_time":11}}`, &engine.Timing{Queue: 250 * time.Millisecond, Prefill: 500 * time.Millisecond}},
		{`{"choices":[{"meta_info":{"queue_time":1.5}}]}`, &engine.Timing{Queue: 1500 * time.Millisecond, Prefill: -1}},
		{`{"meta_info":{"queue_time":null}}`, nil},
		{`{"meta_info":{"queue_time":-1}}`, nil},
		{`{"choices":[]}`, nil},
		{`[]`, nil},
	} {
		if d := cmp.Diff(c.want, timing([]byte(c.data))); d != "" {
			t.Errorf("%s: %s", c.data, d)
		}
	}
}

// With several ranks a sample is of the last moment before which all that work
// had written.
func TestSnapshots(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	var s snapshots
	for i, c := range []struct {
		ranks   string // one letter each; capital: at work
		version int
		since   time.Time
	}{
		{"AB", 0, time.Time{}},
		{"AB", 0, time.Time{}},
		{"CB", 0, time.Time{}}, // the first has
		{"DB", 0, time.Time{}},
		{"DE", 1, at(1)}, // and now the second
		{"DE", 1, at(1)},
		{"FE", 1, at(1)},
		{"Fg", 2, at(5)}, // the second idles
		{"Hg", 3, at(7)},
		{"hg", 4, at(8)},
		{"hg", 4, at(8)},
		{"h", 4, at(8)}, // a rank less: anew
		{"H", 5, at(11)},
	} {
		var ranks []rank
		for _, r := range c.ranks {
			ranks = append(ranks, rank{string(r), r >= 'a'})
		}
		s.take(at(i), ranks)
		if s.version != c.version || !s.since.Equal(c.since) {
			t.Errorf("%d %s: version %d since %s, want %d since %s", i, c.ranks, s.version, s.since.Sub(start), c.version, c.since.Sub(start))
		}
	}
}

func FuzzDocuments(f *testing.F) {
	f.Add([]byte(loads(1, 2, 3, 4)))
	f.Add([]byte(`{"loads":[{"num_running_reqs":-1},{"num_running_reqs":1e300}]}`))
	f.Add([]byte("sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_used_tokens NaN\n"))
	f.Add([]byte(`{"dp_size":1e9,"max_total_num_tokens":1e9,"internal_states":[{"effective_max_running_requests_per_dp":2e9},{"effective_max_running_requests_per_dp":2e9}]}`))
	f.Add([]byte(`{"meta_info":{"queue_time":1e300,"forward_entry_time":1,"prefill_finished_time":-1}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, parse := range map[string]func([]byte) (load, error){"loads": parseLoads, "metrics": parseMetrics} {
			l, err := parse(body)
			if err != nil {
				continue
			}
			if l.running < -1 || l.waiting < -1 || l.used < -1 || l.total < -1 || l.pieces < 0 || len(l.ranks) == 0 || l.held() < -1 || l.empty() && l.held() != 0 {
				t.Errorf("%s: %+v", name, l)
			}
			var s snapshots
			s.take(time.Unix(1, 0), l.ranks)
			s.take(time.Unix(2, 0), l.ranks)
			if s.version != 0 {
				t.Errorf("%s: the same twice is a change", name)
			}
		}
		if i, err := parseInfo(body); err == nil && (i.slots < 0 || i.tokens < 0 || i.page < 0 || i.context < 0) {
			t.Errorf("%+v", i)
		}
		if tm := timing(body); tm != nil && (tm.Queue < -1 || tm.Prefill < -1 || tm.Queue < 0 && tm.Prefill < 0) {
			t.Errorf("%+v", tm)
		}
	})
}
