package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/admission"
	"headgate/bench"
	"headgate/bench/live"
	"headgate/sim"
	"headgate/simengine"
)

// TestPublishedArmsAreTheSimulators: the policy that a live run has under the name
// of a published arm is the simulator's, in everything that counts slots.
func TestPublishedArmsAreTheSimulators(t *testing.T) {
	type shown struct {
		Name                   string
		Floor, Unlent, Ceiling int64
		IdleAfter              time.Duration
		Queued                 bool
		Reopen                 admission.Reopening
		Mode                   admission.Mode
		Out                    int32
	}
	show := func(table *admission.Table) (all []shown) {
		for _, c := range table.Classes {
			all = append(all, shown{
				c.Name, c.Floor[admission.Slots], c.Unlent[admission.Slots], c.Ceiling[admission.Slots], time.Duration(c.IdleAfter), c.Depth > 0, c.Reopen, c.Mode, c.DefaultOut,
			})
		}
		return all
	}
	e := simengine.DefaultConfig()
	for _, slots := range []int{2, 4, 20} {
		e.MaxNumSeqs = slots
		for _, name := range bench.PublishedArms() {
			want, err := sim.NewArm(name, e)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(file, []byte(live.Published(name, slots, 2*time.Second, "idle")), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := benchRunCommand()
			have, err := loadPolicy(cmd, file, e)
			if err != nil {
				t.Fatalf("%s on %d slots: %v", name, slots, err)
			}
			a, b := show(want.Table), show(have.Table)
			for i := range a {
				if a[i] != b[i] {
					t.Errorf("%s on %d slots: live has %+v, the simulator %+v", name, slots, b[i], a[i])
				}
			}
			if have.Priority["interactive"] != 0 || have.Priority["batch"] != 10 {
				t.Errorf("%s: priorities %v", name, have.Priority)
			}
		}
	}
}
