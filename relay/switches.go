package relay

import (
	"time"

	"headgate/admission"
	"headgate/journal"
)

// Switch is something about a running pool that an operator can turn on and off. It
// is apart from the configuration: a change of that leaves it as it is, and a new
// process begins with all of them off.
type Switch string

const (
	// SwitchLending pauses lending while it is on.
	SwitchLending Switch = "lending_paused"
	// SwitchDrain refuses what comes and what waits; what runs goes on.
	SwitchDrain Switch = "drain"
	// SwitchBypass admits everything at once.
	SwitchBypass Switch = "bypass"
)

// Switches are all that there are.
var Switches = []Switch{SwitchLending, SwitchDrain, SwitchBypass}

// SwitchState is a switch as it was last set; zero: it never was.
type SwitchState struct {
	On     bool      `json:"on"`
	Recall bool      `json:"recall,omitempty"` // of lending: loans are called in while it is on
	Since  time.Time `json:"since,omitzero"`   // when it last changed
	Actor  string    `json:"actor,omitempty"`
	Remote string    `json:"remote,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

func (s *SwitchState) word() string {
	switch {
	case s.On && s.Recall:
		return "on, recall"
	case s.On:
		return "on"
	}
	return "off"
}

// Set turns a switch. Of next, On and Recall are what it is to be, and the others
// who wants it and why, for the record, which is made of every use, a change or not.
// It returns how the switch then is.
func (p *Pool) Set(which Switch, next SwitchState) SwitchState {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.switches[which]
	now := p.now()
	next.Since = time.Now()
	if was.On == next.On && was.Recall == next.Recall {
		next.Since = was.Since
	}
	p.switches[which] = next
	p.cfg.Log.Warn("an operator's switch", "pool", p.cfg.Name, "switch", string(which), "from", was.word(), "to", next.word(),
		"actor", next.Actor, "remote", next.Remote, "reason", next.Reason)
	p.journal(&journal.Event{Kind: journal.Switched, Mono: int64(now), Pool: p.cfg.Name, Switch: &journal.Switch{
		Name: string(which), From: was.word(), To: next.word(), Actor: next.Actor, Remote: next.Remote, Reason: next.Reason,
	}})
	if p.core != nil {
		t := *p.table
		p.applyLocked(&t)
	}
	return next
}

// Switches returns how every switch is set.
func (p *Pool) Switches() map[Switch]SwitchState {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[Switch]SwitchState{}
	for _, s := range Switches {
		all[s] = p.switches[s]
	}
	return all
}

// Drained tells whether an operator has the pool refuse what comes.
func (p *Pool) Drained() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.switches[SwitchDrain].On
}

// stampLocked puts into a table what is no configuration.
func (p *Pool) stampLocked(t *admission.Table, rev uint64) {
	lending := p.switches[SwitchLending]
	t.Rev, t.Drain = rev, p.drain || p.switches[SwitchDrain].On
	t.Pause, t.CallIn, t.Bypass = lending.On || p.plan.callsIn(), lending.Recall || p.plan.callsIn(), p.switches[SwitchBypass].On
	p.table = t
}
