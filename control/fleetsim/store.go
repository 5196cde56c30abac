package fleetsim

import (
	"slices"

	"headgate/control"
)

// store keeps what etcd keeps for a fleet, and as strictly: one register for each key,
// leases by its own clock, writes that depend on the election.
type store struct {
	part
	down    Time // until when it does nothing for anybody
	leases  []*lease
	nLease  int64
	members []control.Member // who has a lease, by no order
	grants  []*control.Grant
	reports []*control.Report
	removed []*control.Grant // the last of lives that were removed
	news    *control.News
	epoch   uint64
	leader  *lease // whose end ends the term; nil: nobody leads
	leads   *controller
	leadInc uint32
}

// lease ends when the store sees that it is over: at the earliest ttl after it processed
// the last renewal.
type lease struct {
	id      int64
	ttl     Time
	expires Time
	over    bool
	who     control.ID // "" of a leader
}

// lease by its number; nil is one that never was.
func (s *store) lease(id int64) *lease {
	if id < 1 || id > int64(len(s.leases)) {
		return nil
	}
	return s.leases[id-1]
}

func (s *store) newLease(ttl Time) *lease {
	s.nLease++
	l := &lease{id: s.nLease, ttl: ttl, expires: s.w.now + ttl}
	s.leases = append(s.leases, l)
	s.watchLease(l)
	return l
}

// watchLease ends a lease some time after it has run out.
func (s *store) watchLease(l *lease) {
	late := s.w.between(0, 20*ms)
	if s.w.chance(0.3) {
		late = s.w.between(0, sec)
	}
	s.w.at(l.expires+late, &s.part, func() {
		switch {
		case l.over:
		case s.w.now < s.down:
			s.w.at(s.w.between(s.down, s.down+sec), &s.part, func() { s.watchLease(l) })
		case s.w.now < l.expires:
			s.watchLease(l)
		default:
			s.w.stats.Expiries++
			s.w.log(&s.part, "lease %d of %s is over", l.id, l.who.Replica)
			s.revoke(l)
		}
	})
}

func (s *store) revoke(l *lease) {
	if l.over {
		return
	}
	l.over = true
	if l == s.leader {
		s.leader, s.leads = nil, nil
	}
	if i := slices.IndexFunc(s.members, func(m control.Member) bool { return m.Lease == l.id }); i >= 0 {
		m := s.members[i]
		s.members = slices.Delete(s.members, i, i+1)
		s.changed(m.Replica)
	}
}

// renew is a keepalive; ok tells whether the lease is there.
func (s *store) renew(id int64) (ok bool) {
	l := s.lease(id)
	if l == nil || l.over {
		return false
	}
	l.expires = s.w.now + l.ttl
	return true
}

// ready is the store's return after an outage: its new leader gives every lease its
// whole time again.
func (s *store) ready() {
	for _, l := range s.leases {
		if !l.over && s.w.chance(0.7) {
			l.expires = s.w.now + l.ttl
		}
	}
}

func (s *store) member(replica string) *control.Member {
	for i := range s.members {
		if s.members[i].Replica == replica {
			return &s.members[i]
		}
	}
	return nil
}

// join gives a life a lease: 0 while another life of the same name has one. An earlier
// lease of the same life ends.
func (s *store) join(id control.ID, ttl Time) int64 {
	if m := s.member(id.Replica); m != nil {
		if m.Boot != id.Boot {
			return 0
		}
		// In one: nobody is told that the name was free in between.
		s.lease(m.Lease).over = true
		s.members = slices.DeleteFunc(s.members, func(m control.Member) bool { return m.ID == id })
	}
	l := s.newLease(ttl)
	l.who = id
	s.members = append(s.members, control.Member{ID: id, Lease: l.id})
	s.w.known(id)
	s.w.log(&s.part, "%s/%s joins under lease %d", id.Replica, id.Boot, l.id)
	s.changed(id.Replica)
	return l.id
}

// report keeps a report that is newer, if its lease is there.
func (s *store) report(r *control.Report) {
	if m := s.member(r.Replica); m == nil || m.ID != r.ID || m.Lease != r.Lease {
		return
	}
	i := slices.IndexFunc(s.reports, func(o *control.Report) bool { return o.ID == r.ID })
	switch {
	case i < 0:
		s.reports = append(s.reports, r)
	case s.reports[i].Seq < r.Seq:
		s.reports[i] = r
	default:
		return
	}
	for _, c := range s.w.controllers {
		s.w.tell(&c.part, &c.feed, true, func() { c.reported(r) })
	}
}

// changed tells the leaders who has the name's lease now.
func (s *store) changed(replica string) {
	var now *control.Member
	if m := s.member(replica); m != nil {
		v := *m
		now = &v
	}
	for _, c := range s.w.controllers {
		s.w.tell(&c.part, &c.feed, false, func() { c.member(replica, now) })
	}
}

func (s *store) grant(id control.ID) *control.Grant {
	if i := s.grantAt(id); i >= 0 {
		return s.grants[i]
	}
	return nil
}

func (s *store) grantAt(id control.ID) int {
	return slices.IndexFunc(s.grants, func(g *control.Grant) bool { return g.ID == id })
}

// fenced tells whether a writer's term is over.
func (s *store) fenced(epoch uint64) bool {
	if s.leader != nil && s.epoch == epoch {
		return false
	}
	s.w.stats.Fenced++
	return true
}

func newer(g, than *control.Grant) bool {
	return g.Epoch > than.Epoch || g.Epoch == than.Epoch && g.Rev > than.Rev
}

// write keeps a grant, if the term is not over. A try that comes late does not replace
// what was written since.
func (s *store) write(epoch uint64, g *control.Grant) (ok bool) {
	if s.fenced(epoch) {
		return false
	}
	i := s.grantAt(g.ID)
	switch {
	case slices.ContainsFunc(s.removed, func(o *control.Grant) bool { return o.ID == g.ID && !newer(g, o) }):
		return true
	case i < 0:
		s.grants = append(s.grants, g)
	case newer(g, s.grants[i]):
		s.grants[i] = g
	default:
		return true
	}
	s.w.kept(g)
	for _, r := range s.w.replicas {
		if r.id == g.ID {
			s.w.tell(&r.part, &r.feed, true, func() {
				if s.w.chance(s.w.p.coalesce) {
					s.w.stats.Faults[Coalesced]++
					if now := s.grant(r.id); now != nil && newer(now, g) {
						r.offered(now)
						return
					}
				}
				r.offered(g)
			})
		}
	}
	return true
}

// tell keeps what the leader tells all, if the term is not over.
func (s *store) tell(n *control.News) (ok bool) {
	switch {
	case s.fenced(n.Epoch):
		return false
	case s.news != nil && s.news.Epoch == n.Epoch && s.news.Seq >= n.Seq:
		return true
	}
	s.news = n
	for _, r := range s.w.replicas {
		s.w.tell(&r.part, &r.feed, true, func() { r.told(n) })
	}
	return true
}

// remove forgets a life that is over, whose last grant had rev, if the term is not.
func (s *store) remove(epoch uint64, id control.ID, rev uint64) (ok bool) {
	if s.fenced(epoch) {
		return false
	}
	s.removed = append(s.removed, &control.Grant{ID: id, Epoch: epoch, Rev: rev})
	if i := s.grantAt(id); i >= 0 && (s.grants[i].Epoch < epoch || s.grants[i].Rev <= rev) {
		s.grants = slices.Delete(s.grants, i, i+1)
		s.reports = slices.DeleteFunc(s.reports, func(r *control.Report) bool { return r.ID == id })
	} else if i < 0 {
		s.reports = slices.DeleteFunc(s.reports, func(r *control.Report) bool { return r.ID == id })
	}
	return true
}

// campaign makes a controller the leader if there is none. The same try again is told
// the same.
func (s *store) campaign(c *controller, ttl Time) (epoch uint64, id int64) {
	if s.leader != nil {
		if s.leads == c && s.leadInc == c.inc {
			return s.epoch, s.leader.id
		}
		return 0, 0
	}
	s.epoch++
	s.leader, s.leads, s.leadInc = s.newLease(ttl), c, c.inc
	s.w.stats.Takeovers++
	s.w.log(&s.part, "%s leads in epoch %d", c.name, s.epoch)
	return s.epoch, s.leader.id
}

// watch is a stream of what changes, from the store to a part. One that breaks is begun
// anew by whoever reads it, with all that is there.
type watch struct {
	on      bool
	gen     uint64
	read    uint64   // the stream whose beginning has been read
	waiting []func() // came before it
	last    Time     // when the last change is there
	restart func()
}

// open begins a stream at the store and returns its number.
func (v *watch) open() uint64 {
	v.on, v.gen = true, v.gen+1
	v.waiting = nil
	return v.gen
}

// begin is the reading of what was there when stream gen was begun.
func (v *watch) begin(gen uint64) (ok bool) {
	if gen != v.gen || v.read == gen {
		return false
	}
	v.read = gen
	return true
}

// go on with what came meanwhile.
func (v *watch) flush() {
	all := v.waiting
	v.waiting = nil
	for _, do := range all {
		do()
	}
}

// tell sends a change to a reader; again: it may come once more, at any time.
func (w *world) tell(p *part, v *watch, again bool, do func()) {
	if !v.on || !p.up {
		return
	}
	if w.now < p.cutFrom || !w.calm && w.chance(w.p.breaks) {
		w.stats.Faults[WatchLost]++
		v.on = false
		v.gen++
		p.after(w.between(100*ms, 2*sec), v.restart)
		return
	}
	gen := v.gen
	t := max(w.now+w.delay(), v.last)
	v.last = t
	w.at(t, p, func() {
		switch {
		case v.gen != gen:
		case v.read != gen:
			v.waiting = append(v.waiting, do)
		default:
			do()
		}
	})
	if again && !w.calm && w.chance(w.p.dup) {
		w.stats.Faults[Repeated]++
		w.at(t+w.between(0, 4*sec), p, func() {
			if v.read == v.gen {
				do()
			}
		})
	}
}
