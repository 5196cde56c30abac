package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/simengine"
	"headgate/trace"
)

// TestBacklogNeverRunsOut: until its time is over so many of a backlog's requests are
// under way, no more and no fewer, whatever the arm; and the same input gives the same
// run.
func TestBacklogNeverRunsOut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr, err := trace.Generate("metal-balanced-v1", rapid.Uint32Range(1, 30).Draw(rt, "seed"))
		if err != nil {
			rt.Fatal(err)
		}
		arm, err := NewArm(rapid.SampledFrom([]string{"fcfs", "priority", "static-queued", "lending-queued", Headgate}).Draw(rt, "arm"), simengine.DefaultConfig())
		if err != nil {
			rt.Fatal(err)
		}
		b := &Backlog{
			Shapes: []trace.Entry{
				{ID: "b", Class: trace.Batch, PromptTokens: rapid.IntRange(1, 1600).Draw(rt, "prompt"), Output: rapid.IntRange(1, 64).Draw(rt, "output")},
				{ID: "c", Class: trace.Batch, PromptTokens: 100, Output: 20, MaxTokens: 20},
			},
			Depth: rapid.IntRange(1, 12).Draw(rt, "depth"), Until: 60 * time.Second,
		}
		run, err := SimulateWith(tr, arm, b)
		if err != nil {
			rt.Fatal(err)
		}
		type edge struct {
			at time.Duration
			by int
		}
		var edges []edge
		overhead := time.Duration(arm.Engine.Model.Overhead * float64(time.Millisecond))
		extra := run.Records[len(tr.Entries):]
		for i, r := range extra {
			if r.Outcome != Completed || r.Arrival >= b.Until || r.PromptTokens != b.Shapes[i%2].PromptTokens {
				rt.Fatalf("request %d of the backlog: %+v", i, r)
			}
			edges = append(edges, edge{r.Arrival, 1}, edge{r.Done - overhead, -1})
		}
		slices.SortStableFunc(edges, func(a, b edge) int { return int(a.at - b.at) })
		n := 0
		for i, e := range edges {
			if n += e.by; (i+1 == len(edges) || edges[i+1].at > e.at) && e.at < b.Until && n != b.Depth {
				rt.Fatalf("%d under way at %v, want %d", n, e.at, b.Depth)
			}
		}
		for i := range run.Records[:len(tr.Entries)] {
			if run.Records[i].ID != tr.Entries[i].ID {
				rt.Fatalf("record %d is of %s", i, run.Records[i].ID)
			}
		}
		again, err := SimulateWith(tr, arm, b)
		if err != nil {
			rt.Fatal(err)
		}
		if d := cmp.Diff(run, again); d != "" {
			rt.Fatalf("(-first +second):\n%s", d)
		}
	})
}

// TestBacklogIsRefused: a client that is refused comes again a second later, and not at
// once without end.
func TestBacklogIsRefused(t *testing.T) {
	arm, err := NewArm("static", simengine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	tr := &trace.Trace{Entries: []trace.Entry{{ID: "i", Class: trace.Interactive, PromptTokens: 100, Output: 16}}}
	run, err := SimulateWith(tr, arm, &Backlog{Shapes: []trace.Entry{{ID: "b", Class: trace.Batch, PromptTokens: 100, Output: 64}}, Depth: 2, Until: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var done, refused []time.Duration
	for _, r := range run.Records[1:] {
		switch r.Outcome {
		case Completed:
			done = append(done, r.Arrival)
		case Rejected:
			refused = append(refused, r.Arrival)
		default:
			t.Fatalf("%+v", r)
		}
	}
	if len(done) < 3 || len(refused) < 10 || len(refused) > 20 {
		t.Errorf("done of those that came at %v, refused at %v", done, refused)
	}
}

func TestBacklogIsChecked(t *testing.T) {
	tr := &trace.Trace{}
	batch := []trace.Entry{{ID: "b", Class: trace.Batch, PromptTokens: 1, Output: 1}}
	for want, b := range map[string]*Backlog{
		"0 requests at once": {Shapes: batch}, "without shapes": {Depth: 1}, `of class "odd"`: {Depth: 1, Shapes: []trace.Entry{{ID: "b", Class: "odd"}}},
	} {
		arm, err := NewArm(Headgate, simengine.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := SimulateWith(tr, arm, b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
