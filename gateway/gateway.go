// Package gateway is the HTTP face: it authenticates a caller, reads and parses
// one request, finds its class and its pool, and lets package relay carry it
// through. What it adds is what only a server knows: limits on everything that
// is read from the network, and a client that may leave or stop reading.
//
// Routes are an allowlist. Nothing of a request but its parsed body reaches an
// engine: no header, no path, no query, no host.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
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
	Limits  Limits
	Auth    *identity.Authenticator
	Pools   []*relay.Pool
	Log     *slog.Logger
	Metrics prometheus.Registerer
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
	g := &Gateway{cfg: cfg, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_http_responses_total", Help: "Answers to clients by route and status; 499 is a client that left before.",
	}, []string{"route", "status"})}
	cfg.Metrics.MustRegister(g.requests)
	g.server = &http.Server{
		Handler: g, ReadHeaderTimeout: cfg.Limits.HeaderTimeout, MaxHeaderBytes: cfg.Limits.HeaderBytes, IdleTimeout: idleConnection,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
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

// Drain refuses what comes and what waits, lets what runs finish until ctx ends,
// and closes the server. It returns how many calls it had to end.
func (g *Gateway) Drain(ctx context.Context) int {
	g.draining.Store(true)
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

// route is one entry of the allowlist.
type route struct {
	name   string
	method string
	serve  func(*Gateway, *response, *http.Request, *identity.Principal) *wire.Error
}

func generate(api wire.API) func(*Gateway, *response, *http.Request, *identity.Principal) *wire.Error {
	return func(g *Gateway, w *response, r *http.Request, p *identity.Principal) *wire.Error {
		return g.generate(w, r, p, api)
	}
}

const modelPrefix = "/v1/models/"

func find(path string) (route, bool) {
	switch {
	case path == wire.Chat.Path():
		return route{"chat", http.MethodPost, generate(wire.Chat)}, true
	case path == wire.Completions.Path():
		return route{"completions", http.MethodPost, generate(wire.Completions)}, true
	case path == strings.TrimSuffix(modelPrefix, "/"):
		return route{"models", http.MethodGet, (*Gateway).models}, true
	case strings.HasPrefix(path, modelPrefix) && len(path) > len(modelPrefix):
		return route{"model", http.MethodGet, (*Gateway).model}, true
	}
	return route{name: "none"}, false
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w := newResponse(out, g.cfg.Limits.ClientStall)
	rt, ok := find(r.URL.Path)
	var err *wire.Error
	switch {
	case !ok:
		err = wire.RouteNotFound(r.URL.Path)
	case r.Method != rt.method:
		w.header.Set("Allow", rt.method)
		err = wire.MethodNotAllowed(r.Method, r.URL.Path, rt.method)
	default:
		var p *identity.Principal
		if p, err = g.cfg.Auth.Authenticate(r.Header); err == nil {
			err = rt.serve(g, w, r, p)
		}
	}
	status := http.StatusOK
	if err != nil {
		status = err.Status
		w.fail(err)
	}
	g.requests.WithLabelValues(rt.name, strconv.Itoa(status)).Inc()
	if g.cfg.Log.Enabled(r.Context(), slog.LevelDebug) {
		code := ""
		if err != nil {
			code = err.Code
		}
		g.cfg.Log.Debug("request", "request", w.id, "route", rt.name, "status", status, "code", code, "class", w.class, "duration", time.Since(w.arrived))
	}
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
	class, err := p.Class(r.Header.Get(identity.ClassHeader), req.ServiceTier)
	if err != nil {
		return err
	}
	w.class, w.stream = class, req.Stream
	pool, err := g.pool(req.Model, class)
	if err != nil {
		return err
	}
	return pool.Serve(r.Context(), &relay.Call{
		ID: w.id, Request: req, Class: class, Tenant: p.Tenant, Principal: p.Name, Arrived: w.arrived,
	}, w)
}

// pool finds the pool of a model. A pool whose engines have not been heard of
// yet may turn out to be the one.
func (g *Gateway) pool(model, class string) (*relay.Pool, *wire.Error) {
	unknown := false
	for _, p := range g.cfg.Pools {
		if p.Serves(model) {
			if !p.HasClass(class) {
				return nil, wire.ClassNotPermitted(class, p.Classes())
			}
			return p, nil
		}
		unknown = unknown || p.Ready() != nil && len(p.Models()) == 0
	}
	if unknown {
		return nil, wire.EngineUnavailable(0)
	}
	var names []string
	for _, m := range g.list() {
		names = append(names, m.ID)
	}
	return nil, wire.ModelNotFound(model, names)
}

// read reads the body within its limits.
func (g *Gateway) read(w *response, r *http.Request) ([]byte, *wire.Error) {
	limit := g.cfg.Limits.BodyBytes
	if r.ContentLength > limit {
		return nil, wire.BodyTooLarge(limit)
	}
	// A server that can't set deadlines (a test's recorder) reads without one.
	_ = w.control.SetReadDeadline(time.Now().Add(g.cfg.Limits.BodyTimeout))
	defer func() { _ = w.control.SetReadDeadline(time.Time{}) }()
	in := http.MaxBytesReader(w.out, r.Body, limit)
	var body []byte
	var err error
	if r.ContentLength > 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(in, body)
	} else {
		body, err = io.ReadAll(in)
	}
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &large):
		return nil, wire.BodyTooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, wire.BodyTooSlow(g.cfg.Limits.BodyTimeout)
	}
	return nil, wire.ClientClosed()
}

// list is what /v1/models shows: each model once, with the tightest context of
// the pools that serve it.
func (g *Gateway) list() []relay.Model {
	var all []relay.Model
	for _, p := range g.cfg.Pools {
		for _, m := range p.Models() {
			if !slices.ContainsFunc(all, func(o relay.Model) bool { return o.ID == m.ID }) {
				all = append(all, m)
			}
		}
	}
	return all
}

type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Context that every engine of the pool takes, in tokens; absent, never 0,
	// where no engine says.
	MaxModelLen int `json:"max_model_len,omitempty"`
}

func modelView(m relay.Model) modelJSON {
	return modelJSON{ID: m.ID, Object: "model", OwnedBy: "headgate", MaxModelLen: m.MaxContext}
}

func (g *Gateway) models(w *response, _ *http.Request, _ *identity.Principal) *wire.Error {
	list := struct {
		Object string      `json:"object"`
		Data   []modelJSON `json:"data"`
	}{"list", []modelJSON{}}
	for _, m := range g.list() {
		list.Data = append(list.Data, modelView(m))
	}
	return w.json(list)
}

func (g *Gateway) model(w *response, r *http.Request, _ *identity.Principal) *wire.Error {
	id := strings.TrimPrefix(r.URL.Path, modelPrefix)
	var names []string
	for _, m := range g.list() {
		if m.ID == id {
			return w.json(modelView(m))
		}
		names = append(names, m.ID)
	}
	return wire.ModelNotFound(id, names)
}

// newID returns a request id of 120 random bits.
func newID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return "req_" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
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
