package control

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const second = Time(time.Second)

// held is a holder with a grant under lease 1 that was renewed at 10 s for 6 s.
func held(t *testing.T, drift float64, residual time.Duration) (*Holder, ID) {
	id := ID{Replica: "a", Boot: "1"}
	h := NewHolder("p", id, drift)
	h.Leased(1, 10*second, 6*time.Second)
	if err := h.Take(11*second, &Grant{Pool: "p", ID: id, Lease: 1, Epoch: 1, Rev: 1, Residual: residual}); err != nil {
		t.Fatal(err)
	}
	return h, id
}

// TestDue: when what a replica has is given up goes by the end of the lease of its last
// grant, and by what that grant says.
func TestDue(t *testing.T) {
	due := func(h *Holder) Time {
		at, ok := h.Due()
		if !ok {
			t.Fatal("nothing is due")
		}
		return at
	}
	if _, ok := NewHolder("p", ID{}, 0).Due(); ok {
		t.Error("something is due without a grant")
	}
	h, id := held(t, 0, time.Minute)
	if at := due(h); at != 74*second {
		t.Errorf("due at %d, want 16 s and a minute, less what an end takes", at)
	}
	h.Leased(1, 13*second, 6*time.Second)
	if at := due(h); at != 77*second {
		t.Errorf("due at %d after a renewal, want 3 s more", at)
	}
	h.Lost(15 * second)
	if at := due(h); at != 73*second {
		t.Errorf("due at %d after the loss of the lease, want a minute from that", at)
	}
	h.Leased(2, 40*second, 6*time.Second)
	if at := due(h); at != 73*second {
		t.Errorf("due at %d, and a new lease changes nothing", at)
	}
	if h.Residual(10*time.Minute) < 10*time.Minute || due(h) != 73*second {
		t.Error("what is asked for counts before a grant says so")
	}
	if err := h.Take(41*second, &Grant{Pool: "p", ID: id, Lease: 2, Epoch: 1, Rev: 2, Residual: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if at := due(h); at != (46+3600-2)*second {
		t.Errorf("due at %d after a grant under the new lease", at)
	}
	h, _ = held(t, 0.02, time.Minute)
	if at, want := due(h), Time(15880+60000*98/102-2000)*Time(time.Millisecond); max(at-want, want-at) > Time(time.Millisecond) {
		t.Errorf("due at %d with drift, want %d", at, want)
	}
}

// TestResidualIsEnough: what lasts as long as was said is not given up, and what is asked
// for does not change often.
func TestResidualIsEnough(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		drift := rapid.Float64Range(0, 0.5).Draw(rt, "drift")
		h := NewHolder("p", ID{}, drift)
		last, changes := time.Duration(0), 0
		longest := time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(rt, "n") {
			d := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(rt, "d"))
			longest = max(longest, d)
			r := h.Residual(d)
			if r < last {
				rt.Fatalf("it fell from %s to %s", last, r)
			}
			if r != last {
				changes++
			}
			last = r
		}
		g, _ := held(t, drift, last)
		if at, _ := g.Due(); longest > 0 && at-g.end < Time(longest) {
			rt.Fatalf("%s are asked for, and what lasts %s is ended after %s", last, longest, time.Duration(at-g.end))
		}
		if changes > 80 { // from 2 s to hours in steps of an eighth
			rt.Fatalf("%d changes", changes)
		}
	})
}

// TestOverdueLeavesWhatSurvives: nothing is given up that need not be, and what is left is
// within what survives of engines and of classes with a ceiling.
func TestOverdueLeavesWhatSurvives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := NewHolder("p", ID{}, 0)
		amount := func(name string, most int64) Amount {
			return Amount{rapid.Int64Range(0, most).Draw(rt, name), rapid.Int64Range(0, 100*most).Draw(rt, name+" KV")}
		}
		limited := rapid.Bool().Draw(rt, "limited")
		h.grant = &Grant{Accounts: []Account{{Engine: "e0", Survival: amount("e0", 4)}}} // e1 is in no grant
		if limited {
			h.grant.Accounts = append(h.grant.Accounts, Account{Class: "c1", Survival: amount("c1", 3)})
		}
		engines, classes := []string{"e0", "e1"}, []string{"c0", "c1"}
		r := &Report{Engines: []EngineReport{{Engine: "e0"}, {Engine: "e1"}}, Classes: []ClassReport{{Class: "c0", Used: make([]Amount, 2)}, {Class: "c1", Used: make([]Amount, 2)}}}
		var running []Attempt
		for range rapid.IntRange(0, 8).Draw(rt, "attempts") {
			e, k := rapid.IntRange(0, 1).Draw(rt, "engine"), rapid.IntRange(0, 1).Draw(rt, "class")
			v := Amount{1, rapid.Int64Range(0, 200).Draw(rt, "kv")}
			r.Engines[e].Used, r.Classes[k].Used[e] = plus(r.Engines[e].Used, v), plus(r.Classes[k].Used[e], v)
			running = append(running, Attempt{Engine: engines[e], Class: classes[k], Amount: v})
		}
		ends := h.Overdue(r, running)
		left := func(without int) map[string]Amount {
			sum := map[string]Amount{}
			for i, v := range running {
				ended := false
				for n, j := range ends {
					ended = ended || j == i && n < without
				}
				if !ended {
					sum[v.Engine], sum[v.Class] = plus(sum[v.Engine], v.Amount), plus(sum[v.Class], v.Amount)
				}
			}
			return sum
		}
		survives := map[string]Amount{"e0": h.grant.Accounts[0].Survival}
		if limited {
			survives["c1"] = h.grant.Accounts[1].Survival
		}
		over := func(sum map[string]Amount, name string) bool {
			return (name[0] == 'e' || limited && name == "c1") && !within(sum[name], survives[name])
		}
		for name := range left(len(ends)) {
			if over(left(len(ends)), name) {
				rt.Fatalf("%s keeps %s, and %s survives", name, left(len(ends))[name], survives[name])
			}
		}
		for n, i := range ends {
			if v, sum := running[i], left(n); !over(sum, v.Engine) && !over(sum, v.Class) {
				rt.Fatalf("attempt %d is given up for nothing", i)
			}
		}
	})
}
