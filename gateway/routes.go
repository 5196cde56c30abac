package gateway

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"headgate/identity"
	"headgate/telemetry/tracing"
	"headgate/wire"
	"headgate/wire/anthropic"
	"headgate/wire/responses"
)

// route is one entry of the allowlist.
type route struct {
	name  string // a metric's label
	allow string // the methods, as the Allow header lists them
	serve func(*Gateway, *response, *http.Request, *identity.Principal) *wire.Error
}

// dialectOf is the shape of errors under a path, whether it is a route or not.
func dialectOf(path string) (d dialect, anthropics bool) {
	if path == anthropic.MessagesPath || strings.HasPrefix(path, anthropic.MessagesPath+"/") {
		return anthropicErrors, true
	}
	return openAI, false
}

const (
	allowPost = http.MethodPost
	allowGet  = http.MethodGet + ", " + http.MethodHead
)

const (
	modelsPath  = "/v1/models"
	modelPrefix = modelsPath + "/"
	// routeNone is the label of what is no route.
	routeNone = "none"
)

func generate(api wire.API) func(*Gateway, *response, *http.Request, *identity.Principal) *wire.Error {
	return func(g *Gateway, w *response, r *http.Request, p *identity.Principal) *wire.Error {
		return g.generate(w, r, p, api)
	}
}

var routes = map[string]route{
	wire.Chat.Path():          {"chat", allowPost, generate(wire.Chat)},
	wire.Completions.Path():   {"completions", allowPost, generate(wire.Completions)},
	wire.Embeddings.Path():    {"embeddings", allowPost, generate(wire.Embeddings)},
	responses.Path:            {"responses", allowPost, (*Gateway).responses},
	anthropic.MessagesPath:    {"messages", allowPost, (*Gateway).messages},
	anthropic.CountTokensPath: {"count_tokens", allowPost, (*Gateway).countTokens},
	modelsPath:                {"models", allowGet, (*Gateway).models},
}

var (
	modelRoute = route{"model", allowGet, (*Gateway).model}
	// storedRoute is all that the Responses API has below its path.
	storedRoute = route{"stored_response", allowGet + ", " + http.MethodPost + ", " + http.MethodDelete, (*Gateway).stored}
)

// find looks a path up as it was written: one that only becomes a route once it
// is decoded or cleaned is none, so that no proxy in front and no gateway
// disagree about what was asked for. A model's name may be encoded, it has
// slashes.
func find(u *url.URL) (route, bool) {
	path := u.EscapedPath()
	if rt, ok := routes[path]; ok {
		return rt, true
	}
	if len(path) > len(modelPrefix) && strings.HasPrefix(path, modelPrefix) {
		return modelRoute, true
	}
	if strings.HasPrefix(path, responses.Path+"/") {
		return storedRoute, true
	}
	return route{name: routeNone}, false
}

func (rt *route) takes(method string) bool {
	for m := range strings.SplitSeq(rt.allow, ", ") {
		if m == method {
			return true
		}
	}
	return false
}

// find is the package's, with files and batches where the gateway has them.
func (g *Gateway) find(u *url.URL) (route, bool) {
	if g.cfg.Batches != nil {
		if rt, ok := findBatch(u.EscapedPath()); ok {
			return rt, true
		}
	}
	return find(u)
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w := newResponse(out, r, g.live())
	g.received(w, r)
	w.dialect, w.anthropic = dialectOf(r.URL.EscapedPath())
	rt, ok := g.find(r.URL)
	var err *wire.Error
	switch {
	case w.hopped && g.draining.Load():
		// Before its body is asked for: the replica that has sent it can still serve it.
		err = wire.Draining()
	case !ok:
		err = wire.RouteNotFound(r.URL.Path)
	case !rt.takes(r.Method):
		w.header.Set("Allow", rt.allow)
		err = wire.MethodNotAllowed(r.Method, r.URL.Path, rt.allow)
	default:
		err = g.authenticated(w, r, &rt)
	}
	status, code := http.StatusOK, ""
	if w.status != 0 {
		status = w.status
	}
	if err != nil {
		status, code = err.Status, err.Code
		w.fail(err)
	}
	w.traced(status, code)
	g.audit(w, r, &rt, status, err)
	g.requests.WithLabelValues(rt.name, strconv.Itoa(status)).Inc()
	if g.cfg.Log.Enabled(r.Context(), slog.LevelDebug) {
		g.cfg.Log.Debug("request", "request", w.id, "route", rt.name, "status", status, "code", code, "class", w.class, "duration", time.Since(w.arrived))
	}
}

// authenticated serves a route to a caller that is known. A panic ends one
// request, not the process. What it says may be a part of a prompt, so only the
// runtime's own words are logged.
func (g *Gateway) authenticated(w *response, r *http.Request, rt *route) (err *wire.Error) {
	defer func() {
		if v := recover(); v != nil {
			why := fmt.Sprintf("%T", v)
			if e, ok := v.(runtime.Error); ok {
				why = e.Error()
			}
			g.cfg.Log.Error("panic", "request", w.id, "route", rt.name, "panic", why, "stack", string(debug.Stack()))
			err = wire.Internal()
		}
	}()
	p, err := w.cfg.Auth.Authenticate(r)
	if err != nil {
		return err
	}
	w.audited.principal = p
	// A caller that is not known gets nothing stored.
	if _, bounded := routes[r.URL.EscapedPath()]; bounded && g.cfg.Tracer != nil && rt.allow == allowPost {
		w.trace(g.cfg.Tracer, r)
	}
	return rt.serve(g, w, r, p)
}

// trace begins the request's span. Its path is a route's.
func (w *response) trace(t *tracing.Tracer, r *http.Request) {
	w.span = t.Start(r.Header.Values("Traceparent"), r.Method+" "+r.URL.Path, w.arrived)
	w.span.Text("http.request.method", r.Method)
	w.span.Text("http.route", r.URL.Path)
	w.span.Text("headgate.request", w.id)
}

// traced ends it. What goes wrong on the client's side is no failure here.
func (w *response) traced(status int, code string) {
	if w.span == nil {
		return
	}
	w.span.Number("http.response.status_code", int64(status))
	w.span.Text("error.type", code)
	if status >= http.StatusInternalServerError {
		w.span.Fail()
	}
	w.span.Over(time.Now())
}
