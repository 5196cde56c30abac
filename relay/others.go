package relay

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"headgate/admission"
	"headgate/control"
	"headgate/engine"
)

// An engine of a fleet shows what it has of all replicas, so that each tells the others
// what it surely has there (engine.Attendance), in its reports, which come back in the
// news. A release is confirmed by an engine's sample and what the others have said before
// it and after it. For that the moments have to be in an order, though every replica has
// its own clock:
//
//   - What came with news was said before they came.
//   - A report names the news that its replica had heard. If those gave a report of this
//     replica, it was made after that one.
//   - How much later another report was made is told by the other's clock, less or more what
//     clocks may differ in. So the quickest way that news have taken bounds all reports.
//
// While somebody doubts, which the news say, all who have something at an engine report
// every pace. Else nobody reports for this.

const (
	// leastPace and pacePer, for each replica there is, bound how often replicas report
	// because one of them doubts: all of them together 200 times a second at most.
	leastPace = 25 * time.Millisecond
	pacePer   = 5 * time.Millisecond
	// maxHeard bounds the news of which is remembered which report was in them.
	maxHeard = 64
)

// others is what is known of the other replicas' words and clocks.
type others struct {
	drift  float64
	echoes []echo // the newest last
	peers  map[control.ID]*peer
	pace   pace
}

// echo is when the report was made that this replica was told by in some news.
type echo struct {
	control.Heard
	made admission.Time
}

// peer is another replica's last report: when it was made by its own clock, and between
// which moments by this replica's; known tells whether there is the first of them.
type peer struct {
	at, after, before admission.Time
	known             bool
}

// share tells an adapter that others send to its engine.
func (f *fleet) share(a engine.Adapter) {
	if s, ok := a.(engine.Shared); ok {
		s.Share(f.others.pace.ask)
	}
}

// presenceLocked is what this replica surely has at an engine of the table.
func (p *Pool) presenceLocked(i int) (v control.Presence) {
	live := p.live()
	if i >= len(live.Engines) || live.gone[i] {
		return v
	}
	if s, ok := live.Engines[i].Adapter.(engine.Shared); ok {
		a := s.Attending()
		v = control.Presence{Begun: a.Begun, Ended: a.Ended, Since: admission.Time(a.Since.Sub(p.cfg.Start)), Place: a.Place, Doubts: a.Doubts}
		v.Age = max(time.Duration(p.now())-a.As.Sub(p.cfg.Start), 0)
	}
	return v
}

// hearLocked has the adapters know what the others have said in the last news, and
// answers who doubts.
func (p *Pool) hearLocked() {
	f, n := p.fleet, p.fleet.news
	o := &f.others
	for i := range n.Lives {
		if l := &n.Lives[i]; l.ID == p.cfg.Replica {
			o.echoes = append(o.echoes, echo{control.Heard{Epoch: n.Epoch, Seq: n.Seq}, l.At})
			o.echoes = slices.Delete(o.echoes, 0, max(0, len(o.echoes)-maxHeard))
		}
	}
	for id := range o.peers {
		if !slices.ContainsFunc(n.Lives, func(l control.LifeNews) bool { return l.ID == id }) {
			delete(o.peers, id)
		}
	}
	o.pace.set(max(leastPace, pacePer*time.Duration(len(n.Lives))))
	said := make([][]engine.Presence, len(n.Engines))
	doubted := false
	for i := range n.Lives {
		l := &n.Lives[i]
		if l.ID == p.cfg.Replica {
			continue
		}
		made := o.heard(l, f.came)
		for e, v := range l.Presence {
			doubted = doubted || v.Doubts
			if made == nil || e >= len(said) || v.Begun == 0 {
				continue
			}
			s := engine.Presence{
				Who: fmt.Sprint(l.Replica, "/", l.Boot, "/", v.Since, "/", v.Place), Place: v.Place, Begun: v.Begun, Ended: v.Ended,
				Before: p.cfg.Start.Add(time.Duration(made.before)),
			}
			if made.known {
				s.After = p.cfg.Start.Add(time.Duration(made.after) - time.Duration(float64(v.Age)/(1-o.drift)))
			}
			said[e] = append(said[e], s)
		}
	}
	live, has := p.live(), false
	for i := range live.Engines {
		s, shared := live.Engines[i].Adapter.(engine.Shared)
		if live.gone[i] || !shared {
			continue
		}
		a := s.Attending()
		has = has || !a.Idle
		e := slices.IndexFunc(n.Engines, func(v control.EngineNews) bool { return v.Engine == live.Engines[i].Name })
		if e < 0 {
			s.Others(nil)
			continue
		}
		s.Others(slices.DeleteFunc(said[e], func(v engine.Presence) bool { return v.Place != a.Place }))
	}
	if doubted && has {
		o.pace.ask()
	}
}

// heard takes in when a report was made that came in news, nil of one that was replaced.
func (o *others) heard(l *control.LifeNews, came admission.Time) *peer {
	p := &peer{at: l.At, before: came}
	if was := o.peers[l.ID]; was != nil {
		if l.At < was.at {
			return nil
		}
		later := float64(l.At - was.at)
		p.after, p.known = was.after+admission.Time(later*(1-o.drift)), was.known
		p.before = min(came, was.before+admission.Time(later/(1-o.drift))+1)
	}
	for _, m := range slices.Backward(o.echoes) {
		if m.Epoch == l.Heard.Epoch && m.Seq <= l.Heard.Seq {
			p.after, p.known = max(p.after, m.made), true
			break
		}
	}
	if p.after > p.before+1e3 { // more than what is rounded
		// One of the two processes was stopped together with its clock. What was known of
		// the other's does not hold any more.
		p = &peer{at: l.At, before: came}
	}
	p.after = min(p.after, p.before)
	o.peers[l.ID] = p
	return p
}

// pace has reports made that are asked for, no more often than every so long.
type pace struct {
	want func()

	mu    sync.Mutex
	every time.Duration
	last  time.Time
	asked bool
}

func (c *pace) set(every time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.every = every
}

func (c *pace) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked {
		return
	}
	c.asked = true
	time.AfterFunc(time.Until(c.last.Add(c.every)), func() {
		c.mu.Lock()
		c.asked, c.last = false, time.Now()
		c.mu.Unlock()
		c.want()
	})
}
