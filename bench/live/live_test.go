package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/bench"
	"headgate/sim"
	"headgate/trace"
)

func num(v float64) *float64 { return &v }

// TestAnswers: what an arm answers is told apart: a whole answer, a refusal with its
// hint, a failure, a stream that breaks off, one with an error in it, and one that
// has no end.
func TestAnswers(t *testing.T) {
	const token, end = `data: {"choices":[{"text":"a","finish_reason":null}]}`, `data: {"choices":[{"text":"b","finish_reason":"length"}]}`
	const usage, done = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}`, `data: [DONE]`
	for _, c := range []struct {
		name, header string
		status       int
		lines        []string
		hang         bool
		want         answer
	}{
		{"whole", "", 200, []string{": keepalive", "", token, end, usage, done}, false, answer{outcome: sim.Completed, output: 2, prompt: 7}},
		{"refused", "Retry-After: 3", 429, []string{`{"error":{"code":"queue_full","message":"m"}}`}, false, answer{outcome: sim.Rejected, status: 429, cause: "queue_full", retryAfter: num(3000)}},
		{"refused with a finer hint", "retry-after-ms: 250", 503, []string{`{"error":{"type":"overloaded"}}`}, false, answer{outcome: sim.Rejected, status: 503, cause: "overloaded", retryAfter: num(250)}},
		{"failed", "", 500, []string{`oops`}, false, answer{outcome: sim.Failed, status: 500, cause: "status"}},
		{"error in the stream", "", 200, []string{token, `data: {"error":{"code":"engine_failed"}}`}, false, answer{outcome: sim.Failed, cause: "engine_failed"}},
		{"broken off", "", 200, []string{token}, false, answer{outcome: bench.Aborted, cause: "stream"}},
		{"without a reason to finish", "", 200, []string{token, usage, done}, false, answer{outcome: bench.Aborted, cause: "stream", output: 2, prompt: 7}},
		{"given up by the engine", "", 200, []string{token, strings.Replace(end, "length", "abort", 1), usage, done}, false, answer{outcome: bench.Aborted, cause: "abort", output: 2, prompt: 7}},
		{"without an end", "", 200, []string{token}, true, answer{outcome: bench.TimedOut}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if k, v, ok := strings.Cut(c.header, ": "); ok {
				w.Header().Set(k, v)
			}
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(strings.Join(c.lines, "\n") + "\n"))
			if c.hang {
				w.(http.Flusher).Flush()
				cancel()
				<-q.Context().Done()
			}
		}))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := (&run{client: s.Client()}).ask(req)
		if first := c.status == 200 && !c.hang; first && a.first.IsZero() || c.want.outcome == sim.Completed && a.done.Before(a.first) {
			t.Errorf("%s: first token at %v, done at %v", c.name, a.first, a.done)
		}
		a.first, a.done = time.Time{}, time.Time{}
		if c.hang { // where it stopped depends on who was faster
			a.cause = ""
		}
		if d := cmp.Diff(c.want, a, cmp.AllowUnexported(answer{})); d != "" {
			t.Errorf("%s (-want +have):\n%s", c.name, d)
		}
		cancel()
		s.Close()
	}
}

func TestUnreachable(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := (&run{client: http.DefaultClient}).ask(req); a.outcome != sim.Failed || a.cause != "unreachable" {
		t.Errorf("answer %+v", a)
	}
}

// TestClosedConnection: an engine that closes a connection in the moment in which a
// request comes on it has not seen that request, and gets it on another.
func TestClosedConnection(t *testing.T) {
	asked := map[string]int{} // by connection; its requests come one after another
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if asked[q.RemoteAddr]++; asked[q.RemoteAddr] > 1 {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.Close()
			return
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
	}))
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	r := &run{job: &bench.Job{Plan: &bench.Plan{}, Source: &bench.Source{Seed: 1}}, engine: &engine{model: "m", kind: "vllm"}, arm: &arm{url: s.URL}, client: client}
	for range 3 {
		req, err := r.request(t.Context(), &trace.Entry{ID: "batch-1", Class: "batch", PromptTokens: 3, MaxTokens: 1, Output: 1}, "")
		if err != nil {
			t.Fatal(err)
		}
		if a := r.ask(req); a.outcome != sim.Completed {
			t.Errorf("answer %+v", a)
		}
	}
}

// TestRequests shows what is asked for by each kind of arm and workload.
func TestRequests(t *testing.T) {
	e := &trace.Entry{ID: "batch-1", Class: "batch", PromptTokens: 3, MaxTokens: 40, Output: 10}
	for _, c := range []struct {
		name     string
		kind     string
		w        bench.Workload
		priority map[string]int
		want     string
	}{
		{"direct", "vllm", bench.Workload{ForcedOutput: true}, map[string]int{"batch": 10}, `{"model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0,"max_tokens":10,"ignore_eos":true,"priority":10,"prompt":[N,N,N]}`},
		{"not forced", "vllm", bench.Workload{}, nil, `{"model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0,"max_tokens":40,"prompt":[N,N,N]}`},
		{"text", "openai", bench.Workload{ForcedOutput: true}, nil, `{"model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0,"max_tokens":10,"prompt":"W W W"}`},
	} {
		r := &run{job: &bench.Job{Plan: &bench.Plan{Workload: c.w}, Source: &bench.Source{Seed: 1}}, engine: &engine{model: "m", kind: c.kind}, arm: &arm{url: "http://x", priority: c.priority, headers: map[string]map[string]string{"batch": {"X-Class": "low"}}}}
		req, err := r.request(t.Context(), e, "")
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		body, _ := req.GetBody()
		if _, err := fmt.Fprint(&b, read(t, body)); err != nil {
			t.Fatal(err)
		}
		got := b.String()
		if !json.Valid([]byte(got)) {
			t.Errorf("%s: no JSON: %s", c.name, got)
		}
		got = regexp.MustCompile(`([[,])\d+`).ReplaceAllString(got, "${1}N")
		got = regexp.MustCompile(`"prompt":"[a-z]+ [a-z]+ [a-z]+"`).ReplaceAllString(got, `"prompt":"W W W"`)
		if got != c.want || req.Header.Get("X-Class") != "low" || req.URL.Path != "/v1/completions" {
			t.Errorf("%s: asks %s with %v, want %s", c.name, got, req.Header, c.want)
		}
	}
}

func read(t *testing.T, r interface{ Read([]byte) (int, error) }) string {
	t.Helper()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

// TestPromptsShareWhatTheTraceSays: equal ids of a prefix are equal tokens, requests
// of a session begin alike, and others differ from the beginning.
func TestPromptsShareWhatTheTraceSays(t *testing.T) {
	ids := func(e trace.Entry) []int {
		e.PromptTokens = 2 * prefixBlock
		var out []int
		if err := json.Unmarshal(appendPrompt(nil, &e, 1, false), &out); err != nil {
			t.Fatal(err)
		}
		if len(out) != e.PromptTokens || slices.Min(out) < firstID || slices.Max(out) >= firstID+idCount {
			t.Fatalf("%d ids from %d to %d", len(out), slices.Min(out), slices.Max(out))
		}
		return out
	}
	same := func(a, b []int) int {
		n := 0
		for n < len(a) && a[n] == b[n] {
			n++
		}
		return n
	}
	for _, c := range []struct {
		a, b trace.Entry
		want int
	}{
		{trace.Entry{ID: "1", Prefix: []uint64{5, 6}}, trace.Entry{ID: "2", Prefix: []uint64{5, 7}}, prefixBlock},
		{trace.Entry{ID: "1", Session: "s"}, trace.Entry{ID: "2", Session: "s"}, 2 * prefixBlock},
	} {
		if n := same(ids(c.a), ids(c.b)); n != c.want {
			t.Errorf("%+v and %+v have %d tokens in common, want %d", c.a, c.b, n, c.want)
		}
	}
	if n := same(ids(trace.Entry{ID: "1"}), ids(trace.Entry{ID: "2"})); n > 3 {
		t.Errorf("two requests have %d tokens in common", n)
	}
}

// TestSamples reads each kind's metrics, and tells what an engine does not.
func TestSamples(t *testing.T) {
	var text string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }))
	defer s.Close()
	for _, c := range []struct {
		kind, text, want string
	}{
		{"vllm", "# HELP x y\nvllm:num_requests_running{engine=\"0\",model_name=\"a b}\"} 2\nvllm:num_requests_running{engine=\"1\"} 1.0\nvllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc 0.25\nvllm:generation_tokens_total 99\nvllm:num_preemptions_total 1\nprocess_start_time_seconds 1.7e+09\n", "3 4 0.25 99 1 1700000000"},
		{"llamacpp", "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:tokens_predicted_total 7\n", "2 1 - 7 - -"},
		{"sglang", "sglang:num_running_reqs{a=\"b\"} 2\nsglang:num_queue_reqs 3\nsglang:token_usage 0.5\n", "2 3 0.5 - - -"},
		{"openai", "anything 1\n", "- - - - - -"},
	} {
		text = c.text
		v := (&engine{url: s.URL, kind: c.kind}).sample(t.Context())
		got := ""
		for _, f := range []*float64{v.running, v.waiting, v.kv, v.generated, v.preemptions, v.began} {
			if f == nil {
				got += "- "
			} else {
				got += fmt.Sprintf("%.10g ", *f)
			}
		}
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%s: %s, want %s", c.kind, got, c.want)
		}
	}
}

// TestRestarts: another beginning, or a counter that falls, is another engine.
func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		all  []sample
		can  bool
		want string
	}{
		{nil, false, ""},
		{[]sample{{}, {running: num(1)}}, false, ""},
		{[]sample{{generated: num(5)}, {}, {generated: num(9)}}, true, ""},
		{[]sample{{generated: num(5)}, {generated: num(2)}}, true, "its count of generated tokens fell from 5 to 2"},
		{[]sample{{began: num(100)}, {}, {began: num(100)}}, true, ""},
		{[]sample{{began: num(100)}, {began: num(160)}}, true, "its process began at 100, and then at 160"},
	} {
		if can, how := (&engine{}).restarted(c.all); can != c.can || how != c.want {
			t.Errorf("%+v: %v, %q, want %v, %q", c.all, can, how, c.can, c.want)
		}
	}
	p, err := start([]string{"true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if can, how := (&engine{process: p}).restarted(nil); !can || how != "its process ended" {
		t.Errorf("an engine whose process ended: %v, %q", can, how)
	}
	if can, how := (&engine{process: p, ending: []string{"true"}}).restarted(nil); !can || how != "" {
		t.Errorf("one that another command stops: %v, %q", can, how)
	}
}

// TestStartTellsWhatWasSaid: a command that fails is told with its own words.
func TestStartTellsWhatWasSaid(t *testing.T) {
	_, _, err := startSaying(t.Context(), []string{"sh", "-c", "echo no such model >&2; exit 3"}, regexp.MustCompile(`^ready$`))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such model") {
		t.Errorf("error %v", err)
	}
	if err := do(t.Context(), []string{"sh", "-c", "echo cannot reset; exit 1"}); err == nil || !strings.Contains(err.Error(), "cannot reset") {
		t.Errorf("error %v", err)
	}
	if err := do(t.Context(), nil); err != nil {
		t.Errorf("no command: %v", err)
	}
}

// TestServedRefusesWhatIsThere: an engine that a plan starts must not be another
// one that has been there before.
func TestServedRefusesWhatIsThere(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	mark := filepath.Join(t.TempDir(), "started")
	_, err := served(t.Context(), &bench.Served{URL: s.URL, Kind: "vllm", Slots: 1, Start: []string{"touch", mark}, Ready: bench.Duration(time.Second)})
	if err == nil || !strings.Contains(err.Error(), "answers before it is started") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it was started all the same")
	}
}

// TestProxyRefusesWhatIsThere: a proxy that a plan starts must not be another one
// that has been there before, nor one that takes its place when it could not start.
func TestProxyRefusesWhatIsThere(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	x := &bench.Proxy{URL: s.URL, Start: []string{"sh", "-c", "echo address in use; exit 1"}, Ready: bench.Duration(10 * time.Second)}
	if _, err := proxy(t.Context(), x, ""); err == nil || !strings.Contains(err.Error(), "answers before it is started") {
		t.Errorf("one that is there: %v", err)
	}
	s.Close()
	if _, err := proxy(t.Context(), x, ""); err == nil || !strings.Contains(err.Error(), "address in use") {
		t.Errorf("one that does not start: %v", err)
	}
	x.Start[2] = "echo before {engine}; exit 1"
	if _, err := proxy(t.Context(), x, "http://127.0.0.1:8123"); err == nil || !strings.Contains(err.Error(), "before 127.0.0.1:8123") {
		t.Errorf("one that is to know its engine: %v", err)
	}
}

// TestForeignRequests: what the engine has for a second beyond what was sent to it is
// somebody else's. One that lingers for a moment is not, and neither is a gauge that is
// stuck while nothing runs.
func TestForeignRequests(t *testing.T) {
	start := time.Now()
	r := &run{job: &bench.Job{Lines: []sim.RequestLine{{SentMS: num(0)}, {SentMS: num(2000)}, {}}}, ended: make([]time.Time, 3)}
	r.ended[0], r.ended[1] = start.Add(10*time.Second), start.Add(4*time.Second)
	for _, c := range []struct {
		name    string
		running func(at time.Duration) float64
		idle    bool
		want    float64
	}{
		{"ours", func(at time.Duration) float64 { return 2 - float64(at/(4*time.Second)) }, false, 0},
		{"an attempt that lingers", func(at time.Duration) float64 {
			return 1 + 3*float64(1-min(1, (at-6*time.Second).Abs()/(500*time.Millisecond)))
		}, false, 0},
		{"two of another's from 6 s on", func(at time.Duration) float64 { return 1 + 2*float64(at/(6*time.Second)) }, false, 2},
		{"a stuck gauge", func(time.Duration) float64 { return 9 }, true, 0},
	} {
		var samples []sample
		for at := time.Duration(0); at < 9*time.Second; at += bench.TimelineEvery {
			made := at.Seconds()
			if c.idle {
				made = 5
			}
			samples = append(samples, sample{at: start.Add(at), running: num(c.running(at)), waiting: num(0), generated: num(made)})
		}
		if got := r.foreign(samples, start); got != c.want {
			t.Errorf("%s: %v foreign requests, want %v", c.name, got, c.want)
		}
	}
}

func TestHostFacts(t *testing.T) {
	if p := parsePressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=900\n"); p == nil || *p != 1500*time.Microsecond {
		t.Errorf("pressure %v", p)
	}
	if p := parsePressure("nothing"); p != nil {
		t.Errorf("pressure %v of nothing", p)
	}
	if n := parseSwapIn("pswpout 3\npswpin 12\n"); n == nil || *n != 12 {
		t.Errorf("swapped in %v", n)
	}
	if n := parseSwapIn(""); n != nil {
		t.Errorf("swapped in %v of nothing", n)
	}
	r := beginHost().end()
	if r.CPU < 0 || r.Wall <= 0 || r.WallClock <= 0 || r.GCPause < 0 {
		t.Errorf("evidence %+v", r)
	}
}
