package trace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestPublishedFiles checks the drawn traces against all files of the published
// experiment: entry by entry, by hash, and to the byte.
func TestPublishedFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) != 24 {
		t.Fatalf("%d files, %v: want 24", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Published(bytes.NewReader(data), file)
		if err != nil {
			t.Error(err)
			continue
		}
		if want := strings.TrimSuffix(filepath.Base(file), ".json"); want != fmt.Sprintf("%s-seed-%d", read.Profile, read.Seed) {
			t.Errorf("%s: read as %s, seed %d", file, read.Profile, read.Seed)
		}
		drawn := generate(t, read.Profile, read.Seed)
		if d := cmp.Diff(read, drawn); d != "" {
			t.Errorf("%s: drawn is another trace (-file +drawn):\n%s", file, d)
		}
		if !strings.Contains(string(data), `"computed_hash":"`+drawn.Hash()+`"`) {
			t.Errorf("%s: the hash is %s", file, drawn.Hash())
		}
		_, have, _ := strings.Cut(written(t, drawn), "\n")
		if _, want, _ := strings.Cut(string(data), "\n"); have != strings.TrimSuffix(want, "\n")+"\n" {
			t.Errorf("%s: entries are written otherwise:\n%s", file, cmp.Diff(want, have))
		}
	}
}

func written(t failer, tr *Trace) string {
	t.Helper()
	var b bytes.Buffer
	n, err := tr.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if int(n) != b.Len() {
		t.Fatal("wrote", b.Len(), "bytes, said", n)
	}
	return b.String()
}

func TestPublishedRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr *Trace
		if rapid.Bool().Draw(t, "drawn") {
			tr = generate(t, rapid.SampledFrom(Names()).Draw(t, "profile"), rapid.Uint32().Draw(t, "seed"))
		} else {
			tr = drawLog(t)
		}
		read, err := Published(strings.NewReader(written(t, tr)), "f.json")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tr, read); d != "" {
			t.Fatalf("(-written +read):\n%s", d)
		}
	})
}

type full struct{ room int }

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	if n < len(b) {
		return n, errors.New("full")
	}
	return n, nil
}

func TestWriteFails(t *testing.T) {
	n, err := generate(t, "metal-long-context-v1", 1).WriteTo(&full{1000})
	if n != 1000 || err == nil || err.Error() != "trace metal-long-context-v1: write: full" {
		t.Errorf("wrote %d, %v", n, err)
	}
}

// TestPublishedRefuses edits one thing of a good file at a time.
func TestPublishedRefuses(t *testing.T) {
	good := written(t, generate(t, "metal-long-context-v1", 1))
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown field", `"seed":1,"workload"`, `"sed":1,"workload"`, `f.json:1: unknown field sed: allowed is one of profile, protocol, seed, workload,`},
		{"case", `"arrival_ms":9665.553`, `"Arrival_ms":9665.553`, `f.json:2: unknown field Arrival_ms: allowed is one of id, class,`},
		{"twice", `"class":"batch"`, `"class":"batch","class":"batch"`, `f.json:6: field class is given twice: allowed is once`},
		{"missing", `,"max_tokens":64}`, `}`, `f.json:6: field max_tokens is missing: allowed is one`},
		{"class", `"class":"batch"`, `"class":"bulk"`, `f.json:6: field class is bulk: allowed is interactive or batch`},
		{"number", `"max_tokens":64`, `"max_tokens":"64"`, `f.json:6: field max_tokens is "64": allowed is a whole number from 0 to 16777216`},
		{"negative", `"input_chars":7100`, `"input_chars":-1`, `f.json:6: field input_chars is -1: allowed is a whole number from 0 to 16777216`},
		{"no prompt", `"input_chars":7100`, `"input_chars":0`, `f.json:6: field input_chars is 0: allowed is a whole number from 1, or prompt_tokens beside it`},
		{"no output", `"max_tokens":64`, `"max_tokens":0`, `f.json:6: field max_tokens is 0: allowed is a whole number from 1, or output_tokens beside it`},
		{"output", `"max_tokens":64`, `"max_tokens":64,"output_tokens":65`, `f.json:6: field output_tokens is 65: allowed is at most max_tokens, 64`},
		{"fraction", `"arrival_ms":9665.553`, `"arrival_ms":9665.5531`, `f.json:2: field arrival_ms is 9665.5531: allowed is milliseconds in steps of 0.001`},
		{"order", `"arrival_ms":11415.117`, `"arrival_ms":1`, `f.json:3: field arrival_ms is 1: allowed is at least the entry's before, 9665.553`},
		{"late", `"durationMs":105000`, `"durationMs":30000`, `f.json:6: field arrival_ms is 30764.818: allowed is below workload.durationMs, 30000`},
		{"same id", `"id":"interactive-2"`, `"id":"interactive-1"`, `f.json:3: field id is interactive-1: allowed is an id that no other entry has`},
		{"id", `"id":"interactive-2"`, `"id":"int\u00e9"`, `f.json:3: field id is "int\u00e9": allowed is a name of 1 to 128`},
		{"protocol", `"protocol":"random-arrival"`, `"protocol":"burst"`, `field protocol is burst: allowed is one of random-arrival, fixed-burst-v3, burst-recovery-v3, imported`},
		{"variant", `"protocol":"random-arrival"`, `"protocol":"random-arrival","variant":"short"`, `field variant is short: allowed is none for protocol random-arrival`},
		{"no variant", `"protocol":"random-arrival"`, `"protocol":"burst-recovery-v3"`, `field variant is empty: allowed is short or long`},
		{"base", `"profile":"metal-long-context-v1","protocol":"random-arrival"`, `"profile":"x","protocol":"fixed-burst-v3"`, `field profile is x: allowed is metal-long-context-v1 for protocol fixed-burst-v3`},
		{"seed", `"seed":1,"workload"`, `"seed":4294967296,"workload"`, `f.json:1: field seed is 4294967296: allowed is a whole number from 0 to 4294967295`},
		{"seeds", `"seed":1,"workload"`, `"seed":2,"workload"`, `field workload.seed is 1: allowed is seed, 2`},
		{"attempts", `"maxAttempts":1`, `"maxAttempts":3`, `f.json:1: field workload.maxAttempts is 3: allowed is a whole number from 1 to 1`},
		{"rate", `"batchRps":0.15`, `"batchRps":1e9`, `f.json:1: field workload.batchRps is 1e9: allowed is a number from 0 to 1000000`},
		{"workload", `"batchRps":0.15,`, ``, `f.json:1: field workload.batchRps is missing: allowed is one`},
		{"planned", `"planned":{"interactive":13`, `"planned":{"interactive":14`, `field planned is {Interactive:14 Batch:17 Total:30}: allowed is what entries hold, {Interactive:13 Batch:17 Total:30}`},
		{"hash", `"computed_hash":"cb`, `"computed_hash":"cc`, `f.json:1: field computed_hash is cc91da7764cc60dd4c043bd34a23902bbba893bf50565217159c9b5013654a41: allowed is the hash of what the file holds, cb91`},
		{"other published", `"entries"`, `"published_hash":"0","entries"`, `f.json:1: field published_hash is 0: allowed is the hash of`},
		{"edited", `"arrival_ms":9665.553`, `"arrival_ms":9665.554`, `f.json:1: field computed_hash is cb91`},
		{"matched", `"entries"`, `"hash_matched":1,"entries"`, `f.json:1: field hash_matched is 1: allowed is true, false or null`},
		{"cut", "\n]}\n", "", `broken JSON`},
		{"more", "\n]}\n", "\n]}\n{}", `f.json:33: more than one value: allowed is one object`},
		{"list", `[`, `{`, `f.json:1: field entries is no list: allowed is a list of objects`},
		{"no object", `{"source"`, `["source"`, `f.json:1: what is no JSON object: allowed is an object with profile,`},
	} {
		t.Run(c.name, func(t *testing.T) {
			edited := strings.Replace(good, c.old, c.new, 1)
			if edited == good {
				t.Fatal("nothing was edited")
			}
			_, err := Published(strings.NewReader(edited), "f.json")
			var field *FieldError
			if !errors.As(err, &field) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v\nwant  %s", err, c.want)
			}
		})
	}
}

func FuzzPublished(f *testing.F) {
	for _, profile := range []string{"metal-long-context-v1", "fixed-burst-v3", "burst-recovery-v3-long", "metal-declared-v1"} {
		tr, err := Generate(profile, 1)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(written(f, tr))
	}
	f.Fuzz(func(t *testing.T, file string) {
		tr, err := Published(strings.NewReader(file), "f.json")
		if err != nil {
			return
		}
		again, err := Published(strings.NewReader(written(t, tr)), "f.json")
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if d := cmp.Diff(tr, again); d != "" {
			t.Fatal(d)
		}
	})
}

func BenchmarkPublished(b *testing.B) {
	file := written(b, generate(b, "metal-steady-v1", 1))
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if _, err := Published(strings.NewReader(file), "f.json"); err != nil {
			b.Fatal(err)
		}
	}
}
