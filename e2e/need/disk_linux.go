package need

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Disk mounts an empty disk of so many bytes until the test ends. Whoever may not mount
// one has the test skipped.
func Disk(t testing.TB, size int) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, "root, who may mount a disk")
	}
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Logf("mount: %v", err)
		missing(t, "root, who may mount a disk")
	}
	// Behind it: what is busy for a moment longer is let go with its last user.
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}
