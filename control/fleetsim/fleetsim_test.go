package fleetsim

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"headgate/control"
)

// TestHistories runs some, and in CI all, of the histories of make fleet-sim.
func TestHistories(t *testing.T) {
	n := 150
	if os.Getenv("CI") != "" {
		n = 2000
	}
	var mu sync.Mutex
	var total Stats
	t.Run("seeds", func(t *testing.T) {
		const parts = 16
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel()
				for seed := 1 + part; seed <= n; seed += parts {
					stats, v := Run(uint64(seed), Options{})
					if v != nil {
						t.Error(v)
					}
					mu.Lock()
					total.Add(&stats)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%s", total.String())
	if total.Steps < 500*n {
		t.Errorf("%d histories have %d steps, and should have at least 500 each", n, total.Steps)
	}
	if n >= 2000 {
		for _, m := range total.Missing() {
			t.Errorf("nothing seen of: %s", m)
		}
	}
}

// TestSeeds runs what once showed something wrong: testdata/seeds.txt.
func TestSeeds(t *testing.T) {
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		seed, err := strconv.ParseUint(line, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, v := Run(seed, Options{}); v != nil {
			t.Error(v)
		}
	}
}

// TestSameSeed: a seed is a history, byte for byte.
func TestSameSeed(t *testing.T) {
	var logs [2]strings.Builder
	for i := range logs {
		Run(11, Options{Log: func(format string, args ...any) { fmt.Fprintf(&logs[i], format+"\n", args...) }})
	}
	if a, b := logs[0].String(), logs[1].String(); a != b || len(a) < 10_000 {
		t.Errorf("two logs of one seed, of %d and %d bytes, are the same: %v", len(a), len(b), a == b)
	}
}

// quiet is a world without faults, of one engine with total, that has begun and has a
// leader and two replicas with grants.
func quiet(t *testing.T) *world {
	t.Helper()
	w := start(seedOfTwo(t), Options{})
	w.calm = true
	w.run(sec + 6*sec)
	if w.bad != nil {
		t.Fatal(w.bad)
	}
	return w
}

// seedOfTwo finds a history of two replicas and one engine, in which nothing survives.
func seedOfTwo(t *testing.T) uint64 {
	for seed := uint64(1); seed < 1000; seed++ {
		p := start(seed, Options{}).p
		if p.replicas == 2 && len(p.base.Engines) == 1 && !survives([]control.Amount{p.pool.Survival}) && len(p.accounts) == 1 {
			return seed
		}
	}
	t.Fatal("there is none")
	return 0
}

// TestBooks: each check fails on what it is there for. Nothing of the allocator's is
// used for that.
func TestBooks(t *testing.T) {
	expect := func(w *world, check int) {
		t.Helper()
		w.check()
		if w.bad == nil || w.bad.Check != check {
			t.Errorf("check %d finds nothing: %v", check, w.bad)
		}
	}
	hold := func(w *world, r *replica, a control.Amount) *job {
		j := &job{life: r.life, amount: a}
		r.life.jobs = append(r.life.jobs, j)
		r.life.truth(j, 1)
		return j
	}

	w := quiet(t)
	total := w.p.accounts[0].total
	w.lives[0].may[0], w.lives[1].may[0] = total, control.Amount{1, 0}
	expect(w, 1) // two grants in force

	w = quiet(t)
	r := w.replicas[0]
	r.kill(true)
	hold(w, r, total)
	w.replicas[1].life.may[0] = control.Amount{1, 0}
	expect(w, 1) // a grant, and what a life that is over has left

	w = quiet(t)
	w.engines[0].used = plus(total, control.Amount{0, 1})
	expect(w, 2)

	w = quiet(t)
	r = w.replicas[0]
	r.life.may[0] = control.Amount{1, 160}
	w.store.lease(r.life.grant.Lease).expires = w.now - 1
	w.admitted(r, &job{life: r.life, amount: control.Amount{1, 16}})
	expect(w, 3)

	w = quiet(t)
	r = w.replicas[0]
	r.life.may[0] = control.Amount{1, 160}
	w.admitted(r, &job{life: r.life, amount: control.Amount{2, 16}})
	expect(w, 4)
}
