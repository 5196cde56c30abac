// Package files keeps contents as files of one folder.
//
// A content is written under a name that no reader sees, flushed, and only then renamed to
// its own; then the folder is flushed, or the name could be gone after a power cut. So a
// content is there whole or not at all.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/batch"
)

// Folder is a batch.Files on disk. Several processes may share it.
type Folder struct{ path string }

var _ batch.Files = (*Folder)(nil)

const (
	// unfinished begins the names of contents that are being written.
	unfinished = ".unfinished-"
	// abandoned is how long one is left alone that nobody writes to: its writer is dead.
	abandoned = 24 * time.Hour
)

// New returns the contents of a folder, which is made where there is none.
func New(path string) (*Folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of files: %w", err)
	}
	return &Folder{path}, nil
}

func (f *Folder) place(id string) (string, error) {
	if err := batch.CheckContent(id); err != nil {
		return "", err
	}
	return filepath.Join(f.path, id), nil
}

func (f *Folder) Create(_ context.Context, id string) (batch.Upload, error) {
	path, err := f.place(id)
	if err != nil {
		return nil, err
	}
	t, err := os.CreateTemp(f.path, unfinished+id+"-")
	if err != nil {
		return nil, err
	}
	return &upload{File: t, path: path}, nil
}

type upload struct {
	*os.File
	path string
	over bool
}

func (u *upload) Commit() error {
	if u.over {
		return fs.ErrClosed
	}
	u.over = true
	err := u.Sync()
	if e := u.File.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(u.Name(), u.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(u.Name()))
	}
	return flush(filepath.Dir(u.path))
}

func (u *upload) Close() error {
	if u.over {
		return nil
	}
	u.over = true
	return errors.Join(u.File.Close(), os.Remove(u.Name()))
}

// flush makes a folder's names durable.
func flush(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type content struct {
	*os.File
	size int64
}

func (c *content) Size() int64 { return c.size }

func (f *Folder) Open(_ context.Context, id string) (batch.Content, error) {
	path, err := f.place(id)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	o, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := o.Stat()
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return &content{o, info.Size()}, nil
}

func (f *Folder) Remove(_ context.Context, id string) error {
	path, err := f.place(id)
	if err != nil {
		return nil // there is none of that name
	}
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return flush(f.path)
}

// Each passes over what is being written, and removes what was abandoned in that.
func (f *Folder) Each(ctx context.Context, each func(string, time.Time) error) error {
	d, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		// In pieces: there may be many.
		some, err := d.ReadDir(256)
		for _, e := range some {
			if err := ctx.Err(); err != nil {
				return err
			}
			info, err := e.Info()
			switch {
			case errors.Is(err, fs.ErrNotExist), err == nil && !info.Mode().IsRegular():
				continue
			case err != nil:
				return err
			}
			if strings.HasPrefix(e.Name(), unfinished) {
				if time.Since(info.ModTime()) > abandoned {
					if err := os.Remove(filepath.Join(f.path, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
						return err
					}
				}
				continue
			}
			if batch.CheckContent(e.Name()) != nil {
				continue // not ours
			}
			if err := each(e.Name(), info.ModTime()); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
