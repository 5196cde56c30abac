// Package responses speaks OpenAI's Responses API at the client's side and a chat
// completion at the engine's: it makes a chat request of a response request, and
// of a chat answer the events or the response that the client reads.
//
// The idea is that of package anthropic: there is one way through the gateway.
// What is admitted, priced, reclaimed and resumed is the chat request, so every
// engine can serve a response, whether or not it has the route, and an answer that
// was interrupted is continued in this API as in the other.
//
// The API has features that live on a server: earlier responses and
// conversations, work in the background, prompts by their id, tools that the
// server runs. Nothing is stored here and nothing is run, so these are refused by
// name. A request that says nothing about storing is served, and told that it was
// not stored.
//
// Alternatives: to pass responses on to engines that have the route (vLLM,
// llama-server) would bring their own stores with them. vLLM's grows without
// bound, is lost with the process, is on one engine of several, and what it adds
// to a prompt no reservation sees: a request of one line may stand for a hundred
// thousand tokens. What of the route needs no store says the same as a chat.
//
// Nothing in this package does I/O, reads a clock or keeps state between
// requests.
package responses

import "headgate/wire"

// Path is the API's route. What is below it would need a store.
const Path = "/v1/responses"

// Request is a translated response request.
type Request struct {
	// Chat is what is admitted and sent to an engine.
	Chat *wire.Request
	// Echo are members of the response that repeat the request, as JSON without
	// braces and without line ends.
	Echo []byte
}

// Answer is what a response says that no engine knows.
type Answer struct {
	ID      string // of the response, without its prefix
	Created int64  // when the request came, Unix seconds
	Echo    []byte // Request's
}

// names are what the client calls the fields of the chat that is made of its
// request.
var names = map[string]string{
	"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format", "reasoning_effort": "reasoning.effort",
}

// Name has an error of a chat request name the client's own field.
func Name(err *wire.Error) *wire.Error {
	if own, ok := names[err.Param]; ok {
		named := *err
		named.Param = own
		return &named
	}
	return err
}
