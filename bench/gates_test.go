package bench

import (
	"strings"
	"testing"
	"time"

	"headgate/sim"
)

// evidence is of a run with which nothing is wrong.
func evidence() ([]sim.RequestLine, *Evidence) {
	var lines []sim.RequestLine
	var output []int
	for i := range 200 {
		arrival := float64(i) * 100
		l := sim.RequestLine{ID: "r", Class: "interactive", ArrivalMS: &arrival, SentMS: at(arrival + 1), FirstTokenMS: at(arrival + 50), DoneMS: at(arrival + 200), Outcome: sim.Completed, Output: 16}
		if i%4 == 1 {
			l.Class, l.DoneMS = "batch", at(arrival+900)
		}
		lines, output = append(lines, l), append(output, 16)
	}
	pressure, swapped, idle, kv, before := time.Duration(0), int64(0), 0.0, 0.02, 0.025
	return lines, &Evidence{
		Real: &Real{
			CPU: time.Second, Wall: 20 * time.Second, WallClock: 20*time.Second + 3*time.Millisecond, GCPause: time.Millisecond,
			Running: &idle, CanRestart: true, Pressure: &pressure, SwapIn: &swapped,
		},
		Output: output, Trace: "a", First: "a", StartKV: &kv, FirstKV: &before,
	}
}

// TestGatesFire breaks one thing at a time: exactly its gate fires, and says what
// was seen.
func TestGatesFire(t *testing.T) {
	p := sample(t)
	for _, c := range []struct {
		name, gate string
		value      float64
		words      string
		breaks     func([]sim.RequestLine, *Evidence)
	}{
		{"nothing", "", 0, "", func([]sim.RequestLine, *Evidence) {}},
		{"a generator that is late for three requests", GateSchedule, 40, "", func(l []sim.RequestLine, _ *Evidence) {
			for i := range 3 {
				l[50+i].SentMS = at(*l[50+i].ArrivalMS + 40)
			}
		}},
		{"a generator that falls behind, 2 % in all", GateRate, 0.020107, "200 of 200", func(l []sim.RequestLine, _ *Evidence) {
			l[0].SentMS, l[199].SentMS = at(0), at(*l[199].ArrivalMS*1.02052)
		}},
		{"a generator that gives up before the end", GateRate, 0.015, "197 of 200", func(l []sim.RequestLine, _ *Evidence) {
			for i := 120; i < 123; i++ { // the first and the last are sent
				l[i].SentMS, l[i].Outcome = nil, sim.Failed
			}
		}},
		{"a saturated generator", GateCPU, 0.75, "", func(_ []sim.RequestLine, e *Evidence) { e.Real.CPU = 15 * time.Second }},
		{"a long pause of its collector", GateGC, 5.5, "", func(_ []sim.RequestLine, e *Evidence) { e.Real.GCPause = 5500 * time.Microsecond }},
		{"a clock that steps back", GateClock, 1000, "", func(_ []sim.RequestLine, e *Evidence) { e.Real.WallClock -= 1003 * time.Millisecond }},
		{"an answer that is short", GateForced, 1, "r has 15, of 16", func(l []sim.RequestLine, _ *Evidence) { l[7].Output = 15 }},
		{"another trace than the other arm's", GateTrace, 1, "hash is a, in the source's earlier run it was b", func(_ []sim.RequestLine, e *Evidence) { e.First = "b" }},
		{"an engine that restarts", GateRestart, 1, "its process ended", func(_ []sim.RequestLine, e *Evidence) { e.Real.Restarted = "its process ended" }},
		{"somebody else's requests", GateForeign, 2, "", func(_ []sim.RequestLine, e *Evidence) { n := 2.0; e.Real.Running = &n }},
		{"an engine with another start", GateStartKV, 0.105, "0.13 of the KV", func(_ []sim.RequestLine, e *Evidence) { e.StartKV = at(0.13) }},
		{"memory pressure", GateMemory, 12, "waited", func(_ []sim.RequestLine, e *Evidence) { d := 12 * time.Millisecond; e.Real.Pressure = &d }},
		{"swapping in", GateMemory, 3, "swap", func(_ []sim.RequestLine, e *Evidence) { n := int64(3); e.Real.SwapIn = &n }},
		{"a batch queue that runs dry", GateBatchQueue, 0.045455, "", func(l []sim.RequestLine, _ *Evidence) {
			for i := range l { // none arrives from 10 s on, and the last is done at 18.9 s
				if l[i].Class == "batch" && *l[i].ArrivalMS > 10_000 {
					l[i].Class = "interactive"
				}
				if *l[i].ArrivalMS == 9700 {
					l[i].DoneMS = at(19_000)
				}
			}
		}},
		{"an undrained tail", GateDrain, 2, "", func(l []sim.RequestLine, _ *Evidence) {
			for i := 198; i < 200; i++ {
				l[i].Outcome, l[i].DoneMS = TimedOut, nil
			}
		}},
	} {
		lines, e := evidence()
		c.breaks(lines, e)
		gates := p.Judge(lines, e)
		if len(gates) != len(GateNames()) {
			t.Fatalf("%s: %d gates, want all %d", c.name, len(gates), len(GateNames()))
		}
		for i, g := range gates {
			switch {
			case g.Name != GateNames()[i]:
				t.Errorf("%s: gate %d is %s, want %s", c.name, i, g.Name, GateNames()[i])
			case g.Unknown:
				t.Errorf("%s: gate %s is unknown", c.name, g.Name)
			case g.OK != (g.Name != c.gate):
				t.Errorf("%s: gate %+v with %v", c.name, g, *g.Value)
			case g.Name == c.gate && (*g.Value != c.value || !strings.Contains(g.Words, c.words)):
				t.Errorf("%s: gate %s says %v and %q, want %v and %q", c.name, g.Name, *g.Value, g.Words, c.value, c.words)
			}
		}
		r := Result{Gates: gates}
		if want := c.gate != "" && c.gate != GateBatchQueue; (len(r.Invalid()) > 0) != want {
			t.Errorf("%s: invalid for %v", c.name, r.Invalid())
		}
		if r.Censored("batch_tokens_per_s") != (c.gate == GateBatchQueue) {
			t.Errorf("%s: batch_tokens_per_s is censored: %v", c.name, r.Censored("batch_tokens_per_s"))
		}
	}
}

// TestGatesWithoutEvidence: what nobody could see is said to be unknown, and does
// not make a run invalid.
func TestGatesWithoutEvidence(t *testing.T) {
	lines, e := evidence()
	e.Real.Running, e.Real.CanRestart, e.Real.Pressure, e.Real.SwapIn, e.StartKV = nil, false, nil, nil, nil
	r := Result{Gates: sample(t).Judge(lines, e)}
	unknown := ""
	for _, g := range r.Gates {
		if g.Unknown {
			unknown += g.Name + " "
			if g.Value != nil || g.Words == "" {
				t.Errorf("gate %+v", g)
			}
		}
	}
	if want := "engine_restart foreign_requests start_kv memory "; unknown != want || len(r.Invalid()) > 0 {
		t.Errorf("unknown are %s, want %s; invalid for %v", unknown, want, r.Invalid())
	}
}

// TestGatesWaived: a gate that the plan waives is reported, and held against
// nothing.
func TestGatesWaived(t *testing.T) {
	p := sample(t)
	p.Waive = []string{GateClock}
	lines, e := evidence()
	e.Real.WallClock = 0
	r := Result{Gates: p.Judge(lines, e)}
	for _, g := range r.Gates {
		if g.Name == GateClock && (g.OK || !g.Waived) {
			t.Errorf("gate %+v", g)
		}
	}
	if len(r.Invalid()) > 0 {
		t.Errorf("invalid for %v", r.Invalid())
	}
}

// TestGateLimits: a tight objective binds the schedule's delay by its share.
func TestGateLimits(t *testing.T) {
	p := sample(t)
	p.OnTime.TTFT = Duration(200 * time.Millisecond)
	lines, e := evidence()
	for i := range lines {
		lines[i].SentMS = at(*lines[i].ArrivalMS + 6)
	}
	for _, g := range p.Judge(lines, e) {
		if g.Name == GateSchedule && (g.OK || g.Limit != 4) {
			t.Errorf("gate %+v, want a limit of 2 %% of 200 ms", g)
		}
	}
}

// TestRateOfWhatArrivesAtOnce: requests that all arrive at one moment have no rate
// that could be missed, but all have to be sent.
func TestRateOfWhatArrivesAtOnce(t *testing.T) {
	for _, delay := range []float64{0, 2} {
		lines := []sim.RequestLine{{ArrivalMS: at(0), SentMS: at(0)}, {ArrivalMS: at(0), SentMS: at(delay)}}
		if g := rateGate(lines, &sample(t).Gates); !g.OK || *g.Value != 0 {
			t.Errorf("sent over %v ms: gate %+v, %v", delay, g, *g.Value)
		}
		if g := rateGate(append(lines, sim.RequestLine{ArrivalMS: at(0)}), &sample(t).Gates); g.OK {
			t.Errorf("two of three sent: gate %+v", g)
		}
	}
}
