package headgate_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	// notInAnchor is what GitHub leaves out of the anchor that it gives a heading.
	notInAnchor = regexp.MustCompile(`[^\pL\pN _-]`)
)

// TestLinks: what the pages link to in the project is there, and so is the heading
// that a link names.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/experiments/*.md", "e2e/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	checked := 0
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(prose(t, page), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			checked++
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if anchor != "" && !anchors(t, target)[anchor] {
				t.Errorf("%s links to %s, of which no heading makes that anchor", page, m[1])
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d links were found", checked)
	}
}

// TestPagesAreLinked: a stranger finds every page of docs from the README.
func TestPagesAreLinked(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	reached := map[string]bool{}
	for next := []string{"README.md"}; len(next) > 0; next = next[1:] {
		for _, m := range link.FindAllStringSubmatch(prose(t, next[0]), -1) {
			path, _, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(next[0]), path)
			if strings.HasSuffix(path, ".md") && !strings.Contains(path, "://") && !reached[target] {
				reached[target] = true
				next = append(next, target)
			}
		}
	}
	for _, page := range pages {
		if !reached[page] {
			t.Errorf("no link leads from README.md to %s", page)
		}
	}
}

// prose is a page without its fenced blocks.
func prose(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(string(text), "")
}

// anchors are those of a page's headings.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(prose(t, page), -1) {
		text := notInAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(text, " ", "-")] = true
	}
	return all
}
