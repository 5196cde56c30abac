package relay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"headgate/engine"
	"headgate/engine/adapters"
	"headgate/engine/enginetest"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

const simStep = 10 * time.Millisecond

// simulated is a pool over a simulated engine of one slot, which belongs to
// interactive. What batch gets of it is lent.
type simulated struct {
	*rig
	direct *http.Client // to the engine itself
	model  string
}

func newSimulated(t testing.TB, change func(*vllmapi.Config), o options) *simulated {
	t.Helper()
	cfg := vllmapi.Many(1)
	cfg.ModelName = "test-model"
	cfg.Engine.Model.Step.Base = float64(simStep / time.Millisecond)
	cfg.Engine.SplitCharacters, cfg.Engine.MeanOutput = 3, 60
	if change != nil {
		change(&cfg)
	}
	server, err := vllmapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); server.Run(ctx) }()
	mem := enginetest.NewListener()
	front := &http.Server{Handler: server.Handler()}
	go func() { _ = front.Serve(mem) }()
	direct := &http.Transport{DialContext: mem.DialContext, DisableKeepAlives: true}
	t.Cleanup(func() { _ = front.Close(); cancel(); <-ran })
	var ec engine.Config
	ec.SetDefaults()
	ec.Kind, ec.URL, ec.DialContext, ec.Capabilities.Slots = engine.VLLM, "http://engine.test", mem.DialContext, 1
	ec.AbortGrace = 5 * simStep
	adapter, err := adapters.New(ec.Kind, ec)
	if err != nil {
		t.Fatal(err)
	}
	o.classes = reclaimer(1)
	o.pool = func(c *Config) {
		c.Engines = []Engine{{Name: "sim", Adapter: adapter, ObserveEvery: observeEvery, Priority: []int{0, 10}}}
		c.Keepalive = 100 * time.Millisecond
	}
	s := &simulated{rig: newRig(t, o), direct: &http.Client{Transport: direct}, model: cfg.ModelName}
	pass(2 * time.Second) // interactive lends
	return s
}

// ask is the body of a request of either route.
func ask(api wire.API, stream bool, prompt string, most int, more string) string {
	text := fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, prompt)
	if api == wire.Completions {
		text = fmt.Sprintf(`"prompt":%q`, prompt)
	}
	if stream {
		more += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return fmt.Sprintf(`{"model":"test-model",%s,"max_tokens":%d%s}`, text, most, more)
}

// interrupt ends whatever runs, as the core would, and tells whether anything did.
func (s *simulated) interrupt() (ended bool) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, r := range s.pool.records {
		if r != nil && r.cancel != nil {
			r.reclaimed = true
			r.cancel(errReclaimed)
			ended = true
		}
	}
	return ended
}

// dispatched tells whether a request is at the engine.
func (s *simulated) dispatched() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, r := range s.pool.records {
		if r != nil && r.cancel != nil {
			return true
		}
	}
	return false
}

// answer is what a client gets of a batch request that is interrupted after each
// of the given times, and how often it was.
func (s *simulated) answer(api wire.API, body string, after ...time.Duration) (got *client, cuts int) {
	s.t.Helper()
	call := s.callOf(api, "batch", body)
	c := &client{id: call.ID, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(c.done)
		defer cancel()
		c.err = s.pool.Serve(ctx, call, c)
	}()
	for _, d := range after {
		pass(d)
		if s.interrupt() {
			cuts++
		}
		for c.code() == "running" && !s.dispatched() {
			pass(simStep)
		}
	}
	<-c.done
	pass(2 * observeEvery)
	s.wantCode(c, "")
	return c, cuts
}

func (g *rig) callOf(api wire.API, class, body string) *Call {
	g.t.Helper()
	req, err := wire.Parse(api, []byte(body))
	if err != nil {
		g.t.Fatal(err)
	}
	g.served++
	return &Call{ID: fmt.Sprintf("req_%d", g.served), Request: req, Class: class, Tenant: "acme", Principal: "ann", Arrived: time.Now()}
}

// engineSays is the engine's own answer.
func (s *simulated) engineSays(api wire.API, body string) string {
	s.t.Helper()
	res, err := s.direct.Post("http://engine.test"+api.Path(), "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%v, status %d: %s", err, res.StatusCode, got)
	}
	return string(got)
}

var naming = regexp.MustCompile(`"id":"[^"]*"|"created":[0-9]+`)

// nameless is an answer without what differs between any two, and how many
// different names there were in it.
func nameless(answer string) (text string, names int) {
	all := map[string]bool{}
	text = naming.ReplaceAllStringFunc(answer, func(m string) string { all[m] = true; return "" })
	return text, len(all)
}

// TestResumeIsExact: a request that is interrupted anywhere, in the middle of a
// character too, and any number of times, has the answer of one that was not: in a
// stream the very bytes that the engine sends to whom it serves undisturbed.
func TestResumeIsExact(t *testing.T) {
	total, inside := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		api := rapid.SampledFrom([]wire.API{wire.Chat, wire.Completions}).Draw(rt, "api")
		stream := rapid.Bool().Draw(rt, "stream")
		most := rapid.IntRange(1, 120).Draw(rt, "max_tokens")
		least := rapid.IntRange(0, most).Draw(rt, "min_tokens")
		prompt := rapid.StringOfN(rapid.RuneFrom([]rune("ab é水😀")), 1, 12, -1).Draw(rt, "prompt")
		var after []time.Duration
		for range rapid.IntRange(1, 5).Draw(rt, "cuts") {
			// The engine's steps and the relay's moments are not in line.
			after = append(after, time.Duration(rapid.IntRange(0, 400).Draw(rt, "after"))*simStep/10)
		}
		body := ask(api, stream, prompt, most, fmt.Sprintf(`,"min_tokens":%d,"temperature":0`, least))
		synctest.Test(t, func(t *testing.T) {
			s := newSimulated(t, nil, options{})
			s.answer(wire.Chat, ask(wire.Chat, false, "x", 1, "")) // the engine is seen to return ids
			want, _ := s.answer(api, body)
			got, cuts := s.answer(api, body, after...)
			a, _ := nameless(want.text())
			b, names := nameless(got.text())
			if a != b || names != 2 {
				rt.Errorf("after %d cuts, with %d names:\n%s\nwant\n%s", cuts, names, b, a)
			}
			if own, _ := nameless(s.engineSays(api, body)); stream && b != own {
				rt.Errorf("after %d cuts:\n%s\nthe engine says\n%s", cuts, b, own)
			}
			s.wantEmpty()
			total += cuts
			for _, e := range s.events() {
				if e.Cause == "reclaimed" && e.OutputTokens > 0 {
					inside++
				}
			}
		})
	})
	t.Logf("%d interruptions, %d of them with tokens to keep", total, inside)
	if inside == 0 {
		t.Error("nothing was ever kept")
	}
}
