package relay

import (
	"slices"
	"strings"

	"headgate/wire"
)

// Choose finds the pool of a model in which the class has a share: of those to which the
// model's name belongs most closely. A pool with an engine that has not been heard of yet
// may turn out to be the one.
func Choose(pools []*Pool, model, class string) (*Pool, *wire.Error) {
	best, unknown := 1, false
	var fit []*Pool
	for _, p := range pools {
		switch n := p.Match(model); {
		case n == 0:
			unknown = unknown || p.unheard()
		case n == best:
			fit = append(fit, p)
		case n > best:
			fit, best = append(fit[:0], p), n
		}
	}
	var shares []string // of pools that serve the model, but not the class
	for _, p := range fit {
		if p.HasClass(class) {
			return p, nil
		}
		shares = append(shares, p.Classes()...)
	}
	switch {
	case shares != nil:
		return nil, wire.NewError(wire.CodeClassNotPermitted, "class %s has no share of the engines that serve model %s; allowed for this model: %s",
			class, model, strings.Join(shares, ", "))
	case unknown:
		return nil, wire.EngineUnavailable(0)
	}
	return nil, NoModel(pools, model)
}

// AllModels are those of all pools: each once, with the tightest context of the pools
// that serve it.
func AllModels(pools []*Pool) []Model {
	var all []Model
	for _, p := range pools {
		for _, m := range p.Models() {
			i := slices.IndexFunc(all, func(o Model) bool { return o.ID == m.ID })
			if i < 0 {
				all = append(all, m)
			} else if o := &all[i]; m.MaxContext > 0 && (o.MaxContext == 0 || m.MaxContext < o.MaxContext) {
				o.MaxContext = m.MaxContext
			}
		}
	}
	return all
}

// NoModel is the error for a model that none of the pools serves.
func NoModel(pools []*Pool, model string) *wire.Error {
	var names []string
	for _, m := range AllModels(pools) {
		names = append(names, m.ID)
	}
	return wire.ModelNotFound(model, names)
}
