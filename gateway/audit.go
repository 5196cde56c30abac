package gateway

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"headgate/audit"
	"headgate/identity"
	"headgate/journal"
	"headgate/relay"
	"headgate/wire"
)

// What of a client's or an operator's text is written down, in bytes.
const (
	maxAuditPath   = 200
	maxAuditModel  = 128
	maxAuditClass  = 64
	maxAuditDetail = 500
)

// audited is what is known of a request for its record beside what its answer has.
type audited struct {
	principal *identity.Principal // nil: nobody who is known
	model     string
	asked     string // the class, or the service tier
	account   journal.Account
}

// audit writes down what became of a request.
func (g *Gateway) audit(w *response, r *http.Request, rt *route, status int, failure *wire.Error) {
	if g.cfg.Audit == nil {
		return
	}
	a := &w.audited
	d := audit.Record{
		Kind: audit.Request, Credential: audit.CredentialNone, Remote: r.RemoteAddr, ID: w.id, Method: clean(r.Method, 16), Route: rt.name,
		Model: clean(a.model, maxAuditModel), ClassAsked: clean(a.asked, maxAuditClass), Class: w.class, Stream: w.stream,
		Decision: w.header.Get(headerDecision), From: w.from, Status: status, DurationMS: time.Since(w.arrived).Milliseconds(),
	}
	if p := a.principal; p != nil {
		d.Principal, d.Tenant, d.Credential = p.Name, p.Tenant, audit.CredentialKey
		switch {
		case p.Anonymous:
			d.Credential = audit.CredentialAnonymous
		case p.ByCertificate:
			d.Credential = audit.CredentialCertificate
		case strings.Contains(p.Name, "/"): // behind which is a token's subject; no key is called so
			d.Credential = audit.CredentialToken
		}
	}
	if rt.name == routeNone {
		d.Path = clean(r.URL.Path, maxAuditPath)
	}
	account(&d, &a.account)
	if failure != nil {
		d.Code = failure.Code
	}
	d.Outcome = outcome(&a.account, failure)
	g.cfg.Audit.Append(&d)
}

// account adds what a request's events came to.
func account(d *audit.Record, a *journal.Account) {
	d.Pool, d.Engine, d.Grant, d.Revision, d.Loans, d.Reclaims, d.Peer = a.Pool, a.Engine, a.Grant, a.Revision, a.Loans, a.Reclaims, a.Peer
	d.Cause, d.QueueMS = a.Cause, time.Duration(a.QueueNS).Milliseconds()
	d.PromptTokens, d.CachedTokens, d.OutputTokens = a.PromptTokens, a.CachedTokens, a.OutputTokens
}

func outcome(a *journal.Account, failure *wire.Error) string {
	switch {
	case failure == nil && a.Peer != "" && !a.Admitted:
		return audit.OutcomeForwarded
	case failure == nil:
		return audit.OutcomeAnswered
	case failure.Code == wire.CodeClientClosed:
		return audit.OutcomeLeft
	case a.Admitted, a.Peer != "", failure.Code == wire.CodeInternal: // what another replica was given may have run
		return audit.OutcomeFailed
	}
	return audit.OutcomeRefused
}

// AuditCall is a relay.Config's Unasked: it writes down what became of a call that no
// client has sent, an item of a batch.
func AuditCall(to *audit.Writer) func(*relay.Call, *wire.Error) {
	return func(c *relay.Call, failure *wire.Error) {
		d := audit.Record{
			Kind: audit.Request, Principal: c.Principal, Tenant: c.Tenant, Credential: audit.CredentialInside, ID: c.ID, Route: "batch_item",
			Model: clean(c.Request.Model, maxAuditModel), Class: c.Class, Outcome: outcome(c.Account, failure),
			Decision: "rejected", Status: http.StatusOK, DurationMS: time.Since(c.Arrived).Milliseconds(),
		}
		switch a := c.Account; {
		case a.Shadow:
			d.Decision = "observed"
		case a.Queued && a.Admitted:
			d.Decision = "queued"
		case a.Admitted:
			d.Decision = "admitted"
		}
		if failure != nil {
			d.Code, d.Status = failure.Code, failure.Status
		}
		account(&d, c.Account)
		to.Append(&d)
	}
}

// pasted is where a body is a text that somebody has pasted, which changes nothing and may
// have anything in it: it is not written down.
var pasted = map[string]bool{"/api/config/check": true, "/api/lab/whatif": true}

// auditAdmin writes down every use of the admin listener that could change something,
// whether it did or not. What engines export is none.
func (g *Gateway) auditAdmin(next http.Handler) http.Handler {
	if g.cfg.Audit == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Path == tracesPath {
			next.ServeHTTP(w, r)
			return
		}
		var said bytes.Buffer
		if !pasted[r.URL.Path] {
			body := r.Body
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(body, &said), body} // whose handler bounds it
		}
		out, name := &statusWriter{ResponseWriter: w}, ""
		next.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), heard{}, &name)))
		if name != "" {
			r = r.WithContext(context.WithValue(r.Context(), operator{}, name))
		}
		g.cfg.Audit.Append(&audit.Record{
			Kind: audit.Admin, Actor: actor(r), Remote: r.RemoteAddr, Method: clean(r.Method, 16), Path: clean(r.URL.Path, maxAuditPath),
			Status: cmp.Or(out.status, http.StatusOK), Detail: clean(strings.TrimSpace(said.String()), maxAuditDetail),
		})
	})
}

// statusWriter remembers a status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
