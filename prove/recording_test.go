package prove

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/journal"
	"headgate/prove/provetest"
)

// tenMinutes is a journal that is whole.
func tenMinutes(t testing.TB) []journal.Event {
	return written(t, provetest.Day(5, 10*time.Minute, 0.5, true), observedArm(engineOf(0.1)), 10*time.Minute, admission.Objective{First: time.Second})
}

// TestRotated: files in any order, compressed or not, are the whole journal.
func TestRotated(t *testing.T) {
	whole := provetest.Lines(tenMinutes(t))
	want, err := Record(Source{Files: []string{file(t, "j.jsonl", whole)}})
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.SplitAfter(whole, []byte("\n"))
	part := func(from, to int) []byte { return bytes.Join(all[from:to], nil) }
	cut := part(700, len(all))
	files := []string{
		file(t, "j.jsonl", append(slices.Clone(cut), `{"seq":99999,"ts":"20`...)), // still written
		file(t, "j.jsonl.2.gz", squeezed(t, part(0, 400))), file(t, "j.jsonl.1", part(400, 700)),
	}
	have, err := Record(Source{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	if have.Files[0] != files[1] || have.Files[2] != files[0] {
		t.Errorf("the order is %v", have.Files)
	}
	have.Files = want.Files
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("(-whole +rotated):\n%s", d)
	}
	for _, f := range files {
		if !IsJournal(f) {
			t.Errorf("%s is taken for something else", f)
		}
	}
	if IsJournal(file(t, "azure.csv", []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n"))) {
		t.Error("a log is taken for a journal")
	}

	// Without its beginning it is a shorter journal; what began before is known to be missing.
	late, err := Record(Source{Files: files[:1]})
	if err != nil {
		t.Fatal(err)
	}
	if late.Before == 0 || len(late.Requests)+late.Before >= len(want.Requests) {
		t.Errorf("%d requests and %d that began before, of %d", len(late.Requests), late.Before, len(want.Requests))
	}
}

// TestSpan: --from and --to choose requests by their arrival.
func TestSpan(t *testing.T) {
	path := file(t, "j.jsonl", provetest.Lines(tenMinutes(t)))
	from, to := provetest.Start.Add(2*time.Minute), provetest.Start.Add(8*time.Minute)
	r, err := Record(Source{Files: []string{path}, From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Start.Equal(from) || r.Length != 6*time.Minute {
		t.Errorf("from %v, %v long", r.Start, r.Length)
	}
	n := 0
	for _, e := range provetest.Day(5, 10*time.Minute, 0.5, true) {
		n += one(e.Arrival >= 2*time.Minute && e.Arrival < 8*time.Minute)
	}
	if got := len(r.Requests) + r.Unfinished; got != n {
		t.Errorf("%d requests, want %d", got, n)
	}
}

// TestRefused: what can't be believed is refused, with what is wrong and what is allowed.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		break_ func([]journal.Event) []journal.Event
		source Source
		want   string
	}{
		{"a line is missing", func(e []journal.Event) []journal.Event { return slices.Delete(e, 200, 203) }, Source{}, "events 201 to 203 are missing between 2026-03-02T00:"},
		{"dropped", func(e []journal.Event) []journal.Event {
			e[300] = journal.Event{Seq: 301, TS: e[300].TS, Mono: e[300].Mono, Kind: journal.Dropped, Count: 7}
			return e
		}, Source{}, "7 events were dropped between 2026-03-02T00:"},
		{"a crash", func(e []journal.Event) []journal.Event {
			for i := 300; i < len(e); i++ {
				e[i].Seq -= 299
			}
			return slices.Insert(e, 300, journal.Event{Seq: 1, TS: e[299].TS, Mono: e[299].Mono, Kind: journal.Started})
		}, Source{}, "the process ended without writing so"},
		{"twice", func(e []journal.Event) []journal.Event { return append(e, e[len(e)-50:]...) }, Source{}, "comes after event"},
		{"all of it twice", func(e []journal.Event) []journal.Event {
			last := e[len(e)-1]
			e = append(e, journal.Event{Seq: last.Seq + 1, TS: last.TS, Mono: last.Mono, Kind: journal.Stopped})
			again := slices.Clone(e)
			again[0].Kind = journal.Started
			return append(e, again...)
		}, Source{}, "a process began at 2026-03-02T00:"},
		{"no output tokens", func(e []journal.Event) []journal.Event {
			for i := range e {
				e[i].OutputTokens = 0
			}
			return e
		}, Source{}, "the journal has no token counts: "},
		{"nothing ended", func(e []journal.Event) []journal.Event { return e[:1] }, Source{}, "no request ended"},
		{"forwarded", func(e []journal.Event) []journal.Event {
			e[20].Kind, e[20].Peer = journal.Forwarded, "other"
			return e
		}, Source{}, "a fleet whose replicas forward"},
		{"both modes", func(e []journal.Event) []journal.Event {
			for i := range e[:len(e)/2] {
				e[i].Shadow = false
			}
			return e
		}, Source{}, "observed for a part of the time and enforced for another"},
		{"two pools", func(e []journal.Event) []journal.Event {
			for i := range e {
				if e[i].Class == "batch" {
					e[i].Pool = "second"
				}
			}
			return e
		}, Source{}, "several pools, main, second: --pool chooses"},
		{"another pool", func(e []journal.Event) []journal.Event { return e }, Source{Pool: "odd"}, `--pool is "odd": the journal's are main`},
		{"two engines", func(e []journal.Event) []journal.Event {
			for i := range e {
				if e[i].Engine != "" && i%2 == 0 {
					e[i].Engine = "gpu1"
				}
			}
			return e
		}, Source{}, "has 2 engines, gpu0, gpu1: allowed is one at a time; --engine-name"},
		{"another engine", func(e []journal.Event) []journal.Event { return e }, Source{Engine: "odd"}, `--engine-name is "odd": the engines of pool main that served requests are gpu0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.source.Files = []string{file(t, "j.jsonl", provetest.Lines(tt.break_(tenMinutes(t))))}
			_, err := Record(tt.source)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("want %q, got %v", tt.want, err)
			}
		})
	}
	// A line that is torn in the middle is a gap; outside of the span it is none.
	all := bytes.SplitAfter(provetest.Lines(tenMinutes(t)), []byte("\n"))
	torn := bytes.Join(append(append(slices.Clone(all[:300]), all[300][:40], []byte("\n"), []byte(`{"seq":302,"ts":"2026-03-02T00:02:00Z","mono_ns":120000000000,"kind":"dropped","count":1}`+"\n")), all[302:]...), nil)
	path := file(t, "torn.jsonl", torn)
	if _, err := Record(Source{Files: []string{path}}); err == nil || !strings.Contains(err.Error(), "a line is torn between") {
		t.Errorf("torn: %v", err)
	}
	if _, err := Record(Source{Files: []string{path}, From: provetest.Start.Add(3 * time.Minute)}); err != nil {
		t.Errorf("torn before the span: %v", err)
	}
	if _, err := Record(Source{}); err == nil {
		t.Error("no file is a journal")
	}
}

// TestStopped: an orderly restart is none, and is told.
func TestStopped(t *testing.T) {
	e := tenMinutes(t)
	at := e[300]
	for i := 300; i < len(e); i++ {
		e[i].Seq -= 299
	}
	e = slices.Insert(e, 300,
		journal.Event{Seq: 301, TS: at.TS, Mono: at.Mono, Kind: journal.Stopped},
		journal.Event{Seq: 1, TS: at.TS.Add(time.Millisecond), Mono: at.Mono + 1e6, Kind: journal.Started})
	r, err := Record(Source{Files: []string{file(t, "j.jsonl", provetest.Lines(e))}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Restarts != 1 || r.Down != time.Millisecond {
		t.Errorf("%d restarts, %v down", r.Restarts, r.Down)
	}
}
