package gateway

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"headgate/admission"
	"headgate/batch"
	"headgate/console"
	"headgate/console/now"
	"headgate/control/agent"
	"headgate/pagetest"
	"headgate/relay"
	"headgate/wire"
)

var rewrite = flag.Bool("rewrite", false, "write what is made from the code into docs/openapi.yaml")

const (
	openapiFile  = "../docs/openapi.yaml"
	schemasBegin = "    # From the code, by go test ./gateway -run TestOpenAPI -rewrite.\n"
	schemasEnd   = "    # End.\n"
)

// shapes are what handlers answer with; the types in them come with them.
var shapes = []any{
	fileJSON{}, batchJSON{}, modelJSON{},
	now.Session{}, now.Now{}, now.Traffic{}, now.Recall{}, SwitchView{}, ObserveView{}, relay.PlanView{}, BatchTenantView{}, LimitsView{}, GrantsView{}, agent.Event{},
	PoolView{}, relay.EngineView{},
	JobsView{}, JobView{}, SettingsView{}, CheckView{}, ReportsView{}, WhatIfOffer{}, WhatIf{}, WhatIfView{},
}

// document is docs/openapi.yaml as far as tests look into it.
type document struct {
	Paths      map[string]map[string]any `json:"paths"`
	Components struct {
		Parameters map[string]struct {
			Name string `json:"name"`
			In   string `json:"in"`
		} `json:"parameters"`
		Headers map[string]any `json:"headers"`
	} `json:"components"`
}

func readOpenAPI(t *testing.T) (doc *document, whole any) {
	t.Helper()
	text, err := os.ReadFile(openapiFile)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(asJSON, &doc); err != nil {
		t.Fatal(err)
	}
	if whole, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON)); err != nil {
		t.Fatal(err)
	}
	return doc, whole
}

// TestOpenAPISchemas keeps the schemas of what handlers answer with equal to their types.
func TestOpenAPISchemas(t *testing.T) {
	pagetest.Part{File: openapiFile, Begin: schemasBegin, End: schemasEnd}.Keep(t, writeSchemas(t), *rewrite)
}

// TestOpenAPIValid: the document is one of OpenAPI 3.1 by that one's own schema, and each
// reference in it leads to something.
func TestOpenAPIValid(t *testing.T) {
	_, whole := readOpenAPI(t)
	c := jsonschema.NewCompiler()
	schema, err := os.ReadFile("testdata/openapi/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddResource("openapi.json", parsed); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(whole); err != nil {
		t.Errorf("%#v", err)
	}
	refs := 0
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case []any:
			for i, e := range v {
				walk(fmt.Sprintf("%s/%d", at, i), e)
			}
		case map[string]any:
			for k, e := range v {
				walk(at+"/"+k, e)
			}
			ref, ok := v["$ref"].(string)
			if !ok {
				return
			}
			refs++
			to := whole
			for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
				m, _ := to.(map[string]any)
				to = m[part]
			}
			if to == nil {
				t.Errorf("%s: there is no %s", at, ref)
			}
		}
	}
	walk("", whole)
	if refs < 100 {
		t.Errorf("%d references were found", refs)
	}
	// What a schema says of values is checked too: each is one of JSON Schema's.
	for name := range whole.(map[string]any)["components"].(map[string]any)["schemas"].(map[string]any) {
		c := jsonschema.NewCompiler()
		if err := c.AddResource("doc.json", whole); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compile("doc.json#/components/schemas/" + name); err != nil {
			t.Errorf("schema %s: %v", name, err)
		}
	}
	// What handlers have answered in other tests fits.
	for golden, path := range map[string]string{
		"now": "~1api~1now", "now_without_engine": "~1api~1now", "traffic": "~1api~1traffic",
		"recalls": "~1api~1recalls", "admission": "~1debug~1admission", "engines": "~1debug~1engines", "jobs": "~1api~1batches~1jobs",
	} {
		c := jsonschema.NewCompiler()
		if err := c.AddResource("doc.json", whole); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile("doc.json#/paths/" + path + "/get/responses/200/content/application~1json/schema")
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("testdata/" + golden + ".json")
		if err != nil {
			t.Fatal(err)
		}
		answer, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(answer); err != nil {
			t.Errorf("testdata/%s.json: %v", golden, err)
		}
	}
}

var braces = regexp.MustCompile(`\{[^}]*\}`)

// methods are the names that a path of the document may have for its operations.
var methods = []string{"get", "put", "post", "delete", "options", "head", "patch", "trace"}

// TestOpenAPIAdmin: the document has each route of the admin listener, and no other.
func TestOpenAPIAdmin(t *testing.T) {
	doc, _ := readOpenAPI(t)
	registered := map[string]bool{}
	for _, pattern := range adminPatterns(t) {
		method, path, _ := strings.Cut(pattern, " ")
		if strings.HasSuffix(path, "/") {
			path += "{rest}"
		}
		registered[method+" "+braces.ReplaceAllString(path, "{}")] = true
	}
	if len(registered) < 20 {
		t.Fatalf("%d routes were found", len(registered))
	}
	documented := map[string]bool{}
	for path, item := range doc.Paths {
		if _, admin := item["servers"]; !admin {
			continue
		}
		for _, method := range methods {
			if _, ok := item[method]; ok {
				documented[strings.ToUpper(method)+" "+braces.ReplaceAllString(path, "{}")] = true
			}
		}
	}
	if d := cmp.Diff(registered, documented); d != "" {
		t.Errorf("routes of the admin listener (-code +%s):\n%s", openapiFile, d)
	}
}

// TestOpenAPIRoutes: the document has each route and method of the data plane, and each that
// it has is one.
func TestOpenAPIRoutes(t *testing.T) {
	doc, _ := readOpenAPI(t)
	g := &Gateway{cfg: Config{Batches: &batch.Service{}}}
	documented := map[string]map[string]bool{} // by route
	for path, item := range doc.Paths {
		if _, admin := item["servers"]; admin {
			continue
		}
		rt, ok := g.find(&url.URL{Path: braces.ReplaceAllString(path, "x")})
		if !ok {
			t.Errorf("%s is no route", path)
			continue
		}
		if documented[rt.name] == nil {
			documented[rt.name] = map[string]bool{}
		}
		for _, method := range methods {
			if _, has := item[method]; !has {
				continue
			}
			if !rt.takes(strings.ToUpper(method)) {
				t.Errorf("%s does not take %s, but %s", path, strings.ToUpper(method), rt.allow)
			}
			documented[rt.name][strings.ToUpper(method)] = true
		}
	}
	all := slices.Collect(maps.Values(routes))
	for _, name := range routeNames(t) {
		if i := slices.IndexFunc(all, func(rt route) bool { return rt.name == name.name }); i < 0 {
			all = append(all, name)
		}
	}
	if len(all) < 15 {
		t.Errorf("%d routes were found", len(all))
	}
	for _, rt := range all {
		if documented[rt.name] == nil {
			t.Errorf("%s has no path of route %s", openapiFile, rt.name)
			continue
		}
		for method := range strings.SplitSeq(rt.allow, ", ") {
			if method != http.MethodHead && method != "" && !documented[rt.name][method] {
				t.Errorf("%s has no %s of route %s", openapiFile, method, rt.name)
			}
		}
	}
}

// headerName are headers with names of our own, or of those whose APIs are spoken. One that
// ends in - is the begin of several.
var headerName = regexp.MustCompile(`^((Headgate|X|Anthropic)-[A-Z][A-Za-z-]*|(Www-|WWW-)?Authenticate|Authorization|Retry-After|[Rr]etry-[Aa]fter-[Mm]s|Request-Id|Traceparent)$`)

// TestHeaders: docs/headers.md has each header that the data plane and the admin listener
// read or set, and each of its rows is one; and so has the document, of our own.
func TestHeaders(t *testing.T) {
	used := map[string]bool{}
	for _, dir := range []string{".", "../identity", "../wire", "../wire/anthropic"} {
		inspect(t, dir, func(n ast.Node) {
			if text, ok := literal(n); ok && headerName.MatchString(text) {
				used[http.CanonicalHeaderKey(text)] = true
			}
		})
	}
	page, err := os.ReadFile("../docs/headers.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?`) \\| ").FindAllStringSubmatch(string(page), -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			shown[m[1]] = true
		}
	}
	fits := func(used, shown string) bool {
		return used == shown || strings.HasSuffix(used, "-") && strings.HasPrefix(shown, used)
	}
	for u := range used {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(shown)), func(s string) bool { return fits(u, s) }) {
			t.Errorf("docs/headers.md has no %s", u)
		}
	}
	for s := range shown {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(used)), func(u string) bool { return fits(u, s) }) {
			t.Errorf("docs/headers.md has %s, which nothing reads or sets", s)
		}
	}
	doc, _ := readOpenAPI(t)
	inDocument := map[string]bool{headerForwarded: true} // between replicas: in no API
	for name := range doc.Components.Headers {
		inDocument[name] = true
	}
	for _, p := range doc.Components.Parameters {
		if p.In == "header" {
			inDocument[p.Name] = true
		}
	}
	for name := range inDocument {
		if !used[name] {
			t.Errorf("%s has %s, which nothing reads or sets", openapiFile, name)
		}
	}
	for name := range used {
		if (strings.HasPrefix(name, "Headgate-") || strings.HasPrefix(name, "X-Slo-")) && !inDocument[name] {
			t.Errorf("%s has no %s", openapiFile, name)
		}
	}
}

// inspect shows the syntax of a package without its tests.
func inspect(t *testing.T, dir string, see func(ast.Node)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			see(n)
			return true
		})
	}
}

func literal(n ast.Node) (string, bool) {
	l, ok := n.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// constants are the strings that this package's source gives names to, and those of other
// packages that its routes are made with.
func constants(t *testing.T) map[string][]string {
	all := map[string][]string{"console.Path": {console.Path}}
	inspect(t, ".", func(n ast.Node) {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if text, ok := literal(v); ok {
					all[n.Names[i].Name] = []string{text}
				}
			}
		case *ast.RangeStmt: // over a map that is written out: its keys
			key, ok := n.Key.(*ast.Ident)
			over, ok2 := n.X.(*ast.CompositeLit)
			if !ok || !ok2 {
				return
			}
			for _, e := range over.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if text, ok := literal(kv.Key); ok {
						all[key.Name] = append(all[key.Name], text)
					}
				}
			}
		}
	})
	return all
}

// adminPatterns are those that the source registers, since a ServeMux does not tell them.
func adminPatterns(t *testing.T) []string {
	names := constants(t)
	var values func(ast.Expr) []string
	values = func(e ast.Expr) []string {
		switch e := e.(type) {
		case *ast.BasicLit:
			text, _ := literal(e)
			return []string{text}
		case *ast.Ident:
			return names[e.Name]
		case *ast.SelectorExpr:
			if p, ok := e.X.(*ast.Ident); ok {
				return names[p.Name+"."+e.Sel.Name]
			}
		case *ast.BinaryExpr:
			var all []string
			for _, x := range values(e.X) {
				for _, y := range values(e.Y) {
					all = append(all, x+y)
				}
			}
			return all
		}
		return nil
	}
	var all []string
	inspect(t, ".", func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || len(call.Args) != 2 || f.Sel.Name != "Handle" && f.Sel.Name != "HandleFunc" {
			return
		}
		patterns := values(call.Args[0])
		if len(patterns) == 0 {
			t.Errorf("a route's pattern can't be read from the source: make it of literals and constants of this package")
		}
		all = append(all, patterns...)
	})
	return all
}

// routeNames are the routes that the source has outside of the table, by name; the methods
// are those of package variables only.
func routeNames(t *testing.T) []route {
	all := []route{modelRoute, storedRoute, fileRoute, contentRoute, batchRoute, cancelRoute, resultsRoute}
	inspect(t, ".", func(n ast.Node) {
		c, ok := n.(*ast.CompositeLit)
		if !ok || len(c.Elts) != 3 {
			return
		}
		if kind, ok := c.Type.(*ast.Ident); !ok || kind.Name != "route" {
			return
		}
		name, ok := literal(c.Elts[0])
		if ok && !slices.ContainsFunc(all, func(rt route) bool { return rt.name == name }) {
			all = append(all, route{name: name})
		}
	})
	for i := range all {
		if rt, ok := findBatch("/v1/" + all[i].name); ok {
			all[i] = rt
		}
	}
	return all
}

// schemaWriter writes types as schemas, each once.
type schemaWriter struct {
	t        *testing.T
	names    map[reflect.Type]string
	taken    map[string]reflect.Type
	queue    []reflect.Type
	comments map[string]map[string]string // by package's path: Type.Field
}

func writeSchemas(t *testing.T) string {
	w := &schemaWriter{t: t, names: map[reflect.Type]string{}, taken: map[string]reflect.Type{}, comments: map[string]map[string]string{}}
	for _, v := range shapes {
		w.name(reflect.TypeOf(v))
	}
	var b strings.Builder
	var codes []string
	for _, row := range wire.Table() {
		codes = append(codes, row.Code)
	}
	fmt.Fprintf(&b, "    ErrorCode:\n      enum: %s\n", toJSON(t, codes))
	for i := 0; i < len(w.queue); i++ {
		w.object(&b, w.queue[i])
	}
	return b.String()
}

// name is how a type's schema is called: as the type without what types end with.
func (w *schemaWriter) name(t reflect.Type) string {
	if name, ok := w.names[t]; ok {
		return name
	}
	upper := func(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
	name := upper(strings.TrimSuffix(strings.TrimSuffix(t.Name(), "View"), "JSON"))
	if w.taken[name] != nil || name == "Error" || name == "Page" {
		name = upper(t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:]) + name
	}
	if w.taken[name] != nil {
		w.t.Fatalf("two types want to be schema %s: %v and %v", name, w.taken[name], t)
	}
	w.names[t], w.taken[name] = name, t
	w.queue = append(w.queue, t)
	return name
}

func (w *schemaWriter) object(b *strings.Builder, t reflect.Type) {
	fmt.Fprintf(b, "    %s:\n      type: object\n", w.names[t])
	keys, required, properties := w.fields(t)
	if len(required) > 0 {
		fmt.Fprintf(b, "      required: %s\n", toJSON(w.t, required))
	}
	b.WriteString("      properties:\n")
	for _, key := range keys {
		fmt.Fprintf(b, "        %s: %s\n", toJSON(w.t, key), toJSON(w.t, properties[key]))
	}
}

// fields are those of a struct in their order, with those of what is embedded in it.
func (w *schemaWriter) fields(t reflect.Type) (keys, required []string, properties schema) {
	properties = schema{}
	for i := range t.NumField() {
		f := t.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && key == "":
			k, r, p := w.fields(f.Type)
			keys, required = append(keys, k...), append(required, r...)
			maps.Copy(properties, p)
			continue
		case !f.IsExported() || key == "-":
			continue
		case key == "":
			key = f.Name
		}
		omit := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		s := w.schema(f.Type, omit)
		if text := w.comment(t, f.Name); text != "" {
			s["description"] = text
		}
		if !omit {
			required = append(required, key)
		}
		keys = append(keys, key)
		properties[key] = s
	}
	return keys, required, properties
}

type schema map[string]any

// schema is a field's type. What is left out when it is nothing is never null.
func (w *schemaWriter) schema(t reflect.Type, omitted bool) schema {
	null := func(kind string) any {
		if omitted {
			return kind
		}
		return []string{kind, "null"}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return schema{"type": "string", "format": "date-time"}
	case reflect.TypeFor[seconds]():
		return schema{"type": []string{"integer", "null"}}
	case reflect.TypeFor[json.RawMessage]():
		return schema{}
	case reflect.TypeFor[admission.Amount]():
		return w.schema(reflect.TypeFor[admission.AmountView](), omitted)
	}
	if t.Kind() != reflect.Pointer && t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return schema{"type": "string"}
	}
	if t.Kind() != reflect.Pointer && t.Implements(reflect.TypeFor[json.Marshaler]()) {
		w.t.Fatalf("%v is JSON in a way of its own: say how in schema", t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		s := w.schema(t.Elem(), omitted)
		kind, plain := s["type"].(string)
		switch {
		case omitted:
		case plain:
			s["type"] = []string{kind, "null"}
		default:
			s = schema{"anyOf": []schema{s, {"type": "null"}}}
		}
		return s
	case reflect.Struct:
		if t.Name() == "" {
			_, required, properties := w.fields(t)
			return schema{"type": "object", "required": required, "properties": properties}
		}
		return schema{"$ref": "#/components/schemas/" + w.name(t)}
	case reflect.Slice:
		return schema{"type": null("array"), "items": w.schema(t.Elem(), true)}
	case reflect.Map:
		return schema{"type": null("object"), "additionalProperties": w.schema(t.Elem(), true)}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	}
	if !t.ConvertibleTo(reflect.TypeFor[int64]()) {
		w.t.Fatalf("%v has no schema", t)
	}
	return schema{"type": "integer"}
}

// comment is what the source says beside a field.
func (w *schemaWriter) comment(t reflect.Type, field string) string {
	of, ok := w.comments[t.PkgPath()]
	if !ok {
		of = map[string]string{}
		w.comments[t.PkgPath()] = of
		inspect(w.t, filepath.Join("..", strings.TrimPrefix(t.PkgPath(), "headgate/")), func(n ast.Node) {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return
			}
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					of[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
				}
			}
		})
	}
	return of[t.Name()+"."+field]
}

func toJSON(t *testing.T, v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}
