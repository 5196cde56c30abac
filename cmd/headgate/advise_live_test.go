//go:build live

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/bench"
	"headgate/bench/live"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

const adviceYAML = `journal: {file: "JOURNAL", buffer: 65536}
anonymous: {classes: [interactive, batch], default: interactive, header: true}
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://ENGINE", slots: 8, priority: true, observe_every: 100ms}]
`

// TestLiveAdviceAgrees: a gateway in front of the simulated engine writes the journal, in real
// time, and the run of what was advised is of real processes too. It takes ten minutes of a
// machine with nothing else to do.
func TestLiveAdviceAgrees(t *testing.T) {
	dir := t.TempDir()
	files, err := advicePolicies(dir)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile(files["fewer"])
	if err != nil {
		t.Fatal(err)
	}
	e := simengine.DefaultConfig()
	e.Speed, e.MaxNumSeqs, e.NumBlocks, e.MaxModelLen = adviceSpeed, adviceSlots, adviceBlocks, adviceLength
	_, at, closeEngine, err := startBenchEngine(t.Context(), vllmapi.Config{Engine: e, ModelName: demoModel, Version: "test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine()
	journal := filepath.Join(dir, "journal.jsonl")
	yaml := strings.NewReplacer("ENGINE", at.String(), "JOURNAL", journal).Replace(adviceYAML)
	for line := range strings.Lines(string(policy)) {
		yaml += "    " + line
	}
	g, err := startBenchGateway(t.Context(), "advice", yaml)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	start := time.Now()
	day := adviceDay(5 * time.Minute)
	for i := range day {
		time.Sleep(time.Until(start.Add(day[i].Arrival)))
		all.Go(func() {
			req, err := completionFrom(t.Context(), g.clients, day[i].Class, i, day[i].PromptTokens, day[i].Output, true)
			if err == nil {
				_, err = stream(req)
			}
			if err != nil && !strings.Contains(err.Error(), "429") && !strings.Contains(err.Error(), "503") { // refused
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	headgate := filepath.Join(t.TempDir(), "headgate")
	if err := os.Symlink(self, headgate); err != nil {
		t.Fatal(err)
	}
	adviceAgrees(t, dir, journal, bench.Live, &live.Runner{Headgate: headgate, Policy: policyYAML})
}
