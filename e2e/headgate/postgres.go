package headgate

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"headgate/e2e/need"
)

// StartPostgres runs PostgreSQL in a folder of its own until the test ends, behind a Unix
// socket, and returns the address of an empty database.
func StartPostgres(t testing.TB) (dsn string) {
	t.Helper()
	initdb, postgres := postgresProgram(t, "initdb"), postgresProgram(t, "postgres")
	dir, err := os.MkdirTemp("", "pg") // short: a socket's name has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := endsWithParent()
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
	server := exec.Command(postgres, "-D", data, "-k", dir, "-h", "", "-F")
	server.Dir, server.SysProcAttr = dir, attr
	p := startCommand(t, server)
	p.AwaitOutput("database system is ready to accept connections")
	return "host=" + dir + " user=headgate dbname=postgres"
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
	return need.Tool(t, name)
}
