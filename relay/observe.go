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
			if state == admission.Ready && p.away(i, &o) {
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

// away tells whether the engine may be another than the one that the table
// knows: it was not ready, or its counters have started over.
func (p *Pool) away(i int, o *engine.Observation) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.engines[i]
	return !s.taken || s.state != admission.Ready || o.Progress >= 0 && o.Progress < s.last.Progress
}

// discover asks an engine what it is and brings the table up to date. An engine
// that does not say so yet is loading, and so is one that no table can be made
// with: by the old one it might be given more than it has.
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
	same := s.known && sameCapacity(&s.caps, &caps)
	s.known, s.caps, s.unable, s.misread = true, caps, nil, 0
	s.epoch++
	p.troublesomeLocked()
	if same && s.taken {
		return admission.Ready
	}
	if !same {
		p.cfg.Log.Info("engine found", "pool", p.cfg.Name, "engine", e.Name, "kind", caps.Kind, "version", caps.Version,
			"slots", caps.Slots, "kv_tokens", caps.KVTokens, "block_size", caps.BlockSize, "max_context", caps.MaxContext,
			"priority", caps.Priority, "prefix_cache", caps.PrefixCache, "kv_exhaustion_fatal", caps.Fatal)
	}
	if !p.takeLocked(i) {
		return admission.Loading
	}
	return admission.Ready
}

func sameCapacity(a, b *engine.Capabilities) bool {
	return a.Slots == b.Slots && a.KVTokens == b.KVTokens && a.BlockSize == b.BlockSize && a.MaxContext == b.MaxContext &&
		a.Priority == b.Priority && a.Fatal == b.Fatal && a.PrefixCache == b.PrefixCache && a.TokenIDs == b.TokenIDs && a.ChatTokenIDs == b.ChatTokenIDs
}

// takeLocked makes a table that has engine i as it is now, with every other one
// that is known: shares that one engine is too small for may fit two. If there
// is none, the others that the present table has are kept to.
func (p *Pool) takeLocked(i int) bool {
	s := &p.engines[i]
	t, err := p.cfg.Resolve(p.specsLocked(func(e *engineState) bool { return e.known }))
	all := err == nil
	if err != nil {
		t, err = p.cfg.Resolve(p.specsLocked(func(e *engineState) bool { return e.taken || e == s }))
	}
	if err != nil {
		s.taken = false
		if p.why == nil || p.why.Error() != err.Error() {
			p.cfg.Log.Error("no table for the engines as they are", "pool", p.cfg.Name, "engine", p.cfg.Engines[i].Name, "err", err)
		}
		p.why = err
		return false
	}
	p.why, s.taken = nil, true
	for k := range p.engines {
		p.engines[k].taken = p.engines[k].taken || all && p.engines[k].known
	}
	t.Rev, t.Drain = 1, p.drain
	if p.table != nil {
		t.Rev = p.table.Rev + 1
	}
	p.table = t
	if p.core != nil {
		p.stepLocked(&admission.Event{Kind: admission.Apply, Table: t})
		return true
	}
	p.core = admission.New(t, p.cfg.Capacity)
	for k := range p.engines {
		p.stepLocked(&admission.Event{Kind: admission.Observe, Engine: admission.Engine(k), Gauge: admission.Gauge{
			State: p.engines[k].state, Asked: p.now(), Running: -1, KV: -1, Progress: -1, Preemptions: -1,
		}})
	}
	return true
}

// specsLocked describes the engines to the core. A closed one is given nothing,
// and keeps its place in the table. What a prompt can't be cut into pieces for is
// not said to cache prefixes, whatever it does.
func (p *Pool) specsLocked(open func(*engineState) bool) []admission.EngineSpec {
	specs := make([]admission.EngineSpec, len(p.engines))
	for i := range specs {
		s := &p.engines[i]
		if !open(s) {
			specs[i] = admission.EngineSpec{Name: p.cfg.Engines[i].Name, Slots: 1, KV: 1, Block: 1, Closed: true}
			continue
		}
		specs[i] = admission.EngineSpec{
			Name: p.cfg.Engines[i].Name, Slots: int64(s.caps.Slots), KV: int64(s.caps.KVTokens), Block: max(int64(s.caps.BlockSize), 1),
			MaxContext: int64(s.caps.MaxContext), Boundary: p.cfg.Engines[i].Boundary, Ordered: s.caps.Priority, Fatal: s.caps.Fatal,
			Together: s.caps.StepAborts && s.caps.Priority,
			Caches:   p.warmsLocked(i),
			GaugeAge: max(leastGaugeAge, 2*p.cfg.Engines[i].ObserveEvery),
		}
	}
	return specs
}

// observed gives a sample to the core.
func (p *Pool) observed(i int, state admission.State, o *engine.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.engines[i].last = *o
	p.stateLocked(i, state, o.Err)
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

// stateLocked notes a change of an engine's state; err is why.
func (p *Pool) stateLocked(i int, state admission.State, err error) {
	s := &p.engines[i]
	if !s.told && state != admission.Ready {
		// Down is where every engine begins, so that this is no change.
		p.cfg.Log.Warn("engine not ready", "pool", p.cfg.Name, "engine", p.cfg.Engines[i].Name, "state", state.String(), "err", err)
	}
	s.told = true
	if s.state == state {
		return
	}
	p.journal(&journal.Event{
		Kind: journal.EngineState, Mono: int64(p.now()), Pool: p.cfg.Name, Engine: p.cfg.Engines[i].Name, State: state.String(),
		Running: max(s.last.Running, 0), Waiting: max(s.last.Waiting, 0), KVUsed: int64(max(s.last.KVUsed, 0)),
	})
	p.cfg.Log.Info("engine state", "pool", p.cfg.Name, "engine", p.cfg.Engines[i].Name, "state", state.String(), "was", s.state.String(), "err", err)
	s.state = state
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
