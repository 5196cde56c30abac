package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/admission"
)

// Metrics are what all pools count. Label values are configured names and the
// causes of package admission, so the number of series has a bound.
type Metrics struct {
	decision *prometheus.HistogramVec
	wait     *prometheus.HistogramVec
	ttft     *prometheus.HistogramVec
	duration *prometheus.HistogramVec
	requests *prometheus.CounterVec
	recalls  *prometheus.HistogramVec
	pieces   *prometheus.CounterVec
	warmed   *prometheus.CounterVec
	limits   *prometheus.CounterVec
	profiles *prometheus.CounterVec
	replans  *prometheus.HistogramVec
}

// secondsBuckets spans from a millisecond to ten minutes.
var secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// NewMetrics registers the metrics of all pools.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		decision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgate_decision_seconds",
			Help: "Time to decide about one request, apart from any wait. Moves with lock contention and the number of classes that wait.",
			// From a quarter of a microsecond: a decision is expected to be below one.
			Buckets: prometheus.ExponentialBuckets(250e-9, 2, 16),
		}, []string{"pool"}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgate_queue_wait_seconds", Help: "From a request's arrival to its admission.", Buckets: secondsBuckets,
		}, []string{"pool", "class"}),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgate_time_to_first_token_seconds", Help: "From a request's arrival to the engine's first output token.", Buckets: secondsBuckets,
		}, []string{"pool", "class"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgate_request_duration_seconds", Help: "From a request's arrival to its end, whatever that was.", Buckets: secondsBuckets,
		}, []string{"pool", "class"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_requests_total",
			Help: "Requests that have ended, by how: finished, a cause of failure, or the cause of a refusal.",
		}, []string{"pool", "class", "outcome"}),
		recalls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgate_recall_seconds",
			Help: "From the opening of a recall to one of its events: recall_granted, recall_served (the request it was opened for was admitted), recall_settled (what was ended for it is out; where nothing was, all that was lent), recall_closed (all is out that was lent); of that request dispatched, scheduled (where the engine does not tell, at the latest; with otlp_traces that moves after 30 s without a span) and first_token.", Buckets: secondsBuckets,
		}, []string{"pool", "class", "event"}),
	}
	m.pieces = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_pieces_total",
		Help: "Pieces of long prompts that were computed ahead of their request, by how they ended; each costs the engine a step and a token. One that failed lets its request start whole.",
	}, []string{"pool", "class", "outcome"})
	m.warmed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_warmed_tokens_total",
		Help: "Prompt tokens of pieces, without what an earlier piece of the same prompt had: what is in the engine's cache for their requests.",
	}, []string{"pool", "class"})
	m.limits = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_objectives_total",
		Help: "Answers held against each limit (ttft, tpot, e2e) of their objective, by whose limit it was (class, or request where it gave one of its own) and outcome: on_time or late. What failed is late; refusals and clients that left are in headgate_requests_total alone.",
	}, []string{"pool", "class", "limit", "by", "outcome"})
	m.profiles = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_replan_switches_total",
		Help: "Switches of an engine to a profile by how they ended: done, failed (the engine was taken back), given_up (before the engine was touched), or would, of a dry run.",
	}, []string{"pool", "profile", "outcome"})
	m.replans = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "headgate_replan_switch_seconds", Help: "What a switch to a profile that was done has taken, from the begin of its drain until the engine served again.", Buckets: secondsBuckets,
	}, []string{"pool", "profile"})
	r.MustRegister(m.decision, m.wait, m.ttft, m.duration, m.requests, m.recalls, m.pieces, m.warmed, m.limits, m.profiles, m.replans)
	return m
}

func (m *Metrics) decided(pool string, d time.Duration) {
	m.decision.WithLabelValues(pool).Observe(d.Seconds())
}

func (m *Metrics) waited(pool, class string, t admission.Time) {
	m.wait.WithLabelValues(pool, class).Observe(time.Duration(t).Seconds())
}

func (m *Metrics) first(pool, class string, d time.Duration) {
	m.ttft.WithLabelValues(pool, class).Observe(d.Seconds())
}

func (m *Metrics) finished(pool, class, outcome string, d time.Duration) {
	m.duration.WithLabelValues(pool, class).Observe(d.Seconds())
	m.requests.WithLabelValues(pool, class, outcome).Inc()
}

func (m *Metrics) piece(pool, class, outcome string, tokens int) {
	m.pieces.WithLabelValues(pool, class, outcome).Inc()
	m.warmed.WithLabelValues(pool, class).Add(float64(tokens))
}

func (m *Metrics) judged(pool, class, limit, by, outcome string) {
	// Both are there from the first answer on: a share of answers needs both, and one
	// that is not there is not 0.
	for _, o := range []string{"on_time", "late"} {
		c := m.limits.WithLabelValues(pool, class, limit, by, o)
		if o == outcome {
			c.Inc()
		}
	}
}

// plans has the counts of a profile's switches begin at 0: what begins at 1 has not
// increased.
func (m *Metrics) plans(pool, profile string) {
	for _, outcome := range []string{"done", "failed", "given_up"} {
		m.profiles.WithLabelValues(pool, profile, outcome)
	}
}

func (m *Metrics) refused(pool, class, cause string) {
	m.requests.WithLabelValues(pool, class, "rejected_"+cause).Inc()
}

func (m *Metrics) switched(pool, profile, outcome string, took time.Duration) {
	m.profiles.WithLabelValues(pool, profile, outcome).Inc()
	if outcome == "done" {
		m.replans.WithLabelValues(pool, profile).Observe(took.Seconds())
	}
}

func (m *Metrics) recall(pool, class, event string, after time.Duration) {
	m.recalls.WithLabelValues(pool, class, event).Observe(after.Seconds())
}

var (
	poolDesc = func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("headgate_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	descEnvelope = poolDesc("envelope", "What the pool's engines hold together; moves when an engine comes or goes.", "resource")
	descUsed     = poolDesc("class_used", "What the class's reservations hold now.", "class", "resource")
	descHold     = poolDesc("class_hold", "What the class keeps out of the others' reach: its floor while lending is closed, less while it lends.", "class", "resource")
	descFloor    = poolDesc("class_floor", "The class's floor.", "class", "resource")
	descQueue    = poolDesc("class_queue", "Requests of the class that wait.", "class")
	descLoans    = poolDesc("class_loans", "Holds of the class that are loans now.", "class")
	descLending  = poolDesc("class_lending_open", "1 while the class lends what it does not use.", "class")
	descForeign  = poolDesc("engine_foreign", "What the engine runs that was not sent from here, by its gauges and the ledger; 0 of an engine that a fleet shares, of which one replica can't tell.", "engine", "resource")
	descEngine   = poolDesc("engine_ready", "1 while the engine takes work.", "engine")
	descSwitch   = poolDesc("switch", "1 while an operator has the switch on: lending_paused, drain, bypass (nothing is decided).", "switch")
	descProfile  = poolDesc("replan_profile", "1 for the profile that the engine is in, or was last in.", "profile")
	descHeld     = poolDesc("replan_held", "Requests that wait for a profile that holds them.")
	descPromises = poolDesc("replan_promises", "Live sessions that were promised a longer context than every profile gives.")
	descGhosts   = poolDesc("ghosts", "Holds whose attempt is over and whose release is not confirmed.")

	descOffered  = poolDesc("offered_total", "Requests offered to admission.", "class")
	descAdmitted = poolDesc("admitted_total", "Admissions; one request may have several.", "class")
	descLent     = poolDesc("loans_total", "Admissions by which the class borrowed.", "class")
	descRecalls  = poolDesc("recalls_total", "Recalls opened for the class.", "class")
	descReclaims = poolDesc("reclaims_total", "Loans of the class that were ended by force.", "class")
	descRequeued = poolDesc("requeued_total", "Attempts of the class that were repeated.", "class")
	descLost     = poolDesc("ghosts_total", "Holds of the class that were freed without a confirmation.", "class")
	descWaste    = poolDesc("recall_waste_tokens_total", "Tokens of others' requests that engines compute again because the class recalled what it had lent.", "class")
	descTokens   = poolDesc("kv_tokens_total", "KV tokens of the class's holds: reserved at admission; consumed, refunded (reserved and not used) and overrun (used beyond) when they ended.", "class", "account")
)

// Collector reads the cores' own numbers when somebody asks.
type Collector struct{ pools func() []*Pool }

// NewCollector returns a collector of the pools that there are when it is asked.
func NewCollector(pools func() []*Pool) *Collector { return &Collector{pools} }

// Describe implements prometheus.Collector.
func (*Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descEnvelope, descUsed, descHold, descFloor, descQueue, descLoans, descLending, descForeign, descEngine, descGhosts, descSwitch, descProfile, descHeld, descPromises,
		descOffered, descAdmitted, descLent, descRecalls, descReclaims, descRequeued, descLost, descWaste, descTokens,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.pools() {
		p.collect(ch)
	}
}

func (p *Pool) collect(ch chan<- prometheus.Metric) {
	name := p.cfg.Name
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{name}, labels...)...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{name}, labels...)...)
	}
	amount := func(d *prometheus.Desc, v admission.AmountView, labels ...string) {
		gauge(d, float64(v.Slots), append(labels, admission.Slots.String())...)
		gauge(d, float64(v.KV), append(labels, admission.KV.String())...)
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for _, e := range p.Engines() {
		gauge(descEngine, flag(e.State == admission.Ready.String()), e.Name)
	}
	for which, state := range p.Switches() {
		gauge(descSwitch, flag(state.On), string(which))
	}
	if v := p.Plan(); v != nil {
		for i := range v.Profiles {
			gauge(descProfile, flag(v.Profiles[i].Name == v.Profile), v.Profiles[i].Name)
		}
		gauge(descHeld, float64(v.Held))
		gauge(descPromises, float64(v.Sessions))
	}
	s := p.Snapshot()
	if s == nil {
		return
	}
	amount(descEnvelope, s.Envelope)
	gauge(descGhosts, float64(s.Ghosts))
	gone := p.live().gone
	for i := range s.Engines {
		if i < len(gone) && gone[i] {
			continue // another may have its name
		}
		amount(descForeign, s.Engines[i].Foreign, s.Engines[i].Name)
	}
	for i := range s.Classes {
		c := &s.Classes[i]
		amount(descUsed, c.Used, c.Name)
		amount(descHold, c.Hold, c.Name)
		amount(descFloor, c.Floor, c.Name)
		gauge(descQueue, float64(c.Queue), c.Name)
		gauge(descLoans, float64(c.Loans), c.Name)
		gauge(descLending, flag(c.Lending), c.Name)
		counter(descOffered, float64(c.Counts.Offered), c.Name)
		counter(descAdmitted, float64(c.Counts.Admitted), c.Name)
		counter(descLent, float64(c.Counts.Loans), c.Name)
		counter(descRecalls, float64(c.Counts.Recalls), c.Name)
		counter(descReclaims, float64(c.Counts.Reclaims), c.Name)
		counter(descRequeued, float64(c.Counts.Requeued), c.Name)
		counter(descLost, float64(c.Counts.Ghosts), c.Name)
		counter(descWaste, float64(c.Counts.WasteTokens), c.Name)
		for account, n := range map[string]int64{
			"reserved": c.Counts.ReservedTokens, "consumed": c.Counts.ConsumedTokens,
			"refunded": c.Counts.RefundedTokens, "overrun": c.Counts.OverrunTokens,
		} {
			counter(descTokens, float64(n), c.Name, account)
		}
	}
}
