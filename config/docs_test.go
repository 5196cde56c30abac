package config

import (
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

	"headgate/pagetest"
)

// TestDocumentation keeps the table of docs/configuration.md equal to the
// schema: its keys, its defaults, and its comments, which are the table's text.
func TestDocumentation(t *testing.T) {
	pagetest.Part{File: "../docs/configuration.md", Begin: "<!-- settings: written by go test ./config -rewrite -->\n"}.Keep(t, settingsTable(t),
		flag.Lookup("rewrite").Value.String() == "true")
}

// TestDocumentedExample: the examples are a valid file and a valid policy, without
// warnings.
func TestDocumentedExample(t *testing.T) {
	b, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("no example")
	}
	example = strings.Replace(example, "sha256:...", "sha256:"+strings.Repeat("0", 64), 1)
	if c, problems := Parse("example", []byte(example)); c == nil || len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	policy, _, ok := strings.Cut(rest, "```\n")
	if p, problems := ParsePolicy("policy", []byte(policy)); !ok || p == nil || len(problems) > 0 {
		t.Errorf("the policy: %v", problems)
	}
}

// TestDocumentedProfiles: so is the pool of the page about profiles.
func TestDocumentedProfiles(t *testing.T) {
	b, err := os.ReadFile("../docs/replan.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```\n")
	if c, problems := Parse("example", []byte("anonymous: {classes: [interactive, batch]}\n"+example)); !ok || c == nil || Errors(problems) > 0 {
		t.Errorf("%v", problems)
	}
}

func settingsTable(t *testing.T) string {
	var c Config
	setDefaults(reflect.ValueOf(&c).Elem())
	w := tableWriter{t: t, comments: fieldComments(t, ".", "../certs", "../identity", "../journal", "../telemetry")}
	w.b.WriteString("\n| setting | default | meaning |\n|---|---|---|\n")
	w.structure("", reflect.ValueOf(&c).Elem())
	w.b.WriteString("\n")
	return w.b.String()
}

type tableWriter struct {
	t        *testing.T
	comments map[string]string // package.Type.Field
	b        strings.Builder
}

func (w *tableWriter) structure(path string, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported():
			continue
		case options == "inline":
			w.structure(path, v.Field(i))
			continue
		}
		at := key
		if path != "" {
			at = path + "." + key
		}
		inner := v.Field(i)
		switch {
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			w.row(at, v.Type(), f, inner, options)
			inner = reflect.New(f.Type.Elem()).Elem()
			setDefaults(inner)
			w.structure(at+"[]", inner)
		case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
			w.row(at, v.Type(), f, inner, options)
			inner = reflect.New(f.Type.Elem()).Elem()
			setDefaults(inner)
			w.structure(at, inner)
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[Amount]():
			w.structure(at, inner)
		default:
			w.row(at, v.Type(), f, inner, options)
		}
	}
}

func (w *tableWriter) row(at string, in reflect.Type, f reflect.StructField, v reflect.Value, options string) {
	name := filepath.Base(in.PkgPath()) + "." + in.Name() + "." + f.Name
	text := w.comments[name]
	if text == "" {
		w.t.Errorf("%s has no comment", name)
	}
	text = described(text, f, at)
	def := "-"
	switch x := v.Interface().(type) {
	case time.Duration:
		if options == "" {
			def = "`" + formatDuration(x) + "`"
		}
	default:
		switch zero := v.IsZero(); {
		case !zero, options == "" && (v.CanInt() || v.CanFloat() || v.Kind() == reflect.Bool):
			def = fmt.Sprintf("`%v`", x)
		case options == "":
			def = "required"
		}
	}
	fmt.Fprintf(&w.b, "| `%s` | %s | %s |\n", at, def, strings.ReplaceAll(text, "|", "\\|"))
}

// described is a setting's text, in which what can't change while the process runs
// says so, and what takes the place of one that is to go.
func described(comment string, field reflect.StructField, setting string) string {
	text := sentence(comment, field.Name)
	if use := field.Tag.Get("deprecated"); use != "" {
		text = "Deprecated, use " + use + ". " + text
	}
	if needsRestart(setting) {
		text += " A change needs a restart."
	}
	return text
}

// sentence turns a field's comment into the table's text: what begins with "X
// is" or "X says" needs no X there, what begins with "X of" does.
func sentence(comment, field string) string {
	rest, ok := strings.CutPrefix(comment, field+" ")
	verb, after, _ := strings.Cut(rest, " ")
	switch {
	case !ok:
		return comment
	case verb == "is" || verb == "are":
		rest = after
	case !slices.Contains([]string{"lets", "says", "names", "bounds", "admits", "tells", "share"}, verb):
		return comment
	}
	return strings.ToUpper(rest[:1]) + rest[1:]
}

// fieldComments reads the comments of the fields of all structs of packages.
func fieldComments(t *testing.T, dirs ...string) map[string]string {
	all := map[string]string{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				s, ok := spec.Type.(*ast.StructType)
				if !ok {
					return false
				}
				for _, field := range s.Fields.List {
					for _, name := range field.Names {
						all[f.Name.Name+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
					}
				}
				return false
			})
		}
	}
	return all
}
