package gguf

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSameOptionsSameBytes(t *testing.T) {
	// Where a hash changes, raise Revision with it: written files are kept by
	// their options and that number.
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"tiny", Tiny, "ab44b3ae4300b3b1aa7fe14597289ba09a70ecabf12c83a630db76f2e615658e"},
		{"default", Options{}, "e4525d5ad77f1015b8613ed48f2295a975a349cc515d55c93185e585b8420ebc"},
		{"ending", Options{Layers: 1, Width: 128, Heads: 4, KVHeads: 2, Mean: 50, Seed: 7}, "176b50d3527ed5962912b554b30acc96edafb0b76e78f9b84e69f93965ff61e7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := sha256.New()
			if err := Write(h, c.o); err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(h.Sum(nil)); got != c.want {
				t.Errorf("sha256 is %s at revision %d, want %s", got, Revision, c.want)
			}
		})
	}
}

// TestTensorsLieWhereTheirInfoSays reads the file as a loader does: the offsets
// are those of the data, aligned, and the last tensor ends the file.
func TestTensorsLieWhereTheirInfoSays(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, Tiny); err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	v := newVocab()
	o := Tiny.withDefaults()
	tensors := o.tensors(v)
	if got := string(data[:4]); got != "GGUF" {
		t.Errorf("magic is %q", got)
	}
	if got := binary.LittleEndian.Uint32(data[4:]); got != 3 {
		t.Errorf("version is %d, want 3", got)
	}
	if got := binary.LittleEndian.Uint64(data[8:]); got != uint64(len(tensors)) {
		t.Errorf("tensor count is %d, want %d", got, len(tensors))
	}
	var total uint64
	for i := range tensors {
		info := bytes.Index(data, []byte(tensors[i].name))
		if info < 0 {
			t.Fatalf("%s has no info", tensors[i].name)
		}
		dims := binary.LittleEndian.Uint32(data[info+len(tensors[i].name):])
		at := info + len(tensors[i].name) + 4 + 8*int(dims) + 4
		if got := binary.LittleEndian.Uint64(data[at:]); got != total {
			t.Errorf("%s lies at %d, want %d", tensors[i].name, got, total)
		}
		total += (tensors[i].bytes() + alignment - 1) / alignment * alignment
	}
	start := uint64(len(data)) - total
	if start%alignment != 0 {
		t.Errorf("tensor data starts at %d, which is not a multiple of %d", start, alignment)
	}
	// The first tensor is the embedding: dimension 0 of each row is the constant 1.
	for id := range v.pieces {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(data[start+uint64(id)*uint64(o.Width)*4:])); got != 1 {
			t.Fatalf("embedding of %d begins with %v, want 1", id, got)
		}
	}
}

func TestWordsMergeFromTheirPrefixes(t *testing.T) {
	v := newVocab()
	score := make(map[string]float32)
	for i, p := range v.pieces {
		if _, twice := score[p]; twice {
			t.Errorf("piece %q is there twice", p)
		}
		score[p] = v.scores[i]
	}
	for i, p := range v.pieces {
		if !v.word[i] {
			continue
		}
		for n := len(wordStart) + 1; n < len(p); n++ {
			s, ok := score[p[:n]]
			if !ok || s >= score[p[:n+1]] {
				t.Errorf("prefix %q of %q: there %v, score %v, want one below %v", p[:n], p, ok, s, score[p[:n+1]])
			}
		}
	}
	if n := v.words(); n < 500 {
		t.Errorf("%d words, want a vocabulary that makes greedy choices clear", n)
	}
}

func TestHalfPrecision(t *testing.T) {
	for _, c := range []struct {
		in   float64
		want uint16
	}{
		{0, 0}, {1, 0x3c00}, {-2, 0xc000}, {0.5, 0x3800}, {65504, 0x7bff}, {1e6, 0x7c00}, {-1e6, 0xfc00},
		{math.Pow(2, -14), 0x0400}, {math.Pow(2, -15), 0x0200}, {math.Pow(2, -24), 0x0001}, {math.Pow(2, -25), 0},
	} {
		if got := toHalf(float32(c.in)); got != c.want {
			t.Errorf("toHalf(%v) = %#04x, want %#04x", c.in, got, c.want)
		}
	}
}

func TestOptionsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Layers: -1}, "Layers is -1"},
		{Options{Width: 100}, "Width is 100"},
		{Options{Width: 64, Heads: 3}, "Width is 64"},
		{Options{FF: 33}, "FF is 33"},
		{Options{Width: 64, Heads: 2, KVHeads: 4}, "KVHeads is 4"},
		{Options{Heads: -2}, "Heads is -2"},
		{Options{Context: -5}, "Context is -5"},
		{Options{Mean: 0.5}, "Mean is 0.5"},
	} {
		var b bytes.Buffer
		err := Write(&b, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want+", allowed is ") {
			t.Errorf("%+v: error %v, want one with %q", c.o, err, c.want)
		}
		if b.Len() > 0 {
			t.Errorf("%+v: refused after %d bytes", c.o, b.Len())
		}
	}
}

type fullDisk struct{ left int }

var errFull = errors.New("full")

func (d *fullDisk) Write(p []byte) (int, error) {
	if len(p) > d.left {
		return d.left, errFull
	}
	d.left -= len(p)
	return len(p), nil
}

func TestWriteErrorIsReturned(t *testing.T) {
	if err := Write(&fullDisk{left: 1000}, Tiny); !errors.Is(err, errFull) {
		t.Errorf("error %v, want %v", err, errFull)
	}
}

func TestFileIsWholeOrAbsent(t *testing.T) {
	dir := t.TempDir()
	if err := WriteFile(filepath.Join(dir, "bad.gguf"), Options{Layers: -1}); err == nil {
		t.Error("a refused model was written")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a refused model left %v (%v)", left, err)
	}
	if err := WriteFile(filepath.Join(dir, FileName(Tiny)), Tiny); err != nil {
		t.Fatal(err)
	}
	if FileName(Tiny) == FileName(Options{}) {
		t.Error("two models share a file name")
	}
}
