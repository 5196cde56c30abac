package main

import (
	"strings"
	"testing"
)

func TestHold(t *testing.T) {
	const bench = "goos: linux\nBenchmarkA-2   \t100\t  120.5 ns/op\t  0 B/op\t  0 allocs/op\nBenchmarkB 5 7 ns/op\nPASS\n"
	for _, tt := range []struct {
		limits, out string
		ok          bool
	}{
		{"# a comment\n\nBenchmarkA ns/op 1000\nBenchmarkA allocs/op 0\n", "ok   BenchmarkA: 120.5 ns/op, allowed 1000\nok   BenchmarkA: 0 allocs/op, allowed 0\n", true},
		{"BenchmarkB ns/op 6\n", "FAIL BenchmarkB: 7 ns/op, allowed 6\n", false},
		{"BenchmarkC ns/op 6\n", "FAIL BenchmarkC: no ns/op in the output\n", false},
	} {
		var out strings.Builder
		ok, err := hold(strings.NewReader(tt.limits), strings.NewReader(bench), &out)
		if err != nil || ok != tt.ok || out.String() != tt.out {
			t.Errorf("%q: got %v, %v\n%s", tt.limits, ok, err, out.String())
		}
	}
	if _, err := hold(strings.NewReader("x y"), strings.NewReader(bench), &strings.Builder{}); err == nil {
		t.Error("a limit without a number is accepted")
	}
}
