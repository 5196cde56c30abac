package control

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"headgate/admission"
)

// tellLeast is the least time between news, tellDoubted while a replica doubts, and
// tellEach what each of their rows asks for, since all replicas read all of it. What a
// replica has at an engine is a quarter of a row.
const (
	tellLeast   = Time(50e6)
	tellDoubted = Time(10e6)
	tellEach    = Time(1e6)
)

// toldEnds is how many ends are told.
const toldEnds = 8

func (a *Allocator) tellEvery() Time {
	least := tellLeast
	if a.doubted() {
		least = tellDoubted
	}
	return max(least, tellEach*Time(len(a.lives)*(4*len(a.pool.Classes)+len(a.pool.Engines)))/4)
}

// tell tells the replicas of each other, if there is something new. What they were told
// before counts until then, an earlier leader's too.
func (a *Allocator) tell() {
	t := &a.t
	for i, l := range t.lives {
		for k := range l.classes {
			at := &l.classes[k]
			a.news = a.news || at.shown != t.protected[i][k] || at.barred != t.bars[i][k]
		}
	}
	for e := range a.pool.Engines {
		a.news = a.news || a.accounts[e].beside != a.beside(e)
	}
	if !a.news || a.last < a.told+a.tellEvery() && (a.nNews > 0 || a.follows) {
		return
	}
	a.news, a.told = false, a.last
	s := &News{Pool: a.pool.Name, Epoch: a.epoch}
	for e := range a.pool.Engines {
		a.accounts[e].beside = a.beside(e)
		v := EngineNews{Engine: a.pool.Engines[e].Name, Idle: most(t.idle[e], Amount{}), Foreign: a.accounts[e].beside}
		for _, l := range t.lives {
			for _, end := range l.ends[e] {
				v.Ends = append(v.Ends, End{duration(end.at - a.now), end.amount})
			}
		}
		v.Speed = a.speed(e)
		slices.SortStableFunc(v.Ends, func(x, y End) int { return cmp.Compare(x.In, y.In) })
		v.Ends = v.Ends[:min(len(v.Ends), toldEnds)]
		s.Engines = append(s.Engines, v)
	}
	for i, l := range t.lives {
		for k := range l.classes {
			at := &l.classes[k]
			at.shown, at.barred = t.protected[i][k], t.bars[i][k]
			if at.away.Offered == 0 && at.shown == (Amount{}) {
				continue
			}
			row := ClassNews{ID: l.id, Class: a.pool.Classes[k].Name, Waiting: at.waiting, Protected: at.shown, Away: at.away}
			if at.total != (Amount{}) {
				row.Used = slices.Clone(at.used)
			}
			row.Within = at.barred
			since := duration(a.now - at.said)
			older := func(d *time.Duration) {
				if *d >= 0 {
					*d += since
				}
			}
			older(&row.Pending)
			older(&row.Pressed)
			older(&row.Starting)
			row.Starts = nil
			if slices.ContainsFunc(at.away.Starts, func(s Starts) bool { return s.N > 0 }) {
				row.Starts = slices.Clone(at.away.Starts)
			}
			for e := range row.Starts {
				older(&row.Starts[e].Age)
			}
			s.Classes = append(s.Classes, row)
		}
	}
	for _, l := range t.lives {
		if slices.ContainsFunc(l.presence, func(v Presence) bool { return v.Begun > 0 || v.Doubts }) {
			s.Lives = append(s.Lives, LifeNews{ID: l.id, At: l.made, Heard: l.heard, Presence: slices.Clone(l.presence)})
		}
	}
	if len(s.Classes) > 0 || a.nNews > 0 || a.follows || a.doubted() {
		a.nNews++
		s.Seq = a.nNews
		a.fx = append(a.fx, Effect{Op: Tell, News: s})
	}
}

// doubted tells whether a replica asks what the others have at the engines.
func (a *Allocator) doubted() bool {
	return slices.ContainsFunc(a.lives, func(l *life) bool {
		return slices.ContainsFunc(l.presence, func(v Presence) bool { return v.Doubts })
	})
}

// beside is what of an engine no live replica can have.
func (a *Allocator) beside(e int) Amount {
	sum := a.accounts[e].foreign
	for _, l := range a.lives {
		if !l.live {
			sum = plus(sum, most(l.bound[e], a.survival(l, e)))
		}
	}
	return sum
}

// speed is how fast an engine works: the fastest prefill of each size that any replica
// has seen, and the mean of the times per token.
func (a *Allocator) speed(e int) (all admission.Speed) {
	var n [len(all.Tokens)]Time
	var fastest [33]admission.Prefill
	for _, l := range a.t.lives {
		for _, p := range l.speed[e].Prefills {
			f := &fastest[bits.Len32(uint32(p.Tokens))]
			if f.Tokens == 0 || p.Took*Time(f.Tokens) < f.Took*Time(p.Tokens) {
				*f = p
			}
		}
		for i, v := range l.speed[e].Tokens {
			if v > 0 {
				all.Tokens[i] += v
				n[i]++
			}
		}
	}
	for _, f := range fastest {
		if f.Tokens > 0 {
			all.Prefills = append(all.Prefills, f)
		}
	}
	for i := range all.Tokens {
		all.Tokens[i] /= max(n[i], 1)
	}
	return all
}

// Heard is which news a replica's core has been told last.
type Heard struct {
	Epoch uint64 `json:"epoch,omitempty"`
	Seq   uint64 `json:"seq,omitempty"` // 0 before the first
}

// Take tells whether news are to be told to the core of a replica whose last grant is g:
// not those that come late, nor those of a leader whose term is known to be over.
func (h *Heard) Take(n *News, g *Grant) bool {
	if n.Epoch < h.Epoch || n.Epoch == h.Epoch && n.Seq <= h.Seq || g != nil && n.Epoch < g.Epoch {
		return false
	}
	h.Epoch, h.Seq = n.Epoch, n.Seq
	return true
}

// Elsewhere is what news tell the core of one replica, which has the table base and to
// which they came at now. By its clock that is when what they say was so: no two clocks
// are compared, so that ages lack what the way took.
func (s *News) Elsewhere(base *admission.Table, id ID, now Time) *admission.Elsewhere {
	v := &admission.Elsewhere{Engines: make([]admission.EngineElsewhere, len(base.Engines)), Classes: make([]admission.ClassElsewhere, len(base.Classes))}
	engine := make([]int, len(s.Engines))
	for i := range s.Engines {
		engine[i] = slices.IndexFunc(base.Engines, func(e admission.EngineSpec) bool { return e.Name == s.Engines[i].Engine && !e.Closed })
		if e := engine[i]; e >= 0 {
			v.Engines[e].Idle, v.Engines[e].Foreign, v.Engines[e].Speed = s.Engines[i].Idle, s.Engines[i].Foreign, s.Engines[i].Speed
			for _, end := range s.Engines[i].Ends {
				v.Engines[e].Ends = append(v.Engines[e].Ends, admission.Ending{At: now + Time(end.In), Amount: end.Amount})
			}
		}
	}
	for i := range s.Classes {
		row := &s.Classes[i]
		k := slices.IndexFunc(base.Classes, func(c admission.ClassSpec) bool { return c.Name == row.Class })
		if k < 0 || row.ID == id {
			continue
		}
		c := &v.Classes[k]
		if c.Starts == nil {
			c.Starts = make([]admission.Starts, len(base.Engines))
		}
		for j := range row.Used {
			if e := engine[j]; e >= 0 {
				c.Used = plus(c.Used, row.Used[j])
				v.Engines[e].Used = plus(v.Engines[e].Used, row.Used[j])
			}
		}
		c.Protected = plus(c.Protected, row.Protected)
		c.Waiting += row.Waiting
		c.Within = c.Within || row.Within
		c.Wants = c.Wants || row.Wants
		c.InTime = c.InTime || row.InTime
		c.Recalled = c.Recalled || row.Recalled
		c.Offered += row.Offered
		c.Prompt = max(c.Prompt, row.Prompt)
		if at := max(now-Time(row.Pending), 1); row.Pending >= 0 && (c.Pending == 0 || at < c.Pending) {
			c.Pending = at
		}
		if at := max(now-Time(row.Starting), 1); row.Starting >= 0 && (c.Starting == 0 || at < c.Starting) {
			c.Starting = at
		}
		if row.Pressed >= 0 {
			c.Pressed = max(c.Pressed, now-Time(row.Pressed))
		}
		for j := range row.Starts {
			if e := engine[j]; e >= 0 && row.Starts[j].N > 0 {
				at := &c.Starts[e]
				since := now - Time(row.Starts[j].Age)
				if at.N == 0 || since < at.Since {
					at.Since = since
				}
				at.N += row.Starts[j].N
				at.Tokens += row.Starts[j].Tokens
			}
		}
	}
	return v
}
