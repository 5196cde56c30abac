package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// ran is a run that is over, with its engine.
func ran(t interface{ Fatal(...any) }, entries []trace.Entry, arm *Arm) *runner {
	r, err := simulation(&trace.Trace{Entries: entries}, arm, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.all(entries); err != nil {
		t.Fatal(err)
	}
	return r
}

// What the records say that the engine did is what the engine says: nothing is
// counted twice and nothing left out, and who was never interrupted had his
// prompt computed once.
func TestRecordsAddUpToTheEngine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := draw(t)
		e := simengine.DefaultConfig()
		e.PrefixCaching = rapid.Bool().Draw(t, "caches")
		e.NumBlocks = rapid.IntRange(258, 340).Draw(t, "blocks")
		e.MaxBatchedTokens = rapid.SampledFrom([]int{512, 2048}).Draw(t, "budget")
		arm, err := NewArm(rapid.SampledFrom(ArmNames()).Draw(t, "arm"), e)
		if err != nil {
			t.Fatal(err)
		}
		r := ran(t, requests, arm)
		prefilled, preemptions := 0, 0
		for i := range r.run.Records {
			q := &r.run.Records[i]
			prefilled += q.Prefilled
			preemptions += q.Preemptions
			switch again := q.Preemptions+q.Reclaims > 0; {
			case q.Outcome == Completed && q.Prefilled < q.PromptTokens:
				t.Fatalf("%s: %d tokens of a prompt of %d were computed", q.ID, q.Prefilled, q.PromptTokens)
			case !again && q.Recomputed() > 0:
				t.Fatalf("%s was never interrupted and had %d tokens computed again", q.ID, q.Recomputed())
			}
		}
		if s := r.engine.Stats(); int64(prefilled) != s.PrefillTokens || int64(preemptions) != s.Preemptions {
			t.Fatalf("%d tokens prefilled and %d preemptions, by the engine %d and %d", prefilled, preemptions, s.PrefillTokens, s.Preemptions)
		}
	})
}

// A piece of a prompt is a dispatch of its own: its token is nobody's answer, and
// what it has computed need not be computed again.
func TestWarm(t *testing.T) {
	e := simengine.DefaultConfig()
	e.PrefixCaching = true
	arm, err := NewArm("headgate", e)
	if err != nil {
		t.Fatal(err)
	}
	r, err := simulation(&trace.Trace{Entries: []trace.Entry{{ID: "b", Class: trace.Batch, PromptTokens: 1600, Output: 8}}}, arm, nil)
	if err != nil {
		t.Fatal(err)
	}
	run := func() {
		for {
			at, ok := r.engine.Next()
			if !ok {
				return
			}
			r.now = time.Duration(at)
			if err := r.advance(); err != nil {
				t.Fatal(err)
			}
		}
	}
	id := admission.MakeID(1, 0)
	for hold, e := range []admission.Effect{
		{Op: admission.Queued, ID: id},
		{Op: admission.Warm, ID: id, Tokens: 512},
		{Op: admission.Queued, ID: id},
		{Op: admission.Warm, ID: id, Tokens: 1024},
		{Op: admission.Queued, ID: id},
		{Op: admission.Admit, ID: id},
	} {
		e.Hold = admission.Hold(hold)
		if err := r.do(r.gates[0], &e); err != nil {
			t.Fatal(err)
		}
		if waits := e.Op == admission.Queued; waits != (r.queued == 1) {
			t.Errorf("after effect %d: %d wait", hold, r.queued)
		}
		q := &r.run.Records[0]
		if e.Op != admission.Admit && (q.Admitted >= 0 || q.Scheduled >= 0 || q.First >= 0) {
			t.Errorf("after effect %d: a piece was taken for the request: %+v", hold, *q)
		}
		run()
		if want := map[int]int{1: 512, 3: 1024, 5: 1600}[hold]; want != 0 && q.Prefilled != want {
			t.Errorf("after effect %d: %d tokens prefilled, want %d", hold, q.Prefilled, want)
		}
	}
	q := &r.run.Records[0]
	if s := r.engine.Stats(); q.Outcome != Completed || q.Tokens != 8 || q.Recomputed() != 0 || s.PrefixHits != 512+1024 || s.FinishedLength != 3 {
		t.Errorf("%+v, engine %+v", *q, s)
	}
}

// The core splits long prefills by itself where the engine caches prefixes.
func TestHeadgateWarms(t *testing.T) {
	e := simengine.DefaultConfig()
	e.PrefixCaching, e.Speed = true, 2
	arm, err := NewArm("headgate", e)
	if err != nil {
		t.Fatal(err)
	}
	pieces := 0
	for seed := range uint32(5) {
		tr, err := trace.Generate("metal-steady-v1", seed+1)
		if err != nil {
			t.Fatal(err)
		}
		r := ran(t, tr.Entries, arm)
		for i := range r.attempts {
			if r.attempts[i].piece {
				pieces++
			}
		}
		for i := range r.run.Records {
			if q := &r.run.Records[i]; q.Outcome != Completed || q.Tokens != q.Output {
				t.Fatalf("seed %d: %+v", seed+1, *q)
			}
		}
	}
	if pieces == 0 {
		t.Error("no prompt was split")
	}
}

// llama-server: with one context for all, whoever sends it more than it holds
// loses everything that runs; Headgate never does. With a context a slot nobody
// can.
func TestLlamaServer(t *testing.T) {
	var entries []trace.Entry
	for i := range 12 {
		entries = append(entries, trace.Entry{ID: fmt.Sprint("b", i), Class: trace.Batch, Arrival: time.Duration(i) * time.Second, PromptTokens: 900, MaxTokens: 200, Output: 200})
	}
	// Three such requests are a little more than the one holds.
	shared, divided := simengine.LlamaServerConfig(4, 3200, true), simengine.LlamaServerConfig(4, 4*1200, false)
	for _, c := range []struct {
		engine simengine.Config
		arm    string
		fails  bool
	}{
		{shared, "fcfs", true}, {shared, "lending", true}, {shared, "headgate", false},
		{divided, "fcfs", false}, {divided, "headgate", false},
	} {
		arm, err := NewArm(c.arm, c.engine)
		if err != nil {
			t.Fatal(err)
		}
		r := ran(t, entries, arm)
		failed := 0
		for i := range r.run.Records {
			switch q := &r.run.Records[i]; q.Outcome {
			case Failed:
				failed++
				if q.Cause != "failed" || q.Done != -1 {
					t.Errorf("%s: %+v", c.arm, *q)
				}
			case Completed:
				if q.Tokens != q.Output {
					t.Errorf("%s: %+v", c.arm, *q)
				}
			case "":
				t.Errorf("%s: %s never ended", c.arm, q.ID)
			}
		}
		score := NewScore(&trace.Trace{Entries: entries}, &r.run)
		if (failed > 0) != c.fails || int64(failed) != r.engine.Stats().Failures || score.Failed != failed {
			t.Errorf("%s, a context of %d for a slot: %d failed, by the engine %d, in the score %d", c.arm, c.engine.MaxModelLen, failed, r.engine.Stats().Failures, score.Failed)
		}
	}
}

// What a policy sees of an engine.
func TestEngineSpec(t *testing.T) {
	caching := simengine.DefaultConfig()
	caching.PrefixCaching = true
	for _, c := range []struct {
		engine simengine.Config
		want   admission.EngineSpec
	}{
		{simengine.DefaultConfig(), admission.EngineSpec{Name: "engine", Slots: 4, KV: 5104, Block: 16, MaxContext: 4096, Ordered: true, Together: true}},
		{caching, admission.EngineSpec{Name: "engine", Slots: 4, KV: 5104, Block: 16, MaxContext: 4096, Ordered: true, Together: true, Caches: true, Splits: true}},
		{simengine.LlamaServerConfig(4, 8192, true), admission.EngineSpec{Name: "engine", Slots: 4, KV: 8192, Block: 1, MaxContext: 8192, Fatal: true}},
		{simengine.LlamaServerConfig(4, 8192, false), admission.EngineSpec{Name: "engine", Slots: 4, KV: 8192, Block: 1, MaxContext: 2048}},
		{simengine.LlamaServerConfig(1, 8192, true), admission.EngineSpec{Name: "engine", Slots: 1, KV: 8192, Block: 1, MaxContext: 8192}},
	} {
		if d := cmp.Diff(c.want, EngineSpec(c.engine)); d != "" {
			t.Errorf("(-want +have):\n%s", d)
		}
	}
}

// The published arms take three of four slots and one, on any engine.
func TestPublishedArmsScale(t *testing.T) {
	floors := func(name string, slots int) string {
		e := simengine.DefaultConfig()
		e.MaxNumSeqs = slots
		a, err := NewArm(name, e)
		if err != nil {
			t.Fatal(err)
		}
		var parts []string
		for _, c := range a.Table.Classes {
			parts = append(parts, fmt.Sprintf("%d (%d)", c.Floor[admission.Slots], c.Unlent[admission.Slots]))
		}
		a.Table.Validate(func(path string, value any, allowed string) { parts = append(parts, path) })
		return strings.Join(parts, " + ")
	}
	for _, c := range []struct {
		slots           int
		static, lending string
	}{
		{1, "1 (1) + 1 (1) + classes + classes", "1 (1) + 1 (0) + classes + classes"},
		{2, "1 (1) + 1 (1)", "1 (1) + 1 (0)"},
		{4, "3 (3) + 1 (1)", "3 (1) + 1 (0)"},
		{6, "5 (5) + 1 (1)", "5 (1) + 1 (0)"},
		{64, "48 (48) + 16 (16)", "48 (16) + 16 (0)"},
	} {
		for _, name := range []string{"static", "static-queued"} {
			if have := floors(name, c.slots); have != c.static {
				t.Errorf("%s on %d slots: %s, want %s", name, c.slots, have, c.static)
			}
		}
		for _, name := range []string{"lending", "lending-queued"} {
			if have := floors(name, c.slots); have != c.lending {
				t.Errorf("%s on %d slots: %s, want %s", name, c.slots, have, c.lending)
			}
		}
	}
}

// A plan's policy takes the place of the headgate arm's and of no other's, with
// its priorities.
func TestPlanPolicy(t *testing.T) {
	own := &Policy{Table: partition(simengine.DefaultConfig(), 3), Priority: map[string]int{trace.Batch: -1}}
	p := &Plan{Engine: simengine.DefaultConfig(), Policy: own}
	for _, name := range ArmNames() {
		have, err := p.arm(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := NewArm(name, p.Engine)
		if err != nil {
			t.Fatal(err)
		}
		if name == Headgate {
			want.Table, want.Priority = own.Table, own.Priority
		}
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("%s (-want +have):\n%s", name, d)
		}
	}
	if names := ArmsFor(simengine.LlamaServerConfig(1, 64, true)); slices.Contains(names, "priority") || !slices.Contains(names, Headgate) {
		t.Errorf("arms for llama-server: %v", names)
	}
}

// Refusals are counted by their cause, and told where there are any.
func TestRefusalsAreTold(t *testing.T) {
	var entries []trace.Entry
	for i := range 3 {
		entries = append(entries, trace.Entry{ID: fmt.Sprint("b", i), Class: trace.Batch, PromptTokens: 100, Output: 8})
	}
	source := FromFile("f", &trace.Trace{Profile: "p", Entries: entries})
	rep, err := Execute(&Plan{Traces: []Source{source, source}, Arms: []string{"fcfs", "static"}, Engine: simengine.DefaultConfig()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"queue_full": 4}, rep.Arms[1].Refused); d != "" {
		t.Error(d)
	}
	var table strings.Builder
	if err := rep.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if text := table.String(); !strings.HasSuffix(text, "\nstatic refused, queue_full: 4\n") || strings.Contains(text, "fcfs refused") {
		t.Error(text)
	}
}
