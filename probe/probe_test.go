package probe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"headgate/engine"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

// posts counts what an engine was asked for other than by GET.
type posts struct {
	n  atomic.Int64
	at func(n int64) // is told each number; nil: nobody is
}

// serve runs a simulated engine until the test ends.
func serve(t *testing.T, cfg simengine.Config) (o Options, sent *posts) {
	t.Helper()
	s, err := vllmapi.New(vllmapi.Config{Engine: cfg})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	sent = new(posts)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			if n := sent.n.Add(1); sent.at != nil {
				sent.at(n)
			}
		}
		s.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(func() { h.CloseClientConnections(); h.Close(); cancel(); <-done })
	o.Engine.SetDefaults()
	o.Engine.Kind, o.Engine.URL = engine.VLLM, h.URL
	o.MaxTokens, o.Timeout, o.MaxStreams = DefaultMaxTokens, DefaultTimeout, DefaultMaxStreams
	return o, sent
}

// small engine, of quick steps.
func quick() simengine.Config {
	cfg := simengine.DefaultConfig()
	cfg.Speed = 0.02
	cfg.NumBlocks, cfg.MaxModelLen, cfg.MaxBatchedTokens = 161, 2000, 512
	return cfg
}

func run(t *testing.T, o Options) *Profile {
	t.Helper()
	p, err := Run(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	p.Validate(func(path string, value any, allowed string) { t.Errorf("%s: %v: allowed: %s", path, value, allowed) })
	var table bytes.Buffer
	if err := p.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	t.Log(&table)
	return p
}

// TestReading: what there is to read of an engine is read, a plan is made of it, and
// nothing is sent.
func TestReading(t *testing.T) {
	o, sent := serve(t, quick())
	r, err := Read(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	var plan bytes.Buffer
	if err := WritePlan(&plan, &o, r, Plan(&o, r)); err != nil {
		t.Fatal(err)
	}
	for _, s := range append([]Subject{}, Subjects...) {
		if !strings.Contains(plan.String(), string(s)) {
			t.Errorf("%s is not in the plan:\n%s", s, &plan)
		}
	}
	if n := sent.n.Load(); n != 0 {
		t.Errorf("%d requests were sent for a plan", n)
	}
	o.Model = "another"
	if _, err := Read(t.Context(), &o); err == nil || !strings.Contains(err.Error(), `no model "another"`) {
		t.Errorf("error %v", err)
	}
}

// TestFirstPieceGate: an engine that begins a prompt once its first piece fits is not
// taken for one that waits for all of it.
func TestFirstPieceGate(t *testing.T) {
	cfg := quick()
	cfg.WholePromptGate = false
	o, _ := serve(t, cfg)
	o.Only = []Subject{WholePrompt}
	if f := run(t, o).Find(WholePrompt); f.Value != Chunk && f.Confidence != Unknown {
		t.Errorf("%+v", f)
	}
}

// TestOneSlot: of an engine with one slot what needs two is unknown.
func TestOneSlot(t *testing.T) {
	cfg := quick()
	cfg.MaxNumSeqs = 1
	o, _ := serve(t, cfg)
	o.Only = []Subject{Slots, KVLayout}
	p := run(t, o)
	if n, known := p.Number(Slots); known && n != 1 || p.Find(KVLayout).Confidence != Unknown || p.Find(PrefixCache).Confidence != Unknown {
		t.Errorf("%+v, %+v", p.Find(Slots), p.Find(KVLayout))
	}
}

// TestBounds: no more tokens are spent than allowed, nor more time, and what that leaves
// unfinished is unknown.
func TestBounds(t *testing.T) {
	o, _ := serve(t, quick())
	o.MaxTokens = 600
	p := run(t, o)
	if p.Tokens > o.MaxTokens {
		t.Errorf("%d tokens, allowed are %d", p.Tokens, o.MaxTokens)
	}
	if f := p.Find(Steps); f.Confidence != Unknown || !strings.Contains(f.Evidence[0], "budget") {
		t.Errorf("%+v", f)
	}
	if f := p.Find(MaxContext); f.Value != 2000.0 || f.Confidence != Said {
		t.Errorf("%+v", f)
	}
	o.MaxTokens, o.Timeout = DefaultMaxTokens, time.Microsecond
	for _, f := range run(t, o).Findings {
		if f.Confidence != Unknown || !strings.Contains(f.Evidence[0], "the time is over") {
			t.Errorf("%+v", f)
		}
	}
}

// TestOthers: a probe ends when others come, or says that they did.
func TestOthers(t *testing.T) {
	o, _ := serve(t, quick())
	o.Only = []Subject{PrefixCache, Slots, PrioritySign}
	come := func(stage string) {
		if stage != "slots" {
			return
		}
		for range 8 {
			ctx, cancel := context.WithCancel(context.Background())
			t.Cleanup(cancel)
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.Engine.URL+"/v1/completions", strings.NewReader(`{"prompt":"others","max_tokens":1900,"ignore_eos":true,"stream":true}`))
			if err != nil {
				t.Error(err)
				return
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = res.Body.Close() })
		}
	}
	o.Progress = come
	p := run(t, o)
	if f := p.Find(PrefixCache); f.Confidence == Unknown {
		t.Errorf("what was found before is lost: %+v", f)
	}
	if f := p.Find(PrioritySign); f.Confidence != Unknown || !strings.Contains(strings.Join(f.Evidence, "\n"), "others") {
		t.Errorf("%+v", f)
	}
	// They are still there.
	if _, err := Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "the engine has others' requests") {
		t.Errorf("error %v", err)
	}
}

// TestInterrupted: what a probe has at the engine ends with it.
func TestInterrupted(t *testing.T) {
	o, sent := serve(t, quick())
	o.Only = []Subject{Slots}
	ctx, cancel := context.WithCancel(t.Context())
	sent.at = func(n int64) {
		if n == 9 { // of the second round, with those of it on their way
			cancel()
		}
	}
	p, err := Run(ctx, &o)
	if err == nil || !strings.Contains(err.Error(), "its requests have ended") || p == nil {
		t.Fatalf("error %v", err)
	}
	r, err := Read(t.Context(), &o)
	if err != nil || r.Load.Running != 0 || r.Load.Waiting != 0 {
		t.Errorf("%v, and the engine has %+v", err, r.Load)
	}
}

// TestKeyRefused: an engine that takes no request for want of a key is not asked for
// one after the other, and that nothing is known is an error.
func TestKeyRefused(t *testing.T) {
	o, sent := serve(t, quick())
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			sent.n.Add(1)
			http.Error(w, `{"error":{"message":"no such key","code":401}}`, http.StatusUnauthorized)
			return
		}
		engine, err := http.Get(o.Engine.URL + r.URL.Path)
		if err != nil {
			t.Error(err)
			return
		}
		defer engine.Body.Close()
		w.WriteHeader(engine.StatusCode)
		_, _ = io.Copy(w, engine.Body)
	}))
	defer locked.Close()
	asked := o
	asked.Engine.URL = locked.URL
	p, err := Run(t.Context(), &asked)
	if !errors.Is(err, ErrKey) || p == nil {
		t.Fatalf("error %v", err)
	}
	if n := sent.n.Load(); n > 10 {
		t.Errorf("%d requests were sent", n)
	}
	for _, f := range p.Findings {
		if f.Confidence == Shown {
			t.Errorf("%+v", f)
		}
	}
}
