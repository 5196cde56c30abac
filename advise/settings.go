package advise

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"headgate/admission"
	"headgate/kv"
	"headgate/probe"
	"headgate/sim"
	"headgate/simengine"
)

// Settings are what serves a pool: its engine, and the policy in front of it.
type Settings struct {
	// Engine has the scheduler, the step times and all that no proposal changes. Its slots,
	// KV and longest sequence follow from the fields below.
	Engine     simengine.Config
	Slots      int
	KVTokens   int
	MaxContext int    // asked for, in tokens; 0 is what the KV allows
	Layout     string // probe.Shared or probe.PerSlot
	Priority   bool   // the engine runs what waits by the priority of its class
	Enforced   bool   // by the policy; else requests go to the engine as they come
}

// longest sequence that a session may have, in tokens.
func (s *Settings) longest() int {
	room := s.KVTokens
	if s.Layout == probe.PerSlot {
		room /= max(s.Slots, 1)
	}
	if s.MaxContext > 0 {
		room = min(room, s.MaxContext)
	}
	return room
}

// engine is the model of it.
func (s *Settings) engine() (simengine.Config, error) {
	e := s.Engine
	e.MaxNumSeqs, e.MaxModelLen = s.Slots, s.longest()
	e.NumBlocks = s.KVTokens/e.BlockSize + 1
	e.MaxBatchedTokens = max(e.MaxBatchedTokens, s.Slots)
	var wrong []error
	e.Validate(func(path string, value any, allowed string) {
		wrong = append(wrong, fmt.Errorf("%s is %v: allowed: %s", path, value, allowed))
	})
	return e, errors.Join(wrong...)
}

// Change is one setting and its new value.
type Change struct {
	Key   string // one of Keys
	Class string // of the keys that are a class's
	Text  string // the value as it was written
	n     int
}

// Proposal is settings that are changed together; several of them are a serving profile.
type Proposal struct {
	Changes []Change
	Why     string // the rule that made it, or who named it
}

func (p *Proposal) String() string {
	var all []string
	for _, c := range p.Changes {
		key := c.Key
		if c.Class != "" {
			key += "." + c.Class
		}
		all = append(all, key+"="+c.Text)
	}
	return strings.Join(all, ",")
}

// Keys of changes, and what each is.
var Keys = []struct {
	Name    string
	OfClass bool
	Allowed string
}{
	{"slots", false, "sequences, 1 to 65536"},
	{"kv_tokens", false, "tokens, 16 to 67108864"},
	{"kv_dtype", false, kv.CacheTypes},
	{"max_context", false, "tokens, 16 to 67108864"},
	{"mode", false, "enforce, of a pool that observes"},
	{"floor", true, "slots, 0 or more"},
	{"unlent", true, "slots, 0 or more"},
	{"ceiling", true, "slots, 1 or more"},
	{"reclaim", true, "attrition or reclaim"},
}

// presentBits of a number in the cache there is. Who has another type says tokens.
const presentBits = 16

const mostTokens = 1 << 26

// ParseProposal reads what an operator names, such as slots=2 or slots=2,max_context=65536.
func ParseProposal(text string) (Proposal, error) {
	p := Proposal{Why: "named by --propose"}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		key, class, ofClass := strings.Cut(name, ".")
		c := Change{Key: key, Class: class, Text: value}
		i := slices.IndexFunc(Keys, func(k struct {
			Name    string
			OfClass bool
			Allowed string
		}) bool {
			return k.Name == key
		})
		if !ok || i < 0 || Keys[i].OfClass != (ofClass && class != "") {
			var names []string
			for _, k := range Keys {
				if k.OfClass {
					names = append(names, k.Name+".CLASS")
				} else {
					names = append(names, k.Name)
				}
			}
			return p, fmt.Errorf("proposal %q: %q: allowed are KEY=VALUE with commas between them, of the keys %s", text, part, strings.Join(names, ", "))
		}
		if slices.ContainsFunc(p.Changes, func(o Change) bool { return o.Key == c.Key && o.Class == c.Class }) {
			return p, fmt.Errorf("proposal %q: %s is there twice", text, name)
		}
		good := false
		switch key {
		case "kv_dtype":
			_, good = kv.Bits(value)
		case "mode":
			good = value == "enforce"
		case "reclaim":
			good = value == "attrition" || value == "reclaim"
		default:
			n, err := strconv.Atoi(value)
			least, most := 1, 1<<16
			switch key {
			case "kv_tokens", "max_context":
				least, most = 16, mostTokens
			case "floor", "unlent":
				least = 0
			}
			c.n, good = n, err == nil && n >= least && n <= most
		}
		if !good {
			return p, fmt.Errorf("proposal %q: %s is %q: allowed: %s", text, name, value, Keys[i].Allowed)
		}
		p.Changes = append(p.Changes, c)
	}
	return p, nil
}

// find returns the change of a setting, nil if there is none.
func (p *Proposal) find(key string) *Change {
	for i := range p.Changes {
		if p.Changes[i].Key == key {
			return &p.Changes[i]
		}
	}
	return nil
}

// apply makes the proposed settings of the present ones.
func (p *Proposal) apply(now Settings) Settings {
	for _, c := range p.Changes {
		switch c.Key {
		case "slots":
			now.Slots = c.n
		case "kv_tokens":
			now.KVTokens = c.n
		case "kv_dtype":
			bits, _ := kv.Bits(c.Text)
			now.KVTokens = int(float64(now.KVTokens) * presentBits / bits)
		case "max_context":
			now.MaxContext = c.n
		case "mode":
			now.Enforced = true
		}
	}
	return now
}

// fitted is a policy for an engine of another size: classes keep their shares of slots
// and KV, at least a slot where they had one.
func fitted(of *sim.Policy, e simengine.Config) *sim.Policy {
	t := *of.Table
	was := t.Envelope()
	now := sim.EngineSpec(e)
	now.Name, now.Ordered = t.Engines[0].Name, t.Engines[0].Ordered
	t.Engines, t.Classes = []admission.EngineSpec{now}, slices.Clone(t.Classes)
	all := t.Envelope()
	part := func(a admission.Amount) admission.Amount {
		for r := range a {
			n := (a[r]*all[r] + was[r]/2) / max(was[r], 1)
			if a[r] > 0 {
				n = max(n, 1)
			}
			a[r] = min(n, all[r])
		}
		return a
	}
	var instant admission.Amount
	for k := range t.Classes {
		c := &t.Classes[k]
		if all != was {
			c.Floor, c.Unlent, c.Ceiling, c.Headroom = part(c.Floor), part(c.Unlent), part(c.Ceiling), part(c.Headroom)
		}
		for r := range instant {
			if c.Window == 0 {
				// What was rounded up is the last ones' loss: the first come first.
				c.Floor[r] = min(c.Floor[r], all[r]-instant[r])
				instant[r] += c.Floor[r]
			}
			c.Unlent[r] = min(c.Unlent[r], c.Floor[r])
		}
	}
	return &sim.Policy{Table: &t, Priority: of.Priority}
}

// amend changes a policy's classes, of a table that nobody else has.
func (p *Proposal) amend(policy *sim.Policy) error {
	t := policy.Table
	all := t.Envelope()
	for _, c := range p.Changes {
		if c.Class == "" {
			continue
		}
		k := slices.IndexFunc(t.Classes, func(s admission.ClassSpec) bool { return s.Name == c.Class })
		if k < 0 {
			var names []string
			for i := range t.Classes {
				names = append(names, t.Classes[i].Name)
			}
			return fmt.Errorf("%s.%s: the policy's classes are %s", c.Key, c.Class, strings.Join(names, ", "))
		}
		s := &t.Classes[k]
		n := int64(c.n)
		switch c.Key {
		case "floor":
			s.Floor = admission.Of(n, scaled(s.Floor, all, n))
			s.Unlent = admission.Of(min(s.Unlent[admission.Slots], n), min(s.Unlent[admission.KV], s.Floor[admission.KV]))
		case "unlent":
			s.Unlent = admission.Of(n, scaled(s.Floor, s.Floor, n))
		case "ceiling":
			s.Ceiling = admission.Of(n, s.Ceiling[admission.KV])
		case "reclaim":
			if s.Mode = admission.Attrition; c.Text == "reclaim" {
				s.Mode = admission.ReclaimNow
			}
		}
	}
	var wrong []error
	t.Validate(func(path string, value any, allowed string) {
		wrong = append(wrong, fmt.Errorf("%s is %v: allowed: %s", path, value, allowed))
	})
	return errors.Join(wrong...)
}

// scaled is the KV that goes with so many slots: in the proportion that an amount has,
// or else the whole.
func scaled(of, whole admission.Amount, slots int64) int64 {
	if of[admission.Slots] > 0 {
		return min(of[admission.KV]*slots/of[admission.Slots], whole[admission.KV])
	}
	return whole[admission.KV] * slots / max(whole[admission.Slots], 1)
}
