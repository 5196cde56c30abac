package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"headgate/simengine"
	"headgate/trace"
)

// Plan is a comparison: arms on the traces of one profile.
type Plan struct {
	Profile string
	Seeds   []uint32
	Arms    []string
	Engine  simengine.Config // its Speed is the plan's
}

// Report is what came of a plan.
type Report struct {
	Profile string      `json:"profile"`
	Speed   float64     `json:"speed"`
	Seeds   []uint32    `json:"seeds"`
	Arms    []ArmReport `json:"arms"`
}

// ArmReport is one arm's sum over all seeds, and each seed's.
type ArmReport struct {
	Name string `json:"name"`
	Score
	PerSeed []SeedScore `json:"per_seed"`
}

// SeedScore is one run.
type SeedScore struct {
	Seed uint32 `json:"seed"`
	Score
}

// Execute runs a plan. Every request's record goes to each, if that is not nil,
// in the order of the arms, the seeds and the arrivals.
func Execute(p *Plan, each func(arm string, seed uint32, r *Record) error) (*Report, error) {
	rep := &Report{Profile: p.Profile, Speed: p.Engine.Speed, Seeds: p.Seeds}
	for _, name := range p.Arms {
		arm, err := NewArm(name, p.Engine)
		if err != nil {
			return nil, err
		}
		ar := ArmReport{Name: name}
		var scores []Score
		for _, seed := range p.Seeds {
			t, err := trace.Generate(p.Profile, seed)
			if err != nil {
				return nil, err
			}
			run, err := Simulate(t, arm)
			if err != nil {
				return nil, fmt.Errorf("profile %s, seed %d: %w", p.Profile, seed, err)
			}
			s := NewScore(t, run)
			scores = append(scores, s)
			ar.PerSeed = append(ar.PerSeed, SeedScore{seed, s})
			for i := range run.Records {
				if each == nil {
					break
				}
				if err := each(name, seed, &run.Records[i]); err != nil {
					return nil, err
				}
			}
		}
		ar.Score = Sum(scores)
		rep.Arms = append(rep.Arms, ar)
	}
	return rep, nil
}

// WriteTable prints a report for a person.
func (rep *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s, %d seeds, speed %g\n", rep.Profile, len(rep.Seeds), rep.Speed)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "arm\treturn on time\tinteractive done\tbatch done\tof the borrow window\tbatch tokens in window\tmakespan s\tpreemptions\trecomputed tokens")
	for i := range rep.Arms {
		a := &rep.Arms[i]
		fmt.Fprintf(tw, "%s\t%d of %d\t%d of %d\t%d of %d\t%d of %d\t%d\t%.0f\t%d\t%d\n", a.Name,
			a.Interactive.ReturnOnTime, a.Interactive.ReturnOffered, a.Interactive.Completed, a.Interactive.Offered,
			a.Batch.Completed, a.Batch.Offered, a.Batch.BorrowCohortCompleted, a.Batch.BorrowCohortOffered,
			a.Batch.TokensInWindow, a.MakespanS, a.Preemptions, a.Recomputed)
	}
	return tw.Flush()
}

// RequestLine is one request in the form of --requests-out: a JSON object a
// line, from which every count of a report can be made again. Times are
// milliseconds since the trace's start, null where they never came.
type RequestLine struct {
	Profile      string   `json:"profile"`
	Seed         uint32   `json:"seed"`
	Arm          string   `json:"arm"`
	ID           string   `json:"id"`
	Class        string   `json:"class"`
	ArrivalMS    *float64 `json:"arrival_ms"`
	AdmittedMS   *float64 `json:"admitted_ms"`
	ScheduledMS  *float64 `json:"scheduled_ms"`
	FirstTokenMS *float64 `json:"first_token_ms"`
	DoneMS       *float64 `json:"done_ms"`
	Outcome      Outcome  `json:"outcome"`
	Output       int      `json:"output_tokens"`
	Reclaims     int      `json:"reclaims"`
}

// WriteRequest writes one record as a line.
func WriteRequest(e *json.Encoder, profile, arm string, seed uint32, r *Record) error {
	ms := func(d time.Duration) *float64 {
		if d < 0 {
			return nil
		}
		v := float64(d) / float64(time.Millisecond)
		return &v
	}
	return e.Encode(&RequestLine{
		Profile: profile, Seed: seed, Arm: arm, ID: r.ID, Class: r.Class, ArrivalMS: ms(r.Arrival), AdmittedMS: ms(r.Admitted),
		ScheduledMS: ms(r.Scheduled), FirstTokenMS: ms(r.First), DoneMS: ms(r.Done), Outcome: r.Outcome, Output: r.Tokens, Reclaims: r.Reclaims,
	})
}
