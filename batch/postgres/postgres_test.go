package postgres

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/e2e/need"
)

var background = context.Background()

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
	dsn := need.Postgres(t)
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

// TestLook: what is there is told of, and nothing is made.
func TestLook(t *testing.T) {
	own := schema(t, need.Postgres(t))
	look := func(dsn string, have int64, why string) {
		t.Helper()
		f, err := Look(background, dsn)
		if err != nil || f.Have != have || f.Want != 1 || f.Why != why || f.ReadOnly != (why != "") || f.Now.Sub(f.Sent).Abs() > time.Minute {
			t.Errorf("%+v, %v", f, err)
		}
	}
	look(own, 0, "")
	look(own, 0, "") // still
	look(own+" default_transaction_read_only=on", 0, "its transactions are read-only (default_transaction_read_only)")
	look(own+" search_path=nowhere", 0, "the tables are still to be made, and the user may make none in the schema")
	s, err := Open(background, own)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	look(own, 1, "")
	if _, err := Look(background, strings.Replace(own, "dbname=", "dbname=no", 1)); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("%v", err)
	}
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
	dsn := need.Postgres(t)
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
	if err := s.CreateFile(background, &batch.File{ID: "f", Tenant: "t"}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateBatch(background, &batch.Batch{ID: "b", Tenant: "t", Input: "f", Created: time.Now(), Expires: time.Now().Add(time.Hour)}, batch.Holdings{}); err != nil {
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
