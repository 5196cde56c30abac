package control

import (
	"fmt"
	"time"
)

// Config is how an allocator judges demand. The zero value of a field is its
// default.
type Config struct {
	// Starve is for how long a request that has to borrow waits before it may have
	// what others of its class have borrowed beyond an equal share.
	Starve time.Duration
	// Of a replica that has not been told of the others yet (News): Sustain is for how long
	// an active class must have had slack before any is lent, LendCap the largest part of
	// its idle guarantee that is, 0 to 1. Of the others their cores tell what is kept.
	Sustain time.Duration
	LendCap float64
	// Stale is the age of a report after which its replica's guarantees are kept
	// whole, since nobody knows what it wants.
	Stale time.Duration
	// Smooth is the time in which demand that has fallen is forgotten by half.
	Smooth time.Duration
	// Rebalance is how often at most what nobody wants is shared anew.
	Rebalance time.Duration
	// Settle is how long after the end of a lease a request that its replica had sent
	// may be under way to the engine, before gauges tell of it.
	Settle time.Duration
	// Residual is the least for which what a replica may have left in the engines stays
	// reserved, if no gauge shows that it is gone. A replica ends what lasts longer than its
	// last grant says, so it should be longer than an answer that one may begin before the
	// leader has heard how long answers last.
	Residual time.Duration
}

// SetDefaults fills in what is zero.
func (c *Config) SetDefaults() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&c.Starve, time.Second}, {&c.Sustain, 3 * time.Second}, {&c.Stale, 15 * time.Second}, {&c.Smooth, 2 * time.Second},
		{&c.Rebalance, 2 * time.Second}, {&c.Settle, time.Second}, {&c.Residual, time.Minute},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.LendCap == 0 {
		c.LendCap = 0.5
	}
}

// Validate reports every value that is out of range or contradicts another. What floors
// sum to is compared with the envelope once it is whole: as long as an engine's size is not
// known they may be of that one.
func (p *Pool) Validate(bad func(path string, value any, allowed string)) {
	if p.Replicas < 1 || p.Replicas > MaxReplicas {
		bad("replicas", p.Replicas, fmt.Sprintf("1 to %d", MaxReplicas))
		return
	}
	n := int64(p.Replicas)
	var envelope Amount
	whole := [resources]bool{true, true}
	for i := range p.Engines {
		e := &p.Engines[i]
		envelope = plus(envelope, e.Total)
		for r := range e.Total {
			res := resource(r)
			whole[r] = whole[r] && e.Total[r] > 0
			if kept := p.Survival[r] * n; e.Total[r] > 0 && kept > e.Total[r] {
				bad("survival."+res, p.Survival[r], fmt.Sprintf("at most %d: %d replicas keep %d of engine %s, which has %d", e.Total[r]/n, n, kept, e.Name, e.Total[r]))
			}
		}
	}
	if p.Survival[0] < 0 || p.Survival[1] < 0 {
		bad("survival", p.Survival, "amounts of at least 0")
	}
	if p.Survival[0] > 0 && p.Survival[1] < p.Unit[1] {
		bad("survival.kv_tokens", p.Survival[1], fmt.Sprintf("at least one request's need of %d (unit), or it is of no use", p.Unit[1]))
	}
	var floors Amount
	for i := range p.Classes {
		c := &p.Classes[i]
		if c.Floor[0] > 0 {
			// A guarantee is split by slots, so that the smallest part that has any has to hold a
			// request.
			least := max(c.Floor[0]/n, 1)
			if part := c.Floor[1] / c.Floor[0] * least; part < p.Unit[1] && envelope[1] > 0 {
				need := (p.Unit[1] + least - 1) / least * c.Floor[0]
				bad("classes["+c.Name+"].floor.kv_tokens", c.Floor[1], fmt.Sprintf("at least %d: between %d replicas a part of its %d slots has %d with %d KV tokens, and one request needs %d (unit)", need, n, c.Floor[0], least, part, p.Unit[1]))
			}
		}
		if !c.Windowed {
			floors = plus(floors, c.Floor)
		}
	}
	for r := range floors {
		left := envelope[r] - p.Survival[r]*n*int64(len(p.Engines))
		if whole[r] && envelope[r] > 0 && left >= 0 && floors[r] > left { // below 0 the survival floors are what is wrong
			bad("classes", floors[r], fmt.Sprintf("floors of %s that sum to at most %d: the envelope of %d without the survival floors of %d replicas", resource(r), left, envelope[r], n))
		}
	}
}

// MaxReplicas bounds a fleet.
const MaxReplicas = 1000
