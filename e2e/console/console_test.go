// Package console has tests that look at the web console in a browser, in front of a running
// headgate.
package console

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"headgate/console"
	"headgate/e2e/headgate"
	"headgate/e2e/need"
	"headgate/proctest"
)

// result is what run.mjs prints of a check.
type result struct {
	Check   string
	Wrong   []string
	Figures map[string]any
}

// look has run.mjs look at a console.
func look(t testing.TB, checks, admin string, extra ...string) map[string]result {
	t.Helper()
	node, browser := need.Tool(t, "node"), need.Tool(t, "chromium")
	need.NodeModules(t, ".")
	if !console.Built() {
		t.Fatal("the console is not built: make console")
	}
	cmd := exec.CommandContext(t.Context(), node, append([]string{"run.mjs", browser, checks, admin}, extra...)...)
	cmd.SysProcAttr = proctest.EndsWithParent()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("run.mjs %s: %v\n%s%s", checks, err, out, stderr.String())
	}
	all := map[string]result{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		all[r.Check] = r
	}
	return all
}

func report(t *testing.T, all map[string]result, check string) {
	t.Helper()
	r, ok := all[check]
	if !ok {
		t.Errorf("%s was not looked at", check)
	}
	for _, w := range r.Wrong {
		t.Errorf("%s: %s", check, w)
	}
	if len(r.Figures) > 0 {
		t.Logf("%s: %v", check, r.Figures)
	}
}

// pictures is where the views are drawn, to be looked at.
const pictures = "../../bin/console"

// TestConsole looks at the demo under load: every view shows live data, a recall comes within
// a second, the keyboard suffices, axe finds nothing serious in either theme, no request
// leaves the listener, and the browser's console has no error.
func TestConsole(t *testing.T) {
	g := headgate.StartDemo(t, "--sample-load").AwaitReady()
	out, err := filepath.Abs(pictures)
	if err != nil {
		t.Fatal(err)
	}
	all := look(t, "live,recall,keyboard,looks", g.Admin, out)
	for _, check := range []string{"live", "recall", "keyboard", "looks"} {
		report(t, all, check)
	}
}

// TestConsoleKey has a listener that asks for keys, and a pool whose engine is not there.
func TestConsoleKey(t *testing.T) {
	key, hash := headgate.NewKey(t)
	g := headgate.Start(t, `
admin: {keys: [{name: ops, role: read, hash: "`+hash+`"}]}
anonymous: {classes: [interactive]}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "http://127.0.0.1:9", slots: 4}]
    classes: [{name: interactive, floor: {slots: 4}}]
`)
	report(t, look(t, "key", g.Admin, key), "key")
}

// mostBundle is what a browser may have to fetch, compressed, in bytes.
const mostBundle = 150 << 10

func TestBundle(t *testing.T) {
	if !console.Built() {
		t.Fatal("the console is not built: make console")
	}
	size := int64(0)
	err := filepath.WalkDir("../../console/dist/app", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !strings.HasSuffix(path, ".gz") {
			t.Errorf("%s is not compressed", path)
		}
		info, err := os.Stat(path)
		size += info.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f KiB", float64(size)/1024)
	if size > mostBundle {
		t.Errorf("the console has %d bytes compressed, at most %d are allowed", size, mostBundle)
	}
}
