package objects

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/batch/objects/objectstest"
)

func inS3(t *testing.T, more string) (*objectstest.S3, *Bucket) {
	t.Helper()
	s := objectstest.Start(t)
	b, err := Open(t.Context(), s.URL(more))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return s, b
}

func TestBuckets(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) batch.Files{
		"memory": func(*testing.T) batch.Files { return &Bucket{b: memblob.OpenBucket(nil)} },
		"folder": func(t *testing.T) batch.Files {
			b, err := fileblob.OpenBucket(t.TempDir(), &fileblob.Options{Metadata: fileblob.MetadataDontWrite})
			if err != nil {
				t.Fatal(err)
			}
			return &Bucket{b: b}
		},
		"S3":          func(t *testing.T) batch.Files { _, b := inS3(t, ""); return b },
		"S3's folder": func(t *testing.T) batch.Files { _, b := inS3(t, "&prefix=of/headgate/"); return b },
	} {
		t.Run(name, func(t *testing.T) { batchtest.RunFiles(t, open) })
	}
}

func create(t *testing.T, b *Bucket, id string, content []byte) {
	t.Helper()
	up, err := b.Create(t.Context(), id)
	if err == nil {
		_, err = up.Write(content)
	}
	if err == nil {
		err = up.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// text is so many bytes, each of which tells its place.
func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// TestBrokenOff: an upload that breaks off leaves nothing, not the parts either that
// have come.
func TestBrokenOff(t *testing.T) {
	s, b := inS3(t, "")
	for name, breakOff := range map[string]func(up batch.Upload, leave context.CancelFunc){
		"given up": func(batch.Upload, context.CancelFunc) {},
		"left": func(up batch.Upload, leave context.CancelFunc) {
			leave()
			if err := up.Commit(); !errors.Is(err, context.Canceled) {
				t.Errorf("who has left gets %v", err)
			}
		},
	} {
		ctx, leave := context.WithCancel(t.Context())
		up, err := b.Create(ctx, "file-a")
		if err != nil {
			t.Fatal(err)
		}
		before, _ := s.Parts()
		for range 3 {
			if _, err := up.Write(text(6 << 20)); err != nil {
				t.Fatal(err)
			}
		}
		if begun, _ := s.Parts(); begun == before {
			t.Fatalf("%s: it does not come in parts", name)
		}
		breakOff(up, leave)
		if err := up.Close(); err != nil {
			t.Fatal(err)
		}
		leave()
		if _, left := s.Parts(); left > 0 || len(s.Names()) > 0 {
			t.Errorf("%s: %d uploads and %v are left", name, left, s.Names())
		}
	}
	up, err := b.Create(t.Context(), "file-a")
	if err != nil {
		t.Fatal(err)
	}
	s.Away(true)
	for range 10 {
		if _, err = up.Write(text(6 << 20)); err != nil {
			break
		}
	}
	if err == nil || up.Commit() == nil {
		t.Errorf("a storage that refuses: %v", err)
	}
}

// TestRanges: what is read in order is one request, and any other piece one of its own.
func TestRanges(t *testing.T) {
	s, b := inS3(t, "")
	want := text(1 << 20)
	create(t, b, "file-a", want)
	s.Asked()
	c, err := b.Open(t.Context(), "file-a")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	have, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf("%d bytes, %v", len(have), err)
	}
	if asked := s.Asked(); !slices.Equal(asked, []string{"GET file-a"}) {
		t.Errorf("in order: %v", asked)
	}
	piece := func(off, n int, wantErr error) {
		t.Helper()
		p := make([]byte, n)
		got, err := c.ReadAt(p, int64(off))
		if err != wantErr || !bytes.Equal(p[:got], want[min(off, len(want)):min(off+n, len(want))]) {
			t.Errorf("%d bytes at %d: %d, %v", n, off, got, err)
		}
	}
	piece(500_000, 10, nil)
	piece(100_000, 10, nil)
	piece(100_010, 10, nil) // on from there
	piece(100_500, 10, nil)
	piece(100_000, 10, nil)
	piece(len(want)-5, 10, io.EOF)
	piece(len(want), 1, io.EOF)
	piece(0, len(want), nil)
	if asked, want := s.Asked(), []string{"GET file-a bytes=500000-500009", "GET file-a bytes=100000-100009", "GET file-a bytes=100010-",
		"GET file-a bytes=100000-100009", "GET file-a bytes=1048571-1048575", "GET file-a bytes=0-1048575"}; !slices.Equal(asked, want) {
		t.Errorf("out of order:\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
	if _, err := c.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a byte before the first")
	}
	// What is gone is none, and what is away may come back.
	if _, err := b.Open(t.Context(), "file-b"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	s.Away(true)
	if _, err := b.Open(t.Context(), "file-a"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a storage that refuses: %v", err)
	}
	if _, err := c.ReadAt(make([]byte, 1), 7); err == nil {
		t.Error("a storage that refuses is read")
	}
	s.Away(false)
	piece(7, 100, nil)
}

// TestOpen: a bucket that is wrong is found when it is opened.
func TestOpen(t *testing.T) {
	s := objectstest.Start(t)
	for address, want := range map[string]string{
		strings.Replace(s.URL(""), "bucket", "nobody", 1): "bucket nobody",
		s.URL("&prefix=of"):  `prefix is "of"; allowed: one that ends with /`,
		s.URL("&colour=red"): "colour",
		"gs://bucket":        "gs",
		"s3://bucket\x00":    "invalid",
	} {
		b, err := Open(t.Context(), address)
		if err == nil {
			_ = b.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
