package control

import (
	"cmp"
	"slices"
)

// What a decision hands out, in this order, each as far as there is something left:
//
//  1. to each replica what survives its lease, and to one that has not said yet what it
//     uses all that it was granted before;
//  2. what classes use within their floors, by rank; of a class that uses more than
//     its floor over all replicas, each replica's guarantee first, the rest in
//     equal parts;
//  3. what waits within a floor, one request at a time, the longest waiting first of
//     those that can be in time;
//  4. loans: what is used beyond floors, which ends by itself or for 2 and 3;
//  5. what replicas keep of floors though they do not use it, as their cores hold it, once
//     for all that are told of each other, and more where nobody knows (see keep);
//  6. what waits and has to borrow, by rank, one request at a time for each replica,
//     also out of what is kept for its own class;
//     one that has waited for long gets, when somebody's ends, what that one borrows
//     beyond an equal part;
//  7. what was wanted of late;
//  8. the rest in equal parts, slots with their part of the KV tokens, so that a
//     request that comes finds capacity where it comes.
//
// The sum is the target. 1 to 6 is what has to be: only for that is anything taken
// from a replica at once, and only for 1 to 3 what it uses. The rest moves when there is
// time. What waits only for its core's stall guard, or has just been given room, keeps it.
//
// Alternatives: shares by weights alone leave capacity idle at one replica while
// requests wait at another; handing everything to whoever asks makes every request wait for
// the leader; an auction needs prices that nobody can read.

// target is a decision in work. Tables are by life, of those that have a lease, and
// account or class.
type target struct {
	lives     []*life
	use       [][]Amount // 2 to 6, by account
	must      [][]Amount // with what survives: 1 to 6
	want      [][]Amount // the target
	firm      [][]Amount // 1 to 3, by account
	kept      [][]Amount // 5, by account
	unused    []Amount   // by class: of the guarantees of all replicas
	now       [][]Amount // grants as they are to be, by account
	took      []bool     // by life: something idle was taken
	common    []Amount   // by class: what is kept of it by those who are told of each other
	keeping   [][]Amount // by class and engine: 5
	loan      [][]Amount // by class and engine: what is used beyond floors
	protected [][]Amount // by class: what of the floor is in use or wanted
	waits     [][]int    // by class: requests that wait for capacity and have none yet
	cap       []Amount   // what is left, by account
	idle      []Amount   // of it, what nobody uses or has been given here, by account
	floors    []Amount   // what is owed now, by class
	left      []Amount   // of the floors, by class
	used      []Amount   // by class
	bars      [][]bool   // by class: its first request waits within the floor
	ceiling   []int      // the account of a class, -1
	asks      []asking   // by life
	cut       []bool     // by life: what it borrows is wanted by one who has to borrow too
	short     []bool     // by life: what it uses has no place beside what others are owed
	claims    []int64
	got       []int64
	order     []int
	amounts   []Amount
	rests     []Amount
	lent      []bool // by class: it uses more than its floor
	unuseds   bool   // unused is as of this decision
	look      Time   // when what waits for an end has waited enough, 0 if nothing does
}

// asking is what a replica wants beyond what it has.
type asking struct {
	class  int // that it is for, -1: nothing
	urgent bool
	amount Amount
	by     Time // until when it can wait for what ends by itself
}

// part is one of n equal parts of a floor, slots with their KV tokens. Of slots
// that can't be divided the first get one more; lives are in the order of a hash of
// their names, so that one replica more or less moves little.
func part(whole Amount, n, i int64) (p Amount) {
	p[0] = whole[0] / n
	if i < whole[0]%n {
		p[0]++
	}
	if whole[0] == 0 {
		p[1] = whole[1] / n
	} else {
		p[1] = whole[1] / whole[0] * p[0]
	}
	return p
}

// share is one of n equal parts of what is kept, slots with their part of the KV tokens.
func share(whole Amount, n, i int64) (p Amount) {
	for r := range p {
		if p[r] = whole[r] / n; i < whole[r]%n {
			p[r]++
		}
	}
	if whole[0] > 0 {
		p[1] = whole[1] * p[0] / whole[0]
	}
	return p
}

// grown sizes a table and zeroes it.
func grown[T any](t [][]T, n, m int) [][]T {
	for len(t) < n {
		t = append(t, nil)
	}
	t = t[:n]
	for i := range t {
		t[i] = zeroed(t[i], m)
	}
	return t
}

func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// aim computes the target.
func (a *Allocator) aim() {
	t := &a.t
	t.lives, t.look = t.lives[:0], 0
	for _, l := range a.lives {
		if l.live {
			t.lives = append(t.lives, l)
		}
	}
	n, m, nk, ne := len(t.lives), len(a.accounts), len(a.pool.Classes), len(a.pool.Engines)
	t.use, t.must, t.want = grown(t.use, n, m), grown(t.must, n, m), grown(t.want, n, m)
	t.firm = grown(t.firm, n, m)
	t.kept, t.loan, t.protected, t.waits = grown(t.kept, n, m), grown(t.loan, n, nk*ne), grown(t.protected, n, nk), grown(t.waits, n, nk)
	t.cap, t.idle, t.floors, t.left, t.ceiling = zeroed(t.cap, m), zeroed(t.idle, m), zeroed(t.floors, nk), zeroed(t.left, nk), zeroed(t.ceiling, nk)
	t.bars, t.keeping = grown(t.bars, n, nk), grown(t.keeping, n, nk*ne)
	t.common, t.lent, t.used, t.unuseds = zeroed(t.common, nk), zeroed(t.lent, nk), zeroed(t.used, nk), false
	t.asks, t.cut, t.short = zeroed(t.asks, n), zeroed(t.cut, n), zeroed(t.short, n)
	for i := range t.asks {
		t.asks[i].class = -1
	}
	for k := range t.ceiling {
		t.ceiling[k] = -1
	}
	for c := range a.accounts {
		if k := a.accounts[c].class; k >= 0 {
			t.ceiling[k] = c
		}
		t.cap[c] = minus(a.accounts[c].total, a.accounts[c].foreign)
		for _, l := range a.lives {
			if !l.live {
				t.cap[c] = minus(t.cap[c], most(l.bound[c], a.survival(l, c)))
			}
		}
		t.idle[c] = t.cap[c]
		for i, l := range t.lives {
			t.must[i][c] = a.survival(l, c)
			t.cap[c] = minus(t.cap[c], t.must[i][c])
			t.idle[c] = minus(t.idle[c], most(l.used[c], t.must[i][c]))
			if !l.seen {
				t.take(i, c, most(l.granted[c], l.used[c]), t.must[i][c])
			}
		}
	}
	if n == 0 {
		return
	}
	for i, l := range t.lives {
		for k := range l.classes {
			switch at := &l.classes[k]; {
			case at.short:
				t.waits[i][k] = at.waiting
			case at.guarded:
				t.waits[i][k] = 1
			case at.waiting > 0 && at.gave != 0 && a.now < at.gave+stays:
				t.waits[i][k] = 1
				t.lookAt(at.gave + stays)
			}
		}
	}
	a.owe()
	for k := range a.pool.Classes {
		a.usedWithin(k)
	}
	for k := range a.pool.Classes {
		a.waitsWithin(k)
	}
	for i := range t.must {
		copy(t.firm[i], t.must[i])
	}
	for k := range a.pool.Classes {
		a.lends(k)
	}
	for k := range a.pool.Classes {
		a.keeps(k)
	}
	for k := range a.pool.Classes {
		a.waitsBeyond(k)
	}
	for i := range t.must {
		copy(t.want[i], t.must[i])
	}
	a.rest()
}

// take gives amount of account c to life i.
func (t *target) take(i, c int, amount, survival Amount) {
	t.use[i][c] = plus(t.use[i][c], amount)
	must := most(survival, t.use[i][c])
	t.cap[c] = minus(t.cap[c], minus(must, t.must[i][c]))
	t.must[i][c] = must
}

// takeFor gives amount of engine e, and of the class's ceiling, to class k of life i.
func (a *Allocator) takeFor(i, k, e int, amount Amount) {
	if amount == (Amount{}) {
		return
	}
	t := &a.t
	t.take(i, e, amount, a.survival(t.lives[i], e))
	if c := t.ceiling[k]; c >= 0 {
		t.take(i, c, amount, a.survival(t.lives[i], c))
	}
}

// room is what life i could take of account c: what is left, and what survives and it
// does not use.
func (t *target) room(i, c int) Amount {
	return plus(t.cap[c], minus(t.must[i][c], t.use[i][c]))
}

// split shares total between claims, by resource.
func (t *target) split(claims []Amount, total Amount) {
	for r := range resources {
		t.claims = t.claims[:0]
		for i := range claims {
			t.claims = append(t.claims, claims[i][r])
		}
		t.got = fill(t.got[:0], t.claims, total[r])
		for i := range claims {
			claims[i][r] = t.got[i]
		}
	}
}

// owe derives what is owed to each class now, as the cores do it: what is due of a
// window comes out of the others' floors, of those of the last class first, and never
// out of what is never lent.
func (a *Allocator) owe() {
	t := &a.t
	var over Amount
	for c := range a.accounts {
		if a.accounts[c].engine >= 0 {
			over = minus(over, a.accounts[c].total)
		}
	}
	for k := range a.pool.Classes {
		c := &a.pool.Classes[k]
		if t.floors[k] = c.Floor; c.Windowed {
			var due Amount
			for _, l := range t.lives {
				due = plus(due, l.classes[k].hold)
			}
			t.floors[k] = least(due, c.Floor)
		}
		over = plus(over, t.floors[k])
	}
	for k := len(a.pool.Classes) - 1; k >= 0; k-- {
		c := &a.pool.Classes[k]
		if c.Windowed {
			continue
		}
		cut := most(least(over, minus(t.floors[k], c.Unlent)), Amount{})
		t.floors[k], over = minus(t.floors[k], cut), minus(over, cut)
	}
}

// usedWithin is 2: what class k uses within its floor.
func (a *Allocator) usedWithin(k int) {
	t := &a.t
	floor := t.floors[k]
	n := int64(len(t.lives))
	t.left[k] = floor
	var total Amount
	for _, l := range t.lives {
		total = plus(total, l.classes[k].total)
	}
	if t.used[k] = total; total == (Amount{}) {
		return
	}
	t.amounts, t.rests = zeroed(t.amounts, len(t.lives)), zeroed(t.rests, len(t.lives))
	own, rest := t.amounts, t.rests
	if within(total, floor) {
		for i, l := range t.lives {
			own[i] = l.classes[k].total
		}
	} else {
		left := floor
		for i, l := range t.lives {
			if at := &l.classes[k]; at.total != (Amount{}) {
				own[i] = least(at.total, part(floor, n, int64(i)))
				rest[i] = minus(at.total, own[i])
				left = minus(left, own[i])
			}
		}
		t.split(rest, over(left, Amount{}))
	}
	t.lent[k] = !within(total, floor)
	for i, l := range t.lives {
		if l.classes[k].total == (Amount{}) {
			continue
		}
		own := plus(own[i], rest[i])
		t.protected[i][k] = own
		t.left[k] = over(t.left[k], own)
		for e := range a.pool.Engines {
			used := l.classes[k].used[e]
			here := least(used, own)
			own = minus(own, here)
			a.takeFor(i, k, e, here)
			t.loan[i][k*len(a.pool.Engines)+e] = minus(used, here)
		}
	}
}

// place finds the engine for one more request of class k at life i: the one on which
// most is idle, else the one of which most is left, which others then give back. -1:
// there is none.
func (a *Allocator) place(i, k int, unit Amount) int {
	t := &a.t
	if c := t.ceiling[k]; c >= 0 && !within(unit, t.room(i, c)) {
		return -1
	}
	best, idle := -1, false
	var most Amount
	for e := range a.pool.Engines {
		room := t.room(i, e)
		if !within(unit, room) {
			continue
		}
		free := within(unit, t.idle[e])
		if free {
			room = t.idle[e]
		}
		if best < 0 || free && !idle || free == idle && room[1] > most[1] {
			best, idle, most = e, free, room
		}
	}
	if best >= 0 {
		a.takeFor(i, k, best, unit)
		t.idle[best] = minus(t.idle[best], unit)
	}
	return best
}

// waiting returns the lives that wait for capacity for class k, the longest first of
// those that can be in time, then the others.
func (t *target) waiting(k int) []int {
	t.order = t.order[:0]
	for i := range t.lives {
		if t.waits[i][k] > 0 {
			t.order = append(t.order, i)
		}
	}
	slices.SortStableFunc(t.order, func(x, y int) int {
		p, q := &t.lives[x].classes[k], &t.lives[y].classes[k]
		return cmp.Or(cmp.Compare(b2i(p.late), b2i(q.late)), cmp.Compare(p.age, q.age))
	})
	return t.order
}

// stays is for how long a replica keeps what it was given for a request that still waits
// and is not short any more. What keeps it from starting may be something that its core
// has not been told of yet; to take it back at once would have it asked for again.
const stays = Time(100e6)

// lookAt asks for a decision at a time at the latest.
func (t *target) lookAt(at Time) {
	if t.look == 0 || at < t.look {
		t.look = at
	}
}

// gave notes that life i is given capacity for a request of class k.
func (a *Allocator) gave(i, k int) {
	t := &a.t
	t.waits[i][k]--
	if at := &t.lives[i].classes[k]; at.short {
		at.gave = a.now
	}
}

// ask notes that a replica wants amount more for class k.
func (t *target) ask(i, k int, amount Amount, urgent bool) {
	by := t.lives[i].classes[k].patience
	if q := &t.asks[i]; q.class < 0 {
		*q = asking{class: k, urgent: urgent, amount: amount, by: by}
	} else {
		q.amount, q.urgent, q.by = plus(q.amount, amount), q.urgent || urgent, min(q.by, by)
	}
}

// waitsWithin is 3.
func (a *Allocator) waitsWithin(k int) {
	t := &a.t
	for again := true; again; {
		again = false
		for _, i := range t.waiting(k) {
			unit := t.lives[i].classes[k].head
			if unit[0] < 1 || !within(unit, t.left[k]) {
				continue
			}
			t.bars[i][k] = true
			if a.place(i, k, unit) < 0 {
				continue
			}
			t.left[k] = minus(t.left[k], unit)
			t.protected[i][k] = plus(t.protected[i][k], unit)
			a.gave(i, k)
			t.ask(i, k, unit, true)
			again = true
		}
	}
}

// held is what class k of life i keeps out of its own core's reach.
func (a *Allocator) held(k, i int) Amount {
	c := &a.pool.Classes[k]
	hold := least(a.t.lives[i].classes[k].hold, c.Floor)
	if c.Windowed {
		return hold
	}
	return most(hold, part(c.Unlent, int64(len(a.t.lives)), int64(i)))
}

// keep is what of class k's floor life i keeps beyond what it uses or wants, and why.
//
// It is what its core holds, which goes by how soon the class is expected back, by what
// it had of late, and by whether its demand has fitted. A core that is told of the others
// says so of all of them, less what they use: that is kept once, in equal parts, and it
// finds it anywhere. Of a replica that has not been heard of for long nobody knows what
// it wants, so that its part is kept whole.
func (a *Allocator) keep(k, i int) (Amount, string) {
	t, c := &a.t, &a.pool.Classes[k]
	l, n := t.lives[i], int64(len(t.lives))
	at := &l.classes[k]
	has := t.protected[i][k]
	switch {
	case c.Windowed:
		return over(at.hold, has), "owed over a window"
	case !l.seen || a.now-l.at > Time(a.cfg.Stale):
		at.slack = never
		return over(most(part(c.Floor, n, int64(i)), a.held(k, i)), has), "no recent report"
	case l.told:
		return share(t.common[k], n, int64(i)), "as the cores hold it"
	}
	keep, why := a.keepAlone(k, i)
	var loans Amount
	for _, v := range t.loan[i] {
		loans = plus(loans, v)
	}
	// Its loans are in what it keeps, since it calls them back by itself, but not in what
	// its core holds, nor in what is never lent.
	return most(over(over(keep, has), loans), over(a.held(k, i), has)), why
}

// keepAlone is what life i, whose core is not told of the others, keeps of its part of
// class k's floor, used or not. Of an active class only a part of what it has had to
// spare for a while is lent, and nothing any more with the first request that waits or is
// refused.
func (a *Allocator) keepAlone(k, i int) (Amount, string) {
	at := &a.t.lives[i].classes[k]
	whole := part(a.pool.Classes[k].Floor, int64(len(a.t.lives)), int64(i))
	base := a.held(k, i)
	spare := over(whole, most(base, at.total))
	switch {
	case at.pressed:
		at.slack = never
		return most(whole, base), "demand presses"
	case spare == (Amount{}):
		at.slack = never
		return base, "as its core holds it"
	case !at.active:
		return base, "idle, as its core holds it"
	}
	if at.slack == never {
		at.slack = a.now
	}
	if a.now-at.slack < Time(a.cfg.Sustain) {
		return most(whole, base), "in use, its slack is not sustained yet"
	}
	for r := range spare {
		spare[r] = int64(float64(spare[r]) * a.cfg.LendCap)
	}
	return most(base, minus(whole, spare)), "in use, a part of its slack is lent"
}

// common is what is kept of class k by those who are told of each other.
func (a *Allocator) common(k int) (all Amount) {
	t := &a.t
	for _, l := range t.lives {
		if at := &l.classes[k]; l.told && at.hold != (Amount{}) {
			all = most(all, plus(at.hold, minus(t.used[k], at.total)))
		}
	}
	return over(all, minus(t.floors[k], t.left[k])) // beyond what is protected
}

// lends is 4: what class k uses beyond its floor. Where not all have room, whoever
// borrows most has none first: requests can't be divided, so that to cut everybody a
// little would end one of everybody's.
func (a *Allocator) lends(k int) {
	t := &a.t
	if !t.lent[k] {
		return
	}
	claims := zeroed(t.amounts, len(t.lives))
	t.amounts = claims
	for e := range a.pool.Engines {
		room := most(t.cap[e], Amount{})
		for i := range t.lives {
			claims[i] = t.loan[i][k*len(a.pool.Engines)+e]
			if c := t.ceiling[k]; c >= 0 {
				claims[i] = least(claims[i], most(t.room(i, c), Amount{}))
			}
		}
		order := t.order[:0]
		for i := range t.lives {
			if t.loan[i][k*len(a.pool.Engines)+e] != (Amount{}) {
				order = append(order, i)
			}
		}
		t.order = order
		slices.SortStableFunc(order, func(x, y int) int {
			return cmp.Or(cmp.Compare(claims[x][0], claims[y][0]), cmp.Compare(claims[x][1], claims[y][1]))
		})
		for _, i := range order {
			give := least(claims[i], room)
			t.short[i] = t.short[i] || give != t.loan[i][k*len(a.pool.Engines)+e]
			room = minus(room, give)
			a.takeFor(i, k, e, give)
		}
	}
}

// keeps is 5. It stays on engines where the replica has it already.
func (a *Allocator) keeps(k int) {
	t := &a.t
	t.common[k] = a.common(k)
	t.amounts = zeroed(t.amounts, len(t.lives))
	extra := t.amounts
	any := false
	for i, l := range t.lives {
		if at := &l.classes[k]; at.hold == (Amount{}) && (l.told || !at.active && !at.pressed) && t.common[k] == (Amount{}) && a.pool.Classes[k].Unlent == (Amount{}) && l.seen && a.now-l.at <= Time(a.cfg.Stale) {
			continue
		}
		extra[i], _ = a.keep(k, i)
		any = any || extra[i] != (Amount{})
	}
	if !any {
		return
	}
	t.split(extra, t.left[k])
	for i, l := range t.lives {
		if extra[i] == (Amount{}) {
			continue
		}
		for pass := range 2 {
			for e := range a.pool.Engines {
				give := least(extra[i], most(t.room(i, e), Amount{}))
				if pass == 0 {
					give = least(give, over(l.granted[e], t.use[i][e]))
				}
				if give == (Amount{}) {
					continue
				}
				a.takeFor(i, k, e, give)
				t.kept[i][e] = plus(t.kept[i][e], give)
				if c := t.ceiling[k]; c >= 0 {
					t.kept[i][c] = plus(t.kept[i][c], give)
				}
				t.keeping[i][k*len(a.pool.Engines)+e] = plus(t.keeping[i][k*len(a.pool.Engines)+e], give)
				t.left[k] = over(t.left[k], give)
				extra[i] = minus(extra[i], give)
			}
		}
	}
}

// waitsBeyond is 6.
func (a *Allocator) waitsBeyond(k int) {
	t := &a.t
	for again := true; again; {
		again = false
		for _, i := range t.waiting(k) {
			at := &t.lives[i].classes[k]
			if at.head[0] < 1 || a.place(i, k, at.head) < 0 && !a.placeInKept(i, k, at.head) {
				continue
			}
			a.gave(i, k)
			t.ask(i, k, at.head, false)
			again = true
		}
	}
	for _, i := range t.waiting(k) {
		at := &t.lives[i].classes[k]
		if at.head[0] < 1 || a.now-at.since < Time(a.cfg.Starve) || t.asks[i].class >= 0 {
			continue
		}
		a.cutFor(i, k, at.head)
	}
}

// placeInKept finds room for a request of class k beyond its floor in what is kept for
// the class itself: it is beyond on one resource and not on another.
func (a *Allocator) placeInKept(i, k int, unit Amount) bool {
	t := &a.t
	ne := len(a.pool.Engines)
	if c := t.ceiling[k]; c >= 0 && !within(unit, t.room(i, c)) {
		return false
	}
	for e := range ne {
		miss := over(unit, most(t.room(i, e), Amount{}))
		var kept Amount
		for j := range t.lives {
			kept = plus(kept, t.keeping[j][k*ne+e])
		}
		if !within(miss, kept) {
			continue
		}
		for j := range t.lives {
			give := least(miss, t.keeping[j][k*ne+e])
			if give == (Amount{}) {
				continue
			}
			miss = minus(miss, give)
			t.keeping[j][k*ne+e] = minus(t.keeping[j][k*ne+e], give)
			t.kept[j][e] = minus(t.kept[j][e], give)
			if c := t.ceiling[k]; c >= 0 {
				t.kept[j][c] = minus(t.kept[j][c], give)
			}
			a.takeFor(j, k, e, minus(Amount{}, give))
		}
		a.takeFor(i, k, e, unit)
		t.idle[e] = minus(t.idle[e], unit)
		return true
	}
	return false
}

// keptOf is what life i keeps of class k.
func (a *Allocator) keptOf(i, k int) (sum Amount) {
	ne := len(a.pool.Engines)
	for _, v := range a.t.keeping[i][k*ne : (k+1)*ne] {
		sum = plus(sum, v)
	}
	return sum
}

// cutFor takes one request's need from whoever borrows most for the same class, if
// that leaves him no less than life i then has. It comes free when something of his
// ends. Who waits for something himself is left alone: he would have to end his loans
// for it.
func (a *Allocator) cutFor(i, k int, unit Amount) {
	t := &a.t
	ne := len(a.pool.Engines)
	total := func(j int) (n Amount) {
		for e := range ne {
			n = plus(n, t.loan[j][k*ne+e])
		}
		return n
	}
	mine := plus(total(i), unit)
	donor := -1
	for j := range t.lives {
		if n := total(j); j != i && t.asks[j].class < 0 && within(mine, minus(n, unit)) && (donor < 0 || n[0] > total(donor)[0]) {
			donor = j
		}
	}
	if donor < 0 {
		return
	}
	for e := range ne {
		loan := &t.loan[donor][k*ne+e]
		if !within(unit, *loan) || !within(unit, t.use[donor][e]) {
			continue
		}
		*loan = minus(*loan, unit)
		a.takeFor(donor, k, e, minus(Amount{}, unit))
		a.takeFor(i, k, e, unit)
		t.cut[donor] = true
		t.ask(i, k, unit, false)
		return
	}
}

// rest is 7 and 8.
func (a *Allocator) rest() {
	t := &a.t
	t.amounts = zeroed(t.amounts, len(t.lives))
	claims := t.amounts
	for c := range a.accounts {
		left := most(t.cap[c], Amount{})
		for i, l := range t.lives {
			claims[i] = over(l.smooth(c), t.must[i][c])
		}
		t.split(claims, left)
		for i := range t.lives {
			t.want[i][c] = plus(t.want[i][c], claims[i])
			left = minus(left, claims[i])
		}
		// What can't be divided stays free, for whoever asks first.
		n := int64(len(t.lives))
		if left[0] < n {
			continue
		}
		each := left[0] / n
		for i := range t.lives {
			t.want[i][c] = plus(t.want[i][c], Amount{each, left[1] / left[0] * each})
		}
	}
}
