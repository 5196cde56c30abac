package release

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/engine"
)

// said is a presence of one other: begun attempts, of which so many ended, said before
// and after moments in ms.
func said(begun, ended uint64, before, after int) []engine.Presence {
	return []engine.Presence{{Who: "b", Begun: begun, Ended: ended, Before: at(before), After: at(after)}}
}

// TestOthers: what others say of the time of a sample, before or after it came.
func TestOthers(t *testing.T) {
	type move struct {
		sample Sample // or
		said   []engine.Presence
		want   string
	}
	look := func(ms, held, live int, progress int64, want string) move {
		return move{sample: step(ms, held, live, progress), want: want}
	}
	told := func(begun, ended uint64, before, after int, want string) move {
		return move{said: said(begun, ended, before, after), want: want}
	}
	for _, c := range []struct {
		name  string
		moves []move
	}{
		{"told of the time before and after", []move{
			told(5, 3, 15, 0, "[]"), look(20, 3, 0, 100, "[]"), look(30, 2, 0, 105, "[]"),
			told(5, 3, 60, 40, "[]"), // what was on its way may be an end
			told(6, 3, 90, 51, "[a:progress]"),
		}},
		{"what was said before the close is no evidence of after", []move{
			told(5, 3, 5, 0, "[]"), told(5, 3, 8, 7, "[]"), look(20, 3, 0, 100, "[]"), look(30, 2, 0, 105, "[]"),
		}},
		{"one began after the sample and hides nothing", []move{
			told(5, 3, 15, 0, "[]"), look(20, 3, 0, 100, "[]"), look(30, 3, 0, 105, "[]"),
			told(6, 3, 90, 60, "[]"),
		}},
		{"one ended after the sample, so that nobody knows", []move{
			told(5, 3, 15, 0, "[]"), look(20, 3, 0, 100, "[]"), look(30, 2, 0, 105, "[]"),
			told(5, 4, 90, 60, "[]"),
			look(95, 1, 0, 120, "[]"), told(5, 4, 130, 120, "[a:progress]"),
		}},
		{"counters have not moved", []move{
			told(5, 3, 15, 0, "[]"), look(20, 2, 0, 100, "[]"), look(30, 2, 0, 100, "[]"), told(5, 3, 90, 60, "[]"),
		}},
		{"another life begins to count anew", []move{
			told(5, 3, 15, 0, "[]"), look(20, 3, 0, 100, "[]"), look(30, 2, 0, 105, "[]"),
			{said: []engine.Presence{{Who: "b2", Begun: 2, Before: at(90), After: at(60)}}, want: "[]"},
		}},
		{"known from before is not taken for what is there", []move{
			// Two of another's, of which one left and the closed one did not.
			look(20, 2, 0, 100, "[]"), look(30, 2, 0, 105, "[]"), look(40, 1, 0, 110, "[]"), look(50, 0, 0, 115, "[a:progress]"),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench()
			b.shared = true
			b.sample(step(1, 3, 1, 50))
			b.sample(step(2, 3, 1, 55))
			b.close("a", 10, true, true)
			for i, m := range c.moves {
				if m.said != nil {
					b.told(m.said)
				} else {
					b.sample(m.sample)
				}
				if got := b.confirmed(); got != m.want {
					t.Fatalf("after move %d: %s, want %s", i, got, m.want)
				}
			}
		})
	}
}

// sequence is one at the engine of TestFleetNeverMoreThanHasLeft.
type sequence struct {
	who    int // 0 is us
	ticket *Ticket
	cut    bool // its sender has ended it
	stays  bool // the engine does not notice
	steps  int  // boundaries since it was sent, or since it was cut
	prompt int  // of those, before its first token
	lasts  int  // steps
	heard  []int
	last   int // when its end is heard of, 0: it has not ended
}

// world is an engine and who sends to it. Time is in ms.
type world struct {
	now      int
	fresh    bool
	run      []*sequence
	all      []*sequence
	gauge    int
	progress int64
	moving   func() int // how long an event is on its way
	judge    judge
	latest   []engine.Presence // of each other, as was delivered
	post     []letter
}

type letter struct {
	due int
	engine.Presence
}

func (w *world) send(who, prompt, lasts int) *sequence {
	s := &sequence{who: who, prompt: prompt, lasts: lasts}
	w.run, w.all = append(w.run, s), append(w.all, s)
	return s
}

// boundary ends a step.
func (w *world) boundary() {
	w.run = slices.DeleteFunc(w.run, func(s *sequence) bool {
		s.steps++
		switch {
		case s.cut:
			return !s.stays && s.steps >= 2
		case s.steps >= s.prompt:
			arrives := w.now + w.moving()
			if n := len(s.heard); n > 0 {
				arrives = max(arrives, s.heard[n-1])
			}
			s.heard = append(s.heard, arrives)
			if s.lasts > 0 && s.steps >= s.prompt+s.lasts {
				s.last = arrives
				return true
			}
		}
		return false
	})
	w.gauge = len(w.run)
	w.progress += int64(len(w.run))
}

func (w *world) cut(s *sequence) { s.cut, s.steps = true, 0 }

func (w *world) close(s *sequence) {
	w.now++
	w.cut(s)
	s.ticket = &Ticket{Closed: at(w.now), Answered: true, Seen: len(s.heard) > 0, done: make(chan struct{}), still: at(w.now)}
	w.judge.add(s.ticket)
}

// say is what another knows now, of whom deaf are left out, and that comes later. The
// bounds of when that was are so far from it.
func (w *world) say(who, deaf, later, before, after int) {
	p := engine.Presence{Who: fmt.Sprint(who)}
	as, here := w.now, uint64(0)
	for _, s := range w.all {
		if s.who != who {
			continue
		}
		heard := slices.DeleteFunc(slices.Clone(s.heard), func(at int) bool { return at > w.now })
		if len(heard) == 0 {
			continue
		}
		p.Begun++
		if s.cut || s.last > 0 && s.last <= w.now {
			continue
		}
		if deaf--; deaf < 0 {
			here++
			as = min(as, heard[len(heard)-1])
		}
	}
	p.Ended = p.Begun - here
	p.Before, p.After = at(w.now+before), at(as-after)
	w.post = append(w.post, letter{w.now + later, p})
}

func (w *world) deliver() {
	for len(w.post) > 0 && w.post[0].due <= w.now {
		p := w.post[0].Presence
		w.post = w.post[1:]
		w.latest = slices.DeleteFunc(w.latest, func(q engine.Presence) bool { return q.Who == p.Who })
		w.latest = append(w.latest, p)
		w.judge.told(w.latest)
	}
}

func (w *world) look() {
	w.now += 2
	live := 0
	for _, s := range w.run {
		if s.who == 0 && s.ticket == nil {
			live++
		}
	}
	held := w.gauge
	if w.fresh {
		held = len(w.run)
	}
	w.judge.sample(Sample{Asked: at(w.now), At: at(w.now + 1), Fresh: w.fresh, Held: held, Live: live, Progress: w.progress})
}

// counts are how many of our closed attempts are confirmed, and how many have left.
func (w *world) counts() (confirmed, left int) {
	for _, s := range w.all {
		if s.ticket == nil {
			continue
		}
		if s.ticket.result.By != engine.Unconfirmed {
			confirmed++
		}
		if !slices.Contains(w.run, s) {
			left++
		}
	}
	return confirmed, left
}

// Whatever the others do and however late they are heard, no more is confirmed than has
// left: of events that are on their way for less than transit, and bounds that hold.
func TestFleetNeverMoreThanHasLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(from, to int, what string) int { return rapid.IntRange(from, to).Draw(t, what) }
		w := &world{now: 100, fresh: rapid.Bool().Draw(t, "fresh"), judge: judge{grace: time.Hour, by: engine.ByProgress, shared: true}}
		w.moving = func() int { return n(0, int(transit/time.Millisecond)-1, "on its way") }
		others := n(1, 3, "others")
		pick := func(of func(*sequence) bool) *sequence {
			fit := slices.DeleteFunc(slices.Clone(w.run), func(s *sequence) bool { return !of(s) })
			if len(fit) == 0 {
				return nil
			}
			return fit[n(0, len(fit)-1, "which")]
		}
		for range n(1, 4, "ours") {
			w.send(0, 1, 0)
		}
		for range n(0, 4, "theirs") {
			w.send(n(1, others, "who"), 1, n(0, 20, "lasts"))
		}
		w.boundary()
		for range n(1, 120, "moves") {
			w.now += n(0, 15, "time")
			w.deliver()
			switch n(0, 10, "move") {
			case 0:
				w.send(n(1, others, "who"), n(1, 3, "prompt"), n(0, 20, "lasts"))
			case 1:
				if s := pick(func(s *sequence) bool { return s.who != 0 && !s.cut }); s != nil {
					w.cut(s)
					s.stays = n(0, 4, "stays") == 0
				}
			case 2:
				if s := pick(func(s *sequence) bool { return s.who == 0 && !s.cut }); s != nil {
					w.close(s)
					s.stays = n(0, 2, "stays") == 0
				}
			case 3:
				w.send(0, 1, 0)
				w.boundary()
			case 4, 5:
				w.say(n(1, others, "who"), max(0, n(-4, 2, "deaf")), n(0, 60, "later"), n(0, 60, "before"), n(0, 30, "after"))
				slices.SortStableFunc(w.post, func(a, b letter) int { return a.due - b.due })
			case 6, 7, 8:
				w.boundary()
			default:
				w.look()
			}
			if confirmed, left := w.counts(); confirmed > left {
				t.Fatalf("%d confirmed of %d that have left", confirmed, left)
			}
		}
	})
}

// TestConfirmsThoughOthersStart: others begin and end requests all the time, in turns
// of 250 ms, and an attempt that has left is confirmed within two of them.
func TestConfirmsThoughOthersStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(from, to int, what string) int { return rapid.IntRange(from, to).Draw(t, what) }
		w := &world{now: 100, fresh: rapid.Bool().Draw(t, "fresh"), judge: judge{grace: time.Hour, by: engine.ByProgress, shared: true}}
		w.moving = func() int { return n(0, 3, "on its way") }
		mine := w.send(0, 1, 0)
		var theirs []*sequence
		begin := func() { theirs = append(theirs, w.send(1+len(theirs)%2, n(1, 3, "prompt"), 0)) }
		for range 4 {
			begin()
		}
		turn := func() {
			starts, ends := n(0, 60, "start"), n(0, 60, "end")
			for ms := range 250 {
				switch w.now++; {
				case ms == starts:
					begin()
				case ms == ends:
					w.cut(theirs[0])
					theirs = theirs[1:]
				case ms%10 == 5:
					w.boundary()
				case ms%25 == 7:
					w.say(1, 0, 10, 10, 5)
					w.say(2, 0, 10, 10, 5)
				case ms%10 == 9:
					w.now -= 2
					w.look()
				}
				w.deliver()
			}
		}
		turn()
		w.close(mine)
		turn()
		turn()
		if confirmed, left := w.counts(); confirmed != 1 || left != 1 {
			t.Fatalf("%d confirmed, %d left", confirmed, left)
		}
	})
}
