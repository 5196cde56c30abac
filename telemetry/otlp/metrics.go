package otlp

import (
	"context"
	"time"

	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// pushMetrics exports the registry every so often, and once more at the end.
func (x *Exporter) pushMetrics(ctx, hard context.Context) {
	tick := time.NewTicker(x.cfg.MetricsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			x.push(ctx, hard)
		case <-ctx.Done():
			x.push(ctx, hard)
			return
		}
	}
}

func (x *Exporter) push(ctx, hard context.Context) {
	families, err := x.cfg.Gather.Gather()
	if err != nil {
		// What could be gathered is there all the same, as on /metrics.
		x.cfg.Log.Warn("some metrics can't be gathered", "err", err)
	}
	metrics, points := convert(families, x.cfg.Start, time.Now())
	if points == 0 {
		return
	}
	x.export(ctx, hard, &x.metrics, points, &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: x.resource, ScopeMetrics: []*metricspb.ScopeMetrics{{Scope: x.scope(), Metrics: metrics}},
	}}})
}

const cumulative = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE

// convert makes OTLP's metrics of a registry's, by the same names: counters are
// monotonic sums, histograms have the buckets they are scraped with.
func convert(families []*dto.MetricFamily, start, now time.Time) (out []*metricspb.Metric, points int) {
	at := nanos(now)
	for _, f := range families {
		m := &metricspb.Metric{Name: f.GetName(), Description: f.GetHelp()}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			sum := &metricspb.Sum{AggregationTemporality: cumulative, IsMonotonic: true}
			for _, s := range f.Metric {
				sum.DataPoints = append(sum.DataPoints, value(s, s.GetCounter().GetValue(), began(s.GetCounter().GetCreatedTimestamp(), start), at))
			}
			m.Data = &metricspb.Metric_Sum{Sum: sum}
		case dto.MetricType_GAUGE, dto.MetricType_UNTYPED:
			gauge := &metricspb.Gauge{}
			for _, s := range f.Metric {
				gauge.DataPoints = append(gauge.DataPoints, value(s, s.GetGauge().GetValue()+s.GetUntyped().GetValue(), 0, at))
			}
			m.Data = &metricspb.Metric_Gauge{Gauge: gauge}
		case dto.MetricType_HISTOGRAM:
			h := &metricspb.Histogram{AggregationTemporality: cumulative}
			for _, s := range f.Metric {
				h.DataPoints = append(h.DataPoints, histogram(s, start, at))
			}
			m.Data = &metricspb.Metric_Histogram{Histogram: h}
		case dto.MetricType_SUMMARY:
			summary := &metricspb.Summary{}
			for _, s := range f.Metric {
				summary.DataPoints = append(summary.DataPoints, quantiles(s, start, at))
			}
			m.Data = &metricspb.Metric_Summary{Summary: summary}
		default:
			continue // there is no other that a registry of ours holds
		}
		points += len(f.Metric)
		out = append(out, m)
	}
	return out, points
}

// began is when a counter began: since the process did where it does not say.
func began(created *timestamppb.Timestamp, start time.Time) uint64 {
	if created != nil {
		return nanos(created.AsTime())
	}
	return nanos(start)
}

func value(m *dto.Metric, v float64, from, at uint64) *metricspb.NumberDataPoint {
	return &metricspb.NumberDataPoint{
		Attributes: labels(m), StartTimeUnixNano: from, TimeUnixNano: at, Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: v},
	}
}

// histogram takes the counts of buckets apart, which are sums in a registry.
func histogram(m *dto.Metric, start time.Time, at uint64) *metricspb.HistogramDataPoint {
	h := m.GetHistogram()
	sum, below := h.GetSampleSum(), uint64(0)
	p := &metricspb.HistogramDataPoint{
		Attributes: labels(m), StartTimeUnixNano: began(h.GetCreatedTimestamp(), start), TimeUnixNano: at, Count: h.GetSampleCount(), Sum: &sum,
	}
	for _, b := range h.Bucket {
		p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
		p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	p.BucketCounts = append(p.BucketCounts, h.GetSampleCount()-below)
	return p
}

func quantiles(m *dto.Metric, start time.Time, at uint64) *metricspb.SummaryDataPoint {
	s := m.GetSummary()
	p := &metricspb.SummaryDataPoint{
		Attributes: labels(m), StartTimeUnixNano: began(s.GetCreatedTimestamp(), start), TimeUnixNano: at, Count: s.GetSampleCount(), Sum: s.GetSampleSum(),
	}
	for _, q := range s.Quantile {
		p.QuantileValues = append(p.QuantileValues, &metricspb.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
	}
	return p
}

func labels(m *dto.Metric) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, len(m.Label))
	for i, l := range m.Label {
		out[i] = text(l.GetName(), l.GetValue())
	}
	return out
}
