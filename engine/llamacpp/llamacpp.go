// Package llamacpp is the adapter for llama.cpp's llama-server.
//
// A llama-server runs a fixed number of slots, and what a slot does can be seen
// at /slots at any moment: the answer is made between two decodes, of the state
// at that time. So an abort is confirmed by a slot that fell idle. What can't be
// seen is which slot an attempt had; package release counts.
//
// Three of its habits matter to whoever dispatches. The headers of an answer are
// held back until the request has its slot, so Dispatch returns when a slot
// starts. A request whose client leaves before that, or while its prompt runs,
// is noticed late (seconds) or, while it is deferred, when its turn comes. And a
// request that is not streamed is noticed by a wait of one second that restarts
// whenever any task has a result, scrapes among them: attempts that may be
// interrupted are always streamed, and scrapes after an abort get rarer.
package llamacpp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/release"
	"headgate/engine/upstream"
)

const (
	maxDocument = 16 << 20 // bytes; debug builds put whole prompts into /slots
	minPause    = 15 * time.Millisecond
	maxPause    = time.Second
)

// Adapter implements engine.Adapter.
type Adapter struct {
	*upstream.Client
	cfg   engine.Config
	watch *release.Watcher
}

// New makes an adapter from a configuration that was found valid.
func New(cfg engine.Config) (*Adapter, error) {
	a := &Adapter{cfg: cfg}
	a.watch = release.New(release.Config{
		Sample: a.sample, Min: minPause, Max: maxPause, Grace: cfg.AbortGrace, By: engine.BySlot,
	})
	client, err := upstream.New(cfg, upstream.Hooks{Timing: timing, Confirm: a.watch.Wait, Watch: a.watch})
	if err != nil {
		return nil, err
	}
	a.Client = client
	return a, nil
}

// Dispatch implements engine.Adapter.
func (a *Adapter) Dispatch(ctx context.Context, at *engine.Attempt) (engine.Stream, error) {
	if at.TokenIDs && at.Stream {
		return a.dispatch(ctx, at)
	}
	return a.Client.Dispatch(ctx, at)
}

// load is what the two documents say together; -1: they do not.
type load struct {
	slots   slots
	metrics metrics
}

// running prefers the slots: the metrics count the same ones.
func (l load) running() int {
	if l.slots.total > 0 {
		return l.slots.processing
	}
	return l.metrics.processing
}

// waiting is the number of deferred requests. With a slot idle there are none.
func (l load) waiting() int {
	if l.metrics.deferred < 0 && l.slots.processing < l.slots.total {
		return 0
	}
	return l.metrics.deferred
}

// scrape looks at the slots, and at the metrics if they are wanted or the slots
// are switched off. Either may be missing on a server that works: 501, 404 or
// 403. Then its part is -1.
func (a *Adapter) scrape(ctx context.Context, withMetrics bool) (load, release.Sample, error) {
	l := load{slots: slots{kvUsed: -1}, metrics: noMetrics}
	count := a.Ledger().Count()
	s := release.Sample{
		Asked: time.Now(), Fresh: true, Progress: -1, Live: count.Live, Pending: count.Pending,
	}
	body, err := a.optional(ctx, "/slots")
	if err == nil && body != nil {
		l.slots, err = parseSlots(body)
	}
	if err == nil && (withMetrics || l.slots.total == 0) {
		body, err = a.optional(ctx, "/metrics")
		if err == nil && body != nil {
			l.metrics, err = parseMetrics(body)
		}
	}
	s.At = time.Now()
	s.Held, s.Queued = l.running(), l.waiting()
	return l, s, err
}

// optional fetches a document that may be switched off; nil: it is.
func (a *Adapter) optional(ctx context.Context, path string) ([]byte, error) {
	r, err := a.Get(ctx, path, maxDocument)
	if err != nil {
		return nil, err
	}
	switch r.Status {
	case http.StatusOK:
		return r.Body, nil
	case http.StatusNotImplemented, http.StatusNotFound, http.StatusForbidden:
		return nil, nil
	}
	return nil, fmt.Errorf("get %s: status %d", path, r.Status)
}

func (a *Adapter) sample(ctx context.Context, queued bool) (release.Sample, error) {
	_, s, err := a.scrape(ctx, queued)
	return s, err
}

// Observe implements engine.Adapter.
func (a *Adapter) Observe(ctx context.Context) engine.Observation {
	o := engine.Unreported(time.Now())
	health, err := a.Get(ctx, "/health", maxDocument)
	o.At = time.Now()
	switch {
	case err != nil:
		o.State, o.Err = upstream.State(err), err
		return o
	case health.Status == http.StatusServiceUnavailable:
		o.State = engine.Loading
		return o
	case health.Status >= 400 && health.Status != http.StatusNotFound:
		o.Err = fmt.Errorf("get /health: status %d", health.Status)
		return o
	}
	o.State = engine.Ready
	l, s, err := a.scrape(ctx, true)
	o.Asked, o.At = s.Asked, s.At
	if err != nil {
		o.Err = err
		return o
	}
	a.watch.Note(s)
	o.Running, o.Waiting = s.Held, s.Queued
	o.KVUsed, o.KVTotal = l.slots.kvUsed, -1
	if p := l.slots.pool(); p.tokens > 0 {
		o.KVTotal = p.tokens
	}
	o.Progress = l.metrics.progress
	return o
}

// Capabilities implements engine.Adapter.
func (a *Adapter) Capabilities(ctx context.Context) (engine.Capabilities, error) {
	models, err := a.Models(ctx)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	c := engine.Capabilities{
		Models:    models,
		BlockSize: 1, // its KV cells are tokens
		// A slot keeps its tokens when its request ends, and the next request
		// with the longest common prefix gets it.
		PrefixCache:     true,
		TellsStart:      true,
		TextCompletions: true,
		FinalMessage:    engine.FinalTurn,
	}
	var s slots
	body, err := a.optional(ctx, "/slots")
	if err == nil && body != nil {
		s, err = parseSlots(body)
	}
	if err == nil {
		body, err = a.optional(ctx, "/props")
	}
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	p := gjson.ParseBytes(body)
	c.Version = p.Get("build_info").String()
	if c.TokenIDs, err = a.tells(ctx); err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	prefills, err := a.prefills(ctx)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	if prefills {
		c.FinalMessage = engine.FinalTrailing
	}
	template := p.Get("chat_template")
	c.ChatTokenIDs = c.TokenIDs && template.Type == gjson.String && plain(template.String())
	if s.total == 0 {
		s.total = max(0, upstream.Number(p.Get("total_slots")))
		s.context = max(0, upstream.Number(p.Get("default_generation_settings.n_ctx")))
	}
	pool := s.pool()
	c.Slots, c.KVTokens, c.MaxContext, c.Fatal = s.total, pool.tokens, s.context, pool.unified
	if c.MaxContext == 0 {
		c.MaxContext = upstream.LeastContext(models)
	}
	return a.Override(c), nil
}

// timing reads the timings of the last chunk. How long a request was deferred
// is not among them: it is the time to the headers.
func timing(data []byte) *engine.Timing {
	prefill := upstream.Milliseconds(gjson.GetBytes(data, "timings.prompt_ms"))
	if prefill < 0 {
		return nil
	}
	return &engine.Timing{Queue: -1, Prefill: prefill}
}
