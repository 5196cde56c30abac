package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"headgate/identity"
)

// ShowYAML is Effective with a comment behind each value that says where it comes
// from: its line of the file, default, or derived from other values of the file.
func ShowYAML(c *Config) ([]byte, error) {
	s, err := c.shown()
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(s.text), "\n")
	comments := make([]string, len(lines))
	width := 0
	s.scalars(s.root, "", func(n ast.ScalarNode, path string) {
		// Behind a text of several lines it stands at the first, where its sign is.
		i := n.GetToken().Position.Line - 1
		comments[i] = s.origin(path, "line ")
		if w := utf8.RuneCountInString(lines[i]); w <= commentColumn {
			width = max(width, w)
		}
	})
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s in effect, and where each value comes from.\n", show(s.src.file))
	for i, line := range lines {
		if comments[i] != "" {
			line = fmt.Sprintf("%-*s # %s\n", width, strings.TrimSuffix(line, "\n"), comments[i])
		}
		out.WriteString(line)
	}
	return out.Bytes(), nil
}

// commentColumn is how far to the right a long value may move the comments of all.
const commentColumn = 48

// ShowJSON is the same as a JSON object: file, effective, and provenance, which has
// the keys of effective with file:line, default or derived for each value.
func ShowJSON(c *Config) ([]byte, error) {
	return c.showJSON(nil, func(string) bool { return false })
}

// ShowSafe is ShowJSON for whoever may read the admin listener: no hash of a key, and
// nothing else that its type has not shown, is in it. Values at the paths of origins come
// from there and not from the file.
func ShowSafe(c *Config, origins map[string]string) ([]byte, error) {
	return c.showJSON(origins, func(path string) bool { return secrets[indices.ReplaceAllString(path, "[]")] })
}

func (c *Config) showJSON(origins map[string]string, secret func(path string) bool) ([]byte, error) {
	s, err := c.shown()
	if err != nil {
		return nil, err
	}
	object := struct {
		File       string          `json:"file"`
		Effective  json.RawMessage `json:"effective"`
		Provenance json.RawMessage `json:"provenance"`
	}{File: s.src.file}
	object.Effective = s.json(s.root, "", func(n ast.ScalarNode, path string) any {
		if secret(path) {
			return identity.Redacted
		}
		if block, ok := n.(*ast.LiteralNode); ok { // whose value is as it is written
			return block.Value.Value
		}
		return n.GetValue()
	})
	object.Provenance = s.json(s.root, "", func(_ ast.ScalarNode, path string) any {
		if other, ok := origins[path]; ok {
			return other
		}
		return s.origin(path, s.src.file+":")
	})
	out, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return append(out, '\n'), nil
}

// shown is a configuration on its way to be printed.
type shown struct {
	src     *source
	text    []byte   // as Effective prints it
	root    ast.Node // of text
	derived map[string]bool
}

func (c *Config) shown() (*shown, error) {
	text, err := Effective(c)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("read what is printed of the configuration: %w", err)
	}
	s := &shown{src: c.src, text: text, root: file.Docs[0].Body, derived: map[string]bool{}}
	walk(c, c.filled(), func(at spot, _, worked string) {
		s.derived[at.path] = worked != "0" // which is the default of an amount
	})
	return s, nil
}

// origin is where the value at path comes from; file stands before a line.
func (s *shown) origin(path, file string) string {
	switch at, said := s.src.at[path]; {
	case said:
		return file + strconv.Itoa(at.line)
	case s.derived[path]:
		return "derived"
	}
	return "default"
}

// scalars visits the values of a tree, with their paths.
func (s *shown) scalars(n ast.Node, path string, visit func(n ast.ScalarNode, path string)) {
	s.json(n, path, func(n ast.ScalarNode, path string) any {
		visit(n, path)
		return nil
	})
}

// json writes a tree in its order, with what value makes of each scalar.
func (s *shown) json(n ast.Node, path string, value func(n ast.ScalarNode, path string) any) []byte {
	var b bytes.Buffer
	switch t := n.(type) {
	case ast.MapNode:
		b.WriteByte('{')
		for it := t.MapRange(); it.Next(); {
			if b.Len() > 1 {
				b.WriteByte(',')
			}
			key := it.Key().GetToken().Value
			fmt.Fprintf(&b, "%q:%s", key, s.json(it.Value(), strings.TrimPrefix(path+"."+key, "."), value))
		}
		b.WriteByte('}')
	case *ast.SequenceNode:
		b.WriteByte('[')
		for i, item := range t.Values {
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(s.json(item, fmt.Sprintf("%s[%d]", path, i), value))
		}
		b.WriteByte(']')
	case ast.ScalarNode:
		text, err := json.Marshal(value(t, path))
		if err != nil { // numbers, texts and true are what is printed
			panic(fmt.Sprintf("config: %s can't be JSON: %v", path, err))
		}
		b.Write(text)
	}
	return b.Bytes()
}

// hidden tells whether a field's values are not to be shown, as its type says.
func hidden(f reflect.StructField) bool { return f.Tag.Get("show") == "redacted" }

// secrets are the settings, such as keys[].hash, whose values are not to be shown; of a
// list also each of its entries.
var secrets = secretsOf(reflect.TypeFor[Config](), "")

// indices are what a path has and a setting has not.
var indices = regexp.MustCompile(`\[[0-9]+\]`)

func secretsOf(t reflect.Type, at string) map[string]bool {
	all := map[string]bool{}
	switch t.Kind() {
	case reflect.Pointer:
		maps.Copy(all, secretsOf(t.Elem(), at))
	case reflect.Slice:
		maps.Copy(all, secretsOf(t.Elem(), at+"[]"))
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			path := strings.TrimPrefix(at+"."+key, ".")
			switch {
			case !f.IsExported():
			case options == "inline":
				maps.Copy(all, secretsOf(f.Type, at))
			case hidden(f):
				all[path], all[path+"[]"] = true, true
			default:
				maps.Copy(all, secretsOf(f.Type, path))
			}
		}
	}
	return all
}
