package packages

import (
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// types are those of the kinds that the chart makes.
var types = map[string]func() any{
	"v1 ConfigMap":                            func() any { return &core.ConfigMap{} },
	"v1 Service":                              func() any { return &core.Service{} },
	"v1 ServiceAccount":                       func() any { return &core.ServiceAccount{} },
	"v1 PersistentVolumeClaim":                func() any { return &core.PersistentVolumeClaim{} },
	"apps/v1 Deployment":                      func() any { return &apps.Deployment{} },
	"apps/v1 StatefulSet":                     func() any { return &apps.StatefulSet{} },
	"policy/v1 PodDisruptionBudget":           func() any { return &policy.PodDisruptionBudget{} },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return &networking.NetworkPolicy{} },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return &monitoring.ServiceMonitor{} },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return &monitoring.PrometheusRule{} },
}

// checkManifest reads a manifest strictly: a field that its kind has not, one that is given
// twice, or a value of another type is an error, as it is to the API server.
func checkManifest(t *testing.T, text string) {
	t.Helper()
	var kind meta.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		t.Errorf("%v\n%s", err, text)
		return
	}
	typed, ok := types[kind.APIVersion+" "+kind.Kind]
	if !ok {
		t.Errorf("nothing here knows %s %s", kind.APIVersion, kind.Kind)
		return
	}
	if err := yaml.UnmarshalStrict([]byte(text), typed()); err != nil {
		t.Errorf("%s: %v\n%s", kind.Kind, err, text)
	}
}
