package quota

import (
	"cmp"
	"slices"
)

// Several ledgers may share the limits, each with a part of every rate and burst. A part
// that moves from one to another brings no burst: the bucket of who gets it is as much
// fuller as its burst is larger, since nobody knows what the other has used of it. So for
// as long as the parts of a tenant add up to no more than a whole, all together stay
// within the limit as one would. Only where the number of ledgers changes does a part come
// with its burst: a ledger that is alone is to have the whole limit at once.

// Part is what a ledger has of a tenant's limits, in parts of a million.
type Part struct {
	Tenant string
	PPM    int64
}

// Share gives the ledger so many parts of a million of every tenant's limits, and of some
// others. What was used stays used.
func (l *Ledger) Share(now Time, base int64, parts []Part) {
	l.tick(now)
	before := l.share
	old := l.parts
	l.share, l.parts = min(max(base, 1), million), map[string]int64{}
	for _, p := range parts {
		l.parts[p.Tenant] = min(max(p.PPM, 1), million)
	}
	for _, p := range parts {
		was, ok := old[p.Tenant]
		if !ok {
			was = before
		}
		if _, there := l.index[p.Tenant]; !there && l.fills(was, p.PPM, before) {
			// One that is new would have the burst of its part.
			l.accounts[l.open(p.Tenant)].share = was
		}
	}
	for i := range l.accounts {
		if a := &l.accounts[i]; a.there {
			l.reshare(a, l.shareOf(a.tenant), before)
		}
	}
}

// fills tells whether a part has become larger otherwise than by the number of ledgers.
func (l *Ledger) fills(was, is, before int64) bool { return is > l.grown(was, before) }

// grown is what a part would be, were only the number of ledgers another.
func (l *Ledger) grown(part, before int64) int64 {
	return int64(min(mulDiv(uint64(part), uint64(l.share), uint64(before)), million))
}

// reshare gives an account another part.
func (l *Ledger) reshare(a *account, ppm, before int64) {
	was := a.share
	if ppm == was {
		return
	}
	full := min(l.grown(was, before), ppm)
	for k := range a.buckets {
		whole := rateOf(&l.table, a.rules, Kind(k))
		old, rate := whole.part(was), whole.part(ppm)
		b := &a.buckets[k]
		l.refit(b, old, rate)
		if more := rate.Burst - whole.part(max(full, 1)).Burst; whole.N > 0 && more > 0 {
			b.tat = max(b.tat, l.now) + Time(rate.span(more))
		}
	}
	a.share = ppm
}

// shareOf is the ledger's part of a tenant's limits.
func (l *Ledger) shareOf(tenant string) int64 {
	if ppm, ok := l.parts[tenant]; ok {
		return ppm
	}
	return l.share
}

// Demand is what was asked for of a tenant's limits, in parts of a million of what they
// bring in the time.
type Demand struct {
	Tenant string
	PPM    int64
}

// Demand returns what was asked for since the last call, whether it was given or not, of
// tenants that asked for half of the ledger's part or more: the n that asked for most, by
// name. No more than the whole counts: who asks again and again wants no more for that.
func (l *Ledger) Demand(now Time, n int) []Demand {
	l.tick(now)
	elapsed := l.now - l.since
	l.since = l.now
	var all []Demand
	for i := range l.accounts {
		a := &l.accounts[i]
		asked := a.asked
		a.asked = [Tokens + 1]int64{}
		if !a.there || elapsed <= 0 || asked == a.asked {
			continue
		}
		most := int64(0)
		for k, units := range asked {
			if rate := rateOf(&l.table, a.rules, Kind(k)); rate.N > 0 {
				most = max(most, int64(min(mulDiv(uint64(rate.span(units)), million, uint64(elapsed)), million)))
			}
		}
		if most >= a.share/2 && most > 0 {
			all = append(all, Demand{a.tenant, most})
		}
	}
	slices.SortFunc(all, func(a, b Demand) int { return cmp.Or(cmp.Compare(b.PPM, a.PPM), cmp.Compare(a.Tenant, b.Tenant)) })
	all = all[:min(n, len(all))]
	slices.SortFunc(all, func(a, b Demand) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return all
}
