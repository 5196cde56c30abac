package admission

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Time is a moment in the driver's nanoseconds. The core never reads a clock
// and clamps what it is given to be non-decreasing.
type Time int64

// Never is later than every moment.
const Never = Time(math.MaxInt64)

// maxDuration is beyond every use of a duration, and a moment that far ahead
// still a Time.
const maxDuration = 1 << 60 * time.Nanosecond

// plus returns the moment d after t, or Never if there is none.
func (t Time) plus(d time.Duration) Time {
	if Time(d) > Never-t {
		return Never
	}
	return t + Time(d)
}

// ID names a request: generation<<32 | slot. The driver chooses it; the slot is
// below the capacity given to New and free (no request with that slot is
// waiting or running), and the generation differs from the slot's last one, so
// that an event about a request that is gone is recognised and ignored.
type ID uint64

// MakeID builds an ID.
func MakeID(generation, slot uint32) ID { return ID(uint64(generation)<<32 | uint64(slot)) }

// Slot returns the driver's slot.
func (id ID) Slot() uint32 { return uint32(id) }

// Hold names one dispatch, the only owner of capacity. The core chooses it.
type Hold uint64

// Class and Engine are indices into the Table, never reused for another.
type (
	Class  uint8
	Engine uint8
)

// Tenant is the driver's number for a tenant, small and dense.
type Tenant uint32

// Resource is what the envelope is made of.
type Resource uint8

const (
	Slots Resource = iota // sequences
	KV                    // tokens, rounded up to the engine's blocks
	NumResources
)

func (r Resource) String() string { return [...]string{"slots", "kv_tokens"}[r] }

// Amount is a quantity of every resource.
type Amount [NumResources]int64

// Of builds an amount.
func Of(slots, kv int64) Amount { return Amount{slots, kv} }

func (a Amount) add(b Amount) Amount { return Amount{a[0] + b[0], a[1] + b[1]} }
func (a Amount) sub(b Amount) Amount { return Amount{a[0] - b[0], a[1] - b[1]} }
func (a Amount) max(b Amount) Amount { return Amount{max(a[0], b[0]), max(a[1], b[1])} }
func (a Amount) min(b Amount) Amount { return Amount{min(a[0], b[0]), min(a[1], b[1])} }

// within reports a <= b on every resource.
func (a Amount) within(b Amount) bool { return a[0] <= b[0] && a[1] <= b[1] }

func (a Amount) String() string { return fmt.Sprintf("%d/%d", a[Slots], a[KV]) }

// MarshalJSON names the resources: {"slots":1,"kv_tokens":1600}.
func (a Amount) MarshalJSON() ([]byte, error) { return json.Marshal(view(a)) }

// UnmarshalJSON reads what MarshalJSON writes; a resource that is not there is 0.
func (a *Amount) UnmarshalJSON(text []byte) error {
	var v AmountView
	err := json.Unmarshal(text, &v)
	*a = Of(v.Slots, v.KV)
	return err
}

// Kind says what an Event reports.
type Kind uint8

const (
	Offer     Kind = 1 + iota // a request asks to be admitted: ID, Class, Tenant, Prompt, Out, N, Flags
	Cancel                    // a waiting request's client is gone, or, with a Cause, nothing can serve it any more: ID
	Bar                       // others are the engines now that can't run a request: ID, Barred
	Scheduled                 // the engine has begun with a hold: Hold, Cached, Flags
	Progress                  // a hold has produced tokens: Hold, Out, and Prompt once the engine has said it
	Ended                     // a hold's attempt is over: Hold, Out, Flags, Cause, and Cached where the engine said so
	Released                  // the engine has confirmed that a hold's capacity is free: Hold
	Observe                   // a sample of an engine: Engine, Gauge
	Apply                     // a new table
	Tick                      // nothing but the time
	Renew                     // the lease of the table goes on, or ends: Until
	Told                      // what other cores do on the shared engines: Elsewhere
)

// Undeclared is the Out of an Offer without an output limit.
const Undeclared = -1

// FlagWhole, of an Offer: once something of the answer is there, the request can
// be neither resumed nor started again unseen. Of a Progress: so it is now, as it
// turned out.
const FlagWhole = 1

// FlagCounted, of a Scheduled: Cached is what the engine found in its cache, if that is
// nothing, too.
const FlagCounted = 1

// FlagBegun, of an Offer: it was begun before, in an earlier call, so that much of its
// prompt may be cached.
const FlagBegun = 1 << 1

// FlagUnsplit, of an Offer and of the Ended of a piece that failed: the beginning
// of the prompt can't be computed by itself. The request starts whole, or not yet.
const FlagUnsplit = 1 << 4

// Flags of an Ended event.
const (
	// FlagReleased: the capacity is free already; no Released event follows.
	FlagReleased = 1 << iota
	// FlagDelivered: something of the answer has reached the client, so the
	// request can't be started again unseen.
	FlagDelivered
	// FlagUntouched: the engine surely did nothing for this attempt (the
	// connection was refused).
	FlagUntouched
	// FlagKept: what was produced is kept, and the request goes on from there
	// when it runs again.
	FlagKept
)

// FlagElsewhere, of an Ended: the engine failed the attempt in a way that says more
// about the engine than about the request, and nothing of the answer is lost. Another
// engine may do it. With FlagUntouched it is not the engine's fault: it has not what
// the request takes.
const FlagElsewhere = 1 << 5

// FlagBusy, of an Ended with FlagElsewhere: the engine had no room, or is not ready yet,
// so that it may do later what it has not done now.
const FlagBusy = 1 << 6

// Event is what the driver reports. It is flat, so that a ring of recent events
// is a flight recorder that can be replayed.
type Event struct {
	Kind   Kind
	Flags  uint8
	Cause  Cause
	Class  Class
	Engine Engine
	Tenant Tenant
	Prompt int32 // tokens
	Cached int32 // tokens of the prompt that need no prefill
	Out    int32 // tokens: the declared limit of an Offer, what this attempt has produced otherwise
	N      int32 // sequences of an Offer
	// Session is the driver's number for the session of an Offer, whose requests
	// share a growing prefix; 0 is none.
	Session uint32
	// Barred are the engines that can't run a request, of an Offer or a Bar, whatever
	// room they have, a bit each by index: they have not got its model.
	Barred uint64
	// First and Token are limits that an Offer has of its own, on the time to its first
	// token and on that per output token; 0 is its class's. See own.go.
	First, Token time.Duration
	// Retry, of an Ended with FlagElsewhere, is for how long the engine wants to be
	// left alone; 0: it did not say.
	Retry Time
	// Until, of a Renew, is when the lease ends now. It has no effect on a table
	// without a lease, nor on a lease that is over: an expired grant never comes back.
	Until     Time
	ID        ID
	Hold      Hold
	Gauge     Gauge
	Table     *Table     // read during Step, never kept
	Elsewhere *Elsewhere // the same
}

// Op says what an Effect wants done or tells.
type Op uint8

const (
	Queued  Op = 1 + iota // the request waits: ID; again after an attempt that may be repeated
	Admit                 // dispatch the request: ID, Hold, Engine, Loan, Tokens reserved, Limit of output
	Warm                  // have the first Tokens of the prompt computed, and one token made: ID, Hold, Engine
	Reclaim               // end this hold's attempt at the engine and report Ended: ID, Hold, For
	Reject                // refuse the request, it is forgotten: ID, Cause, Retry, Tokens wanted, Limit allowed
	Done                  // the request is over, it is forgotten: ID, Hold, Cause
	Stage                 // a recall or a class's lending changed state: Class, Cause, For, Seq
	Drained               // a draining core holds nothing any more
	Demand                // who hands out the shares should ask for Demands within Retry; at most one in a step
)

// Effect is what a step wants done. Effects are to be carried out in order.
type Effect struct {
	Op     Op
	Cause  Cause
	Class  Class
	Engine Engine
	Loan   bool
	Tenant Tenant
	Tokens int64 // tokens: KV reserved by an Admit, the prompt's part of a Warm, KV wanted by a Reject
	Limit  int64 // tokens: the clamped output limit of an Admit, the allowed of a Reject
	ID     ID
	Hold   Hold
	For    ID     // the request that a Reclaim or a recall's Stage is for
	Retry  Time   // a Reject's hint, from now, 0 is no hint; for how long a Demand may wait
	Rev    uint64 // the table's revision
	Seq    uint64 // orders all effects of a core; a recall's number for a Stage
}

// Cause says why.
type Cause uint8

const (
	CauseNone Cause = iota

	// Reject
	CauseContext     // prompt and one token exceed every engine's context
	CauseTooLarge    // exceeds what the pool or the class could ever hold
	CauseTooMany     // more sequences than the pool or the class could ever run at once
	CauseQueueFull   // the class's queue is full
	CauseTenantFull  // the tenant's share of the class's queue is full
	CauseQueueWait   // waited as long as the class allows
	CauseForecast    // would wait for longer than the class allows
	CauseUnavailable // no engine is up
	CauseDraining    // shutting down, or the class is being removed

	// Ended and Done
	CauseFinished    // the engine finished it
	CauseFailed      // the engine failed it
	CauseClientGone  // the client left
	CauseTimeout     // the gateway gave up on it
	CauseReclaimed   // the core asked for its end
	CauseUnreachable // the engine could not be reached

	// Stage
	CauseRecallOpened
	CauseRecallGranted
	CauseRecallSettled // what was ended for it is out; where nothing was, all that was lent
	CauseRecallClosed  // all is out that was lent when it opened
	CauseRecallServed  // the request it was opened for was admitted
	CauseLendingClosed
	CauseLendingOpened
	CauseGhost   // a hold's end was never confirmed and its time is over
	CauseDemoted // an engine does not end what it is asked to: nothing is reclaimed from it any more
	CauseAside   // an engine fails what it is given, or asked to be left alone: others get its work for a time
	CauseBack    // that time is over

	NumCauses = iota
)

var causeNames = [...]string{
	"none",
	"context", "too_large", "too_many", "queue_full", "tenant_queue_full", "queue_wait", "forecast", "unavailable", "draining",
	"finished", "failed", "client_gone", "timeout", "reclaimed", "unreachable",
	"recall_opened", "recall_granted", "recall_settled", "recall_closed", "recall_served", "lending_closed", "lending_opened", "ghost", "demoted", "set_aside", "back",
}

func (c Cause) String() string { return causeNames[c] }

// State is what an engine can do. A full engine is Ready.
type State uint8

const (
	Ready   State = iota
	Loading       // answers, not yet with work
	Down          // does not answer
)

func (s State) String() string { return [...]string{"ready", "loading", "down"}[s] }

// Gauge is one sample of an engine. Counts that the engine does not report are
// -1.
type Gauge struct {
	State State
	// Asked is when the sample was asked for; it came back at the step's time.
	Asked   Time
	Running int32 // sequences in the batch and waiting inside the engine
	KV      int64 // tokens in use
	// Progress is the engine's count of tokens processed: it never falls but at
	// a restart.
	Progress    int64
	Preemptions int64
}
