package wire

import (
	"bytes"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// An answer that is continued from its text is sent back to the engine behind what
// it answers: a completion's prompt is made longer by it, and a chat gets it as a
// last message, which engines take for one to go on with. It takes no token ids, and
// says less than they do:
//
//   - A tokenizer may cut the text otherwise than the model has made it. Behind a
//     space it mostly does, since a space begins the next word's token, and templates
//     trim what a message ends with. So an attempt isn't to be cut there.
//   - How many tokens the text is isn't known. They are counted by events, and where
//     one has several by the most that its text may be: rather too many, because
//     what is left of a limit is what they leave of it.
//   - Whether an engine goes on, or answers anew, does not show.
//
// The text is kept as it is written, with its escapes. So it needs no decoding, and
// two halves of a surrogate pair that come in two events are one character again.
//
// The engine is told of the stop strings, of which a text that it holds back is only
// produced again; for those across a cut they are looked for here too.

// longWord is how long the text of one token may be, in bytes.
const longWord = 32

// ContinuesText tells whether a resumable request's answer can be continued from its
// text: there is one place where it belongs.
func (r *Request) ContinuesText() bool {
	return r.Resumable() && !r.begun && (r.API == Chat || r.textPrompt)
}

// NewTextStitch is NewStitch without token ids, of a request that ContinuesText. most
// may be 0: the engine knows what its context leaves.
func NewTextStitch(r *Request, most int) *Stitch {
	return &Stitch{req: r, most: most, fromText: true, stops: newStops(r)}
}

// FromText tells whether the answer is continued from its text.
func (s *Stitch) FromText() bool { return s.fromText }

// say takes in a text as it is written.
func (s *Stitch) say(v []byte) {
	if len(v) < 2 || v[0] != '"' {
		return
	}
	s.tail.text = append(s.tail.text, v[1:len(v)-1]...)
	s.said = appendText(s.said[:0], v)
	s.tail.n += tokensOf(s.said, v[1:len(v)-1])
	last, _ := utf8.DecodeLastRune(s.said)
	s.sure = last != utf8.RuneError && !unicode.IsSpace(last)
}

// tokensOf is a number of tokens that the text of an event, as it is and as it is
// written, hardly exceeds.
func tokensOf(text, written []byte) int {
	words, space := 0, false
	for _, r := range string(text) {
		if space && !unicode.IsSpace(r) {
			words++ // a space begins a token as a rule, and what is before it is one's end
		}
		space = unicode.IsSpace(r)
	}
	if len(text) <= longWord && words < 2 {
		return 1
	}
	var c Content
	measureText(&c, written)
	return Bound(c)
}

// counted takes in how many tokens the present attempt has had, where the engine says.
func (s *Stitch) counted(usage []byte) {
	sc := scanner{b: usage}
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			return
		}
		is := string(key) == "completion_tokens"
		if v := sc.value(); is {
			s.tail.n = max(s.tail.n, count(v)-s.Kept())
		}
	}
}

// roleless is a delta without its role, which the first attempt has told. opening:
// there was one.
func roleless(v []byte) (_ []byte, opening bool) {
	if len(v) == 0 || v[0] != '{' {
		return v, false
	}
	sc := scanner{b: v}
	b := []byte{'{'}
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		role, written := string(key) == "role", sc.b[sc.keyAt:sc.keyTo]
		v := sc.value()
		if opening = opening || role; !role {
			b = append(append(append(comma(b), written...), ':'), v...)
		}
	}
	return append(b, '}'), opening
}

// continueText is Continue: the client's own request, and what is kept behind it.
func (s *Stitch) continueText(p Projection) []byte {
	r := s.req
	p.Stream, p.TokenIDs, p.MaxTokens = true, false, 0
	if s.most > 0 {
		p.MaxTokens = s.most - s.kept.n
	}
	at, said := r.spans[fieldPrompt].from, string(bytes.ToValidUTF8(s.kept.text, []byte("\ufffd")))
	if r.API == Chat {
		at, said = r.spans[fieldMessages].from, `,{"role":"assistant","content":"`+said+`"}`
	}
	sc := scanner{b: r.Body, i: at}
	sc.skip()
	edits := []edit{{sc.i - 1, sc.i - 1, said}}

	set := map[string]string{}
	if least := r.minTokens - s.kept.n; r.minTokens > 0 {
		set["min_tokens"] = strconv.Itoa(max(least, 0))
	}
	if p.FinalMessage && r.API == Chat {
		set["continue_final_message"], set["add_generation_prompt"] = "true", "false"
	}
	sc = scanner{b: r.Body}
	sc.peek()
	for sc.open(); ; {
		key, ok := sc.member()
		if !ok {
			break
		}
		name := string(key)
		sc.peek()
		from := sc.i
		sc.skip()
		if value, ok := set[name]; ok {
			edits = append(edits, edit{from, sc.i, value})
			delete(set, name)
		}
	}
	added := ""
	for _, name := range []string{"continue_final_message", "add_generation_prompt"} {
		if value, ok := set[name]; ok {
			added += `,"` + name + `":` + value
		}
	}
	if added != "" {
		edits = append(edits, edit{r.close, r.close, added})
	}
	return r.project(nil, p, edits)
}
