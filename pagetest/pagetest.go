// Package pagetest keeps the parts of documents that are made from the source equal to what
// the source makes.
//
// Such a part lies between two lines that are comments of Markdown: the first says what
// writes it, the second is End. What is around it is written by hand.
package pagetest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// End is the line behind a part.
const End = "<!-- end -->\n"

// Cut returns what a file has before the part that begins behind a line, the part, and what
// it has behind it; both lines are of what is around it.
func Cut(t testing.TB, file, begin string) (head, part, tail string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	part, tail, ok2 := strings.Cut(rest, End)
	if !ok || !ok2 {
		t.Fatalf("%s: the lines %q and %q are gone", file, begin, End)
	}
	return head + begin, part, End + tail
}

// Keep tells a test that a file's part is not what is made for it, or writes that there.
func Keep(t testing.TB, file, begin, made string, rewrite bool) {
	t.Helper()
	head, part, tail := Cut(t, file, begin)
	if rewrite {
		if err := os.WriteFile(file, []byte(head+made+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(part, made); d != "" {
		t.Errorf("%s is not what is made of the source; its first line says how it is written (-file +made):\n%s", file, d)
	}
}
