package control

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"headgate/quota"
)

// TestSharesAddUp: whatever replicas say that their tenants ask for, the parts of all are
// the whole at most, of each tenant, also while some have taken only what is less for them;
// each has some, and one that asks for all that is asked has nearly all.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) []Member {
			all := make([]Member, rapid.IntRange(1, 6).Draw(t, label))
			for i := range all {
				all[i].ID = ID{Replica: fmt.Sprint("r", i), Boot: "1"}
				var uses []quota.Demand
				for _, tenant := range []string{"a", "b", "c"} {
					if rapid.Bool().Draw(t, "asks") {
						uses = append(uses, quota.Demand{Tenant: tenant, PPM: rapid.Int64Range(0, 2*whole).Draw(t, "for")})
					}
				}
				all[i].Uses = EncodeUses(uses)
			}
			return all
		}
		before, after := draw("before"), draw("after")
		for _, tenant := range []string{"a", "b", "c", "nobody's"} {
			sum, low := int64(0), int64(0)
			for _, m := range after {
				is := SharesOf(m.ID, after, 16)
				if is.Of(tenant) < max(kept/int64(len(after)), 1) {
					t.Fatalf("%s has %d of %s", m.Replica, is.Of(tenant), tenant)
				}
				sum += is.Of(tenant)
				was := SharesOf(m.ID, before, 16)
				low += min(was.Of(tenant), is.Of(tenant))
				if lower := was.Lower(&is); lower.Of(tenant) != min(was.Of(tenant), is.Of(tenant)) {
					t.Fatalf("of %d and %d of %s the lower is %d", was.Of(tenant), is.Of(tenant), tenant, lower.Of(tenant))
				}
			}
			if sum > whole {
				t.Fatalf("all have %d of %s", sum, tenant)
			}
		}
	})
	one := []Member{{ID: ID{Replica: "x"}, Uses: EncodeUses([]quota.Demand{{Tenant: "a", PPM: 500_000}})}, {ID: ID{Replica: "y"}}}
	x, y := SharesOf(one[0].ID, one, 16), SharesOf(one[1].ID, one, 16)
	if x.Of("a") != 900_000 || y.Of("a") != 100_000 || x.Of("b") != 500_000 {
		t.Errorf("who asks alone has %d of it, the other %d; of another %d: want 900000, 100000 and 500000", x.Of("a"), y.Of("a"), x.Of("b"))
	}
}
