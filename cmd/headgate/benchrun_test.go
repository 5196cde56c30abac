package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
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

// TestLiveAgreesWithSim runs one plan by both runners: in each arm as many requests
// are on time, and as much batch done, within 5 %. The live half takes some minutes
// of a machine with nothing else to do, so it is asked for by BENCH_LIVE=1.
func TestLiveAgreesWithSim(t *testing.T) {
	const plan = "../../bench/testdata/agreement/plan.yaml"
	virtual := agreement(t, plan, bench.Sim, &bench.Virtual{LoadPolicy: func(file string, e simengine.Config) (*sim.Policy, error) {
		return loadPolicy(benchRunCommand(), file, e)
	}})
	if os.Getenv("BENCH_LIVE") == "" {
		t.Skip("SKIP live: BENCH_LIVE=1 runs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test's binary is headgate under that name.
	headgate := filepath.Join(t.TempDir(), "headgate")
	if err := os.Symlink(self, headgate); err != nil {
		t.Fatal(err)
	}
	real := agreement(t, plan, bench.Live, &live.Runner{Headgate: headgate, Policy: policyYAML})
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
		t.Skip("SKIP live: every run was invalid: this machine has something else to do")
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

type agreed struct{ onTime, of, batch, batchOf int }

// agreement runs a plan and counts what each valid run achieved.
func agreement(t *testing.T, plan, by string, runner bench.Runner) map[string]agreed {
	t.Helper()
	p, err := bench.Load(plan)
	if err == nil {
		err = p.SetRunner(by)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	d, err := bench.Create(t.TempDir(), p, bench.Manifest{Runner: by})
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	x := &bench.Executor{Plan: p, Workloads: w, Dir: d, Runner: runner, Tell: func(now bench.Progress) { tellProgress(&said, now) }}
	if err := x.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	results, err := d.Results()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]agreed{}
	for i := range results {
		lines, err := d.Requests(&results[i])
		if err != nil {
			t.Fatal(err)
		}
		var n agreed
		for k := range lines {
			l := &lines[k]
			switch {
			case p.OnTime.Of(l):
				n.of++
				if p.OnTime.Met(l) {
					n.onTime++
				}
			case l.Class != p.OnTime.Class:
				n.batchOf++
				if l.Outcome == sim.Completed {
					n.batch++
				}
			}
		}
		if len(results[i].Invalid()) == 0 {
			all[results[i].Source.Name+"/"+results[i].Arm] = n
		}
	}
	if by == bench.Live {
		t.Log(said.String())
	}
	return all
}
