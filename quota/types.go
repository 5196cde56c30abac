package quota

import (
	"fmt"
	"math/bits"
	"time"
)

// Time is a moment by the caller's clock, in ns.
type Time int64

// ID names a reservation: its generation << 32 | its place. 0 is none.
type ID uint64

// Kind is one of a tenant's limits.
type Kind uint8

// The limits, in the order in which they are asked.
const (
	Requests Kind = iota // requests in a window
	Tokens               // weighted tokens in a window
	Balance              // weighted tokens that are prepaid
	kinds
)

func (k Kind) String() string { return [...]string{"requests", "tokens", "balance"}[k] }

// Rate is a limit of N units in a Window, of which Burst may come at once. N of 0 is
// no limit.
type Rate struct {
	N, Burst int64
	Window   time.Duration
	DryRun   bool
}

// Rules are what one tenant may use.
type Rules struct {
	Requests, Tokens Rate
	// Input and Output are what one token of the prompt and one of the output count.
	Input, Output int64
	// Prepaid: the tenant has a balance, and nothing without one.
	Prepaid, PrepaidDryRun bool
}

// weigh is what tokens count.
func (r *Rules) weigh(prompt, output int64) int64 { return prompt*r.Input + output*r.Output }

func (r *Rules) rate(k Kind) *Rate {
	if k == Requests {
		return &r.Requests
	}
	return &r.Tokens
}

// Named are a tenant's rules.
type Named struct {
	Tenant string
	Rules
}

// Table is all rules.
type Table struct {
	Tenants []Named // no name twice
	Others  Rules   // of each tenant that has none of its own
	// Together is what all of those may use together: tenants that come and go can be as
	// many as they like.
	Together Rules
}

// Bounds of a table's numbers, so that all sums stay within 64 bits.
const (
	MaxUnits  = 1_000_000_000_000 // in a window, or of a burst
	MinWindow = time.Second
	MaxWindow = 31 * 24 * time.Hour
	MaxWeight = 1000
	// maxTokens is the largest count that is taken of one request.
	maxTokens = 1 << 40
)

// Validate tells bad of each value that is not allowed.
func (t *Table) Validate(bad func(path string, value any, allowed string)) {
	seen := map[string]bool{}
	for i := range t.Tenants {
		at := fmt.Sprintf("tenants[%d].", i)
		if n := t.Tenants[i].Tenant; n == "" || seen[n] {
			bad(at+"name", n, "the name of a tenant, once")
		}
		seen[t.Tenants[i].Tenant] = true
		t.Tenants[i].validate(func(path string, value any, allowed string) { bad(at+path, value, allowed) })
	}
	t.Others.validate(func(path string, value any, allowed string) { bad("other_tenants."+path, value, allowed) })
	t.Together.validate(func(path string, value any, allowed string) { bad("others_together."+path, value, allowed) })
}

func (r *Rules) validate(bad func(path string, value any, allowed string)) {
	for k := Requests; k <= Tokens; k++ {
		rate, at := r.rate(k), k.String()+"."
		if rate.N == 0 {
			continue
		}
		if rate.N < 0 || rate.N > MaxUnits {
			bad(at+"limit", rate.N, fmt.Sprintf("1 to %d", int64(MaxUnits)))
		}
		if rate.Window < MinWindow || rate.Window > MaxWindow {
			bad(at+"window", rate.Window, "1s to 744h")
		} else if rate.N > int64(rate.Window) {
			bad(at+"window", rate.Window, fmt.Sprintf("a ns at least for each of the limit of %d", rate.N))
		}
		if rate.Burst < 1 || rate.Burst > MaxUnits {
			bad(at+"burst", rate.Burst, fmt.Sprintf("1 to %d", int64(MaxUnits)))
		}
	}
	for _, w := range []struct {
		path  string
		value int64
	}{{"input_weight", r.Input}, {"output_weight", r.Output}} {
		if w.value < 0 || w.value > MaxWeight {
			bad(w.path, w.value, fmt.Sprintf("0 to %d", MaxWeight))
		}
	}
}

// farthest bounds spans, so that the sum of two is within 64 bits.
const farthest = int64(1) << 61

// wait is a span as it is told.
func wait(span int64) time.Duration { return time.Duration(span) }

// span is the time that units take to drain, in ns, rounded up.
func (r *Rate) span(units int64) int64 {
	if units <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(units), uint64(r.Window))
	if hi >= uint64(r.N) {
		return farthest
	}
	q, rem := bits.Div64(hi, lo, uint64(r.N))
	if rem > 0 {
		q++
	}
	return int64(min(q, uint64(farthest)))
}

// units is what drains in a time, in whole units.
func (r *Rate) units(span int64) int64 {
	if span <= 0 {
		return 0
	}
	return int64(min(mulDiv(uint64(span), uint64(r.N), uint64(r.Window)), 1<<60))
}

// used is what takes that long to drain: what is left of a unit is one.
func (r *Rate) used(span int64) int64 {
	n := r.units(span)
	if r.span(n) < span {
		n++
	}
	return n
}

// part is a share of a rate: so many parts of a million, 1 at least, of what comes in a
// window, and of what comes at once: one unit at least, since who may have less than one
// has none.
func (r Rate) part(ppm int64) Rate {
	if r.N == 0 || ppm >= million {
		return r
	}
	// The window grows instead of N falling, so that nothing is lost by rounding.
	r.Window = time.Duration(min(mulDiv(uint64(r.Window), million, uint64(ppm)), uint64(farthest)))
	r.Burst = max(int64(mulDiv(uint64(r.Burst), uint64(ppm), million)), 1)
	return r
}

const million = 1_000_000

// mulDiv is a x b / c, farthest where that is beyond 64 bits.
func mulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return uint64(farthest)
	}
	q, _ := bits.Div64(hi, lo, c)
	return q
}

// Ask is what a request is expected to cost, in tokens.
type Ask struct {
	Prompt, Output int64
	// Dry: nothing may be refused; what would have been is counted as in dry run.
	Dry bool
}

// Use is what a request has come to.
type Use struct {
	// Began: the engine was given the request and did not refuse it, so that it counts.
	Began          bool
	Prompt, Output int64 // tokens
	// Kept is how much of the output an earlier request has made, and was charged for: no
	// rate is charged with it again.
	Kept int64
	// Free: nothing of it is taken from the balance.
	Free bool
}

// Answer is what a reservation was told.
type Answer struct {
	ID ID // 0: it was refused, or its tenant has no limits
	// Refused tells whether it was, and By which limit; of several the one that lasts
	// longest.
	Refused bool
	By      Kind
	// Together: it was the limit of all tenants that have none of their own.
	Together bool
	// Never: it needs more than the limit's burst, and never comes in.
	Never bool
	// Want is what it needs of that limit, and Left what there was. Rate is the limit, where it
	// is one.
	Want, Left int64
	Rate       Rate
	// Retry is when it would come in, if nothing else came and nothing settled; 0: that is
	// not known, since it waits for what is held, or for a refill.
	Retry time.Duration
	// Dry has a bit 1 << Kind for each limit in dry run that would have refused it.
	Dry uint8
	// Told are the limits as they are now, with the reservation.
	Told Told
}

// Told is a tenant's limits at a moment.
type Told struct {
	Requests, Tokens State
	Balance          BalanceState
}

// State is a rate at a moment.
type State struct {
	Limit int64 // in a window; 0: there is none
	// Left may come at once, Held is reserved and not used yet, Used has not drained.
	Left, Held, Used int64
	// Reset is when all of what was used has drained.
	Reset  time.Duration
	Window time.Duration
	Burst  int64
	DryRun bool
}

// BalanceState is a balance at a moment.
type BalanceState struct {
	Prepaid    bool
	Left, Held int64 // Left is what is not held either; it may be below 0
	DryRun     bool
}
