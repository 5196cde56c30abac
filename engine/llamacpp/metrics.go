package llamacpp

import "headgate/engine/upstream"

// metrics is what /metrics says; -1: it does not. The server averages its rates
// since the last scrape of anybody, so only counts and counters are of use.
type metrics struct {
	processing, deferred int
	progress             int64
}

var noMetrics = metrics{-1, -1, -1}

const (
	processing = "llamacpp:requests_processing"
	deferred   = "llamacpp:requests_deferred"
	prompted   = "llamacpp:prompt_tokens_total"
	predicted  = "llamacpp:tokens_predicted_total"
)

func parseMetrics(body []byte) (metrics, error) {
	m, err := upstream.ParseMetrics(body, processing, deferred, prompted, predicted)
	if err != nil {
		return noMetrics, err
	}
	l := noMetrics
	l.processing = upstream.Whole(m.Sum(processing))
	l.deferred = upstream.Whole(m.Sum(deferred))
	if p, g := m.Sum(prompted), m.Sum(predicted); p >= 0 || g >= 0 {
		l.progress = int64(upstream.Whole(max(0, p) + max(0, g)))
	}
	return l, nil
}
