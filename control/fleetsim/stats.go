package fleetsim

import (
	"fmt"
	"strings"

	"headgate/control"
)

// Fault is a kind of what goes wrong.
type Fault int

const (
	Dropped Fault = iota
	Delayed
	Duplicated
	Reordered
	Unanswered
	WatchLost
	Coalesced
	Repeated
	PausedReplica
	PausedController
	PausedStore
	OldLeader
	Cut
	StoreDown
	CrashedReplica
	Orphans
	CrashedController
	ClockJump
	Reconfigured
	Forgotten
	nFaults
)

var faultNames = [nFaults]string{
	"messages dropped", "delayed", "duplicated", "reordered", "done without an answer", "watches lost", "changes coalesced", "changes repeated",
	"replicas stopped", "controllers stopped", "store stopped", "old leaders returned", "cuts", "store down",
	"replicas killed", "of them with orphans", "controllers killed", "clock jumps", "reconfigurations", "replicas forgotten",
}

// Stats are what histories were made of.
type Stats struct {
	Histories, Steps                                  int
	Seconds                                           float64
	Offered, Admissions, Survived, Dispatched         int
	Reclaims, Ghosts, Grants, Taken, Recalls, Reports int
	News, Wild, Overdue                               int
	Takeovers, Fenced, Expiries, Foreign              int
	Handoffs                                          map[control.Stage]int
	Faults                                            [nFaults]int
	Fullest                                           float64
}

func newStats() Stats { return Stats{Handoffs: map[control.Stage]int{}} }

// Add sums two.
func (s *Stats) Add(o *Stats) {
	for _, v := range []struct{ to, from *int }{
		{&s.Histories, &o.Histories}, {&s.Steps, &o.Steps}, {&s.Offered, &o.Offered}, {&s.Admissions, &o.Admissions}, {&s.Survived, &o.Survived},
		{&s.Dispatched, &o.Dispatched}, {&s.Reclaims, &o.Reclaims}, {&s.Ghosts, &o.Ghosts}, {&s.Grants, &o.Grants}, {&s.Taken, &o.Taken},
		{&s.Recalls, &o.Recalls}, {&s.News, &o.News}, {&s.Reports, &o.Reports}, {&s.Takeovers, &o.Takeovers}, {&s.Fenced, &o.Fenced}, {&s.Expiries, &o.Expiries},
		{&s.Foreign, &o.Foreign}, {&s.Wild, &o.Wild}, {&s.Overdue, &o.Overdue},
	} {
		*v.to += *v.from
	}
	s.Seconds += o.Seconds
	s.Fullest = max(s.Fullest, o.Fullest)
	if s.Handoffs == nil {
		s.Handoffs = map[control.Stage]int{}
	}
	for k, n := range o.Handoffs {
		s.Handoffs[k] += n
	}
	for i := range s.Faults {
		s.Faults[i] += o.Faults[i]
	}
}

// Missing are the kinds of what should have happened and did not.
func (s *Stats) Missing() (none []string) {
	for i, n := range s.Faults {
		if n == 0 {
			none = append(none, faultNames[i])
		}
	}
	for _, v := range []struct {
		name string
		n    int
	}{
		{"admissions", s.Admissions}, {"admissions within what survives", s.Survived}, {"reclaims", s.Reclaims}, {"ghosts", s.Ghosts}, {"takeovers", s.Takeovers},
		{"fenced writes", s.Fenced}, {"requests that last longer than predicted", s.Wild}, {"requests that were overdue", s.Overdue}, {"expiries", s.Expiries}, {"foreign load", s.Foreign}, {"handoffs", s.Handoffs[control.Committed]},
	} {
		if v.n == 0 {
			none = append(none, v.name)
		}
	}
	return none
}

func (s *Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "histories %d, steps %d, virtual time %.0f s\n", s.Histories, s.Steps, s.Seconds)
	fmt.Fprintf(&b, "requests %d, admissions %d (by survival %d), reclaims %d, ghosts %d, longer than predicted %d, overdue %d\n", s.Offered, s.Admissions, s.Survived, s.Reclaims, s.Ghosts, s.Wild, s.Overdue)
	fmt.Fprintf(&b, "grants written %d, taken %d, reports %d, news heard %d, takeovers %d, fenced writes %d, expiries %d, foreign load %d\n", s.Grants, s.Taken, s.Reports, s.News, s.Takeovers, s.Fenced, s.Expiries, s.Foreign)
	b.WriteString("handoffs")
	for _, stage := range []control.Stage{control.Prepared, control.Applied, control.Drained, control.Committed, control.Dropped} {
		fmt.Fprintf(&b, " %s %d", stage, s.Handoffs[stage])
	}
	b.WriteString("\nfaults")
	for i, n := range s.Faults {
		fmt.Fprintf(&b, ", %s %d", faultNames[i], n)
	}
	return strings.Replace(b.String(), "faults, ", "faults: ", 1)
}
