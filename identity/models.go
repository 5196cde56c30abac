package identity

import (
	"fmt"
	"slices"
	"strings"
)

// Models says which models a caller may use, by the names by which clients call them.
type Models struct {
	// Allow are the models that may be used, and with a * at the end beginnings of names, such as llama-*; absent: all.
	Allow []string `yaml:"allow,omitempty"`
	// Deny are models that may not be used though they are allowed, in the same form. An alias of such a model may not be used either.
	Deny []string `yaml:"deny,omitempty"`
}

// IsZero tells whether all may be used.
func (m Models) IsZero() bool { return len(m.Allow) == 0 && len(m.Deny) == 0 }

// mostModels bounds a list of models, each of which is compared with each request's.
const mostModels = 256

// mostName is the longest name of a model, in bytes.
const mostName = 256

func (m Models) validate(at string, bad func(path string, value any, allowed string)) {
	for _, l := range []struct {
		path string
		list []string
	}{{at + ".models.allow", m.Allow}, {at + ".models.deny", m.Deny}} {
		if len(l.list) > mostModels {
			bad(l.path, len(l.list), fmt.Sprintf("at most %d models", mostModels))
		}
		for i, name := range l.list {
			if name == "" || len(name) > mostName || !pattern(name) {
				bad(fmt.Sprintf("%s[%d]", l.path, i), name, fmt.Sprintf("a model name of 1 to %d bytes, or the beginning of one and a * behind it", mostName))
			}
		}
	}
}

// MayUse tells whether the principal may use a model. One that it may not use is to it
// as one that there is not: its name would tell a stranger what others have.
func (p *Principal) MayUse(model string) bool {
	m := &p.Models
	return (len(m.Allow) == 0 || Fits(m.Allow, model)) && !Fits(m.Deny, model)
}

// Fits tells whether a list has a name, whole or by a beginning and a *.
func Fits(list []string, name string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		if prefix, open := strings.CutSuffix(p, "*"); open {
			return strings.HasPrefix(name, prefix)
		}
		return p == name
	})
}

// pattern tells whether a text has no * but at its end.
func pattern(text string) bool { return !strings.Contains(strings.TrimSuffix(text, "*"), "*") }
