package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"headgate/admission"
	"headgate/control"
	"headgate/engine"
)

// TestOrderOfMoments: whatever two clocks show and however late anything is read, another
// replica's report was made between the moments that are taken for its bounds; and they
// are not far from it once two of its reports have heard of ours.
func TestOrderOfMoments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const drift = 0.02
		n := func(from, to int, what string) admission.Time {
			return admission.Time(rapid.IntRange(from, to).Draw(t, what)) * 1e6
		}
		offset, rate := n(-10_000, 10_000, "offset"), 1+drift*rapid.Float64Range(-1, 1).Draw(t, "rate")
		clock := func(now admission.Time) admission.Time { return offset + admission.Time(float64(now)*rate) }
		id := control.ID{Replica: "b", Boot: "1"}
		o := others{drift: drift, peers: map[control.ID]*peer{}}
		now := admission.Time(1e12)
		var mine admission.Time // when our report was made that the leader has
		theirs := control.LifeNews{ID: id}
		made := now // when the other's was
		heard := control.Heard{Epoch: 1}
		epoch, seq := uint64(1), uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += n(0, 300, "time")
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0, 1:
				mine = now - n(0, 50, "on its way")
			case 2, 3:
				theirs, made = control.LifeNews{ID: id, At: clock(now), Heard: heard}, now
				now += n(0, 50, "on its way")
			case 4:
				epoch, seq = epoch+1, 0
			default:
				seq++
				if mine != 0 {
					o.echoes = append(o.echoes, echo{control.Heard{Epoch: epoch, Seq: seq}, mine})
				}
				if rapid.Bool().Draw(t, "the other hears it") {
					heard = control.Heard{Epoch: epoch, Seq: seq}
				}
				if theirs.At == 0 {
					continue
				}
				if v := o.heard(&theirs, now); v.known && v.after > made+1 || v.before < made-1 {
					t.Fatalf("a report of %d is taken to be of %+v", made, v)
				}
			}
		}
		// Two rounds without delay: what is unknown is the way of a round.
		for range 2 {
			seq++
			o.echoes = append(o.echoes, echo{control.Heard{Epoch: epoch, Seq: seq}, now})
			now += 10e6
			theirs = control.LifeNews{ID: id, At: clock(now), Heard: control.Heard{Epoch: epoch, Seq: seq}}
			if v := o.heard(&theirs, now); !v.known || v.after < now-11e6 || v.after > now+1 || v.before > now || v.before < now-1 {
				t.Fatalf("a report of %d is taken to be of %+v", now, v)
			}
		}
	})
}

// sharer is an adapter that notes what it is told.
type sharer struct {
	engine.Adapter
	has    engine.Attendance
	others []engine.Presence
	wanted func()
}

func (s *sharer) Share(wanted func())             { s.wanted = wanted }
func (s *sharer) Attending() engine.Attendance    { return s.has }
func (s *sharer) Others(others []engine.Presence) { s.others = others }

// TestOthersAreToldTheAdapter: what another has said of the same place comes to the
// adapter with bounds by this clock, and who doubts is answered.
func TestOthersAreToldTheAdapter(t *testing.T) {
	start := time.Now()
	s := &sharer{has: engine.Attendance{Begun: 3, Ended: 1, Place: 7, Since: start, As: start}}
	cfg := Config{Name: "main", Engines: []Engine{{Name: "e", Adapter: s}}, Replica: control.ID{Replica: "a", Boot: "1"}, Start: start, Capacity: 1}
	p := New(cfg)
	if v := p.presenceLocked(0); v.Begun != 3 || v.Ended != 1 || v.Place != 7 || v.Age <= 0 {
		t.Errorf("says %+v", v)
	}
	lives := func(heard uint64, doubts bool, place uint32) []control.LifeNews {
		return []control.LifeNews{
			{ID: cfg.Replica, At: 40, Presence: []control.Presence{{Begun: 3, Place: 7}}},
			{ID: control.ID{Replica: "b", Boot: "1"}, At: 1000, Heard: control.Heard{Epoch: 1, Seq: heard}, Presence: []control.Presence{{Begun: 5, Ended: 2, Age: 10, Since: 1, Place: place, Doubts: doubts}}},
		}
	}
	tell := func(seq uint64, l []control.LifeNews) {
		p.Told(&control.News{Pool: "main", Epoch: 1, Seq: seq, Engines: []control.EngineNews{{Engine: "e"}}, Lives: l}, start.Add(time.Duration(1000*seq)))
	}
	tell(1, lives(0, false, 7))
	if len(s.others) != 1 || s.others[0].Begun != 5 || s.others[0].Ended != 2 || !s.others[0].After.IsZero() || s.others[0].Before != start.Add(1000) {
		t.Errorf("told %+v before it is known when that was", s.others)
	}
	tell(2, lives(1, false, 7))
	if len(s.others) != 1 || s.others[0].After != start.Add(30) {
		t.Errorf("told %+v, want 10 ns before our report of 40", s.others)
	}
	tell(3, lives(1, false, 8))
	if len(s.others) != 0 {
		t.Errorf("told %+v of another place", s.others)
	}
	select {
	case <-p.Wants():
		t.Error("nobody doubts, and a report is wanted")
	default:
	}
	tell(4, lives(1, true, 7))
	<-p.Wants()
	s.wanted()
	<-p.Wants()
}

// TestOthersClockStopped: a process that was stopped together with its clock, as one of a
// virtual machine is that moves, is not taken to have made its reports when its clock says,
// once something shows that it has not.
func TestOthersClockStopped(t *testing.T) {
	o := others{drift: 0.02, peers: map[control.ID]*peer{}}
	report := func(at admission.Time, seq uint64) *control.LifeNews {
		return &control.LifeNews{ID: control.ID{Replica: "b", Boot: "1"}, At: at, Heard: control.Heard{Epoch: 1, Seq: seq}}
	}
	o.heard(report(100e6, 0), 1000e6)
	// Two seconds of ours are one of its.
	o.echoes = append(o.echoes, echo{control.Heard{Epoch: 1, Seq: 1}, 2900e6})
	if v := o.heard(report(1100e6, 1), 3000e6); v.before != 3000e6 || v.known {
		t.Errorf("a report that heard of ours of 2900 ms is taken to be of %+v", v)
	}
	o.echoes = append(o.echoes, echo{control.Heard{Epoch: 1, Seq: 2}, 3050e6})
	if v := o.heard(report(1200e6, 2), 3110e6); v.before < 3100e6 || !v.known || v.after != 3050e6 {
		t.Errorf("the next one is taken to be of %+v", v)
	}
}

// slow is an adapter of which it takes time to tell what it has.
type slow struct{ engine.Shared }

func (s *slow) Attending() engine.Attendance {
	time.Sleep(10 * time.Millisecond)
	return engine.Attendance{Begun: 1, As: time.Now(), Since: time.Now()}
}

// TestReportIsOfItsTime: a report says nothing of after the time that it has, since others
// take what had begun for there before that.
func TestReportIsOfItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, options{pool: func(c *Config) {
			c.Replica = brkID
			c.Engines[0].Adapter = &slow{c.Engines[0].Adapter.(engine.Shared)}
		}})
		pass(time.Second + 100*time.Millisecond)
		now := time.Since(g.pool.cfg.Start)
		r := g.pool.Report()
		if v := r.Engines[0].Presence; r.At < admission.Time(now+10*time.Millisecond) || r.At-admission.Time(v.Age) > admission.Time(now+10*time.Millisecond) {
			t.Errorf("asked at %v, with what was begun 10 ms later, the report is of %v, and of %v before", now, time.Duration(r.At), v.Age)
		}
	})
}
