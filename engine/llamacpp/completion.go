package llamacpp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/release"
	"headgate/engine/upstream"
	"headgate/wire"
	"headgate/wire/sse"
)

// An attempt with token ids runs on /completion, the only route that streams them.
// The OpenAI routes lead to the same code: they apply the chat template, and hand
// the rest of the request on as it is. So what they would do with a field is done
// with it here, which is nothing for some of OpenAI's and of vLLM's
// (repetition_penalty, stop_token_ids): an answer does not depend on whether it may
// be interrupted. Stop strings are looked for by the gateway, which knows
// min_tokens and include_stop_str_in_output and this engine does not, so that a
// request with one of them is not to come here.
//
// While a character is not complete the route sends no event, and the one that
// completes it lists its last token only. The others are found by having the
// engine cut the characters anew.

// consumed are the fields that have done their work once the prompt is ids, or that
// mean something else on this route.
var consumed = map[string]bool{
	"model": true, "messages": true, "prompt": true, "stream": true, "stream_options": true, "return_token_ids": true,
	"n": true, "best_of": true, "echo": true, "suffix": true, "logprobs": true, "top_logprobs": true, "stop": true,
	"min_tokens": true, "include_stop_str_in_output": true,
	"tools": true, "tool_choice": true, "functions": true, "parallel_tool_calls": true, "response_format": true,
	"chat_template": true, "chat_template_kwargs": true, "add_generation_prompt": true, "continue_final_message": true,
	"documents": true, "user": true, "metadata": true, "store": true, "service_tier": true, "priority": true,
	"return_tokens": true, "cache_prompt": true, "prompt_logprobs": true,
}

// completion is the body of the native request for the ids of a prompt.
func completion(ids []int32, body []byte) []byte {
	b := make([]byte, 0, 8*len(ids)+512)
	b = appendIDs(append(b, `{"prompt":`...), ids)
	b = append(b, `,"stream":true,"return_tokens":true,"cache_prompt":true`...)
	gjson.ParseBytes(body).ForEach(func(key, value gjson.Result) bool {
		if !consumed[key.String()] && value.Type != gjson.Null {
			b = append(append(append(append(b, ','), key.Raw...), ':'), value.Raw...)
		}
		return true
	})
	return append(b, '}')
}

func appendIDs(b []byte, ids []int32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}

// event is one of a native stream.
type event struct {
	text      string // JSON, quoted
	ids       []int32
	predicted int // tokens so far, listed or not
	// The last event's.
	stop              bool
	finish            string
	evaluated, cached int
	timings           string // JSON; empty: none
}

func parseEvent(data []byte) (event, error) {
	v := gjson.ParseBytes(data)
	if !gjson.ValidBytes(data) || !v.IsObject() {
		return event{}, errors.New("a completion's event is no object")
	}
	text, tokens := v.Get("content"), v.Get("tokens")
	e := event{text: text.Raw, predicted: upstream.Number(v.Get("tokens_predicted")), stop: v.Get("stop").Bool(), finish: "length"}
	if text.Type != gjson.String || e.predicted < 0 {
		return event{}, errors.New("a completion's event lacks content or tokens_predicted")
	}
	if tokens.IsArray() {
		ids, err := readIDs(tokens)
		if err != nil {
			return event{}, err
		}
		e.ids = ids
	}
	switch v.Get("stop_type").String() {
	case "eos", "word":
		e.finish = "stop"
	}
	e.evaluated = max(0, upstream.Number(v.Get("tokens_evaluated")))
	if t := v.Get("timings"); t.IsObject() {
		e.timings, e.cached = t.Raw, max(0, upstream.Number(t.Get("cache_n")))
	}
	return e, nil
}

// dispatch sends an attempt with token ids. Where those of its prompt can't be had it
// goes to its own route, of which the answer has none: the engine says there what is
// wrong with a request, and is only left alone if it has gone.
func (a *Adapter) dispatch(ctx context.Context, at *engine.Attempt) (engine.Stream, error) {
	ids, err := a.Tokens(ctx, at.API, at.Body)
	switch {
	case err == nil:
	case ctx.Err() != nil || upstream.State(err) == engine.Down:
		return nil, fmt.Errorf("dispatch: %w", err)
	default:
		return a.Client.Dispatch(ctx, at)
	}
	sent := *at
	sent.Body = completion(ids, at.Body)
	res, place, err := a.Open(ctx, "/completion", &sent)
	if err != nil {
		return nil, err
	}
	s := &answer{
		adapter: a, place: place, ctx: ctx, chat: at.API == wire.Chat, prompt: ids,
		header: res.Header, body: res.Body, events: sse.NewReader(res.Body, a.cfg.MaxEvent),
	}
	object, prefix := "text_completion", "cmpl-"
	if s.chat {
		object, prefix = "chat.completion.chunk", "chatcmpl-"
	}
	head, err := json.Marshal(struct {
		ID      string          `json:"id"`
		Object  string          `json:"object"`
		Created int64           `json:"created"`
		Model   json.RawMessage `json:"model,omitempty"`
	}{prefix + at.ID, object, time.Now().Unix(), json.RawMessage(gjson.GetBytes(at.Body, "model").Raw)})
	if err != nil {
		s.end(err)
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	s.head = string(head[:len(head)-1])
	return s, nil
}

// answer is a stream of /completion in the shape of vLLM's completions.
type answer struct {
	adapter *Adapter
	place   *upstream.Place // in the client's ledger
	ctx     context.Context // the attempt's own: tells why a read failed
	chat    bool
	head    string  // of every event: id, object, created, model
	prompt  []int32 // until they were told
	header  http.Header
	body    io.ReadCloser
	events  *sse.Reader

	// Next's own.
	opened bool
	told   int      // tokens of output that were told, with ids or without
	lost   bool     // text was told without ids: nobody goes on from it, and no others are looked for
	queue  []string // data of events that are due

	mu     sync.Mutex
	over   bool            // the engine has ended the attempt by its own word
	seen   bool            // an event with data was handed out
	err    error           // what Next returns from now on
	ticket *release.Ticket // set once the connection is closed
}

const done = "[DONE]"

func (s *answer) Header() http.Header { return s.header }

// Next implements engine.Stream.
func (s *answer) Next() (engine.Delta, error) {
	for {
		if err := s.ended(); err != nil {
			return engine.Delta{}, err
		}
		if len(s.queue) > 0 {
			return s.due()
		}
		if s.isOver() {
			return engine.Delta{}, s.end(io.EOF)
		}
		s.place.Reading()
		ev, err := s.events.Next()
		s.place.Read()
		if err == nil && len(ev.Data) == 0 {
			return engine.Delta{Raw: ev.Raw}, nil
		}
		if err == nil {
			err = s.take(ev.Data)
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the last event ends a stream
		}
		if err != nil {
			if s.ctx.Err() != nil {
				err = context.Cause(s.ctx)
			}
			return engine.Delta{}, s.end(err)
		}
	}
}

// due hands out the next event of the queue.
func (s *answer) due() (engine.Delta, error) {
	data := []byte(s.queue[0])
	s.queue = s.queue[1:]
	d := engine.Delta{Data: data, Raw: sse.AppendEvent(nil, "", data)}
	var err error
	if d.Chunk, err = wire.ParseChunk(wire.Completions, data); err != nil {
		return engine.Delta{}, s.end(fmt.Errorf("unreadable event from the engine: %w", err))
	}
	if d.HasUsage {
		d.Timing = timing(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = true
	return d, s.err // an abort may have come meanwhile
}

// take translates an event into those that are due.
func (s *answer) take(data []byte) error {
	if gjson.ValidBytes(data) && gjson.GetBytes(data, "error").IsObject() {
		s.queue = append(s.queue, string(data))
		s.place.Heard(false, true)
		s.isEnd()
		return nil
	}
	e, err := parseEvent(data)
	if err != nil {
		return fmt.Errorf("unreadable event from the engine: %w", err)
	}
	if s.chat && !s.opened {
		s.tell(`"delta":{"role":"assistant","content":""},"finish_reason":null`)
	}
	s.opened = true
	s.place.Heard(e.predicted > 0, e.stop)
	if e.text != `""` || len(e.ids) > 0 {
		if err := s.text(&e); err != nil {
			return err
		}
	}
	if !e.stop {
		return nil
	}
	payload := `"text":""`
	if s.chat {
		payload = `"delta":{}`
	}
	s.tell(fmt.Sprintf(`%s,"finish_reason":%q`, payload, e.finish))
	usage := fmt.Sprintf(`%s,"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		s.head, e.evaluated, e.predicted, e.evaluated+e.predicted, e.cached)
	if e.timings != "" {
		usage += `,"timings":` + e.timings
	}
	s.queue = append(s.queue, usage+"}", done)
	s.isEnd()
	return nil
}

// text tells a text with its ids. Those that were not listed come before it and by
// themselves, since the text is all there with the last of them. If they can't be
// found it is told without any, so that nobody goes on from what is not known.
func (s *answer) text(e *event) error {
	missing := e.predicted - s.told - len(e.ids)
	s.told = max(s.told, e.predicted)
	ids := e.ids
	if missing > 0 && !e.stop {
		found, err := s.find(e, missing)
		if err != nil {
			return err
		}
		if found == nil {
			s.lost = true
			s.tell(fmt.Sprintf(`"text":%s,"finish_reason":null`, e.text))
			return nil
		}
		if n := len(found) - 1; n > 0 {
			s.tell(fmt.Sprintf(`"text":"","token_ids":%s,"finish_reason":null`, appendIDs(nil, found[:n])))
		}
		ids = found[len(found)-1:]
	}
	s.tell(fmt.Sprintf(`"text":%s,"token_ids":%s,"finish_reason":null`, e.text, appendIDs(nil, ids)))
	return nil
}

// find returns all ids of an event that lacks some of them; nil: they can't be
// known. The error is that of the attempt's own end.
func (s *answer) find(e *event, missing int) ([]int32, error) {
	text := gjson.Parse(e.text).String()
	// U+FFFD is shown for bytes that are no character, whatever they are.
	if s.lost || strings.ContainsRune(text, utf8.RuneError) {
		return nil, nil
	}
	tokens, err := s.adapter.tokenize(s.ctx, text, false)
	if err != nil {
		return nil, s.ctx.Err() // the answer goes on without them
	}
	// There is more than one way to cut a text, and the model is free in its choice.
	found := ending(tokens, text)
	if len(found) != missing+len(e.ids) || !slices.Equal(found[missing:], e.ids) {
		return nil, nil
	}
	return found, nil
}

// ending returns the last tokens that stand for exactly the text: a tokenizer may
// put a space before what it takes for a beginning. Nil: there are none.
func ending(tokens []token, text string) []int32 {
	var ids []int32
	for i := len(tokens) - 1; i >= 0; i-- {
		n := len(text) - len(tokens[i].piece)
		if n < 0 || text[n:] != tokens[i].piece {
			return nil
		}
		text, ids = text[:n], append([]int32{tokens[i].id}, ids...)
		if n == 0 {
			return ids
		}
	}
	return nil
}

// tell queues an event with one choice; the first also has the prompt's ids.
func (s *answer) tell(choice string) {
	data := s.head
	if s.prompt != nil {
		data += `,"prompt_token_ids":` + string(appendIDs(nil, s.prompt))
		s.prompt = nil
	}
	s.queue = append(s.queue, data+`,"choices":[{"index":0,`+choice+`}]}`)
}

func (s *answer) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *answer) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *answer) isEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// end closes the connection, unless an abort did, and returns what Next is to
// return.
func (s *answer) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked(err)
	return s.err
}

func (s *answer) closeLocked(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	_ = s.body.Close() // returns once the connection is closed
	s.place.Leave()
	s.ticket = &release.Ticket{Closed: time.Now(), Answered: true, Seen: s.seen}
}

// Abort implements engine.Stream.
func (s *answer) Abort(ctx context.Context) engine.Confirmation {
	s.mu.Lock()
	s.closeLocked(engine.ErrAborted)
	t, over := s.ticket, s.over
	s.mu.Unlock()
	if over {
		return engine.Confirmation{By: engine.ByCompletion, At: t.Closed}
	}
	return s.adapter.watch.Wait(ctx, t)
}
