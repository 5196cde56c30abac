package packages

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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

// TestImage: alone in an empty root that is read-only, as the image's user and without any
// capability, the binary serves and drains. That is what the image comes to, but for the
// files of its base, which it is not given here.
func TestImage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIP chroot: an empty root takes root")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "etc/headgate"), 0o755); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(built(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	admin := l.Addr().String()
	_ = l.Close() // the child takes it
	cfg := strings.NewReplacer("127.0.0.1:8080", "127.0.0.1:0", "127.0.0.1:9090", admin).Replace(read(t, "deploy/debian/headgate.yaml"))
	for name, content := range map[string]string{"headgate": string(binary), "etc/headgate/headgate.yaml": cfg} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o555); err != nil {
			t.Fatal(err)
		}
	}
	const enter = `mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid \
		chroot --userspec=65532:65532 "$0" /headgate serve -c /etc/headgate/headgate.yaml`
	cmd := exec.Command("unshare", "--mount", "sh", "-euc", enter, dir)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &log, &log, []string{"PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
			_ = cmd.Process.Kill()
			t.Fatal(log.String())
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
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
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
}
