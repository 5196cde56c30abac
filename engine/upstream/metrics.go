package upstream

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are samples in Prometheus' text format, by name.
type Metrics map[string][]*dto.Metric

// ParseMetrics reads the named samples of an exposition and passes over all
// others unread: an engine exports a thousand lines of histograms, which need
// be neither well formed nor paid for.
func ParseMetrics(body []byte, names ...string) (Metrics, error) {
	var kept bytes.Buffer
	for line := range bytes.Lines(body) {
		for _, name := range names {
			if rest, ok := bytes.CutPrefix(line, []byte(name)); ok && len(rest) > 0 && (rest[0] == '{' || rest[0] == ' ' || rest[0] == '\t') {
				kept.Write(bytes.TrimRight(line, "\r\n"))
				kept.WriteByte('\n')
				break
			}
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	m := Metrics{}
	for name, f := range families {
		m[name] = f.Metric
	}
	return m, nil
}

// Sum adds up the samples of the first of the names that has any; -1: none of
// them has one that is a number from 0. The names are a metric's present one and
// its former ones, of which engines export several at a time in the releases
// between.
func (m Metrics) Sum(names ...string) float64 {
	values := m.Values(names...)
	if len(values) == 0 {
		return -1
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum
}

// Values are the samples of the first of the names that has any, without those
// that are no number from 0.
func (m Metrics) Values(names ...string) []float64 {
	for _, name := range names {
		var values []float64
		for _, s := range m[name] {
			if v := s.GetUntyped().GetValue(); v >= 0 && !math.IsInf(v, 0) {
				values = append(values, v)
			}
		}
		if len(values) > 0 {
			return values
		}
	}
	return nil
}

// Whole is v as an integer; -1 for less than 0.
func Whole(v float64) int {
	const most = 1 << 53 // where float64 stops telling integers apart
	if !(v >= 0) {
		return -1
	}
	return int(math.Round(min(v, most)))
}

// Label is the value of a sample's label; "": it has none.
func Label(s *dto.Metric, name string) string {
	for _, l := range s.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// LabelCount is a label that is a count; -1: it is none.
func LabelCount(s *dto.Metric, name string) int {
	n, err := strconv.ParseInt(Label(s, name), 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return int(n)
}
