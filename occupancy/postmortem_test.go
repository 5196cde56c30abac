package occupancy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"headgate/occupancy/occupancytest"
)

// foreign is the format of occupancytest.WriteJSONL.
func foreign() *Format {
	return &Format{Name: "jsonl", JSON: true, Time: "ts", ID: "req_id", Event: "event", Starts: []string{"start"}, Dones: []string{"done"},
		Model: "model", Class: "class", Principal: "principal"}
}

func mustRun(t testing.TB, f *Format, o Options, files ...string) *Report {
	t.Helper()
	var in []Input
	for i, s := range files {
		in = append(in, Input{Name: fmt.Sprintf("file%d", i), Data: strings.NewReader(s)})
	}
	r, err := Run(in, f, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func written(t testing.TB, write func(io.Writer, []occupancytest.Span) error, spans []occupancytest.Span) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, spans); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// isPostMortem checks the published numbers, to the nanosecond.
func isPostMortem(t *testing.T, r *Report) {
	t.Helper()
	if len(r.Levels) != len(occupancytest.Shares) {
		t.Fatalf("%d levels: %+v", len(r.Levels), r.Levels)
	}
	for i, share := range occupancytest.Shares {
		want := math.Round(share*1000) * occupancytest.Busy.Seconds() / 1000
		if l := r.Levels[i]; math.Abs(l.BusyShare-share) > 1e-12 || math.Abs(l.Seconds-want) > 1e-9 {
			t.Errorf("level %d is %.12f, %.9f s: want %v, %.9f s", i+1, l.BusyShare, l.Seconds, share, want)
		}
	}
	if r.Utilisation != occupancytest.Utilisation || r.Paired != occupancytest.Spans || r.Peak != 5 || r.WindowS != occupancytest.Window.Seconds() {
		t.Errorf("utilisation %v, %d paired, peak %d, window %v s", r.Utilisation, r.Paired, r.Peak, r.WindowS)
	}
	if c := r.Levels[1].Cumulative; math.Abs(c-0.936) > 1e-12 {
		t.Errorf("two or fewer: %v", c)
	}
}

func TestPostMortem(t *testing.T) {
	spans := occupancytest.PostMortem()
	jsonl := written(t, occupancytest.WriteJSONL, spans)
	t.Run("a foreign log", func(t *testing.T) {
		r := mustRun(t, foreign(), Options{}, jsonl)
		isPostMortem(t, r)
		if r.UnpairedStarts+r.UnpairedDones+r.Excluded+r.Duplicates+r.BadLines+r.OutOfOrder != 0 || len(r.Notes) > 0 {
			t.Errorf("a clean log has %+v", r)
		}
	})
	t.Run("the journal", func(t *testing.T) {
		r := mustRun(t, Preset("journal"), Options{}, written(t, occupancytest.WriteJournal, spans))
		isPostMortem(t, r)
		if r.Queue == nil || r.Queue.Count != occupancytest.Spans || math.Abs(r.Queue.MaxS-0.02) > 1e-12 {
			t.Errorf("queue: %+v", r.Queue)
		}
	})
	t.Run("compressed parts out of order", func(t *testing.T) {
		lines := strings.SplitAfter(jsonl, "\n")
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		if _, err := io.WriteString(z, strings.Join(lines[1000:], "")); err != nil || z.Close() != nil {
			t.Fatal("gzip")
		}
		isPostMortem(t, mustRun(t, foreign(), Options{}, zipped.String(), strings.Join(lines[:1000], "")))
	})
	t.Run("everything that goes wrong", func(t *testing.T) {
		r := mustRun(t, foreign(), Options{Slack: time.Minute, Exclude: Exclude{Principals: []string{"bench"}}}, soiled(jsonl))
		isPostMortem(t, r)
		got := fmt.Sprintf("%d starts, %d dones, %d doubles, %d excluded %.3f s, %d bad",
			r.UnpairedStarts, r.UnpairedDones, r.Duplicates, r.Excluded, r.ExcludedS, r.BadLines)
		if want := "10 starts, 10 dones, 1407 doubles, 10 excluded 50.000 s, 10 bad"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// soiled puts into a log what must not change its numbers: every done twice, ten
// starts and dones without the other end, ten spans of a benchmark, ten broken
// lines, colours, and lines that stand up to a minute late.
func soiled(jsonl string) string {
	var out []string
	add := func(at time.Duration, event, id, principal string) {
		out = append(out, fmt.Sprintf(`{"ts":%q,"event":%q,"req_id":%q,"principal":%q}`+"\n", occupancytest.Begin.Add(at).Format(time.RFC3339Nano), event, id, principal))
	}
	for i, line := range strings.SplitAfter(jsonl, "\n") {
		if i%200 == 100 && i < 2000 {
			out = append(out, "{\"ts\":\"2026-06-0\n")
		}
		if line != "" {
			out = append(out, "\x1b[32m"+line[:len(line)-1]+"\x1b[0m\n")
		}
		if strings.Contains(line, `"done"`) {
			out = append(out, line)
		}
	}
	// Two lines of every ten change places where they are within a minute.
	for i := 20; i+1 < len(out); i += 10 {
		a, b := strings.Index(out[i], "2026-"), strings.Index(out[i+1], "2026-")
		if a >= 0 && b >= 0 && len(out[i]) > 60 && len(out[i+1]) > 60 && out[i][a:a+16] == out[i+1][b:b+16] {
			out[i], out[i+1] = out[i+1], out[i]
		}
	}
	body := out
	out = nil
	var extra [10][]string
	for i := range extra {
		at := time.Duration(i)*10*time.Hour + 5*time.Minute
		out = nil
		add(at, "start", fmt.Sprintf("lost-%d", i), "x")
		add(at, "done", fmt.Sprintf("never-%d", i), "x")
		add(at, "start", "bench", "bench")
		add(at+5*time.Second, "done", "bench", "bench")
		add(at+5*time.Second, "done", "bench", "bench")
		extra[i] = out
	}
	// They go where their time is.
	var all []string
	next := 0
	for _, line := range body {
		if at := strings.Index(line, "2026-"); next < 10 && at >= 0 && len(line) > at+30 {
			begin := occupancytest.Begin.Add(time.Duration(next)*10*time.Hour + 5*time.Minute)
			if line[at:at+19] >= begin.Format("2006-01-02T15:04:05") {
				all = append(all, extra[next]...)
				next++
			}
		}
		all = append(all, line)
	}
	return strings.Join(all, "")
}
