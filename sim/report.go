package sim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"headgate/admission"
	"headgate/simengine"
	"headgate/trace"
)

// Plan is a comparison: arms, each on every trace.
type Plan struct {
	Traces []Source
	Arms   []string
	Engine simengine.Config // its Speed is the plan's
	// Policy takes the place of the headgate arm's own; nil leaves that.
	Policy *Policy
	// Fleet serves the arms that have a table; nil is one gateway.
	Fleet *Fleet
	// Workers are how many runs there are at once; 0: as many as there are processors.
	Workers int
	// Stop is each run's, as an Arm has it.
	Stop func() error
}

// Policy is a table for the plan's engine, and the priorities of its classes at
// the engine, lower first.
type Policy struct {
	Table    *admission.Table
	Priority map[string]int
}

// Source is one trace of a plan.
type Source struct {
	Profile string
	Seed    uint32
	// File is where the trace was read from; empty where it is drawn.
	File string
	// Trace is nil where it is drawn: each run draws it for itself, as many
	// seeds as a plan may have would not fit into memory at once.
	Trace *trace.Trace
}

// Drawn are the traces of profiles for seeds, a profile after the other.
func Drawn(profiles []string, seeds []uint32) []Source {
	var all []Source
	for _, p := range profiles {
		for _, seed := range seeds {
			all = append(all, Source{Profile: p, Seed: seed})
		}
	}
	return all
}

// FromFile is a trace that was read.
func FromFile(file string, t *trace.Trace) Source {
	return Source{Profile: t.Profile, Seed: t.Seed, File: file, Trace: t}
}

// String names the source in an error.
func (s *Source) String() string {
	if s.File != "" {
		return s.File
	}
	return fmt.Sprintf("profile %s, seed %d", s.Profile, s.Seed)
}

func (s *Source) load() (*trace.Trace, error) {
	if s.Trace != nil {
		return s.Trace, nil
	}
	return trace.Generate(s.Profile, s.Seed)
}

// Report is what came of a plan. Traces of several profiles are summed up in
// it all the same, so that it always has one form; each profile's own report is
// beside the sum, since what a sum over different workloads says depends on how
// many traces each has.
type Report struct {
	Profile  string      `json:"profile"` // several are joined by commas
	Speed    float64     `json:"speed"`
	Replicas int         `json:"replicas,omitempty"` // gateways of the arms with admission, where there are several
	Seeds    []uint32    `json:"seeds"`              // of the traces, in their order; 0 for a recorded log
	Skipped  int         `json:"skipped,omitempty"`
	LeftOut  int         `json:"left_out,omitempty"` // requests that the recorded service had failed
	Arms     []ArmReport `json:"arms"`
	Profiles []*Report   `json:"profiles,omitempty"` // in the order of their first traces; absent where there is one

	maxModelLen int
	files       bool
	fleet       *Fleet
}

// ArmReport is one arm's sum over all traces, and each trace's.
type ArmReport struct {
	Name string `json:"name"`
	Score
	PerSeed []SeedScore `json:"per_seed"`
}

// SeedScore is one run.
type SeedScore struct {
	Profile string `json:"profile"`
	Seed    uint32 `json:"seed"`
	File    string `json:"file,omitempty"`
	// Skipped counts the trace's requests whose prompts the engine's model does
	// not take. They are offered to no arm.
	Skipped int `json:"skipped,omitempty"`
	Score
}

// Skipped is the outcome of a request that no arm was offered, since its prompt
// leaves no room for output in the engine's max_model_len. A gateway refuses it
// before anything else, so it tells nothing about a policy.
const Skipped Outcome = "skipped"

// finished is one run of a plan.
type finished struct {
	trace *trace.Trace // whole
	run   *Run         // of what was not skipped
	score SeedScore
}

// Execute runs a plan. The report
// and every request's record, which goes to each if that is not nil, come in the
// order of the arms, the traces and the arrivals, whichever run ends first; so
// does the error, which is the first one in that order.
func Execute(p *Plan, each func(arm string, s *Source, t *trace.Trace, r *Record) error) (*Report, error) {
	for _, name := range p.Arms { // before anything runs
		if err := p.check(name); err != nil {
			return nil, err
		}
	}
	scores := make([][]SeedScore, len(p.Arms))
	leftOut := make([]int, len(p.Traces))
	n := len(p.Traces)
	err := inOrder(len(p.Arms)*n, cmp.Or(p.Workers, runtime.GOMAXPROCS(0)), func(i int) (*finished, error) {
		return p.run(p.Arms[i/n], &p.Traces[i%n])
	}, func(i int, f *finished) error {
		arm, s := i/n, &p.Traces[i%n]
		scores[arm] = append(scores[arm], f.score)
		leftOut[i%n] = f.trace.Skipped
		if each == nil {
			return nil
		}
		return f.each(p.Engine.MaxModelLen, func(r *Record) error { return each(p.Arms[arm], s, f.trace, r) })
	})
	if err != nil {
		return nil, err
	}
	return p.report(scores, leftOut), nil
}

// arm returns a named arm of the plan.
func (p *Plan) arm(name string) (*Arm, error) {
	a, err := NewArm(name, p.Engine)
	if err == nil && name == Headgate && p.Policy != nil {
		a.Table, a.Priority = p.Policy.Table, p.Policy.Priority
	}
	if err != nil {
		return nil, err
	}
	if a.Stop = p.Stop; a.Table != nil {
		a.Fleet = p.Fleet
	}
	return a, nil
}

// check reports an arm that is not known, that the plan's engine is too small
// for, or that has no class for some request.
func (p *Plan) check(name string) error {
	arm, err := p.arm(name)
	if err != nil || arm.Table == nil {
		return err
	}
	for i := range p.Traces {
		s := &p.Traces[i]
		entries := []trace.Entry{{ID: "interactive-1", Class: trace.Interactive}, {ID: "batch-1", Class: trace.Batch}} // of one that is drawn
		if s.Trace != nil {
			entries = s.Trace.Entries
		}
		for k := range entries {
			if !slices.ContainsFunc(arm.Table.Classes, func(c admission.ClassSpec) bool { return c.Name == entries[k].Class }) {
				return fmt.Errorf("%s: %w", s, arm.lacks(&entries[k]))
			}
		}
	}
	var all []error
	arm.Table.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Errorf("arm %s on an engine of %d slots: %s is %v: allowed is %s", name, p.Engine.MaxNumSeqs, path, value, allowed))
	})
	return errors.Join(all...)
}

func (p *Plan) run(name string, s *Source) (*finished, error) {
	arm, err := p.arm(name)
	if err != nil {
		return nil, err
	}
	t, err := s.load()
	if err != nil {
		return nil, err
	}
	offered := offer(t, p.Engine.MaxModelLen)
	run, err := Simulate(offered, arm)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	return &finished{t, run, SeedScore{
		Profile: s.Profile, Seed: s.Seed, File: s.File, Skipped: len(t.Entries) - len(offered.Entries), Score: NewScore(offered, run),
	}}, nil
}

// takes tells whether a prompt leaves room for output in the model's length,
// which is the engine's own rule.
func takes(maxModelLen int, e *trace.Entry) bool { return e.PromptTokens < maxModelLen }

// offer returns the trace without the requests that are skipped.
func offer(t *trace.Trace, maxModelLen int) *trace.Trace {
	offered := *t
	offered.Entries = make([]trace.Entry, 0, len(t.Entries))
	for i := range t.Entries {
		if takes(maxModelLen, &t.Entries[i]) {
			offered.Entries = append(offered.Entries, t.Entries[i])
		}
	}
	return &offered
}

// each gives every request of the whole trace, the skipped ones included.
func (f *finished) each(maxModelLen int, give func(*Record) error) error {
	ran := f.run.Records
	for i := range f.trace.Entries {
		e := &f.trace.Entries[i]
		r := &Record{Entry: *e, Admitted: -1, Scheduled: -1, First: -1, Done: -1, Outcome: Skipped}
		if takes(maxModelLen, e) {
			r, ran = &ran[0], ran[1:]
		}
		if err := give(r); err != nil {
			return err
		}
	}
	return nil
}

// report sums up runs: scores by arm and trace, and by trace what its log's
// reader left out.
func (p *Plan) report(scores [][]SeedScore, leftOut []int) *Report {
	var profiles []string
	for i := range p.Traces {
		if !slices.Contains(profiles, p.Traces[i].Profile) {
			profiles = append(profiles, p.Traces[i].Profile)
		}
	}
	of := func(profiles []string) *Report {
		rep := &Report{Profile: strings.Join(profiles, ","), Speed: p.Engine.Speed, maxModelLen: p.Engine.MaxModelLen, fleet: p.Fleet}
		if p.Fleet != nil {
			rep.Replicas = p.Fleet.Replicas
		}
		for i := range p.Traces {
			if s := &p.Traces[i]; slices.Contains(profiles, s.Profile) {
				rep.Seeds = append(rep.Seeds, s.Seed)
				rep.LeftOut += leftOut[i]
				rep.files = rep.files || s.File != ""
			}
		}
		for i, name := range p.Arms {
			a := ArmReport{Name: name}
			var sum []Score
			skipped := 0
			for _, s := range scores[i] {
				if slices.Contains(profiles, s.Profile) {
					a.PerSeed = append(a.PerSeed, s)
					sum = append(sum, s.Score)
					skipped += s.Skipped
				}
			}
			a.Score = Sum(sum)
			a.Recalls = append([]RecallScore{}, a.Recalls...) // an empty list, not null, where there was none
			rep.Skipped = skipped                             // the same for every arm
			rep.Arms = append(rep.Arms, a)
		}
		return rep
	}
	rep := of(profiles)
	if len(profiles) > 1 {
		for _, name := range profiles {
			rep.Profiles = append(rep.Profiles, of([]string{name}))
		}
	}
	return rep
}

// WriteTable prints a report for a person: a table a profile.
func (rep *Report) WriteTable(w io.Writer) error {
	if len(rep.Profiles) > 0 {
		for i, one := range rep.Profiles {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := one.WriteTable(w); err != nil {
				return err
			}
		}
		return nil
	}
	what := "seeds"
	if rep.files {
		what = "traces"
	}
	fmt.Fprintf(w, "%s, %d %s, speed %g\n", rep.Profile, len(rep.Seeds), what, rep.Speed)
	if f := rep.fleet; f != nil {
		fmt.Fprintf(w, "arms with admission: %d gateways, requests spread by %s, %v from one to the next\n", f.Replicas, f.Spread, f.Delay)
	}
	if rep.Skipped > 0 {
		fmt.Fprintf(w, "requests skipped, whose prompts leave no room for output in the engine's %d tokens: %d\n", rep.maxModelLen, rep.Skipped)
	}
	if rep.LeftOut > 0 {
		fmt.Fprintf(w, "requests left out, which the recorded service had failed: %d\n", rep.LeftOut)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "arm\treturn on time\tinteractive done\tbatch done\tof the borrow window\tbatch tokens in window\tmakespan s\tpreemptions\trecomputed tokens")
	for i := range rep.Arms {
		a := &rep.Arms[i]
		fmt.Fprintf(tw, "%s\t%d of %d\t%d of %d\t%d of %d\t%d of %d\t%d\t%.0f\t%d\t%d\n", a.Name,
			a.Interactive.ReturnOnTime, a.Interactive.ReturnOffered, a.Interactive.Completed, a.Interactive.Offered,
			a.Batch.Completed, a.Batch.Offered, a.Batch.BorrowCohortCompleted, a.Batch.BorrowCohortOffered,
			a.Batch.TokensInWindow, a.MakespanS, a.Preemptions, a.Recomputed)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for i := range rep.Arms {
		a := &rep.Arms[i]
		for _, cause := range slices.Sorted(maps.Keys(a.Refused)) {
			fmt.Fprintf(w, "%s refused, %s: %d\n", a.Name, cause, a.Refused[cause])
		}
		if a.Failed > 0 {
			fmt.Fprintf(w, "%s failed at the engine: %d\n", a.Name, a.Failed)
		}
	}
	return nil
}

// Windows of a trace, as a request line names the one of its arrival.
const (
	borrowWindow = "borrow"
	returnWindow = "return"
)

// RequestLine is one request in the form of --requests-out: a JSON object a
// line, from which everything in a report but the recalls can be made again.
// Times are milliseconds since the trace's start, null where they never came.
type RequestLine struct {
	Profile      string   `json:"profile"`
	Seed         uint32   `json:"seed"`
	File         string   `json:"file,omitempty"`
	Arm          string   `json:"arm"`
	ID           string   `json:"id"`
	Class        string   `json:"class"`
	ArrivalMS    *float64 `json:"arrival_ms"`
	AdmittedMS   *float64 `json:"admitted_ms"`
	ScheduledMS  *float64 `json:"scheduled_ms"`
	FirstTokenMS *float64 `json:"first_token_ms"`
	DoneMS       *float64 `json:"done_ms"`
	Outcome      Outcome  `json:"outcome"`
	Cause        string   `json:"cause,omitempty"` // of a refusal or a failure
	Prompt       int      `json:"prompt_tokens"`
	Output       int      `json:"output_tokens"`
	Reclaims     int      `json:"reclaims"`
	Preemptions  int      `json:"preemptions"`
	Recomputed   int      `json:"recomputed_tokens"`
	// Window is the one of the trace's that the request arrived in: borrow,
	// return or none.
	Window string `json:"window,omitempty"`
	// InTime tells whether the answer was complete at the trace's end.
	InTime bool `json:"before_end"`

	// What only a benchmark has.
	Tenant string   `json:"tenant,omitempty"`
	SentMS *float64 `json:"sent_ms,omitempty"` // when it was really sent; ArrivalMS is when it should have been
	Warmup bool     `json:"warmup,omitempty"`  // it measures nothing
	// MeasuredMS is the length of the part of the trace that measures something.
	MeasuredMS float64 `json:"measured_ms,omitempty"`
	Status     int     `json:"status,omitempty"` // of a refusal or a failure, HTTP's
	// RetryAfterMS is the hint that a refusal came with.
	RetryAfterMS *float64 `json:"retry_after_ms,omitempty"`
}

// WriteRequest writes one record of a trace as a line.
func WriteRequest(e *json.Encoder, arm string, s *Source, t *trace.Trace, r *Record) error {
	ms := func(d time.Duration) *float64 {
		if d < 0 {
			return nil
		}
		v := float64(d) / float64(time.Millisecond)
		return &v
	}
	window := ""
	switch {
	case t.Workload.Borrow().Contains(r.Arrival):
		window = borrowWindow
	case t.Workload.Return().Contains(r.Arrival):
		window = returnWindow
	}
	return e.Encode(&RequestLine{
		Profile: s.Profile, Seed: s.Seed, File: s.File, Arm: arm, ID: r.ID, Class: r.Class, ArrivalMS: ms(r.Arrival), AdmittedMS: ms(r.Admitted),
		ScheduledMS: ms(r.Scheduled), FirstTokenMS: ms(r.First), DoneMS: ms(r.Done), Outcome: r.Outcome, Cause: r.Cause,
		Prompt: r.PromptTokens, Output: r.Tokens, Reclaims: r.Reclaims, Preemptions: r.Preemptions, Recomputed: r.Recomputed(), Window: window, InTime: r.Done >= 0 && r.Done <= t.Workload.Duration(),
	})
}
