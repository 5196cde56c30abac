package trace

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func read(t *testing.T, file, text, class string) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text), file, class)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func ids(t *Trace) []string {
	var ids []string
	for i := range t.Entries {
		ids = append(ids, t.Entries[i].ID)
	}
	return ids
}

func TestMix(t *testing.T) {
	chat, code := read(t, "chat.csv", burstGPT, Interactive), read(t, "code.csv", azure, Batch)
	m, err := Mix(chat, code)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"batch-1", "batch-2", "interactive-1", "interactive-3", "batch-3"}; !slices.Equal(ids(m), want) {
		t.Errorf("order %v, want %v", ids(m), want)
	}
	if m.Profile != "chat:code" || m.Skipped != 1 || m.Protocol != Imported || m.Workload != code.Workload {
		t.Errorf("profile %s, %d left out, protocol %s, %+v", m.Profile, m.Skipped, m.Protocol, m.Workload)
	}
	if len(ids(chat)) != 2 || len(ids(code)) != 3 {
		t.Error("mixing changed what was mixed")
	}
	// What is mixed can be written and read like any other trace.
	again, err := Published(strings.NewReader(written(t, m)), "f.json")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, again); d != "" {
		t.Error(d)
	}
	if _, err := Mix(code, code); err == nil || err.Error() != "trace code: id batch-1 is in another trace of the mix too: allowed are ids that no two have" {
		t.Errorf("the same log twice: %v", err)
	}
	long := &Trace{Profile: strings.Repeat("x", 100)}
	if m, err := Mix(long, long); err != nil || !validName(m.Profile) {
		t.Errorf("profile %s, %v", m.Profile, err)
	}
}

func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := drawLog(t)
		n := rapid.IntRange(0, len(tr.Entries)+1).Draw(t, "requests")
		d := rapid.SampledFrom([]time.Duration{0, 1, tr.Entries[0].Arrival, tr.Entries[len(tr.Entries)-1].Arrival}).Draw(t, "duration")
		before := tr.Hash()
		cut := tr.Cut(n, d)
		want := []Entry{}
		for _, e := range tr.Entries {
			if (n == 0 || len(want) < n) && (d == 0 || e.Arrival < d) {
				want = append(want, e)
			}
		}
		if diff := cmp.Diff(want, cut.Entries); diff != "" {
			t.Fatalf("%d entries (-want +have):\n%s", len(cut.Entries), diff)
		}
		if len(want) > 0 && cut.Workload.DurationMs != int(want[len(want)-1].Arrival/time.Millisecond)+1 {
			t.Fatalf("the end is %d ms", cut.Workload.DurationMs)
		}
		if tr.Hash() != before {
			t.Fatal("cutting changed what was cut")
		}
	})
	if tr := generate(t, "metal-balanced-v1", 1); tr.Cut(3, time.Second) != tr {
		t.Error("a published trace was cut")
	}
}
