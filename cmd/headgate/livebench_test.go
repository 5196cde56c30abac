package main

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/journal"
)

// TestStepLog: a look at the step that was seen last adds nothing; steps that follow
// each other have no gap, and a pause is one.
func TestStepLog(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	var l stepLog
	for _, s := range [][2]int{{3, 50}, {30, 50}, {51, 200}, {150, 201}, {204, 250}, {400, 450}} {
		l.note(stepSeen{begins: at(s[0]), ends: at(s[1])})
	}
	for _, c := range []struct{ at, left, told int }{
		{20, 30, 200}, // then 50 to 200, told when the next ends at 250
		{60, 140, 50}, // then 200 to 250, and a pause
		{300, 0, 50},  // nothing runs; then 400 to 450
		{440, 10, 0},
		{500, 0, 0},
	} {
		left, then := l.after(at(c.at))
		if left.Milliseconds() != int64(c.left) || told(then).Milliseconds() != int64(c.told) {
			t.Errorf("at %d: %v left, then %v, want %d and %d", c.at, left, told(then), c.left, c.told)
		}
	}
}

// TestLagging: metrics are those of two seconds ago, or the oldest there are.
func TestLagging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		h := lagging(nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %v", r.URL.Path, time.Since(start))
		}))
		get := func(path string) string {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Body.String()
		}
		for at := range 5 {
			want := fmt.Sprintf("/metrics %v", max(time.Duration(at)*time.Second-metricsLag, 0))
			if got := get("/metrics"); got != want {
				t.Errorf("at %d s: %s, want %s", at, got, want)
			}
			if got, want := get("/health"), fmt.Sprintf("/health %ds", at); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestHodgesLehmann against the counting of all sign patterns, and against the
// tables: of six values the interval is their range, of twenty it leaves out 52 means.
func TestHodgesLehmann(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1, 1), 1, 10).Draw(t, "values")
		n := len(values)
		var means []float64
		for i := range n {
			for j := range i + 1 {
				means = append(means, (values[i]+values[j])/2)
			}
		}
		slices.Sort(means)
		sums := make([]int, n*(n+1)/2+1)
		for signs := range 1 << n {
			sum := 0
			for rank := range n {
				sum += signs >> rank & 1 * (rank + 1)
			}
			sums[sum]++
		}
		out := 0
		for tail := sums[0]; float64(tail) <= 0.025*float64(int(1)<<n); tail += sums[out] {
			out++
		}
		mid, low, high, ok := hodgesLehmann(values)
		if ok != (out > 0) {
			t.Fatalf("of %d values: %t, want %t", n, ok, out > 0)
		}
		if ok && (low != means[out-1] || high != means[len(means)-out] || mid < low || mid > high) {
			t.Fatalf("%v in %v to %v, want %v to %v", mid, low, high, means[out-1], means[len(means)-out])
		}
	})
	if mid, low, high, ok := hodgesLehmann([]float64{6, 2, 3, 4, 5, 1}); !ok || mid != 3.5 || low != 1 || high != 6 {
		t.Errorf("of six: %v, %v to %v", mid, low, high)
	}
	twenty := make([]float64, 20)
	var means []float64
	for i := range twenty {
		twenty[i] = math.Pow(1.7, float64(i))
		for j := range i + 1 {
			means = append(means, (twenty[i]+twenty[j])/2)
		}
	}
	slices.Sort(means)
	if _, low, _, _ := hodgesLehmann(twenty); low != means[52] {
		t.Errorf("of twenty the interval begins at %v, want %v", low, means[52])
	}
}

// TestCompare: a pair in which something was recalled, or nothing lent, is left out.
func TestCompare(t *testing.T) {
	var rep noHarmReport
	for seed := range uint32(9) {
		for i, arm := range noHarmArms {
			r := noHarmRun{Seed: seed, Arm: arm.name, Throughput: 100 - float64(i), FirstToken: 0.1 + float64(i)/1000, Loans: 1}
			if seed == 7 && arm.name == "reclaim" {
				r.Recalls = 1
			}
			if seed == 8 && arm.name == "again" {
				r.Loans = 0
			}
			rep.Runs = append(rep.Runs, r)
		}
	}
	rep.compare()
	got := fmt.Sprintln(rep.Invalid)
	for _, q := range rep.Ratios {
		got += fmt.Sprintf("%s, %s: %d, %.3f\n", q.Arm, q.Figure, q.Pairs, q.Ratio)
	}
	for _, b := range rep.Bars {
		got += fmt.Sprintf("%s: %.3f %t\n", b.Name, *b.Measured, b.Met)
	}
	want := `2
again, tokens/s: 8, 0.990
again, first token p50: 8, 1.010
reclaim, tokens/s: 8, 0.980
reclaim, first token p50: 8, 1.020
reclaim worse than attrition, tokens/s, upper end of the 95 % interval: 2.000 true
reclaim worse than attrition, first token p50, upper end of the 95 % interval: 2.000 true
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestBurstCount: what one recall ended is told from the journal, and a burst for
// which a loan stayed, or another recall was needed, is none that one recall served.
func TestBurstCount(t *testing.T) {
	var events []journal.Event
	for hold := range uint64(burstSlots) {
		at := int64(hold) * 1e6
		events = append(events,
			journal.Event{Kind: journal.Ended, Mono: 1e9 + at, Cause: "reclaimed", Hold: hold},
			journal.Event{Kind: journal.Released, Mono: 2e9 + at, Hold: hold},
			journal.Event{Kind: journal.Released, Mono: 9e9, Hold: 100 + hold})
	}
	events = append(events, journal.Event{Kind: journal.RecallOpened, Class: "interactive"})
	whole := burstRun{Engine: "plain", Step: 0.05, Beyond: []float64{0.01}}
	whole.count(events)
	if whole.Recalls != 1 || whole.Reclaims != burstSlots || whole.Spread != 0.019 || *whole.Confirmed != 1.019 {
		t.Errorf("%+v", whole)
	}
	less := burstRun{Engine: "plain", Step: 0.04, Beyond: []float64{0.06}}
	less.count(events[3:])
	if less.Reclaims != burstSlots-1 {
		t.Errorf("%+v", less)
	}
	open := burstRun{}
	if open.count(events[:1]); open.Confirmed != nil {
		t.Errorf("confirmed at %v", *open.Confirmed)
	}
	var out bytes.Buffer
	writeBars(&out, burstBars([]burstRun{whole, less}))
	want := `plain: first token beyond one abort and one step, p95: 0.060 s (of 2), at most 0.05 s: not met
plain: bursts for which one recall did not end every loan: 1.000 bursts (of 2), at most 0 bursts: not met
plain: longest time in which the reclaims of a burst were sent, against the shortest step: 0.019 s (of 2), at most 0.04 s: met
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestStormCount: what was ended before a token counts with its whole prompt, beside
// what the engine counted.
func TestStormCount(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# HELP vllm:prompt_tokens_total x\nvllm:prompt_tokens_total{engine=\"0\"} 1.5e+03\nvllm:prefix_cache_hits_total{} 400\nvllm:generation_tokens_total{} 7\n")
	}))
	defer engine.Close()
	if got, err := computedPrompts(t.Context(), strings.TrimPrefix(engine.URL, "http://")); err != nil || got != 1100 {
		t.Errorf("%d tokens, %v, want 1100", got, err)
	}
	r := stormRun{Batch: 3, Completed: 2, Generated: 200, Again: 50}
	ended := func(request string, hold uint64) journal.Event {
		return journal.Event{Kind: journal.Ended, Cause: "reclaimed", Class: "batch", Request: request, Hold: hold, PromptTokens: 30}
	}
	r.count([]journal.Event{{Kind: journal.FirstToken, Hold: 1}, ended("a", 1), ended("a", 2), ended("b", 3)})
	if fmt.Sprint(r.ReclaimsOf) != "[1 1 1]" || r.Reclaims != 3 || r.Again != 110 || r.Waste != 0.55 {
		t.Errorf("%+v", r)
	}
	if b := stormBars([]stormRun{r})[0]; b.Met || *b.Measured != 1 || b.Of != 3 {
		t.Errorf("%+v", b)
	}
}
