package responses

import (
	"headgate/wire"
	"headgate/wire/raw"
)

// Members of items and of the parts of their content, by their place in
// itemFields. Others are passed over: clients send back what they were sent, with
// its ids and states.
const (
	itemType = iota
	itemRole
	itemContent
	itemCallID
	itemName
	itemArguments
	itemOutput
	itemText
	itemRefusal
	itemImage
	itemDetail
	itemAudio
	itemFile
	numItem
)

var itemFields = []string{"type", "role", "content", "call_id", "name", "arguments", "output",
	"text", "refusal", "image_url", "detail", "input_audio", "file_id"}

type item [numItem]raw.Value

// input writes the chat's messages, the instructions first.
//
// Items that are one message in a chat come one after the other here. What the
// system says in a row becomes one message, since many templates take only one;
// and what the assistant says and calls in a row becomes one, since the outputs of
// its calls have to follow it.
func (t *translator) input(instructions, list raw.Value) {
	const allowed = "a string or a non-empty array of items"
	if list == nil {
		t.Refuse(wire.MissingField("input", allowed))
		return
	}
	if !t.Want(raw.Place{}, "input", list, allowed, '"', '[') {
		return
	}
	t.Add("messages", []byte{'['})
	if t.Want(raw.Place{}, "instructions", instructions, "a string", '"') && !instructions.Empty() {
		t.begin("system")
		t.say(instructions)
	}
	if list.Is('"') {
		t.begin("user")
		t.say(list)
	} else {
		t.items(list)
	}
	t.end()
	t.Out = append(t.Out, ']')
}

func (t *translator) items(list raw.Value) {
	n := 0
	for it := list.Each(); ; n++ {
		v, ok := it.Next()
		if !ok || t.Err != nil {
			break
		}
		at := raw.In("input").At(n)
		if !t.Want(at, "", v, "an item, an object with type or role", '{') {
			return
		}
		var f item
		t.Read(v, at, itemFields, f[:], false)
		t.item(&f, at)
	}
	switch {
	case n == 0:
		t.Refuse(wire.InvalidField("input", "an empty array", "a string or a non-empty array of items"))
	case t.role == "assistant":
		t.Refuse(wire.InvalidField(raw.In("input").At(n-1).Field(""), "the assistant's",
			"a user's message or the output of a function as the last item: engines do not agree on how an answer that was begun goes on"))
	}
}

func (t *translator) item(f *item, at raw.Place) {
	const allowed = `"message", "function_call", "function_call_output" or "reasoning"`
	kind := "message"
	if f[itemType] == nil {
		if f[itemRole] == nil {
			t.Refuse(wire.MissingField(at.Field("type"), allowed))
			return
		}
	} else if !t.Want(at, "type", f[itemType], allowed, '"') {
		return
	} else {
		kind = f[itemType].Text()
	}
	switch kind {
	case "message":
		t.message(f, at)
	case "function_call":
		t.call(f, at)
	case "function_call_output":
		t.output(f, at)
	case "reasoning": // what the model thought before is not sent again
	case "item_reference":
		t.Invalid(at, "type", f[itemType], allowed+"; no item is stored here that could be referred to")
	default:
		t.Invalid(at, "type", f[itemType], allowed)
	}
}

func (t *translator) message(f *item, at raw.Place) {
	const roles = `"user", "assistant", "system" or "developer"`
	if !t.Required(at, "role", f[itemRole], roles, '"') {
		return
	}
	const content = "a string or an array of parts"
	if f[itemContent] == nil {
		t.Refuse(wire.MissingField(at.Field("content"), content))
		return
	}
	if !t.Want(at, "content", f[itemContent], content, '"', '[') {
		return
	}
	role := f[itemRole].Text()
	switch role {
	case "user":
	case "assistant":
	case "system", "developer":
		role = "system" // which every template knows
	default:
		t.Invalid(at, "role", f[itemRole], roles)
		return
	}
	t.begin(role)
	if f[itemContent].Is('"') {
		t.say(f[itemContent])
		return
	}
	t.eachPart(f[itemContent], at, func(kind string, p *item, at raw.Place) {
		switch {
		case kind == "input_text" || kind == "output_text" || kind == "text":
			if t.Required(at, "text", p[itemText], "a string", '"') {
				t.say(p[itemText])
			}
		case kind == "refusal" && role == "assistant":
			if t.Required(at, "refusal", p[itemRefusal], "a string", '"') {
				t.say(p[itemRefusal])
			}
		case kind == "input_image" && role == "user":
			if picture := t.image(nil, p, at); picture != nil {
				t.media++
				t.parts = append(t.parts, picture...)
			}
		case kind == "input_audio" && role == "user":
			if t.Required(at, "input_audio", p[itemAudio], "an object with data and format", '{') {
				t.media++
				t.parts = append(append(append(t.parts, `,{"type":"input_audio","input_audio":`...), p[itemAudio]...), '}')
			}
		case role == "user":
			t.Invalid(at, "type", p[itemType], `"input_text", "input_image" or "input_audio" in a user's message`)
		case role == "assistant":
			t.Invalid(at, "type", p[itemType], `"output_text" or "refusal" in an assistant's message`)
		default:
			t.Invalid(at, "type", p[itemType], `"input_text" in a system's or developer's message`)
		}
	})
}

// eachPart walks the parts of an array.
func (t *translator) eachPart(content raw.Value, at raw.Place, do func(kind string, p *item, at raw.Place)) {
	n := 0
	for it := content.Each(); ; n++ {
		v, ok := it.Next()
		if !ok || t.Err != nil {
			return
		}
		at := at.At(n)
		if !t.Want(at, "", v, "a part, an object with type", '{') {
			return
		}
		var p item
		t.Read(v, at, itemFields, p[:], false)
		if !t.Required(at, "type", p[itemType], "a string", '"') {
			return
		}
		do(p[itemType].Text(), &p, at)
	}
}

// image appends a picture, which is an address or has its bytes in it.
func (t *translator) image(dst []byte, p *item, at raw.Place) []byte {
	if p[itemFile] != nil {
		t.Invalid(at, "file_id", p[itemFile], "left out, as no file is stored here; the picture goes into image_url")
		return nil
	}
	if !t.Required(at, "image_url", p[itemImage], "a string, an address or a data URL", '"') {
		return nil
	}
	dst = append(append(dst, `,{"type":"image_url","image_url":{"url":`...), p[itemImage]...)
	if t.Want(at, "detail", p[itemDetail], "a string", '"') {
		dst = append(append(dst, `,"detail":`...), p[itemDetail]...)
	}
	return append(dst, '}', '}')
}

func (t *translator) call(f *item, at raw.Place) {
	if !t.Required(at, "call_id", f[itemCallID], "a string", '"') || !t.Required(at, "name", f[itemName], "a string", '"') ||
		!t.Required(at, "arguments", f[itemArguments], "a string of JSON", '"') {
		return
	}
	t.begin("assistant")
	t.calls = append(append(t.calls, `,{"id":`...), f[itemCallID]...)
	t.calls = append(append(t.calls, `,"type":"function","function":{"name":`...), f[itemName]...)
	t.calls = append(append(t.calls, `,"arguments":`...), f[itemArguments]...)
	t.calls = append(t.calls, '}', '}')
}

// output writes what a function answered. Pictures can't be in such a message and
// go into a user's, once all outputs are there.
func (t *translator) output(f *item, at raw.Place) {
	const allowed = "a string or an array of input_text and input_image parts"
	if !t.Required(at, "call_id", f[itemCallID], "the call_id of a function_call", '"') {
		return
	}
	if f[itemOutput] == nil {
		t.Refuse(wire.MissingField(at.Field("output"), allowed))
		return
	}
	if !t.Want(at, "output", f[itemOutput], allowed, '"', '[') {
		return
	}
	t.begin("tool")
	if f[itemOutput].Is('"') {
		t.say(f[itemOutput])
	} else {
		at.Inner = "output"
		t.eachPart(f[itemOutput], at, func(kind string, p *item, at raw.Place) {
			switch kind {
			case "input_text", "output_text", "text":
				if t.Required(at, "text", p[itemText], "a string", '"') {
					t.say(p[itemText])
				}
			case "input_image":
				t.pictures = append(t.pictures, t.image(nil, p, at)...)
			default:
				t.Invalid(at, "type", p[itemType], `"input_text" or "input_image" in a function's output`)
			}
		})
	}
	t.finish(f[itemCallID])
}

// begin goes on with the message at hand if the role's can be one, and ends it
// otherwise.
func (t *translator) begin(role string) {
	if t.role == role && (role == "system" || role == "assistant") {
		return
	}
	if t.role != "" {
		t.finish(nil)
	}
	if len(t.pictures) > 0 && role != "tool" {
		t.role, t.media = "user", 1
		t.parts, t.pictures = append(t.parts, t.pictures...), t.pictures[:0]
		if role != "user" {
			t.finish(nil)
		}
	}
	t.role = role
}

// say adds a text to the message at hand.
func (t *translator) say(v raw.Value) {
	if t.texts == 0 {
		t.only = v
	}
	t.texts++
	t.parts = append(t.parts, `,{"type":"text","text":`...)
	t.parts = append(append(t.parts, v...), '}')
}

// finish writes the message at hand: a single text as a string, which every
// template takes, and anything else as parts, which it is for the engine to join.
func (t *translator) finish(callID raw.Value) {
	t.Out = append(append(append(raw.Comma(t.Out), `{"role":"`...), t.role...), '"')
	if callID != nil {
		t.Add("tool_call_id", callID)
	}
	switch {
	case t.texts == 1 && t.media == 0:
		t.Add("content", t.only)
	case t.texts+t.media > 0:
		t.Add("content", []byte{'['})
		t.Out = append(append(t.Out, t.parts[1:]...), ']') // without the first comma
	case len(t.calls) > 0:
		t.Add("content", []byte("null"))
	default:
		t.Add("content", []byte(`""`))
	}
	if len(t.calls) > 0 {
		t.Add("tool_calls", []byte{'['})
		t.Out = append(append(t.Out, t.calls[1:]...), ']')
	}
	t.Out = append(t.Out, '}')
	t.role, t.parts, t.calls, t.texts, t.media, t.only = "", t.parts[:0], t.calls[:0], 0, 0, nil
}

// end writes what is left at the end of the input.
func (t *translator) end() {
	t.begin("")
}
