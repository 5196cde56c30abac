package main

import (
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/batch/objects/objectstest"
	"headgate/config"
	"headgate/identity"
	"headgate/relay"
)

// TestBatchBucket: files are in the bucket that the configuration names, and as many of
// them as it allows; nothing is on the disk but the database.
func TestBatchBucket(t *testing.T) {
	s, dir := objectstest.Start(t), t.TempDir()
	c := config.Batch{}
	c.SetDefaults()
	c.Database, c.Bucket, c.TenantMaxFiles = filepath.Join(dir, "x.db"), s.URL("&prefix=of/headgate/"), 1
	open := func() (*batches, error) {
		return openBatches(&c, func() []*relay.Pool { return nil }, nil, nil, nil, slog.New(slog.NewTextHandler(io.Discard, nil)), prometheus.NewRegistry(), nil)
	}
	b, err := open()
	if err != nil {
		t.Fatal(err)
	}
	p := &identity.Principal{Name: "a", Tenant: "t"}
	up, failed := b.service.Upload(t.Context(), p)
	if failed != nil {
		t.Fatal(failed)
	}
	defer up.Close()
	if failed, err := up.Take(t.Context(), strings.NewReader("text")); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	f, failed := up.Finish(t.Context(), "x", "user_data", 0)
	if failed != nil {
		t.Fatal(failed)
	}
	if names := s.Names(); len(names) != 1 || names[0] != "of/headgate/"+f.ID {
		t.Errorf("in the bucket: %v", names)
	}
	if _, failed := b.service.Upload(t.Context(), p); failed == nil || failed.Code != "tenant_storage_full" {
		t.Errorf("a second file: %v", failed)
	}
	if on, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(on) == 0 || !strings.HasPrefix(filepath.Base(on[0]), "x.db") {
		t.Errorf("on the disk: %v, %v", on, err)
	}
	if err := b.close(); err != nil {
		t.Error(err)
	}
	s.Away(true)
	if _, err := open(); err == nil || !strings.HasPrefix(err.Error(), "batch.bucket: bucket bucket: ") {
		t.Errorf("without the bucket: %v", err)
	}
}
