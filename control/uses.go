package control

import (
	"encoding/json"
	"slices"

	"headgate/quota"
)

// Tenants' limits are shared by demand without a leader: each replica says beside its
// lease what its tenants ask for, where that is much, and each works out its parts from
// what all say. The parts of all add up to no more than the whole, since all go by the
// same; who has not heard yet is why a larger part is taken later than a smaller one.

const whole = 1_000_000

// kept is what each replica has of a tenant's limits in any case, in parts of a million of
// its equal part, so that a first request does not wait for others.
const kept = 200_000

// EncodeUses writes down what tenants ask for.
func EncodeUses(all []quota.Demand) string {
	if len(all) == 0 {
		return ""
	}
	b, _ := json.Marshal(all) // of names and numbers
	return string(b)
}

// DecodeUses reads it. What can't be read is nothing.
func DecodeUses(text string) (all []quota.Demand) {
	if text != "" && json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	return all
}

// Shares is a replica's part of every tenant's limits, and of those that some ask much of,
// by name; in parts of a million.
type Shares struct {
	Base  int64
	Parts []quota.Part
}

// SharesOf works out a replica's parts from what all that have a lease say. One that has
// none itself has one of most parts.
func SharesOf(id ID, members []Member, most int) Shares {
	if !slices.ContainsFunc(members, func(m Member) bool { return m.ID == id }) {
		return Shares{Base: whole / int64(max(most, 1))}
	}
	n := int64(len(members))
	s := Shares{Base: whole / n}
	own, sum := map[string]int64{}, map[string]int64{}
	var names []string
	for _, m := range members {
		for _, d := range DecodeUses(m.Uses) {
			ppm := min(max(d.PPM, 0), whole)
			if _, ok := sum[d.Tenant]; !ok {
				names = append(names, d.Tenant)
			}
			sum[d.Tenant] += ppm
			if m.ID == id {
				own[d.Tenant] += ppm
			}
		}
	}
	slices.Sort(names)
	for _, tenant := range names {
		if sum[tenant] == 0 {
			continue
		}
		least := kept / n
		s.Parts = append(s.Parts, quota.Part{Tenant: tenant, PPM: max(least+(whole-kept)*own[tenant]/sum[tenant], 1)})
	}
	return s
}

// Of is the part of one tenant's limits.
func (s *Shares) Of(tenant string) int64 {
	if i, ok := slices.BinarySearchFunc(s.Parts, tenant, func(p quota.Part, name string) int {
		switch {
		case p.Tenant < name:
			return -1
		case p.Tenant > name:
			return 1
		}
		return 0
	}); ok {
		return s.Parts[i].PPM
	}
	return s.Base
}

// Lower is the smaller of two parts, for each tenant.
func (s *Shares) Lower(t *Shares) Shares {
	low := Shares{Base: min(s.Base, t.Base)}
	var names []string
	for _, x := range []*Shares{s, t} {
		for _, p := range x.Parts {
			names = append(names, p.Tenant)
		}
	}
	slices.Sort(names)
	for _, tenant := range slices.Compact(names) {
		low.Parts = append(low.Parts, quota.Part{Tenant: tenant, PPM: min(s.Of(tenant), t.Of(tenant))})
	}
	return low
}

// Smooth takes what was asked for in a last while into what was before: half of each. Who
// comes to less than a hundredth is left out.
func Smooth(before, now []quota.Demand) []quota.Demand {
	sum := map[string]int64{}
	var names []string
	for _, list := range [][]quota.Demand{before, now} {
		for _, d := range list {
			if _, ok := sum[d.Tenant]; !ok {
				names = append(names, d.Tenant)
			}
			sum[d.Tenant] += d.PPM / 2
		}
	}
	slices.Sort(names)
	var all []quota.Demand
	for _, tenant := range names {
		if sum[tenant] >= whole/100 {
			all = append(all, quota.Demand{Tenant: tenant, PPM: sum[tenant]})
		}
	}
	return all
}

// Differ tells whether demands are so different that the others are to know: another
// tenant, or by more than a quarter.
func Differ(a, b []quota.Demand) bool {
	return !slices.EqualFunc(a, b, func(x, y quota.Demand) bool {
		return x.Tenant == y.Tenant && 4*max(x.PPM-y.PPM, y.PPM-x.PPM) <= max(x.PPM, y.PPM)
	})
}
