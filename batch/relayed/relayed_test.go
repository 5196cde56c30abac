package relayed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"headgate/admission"
	"headgate/batch"
	"headgate/batch/relayed"
	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/relay"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

const step = 10 * time.Millisecond

// rig is a runner over one pool with a simulated engine of two slots, in virtual time.
type rig struct {
	*relayed.Runner
	t      *testing.T
	pool   *relay.Pool
	engine http.Handler
	refuse atomic.Int32 // status that the engine answers requests with; 0: it works
	told   []string     // what the runner told of: the key, the model, the error
	asked  chan []byte  // bodies of what it was asked for, as far as somebody reads them
}

func newRig(t *testing.T, depth int) *rig {
	cfg := vllmapi.Many(2)
	cfg.Engine.SplitCharacters = 3
	cfg.Engine.Model.Step.Base = float64(step / time.Millisecond)
	return newRigOf(t, depth, cfg)
}

func newRigOf(t *testing.T, depth int, cfg vllmapi.Config) *rig {
	cfg.ModelName = "test-model"
	sim, err := vllmapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, asked: make(chan []byte, 64)}
	handler := sim.Handler()
	r.engine = handler
	l := enginetest.NewListener()
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodPost && strings.HasPrefix(q.URL.Path, "/v1/") {
			if status := int(r.refuse.Load()); status != 0 {
				http.Error(w, `{"error":{"message":"no","type":"x","param":null,"code":null}}`, status)
				return
			}
			body, err := io.ReadAll(q.Body)
			if err != nil {
				return
			}
			select {
			case r.asked <- body:
			default:
			}
			q.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		handler.ServeHTTP(w, q)
	})}
	ctx, stop := context.WithCancel(context.Background())
	ran, followed := make(chan struct{}), make(chan struct{})
	go func() { defer close(ran); sim.Run(ctx) }()
	go func() { _ = web.Serve(l) }()
	var ec engine.Config
	ec.SetDefaults()
	ec.Kind, ec.URL, ec.DialContext, ec.Capabilities.Slots, ec.AbortGrace = engine.VLLM, "http://engine.test", l.DialContext, cfg.Engine.MaxNumSeqs, 5*step
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		t.Fatal(err)
	}
	r.pool = relay.New(relay.Config{
		Name: "main", Classes: []string{"interactive", "batch"}, Capacity: 64, IdleTimeout: time.Minute, MaxAnswer: 1 << 20, Start: time.Now(),
		Engines: []relay.Engine{{Name: "sim", Adapter: adapter, ObserveEvery: 100 * time.Millisecond, Priority: []int{0, 10}}},
		Log:     slog.New(slog.DiscardHandler), Metrics: relay.NewMetrics(prometheus.NewRegistry()),
		Resolve: func(specs []admission.EngineSpec) (*admission.Table, error) {
			table := &admission.Table{Engines: specs}
			e := table.Envelope()
			for i, name := range []string{"interactive", "batch"} {
				table.Classes = append(table.Classes, admission.ClassSpec{Name: name, Ceiling: e, IdleAfter: time.Second, DefaultOut: 64,
					Depth: depth * i, Floor: admission.Of(int64(1-i)*e[admission.Slots], int64(1-i)*e[admission.KV])})
			}
			return table, nil
		},
	})
	r.Runner = relayed.New(func() []*relay.Pool { return []*relay.Pool{r.pool} }, permit, func(c *relay.Call, err *wire.Error) {
		if c.Account == nil || c.Account.Admitted {
			t.Errorf("%s is told of with %+v", c.ID, c.Account)
		}
		r.told = append(r.told, c.Principal+" "+c.Request.Model+" "+err.Code)
	})
	go func() { defer close(followed); r.pool.Run(ctx) }()
	t.Cleanup(func() {
		drain, cancel := context.WithCancel(context.Background())
		cancel()
		r.pool.Drain(drain)
		stop()
		<-followed
		<-ran
		_ = web.Close()
		synctest.Wait()
	})
	time.Sleep(2 * time.Second) // interactive lends
	return r
}

func job(endpoint, body string) *batch.Job {
	return &batch.Job{ID: "batch_req_1", Tenant: "team-a", Key: "alice", Class: "batch", Endpoint: endpoint, Body: []byte(body)}
}

func (r *rig) run(j *batch.Job) *batch.Answer {
	r.t.Helper()
	a, err := r.Run(r.t.Context(), j)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// permit is what everybody may use: all but what stranger asks for, and the model barred.
func permit(key, model string) (may, known bool) { return model != "barred", key != "stranger" }

const (
	chat        = "/v1/chat/completions"
	completions = "/v1/completions"
	toResponses = "/v1/responses"
)

func chatBody(more string) string {
	return `{"model":"test-model","messages":[{"role":"user","content":"hello"}],"max_tokens":40,"min_tokens":40` + more + `}`
}

// TestAnswers: an item's answer is its endpoint's, whole, with what it took.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		for endpoint, c := range map[string]struct{ body, object, text string }{
			chat:        {chatBody(""), "chat.completion", "choices.0.message.content"},
			completions: {`{"model":"test-model","prompt":"hello","max_tokens":40,"min_tokens":40}`, "text_completion", "choices.0.text"},
			toResponses: {`{"model":"test-model","input":"hello","max_output_tokens":40}`, "response", "output.0.content.0.text"},
		} {
			j := job(endpoint, c.body)
			started := 0
			j.Started = func() { started++ }
			a := r.run(j)
			answer := gjson.ParseBytes(a.Body)
			if a.Status != 200 || a.Retry || !a.Loan || started != 1 || answer.Get("object").Str != c.object || answer.Get(c.text).Str == "" {
				t.Errorf("%s: status %d, retry %v, loan %v, started %d times, %s", endpoint, a.Status, a.Retry, a.Loan, started, a.Body)
			}
			used := [2]int64{answer.Get("usage.prompt_tokens").Int(), answer.Get("usage.completion_tokens").Int()}
			if endpoint == toResponses {
				used = [2]int64{answer.Get("usage.input_tokens").Int(), answer.Get("usage.output_tokens").Int()}
			}
			if got := [2]int64{a.Prompt, a.Output}; got != used || a.Prompt == 0 || a.Output == 0 {
				t.Errorf("%s: %v tokens, the answer says %v", endpoint, got, used)
			}
		}
	})
}

// TestErrors: what is the item's own fault is its line; what may pass is tried again; and
// what was refused for want of room, or by who stops, is no attempt.
func TestErrors(t *testing.T) {
	type said struct {
		Status         int
		Code           string
		Retry, Refused bool
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		ask := func(j *batch.Job) said {
			a := r.run(j)
			if !json.Valid(a.Body) {
				t.Errorf("no JSON: %s", a.Body)
			}
			return said{a.Status, gjson.GetBytes(a.Body, "error.code").Str, a.Retry, a.Refused != batch.NotRefused}
		}
		other := job(chat, chatBody(""))
		other.Class = "elsewhere"
		stranger := job(chat, chatBody(""))
		stranger.Key = "stranger"
		for _, c := range []struct {
			what string
			job  *batch.Job
			want said
		}{
			{"no JSON", job(chat, `{"model"`), said{400, "invalid_json", false, false}},
			{"field", job(chat, chatBody(`,"n":0`)), said{400, "invalid_field", false, false}},
			{"streamed", job(chat, chatBody(`,"stream":true`)), said{400, "invalid_field", false, false}},
			{"a response's", job(toResponses, `{"model":"test-model","input":"x","previous_response_id":"resp_x"}`), said{400, "invalid_field", false, false}},
			{"endpoint", job("/v1/models", `{}`), said{404, "route_not_found", false, false}},
			{"model", job(chat, strings.Replace(chatBody(""), "test-model", "another", 1)), said{404, "model_not_found", false, false}},
			{"a model that may not be used", job(chat, strings.Replace(chatBody(""), "test-model", "barred", 1)), said{404, "model_not_found", false, false}},
			{"a key that is not configured", stranger, said{503, "identity_unavailable", true, true}},
			{"class", other, said{403, "class_not_permitted", false, false}},
			{"too long", job(chat, strings.Replace(chatBody(""), "hello", strings.Repeat("hello ", 100_000), 1)), said{400, "context_length_exceeded", false, false}},
		} {
			if d := cmp.Diff(c.want, ask(c.job)); d != "" {
				t.Errorf("%s: (-want +got)\n%s", c.what, d)
			}
		}
		// What no pool has had is told of: a key that is missing is waited for.
		if d := cmp.Diff([]string{
			"alice  invalid_json", "alice  invalid_field", "alice  invalid_field", "alice  invalid_field", "alice  route_not_found",
			"alice another model_not_found", "alice barred model_not_found", "alice test-model class_not_permitted",
		}, r.told); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		for status, want := range map[int32]said{
			400: {400, "engine_refused", false, false}, 422: {422, "engine_refused", false, false},
			500: {502, "upstream_error", true, false}, 429: {429, "engine_busy", true, true}, 503: {429, "engine_busy", true, true},
		} {
			r.refuse.Store(status)
			got := ask(job(chat, chatBody("")))
			got.Code = strings.ReplaceAll(got.Code, "engine_unavailable", "engine_busy")
			if got.Status == 503 {
				got.Status = 429
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("the engine answers %d: (-want +got)\n%s", status, d)
			}
			r.refuse.Store(0)
			time.Sleep(time.Minute) // the engine is asked again
		}
		// Two run, and none may wait.
		done := make(chan said, 2)
		for range 2 {
			go func() { done <- ask(job(chat, chatBody(""))) }()
		}
		time.Sleep(5 * step)
		if d := cmp.Diff(said{429, "queue_full", true, true}, ask(job(chat, chatBody("")))); d != "" {
			t.Errorf("no room: (-want +got)\n%s", d)
		}
		for range 2 {
			if got := <-done; got.Status != 200 {
				t.Errorf("%+v", got)
			}
		}
		go r.pool.Drain(t.Context())
		synctest.Wait()
		if d := cmp.Diff(said{503, "draining", true, true}, ask(job(chat, chatBody("")))); d != "" {
			t.Errorf("draining: (-want +got)\n%s", d)
		}
	})
}

// TestGoesOn: an item that is ended in its middle goes on from its last checkpoint in
// another life, and its answer is the one that it would have had.
func TestGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		body := strings.ReplaceAll(chatBody(`,"temperature":0`), "40", "400")
		want := r.run(job(chat, body))
		<-r.asked

		var kept json.RawMessage
		var tokens int64
		j := job(chat, body)
		j.Checkpoint = func(output int64, make func() json.RawMessage) { tokens, kept = output, make() }
		ctx, cancel := context.WithTimeout(t.Context(), 100*step)
		defer cancel()
		if a, err := r.Run(ctx, j); err == nil || tokens < 32 || tokens >= 100 {
			t.Fatalf("%+v, %v, %d tokens", a, err, tokens)
		}
		<-r.asked
		time.Sleep(time.Second)

		again := job(chat, body)
		again.ID, again.Kept = "batch_req_2", kept
		begun := time.Now()
		a := r.run(again)
		took := time.Since(begun)
		text := func(a *batch.Answer) string { return gjson.GetBytes(a.Body, "choices.0.message.content").Str }
		if a.Status != 200 || text(a) != text(want) || a.Output != want.Output || a.Prompt != want.Prompt {
			t.Errorf("status %d, %d+%d tokens, want %d+%d; the text is the same: %v", a.Status, a.Prompt, a.Output, want.Prompt, want.Output, text(a) == text(want))
		}
		// What was kept is not generated again.
		if most := time.Duration(want.Output-tokens+10) * step; took > most {
			t.Errorf("it took %v, want at most %v", took, most)
		}
		if sent := gjson.ParseBytes(<-r.asked); sent.Get("prompt").IsArray() == false {
			t.Errorf("the engine got %.200s", sent.Raw)
		}
	})
}

// TestRunEnds: a worker that stops doesn't wait for the engine.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		why := fmt.Errorf("the worker stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() {
			_, err := r.Run(ctx, job(chat, strings.ReplaceAll(chatBody(""), "40", "4000")))
			ended <- err
		}()
		time.Sleep(10 * step)
		cancel(why)
		synctest.Wait()
		select {
		case err := <-ended:
			if err != why {
				t.Error(err)
			}
		default:
			t.Fatal("it waits")
		}
	})
}
