//go:build unix

package live

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStopEndsTheGroup: what a command has started ends with it.
func TestStopEndsTheGroup(t *testing.T) {
	p, said, err := startSaying(t.Context(), []string{"sh", "-c", "sleep 600 & echo child $!; wait"}, regexp.MustCompile(`^child (\d+)$`))
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Sscan(said[1], &child); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); syscall.Kill(child, 0) == nil; {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); strings.Contains(string(b), ") Z ") {
			return // it has ended, and nobody has asked for its status
		}
		if time.Now().After(end) {
			t.Fatalf("process %d still runs", child)
		}
	}
}
