package quota

import (
	"cmp"
	"slices"
	"time"
)

// Ledger has the accounts of all tenants.
type Ledger struct {
	now   Time
	most  int // accounts of tenants without rules of their own
	table Table
	share int64 // parts of a million of every rate, see Share
	parts map[string]int64
	since Time // the last Demand

	named    map[string]int32 // of the table's tenants
	index    map[string]int32 // of accounts, by tenant
	accounts []account
	vacant   []int32 // places of accounts
	looks    []int32 // accounts that can be forgotten, a heap by when they are looked at next
	others   int     // accounts without rules of their own
	purses   map[string]*purse
	counts   []Counts // by rules, the others' last

	holds []hold
	free  []uint32
}

// account is one tenant's.
type account struct {
	tenant  string
	there   bool
	rules   int32             // of the table's tenants; their number: the others', and then what those have together
	open    int32             // reservations
	look    Time              // when to see whether it can be forgotten
	share   int64             // parts of a million of its rates
	asked   [Tokens + 1]int64 // units that were asked for since the last Demand
	buckets [Tokens + 1]bucket
}

// bucket is the state of a rate.
type bucket struct {
	tat  Time
	held int64 // units
}

// purse is a balance. It outlives the rules that it was for.
type purse struct{ left, held int64 } // left is with what is held

// hold is one reservation: of the tenant's account, and of the one that stands for all
// tenants without rules of their own together.
type hold struct {
	gen   uint32
	open  bool
	parts [2]part
	purse *purse // nil: it takes from no balance
	held  int64  // of it
}

// part is what a reservation has of an account.
type part struct {
	account int32
	there   bool
	skip    [Tokens + 1]bool // it does not count for this rate
	held    [Tokens + 1]int64
	charged [Tokens + 1]int64
}

// Counts are of one tenant with rules, or of all others together, since the ledger began.
type Counts struct {
	Reserved uint64        // requests that were let in
	Refused  [kinds]uint64 // requests
	Would    [kinds]uint64 // have been refused, by a limit in dry run
	Began    uint64        // requests that count
	Prompt   uint64        // tokens, as they are
	Output   uint64
	Billed   uint64 // weighted tokens taken from a balance
	Crowded  uint64 // requests of tenants that share an account for want of room
}

// Names of accounts that are no tenant's: of the one that is shared for want of room, and
// of the one that stands for all tenants without rules of their own. No tenant is called so.
const (
	crowd    = "\x00crowd"
	together = "\x00together"
)

// New makes a ledger for a valid table, with room for so many accounts of tenants
// without rules of their own.
func New(t *Table, most int) *Ledger {
	l := &Ledger{most: max(most, 1), share: million, named: map[string]int32{}, index: map[string]int32{}, purses: map[string]*purse{}}
	l.Apply(0, t)
	return l
}

// tick takes the time, which does not go back.
func (l *Ledger) tick(now Time) { l.now = max(l.now, now) }

// Apply replaces the rules by those of a valid table. What was used stays used: so many
// units are in each bucket as before. Counts go on for those who had rules and have some.
func (l *Ledger) Apply(now Time, t *Table) {
	l.tick(now)
	was, named := l.table, map[string]int32{}
	counts := make([]Counts, len(t.Tenants)+1)
	for i := range t.Tenants {
		tenant := t.Tenants[i].Tenant
		named[tenant] = int32(i)
		if k, ok := l.named[tenant]; ok {
			counts[i] = l.counts[k]
		}
		if t.Tenants[i].Prepaid && l.purses[tenant] == nil {
			l.purses[tenant] = &purse{}
		}
	}
	if n := len(l.counts); n > 0 {
		counts[len(counts)-1] = l.counts[n-1]
	}
	l.table = *t
	l.table.Tenants = slices.Clone(t.Tenants)
	l.named, l.counts, l.others = named, counts, 0
	l.looks = slices.DeleteFunc(l.looks, func(i int32) bool { _, own := named[l.accounts[i].tenant]; return own })
	slices.SortFunc(l.looks, func(i, j int32) int { return cmp.Compare(l.accounts[i].look, l.accounts[j].look) })
	for i := range l.accounts {
		a := &l.accounts[i]
		if !a.there {
			continue
		}
		old := a.rules
		a.rules = l.rulesOf(a.tenant)
		if l.forgets(a) && a.tenant != crowd {
			l.others++
			if int(old) != len(was.Tenants) {
				l.watch(int32(i))
			}
		}
		for k := range a.buckets {
			l.refit(&a.buckets[k], rateOf(&was, old, Kind(k)).part(a.share), l.rate(a, Kind(k)))
		}
	}
	l.open(together)
	for i := range t.Tenants {
		l.open(t.Tenants[i].Tenant)
	}
}

// refit keeps the units in a bucket whose rate becomes another.
func (l *Ledger) refit(b *bucket, old, rate Rate) {
	if old.N == rate.N && old.Window == rate.Window {
		return
	}
	if old.N == 0 || rate.N == 0 || b.tat <= l.now {
		b.tat = min(b.tat, l.now)
		return
	}
	b.tat = l.now + Time(rate.span(old.used(int64(b.tat-l.now))))
}

func rateOf(t *Table, rules int32, k Kind) Rate { return *rulesAt(t, rules).rate(k) }

func rulesAt(t *Table, i int32) *Rules {
	switch n := len(t.Tenants); {
	case int(i) < n:
		return &t.Tenants[i].Rules
	case int(i) == n:
		return &t.Others
	}
	return &t.Together
}

// rulesOf is the place of a tenant's rules.
func (l *Ledger) rulesOf(tenant string) int32 {
	if i, ok := l.named[tenant]; ok {
		return i
	}
	if tenant == together {
		return int32(len(l.table.Tenants)) + 1
	}
	return int32(len(l.table.Tenants))
}

// forgets tells whether an account is one of the many: of a tenant without rules of its
// own. The others are never forgotten.
func (l *Ledger) forgets(a *account) bool { return int(a.rules) == len(l.table.Tenants) }

// rate is the ledger's share of an account's rate.
func (l *Ledger) rate(a *account, k Kind) Rate {
	return rateOf(&l.table, a.rules, k).part(a.share)
}

// none tells that rules limit nothing.
func (r *Rules) none() bool { return r.Requests.N == 0 && r.Tokens.N == 0 && !r.Prepaid }

// open returns the place of a tenant's account, which is made if there is none.
func (l *Ledger) open(tenant string) int32 {
	if i, ok := l.index[tenant]; ok {
		return i
	}
	rules := l.rulesOf(tenant)
	if int(rules) == len(l.table.Tenants) && tenant != crowd {
		for n := 0; (n < glance || l.others >= l.most) && l.glance(); n++ {
		}
		if l.others >= l.most {
			l.counts[rules].Crowded++
			return l.open(crowd)
		}
		l.others++
	}
	a := account{tenant: tenant, there: true, rules: rules, share: l.shareOf(tenant)}
	var i int32
	if n := len(l.vacant); n > 0 {
		i, l.vacant = l.vacant[n-1], l.vacant[:n-1]
		l.accounts[i] = a
	} else {
		i = int32(len(l.accounts))
		l.accounts = append(l.accounts, a)
	}
	l.index[tenant] = i
	if l.forgets(&a) && tenant != crowd {
		l.watch(i)
	}
	return i
}

// Reserve asks for what a request is expected to cost. What is given is held until it
// settles.
func (l *Ledger) Reserve(now Time, tenant string, ask Ask) (answer Answer) {
	l.tick(now)
	place := l.rulesOf(tenant)
	rules, many := rulesAt(&l.table, place), int(place) == len(l.table.Tenants)
	if rules.none() && (!many || l.table.Together.none()) {
		return answer
	}
	ask.Prompt, ask.Output = tokens(ask.Prompt), tokens(ask.Output)
	h := hold{open: true}
	l.want(&h.parts[0], l.open(tenant), &ask, &answer)
	if many {
		l.want(&h.parts[1], l.open(together), &ask, &answer)
	}
	if rules.Prepaid {
		p, whole := l.purses[tenant], rules.weigh(ask.Prompt, ask.Output)
		switch left := p.left - p.held; {
		case left >= whole && left > 0:
			h.purse, h.held = p, whole
		case rules.PrepaidDryRun || ask.Dry:
			answer.Dry |= 1 << Balance
		default:
			answer.worse(&Answer{Refused: true, By: Balance, Want: whole, Left: left})
		}
	}
	counts := &l.counts[place]
	for k := range kinds {
		if answer.Dry&(1<<k) != 0 {
			counts.Would[k]++
		}
	}
	if answer.Refused {
		counts.Refused[answer.By]++
	} else {
		counts.Reserved++
		answer.ID = l.hold(&h)
	}
	answer.Told = l.told(tenant, &l.accounts[h.parts[0].account])
	return answer
}

// want fills in what a request needs of an account, and puts into the answer what that
// can't give.
func (l *Ledger) want(p *part, i int32, ask *Ask, answer *Answer) {
	p.account, p.there = i, true
	a := &l.accounts[i]
	rules := rulesAt(&l.table, a.rules)
	for k := Requests; k <= Tokens; k++ {
		rate, b := l.rate(a, k), &a.buckets[k]
		if p.skip[k] = rate.N == 0; p.skip[k] {
			continue
		}
		least, want := int64(1), int64(1)
		if k == Tokens {
			least = rules.weigh(ask.Prompt, 0)
			want = max(least, min(rules.weigh(ask.Prompt, ask.Output), rate.Burst))
		}
		a.asked[k] += want
		switch {
		case l.fits(&rate, b, want):
			p.held[k] = want
		case rate.DryRun || ask.Dry:
			answer.Dry |= 1 << k
			p.skip[k] = true
		default:
			refusal := Answer{Refused: true, By: k, Together: a.tenant == together, Want: want, Left: l.left(&rate, b), Never: least > rate.Burst, Rate: rate}
			if !refusal.Never {
				refusal.Retry = l.retry(&rate, b, want)
			}
			answer.worse(&refusal)
		}
	}
}

// worse takes over a refusal if it lasts longer: one without a time longer than any, and
// that of a balance longest but for what never comes in.
func (a *Answer) worse(b *Answer) {
	rank := func(x *Answer) (int, time.Duration) {
		switch {
		case !x.Refused:
			return 0, 0
		case x.Never:
			return 4, 0
		case x.By == Balance:
			return 3, 0
		case x.Retry == 0:
			return 2, 0
		}
		return 1, x.Retry
	}
	ra, ta := rank(a)
	if rb, tb := rank(b); rb > ra || rb == ra && tb > ta {
		b.Dry = a.Dry
		*a = *b
	}
}

func tokens(n int64) int64 { return min(max(n, 0), maxTokens) }

// full is how far a bucket is from being empty.
func (l *Ledger) full(b *bucket) int64 { return int64(max(b.tat-l.now, 0)) }

func (l *Ledger) fits(r *Rate, b *bucket, units int64) bool {
	return l.full(b)+r.span(b.held+units) <= r.span(r.Burst)
}

// left is how many units would fit.
func (l *Ledger) left(r *Rate, b *bucket) int64 {
	return max(r.units(r.span(r.Burst)-l.full(b))-b.held, 0)
}

// retry is when so many units would fit if nothing settled, 0 if never then.
func (l *Ledger) retry(r *Rate, b *bucket, units int64) time.Duration {
	wait := l.full(b) + r.span(b.held+units) - r.span(r.Burst)
	if wait > l.full(b) {
		return 0
	}
	return time.Duration(wait)
}

// hold puts a reservation into the books and names it.
func (l *Ledger) hold(h *hold) ID {
	for i := range h.parts {
		if p := &h.parts[i]; p.there {
			a := &l.accounts[p.account]
			a.open++
			for k := range p.held {
				a.buckets[k].held += p.held[k]
			}
		}
	}
	if h.purse != nil {
		h.purse.held += h.held
	}
	var slot uint32
	if n := len(l.free); n > 0 {
		slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		slot = uint32(len(l.holds))
		l.holds = append(l.holds, hold{})
	}
	h.gen = l.holds[slot].gen + 1
	l.holds[slot] = *h
	return ID(h.gen)<<32 | ID(slot)
}

// find returns a reservation that has not settled, nil if there is none of that name.
func (l *Ledger) find(id ID) *hold {
	slot, gen := uint32(id), uint32(id>>32)
	if int64(slot) >= int64(len(l.holds)) || !l.holds[slot].open || l.holds[slot].gen != gen {
		return nil
	}
	return &l.holds[slot]
}

// Progress charges what a request that has begun has used so far: its tokens in all. What
// was charged of a rate is not given back, even if an answer begins anew.
func (l *Ledger) Progress(now Time, id ID, prompt, output int64) {
	l.tick(now)
	if h := l.find(id); h != nil {
		l.charge(h, prompt, output)
	}
}

// charge brings a reservation's charges up to its use.
func (l *Ledger) charge(h *hold, prompt, output int64) {
	for i := range h.parts {
		if h.parts[i].there {
			l.chargePart(&h.parts[i], tokens(prompt), tokens(output))
		}
	}
}

func (l *Ledger) chargePart(p *part, prompt, output int64) {
	a := &l.accounts[p.account]
	used := [...]int64{1, rulesAt(&l.table, a.rules).weigh(prompt, output)}
	for k := Requests; k <= Tokens; k++ {
		more := used[k] - p.charged[k]
		if p.skip[k] || more <= 0 {
			continue
		}
		rate, b := l.rate(a, k), &a.buckets[k]
		p.charged[k] = used[k]
		let := min(more, p.held[k])
		p.held[k] -= let
		b.held -= let
		if rate.N > 0 {
			b.tat = min(max(b.tat, l.now)+Time(rate.span(more)), l.now+Time(farthest))
		}
	}
}

// Settle ends a reservation with what the request has come to, and tells whether there
// was one.
func (l *Ledger) Settle(now Time, id ID, use Use) bool {
	l.tick(now)
	h := l.find(id)
	if h == nil {
		return false
	}
	rules := l.accounts[h.parts[0].account].rules
	counts := &l.counts[rules]
	prompt, output := tokens(use.Prompt), tokens(use.Output)
	if use.Began {
		l.charge(h, prompt, output-tokens(use.Kept))
		counts.Began++
		counts.Prompt += uint64(prompt)
		counts.Output += uint64(output)
	}
	if h.purse != nil {
		h.purse.held -= h.held
		if use.Began && !use.Free {
			bill := rulesAt(&l.table, rules).weigh(prompt, output)
			h.purse.left = max(h.purse.left-bill, -mostBalance)
			counts.Billed += uint64(bill)
		}
	}
	for i := range h.parts {
		if p := &h.parts[i]; p.there {
			a := &l.accounts[p.account]
			a.open--
			for k := range p.held {
				a.buckets[k].held -= p.held[k]
			}
		}
	}
	*h = hold{gen: h.gen}
	l.free = append(l.free, uint32(id))
	return true
}

// Refill adds to a tenant's balance, or with tokens below 0 takes from it, and returns
// what there is then, with what is held. It is false for a tenant that has no balance by
// the rules.
func (l *Ledger) Refill(now Time, tenant string, tokens int64) (left int64, ok bool) {
	l.tick(now)
	if i, named := l.named[tenant]; !named || !l.table.Tenants[i].Prepaid {
		return 0, false
	}
	p := l.purses[tenant]
	p.left = min(max(p.left+tokens, -mostBalance), mostBalance)
	return p.left, true
}

// mostBalance bounds a balance; each sum of two is within 64 bits.
const mostBalance = int64(1) << 60

// Purse is a balance without what is held of it, to be kept while there is no ledger.
type Purse struct {
	Tenant string
	Left   int64
}

// Purses returns the balances of all tenants that ever had one, by name.
func (l *Ledger) Purses() []Purse {
	all := make([]Purse, 0, len(l.purses))
	for tenant, p := range l.purses {
		all = append(all, Purse{tenant, p.left})
	}
	slices.SortFunc(all, func(a, b Purse) int {
		if a.Tenant < b.Tenant {
			return -1
		}
		return 1
	})
	return all
}

// Restore puts back what Purses returned, before anything was reserved.
func (l *Ledger) Restore(all []Purse) {
	for _, p := range all {
		l.purses[p.Tenant] = &purse{left: min(max(p.Left, -mostBalance), mostBalance)}
	}
}
