package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// ErrAnswerTooLarge is wrapped by the error of an answer that outgrew the limit
// given to NewAssembler.
var ErrAnswerTooLarge = errors.New("the assembled answer is too large")

// ErrUnfinished is the error of an answer of which a choice has no finish
// reason, or that has no choice: its stream was cut.
var ErrUnfinished = errors.New("the answer has no finish reason")

// Assembler makes the answer of a request that was not to be streamed out of a
// stream: upstream always streams, so that what an interrupted request has
// produced is there to resume from.
//
// Chunks are merged member by member. Texts (content, reasoning, refusal,
// arguments) and arrays of log probabilities and token ids are appended; choices
// and tool calls are merged by their index; what names the answer or a call (id,
// created, model, role, type, name) is the first that came; of everything else,
// known or not, the last value that is not null is kept. Strings are joined as
// they are escaped, so the text is the engine's to the byte, and a surrogate pair
// that was split over two chunks is whole again.
//
// Members that an engine leaves out of its chunks because they are null in its
// whole answers are not made up, except for a message's content, which clients
// read without asking.
type Assembler struct {
	api  API
	most int
	size int
	root node
	err  error
}

// NewAssembler returns an Assembler of an answer of at most maxBytes.
func NewAssembler(api API, maxBytes int) *Assembler {
	return &Assembler{api: api, most: maxBytes}
}

// node is an object that is being put together.
type node struct {
	index   int // in its list
	members []*member
}

type member struct {
	key   []byte // as it is written, with its quotes
	form  form
	value []byte  // of the forms that are not nodes
	nodes []*node // one for an object, by index for a list
}

type form uint8

const (
	asIs   form = iota
	joined      // a string, without its quotes
	concat      // an array, without its brackets
	object
	list
)

const (
	maxIndex   = 4096 // of choices and tool calls
	memberCost = 64   // bytes that a member is counted for beside its text
)

// Add merges one chunk; the terminator and usage chunks are welcome. An engine's
// error in the place of a chunk is returned as an *Error. After an error the
// Assembler is of no further use.
func (a *Assembler) Add(data []byte) error {
	c, err := ParseChunk(a.api, data)
	switch {
	case a.err != nil:
	case err != nil:
		a.err = err
	case c.Err != nil:
		a.err = c.Err
	case !c.Done:
		s := scanner{b: data}
		s.peek()
		a.merge(&a.root, &s)
	}
	return a.err
}

// merge takes in an object, which is valid JSON.
func (a *Assembler) merge(n *node, s *scanner) {
	s.open()
	for a.err == nil {
		key, ok := s.member()
		if !ok {
			return
		}
		f := formOf(key, s.b[s.i])
		first := keepsFirst(key)
		written := s.b[s.keyAt:s.keyTo]
		m := n.member(written)
		v := s.value()
		if string(v) == "null" {
			continue
		}
		if m == nil {
			m = &member{key: slices.Clone(written), form: f}
			n.members = append(n.members, m)
			a.grow(len(written) + memberCost)
		} else if first && filled(m.value) {
			continue
		} else if m.form != f {
			*m = member{key: m.key, form: f} // an engine that changes its mind
		}
		a.put(m, v)
	}
}

func (a *Assembler) put(m *member, v []byte) {
	switch m.form {
	case asIs:
		a.grow(len(v) - len(m.value))
		m.value = append(m.value[:0], v...)
	case joined:
		a.grow(len(v))
		m.value = append(m.value, v[1:len(v)-1]...)
	case concat:
		a.grow(len(v))
		inner := bytes.TrimSpace(v[1 : len(v)-1])
		if len(inner) > 0 && len(m.value) > 0 {
			m.value = append(m.value, ',')
		}
		m.value = append(m.value, inner...)
	case object:
		if len(m.nodes) == 0 {
			m.nodes = append(m.nodes, new(node))
		}
		a.merge(m.nodes[0], &scanner{b: v})
	case list:
		s := scanner{b: v}
		s.open()
		for s.elem() && a.err == nil {
			if s.peek() != '{' {
				s.skip()
				continue
			}
			elem := s.value()
			if to := a.find(m, elem); to != nil {
				a.merge(to, &scanner{b: elem})
			}
		}
	}
}

func (a *Assembler) grow(by int) {
	if a.size += by; a.size > a.most && a.err == nil {
		a.err = fmt.Errorf("%w: more than %d bytes", ErrAnswerTooLarge, a.most)
	}
}

// find returns the list's node for an element, by its index. Some engines leave
// the index out: then an element with an id begins a new one, and any other goes
// on with the last.
func (a *Assembler) find(m *member, elem []byte) *node {
	index, named := -1, false
	s := scanner{b: elem}
	s.open()
	for {
		key, ok := s.member()
		if !ok {
			break
		}
		switch string(key) {
		case "index":
			v := s.value()
			n, ok := integer(v)
			if ok && n >= 0 && n <= maxIndex {
				index = n
			} else if string(v) != "null" {
				a.err = fmt.Errorf("a chunk has index %s; allowed: an integer from 0 to %d", clip(string(v), maxShown), maxIndex)
				return nil
			}
		case "id":
			named = filled(s.value())
		default:
			s.skip()
		}
	}
	if index < 0 && len(m.nodes) > 0 {
		last := m.nodes[len(m.nodes)-1]
		if !named {
			return last
		}
		index = last.index + 1
	}
	index = max(index, 0)
	at, found := slices.BinarySearchFunc(m.nodes, index, func(n *node, i int) int { return n.index - i })
	if !found {
		m.nodes = slices.Insert(m.nodes, at, &node{index: index})
		a.grow(memberCost)
	}
	return m.nodes[at]
}

func (n *node) member(key []byte) *member {
	for _, m := range n.members {
		if bytes.Equal(m.key, key) {
			return m
		}
	}
	return nil
}

// formOf tells how values of the key are merged; c is the value's first byte.
// Log probabilities have members content and refusal too, which are arrays.
func formOf(key []byte, c byte) form {
	switch string(key) {
	case "choices", "tool_calls":
		if c == '[' {
			return list
		}
	case "delta", "function", "function_call", "logprobs":
		if c == '{' {
			return object
		}
	case "text", "content", "reasoning_content", "reasoning", "refusal", "arguments",
		"token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset":
		switch c {
		case '"':
			return joined
		case '[':
			return concat
		}
	}
	return asIs
}

func keepsFirst(key []byte) bool {
	switch string(key) {
	case "id", "object", "created", "model", "system_fingerprint", "index", "role", "type", "name":
		return true
	}
	return false
}

// JSON returns the answer. It is ErrUnfinished unless every choice that was seen
// has a finish reason; whether all choices were seen is for the caller to tell.
func (a *Assembler) JSON() ([]byte, error) {
	if a.err != nil {
		return nil, a.err
	}
	choices := a.root.member([]byte(`"choices"`))
	if choices == nil || choices.form != list || len(choices.nodes) == 0 {
		return nil, ErrUnfinished
	}
	for _, c := range choices.nodes {
		if f := c.member([]byte(`"finish_reason"`)); f == nil || !filled(f.value) {
			return nil, ErrUnfinished
		}
	}
	return a.write(make([]byte, 0, a.size), &a.root, inAnswer), nil
}

// place in the answer, where a streamed and a whole one differ.
type place uint8

const (
	elsewhere place = iota
	inAnswer
	inChoice
	inMessage
	inCall
)

func (a *Assembler) write(b []byte, n *node, in place) []byte {
	b = append(b, '{')
	for _, m := range n.members {
		key, value, below := string(m.key), m.value, elsewhere
		switch {
		case in == inAnswer && key == `"object"` && string(value) == `"chat.completion.chunk"`:
			value = []byte(`"chat.completion"`)
		case in == inAnswer && key == `"choices"`:
			below = inChoice
		case in == inChoice && key == `"delta"` && a.api == Chat:
			key, below = `"message"`, inMessage
		case in == inMessage && key == `"tool_calls"`:
			below = inCall
		case in == inCall && key == `"index"`:
			continue // only tells which chunks belong together
		}
		b = append(comma(b), key...)
		b = append(b, ':')
		switch m.form {
		case asIs:
			b = append(b, value...)
		case joined:
			b = append(append(append(b, '"'), value...), '"')
		case concat:
			b = append(append(append(b, '['), value...), ']')
		case object:
			b = a.write(b, m.nodes[0], below)
		case list:
			b = append(b, '[')
			for _, c := range m.nodes {
				b = a.write(comma(b), c, below)
			}
			b = append(b, ']')
		}
	}
	// What clients read without asking, where an engine sent nothing of it.
	missing := func(key, value string) {
		if n.member([]byte(key)) == nil {
			b = append(append(append(comma(b), key...), ':'), value...)
		}
	}
	switch {
	case in == inMessage:
		missing(`"role"`, `"assistant"`)
		missing(`"content"`, `null`)
	case in == inChoice && a.api == Completions:
		missing(`"text"`, `""`)
	case in == inChoice && n.member([]byte(`"delta"`)) == nil:
		missing(`"message"`, `{"role":"assistant","content":null}`)
	}
	return append(b, '}')
}

// comma separates what follows from an item before it.
func comma(b []byte) []byte {
	if c := b[len(b)-1]; c != '{' && c != '[' {
		b = append(b, ',')
	}
	return b
}
