package postgres

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/rows/rowstest"
	"headgate/e2e/need"
)

// address is what children of a test find in its folder.
func address(dir string) (string, error) {
	dsn, err := os.ReadFile(filepath.Join(dir, "address"))
	return string(dsn), err
}

var crash = rowstest.Crash{
	Open: func(dir string) (batch.Store, error) {
		dsn, err := address(dir)
		if err != nil {
			return nil, err
		}
		return Open(background, dsn)
	},
	Database: func(dir string) (*sql.DB, error) {
		dsn, err := address(dir)
		if err != nil {
			return nil, err
		}
		return sql.Open("pgx", dsn)
	},
	// One is killed at a time, so the other one takes over what it had.
	Replicas: 2,
	// Long enough that one that waits for a processor is not taken for dead: it would be no
	// fault, but tokens be generated twice.
	Lease: 4 * time.Second,
}

func TestMain(m *testing.M) { crash.Main(m) }

func TestCrash(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "address"), []byte(need.Postgres(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	crash.Run(t, dir)
}
