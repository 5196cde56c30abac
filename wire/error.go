package wire

import "time"

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
