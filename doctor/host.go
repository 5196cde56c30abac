package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// Load is what a gateway has open and holds at its limits.
type Load struct {
	Connections int // limits.max_connections
	Tenants     int // limits.max_tenants
	// Files is how many files it may open, where a process that runs has said so; 0: it is
	// what a process of this user may.
	Files int
}

// What a gateway takes.
const (
	// filesEach is how many files a running request has: its client's and its engine's.
	filesEach = 2
	// filesElse is what else is open: the admin listener's connections, scrapes, logs.
	filesElse = 512
	// memoryEach is a stream's memory in bytes, as docs/performance.md has it.
	memoryEach = 80 << 10
	memoryElse = 64 << 20
	tenantEach = 200
)

// Limits looks at what the system lets a process have.
func Limits(l Load) Check {
	return Check{Of: "limits", Run: func(_ context.Context, r *Reporter) {
		has, from := l.Files, "the gateway that runs may open %d"
		if has == 0 {
			has, from = mayOpen(), "a process of this user may open %d"
		}
		if need := filesEach*l.Connections + filesElse; has > 0 && has < need {
			fit := max((has-filesElse)/filesEach, 1)
			r.Found(LimitFiles, fmt.Sprintf("max_connections is %d, which takes %d files; "+from, l.Connections, need, has),
				fmt.Sprintf("raise the limit where it is started (LimitNOFILE=%d in its unit, ulimit -n), or write limits.max_connections: %d", need, fit))
		}
		need := int64(l.Connections)*memoryEach + int64(l.Tenants)*tenantEach + memoryElse
		if most, by := memory(); most > 0 && most < need {
			r.Found(LimitMemory, fmt.Sprintf("%d connections take some %s; %s is %s", l.Connections, size(need), by, size(most)),
				fmt.Sprintf("give it more, or write limits.max_connections: %d", max((most-memoryElse)/memoryEach, 1)))
		}
	}}
}

// memory is the least of what bounds this process's memory, in bytes, and what says so; 0:
// nobody does.
func memory() (most int64, by string) {
	least := func(n int64, what string) {
		if n > 0 && n < math.MaxInt64 && (most == 0 || n < most) {
			most, by = n, what
		}
	}
	least(debug.SetMemoryLimit(-1), "GOMEMLIMIT")
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
				kib, _ := strconv.ParseInt(f[1], 10, 64)
				least(kib<<10, "the machine's memory")
			}
		}
	}
	for _, file := range controlFiles() {
		if b, err := os.ReadFile(file); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is none
			least(n, file)
		}
	}
	return most, by
}

// controlFiles are where the process's control groups have their bounds: its own group's and
// those above, of both versions.
func controlFiles() (all []string) {
	const root = "/sys/fs/cgroup"
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		dir, file := root, "memory.max"
		if f[1] == "memory" {
			dir, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		} else if f[1] != "" {
			continue
		}
		for at := filepath.Clean("/" + f[2]); ; at = filepath.Dir(at) {
			all = append(all, filepath.Join(dir, at, file))
			if at == "/" {
				break
			}
		}
	}
	return all
}

// size prints bytes.
func size(n int64) string {
	for _, u := range []struct {
		n    int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.n {
			return strconv.FormatFloat(math.Round(float64(n)/float64(u.n)*10)/10, 'f', -1, 64) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// Place is a file or a folder that a gateway writes.
type Place struct {
	Key    string // of the configuration
	Path   string
	Folder bool
	// Makes tells that a folder that is not there is made, and those above it.
	Makes bool
	// Room is how much it should find on the disk, in bytes, and For what that is for.
	Room int64
	For  string
	// Own tells that nobody else may read it.
	Own bool
}

// leastRoom is what a disk has to have for anything to be written at all, in bytes.
const leastRoom = 1 << 20

// Check looks whether it can be written, and at the disk.
func (p Place) Check() Check {
	return Check{Of: p.Key, Run: func(_ context.Context, r *Reporter) {
		dir := p.Path
		info, err := os.Stat(p.Path)
		switch {
		case err == nil && p.Folder != info.IsDir():
			what := map[bool]string{true: "folder", false: "file"}
			r.Found(FileUnwritable, fmt.Sprintf("%s is a %s", p.Path, what[info.IsDir()]), "name a "+what[p.Folder])
			return
		case err == nil && !p.Folder:
			dir = filepath.Dir(p.Path)
			err = opens(p.Path, info)
		case err == nil:
			err = access(p.Path)
		case errors.Is(err, fs.ErrNotExist):
			if dir = filepath.Dir(p.Path); p.Makes {
				for _, e := os.Stat(dir); errors.Is(e, fs.ErrNotExist) && dir != filepath.Dir(dir); _, e = os.Stat(dir) {
					dir = filepath.Dir(dir)
				}
			}
			if info, err = os.Stat(dir); err == nil && !info.IsDir() {
				err = fmt.Errorf("%s is no folder", dir)
			}
			if err == nil {
				err = access(dir)
			}
			info = nil
		}
		if err != nil {
			do := "let the user that runs the gateway write there (under systemd: ReadWritePaths=, StateDirectory=), or name another place"
			if errors.Is(err, fs.ErrNotExist) {
				do = "make the folder: mkdir -p " + dir
			}
			r.Found(FileUnwritable, fmt.Sprintf("%s: %v", p.Path, err), do)
			return
		}
		if info != nil && p.Own {
			openMode(r, SecretOpen, p.Path, info, 0o077)
		}
		free, files, ok := room(dir)
		switch {
		case !ok:
		case free < leastRoom || files == 0:
			r.Found(DiskFull, fmt.Sprintf("%s: %s and %d files are left", dir, size(free), files), "free some of it")
		case free < p.Room:
			r.Found(DiskLow, fmt.Sprintf("%s: %s are left, and %s takes up to %s", dir, size(free), p.For, size(p.Room)), "free some of it, or name a place on another disk")
		}
	}}
}

// opens tries whether a file can be opened for writing. Nothing is written.
func opens(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return nil // a pipe would wait for who reads
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// openMode reports a file that others may read or write.
func openMode(r *Reporter, k *Kind, path string, info fs.FileInfo, most fs.FileMode) {
	if m := info.Mode().Perm() & most; m != 0 {
		do := fmt.Sprintf("chmod %o %s", info.Mode().Perm()&^most, path)
		r.Found(k, fmt.Sprintf("%s has mode %04o", path, info.Mode().Perm()), do)
	}
}

// Unwritten looks at a file that decides who is let in, which others must not write.
func Unwritten(key, path string) Check {
	return Check{Of: key, Run: func(_ context.Context, r *Reporter) {
		if info, err := os.Stat(path); err == nil { // if not, that is found by who reads it
			// A group is somebody's choice, and everybody is not.
			k := ConfigGroup
			if info.Mode()&0o002 != 0 {
				k = ConfigOpen
			}
			openMode(r, k, path, info, 0o022)
		}
	}}
}

// Unread looks at a file that is a secret.
func Unread(key, path string) Check {
	return Check{Of: key, Run: func(_ context.Context, r *Reporter) {
		if info, err := os.Stat(path); err == nil {
			openMode(r, SecretOpen, path, info, 0o007)
		}
	}}
}
