package config

import (
	"strings"
	"testing"
)

const fingerprinted = `
anonymous: {classes: [interactive], default: interactive, header: true}
control: {store: etcd, endpoints: ["http://127.0.0.1:2379"], replicas: 4}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://127.0.0.1:8000", slots: 64, kv_tokens: 100000}]
    classes: [{name: interactive, floor: {slots: 50%}}]
`

// TestFingerprint: it changes with what a fleet's leader makes of a pool, and with
// nothing else.
func TestFingerprint(t *testing.T) {
	of := func(old, new string) string {
		t.Helper()
		c, problems := Parse("test.yaml", []byte(strings.Replace(fingerprinted, old, new, 1)))
		for _, p := range problems {
			if !p.Warning {
				t.Fatal(p)
			}
		}
		return c.Shared(0, nil).Fingerprint
	}
	base := of("", "")
	for _, v := range []struct {
		old, new string
		same     bool
	}{
		{"", "", true}, {"127.0.0.1:8000", "127.0.0.2:8000", true}, {"replicas: 4", "replicas: 5", false}, {"slots: 64", "slots: 63", false},
		{", kv_tokens: 100000", "", false}, {"name: gpu0", "name: gpu1", false}, {"50%", "51%", false},
		{"50%}", "50%}, ceiling: {slots: 60}", false}, {"50%}", "50%}, unlent: {slots: 1}", false}, {"replicas: 4", "replicas: 4, ttl: 8s", true},
		{"    classes", "    control: {survival: {slots: 1, kv_tokens: 8000}}\n    classes", false},
	} {
		if got := of(v.old, v.new); (got == base) != v.same || len(got) != 8 {
			t.Errorf("%q for %q: fingerprint %s, and %s before; the same: %v", v.new, v.old, got, base, v.same)
		}
	}
}
