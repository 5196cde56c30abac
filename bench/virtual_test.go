package bench

import (
	"strings"
	"testing"

	"headgate/admission"
	"headgate/simengine"
)

// TestArmOfOtherSlots: an arm that takes the engine to have eight slots lets eight
// requests into an engine of four, of which four wait there.
func TestArmOfOtherSlots(t *testing.T) {
	for _, c := range []struct {
		arm  string
		most int
	}{{"", 4}, {", slots: 8", 8}, {", slots: 3", 3}} {
		o := virtually(t, "published: lending"+c.arm)
		most, held := 0, 0
		for i := range o.Holds {
			held = 0
			for j := range o.Holds {
				if h := &o.Holds[j]; h.From <= o.Holds[i].From && o.Holds[i].From < h.To {
					held++
				}
			}
			most = max(most, held)
		}
		if most != c.most || o.Facts.Slots != 4 {
			t.Errorf("lending%s: at most %d requests at once on %d slots, want %d on 4", c.arm, most, o.Facts.Slots, c.most)
		}
	}
}

// TestPublishedArmsIdleTime: what was in use within it is not lent.
func TestPublishedArmsIdleTime(t *testing.T) {
	lent := func(arm string) (n int) {
		for _, h := range virtually(t, arm).Holds {
			if h.Loan {
				n++
			}
		}
		return n
	}
	if after2s, after10m := lent("published: lending"), lent("published: lending, idle_after: 10m"); after10m >= after2s {
		t.Errorf("%d loans after two idle seconds and %d after ten minutes, want fewer", after2s, after10m)
	}
}

// TestPublishedArmsReopening: every class of the arm reopens by the rule of the plan.
func TestPublishedArmsReopening(t *testing.T) {
	for rule, want := range map[string]admission.Reopening{"": admission.ReopenIdle, "idle": admission.ReopenIdle, "settled": admission.ReopenSettled} {
		arm, err := (&Virtual{}).arm(&Job{Arm: &Arm{Name: "a", Published: "lending", Reopen: rule}}, simengine.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range arm.Table.Classes {
			if c.Reopen != want {
				t.Errorf("reopen %q: class %s has rule %v, want %v", rule, c.Name, c.Reopen, want)
			}
		}
	}
}

// virtually runs seed 1 of the sample plan through another second arm.
func virtually(t *testing.T, arm string) *Observed {
	t.Helper()
	p, err := Parse("plan.yaml", []byte(strings.Replace(samplePlan, "policy: default", arm, 1)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := w.Trace(0)
	if err != nil {
		t.Fatal(err)
	}
	o, err := (&Virtual{}).Run(t.Context(), &Job{Plan: p, Source: &w.Sources[0], Trace: tr, Arm: &p.Arms[1], Lines: p.lines(tr, &w.Sources[0], "headgate")})
	if err != nil {
		t.Fatal(err)
	}
	return o
}
