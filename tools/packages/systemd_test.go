package packages

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestUnit: systemd takes the unit, and rates its sandbox.
func TestUnit(t *testing.T) {
	analyze := program(t, "systemd-analyze")
	dir := t.TempDir()
	// The program need not be installed here, and the page is in the package only.
	unit := strings.NewReplacer("/usr/bin/headgate", "/bin/true", "file:/usr/share/doc/headgate/install.md", "https://headgate.invalid/").Replace(read(t, "deploy/systemd/headgate.service"))
	file := filepath.Join(dir, "headgate.service")
	if err := os.WriteFile(file, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := mustRun(t, analyze, "verify", "--man=no", file); strings.Contains(out, "headgate.service") {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
	out := mustRun(t, analyze, "security", "--offline=true", "--no-pager", file)
	m := regexp.MustCompile(`Overall exposure level for headgate.service: ([0-9.]+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("systemd-analyze security:\n%s", out)
	}
	level, err := strconv.ParseFloat(m[1], 64)
	if err != nil || level > 1.5 {
		t.Errorf("exposure %s, want 1.5 at most:\n%s", m[1], out)
	}
	if !strings.Contains(read(t, "docs/install.md"), "says "+m[1]+" (OK)") {
		t.Errorf("docs/install.md does not say %s", m[1])
	}
}
