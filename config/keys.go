package config

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"

	"headgate/identity"
)

// KeysFile is a file of keys: what keys is in a configuration, in a file of its own that
// a program writes.
type KeysFile struct {
	// Keys are the callers' API keys.
	Keys []identity.Key `yaml:"keys"`

	src *source
}

func (f *KeysFile) validate(l *list) { identity.ValidateKeys(f.Keys, l.bad) }

// LoadKeys is Load for a file of keys.
func LoadKeys(path string) (*KeysFile, []Problem, error) {
	data, err := read("keys", path)
	if err != nil {
		return nil, nil, err
	}
	f := &KeysFile{}
	var problems []Problem
	if f.src, problems = fill(path, data, f); Errors(problems) > 0 {
		return nil, problems, nil
	}
	return f, problems, nil
}

// Marshal prints the file so that LoadKeys reads it.
func (f *KeysFile) Marshal() ([]byte, error) {
	b, err := yaml.MarshalWithOptions(f, yaml.IndentSequence(true), yaml.CustomMarshaler(marshalDuration))
	if err != nil {
		return nil, fmt.Errorf("print keys: %w", err)
	}
	return append([]byte("# Written by headgate key. Only hashes of keys are here.\n"), b...), nil
}

// readKeys reads the configuration's file of keys, and checks it together with the
// configuration. Problems are in the order of the file.
func (c *Config) readKeys() ([]Problem, error) {
	f, problems, err := LoadKeys(c.Identity.KeysFile)
	if err != nil {
		return nil, fmt.Errorf("keys_file: %w", err)
	}
	if f == nil {
		return problems, nil
	}
	l := &list{src: f.src, problems: problems}
	classes := c.classes()
	taken := map[string]string{}
	note := func(what, name string) { taken[name] = what }
	for _, k := range c.Identity.Keys {
		note("a key of the configuration", k.Name)
		note("a key of the configuration", k.Hash)
		if k.Old != nil {
			note("a key of the configuration", k.Old.Hash)
		}
	}
	for _, r := range c.Identity.Rules {
		note("a rule", r.Name)
	}
	for i, k := range f.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		if other := taken[k.Name]; other != "" {
			l.bad(at+".name", k.Name, "a name of its own; "+other+" has this one")
		}
		if other := taken[k.Hash]; other != "" {
			l.bad(at+".hash", identity.Redacted, "a key of its own; "+other+" has the same")
		}
		if k.Old != nil && taken[k.Old.Hash] != "" {
			l.bad(at+".old.hash", identity.Redacted, "a key of its own; "+taken[k.Old.Hash]+" has the same")
		}
		for j, name := range k.Classes {
			if !slices.Contains(classes, name) {
				l.bad(fmt.Sprintf("%s.classes[%d]", at, j), name, allowedClass(classes))
			}
		}
	}
	sortProblems(l.problems)
	c.file = f.Keys
	return l.problems, nil
}

// TakeKeys takes over the keys of the file that both configurations name, as the other has
// read it, so that the two can be compared; false: they don't name the same.
func (c *Config) TakeKeys(other *Config) bool {
	if c.Identity.KeysFile != other.Identity.KeysFile {
		return false
	}
	c.file = other.file
	return true
}

// Callers is who may call, with the keys of the file, and with the aliases of models that
// may not be used among those that may not be used.
func (c *Config) Callers() identity.Config {
	all := c.Identity
	all.Keys = slices.Concat(all.Keys, c.file)
	all.Rules = slices.Clone(all.Rules)
	deny := func(m *identity.Models) {
		var more []string
		for i := range c.Pools {
			for _, a := range c.Pools[i].Aliases {
				if identity.Fits(m.Deny, a.Model) {
					more = append(more, a.Name)
				}
			}
		}
		m.Deny = slices.Concat(m.Deny, more)
	}
	for i := range all.Keys {
		deny(&all.Keys[i].Models)
	}
	for i := range all.Rules {
		deny(&all.Rules[i].Models)
	}
	if all.Anonymous != nil {
		a := *all.Anonymous
		deny(&a.Models)
		all.Anonymous = &a
	}
	return all
}
