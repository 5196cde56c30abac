package main

import (
	"strings"
	"testing"

	"headgate/bench"
	"headgate/sim"
)

// agreed is what a run of a plan achieved.
type agreed struct{ onTime, of, batch, batchOf int }

// agreement runs a plan and counts what each valid run achieved, and each other.
func agreement(t *testing.T, plan, by string, runner bench.Runner) (valid, invalid map[string]agreed) {
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
	valid, invalid = map[string]agreed{}, map[string]agreed{}
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
		into := valid
		if len(results[i].Invalid()) > 0 {
			into = invalid
		}
		into[results[i].Source.Name+"/"+results[i].Arm] = n
	}
	if by == bench.Live {
		t.Log(said.String())
	}
	return valid, invalid
}
