package gguf

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile writes the model to path, which appears whole or not at all: several
// test processes may ask for the same file at once.
func WriteFile(path string, o Options) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".gguf-*")
	if err != nil {
		return err
	}
	err = Write(f, o)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// FileName returns a file name that differs for every two models that differ.
func FileName(o Options) string {
	o = o.withDefaults()
	key := fmt.Sprintf("%d %+v", Revision, o)
	return fmt.Sprintf("%s-%.8x.gguf", o.Name, sha256.Sum256([]byte(key)))
}
