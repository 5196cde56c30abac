package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// encoder writes events as lines of JSON, byte for byte as encoding/json does. Of a busy
// gateway's processor time encoding/json took a sixteenth, most of it for the fields that
// an event does not have and for its time, which it makes, checks and copies.
//
// Alternatives: code for each field is twice as fast again, and has to be kept in step
// with Event.
type encoder struct{ fields []field }

// field is how one field of Event is written.
type field struct {
	index     int
	key       string // `,"key":`
	omitempty bool
}

func newEncoder() *encoder {
	e := new(encoder)
	t := reflect.TypeFor[Event]()
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		e.fields = append(e.fields, field{i, `,"` + name + `":`, options == "omitempty"})
	}
	return e
}

// append writes a line. The error is for a value that no JSON can have.
func (e *encoder) append(b *bytes.Buffer, ev *Event) error {
	line := b.AvailableBuffer()
	v := reflect.ValueOf(ev).Elem()
	for i := range e.fields {
		f := &e.fields[i]
		v := v.Field(f.index)
		if f.omitempty && v.IsZero() {
			continue
		}
		line = append(line, f.key...)
		switch v.Kind() {
		case reflect.String:
			if s := v.String(); plain(s) {
				line = append(append(append(line, '"'), s...), '"')
				continue
			}
		case reflect.Int, reflect.Int64:
			line = strconv.AppendInt(line, v.Int(), 10)
			continue
		case reflect.Uint64:
			line = strconv.AppendUint(line, v.Uint(), 10)
			continue
		case reflect.Bool:
			line = strconv.AppendBool(line, v.Bool())
			continue
		case reflect.Struct:
			if at, ok := v.Addr().Interface().(*time.Time); ok && at.Year() >= 0 && at.Year() <= 9999 {
				line = append(at.AppendFormat(append(line, '"'), time.RFC3339Nano), '"')
				continue
			}
		}
		var other bytes.Buffer
		enc := json.NewEncoder(&other)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v.Interface()); err != nil {
			return fmt.Errorf("field %s: %w", strings.Trim(f.key, `,":`), err)
		}
		line = append(line, bytes.TrimSuffix(other.Bytes(), []byte("\n"))...)
	}
	line[0] = '{'
	_, err := b.Write(append(line, "}\n"...))
	return err
}

// plain tells that a string is written as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
