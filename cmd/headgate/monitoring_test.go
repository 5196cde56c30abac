package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"headgate/certs/certstest"
	"headgate/config"
	"headgate/deploy/monitoring"
)

// everythingOn has each part that registers metrics of its own.
const everythingOn = `listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0, otlp_traces: true}
tls: {cert: DIR/tls.crt, key: DIR/tls.key}
anonymous: {classes: [interactive]}
journal: {file: DIR/journal.jsonl}
audit: {file: DIR/audit.jsonl}
otlp: {endpoint: "http://127.0.0.1:1"}
batch: {dir: DIR/batches}
control: {store: etcd, endpoints: ["http://127.0.0.1:1"], forward: {address: "http://{replica}:8080", secret_env: FLEET_SECRET}}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://127.0.0.1:1", slots: 4, kv_tokens: 4096}]
    classes: [{name: interactive, floor: {slots: 2}}]
`

var (
	fqName      = regexp.MustCompile(`fqName: "([^"]+)"`)
	constLabels = regexp.MustCompile(`constLabels: \{([^}]*)\}`)
	varLabels   = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
	labelName   = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
)

// registered are the series that a registry can have, with their labels.
func registered(r *prometheus.Registry) map[string][]string {
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); r.Describe(descs) }()
	all := map[string][]string{}
	for d := range descs {
		text := d.String()
		var labels []string
		if m := constLabels.FindStringSubmatch(text); m != nil {
			for pair := range strings.SplitSeq(m[1], ",") {
				if name, _, ok := strings.Cut(pair, "="); ok {
					labels = append(labels, name)
				}
			}
		}
		if m := varLabels.FindStringSubmatch(text); m != nil {
			labels = append(labels, labelName.FindAllString(m[1], -1)...)
		}
		all[fqName.FindStringSubmatch(text)[1]] = labels
	}
	return all
}

var (
	texts    = regexp.MustCompile(`"[^"]*"`)
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring) \(([^)]*)\)`)
	series   = regexp.MustCompile(`\b(?:[a-z_]+:)?(?:headgate|process)_[a-z0-9_]+(?::[a-z0-9_]+)?\b`)
)

// names are what a query asks for: series, those labels that belong to one of them, and
// labels of whatever it has.
func names(query string) (of map[string][]string, labels []string) {
	of = map[string][]string{}
	query = texts.ReplaceAllString(query, `""`)
	for _, name := range series.FindAllString(grouping.ReplaceAllString(query, ""), -1) {
		of[name] = nil
	}
	for _, m := range selector.FindAllStringSubmatch(query, -1) {
		of[m[1]] = append(of[m[1]], labelName.FindAllString(texts.ReplaceAllString(m[2], ""), -1)...)
	}
	for _, m := range grouping.FindAllStringSubmatch(query, -1) {
		labels = append(labels, labelName.FindAllString(m[1], -1)...)
	}
	return of, labels
}

// TestMonitoring: each series and label that a rule, an alert or a panel names is one of this
// process's, so that none is silent because somebody renamed what it watches.
func TestMonitoring(t *testing.T) {
	dir := t.TempDir()
	cert, key := certstest.New(t).Pair("localhost")
	for name, pem := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("FLEET_SECRET", strings.Repeat("s", config.LeastSecret))
	c, problems := config.Parse("test.yaml", []byte(strings.ReplaceAll(everythingOn, "DIR", dir)))
	if c == nil {
		t.Fatal(problems)
	}
	s, err := newServer(c, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	have := registered(s.metrics)
	have["up"] = nil // Prometheus's own
	recorded := map[string][]string{}
	for _, r := range monitoring.Rules {
		m := grouping.FindStringSubmatch(r.Expr)
		recorded[r.Record] = slices.DeleteFunc(labelName.FindAllString(m[1], -1), func(label string) bool { return label == "le" })
		level, _, _ := strings.Cut(r.Record, ":")
		if want := strings.Split(level, "_"); !slices.Equal(want, recorded[r.Record]) {
			t.Errorf("%s is by %v", r.Record, recorded[r.Record])
		}
	}
	queries := monitoring.Queries()
	for _, r := range monitoring.Rules {
		queries = append(queries, r.Expr)
	}
	for _, a := range monitoring.Alerts {
		queries = append(queries, a.Expr)
		for _, s := range a.Example {
			queries = append(queries, s.Name)
		}
	}
	for _, s := range monitoring.Well {
		queries = append(queries, s.Name)
	}
	seen := 0
	for _, query := range queries {
		of, grouped := names(query)
		if len(of) == 0 {
			t.Errorf("%s asks for nothing of this process's", query)
		}
		known := []string{"instance", "job", "namespace"} // Prometheus's own
		for name, labels := range of {
			base, histogram := strings.CutSuffix(name, "_bucket")
			its, ok := have[base]
			if !ok {
				its, ok = recorded[name]
			}
			if !ok {
				t.Errorf("%s: there is no series %s", query, name)
				continue
			}
			seen++
			its = append(slices.Clone(its), "instance", "job")
			if histogram {
				its = append(its, "le")
			}
			for _, label := range labels {
				if !slices.Contains(its, label) {
					t.Errorf("%s: %s has no label %s, but %v", query, name, label, its)
				}
			}
			known = append(known, its...)
		}
		for _, label := range grouped {
			if !slices.Contains(known, label) {
				t.Errorf("%s: nothing there has the label %s", query, label)
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d series were looked at", seen)
	}
}
