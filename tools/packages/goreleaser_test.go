package packages

import (
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// TestGoreleaser: goreleaser reads its file, strictly, and finds there that nothing is built.
func TestGoreleaser(t *testing.T) {
	c, err := config.Load(root + "/.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Version != 2 || len(c.Builds) != 1 || c.Builds[0].Skip != "true" || len(c.Release.ExtraFiles) != 1 {
		t.Errorf("%+v", c)
	}
}
