package agent

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/control"
)

// Metrics are those of one process: an agent's, and a leader's. A nil *Metrics counts
// nothing.
type Metrics struct {
	expires  atomic.Int64 // unix ns
	takenAt  *prometheus.GaugeVec
	refusals *prometheus.CounterVec
	losses   prometheus.Counter
	reports  *prometheus.CounterVec
	epoch    prometheus.Gauge
	fenced   prometheus.Counter
	handoffs *prometheus.HistogramVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		takenAt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "headgate_grant_taken_timestamp_seconds", Help: "When the grant in force was taken; its age is the time since.",
		}, []string{"pool"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_grants_refused_total", Help: "Grants that did not count: of an old epoch, revision or lease, or too late.",
		}, []string{"pool"}),
		losses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgate_fleet_leases_lost_total", Help: "Leases of this replica that ended, or could not be had.",
		}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_fleet_reports_total", Help: "Reports written to the store, by result.",
		}, []string{"result"}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "headgate_fleet_leader_epoch", Help: "The epoch in which this process leads, 0: it does not.",
		}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgate_fleet_fenced_writes_total", Help: "Writes of this process that the store refused because another leads.",
		}),
		handoffs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgate_handoff_seconds", Help: "From the opening of a handoff to each of its stages.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"pool", "stage"}),
	}
	margin := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "headgate_fleet_lease_margin_seconds", Help: "For how long the replica's lease surely lasts, not counting the clock's drift; below 0 it is over.",
	}, func() float64 {
		if at := m.expires.Load(); at != 0 {
			return time.Until(time.Unix(0, at)).Seconds()
		}
		return 0
	})
	reg.MustRegister(m.takenAt, m.refusals, m.losses, m.reports, m.epoch, m.fenced, m.handoffs, margin)
	return m
}

func (m *Metrics) renewed(until time.Time) {
	if m != nil {
		m.expires.Store(until.UnixNano())
	}
}

func (m *Metrics) lost() {
	if m != nil {
		m.losses.Inc()
	}
}

func (m *Metrics) took(g *control.Grant) {
	if m != nil {
		m.takenAt.WithLabelValues(g.Pool).SetToCurrentTime()
	}
}

func (m *Metrics) refused(pool string) {
	if m != nil {
		m.refusals.WithLabelValues(pool).Inc()
	}
}

func (m *Metrics) reported(err error) {
	if m == nil {
		return
	}
	if err != nil {
		m.reports.WithLabelValues("failed").Inc()
		return
	}
	m.reports.WithLabelValues("written").Inc()
}

func (m *Metrics) leads(epoch uint64) {
	if m != nil {
		m.epoch.Set(float64(epoch))
	}
}

func (m *Metrics) fence() {
	if m != nil {
		m.fenced.Inc()
	}
}

func (m *Metrics) handoff(h *control.Handoff) {
	if m != nil {
		m.handoffs.WithLabelValues(h.Pool, string(h.Stage)).Observe(h.Since.Seconds())
	}
}
