// Package vllm is the adapter for vLLM's OpenAI server, and for servers that
// export its metrics.
//
// vLLM shows its load at /metrics, in gauges that a scheduler step writes when
// it ends, and ends a request when its connection closes, between two steps.
// Both halves of that sentence are why an abort is confirmed the way package
// release describes. The routes that would abort by id exist in developer mode
// only, where they answer 200 for an id they do not know: no better evidence,
// so they are not used.
package vllm

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
	maxMetrics = 8 << 20 // bytes
	minPause   = 10 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// Adapter implements engine.Adapter.
type Adapter struct {
	*upstream.Client
	watch *release.Watcher
}

// New makes an adapter from a configuration that was found valid.
func New(cfg engine.Config) (*Adapter, error) {
	a := &Adapter{}
	a.watch = release.New(release.Config{
		Sample: a.sample, Min: minPause, Max: maxPause, Grace: cfg.AbortGrace, By: engine.ByProgress,
	})
	client, err := upstream.New(cfg, upstream.Hooks{Timing: timing, Confirm: a.watch.Wait, Watch: a.watch})
	if err != nil {
		return nil, err
	}
	a.Client = client
	return a, nil
}

// scrape takes one sample of the metrics, in both its forms.
func (a *Adapter) scrape(ctx context.Context) (load, release.Sample, error) {
	count := a.Ledger().Count()
	s := release.Sample{Asked: time.Now(), Held: -1, Live: count.Live}
	body, err := a.GetOK(ctx, "/metrics", maxMetrics)
	s.At = time.Now()
	if err != nil {
		return load{}, s, err
	}
	l, err := parseLoad(body)
	if err != nil {
		return load{}, s, err
	}
	if l.running >= 0 && l.waiting >= 0 {
		s.Held = l.running + l.waiting
	}
	s.Progress = l.progress
	return l, s, nil
}

func (a *Adapter) sample(ctx context.Context, _ bool) (release.Sample, error) {
	_, s, err := a.scrape(ctx)
	return s, err
}

// Observe implements engine.Adapter. It asks /health too, because the server
// goes on exporting its last gauges when the engine behind it has died.
func (a *Adapter) Observe(ctx context.Context) engine.Observation {
	o := engine.Unreported(time.Now())
	health, err := a.Get(ctx, "/health", maxMetrics)
	o.At = time.Now()
	switch {
	case err != nil:
		o.State, o.Err = upstream.State(err), err
		return o
	case health.Status == http.StatusServiceUnavailable:
		o.State, o.Err = engine.Down, fmt.Errorf("get /health: status %d: the engine behind the server is dead", health.Status)
		return o
	case health.Status >= 400 && health.Status != http.StatusNotFound:
		o.Err = fmt.Errorf("get /health: status %d", health.Status)
		return o
	}
	o.State = engine.Ready
	l, s, err := a.scrape(ctx)
	o.Asked, o.At = s.Asked, s.At
	if err != nil {
		o.Err = err
		return o
	}
	a.watch.Note(s)
	o.Running, o.Waiting = l.running, l.waiting
	o.KVUsed, o.KVTotal = l.kvUsed, l.cache.tokens
	o.Progress, o.Preemptions = l.progress, l.preemptions
	o.Err = l.missing()
	return o
}

// Capabilities implements engine.Adapter. The number of sequences (max_num_seqs)
// and the scheduling policy are not exported: they come from the configuration.
func (a *Adapter) Capabilities(ctx context.Context) (engine.Capabilities, error) {
	models, err := a.Models(ctx)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	c := engine.Capabilities{Models: models, MaxContext: upstream.LeastContext(models), TokenIDs: true, ChatTokenIDs: true, MinTokens: true, StepAborts: true,
		TextCompletions: true, FinalMessage: engine.FinalFlags}
	version, err := a.Get(ctx, "/version", maxMetrics)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	if version.Status == http.StatusOK {
		c.Version = gjson.GetBytes(version.Body, "version").String()
	}
	metrics, err := a.Get(ctx, "/metrics", maxMetrics)
	if err != nil {
		return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
	}
	if metrics.Status == http.StatusOK {
		l, err := parseLoad(metrics.Body)
		if err != nil {
			return engine.Capabilities{}, fmt.Errorf("capabilities: %w", err)
		}
		c.KVTokens, c.BlockSize, c.PrefixCache = max(0, l.cache.tokens), max(0, l.cache.block), l.cache.prefix
	}
	return a.Override(c), nil
}

// timing reads what --enable-per-request-metrics adds to the usage chunk.
func timing(data []byte) *engine.Timing {
	m := gjson.GetBytes(data, "metrics")
	if !m.IsObject() {
		return nil
	}
	t := &engine.Timing{
		Queue:   upstream.Milliseconds(m.Get("queue_time_ms")),
		Prefill: upstream.Milliseconds(m.Get("time_to_first_token_ms")),
	}
	if t.Queue < 0 && t.Prefill < 0 {
		return nil
	}
	return t
}
