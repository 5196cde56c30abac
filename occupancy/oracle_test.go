package occupancy

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// truth is a span that the test has made up.
type truth struct {
	start, end   int64
	model, class string
}

// bruteLevels counts, between every two neighbouring ends, the spans that are in
// flight: an algorithm that shares nothing with the sweep.
func bruteLevels(spans []truth) map[int]int64 {
	var at []int64
	for _, s := range spans {
		at = append(at, s.start, s.end)
	}
	slices.Sort(at)
	levels := map[int]int64{}
	for i := 1; i < len(at); i++ {
		n := 0
		for _, s := range spans {
			if s.start <= at[i-1] && at[i] <= s.end {
				n++
			}
		}
		if n > 0 && at[i] > at[i-1] {
			levels[n] += at[i] - at[i-1]
		}
	}
	return levels
}

func levelsOf(l *levels) map[int]int64 {
	m := map[int]int64{}
	for n, ns := range l.ns {
		if n > 0 && ns > 0 {
			m[n] = ns
		}
	}
	return m
}

func same(t *rapid.T, what string, got, want map[int]int64) {
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for n, ns := range want {
		if got[n] != ns {
			t.Fatalf("%s: %d ns with %d in flight, want %d: %v, want %v", what, got[n], n, ns, got, want)
		}
	}
}

// TestExact: whatever the spans, in whatever order within the slack their lines
// stand, and however often what is kept is put in order, the time at every level is
// that of the brute force, to the nanosecond.
func TestExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slack := rapid.Int64Range(0, 50).Draw(t, "slack")
		whole := rapid.Bool().Draw(t, "whole lines")
		var spans []truth
		var lines []Line
		for i := range rapid.IntRange(0, 40).Draw(t, "spans") {
			start := rapid.Int64Range(0, 400).Draw(t, "start")
			least := int64(1) // two lines of one time keep the order in which they stand
			if whole {
				least = 0
			}
			s := truth{start, start + rapid.Int64Range(least, 100).Draw(t, "length"), rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "model"), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "class")}
			spans = append(spans, s)
			id := []byte(fmt.Sprint(i))
			of := Line{ID: id, Model: []byte(s.model), Class: []byte(s.class)}
			first, second := of, of
			first.At, first.Kind = s.start, Start
			second.At, second.Kind = s.end, Done
			if whole {
				second.Start, second.Kind = s.start, Whole
				lines = append(lines, second)
			} else {
				lines = append(lines, first, second)
			}
		}
		// A line stands where it is written, which is up to the slack after its time.
		type placed struct {
			Line
			at int64
		}
		var order []placed
		for _, l := range lines {
			order = append(order, placed{l, l.At + rapid.Int64Range(0, slack).Draw(t, "late")})
		}
		slices.SortStableFunc(order, func(a, b placed) int { return int(a.at - b.at) })
		a, err := NewAnalysis(Options{Slack: time.Duration(slack + 1), MaxSpan: 100}, whole)
		if err != nil {
			t.Fatal(err)
		}
		a.pairs.batch, a.sweep.batch = rapid.IntRange(1, 20).Draw(t, "lines in order"), rapid.IntRange(1, 20).Draw(t, "edges in order")
		a.pairs.limit, a.sweep.limit = 1, 1
		for i := range order {
			a.Add(&order[i].Line)
		}
		r := a.Report()
		if r.Paired != len(spans) || r.UnpairedStarts+r.UnpairedDones+r.OutOfOrder+r.Beyond+r.Duplicates != 0 {
			t.Fatalf("%d spans: %+v", len(spans), a.pairs.c)
		}
		same(t, "all", levelsOf(&a.sweep.all.levels), bruteLevels(spans))
		for d, name := range []func(truth) string{func(s truth) string { return s.model }, func(s truth) string { return s.class }} {
			for _, g := range a.sweep.dims[d].groups {
				var of []truth
				for _, s := range spans {
					if name(s) == g.name {
						of = append(of, s)
					}
				}
				same(t, "group "+g.name, levelsOf(&g.levels), bruteLevels(of))
			}
		}
		inHours := int64(0)
		for _, h := range a.sweep.hours {
			inHours += h.busy
		}
		total := int64(0)
		most := 0
		for n, ns := range bruteLevels(spans) {
			total += ns
			most = max(most, n)
		}
		if inHours != total || r.Peak != most {
			t.Fatalf("%d ns in hours of %d, peak %d of %d", inHours, total, r.Peak, most)
		}
		if r.Peak > 0 && len(r.PeakCause.Requests) != min(r.Peak, maxCause) {
			t.Fatalf("%d in flight at the peak, %d named", r.Peak, len(r.PeakCause.Requests))
		}
		if total > 0 && len(a.pairs.slab) > 2*len(spans) {
			t.Fatal("open requests are kept after their end")
		}
		if a.pairs.nopen != 0 || a.sweep.flight.first != none || a.sweep.all.n != 0 {
			t.Fatal("something is still in flight after the end")
		}
	})
}

// TestReusedIDs: with one id for all, any start may belong to any done, and the
// distribution is the same for each of these.
func TestReusedIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []truth
		var lines []Line
		at := int64(0)
		for range rapid.IntRange(1, 30).Draw(t, "spans") {
			// They may overlap; no two lines are within the time in which a second done is a double.
			start := at + 2*twiceAtOnce
			end := start + rapid.Int64Range(2, 40).Draw(t, "length")*2*twiceAtOnce + 1
			at = start
			spans = append(spans, truth{start: start, end: end})
			lines = append(lines, Line{Kind: Start, At: start, ID: []byte("id")}, Line{Kind: Done, At: end, ID: []byte("id")})
		}
		slices.SortStableFunc(lines, func(a, b Line) int { return int(a.At - b.At) })
		for i := 1; i < len(lines); i++ {
			if lines[i].Kind == Done && lines[i-1].Kind == Done && lines[i].At-lines[i-1].At <= twiceAtOnce {
				t.Skip()
			}
		}
		a, err := NewAnalysis(Options{}, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range lines {
			a.Add(&lines[i])
		}
		a.Report()
		same(t, "all", levelsOf(&a.sweep.all.levels), bruteLevels(spans))
	})
}

// TestWindow: what is outside of the window is cut off exactly.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.Int64Range(1, 100).Draw(t, "from")
		to := rapid.Int64Range(from+1, 200).Draw(t, "to")
		a, err := NewAnalysis(Options{From: from, To: to}, true)
		if err != nil {
			t.Fatal(err)
		}
		var cut []truth
		for range rapid.IntRange(0, 20).Draw(t, "spans") {
			start := rapid.Int64Range(0, 250).Draw(t, "start")
			end := start + rapid.Int64Range(0, 100).Draw(t, "length")
			a.Add(&Line{Kind: Whole, Start: start, At: end})
			if start < to && end > from {
				cut = append(cut, truth{start: max(start, from), end: min(end, to)})
			}
		}
		r := a.Report()
		same(t, "all", levelsOf(&a.sweep.all.levels), bruteLevels(cut))
		if r.Paired != len(cut) || r.WindowS != seconds(to-from) {
			t.Fatalf("%d paired of %d, window %v", r.Paired, len(cut), r.WindowS)
		}
	})
}

// TestMemoryIsBounded: a start whose done never comes, before more spans than memory
// may hold, is given up, and the rest is counted as if it had not been there.
func TestMemoryIsBounded(t *testing.T) {
	a, err := NewAnalysis(Options{MaxSpan: 24 * time.Hour}, false)
	if err != nil {
		t.Fatal(err)
	}
	a.Add(&Line{Kind: Start, At: 0, ID: []byte("lost")})
	const n = maxEdges/2 + 100_000
	at := int64(1)
	for i := range n {
		id := []byte(fmt.Sprint(i))
		a.Add(&Line{Kind: Start, At: at, ID: id})
		a.Add(&Line{Kind: Done, At: at + 5e6, ID: id})
		at += 1e7
	}
	if have := len(a.sweep.edges); have > maxEdges+maxEdges/2 {
		t.Errorf("%d edges are kept", have)
	}
	r := a.Report()
	if r.GivenUp != 1 || r.UnpairedStarts != 1 || r.Paired != n || r.BusyS != n*0.005 || r.Peak != 1 {
		t.Errorf("%d given up, %d without a done, %d of %d paired, busy %v s", r.GivenUp, r.UnpairedStarts, r.Paired, n, r.BusyS)
	}
	if n := len(a.pairs.idents); n > 1e5 {
		t.Errorf("%d ids are remembered", n)
	}
}

// TestQuantiles: within 1/32 above the exact ones, never below.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Int64Range(0, 1<<50), 1, 200).Draw(t, "durations")
		var s stat
		for _, d := range v {
			s.add(d)
		}
		slices.Sort(v)
		for _, q := range []float64{0, 0.5, 0.95} {
			exact := v[int(q*float64(len(v)))]
			if got := s.quantile(q); got < exact || float64(got) > float64(exact)*(1+1.0/32)+1 {
				t.Fatalf("quantile %v of %v is %d, exactly %d", q, v, got, exact)
			}
		}
	})
}

// TestISO: what both read, both read alike.
func TestISO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(0, rapid.Int64Range(math.MinInt64/2, math.MaxInt64/2).Draw(t, "time"))
		zone := time.FixedZone("", rapid.IntRange(-14*60, 14*60).Draw(t, "zone")*60)
		layout := rapid.SampledFrom([]string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04:05.000000-0700", "2006/01/02 15:04:05,000Z0700"}).Draw(t, "layout")
		text := at.In(zone).Format(layout)
		want, err := time.Parse(layout, text)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := iso([]byte(text), time.UTC); !ok || got != want.UnixNano() {
			t.Fatalf("%s is %d, want %d", text, got, want.UnixNano())
		}
	})
}

func BenchmarkRun(b *testing.B) {
	for _, bench := range []struct {
		name  string
		f     *Format
		lines func(i int, at time.Time) string
	}{
		{"jsonl", foreign(), func(i int, at time.Time) string {
			stamp, later := at.Format(time.RFC3339Nano), at.Add(700*time.Microsecond).Format(time.RFC3339Nano)
			return fmt.Sprintf(`{"ts":%q,"level":"info","msg":"request","event":"start","req_id":"req-%d","model":"m%d","class":"interactive","principal":"p%d","prompt_tokens":1234}`+"\n"+
				`{"ts":%q,"level":"info","msg":"request","event":"done","req_id":"req-%d","model":"m%d","class":"interactive","principal":"p%d","status":200,"output_tokens":99}`+"\n", stamp, i, i%3, i%50, later, i, i%3, i%50)
		}},
		{"llama-server", Preset("llama-server"), func(i int, at time.Time) string {
			e := at.UnixMicro() % 1e9
			stamp := fmt.Sprintf("%d.%02d.%03d.%03d", e/60e6, e/1e6%60, e/1000%1000, e%1000)
			return fmt.Sprintf("%s I slot launch_slot_: id  1 | task %d | processing task, is_child = 0\n%s I slot      release: id  1 | task %d | stop processing: n_tokens = 49, truncated = 0\n", stamp, i, stamp, i)
		}},
	} {
		const n = 100_000
		var text strings.Builder
		at := time.Unix(1_790_000_000, 0).UTC()
		for i := range n / 2 {
			text.WriteString(bench.lines(i, at))
			at = at.Add(time.Millisecond)
		}
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(text.Len()))
			for b.Loop() {
				if r := mustRun(b, bench.f, Options{}, text.String()); r.Paired != n/2 {
					b.Fatalf("%d paired", r.Paired)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/line")
		})
	}
}
