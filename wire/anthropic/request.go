package anthropic

import (
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
	fieldMaxTokens
	fieldMessages
	fieldSystem
	fieldTools
	fieldToolChoice
	fieldStopSequences
	fieldTemperature
	fieldTopP
	fieldTopK
	fieldStream
	fieldMetadata
	fieldThinking
	fieldOutputConfig
	fieldServiceTier
	fieldCacheControl
	fieldContextManagement
	numFields
)

var requestFields = []string{"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stop_sequences",
	"temperature", "top_p", "top_k", "stream", "metadata", "thinking", "output_config", "service_tier",
	"cache_control", "context_management"}

// Translate makes a chat request of the body of POST /v1/messages. Errors name
// the client's own fields, not the chat's.
func Translate(body []byte) (*Request, *wire.Error) { return translate(body, false) }

// TranslateCount is Translate for the body of count_tokens, which needs no
// max_tokens and may end with an assistant's message.
func TranslateCount(body []byte) (*Request, *wire.Error) { return translate(body, true) }

func translate(body []byte, counting bool) (*Request, *wire.Error) {
	// The one reader of JSON that checks it. What else it has to say is about a
	// chat request.
	if _, err := wire.Parse(wire.Chat, body); err != nil && err.Code == wire.CodeInvalidJSON {
		return nil, err
	}
	t := translator{Translator: raw.Translator{Out: make([]byte, 0, len(body)+len(body)/8+256)}}
	t.request(raw.Value(body[slices.Index(body, '{'):]), counting)
	if t.Err != nil {
		return nil, t.Err
	}
	chat, err := wire.Parse(wire.Chat, t.Out)
	if err != nil && err.Code == wire.CodeInvalidJSON {
		// A tool's schema lies one level deeper in a chat request.
		err = wire.NewError(wire.CodeInvalidJSON, "tools is nested too deeply; allowed: one level less than in the rest of the body")
	}
	if err != nil {
		return nil, err
	}
	return &Request{Chat: chat, Thinking: t.thinking}, nil
}

type translator struct {
	raw.Translator
	parts    []byte    // of the message at hand
	texts    int       // how many of them are texts
	media    int       // and how many are not
	only     raw.Value // the first text
	calls    []byte    // of the message at hand
	thinking bool
}

func (t *translator) request(body raw.Value, counting bool) {
	var f [numFields]raw.Value
	t.Read(body, raw.Place{}, requestFields, f[:], true)
	t.Out = append(t.Out, '{')
	if t.Required(raw.Place{}, "model", f[fieldModel], "the name of a served model", '"') {
		if f[fieldModel].Empty() {
			t.Invalid(raw.Place{}, "model", f[fieldModel], "the name of a served model")
		}
		t.Add("model", f[fieldModel])
	}
	t.messages(f[fieldSystem], f[fieldMessages], counting)
	if !counting || f[fieldMaxTokens] != nil {
		t.maxTokens(f[fieldMaxTokens])
	}
	t.Copied("temperature", "temperature", f[fieldTemperature], "a number from 0 to 1", '0')
	t.Copied("top_p", "top_p", f[fieldTopP], "a number from 0 to 1", '0')
	t.Copied("top_k", "top_k", f[fieldTopK], "an integer", '0')
	t.stops(f[fieldStopSequences])
	t.Copied("stream", "stream", f[fieldStream], "true or false", 't')
	if string(f[fieldStream]) == "true" {
		t.Add("stream_options", []byte(`{"include_usage":true}`))
	}
	t.tools(f[fieldTools])
	t.toolChoice(f[fieldToolChoice], f[fieldTools])
	t.metadata(f[fieldMetadata])
	t.think(f[fieldThinking])
	t.outputConfig(f[fieldOutputConfig])
	t.serviceTier(f[fieldServiceTier])
	t.Out = append(t.Out, '}')
}

func (t *translator) maxTokens(v raw.Value) {
	allowed := fmt.Sprintf("an integer from 1 to %d", math.MaxInt32)
	if !t.Required(raw.Place{}, "max_tokens", v, allowed, '0') {
		return
	}
	if n, err := strconv.Atoi(string(v)); err != nil || n < 1 || n > math.MaxInt32 {
		t.Invalid(raw.Place{}, "max_tokens", v, allowed)
	}
	t.Add("max_tokens", v)
}

func (t *translator) stops(v raw.Value) {
	if !t.Want(raw.Place{}, "stop_sequences", v, "an array of strings", '[') {
		return
	}
	n := 0
	for it := v.Each(); ; n++ {
		s, ok := it.Next()
		if !ok {
			break
		}
		t.Want(raw.In("stop_sequences").At(n), "", s, "a string", '"')
	}
	if n > 0 {
		t.Add("stop", v)
	}
}

func (t *translator) metadata(v raw.Value) {
	if !t.Want(raw.Place{}, "metadata", v, "an object with user_id", '{') {
		return
	}
	var user [1]raw.Value
	t.Read(v, raw.In("metadata"), []string{"user_id"}, user[:], false)
	if t.Want(raw.In("metadata"), "user_id", user[0], "a string", '"') {
		t.Add("user", user[0])
	}
}

// think translates what the client says about reasoning. Templates that can be
// told whether to reason read enable_thinking, others ignore it. The budget has
// no counterpart: max_tokens bounds reasoning and text together.
func (t *translator) think(v raw.Value) {
	const allowed = `"enabled", "adaptive" or "disabled"`
	if !t.Want(raw.Place{}, "thinking", v, "an object with type", '{') {
		return
	}
	at := raw.In("thinking")
	var f [2]raw.Value
	t.Read(v, at, []string{"type", "display"}, f[:], false)
	if !t.Required(at, "type", f[0], allowed, '"') {
		return
	}
	switch f[0].Text() {
	case "enabled":
		t.thinking = true
		t.Add("chat_template_kwargs", []byte(`{"enable_thinking":true}`))
	case "adaptive":
		t.thinking = true
	case "disabled":
		t.Add("chat_template_kwargs", []byte(`{"enable_thinking":false}`))
	default:
		t.Invalid(at, "type", f[0], allowed)
	}
	if t.Want(at, "display", f[1], `"summarized" or "omitted"`, '"') && f[1].Text() == "omitted" {
		t.thinking = false
	}
}

func (t *translator) outputConfig(v raw.Value) {
	if !t.Want(raw.Place{}, "output_config", v, "an object with effort and format", '{') {
		return
	}
	at := raw.In("output_config")
	var f [2]raw.Value
	t.Read(v, at, []string{"effort", "format"}, f[:], true)
	if t.Want(at, "effort", f[0], "a string", '"') {
		switch f[0].Text() {
		case "xhigh", "max": // more than engines have a word for
			t.Add("reasoning_effort", []byte(`"high"`))
		default:
			t.Add("reasoning_effort", f[0])
		}
	}
	if !t.Want(at, "format", f[1], "an object with type and schema", '{') {
		return
	}
	at = raw.In("output_config.format")
	var format [2]raw.Value
	t.Read(f[1], at, []string{"type", "schema"}, format[:], true)
	if t.Required(at, "type", format[0], `"json_schema"`, '"') && format[0].Text() != "json_schema" {
		t.Invalid(at, "type", format[0], `"json_schema"`)
	}
	if t.Required(at, "schema", format[1], "a JSON schema, an object", '{') {
		t.Add("response_format", nil)
		t.Out = append(t.Out, `{"type":"json_schema","json_schema":{"name":"answer","strict":true`...)
		t.Add("schema", format[1])
		t.Out = append(t.Out, '}', '}')
	}
}

func (t *translator) serviceTier(v raw.Value) {
	if !t.Want(raw.Place{}, "service_tier", v, "a string", '"') {
		return
	}
	if v.Text() == "standard_only" {
		v = raw.Value(`"default"`)
	}
	t.Add("service_tier", v)
}
