package headgate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestPagesAreInNavigation: the site's navigation has every page of docs once, and no page
// that is not there.
func TestPagesAreInNavigation(t *testing.T) {
	const file = "site/data/nav.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Group string `yaml:"group"`
		About string `yaml:"about"`
		Pages []struct {
			Page  string `yaml:"page"`
			Title string `yaml:"title"`
		} `yaml:"pages"`
	}
	if err := yaml.UnmarshalWithOptions(text, &groups, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, g := range groups {
		if g.Group == "" || g.About == "" || len(g.Pages) == 0 {
			t.Errorf("%s: group %q has no name, no text or no pages", file, g.Group)
		}
		for _, p := range g.Pages {
			if _, err := os.Stat(p.Page); err != nil {
				t.Errorf("%s has a page that is not there: %v", file, err)
			}
			if times[p.Page]++; times[p.Page] == 2 {
				t.Errorf("%s has %s twice", file, p.Page)
			}
		}
	}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, page := range pages {
			if times[page] == 0 {
				t.Errorf("%s lacks %s: put it into one of its groups", file, page)
			}
		}
	}
}
