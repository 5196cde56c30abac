package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func seconds(s float64) *float64 { return &s }

// TestAvailabilityReport is a golden of both forms: a recall in decode and one in
// a prefill, one that was late for everything, one of an engine that does not
// tell, one that never came, and a return that needed none.
func TestAvailabilityReport(t *testing.T) {
	recalls := []availabilityRecall{
		{Seed: 1, Arrived: 60, Phase: "decode", StepLeft: 0.06, Granted: seconds(0), Settled: seconds(0.3), Scheduled: seconds(0.061), FirstToken: seconds(1.1), Reclaims: 1},
		{Seed: 2, Arrived: 56.5, Phase: "prefill", StepLeft: 2.5, Granted: seconds(0), Settled: seconds(2.9), Scheduled: seconds(2.51), FirstToken: seconds(3.5), Reclaims: 2},
		{Seed: 3, Arrived: 57, Phase: "decode", StepLeft: 0.05, Granted: seconds(0), Settled: seconds(6), Scheduled: seconds(0.2), ScheduledUpper: seconds(0.8), FirstToken: seconds(0.9)},
		{Seed: 4, Arrived: 58, Phase: "decode", StepLeft: 0.01, Granted: seconds(0), Reclaims: 1},
		{Seed: 5, Arrived: 59, Phase: "idle"},
	}
	var out strings.Builder
	for _, some := range [][]availabilityRecall{recalls, recalls[:2], recalls[4:]} {
		rep := availabilityReport{Recalls: some, Summary: summarise(some)}
		if err := rep.writeTable(&out); err != nil {
			t.Fatal(err)
		}
		b, err := json.MarshalIndent(rep.Summary, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(b, "\n\n"...))
	}
	file := filepath.Join("testdata", "availability.txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// TestPercentile: it is one of the values, and so many do not exceed it.
func TestPercentile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1, 1), 1, 50).Draw(t, "values")
		p := rapid.IntRange(1, 100).Draw(t, "p")
		got, below, within := *percentile(values, p), 0, 0
		for _, v := range values {
			if v < got-1e-6 {
				below++
			}
			if v <= got+1e-6 {
				within++
			}
		}
		if 100*within < p*len(values) || 100*below >= p*len(values) {
			t.Fatalf("p%d of %v is %v: %d below, %d within", p, values, got, below, within)
		}
	})
	if percentile(nil, 50) != nil {
		t.Error("of nothing")
	}
}

// TestReturnsAt: the same seed returns at the same moment, all within the window,
// spread over it.
func TestReturnsAt(t *testing.T) {
	eighths := map[int]int{}
	for seed := range uint32(800) {
		at := returnsAt(seed, false)
		if at != returnsAt(seed, false) || at < 56*time.Second || at >= 64*time.Second {
			t.Fatalf("seed %d: %v", seed, at)
		}
		eighths[int((at-drawnFrom)/time.Second)]++
		if at := returnsAt(seed, true); at != 60*time.Second {
			t.Fatalf("seed %d, fixed: %v", seed, at)
		}
	}
	for i := range 8 {
		if n := eighths[i]; n < 60 || n > 140 {
			t.Errorf("%d of 800 in second %d", n, i)
		}
	}
}

func TestAvailabilityFlags(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--seeds 9-1", "--seeds is"},
		{"--output csv", "--output is \"csv\": allowed are table and json"},
		{"--parallel 0", "--parallel is 0: allowed are 1 to 64 seeds at a time"},
	} {
		var out bytes.Buffer
		cmd := benchCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"availability"}, strings.Fields(c.args)...))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.says) || out.Len() > 0 {
			t.Errorf("%s: %v, printed %q: want %q", c.args, err, out.String(), c.says)
		}
	}
}
