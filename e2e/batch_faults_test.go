package e2e

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	_ "headgate/batch/sqlite" // its driver
	"headgate/e2e/headgate"
	"headgate/e2e/need"
)

// batchFault is a gateway with a batch that runs, whose storage fails and comes back.
type batchFault struct {
	*batchAPI
	g     *headgate.Gateway
	model string
	batch string
}

const faultItems = 60

func newBatchFault(t *testing.T, dir, settings string) *batchFault {
	t.Helper()
	k := newKeys(t)
	e := headgate.StartEngine(t, "--speed", "0.1")
	g := headgate.Start(t, strings.Replace(batchConfig(k, dir, e.URL), "batch: {", "batch: {"+settings, 1)).AwaitReady()
	f := &batchFault{&batchAPI{t, g.URL, k.jobs}, g, e.Model, ""}
	f.batch = f.create(f.upload(chatLines(e.Model, faultItems, 60)))
	f.until(f.batch, func(b gjson.Result) bool { return b.Get("request_counts.completed").Int() > 2 })
	return f
}

// refused checks that a client is told so, in the API's form.
func (f *batchFault) refused(what string, status int, text, code string) {
	f.t.Helper()
	want := map[string]int{"storage_full": 507, "storage_unavailable": 503}[code]
	if status != want || gjson.Get(text, "error.code").Str != code || gjson.Get(text, "error.message").Str == "" {
		f.t.Errorf("%s: %d %s", what, status, text)
	}
}

// live checks that requests that are no batch's are answered.
func (f *batchFault) live() {
	f.t.Helper()
	status, text := f.send("POST", "/v1/chat/completions", "application/json", strings.NewReader(`{"model":"`+f.model+`","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`))
	if status != 200 {
		f.t.Errorf("a live request: %d %s", status, text)
	}
}

// whole checks that the batch has ended with one line of each item.
func (f *batchFault) whole() {
	f.t.Helper()
	b := f.until(f.batch, hasEnded)
	all := ids(f.t, f.get("/v1/files/"+b.Get("output_file_id").Str+"/content"))
	if lines := len(all); b.Get("status").Str != "completed" || lines != faultItems || len(slices.Compact(all)) != faultItems {
		f.t.Errorf("%d lines: %s", lines, b)
	}
	f.g.AwaitPool("nothing is held", idle)
}

// TestBatchDiskFull: on a disk without room nothing is half written, live requests are
// answered, and what ran meanwhile is written once there is room.
func TestBatchDiskFull(t *testing.T) {
	dir := need.Disk(t, 4<<20)
	f := newBatchFault(t, dir, "")
	fill, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fill.Close() }()
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	f.g.AwaitOutput(`what items came to could not be written.*full`)
	before := f.get("/v1/files")
	status, text := f.sendFile(chatLines(f.model, 100, 5))
	f.refused("an upload", status, text, "storage_full")
	if now := f.get("/v1/files"); now != before {
		t.Errorf("files: %s; before %s", now, before)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "files", ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	f.live()
	if err := os.Remove(fill.Name()); err != nil {
		t.Fatal(err)
	}
	_ = fill.Close()
	f.whole()
}

// TestBatchDatabaseLocked: while another process has the database to itself, what would
// write is refused after a while, and what reads is not.
func TestBatchDatabaseLocked(t *testing.T) {
	dir := t.TempDir()
	f := newBatchFault(t, dir, "")
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "batch.db")+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	lock, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	input := gjson.Get(f.get("/v1/batches/"+f.batch), "input_file_id").Str
	status, text := f.send("POST", "/v1/batches", "application/json", strings.NewReader(`{"input_file_id":"`+input+`","endpoint":"/v1/chat/completions","completion_window":"1h"}`))
	f.refused("a batch", status, text, "storage_unavailable")
	f.g.AwaitOutput(`another process keeps the batch store locked`)
	f.live()
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	f.whole()
	if n := gjson.Get(f.get("/v1/batches"), "data.#").Int(); n != 1 {
		t.Errorf("%d batches, one of which was refused", n)
	}
}

// TestBatchDatabaseAway: a PostgreSQL that can't be reached for a while costs a batch
// that time, and nothing else.
func TestBatchDatabaseAway(t *testing.T) {
	line := newLine(t, need.Postgres(t))
	t.Setenv("HEADGATE_E2E_POSTGRES", line.dsn)
	f := newBatchFault(t, t.TempDir(), "postgres_env: HEADGATE_E2E_POSTGRES, ")
	line.cut()
	status, text := f.send("GET", "/v1/batches/"+f.batch, "", nil)
	f.refused("a look", status, text, "storage_unavailable")
	status, text = f.sendFile(chatLines(f.model, 1, 5))
	f.refused("an upload", status, text, "storage_unavailable")
	f.g.AwaitOutput(`the batch store can't be reached`)
	f.live()
	line.mend()
	f.whole()
}

// line is the way to a PostgreSQL's socket, which can be cut.
type line struct {
	t        *testing.T
	dsn      string
	to, here string // sockets

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn
}

func newLine(t *testing.T, dsn string) *line {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgline") // short: a socket's name has little room
	if err != nil {
		t.Fatal(err)
	}
	const socket = ".s.PGSQL.5432"
	host := strings.TrimPrefix(strings.Fields(dsn)[0], "host=")
	w := &line{t: t, dsn: strings.Replace(dsn, host, dir, 1), to: filepath.Join(host, socket), here: filepath.Join(dir, socket)}
	w.mend()
	t.Cleanup(func() {
		w.cut()
		_ = os.RemoveAll(dir)
	})
	return w
}

func (w *line) mend() {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", w.here)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.l = l
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", w.to)
			if err != nil {
				_ = near.Close()
				continue
			}
			w.mu.Lock()
			if w.l == l {
				w.conns = append(w.conns, near, far)
			} else {
				_, _ = near.Close(), far.Close()
			}
			w.mu.Unlock()
			go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
		}
	}()
}

// cut breaks all connections, and there are no new ones until mend.
func (w *line) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.l.Close()
	w.l = nil
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}
