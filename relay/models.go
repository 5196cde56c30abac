package relay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"headgate/admission"
	"headgate/engine"
	"headgate/wire"
)

// Model is one model that the pool serves.
type Model struct {
	ID string
	// MaxContext in tokens that every engine of the pool takes that has the model: the
	// engine's own limit, or all of its KV where that is less; 0 if none says.
	MaxContext int
	// Of a pool that re-plans, the profile that its engine is in, and all that there are;
	// MaxContext is then what each gives.
	Profile  string
	Profiles []ModelProfile
}

// ModelProfile is what a profile gives a model.
type ModelProfile struct {
	Name       string
	MaxContext int // tokens of one sequence
	Slots      int
}

// Match tells how well a model's name is one of the pool's: 0 is not at all, a whole
// name is better than a beginning, and a longer beginning than a shorter one.
func (p *Pool) Match(model string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.matchLocked(model)
}

// Estimate is how many tokens a request's prompt is priced with, by what was learned
// of its model.
func (p *Pool) Estimate(req *wire.Request) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.price.Estimate(req.Model, req.Content)
}

// unheard tells that engines say which models they serve, and one has not yet.
func (p *Pool) unheard() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live().Models) == 0 && p.unheardLocked()
}

func (p *Pool) unheardLocked() bool { return !p.noneLocked(func(int) bool { return false }) }

// exact is better than every beginning.
const exact = 1 << 30

func (p *Pool) matchLocked(model string) int {
	if p.alias(model) != "" {
		return exact
	}
	best := 0
	for _, name := range p.live().Models {
		switch prefix, open := strings.CutSuffix(name, "*"); {
		case name == model:
			return exact
		case open && strings.HasPrefix(model, prefix):
			best = max(best, 1+len(prefix))
		}
	}
	if len(p.live().Models) > 0 {
		return best
	}
	for i := range p.engines {
		if lists(&p.engines[i].caps, model) {
			return exact
		}
	}
	return 0
}

// alias is the model that a name stands for; "" if it is no alias.
func (p *Pool) alias(name string) string {
	for _, a := range p.live().Aliases {
		if a.Name == name {
			return a.Model
		}
	}
	return ""
}

func lists(caps *engine.Capabilities, model string) bool {
	return slices.ContainsFunc(caps.Models, func(m engine.Model) bool { return m.ID == model })
}

// upstreamLocked is the name by which an engine knows a model of the pool, and
// whether it has it. An alias stands for its model and nothing else. A name that the
// configuration gives to the pool, and that none of its engines lists, stands for the
// first that one does, an adapter aside; but not for as long as an engine may come that
// does list it, as one did before. An engine that lists nothing is believed to have
// everything.
func (p *Pool) upstreamLocked(i int, name string) (model string, has bool) {
	caps := &p.engines[i].caps
	if target := p.alias(name); target != "" {
		return target, len(caps.Models) == 0 || lists(caps, target)
	}
	switch {
	case len(caps.Models) == 0 || lists(caps, name):
		return name, true
	case len(p.live().Models) == 0 || p.matchLocked(name) == 0 || p.listed[name]:
		return name, false
	}
	first := slices.IndexFunc(caps.Models, func(m engine.Model) bool { return m.Parent == "" })
	return caps.Models[max(first, 0)].ID, true
}

// listLocked notes what the engines list.
func (p *Pool) listLocked() {
	if !p.unheardLocked() {
		clear(p.listed) // all have said it
	}
	for i := range p.engines {
		for _, m := range p.engines[i].caps.Models {
			p.listed[m.ID] = true
		}
	}
}

// hasLocked tells which engines have a model.
func (p *Pool) hasLocked(model string) func(i int) bool {
	return func(i int) bool { _, has := p.upstreamLocked(i, model); return has }
}

// servesLocked tells which engines can serve a request: those that have its model, and
// of an answer that was begun those that have the very one.
func (p *Pool) servesLocked(r *record) func(i int) bool {
	if r.kept == nil {
		return p.hasLocked(r.call.Request.Model)
	}
	return func(i int) bool {
		caps := &p.engines[i].caps
		return len(caps.Models) == 0 || lists(caps, r.model)
	}
}

// barredLocked is a set of the engines that are known not to serve a request.
func (p *Pool) barredLocked(r *record) (barred uint64) {
	serves := p.servesLocked(r)
	for i := range p.engines {
		if p.engines[i].known && !serves(i) {
			barred |= 1 << i
		}
	}
	return barred
}

// noneLocked tells that every engine is known and it is so of none.
func (p *Pool) noneLocked(so func(i int) bool) bool {
	for i := range p.engines {
		if !p.live().gone[i] && (!p.engines[i].known || so(i)) {
			return false
		}
	}
	return true
}

// unservedLocked is why a request can't be served, however long it waits; nil: it can,
// or it is not known yet. One whose answer was begun outlives its model's name here.
func (p *Pool) unservedLocked(r *record) *wire.Error {
	model := r.call.Request.Model
	matches := p.matchLocked(model) > 0
	removed := r.kept == nil && !matches && len(p.live().Models) > 0
	switch {
	case !removed && !p.noneLocked(p.servesLocked(r)):
		return nil
	case matches:
		return wire.NewError(wire.CodeEngineUnavailable, "no engine of pool %s has model %s", p.cfg.Name, cmp.Or(p.alias(model), model))
	}
	var known []string
	for _, m := range p.modelsLocked() {
		known = append(known, m.ID)
	}
	return wire.ModelNotFound(model, known)
}

// recheckLocked looks anew at who can serve what there is, after models or engines have
// changed. What waits for nothing is refused.
func (p *Pool) recheckLocked() {
	for _, r := range p.records {
		if r == nil {
			continue
		}
		if r.stage == stageWaiting && p.unservedLocked(r) != nil {
			p.stepLocked(r.mind, &admission.Event{Kind: admission.Cancel, Cause: admission.CauseUnavailable, ID: r.id})
			continue
		}
		p.barLocked(r)
	}
}

// barLocked tells the core where others are the engines that can't serve a request.
func (p *Pool) barLocked(r *record) {
	if barred := p.barredLocked(r); barred != r.barred {
		r.barred = barred
		p.stepLocked(r.mind, &admission.Event{Kind: admission.Bar, ID: r.id, Barred: barred})
	}
}

// longest is how many tokens one sequence of a model can have at an engine, prompt and
// output: the model's context, or all of the KV where that is less. context tells
// whether the engine says what the context is; 0: it says neither.
func longest(caps *engine.Capabilities, model string) (most int, context bool) {
	most = caps.MaxContext
	for _, m := range caps.Models {
		if m.ID == model && m.MaxContext > 0 {
			most = m.MaxContext
		}
	}
	context = most > 0
	if caps.KVTokens > 0 && (!context || caps.KVTokens < most) {
		most = caps.KVTokens
	}
	return most, context
}

// Models returns the models that the pool answers for now, aliases last. Of a
// beginning those are listed that engines have.
func (p *Pool) Models() []Model {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modelsLocked()
}

func (p *Pool) modelsLocked() []Model {
	var models []Model
	add := func(i int, name string) {
		upstream, has := p.upstreamLocked(i, name)
		if !has {
			return
		}
		k := slices.IndexFunc(models, func(m Model) bool { return m.ID == name })
		if k < 0 {
			models = append(models, Model{ID: name})
			k = len(models) - 1
		}
		// The tightest engine decides; one that does not say does not.
		m := &models[k]
		if most, _ := longest(&p.engines[i].caps, upstream); most > 0 && (m.MaxContext == 0 || most < m.MaxContext) {
			m.MaxContext = most
		}
	}
	known := func(each func(i int, caps *engine.Capabilities)) {
		for i := range p.engines {
			if p.engines[i].known {
				each(i, &p.engines[i].caps)
			}
		}
	}
	known(func(i int, caps *engine.Capabilities) {
		for _, name := range p.live().Models {
			if !strings.HasSuffix(name, "*") {
				add(i, name)
			}
		}
		for _, m := range caps.Models {
			if p.matchLocked(m.ID) > 0 {
				add(i, m.ID)
			}
		}
	})
	known(func(i int, _ *engine.Capabilities) {
		for _, a := range p.live().Aliases {
			add(i, a.Name)
		}
	})
	if p.plan != nil {
		// What is told here has to hold in whichever profile a request meets.
		for k := range models {
			m := &models[k]
			m.MaxContext, m.Profile = int(p.plan.contract.Guarantee()), p.profileLocked()
			for i := range p.plan.cfg.Profiles {
				q := &p.plan.cfg.Profiles[i]
				m.Profiles = append(m.Profiles, ModelProfile{Name: q.Name, MaxContext: int(contextOf(q)), Slots: q.Slots})
			}
		}
	}
	return models
}

// Problems says in words what is wrong with the pool while it serves: names of models
// that lead nowhere, models that push each other out of an engine, and what is to be known
// of its grant.
func (p *Pool) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(p.problemsLocked(), p.remarksLocked()...)
}

func (p *Pool) problemsLocked() (all []string) {
	for _, s := range Switches {
		if now := p.switches[s]; now.On {
			all = append(all, fmt.Sprintf("pool %s: switch %s is %s", p.cfg.Name, s, now.word()))
		}
	}
	if p.plan != nil && p.plan.amiss != nil && p.engines[0].state != admission.Ready {
		all = append(all, fmt.Sprintf("pool %s: engine %s: %v", p.cfg.Name, p.live().Engines[0].Name, p.plan.amiss))
	}
	for _, a := range p.live().Aliases {
		if p.noneLocked(p.hasLocked(a.Name)) {
			all = append(all, fmt.Sprintf("pool %s: alias %s: no engine has model %s", p.cfg.Name, a.Name, a.Model))
		}
	}
	for i := range p.engines {
		var own, out []string // models that the pool serves, and those of them that are not loaded
		for _, m := range p.engines[i].caps.Models {
			aliased := slices.ContainsFunc(p.live().Aliases, func(a Alias) bool { return a.Model == m.ID })
			if m.Parent != "" || !aliased && p.matchLocked(m.ID) == 0 {
				continue
			}
			own = append(own, m.ID)
			if m.Unloaded {
				out = append(out, m.ID)
			}
		}
		if len(own) > 1 && len(out) > 0 {
			all = append(all, fmt.Sprintf("pool %s: engine %s: models %s evict each other, of which %s is not loaded: name one in models, or give each an engine",
				p.cfg.Name, p.live().Engines[i].Name, strings.Join(own, ", "), strings.Join(out, ", ")))
		}
	}
	return all
}

// troublesomeLocked logs the problems when they change.
func (p *Pool) troublesomeLocked() {
	all := p.problemsLocked()
	text := strings.Join(all, "\n")
	if text == p.trouble {
		return
	}
	p.trouble = text
	for _, problem := range all {
		p.cfg.Log.Warn(problem)
	}
}
