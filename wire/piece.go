package wire

import "strconv"

// A piece is the beginning of a request's prompt, sent by itself for the engine's
// cache.

// Splittable tells whether pieces of the prompt can be of use to the request: the
// engine then need not compute what its cache has, and its prompt is made of
// nothing but what an engine tells the ids of.
func (r *Request) Splittable() bool {
	if r.N > 1 || r.Content.Media > 0 || !r.API.Generates() {
		return false
	}
	sc := scanner{b: r.Body}
	sc.peek()
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			return true
		}
		name := string(key)
		if v := sc.value(); filled(v) && string(v) != "false" && shapesPrompt(name) {
			return false
		}
	}
}

// shapesPrompt tells whether a field makes the engine compute the whole prompt, cache
// or not, or changes the prompt in a way that a tokenization does not show.
func shapesPrompt(name string) bool {
	switch name {
	case "prompt_logprobs", "echo", "suffix", "truncate_prompt_tokens", "prompt_embeds", "documents", "reasoning_effort",
		"functions", "kv_transfer_params", "use_beam_search":
		return true
	}
	return false
}

// Piece returns the body of a completion that has ids computed and makes one token.
// What the engine's cache goes by beside them is the request's own. Of p the model
// and the priority are used.
func (r *Request) Piece(p Projection, ids []int32) []byte {
	model := p.Model
	if model == "" {
		model = r.Model
	}
	b := appendString(append(make([]byte, 0, 8*len(ids)+256), `{"model":`...), model)
	b = append(b, `,"prompt":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	b = append(b, `],"max_tokens":1,"temperature":0`...)
	sc := scanner{b: r.Body}
	sc.peek()
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		salt := string(key) == "cache_salt"
		if v := sc.value(); salt && filled(v) {
			b = append(append(b, `,"cache_salt":`...), v...)
		}
	}
	if p.HasPriority {
		b = strconv.AppendInt(append(b, `,"priority":`...), int64(p.Priority), 10)
	}
	return append(b, `,"stream":true,"stream_options":{"include_usage":true}}`...)
}
