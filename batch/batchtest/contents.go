package batchtest

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"headgate/batch"
)

// Contents are batch.Files in memory.
type Contents struct {
	mu  sync.Mutex
	all map[string]content
	// Fail, if it is not nil, is asked before each step and may end it: create, write,
	// commit, open or remove.
	Fail func(step string) error
}

type content struct {
	b  []byte
	at time.Time
}

var _ batch.Files = (*Contents)(nil)

// NewContents returns none.
func NewContents() *Contents { return &Contents{all: map[string]content{}} }

// Names lists what there is, in order.
func (c *Contents) Names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := []string{}
	for id := range c.all {
		names = append(names, id)
	}
	slices.Sort(names)
	return names
}

func (c *Contents) fail(step string) error {
	if c.Fail == nil {
		return nil
	}
	return c.Fail(step)
}

// Create implements batch.Files.
func (c *Contents) Create(_ context.Context, id string) (batch.Upload, error) {
	return &incoming{c: c, id: id}, c.fail("create")
}

// Open implements batch.Files.
func (c *Contents) Open(_ context.Context, id string) (batch.Content, error) {
	if err := c.fail("open"); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.all[id]
	if !ok {
		return nil, fmt.Errorf("open %s: %w", id, fs.ErrNotExist)
	}
	return opened{bytes.NewReader(v.b)}, nil
}

// Remove implements batch.Files.
func (c *Contents) Remove(_ context.Context, id string) error {
	if err := c.fail("remove"); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, id)
	return nil
}

// Each implements batch.Files.
func (c *Contents) Each(_ context.Context, each func(string, time.Time) error) error {
	for _, id := range c.Names() {
		c.mu.Lock()
		v := c.all[id]
		c.mu.Unlock()
		if err := each(id, v.at); err != nil {
			return err
		}
	}
	return nil
}

type incoming struct {
	c  *Contents
	id string
	b  []byte
}

func (u *incoming) Write(b []byte) (int, error) {
	if err := u.c.fail("write"); err != nil {
		return 0, err
	}
	u.b = append(u.b, b...)
	return len(b), nil
}

func (u *incoming) Commit() error {
	if err := u.c.fail("commit"); err != nil {
		return err
	}
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	u.c.all[u.id] = content{u.b, time.Now()}
	return nil
}

func (u *incoming) Close() error { return nil }

type opened struct{ *bytes.Reader }

func (opened) Close() error { return nil }
