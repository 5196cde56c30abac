package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headgate/admission"
	"headgate/console"
	"headgate/identity"
	"headgate/relay"
)

// tracesPath is where engines export their spans to.
const tracesPath = "/v1/traces"

// Admin returns the handler of the admin listener: health, metrics, what
// became of recalls, what every pool, class and queue is doing, the operator's
// switches, and where engines send spans to. Without operators in the configuration in
// force it asks for no credential, so it belongs on an address that nobody else reaches.
func (g *Gateway) Admin(metrics prometheus.Gatherer) http.Handler {
	mux := common(metrics, g.Ready, g.Problems)
	g.consoleRoutes(mux)
	mux.HandleFunc("GET /api/recalls", g.recalls)
	mux.HandleFunc("GET /api/switches", g.switches)
	mux.HandleFunc("GET /api/plan", g.plans)
	mux.HandleFunc("POST /api/plan", g.setPlan)
	mux.HandleFunc("GET /api/observe", g.observedAll)
	mux.HandleFunc("GET /api/pools/{pool}/observe", g.observed)
	for path, which := range map[string]relay.Switch{"lending": relay.SwitchLending, "drain": relay.SwitchDrain, "bypass": relay.SwitchBypass} {
		mux.HandleFunc("POST /api/pools/{pool}/"+path, func(w http.ResponseWriter, r *http.Request) { g.setSwitch(w, r, which) })
	}
	if g.cfg.BatchTenants != nil {
		mux.HandleFunc("GET /api/batches", batchTenants(g.cfg.BatchTenants))
	}
	if g.cfg.Batches != nil {
		mux.HandleFunc("GET /api/batches/jobs", g.jobs)
		mux.HandleFunc("POST /api/batches/{batch}/cancel", g.cancelJob)
	}
	if g.cfg.Settings != nil {
		g.cfg.Settings.routes(mux)
	}
	if g.cfg.Lab != nil {
		g.cfg.Lab.routes(mux)
	}
	if g.cfg.Tenants != nil {
		mux.HandleFunc("GET /api/limits", g.limits)
		mux.HandleFunc("POST /api/limits/refill", g.refill)
	}
	if g.cfg.Spans != nil {
		mux.Handle("POST "+tracesPath, g.cfg.Spans)
	}
	if g.cfg.Fleet != nil {
		g.cfg.Fleet.routes(mux)
	}
	mux.HandleFunc("GET /debug/admission", g.debugAdmission)
	mux.HandleFunc("GET /debug/engines", g.debugEngines)
	return g.auditAdmin(guard(mux, func() *identity.Operators { return g.live().Operators }))
}

// operator is the key of a request's context under which the name of its operator is.
type operator struct{}

// heard is the key of where guard leaves that name for who stands before it.
type heard struct{}

// open tells whether a path is everybody's. Health is: a kubelet or a balancer has no key. So
// is the console, as it holds no data: what it shows it asks for with the key of its user.
func open(path string) bool {
	return path == "/healthz" || path == "/readyz" || path == strings.TrimSuffix(console.Path, "/") || strings.HasPrefix(path, console.Path)
}

// guard lets only operators pass, where there are any.
func guard(next http.Handler, operators func() *identity.Operators) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := operators()
		if open(r.URL.Path) || o == nil && !rebound(r) {
			next.ServeHTTP(w, r)
			return
		}
		if o == nil {
			http.Error(w, fmt.Sprintf("this listener has no keys, and is for who is on this machine: it answers to an address or to localhost, not to %.100q. Set admin.keys to reach it by a name", r.Host), http.StatusMisdirectedRequest)
			return
		}
		name, err := o.Authorize(r)
		if said, ok := r.Context().Value(heard{}).(*string); ok {
			*said = cmp.Or(name, unknownOperator)
		}
		if err != nil {
			if err.Status == http.StatusUnauthorized {
				w.Header().Set("Www-Authenticate", "Bearer")
			}
			http.Error(w, err.Message, err.Status)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operator{}, name)))
	})
}

// unknownOperator stands in an audit record for whoever had no key that is known.
const unknownOperator = "nobody known"

// rebound tells of a request that a page may have had a browser send here, on a listener
// that believes whoever is on the machine. To the browser such a page is of this origin: its
// name's address was changed to the loopback. So the name is not the page's only if it is
// none: an address, localhost, or one without a dot, which nobody can have registered.
func rebound(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !at.IP.IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return net.ParseIP(strings.Trim(host, "[]")) == nil && strings.Contains(host, ".") && !strings.HasSuffix(host, ".localhost")
}

// common is what every admin listener has: health, metrics, the console and the profiler.
func common(metrics prometheus.Gatherer, ready func() error, problems func() []string) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
		for _, problem := range problems() {
			fmt.Fprintln(w, "but", problem)
		}
	})
	mux.Handle("GET "+console.Path, console.Handler())
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// PoolView is one pool on /debug/admission?format=json.
type PoolView struct {
	Pool  string              `json:"pool"`
	Ready string              `json:"not_ready,omitempty"`
	State *admission.Snapshot `json:"state,omitempty"`
}

// debugAdmission prints every pool's whole state, and for every queue head what
// it waits for.
func (g *Gateway) debugAdmission(w http.ResponseWriter, r *http.Request) {
	pools := g.live().Pools
	views := make([]PoolView, len(pools))
	for i, p := range pools {
		views[i] = PoolView{Pool: p.Name(), State: p.Snapshot()}
		if err := p.Ready(); err != nil {
			views[i].Ready = err.Error()
		}
	}
	if r.URL.Query().Get("format") == "json" {
		writeJSON(w, views)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, v := range views {
		fmt.Fprintf(w, "pool %s", v.Pool)
		if v.Ready != "" {
			fmt.Fprintf(w, " (not ready: %s)", v.Ready)
		}
		fmt.Fprintln(w)
		if v.State != nil {
			fmt.Fprint(w, v.State)
		}
	}
}

func (g *Gateway) debugEngines(w http.ResponseWriter, _ *http.Request) {
	views := map[string][]relay.EngineView{}
	for _, p := range g.live().Pools {
		views[p.Name()] = p.Engines()
	}
	writeJSON(w, views)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // people read it too
	_ = e.Encode(v)        // a reader that has gone needs no answer
}
