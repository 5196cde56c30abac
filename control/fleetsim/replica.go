package fleetsim

import (
	"fmt"
	"slices"
	"time"

	"headgate/admission"
	"headgate/control"
)

// replica is a gateway as far as the fleet goes: a core, a holder, and the shell that
// an agent is around them. It decides nothing.
type replica struct {
	part
	boots  int
	id     control.ID
	life   *life
	holder *control.Holder
	core   *admission.Core
	base   *admission.Table // as it is configured
	feed   watch

	newest *control.Grant // that was heard of, taken or not
	heard  control.Heard
	tookAt Time // when it was taken, by its own clock
	tries  int  // of joining; 0 once joined
	seq    uint64
	sent   Time // the last report
	soon   bool // one will be sent soon
	later  bool // and one later
	armed  Time // when the core is ticked next, by its own clock; 0: it is not
	due    Time // when what it has is looked at for being overdue; 0: it is not

	demands  admission.Demands
	gauges   []gauge
	fx       []admission.Effect
	free     []uint32 // slots of requests
	gens     []uint32
	requests []*request // waiting, in the order of their arrival
	jobs     []*job     // that the core has
}

type request struct {
	id    admission.ID
	class int
	need  control.Amount
	since Time // it waits, by the store's clock; running
	owed  Time // since when it was within its class's floor whenever that was looked at; 0: it is not
}

const running = Time(-1)

type gauge struct {
	seq   uint64
	asked Time // by its own clock, like came
	came  Time
	used  control.Amount
}

const (
	slotsOfCore = 64
	heartbeat   = 2 * sec
	retry       = 400 * ms
	reportDelay = ms
)

// start begins a new life of the replica.
func (r *replica) start() {
	w := r.w
	r.boots++
	r.up = true
	r.id = control.ID{Replica: r.name, Boot: fmt.Sprint(r.boots)}
	r.life = w.born(r)
	r.holder = control.NewHolder(w.p.pool.Name, r.id, w.p.drift)
	r.feed = watch{gen: 1, restart: r.relist}
	r.newest, r.heard, r.tookAt, r.tries, r.seq, r.sent, r.soon, r.later, r.armed, r.due = nil, control.Heard{}, 0, 0, 0, 0, false, false, 0, 0
	r.base = w.p.base
	r.core = admission.New(control.Share(r.base, nil, 0, false), slotsOfCore)
	r.gauges = make([]gauge, len(w.engines))
	r.free, r.gens, r.requests, r.jobs = r.free[:0], make([]uint32, slotsOfCore), nil, nil
	for i := range uint32(slotsOfCore) {
		r.free = append(r.free, slotsOfCore-1-i)
	}
	w.log(&r.part, "starts as %s/%s", r.id.Replica, r.id.Boot)
	r.renew()
	r.beat()
	r.sample()
	r.mind()
}

// kill ends it. What it sent goes on in the engines, or ends.
func (r *replica) kill(orphans bool) {
	r.up = false
	r.inc++
	r.life.alive = false
	r.outlived()
	if !orphans {
		for _, j := range slices.Clone(r.life.jobs) {
			r.w.engines[j.engine].end(j, false)
		}
	}
	r.life.tidy()
}

// renew joins, or renews the lease, for ever.
func (r *replica) renew() {
	w := r.w
	sent := r.clock()
	ttl := w.p.ttl
	lease, _ := r.holder.Lease()
	if lease == 0 {
		r.tries++
		try, id := r.tries, r.id
		r.call(func() func() {
			lease := w.store.join(id, ttl)
			return func() {
				if now, _ := r.holder.Lease(); now == 0 && lease != 0 && try == r.tries {
					r.leased(lease, sent)
				}
			}
		})
		r.after(w.between(retry, 2*retry), r.renew)
		return
	}
	r.call(func() func() {
		there := w.store.renew(lease)
		return func() {
			if now, _ := r.holder.Lease(); now != lease {
				return
			}
			if there {
				r.leased(lease, sent)
				return
			}
			w.log(&r.part, "has lost lease %d", lease)
			r.holder.Lost(r.clock())
			r.share()
			r.dueAgain()
		}
	})
	r.after(w.between(ttl/5, ttl/3), r.renew)
}

// leased: the lease was there, for its ttl, when sent was read.
func (r *replica) leased(lease int64, sent Time) {
	_, _, was := r.holder.Grant(r.clock())
	r.holder.Leased(lease, sent, time.Duration(r.w.p.ttl))
	g, until, ok := r.holder.Grant(r.clock())
	r.w.log(&r.part, "has lease %d until its %.6f", lease, float64(until)/1e9)
	if was && ok && g.Lease == lease {
		r.step(&admission.Event{Kind: admission.Renew, Until: until})
	} else {
		r.share()
	}
	r.dueAgain()
	// A grant may have come before the lease that it is under was known here.
	if r.newest != nil && r.newest != g {
		r.offered(r.newest)
	}
	r.report()
}

// relist reads what is there, and begins to watch.
func (r *replica) relist() {
	id, inc := r.id, r.inc
	r.call(func() func() {
		if r.inc != inc {
			return nil
		}
		n := r.feed.open()
		g, news := r.w.store.grant(id), r.w.store.news
		return func() {
			if !r.feed.begin(n) {
				return
			}
			if news != nil {
				r.told(news)
			}
			if g != nil {
				r.offered(g)
			}
			r.feed.flush()
		}
	})
}

// mind begins the watch anew when it does not deliver.
func (r *replica) mind() {
	if r.feed.read != r.feed.gen {
		r.relist()
	}
	r.after(sec, r.mind)
}

// offered is told of a grant.
func (r *replica) offered(g *control.Grant) {
	if r.newest == nil || newer(g, r.newest) {
		r.newest = g
	}
	if err := r.holder.Take(r.clock(), g); err != nil {
		r.w.log(&r.part, "refuses: %v", err)
		return
	}
	r.tookAt = r.clock()
	r.w.stats.Taken++
	r.life.took(g)
	r.w.log(&r.part, "takes grant %d of epoch %d: %s", g.Rev, g.Epoch, accounts(g))
	r.share()
	r.dueAgain()
	r.report()
}

// dueAgain has what a lost lease leaves looked at when it has to be over.
func (r *replica) dueAgain() {
	at, ok := r.holder.Due()
	if !ok || r.due != 0 && r.due <= at {
		return
	}
	r.due = at
	r.after(r.until(at), func() {
		if r.due != at {
			return
		}
		r.due = 0
		_, _, granted := r.holder.Grant(r.clock())
		if now, _ := r.holder.Due(); !granted && now <= r.clock() {
			r.overdue()
		} else {
			r.dueAgain()
		}
	})
}

// overdue ends what has to be over.
func (r *replica) overdue() {
	r.core.Demands(&r.demands)
	rep := &control.Report{}
	rep.Fill(r.base, &r.demands)
	running := make([]control.Attempt, len(r.jobs))
	for i, j := range r.jobs {
		running[i] = control.Attempt{Engine: r.w.p.accounts[j.engine].engine, Class: r.base.Classes[j.class].Name, Amount: j.amount}
	}
	var ends []*job
	for _, i := range r.holder.Overdue(rep, running) {
		ends = append(ends, r.jobs[i])
	}
	for _, j := range ends {
		r.w.stats.Overdue++
		r.end(j, false)
	}
	r.outlived()
}

// outlived is what is believed of engines: what they were told to end, or have lost the
// connection of, or who sent it can't end since he is stopped, is over by the time
// at which he would end it at the latest. What was begun on what survives may have been so
// just now.
func (r *replica) outlived() {
	at, ok := r.holder.Due()
	if !ok {
		return
	}
	w := r.w
	g, _, _ := r.holder.Grant(r.clock())
	life := r.life
	due := w.now + r.until(at) + Time(control.EndTime/2)
	begun := w.now + Time(float64(g.Residual)/(1+w.p.drift)) - ms
	for _, j := range life.jobs {
		at := due
		if j.survival {
			at = begun
		}
		w.at(at, nil, func() {
			if mine := life.alive && r.asleep <= w.now && slices.Contains(r.jobs, j); !mine {
				w.engines[j.engine].end(j, true)
			}
		})
	}
}

// share brings the core's table up to the grant.
func (r *replica) share() {
	g, until, ok := r.holder.Grant(r.clock())
	r.step(&admission.Event{Kind: admission.Apply, Table: control.Share(r.base, g, until, ok)})
}

// configure takes over what an operator changed.
func (r *replica) configure(t *admission.Table) {
	r.base = t
	r.share()
}

// beat reports now and then.
func (r *replica) beat() {
	if r.clock()-r.sent >= heartbeat {
		r.report()
	}
	r.after(heartbeat/2, r.beat)
}

// report asks for a report to be sent, with all that happens in one go.
func (r *replica) report() {
	if r.soon {
		return
	}
	r.soon = true
	r.after(reportDelay, func() {
		r.soon = false
		r.tell()
	})
}

// tell sends a report.
func (r *replica) tell() {
	w := r.w
	now := r.clock()
	r.sent = now
	r.step(&admission.Event{Kind: admission.Tick}) // what is due is done before anything is said
	r.demands.Samples = r.demands.Samples[:0]
	for i := range r.gauges {
		r.demands.Samples = append(r.demands.Samples, struct{ Asked, Came Time }{r.gauges[i].asked, r.gauges[i].came})
	}
	r.core.Demands(&r.demands)
	rep := &control.Report{Pool: w.p.pool.Name, ID: r.id}
	rep.Fill(r.base, &r.demands)
	rep.Residual = r.holder.Residual(rep.Residual)
	if rep.Lease, _ = r.holder.Lease(); rep.Lease == 0 {
		return
	}
	r.seq++
	rep.Seq = r.seq
	if g, _, ok := r.holder.Grant(r.clock()); ok {
		rep.Epoch, rep.Rev, rep.GrantAge, rep.News = g.Epoch, g.Rev, time.Duration(r.clock()-r.tookAt), r.heard.Seq
	}
	for i := range rep.Engines {
		if v := &r.gauges[i]; v.seq > 0 {
			e := &rep.Engines[i]
			e.Gauge, e.Others = v.used, v.used
			e.Others[0] = max(0, e.Others[0]-r.demands.Engines[i].Steady)
			e.GaugeSeq, e.GaugeAge = v.seq, time.Duration(r.clock()-v.asked)
		}
	}
	w.stats.Reports++
	if w.logf != nil {
		used := ""
		for i := range rep.Engines {
			used += " " + rep.Engines[i].Used.String()
		}
		for i := range rep.Classes {
			c := &rep.Classes[i]
			used += fmt.Sprintf("; %s holds %s, %d wait for %s short %v", c.Class, c.Hold, c.Waiting, c.Head, c.Short)
		}
		w.log(&r.part, "reports %d under lease %d: grant %d of epoch %d, uses%s, residual %v", rep.Seq, rep.Lease, rep.Rev, rep.Epoch, used, rep.Residual)
	}
	r.call(func() func() {
		w.store.report(rep)
		return nil
	})
}

// sample asks the engines what they run.
func (r *replica) sample() {
	w, inc := r.w, r.inc
	for i, e := range w.engines {
		asked := r.clock()
		w.at(w.now+w.near(), nil, func() {
			used := plus(e.used, e.foreign)
			w.atLife(w.now+w.near(), &r.part, inc, func() {
				if v := &r.gauges[i]; asked > v.asked {
					*v = gauge{seq: v.seq + 1, asked: asked, came: r.clock(), used: used}
				}
			})
		})
	}
	r.after(w.between(w.p.sample/2, w.p.sample*3/2), r.sample)
}

// offer is a client's request.
func (r *replica) offer(class int, prompt, out int32) {
	if len(r.free) == 0 {
		return
	}
	slot := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.gens[slot]++
	q := &request{id: admission.MakeID(r.gens[slot], slot), class: class, since: r.w.now}
	q.need = control.Amount{1, (int64(prompt+out) + block - 1) / block * block}
	r.requests = append(r.requests, q)
	r.w.stats.Offered++
	r.step(&admission.Event{Kind: admission.Offer, ID: q.id, Class: admission.Class(class), Prompt: prompt, Out: out})
}

// step is a step of the core, and what it wants done.
func (r *replica) step(ev *admission.Event) {
	w := r.w
	r.fx = r.core.Step(r.clock(), ev, r.fx[:0])
	demand := false
	for i := range r.fx {
		switch e := &r.fx[i]; e.Op {
		case admission.Admit:
			r.admit(e)
		case admission.Reclaim:
			w.stats.Reclaims++
			r.abort(e.Hold)
		case admission.Queued:
			// At first, or again after an attempt of it was ended.
			r.requests[r.request(e.ID)].since = w.now
		case admission.Reject, admission.Done:
			r.forget(e.ID)
		case admission.Stage:
			if e.Cause == admission.CauseGhost {
				w.stats.Ghosts++
				r.freed(e.Hold)
			}
		case admission.Demand:
			if demand = e.Retry == 0; !demand && !r.later {
				r.later = true
				r.after(e.Retry, func() {
					r.later = false
					r.report()
				})
			}
		}
	}
	if demand {
		r.report()
	}
	r.arm()
}

// arm has the core ticked when it wants to be.
func (r *replica) arm() {
	next, ok := r.core.Next()
	if !ok || r.armed != 0 && r.armed <= next {
		return
	}
	r.armed = next
	r.after(r.until(next), func() {
		if r.armed != next {
			return
		}
		r.armed = 0
		if at, ok := r.core.Next(); ok && at <= r.clock() {
			r.step(&admission.Event{Kind: admission.Tick})
		} else {
			r.arm()
		}
	})
}

// admit dispatches at once: the check and this are one instant.
func (r *replica) admit(e *admission.Effect) {
	w := r.w
	q := r.requests[r.request(e.ID)]
	q.since, q.owed = running, 0
	j := &job{life: r.life, id: e.ID, hold: e.Hold, class: q.class, engine: int(e.Engine), amount: control.Amount{q.need[0], e.Tokens}}
	j.limit = int32(e.Limit)
	_, _, granted := r.holder.Grant(r.clock())
	j.survival = !granted
	j.lasts = w.between(50*ms, 2*sec)
	if w.chance(0.15) {
		j.lasts = w.between(50*ms, 8*sec)
	}
	if w.chance(w.p.long) {
		j.lasts = j.longest()
	}
	j.lasts = min(j.lasts, j.longest())
	if !w.calm && w.chance(w.p.wild) {
		j.lasts += w.between(0, 60*sec) // whatever anybody predicts
		w.stats.Wild++
	}
	r.jobs = append(r.jobs, j)
	w.admitted(r, j)
	w.log(&r.part, "admits %x of class %d to engine %d: %s for %.3f s", uint64(e.ID), q.class, j.engine, j.amount, float64(j.lasts)/1e9)
	w.at(w.now+w.near(), nil, func() { w.engines[j.engine].arrive(j) })
}

// abort ends an attempt upstream. The engine's word may come with the end, later, or
// never.
func (r *replica) abort(h admission.Hold) {
	w := r.w
	i := slices.IndexFunc(r.jobs, func(j *job) bool { return j.hold == h })
	if i < 0 {
		return
	}
	r.end(r.jobs[i], w.chance(0.05) && !w.calm)
}

// end ends an attempt; lost: the engine goes on for as long as may be believed of it.
func (r *replica) end(j *job, lost bool) {
	w := r.w
	w.log(&r.part, "ends %x, lost %v", uint64(j.id), lost)
	if lost {
		w.at(w.now+j.longest(), nil, func() { w.engines[j.engine].end(j, !j.silent) })
	}
	if inc := r.inc; !lost {
		w.at(w.now+w.near(), nil, func() {
			w.engines[j.engine].end(j, false)
			w.atLife(w.now+w.near(), &r.part, inc, func() { r.ended(j, admission.CauseReclaimed) })
		})
	}
	j.silent = lost && w.chance(0.5)
	if lost || w.chance(0.2) {
		// The connection breaks first.
		r.after(0, func() { r.broken(j) })
	}
}

// ended hears that a job is over.
func (r *replica) ended(j *job, why admission.Cause) {
	if j.freed {
		return
	}
	ev := admission.Event{Kind: admission.Ended, Hold: j.hold, Out: 1, Cause: why, Flags: admission.FlagReleased}
	if !slices.Contains(r.jobs, j) {
		// Its attempt was over before.
		ev = admission.Event{Kind: admission.Released, Hold: j.hold}
	}
	r.freed(j.hold)
	r.step(&ev)
	r.w.log(&r.part, "hears that %x is over", uint64(j.id))
}

// tokens come of a job that goes on.
func (r *replica) tokens(j *job, n int32) {
	if !j.freed && slices.Contains(r.jobs, j) {
		r.step(&admission.Event{Kind: admission.Progress, Hold: j.hold, Out: n})
	}
}

// told is what others do, as the leader tells it.
func (r *replica) told(n *control.News) {
	if g, _, _ := r.holder.Grant(r.clock()); !r.heard.Take(n, g) {
		return
	}
	r.w.stats.News++
	r.step(&admission.Event{Kind: admission.Told, Elsewhere: n.Elsewhere(r.base, r.id, r.clock())})
}

// broken: the attempt is over, and whether the engine has ended it is not known.
func (r *replica) broken(j *job) {
	if j.freed || !slices.Contains(r.jobs, j) {
		return
	}
	r.jobs = slices.DeleteFunc(r.jobs, func(o *job) bool { return o == j })
	r.step(&admission.Event{Kind: admission.Ended, Hold: j.hold, Cause: admission.CauseReclaimed})
}

// freed: the core has the capacity again.
func (r *replica) freed(h admission.Hold) {
	if i := slices.IndexFunc(r.life.jobs, func(j *job) bool { return j.hold == h && !j.freed }); i >= 0 {
		j := r.life.jobs[i]
		j.freed = true
		r.life.ledger(j, -1)
	}
	r.jobs = slices.DeleteFunc(r.jobs, func(j *job) bool { return j.hold == h })
}

func (r *replica) request(id admission.ID) int {
	return slices.IndexFunc(r.requests, func(q *request) bool { return q.id == id })
}

// forget lets a request go.
func (r *replica) forget(id admission.ID) {
	r.requests = slices.DeleteFunc(r.requests, func(q *request) bool { return q.id == id })
	r.free = append(r.free, id.Slot())
}
