package raw

import (
	"cmp"
	"fmt"
	"strings"

	"headgate/wire"
)

// Translator makes the body of one API's request out of another's. Errors name
// the client's own fields.
type Translator struct {
	Out []byte      // what is being written
	Err *wire.Error // the first one
}

// Refuse ends the translation with an error, unless one has ended it.
func (t *Translator) Refuse(e *wire.Error) {
	if t.Err == nil {
		t.Err = e
	}
}

// Invalid refuses a value of a field for what is allowed there.
func (t *Translator) Invalid(at Place, field string, v Value, allowed string) {
	t.Refuse(wire.InvalidField(at.Field(field), v.Shown(), allowed))
}

// Place is where something is in the request: a list, and the indices on the way
// down from it, or a member of what is there.
type Place struct {
	list  string
	index [3]int
	depth int
	Of    string
	Inner string // what an item's own list is called; "" is content
}

// In is a list, or an object, of the request.
func In(list string) Place { return Place{list: list} }

// At is an item of the list, or of the content of an item.
func (p Place) At(i int) Place {
	p.index[p.depth] = i
	p.depth++
	return p
}

// Field is the name of a field there, or of the place itself.
func (p Place) Field(name string) string {
	var b strings.Builder
	b.WriteString(p.list)
	for i := range p.depth {
		if i > 0 {
			b.WriteString("." + cmp.Or(p.Inner, "content"))
		}
		fmt.Fprintf(&b, "[%d]", p.index[i])
	}
	for _, member := range []string{p.Of, name} {
		if member != "" && b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(member)
	}
	return b.String()
}

// Read finds fields by their names. One that is given twice is refused, as
// parsers differ in which of two they take. Others are refused where only is set.
// A field that is null counts as absent.
func (t *Translator) Read(v Value, at Place, names []string, into []Value, only bool) {
	var seen uint64
	for it := v.Each(); ; {
		key, v, ok := it.Member()
		if !ok {
			return
		}
		i := Index(names, key)
		switch {
		case i < 0 && only && !v.Null():
			t.Refuse(wire.InvalidField(at.Field(string(key[:min(len(key), maxName)])), v.Shown(), "left out, as nothing here does it; what is known: "+strings.Join(names, ", ")))
		case i < 0:
		case seen&(1<<i) != 0:
			e := wire.NewError(wire.CodeInvalidField, "%s is given twice; allowed: once", at.Field(names[i]))
			e.Param = at.Field(names[i])
			t.Refuse(e)
		default:
			seen |= 1 << i
			if !v.Null() {
				into[i] = v
			}
		}
	}
}

const maxName = 64 // bytes of a client's own name that a message repeats

// Add appends a member to the object that is being written.
func (t *Translator) Add(name string, v []byte) {
	t.Out = append(Comma(t.Out), '"')
	t.Out = append(t.Out, name...)
	t.Out = append(t.Out, '"', ':')
	t.Out = append(t.Out, v...)
}

// Want checks that a field, if it is there, has one of the kinds.
func (t *Translator) Want(at Place, name string, v Value, allowed string, is ...byte) bool {
	if v == nil {
		return false
	}
	for _, c := range is {
		if v.Is(c) || c == '0' && v.IsNumber() || c == 't' && v.Is('f') {
			return true
		}
	}
	t.Invalid(at, name, v, allowed)
	return false
}

// Required is want for a field that can't be left out.
func (t *Translator) Required(at Place, name string, v Value, allowed string, is byte) bool {
	if v == nil {
		t.Refuse(wire.MissingField(at.Field(name), allowed))
		return false
	}
	return t.Want(at, name, v, allowed, is)
}

// Copied is a scalar that means the same in a chat request.
func (t *Translator) Copied(name, as string, v Value, allowed string, is byte) {
	if t.Want(Place{}, name, v, allowed, is) {
		t.Add(as, v)
	}
}
