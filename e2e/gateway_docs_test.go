package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"headgate/e2e/headgate"
	"headgate/e2e/need"
	"headgate/gateway"
)

// What README.md and docs/*.md show is run as it stands there: the commands of
// sh blocks, the programs of js blocks, and the configurations of yaml blocks
// that begin with the name of their file.

// notRun are the shown commands that no test can run, with the reason.
var notRun = map[string]string{
	"make run":                          "serves until it is stopped; it is serve --demo --sample-load, which is run",
	"make test":                         "runs this test",
	"make fleet-demo":                   "runs until it is stopped; e2e/fleetdemo has a test of it",
	"headgate serve -c fleet.yaml":      "wants etcd; TestFleet runs one",
	"headgate controller -c fleet.yaml": "wants etcd; TestFleet runs one",
	`headgate control forget headgate-3 --admin http://127.0.0.1:9090 --reason "scaled down"`: "wants a replica that is gone; TestFleet has one forgotten",
	"etcdctl --endpoints http://10.0.0.1:2379 get --prefix /headgate/default/":                "wants etcd and its client; control/etcd has a test of the keys",
	"headgate observe report --admin http://127.0.0.1:9090 --pool demo --output table":        "wants a pool that observes; cmd/headgate has a test of it",
}

// block is a fenced block of a page.
type block struct {
	page, language, text string
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

func blocks(t *testing.T) []block {
	t.Helper()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []block
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
			all = append(all, block{strings.TrimPrefix(page, "../"), m[1], m[2]})
		}
	}
	return all
}

// commands splits a shell block into its commands: a line and those that a
// backslash continues it by, without comments.
func commands(text string) []string {
	var all []string
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		command, _, _ := strings.Cut(line, " # ")
		if command = strings.TrimSpace(command); command != "" && !strings.HasPrefix(command, "#") {
			all = append(all, command)
		}
	}
	return all
}

// ownTests are pages whose commands need files of their own, and are run beside the
// commands themselves, in cmd/headgate: TestKVPage, TestProve..., and its scripts.
var ownTests = map[string]bool{"docs/bench.md": true, "docs/bench-report.md": true, "docs/kv.md": true, "docs/occupancy.md": true, "docs/prove.md": true}

// ofOne is a fleet of one.
const ofOne = `anonymous: {classes: [interactive]}
control: {store: memory}
pools:
  - name: main
    engines: [{name: gpu0, kind: vllm, url: "ENGINE", slots: 4}]
    classes: [{name: interactive, floor: {slots: 2}}]
`

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	curl, node := need.Tool(t, "curl"), need.Tool(t, "node")
	need.NodeModules(t, sdk)
	demo := headgate.StartDemo(t).AwaitReady()
	fleet := headgate.Start(t, strings.ReplaceAll(ofOne, "ENGINE", headgate.StartEngine(t).URL)).AwaitReady()
	ofFleet := strings.NewReplacer("http://127.0.0.1:9090", fleet.Admin)
	headgate.AwaitGrants(t, fleet.Admin, "what the leader says of pool main", func(v *gateway.GrantsView) bool { return v.Pools["main"] != nil })
	here := strings.NewReplacer("http://127.0.0.1:8080", demo.URL, "http://127.0.0.1:9090", demo.Admin)
	dir := t.TempDir() // commands that name a file find what the pages show of it
	_, hash := headgate.NewKey(t)

	counts := map[string]int{}
	for _, b := range blocks(t) {
		name, text, named := strings.Cut(strings.TrimPrefix(b.text, "# "), "\n")
		if b.language != "yaml" || !named || !strings.HasPrefix(b.text, "# ") || !strings.HasSuffix(name, ".yaml") {
			continue
		}
		text = regexp.MustCompile(`sha256:<[^>]*>`).ReplaceAllString(text, hash)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(b.page+" "+name, func(t *testing.T) {
			run(t, dir, headgate.Binary(t), "validate", "-c", name)
		})
		counts["yaml"]++
	}
	for _, b := range blocks(t) {
		switch b.language {
		case "js":
			t.Run(b.page+" js", func(t *testing.T) {
				if out := run(t, sdk, node, "--input-type=module", "--eval", here.Replace(b.text)); strings.TrimSpace(out) == "" {
					t.Error("it printed nothing")
				}
			})
			counts["js"]++
		case "sh":
			if ownTests[b.page] {
				continue
			}
			for _, command := range commands(b.text) {
				at := here
				if b.page == "docs/fleet.md" {
					at = ofFleet
				}
				t.Run(b.page+" "+command, func(t *testing.T) { tryCommand(t, command, at, dir, curl) })
				counts["sh"]++
			}
		}
	}
	// A page whose blocks are no longer found would pass as well.
	for _, language := range []string{"yaml", "js", "sh"} {
		if counts[language] == 0 {
			t.Errorf("no %s block was found", language)
		}
	}
}

func tryCommand(t *testing.T, command string, here *strings.Replacer, dir, curl string) {
	program, args, _ := strings.Cut(command, " ")
	switch _, excused := notRun[command]; {
	case excused:
	case program == "curl":
		run(t, dir, "sh", "-c", curl+" --fail-with-body --show-error "+here.Replace(args))
	case program != "headgate" && program != "./bin/headgate":
		t.Error("no test runs it: run it here, or give the reason in notRun")
	case strings.HasPrefix(args, "serve --demo"):
		g := headgate.StartDemo(t, strings.Fields(strings.TrimPrefix(args, "serve --demo"))...)
		g.AwaitOutput(regexp.QuoteMeta("curl -N " + g.URL))
		g.AwaitReady()
	case strings.HasPrefix(args, "engine"):
		headgate.StartEngine(t, strings.Fields(strings.TrimPrefix(args, "engine"))...)
	case strings.HasPrefix(args, "probe"):
		tryProbe(t, args, dir)
	case strings.HasPrefix(args, "serve"):
		t.Error("a command that serves a file: start it here")
	default:
		run(t, dir, "sh", "-c", headgate.Binary(t)+" "+here.Replace(args))
	}
}

// run runs a program that has to succeed, and returns its output.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
