package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/prove"
)

// proved runs the command in the project's folder.
func proved(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"prove"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

const wave = "prove/testdata/wave.jsonl.gz"

// TestProvePage: what the page of the docs shows is how the page begins.
func TestProvePage(t *testing.T) {
	t.Chdir("../..")
	const page = "docs/prove.md"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```sh\n\\./bin/headgate prove (.*?)\n```\n\nThe page begins:\n\n```text\n(.*?)```").FindStringSubmatch(string(b))
	if m == nil {
		t.Fatalf("%s has no command with what it prints", page)
	}
	out, err := proved(t, strings.Fields(m[1])...)
	if err != nil {
		t.Fatal(err)
	}
	begins, _, _ := strings.Cut(out, "\n## The replays")
	if *rewrite {
		if err := os.WriteFile(page, []byte(strings.Replace(string(b), "```text\n"+m[2]+"```", "```text\n"+begins+"```", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(m[2], begins); d != "" {
		t.Errorf("(-page +printed):\n%s", d)
	}
}

// TestProveRealJournal: the replay of a journal that a gateway wrote under load is near
// enough to what it saw, in every form of output, with step times that are fitted to it
// and with those that it was made with; with others it says that it isn't.
func TestProveRealJournal(t *testing.T) {
	t.Chdir("../..")
	args := []string{wave, "--config", "prove/testdata/wave.yaml", "--block", "20s", "--output", "json"}
	for _, engine := range [][]string{nil, {"--engine", "m1", "--speed", "0.1"}} {
		out, err := proved(t, append(slices.Clone(args), engine...)...)
		if err != nil {
			t.Fatal(err)
		}
		var rep prove.Report
		if err := json.Unmarshal([]byte(out), &rep); err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: %v\n%+v", engine, rep.Answer, rep.Check)
		if c := rep.Check; len(rep.Distrust) > 0 || c.E2E.MedianError > 0.1 || c.Scored-c.Agree > c.Scored/50 {
			t.Errorf("%v: %v, %+v", engine, rep.Distrust, c)
		}
		if !rep.Recording.Observed || (rep.Fit == nil) != (engine != nil) || rep.Capacity.Interval.Low == nil {
			t.Errorf("%v: %+v", engine, rep.Recording)
		}
	}
	out, err := proved(t, append(args, "--engine", "m1", "--speed", "0.2")...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "The numbers on this page are not to be trusted: ") {
		t.Errorf("an engine of half the speed is believed:\n%s", out[:500])
	}
	if out, err = proved(t, wave, "--slots", "8", "--kv-blocks", "1025", "--output", "html", "--batch-class", "interactive"); err == nil {
		t.Errorf("without a request that is scored:\n%s", out)
	}
	if out, err = proved(t, wave, "--slots", "8", "--kv-blocks", "1025", "--output", "html", "--block", "20s"); err != nil || !strings.HasPrefix(out, "<!DOCTYPE html>") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestProveRefuses: what flags can't be together, and what is missing.
func TestProveRefuses(t *testing.T) {
	t.Chdir("../..")
	dir := t.TempDir()
	bare := filepath.Join(dir, "bare.yaml")
	b, err := os.ReadFile("prove/testdata/wave.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, bare, strings.Replace(string(b), "slots: 8, kv_tokens: 16384, ", "", 1))
	other := filepath.Join(dir, "other.yaml")
	write(t, other, strings.Replace(string(b), "name: main", "name: second", 1))
	for want, args := range map[string][]string{
		`--output is "pdf": allowed are md, html and json`:        {wave, "--output", "pdf"},
		"--config and --policy both have a policy":                {wave, "--config", "prove/testdata/wave.yaml", "--policy", "x"},
		"what the engine holds is not in a journal: give --slots": {wave, "--slots", "4"},
		"engine gpu0 does not say its slots":                      {wave, "--config", bare},
		"engine gpu0 does not say its kv_tokens":                  {wave, "--config", bare, "--slots", "8"},
		"no pool main, of which the journal is":                   {wave, "--config", other},
		"--present x: the journal is of a pool that observed":     {wave, "--config", "prove/testdata/wave.yaml", "--present", "x"},
		"--speed is a factor on a model's step times":             {wave, "--config", "prove/testdata/wave.yaml", "--speed", "2"},
		"--margin is -1":                    {wave, "--margin", "-1"},
		"--gpus is 0":                       {wave, "--gpus", "0"},
		"--batch-prompt is 0":               {wave, "--batch-prompt", "0"},
		"--batch-depth is -1":               {wave, "--batch-depth", "-1"},
		"--ttft is -1s":                     {wave, "--ttft", "-1s"},
		`--from is "noon"`:                  {wave, "--from", "noon"},
		"requires at least 1 arg":           {},
		"absent.jsonl: no such file":        {"absent.jsonl"},
		"--kv-blocks: not with --scheduler": {wave, "--scheduler", "llama-server", "--slots", "8", "--kv-blocks", "9"},
		"--priority: llama-server has none": {wave, "--scheduler", "llama-server", "--slots", "8", "--context", "16384", "--priority"},
	} {
		if _, err := proved(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q, got %v", args, want, err)
		}
	}
}

// TestImportJournal: a journal is a trace, of the same hash compressed or not, that sim
// replays.
func TestImportJournal(t *testing.T) {
	t.Chdir("../..")
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(args)
		err := cmd.Execute()
		return out.String(), err
	}
	imported, err := run("bench", "trace", "import", wave)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "wave.json"), imported)
	var hashes [2]string
	for i, file := range []string{filepath.Join(dir, "wave.json"), wave} {
		if hashes[i], err = run("bench", "trace", "hash", file); err != nil {
			t.Fatal(err)
		}
	}
	if hashes[0] != hashes[1] || len(hashes[0]) != 65 {
		t.Errorf("hashes %q", hashes)
	}
	out, err := run("sim", "--traces", dir, "--arms", "headgate", "--slots", "8", "--kv-blocks", "1025", "--max-model-len", "8192", "--speed", "0.1")
	if err != nil || !strings.HasPrefix(out, "journal, 1 traces") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := run("bench", "trace", "import", wave, "--pool", "odd"); err == nil || !strings.Contains(err.Error(), "the journal's are main") {
		t.Errorf("another pool: %v", err)
	}
	if _, err := run("bench", "trace", "import", filepath.Join(dir, "wave.json"), wave); err == nil || !strings.Contains(err.Error(), "is no journal: allowed is one file") {
		t.Errorf("a trace and a journal: %v", err)
	}
	if _, err := run("sim", "--interactive", wave); err == nil || !strings.Contains(err.Error(), "has classes of its own") {
		t.Errorf("a journal as a log: %v", err)
	}
}
