package fleetsim

import (
	"slices"

	"headgate/control"
)

// controller campaigns and, while it leads, runs the allocator. It is the shell that
// a leader is around it, and decides nothing.
type controller struct {
	part
	lives int
	alloc *control.Allocator // nil: it does not lead
	epoch uint64
	lease int64
	ends  Time // of the lease, by its own clock
	pool  *control.Pool
	feed  watch
	told  []control.Member // to the allocator
	// What is to be written for each life, in the order of their first grants.
	pending []*write
	news    *control.News // that is not in the store yet
	fx      []control.Effect
	armed   Time
}

// write is what is to be in the store for a life: a grant, or nothing.
type write struct {
	id    control.ID
	grant *control.Grant // the last
	gone  bool
	done  bool
	tried Time // when it was last sent, by its own clock; 0: it was not
}

// start begins a new life of the controller.
func (c *controller) start() {
	c.lives++
	c.up = true
	c.pool = c.w.p.pool
	c.feed = watch{gen: 1, restart: c.list}
	c.alloc, c.epoch, c.lease = nil, 0, 0
	c.campaign()
}

func (c *controller) kill() {
	c.up = false
	c.inc++
}

// campaign asks to lead, now and then, while it does not, and else renews the term.
func (c *controller) campaign() {
	w := c.w
	sent := c.clock()
	ttl := w.p.ttl
	if c.alloc != nil && w.p.heedful && c.clock() >= c.ends {
		c.resign("its lease is over by its own clock")
	}
	if c.alloc != nil {
		lease := c.lease
		c.call(func() func() {
			there := w.store.renew(lease)
			return func() {
				switch {
				case c.lease != lease:
				case there:
					c.ends = max(c.ends, sent+Time(float64(ttl)*(1-w.p.drift)))
				default:
					c.resign("its lease is lost")
				}
			}
		})
		c.after(w.between(ttl/5, ttl/3), c.campaign)
		return
	}
	c.call(func() func() {
		epoch, lease := w.store.campaign(c, ttl)
		return func() {
			if epoch > c.epoch && c.alloc == nil {
				c.lead(epoch, lease, sent+Time(float64(ttl)*(1-w.p.drift)))
			}
		}
	})
	c.after(w.between(300*ms, sec), c.campaign)
}

// lead begins a term: with all that is in the store, and then what changes.
func (c *controller) lead(epoch uint64, lease int64, ends Time) {
	c.epoch, c.lease, c.ends = epoch, lease, ends
	c.alloc = control.NewAllocator(c.pool, epoch, c.w.p.judge)
	c.told, c.pending, c.news, c.armed = nil, nil, nil, 0
	c.feed.gen++
	c.feed.on = false
	c.log("leads in epoch %d", epoch)
	c.mind()
}

func (c *controller) log(format string, args ...any) { c.w.log(&c.part, format, args...) }

// resign ends a term that may be over.
func (c *controller) resign(why string) {
	c.log("leads no more: %s", why)
	c.alloc, c.lease = nil, 0
	c.feed.on = false
	c.feed.gen++
}

// list reads everything and begins to watch.
func (c *controller) list() {
	w := c.w
	if c.alloc == nil {
		return
	}
	epoch, first := c.epoch, c.feed.read == 0 || c.told == nil
	inc := c.inc
	c.call(func() func() {
		if c.inc != inc || c.epoch != epoch {
			return nil
		}
		n := c.feed.open()
		s := w.store
		grants, members, reports := slices.Clone(s.grants), slices.Clone(s.members), slices.Clone(s.reports)
		return func() {
			if c.alloc == nil || c.epoch != epoch || !c.feed.begin(n) {
				return
			}
			if first && c.told == nil {
				c.told = []control.Member{}
				for _, g := range grants {
					c.step(&control.Event{Kind: control.Load, Grant: g})
				}
				// It may have been changed since the term began.
				c.configure(c.pool)
			}
			c.all(members)
			for _, r := range reports {
				c.step(&control.Event{Kind: control.Reported, Report: r})
			}
			c.feed.flush()
			if c.alloc != nil && c.armed == 0 {
				c.tick()
			}
		}
	})
}

// mind begins to read anew when the watch does not deliver.
func (c *controller) mind() {
	if c.alloc == nil {
		return
	}
	if c.feed.read != c.feed.gen {
		c.list()
	}
	epoch := c.epoch
	c.after(sec, func() {
		if c.epoch == epoch {
			c.mind()
		}
	})
}

// all are the members that there are.
func (c *controller) all(members []control.Member) {
	for _, m := range slices.Clone(c.told) {
		if !slices.ContainsFunc(members, func(o control.Member) bool { return o.Replica == m.Replica }) {
			c.member(m.Replica, nil)
		}
	}
	for _, m := range members {
		c.member(m.Replica, &m)
	}
}

// member is told who has a name's lease now; nil is nobody.
func (c *controller) member(replica string, now *control.Member) {
	if c.alloc == nil {
		return
	}
	i := slices.IndexFunc(c.told, func(m control.Member) bool { return m.Replica == replica })
	if i >= 0 && now != nil && c.told[i] == *now {
		return
	}
	if i >= 0 {
		was := c.told[i]
		c.told = slices.Delete(c.told, i, i+1)
		if now == nil || now.Boot != was.Boot || c.w.p.partings {
			c.step(&control.Event{Kind: control.Gone, Member: was})
		}
	}
	if now != nil {
		c.told = append(c.told, *now)
		c.step(&control.Event{Kind: control.Join, Member: *now})
	}
}

func (c *controller) reported(r *control.Report) {
	if c.alloc != nil {
		c.step(&control.Event{Kind: control.Reported, Report: r})
	}
}

// tick is the passing of time.
func (c *controller) tick() {
	if c.alloc == nil {
		return
	}
	c.step(&control.Event{Kind: control.Tick})
	next, _ := c.alloc.Next()
	c.armed = max(c.part.until(next), ms)
	epoch := c.epoch
	c.after(c.armed, func() {
		if c.epoch == epoch {
			c.tick()
		}
	})
}

// configure takes over what an operator changed.
func (c *controller) configure(p *control.Pool) {
	c.pool = p
	if c.alloc != nil && c.told != nil {
		c.step(&control.Event{Kind: control.Configure, Pool: p})
	}
}

// step is a step of the allocator, and what it wants done.
func (c *controller) step(ev *control.Event) {
	c.fx = c.alloc.Step(c.clock(), ev, c.fx[:0])
	for i := range c.fx {
		switch e := &c.fx[i]; e.Op {
		case control.Write:
			c.w.stats.Grants++
			if c.w.logf != nil {
				c.log("grants %s/%s %d under lease %d: %s", e.ID.Replica, e.ID.Boot, e.Grant.Rev, e.Grant.Lease, accounts(e.Grant))
			}
			c.put(e.ID, e.Grant)
		case control.Remove:
			c.log("forgets %s/%s", e.ID.Replica, e.ID.Boot)
			c.put(e.ID, nil)
		case control.Tell:
			c.news = e.News
			c.tell(e.News)
		case control.Note:
			c.w.stats.Handoffs[e.Handoff.Stage]++
		}
	}
	c.flush()
}

// tell has news written, and again while nobody has answered and there are no later ones.
func (c *controller) tell(n *control.News) {
	w, epoch := c.w, c.epoch
	c.call(func() func() {
		ok := w.store.tell(n)
		return func() {
			switch {
			case c.epoch != epoch || c.alloc == nil:
			case !ok:
				c.resign("it was fenced off")
			case c.news == n:
				c.news = nil
			}
		}
	})
	c.after(w.between(200*ms, 500*ms), func() {
		if c.epoch == epoch && c.alloc != nil && c.news == n {
			c.tell(n)
		}
	})
}

// put notes what is to be in the store for a life: the last is enough.
func (c *controller) put(id control.ID, g *control.Grant) {
	i := slices.IndexFunc(c.pending, func(p *write) bool { return p.id == id })
	if i < 0 {
		i = len(c.pending)
		c.pending = append(c.pending, &write{id: id})
	}
	p := c.pending[i]
	p.done, p.gone = false, g == nil
	if g != nil {
		p.grant = g
	}
	p.tried = 0
}

// flush sends what is not in the store yet, and again what was not answered.
func (c *controller) flush() {
	for _, p := range c.pending {
		if !p.done && p.tried == 0 {
			c.send(p)
		}
	}
}

func (c *controller) send(p *write) {
	w := c.w
	epoch := c.epoch
	g, gone := p.grant, p.gone
	p.tried = max(c.clock(), 1)
	tried := p.tried
	c.call(func() func() {
		var ok bool
		if gone {
			rev := uint64(0)
			if g != nil {
				rev = g.Rev
			}
			ok = w.store.remove(epoch, p.id, rev)
		} else {
			ok = w.store.write(epoch, g)
		}
		return func() {
			switch {
			case c.epoch != epoch || c.alloc == nil:
			case !ok:
				c.resign("it was fenced off")
			case p.grant == g && p.gone == gone:
				p.done = true
				if gone {
					c.pending = slices.DeleteFunc(c.pending, func(o *write) bool { return o == p })
				}
			}
		}
	})
	c.after(w.between(200*ms, 500*ms), func() {
		if c.epoch == epoch && c.alloc != nil && !p.done && p.tried == tried && slices.Contains(c.pending, p) {
			c.send(p)
		}
	})
}
