package vllmapi

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"time"

	"headgate/simengine"
)

// answer is a generation on its way to the client.
type answer struct {
	*generation
	server  *Server
	job     *job
	id      string // as the client sees it
	created int64  // Unix seconds
	choices []*choice
	open    int // choices that have not ended
}

// choice is one sequence's part of the answer.
type choice struct {
	index  int
	prompt []simengine.Token
	child  *child
	text   textStream
	output int // tokens that the client was told of

	begun  bool
	finish string
	stop   string // the stop string that ended it

	all    []byte            // the whole text, of an answer in one piece
	tokens []simengine.Token // likewise
}

// sink writes one kind of answer.
type sink interface {
	// piece is one token's part of a choice: the text that became certain, the
	// ids, and c.finish if it was the last.
	piece(c *choice, text string, ids []simengine.Token)
	// flush is called when nothing more is at hand.
	flush()
	// end closes a complete answer, fail one that the engine gave up.
	end()
	fail(e *apiError)
}

// generating serves one of the generating routes.
func (s *Server) generating(a api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g, e := s.read(a, r, w)
		if e != nil {
			e.write(w)
			return
		}
		an := s.newAnswer(g, r.Header.Get("X-Request-Id"))
		if s.cfg.RequestIDHeaders {
			w.Header().Set("X-Request-Id", an.id)
		}
		if e := s.submit(an.job); e != nil {
			e.write(w)
			return
		}
		var to sink
		if g.stream {
			to = newEventSink(an, w)
		} else {
			to = &wholeSink{answer: an, w: w}
		}
		an.serve(r, to)
	}
}

// newAnswer prepares the sequences. Their external ids follow vLLM: the
// request's for a chat, numbered for completions.
func (s *Server) newAnswer(g *generation, given string) *answer {
	if given == "" {
		var b [16]byte
		rand.Read(b[:])
		given = hex.EncodeToString(b[:])
	}
	prefix := map[api]string{chatAPI: "chatcmpl-", completionAPI: "cmpl-", tokensAPI: "generate-tokens-", embeddingAPI: "embd-"}[g.api]
	an := &answer{generation: g, server: s, id: prefix + given, created: time.Now().Unix()}
	an.job = &job{wake: make(chan struct{}, 1)}
	for _, prompt := range g.prompts {
		for range g.n {
			i := len(an.choices)
			external := an.id
			if g.api == completionAPI || g.api == embeddingAPI {
				external = completionID(an.id, i)
			}
			most := g.max
			if most == 0 {
				most = s.cfg.Engine.MaxModelLen - len(prompt)
			}
			ch := &child{job: an.job, index: i, external: external, prompt: len(prompt), request: simengine.Request{
				Prompt: prompt, MaxTokens: most, MinTokens: g.min, IgnoreEOS: g.noEnd, Priority: g.priority, Salt: g.salt,
			}}
			an.job.children = append(an.job.children, ch)
			an.choices = append(an.choices, &choice{index: i, prompt: prompt, child: ch, text: newTextStream(g.stops, g.keepStop)})
		}
	}
	an.open = len(an.choices)
	return an
}

// serve passes on what the engine delivers until all choices have ended or the
// client is gone.
func (an *answer) serve(r *http.Request, to sink) {
	var batch []delivery
	for an.open > 0 {
		select {
		case <-an.job.wake:
		case <-r.Context().Done():
			an.server.abort(an.job, -1)
			return
		}
		var err error
		batch, err = an.job.take(batch)
		for _, d := range batch {
			an.pass(d, to)
		}
		if err != nil {
			an.server.abort(an.job, -1)
			to.fail(unavailable(err.Error()))
			return
		}
		to.flush()
	}
	to.end()
}

func (an *answer) pass(d delivery, to sink) {
	c := an.choices[d.child]
	if c.finish != "" {
		return // ended by a stop string while the engine went on
	}
	var text string
	var ids []simengine.Token
	if d.filled {
		c.output++
		ids = []simengine.Token{d.token}
		text, c.stop = c.text.push(d.token, c.output > an.min)
	}
	c.finish = d.finish
	switch {
	case c.stop != "":
		c.finish = "stop"
		if d.finish == "" {
			an.server.abort(an.job, d.child)
		}
	case c.finish != "":
		text += c.text.finish()
	}
	if c.finish != "" {
		an.open--
	}
	to.piece(c, text, ids)
	c.begun = true
}

// counts sums up the choices; the prompts count once each.
func (an *answer) counts() (prompt, completion, cached int) {
	for i, c := range an.choices {
		if i%an.n == 0 {
			prompt += len(c.prompt)
		}
		completion += c.output
	}
	if c := an.choices[0].child; len(an.choices) == 1 {
		cached = an.cachedOf(c)
	}
	return prompt, completion, cached
}
