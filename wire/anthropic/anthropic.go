// Package anthropic speaks Anthropic's Messages API at the client's side and a
// chat completion at the engine's: it makes a chat request of a message request,
// and of a chat answer the events or the message that the client reads.
//
// The idea is that there is one way through the gateway. What is admitted,
// priced, reclaimed and resumed is the chat request, so a message is treated as
// any other call, and every engine can serve it. vLLM, SGLang and llama-server
// have a /v1/messages of their own that does the same: it builds a chat request
// and rewrites the answer.
//
// Texts, schemas and tools' arguments are moved as they are written, escapes and
// digits included, and never decoded and encoded again.
//
// What can't be translated is refused by name, since an engine that ignores a
// field answers another question than the one that was asked. The few fields
// that are taken and have no effect are listed in docs/messages.md.
//
// Alternatives: to pass messages on to engines that have the route saves the
// translation, but then admission would have to understand two shapes of every
// request and of every stream, and a reclaimed answer could be resumed in only
// one of them. To ignore what is not known, as those engines do, lets a client
// believe in a server tool that is not there.
//
// Nothing in this package does I/O, reads a clock or keeps state between
// requests.
package anthropic

import (
	"headgate/wire"
	"headgate/wire/raw"
)

// Paths of the API's routes.
const (
	MessagesPath    = "/v1/messages"
	CountTokensPath = MessagesPath + "/count_tokens"
)

// Request is a translated message request.
type Request struct {
	// Chat is what is admitted and sent to an engine.
	Chat *wire.Request
	// Thinking tells that the client asked to see the model's reasoning.
	Thinking bool
}

// Answer is what an answer says that no engine knows.
type Answer struct {
	ID    string // of the message
	Model string // as the client named it
	// InputTokens is the expected number of prompt tokens, which stands in for
	// the engine's own until that is known.
	InputTokens int
	// Thinking shows the engine's reasoning, as blocks before the text.
	Thinking bool
}

// AppendCount appends the answer of count_tokens.
func AppendCount(dst []byte, tokens int) []byte {
	return append(raw.AppendInt(append(dst, `{"input_tokens":`...), tokens), '}')
}
