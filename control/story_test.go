package control

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

var _ = flag.CommandLine // datadriven's -rewrite

// TestStories runs an allocator by script. Every line is one event; what comes of it is
// printed, and on "state" everything.
//
//	pool name engine=E:slots/kv ... class=C:floor/unlent/ceiling[:window] survival=s/k replicas=n
//	join R lease=N | gone R | report R [rev=N] [used=slots/kv] [interactive=used,hold,waiting,head] ...
//	load R lease=N rev=N amount=s/k bound=s/k
//	tick 1s
//	state
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		var a *Allocator
		now := Time(1e9)
		seq := uint64(0)
		leases := map[string]int64{}
		revs := map[string]uint64{}
		var pool Pool
		epoch := uint64(1)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for _, line := range strings.Split(d.Input, "\n") {
				f := strings.Fields(line)
				if len(f) == 0 {
					continue
				}
				args := map[string]string{}
				for _, v := range f[1:] {
					if k, w, ok := strings.Cut(v, "="); ok {
						args[k] = w
					}
				}
				ev := Event{Kind: Tick}
				id := func() ID { return ID{Replica: f[1], Boot: "b"} }
				switch f[0] {
				case "pool":
					pool = Pool{Name: f[1], Replicas: 8}
					for _, v := range f[2:] {
						k, w, _ := strings.Cut(v, "=")
						switch k {
						case "engine":
							name, total, _ := strings.Cut(w, ":")
							pool.Engines = append(pool.Engines, Engine{Name: name, Total: amount(t, total)})
						case "class":
							p := strings.Split(w, ":")
							c := Class{Name: p[0], Floor: amount(t, p[1]), Unlent: amount(t, p[2]), Ceiling: amount(t, p[3])}
							c.Windowed = len(p) > 4
							pool.Classes = append(pool.Classes, c)
						case "survival":
							pool.Survival = amount(t, w)
						case "replicas":
							pool.Replicas, _ = strconv.Atoi(w)
						}
					}
					a = NewAllocator(&pool, epoch, Config{})
					continue
				case "leader":
					epoch++
					a = NewAllocator(&pool, epoch, Config{})
					continue
				case "load":
					n, _ := strconv.ParseInt(args["lease"], 10, 64)
					rev, _ := strconv.ParseUint(args["rev"], 10, 64)
					ev = Event{Kind: Load, Grant: &Grant{Pool: pool.Name, ID: id(), Lease: n, Rev: rev, Epoch: epoch - 1, Accounts: []Account{
						{Engine: pool.Engines[0].Name, Amount: amount(t, args["amount"]), Bound: amount(t, args["bound"])},
					}}}
				case "join":
					n, _ := strconv.ParseInt(args["lease"], 10, 64)
					leases[f[1]] = n
					ev = Event{Kind: Join, Member: Member{ID: id(), Lease: n}}
				case "gone":
					ev = Event{Kind: Gone, Member: Member{ID: id(), Lease: leases[f[1]]}}
				case "forget":
					ev = Event{Kind: Forget, Member: Member{ID: ID{Replica: f[1]}}}
				case "tick":
					by, err := time.ParseDuration(f[1])
					if err != nil {
						t.Fatal(err)
					}
					for end := now + Time(by); now < end; {
						now = min(now+every, end)
						for _, e := range a.Step(now, &ev, nil) {
							print1(&out, &e, revs)
						}
					}
					continue
				case "report":
					ev = Event{Kind: Reported, Report: script(t, &pool, id(), leases[f[1]], args)}
					seq++
					ev.Report.Seq = seq
					if s := args["seq"]; s != "" {
						ev.Report.Seq, _ = strconv.ParseUint(s, 10, 64)
					}
					ev.Report.Epoch, ev.Report.Rev = epoch, revs[f[1]]
					if s := args["rev"]; s != "" {
						ev.Report.Rev, _ = strconv.ParseUint(s, 10, 64)
					}
				case "state":
					printStatus(&out, a.Status())
					continue
				default:
					t.Fatalf("%s: %q", d.Pos, line)
				}
				for _, e := range a.Step(now, &ev, nil) {
					print1(&out, &e, revs)
				}
			}
			return out.String()
		})
	})
}

func amount(t *testing.T, s string) (a Amount) {
	t.Helper()
	if _, err := fmt.Sscanf(s, "%d/%d", &a[0], &a[1]); err != nil {
		t.Fatalf("amount %q: %v", s, err)
	}
	return a
}

// script is a report of one engine.
func script(t *testing.T, p *Pool, id ID, lease int64, args map[string]string) *Report {
	r := &Report{Pool: p.Name, ID: id, Lease: lease, GrantAge: time.Second}
	e := EngineReport{Engine: p.Engines[0].Name, Gauge: Amount{-1, -1}, Others: Amount{-1, -1}}
	for k := range p.Classes {
		c := ClassReport{Class: p.Classes[k].Name, Used: []Amount{{}}}
		if s := args[c.Class]; s != "" {
			for _, part := range strings.Split(s, ",") {
				k, v, _ := strings.Cut(part, ":")
				switch k {
				case "used":
					c.Used[0] = amount(t, v)
				case "hold":
					c.Hold = amount(t, v)
				case "wait":
					n, head, _ := strings.Cut(v, "x")
					c.Waiting, _ = strconv.Atoi(n)
					c.Head, c.Short = amount(t, head), true
				case "waited":
					c.Waited, _ = time.ParseDuration(v)
					c.Age = c.Waited
				case "rejected":
					c.Rejected, _ = strconv.ParseUint(v, 10, 64)
				}
			}
		}
		e.Used = plus(e.Used, c.Used[0])
		r.Classes = append(r.Classes, c)
	}
	if s := args["total"]; s != "" {
		e.Total = amount(t, s)
	}
	if s := args["gauge"]; s != "" {
		e.Gauge, e.GaugeSeq = amount(t, s), 1
		e.Others = e.Gauge
	}
	if s := args["residual"]; s != "" {
		r.Residual, _ = time.ParseDuration(s)
	}
	r.Engines = []EngineReport{e}
	return r
}

func print1(out *strings.Builder, e *Effect, revs map[string]uint64) {
	switch e.Op {
	case Write:
		g := e.Grant
		revs[g.Replica] = g.Rev
		fmt.Fprintf(out, "write %s rev %d:", g.Replica, g.Rev)
		for _, c := range g.Accounts {
			fmt.Fprintf(out, " %s%s %v (bound %v", c.Engine, c.Class, c.Amount, c.Bound)
			if c.Survival != (Amount{}) {
				fmt.Fprintf(out, ", survival %v", c.Survival)
			}
			fmt.Fprint(out, ")")
		}
		for _, c := range g.Classes {
			if c.Floor != (Amount{}) {
				fmt.Fprintf(out, " %s floor %v", c.Class, c.Floor)
			}
		}
		if g.Recall {
			fmt.Fprint(out, " recall")
		}
		if g.Echo {
			fmt.Fprint(out, " echo")
		}
		if g.For != "" {
			fmt.Fprintf(out, " for %s", g.For)
		}
		fmt.Fprintln(out)
	case Remove:
		fmt.Fprintf(out, "remove %s\n", e.ID.Replica)
	case Note:
		h := &e.Handoff
		if !h.Stage.OfHandoff() {
			fmt.Fprintf(out, "%s %s\n", h.To, h.Stage)
			return
		}
		fmt.Fprintf(out, "handoff %d to %s for %s from %v want %v: %s after %v\n", h.Seq, h.To, h.Class, h.From, h.Want, h.Stage, h.Since)
	}
}

func printStatus(out *strings.Builder, s *Status) {
	for _, c := range s.Accounts {
		fmt.Fprintf(out, "%s%s total %v foreign %v free %v\n", c.Engine, c.Class, c.Total, c.Foreign, c.Free)
	}
	for _, r := range s.Replicas {
		fmt.Fprintf(out, "%s live %v rev %d acknowledged %d", r.Replica, r.Live, r.Revision, r.Acknowledged)
		for _, c := range r.Accounts {
			fmt.Fprintf(out, " granted %v bound %v used %v", c.Granted, c.Bound, c.Used)
		}
		if !r.Live {
			fmt.Fprintf(out, " residual %v", r.Residual)
		}
		fmt.Fprintln(out)
		for _, c := range r.Classes {
			fmt.Fprintf(out, "  %s guarantee %v floor %v kept %v (%s) used %v lent %v borrowed %v\n", c.Class, c.Guarantee, c.Floor, c.Kept, c.Why, c.Used, c.Lent, c.Borrowed)
		}
	}
}
