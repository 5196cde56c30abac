package live

import (
	"math"
	"time"

	"headgate/admission"
	"headgate/console/now"
	"headgate/journal"
	"headgate/relay"
)

// build looks at all pools.
func (f *Feed) build() *now.Now {
	n := &now.Now{At: time.Now().UTC(), Pools: []now.Pool{}}
	if err := f.cfg.Ready(); err != nil {
		n.NotReady = err.Error()
	} else {
		n.Problems = f.cfg.Problems()
	}
	for _, p := range f.cfg.Pools() {
		n.Pools = append(n.Pools, pool(p))
	}
	return n
}

func pool(p *relay.Pool) now.Pool {
	b := p.Brief()
	v := now.Pool{Name: p.Name(), Observes: b.Observes, Draining: b.Draining, Classes: []now.Class{}, Engines: []now.Engine{}}
	if err := p.Ready(); err != nil {
		v.NotReady = err.Error()
	}
	engines := p.Engines()
	if b.Brief == nil {
		for i := range engines {
			v.Engines = append(v.Engines, engine(&engines[i], nil, 0))
		}
		return v
	}
	v.LendingPaused, v.Bypassed, v.LeaseOver = b.Paused, b.Bypassed, b.Expired
	v.Envelope, v.Used, v.Foreign, v.Loans, v.Ghosts = amount(b.Envelope), amount(b.Used), amount(b.Foreign), b.Loans, b.Ghosts
	if b.Withheld != nil {
		v.Withheld = amount(*b.Withheld)
	}
	for _, k := range b.Rank {
		if k < len(b.Classes) { // a class that is new is in the next table
			c := class(b.Brief, k)
			v.Waiting += c.Queue
			v.Classes = append(v.Classes, c)
		}
	}
	for i := range engines {
		var s *admission.EngineSnapshot
		// Names come again; the last of a name is the one that is there.
		for e := range b.Engines {
			if b.Engines[e].Name == engines[i].Name {
				s = &b.Engines[e]
			}
		}
		v.Engines = append(v.Engines, engine(&engines[i], s, b.At))
	}
	return v
}

func class(b *admission.Brief, k int) now.Class {
	c := &b.Classes[k]
	v := now.Class{
		Name: c.Name, Used: amount(c.Used), Floor: amount(c.Floor), Unlent: amount(c.Unlent), Ceiling: amount(c.Ceiling), Hold: amount(c.Hold),
		Borrowed: now.Amount{Slots: max(c.Used.Slots-c.Floor.Slots, 0), KVTokens: max(c.Used.KV-c.Floor.KV, 0)},
		Loans:    c.Loans, Lending: c.Lending, LendingWhy: b.Closed[k], Queue: c.Queue, Late: c.Late,
		Offered: c.Counts.Offered, Admitted: c.Counts.Admitted, Reclaims: c.Counts.Reclaims, Recalls: c.Counts.Recalls,
	}
	for _, n := range c.Counts.Rejected {
		v.Refused += n
	}
	if h := c.Head; h != nil {
		v.Head = &now.Head{Request: h.Request, WaitedS: seconds(b.At - h.Since), WaitsFor: h.Waiting, Wants: amount(h.Wants)}
		if in := b.Heads[k]; in != admission.Never {
			s := seconds(in)
			v.Head.Forecast = &s
		}
	}
	if r := c.Recall; r != nil {
		v.Recall = &now.OpenRecall{Seq: r.Seq, SinceS: seconds(b.At - r.Opened), Loans: r.Loans, Served: r.Served}
	}
	return v
}

// engine is an engine as it said itself, and as the core has it, at a time of the core's.
func engine(e *relay.EngineView, s *admission.EngineSnapshot, at admission.Time) now.Engine {
	v := now.Engine{
		Name: e.Name, State: e.State, Kind: string(e.Capabilities.Kind), Version: e.Capabilities.Version,
		Running: max(e.Running, 0), Waiting: max(e.Waiting, 0), KVTokens: max(e.KVUsed, 0), Error: e.Error,
	}
	if e.SampleAgeMS >= 0 {
		age := float64(e.SampleAgeMS) / 1e3
		v.AgeS = &age
	}
	if s != nil {
		v.Total, v.Used, v.Foreign, v.Demoted = amount(s.Total), amount(s.Used), amount(s.Foreign), s.Demoted
		if s.Aside > at {
			v.SetAsideS = seconds(s.Aside - at)
		}
	}
	return v
}

func amount(a admission.AmountView) now.Amount { return now.Amount{Slots: a.Slots, KVTokens: a.KV} }

// seconds are exact to a millisecond, which is more than an eye sees.
func seconds(t admission.Time) float64 {
	return math.Round(time.Duration(t).Seconds()*1e3) / 1e3
}

// Recall is a record whose times count from start.
func Recall(r *journal.Recall, start time.Time) now.Recall {
	after := func(at int64) *float64 {
		if at == 0 {
			return nil
		}
		s := math.Round(float64(at-r.Opened)/1e3) / 1e6 // microseconds are what can be believed
		return &s
	}
	v := now.Recall{
		Seq: r.Seq, Pool: r.Pool, Class: r.Class, Request: r.Request, Opened: start.Add(time.Duration(r.Opened)).UTC(),
		Granted: after(r.Granted), Admitted: after(r.Served), Dispatched: after(r.Dispatched),
		Scheduled: after(r.Scheduled), ScheduledUpper: after(r.ScheduledUpper), FirstToken: after(r.FirstToken), Settled: after(r.Settled), Closed: after(r.Closed),
		Reclaims: make([]now.Reclaim, len(r.Reclaims)), LeftOut: r.LeftOut,
	}
	for i, c := range r.Reclaims {
		v.Reclaims[i] = now.Reclaim{Class: c.Class, Request: c.Request, Hold: c.Hold, Sent: after(c.Sent), Confirmed: after(c.Confirmed)}
	}
	return v
}
