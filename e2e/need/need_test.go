package need

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// recorder is a testing.TB that records how a test would have ended.
type recorder struct {
	testing.TB
	outcome string
}

func (r *recorder) Helper() {}
func (r *recorder) Skipf(format string, args ...any) {
	r.outcome = "skip: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.outcome = "fatal: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func outcome(f func(testing.TB)) string {
	r := &recorder{outcome: "passed"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.outcome
}

func TestMissingTool(t *testing.T) {
	ask := func(tb testing.TB) { Tool(tb, "no-such-tool") }
	t.Setenv("CI", "")
	if got, want := outcome(ask), "skip: SKIP no-such-tool: make setup"; got != want {
		t.Errorf("outside CI: %q, want %q", got, want)
	}
	t.Setenv("CI", "true")
	if got, want := outcome(ask), "fatal: no-such-tool is missing: make setup"; got != want {
		t.Errorf("in CI: %q, want %q", got, want)
	}
	if got := outcome(func(tb testing.TB) { Tool(tb, "go") }); got != "passed" {
		t.Errorf("a tool that is there: %q", got)
	}
}

func TestNodeModules(t *testing.T) {
	t.Setenv("CI", "")
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(tb testing.TB) { NodeModules(tb, dir) }
	write("package.json", `{"name": "some-client", "dependencies": {"@scope/lib": "1.2.3"}}`)
	skipped := "skip: SKIP some-client: make setup"
	if got := outcome(ask); got != skipped {
		t.Errorf("nothing installed: %q, want %q", got, skipped)
	}
	write("node_modules/@scope/lib/package.json", `{"version": "1.2.2"}`)
	if got := outcome(ask); got != skipped {
		t.Errorf("another version installed: %q, want %q", got, skipped)
	}
	write("node_modules/@scope/lib/package.json", `{"version": "1.2.3"}`)
	if got := outcome(ask); got != "passed" {
		t.Errorf("the version installed: %q", got)
	}
}
