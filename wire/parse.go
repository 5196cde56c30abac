package wire

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// field is one that the gateway reads. A second occurrence of any of them is
// refused: parsers differ in which of two they take, and an engine must not see
// another value than the one that was admitted.
type field uint8

const (
	fieldModel field = iota
	fieldStream
	fieldStreamOptions
	fieldIncludeUsage
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldNPredict
	fieldPriority
	fieldMessages
	fieldPrompt
	fieldInput
	fieldN
	fieldBestOf
	fieldNCmpl
	fieldBeam
	fieldTier
	fieldStop
	fieldCacheKey
	numFields
)

var fieldNames = [numFields]string{"model", "stream", "stream_options", "stream_options.include_usage",
	"max_tokens", "max_completion_tokens", "n_predict", "priority", "messages", "prompt",
	"input", "n", "best_of", "n_cmpl", "use_beam_search", "service_tier", "stop", "prompt_cache_key"}

// limits are the fields that limit the output. llama-server lets n_predict
// override the other two, so a gateway that overlooked it would admit one length
// and run another; the same holds for n_cmpl and n.
var limits = [...]field{fieldMaxTokens, fieldMaxCompletionTokens, fieldNPredict}

// span is where a member lies in the body. An absent one is zero: no member
// begins at the body's first byte, which is a brace.
type span struct{ key, from, to int }

const maxN = 128 // of n and best_of, OpenAI's limit

// Parse reads a request's body in one pass, which also validates it. Body is
// kept, not copied.
//
// A member that is null counts as absent. Names are compared as engines do,
// exactly and after their escapes are undone: "mod\u0065l" is model, "Model" is
// not and is passed on. Fields that are not known here are neither checked nor
// changed; a wrong value is the engine's to refuse.
//
// max_tokens may be 0: vLLM takes it to score a prompt (with echo), and an
// engine that doesn't says so itself.
func Parse(api API, body []byte) (*Request, *Error) {
	if !utf8.Valid(body) {
		return nil, NewError(CodeInvalidJSON, "the body is not valid JSON: not UTF-8 at byte %d", invalidUTF8(body))
	}
	p := parser{scanner: scanner{b: body}, r: &Request{API: api, Body: body}, sequences: 1}
	switch p.peek() {
	case '{':
		p.object()
	default:
		p.skip()
		if p.err == nil {
			p.refuse(NewError(CodeInvalidJSON, "the body is %s; allowed: one JSON object", kindOf(body)))
		}
	}
	p.finish()
	if p.err != nil {
		return nil, NewError(CodeInvalidJSON, "the body is not valid JSON: %v", p.err)
	}
	p.complete()
	if p.refusal != nil {
		return nil, p.refusal
	}
	return p.r, nil
}

func invalidUTF8(b []byte) int {
	i := 0
	for i < len(b) {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		i += n
	}
	return i
}

type parser struct {
	scanner
	r         *Request
	refusal   *Error // the first one; the rest is still read, as bad JSON goes before
	sequences int    // per prompt
	prompts   int
}

func (p *parser) refuse(e *Error) {
	if p.refusal == nil {
		p.refusal = e
	}
}

func (p *parser) object() {
	p.open()
	for {
		key, ok := p.member()
		if !ok {
			break
		}
		carried, from := carryOf(string(key)), p.i
		switch string(key) {
		case "model":
			p.owned(fieldModel, func(v []byte) {
				if p.r.Model = p.text(fieldModel, v); p.r.Model == "" && string(v) == `""` {
					p.refuse(InvalidField("model", `""`, "the name of a served model"))
				}
			})
		case "stream":
			p.owned(fieldStream, func(v []byte) { p.r.Stream = p.flag(fieldStream, v) })
		case "stream_options":
			p.streamOptions()
		case "max_tokens":
			p.owned(fieldMaxTokens, func(v []byte) { p.limit(fieldMaxTokens, v) })
		case "max_completion_tokens":
			p.owned(fieldMaxCompletionTokens, func(v []byte) { p.limit(fieldMaxCompletionTokens, v) })
		case "n_predict":
			p.owned(fieldNPredict, func(v []byte) { p.limit(fieldNPredict, v) })
		case "n":
			p.owned(fieldN, func(v []byte) { p.sequence(fieldN, v) })
		case "best_of":
			p.owned(fieldBestOf, func(v []byte) { p.sequence(fieldBestOf, v) })
		case "n_cmpl":
			p.owned(fieldNCmpl, func(v []byte) { p.sequence(fieldNCmpl, v) })
		case "use_beam_search":
			p.owned(fieldBeam, func(v []byte) {
				if p.flag(fieldBeam, v) {
					p.r.Constrained = true
				}
			})
		case "priority":
			p.owned(fieldPriority, func([]byte) {})
		case "prompt_cache_key":
			p.owned(fieldCacheKey, func(v []byte) {
				if v[0] == '"' { // anything else is the engine's to refuse
					p.r.CacheKey = text(v)
				}
			})
		case "service_tier":
			p.owned(fieldTier, func(v []byte) { p.r.ServiceTier = p.text(fieldTier, v) })
		case "stop":
			p.owned(fieldStop, p.stop)
		case "include_stop_str_in_output":
			v := p.value()
			p.r.includeStop = string(v) == "true"
			p.r.fixed = p.r.fixed || !p.r.includeStop && string(v) != "false" && string(v) != "null"
		case "min_tokens":
			v := p.value()
			n, ok := integer(v)
			p.r.minTokens = n
			p.r.fixed = p.r.fixed || !ok && string(v) != "null"
		case "messages":
			p.once(fieldMessages)
			if p.r.API != Completions {
				p.messages()
			} else {
				p.skip()
			}
			p.r.spans[fieldMessages].to = p.i
		case "prompt":
			p.once(fieldPrompt)
			if p.r.API == Completions {
				p.prompt("prompt")
			} else {
				p.skip()
			}
			p.r.spans[fieldPrompt].to = p.i
		case "input":
			p.once(fieldInput)
			if p.r.API == Embeddings {
				p.prompt("input")
			} else {
				p.skip()
			}
			p.r.spans[fieldInput].to = p.i
		case "prompt_embeds":
			p.promptEmbeds()
		case "input_ids", "prompt_token_ids":
			p.tokenIDs(string(key))
		case "add_generation_prompt", "continue_final_message":
			p.r.begun = string(p.value()) != "null" || p.r.begun
		case "tools", "functions", "documents", "suffix":
			p.measureValue()
		case "response_format":
			p.responseFormat()
		case "tool_choice":
			v := p.value()
			p.constrain(len(v) > 0 && v[0] == '{' || string(v) == `"required"`)
		case "function_call":
			v := p.value()
			p.constrain(len(v) > 0 && v[0] == '{')
		case "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
			"grammar", "json_schema", "regex", "ebnf", "structural_tag":
			v := p.value()
			p.constrain(string(v) != "null" && string(v) != `""`)
		default:
			p.skip()
		}
		if p.err == nil {
			p.r.fixed = p.r.fixed || !carried.allows(p.b[from:p.i])
		}
	}
	if p.err == nil {
		p.r.close = p.i - 1
	}
}

func (p *parser) constrain(yes bool) { p.r.Constrained = p.r.Constrained || yes }

// once refuses a field's second occurrence and notes where the first one is.
func (p *parser) once(f field) bool {
	sp := &p.r.spans[f]
	if sp.key != 0 {
		name := fieldNames[f]
		e := NewError(CodeInvalidField, "%s is given twice; allowed: once", name)
		e.Param = name
		p.refuse(e)
		return false
	}
	p.peek()
	*sp = span{key: p.keyAt, from: p.i}
	return true
}

// owned reads an owned scalar and hands it on unless it is null.
func (p *parser) owned(f field, read func(v []byte)) {
	first := p.once(f)
	v := p.value()
	if p.err != nil || !first {
		return
	}
	p.r.spans[f].to = p.i
	if string(v) != "null" {
		read(v)
	}
}

func (p *parser) invalid(f field, v []byte, allowed string) {
	p.refuse(InvalidField(fieldNames[f], shown(v), allowed))
}

// shown is how a value appears in a message: scalars as they are written, of
// the others only the kind.
func shown(v []byte) string {
	if len(v) > 0 && (v[0] == '{' || v[0] == '[') {
		return kindOf(v)
	}
	return string(v)
}

func (p *parser) text(f field, v []byte) string {
	if v[0] != '"' {
		p.invalid(f, v, "a string")
		return ""
	}
	return text(v)
}

// flag reads a boolean. Engines built on pydantic also take "true" and 1, which
// is why these are refused here rather than passed on as if they were nothing.
func (p *parser) flag(f field, v []byte) bool {
	switch string(v) {
	case "true":
		return true
	case "false":
	default:
		p.invalid(f, v, "true or false")
	}
	return false
}

func (p *parser) limit(f field, v []byte) {
	n, ok := integer(v)
	if !ok || n < 0 || n > math.MaxInt32 {
		p.invalid(f, v, fmt.Sprintf("an integer from 0 to %d", math.MaxInt32))
		return
	}
	if !p.r.Declared || n < p.r.MaxTokens {
		p.r.MaxTokens, p.r.Declared = n, true
	}
}

func (p *parser) sequence(f field, v []byte) {
	n, ok := integer(v)
	if !ok || n < 1 || n > maxN {
		p.invalid(f, v, fmt.Sprintf("an integer from 1 to %d", maxN))
		return
	}
	p.sequences = max(p.sequences, n)
}

// What the gateway looks for itself; OpenAI allows 4 stop strings.
const (
	maxStops = 16
	maxStop  = 1 << 10 // bytes
)

// stop reads the stop strings. What is wrong is the engine's to refuse; more than
// the gateway looks for itself are the engine's to find, in one attempt.
func (p *parser) stop(v []byte) {
	one := func(v []byte) {
		s := text(v)
		p.r.stops = append(p.r.stops, s)
		// Of half a surrogate pair it isn't known what an engine makes.
		p.r.fixed = p.r.fixed || v[0] != '"' || s == "" || len(s) > maxStop || strings.ContainsRune(s, utf8.RuneError)
	}
	if v[0] != '[' {
		one(v)
		return
	}
	n := 0
	sc := scanner{b: v}
	for sc.open(); sc.elem(); n++ {
		if v := sc.value(); n < maxStops {
			one(v)
		}
	}
	p.r.fixed = p.r.fixed || n > maxStops
}

func (p *parser) streamOptions() {
	first := p.once(fieldStreamOptions)
	if p.peek() != '{' {
		v := p.value()
		if p.err == nil && first {
			p.r.spans[fieldStreamOptions].to = p.i
			if string(v) != "null" {
				p.invalid(fieldStreamOptions, v, "an object")
			}
		}
		return
	}
	p.open()
	for {
		key, ok := p.member()
		if !ok {
			break
		}
		if string(key) != "include_usage" {
			p.r.fixed = true
			p.skip()
			continue
		}
		p.owned(fieldIncludeUsage, func(v []byte) { p.r.IncludeUsage = p.flag(fieldIncludeUsage, v) })
	}
	if p.err == nil && first {
		p.r.spans[fieldStreamOptions].to = p.i
	}
}

func (p *parser) responseFormat() {
	if p.peek() != '{' {
		p.skip()
		return
	}
	p.open()
	for {
		key, ok := p.member()
		if !ok {
			return
		}
		isType, from := string(key) == "type", p.i
		p.measureValue()
		if isType && p.err == nil {
			p.constrain(string(p.b[from:p.i]) != `"text"`)
		}
	}
}

// complete checks what can only be told at the end.
func (p *parser) complete() {
	p.r.N, p.r.Prompts = p.sequences, 1
	if p.r.spans[fieldModel].key == 0 || p.r.Model == "" {
		p.refuse(MissingField("model", "the name of a served model"))
	}
	switch p.r.API {
	case Chat:
		if p.r.Content.Messages == 0 {
			p.refuse(MissingField("messages", "a non-empty array of messages"))
		}
	case Completions:
		if p.prompts == 0 {
			p.refuse(MissingField("prompt", "a string, an array of strings, or token ids"))
		}
		p.r.Prompts = max(1, p.prompts)
		p.r.N *= p.r.Prompts
	case Embeddings:
		p.embeddings()
	}
	p.r.fixed = p.r.fixed || p.r.Constrained || p.r.N > 1 || p.r.Content.Media > 0 || p.r.Declared && p.r.MaxTokens == 0 ||
		p.given(fieldMaxTokens) && p.given(fieldMaxCompletionTokens) || // engines differ in which of them goes first
		p.r.API == Completions && !p.given(fieldMaxTokens) // engines have a limit of their own then
}

// embeddings checks a request without output. Engines also take a chat's messages
// for an input.
func (p *parser) embeddings() {
	if p.prompts == 0 && p.r.Content.Messages == 0 {
		p.refuse(MissingField("input", promptAllowed))
	}
	if p.r.Stream {
		p.refuse(InvalidField("stream", "true", "false or left out, as embeddings come as one document"))
	}
	p.r.Prompts, p.r.N = max(1, p.prompts), 1
	p.r.MaxTokens, p.r.Declared = 0, true
}

// given tells whether an owned scalar is there and not null.
func (p *parser) given(f field) bool {
	sp := p.r.spans[f]
	return sp.key != 0 && string(p.b[sp.from:sp.to]) != "null"
}
