package fleetsim

import (
	"slices"

	"headgate/control"
)

// demand lets requests come, to replicas and classes that are busy by turns.
func (w *world) demand() {
	if w.calm && w.now > w.calmAt+w.calmLoad() {
		return
	}
	hot := w.rng.IntN(len(w.replicas))
	class := w.rng.IntN(len(w.p.pool.Classes))
	end := w.now + w.between(500*ms, 6*sec)
	focus := w.rng.Float64()
	pace := w.p.arrive
	if w.chance(0.3) {
		pace *= 4
	}
	var next func()
	next = func() {
		r, k := hot, class
		if w.chance(focus) {
			r = w.rng.IntN(len(w.replicas))
		}
		if w.chance(0.4) {
			k = w.rng.IntN(len(w.p.pool.Classes))
		}
		if to := w.replicas[r]; to.up {
			prompt, out := 1+w.rng.Int32N(w.p.prompt), 1+w.rng.Int32N(w.p.out)
			if w.chance(0.5) {
				out = w.p.out
			}
			w.at(w.now, &to.part, func() { to.offer(k, prompt, out) })
		}
		if w.now >= end || w.calm && w.now > w.calmAt+w.calmLoad() {
			w.demand()
			return
		}
		w.at(w.now+w.between(pace/4, pace*7/4), nil, next)
	}
	w.at(w.now+w.between(0, pace*2), nil, next)
}

// fault does one after the other what nobody wants, until the faults are over.
func (w *world) fault() {
	w.at(w.now+w.between(w.p.every/4, w.p.every*7/4), nil, func() {
		if w.calm {
			return
		}
		w.oneFault()
		w.fault()
	})
}

func (w *world) oneFault() {
	r := w.replicas[w.rng.IntN(len(w.replicas))]
	c := w.controllers[w.rng.IntN(len(w.controllers))]
	if w.chance(0.6) {
		for _, o := range w.controllers {
			if o.alloc != nil {
				c = o // whoever leads is worth more
			}
		}
	}
	long := w.between(100*ms, 2*w.p.ttl)
	switch w.rng.IntN(16) {
	case 0, 1:
		w.stop(&r.part, long, PausedReplica)
	case 2, 3:
		w.stop(&c.part, long, PausedController)
	case 4, 5:
		if w.chance(0.3) {
			long += w.between(0, 30*sec) // until what was begun is overdue
		}
		w.cut(&r.part, long)
	case 6:
		w.cut(&c.part, long)
	case 7, 8:
		w.crashReplica(r)
	case 9, 10:
		w.crashController(c)
	case 11:
		w.stats.Faults[StoreDown]++
		w.log(nil, "the store is down for %.3f s", float64(long)/1e9)
		w.store.down = max(w.store.down, w.now+long)
		w.at(w.store.down, &w.store.part, func() {
			if w.now >= w.store.down {
				w.store.ready()
			}
		})
	case 12:
		w.stop(&w.store.part, long/2, PausedStore)
	case 13:
		if r.up {
			d := w.between(10*ms, w.p.ttl)
			w.stats.Faults[ClockJump]++
			w.log(&r.part, "its clock jumps by %.3f s", float64(d)/1e9)
			r.jump(d)
			r.armed, r.due = 0, 0
			r.arm()
			r.dueAgain()
		}
	case 14:
		w.reconfigure()
	case 15:
		w.forgetOne()
		if w.p.foreign {
			w.foreignLoad()
		}
	}
}

// stop is a SIGSTOP: the part goes on with what is then in its inbox.
func (w *world) stop(p *part, d Time, kind Fault) {
	if !p.up || p.asleep > w.now {
		return
	}
	w.stats.Faults[kind]++
	w.log(p, "is stopped for %.3f s", float64(d)/1e9)
	p.asleep = w.now + d
	for _, r := range w.replicas {
		if p == &r.part {
			r.outlived()
		}
	}
	w.at(p.asleep, nil, func() {
		for _, c := range w.controllers {
			if p == &c.part && c.alloc != nil && c.epoch < w.store.epoch {
				w.stats.Faults[OldLeader]++
			}
		}
	})
}

// cut keeps a part from the store, in one direction or both.
func (w *world) cut(p *part, d Time) {
	w.stats.Faults[Cut]++
	w.log(p, "is cut off for %.3f s", float64(d)/1e9)
	which := w.rng.IntN(4)
	if which != 0 {
		p.cutTo = max(p.cutTo, w.now+d)
	}
	if which != 1 {
		p.cutFrom = max(p.cutFrom, w.now+d)
	}
}

func (w *world) crashReplica(r *replica) {
	if !r.up {
		return
	}
	orphans := w.chance(0.6)
	w.stats.Faults[CrashedReplica]++
	if orphans && len(r.life.jobs) > 0 {
		w.stats.Faults[Orphans]++
	}
	w.log(&r.part, "is killed; orphans: %v", orphans)
	r.kill(orphans)
	r.asleep = 0
	again := w.between(50*ms, 3*w.p.ttl)
	if w.chance(0.5) {
		again = w.between(10*ms, sec)
	}
	w.at(w.now+again, &r.part, r.start)
}

func (w *world) crashController(c *controller) {
	if !c.up {
		return
	}
	w.stats.Faults[CrashedController]++
	w.log(&c.part, "is killed")
	c.kill()
	c.asleep = 0
	w.at(w.now+w.between(10*ms, 2*w.p.ttl), &c.part, c.start)
}

// reconfigure is an operator's change of the floors; each part has it when it has it.
func (w *world) reconfigure() {
	p := *w.p.pool
	p.Classes = slices.Clone(p.Classes)
	for k := range p.Classes {
		c := &p.Classes[k]
		n := w.rng.Int64N(c.Floor[0] + 1)
		if k == 0 {
			n = max(n, 1)
		}
		c.Floor = control.Amount{min(n, c.Floor[0]), min(n, c.Floor[0]) * p.Unit[1]}
		c.Unlent = control.Amount{min(c.Unlent[0], c.Floor[0]), min(c.Unlent[1], c.Floor[1])}
	}
	// What one gives up another may have.
	if k := w.rng.IntN(len(p.Classes)); w.chance(0.7) && !p.Classes[k].Windowed && p.Classes[k].Ceiling == (control.Amount{}) {
		left := w.p.base.Envelope()[0] - p.Survival[0]*int64(w.p.replicas*len(p.Engines))
		for j := range p.Classes {
			left -= p.Classes[j].Floor[0]
		}
		n := p.Classes[k].Floor[0] + w.rng.Int64N(max(left, 0)+1)
		p.Classes[k].Floor = control.Amount{n, n * p.Unit[1]}
	}
	w.stats.Faults[Reconfigured]++
	w.log(nil, "the pool is configured anew: %+v", p.Classes)
	base := *w.p.base
	base.Rev++
	base.Classes = slices.Clone(base.Classes)
	for k := range base.Classes {
		base.Classes[k].Floor, base.Classes[k].Unlent = p.Classes[k].Floor, p.Classes[k].Unlent
	}
	w.p.pool, w.p.base = &p, &base
	for _, r := range w.replicas {
		if r.up {
			w.at(w.now+w.between(0, 3*sec), &r.part, func() { r.configure(w.p.base) })
		}
	}
	for _, c := range w.controllers {
		if c.up {
			w.at(w.now+w.between(0, 3*sec), &c.part, func() { c.configure(w.p.pool) })
		}
	}
}

// forgetOne is an operator who says that a replica that is down will not come back.
func (w *world) forgetOne() {
	for _, r := range w.replicas {
		if r.up || r.life == nil || w.store.member(r.name) != nil {
			continue
		}
		for _, c := range w.controllers {
			if c.alloc == nil || c.epoch != w.store.epoch || c.asleep > w.now {
				continue
			}
			w.stats.Faults[Forgotten]++
			w.log(&c.part, "is told to forget %s", r.name)
			for _, l := range w.lives {
				if l.id.Replica == r.name {
					w.forgotten[l.id] = true
				}
			}
			c.step(&control.Event{Kind: control.Forget, Member: control.Member{ID: control.ID{Replica: r.name}}})
			return
		}
	}
}

// foreignLoad is what somebody else sends to an engine.
func (w *world) foreignLoad() {
	e := w.engines[w.rng.IntN(len(w.engines))]
	n := w.rng.Int64N(e.total[0]/2 + 1)
	e.foreign = control.Amount{n, n * w.p.pool.Unit[1]}
	w.stats.Foreign++
	w.log(nil, "foreign load on engine %d: %s", e.n, e.foreign)
}
