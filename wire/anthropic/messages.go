package anthropic

import (
	"headgate/wire"
	"headgate/wire/raw"
)

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

type block [numBlock]raw.Value

// billing begins a system block in which a client writes something else with
// every request. It is meant for Anthropic, says nothing to a model, and would
// keep an engine from finding the prompt in its cache.
const billing = `"x-anthropic-billing-header`

// messages writes the chat's messages, the system prompt first.
func (t *translator) messages(system, list raw.Value, counting bool) {
	if !t.Required(raw.Place{}, "messages", list, "a non-empty array of messages", '[') {
		return
	}
	t.Add("messages", []byte{'['})
	if t.Want(raw.Place{}, "system", system, "a string or an array of text blocks", '"', '[') {
		t.begin()
		t.plain(system, raw.In("system"))
		if t.texts > 0 {
			t.end("system")
		}
	}
	n, last := 0, ""
	for it := list.Each(); ; n++ {
		m, ok := it.Next()
		if !ok {
			break
		}
		at := raw.In("messages").At(n)
		if !t.Want(at, "", m, "an object with role and content", '{') {
			return
		}
		last = t.message(m, at)
	}
	switch {
	case n == 0:
		t.Refuse(wire.InvalidField("messages", "an empty array", "a non-empty array of messages"))
	case last == "assistant" && !counting:
		t.Refuse(wire.InvalidField(raw.In("messages").At(n-1).Field("role"), `"assistant"`,
			`"user" in the last message: engines do not agree on how an answer that was begun goes on`))
	}
	t.Out = append(t.Out, ']')
}

func (t *translator) message(m raw.Value, at raw.Place) (role string) {
	var f [2]raw.Value
	t.Read(m, at, []string{"role", "content"}, f[:], false)
	const roles = `"user", "assistant" or "system"`
	if !t.Required(at, "role", f[0], roles, '"') {
		return ""
	}
	const content = "a string or an array of content blocks"
	if f[1] == nil {
		t.Refuse(wire.MissingField(at.Field("content"), content))
		return ""
	}
	if !t.Want(at, "content", f[1], content, '"', '[') {
		return ""
	}
	t.begin()
	switch role = f[0].Text(); role {
	case "user":
		t.user(f[1], at)
	case "assistant":
		t.assistant(f[1], at)
	case "system":
		t.plain(f[1], at)
		t.end(role)
	default:
		t.Invalid(at, "role", f[0], roles)
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
	t.Out = append(raw.Comma(t.Out), `{"role":"`...)
	t.Out = append(t.Out, role...)
	t.Out = append(t.Out, `","content":`...)
	switch {
	case t.texts == 1 && t.media == 0:
		t.Out = append(t.Out, t.only...)
	case t.texts+t.media > 0:
		t.Out = append(t.Out, '[')
		t.Out = append(t.Out, t.parts[1:]...) // without the first comma
		t.Out = append(t.Out, ']')
	case len(t.calls) > 0:
		t.Out = append(t.Out, "null"...)
	default:
		t.Out = append(t.Out, `""`...)
	}
	if len(t.calls) > 0 {
		t.Out = append(t.Out, `,"tool_calls":[`...)
		t.Out = append(t.Out, t.calls[1:]...)
		t.Out = append(t.Out, ']')
	}
	t.Out = append(t.Out, '}')
}

func (t *translator) text(v raw.Value) {
	if t.texts == 0 {
		t.only = v
	}
	t.texts++
	t.parts = append(t.parts, `,{"type":"text","text":`...)
	t.parts = append(append(t.parts, v...), '}')
}

// image adds one, as an address or with its bytes in it.
func (t *translator) image(source raw.Value, at raw.Place) {
	if !t.Required(at, "source", source, "an object with type base64 or url", '{') {
		return
	}
	at.Of = "source"
	var f [4]raw.Value
	t.Read(source, at, []string{"type", "media_type", "data", "url"}, f[:], false)
	const allowed = `"base64" or "url"`
	if !t.Required(at, "type", f[0], allowed, '"') {
		return
	}
	t.media++
	t.parts = append(t.parts, `,{"type":"image_url","image_url":{"url":"`...)
	switch f[0].Text() {
	case "base64":
		if t.Required(at, "media_type", f[1], "a string such as image/png", '"') && t.Required(at, "data", f[2], "a string of base64", '"') {
			t.parts = append(append(t.parts, "data:"...), f[1].Inner()...)
			t.parts = append(append(t.parts, ";base64,"...), f[2].Inner()...)
		}
	case "url":
		if t.Required(at, "url", f[3], "a string", '"') {
			t.parts = append(t.parts, f[3].Inner()...)
		}
	default:
		t.Invalid(at, "type", f[0], allowed)
	}
	t.parts = append(t.parts, `"}}`...)
}

// blocks walks the blocks of an array.
func (t *translator) blocks(content raw.Value, at raw.Place, do func(kind string, b *block, at raw.Place)) {
	var b block
	n := 0
	for it := content.Each(); ; n++ {
		v, ok := it.Next()
		if !ok || t.Err != nil {
			return
		}
		at := at.At(n)
		if !t.Want(at, "", v, "a content block, an object with type", '{') {
			return
		}
		b = block{}
		t.Read(v, at, blockFields, b[:], false)
		if !t.Required(at, "type", b[blockType], "a string", '"') {
			return
		}
		kind := b[blockType].Text()
		if kind == "text" && !t.Required(at, "text", b[blockText], "a string", '"') {
			return
		}
		do(kind, &b, at)
	}
}

// kindOf refuses a block of a kind that is not allowed in its place.
func (t *translator) kindOf(b *block, at raw.Place, allowed string) {
	t.Invalid(at, "type", b[blockType], allowed)
}

// plain takes the system's content, which is text only.
func (t *translator) plain(content raw.Value, at raw.Place) {
	if content.Is('"') {
		t.text(content)
		return
	}
	t.blocks(content, at, func(kind string, b *block, at raw.Place) {
		switch {
		case kind != "text":
			t.kindOf(b, at, `"text"`)
		case !hasPrefix(b[blockText], billing):
			t.text(b[blockText])
		}
	})
}

func hasPrefix(v raw.Value, prefix string) bool {
	return len(v) >= len(prefix) && string(v[:len(prefix)]) == prefix
}

// user writes a user's message. Results of tools become messages of their own
// and come first, since they have to follow the calls; pictures among them can't
// be in such a message and go into the user's.
func (t *translator) user(content raw.Value, at raw.Place) {
	if content.Is('"') {
		t.text(content)
		t.end("user")
		return
	}
	results := false
	t.blocks(content, at, func(kind string, b *block, at raw.Place) {
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
func (t *translator) result(b *block, at raw.Place) {
	if !t.Required(at, "tool_use_id", b[blockToolUseID], "the id of a tool_use block", '"') {
		return
	}
	t.Want(at, "is_error", b[blockIsError], "true or false", 't')
	content := b[blockContent]
	if content != nil && !t.Want(at, "content", content, "a string or an array of text and image blocks", '"', '[') {
		return
	}
	texts := 0
	if content.Is('[') {
		t.blocks(content, at, func(kind string, b *block, at raw.Place) {
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
	t.Out = append(raw.Comma(t.Out), `{"role":"tool"`...)
	t.Add("tool_call_id", b[blockToolUseID])
	t.Add("content", nil)
	failed := string(b[blockIsError]) == "true"
	write := func(v raw.Value) {
		if failed {
			failed = false
			t.Out = append(append(append(t.Out, `"Error: `...), v.Inner()...), '"')
			return
		}
		t.Out = append(t.Out, v...)
	}
	switch {
	case content.Is('"'):
		write(content)
	case texts == 0 && failed:
		t.Out = append(t.Out, `"Error"`...)
	case texts == 0:
		t.Out = append(t.Out, `""`...)
	default:
		if texts > 1 {
			t.Out = append(t.Out, '[')
		}
		t.blocks(content, at, func(kind string, b *block, _ raw.Place) {
			switch {
			case kind != "text":
			case texts > 1:
				t.Out = append(raw.Comma(t.Out), `{"type":"text","text":`...)
				write(b[blockText])
				t.Out = append(t.Out, '}')
			default:
				write(b[blockText])
			}
		})
		if texts > 1 {
			t.Out = append(t.Out, ']')
		}
	}
	t.Out = append(t.Out, '}')
}

// assistant writes an earlier answer. Its reasoning is left out, see the
// documentation.
func (t *translator) assistant(content raw.Value, at raw.Place) {
	if content.Is('"') {
		t.text(content)
		t.end("assistant")
		return
	}
	t.blocks(content, at, func(kind string, b *block, at raw.Place) {
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

func (t *translator) call(b *block, at raw.Place) {
	if !t.Required(at, "id", b[blockID], "a string", '"') || !t.Required(at, "name", b[blockName], "a string", '"') ||
		!t.Required(at, "input", b[blockInput], "an object", '{') {
		return
	}
	t.calls = append(append(t.calls, `,{"id":`...), b[blockID]...)
	t.calls = append(append(t.calls, `,"type":"function","function":{"name":`...), b[blockName]...)
	t.calls = raw.AppendText(append(t.calls, `,"arguments":`...), []byte(b[blockInput]))
	t.calls = append(t.calls, '}', '}')
}

// tools writes functions. Tools that Anthropic runs or has taught its models are
// refused: an engine's model knows nothing of them.
func (t *translator) tools(list raw.Value) {
	if !t.Want(raw.Place{}, "tools", list, "an array of tools", '[') {
		return
	}
	n := 0
	for it := list.Each(); ; n++ {
		tool, ok := it.Next()
		if !ok {
			break
		}
		at := raw.In("tools").At(n)
		if !t.Want(at, "", tool, "an object with name and input_schema", '{') {
			return
		}
		var f [5]raw.Value
		t.Read(tool, at, []string{"type", "name", "description", "input_schema", "strict"}, f[:], false)
		if t.Want(at, "type", f[0], `"custom"`, '"') && f[0].Text() != "custom" {
			t.Invalid(at, "type", f[0], `"custom", or left out`)
			return
		}
		if !t.Required(at, "name", f[1], "a string", '"') || !t.Required(at, "input_schema", f[3], "a JSON schema, an object", '{') {
			return
		}
		if n == 0 {
			t.Add("tools", []byte{'['})
		}
		t.Out = append(raw.Comma(t.Out), `{"type":"function","function":{`...)
		t.Add("name", f[1])
		if t.Want(at, "description", f[2], "a string", '"') {
			t.Add("description", f[2])
		}
		t.Add("parameters", f[3])
		if t.Want(at, "strict", f[4], "true or false", 't') {
			t.Add("strict", f[4])
		}
		t.Out = append(t.Out, '}', '}')
	}
	if n > 0 {
		t.Out = append(t.Out, ']')
	}
}

func (t *translator) toolChoice(v, tools raw.Value) {
	if !t.Want(raw.Place{}, "tool_choice", v, "an object with type", '{') {
		return
	}
	const allowed = `"auto", "any", "tool" or "none"`
	at := raw.In("tool_choice")
	var f [3]raw.Value
	t.Read(v, at, []string{"type", "name", "disable_parallel_tool_use"}, f[:], false)
	if !t.Required(at, "type", f[0], allowed, '"') {
		return
	}
	first := tools.Each()
	_, some := first.Next()
	if !some && f[0].Text() != "none" {
		t.Invalid(at, "type", f[0], `"none" without tools`)
		return
	}
	switch f[0].Text() {
	case "auto":
		t.Add("tool_choice", []byte(`"auto"`))
	case "any":
		t.Add("tool_choice", []byte(`"required"`))
	case "none":
		if some {
			t.Add("tool_choice", []byte(`"none"`))
		}
	case "tool":
		if t.Required(at, "name", f[1], "the name of one of the tools", '"') {
			t.Add("tool_choice", []byte(`{"type":"function","function":{"name":`))
			t.Out = append(append(t.Out, f[1]...), '}', '}')
		}
	default:
		t.Invalid(at, "type", f[0], allowed)
	}
	if t.Want(at, "disable_parallel_tool_use", f[2], "true or false", 't') && string(f[2]) == "true" {
		t.Add("parallel_tool_calls", []byte("false"))
	}
}
