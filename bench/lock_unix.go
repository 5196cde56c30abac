//go:build unix

package bench

import (
	"os"
	"syscall"
)

// lock keeps others from a file until it is closed, or this process ends.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
