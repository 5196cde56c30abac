//go:build !race

// Nothing in a virtual run is concurrent, and the race detector takes ten times as
// long for the same lines.

package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headgate/bench"
	benchreport "headgate/bench/report"
	"headgate/sim"
	"headgate/simengine"
)

// TestExperimentsAgain runs the first three traces of every plan of docs/experiments
// in virtual time again. Each run has the request lines, by their hash, of which
// the kept evidence tells. It fails when a policy, the simulator or the engine's
// model has changed: docs/experiments/README.md says what to do then.
func TestExperimentsAgain(t *testing.T) {
	const experiments = "../../docs/experiments"
	kept, err := filepath.Glob(experiments + "/evidence/*.json.gz")
	if err != nil || len(kept) == 0 {
		t.Fatalf("no evidence is kept: %v", err)
	}
	plans := map[string]string{}
	for _, pattern := range []string{"/*.yaml", "/[0-9]*/*.yaml"} {
		files, err := filepath.Glob(experiments + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			rel, _ := filepath.Rel(experiments, strings.TrimSuffix(file, ".yaml"))
			plans[strings.ReplaceAll(filepath.ToSlash(rel), "/", "-")] = file
		}
	}
	for _, path := range kept {
		name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
		t.Run(name, func(t *testing.T) {
			was := keptRuns(t, path)
			if was.Plan.Runner != bench.Sim {
				return // what real time gave can't be made again
			}
			p, err := bench.Load(plans[name])
			if err != nil {
				t.Fatal(err)
			}
			w, err := p.Workloads()
			if err != nil {
				t.Fatal(err)
			}
			w.Sources = w.Sources[:min(len(w.Sources), 3)]
			d, err := bench.Create(t.TempDir(), p, bench.Manifest{Runner: p.Runner})
			if err != nil {
				t.Fatal(err)
			}
			x := &bench.Executor{Plan: p, Workloads: w, Dir: d, Tell: func(bench.Progress) {}, Runner: &bench.Virtual{LoadPolicy: func(file string, e simengine.Config) (*sim.Policy, error) {
				return loadPolicy(benchRunCommand(), file, e)
			}}}
			if err := errors.Join(x.Execute(t.Context()), d.Close()); err != nil {
				t.Fatal(err)
			}
			now, err := d.Results()
			if err != nil {
				t.Fatal(err)
			}
			if want := len(w.Sources) * len(p.Arms); len(now) != want {
				t.Fatalf("%d runs, want %d", len(now), want)
			}
			for i := range now {
				a, at := &now[i], -1
				for k := range was.Runs {
					if b := &was.Runs[k]; b.Source == a.Source.Name && b.Arm == a.Arm {
						at = k
					}
				}
				switch {
				case at < 0:
					t.Errorf("%s, %s: no run is kept", a.Source.Name, a.Arm)
				case a.RequestsSHA256 != was.Runs[at].RequestsSHA256:
					t.Errorf("%s, %s: the requests went another way than in the evidence", a.Source.Name, a.Arm)
				}
			}
		})
	}
}

func keptRuns(t *testing.T, path string) *benchreport.Report {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &benchreport.Report{}
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(r)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return r
}
