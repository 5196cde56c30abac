package packages

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

const (
	chart  = "deploy/helm/headgate"
	golden = "deploy/helm/testdata"
)

// sets are the value sets of which what Helm makes is committed.
var sets = []string{"one", "fleet", "batch"}

// made is the hash of what a set is rendered from; the package deploy has the same.
func made(t *testing.T, set string) string {
	t.Helper()
	files := []string{chart + "/Chart.yaml", chart + "/values.yaml", chart + "/ci/" + set + "-values.yaml"}
	templates, err := filepath.Glob(filepath.Join(root, chart, "templates/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range templates {
		files = append(files, chart+"/templates/"+filepath.Base(file))
	}
	sort.Strings(files)
	h := sha256.New()
	for _, file := range files {
		fmt.Fprintf(h, "%s\n%s\n", strings.TrimPrefix(file, chart+"/"), read(t, file))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// template renders a set as a release called headgate.
func template(t *testing.T, helm string, args ...string) (string, error) {
	t.Helper()
	return run(t, helm, append([]string{"template", "headgate", chart, "--namespace", "llm", "--kube-version", "1.34.0"}, args...)...)
}

// documents splits what Helm renders, in its order.
func documents(text string) []string {
	var all []string
	for _, d := range strings.Split("\n"+text, "\n---\n") {
		if strings.TrimSpace(strings.ReplaceAll(d, "---", "")) != "" {
			all = append(all, strings.TrimPrefix(d, "\n"))
		}
	}
	return all
}

// TestChart: Helm takes the chart without a warning, every manifest has only fields that the
// API has, of their types, and is what is committed.
func TestChart(t *testing.T) {
	helm := program(t, "helm")
	for _, set := range sets {
		t.Run(set, func(t *testing.T) {
			values := chart + "/ci/" + set + "-values.yaml"
			if out := mustRun(t, helm, "lint", "--strict", chart, "-f", values, "--kube-version", "1.34.0"); strings.Contains(out, "[WARNING]") || strings.Contains(out, "[ERROR]") {
				t.Error(out)
			}
			out, err := template(t, helm, "-f", values)
			if err != nil {
				t.Fatal(out)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "# %s\n# What Helm makes of %s; make check-packages REWRITE=1 writes it.\n", made(t, set), values)
			for _, d := range documents(out) {
				checkManifest(t, d)
				// These are deploy/prometheus and deploy/grafana once more.
				if strings.Contains(d, "kind: PrometheusRule") || strings.Contains(d, "-dashboard\n") {
					continue
				}
				b.WriteString("---\n" + strings.TrimRight(d, "\n") + "\n")
			}
			file := filepath.Join(root, golden, set+".yaml")
			if *rewrite {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if have, err := os.ReadFile(file); err != nil || string(have) != b.String() {
				t.Errorf("%s is not what Helm makes: make check-packages REWRITE=1 (%v)\n%s", file, err, b.String())
			}
		})
	}
}

// TestMonitors: what the operator and Grafana's sidecar get is what deploy has.
func TestMonitors(t *testing.T) {
	helm := program(t, "helm")
	out, err := template(t, helm, "-f", chart+"/ci/fleet-values.yaml", "--show-only", "templates/monitoring.yaml")
	if err != nil {
		t.Fatal(out)
	}
	for _, file := range []string{"deploy/prometheus/headgate.yaml", "deploy/grafana/headgate.json"} {
		last := strings.Fields(read(t, file))
		rest := out
		for _, word := range last { // they are indented there
			_, after, ok := strings.Cut(rest, word)
			if !ok {
				t.Fatalf("%s is not in the chart: there is no %s", file, word)
			}
			rest = after
		}
	}
	if alerts := strings.Count(read(t, "deploy/prometheus/headgate.yaml"), "- alert: "); strings.Count(out, "- alert: ") != alerts {
		t.Errorf("%d alerts of %d", strings.Count(out, "- alert: "), alerts)
	}
}

// TestRefusals: what can't work is not rendered, with what would.
func TestRefusals(t *testing.T) {
	helm := program(t, "helm")
	const one, fleet = chart + "/ci/one-values.yaml", chart + "/ci/fleet-values.yaml"
	for _, v := range []struct {
		why    string
		args   []string
		refuse string // "" is none
	}{
		{"nothing is said", nil, "config.pools is empty"},
		{"it is well", []string{"-f", one}, ""},
		{"nobody may call", []string{"-f", one, "--set", "config.anonymous=null"}, "nobody may call"},
		{"the admin listener asks nobody", []string{"-f", one, "--set", "config.admin.keys=null"}, "config.admin.keys is empty"},
		{"it says that it does not", []string{"-f", one, "--set", "config.admin.keys=null,config.admin.open=true"}, ""},
		{"listeners are the chart's", []string{"-f", one, "--set", "config.listen=127.0.0.1:1"}, "are the chart's"},
		{"so is the drain", []string{"-f", one, "--set", "config.limits.drain_timeout=9m"}, "give drainSeconds"},
		{"replicas without a store", []string{"-f", one, "--set", "replicas=2"}, "replicas is 2, and several replicas share their engines by grants"},
		{"replicas with one", []string{"-f", one, "--set", "replicas=2,etcd.endpoints={http://etcd:2379}"}, ""},
		{"fewer than there are", []string{"-f", fleet, "--set", "config.control.replicas=2"}, "config.control.replicas is 2"},
		{"survival in a Deployment", []string{"-f", fleet, "--set", "workload=Deployment,forward.enabled=false,storage.type=none"}, "workload has to be StatefulSet"},
		{"forwarding without a secret", []string{"-f", fleet, "--set", "forward.secret.name="}, "forward needs"},
		{"a claim of several", []string{"-f", fleet, "--set", "storage.existingClaim=x"}, "a claim of its own"},
		{"batches of each its own", []string{"-f", fleet, "--set", "postgresql.urlSecret.name="}, "postgresql.urlSecret.name"},
		{"files of each its own", []string{"-f", fleet, "--set", "config.batch.bucket=null,config.batch.dir=/x"}, "config.batch.bucket"},
		{"a controller of nothing", []string{"-f", one, "--set", "controller.enabled=true"}, "no fleet to lead"},
		{"a policy for every pod", []string{"-f", one, "--set", "enginePolicy.enabled=true"}, "enginePolicy.podLabels is empty"},
		{"an admin listener for everybody", []string{"-f", one, "--set-json", "networkPolicy.admin=[]"}, "/networkPolicy/admin"},
		{"a value that is not there", []string{"-f", one, "--set", "replicaCount=2"}, "replicaCount"},
		{"a value of another type", []string{"-f", one, "--set-string", "replicas=two"}, "replicas"},
		{"an old cluster", []string{"-f", one, "--kube-version", "1.29.0"}, "kubeVersion"},
	} {
		t.Run(v.why, func(t *testing.T) {
			out, err := template(t, helm, v.args...)
			if (err != nil) != (v.refuse != "") || v.refuse != "" && !strings.Contains(out, v.refuse) {
				t.Errorf("%v: %v, want %q:\n%.500s", v.args, err, v.refuse, out)
			}
		})
	}
}

// TestAdminPolicy: without the schema too an empty list lets in the namespace, and not
// everybody, as it would in a NetworkPolicy.
func TestAdminPolicy(t *testing.T) {
	helm := program(t, "helm")
	for _, admin := range []string{"[]", "null"} {
		out, err := template(t, helm, "-f", chart+"/ci/one-values.yaml", "--skip-schema-validation", "--set-json", "networkPolicy.admin="+admin, "--show-only", "templates/networkpolicy.yaml")
		_, from, ok := strings.Cut(out, "ports: [{port: admin}]\n")
		if err != nil || !ok || strings.Join(strings.Fields(from), " ") != "from: - podSelector: {}" {
			t.Errorf("%s: %v\n%s", admin, err, out)
		}
	}
}
