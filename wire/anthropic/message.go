package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"headgate/wire"
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
	var top, choice, parts [4]value
	into(bytes.TrimSpace(answer), []string{"choices"}, top[:])
	if top[0].is('[') {
		choices := top[0].each()
		if first, ok := choices.next(); ok && first.is('{') {
			into(first, []string{"message", "stop_reason", "matched_stop"}, choice[:])
		}
	}
	for _, v := range choice[1:] {
		if v.is('"') {
			s.sequence = v
		}
	}
	if choice[0].is('{') {
		into(choice[0], []string{"reasoning_content", "reasoning", "content", "tool_calls"}, parts[:])
	}
	dst := append(appendHead(make([]byte, 0, len(answer)+256), &a), '[')
	for _, v := range parts[:2] {
		if a.Thinking && v.is('"') && !v.empty() {
			dst = append(append(comma(dst), `{"type":"thinking","thinking":`...), v...)
			dst = append(dst, `,"signature":""}`...)
			break // two names for one thing
		}
	}
	if v := parts[2]; v.is('"') && !v.empty() {
		dst = append(append(append(comma(dst), `{"type":"text","text":`...), v...), '}')
	}
	if parts[3].is('[') {
		for it := parts[3].each(); ; {
			call, ok := it.next()
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

func (s *Stream) wholeCall(dst []byte, call value) ([]byte, error) {
	if !call.is('{') {
		return dst, nil
	}
	var f [3]value
	into(call, callFields, f[:])
	var function [2]value
	if f[2].is('{') {
		into(f[2], []string{"name", "arguments"}, function[:])
	}
	name, input := function[0], function[1]
	if !name.is('"') {
		return dst, errors.New("the engine's answer has a tool call without a name")
	}
	if input.is('"') {
		input = value(bytes.TrimSpace([]byte(input.text())))
	}
	switch {
	case len(input) == 0 || input.null():
		input = value("{}")
	case input.is('{') && json.Valid(input):
	case s.finish == "length":
		return dst, nil
	default:
		return dst, fmt.Errorf("the arguments that the model wrote for the tool %s are no JSON object", name)
	}
	dst = append(comma(dst), `{"type":"tool_use","id":`...)
	dst = append(s.appendCallID(dst, f[1]), `,"name":`...)
	dst = append(append(dst, name...), `,"input":`...)
	s.tools++
	return append(append(dst, input...), '}'), nil
}
