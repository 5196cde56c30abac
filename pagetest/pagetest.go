// Package pagetest keeps the parts of documents that are made from the source equal to what
// the source makes.
//
// What is around such a part is written by hand.
package pagetest

import (
	"cmp"
	"os"
	"strings"
	"testing"

	diff "github.com/google/go-cmp/cmp"
)

// Part of a file is what lies between two lines that are comments: the first says what writes
// it.
type Part struct {
	File  string
	Begin string
	End   string // "" is Markdown's "<!-- end -->"
}

// Cut returns what a file has before a part, the part, and what it has behind it; both lines
// are of what is around it.
func (p Part) Cut(t testing.TB) (head, part, tail string) {
	t.Helper()
	text, err := os.ReadFile(p.File)
	if err != nil {
		t.Fatal(err)
	}
	end := cmp.Or(p.End, "<!-- end -->\n")
	head, rest, ok := strings.Cut(string(text), p.Begin)
	part, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: the lines %q and %q are gone", p.File, p.Begin, end)
	}
	return head + p.Begin, part, end + tail
}

// Keep tells a test that a part is not what is made for it, or writes that there.
func (p Part) Keep(t testing.TB, made string, rewrite bool) {
	t.Helper()
	head, part, tail := p.Cut(t)
	if rewrite {
		if err := os.WriteFile(p.File, []byte(head+made+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := diff.Diff(part, made); d != "" {
		t.Errorf("%s is not what is made of the source; its first line says how it is written (-file +made):\n%s", p.File, d)
	}
}
