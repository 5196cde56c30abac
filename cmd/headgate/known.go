package main

import (
	"fmt"
	"log/slog"
	"slices"

	"headgate/config"
	"headgate/engine"
	"headgate/probe"
)

// knownEngine is an engine of which a profile tells more than it does itself.
type knownEngine struct {
	pool    string
	config  *config.Engine
	log     *slog.Logger
	profile *probe.Profile
	err     error // why there is none
}

// found completes what the engine says, which the configuration may have replaced, and
// warns of what contradicts the profile. A profile holds for the engine that was probed:
// one of another kind or model says nothing of this one.
func (k *knownEngine) found(c engine.Capabilities) engine.Capabilities {
	p, warn := k.profile, func(what string, args ...any) {
		k.log.Warn(what, append([]any{"pool", k.pool, "engine", k.config.Name, "profile", k.config.Profile}, args...)...)
	}
	switch {
	case k.err != nil:
		warn("the engine's profile can't be read, and is not used", "err", k.err)
		return c
	case p.Kind != c.Kind || !slices.ContainsFunc(c.Models, func(m engine.Model) bool { return m.ID == p.Model }):
		warn("the engine's profile is of another engine, and is not used", "profile_kind", p.Kind, "profile_model", p.Model, "kind", c.Kind)
		return c
	case p.Version != c.Version:
		warn("the engine's profile is of another version of it", "profile_version", p.Version, "version", c.Version)
	}
	said := func(configured bool) string {
		if configured {
			return "the configuration"
		}
		return "the engine"
	}
	// contradicts warns where what was shown is another thing.
	contradicts := func(s probe.Subject, configured bool, value any) {
		if f := p.Find(s); f.Confidence == probe.Shown {
			by := said(configured)
			warn(fmt.Sprintf("%s says of the engine's %s what the probe has shown to be otherwise; it is done as %s says", by, s, by), "said", value, "shown", f.Value)
		}
	}
	number := func(to *int, s probe.Subject, configured int64) {
		n, ok := p.Number(s)
		switch {
		case !ok:
		case *to == 0:
			*to = int(n)
		case *to != int(n):
			contradicts(s, configured > 0, *to)
		}
	}
	number(&c.Slots, probe.Slots, k.config.Slots)
	number(&c.MaxContext, probe.MaxContext, k.config.MaxContext)
	// What a llama-server's pool is it does not say: the adapter has to take it for a
	// common one.
	if layout := p.Word(probe.KVLayout); c.Kind == engine.LlamaCpp && layout != "" {
		if n, ok := p.Number(probe.KVTokens); ok && k.config.KVTokens == 0 {
			c.KVTokens = int(n)
		}
		c.Fatal = layout == probe.Shared && c.Slots > 1
	}
	number(&c.KVTokens, probe.KVTokens, k.config.KVTokens)
	flag := func(to *bool, s probe.Subject, configured *bool, yes ...string) {
		word := p.Word(s)
		is := slices.Contains(yes, word)
		switch {
		case word == "":
		case !*to && configured == nil:
			*to = is
		case *to != is:
			contradicts(s, configured != nil, *to)
		}
	}
	order := []string{probe.LowerFirst}
	if c.Kind == engine.SGLang {
		order = append(order, probe.HigherFirst) // its adapter sends priorities the engine's way
	}
	flag(&c.Priority, probe.PrioritySign, k.config.Priority, order...)
	flag(&c.PrefixCache, probe.PrefixCache, k.config.PrefixCaching, probe.Kept)
	return c
}
