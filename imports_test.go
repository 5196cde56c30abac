// Package headgate_test checks what holds for the module as a whole: which
// package may import which, and what each brings in from outside.
package headgate_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"headgate/pagetest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

const module = "headgate"

// layers is the direction of imports: a package imports only from layers below
// its own, or from its own top folder. A new folder takes its place here.
var layers = [][]string{
	{"cmd", "e2e"},
	{"advise"},
	{"bench", "config", "gateway", "prove", "top"},
	{"batch", "console"},
	{"audit", "doctor", "probe", "relay", "sim"},
	{"control", "engine", "journal", "replan"},
	{"admission", "identity", "quota", "simengine", "telemetry"},
	{"certs", "deploy", "egress", "kv", "occupancy", "pagetest", "proctest", "stats", "trace", "wire"},
}

// pure packages do the same with the same input, whatever drives them. They
// import nothing of the project but each other.
var pure = []string{"admission", "control", "kv", "occupancy", "quota", "replan", "stats", "wire", "wire/anthropic", "wire/raw", "wire/responses", "wire/sse"}

// impure is what such a package must not import, and what of package time it
// must not call.
var (
	impure     = []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "net", "os", "os/exec", "sync", "sync/atomic"}
	impureTime = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}
)

type listed struct {
	ImportPath, Dir string
	Standard        bool
	Imports         []string
	TestImports     []string
	XTestImports    []string
	GoFiles         []string
	Module          *struct{ Path string }
}

// list returns every package that the module's packages need.
func list(t *testing.T) map[string]*listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,Imports,TestImports,XTestImports,GoFiles,Module", "./...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	all := map[string]*listed{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		p := new(listed)
		if err := d.Decode(p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

func (p *listed) ours() bool { return p.Module != nil && p.Module.Path == module }

// rel is a package's folder; ok tells whether it is the project's.
func rel(importPath string) (folder string, ok bool) {
	return strings.CutPrefix(importPath, module+"/")
}

func TestImportDirection(t *testing.T) {
	layer := map[string]int{}
	for i, folders := range layers {
		for _, f := range folders {
			layer[f] = i
		}
	}
	for _, p := range list(t) {
		folder, ok := rel(p.ImportPath)
		if !ok || !p.ours() {
			continue
		}
		top, _, _ := strings.Cut(folder, "/")
		from, known := layer[top]
		if !known {
			t.Errorf("%s has no layer: give it one in imports_test.go", top)
			continue
		}
		for _, i := range p.Imports {
			target, ok := rel(i)
			if !ok {
				continue
			}
			other, _, _ := strings.Cut(target, "/")
			if to, known := layer[other]; known && other != top && to <= from {
				t.Errorf("%s imports %s, which is not below it", folder, target)
			}
			if other == "config" && top != "cmd" && top != "config" {
				t.Errorf("%s imports config: only cmd may, every package has its own Config", folder)
			}
		}
	}
}

func TestPurity(t *testing.T) {
	all := list(t)
	for _, folder := range pure {
		p := all[module+"/"+folder]
		if p == nil {
			t.Errorf("there is no package %s", folder)
			continue
		}
		for _, i := range p.Imports {
			if target, ok := rel(i); ok && !slices.Contains(pure, target) {
				t.Errorf("%s is pure and imports %s", folder, target)
			}
			if slices.Contains(impure, i) {
				t.Errorf("%s is pure and imports %s", folder, i)
			}
		}
		for _, file := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a pure package starts a goroutine", fset.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && x.Obj == nil && slices.Contains(impureTime, n.Sel.Name) {
						t.Errorf("%s: a pure package calls time.%s", fset.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// TestModules keeps the list in docs/dependencies.md of what each package
// brings in, so that a heavy module in the wrong place is seen in review.
func TestModules(t *testing.T) {
	all := list(t)
	var b strings.Builder
	b.WriteString("\n| package | modules it links |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		folder, ok := rel(name)
		if !ok || !all[name].ours() {
			continue
		}
		modules := map[string]bool{}
		reach(all, name, map[string]bool{}, modules)
		cell := "-"
		if len(modules) > 0 {
			cell = strings.Join(slices.Sorted(maps.Keys(modules)), ", ")
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", folder, cell)
	}
	b.WriteString("\n")

	part := pagetest.Part{File: "docs/dependencies.md", Begin: "<!-- modules: written by go test . -rewrite -->\n"}
	part.Keep(t, b.String(), *rewrite)
	head, _, _ := part.Cut(t)
	for _, m := range directModules(t) {
		if used := imported(all, m); used != strings.Contains(head, "`"+m+"`") {
			t.Errorf("%s: module %s is imported: %v; the reasons list what is", part.File, m, used)
		}
	}
}

// reach collects the modules of everything that a package needs.
func reach(all map[string]*listed, name string, seen, modules map[string]bool) {
	p := all[name]
	if p == nil || seen[name] {
		return
	}
	seen[name] = true
	if p.Module != nil && !p.ours() {
		modules[p.Module.Path] = true
	}
	for _, i := range p.Imports {
		reach(all, i, seen, modules)
	}
}

// imported tells whether the project's own code or tests import from a module.
func imported(all map[string]*listed, module string) bool {
	for _, p := range all {
		if !p.ours() {
			continue
		}
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if i == module || strings.HasPrefix(i, module+"/") {
				return true
			}
		}
	}
	return false
}

// directModules returns the modules that go.mod requires itself.
func directModules(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	var direct []string
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	return direct
}
