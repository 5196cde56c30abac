package relay

import (
	"context"
	"slices"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/journal"
)

// Run asks the engines what they are and keeps reading their load until ctx
// ends.
func (p *Pool) Run(ctx context.Context) {
	done := make(chan struct{})
	for i := range p.cfg.Engines {
		go func() {
			p.follow(ctx, i)
			done <- struct{}{}
		}()
	}
	for range p.cfg.Engines {
		<-done
	}
}

// follow keeps one engine's state up to date.
func (p *Pool) follow(ctx context.Context, i int) {
	e := &p.cfg.Engines[i]
	tick := time.NewTicker(e.ObserveEvery)
	defer tick.Stop()
	for {
		o := e.Adapter.Observe(ctx)
		if ctx.Err() != nil {
			return
		}
		if state, known := p.judge(i, &o); known {
			// What an engine is may have changed while it was away.
			if state == admission.Ready && p.away(i) {
				state = p.discover(ctx, i)
			}
			p.observed(i, state, &o)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// judge reads a state out of a sample; known is false for one that came too
// late to say anything.
func (p *Pool) judge(i int, o *engine.Observation) (state admission.State, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.engines[i]
	if o.State != engine.Unknown {
		s.since = time.Time{}
	}
	switch o.State {
	case engine.Ready:
		return admission.Ready, true
	case engine.Loading:
		return admission.Loading, true
	case engine.Down:
		return admission.Down, true
	}
	if s.since.IsZero() {
		s.since = o.Asked
	}
	return admission.Down, o.At.Sub(s.since) >= downAfter
}

func (p *Pool) away(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.engines[i].known || p.engines[i].state != admission.Ready
}

// discover asks an engine what it is and brings the table up to date. An engine
// that does not say so yet is loading.
func (p *Pool) discover(ctx context.Context, i int) admission.State {
	e := &p.cfg.Engines[i]
	caps, err := e.Adapter.Capabilities(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.cfg.Log.Warn("engine does not say what it is", "pool", p.cfg.Name, "engine", e.Name, "err", err)
		}
		return admission.Loading
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.engines[i]
	if s.known && sameCapacity(&s.caps, &caps) {
		s.caps = caps
		return admission.Ready
	}
	first := !s.known
	s.known, s.caps = true, caps
	p.cfg.Log.Info("engine found", "pool", p.cfg.Name, "engine", e.Name, "kind", caps.Kind, "version", caps.Version,
		"slots", caps.Slots, "kv_tokens", caps.KVTokens, "block_size", caps.BlockSize, "max_context", caps.MaxContext,
		"priority", caps.Priority, "prefix_cache", caps.PrefixCache, "kv_exhaustion_fatal", caps.Fatal, "again", !first)
	p.retableLocked()
	return admission.Ready
}

func sameCapacity(a, b *engine.Capabilities) bool {
	return a.Slots == b.Slots && a.KVTokens == b.KVTokens && a.BlockSize == b.BlockSize && a.MaxContext == b.MaxContext &&
		a.Priority == b.Priority && a.Fatal == b.Fatal
}

// retableLocked makes a table of what is known now and gives it to the core.
func (p *Pool) retableLocked() {
	specs := make([]admission.EngineSpec, len(p.cfg.Engines))
	for i := range specs {
		s := &p.engines[i]
		specs[i] = admission.EngineSpec{
			Name: p.cfg.Engines[i].Name, Slots: int64(s.caps.Slots), KV: int64(s.caps.KVTokens), Block: max(int64(s.caps.BlockSize), 1),
			MaxContext: int64(s.caps.MaxContext), Boundary: p.cfg.Engines[i].Boundary, Ordered: s.caps.Priority, Fatal: s.caps.Fatal,
		}
		if !s.known {
			// Nothing is admitted to it, but it keeps its place in the table.
			specs[i].Slots, specs[i].KV, specs[i].Closed = 1, 1, true
		}
	}
	t, err := p.cfg.Resolve(specs)
	if err != nil {
		if p.core == nil {
			p.why = err
		}
		p.cfg.Log.Error("no table for the engines as they are", "pool", p.cfg.Name, "err", err)
		return
	}
	if p.table != nil {
		t.Rev = p.table.Rev + 1
	} else {
		t.Rev = 1
	}
	t.Drain = p.drain
	p.table = t
	if p.core == nil {
		p.core = admission.New(t, p.cfg.Capacity)
		for i := range p.engines {
			p.stepLocked(&admission.Event{Kind: admission.Observe, Engine: admission.Engine(i), Gauge: admission.Gauge{
				State: p.engines[i].state, Asked: p.now(), Running: -1, KV: -1, Progress: -1, Preemptions: -1,
			}})
		}
		return
	}
	p.stepLocked(&admission.Event{Kind: admission.Apply, Table: t})
}

// observed gives a sample to the core.
func (p *Pool) observed(i int, state admission.State, o *engine.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.engines[i]
	s.last = *o
	if s.state != state {
		line := journal.Event{
			Kind: journal.EngineState, Mono: int64(p.now()), Pool: p.cfg.Name, Engine: p.cfg.Engines[i].Name, State: state.String(),
			Running: max(o.Running, 0), Waiting: max(o.Waiting, 0), KVUsed: int64(max(o.KVUsed, 0)),
		}
		p.journal(&line)
		p.cfg.Log.Info("engine state", "pool", p.cfg.Name, "engine", p.cfg.Engines[i].Name, "state", state.String(), "was", s.state.String(), "err", o.Err)
		s.state = state
	}
	if p.core == nil {
		return
	}
	running := int32(-1)
	if o.Running >= 0 {
		running = int32(o.Running + max(o.Waiting, 0))
	}
	p.stepLocked(&admission.Event{Kind: admission.Observe, Engine: admission.Engine(i), Gauge: admission.Gauge{
		State: state, Asked: admission.Time(o.Asked.Sub(p.cfg.Start)), Running: running, KV: int64(o.KVUsed), Progress: o.Progress, Preemptions: o.Preemptions,
	}})
}

// EngineView is one engine as the pool sees it.
type EngineView struct {
	Name         string              `json:"name"`
	State        string              `json:"state"`
	Known        bool                `json:"known"`
	Capabilities engine.Capabilities `json:"capabilities"`
	Running      int                 `json:"running"`
	Waiting      int                 `json:"waiting"`
	KVUsed       int                 `json:"kv_used_tokens"`
	SampleAgeMS  int64               `json:"sample_age_ms"`
	Error        string              `json:"error,omitempty"`
}

// Engines returns the engines as they were last seen.
func (p *Pool) Engines() []EngineView {
	p.mu.Lock()
	defer p.mu.Unlock()
	views := make([]EngineView, len(p.engines))
	for i := range p.engines {
		s := &p.engines[i]
		v := EngineView{
			Name: p.cfg.Engines[i].Name, State: s.state.String(), Known: s.known, Capabilities: s.caps,
			Running: s.last.Running, Waiting: s.last.Waiting, KVUsed: s.last.KVUsed, SampleAgeMS: -1,
		}
		v.Capabilities.Models = slices.Clone(s.caps.Models)
		if !s.last.At.IsZero() {
			v.SampleAgeMS = time.Since(s.last.At).Milliseconds()
		}
		if s.last.Err != nil {
			v.Error = s.last.Err.Error()
		}
		views[i] = v
	}
	return views
}
