package admission

import (
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestGoldens walks testdata/*.txt: scripts that drive a core and print, after
// each command, the effects it asked for; `state` prints all of it. Rewrite
// them with `go test ./admission -rewrite`.
//
//	table [drain] [pause [callin]] [bypass] [reclaims=N] [stalls=SHARE] [until=DURATION] [recall]
//	                      a table, one class or engine a line (see parseTable); the first builds the core
//	offer CLASS id=N prompt=T [out=T] [n=N] [tenant=N] [session=N] [cached=T [home=ENGINE]] [whole] [unsplit]
//		[ttft=DURATION] [tpot=DURATION]
//	cancel id=N [unavailable]
//	bar id=N [barred=ENGINE]
//	scheduled id=N [cached=T]
//	progress id=N out=T [prompt=T]
//	end id=N [out=T] [cause=finished] [released] [delivered] [untouched] [kept] [unsplit] [elsewhere [busy]] [retry=DURATION]
//	release id=N          of the last hold that request N had
//	observe ENGINE running=N kv=T [progress=N] [preemptions=N] [state=down]
//	repeat n=N out=T      N requests of the first class that end after T tokens each
//	teach CLASS prompt=T out=T first=DURATION [each=DURATION] [n=N] [after=DURATION] [session=N]
//	                      N requests of id 63 one after the other, after a pause, with nothing beside them: the
//	                      first token after so long, then one each so long; from them the core learns how fast
//	                      the engine is
//	tick                  only the time
//	renew until=DURATION  the lease ends then, since the start
//	demands               prints what is told of demand
//	state                 prints everything
//	counts CLASS          prints the counters that are not zero
//
// Every command takes at=DURATION, the time since the start.
func TestGoldens(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if filepath.Ext(path) != ".txt" {
			return // a counterexample that a property has kept
		}
		s := &script{holds: map[ID]Hold{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	core     *Core
	now      Time
	holds    map[ID]Hold
	demanded Demands
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	num := func(key string, def int64) int64 {
		if d.HasArg(key) {
			var v int64
			d.ScanArgs(t, key, &v)
			return v
		}
		return def
	}
	dur := func(key string) time.Duration {
		if !d.HasArg(key) {
			return 0
		}
		var text string
		d.ScanArgs(t, key, &text)
		v, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		return v
	}
	engine := func(name string) Engine {
		for e := range s.core.engines {
			if s.core.engines[e].spec.Name == name {
				return Engine(e)
			}
		}
		t.Fatalf("%s: no engine %s", d.Pos, name)
		return 0
	}
	class := func() Class {
		for k := range s.core.classes {
			if s.core.classes[k].spec.Name == d.CmdArgs[0].Key {
				return Class(k)
			}
		}
		t.Fatalf("%s: no class %s", d.Pos, d.CmdArgs[0].Key)
		return 0
	}
	if d.HasArg("at") {
		s.now = Time(dur("at"))
	}
	id := MakeID(0, uint32(num("id", 0)))
	switch d.Cmd {
	case "table":
		tab := parseTable(t, d)
		var wrong []string
		tab.Validate(func(path string, value any, allowed string) {
			wrong = append(wrong, fmt.Sprintf("%s is %v, must be %s\n", path, value, allowed))
		})
		switch {
		case wrong != nil:
			return strings.Join(wrong, "")
		case s.core == nil:
			s.core = New(tab, 64)
			return "ok"
		}
		tab.Rev = s.core.rev + 1
		return s.step(&Event{Kind: Apply, Table: tab})
	case "offer":
		ev := &Event{
			Kind: Offer, Class: class(), ID: id, Prompt: int32(num("prompt", 100)), Out: int32(num("out", Undeclared)), N: int32(num("n", 1)),
			Tenant: Tenant(num("tenant", 0)), Session: uint32(num("session", 0)), Cached: int32(num("cached", 0)),
			First: dur("ttft"), Token: dur("tpot"),
		}
		if d.HasArg("home") {
			var name string
			d.ScanArgs(t, "home", &name)
			ev.Engine = engine(name)
		}
		if d.HasArg("barred") {
			var name string
			d.ScanArgs(t, "barred", &name)
			ev.Barred = 1 << engine(name)
		}
		if d.HasArg("whole") {
			ev.Flags = FlagWhole
		}
		if d.HasArg("unsplit") {
			ev.Flags |= FlagUnsplit
		}
		return s.step(ev)
	case "cancel":
		ev := &Event{Kind: Cancel, ID: id}
		if d.HasArg("unavailable") {
			ev.Cause = CauseUnavailable
		}
		return s.step(ev)
	case "bar":
		ev := &Event{Kind: Bar, ID: id}
		if d.HasArg("barred") {
			var name string
			d.ScanArgs(t, "barred", &name)
			ev.Barred = 1 << engine(name)
		}
		return s.step(ev)
	case "scheduled":
		return s.step(&Event{Kind: Scheduled, Hold: s.holds[id], Cached: int32(num("cached", 0))})
	case "progress":
		return s.step(&Event{Kind: Progress, Hold: s.holds[id], Out: int32(num("out", 0)), Prompt: int32(num("prompt", 0))})
	case "end":
		ev := &Event{Kind: Ended, Hold: s.holds[id], Out: int32(num("out", 0)), Cause: CauseFinished}
		for flag, v := range map[string]uint8{"released": FlagReleased, "delivered": FlagDelivered, "untouched": FlagUntouched, "kept": FlagKept, "unsplit": FlagUnsplit, "elsewhere": FlagElsewhere, "busy": FlagBusy} {
			if d.HasArg(flag) {
				ev.Flags |= v
			}
		}
		ev.Retry = Time(dur("retry"))
		if d.HasArg("cause") {
			var name string
			d.ScanArgs(t, "cause", &name)
			for i, n := range causeNames {
				if n == name {
					ev.Cause = Cause(i)
				}
			}
		}
		return s.step(ev)
	case "release":
		return s.step(&Event{Kind: Released, Hold: s.holds[id]})
	case "observe":
		ev := &Event{Kind: Observe, Engine: engine(d.CmdArgs[0].Key), Gauge: Gauge{
			Running: int32(num("running", -1)), KV: num("kv", -1), Progress: num("progress", -1), Preemptions: num("preemptions", -1), Asked: s.now,
		}}
		if d.HasArg("state") {
			var name string
			d.ScanArgs(t, "state", &name)
			ev.Gauge.State = map[string]State{"ready": Ready, "loading": Loading, "down": Down}[name]
		}
		return s.step(ev)
	case "repeat":
		for range num("n", 1) {
			for _, e := range s.core.Step(s.now, &Event{Kind: Offer, ID: 63, Prompt: 100, Out: 200}, nil) {
				s.core.Step(s.now, &Event{Kind: Ended, Hold: e.Hold, Out: int32(num("out", 0)), Cause: CauseFinished, Flags: FlagReleased}, nil)
			}
		}
		return ""
	case "teach":
		for range num("n", 1) {
			s.now += Time(dur("after"))
			s.teach(t, &Event{
				Kind: Offer, Class: class(), ID: 63, Prompt: int32(num("prompt", 100)), Out: int32(num("out", 1)), N: 1,
				Session: uint32(num("session", 0)),
			}, Time(dur("first")), Time(dur("each")))
		}
		return ""
	case "renew":
		return s.step(&Event{Kind: Renew, Until: Time(dur("until"))})
	case "told":
		return s.step(&Event{Kind: Told, Elsewhere: s.elsewhere(t, d)})
	case "demands":
		return s.demands()
	case "tick":
		return s.step(&Event{Kind: Tick})
	case "state":
		next := "never"
		if at, ok := s.core.Next(); ok {
			next = time.Duration(at).String()
		}
		return s.core.Snapshot().String() + "next " + next + "\n"
	case "brief":
		return s.brief()
	case "counts":
		return counts(&s.core.classes[class()].counts)
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

// brief prints what a brief has beyond the state, and the work for the tenants that were named.
func (s *script) brief() string {
	var out strings.Builder
	b := s.core.Brief()
	for k := range b.Classes {
		c := &b.Classes[k]
		fmt.Fprintf(&out, "class %s:", c.Name)
		if b.Closed[k] != "" {
			fmt.Fprintf(&out, " does not lend: %s;", b.Closed[k])
		}
		if b.Heads[k] != Never {
			fmt.Fprintf(&out, " the head starts in %v;", time.Duration(b.Heads[k]).Round(time.Millisecond))
		}
		for t := range Tenant(len(s.core.tenants)) {
			if w, ok := s.core.Work(Class(k), t); ok {
				fmt.Fprintf(&out, " tenant %d: %d done, counter %d, %d wait;", t, w.Done, w.Counter, w.Waiting)
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// elsewhere reads lines such as
//
//	engine e used=1/144 idle=3/4000 [ends=1s:1/144] [prefill=1600:3s]
//	class interactive used=1/144 protected=1/144 waiting=1 [within] [wants] [intime] offered=3 prompt=118 pending=1s pressed=2s starts=1:118:1s
//
// Times are ages, of ends and prefills from now.
func (s *script) elsewhere(t *testing.T, d *datadriven.TestData) *Elsewhere {
	v := &Elsewhere{Engines: make([]EngineElsewhere, len(s.core.engines)), Classes: make([]ClassElsewhere, len(s.core.classes))}
	age := func(text string) Time {
		v, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		return max(s.now-Time(v), 1)
	}
	num := func(text string) (n int64) {
		fmt.Sscan(text, &n)
		return n
	}
	amount := func(text string) Amount {
		slots, tokens, _ := strings.Cut(text, "/")
		return Of(num(slots), num(tokens))
	}
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		f := strings.Fields(line)
		for _, w := range f[2:] {
			key, value, _ := strings.Cut(w, "=")
			parts := strings.Split(value, ":")
			if f[0] == "engine" {
				e := &v.Engines[slices.IndexFunc(s.core.engines, func(e engine) bool { return e.spec.Name == f[1] })]
				switch key {
				case "used":
					e.Used = amount(value)
				case "idle":
					e.Idle = amount(value)
				case "ends":
					e.Ends = append(e.Ends, Ending{2*s.now - age(parts[0]), amount(parts[1])})
				case "prefill":
					e.Speed.Prefills = append(e.Speed.Prefills, Prefill{int32(num(parts[0])), s.now - age(parts[1])})
				}
				continue
			}
			c := &v.Classes[slices.IndexFunc(s.core.classes, func(c class) bool { return c.spec.Name == f[1] })]
			switch key {
			case "used":
				c.Used = amount(value)
			case "protected":
				c.Protected = amount(value)
			case "waiting":
				c.Waiting = int(num(value))
			case "within":
				c.Within, c.Wants = true, true
			case "wants":
				c.Wants = true
			case "offered":
				c.Offered = uint64(num(value))
			case "prompt":
				c.Prompt = int32(num(value))
			case "pending":
				c.Pending = age(value)
			case "pressed":
				c.Pressed = age(value)
			case "starts":
				c.Starts = []Starts{{N: int(num(parts[0])), Tokens: num(parts[1]), Since: age(parts[2])}}
			}
		}
	}
	return v
}

// teach runs one request from its offer to its end.
func (s *script) teach(t *testing.T, ev *Event, first, each Time) {
	var hold Hold
	for _, e := range s.core.Step(s.now, ev, nil) {
		if e.Op == Admit && e.ID == ev.ID {
			hold = e.Hold
		}
	}
	if hold == 0 {
		t.Fatalf("at %v: a request to learn from has to start at once", time.Duration(s.now))
	}
	s.now += first
	s.core.Step(s.now, &Event{Kind: Progress, Hold: hold, Out: 1}, nil)
	s.now += each * Time(ev.Out-1)
	s.core.Step(s.now, &Event{Kind: Ended, Hold: hold, Out: ev.Out, Cause: CauseFinished, Flags: FlagReleased}, nil)
}

func (s *script) step(ev *Event) string {
	var b strings.Builder
	for _, e := range s.core.Step(s.now, ev, nil) {
		if e.Op == Admit || e.Op == Warm {
			s.holds[e.ID] = e.Hold
		}
		b.WriteString(s.describe(&e) + "\n")
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

func (s *script) describe(e *Effect) string {
	class := s.core.classes[e.Class].spec.Name
	engine := s.core.engines[e.Engine].spec.Name
	switch e.Op {
	case Queued:
		return fmt.Sprintf("%d queued in %s", e.ID, class)
	case Admit:
		text := fmt.Sprintf("%d admitted to %s, %d kv tokens", e.ID, engine, e.Tokens)
		if e.Limit > 0 {
			text += fmt.Sprintf(", output limit %d", e.Limit)
		}
		if e.Loan {
			text += ", a loan"
		}
		return text
	case Warm:
		text := fmt.Sprintf("%d to be warmed on %s, %d tokens", e.ID, engine, e.Tokens)
		if e.Loan {
			text += ", a loan"
		}
		return text
	case Reclaim:
		return fmt.Sprintf("%d to be ended on %s, for %d", e.ID, engine, e.For)
	case Reject:
		text := fmt.Sprintf("%d rejected: %v", e.ID, e.Cause)
		if e.Limit > 0 || e.Tokens > 0 {
			text += fmt.Sprintf(", wanted %d, allowed %d", e.Tokens, e.Limit)
		}
		if e.Retry > 0 {
			text += fmt.Sprintf(", retry in %v", time.Duration(e.Retry).Round(time.Millisecond))
		}
		return text
	case Done:
		return fmt.Sprintf("%d done: %v", e.ID, e.Cause)
	case Stage:
		switch e.Cause {
		case CauseDemoted, CauseBack:
			return fmt.Sprintf("%s: %v", engine, e.Cause)
		case CauseAside:
			return fmt.Sprintf("%s: %v for %v", engine, e.Cause, time.Duration(e.Retry))
		}
		text := fmt.Sprintf("%s: %v", class, e.Cause)
		if e.For != 0 {
			text += fmt.Sprintf(" for %d", e.For)
		}
		return text
	case Drained:
		return "drained"
	case Demand:
		if e.Retry > 0 {
			return fmt.Sprintf("demand within %v", time.Duration(e.Retry))
		}
		return "demand"
	}
	return fmt.Sprintf("unknown effect %d", e.Op)
}

// parseTable reads lines such as
//
//	engine e slots=4 kv=5104 block=16 context=4096 boundary=0 [ordered] [fatal] [together] [caches] [withheld=2 [survival=1]]
//
// An amount without a slash is of slots, with the same share of the KV.
//
//	class interactive floor=3/0 unlent=1/0 ceiling=4/5104 headroom=0/0 idle=2s depth=10 tenant=5 wait=30s life=5s out=64 maxout=0 [closed]
//		[reclaim] grace=1s pin=2 [settled] window=60s ttft=2s tpot=50ms e2e=30s warm=1m [withheld=2 [survival=1]]
//
// A class that has a life of loans ends them by deadline.
func parseTable(t *testing.T, d *datadriven.TestData) *Table {
	tab := &Table{Drain: d.HasArg("drain"), Pause: d.HasArg("pause"), CallIn: d.HasArg("callin"), Bypass: d.HasArg("bypass"), Recall: d.HasArg("recall")}
	if d.HasArg("until") {
		var until string
		d.ScanArgs(t, "until", &until)
		v, err := time.ParseDuration(until)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		tab.Until = Time(v)
	}
	if d.HasArg("reclaims") {
		d.ScanArgs(t, "reclaims", &tab.ReclaimRate)
	}
	if d.HasArg("stalls") {
		var share string
		d.ScanArgs(t, "stalls", &share)
		v, err := strconv.ParseFloat(share, 64)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		tab.StallShare = v
	}
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		f := strings.Fields(line)
		has := map[string]string{}
		for _, w := range f[2:] {
			key, value, _ := strings.Cut(w, "=")
			has[key] = value
		}
		num := func(key string, def int64) int64 {
			if has[key] == "" {
				return def
			}
			v, err := strconv.ParseInt(has[key], 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			return v
		}
		dur := func(key string) time.Duration {
			if has[key] == "" {
				return 0
			}
			v, err := time.ParseDuration(has[key])
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			return v
		}
		amount := func(key string, def Amount) Amount {
			if has[key] == "" {
				return def
			}
			a, b, both := strings.Cut(has[key], "/")
			slots, _ := strconv.ParseInt(a, 10, 64)
			if !both {
				// The same share of the KV.
				envelope := tab.Envelope()
				return Of(slots, envelope[KV]*slots/envelope[Slots])
			}
			tokens, _ := strconv.ParseInt(b, 10, 64)
			return Of(slots, tokens)
		}
		part := func(key string, whole Amount) Amount {
			if a := amount(key, Amount{}); strings.Contains(has[key], "/") || a == (Amount{}) {
				return a
			}
			slots, _ := strconv.ParseInt(has[key], 10, 64)
			return Of(slots, whole[KV]*slots/whole[Slots])
		}
		flag := func(key string) bool {
			_, ok := has[key]
			return ok
		}
		if f[0] == "engine" {
			tab.Engines = append(tab.Engines, EngineSpec{
				Name: f[1], Slots: num("slots", 4), KV: num("kv", 5104), Block: num("block", 16), MaxContext: num("context", 4096),
				Boundary: num("boundary", 0), Ordered: flag("ordered"), Fatal: flag("fatal"), Together: flag("together"), Caches: flag("caches"), Splits: flag("caches"),
				GaugeAge: dur("age"), Closed: flag("closed"), Shared: flag("withheld"),
			})
			if s := &tab.Engines[len(tab.Engines)-1]; s.Shared {
				s.Withheld, s.Survival = part("withheld", Of(s.Slots, s.KV)), part("survival", Of(s.Slots, s.KV))
			}
			continue
		}
		c := ClassSpec{
			Name: f[1], Floor: amount("floor", Amount{}), Whole: amount("whole", Amount{}), Unlent: amount("unlent", Amount{}), Headroom: amount("headroom", Amount{}),
			Ceiling: amount("ceiling", tab.Envelope()), IdleAfter: dur("idle"), Depth: int(num("depth", 10)), TenantDepth: int(num("tenant", 0)),
			MaxWait: dur("wait"), LoanLife: dur("life"), DefaultOut: int32(num("out", 64)), MaxOut: int32(num("maxout", 0)), Closed: flag("closed"),
			Grace: dur("grace"), PinAfter: int(num("pin", 0)), Window: dur("window"), KeepWarm: dur("warm"),
			Objective: Objective{First: dur("ttft"), Token: dur("tpot"), Whole: dur("e2e")},
		}
		if c.Shared = flag("withheld"); c.Shared {
			c.Withheld, c.Survival = part("withheld", c.Ceiling), part("survival", c.Ceiling)
		}
		switch {
		case c.LoanLife > 0:
			c.Mode = Deadline
		case flag("reclaim"):
			c.Mode = ReclaimNow
		}
		if flag("settled") {
			c.Reopen = ReopenSettled
		}
		tab.Classes = append(tab.Classes, c)
	}
	return tab
}

// demands prints what the core says of its demand.
func (s *script) demands() string {
	s.core.Demands(&s.demanded)
	var b strings.Builder
	for e, v := range s.demanded.Engines {
		fmt.Fprintf(&b, "engine %s: used %v", s.core.engines[e].spec.Name, v.Used)
		if v.Down {
			b.WriteString(" down")
		}
		b.WriteByte('\n')
	}
	for k, v := range s.demanded.Classes {
		fmt.Fprintf(&b, "class %s: used %v hold %v waiting %d head %v waited %v admitted %d rejected %d", s.core.classes[k].spec.Name, v.Used, v.Hold, v.Waiting, v.Head, time.Duration(v.Waited), v.Admitted, v.Rejected)
		if v.Short {
			b.WriteString(" short")
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "residual %v\n", time.Duration(s.demanded.Residual))
	return b.String()
}

func counts(n *Counts) string {
	var lines []string
	add := func(name string, v int64) {
		if v != 0 {
			lines = append(lines, fmt.Sprintf("%s %d", name, v))
		}
	}
	add("offered", int64(n.Offered))
	add("admitted", int64(n.Admitted))
	add("loans", int64(n.Loans))
	add("requeued", int64(n.Requeued))
	add("reclaims", int64(n.Reclaims))
	add("recalls", int64(n.Recalls))
	add("ghosts", int64(n.Ghosts))
	for why := range NumCauses {
		add("rejected "+Cause(why).String(), int64(n.Rejected[why]))
		add("done "+Cause(why).String(), int64(n.Done[why]))
	}
	add("reserved", n.ReservedTokens)
	add("consumed", n.ConsumedTokens)
	add("refunded", n.RefundedTokens)
	add("overrun", n.OverrunTokens)
	add("waste", n.WasteTokens)
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
