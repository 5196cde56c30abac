package packages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// built is a binary as a release has it, for this machine.
func built(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "headgate")
	mustRun(t, "tools/build.sh", "v0.0.1-check", runtime.GOARCH, file)
	return file
}

// deb makes the package of a binary.
func deb(t *testing.T, binary, version string) string {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, "tools/deb.sh", version, runtime.GOARCH, binary, dir)
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

// inCopy runs a script in a copy of this machine's root that nobody else sees, and which is
// gone afterwards. NAME=VALUE are variables of it.
func inCopy(t *testing.T, script string, env ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const enter = `set -e
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
mount -t proc proc "$1/root/proc" && mount --rbind /dev "$1/root/dev"
mkdir -p "$1/root/check" && mount --bind "$DEBS" "$1/root/check"
exec chroot "$1/root" /bin/sh -euc "$2"`
	var out bytes.Buffer
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enter, "enter", dir, script)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// TestDebianPackage: it has what it should, and the same twice.
func TestDebianPackage(t *testing.T) {
	program(t, "dpkg-deb")
	binary := built(t)
	file := deb(t, binary, "v1.2.3")
	again := deb(t, binary, "v1.2.3")
	a, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(again); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the same binary made two packages: %v", err)
	}
	if name := filepath.Base(file); name != "headgate_1.2.3_"+runtime.GOARCH+".deb" {
		t.Errorf("it is called %s", name)
	}
	for version, want := range map[string]string{"v1.2.3-rc.1": "1.2.3~rc.1", "v1.2.3-4-gabcdef0": "1.2.3+4.abcdef0", "abcdef0-dirty": "0.0.0~abcdef0.dirty"} {
		if got := strings.TrimSpace(mustRun(t, "dpkg-deb", "-f", deb(t, binary, version), "Version")); got != want {
			t.Errorf("%s is version %s, want %s", version, got, want)
		}
	}
	if out := mustRun(t, "sh", "-c", `dpkg --compare-versions 1.2.3~rc.1 lt 1.2.3 && dpkg --compare-versions 1.2.3 lt 1.2.3+4.abcdef0 && dpkg --compare-versions 0.0.0~abcdef0.dirty lt 0.0.1 && echo ordered`); !strings.Contains(out, "ordered") {
		t.Error(out)
	}
	for _, field := range []string{"Package", "Architecture", "Maintainer", "Section", "Priority", "Depends", "Installed-Size", "Description"} {
		if out := mustRun(t, "dpkg-deb", "-f", file, field); strings.TrimSpace(out) == "" {
			t.Errorf("it has no %s", field)
		}
	}
	conffiles := mustRun(t, "sh", "-c", `dpkg-deb --ctrl-tarfile "$0" | tar -xO ./conffiles`, file)
	if conffiles != "/etc/headgate/headgate.yaml\n/etc/headgate/environment\n" && conffiles != "/etc/headgate/environment\n/etc/headgate/headgate.yaml\n" {
		t.Errorf("conffiles %q", conffiles)
	}
	// What lintian would say first: who owns what, modes, and what every package has.
	list := mustRun(t, "dpkg-deb", "-c", file)
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		mode, owner, path := f[0], f[1], f[5]
		switch {
		case owner != "root/root":
			t.Errorf("%s is %s's", path, owner)
		case mode[5] == 'w' || mode[8] == 'w':
			t.Errorf("%s is written by others: %s", path, mode)
		case strings.HasPrefix(path, "./usr/local") || strings.HasPrefix(path, "./var"):
			t.Errorf("%s is no place for a package", path)
		case mode[0] == '-' && strings.Contains(mode, "x") && path != "./usr/bin/headgate":
			t.Errorf("%s can be run", path)
		}
	}
	for _, path := range []string{
		"./usr/bin/headgate", "./usr/lib/systemd/system/headgate.service", "./usr/lib/sysusers.d/headgate.conf", "./usr/lib/tmpfiles.d/headgate.conf",
		"./usr/share/doc/headgate/copyright", "./usr/share/doc/headgate/changelog.gz", "./usr/share/bash-completion/completions/headgate",
	} {
		if !strings.Contains(list, " "+path+"\n") {
			t.Errorf("it has no %s:\n%s", path, list)
		}
	}
}

// installing is a life of the package on a machine: installed, changed, upgraded, removed,
// purged. What is wrong ends it.
const installing = `
fail() { echo "FAILED: $*"; exit 1; }
is() { [ "$1" = "$2" ] || fail "$3: $1, want $2"; }
! getent passwd headgate >/dev/null || fail "there is a user before"
dpkg -i /check/first.deb
is "$(getent passwd headgate | cut -d: -f6-)" "/var/lib/headgate:/usr/sbin/nologin" "the user"
is "$(stat -c '%U:%G %a' /etc/headgate)" "root:headgate 750" "the folder"
for f in headgate.yaml environment; do is "$(stat -c '%U:%G %a' /etc/headgate/$f)" "root:headgate 640" "$f"; done
is "$(stat -c '%U:%G %a' /usr/bin/headgate)" "root:root 755" "the binary"
runuser -u headgate -- headgate validate -c /etc/headgate/headgate.yaml >/dev/null || fail "its own user can't use the configuration"
! runuser -u headgate -- sh -c 'echo >>/etc/headgate/headgate.yaml' 2>/dev/null || fail "it can write its configuration"
! runuser -u nobody -- cat /etc/headgate/environment 2>/dev/null || fail "anybody reads the keys"
dpkg --verify headgate | grep -v ' c ' && fail "files are not what was packed"

# As the unit starts it.
runuser -u headgate -- headgate serve -c /etc/headgate/headgate.yaml --listen 127.0.0.1:0 --admin 127.0.0.1:18091 2>/tmp/log &
for i in $(seq 100); do curl -sf http://127.0.0.1:18091/healthz >/dev/null && break; sleep 0.1; done
curl -sf http://127.0.0.1:18091/healthz >/dev/null || { cat /tmp/log; fail "it does not serve"; }
curl -s http://127.0.0.1:18091/metrics | grep -q '^headgate_build_info{.*v0.0.1-check' || fail "it is another binary"
pkill -TERM -u headgate headgate
wait || fail "it did not drain"

echo '# changed' >>/etc/headgate/headgate.yaml
dpkg -i /check/second.deb
grep -q '# changed' /etc/headgate/headgate.yaml || fail "the upgrade took the administrator's change away"
is "$(stat -c '%U:%G %a' /etc/headgate/headgate.yaml)" "root:headgate 640" "after the upgrade"
is "$(dpkg-query -W -f '${Version}' headgate)" "1.2.4" "the version"

mkdir -p /var/lib/headgate && touch /var/lib/headgate/batches
dpkg -r headgate
[ ! -e /usr/bin/headgate ] || fail "the binary stays"
[ -e /etc/headgate/headgate.yaml ] && [ -e /var/lib/headgate/batches ] || fail "removing took what purging takes"
dpkg -P headgate
for f in /etc/headgate /var/lib/headgate /usr/share/headgate /usr/share/doc/headgate /usr/lib/systemd/system/headgate.service; do [ ! -e $f ] || fail "purged, and there is $f"; done
getent passwd headgate >/dev/null || fail "the user is gone, and its number free"
echo WELL
`

// TestInstall: dpkg installs, upgrades, removes and purges it, and what it installs serves.
func TestInstall(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIP dpkg: installing in a copy of the machine takes root")
	}
	program(t, "dpkg")
	binary := built(t)
	dir := t.TempDir()
	for name, version := range map[string]string{"first.deb": "v1.2.3", "second.deb": "v1.2.4"} {
		if err := os.Rename(deb(t, binary, version), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if out := inCopy(t, installing, "DEBS="+dir); !strings.Contains(out, "WELL") {
		t.Error(out)
	} else {
		t.Log(out)
	}
}
