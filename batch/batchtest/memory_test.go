package batchtest

import (
	"testing"

	"headgate/batch"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) Storage {
		m := NewMemory()
		return Storage{Open: func() (batch.Store, error) { return m, nil }}
	})
}

func TestContents(t *testing.T) {
	RunFiles(t, func(*testing.T) batch.Files { return NewContents() })
}
