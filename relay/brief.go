package relay

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"headgate/admission"
	"headgate/journal"
)

// Brief is a pool for somebody who looks often.
type Brief struct {
	*admission.Brief       // nil while there is no core
	Rank             []int // of the classes that there are, in their order
	Observes         bool
	Draining         bool
}

// Brief returns the core's brief state, with the names of the requests in it.
func (p *Pool) Brief() Brief {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := Brief{Draining: p.drain || p.switches[SwitchDrain].On, Observes: p.live().Observe}
	if p.core == nil {
		return b
	}
	b.Brief, b.Rank = p.core.Brief(), p.live().rank
	b.Name(p.requestLocked)
	return b
}

// RecallsSince returns the recalls that have changed since a version of their list, the
// first to have changed first, and the list's version now. 0 is before all.
func (p *Pool) RecallsSince(version uint64) ([]journal.Recall, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ledger.Since(version)
}

// TenantWork is what a class has done for a tenant.
type TenantWork struct {
	Class  string
	Tenant string
	admission.Work
}

// Work returns what the pool's classes have done for those of the tenants that have asked
// for them.
func (p *Pool) Work(tenants []string) (all []TenantWork) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core == nil {
		return nil
	}
	live := p.live()
	for _, name := range tenants {
		t, ok := p.tenants[name]
		if !ok {
			continue
		}
		for _, k := range live.rank {
			if w, ok := p.core.Work(admission.Class(k), t); ok {
				all = append(all, TenantWork{live.Classes[k], name, w})
			}
		}
	}
	return all
}

// objectives counts a class's answers that were held against an objective, and those of
// them that kept all of its limits.
type objectives struct{ held, kept atomic.Uint64 }

// Objectives returns how many answers of a class were held against an objective since the
// process began, and how many of them kept every limit of it.
func (p *Pool) Objectives(class string) (held, kept uint64) {
	k, ok := p.live().index[class]
	if !ok {
		return 0, 0
	}
	// Kept first: it is never more than held.
	kept = p.objectives[k].kept.Load()
	return p.objectives[k].held.Load(), kept
}

// Tally is what a class's requests have come to since the process began.
type Tally struct {
	Outcomes   map[string]uint64 // by the label of headgate_requests_total
	Wait, TTFT Histogram
}

// Histogram counts what was at most as long as each of Bounds, and in the end all.
type Histogram []uint64

// Bounds are the upper ends of a Histogram's buckets but the last, in seconds.
func Bounds() []float64 { return secondsBuckets }

// Of is whose a Tally is.
type Of struct{ Pool, Class string }

// Tallies reads the metrics of all classes.
func (m *Metrics) Tallies() map[Of]*Tally {
	all := map[Of]*Tally{}
	each(m.requests, func(of *Tally, labels map[string]string, d *dto.Metric) {
		of.Outcomes[labels["outcome"]] = uint64(d.GetCounter().GetValue())
	}, all)
	each(m.wait, func(of *Tally, _ map[string]string, d *dto.Metric) { of.Wait = histogram(d) }, all)
	each(m.ttft, func(of *Tally, _ map[string]string, d *dto.Metric) { of.TTFT = histogram(d) }, all)
	return all
}

// each reads the series of a metric that has labels pool and class.
func each(c prometheus.Collector, read func(*Tally, map[string]string, *dto.Metric), all map[Of]*Tally) {
	ch := make(chan prometheus.Metric)
	go func() {
		c.Collect(ch)
		close(ch)
	}()
	for m := range ch {
		var d dto.Metric
		if m.Write(&d) != nil {
			continue // it has no value
		}
		labels := map[string]string{}
		for _, l := range d.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		of := Of{labels["pool"], labels["class"]}
		if all[of] == nil {
			all[of] = &Tally{Outcomes: map[string]uint64{}}
		}
		read(all[of], labels, &d)
	}
}

func histogram(d *dto.Metric) Histogram {
	h := d.GetHistogram()
	out := make(Histogram, 0, len(h.GetBucket())+1)
	for _, b := range h.GetBucket() {
		out = append(out, b.GetCumulativeCount())
	}
	return append(out, h.GetSampleCount())
}
