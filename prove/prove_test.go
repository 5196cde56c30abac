package prove

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/journal"
	"headgate/prove/provetest"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

// engineOf is what the tests' journals are of: the M1 model, faster.
func engineOf(speed float64) simengine.Config {
	e := simengine.DefaultConfig()
	e.Speed, e.MaxNumSeqs, e.NumBlocks, e.MaxModelLen = speed, 8, 1025, 8192
	return e
}

func policy(t testing.TB, e simengine.Config) *sim.Policy {
	t.Helper()
	a, err := sim.NewArm(sim.Headgate, e)
	if err != nil {
		t.Fatal(err)
	}
	a.Table.Engines[0].Ordered = false
	return &sim.Policy{Table: a.Table, Priority: a.Priority}
}

// written is a journal of requests that were served in virtual time.
func written(t testing.TB, entries []trace.Entry, arm *sim.Arm, length time.Duration, limits admission.Objective) []journal.Event {
	t.Helper()
	all, err := provetest.Journal(entries, arm, length, limits)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func squeezed(t testing.TB, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func plan(t testing.TB, r *Recording, e simengine.Config) *Plan {
	return &Plan{
		Recording: r, Engine: e, ModelGiven: true, GPUs: 1, Proposed: policy(t, e), PresentWords: "as it came", ProposedWords: "the default policy",
		Batch: Batch{Prompt: 1000, Output: 200}, Block: 5 * time.Minute, Margin: 0.005,
	}
}

func observedArm(e simengine.Config) *sim.Arm {
	a := &sim.Arm{Name: "fcfs", Engine: e}
	a.Engine.Policy = simengine.FCFS
	return a
}

// TestReplayIsTheRecording: a journal that the model itself made is replayed exactly, to
// the request and the time, whether the pool observed or enforced.
func TestReplayIsTheRecording(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64Range(1, 1<<30).Draw(rt, "seed")
		enforced := rapid.Bool().Draw(rt, "enforced")
		rate := rapid.Float64Range(0.2, 2).Draw(rt, "rate")
		e := engineOf(0.2)
		entries := provetest.Day(seed, 10*time.Minute, max(rate, 0.5), true)
		limits := admission.Objective{First: 500 * time.Millisecond, Whole: 4 * time.Second, Token: 60 * time.Millisecond}
		arm := observedArm(e)
		if enforced {
			p := policy(t, e)
			arm.Table = p.Table
		}
		r, err := Record(Source{Files: []string{file(t, "j.jsonl", provetest.Lines(written(t, entries, arm, 10*time.Minute, limits)))}})
		if err != nil {
			rt.Fatal(err)
		}
		if r.Observed == enforced || len(r.Requests) != len(entries) {
			rt.Fatalf("observed %v, %d requests of %d", r.Observed, len(r.Requests), len(entries))
		}
		p := plan(t, r, e)
		if enforced {
			p.Present = p.Proposed
		}
		rep, err := Run(p)
		if err != nil {
			rt.Fatal(err)
		}
		c := rep.Check
		if c.Agree != c.Scored || c.OnTimeRecorded != c.OnTimeReplayed || c.TTFT.MedianErrorMS != 0 || *c.E2E.P90Error != 0 {
			rt.Fatalf("the replay of a replay differs: %+v", c)
		}
		if len(rep.Distrust) > 0 {
			rt.Fatalf("not trusted: %v", rep.Distrust)
		}
		lent := rep.find(ProposedBatch)
		if sum := lent.LentHours + lent.UsedHours; lent.LentHours <= 0 || sum > rep.Capacity.Hours*(1+1e-9) {
			rt.Fatalf("%v hours lent and %v used of %v", lent.LentHours, lent.UsedHours, rep.Capacity.Hours)
		}
		blocks := 0.0
		for _, b := range rep.Blocks {
			blocks += b.LentHours
		}
		if math.Abs(blocks-lent.LentHours) > 1e-9 {
			rt.Fatalf("blocks sum up to %v hours, of %v", blocks, lent.LentHours)
		}
	})
}

// TestPage prints the whole page of a day in the golden file, from which a reader can
// see what it looks like.
func TestPage(t *testing.T) {
	e := engineOf(0.2)
	limits := admission.Objective{First: 2 * time.Second, Whole: 6 * time.Second}
	entries := provetest.Day(3, 2*time.Hour, 0.5, true)
	r, err := Record(Source{Files: []string{file(t, "j.jsonl", provetest.Lines(written(t, entries, observedArm(e), 2*time.Hour, limits)))}})
	if err != nil {
		t.Fatal(err)
	}
	p := plan(t, r, e)
	p.Proposed.Table.Classes[0].Objective = limits
	rep, err := Run(p)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "page.md", rep.Markdown())
	page := string(rep.HTML())
	for _, a := range rep.Answer {
		if !strings.Contains(page, entities(a)) {
			t.Errorf("the page lacks %q", a)
		}
	}
	for _, outside := range []string{"http://", "https://", "<script", "src="} {
		if strings.Contains(page, outside) {
			t.Errorf("the page has %q, so that it may need something else", outside)
		}
	}
	b, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(rep, &back); d != "" {
		t.Errorf("(-made +read):\n%s", d)
	}
}

func golden(t *testing.T, name string, have []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, have, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(have)); d != "" {
		t.Errorf("%s (-want +have):\n%s", name, d)
	}
}

// TestFit: step times that are fitted to a journal replay its other half, whatever the
// engine's speed; those of another engine are not believed.
func TestFit(t *testing.T) {
	for _, speed := range []float64{0.1, 0.3} {
		e := engineOf(speed)
		limits := admission.Objective{First: time.Second, Whole: 6 * time.Second}
		r, err := Record(Source{Files: []string{file(t, "j.jsonl", provetest.Lines(written(t, provetest.Day(7, time.Hour, 0.08/speed, true), observedArm(e), time.Hour, limits)))}})
		if err != nil {
			t.Fatal(err)
		}
		p := plan(t, r, e)
		p.ModelGiven, p.Engine.Model = false, simengine.Model{}
		rep, err := Run(p)
		if err != nil {
			t.Fatal(err)
		}
		c := rep.Check
		t.Logf("speed %v: fit %+v, check %+v", speed, *rep.Fit, c)
		if !c.HeldOut || c.E2E.MedianError > 0.05 || c.TTFT.MedianError > 0.15 || len(rep.Distrust) > 0 {
			t.Errorf("speed %v: off by %v and %v, %v", speed, c.TTFT.MedianError, c.E2E.MedianError, rep.Distrust)
		}
		p = plan(t, r, e)
		p.Engine.Speed *= 2
		if rep, err = Run(p); err != nil {
			t.Fatal(err)
		}
		if len(rep.Distrust) == 0 || !strings.HasPrefix(rep.Answer[0], "The numbers on this page are not to be trusted") || rep.Verdict != "inconclusive" {
			t.Errorf("speed %v: an engine that is half as fast is believed: %v", speed, rep.Answer)
		}
	}
}

// TestPlanRefused: a plan that would prove nothing is refused.
func TestPlanRefused(t *testing.T) {
	e := engineOf(0.1)
	limits := admission.Objective{First: time.Second}
	made := func(events []journal.Event) *Recording {
		r, err := Record(Source{Files: []string{file(t, "j.jsonl", provetest.Lines(events))}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	whole := written(t, provetest.Day(5, 10*time.Minute, 0.5, true), observedArm(e), 10*time.Minute, limits)
	for _, tt := range []struct {
		name   string
		events []journal.Event
		change func(*Plan)
		want   string
	}{
		{"too short", whole[:400], func(*Plan) {}, "needed are at least 100, better a whole day"},
		{"no objective", written(t, provetest.Day(5, 10*time.Minute, 0.5, true), observedArm(e), 10*time.Minute, admission.Objective{}), func(p *Plan) { p.Proposed.Table.Classes[0].Objective = admission.Objective{} }, "give --ttft or --e2e, or an objective in the policy"},
		{"another class", whole, func(p *Plan) { p.Proposed.Table.Classes[0].Name = "chat" }, `of class "interactive", which the proposed policy does not have`},
		{"too long", whole, func(p *Plan) { p.Batch.Prompt, p.Engine.MaxModelLen = 1300, 1400 }, "the engine's longest sequence is 1400"},
		{"no block", whole, func(p *Plan) { p.Block = 0 }, "--block is 0s"},
		{"small blocks", whole, func(p *Plan) { p.Block = time.Millisecond }, "of which the journal's 10m0s are at most 10000"},
		{"all alike", whole, func(p *Plan) {
			p.ModelGiven = false
			for i := range p.Recording.Requests {
				p.Recording.Requests[i].First = -1
			}
		}, "step times can't be fitted: of half of the journal's requests 0 have a first token"},
	} {
		p := plan(t, made(tt.events), e)
		tt.change(p)
		if _, err := Run(p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: want %q, got %v", tt.name, tt.want, err)
		}
	}
}

// TestFewBlocks: with too few blocks there is no interval, and the page says so.
func TestFewBlocks(t *testing.T) {
	e := engineOf(0.1)
	r, err := Record(Source{Files: []string{file(t, "j.jsonl", provetest.Lines(tenMinutes(t)))}})
	if err != nil {
		t.Fatal(err)
	}
	p := plan(t, r, e)
	p.Block = time.Minute
	rep, err := Run(p)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Verdict != "inconclusive" || rep.Capacity.Interval.Low != nil || !strings.Contains(strings.Join(rep.Answer, " "), "could not tell: 10 blocks, needed are 20") {
		t.Errorf("%s: %v", rep.Verdict, rep.Answer)
	}
}

// TestDistrusted: each reason not to believe a replay is found and said.
func TestDistrusted(t *testing.T) {
	rep := &Report{Recording: Summary{Requests: 90, Prompt: 100, Cached: 30, Refused: map[string]int{"queue_full": 10}}}
	late := 3.0
	rep.Check = Check{Scored: 100, OnTimeRecorded: 90, OnTimeReplayed: 93, TTFT: TimeError{P95RecordedS: 1, P95ReplayedS: &late}, E2E: TimeError{MedianError: 0.3, MedianErrorMS: 400, P95RecordedS: 1}}
	rep.Distrust = Distrust(&rep.Check, &rep.Recording)
	want := []string{"has 93 % on time, the journal 90 %", "first token is 1.00 s in the journal and 3.00 s", "whole answer is off by 30 %", "whole answer is 1.00 s in the journal and never", "30 % of the prompts' tokens", "10 of 100 requests could not be replayed"}
	if len(rep.Distrust) != len(want) {
		t.Fatalf("%q", rep.Distrust)
	}
	for i := range want {
		if !strings.Contains(rep.Distrust[i], want[i]) {
			t.Errorf("%q lacks %q", rep.Distrust[i], want[i])
		}
	}
}
