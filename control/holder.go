package control

import (
	"fmt"
	"slices"
	"time"
)

// Holder is a replica's side of one pool: which grant it has, and until when.
//
// It is pure: the shell tells it of renewals and grants with the time by its own
// clock, and takes over what State says.
type Holder struct {
	id   ID
	pool string
	// drift is the part of a lease's time by which the replica's clock and the
	// store's may differ at the end of it.
	drift float64

	lease int64
	until Time // of the lease, by the replica's clock
	epoch uint64
	rev   uint64 // of the last grant that was taken, whether or not it is in force
	grant *Grant // in force, or the last that was: what survives is in it
}

// NewHolder returns a holder without a lease. drift is from 0 to below 1.
func NewHolder(pool string, id ID, drift float64) *Holder {
	return &Holder{pool: pool, id: id, drift: drift}
}

// Leased notes that the lease was there, for ttl, when the request that has now
// been answered was sent: so it is there until then at least. A grant under it that
// had run out for want of news is in force again; under a new lease none is.
func (h *Holder) Leased(lease int64, sent Time, ttl time.Duration) {
	if lease != h.lease {
		h.lease, h.until = lease, 0
	}
	h.until = max(h.until, sent+Time(float64(ttl)*(1-h.drift)))
}

// Lost notes that the lease is over before its time.
func (h *Holder) Lost() { h.lease, h.until = 0, 0 }

// Take offers a grant. It is refused, with the reason, if it is another's, made
// under another lease, or not newer than what was taken before.
func (h *Holder) Take(now Time, g *Grant) error {
	switch {
	case g.Pool != h.pool || g.ID != h.id:
		return fmt.Errorf("grant %d of pool %s is for %s/%s, not for %s/%s of pool %s", g.Rev, g.Pool, g.Replica, g.Boot, h.id.Replica, h.id.Boot, h.pool)
	case g.Epoch < h.epoch:
		return fmt.Errorf("grant %d is of epoch %d, and epoch %d was seen", g.Rev, g.Epoch, h.epoch)
	case g.Epoch == h.epoch && g.Rev <= h.rev:
		return fmt.Errorf("grant %d is not newer than grant %d", g.Rev, h.rev)
	case h.lease == 0 || g.Lease != h.lease:
		return fmt.Errorf("grant %d is of lease %x, not of lease %x", g.Rev, g.Lease, h.lease)
	case now >= h.until:
		return fmt.Errorf("grant %d came after the end of its lease", g.Rev)
	}
	h.epoch, h.rev, h.grant = g.Epoch, g.Rev, g
	return nil
}

// Grant returns the last grant that was taken, nil before the first; until when it
// is in force, and whether it is: afterwards, and under a new lease, only what
// survives counts.
func (h *Holder) Grant(now Time) (g *Grant, until Time, ok bool) {
	return h.grant, h.until, h.grant != nil && h.grant.Lease == h.lease && now < h.until
}

// Lease returns the present lease, 0 without one, and until when it surely lasts.
func (h *Holder) Lease() (lease int64, until Time) { return h.lease, h.until }

// Survives tells whether anything is left when the grant's lease is over.
func (g *Grant) Survives() bool {
	return g != nil && slices.ContainsFunc(g.Accounts, func(a Account) bool { return a.Survival[0] > 0 })
}

// Report says in a report whose it is, and which grant it acknowledges.
func (h *Holder) Report(r *Report) {
	r.Pool, r.ID, r.Lease = h.pool, h.id, h.lease
	if h.grant != nil && h.grant.Lease == h.lease {
		r.Epoch, r.Rev = h.epoch, h.rev
	}
}
