package replan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStories walks testdata/stories: scripts that tell what the planner and the contract do
// and why, rewritten with -rewrite. Every command may have at=TIME, which is the
// present if it is left out. Commands:
//
//	new [home=NAME] [dwell=D] [idle=D] [contention=D] [drain=D] [hour=N] [dry] [limits]
//	        a profile a line: NAME slots=N kv=N context=N [cost=D]
//	load [promised=NAMES] [inside=NAMES]
//	        demand a line: fits=NAMES [running=N] [waiting=N], NAMES with | between
//	drained [inside=NAMES]
//	switched ok|failed
//	override NAME|auto [for=D]
//	wait until=TIME   lets time pass, with a tick whenever the planner wants one
//	view
//	contract guarantee=N most=N timeout=D
//	begin|end|release|needs   of session=N, want=N present=N, came=N present=N
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, s.command)
	})
}

type story struct {
	cfg     Config
	p       *Planner
	c       *Contract
	now     Time
	waiting map[Set]Time // since when
}

func (s *story) command(t *testing.T, d *datadriven.TestData) string {
	if d.HasArg("at") {
		s.now = moment(t, d, "at")
	}
	switch d.Cmd {
	case "new":
		s.create(t, d)
		return ""
	case "load":
		return s.step(&Event{Kind: Sample, Load: s.load(t, d)})
	case "drained":
		l := Load{Demands: s.p.load.Demands, Promised: s.p.load.Promised, Inside: s.set(t, d, "inside")}
		return s.step(&Event{Kind: Drained, Load: &l})
	case "switched":
		return s.step(&Event{Kind: Switched, OK: d.HasArg("ok"), Intact: d.HasArg("intact")})
	case "override":
		e := Event{Kind: Override, Profile: Auto, Until: Never}
		if name := d.CmdArgs[0].Key; name != "auto" {
			e.Profile = s.index(t, d, name)
		}
		if d.HasArg("for") {
			e.Until = s.now + moment(t, d, "for")
		}
		return s.step(&e)
	case "wait":
		return s.wait(moment(t, d, "until"))
	case "view":
		s.step(&Event{Kind: Tick})
		return s.p.View().String()
	}
	return s.contract(t, d)
}

func (s *story) contract(t *testing.T, d *datadriven.TestData) string {
	var key uint64
	var n [4]int64
	for i, arg := range []string{"want", "present", "came", "guarantee"} {
		if d.HasArg(arg) {
			d.ScanArgs(t, arg, &n[i])
		}
	}
	if d.HasArg("session") {
		d.ScanArgs(t, "session", &key)
	}
	switch d.Cmd {
	case "contract":
		var most int
		d.ScanArgs(t, "most", &most)
		s.c = NewContract(n[3], most, time.Duration(moment(t, d, "timeout")))
	case "begin":
		granted, _ := s.c.Begin(s.now, key, n[0], n[1])
		return fmt.Sprintf("has %d\n%s\n", granted, s.c)
	case "end":
		s.c.End(s.now, key, !d.HasArg("uncounted"), n[2], n[1])
	case "release":
		s.c.Release(key)
	case "needs":
		return fmt.Sprintf("%d\n%s\n", s.c.Needs(s.now), s.c)
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	return s.c.String() + "\n"
}

func (s *story) create(t *testing.T, d *datadriven.TestData) {
	s.cfg = Config{Dwell: 10 * time.Minute, IdleAfter: 5 * time.Minute, ContentionAfter: 30 * time.Second, DrainTimeout: time.Minute, PerHour: 4}
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		p := Profile{Name: f[0]}
		for _, arg := range f[1:] {
			key, value, _ := strings.Cut(arg, "=")
			switch key {
			case "slots":
				_, _ = fmt.Sscan(value, &p.Slots)
			case "kv":
				_, _ = fmt.Sscan(value, &p.KVTokens)
			case "context":
				_, _ = fmt.Sscan(value, &p.MaxContext)
			case "cost":
				p.Cost = duration(t, d, value)
			default:
				d.Fatalf(t, "unknown %q", arg)
			}
		}
		s.cfg.Profiles = append(s.cfg.Profiles, p)
	}
	for _, a := range []struct {
		arg string
		to  *time.Duration
	}{{"dwell", &s.cfg.Dwell}, {"idle", &s.cfg.IdleAfter}, {"contention", &s.cfg.ContentionAfter}, {"drain", &s.cfg.DrainTimeout}} {
		if d.HasArg(a.arg) {
			*a.to = time.Duration(moment(t, d, a.arg))
		}
	}
	if d.HasArg("hour") {
		d.ScanArgs(t, "hour", &s.cfg.PerHour)
	}
	if d.HasArg("home") {
		var name string
		d.ScanArgs(t, "home", &name)
		s.cfg.Home = s.index(t, d, name)
	}
	s.cfg.DryRun, s.cfg.Limits = d.HasArg("dry"), d.HasArg("limits")
	s.now, s.waiting = 0, map[Set]Time{}
	s.p = New(s.cfg, s.cfg.Home, 0)
}

func (s *story) load(t *testing.T, d *datadriven.TestData) *Load {
	l := &Load{Promised: s.set(t, d, "promised"), Inside: s.set(t, d, "inside")}
	waiting := map[Set]Time{}
	for line := range strings.Lines(d.Input) {
		var v Demand
		for _, arg := range strings.Fields(line) {
			key, value, _ := strings.Cut(arg, "=")
			switch key {
			case "fits":
				v.Fits = s.names(t, d, value)
			case "running":
				_, _ = fmt.Sscan(value, &v.Running)
			case "waiting":
				_, _ = fmt.Sscan(value, &v.Waiting)
			default:
				d.Fatalf(t, "unknown %q", arg)
			}
		}
		if v.Since = s.now; v.Waiting > 0 {
			if since, ok := s.waiting[v.Fits]; ok {
				v.Since = since
			}
			waiting[v.Fits] = v.Since
		}
		l.Demands = append(l.Demands, v)
	}
	s.waiting = waiting
	return l
}

// set is the profiles that an argument names, all if it is left out.
func (s *story) set(t *testing.T, d *datadriven.TestData, arg string) Set {
	if !d.HasArg(arg) {
		return s.p.all()
	}
	var names string
	d.ScanArgs(t, arg, &names)
	return s.names(t, d, names)
}

func (s *story) names(t *testing.T, d *datadriven.TestData, names string) (set Set) {
	for name := range strings.SplitSeq(names, "|") {
		set = set.With(s.index(t, d, name))
	}
	return set
}

func (s *story) index(t *testing.T, d *datadriven.TestData, name string) int {
	for i := range s.cfg.Profiles {
		if s.cfg.Profiles[i].Name == name {
			return i
		}
	}
	d.Fatalf(t, "no profile %q", name)
	return -1
}

func (s *story) step(e *Event) string {
	var b strings.Builder
	for _, f := range s.p.Step(s.now, e, nil) {
		fmt.Fprintf(&b, "%s: %s %s", time.Duration(s.now), f.Op, s.cfg.Profiles[f.From].Name)
		if f.From != f.To {
			fmt.Fprintf(&b, " to %s", s.cfg.Profiles[f.To].Name)
		}
		fmt.Fprintf(&b, ": %s", f.Why)
		if f.Gain != 0 || f.Cost != 0 {
			fmt.Fprintf(&b, "; gains %.1f, costs %.1f slot-seconds", f.Gain, f.Cost)
		}
		if f.Waited > 0 {
			fmt.Fprintf(&b, "; for %s", f.Waited)
		}
		if f.Took > 0 {
			fmt.Fprintf(&b, "; took %s", f.Took)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *story) wait(until Time) string {
	out := ""
	for {
		at, ok := s.p.Next()
		if !ok || at > until {
			break
		}
		s.now = max(s.now, at)
		out += s.step(&Event{Kind: Tick})
	}
	s.now = until
	out += s.step(&Event{Kind: Tick})
	return out
}

func moment(t *testing.T, d *datadriven.TestData, arg string) Time {
	var text string
	d.ScanArgs(t, arg, &text)
	return Time(duration(t, d, text))
}

func duration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
