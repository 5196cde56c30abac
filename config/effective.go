package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"headgate/identity"
)

// Effective prints a valid configuration with every default filled in, as YAML
// that means the same when it is read. Amounts that were left out are numbers
// where the file says what the engines hold.
func Effective(c *Config) ([]byte, error) {
	return marshal(c.filled())
}

// PolicyText prints a policy as a file that LoadPolicy reads.
func PolicyText(p *Policy) ([]byte, error) { return marshal(&PolicyFile{Policy: *p}) }

func marshal(v any) ([]byte, error) {
	b, err := yaml.MarshalWithOptions(v,
		yaml.IndentSequence(true),
		yaml.CustomMarshaler(marshalDuration),
		yaml.CustomMarshaler(func(b Bytes) ([]byte, error) { return []byte(b.String()), nil }),
	)
	if err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return b, nil
}

func marshalDuration(d time.Duration) ([]byte, error) { return []byte(formatDuration(d)), nil }

// filled returns a copy in which what was left out is what it comes to.
func (c *Config) filled() *Config {
	full := *c
	full.Pools = slices.Clone(c.Pools)
	for i := range full.Pools {
		p := &full.Pools[i]
		p.Classes = slices.Clone(p.Classes)
		e := p.Envelope()
		for j := range p.Classes {
			p.Classes[j].fill(e)
		}
	}
	if c.Control != nil {
		filled := *c.Control
		filled.Replicas = filled.replicas()
		full.Control = &filled
		for i := range full.Pools {
			full.Pools[i].Control.Unit.KVTokens = c.Pools[i].unit()
		}
	}
	full.Identity.Keys, full.file = slices.Clone(c.Identity.Keys), slices.Clone(c.file)
	for _, keys := range [][]identity.Key{full.Identity.Keys, full.file} {
		for i := range keys {
			if k := &keys[i]; k.Default == "" {
				k.Default = k.Classes[0]
			}
		}
	}
	full.Identity.Rules = slices.Clone(c.Identity.Rules)
	for i := range full.Identity.Rules {
		if r := &full.Identity.Rules[i]; r.Default == "" {
			r.Default = r.Classes[0]
		}
	}
	if a := full.Identity.Anonymous; a != nil && a.Default == "" {
		filled := *a
		filled.Default = a.Classes[0]
		full.Identity.Anonymous = &filled
	}
	return &full
}

// fill sets what a left-out amount comes to, as far as e is known.
func (c *Class) fill(e Envelope) {
	got := c.resolve(e)
	set := func(q *Quantity, n int64, known bool) {
		if !q.given && known {
			*q = Number(n)
		}
	}
	slots, kv := e.Slots > 0, e.KVTokens > 0
	set(&c.Floor.Slots, 0, true)
	set(&c.Unlent.Slots, 0, true)
	set(&c.Ceiling.Slots, got.Ceiling.Slots, slots)
	set(&c.Headroom.Slots, 0, true)
	set(&c.Unlent.KVTokens, got.Unlent.KVTokens, slots && kv || got.Unlent.Slots == 0 && !c.Unlent.Slots.percent)
	set(&c.Floor.KVTokens, got.Floor.KVTokens, slots && kv || got.Floor.Slots == 0 && !c.Floor.Slots.percent)
	set(&c.Ceiling.KVTokens, got.Ceiling.KVTokens, kv)
	set(&c.Headroom.KVTokens, 0, true)
}
