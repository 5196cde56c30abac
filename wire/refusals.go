package wire

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The codes of every error that the gateway answers with. Clients may rely on
// them, so they never change their meaning.
const (
	CodeInvalidJSON         = "invalid_json"
	CodeInvalidField        = "invalid_field"
	CodeMissingField        = "missing_field"
	CodeBodyTooLarge        = "body_too_large"
	CodeBodyTooSlow         = "body_too_slow"
	CodeUnauthorized        = "unauthorized"
	CodeAccessDenied        = "access_denied"
	CodeClassNotPermitted   = "class_not_permitted"
	CodeModelNotFound       = "model_not_found"
	CodeRouteNotFound       = "route_not_found"
	CodeMethodNotAllowed    = "method_not_allowed"
	CodeContextLength       = "context_length_exceeded"
	CodeExceedsCapacity     = "exceeds_capacity"
	CodeQueueFull           = "queue_full"
	CodeTenantQueueFull     = "tenant_queue_full"
	CodeQueueTimeout        = "queue_timeout"
	CodeLoanEnded           = "loan_ended"
	CodeDraining            = "draining"
	CodeEngineRefused       = "engine_refused"
	CodeEngineBusy          = "engine_busy"
	CodeRateLimited         = "rate_limit_exceeded"
	CodeExceedsLimit        = "exceeds_limit"
	CodeBalanceExhausted    = "insufficient_quota"
	CodeEngineLoading       = "engine_loading"
	CodeEngineUnavailable   = "engine_unavailable"
	CodeUpstreamError       = "upstream_error"
	CodeUpstreamTimeout     = "upstream_timeout"
	CodeUpstreamTorn        = "upstream_torn"
	CodeFileNotFound        = "file_not_found"
	CodeBatchNotFound       = "batch_not_found"
	CodeWrongState          = "wrong_state"
	CodeBadRange            = "range_not_satisfiable"
	CodeTenantStorageFull   = "tenant_storage_full"
	CodeTenantBatchesFull   = "tenant_batches_full"
	CodeStorageFull         = "storage_full"
	CodeStorageUnavailable  = "storage_unavailable"
	CodeIdentityUnavailable = "identity_unavailable"
	CodeClientClosed        = "client_closed"
	CodeInternal            = "internal"
)

// StatusClientClosed is what logs and metrics show for a request whose client
// left before an answer; nobody receives it.
const StatusClientClosed = 499

const (
	typeRequest = "invalid_request_error"
	typeAuth    = "authentication_error"
	typePerm    = "permission_error"
	typeRate    = "rate_limit_error"
	typeServer  = "server_error"
	typeBalance = "insufficient_quota" // OpenAI's
)

// Row is one line of the documented table of errors.
type Row struct {
	Code   string
	Status int
	Type   string
	Hint   bool   // a retry hint is given when there is evidence for one
	When   string // for the reader of the documentation
}

// Table returns every error that the gateway answers with, in the order of the
// documentation.
func Table() []Row { return slices.Clone(table) }

// No row has status 408: clients repeat such a request at once, which turns a
// full queue into a storm.
var table = []Row{
	{CodeInvalidJSON, http.StatusBadRequest, typeRequest, false, "the body is not one JSON object; the message names the byte where it stops being one"},
	{CodeInvalidField, http.StatusBadRequest, typeRequest, false, "a field has a value that is not allowed, or is given twice; `param` names it"},
	{CodeMissingField, http.StatusBadRequest, typeRequest, false, "a required field is missing or null; `param` names it"},
	{CodeContextLength, http.StatusBadRequest, typeRequest, false, "prompt and output need more tokens than the model's context has; the message gives both numbers. Also where the engine says so itself"},
	{CodeEngineRefused, http.StatusBadRequest, typeRequest, false, "the engine refused the request; message and `param` are the engine's, and so is `code` where it gives one. 404, 413 and 422 of an engine keep their status"},
	{CodeUnauthorized, http.StatusUnauthorized, typeAuth, false, "no API key or token, or one that is not good; the message says what is wrong with it"},
	{CodeAccessDenied, http.StatusForbidden, typePerm, false, "the credential is good, and no rule of the gateway admits its subject, or its role is for something else"},
	{CodeClassNotPermitted, http.StatusForbidden, typePerm, false, "the key may not use the class that was asked for"},
	{CodeModelNotFound, http.StatusNotFound, typeRequest, false, "no pool serves the model to the caller"},
	{CodeRouteNotFound, http.StatusNotFound, typeRequest, false, "the path is not one that the gateway serves"},
	{CodeFileNotFound, http.StatusNotFound, typeRequest, false, "the caller has no such file"},
	{CodeBatchNotFound, http.StatusNotFound, typeRequest, false, "the caller has no such batch"},
	{CodeWrongState, http.StatusConflict, typeRequest, false, "the batch has ended and can't be cancelled, or the file is read by a batch that has not ended and can't be deleted"},
	{CodeBadRange, http.StatusRequestedRangeNotSatisfiable, typeRequest, false, "the file has no such range of bytes; `Content-Range` gives its size"},
	{CodeMethodNotAllowed, http.StatusMethodNotAllowed, typeRequest, false, "the path exists, the method does not"},
	{CodeBodyTooLarge, http.StatusRequestEntityTooLarge, typeRequest, false, "the body is larger than the limit, which the message gives"},
	{CodeBodyTooSlow, http.StatusBadRequest, typeRequest, false, "the body did not arrive within the time limit, which the message gives"},
	{CodeExceedsCapacity, http.StatusRequestEntityTooLarge, typeRequest, false, "the request could never fit, however idle the pool; the message gives both numbers"},
	{CodeExceedsLimit, http.StatusRequestEntityTooLarge, typeRequest, false, "the prompt alone is more than the tenant may use at once; the message gives both numbers"},
	{CodeBalanceExhausted, http.StatusPaymentRequired, typeBalance, false, "the tenant's balance does not have what the request may cost; the message gives both numbers. An operator can refill it"},
	{CodeRateLimited, http.StatusTooManyRequests, typeRate, true, "the tenant is at its limit of requests or tokens; the message says of which, and the hint is exact. None is given while what is missing is held by requests that run"},
	{CodeQueueFull, http.StatusTooManyRequests, typeRate, true, "the class's queue is full, or its predicted wait is past the limit"},
	{CodeTenantQueueFull, http.StatusTooManyRequests, typeRate, true, "the tenant's share of the class's queue is full"},
	{CodeTenantStorageFull, http.StatusTooManyRequests, typeRate, false, "the tenant has as many files, or bytes in them, as it may; it can delete some"},
	{CodeTenantBatchesFull, http.StatusTooManyRequests, typeRate, false, "the tenant has as many batches that have not ended as it may"},
	{CodeEngineBusy, http.StatusTooManyRequests, typeRate, true, "the engine itself refused for load"},
	{CodeClientClosed, StatusClientClosed, typeRequest, false, "the client left before an answer; only seen in logs and metrics"},
	{CodeInternal, http.StatusInternalServerError, typeServer, false, "a fault of the gateway"},
	{CodeUpstreamError, http.StatusBadGateway, typeServer, true, "the engine failed, or sent something that is not an answer; in a fleet also: the replica that had the request broke off before it answered"},
	{CodeUpstreamTorn, http.StatusBadGateway, typeServer, false, "the engine's stream, or in a fleet that of the replica that had the request, ended without a finish reason"},
	{CodeQueueTimeout, http.StatusServiceUnavailable, typeServer, true, "the request waited as long as its class allows"},
	{CodeLoanEnded, http.StatusServiceUnavailable, typeServer, false, "the request ran on borrowed capacity, whose agreed life is over and which was wanted back after a part of the answer had been sent"},
	{CodeDraining, http.StatusServiceUnavailable, typeServer, false, "the gateway is shutting down; another replica may answer at once"},
	{CodeEngineLoading, http.StatusServiceUnavailable, typeServer, true, "the engine is loading its model"},
	{CodeEngineUnavailable, http.StatusServiceUnavailable, typeServer, true, "no engine of the pool answers"},
	{CodeIdentityUnavailable, http.StatusServiceUnavailable, typeServer, true, "the keys of the token's issuer can't be fetched, so nobody can tell whether the token is good; of a batch's request: the key that made the batch is not there, or has expired"},
	{CodeStorageUnavailable, http.StatusServiceUnavailable, typeServer, false, "files and batches can't be read or written at this moment"},
	{CodeUpstreamTimeout, http.StatusGatewayTimeout, typeServer, false, "the engine sent nothing for longer than the header or idle timeout"},
	{CodeStorageFull, http.StatusInsufficientStorage, typeServer, false, "there is no room left for files and batches"},
}

// ErrorTable is the table as Markdown.
func ErrorTable() string {
	var b strings.Builder
	b.WriteString("| status | code | type | retry hint | when |\n|---|---|---|---|---|\n")
	for _, r := range table {
		hint := "no"
		if r.Hint {
			hint = "yes"
		}
		fmt.Fprintf(&b, "| %d | `%s` | `%s` | %s | %s |\n", r.Status, r.Code, r.Type, hint, r.When)
	}
	return b.String()
}

const maxShown = 64 // bytes of a client's own value that a message repeats

// InvalidField refuses a field; value is how it was written.
func InvalidField(param, value, allowed string) *Error {
	e := NewError(CodeInvalidField, "%s is %s; allowed: %s", param, clip(value, maxShown), allowed)
	e.Param = param
	return e
}

// MissingField refuses a request without a field that it needs.
func MissingField(param, allowed string) *Error {
	e := NewError(CodeMissingField, "%s is missing; required: %s", param, allowed)
	e.Param = param
	return e
}

// BodyTooLarge names the limit in bytes.
func BodyTooLarge(limit int64) *Error {
	return NewError(CodeBodyTooLarge, "the body is larger than %d bytes", limit)
}

// BodyTooSlow names the time limit.
func BodyTooSlow(limit time.Duration) *Error {
	return NewError(CodeBodyTooSlow, "the body did not arrive within %v", limit)
}

// Unauthorized says the same of a missing and of an unknown key.
func Unauthorized() *Error {
	return NewError(CodeUnauthorized, "the API key is missing or not known; send it as \"Authorization: Bearer KEY\"")
}

// ClassNotPermitted names the classes that the key may use.
func ClassNotPermitted(class string, allowed []string) *Error {
	return NewError(CodeClassNotPermitted, "class %q is not permitted for this key; allowed: %s", clip(class, maxShown), strings.Join(allowed, ", "))
}

// ModelNotFound names the models there are.
func ModelNotFound(model string, known []string) *Error {
	e := NewError(CodeModelNotFound, "model %q is not served here; allowed: %s", clip(model, maxShown), strings.Join(known, ", "))
	e.Param = "model"
	return e
}

// RouteNotFound refuses a path outside the allowlist.
func RouteNotFound(path string) *Error {
	return NewError(CodeRouteNotFound, "there is no route %q", clip(path, maxShown))
}

// MethodNotAllowed names the methods that path has.
func MethodNotAllowed(method, path string, allowed ...string) *Error {
	return NewError(CodeMethodNotAllowed, "method %s is not allowed for %s; allowed: %s", clip(method, maxShown), path, strings.Join(allowed, ", "))
}

// FileNotFound: param is what named the file.
func FileNotFound(id, param string) *Error {
	e := NewError(CodeFileNotFound, "No such File object: %s", clip(id, maxShown))
	e.Param = param
	return e
}

// BatchNotFound names the batch, as OpenAI does.
func BatchNotFound(id string) *Error {
	return NewError(CodeBatchNotFound, "No batch found with id '%s'.", clip(id, maxShown))
}

// WrongState refuses what can't be done any more, or not yet.
func WrongState(format string, args ...any) *Error {
	return NewError(CodeWrongState, format, args...)
}

// BadRange: size is the whole file's, in bytes.
func BadRange(asked string, size int64) *Error {
	e := NewError(CodeBadRange, "Range is %q; the file has %d bytes", clip(asked, maxShown), size)
	e.Param = "Range"
	return e
}

// TenantStorageFull: what is files or bytes.
func TenantStorageFull(what string, limit int64) *Error {
	return NewError(CodeTenantStorageFull, "your files would be more than the limit of %d %s; delete files, or wait until some expire", limit, what)
}

// TenantBatchesFull gives the limit.
func TenantBatchesFull(limit int64) *Error {
	return NewError(CodeTenantBatchesFull, "%d of your batches have not ended, which is the limit; wait for one's end, or cancel one", limit)
}

// StorageFull: the operator is told more by the log.
func StorageFull() *Error {
	return NewError(CodeStorageFull, "the storage of files and batches is full; delete files, or ask the operator")
}

// StorageUnavailable does not say whether it was done: nobody knows.
func StorageUnavailable() *Error {
	return NewError(CodeStorageUnavailable, "the storage of files and batches failed; what was asked for may be done or not, and asking again is safe")
}

// ContextLengthExceeded: need and context are tokens, prompt and least output
// together.
func ContextLengthExceeded(need, context int) *Error {
	return NewError(CodeContextLength, "the request needs %d tokens for prompt and output; the model's context is %d tokens", need, context)
}

// ExceedsCapacity: need and capacity are tokens of KV, or slots; what says which.
func ExceedsCapacity(what string, need, capacity int) *Error {
	return NewError(CodeExceedsCapacity, "the request needs %d %s; the pool has %d in all", need, what, capacity)
}

// QueueFull gives the class's depth and its limit.
func QueueFull(class string, depth, limit int, retry time.Duration) *Error {
	return NewError(CodeQueueFull, "the queue of class %s is full: %d requests wait, the limit is %d", class, depth, limit).WithRetry(retry)
}

// WaitTooLong refuses at once what would time out in the queue.
func WaitTooLong(class string, predicted, limit, retry time.Duration) *Error {
	return NewError(CodeQueueFull, "the predicted wait in class %s is %v, the limit is %v", class, predicted.Round(time.Millisecond), limit).WithRetry(retry)
}

// TenantQueueFull gives the tenant's depth in the class and its limit.
func TenantQueueFull(class string, depth, limit int, retry time.Duration) *Error {
	return NewError(CodeTenantQueueFull, "%d of your requests wait in class %s, the limit is %d", depth, class, limit).WithRetry(retry)
}

// RateLimited: of is requests or tokens; the limit is so many in a window, the request
// wants so many and left may come at once.
func RateLimited(whose, of string, limit int64, window time.Duration, want, left int64, retry time.Duration) *Error {
	return NewError(CodeRateLimited, "%s limit of %s is %d in %v: the request needs %d, and %d are left", whose, of, limit, window, want, left).WithRetry(retry)
}

// ExceedsLimit: want and most are weighted tokens.
func ExceedsLimit(want, most int64) *Error {
	return NewError(CodeExceedsLimit, "the request reserves %d tokens; %d may be used at once", want, most)
}

// BalanceExhausted: want and left are weighted tokens.
func BalanceExhausted(want, left int64) *Error {
	return NewError(CodeBalanceExhausted, "the balance has %d tokens left that no request holds; the request reserves %d", left, want)
}

// QueueTimeout: waited is the class's limit.
func QueueTimeout(class string, waited, retry time.Duration) *Error {
	return NewError(CodeQueueTimeout, "no capacity became free for class %s within %v", class, waited).WithRetry(retry)
}

// LoanEnded tells a client whose answer was begun on borrowed capacity that it
// will not be ended.
func LoanEnded() *Error {
	return NewError(CodeLoanEnded, "the borrowed capacity that this request ran on was recalled")
}

// Draining has no hint: this process will not come back, and another may answer
// at once.
func Draining() *Error {
	return NewError(CodeDraining, "the gateway is shutting down")
}

// EngineUnavailable: no engine of the pool answers.
func EngineUnavailable(retry time.Duration) *Error {
	return NewError(CodeEngineUnavailable, "no engine is available").WithRetry(retry)
}

// EngineLoading: the engine answers, but has no model yet.
func EngineLoading(retry time.Duration) *Error {
	return NewError(CodeEngineLoading, "the engine is loading its model").WithRetry(retry)
}

// UpstreamError: the engine answered with what is no answer.
func UpstreamError(format string, args ...any) *Error {
	return NewError(CodeUpstreamError, format, args...)
}

// UpstreamTimeout: silent is how long the engine sent nothing.
func UpstreamTimeout(silent time.Duration) *Error {
	return NewError(CodeUpstreamTimeout, "the engine sent nothing for %v", silent)
}

// UpstreamTorn: the stream ended in the middle of the answer.
func UpstreamTorn() *Error {
	return NewError(CodeUpstreamTorn, "the engine's stream ended before the answer did")
}

// ClientClosed: nobody reads it but the log.
func ClientClosed() *Error {
	return NewError(CodeClientClosed, "the client closed the request")
}

// Internal does not say what went wrong: that is for the log.
func Internal() *Error {
	return NewError(CodeInternal, "internal error")
}

// clip shortens text to at most n bytes, whole characters, saying so.
func clip(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	const dots = "..."
	cut := n - len(dots)
	for cut > 0 && text[cut]&0xc0 == 0x80 {
		cut--
	}
	return text[:cut] + dots
}
