package control

import (
	"fmt"
	"testing"
)

// taken steps a and notes the last grant of each replica.
func taken(a *Allocator, last map[string]*Grant, ev Event) {
	for _, e := range a.Step(Time(1e9), &ev, nil) {
		if e.Op == Write {
			last[e.Grant.Replica] = e.Grant
		}
	}
}

func joined(name string, lease int64) Event {
	return Event{Kind: Join, Member: Member{ID: ID{name, "b"}, Lease: lease}}
}

// wants is a report of one who waits for n requests of the only class.
func wants(name string, lease int64, epoch, rev uint64, used Amount, n int) Event {
	return Event{Kind: Reported, Report: &Report{
		Pool: "p", ID: ID{name, "b"}, Lease: lease, Seq: 1, Epoch: epoch, Rev: rev,
		Engines: []EngineReport{{Engine: "e", Used: used, High: used, Gauge: Amount{-1, -1}, Others: Amount{-1, -1}}},
		Classes: []ClassReport{{Class: "c", Used: []Amount{used}, Waiting: n, Head: Amount{1, 10}, Short: n > 0}},
	}}
}

func loaded(name string, lease int64, rev uint64, amount, bound Amount) Event {
	return Event{Kind: Load, Grant: &Grant{
		Pool: "p", ID: ID{name, "b"}, Lease: lease, Epoch: 1, Rev: rev, Accounts: []Account{{Engine: "e", Amount: amount, Bound: bound}},
	}}
}

func onePool() *Pool {
	return &Pool{Name: "p", Replicas: 5, Engines: []Engine{{Name: "e", Total: Amount{10, 100}}}, Classes: []Class{{Name: "c", Floor: Amount{10, 100}}}}
}

// A shrink of the leader before is not acknowledged by a report that names an earlier
// grant: what is told there is no bound yet.
func TestTakeoverWaitsForAcknowledgement(t *testing.T) {
	a, last := NewAllocator(onePool(), 2, Config{}), map[string]*Grant{}
	taken(a, last, loaded("a", 1, 10, Amount{3, 30}, Amount{8, 80}))
	taken(a, last, joined("b", 2))
	taken(a, last, wants("b", 2, 0, 0, Amount{}, 9))
	taken(a, last, joined("a", 1))
	taken(a, last, wants("a", 1, 1, 7, Amount{2, 20}, 0))
	if g := last["b"].Accounts[0].Amount; !within(g, Amount{2, 20}) {
		t.Errorf("b has a grant of %s while a may use 8/80 of 10/100", g)
	}
}

// Bounds that a new leader finds may be over, and what they left be another's: nobody
// is raised to his own as long as they do not fit together.
func TestTakeoverRaisesNobodyOverTheTotal(t *testing.T) {
	a, last := NewAllocator(onePool(), 2, Config{}), map[string]*Grant{}
	taken(a, last, loaded("a", 1, 10, Amount{4, 40}, Amount{8, 80}))
	taken(a, last, loaded("b", 2, 11, Amount{6, 60}, Amount{6, 60}))
	taken(a, last, joined("a", 1))
	taken(a, last, joined("b", 2))
	taken(a, last, wants("b", 2, 1, 11, Amount{}, 0))
	taken(a, last, wants("a", 1, 1, 9, Amount{4, 40}, 9))
	if g := last["a"]; g != nil && !within(g.Accounts[0].Amount, Amount{4, 40}) {
		t.Errorf("a has a grant of %s beside b's 6/60 of 10/100", g.Accounts[0].Amount)
	}
}

// What survives of a ceiling is within it, for all replicas together, and nothing does
// where that is no request for each.
func TestSurvivalOfACeiling(t *testing.T) {
	p := onePool()
	p.Survival, p.Engines[0].Total = Amount{1, 10}, Amount{20, 200}
	p.Classes = append(p.Classes, Class{Name: "few", Ceiling: Amount{4, 40}})
	a, last := NewAllocator(p, 1, Config{}), map[string]*Grant{}
	var sum Amount
	for i := range 5 {
		name := fmt.Sprintf("r%d", i)
		taken(a, last, joined(name, int64(i+1)))
		taken(a, last, wants(name, int64(i+1), 0, 0, Amount{}, 0))
		sum = plus(sum, last[name].Accounts[1].Survival)
	}
	if sum != (Amount{}) {
		t.Errorf("%s of a ceiling of 4/40 survive", sum)
	}
}

// What survives a lease is a replica's with one, too, as soon as nobody else is bound by
// it, and no sooner.
func TestGrantIsNoLessThanWhatSurvives(t *testing.T) {
	p := onePool()
	p.Replicas, p.Survival = 2, Amount{1, 10}
	p.Classes[0].Floor = Amount{8, 80}
	p.Classes = append(p.Classes, Class{Name: "few", Ceiling: Amount{2, 20}})
	a, last := NewAllocator(p, 1, Config{}), map[string]*Grant{}
	taken(a, last, joined("a", 1))
	taken(a, last, wants("a", 1, 0, 0, Amount{10, 100}, 0))
	taken(a, last, joined("b", 2))
	taken(a, last, wants("b", 2, 0, 0, Amount{}, 0))
	if c := last["b"].Accounts[0]; c.Amount != (Amount{}) || c.Survival != (Amount{}) {
		t.Errorf("b has %s, and %s survive, while a has all", c.Amount, c.Survival)
	}
	r := wants("a", 1, 1, last["a"].Rev, Amount{}, 0)
	r.Report.Seq = 2
	taken(a, last, r)
	for _, c := range last["b"].Accounts {
		if want := (Amount{1, 10}); c.Survival != want || !within(want, c.Amount) {
			t.Errorf("b has %s of %s%s, and %s survive", c.Amount, c.Engine, c.Class, c.Survival)
		}
	}
}

// Who has nothing of any engine, but a part of a ceiling, is not forgotten before it is
// known whether it has its lease.
func TestTakeoverKeepsPartsOfCeilings(t *testing.T) {
	p := onePool()
	p.Classes = append(p.Classes, Class{Name: "few", Ceiling: Amount{4, 40}})
	a, last := NewAllocator(p, 2, Config{}), map[string]*Grant{}
	ev := loaded("a", 1, 10, Amount{}, Amount{})
	ev.Grant.Accounts = append(ev.Grant.Accounts, Account{Class: "few", Amount: Amount{3, 30}, Bound: Amount{3, 30}})
	taken(a, last, ev)
	taken(a, last, joined("b", 2))
	taken(a, last, wants("b", 2, 0, 0, Amount{}, 0))
	taken(a, last, joined("a", 1))
	if g := last["b"].Accounts[1].Amount; !within(g, Amount{1, 10}) {
		t.Errorf("b has %s of a ceiling of 4/40, of which a may use 3/30", g)
	}
}

// A change of what is never lent reaches the replicas, though their floors stay.
func TestUnlentIsGrantedAnew(t *testing.T) {
	p := onePool()
	p.Classes[0].Unlent = Amount{10, 100}
	a, last := NewAllocator(p, 1, Config{}), map[string]*Grant{}
	taken(a, last, joined("a", 1))
	taken(a, last, wants("a", 1, 0, 0, Amount{}, 0))
	p.Classes[0].Unlent = Amount{}
	taken(a, last, Event{Kind: Configure, Pool: p})
	for now := Time(1e9); now < Time(5e9); now += every {
		for _, e := range a.Step(now, &Event{Kind: Tick}, nil) {
			last[e.ID.Replica] = e.Grant
		}
	}
	if c := last["a"].Classes[0]; c.Unlent != (Amount{}) {
		t.Errorf("a never lends %s, of a class that lends all", c.Unlent)
	}
}

// A store that was set back to an earlier state, by a snapshot, does not have the grants
// that were given since. Who says that it has such a one may use whatever it says.
func TestTakeoverOfAnEarlierState(t *testing.T) {
	a, last := NewAllocator(onePool(), 2, Config{}), map[string]*Grant{}
	taken(a, last, loaded("a", 1, 10, Amount{3, 30}, Amount{3, 30}))
	taken(a, last, joined("b", 2))
	taken(a, last, joined("a", 1))
	taken(a, last, wants("a", 1, 5, 70, Amount{2, 20}, 0))
	taken(a, last, wants("b", 2, 0, 0, Amount{}, 9))
	if g := last["b"]; g != nil && g.Accounts[0].Amount != (Amount{}) {
		t.Errorf("b has a grant of %s, and a has one of epoch 5 that nobody knows", g.Accounts[0].Amount)
	}
}
