package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. The parser's time and memory grow with the square of the
// number of tokens and of their nesting.
const (
	maxFile    = 512 << 10 // bytes
	maxTokens  = 50_000
	maxNesting = 16
)

// Load reads and checks the file at path, and the file of keys that it names. Problems are sorted by line; with
// any that is not a warning the Config is nil. The error is that the file
// could not be read.
func Load(path string) (*Config, []Problem, error) {
	data, err := read("configuration", path)
	if err != nil {
		return nil, nil, err
	}
	c, problems := Parse(path, data)
	if c == nil || c.Identity.KeysFile == "" {
		return c, problems, nil
	}
	more, err := c.readKeys()
	if err != nil {
		return nil, problems, err
	}
	if problems = append(problems, more...); Errors(problems) > 0 {
		return nil, problems, nil
	}
	return c, problems, nil
}

// Parse checks a configuration; name is what problems call the file. Problems
// are as Load's.
func Parse(name string, data []byte) (*Config, []Problem) {
	c := &Config{}
	var problems []Problem
	if c.src, problems = fill(name, data, c); Errors(problems) > 0 {
		return nil, c.newer(problems)
	}
	return c, problems
}

// PolicyFile is a policy in a file of its own.
type PolicyFile struct {
	Policy `yaml:",inline"`

	src *source
}

// LoadPolicy is Load for a policy in a file of its own, with the keys that a
// pool has for it.
func LoadPolicy(path string) (*PolicyFile, []Problem, error) {
	data, err := read("policy", path)
	if err != nil {
		return nil, nil, err
	}
	p, problems := ParsePolicy(path, data)
	return p, problems, nil
}

// ParsePolicy is Parse for it.
func ParsePolicy(name string, data []byte) (*PolicyFile, []Problem) {
	p := &PolicyFile{}
	var problems []Problem
	if p.src, problems = fill(name, data, p); Errors(problems) > 0 {
		return nil, problems
	}
	return p, problems
}

// validate checks what can be said without an engine.
func (p *PolicyFile) validate(l *list) {
	if errors := Errors(l.problems); p.Policy.validate(l, "") == errors && len(p.Classes) <= maxClasses {
		p.check("", Envelope{}, l)
	}
}

func read(what, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", what, path, err)
	}
	return data, nil
}

// fill fills root, a pointer to a struct, with its defaults and what the file
// says, and checks it. Problems are sorted by line.
func fill(name string, data []byte, root interface{ validate(*list) }) (*source, []Problem) {
	src := &source{file: name, at: map[string]position{}}
	d := decoder{list: list{src: src}, anchors: map[string]ast.Node{}}
	if body, ok := d.parse(data); ok {
		setDefaults(reflect.ValueOf(root).Elem())
		d.value(body, reflect.ValueOf(root).Elem(), "")
		d.deprecations()
		// A value that could not be read has its default now; it is not blamed
		// for what that does.
		rules := list{src: src}
		root.validate(&rules)
		for _, p := range rules.problems {
			if !d.excuses(p.Path) {
				d.problems = append(d.problems, p)
			}
		}
	}
	sortProblems(d.problems)
	return src, d.problems
}

// parse returns the one document of a file.
func (d *decoder) parse(data []byte) (ast.Node, bool) {
	if len(data) > maxFile {
		d.at(position{1, 1}, "", fmt.Sprintf("the file is longer than the allowed %d bytes", maxFile))
		return nil, false
	}
	tokens := lexer.Tokenize(string(data))
	if !d.bounded(tokens) {
		return nil, false
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at, text := position{1, 1}, err.Error()
		var y yaml.Error
		if errors.As(err, &y) {
			text = y.GetMessage()
			if tk := y.GetToken(); tk != nil && tk.Position != nil {
				at = position{tk.Position.Line, tk.Position.Column}
			}
		}
		d.at(at, "", "not YAML: "+text)
		return nil, false
	}
	if len(file.Docs) > 1 {
		d.at(place(file.Docs[1].Body), "", "a second document: allowed is one in a file")
		return nil, false
	}
	if len(file.Docs) == 0 {
		return nil, true
	}
	return file.Docs[0].Body, true
}

// bounded refuses what would keep the parser busy.
func (d *decoder) bounded(tokens token.Tokens) bool {
	if len(tokens) > maxTokens {
		d.at(position{1, 1}, "", fmt.Sprintf("the file has %d words and signs: allowed are %d", len(tokens), maxTokens))
		return false
	}
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType:
			dashes++
		}
		if flow > maxNesting || dashes > maxNesting {
			d.at(position{t.Position.Line, t.Position.Column}, "", fmt.Sprintf("nested deeper than the allowed %d", maxNesting))
			return false
		}
	}
	return true
}
