package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"headgate/config"
)

// consoleRig is a server whose admin listener asks for a key.
type consoleRig struct {
	*reloadRig
	key, file string
	hashes    []string
}

func newConsoleRig(t *testing.T) *consoleRig {
	key, hash := newTestKey(t)
	_, other := newTestKey(t)
	r := &consoleRig{key: key, hashes: []string{hash, other}}
	r.file = strings.NewReplacer("OPERATE", hash, "ALICE", other, "REPORTS", t.TempDir()).Replace(`listen: 127.0.0.1:0
admin:
  listen: 127.0.0.1:0
  keys: [{name: ops, hash: "OPERATE", role: operate}]
console: {reports: REPORTS}
keys: [{name: alice, tenant: a, hash: "ALICE", classes: [interactive, batch]}]
pools:
  - name: main
    engines: [{name: sim, kind: vllm, url: "http://ENGINE", slots: 4, kv_tokens: 5104, observe_every: 50ms}]
    classes:
      - {name: interactive, floor: {slots: 100%, kv_tokens: 25%}, reopen: settled, objective: {ttft: 5s, e2e: 30s}, queue: {depth: 1000, per_tenant: 0, wait: 0s}}
      - {name: batch, floor: {slots: 1, kv_tokens: 50%}, guarantee: window, window: 60s, reclaim: reclaim, priority: 10, queue: {depth: 1000, per_tenant: 0, wait: 0s}}
`)
	r.reloadRig = newReloadRig(t, r.file)
	return r
}

// ask asks the admin listener with the operator's key, and looks for what must not be in an
// answer.
func (r *consoleRig) ask(method, path string, body any) (status int, answer string) {
	r.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.s.admin.Addr().String()+path, bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, hash := range r.hashes {
		if strings.Contains(string(text), strings.TrimPrefix(hash, "sha256:")) || strings.Contains(string(text), "sha256:") {
			r.t.Errorf("%s %s shows a hash: %s", method, path, text)
		}
	}
	return res.StatusCode, string(text)
}

// What is in force is told with where it comes from and what its file would change, and what
// is pasted is judged as validate does, against what is in force.
func TestSettingsOfAServer(t *testing.T) {
	r := newConsoleRig(t)
	show := func() gjson.Result {
		t.Helper()
		status, text := r.ask("GET", "/api/config", nil)
		if status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		return gjson.Parse(text)
	}
	r.s.said = map[string]bool{"admin.listen": true}
	v := show()
	for path, want := range map[string]string{
		"file": r.reloadRig.file, "effective.keys.0.tenant": "a", "effective.keys.0.hash": "[redacted]", "effective.admin.keys.0.hash": "[redacted]",
		"provenance.keys.0.tenant": r.reloadRig.file + ":6", "provenance.admin.listen": "command line", "provenance.listen": r.reloadRig.file + ":1",
		"provenance.limits.body_bytes": "default", "provenance.pools.0.classes.0.ceiling.slots": "derived", "changes": "[]", "problems": "[]", "refused": "false",
	} {
		if got := v.Get(path); got.String() != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}

	// The file changes, in what is taken over at once and in what is not.
	_, third := newTestKey(t)
	r.hashes = append(r.hashes, third)
	changed := strings.NewReplacer(r.hashes[1], third, "depth: 1000, per_tenant: 0, wait: 0s}}\n      - {name: batch", "depth: 7, per_tenant: 0, wait: 0s}}\n      - {name: batch", "listen: 127.0.0.1:0\nadmin", "listen: 127.0.0.1:1\nadmin").Replace(r.file)
	r.write(changed)
	v = show()
	if got := v.Get(`changes.#.path`).String(); got != `["listen","keys[alice].hash","pools[main].classes[interactive].queue.depth"]` {
		t.Errorf("changes %s", v.Get("changes"))
	}
	if got := v.Get("changes.0.restart").Bool() && !v.Get("changes.2.restart").Bool() && v.Get("changes.1.new").Str == "[redacted]" && v.Get("changes.2.new").Str == "7"; !got {
		t.Errorf("changes %s", v.Get("changes"))
	}
	for path, want := range map[string]string{"provenance.listen": "earlier file", "provenance.pools.0.classes.0.queue.depth": "earlier file", "provenance.pools.0.classes.1.queue.depth": r.reloadRig.file + ":12"} {
		if got := v.Get(path).Str; got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	r.write(strings.Replace(r.file, "priority: 10", "priority: high", 1))
	if v = show(); !v.Get("refused").Bool() || v.Get("problems.0.file").Str != r.reloadRig.file || v.Get("problems.0.line").Int() != 12 || v.Get("problems.0.path").Str != "pools[0].classes[1].priority" {
		t.Errorf("a broken file: %s %s", v.Get("refused"), v.Get("problems"))
	}
	// What is wrong in the file of keys is told as being there.
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(keys, []byte("keys:\n  - {name: bob, tenant: b, hash: \""+third+"\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.write("keys_file: " + keys + "\n" + r.file)
	if v = show(); v.Get("problems.0.file").Str != keys || v.Get("problems.0.line").Int() != 2 {
		t.Errorf("a broken file of keys: %s", v.Get("problems"))
	}
	if err := os.Remove(r.reloadRig.file); err != nil {
		t.Fatal(err)
	}
	if v = show(); !v.Get("refused").Bool() || !strings.Contains(v.Get("problems.0.text").Str, "no such file") {
		t.Errorf("without a file: %s", v.Get("problems"))
	}

	// What is pasted.
	check := func(text string) gjson.Result {
		t.Helper()
		status, answer := r.ask("POST", "/api/config/check", map[string]string{"text": text})
		if status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		return gjson.Parse(answer)
	}
	if v = check(strings.ReplaceAll(changed, "ENGINE", r.engine)); !v.Get("good").Bool() || v.Get("changes.#").Int() != 3 || v.Get("effective.pools.0.classes.0.queue.depth").Int() != 7 {
		t.Errorf("a good one: %s", v)
	}
	if v = check("listen: nowhere\npols: []\n"); v.Get("good").Bool() || v.Get("problems.0.file").Exists() || v.Get("effective").Type != gjson.Null || v.Get("problems.2.line").Int() != 2 || !strings.Contains(v.Get("problems.2.text").Str, "pools") {
		t.Errorf("a bad one: %s", v)
	}
	secret := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(secret, []byte("not: [for, you]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v = check(strings.Replace(r.file, "console:", "keys_file: "+secret+"\nconsole:", 1)); !v.Get("good").Bool() || strings.Contains(v.String(), "not: [for") || !strings.Contains(v.String(), "it is not read here") {
		t.Errorf("one that names a file: %s", v)
	}
	if r.s.config.Load().Pools[0].Classes[0].Queue.Depth != 1000 {
		t.Error("what was pasted is in force")
	}
}

// A pool's policy is simulated beside another, which has to be one, within bounds.
func TestWhatIf(t *testing.T) {
	r := newConsoleRig(t)
	_, first := r.ask("GET", "/api/lab/whatif", nil)
	offer := gjson.Parse(first)
	policy := offer.Get("pools.0.policy").Str
	if p := offer.Get("pools.0"); p.Get("not").Exists() || p.Get("slots").Int() != 4 || p.Get("kv_tokens").Int() != 5104 || !strings.Contains(policy, "reclaim: reclaim") || offer.Get("profiles.#").Int() < 5 {
		t.Fatalf("%s", first)
	}
	if e, err := r.s.simulated(&r.s.config.Load().Pools[0]); err != nil || !e.PrefixCaching {
		t.Errorf("the engine says that it keeps prefixes, the model does not: %v", err)
	}
	run := func(change func(map[string]any)) (int, string) {
		t.Helper()
		in := map[string]any{"pool": "main", "profile": "metal-long-context-v1", "seeds": 5, "speed": 2, "policy": policy}
		change(in)
		return r.ask("POST", "/api/lab/whatif", in)
	}
	status, text := run(func(map[string]any) {})
	v := gjson.Parse(text)
	if status != 200 || v.Get("present.interactive").Int() == 0 || v.Get("present").Raw == "" || v.Get("present").String() != v.Get("changed").String() {
		t.Errorf("the same policy: %d %s", status, v)
	}
	status, text = run(func(in map[string]any) {
		in["policy"] = strings.Replace(policy, "reclaim: reclaim", "reclaim: attrition", 1)
	})
	other := gjson.Parse(text)
	if status != 200 || other.Get("present").String() != v.Get("present").String() || other.Get("changed.reclaims").Int() != 0 || v.Get("present.reclaims").Int() == 0 {
		t.Errorf("without reclaim: %d %s", status, other)
	}
	for _, c := range []struct {
		field string
		value any
		says  string
	}{
		{"pool", "other", `"pool" is "other", must be main`},
		{"profile", "mine", `"profile" is "mine", must be metal-long-context-v1, `},
		{"seeds", 0, `"seeds" is 0, must be 1 to 5`},
		{"seeds", 6, `"seeds" is 6, must be 1 to 5`},
		{"speed", 0, `"speed" is 0, must be 0.01 to 100`},
		{"policy", "", "classes: value 0: allowed 1 to 64 classes"},
		{"policy", strings.Replace(policy, "reclaim: reclaim", "reclaim: never", 1), "reclaim: value never: allowed attrition, deadline"},
		{"policy", strings.Replace(policy, "name: batch", "name: bulk", 1), "there is no class batch"},
		{"policy", strings.Repeat("#", mostPolicyBytes+1), `"policy" is 65537 bytes long, must be at most 65536`},
		{"rush", true, `unknown field "rush"`},
	} {
		if status, text := run(func(in map[string]any) { in[c.field] = c.value }); status != 400 || !strings.Contains(text, c.says) {
			t.Errorf("%s %.40s: %d %s, want %s", c.field, fmt.Sprint(c.value), status, text, c.says)
		}
	}
	// An engine that has said nothing, and a policy without the classes of traces.
	cfg := r.s.config.Load()
	bare := *cfg
	bare.Pools = append([]config.Pool(nil), cfg.Pools...)
	bare.Pools[0].Name, bare.Pools[0].Classes = "bare", append([]config.Class(nil), cfg.Pools[0].Classes[:1]...)
	r.s.config.Store(&bare)
	defer r.s.config.Store(cfg)
	if _, text := r.ask("GET", "/api/lab/whatif", nil); !strings.Contains(text, "there is no class batch") {
		t.Errorf("%s", text)
	}
}
