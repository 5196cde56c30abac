package headgate_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestContainerfile: the image has the released binary and nothing else, and does not run as
// root. Whether it builds is for who has a container engine.
func TestContainerfile(t *testing.T) {
	text, err := os.ReadFile("Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		names, lines[name] = append(names, name), rest
	}
	// One of each: no second stage, no RUN that takes a shell, no ADD that fetches.
	if want := []string{"FROM", "ARG", "COPY", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if lines["FROM"] != "scratch" {
		t.Errorf("FROM %s", lines["FROM"])
	}
	if !regexp.MustCompile(`^[1-9][0-9]{3,}:[1-9][0-9]{3,}$`).MatchString(lines["USER"]) {
		t.Errorf("USER %s: runAsNonRoot takes a number, and not root's", lines["USER"])
	}
	for _, name := range []string{"ENTRYPOINT", "CMD"} {
		if !strings.HasPrefix(lines[name], "[") {
			t.Errorf("%s %s takes a shell", name, lines[name])
		}
	}
	release, err := os.ReadFile("tools/release.sh")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lines["COPY"], "bin/release/headgate-linux-") || !strings.Contains(string(release), "name=headgate-linux-$arch") || !strings.Contains(string(release), "CGO_ENABLED=0") {
		t.Errorf("COPY %s: not what make release makes", lines["COPY"])
	}
	// What the page about Kubernetes tells to run it as is what it is.
	page, err := os.ReadFile("docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	user, _, _ := strings.Cut(lines["USER"], ":")
	for _, want := range []string{"runAsNonRoot: true", "runAsUser: " + user, "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [ALL]"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/kubernetes.md has no %s", want)
		}
	}
}
