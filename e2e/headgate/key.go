package headgate

import (
	"os/exec"
	"regexp"
	"testing"
)

var printedKey = regexp.MustCompile(`(?m)^key:  (\S+)\nhash: (\S+)$`)

// NewKey makes an API key, and the hash that a configuration has for it, by
// `headgate key`.
func NewKey(t testing.TB) (key, hash string) {
	t.Helper()
	out, err := exec.Command(Binary(t), "key").Output()
	if err != nil {
		t.Fatalf("headgate key: %v", err)
	}
	m := printedKey.FindSubmatch(out)
	if m == nil {
		t.Fatal("headgate key did not print a key and its hash")
	}
	return string(m[1]), string(m[2])
}
