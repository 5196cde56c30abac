//go:build !linux

package need

import "testing"

// Disk is Linux's alone.
func Disk(t testing.TB, _ int) string {
	t.Helper()
	missing(t, "Linux, whose disks can be mounted")
	return ""
}
