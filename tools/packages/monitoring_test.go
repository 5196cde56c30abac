package packages

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRules: promtool takes the rules; each alert fires for its example and none for a fleet
// that is well.
func TestRules(t *testing.T) {
	promtool := program(t, "promtool")
	out := mustRun(t, promtool, "check", "rules", "deploy/prometheus/headgate.yaml")
	alerts := strings.Count(read(t, "deploy/prometheus/headgate.yaml"), "- alert: ")
	if !strings.Contains(out, "SUCCESS") || alerts < 25 {
		t.Errorf("%d alerts:\n%s", alerts, out)
	}
	mustRun(t, promtool, "test", "rules", "deploy/prometheus/headgate_test.yaml")
	if tested := strings.Count(read(t, "deploy/prometheus/headgate_test.yaml"), "    exp_alerts:\n"); tested != alerts {
		t.Errorf("%d of %d alerts have an example", tested, alerts)
	}
}

// TestDashboard: each query of the dashboard is one. As rules, they are parsed by what would
// run them.
func TestDashboard(t *testing.T) {
	promtool := program(t, "promtool")
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/grafana/headgate.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "'", "''").Replace(q.Expr)
			fmt.Fprintf(&b, "  - record: panel_%d\n    expr: '%s'\n", n, expr)
			n++
		}
	}
	if n < 40 {
		t.Errorf("%d queries", n)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, promtool, "check", "rules", file)
}
