package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

func seeds(n int) []uint32 {
	var all []uint32
	for i := range n {
		all = append(all, uint32(i+1))
	}
	return all
}

// printed runs a plan and returns all that comes of it, as text.
func printed(t *testing.T, p *Plan) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	rep, err := Execute(p, func(arm string, s *Source, t *trace.Trace, r *Record) error {
		return WriteRequest(enc, arm, s, t, r)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(enc.Encode(rep), rep.WriteTable(&b)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// However many runs go on at once, what comes of a plan is the same, byte for
// byte.
func TestExecuteInParallel(t *testing.T) {
	p := &Plan{Traces: Drawn([]string{"metal-long-context-v1", "metal-balanced-v1"}, seeds(5)), Arms: ArmNames(), Engine: simengine.DefaultConfig()}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	want := printed(t, p)
	for _, n := range []int{2, 7} {
		runtime.GOMAXPROCS(n)
		if d := cmp.Diff(want, printed(t, p)); d != "" {
			t.Errorf("%d at once give another result:\n%s", n, d)
		}
	}
}

// A report of several profiles is their sum, with each one's own report, as if
// it had been alone, beside it.
func TestReportByProfile(t *testing.T) {
	names := []string{"metal-long-context-v1", "metal-balanced-v1"}
	execute := func(profiles ...string) *Report {
		rep, err := Execute(&Plan{Traces: Drawn(profiles, seeds(3)), Arms: []string{"priority", "lending"}, Engine: simengine.DefaultConfig()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	both := execute(names...)
	if both.Profile != "metal-long-context-v1,metal-balanced-v1" || len(both.Seeds) != 6 || len(both.Profiles) != 2 {
		t.Fatalf("profile %s, seeds %v, %d profiles", both.Profile, both.Seeds, len(both.Profiles))
	}
	for i, name := range names {
		alone := execute(name)
		if alone.Profiles != nil || len(alone.Arms[1].PerSeed) != 3 {
			t.Errorf("%s alone: profiles %v, %d seeds", name, alone.Profiles, len(alone.Arms[1].PerSeed))
		}
		if d := cmp.Diff(alone, both.Profiles[i], cmp.AllowUnexported(Report{})); d != "" {
			t.Errorf("%s alone and beside another (-alone +beside):\n%s", name, d)
		}
	}
	for k := range both.Arms {
		sum := Sum([]Score{both.Profiles[0].Arms[k].Score, both.Profiles[1].Arms[k].Score})
		if d := cmp.Diff(sum, both.Arms[k].Score, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s is not the sum of its profiles:\n%s", both.Arms[k].Name, d)
		}
	}
}

// A trace that is read gives what the one that is drawn gives.
func TestReadAsDrawn(t *testing.T) {
	drawn := Drawn([]string{"fixed-burst-v3"}, seeds(2))
	read := make([]Source, len(drawn))
	for i := range drawn {
		tr, err := drawn[i].load()
		if err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		if _, err := tr.WriteTo(&file); err != nil {
			t.Fatal(err)
		}
		if tr, err = trace.Read(&file, "f", trace.Batch); err != nil {
			t.Fatal(err)
		}
		read[i] = FromFile("f", tr)
	}
	var reports []*Report
	for _, traces := range [][]Source{drawn, read} {
		rep, err := Execute(&Plan{Traces: traces, Arms: ArmNames(), Engine: simengine.DefaultConfig()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range rep.Arms {
			if a.Recalls == nil {
				t.Errorf("%s: recalls are null, want a list", a.Name)
			}
			for i := range a.PerSeed {
				a.PerSeed[i].File = ""
			}
		}
		reports = append(reports, rep)
	}
	if d := cmp.Diff(reports[0], reports[1], cmpopts.IgnoreUnexported(Report{})); d != "" {
		t.Error(d)
	}
}

// A prompt that leaves no room for output is skipped in every arm alike, and
// counted; it is no offer, and its line says so.
func TestSkipped(t *testing.T) {
	entry := func(n, prompt int, class string) trace.Entry {
		return trace.Entry{ID: fmt.Sprint("r", n), Class: class, PromptTokens: prompt, Output: 8}
	}
	tr := &trace.Trace{Profile: "p", Skipped: 7, Entries: []trace.Entry{
		entry(1, 4096, trace.Interactive), entry(2, 4095, trace.Interactive), entry(3, 1<<24, trace.Batch), entry(4, 5, trace.Batch),
	}}
	var lines []string
	rep, err := Execute(&Plan{
		Traces: []Source{FromFile("p.csv", tr)}, Arms: []string{"fcfs", "static-queued"}, Engine: simengine.DefaultConfig(),
	}, func(arm string, s *Source, _ *trace.Trace, r *Record) error {
		lines = append(lines, fmt.Sprintf("%s %s %s %s %v", arm, s, r.ID, r.Outcome, r.Admitted >= 0))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"fcfs p.csv r1 skipped false", "fcfs p.csv r2 completed true", "fcfs p.csv r3 skipped false", "fcfs p.csv r4 completed true",
		"static-queued p.csv r1 skipped false", "static-queued p.csv r2 completed true", "static-queued p.csv r3 skipped false", "static-queued p.csv r4 completed true",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Error(d)
	}
	if rep.Skipped != 2 || rep.LeftOut != 7 || rep.Arms[1].PerSeed[0].Skipped != 2 || rep.Arms[1].Interactive.Offered != 1 || rep.Arms[1].Batch.Offered != 1 {
		t.Errorf("%+v", rep)
	}
	var table strings.Builder
	if err := rep.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	const head = "p, 1 traces, speed 1\n" +
		"requests skipped, whose prompts leave no room for output in the engine's 4096 tokens: 2\n" +
		"requests left out, which the recorded service had failed: 7\narm "
	if !strings.HasPrefix(table.String(), head) {
		t.Errorf("table:\n%s\nwant it to begin with\n%s", table.String(), head)
	}
	if len(tr.Entries) != 4 || tr.Entries[0].ID != "r1" {
		t.Error("skipping changed the trace, which runs share")
	}
}

func TestExecuteRefuses(t *testing.T) {
	gold := &trace.Trace{Profile: "p", Entries: []trace.Entry{{ID: "a", Class: "gold", PromptTokens: 1, Output: 1}}}
	small := simengine.DefaultConfig()
	small.MaxNumSeqs = 1
	llama := simengine.LlamaServerConfig(4, 8192, true)
	llama.Model = simengine.DefaultModel()
	alone := &Policy{Table: &admission.Table{
		Engines: []admission.EngineSpec{EngineSpec(simengine.DefaultConfig())},
		Classes: []admission.ClassSpec{{Name: trace.Interactive, Ceiling: admission.Of(4, 5104), DefaultOut: 1}},
	}}
	stop := errors.New("stop")
	for _, c := range []struct {
		plan Plan
		each func(string, *Source, *trace.Trace, *Record) error
		want string
	}{
		{Plan{Arms: []string{"fcfs", "magic"}, Traces: Drawn([]string{"nope"}, seeds(1))}, nil, `arm "magic" is not known`},
		{Plan{Arms: []string{"fcfs"}, Traces: Drawn([]string{"metal-balanced-v1", "nope", "neither"}, seeds(3))}, nil, `profile "nope" is not known`},
		{Plan{Arms: []string{"static"}, Traces: []Source{FromFile("g.json", gold)}}, nil, `g.json: request a is of class "gold", which arm static does not have: its classes are interactive, batch`},
		{Plan{Arms: []string{"fcfs", "static"}, Traces: Drawn([]string{"nope"}, seeds(1)), Engine: small}, nil, `arm static on an engine of 1 slots: classes is 2: allowed is floors of slots that sum to at most the envelope of 1`},
		{Plan{Arms: []string{"fcfs", "priority"}, Traces: Drawn([]string{"nope"}, seeds(1)), Engine: llama}, nil, `arm "priority" is about priorities, and llama-server has none: allowed are fcfs, static, `},
		{Plan{Arms: []string{"fcfs", "headgate"}, Traces: Drawn([]string{"metal-balanced-v1"}, seeds(1)), Policy: alone}, nil, `profile metal-balanced-v1, seed 1: request batch-1 is of class "batch", which arm headgate does not have: its classes are interactive`},
		{Plan{Arms: []string{"fcfs"}, Traces: Drawn([]string{"metal-balanced-v1"}, seeds(30))}, func(string, *Source, *trace.Trace, *Record) error { return stop }, "stop"},
	} {
		if c.plan.Engine.MaxNumSeqs == 0 {
			c.plan.Engine = simengine.DefaultConfig()
		}
		if rep, err := Execute(&c.plan, c.each); err == nil || !strings.HasPrefix(err.Error(), c.want) || rep != nil {
			t.Errorf("%v: want %s", err, c.want)
		}
	}
}

// A run can be stopped at any of its moments, and one that is not comes to the same.
func TestStop(t *testing.T) {
	p := &Plan{Traces: Drawn([]string{"metal-balanced-v1"}, seeds(2)), Arms: []string{Headgate}, Engine: simengine.DefaultConfig(), Workers: 1}
	want := printed(t, p)
	asked := 0
	p.Stop = func() error { asked++; return nil }
	if d := cmp.Diff(want, printed(t, p)); d != "" {
		t.Errorf("asking changes what comes of it:\n%s", d)
	}
	if asked < 10 {
		t.Fatalf("it was asked %d times", asked)
	}
	enough := errors.New("enough")
	for _, at := range []int{1, asked / 2, asked} {
		n := 0
		p.Stop = func() error {
			if n++; n >= at {
				return enough
			}
			return nil
		}
		if rep, err := Execute(p, nil); !errors.Is(err, enough) || rep != nil || n > at+1 { // the other trace may begin
			t.Errorf("stopped at %d of %d: %v after %d", at, asked, err, n)
		}
	}
}
