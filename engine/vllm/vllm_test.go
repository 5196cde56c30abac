package vllm

import (
	"context"
	"strings"
	"sync"
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
	opts.Kind = engine.VLLM
	e := enginetest.New(t, opts)
	a, err := New(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return e, a
}

// open has the engine run an attempt that has sent n tokens.
func open(t *testing.T, e *enginetest.Engine, a *Adapter, n int) (engine.Stream, *enginetest.Call) {
	t.Helper()
	calls := make(chan *enginetest.Call)
	go func() {
		call := e.Accept(t)
		call.Headers()
		call.Emit(n)
		calls <- call
	}()
	s, err := a.Dispatch(t.Context(), &engine.Attempt{
		API: wire.Chat, Body: enginetest.Body(true), ID: "a", Stream: true, Interruptible: true,
	})
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

func TestObserve(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	open(t, e, a, 1)
	open(t, e, a, 1)
	o := a.Observe(t.Context())
	want := engine.Observation{State: engine.Ready, Running: 2, KVUsed: 32, KVTotal: 16384}
	if d := cmp.Diff(want, o, cmpopts.IgnoreFields(engine.Observation{}, "Asked", "At", "Progress")); d != "" {
		t.Error(d)
	}
	if later := a.Observe(t.Context()); later.Progress <= o.Progress || later.Asked.Before(o.At) || later.At.Before(later.Asked) {
		t.Errorf("%+v after %+v", later, o)
	}
}

func TestStates(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	for _, c := range []struct {
		path   string
		status int
		body   string
		want   engine.State
		err    string
	}{
		{"/health", 503, "", engine.Down, "dead"},
		{"/health", 500, "", engine.Unknown, "status 500"},
		{"/health", 404, "", engine.Ready, ""},
		{"/metrics", 500, "", engine.Ready, "status 500"},
		{"/metrics", 200, "", engine.Ready, "not exported: vllm:num_requests_running, vllm:num_requests_waiting"},
		{"/metrics", 200, "vllm:num_requests_running{", engine.Ready, "metrics: "},
		{"/metrics", 200, strings.Repeat("#", maxMetrics+1), engine.Ready, "8388608"},
	} {
		e.Answer(c.path, c.status, c.body)
		o := a.Observe(t.Context())
		if o.State != c.want || (o.Err == nil) != (c.err == "") || c.err != "" && !strings.Contains(o.Err.Error(), c.err) {
			t.Errorf("%s %d: %v, %v", c.path, c.status, o.State, o.Err)
		}
		e.Answer(c.path, 0, "")
	}
}

func TestCapabilities(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	got, err := a.Capabilities(t.Context())
	want := engine.Capabilities{
		Kind: engine.VLLM, Version: "0.28.0", Models: []engine.Model{{ID: "test-model", MaxContext: 4096}},
		KVTokens: 16384, BlockSize: 16, MaxContext: 4096, PrefixCache: true, TokenIDs: true, ChatTokenIDs: true, MinTokens: true, StepAborts: true, TextCompletions: true, FinalMessage: engine.FinalFlags,
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}

	e.Answer("/v1/models", 200, `{"data":[{"id":"base","max_model_len":8192},{"id":"lora","parent":"base","max_model_len":null},{"id":""},{"id":"short","max_model_len":4000}]}`)
	e.Answer("/metrics", 404, "")
	e.Answer("/version", 404, "")
	got, err = a.Capabilities(t.Context())
	want = engine.Capabilities{
		Kind: engine.VLLM, Models: []engine.Model{{ID: "base", MaxContext: 8192}, {ID: "lora", Parent: "base"}, {ID: "short", MaxContext: 4000}}, MaxContext: 4000, TokenIDs: true, ChatTokenIDs: true, MinTokens: true, StepAborts: true, TextCompletions: true, FinalMessage: engine.FinalFlags,
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}

	yes := true
	cfg := e.Config()
	cfg.Capabilities = engine.Override{Slots: 256, Priority: &yes}
	over, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	got, err = over.Capabilities(t.Context())
	if err != nil || got.Slots != 256 || !got.Priority || got.MaxContext != 4000 {
		t.Errorf("%+v, %v", got, err)
	}

	e.Answer("/v1/models", 500, "")
	if _, err := a.Capabilities(t.Context()); err == nil || !strings.Contains(err.Error(), "/v1/models") {
		t.Error(err)
	}
}

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       load
	}{
		{"nothing", "", load{-1, -1, -1, -1, -1, cache{-1, -1, false}}},
		{"today's names", `
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.001625135
vllm:prompt_tokens_total{engine="0",model_name="m"} 100
vllm:prompt_tokens_by_source_total{engine="0",source="x"} 77
vllm:generation_tokens_total{engine="0",model_name="m"} 50
vllm:num_preemptions_total{engine="0",model_name="m"} 4
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e9
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="1847"} 1
`, load{3, 2, 48, 150, 4, cache{1846 * 16, 16, true}}},
		{"former names, no suffixes", `
vllm:num_requests_running 3
vllm:num_requests_waiting_by_reason{reason="capacity"} 5
vllm:num_requests_waiting_by_reason{reason="deferred"} 2
vllm:gpu_cache_usage_perc 0.5
vllm:prompt_tokens 1
vllm:generation_tokens 2
vllm:num_preemptions 0
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="11"} 1
`, load{3, 7, 80, 3, 0, cache{160, 16, false}}},
		{"both names at once count once", `
vllm:gpu_cache_usage_perc 0.5
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="11"} 1
`, load{-1, -1, 80, -1, -1, cache{160, 16, false}}},
		{"two engines, blocks summed by the server", `
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 0
vllm:num_requests_waiting{engine="1"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:prompt_tokens_total{engine="0"} 5
vllm:prompt_tokens_total{engine="1"} 6
vllm:num_preemptions_total{engine="0"} 1
vllm:num_preemptions_total{engine="1"} 1
vllm:cache_config_info{block_size="10",engine="0",num_gpu_blocks="22"} 1
vllm:cache_config_info{block_size="10",engine="1",num_gpu_blocks="22"} 1
`, load{7, 1, 60, 11, 2, cache{200, 10, false}}},
		{"a hybrid model's size in tokens", `
vllm:kv_cache_usage_perc 0.1
vllm:cache_config_info{block_size="8",num_gpu_blocks="320",kv_cache_size_tokens="463459"} 1
`, load{-1, -1, 46344, -1, -1, cache{463459, 8, false}}},
		{"values that are none", `
vllm:num_requests_running NaN
vllm:num_requests_waiting -1
vllm:kv_cache_usage_perc +Inf
vllm:prompt_tokens_total 1e300
vllm:cache_config_info{block_size="None",num_gpu_blocks="None",kv_cache_size_tokens="99999999999999"} 1
`, load{-1, -1, -1, 1 << 53, -1, cache{-1, -1, false}}},
		{"broken lines of others", "# TYPE broken\nbroken{ 1 2 3\nvllm:num_requests_running 1\r\nvllm:num_requests_runningx 7\n",
			load{1, -1, -1, -1, -1, cache{-1, -1, false}}},
	} {
		got, err := parseLoad([]byte(c.text))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v\nwant %+v", c.name, got, err, c.want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte("vllm:num_requests_running{engine=\"0\"} 3\nvllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"11\"} 1\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		l, err := parseLoad(body)
		if err != nil {
			return
		}
		if l.running < -1 || l.waiting < -1 || l.progress < -1 || l.preemptions < -1 || l.kvUsed < -1 || l.kvUsed > max(-1, l.cache.tokens) {
			t.Errorf("%+v", l)
		}
	})
}

func TestTiming(t *testing.T) {
	for _, c := range []struct {
		data string
		want *engine.Timing
	}{
		{`{"choices":[]}`, nil},
		{`{"metrics":null}`, nil},
		{`{"metrics":{"queue_time_ms":"1","time_to_first_token_ms":-1}}`, nil},
		{`{"metrics":{"queue_time_ms":12.5,"time_to_first_token_ms":100}}`, &engine.Timing{Queue: 12500 * time.Microsecond, Prefill: 100 * time.Millisecond}},
		{`{"metrics":{"queue_time_ms":1e300,"time_to_first_token_ms":1}}`, &engine.Timing{Queue: -1, Prefill: time.Millisecond}},
	} {
		if d := cmp.Diff(c.want, timing([]byte(c.data))); d != "" {
			t.Error(c.data, d)
		}
	}
	e, a := start(t, enginetest.Options{})
	s, call := open(t, e, a, 1)
	call.Send(`data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1},"metrics":{"queue_time_ms":7,"time_to_first_token_ms":9}}` + "\n\n")
	if d, err := s.Next(); err != nil || d.Timing == nil || d.Timing.Queue != 7*time.Millisecond {
		t.Errorf("%+v, %v", d.Timing, err)
	}
}

// One attempt among others: the counters must move before the gauge is believed.
func TestAbortWaitsForAStep(t *testing.T) {
	e, a := start(t, enginetest.Options{Manual: true})
	s, call := open(t, e, a, 1)
	_, other := open(t, e, a, 1)
	e.Step()
	got := make(chan engine.Confirmation)
	go func() { got <- s.Abort(t.Context()) }()
	<-call.Gone()
	seen := e.Scrapes("/metrics")
	for e.Scrapes("/metrics") < seen+3 {
		time.Sleep(time.Millisecond)
	}
	select {
	case c := <-got:
		t.Errorf("%+v without a step", c)
	default:
	}
	e.Step()
	if c := <-got; c.By != engine.ByProgress {
		t.Errorf("%+v", c)
	}
	other.Finish("stop")
}

func TestManyAbortsOneSeries(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	const n = 20
	streams := make([]engine.Stream, n)
	for i := range streams {
		streams[i], _ = open(t, e, a, 1)
	}
	open(t, e, a, 1) // keeps the engine stepping
	var all sync.WaitGroup
	for _, s := range streams {
		all.Go(func() {
			if c := s.Abort(t.Context()); c.By != engine.ByProgress {
				t.Errorf("%+v", c)
			}
		})
	}
	all.Wait()
	if e.Aborted() != n || e.Running() != 1 {
		t.Errorf("%d aborted, %d running", e.Aborted(), e.Running())
	}
	if c := a.Ledger().Count(); c.Live != 1 || c.Pending != 0 {
		t.Errorf("ledger %+v", c)
	}
	// Two are the least; one series for each would be forty.
	if got := e.Scrapes("/metrics"); got > n {
		t.Errorf("%d scrapes for %d aborts", got, n)
	}
}

// An engine that does not notice is not believed, however long it goes on; once
// it lets go, the same attempt is confirmed.
func TestGhost(t *testing.T) {
	e, a := start(t, enginetest.Options{Ghosts: true})
	s, call := open(t, e, a, 1)
	open(t, e, a, 1)
	a.Observe(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c := s.Abort(ctx); c.By != engine.Unconfirmed {
		t.Errorf("%+v", c)
	}
	<-call.Gone()
	call.Free()
	if c := s.Abort(t.Context()); c.By != engine.ByProgress {
		t.Errorf("%+v", c)
	}
}

// Gauges that stick after a mass abort (case 12) delay the confirmation and do
// not prevent it.
func TestStuckGauges(t *testing.T) {
	opts := enginetest.Options{Kind: engine.VLLM, Manual: true}
	e := enginetest.New(t, opts)
	cfg := e.Config()
	cfg.AbortGrace = 100 * time.Millisecond
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var all sync.WaitGroup
	streams := make([]engine.Stream, 5)
	for i := range streams {
		streams[i], _ = open(t, e, a, 1)
	}
	e.Step()
	for _, s := range streams {
		all.Go(func() {
			if c := s.Abort(t.Context()); c.By != engine.ByGrace {
				t.Errorf("%+v", c)
			}
		})
	}
	all.Wait()
	if o := a.Observe(t.Context()); o.Running != 5 || e.Running() != 0 {
		t.Errorf("the test's gauge is not stuck: %d of %d", o.Running, e.Running())
	}
}

func TestForeignLoad(t *testing.T) {
	e, a := start(t, enginetest.Options{})
	b, err := New(e.Config()) // another client of the same engine
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	open(t, e, b, 1)
	open(t, e, b, 1)
	s, _ := open(t, e, a, 1)
	a.Observe(t.Context())
	a.Observe(t.Context())
	if c := s.Abort(t.Context()); c.By != engine.ByProgress {
		t.Errorf("%+v", c)
	}
}

// TestOthersAtTheEngine: what another adapter has begun since an abort keeps it from being
// confirmed until the other says so.
func TestOthersAtTheEngine(t *testing.T) {
	e, a := start(t, enginetest.Options{Manual: true})
	b, err := New(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	doubts := make(chan struct{}, 1)
	a.Share(func() {
		select {
		case doubts <- struct{}{}:
		default:
		}
	})
	s, _ := open(t, e, a, 1)
	e.Step()
	confirmed := make(chan engine.Confirmation, 1)
	go func() { confirmed <- s.Abort(t.Context()) }()
	for e.Running() > 0 {
		time.Sleep(time.Millisecond)
	}
	theirs, call := open(t, e, b, 1)
	reading := make(chan struct{}, 100)
	go func() {
		for {
			if _, err := theirs.Next(); err != nil {
				return
			}
			reading <- struct{}{}
		}
	}()
	for {
		e.Step()
		select {
		case <-doubts:
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
	select {
	case c := <-confirmed:
		t.Fatalf("%+v, though the engine has as many as before", c)
	default:
	}
	if !a.Attending().Doubts {
		t.Error("it does not say that it doubts")
	}
	for {
		call.Emit(1)
		<-reading
		e.Step()
		at := b.Attending()
		a.Others([]engine.Presence{{Who: "b", Begun: at.Begun, Ended: at.Ended, Before: time.Now(), After: at.As}})
		select {
		case c := <-confirmed:
			if c.By != engine.ByProgress {
				t.Errorf("%+v", c)
			}
			if a.Attending().Doubts {
				t.Error("it doubts nothing any more")
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
