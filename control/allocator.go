package control

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"headgate/admission"
)

// Allocator shares one pool between replicas. It is pure: the same events give
// the same effects. It is not safe for concurrent use.
type Allocator struct {
	pool  Pool
	cfg   Config
	epoch uint64

	now  Time // the allocator's own time, see clock
	last Time // the shell's, as of the last step
	rev  uint64

	accounts []account
	lives    []*life // by rank, which a join or a departure of others does not change
	// early are reports that came before what they belong to: the last of each life.
	early    map[ID]*Report
	nHandoff uint64
	nNoted   uint64
	echoed   uint64 // whoever's grant is not later gets a new one, see life.echo
	shared   Time   // when what nobody wants was last shared anew
	news     bool   // replicas have something to be told of each other
	told     Time   // when they last were, by the shell's clock
	nNews    uint64
	follows  bool // another led before

	fx []Effect
	t  target // scratch and result of the last decision
}

// account is an engine, or a class with a ceiling below the envelope.
type account struct {
	engine int // index, -1 of a class
	class  int // index, -1 of an engine
	total  Amount
	// foreign is what the engine runs that no replica sent; unexplained are the last two
	// differences that it is the smaller of.
	foreign     Amount
	beside      Amount // as replicas were told
	unexplained [2]Amount
	samples     int
	sampled     Time
}

// life is one life of a replica.
type life struct {
	id    ID
	rank  uint64
	lease int64
	live  bool
	// loaded: it was found in the store, and may be told to have its lease yet.
	loaded bool
	// name is false for a life that another of the same replica has followed: what
	// survives is the later one's.
	name bool
	seq  uint64
	rev  uint64 // of its last grant
	had  uint64 // revision in force at its last report
	seen bool   // it has reported under its present lease
	told bool   // its core knows of the others
	at   Time   // of its last report

	granted []Amount // by account, of the last grant
	// survives is, by account, what a grant has said that survives. Before that it is kept
	// from others' raises, but may be another's still.
	survives []Amount
	// owed are the grants that it may be using, or may still take up: the one that it
	// last acknowledged and all later ones.
	owed []owed
	used []Amount // by account, as last reported
	// bound is the most that it can have, of what is owed and used.
	bound []Amount
	// retired is what it may have of accounts that were taken out of the configuration: it
	// has not acknowledged a grant without them yet, or still has work there.
	retired map[string]*retired
	highs   [][recent]Amount  // by engine, of the last reports
	totals  []Amount          // by engine, as it says
	ends    [][]end           // by engine: what is predicted to end by itself next
	speed   []admission.Speed // by engine, as it has learned it
	// presence is, by engine, what it surely has there, as it has said in the report that
	// it made then, having heard of what.
	presence []Presence
	made     Time // by its own clock
	heard    Heard

	// fingerprint is of its configuration, differs that it is noted to be another.
	fingerprint string
	differs     bool
	leaving     bool // it gives its lease back

	classes []classAt
	floors  []Amount // by class, as granted
	unlent  []Amount // by class, as granted
	recall  bool     // what is above its grant is wanted by protected demand
	gone    Time     // when its lease was seen to be over
	until   Time     // when whatever it left is over at the latest
	// residual is the longest that it has asked for or been granted, promised what its last
	// grant says.
	residual, promised time.Duration
	// echo is the revision after which a grant was written to every other once requests
	// that a life that is gone had sent must have reached the engines: who has taken
	// such a grant, and has asked an engine for a sample since, shows what is left. 0: not
	// yet.
	echo uint64
	// smoothed is what it had to have of each account, that rises at once and falls
	// slowly; as of smoothedAt.
	smoothed   [][resources]float64
	smoothedAt Time
	handoff    *handoff // to it, that is open
}

// recent is of how many reports the highs count against a gauge: one before the
// sample, one after, and one for what was under way.
const recent = 3

// retired is what a life may have of an account that is configured no more.
type retired struct {
	bound Amount
	rev   uint64 // of the first grant without it; 0: not yet written
}

// owed is what a grant allows.
type owed struct {
	epoch   uint64
	rev     uint64
	lease   int64
	amounts []Amount // by account
}

// end is when something is predicted to end, and what it frees.
type end struct {
	at     Time
	amount Amount
}

// classAt is a class at a replica.
type classAt struct {
	used     []Amount // by engine
	total    Amount
	hold     Amount
	waiting  int
	head     Amount
	short    bool
	since    Time // when its oldest waiting request began to wait
	age      Time // when the first of them came
	late     bool
	guarded  bool // the first of them has room and waits for the stall guard
	gave     Time // when it was last given capacity for one that was short
	patience Time // until when it can wait for what ends by itself
	admitted uint64
	rejected uint64
	// active: it was used or admitted since the report before. slack is since when it
	// had some of its guarantee to spare, Never while it has not.
	active  bool
	slack   Time
	pressed bool // it waits, or has refused somebody since the report before
	away    Away
	said    Time   // when it was
	shown   Amount // of the floor, as replicas were told
	barred  bool   // that it waits within the floor, as they were told
}

// handoff is one that is open.
type handoff struct {
	Handoff
	opened Time
	from   []*life
	revs   []uint64 // of the grants that they have to acknowledge
}

// NewAllocator returns the allocator of a leader whose term has the epoch. The shell
// hands it the grants that are in the store (Load) before anything else. It
// panics on a pool that does not validate.
func NewAllocator(p *Pool, epoch uint64, cfg Config) *Allocator {
	cfg.SetDefaults()
	a := &Allocator{cfg: cfg, epoch: epoch, early: map[ID]*Report{}}
	a.configure(p)
	return a
}

// Step takes in one event and returns what is to be done, appended to fx.
func (a *Allocator) Step(now Time, ev *Event, fx []Effect) []Effect {
	a.fx = fx
	a.clock(now)
	switch ev.Kind {
	case Load:
		a.load(ev.Grant)
	case Join:
		a.join(&ev.Member)
		if r := a.early[ev.Member.ID]; r != nil {
			delete(a.early, ev.Member.ID)
			a.report(r)
		}
	case Gone:
		if l := a.find(ev.Member.ID); l != nil && l.live && l.lease == ev.Member.Lease {
			a.depart(l)
		}
	case Reported:
		a.report(ev.Report)
	case Configure:
		a.configure(ev.Pool)
	case Forget:
		a.forget(ev.Member.Replica)
	case Tick:
	default:
		panic(fmt.Sprintf("control: event of unknown kind %d", ev.Kind))
	}
	if ev.Kind != Load {
		if len(a.early) > MaxReplicas {
			clear(a.early) // whoever is there reports again
		}
		a.bury()
		a.decide()
		a.tell()
	}
	fx, a.fx = a.fx, nil
	return fx
}

// every is how often an allocator looks at what only time changes.
const every = Time(1e9)

// Next is when to step at the latest.
func (a *Allocator) Next() (Time, bool) {
	at := a.last + every
	if a.t.look != 0 {
		at = min(at, a.last+max(a.t.look-a.now, 0))
	}
	if a.news {
		at = min(at, max(a.told+a.tellEvery(), a.last))
	}
	return at, true
}

// clock advances the allocator's time. A leader that was stopped, or whose clock
// jumped, does not know what happened meanwhile, so what waits for a time to pass
// waits on: no gap counts for more than a little over a tick.
func (a *Allocator) clock(now Time) {
	gap := max(now-a.last, 0)
	if a.last != 0 {
		a.now += min(gap, 2*every)
	}
	a.last = max(a.last, now)
}

// configure takes over the pool as it is configured.
func (a *Allocator) configure(p *Pool) {
	p.Validate(func(path string, value any, allowed string) {
		panic(fmt.Sprintf("control: pool %s: %s is %v, must be %s", p.Name, path, value, allowed))
	})
	old := a.pool
	a.pool = *p
	a.pool.Engines, a.pool.Classes = slices.Clone(p.Engines), slices.Clone(p.Classes)
	names := make([]string, len(a.accounts))
	for i := range a.accounts {
		names[i] = a.accounts[i].name(&old)
	}
	before := a.accounts
	a.accounts = nil
	for e := range p.Engines {
		a.accounts = append(a.accounts, account{engine: e, class: -1, total: p.Engines[e].Total})
	}
	for k := range p.Classes {
		if p.limited(k) {
			a.accounts = append(a.accounts, account{engine: -1, class: k, total: p.Classes[k].Ceiling})
		}
	}
	from := make([]int, len(a.accounts))
	for i := range a.accounts {
		from[i] = slices.Index(names, a.accounts[i].name(p))
		if from[i] >= 0 {
			b := &before[from[i]]
			for r, v := range a.accounts[i].total {
				if v == 0 {
					a.accounts[i].total[r] = b.total[r] // as it was measured
				}
			}
			a.accounts[i].foreign, a.accounts[i].unexplained, a.accounts[i].samples, a.accounts[i].sampled = b.foreign, b.unexplained, b.samples, b.sampled
		}
	}
	move := func(v []Amount) []Amount {
		n := make([]Amount, len(from))
		for i, f := range from {
			if f >= 0 {
				n[i] = v[f]
			}
		}
		return n
	}
	for _, l := range a.lives {
		for f, name := range names {
			if !slices.Contains(from, f) {
				l.retire(name, most(l.bound[f], l.survives[f]))
			}
		}
		totals := make([]Amount, len(p.Engines))
		for e := range totals {
			if f := from[e]; f >= 0 && f < len(l.totals) {
				totals[e] = l.totals[f]
			}
		}
		l.granted, l.survives, l.used, l.bound = move(l.granted), move(l.survives), move(l.used), move(l.bound)
		for i := range l.owed {
			l.owed[i].amounts = move(l.owed[i].amounts)
		}
		a.reset(l, &old)
		copy(l.totals, totals)
		a.revive(l)
		a.compare(l)
	}
	for e := range p.Engines {
		a.measure(e)
	}
	a.echoed, a.news = a.rev, true // everybody is told
}

// retire remembers what a life may have of an account that is configured no more.
func (l *life) retire(name string, bound Amount) {
	if bound == (Amount{}) {
		return
	}
	if l.retired == nil {
		l.retired = map[string]*retired{}
	}
	l.retired[name] = &retired{bound: bound}
}

// revive has what a life may have of an account that is back count again, until it has
// acknowledged a grant that says how much.
func (a *Allocator) revive(l *life) {
	for n := range a.accounts {
		name := a.accounts[n].name(&a.pool)
		old := l.retired[name]
		if old == nil {
			continue
		}
		delete(l.retired, name)
		amounts := make([]Amount, len(a.accounts))
		amounts[n] = old.bound
		l.owed = append([]owed{{epoch: a.epoch, rev: l.rev, lease: l.lease, amounts: amounts}}, l.owed...)
		a.bind(l)
	}
}

// reset sizes what a life has by engine and class, and keeps what the pool before had.
func (a *Allocator) reset(l *life, old *Pool) {
	ne, nk := len(a.pool.Engines), len(a.pool.Classes)
	l.highs, l.totals = make([][recent]Amount, ne), make([]Amount, ne)
	l.ends, l.speed, l.presence = make([][]end, ne), make([]admission.Speed, ne), make([]Presence, ne)
	classes, floors, unlent := l.classes, l.floors, l.unlent
	l.classes, l.floors, l.unlent = make([]classAt, nk), make([]Amount, nk), make([]Amount, nk)
	for k := range l.classes {
		l.classes[k] = classAt{used: make([]Amount, ne), slack: never}
		for j := range classes {
			if old.Classes[j].Name == a.pool.Classes[k].Name {
				l.floors[k], l.unlent[k] = floors[j], unlent[j]
			}
		}
	}
}

// limited tells whether a class has a ceiling that the envelope does not imply.
func (p *Pool) limited(k int) bool {
	c := p.Classes[k].Ceiling
	if c == (Amount{}) {
		return false
	}
	var whole Amount
	for e := range p.Engines {
		if p.Engines[e].Total == (Amount{}) {
			return true
		}
		whole = plus(whole, p.Engines[e].Total)
	}
	return !within(whole, c)
}

func (c *account) name(p *Pool) string {
	if c.engine >= 0 {
		return "engine " + p.Engines[c.engine].Name
	}
	return "class " + p.Classes[c.class].Name
}

func (a *Allocator) find(id ID) *life {
	for _, l := range a.lives {
		if l.id == id {
			return l
		}
	}
	return nil
}

// born adds a life.
func (a *Allocator) born(id ID) *life {
	h := fnv.New64a()
	h.Write([]byte(a.pool.Name + "\x00" + id.Replica))
	n := len(a.accounts)
	l := &life{id: id, rank: h.Sum64(), name: true, residual: a.cfg.Residual, granted: make([]Amount, n), survives: make([]Amount, n), used: make([]Amount, n), bound: make([]Amount, n)}
	for _, other := range a.lives {
		if other.id.Replica == id.Replica {
			a.unname(other)
		}
	}
	a.reset(l, &a.pool)
	a.lives = append(a.lives, l)
	slices.SortFunc(a.lives, func(x, y *life) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.id.Replica, y.id.Replica), cmp.Compare(x.id.Boot, y.id.Boot))
	})
	return l
}

// load takes over a grant of an earlier leader: what it allows, and what may still
// be in use of those before it.
func (a *Allocator) load(g *Grant) {
	l := a.find(g.ID)
	if l == nil {
		l = a.born(g.ID)
	}
	a.rev = max(a.rev, g.Rev)
	a.news, a.follows = true, true
	l.lease, l.rev = g.Lease, g.Rev
	before, now := make([]Amount, len(a.accounts)), make([]Amount, len(a.accounts))
	for i := range g.Accounts {
		c := &g.Accounts[i]
		if n := a.index(c.Engine, c.Class); n >= 0 {
			before[n], now[n], l.survives[n] = most(c.Bound, c.Survival), c.Amount, c.Survival
			continue
		}
		name := "engine " + c.Engine
		if c.Class != "" {
			name = "class " + c.Class
		}
		l.retire(name, most(most(c.Bound, c.Survival), c.Amount))
	}
	l.granted = slices.Clone(now)
	// What was before it is over with the acknowledgement of this one, and not sooner.
	l.owed = []owed{{epoch: g.Epoch, rev: g.Rev - 1, lease: g.Lease, amounts: before}, {epoch: g.Epoch, rev: g.Rev, lease: g.Lease, amounts: now}}
	a.bind(l)
	// Whether it still has its lease the members tell.
	l.residual, l.promised = max(a.cfg.Residual, g.Residual), g.Residual
	l.live, l.loaded, l.gone, l.until = false, true, a.now, a.now+Time(l.residual)
}

func (a *Allocator) index(engine, class string) int {
	for i := range a.accounts {
		switch c := &a.accounts[i]; {
		case c.engine >= 0 && engine != "" && a.pool.Engines[c.engine].Name == engine, c.class >= 0 && class != "" && a.pool.Classes[c.class].Name == class:
			return i
		}
	}
	return -1
}

func (a *Allocator) join(m *Member) {
	l := a.find(m.ID)
	if l == nil {
		l = a.born(m.ID)
	}
	for _, other := range a.lives {
		if other != l && other.id.Replica == m.Replica {
			a.unname(other)
		}
	}
	l.name = true
	switch {
	case l.live && l.lease == m.Lease:
		return
	case l.live:
		a.depart(l)
	}
	if !l.loaded || l.lease != m.Lease {
		a.tells(Joined, l, "") // else it was there before this leader
	}
	l.live, l.loaded, l.seen, l.leaving, l.at = true, false, false, false, a.now
	if l.lease != m.Lease {
		// What it had of grants is void, but until it reports under the new lease it may
		// not know that yet.
		l.lease, l.rev = m.Lease, 0
		clear(l.granted)
	}
}

// depart notes that a lease is over.
func (a *Allocator) depart(l *life) {
	l.live, l.gone = false, a.now
	l.until = a.now + Time(l.residual)
	if l.leaving {
		a.tells(Left, l, "")
	} else {
		a.tells(Expired, l, "")
	}
	clear(l.granted)
	l.echo = 0
	if !l.name {
		a.orphan(l)
	}
	for k := range l.classes {
		l.classes[k] = classAt{used: l.classes[k].used, slack: never}
	}
	l.recall = false
	clear(l.presence)
	a.news = true // that it does nothing any more
	a.drop(l)
	a.compare(l)
}

// report takes in what a replica says.
func (a *Allocator) report(r *Report) {
	r.Fold()
	l := a.find(r.ID)
	if l == nil || r.Seq <= l.seq {
		if l == nil {
			a.early[r.ID] = r
		}
		return
	}
	if l.residual = max(l.residual, r.Residual); !l.live {
		l.until = max(l.until, l.gone+Time(l.residual))
	}
	if !l.live || l.lease != r.Lease {
		// Of a lease that is over, or of one that has not been told of yet.
		a.early[r.ID] = r
		return
	}
	l.seq, l.told, l.fingerprint = r.Seq, r.News != 0, r.Fingerprint
	l.leaving = r.Leaving
	a.compare(l)
	l.seen, l.at, l.had = true, a.now, r.Rev
	a.news = a.news || a.doubted()
	l.made, l.heard = r.At, r.Heard
	clear(l.presence)
	for i := range r.Engines {
		e := &r.Engines[i]
		n := a.index(e.Engine, "")
		if n < 0 {
			continue
		}
		l.used[n] = e.Used
		l.speed[n], l.presence[n] = e.Speed, e.Presence
		l.ends[n] = l.ends[n][:0]
		for _, v := range e.Ends {
			l.ends[n] = append(l.ends[n], end{a.now + Time(v.In), v.Amount})
		}
		highs := &l.highs[n]
		copy(highs[1:], highs[:recent-1])
		highs[0] = most(e.High, e.Used)
		l.totals[n] = e.Total
		a.measure(n)
	}
	for i := range r.Classes {
		a.reportClass(l, r, &r.Classes[i])
	}
	a.news = a.news || a.doubted()
	a.acknowledge(l, r)
	for i := range r.Engines {
		if n := a.index(r.Engines[i].Engine, ""); n >= 0 {
			a.gauge(n, &r.Engines[i])
			a.leftovers(n, r, &r.Engines[i])
		}
	}
}

// compare notes whether a replica has the leader's configuration of the pool. Files change
// at one after the other, so one that has not is no worse off for it: what it and the
// leader both know counts as the leader has it, but for sizes, see measure.
func (a *Allocator) compare(l *life) {
	differs := l.live && l.fingerprint != "" && a.pool.Fingerprint != "" && l.fingerprint != a.pool.Fingerprint
	if differs == l.differs {
		return
	}
	l.differs = differs
	switch {
	case differs:
		a.tells(Differs, l, fmt.Sprintf("its fingerprint is %s, the leader's %s", l.fingerprint, a.pool.Fingerprint))
	case l.live:
		a.tells(Agrees, l, "")
	}
}

// measure sets what there is of an engine: the least of what the configuration says, if it
// does, and of what the replicas have heard from it or have in theirs. One of them may
// be right.
func (a *Allocator) measure(n int) {
	c := &a.accounts[n]
	for r := range c.total {
		found := a.pool.Engines[c.engine].Total[r]
		for _, l := range a.lives {
			if v := l.totals[n][r]; l.live && v > 0 && (found == 0 || v < found) {
				found = v
			}
		}
		if found > 0 {
			c.total[r] = found
		}
	}
}

func (a *Allocator) reportClass(l *life, r *Report, c *ClassReport) {
	k := slices.IndexFunc(a.pool.Classes, func(p Class) bool { return p.Name == c.Class })
	if k < 0 {
		return
	}
	at := &l.classes[k]
	total := at.total
	a.news = a.news || at.waiting != c.Waiting
	at.total = Amount{}
	clear(at.used)
	for i := range c.Used {
		if i >= len(r.Engines) {
			break
		}
		if n := a.index(r.Engines[i].Engine, ""); n >= 0 {
			at.used[n] = c.Used[i]
			at.total = plus(at.total, c.Used[i])
		}
	}
	if n := a.index("", c.Class); n >= 0 {
		l.used[n] = at.total
	}
	at.active = at.total != (Amount{}) || c.Admitted != at.admitted
	at.pressed = c.Waiting > 0 && c.Short || c.Rejected > at.rejected
	at.hold, at.waiting, at.head, at.short = c.Hold, c.Waiting, c.Head, c.Short && c.Waiting > 0
	at.since = a.now - Time(max(c.Waited, 0))
	at.age, at.late, at.guarded, at.patience = a.now-Time(max(c.Age, 0)), c.Late, c.Guarded && c.Waiting > 0, a.now+Time(max(c.Patience, 0))
	a.news = a.news || at.away.Offered != c.Away.Offered || !slices.EqualFunc(at.away.Starts, c.Away.Starts, func(x, y Starts) bool { return x.N == y.N && x.Tokens == y.Tokens }) ||
		(at.away.Pending < 0) != (c.Away.Pending < 0) || (at.away.Starting < 0) != (c.Away.Starting < 0) || at.away.Within != c.Away.Within || at.away.InTime != c.Away.InTime || at.away.Wants != c.Away.Wants || at.away.Recalled != c.Away.Recalled || total != at.total
	at.away, at.said = c.Away, a.now
	at.admitted, at.rejected = c.Admitted, c.Rejected
}

// acknowledge drops what a replica can't use any more of its earlier grants. A
// report is taken in at the replica in one with the occupancy that it tells, so what
// it has above the grant it names can only fall from here.
func (a *Allocator) acknowledge(l *life, r *Report) {
	l.owed = slices.DeleteFunc(l.owed, func(o owed) bool {
		return o.lease != r.Lease || o.epoch < r.Epoch || o.epoch == r.Epoch && o.rev < r.Rev
	})
	a.bind(l)
	for name, v := range l.retired {
		left := slices.ContainsFunc(r.Engines, func(e EngineReport) bool { return name == "engine "+e.Engine && e.Used != (Amount{}) })
		if v.rev != 0 && r.Epoch == a.epoch && r.Rev >= v.rev && !left {
			delete(l.retired, name)
		}
	}
	a.handedOff()
}

// maxOwed bounds what is remembered of a replica that acknowledges nothing.
const maxOwed = 16

// owe adds a grant to what a life may be using. Of too many the two oldest become one,
// that allows what either did until the later of them is acknowledged.
func (l *life) owe(o owed) {
	if len(l.owed) == maxOwed {
		for n, v := range l.owed[0].amounts {
			l.owed[1].amounts[n] = most(l.owed[1].amounts[n], v)
		}
		l.owed = append(l.owed[:0], l.owed[1:]...)
	}
	l.owed = append(l.owed, o)
}

// bind derives the bound of a life.
func (a *Allocator) bind(l *life) {
	copy(l.bound, l.used)
	for i := range l.owed {
		for n, v := range l.owed[i].amounts {
			l.bound[n] = most(l.bound[n], v)
		}
	}
}

// gauge compares what an engine says that it runs with what the replicas say that
// they have there, as the core does it for one: against the most that they had of late,
// and by the smaller of two differences.
func (a *Allocator) gauge(n int, e *EngineReport) {
	c := &a.accounts[n]
	if e.GaugeSeq == 0 || a.now-c.sampled < betweenSamples && c.samples > 0 {
		return
	}
	var ours Amount
	for _, l := range a.lives {
		if !l.live {
			ours = plus(ours, l.bound[n])
			continue
		}
		high := l.highs[n][0]
		for _, v := range l.highs[n] {
			high = most(high, v)
		}
		ours = plus(ours, high)
	}
	c.sampled = a.now
	c.samples++
	c.unexplained[1], c.unexplained[0] = c.unexplained[0], Amount{}
	for r := range e.Gauge {
		if e.Gauge[r] >= 0 {
			c.unexplained[0][r] = max(0, e.Gauge[r]-ours[r])
		}
	}
	if c.samples > 1 {
		c.foreign = least(least(c.unexplained[0], c.unexplained[1]), c.total)
	}
}

// betweenSamples keeps the samples of several replicas apart, so that two differences
// are not of the same moment.
const betweenSamples = Time(500e6)

// leftovers lowers what lives that are gone may have in an engine to what a sample
// shows beyond the work of the replica that took it. It has to be of a time at which what
// they had sent must have arrived: the replica had taken a grant by then that was
// written after that. No clock of one part is compared with another's for that, and a
// report may be as late as it likes.
func (a *Allocator) leftovers(n int, r *Report, e *EngineReport) {
	if e.GaugeSeq == 0 || r.Epoch != a.epoch || e.GaugeAge >= r.GrantAge {
		return
	}
	for _, l := range a.lives {
		if l.live || l.echo == 0 || r.Rev <= l.echo {
			continue
		}
		left := e.Others[admission.Slots]
		if left < 0 {
			continue
		}
		a.lower(l, n, int(admission.Slots), left)
		if left == 0 {
			// Else the gauge of KV tokens says what they have now, and they grow.
			a.lower(l, n, int(admission.KV), 0)
		}
	}
}

// lower says that a life that is gone has no more than v left on an account.
func (a *Allocator) lower(l *life, n, r int, v int64) {
	l.bound[n][r] = min(l.bound[n][r], v)
	l.used[n][r] = min(l.used[n][r], v)
	for i := range l.owed {
		l.owed[i].amounts[n][r] = min(l.owed[i].amounts[n][r], v)
	}
}

// bury forgets what lives left whose time is over, and the lives themselves where
// nothing of them survives.
func (a *Allocator) bury() {
	a.lives = slices.DeleteFunc(a.lives, func(l *life) bool {
		if l.live {
			return false
		}
		over := a.now >= l.until
		if !over && !l.loaded {
			over = true
			for n := range a.accounts {
				over = over && (a.accounts[n].engine < 0 || l.bound[n] == (Amount{}))
			}
		}
		if !over {
			return false
		}
		if l.name && slices.ContainsFunc(l.survives, func(v Amount) bool { return v != (Amount{}) }) {
			// It may live on without the store, on what survives.
			clear(l.used)
			clear(l.bound)
			l.owed = nil
			return false
		}
		a.fx = append(a.fx, Effect{Op: Remove, ID: l.id})
		return true
	})
}

// forget lets go of what survives of a replica that will not come back.
func (a *Allocator) forget(name string) {
	for _, l := range a.lives {
		if !l.live && l.id.Replica == name && l.name {
			a.unname(l)
			a.tells(Forgotten, l, "")
		}
	}
}

// unname notes that what survives is not a life's own any more. What it had begun on that
// until now may still be in the engines, and is what it left like all else.
func (a *Allocator) unname(l *life) {
	if !l.name {
		return
	}
	if l.name = false; l.live || !slices.ContainsFunc(l.survives, func(v Amount) bool { return v != (Amount{}) }) {
		return
	}
	l.gone, l.until, l.echo = a.now, a.now+Time(l.residual), 0
	a.orphan(l)
}

// orphan has a life that is gone be bound by what survived of it too.
func (a *Allocator) orphan(l *life) {
	for n := range l.used {
		l.used[n] = most(l.used[n], l.survives[n])
	}
	a.bind(l)
}

// survival is what a life may have on an account without a lease.
func (a *Allocator) survival(l *life, n int) Amount {
	if !l.name {
		return Amount{}
	}
	if !l.live {
		// It lives by what it was told, whatever the pool's is now.
		return l.survives[n]
	}
	if a.pool.Survival == (Amount{}) {
		return Amount{}
	}
	if c := &a.accounts[n]; c.engine < 0 {
		// Of a ceiling there may not be as much for each, or not enough to be of use.
		n := int64(a.pool.Replicas)
		each := Amount{c.total[0] / n, c.total[1] / n}
		if !within(Amount{1, a.pool.Unit[1]}, each) {
			return Amount{}
		}
		return least(a.pool.Survival, each)
	}
	return a.pool.Survival
}

// free is what nobody is bound by on an account.
func (a *Allocator) free(n int) Amount {
	c := &a.accounts[n]
	left := minus(c.total, c.foreign)
	for _, l := range a.lives {
		left = minus(left, most(l.bound[n], a.survival(l, n)))
	}
	return left
}

const never = Time(1<<63 - 1)
