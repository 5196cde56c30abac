package headgate

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"headgate/gateway"
)

// Controller is a running `headgate controller`.
type Controller struct {
	*process
	Admin string // for operators, without a trailing slash
}

// StartController runs a controller by a configuration file until the test ends, and
// returns once it listens.
func StartController(t testing.TB, yaml string) *Controller {
	t.Helper()
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Controller{process: start(t, "controller", "-c", file, "--admin-listen", "127.0.0.1:0")}
	c.Admin = "http://" + c.AwaitOutput(`"campaigning","admin":"([0-9.:]+)"`)[1]
	return c
}

// AwaitGrants waits until what an admin listener tells of the fleet is as wanted, and
// returns it.
func AwaitGrants(t testing.TB, admin, want string, ok func(*gateway.GrantsView) bool) *gateway.GrantsView {
	t.Helper()
	var v *gateway.GrantsView
	g := &Gateway{process: &process{t: t}}
	g.await(func() bool {
		res, err := http.Get(admin + "/api/grants")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		v = new(gateway.GrantsView)
		if err := json.NewDecoder(res.Body).Decode(v); err != nil {
			t.Fatalf("/api/grants: %v", err)
		}
		return ok(v)
	}, func() string {
		b, _ := json.MarshalIndent(v, "", "  ")
		return want + "; it says\n" + string(b)
	})
	return v
}
