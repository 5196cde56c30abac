package advise

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/engine"
	"headgate/probe"
	"headgate/prove"
	"headgate/prove/provetest"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

func engineOf() simengine.Config {
	e := simengine.DefaultConfig()
	e.Speed, e.MaxNumSeqs, e.NumBlocks, e.MaxModelLen = 0.2, 8, 1025, 8192
	return e
}

func recorded(t testing.TB, entries []trace.Entry, arm *sim.Arm, length time.Duration) *prove.Recording {
	t.Helper()
	events, err := provetest.Journal(entries, arm, length, admission.Objective{First: time.Second, Whole: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "journal.jsonl")
	if err := os.WriteFile(file, provetest.Lines(events), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := prove.Record(prove.Source{Files: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func standard(t testing.TB, e simengine.Config) *sim.Arm {
	t.Helper()
	a, err := sim.NewArm(sim.Headgate, e)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// planOf advises on a day of the engine, observed or under the default policy.
func planOf(t testing.TB, enforced bool, perSecond float64, propose ...string) *Plan {
	t.Helper()
	e := engineOf()
	policy := standard(t, e)
	arm := &sim.Arm{Name: "fcfs", Engine: e}
	arm.Engine.Policy = simengine.FCFS
	if enforced {
		arm = policy
	}
	p := &Plan{
		Recording: recorded(t, provetest.Day(5, 20*time.Minute, perSecond, true), arm, 20*time.Minute), ModelGiven: true, Margin: 0.005, Command: "headgate advise JOURNAL", Probe: "headgate probe --url URL --kind KIND --yes",
		Policy:  &sim.Policy{Table: policy.Table, Priority: policy.Priority},
		Present: Settings{Engine: e, Slots: 8, KVTokens: 16384, MaxContext: 8192, Layout: probe.Shared, Priority: enforced, Enforced: enforced},
	}
	for _, text := range propose {
		q, err := ParseProposal(text)
		if err != nil {
			t.Fatal(err)
		}
		p.Propose = append(p.Propose, q)
	}
	return p
}

func run(t testing.TB, p *Plan) *Report {
	t.Helper()
	rep, err := Run(p)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func (rep *Report) find(t testing.TB, proposal string) *Advice {
	t.Helper()
	for i := range rep.Proposals {
		if rep.Proposals[i].Proposal == proposal {
			return &rep.Proposals[i]
		}
	}
	t.Fatalf("no proposal %s in %+v", proposal, rep.Proposals)
	return nil
}

func (p *Plan) probe(findings ...probe.Finding) *Plan {
	p.Profile = &probe.Profile{Format: probe.Format, Kind: engine.VLLM}
	for _, f := range findings {
		f.Confidence, f.Evidence = probe.Shown, []string{"it was seen"}
		p.Profile.Findings = append(p.Profile.Findings, f)
	}
	return p
}

// TestStatuses: a proposal is advised where the replay is better and the probe shows what it
// relies on, and else what it lacks is said.
func TestStatuses(t *testing.T) {
	shared := probe.Finding{Subject: probe.KVLayout, Value: probe.Shared}
	holds := probe.Finding{Subject: probe.KVTokens, Value: 16384.0, Unit: "tokens"}
	const busy, quiet = 0.9, 0.2
	for _, tt := range []struct {
		name    string
		rate    float64
		propose string
		found   []probe.Finding
		status  Status
		first   string
	}{
		{"the KV is another one already", busy, "slots=16,kv_tokens=65536", []probe.Finding{shared, {Subject: probe.KVTokens, Value: 65536.0, Unit: "tokens"}}, Withdrawn, "the KV has 16384 tokens now"},
		{"more slots and KV are needed", busy, "slots=16,kv_tokens=65536", []probe.Finding{shared, holds}, Advised, "Advised: slots=16"},
		{"more slots are needed", busy, "slots=16", []probe.Finding{shared, holds}, Advised, "Advised: slots=16"},
		{"it is not known whether the KV is shared", busy, "slots=16", []probe.Finding{holds}, Unproven, "Unproven, in part"},
		{"the engine has less KV than was said", busy, "slots=16", []probe.Finding{shared, {Subject: probe.KVTokens, Value: 9000.0, Unit: "tokens"}}, Withdrawn, "Withdrawn: slots=16"},
		{"more slots are not needed", quiet, "slots=16", []probe.Finding{shared, holds}, NotAdvised, "Keep the present settings."},
		{"fewer would be worse", busy, "slots=2", []probe.Finding{{Subject: probe.KVLayout, Value: probe.PerSlot}}, NotAdvised, ""},
		{"no class of that name", quiet, "floor.chat=2", nil, Impossible, ""},
		{"what is so already", quiet, "slots=8", nil, Impossible, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rep := run(t, planOf(t, false, tt.rate, tt.propose).probe(tt.found...))
			one := rep.find(t, tt.propose)
			t.Logf("%s\n%+v", rep.Verdict, one)
			if one.Status != tt.status || !strings.Contains(rep.Verdict, tt.first) {
				t.Errorf("%s: %s", one.Status, rep.Verdict)
			}
			if one.Status != Impossible && (len(one.Falsify) == 0 && one.Status != Withdrawn || len(one.Mechanisms) == 0 || len(one.Results) != 1 || !strings.HasPrefix(one.Mechanisms[0].Ask, "headgate probe ")) {
				t.Errorf("%+v", one)
			}
			if !strings.HasPrefix(string(rep.Markdown()), "# "+strings.NewReplacer("`", "'").Replace(rep.Verdict)+"\n") {
				t.Errorf("the page's first line is not the verdict: %.200s", rep.Markdown())
			}
		})
	}
}

// TestLendingReliesOnAborts: taking back at once is worth nothing where an abort takes longer
// than a first token may, unless the engine preempts by itself.
func TestLendingReliesOnAborts(t *testing.T) {
	abort := func(s float64) probe.Finding {
		return probe.Finding{Subject: probe.AbortSeconds, Value: s, Unit: "s"}
	}
	slots := probe.Finding{Subject: probe.Slots, Value: 8.0, Unit: "sequences"}
	for _, tt := range []struct {
		found []probe.Finding
		want  bool // contradicted
	}{
		{[]probe.Finding{slots, abort(0.1)}, false},
		{[]probe.Finding{slots, abort(30)}, true},
		{[]probe.Finding{slots, abort(30), {Subject: probe.Waiting, Value: probe.Preempts}}, false},
		{[]probe.Finding{slots, abort(30), {Subject: probe.Waiting, Value: probe.Waits}}, true},
		{[]probe.Finding{abort(0.1), {Subject: probe.Slots, Value: 4.0, Unit: "sequences"}}, true},
	} {
		one := run(t, planOf(t, false, 1, "mode=enforce").probe(tt.found...)).find(t, "mode=enforce")
		if (one.Status == Withdrawn) != tt.want {
			t.Errorf("%+v: %s, %+v", tt.found, one.Status, one.Mechanisms)
		}
	}
}

// TestCandidates: what the rules make of a day.
func TestCandidates(t *testing.T) {
	names := func(p *Plan) string {
		var all []string
		for _, o := range run(t, p).Proposals {
			all = append(all, o.Proposal)
		}
		return strings.Join(all, " ")
	}
	if got := names(planOf(t, false, 0.2)); !strings.Contains(got, "slots=") || !strings.Contains(got, "mode=enforce") || strings.Contains(got, "slots=16") {
		t.Errorf("quiet, observed: %s", got)
	}
	if got := names(planOf(t, false, 2.4)); !strings.Contains(got, "slots=16") || !strings.Contains(got, "kv_dtype=fp8") {
		t.Errorf("busy, observed: %s", got)
	}
	p := planOf(t, true, 1)
	p.Policy.Table.Classes[1].Mode = admission.Attrition
	p.Policy.Table.Classes[0].Floor[admission.Slots], p.Policy.Table.Classes[0].Unlent[admission.Slots] = 3, 2
	p.OnTime = admission.Objective{Whole: 500 * time.Millisecond}
	got := names(p)
	for _, want := range []string{"reclaim.batch=reclaim", "unlent.interactive=0", "floor.interactive=8"} {
		if !strings.Contains(got, want) {
			t.Errorf("enforced: %s lacks %s", got, want)
		}
	}
}

// TestRegimesAreToldApart: after a change of the models advice is for what came since, and
// each part has its own figures; it is said in the first line.
func TestRegimesAreToldApart(t *testing.T) {
	p := planOf(t, false, 0.7, "slots=4")
	r := p.Recording
	for i := range r.Requests {
		r.Requests[i].Model = "old"
		if r.Requests[i].Arrival > r.Length/2 {
			r.Requests[i].Model = "new"
		}
	}
	rep := run(t, p)
	one := rep.find(t, "slots=4")
	if len(rep.Regimes) != 2 || len(one.Results) != 2 || !strings.Contains(rep.Verdict, "The traffic is not one: it changed once, at 2026-03-02 00:09:5") || !strings.Contains(rep.Verdict, "in its models") {
		t.Fatalf("%s\n%+v", rep.Verdict, rep.Regimes)
	}
	whole := run(t, planOf(t, false, 0.7, "slots=4")).find(t, "slots=4").Results[0]
	a, b := one.Results[0], one.Results[1]
	if a.Blocks+b.Blocks != whole.Blocks || a.OnTime.Offered+b.OnTime.Offered != whole.OnTime.Offered || a.OnTime.Proposed+b.OnTime.Proposed != whole.OnTime.Proposed {
		t.Errorf("the parts are not the whole: %+v and %+v of %+v", a, b, whole)
	}
}

// TestDistrusted: nothing is advised by a replay that is unlike the day.
func TestDistrusted(t *testing.T) {
	p := planOf(t, false, 0.9, "slots=16").probe(probe.Finding{Subject: probe.KVLayout, Value: probe.Shared}, probe.Finding{Subject: probe.KVTokens, Value: 16384.0, Unit: "tokens"})
	p.Present.Engine.Speed *= 2
	rep := run(t, p)
	if one := rep.find(t, "slots=16"); one.Status != Undecided || !strings.Contains(rep.Verdict, "not to be trusted") || len(rep.Distrust) == 0 {
		t.Errorf("%s: %+v", rep.Verdict, one)
	}
}

// TestLost: requests that a proposal's engine does not take are lost, and not forgotten.
func TestLost(t *testing.T) {
	rep := run(t, planOf(t, false, 0.5, "max_context=400"))
	one := rep.find(t, "max_context=400")
	if r := one.Results[0]; one.Lost == 0 || r.Verdict != Worse || r.OnTime.Offered-r.OnTime.Proposed == 0 || r.Batch.DoneProposed != 0 {
		t.Errorf("%+v", one)
	}
}

func TestParseProposal(t *testing.T) {
	for text, want := range map[string]string{
		"slots":                     "allowed are KEY=VALUE",
		"slots.batch=2":             "allowed are KEY=VALUE",
		"floor=2":                   "slots, kv_tokens, kv_dtype, max_context, mode, floor.CLASS",
		"floor.=2":                  "allowed are KEY=VALUE",
		"slots=0":                   `slots is "0": allowed: sequences, 1 to 65536`,
		"slots=2,slots=3":           "slots is there twice",
		"kv_dtype=fp7":              "allowed: f32, f16, bf16, fp8",
		"reclaim.batch=now":         "allowed: attrition or reclaim",
		"mode=observe":              "allowed: enforce",
		"max_context=1000000000000": "allowed: tokens",
		"":                          "allowed are KEY=VALUE",
	} {
		if p, err := ParseProposal(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v: want %q", text, p, err, want)
		}
	}
	p, err := ParseProposal("kv_dtype=q8_0")
	if err != nil {
		t.Fatal(err)
	}
	// 34 bytes for 32 numbers, in the place of 64.
	if got := p.apply(Settings{KVTokens: 34_000}).KVTokens; got != 64_000 {
		t.Errorf("q8_0 makes %d tokens of 34,000, want 64,000", got)
	}
	for _, text := range []string{"slots=2", "slots=4,max_context=65536", "floor.batch=0,unlent.interactive=1,reclaim.batch=reclaim"} {
		if p, err := ParseProposal(text); err != nil || p.String() != text {
			t.Errorf("%q: %v, %v", text, p, err)
		}
	}
}

// TestFitted: a policy on an engine of another size is one that validates, with as many
// classes that have a floor; on one of its own size it is the same.
func TestFitted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := engineOf()
		e.MaxNumSeqs = rapid.IntRange(2, 64).Draw(rt, "slots")
		of := standard(t, e)
		c := of.Table.Classes
		c[0].Floor[admission.Slots] = int64(rapid.IntRange(0, e.MaxNumSeqs).Draw(rt, "floor"))
		c[0].Unlent[admission.Slots] = int64(rapid.IntRange(0, int(c[0].Floor[admission.Slots])).Draw(rt, "unlent"))
		if rapid.Bool().Draw(rt, "instant") {
			c[1].Window, c[1].Floor = 0, admission.Of(int64(e.MaxNumSeqs)-c[0].Floor[admission.Slots], c[1].Floor[admission.KV])
		}
		next := e
		next.MaxNumSeqs = rapid.IntRange(2, 128).Draw(rt, "next slots")
		next.NumBlocks = rapid.IntRange(600, 4000).Draw(rt, "next blocks")
		policy := &sim.Policy{Table: of.Table}
		for _, on := range []simengine.Config{e, next} {
			p := fitted(policy, on)
			p.Table.Validate(func(path string, value any, allowed string) { rt.Errorf("%s: %v: %s", path, value, allowed) })
			if on == e {
				if fmt.Sprint(p.Table.Classes) != fmt.Sprint(of.Table.Classes) {
					rt.Errorf("it was changed: %v, %v", p.Table.Classes, of.Table.Classes)
				}
				continue
			}
			share := func(s admission.ClassSpec, n int) float64 { return float64(s.Floor[admission.Slots]) / float64(n) }
			if d := share(p.Table.Classes[0], on.MaxNumSeqs) - share(c[0], e.MaxNumSeqs); math.Abs(d) > 1/float64(on.MaxNumSeqs) {
				rt.Errorf("the first class's floor has another share: %v", d)
			}
		}
	})
}

func TestVerdict(t *testing.T) {
	at := func(low, high float64) prove.Interval { return prove.Interval{Low: &low, High: &high} }
	for _, tt := range []struct {
		i    prove.Interval
		want Verdict
	}{
		{prove.Interval{Why: "too few"}, CantTell}, {at(0, 0), Same}, {at(-0.01, 0.01), Same}, {at(-0.02, 0.005), CantTell}, {at(-0.02, 0.02), CantTell},
		{at(-0.005, 0.03), noWorse}, {at(0.011, 0.03), Better}, {at(-0.03, -0.011), Worse}, {at(-0.03, -0.01), CantTell},
	} {
		if got := verdict(tt.i, 0.01); got != tt.want {
			t.Errorf("%v to %v: %s, want %s", tt.i.Low, tt.i.High, got, tt.want)
		}
	}
	for pair, want := range map[[2]Verdict]Verdict{
		{Better, Worse}: Worse, {Better, CantTell}: CantTell, {Better, Same}: Better, {Better, noWorse}: Better, {Same, noWorse}: noWorse, {Same, Same}: Same, {Worse, CantTell}: Worse,
	} {
		if got, other := both(pair[0], pair[1]), both(pair[1], pair[0]); got != want || other != want {
			t.Errorf("%v: %s and %s, want %s", pair, got, other, want)
		}
	}
}
