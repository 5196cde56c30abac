package upstream

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/engine"
)

// TestModels: what the lists of engines say beside names.
func TestModels(t *testing.T) {
	got, err := parseModels([]byte(`{"data":[{"id":"base","max_model_len":4096,"parent":null},{"id":"lora","parent":"base"},
		{"id":"here","status":{"value":"loaded"},"meta":{"n_ctx":2048}},{"id":"there","status":{"value":"unloaded"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []engine.Model{{ID: "base", MaxContext: 4096}, {ID: "lora", Parent: "base"}, {ID: "here", MaxContext: 2048}, {ID: "there", Unloaded: true}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
