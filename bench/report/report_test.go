package report

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/bench"
	"headgate/sim"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

const fixedPlan = `name: Lending against a partition
hypothesis: Lending completes more batch work than a partition, and <interactive> requests are no worse off.
runner: sim
engine: {simulated: {speed: 1.5}}
arms:
  - {name: static, published: static}
  - {name: static-again, published: static}
  - {name: lending, published: lending}
workload: {profile: metal-long-context-v1, seeds: 1-3, tenants: 2}
on_time: {ttft: 5s, e2e: 30s}
compare:
  baseline: static
  treatment: lending
  no_harm: [{metric: on_time_share, margin: 5pp}, {metric: ttft_p50, margin: 5%}]
  gain: {metric: batch_completed, margin: 0}
secondary: [makespan, ttft_p99]
`

// slowPlan plants a slowdown of a tenth in one arm.
const slowPlan = `name: A planted slowdown
hypothesis: An engine that takes a tenth longer does no harm.
runner: sim
engine: {simulated: {speed: 1}}
arms:
  - {name: plain, direct: {priority: {interactive: 0, batch: 10}}}
  - {name: plain-again, direct: {priority: {interactive: 0, batch: 10}}}
  - {name: slow, direct: {priority: {interactive: 0, batch: 10}}, speed: 1.1}
workload: {profile: metal-balanced-v1, seeds: SEEDS}
on_time: {window: all, ttft: 5s, e2e: 30s}
compare:
  baseline: plain
  treatment: slow
  no_harm: [{metric: ttft_p50, margin: 2%}]
  gain: {metric: on_time_share, margin: 0}
secondary: [e2e_p95]
`

// runPlan runs a plan in virtual time into a directory, with nothing in it that
// differs from one day or machine to another.
func runPlan(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := bench.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "evidence")
	d, err := bench.Create(dir, p, bench.Manifest{
		Runner: p.Runner, Version: "headgate v1", Created: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		Host: bench.Host{OS: "linux", Arch: "amd64", Processors: 2, Go: "go1.26"}, Deviations: []string{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&bench.Executor{Plan: p, Workloads: w, Dir: d, Runner: &bench.Virtual{}}).Execute(context.Background()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir string) *Evidence {
	t.Helper()
	e, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func analyse(t *testing.T, q Question) *Analysis {
	t.Helper()
	a, err := Analyse(q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestGolden makes a fixed plan's report.
func TestGolden(t *testing.T) {
	e := read(t, runPlan(t, fixedPlan))
	for i := range e.Results {
		e.Results[i].Started = e.Manifest.Created
	}
	a := analyse(t, Registered(e))
	b, err := a.Report.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for name, have := range map[string][]byte{"fixed.json": b, "fixed.md": a.Report.Markdown()} {
		path := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(path, have, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(have)); d != "" {
			t.Errorf("%s (-want +have); go test ./bench/report -rewrite:\n%s", path, d)
		}
	}
	var again Report
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	if c, err := again.JSON(); err != nil || !bytes.Equal(b, c) {
		t.Errorf("a report that was read is written otherwise: %v\n%s", err, cmp.Diff(string(b), string(c)))
	}
}

// TestPage: the page is well formed, has every picture, and asks for nothing from
// elsewhere.
func TestPage(t *testing.T) {
	page := string(analyse(t, Registered(read(t, runPlan(t, fixedPlan)))).HTML())
	for d := xml.NewDecoder(strings.NewReader(page)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
	}
	if at := regexp.MustCompile(`(?i)https?:|//[a-z]|@import|url\(|<script|<link|<img|\bsrc=|\bhref=|#[0-9A-F]{6}"`).FindString(page); at != "" {
		t.Errorf("the page has %q", at)
	}
	if !strings.Contains(page, "&lt;interactive>") {
		t.Error("the plan's text is not escaped")
	}
	// A strip and the seeds of each of three criteria, with the A/A run beside two; the
	// distribution and its shift; two timelines.
	if n := strings.Count(page, "<svg "); n != 13 {
		t.Errorf("there are %d pictures, want 13", n)
	}
	for _, words := range []string{"objective 5 s", "margin -5 pp", "loans", "at the engine", "A/A", "in s, from the intended send"} {
		if !strings.Contains(page, words) {
			t.Errorf("no picture says %q", words)
		}
	}
}

// TestPlantedSlowdown: an arm that is a tenth slower is found with 30 pairs, and with
// five nothing is claimed.
func TestPlantedSlowdown(t *testing.T) {
	for _, c := range []struct {
		seeds, verdict, criterion, secondary string
		words                                []string
	}{
		{"1-30", "fail", "fail", "worse", []string{"ttft_p50: harm: +"}},
		{"1-5", "inconclusive", "inconclusive", couldNotTell, []string{"could not tell: 5 pairs, a claim needs 10", "the minimum detectable effect of 5 pairs is "}},
	} {
		r := &analyse(t, Registered(read(t, runPlan(t, strings.Replace(slowPlan, "SEEDS", c.seeds, 1))))).Report
		d, s := &r.Decisions[0], &r.Secondary[0]
		if r.Verdict != c.verdict || d.Verdict != c.criterion || s.Verdict != c.secondary {
			t.Errorf("seeds %s: verdict %s, criterion %s, secondary %s, want %s, %s, %s", c.seeds, r.Verdict, d.Verdict, s.Verdict, c.verdict, c.criterion, c.secondary)
		}
		for _, w := range c.words {
			if !strings.Contains(d.Reason, w) {
				t.Errorf("seeds %s: reason %q says no %q", c.seeds, d.Reason, w)
			}
		}
		// What waits for slower steps, and behind slower requests, is later by more than a tenth.
		if x := math.Expm1(float64(d.Estimate)); x < 0.1 {
			t.Errorf("seeds %s: the slowdown is estimated as %g, planted is 0.1", c.seeds, x)
		}
		if gain := r.Decisions[1]; gain.Verdict != "inconclusive" || !strings.Contains(gain.Reason, "not tested") {
			t.Errorf("seeds %s: the gain is %s: %s", c.seeds, gain.Verdict, gain.Reason)
		}
		if r.Floor == nil || c.seeds == "1-30" && r.Floor.of("ttft_p50", LogRatio).SD != 0 {
			t.Errorf("seeds %s: in virtual time an arm is the same as itself: %+v", c.seeds, r.Floor)
		}
	}
}

// TestSecondProgram: another program finds the same figures in the requests, and
// notices one that is not.
func TestSecondProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "recompute")
	if out, err := exec.Command("go", "build", "-C", "../../tools", "-o", program, "./recompute").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sequential := strings.Replace(slowPlan, "SEEDS", "1-20", 1) + "stop: {e_process: 20, at_most: 20}\n"
	aa := runPlan(t, strings.NewReplacer("SEEDS", "1-12", "A planted", "No", "warmup", "").Replace(slowPlan))
	for name, dir := range map[string]string{
		"fixed": runPlan(t, fixedPlan), "slow": runPlan(t, strings.Replace(slowPlan, "SEEDS", "1-12", 1)), "sequential": runPlan(t, sequential),
		"many": runPlan(t, strings.Replace(slowPlan, "SEEDS", "1-45", 1)),
	} {
		q := Registered(read(t, dir))
		if name == "sequential" {
			q.AA = read(t, aa)
		}
		if _, err := analyse(t, q).Write(dir, "json"); err != nil {
			t.Fatal(err)
		}
		report := filepath.Join(dir, JSONFile)
		out, err := exec.Command(program, report, dir, aa).CombinedOutput()
		if err != nil || !regexp.MustCompile(`^\d{3,} figures and names are the same, 0 differ; `).Match(out) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if name != "fixed" {
			continue
		}
		b, err := os.ReadFile(report)
		if err != nil {
			t.Fatal(err)
		}
		// One digit of one figure, another verdict, a figure that nobody computes.
		for _, c := range [][2]string{{`"offered": `, `"offered": 1`}, {`"verdict": "`, `"verdict": "not `}, {`"scale": `, `"invented": 3, "scale": `}} {
			if err := os.WriteFile(report, bytes.Replace(b, []byte(c[0]), []byte(c[1]), 1), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(program, report, dir, aa).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("%s with %s: %v\n%s", name, c[1], err, out)
			}
		}
	}
}

// made is evidence that no runner made: a pair of runs a source.
type made struct {
	e     *Evidence
	lines map[int][]sim.RequestLine
}

const madePlan = `name: made
hypothesis: it is what was put in
runner: sim
engine: {simulated: {}}
arms: [{name: a, direct: {}}, {name: b, direct: {priority: {interactive: 0}}}, {name: a2, direct: {}}]
workload: {profile: metal-balanced-v1, seeds: 1-SEEDS}
on_time: {window: all, ttft: 5s, e2e: 30s}
compare: {baseline: a, treatment: b, no_harm: [{metric: ttft_p95, margin: 5%}], gain: {metric: GAIN, margin: 0}}
secondary: [makespan]
EXTRA
`

func makeEvidence(t *testing.T, seeds int, gain, extra string) *made {
	t.Helper()
	p, err := bench.Parse("plan.yaml", []byte(strings.NewReplacer("SEEDS", fmt.Sprint(seeds), "GAIN", gain, "EXTRA", extra).Replace(madePlan)))
	if err != nil {
		t.Fatal(err)
	}
	m := &made{e: &Evidence{Plan: p, Manifest: &bench.Manifest{Runner: "sim"}}, lines: map[int][]sim.RequestLine{}}
	m.e.Requests = func(r *bench.Result) ([]sim.RequestLine, error) { return m.lines[r.Run], nil }
	return m
}

// add puts in a run of n interactive requests with a TTFT, of which some never come.
func (m *made) add(block, order int, arm string, ttft float64, n, never int, gates ...bench.Gate) {
	run := len(m.e.Results) + 1
	m.e.Results = append(m.e.Results, bench.Result{
		Run: run, Block: block, Order: order, Arm: arm, Source: bench.Source{Name: fmt.Sprintf("seed%d", block+1)}, Trace: fmt.Sprint("trace", block), Gates: gates,
	})
	var lines []sim.RequestLine
	for i := range n {
		arrival, first, done := float64(1000*i), float64(1000*i)+ttft*1000, float64(1000*i)+ttft*1000+1000
		l := sim.RequestLine{Class: "interactive", ArrivalMS: &arrival, FirstTokenMS: &first, DoneMS: &done, Outcome: sim.Completed, Prompt: 10, Output: 5, MeasuredMS: 60_000}
		if i < never {
			l.FirstTokenMS, l.DoneMS, l.Outcome = nil, nil, []sim.Outcome{sim.Rejected, bench.Aborted, bench.TimedOut}[i%3]
		}
		lines = append(lines, l)
	}
	m.lines[run] = lines
}

// wobble is a little noise that is the same each time.
func wobble(i int) float64 { return 1 + 0.01*float64((7*i)%5-2) }

func TestInvalidPairsAreOutWhateverCameOfThem(t *testing.T) {
	m := makeEvidence(t, 31, "ttft_p50", "")
	broken := bench.Gate{Name: bench.GateClock, Words: "the clock stepped"}
	dry := bench.Gate{Name: bench.GateBatchQueue, Censors: []string{"makespan"}}
	for i := range 31 {
		switch i {
		case 7: // the run with the greatest gain of all
			m.add(i, 0, "a", 100, 20, 0)
			m.add(i, 1, "b", 0.1, 20, 0, broken)
		case 8:
			m.add(i, 0, "a", 1, 20, 0, dry)
			m.add(i, 1, "b", 0.8*wobble(i), 20, 0)
		default:
			m.add(i, 0, "a", 1, 20, 0)
			m.add(i, 1, "b", 0.8*wobble(i), 20, 0)
		}
	}
	r := &analyse(t, Registered(m.e)).Report
	if r.Verdict != "pass" || len(r.Decisions[1].Values) != 30 || r.counted() != 30 {
		t.Errorf("verdict %s of %d pairs, %d count: %v", r.Verdict, len(r.Decisions[1].Values), r.counted(), r.Reasons)
	}
	if x := r.Arms[0]; x.Runs != 30 || x.Metrics[1].Worst != 1 {
		t.Errorf("the invalid pair's other run is in the baseline's figures: %d runs, worst %v", x.Runs, x.Metrics[1])
	}
	if bad := r.invalid(); len(bad) != 1 || bad[0].Run != 16 || !strings.Contains(string(r.Markdown()), "| 16 | b | seed8 | clock: the clock stepped |") {
		t.Errorf("invalid runs are %+v", bad)
	}
	if s := &r.Secondary[0]; len(s.Values) != 29 || len(s.LeftOut) != 1 || s.LeftOut[0].Source != "seed9" {
		t.Errorf("a metric that a gate leaves without a value has %d pairs, left out %v", len(s.Values), s.LeftOut)
	}
}

func TestP99IsHiddenBelow500Requests(t *testing.T) {
	m := makeEvidence(t, 12, "ttft_p99", "")
	for i := range 12 {
		m.add(i, 0, "a", 1, 500, 0)
		m.add(i, 1, "b", 0.5*wobble(i), 499+i%2, 0)
	}
	r := &analyse(t, Registered(m.e)).Report
	if d := &r.Decisions[1]; len(d.Values) != 6 || len(d.LeftOut) != 6 || !strings.Contains(d.LeftOut[0].Why, "499 requests, needed are 500") {
		t.Errorf("%d pairs, left out %v", len(d.Values), d.LeftOut)
	}
	if r.Runs[1].Metrics["ttft_p99"].known() || !r.Runs[0].Metrics["ttft_p99"].known() {
		t.Error("p99 of 499 requests is shown, or of 500 it is not")
	}
}

func TestWhatNeverCameIsInfinite(t *testing.T) {
	m := makeEvidence(t, 30, "on_time_share", "")
	for i := range 30 {
		m.add(i, 0, "a", 1, 20, 0)
		m.add(i, 1, "b", 0.5*wobble(i), 20, 2) // faster, for those that came
	}
	a := analyse(t, Registered(m.e))
	r := &a.Report
	d := &r.Decisions[0]
	if d.Verdict != "fail" || !math.IsInf(float64(d.Estimate), 1) || r.Verdict != "fail" {
		t.Errorf("of requests that never come ttft_p95 is %v: %s", d.Estimate, d.Reason)
	}
	c := r.Runs[1].Counts
	if c.Refused != 1 || c.Aborted != 1 || c.TimedOut != 0 || r.Runs[1].OnTime.Met != 18 || r.Runs[1].ViolationsPer10k != 1000 {
		t.Errorf("counts %+v, on time %+v", c, r.Runs[1].OnTime)
	}
	b, err := r.JSON()
	if err != nil || !bytes.Contains(b, []byte(`"estimate": "inf"`)) {
		t.Errorf("infinity is not written as text: %v", err)
	}
	if page := string(a.HTML()); regexp.MustCompile(` (d|x|y)="[^"]*(NaN|Inf)`).MatchString(page) {
		t.Error("a picture has a place that is none")
	}
}

func TestNothingIsClaimedBelowTheRigsNoise(t *testing.T) {
	// b is 2 % slower in every pair: clear, were it not that a differs from itself by 10 %.
	build := func(self float64, again string) *Report {
		m := makeEvidence(t, 30, "ttft_p50", "")
		for i := range 30 {
			up := 1.0
			if i%2 == 0 {
				up += self
			}
			if i%4 < 2 {
				up = 1 / up
			}
			m.add(i, i%2, "a", 1, 20, 0)
			m.add(i, 2, "b", 0.98*wobble(i), 20, 0)
			m.add(i, 1-i%2, again, up, 20, 0)
		}
		return &analyse(t, Registered(m.e)).Report
	}
	quiet, loud := build(0.001, "a2"), build(0.2, "a2")
	if quiet.Verdict != "pass" {
		t.Errorf("on a quiet rig: %v", quiet.Reasons)
	}
	d := &loud.Decisions[1]
	if loud.Verdict != "inconclusive" || !strings.Contains(d.Reason, "the rig's own noise needs") || !(*d.FloorMDE > 0.05) {
		t.Errorf("on a loud rig: %s, %s", loud.Verdict, d.Reason)
	}
	if none := build(0.2, "other"); none.Floor != nil && len(none.Floor.Pairs) > 0 {
		t.Errorf("without an A/A run: %+v", none.Floor)
	}
}

func TestARejectedRigShowsNothing(t *testing.T) {
	m := makeEvidence(t, 30, "ttft_p50", "")
	for i := range 30 {
		m.add(i, i%2, "a", 1, 20, 0)
		m.add(i, 2, "b", 0.5, 20, 0)
		m.add(i, 1-i%2, "a2", 1.05, 20, 0) // the same arm, always slower
	}
	r := &analyse(t, Registered(m.e)).Report
	if r.Verdict != "inconclusive" || !strings.Contains(r.Reasons[0], "an A/A run has rejected this rig (the same arm differs from itself") {
		t.Errorf("%s: %v", r.Verdict, r.Reasons)
	}
	if bad := r.RejectedRig(); len(bad) != 2 {
		t.Errorf("the rig is rejected for %v", bad)
	}
}

func TestAnUnfinishedPlanIsNotJudged(t *testing.T) {
	m := makeEvidence(t, 40, "ttft_p50", "")
	for i := range 39 {
		m.add(i, 0, "a", 1, 20, 0)
		m.add(i, 1, "b", 0.5*wobble(i), 20, 0)
	}
	r := &analyse(t, Registered(m.e)).Report
	if r.Verdict != "inconclusive" || !strings.Contains(r.Reasons[0], "39 of 40 pairs have run") || r.Secondary[0].Verdict != couldNotTell {
		t.Errorf("%s: %v, secondary %s", r.Verdict, r.Reasons, r.Secondary[0].Verdict)
	}
	m.add(39, 0, "a", 1, 20, 0)
	m.add(39, 1, "b", 0.5, 20, 0)
	if r := analyse(t, Registered(m.e)).Report; r.Verdict != "pass" {
		t.Errorf("finished: %v", r.Reasons)
	}
}

// TestAPlanThatWaitsForPairsThatCount is judged once so many count, or all that it may
// run have.
func TestAPlanThatWaitsForPairsThatCount(t *testing.T) {
	build := func(n int) *Report {
		m := makeEvidence(t, 34, "ttft_p50", "stop: {pairs: 30, at_most: 34}")
		for i := range n {
			var gates []bench.Gate
			if i == 3 {
				gates = append(gates, bench.Gate{Name: bench.GateClock, Words: "the clock stepped"})
			}
			m.add(i, 0, "a", 1, 20, 0, gates...)
			m.add(i, 1, "b", 0.5*wobble(i), 20, 0)
		}
		return &analyse(t, Registered(m.e)).Report
	}
	if r := build(31); r.Verdict != "pass" || r.Plan.PairsPlanned != 30 {
		t.Errorf("30 of 31 count: %s of %d, %v", r.Verdict, r.Plan.PairsPlanned, r.Reasons)
	}
	if r := build(30); r.Verdict != "inconclusive" || r.Plan.PairsPlanned != 34 {
		t.Errorf("29 of 30 count: %s of %d, %v", r.Verdict, r.Plan.PairsPlanned, r.Reasons)
	}
}

func TestAPlanThatMayStopIsJudgedByItsEProcess(t *testing.T) {
	build := func(n int, b float64) *Report {
		m := makeEvidence(t, 40, "ttft_p50", "stop: {e_process: 20, at_most: 40}")
		for i := range n {
			m.add(i, 0, "a", 1, 20, 0)
			m.add(i, 1, "b", b*wobble(i), 20, 0)
		}
		return &analyse(t, Registered(m.e)).Report
	}
	if r := build(9, 0.5); r.Verdict != "pass" || r.Decisions[1].EProcess.Reached != 7 || r.Decisions[1].EProcess.Above {
		t.Errorf("9 pairs: %s, %+v", r.Verdict, r.Decisions[1].EProcess)
	}
	if r := build(6, 0.5); r.Verdict != "inconclusive" || !strings.Contains(r.Reasons[0], "a claim needs 20") {
		t.Errorf("6 pairs: %s, %v", r.Verdict, r.Reasons)
	}
	if r := build(9, 1.5); r.Verdict != "fail" || !strings.Contains(r.Reasons[0], "ttft_p95: harm: 0 of 9 pairs on the better side") {
		t.Errorf("slower: %s, %v", r.Verdict, r.Reasons)
	}
}

func TestTwoDirectories(t *testing.T) {
	first, second := makeEvidence(t, 30, "ttft_p50", ""), makeEvidence(t, 30, "ttft_p50", "")
	for i := range 30 {
		first.add(i, 0, "a", 1, 20, 0)
		second.add(29-i, 0, "b", 0.5*wobble(i), 20, 0)
	}
	second.add(30, 0, "b", 9, 20, 0)
	q := Question{Baseline: first.e, Treatment: second.e, BaselineArm: "a", TreatmentArm: "b"}
	r := &analyse(t, q).Report
	if r.Verdict != "pass" || r.Plan.Registered || len(r.Evidence) != 2 || len(r.Pairs) != 30 {
		t.Errorf("%s, registered %v, %d pairs: %v", r.Verdict, r.Plan.Registered, len(r.Pairs), r.Reasons)
	}
	for _, p := range r.Pairs {
		if b, x := &r.Runs[p.Baseline], &r.Runs[p.Treatment]; b.Trace != x.Trace || b.Evidence != 0 || x.Evidence != 1 {
			t.Errorf("pair of runs %+v and %+v", b, x)
		}
	}
	if words := strings.Join(r.Notes, "\n"); !strings.Contains(words, "Not registered") || !strings.Contains(words, "seed31 (b only)") {
		t.Errorf("notes: %s", words)
	}
	q.TreatmentArm = "c"
	if _, err := Analyse(q); err == nil || err.Error() != `treatment is "c": allowed is an arm of its plan: a, b, a2` {
		t.Errorf("an arm that is none: %v", err)
	}
}

func TestNumber(t *testing.T) {
	var have []Number
	text := `[1.5,"inf","-inf",null]`
	if err := json.Unmarshal([]byte(text), &have); err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(have); err != nil || string(b) != text {
		t.Errorf("%s, %v", b, err)
	}
	if err := json.Unmarshal([]byte(`"much"`), &have[0]); err == nil {
		t.Error("a word is a figure")
	}
}

func TestPublish(t *testing.T) {
	dir, dest := runPlan(t, fixedPlan), filepath.Join(t.TempDir(), "shelf", "published")
	now := time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	publish := func() error { _, err := Publish(dir, dest, "v1", now); return err }
	wants := func(what string, err error, words string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", what, err, words)
		}
	}
	wants("without a report", publish(), "the directory has no report")
	if _, err := analyse(t, Registered(read(t, dir))).Write(dir, "all"); err != nil {
		t.Fatal(err)
	}
	// Files that the evidence does not give, one at a time, and as they were again.
	for name, change := range map[string]func([]byte) []byte{
		JSONFile: func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"verdict": "inconclusive"`), []byte(`"verdict": "pass"`), 1)
		},
		MarkdownFile:                  func([]byte) []byte { return []byte("better") },
		HTMLFile:                      func([]byte) []byte { return []byte("better") },
		"runs/002-seed1-lending.json": func(b []byte) []byte { return bytes.Replace(b, []byte(`"ok": true`), []byte(`"ok": false`), 1) },
	} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		put := func(b []byte) {
			if err := errors.Join(os.Remove(path), os.WriteFile(path, b, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		put(change(b))
		wants(name+" changed", publish(), "is not what the evidence in")
		put(b)
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	p, err := Verify(dest)
	if err != nil || len(p.Files) != 2+2*9+3 || p.Verdict != "inconclusive" {
		t.Errorf("%+v, %v", p, err)
	}
	wants("again", publish(), "is there already")
	_, err = Publish(dir, filepath.Join(dir, "shelf", "published"), "v1", now)
	wants("into itself", err, "allowed is a place outside")
	page := filepath.Join(dest, HTMLFile)
	for _, step := range []struct {
		do    func() error
		words string
	}{
		{func() error { return errors.Join(os.Remove(page), os.WriteFile(page, []byte("better"), 0o600)) }, "report.html has hash"},
		{func() error { return os.Remove(page) }, "report.html is gone"},
		{func() error { return os.WriteFile(filepath.Join(dest, "more"), nil, 0o600) }, "more was not published"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		_, err := Verify(dest)
		wants("changed", err, step.words)
	}
	// A run that came after the report, and a run that was changed.
	dest += "2"
	d, err := bench.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := read(t, dir)
	if err := d.Append(&bench.Result{Plan: e.Plan.SHA256(), Arm: "lending", Source: bench.Source{Name: "seed4"}}, nil); err != nil {
		t.Fatal(err)
	}
	wants("a stale report", publish(), "is not of the runs that are in")
	if _, err := analyse(t, Registered(read(t, dir))).Write(dir, "json"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "runs", e.Results[0].Requests)
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("{}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	wants("changed evidence", publish(), "it was changed")
	if _, err := os.Stat(dest); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was published: %v", err)
	}
}

// TestExport makes both forms of a run by hand.
func TestExport(t *testing.T) {
	m := makeEvidence(t, 1, "ttft_p50", "")
	m.add(0, 0, "a", 2, 4, 1)
	m.e.Results[0].Engine = bench.Facts{Kind: "vllm", Version: "0.29", Model: "m"}
	m.e.Results[0].Started = time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	export := func(format string) map[string]any {
		t.Helper()
		b, err := m.e.Export(format, 1)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(b, &v); err != nil || bytes.Count(b, []byte("\n")) != 1 {
			t.Fatalf("%v: %s", err, b)
		}
		return v
	}
	// Arrivals at 0, 1, 2 and 3 s, the first refused; answers from 2 s to 3 s after.
	want := map[string]any{
		"date": "20261130-130000", "backend": "vllm", "label": "a", "model_id": "m", "num_prompts": 4.0, "completed": 3.0, "failed": 1.0, "total_input_tokens": 30.0,
		"total_output_tokens": 15.0, "duration": 6.0, "request_throughput": 0.5, "output_throughput": 2.5, "total_token_throughput": 7.5, "request_goodput": 0.5,
		"mean_ttft_ms": 2000.0, "median_ttft_ms": 2000.0, "std_ttft_ms": 0.0, "mean_tpot_ms": 250.0, "median_tpot_ms": 250.0, "std_tpot_ms": 0.0,
		"mean_e2el_ms": 3000.0, "median_e2el_ms": 3000.0, "std_e2el_ms": 0.0,
		"input_lens": []any{10.0, 10.0, 10.0, 10.0}, "output_lens": []any{5.0, 5.0, 5.0, 5.0}, "ttfts": []any{nil, 2.0, 2.0, 2.0},
		"start_times": []any{nil, nil, nil, nil}, "errors": []any{"rejected", "", "", ""},
	}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if d := cmp.Diff(want, export(ExportVLLM), near); d != "" {
		t.Errorf("vllm (-want +have):\n%s", d)
	}
	b, err := json.Marshal(export(ExportLLMD)["results"])
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		`"requests":{"failures":1,"incomplete":0,"input_length":{`, `"total":4}`, `"request_rate":{"mean":0.5,"units":"queries/s"}`,
		`"time_to_first_token":{"max":2,"mean":2,"min":2,"p10":2,"p25":2,"p5":2,"p50":2,"p75":2,"p90":2,"p95":2,"stddev":0,"units":"s"}`,
	} {
		if !bytes.Contains(b, []byte(words)) {
			t.Errorf("llm-d: no %s in %s", words, b)
		}
	}
	if _, err := m.e.Export("csv", 0); err == nil {
		t.Error("an unknown form is exported")
	}
	if _, err := m.e.Export(ExportVLLM, 2); err == nil || err.Error() != "run is 2: allowed is one of the directory's 1 runs" {
		t.Errorf("a run that is none: %v", err)
	}
}

// TestNotesTellWhatIsWaivedByOtherWords: a limit that is so wide that its gate cannot
// speak is said as one that is waived, and so is an A/A run that tells no noise, or is of
// another machine.
func TestNotesTellWhatIsWaivedByOtherWords(t *testing.T) {
	m := makeEvidence(t, 2, "ttft_p50", "gates: {clock_drift: 1h, start_kv: 1}")
	aa := makeEvidence(t, 2, "ttft_p50", "")
	aa.e.Plan.Arms[1] = aa.e.Plan.Arms[0]
	aa.e.Plan.Arms[1].Name = "b"
	aa.e.Plan.Name = "A/A <img>"
	aa.e.Manifest.Host.Processors = 64
	raw, err := bench.Parse("aa.yaml", append(aa.e.Plan.Bytes(), "# other\n"...))
	if err != nil {
		t.Fatal(err)
	}
	raw.Name, raw.Arms = aa.e.Plan.Name, aa.e.Plan.Arms
	aa.e.Plan = raw
	for _, x := range []*made{m, aa} {
		for i := range 2 {
			x.add(i, i%2, "a", 1, 20, 0)
			x.add(i, 1-i%2, "b", 1, 20, 0)
		}
	}
	q := Registered(m.e)
	q.AA = aa.e
	r := &analyse(t, q).Report
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"clock_drift 1h0m0s (50ms), start_kv 1 (0.01)", "ttft_p95 was not held against the rig's noise", "The A/A run is of another machine: {  64"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes\n%s\nhave no %q", notes, want)
		}
	}
	if page := string(r.Markdown()); strings.Contains(page, "<img>") {
		t.Error("a plan's name is markup")
	}
}

// TestClassesAreNoMarkup: a recorded trace names its classes itself.
func TestClassesAreNoMarkup(t *testing.T) {
	m := makeEvidence(t, 1, "ttft_p50", "")
	m.add(0, 0, "a", 1, 20, 0)
	m.add(0, 1, "b", 1, 20, 0)
	for i := range m.e.Results {
		m.e.Results[i].Timeline = []bench.Point{{Running: map[string]int{"<img>": 1}, Lent: 1}, {AtMS: 250, Running: map[string]int{"<img>": 1}}}
	}
	if page := string(analyse(t, Registered(m.e)).HTML()); strings.Contains(page, "<img>") || !strings.Contains(page, "&lt;img&gt;") {
		t.Error("a class is markup, or is not there")
	}
}

// TestNotesTellWhatIsNotThere: a number without a run, and an arm that refused what
// the other answered.
func TestNotesTellWhatIsNotThere(t *testing.T) {
	m := makeEvidence(t, 2, "ttft_p50", "")
	for i := range 2 {
		m.add(i, 0, "a", 1, 20, 0)
		m.add(i, 1, "b", 1, 20, 6*i)
	}
	m.lines[7] = m.lines[4]
	m.e.Results[3].Run = 7
	notes := strings.Join(analyse(t, Registered(m.e)).Report.Notes, "\n")
	for _, want := range []string{"Runs that are not there, cut off between their two files or taken away: 4, 5, 6.", "a 40 and b 34"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes\n%s\nhave no %q", notes, want)
		}
	}
}

// TestAnUnfinishedDirectoryOfTraces: how many traces a workload of files had is in the
// manifest, so that it cannot be judged before all have run.
func TestAnUnfinishedDirectoryOfTraces(t *testing.T) {
	m := makeEvidence(t, 40, "ttft_p50", "")
	m.e.Plan.Workload = bench.Workload{Traces: "traces"}
	m.e.Manifest.Sources = 40
	for i := range 39 {
		m.add(i, 0, "a", 1, 20, 0)
		m.add(i, 1, "b", 0.5*wobble(i), 20, 0)
	}
	if r := analyse(t, Registered(m.e)).Report; r.Verdict != "inconclusive" || !strings.Contains(r.Reasons[0], "39 of 40 pairs have run") {
		t.Errorf("%s: %v", r.Verdict, r.Reasons)
	}
}
