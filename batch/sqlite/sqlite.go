// Package sqlite keeps files and batches in one SQLite database: the store of a single
// replica.
//
// One connection writes, and a goroutine joins what is asked of it while the disk is
// busy into the next transaction (see writer). A change returns when it is on the disk:
// the log is written ahead and flushed at every commit. Some connections read beside
// it, each call in a piece short enough that the log can be folded back.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"runtime"
	"sync"
	"time"

	"github.com/pressly/goose/v3"

	"headgate/batch/rows"
)

//go:embed migrations/*.sql
var migrations embed.FS

// vacuumPages bounds what one Vacuum gives back: some milliseconds in which nobody else
// writes.
const vacuumPages = 500

// options are what tests have otherwise.
type options struct {
	synchronous string        // how much is flushed; OFF where only what is written matters
	busy        time.Duration // how long another process's lock is waited for
}

var standard = options{"FULL", 5 * time.Second}

func (o options) open(path string, params ...string) (*sql.DB, error) {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": append([]string{fmt.Sprintf("busy_timeout(%d)", o.busy.Milliseconds())}, params...)}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String())
}

// Open opens the database at a path, creates it where there is none, and brings it to
// this version's form. Only one process should have it open; another that has gets errors
// that say so when it is kept waiting for longer than some seconds.
func Open(ctx context.Context, path string) (*rows.Store, error) {
	db, err := standard.database(ctx, path)
	if err != nil {
		return nil, err
	}
	return rows.New(db), nil
}

// database is a rows.Database in a file.
type database struct {
	w     *writer
	wdb   *sql.DB
	read  *sql.DB
	close sync.Once
}

func (o options) database(ctx context.Context, path string) (_ *database, err error) {
	db := &database{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the batch store %s: %w", path, explain(err)), db.Close())
		}
	}()
	// What is given back to the disk is decided before the first table is made. The log is cut
	// to a size after it was folded back, or it would stay as long as it ever was.
	if db.wdb, err = o.open(path, "auto_vacuum(INCREMENTAL)", "journal_mode(WAL)", "synchronous("+o.synchronous+")",
		"cache_size(-65536)", "journal_size_limit(67108864)", "temp_store(MEMORY)"); err != nil {
		return db, err
	}
	db.wdb.SetMaxOpenConns(1)
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return db, err
	}
	m, err := goose.NewProvider(goose.DialectSQLite3, db.wdb, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return db, err
	}
	if _, err = m.Up(ctx); err != nil {
		return db, err
	}
	conn, err := db.wdb.Conn(ctx)
	if err != nil {
		return db, err
	}
	db.w = newWriter(conn)
	if db.read, err = o.open(path, "query_only(1)", "cache_size(-8192)"); err != nil {
		return db, err
	}
	db.read.SetMaxOpenConns(max(2, runtime.GOMAXPROCS(0)))
	return db, nil
}

func (db *database) Close() error {
	var errs []error
	db.close.Do(func() {
		if db.read != nil {
			errs = append(errs, db.read.Close())
		}
		if db.w != nil {
			errs = append(errs, db.w.close())
		}
		if db.wdb != nil {
			errs = append(errs, db.wdb.Close())
		}
	})
	return errors.Join(errs...)
}

func (db *database) Change(ctx context.Context, do func(rows.Tx) error) error {
	return db.w.do(ctx, do)
}

func (db *database) Read(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return db.read.QueryContext(ctx, query, args...)
}

// The one who writes is alone.

func (*database) Alone(rows.Tx, string) error { return nil }

func (*database) Locking() string { return "" }
func (*database) Sharing() string { return "" }
func (*database) Passing() string { return "" }

func (*database) Explain(err error) error { return explain(err) }

// Vacuum takes free pages off the file's end.
func (db *database) Vacuum(ctx context.Context) (more bool, err error) {
	err = db.w.do(ctx, func(t rows.Tx) error {
		r, err := t.Query("PRAGMA freelist_count")
		if err != nil {
			return err
		}
		defer r.Close()
		var free int64
		for r.Next() {
			if err := r.Scan(&free); err != nil {
				return err
			}
		}
		if err := r.Close(); err != nil || free == 0 {
			return err
		}
		more = free > vacuumPages
		_, err = t.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages))
		return err
	})
	return more, err
}
