package vllmapi

import (
	"net/http"

	"headgate/simengine"
)

// eventSink streams an answer as server-sent events, one a token.
type eventSink struct {
	*answer
	w       http.ResponseWriter
	control *http.ResponseController
	buffer  []byte
}

// newEventSink answers with status and headers at once, as vLLM does when it
// has accepted a request; what follows may take any time.
func newEventSink(an *answer, w http.ResponseWriter) *eventSink {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	s := &eventSink{answer: an, w: w, control: http.NewResponseController(w)}
	s.control.Flush()
	return s
}

func (s *eventSink) piece(c *choice, text string, ids []simengine.Token) {
	if s.api == chatAPI && !c.begun {
		s.event(c, "", nil, true)
	}
	s.event(c, text, ids, false)
}

func (s *eventSink) event(c *choice, text string, ids []simengine.Token, role bool) {
	b := append(s.buffer, "data: "...)
	b = s.appendHead(b)
	b = s.appendChoice(b, c, text, ids, role)
	b = append(b, ']')
	if role && s.ids {
		b = append(b, `,"prompt_token_ids":`...)
		b = appendIDs(b, c.prompt)
	}
	if s.eachUsage {
		untold := 0
		if role {
			untold = 1 // the token that comes with the next event
		}
		b = s.appendUsage(b, untold)
	}
	s.buffer = append(b, "}\n\n"...)
}

// flush writes what has come together. A failed write is not an error here: the
// request's context ends with the connection.
func (s *eventSink) flush() {
	if len(s.buffer) == 0 {
		return
	}
	s.w.Write(s.buffer)
	s.control.Flush()
	s.buffer = s.buffer[:0]
}

func (s *eventSink) end() {
	if s.usage {
		b := append(s.buffer, "data: "...)
		b = append(s.appendHead(b), ']')
		b = s.appendUsage(b, 0)
		b = s.appendMetrics(b)
		s.buffer = append(b, "}\n\n"...)
	}
	s.done()
}

func (s *eventSink) fail(e *apiError) {
	s.buffer = append(s.buffer, "data: "...)
	s.buffer = append(s.buffer, e.body()...)
	s.buffer = append(s.buffer, "\n\n"...)
	s.done()
}

func (s *eventSink) done() {
	s.buffer = append(s.buffer, "data: [DONE]\n\n"...)
	s.flush()
}

// wholeSink answers in one piece.
type wholeSink struct {
	*answer
	w http.ResponseWriter
}

func (s *wholeSink) piece(c *choice, text string, ids []simengine.Token) {
	c.all = append(c.all, text...)
	c.tokens = append(c.tokens, ids...)
}

func (s *wholeSink) flush() {}

func (s *wholeSink) end() {
	b := s.appendHead(nil)
	for i, c := range s.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.appendChoice(b, c, string(c.all), c.tokens, false)
	}
	b = append(b, ']')
	if s.api == chatAPI && s.ids {
		b = append(b, `,"prompt_token_ids":`...)
		b = appendIDs(b, s.choices[0].prompt)
	}
	b = s.appendUsage(b, 0)
	b = s.appendMetrics(b)
	b = append(b, '}')
	s.w.Header().Set("Content-Type", "application/json")
	s.w.Write(b)
}

func (s *wholeSink) fail(e *apiError) { e.write(s.w) }
