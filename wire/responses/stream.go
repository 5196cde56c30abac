package responses

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"headgate/wire"
	"headgate/wire/raw"
	"headgate/wire/sse"
)

// Stream rewrites a chat's events as those of a response.
//
// Items are opened and closed as the kind of output changes; the arguments of a
// call are passed on as they come, and are those of one call at a time. Every item
// is told again when it is done and all of them at the end, so a Stream keeps what
// it was given: an answer of more than mostKept bytes is an error.
type Stream struct {
	a        Answer
	whole    bool // it comes as one chunk, in which calls have no index
	begun    bool
	sequence int // of the next event

	open  itemKind
	index int    // of the open item, or of the next
	text  []byte // of the open item, as it is escaped
	name  []byte // of the open call
	id    []byte // likewise
	items []byte // those that are done, as they are in the response

	tool   int // the last call's index in the chat
	named  bool
	finish string
	usage  wire.Usage
	known  bool
	reason int // tokens of reasoning
}

type itemKind uint8

const (
	none itemKind = iota
	reasoningItem
	messageItem
	callItem
)

const mostKept = 64 << 20 // bytes

var errKept = fmt.Errorf("the answer is longer than %d bytes", mostKept)

// NewStream returns the Stream of an answer.
func NewStream(a Answer) *Stream { return &Stream{a: a, tool: -1} }

// AppendEvent appends what one event of a chat's stream, framed as it came, is
// for the client; nothing for one that says nothing to it. An error means that
// the engine's stream makes no response.
func (s *Stream) AppendEvent(dst, event []byte) ([]byte, error) {
	data := raw.EventData(event)
	if data == nil {
		return append(dst, event...), nil // a comment, which is a sign of life
	}
	c, err := wire.ParseChunk(wire.Chat, data)
	switch {
	case err != nil:
		return dst, err
	case c.Err != nil:
		return dst, errors.New(c.Err.Message)
	case c.Done:
		return s.appendEnd(dst), nil
	}
	dst = s.appendStart(dst)
	return s.answer(dst, data, &c)
}

// Response makes the response of a chat's whole answer.
func Response(body []byte, a Answer) ([]byte, error) {
	c, err := wire.ParseChunk(wire.Chat, body)
	switch {
	case err != nil:
		return nil, err
	case c.Err != nil:
		return nil, errors.New(c.Err.Message)
	}
	// A whole answer is a stream of one event, of which only the end is told.
	s := NewStream(a)
	s.whole = true
	if _, err := s.answer(nil, body, &c); err != nil {
		return nil, err
	}
	s.appendClosed(nil, s.status())
	return s.appendResponse(nil, s.status(), nil), nil
}

// answer takes in a chunk, or a whole answer.
func (s *Stream) answer(dst, data []byte, c *wire.Chunk) ([]byte, error) {
	if c.Finish != "" {
		s.finish = c.Finish
	}
	var top [2]raw.Value
	raw.Find(bytes.TrimSpace(data), []string{"choices", "usage"}, top[:])
	if c.HasUsage {
		s.usage, s.known = c.Usage, true
		var details, count [1]raw.Value
		raw.Find(top[1], []string{"completion_tokens_details"}, details[:])
		if details[0].Is('{') {
			raw.Find(details[0], []string{"reasoning_tokens"}, count[:])
		}
		s.reason = 0
		if n, err := strconv.Atoi(string(count[0])); err == nil && n > 0 {
			s.reason = min(n, s.usage.Completion)
		}
	}
	if !top[0].Is('[') {
		return dst, nil
	}
	choices := top[0].Each()
	first, ok := choices.Next()
	if !ok || !first.Is('{') {
		return dst, nil
	}
	var said [2]raw.Value
	raw.Find(first, []string{"delta", "message"}, said[:])
	for _, v := range said {
		if !v.Is('{') {
			continue
		}
		var err error
		if dst, err = s.delta(dst, v); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

var deltaFields = []string{"reasoning_content", "reasoning", "content", "refusal", "tool_calls"}

func (s *Stream) delta(dst []byte, delta raw.Value) ([]byte, error) {
	var f [5]raw.Value
	raw.Find(delta, deltaFields, f[:])
	if !f[0].Is('"') || f[0].Empty() {
		f[0] = f[1] // two names for one thing
	}
	for i, kind := range []itemKind{0: reasoningItem, 2: messageItem, 3: messageItem} {
		if v := f[i]; kind != none && v.Is('"') && !v.Empty() {
			dst = s.appendText(s.appendItem(dst, kind), v)
		}
	}
	if f[4].Is('[') {
		calls := f[4].Each()
		for n := 0; ; n++ {
			call, ok := calls.Next()
			if !ok {
				break
			}
			if !call.Is('{') {
				continue
			}
			var err error
			if dst, err = s.call(dst, call, n); err != nil {
				return dst, err
			}
		}
	}
	if len(s.items)+len(s.text) > mostKept {
		return dst, errKept
	}
	return dst, nil
}

func (s *Stream) call(dst []byte, call raw.Value, n int) ([]byte, error) {
	var f [3]raw.Value
	raw.Find(call, []string{"index", "id", "function"}, f[:])
	var function [2]raw.Value
	if f[2].Is('{') {
		raw.Find(f[2], []string{"name", "arguments"}, function[:])
	}
	id, name, arguments := f[1], function[0], function[1]
	at, given := f[0].Number()
	switch {
	case given:
	case s.whole:
		at = n
	default:
		// Some engines leave it out: then an id begins a new call.
		at = s.tool
		if at < 0 || id.Is('"') && !id.Empty() {
			at++
		}
	}
	said := arguments.Is('"') && !arguments.Empty() || arguments.Is('{')
	switch {
	case at < s.tool || at == s.tool && s.named && s.open != callItem:
		if !said {
			return dst, nil
		}
		return dst, fmt.Errorf("the engine goes on with tool call %d after another part of the answer", at)
	case at > s.tool:
		dst = s.appendDone(dst)
		s.tool, s.named = at, false
	}
	if !s.named {
		if !name.Is('"') || name.Empty() {
			if !said {
				return dst, nil // it will come
			}
			return dst, fmt.Errorf("the engine begins tool call %d without a name", at)
		}
		dst = s.appendDone(dst)
		s.named = true
		s.name = append(s.name[:0], name...)
		if id.Is('"') && !id.Empty() {
			s.id = append(s.id[:0], id...)
		} else {
			s.id = raw.AppendText(s.id[:0], fmt.Sprintf("call_%s_%d", s.a.ID, s.index))
		}
		dst = s.appendItem(dst, callItem)
	}
	switch {
	case said && arguments.Is('"'):
		dst = s.appendText(dst, arguments)
	case said: // as an object, by an engine that knows it whole
		dst = s.appendText(dst, raw.AppendText(nil, []byte(arguments)))
	}
	return dst, nil
}

// event begins an event; closeEvent ends it.
func (s *Stream) event(dst []byte, name string) []byte {
	dst = append(append(append(dst, "event: "...), name...), "\ndata: {\"type\":\""...)
	dst = append(append(dst, name...), `","sequence_number":`...)
	dst = raw.AppendInt(dst, s.sequence)
	s.sequence++
	return dst
}

const closeEvent = "}\n\n"

// place appends where in the output an event belongs.
func (s *Stream) place(dst []byte, part bool) []byte {
	dst = s.appendItemID(append(dst, `,"item_id":`...))
	dst = raw.AppendInt(append(dst, `,"output_index":`...), s.index)
	if part {
		dst = append(dst, `,"content_index":0`...)
	}
	return dst
}

var prefixes = [...]string{reasoningItem: "rs_", messageItem: "msg_", callItem: "fc_"}

func (s *Stream) appendItemID(dst []byte) []byte {
	dst = append(append(append(dst, '"'), prefixes[s.open]...), s.a.ID...)
	return append(raw.AppendInt(append(dst, '_'), s.index), '"')
}

// appendStart appends what opens a stream, unless it was opened.
func (s *Stream) appendStart(dst []byte) []byte {
	if s.begun {
		return dst
	}
	s.begun = true
	for _, name := range []string{"response.created", "response.in_progress"} {
		dst = append(s.event(dst, name), `,"response":`...)
		dst = append(s.appendResponse(dst, "in_progress", nil), closeEvent...)
	}
	return dst
}

// appendItem opens an item of the kind unless it is open.
func (s *Stream) appendItem(dst []byte, kind itemKind) []byte {
	if s.open == kind && kind != callItem {
		return dst
	}
	dst = s.appendDone(dst)
	s.open = kind
	dst = s.event(dst, "response.output_item.added")
	dst = raw.AppendInt(append(dst, `,"output_index":`...), s.index)
	dst = append(dst, `,"item":`...)
	dst = append(s.appendOpen(dst, "in_progress", false), closeEvent...)
	if kind == callItem {
		return dst
	}
	dst = s.place(s.event(dst, "response.content_part.added"), true)
	dst = append(dst, `,"part":`...)
	return append(s.appendPart(dst, nil), closeEvent...)
}

// appendOpen appends the open item.
func (s *Stream) appendOpen(dst []byte, status string, filled bool) []byte {
	var text []byte
	if filled {
		text = s.text
	}
	dst = s.appendItemID(append(dst, `{"id":`...))
	switch s.open {
	case reasoningItem:
		dst = append(dst, `,"type":"reasoning","summary":[],"content":[`...)
	case messageItem:
		dst = append(dst, `,"type":"message","role":"assistant","content":[`...)
	case callItem:
		dst = append(append(dst, `,"type":"function_call","call_id":`...), s.id...)
		dst = append(append(dst, `,"name":`...), s.name...)
		dst = append(append(append(dst, `,"arguments":"`...), text...), '"')
	}
	if s.open != callItem {
		if filled {
			dst = s.appendPart(dst, text)
		}
		dst = append(dst, ']')
	}
	return append(append(append(dst, `,"status":"`...), status...), '"', '}')
}

// appendPart appends the one part of an item's content.
func (s *Stream) appendPart(dst, text []byte) []byte {
	kind, more := "output_text", `,"annotations":[],"logprobs":[]}`
	if s.open == reasoningItem {
		kind, more = "reasoning_text", "}"
	}
	dst = append(append(append(dst, `{"type":"`...), kind...), `","text":"`...)
	return append(append(append(dst, text...), '"'), more...)
}

// deltas are the names of the events with pieces of an item, and of the one with
// all of it, and what that is called.
var deltas = [...][3]string{
	reasoningItem: {"response.reasoning_text.delta", "response.reasoning_text.done", `,"text":"`},
	messageItem:   {"response.output_text.delta", "response.output_text.done", `,"text":"`},
	callItem:      {"response.function_call_arguments.delta", "response.function_call_arguments.done", `,"arguments":"`},
}

// appendText appends a piece of the open item; v is a JSON string.
func (s *Stream) appendText(dst []byte, v raw.Value) []byte {
	s.text = append(s.text, v.Inner()...)
	dst = s.place(s.event(dst, deltas[s.open][0]), s.open != callItem)
	dst = append(append(dst, `,"delta":`...), v...)
	if s.open == messageItem {
		dst = append(dst, `,"logprobs":[]`...)
	}
	return append(dst, closeEvent...)
}

// appendDone closes the open item, if one is open.
func (s *Stream) appendDone(dst []byte) []byte { return s.appendClosed(dst, "completed") }

func (s *Stream) appendClosed(dst []byte, status string) []byte {
	if s.open == none {
		return dst
	}
	dst = s.place(s.event(dst, deltas[s.open][1]), s.open != callItem)
	dst = append(append(append(dst, deltas[s.open][2]...), s.text...), '"')
	switch s.open {
	case messageItem:
		dst = append(dst, `,"logprobs":[]`...)
	case callItem:
		dst = append(append(dst, `,"name":`...), s.name...)
	}
	dst = append(dst, closeEvent...)
	if s.open != callItem {
		dst = s.place(s.event(dst, "response.content_part.done"), true)
		dst = append(dst, `,"part":`...)
		dst = append(s.appendPart(dst, s.text), closeEvent...)
	}
	if len(s.items) > 0 {
		s.items = append(s.items, ',')
	}
	from := len(s.items)
	s.items = s.appendOpen(s.items, status, true)
	dst = s.event(dst, "response.output_item.done")
	dst = raw.AppendInt(append(dst, `,"output_index":`...), s.index)
	dst = append(append(append(dst, `,"item":`...), s.items[from:]...), closeEvent...)
	s.open, s.text = none, s.text[:0]
	s.index++
	return dst
}

// status is how the answer ended, as far as it is known.
func (s *Stream) status() string {
	if s.finish == "length" || s.finish == "content_filter" {
		return "incomplete"
	}
	return "completed"
}

func (s *Stream) appendEnd(dst []byte) []byte {
	dst = s.appendStart(dst)
	status := s.status()
	dst = s.appendClosed(dst, status)
	dst = append(s.event(dst, "response."+status), `,"response":`...)
	return append(s.appendResponse(dst, status, nil), closeEvent...)
}

// appendResponse appends the response as it is now.
func (s *Stream) appendResponse(dst []byte, status string, failed *wire.Error) []byte {
	dst = append(append(append(dst, `{"id":"resp_`...), s.a.ID...), `","object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, s.a.Created, 10)
	dst = append(append(append(dst, `,"status":"`...), status...), `","error":`...)
	if failed != nil {
		dst = raw.AppendText(append(dst, `{"code":`...), failed.Code)
		dst = append(raw.AppendText(append(dst, `,"message":`...), failed.Message), '}')
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"incomplete_details":`...)
	switch {
	case status != "incomplete":
		dst = append(dst, "null"...)
	case s.finish == "length":
		dst = append(dst, `{"reason":"max_output_tokens"}`...)
	default:
		dst = append(dst, `{"reason":"content_filter"}`...)
	}
	dst = append(append(append(dst, `,"output":[`...), s.items...), ']')
	dst = append(dst, `,"usage":`...)
	if s.known && status != "in_progress" {
		u := &s.usage
		dst = raw.AppendInt(append(dst, `{"input_tokens":`...), u.Prompt)
		dst = raw.AppendInt(append(dst, `,"input_tokens_details":{"cached_tokens":`...), u.Cached)
		dst = raw.AppendInt(append(dst, `},"output_tokens":`...), u.Completion)
		dst = raw.AppendInt(append(dst, `,"output_tokens_details":{"reasoning_tokens":`...), s.reason)
		dst = append(raw.AppendInt(append(dst, `},"total_tokens":`...), u.Prompt+u.Completion), '}')
	} else {
		dst = append(dst, "null"...)
	}
	return append(append(append(dst, ','), s.a.Echo...), '}')
}

// AppendError appends an error as the last event of a stream that has begun: the
// response has failed. A stream in which there is no response yet ends with an
// error instead. Its members are OpenAI's, and those that an error has elsewhere,
// by which its SDKs know one.
func (s *Stream) AppendError(dst []byte, err *wire.Error) []byte {
	if s.begun {
		dst = append(s.event(dst, "response.failed"), `,"response":`...)
		return append(s.appendResponse(dst, "failed", err), closeEvent...)
	}
	b := raw.AppendText([]byte(`{"type":"error","code":`), err.Code)
	b = append(raw.AppendText(append(b, `,"message":`...), err.Message), `,"param":`...)
	if err.Param != "" {
		b = raw.AppendText(b, err.Param)
	} else {
		b = append(b, "null"...)
	}
	b = raw.AppendInt(append(b, `,"sequence_number":`...), s.sequence)
	b = append(b, ',')
	b = append(b, err.JSON()[1:]...)
	return sse.AppendEvent(dst, "error", b)
}
