package batchtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/batch"
)

// Contents is a batch.Files that forgets everything.
type Contents struct {
	mu    sync.Mutex
	known map[string][]byte
	when  map[string]time.Time
}

// NewContents returns one with nothing in it.
func NewContents() *Contents {
	return &Contents{known: map[string][]byte{}, when: map[string]time.Time{}}
}

type upload struct {
	bytes.Buffer
	commit func([]byte)
}

func (u *upload) Commit() error { u.commit(bytes.Clone(u.Bytes())); return nil }
func (u *upload) Close() error  { return nil }

func (c *Contents) Create(_ context.Context, id string) (batch.Upload, error) {
	return &upload{commit: func(b []byte) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.known[id], c.when[id] = b, time.Now()
	}}, nil
}

type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

func (c *Contents) Open(_ context.Context, id string) (batch.Content, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.known[id]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return content{bytes.NewReader(b)}, nil
}

func (c *Contents) Remove(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
	return nil
}

func (c *Contents) Each(_ context.Context, each func(string, time.Time) error) error {
	c.mu.Lock()
	names := slices.Sorted(maps.Keys(c.known))
	when := maps.Clone(c.when)
	c.mu.Unlock()
	for _, id := range names {
		if err := each(id, when[id]); err != nil {
			return err
		}
	}
	return nil
}

// RunFiles holds contents to what batch.Files says.
func RunFiles(t *testing.T, fresh func(t *testing.T) batch.Files) {
	ctx := context.Background()
	write := func(t *testing.T, f batch.Files, id, text string) batch.Upload {
		t.Helper()
		u, err := f.Create(ctx, id)
		if err == nil {
			_, err = io.WriteString(u, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	read := func(t *testing.T, f batch.Files, id string) string {
		t.Helper()
		c, err := f.Open(ctx, id)
		if errors.Is(err, fs.ErrNotExist) {
			return "none"
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	names := func(t *testing.T, f batch.Files) []string {
		t.Helper()
		var all []string
		if err := f.Each(ctx, func(id string, written time.Time) error {
			if time.Since(written).Abs() > time.Hour {
				t.Errorf("%s was written at %s", id, written)
			}
			all = append(all, id)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	is := func(t *testing.T, have, want string) {
		t.Helper()
		if have != want {
			t.Fatalf("%q; want %q", have, want)
		}
	}

	t.Run("a content is there whole or not at all", func(t *testing.T) {
		f := fresh(t)
		u := write(t, f, "file-a", "text")
		is(t, read(t, f, "file-a"), "none")
		if n := names(t, f); len(n) != 0 {
			t.Fatalf("there are %v", n)
		}
		if err := u.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
		is(t, read(t, f, "file-a"), "text")
	})
	t.Run("one that is given up leaves nothing", func(t *testing.T) {
		f := fresh(t)
		if err := write(t, f, "file-a", "text").Close(); err != nil {
			t.Fatal(err)
		}
		is(t, read(t, f, "file-a"), "none")
	})
	t.Run("it is replaced, read and removed", func(t *testing.T) {
		f := fresh(t)
		for _, text := range []string{"longer text", "text"} {
			if err := write(t, f, "file-a", text).Commit(); err != nil {
				t.Fatal(err)
			}
			is(t, read(t, f, "file-a"), text)
		}
		if err := write(t, f, "file-b.c_d", "").Commit(); err != nil {
			t.Fatal(err)
		}
		if n := names(t, f); !slices.Equal(n, []string{"file-a", "file-b.c_d"}) {
			t.Fatalf("there are %v", n)
		}
		c, err := f.Open(ctx, "file-a")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := f.Remove(ctx, "file-a"); err != nil {
				t.Fatal(err)
			}
		}
		is(t, read(t, f, "file-a"), "none")
		b := make([]byte, 2)
		if _, err := c.ReadAt(b, 1); err != nil {
			t.Fatal(err) // a reader that has it open goes on
		}
		is(t, string(b), "ex")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
