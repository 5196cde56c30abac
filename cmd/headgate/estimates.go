package main

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
	"time"

	"headgate/relay"
	"headgate/wire"
)

// estimates keeps what pools have learned about prompts' tokens in a file, so that
// a process that starts anew prices its first prompts as the last one did at its
// end. The file is a cache: one that can't be read is as good as none.
type estimates struct {
	file  string
	pools func() []*relay.Pool
	log   *slog.Logger
	last  []byte // as it was written or read
}

// estimatesState is the file.
type estimatesState struct {
	Version int           `json:"version"`
	Pools   []learnedPool `json:"pools"`
}

type learnedPool struct {
	Name   string         `json:"name"`
	Models []wire.Learned `json:"models"`
}

const (
	// estimatesVersion changes with what the numbers mean.
	estimatesVersion = 1
	// maxEstimates is more than 64 pools with 64 models of the longest names take, in
	// bytes.
	maxEstimates   = 4 << 20
	estimatesEvery = time.Minute
)

// restore reads the file, if there is one.
func (e *estimates) restore() {
	b, err := e.read()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var state estimatesState
	if err == nil {
		err = json.Unmarshal(b, &state)
	}
	if err == nil && state.Version != estimatesVersion {
		err = fmt.Errorf("its version is %d, must be %d", state.Version, estimatesVersion)
	}
	if err != nil {
		e.log.Warn("the estimates of the last run can't be used; they are learned anew", "file", e.file, "err", err)
		return
	}
	e.last = b
	for _, l := range state.Pools {
		for _, p := range e.pools() {
			if p.Name() != l.Name {
				continue
			}
			if err := p.Restore(l.Models); err != nil {
				e.log.Warn("the estimates of a pool can't be used; they are learned anew", "file", e.file, "pool", l.Name, "err", err)
			}
		}
	}
}

func (e *estimates) read() ([]byte, error) {
	f, err := os.Open(e.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEstimates+1))
	if err == nil && len(b) > maxEstimates {
		err = fmt.Errorf("it is larger than %d bytes", maxEstimates)
	}
	return b, err
}

// run writes the file every so often until ctx ends, and once more then.
func (e *estimates) run(ctx context.Context) {
	tick := time.NewTicker(estimatesEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.save()
		case <-ctx.Done():
			e.save()
			return
		}
	}
}

// save writes what has changed.
func (e *estimates) save() {
	state := estimatesState{Version: estimatesVersion}
	for _, p := range e.pools() {
		state.Pools = append(state.Pools, learnedPool{p.Name(), p.Learned()})
	}
	b, err := json.Marshal(state)
	if err == nil && bytes.Equal(b, e.last) {
		return
	}
	if err == nil {
		err = replaceFile(e.file, b, nil)
	}
	if err != nil {
		e.log.Warn("estimates were not saved", "file", e.file, "err", err)
		return
	}
	e.last = b
}

// replaceFile writes a file whole or not at all, whenever the machine stops. It is for its
// owner alone, or has the mode and, where root writes, the owner of like.
func replaceFile(name string, content []byte, like fs.FileInfo) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && like != nil {
		err = errors.Join(sameOwner(f, like), f.Chmod(like.Mode().Perm()))
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	// The new name is on the disk once its directory is.
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
