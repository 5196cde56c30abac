//go:build unix

package main

import (
	"os"
	"syscall"
)

// lock waits until nobody else has the file, and keeps it until it is closed or the
// process ends, however that comes.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }
