package wire

import (
	"fmt"
	"slices"
	"strconv"
)

// carry is what becomes of a request's field when its answer is continued as a
// completion of token ids: those of the prompt and those produced so far.
type carry uint8

const (
	carryNot   carry = iota // not known to be safe: only null is
	carryOwn                // the gateway writes it anew, or has checked it
	carryCopy               // it means the same for the rest as for the whole
	carryDrop               // it has done its work once the prompt is ids, or means nothing to an engine
	carryEmpty              // can't be continued, so only a value that asks for nothing is
	carryZero               // likewise, and 0 asks for nothing
)

// carryOf is a list of what is known to be right, because what is not on it only
// costs a request that starts over. In particular
//
//   - tools, reasoning switches, logprobs and echo shape more of an answer than its
//     text;
//   - presence and frequency penalties count output, and what was output before the
//     cut is prompt after it; the repetition penalty counts both;
//   - a seed's random numbers would start over.
func carryOf(key string) carry {
	switch key {
	case "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens",
		"min_tokens", "stop", "n", "best_of", "priority", "use_beam_search", "response_format", "tool_choice":
		return carryOwn
	case "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids",
		"stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
		"include_stop_str_in_output", "cache_salt":
		return carryCopy
	case "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens",
		"documents", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls":
		return carryDrop
	case "logprobs", "prompt_logprobs", "echo", "tools", "functions", "suffix":
		return carryEmpty
	case "top_logprobs", "presence_penalty", "frequency_penalty":
		return carryZero
	}
	return carryNot
}

// allows tells whether a field of the value leaves a request resumable.
func (c carry) allows(v []byte) bool {
	switch c {
	case carryNot:
		return string(v) == "null"
	case carryEmpty:
		return !filled(v) || string(v) == "false"
	case carryZero:
		n, ok := integer(v)
		return !filled(v) || ok && n == 0
	}
	return true
}

// Stitch makes one answer of the streams of several attempts at one request. The
// first is the client's own request, of which the engine also returns token ids
// (Projection.TokenIDs); every further one is a completion of the prompt's ids and
// those that are kept. Its events come out in the shape of the first one's: same
// id and model, one opening, one usage.
//
// Only what ends with text is kept. The ids behind the last text are the beginning
// of a character, which the engine has not given out and would not complete in
// another attempt; they are produced again. An event of several tokens may hide
// such a beginning behind its text, so that an attempt isn't to be cut behind one.
// What is kept is then always exactly what the client has, or is held back here as
// the beginning of a stop string.
//
// Stop strings are looked for here and not by the engine, see stops.
//
// Of an engine that gives no ids the text itself is kept, see NewTextStitch.
//
// Alternatives: to resume from text needs no ids, but a tokenizer may cut the same
// text into other tokens, and the engine's cache is then of no use, so it comes
// second; to keep all ids needs a tokenizer here, to tell the text of the last of
// them.
type Stitch struct {
	req      *Request
	most     int  // tokens of output; 0: what the context leaves
	window   int  // tokens of the context
	fromText bool // kept and tail are of text as it is written, and a count of its tokens

	head         [numHeads][]byte // as the first event that had them said
	prompt       []byte           // ids, with commas between them
	promptTokens int
	kept         ids
	tail         ids // behind the last text
	before       int // tokens that were kept of earlier attempts
	again        bool
	broken       bool
	bare         bool // a text came without ids
	out          []byte
	stops        *stops // nil: there are none
	said         []byte // the last text
	sure         bool   // it has a whole end
}

// ids are token ids as they were written, with commas between them. Where an answer
// is continued from its text they are that text.
type ids struct {
	text []byte
	n    int
}

func (s *ids) add(id []byte) {
	if s.n > 0 {
		s.text = append(s.text, ',')
	}
	s.text = append(s.text, id...)
	s.n++
}

const (
	headID = iota
	headObject
	headCreated
	headModel
	headFingerprint
	numHeads
)

var headNames = [numHeads]string{"id", "object", "created", "model", "system_fingerprint"}

func headOf(key string) int {
	switch key {
	case "id":
		return headID
	case "object":
		return headObject
	case "created":
		return headCreated
	case "model":
		return headModel
	case "system_fingerprint":
		return headFingerprint
	}
	return -1
}

// NewStitch returns a Stitch of a resumable request. most is its output limit, in
// tokens; 0 stands for what the context, of window tokens, leaves.
func NewStitch(r *Request, most, window int) *Stitch {
	return &Stitch{req: r, most: most, window: window, stops: newStops(r)}
}

// Piece is an event as the client is to see it.
type Piece struct {
	Data []byte // until the next Add
	Text bool   // the engine's event has text, of which some may be held back
	// Sure: an attempt can be cut behind it. Of several tokens it isn't known
	// whether all their text is there, and they are only kept with a later piece.
	Sure bool
	// Last: an attempt can't be continued from behind it. The answer has ended or
	// is about to, or it has what can't be continued.
	Last bool
	// Blank: the event is another opening, of which the client has had one.
	Blank bool
	// Stop: a stop string has ended the answer with this event, of which the engine
	// knows nothing. What is left to tell is Usage.
	Stop bool
}

// Add takes in an event of the present attempt, not the terminator. What it
// carries is kept from the next Keep on. The error is for what is not JSON.
func (s *Stitch) Add(data []byte) (Piece, error) {
	var p Piece
	var ended, opening bool
	var usage []byte
	sc := scanner{b: data}
	b := append(s.out[:0], '{')
	if sc.peek() != '{' {
		return p, fmt.Errorf("a chunk is %s; it must be an object", kindOf(data))
	}
	told := s.tail.n
	sc.open()
	for {
		key, ok := sc.member()
		if !ok {
			break
		}
		name, written := string(key), sc.b[sc.keyAt:sc.keyTo]
		if name == "choices" && sc.peek() == '[' {
			b = append(append(comma(b), written...), ':', '[')
			for sc.open(); sc.elem(); {
				var text, finish, again bool
				b, text, finish, again = s.choice(comma(b), &sc)
				p.Text, ended, opening = p.Text || text, ended || finish, opening || again
			}
			b = append(b, ']')
			continue
		}
		v := sc.value()
		h := headOf(name)
		switch {
		case name == "prompt_token_ids":
			s.promptIDs(v)
			continue
		case h >= 0 && s.again:
			if v = s.head[h]; v == nil {
				continue
			}
		case h >= 0 && s.head[h] == nil:
			s.head[h] = slices.Clone(v)
		case name == "usage" && len(v) > 0 && v[0] == '{':
			if usage = v; !s.again {
				break
			}
			b = append(append(comma(b), written...), ':')
			b = s.usage(b, v)
			continue
		}
		b = append(append(append(comma(b), written...), ':'), v...)
	}
	sc.finish()
	if sc.err != nil {
		return Piece{}, fmt.Errorf("a chunk is not JSON: %w", sc.err)
	}
	if s.fromText && usage != nil {
		s.counted(usage)
	}
	s.out = append(b, '}')
	p.Data, p.Blank = s.out, s.again && opening && !p.Text && !ended
	ids := s.tail.n - told
	if s.fromText {
		p.Sure, ids = p.Text && s.sure, 0
	} else {
		p.Sure = p.Text && ids == 1
		if p.Text && (ids == 0 || s.promptTokens == 0) {
			s.broken, s.bare = true, true
		}
	}
	if s.stops != nil {
		p.Data, p.Stop = s.stops.add(s.req.API, s.out, ids, p.Text, ended)
	}
	p.Last = ended || p.Stop || s.broken || s.full()
	return p, nil
}

// full tells whether the answer is about to end for its length.
func (s *Stitch) full() bool {
	n := s.kept.n + s.tail.n
	if s.fromText {
		return s.most > 0 && n >= s.most
	}
	return s.promptTokens > 0 && n >= s.limit()
}

// limit is the number of tokens at which the answer ends.
func (s *Stitch) limit() int {
	if s.most > 0 {
		return s.most
	}
	return s.window - s.promptTokens
}

// left is how many tokens may still come, on an engine whose context may be another
// than that of the first.
func (s *Stitch) left(window int) int {
	left := s.limit() - s.kept.n
	if window > 0 {
		left = min(left, window-s.promptTokens-s.kept.n)
	}
	return max(left, 1)
}

func (s *Stitch) promptIDs(v []byte) {
	if s.fromText || s.promptTokens > 0 || len(v) == 0 || v[0] != '[' {
		return
	}
	var all ids
	s.read(&all, v)
	s.prompt, s.promptTokens = all.text, all.n
}

// read appends an array of ids.
func (s *Stitch) read(to *ids, v []byte) {
	sc := scanner{b: v}
	for sc.open(); sc.elem(); {
		id := sc.value()
		for _, c := range id {
			s.broken = s.broken || c < '0' || c > '9'
		}
		to.add(id)
	}
}

// choice writes one in the client's shape. opening: of an answer that is continued
// from its text it has told the role.
func (s *Stitch) choice(b []byte, sc *scanner) (_ []byte, text, finish, opening bool) {
	if sc.peek() != '{' {
		s.broken = true
		return append(b, sc.value()...), false, false, false
	}
	b = append(b, '{')
	told := s.tail.n
	sc.open()
	for {
		key, ok := sc.member()
		if !ok {
			break
		}
		name, written := string(key), sc.b[sc.keyAt:sc.keyTo]
		v := sc.value()
		switch name {
		case "prompt_token_ids":
			s.promptIDs(v)
			continue
		case "token_ids":
			if len(v) > 0 && v[0] == '[' && !s.fromText {
				s.read(&s.tail, v)
			}
			continue
		case "text":
			if filled(v) {
				text = true
				s.spoken(v)
			}
			if s.req.API == Chat {
				b = append(append(comma(b), `"delta":{"content":`...), v...)
				b = append(b, '}')
				continue
			}
		case "delta":
			if s.fromText {
				var bare []byte
				if bare, opening = roleless(v); s.again {
					v = bare
				}
			}
			text = s.delta(v) || text
		case "index":
			s.broken = s.broken || string(v) != "0"
		case "logprobs":
			s.broken = s.broken || filled(v)
		case "finish_reason":
			finish = filled(v)
		}
		b = append(append(append(comma(b), written...), ':'), v...)
	}
	if s.fromText && !finish && !opening && s.tail.n == told {
		s.tail.n++ // a token whose text is held back, of a character mostly
	}
	return append(b, '}'), text, finish, opening
}

// spoken takes in a text that is to be continued from.
func (s *Stitch) spoken(v []byte) {
	if s.fromText {
		s.broken = s.broken || v[0] != '"'
		s.say(v)
	}
}

// delta tells whether a delta has text. Anything else that it has can't be
// continued: reasoning, a refusal, a tool call.
func (s *Stitch) delta(v []byte) (text bool) {
	if len(v) == 0 || v[0] != '{' {
		return false
	}
	sc := scanner{b: v}
	sc.open()
	for {
		key, ok := sc.member()
		if !ok {
			return text
		}
		name := string(key)
		v := sc.value()
		switch {
		case name == "content":
			if text = filled(v); text {
				s.broken = s.broken || v[0] != '"'
				s.spoken(v)
			}
		case name != "role":
			s.broken = s.broken || filled(v)
		}
	}
}

// usage writes that of the whole answer. What the engine had cached of the prompt
// was lost with the first attempt; what it says now counts the answer's beginning.
func (s *Stitch) usage(b, v []byte) []byte {
	sc := scanner{b: v}
	b = append(b, '{')
	n := 0
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		name, written := string(key), sc.b[sc.keyAt:sc.keyTo]
		v := sc.value()
		b = append(append(comma(b), written...), ':')
		switch name {
		case "completion_tokens":
			n = s.before + count(v)
			b = strconv.AppendInt(b, int64(n), 10)
		case "prompt_tokens":
			prompt := s.promptTokens
			if s.fromText {
				prompt = max(count(v)-s.before, 0)
			}
			b = strconv.AppendInt(b, int64(prompt), 10)
		case "total_tokens":
			// Both prompts and both outputs differ by what was kept.
			b = append(b, v...)
		case "prompt_tokens_details":
			b = append(b, "null"...)
		default:
			b = append(b, v...)
		}
	}
	return append(b, '}')
}

// Keep keeps what has come up to now: the client is being given it.
func (s *Stitch) Keep() {
	if s.tail.n == 0 {
		return
	}
	if s.kept.n > 0 && !s.fromText {
		s.kept.text = append(s.kept.text, ',')
	}
	s.kept.text = append(s.kept.text, s.tail.text...)
	s.kept.n += s.tail.n
	s.tail = ids{text: s.tail.text[:0]}
	if s.stops != nil {
		s.stops.keep()
	}
}

// Cut ends the present attempt: what was not kept is forgotten, and what comes
// next is of a continuation. It is false if there can be none.
func (s *Stitch) Cut() bool {
	s.tail = ids{text: s.tail.text[:0]}
	s.before, s.again = s.kept.n, true
	if s.stops != nil {
		s.stops.cut(s.kept.n)
	}
	return !s.broken && len(s.kept.text) > 0
}

// Kept is the number of tokens kept of the present attempt, Before of those before
// it.
func (s *Stitch) Kept() int   { return s.kept.n - s.before }
func (s *Stitch) Before() int { return s.before }

// Loose is the number of tokens that have come and are not kept.
func (s *Stitch) Loose() int { return s.tail.n }

// Able tells whether all that came can be continued: nothing but text, and each with
// its ids where they are what it is continued from.
func (s *Stitch) Able() bool { return !s.broken }

// Bare tells whether the engine gave a text without the ids it was asked for, which
// is no matter of this answer alone.
func (s *Stitch) Bare() bool { return s.bare }

// PromptTokens is the length of the prompt; 0 if the engine hasn't told.
func (s *Stitch) PromptTokens() int { return s.promptTokens }

// Stops tells whether the answer may end at a stop string here.
func (s *Stitch) Stops() bool { return s.stops != nil }

// Usage returns the event that ends what a stop string has ended: all tokens up to
// that in which the string was complete. prompt is how many the prompt is taken for
// where the engine returns no ids to count.
func (s *Stitch) Usage(prompt int) []byte {
	if s.promptTokens > 0 {
		prompt = s.promptTokens
	}
	b := []byte{'{'}
	for h, v := range s.head {
		if v != nil {
			b = append(append(append(comma(b), '"'), headNames[h]...), `":`...)
			b = append(b, v...)
		}
	}
	n := s.kept.n + s.tail.n
	return fmt.Appendf(comma(b), `"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}}`,
		prompt, prompt+n, n)
}

// API is that of a continuation.
func (s *Stitch) API() API {
	if s.fromText {
		return s.req.API
	}
	return Completions
}

// Continue returns the body of a request that goes on from what is kept, on an engine
// with a context of window tokens; 0 is not known. Of p the limit is not used: the
// first attempt's was for the whole.
func (s *Stitch) Continue(p Projection, window int) []byte {
	if s.fromText {
		return s.continueText(p)
	}
	r := s.req
	model := p.Model
	if model == "" {
		model = r.Model
	}
	b := make([]byte, 0, len(s.prompt)+len(s.kept.text)+1024)
	b = appendString(append(b, `{"model":`...), model)
	b = append(append(b, `,"prompt":[`...), s.prompt...)
	b = append(append(append(b, ','), s.kept.text...), ']')
	b = strconv.AppendInt(append(b, `,"max_tokens":`...), int64(s.left(window)), 10)
	sc := scanner{b: r.Body}
	sc.peek()
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		name, written := string(key), sc.b[sc.keyAt:sc.keyTo]
		v := sc.value()
		switch n, ok := integer(v); {
		case name == "min_tokens" && ok && n > s.kept.n:
			b = strconv.AppendInt(append(b, `,"min_tokens":`...), int64(n-s.kept.n), 10)
		case carryOf(name) == carryCopy:
			b = append(append(append(append(b, ','), written...), ':'), v...)
		}
	}
	if p.HasPriority {
		b = strconv.AppendInt(append(b, `,"priority":`...), int64(p.Priority), 10)
	}
	return append(b, `,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true}`...)
}
