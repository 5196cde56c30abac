package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"
)

func opts(buffer int) Options { return Options{Buffer: buffer, Start: time.Now(), Version: "v0"} }

// readAll returns the events of a journal and how many lines were torn.
func readAll(t testing.TB, b []byte) ([]Event, int) {
	t.Helper()
	var all []Event
	r := NewReader(bytes.NewReader(b))
	for {
		var e Event
		err := r.Next(&e)
		if err == io.EOF {
			return all, r.Torn()
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		all = append(all, e)
	}
}

func kindsOf(events []Event) string {
	var s []string
	for _, e := range events {
		s = append(s, string(e.Kind))
	}
	return strings.Join(s, " ")
}

func TestFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := NewWriter(&out, opts(64))
		time.Sleep(1500 * time.Millisecond)
		w.Append(&Event{Kind: Admitted, Mono: int64(1500 * time.Millisecond), Pool: "main", Engine: "gpu0", Class: "batch",
			Tenant: "team-a", Principal: "alice", Request: "r<1>", Hold: 7, Loan: true, PromptTokens: 100, MaxTokens: 50,
			ReservedTokens: 160, QueueNS: 12, Revision: 1})
		time.Sleep(time.Second)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want := `{"seq":1,"ts":"2000-01-01T00:00:00Z","mono_ns":0,"kind":"started","version":"v0"}
{"seq":2,"ts":"2000-01-01T00:00:01.5Z","mono_ns":1500000000,"kind":"admitted","pool":"main","engine":"gpu0","class":"batch","tenant":"team-a","principal":"alice","request":"r<1>","hold":7,"loan":true,"prompt_tokens":100,"max_tokens":50,"reserved_tokens":160,"queue_ns":12,"revision":1}
{"seq":3,"ts":"2000-01-01T00:00:02.5Z","mono_ns":2500000000,"kind":"stopped"}
`
		if d := cmp.Diff(want, out.String()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func TestFlushesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &gate{}
		w := NewWriter(out, opts(MinBuffer))
		w.Append(&Event{Kind: Arrived})
		synctest.Wait()
		if got := out.Bytes(); len(got) != 0 {
			t.Errorf("written before the interval: %s", got)
		}
		time.Sleep(flushEvery + 1)
		synctest.Wait()
		if got, _ := readAll(t, out.Bytes()); kindsOf(got) != "started arrived" {
			t.Errorf("after the interval: %s", kindsOf(got))
		}
		// A burst does not wait for the interval.
		for range MinBuffer / 2 {
			w.Append(&Event{Kind: Progress})
		}
		synctest.Wait()
		if got, _ := readAll(t, out.Bytes()); len(got) != 2+MinBuffer/2 {
			t.Errorf("half a buffer was not written at once: %s", kindsOf(got))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// addUp checks that every number up to the last is an event's or told as lost.
func addUp(t testing.TB, events []Event) {
	t.Helper()
	var last uint64
	for i, e := range events {
		want := last + 1
		if e.Kind == Dropped {
			want = last + e.Count
		}
		if e.Seq != want {
			t.Fatalf("event %d, %s: want seq %d, got %d", i, e.Kind, want, e.Seq)
		}
		last = e.Seq
	}
}

// gate is a file that blocks, fails or cuts short on demand.
type gate struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	take   func(b []byte) (int, error)
	synced int
	closed int
}

func (g *gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := len(b), error(nil)
	if g.take != nil {
		n, err = g.take(b)
	}
	_, _ = g.buf.Write(b[:n])
	return n, err
}
func (g *gate) fail(take func(b []byte) (int, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.take = take
}
func (g *gate) Bytes() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.Clone(g.buf.Bytes())
}
func (g *gate) Sync() error  { g.synced++; return nil }
func (g *gate) Close() error { g.closed++; return nil }

func TestFullBufferDropsAndTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := &gate{}
		g.take = func(b []byte) (int, error) { <-release; return len(b), nil }
		w := NewWriter(g, opts(MinBuffer))
		time.Sleep(flushEvery + 1)
		synctest.Wait() // the file holds the started event

		for range MinBuffer + 5 { // the last 5 find no room
			w.Append(&Event{Kind: Arrived})
		}
		if s := w.Stats(); s.Dropped != 5 {
			t.Errorf("want 5 dropped, got %d", s.Dropped)
		}
		close(release)
		synctest.Wait()
		time.Sleep(flushEvery + 1)
		w.Append(&Event{Kind: Finished})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, _ := readAll(t, g.Bytes())
		want := "started " + strings.Repeat("arrived ", MinBuffer) + "dropped finished stopped"
		if kindsOf(got) != want {
			t.Errorf("\nwant %s\ngot  %s", want, kindsOf(got))
		}
		addUp(t, got)
		if s := w.Stats(); s.Written != uint64(len(got)) || s.Dropped != 5 || s.Err != nil {
			t.Errorf("stats %+v, want %d written, 5 dropped", s, len(got))
		}
		w.Append(&Event{Kind: Arrived})
		if s := w.Stats(); s.Dropped != 6 {
			t.Errorf("an event after Close: want 6 dropped, got %d", s.Dropped)
		}
		if err := w.Close(); err != nil || g.synced != 1 || g.closed != 1 {
			t.Errorf("closing twice: %v, synced %d, closed %d times", err, g.synced, g.closed)
		}
	})
}

func TestFullDisk(t *testing.T) {
	full := errors.New("no space left")
	for name, short := range map[string]int{"nothing taken": 0, "one line and a part": 120} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &gate{}
				w := NewWriter(g, opts(MinBuffer))
				time.Sleep(flushEvery + 1)
				synctest.Wait()
				cut := short
				g.fail(func(b []byte) (int, error) { n := min(cut, len(b)); cut = 0; return n, full })
				for range 3 {
					w.Append(&Event{Kind: Arrived})
				}
				time.Sleep(5 * flushEvery)
				synctest.Wait()
				if s := w.Stats(); !errors.Is(s.Err, full) {
					t.Errorf("want the failure in Stats, got %v", s.Err)
				}
				g.fail(nil)
				w.Append(&Event{Kind: Finished})
				if err := w.Close(); err != nil {
					t.Errorf("writing works again, yet Close says %v", err)
				}
				got, torn := readAll(t, g.Bytes())
				want, count, wantTorn := "started dropped finished stopped", uint64(3), 0
				if short > 0 {
					want, count, wantTorn = "started arrived dropped finished stopped", 2, 1
				}
				if kindsOf(got) != want || torn != wantTorn {
					t.Errorf("\nwant %s, %d torn\ngot  %s, %d torn\n%s", want, wantTorn, kindsOf(got), torn, g.Bytes())
				}
				addUp(t, got)
				for _, e := range got {
					if e.Kind == Dropped && e.Count != count {
						t.Errorf("told as dropped: want %d, got %d", count, e.Count)
					}
				}
			})
		})
	}
}

func TestDiskFullToTheEnd(t *testing.T) {
	full := errors.New("no space left")
	g := &gate{take: func([]byte) (int, error) { return 0, full }}
	w := NewWriter(g, opts(MinBuffer))
	if err := w.Close(); !errors.Is(err, full) {
		t.Errorf("want %v, got %v", full, err)
	}
	if g.closed != 1 {
		t.Error("the file was not closed")
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	run := func(kind Kind) {
		t.Helper()
		w, err := Open(path, opts(MinBuffer))
		if err != nil {
			t.Fatal(err)
		}
		w.Append(&Event{Kind: kind})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run(Arrived)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("want mode 0600, got %v, %v", info.Mode(), err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A crash within the last line; then the next run appends.
	if err := os.WriteFile(path, whole[:len(whole)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	run(Queued)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, torn := readAll(t, b)
	if want := "started arrived started queued stopped"; kindsOf(got) != want || torn != 1 {
		t.Errorf("want %s and 1 torn, got %s and %d", want, kindsOf(got), torn)
	}
	if _, err := Open(filepath.Join(path, "below-a-file"), opts(MinBuffer)); err == nil || !strings.Contains(err.Error(), "open journal") {
		t.Errorf("want an error that says what was attempted, got %v", err)
	}
}

func TestReaderIsStrict(t *testing.T) {
	const ok = `{"seq":1,"ts":"2000-01-01T00:00:00Z","mono_ns":0,"kind":"arrived"}` + "\n"
	const started = `{"seq":1,"ts":"2000-01-01T00:00:00Z","mono_ns":0,"kind":"started"}` + "\n"
	for _, tt := range []struct{ name, in, want string }{
		{"empty", "", "0 events, 0 torn: EOF"},
		{"torn tail", ok + ok[:20], "1 events, 1 torn: EOF"},
		{"zeros after a power loss", ok + "\x00\x00\x00", "1 events, 1 torn: EOF"},
		{"whole tail without its end", ok + strings.TrimSpace(ok), "2 events, 0 torn: EOF"},
		{"torn before a start", ok + ok[:20] + "\n" + started + ok, "3 events, 1 torn: EOF"},
		{"torn twice before a start", ok[:20] + "\n" + ok[:9] + "\n" + started, "1 events, 2 torn: EOF"},
		{"torn twice at the end", ok + ok[:20] + "\n" + ok[:9], "1 events, 2 torn: EOF"},
		{"torn in the middle", ok + ok[:20] + "\n" + ok, "1 events, 0 torn: journal line 2: unexpected end of JSON input"},
		{"a bad last line", ok + ok[:20] + "\n", "1 events, 0 torn: journal line 2: unexpected end of JSON input"},
		{"unknown kind", ok + strings.Replace(ok, "arrived", "teleported", 1) + started, `1 events, 0 torn: journal line 2: event kind "teleported" is not known to this version`},
		{"no kind", "{}\n" + started, "0 events, 0 torn: journal line 1: no kind: allowed is an event of this journal"},
		{"another shape", "[1]\n" + started, "0 events, 0 torn: journal line 1: json: cannot unmarshal array into Go value of type journal.Event"},
		{"endless line", ok + strings.Repeat("x", maxLine+1), "1 events, 0 torn: journal line 2: longer than the allowed 65536 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReader(strings.NewReader(tt.in))
			var e Event
			n := 0
			for r.Next(&e) == nil {
				n++
			}
			err := r.Next(&e)
			if got := strings.TrimSpace(strings.Join([]string{itoa(n), "events,", itoa(r.Torn()), "torn:", err.Error()}, " ")); got != tt.want {
				t.Errorf("\nwant %s\ngot  %s", tt.want, got)
			}
		})
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// TestRoundTrip: what is appended is what is read, with its place and time.
func TestRoundTrip(t *testing.T) {
	var known []string
	for k := range kinds {
		known = append(known, string(k))
	}
	slices.Sort(known)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String()
		count := rapid.Int64Range(0, 1<<40)
		var in []Event
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			in = append(in, Event{
				Mono: rapid.Int64Range(0, 1<<55).Draw(t, "mono"), Kind: Kind(rapid.SampledFrom(known).Draw(t, "kind")),
				Pool: name.Draw(t, "pool"), Engine: name.Draw(t, "engine"), Class: name.Draw(t, "class"),
				Request: name.Draw(t, "request"), Hold: rapid.Uint64().Draw(t, "hold"), Loan: rapid.Bool().Draw(t, "loan"),
				Cause: name.Draw(t, "cause"), Status: rapid.IntRange(0, 599).Draw(t, "status"),
				PromptTokens: count.Draw(t, "prompt"), MaxTokens: count.Draw(t, "max"), OutputTokens: count.Draw(t, "output"),
				ScheduledNS: count.Draw(t, "from"), ScheduledUpperNS: count.Draw(t, "to"), Revision: rapid.Uint64().Draw(t, "rev"),
			})
		}
		var out bytes.Buffer
		o := opts(64)
		w := NewWriter(&out, o)
		for i := range in {
			w.Append(&in[i])
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r := NewReader(&out)
		var e Event
		if err := r.Next(&e); err != nil || e.Kind != Started {
			t.Fatalf("first: %v, %v", e.Kind, err)
		}
		for i, want := range in {
			if err := r.Next(&e); err != nil {
				t.Fatal(err)
			}
			want.Seq = uint64(i + 2)
			want.TS = o.Start.Add(time.Duration(want.Mono)).UTC()
			if d := cmp.Diff(want, e); d != "" {
				t.Fatalf("event %d (-want +got):\n%s", i, d)
			}
		}
		if err := r.Next(&e); err != nil || e.Kind != Stopped {
			t.Fatalf("last: %v, %v", e.Kind, err)
		}
		if err := r.Next(&e); err != io.EOF || r.Torn() != 0 {
			t.Fatalf("end: %v, %d torn", err, r.Torn())
		}
	})
}

// TestConcurrentAppend: every event is in the file once or counted as dropped.
func TestConcurrentAppend(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, opts(MinBuffer))
	const writers, each = 8, 2000
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				w.Append(&Event{Kind: Progress})
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(t, out.Bytes())
	addUp(t, got)
	var progress, lost uint64
	for _, e := range got {
		lost += e.Count
		if e.Kind == Progress {
			progress++
		}
	}
	if progress+lost != writers*each || w.Stats().Dropped != lost {
		t.Errorf("%d in the file, %d told as dropped, %d counted as dropped: want %d in all", progress, lost, w.Stats().Dropped, writers*each)
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	w := NewWriter(io.Discard, opts(1<<16))
	e := Event{Kind: Progress, Pool: "main", Request: "r1"}
	if n := testing.AllocsPerRun(1000, func() { w.Append(&e) }); n != 0 {
		t.Errorf("want 0 allocations, got %v", n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMetrics(t *testing.T) {
	g := &gate{}
	w := NewWriter(g, opts(MinBuffer))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.Append(&Event{Kind: Arrived}) // too late
	want := `# HELP headgate_journal_dropped_total Events that the journal lost, because its buffer was full or its file did not take them. Moves when the disk is slow or full.
# TYPE headgate_journal_dropped_total counter
headgate_journal_dropped_total 1
# HELP headgate_journal_written_total Events that the journal's file took.
# TYPE headgate_journal_written_total counter
headgate_journal_written_total 2
`
	if err := testutil.CollectAndCompare(w, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestConfigValidate(t *testing.T) {
	var c Config
	c.SetDefaults()
	bad := func(path string, value any, allowed string) { t.Errorf("%s: %v: %s", path, value, allowed) }
	c.Validate(bad)
	for _, n := range []int{0, MinBuffer - 1, MaxBuffer + 1} {
		refused := false
		(&Config{Buffer: n}).Validate(func(string, any, string) { refused = true })
		if !refused {
			t.Errorf("buffer %d is accepted", n)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"seq":1,"ts":"2000-01-01T00:00:00Z","mono_ns":0,"kind":"arrived"}` + "\n" + `{"seq":`))
	f.Add([]byte("{}\n\n{\"kind\":\"started\"}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		var e Event
		events := 0
		for r.Next(&e) == nil {
			if !kinds[e.Kind] {
				t.Fatalf("an event of kind %q", e.Kind)
			}
			events++
		}
		if lines := bytes.Count(b, []byte{'\n'}) + 1; events+r.Torn() > lines {
			t.Fatalf("%d events and %d torn lines out of %d lines", events, r.Torn(), lines)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	w := NewWriter(io.Discard, opts(8192))
	e := Event{Kind: Progress, Pool: "main", Engine: "gpu0", Class: "batch", Request: "0123456789", OutputTokens: 16}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%2048 == 0 { // as if the file had kept up: dropping would be cheaper
			w.mu.Lock()
			w.buf = w.buf[:0]
			w.mu.Unlock()
		}
		w.Append(&e)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	if s := w.Stats(); s.Dropped > 0 {
		b.Fatalf("%d events were dropped", s.Dropped)
	}
}

// BenchmarkEncode is what the writing goroutine can keep up with.
func BenchmarkEncode(b *testing.B) {
	w := newWriter(io.Discard, opts(MinBuffer), false)
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	e := Event{Kind: Progress, Pool: "main", Engine: "gpu0", Class: "batch", Tenant: "team-a", Request: "0123456789", OutputTokens: 16}
	b.ReportAllocs()
	for b.Loop() {
		w.lines.Reset()
		w.encode(&e)
	}
}
