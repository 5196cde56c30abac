package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"headgate/config"
)

// manifest has the fields of Kubernetes' objects that docs/kubernetes.md uses. A key that is
// not here is an error: either it is misspelt, or nothing below has looked at it.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Spec struct {
		// Of a StatefulSet.
		ServiceName         string   `yaml:"serviceName"`
		Replicas            int      `yaml:"replicas"`
		PodManagementPolicy string   `yaml:"podManagementPolicy"`
		Template            template `yaml:"template"`
		// Of a Service.
		ClusterIP                string `yaml:"clusterIP"`
		PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
		Ports                    []struct {
			Name       string `yaml:"name"`
			Port       int    `yaml:"port"`
			TargetPort string `yaml:"targetPort"`
		} `yaml:"ports"`
		// Of a PodDisruptionBudget.
		MaxUnavailable int `yaml:"maxUnavailable"`
		// A service's are labels, the others' are below matchLabels.
		Selector struct {
			App         string            `yaml:"app"`
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
	} `yaml:"spec"`
}

type template struct {
	Metadata struct {
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		TerminationGracePeriodSeconds int  `yaml:"terminationGracePeriodSeconds"`
		AutomountServiceAccountToken  bool `yaml:"automountServiceAccountToken"`
		SecurityContext               struct {
			RunAsNonRoot   bool `yaml:"runAsNonRoot"`
			RunAsUser      int  `yaml:"runAsUser"`
			RunAsGroup     int  `yaml:"runAsGroup"`
			SeccompProfile struct {
				Type string `yaml:"type"`
			} `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		Containers []container `yaml:"containers"`
		Volumes    []struct {
			Name      string `yaml:"name"`
			ConfigMap struct {
				Name string `yaml:"name"`
			} `yaml:"configMap"`
		} `yaml:"volumes"`
	} `yaml:"spec"`
}

type container struct {
	Name  string   `yaml:"name"`
	Image string   `yaml:"image"`
	Args  []string `yaml:"args"`
	Ports []struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	} `yaml:"ports"`
	SecurityContext struct {
		AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct {
			Drop []string `yaml:"drop"`
		} `yaml:"capabilities"`
	} `yaml:"securityContext"`
	LivenessProbe  probe `yaml:"livenessProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	VolumeMounts   []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
	PeriodSeconds int `yaml:"periodSeconds"`
}

// TestKubernetes: the objects of docs/kubernetes.md are well-formed, fit each other and the
// configuration that stands there, and name commands, flags and paths that there are.
func TestKubernetes(t *testing.T) {
	const page = "docs/kubernetes.md"
	var cfg *config.Config
	var file string
	all := map[string]manifest{}
	var headless, clients manifest
	for _, b := range blocks(t) {
		switch name, text, _ := strings.Cut(b.text, "\n"); {
		case b.page != page || b.language != "yaml":
		case strings.HasPrefix(name, "# "):
			file = strings.TrimPrefix(name, "# ")
			text = regexp.MustCompile(`sha256:<[^>]*>`).ReplaceAllString(text, "sha256:"+strings.Repeat("0", 64))
			var problems []config.Problem
			if cfg, problems = config.Parse(file, []byte(text)); cfg == nil || len(problems) > 0 {
				t.Fatalf("%s: %v", file, problems)
			}
		default:
			in := yaml.NewDecoder(bytes.NewReader([]byte(b.text)), yaml.Strict())
			for {
				var m manifest
				err := in.Decode(&m)
				if errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", page, err)
				}
				all[m.Kind] = m
				if m.Kind == "Service" && m.Spec.ClusterIP == "None" {
					headless = m
				} else if m.Kind == "Service" {
					clients = m
				}
			}
		}
	}
	set, budget := all["StatefulSet"], all["PodDisruptionBudget"]
	versions := map[string]string{"StatefulSet": "apps/v1", "Service": "v1", "PodDisruptionBudget": "policy/v1"}
	for kind, m := range all {
		if m.APIVersion != versions[kind] || m.APIVersion == "" {
			t.Errorf("%s is of %q", kind, m.APIVersion)
		}
	}
	if cfg == nil || len(all) != 3 || headless.Kind == "" || clients.Kind == "" || len(set.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%s: a configuration and %d kinds of objects", page, len(all))
	}
	pod := set.Spec.Template
	c := pod.Spec.Containers[0]
	check := func(what string, got, want any) {
		t.Helper()
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			t.Errorf("%s is %s, want %s", what, g, w)
		}
	}
	labels := pod.Metadata.Labels
	check("the set's selector", set.Spec.Selector.MatchLabels, labels)
	check("the budget's selector", budget.Spec.Selector.MatchLabels, labels)
	check("the headless service's selector", headless.Spec.Selector.App, labels["app"])
	check("the clients' selector", clients.Spec.Selector.App, labels["app"])
	check("the set's service", set.Spec.ServiceName, headless.Metadata.Name)
	check("pods that are not ready have names", headless.Spec.PublishNotReadyAddresses, true)
	check("the pods' policy", set.Spec.PodManagementPolicy, "Parallel")
	check("the budget", budget.Spec.MaxUnavailable, 1)
	if set.Spec.Replicas < 2 || set.Spec.Replicas > cfg.Control.Replicas {
		t.Errorf("%d replicas, of which control.replicas allows %d", set.Spec.Replicas, cfg.Control.Replicas)
	}
	if grace := time.Duration(pod.Spec.TerminationGracePeriodSeconds) * time.Second; grace <= cfg.Limits.DrainTimeout {
		t.Errorf("a grace period of %v, and limits.drain_timeout is %v", grace, cfg.Limits.DrainTimeout)
	}
	check("the mounted volume", c.VolumeMounts[0].Name, pod.Spec.Volumes[0].Name)
	where := path.Join(c.VolumeMounts[0].MountPath, file)
	check("the arguments", c.Args, []string{"serve", "-c", where})

	ports := map[string]string{}
	for _, p := range c.Ports {
		ports[p.Name] = fmt.Sprint(p.ContainerPort)
	}
	for name, listen := range map[string]string{"http": cfg.Listen, "admin": cfg.Admin.Listen} {
		host, port, err := net.SplitHostPort(listen)
		if err != nil || host != "0.0.0.0" {
			t.Errorf("%s listens at %s, which no other pod reaches", name, listen)
		}
		check("port "+name, ports[name], port)
	}
	for _, p := range headless.Spec.Ports {
		check("the headless service's port "+p.Name, p.Port, ports[p.Name])
	}
	if p := clients.Spec.Ports[0]; p.TargetPort != "http" {
		t.Errorf("clients are sent to port %s", p.TargetPort)
	}
	check("the liveness probe", c.LivenessProbe.HTTPGet, struct{ Path, Port string }{"/healthz", "admin"})
	check("the readiness probe", c.ReadinessProbe.HTTPGet, struct{ Path, Port string }{"/readyz", "admin"})

	// A controller apart is described in words.
	text, err := os.ReadFile("../" + page)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("`args: \\[(.*?)\\]`").FindSubmatch(text)
	if m == nil {
		t.Fatal("no arguments of a controller are shown")
	}
	check("the controller's arguments", string(m[1]), "controller, -c, "+where)
	for _, command := range []string{"serve", "controller"} {
		if out, _ := cli(t, command, "--help"); !regexp.MustCompile(`(?m)^\s*-c\b`).MatchString(out) {
			t.Errorf("%s has no flag -c:\n%s", command, out)
		}
	}

	// docs/forwarding.md says how these replicas reach each other.
	for _, b := range blocks(t) {
		if b.page != "docs/forwarding.md" || b.language != "yaml" {
			continue
		}
		var v struct {
			Control struct {
				Forward struct {
					Address string `yaml:"address"`
				} `yaml:"forward"`
			} `yaml:"control"`
		}
		if err := yaml.Unmarshal([]byte(b.text), &v); err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(strings.ReplaceAll(v.Control.Forward.Address, "{replica}", set.Metadata.Name+"-0"))
		if err != nil {
			t.Fatal(err)
		}
		check("a replica's address", u.Host, set.Metadata.Name+"-0."+headless.Metadata.Name+":"+ports["http"])
	}
}
