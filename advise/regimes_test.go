package advise

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"headgate/prove"
	"headgate/prove/provetest"
	"headgate/trace"
)

// mixed is traffic whose mix changes at a share of its requests, from the first to the
// second.
func mixed(seed uint64, n int, at float64, before, after func(q *prove.Request, draw func() float64)) []prove.Request {
	noise := provetest.NewNoise(seed)
	all := make([]prove.Request, n)
	now := 0.0
	for i := range all {
		now += -math.Log(1 - noise.Next())
		q := &all[i]
		q.Entry = trace.Entry{ID: fmt.Sprint(i), Arrival: time.Duration(now * float64(time.Second))}
		if float64(i) < at*float64(n) {
			before(q, noise.Next)
		} else {
			after(q, noise.Next)
		}
	}
	return all
}

// usual is a mix of two models, two classes, five principals and sizes over two
// magnitudes.
func usual(q *prove.Request, draw func() float64) {
	q.Model, q.Class, q.Principal = "small", trace.Interactive, fmt.Sprint("p", int(5*draw()*draw()))
	if draw() < 0.3 {
		q.Model = "large"
	}
	if draw() < 0.2 {
		q.Class = trace.Batch
	}
	q.PromptTokens, q.Output = 20+int(4000*math.Pow(draw(), 3)), 10+int(500*draw())
}

func length(all []prove.Request) time.Duration { return all[len(all)-1].Arrival + time.Second }

// TestNoFalseAlarm: of recordings that were one traffic fewer than some in a hundred are said to
// have changed, few requests or many.
func TestNoFalseAlarm(t *testing.T) {
	const recordings = 300
	alarms := 0
	for seed := range uint64(recordings) {
		n := []int{320, 700, 2500}[seed%3]
		all := mixed(seed+1, n, 1, usual, nil)
		if found := Regimes(all, length(all)); len(found) > 1 {
			alarms++
			t.Logf("%d requests: %v", n, found)
		}
	}
	// At the level of 1 % there are 9 or more with a chance of 0.4 %.
	if t.Logf("%d alarms of %d", alarms, recordings); alarms > 8 {
		t.Errorf("%d alarms of %d recordings without a change", alarms, recordings)
	}
}

// TestChangesAreFound: a change of the models, of the routing or of the sizes is found where
// it was, also two of them; one that is small is none.
func TestChangesAreFound(t *testing.T) {
	models := func(q *prove.Request, draw func() float64) {
		usual(q, draw)
		if q.Model == "small" {
			q.Model = "new"
		}
	}
	routing := func(q *prove.Request, draw func() float64) {
		usual(q, draw)
		if draw() < 0.5 {
			q.Principal = "nightly"
		}
	}
	sizes := func(q *prove.Request, draw func() float64) {
		usual(q, draw)
		q.PromptTokens *= 8
	}
	little := func(q *prove.Request, draw func() float64) {
		usual(q, draw)
		if draw() < 0.05 {
			q.Class = "rare"
		}
	}
	for _, tt := range []struct {
		name  string
		after func(*prove.Request, func() float64)
		at    float64
		says  string
	}{
		{"models", models, 0.5, "models"}, {"models, late", models, 0.8, "models"}, {"routing", routing, 0.6, "principals"}, {"sizes", sizes, 0.3, "sizes"}, {"little", little, 0.5, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				all := mixed(seed+100, 1200, tt.at, usual, tt.after)
				found := Regimes(all, length(all))
				if tt.says == "" {
					if len(found) != 1 {
						t.Errorf("seed %d: %v", seed, found)
					}
					continue
				}
				if len(found) != 2 || !strings.HasPrefix(found[1].Changed, tt.says) {
					t.Errorf("seed %d: %v", seed, found)
					continue
				}
				off := float64(found[1].From-all[int(tt.at*1200)].Arrival) / float64(length(all))
				if math.Abs(off) > 0.04 || found[0].From != 0 || found[0].To != found[1].From || found[1].To != length(all) {
					t.Errorf("seed %d: off by %.1f %% of the window: %v", seed, 100*off, found)
				}
			}
		})
	}
	// A model comes and goes.
	all := append(mixed(7, 1000, 0.5, usual, models), mixed(8, 500, 1, usual, nil)...)
	for i := 1000; i < len(all); i++ {
		all[i].Arrival += all[999].Arrival
	}
	if found := Regimes(all, length(all)); len(found) != 3 {
		t.Errorf("two changes: %v", found)
	}
	if found := Regimes(all[:300], time.Hour); len(found) != 1 || found[0].To != time.Hour {
		t.Errorf("too few to tell: %v", found)
	}
}

// TestDaysAreNoRegimes: batch that comes every night is one traffic over a week, though each
// night is unlike each day.
func TestDaysAreNoRegimes(t *testing.T) {
	for seed := range uint64(20) {
		week := mixed(seed+500, 4000, 1, usual, nil)
		noise := provetest.NewNoise(seed + 900)
		for i := range week {
			day := 7 * float64(week[i].Arrival) / float64(length(week))
			if week[i].Class = trace.Interactive; noise.Next() < 0.35+0.3*math.Sin(2*math.Pi*day) {
				week[i].Class = trace.Batch
			}
		}
		if found := Regimes(week, length(week)); len(found) != 1 {
			t.Errorf("seed %d: %v", seed, found)
		}
	}
}
