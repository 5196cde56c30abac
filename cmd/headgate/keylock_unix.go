//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// lock waits until nobody else has the file, and keeps it until it is closed or the
// process ends, however that comes.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }

// sameOwner gives a file the owner and group of another where root asks; nobody else can
// give files away.
func sameOwner(f *os.File, like fs.FileInfo) error {
	if of, ok := like.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return f.Chown(int(of.Uid), int(of.Gid))
	}
	return nil
}
