package headgate_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTests: the tests and goldens that pages name exist.
func TestNamedTests(t *testing.T) {
	for page, least := range map[string]int{"docs/cases.md": 30, "docs/reliability.md": 60, "SECURITY.md": 12} {
		doc, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`([a-z0-9/]+)(?:\\.((?:Test|Fuzz)[A-Za-z0-9]+)|(/[a-z_]+\\.txt))`").FindAllSubmatch(doc, -1)
		if len(named) < least {
			t.Errorf("%s: %d tests are named", page, len(named))
		}
		for _, m := range named {
			folder, test := string(m[1]), string(m[2])
			if test == "" {
				if _, err := os.Stat(folder + string(m[3])); err != nil {
					t.Errorf("%s: %v", page, err)
				}
				continue
			}
			files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
			found := false
			for _, file := range files {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				found = found || strings.Contains(string(src), "\nfunc "+test+"(")
			}
			if !found {
				t.Errorf("%s names %s.%s, which is not there", page, folder, test)
			}
		}
	}
}

// TestReliabilityNamesTests: no line of the table of faults is without a test.
func TestReliabilityNamesTests(t *testing.T) {
	doc, err := os.ReadFile("docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if !strings.HasPrefix(line, "| ") || cells[0] == " fault " {
			continue
		}
		if len(cells) != 3 || !strings.Contains(cells[2], ".Test") && !strings.Contains(cells[2], ".Fuzz") {
			t.Errorf("no test: %s", line)
		}
	}
}
