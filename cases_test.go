package headgate_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesAreTested: the tests and goldens that docs/cases.md names exist.
func TestCasesAreTested(t *testing.T) {
	doc, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+)(?:\\.(Test[A-Za-z]+)|(/[a-z_]+\\.txt))`").FindAllSubmatch(doc, -1)
	if len(named) < 20 {
		t.Errorf("%d tests are named", len(named))
	}
	for _, m := range named {
		folder, test := string(m[1]), string(m[2])
		if test == "" {
			if _, err := os.Stat(folder + string(m[3])); err != nil {
				t.Errorf("docs/cases.md: %v", err)
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
			found = found || strings.Contains(string(src), "\nfunc "+test+"(t ")
		}
		if !found {
			t.Errorf("docs/cases.md names %s.%s, which is not there", folder, test)
		}
	}
}
