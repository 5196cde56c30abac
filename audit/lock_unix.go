//go:build unix

package audit

import (
	"os"
	"syscall"
)

// lock keeps others from writing the file, for as long as it is open.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
