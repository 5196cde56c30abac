package replan

import (
	"fmt"
	"strings"
	"time"
)

// ProfileView is what the planner thinks of one profile.
type ProfileView struct {
	Name       string `json:"name"`
	Slots      int    `json:"slots"`
	KVTokens   int64  `json:"kv_tokens"`
	MaxContext int64  `json:"max_context"`
	// Could is how many slots would be busy in it now, Expected the average of the recent
	// past.
	Could    int     `json:"could"`
	Expected float64 `json:"expected"`
	// Wanted is for how long something has waited that it would run and the present one
	// does not, in seconds; 0: nothing does.
	Wanted float64 `json:"wanted_s"`
	// Gain and Cost of going there now, in slot-seconds.
	Gain float64 `json:"gain_slot_s"`
	Cost float64 `json:"cost_slot_s"`
	// Takes is how long drain and switch are believed to take, in seconds; Measured: by
	// what they have taken.
	Takes    float64 `json:"takes_s"`
	Measured bool    `json:"measured"`
	// Promised: it gives every live session what it was promised.
	Promised bool `json:"keeps_promises"`
}

// View is what the planner is at and why.
type View struct {
	State    string        `json:"state"`
	Profile  string        `json:"profile"`
	To       string        `json:"to,omitempty"` // where it goes
	For      float64       `json:"for_s"`        // how long it has been in the state, in seconds
	Why      string        `json:"why"`          // it goes, or stays
	Next     float64       `json:"next_s"`       // in how many seconds that may change by itself; -1: only with the demand
	Override string        `json:"override,omitempty"`
	Until    float64       `json:"override_s,omitempty"` // for how many seconds more; -1: until it is ended
	Hour     int           `json:"switches_last_hour"`
	PerHour  int           `json:"max_per_hour"`
	Backoff  uint          `json:"backoff"` // doublings of contention_after
	DryRun   bool          `json:"dry_run,omitempty"`
	Limits   bool          `json:"limits_only,omitempty"`
	Profiles []ProfileView `json:"profiles"`
}

// View returns what the planner is at. Nothing is changed by it.
func (p *Planner) View() View {
	name := func(q int) string { return p.cfg.Profiles[q].Name }
	seconds := func(t Time) float64 { return time.Duration(t).Seconds() }
	v := View{
		State: p.state.String(), Profile: name(p.at), For: seconds(p.now - p.since), Next: -1,
		Hour: len(p.begun), PerHour: p.cfg.PerHour, Backoff: p.backoff, DryRun: p.cfg.DryRun, Limits: p.cfg.Limits, Why: p.why.String(),
	}
	if p.state != Settled {
		v.To = name(p.to)
	} else {
		j := p.judge()
		v.Why = j.stays
		if j.to >= 0 {
			v.Why = fmt.Sprintf("%s is wanted since %s; but %s", name(j.to), j.why, j.stays)
		}
	}
	if at, ok := p.Next(); ok {
		v.Next = max(seconds(at-p.now), 0)
	}
	if p.wish != Auto {
		v.Override, v.Until = name(p.wish), -1
		if p.wishUntil != Never {
			v.Until = seconds(p.wishUntil - p.now)
		}
	}
	for q := range p.cfg.Profiles {
		c := &p.cfg.Profiles[q]
		w := ProfileView{
			Name: c.Name, Slots: c.Slots, KVTokens: c.KVTokens, MaxContext: c.MaxContext,
			Could: p.could(q), Expected: p.expected[q], Promised: p.load.Promised.Has(q),
		}
		if q != p.at {
			w.Gain, w.Cost = p.worth(q)
			w.Takes, w.Measured = p.takes(q).Seconds(), p.cost[p.at*len(p.cfg.Profiles)+q] > 0
		}
		if p.wanted[q] != Never {
			w.Wanted = seconds(p.now - p.wanted[q])
		}
		v.Profiles = append(v.Profiles, w)
	}
	return v
}

func (v View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s in %s", v.State, v.Profile)
	if v.To != "" {
		fmt.Fprintf(&b, " to %s", v.To)
	}
	fmt.Fprintf(&b, " for %gs: %s", round(v.For), v.Why)
	if v.Next >= 0 {
		fmt.Fprintf(&b, " (looks again in %gs)", round(v.Next))
	}
	b.WriteByte('\n')
	if v.Override != "" {
		fmt.Fprintf(&b, "an operator wants %s", v.Override)
		if v.Until >= 0 {
			fmt.Fprintf(&b, " for %gs", round(v.Until))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%d of %d switches in the last hour", v.Hour, v.PerHour)
	if v.Backoff > 0 {
		fmt.Fprintf(&b, ", demand has to wait %d times as long", 1<<v.Backoff)
	}
	b.WriteByte('\n')
	for _, w := range v.Profiles {
		fmt.Fprintf(&b, "%-8s could run %d, %.2f expected", w.Name, w.Could, w.Expected)
		if w.Name != v.Profile {
			fmt.Fprintf(&b, "; going there gains %.1f and costs %.1f slot-seconds", w.Gain, w.Cost)
		}
		if w.Wanted > 0 {
			fmt.Fprintf(&b, "; wanted for %gs", round(w.Wanted))
		}
		if !w.Promised {
			b.WriteString("; gives less than a session was promised")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// round leaves a tenth of a second.
func round(s float64) float64 { return float64(int64(s*10+0.5)) / 10 }
