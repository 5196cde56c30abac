package bench

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/sim"
)

func at(v float64) *float64 { return &v }

func sample(t *testing.T) *Plan {
	t.Helper()
	p, err := Parse("plan.yaml", []byte(samplePlan))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			all = append(all, rel)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestDirKeepsRuns: what is appended is read again, in order, and its files are
// the ones that the package says.
func TestDirKeepsRuns(t *testing.T) {
	p, path := sample(t), filepath.Join(t.TempDir(), "evidence")
	d, err := Create(path, p, Manifest{Runner: Sim, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	lines := []sim.RequestLine{{ID: "interactive-1", ArrivalMS: at(1.5), DoneMS: at(7), Outcome: sim.Completed}, {ID: "batch-1", ArrivalMS: at(2), Outcome: TimedOut, Warmup: true}}
	for _, arm := range []string{"priority", "headgate"} {
		if err := d.Append(&Result{Plan: p.SHA256(), Arm: arm, Source: Source{Name: "seed1"}, Gates: []Gate{{Name: GateClock, OK: true, Value: at(3)}}}, lines); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := names(t, path), "manifest.json plan.yaml runs/001-seed1-priority.json runs/001-seed1-priority.requests.jsonl runs/002-seed1-headgate.json runs/002-seed1-headgate.requests.jsonl"; got != want {
		t.Errorf("files are\n%s, want\n%s", got, want)
	}
	results, err := d.Results()
	if err != nil || len(results) != 2 || results[1].Arm != "headgate" || results[1].Run != 2 {
		t.Fatalf("results %+v, %v", results, err)
	}
	have, err := d.Requests(&results[1])
	if d := cmp.Diff(lines, have); err != nil || d != "" {
		t.Errorf("requests: %v\n%s", err, d)
	}
	if again, err := d.Plan(); err != nil || again.SHA256() != p.SHA256() {
		t.Errorf("plan: %v", err)
	}
}

// TestDirRefuses: nothing is replaced, another plan, runner, version or file is
// refused, and requests that were changed are noticed.
func TestDirRefuses(t *testing.T) {
	p, path := sample(t), t.TempDir()
	m := Manifest{Runner: Sim, Version: "v1", Program: "a", Files: map[string]string{"policy.yaml": "1"}}
	d, err := Create(path, p, m)
	if err != nil {
		t.Fatal(err)
	}
	r := Result{Arm: "priority", Source: Source{Name: "seed1"}}
	if err := d.Append(&r, nil); err != nil {
		t.Fatal(err)
	}
	stale := *d
	stale.next = 1 // two that run at once
	if err := stale.Append(&r, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("a run was replaced: %v", err)
	}
	other, err := Parse("other.yaml", []byte(samplePlan+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, other, m); !errors.Is(err, ErrOtherPlan) {
		t.Errorf("another plan: %v", err)
	}
	for _, change := range []Manifest{{Runner: Live, Version: "v1", Program: "a", Files: m.Files}, {Runner: Sim, Version: "v2", Program: "a", Files: m.Files}, {Runner: Sim, Version: "v1", Program: "a", Files: map[string]string{"policy.yaml": "2"}}, {Runner: Sim, Version: "v1", Program: "b", Files: m.Files}} {
		if _, err := Create(path, p, change); err == nil {
			t.Errorf("%+v goes on with runs of %+v", change, m)
		}
	}
	if _, err := Create(path, p, m); err == nil || !strings.Contains(err.Error(), "another process runs the plan into it") {
		t.Errorf("the same plan at the same time: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, p, m); err != nil {
		t.Errorf("the same plan: %v", err)
	}
	file := filepath.Join(path, "runs", "001-seed1-priority.requests.jsonl")
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("{}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Requests(&r); err == nil || !strings.Contains(err.Error(), "it was changed") {
		t.Errorf("changed requests: %v", err)
	}
}

// TestDirAfterACut: the requests of a run that was cut off stay, and the next run
// has a number of its own.
func TestDirAfterACut(t *testing.T) {
	p, path := sample(t), t.TempDir()
	m := Manifest{Runner: Sim, Version: "v1"}
	before, err := Create(path, p, m)
	if err := errors.Join(err, before.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "runs", "004-seed3-priority.requests.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Create(path, p, m)
	if err != nil {
		t.Fatal(err)
	}
	r := Result{Arm: "priority", Source: Source{Name: "seed3"}}
	if err := d.Append(&r, nil); err != nil || r.Run != 5 {
		t.Errorf("run %d, %v, want 5", r.Run, err)
	}
	if results, err := d.Results(); err != nil || len(results) != 1 {
		t.Errorf("results %+v, %v", results, err)
	}
}

// TestPairsExcludeBoth: a pair is out if either run is invalid; a gate that is
// waived, unknown or censors a metric only does not make it so.
func TestPairsExcludeBoth(t *testing.T) {
	run := func(block int, arm string, gates ...Gate) Result {
		return Result{Block: block, Arm: arm, Gates: gates}
	}
	broken := Gate{Name: GateClock, Words: "the clock stepped"}
	waived, unknown, dry := broken, broken, Gate{Name: GateBatchQueue, Censors: []string{"batch_tokens_per_s"}}
	waived.Waived, unknown.Unknown = true, true
	pairs := Pairs([]Result{
		run(1, "b", broken), run(1, "a"), run(0, "a", Gate{Name: GateClock, OK: true}), run(0, "b", waived, unknown),
		run(2, "a", broken), run(2, "b"), run(3, "a", dry), run(3, "b"), run(4, "a"), run(3, "c", broken),
	}, "a", "b")
	if len(pairs) != 4 {
		t.Fatalf("%d pairs, want 4", len(pairs))
	}
	for i, want := range []string{"", "b: clock: the clock stepped", "a: clock: the clock stepped", ""} {
		if got := pairs[i].Excluded(); got != want || pairs[i].Block != i {
			t.Errorf("pair %d of block %d is excluded for %q, want %q", i, pairs[i].Block, got, want)
		}
	}
	if !pairs[3].Censored("batch_tokens_per_s") || pairs[3].Censored("ttft_p50") || pairs[0].Censored("batch_tokens_per_s") {
		t.Error("the metric that a gate censors is of pair 3 alone")
	}
}

// TestMeasure makes every metric of a run by hand.
func TestMeasure(t *testing.T) {
	line := func(class, window string, arrival, first, done float64, outcome sim.Outcome) sim.RequestLine {
		l := sim.RequestLine{Class: class, Window: window, ArrivalMS: at(arrival), Outcome: outcome, Prompt: 100, Output: 10, MeasuredMS: 100_000, Tenant: "t1"}
		if first > 0 {
			l.FirstTokenMS = at(first)
		}
		if done > 0 {
			l.DoneMS, l.InTime = at(done), done <= 110_000
		}
		return l
	}
	late := line("interactive", "return", 65_000, 72_000, 73_000, sim.Completed) // 2 s behind ttft
	late.Tenant = "t2"
	warm := line("interactive", "return", 2000, 60_000, 70_000, sim.Completed)
	warm.Warmup = true
	slow := line("batch", "", 3000, 4000, 120_000, sim.Completed) // done after the trace's end
	slow.Recomputed = 70
	lines := []sim.RequestLine{
		line("interactive", "return", 60_000, 61_000, 62_000, sim.Completed),
		line("interactive", "return", 61_000, 64_000, 95_000, sim.Completed), // whole answer late
		late,
		line("interactive", "return", 70_000, 0, 0, sim.Rejected), // late until 120,000
		line("interactive", "borrow", 30_000, 60_000, 61_000, sim.Completed),
		warm,
		line("batch", "borrow", 30_000, 31_000, 40_000, sim.Completed), slow, line("batch", "", 3000, 0, 0, sim.Failed),
	}
	want := map[string]float64{
		"on_time_share": 0.25, "ttft_p50": 3, "ttft_p95": math.Inf(1), "ttft_p99": math.Inf(1), "e2e_p95": math.Inf(1),
		"batch_tokens_per_s": 1.1, "batch_completed": 2, "makespan": 120, "slo_debt_s": 2 + 45, "worst_minute": 0.25, "worst_tenant": 0, "wasted_tokens": 70,
	}
	o := OnTime{Class: "interactive", Window: ReturnWindow, TTFT: 5e9, E2E: 30e9}
	if d := cmp.Diff(want, Measure(&o, lines)); d != "" {
		t.Errorf("metrics (-want +have):\n%s", d)
	}
	if len(want) != len(MetricNames()) {
		t.Errorf("there are %d metrics", len(MetricNames()))
	}
	if v := Measure(&o, nil); !math.IsNaN(v["on_time_share"]) || !math.IsNaN(v["ttft_p50"]) || !math.IsNaN(v["worst_minute"]) {
		t.Errorf("of nothing: %v", v)
	}
}

// TestDirOfAnotherMachine: live runs of two machines are no pairs; of more or less
// free memory on one they are, and in virtual time any machine will do.
func TestDirOfAnotherMachine(t *testing.T) {
	for _, c := range []struct {
		runner string
		host   Host
		ok     bool
	}{{Live, Host{Processors: 4, MemoryMiB: 7}, false}, {Live, Host{Processors: 2, MemoryMiB: 7}, true}, {Sim, Host{Processors: 4}, true}} {
		path := t.TempDir()
		d, err := Create(path, sample(t), Manifest{Runner: c.runner, Host: Host{Processors: 2, MemoryMiB: 8}})
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
		d, err = Create(path, sample(t), Manifest{Runner: c.runner, Host: c.host})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "another machine") {
			t.Errorf("%s on %+v: %v", c.runner, c.host, err)
		}
		if err == nil {
			_ = d.Close()
		}
	}
}
