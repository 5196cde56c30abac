// Package rows keeps files and batches in the tables of an SQL database. It is what the
// stores share: a database has its own form of the tables, its own way to make a
// change, and its own locks.
//
// # The idea
//
// Items have one table, in which a row is an item that is not done; one that is done is a row
// of results. What says how many there are is kept on the batch's row. An ended batch's
// rows are deleted by Vacuum, some thousands a call.
//
// A change locks its batch's row first. So changes of one batch come one after the other,
// a result's place is the number of results, and counts are right without counting.
//
// # Alternatives
//
// An items table that keeps those that are done needs a second index for what is left,
// and can't be smaller than the batch. An index on custom_id in it is paid for by each item
// that is done. Counting by COUNT(*) takes 0.1 s for a million items, each time somebody
// looks.
package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"headgate/batch"
)

// Database is one kind of SQL database. Statements have parameters as ?, or as ?1 where
// one is used twice.
type Database interface {
	// Change has do make a change, whole or not at all, and returns when it is on the disk. do may
	// be called again, if the first time came to nothing.
	Change(ctx context.Context, do func(Tx) error) error
	// Read sees what is on the disk.
	Read(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	// Locking is what ends a SELECT of rows that the change goes on to write, Sharing of rows
	// that must only stay, Passing of rows to write that nobody else is writing.
	Locking() string
	Sharing() string
	Passing() string
	// Alone waits until no other change that is under way has asked for the same name.
	Alone(t Tx, name string) error
	// Explain puts an error of the database into words, where an operator can do something
	// about it.
	Explain(error) error
	// Vacuum gives room that is free back to the disk, a bounded piece; more tells whether
	// to call again.
	Vacuum(ctx context.Context) (more bool, err error)
	Close() error
}

// Tx is what a change does its work with.
type Tx interface {
	// Exec returns how many rows were changed.
	Exec(query string, args ...any) (int64, error)
	Query(query string, args ...any) (*sql.Rows, error)
}

// Store is a batch.Store over a database.
type Store struct{ db Database }

var _ batch.Store = (*Store)(nil)

// New returns the store of a database that has the tables.
func New(db Database) *Store { return &Store{db} }

// Close waits for the changes that are under way. Called again it does nothing.
func (s *Store) Close() error { return s.db.Close() }

// vacuumRows bounds what one Vacuum deletes: some milliseconds in which nobody else writes.
const vacuumRows = 2000

// States of an item's row.
const (
	ready = iota
	waits
	claimed
)

// tx is a change with what is asked of it often.
type tx struct {
	Tx
	db Database
}

func (s *Store) change(ctx context.Context, do func(*tx) error) error {
	return s.db.Change(ctx, func(t Tx) error { return do(&tx{t, s.db}) })
}

// row scans the first row; ok is false where there is none.
func (t *tx) row(query string, args []any, dest ...any) (ok bool, err error) {
	rows, err := t.Query(query, args...)
	return first(rows, err, dest...)
}

// row is the same without a change.
func (s *Store) row(ctx context.Context, query string, args []any, dest ...any) (ok bool, err error) {
	rows, err := s.db.Read(ctx, query, args...)
	ok, err = first(rows, err, dest...)
	return ok, s.db.Explain(err)
}

func first(rows *sql.Rows, err error, dest ...any) (bool, error) {
	if err != nil {
		return false, err
	}
	defer rows.Close()
	if !rows.Next() {
		return false, rows.Err()
	}
	if err := rows.Scan(dest...); err != nil {
		return false, err
	}
	return true, rows.Close()
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// stamp scans a time.
type stamp struct{ t *time.Time }

func (s stamp) Scan(v any) error {
	us, ok := v.(int64)
	if !ok {
		return fmt.Errorf("a time is %T; allowed: microseconds", v)
	}
	*s.t = fromMicros(us)
	return nil
}

const fileColumns = "id, tenant, purpose, name, bytes, created, expires"

func scanFile(scan func(...any) error) (*batch.File, error) {
	f := new(batch.File)
	return f, scan(&f.ID, &f.Tenant, &f.Purpose, &f.Name, &f.Bytes, stamp{&f.Created}, stamp{&f.Expires})
}

// storable tells whether a text that a client made up can be in a column at all: not every
// database takes every one, and would call it a fault.
func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// absent is a row's that is not there.
func absent(what, id string) error { return fmt.Errorf("%s %s: %w", what, id, batch.ErrNotFound) }

func createFile(t *tx, f *batch.File) (written bool, err error) {
	n, err := t.Exec("INSERT INTO files ("+fileColumns+") VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		f.ID, f.Tenant, f.Purpose, f.Name, f.Bytes, micros(f.Created), micros(f.Expires))
	return n > 0, err
}

const holdings = `SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT), (SELECT COUNT(*) FROM batches WHERE ended = 0 AND tenant = ?1) FROM files WHERE tenant = ?1`

func (s *Store) Holdings(ctx context.Context, tenant string) (h batch.Holdings, err error) {
	_, err = s.row(ctx, holdings, []any{tenant}, &h.Files, &h.Bytes, &h.Batches)
	return h, err
}

// admit checks a tenant's bounds. The tenant is the change's alone from there on: of two
// that are both the last to fit, the second counts the first.
func (t *tx) admit(tenant string, more, most batch.Holdings) error {
	if most == (batch.Holdings{}) {
		return nil
	}
	if err := t.db.Alone(t.Tx, "tenant "+tenant); err != nil {
		return err
	}
	var h batch.Holdings
	if _, err := t.row(holdings, []any{tenant}, &h.Files, &h.Bytes, &h.Batches); err != nil {
		return err
	}
	return h.Check(more, most)
}

func (s *Store) CreateFile(ctx context.Context, f *batch.File, most batch.Holdings) error {
	return s.change(ctx, func(t *tx) error {
		if err := t.admit(f.Tenant, batch.Holdings{Files: 1, Bytes: f.Bytes}, most); err != nil {
			return err
		}
		written, err := createFile(t, f)
		if err == nil && !written {
			err = fmt.Errorf("file %s: %w: it exists", f.ID, batch.ErrState)
		}
		return err
	})
}

func (s *Store) File(ctx context.Context, tenant, id string) (*batch.File, error) {
	if !storable(id) {
		return nil, absent("file", id)
	}
	all, err := collect(ctx, s, scanFile, "SELECT "+fileColumns+" FROM files WHERE id = ? AND tenant = ?", id, tenant)
	if err == nil && len(all) == 0 {
		err = absent("file", id)
	}
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// whose is the condition on what a list is of.
type whose struct {
	where string
	args  []any
}

func ofTenant(tenant string) whose { return whose{"tenant = ?", []any{tenant}} }

// list returns a page of a table.
func list[T any](ctx context.Context, s *Store, table, columns string, w whose, p batch.Page, scan func(func(...any) error) (T, error)) ([]T, bool, error) {
	switch {
	case !storable(p.After):
		return nil, false, absent("after", p.After)
	case !storable(p.Purpose):
		return nil, false, nil
	}
	where, args := w.where, slices.Clone(w.args)
	if p.Purpose != "" {
		where, args = where+" AND purpose = ?", append(args, p.Purpose)
	}
	if p.Open {
		where += " AND ended = 0"
	}
	compare, order := "<", "DESC"
	if p.Oldest {
		compare, order = ">", "ASC"
	}
	if p.After != "" {
		var n int64
		ok, err := s.row(ctx, "SELECT n FROM "+table+" WHERE id = ? AND "+w.where, append([]any{p.After}, w.args...), &n)
		if err == nil && !ok {
			err = absent("after", p.After)
		}
		if err != nil {
			return nil, false, err
		}
		where, args = where+" AND n "+compare+" ?", append(args, n)
	}
	// One more than asked for tells whether there are others.
	all, err := collect(ctx, s, scan, "SELECT "+columns+" FROM "+table+" WHERE "+where+" ORDER BY n "+order+" LIMIT ?", append(args, p.Limit+1)...)
	if err != nil {
		return nil, false, err
	}
	n := min(p.Limit, len(all))
	return all[:n], n < len(all), nil
}

func collect[T any](ctx context.Context, s *Store, scan func(func(...any) error) (T, error), query string, args ...any) ([]T, error) {
	rows, err := s.db.Read(ctx, query, args...)
	list, err := all(rows, err, scan)
	return list, s.db.Explain(err)
}

// all scans rows to their end.
func all[T any](rows *sql.Rows, err error, scan func(func(...any) error) (T, error)) (list []T, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

func (s *Store) Files(ctx context.Context, tenant string, p batch.Page) ([]*batch.File, bool, error) {
	p.Open = false
	return list(ctx, s, "files", fileColumns, ofTenant(tenant), p, scanFile)
}

func (s *Store) DeleteFile(ctx context.Context, tenant, id string) error {
	return s.change(ctx, func(t *tx) error {
		n, err := t.Exec("DELETE FROM files WHERE id = ? AND tenant = ?", id, tenant)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("file %s: %w", id, batch.ErrNotFound)
		}
		var reader string
		read, err := t.row("SELECT id FROM batches WHERE input = ? AND ended = 0", []any{id}, &reader)
		if read {
			err = fmt.Errorf("file %s is read by batch %s: %w", id, reader, batch.ErrState)
		}
		return err
	})
}

func (s *Store) ExpiredFiles(ctx context.Context, now time.Time, limit int) ([]*batch.File, error) {
	return collect(ctx, s, scanFile, "SELECT "+fileColumns+` FROM files WHERE expires > 0 AND expires <= ?
		AND NOT EXISTS (SELECT 1 FROM batches WHERE input = files.id AND ended = 0) ORDER BY n LIMIT ?`, micros(now), limit)
}

func (s *Store) Strays(ctx context.Context, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	known, err := collect(ctx, s, func(scan func(...any) error) (id string, err error) {
		return id, scan(&id)
	}, "SELECT id FROM files WHERE id IN (?"+strings.Repeat(", ?", len(ids)-1)+")", args...)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(known, id) }), nil
}

const batchColumns = `id, tenant, key, class, endpoint, time_window, keep_output, metadata, input, output, error, status, errors, total, completed, failed,
	prompt_tokens, output_tokens, wasted_tokens, created_at, started_at, expires_at, finalizing_at, completed_at, failed_at, expired_at,
	cancelling_at, cancelled_at`

func scanBatch(scan func(...any) error) (*batch.Batch, error) {
	b, c := new(batch.Batch), new(batch.Counts)
	var window, keep int64
	var metadata, problems string
	if err := scan(&b.ID, &b.Tenant, &b.Key, &b.Class, &b.Endpoint, &window, &keep, &metadata, &b.Input, &b.Output, &b.Error, &b.Status, &problems,
		&c.Total, &c.Completed, &c.Failed, &c.Prompt, &c.Output, &c.Wasted, stamp{&b.Created}, stamp{&b.Started}, stamp{&b.Expires},
		stamp{&b.FinalizingAt}, stamp{&b.CompletedAt}, stamp{&b.FailedAt}, stamp{&b.ExpiredAt}, stamp{&b.CancellingAt}, stamp{&b.CancelledAt}); err != nil {
		return nil, err
	}
	b.Counts, b.Window, b.KeepOutput = *c, time.Duration(window)*time.Microsecond, time.Duration(keep)*time.Microsecond
	for text, to := range map[string]any{metadata: &b.Metadata, problems: &b.Errors} {
		if text != "" {
			if err := json.Unmarshal([]byte(text), to); err != nil {
				return nil, fmt.Errorf("batch %s: %w", b.ID, err)
			}
		}
	}
	return b, nil
}

// document is v's JSON, "" for an empty one.
func document(v any, n int) (string, error) {
	if n == 0 {
		return "", nil
	}
	text, err := json.Marshal(v)
	return string(text), err
}

func (s *Store) CreateBatch(ctx context.Context, b *batch.Batch, most batch.Holdings) error {
	metadata, err := document(b.Metadata, len(b.Metadata))
	if err != nil {
		return err
	}
	return s.change(ctx, func(t *tx) error {
		if err := t.admit(b.Tenant, batch.Holdings{Batches: 1}, most); err != nil {
			return err
		}
		var one int
		// It must not be deleted while the batch is not seen to read it.
		there, err := t.row("SELECT 1 FROM files WHERE id = ? AND tenant = ?"+t.db.Sharing(), []any{b.Input, b.Tenant}, &one)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("file %s: %w", b.Input, batch.ErrNotFound)
		}
		n, err := t.Exec(`INSERT INTO batches (id, tenant, key, class, endpoint, time_window, keep_output, metadata, input, status, created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			b.ID, b.Tenant, b.Key, b.Class, b.Endpoint, b.Window.Microseconds(), b.KeepOutput.Microseconds(), metadata, b.Input, string(batch.Validating), micros(b.Created), micros(b.Expires))
		if err == nil && n == 0 {
			err = fmt.Errorf("batch %s: %w: it exists", b.ID, batch.ErrState)
		}
		return err
	})
}

func (s *Store) Batch(ctx context.Context, tenant, id string) (*batch.Batch, error) {
	all, err := collect(ctx, s, scanBatch, "SELECT "+batchColumns+" FROM batches WHERE id = ? AND tenant = ?", id, tenant)
	if err == nil && len(all) == 0 {
		err = absent("batch", id)
	}
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func (s *Store) Batches(ctx context.Context, tenant string, p batch.Page) ([]*batch.Batch, bool, error) {
	p.Purpose, p.Open = "", false
	return list(ctx, s, "batches", batchColumns, ofTenant(tenant), p, scanBatch)
}

// slim are a batch's columns without its metadata: what is asked for all the time, of all
// tenants, and a tenant's metadata may be some megabytes.
var slim = strings.Replace(batchColumns, "metadata", "''", 1)

func (s *Store) AllBatches(ctx context.Context, p batch.Page) ([]*batch.Batch, bool, error) {
	p.Purpose = ""
	return list(ctx, s, "batches", slim, whose{where: "1 = 1"}, p, scanBatch)
}

func (s *Store) Unfinished(ctx context.Context) ([]*batch.Batch, error) {
	return collect(ctx, s, scanBatch, "SELECT "+slim+" FROM batches WHERE ended = 0 ORDER BY n")
}

// row is what changes look at of a batch.
type row struct {
	n                              int64
	id, tenant                     string
	status                         batch.Status
	done                           int64 // items with a result
	left                           int64 // items without
	expires, finalizing, expiredAt int64
}

func (t *tx) batch(id string) (*row, error) {
	b := &row{id: id}
	ok, err := t.row("SELECT n, tenant, status, completed + failed, total - completed - failed, expires_at, finalizing_at, expired_at FROM batches WHERE id = ?"+t.db.Locking(),
		[]any{id}, &b.n, &b.tenant, &b.status, &b.done, &b.left, &b.expires, &b.finalizing, &b.expiredAt)
	if err == nil && !ok {
		err = fmt.Errorf("batch %s: %w", id, batch.ErrNotFound)
	}
	return b, err
}

// in returns a batch that is in one of some states.
func (t *tx) in(id string, states ...batch.Status) (*row, error) {
	b, err := t.batch(id)
	if err == nil && !slices.Contains(states, b.status) {
		err = b.state()
	}
	return b, err
}

func (b *row) state() error {
	return fmt.Errorf("batch %s is %s: %w", b.id, b.status, batch.ErrState)
}

// key is the name of a row that belongs to a batch: of an item its line, of a result its place.
func key(batch, n int64) int64 { return batch<<32 | n }

func (s *Store) AddItems(ctx context.Context, id string, items []batch.Item) (duplicate []batch.Item, err error) {
	err = s.change(ctx, func(t *tx) error {
		duplicate = nil
		b, err := t.in(id, batch.Validating)
		if err != nil {
			return err
		}
		var added int64
		for _, it := range items {
			if it.Line < 1 || it.Line >= 1<<32 {
				return fmt.Errorf("batch %s: line %d; allowed: 1 to %d", id, it.Line, int64(1)<<32-1)
			}
			var one int
			there, err := t.row("SELECT 1 FROM items WHERE id = ?", []any{key(b.n, it.Line)}, &one)
			if err != nil {
				return err
			}
			if there {
				continue
			}
			n, err := t.Exec("INSERT INTO names (batch, custom_id) VALUES (?, ?) ON CONFLICT DO NOTHING", b.n, it.CustomID)
			if err != nil {
				return err
			}
			if n == 0 {
				it.Batch = id
				duplicate = append(duplicate, it)
				continue
			}
			if _, err := t.Exec("INSERT INTO items (id, batch, custom_id, at_byte, length, prefix, tokens) VALUES (?, ?, ?, ?, ?, ?, ?)",
				key(b.n, it.Line), b.n, it.CustomID, it.Offset, it.Length, int64(it.Prefix), it.Tokens); err != nil {
				return err
			}
			added++
		}
		_, err = t.Exec("UPDATE batches SET total = total + ?1, ready = ready + ?1 WHERE n = ?2", added, b.n)
		return err
	})
	return duplicate, err
}

func (s *Store) Start(ctx context.Context, id string, now time.Time) error {
	return s.change(ctx, func(t *tx) error {
		b, err := t.in(id, batch.Validating)
		if err != nil {
			return err
		}
		if _, err := t.Exec("UPDATE batches SET status = ?, started_at = ? WHERE n = ?", string(batch.InProgress), micros(now), b.n); err != nil {
			return err
		}
		return t.drop(b, true)
	})
}

// drop leaves a batch's rows to Vacuum.
func (t *tx) drop(b *row, names bool) error {
	_, err := t.Exec("INSERT INTO drops (batch, names_only) VALUES (?1, ?2) ON CONFLICT (batch) DO UPDATE SET names_only = ?2", b.n, count(names))
	return err
}

func (s *Store) Fail(ctx context.Context, id string, why []batch.LineError, now time.Time) error {
	problems, err := document(why, len(why))
	if err != nil {
		return err
	}
	return s.change(ctx, func(t *tx) error {
		b, err := t.in(id, batch.Validating)
		if err != nil {
			return err
		}
		if _, err := t.Exec("UPDATE batches SET status = ?1, failed_at = ?2, ended = ?2, errors = ?3, total = 0, ready = 0 WHERE n = ?4",
			string(batch.Failed), micros(now), problems, b.n); err != nil {
			return err
		}
		return t.drop(b, false)
	})
}

func (s *Store) Cancel(ctx context.Context, tenant, id string, now time.Time) (*batch.Batch, error) {
	err := s.change(ctx, func(t *tx) error {
		b, err := t.batch(id)
		if err != nil {
			return err
		}
		if b.tenant != tenant {
			return fmt.Errorf("batch %s: %w", id, batch.ErrNotFound)
		}
		switch {
		case b.status == batch.Cancelling:
			return nil
		case b.status == batch.Validating:
			// Its items go with its names. That it has none is what total says: there may be
			// some for a while yet.
			if _, err := t.Exec("UPDATE batches SET total = 0, ready = 0 WHERE n = ?", b.n); err != nil {
				return err
			}
			if err := t.drop(b, false); err != nil {
				return err
			}
		case b.status != batch.InProgress || b.expiredAt != 0:
			return b.state()
		}
		_, err = t.Exec("UPDATE batches SET status = ?, cancelling_at = ? WHERE n = ?", string(batch.Cancelling), micros(now), b.n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.Batch(ctx, tenant, id)
}

func (s *Store) Waiting(ctx context.Context, now time.Time) ([]batch.Waiting, error) {
	// Of items only those are looked at that wait or are claimed, which are few; those that are
	// ready are counted.
	return collect(ctx, s, func(scan func(...any) error) (w batch.Waiting, err error) {
		var due, over int64
		if err = scan(&w.Batch, &w.Tenant, &w.Class, stamp{&w.Created}, stamp{&w.Deadline}, &w.Total, &w.Done, &w.Ready, &due, &over, &w.Running,
			stamp{&w.Next}); err == nil {
			w.Ready += due + over
		}
		return w, err
	}, `SELECT id, tenant, class, created_at, expires_at, total, completed + failed, ready,
		(SELECT COUNT(*) FROM items WHERE batch = b.n AND state = 1 AND not_before <= ?1),
		(SELECT COUNT(*) FROM workers w CROSS JOIN items i WHERE w.until <= ?1 AND i.worker = w.n AND i.batch = b.n AND i.state = 2),
		(SELECT COUNT(*) FROM workers w CROSS JOIN items i WHERE w.until > ?1 AND i.worker = w.n AND i.batch = b.n AND i.state = 2),
		COALESCE((SELECT MIN(not_before) FROM items WHERE batch = b.n AND state = 1 AND not_before > ?1), 0)
		FROM batches b WHERE ended = 0 AND status = ?2 AND expires_at > ?1 ORDER BY n`, micros(now), string(batch.InProgress))
}

// sweep makes items ready whose lease is over.
func (t *tx) sweep(now time.Time) error {
	// A worker's row is locked before its items are looked for: it might be coming back at
	// this moment, and what it claims then must not belong to a row that is deleted.
	rows, err := t.Query("SELECT n FROM workers WHERE until <= ?"+t.db.Passing(), micros(now))
	over, err := all(rows, err, scanInt)
	if err != nil {
		return err
	}
	for _, worker := range over {
		rows, err := t.Query("UPDATE items SET state = 0, worker = 0 WHERE state = 2 AND worker = ? RETURNING batch", worker)
		batches, err := all(rows, err, scanInt)
		if err != nil {
			return err
		}
		for _, n := range batches {
			if _, err := t.Exec("UPDATE batches SET ready = ready + 1 WHERE n = ?", n); err != nil {
				return err
			}
		}
		if _, err := t.Exec("DELETE FROM workers WHERE n = ?", worker); err != nil {
			return err
		}
	}
	return nil
}

func scanInt(scan func(...any) error) (n int64, err error) { return n, scan(&n) }

func (s *Store) Claim(ctx context.Context, id, worker string, n int, after uint64, now, until time.Time) (claims []batch.Claim, err error) {
	err = s.change(ctx, func(t *tx) error {
		claims = nil
		if err := t.sweep(now); err != nil {
			return err
		}
		var of batch.Claim
		var b row
		ok, err := t.row("SELECT n, status, tenant, key, class, endpoint, input, expires_at FROM batches WHERE id = ?"+t.db.Locking(), []any{id},
			&b.n, &b.status, &of.Tenant, &of.Key, &of.Class, &of.Endpoint, &of.Input, stamp{&of.Deadline})
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("batch %s: %w", id, batch.ErrNotFound)
		case b.status != batch.InProgress || !of.Deadline.After(now) || n < 1:
			return nil
		}
		of.Batch = id
		due, err := t.Exec("UPDATE items SET state = 0, not_before = 0 WHERE batch = ? AND state = 1 AND not_before <= ?", b.n, micros(now))
		if err != nil {
			return err
		}
		var ids []int64
		for _, part := range []string{">=", "<"} {
			rows, err := t.Query("SELECT id FROM items WHERE batch = ? AND state = 0 AND prefix "+part+" ? ORDER BY prefix, id LIMIT ?"+t.db.Passing(),
				b.n, int64(after), n-len(ids))
			more, err := all(rows, err, scanInt)
			if err != nil {
				return err
			}
			if ids = append(ids, more...); len(ids) == n {
				break
			}
		}
		if len(ids) > 0 {
			var w int64
			if _, err := t.row("INSERT INTO workers (name, until) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET until = ?2 RETURNING n",
				[]any{worker, micros(until)}, &w); err != nil {
				return err
			}
			for _, item := range ids {
				c := of
				var prefix int64
				if _, err := t.row(`UPDATE items SET state = 2, worker = ?, fence = fence + 1 WHERE id = ? RETURNING custom_id, at_byte, length,
					prefix, tokens, fence, attempts, (SELECT kept FROM checkpoints WHERE item = items.id)`, []any{w, item},
					&c.CustomID, &c.Offset, &c.Length, &prefix, &c.Tokens, &c.Fence, &c.Attempts, (*[]byte)(&c.Kept)); err != nil {
					return err
				}
				c.Line, c.Prefix = item&(1<<32-1), uint64(prefix)
				claims = append(claims, c)
			}
		}
		_, err = t.Exec("UPDATE batches SET ready = ready + ? WHERE n = ?", due-int64(len(ids)), b.n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return claims, nil
}

func (s *Store) Renew(ctx context.Context, worker string, now, until time.Time) error {
	return s.change(ctx, func(t *tx) error {
		n, err := t.Exec("UPDATE workers SET until = ? WHERE name = ? AND until > ?", micros(until), worker, micros(now))
		if err == nil && n == 0 {
			err = fmt.Errorf("worker %s: %w", worker, batch.ErrFenced)
		}
		return err
	})
}

// tally is what changes on batches' rows in one Save or Lapse: a row is written once.
type tally struct {
	ready, completed, failed, prompt, output, wasted int64
}

// saving is a Save's view of the batches that it writes to.
type saving struct {
	t    *tx
	rows map[string]*row
	sums map[*row]*tally
}

func (v *saving) batch(id string) (*row, *tally, error) {
	if b := v.rows[id]; b != nil {
		return b, v.sums[b], nil
	}
	b, err := v.t.batch(id)
	if err != nil {
		return nil, nil, err
	}
	v.rows[id], v.sums[b] = b, new(tally)
	return b, v.sums[b], nil
}

// lock locks all batches that are written to in one order, so that two changes don't wait
// for each other.
func (v *saving) lock(cs []batch.Checkpoint, rs []batch.Retry, os []batch.Outcome) error {
	ids := map[string]bool{}
	for _, c := range cs {
		ids[c.Batch] = true
	}
	for _, r := range rs {
		ids[r.Batch] = true
	}
	for _, o := range os {
		ids[o.Batch] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if _, _, err := v.batch(id); err != nil && !errors.Is(err, batch.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (v *saving) done() error {
	for _, b := range v.rows {
		c := v.sums[b]
		if *c == (tally{}) {
			continue
		}
		if _, err := v.t.Exec(`UPDATE batches SET ready = ready + ?, completed = completed + ?, failed = failed + ?, prompt_tokens = prompt_tokens + ?,
			output_tokens = output_tokens + ?, wasted_tokens = wasted_tokens + ? WHERE n = ?`,
			c.ready, c.completed, c.failed, c.prompt, c.output, c.wasted, b.n); err != nil {
			return err
		}
	}
	return nil
}

// fenced makes no row changed an error.
func fenced(n int64, err error) error {
	if err == nil && n == 0 {
		return batch.ErrFenced
	}
	return err
}

func (s *Store) Save(ctx context.Context, cs []batch.Checkpoint, rs []batch.Retry, os []batch.Outcome, _ time.Time) (errs []error, err error) {
	err = s.change(ctx, func(t *tx) error {
		errs = make([]error, 0, len(cs)+len(rs)+len(os))
		v := &saving{t, map[string]*row{}, map[*row]*tally{}}
		if err := v.lock(cs, rs, os); err != nil {
			return err
		}
		one := func(id string, line int64, write func(b *row, c *tally, item int64) error) error {
			b, c, err := v.batch(id)
			if err == nil {
				err = write(b, c, key(b.n, line))
			}
			switch {
			case errors.Is(err, batch.ErrNotFound):
				err = batch.ErrFenced
			case err != nil && !errors.Is(err, batch.ErrFenced):
				return err
			}
			errs = append(errs, err)
			return nil
		}
		for _, c := range cs {
			if err := one(c.Batch, c.Line, func(_ *row, _ *tally, item int64) error {
				var one int
				there, err := t.row("SELECT 1 FROM items WHERE id = ? AND fence = ?", []any{item, c.Fence}, &one)
				if err != nil {
					return err
				}
				if !there {
					return batch.ErrFenced
				}
				_, err = t.Exec("INSERT INTO checkpoints (item, kept) VALUES (?1, ?2) ON CONFLICT (item) DO UPDATE SET kept = ?2", item, []byte(c.Kept))
				return err
			}); err != nil {
				return err
			}
		}
		for _, r := range rs {
			if err := one(r.Batch, r.Line, func(_ *row, c *tally, item int64) error {
				to, failed := ready, 0
				if !r.NotBefore.IsZero() {
					to = waits
				}
				if r.Failed {
					failed = 1
				}
				var was int64
				there, err := t.row("SELECT state FROM items WHERE id = ? AND fence = ?", []any{item, r.Fence}, &was)
				if err != nil {
					return err
				}
				if !there {
					return batch.ErrFenced
				}
				_, err = t.Exec("UPDATE items SET state = ?, worker = 0, not_before = ?, fence = fence + 1, attempts = attempts + ? WHERE id = ?",
					to, micros(r.NotBefore), failed, item)
				c.ready += count(to == ready) - count(was == ready)
				c.wasted += r.Wasted
				return err
			}); err != nil {
				return err
			}
		}
		for _, o := range os {
			if err := one(o.Batch, o.Line, func(b *row, c *tally, item int64) error {
				return t.result(b, c, item, o.Fence, o)
			}); err != nil {
				return err
			}
		}
		return v.done()
	})
	if err != nil {
		return nil, err
	}
	return errs, nil
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// result makes an item done.
func (t *tx) result(b *row, c *tally, item, fence int64, o batch.Outcome) error {
	var was int64
	there, err := t.row("DELETE FROM items WHERE id = ? AND fence = ? RETURNING state", []any{item, fence}, &was)
	if err != nil {
		return err
	}
	if !there {
		return batch.ErrFenced
	}
	if _, err := t.Exec("DELETE FROM checkpoints WHERE item = ?", item); err != nil {
		return err
	}
	b.done++
	if _, err := t.Exec("INSERT INTO results (id, failed, line) VALUES (?, ?, ?)", key(b.n, b.done), count(o.Failed), []byte(o.Result)); err != nil {
		return err
	}
	c.ready -= count(was == ready)
	c.failed += count(o.Failed)
	c.completed += count(!o.Failed)
	c.prompt += o.Prompt
	c.output += o.Output
	c.wasted += o.Wasted
	return nil
}

func (s *Store) Lapse(ctx context.Context, id string, limit int, now time.Time, write func(batch.Item) batch.Outcome) (left int64, err error) {
	type lapsing struct {
		batch.Item
		id, fence int64
	}
	err = s.change(ctx, func(t *tx) error {
		b, err := t.in(id, batch.InProgress, batch.Cancelling)
		if err != nil {
			return err
		}
		where := ""
		if b.status == batch.Cancelling {
			if err := t.sweep(now); err != nil {
				return err
			}
			where = " AND state <> 2"
		} else if b.expires > micros(now) {
			return fmt.Errorf("batch %s is before its deadline: %w", id, batch.ErrState)
		} else if b.expiredAt == 0 {
			if _, err := t.Exec("UPDATE batches SET expired_at = ? WHERE n = ?", micros(now), b.n); err != nil {
				return err
			}
		}
		if left = b.left; left == 0 {
			return nil // what rows there are belong to what is dropped
		}
		rows, err := t.Query("SELECT id, custom_id, at_byte, length, prefix, tokens, fence FROM items WHERE id > ? AND id < ?"+where+" ORDER BY id LIMIT ?",
			key(b.n, 0), key(b.n+1, 0), limit)
		items, err := all(rows, err, func(scan func(...any) error) (l lapsing, err error) {
			var prefix int64
			err = scan(&l.id, &l.CustomID, &l.Offset, &l.Length, &prefix, &l.Tokens, &l.fence)
			l.Batch, l.Line, l.Prefix = id, l.id&(1<<32-1), uint64(prefix)
			return l, err
		})
		if err != nil {
			return err
		}
		v := &saving{t, map[string]*row{id: b}, map[*row]*tally{b: {}}}
		for _, l := range items {
			if err := t.result(b, v.sums[b], l.id, l.fence, write(l.Item)); err != nil {
				return err
			}
		}
		left -= int64(len(items))
		return v.done()
	})
	return left, err
}

func (s *Store) Finalize(ctx context.Context, id string, now time.Time) error {
	return s.change(ctx, func(t *tx) error {
		b, err := t.in(id, batch.InProgress, batch.Cancelling, batch.Finalizing)
		if err != nil || b.finalizing != 0 {
			return err
		}
		if b.left > 0 {
			return fmt.Errorf("batch %s has %d items that are not done: %w", id, b.left, batch.ErrState)
		}
		status := b.status
		if status == batch.InProgress {
			status = batch.Finalizing
		}
		_, err = t.Exec("UPDATE batches SET status = ?, finalizing_at = ? WHERE n = ?", string(status), micros(now), b.n)
		return err
	})
}

// resultsMost is how many rows are read at once: a long read would keep the log from being
// folded back.
const resultsMost = 256

func (s *Store) Results(ctx context.Context, id string, failed bool, after int64, each func(int64, []byte) error) error {
	var n, ended int64
	there, err := s.row(ctx, "SELECT n, ended FROM batches WHERE id = ?", []any{id}, &n, &ended)
	if err == nil && !there {
		err = absent("batch", id)
	}
	if err != nil || ended != 0 {
		return err
	}
	type result struct {
		id   int64
		line []byte
	}
	// Pieces are of all results, so that few of one kind among many of the other are found
	// in many short reads.
	for at := key(n, after); ; {
		last := int64(0)
		lines, err := collect(ctx, s, func(scan func(...any) error) (r result, err error) {
			err = scan(&r.id, &r.line, &last)
			return r, err
		}, `SELECT id, CASE WHEN failed = ?1 THEN line END, id FROM results WHERE id > ?2 AND id < ?3
			AND (SELECT ended FROM batches WHERE n = ?5) = 0 ORDER BY id LIMIT ?4`, count(failed), at, key(n+1, 0), resultsMost, n)
		if err != nil {
			return err
		}
		for _, r := range lines {
			if r.line == nil {
				continue
			}
			if err := each(r.id&(1<<32-1), r.line); err != nil {
				return err
			}
		}
		if len(lines) < resultsMost {
			return nil
		}
		at = last
	}
}

func (s *Store) Finish(ctx context.Context, id string, output, problems *batch.File, now time.Time) error {
	return s.change(ctx, func(t *tx) error {
		if _, err := t.in(id, batch.Finalizing, batch.Cancelling); err != nil {
			return err
		}
		b, err := scanBatch(func(dest ...any) error {
			_, err := t.row("SELECT "+batchColumns+" FROM batches WHERE id = ?", []any{id}, dest...)
			return err
		})
		if err != nil {
			return err
		}
		if b.FinalizingAt.IsZero() {
			return fmt.Errorf("batch %s is not being finalized: %w", id, batch.ErrState)
		}
		for f, name := range map[*batch.File]*string{output: &b.Output, problems: &b.Error} {
			if f == nil {
				continue
			}
			if _, err := createFile(t, f); err != nil {
				return err
			}
			*name = f.ID
		}
		b.Status = b.End()
		switch b.Status {
		case batch.Cancelled:
			b.CancelledAt = now
		case batch.Completed:
			b.CompletedAt = now
		}
		of, err := t.batch(id)
		if err != nil {
			return err
		}
		if _, err := t.Exec("UPDATE batches SET status = ?, output = ?, error = ?, ended = ?, completed_at = ?, cancelled_at = ? WHERE n = ?",
			string(b.Status), b.Output, b.Error, micros(b.Ended()), micros(b.CompletedAt), micros(b.CancelledAt), of.n); err != nil {
			return err
		}
		return t.drop(of, false)
	})
}

func (s *Store) Hold(ctx context.Context, name, worker string, now, until time.Time) error {
	return s.change(ctx, func(t *tx) error {
		n, err := t.Exec(`INSERT INTO holds (name, worker, until) VALUES (?1, ?2, ?3)
			ON CONFLICT (name) DO UPDATE SET worker = ?2, until = ?3 WHERE holds.worker = ?2 OR holds.until <= ?4`, name, worker, micros(until), micros(now))
		if err := fenced(n, err); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		// Names are of batches, which end: what is over goes.
		_, err = t.Exec("DELETE FROM holds WHERE until <= ? AND name <> ?", micros(now), name)
		return err
	})
}

func (s *Store) Forget(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	err = s.change(ctx, func(t *tx) error {
		n, err := t.Exec("DELETE FROM batches WHERE n IN (SELECT n FROM batches WHERE ended > 0 AND ended < ? ORDER BY n LIMIT ?)", micros(before), limit)
		forgotten = int(n)
		return err
	})
	return forgotten, err
}

// Vacuum deletes some rows of batches that have ended, and then has the database give
// their room back.
func (s *Store) Vacuum(ctx context.Context) (more bool, err error) {
	err = s.change(ctx, func(t *tx) error {
		more = false
		var n, names int64
		ok, err := t.row("SELECT batch, names_only FROM drops ORDER BY batch LIMIT 1"+t.db.Passing(), nil, &n, &names)
		if err != nil || !ok {
			return err
		}
		more = true
		deleted, err := t.Exec("DELETE FROM names WHERE batch = ?1 AND custom_id IN (SELECT custom_id FROM names WHERE batch = ?1 LIMIT ?2)", n, vacuumRows)
		if err != nil {
			return err
		}
		if names == 0 {
			for _, table := range []struct{ name, column string }{{"items", "id"}, {"checkpoints", "item"}, {"results", "id"}} {
				if deleted >= vacuumRows {
					break
				}
				some, err := t.Exec(strings.NewReplacer("TABLE", table.name, "ID", table.column).Replace(
					"DELETE FROM TABLE WHERE ID IN (SELECT ID FROM TABLE WHERE ID > ? AND ID < ? LIMIT ?)"), key(n, 0), key(n+1, 0), vacuumRows-deleted)
				if err != nil {
					return err
				}
				deleted += some
			}
		}
		if deleted == 0 {
			_, err = t.Exec("DELETE FROM drops WHERE batch = ?", n)
		}
		return err
	})
	if err != nil || more {
		return more, err
	}
	return s.db.Vacuum(ctx)
}
