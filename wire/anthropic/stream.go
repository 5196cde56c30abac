package anthropic

import (
	"bytes"
	"errors"
	"fmt"

	"headgate/wire"
	"headgate/wire/raw"
	"headgate/wire/sse"
)

// Stream rewrites a chat's events as those of a message. What an engine tells
// only at the end (the reason, the usage) is told there; the number of input
// tokens is expected at the start and the engine's own at the end, where it
// counts.
//
// Blocks are opened and closed as the kind of output changes; the arguments of a
// tool are passed on as they come, and are those of one tool at a time.
type Stream struct {
	a       Answer
	started bool
	open    blockKind
	index   int // of the open block, or of the next
	hidden  int // events of reasoning that were not shown

	tool     int // the last call's index in the chat
	tools    int // how many there were
	named    bool
	finish   string
	sequence raw.Value // the stop string, if the engine tells it
	usage    wire.Usage
	known    bool // usage is the engine's
	tokens   int  // output tokens as far as events show them
}

type blockKind uint8

const (
	none blockKind = iota
	thinkingBlock
	textBlock
	toolBlock
)

// hiddenMost is how many events of reasoning that the client did not ask for may
// pass in silence; then it gets a ping.
const hiddenMost = 32

// NewStream returns the Stream of an answer.
func NewStream(a Answer) *Stream { return &Stream{a: a, tool: -1} }

// AppendPing appends an event that shows that the answer is still coming.
// Clients take it at any time, also before the message has started.
func AppendPing(dst []byte) []byte {
	return append(dst, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// AppendEvent appends what one event of a chat's stream, framed as it came, is
// for the client; nothing for one that says nothing to it. An error means that
// the engine's stream makes no message, and the Stream is of no further use.
func (s *Stream) AppendEvent(dst, event []byte) ([]byte, error) {
	data := raw.EventData(event)
	if data == nil {
		return AppendPing(dst), nil // a comment, which is a sign of life
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
	s.tokens += c.Tokens
	if c.Finish != "" {
		s.finish = c.Finish
	}
	if c.HasUsage {
		s.usage, s.known = c.Usage, true
	}
	if !s.started {
		dst = s.appendStart(dst)
	}
	chunk := raw.Value(bytes.TrimSpace(data))
	for it := chunk.Each(); ; {
		key, v, ok := it.Member()
		if !ok {
			return dst, nil
		}
		if string(key) != "choices" || !v.Is('[') {
			continue
		}
		choices := v.Each()
		if first, ok := choices.Next(); ok && first.Is('{') {
			if dst, err = s.choice(dst, first); err != nil {
				return dst, err
			}
		}
	}
}

func (s *Stream) choice(dst []byte, choice raw.Value) ([]byte, error) {
	var err error
	for it := choice.Each(); ; {
		key, v, ok := it.Member()
		if !ok {
			return dst, err
		}
		switch string(key) {
		case "delta":
			if v.Is('{') && err == nil {
				dst, err = s.delta(dst, v)
			}
		case "stop_reason", "matched_stop": // vLLM's and SGLang's; a number is a token, no string of the client's
			if v.Is('"') {
				s.sequence = append(raw.Value(nil), v...)
			}
		}
	}
}

func (s *Stream) delta(dst []byte, delta raw.Value) ([]byte, error) {
	for it := delta.Each(); ; {
		key, v, ok := it.Member()
		if !ok {
			return dst, nil
		}
		switch string(key) {
		case "reasoning_content", "reasoning":
			if v.Is('"') && !v.Empty() {
				dst = s.reasoning(dst, v)
			}
		case "content", "refusal":
			if v.Is('"') && !v.Empty() {
				dst = s.appendDelta(s.appendBlock(dst, textBlock), "text_delta", "text", v)
			}
		case "tool_calls":
			if !v.Is('[') {
				continue
			}
			for calls := v.Each(); ; {
				call, ok := calls.Next()
				if !ok {
					break
				}
				var err error
				if call.Is('{') {
					dst, err = s.call(dst, call)
				}
				if err != nil {
					return dst, err
				}
			}
		}
	}
}

// reasoning shows it to a client that asked for it. For the others it is no part
// of the answer, and a client that takes the first block for the text is right.
func (s *Stream) reasoning(dst []byte, v raw.Value) []byte {
	if s.a.Thinking {
		return s.appendDelta(s.appendBlock(dst, thinkingBlock), "thinking_delta", "thinking", v)
	}
	if s.hidden++; s.hidden%hiddenMost == 0 {
		dst = AppendPing(dst)
	}
	return dst
}

var callFields = []string{"index", "id", "function"}

func (s *Stream) call(dst []byte, call raw.Value) ([]byte, error) {
	var f [3]raw.Value
	raw.Find(call, callFields, f[:])
	var function [2]raw.Value // name, arguments
	if f[2].Is('{') {
		raw.Find(f[2], []string{"name", "arguments"}, function[:])
	}
	id, name, arguments := f[1], function[0], function[1]
	at, given := f[0].Number()
	if !given {
		// Some engines leave it out: then an id begins a new call.
		at = s.tool
		if at < 0 || id.Is('"') && !id.Empty() {
			at++
		}
	}
	said := arguments.Is('"') && !arguments.Empty() || arguments.Is('{')
	switch {
	case at < s.tool || at == s.tool && s.named && s.open != toolBlock:
		if !said {
			return dst, nil
		}
		return dst, fmt.Errorf("the engine goes on with tool call %d after another part of the answer", at)
	case at > s.tool:
		dst = s.appendStop(dst)
		s.tool, s.named = at, false
	}
	if !s.named {
		if !name.Is('"') || name.Empty() {
			if !said {
				return dst, nil // it will come
			}
			return dst, fmt.Errorf("the engine begins tool call %d without a name", at)
		}
		s.named, s.open = true, toolBlock
		dst = s.appendBlockStart(dst)
		dst = append(dst, `{"type":"tool_use","id":`...)
		dst = append(s.appendCallID(dst, id), `,"name":`...)
		dst = append(append(dst, name...), `,"input":{}}}`+"\n\n"...)
		s.tools++
	}
	switch {
	case said && arguments.Is('"'):
		dst = s.appendDelta(dst, "input_json_delta", "partial_json", arguments)
	case said: // as an object, by an engine that knows it whole
		dst = s.appendDelta(dst, "input_json_delta", "partial_json", raw.AppendText(nil, []byte(arguments)))
	}
	return dst, nil
}

// appendCallID appends the engine's id of a call, or one of ours.
func (s *Stream) appendCallID(dst []byte, id raw.Value) []byte {
	if id.Is('"') && !id.Empty() {
		return append(dst, id...)
	}
	return raw.AppendText(dst, fmt.Sprintf("toolu_%s_%d", s.a.ID, s.tools))
}

func (s *Stream) appendStart(dst []byte) []byte {
	s.started = true
	dst = append(dst, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"...)
	dst = appendHead(dst, &s.a)
	dst = append(dst, `[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	dst = s.appendUsage(dst, 0)
	return AppendPing(append(dst, "}}\n\n"...))
}

// appendHead appends a message up to its content.
func appendHead(dst []byte, a *Answer) []byte {
	dst = raw.AppendText(append(dst, `{"id":`...), a.ID)
	dst = raw.AppendText(append(dst, `,"type":"message","role":"assistant","model":`...), a.Model)
	return append(dst, `,"content":`...)
}

// appendUsage appends the account: input_tokens are those that were not found
// in the engine's cache.
func (s *Stream) appendUsage(dst []byte, output int) []byte {
	input, cached := s.a.InputTokens, 0
	if s.known {
		input, cached = max(s.usage.Prompt-s.usage.Cached, 0), s.usage.Cached
	}
	dst = raw.AppendInt(append(dst, `{"input_tokens":`...), input)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	dst = raw.AppendInt(dst, cached)
	dst = raw.AppendInt(append(dst, `,"output_tokens":`...), output)
	return append(dst, '}')
}

func (s *Stream) output() int {
	if s.known {
		return s.usage.Completion
	}
	return s.tokens
}

// appendBlock opens a block of the kind unless it is open.
func (s *Stream) appendBlock(dst []byte, kind blockKind) []byte {
	if s.open == kind {
		return dst
	}
	dst = s.appendStop(dst)
	s.open = kind
	dst = s.appendBlockStart(dst)
	if kind == thinkingBlock {
		return append(dst, `{"type":"thinking","thinking":"","signature":""}}`+"\n\n"...)
	}
	return append(dst, `{"type":"text","text":""}}`+"\n\n"...)
}

func (s *Stream) appendBlockStart(dst []byte) []byte {
	dst = append(dst, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	return append(raw.AppendInt(dst, s.index), `,"content_block":`...)
}

func (s *Stream) appendStop(dst []byte) []byte {
	if s.open == none {
		return dst
	}
	dst = append(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	dst = append(raw.AppendInt(dst, s.index), "}\n\n"...)
	s.open = none
	s.index++
	return dst
}

// appendDelta appends a piece of the open block; text is a JSON string.
func (s *Stream) appendDelta(dst []byte, kind, name string, text []byte) []byte {
	dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	dst = append(raw.AppendInt(dst, s.index), `,"delta":{"type":"`...)
	dst = append(append(dst, kind...), `","`...)
	dst = append(append(dst, name...), `":`...)
	return append(append(dst, text...), "}}\n\n"...)
}

func (s *Stream) appendEnd(dst []byte) []byte {
	if !s.started {
		dst = s.appendStart(dst)
	}
	dst = s.appendStop(dst)
	dst = append(dst, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	dst = appendReason(dst, s.finish, s.sequence, s.tools > 0)
	dst = append(dst, `},"usage":`...)
	dst = s.appendUsage(dst, s.output())
	return append(dst, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

// appendReason appends why the answer ended. An engine that was told which tool
// to call says that it stopped; to the client it is a call all the same.
func appendReason(dst []byte, finish string, sequence raw.Value, tools bool) []byte {
	reason := "end_turn"
	switch {
	case finish == "length":
		reason = "max_tokens"
	case finish == "content_filter":
		reason = "refusal"
	case tools:
		reason = "tool_use"
	case finish == "stop" && len(sequence) > 0:
		reason = "stop_sequence"
	}
	dst = append(append(append(dst, `"stop_reason":"`...), reason...), `","stop_sequence":`...)
	if reason == "stop_sequence" {
		return append(dst, sequence...)
	}
	return append(dst, "null"...)
}

// AppendError appends an error as the last event of a stream that has begun.
func AppendError(dst []byte, err *wire.Error, request string) []byte {
	return sse.AppendEvent(dst, "error", errorJSON(err, request))
}
