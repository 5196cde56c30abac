package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"headgate/control"
	"headgate/control/store"
	"headgate/quota"
)

// Tenants are the books of what tenants use at this replica, as quota/keeper has them.
type Tenants interface {
	Share(base int64, parts []quota.Part)
	Demand(most int) []quota.Demand
}

const (
	// demandEvery is how often what is asked for is looked at, and the least time between
	// two writes of it.
	demandEvery = 2 * time.Second
	// mostDemands is of how many tenants a replica says what they ask for. All others have
	// equal parts everywhere.
	mostDemands = 200
	// raiseAfter is how much later a larger part is taken than a smaller one, so that who
	// gives it has heard.
	raiseAfter = time.Second
)

// Shares gives tenants this replica's part of their limits until ctx is over: an equal one
// of each, and by demand of those that ask for much somewhere. A smaller part is taken at
// once, a larger one a little later. Until the replica has a lease it has one of most
// parts, and while it is cut off from the store what it had; nothing raises its parts then.
//
// Alternatives: a counter for each tenant in the store, or tokens drawn from there, costs a
// round trip before the first request of each, and nothing is let in while the store is
// away. A leader that grants parts and waits for acknowledgements is never over the limit
// for a moment, where this is for as long as a replica hears late; but the limits of tenants
// keep nothing from breaking.
func Shares(ctx context.Context, s store.Store, id control.ID, most int, tenants Tenants, log *slog.Logger) {
	var own control.Member // zero: it has no lease
	var demand, told []quota.Demand
	goal := control.SharesOf(id, nil, most)
	parts := goal
	tenants.Share(parts.Base, parts.Parts)
	members := s.Members(ctx)
	look := time.NewTicker(demandEvery)
	defer look.Stop()
	raise := time.NewTimer(0)
	defer raise.Stop()
	for {
		select {
		case all, ok := <-members:
			if !ok {
				return
			}
			own = control.Member{}
			if i := slices.IndexFunc(all, func(m control.Member) bool { return m.ID == id }); i >= 0 {
				own = all[i]
			}
			told = control.DecodeUses(own.Uses)
			goal = control.SharesOf(id, all, most)
			parts = parts.Lower(&goal)
			tenants.Share(parts.Base, parts.Parts)
			raise.Reset(raiseAfter)
		case <-raise.C:
			parts = goal
			tenants.Share(parts.Base, parts.Parts)
		case <-look.C:
			demand = control.Smooth(demand, tenants.Demand(mostDemands))
			if own.Lease == 0 || !control.Differ(demand, told) {
				continue
			}
			own.Uses = control.EncodeUses(demand)
			if err := s.Announce(ctx, own); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrFenced) {
				log.Debug("what tenants ask for was not told to the other replicas", "err", err)
			}
		}
	}
}
