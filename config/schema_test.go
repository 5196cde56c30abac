package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/identity"
)

// TestSchema keeps schema.json equal to what the structs and the validation say.
func TestSchema(t *testing.T) {
	want := writeSchema(t)
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(want), string(Schema)); d != "" {
		t.Errorf("schema.json is not what the structs say; go test ./config -rewrite (-structs +file):\n%s", d)
	}
}

// A schema has the keywords that are used, in the order in which they are read best.
type schema struct {
	Schema      string     `json:"$schema,omitempty"`
	Title       string     `json:"title,omitempty"`
	Description string     `json:"description,omitempty"`
	Type        any        `json:"type,omitempty"` // a name, or several
	Enum        []any      `json:"enum,omitempty"`
	Const       any        `json:"const,omitempty"`
	Default     any        `json:"default,omitempty"`
	Deprecated  bool       `json:"deprecated,omitempty"`
	Pattern     string     `json:"pattern,omitempty"`
	Minimum     *int64     `json:"minimum,omitempty"`
	Maximum     *int64     `json:"maximum,omitempty"`
	AnyOf       []*schema  `json:"anyOf,omitempty"`
	MinItems    int        `json:"minItems,omitempty"`
	MaxItems    int        `json:"maxItems,omitempty"`
	Items       *schema    `json:"items,omitempty"`
	Properties  properties `json:"properties,omitempty"`
	Closed      *bool      `json:"additionalProperties,omitempty"`
	Required    []string   `json:"required,omitempty"`
	AllOf       []*schema  `json:"allOf,omitempty"`
	If          *schema    `json:"if,omitempty"`
	Then        *schema    `json:"then,omitempty"`
}

// properties keep the order of the struct.
type properties []property

type property struct {
	key string
	*schema
}

func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, f := range p {
		v, err := encoded(f.schema)
		if err != nil {
			return nil, err
		}
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		fmt.Fprintf(&b, "%q:%s", f.key, v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encoded leaves <, > and & readable.
func encoded(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// Patterns of the values that are written as texts, in what ECMA 262 and Go have in
// common.
const (
	plain           = `(0|[1-9][0-9]*)`
	percentage      = `0*(100(\.0*)?|[0-9]{1,2}(\.[0-9]*)?|\.[0-9]+) *%`
	durationPattern = `^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
	bytesPattern    = `^` + plain + ` *([KMG]i)?B?$`
	quantityPattern = `^(` + plain + `|` + percentage + `)$`
	sharePattern    = `^(0(\.[0-9]*)?|\.[0-9]+|1(\.0*)?|` + percentage + `)$`
	namePattern     = `^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`
	addressPattern  = `:(0|[1-9][0-9]{0,4})$`
	momentPattern   = `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$`
	hashPattern     = `^sha256:[0-9A-Fa-f]{64}$`
)

// patterns are those of single fields.
var patterns = map[string]string{
	"config.Config.Listen":       addressPattern,
	"config.Admin.Listen":        addressPattern,
	"config.Engine.URL":          `^https?://[^/?#]`,
	"config.OTLP.Endpoint":       `^https?://[^/?#]`,
	"config.OTLP.HeadersEnv":     `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"config.Forward.Address":     `^https?://[^/?#]`,
	"config.Forward.SecretEnv":   `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"config.Audit.PostgresEnv":   `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"config.Batch.PostgresEnv":   `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"config.Control.PasswordEnv": `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"config.Hook.URL":            `^https?://[^/?#]`,
	"config.Hook.KeyEnv":         `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"config.Engine.APIKeyEnv":    `^[A-Za-z_][A-Za-z0-9_]{0,127}$`,
	"identity.Key.Hash":          hashPattern,
	"identity.OldKey.Hash":       hashPattern,
	"identity.AdminKey.Hash":     hashPattern,
	"identity.Key.Expires":       momentPattern,
	"identity.OldKey.Until":      momentPattern,
	"identity.AdminKey.Expires":  momentPattern,
	"identity.Rule.Tenant":       `^[A-Za-z0-9._-]*(\{[^{}]+\})?[A-Za-z0-9._-]*$`,
	"identity.Issuer.JWKSURL":    `^https?://[^/?#]`,
}

// conditions are the rules between the keys of one struct that say that something is
// missing: an editor can ask for it.
var conditions = map[string][]*schema{
	"config.Engine":  {requires("kind", KindOpenAI, "slots", "kv_tokens")},
	"config.Control": {requires("store", StoreEtcd, "endpoints")},
	"config.Class":   {requires("reclaim", ReclaimDeadline, "deadline"), requires("guarantee", GuaranteeWindow, "window")},
	"config.Config":  {{AnyOf: []*schema{{Required: []string{"keys"}}, {Required: []string{"keys_file"}}, {Required: []string{"rules"}}, {Required: []string{"anonymous"}}}}},
}

func requires(key, value string, others ...string) *schema {
	return &schema{
		If:   &schema{Properties: properties{{key, &schema{Const: value}}}, Required: []string{key}},
		Then: &schema{Required: others},
	}
}

// everything is a good file that has each optional part once.
const everything = `otlp: {endpoint: "http://h:4318", headers_env: H}
estimates: {file: f}
console: {reports: r}
control: {store: etcd, endpoints: ["https://h:2379"], replica: r, replicas: 2, username: u, password_env: P, tls: {ca: a, cert: c, key: k}, forward: {address: "https://h:1", secret_env: S, ca: a}}
batch: {dir: d}
limits:
  tenants: [{name: t, requests: {limit: 1}, tokens: {limit: 1}, balance: {}}]
  other_tenants: {requests: {limit: 1}, tokens: {limit: 1}}
  others_together: {requests: {limit: 1}, tokens: {limit: 1}}
  balance_file: b
tls: {cert: c, key: k, client_ca: a, client_auth: require}
audit: {file: f, source: s}
keys: [{name: k, tenant: t, hash: "sha256:%064d", classes: [interactive, batch], default: batch, expires: "2027-01-31T00:00:00Z", models: {allow: [m], deny: [m]}, old: {hash: "sha256:0000000000000000000000000000000000000000000000000000000000000001", until: "2027-01-31T00:00:00Z"}}]
keys_file: f
admin: {tls: {cert: c, key: k, client_ca: a, client_auth: request}, keys: [{name: o, hash: "sha256:0000000000000000000000000000000000000000000000000000000000000002"}]}
issuers: [{name: i, issuer: "https://h", jwks_url: "https://h", audiences: [a], algorithms: [RS256]}]
certificates: {names: [uri]}
rules: [{name: r, from: [i, certificate], subjects: [s], applications: [a], claims: [{name: c, any: [v]}], tenant: t, classes: [interactive, batch]}]
anonymous: {classes: [interactive], default: interactive}
service_tiers: {flex: batch, priority: interactive}
pools:
  - name: p
    models: [m]
    aliases: [{name: a, model: m}]
    engines: [{name: e, kind: vllm, url: "https://h", api_key_env: K, tls: {ca: a, cert: c, key: k, server_name: n}}]
    control: {survival: {slots: 1, kv_tokens: 512}, unit: {kv_tokens: 512}}
    classes:
      - {name: interactive, floor: {slots: 1}}
      - {name: batch, floor: {slots: 1}}
`

// replanned is a good pool with a replan, which there is none of in a fleet.
const replanned = `anonymous: {classes: [interactive]}
pools:
  - name: p
    engines: [{name: e, kind: vllm, url: "http://h"}]
    classes: [{name: interactive, floor: {slots: 1}}]
    replan:
      home: a
      profiles:
        - {name: a, slots: 1, kv_tokens: 1000000000000, max_context: 1000000000000, switch: {url: "http://h", key_env: K}}
        - {name: b, slots: 1, kv_tokens: 2, max_context: 2, switch: {command: [c]}}
`

// schemaWriter asks the validation what it allows: it sets one value of a good
// configuration at a time and looks for what is said at its path. So no bound and no
// list of names stands a second time here.
type schemaWriter struct {
	t        *testing.T
	comments map[string]string // package.Type.Field, or package.Type
	c        *Config
	// replanned is asked of replan, with which engines are allowed other figures.
	replanned *Config
}

func writeSchema(t *testing.T) []byte {
	c, problems := Parse("everything.yaml", fmt.Appendf(nil, everything, 0))
	if c == nil {
		t.Fatal(problems)
	}
	r, problems := Parse("replanned.yaml", []byte(replanned))
	if r == nil {
		t.Fatal(problems)
	}
	dirs := []string{".", "../certs", "../identity", "../journal", "../telemetry"}
	w := schemaWriter{t: t, c: c, replanned: r, comments: fieldComments(t, dirs...)}
	typeComments(t, w.comments, dirs...)
	s := w.object(reflect.ValueOf(c).Elem(), "")
	s.Schema, s.Title = "https://json-schema.org/draft/2020-12/schema", "Headgate configuration"
	raw, err := encoded(s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// said returns what the validation says at path while v is x. What a file may say that
// has no fleet is not asked of it.
func (w *schemaWriter) said(path string, v, x reflect.Value) []string {
	old := reflect.New(v.Type()).Elem()
	old.Set(v)
	defer v.Set(old)
	v.Set(x)
	l := &list{src: w.c.src}
	w.c.validate(l)
	var texts []string
	for _, p := range l.problems {
		if p.Path == path && !p.Warning && !strings.Contains(p.Text, inFleet) {
			_, allowed, _ := strings.Cut(p.Text, ": allowed ")
			texts = append(texts, allowed)
		}
	}
	return texts
}

func (w *schemaWriter) refuses(path string, v, x reflect.Value) bool {
	return len(w.said(path, v, x)) > 0
}

func (w *schemaWriter) object(v reflect.Value, path string) *schema {
	closed, name := false, typeName(v.Type())
	s := &schema{Type: "object", Description: sentence(w.comments[name], v.Type().Name()), Closed: &closed, AllOf: conditions[name]}
	defaults := reflect.New(v.Type()).Elem()
	setDefaults(defaults)
	w.fields(s, v, defaults, path)
	return s
}

func (w schemaWriter) fields(s *schema, v, defaults reflect.Value, path string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported():
			continue
		case options == "inline":
			w.fields(s, v.Field(i), defaults.Field(i), path)
			continue
		}
		at := strings.TrimPrefix(path+"."+key, ".")
		name := typeName(v.Type()) + "." + f.Name
		inner, of := w, v.Field(i)
		if at == "pools[0].replan" {
			inner.c = w.replanned
			of = reflect.ValueOf(&w.replanned.Pools[0].Replan).Elem()
		}
		p := inner.value(of, at, name)
		if text := w.comments[name]; text != "" {
			p.Description = described(text, f, strings.ReplaceAll(at, "[0]", "[]"))
		}
		if p.Description == "" {
			w.t.Errorf("%s has no comment", name)
		}
		p.Deprecated = f.Tag.Get("deprecated") != ""
		if zero := reflect.Zero(f.Type); defaults.Field(i).IsZero() && w.refuses(at, v.Field(i), zero) {
			s.Required = append(s.Required, key)
		} else {
			p.nullable()
			p.Default = written(defaults.Field(i), options != "")
		}
		s.Properties = append(s.Properties, property{key, p})
	}
}

// nullable: a key without a value is one that was not given.
func (s *schema) nullable() {
	switch {
	case len(s.AnyOf) > 0:
		s.AnyOf = append(s.AnyOf, &schema{Type: "null"})
	default:
		s.Type = []any{s.Type, "null"}
		if len(s.Enum) > 0 {
			s.Enum = append(s.Enum, nil)
		}
	}
}

// written is a default as a file would say it.
func written(v reflect.Value, optional bool) any {
	if v.Kind() == reflect.Struct || v.Kind() == reflect.Slice || v.Kind() == reflect.Pointer || optional && v.IsZero() {
		return nil
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return formatDuration(x)
	case fmt.Stringer:
		return x.String()
	case string:
		if x == "" {
			return nil
		}
	}
	return v.Interface()
}

func (w *schemaWriter) value(v reflect.Value, path, name string) *schema {
	switch v.Interface().(type) {
	case Bytes:
		n := w.integer(v, path)
		return &schema{AnyOf: []*schema{n, {Type: "string", Pattern: bytesPattern}}}
	case Quantity:
		return &schema{AnyOf: []*schema{{Type: "integer", Minimum: new(int64)}, {Type: "string", Pattern: quantityPattern}}}
	case Share:
		one := int64(1)
		return &schema{AnyOf: []*schema{{Type: "number", Minimum: new(int64), Maximum: &one}, {Type: "string", Pattern: sharePattern}}}
	case time.Duration:
		text := &schema{Type: "string", Pattern: durationPattern}
		if w.refuses(path, v, reflect.Zero(v.Type())) {
			return text
		}
		return &schema{AnyOf: []*schema{text, {Const: 0}}}
	}
	switch v.Kind() {
	case reflect.Struct:
		return w.object(v, path)
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return w.value(v.Elem(), path, name)
	case reflect.Slice:
		return w.array(v, path, name)
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.String:
		return w.text(v, path, name)
	}
	return w.integer(v, path)
}

// text has a name's pattern, or the names that are allowed, where the validation says
// so.
func (w *schemaWriter) text(v reflect.Value, path, name string) *schema {
	s := &schema{Type: "string", Pattern: patterns[name]}
	for _, allowed := range w.said(path, v, reflect.ValueOf("?").Convert(v.Type())) {
		if allowed == identity.NameRule {
			s.Pattern = namePattern
		}
		words := strings.Split(strings.ReplaceAll(allowed, " or ", ", "), ", ")
		if slices.ContainsFunc(words, func(word string) bool { return w.refuses(path, v, reflect.ValueOf(word).Convert(v.Type())) }) {
			continue // it was a sentence
		}
		for _, word := range words {
			s.Enum = append(s.Enum, word)
		}
	}
	if s.Pattern != "" && !w.refuses(path, v, reflect.Zero(v.Type())) {
		s.Pattern = "^$|" + s.Pattern
	}
	return s
}

// integer searches the bounds of what is allowed about the value that v has.
func (w *schemaWriter) integer(v reflect.Value, path string) *schema {
	have, most := v.Int(), int64(1)<<min(v.Type().Bits()-1, 53)-1 // beyond 53 bits JSON's numbers are not exact
	allowed := func(x int64) bool { return !w.refuses(path, v, reflect.ValueOf(x).Convert(v.Type())) }
	if !allowed(have) {
		w.t.Fatalf("%s: %d is not allowed", path, have)
	}
	s := &schema{Type: "integer"}
	for _, side := range []struct {
		bound **int64
		end   int64
	}{{&s.Minimum, -most}, {&s.Maximum, most}} {
		good, bad := have, side.end
		if allowed(bad) {
			continue
		}
		for good-bad > 1 || bad-good > 1 {
			if middle := bad + (good-bad)/2; allowed(middle) {
				good = middle
			} else {
				bad = middle
			}
		}
		*side.bound = &good
	}
	return s
}

// longest is how many entries of a list are tried.
const longest = 4096

func (w *schemaWriter) array(v reflect.Value, path, name string) *schema {
	s := &schema{Type: "array"}
	if v.Len() == 0 {
		e := reflect.New(v.Type().Elem()).Elem()
		if e.Kind() == reflect.Struct {
			setDefaults(e)
		}
		v.Set(reflect.Append(v, e))
	}
	if w.refuses(path, v, reflect.MakeSlice(v.Type(), 0, 0)) {
		s.MinItems = 1
	}
	refused := func(n int) bool {
		many := reflect.MakeSlice(v.Type(), n, n)
		for i := range n {
			many.Index(i).Set(v.Index(0))
		}
		return w.refuses(path, v, many)
	}
	good, bad := v.Len(), 2*v.Len()
	for ; bad <= longest && !refused(bad); bad *= 2 {
		good = bad
	}
	if bad <= longest {
		for bad-good > 1 {
			if middle := (good + bad) / 2; refused(middle) {
				bad = middle
			} else {
				good = middle
			}
		}
		s.MaxItems = good
	}
	s.Items = w.value(v.Index(0), path+"[0]", name)
	s.Items.Description = "" // the list has it
	return s
}

func typeName(t reflect.Type) string { return filepath.Base(t.PkgPath()) + "." + t.Name() }

// typeComments adds the comments of the structs themselves.
func typeComments(t *testing.T, all map[string]string, dirs ...string) {
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && len(g.Specs) == 1 {
					all[f.Name.Name+"."+g.Specs[0].(*ast.TypeSpec).Name.Name] = strings.Join(strings.Fields(g.Doc.Text()), " ")
				}
			}
		}
	}
}
