package control

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// decide computes the target and writes what grants have to change for it now.
//
// Whoever has to have more gets it out of what is free at once. What is missing
// is taken, by a lower grant, first from those who have something idle, the most
// idle first, so that few are written to. Only what is wanted within floors is taken
// from those who have no claim to what they use, and only if it does not end by itself
// while it can be waited for. It can be given when they have acknowledged. Beside that
// what nobody wants is shared anew now and then.
func (a *Allocator) decide() {
	a.aim()
	t := &a.t
	n := len(t.lives)
	if n == 0 {
		return
	}
	t.now, t.took = grown(t.now, n, len(a.accounts)), zeroed(t.took, n)
	now, took := t.now, t.took
	for i, l := range t.lives {
		copy(now[i], l.granted)
	}
	rebalance := a.now-a.shared >= Time(a.cfg.Rebalance)
	for c := range a.accounts {
		for r := range resources {
			a.take(c, r, now, took)
		}
		a.force(c, now)
	}
	for i := range t.lives {
		for c := range a.accounts {
			// What nobody else has a claim to while it is used is not taken, but it is not
			// granted any more either once a cut has been decided.
			if t.cut[i] {
				now[i][c] = least(now[i][c], most(t.must[i][c], Amount{}))
			}
		}
	}
	if rebalance {
		a.level(now)
	}
	a.raise(now, rebalance)
	a.echo()
	urgent := slices.ContainsFunc(t.asks, func(q asking) bool { return q.urgent })
	for i, l := range t.lives {
		if !l.seen {
			// Its file may say less of an engine than the leader's.
			continue
		}
		// What was idle when it was taken may be in use by the time that this is known.
		recall := (l.recall || urgent && t.short[i]) && !coversAll(now[i], l.used)
		if recall, l.recall = recall && !l.recall, recall; recall || !slices.Equal(now[i], l.granted) || l.rev == 0 || a.survivesMore(l) || a.lastsLonger(l) || l.rev <= a.echoed || rebalance && a.floorsMoved(i) {
			a.write(i, now[i])
		}
	}
	if rebalance {
		a.shared = a.now
	}
	a.hand(now, took)
	a.smooth()
}

// coming is what of account c nobody is bound by, or will not be: lower grants are
// written already. What is used above them ends by force, or is not counted on.
func (a *Allocator) coming(c int) Amount {
	got := a.free(c)
	for _, l := range a.t.lives {
		more := minus(l.bound[c], l.granted[c])
		if !l.recall {
			more = minus(more, over(l.used[c], l.granted[c]))
		}
		got = plus(got, most(more, Amount{}))
	}
	return got
}

// take lowers grants on account c by what others have to have and is not free, where
// they are idle: first those beyond the target, then those beyond what has to be.
func (a *Allocator) take(c, r int, now [][]Amount, took []bool) {
	t := &a.t
	short := int64(0)
	for i := range t.lives {
		short += max(0, t.must[i][c][r]-now[i][c][r])
	}
	// Nothing need be wanted: an engine may have become smaller, or have got others' work.
	short -= a.coming(c)[r]
	for pass := 0; pass < 2 && short > 0; pass++ {
		spare := func(i int) int64 {
			l := t.lives[i]
			if pass == 0 {
				return now[i][c][r] - max(t.want[i][c][r], l.used[c][r])
			}
			return now[i][c][r] - max(t.must[i][c][r], l.used[c][r])
		}
		order := t.order[:0]
		for i := range t.lives {
			if spare(i) > 0 {
				order = append(order, i)
			}
		}
		t.order = order
		slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(spare(y), spare(x)) })
		for _, i := range order {
			if short <= 0 {
				break
			}
			give := min(spare(i), short)
			now[i][c][r] -= give
			short -= give
			took[i] = true
		}
	}
}

// force lowers grants on account c below what is used by loans, for what survives or is
// wanted within floors and will not come by itself in time. What is kept idle of floors
// is no reason: as it is with one core, loans that are out stay until somebody needs
// their place. As few replicas as possible are hit.
func (a *Allocator) force(c int, now [][]Amount) {
	t := &a.t
	var short Amount
	for i := range t.lives {
		short = plus(short, over(t.firm[i][c], now[i][c]))
	}
	if short == (Amount{}) {
		return
	}
	short = minus(short, a.coming(c))
	for i, l := range t.lives {
		short = minus(short, over(l.granted[c], now[i][c])) // taken now
	}
	if short = most(short, Amount{}); short == (Amount{}) || a.endsSoon(c, short, now) {
		return
	}
	spare := func(i int) Amount { return over(now[i][c], t.must[i][c]) }
	order := t.order[:0]
	for i := range t.lives {
		if t.short[i] && spare(i) != (Amount{}) {
			order = append(order, i)
		}
	}
	t.order = order
	slices.SortStableFunc(order, func(x, y int) int {
		p, q := least(spare(x), short), least(spare(y), short)
		return cmp.Or(cmp.Compare(q[0], p[0]), cmp.Compare(q[1], p[1]))
	})
	for _, i := range order {
		if short == (Amount{}) {
			break
		}
		give := least(spare(i), short)
		now[i][c], short = minus(now[i][c], give), minus(short, give)
	}
}

// endsSoon tells whether what is short on account c will end by itself while those who
// want it can wait for that.
func (a *Allocator) endsSoon(c int, short Amount, now [][]Amount) bool {
	t := &a.t
	by := never
	for i := range t.lives {
		if !within(t.firm[i][c], now[i][c]) && t.asks[i].class >= 0 {
			by = min(by, t.asks[i].by)
		}
	}
	if a.accounts[c].engine < 0 || by <= a.now || by == never {
		return false
	}
	last := a.now
	for !within(short, Amount{}) {
		next := end{at: never}
		for _, l := range t.lives {
			for _, v := range l.ends[c] {
				if v.at > last && v.at < next.at {
					next = v
				}
			}
		}
		if next.at > by {
			return false
		}
		last = next.at
		short = minus(short, next.amount)
	}
	t.lookAt(by)
	return true
}

// level lowers grants that are beyond the target, and idle, where others are below it
// by at least a slot with what belongs to it.
func (a *Allocator) level(now [][]Amount) {
	t := &a.t
	for c := range a.accounts {
		free := a.free(c)
		low := false
		for i := range t.lives {
			miss := over(t.want[i][c], now[i][c])
			low = low || miss[0] > 0 && !within(miss, free)
		}
		if !low {
			continue
		}
		for i, l := range t.lives {
			now[i][c] = most(least(now[i][c], most(t.want[i][c], l.used[c])), least(now[i][c], t.must[i][c]))
		}
	}
}

// raise gives out what is free: first what has to be, what is wanted within a floor
// before the rest, then what the target says. Up to what a replica is bound by anyhow a
// raise takes nothing from what is free.
func (a *Allocator) raise(now [][]Amount, all bool) {
	t := &a.t
	order := t.order[:0]
	for i := range t.lives {
		order = append(order, i)
	}
	t.order = order
	if slices.ContainsFunc(t.asks, func(q asking) bool { return q.urgent }) {
		slices.SortStableFunc(order, func(x, y int) int {
			return cmp.Compare(b2i(t.asks[y].urgent), b2i(t.asks[x].urgent))
		})
	}
	for c := range a.accounts {
		left := a.free(c)
		free := most(left, Amount{})
		short := false
		give := func(i int, up Amount) {
			l := t.lives[i]
			its := most(l.bound[c], a.survival(l, c))
			for r := range left {
				if left[r] < 0 {
					// A leader that took over counts bounds that were over before others
					// were given what they left: nobody may have them again. And what
					// survives of a replica that is new may still be another's.
					its[r] = l.survives[c][r]
				}
			}
			up = least(up, plus(free, over(its, now[i][c])))
			free = minus(free, minus(over(plus(now[i][c], up), its), over(now[i][c], its)))
			now[i][c] = plus(now[i][c], up)
		}
		for _, i := range order {
			if within(t.must[i][c], now[i][c]) {
				continue
			}
			give(i, over(t.must[i][c], now[i][c]))
			short = short || !within(t.must[i][c], now[i][c])
		}
		if short {
			continue // what comes free next is for them
		}
		for _, i := range order {
			if !all && t.asks[i].class < 0 && t.lives[i].rev != 0 {
				continue
			}
			if up := over(t.want[i][c], now[i][c]); a.accounts[c].engine < 0 || up[0] > 0 && free[0] > 0 {
				give(i, up)
			}
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func coversAll(a, b []Amount) bool {
	for i := range a {
		if !within(b[i], a[i]) {
			return false
		}
	}
	return true
}

// echo asks for a new grant to everybody once what a life that is gone had sent must
// have reached the engines, so that what is said afterwards is known to be of a later
// time.
func (a *Allocator) echo() {
	for _, g := range a.lives {
		if !g.live && g.echo == 0 && g.until > a.now && a.now-g.gone >= Time(a.cfg.Settle) {
			g.echo, a.echoed = a.rev, a.rev
		}
	}
}

// floorOf is the part of each class's floor that life i's core protects: what it uses,
// wants or keeps of it, and of the rest as much of its guarantee as is left.
func (a *Allocator) floorOf(i, k int) Amount {
	t := &a.t
	n := int64(len(t.lives))
	c := &a.pool.Classes[k]
	f := plus(t.protected[i][k], a.keptOf(i, k))
	if c.Windowed {
		// It is owed as a whole, by whoever has work of the class.
		return a.windowOf(i, k)
	}
	if !t.unuseds {
		a.unused()
	}
	claims, mine := t.unused[k], over(part(c.Floor, n, int64(i)), f)
	for r := range claims {
		if claims[r] > t.left[k][r] {
			mine[r] = mine[r] * t.left[k][r] / claims[r]
		}
	}
	return least(plus(f, mine), c.Floor)
}

// unused sums up by class what of all guarantees is neither used nor kept.
func (a *Allocator) unused() {
	t := &a.t
	n := int64(len(t.lives))
	t.unused, t.unuseds = zeroed(t.unused, len(a.pool.Classes)), true
	for i := range t.lives {
		for k := range t.unused {
			t.unused[k] = plus(t.unused[k], over(part(a.pool.Classes[k].Floor, n, int64(i)), plus(t.protected[i][k], a.keptOf(i, k))))
		}
	}
}

// unlentOf is the part of that which is never lent.
func (a *Allocator) unlentOf(i, k int) Amount {
	c := &a.pool.Classes[k]
	if c.Windowed {
		return Amount{}
	}
	return least(part(c.Unlent, int64(len(a.t.lives)), int64(i)), a.floorOf(i, k))
}

// windowOf shares a windowed floor between the replicas that have work of the class,
// or all where none has.
func (a *Allocator) windowOf(i, k int) Amount {
	t := &a.t
	n, at := int64(0), int64(-1)
	any := slices.ContainsFunc(t.lives, func(l *life) bool { return l.classes[k].waiting > 0 || l.classes[k].total != (Amount{}) })
	for j, l := range t.lives {
		if !any || l.classes[k].waiting > 0 || l.classes[k].total != (Amount{}) {
			if j == i {
				at = n
			}
			n++
		}
	}
	if at < 0 {
		return Amount{}
	}
	return part(a.pool.Classes[k].Floor, n, at)
}

// floorsMoved tells whether the parts of the floors of life i have changed since its
// grant was written.
func (a *Allocator) floorsMoved(i int) bool {
	for k := range a.pool.Classes {
		if l := a.t.lives[i]; a.floorOf(i, k) != l.floors[k] || a.unlentOf(i, k) != l.unlent[k] {
			return true
		}
	}
	return false
}

// keptFor is what a life's next grant says that survives: all that is to, once nobody
// else is bound by it.
func (a *Allocator) keptFor(l *life, c int) Amount {
	survives, left := a.survival(l, c), a.free(c)
	for r := range left {
		if left[r] < 0 {
			survives[r] = min(survives[r], l.survives[c][r])
		}
	}
	return survives
}

// survivesMore tells whether more survives of a life than its grant says.
func (a *Allocator) survivesMore(l *life) bool {
	if a.pool.Survival == (Amount{}) || !l.seen {
		return false
	}
	for c := range a.accounts {
		if a.keptFor(l, c) != l.survives[c] {
			return true
		}
	}
	return false
}

// lastsLonger tells whether a life has asked for more time than its grant says.
func (a *Allocator) lastsLonger(l *life) bool { return l.seen && l.rev != 0 && l.residual > l.promised }

// write gives life i a new grant.
func (a *Allocator) write(i int, amounts []Amount) {
	l := a.t.lives[i]
	a.rev++
	g := &Grant{
		Pool: a.pool.Name, ID: l.id, Lease: l.lease, Epoch: a.epoch, Rev: a.rev, Residual: l.residual, Fingerprint: a.pool.Fingerprint, Recall: l.recall, Echo: slices.ContainsFunc(a.lives, func(l *life) bool { return !l.live && l.echo != 0 }),
		Accounts: make([]Account, len(a.accounts)), Classes: make([]ClassGrant, len(a.pool.Classes)),
	}
	if q := &a.t.asks[i]; q.class >= 0 {
		g.For = a.pool.Classes[q.class].Name
	}
	if l.handoff != nil {
		g.Handoff = l.handoff.Seq
	}
	copy(l.granted, amounts)
	l.rev, l.promised = a.rev, l.residual
	l.owe(owed{epoch: a.epoch, rev: a.rev, lease: l.lease, amounts: slices.Clone(amounts)})
	a.bind(l)
	for _, v := range l.retired {
		if v.rev == 0 {
			v.rev = a.rev
		}
	}
	for c := range a.accounts {
		v := &g.Accounts[c]
		l.survives[c] = a.keptFor(l, c)
		v.Amount, v.Bound, v.Survival = amounts[c], l.bound[c], l.survives[c]
		v.Engine, v.Class = a.accountName(c)
	}
	for k := range g.Classes {
		c := &a.pool.Classes[k]
		l.floors[k], l.unlent[k] = a.floorOf(i, k), a.unlentOf(i, k)
		g.Classes[k] = ClassGrant{Class: c.Name, Floor: l.floors[k], Unlent: l.unlent[k]}
	}
	a.fx = append(a.fx, Effect{Op: Write, Grant: g, ID: l.id})
}

// smooth lets what a life had to have rise at once and fall slowly.
func (a *Allocator) smooth() {
	for i, l := range a.t.lives {
		if len(l.smoothed) != len(a.accounts) {
			l.smoothed = make([][resources]float64, len(a.accounts))
		}
		f := math.Exp2(-float64(a.now-l.smoothedAt) / float64(a.cfg.Smooth))
		l.smoothedAt = a.now
		for c := range l.smoothed {
			for r := range l.smoothed[c] {
				l.smoothed[c][r] = max(l.smoothed[c][r]*f, float64(a.t.must[i][c][r]))
			}
		}
	}
}

// smooth is what a life had to have of account c of late.
func (l *life) smooth(c int) (v Amount) {
	if c < len(l.smoothed) {
		for r := range v {
			v[r] = int64(l.smoothed[c][r])
		}
	}
	return v
}

// hand opens handoffs for those who wait until others have given, and follows them.
func (a *Allocator) hand(now [][]Amount, took []bool) {
	t := &a.t
	for i, l := range t.lives {
		waits := false
		for c := range now[i] {
			waits = waits || t.asks[i].class >= 0 && !within(minus(t.must[i][c], t.kept[i][c]), now[i][c])
		}
		switch {
		case waits && l.handoff == nil:
			a.nHandoff++
			h := &handoff{opened: a.now, Handoff: Handoff{
				Seq: a.nHandoff, Pool: a.pool.Name, To: l.id.Replica, Class: a.pool.Classes[t.asks[i].class].Name, Want: t.asks[i].amount, Stage: Prepared,
			}}
			l.handoff = h
			for j, from := range t.lives {
				if took[j] || within(from.granted[0], from.bound[0]) && from.granted[0] != from.bound[0] && j != i {
					h.from, h.revs, h.From = append(h.from, from), append(h.revs, from.rev), append(h.From, from.id.Replica)
				}
			}
			a.note(h, Prepared)
		case !waits && l.handoff != nil:
			if t.asks[i].class >= 0 || l.handoff.Stage == Drained {
				a.note(l.handoff, Committed)
				l.handoff = nil
			} else {
				a.drop(l)
			}
		}
	}
	a.handedOff()
}

// handedOff moves open handoffs on, by what has been acknowledged.
func (a *Allocator) handedOff() {
	for _, l := range a.lives {
		h := l.handoff
		if h == nil {
			continue
		}
		applied, drained := true, true
		for j, from := range h.from {
			if !from.live {
				continue
			}
			applied = applied && from.had >= h.revs[j]
			drained = drained && coversAll(from.granted, from.used)
		}
		if applied && h.Stage == Prepared {
			a.note(h, Applied)
		}
		if applied && drained && h.Stage == Applied {
			a.note(h, Drained)
		}
	}
}

// drop ends a handoff that nobody wants any more.
func (a *Allocator) drop(l *life) {
	if l.handoff != nil {
		a.note(l.handoff, Dropped)
		l.handoff = nil
	}
}

// tells notes what happens to a replica.
func (a *Allocator) tells(s Stage, l *life, why string) {
	a.nNoted++
	a.fx = append(a.fx, Effect{Op: Note, Handoff: Handoff{Seq: a.nNoted, Pool: a.pool.Name, To: l.id.Replica, From: []string{}, Why: why, Stage: s, At: a.now}})
}

func (a *Allocator) note(h *handoff, s Stage) {
	h.Stage, h.At, h.Since = s, a.now, time.Duration(a.now-h.opened)
	a.fx = append(a.fx, Effect{Op: Note, Handoff: h.Handoff})
}
