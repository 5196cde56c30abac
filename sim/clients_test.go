package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// A client that is out of patience has gone, whatever its request was doing, and
// nothing of it is left behind: the engine is empty in the end, and so is the core.
func TestPatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := draw(t)
		e := simengine.DefaultConfig()
		e.PrefixCaching = rapid.Bool().Draw(t, "caches")
		arm, err := NewArm(rapid.SampledFrom(ArmNames()).Draw(t, "arm"), e)
		if err != nil {
			t.Fatal(err)
		}
		patience := time.Duration(rapid.IntRange(1, 20_000).Draw(t, "patience")) * time.Millisecond
		arm.Clients.Patience = map[string]time.Duration{trace.Interactive: patience, trace.Batch: 2 * patience}
		r := ran(t, requests, arm)
		if s := r.engine.Stats(); s.Running+s.Waiting > 0 || r.queued > 0 {
			t.Fatalf("at the end the engine runs %d and has %d waiting, admission has %d", s.Running, s.Waiting, r.queued)
		}
		for i := range r.run.Records {
			q := &r.run.Records[i]
			until := q.Arrival + arm.Clients.Patience[q.Class]
			switch {
			case q.Outcome == Completed && q.Done > until+time.Second: // the client reads its answer a little later
				t.Fatalf("%s was answered at %v, when its client had gone at %v", q.ID, q.Done, until)
			case q.Outcome == Failed && (q.Cause != admission.CauseClientGone.String() || q.Done >= 0 || q.First > until+time.Second):
				t.Fatalf("%s: %s, first token at %v, answered at %v; its client had gone at %v", q.ID, q.Cause, q.First, q.Done, until)
			case q.Outcome == "":
				t.Fatalf("%s has no end", q.ID)
			}
		}
	})
}

// An engine takes no more than its bound, whatever clients do, and each request is
// sent as often as its client may.
func TestEngineIsNeverOverItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := draw(t)
		arm, err := NewArm("priority", simengine.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		arm.MaxQueued = rapid.IntRange(1, 8).Draw(t, "bound")
		arm.Clients.Attempts = rapid.IntRange(0, 5).Draw(t, "attempts")
		arm.Clients.Backoff = time.Duration(rapid.IntRange(1, 4000).Draw(t, "backoff")) * time.Millisecond
		r := ran(t, requests, arm)
		sum := map[Outcome]int{}
		for i := range r.run.Records {
			q, f := &r.run.Records[i], &r.flights[i]
			sum[q.Outcome]++
			if most := max(arm.Clients.Attempts, 1); int(f.refused) > most || q.Outcome == Rejected && int(f.refused) != most {
				t.Fatalf("%s was refused %d times and ended %s: its client sends it %d times", q.ID, f.refused, q.Outcome, most)
			}
		}
		if sum[Completed]+sum[Rejected] != len(requests) {
			t.Fatalf("of %d requests: %v", len(requests), sum)
		}
		// Who is at the engine at once, by the records: from being let in to the end.
		for i := range r.run.Records {
			at, n := r.run.Records[i].Admitted, 0
			for k := range r.run.Records {
				if q := &r.run.Records[k]; at >= 0 && q.Admitted >= 0 && q.Admitted <= at && q.Done > at+time.Second {
					n++
				}
			}
			if n > arm.MaxQueued {
				t.Fatalf("at %v the engine has %d requests, of at most %d", at, n, arm.MaxQueued)
			}
		}
	})
}

// What happens to five requests at an engine that takes two: by when each is
// let in, and how it ends.
func TestRefusedBySize(t *testing.T) {
	var requests []trace.Entry
	for i := range 5 {
		requests = append(requests, trace.Entry{
			ID: fmt.Sprint("r", i), Class: trace.Interactive, PromptTokens: 118, MaxTokens: 16, Output: 16, Draw: trace.Draw{RetryJitter: 1 + float64(i)/100},
		})
	}
	for _, c := range []struct {
		name    string
		clients Clients
		want    string
	}{
		{"sent once", Clients{}, "r0 0s completed\nr1 0s completed\nr2 - rejected engine_full\nr3 - rejected engine_full\nr4 - rejected engine_full\n"},
		{
			"sent three times", Clients{Attempts: 3, Backoff: time.Second},
			"r0 0s completed\nr1 0s completed\nr2 3.06s completed\nr3 3.09s completed\nr4 - rejected engine_full\n",
		},
		{
			"until patience ends", Clients{Attempts: 9, Backoff: time.Second, Patience: map[string]time.Duration{trace.Interactive: 6 * time.Second}},
			"r0 0s completed\nr1 0s completed\nr2 3.06s completed\nr3 3.09s completed\nr4 - failed client_gone\n",
		},
	} {
		arm, err := NewArm("fcfs", simengine.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		arm.MaxQueued, arm.Clients = 2, c.clients
		run, err := Simulate(&trace.Trace{Entries: requests}, arm)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range run.Records {
			q := &run.Records[i]
			at := "-"
			if q.Admitted >= 0 {
				at = q.Admitted.String()
			}
			got += strings.TrimSpace(fmt.Sprintf("%s %s %s %s", q.ID, at, q.Outcome, q.Cause)) + "\n"
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}
