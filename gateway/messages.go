package gateway

import (
	"net/http"
	"strings"

	"headgate/identity"
	"headgate/relay"
	"headgate/wire"
	"headgate/wire/anthropic"
)

// headerAnthropicID is where Anthropic's SDKs look for the request's id.
const headerAnthropicID = "Request-Id"

var anthropicErrors = dialect{
	func(w http.ResponseWriter, err *wire.Error, id string) {
		w.Header().Set(headerAnthropicID, id)
		anthropic.WriteError(w, err, id)
	},
	anthropic.AppendError,
}

// messages serves Anthropic's Messages API: the call is a chat for everyone but
// its client.
func (g *Gateway) messages(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	body, err := g.read(w, r)
	if err != nil {
		return err
	}
	req, err := anthropic.Translate(body)
	if err != nil {
		return err
	}
	w.header.Set(headerAnthropicID, w.id)
	m := &messageSink{response: w, answer: anthropic.Answer{
		ID: "msg_" + strings.TrimPrefix(w.id, "req_"), Model: req.Chat.Model, Thinking: req.Thinking,
	}}
	if pool, err := g.route(w, r, p, req.Chat); err == nil {
		m.answer.InputTokens = pool.Estimate(req.Chat)
	}
	m.events = anthropic.NewStream(m.answer)
	if err := g.carry(w, r, p, req.Chat, m); err != nil {
		if m.failed != nil {
			return m.failed // to the relay the client was gone
		}
		return err
	}
	return nil
}

// countTokens answers what a message would be admitted with. It is refused like
// the message itself: for a model that nobody serves there is no count.
func (g *Gateway) countTokens(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	body, err := g.read(w, r)
	if err != nil {
		return err
	}
	req, err := anthropic.TranslateCount(body)
	if err != nil {
		return err
	}
	pool, err := g.route(w, r, p, req.Chat)
	if err != nil {
		return err
	}
	w.header.Set(headerAnthropicID, w.id)
	if w.Answer(anthropic.AppendCount(nil, pool.Estimate(req.Chat))) != nil {
		return wire.ClientClosed()
	}
	return nil
}

// messageSink is the relay's Sink of a message. It differs from a chat's in what
// the client reads, and in nothing else.
type messageSink struct {
	*response
	answer anthropic.Answer
	events *anthropic.Stream
	buf    []byte
	failed *wire.Error // why there is no message of what the engine sent
}

var _ relay.Sink = (*messageSink)(nil)

// Event implements relay.Sink.
func (m *messageSink) Event(raw []byte) error {
	b, err := m.events.AppendEvent(m.buf[:0], raw)
	if m.buf = b; err != nil {
		return m.untold(err)
	}
	if len(b) == 0 {
		return nil
	}
	return m.response.Event(b)
}

// KeepAlive implements relay.Sink.
func (m *messageSink) KeepAlive() error {
	m.buf = anthropic.AppendPing(m.buf[:0])
	return m.response.Event(m.buf)
}

// Answer implements relay.Sink.
func (m *messageSink) Answer(body []byte) error {
	message, err := anthropic.Message(body, m.answer)
	if err != nil {
		return m.untold(err)
	}
	return m.response.Answer(message)
}

// untold ends the call: an engine whose answer can't be told has nothing more to
// say to this client.
func (m *messageSink) untold(err error) error {
	m.failed = wire.UpstreamError("the engine's answer can't be told as a message: %v", err)
	return err
}
