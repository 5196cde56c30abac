package live

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"headgate/admission"
	"headgate/console/now"
	"headgate/relay"
)

const (
	// sampleEvery is how far two points are apart.
	sampleEvery = 5 * time.Second
	// window is what a point looks back: long enough that a quantile is of more than one
	// answer, short enough to see a recall's effect.
	window = 30 * time.Second
	// kept is how many samples there are: ten minutes.
	kept = 121
	// mostNamed bounds the tenants that are looked at.
	mostNamed = 1000
)

// series are the last samples of counters that only rise, oldest first.
type series struct {
	samples []sample
	places  map[string]int // of tenants, in counters.done
}

type sample struct {
	at      time.Time
	classes map[relay.Of]*counters
	order   []relay.Of // by pool and rank
}

// counters are what a class's requests have come to since the process began.
type counters struct {
	relay.Tally
	held, met uint64 // answers with an objective, and those that kept it
	waste     int64
	// work is of the newest sample alone: of those before it what was done suffices, which
	// for a thousand tenants is a small part of it.
	work map[string]relay.TenantWork
	done []int64 // by the tenant's place
}

// sample looks at the counters, and tells everybody.
func (f *Feed) sample() {
	s := sample{at: time.Now(), classes: map[relay.Of]*counters{}}
	tallies := map[relay.Of]*relay.Tally{}
	if f.cfg.Metrics != nil {
		tallies = f.cfg.Metrics.Tallies()
	}
	names := f.cfg.Tenants()
	names = names[:min(len(names), mostNamed)]
	for _, p := range f.cfg.Pools() {
		waste := map[string]int64{}
		if b := p.Brief(); b.Brief != nil {
			for i := range b.Classes {
				waste[b.Classes[i].Name] = b.Classes[i].Counts.WasteTokens
			}
		}
		for _, name := range p.Classes() {
			of := relay.Of{Pool: p.Name(), Class: name}
			c := &counters{waste: waste[name], work: map[string]relay.TenantWork{}}
			if t := tallies[of]; t != nil {
				c.Tally = *t
			}
			c.held, c.met = p.Objectives(name)
			s.classes[of], s.order = c, append(s.order, of)
		}
		for _, w := range p.Work(names) {
			// A reload may have brought the class since the pool was asked for its classes.
			if c := s.classes[relay.Of{Pool: p.Name(), Class: w.Class}]; c != nil {
				c.work[w.Tenant] = w
			}
		}
	}
	f.mu.Lock()
	f.series.add(s)
	if len(f.watchers) > 0 {
		t := f.series.all()
		t.Points = t.Points[max(len(t.Points)-1, 0):]
		f.traffic = event("traffic", t)
		f.beats++
	}
	f.mu.Unlock()
	f.tell()
}

func (s *series) add(next sample) {
	if n := len(s.samples); n > 0 {
		for _, c := range s.samples[n-1].classes {
			s.settle(c)
		}
	}
	if len(s.samples) == kept {
		s.samples = slices.Delete(s.samples, 0, 1)
	}
	s.samples = append(s.samples, next)
}

// settle keeps of a sample that is not the newest any more what is looked at again.
func (s *series) settle(c *counters) {
	if len(c.work) == 0 {
		return
	}
	if s.places == nil {
		s.places = map[string]int{}
	}
	for name := range c.work {
		if _, ok := s.places[name]; !ok {
			s.places[name] = len(s.places)
		}
	}
	c.done = make([]int64, len(s.places))
	for name, w := range c.work {
		c.done[s.places[name]] = w.Done
	}
	c.work = nil
}

// doneFor is what a class had done for a tenant at a sample; 0 where it was not there yet.
func (s *series) doneFor(c *counters, tenant string) int64 {
	if w, ok := c.work[tenant]; ok {
		return w.Done
	}
	if i, ok := s.places[tenant]; ok && i < len(c.done) {
		return c.done[i]
	}
	return 0
}

// all is one point for each sample but the first, and the total.
func (s *series) all() *now.Traffic {
	t := &now.Traffic{EveryS: sampleEvery.Seconds(), WindowS: window.Seconds(), Points: []now.Point{}}
	for i := 1; i < len(s.samples); i++ {
		from := max(0, i-int(window/sampleEvery))
		t.Points = append(t.Points, s.between(&s.samples[from], &s.samples[i], false))
	}
	if n := len(s.samples); n > 0 {
		t.Total = s.between(&s.samples[0], &s.samples[n-1], true)
	}
	return t
}

// between is what was added from one sample to another.
func (s *series) between(a, b *sample, total bool) now.Point {
	span := b.at.Sub(a.at).Seconds()
	p := now.Point{At: b.at.UTC(), SpanS: math.Round(span*1e3) / 1e3, Classes: []now.TrafficClass{}}
	for _, of := range b.order {
		was, is := a.classes[of], b.classes[of]
		if was == nil || is.held < was.held || is.waste < was.waste {
			was = &counters{} // it is new, or again
		}
		v := now.TrafficClass{Pool: of.Pool, Class: of.Class, Waste: is.waste - was.waste}
		outcomes := map[string]uint64{}
		for o, n := range is.Outcomes {
			n -= was.Outcomes[o]
			if n == 0 {
				continue
			}
			share := float64(n) / max(span, 1e-3)
			switch {
			case o == admission.CauseFinished.String():
				v.Finished += share
			case strings.HasPrefix(o, "rejected_"):
				v.Refused += share
			default:
				v.Failed += share
			}
			outcomes[o] = n
		}
		for _, r := range []*float64{&v.Finished, &v.Failed, &v.Refused} {
			*r = math.Round(*r*1e3) / 1e3
		}
		if held := is.held - was.held; held > 0 {
			kept := float64(is.met-was.met) / float64(held)
			v.OnTime = &kept
		}
		v.TTFTP50, v.TTFTP95 = quantile(was.TTFT, is.TTFT, 0.5), quantile(was.TTFT, is.TTFT, 0.95)
		v.WaitP50, v.WaitP95 = quantile(was.Wait, is.Wait, 0.5), quantile(was.Wait, is.Wait, 0.95)
		if total {
			if len(outcomes) > 0 {
				v.Outcomes = outcomes
			}
			v.Tenants = s.tenants(was, is)
		}
		p.Classes = append(p.Classes, v)
	}
	return p
}

// tenants are those for which most was done, and how far ahead each is of the one that is
// served next.
func (s *series) tenants(was, is *counters) (all []now.TrafficTenant) {
	least, waits := int64(math.MaxInt64), false
	for _, w := range is.work {
		if w.Waiting > 0 {
			least, waits = min(least, w.Counter), true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.work)) {
		w := is.work[name]
		t := now.TrafficTenant{Tenant: name, Work: w.Done - s.doneFor(was, name), Waiting: w.Waiting}
		if waits && w.Waiting > 0 {
			t.Ahead = w.Counter - least
		}
		if t.Work > 0 || t.Waiting > 0 {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b now.TrafficTenant) int { return int(min(max(b.Work-a.Work, -1), 1)) })
	return all[:min(len(all), now.MostTenants)]
}

// quantile estimates a quantile of what came between two states of a histogram, as
// Prometheus's histogram_quantile does: within a bucket all is taken to be spread evenly.
// nil: nothing came. What is beyond the last bound is that bound.
func quantile(was, is relay.Histogram, q float64) *float64 {
	n := func(h relay.Histogram, i int) float64 {
		if i < len(h) {
			return float64(h[i])
		}
		return 0
	}
	last := len(is) - 1
	if last < 0 || n(is, last) <= n(was, last) {
		return nil
	}
	bounds := relay.Bounds()
	rank := q * (n(is, last) - n(was, last))
	lower, below := 0.0, 0.0
	for i, upper := range bounds {
		upTo := n(is, i) - n(was, i)
		if upTo >= rank && upTo > below {
			v := lower + (upper-lower)*(rank-below)/(upTo-below)
			v = math.Round(v*1e5) / 1e5
			return &v
		}
		lower, below = upper, upTo
	}
	v := bounds[len(bounds)-1]
	return &v
}
