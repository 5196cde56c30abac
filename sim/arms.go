package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// unbound is a KV pool that never binds: the published admission controller
// counted slots, and its token budget was never reached.
const unbound = 1 << 30

// ArmNames are the arms there are, in the order in which they are shown.
func ArmNames() []string {
	names := make([]string, len(arms))
	for i := range arms {
		names[i] = arms[i].name
	}
	return names
}

var arms = []struct {
	name string
	make func(*Arm)
}{
	// Straight to the engine.
	{"fcfs", func(a *Arm) { a.Engine.Policy = simengine.FCFS }},
	{"priority", func(*Arm) {}},
	{"priority-chunked", func(a *Arm) { a.Engine.LongPrefillThreshold = 256 }},
	// Three slots and one, never lent; refused, or queued, beyond.
	{"static", func(a *Arm) { a.Table = published(a.Engine, Of(3, 3), Of(1, 1), 0) }},
	{"static-queued", func(a *Arm) { a.Table = published(a.Engine, Of(3, 3), Of(1, 1), queued) }},
	// Two of interactive's three may be lent; attrition; refused beyond.
	{"lending", func(a *Arm) { a.Table = published(a.Engine, Of(3, 1), Of(1, 0), 0) }},
	// The same with a queue.
	{"lending-queued", func(a *Arm) { a.Table = published(a.Engine, Of(3, 1), Of(1, 0), queued) }},
	// What Headgate does unless it is told otherwise.
	{"headgate", func(a *Arm) { a.Table = standard(a.Engine) }},
}

const queued = 1 << 20

// Share is a floor of slots and the unlent part of it.
type Share struct{ Floor, Unlent int64 }

// Of builds a share.
func Of(floor, unlent int64) Share { return Share{floor, unlent} }

// NewArm returns a named arm on an engine. The engine orders by priority,
// interactive before batch, unless the arm says otherwise.
func NewArm(name string, engine simengine.Config) (*Arm, error) {
	for i := range arms {
		if arms[i].name != name {
			continue
		}
		engine.Policy = simengine.Priority
		a := &Arm{Name: name, Engine: engine, Priority: map[string]int{trace.Interactive: 0, trace.Batch: 10}}
		arms[i].make(a)
		return a, nil
	}
	return nil, fmt.Errorf("arm %q is not known: allowed are %s", name, strings.Join(ArmNames(), ", "))
}

// published is the admission controller of the published experiment: it counts
// slots, lends after two idle seconds, and ends nothing.
func published(e simengine.Config, interactive, batch Share, depth int) *admission.Table {
	slots := int64(e.MaxNumSeqs)
	envelope := admission.Of(slots, unbound)
	class := func(name string, s Share) admission.ClassSpec {
		kv := int64(unbound) / slots
		c := admission.ClassSpec{
			Name: name, Floor: admission.Of(s.Floor, s.Floor*kv), Unlent: admission.Of(s.Unlent, s.Unlent*kv), Ceiling: envelope,
			IdleAfter: 2 * time.Second, Depth: depth, DefaultOut: 256,
		}
		if s.Floor == s.Unlent {
			c.Ceiling = c.Floor // what is never lent is never borrowed against either
		}
		return c
	}
	return &admission.Table{
		Engines: []admission.EngineSpec{{Name: "engine", Slots: slots, KV: unbound, Block: int64(e.BlockSize), MaxContext: int64(e.MaxModelLen)}},
		Classes: []admission.ClassSpec{class(trace.Interactive, interactive), class(trace.Batch, batch)},
	}
}

// standard is the default policy, for the engine's own slots and KV: a floor of
// all slots but one, and as much of KV as leaves batch its largest request, that
// is lent whole and reclaimed; a floor of one slot for batch that is owed a
// minute's service over every minute.
func standard(e simengine.Config) *admission.Table {
	slots, block := int64(e.MaxNumSeqs), int64(e.BlockSize)
	kv := int64(e.NumBlocks-1) * block
	envelope := admission.Of(slots, kv)
	return &admission.Table{
		StallShare: 0.5,
		Engines: []admission.EngineSpec{{
			Name: "engine", Slots: slots, KV: kv, Block: block, MaxContext: int64(e.MaxModelLen), Ordered: true, Together: true, Caches: e.PrefixCaching,
		}},
		Classes: []admission.ClassSpec{
			{
				Name: trace.Interactive, Floor: admission.Of(slots, kv/4), Ceiling: envelope, IdleAfter: 2 * time.Second, Depth: queued, DefaultOut: 256,
				Reopen: admission.ReopenSettled, Objective: admission.Objective{First: onTimeFirst, Whole: onTimeDone},
			},
			{
				Name: trace.Batch, Floor: admission.Of(1, kv/2), Ceiling: envelope, IdleAfter: 2 * time.Second, Depth: queued, DefaultOut: 256,
				Mode: admission.ReclaimNow, Window: time.Minute, PinAfter: 2,
			},
		},
	}
}

// Limits of "on time", as registered for the published experiment.
const (
	onTimeFirst = 5 * time.Second
	onTimeDone  = 30 * time.Second
)

// OnTime tells whether a request met the published objective. A refusal does
// not.
func (r *Record) OnTime() bool {
	return r.Outcome == Completed && r.First-r.Arrival <= onTimeFirst && r.Done-r.Arrival <= onTimeDone
}

// Score is what an arm achieved, summed over runs.
type Score struct {
	Interactive InteractiveScore `json:"interactive"`
	Batch       BatchScore       `json:"batch"`
	MakespanS   float64          `json:"makespan_s"` // the longest, where summed
	Reclaims    int              `json:"reclaims"`
	Preemptions int64            `json:"preemptions"`
	Recomputed  int64            `json:"recomputed_tokens"`
	Recalls     []RecallScore    `json:"recalls"`
}

// InteractiveScore counts interactive requests.
type InteractiveScore struct {
	Offered       int `json:"offered"`
	Completed     int `json:"completed"`
	ReturnOffered int `json:"return_offered"`
	ReturnOnTime  int `json:"return_on_time"`
	OnTime        int `json:"on_time"`
}

// BatchScore counts batch requests.
type BatchScore struct {
	Offered               int `json:"offered"`
	Completed             int `json:"completed"`
	TokensInWindow        int `json:"tokens_in_window"` // prompt and output of those that were done before the trace's end
	BorrowCohortOffered   int `json:"borrow_cohort_offered"`
	BorrowCohortCompleted int `json:"borrow_cohort_completed"`
}

// RecallScore is one recall; null is what never came.
type RecallScore struct {
	GrantedS   *float64 `json:"granted_s"`
	SettledS   *float64 `json:"settled_s"`
	ScheduledS *float64 `json:"scheduled_s"`
}

// NewScore counts one run of a trace.
func NewScore(t *trace.Trace, run *Run) Score {
	borrow, back, end := t.Workload.Borrow(), t.Workload.Return(), t.Workload.Duration()
	s := Score{MakespanS: run.Makespan.Seconds(), Preemptions: run.Preemptions, Recomputed: run.Recomputed, Recalls: []RecallScore{}}
	count := func(n *int, when bool) {
		if when {
			*n++
		}
	}
	for i := range run.Records {
		r := &run.Records[i]
		s.Reclaims += r.Reclaims
		done := r.Outcome == Completed
		if r.Class == trace.Interactive {
			n := &s.Interactive
			n.Offered++
			count(&n.Completed, done)
			count(&n.OnTime, r.OnTime())
			count(&n.ReturnOffered, back.Contains(r.Arrival))
			count(&n.ReturnOnTime, back.Contains(r.Arrival) && r.OnTime())
			continue
		}
		n := &s.Batch
		n.Offered++
		count(&n.Completed, done)
		count(&n.BorrowCohortOffered, borrow.Contains(r.Arrival))
		count(&n.BorrowCohortCompleted, done && borrow.Contains(r.Arrival))
		if done && r.Done <= end {
			n.TokensInWindow += r.PromptTokens + r.Tokens
		}
	}
	for _, c := range run.Recalls {
		s.Recalls = append(s.Recalls, RecallScore{seconds(c.Granted), seconds(c.Settled), seconds(c.Scheduled)})
	}
	return s
}

func seconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

// Sum adds up the scores of several runs.
func Sum(scores []Score) Score {
	t := Score{Recalls: []RecallScore{}}
	for i := range scores {
		s := &scores[i]
		a, b := &t.Interactive, &s.Interactive
		*a = InteractiveScore{a.Offered + b.Offered, a.Completed + b.Completed, a.ReturnOffered + b.ReturnOffered, a.ReturnOnTime + b.ReturnOnTime, a.OnTime + b.OnTime}
		c, d := &t.Batch, &s.Batch
		*c = BatchScore{
			c.Offered + d.Offered, c.Completed + d.Completed, c.TokensInWindow + d.TokensInWindow,
			c.BorrowCohortOffered + d.BorrowCohortOffered, c.BorrowCohortCompleted + d.BorrowCohortCompleted,
		}
		t.MakespanS = max(t.MakespanS, s.MakespanS)
		t.Reclaims += s.Reclaims
		t.Preemptions += s.Preemptions
		t.Recomputed += s.Recomputed
		t.Recalls = slices.Concat(t.Recalls, s.Recalls)
	}
	return t
}
