//go:build docs

package headgate_test

import (
	"encoding/json"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What make docs has built, as far as it matters to who follows links. Hugo writes every
// attribute with double quotes, and texts without them.
var (
	reference = regexp.MustCompile(`<([a-z0-9]+)[^>]*? (href|src)="([^"]*)"`)
	ident     = regexp.MustCompile(`<[a-z0-9]+[^>]*? id="([^"]*)"`)
	firstHead = regexp.MustCompile(`<h1[ >]`)
	current   = regexp.MustCompile(`aria-current="page"`)
	outside   = regexp.MustCompile(`^[a-z]+:`)
)

type sitePage struct {
	text string
	ids  map[string]bool
}

func readSite(t *testing.T) (dir string, pages map[string]*sitePage) {
	t.Helper()
	dir = os.Getenv("HEADGATE_DOCS")
	if dir == "" {
		t.Fatal("HEADGATE_DOCS is not set: make docs-check")
	}
	pages = map[string]*sitePage{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".html" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		p := &sitePage{text: string(text), ids: map[string]bool{}}
		for _, m := range ident.FindAllStringSubmatch(p.text, -1) {
			id := html.UnescapeString(m[1])
			if p.ids[id] {
				t.Errorf("%s has the id %s twice", name, id)
			}
			p.ids[id] = true
		}
		pages[name] = p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 50 {
		t.Fatalf("%s has %d pages", dir, len(pages))
	}
	return dir, pages
}

// lead tells what is wrong with an address on a page; "": nothing.
func lead(dir string, pages map[string]*sitePage, from, to string) string {
	path, anchor, _ := strings.Cut(to, "#")
	target := from
	if path != "" {
		target = filepath.Join(filepath.Dir(from), path)
	}
	if p := pages[target]; p != nil {
		if anchor != "" && !p.ids[anchor] {
			return "has no such id"
		}
		return ""
	}
	if i, err := os.Stat(filepath.Join(dir, target)); err != nil || i.IsDir() {
		return "is no file of the site"
	}
	return ""
}

// TestSite: every link leads to a page and a heading that are there, nothing is asked of
// another address, and each page has a title and its place in the navigation.
func TestSite(t *testing.T) {
	dir, pages := readSite(t)
	followed := 0
	for name, p := range pages {
		for _, m := range reference.FindAllStringSubmatch(p.text, -1) {
			to := html.UnescapeString(m[3])
			if to == "data:," { // no icon
				continue
			}
			if outside.MatchString(to) || strings.HasPrefix(to, "//") {
				if m[1] != "a" {
					t.Errorf("%s loads %s", name, to)
				}
				continue
			}
			followed++
			if wrong := lead(dir, pages, name, to); wrong != "" {
				t.Errorf("%s: %s %s", name, to, wrong)
			}
		}
		if n := len(firstHead.FindAllString(p.text, -1)); n != 1 {
			t.Errorf("%s has %d first headings", name, n)
		}
		if n := len(current.FindAllString(p.text, -1)); n != 1 {
			t.Errorf("%s is %d times in the navigation", name, n)
		}
		if strings.Contains(p.text, "<title></title>") {
			t.Errorf("%s has no title", name)
		}
	}
	if followed < 3000 {
		t.Errorf("%d links were followed", followed)
	}
	styles, err := filepath.Glob(filepath.Join(dir, "*.css"))
	if err != nil || len(styles) != 1 {
		t.Fatalf("styles: %v, %v", styles, err)
	}
	text, err := os.ReadFile(styles[0])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "url(") || strings.Contains(string(text), "@import") {
		t.Error("the style loads something")
	}
}

// TestSiteSearch: the index has every page, and each entry leads to one of its headings.
func TestSiteSearch(t *testing.T) {
	dir, pages := readSite(t)
	text, err := os.ReadFile(filepath.Join(dir, "search-index.js"))
	if err != nil {
		t.Fatal(err)
	}
	inner, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "window.headgateSearch(")
	if !ok {
		t.Fatal("the index is no call")
	}
	var entries [][4]string
	if err := json.Unmarshal([]byte(strings.TrimSuffix(inner, ");")), &entries); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		page, _, _ := strings.Cut(e[0], "#")
		seen[page] = true
		if wrong := lead(dir, pages, "index.html", e[0]); wrong != "" {
			t.Errorf("the index: %s %s", e[0], wrong)
		}
		if e[1] == "" || strings.Contains(e[2]+e[3], "<a ") {
			t.Errorf("the index: %.200q", e)
		}
	}
	for name := range pages {
		if !seen[name] {
			t.Errorf("the index lacks %s", name)
		}
	}
}
