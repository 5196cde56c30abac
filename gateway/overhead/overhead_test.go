package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The test binary plays the roles too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{roleUpstream, roleProxy, roleCollector}, os.Args[1]) {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	dir, err := os.MkdirTemp("", "overhead")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "headgate")
	rc := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(rc)
}

var program string // where the program to measure is built

var build = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("go", "build", "-o", program, "headgate/cmd/headgate").CombinedOutput()
})

// ran runs it small and returns its report. Whether bars are met says nothing
// here, but each has to be held.
func ran(t *testing.T, args ...string) *report {
	t.Helper()
	if out, err := build(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "report.json")
	var out, errs strings.Builder
	if rc := run(append(args, "-headgate", program, "-output", file), &out, &errs); rc != 0 && rc != 3 {
		t.Fatalf("exit %d: %s", rc, errs.String())
	}
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := new(report)
	if err := json.Unmarshal(doc, r); err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Bars {
		if !strings.Contains(out.String(), b.Name) {
			t.Errorf("the table lacks the bar %q", b.Name)
		}
	}
	return r
}

func names(r *report) (all []string) {
	for _, b := range r.Bars {
		all = append(all, b.Name)
	}
	return all
}

func TestCost(t *testing.T) {
	profiles := t.TempDir()
	r := ran(t, "cost", "-reps", "1", "-each", "200ms", "-samples", "3", "-profile", profiles)
	want := []string{
		"few events: CPU a request", "many events: CPU a request", "fit: CPU a request", "fit: CPU an event",
		"first byte, more than direct (paired)", "first byte, more than the proxy (paired)", "many events: gap p50", "many events: gap p99",
	}
	if d := cmp.Diff(want, names(r)); d != "" {
		t.Error(d)
	}
	for _, arm := range rotated(0) {
		for _, w := range []*workload{&few, &many} {
			if v := r.median(w.gap(50), arm); v <= 0 {
				t.Errorf("%s: the median gap of %q is %g ms", arm, w.name, v)
			}
		}
		if arm != direct && r.median(few.allocations(), arm) < 1 {
			t.Errorf("%s: no allocations", arm)
		}
	}
	for _, name := range []string{"proxy-few-events.pprof", "headgate-few-events.pprof", "headgate-many-events.pprof", "headgate-burst.pprof", "headgate-allocations.pprof"} {
		if info, err := os.Stat(filepath.Join(profiles, name)); err != nil || info.Size() == 0 {
			t.Errorf("profile %s: %v", name, err)
		}
	}
}

func TestScale(t *testing.T) {
	r := ran(t, "scale", "-streaming", "20", "-waiting", "40", "-seconds", "1")
	want := []string{
		"a stream: memory in use after a collection", "a stream: resident memory under load",
		"a waiting request: memory in use, beside the proxy's stream", "left when all are gone, of its memory",
	}
	if d := cmp.Diff(want, names(r)); d != "" {
		t.Error(d)
	}
	// Every stream gets one event a second, whoever waits.
	for _, arm := range []string{proxy, headgate} {
		if v := r.median(eventsAndSecond, arm); v < 1 {
			t.Errorf("%s: %g events a second", arm, v)
		}
	}
}

// TestPeers: what is not installed is told, and the rest is measured.
func TestPeers(t *testing.T) {
	r := ran(t, "peers", "-reps", "1", "-each", "100ms", "-samples", "2", "-streaming", "10", "-only", portkey, "-peers", t.TempDir())
	want := []string{
		"a request's CPU, beside the bare proxy's + 80 us", "an event's CPU, beside the bare proxy's + 2 us",
		"latency p50 at 1 connection, beside the bare proxy's + 80 us",
		"cancel before the first byte p50, beside the first of the others (proxy)", "cancel amid events p50, beside the first of the others (proxy)",
	}
	if d := cmp.Diff(want, names(r)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"portkey is not measured: @portkey-ai/gateway is not installed"}, r.Notes); d != "" {
		t.Error(d)
	}
	for _, name := range []string{cpuRequest, cpuEvent, total(calm50), jitter99, cancelSilent, cancelAmid, queue50, queueCPU} {
		if r.median(name, headgate) <= 0 {
			t.Errorf("%s: %g", name, r.median(name, headgate))
		}
	}
}

func TestSoak(t *testing.T) {
	r := ran(t, "soak", "-streams", "20", "-duration", "4s", "-leave", "0.5")
	for _, b := range r.Bars[:5] {
		if !b.Met {
			t.Errorf("%s: %g of at most %g; %s", b.Name, b.Measured, b.Limit, r.Notes)
		}
	}
	if strings.Contains(r.Notes[0], " 0 were left") || strings.Contains(r.Notes[0], " 0 came whole") {
		t.Error(r.Notes)
	}
}

// TestSoakBars: each thing that may be wrong is found.
func TestSoakBars(t *testing.T) {
	good := state{usage: usage{inUse: 100}, goroutines: 50}
	peak := state{usage: usage{inUse: 1100}}
	for _, c := range []struct {
		name string
		c    counts
		t    tally
		last state
		over []float64
		want []int // bars that are not met
	}{
		{name: "all well", c: counts{asked: 10, answered: 9, left: 1}, last: good, over: []float64{5, 6, 7}},
		{name: "a lost answer", c: counts{asked: 10, answered: 9, wrong: 1}, last: good, over: []float64{5, 6, 7}, want: []int{0}},
		{name: "one unaccounted for", c: counts{asked: 10, answered: 9}, last: good, over: []float64{5, 6, 7}, want: []int{1}},
		{name: "dispatched twice, one runs on", t: tally{Doubled: 1, Running: 1}, last: good, over: []float64{5, 6, 7}, want: []int{2, 3}},
		{name: "all of it leaks", last: state{usage: usage{inUse: 300}, goroutines: 90, running: 1}, over: []float64{5, 6, 7}, want: []int{4, 5, 6}},
		{name: "later and later", last: good, over: []float64{5, 6, 8}, want: []int{7}},
	} {
		r := new(report)
		r.soakBars(c.c, c.t, good, peak, c.last, c.over, []float64{1, 1, 1})
		var got []int
		for i, b := range r.Bars {
			if !b.Met {
				got = append(got, i)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" || len(r.Bars) != 9 {
			t.Errorf("%s: of %d bars, not met: %s", c.name, len(r.Bars), d)
		}
	}
}

// TestBooks: the upstream tells of requests that came twice, of clients that are gone,
// and how soon one of the queued follows another.
func TestBooks(t *testing.T) {
	u := newUpstream()
	up := httptest.NewServer(u)
	defer up.Close()
	b := &bench{up: &process{addresses: addresses{Listen: up.Listener.Addr().String()}}}
	for _, id := range []string{"a", "a", queuedID, queuedID, ""} {
		s, err := b.target(direct).dial()
		if err != nil {
			t.Fatal(err)
		}
		a := ask{events: 2, id: id}
		if _, _, err := s.once(a.body(), a); err != nil {
			t.Fatal(err)
		}
		s.close()
	}
	for _, silent := range []bool{false, true} {
		if _, late, err := b.cancelTime(direct, "b", silent); err != nil || late {
			t.Errorf("a client that is gone, silent %t: late %t, %v", silent, late, err)
		}
	}
	up.Close()
	if d := cmp.Diff(tally{Arrived: 4, Doubled: 2}, u.tally); d != "" || u.running != 0 || len(u.gaps) != 1 {
		t.Errorf("%s, %d running, gaps %v", d, u.running, u.gaps)
	}
}

// TestWrongAnswers: an event that came twice, or of another request, is no answer.
func TestWrongAnswers(t *testing.T) {
	text := func(n int, id string) string {
		return fmt.Sprintf("data: {\"content\":\"at 1 n %d id %s \"}\n\n", n, id)
	}
	for _, c := range []struct {
		events string
		ok     bool
	}{
		{text(0, "x") + text(1, "x") + "data: [DONE]\n\n", true},
		{text(0, "x") + text(0, "x") + text(1, "x") + "data: [DONE]\n\n", false},
		{text(0, "x") + text(1, "y") + "data: [DONE]\n\n", false},
		{text(0, "x") + text(1, "x"), false},
	} {
		s := &stream{in: bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + c.events))}
		if err := s.receive(ask{events: 2, id: "x"}, func(event) {}); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.events, err)
		}
	}
}

// TestRefusesTooFew: an answer that lacks events is no measurement.
func TestRefusesTooFew(t *testing.T) {
	up, err := startRole(roleUpstream)
	if err != nil {
		t.Fatal(err)
	}
	defer up.stop()
	for _, c := range []struct {
		sent, wanted int
		ok           bool
	}{{3, 3, true}, {3, 4, false}, {4, 3, false}} {
		s, err := target{addr: up.Listen}.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if err := s.send(ask{events: c.sent}.body()); err != nil {
			t.Fatal(err)
		}
		if err := s.receive(ask{events: c.wanted}, func(event) {}); (err == nil) != c.ok {
			t.Errorf("%d events, %d wanted: %v", c.sent, c.wanted, err)
		}
	}
}

func TestFit(t *testing.T) {
	r := new(report)
	for _, w := range []*workload{&few, &many} {
		r.add(w.cpu(), headgate, "us", 300+7*float64(w.events))
		r.add(w.cpu(), proxy, "us", 200+5*float64(w.events))
	}
	r.fit()
	r.costBars()
	var got []bar
	for _, b := range r.Bars[:4] {
		b.Limit, b.Measured = float64(int(b.Limit+0.5)), float64(int(b.Measured+0.5))
		got = append(got, b)
	}
	want := []bar{
		{"few events: CPU a request", "us", 308, 328, false},    // 220 + 80 + 2 x 4
		{"many events: CPU a request", "us", 1680, 1700, false}, // 1200 + 80 + 2 x 200
		{"fit: CPU a request", "us", 280, 300, false},           // 200 + 80
		{"fit: CPU an event", "us", 7, 7, true},                 // 5 + 2
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		percent int
		want    float64
	}{{nil, 50, 0}, {[]float64{3}, 99, 3}, {[]float64{4, 1, 3, 2}, 50, 2}, {[]float64{4, 1, 3, 2}, 99, 4}} {
		if got := quantile(slices.Clone(c.values), c.percent); got != c.want {
			t.Errorf("quantile(%v, %d) = %g, want %g", c.values, c.percent, got, c.want)
		}
	}
}

func TestRotation(t *testing.T) {
	first := map[string]bool{}
	for rep := range 3 {
		first[rotated(rep)[0]] = true
	}
	if len(first) != 3 {
		t.Errorf("of three repetitions the first arm is one of %v", first)
	}
}
