package monitoring

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"headgate/pagetest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the files that are made of the rules and the dashboard")

// TestFiles: what Prometheus, Grafana and the chart take is what is written down here.
func TestFiles(t *testing.T) {
	dashboard, err := DashboardFile()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"deploy/prometheus/headgate.yaml":           RulesFile(),
		"deploy/prometheus/headgate_test.yaml":      TestsFile(),
		"deploy/grafana/headgate.json":              dashboard,
		"deploy/helm/headgate/files/rules.yaml":     RulesFile(),
		"deploy/helm/headgate/files/dashboard.json": dashboard,
		Page: page(t, AlertsPage()),
	}
	for name, want := range files {
		name = filepath.Join("../..", name)
		if *rewrite {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		} else if d := cmp.Diff(string(have), want); d != "" {
			t.Errorf("%s is not what the package says; go test ./deploy/monitoring -rewrite (-file +package):\n%s", name, d)
		}
		var any map[string]any
		switch filepath.Ext(name) {
		case ".yaml":
			err = yaml.Unmarshal([]byte(want), &any)
		case ".json":
			err = json.Unmarshal([]byte(want), &any)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// page is the page of the alerts with what is made of them.
func page(t *testing.T, made string) string {
	t.Helper()
	head, _, tail := pagetest.Part{File: filepath.Join("../..", Page), Begin: "<!-- alerts: written by go test ./deploy/monitoring -rewrite -->\n"}.Cut(t)
	return head + made + tail
}

var (
	templated = regexp.MustCompile(`\{\{ \$labels\.([a-z_]+) \}\}`)
	alertName = regexp.MustCompile(`^Headgate[A-Z][A-Za-z]+$`)
)

// TestAlerts: each can be told apart, says what to do, has an example, and names only
// labels that its series have.
func TestAlerts(t *testing.T) {
	seen := map[string]bool{}
	for i := range Alerts {
		a := &Alerts[i]
		if seen[a.Name] || !alertName.MatchString(a.Name) {
			t.Errorf("%s: a name of its own that begins with Headgate", a.Name)
		}
		seen[a.Name] = true
		if a.Summary == "" || a.Means == "" || a.Do == "" || len(a.Example) == 0 || a.At == "" || a.Fires == nil {
			t.Errorf("%s: something is not said: %+v", a.Name, a)
		}
		if a.Severity != Critical && a.Severity != Warning && a.Severity != Info {
			t.Errorf("%s: severity %q", a.Name, a.Severity)
		}
		for _, m := range templated.FindAllStringSubmatch(a.Summary, -1) {
			if _, ok := a.Fires[m[1]]; !ok {
				t.Errorf("%s: the summary names the label %s, which its series has not", a.Name, m[1])
			}
		}
		if rest := templated.ReplaceAllString(a.Summary+a.Means, ""); strings.Contains(rest, "{{") {
			t.Errorf("%s: something else than a label is in braces: %s", a.Name, rest)
		}
		for name := range a.Fires {
			if name == "instance" && !strings.Contains(a.Summary, "{{ $labels.instance }}") && !strings.Contains(a.Summary, "{{ $labels.engine }}") {
				t.Errorf("%s: an alert of a process says which", a.Name)
			}
		}
	}
	for _, r := range Rules {
		used := false
		for _, q := range Queries() {
			used = used || strings.Contains(q, r.Record)
		}
		for i := range Alerts {
			used = used || strings.Contains(Alerts[i].Expr, r.Record)
		}
		if !used {
			t.Errorf("nothing uses %s", r.Record)
		}
	}
}
