package admission

import "time"

// MaxClasses bounds a table, so that sets of classes are one machine word.
const MaxClasses = 64

// MaxEngines bounds a table.
const MaxEngines = 64

// Mode is how a class gives back what it borrowed when it is recalled.
type Mode uint8

const (
	// Attrition waits until loans end by themselves.
	Attrition Mode = iota
	// Deadline ends a loan that is wanted back once its agreed life is over.
	Deadline
	// Reclaim ends just enough loans at once.
	ReclaimNow
)

func (m Mode) String() string { return [...]string{"attrition", "deadline", "reclaim"}[m] }

// Reopening is when a class whose lending was closed lends again.
type Reopening uint8

const (
	// ReopenIdle is the published rule: once the class has been idle for
	// IdleAfter.
	ReopenIdle Reopening = iota
	// ReopenSettled: once what was lent before is back, and the idle time to
	// expect is worth more than a recall costs.
	ReopenSettled
)

func (r Reopening) String() string { return [...]string{"idle", "settled"}[r] }

// Objective is what "on time" means for a class; 0 is no limit.
type Objective struct {
	First time.Duration // until the first token
	Token time.Duration // between two output tokens
	Whole time.Duration // until the last token
}

// Table is everything that can be configured or granted, in one versioned
// piece. Indices of classes and engines are stable from one revision to the
// next; a removed class or engine stays, closed.
type Table struct {
	Rev     uint64
	Classes []ClassSpec
	Engines []EngineSpec
	// Drain refuses new requests, empties the queues, and lets what runs finish.
	Drain bool
	// Pause lends nothing: every class keeps its whole floor, and nobody is given more
	// than his own, so that a class without one waits. What is lent goes on, or, with
	// CallIn, is given back as the borrowing classes' modes allow, whether or not
	// somebody wants it.
	Pause, CallIn bool
	// Bypass decides nothing: whoever could ever run is admitted at once, beyond every
	// limit, and the engines have to cope. See bypass.go.
	Bypass bool
	// StallShare is the largest part of the time, 0 to 1, for which starts of
	// lower classes may hold up a protected class that is active; 0 is no bound.
	StallShare float64
	// ReclaimRate bounds the reclaims of a second; 0 is no bound.
	ReclaimRate int
	// Until is when the lease of the shares ends; 0: never. From then on the core has
	// of each shared engine and ceiling what survives, until there is another table. See
	// share.go.
	Until Time
	// Recall: what is used beyond the shares is wanted elsewhere, and loans are ended
	// for it as their classes' modes allow. Else it is given back as it ends.
	Recall bool
}

// ClassSpec is one class. Its place in the table is its rank: where two classes
// want the same idle capacity, the earlier one gets it.
type ClassSpec struct {
	Name  string
	Floor Amount // kept for the class
	// Whole is the floor that several cores together have, of which Floor is this one's
	// part for as long as it is not told what the others do; zero where there are none.
	Whole Amount
	// WholeUnlent is the part of Whole that is never lent.
	WholeUnlent Amount
	Unlent      Amount // the part of the floor that is never lent
	Ceiling     Amount // its hard maximum
	// Shared: the ceiling is for several cores together. Withheld is what of it the
	// others may use, Survival what this one may when its lease is over.
	Shared   bool
	Withheld Amount
	Survival Amount
	Headroom Amount // kept above the recent peak while lending is open
	// IdleAfter is how far back a peak of use counts, and how long the class
	// must be idle before its lending reopens after a recall; a sixteenth of it
	// where recalls lose next to nothing, with ReopenSettled.
	IdleAfter time.Duration
	Mode      Mode
	LoanLife  time.Duration // for Deadline: the agreed life of a loan
	// Grace is how long, from its arrival, a request of the class waits for what is
	// predicted to end by itself before loans are ended for it; and how long, of the
	// class's own work that can't go on after a reclaim, may be on loan.
	Grace time.Duration
	// PinAfter is after how many reclaims a request runs to its end, one of the
	// class at a time; 0 is never.
	PinAfter int
	Reopen   Reopening
	// Window is over how long the floor is owed, as so many slots' worth of
	// service; 0 owes it at every moment.
	Window    time.Duration
	Objective Objective
	// KeepWarm is for how long the KV of a session that has had an answer counts
	// as used for lending, so that its next turn finds its prefix; 0 is not at all.
	KeepWarm time.Duration
	// Depth bounds the queue, TenantDepth one tenant's part of it, MaxWait the
	// time in it. 0 refuses what can't start at once (Depth), is no bound of its
	// own (TenantDepth) or no limit (MaxWait).
	Depth       int
	TenantDepth int
	MaxWait     time.Duration
	// DefaultOut is the output reserved for a request that declares no limit,
	// in tokens, until real lengths have been learned.
	DefaultOut int32
	// MaxOut, where positive, bounds a request's output and is sent upstream.
	MaxOut int32
	// Closed takes no new requests; what it has finishes.
	Closed bool
}

// EngineSpec is one engine of the pool.
type EngineSpec struct {
	Name       string
	Slots      int64
	KV         int64 // tokens
	Block      int64 // tokens
	MaxContext int64 // tokens of one sequence; 0 is no limit but KV
	// Boundary is how many requests may be in the engine beyond its slots.
	Boundary int64
	// Ordered: the engine orders waiting work by priority, so that any class may
	// use the boundary, not protected demand alone.
	Ordered bool
	// Fatal: running out of KV ends everything that runs; limits are reserved in
	// full and sent upstream.
	Fatal bool
	// Together: the engine acts on aborts between steps, before it takes up new
	// work, so that a protected request is sent together with the abort that makes
	// room for it. Its own order plays no part: what waits inside it came by a
	// boundary or together with an abort, and both are protected demand. Behind
	// foreign work an engine without priorities starts it later.
	Together bool
	// Caches: the engine keeps the prefixes of what has ended, so that who goes on finds
	// his there.
	Caches bool
	// Splits: a long prefill can be split, into pieces that it keeps.
	Splits bool
	// GaugeAge is how old a gauge may be; a busy gauge whose progress counter has
	// stood still for longer proves nothing. 0 is 5 s.
	GaugeAge time.Duration
	// Shared: other cores use the engine too, each its share. Withheld is what they may
	// use of it, Survival what this core may when its lease is over. What runs there from
	// elsewhere is not told by the gauges, which show the others' work as well: who hands
	// out the shares takes it off. A boundary is not used: each would use it.
	Shared   bool
	Withheld Amount
	Survival Amount
	// Closed takes no new requests; what it has finishes.
	Closed bool
}

const defaultGaugeAge = 5 * time.Second

// Envelope is what the table's open engines hold together.
func (t *Table) Envelope() Amount {
	var e Amount
	for i := range t.Engines {
		if s := &t.Engines[i]; !s.Closed {
			e = e.add(Of(s.Slots, s.KV))
		}
	}
	return e
}

// Validate reports every value that is out of range or contradicts another.
func (t *Table) Validate(bad func(path string, value any, allowed string)) {
	if n := len(t.Classes); n < 1 || n > MaxClasses {
		bad("classes", n, "1 to 64 classes")
	}
	if n := len(t.Engines); n < 1 || n > MaxEngines {
		bad("engines", n, "1 to 64 engines")
	}
	for i := range t.Engines {
		t.Engines[i].validate(func(path string, value any, allowed string) {
			bad("engines["+t.Engines[i].Name+"]."+path, value, allowed)
		})
	}
	envelope := t.Envelope()
	var floors Amount
	for i := range t.Classes {
		c := &t.Classes[i]
		c.validate(envelope, func(path string, value any, allowed string) {
			bad("classes["+c.Name+"]."+path, value, allowed)
		})
		if c.Window == 0 {
			floors = floors.add(c.Floor)
		}
	}
	if !(t.StallShare >= 0 && t.StallShare <= 1) {
		bad("stall_share", t.StallShare, "a share from 0 to 1")
	}
	if t.ReclaimRate < 0 {
		bad("reclaim_rate", t.ReclaimRate, "an integer of at least 0")
	}
	if t.Until < 0 {
		bad("until", t.Until, "0, or the moment at which the lease ends")
	}
	for r := range NumResources {
		if floors[r] > envelope[r] {
			bad("classes", floors[r], "floors of "+r.String()+" that sum to at most the envelope of "+itoa(envelope[r]))
		}
	}
}

func (s *EngineSpec) validate(bad func(path string, value any, allowed string)) {
	between := func(path string, v, low, high int64) {
		if v < low {
			bad(path, v, "an integer of at least "+itoa(low))
		} else if v > high {
			bad(path, v, "an integer of at most "+itoa(high))
		}
	}
	// The upper bounds are beyond every engine, and keep all sums in range.
	between("slots", s.Slots, 1, 1<<20)
	between("kv_tokens", s.KV, 1, 1<<40)
	between("block_size", s.Block, 1, 1<<20)
	between("max_context", s.MaxContext, 0, 1<<40)
	between("boundary", s.Boundary, 0, 1<<20)
	if s.GaugeAge < 0 {
		bad("gauge_age", s.GaugeAge, "a duration of at least 0s")
	}
	validateShare(s.Shared, s.Withheld, s.Survival, Of(s.Slots, s.KV), "what the engine has", bad)
}

// validateShare looks at what is withheld, and survives, of a total.
func validateShare(shared bool, withheld, survival, total Amount, of string, bad func(path string, value any, allowed string)) {
	if !shared {
		total, of = Amount{}, "nothing, it is not shared"
	}
	for r := range NumResources {
		for _, v := range []struct {
			path  string
			value int64
		}{{"withheld", withheld[r]}, {"survival", survival[r]}} {
			if v.value < 0 || v.value > total[r] {
				bad(v.path+"."+r.String(), v.value, "0 to "+itoa(total[r])+" ("+of+")")
			}
		}
	}
}

func (c *ClassSpec) validate(envelope Amount, bad func(path string, value any, allowed string)) {
	for r := range NumResources {
		ordered := func(path string, v, low, high int64, of string) {
			if v < low || v > high {
				bad(path+"."+r.String(), v, itoa(low)+" to "+itoa(high)+" ("+of+")")
			}
		}
		ordered("ceiling", c.Ceiling[r], 0, envelope[r], "the envelope")
		ordered("floor", c.Floor[r], 0, c.Ceiling[r], "the ceiling")
		ordered("whole", c.Whole[r], 0, c.Ceiling[r], "the ceiling")
		ordered("whole_unlent", c.WholeUnlent[r], 0, c.Whole[r], "the whole floor")
		ordered("unlent", c.Unlent[r], 0, c.Floor[r], "the floor")
		ordered("headroom", c.Headroom[r], 0, envelope[r], "the envelope")
	}
	validateShare(c.Shared, c.Withheld, c.Survival, c.Ceiling, "the ceiling", bad)
	switch {
	case c.Mode > ReclaimNow:
		bad("reclaim", uint8(c.Mode), "attrition, deadline or reclaim")
	case c.Mode == Deadline && c.LoanLife <= 0:
		bad("deadline", c.LoanLife, "a positive duration, the life of a loan, with reclaim: deadline")
	case c.Mode != Deadline && c.LoanLife != 0:
		bad("deadline", c.LoanLife, "no deadline without reclaim: deadline")
	}
	switch {
	case c.Window != 0 && (c.Window < time.Second || c.Window > time.Hour):
		bad("window", c.Window, "0, or a duration from 1s to 1h")
	case c.Window > 0 && c.Unlent != (Amount{}):
		bad("unlent", view(c.Unlent), "nothing with guarantee: window, which keeps nothing at any one moment")
	case c.Reopen > ReopenSettled:
		bad("reopen", uint8(c.Reopen), "idle or settled")
	}
	for _, v := range []struct {
		path  string
		value int64
	}{
		{"grace", int64(c.Grace)}, {"keep_warm", int64(c.KeepWarm)}, {"pin_after", int64(c.PinAfter)},
		{"objective.ttft", int64(c.Objective.First)}, {"objective.tpot", int64(c.Objective.Token)}, {"objective.e2e", int64(c.Objective.Whole)},
		{"queue.depth", int64(c.Depth)}, {"queue.per_tenant", int64(c.TenantDepth)}, {"queue.wait", int64(c.MaxWait)},
		{"idle_after", int64(c.IdleAfter)}, {"max_output", int64(c.MaxOut)},
	} {
		if v.value < 0 {
			bad(v.path, v.value, "a value of at least 0")
		}
	}
	if c.DefaultOut < 1 {
		bad("default_output", c.DefaultOut, "an integer of at least 1")
	}
}
