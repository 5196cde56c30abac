package relay

import (
	"errors"
	"fmt"
	"slices"

	"headgate/admission"
)

// settings are what of a pool's Config can be changed while it runs. They are never
// written to once they are in force, so that whoever loads them has all of one
// configuration and nothing of another.
//
// Indices of classes and engines are those of the core's table, which never move:
// what is new is appended, what was removed stays and is closed, and what comes back
// gets its old place.
type settings struct {
	Config
	index map[string]admission.Class // of the classes that there are
	rank  []int                      // the index of each class of the configuration
	gone  []bool                     // engines that were removed
}

func newSettings(c Config) *settings {
	s := &settings{Config: c, index: map[string]admission.Class{}, gone: make([]bool, len(c.Engines))}
	for i, name := range c.Classes {
		s.index[name] = admission.Class(i)
		s.rank = append(s.rank, i)
	}
	return s
}

// live are the settings in force.
func (p *Pool) live() *settings { return p.settings.Load() }

// Change is a new configuration of a pool that was found to fit, and is not in
// force yet. It is to be committed or discarded.
type Change struct {
	pool  *Pool
	next  *settings
	fresh []int // engines that were not there before
}

// Prepare makes the change to the next configuration. Its name, capacity and what
// the pool writes to are those that it has. The error says why it can't be taken over;
// then nothing has changed.
//
// An engine is the same as before if its Name and Key are; it keeps its adapter, and
// of the others Open makes one.
//
// A queue that becomes shorter keeps those that wait in it. A class that is removed
// takes no more requests: what runs finishes, what waits is refused. So it is with a
// model; but what waits for one whose engines are replaced waits for the new ones.
func (p *Pool) Prepare(next Config) (*Change, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.live()
	c := &Change{pool: p, next: &settings{Config: p.cfg, index: map[string]admission.Class{}}}
	s := c.next
	s.Observe, s.Fingerprint = next.Observe, next.Fingerprint
	s.Models, s.Aliases, s.Resolve = next.Models, next.Aliases, next.Resolve
	s.IdleTimeout, s.Keepalive, s.MaxAnswer = next.IdleTimeout, next.Keepalive, next.MaxAnswer
	if next.Capacity > p.cfg.Capacity {
		return nil, fmt.Errorf("queues and engines of %d requests in all: the process has made room for %d; a restart makes more", next.Capacity, p.cfg.Capacity)
	}
	if err := s.takeClasses(now, next.Classes); err != nil {
		return nil, err
	}
	if err := c.takeEngines(now, next.Engines); err != nil {
		c.Discard()
		return nil, err
	}
	if p.plan != nil && (len(c.fresh) > 0 || len(next.Engines) != 1) {
		c.Discard()
		return nil, errors.New("an engine that is switched between profiles is replaced with a restart")
	}
	if _, err := p.tableLocked(s, func(i int) bool { return i < len(p.engines) && p.engines[i].known && !now.gone[i] }); err != nil && !errors.Is(err, errNoEngine) {
		c.Discard()
		return nil, err
	}
	if _, err := p.coresLocked(s); err != nil {
		c.Discard()
		return nil, err
	}
	return c, nil
}

func (s *settings) takeClasses(now *settings, names []string) error {
	s.Classes = slices.Clone(now.Classes)
	for _, name := range names {
		i := slices.Index(s.Classes, name)
		if i < 0 {
			i = len(s.Classes)
			s.Classes = append(s.Classes, name)
		}
		if n := len(s.rank); n > 0 && i < s.rank[n-1] {
			return fmt.Errorf("class %s comes behind class %s, and came before it when the process started: ranks change with a restart", name, s.Classes[s.rank[n-1]])
		}
		s.rank = append(s.rank, i)
		s.index[name] = admission.Class(i)
	}
	if n := len(s.Classes); n > admission.MaxClasses {
		return fmt.Errorf("%d classes since the process started, of which there are %d: at most %d; a restart forgets those that are gone", n, len(names), admission.MaxClasses)
	}
	return nil
}

func (c *Change) takeEngines(now *settings, engines []Engine) error {
	s := c.next
	s.Engines, s.gone = slices.Clone(now.Engines), make([]bool, len(now.Engines))
	for i := range s.gone {
		s.gone[i] = true
	}
	for _, e := range engines {
		ranked := make([]int, len(s.Classes))
		for k := range e.Priority {
			ranked[s.rank[k]] = e.Priority[k]
		}
		e.Priority = ranked
		i := slices.IndexFunc(s.Engines, func(o Engine) bool { return o.Name == e.Name && o.Key == e.Key })
		if i < 0 {
			i = len(s.Engines)
			s.Engines, s.gone = append(s.Engines, Engine{}), append(s.gone, true)
		}
		if i < len(now.gone) && !now.gone[i] {
			e.Adapter = s.Engines[i].Adapter
		} else {
			var err error
			if e.Adapter, err = e.Open(); err != nil {
				return fmt.Errorf("engine %s: %w", e.Name, err)
			}
			c.fresh = append(c.fresh, i)
		}
		s.Engines[i], s.gone[i] = e, false
	}
	if n := len(s.Engines); n > admission.MaxEngines {
		return fmt.Errorf("%d engines since the process started, of which there are %d: at most %d; a restart forgets those that are gone", n, len(engines), admission.MaxEngines)
	}
	return nil
}

// Discard closes what was opened for a change that is not made.
func (c *Change) Discard() {
	for _, i := range c.fresh {
		c.next.Engines[i].Adapter.Close()
	}
}

// Commit puts the change into force, in one step for every request. It fails, with
// nothing changed, if an engine has become another since Prepare that the new
// configuration does not fit.
func (c *Change) Commit() error {
	p, s := c.pool, c.next
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.engines) < len(s.Engines) {
		p.engines = append(p.engines, engineState{state: admission.Down})
	}
	stays := func(i int) bool { return !s.gone[i] && !slices.Contains(c.fresh, i) }
	t, err := p.tableLocked(s, func(i int) bool { return stays(i) && p.engines[i].known })
	cores, unfit := p.coresLocked(s)
	if unfit != nil {
		err = unfit
	}
	if err != nil && !errors.Is(err, errNoEngine) {
		p.engines = p.engines[:len(p.live().Engines)]
		c.Discard()
		return err
	}
	for i := range p.engines {
		if e := &p.engines[i]; !stays(i) {
			if e.stop != nil {
				e.stop()
			}
			if e.known {
				p.cfg.Log.Info("engine removed", "pool", p.cfg.Name, "engine", s.Engines[i].Name)
			}
			// What its adapter still does, attempts and their ends, goes on.
			*e = engineState{state: admission.Down, turn: e.turn + 1, epoch: e.epoch + 1}
		} else {
			e.taken = e.known
		}
	}
	for len(p.recalls) < len(s.Classes) {
		p.recalls = append(p.recalls, recall{})
	}
	if p.fleet != nil {
		for _, i := range c.fresh {
			p.fleet.share(s.Engines[i].Adapter)
		}
	}
	p.settings.Store(s)
	p.listLocked()
	p.recheckLocked()
	switch {
	case err != nil:
		p.why = err
		p.waitLocked(s)
	case p.core != nil:
		p.why = nil
		p.refitLocked(cores)
		p.applyLocked(t)
	}
	p.modeLocked()
	for _, i := range c.fresh {
		p.followLocked(i)
	}
	return nil
}

// waitLocked has the core wait until one of the new engines has said what it is: to
// it the old ones are down, so that what waits is measured by what they had.
func (p *Pool) waitLocked(s *settings) {
	if p.core == nil {
		return
	}
	t := *p.table
	t.Classes = slices.Clone(t.Classes)
	for i := len(t.Classes); i < len(s.Classes); i++ {
		t.Classes = append(t.Classes, closedClass(s.Classes[i], &t.Classes[0]))
	}
	t.Engines = append(slices.Clone(t.Engines), p.specsLocked(s, func(int) bool { return false })[len(t.Engines):]...)
	p.applyLocked(&t)
	for i := range s.gone {
		p.allLocked(&admission.Event{Kind: admission.Observe, Engine: admission.Engine(i), Gauge: admission.Gauge{
			State: admission.Down, Asked: p.now(), Running: -1, KV: -1, Progress: -1, Preemptions: -1,
		}})
	}
}

// closedClass is one that has nothing and gets nothing; like tells what it may still
// hold.
func closedClass(name string, like *admission.ClassSpec) admission.ClassSpec {
	return admission.ClassSpec{Name: name, Ceiling: like.Ceiling, IdleAfter: like.IdleAfter, DefaultOut: like.DefaultOut, Closed: true}
}

// errNoEngine tells that there is no table because no engine is known.
var errNoEngine = errors.New("no engine has answered yet")

// tableLocked makes the table of settings for those engines that are open.
func (p *Pool) tableLocked(s *settings, open func(i int) bool) (*admission.Table, error) {
	specs := p.specsLocked(s, open)
	if !slices.ContainsFunc(specs, func(e admission.EngineSpec) bool { return !e.Closed }) {
		return nil, errNoEngine
	}
	return tableOf(s, specs)
}

// tableOf is the table of settings for engines that are described.
func tableOf(s *settings, specs []admission.EngineSpec) (*admission.Table, error) {
	t, err := s.Resolve(specs)
	if err != nil {
		return nil, err
	}
	classes := make([]admission.ClassSpec, len(s.Classes))
	for i, name := range s.Classes {
		classes[i] = closedClass(name, &t.Classes[0])
	}
	for k := range t.Classes {
		classes[s.rank[k]] = t.Classes[k]
	}
	t.Classes = classes
	return t, nil
}
