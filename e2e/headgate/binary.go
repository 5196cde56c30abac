package headgate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Binary returns the path of headgate, built once a test run. It is kept in the
// module's cache folder, into which it is moved whole, so that test runs which
// share a checkout don't meet half of one.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
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
	built, path := filepath.Join(dir, "headgate"), filepath.Join(cache, "headgate")
	cmd := exec.Command("go", "build", "-o", built, "./cmd/headgate")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/headgate: %w\n%s", err, out)
	}
	return path, os.Rename(built, path)
})
