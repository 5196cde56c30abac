package advise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/engine"
	"headgate/probe"
	"headgate/prove"
)

// Finding is something that does not go together.
type Finding struct {
	// Contradiction: both can't be right, or a promise can't be kept. Else it is to be
	// known.
	Contradiction bool   `json:"contradiction"`
	Where         string `json:"where"` // a place of the configuration, or a file and line
	Text          string `json:"text"`
}

// Config is what of a configuration is looked at. Numbers are 0 where it does not say
// them.
type Config struct {
	File         string
	Pools        []Pool
	IdleTimeout  time.Duration // of an engine that is silent
	DrainTimeout time.Duration
}

// Pool is one of a configuration.
type Pool struct {
	Name    string
	Aliases []Alias
	Engines []Engine
	Classes []Class
}

// Alias is a further name of a model.
type Alias struct{ Name, Model string }

// Engine is what a configuration says of one, and what it says of itself.
type Engine struct {
	Name                       string
	Kind                       engine.Kind
	Slots, KVTokens, MaxLength int64
	Priority, PrefixCaching    *bool
	// Models it lists; nil: it was not asked.
	Models []engine.Model
}

// Class is one of a pool's.
type Class struct {
	Name  string
	Floor int64 // slots, owed at every moment
	Wait  time.Duration
	TTFT  time.Duration
	E2E   time.Duration
}

// Client is how long clients wait for an answer; 0 is not known.
type Client struct {
	Timeout time.Duration
	From    string // where that is known from
}

// Audit holds what a configuration, a profile of one of its engines and a recording of its
// traffic say against each other. The profile and the recording may be nil. The profile
// is of the engine of that name, or the only one.
func Audit(c *Config, profiled string, p *probe.Profile, r *prove.Recording, client Client) []Finding {
	u := &auditor{all: []Finding{}}
	if client.Timeout == 0 && r != nil {
		client = gaveUp(r)
	}
	for i := range c.Pools {
		pool := &c.Pools[i]
		at := "pool " + pool.Name
		var of *probe.Profile
		for k := range pool.Engines {
			e := &pool.Engines[k]
			mine := p
			if p != nil && (profiled != "" && e.Name != profiled || profiled == "" && len(c.Pools)+len(pool.Engines) > 2) {
				mine = nil
			}
			where := at + ", engine " + e.Name
			if mine != nil && mine.Kind != "" && e.Kind != "" && mine.Kind != e.Kind {
				u.wrong(where, "its kind is %s, and the profile is of a %s engine: it is not used", e.Kind, mine.Kind)
				mine = nil
			}
			if mine != nil && mine.Model != "" && e.Models != nil && !slices.ContainsFunc(e.Models, func(m engine.Model) bool { return m.ID == mine.Model }) {
				u.wrong(where, "it does not list model %s, of which the profile is: it is not used", mine.Model)
				mine = nil
			}
			if mine != nil {
				of = mine
			}
			u.room(where, e, mine)
			u.probed(where, e, mine)
			u.resident(at, where, pool, e, mine)
			if mine != nil && mine.StepTimes != nil {
				u.silent(where, c, e, mine)
			}
		}
		u.waits(at, pool, c, client)
		if n, ok := of.Number(probe.Slots); ok && len(pool.Engines) == 1 {
			floors := int64(0)
			for _, k := range pool.Classes {
				floors += k.Floor
			}
			if float64(floors) > n {
				u.wrong(at, "floors of %d slots are owed at every moment, and the engine runs %.0f sequences at once (%s)", floors, n, of.Find(probe.Slots).Confidence)
			}
		}
	}
	if r != nil {
		u.recorded(c, r)
	}
	return u.all
}

type auditor struct{ all []Finding }

func (u *auditor) wrong(where, format string, args ...any) {
	u.all = append(u.all, Finding{true, where, fmt.Sprintf(format, args...)})
}

func (u *auditor) note(where, format string, args ...any) {
	u.all = append(u.all, Finding{false, where, fmt.Sprintf(format, args...)})
}

// layout of an engine: as probed, or as its kind always has it.
func layout(e *Engine, p *probe.Profile) string {
	if w := p.Word(probe.KVLayout); w != "" {
		return w
	}
	if e.Kind == engine.VLLM || e.Kind == engine.SGLang {
		return probe.Shared
	}
	return ""
}

// room holds slots and context against the KV.
func (u *auditor) room(where string, e *Engine, p *probe.Profile) {
	kv, slots := e.KVTokens, e.Slots
	if n, ok := p.Number(probe.KVTokens); ok && kv == 0 {
		kv = int64(n)
	}
	if n, ok := p.Number(probe.Slots); ok && slots == 0 {
		slots = int64(n)
	}
	if kv == 0 || e.MaxLength == 0 {
		return
	}
	if e.MaxLength > kv {
		u.wrong(where, "max_context is %d tokens, and the KV has %d: no session can be that long", e.MaxLength, kv)
		return
	}
	if slots == 0 {
		return
	}
	switch layout(e, p) {
	case probe.PerSlot:
		if part := kv / slots; e.MaxLength > part {
			u.wrong(where, "max_context is %d tokens, and each of the %d slots has its own %d of the KV: a longer session is cut or refused", e.MaxLength, slots, part)
		}
	case probe.Shared:
		if slots*e.MaxLength > kv {
			u.note(where, "%d slots of %d tokens each would want %d, and the shared KV has %d: %d sessions of that length run at once, whatever the slots; fewer slots would leave a session no more", slots, e.MaxLength, slots*e.MaxLength, kv, kv/e.MaxLength)
		}
	default:
		if slots*e.MaxLength > kv {
			u.note(where, "%d slots of %d tokens each would want %d, and the KV has %d: whether a session may be that long depends on whether slots divide the KV, which `headgate probe` tells", slots, e.MaxLength, slots*e.MaxLength, kv)
		}
	}
}

// probed holds the configuration against the probe.
func (u *auditor) probed(where string, e *Engine, p *probe.Profile) {
	for _, n := range []struct {
		key     string
		value   int64
		subject probe.Subject
	}{{"slots", e.Slots, probe.Slots}, {"kv_tokens", e.KVTokens, probe.KVTokens}, {"max_context", e.MaxLength, probe.MaxContext}} {
		if found, ok := p.Number(n.subject); ok && float64(n.value)*near > found {
			u.wrong(where, "%s is %d, and the probe found %.0f (%s)", n.key, n.value, found, p.Find(n.subject).Confidence)
		}
	}
	if w := p.Word(probe.PrioritySign); e.Priority != nil && *e.Priority && (w == probe.Ignored || w == probe.HigherFirst) {
		u.wrong(where, "priority is true, and the probe found that priorities are %s: classes would not run in their order", w)
	}
	if w := p.Word(probe.PrefixCache); e.PrefixCaching != nil && *e.PrefixCaching && w == probe.None {
		u.wrong(where, "prefix_caching is true, and the probe found that no prefix is kept: pieces of prompts would be computed for nothing")
	}
}

// resident looks for aliases of models that are not there, and models that take each
// other's place.
func (u *auditor) resident(pool, where string, of *Pool, e *Engine, p *probe.Profile) {
	if e.Models == nil {
		for _, a := range of.Aliases {
			if p != nil && p.Model != "" && p.Model != a.Model && len(of.Engines) == 1 {
				u.note(pool, "alias %s points to model %s, and the probed engine answered as %s: whether the former is resident is not known; --ask asks the engine", a.Name, a.Model, p.Model)
			}
		}
		return
	}
	var loaded, unloaded []string
	for _, m := range e.Models {
		switch {
		case m.Parent != "":
		case m.Unloaded:
			unloaded = append(unloaded, m.ID)
		default:
			loaded = append(loaded, m.ID)
		}
	}
	for _, a := range of.Aliases {
		i := slices.IndexFunc(e.Models, func(m engine.Model) bool { return m.ID == a.Model })
		switch {
		case i < 0 && len(of.Engines) == 1:
			u.wrong(pool, "alias %s points to model %s, which engine %s does not list", a.Name, a.Model, e.Name)
		case i >= 0 && e.Models[i].Unloaded:
			u.wrong(pool, "alias %s points to model %s, which is not resident at engine %s: a request loads it, and what was measured of the alias is of another model or has the load in it", a.Name, a.Model, e.Name)
		}
	}
	if len(unloaded) > 0 && len(unloaded)+len(loaded) > 1 {
		u.wrong(where, "it loads models on demand, and one may evict another: resident are %s, not resident %s; slots and KV are of whichever is loaded", cmp.Or(strings.Join(loaded, ", "), "none"), strings.Join(unloaded, ", "))
	}
}

// silent holds the idle timeout against the longest prefill.
func (u *auditor) silent(where string, c *Config, e *Engine, p *probe.Profile) {
	longest := e.MaxLength
	if n, ok := p.Number(probe.MaxContext); ok && (longest == 0 || int64(n) < longest) {
		longest = int64(n)
	}
	prefill := time.Duration(float64(longest) * p.StepTimes.Step.PrefillToken * float64(time.Millisecond))
	if c.IdleTimeout > 0 && prefill > c.IdleTimeout {
		u.wrong(where, "limits.idle_timeout is %v, and by the probed step times a prompt of %d tokens is computed for %v, in which the engine is silent", c.IdleTimeout, longest, prefill.Round(time.Second))
	}
}

// waits holds queue limits against objectives and clients.
func (u *auditor) waits(pool string, of *Pool, c *Config, client Client) {
	for _, k := range of.Classes {
		at := pool + ", class " + k.Name
		switch {
		case k.E2E > 0 && k.Wait >= k.E2E:
			u.wrong(at, "a request may wait for %v before it is refused, and is late when its answer takes longer than %v", k.Wait, k.E2E)
		case k.TTFT > 0 && k.Wait > k.TTFT:
			u.note(at, "a request may wait for %v before it is refused, and is late when its first token takes longer than %v", k.Wait, k.TTFT)
		}
		switch {
		case client.Timeout == 0:
		case k.Wait == 0:
			u.note(at, "a request may wait without limit, and clients leave after %v (%s): what waits longer is served to nobody", client.Timeout, client.From)
		case k.Wait >= client.Timeout:
			u.wrong(at, "a request may wait for %v, and clients leave after %v (%s): they leave before they are refused", k.Wait, client.Timeout, client.From)
		}
	}
	if t := client.Timeout; t > 0 && c.IdleTimeout > 0 && c.IdleTimeout > t {
		u.note("limits.idle_timeout", "an engine may be silent for %v, and clients leave after %v (%s)", c.IdleTimeout, t, client.From)
	}
}

// leastGivenUp is how many clients have to leave at nearly one age for that to be a timeout.
const leastGivenUp = 5

// gaveUp finds the age at which clients leave: a timeout is where many of them have the
// same.
func gaveUp(r *prove.Recording) Client {
	var ages []time.Duration
	for i := range r.Requests {
		if q := &r.Requests[i]; q.Left {
			ages = append(ages, q.Done-q.Arrival)
		}
	}
	slices.Sort(ages)
	for i := range ages {
		n := i
		for n < len(ages) && ages[n]-ages[i] <= ages[i]/50+50*time.Millisecond {
			n++
		}
		if n-i >= leastGivenUp && 2*(n-i) >= len(ages) && ages[i] >= time.Second {
			return Client{ages[(i+n)/2].Round(100 * time.Millisecond), fmt.Sprintf("%d of the %d that left in the journal did", n-i, len(ages))}
		}
	}
	return Client{}
}

// recorded holds the configuration against what the journal saw.
func (u *auditor) recorded(c *Config, r *prove.Recording) {
	var answers []time.Duration
	var silent time.Duration
	for i := range r.Requests {
		if q := &r.Requests[i]; !q.Left && !q.Failed {
			answers = append(answers, q.Done-q.Dispatched)
			if q.First >= 0 {
				silent = max(silent, q.First-q.Dispatched)
			}
		}
	}
	if len(answers) == 0 {
		return
	}
	slices.Sort(answers)
	if p99 := answers[len(answers)*99/100]; c.DrainTimeout > 0 && p99 > c.DrainTimeout {
		u.note("limits.drain_timeout", "at a stop answers have %v to end, and one of a hundred took %v or longer", c.DrainTimeout, p99.Round(time.Second))
	}
	if c.IdleTimeout > 0 && 2*silent > c.IdleTimeout {
		u.note("limits.idle_timeout", "an engine may be silent for %v, and a first token took %v", c.IdleTimeout, silent.Round(time.Second))
	}
	if f := Evictions(r); f != nil {
		u.all = append(u.all, *f)
	}
}

// Figures of Evictions.
const (
	leastSwitches = 5
	loadFactor    = 3
	leastLoad     = time.Second
	mostBeside    = 0.01 // of requests that ran beside another model
)

// Evictions looks for models that take each other's place at the engine: they are
// never run beside each other, and the first request after a change waits for so much longer
// than others for its first token that a model was loaded. nil is none.
func Evictions(r *prove.Recording) *Finding {
	var all []*prove.Request
	names := map[string]bool{}
	for i := range r.Requests {
		if q := &r.Requests[i]; q.First >= 0 && q.Model != "" {
			all = append(all, q)
			names[q.Model] = true
		}
	}
	if len(names) < 2 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b *prove.Request) int { return cmp.Compare(a.First, b.First) })
	var loads, others []time.Duration
	beside := 0
	until := map[string]time.Duration{} // when the last answer of each model ends
	for i, q := range all {
		for model, end := range until {
			if model != q.Model && end > q.First {
				beside++
				break
			}
		}
		until[q.Model] = max(until[q.Model], q.Done)
		wait := q.First - q.Dispatched
		if i > 0 && all[i-1].Model != q.Model {
			loads = append(loads, wait)
		} else {
			others = append(others, wait)
		}
	}
	if len(loads) < leastSwitches || len(others) == 0 || float64(beside) > mostBeside*float64(len(all)) {
		return nil
	}
	slices.Sort(loads)
	slices.Sort(others)
	load, usual := loads[len(loads)/2], others[len(others)/2]
	if load < loadFactor*usual || load < usual+leastLoad {
		return nil
	}
	var sum time.Duration
	for _, d := range loads {
		sum += max(d-usual, 0)
	}
	var list []string
	for name := range names {
		list = append(list, name)
	}
	slices.Sort(list)
	return &Finding{true, "engine " + all[0].Engine, fmt.Sprintf("models %s evict each other: they never run beside each other, and after each of %d changes a first token took %v in the middle, else %v; %v were spent so. What the journal says of slots and KV is of whichever was loaded",
		strings.Join(list, ", "), len(loads), load.Round(10*time.Millisecond), usual.Round(10*time.Millisecond), sum.Round(time.Second))}
}

func countErrors(all []Finding) (n int) {
	for _, f := range all {
		if f.Contradiction {
			n++
		}
	}
	return n
}

func auditLead(all []Finding) string {
	if len(all) == 0 {
		return "None was found."
	}
	return ""
}

// mostShown of the findings on the page; all are in the JSON.
const mostShown = 20

func auditLines(all []Finding) []string {
	var lines []string
	for _, contradiction := range []bool{true, false} {
		for _, f := range all {
			if f.Contradiction == contradiction {
				kind := "To be known"
				if contradiction {
					kind = "Contradiction"
				}
				lines = append(lines, fmt.Sprintf("%s: %s: %s.", kind, f.Where, f.Text))
			}
		}
	}
	if n := len(lines); n > mostShown {
		lines = append(lines[:mostShown], fmt.Sprintf("And %d more, which --output json has.", n-mostShown))
	}
	return lines
}

// AuditReport is the report of an audit alone.
func AuditReport(all []Finding) *Report {
	return &Report{
		Verdict:  "No journal was given, so that nothing is advised; " + contradictionsFound(countErrors(all)) + ".",
		Distrust: []string{}, Regimes: []RegimeSpan{}, Proposals: []Advice{}, Assumed: []string{}, Audit: all,
	}
}

func contradictionsFound(n int) string {
	switch n {
	case 0:
		return "no contradiction was found"
	case 1:
		return "one contradiction was found"
	}
	return fmt.Sprintf("%d contradictions were found", n)
}
