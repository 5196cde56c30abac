package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/batchtest"
)

func TestFolder(t *testing.T) {
	batchtest.RunFiles(t, func(t *testing.T) batch.Files {
		f, err := New(filepath.Join(t.TempDir(), "a", "b"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	})
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	f, err := New(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", ".", "..", "../secret", "a/b", `a\b`, ".hidden", "a\x00", "/etc/passwd", string(make([]byte, 300))} {
		if _, err := f.Create(context.Background(), id); err == nil {
			t.Errorf("%q was created", id)
		}
		if _, err := f.Open(context.Background(), id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("to open %q: %v", id, err)
		}
		if err := f.Remove(context.Background(), id); err != nil {
			t.Errorf("to remove %q: %v", id, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "secret")); err != nil {
		t.Error(err)
	}
}

// TestAbandoned: a writer that died leaves no garbage for good, one that is slow is left
// alone.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	f, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := f.Create(context.Background(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	all, _ := filepath.Glob(filepath.Join(dir, ".*"))
	old := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(all[0], old, old); err != nil {
		t.Fatal(err)
	}
	if err := f.Each(context.Background(), func(id string, _ time.Time) error {
		t.Errorf("%s is told of", id)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 1 || left[0] != all[1] {
		t.Errorf("left: %v", left)
	}
}
