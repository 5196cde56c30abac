package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"headgate/occupancy"
	"headgate/occupancy/occupancytest"
)

// TestOccupancyPostMortem: the command line of the published measurement gives its
// numbers, of a foreign log and of Headgate's journal, of files and of the standard
// input.
func TestOccupancyPostMortem(t *testing.T) {
	dir := t.TempDir()
	spans := occupancytest.PostMortem()
	write := func(name string, of func(io.Writer, []occupancytest.Span) error, zip bool) string {
		var b bytes.Buffer
		var w io.Writer = &b
		z := gzip.NewWriter(&b)
		if zip {
			w = z
		}
		if err := of(w, spans); err != nil {
			t.Fatal(err)
		}
		if zip && z.Close() != nil {
			t.Fatal("gzip")
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := write("foreign.jsonl.gz", occupancytest.WriteJSONL, true)
	journal := write("journal.jsonl", occupancytest.WriteJournal, false)
	mapping := []string{"--format", "jsonl", "--time", "ts", "--id", "req_id", "--event", "event", "--start", "start", "--done", "done"}
	for _, test := range []struct {
		name  string
		args  []string
		input string
	}{
		{"foreign", append(mapping, foreign), ""},
		{"journal", []string{journal}, ""},
		{"standard input", []string{"-"}, journal},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := root()
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetArgs(append([]string{"occupancy", "--output", "json"}, test.args...))
			if test.input != "" {
				f, err := os.Open(test.input)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = f.Close() }()
				cmd.SetIn(f)
			}
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			var r occupancy.Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if len(r.Levels) != 5 {
				t.Fatalf("%s", out.Bytes())
			}
			for i, share := range occupancytest.Shares {
				if math.Abs(r.Levels[i].BusyShare-share) > 1e-12 || r.Levels[i].InFlight != i+1 {
					t.Errorf("level %d: %+v, want %v", i+1, r.Levels[i], share)
				}
			}
			if r.Utilisation != 0.049 || r.Paired != 1397 || r.Peak != 5 || r.BusyS != 29635.2 || r.WindowS != 604800 || r.UnpairedStarts+r.UnpairedDones+r.Excluded != 0 {
				t.Errorf("%s", out.Bytes())
			}
		})
	}
}
