package anthropic

import (
	"net/http"
	"strconv"

	"headgate/wire"
	"headgate/wire/raw"
)

// WriteError answers a request with an error in Anthropic's shape. Status and
// hint headers are those that any other route has.
func WriteError(w http.ResponseWriter, err *wire.Error, request string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	err.SetHint(h)
	if err.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	body := errorJSON(err, request)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(err.Status)
	w.Write(body) // a client that has gone needs no answer
}

// errorJSON is the error's body. The members code and param are not Anthropic's:
// they say what wire.Error's do, the first in any case.
func errorJSON(err *wire.Error, request string) []byte {
	b := append([]byte(nil), `{"type":"error","error":{"type":"`...)
	b = append(append(b, errorType(err.Status)...), `","message":`...)
	b = raw.AppendText(b, err.Message)
	b = raw.AppendText(append(b, `,"code":`...), err.Code)
	if param := err.Param; param != "" {
		if param == "stop" {
			param = requestFields[fieldStopSequences] // as an engine names it
		}
		b = raw.AppendText(append(b, `,"param":`...), param)
	}
	b = raw.AppendText(append(b, `},"request_id":`...), request)
	return append(b, '}')
}

// errorType is Anthropic's name for errors of a status. 503 is told as what
// Anthropic answers with 529, since it is the same to a client: later, or
// elsewhere.
func errorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}
