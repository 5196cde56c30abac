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
	// end is that of the lease that the grant is under, as it was last heard of.
	end      Time
	residual time.Duration // that was announced last
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
	if h.grant != nil && h.grant.Lease == h.lease {
		h.end = h.until
	}
}

// Lost notes that the lease is over before its time, or is about to be.
func (h *Holder) Lost(now Time) {
	h.lease, h.until, h.end = 0, 0, min(h.end, now)
}

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
	h.epoch, h.rev, h.grant, h.end = g.Epoch, g.Rev, g, h.until
	return nil
}

// EndTime is what it takes at most for an attempt that a replica gives up to be over in
// the engine.
const EndTime = 2 * time.Second

// Due is when what the replica has beyond what survives has to be given up, unless a
// grant is in force by then: what is reserved for it is somebody else's soon after. ok is
// false while it has had no grant. A new lease alone changes nothing, since the leader may
// know of it too late; a grant under it does.
func (h *Holder) Due() (at Time, ok bool) {
	if h.grant == nil {
		return 0, false
	}
	// The leader's clock may be as much ahead of the store's as this one is behind it.
	return h.end + max(Time(float64(h.grant.Residual)*(1-h.drift)/(1+h.drift))-Time(EndTime), 0), true
}

// Residual is what the replica has to announce for what lasts d not to be given up. It never
// falls, and rises in steps, since each is a grant to be written.
func (h *Holder) Residual(d time.Duration) time.Duration {
	if need := time.Duration(float64(d+EndTime) * (1 + h.drift) / (1 - h.drift)); d > 0 && need > h.residual {
		h.residual = need + need/8
	}
	return h.residual
}

// Attempt is what runs for a request, or is about to.
type Attempt struct {
	Engine, Class string
	Amount        Amount // that it has at least
}

// Overdue returns which of the attempts have to be given up once they are due, the first
// before later ones, until what is left is within what survives. r says what the replica
// has.
func (h *Holder) Overdue(r *Report, running []Attempt) (ends []int) {
	left := map[string]Amount{}
	for i := range r.Engines {
		left["engine "+r.Engines[i].Engine] = r.Engines[i].Used
	}
	for i := range r.Classes {
		for _, v := range r.Classes[i].Used {
			left["class "+r.Classes[i].Class] = plus(left["class "+r.Classes[i].Class], v)
		}
	}
	survives, limited := map[string]Amount{}, map[string]bool{}
	for i := range h.grant.Accounts {
		c := &h.grant.Accounts[i]
		if c.Class != "" {
			survives["class "+c.Class], limited["class "+c.Class] = c.Survival, true
			continue
		}
		survives["engine "+c.Engine] = c.Survival
	}
	for i := range running {
		engine, class := "engine "+running[i].Engine, "class "+running[i].Class
		if within(left[engine], survives[engine]) && (!limited[class] || within(left[class], survives[class])) {
			continue
		}
		left[engine], left[class] = minus(left[engine], running[i].Amount), minus(left[class], running[i].Amount)
		ends = append(ends, i)
	}
	return ends
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
