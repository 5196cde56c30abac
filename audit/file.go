package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxLine bounds what is held of one line, in bytes; records are far below it.
const maxLine = 64 << 10

// syncEvery is how often SyncSecond does.
const syncEvery = time.Second

// File is a Sink that appends to a file.
//
// What is there of a line that could not be written whole, on a full disk, is cut off again
// before anything else is written. A line that a crash has cut is left where it is, and is
// a link of the chain like any other.
type File struct {
	cfg FileConfig
	log *slog.Logger

	mu      sync.Mutex
	f       *os.File
	size    int64 // of whole lines
	midLine bool  // the file ends in a cut line, which is to be ended first
	last    Head  // of whole lines
	owed    *time.Timer
	syncErr error
}

// NewFile is a Sink for a file. It is opened by Open.
func NewFile(cfg FileConfig, log *slog.Logger) *File { return &File{cfg: cfg, log: log} }

// Open implements Sink.
func (s *File) Open(context.Context) (Head, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f != nil {
		return s.last, nil
	}
	if err := s.open(); err != nil {
		return Head{}, err
	}
	tail, err := readTail(s.f)
	if err != nil {
		_ = s.f.Close()
		s.f = nil
		return Head{}, fmt.Errorf("audit.file %s: %w", s.cfg.Path, err)
	}
	if tail.lines == 0 {
		old, err := putBy(s.cfg.Path)
		if err != nil {
			return Head{}, err
		}
		if len(old) > 0 {
			f, err := os.Open(old[len(old)-1])
			if err != nil {
				return Head{}, fmt.Errorf("audit.file: %w", err)
			}
			before, err := readTail(f)
			_ = f.Close() // it was only read
			if err != nil {
				return Head{}, fmt.Errorf("audit.file %s: %w", f.Name(), err)
			}
			if tail.cut == nil {
				tail.head = before.head
			}
			tail.head.Seq = before.head.Seq
		}
	}
	s.midLine, s.last = tail.midLine, tail.head
	return s.last, nil
}

func (s *File) open() error {
	f, err := os.OpenFile(s.cfg.Path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	if err := lock(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("audit.file %s: another process writes it: %w", s.cfg.Path, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no file")
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("audit.file %s: %w", s.cfg.Path, err)
	}
	s.f, s.size = f, info.Size()
	return nil
}

// tail is the end of a file.
type tail struct {
	head    Head
	lines   int    // whole ones that were found, 0 or more
	cut     []byte // a line that a crash has cut
	midLine bool
}

// readTail finds the last line that is a record, and what stands behind it.
func readTail(f *os.File) (t tail, err error) {
	info, err := f.Stat()
	if err != nil {
		return t, err
	}
	n := min(info.Size(), 2*maxLine)
	b := make([]byte, n)
	if _, err := f.ReadAt(b, info.Size()-n); err != nil && err != io.EOF {
		return t, err
	}
	if len(b) == 0 {
		return t, nil
	}
	t.midLine = b[len(b)-1] != '\n'
	lines := bytes.Split(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\n'})
	last := lines[len(lines)-1]
	t.head.Hash = Line{JSON: last}.Hash()
	for _, l := range slices.Backward(lines) {
		var r Record
		if json.Unmarshal(l, &r) == nil && r.Seq > 0 {
			t.head.Seq, t.lines = r.Seq, 1
			break
		}
		t.cut = l
	}
	if t.lines == 0 && info.Size() > n {
		return t, fmt.Errorf("its last %d bytes hold no record", n)
	}
	return t, nil
}

// Write implements Sink.
func (s *File) Write(_ context.Context, lines []Line) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.there(); err != nil {
		return 0, err
	}
	if err := s.syncErr; err != nil {
		s.syncErr = nil
		return 0, err
	}
	if s.cfg.RotateBytes > 0 && s.size >= s.cfg.RotateBytes {
		if err := s.rotate(); err != nil {
			return 0, err
		}
	}
	var b bytes.Buffer
	if s.midLine {
		b.WriteByte('\n')
	}
	ends := make([]int, len(lines))
	for i, l := range lines {
		b.Write(l.JSON)
		b.WriteByte('\n')
		ends[i] = b.Len()
	}
	n, err := s.f.Write(b.Bytes())
	if err == nil && s.cfg.Sync == SyncAlways {
		if err = s.f.Sync(); err != nil {
			n = 0
		}
	}
	whole := 0
	for whole < len(ends) && ends[whole] <= n {
		whole++
	}
	if whole > 0 {
		s.size += int64(ends[whole-1])
		s.midLine, s.last = false, Head{lines[whole-1].Seq, lines[whole-1].Hash()}
		s.owe()
	}
	if err != nil {
		_ = s.f.Truncate(s.size) // or the next write does
		return whole, fmt.Errorf("audit.file: %w", err)
	}
	return whole, nil
}

// there makes sure that the file is there, and ends where it did: without what an attempt
// has left of a line. One that somebody has moved, or cut, is gone on with where it was to
// be; that lines are missing, if they are, is for who verifies them.
func (s *File) there() error {
	if s.f != nil {
		info, err := s.f.Stat()
		if err != nil {
			return fmt.Errorf("audit.file: %w", err)
		}
		at, err := os.Stat(s.cfg.Path)
		switch {
		case err == nil && os.SameFile(info, at) && info.Size() >= s.size:
			if info.Size() > s.size {
				err = s.f.Truncate(s.size)
			}
			if err != nil {
				return fmt.Errorf("audit.file: %w", err)
			}
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("audit.file: %w", err)
		}
		s.log.Error("the audit file was moved or cut by somebody", "file", s.cfg.Path, "seq", s.last.Seq, "head", s.last.Hash)
		_ = s.f.Close()
		s.f = nil
	}
	if err := s.open(); err != nil {
		return err
	}
	end, err := readTail(s.f)
	if err != nil && s.size > 0 {
		s.log.Error("the audit file has something else in it", "file", s.cfg.Path, "err", err)
	}
	s.midLine = end.midLine
	return nil
}

// owe has what was written forced to the disk within a second.
func (s *File) owe() {
	if s.cfg.Sync != SyncSecond || s.owed != nil {
		return
	}
	s.owed = time.AfterFunc(syncEvery, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.owed = nil; s.f != nil {
			if err := s.f.Sync(); err != nil {
				s.syncErr = fmt.Errorf("audit.file: %w", err)
			}
		}
	})
}

// rotate puts the file by and begins a new one.
func (s *File) rotate() error {
	old := fmt.Sprintf("%s.%020d", s.cfg.Path, s.last.Seq)
	if _, err := os.Lstat(old); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("audit.file: %s is in the way of a rotation", old)
	}
	if err := s.f.Sync(); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	if err := os.Rename(s.cfg.Path, old); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	s.log.Info("audit file put by", "file", old, "seq", s.last.Seq, "head", s.last.Hash)
	_ = s.f.Close() // it is on the disk
	s.f = nil
	if err := s.open(); err != nil {
		return err
	}
	if s.cfg.KeepFiles > 0 {
		all, err := putBy(s.cfg.Path)
		if err != nil {
			return err
		}
		for _, name := range all[:max(len(all)-s.cfg.KeepFiles, 0)] {
			if err := os.Remove(name); err != nil {
				s.log.Error("an old audit file was not removed", "err", err)
			}
		}
	}
	return nil
}

// putBy lists the files that were put by, the oldest first.
func putBy(file string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("audit.file: %w", err)
	}
	var all []string
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), filepath.Base(file)+".")
		if _, err := strconv.ParseUint(number, 10, 64); ok && err == nil && len(number) == 20 {
			all = append(all, filepath.Join(filepath.Dir(file), e.Name()))
		}
	}
	slices.Sort(all)
	return all, nil
}

// Close implements Sink.
func (s *File) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owed != nil {
		s.owed.Stop()
	}
	if s.f == nil {
		return nil
	}
	err := s.syncErr
	if e := s.f.Sync(); err == nil {
		err = e
	}
	if e := s.f.Close(); err == nil {
		err = e
	}
	s.f = nil
	return err
}
