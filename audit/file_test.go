package audit

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// filed writes n records to a file and closes it.
func filed(t *testing.T, c FileConfig, n int) {
	t.Helper()
	o, _, _ := options(4096)
	o.Log = quiet
	w := NewWriter(NewFile(c, quiet), o)
	appendTo(w, n)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, name string) *Report {
	t.Helper()
	all, err := Files(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Verify(all)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A process that is killed leaves a line cut anywhere; the next one goes on behind it, and
// the chain holds.
func TestKilled(t *testing.T) {
	c := FileConfig{Path: filepath.Join(t.TempDir(), "audit"), Sync: SyncAlways}
	filed(t, c, 3)
	whole := read(t, c.Path)
	if info, err := os.Stat(c.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for cut := last; cut < len(whole); cut++ {
		write(t, c.Path, whole[:cut])
		filed(t, c, 1)
		r := check(t, c.Path)
		torn, killed := 1, 1
		if cut == last {
			torn = 0
		}
		if cut == len(whole)-1 {
			torn, killed = 0, 0 // only its end is missing: it is the stopped record
		}
		if len(r.Faults) > 0 || r.Torn != torn || r.Killed != killed || r.Starts != 2 || !r.Begins {
			t.Fatalf("cut at %d of %d: %+v", cut-last, len(whole)-last, r)
		}
	}
}

// What an attempt has left of a line on a full disk is cut off again.
func TestHalfALine(t *testing.T) {
	c := FileConfig{Path: filepath.Join(t.TempDir(), "audit"), Sync: SyncNever}
	s := NewFile(c, quiet)
	if _, err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := NewFile(c, quiet)
	if _, err := other.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second writer: %v", err)
	}
	for range 3 {
		if n, err := s.Write(t.Context(), []Line{{1, []byte(`{"seq":1}`)}, {2, []byte(`{"seq":2}`)}}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		f, err := os.OpenFile(c.Path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(`{"seq":3,"ha`)
		_ = f.Close()
	}
	if n, err := s.Write(t.Context(), []Line{{3, []byte(`{"seq":3}`)}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := string(read(t, c.Path)), strings.Repeat("{\"seq\":1}\n{\"seq\":2}\n", 3)+"{\"seq\":3}\n"; got != want {
		t.Errorf("%q", got)
	}
}

// A file that is moved or cut while it is written, as by logrotate, is gone on with, and
// what is missing shows.
func TestMovedAndCut(t *testing.T) {
	c := FileConfig{Path: filepath.Join(t.TempDir(), "audit"), Sync: SyncNever}
	s := NewFile(c, quiet)
	if _, err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	head := Head{}
	put := func(n int) {
		t.Helper()
		var all []Line
		for range n {
			b, err := json.Marshal(&Record{Seq: head.Seq + 1, Kind: Request, Prev: head.Hash})
			if err != nil {
				t.Fatal(err)
			}
			l := Line{head.Seq + 1, b}
			head = Head{l.Seq, l.Hash()}
			all = append(all, l)
		}
		if stored, err := s.Write(t.Context(), all); stored != n || err != nil {
			t.Fatal(stored, err)
		}
	}
	put(3)
	if err := os.Rename(c.Path, c.Path+".1"); err != nil {
		t.Fatal(err)
	}
	put(2)
	if r, err := Verify([]string{c.Path + ".1", c.Path}); err != nil || len(r.Faults) > 0 || r.Records != 5 {
		t.Errorf("moved: %+v, %v", r, err)
	}
	if err := os.Truncate(c.Path, 40); err != nil {
		t.Fatal(err)
	}
	put(2)
	r, err := Verify([]string{c.Path + ".1", c.Path})
	if err != nil || len(r.Faults) == 0 || r.Records != 5 || r.Head != head {
		t.Errorf("cut: %+v, %v", r, err)
	}
	if err := os.Remove(c.Path); err != nil {
		t.Fatal(err)
	}
	put(1)
	if r, err := Verify([]string{c.Path}); err != nil || r.Records != 1 || r.Begins {
		t.Errorf("removed: %+v, %v", r, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Files that are put by are one chain with what follows, over restarts too, and the oldest
// go when more than enough are kept.
func TestRotation(t *testing.T) {
	c := FileConfig{Path: filepath.Join(t.TempDir(), "audit"), RotateBytes: 2000, Sync: SyncSecond}
	for range 4 {
		filed(t, c, 100)
	}
	all, err := Files(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	r := check(t, c.Path)
	if len(all) < 3 || len(r.Faults) > 0 || r.Records != 4*102 || r.Head.Seq != 4*102 || !r.Begins || r.Killed != 0 {
		t.Errorf("%d files: %+v", len(all), r)
	}
	if v, err := Verify(slices.Delete(slices.Clone(all), 1, 2)); err != nil || len(v.Faults) == 0 {
		t.Errorf("without a file in the middle: %+v, %v", v, err)
	}
	if v, err := Verify(all[1:]); err != nil || len(v.Faults) != 0 || v.Begins {
		t.Errorf("without the first: %+v, %v", v, err)
	}
	// A process that dies between putting one by and beginning the next.
	if err := os.Rename(c.Path, c.Path+".00000000000000000408"); err != nil {
		t.Fatal(err)
	}
	c.KeepFiles = 2
	for range 3 {
		filed(t, c, 100)
	}
	if all, err = Files(c.Path); err != nil || len(all) != 3 {
		t.Errorf("%v, %v", all, err)
	}
	if r = check(t, c.Path); len(r.Faults) > 0 || r.Begins || r.Head.Seq != 7*102 {
		t.Errorf("%+v", r)
	}
}

// Whatever is done to one line is found.
func TestVerify(t *testing.T) {
	c := FileConfig{Path: filepath.Join(t.TempDir(), "audit"), Sync: SyncNever}
	filed(t, c, 5)
	good := read(t, c.Path)
	all := bytes.SplitAfter(good, []byte{'\n'})
	all = all[:len(all)-1]
	fine := verified(t, good)
	if len(fine.Faults) > 0 || fine.Records != 7 || fine.First != 1 {
		t.Fatalf("%+v", fine)
	}
	try := func(what string, changed [][]byte) {
		t.Helper()
		r := verified(t, bytes.Join(changed, nil))
		// Only the end of a file is not told by the file itself; its beginning is.
		if len(r.Faults) == 0 && r.Head == fine.Head && r.Begins {
			t.Errorf("%s: not found: %+v", what, r)
		}
		if len(r.Faults) == 0 && what != "the last removed" && what != "the last changed" && what != "the first removed" {
			t.Errorf("%s: found by the head only: %+v", what, r)
		}
	}
	name := func(i int, what string) string {
		switch i {
		case 0:
			return "the first " + what
		case len(all) - 1:
			return "the last " + what
		}
		return "one " + what
	}
	for i := range all {
		without := slices.Delete(slices.Clone(all), i, i+1)
		try(name(i, "removed"), without)
		if r := verified(t, bytes.Join(without, nil)); i == 0 && r.Begins {
			t.Error("the first record is missing and the file still begins")
		}
		changed := slices.Clone(all)
		changed[i] = bytes.Replace(all[i], []byte(`"ts":"2`), []byte(`"ts":"3`), 1)
		try(name(i, "changed"), changed)
		try("one twice", slices.Insert(slices.Clone(all), i, all[i]))
		if i > 0 {
			swapped := slices.Clone(all)
			swapped[i-1], swapped[i] = all[i], all[i-1]
			try("two exchanged", swapped)
			noise := slices.Insert(slices.Clone(all), i, []byte("noise\n"))
			try("noise between", noise)
		}
	}
	for _, not := range []string{"", "\n\n", "{}\n", `{"seq":1,"kind":"future"}` + "\n"} {
		if r := verified(t, []byte(not)); r.Records != 0 {
			t.Errorf("%q: %+v", not, r)
		}
	}
}

// FuzzVerify: whatever a file holds, it is read to a report.
func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"seq":1,"kind":"started"}` + "\n" + `{"seq":9,"kind":"gap","count":8}` + "\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v := verifier{}
		if err := v.read("f", bytes.NewReader(b)); err != nil {
			return
		}
		if v.Records > bytes.Count(b, []byte{'\n'})+1 || len(v.Faults) > mostFaults {
			t.Errorf("%+v", v.Report)
		}
	})
}
