package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReference: docs/cli.md is what the commands say, and each has a man page.
func TestReference(t *testing.T) {
	t.Setenv("OPENAI_BASE_URL", "") // which is a default
	cmd := root()
	const file = "../../docs/cli.md"
	want := cliPage(cmd)
	if *rewrite {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(have), want); d != "" {
		t.Errorf("%s is not what the commands say; -rewrite (-file +commands):\n%s", file, d)
	}

	dir := filepath.Join(t.TempDir(), "man1")
	out, err := command("man", dir)
	if err != nil {
		t.Fatal(err, out)
	}
	for _, c := range described(cmd) {
		page, err := os.ReadFile(filepath.Join(dir, manName(c)+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, l := range strings.Split(string(page), "\n") {
			if word, _, _ := strings.Cut(l, " "); strings.HasPrefix(l, ".") && !strings.Contains(".TH .SH .PP .TP .nf .fi", word) || strings.HasPrefix(l, "'") {
				t.Errorf("%s: roff takes a line for its own: %s", manName(c), l)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "headgate-limits-refill.1"))
	if err != nil {
		t.Fatal(err)
	}
	golden := "testdata/headgate-limits-refill.1"
	if *rewrite {
		if err := os.WriteFile(golden, page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wantPage, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(wantPage), string(page)); d != "" {
		t.Errorf("-%s +written:\n%s", golden, d)
	}
}

// TestCompletion: values come from usages, from the file that the line names, and from the
// gateway that it names.
func TestCompletion(t *testing.T) {
	r := newReloadRig(t, two("odd", 64))
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	if _, err := command("key", "create", "alice", "-f", keys, "--tenant", "a", "--class", "odd"); err != nil {
		t.Fatal(err)
	}
	admin := "http://" + r.s.admin.Addr().String()
	for _, c := range []struct {
		args []string
		want string // names, and the directive behind them
	}{
		{[]string{"ser"}, "serve\tServe clients :4"},
		{[]string{"limits", "--output", ""}, "table json :4"},
		{[]string{"occupancy", "--output", ""}, "table json csv svg :4"},
		{[]string{"engine", "--kv-layout", ""}, "shared per-slot :4"},
		{[]string{"probe", "--config", r.file, "--engine", ""}, "sim :4"},
		{[]string{"top", "--admin", admin, "--pool", ""}, "main :4"},
		{[]string{"grants", "--admin", admin, "--pool", "x"}, ":4"},
		{[]string{"plan", "--admin", "http://" + gone(t), "--set", ""}, "auto :4"},
		{[]string{"key", "revoke", "-f", keys, ""}, "alice :4"},
		{[]string{"serve", "-c", ""}, "yaml yml :8"},
	} {
		out, err := command(append([]string{"__complete"}, c.args...)...)
		if got := strings.Join(strings.Split(strings.TrimSpace(out), "\n"), " "); err != nil || got != c.want {
			t.Errorf("%v: %q, %v, want %q", c.args, got, err, c.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, err := command("completion", shell); err != nil || !strings.Contains(out, "headgate") {
			t.Errorf("%s: %v, %d bytes", shell, err, len(out))
		}
	}
}
