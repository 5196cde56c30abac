package agent

import (
	"context"

	"headgate/control"
	"headgate/control/store"
)

// Shares tells how many replicas there are to share what is every tenant's, at first and
// whenever that changes, until ctx is over. It takes no write: who has a lease is in the
// store, and each replica takes one of so many equal parts.
//
// Until the replica itself has a lease it counts the most that there may be, and while it
// is cut off from the store what it heard last: a replica that nobody hears of uses no
// more than the part that it had.
//
// Alternatives: parts by demand let a tenant that comes to one replica alone have its
// whole limit there, and cost writes and an agreement for each that moves; a counter for each tenant
// in the store, or tokens drawn from there, costs a round trip before the first request of
// each tenant, and nothing is admitted while the store is away.
func Shares(ctx context.Context, s store.Store, id control.ID, most int, set func(replicas int)) {
	set(most)
	for members := range s.Members(ctx) {
		n := most
		for _, m := range members {
			if m.ID == id {
				n = len(members)
			}
		}
		set(n)
	}
}
