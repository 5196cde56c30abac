package gateway

import (
	"net/http"
	"strings"

	"headgate/identity"
	"headgate/relay"
	"headgate/wire"
	"headgate/wire/responses"
)

// responses serves OpenAI's Responses API: the call is a chat for everyone but its
// client.
func (g *Gateway) responses(w *response, r *http.Request, p *identity.Principal) *wire.Error {
	body, err := g.read(w, r)
	if err != nil {
		return err
	}
	req, err := responses.Translate(body)
	if err != nil {
		return err
	}
	s := &responseSink{response: w, answer: responses.Answer{
		ID: strings.TrimPrefix(w.id, "req_"), Created: w.arrived.Unix(), Echo: req.Echo,
	}}
	s.events = responses.NewStream(s.answer)
	w.dialect.appendEvent = func(dst []byte, err *wire.Error, _ string) []byte { return s.events.AppendError(dst, err) }
	if err := g.carry(w, r, p, req.Chat, s); err != nil {
		if s.failed != nil {
			return s.failed // to the relay the client was gone
		}
		return responses.Name(err)
	}
	return nil
}

// stored answers what is asked of a response that was given before.
func (g *Gateway) stored(_ *response, r *http.Request, _ *identity.Principal) *wire.Error {
	return wire.NewError(wire.CodeRouteNotFound, "there is no route %q: no response is stored here, and none can be asked for, counted or cancelled; allowed: POST %s",
		r.URL.Path[:min(len(r.URL.Path), maxPath)], responses.Path)
}

const maxPath = 100 // bytes of a client's own path that a message repeats

// responseSink is the relay's Sink of a response. It differs from a chat's in what
// the client reads, and in nothing else.
type responseSink struct {
	*response
	answer responses.Answer
	events *responses.Stream
	buf    []byte
	failed *wire.Error // why there is no response of what the engine sent
}

var _ relay.Sink = (*responseSink)(nil)

// Event implements relay.Sink.
func (s *responseSink) Event(raw []byte) error {
	b, err := s.events.AppendEvent(s.buf[:0], raw)
	if s.buf = b; err != nil {
		return s.untold(err)
	}
	return s.response.Event(b)
}

// Answer implements relay.Sink.
func (s *responseSink) Answer(body []byte) error {
	b, err := responses.Response(body, s.answer)
	if err != nil {
		return s.untold(err)
	}
	return s.response.Answer(b)
}

// untold ends the call: an engine whose answer can't be told has nothing more to
// say to this client.
func (s *responseSink) untold(err error) error {
	s.failed = wire.UpstreamError("the engine's answer can't be told as a response: %v", err)
	return err
}
