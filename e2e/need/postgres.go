package need

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/proctest"
)

// Postgres runs PostgreSQL in a folder of its own until the test ends, behind a Unix
// socket, and returns the address of an empty database.
func Postgres(t testing.TB) (dsn string) {
	t.Helper()
	initdb, postgres := postgresProgram(t, "initdb"), postgresProgram(t, "postgres")
	dir, err := os.MkdirTemp("", "pg") // short: a socket's name has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := proctest.EndsWithParent()
	if os.Getuid() == 0 { // as whom it refuses to run
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(initdb, "-D", data, "-U", "headgate", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = dir, attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	// What tests kill are its clients, so that it need not flush.
	server := exec.Command(postgres, "-D", data, "-k", dir, "-h", "", "-F", "-c", "max_connections=200")
	var out bytes.Buffer
	server.Dir, server.SysProcAttr, server.Stdout, server.Stderr = dir, attr, &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() { defer close(left); err = server.Wait() }()
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT) // ends sessions and stops
		if <-left; err != nil {
			t.Logf("postgres: %v\n%s", err, &out)
		}
	})
	// It says so in its lock file, as pg_ctl reads it.
	for range 600 {
		if status, _ := os.ReadFile(filepath.Join(data, "postmaster.pid")); slices.Contains(strings.Fields(string(status)), "ready") {
			return "host=" + dir + " user=headgate dbname=postgres"
		}
		select {
		case <-left:
			t.Fatalf("postgres left: %v\n%s", err, &out)
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("postgres does not get ready")
	return ""
}

// postgresProgram returns the path of one of PostgreSQL's programs. Debian keeps them off
// the path.
func postgresProgram(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(all) > 0 {
		return slices.Max(all)
	}
	return Tool(t, name)
}
