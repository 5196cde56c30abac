package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/rows/rowstest"
)

var crash = rowstest.Crash{
	Open: func(dir string) (batch.Store, error) {
		return Open(context.Background(), filepath.Join(dir, "batch.db"))
	},
	Database: func(dir string) (*sql.DB, error) { return standard.open(filepath.Join(dir, "batch.db")) },
	Check: func(t *testing.T, db *sql.DB) {
		var report string
		if err := db.QueryRow("PRAGMA integrity_check").Scan(&report); err != nil || report != "ok" {
			t.Fatal(report, err)
		}
	},
	Replicas: 1,
	Lease:    time.Second,
}

func TestMain(m *testing.M) { crash.Main(m) }

func TestCrash(t *testing.T) { crash.Run(t, t.TempDir()) }
