package release

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/engine"
)

var epoch = time.Unix(1_000_000, 0)

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// bench is a judge with tickets by name.
type bench struct {
	judge
	named map[string]*Ticket
}

func newBench() *bench {
	return &bench{judge: judge{grace: 2 * time.Second, by: engine.ByProgress}, named: map[string]*Ticket{}}
}

func (b *bench) close(name string, ms int, answered, seen bool) {
	t := &Ticket{Closed: at(ms), Answered: answered, Seen: seen, done: make(chan struct{}), still: at(ms)}
	b.named[name] = t
	b.add(t)
}

// confirmed lists what has been, as name:evidence.
func (b *bench) confirmed() string {
	var out []string
	for name, t := range b.named {
		if t.result.By != engine.Unconfirmed {
			out = append(out, name+":"+string(t.result.By))
		}
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// step is a sample of an engine whose gauges are written by steps.
func step(ms, held, live int, progress int64) Sample {
	return Sample{Asked: at(ms), At: at(ms + 1), Held: held, Live: live, Progress: progress}
}

// slots is a sample of an engine that is asked for its slots.
func slots(ms, held, live, queued, pending int) Sample {
	return Sample{Asked: at(ms), At: at(ms + 1), Fresh: true, Held: held, Live: live, Queued: queued, Pending: pending, Progress: -1}
}

func TestEvidence(t *testing.T) {
	type look struct {
		Sample
		want string
	}
	for _, c := range []struct {
		name  string
		setup func(*bench)
		looks []look
	}{
		{"counters moved and the load is gone", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(5, 3, 2, 100), "[]"},  // asked before the close
			{step(20, 3, 2, 100), "[]"}, // the first that counts
			{step(30, 3, 2, 100), "[]"}, // nothing new
			{step(40, 2, 2, 105), "[a:progress]"},
		}},
		{"load gone by a gauge that may be old", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(20, 2, 2, 100), "[]"},
			{step(30, 2, 2, 100), "[]"},
			{step(40, 2, 2, 101), "[a:progress]"},
		}},
		{"counters move and it stays", func(b *bench) { b.close("ghost", 10, true, true) }, []look{
			{step(20, 3, 2, 100), "[]"}, {step(30, 3, 2, 110), "[]"}, {step(40, 3, 2, 120), "[]"},
			{step(9000, 3, 2, 130), "[]"}, {step(10000, 2, 2, 140), "[ghost:progress]"},
		}},
		{"an idle engine after the first event", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(20, 1, 0, 100), "[]"}, {step(30, 0, 0, 100), "[a:progress]"},
		}},
		{"an idle engine before the first event", func(b *bench) { b.close("a", 10, true, false) }, []look{
			{step(20, 0, 0, 100), "[]"}, {step(1000, 0, 0, 100), "[]"}, {step(2009, 0, 0, 100), "[]"}, {step(2010, 0, 0, 100), "[a:grace]"},
		}},
		{"gauges stuck after a mass abort", func(b *bench) { b.close("a", 10, true, true); b.close("b", 11, true, true) }, []look{
			{step(20, 20, 0, 100), "[]"}, {step(1500, 20, 0, 100), "[]"}, {step(2015, 20, 0, 100), "[a:grace b:grace]"},
		}},
		{"a long step is no standstill", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(20, 20, 18, 100), "[]"}, {step(1900, 20, 18, 101), "[]"}, {step(3800, 20, 18, 102), "[]"}, {step(5700, 20, 18, 103), "[]"},
		}},
		{"foreign load known from before", func(b *bench) {
			b.sample(step(1, 5, 3, 10))
			b.sample(step(2, 6, 3, 11)) // one was just passing
			b.close("a", 10, true, true)
		}, []look{{step(20, 5, 2, 20), "[]"}, {step(30, 5, 2, 21), "[]"}, {step(40, 4, 2, 22), "[a:progress]"}}},
		{"foreign load that left", func(b *bench) {
			b.sample(step(1, 5, 3, 10))
			b.sample(step(2, 5, 3, 11))
			b.close("a", 10, true, true)
		}, []look{{step(20, 3, 2, 20), "[]"}, {step(30, 2, 2, 21), "[a:progress]"}}},
		{"some of several: as many as left, after two moves", func(b *bench) {
			b.close("prompt", 10, true, false)
			b.close("late", 12, true, true)
			b.close("early", 11, true, true)
		}, []look{
			{step(20, 3, 0, 100), "[]"}, {step(30, 1, 0, 101), "[]"},
			{step(40, 1, 0, 102), "[early:progress late:progress]"}, {step(50, 0, 0, 103), "[early:progress late:progress prompt:progress]"},
		}},
		{"a younger one is not counted among the gone", func(b *bench) {
			b.close("old", 10, true, true)
			b.close("young", 35, true, true)
		}, []look{
			// At 30 the young one was live.
			{step(20, 2, 1, 100), "[]"}, {step(30, 1, 1, 101), "[old:progress]"}, {step(40, 1, 0, 102), "[old:progress]"}, {step(50, 0, 0, 103), "[old:progress young:progress]"},
		}},
		{"a restart", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(20, 3, 2, 1000), "[]"}, {step(30, 0, 0, 0), "[a:progress]"},
		}},
		{"no load exported", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(20, -1, 0, 100), "[]"}, {step(1000, -1, 0, 200), "[]"}, {step(2010, -1, 0, 300), "[a:grace]"},
		}},
		{"samples that overtook each other", func(b *bench) { b.close("a", 10, true, true) }, []look{
			{step(30, 2, 2, 110), "[]"}, {step(20, 2, 2, 100), "[]"}, {step(40, 2, 2, 110), "[]"}, {step(50, 2, 2, 111), "[a:progress]"},
		}},
		{"a slot fell idle", func(b *bench) { b.by = engine.BySlot; b.close("a", 10, true, true) }, []look{
			{slots(20, 3, 2, -1, 0), "[]"}, {slots(30, 2, 2, -1, 0), "[a:slot]"},
		}},
		{"a slot in its prompt, time alone", func(b *bench) { b.by = engine.BySlot; b.close("a", 10, true, false) }, []look{
			{slots(20, 1, 0, 0, 0), "[]"}, {slots(9000, 1, 0, 0, 0), "[]"},
		}},
		{"deferred, and then it had its turn", func(b *bench) { b.by = engine.BySlot; b.close("a", 10, false, false) }, []look{
			{slots(20, 4, 4, 2, 1), "[]"}, {slots(30, 4, 4, 1, 1), "[]"}, // the one that is left may be it
			{slots(40, 4, 3, 1, 1), "[]"}, // it has a slot
			{slots(50, 3, 3, 1, 1), "[]"}, {slots(60, 3, 3, 1, 1), "[a:slot]"},
		}},
		{"deferred, and nobody tells", func(b *bench) { b.by = engine.BySlot; b.close("a", 10, false, false) }, []look{
			{slots(20, 4, 4, -1, 0), "[]"}, {slots(9000, 4, 4, -1, 0), "[]"},
			{slots(9010, 3, 3, 0, 0), "[]"}, {slots(9020, 3, 3, 0, 0), "[a:slot]"},
		}},
		{"given up and taken up again", func(b *bench) {
			b.by = engine.BySlot
			b.close("ghost", 10, true, true)
			b.sample(slots(20, 1, 0, 0, 0))
			b.giveUp(b.named["ghost"])
			b.close("a", 30, true, true)
			b.add(b.named["ghost"])
		}, []look{
			{slots(40, 1, 0, 0, 0), "[ghost:slot]"}, // one of the two: the longest closed
			{slots(50, 0, 0, 0, 0), "[a:slot ghost:slot]"},
		}},
		{"one that was given up is foreign to the next", func(b *bench) {
			b.by = engine.BySlot
			b.close("ghost", 10, true, true)
			b.close("b", 15, true, true)
			b.sample(slots(16, 2, 0, 0, 0))
			b.giveUp(b.named["ghost"])
		}, []look{{slots(20, 2, 0, 0, 0), "[]"}, {slots(30, 1, 0, 0, 0), "[b:slot]"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench()
			c.setup(b)
			for i, l := range c.looks {
				b.sample(l.Sample)
				if got := b.confirmed(); got != l.want {
					t.Errorf("after look %d: %s, want %s", i, got, l.want)
				}
			}
		})
	}
}

// A small engine with steps, and with the lag of asynchronous scheduling: an
// abort is seen at the boundary after the one that is being scheduled. What is
// confirmed may never be more than what has left, whatever mix of aborts,
// natural ends, ghosts and foreign requests there is, as long as those are known
// before.
func TestNeverMoreThanHasLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fresh := rapid.Bool().Draw(t, "fresh")
		j := judge{grace: time.Hour, by: engine.ByProgress}
		type seq struct {
			ticket *Ticket // closed
			ghost  bool
			steps  int // boundaries since its close
			seen   bool
		}
		foreign := rapid.IntRange(0, 3).Draw(t, "foreign")
		var run []*seq
		var closed []*seq
		now, gauge, progress := 0, 0, int64(0)
		live := func() int {
			n := 0
			for _, s := range run {
				if s.ticket == nil {
					n++
				}
			}
			return n
		}
		boundary := func() {
			run = slices.DeleteFunc(run, func(s *seq) bool {
				if s.ticket == nil {
					return false
				}
				s.steps++
				return !s.ghost && s.steps >= 2
			})
			for _, s := range run {
				s.seen = true
			}
			gauge = len(run) + foreign
			progress += int64(gauge)
		}
		look := func() {
			now += 2
			held := gauge
			if fresh {
				held = len(run) + foreign
			}
			j.sample(Sample{Asked: at(now), At: at(now + 1), Fresh: fresh, Held: held, Live: live(), Progress: progress})
		}
		check := func() {
			said, left := 0, 0
			for _, s := range closed {
				if s.ticket.result.By != engine.Unconfirmed {
					said++
				}
				if !slices.Contains(run, s) {
					left++
				}
			}
			if said > left {
				t.Fatalf("%d confirmed of %d that have left", said, left)
			}
		}
		boundary()
		look()
		look()
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			switch rapid.IntRange(0, 9).Draw(t, "move") {
			case 0, 1:
				run = append(run, &seq{ghost: rapid.IntRange(0, 9).Draw(t, "ghost") == 0})
				boundary() // dispatched, and counted by the step that ends
			case 2, 3, 4:
				i := slices.IndexFunc(run, func(s *seq) bool { return s.ticket == nil })
				if i < 0 {
					continue
				}
				now++
				s := run[i]
				s.ticket = &Ticket{Closed: at(now), Answered: true, Seen: s.seen, done: make(chan struct{}), still: at(now)}
				closed = append(closed, s)
				j.add(s.ticket)
			case 5, 6, 7:
				if len(run)+foreign > 0 {
					boundary()
				}
			default:
				look()
			}
			check()
		}
		// With the ghosts gone and steps being made, nobody waits for ever.
		for _, s := range run {
			s.ghost = false
		}
		foreign++ // keeps the engine stepping
		for range 4 {
			boundary()
		}
		foreign--
		for range 4 {
			boundary()
			look()
			check()
		}
		if n := len(j.tickets); n > 0 && (fresh || foreign > 0 || live() > 0) {
			t.Fatalf("%d attempts left and not confirmed", n)
		}
	})
}
