package wire

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// said is what an engine's error body says, whatever its shape.
type said struct {
	message, kind, param, code string
	status                     int // a numeric code that is an HTTP status
}

// readError understands the shapes that engines use:
//
//	{"error":{"message","type","param","code"}}           OpenAI, vLLM, llama-server (numeric code)
//	{"object":"error","message","type","param","code"}    SGLang, TensorRT-LLM
//	{"error":"text","error_type":"..."}                   TGI; Ollama without the type
//	{"detail":"text"} and {"detail":[{"msg":"text"}]}     FastAPI
//
// A body that is none of these says nothing: it may be a proxy's page.
func readError(body []byte) said {
	var e said
	if check(body) == nil {
		e.read(body, 0)
	}
	return e
}

func (e *said) read(v []byte, level int) {
	s := scanner{b: v}
	if s.peek() == '[' {
		s.open()
		if s.elem() && level == 1 {
			e.read(s.value(), 2)
		}
		return
	}
	if s.peek() != '{' {
		return
	}
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			return
		}
		// The key is only valid until the next value is looked at.
		name := string(key)
		v := s.value()
		isText := len(v) > 0 && v[0] == '"'
		switch name {
		case "error", "detail":
			if isText {
				e.message = text(v)
			} else if level == 0 {
				e.read(v, 1)
			}
		case "message", "msg":
			if isText {
				e.message = text(v)
			}
		case "type", "error_type":
			if isText {
				e.kind = text(v)
			}
		case "param":
			if isText {
				e.param = text(v)
			}
		case "code":
			e.readCode(v, isText)
		}
	}
}

func (e *said) readCode(v []byte, isText bool) {
	n, ok := integer(v)
	if isText {
		e.code = text(v)
		var err error
		n, err = strconv.Atoi(e.code)
		ok = err == nil
	}
	if ok && n >= 400 && n <= 599 {
		e.status, e.code = n, ""
	}
}

// class is the HTTP status that an error of this kind has, for errors that come
// inside a stream.
func (e *said) class() int {
	if e.status != 0 {
		return e.status
	}
	kind := strings.ToLower(e.kind)
	for _, c := range []struct {
		status int
		words  []string
	}{
		{http.StatusBadRequest, []string{"badrequest", "bad request", "invalid_request", "exceed_context_size", "validation"}},
		{http.StatusNotFound, []string{"notfound", "not_found"}},
		{http.StatusUnprocessableEntity, []string{"unprocessable"}},
		{http.StatusTooManyRequests, []string{"rate_limit", "overloaded"}},
		{http.StatusServiceUnavailable, []string{"unavailable"}},
		{http.StatusUnauthorized, []string{"authentication"}},
		{http.StatusForbidden, []string{"permission"}},
	} {
		for _, w := range c.words {
			if strings.Contains(kind, w) {
				return c.status
			}
		}
	}
	return http.StatusInternalServerError
}

// fromStream is FromUpstream for an error that took the place of a chunk.
func fromStream(data []byte) *Error {
	e := readError(data)
	return e.toError(e.class())
}

// FromUpstream tells an engine's refusal in the gateway's words.
//
// What is the client's fault (400, 404, 413, 422 and 501, which retries do not
// mend) stays so, with the engine's message, param and code. What is the
// engine's becomes 502, 503 or 504, so that no client reads it as its own
// mistake; that includes 401 and 403, which are about the gateway's credentials,
// and 408, which clients would repeat at once. 429 stays 429. Retry is the
// engine's own hint, read from h as RetryAfter does, where a date is relative
// to the response's Date.
func FromUpstream(status int, body []byte, h http.Header) *Error {
	e := readError(body)
	err := e.toError(status)
	date, _ := http.ParseTime(h.Get("Date"))
	err.Retry = RetryAfter(h, date)
	return err
}

const maxSaid = 1000 // bytes of an engine's message that are passed on

func (e *said) toError(status int) *Error {
	suffix := ""
	if e.message != "" {
		suffix = ": " + clip(e.message, maxSaid)
	}
	switch status {
	case http.StatusNotImplemented:
		status = http.StatusBadRequest
		fallthrough
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		err := NewError(CodeEngineRefused, "the engine refused the request%s", suffix)
		err.Status, err.Param = status, e.param
		if e.message != "" {
			err.Message = suffix[2:]
		}
		switch {
		case e.tooLong():
			err.Code = CodeContextLength
		case e.code != "":
			err.Code = e.code
		}
		return err
	case http.StatusTooManyRequests:
		return NewError(CodeEngineBusy, "the engine is overloaded%s", suffix)
	case http.StatusServiceUnavailable:
		if strings.Contains(strings.ToLower(e.message), "loading") {
			return NewError(CodeEngineLoading, "the engine is loading its model%s", suffix)
		}
		return NewError(CodeEngineUnavailable, "the engine is unavailable%s", suffix)
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return NewError(CodeUpstreamTimeout, "the engine timed out%s", suffix)
	case http.StatusUnauthorized, http.StatusForbidden:
		// The message may name the credential.
		return NewError(CodeUpstreamError, "the engine did not accept the gateway's credentials (status %d)", status)
	}
	return NewError(CodeUpstreamError, "the engine failed with status %d%s", status, suffix)
}

// tooLong tells whether the prompt exceeds the engine's context, however that
// engine says it.
func (e *said) tooLong() bool {
	return e.kind == "exceed_context_size_error" || e.code == CodeContextLength ||
		e.param == "input_tokens" || strings.Contains(e.message, "maximum context length") ||
		strings.Contains(e.message, "longer than the model's context length")
}

// RetryAfter is the hint of retry-after-ms or else Retry-After, in either of
// its forms; now is what a date is relative to. It is 0 where there is none that
// can be read, or it lies in the past.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	const most = 24 * time.Hour // beyond that it is no hint but a mistake
	within := func(d float64) time.Duration {
		if !(d > 0) || d > float64(most) {
			return 0
		}
		return time.Duration(d)
	}
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		return within(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if sec, err := strconv.ParseFloat(v, 64); err == nil {
		return within(sec * float64(time.Second))
	}
	if at, err := http.ParseTime(v); err == nil && !now.IsZero() {
		return within(float64(at.Sub(now)))
	}
	return 0
}
