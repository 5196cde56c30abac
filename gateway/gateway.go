// Package gateway is the HTTP face: it authenticates a caller, reads and parses
// one request, finds its class and its pool, and lets package relay carry it
// through. What it adds is what only a server knows: limits on everything that
// is read from the network, and a client that may leave or stop reading.
//
// Routes are an allowlist. Nothing of a request but its parsed body reaches an
// engine: no header, no path, no query, no host.
package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/identity"
	"headgate/relay"
	"headgate/wire"
)

// Limits bound what one client can take.
type Limits struct {
	BodyBytes     int64
	HeaderBytes   int
	HeaderTimeout time.Duration
	BodyTimeout   time.Duration
	// ClientStall is how long a client may leave what was written unread.
	ClientStall time.Duration
	// Connections is how many may be open at once.
	Connections int
}

// Config of a gateway.
type Config struct {
	Limits Limits
	Auth   *identity.Authenticator
	Pools  []*relay.Pool
	// Count tells how many prompt tokens a request has; nil is wire.Estimate.
	Count   func(*wire.Request) int
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Spans answers POST /v1/traces on the admin listener; nil: there is none.
	Spans http.Handler
}

// Gateway serves clients.
type Gateway struct {
	cfg      Config
	server   *http.Server
	requests *prometheus.CounterVec
	draining atomic.Bool
}

const idleConnection = 2 * time.Minute

// New makes a gateway. It listens to nothing yet.
func New(cfg Config) *Gateway {
	if cfg.Count == nil {
		cfg.Count = func(r *wire.Request) int { return wire.Estimate(r.Content) }
	}
	g := &Gateway{cfg: cfg, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_http_responses_total", Help: "Answers to clients by route and status; 499 is a client that left before.",
	}, []string{"route", "status"})}
	cfg.Metrics.MustRegister(g.requests)
	// There is no WriteTimeout and no ReadTimeout: they would cut long answers.
	// Bodies and writes have deadlines of their own.
	g.server = &http.Server{
		Handler: g, ReadHeaderTimeout: cfg.Limits.HeaderTimeout, MaxHeaderBytes: cfg.Limits.HeaderBytes, IdleTimeout: idleConnection,
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true, // OPTIONS * is no route either
	}
	return g
}

// Serve answers the listener's clients until Drain.
func (g *Gateway) Serve(l net.Listener) error {
	err := g.server.Serve(limit(l, g.cfg.Limits.Connections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Ready returns nil if the gateway takes requests and every pool could.
func (g *Gateway) Ready() error {
	if g.draining.Load() {
		return errors.New("draining")
	}
	var all []error
	for _, p := range g.cfg.Pools {
		all = append(all, p.Ready())
	}
	return errors.Join(all...)
}

// Problems says in words what is wrong while the gateway is ready.
func (g *Gateway) Problems() (all []string) {
	for _, p := range g.cfg.Pools {
		all = append(all, p.Problems()...)
	}
	return all
}

// Drain refuses what comes and what waits, lets what runs finish until ctx ends,
// and closes the server. It returns how many calls it had to end.
func (g *Gateway) Drain(ctx context.Context) int {
	g.draining.Store(true)
	// Idle connections are closed, and every answer from now on is its
	// connection's last, so that clients go elsewhere with their next request.
	g.server.SetKeepAlivesEnabled(false)
	left := make(chan int)
	for _, p := range g.cfg.Pools {
		go func() { left <- p.Drain(ctx) }()
	}
	ended := 0
	for range g.cfg.Pools {
		ended += <-left
	}
	// Every call has returned; what is left to the server is to write out last
	// bytes and let go of idle connections.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if g.server.Shutdown(ctx) != nil {
		_ = g.server.Close() // a client that does not read its last bytes
	}
	return ended
}

// generate serves a chat completion or a completion.
func (g *Gateway) generate(w *response, r *http.Request, p *identity.Principal, api wire.API) *wire.Error {
	body, err := g.read(w, r)
	if err != nil {
		return err
	}
	req, err := wire.Parse(api, body)
	if err != nil {
		return err
	}
	pool, err := g.route(w, r, p, req)
	if err != nil {
		return err
	}
	return pool.Serve(r.Context(), w.call(p, req), w)
}

// route finds a request's class and pool, and notes the class for its answer.
func (g *Gateway) route(w *response, r *http.Request, p *identity.Principal, req *wire.Request) (*relay.Pool, *wire.Error) {
	// Several lines of one header are one list, which is no class's name.
	class, err := p.Class(strings.Join(r.Header.Values(identity.ClassHeader), ", "), req.ServiceTier)
	if err != nil {
		return nil, err
	}
	w.class, w.stream, w.session = class, req.Stream, r.Header.Get(headerSession)
	return g.pool(req.Model, class)
}

// call is the request as the relay knows it.
func (w *response) call(p *identity.Principal, req *wire.Request) *relay.Call {
	return &relay.Call{
		ID: w.id, Request: req, Class: w.class, Tenant: p.Tenant, Principal: p.Name, Arrived: w.arrived, Session: cmp.Or(w.session, req.CacheKey),
	}
}

// pool finds the pool of a model in which the class has a share: of those to which the
// model's name belongs most closely. A pool whose engines have not been heard of yet
// may turn out to be the one.
func (g *Gateway) pool(model, class string) (*relay.Pool, *wire.Error) {
	best, unknown := 1, false
	var pools []*relay.Pool
	for _, p := range g.cfg.Pools {
		switch n := p.Match(model); {
		case n == 0:
			unknown = unknown || p.Ready() != nil && len(p.Models()) == 0
		case n == best:
			pools = append(pools, p)
		case n > best:
			pools, best = append(pools[:0], p), n
		}
	}
	var shares []string // of pools that serve the model, but not the class
	for _, p := range pools {
		if p.HasClass(class) {
			return p, nil
		}
		shares = append(shares, p.Classes()...)
	}
	switch {
	case shares != nil:
		err := wire.NewError(wire.CodeClassNotPermitted, "class %s has no share of the engines that serve model %s; allowed for this model: %s",
			class, model, strings.Join(shares, ", "))
		err.Param = identity.ClassHeader
		return nil, err
	case unknown:
		return nil, wire.EngineUnavailable(0)
	}
	return nil, g.noModel(model)
}

// newID returns a request id of 120 random bits.
func newID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return "req_" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}
