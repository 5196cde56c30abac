package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKVPage runs every command of docs/kv.md; what the page shows is what it
// prints.
func TestKVPage(t *testing.T) {
	t.Chdir("../..")
	const page = "docs/kv.md"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```\n\n```text\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(blocks) < 4 {
		t.Fatalf("%d commands with what they print", len(blocks))
	}
	if all := strings.Count(text, "headgate kv --config"); all != len(blocks) {
		t.Errorf("%d commands, of which %d show what they print", all, len(blocks))
	}
	for _, m := range blocks {
		line := strings.ReplaceAll(strings.TrimSpace(m[1]), "\\\n", " ")
		var args []string
		for _, w := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
			args = append(args, strings.Trim(w, `"`))
		}
		if len(args) < 2 || args[0] != "./bin/headgate" {
			t.Fatalf("%q is no command of headgate", line)
		}
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetArgs(args[1:])
		if err := cmd.Execute(); err != nil {
			out.WriteString("headgate: " + err.Error() + "\n")
		}
		if *rewrite {
			text = strings.Replace(text, m[0], "```sh\n"+m[1]+"```\n\n```text\n"+out.String()+"```", 1)
		} else if d := cmp.Diff(m[2], out.String()); d != "" {
			t.Errorf("%s (-page +printed):\n%s", line, d)
		}
	}
	if *rewrite {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
