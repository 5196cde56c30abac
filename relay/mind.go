package relay

import (
	"headgate/admission"
)

// decider is what decides about a pool's requests: a core, or a shadow where the pool
// only observes.
type decider interface {
	Step(now admission.Time, ev *admission.Event, fx []admission.Effect) []admission.Effect
	Next() (admission.Time, bool)
	Snapshot() *admission.Snapshot
	Brief() *admission.Brief
	Work(k admission.Class, t admission.Tenant) (w admission.Work, ok bool)
}

// mind is one decider of a pool. A pool that changes between enforcing and observing
// has two for a time: a request stays with the one that it was offered to, which hears
// of all that becomes of it, and to the other what it holds is foreign load, as the
// engines' gauges show it.
type mind struct {
	decider
	shadow *admission.Shadow // nil: it enforces
	live   int               // calls inside Serve that were offered to it
}

// newMindLocked makes a mind for the present table and engines.
func (p *Pool) newMindLocked(observe bool) *mind {
	m := &mind{}
	t := p.tableFor(observe)
	if observe {
		m.shadow = admission.NewShadow(t, p.cfg.Capacity)
		m.decider = m.shadow
	} else {
		m.decider = admission.New(t, p.cfg.Capacity)
	}
	p.minds = append(p.minds, m)
	for k := range p.engines {
		p.stepLocked(m, &admission.Event{Kind: admission.Observe, Engine: admission.Engine(k), Gauge: admission.Gauge{
			State: p.shownLocked(p.engines[k].state), Asked: p.now(), Running: -1, KV: -1, Progress: -1, Preemptions: -1,
		}})
	}
	return m
}

// tableFor is the present table as one of the two takes it: what still waits in the
// core of a pool that now observes is let go, and a shadow is told nothing of the kill
// switch, since it passes all on anyhow and is to say what would be without.
func (p *Pool) tableFor(shadow bool) *admission.Table {
	t := *p.table
	if shadow {
		t.Bypass = false
	} else {
		t.Bypass = t.Bypass || p.live().Observe
		if p.fleet != nil && !t.Bypass {
			return p.shareOf(&t)
		}
	}
	return &t
}

// modeLocked makes up its mind as the settings in force want it.
func (p *Pool) modeLocked() {
	observe := p.live().Observe
	if p.core == nil || (p.core.shadow != nil) == observe {
		return
	}
	p.cfg.Log.Info("the pool's mode", "pool", p.cfg.Name, "observe", observe)
	p.core = nil
	for _, m := range p.minds {
		if !observe && m.shadow == nil {
			p.core = m // it knows what it has learned
		}
	}
	if p.core == nil {
		p.core = p.newMindLocked(observe)
	}
	p.forgetLocked()
}

// forgetLocked lets go of shadows that are not used any more.
func (p *Pool) forgetLocked() {
	var kept []*mind
	for _, m := range p.minds {
		if m == p.core || m.shadow == nil || m.live > 0 {
			kept = append(kept, m)
		}
	}
	p.minds = kept
}

// allLocked gives an event to every mind.
func (p *Pool) allLocked(ev *admission.Event) {
	for _, m := range p.minds {
		p.stepLocked(m, ev)
	}
}

// Observed is what enforcing would have done since the pool began to observe; nil:
// it does not.
func (p *Pool) Observed() *admission.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core == nil || p.core.shadow == nil {
		return nil
	}
	p.stepLocked(p.core, &admission.Event{Kind: admission.Tick})
	return p.core.shadow.Report()
}
