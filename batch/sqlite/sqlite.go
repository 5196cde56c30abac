// Package sqlite keeps files and batches in one SQLite database: the store of a single
// replica.
//
// # The idea
//
// One connection writes, and a goroutine joins what is asked of it while the disk is
// busy into the next transaction (see writer). A change returns when it is on the disk:
// the log is written ahead and flushed at every commit. Some connections read beside
// it, each call in a piece short enough that the log can be folded back.
//
// Items have one table, in which a row is an item that is not done; one that is done is a row
// of results. What says how many there are is kept on the batch's row. An ended batch's
// rows are deleted by Vacuum, some thousands a call, and their pages given back to the
// file system.
//
// # Alternatives
//
// An items table that keeps those that are done needs a second index for what is left,
// and can't be smaller than the batch. An index on custom_id in it is paid for by each item
// that is done. Counting by COUNT(*) takes 0.1 s for a million items, each time somebody
// looks.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pressly/goose/v3"

	"headgate/batch"
)

//go:embed migrations/*.sql
var migrations embed.FS

// vacuumRows and vacuumPages bound what one Vacuum deletes and gives back: some
// milliseconds in which nobody else writes.
const (
	vacuumRows  = 2000
	vacuumPages = 500
)

// States of an item's row.
const (
	ready = iota
	waits
	claimed
)

// Store is a batch.Store in a file. Only one should have the file open; another that
// has gets errors that say so when it holds a lock for longer than some seconds.
type Store struct {
	w     *writer
	wdb   *sql.DB
	read  *sql.DB
	close sync.Once
}

var _ batch.Store = (*Store)(nil)

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
// this version's form.
func Open(ctx context.Context, path string) (*Store, error) { return standard.store(ctx, path) }

func (o options) store(ctx context.Context, path string) (_ *Store, err error) {
	s := &Store{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the batch store %s: %w", path, explain(err)), s.Close())
		}
	}()
	// What is given back to the disk is decided before the first table is made. The log is cut
	// to a size after it was folded back, or it would stay as long as it ever was.
	if s.wdb, err = o.open(path, "auto_vacuum(INCREMENTAL)", "journal_mode(WAL)", "synchronous("+o.synchronous+")",
		"cache_size(-65536)", "journal_size_limit(67108864)", "temp_store(MEMORY)"); err != nil {
		return s, err
	}
	s.wdb.SetMaxOpenConns(1)
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return s, err
	}
	m, err := goose.NewProvider(goose.DialectSQLite3, s.wdb, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return s, err
	}
	if _, err = m.Up(ctx); err != nil {
		return s, err
	}
	conn, err := s.wdb.Conn(ctx)
	if err != nil {
		return s, err
	}
	s.w = newWriter(conn)
	if s.read, err = o.open(path, "query_only(1)", "cache_size(-8192)"); err != nil {
		return s, err
	}
	s.read.SetMaxOpenConns(max(2, runtime.GOMAXPROCS(0)))
	return s, nil
}

// Close waits for the changes that are under way. Called again it does nothing.
func (s *Store) Close() error {
	var errs []error
	s.close.Do(func() {
		if s.read != nil {
			errs = append(errs, s.read.Close())
		}
		if s.w != nil {
			errs = append(errs, s.w.close())
		}
		if s.wdb != nil {
			errs = append(errs, s.wdb.Close())
		}
	})
	return errors.Join(errs...)
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

// found makes an absent row ErrNotFound.
func found(what, id string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s %s: %w", what, id, batch.ErrNotFound)
	}
	return explain(err)
}

func createFile(t *tx, f *batch.File) (written bool, err error) {
	n, err := t.exec("INSERT INTO files ("+fileColumns+") VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		f.ID, f.Tenant, f.Purpose, f.Name, f.Bytes, micros(f.Created), micros(f.Expires))
	return n > 0, err
}

func (s *Store) CreateFile(ctx context.Context, f *batch.File) error {
	return s.w.do(ctx, func(t *tx) error {
		written, err := createFile(t, f)
		if err == nil && !written {
			err = fmt.Errorf("file %s: %w: it exists", f.ID, batch.ErrState)
		}
		return err
	})
}

func (s *Store) File(ctx context.Context, tenant, id string) (*batch.File, error) {
	f, err := scanFile(s.read.QueryRowContext(ctx, "SELECT "+fileColumns+" FROM files WHERE id = ? AND tenant = ?", id, tenant).Scan)
	if err != nil {
		return nil, found("file", id, err)
	}
	return f, nil
}

// list returns a page of a table.
func list[T any](ctx context.Context, s *Store, table, columns, tenant string, p batch.Page, scan func(func(...any) error) (T, error)) ([]T, bool, error) {
	where, args := "tenant = ?", []any{tenant}
	if p.Purpose != "" {
		where, args = where+" AND purpose = ?", append(args, p.Purpose)
	}
	compare, order := "<", "DESC"
	if p.Oldest {
		compare, order = ">", "ASC"
	}
	if p.After != "" {
		var n int64
		if err := s.read.QueryRowContext(ctx, "SELECT n FROM "+table+" WHERE id = ? AND tenant = ?", p.After, tenant).Scan(&n); err != nil {
			return nil, false, found("after", p.After, err)
		}
		where, args = where+" AND n "+compare+" ?", append(args, n)
	}
	// One more than asked for tells whether there are others.
	all, err := collect(ctx, s.read, scan, "SELECT "+columns+" FROM "+table+" WHERE "+where+" ORDER BY n "+order+" LIMIT ?", append(args, p.Limit+1)...)
	if err != nil {
		return nil, false, err
	}
	n := min(p.Limit, len(all))
	return all[:n], n < len(all), nil
}

func collect[T any](ctx context.Context, db *sql.DB, scan func(func(...any) error) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	return all(rows, err, scan)
}

// all scans rows to their end.
func all[T any](rows *sql.Rows, err error, scan func(func(...any) error) (T, error)) (list []T, _ error) {
	if err != nil {
		return nil, explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, explain(rows.Err())
}

func (s *Store) Files(ctx context.Context, tenant string, p batch.Page) ([]*batch.File, bool, error) {
	return list(ctx, s, "files", fileColumns, tenant, p, scanFile)
}

func (s *Store) DeleteFile(ctx context.Context, tenant, id string) error {
	return s.w.do(ctx, func(t *tx) error {
		n, err := t.exec("DELETE FROM files WHERE id = ? AND tenant = ?", id, tenant)
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
	return collect(ctx, s.read, scanFile, "SELECT "+fileColumns+` FROM files WHERE expires > 0 AND expires <= ?
		AND NOT EXISTS (SELECT 1 FROM batches WHERE input = files.id AND ended = 0) ORDER BY n LIMIT ?`, micros(now), limit)
}

func (s *Store) Strays(ctx context.Context, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	names, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	return collect(ctx, s.read, func(scan func(...any) error) (id string, err error) {
		return id, scan(&id)
	}, "SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM files WHERE id = value) ORDER BY key", string(names))
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

func (s *Store) CreateBatch(ctx context.Context, b *batch.Batch) error {
	metadata, err := document(b.Metadata, len(b.Metadata))
	if err != nil {
		return err
	}
	return s.w.do(ctx, func(t *tx) error {
		var one int
		there, err := t.row("SELECT 1 FROM files WHERE id = ? AND tenant = ?", []any{b.Input, b.Tenant}, &one)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("file %s: %w", b.Input, batch.ErrNotFound)
		}
		n, err := t.exec(`INSERT INTO batches (id, tenant, key, class, endpoint, time_window, keep_output, metadata, input, status, created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			b.ID, b.Tenant, b.Key, b.Class, b.Endpoint, b.Window.Microseconds(), b.KeepOutput.Microseconds(), metadata, b.Input, string(batch.Validating), micros(b.Created), micros(b.Expires))
		if err == nil && n == 0 {
			err = fmt.Errorf("batch %s: %w: it exists", b.ID, batch.ErrState)
		}
		return err
	})
}

func (s *Store) Batch(ctx context.Context, tenant, id string) (*batch.Batch, error) {
	b, err := scanBatch(s.read.QueryRowContext(ctx, "SELECT "+batchColumns+" FROM batches WHERE id = ? AND tenant = ?", id, tenant).Scan)
	if err != nil {
		return nil, found("batch", id, err)
	}
	return b, nil
}

func (s *Store) Batches(ctx context.Context, tenant string, p batch.Page) ([]*batch.Batch, bool, error) {
	p.Purpose = ""
	return list(ctx, s, "batches", batchColumns, tenant, p, scanBatch)
}

func (s *Store) Unfinished(ctx context.Context) ([]*batch.Batch, error) {
	return collect(ctx, s.read, scanBatch, "SELECT "+batchColumns+" FROM batches WHERE ended = 0 ORDER BY n")
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
	ok, err := t.row("SELECT n, tenant, status, completed + failed, total - completed - failed, expires_at, finalizing_at, expired_at FROM batches WHERE id = ?",
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
	err = s.w.do(ctx, func(t *tx) error {
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
			n, err := t.exec("INSERT INTO names (batch, custom_id) VALUES (?, ?) ON CONFLICT DO NOTHING", b.n, it.CustomID)
			if err != nil {
				return err
			}
			if n == 0 {
				it.Batch = id
				duplicate = append(duplicate, it)
				continue
			}
			if _, err := t.exec("INSERT INTO items (id, batch, custom_id, offset, length, prefix, tokens) VALUES (?, ?, ?, ?, ?, ?, ?)",
				key(b.n, it.Line), b.n, it.CustomID, it.Offset, it.Length, int64(it.Prefix), it.Tokens); err != nil {
				return err
			}
			added++
		}
		_, err = t.exec("UPDATE batches SET total = total + ?1, ready = ready + ?1 WHERE n = ?2", added, b.n)
		return err
	})
	return duplicate, err
}

func (s *Store) Start(ctx context.Context, id string, now time.Time) error {
	return s.w.do(ctx, func(t *tx) error {
		b, err := t.in(id, batch.Validating)
		if err != nil {
			return err
		}
		if _, err := t.exec("UPDATE batches SET status = ?, started_at = ? WHERE n = ?", string(batch.InProgress), micros(now), b.n); err != nil {
			return err
		}
		return t.drop(b, true)
	})
}

// drop leaves a batch's rows to Vacuum.
func (t *tx) drop(b *row, names bool) error {
	_, err := t.exec("INSERT INTO drops (batch, names_only) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET names_only = ?2", b.n, names)
	return err
}

func (s *Store) Fail(ctx context.Context, id string, why []batch.LineError, now time.Time) error {
	problems, err := document(why, len(why))
	if err != nil {
		return err
	}
	return s.w.do(ctx, func(t *tx) error {
		b, err := t.in(id, batch.Validating)
		if err != nil {
			return err
		}
		if _, err := t.exec("UPDATE batches SET status = ?1, failed_at = ?2, ended = ?2, errors = ?3, total = 0, ready = 0 WHERE n = ?4",
			string(batch.Failed), micros(now), problems, b.n); err != nil {
			return err
		}
		return t.drop(b, false)
	})
}

func (s *Store) Cancel(ctx context.Context, tenant, id string, now time.Time) (*batch.Batch, error) {
	err := s.w.do(ctx, func(t *tx) error {
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
			if _, err := t.exec("UPDATE batches SET total = 0, ready = 0 WHERE n = ?", b.n); err != nil {
				return err
			}
			if err := t.drop(b, false); err != nil {
				return err
			}
		case b.status != batch.InProgress || b.expiredAt != 0:
			return b.state()
		}
		_, err = t.exec("UPDATE batches SET status = ?, cancelling_at = ? WHERE n = ?", string(batch.Cancelling), micros(now), b.n)
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
	return collect(ctx, s.read, func(scan func(...any) error) (w batch.Waiting, err error) {
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
	rows, err := t.query("SELECT n FROM workers WHERE until <= ?", micros(now))
	over, err := all(rows, err, scanInt)
	if err != nil {
		return err
	}
	for _, worker := range over {
		rows, err := t.query("UPDATE items SET state = 0, worker = 0 WHERE state = 2 AND worker = ? RETURNING batch", worker)
		batches, err := all(rows, err, scanInt)
		if err != nil {
			return err
		}
		for _, n := range batches {
			if _, err := t.exec("UPDATE batches SET ready = ready + 1 WHERE n = ?", n); err != nil {
				return err
			}
		}
		if _, err := t.exec("DELETE FROM workers WHERE n = ?", worker); err != nil {
			return err
		}
	}
	return nil
}

func scanInt(scan func(...any) error) (n int64, err error) { return n, scan(&n) }

func (s *Store) Claim(ctx context.Context, id, worker string, n int, after uint64, now, until time.Time) (claims []batch.Claim, err error) {
	err = s.w.do(ctx, func(t *tx) error {
		claims = nil
		if err := t.sweep(now); err != nil {
			return err
		}
		var of batch.Claim
		var b row
		ok, err := t.row("SELECT n, status, tenant, key, class, endpoint, input, expires_at FROM batches WHERE id = ?", []any{id},
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
		due, err := t.exec("UPDATE items SET state = 0, not_before = 0 WHERE batch = ? AND state = 1 AND not_before <= ?", b.n, micros(now))
		if err != nil {
			return err
		}
		var ids []int64
		for _, part := range []string{">=", "<"} {
			rows, err := t.query("SELECT id FROM items WHERE batch = ? AND state = 0 AND prefix "+part+" ? ORDER BY prefix, id LIMIT ?",
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
			if _, err := t.row("INSERT INTO workers (name, until) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET until = ?2 RETURNING n",
				[]any{worker, micros(until)}, &w); err != nil {
				return err
			}
			for _, item := range ids {
				c := of
				var prefix int64
				if _, err := t.row(`UPDATE items SET state = 2, worker = ?, fence = fence + 1 WHERE id = ? RETURNING custom_id, offset, length,
					prefix, tokens, fence, attempts, (SELECT kept FROM checkpoints WHERE item = items.id)`, []any{w, item},
					&c.CustomID, &c.Offset, &c.Length, &prefix, &c.Tokens, &c.Fence, &c.Attempts, (*[]byte)(&c.Kept)); err != nil {
					return err
				}
				c.Line, c.Prefix = item&(1<<32-1), uint64(prefix)
				claims = append(claims, c)
			}
		}
		_, err = t.exec("UPDATE batches SET ready = ready + ? WHERE n = ?", due-int64(len(ids)), b.n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return claims, nil
}

func (s *Store) Renew(ctx context.Context, worker string, now, until time.Time) error {
	return s.w.do(ctx, func(t *tx) error {
		n, err := t.exec("UPDATE workers SET until = ? WHERE name = ? AND until > ?", micros(until), worker, micros(now))
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

func (v *saving) done() error {
	for _, b := range v.rows {
		c := v.sums[b]
		if *c == (tally{}) {
			continue
		}
		if _, err := v.t.exec(`UPDATE batches SET ready = ready + ?, completed = completed + ?, failed = failed + ?, prompt_tokens = prompt_tokens + ?,
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
	err = s.w.do(ctx, func(t *tx) error {
		errs = make([]error, 0, len(cs)+len(rs)+len(os))
		v := &saving{t, map[string]*row{}, map[*row]*tally{}}
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
				return fenced(t.exec(`INSERT INTO checkpoints (item, kept) SELECT id, ?1 FROM items WHERE id = ?2 AND fence = ?3
					ON CONFLICT DO UPDATE SET kept = ?1`, []byte(c.Kept), item, c.Fence))
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
				_, err = t.exec("UPDATE items SET state = ?, worker = 0, not_before = ?, fence = fence + 1, attempts = attempts + ? WHERE id = ?",
					to, micros(r.NotBefore), failed, item)
				c.ready += count(to == ready) - count(was == ready)
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
	if _, err := t.exec("DELETE FROM checkpoints WHERE item = ?", item); err != nil {
		return err
	}
	b.done++
	if _, err := t.exec("INSERT INTO results (id, failed, line) VALUES (?, ?, ?)", key(b.n, b.done), o.Failed, []byte(o.Result)); err != nil {
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
	err = s.w.do(ctx, func(t *tx) error {
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
			if _, err := t.exec("UPDATE batches SET expired_at = ? WHERE n = ?", micros(now), b.n); err != nil {
				return err
			}
		}
		if left = b.left; left == 0 {
			return nil // what rows there are belong to what is dropped
		}
		rows, err := t.query("SELECT id, custom_id, offset, length, prefix, tokens, fence FROM items WHERE id > ? AND id < ?"+where+" ORDER BY id LIMIT ?",
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
	return s.w.do(ctx, func(t *tx) error {
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
		_, err = t.exec("UPDATE batches SET status = ?, finalizing_at = ? WHERE n = ?", string(status), micros(now), b.n)
		return err
	})
}

// resultsMost is how many rows are read at once: a long read would keep the log from being
// folded back.
const resultsMost = 256

func (s *Store) Results(ctx context.Context, id string, failed bool, after int64, each func(int64, []byte) error) error {
	var n, ended int64
	if err := s.read.QueryRowContext(ctx, "SELECT n, ended FROM batches WHERE id = ?", id).Scan(&n, &ended); err != nil {
		return found("batch", id, err)
	}
	if ended != 0 {
		return nil
	}
	type result struct {
		id   int64
		line []byte
	}
	// Pieces are of all results, so that few of one kind among many of the other are found
	// in many short reads.
	for at := key(n, after); ; {
		last := int64(0)
		lines, err := collect(ctx, s.read, func(scan func(...any) error) (r result, err error) {
			err = scan(&r.id, &r.line, &last)
			return r, err
		}, `SELECT id, CASE WHEN failed = ?1 THEN line END, id FROM results WHERE id > ?2 AND id < ?3 ORDER BY id LIMIT ?4`, failed, at, key(n+1, 0), resultsMost)
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
	return s.w.do(ctx, func(t *tx) error {
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
		if _, err := t.exec("UPDATE batches SET status = ?, output = ?, error = ?, ended = ?, completed_at = ?, cancelled_at = ? WHERE n = ?",
			string(b.Status), b.Output, b.Error, micros(b.Ended()), micros(b.CompletedAt), micros(b.CancelledAt), of.n); err != nil {
			return err
		}
		return t.drop(of, false)
	})
}

func (s *Store) Hold(ctx context.Context, name, worker string, now, until time.Time) error {
	return s.w.do(ctx, func(t *tx) error {
		n, err := t.exec(`INSERT INTO holds (name, worker, until) VALUES (?1, ?2, ?3)
			ON CONFLICT DO UPDATE SET worker = ?2, until = ?3 WHERE worker = ?2 OR until <= ?4`, name, worker, micros(until), micros(now))
		if err := fenced(n, err); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		// Names are of batches, which end: what is over goes.
		_, err = t.exec("DELETE FROM holds WHERE until <= ? AND name <> ?", micros(now), name)
		return err
	})
}

func (s *Store) Forget(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	err = s.w.do(ctx, func(t *tx) error {
		n, err := t.exec("DELETE FROM batches WHERE n IN (SELECT n FROM batches WHERE ended > 0 AND ended < ? ORDER BY n LIMIT ?)", micros(before), limit)
		forgotten = int(n)
		return err
	})
	return forgotten, err
}

// Vacuum deletes some rows of batches that have ended, then gives some pages back.
func (s *Store) Vacuum(ctx context.Context) (more bool, err error) {
	err = s.w.do(ctx, func(t *tx) error {
		more = false
		var n int64
		var names bool
		ok, err := t.row("SELECT batch, names_only FROM drops ORDER BY batch LIMIT 1", nil, &n, &names)
		if err != nil || !ok {
			return err
		}
		more = true
		deleted, err := t.exec("DELETE FROM names WHERE (batch, custom_id) IN (SELECT batch, custom_id FROM names WHERE batch = ? LIMIT ?)", n, vacuumRows)
		if err != nil {
			return err
		}
		if !names {
			for _, table := range []struct{ name, column string }{{"items", "id"}, {"checkpoints", "item"}, {"results", "id"}} {
				if deleted >= vacuumRows {
					break
				}
				some, err := t.exec(strings.NewReplacer("TABLE", table.name, "ID", table.column).Replace(
					"DELETE FROM TABLE WHERE ID IN (SELECT ID FROM TABLE WHERE ID > ? AND ID < ? LIMIT ?)"), key(n, 0), key(n+1, 0), vacuumRows-deleted)
				if err != nil {
					return err
				}
				deleted += some
			}
		}
		if deleted == 0 {
			_, err = t.exec("DELETE FROM drops WHERE batch = ?", n)
		}
		return err
	})
	if err != nil || more {
		return more, err
	}
	// The pragma takes pages off the file's end in a transaction of the group's.
	err = s.w.do(ctx, func(t *tx) error {
		var free int64
		if _, err := t.row("PRAGMA freelist_count", nil, &free); err != nil || free == 0 {
			return err
		}
		more = free > vacuumPages
		_, err := t.exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages))
		return err
	})
	return more, err
}
