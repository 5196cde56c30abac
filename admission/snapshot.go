package admission

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Counts are a class's counters since New.
type Counts struct {
	Offered  uint64
	Admitted uint64
	Loans    uint64 // admissions that borrowed
	Requeued uint64 // attempts repeated
	Reclaims uint64 // loans ended by force
	Recalls  uint64 // opened for this class
	Ghosts   uint64 // holds freed without a confirmation
	Rejected [NumCauses]uint64
	Done     [NumCauses]uint64
	// KV tokens of holds that have ended: what was reserved at admission, what
	// was really used, what was returned unused, what was used beyond it.
	ReservedTokens int64
	ConsumedTokens int64
	RefundedTokens int64
	OverrunTokens  int64
	// Tokens that engines compute again because this class recalled what it lent.
	WasteTokens int64
}

// Snapshot is a core's whole state at one moment.
type Snapshot struct {
	At       Time             `json:"at_ns"`
	Rev      uint64           `json:"revision"`
	Drain    bool             `json:"drain,omitempty"`
	Paused   bool             `json:"lending_paused,omitempty"`
	Bypassed bool             `json:"bypassed,omitempty"` // nothing is decided
	Envelope AmountView       `json:"envelope"`
	Used     AmountView       `json:"used"`
	Foreign  AmountView       `json:"foreign"`
	Withheld *AmountView      `json:"withheld,omitempty"` // what others may use of shared engines
	Until    Time             `json:"until_ns,omitempty"` // the end of the shares' lease
	Expired  bool             `json:"expired,omitempty"`
	Promised AmountView       `json:"promised"` // sum of max(used, hold)
	Loans    int              `json:"loans"`
	Ghosts   int              `json:"ghosts"`
	Classes  []ClassSnapshot  `json:"classes"`
	Engines  []EngineSnapshot `json:"engines"`
	Holds    []HoldSnapshot   `json:"holds"`
}

// AmountView is an Amount with its resources named.
type AmountView struct {
	Slots int64 `json:"slots"`
	KV    int64 `json:"kv_tokens"`
}

func view(a Amount) AmountView { return AmountView{a[Slots], a[KV]} }

func (a AmountView) String() string { return fmt.Sprintf("%d/%d", a.Slots, a.KV) }

// ShareView is what of something shared others may use, and what this core may when its
// lease is over.
type ShareView struct {
	Withheld AmountView `json:"withheld"`
	Survival AmountView `json:"survival"`
}

func (s ShareView) String() string {
	return fmt.Sprintf("withheld %v survival %v", s.Withheld, s.Survival)
}

// ClassSnapshot is one class's state.
type ClassSnapshot struct {
	Name      string     `json:"name"`
	Floor     AmountView `json:"floor"`
	Unlent    AmountView `json:"unlent"`
	Ceiling   AmountView `json:"ceiling"`
	Share     *ShareView `json:"share,omitempty"` // of the ceiling
	Used      AmountView `json:"used"`
	Hold      AmountView `json:"hold"` // kept out of the others' reach
	Lending   bool       `json:"lending_open"`
	IdleSince Time       `json:"idle_since_ns,omitempty"`
	Loans     int        `json:"loans"`
	Queue     int        `json:"queue"`
	Head      *HeadView  `json:"head,omitempty"`
	// The tenants that are served first, and how many wait.
	Tenants    []TenantView `json:"tenants,omitempty"`
	TenantsAll int          `json:"tenants_waiting,omitempty"`
	Recall     *Recall      `json:"recall,omitempty"`
	LearnedOut int32        `json:"learned_output_tokens,omitempty"`
	// Owed is what a windowed guarantee is behind, in ns of a slot; below 0 it is
	// ahead. Due: the floor is kept for it now.
	Owed Time `json:"owed_slot_ns,omitempty"`
	Due  bool `json:"due,omitempty"`
	// Quiet: it has been idle for so long that its idle time is worth lending.
	Quiet bool `json:"quiet,omitempty"`
	// IdleAfter is how long it has to be idle at present, longer after recalls
	// that came soon.
	IdleAfter Time   `json:"idle_after_ns"`
	Warm      int64  `json:"warm_kv_tokens,omitempty"` // of sessions
	Late      int    `json:"late,omitempty"`           // waiting, and can't be in time
	Counts    Counts `json:"-"`
}

// HeadView is the first waiting request of a class and what it waits for.
type HeadView struct {
	ID      ID         `json:"id"`
	Request string     `json:"request,omitempty"` // the driver's name, see Name
	Tenant  Tenant     `json:"tenant"`
	Since   Time       `json:"since_ns"`
	Wants   AmountView `json:"wants"`
	Waiting string     `json:"waits_for"`
	// KV tokens of requests that have passed it.
	Passed int64 `json:"passed_kv_tokens,omitempty"`
	// Asks is what it asks for itself in the place of its class's objective.
	Asks string `json:"asks,omitempty"`
}

// TenantView is one tenant that waits in a class.
type TenantView struct {
	Tenant  Tenant `json:"tenant"`
	Counter int64  `json:"counter"` // weighted tokens, see fair.go
	Waiting int    `json:"waiting"`
}

// Recall is an open recall.
type Recall struct {
	Seq        uint64     `json:"seq"`
	Opened     Time       `json:"opened_ns"`
	For        ID         `json:"for"`
	ForRequest string     `json:"for_request,omitempty"` // the driver's name, while it is there
	Served     bool       `json:"served"`
	Loans      int        `json:"loans_out"`
	Need       AmountView `json:"need"`
}

// EngineSnapshot is one engine's state.
type EngineSnapshot struct {
	Name    string     `json:"name"`
	State   string     `json:"state"`
	Total   AmountView `json:"total"`
	Used    AmountView `json:"used"`
	Foreign AmountView `json:"foreign"`
	Share   *ShareView `json:"share,omitempty"`
	Slack   int64      `json:"slack_kv_tokens,omitempty"`
	// Demoted: it did not end what it was asked to, and nothing is reclaimed from it.
	Demoted bool `json:"demoted,omitempty"`
	// Aside is until when others get its work, because it failed what it was given
	// or asked to be left alone; 0: it is not set aside. Faults counts the attempts in
	// a row that it failed before a token.
	Aside  Time `json:"set_aside_until_ns,omitempty"`
	Faults int  `json:"faults,omitempty"`
}

// HoldSnapshot is one hold.
type HoldSnapshot struct {
	Hold    Hold       `json:"hold"`
	State   string     `json:"state"`
	Class   string     `json:"class"`
	Engine  string     `json:"engine"`
	ID      ID         `json:"id,omitempty"`      // 0 once the request has left it
	Request string     `json:"request,omitempty"` // the driver's name
	Loan    bool       `json:"loan,omitempty"`
	Pinned  bool       `json:"pinned,omitempty"`       // it is not reclaimed
	Piece   int32      `json:"piece_tokens,omitempty"` // it only warms so much of a prompt
	For     string     `json:"freed_for,omitempty"`    // the class for whose head it is ended
	Asks    string     `json:"asks,omitempty"`         // what its request asks for itself
	Amount  AmountView `json:"amount"`
	Prompt  int32      `json:"prompt_tokens"`
	Out     int32      `json:"output_tokens"`
	Since   Time       `json:"since_ns"`
}

// Snapshot returns the whole state. It changes nothing and shares nothing with
// the core.
func (c *Core) Snapshot() *Snapshot {
	s := c.summary()
	c.listHolds(s)
	return s
}

// summary is the state without the single holds, of which there may be thousands.
func (c *Core) summary() *Snapshot {
	s := &Snapshot{
		At: c.now, Rev: c.rev, Drain: c.drain, Paused: c.pause, Bypassed: c.bypass, Envelope: view(c.envelope), Used: view(c.used), Foreign: view(c.foreign),
		Until: c.share.until, Expired: c.share.expired,
		Promised: view(c.promised), Loans: c.loans, Ghosts: c.ghosts, Holds: []HoldSnapshot{},
	}
	if c.share.on {
		withheld := c.withheldSum()
		v := view(withheld)
		s.Foreign, s.Withheld = view(c.foreign.sub(withheld)), &v
	}
	for k := range c.classes {
		cl := &c.classes[k]
		v := ClassSnapshot{
			Name: cl.spec.Name, Floor: view(cl.spec.Floor), Unlent: view(cl.spec.Unlent), Ceiling: view(cl.spec.Ceiling),
			Used: view(cl.used), Hold: view(cl.hold), Lending: cl.open && !c.pause, Queue: cl.queue.n,
			LearnedOut: cl.lengths.usual, Counts: cl.counts, Quiet: c.quiet(cl), IdleAfter: c.idleAfter(cl), Warm: cl.warm,
		}
		if cl.spec.Shared {
			v.Share = &ShareView{view(cl.spec.Ceiling.sub(cl.ceiling)), view(cl.spec.Survival)}
		}
		if cl.spec.Window > 0 {
			v.Owed, v.Due = c.debtAt(cl, c.now), cl.owed.due
		}
		for i := cl.queue.longest; i != none; i = c.requests[i].later {
			if c.requests[i].late {
				v.Late++
			}
		}
		if cl.idleSince != Never {
			v.IdleSince = cl.idleSince
		}
		for i := cl.loanHead; i != none; i = c.holds[i].next {
			v.Loans++
		}
		if i := cl.queue.head; i != none {
			v.Head = c.head(Class(k), i)
			lines, n := c.front(cl)
			for _, i := range lines[:n] {
				l := &c.lines[i]
				v.Tenants = append(v.Tenants, TenantView{Tenant: l.tenant, Counter: l.counter, Waiting: l.n})
			}
			v.TenantsAll = len(cl.queue.lines)
		}
		if r := &cl.recall; r.open {
			v.Recall = &Recall{Seq: r.seq, Opened: r.opened, For: r.request, Served: r.served, Loans: r.cohort, Need: view(r.need)}
		}
		s.Classes = append(s.Classes, v)
	}
	for e := range c.engines {
		en := &c.engines[e]
		v := EngineSnapshot{
			Name: en.spec.Name, State: en.state.String(), Total: view(Of(en.spec.Slots, en.spec.KV)),
			Used: view(en.used), Foreign: view(en.foreign), Slack: en.slack, Demoted: en.untrue >= maxUntrue, Aside: en.aside, Faults: en.faults,
		}
		if en.spec.Shared {
			v.Foreign, v.Share = AmountView{}, &ShareView{view(c.withheld(en)), view(en.spec.Survival)}
		}
		s.Engines = append(s.Engines, v)
	}
	return s
}

func (c *Core) listHolds(s *Snapshot) {
	for i := range c.holds {
		h := &c.holds[i]
		if h.state == holdFree {
			continue
		}
		for_ := ""
		if h.pairs > 0 {
			for_ = c.classes[h.pairs-1].spec.Name
		}
		asks := ""
		if h.req != 0 {
			asks = c.requests[h.req.Slot()].asks()
		}
		s.Holds = append(s.Holds, HoldSnapshot{
			Pinned: h.pinned, Piece: h.piece, For: for_, Asks: asks,
			Hold: c.holdID(int32(i)), State: [...]string{"free", "live", "ending", "ghost"}[h.state], Class: c.classes[h.class].spec.Name,
			Engine: c.engines[h.engine].spec.Name, ID: h.req, Loan: h.loan, Amount: view(h.amount), Prompt: h.prompt, Out: h.out, Since: h.admitted,
		})
	}
}

// head explains what a queue's first request waits for.
func (c *Core) head(k Class, slot int32) *HeadView {
	cl, q := &c.classes[k], &c.requests[slot]
	f := c.fit(cl, q)
	v := &HeadView{ID: c.requestID(slot), Tenant: q.tenant, Since: q.waits, Wants: view(f.amount), Passed: c.classes[k].queue.pass.tokens, Asks: q.asks()}
	r := f.resource
	switch f.refusal {
	case refusedNone:
		if f.loan && c.pause {
			v.Waiting = "lending, which is paused: it would take the class beyond its floor"
		} else if c.blockIn != 0 {
			v.Waiting = fmt.Sprintf("a recall: class %s waits within its floor, and nobody borrows until it is served", c.names(c.blockIn))
		} else {
			v.Waiting = fmt.Sprintf("class %s, which waits for the same idle capacity and comes first", c.names(c.blockOut&(bit(k)-1)))
		}
	case refusedEngine:
		v.Waiting = "an engine that is ready and can run it"
	case refusedShare:
		en := &c.engines[f.engine]
		v.Waiting = fmt.Sprintf("a larger share of engine %s: %s %s + %d > %d", en.spec.Name, r, c.others(en.foreign[r]), f.amount[r], Of(en.spec.Slots, en.spec.KV)[r])
	case refusedCeiling:
		v.Waiting = fmt.Sprintf("its class's ceiling: %s used %d + ", r, cl.used[r])
		if held := cl.spec.Ceiling[r] - cl.ceiling[r]; held > 0 {
			v.Waiting += c.others(held) + " + "
		}
		v.Waiting += fmt.Sprintf("%d > %d", f.amount[r], cl.spec.Ceiling[r])
	case refusedFull:
		en := &c.engines[f.engine]
		limit := en.limit(cl, cl.used.add(f.amount), en.used)
		foreign := fmt.Sprintf("foreign %d", en.foreign[r])
		if en.spec.Shared {
			foreign = c.others(en.foreign[r])
		}
		v.Waiting = fmt.Sprintf("engine %s: %s used %d + %s + %d > %d", en.spec.Name, r, en.used[r], foreign, f.amount[r], limit[r])
		if cl.recall.open {
			v.Waiting += fmt.Sprintf("; recalled, %d loans out", cl.recall.cohort)
		}
	case refusedPaired:
		v.Waiting = "what has come free on engine " + c.engines[f.engine].spec.Name + " was freed for another"
	case refusedWhole:
		v.Waiting = fmt.Sprintf("its class's floor: it can't go on after a reclaim, and is not predicted to end within the grace of %v", cl.spec.Grace)
	case refusedStall:
		v.Waiting = c.whyStalls(k, &c.engines[f.engine], q)
	case refusedHeld:
		withheld := c.withheldSum()[r]
		foreign := fmt.Sprintf("foreign %d", c.foreign[r]-withheld)
		if withheld > 0 {
			foreign += " + " + c.others(withheld)
		}
		if after := cl.used[r] + f.amount[r]; after <= cl.hold[r] {
			v.Waiting = fmt.Sprintf("%s that are never lent: used or unlent of other classes %d + %s + own %d > %d", r,
				c.kept[r]-max(cl.used[r], cl.spec.Unlent[r]), foreign, max(after, cl.spec.Unlent[r]), c.envelope[r])
			break
		}
		v.Waiting = fmt.Sprintf("%s that others keep: used or kept by other classes %d + %s + own %d > %d", r,
			c.promised[r]-max(cl.used[r], cl.hold[r]), foreign, cl.used[r]+f.amount[r], c.envelope[r])
	}
	return v
}

// others names what is withheld.
func (c *Core) others(n int64) string {
	if c.share.expired {
		return fmt.Sprintf("held by others since the lease is over %d", n)
	}
	return fmt.Sprintf("held by other replicas %d", n)
}

func (c *Core) names(set uint64) string {
	var names []string
	for k := range eachClass(set) {
		names = append(names, c.classes[k].spec.Name)
	}
	return strings.Join(names, ", ")
}

// Name gives every request in the snapshot the name by which its driver knows
// it; "" leaves its number.
func (s *Snapshot) Name(name func(ID) string) {
	for i := range s.Classes {
		if h := s.Classes[i].Head; h != nil {
			h.Request = name(h.ID)
		}
		if r := s.Classes[i].Recall; r != nil {
			r.ForRequest = name(r.For)
		}
	}
	for i := range s.Holds {
		if h := &s.Holds[i]; h.ID != 0 {
			h.Request = name(h.ID)
		}
	}
}

func called(name string, id ID) string {
	switch {
	case name != "":
		return name
	case id == 0:
		return "nobody"
	}
	return strconv.FormatUint(uint64(id), 10)
}

// String prints the state for a person, and for goldens.
func (s *Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rev %d envelope %v used %v foreign %v promised %v loans %d ghosts %d", s.Rev, s.Envelope, s.Used, s.Foreign, s.Promised, s.Loans, s.Ghosts)
	if s.Drain {
		b.WriteString(" draining")
	}
	if s.Paused {
		b.WriteString(" lending paused")
	}
	if s.Bypassed {
		b.WriteString(" bypassed")
	}
	if s.Withheld != nil {
		fmt.Fprintf(&b, " withheld %v", *s.Withheld)
	}
	if s.Expired {
		b.WriteString(" lease over")
	} else if s.Until > 0 {
		fmt.Fprintf(&b, " lease until %v", time.Duration(s.Until))
	}
	b.WriteByte('\n')
	for i := range s.Classes {
		v := &s.Classes[i]
		lending := "closed"
		if v.Lending {
			lending = "open"
		}
		fmt.Fprintf(&b, "class %s: used %v hold %v (floor %v unlent %v ceiling %v) lending %s loans %d queue %d\n",
			v.Name, v.Used, v.Hold, v.Floor, v.Unlent, v.Ceiling, lending, v.Loans, v.Queue)
		if v.Share != nil {
			fmt.Fprintf(&b, "  of its ceiling: %v\n", *v.Share)
		}
		if v.Head != nil {
			fmt.Fprintf(&b, "  head %s wants %v, waits for %s\n", called(v.Head.Request, v.Head.ID), v.Head.Wants, v.Head.Waiting)
			if v.Head.Asks != "" {
				fmt.Fprintf(&b, "  asks for %s\n", v.Head.Asks)
			}
			if v.Head.Passed > 0 {
				fmt.Fprintf(&b, "  passed by %d kv tokens\n", v.Head.Passed)
			}
		}
		// The counter of one alone tells nothing.
		if v.TenantsAll > 1 {
			b.WriteString("  tenants in order:")
			for _, t := range v.Tenants {
				fmt.Fprintf(&b, " %d at %d with %d,", t.Tenant, t.Counter, t.Waiting)
			}
			fmt.Fprintf(&b, " of %d\n", v.TenantsAll)
		}
		if v.Owed != 0 || v.Due {
			fmt.Fprintf(&b, "  owed %v of a slot, due %v\n", time.Duration(v.Owed).Round(time.Millisecond), v.Due)
		}
		if v.Warm > 0 {
			fmt.Fprintf(&b, "  kept warm: %d kv tokens\n", v.Warm)
		}
		if v.Late > 0 {
			fmt.Fprintf(&b, "  late: %d\n", v.Late)
		}
		if v.Recall != nil {
			fmt.Fprintf(&b, "  recall for %s: need %v, loans out %d, served %v\n", called(v.Recall.ForRequest, v.Recall.For), v.Recall.Need, v.Recall.Loans, v.Recall.Served)
		}
	}
	for i := range s.Engines {
		v := &s.Engines[i]
		fmt.Fprintf(&b, "engine %s: %s used %v of %v foreign %v", v.Name, v.State, v.Used, v.Total, v.Foreign)
		if v.Share != nil {
			fmt.Fprintf(&b, " %v", *v.Share)
		}
		if v.Slack > 0 {
			fmt.Fprintf(&b, " slack %d", v.Slack)
		}
		if v.Demoted {
			b.WriteString(" demoted")
		}
		if v.Faults > 0 {
			fmt.Fprintf(&b, " faults %d", v.Faults)
		}
		if v.Aside > 0 {
			fmt.Fprintf(&b, " set aside until %v", time.Duration(v.Aside))
		}
		b.WriteByte('\n')
	}
	for i := range s.Holds {
		v := &s.Holds[i]
		fmt.Fprintf(&b, "hold %d: %s %s on %s for %s: %v prompt %d out %d", uint32(v.Hold), v.State, v.Class, v.Engine, called(v.Request, v.ID), v.Amount, v.Prompt, v.Out)
		if v.Loan {
			b.WriteString(" loan")
		}
		if v.Pinned {
			b.WriteString(" pinned")
		}
		if v.Piece > 0 {
			fmt.Fprintf(&b, " warms %d", v.Piece)
		}
		if v.Asks != "" {
			b.WriteString(" asks for " + v.Asks)
		}
		if v.For != "" {
			b.WriteString(" freed for " + v.For)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
