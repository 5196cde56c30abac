// Package rowstest kills processes that work over tables of package rows, and looks at
// what is left.
package rowstest

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/batch"
	"headgate/batch/files"
)

// The bar is 10,000 items and 50 kills:
//
//	go test ./batch/sqlite ./batch/postgres -run TestCrash -crash.items 10000 -crash.kills 50 -v
var (
	crashItems = flag.Int64("crash.items", 1000, "items of the crash test's batch")
	crashKills = flag.Int("crash.kills", 8, "how often one of its processes is killed")
	crashSeed  = flag.Uint64("crash.seed", 1, "of the moments")
)

// What a child is told: where its storage is, how long its lease is, and how long a token takes.
const (
	crashDir   = "HEADGATE_CRASH_DIR"
	crashLease = "HEADGATE_CRASH_LEASE"
	crashToken = "HEADGATE_CRASH_TOKEN"
)

const crashConcurrency = 64

// Crash says what is killed. The folder is the test's, and a child has nothing else.
type Crash struct {
	Open     func(dir string) (batch.Store, error)
	Database func(dir string) (*sql.DB, error)
	// Check looks at what a kill left; nil: nothing.
	Check    func(t *testing.T, db *sql.DB)
	Replicas int
	Lease    time.Duration
}

// Main is TestMain of a package whose test binary is its own child.
func (c Crash) Main(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		if err := c.child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tokensOf is how many tokens an item's answer has.
func tokensOf(line int64) int64 { return 5 + line%8 }

// child is the process that is killed: a worker over a runner that notes each token that
// it generates before anybody is told of it.
func (c Crash) child(dir string) error {
	s, err := c.Open(dir)
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
	lease, err := time.ParseDuration(os.Getenv(crashLease))
	if err != nil {
		return err
	}
	cfg := batch.Default()
	cfg.Store, cfg.Files, cfg.Runner = s, slow{f}, noting{log, token}
	cfg.Name = fmt.Sprint("process ", os.Getpid(), " of ", time.Now().UnixNano())
	cfg.Pace = batch.Pace{Concurrency: crashConcurrency, Ahead: crashConcurrency, Quantum: 16, Reopen: time.Minute}
	cfg.Lease, cfg.Poll = lease, 50*time.Millisecond
	cfg.CheckpointTokens, cfg.CheckpointEvery = 3, time.Hour
	batch.NewWorker(cfg).Run(context.Background())
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

// durable is what is on the disk of the batch, and how long the log of tokens was then.
type durable struct {
	kept   map[int64]int64 // tokens by line
	done   map[int64]bool
	logged int64
}

func (c Crash) durable(t *testing.T, dir string) durable {
	t.Helper()
	db, err := c.Database(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if c.Check != nil {
		c.Check(t, db)
	}
	d := durable{kept: map[int64]int64{}, done: map[int64]bool{}}
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
	if info, err := os.Stat(filepath.Join(dir, "tokens")); err == nil {
		d.logged = info.Size()
	}
	return d
}

// again looks through the tokens that were generated since, for those that were kept
// before, or of lines that were done. A line is left out that is being written.
func (d durable) again(t *testing.T, dir string) {
	t.Helper()
	for line, tokens := range tokens(t, dir, d.logged) {
		for _, token := range tokens {
			if d.done[line] || token <= d.kept[line] {
				t.Errorf("token %d of line %d was generated again: done %v, %d were kept", token, line, d.done[line], d.kept[line])
			}
		}
	}
}

func tokens(t *testing.T, dir string, from int64) map[int64][]int64 {
	t.Helper()
	log, err := os.Open(filepath.Join(dir, "tokens"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	text, err := io.ReadAll(io.NewSectionReader(log, from, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	all := map[int64][]int64{}
	lines := strings.Split(string(text), "\n")
	for _, l := range lines[:len(lines)-1] {
		var line, token int64
		if _, err := fmt.Sscan(l, &line, &token); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		all[line] = append(all[line], token)
	}
	return all
}

// Run kills processes at any moment, while they read the file in, run items, or write the
// output. In the end every item has one line, and no token that was kept was generated
// again.
func (c Crash) Run(t *testing.T, dir string) {
	items := *crashItems
	ctx := context.Background()
	s, err := c.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
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
	if err := s.CreateFile(ctx, &batch.File{ID: "file-in", Tenant: "t", Purpose: "batch", Created: now}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateBatch(ctx, &batch.Batch{ID: "b", Tenant: "t", Class: "batch", Endpoint: "/v1/x", Input: "file-in", Created: now, Expires: now.Add(time.Hour)}, batch.Holdings{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	r := rand.New(rand.NewPCG(*crashSeed, 0))
	random := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	// A few kills are kept for the batch's end. The others come while there is work for all of
	// them.
	const spread, reading = 1200 * time.Millisecond, 60 * time.Millisecond
	atEnd := *crashKills / 4
	if c.Replicas > 1 {
		atEnd = min(1, atEnd) // another one ends it
	}
	work := 1.5 * float64(*crashKills-atEnd) * float64(spread/2)
	token := time.Duration(work*crashConcurrency*float64(c.Replicas)/float64(needed)) / time.Microsecond * time.Microsecond

	type process struct {
		*exec.Cmd
		stderr strings.Builder
	}
	start := func() *process {
		p := &process{Cmd: exec.Command(os.Args[0])}
		p.Env = append(os.Environ(), crashDir+"="+dir, crashToken+"="+token.String(), crashLease+"="+c.Lease.String())
		p.Stderr = &p.stderr
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	kill := func(p *process) {
		if err := p.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = p.Wait() // it was killed
		if p.stderr.Len() > 0 {
			t.Errorf("a process says: %s", p.stderr.String())
		}
	}
	var running []*process
	defer func() {
		for _, p := range running {
			kill(p)
		}
	}()
	for range c.Replicas {
		running = append(running, start())
	}
	kills := map[batch.Status]int{}
	before := c.durable(t, dir)
	for n := 0; n < *crashKills && !t.Failed(); n++ {
		switch {
		case n < 2:
			time.Sleep(random(reading))
		case n < *crashKills-atEnd:
			time.Sleep(random(spread))
		default:
			c.waitFor(t, dir, func(s batch.Status, left int64) bool { return s != batch.Validating && left == 0 })
			time.Sleep(random(reading))
		}
		i := r.IntN(len(running))
		kill(running[i])
		status, _ := c.status(t, dir)
		kills[status]++
		before.again(t, dir)
		before = c.durable(t, dir)
		running[i] = start()
	}
	if !t.Failed() {
		c.waitFor(t, dir, func(s batch.Status, _ int64) bool { return s.Ended() })
	}
	for len(running) > 0 {
		kill(running[0])
		running = running[1:]
	}
	before.again(t, dir)

	if s, err = c.Open(dir); err != nil {
		t.Fatal(err)
	}
	b, err := s.Batch(ctx, "t", "b")
	if err != nil {
		t.Fatal(err)
	}
	if want := (batch.Counts{Total: items, Completed: items, Prompt: items, Output: needed}); b.Status != batch.Completed || b.Error != "" || b.Counts != want {
		t.Fatalf("%s with %+v; want %+v", b.Status, b.Counts, want)
	}
	content, err := f.Open(ctx, b.Output)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	seen := map[int64]int{}
	lines := bufio.NewScanner(io.NewSectionReader(content, 0, content.Size()))
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
	var generated int64
	for line, n := range tokens(t, dir, 0) {
		generated += int64(len(n))
		if last := slices.Max(n); last != tokensOf(line) {
			t.Errorf("line %d has %d tokens", line, last)
		}
	}
	t.Logf("%d items, %d replicas, kills by what they left of the batch: %v; %d tokens generated, %d needed: %.2f %% more", items, c.Replicas, kills, generated, needed,
		100*float64(generated-needed)/float64(needed))
}

// waitFor waits for what is on the disk of the batch, of which so many items are left.
func (c Crash) waitFor(t *testing.T, dir string, is func(status batch.Status, left int64) bool) {
	t.Helper()
	for !is(c.status(t, dir)) {
		time.Sleep(time.Millisecond)
	}
}

func (c Crash) status(t *testing.T, dir string) (status batch.Status, left int64) {
	t.Helper()
	db, err := c.Database(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("SELECT status, total - completed - failed FROM batches").Scan(&status, &left); err != nil {
		t.Fatal(err)
	}
	return status, left
}
