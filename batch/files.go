package batch

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"time"
)

// Files is where the contents of files are: a folder, or object storage.
type Files interface {
	// Create opens a new content for writing. It is there, whole and on the disk, once
	// Commit has returned nil; a name that is there already is replaced. Close without
	// Commit leaves nothing.
	Create(ctx context.Context, id string) (Upload, error)
	// Open reads a content, until it is closed, whatever becomes of ctx then. fs.ErrNotExist:
	// there is none.
	Open(ctx context.Context, id string) (Content, error)
	// Remove ends a content; one that is not there is no error.
	Remove(ctx context.Context, id string) error
	// Each calls with every content there is, and when it was written, in no order.
	Each(ctx context.Context, each func(id string, written time.Time) error) error
}

// Upload is a content that is being written.
type Upload interface {
	io.Writer
	Commit() error
	Close() error
}

// Content is a content that can be read at any place.
type Content interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

var contentNames = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$`)

// CheckContent tells whether a content may be called so: by nothing that means anything to a
// file system or in a URL.
func CheckContent(id string) error {
	if !contentNames.MatchString(id) {
		return fmt.Errorf("file name %q; allowed: up to 200 letters, digits, _, - and ., with no . first", id)
	}
	return nil
}
