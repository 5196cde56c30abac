package simengine

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// driver runs an engine over a list of arrivals and keeps what a client would
// measure.
type driver struct {
	t      testing.TB
	e      *Engine
	events []Event
}

// timing is one request's, in ms from its arrival, client overhead included.
type timing struct{ ttft, latency float64 }

type arrival struct {
	at  Time
	req Request
}

func ms(v float64) Time { return Time(math.Round(v * 1e6)) }

func newDriver(t testing.TB, cfg Config) *driver {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &driver{t: t, e: e}
}

// until lets everything happen that is due up to now.
func (d *driver) until(now Time) { d.events = d.e.Advance(now, d.events) }

// drain runs until the engine is idle.
func (d *driver) drain() {
	for {
		at, ok := d.e.Next()
		if !ok {
			return
		}
		d.until(at)
	}
}

// run submits arrivals, which are in order of time, and drains.
func (d *driver) run(arrivals []arrival) []timing {
	d.t.Helper()
	for i, a := range arrivals {
		for {
			if at, ok := d.e.Next(); !ok || at >= a.at {
				break
			}
			at, _ := d.e.Next()
			d.until(at)
		}
		a.req.Tag = uint64(i)
		if _, err := d.e.Submit(a.at, a.req); err != nil {
			d.t.Fatal(err)
		}
	}
	d.drain()
	times := make([]timing, len(arrivals))
	overhead := d.e.cfg.Model.Overhead
	for _, ev := range d.events {
		since := float64(ev.At-arrivals[ev.Tag].at)/1e6 + overhead
		switch {
		case ev.Kind == Generated && ev.Output == 1:
			times[ev.Tag].ttft = since
		case ev.Kind == Finished:
			times[ev.Tag].latency = since
		}
	}
	return times
}

// promptTokens is the published host's tokenizer: 118, 207 and 1,607 tokens for
// 400, 800 and 7,100 characters.
func promptTokens(chars int) int { return int(math.Round(29 + 0.2222*float64(chars))) }

// TestStepChecks compares the model with what was measured on the published
// host, step by step, within 4 %. A figure that was published as "about" or as
// a range is compared with its middle.
func TestStepChecks(t *testing.T) {
	const interactive, batch = 118, 1607
	if promptTokens(400) != interactive || promptTokens(800) != 207 || promptTokens(7100) != batch {
		t.Fatalf("prompt tokens of 400, 800, 7100 chars: %d, %d, %d", promptTokens(400), promptTokens(800), promptTokens(7100))
	}
	m := DefaultModel()
	step := func(w work) float64 { return float64(m.stepTime(w, 0, 1)) / 1e6 }
	alone := func(at float64, prompt, output int) timing {
		return newDriver(t, DefaultConfig()).run([]arrival{{ms(at), Request{Synthetic: prompt, MaxTokens: output}}})[0]
	}
	warm, idle := alone(1000, interactive, 16), alone(10_000, interactive, 16)
	long := alone(10_000, batch, 64)
	for _, c := range []struct {
		check           string
		model, observed float64
	}{
		{"prefill step of 1,607 tokens", step(work{prefill: batch}), 2900},
		{"decode step, 1 sequence at 126", step(work{decodes: 1, context: 126}), 64.5},
		{"decode step, 1 sequence at 1,640", step(work{decodes: 1, context: 1640}), 69},
		{"decode step, 3 sequences at 1,640", step(work{decodes: 3, context: 3 * 1640}), 120},
		{"interactive alone, warm: TTFT", warm.ttft, 332},
		{"interactive alone, warm: latency", warm.latency, 1241},
		{"interactive alone, after idle: TTFT", idle.ttft, 455},
		{"interactive alone, after idle: latency", idle.latency, 1360},
		{"batch alone: TTFT", long.ttft, 2961},
		{"batch alone: latency", long.latency, 7245},
	} {
		off := (c.model - c.observed) / c.observed
		t.Logf("%-40s model %8.1f ms  observed %8.1f ms  %+5.1f %%", c.check, c.model, c.observed, 100*off)
		if math.Abs(off) > 0.04 {
			t.Errorf("%s: model %.1f ms, observed %.1f ms: off by %.1f %%, allowed 4 %%", c.check, c.model, c.observed, 100*off)
		}
	}
}

// armRun is one published run of one arm with its clients' figures.
type armRun struct {
	Run         string `json:"run"`
	Arm         string `json:"arm"`
	Seed        int    `json:"seed"`
	TraceHash   string `json:"trace_hash"`
	Preemptions int64  `json:"engine_preemptions"`
	Requests    []struct {
		ID        string  `json:"id"`
		Class     string  `json:"class"`
		Arrival   float64 `json:"arrival_ms"`
		Chars     int     `json:"input_chars"`
		MaxTokens int     `json:"max_tokens"`
		TTFT      float64 `json:"ttft_ms"`
		Latency   float64 `json:"latency_ms"`
	} `json:"requests"`
}

// unsteady is the published run whose host did not keep one speed: the same
// three prefills took 10 % longer in it than in the FCFS run of the same seed
// and version, before the policies differ. It is replayed and shown, not judged.
const unsteady = "first-priority-seed-3.json"

// TestPublishedRuns replays the published direct arm-runs that have figures per
// request, in virtual time.
func TestPublishedRuns(t *testing.T) {
	paths, err := filepath.Glob("testdata/published/*.json")
	if err != nil || len(paths) != 4 {
		t.Fatalf("published runs: %v, %v: want 4", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var run armRun
			if err := json.Unmarshal(data, &run); err != nil {
				t.Fatal(err)
			}
			cfg := DefaultConfig()
			cfg.Policy = map[string]Policy{"vllm-fcfs": FCFS, "vllm-priority": Priority}[run.Arm]
			priority := map[string]int{"interactive": 0, "batch": 10}
			arrivals := make([]arrival, len(run.Requests))
			for i, r := range run.Requests {
				arrivals[i] = arrival{ms(r.Arrival), Request{Synthetic: promptTokens(r.Chars), MaxTokens: r.MaxTokens, Priority: priority[r.Class]}}
			}
			d := newDriver(t, cfg)
			times := d.run(arrivals)
			ttft := make([]float64, len(times))
			latency := make([]float64, len(times))
			for i, r := range run.Requests {
				ttft[i] = math.Abs(times[i].ttft - r.TTFT)
				latency[i] = math.Abs(times[i].latency - r.Latency)
				t.Logf("%-22s TTFT %8.0f (%8.0f)  latency %8.0f (%8.0f)", r.ID, times[i].ttft, r.TTFT, times[i].latency, r.Latency)
			}
			t.Logf("median absolute error: TTFT %.0f ms, latency %.0f ms; preemptions %d (published %d)", median(ttft), median(latency), d.e.Stats().Preemptions, run.Preemptions)
			if filepath.Base(path) == unsteady {
				return
			}
			if m := median(ttft); m > 250 {
				t.Errorf("median absolute TTFT error: %.0f ms: allowed 250", m)
			}
			if m := median(latency); m > 500 {
				t.Errorf("median absolute latency error: %.0f ms: allowed 500", m)
			}
			if got := d.e.Stats().Preemptions; got != run.Preemptions {
				t.Errorf("preemptions: %d: published %d", got, run.Preemptions)
			}
		})
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
