package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"headgate/admission"
	"headgate/engine"
	"headgate/wire"
)

// outcome is how an attempt ended, as the core and the client are told.
type outcome struct {
	cause admission.Cause
	flags uint8
	err   *wire.Error
	fault fault          // of the engine rather than of the request
	busy  bool           // the engine refused for want of room, or of time to load
	retry admission.Time // for how long it wants to be left alone
	// confirm waits for the release of what the attempt may still hold at the
	// engine; nil: it holds nothing there.
	confirm func(context.Context) engine.Confirmation
}

// fault is what went wrong with an attempt that says more about its engine than about
// the request. The core decides what becomes of both; here is only told what it was.
//
// A refusal is the engine's word that it did nothing. Of a broken connection, or of
// silence, nobody knows what the engine did, so it goes by what the client has seen:
// an answer of which it has seen nothing, or that can be continued, is lost to nobody.
type fault uint8

const (
	faultNone    fault = iota
	faultRefused       // it answered that it can't, before a token
	faultBroken        // the connection broke, or the engine fell silent
)

// elsewheres are the statuses that another engine may answer otherwise. A gateway's
// timeout in front of an engine is none: the request may run there still. Nor is what
// an engine says of the request itself.
func elsewheres(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		return true
	}
	return false
}

func (o *outcome) failed(err *wire.Error) { o.cause, o.err = admission.CauseFailed, err }

// unreadable is an answer that is none.
func (o *outcome) unreadable(err error) {
	o.failed(wire.UpstreamError("the engine's answer can't be read: %v", err))
}

// broken is a connection to the engine that broke, or brought what can't be.
func (o *outcome) broken(err *wire.Error) {
	o.fault = faultBroken
	o.failed(err)
}

// silent is an engine that said nothing for too long.
func (o *outcome) silent(wait time.Duration) {
	o.cause, o.fault, o.err = admission.CauseTimeout, faultBroken, wire.UpstreamTimeout(wait)
}

// left is a client that is gone.
func (o *outcome) left() { o.cause, o.err = admission.CauseClientGone, wire.ClientClosed() }

// answered takes an engine's error, of a status or in a stream.
func (o *outcome) answered(status int, err *wire.Error) {
	if !elsewheres(status) {
		o.failed(err)
		return
	}
	o.busy = status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	o.refused(err)
}

// refused is an attempt that the engine did nothing for.
func (o *outcome) refused(err *wire.Error) {
	o.fault, o.retry = faultRefused, admission.Time(err.Retry)
	o.failed(err)
}

// unreached is an attempt of which the engine has heard nothing, for a reason that
// passes.
func (o *outcome) unreached(err *wire.Error) {
	o.flags |= admission.FlagUntouched
	o.failed(err)
}

// unfit is an attempt that the engine was not asked for, since it has not, or has no
// more, what it takes. That is no fault of the engine's.
func (o *outcome) unfit(err *wire.Error) {
	o.flags |= admission.FlagUntouched
	o.refused(err)
}

// elsewhere tells the core that another engine may do what has come to out tokens here.
func (o *outcome) elsewhere(out int) {
	if o.fault == faultBroken || o.fault == faultRefused && out == 0 {
		o.flags |= admission.FlagElsewhere
		if o.busy {
			o.flags |= admission.FlagBusy
		}
	}
}

// undispatched sorts out why a dispatch gave no stream.
func (a *attempt) undispatched(ctx context.Context, err error) {
	var status *engine.StatusError
	var unanswered *engine.Unanswered
	switch {
	case errors.Is(err, errProjection):
		a.failed(wire.Internal())
	case errors.As(err, &status) && a.rejected(err):
		// Its client has asked for nothing wrong.
		a.failed(wire.UpstreamError("the engine refused to go on with an answer that had given way (status %d)", status.Status))
	case errors.As(err, &status):
		// The engine's own hint is the best there is.
		a.answered(status.Status, wire.FromUpstream(status.Status, status.Body, status.Header))
	case errors.As(err, &unanswered):
		a.confirm = unanswered.Confirm
		a.interrupted(ctx, err)
	case ctx.Err() != nil:
		a.interrupted(ctx, err)
	case exhausted(err):
		// Our own want of descriptors or ports says nothing about the engine.
		a.unreached(wire.Internal())
		a.pool.cfg.Log.Error("no connection to the engine: this process or machine has run out", "request", a.call.ID, "err", err)
	case !gone(err):
		a.failed(wire.UpstreamError("the engine can't be asked"))
		a.pool.cfg.Log.Error("a request was not sent", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
	default:
		a.flags = admission.FlagUntouched
		a.cause, a.err = admission.CauseUnreachable, wire.EngineUnavailable(0)
		a.pool.cfg.Log.Warn("engine unreachable", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
	}
}

// interrupted is the end of an attempt that the gateway gave up, or whose
// connection broke.
func (a *attempt) interrupted(ctx context.Context, err error) {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errReclaimed):
		a.cause, a.err = admission.CauseReclaimed, wire.LoanEnded()
	case errors.Is(cause, errOverdue):
		// It runs again, or goes on, if what its client has seen leaves that.
		a.cause, a.err = admission.CauseReclaimed, wire.NewError(wire.CodeEngineUnavailable, "this gateway has lost its part of the engines, and what ran on it was ended")
		if a.bound || a.ahead {
			a.stitch = nil // more was given than is kept
		}
	case errors.Is(cause, errIdle):
		a.silent(a.live.IdleTimeout)
	case errors.Is(cause, errShutdown):
		a.cause, a.err = admission.CauseDraining, wire.Draining()
	case cause != nil || errors.Is(err, errClient):
		a.left()
	case late(err):
		a.silent(time.Since(a.dispatched).Round(time.Millisecond))
	case errors.Is(err, io.ErrUnexpectedEOF):
		a.broken(wire.UpstreamTorn())
	default:
		a.broken(wire.UpstreamError("the connection to the engine failed, or it sent what is no answer"))
		a.pool.cfg.Log.Warn("engine failed", "pool", a.pool.cfg.Name, "engine", a.engineName(), "request", a.call.ID, "err", err)
	}
}

// errClient marks a failure to write to the client.
var errClient = errors.New("the client is gone")

// gone tells that nobody was reached, and not that the adapter has made nothing of the
// request.
func gone(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// exhausted tells that a connection failed for want of something local.
func exhausted(err error) bool {
	for _, local := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, local) {
			return true
		}
	}
	return false
}

// late tells that the engine held back its answer for longer than the adapter
// was told to wait.
func late(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
