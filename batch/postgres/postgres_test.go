package postgres

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/e2e/need"
)

var background = context.Background()

// program returns the path of one of PostgreSQL's. Debian keeps them off the path.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(all) > 0 {
		return slices.Max(all)
	}
	return need.Tool(t, name)
}

// server starts PostgreSQL in a folder of its own, behind a Unix socket, and returns the
// address of its database. It refuses to run as root.
func server(t *testing.T) (dsn string) {
	t.Helper()
	initdb, postgres := program(t, "initdb"), program(t, "postgres")
	dir, err := os.MkdirTemp("", "pg") // short: a socket's name has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
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
	run := func(path string, args ...string) (*exec.Cmd, *strings.Builder) {
		cmd := exec.Command(path, args...)
		out := new(strings.Builder)
		cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = dir, attr, out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, out
	}
	cmd, out := run(initdb, "-D", data, "-U", "headgate", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	// What is killed is a client, not the server: it need not flush.
	cmd, out = run(postgres, "-D", data, "-k", dir, "-h", "", "-F", "-c", "max_connections=200")
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // ends sessions and stops
		if err := cmd.Wait(); err != nil {
			t.Logf("postgres: %v\n%s", err, out)
		}
	})
	dsn = "host=" + dir + " user=headgate dbname=postgres"
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range 600 {
		if db.Ping() == nil {
			return dsn
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("postgres does not answer:\n%s", out)
	return ""
}

var schemas atomic.Int64

// schema returns the address of tables of their own.
func schema(t *testing.T, dsn string) string {
	t.Helper()
	name := fmt.Sprint("s", schemas.Add(1))
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE SCHEMA " + name); err != nil {
		t.Fatal(err)
	}
	return dsn + " search_path=" + name
}

func TestStore(t *testing.T) {
	// A step costs a server's time, not a map's: fewer cases, unless more are asked for.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
	}
	dsn := server(t)
	batchtest.Run(t, func(t *testing.T) batchtest.Storage {
		own := schema(t, dsn)
		db, err := sql.Open("pgx", own)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return batchtest.Storage{
			Open: func() (batch.Store, error) { return Open(background, own) },
			Empty: func() error {
				for _, table := range []string{"files", "batches", "items", "names", "checkpoints", "results", "workers", "holds", "drops"} {
					if _, err := db.Exec("DELETE FROM " + table); err != nil {
						return err
					}
				}
				return nil
			},
		}
	})
}

// TestAway: a server that is not there is told of, by its address and without the
// password.
func TestAway(t *testing.T) {
	dir := t.TempDir()
	for _, dsn := range []string{"host=" + dir + " user=u password=hunter2 dbname=d", "postgres://u:hunter2@127.0.0.1:1/d"} {
		_, err := Open(background, dsn)
		if err == nil || !strings.Contains(err.Error(), "the batch store at ") || !strings.Contains(err.Error(), "can't be reached") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
	if _, err := Open(background, "postgres://u:hunter2@127.0.0.1:port/d"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

// TestConnectionsLost: connections that end, as when a server is started anew, cost at most
// the changes that were under way, and the store goes on with others.
func TestConnectionsLost(t *testing.T) {
	dsn := server(t)
	s, err := Open(background, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	admin, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := s.CreateFile(background, &batch.File{ID: "f", Tenant: "t"}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateBatch(background, &batch.Batch{ID: "b", Tenant: "t", Input: "f", Created: time.Now(), Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	const lines = 50
	for line := int64(1); line <= lines; line++ {
		if _, err := admin.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"); err != nil {
			t.Fatal(err)
		}
		item := []batch.Item{{Line: line, CustomID: fmt.Sprint("c", line)}}
		var err error
		for range 20 {
			// A change that may have been made is asked for again.
			var duplicate []batch.Item
			if duplicate, err = s.AddItems(background, "b", item); err == nil {
				if len(duplicate) > 0 {
					t.Errorf("line %d is another line's", line)
				}
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := s.Batch(background, "t", "b")
	if err != nil || b.Counts.Total != lines {
		t.Errorf("%d items of %d: %v", b.Counts.Total, lines, err)
	}
}
