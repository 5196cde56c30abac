package control

import (
	"slices"
	"testing"
)

// TestDiffer: of an engine's sizes the least counts, whoever says it, and a replica with
// another configuration is told of once, until it has the leader's.
func TestDiffer(t *testing.T) {
	pool := onePool()
	pool.Fingerprint = "new"
	a := NewAllocator(pool, 1, Config{})
	last := map[string]*Grant{}
	var notes []string
	seq := uint64(0)
	step := func(ev Event) {
		for _, e := range a.Step(Time(1e9), &ev, nil) {
			switch {
			case e.Op == Write:
				last[e.Grant.Replica] = e.Grant
			case e.Op == Note && !e.Handoff.Stage.OfHandoff():
				if s := e.Handoff.Stage; s == Differs || s == Agrees {
					notes = append(notes, e.Handoff.To+" "+string(s)+" "+e.Handoff.Why)
				}
			}
		}
	}
	says := func(name, fingerprint string, lease, total int64, wait int) {
		seq++
		ev := wants(name, lease, 1, last[name].rev(), Amount{}, wait)
		ev.Report.Seq, ev.Report.Fingerprint, ev.Report.Engines[0].Total = seq, fingerprint, Amount{total, 10 * total}
		step(ev)
	}
	sum := func() (all int64) {
		for _, g := range last {
			all += g.Accounts[0].Bound[0]
		}
		return all
	}
	step(joined("a", 1))
	step(joined("b", 2))
	if len(last) > 0 {
		t.Errorf("%d grants for replicas that have said nothing", len(last))
	}
	says("a", "old", 1, 6, 9)
	says("b", "new", 2, 10, 9)
	if n := sum(); n > 6 || last["a"].Fingerprint != "new" {
		t.Errorf("%d slots may be used, and a has 6 in its file", n)
	}
	says("a", "old", 1, 6, 9)
	says("a", "new", 1, 10, 9)
	says("b", "new", 2, 10, 9)
	if n := sum(); n != 10 {
		t.Errorf("%d slots may be used, and all have 10", n)
	}
	if s := a.Status(); s.Fingerprint != "new" || s.Replicas[0].Fingerprint != "new" {
		t.Errorf("the status has %q and %q", s.Fingerprint, s.Replicas[0].Fingerprint)
	}
	// The leader's file changes last.
	next := *pool
	next.Fingerprint = "newer"
	step(Event{Kind: Configure, Pool: &next})
	if want := []string{"a differs its fingerprint is old, the leader's new", "a agrees ", "a differs its fingerprint is new, the leader's newer", "b differs its fingerprint is new, the leader's newer"}; !slices.Equal(notes, want) {
		t.Errorf("noted %q, want %q", notes, want)
	}
}

func (g *Grant) rev() uint64 {
	if g == nil {
		return 0
	}
	return g.Rev
}
