// Package need says what an end-to-end test needs besides Go.
//
// A missing need skips the test on a developer's machine, in the one form that
// the build collects ("SKIP name: make setup"), and fails it where CI=true: there
// nothing may be left out unseen.
package need

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Tool returns the path of a program.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name)
	}
	return path
}

// NodeModules checks that npm has installed, under dir, the very versions that
// dir/package.json names. It installs nothing.
func NodeModules(t testing.TB, dir string) {
	t.Helper()
	var pkg struct {
		Name         string
		Dependencies map[string]string
	}
	if err := readJSON(filepath.Join(dir, "package.json"), &pkg); err != nil {
		t.Fatal(err)
	}
	for name, want := range pkg.Dependencies {
		var have struct{ Version string }
		err := readJSON(filepath.Join(dir, "node_modules", filepath.FromSlash(name), "package.json"), &have)
		if err != nil || have.Version != want {
			missing(t, pkg.Name)
		}
	}
}

func missing(t testing.TB, name string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: make setup", name)
	}
	t.Skipf("SKIP %s: make setup", name)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
