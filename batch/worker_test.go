package batch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"headgate/batch"
	"headgate/batch/batchtest"
	"headgate/journal"
)

// engine is a Runner that is told what each request comes to.
type engine struct {
	mu   sync.Mutex
	runs map[string]int // by what the request asks for
	run  func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error)
}

func (e *engine) Run(ctx context.Context, j *batch.Job) (*batch.Answer, error) {
	e.mu.Lock()
	if e.runs == nil {
		e.runs = map[string]int{}
	}
	e.runs[string(j.Body)]++
	n := e.runs[string(j.Body)]
	e.mu.Unlock()
	if e.run != nil {
		return e.run(ctx, j, n)
	}
	return answer(j), nil
}

// answer says what was asked.
func answer(j *batch.Job) *batch.Answer {
	j.Started()
	return &batch.Answer{Status: 200, Body: []byte(`{"asked": ` + string(j.Body) + "}\n"), Prompt: 3, Output: 2}
}

// world is a storage with workers over it, in a bubble whose time is synctest's.
type world struct {
	t     *testing.T
	store *batchtest.Memory
	files *batchtest.Contents
	begun time.Time
}

func newWorld(t *testing.T) *world {
	return &world{t: t, store: batchtest.NewMemory(), files: batchtest.NewContents(), begun: time.Now()}
}

// inBubble tells a story in time that passes only when all wait.
func inBubble(t *testing.T, story func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { story(t, newWorld(t)) })
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func config(name string) batch.Config {
	cfg := batch.Default()
	cfg.Name = name
	cfg.Backoff = 2 * time.Second
	cfg.MaxBackoff = time.Minute
	cfg.Attempts = 3
	return cfg
}

// start starts a worker, which stop ends, and waits for.
func (w *world) start(cfg batch.Config, r batch.Runner) (worker *batch.Worker, stop func()) {
	if cfg.Store == nil {
		cfg.Store = w.store
	}
	if cfg.Files == nil {
		cfg.Files = w.files
	}
	cfg.Runner = r
	worker = batch.NewWorker(cfg)
	ctx, cancel := context.WithCancel(background)
	done := make(chan struct{})
	go func() {
		defer close(done)
		worker.Run(ctx)
	}()
	return worker, func() { cancel(); <-done }
}

func (w *world) write(id, text string) {
	w.t.Helper()
	up, err := w.files.Create(background, id)
	w.must(err)
	_, err = io.WriteString(up, text)
	w.must(err)
	w.must(up.Commit())
	w.must(w.store.CreateFile(background, &batch.File{ID: id, Tenant: "t", Purpose: "batch", Created: time.Now()}, batch.Holdings{}))
}

// batch makes one of so many lines, each of which asks for its number.
func (w *world) batch(id string, lines int, window time.Duration) {
	w.t.Helper()
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, `{"custom_id":"c%d","method":"POST","url":"/v1/x","body":{"model":"m","k":%d}}`+"\n", i+1, i+1)
	}
	w.write("in-"+id, text.String())
	w.create(id, window)
}

func (w *world) create(id string, window time.Duration) {
	w.t.Helper()
	now := time.Now()
	w.must(w.store.CreateBatch(background, &batch.Batch{ID: id, Tenant: "t", Key: "k", Class: "batch", Endpoint: "/v1/x", Window: window,
		Input: "in-" + id, Created: now, Expires: now.Add(window)}, batch.Holdings{}))
}

func (w *world) get(id string) *batch.Batch {
	w.t.Helper()
	b, err := w.store.Batch(background, "t", id)
	w.must(err)
	return b
}

// until lets time pass until a batch is in a state.
func (w *world) until(id string, status batch.Status) *batch.Batch {
	w.t.Helper()
	for range 10_000 {
		if b := w.get(id); b.Status == status {
			return b
		}
		time.Sleep(250 * time.Millisecond)
	}
	w.t.Fatalf("batch %s is %s after %s; want %s", id, w.get(id).Status, time.Since(w.begun), status)
	return nil
}

// lines are those of a file, "" for none.
func (w *world) lines(id string) []string {
	w.t.Helper()
	if id == "" {
		return nil
	}
	f, err := w.store.File(background, "t", id)
	w.must(err)
	c, err := w.files.Open(background, id)
	w.must(err)
	if c.Size() != f.Bytes || f.Purpose != "batch_output" {
		w.t.Errorf("file %s has %d bytes: %+v", id, c.Size(), f)
	}
	text, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	w.must(err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// whole checks that an ended batch has each of its lines once.
func (w *world) whole(id string, lines int) (output, problems []string) {
	w.t.Helper()
	b := w.get(id)
	output, problems = w.lines(b.Output), w.lines(b.Error)
	seen := map[string]int{}
	for _, l := range slices.Concat(output, problems) {
		seen[gjson.Get(l, "custom_id").Str]++
	}
	for i := range lines {
		if n := seen[fmt.Sprint("c", i+1)]; n != 1 {
			w.t.Errorf("c%d has %d lines", i+1, n)
		}
	}
	if len(seen) != lines || int(b.Counts.Completed) != len(output) || int(b.Counts.Failed) != len(problems) || int(b.Counts.Total) != lines {
		w.t.Errorf("%d lines of output, %d of errors, of %d items: %+v", len(output), len(problems), len(seen), b.Counts)
	}
	return output, problems
}

func TestWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 40, time.Hour)
		_, stop := w.start(config("w"), &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			if j.Tenant != "t" || j.Key != "k" || j.Class != "batch" || j.Endpoint != "/v1/x" || j.Kept != nil {
				t.Errorf("%+v", j)
			}
			switch a := answer(j); gjson.GetBytes(j.Body, "k").Int() {
			case 2:
				return &batch.Answer{Status: 400, Body: []byte(`{"error":{"message":"<no>"}}`), RequestID: "req-2"}, nil
			case 3:
				a.Body = []byte("no JSON\n")
				return a, nil
			case 4:
				a.Body = nil
				return a, nil
			default:
				return a, nil
			}
		}})
		b := w.until("b", batch.Completed)
		stop()
		output, problems := w.whole("b", 40)
		if want := (batch.Counts{Total: 40, Completed: 39, Failed: 1, Prompt: 3 * 39, Output: 2 * 39}); b.Counts != want {
			t.Errorf("%+v", b.Counts)
		}
		line := func(custom string) string {
			return output[slices.IndexFunc(output, func(l string) bool { return gjson.Get(l, "custom_id").Str == custom })]
		}
		if want := `{"id":"","custom_id":"c1","response":{"status_code":200,"request_id":"","body":{"asked":{"model":"m","k":1}}},"error":null}`; stripIDs(line("c1")) != want {
			t.Errorf("%s\nwant %s", line("c1"), want)
		}
		for custom, body := range map[string]string{"c3": `"no JSON\n"`, "c4": "null"} {
			if have := gjson.Get(line(custom), "response.body").Raw; have != body {
				t.Errorf("%s: %s", custom, have)
			}
		}
		if want := `{"id":"","custom_id":"c2","response":{"status_code":400,"request_id":"req-2","body":{"error":{"message":"<no>"}}},"error":null}`; stripIDs(problems[0]) != want {
			t.Errorf("%s", problems[0])
		}
	})
}

// stripIDs empties what is called by an item's digest.
func stripIDs(line string) string {
	for {
		i := strings.Index(line, "batch_req_")
		if i < 0 {
			return line
		}
		n := strings.IndexByte(line[i:], '"')
		line = line[:i] + line[i+n:]
	}
}

func TestBadInput(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.write("in-torn", "{\"custom_id\":\"a\"}\nnot json\n")
		w.write("in-empty", "")
		w.write("in-gone", "")
		w.must(w.files.Remove(background, "in-gone"))
		for _, id := range []string{"torn", "empty", "gone"} {
			w.create(id, time.Hour)
		}
		_, stop := w.start(config("w"), &engine{})
		defer stop()
		for id, want := range map[string]string{"torn": "missing_required_parameter 1, invalid_json_line 2", "empty": "empty_file 0", "gone": "file_not_found 0"} {
			var have []string
			for _, e := range w.until(id, batch.Failed).Errors {
				have = append(have, fmt.Sprint(e.Code, " ", e.Line))
			}
			if s := strings.Join(have, ", "); s != want {
				t.Errorf("%s: %s; want %s", id, s, want)
			}
		}
	})
}

// TestRetries: a failure that may pass is tried again, later each time and never before its
// hint; what does not pass is given up with the last answer.
func TestRetries(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 4, time.Hour)
		at := map[int64][]float64{}
		var mu sync.Mutex
		_, stop := w.start(config("w"), &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			line := gjson.GetBytes(j.Body, "k").Int()
			mu.Lock()
			at[line] = append(at[line], time.Since(w.begun).Seconds())
			mu.Unlock()
			j.Started()
			switch {
			case line == 1 && n < 3: // passes in time
				return &batch.Answer{Status: 502, Body: []byte(`{}`), Retry: true}, nil
			case line == 2:
				return &batch.Answer{Status: 503, Body: []byte(`{"error":"poison"}`), Retry: true, Prompt: 1, Output: 1}, nil
			case line == 3:
				return nil, errors.New("the link broke")
			case line == 4 && n == 1:
				return &batch.Answer{Status: 429, Retry: true, RetryAfter: time.Minute}, nil
			}
			return answer(j), nil
		}})
		w.until("b", batch.Completed)
		stop()
		_, problems := w.whole("b", 4)
		slices.SortFunc(problems, func(x, y string) int {
			return strings.Compare(gjson.Get(x, "custom_id").Str, gjson.Get(y, "custom_id").Str)
		})
		for i, want := range []string{
			`{"id":"","custom_id":"c2","response":{"status_code":503,"request_id":"","body":{"error":"poison"}},"error":{"code":"attempts_exhausted","message":"The request failed 3 times and is given up. The last failure: status 503."}}`,
			`{"id":"","custom_id":"c3","response":null,"error":{"code":"attempts_exhausted","message":"The request failed 3 times and is given up. The last failure: the link broke."}}`,
		} {
			if stripIDs(problems[i]) != want {
				t.Errorf("%s\nwant %s", problems[i], want)
			}
		}
		for line := int64(1); line <= 3; line++ {
			if len(at[line]) != 3 {
				t.Fatalf("line %d ran at %v", line, at[line])
			}
			// The backoff is 2 s and then 4 s, spread down to the half; a wait is seen a poll later at most.
			first, second := at[line][1]-at[line][0], at[line][2]-at[line][1]
			if first < 1 || first > 3.1 || second < 2 || second > 5.1 {
				t.Errorf("line %d ran at %v", line, at[line])
			}
		}
		if len(at[4]) != 2 || at[4][1]-at[4][0] < 60 {
			t.Errorf("line 4 ran at %v, with a hint of a minute", at[4])
		}
	})
}

// TestRefused: what admission does not take is no fault of the item's, however often, and
// nothing of its class is offered before the hint.
func TestRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 30, time.Hour)
		closed := w.begun.Add(100 * time.Second)
		offered := 0
		var mu sync.Mutex
		_, stop := w.start(config("w"), &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			if time.Now().Before(closed) {
				mu.Lock()
				offered++
				mu.Unlock()
				return &batch.Answer{Status: 429, Retry: true, Refused: batch.RefusedClass, RetryAfter: 7 * time.Second}, nil
			}
			return answer(j), nil
		}})
		w.until("b", batch.Completed)
		stop()
		if _, problems := w.whole("b", 30); len(problems) > 0 {
			t.Errorf("failed: %v", problems)
		}
		if offered > 16 { // 100 s in steps of 7 s, one at a time
			t.Errorf("%d were offered to a gate that was closed", offered)
		}
	})
}

// gate is an admission that lets items start while it is open, one at a time.
type gate struct {
	mu          sync.Mutex
	open        chan struct{}
	queued, max int
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	g.queued++
	g.max = max(g.max, g.queued)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.queued--
		g.mu.Unlock()
	}()
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// before is how many are before the gate, and how many were at most.
func (g *gate) before() (now, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queued, g.max
}

// TestPaced: a gate that stays closed has few items before it, and still when it opens.
func TestPaced(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 300, time.Hour)
		g := &gate{open: make(chan struct{})}
		cfg := config("w")
		cfg.Pace.Ahead = 5
		_, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			if err := g.pass(ctx); err != nil {
				return nil, err
			}
			a := answer(j)
			time.Sleep(20 * time.Second)
			return a, nil
		}})
		time.Sleep(time.Minute)
		if _, most := g.before(); most != 1 {
			t.Errorf("%d are before a gate that never opened", most)
		}
		for range 300 {
			g.open <- struct{}{}
			synctest.Wait()
			if n, _ := g.before(); n > 5 {
				t.Fatalf("%d are before the gate", n)
			}
		}
		if _, most := g.before(); most != 5 {
			t.Errorf("%d were before the gate at most; want 5, or capacity waits for items", most)
		}
		w.until("b", batch.Completed)
		stop()
		w.whole("b", 300)
	})
}

// generate is an engine's work: so many tokens, one a second, from what was kept on.
func generate(ctx context.Context, j *batch.Job, tokens int, made *[]string, mu *sync.Mutex) (*batch.Answer, error) {
	j.Started()
	n := 0
	if j.Kept != nil {
		if err := json.Unmarshal(j.Kept, &n); err != nil {
			return nil, err
		}
	}
	kept := func() json.RawMessage { return fmt.Appendf(nil, "%d", n) }
	for n < tokens {
		select {
		case <-ctx.Done():
			j.Checkpoint(int64(n), kept)
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
		n++
		mu.Lock()
		*made = append(*made, fmt.Sprint(gjson.GetBytes(j.Body, "k").Int(), ".", n))
		mu.Unlock()
		j.Checkpoint(int64(n), kept)
	}
	return &batch.Answer{Status: 200, Body: []byte(`{}`), Output: int64(n)}, nil
}

// TestStop: a worker that stops gives back what it has and writes down how far it came; the
// next one goes on from there at once.
func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 3, time.Hour)
		var made []string
		var mu sync.Mutex
		e := &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			return generate(ctx, j, 20, &made, &mu)
		}}
		_, stop := w.start(config("w1"), e)
		time.Sleep(10*time.Second + time.Millisecond)
		stop()
		stopped := time.Since(w.begun)
		_, stop = w.start(config("w2"), e)
		w.until("b", batch.Completed)
		stop()
		w.whole("b", 3)
		if len(made) != 60 {
			t.Errorf("%d tokens were generated, of 60 that were needed", len(made))
		}
		if stopped > 10*time.Second+500*time.Millisecond {
			t.Errorf("it took until %s to stop", stopped)
		}
		if took := time.Since(w.begun); took > 22*time.Second {
			t.Errorf("it took %s, without a lease to wait for", took)
		}
	})
}

// cut is a store that can be cut off.
type cut struct {
	batch.Store
	mu  sync.Mutex
	off bool
}

var errAway = errors.New("the storage is away")

func (c *cut) set(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off
}

func (c *cut) away() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off {
		return errAway
	}
	return nil
}

func (c *cut) Waiting(ctx context.Context, now time.Time) ([]batch.Waiting, error) {
	if err := c.away(); err != nil {
		return nil, err
	}
	return c.Store.Waiting(ctx, now)
}

func (c *cut) Unfinished(ctx context.Context) ([]*batch.Batch, error) {
	if err := c.away(); err != nil {
		return nil, err
	}
	return c.Store.Unfinished(ctx)
}

func (c *cut) Claim(ctx context.Context, b, worker string, n int, after uint64, now, until time.Time) ([]batch.Claim, error) {
	if err := c.away(); err != nil {
		return nil, err
	}
	return c.Store.Claim(ctx, b, worker, n, after, now, until)
}

func (c *cut) Renew(ctx context.Context, worker string, now, until time.Time) error {
	if err := c.away(); err != nil {
		return err
	}
	return c.Store.Renew(ctx, worker, now, until)
}

func (c *cut) Save(ctx context.Context, cs []batch.Checkpoint, rs []batch.Retry, os []batch.Outcome, now time.Time) ([]error, error) {
	if err := c.away(); err != nil {
		return nil, err
	}
	return c.Store.Save(ctx, cs, rs, os, now)
}

func (c *cut) Hold(ctx context.Context, name, worker string, now, until time.Time) error {
	if err := c.away(); err != nil {
		return err
	}
	return c.Store.Hold(ctx, name, worker, now, until)
}

// TestTakeover: a worker that is cut off from the storage loses its items to another one
// once its lease is over, which goes on from what was kept. What the first one still
// writes counts for nothing.
func TestTakeover(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 3, time.Hour)
		var made []string
		var mu sync.Mutex
		e := &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			return generate(ctx, j, 30, &made, &mu)
		}}
		link := &cut{Store: w.store}
		cfg := config("w1")
		cfg.Store = link
		_, stop1 := w.start(cfg, e)
		time.Sleep(10*time.Second + time.Millisecond)
		link.set(true)
		at := time.Now()
		var made2 []string
		other := &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			if j.Kept == nil {
				t.Errorf("%s begins anew", j.Body)
			}
			if waited := time.Since(at); waited > 15*time.Second+time.Second {
				t.Errorf("it was taken over after %s", waited)
			}
			return generate(ctx, j, 30, &made2, &mu)
		}}
		_, stop2 := w.start(config("w2"), other)
		time.Sleep(17 * time.Second)
		link.set(false) // it comes back, and is told
		w.until("b", batch.Completed)
		stop1()
		stop2()
		w.whole("b", 3)
		if len(made2) == 0 || len(made2) > 3*21 { // checkpoints are 2 s apart
			t.Errorf("the second one generated %d tokens", len(made2))
		}
	})
}

// TestStorageAway: while the storage is away nothing is claimed and nothing lost; what items
// came to is written when it is back.
func TestStorageAway(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 200, time.Hour)
		link := &cut{Store: w.store}
		cfg := config("w")
		cfg.Store = link
		e := &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			time.Sleep(100 * time.Millisecond)
			return a, nil
		}}
		cfg.Pace.Concurrency = 4
		_, stop := w.start(cfg, e)
		time.Sleep(2 * time.Second)
		link.set(true)
		time.Sleep(200 * time.Millisecond)
		before := w.runs(e)
		time.Sleep(10 * time.Second)
		if after := w.runs(e); after != before {
			t.Errorf("%d items ran while nothing could be written", after-before)
		}
		link.set(false)
		w.until("b", batch.Completed)
		stop()
		w.whole("b", 200)
		if n := w.runs(e); n != 200 {
			t.Errorf("%d items ran, of 200", n)
		}
	})
}

func (w *world) runs(e *engine) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.runs {
		n += k
	}
	return n
}

// TestExpiry: what is not done when the window ends says so, and what runs is stopped.
func TestExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 2500, time.Minute)
		stopped := 0
		var mu sync.Mutex
		cfg := config("w")
		cfg.Pace.Concurrency = 10
		_, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			select {
			case <-time.After(7 * time.Second):
				return a, nil
			case <-ctx.Done():
				mu.Lock()
				stopped++
				mu.Unlock()
				return nil, ctx.Err()
			}
		}})
		b := w.until("b", batch.Expired)
		stop()
		output, problems := w.whole("b", 2500)
		if len(output) != 80 || stopped != 10 {
			t.Errorf("%d were done in time, %d were stopped", len(output), stopped)
		}
		if want := `{"id":"","custom_id":"c2500","response":null,"error":{"code":"batch_expired","message":"This request could not be executed before the completion window expired."}}`; stripIDs(problems[len(problems)-1]) != want {
			t.Errorf("%s", problems[len(problems)-1])
		}
		if late := b.ExpiredAt.Sub(b.Expires); late < 0 || late > 2*time.Second {
			t.Errorf("it expired %s late", late)
		}
	})
}

func TestCancel(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 50, time.Hour)
		cfg := config("w")
		cfg.Pace.Concurrency = 10
		worker, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			select {
			case <-time.After(7 * time.Second):
				return a, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
		time.Sleep(10 * time.Second)
		if _, err := w.store.Cancel(background, "t", "b", time.Now()); err != nil {
			t.Fatal(err)
		}
		worker.Wake()
		b := w.until("b", batch.Cancelled)
		stop()
		output, problems := w.whole("b", 50)
		if len(output) != 10 || gjson.Get(problems[0], "error.code").Str != "batch_cancelled" {
			t.Errorf("%d were done: %s", len(output), problems[0])
		}
		if took := b.CancelledAt.Sub(b.CancellingAt); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// fragile has one of the steps of a batch's end fail, as in a crash there.
type fragile struct{ at, calls int }

type fragileStore struct {
	batch.Store
	*fragile
}

type fragileFiles struct {
	batch.Files
	*fragile
}

var errCrash = errors.New("crash")

func (f *fragile) step() error {
	if f.calls++; f.calls == f.at {
		return errCrash
	}
	return nil
}

func (f fragileStore) Lapse(ctx context.Context, b string, limit int, now time.Time, write func(batch.Item) batch.Outcome) (int64, error) {
	if err := f.step(); err != nil {
		return 0, err
	}
	left, err := f.Store.Lapse(ctx, b, limit, now, write)
	return left, errors.Join(err, f.step())
}

func (f fragileStore) Finalize(ctx context.Context, b string, now time.Time) error {
	if err := f.step(); err != nil {
		return err
	}
	return errors.Join(f.Store.Finalize(ctx, b, now), f.step())
}

func (f fragileStore) Finish(ctx context.Context, b string, o, e *batch.File, now time.Time) error {
	if err := f.step(); err != nil {
		return err
	}
	return errors.Join(f.Store.Finish(ctx, b, o, e, now), f.step())
}

func (f fragileFiles) Create(ctx context.Context, id string) (batch.Upload, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	up, err := f.Files.Create(ctx, id)
	return fragileUpload{up, f.fragile}, err
}

type fragileUpload struct {
	batch.Upload
	f *fragile
}

func (u fragileUpload) Write(b []byte) (int, error) {
	if err := u.f.step(); err != nil {
		return 0, err
	}
	return u.Upload.Write(b)
}

func (u fragileUpload) Commit() error {
	if err := u.f.step(); err != nil {
		return err
	}
	return errors.Join(u.Upload.Commit(), u.f.step())
}

// TestEndInterrupted: wherever the end of a batch is interrupted, it is gone on with to the
// same files.
func TestEndInterrupted(t *testing.T) {
	var want string
	for at := 0; ; at++ {
		calls := 0
		inBubble(t, func(t *testing.T, w *world) {
			w.batch("b", 1500, time.Minute)
			f := &fragile{at: at}
			cfg := config("w")
			cfg.Store, cfg.Files = fragileStore{w.store, f}, fragileFiles{w.files, f}
			cfg.Pace = batch.Pace{Concurrency: 1, Ahead: 1, Quantum: 1, Reopen: time.Hour}
			_, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
				a := answer(j)
				time.Sleep(7 * time.Second)
				return a, nil
			}})
			b := w.until("b", batch.Expired)
			stop()
			calls = f.calls
			output, problems := w.whole("b", 1500)
			have := fmt.Sprint(b.Output, b.Error, output, problems)
			if at == 0 {
				want = have
			}
			if have != want {
				t.Errorf("with a crash at step %d the files are others", at)
			}
		})
		if at > 0 && at >= calls {
			if at < 12 {
				t.Errorf("the end has %d steps", at)
			}
			return
		}
	}
}

// TestSweeps: files past their time, contents of no file and batches that ended long ago are
// removed.
func TestSweeps(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 3, time.Hour)
		cfg := config("w")
		cfg.KeepOutput, cfg.KeepBatch = time.Hour, 48*time.Hour
		up, err := w.files.Create(background, "stray")
		w.must(err)
		w.must(up.Commit())
		_, stop := w.start(cfg, &engine{})
		defer stop()
		b := w.until("b", batch.Completed)
		w.lines(b.Output)
		time.Sleep(50 * time.Minute)
		w.lines(b.Output)
		time.Sleep(12 * time.Minute)
		if _, err := w.store.File(background, "t", b.Output); !errors.Is(err, batch.ErrNotFound) {
			t.Errorf("the output past its time: %v", err)
		}
		contents := func() (all []string) {
			w.must(w.files.Each(background, func(id string, _ time.Time) error { all = append(all, id); return nil }))
			return all
		}
		if c := contents(); !slices.Equal(c, []string{"in-b", "stray"}) {
			t.Errorf("there are %v", c)
		}
		time.Sleep(26 * time.Hour)
		if c := contents(); !slices.Equal(c, []string{"in-b"}) {
			t.Errorf("there are %v", c)
		}
		w.get("b")
		time.Sleep(22 * time.Hour)
		if _, err := w.store.Batch(background, "t", "b"); !errors.Is(err, batch.ErrNotFound) {
			t.Errorf("a batch that ended long ago: %v", err)
		}
	})
}

// unsure is a store of which some claims are made, and then said to have failed.
type unsure struct {
	batch.Store
	mu     sync.Mutex
	calls  int
	failed int
}

func (u *unsure) Claim(ctx context.Context, b, worker string, n int, after uint64, now, until time.Time) ([]batch.Claim, error) {
	claims, err := u.Store.Claim(ctx, b, worker, n, after, now, until)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls++; u.calls%3 == 0 && u.failed < 5 {
		u.failed++
		return nil, errors.Join(err, errAway)
	}
	return claims, err
}

// TestClaimUnsure: what a claim gave of which nobody heard is free again after a lease, though
// the worker that made it lives on and is busy.
func TestClaimUnsure(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 30, time.Hour)
		w.batch("long", 3000, time.Hour)
		cfg := config("w")
		cfg.Store = &unsure{Store: w.store}
		cfg.Pace.Concurrency = 10
		e := &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			time.Sleep(time.Second)
			return a, nil
		}}
		_, stop := w.start(cfg, e)
		w.until("b", batch.Completed)
		if took := time.Since(w.begun); took > time.Minute {
			t.Errorf("its last items were free after %s", took)
		}
		w.whole("b", 30)
		w.until("long", batch.Completed)
		stop()
		w.whole("long", 3000)
		// Both have lines that ask the same.
		if n := w.runs(e); n != 3030 {
			t.Errorf("%d items ran, of 3030", n)
		}
	})
}

// opened counts contents that are open.
type opened struct {
	batch.Files
	mu         sync.Mutex
	open, most int
}

func (o *opened) Open(ctx context.Context, id string) (batch.Content, error) {
	c, err := o.Files.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	o.add(1)
	return closing{c, o}, nil
}

func (o *opened) add(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open += n
	o.most = max(o.most, o.open)
}

func (o *opened) counts() (open, most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.open, o.most
}

type closing struct {
	batch.Content
	o *opened
}

func (c closing) Close() error {
	c.o.add(-1)
	return c.Content.Close()
}

// TestSideBySide: two workers share the items of batches, each of which runs once, and each
// has an input file open once.
func TestSideBySide(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 5 {
			w.batch(fmt.Sprint("b", i), 60, time.Hour)
		}
		e := &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			time.Sleep(time.Second)
			return a, nil
		}}
		var stops []func()
		var files []*opened
		for i := range 2 {
			cfg := config(fmt.Sprint("w", i))
			cfg.Pace.Concurrency = 8
			o := &opened{Files: w.files}
			files, cfg.Files = append(files, o), o
			_, stop := w.start(cfg, e)
			stops = append(stops, stop)
		}
		for i := range 5 {
			id := fmt.Sprint("b", i)
			w.until(id, batch.Completed)
			w.whole(id, 60)
		}
		for _, stop := range stops {
			stop()
		}
		if n := w.runs(e); n != 300 {
			t.Errorf("%d items ran, of 300", n)
		}
		synctest.Wait() // what a run had open it lets go of once its outcome is with the saver
		for _, o := range files {
			if open, most := o.counts(); open != 0 || most > 5+2 { // batches, and those that are read in
				t.Errorf("%d contents are open at the end, %d were at most", open, most)
			}
		}
		if took := time.Since(w.begun); took > 30*time.Second {
			t.Errorf("16 at a time took %s for 300 of a second each", took)
		}
	})
}

// TestMetrics: what operators see of a batch while it runs and once it has ended.
func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 6, time.Hour)
		reg := prometheus.NewRegistry()
		cfg := config("w")
		cfg.Metrics, cfg.Named = batch.NewMetrics(reg), func(tenant string) bool { return tenant == "t" }
		cfg.Pace = batch.Pace{Concurrency: 2, Ahead: 2, Quantum: 2, Reopen: time.Minute}
		worker, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			time.Sleep(10 * time.Second)
			line := gjson.GetBytes(j.Body, "k").Int()
			a.Loan = line%2 == 0
			j.Wasted(1)
			if line == 1 {
				a.Status = 400
			}
			if line == 2 && n == 1 {
				a.Status, a.Retry = 500, true
			}
			return a, nil
		}})
		defer stop()
		time.Sleep(13 * time.Second)
		shown := func(want ...string) {
			t.Helper()
			families, err := reg.Gather()
			w.must(err)
			var have []string
			for _, f := range families {
				for _, m := range f.GetMetric() {
					value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
					if value == 0 {
						continue
					}
					var labels []string
					for _, l := range m.GetLabel() {
						labels = append(labels, l.GetValue())
					}
					if f.GetName() == "headgate_batch_oldest_timestamp_seconds" {
						value -= float64(w.begun.UnixMilli()) / 1000
					}
					have = append(have, fmt.Sprintf("%s %s %g", strings.TrimPrefix(f.GetName(), "headgate_batch_"), strings.Join(labels, " "), value))
				}
			}
			if s, want := strings.Join(have, "\n"), strings.Join(want, "\n"); s != want {
				t.Errorf("after %s:\n%s\nwant:\n%s", time.Since(w.begun), s, want)
			}
		}
		shown("items batch claimed 2", "items batch ready 3", "items_done_total floor batch failed 1", "items_put_back_total failed batch 1",
			"oldest_timestamp_seconds batch 0", "output_tokens_total floor batch 2", "tenant_output_tokens_total floor t 2", "tenant_wasted_tokens_total t 2", "unfinished in_progress 1", "wasted_tokens_total batch 2")
		w.until("b", batch.Completed)
		time.Sleep(2 * time.Second)
		shown("items_done_total floor batch completed 2", "items_done_total floor batch failed 1", "items_done_total loan batch completed 3",
			"items_put_back_total failed batch 1", "output_tokens_total floor batch 6", "output_tokens_total loan batch 6",
			"tenant_output_tokens_total floor t 6", "tenant_output_tokens_total loan t 6", "tenant_wasted_tokens_total t 7", "wasted_tokens_total batch 7")
		if have, want := worker.Tenants(), []batch.TenantStatus{{Tenant: "t", Done: 6, Failed: 1, OnLoans: 3, Output: 12, OutputOnLoans: 6, Wasted: 7}}; !slices.Equal(have, want) {
			t.Errorf("%+v", have)
		}
	})
}

// gone are files that can't be reached until a moment.
type gone struct {
	batch.Files
	until time.Time
}

func (g gone) Open(ctx context.Context, id string) (batch.Content, error) {
	if time.Now().Before(g.until) {
		return nil, errors.New("no answer from the bucket")
	}
	return g.Files.Open(ctx, id)
}

// TestFilesAway: that the place of files can't be reached costs time, and no attempt.
func TestFilesAway(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 8, 3*time.Hour)
		cfg := config("w")
		worker, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			<-ctx.Done() // nothing is done in this life
			return nil, ctx.Err()
		}})
		worker.Wake()
		w.until("b", batch.InProgress)
		stop()
		cfg = config("v")
		cfg.Files = gone{w.files, time.Now().Add(10 * time.Minute)}
		_, stop = w.start(cfg, &engine{})
		b := w.until("b", batch.Completed)
		stop()
		if output, _ := w.whole("b", 8); len(output) != 8 || b.CompletedAt.Sub(w.begun) < 10*time.Minute {
			t.Errorf("%d lines, %v", len(output), b.CompletedAt.Sub(w.begun))
		}
	})
}

// TestEvents: an operator can follow a batch and its items in the journal.
func TestEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var lines bytes.Buffer
		jw := journal.NewWriter(&lines, journal.Options{Start: w.begun, Buffer: 1000})
		cfg := config("w")
		cfg.Events = batch.NewEvents(jw, w.begun)
		cfg.Pace = batch.Pace{Concurrency: 1, Ahead: 1, Quantum: 2, Reopen: time.Minute}
		cfg.CheckpointTokens = 10
		w.batch("b", 3, time.Hour)
		worker, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			j.Started()
			line := gjson.GetBytes(j.Body, "k").Int()
			switch {
			case line == 1 && n == 1:
				// 25 of 30 were told of, and 20 of them written: the rest goes.
				for output := range int64(26) {
					j.Checkpoint(output, func() json.RawMessage { return json.RawMessage("1") })
				}
				j.Wasted(5)
				return &batch.Answer{Status: 502, Body: []byte("{}"), Retry: true}, nil
			case line == 3:
				j.Checkpoint(12, func() json.RawMessage { return json.RawMessage("1") })
				<-ctx.Done()
				return nil, ctx.Err()
			}
			a := answer(j)
			a.Loan = true
			return a, nil
		}})
		time.Sleep(100 * time.Millisecond) // the third runs
		_, err := w.store.Cancel(background, "t", "b", time.Now())
		w.must(err)
		worker.Wake()
		w.until("b", batch.Cancelled)
		w.write("in-bad", "no JSON")
		w.create("bad", time.Hour)
		worker.Wake()
		w.until("bad", batch.Failed)
		stop()
		w.must(jw.Close())
		var have []string
		for r := journal.NewReader(&lines); ; {
			var e journal.Event
			if err := r.Next(&e); err != nil {
				break
			}
			if e.Batch == nil {
				continue
			}
			if e.Tenant != "t" || e.Principal != "k" || e.Class != "batch" || (e.Batch.Line > 0) != strings.HasPrefix(e.Request, "batch_req_") {
				t.Errorf("%+v", e)
			}
			have = append(have, strings.Join(strings.Fields(fmt.Sprint(e.Kind, " ", e.State, " ", e.Cause, " ", strings.ReplaceAll(fmt.Sprintf("%+v", *e.Batch), ":0", ":-"))), " "))
		}
		want := []string{
			"batch_started {ID:b Line:- Attempt:- Items:3 Failed:- WastedTokens:-}",
			"item_started {ID:b Line:1 Attempt:1 Items:- Failed:- WastedTokens:-}",
			"item_put_back failed {ID:b Line:1 Attempt:1 Items:- Failed:- WastedTokens:10}",
			"item_started {ID:b Line:2 Attempt:1 Items:- Failed:- WastedTokens:-}",
			"item_ended completed {ID:b Line:2 Attempt:1 Items:- Failed:- WastedTokens:-}",
			"item_started {ID:b Line:3 Attempt:1 Items:- Failed:- WastedTokens:-}",
			"item_put_back stopped {ID:b Line:3 Attempt:1 Items:- Failed:- WastedTokens:12}",
			"batch_finalizing {ID:b Line:- Attempt:- Items:3 Failed:2 WastedTokens:22}",
			"batch_ended cancelled {ID:b Line:- Attempt:- Items:3 Failed:2 WastedTokens:22}",
			"batch_ended failed invalid_json_line {ID:bad Line:- Attempt:- Items:- Failed:- WastedTokens:-}",
		}
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("(-want +have)\n%s", d)
		}
	})
}

// stuck are files of which some take for ever to open.
type stuck struct{ batch.Files }

func (s stuck) Open(ctx context.Context, id string) (batch.Content, error) {
	if strings.HasPrefix(id, "in-stuck") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Files.Open(ctx, id)
}

// TestReadingIsApart: input files that take long to read in keep no batch from its end.
func TestReadingIsApart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 20, time.Hour)
		cfg := config("w")
		cfg.Files = stuck{w.files}
		_, stop := w.start(cfg, &engine{run: func(ctx context.Context, j *batch.Job, n int) (*batch.Answer, error) {
			a := answer(j)
			time.Sleep(20 * time.Second)
			return a, nil
		}})
		w.until("b", batch.InProgress)
		for i := range 10 {
			w.batch(fmt.Sprint("stuck", i), 5, time.Hour)
		}
		w.until("b", batch.Completed)
		if took := time.Since(w.begun); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		stop()
		w.whole("b", 20)
	})
}

// TestTenantsInTurn: one tenant's batches, however many and long, don't keep another's from being read in.
func TestTenantsInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 10 {
			w.batch(fmt.Sprint("stuck", i), 1, time.Hour)
		}
		cfg := config("w")
		cfg.Files = stuck{w.files}
		worker, stop := w.start(cfg, &engine{})
		defer stop()
		time.Sleep(time.Second) // the first ones are being read
		w.must(w.store.CreateFile(background, &batch.File{ID: "in-v", Tenant: "u", Purpose: "batch"}, batch.Holdings{}))
		w.must(w.store.CreateBatch(background, &batch.Batch{ID: "v", Tenant: "u", Endpoint: "/v1/x", Window: time.Hour,
			Input: "in-v", Created: time.Now(), Expires: time.Now().Add(time.Hour)}, batch.Holdings{}))
		worker.Wake()
		time.Sleep(time.Minute)
		b, err := w.store.Batch(background, "u", "v")
		w.must(err)
		if b.Status != batch.Failed { // its content is gone, as was found
			t.Errorf("it is %s after a minute", b.Status)
		}
	})
}

// dropping is a store from which somebody drops results while they are read.
type dropping struct {
	*batchtest.Memory
	until time.Time
}

func (d dropping) Results(ctx context.Context, b string, failed bool, after int64, each func(int64, []byte) error) error {
	n := 0
	return d.Memory.Results(ctx, b, failed, after, func(place int64, line []byte) error {
		if n++; n > 1 && time.Now().Before(d.until) {
			return nil
		}
		return each(place, line)
	})
}

// TestPartOfResults: a worker that was overtaken while it read what there is, and found not all of it, puts
// no part in the place of the whole file.
func TestPartOfResults(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 3, time.Hour)
		cfg := config("w")
		cfg.Store = dropping{w.store, time.Now().Add(time.Minute)}
		_, stop := w.start(cfg, &engine{})
		defer stop()
		time.Sleep(30 * time.Second)
		w.must(w.files.Each(background, func(id string, _ time.Time) error {
			if id != "in-b" {
				t.Errorf("%s is there, of a part", id)
			}
			return nil
		}))
		w.until("b", batch.Completed)
		w.whole("b", 3)
	})
}

// TestPanic: an item that makes the runner panic is given up like one that fails, and the others are done.
func TestPanic(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 3, time.Hour)
		var log bytes.Buffer
		cfg := config("w")
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		_, stop := w.start(cfg, &engine{run: func(_ context.Context, j *batch.Job, _ int) (*batch.Answer, error) {
			if gjson.GetBytes(j.Body, "k").Int() == 2 {
				panic("of a prompt")
			}
			return answer(j), nil
		}})
		w.until("b", batch.Completed)
		stop()
		output, problems := w.whole("b", 3)
		if len(output) != 2 || gjson.Get(problems[0], "error.code").Str != "attempts_exhausted" {
			t.Errorf("output %v, errors %v", output, problems)
		}
		if !strings.Contains(log.String(), "stack=") || strings.Contains(log.String(), "of a prompt") {
			t.Errorf("log %s", &log)
		}
	})
}

// unread are files that can be opened, and not read until a moment.
type unread struct {
	batch.Files
	until time.Time
	tries *int
}

func (u unread) Open(ctx context.Context, id string) (batch.Content, error) {
	c, err := u.Files.Open(ctx, id)
	if err == nil && time.Now().Before(u.until) {
		*u.tries++
		time.Sleep(10 * time.Millisecond) // reading takes a while
		c = unreadable{c}
	}
	return c, err
}

type unreadable struct{ batch.Content }

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

// TestReadAgainLater: an input file that can't be read is tried again at the next look, and not at once.
func TestReadAgainLater(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.batch("b", 3, time.Hour)
		tries := 0
		cfg := config("w")
		cfg.Files = unread{w.files, time.Now().Add(10 * time.Second), &tries}
		_, stop := w.start(cfg, &engine{})
		w.until("b", batch.Completed)
		stop()
		if tries < 2 || tries > 20 {
			t.Errorf("it was read %d times in 10 s", tries)
		}
		w.whole("b", 3)
	})
}
