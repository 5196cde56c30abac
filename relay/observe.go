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
	p.mu.Lock()
	p.following = ctx
	for i := range p.engines {
		if !p.live().gone[i] {
			p.followLocked(i)
		}
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.following = nil
	p.mu.Unlock()
	p.followers.Wait()
}

// followLocked begins to read an engine's load, if the pool runs.
func (p *Pool) followLocked(i int) {
	if p.following == nil {
		return
	}
	ctx, stop := context.WithCancel(p.following)
	p.engines[i].stop = stop
	p.followers.Go(func() { p.follow(ctx, i) })
}

// follow keeps one engine's state up to date, until it is removed.
func (p *Pool) follow(ctx context.Context, i int) {
	p.mu.Lock()
	turn, e := p.engines[i].turn, p.live().Engines[i]
	p.mu.Unlock()
	every := e.ObserveEvery
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		o := e.Adapter.Observe(ctx)
		if ctx.Err() != nil {
			return
		}
		if state, known := p.judge(i, &o); known {
			// What an engine is may have changed while it was away.
			if state == admission.Ready && p.away(i, &o) {
				state = p.discover(ctx, i, turn)
			}
			p.observed(i, turn, state, &o)
		}
		p.replan(&o)
		if now := p.live().Engines[i].ObserveEvery; now != every {
			every = now
			tick.Reset(every)
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
	if p.plan.busy() {
		return false
	}
	return p.plan.arriving() || !s.taken || s.state != admission.Ready || o.Progress >= 0 && o.Progress < s.last.Progress
}

// discover asks an engine what it is and brings the table up to date. An engine
// that does not say so yet is loading, and so is one that no table can be made
// with: by the old one it might be given more than it has.
func (p *Pool) discover(ctx context.Context, i, turn int) admission.State {
	p.mu.Lock()
	e := p.live().Engines[i]
	p.mu.Unlock()
	caps, err := e.Adapter.Capabilities(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.cfg.Log.Warn("engine does not say what it is", "pool", p.cfg.Name, "engine", e.Name, "err", err)
		}
		return admission.Loading
	}
	if e.Found != nil {
		caps = e.Found(caps)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.engines[i]
	if s.turn != turn {
		return admission.Down
	}
	if err := p.profiledLocked(&caps); err != nil {
		return admission.Loading
	}
	same := s.known && sameCapacity(&s.caps, &caps)
	s.known, s.caps, s.missed, s.misread = true, caps, nil, 0
	s.epoch++
	p.listLocked()
	p.troublesomeLocked()
	p.recheckLocked()
	if same && s.taken {
		p.arrivedLocked()
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
	p.arrivedLocked()
	return admission.Ready
}

func sameCapacity(a, b *engine.Capabilities) bool {
	return a.Slots == b.Slots && a.KVTokens == b.KVTokens && a.BlockSize == b.BlockSize && a.MaxContext == b.MaxContext &&
		a.Priority == b.Priority && a.Fatal == b.Fatal && a.PrefixCache == b.PrefixCache && a.TokenIDs == b.TokenIDs && a.ChatTokenIDs == b.ChatTokenIDs &&
		a.TextCompletions == b.TextCompletions && a.FinalMessage == b.FinalMessage
}

// takeLocked makes a table that has engine i as it is now, with every other one
// that is known: shares that one engine is too small for may fit two. If there
// is none, the others that the present table has are kept to.
func (p *Pool) takeLocked(i int) bool {
	s := &p.engines[i]
	live := p.live()
	t, err := p.tableLocked(live, func(k int) bool { return p.engines[k].known })
	all := err == nil
	if err != nil {
		t, err = p.tableLocked(live, func(k int) bool { return p.engines[k].taken || k == i })
	}
	if err != nil {
		s.taken = false
		if p.why == nil || p.why.Error() != err.Error() {
			p.cfg.Log.Error("no table for the engines as they are", "pool", p.cfg.Name, "engine", p.live().Engines[i].Name, "err", err)
		}
		p.why = err
		return false
	}
	cores, err := p.coresLocked(live)
	if err != nil {
		s.taken, p.why = false, err
		p.cfg.Log.Error("no table for a profile", "pool", p.cfg.Name, "err", err)
		return false
	}
	p.refitLocked(cores)
	p.why, s.taken = nil, true
	for k := range p.engines {
		p.engines[k].taken = p.engines[k].taken || all && p.engines[k].known
	}
	if p.core != nil {
		p.applyLocked(t)
		return true
	}
	p.stampLocked(t, 1)
	p.core = p.newMindLocked(live.Observe)
	return true
}

// applyLocked gives the core its next table.
func (p *Pool) applyLocked(t *admission.Table) {
	p.stampLocked(t, p.table.Rev+1)
	for _, m := range p.minds {
		p.stepLocked(m, &admission.Event{Kind: admission.Apply, Table: p.tableFor(m.shadow != nil)})
	}
}

// specsLocked describes the engines to the core. A closed one is given nothing,
// and keeps its place in the table.
func (p *Pool) specsLocked(live *settings, open func(i int) bool) []admission.EngineSpec {
	specs := make([]admission.EngineSpec, len(live.Engines))
	for i := range specs {
		if !open(i) {
			specs[i] = admission.EngineSpec{Name: live.Engines[i].Name, Slots: 1, KV: 1, Block: 1, Closed: true}
			continue
		}
		s := &p.engines[i]
		specs[i] = admission.EngineSpec{
			Name: live.Engines[i].Name, Slots: int64(s.caps.Slots), KV: int64(s.caps.KVTokens), Block: max(int64(s.caps.BlockSize), 1),
			MaxContext: int64(s.caps.MaxContext), Boundary: live.Engines[i].Boundary, Ordered: s.caps.Priority, Fatal: s.caps.Fatal,
			Together: s.caps.StepAborts,
			Caches:   s.caps.PrefixCache, Splits: p.warmsLocked(live, i),
			GaugeAge: max(leastGaugeAge, 2*live.Engines[i].ObserveEvery),
		}
	}
	return specs
}

// observed gives a sample to the core.
func (p *Pool) observed(i, turn int, state admission.State, o *engine.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engines[i].turn != turn {
		return
	}
	p.engines[i].last = *o
	if p.fleet != nil {
		p.fleet.sampled(i)
	}
	p.stateLocked(i, state, o.Err)
	if p.core == nil {
		return
	}
	running := int32(-1)
	if o.Running >= 0 {
		running = int32(o.Running + max(o.Waiting, 0))
	}
	p.allLocked(&admission.Event{Kind: admission.Observe, Engine: admission.Engine(i), Gauge: admission.Gauge{
		State: p.shownLocked(state), Asked: admission.Time(o.Asked.Sub(p.cfg.Start)), Running: running, KV: int64(o.KVUsed), Progress: o.Progress, Preemptions: o.Preemptions,
	}})
}

// stateLocked notes a change of an engine's state; err is why.
func (p *Pool) stateLocked(i int, state admission.State, err error) {
	s := &p.engines[i]
	if !s.told && state != admission.Ready {
		// Down is where every engine begins, so that this is no change.
		p.cfg.Log.Warn("engine not ready", "pool", p.cfg.Name, "engine", p.live().Engines[i].Name, "state", state.String(), "err", err)
	}
	s.told = true
	if s.state == state {
		return
	}
	p.journal(&journal.Event{
		Kind: journal.EngineState, Mono: int64(p.now()), Pool: p.cfg.Name, Engine: p.live().Engines[i].Name, State: state.String(),
		Running: max(s.last.Running, 0), Waiting: max(s.last.Waiting, 0), KVUsed: int64(max(s.last.KVUsed, 0)),
	})
	p.cfg.Log.Info("engine state", "pool", p.cfg.Name, "engine", p.live().Engines[i].Name, "state", state.String(), "was", s.state.String(), "err", err)
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
	var views []EngineView
	for i := range p.engines {
		s := &p.engines[i]
		if p.live().gone[i] {
			continue
		}
		v := EngineView{
			Name: p.live().Engines[i].Name, State: s.state.String(), Known: s.known, Capabilities: s.caps,
			Running: s.last.Running, Waiting: s.last.Waiting, KVUsed: s.last.KVUsed, SampleAgeMS: -1,
		}
		v.Capabilities.Models = slices.Clone(s.caps.Models)
		if !s.last.At.IsZero() {
			v.SampleAgeMS = time.Since(s.last.At).Milliseconds()
		}
		if s.last.Err != nil {
			v.Error = s.last.Err.Error()
		}
		views = append(views, v)
	}
	return views
}
