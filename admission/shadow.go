package admission

import (
	"fmt"
	"math"
	"strings"
	"time"

	"headgate/kv"
)

// Shadow observes: it passes every request on at once, as if there were no
// Headgate, and learns on a shadow ledger what its table would have done. A
// driver uses it in a Core's place. It answers each Offer with an Admit, refuses
// only while it drains or no engine is up, and never queues or reclaims.
//
// # The two ledgers
//
// The real ledger has what was passed on. Its holds are the Shadow's own, and
// they are what the driver knows. The shadow ledger is a Core, which hears of the
// same events and whose holds the driver never sees:
//
//   - What the core admits has a shadow hold, which follows the real stream.
//   - What it queues holds nothing until the core would have admitted it, and
//     follows the real stream from there. How long it waited is its delay.
//   - What it refuses holds nothing, ever.
//   - What it reclaims is released to it at once and waits there again, while the
//     real stream goes on.
//   - When the real stream ends, so does what is left in the core. A request that
//     still waits is then over: the core hears Cancel, and the wait counts as cut
//     short. Enforcing would have delayed it by at least that long.
//
// A gauge shows what was passed on, and the core would take what it does not
// hold itself for foreign load. So it is given its own ledger and what the gauge
// shows beyond the real one.
//
// # What the report is not
//
// A stream is shadowed only while it runs, so what would have started later holds
// for less time in the core than it would have, and the waits of those behind it
// are too short. Against that, all runs as fast as the crowded engine lets it,
// which is slower than enforcing would. An attempt that fails is not repeated, and
// the client hears of it, as without Headgate.
//
// Alternatives: to let a shadow hold outlive its stream by its delay would show
// the waits better, but an ID is the driver's and free once the stream has ended,
// and how long an answer takes beside less work is nothing that anybody saw; a
// simulation of the recorded arrivals can say that.
type Shadow struct {
	core  *Core
	now   Time
	start Time // of the first step, Never before it

	classes  []shadowClass
	engines  []shadowEngine
	requests []shadowRequest // by the driver's slot
	runs     []run
	freeRun  int32
	open     int    // runs that are not free
	used     Amount // of the real ledger, summed over classes
	drained  bool

	inner   []Effect // what the core wants: scratch
	answers []Event  // what it is told in return: scratch
	fx      []Effect
}

type shadowClass struct {
	used    Amount // on the real ledger
	passed  uint64
	atOnce  uint64
	lost    uint64
	refused [NumCauses]uint64
	delayed waits
	again   waits
	ran     Short
	would   Short
}

type shadowEngine struct {
	used   Amount
	live   int64 // requests
	age    time.Duration
	ledger peak
}

// shadowRequest is one request that was offered.
type shadowRequest struct {
	run       int32        // none once the real one is over
	state     requestState // in the core
	class     Class
	reclaimed bool
	waits     Time // since when it has waited in the core
}

// run is one request that was passed on, a hold of the real ledger.
type run struct {
	gen    uint32
	state  holdState
	class  Class
	engine Engine
	tenant Tenant
	id     ID
	passed Time
	hold   Hold   // the core's; 0 while it has none
	priced Amount // when it was passed on
	amount Amount
	prompt int32
	out    int32
	next   int32 // in the free list
}

// NewShadow returns a shadow for at most capacity requests at a time. It panics
// as New does.
func NewShadow(t *Table, capacity int) *Shadow {
	s := &Shadow{core: New(t, capacity), start: Never, requests: make([]shadowRequest, capacity), freeRun: none}
	for i := range s.requests {
		s.requests[i].run = none
	}
	s.outfit()
	return s
}

// Step is Core.Step. The Stage effects of the shadow ledger are among the
// effects: recalls and lending as they would have been.
func (s *Shadow) Step(now Time, ev *Event, fx []Effect) []Effect {
	s.fx = fx
	s.advance(now)
	if s.core.next <= s.now {
		// What is due comes first, so that what follows sees its outcome.
		s.drive(&Event{Kind: Tick})
	}
	switch ev.Kind {
	case Offer:
		s.offer(ev)
	case Cancel: // nothing waits
	case Bar:
		s.drive(ev)
	case Ended:
		s.ended(ev)
	case Released:
		s.released(ev.Hold)
	case Observe:
		s.observe(ev)
	case Apply:
		s.drive(ev)
		s.outfit()
	default:
		s.follow(ev)
	}
	if s.drained = s.drained && s.core.drain; s.core.drain && !s.drained && s.open == 0 {
		s.drained = true
		s.emit(Effect{Op: Drained})
	}
	fx, s.fx = s.fx, nil
	return fx
}

// Next is Core.Next.
func (s *Shadow) Next() (Time, bool) { return s.core.Next() }

// Snapshot returns the shadow ledger's state. Its holds are the core's, not
// those of the Admit effects.
func (s *Shadow) Snapshot() *Snapshot { return s.core.Snapshot() }

// Brief is the core's Brief of the shadow ledger.
func (s *Shadow) Brief() *Brief { return s.core.Brief() }

// Work is the core's Work of the shadow ledger.
func (s *Shadow) Work(k Class, t Tenant) (w Work, ok bool) { return s.core.Work(k, t) }

// emit numbers effects in one order with the core's.
func (s *Shadow) emit(e Effect) {
	s.core.seq++
	e.Rev, e.Seq = s.core.rev, s.core.seq
	s.fx = append(s.fx, e)
}

// outfit makes room for what a table has brought.
func (s *Shadow) outfit() {
	for len(s.classes) < len(s.core.classes) {
		s.classes = append(s.classes, shadowClass{})
	}
	for e := range s.core.engines {
		if e == len(s.engines) {
			s.engines = append(s.engines, shadowEngine{})
		}
		en := &s.engines[e]
		if age := s.core.engines[e].spec.GaugeAge; en.age != age {
			en.age = age
			en.ledger.init(Time(min(age, maxDuration))+sampleTime, s.now)
		}
	}
}

// drive gives the core an event and sees to all that it wants.
func (s *Shadow) drive(ev *Event) {
	s.inner = s.core.Step(s.now, ev, s.inner[:0])
	s.settle()
}

// settle takes in what the core wants, answers it, and so on until it wants
// nothing more.
func (s *Shadow) settle() {
	for next := 0; ; next++ {
		for i := range s.inner {
			s.take(&s.inner[i])
		}
		if next == len(s.answers) {
			break
		}
		s.inner = s.core.Step(s.now, &s.answers[next], s.inner[:0])
	}
	s.answers = s.answers[:0]
}

// take sees to one effect of the core. None but a Stage reaches the driver.
func (s *Shadow) take(e *Effect) {
	switch e.Op {
	case Queued:
		r := s.request(e.ID)
		r.state, r.waits = stateQueued, s.now
	case Admit:
		r := s.request(e.ID)
		s.waited(r, false)
		r.state = stateRunning
		h := &s.runs[r.run]
		h.hold = e.Hold
		if h.passed < s.now {
			// The engine began with it before, so its first token tells nothing of
			// how long a prompt takes.
			s.core.spoil(s.core.find(e.Hold))
		}
		s.weigh(h)
	case Warm:
		// Nothing is sent for a shadow: its piece is done as soon as it begins.
		s.answers = append(s.answers, Event{Kind: Ended, Hold: e.Hold, Out: 1, Cause: CauseFinished, Flags: FlagReleased})
	case Reclaim:
		r := s.request(e.ID)
		r.reclaimed = true
		s.runs[r.run].hold = 0
		s.answers = append(s.answers, Event{Kind: Ended, Hold: e.Hold, Cause: CauseReclaimed, Flags: FlagReleased})
	case Reject:
		r := s.request(e.ID)
		r.state = stateFree
		if r.reclaimed {
			s.classes[e.Class].lost++
		} else {
			s.classes[e.Class].refused[e.Cause]++
		}
	case Done:
		s.request(e.ID).state = stateFree
		if e.Cause == CauseReclaimed {
			s.classes[e.Class].lost++
		}
	case Stage:
		out := *e
		if e.Cause == CauseGhost {
			out.Hold = s.exorcised(e.Hold)
		}
		s.fx = append(s.fx, out)
	}
}

func (s *Shadow) request(id ID) *shadowRequest { return &s.requests[id.Slot()] }

// waited counts a wait that is over, because the core admits the request or, cut
// short, because the real one has ended.
func (s *Shadow) waited(r *shadowRequest, cut bool) {
	cl := &s.classes[r.class]
	switch d := time.Duration(s.now - r.waits); {
	case r.reclaimed:
		cl.again.add(d, cut)
	case d == 0 && !cut:
		cl.atOnce++
	default:
		cl.delayed.add(d, cut)
	}
}

// exorcised ends the run whose shadow hold the core has given up, and returns
// the hold by which the driver knows it; 0 if it knows of none.
func (s *Shadow) exorcised(id Hold) Hold {
	for i := range s.runs {
		if s.runs[i].state == holdGhost && s.runs[i].hold == id {
			s.over(int32(i))
			return s.holdID(int32(i))
		}
	}
	return 0
}

// offer passes a request on, and asks the core what it would have done.
func (s *Shadow) offer(ev *Event) {
	slot := ev.ID.Slot()
	if int(slot) >= len(s.requests) || s.requests[slot].run != none {
		panic(fmt.Sprintf("admission: offer of slot %d, which is taken or beyond the capacity of %d", slot, len(s.requests)))
	}
	s.inner = s.core.Step(s.now, ev, s.inner[:0])
	r := &s.requests[slot]
	*r = shadowRequest{run: none, class: ev.Class, waits: s.now}
	e, why := s.pick(ev.Barred)
	if why != CauseNone {
		s.settle() // the core refuses it too
		s.emit(Effect{Op: Reject, Cause: why, Class: ev.Class, Tenant: ev.Tenant, ID: ev.ID})
		return
	}
	r.run = s.pass(ev, e)
	s.settle()
	cl := &s.classes[ev.Class]
	cl.passed++
	if cl.used.within(s.core.classes[ev.Class].floor) {
		ran, would := s.short(ev.Class)
		cl.ran.count(ran)
		cl.would.count(would)
	}
	h := &s.runs[r.run]
	s.emit(Effect{Op: Admit, Class: h.class, Engine: h.engine, Tenant: h.tenant, Tokens: h.amount[KV], ID: h.id, Hold: s.holdID(r.run)})
}

// pick chooses the engine for a request, or tells why there is none: of the open
// ones that are up and can run it, a ready one before one that is loading, and then the one with
// the fewest requests for its slots.
func (s *Shadow) pick(barred uint64) (Engine, Cause) {
	if s.core.drain {
		return 0, CauseDraining
	}
	best := none
	for e := range s.engines {
		en := &s.core.engines[e]
		if en.spec.Closed || en.state == Down || barred&(1<<e) != 0 {
			continue
		}
		if best != none {
			than := &s.core.engines[best]
			if en.state > than.state || en.state == than.state && s.engines[e].live*than.spec.Slots >= s.engines[best].live*en.spec.Slots {
				continue
			}
		}
		best = int32(e)
	}
	if best == none {
		return 0, CauseUnavailable
	}
	return Engine(best), CauseNone
}

// pass enters a request into the real ledger.
func (s *Shadow) pass(ev *Event, e Engine) int32 {
	i := s.freeRun
	if i == none {
		i = int32(len(s.runs))
		s.runs = append(s.runs, run{})
	} else {
		s.freeRun = s.runs[i].next
	}
	// Priced as the core prices it, whether or not it would ever take it.
	q := request{prompt: max(ev.Prompt, 0), out: ev.Out, declared: ev.Out >= 0, n: min(max(ev.N, 1), maxSequences)}
	priced, _, _ := s.core.price(&s.core.classes[ev.Class], &s.core.engines[e], &q)
	h := &s.runs[i]
	*h = run{gen: h.gen + 1, state: holdLive, class: ev.Class, engine: e, tenant: ev.Tenant, id: ev.ID, passed: s.now, priced: priced, prompt: q.prompt}
	s.open++
	s.engines[e].live++
	s.weigh(h)
	return i
}

// maxSequences bounds how many sequences of one request are counted, so that
// nonsense can't overflow a sum. No engine has more slots.
const maxSequences = 1 << 20

// weigh brings what a run holds up to date: what its shadow holds, or without
// one its price, and what it has grown to.
func (s *Shadow) weigh(h *run) {
	amount := h.priced
	if j := s.core.find(h.hold); j != none {
		amount = s.core.holds[j].amount
	} else {
		n := amount[Slots]
		least := kv.RoundUp(int64(h.prompt)+(int64(h.out)+n-1)/n, s.core.engines[h.engine].spec.Block) * n
		amount[KV] = min(max(amount[KV], least), maxGauge)
	}
	s.use(h, amount)
}

// use moves what a run holds, and with it every sum of the real ledger.
func (s *Shadow) use(h *run, amount Amount) {
	delta := amount.sub(h.amount)
	h.amount = amount
	cl, en := &s.classes[h.class], &s.engines[h.engine]
	s.used, cl.used, en.used = s.used.add(delta), cl.used.add(delta), en.used.add(delta)
	en.ledger.set(s.now, en.used)
}

// over ends a run.
func (s *Shadow) over(i int32) {
	h := &s.runs[i]
	s.use(h, Amount{})
	h.state, h.hold = holdFree, 0
	h.next, s.freeRun = s.freeRun, i
	s.open--
}

// follow passes on an event that names a hold, under the core's name for it, and
// every other as it is.
func (s *Shadow) follow(ev *Event) {
	if ev.Hold == 0 {
		s.drive(ev)
		return
	}
	i := s.find(ev.Hold)
	if i == none || s.runs[i].state == holdGhost {
		return
	}
	h := &s.runs[i]
	if ev.Kind == Progress {
		h.out = max(h.out, ev.Out)
		if ev.Prompt > 0 {
			h.prompt = ev.Prompt
		}
	}
	if h.hold != 0 {
		inner := *ev
		inner.Hold = h.hold
		s.drive(&inner)
	}
	s.weigh(h)
}

// ended takes in the end of a real stream, and ends its shadow.
func (s *Shadow) ended(ev *Event) {
	i := s.find(ev.Hold)
	if i == none || s.runs[i].state == holdGhost {
		return
	}
	h := &s.runs[i]
	cause := ev.Cause
	if cause == CauseUnreachable {
		// The core may have placed it elsewhere, so the state is told of the
		// engine that it is about.
		if s.core.engines[h.engine].state == Ready {
			s.drive(&Event{Kind: Observe, Engine: h.engine, Gauge: Gauge{State: Down}})
		}
		cause = CauseFailed
	}
	r := s.request(h.id)
	switch r.state {
	case stateQueued:
		s.waited(r, true)
		s.drive(&Event{Kind: Cancel, ID: h.id})
	case stateRunning:
		// Delivered, so that the core doesn't repeat what is over.
		s.drive(&Event{Kind: Ended, Hold: h.hold, Out: ev.Out, Cached: ev.Cached, Cause: cause, Flags: ev.Flags&FlagReleased | FlagDelivered})
	}
	r.run = none
	s.engines[h.engine].live--
	if ev.Flags&FlagReleased == 0 && h.hold != 0 {
		h.state = holdGhost
	} else {
		s.over(i)
	}
	s.emit(Effect{Op: Done, Cause: ev.Cause, Class: h.class, Engine: h.engine, Tenant: h.tenant, ID: h.id, Hold: ev.Hold})
}

func (s *Shadow) released(id Hold) {
	i := s.find(id)
	if i == none {
		return
	}
	h := &s.runs[i]
	if h.state != holdGhost {
		panic(fmt.Sprintf("admission: hold %x released before its attempt ended", uint64(id)))
	}
	inner := Event{Kind: Released, Hold: h.hold}
	s.over(i)
	s.drive(&inner)
}

// observe corrects a sample by what the core does not know of. Preemptions are
// hidden from it where more was passed on than it holds: it would keep slack
// because of a crowd that it had not let in.
func (s *Shadow) observe(ev *Event) {
	inner := *ev
	if g := &inner.Gauge; g.State == Ready {
		real, en := &s.engines[ev.Engine], &s.core.engines[ev.Engine]
		real.ledger.advance(s.now)
		en.ledger.advance(s.now)
		from := g.Asked - Time(en.spec.GaugeAge)
		ran, would := real.ledger.since(from), en.ledger.since(from)
		if g.Running >= 0 {
			g.Running = int32(min(would[Slots]+max(0, int64(g.Running)-ran[Slots]), math.MaxInt32))
		}
		if g.KV >= 0 {
			g.KV = would[KV] + max(0, min(g.KV, maxGauge)-ran[KV])
		}
		if !ran.within(would) {
			g.Preemptions = -1
		}
	}
	s.drive(&inner)
}

func (s *Shadow) find(id Hold) int32 {
	i := uint32(id)
	if int(i) >= len(s.runs) || s.runs[i].gen != uint32(id>>32) || s.runs[i].state == holdFree {
		return none
	}
	return int32(i)
}

func (s *Shadow) holdID(i int32) Hold { return Hold(uint64(s.runs[i].gen)<<32 | uint64(uint32(i))) }

// advance moves the time, over which nothing has changed, and adds up what each
// class was short of during it.
func (s *Shadow) advance(now Time) {
	if s.start == Never {
		s.start, s.now = now, now
	}
	if now <= s.now {
		return
	}
	d := time.Duration(now - s.now)
	s.now = now
	for k := range s.classes {
		if cl := &s.classes[k]; cl.used != (Amount{}) {
			ran, would := s.short(Class(k))
			cl.ran.accrue(ran, d)
			cl.would.accrue(would, d)
		}
	}
}

// short is what class k is short of now (see Short), as it is and as it would be.
func (s *Shadow) short(k Class) (ran, would Amount) {
	c := s.core
	need := c.classes[k].floor.min(s.classes[k].used)
	if need == (Amount{}) {
		return ran, would
	}
	room := c.envelope.sub(c.foreign)
	for e := range c.engines {
		// The core's envelope has what it runs on engines that take no more.
		if en := &c.engines[e]; !en.counts {
			room = room.sub(en.used).add(s.engines[e].used)
		}
	}
	lack := func(others Amount) Amount { return need.sub(room.sub(others).max(Amount{})).max(Amount{}) }
	ran = lack(s.used.sub(s.classes[k].used))
	would = lack(c.used.sub(c.classes[k].used))
	return ran, would
}

// Report is what enforcing the table would have done to what was passed on.
type Report struct {
	Observed time.Duration `json:"observed_ns"`
	Rev      uint64        `json:"revision"`
	Classes  []ClassReport `json:"classes"`
}

// ClassReport is one class's part. Every request that was offered is one of
// AtOnce, Delayed, Refused and Waiting.
type ClassReport struct {
	Name     string            `json:"name"`
	Floor    AmountView        `json:"floor"`
	Offered  uint64            `json:"offered"`
	PassedOn uint64            `json:"passed_on"` // the others found no engine up, or a drain
	AtOnce   uint64            `json:"admitted_at_once"`
	Delayed  Waits             `json:"delayed"` // before the first start
	Refused  map[string]uint64 `json:"refused"` // by cause; draining is none that the table decides
	Waiting  int               `json:"waiting"` // now, for a first start
	Loans    uint64            `json:"loans"`   // admissions that would have borrowed
	Recalls  uint64            `json:"recalls"` // opened for this class
	Reclaims uint64            `json:"reclaims"`
	// Again are the waits to go on after a reclaim, Lost the requests that would
	// not have got to: they would have been refused then.
	Again Waits  `json:"delayed_again"`
	Lost  uint64 `json:"lost"`
	// Ran is what the class was short of as it was, Enforced as it would have been:
	// enforcing saves the difference, Saved.
	Ran      Short `json:"short_as_it_ran"`
	Enforced Short `json:"short_enforced"`
	Saved    Short `json:"saved"`
}

// Waits are times in the core's queue that are over.
type Waits struct {
	Count uint64        `json:"count"`
	Cut   uint64        `json:"cut_short"` // of these, cut short by the end of the real stream: at least so long
	Total time.Duration `json:"total_ns"`
	Max   time.Duration `json:"max_ns"`
	// P50 and P95 are quantiles, up to a quarter too large.
	P50 time.Duration `json:"p50_ns"`
	P95 time.Duration `json:"p95_ns"`
}

// Short measures how far a class did not have what its floor promises.
//
// At any moment, and on each resource, a class is short by as much of its demand
// within its floor as does not fit beside what the other classes hold:
//
//	need  = min(floor that is owed now, what its requests that were passed on hold)
//	short = max(0, need - max(0, envelope - foreign load - what the others hold))
//
// with an envelope of the engines that are ready, and of what was passed on to the
// others. All that is the same in both cases, but what the others hold: it is that
// of the real ledger as it ran, and of the shadow ledger as it would have been
// enforced, which is never more. An engine that
// is given more than it holds lets somebody wait or recomputes him. Whom, it
// decides itself, so this is the class's part of the crowd and not a time that its
// clients are known to have waited.
type Short struct {
	// Requests came, within the floor, while the class was short with them.
	Requests uint64 `json:"requests"`
	// The integral over time, in slots x seconds and KV tokens x seconds.
	SlotSeconds float64 `json:"slot_seconds"`
	KVSeconds   float64 `json:"kv_token_seconds"`
}

func (m *Short) count(short Amount) {
	if short != (Amount{}) {
		m.Requests++
	}
}

func (m *Short) accrue(short Amount, d time.Duration) {
	m.SlotSeconds += float64(short[Slots]) * d.Seconds()
	m.KVSeconds += float64(short[KV]) * d.Seconds()
}

func (m Short) String() string {
	return fmt.Sprintf("requests %d, slot-seconds %.6g, KV token-seconds %.6g", m.Requests, m.SlotSeconds, m.KVSeconds)
}

// waits collects Waits, with a histogram over milliseconds as in lengths.
type waits struct {
	Waits
	counts [lengthBuckets]uint64
}

func (w *waits) add(d time.Duration, cut bool) {
	w.Count++
	if cut {
		w.Cut++
	}
	w.Total += d
	w.Max = max(w.Max, d)
	w.counts[lengthBucket(int32(min(d.Milliseconds(), 1<<30)))]++
}

// quantile returns the wait that percent of all stay within.
func (w *waits) quantile(percent uint64) time.Duration {
	want := (w.Count*percent + 99) / 100
	for b, n := range w.counts[:lengthBuckets-1] {
		if want <= n {
			return min(time.Duration(lengthTop(b)+1)*time.Millisecond, w.Max)
		}
		want -= n
	}
	return w.Max
}

func (w *waits) report() Waits {
	v := w.Waits
	v.P50, v.P95 = w.quantile(50), w.quantile(95)
	return v
}

func (w *Waits) details() string {
	text := fmt.Sprintf(", %v in all, p50 %v, p95 %v, at most %v", w.Total, w.P50, w.P95, w.Max)
	if w.Cut > 0 {
		text += fmt.Sprintf("; cut short by the end of the real stream %d", w.Cut)
	}
	return text
}

// Report returns what was learned up to the last step. It changes nothing and
// shares nothing with the shadow.
func (s *Shadow) Report() *Report {
	rep := &Report{Rev: s.core.rev}
	if s.start != Never {
		rep.Observed = time.Duration(s.now - s.start)
	}
	waiting := make([]int, len(s.classes))
	for i := range s.requests {
		if r := &s.requests[i]; r.state == stateQueued && !r.reclaimed {
			waiting[r.class]++
		}
	}
	for k := range s.classes {
		cl, in := &s.classes[k], &s.core.classes[k]
		v := ClassReport{
			Name: in.spec.Name, Floor: view(in.spec.Floor), Offered: in.counts.Offered, PassedOn: cl.passed, AtOnce: cl.atOnce,
			Delayed: cl.delayed.report(), Refused: map[string]uint64{}, Waiting: waiting[k],
			Loans: in.counts.Loans, Recalls: in.counts.Recalls, Reclaims: in.counts.Reclaims, Again: cl.again.report(), Lost: cl.lost,
			Ran: cl.ran, Enforced: cl.would,
			Saved: Short{cl.ran.Requests - cl.would.Requests, cl.ran.SlotSeconds - cl.would.SlotSeconds, cl.ran.KVSeconds - cl.would.KVSeconds},
		}
		for why, n := range cl.refused {
			if n > 0 {
				v.Refused[Cause(why).String()] = n
			}
		}
		rep.Classes = append(rep.Classes, v)
	}
	return rep
}

// String prints the report for a person.
func (rep *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "observed for %v, revision %d\n", rep.Observed, rep.Rev)
	for i := range rep.Classes {
		v := &rep.Classes[i]
		fmt.Fprintf(&b, "class %s: %d offered, %d passed on\n", v.Name, v.Offered, v.PassedOn)
		fmt.Fprintf(&b, "  would have been admitted at once: %d, still waiting: %d\n", v.AtOnce, v.Waiting)
		line := func(what string, n uint64, details string) {
			if n > 0 {
				fmt.Fprintf(&b, "  %s: %d%s\n", what, n, details)
			}
		}
		line("delayed", v.Delayed.Count, v.Delayed.details())
		var refused uint64
		var causes []string
		for why := range NumCauses {
			// A drain is nobody's fault and says nothing about the table.
			if n := v.Refused[Cause(why).String()]; n > 0 && Cause(why) != CauseDraining {
				refused += n
				causes = append(causes, fmt.Sprintf("%v %d", Cause(why), n))
			}
		}
		line("refused", refused, ", "+strings.Join(causes, ", "))
		line("gone with a drain", v.Refused[CauseDraining.String()], "")
		line("lent to it", v.Loans, "")
		line("recalls for it", v.Recalls, "")
		line("reclaimed from it", v.Reclaims, "")
		line("delayed again", v.Again.Count, v.Again.details())
		line("lost after a reclaim", v.Lost, "")
		if v.Floor != (AmountView{}) {
			fmt.Fprintf(&b, "  short of its floor, as it ran: %v\n  enforced: %v\n  saved: %v\n", v.Ran, v.Enforced, v.Saved)
		}
	}
	return b.String()
}
