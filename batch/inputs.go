package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
)

// inputs are the input files of items that are under way, each opened once.
type inputs struct {
	files Files
	mu    sync.Mutex
	users map[string]*input
}

type input struct {
	Content
	users int
}

func newInputs(f Files) *inputs { return &inputs{files: f, users: map[string]*input{}} }

// open returns a file's content, until close is called for it as often.
func (s *inputs) open(ctx context.Context, id string) (Content, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.users[id]
	if in == nil {
		c, err := s.files.Open(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errInput, err)
		}
		in = &input{Content: c}
		s.users[id] = in
	}
	in.users++
	return in, nil
}

func (s *inputs) close(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.users[id]
	if in.users--; in.users == 0 {
		delete(s.users, id)
		_ = in.Close() // it was only read
	}
}

// readBody reads an item's request out of its input file.
func readBody(in Content, it Item) ([]byte, error) {
	line := make([]byte, it.Length)
	// A reader may say at the file's last byte that it is the last.
	if n, err := in.ReadAt(line, it.Offset); n < len(line) || err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w at byte %d: %w", errInput, it.Offset, err)
	}
	return requestBody(line)
}

var errInput = errors.New("the input file can't be read")

// away tells that the place of files failed, and not that the file is not there, or not as it was.
func away(err error) bool {
	return errors.Is(err, errInput) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.EOF)
}
