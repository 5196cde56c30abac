package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"headgate/e2e/engine/gguf"
	"headgate/e2e/headgate"
	"headgate/e2e/realengine"
	"headgate/engine"
	prober "headgate/probe"
	"headgate/simengine"
)

// probes is how often each engine is probed: once is to see that it works, more to
// measure how often it can tell.
var probes = flag.Int("probes", 1, "how often TestProbe probes each engine")

// truth is what an engine is, by subject: a word, or a number and by how much the one
// found may be off.
type truth map[prober.Subject]any

type about struct{ value, off float64 }

// aProbe is an engine and what is true of it.
type aProbe struct {
	name  string
	kind  engine.Kind
	start func(t *testing.T) (url string)
	args  []string
	truth truth
	// sure are the subjects that may not be unknown, whatever else the machine does.
	sure []prober.Subject
}

// speed is that of the simulated engines: twenty times as fast as the machine that they
// are the model of.
const speed = 0.05

// fast is a simulated engine of fast steps.
func fast(args ...string) func(t *testing.T) string {
	return func(t *testing.T) string {
		return headgate.StartEngine(t, append([]string{"--speed", fmt.Sprint(speed)}, args...)...).URL
	}
}

// TestProbe: what is found of an engine is what it is, or it is unknown. Of the layout
// of its KV it is always found.
func TestProbe(t *testing.T) {
	t.Parallel()
	layout := []prober.Subject{prober.KVLayout}
	common := truth{prober.Steps: simengine.DefaultModel(), prober.Waiting: prober.Waits, prober.WholePrompt: prober.Whole, prober.AbortTold: string(engine.ByProgress)}
	with := func(more truth) truth {
		for s, v := range common {
			if _, ok := more[s]; !ok {
				more[s] = v
			}
		}
		return more
	}
	all := []aProbe{
		{name: "engine, shared", kind: engine.VLLM, start: fast(), sure: layout, truth: with(truth{
			prober.KVTokens: about{5120, 16}, prober.KVLayout: prober.Shared, prober.Slots: about{4, 0}, prober.PrioritySign: prober.LowerFirst,
			prober.PrefixCache: prober.None, prober.ChunkTokens: about{2048, 16}, prober.MaxContext: about{4096, 0}})},
		{name: "engine, shared, first come first served", kind: engine.VLLM, sure: layout,
			start: fast("--scheduling-policy", "fcfs", "--enable-prefix-caching", "--enable-prompt-tokens-details", "--max-num-batched-tokens", "640", "--max-num-seqs", "3"),
			truth: with(truth{prober.KVTokens: about{5120, 16}, prober.KVLayout: prober.Shared, prober.Slots: about{3, 0}, prober.PrioritySign: prober.Ignored,
				prober.PrefixCache: prober.Kept, prober.ChunkTokens: about{640, 16}, prober.MaxContext: about{4096, 0}})},
		{name: "engine, per slot", kind: engine.VLLM, start: fast("--kv-layout", "per-slot"), sure: layout, truth: with(truth{
			prober.KVTokens: about{5105, 16}, prober.KVLayout: prober.PerSlot, prober.WholePrompt: prober.Chunk, prober.Slots: about{4, 0}, prober.PrioritySign: prober.Ignored,
			prober.PrefixCache: prober.None, prober.ChunkTokens: about{2048, 0}, prober.MaxContext: about{1276, 0}})},
		// No sequence may be longer than its part here: a pool that is shared and one that
		// is not would look the same.
		{name: "engine, shared, of short sequences", kind: engine.VLLM, start: fast("--max-model-len", "1276"), args: []string{"--only", "kv_layout"},
			truth: truth{prober.KVLayout: nil}},
		{name: "real engine", kind: engine.VLLM, start: func(t *testing.T) string {
			return realengine.Start(t, realengine.Options{Model: gguf.Tiny, Slots: 3, Ctx: 1024, Priority: true}).URL
		}, truth: truth{prober.KVTokens: about{3072, 16}, prober.KVLayout: nil, prober.Slots: about{3, 0}, prober.Waiting: prober.Waits, prober.PrioritySign: prober.LowerFirst,
			prober.PrefixCache: prober.Kept, prober.AbortTold: string(engine.ByProgress), prober.ChunkTokens: about{256, 16}, prober.MaxContext: about{1024, 0}}},
	}
	if os.Getenv(realengine.LlamaServerEnv) != "" { // nobody has to have one
		for _, unified := range []bool{true, false} {
			o := tiny
			o.Slots, o.Ctx, o.Unified = 4, 2048, unified
			a := aProbe{name: "llama-server, split", kind: engine.LlamaCpp, sure: layout, start: func(t *testing.T) string { return realengine.StartLlamaServer(t, o).URL },
				truth: truth{prober.KVTokens: about{8192, 0}, prober.KVLayout: prober.PerSlot, prober.Slots: about{4, 0}, prober.Waiting: prober.Waits, prober.PrioritySign: prober.Ignored,
					prober.WholePrompt: prober.Chunk, prober.PrefixCache: prober.Kept, prober.AbortTold: string(engine.BySlot), prober.ChunkTokens: about{256, 0}, prober.MaxContext: about{2048, 0}}}
			if unified {
				a.name, a.truth[prober.KVLayout], a.truth[prober.MaxContext] = "llama-server, unified", prober.Shared, about{8192, 0}
			}
			all = append(all, a)
		}
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			counts := map[prober.Subject]map[string]int{}
			for range *probes {
				p := runProbe(t, a)
				for _, s := range prober.Subjects {
					if counts[s] == nil {
						counts[s] = map[string]int{}
					}
					counts[s][a.judge(t, p, s)]++
				}
			}
			for _, s := range prober.Subjects {
				t.Logf("%-13s %v", s, counts[s])
			}
		})
	}
}

// judge compares a finding with what is true.
func (a *aProbe) judge(t *testing.T, p *prober.Profile, s prober.Subject) string {
	t.Helper()
	f := p.Find(s)
	want, told := a.truth[s]
	switch {
	case f.Confidence == prober.Unknown && slices.Contains(a.sure, s):
		t.Errorf("%s is unknown:\n%s", s, strings.Join(f.Evidence, "\n"))
		return "unknown"
	case f.Confidence == prober.Unknown:
		return "unknown"
	case !told:
		return fmt.Sprint("found ", f.Value)
	}
	right := f.Value == want
	if m, ok := want.(simengine.Model); ok {
		// What a prompt and a step of four would take, by the model found and by its own.
		right = true
		for _, took := range []func(m *simengine.Model) float64{
			func(m *simengine.Model) float64 { return m.Step.Base + 1000*m.Step.PrefillToken },
			func(m *simengine.Model) float64 {
				return m.Step.Base + m.Step.FirstDecode + 3*m.Step.MoreDecode + 1000*m.Step.ContextToken
			},
		} {
			have, own := took(p.StepTimes), took(&m)*speed
			t.Logf("step times: %.4g ms, its own %.4g ms", have, own)
			right = right && have > own*0.8 && have < own*1.25
		}
	}
	if n, ok := want.(about); ok {
		v, number := f.Value.(float64)
		right = number && v >= n.value-n.off && v <= n.value+n.off
	}
	if !right {
		t.Errorf("%s is %v, %s, want %v:\n%s", s, f.Value, f.Confidence, want, strings.Join(f.Evidence, "\n"))
		return "wrong"
	}
	return "right"
}

// runProbe probes a new engine, and reads the file that comes of it.
func runProbe(t *testing.T, a aProbe) *prober.Profile {
	t.Helper()
	out := filepath.Join(t.TempDir(), "profile.json")
	args := append([]string{"probe", "--url", a.start(t), "--kind", string(a.kind), "--yes", "--out", out, "--output", "json"}, a.args...)
	printed := run(t, t.TempDir(), "sh", append([]string{"-c", `"$@" 2>/dev/null`, "sh", headgate.Binary(t)}, args...)...)
	p, err := prober.Load(out)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := prober.Parse([]byte(printed)); err != nil || len(again.Findings) != len(prober.Subjects) {
		t.Errorf("it printed another profile, or none: %v", err)
	}
	return p
}

// TestProbeWantsConsent: without --yes nothing is generated.
func TestProbeWantsConsent(t *testing.T) {
	e := headgate.StartEngine(t, "--speed", "0.05")
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(ofOne, "ENGINE", e.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--url", e.URL, "--kind", "vllm"}, {"--config", file, "--engine", "gpu0"}} {
		cmd := exec.CommandContext(t.Context(), headgate.Binary(t), append([]string{"probe"}, args...)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "nothing was sent: --yes allows it") || !strings.Contains(string(out), "kv_tokens, kv_layout") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	for _, wrong := range []struct{ args, say string }{
		{"--config " + file + " --engine gpu1", `--engine is "gpu1"`}, {"--config " + file, "both or neither"}, {"--config " + file + " --engine gpu0 --kind vllm", "--kind: not with --config"},
		{"--url " + e.URL, "--kind is"}, {"--url " + e.URL + " --kind vllm --only speed", "--only is speed"}, {"--url " + e.URL + " --kind vllm --max-tokens 0", "--max-tokens is 0"},
	} {
		out, err := exec.CommandContext(t.Context(), headgate.Binary(t), append([]string{"probe"}, strings.Fields(wrong.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), wrong.say) {
			t.Errorf("%s: %v\n%s", wrong.args, err, out)
		}
	}
	if said := scraped(t, e.URL); !strings.Contains(said, "vllm:generation_tokens_total") || !strings.Contains(said, `vllm:generation_tokens_total{engine="0",model_name="headgate-simulated-m1"} 0`) {
		t.Errorf("the engine has generated:\n%s", said)
	}
}

// TestProbeEnds: whatever ends a probe, its requests end with it; and beside others'
// requests it does not begin.
func TestProbeEnds(t *testing.T) {
	t.Parallel()
	e := headgate.StartEngine(t, "--speed", "1")
	cmd := exec.CommandContext(t.Context(), headgate.Binary(t), "probe", "--url", e.URL, "--kind", "vllm", "--yes", "--only", "slots", "--out", filepath.Join(t.TempDir(), "p"))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitGauge(t, e.URL, "num_requests_running", func(n string) bool { return n != "0" })
	run(t, t.TempDir(), "kill", "-INT", fmt.Sprint(cmd.Process.Pid))
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), "its requests have ended") {
		t.Errorf("%v\n%s", err, &out)
	}
	if said := scraped(t, e.URL); !strings.Contains(said, `vllm:num_requests_running{engine="0",model_name="headgate-simulated-m1"} 0`) {
		t.Errorf("it left its requests there:\n%s", said)
	}

	others := exec.CommandContext(t.Context(), "curl", "-sN", e.URL+completionsPath, "-d", `{"prompt":"others","max_tokens":2000,"stream":true,"ignore_eos":true}`)
	if err := others.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = others.Process.Kill(); _ = others.Wait() }()
	awaitGauge(t, e.URL, "num_requests_running", func(n string) bool { return n != "0" })
	busy, err := exec.CommandContext(t.Context(), headgate.Binary(t), "probe", "--url", e.URL, "--kind", "vllm", "--yes").CombinedOutput()
	if err == nil || !strings.Contains(string(busy), "the engine has others' requests: 1") {
		t.Errorf("%v\n%s", err, busy)
	}
}

func awaitGauge(t *testing.T, url, name string, ok func(string) bool) {
	t.Helper()
	for range 1000 {
		for line := range strings.Lines(scraped(t, url)) {
			if value, found := strings.CutPrefix(line, "vllm:"+name+`{engine="0",model_name="headgate-simulated-m1"} `); found && ok(strings.TrimSpace(value)) {
				return
			}
		}
	}
	t.Fatalf("%s never was so", name)
}

func scraped(t *testing.T, url string) string {
	t.Helper()
	return run(t, t.TempDir(), "curl", "-s", url+"/metrics")
}

// tryProbe runs a probe that a page shows, on an engine of its own. Without consent it
// ends with status 2.
func tryProbe(t *testing.T, args, dir string) {
	t.Helper()
	e := headgate.StartEngine(t, "--speed", fmt.Sprint(speed))
	cmd := exec.CommandContext(t.Context(), headgate.Binary(t), strings.Fields(strings.ReplaceAll(args, "http://127.0.0.1:8000", e.URL))...)
	cmd.Dir = dir
	want := 0
	if !strings.Contains(args, "--yes") {
		want = 2
	}
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != want {
		t.Errorf("%v, want status %d\n%s", err, want, out)
	}
}

// TestServeWithProfile: a gateway knows of its engine what a probe found, and warns of
// what is configured otherwise.
func TestServeWithProfile(t *testing.T) {
	t.Parallel()
	e := headgate.StartEngine(t, "--speed", fmt.Sprint(speed))
	file := filepath.Join(t.TempDir(), "profile.json")
	run(t, t.TempDir(), headgate.Binary(t), "probe", "--url", e.URL, "--kind", "vllm", "--yes", "--only", "slots", "--out", file)
	serve := func(more string) *headgate.Gateway {
		return headgate.Start(t, fmt.Sprintf("anonymous: {classes: [a]}\npools:\n  - name: main\n    engines: [{name: gpu0, kind: vllm, url: %q, profile: %q%s}]\n    classes: [{name: a}]\n", e.URL, file, more))
	}
	serve("").AwaitReady() // without the profile it would want to be told the slots
	serve(", slots: 8").AwaitOutput("the configuration says of the engine's slots what the probe has shown to be otherwise.*\"said\":8,\"shown\":4")
}
