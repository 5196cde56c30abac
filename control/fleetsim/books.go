package fleetsim

import (
	"fmt"
	"slices"
	"strings"

	"headgate/control"
)

// The books are the simulation's own, of what really is. An account is an engine or a
// class with a ceiling below the envelope.

// life is one life of a replica, for as long as something of it is left.
type life struct {
	w     *world
	r     *replica
	id    control.ID
	alive bool
	last  bool // no later life of the name has been in the store
	jobs  []*job
	real  []control.Amount // by account: sent, and not over
	core  []control.Amount // by account: what its core counts
	grant *control.Grant   // the last it took
	may   []control.Amount // by account: what that allows
	keep  []control.Amount // and what survives of it
}

func (w *world) born(r *replica) *life {
	n := len(w.p.accounts)
	l := &life{
		w: w, r: r, id: r.id, alive: true, last: true, real: make([]control.Amount, n), core: make([]control.Amount, n),
		may: make([]control.Amount, n), keep: make([]control.Amount, n),
	}
	w.lives = append(w.lives, l)
	return l
}

// known notes that a life is in the store: what survives is its own from now on, and not
// that of the name's lives before.
func (w *world) known(id control.ID) {
	for _, l := range w.lives {
		if l.id.Replica == id.Replica && l.id != id {
			l.last = false
		}
	}
}

// each calls do for the accounts of a job.
func (l *life) each(j *job, do func(n int)) {
	do(j.engine)
	if n := l.w.p.ceiling[j.class]; n >= 0 {
		do(n)
	}
}

func (l *life) truth(j *job, sign int64) {
	l.each(j, func(n int) { l.real[n] = plus(l.real[n], control.Amount{sign * j.amount[0], sign * j.amount[1]}) })
	l.tidy()
}

func (l *life) ledger(j *job, sign int64) {
	l.each(j, func(n int) { l.core[n] = plus(l.core[n], control.Amount{sign * j.amount[0], sign * j.amount[1]}) })
	l.tidy()
}

// tidy lets go of jobs that are over for everybody.
func (l *life) tidy() {
	l.jobs = slices.DeleteFunc(l.jobs, func(j *job) bool { return j.over && (j.freed || !l.alive) })
}

// took notes a grant that the life took.
func (l *life) took(g *control.Grant) {
	l.grant = g
	for n := range l.may {
		l.may[n], l.keep[n] = control.Amount{}, control.Amount{}
		for i := range g.Accounts {
			if c := &g.Accounts[i]; l.w.p.accounts[n].is(c) {
				l.may[n], l.keep[n] = c.Amount, c.Survival
			}
		}
	}
}

// has is what a life has of an account: what it really has. If its core counts more
// than that under a grant in force, since it has not heard yet of what has ended, that:
// a core without a grant, which may be stopped, is less to go by than the engines.
func (l *life) has(n int, granted bool) control.Amount {
	if !granted {
		return l.real[n]
	}
	return most(l.real[n], l.core[n])
}

// allowed is what it may have by its grant now, or what survives, and by which.
func (l *life) allowed(n int) (_ control.Amount, granted bool) {
	if l.alive {
		if _, _, ok := l.r.holder.Grant(l.r.clock()); ok {
			return l.may[n], true
		}
	} else if !l.last || l.w.forgotten[l.id] {
		return control.Amount{}, false
	}
	return l.keep[n], false
}

// check is what holds at every step.
func (w *world) check() {
	if w.bad != nil {
		return
	}
	for n := range w.p.accounts {
		var sum control.Amount
		for _, l := range w.lives {
			may, granted := l.allowed(n)
			sum = plus(sum, most(l.has(n, granted), may))
		}
		w.stats.Fullest = max(w.stats.Fullest, float64(sum[0])/float64(w.p.accounts[n].total[0]))
		if !within(sum, w.p.accounts[n].total) {
			w.fail(1, "%s: %s may be used, of %s: %s", w.p.accounts[n].name(), sum, w.p.accounts[n].total, w.who(n))
			return
		}
	}
	for _, e := range w.engines {
		if !within(e.used, e.total) {
			w.fail(2, "engine %d runs %s, of %s: %s", e.n, e.used, e.total, w.who(e.n))
			return
		}
	}
	w.lives = slices.DeleteFunc(w.lives, func(l *life) bool {
		return !l.alive && len(l.jobs) == 0 && (!l.last || !survives(l.keep))
	})
}

func survives(keep []control.Amount) bool {
	return slices.ContainsFunc(keep, func(a control.Amount) bool { return a != control.Amount{} })
}

// who says who may have what of an account.
func (w *world) who(n int) string {
	var b strings.Builder
	for i, l := range w.lives {
		if i > 0 {
			b.WriteString("; ")
		}
		may, granted := l.allowed(n)
		by := "survives"
		if granted {
			by = fmt.Sprintf("granted by %d.%d", l.grant.Epoch, l.grant.Rev)
		}
		fmt.Fprintf(&b, "%s/%s has %s, %s %s", l.id.Replica, l.id.Boot, l.has(n, granted), may, by)
		if !l.alive {
			b.WriteString(", is over")
		}
	}
	return b.String()
}

// admitted is an admission: 3 and 4.
func (w *world) admitted(r *replica, j *job) {
	w.stats.Admissions++
	l := r.life
	l.jobs = append(l.jobs, j)
	l.truth(j, 1)
	l.ledger(j, 1)
	l.each(j, func(n int) {
		may, granted := l.allowed(n)
		if !within(l.core[n], may) {
			w.fail(4, "%s/%s has %s of %s after an admission of %s, and may have %s", l.id.Replica, l.id.Boot, l.core[n], w.p.accounts[n].name(), j.amount, may)
			return
		}
		if !granted {
			w.stats.Survived++
			return
		}
		if within(l.core[n], l.keep[n]) {
			return
		}
		if lease := w.store.lease(l.grant.Lease); lease == nil || lease.who != l.id || w.now > lease.expires {
			over := Time(0)
			if lease != nil {
				over = w.now - lease.expires
			}
			w.fail(3, "%s/%s admits by grant %d.%d of lease %d, which ran out %.6f s ago", l.id.Replica, l.id.Boot, l.grant.Epoch, l.grant.Rev, l.grant.Lease, float64(over)/1e9)
		}
	})
}

// kept notes a grant that the store has.
func (w *world) kept(g *control.Grant) {
	if g.Recall {
		w.stats.Recalls++
	}
}

func accounts(g *control.Grant) string {
	var b strings.Builder
	for i := range g.Accounts {
		c := &g.Accounts[i]
		fmt.Fprintf(&b, "%s%s %s bound %s survival %s; ", c.Engine, c.Class, c.Amount, c.Bound, c.Survival)
	}
	for i := range g.Classes {
		c := &g.Classes[i]
		fmt.Fprintf(&b, "%s floor %s; ", c.Class, c.Floor)
	}
	if g.Recall {
		b.WriteString("recall")
	}
	return b.String()
}
