package batch

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of a worker. What there is to do is the store's, so all replicas show
// the same of it. A nil *Metrics counts nothing.
type Metrics struct {
	batches *prometheus.GaugeVec
	items   *prometheus.GaugeVec
	oldest  *prometheus.GaugeVec
	done    *prometheus.CounterVec
	tokens  *prometheus.CounterVec
	wasted  *prometheus.CounterVec
	served  *prometheus.CounterVec
	lost    *prometheus.CounterVec
	again   *prometheus.CounterVec
	fenced  prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		batches: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "headgate_batch_unfinished", Help: "Batches that have not ended, by status.",
		}, []string{"status"}),
		items: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "headgate_batch_items", Help: "Items of batches in progress that are not done: ready to run, waiting for their next attempt, or claimed by a worker.",
		}, []string{"class", "state"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "headgate_batch_oldest_timestamp_seconds", Help: "When the oldest batch was made that has items to run; absent while there is none.",
		}, []string{"class"}),
		done: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_batch_items_done_total", Help: "Items that got their line from this process, by what they ran on at last: a loan, their class's own floor, or nothing.",
		}, []string{"class", "capacity", "result"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_batch_output_tokens_total", Help: "Tokens generated of items that are done, by what they ran on at last.",
		}, []string{"class", "capacity"}),
		wasted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_batch_wasted_tokens_total", Help: "Tokens that were generated for items and are in no answer: after the last checkpoint before an item was put back, or of one that was given up, cancelled or expired.",
		}, []string{"class"}),
		served: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_batch_tenant_output_tokens_total", Help: "As headgate_batch_output_tokens_total, by tenant; those that only claims of tokens name are one, without a name.",
		}, []string{"tenant", "capacity"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_batch_tenant_wasted_tokens_total", Help: "As headgate_batch_wasted_tokens_total, by tenant in the same way.",
		}, []string{"tenant"}),
		again: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_batch_items_put_back_total", Help: "Items that were put back: they failed and are tried again, were refused by admission, or were stopped.",
		}, []string{"class", "cause"}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgate_batch_items_fenced_total", Help: "Items of which the result was not written because another worker had taken them over: this one was too late with its lease.",
		}),
	}
	for _, s := range []Status{Validating, InProgress, Finalizing, Cancelling} {
		m.batches.WithLabelValues(string(s))
	}
	reg.MustRegister(m.batches, m.items, m.oldest, m.done, m.tokens, m.wasted, m.served, m.lost, m.again, m.fenced)
	return m
}

// TenantStatus is what a tenant has of batches, and what this process did for it.
type TenantStatus struct {
	Tenant string
	// Backlog are items that are not done, Running those of them that are claimed. Oldest is
	// when the oldest batch was made that has some.
	Backlog, Running int64
	Oldest           time.Time
	// Since the process began: items that got their line, those of them that ran on a loan at
	// last, tokens of their answers, those of them on a loan, and what was generated and is in
	// no answer.
	Done, Failed, OnLoans, Output, OutputOnLoans, Wasted int64
}

// tenantCount is one that is counted.
type tenantCount struct {
	TenantStatus
	label string // in metrics
}

// counters are a worker's own, by tenant, beside its metrics.
type counters struct {
	metrics *Metrics
	named   func(tenant string) bool // nil: none is
	mu      sync.Mutex
	tenants map[string]*tenantCount
	classes map[string]bool // that were shown
}

func (c *counters) tenantLocked(name string) *tenantCount {
	if c.tenants == nil {
		c.tenants = map[string]*tenantCount{}
	}
	t := c.tenants[name]
	if t == nil {
		t = &tenantCount{TenantStatus: TenantStatus{Tenant: name}}
		if c.named != nil && c.named(name) {
			t.label = name
		}
		c.tenants[name] = t
	}
	return t
}

// waiting shows what there is to run.
func (c *counters) waiting(all []Waiting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tenants {
		t.Backlog, t.Running, t.Oldest = 0, 0, time.Time{}
	}
	type shown struct {
		ready, waits, running int64
		oldest                time.Time
	}
	classes := map[string]*shown{}
	for class := range c.classes {
		classes[class] = &shown{}
	}
	for _, w := range all {
		t, s := c.tenantLocked(w.Tenant), classes[w.Class]
		if s == nil {
			s = &shown{}
			classes[w.Class] = s
		}
		left := w.Total - w.Done
		t.Backlog += left
		t.Running += w.Running
		s.ready += w.Ready
		s.running += w.Running
		s.waits += left - w.Ready - w.Running
		for _, oldest := range []*time.Time{&t.Oldest, &s.oldest} {
			if left > 0 && (oldest.IsZero() || w.Created.Before(*oldest)) {
				*oldest = w.Created
			}
		}
	}
	if c.metrics == nil {
		return
	}
	if c.classes == nil {
		c.classes = map[string]bool{}
	}
	for class, s := range classes {
		c.classes[class] = true
		c.metrics.items.WithLabelValues(class, "ready").Set(float64(s.ready))
		c.metrics.items.WithLabelValues(class, "waiting").Set(float64(s.waits))
		c.metrics.items.WithLabelValues(class, "claimed").Set(float64(s.running))
		if s.oldest.IsZero() {
			c.metrics.oldest.DeleteLabelValues(class)
		} else {
			c.metrics.oldest.WithLabelValues(class).Set(float64(s.oldest.UnixMilli()) / 1000)
		}
	}
}

func (c *counters) unfinished(all []*Batch) {
	if c.metrics == nil {
		return
	}
	n := map[Status]int{Validating: 0, InProgress: 0, Finalizing: 0, Cancelling: 0}
	for _, b := range all {
		n[b.Status]++
	}
	for status, n := range n {
		c.metrics.batches.WithLabelValues(string(status)).Set(float64(n))
	}
}

// ended counts an item that was written down, or was not because it is fenced.
func (c *counters) ended(out write, fenced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.metrics
	if fenced {
		if m != nil {
			m.fenced.Inc()
		}
		return
	}
	t := c.tenantLocked(out.Tenant)
	wasted := out.wasted()
	t.Wasted += wasted
	if m != nil {
		m.wasted.WithLabelValues(out.Class).Add(float64(wasted))
		m.lost.WithLabelValues(t.label).Add(float64(wasted))
	}
	if out.retry != nil {
		if m != nil {
			m.again.WithLabelValues(out.Class, out.became()).Inc()
		}
		return
	}
	o, capacity := out.outcome, "none"
	if out.answer != nil {
		capacity = "floor"
		if out.answer.Loan {
			capacity = "loan"
		}
	}
	t.Done++
	if o.Failed {
		t.Failed++
	}
	t.Output += o.Output
	if capacity == "loan" {
		t.OnLoans++
		t.OutputOnLoans += o.Output
	}
	if m != nil {
		m.done.WithLabelValues(out.Class, capacity, out.became()).Inc()
		m.tokens.WithLabelValues(out.Class, capacity).Add(float64(o.Output))
		m.served.WithLabelValues(t.label, capacity).Add(float64(o.Output))
	}
}

// Tenants tells what tenants have, by name.
func (w *Worker) Tenants() []TenantStatus {
	c := &w.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []TenantStatus
	for _, t := range c.tenants {
		all = append(all, t.TenantStatus)
	}
	slices.SortFunc(all, func(x, y TenantStatus) int { return cmp.Compare(x.Tenant, y.Tenant) })
	return all
}
