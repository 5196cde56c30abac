package trace

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestSyntheticIsLikeItsLogs draws sixty traces and compares what they are like with
// what was published of the logs.
func TestSyntheticIsLikeItsLogs(t *testing.T) {
	var gaps []float64
	var second, minute dispersion
	tokens := map[string][][2]int{}
	requests, seconds := 0, 0.0
	for seed := range uint32(60) {
		tr := generate(t, "azure-like-v1", seed)
		last := time.Duration(-1)
		second.begin(time.Second, tr.Workload.Duration())
		minute.begin(time.Minute, tr.Workload.Duration())
		for i := range tr.Entries {
			e := &tr.Entries[i]
			tokens[e.Class] = append(tokens[e.Class], [2]int{e.PromptTokens, e.Output})
			if e.Class != Interactive {
				continue
			}
			if last >= 0 {
				gaps = append(gaps, (e.Arrival - last).Seconds())
			}
			last = e.Arrival
			second.at(e.Arrival)
			minute.at(e.Arrival)
			requests++
		}
		seconds += tr.Workload.Duration().Seconds()
	}
	near := func(what string, have, want, within float64) {
		t.Helper()
		if math.Abs(have/want-1) > within {
			t.Errorf("%s is %.4g, published is %.4g", what, have, want)
		}
	}
	near("the rate", float64(requests)/seconds, 5.5, 0.03)
	near("the gaps' coefficient of variation", variation(gaps), 1.09, 0.03)
	near("the index of dispersion at 1 s", second.index(), 1.4, 0.05)
	near("the index of dispersion at 60 s", minute.index(), 21, 0.15)
	for _, c := range []struct {
		class string
		want  sizes
	}{{Interactive, azureConversation}, {Batch, arxivSummaries}} {
		for k, l := range []lengths{c.want.prompt, c.want.output} {
			var n []int
			for _, pair := range tokens[c.class] {
				n = append(n, pair[k])
			}
			slices.Sort(n)
			for _, q := range []struct{ share, want float64 }{{0.5, l.p50}, {0.9, l.p90}, {0.99, l.p99}} {
				// A tenth of the summaries are much longer than the rest: their quantiles scatter.
				near(c.class, float64(n[int(q.share*float64(len(n)))]), q.want, 0.1)
			}
		}
		if r := correlation(tokens[c.class]); math.Abs(r) > 0.02 {
			t.Errorf("%s: prompts and answers correlate by %.3f", c.class, r)
		}
	}
}

// The batch of a trace is the same alone, so that it can be laid under another log.
func TestSummariesAreTheSameAlone(t *testing.T) {
	both, alone := generate(t, "azure-like-v1", 3), generate(t, "summaries-like-v1", 3)
	k := 0
	for i := range both.Entries {
		if e := both.Entries[i]; e.Class == Batch {
			if a := alone.Entries[k]; a.ID != e.ID || a.Arrival != e.Arrival || a.PromptTokens != e.PromptTokens || a.Output != e.Output {
				t.Fatalf("%+v, alone %+v", e, a)
			}
			k++
		}
	}
	if k < 1500 || alone.Planned().Interactive != 0 {
		t.Errorf("%d batch requests of both; alone: %+v", k, alone.Planned())
	}
}

// dispersion counts arrivals in windows.
type dispersion struct {
	window time.Duration
	first  int // of the trace's windows
	counts []float64
}

func (d *dispersion) begin(window, length time.Duration) {
	d.window, d.first = window, len(d.counts)
	d.counts = append(d.counts, make([]float64, length/window)...)
}

func (d *dispersion) at(at time.Duration) { d.counts[d.first+int(at/d.window)]++ }

func (d *dispersion) index() float64 {
	mean, variance := moments(d.counts)
	return variance / mean
}

func variation(v []float64) float64 {
	mean, variance := moments(v)
	return math.Sqrt(variance) / mean
}

func moments(v []float64) (mean, variance float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		variance += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, variance
}

func correlation(pairs [][2]int) float64 {
	var a, b []float64
	for _, p := range pairs {
		a, b = append(a, float64(p[0])), append(b, float64(p[1]))
	}
	ma, va := moments(a)
	mb, vb := moments(b)
	sum := 0.0
	for i := range a {
		sum += (a[i] - ma) * (b[i] - mb)
	}
	return sum / float64(len(a)) / math.Sqrt(va*vb)
}
