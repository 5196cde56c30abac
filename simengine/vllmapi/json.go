package vllmapi

import (
	"encoding/json"
	"strconv"

	"headgate/simengine"
)

// Answers are written by hand into one buffer: an engine of two thousand
// streams writes that many events a step, and each is the same but for a word.

func completionID(id string, index int) string { return id + "-" + strconv.Itoa(index) }

func appendString(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic("vllmapi: " + err.Error()) // a string
			}
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// appendNullable writes "" as null.
func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

func appendIDs(dst []byte, ids []simengine.Token) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']')
}

// appendHead opens an answer or an event of one, up to the list of choices.
func (an *answer) appendHead(dst []byte) []byte {
	if an.api == tokensAPI {
		dst = append(dst, `{"request_id":`...)
		dst = appendString(dst, an.id)
		return append(dst, `,"choices":[`...)
	}
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, an.id)
	switch {
	case an.api == completionAPI:
		dst = append(dst, `,"object":"text_completion"`...)
	case an.stream:
		dst = append(dst, `,"object":"chat.completion.chunk"`...)
	default:
		dst = append(dst, `,"object":"chat.completion"`...)
	}
	dst = append(dst, `,"created":`...)
	dst = strconv.AppendInt(dst, an.created, 10)
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, an.server.cfg.ModelName)
	return append(dst, `,"choices":[`...)
}

// appendChoice writes a choice, or an event's part of one. role is set for the
// event that opens a chat answer.
func (an *answer) appendChoice(dst []byte, c *choice, text string, ids []simengine.Token, role bool) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(c.index), 10)
	finish := c.finish
	if role {
		finish = ""
	}
	switch {
	case an.api == completionAPI:
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, text)
	case an.api == tokensAPI:
	case !an.stream:
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = appendString(dst, text)
		dst = append(dst, '}')
	case role:
		dst = append(dst, `,"delta":{"role":"assistant","content":""}`...)
	default:
		dst = append(dst, `,"delta":{"content":`...)
		dst = appendString(dst, text)
		dst = append(dst, '}')
	}
	dst = append(dst, `,"logprobs":null,"finish_reason":`...)
	dst = appendNullable(dst, finish)
	if an.api != tokensAPI && finish != "" {
		dst = append(dst, `,"stop_reason":`...)
		dst = appendNullable(dst, c.stop)
	}
	if an.ids && !role {
		if an.api == completionAPI && (!an.stream || !c.begun) {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = appendIDs(dst, c.prompt)
		}
		dst = append(dst, `,"token_ids":`...)
		dst = appendIDs(dst, ids)
	}
	return append(dst, '}')
}

// appendUsage writes the usage, without the last untold output tokens.
func (an *answer) appendUsage(dst []byte, untold int) []byte {
	prompt, completion, cached := an.counts()
	completion -= untold
	dst = append(dst, `,"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt+completion), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(completion), 10)
	dst = append(dst, `,"prompt_tokens_details":`...)
	if an.server.cfg.PromptTokensDetails {
		dst = append(dst, `{"cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(cached), 10)
		dst = append(dst, '}')
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, '}')
}

// appendMetrics writes the request's own timings, where the server gives them:
// of one choice that wasn't aborted.
func (an *answer) appendMetrics(dst []byte) []byte {
	if !an.server.cfg.PerRequestMetrics || len(an.choices) != 1 || an.choices[0].finish == "abort" {
		return dst
	}
	t, ok := an.timing()
	if !ok {
		return dst
	}
	field := func(name string, v float64) {
		dst = append(dst, name...)
		dst = strconv.AppendFloat(dst, v, 'f', 3, 64)
	}
	field(`,"metrics":{"queue_time_ms":`, t.queue)
	field(`,"time_to_first_token_ms":`, t.first)
	field(`,"generation_time_ms":`, t.generation)
	field(`,"mean_itl_ms":`, t.gap)
	field(`,"tokens_per_second":`, t.rate)
	return append(dst, '}')
}
