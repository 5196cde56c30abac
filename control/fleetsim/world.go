package fleetsim

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"

	"headgate/control"
)

// Time is a moment by the store's clock, in ns, or by a part's own where it says so.
type Time = control.Time

const (
	ms  = Time(1e6)
	sec = Time(1e9)
)

// world is one history in the making.
type world struct {
	rng   *rand.Rand
	now   Time
	heap  events
	seq   uint64
	p     *params
	logf  func(format string, args ...any) // nil: nobody reads it
	stats Stats
	bad   *Violation

	store       *store
	engines     []*engine
	replicas    []*replica
	controllers []*controller
	lives       []*life
	forgotten   map[control.ID]bool // an operator knows that they will not come back
	instant     int                 // events of this moment
	calm        bool                // the faults are over
	calmAt      Time
}

// endless is more events than there are at any one moment.
const endless = 100_000

// event is something that happens to a part.
type event struct {
	at  Time
	seq uint64
	who *part  // nil: the world's own
	inc uint32 // an event of an earlier life of the part is none
	do  func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// part is a process: it has a clock of its own, can be stopped and killed, and reaches
// the store over a network.
type part struct {
	w      *world
	name   string
	up     bool
	inc    uint32
	asleep Time // until when it is stopped
	// Its own clock: local at the moment base, rate to the store's one.
	rate        float64
	base, local Time
	// Until when nothing gets from it to the store, and back.
	cutTo, cutFrom Time
	lastTo         Time // when the last message to the store arrives
}

func (w *world) newPart(name string) part {
	d := w.p.drift
	rate := 1 + d*(2*w.rng.Float64()-1)
	switch w.rng.IntN(4) {
	case 0:
		rate = 1 - d
	case 1:
		rate = 1 + d
	}
	return part{w: w, name: name, rate: rate, local: sec + Time(w.rng.Int64N(int64(100*sec)))}
}

// clock is the part's own time.
func (p *part) clock() Time { return p.local + Time(float64(p.w.now-p.base)*p.rate) }

// jump moves the part's clock forward.
func (p *part) jump(d Time) { p.local, p.base = p.clock()+d, p.w.now }

// until is for how long by the store's clock it is until the part's own says t.
func (p *part) until(t Time) Time { return Time(math.Ceil(float64(max(t-p.clock(), 0)) / p.rate)) }

// at lets do happen to a part, nil is the world, unless it is killed before.
func (w *world) at(t Time, who *part, do func()) {
	inc := uint32(0)
	if who != nil {
		inc = who.inc
	}
	w.atLife(t, who, inc, do)
}

// atLife is at, to a part's life.
func (w *world) atLife(t Time, who *part, inc uint32, do func()) {
	w.seq++
	heap.Push(&w.heap, event{at: max(t, w.now), seq: w.seq, who: who, inc: inc, do: do})
}

// after lets do happen to the part itself, d from now.
func (p *part) after(d Time, do func()) { p.w.at(p.w.now+d, p, do) }

// run lets events happen until the time is end or something is wrong.
func (w *world) run(end Time) {
	for w.bad == nil && len(w.heap) > 0 && w.heap[0].at <= end {
		e := heap.Pop(&w.heap).(event)
		if w.instant++; e.at > w.now {
			w.instant = 0
		}
		w.now = e.at
		if w.instant > endless {
			w.fail(6, "%d events, and the time does not move on", w.instant)
			return
		}
		if e.who != nil {
			if e.inc != e.who.inc {
				continue
			}
			if e.who.asleep > w.now {
				// It stays in the inbox, in its order.
				e.at = e.who.asleep
				heap.Push(&w.heap, e)
				continue
			}
		}
		e.do()
		w.stats.Steps++
		w.check()
	}
	if w.bad == nil {
		w.now = max(w.now, end)
	}
}

func (w *world) log(who *part, format string, args ...any) {
	if w.logf == nil {
		return
	}
	name := "world"
	if who != nil {
		name = who.name
	}
	w.logf("%10.6f %-4s %s", float64(w.now)/1e9, name, fmt.Sprintf(format, args...))
}

// fail notes the first violation.
func (w *world) fail(check int, format string, args ...any) {
	if w.bad == nil {
		w.bad = &Violation{Seed: w.p.seed, Step: w.stats.Steps, At: w.now, Check: check, What: fmt.Sprintf(format, args...)}
		w.log(nil, "VIOLATION %s", w.bad)
	}
}

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between is evenly from a to b.
func (w *world) between(a, b Time) Time {
	if b <= a {
		return a
	}
	return a + Time(w.rng.Int64N(int64(b-a)))
}

// delay is how long a message takes: mostly little, now and then very long.
func (w *world) delay() Time {
	d := w.between(100e3, 2*ms)
	switch {
	case w.calm:
	case w.chance(w.p.slow):
		w.stats.Faults[Delayed]++
		d = Time(float64(20*ms) * math.Pow(w.rng.Float64(), -1.2))
		d = min(d, 8*sec)
	case w.chance(2 * w.p.slow):
		d = w.between(2*ms, 60*ms)
	}
	return d
}

// lost tells whether a message is.
func (w *world) lost() bool {
	if w.calm || !w.chance(w.p.drop) {
		return false
	}
	w.stats.Faults[Dropped]++
	return true
}

// call sends a request to the store, which does it and sends back what the caller then
// does with the answer. Either may be lost, late, and there twice.
func (p *part) call(do func() (answer func())) {
	w, inc := p.w, p.inc
	for n := w.copies(); n > 0; n-- {
		if w.now < p.cutTo || w.lost() {
			continue
		}
		t := w.now + w.delay()
		if t < p.lastTo {
			w.stats.Faults[Reordered]++
		}
		p.lastTo = max(p.lastTo, t)
		w.at(t, &w.store.part, func() {
			if w.now < w.store.down {
				return
			}
			answer := do()
			if answer == nil {
				return
			}
			for n := w.copies(); n > 0; n-- {
				if w.now < p.cutFrom || w.lost() {
					w.stats.Faults[Unanswered]++
					continue
				}
				w.atLife(w.now+w.delay(), p, inc, answer)
			}
		})
	}
}

func (w *world) copies() int {
	if w.calm || !w.chance(w.p.dup) {
		return 1
	}
	w.stats.Faults[Duplicated]++
	return 2
}
