package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/batch/rows"
)

func TestStore(t *testing.T) {
	batchtest.Run(t, func(t *testing.T) batchtest.Storage {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		return batchtest.Storage{Open: func() (batch.Store, error) {
			return quick.store(filepath.Join(dir, "batch.db"))
		}}
	})
}

var background = context.Background()

// quick flushes nothing: what is written where matters, not when.
var quick = options{"OFF", time.Second}

func (o options) store(path string) (*rows.Store, error) {
	db, err := o.database(background, path)
	if err != nil {
		return nil, err
	}
	return rows.New(db), nil
}

// opened is a store with one batch that is Validating.
func opened(t *testing.T, o options) (*rows.Store, *database, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "batch.db")
	db, err := o.database(background, path)
	if err != nil {
		t.Fatal(err)
	}
	s := rows.New(db)
	t.Cleanup(func() { s.Close() })
	now := time.Now()
	if err := s.CreateFile(background, &batch.File{ID: "f", Tenant: "t", Created: now}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateBatch(background, &batch.Batch{ID: "b", Tenant: "t", Input: "f", Created: now, Expires: now.Add(time.Hour)}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	return s, db, path
}

func someItems(from, n int) (items []batch.Item) {
	for i := range n {
		items = append(items, batch.Item{Line: int64(from + i), CustomID: fmt.Sprint(strings.Repeat("x", 100), from+i), Prefix: uint64(i % 7)})
	}
	return items
}

func total(t *testing.T, s *rows.Store) int64 {
	t.Helper()
	b, err := s.Batch(background, "t", "b")
	if err != nil {
		t.Fatal(err)
	}
	return b.Counts.Total
}

// TestDiskFull: a change that the disk has no room for is undone whole, says so, and so do
// those that shared its transaction; with room again the store goes on.
func TestDiskFull(t *testing.T) {
	s, db, _ := opened(t, quick)
	pages := func(most int) {
		t.Helper()
		if err := db.Change(background, func(t rows.Tx) error {
			_, err := t.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", most))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	pages(200)
	var err error
	line := 1
	for ; err == nil; line += 100 {
		_, err = s.AddItems(background, "b", someItems(line, 100))
	}
	if !errors.Is(err, batch.ErrFull) || !strings.Contains(err.Error(), "the disk of the batch store is full, nothing was changed") {
		t.Fatal(err)
	}
	if n := total(t, s); n != int64(line-101) {
		t.Errorf("%d items are counted after %d were written", n, line-101)
	}
	if err := s.Start(background, "b", time.Now()); err != nil {
		t.Errorf("a change that needs no room: %v", err)
	}
	pages(100_000)
	claims, err := s.Claim(background, "b", "w", line, 0, time.Now(), time.Now().Add(time.Minute))
	if err != nil || len(claims) != line-101 {
		t.Errorf("%d items are there, %v", len(claims), err)
	}
}

// TestLocked: a change that another process keeps from being written says so, and is as if
// it had not been asked for.
func TestLocked(t *testing.T) {
	o := options{"OFF", 50 * time.Millisecond}
	s, _, path := opened(t, o)
	other, err := o.open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock, err := other.Begin() // which is immediate
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.AddItems(background, "b", someItems(1, 10))
	if err == nil || !strings.Contains(err.Error(), "another process keeps the batch store locked, nothing was changed") {
		t.Errorf("%v", err)
	}
	if n := total(t, s); n != 0 {
		t.Errorf("%d items are counted", n)
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddItems(background, "b", someItems(1, 10)); err != nil || total(t, s) != 10 {
		t.Errorf("%d items are counted, %v", total(t, s), err)
	}
}

// TestOpen: what is no database is not touched, and the error names the file.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a?b#c %41.db")
	text := bytes.Repeat([]byte("this is something else\n"), 500)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(background, path)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "is damaged, or is none") {
		t.Errorf("%v", err)
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, text) {
		t.Errorf("it was changed: %v", err)
	}
	if _, err := Open(background, filepath.Join(path, "below", "it")); err == nil {
		t.Error("a path below a file was opened")
	}
}

// TestLook: what is there is told of, and no file is made, neither beside a database that is
// in use nor beside one that is not.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a?b.db")
	look := func(have int64) {
		t.Helper()
		before, _ := filepath.Glob(filepath.Join(dir, "*"))
		f, err := Look(background, path)
		after, _ := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || f.Have != have || f.Want != 1 || !slices.Equal(before, after) {
			t.Errorf("%+v, %v; %v, and then %v", f, err, before, after)
		}
	}
	if _, err := Look(background, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	s, err := Open(background, path)
	if err != nil {
		t.Fatal(err)
	}
	look(1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	look(1)
	if err := os.WriteFile(path, bytes.Repeat([]byte("something else\n"), 500), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Look(background, path); err == nil || !strings.Contains(err.Error(), "is damaged, or is none") {
		t.Errorf("%v", err)
	}
}

// TestRoom: what a batch took of the disk is given back once it has ended, and another one
// of its size needs no more.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "batch.db")
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	var sizes []int64
	for round := range 3 {
		s, err := quick.store(path)
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint("b", round)
		now := time.Now()
		if err := s.CreateFile(background, &batch.File{ID: "f" + id, Tenant: "t"}, batch.Holdings{}); err != nil {
			t.Fatal(err)
		}
		if err := s.CreateBatch(background, &batch.Batch{ID: id, Tenant: "t", Input: "f" + id, Created: now, Expires: now.Add(time.Hour)}, batch.Holdings{}); err != nil {
			t.Fatal(err)
		}
		const n = 3000
		if _, err := s.AddItems(background, id, someItems(1, n)); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(background, id, now); err != nil {
			t.Fatal(err)
		}
		claims, err := s.Claim(background, id, "w", n, 0, now, now.Add(time.Minute))
		if err != nil || len(claims) != n {
			t.Fatal(len(claims), err)
		}
		var outcomes []batch.Outcome
		var checkpoints []batch.Checkpoint
		for _, c := range claims {
			checkpoints = append(checkpoints, batch.Checkpoint{Batch: id, Line: c.Line, Fence: c.Fence, Kept: bytes.Repeat([]byte("1"), 300)})
			outcomes = append(outcomes, batch.Outcome{Batch: id, Line: c.Line, Fence: c.Fence, Result: bytes.Repeat([]byte("1"), 1000)})
		}
		if _, err := s.Save(background, checkpoints, nil, nil, now); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Save(background, nil, nil, outcomes, now); err != nil {
			t.Fatal(err)
		}
		if err := s.Finalize(background, id, now); err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(background, id, nil, nil, now); err != nil {
			t.Fatal(err)
		}
		for more, calls := true, 0; more; calls++ {
			if more, err = s.Vacuum(background); err != nil {
				t.Fatal(err)
			}
			if calls > 100 {
				t.Fatal("it goes on for ever")
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size())
	}
	// Some pages stay, of rows of batches and files.
	if sizes[0] > 300<<10 || sizes[2] > sizes[0]+8<<10 {
		t.Errorf("the file has %v bytes after each batch of 3 MB", sizes)
	}
}
