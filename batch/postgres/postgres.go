// Package postgres keeps files and batches in a PostgreSQL database: the store of
// several replicas. Their contents must be in a place that all of them see.
//
// Replicas claim side by side: a change locks its batch's row, rows that another one is
// writing are passed over, and a claim's fence tells whose an item is. Nothing of it
// counts on sessions or their locks, so a pooler between may hand out connections as it
// likes; migrations alone take a session's lock, so that only one replica makes them.
package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"headgate/batch"
	"headgate/batch/rows"
)

//go:embed migrations/*.sql
var migrations embed.FS

// connections bounds those of one replica: changes of a batch wait for each other anyway.
const connections = 16

// again is how often a change is made that others were in the way of.
const again = 10

// Open connects to the database that a URL or a list of keywords and values names, as libpq
// has them, and brings its tables to this version's form.
func Open(ctx context.Context, dsn string) (_ *rows.Store, err error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the batch store's address: %w", err) // pgx leaves the password out
	}
	db := &database{DB: stdlib.OpenDB(*cfg)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the batch store at %s, database %s: %w", cfg.Host, cfg.Database, explain(err)), db.DB.Close())
		}
	}()
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	one, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60)) // seconds, tries
	if err != nil {
		return nil, err
	}
	m, err := goose.NewProvider(goose.DialectPostgres, db.DB, dir, goose.WithDisableGlobalRegistry(true), goose.WithSessionLocker(one))
	if err != nil {
		return nil, err
	}
	if _, err := m.Up(ctx); err != nil {
		return nil, err
	}
	return rows.New(db), nil
}

// database is a rows.Database.
type database struct {
	*sql.DB
	bound sync.Map // of statements, as PostgreSQL has their parameters
}

// bind names parameters $1.
func (db *database) bind(query string) string {
	if known, ok := db.bound.Load(query); ok {
		return known.(string)
	}
	var b strings.Builder
	n := 0
	for i := 0; i < len(query); i++ {
		if query[i] != '?' {
			b.WriteByte(query[i])
			continue
		}
		b.WriteByte('$')
		if i+1 == len(query) || query[i+1] < '0' || query[i+1] > '9' {
			n++
			b.WriteString(strconv.Itoa(n))
		}
	}
	db.bound.Store(query, b.String())
	return b.String()
}

type tx struct {
	*sql.Tx
	ctx context.Context
	db  *database
}

func (t *tx) Exec(query string, args ...any) (int64, error) {
	r, err := t.ExecContext(t.ctx, t.db.bind(query), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (t *tx) Query(query string, args ...any) (*sql.Rows, error) {
	return t.QueryContext(t.ctx, t.db.bind(query), args...)
}

func (db *database) Change(ctx context.Context, do func(rows.Tx) error) (err error) {
	for n := 0; ; n++ {
		if err = db.once(ctx, do); err == nil || !inTheWay(err) || n == again {
			return explain(err)
		}
		select {
		case <-ctx.Done():
			return explain(err)
		case <-time.After(time.Duration(n+1) * 10 * time.Millisecond):
		}
	}
}

func (db *database) once(ctx context.Context, do func(rows.Tx) error) error {
	t, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(&tx{t, ctx, db}); err != nil {
		_ = t.Rollback() // it may be gone with the connection
		return err
	}
	return t.Commit()
}

// inTheWay tells whether a change was given up in favour of another one: two that lock
// several batches, as Save and the end of leases do, may do so in different orders.
func inTheWay(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40P01" || e.Code == "40001")
}

func (db *database) Read(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return db.QueryContext(ctx, db.bind(query), args...)
}

func (*database) Locking() string { return " FOR UPDATE" }
func (*database) Sharing() string { return " FOR KEY SHARE" }
func (*database) Passing() string { return " FOR UPDATE SKIP LOCKED" }

// Alone takes an advisory lock that ends with the transaction. Of two names that hash alike one
// waits for nothing.
func (*database) Alone(t rows.Tx, name string) error {
	r, err := t.Query("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", name)
	if err != nil {
		return err
	}
	return r.Close()
}

// Vacuum leaves it to PostgreSQL's own.
func (*database) Vacuum(context.Context) (bool, error) { return false, nil }

func (*database) Explain(err error) error { return explain(err) }

// explain puts into words what an operator can do something about.
func explain(err error) error {
	var e *pgconn.PgError
	var c *pgconn.ConnectError
	switch {
	case errors.As(err, &e):
		switch {
		case e.Code == "53100":
			return fmt.Errorf("%w, nothing was changed: %w", batch.ErrFull, err)
		case e.Code == "25006":
			return fmt.Errorf("the batch store can't be written, nothing was changed: %w", err)
		case e.Code == "53300":
			return fmt.Errorf("the batch store has too many connections: %w", err)
		case strings.HasPrefix(e.Code, "57P"):
			return fmt.Errorf("the batch store is being shut down: %w", err)
		}
	case errors.As(err, &c):
		return fmt.Errorf("the batch store can't be reached: %w", err)
	}
	return err
}
