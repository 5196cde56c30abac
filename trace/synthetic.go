package trace

import (
	"math"
	"time"
)

// What a public log is like, where the log itself is not at hand: arrivals and
// lengths by the statistics that were published of it, and by nothing else of it. A
// trace that is drawn so is not that log, and its profile's name says "like".

// lengths is a distribution of tokens by three of its quantiles. Between them, and
// from 1 token up to the median, it is even, and it ends as far beyond the last as
// that is beyond the one before: of all that nothing was published.
type lengths struct{ p50, p90, p99 float64 }

// at is the length that a share of u do not exceed.
func (l lengths) at(u float64) int {
	x, y, p, q := 1.0, l.p50, 0.0, 0.5
	switch {
	case u >= 0.99:
		x, y, p, q = l.p99, 2*l.p99-l.p90, 0.99, 1
	case u >= 0.9:
		x, y, p, q = l.p90, l.p99, 0.9, 0.99
	case u >= 0.5:
		x, y, p, q = l.p50, l.p90, 0.5, 0.9
	}
	return int(math.Round(x + float64((y-x)*(u-p)/(q-p))))
}

// sizes are a class's lengths. A prompt's and its answer's are drawn apart: in the
// logs they hardly depend on each other.
type sizes struct{ prompt, output lengths }

var (
	// azureConversation is the conversation log of the Azure LLM inference dataset, 2023.
	azureConversation = sizes{lengths{1020, 2735, 4142}, lengths{129, 424, 601}}
	// arxivSummaries is arXiv summarisation as batch work.
	arxivSummaries = sizes{lengths{2730, 3702, 3934}, lengths{167, 372, 3273}}
)

// Modulation of the conversation log's rate. A Poisson process whose rate is
// redrawn after times of a mean of modulationMean, evenly between the factors 1 -
// modulationSpread and 1 + modulationSpread, has a variance of the rate of
// spread^2 / 3. At 5.5 requests a second counts then have an index of dispersion of
// 1.4 in windows of 1 s and of 21 in those of 60 s, and gaps a coefficient of
// variation of 1.08; published are 1.4, 21 and 1.09.
const (
	modulationMean   = 105.0 // s
	modulationSpread = 0.467
)

// modulated returns the times of such a process in a window.
func modulated(seed uint32, label string, rps float64, startMs, durationMs int) []time.Duration {
	if rps <= 0 {
		return nil
	}
	s := newStream(seed, label+":arrivals")
	// Conversions keep products from being fused into sums, as in arrivals.
	exponential := func() float64 { return -math.Log(1 - s.unit()) }
	at, end := float64(startMs), float64(startMs+durationMs)
	until, perMs := at, 0.0
	need := exponential()
	var out []time.Duration
	for {
		for at+float64(need/perMs) >= until { // also where the rate is not drawn yet
			need -= float64((until - at) * perMs)
			if at = until; at >= end {
				return out
			}
			perMs = float64(rps/1000) * (1 + float64(modulationSpread*float64(2*s.unit()-1)))
			until = at + float64(modulationMean*1000*exponential())
		}
		if at += float64(need / perMs); at >= end {
			return out
		}
		if a := roundMs(at); a < ms(startMs+durationMs) {
			out = append(out, a)
		}
		need = exponential()
	}
}

// resize gives an entry lengths of its class's distribution. Nothing is declared,
// as in a recorded log.
func (e *Entry) resize(seed uint32, z sizes) {
	s := newStream(seed, e.ID+":lengths")
	e.InputChars, e.MaxTokens = 0, 0
	e.PromptTokens, e.Output = z.prompt.at(s.unit()), z.output.at(s.unit())
}
