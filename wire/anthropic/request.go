package anthropic

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"headgate/wire"
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
	t := translator{out: make([]byte, 0, len(body)+len(body)/8+256)}
	t.request(value(body[slices.Index(body, '{'):]), counting)
	if t.err != nil {
		return nil, t.err
	}
	chat, err := wire.Parse(wire.Chat, t.out)
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
	out      []byte
	parts    []byte // of the message at hand
	texts    int    // how many of them are texts
	media    int    // and how many are not
	only     value  // the first text
	calls    []byte // of the message at hand
	thinking bool
	err      *wire.Error // the first one
}

func (t *translator) refuse(e *wire.Error) {
	if t.err == nil {
		t.err = e
	}
}

func (t *translator) invalid(at place, field string, v value, allowed string) {
	t.refuse(wire.InvalidField(at.field(field), v.shown(), allowed))
}

// place is where something is in the request: a list, and the indices on the way
// down from it, or a member of what is there.
type place struct {
	list  string
	index [3]int
	depth int
	of    string
}

func (p place) at(i int) place {
	p.index[p.depth] = i
	p.depth++
	return p
}

// field is the name of a field there, or of the place itself.
func (p place) field(name string) string {
	var b strings.Builder
	b.WriteString(p.list)
	for i := range p.depth {
		if i > 0 {
			b.WriteString(".content")
		}
		fmt.Fprintf(&b, "[%d]", p.index[i])
	}
	for _, member := range []string{p.of, name} {
		if member != "" && b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(member)
	}
	return b.String()
}

// read finds fields by their names. One that is given twice is refused, as
// parsers differ in which of two they take. Others are refused where only is set.
// A field that is null counts as absent.
func (t *translator) read(v value, at place, names []string, into []value, only bool) {
	var seen uint32
	for it := v.each(); ; {
		key, v, ok := it.member()
		if !ok {
			return
		}
		i := index(names, key)
		switch {
		case i < 0 && only && !v.null():
			t.refuse(wire.InvalidField(at.field(string(key[:min(len(key), maxName)])), v.shown(), "left out, as nothing here does it; what is known: "+strings.Join(names, ", ")))
		case i < 0:
		case seen&(1<<i) != 0:
			e := wire.NewError(wire.CodeInvalidField, "%s is given twice; allowed: once", at.field(names[i]))
			e.Param = at.field(names[i])
			t.refuse(e)
		default:
			seen |= 1 << i
			if !v.null() {
				into[i] = v
			}
		}
	}
}

const maxName = 64 // bytes of a client's own name that a message repeats

func index(names []string, key []byte) int {
	for i, n := range names {
		if n == string(key) {
			return i
		}
	}
	return -1
}

// add appends a member to the object that is being written.
func (t *translator) add(name string, v []byte) {
	t.out = append(comma(t.out), '"')
	t.out = append(t.out, name...)
	t.out = append(t.out, '"', ':')
	t.out = append(t.out, v...)
}

// want checks that a field, if it is there, has one of the kinds.
func (t *translator) want(at place, name string, v value, allowed string, is ...byte) bool {
	if v == nil {
		return false
	}
	for _, c := range is {
		if v.is(c) || c == '0' && v.number() || c == 't' && v.is('f') {
			return true
		}
	}
	t.invalid(at, name, v, allowed)
	return false
}

// required is want for a field that can't be left out.
func (t *translator) required(at place, name string, v value, allowed string, is byte) bool {
	if v == nil {
		t.refuse(wire.MissingField(at.field(name), allowed))
		return false
	}
	return t.want(at, name, v, allowed, is)
}

// copied is a scalar that means the same in a chat request.
func (t *translator) copied(name, as string, v value, allowed string, is byte) {
	if t.want(place{}, name, v, allowed, is) {
		t.add(as, v)
	}
}

func (t *translator) request(body value, counting bool) {
	var f [numFields]value
	t.read(body, place{}, requestFields, f[:], true)
	t.out = append(t.out, '{')
	if t.required(place{}, "model", f[fieldModel], "the name of a served model", '"') {
		if f[fieldModel].empty() {
			t.invalid(place{}, "model", f[fieldModel], "the name of a served model")
		}
		t.add("model", f[fieldModel])
	}
	t.messages(f[fieldSystem], f[fieldMessages], counting)
	if !counting || f[fieldMaxTokens] != nil {
		t.maxTokens(f[fieldMaxTokens])
	}
	t.copied("temperature", "temperature", f[fieldTemperature], "a number from 0 to 1", '0')
	t.copied("top_p", "top_p", f[fieldTopP], "a number from 0 to 1", '0')
	t.copied("top_k", "top_k", f[fieldTopK], "an integer", '0')
	t.stops(f[fieldStopSequences])
	t.copied("stream", "stream", f[fieldStream], "true or false", 't')
	if string(f[fieldStream]) == "true" {
		t.add("stream_options", []byte(`{"include_usage":true}`))
	}
	t.tools(f[fieldTools])
	t.toolChoice(f[fieldToolChoice], f[fieldTools])
	t.metadata(f[fieldMetadata])
	t.think(f[fieldThinking])
	t.outputConfig(f[fieldOutputConfig])
	t.serviceTier(f[fieldServiceTier])
	t.out = append(t.out, '}')
}

func (t *translator) maxTokens(v value) {
	allowed := fmt.Sprintf("an integer from 1 to %d", math.MaxInt32)
	if !t.required(place{}, "max_tokens", v, allowed, '0') {
		return
	}
	if n, err := strconv.Atoi(string(v)); err != nil || n < 1 || n > math.MaxInt32 {
		t.invalid(place{}, "max_tokens", v, allowed)
	}
	t.add("max_tokens", v)
}

func (t *translator) stops(v value) {
	if !t.want(place{}, "stop_sequences", v, "an array of strings", '[') {
		return
	}
	n := 0
	for it := v.each(); ; n++ {
		s, ok := it.next()
		if !ok {
			break
		}
		t.want(place{list: "stop_sequences"}.at(n), "", s, "a string", '"')
	}
	if n > 0 {
		t.add("stop", v)
	}
}

func (t *translator) metadata(v value) {
	if !t.want(place{}, "metadata", v, "an object with user_id", '{') {
		return
	}
	var user [1]value
	t.read(v, place{list: "metadata"}, []string{"user_id"}, user[:], false)
	if t.want(place{list: "metadata"}, "user_id", user[0], "a string", '"') {
		t.add("user", user[0])
	}
}

// think translates what the client says about reasoning. Templates that can be
// told whether to reason read enable_thinking, others ignore it. The budget has
// no counterpart: max_tokens bounds reasoning and text together.
func (t *translator) think(v value) {
	const allowed = `"enabled", "adaptive" or "disabled"`
	if !t.want(place{}, "thinking", v, "an object with type", '{') {
		return
	}
	at := place{list: "thinking"}
	var f [2]value
	t.read(v, at, []string{"type", "display"}, f[:], false)
	if !t.required(at, "type", f[0], allowed, '"') {
		return
	}
	switch f[0].text() {
	case "enabled":
		t.thinking = true
		t.add("chat_template_kwargs", []byte(`{"enable_thinking":true}`))
	case "adaptive":
		t.thinking = true
	case "disabled":
		t.add("chat_template_kwargs", []byte(`{"enable_thinking":false}`))
	default:
		t.invalid(at, "type", f[0], allowed)
	}
	if t.want(at, "display", f[1], `"summarized" or "omitted"`, '"') && f[1].text() == "omitted" {
		t.thinking = false
	}
}

func (t *translator) outputConfig(v value) {
	if !t.want(place{}, "output_config", v, "an object with effort and format", '{') {
		return
	}
	at := place{list: "output_config"}
	var f [2]value
	t.read(v, at, []string{"effort", "format"}, f[:], true)
	if t.want(at, "effort", f[0], "a string", '"') {
		switch f[0].text() {
		case "xhigh", "max": // more than engines have a word for
			t.add("reasoning_effort", []byte(`"high"`))
		default:
			t.add("reasoning_effort", f[0])
		}
	}
	if !t.want(at, "format", f[1], "an object with type and schema", '{') {
		return
	}
	at = place{list: "output_config.format"}
	var format [2]value
	t.read(f[1], at, []string{"type", "schema"}, format[:], true)
	if t.required(at, "type", format[0], `"json_schema"`, '"') && format[0].text() != "json_schema" {
		t.invalid(at, "type", format[0], `"json_schema"`)
	}
	if t.required(at, "schema", format[1], "a JSON schema, an object", '{') {
		t.add("response_format", nil)
		t.out = append(t.out, `{"type":"json_schema","json_schema":{"name":"answer","strict":true`...)
		t.add("schema", format[1])
		t.out = append(t.out, '}', '}')
	}
}

func (t *translator) serviceTier(v value) {
	if !t.want(place{}, "service_tier", v, "a string", '"') {
		return
	}
	if v.text() == "standard_only" {
		v = value(`"default"`)
	}
	t.add("service_tier", v)
}
