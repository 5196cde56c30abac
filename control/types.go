package control

import (
	"time"

	"headgate/admission"
)

// Time is a moment by its owner's own monotonic clock, in ns. No two parts ever
// compare theirs.
type Time = admission.Time

// Amount is slots and KV tokens.
type Amount = admission.Amount

// Pool is what is shared, as it is configured.
type Pool struct {
	Name    string
	Engines []Engine
	Classes []Class // by rank
	// Survival is what each replica keeps on each engine when its lease is over.
	// It is withheld from all others for as long as the replica is known.
	Survival Amount
	// Replicas is the most there will be; a guarantee is split between those there
	// are, and must be of use between so many.
	Replicas int
	// Unit is one request's need: a share of less is of no use.
	Unit Amount
	// Fingerprint is of the configuration that all of this is from; "": nobody compares it.
	Fingerprint string
}

// Engine is one engine of a pool. Total may be zero where only the replicas know,
// who have asked it. Where one of them says less, that counts.
type Engine struct {
	Name  string
	Total Amount
}

// Class is one class, over all replicas.
type Class struct {
	Name    string
	Floor   Amount
	Unlent  Amount
	Ceiling Amount // zero, or at least the envelope: no ceiling
	// Windowed: the floor is owed over a window, so that it is kept only while a
	// replica says that it is due.
	Windowed bool
}

// ID names one life of a replica. A name is used by one process at a time; Boot
// tells its lives apart.
type ID struct {
	Replica string `json:"replica"`
	Boot    string `json:"boot"`
}

// Member is a replica that has a lease.
type Member struct {
	ID
	Lease int64 `json:"lease"`
	// Address is where other replicas reach it, "" if they may not.
	Address string `json:"address,omitempty"`
	// Uses is what its tenants ask for of their limits, as EncodeUses has it. It is nothing
	// to grants.
	Uses string `json:"uses,omitempty"`
}

// Grant is what one replica may use of a pool.
type Grant struct {
	Pool string `json:"pool"`
	ID
	// Lease that the grant is valid under. A grant outlives none.
	Lease int64 `json:"lease"`
	// Epoch is the leader's, Rev the grant's number in the pool. One of a later epoch, or
	// of the same and a later revision, replaces an earlier.
	Epoch uint64 `json:"epoch"`
	Rev   uint64 `json:"revision"`
	// Accounts are the engines and limited classes, in the pool's order.
	Accounts []Account    `json:"accounts"`
	Classes  []ClassGrant `json:"classes"`
	// Recall: what is above the grant is wanted by protected demand, so that classes
	// that reclaim give it back by force. Else it is given back as it ends.
	Recall bool `json:"recall,omitempty"`
	// Echo: a report with a sample of each engine that was asked for after this grant
	// was taken is wanted, since it shows what somebody who is gone has left there.
	Echo bool `json:"echo,omitempty"`
	// Residual is for how long what the replica has stays reserved for it from the end of its
	// lease. It ends by then what still runs.
	Residual time.Duration `json:"residual_ns"`
	// Fingerprint is of the leader's configuration of the pool.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Handoff is the number of the handoff that it is a part of, 0 of none; For is the
	// class that wants it.
	Handoff uint64 `json:"handoff,omitempty"`
	For     string `json:"for,omitempty"`
}

// Account is an engine or a class with a ceiling, and what a replica may have of it.
type Account struct {
	Engine string `json:"engine,omitempty"`
	Class  string `json:"class,omitempty"`
	Amount Amount `json:"amount"`
	// Bound is the most that the replica can have of it until it acknowledges this
	// revision.
	Bound Amount `json:"bound"`
	// Survival is what it may have when its lease is over.
	Survival Amount `json:"survival"`
}

// ClassGrant is a replica's part of a class's floor. It is what its core protects;
// it is not a bound.
type ClassGrant struct {
	Class  string `json:"class"`
	Floor  Amount `json:"floor"`
	Unlent Amount `json:"unlent"`
}

// Report is what a replica says about a pool: how much it has, what it wants, and
// with it the acknowledgement of the grant that it has in force.
type Report struct {
	Pool string `json:"pool"`
	ID
	Lease int64 `json:"lease"`
	// Seq numbers the reports of one life; a later one replaces an earlier.
	Seq uint64 `json:"seq"`
	// Epoch and Rev are of the grant that was in force when the rest was read; 0: none.
	Epoch uint64 `json:"epoch"`
	Rev   uint64 `json:"revision"`
	// GrantAge is for how long that grant has been in force.
	GrantAge time.Duration `json:"grant_age_ns"`
	// News is the number of those that the core was told last, 0 of none.
	News uint64 `json:"news,omitempty"`
	// Leaving: it gives its lease back after this report.
	Leaving bool `json:"leaving,omitempty"`
	// Fingerprint is of its configuration of the pool, see Pool.
	Fingerprint string `json:"fingerprint,omitempty"`
	// At is when it was made, by the replica's own clock, and Heard the last news that had
	// come by then. Whoever reads both of others can tell the order of some moments without
	// another clock.
	At      Time           `json:"at_ns,omitempty"`
	Heard   Heard          `json:"heard"`
	Engines []EngineReport `json:"engines"`
	Classes []ClassReport  `json:"classes"`
	// Residual is for how long what it has admitted may go on when its lease is over: it
	// asks for that to be reserved. Until a grant says so, what grants have said counts.
	Residual time.Duration `json:"residual_ns"`
}

// EngineReport is one engine as a replica sees it.
type EngineReport struct {
	Engine string `json:"engine"`
	Total  Amount `json:"total"` // as the engine says; zero: not known
	Used   Amount `json:"used"`
	// High is the most that it had in the last seconds.
	High Amount `json:"high"`
	// Ends are what is predicted to end by itself next.
	Ends  []End           `json:"ends,omitempty"`
	Speed admission.Speed `json:"speed"` // as it has learned it
	Down  bool            `json:"down,omitempty"`
	// Gauge is what the engine says that it runs, of everybody, and Others the most of
	// its sequences that this replica did not send; -1 is not told. It was asked for GaugeAge ago.
	// GaugeSeq numbers the samples; 0 is none.
	Gauge    Amount        `json:"gauge"`
	Others   Amount        `json:"others"`
	GaugeAge time.Duration `json:"gauge_age_ns,omitempty"`
	GaugeSeq uint64        `json:"gauge_seq,omitempty"`
	Presence Presence      `json:"presence"`
}

// Presence is what a replica surely has at an engine (engine.Attendance). The engine
// shows only how much there is of all, so that the others need it to tell whether what
// they have ended is gone.
type Presence struct {
	// Begun attempts have had a token since Since, by the replica's own clock. Ended are
	// those of them that may have been over Age before the report.
	Begun uint64        `json:"begun,omitempty"`
	Ended uint64        `json:"ended,omitempty"`
	Age   time.Duration `json:"age_ns,omitempty"`
	Since Time          `json:"since_ns,omitempty"`
	Place uint32        `json:"place,omitempty"` // a digest of where the replica finds the engine
	// Doubts: something that it has ended can't be told from what others have there.
	Doubts bool `json:"doubts,omitempty"`
}

// End is when something is predicted to end, and what it frees.
type End struct {
	In     time.Duration `json:"in_ns"`
	Amount Amount        `json:"amount"`
}

// ClassReport is one class at a replica.
type ClassReport struct {
	Class string `json:"class"`
	// Used is by engine, in the order of the report's engines.
	Used []Amount `json:"used"`
	// Hold is what the class keeps for itself of its floor, used or not.
	Hold Amount `json:"hold"`
	// Waiting requests, Head what the first of them needs. Short: it waits for
	// capacity that the replica has not got, and not for anything else. Waited is how
	// long the oldest has waited.
	Waiting int           `json:"waiting,omitempty"`
	Head    Amount        `json:"head"`
	Short   bool          `json:"short,omitempty"`
	Waited  time.Duration `json:"waited_ns,omitempty"`
	// Guarded: the first has room, and waits for the stall guard. It keeps it.
	Guarded bool `json:"guarded,omitempty"`
	// Age of the first of them. Late: it can't be in time any more. Patience is for how
	// long it can wait for what ends by itself.
	Age      time.Duration `json:"age_ns,omitempty"`
	Late     bool          `json:"late,omitempty"`
	Patience time.Duration `json:"patience_ns,omitempty"`
	// Since the replica started, so that a lost report loses nothing.
	Admitted uint64 `json:"admitted"`
	Rejected uint64 `json:"rejected"`
	Away     Away   `json:"away"`
}

// Away is what the other replicas' cores have to know of a class at one replica. Ages
// are of when it was said, negative where there is nothing.
type Away struct {
	Offered  uint64        `json:"offered"` // requests since the replica started
	Prompt   int32         `json:"prompt_tokens,omitempty"`
	Within   bool          `json:"within,omitempty"`   // its head is short within the floor
	Wants    bool          `json:"wants,omitempty"`    // its head waits for capacity
	InTime   bool          `json:"in_time,omitempty"`  // so, and it can be in time
	Recalled bool          `json:"recalled,omitempty"` // what was lent when its lending closed is out
	Pending  time.Duration `json:"pending_ns"`         // the oldest request without a first token
	Pressed  time.Duration `json:"pressed_ns"`         // since demand did not fit
	Starting time.Duration `json:"starting_ns"`        // the oldest that an engine has and that can be in time
	Starts   []Starts      `json:"starts,omitempty"`   // by engine
}

// Starts are requests that an engine has and that have no token yet, the tokens of
// their prompts, and the age of the first.
type Starts struct {
	N      int           `json:"n"`
	Tokens int64         `json:"tokens"`
	Age    time.Duration `json:"age_ns"`
}

// News is what all replicas are told of each other. It allows nothing; it is for
// what their cores can't see, see admission.Elsewhere.
type News struct {
	Pool    string       `json:"pool"`
	Epoch   uint64       `json:"epoch"`
	Seq     uint64       `json:"seq"`
	Engines []EngineNews `json:"engines"`
	Classes []ClassNews  `json:"classes"`
	Lives   []LifeNews   `json:"lives,omitempty"` // that have, or have had, something at an engine
}

// LifeNews is what a replica has last said of itself.
type LifeNews struct {
	ID
	At       Time       `json:"at_ns"`
	Heard    Heard      `json:"heard"`
	Presence []Presence `json:"presence"` // by engine
}

// EngineNews is what nobody uses of an engine.
type EngineNews struct {
	Engine  string          `json:"engine"`
	Idle    Amount          `json:"idle"`
	Foreign Amount          `json:"foreign"`        // what it runs that no replica sent
	Ends    []End           `json:"ends,omitempty"` // what is predicted to end by itself next
	Speed   admission.Speed `json:"speed"`
}

// ClassNews is a class at one replica that has had requests of it.
type ClassNews struct {
	ID
	Class     string   `json:"class"`
	Used      []Amount `json:"used,omitempty"` // by engine
	Waiting   int      `json:"waiting,omitempty"`
	Protected Amount   `json:"protected,omitzero"` // of the floor
	Away
}

// Kind of an Event.
type Kind uint8

const (
	// Load hands a new leader a grant that it finds in the store: Grant. All come
	// before the first Join.
	Load Kind = 1 + iota
	// Join: a replica has a lease: Member.
	Join
	// Gone: a lease is over: Member. A Join of the same life with another lease says
	// the same of the earlier one.
	Gone
	// Reported: Report.
	Reported
	// Configure replaces the Pool.
	Configure
	// Forget a replica that is gone, with what survives of it: Member's Replica.
	Forget
	// Tick: nothing but the time.
	Tick
)

// Event is what the shell tells the allocator.
type Event struct {
	Kind   Kind
	Member Member
	Grant  *Grant
	Report *Report
	Pool   *Pool
}

// Op of an Effect.
type Op uint8

const (
	// Write the grant, replacing the replica's earlier one. The allocator counts it as
	// written: the shell repeats it until it is, or the leader is none any more. Of
	// several for one replica the last is enough.
	Write Op = 1 + iota
	// Remove the grant and the report of a life that is over: ID.
	Remove
	// Note a stage of a handoff: Handoff.
	Note
	// Tell all replicas: News. Of several the last is enough.
	Tell
)

// Effect is what the allocator wants done.
type Effect struct {
	Op      Op
	Grant   *Grant
	ID      ID
	Handoff Handoff
	News    *News
}

// Stage of a handoff.
type Stage string

const (
	// Prepared: lower grants are written for those who give.
	Prepared Stage = "prepared"
	// Applied: the last of them has acknowledged.
	Applied Stage = "applied"
	// Drained: what they had above their new grants is out.
	Drained Stage = "drained"
	// Committed: the raise is written.
	Committed Stage = "committed"
	// Dropped: nobody wants it any more.
	Dropped Stage = "dropped"
)

// What else happens to a replica is noted like a stage of a handoff: To is whose it is.
const (
	// Joined: it has a lease. Left: it has given that back. Expired: that has run out.
	Joined  Stage = "joined"
	Left    Stage = "left"
	Expired Stage = "expired"
	// Forgotten: what survives of it is let go of, as an operator wants it.
	Forgotten Stage = "forgotten"
	// Differs: it has another configuration of the pool than the leader; Agrees: not any more.
	Differs Stage = "differs"
	Agrees  Stage = "agrees"
)

// OfHandoff tells whether a stage is one of a handoff.
func (s Stage) OfHandoff() bool {
	return s == Prepared || s == Applied || s == Drained || s == Committed || s == Dropped
}

// Handoff moves capacity from replicas that lend it, or hold it idle, to one that
// wants it.
type Handoff struct {
	Seq   uint64        `json:"handoff"`
	Pool  string        `json:"pool"`
	To    string        `json:"to"`
	Class string        `json:"class,omitempty"`
	From  []string      `json:"from"`
	Why   string        `json:"why,omitempty"`
	Want  Amount        `json:"want"`
	Stage Stage         `json:"stage"`
	At    Time          `json:"-"`        // of the stage
	Since time.Duration `json:"since_ns"` // from its opening
}
