package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/batch"
	"headgate/batch/files"
	"headgate/batch/objects"
	"headgate/batch/postgres"
	"headgate/batch/relayed"
	"headgate/batch/sqlite"
	"headgate/config"
	"headgate/relay"
	"headgate/wire"
)

// batches are a server's files and batches: where they are kept, and who works at them.
type batches struct {
	store   batch.Store
	service *batch.Service
	worker  *batch.Worker
	done    func() error // ends the use of contents

	end   context.CancelFunc
	ended chan struct{} // closed when nothing is worked at any more
}

// openBatches opens the storage. Nothing is worked at yet.
func openBatches(c *config.Batch, pools func() []*relay.Pool, permit relayed.Permit, unasked func(*relay.Call, *wire.Error), named func(tenant string) bool, log *slog.Logger, reg prometheus.Registerer, events *batch.Events) (*batches, error) {
	contents, done, err := openContents(c)
	if err != nil {
		return nil, err
	}
	store, err := openBatchStore(c)
	if err != nil {
		return nil, errors.Join(err, done())
	}
	b := &batches{store: store, done: done, ended: make(chan struct{})}
	wc := batch.Default()
	wc.Store, wc.Files, wc.Runner, wc.Log, wc.Metrics, wc.Name = store, contents, relayed.New(pools, permit, unasked), log, batch.NewMetrics(reg), rand.Text()
	wc.Pace.Concurrency, wc.Pace.Ahead, wc.Lease = c.Concurrency, c.Ahead, c.Lease
	wc.CheckpointTokens, wc.CheckpointEvery = c.CheckpointTokens, c.CheckpointEvery
	wc.Attempts, wc.Backoff, wc.MaxBackoff = c.Attempts, c.Backoff, c.MaxBackoff
	wc.Limits = batch.Limits{Line: int(c.MaxLineBytes), Items: c.MaxLines}
	wc.KeepOutput, wc.KeepBatch = c.Keep, c.Keep
	wc.Events, wc.Named = events, named
	b.worker = batch.NewWorker(wc)
	b.service = batch.NewService(batch.ServiceConfig{
		Store: store, Files: contents, Wake: b.worker.Wake, Log: log, Events: events, MaxFile: int64(c.MaxFileBytes), KeepInput: c.Keep,
		Most:      batch.Holdings{Files: c.TenantMaxFiles, Bytes: int64(c.TenantMaxBytes), Batches: c.TenantMaxBatches},
		MinWindow: c.MinWindow, MaxWindow: c.MaxWindow, Class: c.Class,
	})
	return b, nil
}

// openContents returns where files are, and what ends its use.
func openContents(c *config.Batch) (contents batch.Files, done func() error, err error) {
	if c.Bucket == "" {
		f, err := files.New(filepath.Join(c.Dir, "files"))
		if err != nil {
			return nil, nil, fmt.Errorf("batch.dir: %w", err)
		}
		return f, func() error { return nil }, nil
	}
	b, err := objects.Open(context.Background(), c.Bucket)
	if err != nil {
		return nil, nil, fmt.Errorf("batch.bucket: %w", err)
	}
	return b, b.Close, nil
}

func openBatchStore(c *config.Batch) (batch.Store, error) {
	if c.PostgresEnv == "" {
		s, err := sqlite.Open(context.Background(), c.Path())
		if err != nil {
			return nil, hint(fmt.Errorf("batch.database: %w", err), cmp.Or(wayOut(err), "see that it is this gateway's database and that no other process has it; several gateways share one by batch.postgres_env"))
		}
		return s, nil
	}
	dsn := os.Getenv(c.PostgresEnv)
	if dsn == "" {
		return nil, fmt.Errorf("batch.postgres_env: variable %s is empty or not set: allowed is the URL of a PostgreSQL database", c.PostgresEnv)
	}
	s, err := postgres.Open(context.Background(), dsn)
	if err != nil {
		return nil, hint(fmt.Errorf("batch.postgres_env: %w", err), "start PostgreSQL, make the database and its user, or correct the URL in variable "+c.PostgresEnv)
	}
	return s, nil
}

// start has what there is worked at until stop.
func (b *batches) start(ctx context.Context) {
	ctx, b.end = context.WithCancel(ctx)
	go func() {
		defer close(b.ended)
		b.worker.Run(ctx)
	}()
}

// stop returns when all that ran is written down, to be gone on with.
func (b *batches) stop() {
	b.end()
	<-b.ended
}

func (b *batches) close() error {
	err := b.store.Close()
	if err != nil {
		err = errors.Join(errors.New("the batch store was not closed well"), err)
	}
	return errors.Join(err, b.done())
}
