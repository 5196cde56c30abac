package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/admission"
	"headgate/advise"
	"headgate/bench"
	"headgate/prove/provetest"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

// advised runs the command.
func advised(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"advise"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

func advisedReport(t *testing.T, args ...string) *advise.Report {
	t.Helper()
	out, err := advised(t, append(args, "--output", "json")...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var rep advise.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatal(err)
	}
	return &rep
}

// What the agreement of advice with a run of the advice is about: an engine of eight
// slots, of which the proposals leave four, under chats in one wave with some batch.
const (
	adviceSpeed  = 0.2
	adviceSlots  = 8
	adviceBlocks = 1025
	adviceLength = 8192
	adviceTTFT   = time.Second
	adviceE2E    = 5 * time.Second
)

// adviceProposals are tried, each with the file of the policy that it comes to.
var adviceProposals = []struct{ arm, text string }{
	{"fewer", "slots=4"},
	{"attrition", "slots=4,reclaim.batch=attrition"},
}

func advicePolicies(dir string) (files map[string]string, err error) {
	policy := strings.NewReplacer("ttft: 5s, e2e: 30s", fmt.Sprintf("ttft: %v, e2e: %v", adviceTTFT, adviceE2E), "window: 60s", "window: 10s").Replace(policyYAML)
	// Batch that waits for too long is refused, so that there is something to tell of it.
	last := strings.LastIndex(policy, "wait: 0s")
	policy = policy[:last] + "wait: 10s" + policy[last+len("wait: 0s"):]
	files = map[string]string{"fewer": policy, "attrition": strings.Replace(policy, "reclaim: reclaim", "reclaim: attrition", 1)}
	for arm, text := range files {
		if err = os.WriteFile(filepath.Join(dir, arm+".yaml"), []byte(text), 0o600); err != nil {
			return nil, err
		}
		files[arm] = filepath.Join(dir, arm+".yaml")
	}
	return files, nil
}

// adviceDay is what comes; every answer is as long as it was said to be.
func adviceDay(length time.Duration) []trace.Entry {
	day := provetest.Day(11, length, 0.13/adviceSpeed, true)
	for i := range day {
		day[i].MaxTokens = day[i].Output
	}
	return day
}

// adviceAgrees takes a journal of the eight slots, and a runner for the four: what was told
// of them comes out within five points.
func adviceAgrees(t *testing.T, dir, journal, by string, runner bench.Runner) {
	t.Helper()
	args := []string{journal, "--policy", filepath.Join(dir, "fewer.yaml"), "--slots", fmt.Sprint(adviceSlots), "--kv-blocks", fmt.Sprint(adviceBlocks), "--max-model-len", fmt.Sprint(adviceLength), "--priority",
		"--ttft", adviceTTFT.String(), "--e2e", adviceE2E.String()}
	for _, p := range adviceProposals {
		args = append(args, "--propose", p.text)
	}
	rep := advisedReport(t, args...)
	if len(rep.Distrust) > 0 || rep.Fit == nil {
		t.Fatalf("%v, %+v", rep.Distrust, rep.Check)
	}
	traces := filepath.Join(dir, "traces")
	if err := os.Mkdir(traces, 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"bench", "trace", "import", journal})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(traces, "day.json"), out.String())
	plan := filepath.Join(dir, "plan.yaml")
	write(t, plan, fmt.Sprintf(`name: advised
hypothesis: what was told of fewer slots is what comes of them
runner: live
engine: {simulated: {speed: %v, slots: 4, kv_blocks: %d, max_model_len: %d}}
arms:
  - {name: fewer, policy: fewer.yaml}
  - {name: attrition, policy: attrition.yaml}
workload: {traces: traces, forced_output: true}
on_time: {class: interactive, window: all, ttft: %v, e2e: %v}
compare:
  baseline: fewer
  treatment: attrition
  no_harm: [{metric: ttft_p95, margin: 5%%}]
  gain: {metric: on_time_share, margin: 0}
`, adviceSpeed, adviceBlocks, adviceLength, adviceTTFT, adviceE2E))
	came := agreement(t, plan, by, runner)
	for _, p := range adviceProposals {
		var told *advise.Advice
		for i := range rep.Proposals {
			if rep.Proposals[i].Proposal == p.text {
				told = &rep.Proposals[i]
			}
		}
		real, ok := came["day/"+p.arm]
		if !ok {
			t.Errorf("%s: the run was invalid: this machine has something else to do", p.text)
			continue
		}
		r := told.Results[0]
		onTime, batch := float64(r.OnTime.Proposed)/float64(r.OnTime.Offered), float64(r.Batch.DoneProposed)/float64(r.Batch.Offered)
		t.Logf("%s: told %.1f %% of %d on time (present %d), came %.1f %% of %d; batch told %.1f %% of %d, came %.1f %% of %d", p.text,
			100*onTime, r.OnTime.Offered, r.OnTime.Present, 100*float64(real.onTime)/float64(real.of), real.of, 100*batch, r.Batch.Offered, 100*float64(real.batch)/float64(real.batchOf), real.batchOf)
		if off := math.Abs(onTime - float64(real.onTime)/float64(real.of)); off > 0.05 {
			t.Errorf("%s: on time is off by %.1f points", p.text, 100*off)
		}
		if off := math.Abs(batch - float64(real.batch)/float64(real.batchOf)); off > 0.05 {
			t.Errorf("%s: batch done is off by %.1f points", p.text, 100*off)
		}
	}
}

// TestAdviceAgrees: the journal is of virtual time and so is the run of what was advised; the
// step times are fitted to the journal, and the run has the engine's own.
func TestAdviceAgrees(t *testing.T) {
	dir := t.TempDir()
	files, err := advicePolicies(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := simengine.DefaultConfig()
	e.Speed, e.MaxNumSeqs, e.NumBlocks, e.MaxModelLen = adviceSpeed, adviceSlots, adviceBlocks, adviceLength
	arm, err := sim.NewArm(sim.Headgate, e)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := loadPolicy(root(), files["fewer"], e)
	if err != nil {
		t.Fatal(err)
	}
	arm.Table, arm.Priority = policy.Table, policy.Priority
	const length = 30 * time.Minute
	events, err := provetest.Journal(adviceDay(length), arm, length, admission.Objective{First: adviceTTFT, Whole: adviceE2E})
	if err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(dir, "journal.jsonl")
	write(t, journal, string(provetest.Lines(events)))
	adviceAgrees(t, dir, journal, bench.Sim, &bench.Virtual{LoadPolicy: func(file string, e simengine.Config) (*sim.Policy, error) {
		return loadPolicy(benchRunCommand(), file, e)
	}})
}
