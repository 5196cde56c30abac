package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"headgate/wire"
	"headgate/wire/raw"
)

// Fields of a request, by their place in requestFields.
const (
	fieldModel = iota
	fieldInput
	fieldInstructions
	fieldMaxOutput
	fieldTemperature
	fieldTopP
	fieldTools
	fieldToolChoice
	fieldParallel
	fieldText
	fieldReasoning
	fieldStream
	fieldStreamOptions
	fieldMetadata
	fieldUser
	fieldSafety
	fieldCacheKey
	fieldTier
	fieldTruncation
	fieldInclude
	fieldStore
	fieldBackground
	fieldPrevious
	fieldConversation
	fieldPrompt
	fieldMaxCalls
	fieldTopLogprobs
	fieldRetention
	numFields
)

var requestFields = []string{"model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice",
	"parallel_tool_calls", "text", "reasoning", "stream", "stream_options", "metadata", "user", "safety_identifier",
	"prompt_cache_key", "service_tier", "truncation", "include", "store", "background", "previous_response_id",
	"conversation", "prompt", "max_tool_calls", "top_logprobs", "prompt_cache_retention"}

// Translate makes a chat request of the body of POST /v1/responses. Errors name
// the client's own fields, not the chat's.
func Translate(body []byte) (*Request, *wire.Error) {
	// The one reader of JSON that checks it. What else it has to say is about a
	// chat request.
	if _, err := wire.Parse(wire.Chat, body); err != nil && err.Code == wire.CodeInvalidJSON {
		return nil, err
	}
	t := translator{Translator: raw.Translator{Out: make([]byte, 0, len(body)+len(body)/8+256)}}
	t.request(raw.Value(body[slices.Index(body, '{'):]))
	if t.Err != nil {
		return nil, t.Err
	}
	chat, err := wire.Parse(wire.Chat, t.Out)
	if err != nil && err.Code == wire.CodeInvalidJSON {
		// A tool's schema lies one level deeper in a chat request.
		err = wire.NewError(wire.CodeInvalidJSON, "tools is nested too deeply; allowed: one level less than in the rest of the body")
	}
	if err != nil {
		return nil, Name(err)
	}
	return &Request{Chat: chat, Echo: t.echo}, nil
}

type translator struct {
	raw.Translator
	echo []byte

	// The message at hand.
	role  string // "": none
	parts []byte
	texts int       // how many of the parts are texts
	media int       // and how many are not
	only  raw.Value // the first text
	calls []byte

	pictures []byte // of tools' outputs, for the next user's message
}

func (t *translator) request(body raw.Value) {
	var f [numFields]raw.Value
	t.Read(body, raw.Place{}, requestFields, f[:], true)
	t.stateless(&f)
	t.Out = append(t.Out, '{')
	if t.Required(raw.Place{}, "model", f[fieldModel], "the name of a served model", '"') {
		if f[fieldModel].Empty() {
			t.Invalid(raw.Place{}, "model", f[fieldModel], "the name of a served model")
		}
		t.Add("model", f[fieldModel])
	}
	t.input(f[fieldInstructions], f[fieldInput])
	t.maxOutput(f[fieldMaxOutput])
	t.Copied("temperature", "temperature", f[fieldTemperature], "a number from 0 to 2", '0')
	t.Copied("top_p", "top_p", f[fieldTopP], "a number from 0 to 1", '0')
	t.Copied("stream", "stream", f[fieldStream], "true or false", 't')
	if string(f[fieldStream]) == "true" {
		t.Add("stream_options", []byte(`{"include_usage":true}`))
	}
	some := t.tools(f[fieldTools])
	t.toolChoice(f[fieldToolChoice], some)
	if t.Want(raw.Place{}, "parallel_tool_calls", f[fieldParallel], "true or false", 't') && some && string(f[fieldParallel]) == "false" {
		t.Add("parallel_tool_calls", f[fieldParallel])
	}
	t.text(f[fieldText])
	t.reasoning(f[fieldReasoning])
	t.Copied("user", "user", f[fieldUser], "a string", '"')
	t.Copied("safety_identifier", "safety_identifier", f[fieldSafety], "a string", '"')
	t.Copied("prompt_cache_key", "prompt_cache_key", f[fieldCacheKey], "a string", '"')
	t.Copied("service_tier", "service_tier", f[fieldTier], "a string", '"')
	t.Want(raw.Place{}, "metadata", f[fieldMetadata], "an object", '{')
	t.Want(raw.Place{}, "max_tool_calls", f[fieldMaxCalls], "an integer", '0') // of tools that a server runs
	t.Want(raw.Place{}, "prompt_cache_retention", f[fieldRetention], "a string", '"')
	t.Out = append(t.Out, '}')
	t.repeat(&f)
}

// stateless refuses what would need a store, or work that goes on without its
// client: the prompt that a request of this kind stands for is not in it, so no
// reservation could be made for it.
func (t *translator) stateless(f *[numFields]raw.Value) {
	absent := func(i int, allowed string) {
		if f[i] != nil {
			t.Invalid(raw.Place{}, requestFields[i], f[i], allowed)
		}
	}
	is := func(i int, allowed string, values ...string) {
		if f[i] != nil && !slices.Contains(values, string(f[i])) {
			t.Invalid(raw.Place{}, requestFields[i], f[i], allowed)
		}
	}
	absent(fieldPrevious, "left out, as no response is stored here; earlier input and output go into input")
	absent(fieldConversation, "left out, as no conversation is stored here; its items go into input")
	absent(fieldPrompt, "left out, as no prompt is stored here; it goes into instructions and input")
	is(fieldBackground, "false or left out, as nothing is stored here that could be asked for later", "false")
	is(fieldStore, "false or left out, as no response is stored here", "false")
	is(fieldTruncation, `"disabled" or left out, as no item of input is dropped here`, `"disabled"`)
	is(fieldTopLogprobs, "0 or left out, as no log probabilities are told here", "0")
	if t.Want(raw.Place{}, "include", f[fieldInclude], "an array of strings", '[') {
		n := 0
		for it := f[fieldInclude].Each(); ; n++ {
			v, ok := it.Next()
			if !ok {
				break
			}
			// What an engine reasons is told openly, so there is nothing to include.
			if string(v) != `"reasoning.encrypted_content"` {
				t.Invalid(raw.In("include").At(n), "", v, `"reasoning.encrypted_content"`)
			}
		}
	}
	if t.Want(raw.Place{}, "stream_options", f[fieldStreamOptions], "an object with include_obfuscation", '{') {
		at := raw.In("stream_options")
		var v [1]raw.Value
		t.Read(f[fieldStreamOptions], at, []string{"include_obfuscation"}, v[:], true)
		t.Want(at, "include_obfuscation", v[0], "true or false", 't')
	}
}

func (t *translator) maxOutput(v raw.Value) {
	allowed := fmt.Sprintf("an integer from 1 to %d", math.MaxInt32)
	if !t.Want(raw.Place{}, "max_output_tokens", v, allowed, '0') {
		return
	}
	if n, err := strconv.Atoi(string(v)); err != nil || n < 1 || n > math.MaxInt32 {
		t.Invalid(raw.Place{}, "max_output_tokens", v, allowed)
	}
	t.Add("max_tokens", v)
}

// tools writes functions. Tools that a server runs are refused.
func (t *translator) tools(list raw.Value) (some bool) {
	if !t.Want(raw.Place{}, "tools", list, "an array of tools", '[') {
		return false
	}
	n := 0
	for it := list.Each(); ; n++ {
		tool, ok := it.Next()
		if !ok {
			break
		}
		at := raw.In("tools").At(n)
		if !t.Want(at, "", tool, "an object with type, name and parameters", '{') {
			return false
		}
		var f [5]raw.Value
		t.Read(tool, at, []string{"type", "name", "description", "parameters", "strict"}, f[:], false)
		if !t.Required(at, "type", f[0], `"function"`, '"') {
			return false
		}
		if f[0].Text() != "function" {
			t.Invalid(at, "type", f[0], `"function", as no tool is run here`)
			return false
		}
		if !t.Required(at, "name", f[1], "a string", '"') {
			return false
		}
		if n == 0 {
			t.Add("tools", []byte{'['})
		}
		t.Out = append(raw.Comma(t.Out), `{"type":"function","function":{`...)
		t.Add("name", f[1])
		if t.Want(at, "description", f[2], "a string", '"') {
			t.Add("description", f[2])
		}
		if t.Want(at, "parameters", f[3], "a JSON schema, an object", '{') {
			t.Add("parameters", f[3])
		}
		if t.Want(at, "strict", f[4], "true or false", 't') {
			t.Add("strict", f[4])
		}
		t.Out = append(t.Out, '}', '}')
	}
	if n > 0 {
		t.Out = append(t.Out, ']')
	}
	return n > 0
}

// toolChoice leaves out what says nothing without tools: some engines refuse it.
func (t *translator) toolChoice(v raw.Value, some bool) {
	const allowed = `"none", "auto", "required" or {"type":"function","name":...}`
	if !t.Want(raw.Place{}, "tool_choice", v, allowed, '"', '{') {
		return
	}
	if v.Is('"') {
		switch word := v.Text(); {
		case word != "none" && word != "auto" && word != "required":
			t.Invalid(raw.Place{}, "tool_choice", v, allowed)
		case some:
			t.Add("tool_choice", v)
		case word == "required":
			t.Invalid(raw.Place{}, "tool_choice", v, `"none" or "auto" without tools`)
		}
		return
	}
	at := raw.In("tool_choice")
	var f [2]raw.Value
	t.Read(v, at, []string{"type", "name"}, f[:], false)
	if !t.Required(at, "type", f[0], `"function"`, '"') {
		return
	}
	if f[0].Text() != "function" || !some {
		t.Invalid(at, "type", f[0], `"function", with tools`)
		return
	}
	if t.Required(at, "name", f[1], "the name of one of the tools", '"') {
		t.Add("tool_choice", []byte(`{"type":"function","function":{"name":`))
		t.Out = append(append(t.Out, f[1]...), '}', '}')
	}
}

func (t *translator) text(v raw.Value) {
	if !t.Want(raw.Place{}, "text", v, "an object with format", '{') {
		return
	}
	at := raw.In("text")
	var f [2]raw.Value
	t.Read(v, at, []string{"format", "verbosity"}, f[:], true)
	if f[1] != nil && string(f[1]) != `"medium"` {
		t.Invalid(at, "verbosity", f[1], `"medium" or left out, as engines can't be told`)
	}
	if !t.Want(at, "format", f[0], "an object with type", '{') {
		return
	}
	at = raw.In("text.format")
	var format [5]raw.Value
	t.Read(f[0], at, []string{"type", "name", "schema", "strict", "description"}, format[:], true)
	const allowed = `"text", "json_schema" or "json_object"`
	if !t.Required(at, "type", format[0], allowed, '"') {
		return
	}
	switch format[0].Text() {
	case "text":
	case "json_object":
		t.Add("response_format", []byte(`{"type":"json_object"}`))
	case "json_schema":
		if !t.Required(at, "name", format[1], "a string", '"') || !t.Required(at, "schema", format[2], "a JSON schema, an object", '{') {
			return
		}
		t.Add("response_format", []byte(`{"type":"json_schema","json_schema":{`))
		t.Add("name", format[1])
		if t.Want(at, "strict", format[3], "true or false", 't') {
			t.Add("strict", format[3])
		}
		if t.Want(at, "description", format[4], "a string", '"') {
			t.Add("description", format[4])
		}
		t.Add("schema", format[2])
		t.Out = append(t.Out, '}', '}')
	default:
		t.Invalid(at, "type", format[0], allowed)
	}
}

// reasoning translates the effort. A summary is not made: the reasoning itself is
// told.
func (t *translator) reasoning(v raw.Value) {
	if !t.Want(raw.Place{}, "reasoning", v, "an object with effort", '{') {
		return
	}
	at := raw.In("reasoning")
	var f [3]raw.Value
	t.Read(v, at, []string{"effort", "summary", "generate_summary"}, f[:], true)
	t.Want(at, "summary", f[1], "a string", '"')
	t.Want(at, "generate_summary", f[2], "a string", '"')
	if !t.Want(at, "effort", f[0], "a string", '"') {
		return
	}
	if f[0].Text() == "xhigh" { // more than engines have a word for
		f[0] = raw.Value(`"high"`)
	}
	t.Add("reasoning_effort", f[0])
}

// repeated are the members of a response that repeat the request, with what they
// are if it does not say.
var repeated = []struct {
	field   int
	missing string
}{
	{fieldModel, ""}, {fieldInstructions, "null"}, {fieldMaxOutput, "null"}, {fieldMaxCalls, "null"}, {fieldMetadata, "{}"},
	{fieldParallel, "true"}, {fieldReasoning, `{"effort":null,"summary":null}`}, {fieldTier, "null"}, {fieldTemperature, "null"},
	{fieldText, `{"format":{"type":"text"}}`}, {fieldToolChoice, `"auto"`}, {fieldTools, "[]"}, {fieldTopP, "null"},
	{fieldUser, "null"}, {fieldSafety, "null"}, {fieldCacheKey, "null"},
}

// repeat writes them without white space, of which a client may have put line ends
// between its values: they would end the line of an event.
func (t *translator) repeat(f *[numFields]raw.Value) {
	t.echo = append(t.echo, `"background":false,"previous_response_id":null,"store":false,"top_logprobs":0,"truncation":"disabled"`...)
	for _, r := range repeated {
		t.echo = append(append(append(t.echo, ',', '"'), requestFields[r.field]...), '"', ':')
		if v := f[r.field]; v != nil {
			t.echo = appendCompact(t.echo, v)
		} else {
			t.echo = append(t.echo, r.missing...)
		}
	}
}

func appendCompact(dst []byte, v raw.Value) []byte {
	b := bytes.NewBuffer(dst)
	_ = json.Compact(b, v) // valid, it was read
	return b.Bytes()
}
