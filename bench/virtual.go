package bench

import (
	"context"
	"fmt"
	"time"

	"headgate/admission"
	"headgate/sim"
	"headgate/simengine"
	"headgate/trace"
)

// Virtual runs arms in virtual time.
type Virtual struct {
	// LoadPolicy reads a policy's file.
	LoadPolicy func(file string, e simengine.Config) (*sim.Policy, error)
}

// Takes implements Runner.
func (v *Virtual) Takes(*trace.Trace) time.Duration { return 20 * time.Millisecond }

// Run implements Runner.
func (v *Virtual) Run(ctx context.Context, j *Job) (*Observed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e, err := j.Plan.Engine.Simulated.Config(j.Plan, j.Arm)
	if err != nil {
		return nil, err
	}
	seen := e
	if j.Arm.Slots > 0 {
		seen.MaxNumSeqs = j.Arm.Slots
	}
	arm, err := v.arm(j, seen)
	if err != nil {
		return nil, err
	}
	arm.Engine.MaxNumSeqs = e.MaxNumSeqs
	j.Skip(e.MaxModelLen)
	offered := *j.Trace
	offered.Entries = nil
	var at []int // line by record
	for i := range j.Trace.Entries {
		if j.Lines[i].Outcome != sim.Skipped {
			offered.Entries, at = append(offered.Entries, j.Trace.Entries[i]), append(at, i)
		}
	}
	run, err := sim.Simulate(&offered, arm)
	if err != nil {
		return nil, err
	}
	o := &Observed{Facts: Facts{
		Kind: "simulated", Model: e.Model.Name, Speed: e.Speed, Slots: e.MaxNumSeqs, KVTokens: int64(e.NumBlocks-1) * int64(e.BlockSize), Preemptions: run.Preemptions,
	}}
	end := j.Trace.Workload.Duration()
	for i := range run.Records {
		r, l := &run.Records[i], &j.Lines[at[i]]
		l.AdmittedMS, l.ScheduledMS, l.FirstTokenMS, l.DoneMS = came(r.Admitted), came(r.Scheduled), came(r.First), came(r.Done)
		l.SentMS = l.ArrivalMS
		l.Outcome, l.Cause, l.Output = r.Outcome, r.Cause, r.Tokens
		l.Reclaims, l.Preemptions, l.Recomputed = r.Reclaims, r.Preemptions, r.Recomputed()
		l.InTime = r.Done >= 0 && r.Done <= end
	}
	for _, c := range run.Recalls {
		o.Recalls = append(o.Recalls, Recall{
			Class: c.Class, OpenedMS: millis(c.Opened), GrantedMS: came(c.Granted), ScheduledMS: came(c.Scheduled), SettledMS: came(c.Settled), Reclaims: c.Reclaims,
		})
	}
	for _, h := range run.Holds {
		o.Holds = append(o.Holds, Hold{Request: at[h.Request], From: millis(h.From), To: millis(h.To), Loan: h.Loan, Reclaimed: h.Reclaimed})
	}
	return o, nil
}

// arm makes the simulator's of the plan's, on the engine as the arm sees it.
func (v *Virtual) arm(j *Job, e simengine.Config) (*sim.Arm, error) {
	a := j.Arm
	switch {
	case a.Direct != nil:
		return &sim.Arm{Name: a.Name, Engine: e, Priority: a.Direct.Priority}, nil
	case a.Published != "":
		arm, err := named(a.Published, a.Name, e)
		if err != nil {
			return nil, err
		}
		for k := range arm.Table.Classes {
			c := &arm.Table.Classes[k]
			if a.IdleAfter > 0 {
				c.IdleAfter = time.Duration(a.IdleAfter)
			}
			if a.Reopen == "settled" {
				c.Reopen = admission.ReopenSettled
			}
		}
		return arm, nil
	}
	arm, err := named(sim.Headgate, a.Name, e)
	if err != nil || a.Policy == DefaultPolicy {
		return arm, err
	}
	policy, err := v.LoadPolicy(j.Plan.Path(a.Policy), e)
	if err != nil {
		return nil, err
	}
	arm.Table, arm.Priority = policy.Table, policy.Priority
	return arm, check(arm)
}

func named(arm, as string, e simengine.Config) (*sim.Arm, error) {
	a, err := sim.NewArm(arm, e)
	if err == nil {
		a.Name = as
		err = check(a)
	}
	return a, err
}

// check reports a table that is none on its engine.
func check(a *sim.Arm) (err error) {
	a.Table.Validate(func(path string, value any, allowed string) {
		if err == nil {
			err = fmt.Errorf("on an engine of %d slots: %s is %v: allowed is %s", a.Engine.MaxNumSeqs, path, value, allowed)
		}
	})
	return err
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// came is a moment, null where it never came.
func came(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	v := millis(d)
	return &v
}
