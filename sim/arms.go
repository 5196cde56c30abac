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

// ArmsFor are those of them that an engine can be run with.
func ArmsFor(e simengine.Config) []string {
	var names []string
	for i := range arms {
		if e.Scheduler == simengine.VLLM || !arms[i].ordered {
			names = append(names, arms[i].name)
		}
	}
	return names
}

// Headgate is the arm whose policy a plan can replace.
const Headgate = "headgate"

var arms = []struct {
	name    string
	ordered bool // it is about the engine's priorities
	make    func(*Arm)
}{
	// Straight to the engine.
	{"fcfs", false, func(a *Arm) { a.Engine.Policy = simengine.FCFS }},
	{"priority", true, func(*Arm) {}},
	{"priority-chunked", true, func(a *Arm) { a.Engine.LongPrefillThreshold = 256 }},
	// Three of four slots and one, never lent; refused, or queued, beyond.
	{"static", false, func(a *Arm) { a.Table = partition(a.Engine, 0) }},
	{"static-queued", false, func(a *Arm) { a.Table = partition(a.Engine, queued) }},
	// Two of interactive's three may be lent; attrition; refused beyond.
	{"lending", false, func(a *Arm) { a.Table = lending(a.Engine, 0) }},
	// The same with a queue.
	{"lending-queued", false, func(a *Arm) { a.Table = lending(a.Engine, queued) }},
	// What Headgate does unless it is told otherwise.
	{Headgate, false, func(a *Arm) { a.Table = standard(a.Engine) }},
}

const queued = 1 << 20

// Share is a floor of slots and the unlent part of it.
type Share struct{ Floor, Unlent int64 }

// Of builds a share.
func Of(floor, unlent int64) Share { return Share{floor, unlent} }

// NewArm returns a named arm on an engine. An engine that can orders by priority,
// interactive before batch, unless the arm says otherwise.
func NewArm(name string, engine simengine.Config) (*Arm, error) {
	for i := range arms {
		if arms[i].name != name {
			continue
		}
		if engine.Scheduler == simengine.VLLM {
			engine.Policy = simengine.Priority
		} else if arms[i].ordered {
			return nil, fmt.Errorf("arm %q is about priorities, and %s has none: allowed are %s", name, engine.Scheduler, strings.Join(ArmsFor(engine), ", "))
		}
		a := &Arm{Name: name, Engine: engine, Priority: map[string]int{trace.Interactive: 0, trace.Batch: 10}}
		arms[i].make(a)
		return a, nil
	}
	return nil, fmt.Errorf("arm %q is not known: allowed are %s", name, strings.Join(ArmNames(), ", "))
}

// lacks is the error about a request whose class the arm does not have.
func (a *Arm) lacks(e *trace.Entry) error {
	var names []string
	for k := range a.Table.Classes {
		names = append(names, a.Table.Classes[k].Name)
	}
	return fmt.Errorf("request %s is of class %q, which arm %s does not have: its classes are %s", e.ID, e.Class, a.Name, strings.Join(names, ", "))
}

// parts are the slots of the published arms: of four, three are interactive's and
// one is batch's.
func parts(e simengine.Config) (interactive, batch int64) {
	slots := int64(e.MaxNumSeqs)
	batch = max(slots/4, 1)
	return max(slots-batch, 1), batch
}

func partition(e simengine.Config, depth int) *admission.Table {
	interactive, batch := parts(e)
	return published(e, Of(interactive, interactive), Of(batch, batch), depth)
}

func lending(e simengine.Config, depth int) *admission.Table {
	interactive, batch := parts(e)
	return published(e, Of(interactive, min(interactive, batch)), Of(batch, 0), depth)
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

// EngineSpec is an engine as a policy that knows all of it sees it.
func EngineSpec(e simengine.Config) admission.EngineSpec {
	vllm := e.Scheduler == simengine.VLLM
	kv := int64(e.NumBlocks-1) * int64(e.BlockSize)
	return admission.EngineSpec{
		Name: "engine", Slots: int64(e.MaxNumSeqs), KV: kv, Block: int64(e.BlockSize), MaxContext: int64(e.MaxModelLen),
		Ordered: vllm, Together: vllm, Caches: e.PrefixCaching, Splits: e.PrefixCaching,
		// llama-server's slots can want more than there is, unless each has its own part.
		Fatal: !vllm && int64(e.MaxNumSeqs)*int64(e.MaxModelLen) > kv,
	}
}

// standard is the default policy, for the engine's own slots and KV: a floor of
// all slots but one, and as much of KV as leaves batch its largest request, that
// is lent whole and reclaimed; a floor of one slot for batch that is owed a
// minute's service over every minute.
func standard(e simengine.Config) *admission.Table {
	engine := EngineSpec(e)
	slots, kv := engine.Slots, engine.KV
	envelope := admission.Of(slots, kv)
	return &admission.Table{
		StallShare: 0.5,
		Engines:    []admission.EngineSpec{engine},
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
	MakespanS   float64          `json:"makespan_s"`        // the longest, where summed
	Refused     map[string]int   `json:"refused,omitempty"` // requests, by the cause
	Failed      int              `json:"failed,omitempty"`  // requests, by the engine
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
		count(&s.Failed, r.Outcome == Failed)
		if r.Outcome == Rejected {
			s.refuse(r.Cause, 1)
		}
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

func (s *Score) refuse(cause string, n int) {
	if s.Refused == nil {
		s.Refused = map[string]int{}
	}
	s.Refused[cause] += n
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
		t.Failed += s.Failed
		for cause, n := range s.Refused {
			t.refuse(cause, n)
		}
		t.Preemptions += s.Preemptions
		t.Recomputed += s.Recomputed
		t.Recalls = slices.Concat(t.Recalls, s.Recalls)
	}
	return t
}
