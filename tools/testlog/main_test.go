package main

import (
	"slices"
	"strings"
	"testing"
)

func TestLog(t *testing.T) {
	const in = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: chatter\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: SKIP llama: make setup\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
	const fails = `{"Action":"output","Package":"q","Test":"TestC","Output":"    c_test.go:1: wrong\n"}
{"Action":"output","Package":"q","Test":"TestC","Output":"--- FAIL: TestC (0.00s)\n"}
{"Action":"fail","Package":"q","Test":"TestC"}
{"Action":"output","Package":"q","Test":"TestD","Output":"panic: boom\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q"}
`
	for _, tt := range []struct {
		name, in, out string
		failed        bool
		skipped       []string
	}{
		{"pass and skip", in, "    b_test.go:1: SKIP llama: make setup\n--- SKIP: TestB (0.00s)\nok  \tp\t0.1s\n", false,
			[]string{"p TestB: b_test.go:1: SKIP llama: make setup"}},
		{"fail and panic", fails, "    c_test.go:1: wrong\n--- FAIL: TestC (0.00s)\npanic: boom\nFAIL\tq\t0.1s\n", true, nil},
		{"does not build", `{"ImportPath":"r","Action":"build-output","Output":"r.go:1: undefined\n"}` + "\n" + `{"ImportPath":"r","Action":"build-fail"}`, "r.go:1: undefined\n", true, nil},
		{"no module", "go: cannot find main module\n", "go: cannot find main module\n", true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			l := newLog(&out)
			if err := l.read(strings.NewReader(tt.in)); err != nil {
				t.Fatal(err)
			}
			if out.String() != tt.out || l.failed != tt.failed || !slices.Equal(l.skipped, tt.skipped) {
				t.Errorf("failed %v, skipped %q, out\n%s", l.failed, l.skipped, out.String())
			}
		})
	}
}
