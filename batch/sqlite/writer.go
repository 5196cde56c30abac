package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"headgate/batch"
	"headgate/batch/rows"
)

// groupMost bounds how many changes are joined into one transaction: what a crash can
// lose the work of, and how long the first one waits for the last.
const groupMost = 256

// errClosed is what a change comes to that is asked for after Close.
var errClosed = errors.New("the store is closed")

// writer is the one connection that writes. A commit waits for the disk; what is asked
// for meanwhile shares the next one, so that a thousand changes a second cost the disk
// what some dozens do. Nobody waits for company: a change that comes alone is committed alone.
type writer struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	ops   chan *op
	stop  chan struct{} // closed: no more changes
	ended chan struct{}
}

type op struct {
	do   func(rows.Tx) error
	err  error
	done chan struct{}
}

// tx is what a change does its work with.
type tx struct {
	w     *writer
	wrote bool
}

func newWriter(conn *sql.Conn) *writer {
	w := &writer{conn: conn, stmts: map[string]*sql.Stmt{}, ops: make(chan *op, groupMost),
		stop: make(chan struct{}), ended: make(chan struct{})}
	go w.run()
	return w
}

// do runs a change and returns when it is on the disk. The context counts until the
// change is taken on: a claim that nobody waits for any more would be held by nobody.
func (w *writer) do(ctx context.Context, change func(rows.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o := &op{do: change, done: make(chan struct{})}
	select {
	case w.ops <- o:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.stop:
		return errClosed
	}
	select {
	case <-o.done:
		return o.err
	case <-w.ended:
	}
	select {
	case <-o.done:
		return o.err
	default:
		return errClosed // it was taken on behind the last group
	}
}

func (w *writer) run() {
	defer close(w.ended)
	for {
		var group []*op
		select {
		case o := <-w.ops:
			group = append(group, o)
		case <-w.stop:
			return
		}
	more:
		for len(group) < groupMost {
			select {
			case o := <-w.ops:
				group = append(group, o)
			default:
				break more
			}
		}
		w.commit(group)
	}
}

// commit runs a group's changes in one transaction. If the storage fails, none is made. If
// one fails by itself after it wrote something, they are all undone and made one by one: that is rare, and
// a savepoint for each change costs as much as the change.
func (w *writer) commit(group []*op) {
	switch err := w.together(group); {
	case err == errUndone && len(group) > 1:
		for _, o := range group {
			w.commit([]*op{o})
		}
		return
	case err != nil && err != errUndone:
		for _, o := range group {
			o.err = explain(err)
		}
	}
	for _, o := range group {
		close(o.done)
	}
}

// errUndone: a change failed by itself, and with it the transaction.
var errUndone = errors.New("a change is undone")

// together makes a transaction of a group's changes. Its error is of all of them.
func (w *writer) together(group []*op) error {
	err := w.exec("BEGIN IMMEDIATE")
	if err != nil {
		return err
	}
	for _, o := range group {
		t := &tx{w: w}
		if o.err = o.do(t); o.err == nil {
			continue
		}
		if err = o.err; !storage(err) {
			if err = nil; t.wrote {
				err = errUndone
			}
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = w.exec("COMMIT")
	}
	if err != nil {
		// SQLite may have rolled back by itself: then this fails, and is no matter.
		_ = w.exec("ROLLBACK")
	}
	return err
}

// close ends the goroutine after the group it is at.
func (w *writer) close() error {
	close(w.stop)
	<-w.ended
	var errs []error
	for _, s := range w.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// stmt prepares a statement once.
func (w *writer) stmt(query string) (*sql.Stmt, error) {
	if s := w.stmts[query]; s != nil {
		return s, nil
	}
	s, err := w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("%w in: %s", err, query)
	}
	w.stmts[query] = s
	return s, nil
}

func (w *writer) exec(query string) error {
	s, err := w.stmt(query)
	if err == nil {
		_, err = s.Exec()
	}
	return err
}

func (t *tx) Exec(query string, args ...any) (int64, error) {
	s, err := t.w.stmt(query)
	if err != nil {
		return 0, err
	}
	r, err := s.Exec(args...)
	if err != nil {
		return 0, err
	}
	n, err := r.RowsAffected()
	t.wrote = t.wrote || n > 0
	return n, err
}

func (t *tx) Query(query string, args ...any) (*sql.Rows, error) {
	s, err := t.w.stmt(query)
	if err != nil {
		return nil, err
	}
	t.wrote = t.wrote || !strings.HasPrefix(query, "SELECT")
	return s.Query(args...)
}

// storage tells whether an error is SQLite's own, after which the transaction may be
// gone.
func storage(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && e.Code()&0xff != codes.SQLITE_CONSTRAINT
}

// explain puts into words what an operator can do something about.
func explain(err error) error {
	var e *driver.Error
	if errors.As(err, &e) {
		switch e.Code() & 0xff {
		case codes.SQLITE_FULL:
			return fmt.Errorf("%w, nothing was changed: %w", batch.ErrFull, err)
		case codes.SQLITE_BUSY, codes.SQLITE_LOCKED:
			return fmt.Errorf("another process keeps the batch store locked, nothing was changed: %w", err)
		case codes.SQLITE_READONLY:
			return fmt.Errorf("the batch store can't be written, nothing was changed: %w", err)
		case codes.SQLITE_IOERR:
			return fmt.Errorf("the disk of the batch store failed: %w", err)
		case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
			return fmt.Errorf("the batch store's file is damaged, or is none: %w", err)
		}
	}
	return err
}
