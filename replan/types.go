package replan

import (
	"fmt"
	"time"

	"headgate/admission"
)

// Time is a moment in the driver's nanoseconds, as admission counts them.
type Time = admission.Time

// Never is later than every moment.
const Never = admission.Never

// MaxProfiles bounds a configuration, so that sets of profiles are one machine word.
const MaxProfiles = 16

// Set is a set of profiles, a bit each by index.
type Set uint32

// Has tells whether profile i is one of the set.
func (s Set) Has(i int) bool { return s&(1<<i) != 0 }

// With is the set and profile i.
func (s Set) With(i int) Set { return s | 1<<i }

// Profile is one way of running the engine.
type Profile struct {
	Name       string
	Slots      int   // sequences at once
	KVTokens   int64 // tokens, shared by all slots
	MaxContext int64 // tokens of one sequence, prompt and output
	// Cost is how long a switch to it is believed to take, until one was measured.
	Cost time.Duration
}

// Config is what a Planner goes by.
type Config struct {
	Profiles []Profile
	Home     int // the profile to be in when nothing is wanted
	// Limits: profiles differ in admission's limits only, the engine is the same in all.
	// Then a switch costs nothing and can't fail, and what runs need not end for it.
	Limits bool
	// Dwell is the least time from one switch to the next.
	Dwell time.Duration
	// IdleAfter is how long nothing must run or wait before the engine goes home.
	IdleAfter time.Duration
	// ContentionAfter is how long demand must wait that another profile would run.
	ContentionAfter time.Duration
	// DrainTimeout is how long what runs may take to end before the switch is given up.
	DrainTimeout time.Duration
	// PerHour bounds the switches that are begun in any hour.
	PerHour int
	// DryRun decides and does nothing.
	DryRun bool
}

// Validate reports every value that is out of range.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	if n := len(c.Profiles); n < 2 || n > MaxProfiles {
		bad("profiles", n, fmt.Sprintf("2 to %d profiles", MaxProfiles))
	}
	for i := range c.Profiles {
		p := &c.Profiles[i]
		for _, n := range []struct {
			path  string
			value int64
		}{{"slots", int64(p.Slots)}, {"kv_tokens", p.KVTokens}, {"max_context", p.MaxContext}} {
			if n.value < 1 {
				bad(fmt.Sprintf("profiles[%d].%s", i, n.path), n.value, "an integer of at least 1")
			}
		}
		if p.Cost < 0 {
			bad(fmt.Sprintf("profiles[%d].cost", i), p.Cost, "a duration of at least 0s")
		}
	}
	if c.Home < 0 || c.Home >= len(c.Profiles) {
		bad("home", c.Home, "the index of a profile")
	}
	for _, d := range []struct {
		path  string
		value time.Duration
	}{{"dwell", c.Dwell}, {"idle_after", c.IdleAfter}, {"contention_after", c.ContentionAfter}, {"drain_timeout", c.DrainTimeout}} {
		if d.value <= 0 {
			bad(d.path, d.value, "a duration above 0s")
		}
	}
	if c.PerHour < 1 || c.PerHour > maxPerHour {
		bad("max_per_hour", c.PerHour, fmt.Sprintf("1 to %d", maxPerHour))
	}
}

const maxPerHour = 3600

// Demand is requests that the same profiles hold.
type Demand struct {
	Fits             Set
	Running, Waiting int  // sequences
	Since            Time // from when on the first of the waiting has waited
}

// Load is what there is to serve, and what binds.
type Load struct {
	Demands []Demand
	// Promised are the profiles that give every live session what it was promised.
	Promised Set
	// Inside are the profiles that hold all that was given to admission, what runs and
	// what waits there: under another one it would be refused.
	Inside Set
}

// Kind says what an Event reports.
type Kind uint8

const (
	Sample   Kind = 1 + iota // what there is now: Load
	Drained                  // nothing runs on the engine any more: Load
	Switched                 // how a switch or a return has ended: OK
	Override                 // an operator wants Profile until Until, or, with Auto, the planner's own choice
	Tick                     // nothing but the time
)

// Auto is the Profile of an Override that ends one.
const Auto = -1

// Event is what the driver reports.
type Event struct {
	Kind    Kind
	Load    *Load // read during Step, never kept
	OK      bool
	Intact  bool // of a Switched that failed: the engine was not touched
	Profile int
	Until   Time // Never: until another Override
}

// Op says what an Effect wants done.
type Op uint8

const (
	Drain  Op = 1 + iota // send the engine nothing new, have loans ended, report Drained; From, To
	Switch               // nothing runs: take the engine to To, report Switched
	Return               // the switch has failed: take the engine back to To, report Switched
	Reopen               // the engine serves again, in To
	Would                // of a dry run: here it would have drained; From, To
)

func (o Op) String() string {
	return [...]string{"", "drain", "switch", "return", "reopen", "would switch"}[o]
}

// Why is a reason.
type Why uint8

const (
	WhyNone     Why = iota
	WhyStranded     // what waits can't run in the present profile
	WhySlots        // what waits would find a slot in another
	WhyIdle         // nothing is there, and the engine is not at home
	WhyOperator     // an operator wants it so
	WhyDone         // the switch is done
	WhyPromise      // a session was promised more than the profile gives
	WhyGone         // what the switch was for is not there any more
	WhyTimeout      // what runs did not end in time
	WhyUnfit        // the profile does not hold what was given to admission
	WhyFailed       // the switch failed
	WhyBack         // the engine is back in the profile in which it was before
)

func (w Why) String() string {
	return [...]string{
		"", "demand is stranded", "demand waits for slots", "nothing is there", "an operator wants it", "it is done",
		"a session was promised more", "the demand has gone", "what runs did not end in time", "what is inside would not fit",
		"the switch failed", "it is back",
	}[w]
}

// Effect is what a step wants done. Effects are to be carried out in order.
type Effect struct {
	Op       Op
	Why      Why
	From, To int
	// Of a Drain and a Would: what the switch is expected to gain over the dwell and to
	// cost, in slot-seconds, and for how long the demand has waited.
	Gain, Cost float64
	Waited     time.Duration
	// Of a Reopen after a switch: how long drain and switch have taken.
	Took time.Duration
}

// State is what the planner is at.
type State uint8

const (
	Settled   State = iota
	Draining        // the engine takes nothing new, and what runs ends
	Switching       // the engine is on its way to another profile
	Returning       // and on its way back, because that failed
	Broken          // that failed too; it is tried again
)

func (s State) String() string {
	return [...]string{"settled", "draining", "switching", "returning", "broken"}[s]
}
