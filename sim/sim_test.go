package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/simengine"
	"headgate/trace"
)

// draw makes a small lawful trace.
func draw(t *rapid.T) []trace.Entry {
	var at time.Duration
	requests := make([]trace.Entry, rapid.IntRange(1, 30).Draw(t, "requests"))
	for i := range requests {
		at += time.Duration(rapid.IntRange(0, 4000).Draw(t, "gap")) * time.Millisecond
		q := trace.Entry{ID: fmt.Sprint("r", i), Class: trace.Interactive, Arrival: at, PromptTokens: 118, MaxTokens: 16, Output: 16}
		if rapid.Bool().Draw(t, "batch") {
			q.Class, q.PromptTokens, q.MaxTokens = trace.Batch, rapid.IntRange(1, 1607).Draw(t, "prompt"), 64
			q.Output = rapid.IntRange(1, 64).Draw(t, "output")
		}
		requests[i] = q
	}
	return requests
}

func simulate(t interface{ Fatal(...any) }, requests []trace.Entry, name string) *Run {
	arm, err := NewArm(name, simengine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	run, err := Simulate(&trace.Trace{Entries: requests}, arm)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Every request of every arm ends once, in an order that makes sense, with the
// output it was to have; and the same input gives the same run.
func TestEveryRequestEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := draw(t)
		name := rapid.SampledFrom(ArmNames()).Draw(t, "arm")
		run := simulate(t, requests, name)
		if diff := cmp.Diff(run, simulate(t, requests, name)); diff != "" {
			t.Fatalf("two runs of the same trace differ: %s", diff)
		}
		for i := range run.Records {
			r := &run.Records[i]
			switch r.Outcome {
			case Completed:
				order := []time.Duration{r.Arrival, r.Admitted, r.Scheduled, r.First, r.Done}
				if !slices.IsSorted(order) || r.Tokens != r.Output {
					t.Fatalf("%s: %v, %d tokens of %d", r.ID, order, r.Tokens, r.Output)
				}
			case Rejected:
				if r.Cause == "" || r.First != -1 || r.Done != -1 {
					t.Fatalf("refused, and yet: %+v", *r)
				}
				if strings.HasSuffix(name, "queued") || !strings.HasPrefix(name, "static") && !strings.HasPrefix(name, "lending") {
					t.Fatalf("%s refused %s: %s", name, r.ID, r.Cause)
				}
			default:
				t.Fatalf("%s never ended", r.ID)
			}
		}
	})
}

// Admission never reads a true output length: up to the moment at which the
// first answer ends, what it decides does not depend on any.
func TestAdmissionDoesNotKnowTheOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := draw(t)
		other := slices.Clone(requests)
		for i := range other {
			other[i].Output = rapid.IntRange(1, other[i].MaxTokens).Draw(t, "other output")
		}
		name := rapid.SampledFrom([]string{"static", "static-queued", "lending", "lending-queued", "headgate"}).Draw(t, "arm")
		a, b := simulate(t, requests, name), simulate(t, other, name)
		end := time.Duration(1<<63 - 1)
		for _, run := range []*Run{a, b} {
			for i := range run.Records {
				if d := run.Records[i].Done; d >= 0 {
					end = min(end, d)
				}
			}
		}
		// A client hears of an end some milliseconds after the engine, so what is
		// compared ends before that.
		end -= 100 * time.Millisecond
		for i := range a.Records {
			x, y := &a.Records[i], &b.Records[i]
			if x.Arrival < end && (x.Admitted < end || y.Admitted < end) && x.Admitted != y.Admitted {
				t.Fatalf("%s was admitted at %v with an output of %d and at %v with %d", x.ID, x.Admitted, x.Output, y.Admitted, y.Output)
			}
		}
	})
}

// One recall, in the lending arm with a queue: three batch requests hold three
// slots, the fourth goes to the first interactive one, and the next two wait for
// batch to give back what it borrowed.
func TestRecall(t *testing.T) {
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	batch := func(n int) trace.Entry {
		return trace.Entry{ID: fmt.Sprint("b", n), Class: trace.Batch, Arrival: at(float64(n)), PromptTokens: 400, MaxTokens: 64, Output: 64}
	}
	chat := func(n int, s float64) trace.Entry {
		return trace.Entry{ID: fmt.Sprint("i", n), Class: trace.Interactive, Arrival: at(s), PromptTokens: 118, MaxTokens: 16, Output: 16}
	}
	run := simulate(t, []trace.Entry{batch(1), batch(2), batch(3), batch(4), chat(1, 5), chat(2, 5.1), chat(3, 5.2)}, "lending-queued")
	if len(run.Recalls) != 1 {
		t.Fatalf("%d recalls, want 1", len(run.Recalls))
	}
	c := run.Recalls[0]
	if c.Class != trace.Interactive || c.Opened != at(5.1) || c.Granted != 0 || c.Settled <= 0 || c.Scheduled <= 0 {
		t.Fatalf("recall %+v", c)
	}
	by := map[string]*Record{}
	for i := range run.Records {
		by[run.Records[i].ID] = &run.Records[i]
	}
	if r := by["i1"]; r.Admitted != r.Arrival {
		t.Errorf("the unlent slot was not there: %v", r.Admitted)
	}
	if by["b4"].Admitted < by["i3"].Admitted {
		t.Errorf("batch borrowed at %v while interactive waited until %v", by["b4"].Admitted, by["i3"].Admitted)
	}
	if !by["b2"].Loan || by["b1"].Loan {
		t.Errorf("loans: b1 %v, b2 %v", by["b1"].Loan, by["b2"].Loan)
	}
}

func TestRefuses(t *testing.T) {
	if _, err := NewArm("magic", simengine.DefaultConfig()); err == nil || !strings.Contains(err.Error(), `"magic"`) || !strings.Contains(err.Error(), "lending-queued") {
		t.Errorf("unknown arm: %v", err)
	}
	arm, _ := NewArm("static", simengine.DefaultConfig())
	for _, c := range []struct {
		requests []trace.Entry
		want     string
	}{
		{[]trace.Entry{{ID: "a", Class: trace.Batch, Arrival: 2}, {ID: "b", Class: trace.Batch, Arrival: 1}}, "order of arrival"},
		{[]trace.Entry{{ID: "a", Class: "gold", PromptTokens: 1, Output: 1}}, `"gold"`},
	} {
		if _, err := Simulate(&trace.Trace{Entries: c.requests}, arm); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
