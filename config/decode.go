package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"headgate/identity"
)

// decoder fills a Go value from a syntax tree, reports everything in the tree
// that does not belong there, and records where each path stands.
//
// The depth of the walk is that of the schema, not of the file. Aliases may
// repeat a part, so what bounds the work is the number of nodes visited.
type decoder struct {
	list
	anchors map[string]ast.Node
	excused []string // paths whose values could not be read
	old     []deprecation
	nodes   int
	full    bool // the bound was met and reported
}

// maxNodes is more than a file of the allowed size says without aliases.
const maxNodes = 50_000

// defaulter is a struct that knows its defaults; they are set before the file's
// values, so that an explicit zero stays one.
type defaulter interface{ SetDefaults() }

// setDefaults sets the defaults of v and of the structs within it.
func setDefaults(v reflect.Value) {
	if d, ok := v.Addr().Interface().(defaulter); ok {
		d.SetDefaults()
	}
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Struct && f.CanSet() {
			setDefaults(f)
		}
	}
}

// value decodes n into v, which stands at path.
func (d *decoder) value(n ast.Node, v reflect.Value, path string) {
	if d.nodes++; d.nodes > maxNodes {
		if !d.full {
			d.full = true
			d.at(d.src.locate(path), path, fmt.Sprintf("the file repeats parts by aliases to more than the allowed %d values", maxNodes))
		}
		return
	}
	if _, ok := d.src.at[path]; !ok {
		d.src.at[path] = place(n)
	}
	switch t := n.(type) {
	case nil, *ast.NullNode:
		return // a key without a value leaves the default
	case *ast.AnchorNode:
		d.value(t.Value, v, path)
		// The name counts after its value, so that no value holds itself.
		if _, alias := t.Value.(*ast.AliasNode); !alias {
			d.anchors[t.Name.GetToken().Value] = t.Value
		}
		return
	case *ast.AliasNode:
		name := t.Value.GetToken().Value
		if target, ok := d.anchors[name]; ok {
			d.value(target, v, path)
		} else {
			d.at(place(n), path, fmt.Sprintf("alias *%s: allowed is the name of an anchor before it", name))
		}
		return
	case *ast.TagNode:
		d.at(place(n), path, fmt.Sprintf("tag %s: allowed are plain values", t.Start.Value))
		return
	}
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(n, path, t.UnmarshalText)
		return
	}
	if p, ok := v.Addr().Interface().(*time.Duration); ok {
		d.text(n, path, func(b []byte) (err error) {
			*p, err = parseDuration(string(b))
			return err
		})
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if p.Elem().Kind() == reflect.Struct {
			setDefaults(p.Elem())
		}
		d.value(n, p.Elem(), path)
		v.Set(p)
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Slice:
		d.slice(n, v, path)
	case reflect.String:
		switch s := n.(type) {
		case *ast.StringNode:
			v.SetString(s.Value)
		case *ast.LiteralNode: // a text of several lines, as Effective prints one
			v.SetString(s.Value.Value)
		default:
			d.mismatch(n, path, "a text; a number or true needs quotes to be one")
		}
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
		} else {
			d.mismatch(n, path, "true or false")
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		d.integer(n, v, path)
	default:
		panic("config: the schema has a field of kind " + v.Kind().String() + " at " + path)
	}
}

func (d *decoder) structure(n ast.Node, v reflect.Value, path string) {
	m, ok := n.(ast.MapNode)
	if !ok {
		d.mismatch(n, path, "a mapping with the keys "+strings.Join(keys(fields(v)), ", "))
		return
	}
	known := fields(v)
	seen := map[string]position{}
	for it := m.MapRange(); it.Next(); {
		key := it.Key()
		name, at := key.GetToken().Value, place(key)
		sub := name
		if path != "" {
			sub = path + "." + name
		}
		if key.IsMergeKey() {
			d.at(at, sub, "merge keys are not supported: repeat the values, or use an alias for a whole value")
			continue
		}
		if first, twice := seen[name]; twice {
			d.at(at, sub, fmt.Sprintf("key given twice: it stands at %d:%d already", first.line, first.column))
			continue
		}
		seen[name] = at
		f, ok := known[name]
		if !ok {
			meant, text := unknownKey(name, keys(known))
			d.at(at, sub, text)
			if meant != "" {
				d.excused = append(d.excused, strings.TrimSuffix(sub, name)+meant)
			}
			continue
		}
		if use := deprecated(v, name); use != "" {
			d.old = append(d.old, deprecation{sub, at, beside(use, sub)})
		}
		d.value(it.Value(), f, sub)
	}
}

func (d *decoder) slice(n ast.Node, v reflect.Value, path string) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.mismatch(n, path, "a list")
		return
	}
	for i, item := range s.Values {
		if d.full {
			return
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if e.Kind() == reflect.Struct {
			setDefaults(e)
		}
		d.value(item, e, path+"["+strconv.Itoa(i)+"]")
		v.Set(reflect.Append(v, e))
	}
}

func (d *decoder) integer(n ast.Node, v reflect.Value, path string) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		d.mismatch(n, path, "an integer")
		return
	}
	x, err := decimal(i.GetToken().Value)
	switch {
	case errors.Is(err, errDecimal):
		d.mismatch(n, path, err.Error())
		return
	case err != nil:
		d.mismatch(n, path, "an integer from -9223372036854775808 to 9223372036854775807")
		return
	}
	if v.OverflowInt(x) {
		d.mismatch(n, path, fmt.Sprintf("an integer of %d bits", v.Type().Bits()))
		return
	}
	v.SetInt(x)
}

// text decodes what has a form of its own from any scalar, as it is written.
func (d *decoder) text(n ast.Node, path string, parse func([]byte) error) {
	s, ok := n.(ast.ScalarNode)
	if !ok {
		d.mismatch(n, path, "a single value")
		return
	}
	if err := parse([]byte(s.GetToken().Value)); err != nil {
		d.mismatch(n, path, err.Error())
	}
}

func (d *decoder) mismatch(n ast.Node, path, allowed string) {
	shown := ""
	switch t := n.(type) {
	case ast.MapNode:
		shown = "a mapping"
	case *ast.SequenceNode:
		shown = "a list"
	default:
		shown = show(t.GetToken().Value)
	}
	if secrets[indices.ReplaceAllString(path, "[]")] {
		shown = identity.Redacted // of a hash, it may be the key itself
	}
	d.at(place(n), path, fmt.Sprintf("value %s: allowed %s", shown, allowed))
}

func (d *decoder) at(at position, path, text string) {
	d.excused = append(d.excused, path)
	d.problems = append(d.problems, Problem{File: d.src.file, Line: at.line, Column: at.column, Path: path, Text: text})
}

// excuses tells whether a rule that blames path would blame what the decoder
// has reported already: the value itself, a part of it, or the whole that it is
// a part of.
func (d *decoder) excuses(path string) bool {
	for _, e := range d.excused {
		if within(e, path) || within(path, e) {
			return true
		}
	}
	return false
}

// within tells whether path is part or something below it.
func within(path, part string) bool {
	rest, ok := strings.CutPrefix(path, part)
	return ok && (rest == "" || part == "" || rest[0] == '.' || rest[0] == '[')
}

// place is where a reader looks for n: the first key of a mapping, not the
// colon behind it.
func place(n ast.Node) position {
	switch t := n.(type) {
	case nil:
		return position{1, 1}
	case *ast.MappingNode:
		if len(t.Values) > 0 && !t.IsFlowStyle {
			return place(t.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return place(t.Key)
	}
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		return position{tk.Position.Line, tk.Position.Column}
	}
	return position{1, 1}
}

// fields returns a struct's fields by their keys, those of inlined structs
// among them.
func fields(v reflect.Value) map[string]reflect.Value {
	m := map[string]reflect.Value{}
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch {
		case !v.Type().Field(i).IsExported():
		case options == "inline":
			for k, f := range fields(v.Field(i)) {
				m[k] = f
			}
		default:
			m[name] = v.Field(i)
		}
	}
	return m
}
