package control

import (
	"testing"
	"time"
)

type bk struct {
	t      *testing.T
	a      *Allocator
	now    Time
	seq    map[string]uint64
	g      map[string]*Grant
	writes int
}

func newBk(t *testing.T, p *Pool) *bk {
	return &bk{t: t, a: NewAllocator(p, 1, Config{}), now: 1e9, seq: map[string]uint64{}, g: map[string]*Grant{}}
}
func (b *bk) step(ev *Event) {
	for _, e := range b.a.Step(b.now, ev, nil) {
		if e.Op == Write {
			b.g[e.Grant.Replica] = e.Grant
			b.writes++
			b.t.Logf("t=%v write %s rev %d %v", time.Duration(b.now), e.Grant.Replica, e.Grant.Rev, e.Grant.Accounts)
		}
	}
}

// replicas are a and b by their leases, in that order every time.
func (b *bk) replicas() func(func(int64, string) bool) {
	return func(yield func(int64, string) bool) { _ = yield(1, "a") && yield(2, "b") }
}

func bid(r string) ID { return ID{r, "b"} }
func (b *bk) join(r string, l int64) {
	b.step(&Event{Kind: Join, Member: Member{ID: bid(r), Lease: l}})
}
func (b *bk) rep(r string, l int64, rev uint64, waiting int, eng ...EngineReport) {
	b.seq[r]++
	var used []Amount
	for _, e := range eng {
		used = append(used, e.Used)
	}
	b.step(&Event{Kind: Reported, Report: &Report{Pool: "main", ID: bid(r), Lease: l, Seq: b.seq[r], Epoch: 1, Rev: rev, Engines: eng, Classes: []ClassReport{{Class: "c", Used: used, Waiting: waiting, Head: Amount{1, 10}, Short: waiting > 0, Away: Away{Pending: -1, Pressed: -1, Starting: -1}}}}})
}
func (b *bk) tick(d time.Duration) {
	for e := b.now + Time(d); b.now < e; {
		b.now += 1e9
		b.step(&Event{Kind: Tick})
	}
}
func er(n string, total, used int64) EngineReport {
	return EngineReport{Engine: n, Total: Amount{total, total * 100}, Used: Amount{used, used * 10}, Gauge: Amount{-1, -1}, Others: Amount{-1, -1}}
}
func pl(eng ...Engine) *Pool {
	return &Pool{Name: "main", Replicas: 4, Engines: eng, Classes: []Class{{Name: "c"}}}
}
func en(n string, s int64) Engine { return Engine{n, Amount{s, s * 100}} }

// the envelope shrinks: idle grants are not lowered
func TestEnvelopeShrink(t *testing.T) {
	b := newBk(t, pl(en("g", 8)))
	b.join("a", 1)
	b.rep("a", 1, 0, 0, er("g", 8, 0))
	b.join("b", 2)
	b.rep("b", 2, 0, 0, er("g", 8, 0))
	for i := 0; i < 6; i++ {
		b.tick(time.Second)
		for l, r := range b.replicas() {
			if g := b.g[r]; g != nil {
				b.rep(r, l, g.Rev, 0, er("g", 8, 0))
			}
		}
	}
	b.step(&Event{Kind: Configure, Pool: pl(en("g", 4))})
	for i := 0; i < 20; i++ {
		b.tick(time.Second)
		for l, r := range b.replicas() {
			b.rep(r, l, b.g[r].Rev, 0, er("g", 4, 0))
		}
	}
	if s := b.g["a"].Accounts[0].Amount[0] + b.g["b"].Accounts[0].Amount[0]; s > 4 {
		t.Errorf("after 20 s grants sum to %d of 4: a %v b %v", s, b.g["a"].Accounts[0].Amount, b.g["b"].Accounts[0].Amount)
	}
}

// an engine goes and comes back in the leader's file
func TestEnvelopeReadd(t *testing.T) {
	b := newBk(t, pl(en("g", 4), en("h", 4)))
	b.join("a", 1)
	b.rep("a", 1, 0, 0, er("g", 4, 0), er("h", 4, 0))
	b.tick(3 * time.Second)
	b.rep("a", 1, b.g["a"].Rev, 0, er("g", 4, 0), er("h", 4, 0))
	held := b.g["a"]
	t.Logf("a holds %v", held.Accounts)
	w := b.writes
	b.step(&Event{Kind: Configure, Pool: pl(en("g", 4))})
	t.Logf("writes by the removal: %d", b.writes-w)
	b.step(&Event{Kind: Configure, Pool: pl(en("g", 4), en("h", 4))})
	b.join("b", 2)
	b.rep("b", 2, 0, 4, er("g", 4, 0), er("h", 4, 0))
	gb := b.g["b"]
	if gb != nil && len(gb.Accounts) > 1 && gb.Accounts[1].Amount[0]+held.Accounts[1].Amount[0] > 4 {
		t.Errorf("h has 4: a still holds %v (it acknowledged nothing newer), b was given %v", held.Accounts[1].Amount, gb.Accounts[1].Amount)
	}
}

// two rows of one engine's name in a report, as after a change of its URL and back
func TestEnvelopeTwoRows(t *testing.T) {
	b := newBk(t, pl(en("g", 4)))
	b.join("a", 1)
	b.rep("a", 1, 0, 0, er("g", 4, 0))
	b.tick(3 * time.Second)
	b.rep("a", 1, b.g["a"].Rev, 0, er("g", 4, 4), er("g", 0, 0))
	b.join("b", 2)
	b.rep("b", 2, 0, 4, er("g", 4, 0))
	b.tick(time.Second)
	b.rep("a", 1, b.g["a"].Rev, 0, er("g", 4, 4), er("g", 0, 0))
	b.tick(time.Second)
	if gb := b.g["b"]; gb != nil && gb.Accounts[0].Amount[0] > 0 {
		t.Errorf("a runs 4 of 4, b was given %v", gb.Accounts[0].Amount)
	}
}

// foreign load: grants are not lowered
func TestEnvelopeForeign(t *testing.T) {
	b := newBk(t, pl(en("g", 8)))
	b.join("a", 1)
	b.rep("a", 1, 0, 0, er("g", 8, 0))
	b.join("b", 2)
	b.rep("b", 2, 0, 0, er("g", 8, 0))
	for i := 0; i < 6; i++ {
		b.tick(time.Second)
		for l, r := range b.replicas() {
			b.rep(r, l, b.g[r].Rev, 0, er("g", 8, 0))
		}
	}
	for i := 0; i < 20; i++ {
		b.tick(time.Second)
		for l, r := range b.replicas() {
			e := er("g", 8, 0)
			e.Gauge = Amount{6, 60}
			e.GaugeSeq = uint64(i + 1)
			b.rep(r, l, b.g[r].Rev, 0, e)
		}
	}
	if s := b.g["a"].Accounts[0].Amount[0] + b.g["b"].Accounts[0].Amount[0]; s > 2 {
		t.Errorf("6 of 8 slots are foreign for 20 s (allocator says %v), grants sum to %d", b.a.accounts[0].foreign, s)
	}
}

// survival is lowered in the leader's file while a replica lives on it without the store
func TestEnvelopeSurvival(t *testing.T) {
	p := pl(en("g", 4))
	p.Survival = Amount{1, 100}
	b := newBk(t, p)
	b.join("a", 1)
	b.rep("a", 1, 0, 0, er("g", 4, 0))
	b.join("b", 2)
	b.rep("b", 2, 0, 0, er("g", 4, 0))
	for i := 0; i < 6; i++ {
		b.tick(time.Second)
		for l, r := range b.replicas() {
			b.rep(r, l, b.g[r].Rev, 0, er("g", 4, 0))
		}
	}
	held := b.g["a"].Accounts[0].Survival
	b.step(&Event{Kind: Gone, Member: Member{ID: bid("a"), Lease: 1}})
	b.tick(10 * time.Second)
	b.step(&Event{Kind: Configure, Pool: pl(en("g", 4))})
	b.rep("b", 2, b.g["b"].Rev, 4, er("g", 4, 3))
	b.tick(3 * time.Second)
	if g := b.g["b"].Accounts[0].Amount; g[0]+held[0] > 4 {
		t.Errorf("a may live on %v, b was given %v of 4", held, g)
	}
}
