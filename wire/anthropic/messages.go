package anthropic

import "headgate/wire"

// Members of the blocks that are read, by their place in blockFields. Others are
// passed over: clients send back what they were sent, with all its decoration.
const (
	blockType = iota
	blockText
	blockSource
	blockID
	blockName
	blockInput
	blockToolUseID
	blockContent
	blockIsError
	numBlock
)

var blockFields = []string{"type", "text", "source", "id", "name", "input", "tool_use_id", "content", "is_error"}

type block [numBlock]value

// billing begins a system block in which a client writes something else with
// every request. It is meant for Anthropic, says nothing to a model, and would
// keep an engine from finding the prompt in its cache.
const billing = `"x-anthropic-billing-header`

// messages writes the chat's messages, the system prompt first.
func (t *translator) messages(system, list value, counting bool) {
	if !t.required(place{}, "messages", list, "a non-empty array of messages", '[') {
		return
	}
	t.add("messages", []byte{'['})
	if t.want(place{}, "system", system, "a string or an array of text blocks", '"', '[') {
		t.begin()
		t.plain(system, place{list: "system"})
		if t.texts > 0 {
			t.end("system")
		}
	}
	n, last := 0, ""
	for it := list.each(); ; n++ {
		m, ok := it.next()
		if !ok {
			break
		}
		at := place{list: "messages"}.at(n)
		if !t.want(at, "", m, "an object with role and content", '{') {
			return
		}
		last = t.message(m, at)
	}
	switch {
	case n == 0:
		t.refuse(wire.InvalidField("messages", "an empty array", "a non-empty array of messages"))
	case last == "assistant" && !counting:
		t.refuse(wire.InvalidField(place{list: "messages"}.at(n-1).field("role"), `"assistant"`,
			`"user" in the last message: engines do not agree on how an answer that was begun goes on`))
	}
	t.out = append(t.out, ']')
}

func (t *translator) message(m value, at place) (role string) {
	var f [2]value
	t.read(m, at, []string{"role", "content"}, f[:], false)
	const roles = `"user", "assistant" or "system"`
	if !t.required(at, "role", f[0], roles, '"') {
		return ""
	}
	const content = "a string or an array of content blocks"
	if f[1] == nil {
		t.refuse(wire.MissingField(at.field("content"), content))
		return ""
	}
	if !t.want(at, "content", f[1], content, '"', '[') {
		return ""
	}
	t.begin()
	switch role = f[0].text(); role {
	case "user":
		t.user(f[1], at)
	case "assistant":
		t.assistant(f[1], at)
	case "system":
		t.plain(f[1], at)
		t.end(role)
	default:
		t.invalid(at, "role", f[0], roles)
	}
	return role
}

// begin starts a message's content.
func (t *translator) begin() {
	t.parts, t.calls, t.texts, t.media, t.only = t.parts[:0], t.calls[:0], 0, 0, nil
}

// end writes the message: a single text as a string, which every template takes,
// and anything else as parts, which it is for the engine to join.
func (t *translator) end(role string) {
	t.out = append(comma(t.out), `{"role":"`...)
	t.out = append(t.out, role...)
	t.out = append(t.out, `","content":`...)
	switch {
	case t.texts == 1 && t.media == 0:
		t.out = append(t.out, t.only...)
	case t.texts+t.media > 0:
		t.out = append(t.out, '[')
		t.out = append(t.out, t.parts[1:]...) // without the first comma
		t.out = append(t.out, ']')
	case len(t.calls) > 0:
		t.out = append(t.out, "null"...)
	default:
		t.out = append(t.out, `""`...)
	}
	if len(t.calls) > 0 {
		t.out = append(t.out, `,"tool_calls":[`...)
		t.out = append(t.out, t.calls[1:]...)
		t.out = append(t.out, ']')
	}
	t.out = append(t.out, '}')
}

func (t *translator) text(v value) {
	if t.texts == 0 {
		t.only = v
	}
	t.texts++
	t.parts = append(t.parts, `,{"type":"text","text":`...)
	t.parts = append(append(t.parts, v...), '}')
}

// image adds one, as an address or with its bytes in it.
func (t *translator) image(source value, at place) {
	if !t.required(at, "source", source, "an object with type base64 or url", '{') {
		return
	}
	at.of = "source"
	var f [4]value
	t.read(source, at, []string{"type", "media_type", "data", "url"}, f[:], false)
	const allowed = `"base64" or "url"`
	if !t.required(at, "type", f[0], allowed, '"') {
		return
	}
	t.media++
	t.parts = append(t.parts, `,{"type":"image_url","image_url":{"url":"`...)
	switch f[0].text() {
	case "base64":
		if t.required(at, "media_type", f[1], "a string such as image/png", '"') && t.required(at, "data", f[2], "a string of base64", '"') {
			t.parts = append(append(t.parts, "data:"...), f[1].inner()...)
			t.parts = append(append(t.parts, ";base64,"...), f[2].inner()...)
		}
	case "url":
		if t.required(at, "url", f[3], "a string", '"') {
			t.parts = append(t.parts, f[3].inner()...)
		}
	default:
		t.invalid(at, "type", f[0], allowed)
	}
	t.parts = append(t.parts, `"}}`...)
}

// blocks walks the blocks of an array.
func (t *translator) blocks(content value, at place, do func(kind string, b *block, at place)) {
	var b block
	n := 0
	for it := content.each(); ; n++ {
		v, ok := it.next()
		if !ok || t.err != nil {
			return
		}
		at := at.at(n)
		if !t.want(at, "", v, "a content block, an object with type", '{') {
			return
		}
		b = block{}
		t.read(v, at, blockFields, b[:], false)
		if !t.required(at, "type", b[blockType], "a string", '"') {
			return
		}
		kind := b[blockType].text()
		if kind == "text" && !t.required(at, "text", b[blockText], "a string", '"') {
			return
		}
		do(kind, &b, at)
	}
}

// kindOf refuses a block of a kind that is not allowed in its place.
func (t *translator) kindOf(b *block, at place, allowed string) {
	t.invalid(at, "type", b[blockType], allowed)
}

// plain takes the system's content, which is text only.
func (t *translator) plain(content value, at place) {
	if content.is('"') {
		t.text(content)
		return
	}
	t.blocks(content, at, func(kind string, b *block, at place) {
		switch {
		case kind != "text":
			t.kindOf(b, at, `"text"`)
		case !hasPrefix(b[blockText], billing):
			t.text(b[blockText])
		}
	})
}

func hasPrefix(v value, prefix string) bool {
	return len(v) >= len(prefix) && string(v[:len(prefix)]) == prefix
}

// user writes a user's message. Results of tools become messages of their own
// and come first, since they have to follow the calls; pictures among them can't
// be in such a message and go into the user's.
func (t *translator) user(content value, at place) {
	if content.is('"') {
		t.text(content)
		t.end("user")
		return
	}
	results := false
	t.blocks(content, at, func(kind string, b *block, at place) {
		switch kind {
		case "text":
			t.text(b[blockText])
		case "image":
			t.image(b[blockSource], at)
		case "tool_result":
			results = true
			t.result(b, at)
		default:
			t.kindOf(b, at, `"text", "image" or "tool_result" in a user's message`)
		}
	})
	if t.texts+t.media > 0 || !results {
		t.end("user")
	}
}

// result writes what a tool answered. A chat has no mark for one that failed, so
// its text says so.
func (t *translator) result(b *block, at place) {
	if !t.required(at, "tool_use_id", b[blockToolUseID], "the id of a tool_use block", '"') {
		return
	}
	t.want(at, "is_error", b[blockIsError], "true or false", 't')
	content := b[blockContent]
	if content != nil && !t.want(at, "content", content, "a string or an array of text and image blocks", '"', '[') {
		return
	}
	texts := 0
	if content.is('[') {
		t.blocks(content, at, func(kind string, b *block, at place) {
			switch kind {
			case "text":
				texts++
			case "image":
				t.image(b[blockSource], at)
			default:
				t.kindOf(b, at, `"text" or "image" in a tool's result`)
			}
		})
	}
	t.out = append(comma(t.out), `{"role":"tool"`...)
	t.add("tool_call_id", b[blockToolUseID])
	t.add("content", nil)
	failed := string(b[blockIsError]) == "true"
	write := func(v value) {
		if failed {
			failed = false
			t.out = append(append(append(t.out, `"Error: `...), v.inner()...), '"')
			return
		}
		t.out = append(t.out, v...)
	}
	switch {
	case content.is('"'):
		write(content)
	case texts == 0 && failed:
		t.out = append(t.out, `"Error"`...)
	case texts == 0:
		t.out = append(t.out, `""`...)
	default:
		if texts > 1 {
			t.out = append(t.out, '[')
		}
		t.blocks(content, at, func(kind string, b *block, _ place) {
			switch {
			case kind != "text":
			case texts > 1:
				t.out = append(comma(t.out), `{"type":"text","text":`...)
				write(b[blockText])
				t.out = append(t.out, '}')
			default:
				write(b[blockText])
			}
		})
		if texts > 1 {
			t.out = append(t.out, ']')
		}
	}
	t.out = append(t.out, '}')
}

// assistant writes an earlier answer. Its reasoning is left out, see the
// documentation.
func (t *translator) assistant(content value, at place) {
	if content.is('"') {
		t.text(content)
		t.end("assistant")
		return
	}
	t.blocks(content, at, func(kind string, b *block, at place) {
		switch kind {
		case "text":
			t.text(b[blockText])
		case "tool_use":
			t.call(b, at)
		case "thinking", "redacted_thinking":
		default:
			t.kindOf(b, at, `"text", "tool_use", "thinking" or "redacted_thinking" in an assistant's message`)
		}
	})
	t.end("assistant")
}

func (t *translator) call(b *block, at place) {
	if !t.required(at, "id", b[blockID], "a string", '"') || !t.required(at, "name", b[blockName], "a string", '"') ||
		!t.required(at, "input", b[blockInput], "an object", '{') {
		return
	}
	t.calls = append(append(t.calls, `,{"id":`...), b[blockID]...)
	t.calls = append(append(t.calls, `,"type":"function","function":{"name":`...), b[blockName]...)
	t.calls = appendText(append(t.calls, `,"arguments":`...), []byte(b[blockInput]))
	t.calls = append(t.calls, '}', '}')
}

// tools writes functions. Tools that Anthropic runs or has taught its models are
// refused: an engine's model knows nothing of them.
func (t *translator) tools(list value) {
	if !t.want(place{}, "tools", list, "an array of tools", '[') {
		return
	}
	n := 0
	for it := list.each(); ; n++ {
		tool, ok := it.next()
		if !ok {
			break
		}
		at := place{list: "tools"}.at(n)
		if !t.want(at, "", tool, "an object with name and input_schema", '{') {
			return
		}
		var f [5]value
		t.read(tool, at, []string{"type", "name", "description", "input_schema", "strict"}, f[:], false)
		if t.want(at, "type", f[0], `"custom"`, '"') && f[0].text() != "custom" {
			t.invalid(at, "type", f[0], `"custom", or left out`)
			return
		}
		if !t.required(at, "name", f[1], "a string", '"') || !t.required(at, "input_schema", f[3], "a JSON schema, an object", '{') {
			return
		}
		if n == 0 {
			t.add("tools", []byte{'['})
		}
		t.out = append(comma(t.out), `{"type":"function","function":{`...)
		t.add("name", f[1])
		if t.want(at, "description", f[2], "a string", '"') {
			t.add("description", f[2])
		}
		t.add("parameters", f[3])
		if t.want(at, "strict", f[4], "true or false", 't') {
			t.add("strict", f[4])
		}
		t.out = append(t.out, '}', '}')
	}
	if n > 0 {
		t.out = append(t.out, ']')
	}
}

func (t *translator) toolChoice(v, tools value) {
	if !t.want(place{}, "tool_choice", v, "an object with type", '{') {
		return
	}
	const allowed = `"auto", "any", "tool" or "none"`
	at := place{list: "tool_choice"}
	var f [3]value
	t.read(v, at, []string{"type", "name", "disable_parallel_tool_use"}, f[:], false)
	if !t.required(at, "type", f[0], allowed, '"') {
		return
	}
	first := tools.each()
	_, some := first.next()
	if !some && f[0].text() != "none" {
		t.invalid(at, "type", f[0], `"none" without tools`)
		return
	}
	switch f[0].text() {
	case "auto":
		t.add("tool_choice", []byte(`"auto"`))
	case "any":
		t.add("tool_choice", []byte(`"required"`))
	case "none":
		if some {
			t.add("tool_choice", []byte(`"none"`))
		}
	case "tool":
		if t.required(at, "name", f[1], "the name of one of the tools", '"') {
			t.add("tool_choice", []byte(`{"type":"function","function":{"name":`))
			t.out = append(append(t.out, f[1]...), '}', '}')
		}
	default:
		t.invalid(at, "type", f[0], allowed)
	}
	if t.want(at, "disable_parallel_tool_use", f[2], "true or false", 't') && string(f[2]) == "true" {
		t.add("parallel_tool_calls", []byte("false"))
	}
}
