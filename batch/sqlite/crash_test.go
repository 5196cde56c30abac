package sqlite

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/batch"
	"headgate/batch/files"
)

// The bar is 10,000 items and 50 kills:
//
//	go test ./batch/sqlite -run TestCrash -crash.items 10000 -crash.kills 50 -v
var (
	crashItems = flag.Int64("crash.items", 1000, "items of the crash test's batch")
	crashKills = flag.Int("crash.kills", 8, "how often its process is killed")
	crashSeed  = flag.Uint64("crash.seed", 1, "of the moments")
)

// What a child is told: where its storage is, and how long a token takes.
const (
	crashDir   = "HEADGATE_CRASH_DIR"
	crashToken = "HEADGATE_CRASH_TOKEN"
)

const crashConcurrency = 64

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		if err := crashing(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tokensOf is how many tokens an item's answer has.
func tokensOf(line int64) int64 { return 5 + line%8 }

// crashing is the process that is killed: a worker over a runner that notes each token that
// it generates before anybody is told of it.
func crashing(dir string) error {
	ctx := context.Background()
	s, err := Open(ctx, filepath.Join(dir, "batch.db"))
	if err != nil {
		return err
	}
	f, err := files.New(filepath.Join(dir, "files"))
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "tokens"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	token, err := time.ParseDuration(os.Getenv(crashToken))
	if err != nil {
		return err
	}
	cfg := batch.Default()
	cfg.Store, cfg.Files, cfg.Runner = s, slow{f}, noting{log, token}
	cfg.Name = fmt.Sprint("process ", os.Getpid(), " of ", time.Now().UnixNano())
	cfg.Pace = batch.Pace{Concurrency: crashConcurrency, Ahead: crashConcurrency, Quantum: 16, Reopen: time.Minute}
	cfg.Lease, cfg.Poll = time.Second, 50*time.Millisecond
	cfg.CheckpointTokens, cfg.CheckpointEvery = 3, time.Hour
	batch.NewWorker(cfg).Run(ctx)
	return nil
}

// slow files take their time, so that a batch's end can be hit.
type slow struct{ batch.Files }

func (f slow) Create(ctx context.Context, id string) (batch.Upload, error) {
	time.Sleep(10 * time.Millisecond)
	up, err := f.Files.Create(ctx, id)
	return slowUpload{up}, err
}

type slowUpload struct{ batch.Upload }

func (u slowUpload) Write(b []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return u.Upload.Write(b)
}

func (u slowUpload) Commit() error {
	time.Sleep(10 * time.Millisecond)
	err := u.Upload.Commit()
	time.Sleep(10 * time.Millisecond)
	return err
}

type noting struct {
	log   *os.File
	token time.Duration
}

func (n noting) Run(ctx context.Context, j *batch.Job) (*batch.Answer, error) {
	j.Started()
	line := gjson.GetBytes(j.Body, "line").Int()
	var at int64
	if j.Kept != nil {
		if err := json.Unmarshal(j.Kept, &at); err != nil {
			return nil, err
		}
	}
	for at < tokensOf(line) {
		time.Sleep(n.token)
		at++
		if _, err := fmt.Fprintf(n.log, "%d %d\n", line, at); err != nil {
			return nil, err
		}
		j.Checkpoint(at, func() json.RawMessage { return fmt.Appendf(nil, "%d", at) })
	}
	return &batch.Answer{Status: 200, Body: fmt.Appendf(nil, `{"line":%d,"tokens":%d}`, line, at), Prompt: 1, Output: at}, nil
}

// durable is what is on the disk of a batch while no process runs.
type durable struct {
	status batch.Status
	kept   map[int64]int64 // tokens by line
	done   map[int64]bool
}

func readDurable(t *testing.T, dir string) durable {
	t.Helper()
	db, err := standard.open(filepath.Join(dir, "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	d := durable{kept: map[int64]int64{}, done: map[int64]bool{}}
	if err := db.QueryRow("SELECT status FROM batches").Scan(&d.status); err != nil {
		t.Fatal(err)
	}
	var report string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&report); err != nil || report != "ok" {
		t.Fatalf("%s %v", report, err)
	}
	for query, each := range map[string]func(int64, []byte){
		"SELECT item, kept FROM checkpoints": func(id int64, kept []byte) {
			var n int64
			if err := json.Unmarshal(kept, &n); err != nil {
				t.Fatal(err)
			}
			d.kept[id&(1<<32-1)] = n
		},
		"SELECT id, line FROM results": func(_ int64, line []byte) { d.done[gjson.GetBytes(line, "response.body.line").Int()] = true },
	} {
		rows, err := db.Query(query)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var id int64
			var text []byte
			if err := rows.Scan(&id, &text); err != nil {
				t.Fatal(err)
			}
			each(id, text)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
	return d
}

// TestCrash kills the process at any moment, while it reads the file in, runs items, or writes
// the output. In the end every item has one line, and no token that was kept was
// generated again.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	items := *crashItems
	ctx := context.Background()
	s, err := Open(ctx, filepath.Join(dir, "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := files.New(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	up, err := f.Create(ctx, "file-in")
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewWriter(up)
	var needed int64
	for line := int64(1); line <= items; line++ {
		needed += tokensOf(line)
		fmt.Fprintf(in, `{"custom_id":"c%d","method":"POST","url":"/v1/x","body":{"model":"m","line":%d}}`+"\n", line, line)
	}
	if err := in.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := up.Commit(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := s.CreateFile(ctx, &batch.File{ID: "file-in", Tenant: "t", Purpose: "batch", Created: now}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateBatch(ctx, &batch.Batch{ID: "b", Tenant: "t", Class: "batch", Endpoint: "/v1/x", Input: "file-in", Created: now, Expires: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	r := rand.New(rand.NewPCG(*crashSeed, 0))
	random := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	// A few kills are kept for the batch's end. The others come within a lease and a bit of a process's
	// beginning, while there is work for all of them.
	const spread, reading = 1200 * time.Millisecond, 60 * time.Millisecond
	atEnd := *crashKills / 4
	token := time.Duration(1.5*float64(*crashKills-atEnd)*float64(spread/2)*crashConcurrency/float64(needed)) / time.Microsecond * time.Microsecond
	var logged, generated int64
	kills := map[batch.Status]int{}
	for life := 0; ; life++ {
		before := readDurable(t, dir)
		if before.status.Ended() {
			break
		}
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), crashDir+"="+dir, crashToken+"="+token.String())
		var stderr strings.Builder
		child.Stderr = &stderr
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		switch {
		case life < 2 && life < *crashKills:
			time.Sleep(random(reading))
		case life < *crashKills-atEnd:
			time.Sleep(random(spread))
		case life < *crashKills:
			waitFor(t, dir, func(s batch.Status, left int64) bool { return s != batch.Validating && left == 0 })
			time.Sleep(random(reading))
		default:
			waitFor(t, dir, func(s batch.Status, _ int64) bool { return s.Ended() })
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed
		if stderr.Len() > 0 {
			t.Fatalf("life %d: %s", life, stderr.String())
		}
		if life < *crashKills {
			status, _ := readStatus(t, dir)
			kills[status]++
		}
		log, err := os.Open(filepath.Join(dir, "tokens"))
		if err != nil {
			if os.IsNotExist(err) {
				continue
			}
			t.Fatal(err)
		}
		if _, err := log.Seek(logged, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			var line, token int64
			if _, err := fmt.Sscan(lines.Text(), &line, &token); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			logged += int64(len(lines.Bytes())) + 1
			generated++
			if before.done[line] || token <= before.kept[line] {
				t.Errorf("life %d generated token %d of line %d again: done %v, %d were kept", life, token, line, before.done[line], before.kept[line])
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		log.Close()
	}

	if s, err = Open(ctx, filepath.Join(dir, "batch.db")); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b, err := s.Batch(ctx, "t", "b")
	if err != nil {
		t.Fatal(err)
	}
	if want := (batch.Counts{Total: items, Completed: items, Prompt: items, Output: needed}); b.Status != batch.Completed || b.Error != "" || b.Counts != want {
		t.Errorf("%s with %+v; want %+v", b.Status, b.Counts, want)
	}
	c, err := f.Open(ctx, b.Output)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen := map[int64]int{}
	lines := bufio.NewScanner(io.NewSectionReader(c, 0, c.Size()))
	for lines.Scan() {
		v := gjson.GetMany(lines.Text(), "custom_id", "response.body.line", "response.body.tokens")
		line := v[1].Int()
		if v[0].Str != fmt.Sprint("c", line) || v[2].Int() != tokensOf(line) {
			t.Errorf("%s", lines.Text())
		}
		seen[line]++
	}
	for line := int64(1); line <= items; line++ {
		if seen[line] != 1 {
			t.Errorf("line %d is there %d times", line, seen[line])
		}
	}
	if len(seen) != int(items) {
		t.Errorf("%d lines of %d", len(seen), items)
	}
	if n := kills[batch.Validating] + kills[batch.InProgress]; n < *crashKills-atEnd {
		t.Errorf("it ended after %d kills", n)
	}
	t.Logf("%d items, kills by what they left of the batch: %v; %d tokens generated, %d needed: %.2f %% more", items, kills, generated, needed,
		100*float64(generated-needed)/float64(needed))
}

// waitFor waits for what is on the disk of the batch, of which so many items are left.
func waitFor(t *testing.T, dir string, is func(status batch.Status, left int64) bool) {
	t.Helper()
	for !is(readStatus(t, dir)) {
		time.Sleep(time.Millisecond)
	}
}

func readStatus(t *testing.T, dir string) (status batch.Status, left int64) {
	t.Helper()
	db, err := standard.open(filepath.Join(dir, "batch.db"), "query_only(1)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("SELECT status, total - completed - failed FROM batches").Scan(&status, &left); err != nil {
		t.Fatal(err)
	}
	return status, left
}
