package occupancy

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"headgate/occupancy/occupancytest"
)

// TestTwice: a log beside its compressed copy is not counted twice, where nothing in the
// report would show that it was.
func TestTwice(t *testing.T) {
	text := written(t, occupancytest.WriteJSONL, occupancytest.PostMortem())
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	other := strings.NewReader(`{"ts":"2026-06-01T00:00:00Z"}` + "\n")
	_, err := Run([]Input{{"a", strings.NewReader(text)}, {"b", other}, {"a.gz", &packed}}, foreign(), Options{})
	if err == nil || !strings.Contains(err.Error(), "a and a.gz begin with the same 65536 bytes") {
		t.Errorf("%v", err)
	}
}
