//go:build linux || darwin

package doctor

import (
	"math"
	"os"
	"syscall"
)

// mayOpen is how many files a process of this user may open, the hard limit, to which the
// runtime raises its own; 0: it is not known.
func mayOpen() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || l.Max > math.MaxInt32 {
		return 0
	}
	return int(l.Max)
}

const writeAndSearch = 3

// access asks whether files can be made in a folder. It makes none.
func access(dir string) error {
	if err := syscall.Access(dir, writeAndSearch); err != nil {
		return &os.PathError{Op: "write", Path: dir, Err: err}
	}
	return nil
}

// room is what is left of a folder's disk, in bytes and in files.
func room(dir string) (free int64, files uint64, ok bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, 0, false
	}
	if files = s.Ffree; s.Files == 0 {
		files = 1 // it does not count them
	}
	return int64(s.Bavail) * int64(s.Bsize), files, true
}
