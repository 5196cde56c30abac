// Package proctest is what tests of real processes share: programs of the module that are
// built for them, and what is asked of a process that runs.
package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Program returns what tells the path of a program of the module, by its package
// ("./cmd/headgate"), which is built once a test run. It is kept in the module's cache
// folder, into which it is moved whole, so that test runs which share a checkout don't
// meet half of one.
func Program(pkg string) func(testing.TB) string {
	once := sync.OnceValues(func() (string, error) { return build(pkg) })
	return func(t testing.TB) string {
		t.Helper()
		path, err := once()
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
}

func build(pkg string) (string, error) {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(string(gomod))
	cache := filepath.Join(root, ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	name := filepath.Base(pkg)
	built, path := filepath.Join(dir, name), filepath.Join(cache, name)
	cmd := exec.Command("go", "build", "-o", built, pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return path, os.Rename(built, path)
}
