package upstream

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAttending: what an adapter surely has at its engine. An attempt counts from its first
// token on, while somebody who has read all there is hears of it, to its end or to the
// moment in which its end is asked for.
func TestAttending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		places := map[string]*Place{}
		for i, s := range []struct {
			do           string
			of           string
			begun, ended uint64
			age          time.Duration // of what is said
			idle         bool
		}{
			{"", "", 0, 0, 0, true},
			{"enter", "a", 0, 0, 0, false},
			{"event", "a", 0, 0, 0, false}, // a role
			{"token", "a", 1, 0, 0, false},
			{"enter", "b", 1, 0, 10 * time.Millisecond, false},
			{"token", "b", 2, 0, 20 * time.Millisecond, false},
			{"busy", "b", 2, 1, 30 * time.Millisecond, false}, // its client is slow
			{"reads", "b", 2, 0, 40 * time.Millisecond, false},
			{"token", "a", 2, 0, 30 * time.Millisecond, false},
			{"wait", "", 2, 0, 140 * time.Millisecond, false},
			{"token", "b", 2, 1, 0, false}, // a was not heard of for long
			{"token", "a", 2, 0, 10 * time.Millisecond, false},
			{"buffered", "b", 2, 0, 70 * time.Millisecond, false},
			{"token", "b", 2, 0, 70 * time.Millisecond, false},
			{"last", "a", 2, 1, 10 * time.Millisecond, false},
			{"leave", "a", 2, 1, 20 * time.Millisecond, false},
			{"leave", "b", 2, 2, 0, true},
		} {
			time.Sleep(10 * time.Millisecond)
			p := places[s.of]
			switch s.do {
			case "enter":
				places[s.of] = l.Enter(true)
				places[s.of].Reading()
			case "busy":
				p.Read()
			case "reads":
				p.Reading()
			case "event", "token", "last":
				p.Read()
				p.Heard(s.do == "token", s.do == "last")
				p.Reading()
			case "buffered": // it came while the client was slow, and the end may have
				p.Read()
				time.Sleep(50 * time.Millisecond)
				p.Reading()
				p.Heard(true, false)
				p.Read()
				p.Reading()
			case "leave":
				p.Leave()
			case "wait":
				time.Sleep(100 * time.Millisecond)
			}
			a := l.attending()
			if age := time.Since(a.As); a.Begun != s.begun || a.Ended != s.ended || age != s.age || a.Idle != s.idle {
				t.Errorf("%d: after %s %s: %d begun, %d ended, idle %v, as of %v ago; want %+v", i, s.do, s.of, a.Begun, a.Ended, a.Idle, age, s)
			}
		}
	})
}
