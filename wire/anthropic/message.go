package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"headgate/wire"
	"headgate/wire/raw"
)

// Message makes the message of a chat's whole answer. A call whose arguments were
// cut off by the output limit is left out: they are no JSON, and the message's
// stop_reason says what happened. Any other that is no JSON object is an error.
func Message(answer []byte, a Answer) ([]byte, error) {
	c, err := wire.ParseChunk(wire.Chat, answer)
	switch {
	case err != nil:
		return nil, err
	case c.Err != nil:
		return nil, errors.New(c.Err.Message)
	}
	s := NewStream(a)
	s.usage, s.known, s.tokens, s.finish = c.Usage, c.HasUsage, c.Tokens, c.Finish
	var top, choice, parts [4]raw.Value
	raw.Find(bytes.TrimSpace(answer), []string{"choices"}, top[:])
	if top[0].Is('[') {
		choices := top[0].Each()
		if first, ok := choices.Next(); ok && first.Is('{') {
			raw.Find(first, []string{"message", "stop_reason", "matched_stop"}, choice[:])
		}
	}
	for _, v := range choice[1:] {
		if v.Is('"') {
			s.sequence = v
		}
	}
	if choice[0].Is('{') {
		raw.Find(choice[0], []string{"reasoning_content", "reasoning", "content", "tool_calls"}, parts[:])
	}
	dst := append(appendHead(make([]byte, 0, len(answer)+256), &a), '[')
	for _, v := range parts[:2] {
		if a.Thinking && v.Is('"') && !v.Empty() {
			dst = append(append(raw.Comma(dst), `{"type":"thinking","thinking":`...), v...)
			dst = append(dst, `,"signature":""}`...)
			break // two names for one thing
		}
	}
	if v := parts[2]; v.Is('"') && !v.Empty() {
		dst = append(append(append(raw.Comma(dst), `{"type":"text","text":`...), v...), '}')
	}
	if parts[3].Is('[') {
		for it := parts[3].Each(); ; {
			call, ok := it.Next()
			if !ok {
				break
			}
			if dst, err = s.wholeCall(dst, call); err != nil {
				return nil, err
			}
		}
	}
	dst = append(dst, ']', ',')
	dst = appendReason(dst, s.finish, s.sequence, s.tools > 0)
	dst = append(dst, `,"usage":`...)
	return append(s.appendUsage(dst, s.output()), '}'), nil
}

func (s *Stream) wholeCall(dst []byte, call raw.Value) ([]byte, error) {
	if !call.Is('{') {
		return dst, nil
	}
	var f [3]raw.Value
	raw.Find(call, callFields, f[:])
	var function [2]raw.Value
	if f[2].Is('{') {
		raw.Find(f[2], []string{"name", "arguments"}, function[:])
	}
	name, input := function[0], function[1]
	if !name.Is('"') {
		return dst, errors.New("the engine's answer has a tool call without a name")
	}
	if input.Is('"') {
		input = raw.Value(bytes.TrimSpace([]byte(input.Text())))
	}
	switch {
	case len(input) == 0 || input.Null():
		input = raw.Value("{}")
	case input.Is('{') && json.Valid(input):
	case s.finish == "length":
		return dst, nil
	default:
		return dst, fmt.Errorf("the arguments that the model wrote for the tool %s are no JSON object", name)
	}
	dst = append(raw.Comma(dst), `{"type":"tool_use","id":`...)
	dst = append(s.appendCallID(dst, f[1]), `,"name":`...)
	dst = append(append(dst, name...), `,"input":`...)
	s.tools++
	return append(append(dst, input...), '}'), nil
}
