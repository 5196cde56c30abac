package advise

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/admission"
	"headgate/engine"
	"headgate/occupancy/occupancytest"
	"headgate/probe"
	"headgate/prove"
	"headgate/simengine"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

// theDay is the recording of the public post-mortem.
func theDay(t testing.TB) *prove.Recording {
	t.Helper()
	var b bytes.Buffer
	if err := occupancytest.WriteJournal(&b, occupancytest.PostMortem()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "journal.jsonl")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := prove.Record(prove.Source{Files: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	r.Observed = true // it had no gateway that decided anything
	return r
}

// profile of an engine of which so much is known.
func profileOf(kind engine.Kind, layout string) *probe.Profile {
	p := &probe.Profile{Format: probe.Format, Kind: kind, Version: "1.0", Model: "m", At: time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC), Findings: []probe.Finding{
		{Subject: probe.KVTokens, Value: float64(occupancytest.KV), Unit: "tokens", Confidence: probe.Said, Evidence: []string{"the engine says so"}},
		{Subject: probe.Slots, Value: float64(occupancytest.Slots), Unit: "sequences", Confidence: probe.Shown, Evidence: []string{"eight ran at once and the ninth waited"}},
	}}
	if layout != "" {
		p.Findings = append(p.Findings, probe.Finding{Subject: probe.KVLayout, Value: layout, Confidence: probe.Shown, Evidence: []string{"one session of a quarter of the KV ran beside an idle one: " + layout}})
	}
	return p
}

func trap(t *testing.T, layout string, p *probe.Profile) *Report {
	t.Helper()
	slots, err := ParseProposal("slots=2")
	if err != nil {
		t.Fatal(err)
	}
	e := simengine.DefaultConfig()
	e.Policy = simengine.FCFS
	rep, err := Run(&Plan{
		Recording: theDay(t), Profile: p, Propose: []Proposal{slots}, OnTime: admission.Objective{First: 10 * time.Second, Whole: 2 * time.Minute}, Margin: 0.005, Command: "headgate advise JOURNAL", Probe: "headgate probe --url URL --kind KIND --yes",
		Present: Settings{Engine: e, Slots: occupancytest.Slots, KVTokens: occupancytest.KV, Layout: layout},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Distrust) > 0 || len(rep.Regimes) != 1 {
		t.Fatalf("%v, %v", rep.Distrust, rep.Regimes)
	}
	if l := rep.Occupancy.Levels; len(l) != 5 || l[0].BusyShare < 0.89 || l[0].BusyShare > 0.9 {
		t.Fatalf("occupancy %+v", l)
	}
	return rep
}

// TestThePostMortemsTrap: the measurement that once made somebody cut eight slots to two.
// Every number is right; only the mechanism tells whether it is advice.
func TestThePostMortemsTrap(t *testing.T) {
	first := func(rep *Report) string {
		line, _, _ := strings.Cut(string(rep.Markdown()), "\n")
		return line
	}
	said := profileOf(engine.LlamaCpp, probe.PerSlot)
	said.Findings[len(said.Findings)-1].Confidence = probe.Said
	for _, tt := range []struct {
		name    string
		layout  string
		profile *probe.Profile
		status  Status
		says    []string // in the first line
		not     []string
	}{
		{"a shared pool", probe.Shared, profileOf(engine.VLLM, probe.Shared), Withdrawn, []string{"Withdrawn: slots=2", "kv_layout is shared (shown)", "Keep the present settings."}, []string{"Advised", "Unproven"}},
		{"a part for each slot", probe.PerSlot, profileOf(engine.LlamaCpp, probe.PerSlot), Advised, []string{"Advised: slots=2: a session may have 75408 tokens in the place of 18852"}, []string{"Unproven", "Withdrawn"}},
		{"no profile", probe.Shared, nil, NotAdvised, []string{"# Unproven: "}, []string{"Advised", "Withdrawn"}},
		{"no profile, and a part for each slot is assumed", probe.PerSlot, nil, Unproven, []string{"# Unproven: ", "of unproven mechanism: slots=2"}, []string{"Advised", "Withdrawn"}},
		{"a part for each slot, as the engine says", probe.PerSlot, said, Unproven, []string{"# Unproven: the probe could tell nothing"}, []string{"Advised", "Withdrawn"}},
		{"a profile without a finding", probe.Shared, &probe.Profile{Format: probe.Format, Kind: engine.VLLM}, NotAdvised, []string{"# Unproven: the probe could tell nothing"}, []string{"Advised", "Withdrawn"}},
		{"the probe could not tell, and nothing is better", probe.Shared, profileOf(engine.LlamaCpp, ""), NotAdvised, []string{"# Unproven: the probe could tell nothing"}, []string{"Advised", "Withdrawn"}},
		{"the probe could not tell", probe.PerSlot, profileOf(engine.LlamaCpp, ""), Unproven, []string{"# Unproven: the probe could tell nothing"}, []string{"Advised", "Withdrawn"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rep := trap(t, tt.layout, tt.profile)
			one := rep.Proposals[0]
			if one.Proposal != "slots=2" || one.Status != tt.status {
				t.Errorf("%+v", one)
			}
			line := first(rep)
			for _, s := range tt.says {
				if !strings.Contains(line, s) {
					t.Errorf("%q lacks %q", line, s)
				}
			}
			for _, s := range tt.not {
				if strings.Contains(line, s) {
					t.Errorf("%q has %q", line, s)
				}
			}
			for _, o := range rep.Proposals {
				if o.Status == Advised && tt.status != Advised {
					t.Errorf("advised: %+v", o)
				}
			}
		})
	}
}

// TestTheJournalSpeaks: a session that is longer than a slot's part was in no slot's part,
// which needs no probe; the page still says that nothing was probed.
func TestTheJournalSpeaks(t *testing.T) {
	r := theDay(t)
	r.Requests[700].PromptTokens = 60_000
	slots, err := ParseProposal("slots=2")
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Run(&Plan{
		Recording: r, Propose: []Proposal{slots}, OnTime: admission.Objective{Whole: 2 * time.Minute}, Margin: 0.005,
		Present: Settings{Engine: simengine.DefaultConfig(), Slots: occupancytest.Slots, KVTokens: occupancytest.KV, Layout: probe.Shared},
	})
	if err != nil {
		t.Fatal(err)
	}
	if o := rep.Proposals[0]; o.Status != Withdrawn || !strings.HasPrefix(rep.Verdict, "Unproven: ") || !strings.Contains(rep.Verdict, "one pool (by the journal)") {
		t.Errorf("%s\n%+v", rep.Verdict, o)
	}
}

// TestPage prints the whole page of the trap in the golden file, from which a reader can see
// what it looks like.
func TestPage(t *testing.T) {
	rep := trap(t, probe.Shared, profileOf(engine.VLLM, probe.Shared))
	path := filepath.Join("testdata", "page.md")
	have := rep.Markdown()
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
		t.Errorf("(-want +have):\n%s", d)
	}
}

// TestTheModelsChanged: what was shown of a model that nearly nothing asks for any more
// proves nothing of what does.
func TestTheModelsChanged(t *testing.T) {
	slots, err := ParseProposal("slots=2")
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []int{700, 1} {
		r := theDay(t)
		for i := from; i < len(r.Requests); i++ {
			r.Requests[i].Model = "another"
		}
		rep, err := Run(&Plan{
			Recording: r, Profile: profileOf(engine.LlamaCpp, probe.PerSlot), Propose: []Proposal{slots}, OnTime: admission.Objective{First: 10 * time.Second, Whole: 2 * time.Minute}, Margin: 0.005,
			Present: Settings{Engine: simengine.DefaultConfig(), Slots: occupancytest.Slots, KVTokens: occupancytest.KV, Layout: probe.PerSlot},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := rep.Proposals[0].Status; got != Unproven || rep.Probed || !strings.HasPrefix(rep.Verdict, "Unproven: the profile is of model m, which has ") {
			t.Errorf("from %d: %s: %s", from, got, rep.Verdict)
		}
	}
}
