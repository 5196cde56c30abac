package deploy

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"headgate/config"
)

// rendered are the value sets of which what Helm makes is committed.
var rendered = []string{"one", "fleet", "batch"}

// made is the hash of what a set is rendered from. tools/packages has the same.
func made(t *testing.T, set string) string {
	t.Helper()
	files := []string{"helm/headgate/Chart.yaml", "helm/headgate/values.yaml", "helm/headgate/ci/" + set + "-values.yaml"}
	templates, err := filepath.Glob("helm/headgate/templates/*")
	if err != nil || len(templates) < 5 {
		t.Fatal(templates, err)
	}
	files = append(files, templates...)
	sort.Strings(files)
	h := sha256.New()
	for _, file := range files {
		fmt.Fprintf(h, "%s\n%s\n", strings.TrimPrefix(file, "helm/headgate/"), read(t, file))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// A tree is a manifest, or a part of one.
type tree map[string]any

// at returns what is at a path such as spec.template; "" is nothing.
func (m tree) at(path string) any {
	var v any = map[string]any(m)
	for key := range strings.SplitSeq(path, ".") {
		inner, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = inner[key]
	}
	return v
}

func (m tree) in(path string) tree { inner, _ := m.at(path).(map[string]any); return inner }

func (m tree) text(path string) string {
	if v := m.at(path); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

func (m tree) list(path string) []tree {
	var all []tree
	items, _ := m.at(path).([]any)
	for _, item := range items {
		inner, _ := item.(map[string]any)
		all = append(all, inner)
	}
	return all
}

// named returns the entry of a list by its name.
func named(list []tree, name string) tree {
	for _, item := range list {
		if item.text("name") == name {
			return item
		}
	}
	return nil
}

// manifests reads what Helm made of a set, by kind and name.
func manifests(t *testing.T, set string) map[string]tree {
	t.Helper()
	text := read(t, "helm/testdata/"+set+".yaml")
	if want := "# " + made(t, set) + "\n"; !strings.HasPrefix(text, want) {
		t.Fatalf("helm/testdata/%s.yaml is of another chart: make check-packages REWRITE=1, and read the difference", set)
	}
	all := map[string]tree{}
	for in := yaml.NewDecoder(bytes.NewReader([]byte(text))); ; {
		var m map[string]any
		if err := in.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		if m != nil {
			v := tree(m)
			all[v.text("kind")+"/"+v.text("metadata.name")] = v
		}
	}
}

// within tells whether labels have all of a selector's.
func within(selector, labels tree) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// TestChart: what the chart makes fits together, and fits what the process does with the
// configuration that it is given.
func TestChart(t *testing.T) {
	for _, set := range rendered {
		t.Run(set, func(t *testing.T) {
			all := manifests(t, set)
			text, _ := all["ConfigMap/headgate"].in("data")["headgate.yaml"].(string)
			c, problems := config.Parse("headgate.yaml", []byte(text))
			if c == nil || len(problems) > 0 {
				t.Fatalf("headgate validate would say: %v\n%s", problems, text)
			}
			if err := c.Admin.Exposed(c.Admin.Listen); err != nil {
				t.Error(err)
			}
			workload := all["Deployment/headgate"]
			if workload == nil {
				workload = all["StatefulSet/headgate"]
			}
			pods := map[string]tree{"serve": workload}
			if controller := all["Deployment/headgate-controller"]; controller != nil {
				pods["controller"] = controller
				if c.Control.Campaign {
					t.Error("replicas campaign beside controllers")
				}
			}
			for command, w := range pods {
				checkPods(t, command, w, c)
			}
			if replicas := workload.text("spec.replicas"); c.Control == nil && replicas != "1" {
				t.Errorf("%s replicas without a store", replicas)
			} else if c.Control != nil && fmt.Sprint(c.Control.Replicas) <= replicas {
				t.Errorf("%s replicas, and control.replicas is %d: a rolling update has one more", replicas, c.Control.Replicas)
			}
			if c.Control == nil && workload.text("spec.strategy.type") != "Recreate" {
				t.Error("two processes have the same engines during a rollout")
			}
			checkServices(t, all, workload)
			budget := all["PodDisruptionBudget/headgate"]
			if (budget != nil) != (workload.text("spec.replicas") != "1") {
				t.Errorf("a budget: %v", budget)
			}
			labels := workload.in("spec.template.metadata.labels")
			for _, selects := range []string{"PodDisruptionBudget/headgate spec.selector.matchLabels", "NetworkPolicy/headgate spec.podSelector.matchLabels"} {
				name, path, _ := strings.Cut(selects, " ")
				if m := all[name]; m != nil && !within(m.in(path), labels) {
					t.Errorf("%s selects %v, and pods are %v", name, m.in(path), labels)
				}
			}
			if engines := all["NetworkPolicy/headgate-engines"]; engines != nil {
				rules := engines.list("spec.ingress")
				if !within(rules[0].list("from")[0].in("podSelector.matchLabels"), labels) || rules[1].at("ports") != nil ||
					!within(rules[1].list("from")[0].in("podSelector.matchLabels"), engines.in("spec.podSelector.matchLabels")) {
					t.Errorf("engines are reached by %v, want gateways, and each other on every port", rules)
				}
			}
			if monitor := all["ServiceMonitor/headgate"]; monitor != nil {
				if !within(monitor.in("spec.selector.matchLabels"), all["Service/headgate-admin"].in("metadata.labels")) {
					t.Errorf("the monitor selects %v", monitor.in("spec.selector"))
				}
				end := monitor.list("spec.endpoints")[0]
				if named(all["Service/headgate-admin"].list("spec.ports"), end.text("port")) == nil || end.text("path") != "/metrics" {
					t.Errorf("what is scraped is %v", end)
				}
			}
		})
	}
}

func checkPods(t *testing.T, command string, w tree, c *config.Config) {
	t.Helper()
	spec := w.in("spec.template.spec")
	if !within(w.in("spec.selector.matchLabels"), w.in("spec.template.metadata.labels")) {
		t.Errorf("%s: the selector %v", command, w.in("spec.selector"))
	}
	box := spec.list("containers")[0]
	wait := 0
	if sleep := box.text("lifecycle.preStop.sleep.seconds"); sleep != "" {
		_, _ = fmt.Sscan(sleep, &wait) // 0 if it is none, which is too little then
	}
	var grace int
	if _, err := fmt.Sscan(spec.text("terminationGracePeriodSeconds"), &grace); err != nil {
		t.Error(err)
	}
	if time.Duration(grace-wait)*time.Second < c.Limits.DrainTimeout+20*time.Second { // what comes after the drain takes some
		t.Errorf("%s: a grace period of %d s with %d s of sleep, and limits.drain_timeout is %v", command, grace, wait, c.Limits.DrainTimeout)
	}
	if got := fmt.Sprint(box["args"]); got != "["+command+" -c /etc/headgate/headgate.yaml]" {
		t.Errorf("arguments %s", got)
	}
	ports := map[string]string{"http": c.Listen, "admin": c.Admin.Listen}
	for _, p := range box.list("ports") {
		if at := ":" + p.text("containerPort"); ports[p.text("name")] != at {
			t.Errorf("port %v, and it listens at %s", p, ports[p.text("name")])
		}
	}
	scheme := "HTTP"
	if c.Admin.TLS != nil {
		scheme = "HTTPS"
	}
	for probe, path := range map[string]string{"livenessProbe": "/healthz", "readinessProbe": "/readyz"} {
		get := box.in(probe + ".httpGet")
		if get.text("path") != path || get.text("port") != "admin" || get.text("scheme") != scheme {
			t.Errorf("%s: %s asks %v", command, probe, get)
		}
	}
	for path, want := range map[string]string{
		"securityContext.runAsUser": user, "securityContext.runAsNonRoot": "true", "securityContext.seccompProfile.type": "RuntimeDefault", "automountServiceAccountToken": "false",
	} {
		if got := spec.text(path); got != want {
			t.Errorf("%s: %s is %s, want %s", command, path, got, want)
		}
	}
	for path, want := range map[string]string{
		"securityContext.readOnlyRootFilesystem": "true", "securityContext.allowPrivilegeEscalation": "false", "securityContext.capabilities.drop": "[ALL]",
	} {
		if got := box.text(path); got != want {
			t.Errorf("%s: %s is %s, want %s", command, path, got, want)
		}
	}
	// What the configuration names is there: variables, files, folders that are written.
	env := map[string]bool{}
	for _, v := range box.list("env") {
		env[v.text("name")] = true
	}
	for _, p := range c.Unset(func(name string) string {
		return map[bool]string{true: strings.Repeat("s", config.LeastSecret)}[env[name] || len(box.list("envFrom")) > 0]
	}) {
		t.Errorf("%s: %v", command, p)
	}
	var mounted []string
	for _, m := range box.list("volumeMounts") {
		if named(spec.list("volumes"), m.text("name")) == nil && named(w.list("spec.volumeClaimTemplates"), m.text("name")) == nil && !slices.ContainsFunc(w.list("spec.volumeClaimTemplates"), func(v tree) bool { return v.text("metadata.name") == m.text("name") }) {
			t.Errorf("%s: no volume %s", command, m.text("name"))
		}
		mounted = append(mounted, m.text("mountPath")+"/")
	}
	var there []string
	for _, source := range named(spec.list("volumes"), "config").list("projected.sources") {
		for _, item := range append(source.list("secret.items"), source.list("configMap.items")...) {
			there = append(there, "/etc/headgate/"+item.text("path"))
		}
	}
	read := []string{c.Identity.KeysFile}
	if c.TLS != nil {
		read = append(read, c.TLS.Cert, c.TLS.Key)
	}
	if c.Admin.TLS != nil {
		read = append(read, c.Admin.TLS.Cert, c.Admin.TLS.Key)
	}
	if c.Control != nil && c.Control.TLS != nil {
		read = append(read, c.Control.TLS.CA, c.Control.TLS.Cert, c.Control.TLS.Key)
	}
	for i := range c.Pools {
		for j := range c.Pools[i].Engines {
			if s := c.Pools[i].Engines[j].TLS; s != nil {
				read = append(read, s.CA, s.Cert, s.Key)
			}
		}
	}
	for _, file := range read {
		if file != "" && !slices.Contains(there, file) {
			t.Errorf("%s: nothing puts %s there: %v", command, file, there)
		}
	}
	if command == "serve" && c.Journal.File != "" && !slices.ContainsFunc(mounted, func(path string) bool { return strings.HasPrefix(c.Journal.File, path) }) {
		t.Errorf("%s is written, and mounted is %v", c.Journal.File, mounted)
	}
}

func checkServices(t *testing.T, all map[string]tree, workload tree) {
	t.Helper()
	labels := workload.in("spec.template.metadata.labels")
	ports := workload.list("spec.template.spec.containers")
	for name, service := range all {
		if service.text("kind") != "Service" {
			continue
		}
		if !within(service.in("spec.selector"), labels) {
			t.Errorf("%s selects %v", name, service.in("spec.selector"))
		}
		for _, p := range service.list("spec.ports") {
			if named(ports[0].list("ports"), p.text("targetPort")) == nil {
				t.Errorf("%s leads to port %s", name, p.text("targetPort"))
			}
		}
	}
	if name := workload.text("spec.serviceName"); workload.text("kind") == "StatefulSet" {
		peers := all["Service/"+name]
		if peers.text("spec.clusterIP") != "None" || peers.text("spec.publishNotReadyAddresses") != "true" {
			t.Errorf("pods have their names by %q: %v", name, peers.in("spec"))
		}
	}
}

// TestValues: each value says what it is for, and the schema has the values that there are,
// and no other.
func TestValues(t *testing.T) {
	file, err := parser.ParseFile("helm/headgate/values.yaml", parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	text, err := os.ReadFile("helm/headgate/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var in func(path string, n ast.Node, s tree)
	in = func(path string, n ast.Node, s tree) {
		m, ok := n.(*ast.MappingNode)
		if !ok || s.text("additionalProperties") != "false" {
			return // a value, or what Kubernetes says the form of
		}
		properties := s.in("properties")
		for _, v := range m.Values {
			key := v.Key.GetToken().Value
			at := strings.TrimPrefix(path+"."+key, ".")
			inner, ok := properties[key].(map[string]any)
			if !ok {
				t.Errorf("values.schema.json has no %s", at)
				continue
			}
			delete(properties, key)
			_, mapping := v.Value.(*ast.MappingNode)
			closed := tree(inner).text("additionalProperties") == "false"
			if v.GetComment() == nil && !(mapping && closed) {
				t.Errorf("values.yaml does not say what %s is for", at)
			}
			in(at, v.Value, inner)
		}
		for key := range properties {
			if key != "global" {
				t.Errorf("values.schema.json has %s.%s, and values.yaml has not", path, key)
			}
		}
	}
	in("", file.Docs[0].Body, schema)
}
