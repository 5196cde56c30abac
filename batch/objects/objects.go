// Package objects keeps contents as objects of a bucket: S3, and what speaks like it.
//
// An object is there whole or not at all, once its upload is ended; so nothing is flushed
// or renamed here. An upload to S3 that is given up is ended with an error of its reader and
// not by its context: the storage is then asked to forget the parts that it has, which a context
// that is over could not ask. Of other kinds of buckets the context has to end, or what has come
// would be taken for all.
//
// S3's is the one kind that is linked: see docs/dependencies.md.
//
// A content is read as one stream while it is read in order, which is one request for all
// of it, and with a request for each piece where it is not: items of a batch are read by their
// prefixes.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/s3blob" // s3://
	"gocloud.dev/gcerrors"

	"headgate/batch"
)

const (
	// openTimeout is how long a bucket may take to show that it is there.
	openTimeout = 30 * time.Second
	// readTimeout is how long a piece may take to come: a storage that hangs is one that
	// failed.
	readTimeout = time.Minute
	// abortTimeout is how long an upload that is given up may take to be cleaned up.
	abortTimeout = 10 * time.Second
	// partBytes and partsAtOnce are an upload's memory: so many parts on their way, and one that
	// is filled. S3 has 10,000 parts of a file at most.
	partBytes   = 8 << 20
	partsAtOnce = 2
	// skipMost is how far a stream is read on to where the next piece is, in bytes, instead of
	// asking for it: about what comes in the time of a request.
	skipMost = 64 << 10
)

// Bucket is a batch.Files in object storage. Several processes may share it.
type Bucket struct {
	b     *blob.Bucket
	parts bool // an upload is of parts, to be forgotten if it is given up
}

var _ batch.Files = (*Bucket)(nil)

// Open returns the contents of the bucket that a URL names, such as s3://name?region=eu-central-1&prefix=headgate/. It
// fails where the bucket is not there or can't be listed. Credentials are those of the environment.
func Open(ctx context.Context, address string) (*Bucket, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	// Without its end it would be the beginning of names, and other buckets' contents be
	// among these.
	if p := u.Query().Get("prefix"); p != "" && !strings.HasSuffix(p, "/") {
		return nil, fmt.Errorf("prefix is %q; allowed: one that ends with /", p)
	}
	q := u.Query()
	if !q.Has("response_checksum_validation") {
		// Pieces have no checksum, of which the SDK would write a line for each.
		q.Set("response_checksum_validation", "when_required")
		u.RawQuery = q.Encode()
	}
	b, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	there, err := b.IsAccessible(ctx)
	if err == nil && !there {
		err = errors.New("there is no such bucket")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bucket %s: %w", u.Host, err), b.Close())
	}
	return &Bucket{b, true}, nil
}

// Close ends the use of the bucket.
func (s *Bucket) Close() error { return s.b.Close() }

// explain makes an error of the storage one that batch.Files has.
func explain(err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

func (s *Bucket) Create(ctx context.Context, id string) (batch.Upload, error) {
	if err := batch.CheckContent(id); err != nil {
		return nil, err
	}
	// Its end is Commit's or Close's to make, after the caller's context too.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	out, in := io.Pipe()
	u := &upload{ctx: ctx, in: in, cancel: cancel, parts: s.parts, done: make(chan struct{})}
	u.unwatch = context.AfterFunc(ctx, func() { u.fail(context.Cause(ctx)) })
	go func() {
		defer close(u.done)
		u.err = s.b.Upload(base, id, out, &blob.WriterOptions{ContentType: "application/octet-stream", BufferSize: partBytes, MaxConcurrency: partsAtOnce})
		err := u.err
		if err == nil {
			err = fs.ErrClosed
		}
		out.CloseWithError(err) // for who still writes
	}()
	return u, nil
}

// upload feeds an object that is being written.
type upload struct {
	ctx     context.Context
	in      *io.PipeWriter
	cancel  context.CancelFunc
	parts   bool
	unwatch func() bool
	over    bool

	done chan struct{}
	err  error // once done is closed
}

var errGivenUp = errors.New("the upload was given up")

func (u *upload) Write(b []byte) (int, error) { return u.in.Write(b) }

func (u *upload) Commit() error {
	if u.over {
		return fs.ErrClosed
	}
	u.over = true
	defer u.cancel()
	defer u.unwatch()
	if err := context.Cause(u.ctx); err != nil {
		u.giveUp(err)
		return err
	}
	_ = u.in.Close() // never fails
	select {
	case <-u.done:
	case <-u.ctx.Done():
		u.giveUp(context.Cause(u.ctx))
	}
	return u.err
}

// fail ends the upload without a whole content.
func (u *upload) fail(why error) {
	if !u.parts {
		u.cancel()
	}
	u.in.CloseWithError(why)
}

// giveUp fails it, and waits until it is cleaned up, but not for ever.
func (u *upload) giveUp(why error) {
	u.fail(why)
	late := time.AfterFunc(abortTimeout, u.cancel)
	defer late.Stop()
	<-u.done
}

func (u *upload) Close() error {
	if u.over {
		return nil
	}
	u.over = true
	defer u.cancel()
	defer u.unwatch()
	u.giveUp(errGivenUp)
	return nil // it failed, as it should
}

func (s *Bucket) Open(ctx context.Context, id string) (batch.Content, error) {
	if err := batch.CheckContent(id); err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	c := &content{b: s.b, id: id}
	if err := c.stream(ctx, 0); err != nil {
		return nil, explain(err)
	}
	c.size = c.r.Size()
	return c, nil
}

// content is an object that is read.
type content struct {
	b    *blob.Bucket
	id   string
	size int64

	mu   sync.Mutex
	r    *blob.Reader // reads on at pos; nil: none does
	end  context.CancelFunc
	pos  int64
	next int64 // where the last piece ended
}

func (c *content) Size() int64 { return c.size }

// within calls do with a context that ends if do takes too long, and not with ctx: who
// reads a content may be another one than who has opened it.
func within(ctx context.Context, do func(context.Context) error) (end context.CancelFunc, err error) {
	ctx, end = context.WithCancel(context.WithoutCancel(ctx))
	late := time.AfterFunc(readTimeout, end)
	defer late.Stop()
	return end, do(ctx)
}

// stream begins to read on from a place. The caller has the lock, or the content alone.
func (c *content) stream(ctx context.Context, at int64) (err error) {
	c.end, err = within(ctx, func(ctx context.Context) (err error) {
		c.r, err = c.b.NewRangeReader(ctx, c.id, at, -1, nil)
		return err
	})
	if err != nil {
		c.end()
		c.r = nil
	}
	c.pos = at
	return err
}

func (c *content) dropLocked() error {
	if c.r == nil {
		return nil
	}
	err := c.r.Close()
	c.end()
	c.r = nil
	return err
}

func (c *content) ReadAt(p []byte, off int64) (int, error) {
	switch {
	case off < 0:
		return 0, fmt.Errorf("content %s at byte %d: %w", c.id, off, fs.ErrInvalid)
	case off >= c.size:
		return 0, io.EOF
	}
	short := int64(len(p)) > c.size-off
	if short {
		p = p[:c.size-off]
	}
	n, err := c.read(p, off)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

func (c *content) read(p []byte, off int64) (int, error) {
	if n, ok := c.readOn(p, off); ok {
		return n, nil
	}
	n := 0
	end, err := within(context.Background(), func(ctx context.Context) error {
		r, err := c.b.NewRangeReader(ctx, c.id, off, int64(len(p)), nil)
		if err != nil {
			return err
		}
		n, err = io.ReadFull(r, p)
		return errors.Join(err, r.Close())
	})
	end()
	return n, explain(err)
}

// readOn reads a piece out of the stream; false where there is none for it, or it failed:
// one that was not read for long is cut by most storages.
func (c *content) readOn(p []byte, off int64) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.r != nil && (off < c.pos || off > c.pos+skipMost) {
		_ = c.dropLocked() // it was only read
	}
	if c.r == nil && off == c.next && c.stream(context.Background(), off) != nil {
		return 0, false
	}
	c.next = off + int64(len(p))
	if c.r == nil {
		return 0, false
	}
	late := time.AfterFunc(readTimeout, c.end)
	defer late.Stop()
	skipped, err := io.CopyN(io.Discard, c.r, off-c.pos)
	c.pos += skipped
	n := 0
	if err == nil {
		n, err = io.ReadFull(c.r, p)
		c.pos += int64(n)
	}
	if err != nil {
		_ = c.dropLocked()
		return 0, false
	}
	return n, true
}

func (c *content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropLocked()
}

func (s *Bucket) Remove(ctx context.Context, id string) error {
	if batch.CheckContent(id) != nil {
		return nil // there is none of that name
	}
	if err := s.b.Delete(ctx, id); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return err
	}
	return nil
}

func (s *Bucket) Each(ctx context.Context, each func(string, time.Time) error) error {
	for it := s.b.List(nil); ; {
		o, err := it.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if o.IsDir || batch.CheckContent(o.Key) != nil {
			continue // not ours
		}
		if err := each(o.Key, o.ModTime); err != nil {
			return err
		}
	}
}
