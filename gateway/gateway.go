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
	"crypto/tls"
	"encoding/base32"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/audit"
	"headgate/batch"
	"headgate/console/live"
	"headgate/identity"
	"headgate/journal"
	"headgate/quota/keeper"
	"headgate/relay"
	"headgate/telemetry/tracing"
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
	// Operators may call the admin listener; nil: whoever reaches it may.
	Operators *identity.Operators
	Pools     []*relay.Pool
	// Forward has requests that would have to wait here served by other replicas; nil:
	// they wait.
	Forward *Forwarding
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Relay has what the pools count; nil: the console knows nothing of traffic.
	Relay *relay.Metrics
	// Tracer begins the spans of requests; nil: none is traced.
	Tracer *tracing.Tracer
	// Spans answers POST /v1/traces on the admin listener; nil: there is none.
	Spans http.Handler
	// Batches are files and batches; nil: there are none, nor their routes.
	Batches *batch.Service
	// BatchTenants is what the admin listener tells of batches; nil: nothing.
	BatchTenants func() []batch.TenantStatus
	// Settings and Lab are of the admin listener; nil: it has none.
	Settings *Settings
	Lab      *Lab
	// Tenants have limits, which are the pools' too; nil: they have none.
	Tenants *keeper.Keeper
	// Journal has what operators do to balances; nil: it is only logged. It counts from Start.
	Journal *journal.Writer
	Start   time.Time
	// Audit gets a record of each request and of each thing that is done through the admin
	// listener; nil: nothing is written down.
	Audit *audit.Writer
	// TLS is what clients speak; nil: they speak http.
	TLS *tls.Config
	// Fleet is what the admin listener tells of the fleet; nil: the process has its pools
	// to itself.
	Fleet *Fleet
}

// Gateway serves clients.
type Gateway struct {
	cfg      Config // of which live has what can change
	current  atomic.Pointer[Config]
	changing sync.RWMutex // held while pools and callers are not of one configuration
	server   *http.Server
	requests *prometheus.CounterVec
	draining atomic.Bool

	forwarder *forwarder // nil: nothing is sent on
	feed      *live.Feed // of consoles
}

const idleConnection = 2 * time.Minute

// New makes a gateway. It listens to nothing yet.
func New(cfg Config) *Gateway {
	g := &Gateway{cfg: cfg, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_http_responses_total", Help: "Answers to clients by route and status; 499 is a client that left before.",
	}, []string{"route", "status"})}
	g.current.Store(&cfg)
	cfg.Metrics.MustRegister(g.requests)
	g.feed = live.New(live.Config{
		Pools: func() []*relay.Pool { return g.live().Pools }, Metrics: cfg.Relay, Tenants: g.tenants, Ready: g.Ready, Problems: g.Problems,
	})
	if cfg.Forward != nil {
		g.forwarder = newForwarder(*cfg.Forward, cfg.Fleet.Replica, cfg.Metrics)
	}
	// There is no WriteTimeout and no ReadTimeout: they would cut long answers.
	// Bodies and writes have deadlines of their own.
	g.server = &http.Server{
		Handler: g, ReadHeaderTimeout: cfg.Limits.HeaderTimeout, MaxHeaderBytes: cfg.Limits.HeaderBytes, IdleTimeout: idleConnection,
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true, // OPTIONS * is no route either
	}
	return g
}

// live is the configuration in force.
func (g *Gateway) live() *Config { return g.current.Load() }

// Reconfigure has swap change the pools, and puts the callers, operators, pools, and limits of
// bodies and of clients that don't read of what it returns in force for every request
// that comes from then on. The others of its fields are those that the gateway was
// made with. A request that meets the change is judged when it is over.
func (g *Gateway) Reconfigure(swap func() Config) {
	g.changing.Lock()
	defer g.changing.Unlock()
	next, c := swap(), g.cfg
	c.Auth, c.Operators, c.Pools = next.Auth, next.Operators, next.Pools
	c.Limits.BodyBytes, c.Limits.BodyTimeout, c.Limits.ClientStall = next.Limits.BodyBytes, next.Limits.BodyTimeout, next.Limits.ClientStall
	g.current.Store(&c)
}

// Serve answers the listener's clients until Drain.
func (g *Gateway) Serve(l net.Listener) error {
	l = Limit(l, g.cfg.Limits.Connections)
	if g.cfg.TLS != nil {
		// Outside of the limit: the server has to see that it is TLS, for the time of the
		// handshake and for clients' certificates.
		l = tls.NewListener(l, g.cfg.TLS)
	}
	err := g.server.Serve(l)
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
	drained := 0
	pools := g.live().Pools
	for _, p := range pools {
		all = append(all, p.Ready())
		if p.Drained() {
			drained++
		}
	}
	all = append(all, g.cfg.Audit.Ready())
	if drained > 0 && drained == len(pools) {
		// With one of several drained the others still serve.
		all = append(all, errors.New("every pool is drained by an operator's switch"))
	}
	return errors.Join(all...)
}

// Problems says in words what is wrong while the gateway is ready.
func (g *Gateway) Problems() (all []string) {
	for _, p := range g.live().Pools {
		all = append(all, p.Problems()...)
	}
	if problem := g.cfg.Audit.Problem(); problem != "" {
		all = append(all, problem)
	}
	return append(all, g.live().Auth.Problems()...)
}

// Drain refuses what comes and what waits, lets what runs finish until ctx ends,
// and closes the server; so it does with other pools that still run something. It returns how many calls it had to end.
func (g *Gateway) Drain(ctx context.Context, also ...*relay.Pool) int {
	g.draining.Store(true)
	// Idle connections are closed, and every answer from now on is its
	// connection's last, so that clients go elsewhere with their next request.
	g.server.SetKeepAlivesEnabled(false)
	left := make(chan int)
	all := []func(context.Context) int{}
	for _, p := range slices.Concat(g.live().Pools, also) {
		all = append(all, p.Drain)
	}
	if g.forwarder != nil {
		all = append(all, g.forwarder.finish)
	}
	for _, drain := range all {
		go func() { left <- drain(ctx) }()
	}
	ended := 0
	for range all {
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

// generate serves a request that engines take as it is: a chat completion, a
// completion or embeddings.
func (g *Gateway) generate(w *response, r *http.Request, p *identity.Principal, api wire.API) *wire.Error {
	body, err := g.read(w, r)
	if err != nil {
		return err
	}
	req, err := wire.Parse(api, body)
	if err != nil {
		return err
	}
	return g.carry(w, r, p, req, w)
}

// settled is the configuration in force once a change that is under way is over.
func (g *Gateway) settled() *Config {
	g.changing.RLock()
	defer g.changing.RUnlock()
	return g.live()
}

// carry lets the request's pool serve it. One that met a change of the configuration,
// and was refused because what it was to have is gone, is judged anew, by the new one
// alone.
func (g *Gateway) carry(w *response, r *http.Request, p *identity.Principal, req *wire.Request, sink relay.Sink) *wire.Error {
	for {
		pool, err := g.route(w, r, p, req)
		var own identity.Limits
		if err == nil {
			own, w.asks, err = p.Limits(r.Header)
		}
		var tokens int64
		if err == nil {
			tokens, err = contextOf(r.Header)
		}
		if err == nil {
			call := w.call(p, req, own)
			call.Context = tokens
			if !p.ByCertificate { // which would stay behind
				done, failure := g.forward(w, r, pool, call)
				if done {
					return failure
				}
			}
			if err = pool.Serve(r.Context(), call, sink); err != nil && err.Code == wire.CodeModelNotFound {
				err = w.cfg.noModel(p, req.Model)
			}
		}
		if err == nil || w.started || g.draining.Load() ||
			err.Code != wire.CodeDraining && err.Code != wire.CodeClassNotPermitted && err.Code != wire.CodeModelNotFound {
			return err
		}
		now := g.settled()
		if now == w.cfg {
			return err
		}
		w.cfg = now
		if p, err = w.cfg.Auth.Authenticate(r); err != nil {
			return err
		}
		w.audited.principal = p
	}
}

// route finds a request's class and pool, and notes the class for its answer.
func (g *Gateway) route(w *response, r *http.Request, p *identity.Principal, req *wire.Request) (*relay.Pool, *wire.Error) {
	// Several lines of one header are one list, which is no class's name.
	asked := strings.Join(r.Header.Values(identity.ClassHeader), ", ")
	w.audited.model, w.audited.asked = req.Model, cmp.Or(asked, req.ServiceTier)
	class, err := p.Class(asked, req.ServiceTier)
	if err != nil {
		return nil, err
	}
	w.class, w.stream, w.session = class, req.Stream, r.Header.Get(headerSession)
	return w.pool(p, req.Model, class)
}

// call is the request as the relay knows it.
func (w *response) call(p *identity.Principal, req *wire.Request, own identity.Limits) *relay.Call {
	w.own = own != identity.Limits{}
	return &relay.Call{
		Account: w.account(), ID: w.id, Request: req, Class: w.class, Tenant: p.Tenant, Principal: p.Name, Arrived: w.arrived, From: w.from, Span: w.span, Session: cmp.Or(w.session, req.CacheKey),
		TTFT: own.TTFT, TPOT: own.TPOT,
	}
}

// pool finds the pool that serves a model to a class, if the principal may use it.
func (w *response) pool(p *identity.Principal, model, class string) (*relay.Pool, *wire.Error) {
	if !p.MayUse(model) {
		return nil, w.cfg.noModel(p, model)
	}
	pool, err := relay.Choose(w.cfg.Pools, model, class)
	switch {
	case err == nil:
	case err.Code == wire.CodeClassNotPermitted:
		err.Param = identity.ClassHeader
	case err.Code == wire.CodeModelNotFound:
		err = w.cfg.noModel(p, model)
	}
	return pool, err
}

// newID returns a request id of 120 random bits.
func newID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return "req_" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}
