package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/config"
	"headgate/control"
	"headgate/control/store"
)

// TestForwarding: serve does not start without what replicas know each other by.
func TestForwarding(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(notes, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		secret, ca string
		want       string
	}{
		"no secret":         {"", "", "variable FLEET_SECRET holds 0 bytes; allowed: 32 or more"},
		"a short secret":    {strings.Repeat("s", 31), "", "holds 31 bytes"},
		"no file":           {strings.Repeat("s", 32), notes + "x", "control.forward.ca: open "},
		"no certificate":    {strings.Repeat("s", 32), notes, "holds no certificate"},
		"all that it takes": {strings.Repeat("s", 32), "", ""},
	} {
		t.Setenv("FLEET_SECRET", c.secret)
		f := &fleet{
			cfg: &config.Control{Forward: &config.Forward{Address: "http://{replica}:1/", SecretEnv: "FLEET_SECRET", CA: c.ca, ConnectTimeout: time.Second}},
			id:  control.ID{Replica: "one", Boot: "1"}, store: store.NewMemory(), log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}
		v, err := f.forward()
		switch {
		case c.want == "" && (err != nil || v == nil || v.Router == nil || v.Connect != time.Second || v.Secret.Reveal() != c.secret):
			t.Errorf("%s: %+v, %v", name, v, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || c.secret != "" && strings.Contains(err.Error(), c.secret)):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if got := f.cfg.Forward.AddressOf("one"); got != "http://one:1" {
			t.Errorf("the address is %s", got)
		}
	}
}
