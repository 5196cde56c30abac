package gateway

import (
	"context"
	"net/http"
	"slices"

	"headgate/console/now"
	"headgate/identity"
	"headgate/telemetry"
)

// Watch keeps what consoles show until ctx ends, and then ends what they read.
func (g *Gateway) Watch(ctx context.Context) { g.feed.Run(ctx) }

// tenants are those that the configuration in force names.
func (g *Gateway) tenants() []string {
	var all []string
	for _, p := range g.live().Auth.Principals() {
		if p.Tenant != "" { // a token names it
			all = append(all, p.Tenant)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (g *Gateway) consoleRoutes(mux *http.ServeMux) {
	parts := []string{now.PartPools}
	for part, has := range map[string]bool{now.PartBatch: g.cfg.BatchTenants != nil, now.PartFleet: g.cfg.Fleet != nil, now.PartLimits: g.cfg.Tenants != nil} {
		if has {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	replica := ""
	if g.cfg.Fleet != nil {
		replica = g.cfg.Fleet.Replica
	}
	mux.HandleFunc("GET /api/session", session(func() *identity.Operators { return g.live().Operators }, replica, parts))
	mux.HandleFunc("GET /api/now", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, g.feed.Now()) })
	mux.HandleFunc("GET /api/traffic", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, g.feed.History()) })
	mux.HandleFunc("GET /api/live", func(w http.ResponseWriter, r *http.Request) {
		g.feed.ServeHTTP(w, r, func() bool {
			o := g.live().Operators
			if o == nil {
				return true
			}
			_, err := o.Authorize(r)
			return err == nil
		})
	})
}

// session answers with who asks, and what there is to show him.
func session(operators func() *identity.Operators, replica string, parts []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := now.Session{Version: telemetry.ReadBuild().Version, Role: identity.RoleAdmin, Replica: replica, Parts: parts}
		if o := operators(); o != nil {
			s.Keys = true
			if name, ok := r.Context().Value(operator{}).(string); ok {
				s.Operator, s.Role = name, o.Role(name)
			}
		}
		writeJSON(w, s)
	}
}
