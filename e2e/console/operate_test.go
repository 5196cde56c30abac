package console

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
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

// TestOperate uses the views that let an operator do something, with a batch that runs, a
// report of a past run, and keys for operating and for reading: each shows live data, the
// keyboard suffices, axe finds nothing serious, and what is done is asked about and done.
func TestOperate(t *testing.T) {
	node, browser := need.Tool(t, "node"), need.Tool(t, "chromium")
	need.NodeModules(t, ".")
	if !console.Built() {
		t.Fatal("the console is not built: make console")
	}
	engine := headgate.StartEngine(t, "--speed", "0.5")
	operate, operateHash := headgate.NewKey(t)
	read, readHash := headgate.NewKey(t)
	reports := filepath.Join(t.TempDir(), "past")
	if err := os.Mkdir(reports, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"report.html": `<!DOCTYPE html><meta http-equiv="refresh" content="0;url=https://evil.test"><style>h1{color:rgb(1,2,3)}</style><link rel="stylesheet" href="https://evil.test/a.css">
<h1 onclick="alert(1)">Lending pays</h1><img src="https://evil.test/x.png"><script>top.document.title='owned'</script>`,
		"report.json": `{"schema":"headgate.bench.report/1","verdict":"pass","plan":{"name":"lending"}}`,
	} {
		if err := os.WriteFile(filepath.Join(reports, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := headgate.Start(t, fmt.Sprintf(`
admin: {keys: [{name: ops, role: operate, hash: %q}, {name: eyes, role: read, hash: %q}]}
console: {reports: %q}
anonymous: {classes: [interactive, batch], header: true}
batch: {dir: %q, min_window: 1m}
pools:
  - name: main
    engines: [{name: sim, kind: vllm, url: %q, slots: 4}]
    classes:
      - {name: interactive, floor: {slots: 3}, objective: {ttft: 5s, e2e: 30s}}
      - {name: batch, floor: {slots: 1}, reclaim: reclaim, priority: 10}
`, operateHash, readHash, filepath.Dir(reports), t.TempDir(), engine.URL)).AwaitReady()
	submit(t, g.URL, 40)

	out, err := filepath.Abs(pictures)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, "operate.mjs", browser, g.Admin, operate, read, out)
	cmd.SysProcAttr = proctest.EndsWithParent()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	said, err := cmd.Output()
	if err != nil {
		t.Fatalf("operate.mjs: %v\n%s%s", err, said, stderr.String())
	}
	all := map[string]result{}
	for lines := bufio.NewScanner(bytes.NewReader(said)); lines.Scan(); {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		all[r.Check] = r
	}
	for _, check := range []string{"batch", "fleet", "config", "lab", "actions", "reader", "accessible"} {
		report(t, all, check)
	}
}

// submit makes a batch of so many long items.
func submit(t *testing.T, base string, items int) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	f, err := w.CreateFormFile("file", "requests.jsonl")
	if err == nil {
		for i := range items {
			fmt.Fprintf(f, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"model":"headgate-simulated-m1","max_tokens":150,"prompt":"item %d"}}`+"\n", i, i)
		}
		err = w.WriteField("purpose", "batch")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	post := func(path, kind, body string) (id string) {
		res, err := http.Post(base+path, kind, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		var v struct{ ID string }
		if err != nil || res.StatusCode != http.StatusOK || json.Unmarshal(text, &v) != nil {
			t.Fatalf("%s: %d %s %v", path, res.StatusCode, text, err)
		}
		return v.ID
	}
	file := post("/v1/files", w.FormDataContentType(), b.String())
	post("/v1/batches", "application/json", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h"}`, file))
}
