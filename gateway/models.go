package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"headgate/identity"
	"headgate/relay"
	"headgate/wire"
)

// list is what /v1/models shows: each model that the principal may use once, with the
// tightest context of the pools that serve it.
func (c *Config) list(p *identity.Principal) []relay.Model {
	return slices.DeleteFunc(relay.AllModels(c.Pools), func(m relay.Model) bool { return !p.MayUse(m.ID) })
}

type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Context that every engine with the model takes, in tokens; absent, never 0,
	// where no engine says.
	MaxModelLen int `json:"max_model_len,omitempty"`
	// Of a pool that re-plans.
	Headgate *profilesJSON `json:"headgate,omitempty"`
}

func modelView(m relay.Model) modelJSON {
	return modelJSON{ID: m.ID, Object: "model", OwnedBy: "headgate", MaxModelLen: m.MaxContext, Headgate: profilesView(&m)}
}

func (g *Gateway) models(w *response, _ *http.Request, p *identity.Principal) *wire.Error {
	list := struct {
		Object string      `json:"object"`
		Data   []modelJSON `json:"data"`
	}{"list", []modelJSON{}}
	for _, m := range w.cfg.list(p) {
		list.Data = append(list.Data, modelView(m))
	}
	return w.json(list)
}

func (g *Gateway) model(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	id := strings.TrimPrefix(r.URL.Path, modelPrefix)
	for _, m := range w.cfg.list(p) {
		if m.ID == id {
			return w.json(modelView(m))
		}
	}
	return w.cfg.noModel(p, id)
}

// noModel is the error for a model that there is not for the principal. It names those
// that there are, and no others.
func (c *Config) noModel(p *identity.Principal, id string) *wire.Error {
	var names []string
	for _, m := range c.list(p) {
		names = append(names, m.ID)
	}
	return wire.ModelNotFound(id, names)
}

func (w *response) json(v any) *wire.Error {
	body, err := json.Marshal(v)
	if err != nil {
		return wire.Internal()
	}
	if w.Answer(body) != nil {
		return wire.ClientClosed()
	}
	return nil
}
