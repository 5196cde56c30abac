package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/advise"
	"headgate/bench"
	"headgate/engine"
	"headgate/occupancy/occupancytest"
	"headgate/probe"
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
	came, invalid := agreement(t, plan, by, runner)
	for _, p := range adviceProposals {
		var told *advise.Advice
		for i := range rep.Proposals {
			if rep.Proposals[i].Proposal == p.text {
				told = &rep.Proposals[i]
			}
		}
		real, ok := came["day/"+p.arm]
		if !ok {
			real = invalid["day/"+p.arm]
		}
		r := told.Results[0]
		onTime, batch := float64(r.OnTime.Proposed)/float64(r.OnTime.Offered), float64(r.Batch.DoneProposed)/float64(r.Batch.Offered)
		t.Logf("%s: told %.1f %% of %d on time (present %d), came %.1f %% of %d; batch told %.1f %% of %d, came %.1f %% of %d", p.text,
			100*onTime, r.OnTime.Offered, r.OnTime.Present, 100*float64(real.onTime)/float64(real.of), real.of, 100*batch, r.Batch.Offered, 100*float64(real.batch)/float64(real.batchOf), real.batchOf)
		if !ok {
			t.Errorf("%s: the run was invalid: this machine has something else to do", p.text)
			continue
		}
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

// TestAdvisePage: what the page of the docs shows is how the page begins.
func TestAdvisePage(t *testing.T) {
	t.Chdir("../..")
	const page = "docs/advise.md"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```text\n\\$ \\./bin/headgate advise (.*?)\n```\n\nThe page begins:\n\n```text\n(.*?)```").FindStringSubmatch(string(b))
	if m == nil {
		t.Fatalf("%s has no command with what it prints", page)
	}
	out, err := advised(t, strings.Fields(m[1])...)
	if err != nil {
		t.Fatal(err)
	}
	begins, _, _ := strings.Cut(out, "\n## slots=16")
	if *rewrite {
		if err := os.WriteFile(page, []byte(strings.Replace(string(b), "```text\n"+m[2]+"```", "```text\n"+begins+"```", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(m[2], begins); d != "" {
		t.Errorf("(-page +printed):\n%s", d)
	}
}

// TestAdviseAudits: without a journal the configuration alone is looked at, against what its
// engine says and what documentation says of it.
func TestAdviseAudits(t *testing.T) {
	dir := t.TempDir()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"small","object":"model","status":{"value":"loaded"}},{"id":"large","object":"model","status":{"value":"unloaded"}}]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer up.Close()
	config := filepath.Join(dir, "serve.yaml")
	write(t, config, strings.ReplaceAll(`anonymous: {classes: [interactive, batch]}
pools:
  - name: main
    models: [small]
    aliases: [{name: deep, model: large}]
    engines: [{name: gpu0, kind: llamacpp, url: "ENGINE", slots: 8, kv_tokens: 150816, max_context: 131072}]
    classes:
      - {name: interactive, floor: {slots: 7}, objective: {e2e: 20s}, queue: {wait: 30s}}
      - {name: batch, floor: {slots: 1}}
`, "ENGINE", up.URL))
	write(t, filepath.Join(dir, "ops.md"), "Start it with `llama-server -np 4`.\n")
	rep := advisedReport(t, "--config", config, "--docs", dir, "--ask", "--client-timeout", "25s")
	var all strings.Builder
	for _, f := range rep.Audit {
		fmt.Fprintf(&all, "%t %s: %s\n", f.Contradiction, filepath.Base(f.Where), f.Text)
	}
	for _, want := range []string{
		"true pool main: alias deep points to model large, which is not resident", "true pool main, engine gpu0: it loads models on demand", "true pool main, class interactive: a request may wait for 30s before",
		"true pool main, class interactive: a request may wait for 30s, and clients leave after 25s (--client-timeout)", "true ops.md:1: it states \"-np 4\"", "false pool main, engine gpu0: 8 slots of 131072",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("%slacks %q", all.String(), want)
		}
	}
	out, err := advised(t, "--config", config)
	if first, _, _ := strings.Cut(out, "\n"); err != nil || first != "# No journal was given, so that nothing is advised; one contradiction was found." {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAdviseRefuses: what flags can't be together, and what is missing.
func TestAdviseRefuses(t *testing.T) {
	t.Chdir("../..")
	dir := t.TempDir()
	other := filepath.Join(dir, "vllm.log")
	write(t, other, "INFO 06-01 Received request cmpl-1\n")
	broken := filepath.Join(dir, "profile.json")
	write(t, broken, `{"format": 2}`)
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
	events, err := provetest.Journal(adviceDay(10*time.Minute), arm, 10*time.Minute, admission.Objective{First: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	enforced := filepath.Join(dir, "enforced.jsonl")
	write(t, enforced, string(provetest.Lines(events)))
	const config = "prove/testdata/wave.yaml"
	for want, args := range map[string][]string{
		`--output is "html": allowed are md and json`:                               {wave, "--output", "html"},
		"no journal: give one or more files, or --config":                           {},
		"--propose is replayed with a journal":                                      {"--config", config, "--propose", "slots=2"},
		"--docs and --ask are held against a configuration":                         {wave, "--slots", "8", "--kv-blocks", "1025", "--docs", "docs"},
		`--propose: proposal "slots": "slots": allowed are KEY=VALUE`:               {wave, "--config", config, "--propose", "slots"},
		"vllm.log is no journal of headgate serve: allowed are those, since a repl": {other, "--config", config},
		"engine profile": {wave, "--config", config, "--profile", broken},
		"what the engine holds is not in a journal": {wave},
		"--block is 1ns: allowed is a time above 0": {wave, "--config", config, "--block", "1ns"},
		"--margin is 100":         {wave, "--config", config, "--margin", "100"},
		"--client-timeout is -1s": {wave, "--config", config, "--client-timeout", "-1s"},
		"--docs: stat absent":     {"--config", config, "--docs", "absent"},
		"--pool is \"odd\": --config prove/testdata/wave.yaml has no such": {"--config", config, "--pool", "odd"},
		"the journal is of a pool that enforced: give the policy":          {enforced, "--slots", "8", "--kv-blocks", "1025"},
	} {
		if out, err := advised(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q, got %v\n%.300s", args, want, err, out)
		}
	}
	// With the policy it is one that can be advised on; the profile says what the engine holds.
	rep := advisedReport(t, enforced, "--policy", files["fewer"], "--priority", "--profile", "advise/testdata/profile.json")
	if !rep.Probed || rep.Recording.Observed || len(rep.Proposals) == 0 || rep.Proposals[0].LongestPresent != 8192 {
		t.Errorf("%s\n%+v", rep.Verdict, rep.Proposals)
	}
}

// TestAdviseTrap: the post-mortem's week, from files to the first line. A configuration of eight
// slots and 150,816 tokens of KV served it; whether fewer slots are advice depends on the profile
// alone.
func TestAdviseTrap(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	if err := occupancytest.WriteJournal(&b, occupancytest.PostMortem()); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(dir, "journal.jsonl")
	write(t, journal, b.String())
	for _, tt := range []struct {
		kind, layout string
		status       advise.Status
		first        string
	}{
		{"vllm", probe.Shared, advise.Withdrawn, "Withdrawn: slots=2: it needs that each slot has its own part of the KV"},
		{"llamacpp", probe.Shared, advise.Withdrawn, "Withdrawn: slots=2: "},
		{"llamacpp", probe.PerSlot, advise.Advised, "Advised: slots=2: a session may have 75408 tokens"},
		{"llamacpp", "", advise.NotAdvised, "Unproven: the engine was not probed"},
		{"vllm", "", advise.NotAdvised, "Unproven: the engine was not probed"},
	} {
		config := filepath.Join(dir, "serve.yaml")
		write(t, config, fmt.Sprintf(`anonymous: {classes: [interactive, batch]}
pools:
  - name: p
    engines: [{name: e, kind: %s, url: "http://127.0.0.1:1", slots: %d, kv_tokens: %d, block_size: 1}]
    classes:
      - {name: interactive, floor: {slots: 7}, objective: {ttft: 10s, e2e: 2m}, queue: {wait: 60s}}
      - {name: batch, floor: {slots: 1}, reclaim: reclaim, queue: {wait: 0s}}
`, tt.kind, occupancytest.Slots, occupancytest.KV))
		args := []string{journal, "--config", config, "--propose", "slots=2"}
		if tt.layout != "" {
			profile := probe.Profile{Format: probe.Format, Kind: engine.Kind(tt.kind), Model: "m", Findings: []probe.Finding{
				{Subject: probe.KVLayout, Value: tt.layout, Confidence: probe.Shown, Evidence: []string{"a request of a quarter of the KV: " + tt.layout}},
				{Subject: probe.Slots, Value: float64(occupancytest.Slots), Unit: "sequences", Confidence: probe.Shown, Evidence: []string{"the ninth waited"}},
			}}
			data, err := json.Marshal(profile)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "profile.json"), string(data))
			args = append(args, "--profile", filepath.Join(dir, "profile.json"))
		}
		rep := advisedReport(t, args...)
		if !strings.HasPrefix(rep.Verdict, tt.first) {
			t.Errorf("%s, %q: %s", tt.kind, tt.layout, rep.Verdict)
		}
		for _, o := range rep.Proposals {
			if o.Proposal == "slots=2" && o.Status != tt.status || o.Status == advise.Advised && tt.status != advise.Advised {
				t.Errorf("%s, %q: %+v", tt.kind, tt.layout, o)
			}
		}
	}
}

// TestAdviseOfAnotherEngine: a profile of another kind of engine or of another model proves
// nothing of the journal's, and none of its sizes are used.
func TestAdviseOfAnotherEngine(t *testing.T) {
	t.Chdir("../..")
	const config = "prove/testdata/wave.yaml"
	p, err := probe.Load("advise/testdata/profile.json")
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Findings {
		switch f := &p.Findings[i]; f.Subject {
		case probe.KVTokens:
			f.Value = 4096.0
		case probe.KVLayout:
			f.Value = probe.PerSlot
		}
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	for want, of := range map[string]struct {
		kind  engine.Kind
		model string
	}{
		"Unproven: the profile is of a llamacpp engine, and gpu0 of the journal is vllm, so that no mechanism is known.":       {engine.LlamaCpp, p.Model},
		"Unproven: the profile is of model another, and the journal has headgate-simulated-m1, so that no mechanism is known.": {engine.VLLM, "another"},
	} {
		p.Kind, p.Model = of.kind, of.model
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, string(data))
		rep := advisedReport(t, wave, "--config", config, "--profile", file, "--propose", "slots=4")
		if !strings.HasPrefix(rep.Verdict, want) || rep.Probed {
			t.Errorf("%s", rep.Verdict)
		}
		for _, o := range rep.Proposals {
			if o.Status == advise.Advised || o.Status == advise.Withdrawn || o.LongestPresent != 8192 {
				t.Errorf("%+v", o)
			}
		}
		// Alone, it has no sizes to stand in for what flags do not say.
		if _, err := advised(t, wave, "--profile", file); of.kind == engine.VLLM && (err == nil || !strings.Contains(err.Error(), "the profile is of model another") || !strings.Contains(err.Error(), "give --slots")) {
			t.Errorf("%v", err)
		}
	}
	p.Kind, p.Model = engine.LlamaCpp, "headgate-simulated-m1"
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(data))
	rep := advisedReport(t, "--config", config, "--profile", file)
	if len(rep.Audit) == 0 || !strings.Contains(rep.Audit[0].Text, "the profile is of a llamacpp engine: it is not used") {
		t.Errorf("%+v", rep.Audit)
	}
}

// TestAdviseWithinTheContext: fewer slots give a session no more than the configuration lets
// it have, and without a limit that of the model is said to be unknown.
func TestAdviseWithinTheContext(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	if err := occupancytest.WriteJournal(&b, occupancytest.PostMortem()); err != nil {
		t.Fatal(err)
	}
	journal, config, profile := filepath.Join(dir, "journal.jsonl"), filepath.Join(dir, "serve.yaml"), filepath.Join(dir, "profile.json")
	write(t, journal, b.String())
	write(t, profile, `{"format": 1, "kind": "llamacpp", "version": "b11669", "model": "m", "at": "2026-11-30T08:00:00Z", "took_s": 1, "requests": 1, "tokens": 1, "findings": [
		{"subject": "kv_layout", "value": "per-slot", "confidence": "shown", "evidence": ["a request of a quarter of the KV did not run"]}]}`)
	for most, want := range map[string]string{
		"":                      "a session may have 75408 tokens in the place of 18852, which 68 requests were near to or refused for, and all else is no different; what the model takes at most is not known.",
		", max_context: 18852":  "a session may have 75408 tokens in the place of 18852, which 68 requests were near to or refused for, and all else is no different; what the model takes at most is not known.",
		", max_context: 32768":  "a session may have 32768 tokens in the place of 18852, which 68 requests were near to or refused for, and all else is no different.",
		", max_context: 150816": "a session may have 75408 tokens in the place of 18852, which 68 requests were near to or refused for, and all else is no different; what the model takes at most is not known.",
	} {
		write(t, config, fmt.Sprintf(`anonymous: {classes: [interactive, batch]}
pools:
  - name: p
    engines: [{name: e, kind: llamacpp, url: "http://127.0.0.1:1", slots: %d, kv_tokens: %d%s}]
    classes:
      - {name: interactive, floor: {slots: 7}, objective: {ttft: 10s, e2e: 2m}, queue: {wait: 60s}}
      - {name: batch, floor: {slots: 1}, reclaim: reclaim, queue: {wait: 0s}}
`, occupancytest.Slots, occupancytest.KV, most))
		rep := advisedReport(t, journal, "--config", config, "--profile", profile, "--propose", "slots=2")
		if !strings.HasPrefix(rep.Verdict, "Advised: slots=2: "+want) {
			t.Errorf("%s: %s", most, rep.Verdict)
		}
	}
}
