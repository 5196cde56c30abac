package main

import (
	"bytes"
	"strings"
	"testing"

	"headgate/trace"
)

// runBench runs headgate bench with arguments.
func runBench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := benchCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestBenchTraceHash(t *testing.T) {
	const want = "d788a3a2f2cd3ec9ba12c9af88e42c2208b010d46de70ca17b7f7b8d952a2822\n"
	if out, err := runBench(t, "trace", "hash", "--profile", "metal-long-context-v1", "--seed", "2"); err != nil || out != want {
		t.Errorf("hash printed %q, %v: want %q", out, err, want)
	}
}

func TestBenchTraceWrite(t *testing.T) {
	out, err := runBench(t, "trace", "write", "--profile", "metal-declared-v1", "--seed", "7")
	if err != nil {
		t.Fatal(err)
	}
	have, err := trace.Published(strings.NewReader(out), "stdout")
	if err != nil {
		t.Fatal(err)
	}
	want, err := trace.Generate("metal-declared-v1", 7)
	if err != nil {
		t.Fatal(err)
	}
	if have.Hash() != want.Hash() {
		t.Error("what was written is another trace")
	}
}

func TestBenchTraceUnknownProfile(t *testing.T) {
	out, err := runBench(t, "trace", "hash", "--profile", "metal")
	if err == nil || out != "" {
		t.Fatalf("an unknown profile printed %q, error %v", out, err)
	}
	for _, name := range append(trace.Names(), `"metal"`) {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
}
