package client

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"testing"

	"headgate/e2e/need"
)

// Step is one use of the SDK's files and batches; see batch.mjs.
type Step struct {
	Call string `json:"call"`
	Args []any  `json:"args"`
}

// Do is a Step.
func Do(call string, args ...any) Step {
	if args == nil {
		args = []any{}
	}
	return Step{call, args}
}

// Of is in place of an argument the part of an earlier step's result, such as 0.id.
func Of(path string) any { return map[string]string{"$": path} }

// StepResult is what came of a Step.
type StepResult struct {
	Value json.RawMessage `json:"value"`
	Error *Error          `json:"error"`
}

// Steps makes steps one after another, and returns what came of each.
func Steps(t testing.TB, dir, baseURL, key string, steps ...Step) []StepResult {
	t.Helper()
	node := need.Tool(t, "node")
	need.NodeModules(t, dir)
	input, err := json.Marshal(map[string]any{"baseURL": baseURL, "apiKey": key, "steps": steps})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "batch.mjs")
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &stderr, &stdout)
	}
	all := make([]StepResult, 0, len(steps))
	for line := range bytes.Lines(stdout.Bytes()) {
		var r StepResult
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, r)
	}
	if len(all) != len(steps) {
		t.Fatalf("%d results of %d steps\n%s", len(all), len(steps), &stderr)
	}
	return all
}
