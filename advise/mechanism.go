package advise

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"headgate/admission"
	"headgate/probe"
)

// State is what is known of a mechanism.
type State string

const (
	Holds        State = "holds"
	Contradicted State = "contradicted"
	Unknown      State = "unknown"
)

// Mechanism is what has to be true of the engine for a proposal to do what it is for.
type Mechanism struct {
	Subject  probe.Subject `json:"subject"`
	Needs    string        `json:"needs"`
	Found    string        `json:"found"` // as the probe has it, or unknown
	State    State         `json:"state"`
	Evidence []string      `json:"evidence"`
	// Ask is the command that asks the engine for it: another answer makes what is said of
	// the proposal wrong.
	Ask string `json:"ask"`
}

// mechanisms are those that a proposal relies on.
func (a *adviser) mechanisms(p *Proposal, next Settings, table *admission.Table) []Mechanism {
	var all []Mechanism
	need := func(s probe.Subject, needs string, judge func(f probe.Finding) State) {
		for _, m := range all {
			if m.Subject == s && m.Needs == needs {
				return
			}
		}
		f := a.Profile.Find(s)
		m := Mechanism{Subject: s, Needs: needs, Found: "unknown", State: Unknown, Evidence: f.Evidence, Ask: fmt.Sprintf("%s --only %s", a.Probe, s)}
		if f.Confidence != probe.Unknown {
			m.Found, m.State = fmt.Sprintf("%v (%s)", value(f), f.Confidence), judge(f)
		}
		// How many tokens there are an engine knows; how it works it has to be made to show.
		if m.State == Holds && f.Confidence == probe.Said && s != probe.KVTokens {
			m.State, m.Evidence = Unknown, append(slices.Clone(f.Evidence), "this was said and not shown")
		}
		all = append(all, m)
	}
	is := func(ok bool) State {
		if ok {
			return Holds
		}
		return Contradicted
	}
	number := func(f probe.Finding) float64 { n, _ := f.Value.(float64); return n }
	real := func() {
		need(probe.Slots, fmt.Sprintf("the engine really runs %d sequences at once, of which the policy gives floors and loans", a.Present.Slots), func(f probe.Finding) State { return is(number(f) >= float64(a.Present.Slots)) })
	}
	gives := func() {
		within := shortest(table)
		need(probe.AbortSeconds, fmt.Sprintf("what is lent comes back at once: an abort frees its slot within %v, the shortest first token that a class is owed", within), func(f probe.Finding) State {
			// An engine that preempts by itself needs no abort.
			return is(within == 0 || number(f) <= within.Seconds() || a.Profile.Word(probe.Waiting) == probe.Preempts)
		})
	}
	// What is changed as well is not there to be found yet.
	kv := next.KVTokens
	if p.find("kv_tokens") != nil || p.find("kv_dtype") != nil {
		kv = a.Present.KVTokens
	}
	for _, c := range p.Changes {
		switch c.Key {
		case "slots":
			if c.n < a.Present.Slots {
				need(probe.KVLayout, "each slot has its own part of the KV, of which fewer slots leave a session more", func(f probe.Finding) State { return is(f.Value == probe.PerSlot) })
				a.seen(&all[len(all)-1])
				continue
			}
			need(probe.KVLayout, "a further slot takes no KV from the others, or leaves each enough for the longest request", func(f probe.Finding) State {
				return is(f.Value == probe.Shared || next.longest() >= a.longest)
			})
			need(probe.KVTokens, fmt.Sprintf("the KV has %d tokens", kv), func(f probe.Finding) State { return is(number(f) >= near*float64(kv)) })
		case "kv_tokens", "kv_dtype":
			need(probe.KVTokens, fmt.Sprintf("the KV has %d tokens now, of which the change makes %d", a.Present.KVTokens, next.KVTokens), func(f probe.Finding) State {
				n := number(f)
				return is(n >= near*float64(a.Present.KVTokens) && n*near <= float64(a.Present.KVTokens))
			})
		case "max_context":
			need(probe.KVLayout, fmt.Sprintf("one session may have %d tokens of the KV", c.n), func(f probe.Finding) State {
				room := next.KVTokens
				if f.Value == probe.PerSlot {
					room /= next.Slots
				}
				return is(room >= c.n)
			})
			need(probe.KVTokens, fmt.Sprintf("the KV has %d tokens", kv), func(f probe.Finding) State { return is(number(f) >= near*float64(kv)) })
		case "mode":
			real()
			if reclaims(table) {
				gives()
			}
		case "reclaim":
			if c.Text == "reclaim" {
				gives()
			}
		case "floor", "unlent", "ceiling":
			real()
			if reclaims(table) {
				gives()
			}
		}
	}
	return all
}

// near is within what share two numbers of tokens are the same: blocks are rounded.
const near = 0.98

// seen lets the journal itself speak where no probe has: a session that was longer than a
// slot's part can't have been in one.
func (a *adviser) seen(m *Mechanism) {
	if part := a.Present.KVTokens / a.Present.Slots; m.State == Unknown && float64(a.longest)*near > float64(part) {
		m.Found, m.State = "one pool (by the journal)", Contradicted
		m.Evidence = append(m.Evidence, fmt.Sprintf("the journal has a request of %d tokens, and a slot's part of %d is %d", a.longest, a.Present.KVTokens, part))
	}
}

func value(f probe.Finding) string {
	if n, ok := f.Value.(float64); ok {
		return strconv.FormatFloat(n, 'g', 6, 64) + " " + f.Unit
	}
	return fmt.Sprint(f.Value)
}

func reclaims(t *admission.Table) bool {
	for k := range t.Classes {
		if t.Classes[k].Mode == admission.ReclaimNow {
			return true
		}
	}
	return false
}

// shortest first token that any class is owed, 0 where none is.
func shortest(t *admission.Table) (least time.Duration) {
	for k := range t.Classes {
		if o := t.Classes[k].Objective.First; o > 0 && (least == 0 || o < least) {
			least = o
		}
	}
	return least
}
