package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// instruction is one of a Containerfile.
type instruction struct{ name, rest string }

// stages are those of a Containerfile, each from its FROM on; what stands before the first
// is the first here.
func stages(text string) [][]instruction {
	all := [][]instruction{nil}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		if name == "FROM" {
			all = append(all, nil)
		}
		last := len(all) - 1
		all[last] = append(all[last], instruction{name, rest})
	}
	return all
}

// user is the image's.
const user = "65532"

// TestContainerfile: the image is what tools/image-root.sh makes of a binary that is built as a
// release's is, and runs as nobody. make check-packages builds its last stage, and runs it.
func TestContainerfile(t *testing.T) {
	all := stages(read(t, "../Containerfile"))
	if len(all) != 4 {
		t.Fatalf("%d stages, want those of the console, of the binary and of the image", len(all)-1)
	}
	console, build, image := all[1], all[2], all[3]
	if !slices.Contains(console, instruction{"RUN", "tools/console.sh"}) || !slices.Contains(build, instruction{"COPY", "--from=console /src/console/dist/app console/dist/app"}) {
		t.Errorf("the binary has no console: %v, %v", console, build)
	}
	if n := len(build); build[n-2] != (instruction{"RUN", `tools/build.sh "$VERSION" "$TARGETARCH" /headgate`}) || build[n-1] != (instruction{"RUN", "tools/image-root.sh /headgate /image"}) {
		t.Errorf("the binary is not built by tools/build.sh: %v", build)
	}
	want := []instruction{
		{"FROM", "scratch"},
		{"COPY", "--from=build /image/ /"},
		{"USER", user + ":" + user},
		{"EXPOSE", "8080 9090"},
		{"ENTRYPOINT", `["/headgate"]`}, // takes no shell
		{"CMD", `["serve", "-c", "/etc/headgate/headgate.yaml"]`},
	}
	if !slices.Equal(image, want) {
		t.Errorf("the image is\n%v, want\n%v", image, want)
	}
	page := read(t, "../docs/install.md")
	for _, what := range []string{user + ":" + user, "| `/headgate` |"} {
		if !strings.Contains(page, what) {
			t.Errorf("docs/install.md does not say %s", what)
		}
	}
	script := read(t, "../tools/build.sh")
	for _, what := range []string{"CGO_ENABLED=0", "-trimpath", "-buildvcs=false", "-buildid="} {
		if !strings.Contains(script, what) {
			t.Errorf("tools/build.sh has no %s: binaries are not static, or not the same elsewhere", what)
		}
	}
	// There is no second way to build for others.
	for _, file := range []string{"../Makefile", "../tools/release.sh", "../tools/deb.sh", "../.goreleaser.yaml"} {
		if strings.Contains(read(t, file), "-trimpath") {
			t.Errorf("%s builds by itself: tools/build.sh is for that", file)
		}
	}
	// A Go of another version makes other bits.
	mod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))
	if of := regexp.MustCompile(`(?m)^ARG GO=(\d+\.\d+)\.\d+$`).FindStringSubmatch(read(t, "../Containerfile")); mod == nil || of == nil || of[1] != mod[1] {
		t.Errorf("the container's Go is %v, and go.mod's %v", of, mod)
	}
	ignored := strings.Fields(read(t, "../.dockerignore"))
	for _, needed := range []string{"go.mod", "tools", "cmd", "console", "deploy"} {
		if slices.Contains(ignored, needed) {
			t.Errorf(".dockerignore leaves out %s, which the build needs", needed)
		}
	}
}

// TestPublishing: goreleaser publishes what tools/release.sh makes, and makes nothing.
func TestPublishing(t *testing.T) {
	text := read(t, "../.goreleaser.yaml")
	for _, what := range []string{"- tools/release.sh {{ .Tag }}", "builds:\n  - skip: true\n", "- glob: bin/release/*"} {
		if !strings.Contains(text, what) {
			t.Errorf(".goreleaser.yaml has no %q", what)
		}
	}
	for _, second := range []string{"archives:", "nfpms:", "dockers:", "sboms:", "goos:"} {
		if strings.Contains(text, second) {
			t.Errorf(".goreleaser.yaml has %s, which is a second way to make a release", second)
		}
	}
	changes := read(t, "../CHANGELOG.md")
	if !strings.Contains(changes, "\n## [Unreleased]\n") {
		t.Error("CHANGELOG.md has no place for what is not released yet")
	}
}
