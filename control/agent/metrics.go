package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/control"
	"headgate/control/store"
)

// Metrics are those of one process: an agent's, and a leader's. A nil *Metrics counts
// nothing.
type Metrics struct {
	expires  atomic.Int64 // unix ns
	takenAt  *prometheus.GaugeVec
	toldAt   *prometheus.GaugeVec
	refusals *prometheus.CounterVec
	losses   prometheus.Counter
	errors   *prometheus.CounterVec
	answered prometheus.Gauge
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
		toldAt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "headgate_fleet_told_timestamp_seconds", Help: "When the replica was last told by the leader what the others do; the time since is long, too, where nothing changes.",
		}, []string{"pool"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_grants_refused_total", Help: "Grants that did not count: of an old epoch, revision or lease, or too late.",
		}, []string{"pool"}),
		losses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgate_fleet_leases_lost_total", Help: "Leases of this replica that ended, or could not be had.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_fleet_store_errors_total", Help: "What the fleet's store was asked and did not do, by operation: it was out of reach, too slow, or refused it.",
		}, []string{"operation"}),
		answered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "headgate_fleet_store_answered_timestamp_seconds", Help: "When the fleet's store last did what this process asked of it, renewals of leases among that; grants are in force until the lease ends.",
		}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "headgate_fleet_leader_epoch", Help: "The epoch in which this process leads, 0: it does not.",
		}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgate_fleet_fenced_writes_total", Help: "Writes of this process that the store refused because another leads, or because its lease was over.",
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
	for _, operation := range operations {
		m.errors.WithLabelValues(operation)
	}
	reg.MustRegister(m.takenAt, m.toldAt, m.refusals, m.losses, m.errors, m.answered, m.epoch, m.fenced, m.handoffs, margin)
	return m
}

// operations are what the store is asked.
var operations = []string{"join", "leave", "report", "campaign", "resign", "write", "remove", "tell", "publish", "state"}

// Store counts what became of an operation of the store.
func (m *Metrics) Store(operation string, err error) {
	if m == nil || errors.Is(err, context.Canceled) {
		return
	}
	fenced := errors.Is(err, store.ErrFenced)
	if fenced {
		m.fenced.Inc()
	} else if err != nil {
		m.errors.WithLabelValues(operation).Inc()
		return
	}
	m.answered.SetToCurrentTime()
}

func (m *Metrics) renewed(until time.Time) {
	if m != nil {
		m.expires.Store(until.UnixNano())
		m.answered.SetToCurrentTime()
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

func (m *Metrics) heard(n *control.News) {
	if m != nil {
		m.toldAt.WithLabelValues(n.Pool).SetToCurrentTime()
	}
}

func (m *Metrics) refused(pool string) {
	if m != nil {
		m.refusals.WithLabelValues(pool).Inc()
	}
}

func (m *Metrics) leads(epoch uint64) {
	if m != nil {
		m.epoch.Set(float64(epoch))
	}
}

func (m *Metrics) handoff(h *control.Handoff) {
	if m != nil {
		m.handoffs.WithLabelValues(h.Pool, string(h.Stage)).Observe(h.Since.Seconds())
	}
}
