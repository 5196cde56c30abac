package admission

import (
	"math/rand/v2"
	"testing"
	"time"
)

// churn drives a core with clients that leave at every moment of a request's life, by a
// clock that jumps as the test likes, and keeps its own account of what is held.
type churn struct {
	t        *testing.T
	core     *Core
	rand     *rand.Rand
	clock    func(*rand.Rand, Time) Time
	now      Time
	fx       []Effect
	gen      []uint32
	idle     []uint32 // slots
	waiting  []uint32
	running  []held
	draining []Hold // over, and not confirmed
	where    map[uint32]int
	offers   int
	cancels  int
	ends     int // requests that were told to be over
}

type held struct {
	slot uint32
	hold Hold
}

func newChurn(t *testing.T, slots uint32, clock func(*rand.Rand, Time) Time) *churn {
	table := benchTable()
	table.Classes[1].Mode, table.Classes[1].PinAfter, table.Classes[0].MaxWait = ReclaimNow, 2, 30*time.Second
	c := &churn{t: t, core: New(table, int(slots)), rand: rand.New(rand.NewPCG(1, 2)), clock: clock, gen: make([]uint32, slots), where: map[uint32]int{}}
	for i := range slots {
		c.idle = append(c.idle, i)
	}
	return c
}

func take[T any](from *[]T, i int) T {
	all := *from
	v := all[i]
	all[i] = all[len(all)-1]
	*from = all[:len(all)-1]
	return v
}

func (c *churn) step(ev *Event) {
	c.now = c.clock(c.rand, c.now)
	c.fx = c.core.Step(c.now, ev, c.fx[:0])
	for _, e := range c.fx {
		slot := e.ID.Slot()
		switch e.Op {
		case Queued:
			c.leave(slot)
			c.where[slot] = len(c.waiting)
			c.waiting = append(c.waiting, slot)
		case Admit:
			c.leave(slot)
			c.running = append(c.running, held{slot, e.Hold})
		case Reject, Done:
			c.leave(slot)
			c.ends++
			c.idle = append(c.idle, slot)
		}
	}
}

// leave takes a slot from those that wait.
func (c *churn) leave(slot uint32) {
	i, ok := c.where[slot]
	if !ok {
		return
	}
	delete(c.where, slot)
	if take(&c.waiting, i); i < len(c.waiting) {
		c.where[c.waiting[i]] = i
	}
}

// end is one attempt's.
func (c *churn) end(i int, cause Cause) {
	h := take(&c.running, i)
	flags := uint8(0)
	if c.rand.IntN(2) == 0 {
		flags = FlagReleased
	} else {
		c.draining = append(c.draining, h.hold)
	}
	c.step(&Event{Kind: Ended, Hold: h.hold, Out: c.rand.Int32N(50), Flags: flags, Cause: cause})
}

func (c *churn) act() {
	switch n := c.rand.IntN(10); {
	case n < 4 && len(c.idle) > 0:
		slot := take(&c.idle, c.rand.IntN(len(c.idle)))
		c.gen[slot]++
		c.offers++
		c.step(&Event{
			Kind: Offer, ID: MakeID(c.gen[slot], slot), Class: Class(c.rand.IntN(2)), Tenant: Tenant(c.rand.IntN(5)),
			Prompt: 1 + c.rand.Int32N(2000), Out: 1 + c.rand.Int32N(500),
		})
	case n < 7 && len(c.waiting) > 0:
		slot := c.waiting[c.rand.IntN(len(c.waiting))]
		c.cancels++
		c.step(&Event{Kind: Cancel, ID: MakeID(c.gen[slot], slot)})
	case n < 9 && len(c.running) > 0:
		i, cause := c.rand.IntN(len(c.running)), CauseClientGone
		switch c.rand.IntN(8) {
		case 0:
			cause = CauseFinished
		case 1:
			c.step(&Event{Kind: Progress, Hold: c.running[i].hold, Out: c.rand.Int32N(50)})
			return
		default:
			c.cancels++
		}
		c.end(i, cause)
	case len(c.draining) > 0:
		c.step(&Event{Kind: Released, Hold: take(&c.draining, c.rand.IntN(len(c.draining)))})
	default:
		c.step(&Event{Kind: Tick})
	}
}

// balanced fails unless the core holds what the account says.
func (c *churn) balanced() {
	c.t.Helper()
	s := c.core.Snapshot()
	queued := 0
	for _, k := range s.Classes {
		queued += k.Queue
	}
	// A hold that is never confirmed is let go of in time, so the core may have fewer.
	if most := len(c.running) + len(c.draining); int(s.Used.Slots) < len(c.running) || int(s.Used.Slots) > most || queued != len(c.waiting) {
		c.t.Fatalf("%d run, %d are to be confirmed, %d wait; the core says:\n%v", len(c.running), len(c.draining), len(c.waiting), s)
	}
	if c.offers != c.ends+len(c.running)+len(c.waiting) {
		c.t.Fatalf("%d offers, %d ends, %d run, %d wait", c.offers, c.ends, len(c.running), len(c.waiting))
	}
}

// over ends everything and fails unless nothing is left of it, and what comes is let in.
func (c *churn) over() {
	c.t.Helper()
	for len(c.waiting)+len(c.running)+len(c.draining) > 0 {
		switch {
		case len(c.waiting) > 0:
			slot := c.waiting[0]
			c.step(&Event{Kind: Cancel, ID: MakeID(c.gen[slot], slot)})
		case len(c.running) > 0:
			c.end(0, CauseClientGone)
		default:
			c.step(&Event{Kind: Released, Hold: take(&c.draining, 0)})
		}
	}
	c.balanced()
	if s := c.core.Snapshot(); s.Used != (AmountView{}) || len(s.Holds) != 0 || len(c.idle) != len(c.gen) {
		c.t.Fatalf("something is left:\n%v", s)
	}
	ran := len(c.running)
	slot := take(&c.idle, 0)
	c.gen[slot]++
	if c.step(&Event{Kind: Offer, ID: MakeID(c.gen[slot], slot), Prompt: 100, Out: 10}); len(c.running) != ran+1 {
		c.t.Fatalf("the next request did not start at once:\n%v", c.core.Snapshot())
	}
}

// A million clients leave: while they wait, as they are let in, while they run, after a
// reclaim, before the engine has confirmed it. Nothing is left of any.
func TestMillionCancels(t *testing.T) {
	c := newChurn(t, 256, func(r *rand.Rand, now Time) Time { return now + Time(r.Int64N(int64(10*time.Millisecond))) })
	for next := 0; c.cancels < 1_000_000; {
		if c.act(); c.cancels >= next {
			next = c.cancels + 50_000
			c.balanced()
		}
	}
	c.over()
}

// A clock that goes back for hours, stands still or leaps for a day loses nothing, and
// time goes on once it is beyond where it was.
func TestClockJumps(t *testing.T) {
	c := newChurn(t, 256, func(r *rand.Rand, now Time) Time {
		switch r.IntN(200) {
		case 0:
			return now - Time(r.Int64N(int64(3*time.Hour)))
		case 1:
			return now + Time(r.Int64N(int64(24*time.Hour)))
		case 2:
			return -now
		}
		return now + Time(r.Int64N(int64(10*time.Millisecond)))
	})
	for i := range 100_000 {
		if c.act(); i%1000 == 0 {
			c.balanced()
		}
	}
	c.over()
}
