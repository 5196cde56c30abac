package journal

import "github.com/prometheus/client_golang/prometheus"

var (
	writtenDesc = prometheus.NewDesc("headgate_journal_written_total",
		"Events that the journal's file took.", nil, nil)
	droppedDesc = prometheus.NewDesc("headgate_journal_dropped_total",
		"Events that the journal lost, because its buffer was full or its file did not take them. Moves when the disk is slow or full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (w *Writer) Describe(ch chan<- *prometheus.Desc) { ch <- writtenDesc; ch <- droppedDesc }

// Collect implements prometheus.Collector: it reads Stats, so that appending
// costs no metric.
func (w *Writer) Collect(ch chan<- prometheus.Metric) {
	s := w.Stats()
	ch <- prometheus.MustNewConstMetric(writtenDesc, prometheus.CounterValue, float64(s.Written))
	ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(s.Dropped))
}
