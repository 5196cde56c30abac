package relay

import (
	"net/http"

	"headgate/admission"
	"headgate/wire"
)

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

// answered takes an engine's error, of a status or in a stream.
func (a *attempt) answered(status int, err *wire.Error) {
	if elsewheres(status) {
		a.refused(err)
		return
	}
	a.failed(err)
}

// refused is an attempt that the engine did nothing for.
func (a *attempt) refused(err *wire.Error) {
	a.fault, a.retry = faultRefused, admission.Time(err.Retry)
	a.failed(err)
}

// unfit is an attempt that the engine was not asked for, since it has not, or has no
// more, what it takes. That is no fault of the engine's.
func (a *attempt) unfit(err *wire.Error) {
	a.flags |= admission.FlagUntouched
	a.refused(err)
}

// elsewhere tells the core, with the end of an attempt, that another engine may do it.
func (a *attempt) elsewhere() {
	if a.fault == faultBroken || a.fault == faultRefused && a.out == 0 {
		a.flags |= admission.FlagElsewhere
	}
}
