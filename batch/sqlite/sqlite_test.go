package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"headgate/batch"
	"headgate/batch/batchtest"
)

func TestStore(t *testing.T) {
	batchtest.Run(t, func(t *testing.T) batchtest.Storage {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		return batchtest.Storage{Open: func() (batch.Store, error) {
			return openStore(context.Background(), filepath.Join(dir, "batch.db"), "OFF")
		}}
	})
}
