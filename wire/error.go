package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"headgate/wire/sse"
)

// Error is a refusal or failure as a client of an OpenAI-shaped API sees it:
// {"error":{"message","type","param","code"}}.
type Error struct {
	Status  int
	Type    string // invalid_request_error, authentication_error, rate_limit_error, server_error, ...
	Code    string
	Param   string // the field that was wrong
	Message string // names the field, the value and what is allowed
	// Retry is when trying again makes sense; 0 gives no hint.
	Retry time.Duration
	// Upstream is the engine's own error body, relayed instead of ours when set.
	Upstream []byte
}

func (e *Error) Error() string { return e.Message }

// JSON is the error's body. Param and code are null where there is none.
func (e *Error) JSON() []byte {
	if len(e.Upstream) > 0 {
		return e.Upstream
	}
	type fields struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	orNull := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	// A struct of strings always marshals.
	b, _ := json.Marshal(struct {
		Error fields `json:"error"`
	}{fields{e.Message, e.Type, orNull(e.Param), orNull(e.Code)}})
	return b
}

// Write answers a request with the error: status, hint and body.
func (e *Error) Write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	e.SetHint(h)
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	body := e.JSON()
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.Status)
	w.Write(body) // a client that has gone needs no answer
}

// SetHint sets retry-after-ms, which the official SDKs honour, and Retry-After,
// whose unit is the second: rounded up, and left out below one, since a client
// that reads a rounded 0 returns at once. Without a hint both are removed.
func (e *Error) SetHint(h http.Header) {
	h.Del("Retry-After-Ms")
	h.Del("Retry-After")
	if e.Retry <= 0 {
		return
	}
	h.Set("Retry-After-Ms", strconv.FormatInt(ceil(e.Retry, time.Millisecond), 10))
	if e.Retry >= time.Second {
		h.Set("Retry-After", strconv.FormatInt(ceil(e.Retry, time.Second), 10))
	}
}

func ceil(d, unit time.Duration) int64 {
	return int64(math.Ceil(float64(d) / float64(unit)))
}

// AppendEvent appends the error as an event of a stream whose status has been
// sent.
func (e *Error) AppendEvent(dst []byte) []byte {
	return sse.AppendEvent(dst, "", e.JSON())
}

// NewError returns the error of that code, with the status and type of its row
// in Table. A code without a row is a mistake in the program and panics.
func NewError(code, format string, args ...any) *Error {
	for i := range table {
		if row := &table[i]; row.Code == code {
			return &Error{Status: row.Status, Type: row.Type, Code: code, Message: fmt.Sprintf(format, args...)}
		}
	}
	panic("wire: no such error code: " + code)
}

// WithRetry sets the hint and returns e.
func (e *Error) WithRetry(d time.Duration) *Error {
	e.Retry = d
	return e
}
