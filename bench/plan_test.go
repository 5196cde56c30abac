package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"headgate/trace"
)

const samplePlan = `name: return
hypothesis: returning requests are on time more often, and batch loses nothing
runner: sim
engine: {simulated: {speed: 1.5}}
arms:
  - {name: priority, direct: {priority: {interactive: 0, batch: 10}}}
  - {name: headgate, policy: default}
workload: {profile: metal-long-context-v1, seeds: 1-4}
on_time: {ttft: 5s, e2e: 30s}
compare:
  baseline: priority
  treatment: headgate
  no_harm: [{metric: ttft_p99, margin: 5%}, {metric: on_time_share, margin: 0.5pp}]
  gain: {metric: on_time_share, margin: 0}
`

// TestPlan changes the sample plan and shows what is said of it.
func TestPlan(t *testing.T) {
	datadriven.RunTest(t, "testdata/plan.txt", func(t *testing.T, d *datadriven.TestData) string {
		text := samplePlan
		switch d.Cmd {
		case "replace": // a line for each: OLD => NEW
			for line := range strings.Lines(strings.TrimSpace(d.Input) + "\n") {
				old, new, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " => ")
				if !ok || !strings.Contains(text, old) {
					return fmt.Sprintf("the sample has no %q\n", old)
				}
				text = strings.Replace(text, old, new, 1)
			}
		case "add":
			text += d.Input + "\n"
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		p, err := Parse("plan.yaml", []byte(text))
		if err != nil {
			return err.Error() + "\n"
		}
		return fmt.Sprintf("ok: %s, gates %+v\n", p.Runner, p.Gates)
	})
}

func TestPlanHashIsOfItsBytes(t *testing.T) {
	a, err := Parse("a.yaml", []byte(samplePlan))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("b.yaml", []byte(samplePlan+"# a word\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a.SHA256() == b.SHA256() || len(a.SHA256()) != 64 {
		t.Errorf("hashes %s and %s", a.SHA256(), b.SHA256())
	}
}

func TestPlanPathsBeginAtThePlan(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "plan.yaml")
	if err := os.WriteFile(file, []byte(samplePlan), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Path("policy.yaml"); got != filepath.Join(dir, "policy.yaml") {
		t.Errorf("a path is %s", got)
	}
	if got := p.Path("/policy.yaml"); got != "/policy.yaml" {
		t.Errorf("an absolute path is %s", got)
	}
}

// TestScheduleIsBalanced: each source has each arm once, and over as many sources
// as there are arms each arm is at each place once.
func TestScheduleIsBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Plan{sha256: rapid.String().Draw(t, "hash")}
		arms := rapid.IntRange(2, 5).Draw(t, "arms")
		for i := range arms {
			p.Arms = append(p.Arms, Arm{Name: fmt.Sprint(i)})
		}
		rounds := rapid.IntRange(1, 4).Draw(t, "rounds")
		slots := p.Schedule(rounds * arms)
		at := map[string]map[int]int{}
		for i, s := range slots {
			if s.Block != i/arms || s.Order != i%arms {
				t.Fatalf("run %d is %+v", i, s)
			}
			if at[s.Arm] == nil {
				at[s.Arm] = map[int]int{}
			}
			at[s.Arm][s.Order]++
		}
		for arm, places := range at {
			for order, n := range places {
				if n != rounds || len(places) != arms {
					t.Fatalf("arm %s is %d times at place %d of %d", arm, n, order, len(places))
				}
			}
		}
		if more := p.Schedule(rounds*arms + 1); !slices.Equal(more[:len(slots)], slots) {
			t.Fatal("a source more changes the order of those before it")
		}
	})
}

func TestSpeedup(t *testing.T) {
	p, err := Parse("p.yaml", []byte(strings.Replace(samplePlan, "seeds: 1-4", "seeds: 1-4, speedup: 4", 1)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	fast, err := w.Trace(0)
	if err != nil {
		t.Fatal(err)
	}
	slow, err := trace.Generate("metal-long-context-v1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if fast.Hash() == slow.Hash() {
		t.Error("another trace has the same hash")
	}
	a, b := p.lines(slow, &w.Sources[0], "x"), p.lines(fast, &w.Sources[0], "x")
	for i := range a {
		if d := *a[i].ArrivalMS/4 - *b[i].ArrivalMS; d > 0.001 || d < -0.001 || a[i].Window != b[i].Window {
			t.Errorf("%s arrives at %v in %q, was at %v in %q", b[i].ID, *b[i].ArrivalMS, b[i].Window, *a[i].ArrivalMS, a[i].Window)
		}
	}
}

// TestTenants: all of a session are one tenant's, and the first has most.
func TestTenants(t *testing.T) {
	n := map[string]int{}
	for i := range 3000 {
		n[tenant(&trace.Entry{ID: fmt.Sprint("r", i)}, 7, 3)]++
	}
	if n["tenant-1"] < 1500 || n["tenant-1"] > 1770 || n["tenant-3"] < 440 || n["tenant-3"] > 650 || len(n) != 3 {
		t.Errorf("of 3000 requests: %v, want about 1636, 818 and 545", n)
	}
	a, b := &trace.Entry{ID: "a", Session: "s"}, &trace.Entry{ID: "b", Session: "s"}
	if tenant(a, 7, 3) != tenant(b, 7, 3) {
		t.Error("a session is of two tenants")
	}
	if tenant(a, 7, 0) != "" {
		t.Error("there are no tenants")
	}
}

// TestWorkloadsRefuse: a class that no request has would be asked of nobody, and
// copies of a trace would count as so many pairs.
func TestWorkloadsRefuse(t *testing.T) {
	dir := t.TempDir()
	drawn, err := trace.Generate("metal-long-context-v1", 1)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if _, err := drawn.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.jsonl", "b.jsonl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ old, new, want string }{
		{"ttft: 5s", "class: interactve, ttft: 5s", "on_time.class is interactve: allowed is a class of the traces: batch, interactive"},
		{"batch: 10", "bacth: 10", "arm priority names the class bacth: allowed are classes of the traces: batch, interactive"},
		{"profile: metal-long-context-v1, seeds: 1-4", "traces: .", "b.jsonl has the same requests as a.jsonl"},
	} {
		p, err := Parse(filepath.Join(dir, "plan.yaml"), []byte(strings.Replace(samplePlan, c.old, c.new, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Workloads(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.new, err, c.want)
		}
	}
}

// TestDoubts: a criterion that no run of the traces can be judged by is said before
// they run.
func TestDoubts(t *testing.T) {
	for metric, want := range map[string]int{"ttft_p99": 1, "ttft_p95": 0} {
		p, err := Parse("p.yaml", []byte(strings.Replace(samplePlan, "ttft_p99", metric, 1)))
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.Workloads()
		if err != nil {
			t.Fatal(err)
		}
		if have, err := w.Doubts(); err != nil || len(have) != want || want > 0 && !strings.Contains(have[0], "seed1 has 9 that on_time asks") {
			t.Errorf("%s: doubts %q, %v", metric, have, err)
		}
	}
}
