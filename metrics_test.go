package headgate_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"headgate/pagetest"
)

// metricGroups are the sections of docs/metrics.md by the folder whose source has the
// metrics.
var metricGroups = []struct{ title, dir string }{
	{"Pools, classes and engines", "relay"}, {"Clients' requests", "gateway"}, {"Limits of tenants", "quota/keeper"}, {"Tokens of issuers", "identity/token"},
	{"Files and batches", "batch"}, {"A fleet", "control/agent"}, {"The journal", "journal"}, {"Audit", "audit"},
	{"Spans of engines", "telemetry/spans"}, {"Export by OTLP", "telemetry/otlp"}, {"The process", "telemetry"}, {"Its configuration and certificates", "cmd/headgate"},
}

type metric struct{ name, kind, labels, help string }

// TestMetricsPage keeps the tables of docs/metrics.md equal to what the source makes. They
// are read from the source since a collector does not tell types, and parts that are not
// configured are not there to be asked.
func TestMetricsPage(t *testing.T) {
	byDir, named := sourceMetrics(t)
	var b strings.Builder
	shown := map[string]bool{}
	for _, g := range metricGroups {
		found := byDir[g.dir]
		if len(found) == 0 {
			t.Errorf("%s has no metrics", g.dir)
		}
		delete(byDir, g.dir)
		slices.SortFunc(found, func(a, b metric) int { return strings.Compare(a.name, b.name) })
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | help |\n|---|---|---|---|\n", g.title)
		for _, m := range found {
			shown[m.name] = true
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, strings.ReplaceAll(m.help, "|", "\\|"))
		}
	}
	b.WriteString("\n")
	for dir := range byDir {
		t.Errorf("%s has metrics, and metricGroups has no section for it", dir)
	}
	// Whatever else looks like a metric's name and is in no table was made in a way that is
	// not read here.
	for name, where := range named {
		if !shown[name] {
			t.Errorf("%s has %s, which no table has", where, name)
		}
	}
	pagetest.Part{File: "docs/metrics.md", Begin: "<!-- metrics: written by go test . -run TestMetricsPage -rewrite -->\n"}.Keep(t, b.String(), *rewrite)
}

var metricName = regexp.MustCompile(`^headgate_[a-z_]+(_total|_seconds|_bytes|_info)$`)

// sourceMetrics are the metrics by the folder of their source, and every text in source that
// could be a metric's name, with its file.
func sourceMetrics(t *testing.T) (byDir map[string][]metric, named map[string]string) {
	byDir, named = map[string][]metric{}, map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path != "." && strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "bench", "e2e", "node_modules", "docs", "simengine", "tools", "site", "testdata"}, d.Name())) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "client_golang/prometheus\"") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if name := textOf(n); metricName.MatchString(name) {
					named[name] = path
				}
			case *ast.CallExpr:
				if m, ok := readMetric(n); ok {
					byDir[dir] = append(byDir[dir], m)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return byDir, named
}

// readMetric reads a call that makes a metric: one of the library's constructors with its
// options, or one that describes it.
func readMetric(call *ast.CallExpr) (m metric, ok bool) {
	fun := ""
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		if p, ok := f.X.(*ast.Ident); !ok || p.Name != "prometheus" {
			return m, false
		}
		fun = f.Sel.Name
	case *ast.Ident:
		fun = f.Name
	}
	var labels []string
	switch {
	case fun == "NewDesc" && len(call.Args) == 4:
		m.name, m.help, labels = textOf(call.Args[0]), textOf(call.Args[1]), textsOf(call.Args[2])
	case fun == "poolDesc" && len(call.Args) >= 2: // relay's short form
		m.name, m.help, labels = "headgate_"+textOf(call.Args[0]), textOf(call.Args[1]), []string{"pool"}
		for _, a := range call.Args[2:] {
			labels = append(labels, textOf(a))
		}
	case strings.HasPrefix(fun, "New") && len(call.Args) > 0:
		options, isOptions := call.Args[0].(*ast.CompositeLit)
		if !isOptions {
			return m, false
		}
		for _, kind := range []string{"Counter", "Gauge", "Histogram"} {
			if strings.HasPrefix(fun, "New"+kind) {
				m.kind = strings.ToLower(kind)
			}
		}
		for _, e := range options.Elts {
			kv, isPair := e.(*ast.KeyValueExpr)
			if !isPair {
				continue
			}
			switch key, _ := kv.Key.(*ast.Ident); key.Name {
			case "Name":
				m.name = textOf(kv.Value)
			case "Help":
				m.help = textOf(kv.Value)
			case "ConstLabels":
				labels = textsOf(kv.Value)
			}
		}
		if len(call.Args) > 1 {
			labels = append(labels, textsOf(call.Args[1])...)
		}
	}
	if m.kind == "" { // what is only described is named by the rules
		m.kind = "gauge"
		if strings.HasSuffix(m.name, "_total") {
			m.kind = "counter"
		}
	}
	for i, l := range labels {
		labels[i] = "`" + l + "`"
	}
	m.labels = strings.Join(labels, ", ")
	return m, strings.HasPrefix(m.name, "headgate_") && m.help != ""
}

// textOf is a text that is written out, whole or in parts.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	}
	return ""
}

// textsOf are the elements of a list that is written out, or the keys of a map.
func textsOf(e ast.Expr) (all []string) {
	list, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, e := range list.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Key
		}
		all = append(all, textOf(e))
	}
	return all
}
