package live

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/bench"
	"headgate/journal"
	"headgate/sim"
	"headgate/trace"
)

// slow answers every request after a time, or never.
type slow struct{ after map[string]time.Duration }

func (s slow) RoundTrip(q *http.Request) (*http.Response, error) {
	d, ends := s.after[q.Header.Get("Id")]
	if !ends {
		<-q.Context().Done()
		return nil, q.Context().Err()
	}
	if !pause(q.Context(), d) {
		return nil, q.Context().Err()
	}
	text := "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n"
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text))}, nil
}

func generatorRun(t *testing.T, drain time.Duration, transport http.RoundTripper, entries ...trace.Entry) *run {
	t.Helper()
	j := &bench.Job{
		Plan: &bench.Plan{Workload: bench.Workload{ForcedOutput: true, Drain: bench.Duration(drain)}}, Source: &bench.Source{Seed: 1}, Arm: &bench.Arm{},
		Trace: &trace.Trace{Entries: entries, Workload: trace.Workload{DurationMs: 3000}}, Lines: make([]sim.RequestLine, len(entries)),
	}
	headers := map[string]map[string]string{}
	for i := range entries {
		at := millis(entries[i].Arrival)
		j.Lines[i] = sim.RequestLine{ID: entries[i].ID, Class: entries[i].Class, ArrivalMS: &at}
		headers[entries[i].Class] = map[string]string{"Id": entries[i].Class}
	}
	r := newRun(j, &engine{model: "m", kind: "vllm"}, &arm{url: "http://engine", headers: headers})
	r.client = &http.Client{Transport: transport}
	return r
}

// TestOpenLoop: requests are sent at the trace's moments whether or not earlier ones
// were answered, what has no end when the drain's time is over has timed out, and
// what is skipped is not sent.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := generatorRun(t, 5*time.Second, slow{map[string]time.Duration{"a": 4 * time.Second, "c": time.Second}},
			trace.Entry{ID: "1", Class: "a", PromptTokens: 3, Output: 5},
			trace.Entry{ID: "2", Class: "never", Arrival: 100 * time.Millisecond, PromptTokens: 3, Output: 5},
			trace.Entry{ID: "3", Class: "c", Arrival: 100 * time.Millisecond, PromptTokens: 9, Output: 5},
			trace.Entry{ID: "4", Class: "c", Arrival: 1500 * time.Millisecond, PromptTokens: 3, Output: 5},
		)
		r.job.Lines[2].Outcome = sim.Skipped
		start := time.Now().Add(300 * time.Millisecond)
		if err := r.all(t.Context(), start); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 6500*time.Millisecond {
			t.Errorf("it took %v, want the last arrival and 5 s", took)
		}
		want := []sim.RequestLine{
			{ID: "1", Class: "a", ArrivalMS: num(0), SentMS: num(0), FirstTokenMS: num(4000), DoneMS: num(4000), Outcome: sim.Completed, Output: 5, Prompt: 3},
			{ID: "2", Class: "never", ArrivalMS: num(100), SentMS: num(100), Outcome: bench.TimedOut, Cause: "unreachable"},
			{ID: "3", Class: "c", ArrivalMS: num(100), Outcome: sim.Skipped},
			{ID: "4", Class: "c", ArrivalMS: num(1500), SentMS: num(1500), FirstTokenMS: num(2500), DoneMS: num(2500), Outcome: sim.Completed, Output: 5, Prompt: 3, InTime: true},
		}
		if d := cmp.Diff(want, r.job.Lines); d != "" {
			t.Errorf("lines (-want +have):\n%s", d)
		}
	})
}

// refusing answers 503 until a time, and then at once.
type refusing struct {
	until time.Time
	slow
}

func (r refusing) RoundTrip(q *http.Request) (*http.Response, error) {
	if time.Now().Before(r.until) {
		return &http.Response{StatusCode: 503, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"error":{"type":"full"}}`))}, nil
	}
	return r.slow.RoundTrip(q)
}

// TestClients: what is refused is sent again, later each time, as often as the arm's
// clients do that; whose patience is over has gone, at the engine or between two
// attempts, and that is no end of the drain's time.
func TestClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entry := func(id, class string) trace.Entry {
			return trace.Entry{ID: id, Class: class, PromptTokens: 3, Output: 5, Draw: trace.Draw{RetryJitter: 1}}
		}
		start := time.Now().Add(300 * time.Millisecond)
		transport := refusing{start.Add(2 * time.Second), slow{map[string]time.Duration{"a": 0}}}
		r := generatorRun(t, 20*time.Second, transport, entry("1", "a"), entry("2", "hasty"), entry("3", "never"))
		r.job.Arm.Direct = &bench.Direct{Attempts: 3, Backoff: bench.Duration(time.Second)}
		r.job.Plan.Workload.Patience = map[string]bench.Duration{"hasty": bench.Duration(1500 * time.Millisecond), "never": bench.Duration(5 * time.Second)}
		if err := r.all(t.Context(), start); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("it took %v, want the longest patience", took)
		}
		gone := func(id, class string) sim.RequestLine {
			return sim.RequestLine{ID: id, Class: class, ArrivalMS: num(0), SentMS: num(0), Outcome: sim.Failed, Cause: "client_gone"}
		}
		want := []sim.RequestLine{
			{ID: "1", Class: "a", ArrivalMS: num(0), SentMS: num(0), FirstTokenMS: num(3000), DoneMS: num(3000), Outcome: sim.Completed, Output: 5, Prompt: 3, InTime: true},
			gone("2", "hasty"), gone("3", "never"),
		}
		if d := cmp.Diff(want, r.job.Lines); d != "" {
			t.Errorf("lines (-want +have):\n%s", d)
		}

		r = generatorRun(t, 20*time.Second, refusing{start.Add(time.Hour), slow{}}, entry("1", "a"))
		r.job.Arm.Direct = &bench.Direct{Attempts: 2, Backoff: bench.Duration(time.Second)}
		start = time.Now()
		if err := r.all(t.Context(), start); err != nil {
			t.Fatal(err)
		}
		if l := r.job.Lines[0]; l.Outcome != sim.Rejected || l.Status != 503 || time.Since(start) != time.Second {
			t.Errorf("refused for ever, sent twice: %s, status %d after %v", l.Outcome, l.Status, time.Since(start))
		}
	})
}

// TestInterrupted: a run whose context ends is given up at once.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := generatorRun(t, time.Minute, slow{}, trace.Entry{ID: "1", Class: "a", PromptTokens: 3}, trace.Entry{ID: "2", Class: "a", PromptTokens: 3, Arrival: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := r.all(ctx, start); err == nil || time.Since(start) != time.Second {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
	})
}

// TestJournalBook reads a gateway's story of one loan that is ended for a recall.
func TestJournalBook(t *testing.T) {
	start := time.Unix(1000, 0)
	ms := func(n int64) int64 { return (5000 + n) * 1e6 } // the gateway began 5 s before
	r := generatorRun(t, 0, nil, trace.Entry{ID: "1", Class: "batch"}, trace.Entry{ID: "2", Class: "interactive"})
	o := &bench.Observed{}
	b := newBook(start, r.job, map[string]int{"req_b": 0, "req_i": 1}, o)
	for i, e := range []journal.Event{
		{Mono: ms(0), Kind: journal.Started},
		{Mono: ms(10), Kind: journal.Warming, Request: "req_b", Hold: 1, Loan: true, PieceTokens: 50},
		{Mono: ms(20), Kind: journal.FirstToken, Request: "req_b", Hold: 1, PieceTokens: 50},
		{Mono: ms(30), Kind: journal.Ended, Request: "req_b", Hold: 1, Cause: "finished"},
		{Mono: ms(30), Kind: journal.Admitted, Request: "req_b", Hold: 2, Loan: true},
		{Mono: ms(31), Kind: journal.Scheduled, Request: "req_b", Hold: 2, ScheduledNS: ms(31), ScheduledUpperNS: ms(35)},
		{Mono: ms(50), Kind: journal.FirstToken, Request: "req_b", Hold: 2, PromptTokens: 100},
		{Mono: ms(50), Kind: journal.Scheduled, Request: "req_b", Hold: 2, ScheduledNS: ms(33)},
		{Mono: ms(60), Kind: journal.Admitted, Request: "req_other", Hold: 9},
		{Mono: ms(100), Kind: journal.RecallOpened, Recall: 3, Class: "interactive", For: "req_i"},
		{Mono: ms(100), Kind: journal.RecallGranted, Recall: 3},
		{Mono: ms(101), Kind: journal.Ended, Request: "req_b", Hold: 2, Recall: 3, Cause: "reclaimed", PromptTokens: 100, OutputTokens: 8},
		{Mono: ms(105), Kind: journal.Admitted, Request: "req_i", Hold: 3},
		{Mono: ms(110), Kind: journal.Scheduled, Request: "req_i", Hold: 3, Recall: 3, ScheduledNS: ms(106), ScheduledUpperNS: ms(109)},
		{Mono: ms(120), Kind: journal.RecallSettled, Recall: 3},
		{Mono: ms(130), Kind: journal.Scheduled, Request: "req_i", Hold: 3, Recall: 3, ScheduledNS: ms(107)},
		{Mono: ms(140), Kind: journal.Ended, Request: "req_i", Hold: 3, Cause: "finished"},
		{Mono: ms(200), Kind: journal.Admitted, Request: "req_b", Hold: 4},
		{Mono: ms(205), Kind: journal.Scheduled, Request: "req_b", Hold: 4, ScheduledNS: ms(204)},
		{Mono: ms(210), Kind: journal.FirstToken, Request: "req_b", Hold: 4, PromptTokens: 100, CachedTokens: 64},
		{Mono: ms(300), Kind: journal.Ended, Request: "req_b", Hold: 4, Cause: "finished", PromptTokens: 100, OutputTokens: 20},
	} {
		e.TS = start.Add(time.Duration(e.Mono - ms(0)))
		if i > 5 { // the wall clock steps; the gateway's own does not
			e.TS = e.TS.Add(time.Hour)
		}
		b.note(&e)
	}
	want := &bench.Observed{
		Holds: []bench.Hold{
			{Request: 0, From: 10, To: 30, Loan: true}, {Request: 0, From: 30, To: 101, Loan: true, Reclaimed: true}, {Request: 1, From: 105, To: 140}, {Request: 0, From: 200, To: 300},
		},
		Recalls: []bench.Recall{{Class: "interactive", OpenedMS: 100, GrantedMS: num(0), ScheduledMS: num(7), SettledMS: num(20), Reclaims: 1}},
	}
	if d := cmp.Diff(want, o); d != "" {
		t.Errorf("observed (-want +have):\n%s", d)
	}
	l := &r.job.Lines[0]
	if *l.AdmittedMS != 30 || *l.ScheduledMS != 33 || l.Reclaims != 1 || l.Recomputed != 100+8-64 {
		t.Errorf("line %+v: admitted %v, scheduled %v", l, *l.AdmittedMS, *l.ScheduledMS)
	}
}
