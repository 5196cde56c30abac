package control

import (
	"slices"
	"testing"
	"time"
)

// TestComingsAndGoings: who comes and goes is noted, and how; what a leader finds at the
// beginning of its term is no news.
func TestComingsAndGoings(t *testing.T) {
	pool := onePool()
	pool.Survival = Amount{1, 10}
	pool.Classes[0].Floor = Amount{1, 20}
	a := NewAllocator(pool, 2, Config{})
	now, seq := Time(1e9), uint64(0)
	var notes []string
	step := func(ev Event) {
		for _, e := range a.Step(now, &ev, nil) {
			if e.Op == Note && !e.Handoff.Stage.OfHandoff() {
				notes = append(notes, e.Handoff.To+" "+string(e.Handoff.Stage))
			}
		}
	}
	gone := func(name string, lease int64) {
		step(Event{Kind: Gone, Member: Member{ID: ID{name, "b"}, Lease: lease}})
	}
	report := func(name string, lease int64, leaving bool) {
		seq++
		ev := wants(name, lease, 0, 0, Amount{}, 0)
		ev.Report.Seq, ev.Report.Leaving = seq, leaving
		step(ev)
	}
	step(loaded("a", 1, 10, Amount{3, 30}, Amount{3, 30}))
	step(joined("a", 1))
	step(joined("b", 2))
	report("a", 1, false)
	report("b", 2, false)
	for range 60 {
		now += Time(time.Second)
		step(Event{Kind: Tick})
	}
	report("b", 2, true)
	gone("b", 2)
	step(joined("b", 3))
	report("b", 3, false)
	gone("b", 3)
	for range 2 { // once
		step(Event{Kind: Forget, Member: Member{ID: ID{Replica: "b"}}})
	}
	step(joined("a", 4)) // under another lease
	want := []string{"b joined", "b left", "b joined", "b expired", "b forgotten", "a expired", "a joined"}
	if !slices.Equal(notes, want) {
		t.Errorf("noted %q, want %q", notes, want)
	}
}

// TestWhatWasBegunOnWhatSurvives: it may still be in the engine when the name has a new
// life, or is forgotten, for as long as anything may.
func TestWhatWasBegunOnWhatSurvives(t *testing.T) {
	for _, forget := range []bool{false, true} {
		pool := onePool()
		pool.Survival = Amount{1, 10}
		pool.Classes[0].Floor = Amount{1, 20}
		a := NewAllocator(pool, 1, Config{})
		now, last := Time(1e9), map[string]*Grant{}
		step := func(ev Event) {
			for _, e := range a.Step(now, &ev, nil) {
				if e.Op == Write {
					last[e.Grant.Replica+e.Grant.Boot] = e.Grant
				}
			}
		}
		wait := func(d time.Duration) {
			for end := now + Time(d); now < end; {
				now += Time(time.Second)
				step(Event{Kind: Tick})
			}
		}
		step(joined("a", 1))
		step(joined("b", 2))
		step(wants("a", 1, 0, 0, Amount{}, 0))
		step(wants("b", 2, 0, 0, Amount{}, 9))
		wait(3 * time.Second)
		if s := last["ab"].Accounts[0].Survival; s != (Amount{1, 10}) {
			t.Fatalf("%s survives", s)
		}
		step(Event{Kind: Gone, Member: Member{ID: ID{"a", "b"}, Lease: 1}})
		wait(2 * time.Minute) // nothing but what survives is a's any more
		if forget {
			step(Event{Kind: Forget, Member: Member{ID: ID{Replica: "a"}}})
		} else {
			step(Event{Kind: Join, Member: Member{ID: ID{"a", "c"}, Lease: 3}})
		}
		free := func() int64 { return a.free(0)[0] + a.find(ID{"b", "b"}).bound[0][0] }
		want := int64(9)
		if !forget {
			want = 8 // what survives of the new life
		}
		if n := free(); n != want {
			t.Errorf("forgotten %v: %d slots may be others', want %d", forget, n, want)
		}
		wait(59 * time.Second)
		if n := free(); n != want {
			t.Errorf("forgotten %v, nearly a minute later: %d slots may be others', want %d", forget, n, want)
		}
		wait(2 * time.Second)
		if n := free(); n != want+1 {
			t.Errorf("forgotten %v, a minute later: %d slots may be others', want %d", forget, n, want+1)
		}
	}
}
