//go:build live

package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headgate/bench"
	"headgate/bench/live"
	"headgate/sim"
	"headgate/simengine"
)

// TestLiveAgreesWithSim runs one plan by both runners: in each arm as many requests
// are on time, and as much batch done, within 5 %. The live half takes some minutes
// of a machine with nothing else to do, so the tag live asks for it.
func TestLiveAgreesWithSim(t *testing.T) {
	const plan = "../../bench/testdata/agreement/plan.yaml"
	virtual, _ := agreement(t, plan, bench.Sim, &bench.Virtual{LoadPolicy: func(file string, e simengine.Config) (*sim.Policy, error) {
		return loadPolicy(benchRunCommand(), file, e)
	}})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test's binary is headgate under that name.
	headgate := filepath.Join(t.TempDir(), "headgate")
	if err := os.Symlink(self, headgate); err != nil {
		t.Fatal(err)
	}
	real, _ := agreement(t, plan, bench.Live, &live.Runner{Headgate: headgate, Policy: policyYAML})
	sum := func(by map[string]agreed, arm string) (s agreed) {
		for run, n := range by {
			// An invalid run tells nothing of the two.
			if strings.HasSuffix(run, "/"+arm) && real[run].of > 0 {
				s = agreed{s.onTime + n.onTime, s.of + n.of, s.batch + n.batch, s.batchOf + n.batchOf}
			}
		}
		return s
	}
	if len(real) == 0 {
		t.Fatal("every run was invalid: this machine has something else to do")
	}
	for _, arm := range []string{"fcfs", "priority", "static", "lending", "headgate"} {
		r, v := sum(real, arm), sum(virtual, arm)
		t.Logf("%s: of %d requests on time: live %d, sim %d; of %d batch done: live %d, sim %d", arm, v.of, r.onTime, v.onTime, v.batchOf, r.batch, v.batch)
		if off := math.Abs(float64(r.onTime - v.onTime)); off > 0.05*float64(v.of) {
			t.Errorf("%s: %d on time live, %d simulated, of %d", arm, r.onTime, v.onTime, v.of)
		}
		if off := math.Abs(float64(r.batch - v.batch)); off > 0.05*float64(v.batchOf) {
			t.Errorf("%s: %d batch done live, %d simulated, of %d", arm, r.batch, v.batch, v.batchOf)
		}
	}
}
