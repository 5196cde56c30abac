package fleetsim

import (
	"slices"
	"strings"

	"headgate/control"
)

// calmLoad is for how long requests come after the faults.
func (w *world) calmLoad() Time {
	if w.p.seed%8 == 0 {
		return w.patience() + 4*sec
	}
	return 2 * sec
}

// patience is for how long at most, without faults, anybody waits who need not: a lease
// and the longest residual time, by clocks that are slow, and what messages and decisions
// take.
func (w *world) patience() Time {
	h := control.NewHolder("", control.ID{}, w.p.drift)
	return Time(float64(w.p.ttl+Time(max(h.Residual(w.p.longest), w.p.judge.Residual)))/(1-w.p.drift)) + 8*sec
}

// recover ends the faults and looks whether everything comes back: 5 and 6.
func (w *world) recover() {
	if w.bad != nil {
		return
	}
	w.calm, w.calmAt = true, w.now
	for _, p := range w.parts() {
		w.calmAt = max(w.calmAt, p.asleep, p.cutTo, p.cutFrom)
	}
	w.calmAt = max(w.calmAt, w.store.down)
	for _, r := range w.replicas {
		if !r.up {
			w.calmAt = max(w.calmAt, w.now+3*w.p.ttl) // by then it is
		}
	}
	for _, e := range w.engines {
		e.foreign = control.Amount{}
	}
	for _, l := range w.lives {
		for _, j := range l.jobs {
			w.at(w.calmAt+j.longest(), nil, func() { w.engines[j.engine].end(j, true) })
		}
	}
	w.log(nil, "the faults are over from %.6f on", float64(w.calmAt)/1e9)
	w.look()
	w.run(w.calmAt + w.calmLoad() + 100*ms)
	w.log(nil, "no more requests come")
	w.drain()
	w.run(w.now + w.patience())
	w.whole()
	w.flood()
}

func (w *world) parts() []*part {
	all := []*part{&w.store.part}
	for _, c := range w.controllers {
		all = append(all, &c.part)
	}
	for _, r := range w.replicas {
		all = append(all, &r.part)
	}
	return all
}

// look checks now and then that what waits within its floor does not wait for long.
func (w *world) look() {
	w.at(w.now+100*ms, nil, func() {
		w.protected()
		w.look()
	})
}

func (w *world) protected() {
	for k := range w.p.pool.Classes {
		c := &w.p.pool.Classes[k]
		if c.Windowed {
			continue
		}
		var used control.Amount
		for _, l := range w.lives {
			for _, j := range l.jobs {
				if j.class == k && !(j.over && j.freed) {
					used = plus(used, j.amount)
				}
			}
		}
		for _, r := range w.replicas {
			q := r.head(k)
			if q == nil {
				continue
			}
			// On two engines a floor may be there in two parts, neither of which is enough.
			need := q.need
			for range len(w.engines) - 1 {
				need = plus(need, w.p.pool.Unit)
			}
			if !within(plus(used, need), c.Floor) {
				q.owed = 0
			} else if q.owed == 0 {
				q.owed = w.now
			} else if w.now-max(q.owed, w.calmAt) > w.patience() {
				w.fail(5, "a request of class %s at %s that needs %s has waited for %.3f s, in which its class had no more than now: %s of a floor of %s", c.Name, r.name, q.need, float64(w.now-q.owed)/1e9, used, c.Floor)
			}
		}
	}
}

// head is who waits first in a class, nil if nobody does.
func (r *replica) head(k int) *request {
	for _, q := range r.requests {
		if q.class == k && q.since != running {
			return q
		}
	}
	return nil
}

// waiting tells whether anybody is, and who.
func (w *world) waiting() string {
	var b strings.Builder
	for _, r := range w.replicas {
		for k := range w.p.pool.Classes {
			if q := r.head(k); q != nil {
				if b.Len() > 0 {
					b.WriteString("; ")
				}
				b.WriteString(r.name + " for " + q.need.String() + " of class " + w.p.pool.Classes[k].Name)
			}
		}
	}
	return b.String()
}

// drain runs until everything that waits is served.
func (w *world) drain() {
	admissions, since := 0, w.now
	for w.bad == nil {
		who := w.waiting()
		if who == "" {
			return
		}
		if n := w.stats.Admissions; n != admissions {
			admissions, since = n, w.now
		}
		if w.now-since > w.patience() {
			w.fail(6, "for %.3f s nobody was admitted, and there wait: %s", float64(w.now-since)/1e9, who)
		}
		w.run(w.now + sec/2)
	}
}

// whole checks that no capacity is lost for good.
func (w *world) whole() {
	if w.bad != nil {
		return
	}
	for _, l := range w.lives {
		for _, j := range l.jobs {
			w.fail(6, "job %x of %s/%s is not over: really %v, for its core %v", uint64(j.id), l.id.Replica, l.id.Boot, j.over, j.freed)
			return
		}
	}
	for _, g := range w.store.grants {
		if !slices.ContainsFunc(w.replicas, func(r *replica) bool { return r.id == g.ID }) {
			w.fail(5, "%s/%s is over, and grant %d for it is kept: %s", g.Replica, g.Boot, g.Rev, accounts(g))
			return
		}
	}
	for n := range w.engines {
		var sum control.Amount
		for _, r := range w.replicas {
			may, granted := r.life.allowed(n)
			if !granted {
				w.fail(5, "%s has no grant in force, without any fault for %.3f s", r.name, float64(w.now-w.calmAt)/1e9)
				return
			}
			sum = plus(sum, may)
		}
		// What can't be divided is given to nobody.
		if total := w.p.accounts[n].total; sum[0] <= total[0]-int64(len(w.replicas)) {
			w.fail(5, "grants of engine %d come to %s, of %s", n, sum, total)
			return
		}
	}
}

// flood has one replica want everything that may be lent to it.
func (w *world) flood() {
	if w.bad != nil {
		return
	}
	r := w.replicas[w.rng.IntN(len(w.replicas))]
	most := int64(0)
	for n := range w.engines {
		// One is left for what engines' parts do not come out even.
		most += w.p.accounts[n].total[0] - w.p.pool.Survival[0]*int64(len(w.replicas)-1) - 1
	}
	if len(w.engines) > 1 {
		// What is kept may have its slots on one and its KV tokens on the other.
		most -= int64(len(w.replicas))
	}
	for k := 1; k < len(w.p.pool.Classes); k++ {
		most -= w.p.pool.Classes[k].Unlent[0]
	}
	most = min(most, slotsOfCore)
	w.log(nil, "%s wants %d", r.name, most)
	before := w.stats.Admissions
	w.p.long = 1
	w.at(w.now, &r.part, func() {
		for range most {
			r.offer(0, 1, w.p.out)
		}
	})
	w.run(w.now + 2*sec)
	if got := int64(w.stats.Admissions - before); got < most && w.bad == nil {
		w.fail(5, "%s wants %d requests at once, of which nobody else has any, and after 2 s has %d", r.name, most, got)
	}
	w.run(w.now + 1*sec)
}
