package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"headgate/config"
)

// unit reads a unit's settings; one that stands several times has the last, and a list of
// all with spaces between them.
func unit(t *testing.T, file string) (last, all map[string]string) {
	last, all = map[string]string{}, map[string]string{}
	for line := range strings.Lines(read(t, file)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			last[key] = value
			all[key] = strings.TrimSpace(all[key] + " " + value)
		}
	}
	return last, all
}

// TestUnit: the unit's times and bounds are above what the process's defaults take, and it
// may do nothing that the process does not.
func TestUnit(t *testing.T) {
	u, all := unit(t, "systemd/headgate.service")
	var limits config.Limits
	limits.SetDefaults()
	if n, err := strconv.Atoi(u["TimeoutStopSec"]); err != nil || time.Duration(n)*time.Second <= limits.DrainTimeout+limits.Keepalive {
		t.Errorf("TimeoutStopSec=%s, and a drain takes up to %v", u["TimeoutStopSec"], limits.DrainTimeout)
	}
	if n, err := strconv.Atoi(u["LimitNOFILE"]); err != nil || n < 2*limits.MaxConnections+1024 {
		t.Errorf("LimitNOFILE=%s, and %d clients with their requests take twice that", u["LimitNOFILE"], limits.MaxConnections)
	}
	for key, want := range map[string]string{
		"User": "headgate", "KillMode": "mixed", "ExecStart": "/usr/bin/headgate serve -c /etc/headgate/headgate.yaml",
		"NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "AmbientCapabilities": "", "ProtectSystem": "strict", "ProtectHome": "yes",
		"PrivateDevices": "yes", "PrivateTmp": "yes", "PrivateUsers": "yes", "MemoryDenyWriteExecute": "yes", "RestrictNamespaces": "yes",
		"RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX", "SystemCallArchitectures": "native", "StateDirectoryMode": "0700",
	} {
		if got, ok := u[key]; !ok || got != want {
			t.Errorf("%s=%s, want %s", key, got, want)
		}
	}
	if all["SystemCallFilter"] != "@system-service ~@privileged" {
		t.Errorf("SystemCallFilter=%s", all["SystemCallFilter"])
	}
	if !strings.Contains(read(t, "systemd/headgate.sysusers"), "u headgate ") {
		t.Error("nobody makes the unit's user")
	}
	for _, file := range []string{"headgate.yaml", "environment"} {
		if !strings.Contains(read(t, "systemd/headgate.tmpfiles"), "z /etc/headgate/"+file+" 0640 root headgate") {
			t.Errorf("who may read %s is not said", file)
		}
	}
}

// TestDebianDefaults: what the package installs is a good file, and opens nothing to a network.
func TestDebianDefaults(t *testing.T) {
	const file = "debian/headgate.yaml"
	c, problems := config.Parse(file, []byte(read(t, file)))
	if c == nil || len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, listen := range []string{c.Listen, c.Admin.Listen} {
		if !strings.HasPrefix(listen, "127.0.0.1:") {
			t.Errorf("a fresh install listens at %s", listen)
		}
	}
	scripts, err := filepath.Glob("debian/p*")
	if err != nil || len(scripts) != 3 {
		t.Fatal(scripts, err)
	}
	for _, script := range append(scripts, "../tools/build.sh") {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
		if info, err := os.Stat(script); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s can't be run: %v", script, err)
		}
	}
	// What the package has is there.
	for line := range strings.Lines(read(t, "debian/nfpm.yaml")) {
		_, rest, ok := strings.Cut(line, "src: ")
		src, _, _ := strings.Cut(rest, ",")
		if ok && !strings.HasPrefix(src, `"$`) {
			if _, err := os.Stat(filepath.Join("..", src)); err != nil {
				t.Error(err)
			}
		}
	}
}
