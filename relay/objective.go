package relay

import (
	"strings"
	"time"

	"headgate/admission"
	"headgate/journal"
)

// objectiveLocked is what "on time" means for a call that is offered now: its class's
// objective, with the call's own limits. Of a pool that has no table yet it is only
// the latter.
func (p *Pool) objectiveLocked(class admission.Class, call *Call) admission.Objective {
	var o admission.Objective
	if p.table != nil {
		o = p.table.Classes[class].Objective
	}
	return o.With(call.TTFT, call.TPOT)
}

// The values of a series that say whose the limit was.
const (
	byClass   = "class"
	byRequest = "request"
)

// limit is one limit of an objective, and how long it took.
type limit struct {
	name  string
	most  time.Duration // 0: there is no such limit
	took  time.Duration
	whose string
}

// judge holds an answer against its objective, counts it, and returns the limits that
// were missed, as the journal has them. What ended otherwise than by its engine's
// last word has missed all; of a client that left nothing is known.
func (a *attempt) judge(now time.Time) (missed string) {
	if a.cause == admission.CauseClientGone {
		return ""
	}
	r := a.record
	first := r.first
	if first.IsZero() {
		first = now // it came as a whole
	}
	steps := (a.before+a.out)/max(a.call.Request.N, 1) - 1
	var names []string
	held := false
	for _, l := range []limit{
		{"ttft", r.objective.First, first.Sub(a.call.Arrived), whose(a.call.TTFT)},
		{"tpot", r.objective.Token, now.Sub(first) / time.Duration(max(steps, 1)), whose(a.call.TPOT)},
		{"e2e", r.objective.Whole, now.Sub(a.call.Arrived), byClass},
	} {
		failed := a.cause != admission.CauseFinished
		if l.most == 0 || !failed && l.name == "tpot" && (steps < 1 || r.first.IsZero()) {
			continue
		}
		held = true
		outcome := "on_time"
		if failed || l.took > l.most {
			outcome = "late"
			names = append(names, l.name)
		}
		a.pool.cfg.Metrics.judged(a.pool.cfg.Name, a.call.Class, l.name, l.whose, outcome)
	}
	if held {
		o := &a.pool.objectives[r.class]
		o.held.Add(1)
		if len(names) == 0 {
			o.kept.Add(1)
		}
	}
	return strings.Join(names, ",")
}

func whose(own time.Duration) string {
	if own > 0 {
		return byRequest
	}
	return byClass
}

// limits writes a request's objective into its line.
func (r *record) limits(e *journal.Event) {
	o := r.objective
	e.TTFTLimitNS, e.TPOTLimitNS, e.E2ELimitNS = int64(o.First), int64(o.Token), int64(o.Whole)
	e.OwnLimits = r.call.TTFT > 0 || r.call.TPOT > 0
}
