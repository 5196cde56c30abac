package sqlite

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/batch"
	"headgate/batch/files"
	"headgate/batch/rows"
)

// The bar is a million lines:
//
//	go test ./batch/sqlite -run TestScale -scale.items 1000000 -timeout 1h -v
var scaleItems = flag.Int("scale.items", 3000, "lines of the scale test's batch")

// null answers at once.
type null struct{}

func (null) Run(_ context.Context, j *batch.Job) (*batch.Answer, error) {
	j.Started()
	return &batch.Answer{Status: 200, Body: []byte(`{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a short answer of some words"},"finish_reason":"stop"}]}`), Prompt: 10, Output: 7}, nil
}

// input writes the scale tests' file, of which one line, if any, is wrong.
func input(t *testing.T, f *files.Folder, wrong int) {
	t.Helper()
	up, err := f.Create(background, "file-in")
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewWriter(up)
	for line := range *scaleItems {
		if line == wrong {
			fmt.Fprintln(in, `{"custom_id":`)
			continue
		}
		fmt.Fprintf(in, `{"custom_id":"request-%d","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"system","content":"%s"},{"role":"user","content":"question %d"}],"max_tokens":100}}`+"\n",
			line, strings.Repeat(fmt.Sprint("instruction ", line%5, ". "), 20), line)
	}
	if err := in.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := up.Commit(); err != nil {
		t.Fatal(err)
	}
}

// scaled is a store with a batch, whose file has a line that is wrong; -1: none.
func scaled(t *testing.T, wrong int) (s *rows.Store, f *files.Folder, path string, b *batch.Batch) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "batch.db")
	s, err := Open(background, path)
	if err != nil {
		t.Fatal(err)
	}
	f, err = files.New(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	input(t, f, wrong)
	now := time.Now()
	b = &batch.Batch{ID: "b", Tenant: "t", Class: "batch", Endpoint: "/v1/chat/completions", Input: "file-in", Created: now, Expires: now.Add(10 * time.Hour)}
	if err := s.CreateFile(background, &batch.File{ID: "file-in", Tenant: "t", Purpose: batch.PurposeBatch, Created: now}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateBatch(background, b, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	return s, f, path, b
}

// TestScaleWrong: of a line that is wrong among many, all others are read and nothing of
// them is left, and the batch says which it was.
//
//	go test ./batch/sqlite -run TestScaleWrong -scale.items 1000000 -v
func TestScaleWrong(t *testing.T) {
	wrong := *scaleItems / 2
	s, f, path, b := scaled(t, wrong)
	defer s.Close()
	begun := b.Created
	in, err := f.Open(background, "file-in")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := batch.Ingest(background, s, in, b, batch.Default().Limits, time.Now); err != nil {
		t.Fatal(err)
	}
	if b, err = s.Batch(background, "t", "b"); err != nil {
		t.Fatal(err)
	}
	if b.Status != batch.Failed || len(b.Errors) != 1 || b.Errors[0].Line != int64(wrong)+1 || b.Counts != (batch.Counts{}) {
		t.Errorf("%s: %+v, %v", b.Status, b.Counts, b.Errors)
	}
	read := time.Since(begun)
	for more := true; more; {
		if more, err = s.Vacuum(background); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d lines: read in %.1f s, dropped in %.1f s: %s", *scaleItems, read.Seconds(), (time.Since(begun) - read).Seconds(), b.Errors[0].Message)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1<<20 {
		t.Errorf("%v bytes of the disk are left: %v", info.Size(), err)
	}
}

// TestScale takes a batch from its file to its output over an engine that takes no time,
// and says how fast, in how much memory, and how long who looks meanwhile has to wait.
func TestScale(t *testing.T) {
	s, f, path, b := scaled(t, -1)
	defer s.Close()
	begun := b.Created

	cfg := batch.Default()
	cfg.Store, cfg.Files, cfg.Runner, cfg.Name = s, f, null{}, "w"
	cfg.Pace = batch.Pace{Concurrency: 1024, Ahead: 1024, Quantum: 512, Reopen: time.Minute}
	w := batch.NewWorker(cfg)
	ctx, cancel := context.WithCancel(background)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) })

	var looks []time.Duration
	var heap uint64
	var disk int64
	look := func() *batch.Batch {
		at := time.Now()
		b, err := s.Batch(background, "t", "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Batches(background, "t", batch.Page{Limit: 20}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Waiting(background, time.Now()); err != nil {
			t.Fatal(err)
		}
		looks = append(looks, time.Since(at))
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap = max(heap, m.HeapInuse)
		if info, err := os.Stat(path); err == nil {
			disk = max(disk, info.Size())
		}
		return b
	}
	for b = look(); !b.Status.Ended(); b = look() {
		time.Sleep(50 * time.Millisecond)
	}
	ended := time.Now()
	cancel()
	wg.Wait()
	for more := true; more; {
		var err error
		if more, err = s.Vacuum(background); err != nil {
			t.Fatal(err)
		}
	}
	vacuumed := time.Now()
	if b.Status != batch.Completed || b.Counts.Completed != int64(*scaleItems) {
		t.Fatalf("%s: %+v %v", b.Status, b.Counts, b.Errors)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Flat: a million items with their lines are some hundred MB.
	if heap > 128<<20 {
		t.Errorf("the heap had %d MB", heap>>20)
	}
	if info.Size() > 1<<20 {
		t.Errorf("%d KB of the disk are left, of %d", info.Size()>>10, disk>>10)
	}
	slices.Sort(looks)
	rate := func(from, to time.Time) string {
		return fmt.Sprintf("%.1f s, %.0f/s", to.Sub(from).Seconds(), float64(*scaleItems)/to.Sub(from).Seconds())
	}
	t.Logf("%d items: read in %s; claimed, run and written %s; output file %.1f s; rows dropped %.1f s", *scaleItems, rate(begun, b.Started),
		rate(b.Started, b.FinalizingAt), ended.Sub(b.FinalizingAt).Seconds(), vacuumed.Sub(ended).Seconds())
	t.Logf("heap at most %d MB; database at most %d MB, %d KB after the end; %d looks (a batch, a list, what waits): median %s, 99th %s, longest %s",
		heap>>20, disk>>20, info.Size()>>10, len(looks), looks[len(looks)/2], looks[len(looks)*99/100], looks[len(looks)-1])
}
