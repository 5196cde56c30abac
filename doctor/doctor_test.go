package doctor

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/engine"
)

// TestRun: checks that end, that heed their context, and that do neither are all told of
// within their bound, in their order.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		checks := []Check{
			{"one", func(_ context.Context, r *Reporter) { r.Found(DiskLow, "e1", "d1\nand d2") }},
			{"slow", func(ctx context.Context, r *Reporter) {
				<-ctx.Done()
				r.Found(DiskFull, "e2", "d2")
			}},
			{"deaf", func(_ context.Context, r *Reporter) {
				r.Found(DiskLow, "e3", "d3")
				<-release
				r.Found(DiskFull, "late", "d")
			}},
		}
		began := time.Now()
		report := Run(t.Context(), checks, time.Second)
		if d := time.Since(began); d != time.Second+grace {
			t.Errorf("it took %v", d)
		}
		close(release)
		synctest.Wait()
		var b bytes.Buffer
		if err := report.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		want := `warning: one: a disk has little room [disk_low]
  seen: e1
  do:   d1
        and d2

error: slow: a disk is full [disk_full]
  seen: e2
  do:   d2

warning: deaf: a disk has little room [disk_low]
  seen: e3
  do:   d3

warning: deaf: the check was not over in time [check_slow]
  seen: not over after 1s
  do:   give it longer with --timeout, or see why what it asks does not answer

1 error, 3 warnings in 3 checks
`
		if b.String() != want || report.Status() != 2 {
			t.Errorf("status %d\n%s", report.Status(), b.String())
		}
	})
}

// TestSkew: a date says no more than it can: it is cut to the second, and was read at some
// moment on the way.
func TestSkew(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		off, way time.Duration // of the clock, and there and back
		want     string
	}{
		{0, 0, ""}, {900 * time.Millisecond, 0, ""}, {2400 * time.Millisecond, 0, ""}, {-2400 * time.Millisecond, 0, ""},
		{5 * time.Second, 0, "it is 5.5s ahead, give or take 500ms"}, {-time.Hour, 0, "it is 59m59.5s behind, give or take 500ms"},
		{5 * time.Second, 10 * time.Second, ""}, {time.Minute, 10 * time.Second, "it is 1m0.5s ahead, give or take 5.5s"},
	} {
		date := at.Add(c.way / 2).Add(c.off).Truncate(time.Second)
		if got, is := skew(date, at, at.Add(c.way), 2*time.Second); got != c.want || is != (c.want != "") {
			t.Errorf("%v off, %v there and back: %q, want %q", c.off, c.way, got, c.want)
		}
	}
	if _, is := skew(time.Time{}, at, at, 0); is {
		t.Error("no date is a clock that is wrong")
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 1 << 20: "1 MiB", 10<<30 + 1<<29: "10.5 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// TestKinds: every kind has an id of its own that a program can rely on.
func TestKinds(t *testing.T) {
	for _, k := range Kinds() {
		if strings.ToLower(k.ID) != k.ID || strings.ContainsAny(k.ID, " -") || k.What == "" || k.Level != Error && k.Level != Warning {
			t.Errorf("%+v", k)
		}
	}
	if n := len(Kinds()); n < 12 {
		t.Error(fmt.Sprint(n))
	}
}

// TestRunning: what a gateway says of itself is told of, whoever asks first.
func TestRunning(t *testing.T) {
	late := time.Now().Add(-time.Hour)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", late.UTC().Format(http.TimeFormat))
		switch r.URL.Path {
		case "/healthz":
			fmt.Fprintln(w, "ok")
		case "/readyz":
			fmt.Fprintln(w, "ready\nbut lending of pool main is paused")
		case "/metrics":
			fmt.Fprintln(w, `headgate_build_info{version="v1"} 1`+"\nprocess_max_fds 100\nprocess_open_fds 95")
		case "/debug/engines":
			fmt.Fprintln(w, `{"main":[{"name":"gpu1","sample_age_ms":61000,"error":"no answer"},{"name":"gpu0","sample_age_ms":-1},{"name":"gpu2","sample_age_ms":20}]}`)
		}
	}))
	defer s.Close()
	g := &Running{URL: s.URL, Client: s.Client(), Version: "v2", Told: true, Engines: []string{"main/gpu2", "main/gpu0", "spare/gpu1"}}
	files := make(chan int, 1)
	report := Run(t.Context(), []Check{
		g.Check(),
		{"files", func(ctx context.Context, r *Reporter) { files <- g.Files(ctx) }},
		Replica("b", s.URL, s.Client()), Replica("c", "http://127.0.0.1:1", s.Client()),
	}, 20*time.Second)
	var got []string
	for _, f := range report.Findings {
		got = append(got, f.ID+": "+f.Evidence)
	}
	for i, want := range []string{
		"admin_clock: it is 1h0m0", "admin_trouble: /readyz: lending of pool main is paused", "admin_version: it is v1, and this is v2", "admin_files: 95 of 100 are open",
		"admin_other: it has main/gpu0, main/gpu1, main/gpu2; the configuration has main/gpu0, main/gpu2, spare/gpu1",
		"observed_old: gpu0: never heard of\ngpu1: heard of 1m1s ago: no answer", "replica_clock: it is 1h0m0", "replica_away: ",
	} {
		// The last seconds depend on when in its second the date was cut.
		if i >= len(got) || !strings.HasPrefix(strings.ReplaceAll(got[i], "59m59", "1h0m0"), want) {
			t.Errorf("%d: want %q: %q", i, want, got)
		}
	}
	if n := <-files; n != 100 || len(got) != 8 {
		t.Errorf("%d files, %d findings", n, len(got))
	}
}

// TestJudge: a llama-server's KV is between a slot's context and all of theirs, since it does
// not say whether they share it; other kinds' is what they say.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		kind       engine.Kind
		configured int
		want       string
	}{
		{engine.LlamaCpp, 1024, ""}, {engine.LlamaCpp, 2048, ""}, {engine.LlamaCpp, 2049, "engine_kv_more"}, {engine.LlamaCpp, 512, "engine_kv_fewer"},
		{engine.VLLM, 1024, ""}, {engine.VLLM, 1040, ""}, {engine.VLLM, 1041, "engine_kv_more"}, {engine.VLLM, 2048, "engine_kv_more"}, {engine.VLLM, 512, "engine_kv_fewer"}, {engine.VLLM, 0, ""},
	} {
		e := Engine{Config: engine.Config{Kind: c.kind}, Said: engine.Override{KVTokens: c.configured}}
		got := ""
		e.judge(&engine.Capabilities{Slots: 2, KVTokens: 1024, MaxContext: 1024, BlockSize: 16}, nil, func(k *Kind, _, _ string) { got += k.ID })
		if got != c.want {
			t.Errorf("%s, %d: %q, want %q", c.kind, c.configured, got, c.want)
		}
	}
}

// TestIgnore: what is known is counted and no more, what is misspelt is refused.
func TestIgnore(t *testing.T) {
	r := Run(t.Context(), []Check{{"gpu0", func(_ context.Context, r *Reporter) {
		r.Found(EnginePrefix, "off", "turn it on")
		r.Found(EngineAway, "refused", "start it")
	}}}, time.Second)
	if err := Known([]string{"engine_prefix", "engine_prfix"}); err == nil || !strings.Contains(err.Error(), "engine_prfix") {
		t.Error(err)
	}
	if err := Known([]string{"admin_away"}); err == nil || !strings.Contains(err.Error(), "can't be ignored") {
		t.Error(err)
	}
	if r.Ignore([]string{EnginePrefix.ID}); r.Ignored != 1 || r.Warnings != 0 || r.Errors != 1 || len(r.Findings) != 1 || r.Status() != 2 {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || !strings.HasSuffix(b.String(), "1 error in 1 check; ignored: engine_prefix\n") {
		t.Errorf("%v, %s", err, &b)
	}
}
