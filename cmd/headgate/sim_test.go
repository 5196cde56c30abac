package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headgate/simengine"
	"headgate/trace"
)

// runSim runs headgate sim with arguments.
func runSim(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := simCommand()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// counts are a report's counts, as they can be made again from requests: all but
// the recalls.
type counts struct {
	Interactive struct {
		Offered       int `json:"offered"`
		Completed     int `json:"completed"`
		ReturnOffered int `json:"return_offered"`
		ReturnOnTime  int `json:"return_on_time"`
		OnTime        int `json:"on_time"`
	} `json:"interactive"`
	Batch struct {
		Offered               int `json:"offered"`
		Completed             int `json:"completed"`
		TokensInWindow        int `json:"tokens_in_window"`
		BorrowCohortOffered   int `json:"borrow_cohort_offered"`
		BorrowCohortCompleted int `json:"borrow_cohort_completed"`
	} `json:"batch"`
	MakespanS   float64        `json:"makespan_s"`
	Refused     map[string]int `json:"refused"`
	Failed      int            `json:"failed"`
	Reclaims    int            `json:"reclaims"`
	Preemptions int            `json:"preemptions"`
	Recomputed  int            `json:"recomputed_tokens"`
}

type perSeed struct {
	Profile string `json:"profile"`
	Seed    uint32 `json:"seed"`
	File    string `json:"file"`
	Skipped int    `json:"skipped"`
	counts
}

type armCounts struct {
	Name string `json:"name"`
	counts
	PerSeed []perSeed `json:"per_seed"`
}

// requestLine is what is read of a line of --requests-out.
type requestLine struct {
	Profile, File, Arm, Class, Outcome, Cause, Window string

	Seed                  uint32
	Reclaims, Preemptions int

	Recomputed   int     `json:"recomputed_tokens"`
	ArrivalMS    float64 `json:"arrival_ms"`
	FirstTokenMS float64 `json:"first_token_ms"`
	DoneMS       float64 `json:"done_ms"`
	PromptTokens int     `json:"prompt_tokens"`
	OutputTokens int     `json:"output_tokens"`
	BeforeEnd    bool    `json:"before_end"`
}

func (c *counts) add(l *requestLine) {
	n := func(when bool) int {
		if when {
			return 1
		}
		return 0
	}
	done := l.Outcome == "completed"
	c.Reclaims += l.Reclaims
	c.Preemptions += l.Preemptions
	c.Recomputed += l.Recomputed
	c.Failed += n(l.Outcome == "failed")
	if l.Outcome == "rejected" {
		if c.Refused == nil {
			c.Refused = map[string]int{}
		}
		c.Refused[l.Cause]++
	}
	c.MakespanS = max(c.MakespanS, l.DoneMS/1000)
	if l.Class == "interactive" {
		onTime := done && l.FirstTokenMS-l.ArrivalMS <= 5_000 && l.DoneMS-l.ArrivalMS <= 30_000
		i := &c.Interactive
		i.Offered++
		i.Completed += n(done)
		i.OnTime += n(onTime)
		i.ReturnOffered += n(l.Window == "return")
		i.ReturnOnTime += n(l.Window == "return" && onTime)
		return
	}
	b := &c.Batch
	b.Offered++
	b.Completed += n(done)
	b.BorrowCohortOffered += n(l.Window == "borrow")
	b.BorrowCohortCompleted += n(l.Window == "borrow" && done)
	b.TokensInWindow += n(done && l.BeforeEnd) * (l.PromptTokens + l.OutputTokens)
}

// recount makes a report's arms from the lines of its requests alone.
func recount(t *testing.T, lines io.Reader) []armCounts {
	t.Helper()
	var arms []armCounts
	for d := json.NewDecoder(lines); ; {
		var l requestLine
		if err := d.Decode(&l); err == io.EOF {
			return arms
		} else if err != nil {
			t.Fatal(err)
		}
		if len(arms) == 0 || arms[len(arms)-1].Name != l.Arm {
			arms = append(arms, armCounts{Name: l.Arm})
		}
		a := &arms[len(arms)-1]
		of := perSeed{Profile: l.Profile, Seed: l.Seed, File: l.File}
		if k := len(a.PerSeed) - 1; k < 0 || a.PerSeed[k].Profile != of.Profile || a.PerSeed[k].Seed != of.Seed || a.PerSeed[k].File != of.File {
			a.PerSeed = append(a.PerSeed, of)
		}
		s := &a.PerSeed[len(a.PerSeed)-1]
		if l.Outcome == "skipped" {
			s.Skipped++
			continue
		}
		s.add(&l)
		a.add(&l)
	}
}

// Every count of a report follows from the lines of its requests: of drawn
// traces, of files of two profiles, of a log with requests that are skipped, of an
// engine that fails.
func TestSimRequestsGiveTheReport(t *testing.T) {
	dir := t.TempDir()
	for name, profile := range map[string]string{"a.json": "fixed-burst-v3", "b.json": "metal-balanced-v1", "c.json": "fixed-burst-v3"} {
		tr, err := trace.Generate(profile, uint32(name[0]))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if _, err := tr.WriteTo(&text); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), text.String())
	}
	write(t, filepath.Join(dir, "log.csv"), "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n"+
		strings.Repeat("2023-11-16 18:17:04,1180,80\n", 12)+"2023-11-16 18:17:08,4096,1\n")
	for name, args := range map[string][]string{
		"drawn":     {"--profile", "metal-long-context-v1,metal-declared-v1", "--seeds", "1-4", "--speed", "1.5"},
		"directory": {"--traces", dir, "--class-of", "log.csv=batch"},
		"fails":     {"--seeds", "1-3", "--scheduler", "llama-server", "--context", "5000"},
	} {
		out := filepath.Join(t.TempDir(), "requests.jsonl")
		arms := "priority,lending,headgate"
		if name == "fails" {
			arms = "fcfs,lending"
		}
		args = append(args, "--arms", arms, "--output", "json", "--requests-out", out)
		text := runSim(t, args...)
		var rep struct {
			Skipped int
			Arms    []armCounts
		}
		if err := json.Unmarshal([]byte(text), &rep); err != nil {
			t.Fatal(err)
		}
		lines, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		have := recount(t, bytes.NewReader(lines))
		opts := []cmp.Option{cmp.AllowUnexported(armCounts{}, perSeed{}), cmpopts.EquateApprox(0, 1e-6)}
		if d := cmp.Diff(rep.Arms, have, opts...); d != "" {
			t.Errorf("%s: from the requests come other counts (-report +requests):\n%s", name, d)
		}
		a := rep.Arms[1]
		if a.Interactive.ReturnOnTime == 0 || a.Interactive.ReturnOnTime == a.Interactive.ReturnOffered || a.Batch.Completed == a.Batch.Offered || a.Batch.TokensInWindow == 0 {
			t.Errorf("%s: a report that tells nothing: %+v", name, a)
		}
		switch first, last := rep.Arms[0], rep.Arms[len(rep.Arms)-1]; {
		case a.Refused["queue_full"] == 0:
			t.Errorf("%s: nothing is refused", name)
		case name == "fails" && first.Failed == 0:
			t.Errorf("%s: nothing failed", name)
		case name != "fails" && (first.Preemptions == 0 || first.Recomputed == 0 || last.Reclaims == 0 || last.Recomputed == 0):
			t.Errorf("%s: nothing is interrupted: %+v, %+v", name, first, last)
		}
		if name == "directory" && rep.Skipped != 2 {
			t.Errorf("%d skipped, want 2", rep.Skipped)
		}
		// The same again gives the same bytes.
		if again := runSim(t, args...); again != text {
			t.Errorf("%s: the report differs the second time:\n%s", name, cmp.Diff(text, again))
		}
		if again, err := os.ReadFile(out); err != nil || !bytes.Equal(again, lines) {
			t.Errorf("%s: the requests differ the second time: %v", name, err)
		}
	}
}

// The default policy, in the file that is printed, is the arm that is built in: on
// the default engine and on every other.
func TestSimPolicyFileIsTheDefault(t *testing.T) {
	for _, engine := range [][]string{
		nil,
		{"--speed", "2", "--prefix-caching"},
		{"--slots", "6", "--kv-blocks", "701", "--block-size", "8"},
		{"--scheduler", "llama-server", "--context", "6001"},
		{"--scheduler", "llama-server", "--context", "16384", "--unified=false"},
	} {
		args := append([]string{"--arms", "headgate", "--profile", "metal-long-context-v1,metal-balanced-v1,metal-declared-v1", "--seeds", "1-4", "--output", "json"}, engine...)
		if d := cmp.Diff(runSim(t, args...), runSim(t, append(args, "--policy", "policy.yaml")...)); d != "" {
			t.Errorf("%v: the built-in policy and the file's differ (-built-in +file):\n%s", engine, d)
		}
	}
	doc, err := os.ReadFile("../../docs/simulation.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "```yaml\n"+policyYAML+"```\n") {
		t.Error("docs/simulation.md does not show policy.yaml")
	}
}

// What a file says of a class's priority at the engine is what its requests get.
func TestSimPolicyPriorities(t *testing.T) {
	p, err := loadPolicy(simCommand(), "policy.yaml", simengine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"interactive": 0, "batch": 10}, p.Priority); d != "" {
		t.Error(d)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
