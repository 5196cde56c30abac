package control

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/admission"
)

// teller is an allocator, and what it told last.
type teller struct {
	*Allocator
	t    *testing.T
	now  Time
	seq  uint64
	last *News
}

func newTeller(t *testing.T, epoch uint64, load ...*Grant) *teller {
	p := &Pool{
		Name: "main", Replicas: 4, Engines: []Engine{{Name: "e", Total: Amount{8, 8000}}},
		Classes: []Class{{Name: "interactive", Floor: Amount{4, 4000}}, {Name: "batch"}},
	}
	a := &teller{Allocator: NewAllocator(p, epoch, Config{Residual: 5 * time.Second}), t: t, now: 1e9}
	for _, g := range load {
		a.step(&Event{Kind: Load, Grant: g})
	}
	return a
}

// step returns whether something was told.
func (a *teller) step(ev *Event) bool {
	before := a.last
	for _, e := range a.Step(a.now, ev, nil) {
		if e.Op == Tell {
			a.last = e.News
		}
	}
	return a.last != before
}

// rest lets time pass until nothing is told any more, but for what only time changes.
func (a *teller) rest() {
	for range 3 {
		a.now += a.tellEvery()
		a.step(&Event{Kind: Tick})
	}
}

func (a *teller) join(name string) ID {
	id := ID{name, "1"}
	a.seq++
	a.step(&Event{Kind: Join, Member: Member{ID: id, Lease: int64(len(name)) + 100}})
	return id
}

func (a *teller) report(id ID, change func(*Report)) bool {
	a.seq++
	r := &Report{
		Pool: "main", ID: id, Lease: int64(len(id.Replica)) + 100, Seq: a.seq, Engines: []EngineReport{{Engine: "e"}},
		Classes: []ClassReport{{Class: "interactive", Used: make([]Amount, 1), Away: quietAway}, {Class: "batch", Used: make([]Amount, 1), Away: quietAway}},
	}
	if l := a.find(id); l != nil {
		r.Epoch, r.Rev = a.epoch, l.rev
	}
	change(r)
	return a.step(&Event{Kind: Reported, Report: r})
}

var quietAway = Away{Pending: -1, Pressed: -1, Starting: -1}

func nothing(*Report) {}

// uses has a class at one replica use slots of the engine.
func uses(k int, slots int64) func(*Report) {
	return func(r *Report) {
		r.Engines[0].Used = Amount{slots, 100 * slots}
		r.Classes[k].Used[0], r.Classes[k].Away.Offered = Amount{slots, 100 * slots}, 1
	}
}

// TestWhatWasToldIsTakenBack: replicas go by what they were told last, so that what is no
// more so has to be told, even where no replica's report says it.
func TestWhatWasToldIsTakenBack(t *testing.T) {
	a := newTeller(t, 1)
	x, y := a.join("x"), a.join("yy")
	a.report(x, nothing)
	a.report(y, nothing)
	a.rest()
	if a.last != nil {
		t.Errorf("an idle fleet was told %+v", a.last)
	}
	a.report(x, uses(0, 2))
	a.report(y, nothing)
	a.rest()
	if a.last == nil || len(a.last.Classes) == 0 || a.last.Classes[0].ID != x || a.last.Classes[0].Used[0] != (Amount{2, 200}) {
		t.Fatalf("told %+v, want what x uses", a.last)
	}
	// x dies. What it may have left in the engine is told as work that no replica sent.
	a.step(&Event{Kind: Gone, Member: Member{ID: x, Lease: 101}})
	a.rest()
	if slices.ContainsFunc(a.last.Classes, func(c ClassNews) bool { return c.ID == x }) || a.last.Engines[0].Foreign[0] < 2 {
		t.Errorf("told %+v, want that x is gone and what it left", a.last)
	}
	for range 10 {
		a.now += 1e9
		a.step(&Event{Kind: Tick})
	}
	if a.last.Engines[0].Foreign != (Amount{}) {
		t.Errorf("told that %v are in the engine, which are over", a.last.Engines[0].Foreign)
	}
	was := a.last
	for range 30 {
		a.now += 1e9
		a.report(y, nothing)
	}
	if a.last != was {
		t.Errorf("an idle fleet was told %+v", a.last)
	}
}

// TestWhoIsGoneWaitsNoMore: of one that had no slot nothing else changes that counts.
func TestWhoIsGoneWaitsNoMore(t *testing.T) {
	a := newTeller(t, 1)
	x := a.join("x")
	a.report(x, uses(1, 8))
	a.report(x, uses(1, 8))
	y := a.join("yy")
	waits := func(r *Report) {
		c := &r.Classes[0]
		c.Waiting, c.Short, c.Head, c.Away.Offered, c.Away.Wants, c.Away.Within = 1, true, Amount{1, 100}, 1, true, true
	}
	a.report(y, waits)
	a.rest()
	within := func() bool {
		return slices.ContainsFunc(a.last.Classes, func(c ClassNews) bool { return c.ID == y && c.Within })
	}
	if !within() || a.find(y).bound[0][0] != 0 {
		t.Fatalf("told %+v, want that y waits within the floor; it is bound by %v, and should have no slot", a.last, a.find(y).bound)
	}
	a.step(&Event{Kind: Gone, Member: Member{ID: y, Lease: 102}})
	a.rest()
	if within() {
		t.Errorf("told %+v, want that y is gone", a.last)
	}
}

// TestALaterLeaderTells: what an earlier one told is in the store, so that a later one
// tells even that nobody has anything. The first of a fleet does not.
func TestALaterLeaderTells(t *testing.T) {
	for _, load := range [][]*Grant{nil, {{Pool: "main", ID: ID{"x", "1"}, Lease: 101, Epoch: 1, Rev: 1}}} {
		a := newTeller(t, 2, load...)
		x := a.join("x")
		a.report(x, nothing)
		a.rest()
		if told := a.last != nil; told != (load != nil) {
			t.Errorf("with grants %v of an earlier leader, told %v", load, told)
		}
	}
}

// TestNewsArePaced: at most one in tellLeast, and of a large fleet less often.
func TestNewsArePaced(t *testing.T) {
	a := newTeller(t, 1)
	var all []ID
	for n := range 40 {
		all = append(all, a.join(strings.Repeat("x", n+1)))
	}
	for _, id := range all[1:] {
		a.report(id, nothing)
	}
	var times []Time
	for n := range int64(1000) {
		a.now += 1e6
		if a.report(all[0], uses(1, 1+n%2)) {
			times = append(times, a.now)
		}
	}
	if len(times) < 10 || len(times) > 13 { // 40 replicas with two classes each: every 80 ms
		t.Errorf("told %d times in a second, at %v", len(times), times)
	}
}

// TestNewsAreSmall: a class that has had requests and is idle costs little, of which there
// are most.
func TestNewsAreSmall(t *testing.T) {
	a := newTeller(t, 1)
	x := a.join("x")
	a.report(x, func(r *Report) {
		r.Classes[0].Away = Away{Offered: 7, Prompt: 100, Pending: -1, Pressed: -1, Starting: -1, Starts: make([]Starts, 1)}
	})
	b, err := json.Marshal(a.last.Classes)
	if want := `[{"replica":"x","boot":"1","class":"interactive","offered":7,"prompt_tokens":100,"pending_ns":-1,"pressed_ns":-1,"starting_ns":-1}]`; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
}

// TestHeard: news that come late are none, nor are those of a leader whose term is over.
func TestHeard(t *testing.T) {
	var h Heard
	var got []string
	for _, n := range []struct{ epoch, seq, granted uint64 }{{2, 3, 0}, {2, 3, 0}, {2, 2, 2}, {2, 4, 2}, {1, 9, 2}, {2, 5, 3}, {3, 1, 3}, {2, 6, 0}} {
		var g *Grant
		if n.granted > 0 {
			g = &Grant{Epoch: n.granted}
		}
		if h.Take(&News{Epoch: n.epoch, Seq: n.seq}, g) {
			got = append(got, fmt.Sprintf("%d.%d", n.epoch, h.Seq))
		}
	}
	if want := []string{"2.3", "2.4", "3.1"}; !slices.Equal(got, want) {
		t.Errorf("took %v, want %v", got, want)
	}
}

// TestElsewhereOfARowThatIsClosed: what is told of an engine is told of its row that is
// open, not of what is left of an earlier one.
func TestElsewhereOfARowThatIsClosed(t *testing.T) {
	n := &News{
		Engines: []EngineNews{{Engine: "e", Idle: Amount{3, 300}}},
		Classes: []ClassNews{{ID: ID{"a", "1"}, Class: "k", Used: []Amount{{1, 100}}, Away: quietAway}, {ID: ID{"b", "1"}, Class: "k", Away: Away{Pending: 2e9, Pressed: -1, Starting: -1}}},
	}
	v := n.Elsewhere(&admission.Table{
		Engines: []admission.EngineSpec{{Name: "e", Closed: true}, {Name: "e"}}, Classes: []admission.ClassSpec{{Name: "k"}},
	}, ID{"c", "1"}, 5e9)
	if v.Engines[0].Idle != (Amount{}) || v.Engines[1].Idle != (Amount{3, 300}) || v.Engines[1].Used != (Amount{1, 100}) {
		t.Errorf("engines: %+v", v.Engines)
	}
	if c := &v.Classes[0]; c.Used != (Amount{1, 100}) || c.Pending != 3e9 {
		t.Errorf("class: %+v", c)
	}
}

// TestPresence: what replicas surely have at engines is told with the rest, with what
// orders it in time, and soon while one of them doubts. What is gone is not told.
func TestPresence(t *testing.T) {
	a := newTeller(t, 1)
	x, y := a.join("x"), a.join("yy")
	has := func(at Time, begun, ended uint64, doubts bool) func(*Report) {
		return func(r *Report) {
			r.At, r.Heard = at, Heard{1, uint64(at)}
			r.Engines[0].Presence = Presence{Begun: begun, Ended: ended, Age: 3, Since: 1, Place: 7, Doubts: doubts}
		}
	}
	a.report(x, has(5, 4, 2, false))
	a.report(y, nothing)
	a.rest()
	if a.last != nil {
		t.Errorf("nobody asks, and all were told %+v", a.last)
	}
	if !a.report(y, has(9, 0, 0, true)) {
		t.Fatal("a doubt was not told")
	}
	want := []LifeNews{
		{ID: x, At: 5, Heard: Heard{1, 5}, Presence: []Presence{{Begun: 4, Ended: 2, Age: 3, Since: 1, Place: 7}}},
		{ID: y, At: 9, Heard: Heard{1, 9}, Presence: []Presence{{Age: 3, Since: 1, Place: 7, Doubts: true}}},
	}
	if got := a.last.Lives; !reflect.DeepEqual(got, want) {
		t.Errorf("told\n%+v, want\n%+v", got, want)
	}
	a.now += tellDoubted
	if !a.report(x, has(6, 5, 2, false)) || a.last.Lives[0].Presence[0].Begun != 5 {
		t.Errorf("told %+v, want that x has begun five", a.last.Lives)
	}
	a.now += tellDoubted
	a.report(y, has(10, 0, 0, false))
	a.rest()
	if len(a.last.Lives) != 1 {
		t.Errorf("told %+v, want x alone", a.last.Lives)
	}
	if a.report(x, has(7, 5, 3, false)) {
		t.Error("nobody doubts, and it was told at once")
	}
	a.step(&Event{Kind: Gone, Member: Member{ID: x, Lease: 101}})
	a.rest()
	if len(a.last.Lives) != 0 {
		t.Errorf("told %+v of who is gone", a.last.Lives)
	}
}
