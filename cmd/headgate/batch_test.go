package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// flaky is a server of one file, which breaks off after so many bytes of each answer.
type flaky struct {
	content []byte
	after   int
	ranges  bool
	busy    int // answers that there is no room, first
	asked   []string
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := 0
	f.asked = append(f.asked, r.Header.Get("Range"))
	if f.busy--; f.busy >= 0 {
		w.Header().Set("Retry-After-Ms", "1")
		http.Error(w, `{"error":{"message":"come back"}}`, http.StatusServiceUnavailable)
		return
	}
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &at); err == nil && f.ranges {
		if at >= len(f.content) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(f.content)-at))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		at = 0
		w.Header().Set("Content-Length", fmt.Sprint(len(f.content)))
	}
	rest := f.content[at:]
	if len(rest) > f.after {
		_, _ = w.Write(rest[:f.after])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(rest)
}

func quickClient(t *testing.T, h http.Handler) (*batchClient, *bytes.Buffer) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	var said bytes.Buffer
	c, err := newBatchClient(s.URL+"/v1/", "key", &said)
	if err != nil {
		t.Fatal(err)
	}
	c.pause = time.Millisecond
	t.Cleanup(c.http.CloseIdleConnections)
	return c, &said
}

// TestDownloadGoesOn: a download that breaks off goes on where it was, by the same
// command and by another; and is right however the server takes that.
func TestDownloadGoesOn(t *testing.T) {
	content := []byte(strings.Repeat("0123456789\n", 10_000))
	path := filepath.Join(t.TempDir(), "out.jsonl")
	f := &flaky{content: content, after: 40_000, ranges: true, busy: 1}
	c, said := quickClient(t, f)
	if err := c.save(t.Context(), "file-x", path, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if d := cmp.Diff([]string{"", "", "bytes=40000-", "bytes=80000-"}, f.asked); d != "" || strings.Count(said.String(), "again in") != 3 {
		t.Errorf("%s(-want +got)\n%s", said, d)
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}

	for name, c := range map[string]struct {
		f    *flaky
		part []byte
		want []string
	}{
		"what came before":  {&flaky{content: content, after: len(content), ranges: true}, content[:50_000], []string{"bytes=50000-"}},
		"all came before":   {&flaky{content: content, after: len(content), ranges: true}, content, []string{fmt.Sprintf("bytes=%d-", len(content))}},
		"knows no ranges":   {&flaky{content: content, after: len(content)}, content[:50_000], []string{"bytes=50000-"}},
		"nothing came":      {&flaky{content: content, after: len(content)}, nil, []string{""}},
		"nothing is in it":  {&flaky{content: nil}, nil, []string{""}},
		"a few bytes again": {&flaky{content: content[:10], after: 4, ranges: true}, nil, []string{"", "bytes=4-", "bytes=8-"}},
	} {
		path := filepath.Join(t.TempDir(), "out.jsonl")
		if c.part != nil {
			if err := os.WriteFile(path+".file-x.part", c.part, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		client, _ := quickClient(t, c.f)
		if err := client.save(t.Context(), "file-x", path, func(int64, int64) {}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, c.f.content) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if d := cmp.Diff(c.want, c.f.asked); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
	// One that brings nothing new is given up, and what came is kept.
	stuck := &flaky{content: content, after: 0, ranges: true}
	client, _ := quickClient(t, stuck)
	other := filepath.Join(t.TempDir(), "out.jsonl")
	if err := client.save(t.Context(), "file-x", other, func(int64, int64) {}); err == nil || !strings.Contains(err.Error(), ".part") || len(stuck.asked) != batchTries {
		t.Errorf("%v after %d tries", err, len(stuck.asked))
	}
}

// TestUploadSaysItsLength: the form has its length, its purpose and the file to the byte,
// and what the server says of it is told.
func TestUploadSaysItsLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.jsonl")
	content := strings.Repeat("{}\r\n", 100_000)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	var last int64
	c, _ := quickClient(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		length := r.ContentLength
		file, header, err := r.FormFile("file")
		if err != nil {
			t.Error(err)
			return
		}
		b, err := io.ReadAll(file)
		if err != nil || string(b) != content || header.Filename != "requests.jsonl" || r.FormValue("purpose") != "batch" || length <= int64(len(content)) || r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("%d bytes of %s, purpose %q, length %d, %v", len(b), header.Filename, r.FormValue("purpose"), length, err)
		}
		_, _ = io.WriteString(w, `{"id":"file-1"}`)
	}))
	id, err := c.upload(t.Context(), path, func(sent, all int64) { last = all - sent })
	if err != nil || id != "file-1" || last != 0 {
		t.Errorf("%s, %v, %d bytes are missing", id, err, last)
	}
	full, _ := quickClient(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error":{"message":"the storage is full"}}`, http.StatusInsufficientStorage)
	}))
	if _, err := full.upload(t.Context(), path, func(int64, int64) {}); err == nil || !strings.HasSuffix(err.Error(), "the server answered 507: the storage is full") {
		t.Error(err)
	}
	for _, base := range []string{"127.0.0.1:8080", "ftp://h", ""} {
		if _, err := newBatchClient(base, "", io.Discard); err == nil || !strings.Contains(err.Error(), "--base-url") {
			t.Errorf("%s: %v", base, err)
		}
	}
}

// TestBatchProgress: the rate is of the last half minute, and the time left follows it.
func TestBatchProgress(t *testing.T) {
	var r batchRate
	start := time.Unix(0, 0)
	b := &batchObject{Status: "in_progress"}
	b.Counts.Total = 1000
	for i, want := range []string{
		"in_progress [------------------------------] 0/1000 0.0%",
		"in_progress [###---------------------------] 100/1000 10.0%, 10.0/s, 1m30s left",
		"in_progress [######------------------------] 200/1000 20.0%, 10.0/s, 1m20s left",
		"in_progress [######------------------------] 200/1000 20.0%, 6.7/s, 2m0s left",
		"in_progress [######------------------------] 200/1000 20.0%, 3.3/s, 4m0s left", // the first ten seconds are forgotten
		"in_progress [######------------------------] 200/1000 20.0%",
	} {
		done := min(int64(i)*100, 200)
		b.Counts.Completed = done
		if got := b.line(r.add(start.Add(time.Duration(i)*10*time.Second), done)); got != want {
			t.Errorf("%d:\ngot  %s\nwant %s", i, got, want)
		}
	}
	b.Status, b.Counts.Completed, b.Counts.Failed = "completed", 997, 3
	if got := b.line(5); got != "completed [##############################] 1000/1000 100.0%, 3 failed" {
		t.Error(got)
	}

	var out bytes.Buffer
	p := newProgress(&out)
	for i, kind := range []string{"validating", "in_progress", "in_progress", "in_progress", "completed"} {
		p.show(start.Add(time.Duration(i)*6*time.Second), kind, fmt.Sprint(kind, i))
	}
	p.end()
	if got := strings.Fields(out.String()); !cmp.Equal(got, []string{"validating0", "in_progress1", "in_progress3", "completed4"}) {
		t.Errorf("%q", got)
	}
	out.Reset()
	p = &progress{to: &out, terminal: true}
	p.show(start, "a", "longer")
	p.show(start, "a", "short")
	p.end()
	if out.String() != "\rlonger\rshort \n" {
		t.Errorf("%q", out.String())
	}
}
