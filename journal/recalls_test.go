package journal

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

// TestRecalls reads a journal and prints what every event was to a recall, and
// the records in the end.
func TestRecalls(t *testing.T) {
	in, err := os.ReadFile("testdata/recalls.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var l Recalls
	var out strings.Builder
	for r := NewReader(bytes.NewReader(in)); ; {
		var e Event
		if err := r.Next(&e); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		told := ""
		if step, after := l.Note(&e); step != "" {
			told = fmt.Sprintf(": %s after %v", step, after)
		}
		fmt.Fprintf(&out, "%v %s recall %d%s\n", time.Duration(e.Mono), e.Kind, e.Recall, told)
	}
	for _, r := range l.Last(MaxRecalls) {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s\n", b)
	}
	const golden = "testdata/recalls.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", golden, d)
	}
}

// TestRecallsAreBounded: whatever happens, the newest recalls are kept, newest
// first, each with its own events, and no more reclaims than have room.
func TestRecallsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Recalls
		opened := uint64(rapid.IntRange(0, 3*MaxRecalls).Draw(t, "recalls"))
		for seq := uint64(1); seq <= opened; seq++ {
			l.Note(&Event{Kind: RecallOpened, Recall: seq, For: "r", Mono: int64(seq)})
		}
		closed := uint64(rapid.IntRange(1, 3*MaxRecalls).Draw(t, "closed"))
		for range 2 { // the second time is too late
			l.Note(&Event{Kind: RecallClosed, Recall: closed, Mono: int64(closed + 7)})
		}
		ended := uint64(rapid.IntRange(1, 3*MaxRecalls).Draw(t, "reclaimed for"))
		reclaims := rapid.IntRange(0, 2*maxReclaims).Draw(t, "reclaims")
		for hold := range uint64(reclaims) {
			l.Note(&Event{Kind: Ended, Cause: "reclaimed", Recall: ended, For: "r", Request: "b", Hold: hold})
		}
		got := l.Last(rapid.IntRange(-1, 2*MaxRecalls).Draw(t, "last"))
		for i, r := range got {
			want := Recall{Seq: opened - uint64(i), Request: "r", Opened: int64(opened) - int64(i)}
			if want.Seq == closed {
				want.Closed = int64(closed + 7)
			}
			kept := 0
			if want.Seq == ended && want.Closed == 0 {
				kept = min(reclaims, maxReclaims)
				want.LeftOut = reclaims - kept
			}
			if n := len(r.Reclaims); n != kept {
				t.Fatalf("recall %d has %d reclaims: want %d", r.Seq, n, kept)
			}
			r.Reclaims = nil
			if d := cmp.Diff(want, r); d != "" {
				t.Fatalf("(-want +got):\n%s", d)
			}
		}
		if all := l.Last(1 << 20); len(all) != min(int(opened), MaxRecalls) || len(got) > len(all) {
			t.Fatalf("%d records, %d of the newest: want at most %d of %d", len(all), len(got), MaxRecalls, opened)
		}
		if len(got) > 0 {
			got[0].Reclaims = append(got[0].Reclaims, Reclaim{})
			got[0].Closed = -1
			if slices.ContainsFunc(l.Last(1), func(r Recall) bool { return r.Closed == -1 }) {
				t.Fatal("a copy is not one")
			}
		}
	})
}

// Who looks again and again is told of each record that may have changed, and of no other.
func TestRecallsSince(t *testing.T) {
	var l Recalls
	if all, v := l.Since(0); len(all) != 0 || v != 0 {
		t.Errorf("of nothing: %v, version %d", all, v)
	}
	for seq := range uint64(3) {
		l.Note(&Event{Kind: RecallOpened, Recall: seq + 1, For: "r", Mono: 1})
	}
	seqs := func(all []Recall) (out []uint64) {
		for _, r := range all {
			out = append(out, r.Seq)
		}
		return out
	}
	all, v := l.Since(0)
	if d := cmp.Diff([]uint64{1, 2, 3}, seqs(all)); d != "" {
		t.Errorf("of all (-want +got):\n%s", d)
	}
	l.Note(&Event{Kind: RecallSettled, Recall: 2, Mono: 5})
	l.Note(&Event{Kind: Ended, Recall: 1, Request: "loan", For: "r", Cause: "reclaimed", Mono: 6})
	l.Note(&Event{Kind: RecallSettled, Recall: 9, Mono: 7}) // of which nothing is known
	all, v2 := l.Since(v)
	if d := cmp.Diff([]uint64{2, 1}, seqs(all)); d != "" {
		t.Errorf("what has changed (-want +got):\n%s", d)
	}
	if all[0].Settled != 5 || len(all[1].Reclaims) != 1 {
		t.Errorf("not as they are now: %+v", all)
	}
	if all, _ := l.Since(v2); len(all) != 0 {
		t.Errorf("nothing has changed since, and got %v", seqs(all))
	}
	for seq := range uint64(MaxRecalls) {
		l.Note(&Event{Kind: RecallOpened, Recall: seq + 10, For: "r", Mono: 8})
	}
	if all, _ := l.Since(v2); len(all) != MaxRecalls || all[0].Seq != 10 {
		t.Errorf("a full ring: %d records, the first %d", len(all), all[0].Seq)
	}
}
