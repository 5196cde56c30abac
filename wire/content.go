package wire

import (
	"fmt"
	"math"
)

// messages measures a chat's messages: the values of all their members, since
// templates render names, roles and tool calls too.
func (p *parser) messages() {
	switch p.peek() {
	case '[':
	case 'n':
		p.skip()
		return
	default:
		p.contentKind("messages", "a non-empty array of messages")
		return
	}
	last := ""
	p.open()
	for p.elem() {
		if p.peek() != '{' {
			p.contentKind(fmt.Sprintf("messages[%d]", p.r.Content.Messages), "an object with role and content")
			p.r.Content.Messages++
			continue
		}
		p.r.Content.Messages++
		last = p.message()
	}
	p.r.begun = p.r.begun || last == "assistant"
	if p.err == nil && p.r.Content.Messages == 0 {
		p.refuse(InvalidField("messages", "an empty array", "a non-empty array of messages"))
	}
}

// contentKind passes a value of the wrong kind and refuses it without repeating
// it: it may be anybody's text.
func (p *parser) contentKind(param, allowed string) {
	v := p.value()
	if p.err == nil {
		p.refuse(InvalidField(param, kindOf(v), allowed))
	}
}

// message returns its role.
func (p *parser) message() (role string) {
	p.open()
	for {
		key, ok := p.member()
		switch {
		case !ok:
			return role
		case isMedia(key):
			p.media()
		case string(key) == "role":
			p.peek()
			from := p.i
			p.measureValue()
			role = text(p.b[from:p.i])
		case string(key) == "content" && p.peek() == '[':
			p.open()
			for p.elem() {
				p.part()
			}
		default:
			p.measureValue()
		}
	}
}

// part measures one part of a message's content. What it is shows in its keys,
// which unlike "type" can't come too late to be of use: a medium's base64 is
// passed over, never measured.
func (p *parser) part() {
	if p.peek() != '{' {
		p.measureValue() // vLLM takes bare strings
		return
	}
	media := false
	p.open()
	for {
		key, ok := p.member()
		if !ok {
			break
		}
		switch {
		case isMedia(key):
			media = true
			p.skip()
		case string(key) == "type" || string(key) == "cache_control" || string(key) == "uuid":
			p.skip()
		default:
			p.measureValue()
		}
	}
	if media {
		p.r.Content.Media++
	}
}

func (p *parser) media() {
	if filled(p.value()) {
		p.r.Content.Media++
	}
}

func isMedia(key []byte) bool {
	switch string(key) {
	case "image_url", "input_audio", "audio_url", "video_url", "file", "file_url",
		"image", "audio", "video", "images", "image_embeds", "audio_embeds", "image_pil", "input_image":
		return true
	}
	return false
}

const promptAllowed = "a string, an array of strings, an array of token ids, or an array of such arrays"

// prompt measures a completion's prompt, or what is to be embedded, and counts how
// many there are.
func (p *parser) prompt(name string) {
	switch p.peek() {
	case '"':
		p.measureString()
		p.prompts++
		p.r.textPrompt = true
		return
	case '[':
	case 'n':
		p.skip()
		return
	default:
		p.contentKind(name, promptAllowed)
		return
	}
	first, n := byte(0), 0
	p.open()
	for ; p.elem(); n++ {
		c := p.peek()
		if '0' <= c && c <= '9' {
			c = '0'
		}
		if n == 0 {
			first = c
		}
		switch {
		case c != first || c != '"' && c != '[' && c != '0':
			p.contentKind(fmt.Sprintf("%s[%d]", name, n), promptAllowed)
		case c == '"':
			p.measureString()
		case c == '0':
			p.tokenID(name, n)
		default:
			p.tokenIDs(fmt.Sprintf("%s[%d]", name, n))
		}
	}
	switch {
	case p.err != nil:
	case n == 0:
		p.refuse(InvalidField(name, "an empty array", promptAllowed))
	case first == '0':
		p.prompts++
	default:
		p.prompts += n
	}
}

// tokenIDs counts the ids of an array.
func (p *parser) tokenIDs(param string) {
	switch p.peek() {
	case '[':
	case 'n':
		p.skip()
		return
	default:
		p.contentKind(param, "an array of token ids")
		return
	}
	n := 0
	p.open()
	for ; p.elem(); n++ {
		p.tokenID(param, n)
	}
	if p.err == nil && n == 0 {
		p.refuse(InvalidField(param, "an empty array", "a non-empty array of token ids"))
	}
}

func (p *parser) tokenID(param string, n int) {
	p.peek()
	from := p.i
	p.skip()
	if p.err != nil {
		return
	}
	v, id := p.b[from:p.i], 0
	for _, c := range v {
		if id = id*10 + int(c-'0'); c < '0' || c > '9' || id > math.MaxInt32 {
			p.refuse(InvalidField(fmt.Sprintf("%s[%d]", param, n), kindOf(v), fmt.Sprintf("a token id, an integer from 0 to %d", math.MaxInt32)))
			return
		}
	}
	p.r.Content.TokenIDs++
}

// promptEmbeds are prompts as tensors in base64, whose length in tokens only the
// engine knows; each is priced as a medium.
func (p *parser) promptEmbeds() {
	before := p.r.Content.Media
	if p.peek() == '[' {
		p.open()
		for p.elem() {
			p.media()
		}
	} else {
		p.media()
	}
	p.prompts += p.r.Content.Media - before
}

// measureValue measures a value as a template would print it: strings as their
// text, anything else as JSON without white space.
func (p *parser) measureValue() {
	if p.peek() == '"' {
		p.measureString()
		return
	}
	if p.peek() == 'n' {
		p.skip()
		return
	}
	p.measureJSON()
}

func (p *parser) measureJSON() {
	c := &p.r.Content
	switch p.peek() {
	case '"':
		c.Bytes[Prose] += 2
		p.measureString()
	case '{':
		c.Bytes[Prose] += 2
		p.open()
		for {
			if _, ok := p.member(); !ok {
				return
			}
			c.Bytes[Prose] += 4 // quotes, colon and comma
			measureText(c, p.b[p.keyAt+1:p.keyTo-1])
			p.measureJSON()
		}
	case '[':
		c.Bytes[Prose] += 2
		p.open()
		for p.elem() {
			c.Bytes[Prose]++
			p.measureJSON()
		}
	default:
		measureText(c, p.value())
	}
}

func (p *parser) measureString() {
	from := p.i
	p.skipString()
	if p.err == nil {
		measureText(&p.r.Content, p.b[from+1:p.i-1])
	}
}
