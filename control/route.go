package control

import (
	"cmp"
	"slices"
	"time"
)

// Router knows what room the other replicas have, and says which of them would start
// a request at once that would have to wait here.
//
// It is pure: the shell tells it who there is and what the leader has published, with
// the time by its own clock, and asks it for a way.
//
// What is published is a second old, or two. So a request is sent on only where that
// leaves no doubt: there is room for it in a grant that is in force, in both of
// admission's conditions, and nobody waits there whom it could meet. What was sent to
// a replica since is taken off what it had, until a status comes that must have it.
// If it waits there all the same, it waits there: it is never sent on again.
//
// Of several replicas with room a request gets the roomier of two that are drawn by
// its id. All replicas read the same status, so that the roomiest of all would be
// found by every one of them at once, and have no room any more (Mitzenmacher, How
// useful is old information?, 2000, finds two to be best when news is old).
//
// Alternatives: to ask the others for each request costs a round trip to all of them,
// and its answer is old as well when the request comes; to hand over what waits
// already would need its place in another's queue. What is to come to the replica
// rather than to go from it is the allocator's: this is for the seconds before its
// grant has moved.
type Router struct {
	id      ID
	members []Member // that can be reached, without this one
	pools   map[string]*routed
	avoided map[string]Time // replicas that could not be reached, and until when they are left alone
}

const (
	// mostAge is how old a status may be. It is several times as long as what is
	// published is repeated after, see RepeatStatus.
	mostAge = Time(12 * time.Second)
	// catchUp is how long it takes at most from a request's admission at a replica to
	// a status that has it: to be reported, and to be looked at by the leader.
	catchUp = Time(2 * time.Second)
	// avoidFor is how long a replica that could not be reached is left alone.
	avoidFor = Time(5 * time.Second)
)

// RepeatStatus is after how long a leader has to publish a status again that has not
// changed, for a Router to believe it.
const RepeatStatus = 5 * time.Second

// routed is a pool's status.
type routed struct {
	status *Status
	at     Time // when it came; 0: it is not known how old it is
	sent   []sent
}

// sent is a request that a replica was sent since.
type sent struct {
	to     ID
	engine string
	class  string
	amount Amount
	at     Time
}

// Need is what a request needs.
type Need struct {
	Class string
	// Engines that can run it, and what it would hold there.
	Engines []EngineNeed
}

// EngineNeed is what a request would hold on one engine.
type EngineNeed struct {
	Engine string
	Amount Amount
}

// NewRouter returns a router of the replica, which knows of nobody.
func NewRouter(id ID) *Router {
	return &Router{id: id, pools: map[string]*routed{}, avoided: map[string]Time{}}
}

// Members replaces who has a lease.
func (r *Router) Members(all []Member) {
	r.members = r.members[:0]
	for _, m := range all {
		if m.Replica != r.id.Replica && m.Address != "" {
			r.members = append(r.members, m)
		}
	}
}

// Status takes over what a leader has published, if it is newer than what is known.
// Of the first that comes nobody knows how old it is, so nothing is sent by it.
func (r *Router) Status(now Time, s *Status) {
	p := r.pools[s.Pool]
	if p == nil {
		r.pools[s.Pool] = &routed{status: s}
		return
	}
	if s.Epoch < p.status.Epoch || s.Epoch == p.status.Epoch && s.Published <= p.status.Published {
		return
	}
	p.status, p.at = s, now
	p.sent = slices.DeleteFunc(p.sent, func(v sent) bool { return v.at+catchUp <= now })
}

// Unreached notes that a replica could not be connected to, so that what it was to get
// is not there.
func (r *Router) Unreached(now Time, replica string) {
	r.avoided[replica] = now + avoidFor
	for _, p := range r.pools {
		p.sent = slices.DeleteFunc(p.sent, func(v sent) bool { return v.to.Replica == replica })
	}
}

// way is a replica that would start a request.
type way struct {
	to     Member
	engine int // of the need
	within bool
	room   int64 // per mille of its part of the engine that would be left
	draw   uint64
}

// better tells which of two is the better way: first where nothing can be called back.
func (w *way) better(than *way) bool {
	if w.within != than.within {
		return w.within
	}
	return w.room > than.room
}

// Route returns the replica that a request that would have to wait here is to be sent
// to, and takes its need off what that one has; ok is false if it stays here. request
// is its id.
func (r *Router) Route(now Time, pool, request string, need *Need) (to Member, ok bool) {
	p := r.pools[pool]
	if p == nil || p.at == 0 || now-p.at > mostAge {
		return to, false
	}
	var ways []way
	for i := range p.status.Replicas {
		v := &p.status.Replicas[i]
		m := slices.IndexFunc(r.members, func(m Member) bool { return m.ID == v.ID && m.Lease == v.Lease })
		if m < 0 || !v.Live || v.Acknowledged != v.Revision || now < r.avoided[v.Replica] {
			continue
		}
		if w, ok := p.way(v, need); ok {
			w.to, w.draw = r.members[m], draw(request, v.Replica)
			ways = append(ways, w)
		}
	}
	if len(ways) == 0 {
		return to, false
	}
	slices.SortFunc(ways, func(a, b way) int {
		if a.within != b.within {
			if a.within {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.draw, b.draw), cmp.Compare(a.to.Replica, b.to.Replica))
	})
	best := &ways[0]
	if len(ways) > 1 && ways[1].better(best) {
		best = &ways[1]
	}
	e := &need.Engines[best.engine]
	p.sent = append(p.sent, sent{to: best.to.ID, engine: e.Engine, class: need.Class, amount: e.Amount, at: now})
	return best.to, true
}

// way tells whether a replica would surely start a request at once, and where.
func (p *routed) way(v *ReplicaStatus, need *Need) (best way, ok bool) {
	class := slices.IndexFunc(v.Classes, func(c ClassStatus) bool { return c.Class == need.Class })
	if class < 0 || v.Classes[class].Waiting > 0 || len(v.Accounts) != len(p.status.Accounts) {
		return best, false
	}
	waiting := 0
	var whole, promised Amount // of its grant, and of that what its other classes use and keep
	for i := range v.Accounts {
		if p.status.Accounts[i].Engine != "" {
			whole = plus(whole, v.Accounts[i].Granted)
		}
	}
	for i := range v.Classes {
		c := &v.Classes[i]
		waiting += c.Waiting
		if i != class {
			promised = plus(promised, most(plus(c.Used, p.since(v.ID, "", c.Class)), c.Kept))
		}
	}
	c := &v.Classes[class]
	used := plus(c.Used, p.since(v.ID, "", c.Class))
	for n := range need.Engines {
		e := &need.Engines[n]
		i := slices.IndexFunc(p.status.Accounts, func(a AccountStatus) bool { return a.Engine == e.Engine })
		if i < 0 || e.Amount == (Amount{}) {
			continue
		}
		after := plus(used, e.Amount)
		granted := v.Accounts[i].Granted
		taken := plus(plus(v.Accounts[i].Used, p.since(v.ID, e.Engine, "")), e.Amount)
		w := way{engine: n, within: within(after, c.Floor), room: 1000}
		if !within(taken, granted) || !w.within && waiting > 0 || !p.ceiling(v, need.Class, after) {
			continue
		}
		fits := true
		for r := range resources {
			fits = fits && (after[r] <= c.Kept[r] || promised[r]+max(after[r], c.Kept[r]) <= whole[r])
			if granted[r] > 0 {
				w.room = min(w.room, (granted[r]-taken[r])*1000/granted[r])
			}
		}
		if fits && (!ok || w.better(&best)) {
			best, ok = w, true
		}
	}
	return best, ok
}

// ceiling tells whether a class stays below what a replica has of its ceiling.
func (p *routed) ceiling(v *ReplicaStatus, class string, after Amount) bool {
	for i := range p.status.Accounts {
		if a := &p.status.Accounts[i]; a.Engine == "" && a.Class == class && !within(after, v.Accounts[i].Granted) {
			return false
		}
	}
	return true
}

// since is what a replica was sent that its status does not have: for an engine, or
// of a class.
func (p *routed) since(id ID, engine, class string) (sum Amount) {
	for i := range p.sent {
		if v := &p.sent[i]; v.to == id && (v.engine == engine || v.class == class) {
			sum = plus(sum, v.amount)
		}
	}
	return sum
}

// draw is a number that a request and a replica have together (FNV-1a, with the mixing
// of MurmurHash3 behind it, since ids that differ in little must not draw alike).
func draw(request, replica string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{request, "\x00", replica} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
