package wire

import (
	"bytes"
	"fmt"
	"math"
)

// ParseChunk reads what one event's data says. It is also what reads a whole
// answer that was not streamed, which is told as one chunk; of embeddings that is
// the usage.
//
// Tokens is counted per choice: the length of token_ids where the engine sends
// them, else 1 for a choice that carries text of any kind or a tool call, else
// 0. Engines may put several tokens into an event (vLLM's stream_interval,
// SGLang's coalescing), so without token_ids it is a lower bound, to be replaced
// by Usage when the engine reports it. HasUsage is set for every usage object,
// on the trailing chunk as well as on each (continuous_usage_stats).
//
// Finish is the reason of the last choice in this event that ended, and
// Finished counts those; an answer of n choices has ended after n of them.
//
// An engine's error in the place of a chunk is Chunk.Err, with the status that
// its class has outside of a stream. The error result is for data that is not
// JSON. ParseChunk allocates nothing unless it returns one of the two.
func ParseChunk(api API, data []byte) (Chunk, error) {
	var c Chunk
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		c.Done = true
		return c, nil
	}
	s := scanner{b: data}
	if s.peek() != '{' {
		s.skip()
		s.finish()
		if s.err == nil {
			return c, fmt.Errorf("a chunk is %s; it must be an object", kindOf(data))
		}
		return c, fmt.Errorf("a chunk is not JSON: %w", s.err)
	}
	var choices, empty, failed bool
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			break
		}
		switch string(key) {
		case "choices":
			if s.peek() != '[' {
				s.skip()
				continue
			}
			choices, empty = true, true
			for s.open(); s.elem(); {
				empty = false
				c.choice(&s, api)
			}
		case "usage":
			c.usage(&s)
		case "error":
			failed = string(s.value()) != "null"
		case "object":
			failed = failed || string(s.value()) == `"error"`
		default:
			s.skip()
		}
	}
	s.finish()
	if s.err != nil {
		return Chunk{}, fmt.Errorf("a chunk is not JSON: %w", s.err)
	}
	if failed {
		return Chunk{Err: fromStream(data)}, nil
	}
	c.UsageOnly = choices && empty && c.HasUsage
	return c, nil
}

func (c *Chunk) choice(s *scanner, api API) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	content, ids := false, -1
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			break
		}
		switch string(key) {
		case "text":
			content = filled(s.value()) && api == Completions || content
		case "delta", "message":
			content = deltaContent(s) || content
		case "token_ids":
			if s.peek() != '[' {
				s.skip()
				continue
			}
			ids = 0
			for s.open(); s.elem(); s.skip() {
				ids++
			}
		case "finish_reason":
			if v := s.value(); filled(v) {
				c.Finish = reason(v)
				c.Finished++
			}
		default:
			s.skip()
		}
	}
	c.Content = c.Content || content
	switch {
	case ids >= 0:
		c.Tokens += ids
	case content:
		c.Tokens++
	}
}

// deltaContent tells whether a delta or message carries output.
func deltaContent(s *scanner) (content bool) {
	if s.peek() != '{' {
		s.skip()
		return false
	}
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			return content
		}
		switch string(key) {
		case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
			content = filled(s.value()) || content
		default:
			s.skip()
		}
	}
}

// filled tells whether a value says anything: it is not null, and no empty
// string, array or object.
func filled(v []byte) bool {
	switch string(v) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

// reason returns a finish_reason, without allocation where it is a known one.
func reason(v []byte) string {
	switch string(v) {
	case `"stop"`:
		return "stop"
	case `"length"`:
		return "length"
	case `"tool_calls"`:
		return "tool_calls"
	case `"function_call"`:
		return "function_call"
	case `"content_filter"`:
		return "content_filter"
	case `"abort"`:
		return "abort"
	case `"error"`:
		return "error"
	}
	return text(v)
}

func (c *Chunk) usage(s *scanner) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	c.HasUsage = true
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			return
		}
		switch string(key) {
		case "prompt_tokens":
			c.Usage.Prompt = count(s.value())
		case "completion_tokens":
			c.Usage.Completion = count(s.value())
		case "prompt_tokens_details":
			if s.peek() != '{' {
				s.skip()
				continue
			}
			s.open()
			for {
				key, ok := s.member()
				if !ok {
					break
				}
				if string(key) == "cached_tokens" {
					c.Usage.Cached = count(s.value())
				} else {
					s.skip()
				}
			}
		default:
			s.skip()
		}
	}
}

// count is a number of tokens as an engine writes it; 0 for what is none.
func count(v []byte) int {
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0
		}
		if n = n*10 + int(c-'0'); n > math.MaxInt32 {
			return math.MaxInt32
		}
	}
	return n
}
