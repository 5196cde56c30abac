package sim

import (
	"testing"

	"headgate/simengine"
	"headgate/trace"
)

// TestHolds: what a run says of its holds is what it says of its requests.
func TestHolds(t *testing.T) {
	tr, err := trace.Generate("metal-long-context-v1", 1)
	if err != nil {
		t.Fatal(err)
	}
	e := simengine.DefaultConfig()
	e.Speed = 1.5
	for _, name := range []string{"headgate", "priority"} {
		arm, err := NewArm(name, e)
		if err != nil {
			t.Fatal(err)
		}
		run, err := Simulate(tr, arm)
		if err != nil {
			t.Fatal(err)
		}
		if name == "priority" {
			if run.Holds != nil {
				t.Errorf("%d holds without admission", len(run.Holds))
			}
			continue
		}
		reclaims, loans, ended := 0, 0, 0
		first := map[int]bool{}
		for _, h := range run.Holds {
			r := &run.Records[h.Request]
			if h.From < r.Arrival || h.To < h.From || h.To > r.Done {
				t.Errorf("%s, which arrives at %v and is done at %v, has a hold from %v to %v", r.ID, r.Arrival, r.Done, h.From, h.To)
			}
			first[h.Request] = first[h.Request] || h.From == r.Admitted
			if h.Reclaimed {
				ended++
			}
			if h.Loan {
				loans++
			}
		}
		for i := range run.Records {
			reclaims += run.Records[i].Reclaims
			if !first[i] {
				t.Errorf("%s has no hold from its admission on", run.Records[i].ID)
			}
		}
		of := 0
		for _, c := range run.Recalls {
			of += c.Reclaims
		}
		if reclaims == 0 || reclaims != ended || reclaims != of || loans < ended {
			t.Errorf("%d reclaims of requests, %d of holds, %d of recalls, %d loans", reclaims, ended, of, loans)
		}
	}
}
