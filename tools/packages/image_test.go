package packages

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStatic: the binary asks for no loader and no library, which the image has not.
func TestStatic(t *testing.T) {
	f, err := elf.Open(built(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it has a %v", p.Type)
		}
	}
}

// image is what podman has made of the last stage of Containerfile: the other two build the
// binary, which is there already.
type image struct {
	root   string // its files
	list   []string
	config struct {
		User            string
		Entrypoint, Cmd []string
		ExposedPorts    map[string]struct{}
		Env             []string
		WorkingDir      string
	}
}

func imageOf(t *testing.T, podman, binary string) *image {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, "tools/image-root.sh", binary, filepath.Join(dir, "image"))
	text := read(t, "Containerfile")
	last := text[strings.LastIndex(text, "\nFROM ")+1:]
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(strings.Replace(last, "--from=build /image/", "image/", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(dir, "store")
	t.Cleanup(func() { _, _ = run(t, "rm", "-rf", store) }) // what the layers have is root's
	on := []string{"--storage-driver=vfs", "--root=" + store, "--runroot=" + filepath.Join(dir, "run")}
	with := func(args ...string) string { return mustRun(t, podman, append(slices.Clone(on), args...)...) }
	const name = "headgate:check"
	with("build", "--quiet", "--isolation=chroot", "-t", name, "-f", filepath.Join(dir, "Containerfile"), dir)
	i := &image{root: filepath.Join(dir, "root")}
	if err := json.Unmarshal([]byte(with("image", "inspect", "--format", "{{json .Config}}", name)), &i.config); err != nil {
		t.Fatal(err)
	}
	// The files are those of its layers, one on the other: a container that was made, and not
	// begun, has more, which its runtime needs.
	archive := filepath.Join(dir, "image.tar")
	with("save", "--quiet", "--format=docker-archive", "-o", archive, name)
	i.unpack(t, archive)
	return i
}

// unpack writes the files of a saved image to its root, and lists them.
func (i *image) unpack(t *testing.T, archive string) {
	t.Helper()
	b, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string][]byte{}
	each(t, b, func(h *tar.Header, content []byte) { parts[h.Name] = content })
	var manifest []struct{ Layers []string }
	if err := json.Unmarshal(parts["manifest.json"], &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) == 0 {
		t.Fatalf("%v: %s", err, parts["manifest.json"])
	}
	for _, layer := range manifest[0].Layers {
		each(t, parts[layer], func(h *tar.Header, content []byte) {
			name := filepath.Join(i.root, h.Name)
			i.list = append(i.list, fmt.Sprintf("%04o %d:%d /%s", h.Mode&0o7777, h.Uid, h.Gid, strings.TrimPrefix(h.Name, "/")))
			var err error
			switch h.Typeflag {
			case tar.TypeDir:
				err = os.MkdirAll(name, 0o755)
			case tar.TypeReg:
				err = errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content, os.FileMode(h.Mode)))
			default:
				err = fmt.Errorf("%s is a %q", h.Name, h.Typeflag)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	slices.Sort(i.list)
}

func each(t *testing.T, archive []byte, do func(*tar.Header, []byte)) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		do(h, content)
	}
}

// TestImage: the image has what docs/install.md lists and nothing else, nobody's key and
// nothing that is run as somebody else; and it serves and drains, as its user, with a root
// that is read-only and without any capability.
func TestImage(t *testing.T) {
	podman, runc := program(t, "podman"), program(t, "runc")
	if os.Getuid() != 0 {
		t.Skip("SKIP runc: a container of one's own root takes root")
	}
	i := imageOf(t, podman, built(t))
	want := []string{
		"0444 0:0 /etc/group", "0444 0:0 /etc/passwd", "0444 0:0 /etc/ssl/certs/ca-certificates.crt", "0555 0:0 /headgate",
		"0755 0:0 /etc/", "0755 0:0 /etc/ssl/", "0755 0:0 /etc/ssl/certs/", "1777 0:0 /tmp/",
	}
	slices.Sort(want)
	if !slices.Equal(i.list, want) {
		t.Errorf("it has\n%s\nwant\n%s", strings.Join(i.list, "\n"), strings.Join(want, "\n"))
	}
	page := read(t, "docs/install.md")
	for _, line := range i.list {
		if path := line[strings.Index(line, "/"):]; !strings.HasSuffix(path, "/") && !strings.Contains(page, "`"+path+"`") {
			t.Errorf("docs/install.md does not list %s", path)
		}
	}
	authorities, err := os.ReadFile(filepath.Join(i.root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || bytes.Count(authorities, []byte("BEGIN CERTIFICATE")) < 50 || bytes.Contains(authorities, []byte("PRIVATE KEY")) {
		t.Errorf("authorities: %v, %d bytes", err, len(authorities))
	}
	if c := &i.config; c.User != "65532:65532" || len(c.ExposedPorts) != 2 || strings.Join(append(c.Entrypoint, c.Cmd...), " ") != "/headgate serve -c /etc/headgate/headgate.yaml" {
		t.Errorf("it says of itself %+v", c)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	admin := l.Addr().String()
	_ = l.Close() // the container takes it
	folder := t.TempDir()
	cfg := strings.NewReplacer("127.0.0.1:8080", "127.0.0.1:0", "127.0.0.1:9090", admin).Replace(read(t, "deploy/debian/headgate.yaml"))
	if err := errors.Join(os.Chmod(folder, 0o755), os.WriteFile(filepath.Join(folder, "headgate.yaml"), []byte(cfg), 0o644)); err != nil {
		t.Fatal(err)
	}
	bundle := t.TempDir()
	i.bundle(t, runc, bundle, folder)
	name := "headgate-" + filepath.Base(bundle) + fmt.Sprint(os.Getpid())
	var log bytes.Buffer
	cmd := exec.Command(runc, "run", "--bundle", bundle, name)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = run(t, runc, "delete", "--force", name) }) // mostly it is gone
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	get := func(path string) (int, string) {
		res, err := http.Get("http://" + admin + path)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body) // what is there is what is looked at
		return res.StatusCode, string(body)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if status, _ := get("/healthz"); status == http.StatusOK {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("%v\n%s", err, log.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal(log.String())
		}
	}
	var state struct{ Pid int }
	if err := json.Unmarshal([]byte(mustRun(t, runc, "state", name)), &state); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", state.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65532\t65532", "Gid:\t65532\t65532", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the process has not %q:\n%s", want, status)
		}
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "gpu0") {
		t.Errorf("without an engine /readyz is %d: %s", code, body)
	}
	mustRun(t, runc, "kill", name, "TERM")
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
}

// bundle is a container of the image in the machine's own network, with a folder for its
// configuration and a root that is read-only.
func (i *image) bundle(t *testing.T, runc, dir, folder string) {
	t.Helper()
	mustRun(t, runc, "spec", "--bundle", dir)
	file := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(file)
	var spec map[string]any
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	var uid, gid int
	if _, err := fmt.Sscanf(i.config.User, "%d:%d", &uid, &gid); err != nil {
		t.Fatal(err)
	}
	spec["root"] = map[string]any{"path": i.root, "readonly": true}
	spec["process"] = map[string]any{
		"user": map[string]any{"uid": uid, "gid": gid}, "args": append(i.config.Entrypoint, i.config.Cmd...), "env": i.config.Env, "cwd": "/", "noNewPrivileges": true,
	}
	mounts := []any{map[string]any{"destination": "/etc/headgate", "type": "bind", "source": folder, "options": []string{"bind", "ro"}}}
	for _, m := range spec["mounts"].([]any) {
		if !strings.HasPrefix(m.(map[string]any)["type"].(string), "cgroup") {
			mounts = append(mounts, m)
		}
	}
	spec["mounts"] = mounts
	linux := spec["linux"].(map[string]any)
	delete(linux, "resources")
	linux["namespaces"] = slices.DeleteFunc(linux["namespaces"].([]any), func(n any) bool {
		kind := n.(map[string]any)["type"]
		return kind == "network" || kind == "cgroup"
	})
	if text, err = json.Marshal(spec); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
